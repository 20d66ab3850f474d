# SPDX-License-Identifier: BSD-3-Clause
"""The reduced coupling basis: orthogonal, symmetric, equivariant polynomials of one channel's features.

A file in this basis stores one weight per basis polynomial and none of the polynomials, so they must be derived exactly
as cuequivariance (0.13, its ``reduced_symmetric_tensor_product_basis``) orders, signs and mixes them:

1. powers of a single degree l: couple two smaller powers, intersect with the symmetric tensors, orthonormalise the rows
   of that projector in order (this fixes the sign), then make the rows sparse;
2. products of powers of different degrees: couple from left to right, powers in descending lexicographic order;
3. rows of one output irrep in order of appearance, made sparse pairwise, then scaled together.

Irreps here are pairs (l, parity); the features are 0e+1o+2e+..., so a power of degree l has parity (-1)^(l n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, combinations_with_replacement, permutations
from math import factorial, prod

import numpy as np

from ._angular import coupling

Irrep = tuple[int, int]
#: by irrep: [multiplicity, one axis per factor..., 2l+1]
Basis = dict[Irrep, np.ndarray]

_TINY = 1e-9


def _order(irrep: Irrep) -> tuple[int, int]:
    """Sort key: by degree, natural parity (-1)^l first."""
    degree, parity = irrep
    return degree, -parity * (-1) ** degree


def _couple(left: Basis, right: Basis) -> Basis:
    """All couplings of two bases, their factors side by side, in the order left irrep, right irrep, output degree."""
    parts: dict[Irrep, list[np.ndarray]] = {}
    for (l1, p1), a in left.items():
        for (l2, p2), b in right.items():
            for l3 in range(abs(l1 - l2), l1 + l2 + 1):
                pairs = np.einsum("uxi,vyj,ijk->uvxyk", _flat(a), _flat(b), coupling(l1, l2, l3), optimize=True)
                shape = (a.shape[0] * b.shape[0], *a.shape[1:-1], *b.shape[1:-1], 2 * l3 + 1)
                parts.setdefault((l3, p1 * p2), []).append(pairs.reshape(shape))
    return {irrep: np.concatenate(parts[irrep]) for irrep in sorted(parts, key=_order)}


def _flat(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(rows.shape[0], -1, rows.shape[-1])


def _symmetrise(tensor: np.ndarray, factors: int) -> np.ndarray:
    """Mean over the permutations of the axes 1..factors."""
    axes = range(1, factors + 1)
    total = sum(np.transpose(tensor, (0, *order)) for order in permutations(axes))
    return total / factorial(factors)


def _orthonormal_rows(matrix: np.ndarray) -> np.ndarray:
    """Gram-Schmidt over the rows in order; rows that depend on earlier ones are dropped."""
    basis: list[np.ndarray] = []
    for row in matrix:
        rest = row.copy()
        for unit in basis:
            rest -= (unit @ rest) * unit
        norm = np.linalg.norm(rest)
        if norm > 1e-5:
            basis.append(rest / norm)
    return np.array(basis).reshape(len(basis), matrix.shape[1])


@cache
def _dense_power(degree: int, factors: int) -> Basis:
    """Symmetric equivariant tensors with ``factors`` indices of one degree, before they are made sparse."""
    parity = (-1) ** degree
    size = 2 * degree + 1
    if factors == 0:
        return {(0, 1): np.ones((1, 1))}
    if factors == 1:
        return {(degree, parity): np.eye(size)[None]}
    half = 2 if factors > 2 else 1
    products = _couple(_dense_power(degree, half), _dense_power(degree, factors - half))
    basis = {}
    for irrep, rows in products.items():
        first = rows[..., 0]
        overlap = first.reshape(len(rows), -1) @ _symmetrise(first, factors).reshape(len(rows), -1).T
        values, vectors = np.linalg.eigh(overlap)
        inside = vectors[:, values > 1 - 1e-6]
        mixing = _orthonormal_rows(inside @ inside.T)
        if len(mixing):
            basis[irrep] = _clean(np.tensordot(mixing, rows, axes=1))
    return basis


def _clean(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < _TINY, 0.0, values)


@cache
def _power(degree: int, factors: int) -> Basis:
    basis = _dense_power(degree, factors)
    return {irrep: _sparse_rows(rows, np.ones(rows.shape[1:])) for irrep, rows in basis.items()}


def _most_common_ratio(ratios: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The ratio with the largest count, the smallest of those that tie, and its count."""
    order = np.argsort(ratios, kind="stable")
    ratios, counts = ratios[order], counts[order]
    starts = np.flatnonzero(np.diff(ratios, prepend=-np.inf) > _TINY)
    totals = np.add.reduceat(counts, starts)
    best = int(np.argmax(totals))
    return float(ratios[starts[best]]), float(totals[best])


