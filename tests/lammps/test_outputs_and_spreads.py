# SPDX-License-Identifier: GPL-2.0-or-later
"""Extra outputs of atoms in `fix pair`, and ensembles of bundles, on one rank and on two."""

from __future__ import annotations

import re

import numpy as np
import potentials
import pytest
import structures
from jax_reference import evaluate_in_jax
from lammps_runner import (
    Setup,
    evaluate,
    measurement,
    output,
    preparation,
    read_dump,
    read_evaluation,
    run_lammps,
    standard_cell,
)
from stablemd import ArgumentError, StableMDCalculator, export_potential

ELEMENTS = ["Si", "C"]
SETUPS = [{}, {"style": "decomposition ghost", "newton": "off"}, {"ranks": 2, "processors": "2 1 1"}]
FRAMES = [structures.crystal, structures.triclinic, structures.gas]  # of the last, one rank sees nothing
MEMBERS = [{"seed": 3}, {"seed": 4}, {"seed": 5, "elements": ("C", "Si")}]


def values(names, bundles, frames, folder, after=(), **options):
    """The columns of `fix pair` for each frame, [frame][atom, column], with LAMMPS' own results."""
    setup = Setup(" ".join(map(str, bundles)), ELEMENTS, **options)
    lines = []
    for n, atoms in enumerate(frames):
        lines += [] if n == 0 else ["clear"]
        lines += [*preparation(setup, atoms, folder, f"data.{n}"), *measurement(f"{n}")]
        columns = "f_values" if len(names) == 1 else " ".join(f"f_values[{k + 1}]" for k in range(len(names)))
        lines += [
            f"fix values all pair 1 stablemd {' '.join(f'{name} {k % 2}' for k, name in enumerate(names))}",
            f"dump values all custom 1 values.{n} id {columns}",
            "dump_modify values sort id format float %.17g",
            *after,
            "run 0",
            *output(f"{n}"),
        ]
    done = run_lammps(folder, lines, setup.ranks)
    assert done.code == 0, done.output[-3000:]
    results = [read_evaluation(folder, f"{n}", atoms) for n, atoms in enumerate(frames)]
    return [read_dump(folder / f"values.{n}")[-1][:, 1:] for n in range(len(frames))], results, done


@pytest.fixture(scope="module")
def frames():
    return [make() for make in FRAMES]


@pytest.mark.parametrize("options", SETUPS, ids=str)
def test_outputs(toy_bundle, tmp_path, frames, options):
    names = ["charges", "moments[1]", "moments[2]", "moments[3]"]
    potential = potentials.charge_transfer()
    found, _, done = values(names, [toy_bundle("charge_transfer")], frames, tmp_path, **options)
    for atoms, table in zip(frames, found, strict=True):
        charges, moments = potentials.charges_and_moments(atoms, potential)
        np.testing.assert_allclose(table[:, 0], charges, atol=1e-12, rtol=0)
        np.testing.assert_allclose(table[:, 1:] @ standard_cell(atoms)[1], moments, atol=1e-12, rtol=0)
    assert "values of each atom for fix pair: charges moments[1] moments[2] moments[3]" in done.output


def test_one_output_in_a_run(toy_bundle, tmp_path):
    """Values follow atoms that move, and are there for computes that average them."""
    atoms = structures.crystal((3, 2, 2))
    setup = Setup(toy_bundle("charge_transfer"), ELEMENTS, ranks=2)
    lines = [
        *preparation(setup, atoms, tmp_path, "data.run"),
        "fix charge all pair 1 stablemd charges 0",
        "compute total all reduce sum f_charge",
        "compute largest all reduce max f_charge",
        "velocity all create 2000 1",
        "fix nve all nve",
        "thermo 10",
        "thermo_style custom step c_total c_largest",
        "dump last all custom 20 dump.last id x y z f_charge",
        "dump_modify last sort id format float %.17g",
        "run 20",
    ]
    done = run_lammps(tmp_path, lines, 2)
    assert done.code == 0, done.output[-2000:]
    table = read_dump(tmp_path / "dump.last")[-1]
    cell, _ = standard_cell(atoms)
    moved = atoms.copy()
    moved.set_cell(cell)
    moved.positions = table[:, 1:4]
    charges, _ = potentials.charges_and_moments(moved, potentials.charge_transfer())
    np.testing.assert_allclose(table[:, 4], charges, atol=1e-12, rtol=0)


def test_names_that_are_not_there(toy_bundle, tmp_path):
    for bundle, there in (
        ("charge_transfer", "there is charges moments[1]"),
        ("embedded_atom", "the model has no extra outputs, and spreads need several models"),
    ):
        setup = Setup(toy_bundle(bundle), ELEMENTS)
        lines = [
            *preparation(setup, structures.dimer(), tmp_path, "data.x"),
            "fix 1 all pair 1 stablemd charge 0",
            "run 0",
        ]
        done = run_lammps(tmp_path / bundle, [line.replace("data.x", f"{tmp_path}/data.x") for line in lines])
        assert done.code != 0
        assert done.output.count(f"there is no value 'charge' of each atom; {there}") == 1


@pytest.fixture(scope="module")
def exact(frames):
    """The results of JAX, [frame][model]."""
    potentials_of_members = [potentials.message_passing(**member) for member in MEMBERS]
    return [[evaluate_in_jax(potential, atoms) for potential in potentials_of_members] for atoms in frames]


