# SPDX-License-Identifier: BSD-3-Clause
"""Start-up: the first process compiles, the second takes the program from the disk cache and is at step 0 within 2 s.

python benchmarks/warm_start.py

Wall time of the whole `lmp` process of examples/sic/in.nve with `run 0`, with an empty cache and then a filled one.
"""

from __future__ import annotations

import tempfile

from lammps_runs import SIC_INPUTS, bundle, lammps


def main() -> None:
    variables = {"model": bundle("sic", "float32"), "steps": 0}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm", "warm"):
            run = lammps(SIC_INPUTS / "in.nve", variables=variables, STABLEMD_CACHE=cache)
            print(f"{name}: {run.seconds:.2f} s from start to end of the process, {run.compilations} programs compiled")


if __name__ == "__main__":
    main()
