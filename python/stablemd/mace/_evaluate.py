# SPDX-License-Identifier: BSD-3-Clause
"""MACE as a function of a graph (Batatia et al., NeurIPS 2022), arranged for inference.

Features are [rows, component, channel] with the channels innermost, so that linear layers are matrix products of
contiguous rows. What depends on the element alone is a table that is read by species. Linear maps that follow one
another are one matrix, multiplied in float64 before anything is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..graph import Graph
from ._angular import nonzeros, spherical_harmonics
from ._description import Description, Layer, Path
from ._polynomials import Polynomials

Params = dict[str, Any]


# ---- geometry of an edge ---------------------------------------------------------------------------------------------


def _cutoff(fraction: Any, power: int) -> Any:
    """MACE's polynomial cutoff of r/r_max, 1 at 0 and 0 from 1 on with two derivatives.

    1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2) is (1-x)^3 times the first p terms of the series of
    (1-x)^-3. In that form nothing cancels.
    """
    series = (power * (power + 1)) / 2
    for k in range(power - 1, 0, -1):
        series = series * fraction + (k * (k + 1)) / 2
    rest = jnp.maximum(1 - fraction, 0)
    return series * rest * rest * rest


def _edges(params: Params, vectors: Any, model: Description) -> tuple[list[Any], Any]:
    """Spherical harmonics, a list of [edges], and radial basis [edges, bessels]."""
    x, y, z = vectors[:, 0], vectors[:, 1], vectors[:, 2]
    distance = jnp.sqrt(x * x + y * y + z * z)
    inverse = 1 / distance
    harmonics = spherical_harmonics(model.max_ell, x * inverse, y * inverse, z * inverse)
    envelope = _cutoff(distance * (1 / model.cutoff), model.cutoff_power) * inverse
    waves = jnp.sin(distance[:, None] * params["bessel"])
    return harmonics, waves * envelope[:, None]


def _radial(params: Params, basis: Any) -> Any:
    hidden = basis
    for index in range(len(params) - 1):
        hidden = jax.nn.silu(hidden @ params[str(index)])
    return hidden @ params[str(len(params) - 1)]


# ---- messages --------------------------------------------------------------------------------------------------------


def _filters(path: Path, harmonics: list[Any]) -> dict[tuple[int, int], Any]:
    """By (node component, output component): the harmonics that couple them, [edges]."""
    first = path.edge**2
    sums: dict[tuple[int, int], Any] = {}
    for (node, edge, out), value in nonzeros(path.coupling):
        term = harmonics[first + edge] * value
        sums[node, out] = sums[node, out] + term if (node, out) in sums else term
    return sums


def _path_messages(path: Path, harmonics: list[Any], features: Any, radial: Any) -> list[Any]:
    """Messages of one path: per output component [edges, channels].

    ``features`` maps a node component to [edges, channels] at the neighbours.
    """
    filters = _filters(path, harmonics)
    messages = []
    for out in range(2 * path.out + 1):
        terms = [features[path.node**2 + node] * value[:, None] for (node, o), value in filters.items() if o == out]
        messages.append(radial * sum(terms[1:], start=terms[0]))
    return messages


def _messages(layer: Layer, harmonics: list[Any], features: dict[int, Any], radial: Any, channels: int) -> Any:
    """[edges, sum over paths of (2*out+1), channels]."""
    parts: list[Any] = []
    for index, path in enumerate(layer.paths):
        weights = radial[:, index * channels : (index + 1) * channels]
        parts += _path_messages(path, harmonics, features, weights)
    return jnp.stack(parts, axis=1)


def _collect(layer: Layer, messages: Any) -> dict[int, Any]:
    """Summed messages by degree, [rows, 2l+1, paths to l * channels]."""
    found: dict[int, list[Any]] = {}
    start = 0
    for path in layer.paths:
        stop = start + 2 * path.out + 1
        found.setdefault(path.out, []).append(messages[:, start:stop])
        start = stop
    return {ell: jnp.concatenate(parts, axis=-1) for ell, parts in found.items()}


# ---- symmetric contraction -------------------------------------------------------------------------------------------


def _contract(polynomials: Polynomials, weights: Any, features: list[Any]) -> list[Any]:
    """Weighted sum of the basis polynomials: per output component [rows, channels].

    ``weights`` is [rows, paths, channels] and ``features`` a list of [rows, channels].
    """
    products: dict[tuple[int, ...], Any] = {}

    def product(indices: tuple[int, ...]) -> Any:
        if len(indices) == 1:
            return features[indices[0]]
        if indices not in products:
            products[indices] = product(indices[:-1]) * features[indices[-1]]
        return products[indices]

    outputs: list[Any] = []
    for component in range(len(polynomials.terms[0])):
        total = None
        for path, components in enumerate(polynomials.terms):
            value = None
            for indices, coefficient in components[component]:
                term = product(indices) * coefficient
                value = term if value is None else value + term
            if value is not None:
                value = value * weights[:, path]
                total = value if total is None else total + value
        outputs.append(total)
    return outputs


# ---- linear maps after a layer ---------------------------------------------------------------------------------------


def _is_inner(model: Description, index: int) -> bool:
    return 0 < index < len(model.layers) - 1


def _per_element(matrices: np.ndarray) -> np.ndarray:
    """[elements, in, out] side by side: [in, elements * out]."""
    return np.concatenate(list(matrices), axis=1)


def _after(model: Description, index: int) -> dict[int, np.ndarray]:
    """What a layer's features are multiplied by, by degree: the next layer's ``up``, its skip per element, a readout."""
    if index == len(model.layers) - 1:
        first = model.final[0]
        return {0: first if first.ndim == 2 else model.scale * first[:, None]}
    following = model.layers[index + 1]
    maps = {}
    for ell, up in following.up.items():
        parts = [up]
        if following.residual and ell in following.skip:
            skip = following.skip[ell]
            if not _is_inner(model, index + 1):
                skip = skip @ _after(model, index + 1)[ell]
            parts.append(_per_element(skip))
        if ell == 0:
            parts.append(model.scale * model.readouts[index][:, None])
        maps[ell] = np.concatenate(parts, axis=1)
    return maps


def _named(arrays: dict[int, np.ndarray]) -> Params:
    return {str(key): value for key, value in arrays.items()}


def _layer_parameters(model: Description, index: int) -> Params:
    layer = model.layers[index]
    after = _after(model, index)
    linear = layer.linear
    if not layer.residual:
        linear = {ell: linear[ell] @ _per_element(layer.skip[ell]) for ell in linear}
    own: Params = {
        "radial": {str(i): matrix for i, matrix in enumerate(layer.radial)},
        "linear": _named(linear),
        "product": {str(ell): polynomials.weights for ell, polynomials in layer.product.items()},
    }
    if _is_inner(model, index):
        return own | {"mix": _named(layer.mix), "after": _named(after)}
    own["mix"] = _named({ell: matrix @ after[ell] for ell, matrix in layer.mix.items()})
    if index == 0:
        own["sent"] = model.embedding @ layer.up[0]
        if layer.residual:
            own["skip"] = np.einsum("ec,eck->ek", model.embedding, layer.skip[0]) @ after[0]
    return own


def parameters(model: Description) -> Params:
    """Arrays for :func:`energy_function`, float64 and nested by layer."""
    params: Params = {"bessel": model.bessel}
    for index in range(len(model.layers)):
        params[f"layer{index + 1}"] = _layer_parameters(model, index)
    if len(model.final) == 2:
        params["final"] = model.scale * model.final[1]
    return params


# ---- the model -------------------------------------------------------------------------------------------------------


def _select(per_element: Any, species: Any, elements: int) -> Any:
    """[rows, components, elements * k] to [rows, components, k]: each row's own element."""
    size = per_element.shape[-1] // elements
    own = species[:, None, None]
    total = per_element[..., :size]
    for element in range(1, elements):
        total = jnp.where(own == element, per_element[..., element * size : (element + 1) * size], total)
    return total


