# SPDX-License-Identifier: BSD-3-Clause
"""Models made on the spot with mace-torch: what the trained ones do not cover."""

from __future__ import annotations

import ase
import numpy as np
import pytest
from evaluation import Evaluator
from stablemd.mace import load

torch = pytest.importorskip("torch", reason="mace-torch files need torch")
modules = pytest.importorskip("mace.modules", reason="mace-torch files need mace-torch")

HEADS = ["pbe", "r2scan"]
NUMBERS = [1, 6, 8]


@pytest.fixture(autouse=True)
def double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def build(hidden="8x0e+8x1o", first="RealAgnosticResidualInteractionBlock", scaled=True, **changes):
    from e3nn import o3

    options = {
        "r_max": 4.5,
        "num_bessel": 5,
        "num_polynomial_cutoff": 6,
        "max_ell": 2,
        "interaction_cls": modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        "interaction_cls_first": modules.interaction_classes[first],
        "num_interactions": 2,
        "num_elements": len(NUMBERS),
        "hidden_irreps": o3.Irreps(hidden),
        "MLP_irreps": o3.Irreps("6x0e"),
        "gate": torch.nn.functional.silu,
        "atomic_energies": np.array([[-13.0, -1000.0, -2000.0], [-14.0, -1001.0, -2002.0]]),
        "avg_num_neighbors": 7.5,
        "atomic_numbers": NUMBERS,
        "correlation": 3,
        "radial_MLP": [16, 16],
        "radial_type": "bessel",
        "heads": HEADS,
        **changes,
    }
    if len(options["heads"]) == 1:
        options["atomic_energies"] = options["atomic_energies"][:1]
    torch.manual_seed(int(np.random.SeedSequence().generate_state(1)[0]))
    if not scaled:
        return modules.MACE(**options)
    factors = np.array([0.7, 1.3])[: len(options["heads"])]
    return modules.ScaleShiftMACE(**options, atomic_inter_scale=factors, atomic_inter_shift=0.1 * factors)


def torch_energies_and_forces(model, atoms, head):
    from mace import data
    from mace.tools import AtomicNumberTable, torch_geometric

    configuration = data.config_from_atoms(atoms, head_name=head)
    table = AtomicNumberTable(NUMBERS)
    entry = data.AtomicData.from_config(configuration, table, float(model.r_max), heads=list(model.heads))
    batch = next(iter(torch_geometric.dataloader.DataLoader([entry], batch_size=1)))
    out = model(batch.to_dict(), compute_force=True)
    return out["node_energy"].detach().numpy(), out["forces"].detach().numpy()


def structure() -> ase.Atoms:
    rng = np.random.default_rng()
    return ase.Atoms("COHHCO", positions=rng.uniform(0, 3.2, (6, 3)), cell=[5.0, 5.5, 6.0], pbc=True)


def compare(model, path, head=None):
    torch.save(model, path)
    atoms = structure()
    energies, forces = torch_energies_and_forces(model, atoms, head or model.heads[0])
    potential = load(path, head=head)
    result = Evaluator(potential)(atoms)
    scale = max(1.0, np.abs(forces).max())
    assert np.abs(result.energies - energies).max() < 1e-9 * scale
    assert np.abs(result.forces - forces).max() < 1e-8 * scale
    return potential


@pytest.mark.parametrize("head", HEADS)
def test_each_head(tmp_path, head):
    potential = compare(build(), tmp_path / "two.model", head)
    assert potential.source == {"kind": "mace-torch", "file": "two.model", "head": head}


def test_a_choice_of_head_is_needed(tmp_path):
    torch.save(build(), tmp_path / "two.model")
    with pytest.raises(ValueError, match="has several heads: choose one with head=, of pbe, r2scan"):
        load(tmp_path / "two.model")


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden": "8x0e+8x1o+8x2e"},
        {"correlation": 1},
        {"correlation": 2, "max_ell": 3},
        {"correlation": 4, "hidden": "4x0e", "max_ell": 3},
        {"num_interactions": 1},
        {"num_interactions": 3, "hidden": "4x0e+4x1o", "max_ell": 1},
        {"first": "RealAgnosticInteractionBlock", "scaled": False},
        {"interaction_cls": modules.interaction_classes["RealAgnosticInteractionBlock"], "hidden": "6x0e"},
    ],
    ids=str,
)
def test_other_shapes(tmp_path, changes):
    compare(build(heads=["only"], **changes), tmp_path / "one.model")


def test_what_is_not_implemented_is_refused_by_name(tmp_path):
    path = tmp_path / "other.model"
    for changes, message in [
        ({"pair_repulsion": True}, "pair_repulsion = True"),
        ({"distance_transform": "Agnesi"}, "distance_transform = AgnesiTransform"),
        ({"radial_type": "gaussian"}, "radial_type = GaussianBasis"),
        ({"use_agnostic_product": True}, "use_agnostic_product = True"),
        ({"first": "RealAgnosticDensityInteractionBlock"}, "interactions.0 = RealAgnosticDensityInteractionBlock"),
    ]:
        torch.save(build(heads=["only"], **changes), path)
        with pytest.raises(ValueError, match=f"other.model: cannot evaluate a MACE with {message}"):
            load(path)


def test_files_that_hold_no_mace(tmp_path):
    path = tmp_path / "other.model"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match="cannot evaluate a MACE with model class = Linear"):
        load(path)
    for content in (b"", b"not a pickle", np.random.default_rng().bytes(300)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="neither a MACE-JAX directory nor a mace-torch model") as caught:
            load(path)
        assert "\n" not in str(caught.value)
