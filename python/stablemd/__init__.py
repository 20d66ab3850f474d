# SPDX-License-Identifier: BSD-3-Clause
"""StableMD: run trained JAX interatomic potentials natively in molecular-dynamics engines.

Importing this package loads nothing heavy; JAX, ASE and the native library come in with the names that need them.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_ERRORS = (
    "ArgumentError",
    "CompileError",
    "ExecutionError",
    "ExportError",
    "FileError",
    "FormatError",
    "InternalError",
    "MissingFileError",
    "OutOfMemoryError",
    "PluginError",
    "ProviderError",
    "StableMDError",
)

_HOME = {
    "ExportSummary": "_export",
    "Graph": "graph",
    "GraphInput": "_inputs",
    "Potential": "potential",
    "StableMDCalculator": "_calculator",
    "export_model": "_export",
    "export_potential": "_export",
    "sum_edge_pairs": "_edge_pairs",
    **dict.fromkeys(_ERRORS, "_errors"),
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'stablemd' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
