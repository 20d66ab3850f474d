# SPDX-License-Identifier: BSD-3-Clause
"""Where the polynomials of the reduced basis come from: derived here, or asked of cuequivariance."""

from __future__ import annotations

import numpy as np

from .._errors import ArgumentError
from ._polynomials import dense_to_coefficients
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
