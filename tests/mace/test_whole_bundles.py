# SPDX-License-Identifier: BSD-3-Clause
"""A few architectures all the way: exported, compiled by the plugin, evaluated natively, against mace-torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch_models
from stablemd import StableMDCalculator, export_potential
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
    model = build(**CASES[name])
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
