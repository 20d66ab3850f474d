# SPDX-License-Identifier: BSD-3-Clause
"""The symmetric contraction of a layer as one call of ``oeq_native``'s op per derivative order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..oeq import ContractionProblem, SymmetricContraction
from ._polynomials import Polynomials


def contraction_problem(product: dict[int, Polynomials], features: int, dtype: str) -> ContractionProblem:
    """All degrees together: outputs and paths one degree after the other."""
    polynomials = []
    outputs = paths = 0
    for part in product.values():
        for path, components in enumerate(part.terms):
            for component, terms in enumerate(components):
                if terms:
                    listed = tuple((coefficient, *indices) for indices, coefficient in terms)
                    polynomials.append((outputs + component, paths + path, listed))
        outputs += part.components
        paths += len(part.terms)
    return ContractionProblem(features, outputs, paths, tuple(polynomials), dtype)


def oeq_contraction(
    product: dict[int, Polynomials], tables: dict[int, Any], species: Any
) -> Callable[[Any], dict[int, Any]]:
    """As :func:`._evaluate.contraction`."""

    def contracted(features: Any) -> dict[int, Any]:
        op = SymmetricContraction(contraction_problem(product, features.shape[1], features.dtype.name))
        table = jnp.concatenate([tables[ell] for ell in product], axis=1)
        rows = species if table.shape[0] > 1 else jnp.zeros_like(species)
        made = op(features, table, rows)
        ends = np.cumsum([part.components for part in product.values()])[:-1].tolist()
        return dict(zip(product, jnp.split(made, ends, axis=1), strict=True))

    return contracted
