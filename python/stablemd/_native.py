# SPDX-License-Identifier: BSD-3-Clause
"""Graphs through the native library: shared runtimes, filling of padded arrays, comparison with JAX."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ._bundle import read_bundle
from ._connector import Model, Runtime
from ._errors import ArgumentError, argument
from ._graphs import HopGraph, edge_forces, part_graph
from ._reference import OriginalValues, Reference, structure_graph

_runtimes: weakref.WeakValueDictionary[tuple, Runtime] = weakref.WeakValueDictionary()
_runtimes_lock = threading.Lock()


def shared_runtime(
    device: str = "cpu", plugin: str | None = None, threads: int = 0, cache: str | os.PathLike[str] | None = None
) -> Runtime:
    """The runtime of this process for these options and this environment; created once, gone with its last model."""
    _check_options(device, plugin, threads, cache)
    folder = None if cache is None else os.fspath(cache)
    environment = tuple((name, value) for name, value in sorted(os.environ.items()) if name.startswith("STABLEMD_"))
    # A forked child must not use its parent's: the threads behind it do not exist there.
    key = (os.getpid(), environment, device, plugin, threads, folder)
    with _runtimes_lock:
        runtime = _runtimes.get(key)
        if runtime is None:
            runtime = Runtime(device, plugin, int(threads), 0, folder)
            _runtimes[key] = runtime
        return runtime


_MOST_THREADS = 1024  # stablemd.h


def _check_options(device: Any, plugin: Any, threads: Any, cache: Any) -> None:
    if not isinstance(device, str):
        raise ArgumentError(f"device must be a text such as 'cpu', got {device!r}")
    if not (plugin is None or isinstance(plugin, str)):
        raise ArgumentError(f"plugin must be a text, the path of a PJRT plugin, got {plugin!r}")
    if not (cache is None or isinstance(cache, str | os.PathLike)):
        raise ArgumentError(f"cache must be a text, the path of a folder, got {cache!r}")
    whole = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if not (whole and 0 <= threads <= _MOST_THREADS):
        raise ArgumentError(
            f"{argument('threads')} must be a whole number from 1 to {_MOST_THREADS}, or 0 for all cores,"
            f" got {threads!r}"
        )


def load(path: str | os.PathLike[str], **runtime_options: Any) -> Model:
    """Opens a bundle on a shared runtime. Raises the errors of ``stablemd._errors``."""
    bundle = read_bundle(path)  # says more, and earlier, about a file that is none
    return Model(shared_runtime(**runtime_options), str(bundle.path))


def evaluate(model: Model, graph: HopGraph) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Energies of the owned rows, without atomic energies, the gradient of their sum by each edge vector, and the
    extra outputs of the owned rows by name.

    float64 copies: [nodes[0]], [edges, 3] with edges in the order of ``graph``, [nodes[0]] or [nodes[0], width].
    """
    view = model.reserve(list(graph.nodes), list(graph.edges))
    node_slices = _slices(graph.nodes, view.node_offset)
    edge_slices = _slices(graph.edges, view.edge_offset)
    row_of = np.empty(sum(graph.nodes), dtype=np.int32)
    for ours, theirs in node_slices:
        row_of[ours] = np.arange(theirs.start, theirs.stop, dtype=np.int32)
        view.species[theirs] = graph.species[ours]
    for ours, theirs in edge_slices:
        view.centers[theirs] = row_of[graph.centers[ours]]
        view.neighbors[theirs] = row_of[graph.neighbors[ours]]
        view.vectors[theirs] = graph.vectors[ours]
    energies, padded_gradient, outputs = model.evaluate()
    gradient = np.empty((sum(graph.edges), 3))
    for ours, theirs in edge_slices:
        gradient[ours] = padded_gradient[theirs]
    return energies.astype(np.float64), gradient, {name: one.astype(np.float64) for name, one in outputs.items()}


def _slices(counts: tuple[int, ...], offsets: list[int]) -> list[tuple[slice, slice]]:
    """Where each hop lies in a graph without padding and in the library's arrays."""
    starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
    return [
        (slice(start, start + count), slice(offset, offset + count))
        for start, count, offset in zip(starts, counts, offsets, strict=False)
    ]


@dataclass(frozen=True)
class Deviation:
    """Largest differences on a reference structure."""

    energy: float  #: of one atom's energy
    force: float  #: of one force component
    largest_energy: float  #: of one atom in the reference, without its atomic energy
    largest_force: float  #: component in the reference
    outputs: dict[str, tuple[float, float]] = field(default_factory=dict)  #: extra ones: difference, largest value
    original: tuple[float, float] | None = None  #: from the original: energy per atom, force


def run_structure(model: Model, atoms: Any) -> None:
    """Evaluates a structure of ``ase.Atoms``. Raises :class:`ExecutionError` where the result is not finite."""
    evaluate(model, structure_graph(atoms, model.elements, model.cutoff, model.layers))


