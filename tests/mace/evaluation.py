# SPDX-License-Identifier: BSD-3-Clause
"""Evaluates a potential as an exported program would: energies of owned rows and the gradient in the edge vectors."""

from __future__ import annotations

from dataclasses import dataclass

import ase
import jax
import jax.numpy as jnp
import numpy as np
from graphs import BuiltGraph, folded, forces_and_stress
from stablemd.graph import Graph
from stablemd.potential import Potential


@dataclass(frozen=True)
class Result:
    energies: np.ndarray  #: per atom, with atomic energies
    forces: np.ndarray
    stress: np.ndarray

    @property
    def energy(self) -> float:
        return float(self.energies.sum())


class Evaluator:
    """``quick``: compiled without optimisation, for a few small structures."""

    def __init__(self, potential: Potential, dtype: type = np.float64, *, quick: bool = False) -> None:
        self.potential, self.dtype = potential, dtype
        self.params = jax.tree.map(lambda array: jnp.asarray(array, dtype), potential.params)
        #: values of graph inputs, which a test may change
        self.inputs = {name: self.dtype(one.default) for name, one in potential.inputs.items()}
        options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True} if quick else None
        self._run = jax.jit(self._energies_and_gradient, static_argnums=(6, 7), compiler_options=options)

    def _energies_and_gradient(self, params, species, vectors, centers, neighbors, owned, rows, edges, inputs):
        def total(vectors):
            graph = Graph(species, vectors, centers, neighbors, owned, rows, edges, inputs)
            energies = self.potential.energy_fn(params, graph)
            kept = jnp.where(jnp.arange(rows[-1], dtype=jnp.int32) < owned, energies, 0)
            return kept.sum(), kept

        (_, energies), gradient = jax.value_and_grad(total, has_aux=True)(vectors)
        return energies, gradient

    def graph(self, built: BuiltGraph) -> tuple[np.ndarray, np.ndarray]:
        """Interaction energies of the owned rows and the gradient of their sum in the vectors, in their own type."""
        g = built.graph
        energies, gradient = self._run(
            self.params, g.species, g.vectors, g.centers, g.neighbors, g.owned, g.rows, g.edges, self.inputs
        )
        assert energies.dtype == gradient.dtype == self.dtype
        return np.asarray(energies)[: g.owned], np.asarray(gradient)

    def fold(self, atoms: ase.Atoms, **padding) -> BuiltGraph:
        p = self.potential
        return folded(atoms, p.elements, p.cutoff, p.layers, self.dtype, **padding)

    def __call__(self, atoms: ase.Atoms, **padding) -> Result:
        built = self.fold(atoms, **padding)
        energies, gradient = self.graph(built)
        species = built.graph.species[: len(atoms)]
        forces, stress = forces_and_stress(built, gradient, atoms)
        return Result(energies.astype(np.float64) + self.potential.atomic_energies[species], forces, stress)
