# SPDX-License-Identifier: BSD-3-Clause
"""From atoms to graphs: neighbour lists, hops of ghosts, and sums over edges. NumPy only, in double precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._errors import ArgumentError
from ._sizes import Sizes


@dataclass(frozen=True)
class HopGraph:
    """A graph without padding: rows and edges in the order of docs/bundle.md.

    ``nodes[h]`` rows belong to hop h = 0..L, ``edges[h]`` edges to centres in hop h = 0..L-1.
    """

    species: np.ndarray  #: int32 [rows]
    centers: np.ndarray  #: int64 [edges], ascending
    neighbors: np.ndarray  #: int64 [edges]
    vectors: np.ndarray  #: float64 [edges, 3], r_neighbour - r_centre
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    atoms: np.ndarray  #: int64 [rows], the atom that a row stands for

    @property
    def owned(self) -> int:
        return self.nodes[0]

    @property
    def sizes(self) -> Sizes:
        return Sizes.of_hops(self.nodes, self.edges)


_FARTHEST = 1e9
_MOST_IMAGES = 1e6


def _images(periodic: np.ndarray, cutoff: float) -> float:
    """How many cells the neighbours of an atom may lie in; ``periodic`` [1..3, 3] are independent vectors."""
    if len(periodic) == 0:
        return 1.0
    # A vector's reciprocal has the length of one over the distance of its planes.
    heights = 1 / np.linalg.norm(np.linalg.pinv(periodic, rcond=1e-300), axis=0)
    return float(np.prod(2 * np.ceil(cutoff / heights) + 1))


def independent_vectors(cell: np.ndarray, directions: np.ndarray | slice = slice(None)) -> int:
    """How many of the cell's vectors in these directions are linearly independent."""
    cell = double(cell, "the cell")
    if not np.isfinite(cell).all():
        raise ArgumentError("the cell is not finite")
    return int(np.linalg.matrix_rank(cell[directions]))


def double(array: Any, what: str) -> np.ndarray:
    """The array in double precision, whatever type of numbers and order in memory it has; not written to.

    ASE keeps what a reader or a user has put into ``atoms.arrays``: float32, integers, columns.
    """
    given = np.asarray(array)
    try:
        if np.iscomplexobj(given):
            raise TypeError
        return np.ascontiguousarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} must be real numbers, got an array of {given.dtype}") from None


