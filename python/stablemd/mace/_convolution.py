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
from ._description import Basis, Description, Layer, Network, Path, Transform

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


def _harmonics(max_ell: int, vectors: Any, length_shift: float) -> tuple[Any, Any]:
    """Spherical harmonics [edges, (max_ell+1)^2] and lengths [edges] of vectors [edges, 3].

    MACE's harmonics are those of the opposite vector, from neighbour to centre. Models that have even parity alone, and
    no symmetry under reflection, can tell.
    """
    x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    distance = jnp.sqrt(x * x + y * y + z * z)
    inverse = -1 / (distance + length_shift)
    return jnp.stack(spherical_harmonics(max_ell, x * inverse, y * inverse, z * inverse), axis=1), distance


def _transformed(transform: Transform, distance: Any, center: Any, neighbor: Any) -> Any:
    """Distances as the radial basis sees them; ``center`` and ``neighbor`` are species of the edges' ends."""
    radii = jnp.asarray(transform.radii, distance.dtype)
    together = radii[center] + radii[neighbor]
    if transform.kind == "agnesi":
        # Witt et al., J. Chem. Phys. 159, 164101 (2023), "radial transformations"
        q, p, a = transform.parameters
        log = jnp.log(2 * distance / together)
        return 1 / (1 + a * jnp.exp(q * log) / (1 + jnp.exp((q - p) * log)))
    # From 3/4 of the radii far inside to the distance itself, by a tanh around the middle of 3/4 and 4/3 of the radii.
    (alpha,) = transform.parameters
    inner, outer = 0.75 * together, (4 / 3) * together
    weight = 0.5 * (1 + jnp.tanh(alpha / (outer - inner) * (distance - 0.5 * (inner + outer))))
    return inner + (distance - inner) * weight


def _chebyshev(x: Any, count: int) -> Any:
    """T_1 .. T_count of the first kind, by their recursion: [edges, count]."""
    values = [jnp.ones_like(x), x]
    while len(values) <= count:
        values.append(2 * x * values[-1] - values[-2])
    return jnp.stack(values[1 : count + 1], axis=1)


def _basis(basis: Basis, numbers: Any, x: Any, envelope: Any) -> Any:
    """[edges, functions] of distances x, times ``envelope`` [edges] unless that is None."""
    if basis.kind == "bessel":
        factor = 1 / x if envelope is None else envelope / x
        return jnp.sin(x[:, None] * numbers) * factor[:, None]
    if basis.kind == "gaussian":
        values = jnp.exp((-0.5 / basis.spacing**2) * (x[:, None] - numbers) ** 2)
    else:
        values = _chebyshev(x, len(basis.numbers))
    return values if envelope is None else values * envelope[:, None]


# ---- networks of an edge ---------------------------------------------------------------------------------------------


