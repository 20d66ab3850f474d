# SPDX-License-Identifier: BSD-3-Clause
"""Hot silicon by the Stillinger-Weber example, in both formulations, and by LAMMPS' own `pair_style sw`: ms per step.

python benchmarks/stillinger_weber.py
"""

from __future__ import annotations

import os
import sys

from lammps_runs import ROOT, WORK, lammps

sys.path.insert(0, str(ROOT / "examples" / "potentials"))

import stillinger_weber as example

CELLS = 8  # 4,096 atoms
STEPS = 500
REPETITIONS = 5
# the example's parameters in the order of LAMMPS' file: epsilon sigma a lambda gamma cos(theta0) A B p q tolerance
OWN_FILE = "Si Si Si 2.1683 2.0951 1.80 21.0 1.20 -0.333333333333333333 7.049556277 0.6022245584 4.0 0.0 0.0\n"
LOOP = r"Loop time of (\S+) on"


def own_input() -> str:
    """The example's input with LAMMPS' own style."""
    lines = (ROOT / "examples" / "potentials" / "in.silicon").read_text().splitlines()
    own = {"pair_style": "pair_style sw", "pair_coeff": f"pair_coeff * * {WORK / 'Si.sw'} Si"}
    return "\n".join(own.get(line.split()[0] if line.split() else "", line) for line in lines) + "\n"


def main() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    (WORK / "Si.sw").write_text(OWN_FILE)
    (WORK / "in.sw").write_text(own_input())
    ways = {"pair_style sw (float64)": (WORK / "in.sw", {})}
    for dtype in ("float32", "float64"):
        for function in (example.energy, example.energy_by_moments):
            path = WORK / f"silicon-{function.__name__}-{dtype}.safetensors"
            example.export(path, dtype, function)
            ways[f"{function.__name__} ({dtype})"] = (ROOT / "examples" / "potentials" / "in.silicon", {"model": path})
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(REPETITIONS + 1):
        for name, (script, variables) in ways.items():
            run = lammps(script, variables={"cells": CELLS, "steps": STEPS, **variables})
            if repetition > 0:  # the first compiles
                spent[name].append(run.figure(LOOP) / STEPS * 1e3)
    print(f"{8 * CELLS**3} atoms of silicon at 600 K, one core; ms per step, least and most of {REPETITIONS} runs")
    for name, times in spent.items():
        print(f"{name:30s} {min(times):6.2f} {max(times):6.2f}")


if __name__ == "__main__":
    main()
