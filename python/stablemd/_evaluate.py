# SPDX-License-Identifier: BSD-3-Clause
"""Evaluation of an energy function by JAX itself, without padding: the values that native evaluation must reproduce."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    energy_fn: Callable,
    unflatten: Callable,
    weights: Sequence[np.ndarray],
    dtype: np.dtype,
    atoms: Any,
    *values_of_inputs: Mapping[str, float],
    **model: Any,
) -> list[Reference]:
    """Evaluates the exported function by JAX on the CPU, without padding, once for each set of values of its graph
    inputs. ``model``: elements, cutoff, layers, atomic_energies."""
    graph = structure_graph(atoms, model["elements"], model["cutoff"], model["layers"])
    if graph.sizes.edges[0] == 0:
        raise ExportError(f"no two atoms of the reference structure are within the cutoff of {model['cutoff']}")
    names = sorted(values_of_inputs[0])
    with x64(dtype), jax.default_device(jax.local_devices(backend="cpu")[0]):
        widths: dict[str, int] = {}
        function = jax.jit(energy_and_gradient(energy_fn, unflatten, graph.sizes, widths.update, names))

        def evaluate(inputs: Mapping[str, float]) -> list[np.ndarray]:
            arguments = [*graph_arrays(graph, dtype), *(np.array(inputs[name], dtype) for name in names), *weights]
            try:
                return [np.asarray(array, np.float64) for array in function(*arguments)]
            except jax.errors.JaxRuntimeError as error:
                raise JaxLacksTargetError(
                    f"JAX cannot evaluate energy_fn on the CPU: {str(error).splitlines()[0]}"
                ) from None

        results = [evaluate(inputs) for inputs in values_of_inputs]
    constants = np.asarray(model["atomic_energies"])[graph.species]
    references = []
    for inputs, (energies, gradient, *extra) in zip(values_of_inputs, results, strict=True):
        outputs = dict(zip(sorted(widths), extra, strict=True))
        _check_finite(energy_fn, inputs, {"energy": energies, "forces": gradient, **outputs})
        references.append(
            Reference(
                np.asarray(atoms.numbers),
                np.array(atoms.positions, np.float64),
                np.array(atoms.cell, np.float64),
                np.array(atoms.pbc),
                float((energies + constants).sum()),
                energies + constants,
                edge_forces(graph, gradient, len(atoms)),
                outputs,
                inputs=dict(inputs),
            )
        )
    return references


def _check_finite(energy_fn: Callable, inputs: Mapping[str, float], values: Mapping[str, np.ndarray]) -> None:
    broken = [name for name, array in values.items() if not np.isfinite(array).all()]
    if broken:
        numbers = ", ".join(f"{name} = {value:g}" for name, value in inputs.items())
        raise about(
            energy_fn,
            f"not finite on the reference structure{f' with {numbers}' if numbers else ''}: {', '.join(broken)}; pass a"
            f" structure that suits the model as {argument('reference', code='ase.Atoms')}",
        )
