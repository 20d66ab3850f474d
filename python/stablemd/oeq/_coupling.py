# SPDX-License-Identifier: BSD-3-Clause
"""Real Clebsch-Gordan coefficients."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import factorial, sqrt

import numpy as np


def _complex_coefficient(l1: int, m1: int, l2: int, m2: int, l3: int) -> float:
    """⟨l1 m1 l2 m2 | l3 m1+m2⟩ with the Condon-Shortley phase, by Racah's formula (Edmonds 1957, eq. 3.6.11)."""
    m3 = m1 + m2
    if abs(m3) > l3:
        return 0.0
    f = factorial
    square = Fraction(
        (2 * l3 + 1) * f(l1 + l2 - l3) * f(l1 - l2 + l3) * f(-l1 + l2 + l3),
        f(l1 + l2 + l3 + 1),
    ) * (f(l1 + m1) * f(l1 - m1) * f(l2 + m2) * f(l2 - m2) * f(l3 + m3) * f(l3 - m3))
    total = Fraction(0)
    for k in range(max(0, l2 - l3 - m1, l1 - l3 + m2), min(l1 + l2 - l3, l1 - m1, l2 + m2) + 1):
        product = f(k) * f(l1 + l2 - l3 - k) * f(l1 - m1 - k) * f(l2 + m2 - k) * f(l3 - l2 + m1 + k)
        total += Fraction((-1) ** k, product * f(l3 - l1 - m2 + k))
    return (1 if total > 0 else -1) * sqrt(square * total * total)


def _real_from_complex(degree: int) -> np.ndarray:
    """Weight of the complex harmonic m (row) in each real one (column), times (-i)^l, so that couplings are real."""
    matrix = np.zeros((2 * degree + 1, 2 * degree + 1), complex)
    matrix[degree, degree] = 1
    for m in range(1, degree + 1):
        sign = (-1) ** m
        matrix[degree - m, [degree + m, degree - m]] = [sqrt(0.5), -1j * sqrt(0.5)]
        matrix[degree + m, [degree + m, degree - m]] = [sign * sqrt(0.5), 1j * sign * sqrt(0.5)]
    return (-1j) ** degree * matrix


@cache
def real_clebsch_gordan(l1: int, l2: int, l3: int) -> np.ndarray:
    """Coupling of real spherical harmonics of degrees ``l1``, ``l2`` to ``l3``, OpenEquivariance's.

    Returns float64 [2 l1 + 1, 2 l2 + 1, 2 l3 + 1] with Frobenius norm 1; components run m = -l..l. e3nn's ``wigner_3j``
    has the other sign for some degrees whose sum is odd. Read-only. Raises ValueError where the triangle rule forbids
    the coupling.
    """
    if not abs(l1 - l2) <= l3 <= l1 + l2:
        raise ValueError(f"degrees {l1}, {l2}, {l3} break the triangle rule")
    complex_values = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
    for m1 in range(-l1, l1 + 1):
        for m2 in range(max(-l2, -l3 - m1), min(l2, l3 - m1) + 1):
            complex_values[l1 + m1, l2 + m2, l3 + m1 + m2] = _complex_coefficient(l1, m1, l2, m2, l3)
    q1, q2, q3 = (_real_from_complex(degree) for degree in (l1, l2, l3))
    values = np.einsum("ai,bj,ck,abc->ijk", q1, q2, q3.conj(), complex_values).real
    values /= np.linalg.norm(values)
    values[np.abs(values) < 1e-15] = 0
    values.setflags(write=False)
    return values
