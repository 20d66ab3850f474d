# SPDX-License-Identifier: BSD-3-Clause
"""Sums over pairs of edges against loops over all pairs in NumPy, in values and derivatives."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stablemd import ArgumentError, Graph, sum_edge_pairs

CUTOFF = 2.0


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def random_graph(rng, rows=7, edges=40, padding=9):
    """Edges sorted by centre, some of them beyond the cutoff, then padding at a dummy row."""
    centers = np.sort(rng.integers(0, rows - 1, edges))
    vectors = rng.uniform(-1.6, 1.6, (edges, 3))
    centers = np.append(centers, np.full(padding, rows - 1))
    vectors = np.concatenate([vectors, np.tile([1.01 * CUTOFF, 0, 0], (padding, 1))])
    neighbors = np.append(rng.integers(0, rows - 1, edges), np.full(padding, rows - 1))
    return graph_of(vectors, centers, neighbors, rng.integers(0, 3, rows))


def graph_of(vectors, centers, neighbors, species, rows=None, edges=None):
    count, total = len(species), len(centers)
    return Graph(
        jnp.asarray(species, jnp.int32),
        jnp.asarray(vectors),
        jnp.asarray(centers, jnp.int32),
        jnp.asarray(neighbors, jnp.int32),
        jnp.int32(count - 1),
        rows or (count, count),
        edges or (total, total),
    )


def term(one, other):
    cosine = jnp.sum(one["v"] * other["v"], axis=1) / jnp.sqrt(one["r2"] * other["r2"])
    fade = (CUTOFF**2 - one["r2"]) ** 2 * (CUTOFF**2 - other["r2"]) ** 2
    return fade * (cosine - 0.3) ** 3 * (1 + one["kind"] * other["kind"])


def edges_of(graph, vectors=None):
    vectors = graph.vectors if vectors is None else vectors
    return {"v": vectors, "r2": jnp.sum(vectors**2, axis=1), "kind": graph.species[graph.neighbors]}


def loop(graph, one_pair, rows, edges=None):
    """The same sum, pair by pair; ``one_pair(e, f)`` is the value of two edges."""
    inside = np.linalg.norm(graph.vectors, axis=1) < CUTOFF
    count = len(graph.centers) if edges is None else edges
    total = np.zeros((rows, *np.shape(one_pair(0, 0))))
    for e, f in combinations(range(count), 2):
        if graph.centers[e] == graph.centers[f] and inside[e] and inside[f]:
            total[graph.centers[e]] += one_pair(e, f)
    return total


def in_numpy(graph):
    v, kind = np.array(graph.vectors), np.array(graph.species)[np.array(graph.neighbors)]
    r2 = (v**2).sum(axis=1)

    def one_pair(e, f):
        cosine = v[e] @ v[f] / np.sqrt(r2[e] * r2[f])
        fade = (CUTOFF**2 - r2[e]) ** 2 * (CUTOFF**2 - r2[f]) ** 2
        return fade * (cosine - 0.3) ** 3 * (1 + kind[e] * kind[f])

    return one_pair


def test_values(rng):
    for _ in range(5):
        graph = random_graph(rng)
        values = sum_edge_pairs(graph, term, edges_of(graph), cutoff=CUTOFF)
        np.testing.assert_allclose(values, loop(graph, in_numpy(graph), 7), atol=1e-10, rtol=1e-12)
        assert values[-1] == 0  # padding is in no pair


def test_several_numbers_per_pair(rng):
    graph = random_graph(rng)
    values = sum_edge_pairs(
        graph, lambda a, b: jnp.stack([term(a, b), a["r2"] * b["r2"]], 1), edges_of(graph), cutoff=2.0
    )
    r2, plain = np.array(edges_of(graph)["r2"]), in_numpy(graph)
    expected = loop(graph, lambda e, f: np.array([plain(e, f), r2[e] * r2[f]]), 7)
    np.testing.assert_allclose(values, expected, atol=1e-10, rtol=1e-12)


def test_derivatives(rng):
    """By fourth-order finite differences, of vectors and of a weight that the term closes over."""
    graph = random_graph(rng)
    readout = rng.normal(size=7)

    def energy(vectors, weight):
        def weighted(one, other):
            return weight * term(one, other) + (weight * 0.1 * term(one, other)) ** 2

        # the pairs are those of the graph as it is: only their values change
        return jnp.sum(readout * sum_edge_pairs(graph, weighted, edges_of(graph, vectors), cutoff=CUTOFF))

    slopes = jax.jit(jax.grad(energy, argnums=(0, 1)))(graph.vectors, 0.7)
    direction = rng.normal(size=graph.vectors.shape)
    for vectors_step, weight_step in ((direction, 0.0), (0.0 * direction, 1.0)):
        h = 2e-4
        along = [energy(graph.vectors + k * h * vectors_step, 0.7 + k * h * weight_step) for k in (-2, -1, 1, 2)]
        expected = (along[0] - 8 * along[1] + 8 * along[2] - along[3]) / (12 * h)
        found = jnp.sum(slopes[0] * vectors_step) + slopes[1] * weight_step
        assert float(found) == pytest.approx(float(expected), rel=1e-8, abs=1e-6)


def test_prefix_of_a_layer(rng):
    graph = random_graph(rng, rows=9, edges=60, padding=0)
    inner = int(np.searchsorted(graph.centers, 4))  # layer 2 computes rows 0..3
    graph = graph_of(graph.vectors, graph.centers, graph.neighbors, graph.species, (9, 9, 4), (60, 60, inner))
    first = {name: array[:inner] for name, array in edges_of(graph).items()}
    exact = loop(graph, in_numpy(graph), 9)
    np.testing.assert_allclose(sum_edge_pairs(graph, term, first, cutoff=CUTOFF), exact[:4], atol=1e-10, rtol=1e-12)
    values = sum_edge_pairs(graph, term, edges_of(graph), cutoff=CUTOFF, layer=1)
    np.testing.assert_allclose(values, exact, atol=1e-10, rtol=1e-12)


def test_shorter_range_than_the_model(rng):
    graph = random_graph(rng)
    short = sum_edge_pairs(graph, lambda a, b: jnp.ones_like(a["r2"]), edges_of(graph), cutoff=1.3)
    inside = np.bincount(graph.centers, np.linalg.norm(graph.vectors, axis=1) < 1.3, 7)
    np.testing.assert_array_equal(short, inside * (inside - 1) / 2)


def test_no_pairs():
    graph = graph_of(np.full((3, 3), 0.5), [0, 1, 2], [1, 2, 0], [0, 0, 0])
    assert not np.any(sum_edge_pairs(graph, term, edges_of(graph), cutoff=CUTOFF))
    slopes = jax.grad(lambda v: jnp.sum(sum_edge_pairs(graph, term, edges_of(graph, v), cutoff=CUTOFF)))(graph.vectors)
    assert not np.any(slopes)


def test_mistakes(rng):
    graph = random_graph(rng)
    with pytest.raises(ArgumentError, match="arrays of 49 edges, got one of shape"):
        sum_edge_pairs(graph, term, {"r": jnp.ones(7)}, cutoff=CUTOFF)
    with pytest.raises(ArgumentError, match="layer must be 0 or one of the model's"):
        sum_edge_pairs(graph, term, edges_of(graph), cutoff=CUTOFF, layer=2)