def _layer_norm(values: Any, scale_and_offset: Any) -> Any:
    """Over the last axis (Ba et al., arXiv:1607.06450), with torch's 1e-5 beside the variance."""
    centred = values - values.mean(axis=1, keepdims=True)
    variance = (centred * centred).mean(axis=1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * scale_and_offset[0] + scale_and_offset[1]


def network_parameters(network: Network) -> Params:
    params: Params = {"matrix": _numbered(network.matrices)}
    if network.biases:
        params["bias"] = _numbered(network.biases)
    if network.norms:
        params["norm"] = _numbered(network.norms)
    if network.neighbor is not None and network.center is not None:
        params["neighbor"], params["center"] = network.neighbor, network.center
    return params


def _numbered(arrays: list[np.ndarray]) -> Params:
    return {str(index): array for index, array in enumerate(arrays)}


def _network(params: Params, basis: Any, center: Any, neighbor: Any) -> Any:
    hidden, last = basis, len(params["matrix"]) - 1
    for index in range(last + 1):
        hidden = hidden @ params["matrix"][str(index)]
        if index == 0 and "neighbor" in params:
            hidden = hidden + params["neighbor"][neighbor] + params["center"][center]
        if "bias" in params:
            hidden = hidden + params["bias"][str(index)]
        if index < last:
            if "norm" in params:
                hidden = _layer_norm(hidden, params["norm"][str(index)])
            hidden = jax.nn.silu(hidden)
    return hidden


def edge_inputs(
    layer: Layer, model: Description, own: Params, basis_numbers: Any, vectors: Any, kinds: tuple[Any, Any]
) -> tuple[Any, ...]:
    """Harmonics [edges, (max_ell+1)^2], weights of all paths side by side, and if there is one the density [edges, 1].

    ``vectors`` is [edges, 3], ``kinds`` are the species of centres and neighbours.
    """
    harmonics, distance = _harmonics(model.max_ell, vectors, model.length_shift)
    transform = model.basis.transform
    x = distance if transform is None else _transformed(transform, distance, *kinds)
    cutoff = cutoff_function(distance * (1 / model.cutoff), model.cutoff_power)
    basis = _basis(model.basis, basis_numbers, x, None if layer.gated_by_cutoff else cutoff)
    gate = None
    if layer.gated_by_cutoff:
        gate = cutoff[:, None]
    elif layer.network.biases:
        # With biases a network does not vanish with its basis: the neighbour list of the original ends it.
        gate = (distance < model.cutoff)[:, None].astype(cutoff.dtype)
    found = [_network(own["network"], basis, *kinds)]
    if layer.density is not None:
        found.append(jnp.tanh(_network(own["density"], basis, *kinds) ** 2))
    return (harmonics, *(values if gate is None else values * gate for values in found))


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
    layer: Layer, model: Description, own: Params, basis_numbers: Any, vectors: Any, kinds: Any, features: Any
) -> list[Any]:
    """Of one block of edges, per path [edges, 2*out+1, channels]; behind them the density [edges, 1] if there is one.

    ``kinds`` are the species of centres and neighbours, ``features`` those of the neighbours.
    """
    harmonics, weights, *density = edge_inputs(layer, model, own, basis_numbers, vectors, kinds)
    by_degree = jnp.split(harmonics, [ell**2 for ell in range(1, model.max_ell + 1)], axis=1)
    ends = np.cumsum([path.channels for path in layer.paths])[:-1].tolist()
    messages = [
        _path_message(path, by_degree[path.edge], features[path.node], weight)
        for path, weight in zip(layer.paths, jnp.split(weights, ends, axis=1), strict=True)
    ]
    return messages + density


# ---- the loops over blocks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EdgeList:
    """The edges of one layer: centres (ascending) below ``rows``, neighbours, and the species of all rows."""

    centers: Any
    neighbors: Any
    rows: int
    species: Any
    block: int  #: edges that are taken at a time

    @property
    def count(self) -> int:
        return self.centers.shape[0]


def _pad(array: Any, value: Any, block: int) -> Any:
    """A block more, so that the last block needs no special case."""
    tail = jnp.broadcast_to(jnp.asarray(value, array.dtype), (block, *array.shape[1:]))
    return jnp.concatenate([array, tail])


def padded_edges(edges: EdgeList, vectors: Any, cutoff: float) -> tuple[Any, Any, Any]:
    """Centres, neighbours, vectors with a block more, which joins the last row to itself from beyond the cutoff.

    So it adds nothing.
    """
    centers, neighbors = (_pad(ends, edges.rows - 1, edges.block) for ends in (edges.centers, edges.neighbors))
    return centers, neighbors, _pad(vectors, np.array([1.01 * cutoff, 0.0, 0.0]), edges.block)


def _over_blocks(edges: EdgeList, vectors: Any, cutoff: float, body: Callable[..., Any], initial: Any) -> Any:
    """Run ``body(start, vectors, centers, neighbors, state)`` for every block."""
    centers, neighbors, vectors = padded_edges(edges, vectors, cutoff)

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        start, rest = state
        block = [jax.lax.dynamic_slice_in_dim(array, start, edges.block) for array in (vectors, centers, neighbors)]
        return start + edges.block, body(start, *block, rest)

    return jax.lax.while_loop(lambda state: state[0] < edges.count, step, (jnp.int32(0), initial))[1]


