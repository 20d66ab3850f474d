# SPDX-License-Identifier: BSD-3-Clause
"""Run every benchmark and print what it prints: python benchmarks/run_all.py"""

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "accuracy.py",
    "warm_start.py",
    "overhead.py",
    "deform.py",
    "kernels.py",
    "stillinger_weber.py",
    "export_medium.py",
    "conservation.py",
)


def main() -> None:
    for script in SCRIPTS:
        print(f"\n== {script}", flush=True)
        subprocess.run([sys.executable, Path(__file__).with_name(script)], check=True)


if __name__ == "__main__":
    main()
