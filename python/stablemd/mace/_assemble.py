# SPDX-License-Identifier: BSD-3-Clause
"""From the named tensors of a trained MACE to its :class:`Description`.

MACE-JAX and mace-torch lay the same flat weights out in the same way; only names, shapes and the coupling basis differ,
and those are what a :class:`Source` hides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path as FilePath

import numpy as np

from .._errors import ArgumentError, FormatError
from ._description import Description, Layer, Path
from ._polynomials import Polynomials

RESIDUAL = {"RealAgnosticInteractionBlock": False, "RealAgnosticResidualInteractionBlock": True}


@dataclass(frozen=True)
class Configuration:
    """What shapes a MACE, checked to be something that we can evaluate."""

    cutoff: float
    cutoff_power: int
    max_ell: int
    atomic_numbers: tuple[int, ...]
    blocks: tuple[str, ...]  #: class of each interaction block
    correlation: tuple[int, ...]
    channels: int
    degrees: tuple[int, ...]  #: degrees l of the hidden irreps, ascending from 0
    readout_width: int  #: hidden scalars of the nonlinear readout per head; 0: linear
    avg_num_neighbors: float
    heads: tuple[str, ...]

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def node_degrees(self, layer: int) -> tuple[int, ...]:
        """Degrees of the features that enter a layer."""
        return (0,) if layer == 0 else self.degrees

    def out_degrees(self, layer: int) -> tuple[int, ...]:
        """Degrees of the features that a layer makes."""
        return (0,) if layer == self.layers - 1 else self.degrees


class Source(ABC):
    """The tensors of one file by mace-torch's names, checked for their number of values."""

    path: FilePath

    @abstractmethod
    def find(self, name: str) -> np.ndarray | None:
        """Float64 as the file shapes it; None if it is not there."""

    def get(self, name: str) -> np.ndarray:
        values = self.find(name)
        if values is None:
            raise FormatError(f"{self.path}: tensor {name} is missing")
        return values

    def tensor(self, name: str, size: int) -> np.ndarray:
        """Float64, flat."""
        values = self.get(name)
        if values.size != size:
            raise FormatError(f"{self.path}: tensor {name} has shape {values.shape}, needs {size} values in all")
        return values.reshape(-1)

    @abstractmethod
    def radial_matrix(self, name: str, inputs: int, outputs: int) -> np.ndarray:
        """Float64 [inputs, outputs], divided by sqrt(inputs)."""

    @abstractmethod
    def per_head(self, name: str, heads: int) -> np.ndarray:
        """Float64 [heads] or, where the values are per element, [heads, elements]."""

    @abstractmethod
    def activation_scale(self, block: str) -> float: ...

    @abstractmethod
    def coupling(self, layer: int, path: tuple[int, int, int]) -> np.ndarray: ...

    @abstractmethod
    def polynomials(self, layer: int, output: int) -> Polynomials: ...


def _paths(source: Source, layer: int, nodes: Sequence[int], max_ell: int) -> list[Path]:
    found = [
        (node, edge, out)
        for node in nodes
        for edge in range(max_ell + 1)
        for out in range(abs(node - edge), min(node + edge, max_ell) + 1)
        if (node + edge + out) % 2 == 0
    ]
    found.sort(key=lambda path: path[2])
    return [Path(*path, source.coupling(layer, path)) for path in found]


def _blocks(flat: np.ndarray, keys: Sequence[int], shape: tuple[int, ...]) -> dict[int, np.ndarray]:
    return dict(zip(keys, flat.reshape(len(keys), *shape), strict=True))


def _radial(source: Source, prefix: str, widths: Sequence[int]) -> list[np.ndarray]:
    matrices = []
    scale = 1.0
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        name = f"{prefix}.layer{index}"
        matrices.append(scale * source.radial_matrix(f"{name}.weight", inputs, outputs))
        if index < len(widths) - 2:
            scale = source.activation_scale(name)
    return matrices


def _linear(source: Source, name: str, degrees: Sequence[int], channels: int) -> dict[int, np.ndarray]:
    flat = source.tensor(name, len(degrees) * channels**2)
    return _blocks(flat / sqrt(channels), degrees, (channels, channels))


def _skip(source: Source, name: str, degrees: Sequence[int], channels: int, elements: int) -> dict[int, np.ndarray]:
    flat = source.tensor(name, len(degrees) * channels * elements * channels)
    blocks = _blocks(flat / sqrt(channels * elements), degrees, (channels, elements, channels))
    return {ell: block.transpose(1, 0, 2) for ell, block in blocks.items()}


