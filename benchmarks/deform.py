# SPDX-License-Identifier: BSD-3-Clause
"""A box that grows and shrinks by 30 %: how often the program was compiled, in a first process and in a second one.

python benchmarks/deform.py
"""

from __future__ import annotations

import tempfile

from lammps_runs import SIC_INPUTS, bundle, lammps


def main() -> None:
    variables = {"model": bundle("sic", "float32")}
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as cache:
            for name in ("first process", "second process"):
                run = lammps(SIC_INPUTS / "in.deform", ranks=ranks, variables=variables, STABLEMD_CACHE=cache)
                print(f"{name}, {ranks} rank(s): {run.compilations} compilations, {run.seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
