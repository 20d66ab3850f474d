# SPDX-License-Identifier: BSD-3-Clause
"""Small potentials for tests of the export, the calculator, the C API and LAMMPS: quick to export and to compile.

Each function returns a :class:`stablemd.Potential`; write a bundle with ``stablemd.export_potential(potential, path)``
or

    python tests/potentials.py lennard_jones lennard_jones.safetensors [float32|float64]
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from stablemd import GraphInput
from stablemd.graph import Graph
from stablemd.potential import Potential


def _distances(vectors):
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=1))


def _smooth_step(r, inner, outer):
    """1 below ``inner``, 0 above ``outer``, twice differentiable between them."""
    t = jnp.clip((r - inner) / (outer - inner), 0.0, 1.0)
    return 1.0 - t**3 * (10.0 - 15.0 * t + 6.0 * t**2)


def _sum_over_edges(values, graph: Graph, layer: int):
    """Sum of ``values`` [edges[layer], ...] at their centres, for the rows that this layer computes."""
    count = graph.edges[layer]
    return jax.ops.segment_sum(values[:count], graph.centers[:count], graph.rows[layer], indices_are_sorted=False)


def lennard_jones(
    sigma: float = 3.4, epsilon: float = 0.0104, cutoff: float = 8.5, inner: float = 6.0, element: str = "Ar"
) -> Potential:
    """Lennard-Jones with the smooth cutoff of ``ase.calculators.lj.LennardJones(rc=cutoff, ro=inner, smooth=True)``."""

    def energy(params, graph: Graph):
        r2 = jnp.sum(graph.vectors * graph.vectors, axis=1)
        c6 = (params["sigma"] ** 2 / r2) ** 3
        rc2, ro2 = cutoff**2, inner**2
        step = (rc2 - r2) ** 2 * (rc2 + 2.0 * r2 - 3.0 * ro2) / (rc2 - ro2) ** 3
        step = jnp.where(r2 < ro2, 1.0, jnp.where(r2 < rc2, step, 0.0))
        pair = 4.0 * params["epsilon"] * (c6 * c6 - c6) * step
        return _sum_over_edges(0.5 * pair, graph, 1)

    params = {"sigma": np.float64(sigma), "epsilon": np.float64(epsilon)}
    return Potential(energy, params, cutoff, 1, (element,), np.zeros(1), name="smooth Lennard-Jones")


def embedded_atom(elements: tuple[str, ...] = ("Si", "C"), cutoff: float = 4.0) -> Potential:
    """One layer: pair repulsion, a density of neighbours with a square-root embedding, and a bond-direction term that
    makes it a three-body potential. Parameters are made up; both elements differ in all of them."""
    kinds = len(elements)
    params = {
        "repulsion": 40.0 + 13.0 * np.arange(kinds)[:, None] + 13.0 * np.arange(kinds)[None, :],
        "decay": 2.2 + 0.1 * np.arange(kinds),
        "density": 1.0 + 0.35 * np.arange(kinds),
        "embedding": 1.7 - 0.4 * np.arange(kinds),
        "angular": 0.25 + 0.1 * np.arange(kinds),
    }

    def energy(params, graph: Graph):
        r = _distances(graph.vectors)
        step = _smooth_step(r, 0.6 * cutoff, cutoff)
        centre, neighbour = graph.species[graph.centers], graph.species[graph.neighbors]
        decay = 0.5 * (params["decay"][centre] + params["decay"][neighbour])
        pair = 0.5 * params["repulsion"][centre, neighbour] * jnp.exp(-decay * r) * step
        weight = params["density"][neighbour] * jnp.exp(-1.1 * (r - 2.0)) * step
        density = _sum_over_edges(weight, graph, 1)
        direction = _sum_over_edges(weight[:, None] * graph.vectors / r[:, None], graph, 1)
        own = graph.species[: graph.rows[1]]
        embedding = -params["embedding"][own] * (jnp.sqrt(1.0 + density) - 1.0)
        angular = params["angular"][own] * jnp.sum(direction * direction, axis=1)
        return _sum_over_edges(pair, graph, 1) + embedding + angular

    energies = -3.0 + 1.25 * np.arange(kinds)
    return Potential(energy, params, cutoff, 1, elements, energies, name="embedded atom with a three-body term")


def message_passing(
    elements: tuple[str, ...] = ("Si", "C"), cutoff: float = 3.5, layers: int = 2, seed: int = 3
) -> Potential:
    """``layers`` layers in which each atom collects its neighbours' features, so that an atom feels others through
    ``layers`` edges. Weights are made up and differ between layers, elements and seeds."""
    kinds, width = len(elements), 4
    draw = np.random.RandomState(seed)
    params = {
        "species": draw.uniform(0.5, 1.5, (kinds, width)),
        "layers": [
            {"mix": draw.uniform(-0.6, 0.6, (width, width)), "range": draw.uniform(0.5, 1.2, width)}
            for _ in range(layers)
        ],
        "readout": draw.uniform(-0.8, 0.8, (layers, width)),
        "repulsion": np.float64(30.0),
    }

    def energy(params, graph: Graph):
        r = _distances(graph.vectors)[:, None]
        step = _smooth_step(r, 0.5 * cutoff, cutoff)
        final = graph.rows[-1]
        pair = 0.5 * params["repulsion"] * jnp.exp(-2.0 * r) * step
        total = _sum_over_edges(pair, graph, layers)[:, 0]
        features = params["species"][graph.species]
        for layer in range(1, layers + 1):
            weights, count = params["layers"][layer - 1], graph.edges[layer]
            radial = jnp.exp(-weights["range"] * (r[:count] - 2.0) ** 2) * step[:count]
            incoming = _sum_over_edges(radial * features[graph.neighbors[:count]], graph, layer)
            features = jnp.tanh((features[: graph.rows[layer]] + incoming) @ weights["mix"])
            total = total + features[:final] @ params["readout"][layer - 1]
        return total

    energies = np.linspace(-2.0, 1.0, kinds) if kinds > 1 else np.array([-2.0])
    return Potential(energy, params, cutoff, layers, elements, energies, name=f"{layers}-layer message passing")


def charge_transfer(elements: tuple[str, ...] = ("Si", "C"), cutoff: float = 3.5, scale: float = 1.0) -> Potential:
    """A pair repulsion whose atoms also have charges, which flow between neighbours of different elements, and
    moments, sums over the vectors to their neighbours; :func:`charges_and_moments` has both without JAX."""

    def energy(params, graph: Graph):
        r = _distances(graph.vectors)
        step = _smooth_step(r, 0.5 * cutoff, cutoff)
        centre, neighbour = graph.species[graph.centers], graph.species[graph.neighbors]
        flow = (params["attraction"][centre] - params["attraction"][neighbour]) * step
        outputs = {
            "charges": _sum_over_edges(flow, graph, 1),
            "moments": _sum_over_edges(step[:, None] * graph.vectors, graph, 1),
        }
        return _sum_over_edges(0.5 * params["repulsion"] * jnp.exp(-2.0 * r) * step, graph, 1), outputs

    params = {"repulsion": np.float64(30.0), "attraction": scale * (0.4 - 0.7 * np.arange(len(elements)))}
    return Potential(energy, params, cutoff, 1, elements, np.zeros(len(elements)), name="pair with charges")


def charges_and_moments(atoms, potential: Potential):
    """Extra outputs of :func:`charge_transfer`, from ASE's neighbour list."""
    from ase.neighborlist import neighbor_list

    centres, r, vectors, neighbours = neighbor_list("idDj", atoms, potential.cutoff)
    t = np.clip((r - 0.5 * potential.cutoff) / (0.5 * potential.cutoff), 0.0, 1.0)
    step = 1.0 - t**3 * (10.0 - 15.0 * t + 6.0 * t**2)
    attraction = potential.params["attraction"][[potential.elements.index(symbol) for symbol in atoms.symbols]]
    charges, moments = np.zeros(len(atoms)), np.zeros((len(atoms), 3))
    np.add.at(charges, centres, (attraction[centres] - attraction[neighbours]) * step)
    np.add.at(moments, centres, step[:, None] * vectors)
    return charges, moments


