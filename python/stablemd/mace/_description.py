# SPDX-License-Identifier: BSD-3-Clause
"""A trained MACE in one form, whatever file it came from.

All arrays are float64 and every normalisation that MACE applies at run time is already inside them, so that evaluation
is plain products: 1/sqrt(fan-in) of linear layers and tensor products, the second-moment factor of the activations, the
prefactor of the Bessel functions and 1/avg_num_neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._polynomials import Polynomials


@dataclass(frozen=True)
class Path:
    """One coupling of a neighbour's features of degree ``node`` with harmonics of degree ``edge`` to degree ``out``."""

    node: int
    edge: int
    out: int
    coupling: np.ndarray  #: [2*node+1, 2*edge+1, 2*out+1], the squares of each degree-``out`` slice summing to 1


@dataclass(frozen=True)
class Layer:
    """One interaction block with its product block. Keys of the dicts are degrees l; natural parity throughout."""

    residual: bool  #: the skip connection goes round the layer; otherwise it transforms the messages, per element
    up: dict[int, np.ndarray]  #: [channels, channels], node features before they are sent
    radial: list[np.ndarray]  #: matrices of the radial network with silu between them; last [hidden, paths * channels]
    paths: list[Path]  #: ordered as the radial network's outputs, by ``out``
    linear: dict[int, np.ndarray]  #: [paths to l * channels, channels]
    skip: dict[int, np.ndarray]  #: [elements, channels, channels]
    product: dict[int, Polynomials]  #: symmetric contraction, by output degree
    mix: dict[int, np.ndarray]  #: [channels, channels], linear layer after the contraction


@dataclass(frozen=True)
class Description:
    """A MACE for one head."""

    cutoff: float
    bessel: np.ndarray  #: [bessels], wave numbers in 1/length
    cutoff_power: int  #: p of the polynomial cutoff
    max_ell: int
    channels: int
    atomic_numbers: tuple[int, ...]
    embedding: np.ndarray  #: [elements, channels]
    layers: list[Layer]
    readouts: list[np.ndarray]  #: [channels] of every layer but the last
    final: tuple[np.ndarray, ...]  #: readout of the last layer: ([channels],) or ([channels, hidden], [hidden])
    scale: float
    atomic_energies: np.ndarray  #: [elements], including the shift of ScaleShiftMACE
