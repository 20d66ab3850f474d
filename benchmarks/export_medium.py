# SPDX-License-Identifier: BSD-3-Clause
"""Export of a model as large as MACE-MP-0 medium: 128x0e+128x1o, 89 elements, random weights.

python benchmarks/export_medium.py

Time and memory of `stablemd export`, whole and with `--elements Si O`; bars: 60 s and 4 GB on two cores, 15 MB.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "bench"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "mace")]


def model() -> Path:
    """A mace-torch file in float32, made once."""
    path = WORK / "medium.model"
    if not path.exists():
        import torch
        from test_architectures import MP_0
        from torch_models import build

        WORK.mkdir(parents=True, exist_ok=True)
        torch.save(build(**{**MP_0, "hidden": "128x0e+128x1o"}, script=True).float(), path)
    return path


def main() -> None:
    source = model()
    for options in ([], ["--elements", "Si", "O"]):
        target = WORK / "medium.safetensors"
        command = [sys.executable, "-m", "stablemd", "export", source, "-o", target, "-q", *options]
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, env={**os.environ, "STABLEMD_CACHE": "off"}, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{' '.join(options) or 'all elements'}: {time.perf_counter() - start:.0f} s, {processor:.0f} s of"
            f" processor time, at most {after.ru_maxrss / 1e6:.2f} GB, file {target.stat().st_size / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
