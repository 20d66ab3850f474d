# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of a layer as one call of OpenEquivariance's ``conv`` op per derivative order.

The radial network and the harmonics are arrays over all edges; the kernel forms messages from them and sums these at
the centres without ever writing a message to memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ArgumentError
from ..oeq import Instruction, Irreps, Problem, TensorProductConv, real_clebsch_gordan
from ._convolution import EdgeList, Params, edge_inputs, ends_of, padded_edges
from ._description import Description, Layer, Path


def _strength(path: Path) -> float:
    """The path's coupling over the Clebsch-Gordan coefficients that the kernels are made from."""
    standard = real_clebsch_gordan(path.node, path.edge, path.out)
    factor = float((path.coupling * standard).sum())
    if not np.allclose(path.coupling, factor * standard, rtol=0, atol=1e-12):
        raise ArgumentError(
            f"the coupling of degrees {path.node}, {path.edge}, {path.out} is not e3nn's, which the kernels 'oeq' have"
            " built in; the kernels 'xla' take any"
        )
    return factor


def check_couplings(model: Description) -> None:
    """Raises :class:`ArgumentError` for a model with other coupling coefficients than the kernels'."""
    for layer in model.layers:
        for path in layer.paths:
            _strength(path)


def _irreps(blocks: list[tuple[int, int]]) -> Irreps:
    """Of (channels, degree) pairs."""
    # A path's couplings do not depend on parities, which the description has checked: all are called even here.
    return Irreps(" + ".join(f"{channels}x{ell}e" for channels, ell in blocks))


def _problem(layer: Layer, model: Description, dtype: str) -> Problem:
    senders = sorted(layer.up)
    paths = tuple(
        Instruction(senders.index(path.node), path.edge, place, "uvu", True, _strength(path))
        for place, path in enumerate(layer.paths)
    )
    return Problem(
        _irreps([(layer.up[ell].shape[1], ell) for ell in senders]),
        _irreps([(1, ell) for ell in range(model.max_ell + 1)]),
        _irreps([(path.channels, path.out) for path in layer.paths]),
        paths,
        shared_weights=False,
        dtype=dtype,
        layout="ir_mul",
    )


def _inputs_function(
    layer: Layer, model: Description, own: Params, basis_numbers: Any, kinds: tuple[Any, Any], edges: EdgeList
) -> Callable[[Any], tuple[Any, ...]]:
    """``f(vectors)``: what :func:`._convolution.edge_inputs` gives for all edges.

    ``vectors`` are those of ``edges`` and a block more, and so are the species ``kinds`` and the results. Block by
    block, and the gradient computes each block again, so that what lies between never leaves the cache.
    """

    def of_block(vectors: Any, start: Any) -> tuple[Any, ...]:
        own_kinds = take(kinds[0], start), take(kinds[1], start)
        return edge_inputs(layer, model, own, basis_numbers, vectors, own_kinds)

    def over_blocks(body: Callable[[Any], Any], widths: Any, dtype: Any) -> Any:
        def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
            start, written = state
            write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
            return start + edges.block, jax.tree.map(write, written, body(start))

        room = jax.tree.map(lambda width: jnp.zeros((edges.count + edges.block, width), dtype), widths)
        return jax.lax.while_loop(lambda state: state[0] < edges.count, step, (jnp.int32(0), room))[1]

    def take(array: Any, start: Any) -> Any:
        return jax.lax.dynamic_slice_in_dim(array, start, edges.block)

    @jax.custom_vjp
    def inputs(vectors: Any) -> tuple[Any, ...]:
        block = jax.ShapeDtypeStruct((edges.block, 3), vectors.dtype)
        widths = jax.tree.map(lambda array: array.shape[1], jax.eval_shape(of_block, block, 0))
        return over_blocks(lambda start: of_block(take(vectors, start), start), widths, vectors.dtype)

    def backward(vectors: Any, gradients: tuple[Any, ...]) -> tuple[Any]:
        def body(start: Any) -> Any:
            incoming = tuple(take(gradient, start) for gradient in gradients)
            return jax.vjp(lambda block: of_block(block, start), take(vectors, start))[1](incoming)[0]

        return (over_blocks(body, 3, vectors.dtype),)

    inputs.defvjp(lambda vectors: (inputs(vectors), vectors), backward)
    return inputs


@cache
def _operator(problem: Problem, gpu: str | None) -> TensorProductConv:
    return TensorProductConv(problem, gpu=gpu)


def oeq_convolution(
    layer: Layer,
    model: Description,
    own: Params,
    basis_numbers: Any,
    edges: EdgeList,
    *,
    constant_features: bool,
    gpu: str | None,
) -> Callable[[Any, dict[int, Any]], list[Any]]:
    """As :func:`._convolution.convolution`. ``gpu``: whose CUDA kernels the calls carry; None: for the CPU only."""

    def summed(vectors: Any, features: dict[int, Any]) -> list[Any]:
        centers, neighbors, vectors = padded_edges(edges, vectors, model.cutoff)
        kinds = ends_of(edges, centers, neighbors)
        inputs = _inputs_function(layer, model, own, basis_numbers, kinds, edges)
        harmonics, weights, *density = inputs(vectors)
        product = _operator(_problem(layer, model, vectors.dtype.name), gpu)
        sent = [features[ell].reshape(features[ell].shape[0], -1) for ell in sorted(features)]
        sums = product(jnp.concatenate(sent, axis=1), harmonics, weights, centers, neighbors)
        widths = [(2 * path.out + 1) * path.channels for path in layer.paths]
        # The op computes a row for each row that sends; those from edges.rows on receive nothing.
        parts = jnp.split(sums[: edges.rows], np.cumsum(widths)[:-1], axis=1)
        parts = [part.reshape(edges.rows, -1, path.channels) for path, part in zip(layer.paths, parts, strict=True)]
        return parts + [jax.ops.segment_sum(d, centers, edges.rows, indices_are_sorted=True) for d in density]

    return summed
