# SPDX-License-Identifier: BSD-3-Clause
"""Start-up: the first process compiles, the second takes everything from disk and is at step 0 within 2 s.

python benchmarks/warm_start.py

Wall time of the whole `lmp` process of examples/sic/in.nve with `run 0`, with empty caches, then with filled ones.
With the kernels of OpenEquivariance, also with either cache alone empty, since kernels compile while XLA does.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from lammps_runs import SIC_INPUTS, Run, bundle, lammps

STARTS = {
    "xla": {"cold": ("programs",), "warm": ()},
    "oeq": {"cold": ("programs", "kernels"), "program only": ("programs",), "kernels only": ("kernels",), "warm": ()},
}
REPETITIONS = 3


def start(caches: Path, kernels: str, empty: tuple[str, ...]) -> Run:
    for name in empty:
        shutil.rmtree(caches / name, ignore_errors=True)
    variables = {"model": bundle("sic", "float32", kernels), "steps": 0}
    settings = {"STABLEMD_CACHE": str(caches / "programs"), "OEQ_CACHE": str(caches / "kernels"), "OEQ_VERBOSE": "1"}
    return lammps(SIC_INPUTS / "in.nve", variables=variables, **settings)


def main() -> None:
    for kernels, starts in STARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            for name, empty in starts.items():
                runs = [start(Path(folder), kernels, empty) for _ in range(REPETITIONS)]
                best = min(runs, key=lambda run: run.seconds)
                spent = [int(ms) for ms in re.findall(r"oeq_native.*compiled in (\d+) ms", best.output)]
                compiled = f"; {len(spent)} kernels in {sum(spent) / 1000:.2f} s of compiler time" if spent else ""
                print(f"{kernels}, {name}: {best.seconds:.2f} s, {best.compilations} programs compiled{compiled}")


if __name__ == "__main__":
    main()
