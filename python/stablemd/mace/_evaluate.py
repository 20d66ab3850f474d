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
from ._convolution import EdgeList, Params, convolution
from ._description import Description, Layer
from ._polynomials import Polynomials, Term

# ---- symmetric contraction -------------------------------------------------------------------------------------------


def _grouped_sum(terms: tuple[Term, ...], product: Callable[[tuple[int, ...]], Any]) -> Any:
    """Sum of coefficients times products, each coefficient applied once; None if there are no terms."""
    groups: dict[float, Any] = {}
    for indices, coefficient in terms:
        size = round(abs(coefficient), 13)
        known = groups.get(size)
        if known is None:
            groups[size] = product(indices) if coefficient > 0 else -product(indices)
        else:
            groups[size] = known + product(indices) if coefficient > 0 else known - product(indices)
    scaled = [value * size for size, value in groups.items()]
    return sum(scaled[1:], start=scaled[0]) if scaled else None


def _polynomial_sums(polynomials: Polynomials, weights: Any, features: list[Any]) -> list[Any]:
    """Weighted sum of the basis polynomials: per output component [rows, channels].

    ``weights`` is [rows, paths, channels] and ``features`` a list of [rows, channels].
    """
    products: dict[tuple[int, ...], Any] = {(i,): feature for i, feature in enumerate(features)}

    def product(indices: tuple[int, ...]) -> Any:
        if indices not in products:
            products[indices] = product(indices[:-1]) * features[indices[-1]]
        return products[indices]

    outputs: list[Any] = []
    for component in range(polynomials.components):
        total = None
        for path, components in enumerate(polynomials.terms):
            value = _grouped_sum(components[component], product)
            if value is not None:
                value = value * weights[:, path]
                total = value if total is None else total + value
        outputs.append(jnp.zeros_like(features[0]) if total is None else total)
    return outputs


def _contraction(product: dict[int, Polynomials], weights: dict[int, Any]) -> Callable[[Any], dict[int, Any]]:
    """``f(features)`` of features [rows, components, channels]: by degree [rows, 2l+1, channels]."""

    def split(features: Any) -> list[Any]:
        return [features[:, i] for i in range(features.shape[1])]

    def evaluate(features: list[Any]) -> dict[int, Any]:
        return {
            ell: jnp.stack(_polynomial_sums(polynomials, weights[ell], features), axis=1)
            for ell, polynomials in product.items()
        }

    # Fused with their neighbours, these hundreds of small operations would take XLA twice as long to compile.
    apart = jax.lax.optimization_barrier

    @jax.custom_vjp
    def contracted(features: Any) -> dict[int, Any]:
        return apart(evaluate(apart(split(features))))

    def backward(features: Any, gradients: dict[int, Any]) -> tuple[Any]:
        # Derivatives component by component, put together once: a slice's own derivative is a padded array for each.
        by_component = jax.vjp(evaluate, apart(split(features)))[1](apart(gradients))[0]
        return (jnp.stack(apart(by_component), axis=1),)

    contracted.defvjp(lambda features: (contracted(features), features), backward)
    return contracted


# ---- linear maps after a layer ---------------------------------------------------------------------------------------


def _is_inner(model: Description, index: int) -> bool:
    return 0 < index < len(model.layers) - 1


def _per_element(matrices: np.ndarray) -> np.ndarray:
    """[elements, in, out] side by side: [in, elements * out]."""
    return np.concatenate(list(matrices), axis=1)


def _after(model: Description, index: int) -> dict[int, np.ndarray]:
    """What a layer's features are multiplied by, by degree: the next layer's ``up`` and skip per element, a readout."""
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


def _gather_degrees(layer: Layer, own: Params, species: Any, sums: list[Any], elements: int) -> Any:
    """Linear layer over the summed messages: [rows, (max_ell+1)^2, channels]."""
    by_degree: dict[int, list[Any]] = {}
    for path, part in zip(layer.paths, sums, strict=True):
        by_degree.setdefault(path.out, []).append(part)
    features = []
    for ell, parts in by_degree.items():
        matrices = jnp.split(own["linear"][str(ell)], len(parts))
        mixed = sum((part @ matrix for part, matrix in zip(parts, matrices, strict=True)), start=0)
        features.append(mixed if layer.residual else _select(mixed, species, elements))
    return jnp.concatenate(features, axis=1)


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


def _next_inputs(
    following: Layer, out: dict[int, Any], species: Any, channels: int, elements: int
) -> tuple[dict[int, Any], dict[int, Any]]:
    """What a layer sends to the next: features of neighbours, and the skip connection, by degree."""
    sent = {ell: out[ell][..., :channels] for ell in following.up}
    if not following.residual:
        return sent, {}
    # Scalars end with the readout.
    stop = {ell: out[ell].shape[-1] - (1 if ell == 0 else 0) for ell in following.skip}
    skip = {ell: _select(out[ell][..., channels : stop[ell]], species, elements) for ell in following.skip}
    return sent, skip


def energy_function(
    model: Description, convolution: Callable[..., Callable[..., list[Any]]] = convolution
) -> Callable[[Params, Graph], Any]:
    """``f(params, graph)``: energy of each of the ``graph.rows[-1]`` leading rows without atomic energies.

    ``convolution``: how messages are made and summed, :func:`._convolution.convolution` or one like it.
    """
    channels, elements, last = model.channels, len(model.atomic_numbers), len(model.layers) - 1

    def energy(params: Params, graph: Graph) -> Any:
        kept = graph.rows[-1]
        energies = []
        skip: dict[int, Any] = {}
        sent = {0: params["layer1"]["sent"][graph.species][:, None]}
        for index, layer in enumerate(model.layers):
            own = params[f"layer{index + 1}"]
            rows, count = graph.rows[index + 1], graph.edges[index + 1]
            species = graph.species[:rows]
            edges = EdgeList(graph.centers[:count], graph.neighbors[:count], rows)
            convolve = convolution(layer, model, own["radial"], params["bessel"], edges, constant_features=index == 0)
            sums = convolve(graph.vectors[:count], sent)
            features = _gather_degrees(layer, own, species, sums, elements)
            weights = {ell: own["product"][str(ell)][species] for ell in layer.product}
            out = _mix(own, _contraction(layer.product, weights)(features), skip, species)
            if index < last:
                energies.append(out[0][:kept, 0, -1])
                sent, skip = _next_inputs(model.layers[index + 1], out, species, channels, elements)
        final = out[0][:kept, 0]
        energies.append(jax.nn.silu(final) @ params["final"] if len(model.final) == 2 else final[:, 0])
        return sum(energies[1:], start=energies[0])

    return energy
