# SPDX-License-Identifier: BSD-3-Clause
"""The trained models of tests/data, exported by the command line and evaluated natively, against stored references.

References were computed in float64 by the program that each form of a model belongs to: MACE-JAX for ``mace-jax/``.
"""

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest
from ase.io import read
from click.testing import CliRunner
from stablemd import StableMDCalculator
from stablemd._cli import cli

DATA = Path(__file__).resolve().parents[1] / "data"
MODELS = ("sic", "bpa", "reduced")
FORMS = {"mace-jax": ("mace-jax", "mace-jax/reference.extxyz"), "mace-torch": ("mace.model", "reference.extxyz")}
ENERGY_BAR = {"float64": 1e-8, "float32": 2e-6}  # eV per atom


def force_bar(dtype, forces):
    return 1e-7 if dtype == "float64" else 2e-5 * np.abs(forces).max()


@pytest.fixture(scope="session")
def exported(tmp_path_factory, executable_cache):
    """``exported(model, form, dtype)``: path of the bundle and CPU seconds of its export; once per session."""
    folder = tmp_path_factory.mktemp("mace")
    done = {}

    def export(model, form, dtype):
        if form == "mace-torch" and importlib.util.find_spec("torch") is None:
            pytest.skip("torch and mace-torch are not installed")
        key = f"{model}-{form}-{dtype}"
        if key not in done:
            path, start = folder / f"{key}.safetensors", time.process_time()
            arguments = ["export", str(DATA / model / FORMS[form][0]), "-o", str(path), "--dtype", dtype]
            if dtype == "float64":  # GPUs are there for float32; it spares half of the time
                arguments += ["--platforms", "cpu"]
            result = CliRunner().invoke(cli, arguments)
            assert result.exit_code == 0, result.output
            done[key] = path, time.process_time() - start
        return done[key]

    return export


def frames(model, form):
    """Largest first, so that few sizes are compiled."""
    return sorted(read(DATA / model / FORMS[form][1], ":"), key=len, reverse=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
def test_all_frames(exported, model, dtype, form):
    path, _ = exported(model, form, dtype)
    calc = StableMDCalculator(path)
    worst = {"energy per atom": 0.0, "node energy": 0.0, "force": 0.0}
    for atoms in frames(model, form):
        forces = atoms.arrays["ref_forces"]
        deviation = {
            "energy per atom": abs(calc.get_property("energy", atoms) - atoms.info["ref_energy"]) / len(atoms),
            "node energy": np.abs(calc.get_property("energies", atoms) - atoms.arrays["ref_node_energy"]).max(),
            "force": np.abs(calc.get_property("forces", atoms) - forces).max(),
        }
        worst = {name: max(value, deviation[name]) for name, value in worst.items()}
        assert deviation["energy per atom"] <= ENERGY_BAR[dtype], atoms.info["kind"]
        # Node energies are stored with eight decimals.
        assert deviation["node energy"] <= ENERGY_BAR[dtype] + 5e-9, atoms.info["kind"]
        assert deviation["force"] <= force_bar(dtype, forces), atoms.info["kind"]
    print(model, form, dtype, {name: f"{value:.1e}" for name, value in worst.items()}, calc.stats())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", ["sic", "reduced"])
def test_stress(exported, model, form):
    """mace-torch's stress; weights that went through MACE-JAX's file were rounded once more."""
    path, _ = exported(model, form, "float64")
    calc = StableMDCalculator(path)
    bar = 1e-9 if form == "mace-torch" else 1e-6
    for atoms in frames(model, "mace-torch"):
        if atoms.cell.rank == 3:
            expected = atoms.info["ref_stress"]
            stress = calc.get_property("stress", atoms)
            np.testing.assert_allclose(stress, expected, rtol=0, atol=bar * max(1.0, np.abs(expected).max()))
            np.testing.assert_allclose(calc.get_property("stresses", atoms).sum(axis=0), stress, rtol=0, atol=1e-13)


@pytest.mark.parametrize("model", MODELS)
def test_forces_are_minus_the_gradient(exported, rng, model):
    path, _ = exported(model, "mace-jax", "float64")
    calc = StableMDCalculator(path)
    atoms = frames(model, "mace-jax")[0]
    forces = calc.get_property("forces", atoms).copy()
    direction = rng.normal(size=forces.shape)
    direction /= np.linalg.norm(direction)

    def energy(step):
        other = atoms.copy()
        other.positions += step * direction
        return calc.get_property("energy", other)

    h = 2e-3
    slope = (8 * (energy(h) - energy(-h)) - (energy(2 * h) - energy(-2 * h))) / (12 * h)
    assert slope == pytest.approx(-np.sum(forces * direction), abs=2e-7 * max(1.0, np.abs(forces).max()))


def test_export_takes_less_than_a_minute(exported):
    _, seconds = exported("sic", "mace-jax", "float32")
    assert seconds < 60


def test_check_of_a_trained_model(exported):
    for dtype in ("float64", "float32"):
        result = CliRunner().invoke(cli, ["check", str(exported("sic", "mace-jax", dtype)[0])])
        assert result.exit_code == 0 and "agrees" in result.stdout, result.output


def test_a_subset_of_elements(tmp_path, exported):
    path = tmp_path / "silicon.safetensors"
    arguments = ["export", str(DATA / "sic/mace-jax"), "-o", str(path), "--dtype", "float64", "--platforms", "cpu"]
    arguments += ["--elements", "Si"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    alone, both = StableMDCalculator(path), StableMDCalculator(exported("sic", "mace-jax", "float64")[0])
    assert alone.elements == ("Si",)
    (atoms, *_) = [a for a in frames("sic", "mace-jax") if set(a.symbols) == {"Si"}]
    assert alone.get_property("energy", atoms) == pytest.approx(atoms.info["ref_energy"], abs=1e-8 * len(atoms))
    np.testing.assert_allclose(
        alone.get_property("forces", atoms), both.get_property("forces", atoms), rtol=0, atol=1e-11
    )
