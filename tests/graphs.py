# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of structures as engines build them (docs/bundle.md), for tests of energy functions."""

from __future__ import annotations

from dataclasses import dataclass

import ase
import numpy as np
from vesin import NeighborList

from stablemd.graph import Graph


@dataclass(frozen=True)
class BuiltGraph:
    graph: Graph
    #: row of each atom's own (hop 0) copy is its index; edges that are not padding
    real: np.ndarray
    #: index of the atom at each end of each edge, -1 on padding
    centers: np.ndarray
    neighbors: np.ndarray


def _pairs(atoms: ase.Atoms, cutoff: float) -> tuple[np.ndarray, ...]:
    """Full neighbour list sorted by centre: i, j, vectors r_j - r_i, image shifts."""
    search = NeighborList(cutoff=cutoff, full_list=True)
    i, j, shifts, vectors = search.compute(
        points=atoms.positions, box=atoms.cell.array, periodic=atoms.pbc, quantities="ijSD"
    )
    order = np.argsort(i, kind="stable")
    return i[order].astype(int), j[order].astype(int), shifts[order].astype(int), vectors[order]


def species_of(atoms: ase.Atoms, elements: tuple[str, ...]) -> np.ndarray:
    return np.array([elements.index(symbol) for symbol in atoms.get_chemical_symbols()], np.int32)


def _assemble(hops, cutoff, dtype, owned, layers, pad):
    """``hops``: per hop (species, [(center row, neighbour row, vector, atom i, atom j)]), rows without padding."""
    sizes = [len(species) for species, _ in hops]
    padded = [size + 1 + pad if size else 0 for size in sizes]
    offsets = np.concatenate([[0], np.cumsum(padded)])
    place = np.concatenate([offsets[h] + np.arange(size) for h, size in enumerate(sizes)]).astype(int)
    species = np.zeros(offsets[-1], np.int32)
    species[place] = np.concatenate([s for s, _ in hops])
    centers, neighbors, vectors, first, second, edge_sizes = [], [], [], [], [], []
    for hop in range(layers):
        edges = hops[hop][1]
        extra = 2 + 3 * pad if sizes[hop] else 0
        dummy = offsets[hop + 1] - 1
        edge_sizes.append(len(edges) + extra)
        centers += [place[e[0]] for e in edges] + [dummy] * extra
        neighbors += [place[e[1]] for e in edges] + [dummy] * extra
        vectors += [e[2] for e in edges] + [(1.01 * cutoff, 0.0, 0.0)] * extra
        first += [e[3] for e in edges] + [-1] * extra
        second += [e[4] for e in edges] + [-1] * extra
    rows = tuple(int(offsets[layers + 1 - l]) for l in range(layers + 1))
    counts = np.cumsum(edge_sizes)
    edges = (int(counts[layers - 1]), *(int(counts[layers - l]) for l in range(1, layers + 1)))
    graph = Graph(
        species=species,
        vectors=np.array(vectors, dtype).reshape(-1, 3),
        centers=np.array(centers, np.int32),
        neighbors=np.array(neighbors, np.int32),
        owned=np.int32(owned),
        rows=rows,
        edges=edges,
    )
    first = np.array(first, int)
    return BuiltGraph(graph, first >= 0, first, np.array(second, int))


def folded(atoms, elements, cutoff, layers, dtype=np.float64, pad=0) -> BuiltGraph:
    """One hop: every periodic image is its atom's own row."""
    i, j, _, vectors = _pairs(atoms, cutoff)
    species = species_of(atoms, elements)
    edges = list(zip(i, j, vectors, i, j, strict=True))
    empty = (species[:0], [])
    return _assemble([(species, edges), *[empty] * layers], cutoff, dtype, len(atoms), layers, pad)


def with_ghosts(atoms, elements, cutoff, layers, owned, dtype=np.float64, pad=0) -> BuiltGraph:
    """The first ``owned`` atoms in hop 0; every other atom or image is a ghost row, by its distance in edges."""
    i, j, shifts, vectors = _pairs(atoms, cutoff)
    species = species_of(atoms, elements)
    by_atom = [np.flatnonzero(i == atom) for atom in range(len(atoms))]
    keys = [(atom, (0, 0, 0)) for atom in range(owned)]
    row = {key: n for n, key in enumerate(keys)}
    hops, frontier = [], keys
    for _ in range(layers):
        edges, following = [], []
        for atom, image in frontier:
            for e in by_atom[atom]:
                key = (int(j[e]), tuple(int(a) for a in np.add(image, shifts[e])))
                if key not in row:
                    row[key] = len(row)
                    following.append(key)
                edges.append((row[atom, image], row[key], vectors[e], atom, int(j[e])))
        hops.append((species[[k[0] for k in frontier]], edges))
        frontier = following
    hops.append((species[[k[0] for k in frontier]], []))
    return _assemble(hops, cutoff, dtype, owned, layers, pad)


def forces_and_stress(built: BuiltGraph, gradient, atoms) -> tuple[np.ndarray, np.ndarray]:
    """Forces on atoms and stress (ASE's Voigt order, energy/volume) from d(energy)/d(vectors), in double."""
    real = built.real
    gradient = np.asarray(gradient, np.float64)[real]
    vectors = np.asarray(built.graph.vectors, np.float64)[real]
    forces = np.zeros((len(atoms), 3))
    np.add.at(forces, built.centers[real], gradient)
    np.add.at(forces, built.neighbors[real], -gradient)
    virial = np.einsum("ea,eb->ab", vectors, gradient)
    stress = np.zeros(6)
    if atoms.pbc.all():
        stress = (virial / atoms.get_volume())[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    return forces, stress
