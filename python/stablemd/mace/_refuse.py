# SPDX-License-Identifier: BSD-3-Clause
"""Checks that a model's configuration is one that we evaluate; everything else is refused by name."""

from __future__ import annotations

from typing import Any

from .._errors import FormatError

#: Harmonics beyond are no use to any published model and would make export take hours.
MAX_ELL = 6

BASES = ("bessel", "gaussian", "chebyshev")

#: (multiplicity, degree, parity)
Irreps = list[tuple[int, int, int]]


def unsupported(where: str, field: str, value: Any) -> FormatError:
    return FormatError(f"{where}: cannot evaluate a MACE with {field} = {value}")


def irreps_text(irreps: Irreps) -> str:
    return "+".join(f"{mul}x{ell}{'e' if parity > 0 else 'o'}" for mul, ell, parity in irreps)


def check_irreps(where: str, field: str, irreps: Irreps, *, proper: bool) -> dict[int, int]:
    """Multiplicities by degree of irreps with each degree at most once, ascending from 0, of natural parity, or of even
    parity in a ``proper`` model.
    """
    degrees = [ell for _, ell, _ in irreps]
    expected = all(parity == (1 if proper else (-1) ** ell) for _, ell, parity in irreps)
    if not degrees or degrees[0] != 0 or degrees != sorted(set(degrees)) or not expected:
        raise unsupported(where, field, irreps_text(irreps))
    return {ell: mul for mul, ell, _ in irreps}


def check_hidden(where: str, irreps: Irreps, *, proper: bool) -> tuple[int, tuple[int, ...]]:
    """Channels and degrees of hidden irreps, which must all have the same multiplicity."""
    by_degree = check_irreps(where, "hidden_irreps", irreps, proper=proper)
    if len(set(by_degree.values())) != 1:
        raise unsupported(where, "hidden_irreps", irreps_text(irreps))
    return by_degree[0], tuple(by_degree)


def check_numbers(where: str, numbers: list[int]) -> tuple[int, ...]:
    if not numbers or len(set(numbers)) != len(numbers) or not all(1 <= number <= 118 for number in numbers):
        raise FormatError(f"{where}: atomic_numbers = {numbers} must be distinct numbers from 1 to 118")
    return tuple(numbers)
