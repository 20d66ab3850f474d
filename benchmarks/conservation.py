# SPDX-License-Identifier: BSD-3-Clause
"""Energy conservation: 5,000 NVE steps of 0.5 fs at 600 K, 512 atoms of SiC.

float32 against float64, one rank against two:

python benchmarks/conservation.py [--steps 5000]

Prints, per run, the drift (slope of a straight line through the total energy, times the run's length) and the
fluctuation (standard deviation about that line, and largest minus smallest value), per atom; then what float32 adds to
float64.
"""

from __future__ import annotations

import argparse

import numpy as np
from lammps_runs import SIC_INPUTS, bundle, lammps

ATOMS = 512


def conservation(table: dict[str, np.ndarray]) -> tuple[float, float, float]:
    time, energy = table["Time"], table["TotEng"] / ATOMS
    slope, offset = np.polyfit(time, energy, 1)
    rest = energy - (slope * time + offset)
    return abs(slope) * (time[-1] - time[0]), rest.std(), np.ptp(energy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    steps = parser.parse_args().steps
    tables, figures = {}, {}
    print(
        f"{'dtype':>8} {'ranks':>5} {'drift':>10} {'std':>10} {'range':>10} {'T mean':>8} {'s/step':>8}   (eV/atom, K)"
    )
    for dtype in ("float64", "float32"):
        for ranks in (1, 2):
            run = lammps(SIC_INPUTS / "in.nve", ranks=ranks, variables={"model": bundle("sic", dtype), "steps": steps})
            table = tables[dtype, ranks] = run.tables[0]
            figures[dtype, ranks] = conservation(table)
            drift, std, spread = figures[dtype, ranks]
            seconds = run.figure(r"Loop time of ([\d.]+)") / steps
            temperature = table["Temp"].mean()
            row = f"{dtype:>8} {ranks:>5} {drift:10.2e} {std:10.2e} {spread:10.2e} {temperature:8.1f} {seconds:8.4f}"
            print(row, flush=True)
    for ranks in (1, 2):
        beyond = np.subtract(figures["float32", ranks], figures["float64", ranks])
        print(
            "float32 beyond float64, {} rank(s): drift {:.1e}, std {:.1e}, range {:.1e} eV/atom".format(ranks, *beyond)
        )
    for dtype in ("float64", "float32"):
        one, two = tables[dtype, 1], tables[dtype, 2]
        apart = np.abs(one["TotEng"] - two["TotEng"]) / ATOMS
        early = one["Step"] <= 200
        print(
            f"{dtype}, one rank against two: total energy {apart.max():.1e} eV/atom at most, "
            f"{apart[early].max():.1e} in the first 200 steps"
        )


if __name__ == "__main__":
    main()
