# SPDX-License-Identifier: BSD-3-Clause
"""Forms of mace-torch files: heads, precisions, wrappers, compiled modules, embeddings; and files that are none."""

from __future__ import annotations

import contextlib
import copy
import io
from dataclasses import replace

import numpy as np
import pytest
import torch_models
from evaluation import Evaluator
from stablemd._originals import open_original
from stablemd.mace import _torch_file, load
from stablemd.oeq import register
from torch_models import HEADS, build, double_precision, fresh_seed, in_double_precision, torch, triclinic_crystal


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
    path = tmp_path / "single.model"
    single = copy.deepcopy(small).float()
    torch.save(single, path)
    compare(single.double(), path)


@pytest.fixture(scope="module")
def single():
    """In float32; its messages are strong, so that rounded couplings show, and its coupling matrices not redundant."""
    return build(dtype=torch.float32, avg_num_neighbors=0.1, seed=1, script=True)


def evaluated(path, atoms, kernels):
    potential = load(path, kernels=kernels)
    if kernels == "oeq":
        register()
        potential = replace(potential, energy_fn=potential.platform_energy_fns["cpu"])
    return Evaluator(potential, quick=True)(atoms)


def test_couplings_that_float32_rounded(tmp_path, single):
    """The exact ones are the model, for either kind of kernels and for mace-torch, which is compared with."""
    path = tmp_path / "single.model"
    torch.save(single, path)
    atoms = triclinic_crystal(np.random.default_rng(1))
    exact = torch_models.evaluate(in_double_precision(single), atoms)
    rounded = torch_models.evaluate(copy.deepcopy(single).double(), atoms)
    assert abs(rounded.energy - exact.energy) > 1e-8 * len(atoms)
    assert np.abs(rounded.forces - exact.forces).max() > 1e-7
    for found in (evaluated(path, atoms, "xla"), evaluated(path, atoms, "oeq"), open_original(path).evaluate(atoms)):
        assert abs(found.energy - exact.energy) < 1e-9 * len(atoms)
        assert np.abs(found.forces - exact.forces).max() < 1e-9 * np.abs(exact.forces).max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["compiled", "cast"])
def test_couplings_that_float32_rounded_in_other_forms(tmp_path, single, form):
    path = tmp_path / "other.model"
    if form == "compiled":
        compiled(copy.deepcopy(single)).save(path)
    else:
        torch.save(copy.deepcopy(single).double(), path)
    assert_exact_couplings(path, (1, 2, 1))
    atoms = triclinic_crystal(np.random.default_rng(1))
    expected = torch_models.evaluate(in_double_precision(single), atoms).energy
    assert abs(open_original(path).evaluate(atoms).energy - expected) < 1e-9 * len(atoms)


def couplings(path):
    """Of the second layer, by degrees."""
    description, _ = _torch_file.read(path, None, {})
    return {(path.node, path.edge, path.out): path.coupling for path in description.layers[1].paths}


def assert_exact_couplings(path, degrees):
    from e3nn.o3 import wigner_3j

    tables = couplings(path)
    assert degrees in tables
    for (node, edge, out), table in tables.items():
        exact = wigner_3j(node, edge, out, dtype=torch.float64).numpy() * (2 * out + 1) ** 0.5
        assert np.abs(table - exact).max() < 1e-14


def test_couplings_of_odd_degrees(tmp_path):
    """Their signs are e3nn's own. Layers of libraries of kernels hold no tables: as if it were one of these."""
    model = build(hidden="3x0e+3x1e", use_so3=True, dtype=torch.float32)
    path = tmp_path / "proper.model"
    torch.save(model, path)
    assert_exact_couplings(path, (1, 2, 2))
    for block in model.interactions:
        block.conv_tp = torch.nn.Identity()
    torch.save(model, path)
    assert_exact_couplings(path, (1, 2, 2))


def test_couplings_that_are_really_others(tmp_path, single):
    """mace-torch's values are those of the file's own table; kernels with tables of their own cannot give them."""
    other = copy.deepcopy(single)
    table = other.state_dict()["interactions.1.conv_tp._compiled_main_left_right._w3j_1_2_1"]
    table *= 1 + 1e-6 * torch.arange(table.numel()).reshape(table.shape)
    path = tmp_path / "other.model"
    torch.save(other, path)
    assert np.array_equal(couplings(path)[1, 2, 1], table.double().numpy() * 3**0.5)
    with pytest.raises(ValueError, match="the coupling of degrees 1, 2, 1 is not e3nn's"):
        load(path, kernels="oeq")


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
