# SPDX-License-Identifier: BSD-3-Clause
"""Evaluation of an energy function by JAX itself, without padding: the values that native evaluation must reproduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ._errors import ExportError, argument
from ._graphs import HopGraph, edge_forces
from ._program import about, energy_and_gradient, x64
from ._reference import Reference, structure_graph


class JaxLacksTargetError(ExportError):
    """JAX itself cannot run the function: usually it has no handler of a custom call."""


def graph_arrays(graph: HopGraph, dtype: np.dtype) -> list[np.ndarray]:
    """The leading arguments of an exported program, in the order of ``GRAPH_ROLES``."""
    return [
        graph.species.astype(np.int32),
        graph.vectors.astype(dtype),
        graph.centers.astype(np.int32),
        graph.neighbors.astype(np.int32),
        np.array(graph.owned, np.int32),
    ]


def compute_reference(
    energy_fn: Callable, unflatten: Callable, weights: Sequence[np.ndarray], dtype: np.dtype, atoms: Any, **model: Any
) -> Reference:
    """Evaluates the exported function by JAX on the CPU, without padding. ``model``: elements, cutoff, layers,
    atomic_energies."""
    graph = structure_graph(atoms, model["elements"], model["cutoff"], model["layers"])
    if graph.sizes.edges[0] == 0:
        raise ExportError(f"no two atoms of the reference structure are within the cutoff of {model['cutoff']}")
    with x64(dtype), jax.default_device(jax.local_devices(backend="cpu")[0]):
        widths: dict[str, int] = {}
        function = jax.jit(energy_and_gradient(energy_fn, unflatten, graph.sizes, widths.update))
        arrays = graph_arrays(graph, dtype)
        try:
            energies, gradient, *extra = (np.asarray(array, np.float64) for array in function(*arrays, *weights))
        except jax.errors.JaxRuntimeError as error:
            raise JaxLacksTargetError(
                f"JAX cannot evaluate energy_fn on the CPU: {str(error).splitlines()[0]}"
            ) from None
    values = {"energy": energies, "forces": gradient, **dict(zip(sorted(widths), extra, strict=True))}
    broken = [name for name, array in values.items() if not np.isfinite(array).all()]
    if broken:
        raise about(
            energy_fn,
            f"not finite on the reference structure: {', '.join(broken)}; pass a structure that suits the model as"
            f" {argument('reference', code='ase.Atoms')}",
        )
    node_energies = energies + np.asarray(model["atomic_energies"])[graph.species]
    return Reference(
        np.asarray(atoms.numbers),
        atoms.get_positions(),
        np.array(atoms.cell),
        np.array(atoms.pbc),
        float(node_energies.sum()),
        node_energies,
        edge_forces(graph, gradient, len(atoms)),
        {name: values[name] for name in widths},
    )
