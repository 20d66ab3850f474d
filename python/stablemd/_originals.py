# SPDX-License-Identifier: BSD-3-Clause
"""Evaluation of a model by the framework that it was trained with, in double precision: the values to reproduce."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ._bundle import read_bundle
from ._errors import ArgumentError, FormatError, MissingFileError, StableMDError
from ._inputs import ALIASES, GraphInput, input_name, input_values
from ._rounding import rounded_from


@dataclass(frozen=True)
class Values:
    """Of one structure in eV and eV/Angstrom, float64: energy with atomic energies, forces [atoms, 3]."""

    energy: float
    forces: np.ndarray


@dataclass(frozen=True)
class Original:
    """A framework with a model: its name, and a function of ``ase.Atoms``."""

    framework: str
    evaluate: Callable[[Any], Values]
    dtype: str  #: precision in which its constants are stored: float32 ones are rounded, whatever evaluates them


def open_original(
    path: Path,
    head: str | None = None,
    inputs: Mapping[str, GraphInput] | None = None,
    fixed: Mapping[str, float] | None = None,
) -> Original:
    """The evaluator of a mace-torch ``.model`` file (a pickle: opening it runs code from it) or of a bundle.

    ``inputs``: what the model takes of the whole structure, from ``Atoms.info`` or with these defaults; ``fixed``:
    values of it that hold for all structures, as in bundles without graph inputs.

    Raises :class:`ArgumentError` for other files and where mace-torch is not installed.
    """
    if not path.exists():
        raise MissingFileError(f"there is no file {path} to compare with")
    if path.suffix == ".safetensors":
        return _bundle(path, inputs or {}, fixed or {})
    if path.is_dir() or path.suffix in (".json", ".msgpack", ".npz", ".ckpt"):
        raise ArgumentError(
            f"{path} looks like a MACE-JAX model, and PyPI has no MACE-JAX; compare with the mace-torch .model file"
            " that it comes from, or with a bundle"
        )
    return _mace_torch(path, head, inputs or {}, fixed or {})


def has_original(path: Path) -> bool:
    """Whether the framework of a model is here to evaluate it."""
    from importlib.util import find_spec

    return path.is_file() and path.suffix == ".model" and all(map(find_spec, ("torch", "mace")))


def _bundle(path: Path, inputs: Mapping[str, GraphInput], fixed: Mapping[str, float]) -> Original:
    from ._calculator import StableMDCalculator

    dtype = read_bundle(path).manifest["dtype"]
    return Original(f"the bundle {path.name}", _evaluator(StableMDCalculator(path), inputs, fixed), dtype)


def _mace_torch(path: Path, head: str | None, inputs: Mapping[str, GraphInput], fixed: Mapping[str, float]) -> Original:
    from .mace._foreign import foreign

    what = foreign(path)
    if what:
        raise FormatError(f"{path} {what}")
    options: dict[str, Any] = {} if head is None else {"head": head}
    # Its calculator looks for charge and spin in ``Atoms.info`` by these names, and for nothing else unasked.
    names = {*inputs, *map(input_name, fixed)}
    options["info_keys"] = {ALIASES.get(name, name): name for name in (*ALIASES, *names)}
    with _quiet():
        try:
            import torch
            from mace.calculators import MACECalculator
        except ImportError as error:
            raise ArgumentError(
                f"{path} is evaluated with mace-torch, which is not installed ({error}); pip install torch mace-torch"
            ) from None
        try:
            model = torch.load(path, map_location="cpu", weights_only=False)
            dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
            calculator = MACECalculator(models=[model], device="cpu", default_dtype="float64", **options)
            _sharpen_couplings(calculator.models[0])
        except StableMDError:
            raise
        except Exception as error:  # whatever a pickle raises
            raise FormatError(f"mace-torch cannot open {path}: {type(error).__name__}: {error}") from None
    return Original(f"mace-torch {version('mace-torch')}", _evaluator(calculator, inputs, fixed), dtype)


def _sharpen_couplings(model: Any) -> None:
    """Gives a module in float64 e3nn's coupling coefficients in double precision where it has them rounded.

    Their rounding is the file's, not the model's, and they are read without it.
    """
    from e3nn.o3 import wigner_3j

    for name, table in model.state_dict().items():
        match = re.search(r"_w3j_(\d+)_(\d+)_(\d+)$", name)
        if match:
            exact = wigner_3j(*map(int, match.groups()), dtype=table.dtype)
            if rounded_from(table.numpy(), exact.numpy()):
                table.copy_(exact)


def _evaluator(
    calculator: Any, inputs: Mapping[str, GraphInput], fixed: Mapping[str, float]
) -> Callable[[Any], Values]:
    values = {input_name(name): value for name, value in fixed.items()}

    def evaluate(atoms: Any) -> Values:
        atoms = atoms.copy()
        atoms.info = {**atoms.info, **input_values(atoms.info, inputs), **values}
        for alias in ALIASES.values():
            atoms.info.pop(alias, None)
        with _quiet():
            energy = float(calculator.get_property("energy", atoms))
            return Values(energy, np.asarray(calculator.get_property("forces", atoms), np.float64))

    return evaluate


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What frameworks say while they are imported and run is not about the user's model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
