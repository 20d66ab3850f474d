# SPDX-License-Identifier: BSD-3-Clause
"""Every frame of every trained model against the program that trained or converted it, evaluated in float64."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
from evaluation import Evaluator
from stablemd.mace import load

MODELS = ["sic", "bpa", "reduced"]
FORMS = ["mace-jax", "mace.model"]


def model_and_frames(data: Path, name: str, form: str):
    if form == "mace.model":
        pytest.importorskip("torch", reason="mace-torch files need torch")
        pytest.importorskip("mace", reason="mace-torch files need mace-torch")
    path = data / name / form
    reference = path / "reference.extxyz" if path.is_dir() else path.parent / "reference.extxyz"
    return load(path), ase.io.read(reference, ":")


def capacity(evaluator: Evaluator, frames) -> tuple[int, int]:
    """Rows and edges that fit every frame, so that one program does for all."""
    graphs = [evaluator.fold(atoms).graph for atoms in frames]
    return max(graph.rows[0] for graph in graphs), max(graph.edges[0] for graph in graphs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_float64_agrees_with_the_stored_reference(data, name, form):
    potential, frames = model_and_frames(data, name, form)
    evaluate = Evaluator(potential)
    least = capacity(evaluate, frames)
    for atoms in frames:
        result = evaluate(atoms, least=least)
        reference = atoms.info["ref_energy"]
        assert abs(result.energy - reference) < 1e-8 * len(atoms)
        assert np.abs(result.forces - atoms.arrays["ref_forces"]).max() < 1e-7
        # node energies are stored with eight decimals
        assert np.abs(result.energies - atoms.arrays["ref_node_energy"]).max() < 1e-8 + 5e-9
        if "ref_stress" in atoms.info:
            assert np.abs(result.stress - atoms.info["ref_stress"]).max() < 1e-9


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_float32_stays_close_to_the_stored_reference(data, name, form):
    potential, frames = model_and_frames(data, name, form)
    evaluate = Evaluator(potential, np.float32)
    least = capacity(evaluate, frames)
    for atoms in frames:
        result = evaluate(atoms, least=least)
        largest = np.abs(atoms.arrays["ref_forces"]).max()
        assert abs(result.energy - atoms.info["ref_energy"]) < 2e-6 * len(atoms)
        assert np.abs(result.energies - atoms.arrays["ref_node_energy"]).max() < 2e-6
        assert np.abs(result.forces - atoms.arrays["ref_forces"]).max() <= 2e-5 * largest
