# SPDX-License-Identifier: BSD-3-Clause
"""A potential ready for export: an energy function in JAX, its parameters, and what an engine must know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._inputs import GraphInput
from .graph import Graph


@dataclass(frozen=True)
class Potential:
    """What a loader returns and :func:`stablemd.export_model` takes.

    ``energy_fn(params, graph)`` returns the energy of each of the ``graph.rows[-1]`` leading rows without
    ``atomic_energies``. It must be traceable by JAX, differentiable in ``graph.vectors``, and work in
    ``graph.vectors.dtype``; an edge at or beyond ``cutoff`` must contribute nothing.
    """

    energy_fn: Callable[[Any, Graph], Any]
    params: Any  #: pytree (nested dicts) of numpy arrays, float64 where real; cast to the bundle's dtype at export
    cutoff: float
    layers: int
    elements: tuple[str, ...]  #: chemical symbols
    atomic_energies: np.ndarray  #: float64 [len(elements)], constant energy of an atom, added in double by the engine
    name: str = ""
    energy_unit: str = "eV"
    length_unit: str = "Angstrom"
    #: by platform, what its program is made from instead of ``energy_fn``: the same function by way of custom calls
    platform_energy_fns: Mapping[str, Callable[[Any, Graph], Any]] = field(default_factory=dict)
    targets: tuple[str, ...] = ()  #: names of the custom calls that these functions make
    source: dict[str, Any] = field(default_factory=dict)  #: free text for the manifest: kind of file, head, options
    #: what ``energy_fn`` finds in ``graph.inputs``, by name
    inputs: Mapping[str, GraphInput] = field(default_factory=dict)