def compare_with_reference(model: Model, reference: Reference, parts: int = 1) -> Deviation:
    """Evaluates a reference structure and compares; in ``parts``, as on so many ranks, so that there are ghosts."""
    for name, value in reference.inputs.items():
        model.set_input(name, value)
    whole = structure_graph(reference.atoms(), model.elements, model.cutoff, model.layers)
    count = len(whole.species)
    graphs = _parts(whole, parts, model.layers)
    energies, forces = np.zeros(count), np.zeros((count, 3))
    extra = {name: np.zeros_like(values) for name, values in reference.outputs.items()}
    for graph in graphs:
        node_energy, gradient, outputs = evaluate(model, graph)
        energies[graph.atoms[: graph.owned]] = node_energy
        for name, values in extra.items():
            values[graph.atoms[: graph.owned]] = outputs[name]
        forces += edge_forces(graph, gradient, count)
    constants = np.array(model.atomic_energies)[whole.species]
    expected = reference.node_energies - constants
    return Deviation(
        float(np.abs(energies - expected).max()),
        float(np.abs(forces - reference.forces).max()),
        float(np.abs(expected).max()),
        float(np.abs(reference.forces).max()),
        {n: (float(np.abs(extra[n] - v).max()), float(np.abs(v).max())) for n, v in reference.outputs.items()},
        _difference_from_original(energies.sum() + constants.sum(), forces, reference.original),
    )


def _parts(whole: HopGraph, parts: int, layers: int) -> list[HopGraph]:
    """The graphs of so many ranks, the largest first: later ones fit into its arrays."""
    count = len(whole.species)
    owners = [np.arange(count)[number::parts] for number in range(min(parts, count))]
    graphs = [part_graph(whole, owned, layers) for owned in owners] if len(owners) > 1 else [whole]
    return sorted(graphs, key=lambda graph: -sum(graph.edges))


_MOST_PAIRS = 4
_LEAST_JUMP = 1e-6  # energies that change by less are as good as continuous


def jump_at_the_cutoff(model: Model, atoms: Any, bar: float, parts: int = 1) -> float:
    """Largest change of an atom's energy where one of its neighbours leaves the cutoff; 0 for a continuous energy.

    In one of ``parts`` of a structure, pairs of neighbours of some elements are moved to just below the cutoff, and
    away. What is left of their contribution from 1 % below to just below tells a jump from a smooth end. ``bar`` is
    the noise of an energy.
    """
    whole = structure_graph(atoms, model.elements, model.cutoff, model.layers)
    graph = _parts(whole, parts, model.layers)[0]
    lengths = np.linalg.norm(graph.vectors, axis=1)
    kinds = np.sort(graph.species[np.stack([graph.centers, graph.neighbors])], axis=0).T
    jumps = [0.0]
    for kind in np.unique(kinds, axis=0)[:_MOST_PAIRS]:
        edges = np.flatnonzero((kinds == kind).all(axis=1) & (graph.centers < graph.owned))
        if len(edges) == 0:
            continue
        pair = _both_directions(graph, int(edges[np.argmax(lengths[edges])]))
        apart = evaluate(model, _without(graph, pair))[0]
        far, near = (
            np.abs(evaluate(model, _stretched(graph, pair, part * model.cutoff))[0] - apart) for part in (0.99, 0.99999)
        )
        jumps += near[(near > max(bar, _LEAST_JUMP)) & (near > 0.3 * far)].tolist()
    return max(jumps)


def _both_directions(graph: HopGraph, edge: int) -> np.ndarray:
    """An edge and, where this part of a structure has it, the same seen from its other end."""
    reverse = (
        (graph.centers == graph.neighbors[edge])
        & (graph.neighbors == graph.centers[edge])
        & (np.abs(graph.vectors + graph.vectors[edge]).max(axis=1) < 1e-9)
    )
    return np.union1d([edge], np.flatnonzero(reverse))


def _stretched(graph: HopGraph, edges: np.ndarray, length: float) -> HopGraph:
    vectors = graph.vectors.copy()
    vectors[edges] *= length / np.linalg.norm(vectors[edges], axis=1, keepdims=True)
    return replace(graph, vectors=vectors)


def _without(graph: HopGraph, edges: np.ndarray) -> HopGraph:
    keep = np.ones(len(graph.centers), bool)
    keep[edges] = False
    counts = tuple(int(part.sum()) for part in np.split(keep, np.cumsum(graph.edges)[:-1]))
    return replace(
        graph, centers=graph.centers[keep], neighbors=graph.neighbors[keep], vectors=graph.vectors[keep], edges=counts
    )


def _difference_from_original(
    energy: float, forces: np.ndarray, original: OriginalValues | None
) -> tuple[float, float] | None:
    if original is None:
        return None
    return abs(float(energy) - original.energy) / len(forces), float(np.abs(forces - original.forces).max())