def _sparse_pair(row0: np.ndarray, row1: np.ndarray, counts: np.ndarray) -> tuple[int, np.ndarray] | bool:
    """Which of two rows to replace, and by what, to have fewer nonzeros; else whether the pair overlaps at all."""
    in0, in1 = row0 != 0, row1 != 0
    both = in0 & in1
    if not both.any():
        return False
    ratio, common = _most_common_ratio(row0[both] / row1[both], counts[both])
    only0, only1 = counts[in0 & ~in1].sum(), counts[in1 & ~in0].sum()
    if common <= min(only0, only1):
        return True
    which = 1 if only0 < only1 else 0
    mixed = _clean(row0 - ratio * row1)
    norm = np.sqrt((counts * (row1 if which else row0) ** 2).sum())
    return which, mixed * (norm / np.sqrt((counts * mixed**2).sum()))


def _sparse_rows(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Make rows sparser by pairwise elimination, visiting pairs in the order of a graph that shrinks as pairs settle.

    ``counts`` [like a row] says how often each coefficient occurs in the dense tensor.
    """
    flat = rows.reshape(len(rows), -1).copy()
    weight = counts.reshape(-1)
    graph: dict[int, dict[int, None]] = {row: {} for row in range(len(flat))}
    for a, b in combinations(range(len(flat)), 2):
        _join(graph, a, b)
    for _ in range(20):
        graph, changed = _sparsify_once(flat, weight, graph)
        if not changed:
            break
    return flat.reshape(rows.shape)


def _join(graph: dict[int, dict[int, None]], a: int, b: int) -> None:
    graph[a][b] = None
    graph[b][a] = None


def _pairs(graph: dict[int, dict[int, None]]) -> Iterator[tuple[int, int]]:
    done = set()
    for a, others in graph.items():
        yield from ((a, b) for b in others if b not in done)
        done.add(a)


def _sparsify_once(
    flat: np.ndarray, weight: np.ndarray, graph: dict[int, dict[int, None]]
) -> tuple[dict[int, dict[int, None]], bool]:
    following: dict[int, dict[int, None]] = {row: {} for row in graph}
    changed = False
    for a, b in _pairs(graph):
        outcome = _sparse_pair(flat[a], flat[b], weight)
        if isinstance(outcome, tuple):
            which, row = outcome
            flat[b if which else a] = row
            changed = True
            _join(following, a, b)
            for other in graph[a]:
                if other != b:
                    _join(following, other, b)
            for other in graph[b]:
                if other != a:
                    _join(following, other, a)
        elif outcome:
            _join(following, a, b)
    return following, changed


def _compositions(parts: int, total: int) -> Iterator[tuple[int, ...]]:
    """All ways to write ``total`` as ``parts`` counts, in descending lexicographic order."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total, -1, -1):
        for rest in _compositions(parts - 1, total - first):
            yield (first, *rest)


def monomials(size: int, degree: int) -> list[tuple[int, ...]]:
    """Ascending index tuples of all monomials of one degree in ``size`` variables."""
    return list(combinations_with_replacement(range(size), degree))


def _arrangements(indices: Sequence[int]) -> int:
    """In how many different orders these indices can stand."""
    return factorial(len(indices)) // prod(factorial(list(indices).count(i)) for i in set(indices))


def _as_polynomial(rows: np.ndarray, powers: Sequence[int], columns: dict[tuple[int, ...], int]) -> np.ndarray:
    """Coefficients [rows, 2l+1, monomials] of the symmetrised tensor whose factors are ``powers[l]`` times degree l."""
    offsets = [degree**2 for degree, power in enumerate(powers) for _ in range(power)]
    orders = factorial(sum(powers)) // prod(factorial(power) for power in powers)
    out = np.zeros((rows.shape[0], rows.shape[-1], len(columns)))
    for index in np.argwhere(np.any(rows != 0, axis=(0, -1))):
        column = columns[tuple(sorted(int(i) + offset for i, offset in zip(index, offsets, strict=True)))]
        out[:, :, column] += rows[(slice(None), *index)]
    # A sum over `orders` arrangements divided by the root of their number.
    return out * np.sqrt(orders)


@cache
def reduced_basis(max_degree: int, degree: int, output: int) -> np.ndarray:
    """The basis polynomials of one degree for one output irrep of natural parity.

    Float64 [paths, 2*output+1, monomials]: coefficients over :func:`monomials` of the (max_degree+1)^2 features.
    """
    columns = {indices: i for i, indices in enumerate(monomials((max_degree + 1) ** 2, degree))}
    arrangements = np.array([_arrangements(indices) for indices in columns], float)
    wanted = (output, (-1) ** output)
    parts = []
    for powers in _compositions(max_degree + 1, degree):
        product: Basis | None = None
        for ell, power in enumerate(powers):
            if power:
                term = _power(ell, power)
                product = term if product is None else _couple(product, term)
        rows = product.get(wanted) if product else None
        if rows is not None:
            parts.append(_as_polynomial(rows, powers, columns))
    if not parts:
        return np.zeros((0, 2 * output + 1, len(columns)))
    basis = np.concatenate(parts)
    # The dense tensor holds a monomial's coefficient in equal shares at all of its arrangements.
    dense = _clean(basis / arrangements)
    dense = _sparse_rows(dense, np.broadcast_to(arrangements, dense.shape[1:]))
    scale = np.sqrt((arrangements * dense**2).sum() / (2 * output + 1))
    return dense * arrangements / scale
