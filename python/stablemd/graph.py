# SPDX-License-Identifier: BSD-3-Clause
"""The graph that a potential sees: what every exported energy function takes, and what engines fill in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Graph:
    """Atoms and edges of one evaluation, as arrays in the order of docs/bundle.md.

    Rows are ordered by hop (owned atoms first), edges by centre, so that each layer works on a prefix. Layers are
    numbered from 1; ``rows[0]`` counts all rows, ``rows[l]`` the rows that layer l computes, ``edges[l]`` the edges
    that layer l uses (``edges[0] == edges[1]``, all edges). The neighbour of an edge of layer l lies below
    ``rows[l - 1]``.

    Padding edges join a dummy row to itself with a vector just beyond the cutoff; no real edge touches a dummy row.
    """

    species: Any  #: int32 [rows[0]], index into the model's elements
    vectors: Any  #: float [edges[1], 3], r_neighbour - r_centre in the model's length unit
    centers: Any  #: int32 [edges[1]], ascending
    neighbors: Any  #: int32 [edges[1]]
    owned: Any  #: int32 scalar, how many leading rows count in the energy
    rows: tuple[int, ...]  #: (N, C_1, ..., C_L), static
    edges: tuple[int, ...]  #: (E_1, E_1, ..., E_L), static
    #: numbers of the whole structure, such as its charge: float scalars by name, those of :class:`GraphInput`
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        return len(self.rows) - 1
