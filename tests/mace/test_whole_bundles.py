# SPDX-License-Identifier: BSD-3-Clause
"""A few architectures all the way: exported, compiled by the plugin, evaluated natively, against mace-torch."""

from __future__ import annotations

import ase.io
import numpy as np
import pytest
import torch_models
from click.testing import CliRunner
from stablemd import ArgumentError, StableMDCalculator, export_potential
from stablemd._cli import cli
from stablemd.mace import load
from test_architectures import CASES
from test_torch import SPECS
from torch_models import build, fresh_seed, torch, triclinic_crystal, with_isolated_atom


@pytest.mark.parametrize(
    ("name", "kernels", "dtype"),
    [
        ("MACE-MPA-0", "xla", "float32"),
        ("MACE-MPA-0", "oeq", "float64"),
        ("nonlinear, edges of other widths", "xla", "float64"),
        ("nonlinear, edges of other widths", "oeq", "float64"),
    ],
)
def test_agrees_with_mace_torch(tmp_path, name, kernels, dtype):
    model = build(**{**CASES[name], "dtype": torch.float64})
    rng = np.random.default_rng(fresh_seed())
    source, path = tmp_path / "some.model", tmp_path / "some.safetensors"
    torch.save(model, source)
    potential = load(source, head=model.heads[-1], elements=["H", "C", "O", "Si"], kernels=kernels)
    summary = export_potential(potential, path, dtype=dtype, platforms=["cpu"])
    assert summary.energy_deviation is not None, summary.unverified
    calculator = StableMDCalculator(path)
    for atoms in (triclinic_crystal(rng), with_isolated_atom(rng)):
        expected = torch_models.evaluate(model, atoms, model.heads[-1])
        forces = calculator.get_property("forces", atoms)
        largest = np.abs(expected.forces).max()
        double = dtype == "float64"
        assert abs(calculator.get_property("energy", atoms) - expected.energy) < (1e-8 if double else 2e-6) * len(atoms)
        assert np.abs(forces - expected.forces).max() <= (1e-7 if double else 2e-5 * largest)
        if double:
            assert np.abs(calculator.get_property("stress", atoms) - expected.stress).max() < 1e-8


@pytest.mark.parametrize(("kernels", "dtype"), [("xla", "float64"), ("oeq", "float32")])
def test_charge_and_spin_of_one_bundle(tmp_path, kernels, dtype):
    """Each charge and spin from one bundle, on the same atoms, as mace-torch evaluates it."""
    source, path = tmp_path / "charged.model", tmp_path / "charged.safetensors"
    options = {"hidden": "3x0e", "max_ell": 1, "correlation": 1}
    model = build(**options, embedding_specs=SPECS, use_embedding_readout=kernels == "xla")
    torch.save(model, source)
    words = ["export", str(source), "-o", str(path), "--dtype", dtype, "--kernels", kernels, "--platforms", "cpu", "-q"]
    # The export compares with mace-torch for the defaults, and with JAX for others too.
    done = CliRunner().invoke(cli, [*words, "--feature", "charge=-2", "--feature", "total_spin=3"])
    assert done.exit_code == 0 and "mace-torch" in done.output, done.output
    assert "charge -2 (a whole number from -4 to 4); spin 3 (a finite number)" in done.output
    atoms = triclinic_crystal(np.random.default_rng(fresh_seed()))
    atoms.calc = StableMDCalculator(path)
    energies = []
    for info in ({}, {"charge": -1, "spin": 2}, {"total_charge": 4, "total_spin": 0.5}, {"charge": 0, "spin": 1}):
        atoms.info = info
        features = {
            name: info.get(name.removeprefix("total_"), info.get(name, default))
            for name, default in (("total_charge", -2), ("total_spin", 3))
        }
        expected = torch_models.evaluate(model, atoms, features=features)
        energy_bar, force_bar = (1e-8, 1e-7) if dtype == "float64" else (2e-6, 2e-5 * np.abs(expected.forces).max())
        energies.append(atoms.get_potential_energy())
        assert abs(energies[-1] - expected.energy) < energy_bar * len(atoms)
        assert np.abs(atoms.get_forces() - expected.forces).max() <= force_bar
    assert np.abs(np.diff(energies)).min() > 1e-3
    assert atoms.calc.stats()["evaluations"] == 4
    if dtype == "float64":  # mace-torch and the bundle are given what the structures say
        frames = [atoms.copy() for _ in range(2)]
        frames[0].info, frames[1].info = {"charge": 1, "spin": 2}, {"total_spin": 4}
        ase.io.write(tmp_path / "some.extxyz", frames)
        words = ["check", str(path), "--against", str(source), "--structures", str(tmp_path / "some.extxyz")]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0 and done.output.count("agrees") == 2, done.output
    atoms.info = {"charge": 5}
    with pytest.raises(ArgumentError, match="`charge` is 5, it must be a whole number from -4 to 4"):
        atoms.get_forces()


def test_a_default_out_of_range(tmp_path):
    source = tmp_path / "charged.model"
    torch.save(build(hidden="3x0e", max_ell=1, embedding_specs=SPECS), source)
    words = ["export", str(source), "-o", str(tmp_path / "x.safetensors"), "-q"]
    refused = CliRunner().invoke(cli, [*words, "--feature", "total_charge=7"])
    assert refused.exit_code == 2 and "total_charge = 7 must be a whole number from -4 to 4" in refused.output
