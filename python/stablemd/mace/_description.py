# SPDX-License-Identifier: BSD-3-Clause
"""A trained MACE in one form, whatever file it came from.

All arrays are float64 and every normalisation that MACE applies at run time is already inside them, so that evaluation
is plain products: 1/sqrt(fan-in) of linear layers and tensor products, the second-moment factor of the activations, the
prefactor of the Bessel functions and 1/avg_num_neighbors.

Dicts are by degree l. Arrays whose first axis is called ``elements*`` have one entry there if all elements share it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from .._inputs import GraphInput
from ._polynomials import Polynomials

#: What an activation may be; the second-moment factor stands in the matrix that follows.
ACTIVATIONS = ("silu", "tanh", "abs", "none")


@dataclass(frozen=True)
class Transform:
    """How a distance is transformed before it enters the radial basis, by the covalent radii of the two elements."""

    kind: str  #: "agnesi": parameters (q, p, a); "soft": parameters (alpha,)
    parameters: tuple[float, ...]
    radii: np.ndarray  #: [elements], Angstrom


@dataclass(frozen=True)
class Basis:
    """Radial basis functions of one distance x.

    "bessel": sin(w x)/x with wave numbers w (the prefactor stands in the networks); "gaussian":
    exp(-(x - w)^2 / (2 spacing^2)); "chebyshev": polynomials T_w(x) of the first kind, w = 1, 2, ...
    """

    kind: str
    numbers: np.ndarray  #: [functions], the w
    spacing: float = 0.0
    transform: Transform | None = None


@dataclass(frozen=True)
class Repulsion:
    """Ziegler-Biersack-Littmark repulsion with a polynomial cutoff at the sum of the covalent radii."""

    charges: np.ndarray  #: [elements]
    powers: np.ndarray  #: [elements], Z to the power of the screening exponent
    length: float  #: screening length times the sum of the powers, Angstrom
    coefficients: np.ndarray  #: [4], with the factor that the energy is scaled by
    radii: np.ndarray  #: [elements], Angstrom
    power: int  #: p of the polynomial cutoff


@dataclass(frozen=True)
class Network:
    """A fully connected network with silu between its matrices, applied to the radial basis of an edge."""

    matrices: list[np.ndarray]  #: [in, out] each
    biases: list[np.ndarray] = field(default_factory=list)  #: [out] each; none at all or one per matrix
    norms: list[np.ndarray] = field(default_factory=list)  #: [2, width] scale and offset of layer norms
    #: [elements, width] what the elements of neighbour and centre add to the result of the first matrix
    neighbor: np.ndarray | None = None
    center: np.ndarray | None = None


@dataclass(frozen=True)
class Density:
    """Sums of messages are divided by alpha + beta * (sum over edges of tanh(network^2))."""

    network: Network
    alpha: float
    beta: float


@dataclass(frozen=True)
class Path:
    """One coupling of a neighbour's features of degree ``node`` with harmonics of degree ``edge`` to degree ``out``."""

    node: int
    edge: int
    out: int
    coupling: np.ndarray  #: [2*node+1, 2*edge+1, 2*out+1], the squares of each degree-``out`` slice summing to 1
    channels: int  #: of the features, and so of the messages


@dataclass(frozen=True)
class Gate:
    """Nonlinearity of summed messages: a residual of the node's own features is added, then scalars pass through silu,
    and higher degrees are multiplied by sigmoids of further scalars, which stand behind the first in order of degree.
    """

    residual: dict[int, np.ndarray]  #: [channels of the entering features, outputs of ``linear``]
    mix: dict[int, np.ndarray]  #: [channels, channels], after the gates


