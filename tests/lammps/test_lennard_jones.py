# SPDX-License-Identifier: GPL-2.0-or-later
"""A Lennard-Jones bundle against LAMMPS' own lj/charmm style, which has the same switching function."""

from __future__ import annotations

import numpy as np
import pytest
from ase.build import bulk
from lammps_runner import Setup, evaluate

SIGMA, EPSILON, INNER, CUTOFF = 3.4, 0.0104, 6.0, 8.5
OWN_STYLE = [
    f"pair_style lj/charmm/coul/charmm {INNER} {CUTOFF}",
    f"pair_coeff 1 1 {EPSILON} {SIGMA}",
]


def argon(repeat, seed, tilt=0.0):
    atoms = bulk("Ar", "fcc", 5.3, cubic=True).repeat(repeat)
    atoms.set_cell(atoms.cell.array + np.array([[0, 0, 0], [tilt, 0, 0], [-tilt, 0.5 * tilt, 0]]), scale_atoms=True)
    atoms.rattle(0.2, seed=seed)
    return atoms


def surface(seed):
    atoms = argon((2, 2, 2), seed)
    atoms.pbc = (True, True, False)
    return atoms


def frames():
    seed = np.random.SeedSequence().entropy % 2**31
    print(f"seed {seed}")
    return [argon((2, 2, 2), seed), argon((1, 1, 1), seed + 1), argon((3, 2, 1), seed + 2, 0.8), surface(seed + 3)]


@pytest.mark.parametrize(
    ("style", "ranks", "newton"),
    [
        ("", 1, "on"),
        ("", 1, "off"),
        ("decomposition ghost", 1, "on"),
        ("", 2, "on"),
        ("decomposition ghost threads 1", 2, "off"),
    ],
)
def test_agrees_with_own_style(toy_bundle, tmp_path, style, ranks, newton):
    structures = frames()
    setup = Setup(toy_bundle("lennard_jones"), ["Ar"], style, ranks=ranks, newton=newton)
    own = Setup("", ["Ar"], pair=OWN_STYLE, atom_style="charge")
    results = evaluate(setup, structures, tmp_path / "stablemd")
    for ours, theirs in zip(results, evaluate(own, structures, tmp_path / "own"), strict=True):
        assert ours.energy == pytest.approx(theirs.energy, abs=1e-11 * len(ours.forces))
        np.testing.assert_allclose(ours.energies, theirs.energies, atol=1e-12, rtol=1e-11)
        np.testing.assert_allclose(ours.forces, theirs.forces, atol=1e-12, rtol=1e-10)
        np.testing.assert_allclose(ours.stress, theirs.stress, atol=1e-14, rtol=1e-10)
        np.testing.assert_allclose(ours.stresses, theirs.stresses, atol=1e-14, rtol=1e-10)


def test_units_real(toy_bundle, tmp_path):
    structures = frames()
    bundle = toy_bundle("lennard_jones")
    metal = evaluate(Setup(bundle, ["Ar"]), structures, tmp_path / "metal")
    real = evaluate(Setup(bundle, ["Ar"], units="real"), structures, tmp_path / "real")
    for one, other in zip(metal, real, strict=True):
        assert other.energy == pytest.approx(one.energy, rel=1e-12)
        np.testing.assert_allclose(other.forces, one.forces, atol=1e-14, rtol=1e-11)
        # the pressure units of LAMMPS' two unit styles agree to 7 digits
        np.testing.assert_allclose(other.stress, one.stress, atol=1e-12, rtol=1e-6)


def test_float32(toy_bundle, tmp_path):
    structures = frames()
    double = evaluate(Setup(toy_bundle("lennard_jones"), ["Ar"]), structures, tmp_path / "double")
    single = evaluate(Setup(toy_bundle("lennard_jones", "float32"), ["Ar"]), structures, tmp_path / "single")
    for exact, rounded in zip(double, single, strict=True):
        assert abs(rounded.energy - exact.energy) < 2e-6 * len(exact.forces)
        largest = np.abs(exact.forces).max()
        np.testing.assert_allclose(rounded.forces, exact.forces, atol=2e-5 * largest, rtol=0)
        assert np.abs(rounded.forces - exact.forces).max() > 0
        # momentum is conserved in double whatever the program's precision
        assert np.abs(rounded.forces.sum(axis=0)).max() < 1e-12 * len(exact.forces)
