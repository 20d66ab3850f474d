# SPDX-License-Identifier: BSD-3-Clause
"""MACE as a function of a graph (Batatia et al., NeurIPS 2022), arranged for inference.

Features are [rows, component, channel] with the channels innermost, so that linear layers are matrix products of
contiguous rows. What depends on the element alone, as everything that enters the first layer does, is a table that is
read by species. Of the last layer only the scalars' readout is computed: linear maps that lead there are one matrix,
multiplied in float64 before anything is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..graph import Graph
from ._convolution import EdgeList, Params, convolution, network_parameters
from ._description import Description, GraphEmbedding, Layer, Readout
from ._elements import apply_by_element, by_element
from ._polynomials import Polynomials, Term
from ._repulsion import repulsion_energies

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


def contraction(
    product: dict[int, Polynomials], tables: dict[int, Any], species: Any
) -> Callable[[Any], dict[int, Any]]:
    """``f(features)`` of features [rows, components, channels]: by degree [rows, 2l+1, channels].

    ``tables`` are weights [elements, paths, channels] by degree; those of one element hold for all ``species`` [rows].
    """
    weights = {ell: table if table.shape[0] == 1 else table[species] for ell, table in tables.items()}

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


# ---- parameters ------------------------------------------------------------------------------------------------------


def _named(arrays: dict[int, np.ndarray]) -> Params:
    return {str(key): value for key, value in arrays.items()}


def _layer_parameters(model: Description, index: int) -> Params:
    layer = model.layers[index]
    own: Params = {
        "network": network_parameters(layer.network),
        "linear": _named(layer.linear),
        "product": {str(ell): polynomials.weights for ell, polynomials in layer.product.items()},
    }
    if layer.density is not None:
        own["density"] = network_parameters(layer.density.network)
    if layer.selector:
        own["selector"] = _named(layer.selector)
    mix, skip = layer.mix, layer.skip
    if index == len(model.layers) - 1:
        first = model.readouts[-1].matrices[0]
        mix, skip = {0: mix[0] @ first}, {0: skip[0] @ first} if skip else {}
    own["mix"] = _named(mix)
    residual = layer.gate.residual if layer.gate is not None else {}
    if layer.gate is not None:
        own["gate"] = _named(layer.gate.mix)
    if index > 0:
        return own | {"up": _named(layer.up), "residual": _named(residual), "skip": _named(skip)}
    # One table per element, for what enters the first layer depends on nothing else but graph inputs, whose embedding
    # goes through the same matrices.
    own["sent"] = model.embedding @ layer.up[0]
    if residual:
        own["residual"] = model.embedding @ residual[0]
    if skip:
        own["skip"] = (model.embedding[:, None] @ skip[0])[:, 0]
    if model.graph is not None:
        matrices = {"sent": layer.up, "residual": residual, "skip": skip}
        own["embedded"] = {name: by_degree[0] for name, by_degree in matrices.items() if by_degree}
    return own


def _readout_parameters(readout: Readout, *, last: bool) -> Params:
    """The last layer's maps contain the first matrix of its readout."""
    params: Params = {f"matrix{i}": matrix for i, matrix in enumerate(readout.matrices) if i > 0 or not last}
    return params | {f"bias{i}": bias for i, bias in enumerate(readout.biases)}


def _graph_parameters(graph: GraphEmbedding) -> Params:
    embedders = {
        name: {f"matrix{i}": matrix for i, matrix in enumerate(embedder.matrices)}
        | {f"bias{i}": bias for i, bias in enumerate(embedder.biases)}
        for name, embedder in graph.embedders.items()
    }
    return {"inputs": embedders} | ({} if graph.readout is None else {"readout": graph.readout})


def parameters(model: Description) -> Params:
    """Arrays for :func:`energy_function`, float64 and nested by layer."""
    params: Params = {"basis": model.basis.numbers}
    if model.graph is not None:
        params["graph"] = _graph_parameters(model.graph)
    for index in range(len(model.layers)):
        params[f"layer{index + 1}"] = _layer_parameters(model, index)
    for readout in model.readouts:
        last = readout.layer == len(model.layers) - 1
        params[f"layer{readout.layer + 1}"]["readout"] = _readout_parameters(readout, last=last)
    return params