@dataclass(frozen=True)
class Layer:
    """One interaction block with its product block."""

    up: dict[int, np.ndarray]  #: [channels, sent channels], node features before they are sent
    network: Network  #: to the weights of all paths, one path's channels after the other
    gated_by_cutoff: bool  #: the paths' weights and the density are multiplied by the cutoff function, not the basis
    density: Density | None
    paths: list[Path]  #: ordered by ``out``
    linear: dict[int, np.ndarray]  #: [channels of the paths to l together, channels (with gates: more scalars)]
    gate: Gate | None
    selector: dict[int, np.ndarray]  #: [elements, channels, channels], transforms the messages; empty: none
    skip: dict[int, np.ndarray]  #: [elements*, channels, channels], from the layer's input to its output; empty: none
    product: dict[int, Polynomials]  #: symmetric contraction, by output degree
    mix: dict[int, np.ndarray]  #: [channels, channels], linear layer after the contraction


@dataclass(frozen=True)
class Readout:
    """Energy from a layer's scalars: a network with ``activation`` between its matrices, scaled at its end."""

    layer: int
    matrices: list[np.ndarray]  #: [in, out] each, the last [in, 1]
    biases: list[np.ndarray]  #: [out] each
    activation: str = "none"


@dataclass(frozen=True)
class Embedder:
    """What one graph input adds to the sum of a :class:`GraphEmbedding`.

    A table: its row of the input, a whole number, plus ``offset``. Two matrices: a network with silu between them.
    """

    matrices: list[np.ndarray]  #: one [classes, channels], or two, [1, hidden] and [hidden, channels]
    biases: list[np.ndarray]  #: of the network: one for each matrix, or none
    offset: int = 0


@dataclass(frozen=True)
class GraphEmbedding:
    """Graph inputs: silu of the sum of the embedders is added to the embedding of every element."""

    inputs: dict[str, GraphInput]
    embedders: dict[str, Embedder]  #: by input
    readout: np.ndarray | None  #: [channels] to the energy of each atom


@dataclass(frozen=True)
class Description:
    """A MACE for one head."""

    cutoff: float
    basis: Basis
    cutoff_power: int  #: p of the polynomial cutoff
    max_ell: int
    channels: int
    atomic_numbers: tuple[int, ...]
    embedding: np.ndarray  #: [elements, channels]
    layers: list[Layer]
    readouts: list[Readout]  #: ascending by layer; the last one reads the last layer
    repulsion: Repulsion | None
    atomic_energies: np.ndarray  #: [elements], all that an atom has whatever its neighbours and inputs
    graph: GraphEmbedding | None = None  #: of properties of the whole structure
    length_shift: float = 0.0  #: Angstrom, added to the lengths that vectors are divided by before the harmonics


def with_elements(model: Description, numbers: tuple[int, ...]) -> Description:
    """The model for these elements alone, in this order."""
    rows = np.array([model.atomic_numbers.index(number) for number in numbers])
    transform, repulsion = model.basis.transform, model.repulsion
    if transform is not None:
        transform = replace(transform, radii=transform.radii[rows])
    if repulsion is not None:
        repulsion = replace(
            repulsion, **{name: getattr(repulsion, name)[rows] for name in ("charges", "powers", "radii")}
        )
    return replace(
        model,
        basis=replace(model.basis, transform=transform),
        atomic_numbers=numbers,
        embedding=model.embedding[rows],
        layers=[_layer_with_elements(layer, rows) for layer in model.layers],
        repulsion=repulsion,
        atomic_energies=model.atomic_energies[rows],
    )


def _rows_of(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Of an array [elements*, ...]: one entry that all share stays as it is."""
    return array if len(array) == 1 else array[rows]


def _layer_with_elements(layer: Layer, rows: np.ndarray) -> Layer:
    density = layer.density
    if density is not None:
        density = replace(density, network=_network_with_elements(density.network, rows))
    return replace(
        layer,
        network=_network_with_elements(layer.network, rows),
        density=density,
        selector={ell: matrices[rows] for ell, matrices in layer.selector.items()},
        skip={ell: _rows_of(matrices, rows) for ell, matrices in layer.skip.items()},
        product={ell: replace(part, weights=_rows_of(part.weights, rows)) for ell, part in layer.product.items()},
    )


def _network_with_elements(network: Network, rows: np.ndarray) -> Network:
    if network.neighbor is None or network.center is None:
        return network
    return replace(network, neighbor=network.neighbor[rows], center=network.center[rows])