@pytest.mark.parametrize("options", SETUPS, ids=str)
def test_ensemble(toy_bundle, tmp_path, frames, exact, options):
    bundles = [toy_bundle("message_passing", **member) for member in MEMBERS]
    after = ["compute spread all pair stablemd", "thermo_style custom step pe c_virial[*] c_spread[*]"]
    names = ["forces_spread", "energies_spread"]
    found, ours, done = values(names, bundles, frames, tmp_path, after, **options)
    summaries = [line.split()[-3:] for line in done.output.splitlines() if line.split()[:1] == ["0"]]
    for n, members in enumerate(exact):
        forces, energies = np.array([one.forces for one in members]), np.array([one.energies for one in members])
        np.testing.assert_allclose(ours[n].energies, energies.mean(axis=0), atol=1e-10, rtol=0)
        assert ours[n].energy == pytest.approx(energies.sum(axis=1).mean(), abs=1e-9)
        np.testing.assert_allclose(ours[n].forces, forces.mean(axis=0), atol=1e-10, rtol=0)
        stresses = np.mean([one.stresses for one in members], axis=0)
        np.testing.assert_allclose(ours[n].stresses, stresses, atol=1e-10, rtol=0)
        spread = np.sqrt(forces.var(axis=0).sum(axis=1))
        np.testing.assert_allclose(found[n][:, 0], spread, atol=1e-10, rtol=0)
        np.testing.assert_allclose(found[n][:, 1], energies.std(axis=0), atol=1e-10, rtol=0)
        summary = [spread.max(), spread.mean(), energies.sum(axis=1).std()]
        np.testing.assert_allclose(np.array(summaries[n], float), summary, rtol=1e-6, atol=1e-8)
    assert "an ensemble of 3 models" in done.output
    # one of each frame's own style; it has one size, the first
    assert re.findall(r"Evaluations: (\d+),.* capacity changes: (\d+)", done.output) == [("1", "0")] * len(frames)


def test_spread_of_outputs(toy_bundle, tmp_path, frames):
    scales = (1.0, 1.5)
    bundles = [toy_bundle("charge_transfer", scale=scale) for scale in scales]
    found, _, _ = values(["charges", "charges_spread", "moments_spread"], bundles, frames, tmp_path, ranks=2)
    for atoms, table in zip(frames, found, strict=True):
        charges = [
            potentials.charges_and_moments(atoms, potentials.charge_transfer(scale=scale))[0] for scale in scales
        ]
        np.testing.assert_allclose(table[:, 0], np.mean(charges, axis=0), atol=1e-12, rtol=0)
        np.testing.assert_allclose(table[:, 1], np.std(charges, axis=0), atol=1e-12, rtol=0)
        np.testing.assert_allclose(table[:, 2], 0.0, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "one, other, complaint",
    [
        ("message_passing", "embedded_atom", "cutoff and layers: {} has 3.5 Angstrom and 2, {} has 4 Angstrom and 1"),
        ("charge_transfer", "without", "extra outputs: {} has charges [1], moments [3], {} has none"),
        (
            "charge_transfer",
            "units",
            "extra outputs: {} has charges [1], moments [3], {} has charges [1] e, moments [3]",
        ),
    ],
)
def test_models_that_make_no_ensemble(toy_bundle, tmp_path, one, other, complaint):
    """In the words of the ASE calculator, too."""
    potential = potentials.charge_transfer()
    if other == "without":
        path = toy_bundle("embedded_atom", cutoff=potential.cutoff)
    elif other == "units":
        path = tmp_path / "units.safetensors"
        export_potential(potential, path, dtype="float64", verify=False, output_units={"charges": "e"})
    else:
        path = toy_bundle(other)
    setup = Setup(f"{toy_bundle(one)} {path}", ELEMENTS)
    done = run_lammps(tmp_path, [*preparation(setup, structures.dimer(), tmp_path, "data.x"), "run 0"])
    assert done.code != 0
    complaint = complaint.format(toy_bundle(one), path)
    assert f"pair_coeff: models of an ensemble must have the same {complaint}" in done.errors[0]
    with pytest.raises(ArgumentError) as error:
        StableMDCalculator([toy_bundle(one), path])
    assert str(error.value).endswith(complaint)


def test_hybrid_with_an_ensemble(toy_bundle, tmp_path):
    """Two styles at once: forces add up, and `fix pair` finds the ensemble behind the hybrid style."""
    atoms = structures.crystal()
    bundles = [toy_bundle("message_passing", seed=seed) for seed in (3, 4)]
    pair = [
        "pair_style hybrid/overlay stablemd lj/cut 3.0",
        f"pair_coeff * * stablemd {bundles[0]} {bundles[1]} Si C",
        "pair_coeff * * lj/cut 0.01 2.0",
    ]
    found, ours, _ = values(["forces_spread"], [], [atoms], tmp_path, pair=pair, ranks=2)
    own = ["pair_style lj/cut 3.0", "pair_coeff * * 0.01 2.0"]
    (lj,) = evaluate(Setup("", ELEMENTS, pair=own), [atoms], tmp_path / "own")
    exact = [evaluate_in_jax(potentials.message_passing(seed=seed), atoms).forces for seed in (3, 4)]
    np.testing.assert_allclose(ours[0].forces, np.mean(exact, axis=0) + lj.forces, atol=1e-10, rtol=0)
    spread = np.sqrt(np.var(exact, axis=0).sum(axis=1))
    np.testing.assert_allclose(found[0][:, 0], spread, atol=1e-10, rtol=0)
