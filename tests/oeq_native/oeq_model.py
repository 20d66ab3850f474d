# SPDX-License-Identifier: BSD-3-Clause
"""A small potential whose energy goes through a convolution of oeq_native, or through the same sum in plain JAX.

``python oeq_model.py export FILE [plain]`` writes it as a bundle; ``python oeq_model.py run FILE`` evaluates it
natively and prints energy, forces and counters as JSON.
"""

from __future__ import annotations

import json
import sys

import numpy as np

CUTOFF = 3.0
CHANNELS = 3
TARGETS = ("conv_forward", "conv_backward")


def convolution(features, vectors, radial, graph):
    """Sum over neighbours of radial [edges, 2 channels] times scalar features times (1, vector): [rows, 4 channels]."""
    from stablemd.oeq import TensorProductConv, make_problem

    problem = make_problem(
        f"{CHANNELS}x0e",
        "1x0e+1x1o",
        f"{CHANNELS}x0e+{CHANNELS}x1o",
        [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)],
        dtype=str(features.dtype),
    )
    import jax.numpy as jnp

    harmonics = jnp.concatenate([jnp.ones_like(vectors[:, :1]), vectors], axis=1)
    return TensorProductConv(problem)(features, harmonics, radial, graph.centers, graph.neighbors)


def plain_convolution(features, vectors, radial, graph):
    """The same in plain JAX."""
    import jax.numpy as jnp

    sent = features[graph.neighbors]
    scalars = radial[:, :CHANNELS] * sent
    arrows = (radial[:, CHANNELS:] * sent)[:, :, None] * vectors[:, None, :]
    messages = jnp.concatenate([scalars, arrows.reshape(len(arrows), -1)], axis=1)
    return jnp.zeros((features.shape[0], 4 * CHANNELS), features.dtype).at[graph.centers].add(messages)


def energy(params, graph, convolve=convolution):
    import jax.numpy as jnp

    r2 = (graph.vectors**2).sum(1, keepdims=True)
    window = jnp.maximum(1 - r2 / CUTOFF**2, 0.0) ** 3
    radial = window * jnp.cos(r2 * params["frequency"])
    messages = convolve(params["embedding"][graph.species], graph.vectors, radial, graph)
    return (messages**2).sum(1)[: graph.rows[-1]]


def export(path: str, plain: bool) -> None:
    from stablemd import export_model, oeq

    oeq.register()  # so that JAX can evaluate the reference structure
    params = {"frequency": np.linspace(0.1, 0.6, 2 * CHANNELS), "embedding": np.linspace(0.5, 2.0, CHANNELS)[None]}
    export_model(
        lambda params, graph: energy(params, graph, plain_convolution if plain else convolution),
        params,
        path=path,
        cutoff=CUTOFF,
        layers=1,
        elements=["Ar"],
        dtype="float64",
        platforms=["cpu"],
        targets=() if plain else TARGETS,
    )


def run(path: str) -> None:
    from ase.build import bulk
    from stablemd import StableMDCalculator, _oeq_native

    atoms = bulk("Ar", "fcc", a=3.6, cubic=True) * (2, 2, 1)
    atoms.rattle(0.1, seed=7)
    atoms.calc = StableMDCalculator(path)
    result = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces().tolist()}
    result["programs"] = atoms.calc.stats()
    result["kernels"] = _oeq_native.stats()
    print(json.dumps(result))


if __name__ == "__main__":
    action, path, *rest = sys.argv[1:]
    if action == "export":
        export(path, rest == ["plain"])
    else:
        run(path)
