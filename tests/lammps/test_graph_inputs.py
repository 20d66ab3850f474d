# SPDX-License-Identifier: GPL-2.0-or-later
"""Charge, spin and other numbers of the whole structure as keywords of the pair style."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import structures
from lammps_runner import Setup, evaluate, preparation, run_lammps
from stablemd import ArgumentError, StableMDCalculator, export_potential

ELEMENTS = ["Si", "C"]
#: keywords, and what ASE's atoms.info says for the same
VALUES = [
    ("", {}),
    ("charge -1", {"charge": -1}),
    ("charge 2 threads 1 input field -0.5", {"charge": 2, "field": -0.5}),
    ("input charge 1.0 decomposition ghost", {"charge": 1}),
]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_as_in_ase(toy_bundle, tmp_path, ranks):
    bundle = toy_bundle("charged_pairs")
    atoms = structures.crystal((2, 1, 1))
    atoms.calc = StableMDCalculator(bundle)
    energies = []
    for n, (style, info) in enumerate(VALUES):
        atoms.info = info
        setup = Setup(bundle, ELEMENTS, style=style, ranks=ranks)
        (found,) = evaluate(setup, [atoms], tmp_path / f"{n}")
        energies.append(found.energy)
        assert abs(found.energy - atoms.get_potential_energy()) < 1e-10
        np.testing.assert_allclose(found.forces, atoms.get_forces(), atol=1e-10, rtol=0)
        np.testing.assert_allclose(found.stress, atoms.get_stress(), atol=1e-10, rtol=0)
    assert len(np.unique(np.round(energies, 3))) == len(VALUES)


def test_what_the_log_says(toy_bundle, tmp_path):
    setup = Setup(toy_bundle("charged_pairs"), ELEMENTS, style="charge -1")
    done = run_lammps(tmp_path, preparation(setup, structures.crystal((1, 1, 1)), tmp_path, "data.0"))
    assert "stablemd: of the whole structure: charge -1, field 0.25 (default)" in done.output


@pytest.mark.parametrize(
    "kind, style, complaint, ranks",
    [
        ("charged_pairs", "charge 3", "`charge` is 3, it must be a whole number from -2 to 2", 1),
        ("charged_pairs", "charge 3", "`charge` is 3, it must be a whole number from -2 to 2", 2),
        ("charged_pairs", "charge 0.5", "`charge` is 0.5, it must be a whole number from -2 to 2", 1),
        ("charged_pairs", "spin 2", "takes no `spin`; it takes charge, field", 1),
        ("charged_pairs", "spin 2", "takes no `spin`; it takes charge, field", 2),
        ("message_passing", "charge 1", "takes no `charge`; it takes nothing of the whole structure", 1),
        ("charged_pairs", "charge", "a value must follow 'charge'", 1),
        ("charged_pairs", "input field", "a name and a value must follow 'input'", 1),
        ("charged_pairs", "charge high", "high", 1),
    ],
)
def test_values_that_are_refused(toy_bundle, tmp_path, kind, style, complaint, ranks):
    setup = Setup(toy_bundle(kind), ELEMENTS, style=style)
    lines = [*preparation(setup, structures.crystal((1, 1, 1)), tmp_path, "data.0"), "run 0"]
    done = run_lammps(tmp_path, lines, ranks)
    assert done.code not in (0, 124, 137, -6, -11, 134, 139), done.output
    assert len(done.errors) == 1 and complaint in done.errors[0], done.output


def test_ensembles(toy_bundle, tmp_path):
    """The same inputs, with the same defaults, as the calculator demands."""
    bundle, other = toy_bundle("charged_pairs"), toy_bundle("charged_pairs", default=1)
    atoms = structures.crystal((1, 1, 1))
    setup = Setup(f"{bundle} {bundle}", ELEMENTS, style="charge 2")
    (found,) = evaluate(setup, [atoms], tmp_path / "both")
    atoms.info["charge"] = 2
    assert abs(found.energy - StableMDCalculator(bundle).get_potential_energy(atoms)) < 1e-10
    with pytest.raises(ArgumentError) as caught:
        StableMDCalculator([bundle, other])
    setup = Setup(f"{bundle} {other}", ELEMENTS)
    done = run_lammps(tmp_path, preparation(setup, atoms, tmp_path, "data.0"))
    assert len(done.errors) == 1 and str(caught.value) in done.errors[0]


def test_a_mace_against_mace_torch(tmp_path):
    """Of one bundle several charges and spins, on one rank and on two."""
    sys.path.append(str(Path(__file__).parents[1] / "mace"))
    import torch_models
    from stablemd.mace import load

    specs = {
        "total_charge": {"type": "categorical", "per": "graph", "num_classes": 9, "offset": 4, "emb_dim": 5},
        "total_spin": {"type": "categorical", "per": "graph", "num_classes": 6, "emb_dim": 4},
    }
    options = {"hidden": "3x0e", "max_ell": 1, "correlation": 1, "numbers": [6, 14], "r_max": 3.5}
    model = torch_models.build(**options, embedding_specs=specs, use_embedding_readout=True)
    torch_models.torch.save(model, tmp_path / "some.model")
    bundle = tmp_path / "some.safetensors"
    export_potential(load(tmp_path / "some.model", elements=ELEMENTS), bundle, dtype="float64", platforms="cpu")
    atoms = structures.crystal((2, 1, 1))
    for style, ranks, features in [
        ("", 1, {}),
        ("charge -1 spin 2", 1, {"total_charge": -1, "total_spin": 2}),
        ("charge -1 spin 2", 2, {"total_charge": -1, "total_spin": 2}),
        ("spin 5 charge 4", 2, {"total_charge": 4, "total_spin": 5}),
    ]:
        (found,) = evaluate(Setup(bundle, ELEMENTS, style=style, ranks=ranks), [atoms], tmp_path / "run")
        expected = torch_models.evaluate(model, atoms, features=features)
        assert abs(found.energy - expected.energy) < 1e-8 * len(atoms)
        assert np.abs(found.forces - expected.forces).max() < 1e-7
