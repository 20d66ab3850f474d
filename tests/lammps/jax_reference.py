# SPDX-License-Identifier: GPL-2.0-or-later
"""Energy, forces and stress of a `stablemd.Potential` from JAX alone: the whole crystal as one graph
from ASE's neighbour list, forces by differentiating positions and stress by differentiating a strain. Shares no code
with the engines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.neighborlist import neighbor_list
from lammps_runner import Evaluation
from stablemd.graph import Graph

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


def evaluate_in_jax(potential, atoms: Atoms) -> Evaluation:
    centres, neighbours, shifts = neighbor_list("ijS", atoms, potential.cutoff)
    species = np.array([potential.elements.index(symbol) for symbol in atoms.symbols], dtype=np.int32)
    cell, count = np.array(atoms.cell.array), len(atoms)
    volume = abs(np.linalg.det(cell)) or 1.0

    def vectors_of(positions, strain):
        deformation = jnp.eye(3) + 0.5 * (strain + strain.T)
        return (positions[neighbours] - positions[centres] + shifts @ cell) @ deformation

    def node_energies(vectors):
        graph = Graph(
            species=jnp.asarray(species),
            vectors=vectors,
            centers=jnp.asarray(centres, jnp.int32),
            neighbors=jnp.asarray(neighbours, jnp.int32),
            owned=jnp.int32(count),
            rows=(count,) * (potential.layers + 1),
            edges=(len(centres),) * (potential.layers + 1),
        )
        return potential.energy_fn(params, graph) + potential.atomic_energies[species]

    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, potential.params)
        arguments = jnp.array(atoms.positions), jnp.zeros((3, 3))
        energies = node_energies(vectors_of(*arguments))
        energy = lambda positions, strain: node_energies(vectors_of(positions, strain)).sum()  # noqa: E731
        slope, strain_slope = jax.grad(energy, argnums=(0, 1))(*arguments)
        vectors = vectors_of(*arguments)
        gradient = np.array(jax.grad(lambda v: node_energies(v).sum())(vectors))
        vectors, energies = np.array(vectors), np.array(energies)

    return Evaluation(
        energy=float(energies.sum()),
        energies=energies,
        forces=-np.array(slope),
        stress=np.array([strain_slope[i, j] for i, j in VOIGT]) / volume,
        stresses=shared_stresses(centres, neighbours, vectors, gradient, count) / volume,
        positions=atoms.positions,
    )


def shared_stresses(centres, neighbours, vectors, gradient, count) -> np.ndarray:
    """The stress of each edge, v g symmetrised, half to each of its two atoms."""
    outer = vectors[:, :, None] * gradient[:, None, :]
    outer = 0.25 * (outer + outer.transpose(0, 2, 1))
    tensors = np.zeros((count, 3, 3))
    np.add.at(tensors, centres, outer)
    np.add.at(tensors, neighbours, outer)
    return np.stack([tensors[:, i, j] for i, j in VOIGT], axis=-1)
