# SPDX-License-Identifier: BSD-3-Clause
"""Embeddings of properties of the whole structure (its charge, its spin), with values fixed when a model is loaded.

Each value becomes a vector, all vectors together go through one linear layer and silu, and the result is added to the
embedding of every element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ArgumentError, FormatError, argument
from ._refuse import unsupported

if TYPE_CHECKING:
    from ._assemble import Source

#: What mace-torch takes where a structure does not say.
DEFAULTS = {"total_charge": 0.0, "total_spin": 1.0, "elec_temp": 0.0}


@dataclass(frozen=True)
class Feature:
    """One embedded property and its value."""

    name: str
    value: float
    size: int  #: of its embedding
    classes: int  #: 0: continuous
    offset: int
    bias: bool


Features = tuple[Feature, ...]


def read_features(where: str, specs: Any, values: Mapping[str, float]) -> Features:
    """From ``embedding_specs`` of a configuration, checked, with ``values`` or the defaults of mace-torch."""
    specs = specs or {}
    unknown = sorted(set(values) - set(specs))
    if unknown and not specs:
        raise ArgumentError(f"{where} takes no {unknown[0]}: it embeds nothing of the whole structure")
    if unknown:
        raise ArgumentError(f"{where} takes no {unknown[0]}: it embeds {', '.join(specs)}")
    return tuple(_feature(where, name, spec, values) for name, spec in specs.items())


def _feature(where: str, name: str, spec: Mapping[str, Any], values: Mapping[str, float]) -> Feature:
    field = f"embedding_specs {name}"
    if spec.get("per") != "graph":
        raise unsupported(where, f"{field} per", spec.get("per"))
    kind = spec.get("type")
    if kind not in ("categorical", "continuous"):
        raise unsupported(where, f"{field} type", kind)
    if kind == "continuous" and spec.get("in_dim", 1) != 1:
        raise unsupported(where, f"{field} in_dim", spec["in_dim"])
    if name not in values and name not in DEFAULTS:
        raise ArgumentError(
            f"{where} embeds {name}: give its value with {argument('features', code=f'{{{name!r}: ...}}')}"
        )
    value = float(values.get(name, DEFAULTS.get(name, 0.0)))
    size, classes = spec.get("emb_dim"), spec.get("num_classes") if kind == "categorical" else 0
    offset = spec.get("offset", 0)
    if not all(type(number) is int for number in (size, classes, offset)):
        raise FormatError(f"{where}: {field} = {dict(spec)} must have whole emb_dim, num_classes and offset")
    if classes and not (value == int(value) and 0 <= value + offset < classes):
        raise ArgumentError(
            f"{where}: {name} = {value:g} must be a whole number from {-offset} to {classes - 1 - offset}"
        )
    return Feature(name, value, size, classes, offset, bool(spec.get("use_bias", True)))


def _silu(values: np.ndarray) -> np.ndarray:
    return values / (1 + np.exp(-values))


def joint_embedding(source: Source, features: Features, channels: int) -> np.ndarray:
    """[channels], to be added to the embedding of every element."""
    parts = []
    for feature in features:
        name, size = f"joint_embedding.embedders.{feature.name}", feature.size
        if feature.classes:
            table = source.tensor(f"{name}.weight", feature.classes * size).reshape(feature.classes, size)
            parts.append(table[int(feature.value) + feature.offset])
        else:
            hidden = _dense(source, f"{name}.0", np.array([feature.value]), size, feature.bias)
            parts.append(_dense(source, f"{name}.2", _silu(hidden), size, feature.bias))
    return _silu(_dense(source, "joint_embedding.project.0", np.concatenate(parts), channels, False))


def _dense(source: Source, name: str, values: np.ndarray, outputs: int, with_bias: bool) -> np.ndarray:
    matrix, bias = source.dense(name, len(values), outputs, bias=with_bias)
    return values @ matrix if bias is None else values @ matrix + bias
