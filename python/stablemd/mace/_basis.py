# SPDX-License-Identifier: BSD-3-Clause
"""The reduced basis of the symmetric contraction: derived here, or asked of cuequivariance; and weights in it."""

from __future__ import annotations

import numpy as np

from .._errors import ArgumentError, FormatError
from ._polynomials import Polynomials, dense_to_coefficients, from_coefficients
from ._reduced import reduced_basis

#: Largest polynomial degree, by (max_ell, output degree), for which our derivation was compared with cuequivariance's
#: and gives the same polynomials. Beyond, several couplings share a type of monomial, and how cuequivariance mixes them
#: hangs on rounding errors in its elimination.
_DERIVED = {
    **{(max_ell, output): 4 for max_ell in (0, 1, 2) for output in (0, 1, 2)},
    **{(3, output): 4 if output == 0 else 3 for output in (0, 1, 2)},
    **{(4, output): 3 if output < 2 else 2 for output in (0, 1, 2)},
}


def coupling_basis(where: str, max_ell: int, degree: int, output: int) -> np.ndarray:
    """The reduced basis for one polynomial degree and output degree, float64 [paths, 2*output+1, monomials]."""
    if degree <= _DERIVED.get((max_ell, output), 1):
        return reduced_basis(max_ell, degree, output)
    try:
        import cuequivariance as cue
    except ImportError:
        raise ArgumentError(
            f"{where}: the reduced basis for max_ell = {max_ell}, correlation {degree}, l = {output} needs "
            "cuequivariance: pip install cuequivariance"
        ) from None
    names = [f"{ell}{'eo'[ell % 2]}" for ell in range(max_ell + 1)]
    wanted = cue.Irreps(cue.O3, f"{output}{'eo'[output % 2]}")
    basis = cue.reduced_symmetric_tensor_product_basis(
        cue.Irreps(cue.O3, "+".join(names)), degree, keep_ir=wanted, layout=cue.ir_mul
    )
    # [one axis per factor..., component, path]; its tensors are scaled together to one per component
    dense = np.concatenate(basis.segments, axis=-1)
    scale = np.sqrt((dense**2).sum() / (2 * output + 1))
    return dense_to_coefficients(np.moveaxis(dense, -2, 0) / scale, degree)


def reduced_polynomials(
    where: str,
    name: str,
    shape: tuple[int, int, int],
    outputs: tuple[int, ...],
    tensors: tuple[np.ndarray, np.ndarray | None],
) -> dict[int, Polynomials]:
    """Polynomials by output degree, from weights in the reduced basis, or others that a projection takes there.

    ``shape`` is (max_ell, correlation, elements or 1); ``tensors`` are the weights [elements, rows, channels] called
    ``name.weight`` and the projection [rows, reduced rows] or None.
    """
    max_ell, correlation, elements = shape
    weights, projection = tensors
    bases = {
        (degree, ell): coupling_basis(where, max_ell, degree, ell)
        for degree in range(1, correlation + 1)
        for ell in outputs
    }
    paths = sum(len(basis) for basis in bases.values())
    rows = paths
    if projection is not None:
        if projection.ndim != 2 or projection.shape[1] != paths:
            raise FormatError(f"{where}: {name}.projection has shape {projection.shape}, needs (any, {paths})")
        rows = projection.shape[0]
    if weights.ndim != 3 or weights.shape[:2] != (elements, rows):
        raise FormatError(f"{where}: {name}.weight has shape {weights.shape}, needs {(elements, rows)} + channels")
    if projection is not None:
        weights = np.einsum("eac,ab->ebc", weights, projection)
    parts: dict[int, list[tuple[int, np.ndarray, np.ndarray]]] = {ell: [] for ell in outputs}
    start = 0
    for (degree, ell), basis in bases.items():
        stop = start + len(basis)
        parts[ell].append((degree, basis, weights[:, start:stop]))
        start = stop
    return {ell: from_coefficients(parts[ell], (max_ell + 1) ** 2) for ell in outputs}
