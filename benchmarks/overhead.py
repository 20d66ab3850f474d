# SPDX-License-Identifier: BSD-3-Clause
"""Time per step outside the program (graph building, scatter) for 4,096 atoms of SiC, as the pair style reports it.

python benchmarks/overhead.py [--steps 20]
"""

from __future__ import annotations

import argparse

from lammps_runs import SIC_INPUTS, bundle, lammps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    for ranks in (1, 2):
        run = lammps(
            SIC_INPUTS / "in.nve",
            ranks=ranks,
            variables={"model": bundle("sic", "float32"), "steps": steps, "cells": 8},
        )
        print(f"{ranks} rank(s), loop time {run.figure(r'Loop time of ([0-9.]+)') / steps:.3f} s/step")
        print(run.output[run.output.index("Pair style stablemd timing breakdown") :].split("MPI task")[0].strip())


if __name__ == "__main__":
    main()
