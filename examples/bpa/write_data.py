# SPDX-License-Identifier: BSD-3-Clause
"""Write the 3BPA molecule as a LAMMPS data file: python write_data.py [FILE]; types 1..4 are H, C, N, O."""

import sys
from pathlib import Path

import ase.io

FRAMES = Path(__file__).parents[2] / "tests" / "data" / "bpa" / "mace-jax" / "reference.extxyz"


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "bpa.data"
    atoms = ase.io.read(FRAMES, index=0)
    atoms.center(vacuum=10.0)
    atoms.info.clear()
    ase.io.write(target, atoms, format="lammps-data", specorder=["H", "C", "N", "O"], masses=True, units="real")
    print(f"wrote {target}: {len(atoms)} atoms")


if __name__ == "__main__":
    main()
