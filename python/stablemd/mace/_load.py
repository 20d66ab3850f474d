# SPDX-License-Identifier: BSD-3-Clause
"""``stablemd.mace.load``: a trained MACE as a :class:`~stablemd.potential.Potential`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ase.data import atomic_numbers, chemical_symbols

from .._errors import ArgumentError, MissingFileError, argument
from ..graph import Graph
from ..potential import Potential
from . import _jax_files
from ._description import Description, with_elements
from ._evaluate import BLOCKS, energy_function, parameters


def load(
    path: str | PathLike[str],
    *,
    head: str | None = None,
    elements: Sequence[str] | None = None,
    features: Mapping[str, float] | None = None,
    kernels: Literal["xla", "oeq"] = "xla",
    gpu: str | None = None,
) -> Potential:
    """Load a trained MACE.

    ``path`` is a MACE-JAX model (a directory with ``config.json`` and ``params.msgpack``, one of a pair of ``.json``
    and ``.msgpack`` files, or a ``.ckpt``) or a mace-torch ``.model`` file, compiled or not. Files of mace-torch are
    pickles: loading one runs code that it names, so load only files that you trust. They need torch and mace-torch
    (``pip install torch mace-torch``).

    ``head`` chooses one of several heads. ``elements`` keeps only these chemical symbols, in this order, and drops the
    weights of all others. What the model embeds of the whole structure, such as its charge and spin, are inputs of the
    potential, which engines set; ``features`` are their defaults, such as ``{"charge": -1, "spin": 2}`` (or
    ``total_charge`` and ``total_spin``, as in the file). Without them charge is 0 and spin 1, as in mace-torch.

    ``kernels``: "xla" leaves everything to XLA; "oeq" makes the convolutions custom calls of OpenEquivariance's ops,
    which ``liboeq_native`` implements: for the CPU always, for CUDA if ``gpu`` names the GPU (such as "h200") that the
    stored kernels are made for, which needs the package ``openequivariance``. For the CPU the symmetric contraction is
    a custom call too.

    Energies are in eV and lengths in Angstrom. Raises ``ValueError`` for a model that cannot be evaluated, a damaged
    file, an unknown head or element, and ``FileNotFoundError``.
    """
    where = Path(path)
    if not where.exists():
        raise MissingFileError(f"{where}: no such file or directory")
    if _jax_files.is_model(where):
        description, chosen = _jax_files.read(where, head, dict(features or {}))
        kind = "mace-jax"
    else:
        from . import _torch_file

        description, chosen = _torch_file.read(where, head, dict(features or {}))
        kind = "mace-torch"
    if elements is not None:
        description = _with_elements(description, elements, str(where))
    symbols = tuple(chemical_symbols[number] for number in description.atomic_numbers)
    source: dict[str, object] = {"kind": kind, "file": where.name, "head": chosen, "kernels": kernels}
    if gpu is not None:
        source["gpu"] = gpu
    if features:
        source["features"] = dict(features)
    platform_energy_fns, targets = _with_kernels(description, kernels, gpu)
    return Potential(
        energy_fn=energy_function(description),
        params=parameters(description),
        cutoff=description.cutoff,
        layers=len(description.layers),
        elements=symbols,
        atomic_energies=description.atomic_energies,
        name=where.name,
        platform_energy_fns=platform_energy_fns,
        targets=targets,
        inputs={} if description.graph is None else description.graph.inputs,
        source=source,
    )


def _with_kernels(
    description: Description, kernels: str, gpu: str | None
) -> tuple[dict[str, Callable[[Any, Graph], Any]], tuple[str, ...]]:
    """Functions by platform and the targets of their custom calls."""
    if kernels not in ("xla", "oeq"):
        raise ArgumentError(f"{argument('kernels')} must be 'xla' or 'oeq', got {kernels!r}")
    if gpu is not None and kernels != "oeq":
        raise ArgumentError(
            f"{argument('gpu')} names the device of OpenEquivariance's kernels; it needs {argument('kernels', 'oeq')}"
        )
    on_cuda = {"cuda": energy_function(description, blocks=BLOCKS["cuda"])}
    if kernels == "xla":
        return on_cuda, ()
    from ..oeq import DEVICES, TARGETS
    from ._oeq_contraction import oeq_contraction
    from ._oeq_convolution import check_couplings, oeq_convolution

    if gpu is not None and gpu not in DEVICES:
        raise ArgumentError(f"{argument('gpu', gpu)} is not known; known are {', '.join(DEVICES)}")
    if gpu is not None and find_spec("openequivariance") is None:
        raise ArgumentError(
            f"{argument('gpu', gpu)} needs the Python part of OpenEquivariance: OEQ_NOTORCH=1 pip install"
            " openequivariance"
        )
    check_couplings(description)
    functions = on_cuda | {
        "cpu": energy_function(description, partial(oeq_convolution, gpu=None), contraction=oeq_contraction)
    }
    if gpu is not None:
        functions["cuda"] = energy_function(description, partial(oeq_convolution, gpu=gpu), BLOCKS["cuda"])
    return functions, TARGETS


def _with_elements(description: Description, elements: Sequence[str], where: str) -> Description:
    known = [chemical_symbols[number] for number in description.atomic_numbers]
    wanted = list(elements)
    for symbol in wanted:
        if symbol not in known:
            raise ArgumentError(f"{where} knows no element {symbol!r}: it has {', '.join(known)}")
    if not wanted or len(set(wanted)) != len(wanted):
        raise ArgumentError(f"{argument('elements', wanted)} must name each element once")
    return with_elements(description, tuple(atomic_numbers[symbol] for symbol in wanted))
