# SPDX-License-Identifier: BSD-3-Clause
"""Sums over pairs of edges that share a centre: three-body terms within the program contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ._errors import ArgumentError
from .graph import Graph


def sum_edge_pairs(graph: Graph, term: Callable[[Any, Any], Any], edges: Any, *, cutoff: float, layer: int = 0) -> Any:
    """Sum of a function of two edges over all unordered pairs of edges of a centre, for each row.

    The three-body term of a potential is ``sum_edge_pairs(graph, term, {"r": r, "unit": unit}, cutoff=cutoff)`` with

    ``term(first, second)``
        a function of two pytrees like ``edges`` that returns one number (or ``[width]`` numbers) per pair, ``[E]`` or
        ``[E, width]``. It is evaluated for many edges at once and must be symmetric, smooth, and finite with finite
        derivatives for any two edges, also for equal ones and beyond the cutoff.

    Parameters
    ----------
    graph
        What the energy function was given.
    edges
        Pytree of arrays ``[graph.edges[layer], ...]``: whatever ``term`` needs of an edge.
    cutoff
        Range of the term in the unit of ``graph.vectors``, at most the model's: an edge at or beyond it is in no pair.
    layer
        Layer whose edges and rows are meant; 0: the last one.

    Returns ``[graph.rows[layer]]`` or ``[graph.rows[layer], width]`` in the type that ``term`` returns.

    Edges of a centre follow one another, so the pairs are those of edge ``e`` and edge ``e + k`` for k = 1, 2, ... as
    long as any centre has so many neighbours: a loop of as many steps as the largest number of neighbours, each of
    them a pass over all edges. No number of neighbours is too large, and memory does not grow with it. Derivatives,
    also with respect to what ``term`` closes over, take a second loop of that kind. An angular function that is a
    polynomial in cos(theta) costs far less as sums over single edges: see docs/export.md.
    """
    number = layer or graph.layers
    if not 1 <= number <= graph.layers:
        raise ArgumentError(f"layer must be 0 or one of the model's 1..{graph.layers}, got {layer!r}")
    count, rows = graph.edges[number], graph.rows[number]
    for leaf in jax.tree.leaves(edges):
        if getattr(leaf, "shape", (None,))[:1] != (count,):
            shape = getattr(leaf, "shape", None)
            raise ArgumentError(f"edges must hold arrays of {count} edges, got one of shape {shape}")
    centers = graph.centers[:count]
    inside = jnp.sum(graph.vectors[:count] ** 2, axis=1) < cutoff**2
    steps = _largest_distance(centers, inside, rows)
    leaves, structure = jax.tree.flatten(edges)
    is_real = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    # What the term closes over, weights above all, becomes an argument, so that it has a derivative too.
    closed, constants = jax.closure_convert(term, edges, edges)

    def pair_values(k: Any, real: Any, others: Any) -> Any:
        """The term of each edge and the one ``k`` places behind it; 0 where these are no pair."""
        (real_leaves, weights), (other_leaves, centers, inside) = real, others
        sources = iter(real_leaves), iter(other_leaves)
        first = jax.tree.unflatten(structure, [next(sources[0 if one else 1]) for one in is_real])
        place = jnp.arange(count, dtype=jnp.int32)
        pair = inside & _behind(inside, k) & (centers == _behind(centers, k)) & (place < count - k)
        values = closed(first, jax.tree.map(lambda array: _behind(array, k), first), *weights)
        return jnp.where(pair.reshape(-1, *(1,) * (values.ndim - 1)), values, jnp.zeros_like(values))

    real = [leaf for leaf, one in zip(leaves, is_real, strict=True) if one], constants
    others = [leaf for leaf, one in zip(leaves, is_real, strict=True) if not one], centers, inside
    values = _sum_of_steps(pair_values, real, others, steps)
    return jax.ops.segment_sum(values, centers, rows, indices_are_sorted=False)


def _largest_distance(centers: Any, inside: Any, rows: int) -> Any:
    """How far apart in the list two edges of one centre are at most, of those within the cutoff."""
    place = jnp.arange(centers.shape[0], dtype=jnp.int32)
    last = jax.ops.segment_max(jnp.where(inside, place, -1), centers, rows)
    first = jax.ops.segment_min(jnp.where(inside, place, centers.shape[0]), centers, rows)
    return jnp.max(jnp.where(last < 0, 0, last - first))


def _behind(array: Any, k: Any) -> Any:
    """``array[e + k]`` at place ``e``; what follows the end is the beginning."""
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate([array, array]), k, array.shape[0])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_of_steps(values: Callable, real: Any, others: Any, steps: Any) -> Any:
    """Sum of ``values(k, real, others)`` over k = 1 .. steps.

    JAX cannot differentiate a loop of unknown length backwards; but as each step only adds, the derivative of the sum
    is the sum of the steps' derivatives.
    """
    shape = jax.eval_shape(values, jnp.int32(1), real, others)
    start = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.fori_loop(1, steps + 1, lambda k, total: total + values(k, real, others), start)


def _sum_and_inputs(values: Callable, real: Any, others: Any, steps: Any) -> tuple[Any, Any]:
    return _sum_of_steps(values, real, others, steps), (real, others, steps)


def _cotangents(values: Callable, inputs: Any, cotangent: Any) -> tuple[Any, None, None]:
    real, others, steps = inputs

    def add(k: Any, sums: Any) -> Any:
        _, pull_back = jax.vjp(lambda real: values(k, real, others), real)
        return jax.tree.map(jnp.add, sums, pull_back(cotangent)[0])

    return jax.lax.fori_loop(1, steps + 1, add, jax.tree.map(jnp.zeros_like, real)), None, None


_sum_of_steps.defvjp(_sum_and_inputs, _cotangents)
