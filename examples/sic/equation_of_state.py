# SPDX-License-Identifier: BSD-3-Clause
"""Lattice constant and bulk modulus of zincblende SiC with ASE.

stablemd export tests/data/sic/mace-jax -o sic.safetensors
python examples/sic/equation_of_state.py [BUNDLE]
"""

import sys

import numpy as np
from ase.build import bulk
from ase.eos import EquationOfState
from ase.units import GPa
from stablemd import StableMDCalculator


def main() -> None:
    calculator = StableMDCalculator(sys.argv[1] if len(sys.argv) > 1 else "sic.safetensors")
    volumes, energies = [], []
    for a in np.linspace(4.25, 4.47, 9):
        atoms = bulk("SiC", "zincblende", a=a)
        atoms.calc = calculator
        volumes.append(atoms.get_volume())
        energies.append(atoms.get_potential_energy())
    volume, _, modulus = EquationOfState(volumes, energies).fit()
    print(f"a = {(4 * volume) ** (1 / 3):.4f} Angstrom, B = {modulus / GPa:.1f} GPa")


if __name__ == "__main__":
    main()
