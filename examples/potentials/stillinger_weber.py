# SPDX-License-Identifier: BSD-3-Clause
"""Stillinger-Weber silicon, a classical potential with a three-body term, written in JAX and exported.

python examples/potentials/stillinger_weber.py [silicon.safetensors]
lmp -in examples/potentials/in.silicon

F. H. Stillinger and T. A. Weber, Phys. Rev. B 31, 5262 (1985), equations (2.3), (2.5) and table I.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import stablemd

SILICON = {
    "epsilon": 2.1683,  # eV
    "sigma": 2.0951,  # Angstrom
    "lambda": 21.0,
    "gamma": 1.2,
    "A": 7.049556277,
    "B": 0.6022245584,
    "p": 4.0,
    "cosine": -1.0 / 3.0,  # of the tetrahedral angle
}
REACH = 1.8  # the cutoff in units of sigma
CUTOFF = REACH * SILICON["sigma"]


def vanishing(strength, x):
    """exp(strength / (x - REACH)): with all its derivatives 0 at the cutoff, and 0 beyond."""
    inside = x < REACH
    gap = jnp.where(inside, x - REACH, -1.0)  # no division by zero in what is not used either
    return jnp.where(inside, jnp.exp(strength / gap), 0.0)


def energy(params, graph):
    """Energies of the atoms [rows] in eV; a pair's energy belongs half to each atom, a triplet's to its central one."""
    rows = graph.rows[-1]
    r = jnp.linalg.norm(graph.vectors, axis=1)
    x = r / params["sigma"]
    pair = params["A"] * (params["B"] * x ** -params["p"] - 1.0) * vanishing(1.0, x)

    def triplet(one, other):
        cosine = jnp.sum(one["direction"] * other["direction"], axis=1)
        return one["decay"] * other["decay"] * (cosine - params["cosine"]) ** 2

    edges = {"direction": graph.vectors / r[:, None], "decay": vanishing(params["gamma"], x)}
    triplets = stablemd.sum_edge_pairs(graph, triplet, edges, cutoff=CUTOFF)
    pairs = jax.ops.segment_sum(0.5 * pair, graph.centers, rows)
    return params["epsilon"] * (pairs + params["lambda"] * triplets)


def energy_by_moments(params, graph):
    """The same energies without pairs of edges: the angular function is a polynomial in cos(theta), so sums over pairs
    of neighbours are squares of sums over neighbours, less the pairs of a neighbour with itself.
    """
    rows = graph.rows[-1]
    r = jnp.linalg.norm(graph.vectors, axis=1)
    x = r / params["sigma"]
    pair = params["A"] * (params["B"] * x ** -params["p"] - 1.0) * vanishing(1.0, x)
    decay = vanishing(params["gamma"], x)
    direction = graph.vectors / r[:, None]
    cosine = params["cosine"]

    def at_centres(values):
        return jax.ops.segment_sum(values, graph.centers, rows)

    count = at_centres(decay)
    vector = at_centres(decay[:, None] * direction)
    tensor = at_centres(decay[:, None, None] * direction[:, :, None] * direction[:, None, :])
    all_pairs = jnp.sum(tensor**2, axis=(1, 2)) - 2 * cosine * jnp.sum(vector**2, axis=1) + cosine**2 * count**2
    with_itself = (1 - cosine) ** 2 * at_centres(decay**2)
    triplets = 0.5 * (all_pairs - with_itself)
    return params["epsilon"] * (at_centres(0.5 * pair) + params["lambda"] * triplets)


def export(path, dtype="float64", energy=energy):
    return stablemd.export_model(
        energy, SILICON, path=path, cutoff=CUTOFF, layers=1, elements=["Si"], dtype=dtype, name="Stillinger-Weber"
    )


if __name__ == "__main__":
    print(export(sys.argv[1] if len(sys.argv) > 1 else "silicon.safetensors"))
