# SPDX-License-Identifier: BSD-3-Clause
"""A bundle against the original model on several structures: deviations, and their picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._bundle import atomic_path, check_writable
from ._errors import ArgumentError, FileError, FormatError
from ._originals import Original, Values

_RATTLES = (0.02, 0.05, 0.1, 0.15)  # Angstrom


@dataclass(frozen=True)
class Parity:
    """Values of the original and of the bundle for each structure, in eV and Angstrom."""

    original: list[Values]
    bundle: list[Values]

    @property
    def energy(self) -> float:
        """Largest difference in energy per atom."""
        pairs = zip(self.original, self.bundle, strict=True)
        return max(abs(a.energy - b.energy) / len(a.forces) for a, b in pairs)

    @property
    def forces(self) -> tuple[np.ndarray, np.ndarray]:
        """All components of the original's forces and of the bundle's."""
        return tuple(np.concatenate([v.forces.ravel() for v in side]) for side in (self.original, self.bundle))

    @property
    def force(self) -> float:
        """Largest difference of a force component."""
        original, bundle = self.forces
        return float(np.abs(bundle - original).max())

    @property
    def force_rms(self) -> float:
        original, bundle = self.forces
        return float(np.sqrt(np.mean((bundle - original) ** 2)))

    def largest_energy(self, structures: Sequence[Any], atomic_energies: dict[str, float]) -> float:
        """Of the original, per atom and without the constant energies of the atoms."""
        constants = [sum(atomic_energies[symbol] for symbol in atoms.symbols) for atoms in structures]
        pairs = zip(self.original, constants, strict=True)
        return max(abs(values.energy - constant) / len(values.forces) for values, constant in pairs)

    @property
    def largest_force(self) -> float:
        return float(np.abs(self.forces[0]).max())


def rattled(atoms: Any) -> list[Any]:
    """The structure, and copies whose atoms are displaced at random, the same ones every time."""
    draw = np.random.RandomState(11)
    copies = [atoms.copy() for _ in range(1 + len(_RATTLES))]
    for copy, size in zip(copies[1:], _RATTLES, strict=True):
        copy.positions += draw.normal(0.0, size, copy.positions.shape)
    return copies


def read_structures(path: Path, elements: Sequence[str]) -> list[Any]:
    """All structures of a file that ASE reads. They may hold these elements only."""
    from ase.io import read

    if not path.is_file():
        raise FileError(f"there is no file {path} with structures")
    try:
        structures = read(path, ":")
    except Exception as error:  # whatever a reader of one of many formats raises
        raise FormatError(f"ASE cannot read structures from {path}: {type(error).__name__}: {error}") from None
    if not structures or not all(len(atoms) for atoms in structures):
        raise FormatError(f"{path} holds no structure, or one without atoms")
    unknown = sorted({symbol for atoms in structures for symbol in atoms.symbols} - set(elements))
    if unknown:
        raise ArgumentError(f"{path} has {', '.join(unknown)}, the model only {' '.join(elements)}")
    return structures


def compare(calculator: Any, original: Original, structures: Sequence[Any], report: Any) -> Parity:
    """Evaluates all structures with both. ``report`` is told the progress."""
    ours: list[Values] = []
    theirs: list[Values] = []
    for number, atoms in enumerate(structures, start=1):
        report(f"structure {number}/{len(structures)}, {len(atoms)} atoms")
        bare = atoms.copy()  # a file's structures carry results of their own
        theirs.append(original.evaluate(bare))
        forces = calculator.get_property("forces", bare)
        ours.append(Values(float(calculator.get_property("energy", bare)), forces))
    return Parity(theirs, ours)


def plot(parity: Parity, path: Path, title: str, framework: str) -> None:
    """Draws the forces of both against each other, and their differences; ``path`` has passed :func:`check_plot`."""
    import matplotlib
    from matplotlib.figure import Figure

    original, bundle = parity.forces
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(7.0, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        ends = [min(original.min(), bundle.min()), max(original.max(), bundle.max())]
        left.plot(ends, ends, color="0.7", lw=1, zorder=0)
        left.plot(original, bundle, ".", ms=3)
        left.set(xlabel=f"force, {framework} / (eV/Å)", ylabel="force, bundle / (eV/Å)", aspect="equal")
        right.axhline(0.0, color="0.7", lw=1, zorder=0)
        right.plot(original, bundle - original, ".", ms=3)
        right.set(xlabel=f"force, {framework} / (eV/Å)", ylabel="bundle - original / (eV/Å)")
        right.set_title(f"largest difference {parity.force:.1e}, rms {parity.force_rms:.1e}", fontsize=9)
        figure.suptitle(title, fontsize=10)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=150)


def check_plot(path: Path) -> None:
    """Complains before long work where a picture could not be drawn."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArgumentError("--plot needs matplotlib: pip install matplotlib") from None
    if path.suffix.lstrip(".").lower() not in Figure().canvas.get_supported_filetypes():
        raise ArgumentError(f"--plot: {path} has no suffix of a picture; use .png, .pdf or .svg")
    check_writable(path)
