# SPDX-License-Identifier: BSD-3-Clause
"""The parts of benchmarks/gpu_check.py that need no GPU, so that the script runs when there is one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/dev"


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def gpu_check(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "benchmarks/gpu_check.py", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def payloads(tmp_path_factory) -> Path:
    pytest.importorskip("openequivariance")
    folder = tmp_path_factory.mktemp("gpu") / "payloads"
    done = gpu_check("prepare", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_payloads_of_every_kind_are_prepared(payloads):
    contents = {path.stem: json.loads(path.read_text()) for path in payloads.glob("*.json")}
    assert {name.split("_")[0] for name in contents} == {"tp", "conv"}
    assert {content["problem"]["irrep_dtype"] for content in contents.values()} == {"float32", "float64"}
    assert {content["kernel_prop"]["deterministic"] for content in contents.values()} == {0, 1}
    assert all("__global__" in content["kernel"] for content in contents.values())
    assert len(list((payloads / "timing").glob("*.json"))) == 8


@pytest.mark.skipif(has_driver(), reason="there is a driver: run benchmarks/gpu_check.py itself")
def test_without_a_gpu_compilation_is_timed_and_the_reason_given(payloads, tmp_path):
    sys.path.insert(0, str(ROOT / "benchmarks/compile"))
    from bench_compile import nvrtc_path

    sys.path.pop(0)
    try:
        nvrtc = nvrtc_path()
    except ImportError as error:
        pytest.skip(str(error))
    few = tmp_path / "payloads"
    (few / "timing").mkdir(parents=True)
    smallest = min(payloads.glob("timing/*.json"), key=lambda path: path.stat().st_size)
    for source, target in ((payloads / "tp_float32.json", few), (smallest, few / "timing")):
        (target / source.name).write_bytes(source.read_bytes())
    done = gpu_check("run", few, "--build", BUILD, "--workers", "1", "2", OEQ_NVRTC=nvrtc)
    assert done.returncode == 1
    assert "gpu_check: cannot open libcuda.so.1" in done.stderr
    *_, title, one, two, verdict = done.stdout.splitlines()
    assert title.split() == ["workers", "seconds"]
    assert [line.split()[0] for line in (one, two)] == ["1", "2"]
    assert all(float(line.split()[1]) > 0 for line in (one, two))
    assert verdict == "gpu_check: WRONG"
