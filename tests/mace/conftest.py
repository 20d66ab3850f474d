# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

# float64 references; every array in these tests states its type
jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="session")
def data() -> Path:
    return TESTS / "data"
