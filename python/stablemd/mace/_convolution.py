# SPDX-License-Identifier: BSD-3-Clause
"""Messages and their sums: everything that happens on edges, in blocks of edges that stay in the cache.

For a few hundred atoms the messages of all edges together fill hundreds of megabytes, and an executable that touches
them anew at every step spends its time in page faults. So a loop takes one block of edges after the other: harmonics,
radial network, messages, sums. The gradient is a second such loop that computes the block again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._angular import spherical_harmonics
from ._description import Description, Layer, Path

#: Edges per block.
BLOCK = 256

Params = dict[str, Any]


# ---- geometry of an edge ---------------------------------------------------------------------------------------------


def cutoff_function(fraction: Any, power: int) -> Any:
    """MACE's polynomial cutoff of r/r_max, 1 at 0 and 0 from 1 on with two derivatives.

    1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2) is (1-x)^3 times the first p terms of the series of
    (1-x)^-3. In that form nothing cancels.
    """
    series = (power * (power + 1)) / 2
    for k in range(power - 1, 0, -1):
        series = series * fraction + (k * (k + 1)) / 2
    rest = jnp.maximum(1 - fraction, 0)
    return series * rest * rest * rest


def _geometry(model: Description, bessel: Any, vectors: Any) -> tuple[Any, Any]:
    """Spherical harmonics [edges, (max_ell+1)^2] and radial basis [edges, bessels] of vectors [edges, 3]."""
    x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    distance = jnp.sqrt(x * x + y * y + z * z)
    inverse = 1 / distance
    harmonics = spherical_harmonics(model.max_ell, x * inverse, y * inverse, z * inverse)
    envelope = cutoff_function(distance * (1 / model.cutoff), model.cutoff_power) * inverse
    return jnp.stack(harmonics, axis=1), jnp.sin(distance[:, None] * bessel) * envelope[:, None]


def _radial(params: Params, basis: Any) -> Any:
    hidden = basis
    for index in range(len(params) - 1):
        hidden = jax.nn.silu(hidden @ params[str(index)])
    return hidden @ params[str(len(params) - 1)]


# ---- messages --------------------------------------------------------------------------------------------------------


@jax.custom_vjp
def _outer(left: Any, right: Any) -> Any:
    """[edges, m], [edges, c] to [edges, m, c]."""
    return left[:, :, None] * right[:, None, :]


def _outer_forward(left: Any, right: Any) -> tuple[Any, tuple[Any, Any]]:
    return _outer(left, right), (left, right)


def _outer_backward(saved: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
    # As matrix-vector products: XLA's CPU backend does not vectorise a sum over the channels.
    left, right = saved
    return jnp.einsum("emc,ec->em", gradient, right), jnp.einsum("emc,em->ec", gradient, left)


_outer.defvjp(_outer_forward, _outer_backward)


def _path_message(path: Path, harmonics: Any, features: Any, weights: Any) -> Any:
    """[edges, 2*out+1, channels] from harmonics of one degree, features of one degree and radial weights."""
    if path.node == 0:
        return _outer(harmonics, weights * features[:, 0])
    edges = weights.shape[0]
    size = 2 * path.node + 1
    # [edges, node component, out component]
    table = np.asarray(path.coupling.transpose(1, 0, 2).reshape(2 * path.edge + 1, -1))
    filters = (harmonics @ table.astype(harmonics.dtype)).reshape(edges, size, 2 * path.out + 1)
    total = _outer(filters[:, 0], weights * features[:, 0])
    for m in range(1, size):
        total = total + _outer(filters[:, m], weights * features[:, m])
    return total


def _messages(
    layer: Layer, model: Description, radial: Params, bessel: Any, vectors: Any, features: dict[int, Any]
) -> list[Any]:
    """Of one block of edges, per path [edges, 2*out+1, channels]. ``features`` are those of the neighbours."""
    harmonics, basis = _geometry(model, bessel, vectors)
    by_degree = jnp.split(harmonics, [ell**2 for ell in range(1, model.max_ell + 1)], axis=1)
    weights = jnp.split(_radial(radial, basis), len(layer.paths), axis=1)
    return [
        _path_message(path, by_degree[path.edge], features[path.node], weight)
        for path, weight in zip(layer.paths, weights, strict=True)
    ]


# ---- the loops over blocks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EdgeList:
    """The edges of one layer: centres (ascending) below ``rows``, and neighbours."""

    centers: Any
    neighbors: Any
    rows: int

    @property
    def count(self) -> int:
        return self.centers.shape[0]


def _pad(array: Any, value: Any) -> Any:
    """A block more, so that the last block needs no special case."""
    tail = jnp.broadcast_to(jnp.asarray(value, array.dtype), (BLOCK, *array.shape[1:]))
    return jnp.concatenate([array, tail])


def padded_edges(edges: EdgeList, vectors: Any, cutoff: float) -> tuple[Any, Any, Any]:
    """Centres, neighbours, vectors with a block more, which joins the last row to itself from beyond the cutoff.

    So it adds nothing.
    """
    centers, neighbors = _pad(edges.centers, edges.rows - 1), _pad(edges.neighbors, edges.rows - 1)
    return centers, neighbors, _pad(vectors, np.array([1.01 * cutoff, 0.0, 0.0]))


def _over_blocks(edges: EdgeList, vectors: Any, cutoff: float, body: Callable[..., Any], initial: Any) -> Any:
    """Run ``body(start, vectors, centers, neighbors, state)`` for every block."""
    centers, neighbors, vectors = padded_edges(edges, vectors, cutoff)

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        start, rest = state
        block = [jax.lax.dynamic_slice_in_dim(array, start, BLOCK) for array in (vectors, centers, neighbors)]
        return start + BLOCK, body(start, *block, rest)

    return jax.lax.while_loop(lambda state: state[0] < edges.count, step, (jnp.int32(0), initial))[1]


def _gather(rows: Any, indices: Any, *, ascending: bool = False) -> Any:
    return rows.at[indices].get(mode="promise_in_bounds", indices_are_sorted=ascending)


def _scatter(rows: Any, indices: Any, values: Any, *, ascending: bool = False) -> Any:
    return rows.at[indices].add(values, mode="promise_in_bounds", indices_are_sorted=ascending)


def convolution(
    layer: Layer, model: Description, radial: Params, bessel: Any, edges: EdgeList, *, constant_features: bool
) -> Callable[[Any, dict[int, Any]], list[Any]]:
    """``f(vectors, features)``: sums of the messages at the centres, per path [rows, 2*out+1, channels].

    ``vectors`` is [edges, 3] and ``features`` by degree [any rows, 2l+1, channels]. Differentiable in reverse mode in
    the vectors and, unless ``constant_features``, in the features.
    """
    channels = model.channels

    def block_messages(vectors: Any, near: dict[int, Any]) -> list[Any]:
        return _messages(layer, model, radial, bessel, vectors, near)

    def near(features: dict[int, Any], neighbors: Any) -> dict[int, Any]:
        return {ell: _gather(values, neighbors) for ell, values in features.items()}

    @jax.custom_vjp
    def summed(vectors: Any, features: dict[int, Any]) -> list[Any]:
        def body(start: Any, vectors: Any, centers: Any, neighbors: Any, sums: list[Any]) -> list[Any]:
            del start
            messages = block_messages(vectors, near(features, neighbors))
            return [_scatter(s, centers, m, ascending=True) for s, m in zip(sums, messages, strict=True)]

        zeros = [jnp.zeros((edges.rows, 2 * path.out + 1, channels), vectors.dtype) for path in layer.paths]
        return _over_blocks(edges, vectors, model.cutoff, body, zeros)

    def forward(vectors: Any, features: dict[int, Any]) -> tuple[list[Any], Any]:
        return summed(vectors, features), (vectors, features)

    def backward(saved: Any, gradients: list[Any]) -> tuple[Any, Any]:
        vectors, features = saved

        def body(start: Any, vectors: Any, centers: Any, neighbors: Any, state: Any) -> Any:
            on_vectors, on_features = state
            values = near(features, neighbors)
            incoming = [_gather(g, centers, ascending=True) for g in gradients]
            if constant_features:
                (own,) = jax.vjp(lambda v: block_messages(v, values), vectors)[1](incoming)
            else:
                own, on_near = jax.vjp(block_messages, vectors, values)[1](incoming)
                on_features = {ell: _scatter(on_features[ell], neighbors, on_near[ell]) for ell in on_features}
            return jax.lax.dynamic_update_slice_in_dim(on_vectors, own, start, 0), on_features

        room = jnp.zeros((edges.count + BLOCK, 3), vectors.dtype)
        zeros = jax.tree.map(jnp.zeros_like, features)
        on_vectors, on_features = _over_blocks(edges, vectors, model.cutoff, body, (room, zeros))
        return on_vectors[: edges.count], on_features

    summed.defvjp(forward, backward)
    return summed
