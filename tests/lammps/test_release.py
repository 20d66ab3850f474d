# SPDX-License-Identifier: GPL-2.0-or-later
"""A plugin that was built for another LAMMPS release refuses to register, in one line, and lets other work go on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from lammps_runner import run_lammps

ROOT = Path(__file__).parents[2]
OTHER = "29 Aug 2024"


@pytest.fixture(scope="module")
def foreign_plugin(tmp_path_factory):
    """Folder of a plugin built for another release."""
    if importlib.util.find_spec("cmake") is None:
        pytest.skip("cmake is not installed")
    build = tmp_path_factory.mktemp("foreign")
    cmake = Path(sys.executable).parent / "cmake"
    options = ["-DSTABLEMD_TESTS=OFF", "-DSTABLEMD_PYTHON=OFF", f"-DLAMMPS_RELEASE={OTHER}", "-DCMAKE_BUILD_TYPE=Debug"]
    options += [f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (
        [cmake, "-S", ROOT, "-B", build, *options],
        [cmake, "--build", build, "--target", "stablemdplugin", "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "lammps_plugin"


@pytest.mark.parametrize("ranks", [1, 2])
def test_refusal(foreign_plugin, tmp_path, ranks):
    environment = {"LAMMPS_PLUGIN_PATH": ""}
    lines = [
        "plugin clear",
        f"plugin load {foreign_plugin}/stablemdplugin.so",
        "print 'still here'",
        "pair_style stablemd",
    ]
    done = run_lammps(tmp_path, lines, ranks, environment)
    refusals = [line for line in done.output.splitlines() if "not available" in line]
    assert len(refusals) == 1, done.output
    assert OTHER in refusals[0]
    assert "22 Jul 2025" in refusals[0]
    assert "LAMMPS_HEADERS" in refusals[0]
    assert "still here" in done.output
    assert done.code != 0
    assert "stablemd" in done.errors[0]