def _message_linear(
    source: Source, name: str, paths: Sequence[Path], channels: int, avg_num_neighbors: float
) -> dict[int, np.ndarray]:
    counts: dict[int, int] = {}
    for path in paths:
        counts[path.out] = counts.get(path.out, 0) + 1
    flat = source.tensor(name, len(paths) * channels**2)
    matrices, start = {}, 0
    for ell, count in counts.items():
        stop = start + count * channels**2
        scale = 1 / (sqrt(count * channels) * avg_num_neighbors)
        matrices[ell] = flat[start:stop].reshape(count * channels, channels) * scale
        start = stop
    return matrices


def _layer(source: Source, config: Configuration, index: int, radial: Sequence[int]) -> Layer:
    name = f"interactions.{index}"
    channels, elements = config.channels, len(config.atomic_numbers)
    residual = RESIDUAL[config.blocks[index]]
    nodes, outs = config.node_degrees(index), config.out_degrees(index)
    paths = _paths(source, index, nodes, config.max_ell)
    skips = [ell for ell in nodes if ell in outs] if residual else range(config.max_ell + 1)
    return Layer(
        residual=residual,
        up=_linear(source, f"{name}.linear_up.weight", nodes, channels),
        radial=_radial(source, f"{name}.conv_tp_weights", [*radial, len(paths) * channels]),
        paths=paths,
        linear=_message_linear(source, f"{name}.linear.weight", paths, channels, config.avg_num_neighbors),
        skip=_skip(source, f"{name}.skip_tp.weight", list(skips), channels, elements),
        product={ell: source.polynomials(index, ell) for ell in outs},
        mix=_linear(source, f"products.{index}.linear.weight", outs, channels),
    )


def _linear_readout(source: Source, name: str, config: Configuration, head: int) -> np.ndarray:
    heads = len(config.heads)
    matrix = source.tensor(name, config.channels * heads).reshape(config.channels, heads)
    return matrix[:, head] / sqrt(config.channels)


def _final_readout(source: Source, config: Configuration, head: int) -> tuple[np.ndarray, ...]:
    name = f"readouts.{config.layers - 1}"
    if not config.readout_width:
        return (_linear_readout(source, f"{name}.linear.weight", config, head),)
    channels, width, heads = config.channels, config.readout_width, len(config.heads)
    # The hidden scalars of the heads stand one head after the other; those of other heads are masked.
    first = source.tensor(f"{name}.linear_1.weight", channels * heads * width).reshape(channels, heads, width)
    second = source.tensor(f"{name}.linear_2.weight", heads * width * heads).reshape(heads, width, heads)
    scale = source.activation_scale(f"{name}.non_linearity") / sqrt(heads * width)
    return first[:, head] / sqrt(channels), second[head, :, head] * scale


def choose_head(heads: Sequence[str], head: str | None, where: str) -> int:
    names = ", ".join(heads)
    if head is None:
        if len(heads) == 1:
            return 0
        raise ArgumentError(f"{where} has several heads: choose one with head=, of {names}")
    if head not in heads:
        raise ArgumentError(f"{where} has no head {head!r}: choose one of {names}")
    return list(heads).index(head)


def assemble(
    source: Source,
    config: Configuration,
    *,
    bessel: np.ndarray,
    prefactor: float,
    radial: Sequence[int],
    head: int,
) -> Description:
    """All weights of one head.

    ``bessel`` are the wave numbers, ``prefactor`` what the Bessel functions are multiplied by, ``radial`` the widths of
    the radial network.
    """
    heads, elements = len(config.heads), len(config.atomic_numbers)
    layers = [_layer(source, config, index, radial) for index in range(config.layers)]
    for layer in layers:
        layer.radial[0][:] *= prefactor
    embedding = source.tensor("node_embedding.linear.weight", elements * config.channels) / sqrt(elements)
    scale = source.per_head("scale_shift.scale", heads)[head]
    shift = source.per_head("scale_shift.shift", heads)[head]
    return Description(
        cutoff=config.cutoff,
        bessel=bessel,
        cutoff_power=config.cutoff_power,
        max_ell=config.max_ell,
        channels=config.channels,
        atomic_numbers=config.atomic_numbers,
        embedding=embedding.reshape(elements, config.channels),
        layers=layers,
        readouts=[
            _linear_readout(source, f"readouts.{index}.linear.weight", config, head)
            for index in range(config.layers - 1)
        ],
        final=_final_readout(source, config, head),
        scale=float(scale),
        atomic_energies=source.per_head("atomic_energies_fn.atomic_energies", heads)[head] + shift,
    )
