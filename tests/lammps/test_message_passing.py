# SPDX-License-Identifier: GPL-2.0-or-later
"""A potential of two and three layers in every decomposition against JAX on the whole crystal."""

from __future__ import annotations

from functools import cache

import numpy as np
import potentials
import pytest
import structures
from jax_reference import evaluate_in_jax
from lammps_runner import Setup, evaluate

ELEMENTS = ["Si", "C"]

SETUPS = {
    "fold": {},
    "fold, newton off": {"newton": "off"},
    "ghost on one rank": {"style": "decomposition ghost"},
    "ghost on one rank, newton off": {"style": "decomposition ghost", "newton": "off"},
    "two ranks along x": {"ranks": 2, "processors": "2 1 1"},
    "two ranks along y, newton off": {"ranks": 2, "processors": "1 2 1", "newton": "off"},
    "two ranks along z": {"ranks": 2, "processors": "1 1 2"},
    "four ranks": {"ranks": 4, "processors": "2 2 1"},
    "atoms on one rank of two": {"ranks": 2, "processors": "1 1 2", "margin": (3.0, 80.0)},
    # LAMMPS refuses bins in the box of a single atom
    "shrink-wrapped": {"ranks": 2, "free": "s", "before": ["neighbor 2.0 nsq"]},
    "neighbour lists without bins": {"ranks": 2, "before": ["neighbor 1.5 nsq"]},
    "no skin": {"ranks": 2, "before": ["neighbor 0.0 bin"]},
    "real units": {"ranks": 2, "units": "real"},
}


def assert_agrees(ours, exact, frame, stress_digits=1e-12):
    count = len(exact.forces)
    assert ours.energy == pytest.approx(exact.energy, abs=1e-10 * count), frame
    np.testing.assert_allclose(ours.energies, exact.energies, atol=1e-10, rtol=0, err_msg=frame)
    np.testing.assert_allclose(ours.forces, exact.forces, atol=1e-10, rtol=0, err_msg=frame)
    if frame in ("crystal", "primitive", "triclinic", "gas"):
        np.testing.assert_allclose(ours.stress, exact.stress, atol=stress_digits, rtol=stress_digits, err_msg=frame)
    np.testing.assert_allclose(ours.stresses, exact.stresses, atol=stress_digits, rtol=stress_digits, err_msg=frame)


@pytest.fixture(scope="module")
def frames():
    """One draw of all structures, so that the setups share programs."""
    return {make.__name__: make() for make in structures.ALL}


@pytest.fixture(scope="module")
def exact(frames):
    """exact(layers)[frame]: the results of JAX."""

    @cache
    def evaluated(layers):
        potential = potentials.message_passing(layers=layers)
        return {name: evaluate_in_jax(potential, atoms) for name, atoms in frames.items()}

    return evaluated


@pytest.mark.parametrize(
    ("name", "layers"), [*((name, 2) for name in SETUPS), ("fold", 3), ("two ranks along x", 3), ("four ranks", 3)]
)
def test_agrees_with_jax(toy_bundle, tmp_path, frames, exact, name, layers):
    setup = Setup(toy_bundle("message_passing", layers=layers), ELEMENTS, **SETUPS[name])
    results = evaluate(setup, list(frames.values()), tmp_path)
    for frame, ours in zip(frames, results, strict=True):
        # LAMMPS' constants for pressure and energy in units real fit each other to 7 digits
        assert_agrees(ours, exact(layers)[frame], frame, 1e-6 if setup.units == "real" else 1e-10)


def test_tiled_domains(toy_bundle, tmp_path):
    """Domains of unequal size from recursive bisection, where ghosts travel by other routes."""
    potential, atoms = potentials.message_passing(), structures.crystal((4, 2, 2))
    del atoms[atoms.positions[:, 0] > 11.0]
    setup = Setup(toy_bundle("message_passing"), ELEMENTS, ranks=2)
    setup.before, setup.after = ["comm_style tiled"], ["neighbor 0.5 bin", "balance 1.0 rcb"]
    (ours,) = evaluate(setup, [atoms], tmp_path)
    assert_agrees(ours, evaluate_in_jax(potential, atoms), "crystal", 1e-10)


def test_order_of_types(toy_bundle, tmp_path):
    """pair_coeff gives the elements in the order of LAMMPS' types, whatever the model's own order; types may repeat."""
    potential, atoms = potentials.message_passing(), structures.crystal()
    setup = Setup(toy_bundle("message_passing"), ["C", "Si", "C"])
    (ours,) = evaluate(setup, [atoms], tmp_path)
    assert_agrees(ours, evaluate_in_jax(potential, atoms), "crystal", 1e-10)


def test_three_body_term(toy_bundle, tmp_path, frames):
    potential = potentials.embedded_atom()
    for ranks in (1, 2):
        setup = Setup(toy_bundle("embedded_atom"), ELEMENTS, ranks=ranks)
        results = evaluate(setup, list(frames.values()), tmp_path / f"{ranks}")
        for (frame, atoms), ours in zip(frames.items(), results, strict=True):
            assert_agrees(ours, evaluate_in_jax(potential, atoms), frame, 1e-10)


@pytest.mark.parametrize("ranks", [1, 2])
def test_forces_are_slopes(toy_bundle, tmp_path, ranks):
    """-dE/dx by central differences of LAMMPS' own energies."""
    atoms, step = structures.crystal((2, 1, 1)), 1e-4
    setup = Setup(toy_bundle("message_passing"), ELEMENTS, ranks=ranks)
    moves = [(n, axis) for n in (0, 5, 11) for axis in range(3)]
    frames = [atoms.copy()]
    for n, axis in moves:
        for sign in (1, -1):
            frames.append(atoms.copy())
            frames[-1].positions[n, axis] += sign * step
    centre, *rest = evaluate(setup, frames, tmp_path)
    for k, (n, axis) in enumerate(moves):
        slope = (rest[2 * k].energy - rest[2 * k + 1].energy) / (2 * step)
        assert centre.forces[n, axis] == pytest.approx(-slope, abs=2e-6)
