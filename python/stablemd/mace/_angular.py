# SPDX-License-Identifier: BSD-3-Clause
"""Angular momentum in the real basis that MACE uses: coupling coefficients and spherical harmonics.

The real basis of degree l is ordered m = -l..l with y as the polar axis, so that degree 1 is (x, y, z). A coefficient
tensor ``C[m1, m2, m3]`` couples degrees l1 and l2 to l3; for fixed m3 the sum of its squares over m1 and m2 is 1.
"""

from __future__ import annotations

from functools import cache
from math import factorial, sqrt
from typing import Any

import jax.numpy as jnp
import numpy as np


def _clebsch_gordan(l1: int, m1: int, l2: int, m2: int, l3: int, m3: int) -> float:
    """<l1 m1 l2 m2 | l3 m3> with the Condon-Shortley phase, from Racah's formula."""
    f = factorial
    triangle = f(l3 + l1 - l2) * f(l3 - l1 + l2) * f(l1 + l2 - l3) / f(l1 + l2 + l3 + 1)
    states = f(l3 + m3) * f(l3 - m3) * f(l1 - m1) * f(l1 + m1) * f(l2 - m2) * f(l2 + m2)
    first = max(0, l2 - l3 - m1, l1 - l3 + m2)
    last = min(l1 + l2 - l3, l1 - m1, l2 + m2)
    series = sum(
        (-1) ** k
        / (f(k) * f(l1 + l2 - l3 - k) * f(l1 - m1 - k) * f(l2 + m2 - k) * f(l3 - l2 + m1 + k) * f(l3 - l1 - m2 + k))
        for k in range(first, last + 1)
    )
    return sqrt((2 * l3 + 1) * triangle) * sqrt(states) * series


def _complex_from_real(degree: int) -> np.ndarray:
    """Unitary [2l+1, 2l+1] from the real to the complex basis; the phase (-i)^l makes real couplings real."""
    matrix = np.zeros((2 * degree + 1, 2 * degree + 1), complex)
    matrix[degree, degree] = 1
    for m in range(1, degree + 1):
        sign = (-1) ** m
        matrix[degree - m, degree + m], matrix[degree - m, degree - m] = 1 / sqrt(2), -1j / sqrt(2)
        matrix[degree + m, degree + m], matrix[degree + m, degree - m] = sign / sqrt(2), 1j * sign / sqrt(2)
    return (-1j) ** degree * matrix


@cache
def coupling(l1: int, l2: int, l3: int) -> np.ndarray:
    """Real coupling coefficients, float64 [2*l1+1, 2*l2+1, 2*l3+1]; read-only."""
    if not abs(l1 - l2) <= l3 <= l1 + l2:
        raise ValueError(f"degrees {l1} and {l2} do not couple to {l3}")
    table = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
    for m1 in range(-l1, l1 + 1):
        for m2 in range(max(-l2, -l3 - m1), min(l2, l3 - m1) + 1):
            table[l1 + m1, l2 + m2, l3 + m1 + m2] = _clebsch_gordan(l1, m1, l2, m2, l3, m1 + m2)
    to1, to2, to3 = (_complex_from_real(degree) for degree in (l1, l2, l3))
    real = np.einsum("ai,bj,ck,abc->ijk", to1, to2, to3.conj(), table, optimize=True).real.copy()
    real[np.abs(real) < 1e-14] = 0
    real.flags.writeable = False
    return real


def nonzeros(tensor: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    """The entries of a coefficient tensor that are not zero, as (index, value)."""
    return [(tuple(int(i) for i in index), float(tensor[tuple(index)])) for index in np.argwhere(tensor)]


@cache
def _ladder(degree: int) -> np.ndarray:
    """[2l-1, 3, 2l+1]: how harmonics of degree l-1 and the unit vector make those of degree l."""
    table = coupling(degree - 1, 1, degree)
    # On the polar axis only m = 0 survives, with the value sqrt(2l+1).
    return table * (sqrt((2 * degree + 1) / (2 * degree - 1)) / table[degree - 1, 1, degree])


def spherical_harmonics(max_degree: int, x: Any, y: Any, z: Any) -> list[Any]:
    """Real spherical harmonics of unit vectors up to ``max_degree``, the squares of each degree summing to 2l+1.

    ``x``, ``y`` and ``z`` are arrays of one shape; returns (max_degree+1)^2 arrays of that shape, by degree, then m.
    Obtained by the recursion Y_l ~ Y_{l-1} (x) r in the real basis.
    """
    unit = (x, y, z)
    level = [jnp.ones_like(x)]
    harmonics = list(level)
    for degree in range(1, max_degree + 1):
        terms: list[list[Any]] = [[] for _ in range(2 * degree + 1)]
        for (lower, axis, upper), value in nonzeros(_ladder(degree)):
            product = unit[axis] if degree == 1 else level[lower] * unit[axis]
            terms[upper].append(value * product)
        level = [sum(part[1:], start=part[0]) for part in terms]
        harmonics += level
    return harmonics
