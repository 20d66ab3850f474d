# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import numpy as np
import pytest
from scipy.special import sph_harm_y
from stablemd.mace._angular import coupling, spherical_harmonics


def directions(count=40):
    vectors = np.random.default_rng().normal(size=(count, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def harmonics(unit, degree):
    return np.stack([np.asarray(y) for y in spherical_harmonics(degree, *unit.T)], axis=1)


def test_harmonics_agree_with_scipy():
    """Real combinations of scipy's complex harmonics with y as the polar axis."""
    unit = directions()
    x, y, z = unit.T
    polar, azimuth = np.arccos(y), np.arctan2(x, z)
    ours = harmonics(unit, 5)
    for degree in range(6):
        scale = np.sqrt(4 * np.pi)
        for m in range(-degree, degree + 1):
            value = sph_harm_y(degree, abs(m), polar, azimuth) * (-1) ** m
            part = value.real if m >= 0 else value.imag
            expected = scale * part * (np.sqrt(2) if m else 1)
            assert ours[:, degree**2 + degree + m] == pytest.approx(expected, abs=1e-12)


def test_harmonics_of_low_degree_are_the_known_polynomials():
    unit = directions()
    x, y, z = unit.T
    ours = harmonics(unit, 2)
    assert ours[:, 1:4] == pytest.approx(np.sqrt(3) * unit, abs=1e-13)
    second = np.sqrt(15) * np.stack([x * z, x * y, (3 * y**2 - 1) / np.sqrt(12), y * z, (z**2 - x**2) / 2], axis=1)
    assert ours[:, 4:9] == pytest.approx(second, abs=1e-13)


@pytest.mark.parametrize("degrees", [(1, 1, 2), (1, 2, 3), (2, 2, 2), (3, 2, 1), (3, 3, 2), (2, 4, 2)])
def test_coupled_harmonics_are_harmonics(degrees):
    """Coupling the harmonics of one direction to a third degree gives a multiple of those of that degree."""
    l1, l2, l3 = degrees
    ours = harmonics(directions(), 4)
    y1, y2, y3 = (ours[:, ell**2 : (ell + 1) ** 2] for ell in degrees)
    coupled = np.einsum("ni,nj,ijk->nk", y1, y2, coupling(l1, l2, l3))
    ratio = coupled[0, 0] / y3[0, 0]
    assert abs(ratio) > 1e-3
    assert coupled == pytest.approx(ratio * y3, abs=1e-12)


@pytest.mark.parametrize("degrees", [(0, 0, 0), (0, 3, 3), (1, 1, 1), (1, 2, 2), (2, 3, 4), (3, 3, 6)])
def test_couplings_are_orthonormal(degrees):
    table = coupling(*degrees).reshape(-1, 2 * degrees[2] + 1)
    assert table.T @ table == pytest.approx(np.eye(table.shape[1]), abs=1e-13)


def test_degrees_outside_the_triangle_are_refused():
    with pytest.raises(ValueError, match="degrees 1 and 1 do not couple to 3"):
        coupling(1, 1, 3)
