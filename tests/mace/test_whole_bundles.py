# SPDX-License-Identifier: BSD-3-Clause
"""A few architectures all the way: exported, compiled by the plugin, evaluated natively, against mace-torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch_models
from click.testing import CliRunner
from stablemd import StableMDCalculator, export_potential
from stablemd._cli import cli
from stablemd.mace import load
from test_architectures import CASES
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


def test_charge_and_spin_by_the_command_line(tmp_path):
    """The export compares with mace-torch for these values, and refuses a model of another charge."""
    source, path = tmp_path / "charged.model", tmp_path / "charged.safetensors"
    specs = {"total_charge": {"type": "categorical", "per": "graph", "num_classes": 9, "offset": 4, "emb_dim": 5}}
    torch.save(build(hidden="3x0e+3x1o", max_ell=1, embedding_specs=specs, use_embedding_readout=True), source)
    words = ["export", str(source), "-o", str(path), "--dtype", "float64", "--platforms", "cpu", "-q"]
    done = CliRunner().invoke(cli, [*words, "--feature", "total_charge=-2"])
    assert done.exit_code == 0 and "mace-torch" in done.output, done.output
    refused = CliRunner().invoke(cli, [*words, "--feature", "total_charge=7"])
    assert refused.exit_code == 2 and "total_charge = 7" in refused.output
