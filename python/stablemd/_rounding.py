# SPDX-License-Identifier: BSD-3-Clause
"""Constants that a file holds rounded, though every model of its kind has the same ones. Needs NumPy alone."""

from __future__ import annotations

import numpy as np


def rounded_from(values: np.ndarray, exact: np.ndarray) -> bool:
    """Whether ``values`` are the ``exact`` ones, as double precision computes them or rounded to float32.

    The values tell whether they were rounded, not their type: a model in float32 may be cast to float64 and saved.
    """
    single = np.array_equal(values, values.astype(np.float32))
    return values.shape == exact.shape and np.allclose(values, exact, rtol=2.0**-24 if single else 0.0, atol=1e-14)
