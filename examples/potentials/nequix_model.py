# SPDX-License-Identifier: BSD-3-Clause
"""A published JAX potential that knows nothing of StableMD: Nequix, an equivariant network built with e3nn-jax.

pip install nequix
python examples/potentials/nequix_model.py [nequix-mp-1.nqx] [nequix.safetensors]

Without a checkpoint a small model with random weights is exported. T. Koker and T. Smidt, "Training a foundation model
for materials on a budget", arXiv:2508.16067 (2025).
"""

from __future__ import annotations

import sys

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import stablemd
from ase.data import chemical_symbols
from nequix.model import Nequix, load_model

SMALL = {
    "atomic_numbers": [6, 14],
    "hidden_irreps": "8x0e + 8x1o + 4x2e",
    "lmax": 2,
    "cutoff": 4.0,
    "n_layers": 2,
    "radial_basis_size": 6,
    "radial_mlp_size": 16,
    "radial_mlp_layers": 2,
    "radial_polynomial_p": 6.0,
    "mlp_init_scale": 4.0,
    "index_weights": True,
    "layer_norm": True,
    "shift": -0.3,
    "scale": 1.4,
    "avg_n_neighbors": 12.0,
}


def random_model(seed=0):
    """A model and its configuration, as nequix.model.load_model returns them."""
    rest = {name: value for name, value in SMALL.items() if name != "atomic_numbers"}
    energies = [-9.0, -5.0]
    return Nequix(jax.random.key(seed), n_species=2, atom_energies=energies, **rest), SMALL


def export(path, model, config, dtype="float32"):
    # The engine adds the energies of free atoms in double precision, so they leave the model.
    atomic_energies = np.array(model.atom_energies, np.float64)
    model = equinox.tree_at(lambda m: m.atom_energies, model, jnp.zeros_like(model.atom_energies))
    weights, rest = equinox.partition(model, equinox.is_inexact_array)

    def energy(weights, graph):
        # Every layer computes all rows: those of the outer hops in vain, which the last rows[-1] do not feel.
        energies = equinox.combine(weights, rest).node_energies(
            graph.vectors, graph.species, senders=graph.neighbors, receivers=graph.centers
        )
        return energies[: graph.rows[-1], 0]

    # Nequix takes r_sender - r_receiver, and messages go from neighbours to centres: just our vectors.
    return stablemd.export_model(
        energy,
        weights,
        path=path,
        cutoff=config["cutoff"],
        layers=config["n_layers"],
        elements=[chemical_symbols[number] for number in config["atomic_numbers"]],
        atomic_energies=atomic_energies,
        dtype=dtype,
        name="Nequix",
    )


if __name__ == "__main__":
    checkpoint = next((word for word in sys.argv[1:] if word.endswith(".nqx")), None)
    output = next((word for word in sys.argv[1:] if word.endswith(".safetensors")), "nequix.safetensors")
    print(export(output, *(load_model(checkpoint) if checkpoint else random_model())))
