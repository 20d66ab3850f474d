# SPDX-License-Identifier: BSD-3-Clause
"""Graph inputs: numbers that a model takes of the whole structure, such as its charge, and where engines find them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._errors import ArgumentError

#: mace-torch's names of what engines call otherwise
ALIASES = {"charge": "total_charge", "spin": "total_spin"}
_NAMES = {alias: name for name, alias in ALIASES.items()}


@dataclass(frozen=True)
class GraphInput:
    """A number that a model takes of the whole structure: :attr:`stablemd.Graph.inputs` has it under its name.

    Raises :class:`ArgumentError` where the default is none of the values that the limits allow.
    """

    default: float = 0.0  #: where a simulation does not say
    minimum: float | None = None  #: least value; None: no limit
    maximum: float | None = None  #: largest value; None: no limit
    integer: bool = False  #: whether values are whole numbers

    def __post_init__(self) -> None:
        for field in ("default", "minimum", "maximum"):
            value = getattr(self, field)
            if value is None and field != "default":
                continue
            if not _is_number(value) or not math.isfinite(value):
                raise ArgumentError(f"a graph input's {field} must be a finite number, got {value!r}")
            object.__setattr__(self, field, float(value))
        if not isinstance(self.integer, bool):
            raise ArgumentError(f"a graph input's integer must be True or False, got {self.integer!r}")
        if self.integer and not all(limit is None or limit.is_integer() for limit in (self.minimum, self.maximum)):
            raise ArgumentError("the limits of a graph input of whole numbers must be whole")
        if not self.allows(self.default):
            raise ArgumentError(f"a graph input's default is {self.default:g}, it must be {self.range}")

    @property
    def range(self) -> str:
        """The values it may have, in words."""
        kind = "a whole number" if self.integer else "a finite number"
        if self.minimum is not None and self.maximum is not None:
            return f"{kind} from {self.minimum:.10g} to {self.maximum:.10g}"
        if self.minimum is not None:
            return f"{kind}, at least {self.minimum:.10g}"
        return kind if self.maximum is None else f"{kind}, at most {self.maximum:.10g}"

    def allows(self, value: float) -> bool:
        """Whether it may have this value."""
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return math.isfinite(value) and low <= value <= high and (not self.integer or float(value).is_integer())

    def another(self) -> float:
        """A value other than the default, to verify with; the default where there is no other."""
        near = (self.default + 1, self.default - 1, self.maximum, self.minimum)
        return next((v for v in near if v is not None and v != self.default and self.allows(v)), self.default)

    def manifest(self) -> dict[str, Any]:
        """Its entry in the manifest's ``graph_inputs``."""
        return {
            "default": self.default,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "integer": self.integer,
        }


def input_name(name: str) -> str:
    """What engines call a property that mace-torch calls ``name``."""
    return _NAMES.get(name, name)


def stored_inputs(manifest: Mapping[str, Any]) -> dict[str, GraphInput]:
    """The inputs of a bundle, from its manifest."""
    return {name: GraphInput(**fields) for name, fields in sorted(manifest.get("graph_inputs", {}).items())}


def input_values(info: Mapping[Any, Any], inputs: Mapping[str, GraphInput]) -> dict[str, float]:
    """The values of all ``inputs`` that ``ase.Atoms.info`` gives, under their names or mace-torch's, else defaults.

    Whether they are in range is not looked at. Raises :class:`ArgumentError` for what is no number, or two numbers.
    """
    values = {}
    for name, one in inputs.items():
        given = {key: _number(info[key], key) for key in (name, ALIASES.get(name)) if key in info}
        if len(set(given.values())) > 1:
            both = " and ".join(f"{key} = {value:g}" for key, value in given.items())
            raise ArgumentError(f"atoms.info has {both}, which are one to the model; remove one of them")
        values[name] = next(iter(given.values()), one.default)
    return values


def describe(inputs: Mapping[str, GraphInput]) -> str:
    """Names, defaults and ranges on one line."""
    return "; ".join(f"{name} {one.default:.10g} ({one.range})" for name, one in sorted(inputs.items()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _number(value: Any, key: str) -> float:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if not _is_number(value):
        raise ArgumentError(f"atoms.info[{key!r}] must be a number, got {value!r}")
    return float(value)