# ---- the model -------------------------------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "abs": jnp.abs,
    "none": lambda values: values,
}


def _messages_mixed(layer: Layer, own: Params, sums: list[Any]) -> dict[int, Any]:
    """Linear layer over the summed messages, divided by the density: by degree [rows, 2l+1, channels]."""
    by_degree: dict[int, list[tuple[Any, int]]] = {}
    for path, part in zip(layer.paths, sums, strict=False):
        by_degree.setdefault(path.out, []).append((part, path.channels))
    mixed = {}
    for ell, parts in by_degree.items():
        ends = np.cumsum([channels for _, channels in parts])[:-1].tolist()
        matrices = jnp.split(own["linear"][str(ell)], ends)
        mixed[ell] = sum((part @ matrix for (part, _), matrix in zip(parts, matrices, strict=True)), start=0)
    if layer.density is None:
        return mixed
    inverse = 1 / (layer.density.alpha + layer.density.beta * sums[-1])
    return {ell: values * inverse[:, :, None] for ell, values in mixed.items()}


def _gated(own: Params, mixed: dict[int, Any], channels: int) -> dict[int, Any]:
    """Scalars through silu, higher degrees times sigmoids of the scalars behind; then a linear layer."""
    scalars = mixed[0]
    features = {0: jax.nn.silu(scalars[..., :channels])}
    for place, ell in enumerate(sorted(mixed)[1:], start=1):
        features[ell] = mixed[ell] * jax.nn.sigmoid(scalars[..., place * channels : (place + 1) * channels])
    return {ell: values @ own["gate"][str(ell)] for ell, values in features.items()}


def _times(values: dict[int, Any], matrices: Params) -> dict[int, Any]:
    return {int(ell): values[int(ell)] @ matrix for ell, matrix in matrices.items()}


def _added(values: dict[int, Any], more: dict[int, Any]) -> dict[int, Any]:
    return {ell: value + more[ell] if ell in more else value for ell, value in values.items()}


def _read(readout: Readout, own: Params, scalars: Any, *, last: bool) -> Any:
    """Energies [rows] of scalars [rows, channels]."""
    values = scalars
    for index in range(len(readout.matrices)):
        if index > 0 or not last:
            values = values @ own[f"matrix{index}"]
        if f"bias{index}" in own:
            values = values + own[f"bias{index}"]
        if index < len(readout.matrices) - 1:
            values = _ACTIVATIONS[readout.activation](values)
    return values[:, 0]


def _features(model: Description, layer: Layer, own: Params, mixed: dict[int, Any], residual: Any, rows: Any) -> Any:
    """What is contracted: [rows, (max_ell+1)^2, channels], from the mixed messages by degree."""
    if layer.selector:
        mixed = apply_by_element(rows, {ell: own["selector"][str(ell)] for ell in mixed}, mixed)
    if layer.gate is not None:
        mixed = _gated(own, _added(mixed, residual), model.channels)
    return jnp.concatenate([mixed[ell] for ell in sorted(mixed)], axis=1)


def _skipped(layer: Layer, own: Params, entering: dict[int, Any], rows: Any) -> dict[int, Any]:
    """The skip connection, by degree."""
    if not layer.skip:
        return {}
    matrices = {int(ell): matrix for ell, matrix in own["skip"].items()}
    entering = {ell: entering[ell] for ell in matrices}
    if len(layer.skip[0]) == 1:
        return {ell: values @ matrices[ell][0] for ell, values in entering.items()}
    return apply_by_element(rows, matrices, entering)


def _graph_embedding(graph: GraphEmbedding, own: Params, inputs: Mapping[str, Any]) -> Any:
    """[channels], what graph inputs add to the embedding of every element."""
    total: Any = 0
    for name, embedder in graph.embedders.items():
        weights = own["inputs"][name]
        if len(embedder.matrices) == 1:
            row = jnp.round(inputs[name]).astype(jnp.int32) + embedder.offset
            total = total + jax.lax.dynamic_index_in_dim(weights["matrix0"], row, keepdims=False)
        else:
            hidden = jax.nn.silu(inputs[name] * weights["matrix0"][0] + weights.get("bias0", 0))
            total = total + hidden @ weights["matrix1"] + weights.get("bias1", 0)
    return jax.nn.silu(total)


