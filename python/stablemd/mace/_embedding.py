# SPDX-License-Identifier: BSD-3-Clause
"""Embeddings of properties of the whole structure (its charge, its spin), which become inputs of the program.

Each value becomes a vector, all vectors together go through one linear layer and silu, and the result is added to the
embedding of every element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ArgumentError, FormatError, argument
from .._inputs import ALIASES, GraphInput, input_name
from .._manifest import is_name
from ._description import Embedder, GraphEmbedding
from ._refuse import unsupported

if TYPE_CHECKING:
    from ._assemble import Source

#: What mace-torch takes where a structure does not say.
DEFAULTS = {"total_charge": 0.0, "total_spin": 1.0, "elec_temp": 0.0}


@dataclass(frozen=True)
class Feature:
    """One embedded property."""

    name: str  #: in the file
    input: GraphInput
    size: int  #: of its embedding
    classes: int  #: 0: continuous
    offset: int
    bias: bool


Features = tuple[Feature, ...]


def read_features(where: str, specs: Any, values: Mapping[str, float]) -> Features:
    """From ``embedding_specs`` of a configuration, checked, with ``values`` or mace-torch's as defaults.

    ``values`` may be called as in the file or as engines do.
    """
    specs = specs or {}
    names = {name if name in specs else ALIASES.get(name, name): name for name in values}
    unknown = sorted(set(names) - set(specs))
    if unknown and not specs:
        raise ArgumentError(f"{where} takes no {names[unknown[0]]}: it embeds nothing of the whole structure")
    if unknown:
        known = ", ".join(map(input_name, specs))
        raise ArgumentError(f"{where} takes no {names[unknown[0]]}: it embeds {known}")
    if len(names) < len(values):
        raise ArgumentError(f"{where}: a feature is given twice, in {', '.join(values)}; give each under one name")
    if len({input_name(name) for name in specs}) < len(specs):
        raise FormatError(f"{where}: embedding_specs names one property twice: {', '.join(specs)}")
    return tuple(_feature(where, name, spec, names.get(name, name), values) for name, spec in specs.items())


def _feature(where: str, name: str, spec: Mapping[str, Any], given: str, values: Mapping[str, float]) -> Feature:
    field = f"embedding_specs {name}"
    if spec.get("per") != "graph":
        raise unsupported(where, f"{field} per", spec.get("per"))
    kind = spec.get("type")
    if kind not in ("categorical", "continuous"):
        raise unsupported(where, f"{field} type", kind)
    if kind == "continuous" and spec.get("in_dim", 1) != 1:
        raise unsupported(where, f"{field} in_dim", spec["in_dim"])
    if not is_name(input_name(name)):
        raise unsupported(where, "embedding_specs", name)
    if given not in values and name not in DEFAULTS:
        raise ArgumentError(
            f"{where} embeds {name}: give its default with {argument('features', code=f'{{{name!r}: ...}}')}"
        )
    value = float(values.get(given, DEFAULTS.get(name, 0.0)))
    size, classes = spec.get("emb_dim"), spec.get("num_classes") if kind == "categorical" else 0
    offset = spec.get("offset", 0)
    if not all(type(number) is int for number in (size, classes, offset)):
        raise FormatError(f"{where}: {field} = {dict(spec)} must have whole emb_dim, num_classes and offset")
    limits = (-offset, classes - 1 - offset) if kind == "categorical" else (None, None)
    if kind == "categorical" and not (classes > 0 and value.is_integer() and limits[0] <= value <= limits[1]):
        raise ArgumentError(f"{where}: {given} = {value:g} must be a whole number from {limits[0]} to {limits[1]}")
    if not np.isfinite(value):
        raise ArgumentError(f"{where}: {given} = {value:g} must be a finite number")
    one = GraphInput(value, *limits, integer=kind == "categorical")
    return Feature(name, one, size, classes, offset, bool(spec.get("use_bias", True)))


def graph_embedding(source: Source, features: Features, channels: int, readout: np.ndarray | None) -> GraphEmbedding:
    """``readout``: [channels], from the sum of all embeddings of an atom to its energy, where the model has that."""
    sizes = [feature.size for feature in features]
    project, _ = source.dense("joint_embedding.project.0", sum(sizes), channels, bias=False)
    parts = np.split(project, np.cumsum(sizes)[:-1])
    names = [input_name(feature.name) for feature in features]
    return GraphEmbedding(
        {name: feature.input for name, feature in zip(names, features, strict=True)},
        {name: _embedder(source, *pair) for name, pair in zip(names, zip(features, parts, strict=True), strict=True)},
        readout,
    )


def _embedder(source: Source, feature: Feature, project: np.ndarray) -> Embedder:
    """Its last matrix contains the feature's part of the linear layer behind, ``project`` [size, channels]."""
    name, size = f"joint_embedding.embedders.{feature.name}", feature.size
    if feature.classes:
        table = source.tensor(f"{name}.weight", feature.classes * size).reshape(feature.classes, size)
        return Embedder([table @ project], [], feature.offset)
    first, first_bias = source.dense(f"{name}.0", 1, size, bias=feature.bias)
    second, second_bias = source.dense(f"{name}.2", size, size, bias=feature.bias)
    if first_bias is None or second_bias is None:
        return Embedder([first, second @ project], [])
    return Embedder([first, second @ project], [first_bias, second_bias @ project])
