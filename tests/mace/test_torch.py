# SPDX-License-Identifier: BSD-3-Clause
"""Forms of mace-torch files: heads, precisions, wrappers, compiled modules, embeddings; and files that are none."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import torch_models
from evaluation import Evaluator
from stablemd.mace import load
from torch_models import HEADS, build, double_precision, fresh_seed, torch, triclinic_crystal


@pytest.fixture
def rng():
    return np.random.default_rng(fresh_seed())


def compare(model, path, head=None, features=None, **options):
    """The file against the model itself."""
    atoms = triclinic_crystal(np.random.default_rng(fresh_seed()))
    expected = torch_models.evaluate(model, atoms, head, features)
    potential = load(path, head=head, features=features, **options)
    result = Evaluator(potential, quick=True)(atoms)
    assert abs(result.energy - expected.energy) < 1e-8 * len(atoms)
    assert np.abs(result.forces - expected.forces).max() < 1e-7
    return potential


@pytest.fixture(scope="module")
def small():
    return build(hidden="3x0e+3x1o", max_ell=1, first="Density", other="DensityResidual", distance_transform="Agnesi")


@pytest.fixture(scope="module")
def two_heads():
    return build(hidden="3x0e+3x1o", max_ell=1, heads=2)


@pytest.mark.parametrize("head", HEADS)
def test_each_head(tmp_path, two_heads, head):
    path = tmp_path / "two.model"
    torch.save(two_heads, path)
    potential = compare(two_heads, path, head)
    assert potential.source == {"kind": "mace-torch", "file": "two.model", "head": head, "kernels": "xla"}


def test_a_choice_of_head_is_needed(tmp_path, two_heads):
    torch.save(two_heads, tmp_path / "two.model")
    with pytest.raises(ValueError, match="has several heads: choose one with head=, of pbe, r2scan"):
        load(tmp_path / "two.model")


def test_float32_files_are_evaluated_as_if_cast_to_float64(tmp_path, small):
    import copy

    path = tmp_path / "single.model"
    single = copy.deepcopy(small).float()
    torch.save(single, path)
    compare(single.double(), path)


def test_files_of_older_releases_lack_attributes(tmp_path):
    """As if pickled before these existed: heads, options of 0.3.7 and later, irreps of edges."""
    model = build(hidden="3x0e+3x1o", max_ell=1, first="", scaled=False)
    older = torch.load(io.BytesIO(_pickled(model)), weights_only=False)
    for module, names in [
        (older, ("heads", "apply_cutoff", "edge_irreps", "use_reduced_cg", "use_agnostic_product", "use_so3",
                 "use_last_readout_only", "use_edge_irreps_first", "lammps_mliap")),
        (older.radial_embedding, ("apply_cutoff",)),
        *((block, ("edge_irreps", "radial_MLP", "cueq_config", "oeq_config")) for block in older.interactions),
        *((product, ("use_agnostic_product", "cueq_config")) for product in older.products),
        (older.readouts[-1], ("num_heads",)),
    ]:  # fmt: skip
        for name in names:
            delattr(module, name)
    path = tmp_path / "older.model"
    torch.save(older, path)
    compare(model, path)


def _pickled(model) -> bytes:
    stream = io.BytesIO()
    torch.save(model, stream)
    return stream.getvalue()


def compiled(module):
    from e3nn.util import jit

    with contextlib.redirect_stdout(io.StringIO()):
        return jit.compile(module)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrapped", [False, True])
def test_compiled_files(tmp_path, wrapped):
    from mace.calculators import LAMMPS_MACE

    with double_precision():
        model = build(hidden="3x0e+3x1o", max_ell=1, heads=2, script=True, pair_repulsion=True)
        path = tmp_path / "model-lammps.pt"
        compiled(LAMMPS_MACE(model, head="r2scan") if wrapped else model).save(path)
    compare(model, path, "r2scan")
    if wrapped:
        assert load(path).source["head"] == "r2scan"


def test_wrapped_but_not_compiled(tmp_path, small):
    from mace.calculators import LAMMPS_MACE

    path = tmp_path / "wrapped.model"
    torch.save(LAMMPS_MACE(small), path)
    compare(small, path)


SPECS = {
    "total_charge": {"type": "categorical", "per": "graph", "num_classes": 9, "offset": 4, "emb_dim": 5},
    "total_spin": {"type": "continuous", "per": "graph", "in_dim": 1, "emb_dim": 4},
}


@pytest.mark.parametrize("readout", [False, True])
def test_charge_and_spin(tmp_path, readout):
    model = build(hidden="3x0e+3x1o", max_ell=1, embedding_specs=SPECS, use_embedding_readout=readout)
    path = tmp_path / "charged.model"
    torch.save(model, path)
    charged = {"total_charge": -2.0, "total_spin": 3.0}
    compare(model, path, features=charged)
    neutral = compare(model, path)
    assert neutral.source.get("features") is None
    assert load(path, features=charged).source["features"] == charged
    for features, message in [
        ({"total_charge": 5}, "total_charge = 5 must be a whole number from -4 to 4"),
        ({"total_charge": 0.5}, "total_charge = 0.5 must be a whole number"),
        ({"dipole": 1}, "takes no dipole: it embeds charge, spin"),
        ({"charge": 5}, "charge = 5 must be a whole number from -4 to 4"),
        ({"charge": 1, "total_charge": 1}, "a feature is given twice, in charge, total_charge"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(path, features=features)


def test_features_of_a_model_that_embeds_none(tmp_path, small):
    torch.save(small, tmp_path / "plain.model")
    with pytest.raises(ValueError, match="takes no total_charge: it embeds nothing of the whole"):
        load(tmp_path / "plain.model", features={"total_charge": 1})


def test_what_is_not_implemented_is_refused_by_name(tmp_path, small):
    path = tmp_path / "other.model"
    for changes, message in [
        ({"first": "AttResidual"}, "interactions.0 = RealAgnosticAttResidualInteractionBlock"),
        ({"hidden": "3x0e+3x0o"}, "hidden_irreps = 3x0e[+]3x0o"),
    ]:
        torch.save(build(max_ell=1, **changes), path)
        with pytest.raises(ValueError, match=f"other.model: cannot evaluate a MACE with {message}"):
            load(path)


def test_tensors_that_are_missing_or_wrong(tmp_path, small):
    import copy

    path = tmp_path / "damaged.model"
    for module, name, value, message in [
        (
            "interactions.1.linear_up",
            "weight",
            torch.zeros(5),
            r"interactions.1.linear_up.weight has shape \(5,\), needs",
        ),
        ("radial_embedding.distance_transform", "q", None, "distance_transform.q is missing"),
        (
            "interactions.0.density_fn.layer0",
            "weight",
            torch.full((5, 1), torch.nan),
            "holds values that are not finite",
        ),
    ]:
        damaged = copy.deepcopy(small)
        owner = damaged.get_submodule(module)
        delattr(owner, name)
        if value is not None:
            owner.register_buffer(name, value)
        torch.save(damaged, path)
        with pytest.raises(ValueError, match=message) as caught:
            load(path)
        assert "\n" not in str(caught.value)


def test_files_that_hold_no_mace(tmp_path):
    path = tmp_path / "other.model"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match=r"holds a torch.nn.modules.linear.Linear, which is no MACE"):
        load(path)
    for content in (b"not a pickle", b"PK\x03\x04 and no archive", np.random.default_rng().bytes(300)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="neither a MACE-JAX model nor a mace-torch model") as caught:
            load(path)
        assert "\n" not in str(caught.value)
