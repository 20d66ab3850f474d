# SPDX-License-Identifier: BSD-3-Clause
"""Relax a 3BPA molecule with ASE.

stablemd export tests/data/bpa/mace-jax -o bpa.safetensors
python examples/bpa/relax.py [BUNDLE]
"""

import sys
from pathlib import Path

import ase.io
from ase.optimize import BFGS
from stablemd import StableMDCalculator

FRAMES = Path(__file__).parents[2] / "tests" / "data" / "bpa" / "mace-jax" / "reference.extxyz"


def main() -> None:
    atoms = ase.io.read(FRAMES, index=0)
    atoms.calc = StableMDCalculator(sys.argv[1] if len(sys.argv) > 1 else "bpa.safetensors")
    start = atoms.get_potential_energy()
    BFGS(atoms).run(fmax=0.02, steps=200)
    print(f"relaxed by {atoms.get_potential_energy() - start:.4f} eV")


if __name__ == "__main__":
    main()
