# SPDX-License-Identifier: BSD-3-Clause
"""A box that grows and shrinks by 30 %: how often the program was compiled, in a first process and in a second one.

python benchmarks/deform.py
"""

from __future__ import annotations

import tempfile

from lammps_runs import SIC_INPUTS, bundle, lammps


def main() -> None:
    variables = {"model": bundle("sic", "float32")}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first process", "second process"):
            run = lammps(SIC_INPUTS / "in.deform", variables=variables, STABLEMD_CACHE=cache)
            print(f"{name}: {run.figure(r'([0-9]+) compil'):.0f} compilations, {run.seconds:.1f} s")


if __name__ == "__main__":
    main()
