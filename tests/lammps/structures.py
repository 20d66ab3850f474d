# SPDX-License-Identifier: GPL-2.0-or-later
"""Structures of silicon carbide that are hard on decompositions; every call draws new displacements."""

from __future__ import annotations

import numpy as np
from ase import Atoms
from ase.build import bulk


def _displaced(atoms: Atoms, size: float = 0.15) -> Atoms:
    atoms.positions += np.random.default_rng().uniform(-size, size, atoms.positions.shape)
    return atoms


def _carbide() -> Atoms:
    return bulk("SiC", "zincblende", 4.36, cubic=True)


def crystal(repeat=(2, 2, 2)) -> Atoms:
    return _displaced(_carbide().repeat(repeat))


def primitive() -> Atoms:
    """Two atoms in a skewed cell that is far smaller than any cutoff: every atom is its own neighbour many times."""
    return _displaced(bulk("SiC", "zincblende", 4.36), 0.1)


def triclinic() -> Atoms:
    atoms = _carbide().repeat((2, 2, 1))
    atoms.set_cell(
        atoms.cell.array @ np.array([[1, 0.02, 0], [0.31, 0.97, 0.05], [-0.22, 0.17, 1.04]]), scale_atoms=True
    )
    return _displaced(atoms)


def slab() -> Atoms:
    atoms = crystal((2, 2, 1))
    atoms.pbc = (True, True, False)
    return atoms


def wire() -> Atoms:
    atoms = crystal((1, 1, 3))
    atoms.pbc = (False, False, True)
    return atoms


def cluster() -> Atoms:
    atoms = crystal((1, 1, 2))
    atoms.pbc = False
    return atoms


def dimer() -> Atoms:
    return Atoms("SiC", [[0.1, 0.2, 0.3], [1.5, 1.0, 0.9]])


def isolated() -> Atoms:
    return Atoms("C", [[0.1, 0.2, 0.3]])


def gas() -> Atoms:
    """Two groups of atoms beyond each other's cutoff in a periodic box, so that ranks see vacuum or nothing at all."""
    atoms = Atoms("SiCSiCC", [[1, 1, 1], [2.5, 1.5, 1.2], [1.5, 2.8, 2.0], [28, 1, 1], [14, 10, 10]])
    atoms.set_cell([30, 20, 20])
    atoms.pbc = True
    return _displaced(atoms)


ALL = [crystal, primitive, triclinic, slab, wire, cluster, dimer, isolated, gas]