def neighbor_list(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Centres, neighbours, vectors (r_neighbour - r_centre) and cell shifts of all pairs within ``cutoff``.

    Every pair appears in both directions and with every periodic image, sorted by centre. Directions that are not
    periodic may have a zero cell vector. Arrays may be of any type of numbers; the results are in double precision.
    """
    positions, cell, pbc = double(positions, "positions"), double(cell, "the cell"), np.array(pbc, dtype=bool)
    if len(positions) == 0:
        return np.zeros(0, int), np.zeros(0, int), np.zeros((0, 3)), np.zeros((0, 3), int)
    if not np.isfinite(positions).all():
        atom = int(np.flatnonzero(~np.isfinite(positions).all(axis=1))[0])
        raise ArgumentError(f"the position of atom {atom} is not finite: {positions[atom].tolist()}")
    independent = independent_vectors(cell, pbc)
    if max(np.abs(positions).max(), np.abs(cell).max()) > _FARTHEST:
        raise ArgumentError(f"positions or cell are larger than {_FARTHEST:g}, where distances lose all precision")
    if independent < pbc.sum():
        raise ArgumentError("the cell vectors of the periodic directions are zero or linearly dependent")
    images = _images(cell[pbc], cutoff)
    if images > _MOST_IMAGES:
        raise ArgumentError(f"the cell is so thin that an atom would have {images:.1e} images within the cutoff")
    if _is_too_flat_for_vesin(positions, cell, pbc, cutoff):
        from ase.neighborlist import primitive_neighbor_list

        found = primitive_neighbor_list("ijDS", pbc, cell, positions, cutoff)
        return found[0].astype(int), found[1].astype(int), found[2], found[3].astype(int)
    from vesin import NeighborList

    finder = NeighborList(cutoff=cutoff, full_list=True, sorted=True, n_threads=1)
    centers, neighbors, vectors, shifts = finder.compute(positions, cell, pbc, "ijDS")
    return centers.astype(int), neighbors.astype(int), vectors, shifts.astype(int)


def _is_too_flat_for_vesin(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> bool:
    """vesin 0.5 divides by zero where it coarsens its boxes, at most 1e5, until none is left in a thin direction."""
    extents = np.where(pbc, np.linalg.norm(cell, axis=1), np.ptp(positions, axis=0).max())
    smallest = np.where(pbc, extents, np.ptp(positions, axis=0))
    boxes = np.prod(np.maximum(1.0, extents / cutoff))
    return bool(boxes > 5e4 and max(1.0, smallest.min() / cutoff) * (1e5 / boxes) ** (1 / 3) < 2)


def fold_graph(
    species: np.ndarray, positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float, layers: int
) -> HopGraph:
    """The graph in which every periodic image is its atom's own row: hop 0 holds everything."""
    centers, neighbors, vectors, _ = neighbor_list(positions, cell, pbc, cutoff)
    rest = (0,) * (layers - 1)
    rows = np.arange(len(species))
    return HopGraph(species, centers, neighbors, vectors, (len(rows), 0, *rest), (len(centers), *rest), rows)


def part_graph(graph: HopGraph, owned: np.ndarray, layers: int) -> HopGraph:
    """What a rank that owns the atoms ``owned`` would see of a folded graph: the others become ghosts, hop by hop.

    Energies of owned rows are those of the whole graph; gradients of all parts add up to the whole's.
    """
    hop = np.full(len(graph.species), layers + 1)
    hop[owned] = 0
    for number in range(1, layers + 1):
        reached = graph.neighbors[hop[graph.centers] == number - 1]
        hop[reached] = np.minimum(hop[reached], number)
    rows = np.argsort(hop, kind="stable")[: np.count_nonzero(hop <= layers)]
    row_of = np.full(len(hop), -1)
    row_of[rows] = np.arange(len(rows))
    used = np.flatnonzero(hop[graph.centers] < layers)
    used = used[np.argsort(row_of[graph.centers[used]], kind="stable")]
    return HopGraph(
        graph.species[rows],
        row_of[graph.centers[used]],
        row_of[graph.neighbors[used]],
        graph.vectors[used],
        tuple(np.bincount(hop[rows], minlength=layers + 1).tolist()),
        tuple(np.bincount(hop[graph.centers[used]], minlength=layers).tolist()),
        graph.atoms[rows],
    )


def edge_sums(index: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
    """``out[k] = sum of values[e] with index[e] == k``, in double precision; values [edges, n]."""
    columns = [np.bincount(index, weights=column, minlength=length) for column in values.T]
    return np.stack(columns, axis=1) if columns else np.zeros((length, 0))


def edge_forces(graph: HopGraph, gradient: np.ndarray, atoms: int) -> np.ndarray:
    """Forces on atoms from dE/d(vectors) [edges, 3]: +gradient on the centre, -gradient on the neighbour.

    What acts on a row acts on its atom. float64 [atoms, 3].
    """
    centers, neighbors = graph.atoms[graph.centers], graph.atoms[graph.neighbors]
    return edge_sums(centers, gradient, atoms) - edge_sums(neighbors, gradient, atoms)


def edge_virials(graph: HopGraph, gradient: np.ndarray, atoms: int) -> np.ndarray:
    """dE/d(strain) per atom in Voigt order (xx, yy, zz, yz, xz, xy); half of each edge's goes to each end.

    The sum over atoms is the derivative of the energy with respect to the symmetric strain. float64 [atoms, 6].
    """
    g, d = gradient.T, graph.vectors.T
    shear = [0.5 * (g[a] * d[b] + g[b] * d[a]) for a, b in ((1, 2), (0, 2), (0, 1))]
    halves = 0.5 * np.stack([*(g * d), *shear], axis=1)
    centers, neighbors = graph.atoms[graph.centers], graph.atoms[graph.neighbors]
    return edge_sums(centers, halves, atoms) + edge_sums(neighbors, halves, atoms)
