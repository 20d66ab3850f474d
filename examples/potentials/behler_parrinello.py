# SPDX-License-Identifier: BSD-3-Clause
"""A small Behler-Parrinello network for water in JAX, exported with a charge of each atom beside its energy.

python examples/potentials/behler_parrinello.py [water.safetensors]

J. Behler and M. Parrinello, Phys. Rev. Lett. 98, 146401 (2007); symmetry functions G2 and G4 of J. Behler, J. Chem.
Phys. 134, 074106 (2011), with a smoother cutoff. The weights are random: put yours in their place.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import stablemd

ELEMENTS = ["H", "O"]
CUTOFF = 4.0
RADIAL = [0.05, 0.2, 0.6, 1.5]  # eta of G2, 1/Angstrom^2
ANGULAR = [(0.01, 1.0, 1.0), (0.01, 1.0, -1.0), (0.05, 4.0, 1.0)]  # eta, zeta, lambda of G4
HIDDEN = 12


def cutoff_function(squared_distance):
    """(1 - (r / CUTOFF)^2)^3: a function of r^2, so that no square root has an infinite slope where r = 0."""
    return jnp.maximum(1.0 - squared_distance / CUTOFF**2, 0.0) ** 3


def symmetry_functions(graph):
    """Surroundings of each atom [rows, functions]: G2 by the neighbour's element, G4 by those of both neighbours."""
    rows, dtype = graph.rows[-1], graph.vectors.dtype
    squared = jnp.sum(graph.vectors**2, axis=1)
    element = jax.nn.one_hot(graph.species[graph.neighbors], len(ELEMENTS), dtype=dtype)

    gaussians = jnp.exp(-jnp.array(RADIAL, dtype) * squared[:, None]) * cutoff_function(squared)[:, None]
    radial = jax.ops.segment_sum(gaussians[:, :, None] * element[:, None, :], graph.centers, rows)

    eta, zeta, sign = jnp.array(ANGULAR, dtype).T

    def triplet(one, other):
        cosine = jnp.sum(one["vector"] * other["vector"], axis=1) * one["inverse"] * other["inverse"]
        opposite = jnp.sum((one["vector"] - other["vector"]) ** 2, axis=1)
        reach = jnp.exp(-eta * (one["squared"] + other["squared"] + opposite)[:, None])
        fade = cutoff_function(one["squared"]) * cutoff_function(other["squared"]) * cutoff_function(opposite)
        angle = 2 ** (1 - zeta) * jnp.maximum(1 + sign * cosine[:, None], 1e-12) ** zeta
        pair = one["element"][:, :, None] * other["element"][:, None, :]
        pair = jnp.stack([pair[:, 0, 0], pair[:, 0, 1] + pair[:, 1, 0], pair[:, 1, 1]], axis=1)  # HH, HO, OO
        return ((angle * reach * fade[:, None])[:, :, None] * pair[:, None, :]).reshape(len(pair), -1)

    edges = {"vector": graph.vectors, "squared": squared, "inverse": squared**-0.5, "element": element}
    angular = stablemd.sum_edge_pairs(graph, triplet, edges, cutoff=CUTOFF)
    return jnp.concatenate([radial.reshape(rows, -1), angular], axis=1)


def energy(params, graph):
    """Energies [rows] in eV, and charges [rows] in e; each element has a network of its own."""
    own = graph.species[: graph.rows[-1]]
    x = (symmetry_functions(graph) - params["shift"]) * params["scale"]
    outputs = jnp.zeros((len(x), 2), x.dtype)
    for number, network in enumerate(params["networks"]):
        hidden = jnp.tanh(x @ network["weights"] + network["bias"])
        result = jnp.tanh(hidden @ network["weights2"] + network["bias2"]) @ network["readout"]
        outputs = jnp.where((own == number)[:, None], result, outputs)
    return outputs[:, 0], {"charges": outputs[:, 1]}


def random_params(seed):
    draw = np.random.default_rng(seed)
    inputs = len(RADIAL) * len(ELEMENTS) + len(ANGULAR) * 3
    networks = [
        {
            "weights": draw.normal(0, inputs**-0.5, (inputs, HIDDEN)),
            "bias": draw.normal(0, 0.3, HIDDEN),
            "weights2": draw.normal(0, HIDDEN**-0.5, (HIDDEN, HIDDEN)),
            "bias2": draw.normal(0, 0.3, HIDDEN),
            "readout": draw.normal(0, 0.5, (HIDDEN, 2)),
        }
        for _ in ELEMENTS
    ]
    return {"shift": draw.uniform(0, 1, inputs), "scale": draw.uniform(0.5, 1.5, inputs), "networks": networks}


def export(path, dtype="float64", seed=1):
    return stablemd.export_model(
        energy,
        random_params(seed),
        path=path,
        cutoff=CUTOFF,
        layers=1,
        elements=ELEMENTS,
        atomic_energies={"H": -13.6, "O": -432.0},
        output_units={"charges": "e"},
        dtype=dtype,
        name="Behler-Parrinello network",
    )


if __name__ == "__main__":
    print(export(sys.argv[1] if len(sys.argv) > 1 else "water.safetensors"))