@dataclass(frozen=True)
class Blocks:
    """How many edges, and how many rows of one element, are taken at a time."""

    edges: int
    rows: int


#: A block stays in a CPU's cache; a GPU wants enough of them at a time to be busy.
BLOCKS = {"cpu": Blocks(256, 16), "cuda": Blocks(16384, 256)}


def energy_function(
    model: Description,
    convolution: Callable[..., Callable[..., list[Any]]] = convolution,
    blocks: Blocks = BLOCKS["cpu"],
    contraction: Callable[..., Callable[[Any], dict[int, Any]]] = contraction,
) -> Callable[[Params, Graph], Any]:
    """``f(params, graph)``: energy of each of the ``graph.rows[-1]`` leading rows without atomic energies.

    ``convolution``: how messages are made and summed, :func:`._convolution.convolution` or one like it;
    ``contraction``: how they are multiplied, :func:`contraction` or one like it.
    """
    elements, last = len(model.atomic_numbers), len(model.layers) - 1
    readouts = {readout.layer: readout for readout in model.readouts}

    def layer_output(
        index: int, own: Params, basis_numbers: Any, graph: Graph, entering: dict[int, Any], embedded: Any
    ) -> Any:
        """By degree; of the last layer only its scalars, times the first matrix of the readout.

        ``embedded`` [channels] is added to every element's embedding; None: nothing.
        """

        def entry(name: str, species: Any) -> dict[int, Any]:
            """Of the first layer: a row of a table for each species."""
            if name not in own:
                return {}
            table = own[name] if embedded is None else own[name] + embedded @ own["embedded"][name]
            return {0: table[species][:, None]}

        layer = model.layers[index]
        rows, count = graph.rows[index + 1], graph.edges[index + 1]
        species = graph.species[:rows]
        if index == 0:
            sent, residual, skip = entry("sent", graph.species), entry("residual", species), entry("skip", species)
            grouped = by_element(species, elements, blocks.rows) if layer.selector else None
        else:
            sent = _times(entering, own["up"])
            entering = {ell: values[:rows] for ell, values in entering.items()}
            residual = _times(entering, own["residual"])
            grouped = by_element(species, elements, blocks.rows)
            skip = _skipped(layer, own, entering, grouped)
        edges = EdgeList(graph.centers[:count], graph.neighbors[:count], rows, graph.species, blocks.edges)
        convolve = convolution(layer, model, own, basis_numbers, edges, constant_features=index == 0)
        sums = convolve(graph.vectors[:count], sent)
        features = _features(model, layer, own, _messages_mixed(layer, own, sums), residual, grouped)
        tables = {ell: own["product"][str(ell)] for ell in layer.product}
        made = contraction(layer.product, tables, species)(features)
        return _added(_times(made, own["mix"]), skip)

    def energy(params: Params, graph: Graph) -> Any:
        kept, edges = graph.rows[-1], graph.edges[-1]
        energies = []
        if model.repulsion is not None:
            centers = graph.centers[:edges]
            ends = graph.species[centers], graph.species[graph.neighbors[:edges]]
            pairs = repulsion_energies(model.repulsion, graph.vectors[:edges], *ends, model.cutoff)
            energies.append(jax.ops.segment_sum(pairs, centers, kept, indices_are_sorted=True))
        embedded = None
        if model.graph is not None:
            embedded = _graph_embedding(model.graph, params["graph"], graph.inputs)
            if model.graph.readout is not None:
                energies.append(jnp.full((kept,), embedded @ params["graph"]["readout"]))
        features: dict[int, Any] = {}
        for index in range(len(model.layers)):
            own = params[f"layer{index + 1}"]
            features = layer_output(index, own, params["basis"], graph, features, embedded)
            if index in readouts:
                scalars = features[0][:kept, 0]
                energies.append(_read(readouts[index], own["readout"], scalars, last=index == last))
        return sum(energies[1:], start=energies[0])

    return energy
