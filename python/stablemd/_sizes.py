# SPDX-License-Identifier: BSD-3-Clause
"""The sizes that a program depends on: symbols N, C1..CL, E1..EL of docs/bundle.md, and sets of values for tracing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

MAX_LAYERS = 8

# Values for tracing are primes in this range: larger than the widths of most models, so that a size is seldom equal to
# one of their dimensions, and without common factors, so that ratios of sizes cannot look like whole numbers.
_SMALLEST, _LARGEST = 101, 4000


@cache
def _primes() -> tuple[int, ...]:
    composite = {m for p in range(2, int(_LARGEST**0.5) + 1) for m in range(p * p, _LARGEST, p)}
    return tuple(p for p in range(_SMALLEST, _LARGEST) if p not in composite)


def symbols(layers: int) -> tuple[str, ...]:
    """Names of the sizes of a program with ``layers`` layers: ``("N", "C1", ..., "E1", ...)``."""
    numbers = range(1, layers + 1)
    return ("N", *(f"C{i}" for i in numbers), *(f"E{i}" for i in numbers))


@dataclass(frozen=True)
class Sizes:
    """One value per symbol. ``rows`` is (N, C1, ..., CL), ``edges`` is (E1, ..., EL); both descend."""

    rows: tuple[int, ...]
    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.edges) + 1:
            raise ValueError(f"{len(self.edges)} layers need {len(self.edges) + 1} row counts, got {len(self.rows)}")
        for counts in (self.rows, self.edges):
            if any(a < b for a, b in pairwise(counts)) or counts[-1] < 0:
                raise ValueError(f"sizes must descend and not be negative, got {counts}")

    @classmethod
    def of_hops(cls, rows: Sequence[int], edges: Sequence[int]) -> Sizes:
        """Sizes of a graph whose hop h has ``rows[h]`` rows (h = 0..L) and ``edges[h]`` edges (h = 0..L-1)."""
        layers = len(edges)
        computed = [sum(rows[: layers - layer + 1]) for layer in range(1, layers + 1)]
        used = [sum(edges[: layers - layer + 1]) for layer in range(1, layers + 1)]
        return cls((sum(rows), *computed), tuple(used))

    @property
    def layers(self) -> int:
        return len(self.edges)

    def values(self) -> dict[str, int]:
        return dict(zip(symbols(self.layers), (*self.rows, *self.edges), strict=True))


def tracing_sets(layers: int, count: int, start: int = 0) -> list[Sizes]:
    """``count`` sets of distinct primes, the same ones in every process; in every other one edges outnumber rows."""
    return [_tracing_set(layers, number) for number in range(start, start + count)]


def _tracing_set(layers: int, number: int) -> Sizes:
    draw = random.Random(number)
    chosen = sorted(draw.sample(_primes(), 2 * layers + 1), reverse=True)
    if number % 2 == 0:
        edges, rows = chosen[:layers], chosen[layers:]
    else:
        rows, edges = chosen[: layers + 1], chosen[layers + 1 :]
    return Sizes(tuple(rows), tuple(edges))
