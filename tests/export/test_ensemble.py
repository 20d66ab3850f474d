# SPDX-License-Identifier: BSD-3-Clause
"""Several bundles in one calculator: means and spreads over the models, against the models one by one."""

import pickle

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import PropertyNotImplementedError, all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS
from stablemd import ArgumentError, StableMDCalculator, export_potential

MEMBERS = [{"seed": 3}, {"seed": 4}, {"seed": 5, "elements": ("C", "Si")}]


def carbide(rng):
    atoms = bulk("SiC", "zincblende", a=4.36, cubic=True)
    atoms.positions += rng.normal(0.0, 0.15, atoms.positions.shape)
    return atoms


@pytest.fixture
def paths(bundles):
    return [bundles("message_passing", **options) for options in MEMBERS]


def test_means_and_spreads(paths, rng):
    atoms = carbide(rng)
    atoms.calc = StableMDCalculator(paths)
    each = [StableMDCalculator(path) for path in paths]
    for name in ("energy", "free_energy", "energies", "forces", "stress", "stresses"):
        expected = np.mean([calc.get_property(name, atoms) for calc in each], axis=0)
        np.testing.assert_allclose(atoms.calc.get_property(name, atoms), expected, atol=1e-12, rtol=0, err_msg=name)
    forces = np.array([calc.results["forces"] for calc in each])
    energies = np.array([calc.results["energies"] for calc in each])
    spreads = atoms.calc.spreads
    assert set(spreads) == {"energy", "energies", "forces"}
    # total standard deviation of a vector: that of its components, added as squares
    np.testing.assert_allclose(spreads["forces"], np.sqrt(forces.var(axis=0).sum(axis=1)), atol=1e-12)
    np.testing.assert_allclose(spreads["energies"], energies.std(axis=0), atol=1e-12)
    assert spreads["energy"] == pytest.approx(energies.sum(axis=1).std(), abs=1e-12)
    assert spreads["forces"].min() > 1e-3
    for name, value in spreads.items():
        np.testing.assert_array_equal(atoms.calc.get_property(f"{name}_spread", atoms), value)
    assert atoms.calc.stats()["evaluations"] == 3
    assert atoms.calc.elements == ("Si", "C")


def test_an_ensemble_of_equals_has_no_spread(paths, rng):
    atoms = carbide(rng)
    atoms.calc = StableMDCalculator([paths[0]] * 3)
    alone = StableMDCalculator(paths[0])
    np.testing.assert_allclose(atoms.get_forces(), alone.get_forces(atoms), atol=1e-14)
    assert np.abs(atoms.calc.spreads["forces"]).max() < 1e-14


def test_one_model_in_a_list(paths, rng):
    atoms = carbide(rng)
    atoms.calc = StableMDCalculator(paths[:1])
    atoms.get_potential_energy()
    assert atoms.calc.spreads == {}
    with pytest.raises(PropertyNotImplementedError):
        atoms.calc.get_property("forces_spread", atoms)


def test_results_have_the_names_of_ase(paths, tmp_path, rng):
    """So that what copies and writes results takes them, in dynamics and optimisation too."""
    atoms = carbide(rng)
    atoms.calc = calc = StableMDCalculator(paths)
    assert calc.spreads == {}
    forces = atoms.get_forces()
    assert set(calc.results) <= set(all_properties) and set(calc.implemented_properties) <= set(all_properties)
    np.testing.assert_array_equal(SinglePointCalculator(atoms, **calc.results).get_forces(atoms), forces)
    assert set(calc.export_properties()) >= set(calc.results)
    atoms.arrays["forces_spread"] = calc.spreads["forces"]
    for name in ("some.extxyz", "some.traj"):
        ase.io.write(tmp_path / name, atoms)
        read = ase.io.read(tmp_path / name)
        np.testing.assert_allclose(read.get_forces(), forces, atol=1e-7)
        if name == "some.extxyz":  # the other has room for ASE's own arrays alone
            np.testing.assert_allclose(read.arrays["forces_spread"], calc.spreads["forces"], atol=1e-7)
    del atoms.arrays["forces_spread"]
    with VelocityVerlet(atoms, 0.5 * units.fs, trajectory=str(tmp_path / "md.traj")) as dynamics:
        dynamics.run(2)
    with BFGS(atoms, trajectory=str(tmp_path / "relaxed.traj"), logfile=None) as optimizer:
        optimizer.run(steps=2)
    for name in ("md.traj", "relaxed.traj"):
        frames = ase.io.read(tmp_path / name, ":")
        assert len(frames) == 3
        last = frames[-1]
        np.testing.assert_allclose(last.get_forces(), calc.get_property("forces", last), atol=1e-12)
    with pytest.raises(ArgumentError):
        calc.get_forces(Atoms("Ar"))
    assert calc.spreads == {}  # nothing of other atoms


def test_spread_of_outputs(tmp_path, rng, executable_cache):
    from potentials import charge_transfer, charges_and_moments, embedded_atom

    paths, outputs, atoms = [], [], carbide(rng)
    for scale in (1.0, 1.5):
        potential = charge_transfer(scale=scale)
        paths.append(tmp_path / f"{scale}.safetensors")
        export_potential(potential, paths[-1], dtype="float64", platforms="cpu")
        outputs.append(charges_and_moments(atoms, potential))
    atoms.calc = StableMDCalculator(paths)
    atoms.get_potential_energy()
    charges = np.array([one[0] for one in outputs])
    np.testing.assert_allclose(atoms.get_charges(), charges.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(atoms.calc.spreads["charges"], charges.std(axis=0), atol=1e-12)
    np.testing.assert_allclose(atoms.calc.spreads["moments"], 0.0, atol=1e-12)
    without = tmp_path / "without.safetensors"
    export_potential(embedded_atom(cutoff=3.5), without, dtype="float64", platforms="cpu")
    with pytest.raises(ArgumentError, match=r"has charges \[1\], moments \[3\], .* has none$"):
        StableMDCalculator([paths[0], without])
    other = tmp_path / "other.safetensors"
    export_potential(charge_transfer(), other, dtype="float64", platforms="cpu", output_units={"charges": "C"})
    with pytest.raises(
        ArgumentError, match=r"same extra outputs: .* has charges \[1\], moments \[3\], .* has charges \[1\] C, "
    ):
        StableMDCalculator([paths[0], other])


@pytest.mark.parametrize(
    "kind, options, has",
    [
        ("message_passing", {"layers": 1}, ("3.5 Angstrom and 2", "3.5 Angstrom and 1")),
        ("embedded_atom", {}, ("3.5 Angstrom and 2", "4 Angstrom and 1")),
    ],
)
def test_models_that_see_other_neighbours(bundles, kind, options, has):
    first, second = bundles("message_passing"), bundles(kind, **options)
    with pytest.raises(ArgumentError) as error:
        StableMDCalculator([first, first, second])
    required = "models of an ensemble must have the same cutoff and layers"
    assert str(error.value) == f"{required}: {first} has {has[0]}, {second} has {has[1]}"


def test_copies_and_changes(paths, rng):
    atoms = carbide(rng)
    calc = StableMDCalculator(paths[:2])
    forces = calc.get_forces(atoms)
    copy = pickle.loads(pickle.dumps(calc))
    np.testing.assert_array_equal(copy.spreads["forces"], calc.spreads["forces"])
    np.testing.assert_array_equal(copy.get_forces(atoms), forces)
    calc.set(model=[str(paths[0])])
    assert calc.spreads == {}
    with pytest.raises(ArgumentError, match="list of models is empty"):
        StableMDCalculator([])
