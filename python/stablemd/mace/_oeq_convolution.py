# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of a layer as one call of OpenEquivariance's ``conv`` op per derivative order.

The radial network and the harmonics are arrays over all edges; the kernel forms messages from them and sums these at
the centres without ever writing a message to memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..oeq import Instruction, Irreps, Problem, TensorProductConv, real_clebsch_gordan
from ._convolution import EdgeList, Params, _geometry, _radial
from ._description import Description, Layer, Path


def _strength(path: Path) -> float:
    """The path's coupling over the Clebsch-Gordan coefficients that the kernels are made from."""
    standard = real_clebsch_gordan(path.node, path.edge, path.out)
    factor = float((path.coupling * standard).sum())
    if not np.allclose(path.coupling, factor * standard, rtol=0, atol=1e-12):
        raise ValueError(f"the coupling of degrees {path.node}, {path.edge}, {path.out} is not e3nn's")
    return factor


def _irreps(channels: int, degrees: list[int]) -> Irreps:
    # A path's couplings do not depend on parities, which the description has checked: all are called even here.
    return Irreps(" + ".join(f"{channels}x{ell}e" for ell in degrees))


def _problem(layer: Layer, model: Description, dtype: str) -> Problem:
    senders = sorted(layer.up)
    paths = tuple(
        Instruction(senders.index(path.node), path.edge, place, "uvu", True, _strength(path))
        for place, path in enumerate(layer.paths)
    )
    return Problem(
        _irreps(model.channels, senders),
        _irreps(1, list(range(model.max_ell + 1))),
        _irreps(model.channels, [path.out for path in layer.paths]),
        paths,
        shared_weights=False,
        dtype=dtype,
        layout="ir_mul",
    )


@cache
def _operator(problem: Problem, gpu: str | None) -> TensorProductConv:
    return TensorProductConv(problem, gpu=gpu)


def oeq_convolution(
    layer: Layer,
    model: Description,
    radial: Params,
    bessel: Any,
    edges: EdgeList,
    *,
    constant_features: bool,
    gpu: str | None,
) -> Callable[[Any, dict[int, Any]], list[Any]]:
    """As :func:`._convolution.convolution`. ``gpu``: whose CUDA kernels the calls carry; None: for the CPU only."""

    def summed(vectors: Any, features: dict[int, Any]) -> list[Any]:
        harmonics, basis = _geometry(model, bessel, vectors)
        product = _operator(_problem(layer, model, vectors.dtype.name), gpu)
        sent = [features[ell].reshape(features[ell].shape[0], -1) for ell in sorted(features)]
        sums = product(jnp.concatenate(sent, axis=1), harmonics, _radial(radial, basis), edges.centers, edges.neighbors)
        widths = [(2 * path.out + 1) * model.channels for path in layer.paths]
        # The op computes a row for each row that sends; those from edges.rows on receive nothing.
        parts = jnp.split(sums[: edges.rows], np.cumsum(widths)[:-1], axis=1)
        return [part.reshape(edges.rows, -1, model.channels) for part in parts]

    return summed
