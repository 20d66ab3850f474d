# SPDX-License-Identifier: BSD-3-Clause
"""Checks that a model's configuration is one that we evaluate; everything else is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._errors import FormatError
from ._assemble import RESIDUAL

#: Fields that change the energy, and the values under which they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "radial_type": ("bessel",),
    "distance_transform": (None, "None"),
    "pair_repulsion": (False,),
    "embedding_specs": (None, {}),
    "apply_cutoff": (True,),
    "edge_irreps": (None,),
    "use_so3": (False,),
    "use_edge_irreps_first": (False,),
    "use_agnostic_product": (False,),
    "use_last_readout_only": (False,),
    "use_embedding_readout": (False,),
    "gate": ("silu", "swish"),
    "readout_cls": ("NonLinearReadoutBlock", None),
}

#: Harmonics beyond are no use to any published model and would make export take hours.
MAX_ELL = 6


def unsupported(where: str, field: str, value: Any) -> FormatError:
    return FormatError(f"{where}: cannot evaluate a MACE with {field} = {value}")


def check_fields(where: str, fields: Mapping[str, Any]) -> None:
    """Refuse any field whose value asks for something that is not implemented."""
    for field, allowed in _NEUTRAL.items():
        if field in fields and not any(fields[field] is value or fields[field] == value for value in allowed):
            raise unsupported(where, field, fields[field])


def check_block(where: str, field: str, name: Any) -> str:
    if name not in RESIDUAL:
        raise unsupported(where, field, name)
    return name


def check_hidden(where: str, irreps: list[tuple[int, int, int]]) -> tuple[int, tuple[int, ...]]:
    """Channels and degrees of hidden irreps, given as (multiplicity, degree, parity)."""
    text = "+".join(f"{mul}x{ell}{'e' if parity > 0 else 'o'}" for mul, ell, parity in irreps)
    degrees = tuple(ell for _, ell, _ in irreps)
    channels = {mul for mul, _, _ in irreps}
    natural = all(parity == (-1) ** ell for _, ell, parity in irreps)
    if len(channels) != 1 or not natural or list(degrees) != sorted(set(degrees)) or degrees[0] != 0:
        raise unsupported(where, "hidden_irreps", text)
    return channels.pop(), degrees


def check_numbers(where: str, numbers: list[int]) -> tuple[int, ...]:
    if not numbers or len(set(numbers)) != len(numbers) or not all(1 <= number <= 118 for number in numbers):
        raise FormatError(f"{where}: atomic_numbers = {numbers} must be distinct numbers from 1 to 118")
    return tuple(numbers)
