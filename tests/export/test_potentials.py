# SPDX-License-Identifier: BSD-3-Clause
"""The potentials of examples/potentials in ASE: derivatives by finite differences, and symmetries."""

import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from scipy.spatial.transform import Rotation
from stablemd import StableMDCalculator

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "potentials"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory, executable_cache):
    """exported("behler_parrinello", "float64"): path of an example's bundle."""
    import importlib

    folder, made = tmp_path_factory.mktemp("potentials"), {}

    def make(name, dtype="float64", **options):
        key = (name, dtype, *options)
        if key not in made:
            made[key] = folder / f"{len(made)}.safetensors"
            module = importlib.import_module(name)
            module.export(made[key], dtype, **{k: getattr(module, v) for k, v in options.items()})
        return made[key]

    return make


def water(rng):
    """Some molecules in a skewed periodic box."""
    atoms = Atoms(cell=[[6.2, 0, 0], [1.1, 6.0, 0], [-0.7, 0.4, 6.4]], pbc=True)
    for corner in ([0, 0, 0], [3.1, 0.5, 0.2], [0.4, 3.0, 0.3], [3.0, 3.2, 3.4]):
        one = molecule("H2O")
        one.positions = one.positions @ Rotation.random(random_state=rng).as_matrix().T + corner
        atoms += one
    atoms.positions += rng.normal(0, 0.05, atoms.positions.shape)
    return atoms


def silicon(rng):
    atoms = bulk("Si", "diamond", a=5.431, cubic=True)
    atoms.set_cell(atoms.cell @ (np.eye(3) + rng.uniform(-0.05, 0.05, (3, 3))), scale_atoms=True)
    atoms.positions += rng.normal(0, 0.15, atoms.positions.shape)
    return atoms


CASES = [
    ("behler_parrinello", {}, water),
    ("stillinger_weber", {}, silicon),
    ("stillinger_weber", {"energy": "energy_by_moments"}, silicon),
]


def fourth_order(energy, h=1e-3):
    return (energy(-2 * h) - 8 * energy(-h) + 8 * energy(h) - energy(2 * h)) / (12 * h)


@pytest.mark.parametrize("name, options, structure", CASES)
def test_derivatives(exported, rng, name, options, structure):
    atoms = structure(rng)
    atoms.calc = StableMDCalculator(exported(name, **options))
    forces, stress, volume = atoms.get_forces(), atoms.get_stress(), atoms.get_volume()

    def moved(displacement):
        other = atoms.copy()
        other.positions += displacement
        return atoms.calc.get_property("energy", other)

    def strained(strain):
        other = atoms.copy()
        other.set_cell(atoms.cell @ (np.eye(3) + strain), scale_atoms=True)
        return atoms.calc.get_property("energy", other)

    for _ in range(3):
        direction = rng.normal(size=forces.shape)
        direction /= np.linalg.norm(direction)
        slope = fourth_order(lambda h, d=direction: moved(h * d))
        assert slope == pytest.approx(-np.sum(forces * direction), abs=1e-8)
    strain = rng.uniform(-1, 1, (3, 3))
    strain = (strain + strain.T) / 2
    full = stress[[[0, 5, 4], [5, 1, 3], [4, 3, 2]]]
    assert fourth_order(lambda h: strained(h * strain), 1e-4) == pytest.approx(volume * np.sum(full * strain), abs=2e-6)


@pytest.mark.parametrize("name, options, structure", CASES)
def test_symmetries(exported, rng, name, options, structure):
    atoms = structure(rng)
    atoms.calc = StableMDCalculator(exported(name, **options))
    energies, forces = atoms.get_potential_energies(), atoms.get_forces()
    outputs = {key: atoms.calc.results[key] for key in atoms.calc._members[0].outputs}

    turn = Rotation.random(random_state=rng).as_matrix() * rng.choice([1, -1])  # with and without a reflection
    order = rng.permutation(len(atoms))
    other = Atoms(atoms.numbers[order], atoms.positions[order] @ turn.T, cell=atoms.cell @ turn.T, pbc=True)
    other.calc = atoms.calc
    np.testing.assert_allclose(other.get_potential_energies(), energies[order], atol=1e-10, rtol=0)
    np.testing.assert_allclose(other.get_forces(), (forces @ turn.T)[order], atol=1e-9, rtol=0)
    for key, values in outputs.items():
        np.testing.assert_allclose(other.calc.results[key], values[order], atol=1e-10, rtol=0)


@pytest.mark.parametrize("name, options, structure", CASES)
def test_float32(exported, rng, name, options, structure):
    atoms = structure(rng)
    exact, rounded = (StableMDCalculator(exported(name, dtype, **options)) for dtype in ("float64", "float32"))
    forces = exact.get_forces(atoms)
    np.testing.assert_allclose(rounded.get_forces(atoms), forces, atol=2e-5 * np.abs(forces).max(), rtol=0)
    np.testing.assert_allclose(
        rounded.results["energies"], exact.results["energies"], atol=2e-6 * max(1, np.abs(forces).max()), rtol=0
    )


def test_charges(exported, rng):
    atoms = water(rng)
    atoms.calc = StableMDCalculator(exported("behler_parrinello"))
    charges = atoms.get_charges()
    assert charges.shape == (len(atoms),) and np.ptp(charges) > 1e-3


def test_more_neighbours_than_in_any_crystal(exported, rng):
    """Sums over pairs have no largest number of neighbours."""
    atoms = Atoms("H80", positions=rng.uniform(0, 3.0, (80, 3)))
    energies = [
        StableMDCalculator(exported("behler_parrinello")).get_property("energies", Atoms(atoms[order]))
        for order in (np.arange(80), np.arange(80)[::-1])
    ]
    np.testing.assert_allclose(energies[0], energies[1][::-1], atol=1e-9)
