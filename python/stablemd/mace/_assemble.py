# SPDX-License-Identifier: BSD-3-Clause
"""From the named tensors of a trained MACE to its :class:`Description`.

MACE-JAX and mace-torch lay the same flat weights out in the same way; only names, shapes and the coupling basis differ,
and those are what a :class:`Source` hides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from pathlib import Path as FilePath

import numpy as np

from .._errors import ArgumentError, FormatError, argument
from ._description import ACTIVATIONS, Basis, Density, Description, Gate, Layer, Network, Path, Readout, Repulsion
from ._embedding import Features, graph_embedding
from ._polynomials import Polynomials
from ._refuse import unsupported


@dataclass(frozen=True)
class Block:
    """What kind of interaction a class of blocks is."""

    selector: bool = False  #: messages are transformed by element
    density: bool = False  #: messages are divided by a density instead of the average number of neighbours
    gated: bool = False  #: nonlinear, with embeddings of the elements in its networks


BLOCKS = {
    "RealAgnosticInteractionBlock": Block(selector=True),
    "RealAgnosticResidualInteractionBlock": Block(),
    "RealAgnosticDensityInteractionBlock": Block(selector=True, density=True),
    "RealAgnosticDensityResidualInteractionBlock": Block(density=True),
    "RealAgnosticResidualNonLinearInteractionBlock": Block(gated=True),
}


@dataclass(frozen=True)
class Interaction:
    """What shapes one layer."""

    block: str  #: name of its class, of BLOCKS
    enters: tuple[int, ...]  #: degrees of the features that enter, ascending from 0
    leaves: tuple[int, ...]  #: degrees of the features that the file has weights for
    sent: Mapping[int, int]  #: channels of the features that are sent, by degree
    correlation: int
    average: float  #: number of neighbours that the messages are divided by
    radial: tuple[int, ...]  #: hidden widths of the radial network

    @property
    def kind(self) -> Block:
        return BLOCKS[self.block]


@dataclass(frozen=True)
class ReadoutShape:
    layer: int
    kind: str  #: "linear", "nonlinear" or "bias"
    width: int = 0  #: hidden scalars per head


@dataclass(frozen=True)
class Configuration:
    """What shapes a MACE, checked to be something that we can evaluate."""

    cutoff: float
    cutoff_power: int
    apply_cutoff: bool  #: to the radial basis; else to what the networks make of it
    max_ell: int
    proper: bool  #: all irreps are of even parity: symmetric under rotations, not under reflection
    atomic_numbers: tuple[int, ...]
    channels: int
    interactions: tuple[Interaction, ...]
    readouts: tuple[ReadoutShape, ...]
    agnostic_product: bool  #: the symmetric contraction has the same weights for all elements
    heads: tuple[str, ...]
    features: Features  #: embeddings of the whole structure, such as its charge

    @property
    def elements(self) -> int:
        return len(self.atomic_numbers)

    def node_degrees(self, layer: int) -> tuple[int, ...]:
        return self.interactions[layer].enters

    def out_degrees(self, layer: int) -> tuple[int, ...]:
        return self.interactions[layer].leaves


class Source(ABC):
    """The tensors of one file by mace-torch's names, checked for their number of values."""

    path: FilePath
    #: whether a readout's middle matrix sees the hidden scalars of one head alone
    masks_first_scalars = True

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

    def number(self, name: str) -> float:
        return float(self.tensor(name, 1)[0])

    def per_head(self, name: str, heads: int, elements: int | None = None) -> np.ndarray:
        """Float64 [heads] or, where the values are per element, [heads, elements]; one entry may stand for all heads.

        A model without ``scale_shift`` has scale 1 and shift 0.
        """
        values = self.find(name)
        if values is None and name.startswith("scale_shift."):
            return np.full(heads, 1.0 if name.endswith("scale") else 0.0)
        values = self.get(name)
        shape = () if elements is None else (elements,)
        count = elements or 1
        if values.size not in (count, heads * count):
            raise FormatError(f"{self.path}: tensor {name} has shape {values.shape}, needs {(heads, *shape)}")
        return np.broadcast_to(values.reshape(-1, *shape), (heads, *shape))

    @abstractmethod
    def radial_matrix(self, name: str, inputs: int, outputs: int) -> np.ndarray:
        """Float64 [inputs, outputs] of an e3nn network, divided by sqrt(inputs)."""

    @abstractmethod
    def dense(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        """Float64 [inputs, outputs] and [outputs] of an ordinary linear layer."""

    @abstractmethod
    def norm(self, name: str, width: int) -> np.ndarray:
        """Float64 [2, width]: scale and offset of a layer norm."""

    @abstractmethod
    def activation(self, block: str) -> tuple[str, float]:
        """Name and second-moment factor of the activation of a network's layer or a readout."""

    @abstractmethod
    def gate_scales(self, layer: int) -> tuple[float, float]:
        """Second-moment factors of the silu and the sigmoid of a layer's gate."""

    @abstractmethod
    def coupling(self, layer: int, path: tuple[int, int, int]) -> np.ndarray: ...

    @abstractmethod
    def polynomials(self, layer: int, output: int) -> Polynomials: ...

    @abstractmethod
    def repulsion(self, config: Configuration) -> Repulsion | None: ...


# ---- linear layers ---------------------------------------------------------------------------------------------------


def _linear(
    source: Source, name: str, shapes: Mapping[int, tuple[int, int]], fan_in: Mapping[int, int] | None = None
) -> dict[int, np.ndarray]:
    """A linear layer's matrices by degree, stored one after the other, over the root of their fan-in."""
    flat = source.tensor(name, sum(inputs * outputs for inputs, outputs in shapes.values()))
    matrices, start = {}, 0
    for ell, (inputs, outputs) in shapes.items():
        stop = start + inputs * outputs
        matrices[ell] = flat[start:stop].reshape(inputs, outputs) / sqrt((fan_in or {}).get(ell, inputs))
        start = stop
    return matrices


def _by_element(source: Source, name: str, degrees: Sequence[int], channels: int, elements: int) -> dict:
    """[elements, channels, channels] by degree."""
    flat = source.tensor(name, len(degrees) * channels * elements * channels)
    blocks = flat.reshape(len(degrees), channels, elements, channels) / sqrt(channels * elements)
    return {ell: block.transpose(1, 0, 2) for ell, block in zip(degrees, blocks, strict=True)}


def _square(degrees: Sequence[int], channels: int) -> dict[int, tuple[int, int]]:
    return {ell: (channels, channels) for ell in degrees}


# ---- one layer -------------------------------------------------------------------------------------------------------


def _paths(source: Source, config: Configuration, index: int) -> list[Path]:
    """All couplings, ordered by the degree they lead to as the weights are."""
    max_ell, sent = config.max_ell, config.interactions[index].sent
    found = [
        (node, edge, out)
        for node in sent
        for edge in range(max_ell + 1)
        for out in range(abs(node - edge), min(node + edge, max_ell) + 1)
        if config.proper or (node + edge + out) % 2 == 0
    ]
    found.sort(key=lambda path: path[2])
    return [Path(*path, source.coupling(index, path), sent[path[0]]) for path in found]


def _e3nn_network(source: Source, name: str, widths: Sequence[int]) -> Network:
    matrices = []
    scale = 1.0
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        layer = f"{name}.layer{index}"
        matrices.append(scale * source.radial_matrix(f"{layer}.weight", inputs, outputs))
        if index < len(widths) - 2:
            function, scale = source.activation(layer)
            if function != "silu":
                raise unsupported(str(source.path), f"{layer} activation", function)
    return Network(matrices)


def _embedded_network(source: Source, name: str, widths: Sequence[int], ends: Sequence[np.ndarray]) -> Network:
    """A network with biases and layer norms, which also sees embeddings [elements, size] of neighbour and centre."""
    size = ends[0].shape[1]
    matrices, biases, norms = [], [], []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        layer = f"{name}.net.{3 * index}"
        matrix, bias = source.dense(layer, inputs + (2 * size if index == 0 else 0), outputs)
        if bias is None:
            raise FormatError(f"{source.path}: tensor {layer}.bias is missing")
        matrices.append(matrix)
        biases.append(bias)
        if index < len(widths) - 2:
            norms.append(source.norm(f"{name}.net.{3 * index + 1}", outputs))
    first, of_neighbor, of_center = np.split(matrices[0], [widths[0], widths[0] + size])
    return Network([first, *matrices[1:]], biases, norms, ends[0] @ of_neighbor, ends[1] @ of_center)


def _networks(
    source: Source, config: Configuration, index: int, basis: int, weights: int
) -> tuple[Network, Density | None]:
    name = f"interactions.{index}"
    interaction = config.interactions[index]
    widths = [basis, *interaction.radial, weights]
    if not interaction.kind.gated:
        network = _e3nn_network(source, f"{name}.conv_tp_weights", widths)
        if not interaction.kind.density:
            return network, None
        return network, Density(_e3nn_network(source, f"{name}.density_fn", [basis, 1]), 1.0, 1.0)
    size = config.elements * config.channels
    ends = [
        source.tensor(f"{name}.{end}_embedding.weight", size).reshape(config.elements, -1) / sqrt(config.elements)
        for end in ("source", "target")
    ]
    density = _embedded_network(source, f"{name}.density_fn", [basis, 64, 1], ends)
    return (
        _embedded_network(source, f"{name}.conv_tp_weights", widths, ends),
        Density(density, source.number(f"{name}.alpha"), source.number(f"{name}.beta")),
    )


def _message_shapes(paths: Sequence[Path], channels: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Of the linear layer over the messages, by degree."""
    inputs: dict[int, int] = {}
    for path in paths:
        inputs[path.out] = inputs.get(path.out, 0) + path.channels
    return {ell: (count, channels[ell]) for ell, count in inputs.items()}


def _gate(source: Source, config: Configuration, index: int, up: Mapping[int, np.ndarray]) -> Gate:
    name = f"interactions.{index}"
    channels, degrees = config.channels, range(config.max_ell + 1)
    sent = config.interactions[index].sent
    widths = _gate_widths(config)
    res = _linear(source, f"{name}.linear_res.weight", {ell: (sent[ell], widths[ell]) for ell in sent if ell in widths})
    mix = _linear(source, f"{name}.linear_2.weight", _square(degrees, channels))
    silu, sigmoid = source.gate_scales(index)
    return Gate(
        {ell: up[ell] @ matrix for ell, matrix in res.items() if ell in up},
        {ell: matrix * (sigmoid if ell else silu) for ell, matrix in mix.items()},
    )


def _gate_widths(config: Configuration) -> dict[int, int]:
    """Channels of what enters a gate: beside the scalars stand one scalar for each channel of a higher degree."""
    channels, degrees = config.channels, range(config.max_ell + 1)
    return {ell: channels * (1 if ell else len(degrees)) for ell in degrees}


def _skip(source: Source, config: Configuration, index: int) -> dict[int, np.ndarray]:
    interaction = config.interactions[index]
    name, channels = f"interactions.{index}.skip_tp.weight", config.channels
    degrees = [ell for ell in interaction.enters if ell in interaction.leaves]
    if interaction.kind.selector:
        return {}
    if interaction.kind.gated:
        return {ell: matrix[None] for ell, matrix in _linear(source, name, _square(degrees, channels)).items()}
    return _by_element(source, name, degrees, channels, config.elements)


def _layer(source: Source, config: Configuration, index: int, basis: int) -> Layer:
    name, interaction = f"interactions.{index}", config.interactions[index]
    kind, channels, sent = interaction.kind, config.channels, interaction.sent
    degrees = range(config.max_ell + 1)
    up = _linear(
        source, f"{name}.linear_up.weight", {ell: (channels, sent[ell]) for ell in interaction.enters if ell in sent}
    )
    paths = _paths(source, config, index)
    network, density = _networks(source, config, index, basis, sum(path.channels for path in paths))
    shapes = _message_shapes(paths, _gate_widths(config) if kind.gated else dict.fromkeys(degrees, channels))
    linear = _linear(source, f"{name}.{'linear_1' if kind.gated else 'linear'}.weight", shapes)
    if density is None:
        linear = {ell: matrix / interaction.average for ell, matrix in linear.items()}
    outs = (0,) if index == len(config.interactions) - 1 else interaction.leaves
    mix = _linear(source, f"products.{index}.linear.weight", _square(interaction.leaves, channels))
    layer = Layer(
        up=up,
        network=network,
        gated_by_cutoff=not config.apply_cutoff,
        density=density,
        paths=paths,
        linear=linear,
        gate=_gate(source, config, index, up) if kind.gated else None,
        selector=_by_element(source, f"{name}.skip_tp.weight", degrees, channels, config.elements)
        if kind.selector
        else {},
        skip={ell: matrices for ell, matrices in _skip(source, config, index).items() if ell in outs},
        product={ell: source.polynomials(index, ell) for ell in outs},
        mix={ell: mix[ell] for ell in outs},
    )
    return _without_empty_paths(layer)


def _without_empty_paths(layer: Layer) -> Layer:
    """Without the paths of degrees that the irreps of edges name and no feature has: their messages are zero."""
    if all(path.node in layer.up for path in layer.paths):
        return layer
    kept, columns, start = [], [], 0
    rows: dict[int, list[np.ndarray]] = {}
    begun: dict[int, int] = {}
    for path in layer.paths:
        own = np.arange(path.channels)
        first = begun.get(path.out, 0)
        if path.node in layer.up:
            kept.append(path)
            columns.append(start + own)
            rows.setdefault(path.out, []).append(first + own)
        start += path.channels
        begun[path.out] = first + path.channels
    chosen = np.concatenate(columns)
    network = layer.network
    biases = [*network.biases[:-1], network.biases[-1][chosen]] if network.biases else []
    return replace(
        layer,
        paths=kept,
        network=replace(network, matrices=[*network.matrices[:-1], network.matrices[-1][:, chosen]], biases=biases),
        linear={ell: matrix[np.concatenate(rows[ell])] for ell, matrix in layer.linear.items() if ell in rows},
    )


# ---- readouts --------------------------------------------------------------------------------------------------------


def _readout(source: Source, config: Configuration, index: int, head: int, scale: float) -> Readout:
    shape, name = config.readouts[index], f"readouts.{index}"
    channels, heads, width = config.channels, len(config.heads), shape.width
    if shape.kind == "linear":
        matrix = source.tensor(f"{name}.linear.weight", channels * heads).reshape(channels, heads)
        return Readout(shape.layer, [matrix[:, [head]] * (scale / sqrt(channels))], [])
    # The hidden scalars of the heads stand one head after the other; those of other heads are masked before the end.
    first = source.tensor(f"{name}.linear_1.weight", channels * heads * width).reshape(channels, heads, width)
    last = source.tensor(f"{name}.linear_2.weight", heads * width * heads).reshape(heads, width, heads)
    function, factor = source.activation(f"{name}.non_linearity")
    if function not in ACTIVATIONS:
        raise unsupported(str(source.path), f"gate of {name}", function)
    root = sqrt(heads * width)
    matrices = [first[:, head] / sqrt(channels), last[head][:, [head]] * (scale * factor / root)]
    biases: list[np.ndarray] = []
    if shape.kind == "bias":
        middle = source.tensor(f"{name}.linear_mid.weight", (heads * width) ** 2)
        middle = middle.reshape(heads, width, heads, width)[:, :, head] * (factor / root)
        if source.masks_first_scalars:
            matrices.insert(1, middle[head])
        else:
            matrices = [first.reshape(channels, -1) / sqrt(channels), middle.reshape(heads * width, width), matrices[1]]
        offsets = _biases(source, name, heads, width)
        if offsets is not None:
            biases = [np.zeros(width), offsets[0][head], scale * offsets[1][[head]]]
    return Readout(shape.layer, matrices, biases, function)


def _biases(source: Source, name: str, heads: int, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    """[heads, width] and [heads]; MACE-JAX has none."""
    if source.find(f"{name}.linear_mid.bias") is None:
        return None
    middle = source.tensor(f"{name}.linear_mid.bias", heads * width).reshape(heads, width)
    return middle, source.tensor(f"{name}.linear_2.bias", heads)


def choose_head(heads: Sequence[str], head: str | None, where: str) -> int:
    names = ", ".join(heads)
    if head is None:
        if len(heads) == 1:
            return 0
        raise ArgumentError(f"{where} has several heads: choose one with {argument('head=')}, of {names}")
    if head not in heads:
        raise ArgumentError(f"{where} has no head {head!r}: choose one of {names}")
    return list(heads).index(head)


# ---- the model -------------------------------------------------------------------------------------------------------


def assemble(source: Source, config: Configuration, *, basis: Basis, prefactor: float, head: int) -> Description:
    """All weights of one head. ``prefactor`` is what the radial basis functions are multiplied by."""
    heads, elements = len(config.heads), config.elements
    layers = [_layer(source, config, index, len(basis.numbers)) for index in range(len(config.interactions))]
    for layer in layers:
        layer.network.matrices[0][:] *= prefactor
        if layer.density is not None:
            layer.density.network.matrices[0][:] *= prefactor
    embedding = source.tensor("node_embedding.linear.weight", elements * config.channels) / sqrt(elements)
    embedding = embedding.reshape(elements, config.channels)
    scale = float(source.per_head("scale_shift.scale", heads)[head])
    energies = source.per_head("atomic_energies_fn.atomic_energies", heads, elements)[head]
    energies = energies + source.per_head("scale_shift.shift", heads)[head]
    graph = None
    if config.features:
        read = None
        if source.find("embedding_readout.linear.weight") is not None:
            read = source.tensor("embedding_readout.linear.weight", config.channels * heads)
            read = read.reshape(config.channels, heads)[:, head] / sqrt(config.channels)
            energies = energies + embedding @ read
        graph = graph_embedding(source, config.features, config.channels, read)
    repulsion = source.repulsion(config)
    if repulsion is not None:
        repulsion = replace(repulsion, coefficients=scale * repulsion.coefficients)
    return Description(
        cutoff=config.cutoff,
        basis=basis,
        cutoff_power=config.cutoff_power,
        max_ell=config.max_ell,
        channels=config.channels,
        atomic_numbers=config.atomic_numbers,
        embedding=embedding,
        layers=layers,
        readouts=[_readout(source, config, index, head, scale) for index in range(len(config.readouts))],
        repulsion=repulsion,
        atomic_energies=energies,
        graph=graph,
    )