def _product(layer: Layer, own: Params, species: Any, summed: dict[int, Any], elements: int) -> dict[int, Any]:
    """Symmetric contraction of the summed messages: by degree [rows, 2l+1, channels]."""
    features = []
    for ell in sorted(summed):
        mixed = summed[ell] @ own["linear"][str(ell)]
        if not layer.residual:
            mixed = _select(mixed, species, elements)
        features += [mixed[:, m] for m in range(2 * ell + 1)]
    result = {}
    for ell, polynomials in layer.product.items():
        weights = own["product"][str(ell)][species]
        result[ell] = jnp.stack(_contract(polynomials, weights, features), axis=1)
    return result


def _neighbour_features(sent: dict[int, Any], neighbors: Any) -> dict[int, Any]:
    features = {}
    for ell, values in sent.items():
        near = values.at[neighbors].get(mode="promise_in_bounds")
        features |= {ell**2 + m: near[:, m] for m in range(2 * ell + 1)}
    return features


def _mix(own: Params, made: dict[int, Any], skip: dict[int, Any], species: Any) -> dict[int, Any]:
    """Everything that is linear in a layer's features, by degree."""
    out = {}
    for ell, values in made.items():
        mixed = values @ own["mix"][str(ell)]
        if ell in skip:
            mixed = mixed + skip[ell][: mixed.shape[0]]
        elif ell == 0 and "skip" in own:
            mixed = mixed + own["skip"][species][:, None]
        out[ell] = mixed @ own["after"][str(ell)] if "after" in own else mixed
    return out


def energy_function(model: Description) -> Callable[[Params, Graph], Any]:
    """``f(params, graph)``: energy of each of the ``graph.rows[-1]`` leading rows without atomic energies."""
    channels, elements = model.channels, len(model.atomic_numbers)

    def energy(params: Params, graph: Graph) -> Any:
        harmonics, basis = _edges(params, graph.vectors, model)
        kept = graph.rows[-1]
        total: Any = None
        sent: dict[int, Any] = {}
        skip: dict[int, Any] = {}
        for index, layer in enumerate(model.layers):
            own = params[f"layer{index + 1}"]
            rows, edges = graph.rows[index + 1], graph.edges[index + 1]
            species, neighbors = graph.species[:rows], graph.neighbors[:edges]
            features = (
                {0: own["sent"][graph.species[neighbors]]} if index == 0 else _neighbour_features(sent, neighbors)
            )
            radial = _radial(own["radial"], basis[:edges])
            messages = _messages(layer, [y[:edges] for y in harmonics], features, radial, channels)
            summed = jax.ops.segment_sum(messages, graph.centers[:edges], num_segments=rows, indices_are_sorted=True)
            made = _product(layer, own, species, _collect(layer, summed), elements)
            out = _mix(own, made, skip, species)
            if index == len(model.layers) - 1:
                break
            following = model.layers[index + 1]
            sent = {ell: out[ell][..., :channels] for ell in following.up}
            skip = {}
            if following.residual:
                for ell in following.skip:
                    stop = out[ell].shape[-1] - (1 if ell == 0 else 0)
                    skip[ell] = _select(out[ell][..., channels:stop], species, elements)
            readout = out[0][:kept, 0, -1]
            total = readout if total is None else total + readout
        final = out[0][:kept, 0]
        last = jax.nn.silu(final) @ params["final"] if len(model.final) == 2 else final[:, 0]
        return last if total is None else total + last

    return energy
