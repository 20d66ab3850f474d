# SPDX-License-Identifier: BSD-3-Clause
"""Energy and forces with `--kernels xla` and `--kernels oeq`: processor time per atom, one thread, and time to compile.

python benchmarks/kernels.py
"""

from __future__ import annotations

import os
import tempfile
import time

from ase.build import bulk
from lammps_runs import bundle
from stablemd import StableMDCalculator

STRUCTURES = {
    "sic": bulk("SiC", "zincblende", 4.36, cubic=True) * 4,
    "bpa": bulk("CO", "zincblende", 4.2, cubic=True) * 3,
}
REPETITIONS = 8


def main() -> None:
    for model, atoms in STRUCTURES.items():
        atoms.rattle(0.05, seed=1)
        for kernels in ("xla", "oeq"):
            calculator = StableMDCalculator(bundle(model, "float32", kernels), threads=1, cache="")
            spent = []
            for _ in range(REPETITIONS):
                atoms.positions += 1e-4  # so that ASE asks again
                start = time.process_time()
                calculator.get_property("forces", atoms)
                spent.append(time.process_time() - start)
            print(
                f"{model}, {kernels}: {min(spent) / len(atoms) * 1e6:.0f} us per atom ({len(atoms)} atoms),"
                f" {calculator.stats()['compile_seconds']:.1f} s to compile"
            )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OEQ_CACHE"] = folder
        main()
