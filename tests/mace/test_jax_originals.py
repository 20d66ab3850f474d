# SPDX-License-Identifier: BSD-3-Clause
"""Models that MACE-JAX wrote, against the values that MACE-JAX computed from them (tests/data/mace_jax_forms)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase.io import read
from evaluation import Evaluator
from stablemd.mace import load

FOLDER = Path(__file__).resolve().parents[1] / "data" / "mace_jax_forms"
VALUES = np.load(FOLDER / "values.npz")
STRUCTURES = read(FOLDER / "structures.extxyz", ":")
INPUTS = {"charge": -1.0, "spin": 2.0}  #: of which the values are
#: model, or model/head
NAMES = sorted(key.removesuffix("/whole") for key in VALUES if key.endswith("/whole"))


def file_of(model: str) -> Path:
    found = [path for path in FOLDER.glob(f"{model}*") if path.stem == model and path.suffix != ".json"]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_mace_jax(name):
    model, _, head = name.partition("/")
    potential = load(file_of(model), head=head or None)
    evaluate = Evaluator(potential, quick=True)
    embedded = model.startswith("embedded")
    if embedded:
        assert potential.inputs["charge"].default == 0 and potential.inputs["spin"].default == 1
        evaluate.inputs = INPUTS
    # one shape for all structures, so one compilation
    size = {"least": (8, 400)}
    whole, atomic = VALUES[f"{name}/whole"], VALUES[f"{name}/atomic"]
    start = 0
    for atoms, (energy, *stress) in zip(STRUCTURES, whole, strict=True):
        values = atomic[start : start + len(atoms)]
        start += len(atoms)
        result = evaluate(atoms, **size)
        assert abs(result.energy - energy) < 1e-8 * len(atoms)
        if not embedded:  # whose readout MACE-JAX adds to the total energy alone
            assert np.abs(result.energies - values[:, 0]).max() < 1e-8
        assert np.abs(result.forces - values[:, 1:]).max() < 1e-7
        assert np.abs(result.stress - stress).max() < 1e-8
