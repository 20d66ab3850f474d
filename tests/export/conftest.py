# SPDX-License-Identifier: BSD-3-Clause
"""Bundles that the tests of this folder share, each exported once per session."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))


@pytest.fixture(scope="session", autouse=True)
def executable_cache(request):
    """Compiled programs are kept between runs, apart from the user's."""
    folder = request.config.cache.mkdir("stablemd-executables")
    folder.chmod(0o700)
    before = os.environ.get("STABLEMD_CACHE")
    os.environ["STABLEMD_CACHE"] = str(folder)
    yield folder
    os.environ.pop("STABLEMD_CACHE")
    if before is not None:
        os.environ["STABLEMD_CACHE"] = before


@pytest.fixture
def rng():
    """Random numbers that differ in each run; pytest shows the seed of a test that fails."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return np.random.default_rng(seed)


class Bundles:
    """Exports the potentials of tests/potentials.py on demand: ``bundles("lennard_jones", "float64")``."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.summaries = {}

    def __call__(self, kind: str, dtype: str = "float64", **options) -> Path:
        from potentials import POTENTIALS
        from stablemd import export_potential

        key = (kind, dtype, *sorted(options.items()))
        if key not in self.summaries:
            path = self.folder / f"{kind}-{dtype}-{len(self.summaries)}.safetensors"
            self.summaries[key] = export_potential(POTENTIALS[kind](**options), path, dtype=dtype)
        return self.summaries[key].path


@pytest.fixture(scope="session")
def bundles(tmp_path_factory, executable_cache) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("bundles"))
