# SPDX-License-Identifier: BSD-3-Clause
"""The symmetric contraction as a sum of sparse polynomials.

Any coupling basis that a file holds spans the same space: equivariant polynomials of the features of one channel. A
monomial's type is the sorted degrees of its factors, and couplings of different types do not share monomials. So each
type gets its own small basis, picked from the rows that the file gives, and the file's weights are re-expressed in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ._reduced import monomials

#: (indices of the features that are multiplied, coefficient)
Term = tuple[tuple[int, ...], float]


@dataclass(frozen=True)
class Polynomials:
    """Basis polynomials of one output irrep, with one weight each per element and channel."""

    components: int  #: of the output irrep
    #: [path][component]: terms
    terms: tuple[tuple[tuple[Term, ...], ...], ...]
    weights: np.ndarray  #: float64 [elements, paths, channels]


def _feature_degrees(size: int) -> np.ndarray:
    return np.floor(np.sqrt(np.arange(size))).astype(int)


def _type_columns(size: int, degree: int) -> dict[tuple[int, ...], np.ndarray]:
    """Columns of ``monomials(size, degree)`` by type."""
    degrees = _feature_degrees(size)
    columns: dict[tuple[int, ...], list[int]] = {}
    for column, indices in enumerate(monomials(size, degree)):
        columns.setdefault(tuple(degrees[i] for i in indices), []).append(column)
    return {kind: np.array(members) for kind, members in columns.items()}


def _independent_rows(matrix: np.ndarray) -> list[int]:
    """A maximal set of independent rows, sparse ones first."""
    chosen: list[int] = []
    span = np.zeros((0, matrix.shape[1]))
    for row in np.argsort(np.count_nonzero(matrix, axis=1), kind="stable"):
        rest = matrix[row] - span.T @ (span @ matrix[row])
        rest -= span.T @ (span @ rest)
        norm = np.linalg.norm(rest)
        if norm > 1e-5 * max(1.0, np.linalg.norm(matrix[row])):
            span = np.vstack([span, rest / norm])
            chosen.append(int(row))
    return chosen


def _terms(rows: np.ndarray, names: Sequence[tuple[int, ...]]) -> list[tuple[tuple[Term, ...], ...]]:
    """Rows [paths, components, monomials] as terms."""
    return [
        tuple(tuple((names[k], float(part[k])) for k in np.flatnonzero(part)) for part in components)
        for components in rows
    ]


def from_coefficients(parts: Sequence[tuple[int, np.ndarray, np.ndarray]], size: int) -> Polynomials:
    """Polynomials from the coefficients and weights of each polynomial degree.

    Each part is (polynomial degree, coefficients [paths, components, monomials], weights [elements, paths, channels])
    with the columns of ``monomials(size, degree)``.
    """
    terms: list[tuple[tuple[Term, ...], ...]] = []
    weights: list[np.ndarray] = []
    for degree, basis, weight in parts:
        names = monomials(size, degree)
        for columns in _type_columns(size, degree).values():
            block = basis[:, :, columns]
            used = np.flatnonzero(np.any(np.abs(block) > 1e-12, axis=(1, 2)))
            if not len(used):
                continue
            matrix = block[used].reshape(len(used), -1)
            chosen = _independent_rows(matrix)
            mixing = np.linalg.lstsq(matrix[chosen].T, matrix.T, rcond=None)[0]
            mixing[np.abs(mixing) < 1e-14] = 0
            terms += _terms(block[used[chosen]], [names[c] for c in columns])
            weights.append(np.einsum("kp,epc->ekc", mixing, weight[:, used]))
    elements, _, channels = parts[0][2].shape
    weights.append(np.zeros((elements, 0, channels)))
    return Polynomials(parts[0][1].shape[1], tuple(terms), np.concatenate(weights, axis=1))


def dense_to_coefficients(tensor: np.ndarray, degree: int) -> np.ndarray:
    """Coefficients [paths, components, monomials] of a dense tensor [components, size (degree times), paths]."""
    size = tensor.shape[1]
    names = monomials(size, degree)
    column = {indices: i for i, indices in enumerate(names)}
    out = np.zeros((tensor.shape[-1], tensor.shape[0], len(names)))
    for index in np.argwhere(np.any(tensor != 0, axis=(0, -1))):
        values = tensor[(slice(None), *index)]
        out[:, :, column[tuple(sorted(int(i) for i in index))]] += values.T
    out[np.abs(out) < 1e-12] = 0
    return out
