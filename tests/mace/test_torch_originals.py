# SPDX-License-Identifier: BSD-3-Clause
"""Files with layers of other libraries than e3nn, against what mace-torch computed with e3nn's before it converted
them, and the file of an older release, against what that computed (tests/data/mace_torch_forms).
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

import numpy as np
import pytest
from ase.io import read
from evaluation import Evaluator
from stablemd.mace import load

pytest.importorskip("mace.modules", reason="mace-torch files need mace-torch")

DATA = Path(__file__).resolve().parents[1] / "data"
FOLDER = DATA / "mace_torch_forms"


@pytest.mark.parametrize("library", ["cuequivariance", "openequivariance"])
def test_layers_of_other_libraries(library):
    """Neither library need be installed."""
    path = FOLDER / f"{library}.model"
    with zipfile.ZipFile(path) as archive:
        content = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    assert any(op.name == "GLOBAL" and arg.startswith(library) for op, arg, _ in pickletools.genops(content))
    agrees(path, FOLDER / "values.npz")


def test_an_older_release():
    agrees(FOLDER / "release_0.3.6.model", FOLDER / "release_0.3.6.npz")


def agrees(model, expected):
    evaluate = Evaluator(load(model), quick=True)
    values = np.load(expected)
    start = 0
    for atoms, stress in zip(read(DATA / "mace_jax_forms" / "structures.extxyz", ":"), values["stress"], strict=True):
        atomic = values["atomic"][start : start + len(atoms)]
        start += len(atoms)
        result = evaluate(atoms, least=(8, 400))
        assert np.abs(result.energies - atomic[:, 0]).max() < 1e-8
        assert np.abs(result.forces - atomic[:, 1:]).max() < 1e-7
        assert np.abs(result.stress - stress).max() < 1e-8
