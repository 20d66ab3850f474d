# SPDX-License-Identifier: BSD-3-Clause
import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config):
    config.addinivalue_line("markers", "exhaustive: slow, and like a test that always runs; OEQ_EXHAUSTIVE=1 runs it")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("OEQ_EXHAUSTIVE") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def double_precision():
    """References are float64; the setting is put back, also on failure."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def rng():
    """Fresh numbers in every run; the seed is in the report of a failing test."""
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    return np.random.default_rng(seed)
