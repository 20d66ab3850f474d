# SPDX-License-Identifier: BSD-3-Clause
"""Graphs of structures as engines build them (docs/bundle.md), for tests of energy functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ase
import numpy as np
from stablemd.graph import Graph
from vesin import NeighborList

#: one edge: row of the centre, row of the neighbour, vector, atom at the centre, atom at the neighbour
Edge = tuple[int, int, np.ndarray, int, int]


@dataclass(frozen=True)
class Hop:
    """Rows of one hop, by the species of each, and the edges whose centres they are; rows count without padding."""

    species: np.ndarray
    edges: list[Edge]


@dataclass(frozen=True)
class BuiltGraph:
    """A graph with what is needed to turn its result into that of the structure."""

    graph: Graph
    centers: np.ndarray  #: atom at each edge's centre, -1 on padding
    neighbors: np.ndarray  #: atom at each edge's neighbour, -1 on padding

    @property
    def real(self) -> np.ndarray:
        return self.centers >= 0


def _pairs(atoms: ase.Atoms, cutoff: float) -> tuple[np.ndarray, ...]:
    """Full neighbour list sorted by centre: centre, neighbour, image shift, vector r_neighbour - r_centre."""
    search = NeighborList(cutoff=cutoff, full_list=True)
    i, j, shifts, vectors = search.compute(
        points=atoms.positions, box=atoms.cell.array, periodic=atoms.pbc, quantities="ijSD"
    )
    order = np.argsort(i, kind="stable")
    return i[order].astype(int), j[order].astype(int), shifts[order].astype(int), vectors[order]


def species_of(atoms: ase.Atoms, elements: Sequence[str]) -> np.ndarray:
    return np.array([list(elements).index(symbol) for symbol in atoms.get_chemical_symbols()], np.int32)


def _lay_out(
    hops: list[Hop], cutoff: float, dtype: type, owned: int, extra: tuple[int, int], least: tuple[int, int]
) -> BuiltGraph:
    """Pad every hop that is not empty by a dummy row and ``extra`` (rows, edges), hop 0 to ``least`` at least."""
    layers = len(hops) - 1
    rows = [len(hop.species) + 1 + extra[0] if len(hop.species) else 0 for hop in hops]
    rows[0] = max(rows[0], least[0])
    first_row = np.concatenate([[0], np.cumsum(rows)])
    place = np.concatenate([first_row[h] + np.arange(len(hop.species)) for h, hop in enumerate(hops)]).astype(int)
    species = np.zeros(first_row[-1], np.int32)
    species[place] = np.concatenate([hop.species for hop in hops])

    laid_out: list[Edge] = []
    first_edge = [0]
    for h, hop in enumerate(hops[:-1]):
        laid_out += [(place[center], place[neighbor], *rest) for center, neighbor, *rest in hop.edges]
        dummy = first_row[h + 1] - 1
        padding = extra[1] if rows[h] else 0
        if h == 0:
            padding = max(padding, least[1] - len(hop.edges))
        laid_out += [(dummy, dummy, np.array([1.01 * cutoff, 0.0, 0.0]), -1, -1)] * padding
        first_edge.append(len(laid_out))
    centers, neighbors, vectors, at_center, at_neighbor = zip(*laid_out, strict=True)
    graph = Graph(
        species=species,
        vectors=np.array(vectors, dtype),
        centers=np.array(centers, np.int32),
        neighbors=np.array(neighbors, np.int32),
        owned=np.int32(owned),
        rows=tuple(int(first_row[layers + 1 - layer]) for layer in range(layers + 1)),
        edges=(first_edge[-1], *(first_edge[layers + 1 - layer] for layer in range(1, layers + 1))),
    )
    return BuiltGraph(graph, np.array(at_center), np.array(at_neighbor))


def folded(
    atoms: ase.Atoms,
    elements: Sequence[str],
    cutoff: float,
    layers: int,
    dtype: type = np.float64,
    *,
    extra: tuple[int, int] = (0, 1),
    least: tuple[int, int] = (0, 0),
) -> BuiltGraph:
    """One hop: every periodic image is its atom's own row."""
    i, j, _, vectors = _pairs(atoms, cutoff)
    edges = list(zip(i.tolist(), j.tolist(), vectors, i.tolist(), j.tolist(), strict=True))
    empty = [Hop(np.zeros(0, np.int32), []) for _ in range(layers)]
    return _lay_out([Hop(species_of(atoms, elements), edges), *empty], cutoff, dtype, len(atoms), extra, least)


def with_ghosts(
    atoms: ase.Atoms,
    elements: Sequence[str],
    cutoff: float,
    layers: int,
    owned: int,
    dtype: type = np.float64,
    *,
    extra: tuple[int, int] = (0, 1),
) -> BuiltGraph:
    """The first ``owned`` atoms in hop 0; every other atom and every periodic image is a ghost row, by hops."""
    i, j, shifts, vectors = _pairs(atoms, cutoff)
    species = species_of(atoms, elements)
    edges_of = [np.flatnonzero(i == atom) for atom in range(len(atoms))]
    frontier = [(atom, (0, 0, 0)) for atom in range(owned)]
    row = {key: n for n, key in enumerate(frontier)}
    hops = []
    for hop in range(layers + 1):
        edges: list[Edge] = []
        following = []
        for atom, image in frontier if hop < layers else []:
            for e in edges_of[atom]:
                key = (int(j[e]), tuple(int(shift) for shift in np.add(image, shifts[e])))
                if key not in row:
                    row[key] = len(row)
                    following.append(key)
                edges.append((row[atom, image], row[key], vectors[e], atom, int(j[e])))
        hops.append(Hop(species[[atom for atom, _ in frontier]], edges))
        frontier = following
    return _lay_out(hops, cutoff, dtype, owned, extra, (0, 0))


def forces_and_stress(built: BuiltGraph, gradient: np.ndarray, atoms: ase.Atoms) -> tuple[np.ndarray, np.ndarray]:
    """Forces [atoms, 3] and stress [6] (ASE's Voigt order and sign) from d(energy)/d(vectors), in double.

    The stress of a structure that is not periodic in all directions is 0.
    """
    real = built.real
    gradient = np.asarray(gradient, np.float64)[real]
    vectors = np.asarray(built.graph.vectors, np.float64)[real]
    forces = np.zeros((len(atoms), 3))
    np.add.at(forces, built.centers[real], gradient)
    np.add.at(forces, built.neighbors[real], -gradient)
    if not atoms.pbc.all():
        return forces, np.zeros(6)
    virial = np.einsum("ea,eb->ab", vectors, gradient) / atoms.get_volume()
    return forces, virial[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
