# SPDX-License-Identifier: BSD-3-Clause
"""Trained models exported with OpenEquivariance's ops, evaluated natively, against the references of their form."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from stablemd import ArgumentError, StableMDCalculator, mace
from stablemd._bundle import read_bundle
from stablemd._cli import cli
from test_mace_bundles import DATA, ENERGY_BAR, FORMS, force_bar, frames


def export(model: str, path: Path, *options: str, form: str = "mace-jax") -> None:
    if form == "mace-torch":
        pytest.importorskip("mace.modules", reason="mace-torch files need mace-torch")
    arguments = ["export", str(DATA / model / FORMS[form][0]), "-o", str(path), "--kernels", "oeq", *options]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "largest difference from JAX" in result.stdout, "it was not verified natively"


@pytest.mark.parametrize(
    ("model", "form", "dtype"),
    [
        ("sic", "mace-jax", "float64"),
        ("sic", "mace-jax", "float32"),
        ("bpa", "mace-jax", "float64"),
        ("bpa", "mace-torch", "float64"),
        ("bpa", "mace-torch", "float32"),
    ],
)
def test_frames(tmp_path, model, form, dtype):
    path = tmp_path / "model.safetensors"
    export(model, path, "--dtype", dtype, "--platforms", "cpu", form=form)
    assert read_bundle(path).manifest["programs"]["cpu"]["targets"] == [
        "contraction_backward", "contraction_forward", "conv_backward", "conv_forward",
    ]  # fmt: skip
    calc = StableMDCalculator(path)
    for atoms in frames(model, form):
        deviation = abs(calc.get_property("energy", atoms) - atoms.info["ref_energy"])
        assert deviation <= ENERGY_BAR[dtype] * len(atoms), atoms.info["kind"]
        forces = atoms.arrays["ref_forces"]
        worst = np.abs(calc.get_property("forces", atoms) - forces).max()
        assert worst <= force_bar(dtype, forces), atoms.info["kind"]


def test_every_export_is_the_same_file(tmp_path):
    export("sic", tmp_path / "one.safetensors", "--platforms", "cpu")
    command = [sys.executable, "-m", "stablemd", "export", str(DATA / "sic/mace-jax"), "--kernels", "oeq", "-q"]
    subprocess.run(
        [*command, "-o", str(tmp_path / "two.safetensors"), "--platforms", "cpu"],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()


def test_without_a_gpu_the_cuda_program_makes_no_calls(tmp_path):
    export("sic", tmp_path / "model.safetensors")
    programs = read_bundle(tmp_path / "model.safetensors").manifest["programs"]
    assert programs["cpu"]["targets"] and not programs["cuda"]["targets"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernels": "cuda"}, "kernels must be 'xla' or 'oeq'"),
        ({"gpu": "h200"}, "needs kernels='oeq'"),
        ({"kernels": "oeq", "gpu": "voodoo2"}, "'voodoo2' is not known; known are t4"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        mace.load(DATA / "sic" / "mace-jax", **options)