def charged_pairs(elements: tuple[str, ...] = ("Si", "C"), cutoff: float = 3.5, default: int = 0) -> Potential:
    """One layer: a repulsion that grows with the charge of the whole structure, a field on the number of neighbours,
    and an energy of the charge itself."""

    def energy(params, graph: Graph):
        r = _distances(graph.vectors)
        step = _smooth_step(r, 0.5 * cutoff, cutoff)
        charge = graph.inputs["charge"]
        pair = (1.0 + 0.2 * charge) * params["repulsion"] * jnp.exp(-2.0 * r) * step + graph.inputs["field"] * step
        return _sum_over_edges(pair, graph, 1) + 0.05 * charge**2

    inputs = {
        "charge": GraphInput(default=default, minimum=-2, maximum=2, integer=True),
        "field": GraphInput(default=0.25, maximum=10),
    }
    constants = np.zeros(len(elements))
    return Potential(
        energy, {"repulsion": np.float64(15.0)}, cutoff, 1, elements, constants, name="charged pairs", inputs=inputs
    )


POTENTIALS = {
    function.__name__: function
    for function in (lennard_jones, embedded_atom, message_passing, charge_transfer, charged_pairs)
}


if __name__ == "__main__":
    import sys

    from stablemd import export_potential

    kind, path, *rest = sys.argv[1:]
    print(export_potential(POTENTIALS[kind](), path, dtype=rest[0] if rest else "float64", progress=print))
