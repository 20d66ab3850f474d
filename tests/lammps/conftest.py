# SPDX-License-Identifier: GPL-2.0-or-later
"""Bundles that the LAMMPS tests share, each exported once per session."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def toy_bundle(tmp_path_factory):
    """toy_bundle("lennard_jones", "float32", **options): path of a bundle of tests/potentials.py."""
    import potentials
    from stablemd import export_potential

    folder, made = tmp_path_factory.mktemp("bundles"), {}

    def make(kind, dtype="float64", **options):
        key = (kind, dtype, *sorted(options.items()))
        if key not in made:
            made[key] = folder / f"{kind}-{len(made)}-{dtype}.safetensors"
            export_potential(potentials.POTENTIALS[kind](**options), made[key], dtype=dtype)
        return made[key]

    return make


DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def mace_bundle(tmp_path_factory):
    """mace_bundle("sic", "float32", "oeq"): path of the bundle of a trained model of tests/data, from MACE-JAX."""
    from stablemd import export_potential, mace

    folder = tmp_path_factory.mktemp("mace")

    @cache
    def make(model, dtype="float64", kernels="xla"):
        path = folder / f"{model}-{dtype}-{kernels}.safetensors"
        potential = mace.load(DATA / model / "mace-jax", kernels=kernels)
        export_potential(potential, path, dtype=dtype, platforms=("cpu",))
        return path

    return make
