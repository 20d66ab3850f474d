# SPDX-License-Identifier: GPL-2.0-or-later
"""The Stillinger-Weber example, both formulations, against LAMMPS' own pair_style sw."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk
from lammps_runner import Setup, evaluate

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "potentials"))

# the published parameters in the order of LAMMPS' file: epsilon sigma a lambda gamma cos(theta0) A B p q tolerance
OWN_FILE = "Si Si Si 2.1683 2.0951 1.80 21.0 1.20 -0.333333333333333333 7.049556277 0.6022245584 4.0 0.0 0.0\n"


def crystal(repeat, rng):
    atoms = bulk("Si", "diamond", a=5.431, cubic=True).repeat(repeat)
    atoms.positions += rng.normal(0, 0.2, atoms.positions.shape)
    return atoms


@pytest.fixture(scope="module")
def frames():
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    tilted = crystal((2, 1, 1), rng)
    tilted.set_cell(tilted.cell.array @ np.array([[1, 0, 0], [0.2, 1, 0.1], [-0.1, 0.15, 0.98]]), scale_atoms=True)
    surface = crystal((2, 2, 1), rng)
    surface.pbc = (True, True, False)
    liquid = crystal((2, 2, 2), rng)
    liquid.positions += rng.uniform(-0.5, 0.5, liquid.positions.shape)
    return [crystal((2, 2, 2), rng), bulk("Si", "diamond", a=5.3), tilted, surface, liquid]


@pytest.fixture(scope="module")
def own(frames, tmp_path_factory):
    """What pair_style sw gives."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "Si.sw").write_text(OWN_FILE)
    return evaluate(Setup("", ["Si"], pair=["pair_style sw", "pair_coeff * * Si.sw Si"]), frames, folder)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    import stillinger_weber

    folder = tmp_path_factory.mktemp("sw")

    def export(dtype, function):
        path = folder / f"{dtype}-{function}.safetensors"
        if not path.exists():
            stillinger_weber.export(path, dtype, getattr(stillinger_weber, function))
        return path

    return export


@pytest.mark.parametrize("function", ["energy", "energy_by_moments"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_agrees_with_own_style(bundle, own, frames, tmp_path, function, ranks):
    results = evaluate(Setup(bundle("float64", function), ["Si"], ranks=ranks), frames, tmp_path)
    for ours, theirs in zip(results, own, strict=True):
        assert ours.energy == pytest.approx(theirs.energy, abs=1e-11 * len(theirs.forces))
        np.testing.assert_allclose(ours.forces, theirs.forces, atol=1e-10, rtol=0)
        np.testing.assert_allclose(ours.stress, theirs.stress, atol=1e-12, rtol=1e-9)
    # Energies of atoms differ: LAMMPS gives a third of a triplet to each of its atoms, the example all to the centre.
    assert np.abs(results[0].energies - own[0].energies).max() > 1e-3


def test_float32(bundle, own, frames, tmp_path):
    for ours, theirs in zip(evaluate(Setup(bundle("float32", "energy"), ["Si"]), frames, tmp_path), own, strict=True):
        largest = np.abs(theirs.forces).max()
        assert abs(ours.energy - theirs.energy) < 2e-6 * len(theirs.forces)
        np.testing.assert_allclose(ours.forces, theirs.forces, atol=2e-5 * max(largest, 1.0), rtol=0)
