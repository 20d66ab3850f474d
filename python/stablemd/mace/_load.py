# SPDX-License-Identifier: BSD-3-Clause
"""``stablemd.mace.load``: a trained MACE as a :class:`~stablemd.potential.Potential`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from .._errors import ArgumentError, MissingFileError
from ..potential import Potential
from . import _jax_directory
from ._description import Description, Layer
from ._evaluate import energy_function, parameters


def load(path: str | PathLike[str], *, head: str | None = None, elements: Sequence[str] | None = None) -> Potential:
    """Load a trained MACE.

    ``path`` is a MACE-JAX directory (``config.json`` and ``params.msgpack``) or a mace-torch ``.model`` file. The
    latter is a pickle: loading it runs code that the file names, so load only files that you trust; it needs torch and
    mace-torch (``pip install 'stablemd[torch]'``).

    ``head`` chooses one of several heads. ``elements`` keeps only these chemical symbols, in this order, and drops the
    weights of all others.

    Energies are in eV and lengths in Angstrom. Raises ``ValueError`` for a model that cannot be evaluated, a damaged
    file, an unknown head or element, and ``FileNotFoundError``.
    """
    where = Path(path)
    if not where.exists():
        raise MissingFileError(f"{where}: no such file or directory")
    if where.is_dir():
        description, chosen = _jax_directory.read(where, head)
        kind = "mace-jax"
    else:
        from . import _torch_file

        description, chosen = _torch_file.read(where, head)
        kind = "mace-torch"
    if elements is not None:
        description = _with_elements(description, elements, str(where))
    symbols = tuple(chemical_symbols[number] for number in description.atomic_numbers)
    return Potential(
        energy_fn=energy_function(description),
        params=parameters(description),
        cutoff=description.cutoff,
        layers=len(description.layers),
        elements=symbols,
        atomic_energies=description.atomic_energies,
        name=where.name,
        source={"kind": kind, "file": where.name, "head": chosen},
    )


def _with_elements(description: Description, elements: Sequence[str], where: str) -> Description:
    known = [chemical_symbols[number] for number in description.atomic_numbers]
    wanted = list(elements)
    for symbol in wanted:
        if symbol not in known:
            raise ArgumentError(f"{where} knows no element {symbol!r}: it has {', '.join(known)}")
    if not wanted or len(set(wanted)) != len(wanted):
        raise ArgumentError(f"elements = {wanted} must name each element once")
    rows = np.array([known.index(symbol) for symbol in wanted])
    return replace(
        description,
        atomic_numbers=tuple(atomic_numbers[symbol] for symbol in wanted),
        embedding=description.embedding[rows],
        layers=[_layer_with_elements(layer, rows) for layer in description.layers],
        atomic_energies=description.atomic_energies[rows],
    )


def _layer_with_elements(layer: Layer, rows: np.ndarray) -> Layer:
    return replace(
        layer,
        skip={ell: matrices[rows] for ell, matrices in layer.skip.items()},
        product={ell: replace(part, weights=part.weights[rows]) for ell, part in layer.product.items()},
    )
