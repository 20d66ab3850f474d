# SPDX-License-Identifier: BSD-3-Clause
"""Ziegler-Biersack-Littmark repulsion of pairs, as MACE adds it to its energy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ._convolution import cutoff_function
from ._description import Repulsion

#: Exponents of the universal screening function (Ziegler, Biersack, Littmark 1985), with the digits that MACE uses.
_EXPONENTS = (3.2, 0.9423, 0.4028, 0.2016)
#: e^2/(4 pi epsilon_0) in eV Angstrom, with MACE's digits.
_COULOMB = 14.3996


def repulsion_energies(repulsion: Repulsion, vectors: Any, center: Any, neighbor: Any, cutoff: float) -> Any:
    """Half of each pair's energy [edges], for ``vectors`` [edges, 3] and the species of both ends."""
    real = vectors.dtype
    charges, powers, radii = (
        jnp.asarray(array, real) for array in (repulsion.charges, repulsion.powers, repulsion.radii)
    )
    distance = jnp.sqrt((vectors * vectors).sum(axis=1))
    scaled = distance * (powers[center] + powers[neighbor]) * (1 / repulsion.length)
    screening = sum(
        float(size) * jnp.exp(-exponent * scaled)
        for size, exponent in zip(repulsion.coefficients, _EXPONENTS, strict=True)
    )
    energy = (0.5 * _COULOMB) * charges[center] * charges[neighbor] / distance * screening
    energy = energy * cutoff_function(distance / (radii[center] + radii[neighbor]), repulsion.power)
    return jnp.where(distance < cutoff, energy, 0)
