# SPDX-License-Identifier: BSD-3-Clause
"""Bundles with OEQ ops from export to evaluation, through the library's own provider; each process is a fresh one."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MODEL = Path(__file__).with_name("oeq_model.py")


def python(*arguments: str | Path, status: int = 0, **environment: str) -> subprocess.CompletedProcess:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OEQ_", "STABLEMD_"))}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env={**inherited, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    return done


def evaluated(bundle: Path, **environment: str) -> dict:
    return json.loads(python(MODEL, "run", bundle, **environment).stdout)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory):
    """Exports the model once per kind: exported(), exported("plain")."""
    folder = tmp_path_factory.mktemp("exported")

    def export(*kind: str) -> Path:
        path = folder / f"model{''.join(kind)}.safetensors"
        if not path.exists():
            python(MODEL, "export", path, *kind, STABLEMD_CACHE="off", OEQ_CACHE=str(folder / "oeq"))
        return path

    return export


@pytest.fixture(scope="session")
def old_plugin() -> str:
    """A PJRT plugin whose FFI (0.2) is older than what the kernels need."""
    spec = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
    return str(Path(spec.submodule_search_locations[0]) / "xla_cpu_pjrt.so")


def test_energy_and_forces_are_those_of_plain_jax(exported):
    ours, plain = evaluated(exported()), evaluated(exported("plain"))
    assert ours["kernels"]["requests"] == 2
    assert plain["kernels"]["requests"] == 0
    np.testing.assert_allclose(ours["energy"], plain["energy"], rtol=1e-12)
    np.testing.assert_allclose(ours["forces"], plain["forces"], atol=1e-12)


def test_a_second_process_hits_both_caches(exported, tmp_path):
    caches = {"STABLEMD_CACHE": str(tmp_path / "programs"), "OEQ_CACHE": str(tmp_path / "kernels")}
    first = evaluated(exported(), PYTHONHASHSEED="1", **caches)
    assert (first["programs"]["compilations"], first["programs"]["cache_hits"]) == (1, 0)
    assert (first["kernels"]["compilations"], first["kernels"]["disk_hits"]) == (2, 0)
    files = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    copy = tmp_path / "elsewhere.safetensors"  # neither cache looks at the bundle's name
    copy.write_bytes(exported().read_bytes())
    second = evaluated(copy, PYTHONHASHSEED="2", **caches)
    assert (second["programs"]["compilations"], second["programs"]["cache_hits"]) == (0, 1)
    assert (second["kernels"]["compilations"], second["kernels"]["disk_hits"]) == (0, 2)
    assert second["kernels"]["waits"] <= 2
    assert (second["energy"], second["forces"]) == (first["energy"], first["forces"])
    copy.unlink()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == files


def test_kernels_are_the_same_whatever_the_order_and_the_address(exported, tmp_path):
    """Two processes that compile for themselves, one worker or four, write the same files."""
    kernels = []
    for seed, workers in (("1", "1"), ("2", "4")):
        folder = tmp_path / seed
        evaluated(exported(), STABLEMD_CACHE="off", OEQ_CACHE=str(folder), OEQ_COMPILE_THREADS=workers)
        kernels.append({file.name for file in folder.iterdir()})
    assert len(kernels[0]) == 2
    assert kernels[0] == kernels[1]


def test_exporting_twice_gives_the_same_bytes(exported, tmp_path):
    again = tmp_path / "again.safetensors"
    python(MODEL, "export", again, PYTHONHASHSEED="3", STABLEMD_CACHE="off", OEQ_CACHE="off")
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (exported(), again))
    assert first == second


def test_an_old_plugin_runs_models_without_these_ops_and_says_nothing(exported, old_plugin):
    done = python(MODEL, "run", exported("plain"), STABLEMD_PJRT_PLUGIN=old_plugin, STABLEMD_CACHE="off")
    assert json.loads(done.stdout)["energy"] == pytest.approx(evaluated(exported("plain"))["energy"], rel=1e-12)
    assert "oeq_native" not in done.stderr


def test_an_old_plugin_refuses_models_with_these_ops_in_one_line(exported, old_plugin):
    done = python(
        "-m", "stablemd", "check", exported(), status=2, STABLEMD_PJRT_PLUGIN=old_plugin, STABLEMD_CACHE="off"
    )
    (line,) = done.stderr.splitlines()
    assert "needs the FFI target `conv_" in line
    reason = "XLA's FFI API is version 0.2, needed is 0.3 or newer: use a newer PJRT plugin"
    assert f"liboeq_native.so: {reason}" in line


def test_settings_that_are_no_good_are_one_line(exported):
    done = python("-m", "stablemd", "check", exported(), status=2, STABLEMD_CACHE="off", OEQ_COMPILE_THREADS="abc")
    (line,) = done.stderr.splitlines()
    assert line.endswith("liboeq_native.so: OEQ_COMPILE_THREADS=abc: must be a whole number from 1 to 256")


def test_a_target_that_no_longer_exists_fails_at_load_by_name(exported, tmp_path):
    """A bundle from a version with another set of targets."""
    content = exported().read_bytes()
    assert content.count(b"conv_backward") >= 2
    old = tmp_path / "old.safetensors"
    without_checksum = content.replace(b"checksum", b"checkzum")  # which no reader knows
    old.write_bytes(without_checksum.replace(b"conv_backward", b"conv_backwarb"))
    done = python("-m", "stablemd", "check", old, status=2, STABLEMD_CACHE="off", OEQ_CACHE="off")
    assert "needs the FFI target `conv_backwarb`, which no provider registered" in done.stderr
    assert len(done.stderr.splitlines()) == 1
