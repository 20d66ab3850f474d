# SPDX-License-Identifier: BSD-3-Clause
"""The host compiler: missing, failing, hanging, stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from native import compile_source

#: A convolution and its gradients in a new process; prints the results, and how often the compiler was asked for.
PROGRAM = """
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
from problems import Case, all_paths, random_graph, relative_error
from stablemd import _oeq_native, oeq
oeq.register("cpu")
rng = np.random.default_rng(5)
for dtype, tolerance in (("float64", 1e-12), ("float32", 2e-6)):
    case = Case(all_paths("8x0e+8x1o", "0e+1o", 1, dtype=dtype), random_graph(7, 40, rng), 0, rng)
    op = oeq.TensorProductConv(case.problem)
    x, y, w, z, *_ = case.operands
    value, pull = jax.vjp(lambda *a: op(*a, case.graph.receivers, case.graph.senders), x, y, w)
    for ours, expected in zip((value, *pull(z)), (*case.reference("forward"), *case.reference("backward"))):
        assert relative_error(np.asarray(ours), expected) < tolerance
print(_oeq_native.stats()["disk_hits"])
"""


def executable(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def run(tmp_path: Path, compiler: str, program: str = PROGRAM, **settings: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "CXX": compiler, "OEQ_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu", **settings}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("kind, reason", [
    ("missing", "the C++ compiler {} cannot be run (set CXX)"),
    ("failing", "the host compiler {} failed"),
    ("writes nothing", "the host compiler {} failed"),
])  # fmt: skip
def test_generic_kernel_takes_over_with_one_line(kind, reason, tmp_path):
    answers = "case $* in *--version*) echo some compiler 1.0;; *) echo no such option >&2; exit {};; esac"
    compiler = str(tmp_path / "compiler")
    if kind != "missing":
        executable(tmp_path / "compiler", answers.format(1 if kind == "failing" else 0))
    result = run(tmp_path, compiler)
    assert result.returncode == 0, result.stderr
    assert result.stderr == f"stablemd: using slow generic CPU kernels: {reason.format(compiler)}\n"
    # Not kept: with a compiler the next process has fast kernels.
    assert run(tmp_path, os.environ.get("CXX", "c++")).stderr == ""


def test_generic_kernel_takes_over_where_no_temporary_folder_can_be(tmp_path):
    result = run(tmp_path, os.environ.get("CXX", "c++"), TMPDIR="/proc")
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("stablemd: using slow generic CPU kernels: cannot make a temporary folder /proc/")


def is_running(pid: int) -> bool:
    """False for a zombie too: who adopted it may not have looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("ended_by, message", [
    ("stop", "compilation was stopped because the process ends"),
    ("time", "{} did not end within 1 s"),
])  # fmt: skip
def test_whole_process_group_ends(ended_by, message, tmp_path, monkeypatch):
    """A compiler is a driver whose children work; none of them outlives a compilation that is given up."""
    children = tmp_path / "children"
    compiler = executable(
        tmp_path / "compiler",
        f"case $* in *--version*) echo 1; exit;; esac\nsleep 100 & echo $! >> {children}\n"
        f"(sleep 100 & echo $! >> {children}; wait) & echo $! >> {children}\nwait\n",
    )
    monkeypatch.setenv("CXX", compiler)
    start = time.monotonic()
    with pytest.raises(RuntimeError) as error:
        compile_source("", **({"stop_after": 0.5} if ended_by == "stop" else {"limit": 1}))
    assert str(error.value) == message.format(compiler)
    assert time.monotonic() - start < 50
    pids = list(map(int, children.read_text().split()))
    assert len(pids) == 3
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_folders_of_killed_processes_are_swept(number, tmp_path, monkeypatch):
    """A signal ends a process without its destructors. Folders of processes that still compile stay."""
    compilers, temporary = tmp_path / "compilers", tmp_path / "temporary"
    compiler = executable(
        tmp_path / "compiler",
        f"case $* in *--version*) echo 1; exit;; esac\necho $$ >> {compilers}\nexec sleep 100\n",
    )
    (temporary / "stablemd-compile-").mkdir(parents=True)  # nobody works in it, but it is empty: as good as left behind
    (temporary / "somebody-elses").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    environment = {**os.environ, "CXX": compiler, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", "from native import compile_source; compile_source('')"]

    def start():
        before = set(temporary.iterdir())
        process = subprocess.Popen(words, env=environment)
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            for folder in set(temporary.iterdir()) - before:
                if (folder / "log").exists() and (folder / "kernel.cc").exists():
                    return process, folder
            time.sleep(0.01)
        raise AssertionError("nothing is compiled")

    try:
        killed, left = start()
        killed.send_signal(number)
        killed.wait()
        assert left.exists()
        busy, in_use = start()
        assert not left.exists()
        compile_source("")
        assert sorted(temporary.iterdir()) == sorted([in_use, temporary / "somebody-elses"])
        busy.kill()
        busy.wait()
    finally:
        for pid in compilers.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_the_environment_is_read_once(tmp_path):
    """Kernels compile on threads, which must not look at an environment that the host process is changing."""
    settings = "import os; os.environ.update(PATH='/nowhere', TMPDIR='/nowhere', CXX='/nowhere/c++')"
    later = PROGRAM.replace("    op = oeq", f"    if dtype == 'float32':\n        {settings}\n    op = oeq")
    assert settings in later
    result = run(tmp_path, os.environ.get("CXX", "c++"), later)
    assert result.returncode == 0 and result.stderr == ""