def ends_of(edges: EdgeList, centers: Any, neighbors: Any) -> tuple[Any, Any]:
    """Species of the centres and neighbours of some edges."""
    return _gather(edges.species, centers, ascending=True), _gather(edges.species, neighbors)


def _gather(rows: Any, indices: Any, *, ascending: bool = False) -> Any:
    return jnp.asarray(rows).at[indices].get(mode="promise_in_bounds", indices_are_sorted=ascending)


def _scatter(rows: Any, indices: Any, values: Any, *, ascending: bool = False) -> Any:
    return rows.at[indices].add(values, mode="promise_in_bounds", indices_are_sorted=ascending)


def convolution(
    layer: Layer, model: Description, own: Params, basis_numbers: Any, edges: EdgeList, *, constant_features: bool
) -> Callable[[Any, dict[int, Any]], list[Any]]:
    """``f(vectors, features)``: sums of the messages at the centres, per path [rows, 2*out+1, channels of the path],
    and behind them the density [rows, 1] if the layer has one.

    ``vectors`` is [edges, 3] and ``features`` by degree [any rows, 2l+1, sent channels]. ``own`` holds the parameters
    of the layer's networks. Differentiable in reverse mode in the vectors and, unless ``constant_features``, in the
    features.
    """
    shapes = [(2 * path.out + 1, path.channels) for path in layer.paths] + [(1,)] * (layer.density is not None)

    def block_messages(vectors: Any, centers: Any, neighbors: Any, near: dict[int, Any]) -> list[Any]:
        return _messages(layer, model, own, basis_numbers, vectors, ends_of(edges, centers, neighbors), near)

    def near(features: dict[int, Any], neighbors: Any) -> dict[int, Any]:
        return {ell: _gather(values, neighbors) for ell, values in features.items()}

    @jax.custom_vjp
    def summed(vectors: Any, features: dict[int, Any]) -> list[Any]:
        def body(start: Any, vectors: Any, centers: Any, neighbors: Any, sums: list[Any]) -> list[Any]:
            del start
            messages = block_messages(vectors, centers, neighbors, near(features, neighbors))
            return [_scatter(s, centers, m, ascending=True) for s, m in zip(sums, messages, strict=True)]

        zeros = [jnp.zeros((edges.rows, *shape), vectors.dtype) for shape in shapes]
        return _over_blocks(edges, vectors, model.cutoff, body, zeros)

    def forward(vectors: Any, features: dict[int, Any]) -> tuple[list[Any], Any]:
        return summed(vectors, features), (vectors, features)

    def backward(saved: Any, gradients: list[Any]) -> tuple[Any, Any]:
        vectors, features = saved

        def body(start: Any, vectors: Any, centers: Any, neighbors: Any, state: Any) -> Any:
            on_vectors, on_features = state
            values = near(features, neighbors)
            incoming = [_gather(g, centers, ascending=True) for g in gradients]

            def messages(vectors: Any, values: Any) -> list[Any]:
                return block_messages(vectors, centers, neighbors, values)

            if constant_features:
                (of_vectors,) = jax.vjp(lambda v: messages(v, values), vectors)[1](incoming)
            else:
                of_vectors, on_near = jax.vjp(messages, vectors, values)[1](incoming)
                on_features = {ell: _scatter(on_features[ell], neighbors, on_near[ell]) for ell in on_features}
            return jax.lax.dynamic_update_slice_in_dim(on_vectors, of_vectors, start, 0), on_features

        room = jnp.zeros((edges.count + edges.block, 3), vectors.dtype)
        zeros = jax.tree.map(jnp.zeros_like, features)
        on_vectors, on_features = _over_blocks(edges, vectors, model.cutoff, body, (room, zeros))
        return on_vectors[: edges.count], on_features

    summed.defvjp(forward, backward)
    return summed
