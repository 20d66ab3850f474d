# SPDX-License-Identifier: BSD-3-Clause
"""The reference structure of a bundle: atoms with what JAX, and the original framework, gave at export. Without JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._bundle import Bundle
from ._errors import ExportError, FormatError
from ._graphs import HopGraph, fold_graph
from ._manifest import ORIGINAL_FIELDS, ORIGINAL_FORCES, REFERENCE_FIELDS, output_field

# Largest differences that two correct evaluations of one model may show: energy per atom, force; in float32 energies
# beyond 1 and forces count relatively.
_TOLERANCES = {"float64": (1e-8, 1e-7), "float32": (2e-6, 2e-5)}

# In double precision, against an original whose constants were rounded to float32 (relative 6e-8 each). All that a file
# of mace-torch rounds is read from it, except e3nn's tables, which both sides take exact; but of its coupling rows only
# independent ones are kept, and rows that depend on each other exactly do so no longer after rounding: up to 4e-9 in
# energy and 2e-8 in force (sic, bpa). Conversion from mace-torch to MACE-JAX rounds more.
_ROUNDED_CONSTANTS = (1e-7, 1e-6)


def tolerances(
    dtype: str, largest_energy: float, largest_force: float, constants: str = "float64"
) -> tuple[float, float]:
    """Of energy per atom and force, for values of this size, in the units that these have.

    ``constants``: in which precision the other side's are stored.
    """
    rounded = (dtype, constants) == ("float64", "float32")
    energy, force = _ROUNDED_CONSTANTS if rounded else _TOLERANCES[dtype]
    return energy * max(1.0, largest_energy), force * (max(1.0, largest_force) if dtype == "float64" else largest_force)


@dataclass(frozen=True)
class OriginalValues:
    """What the framework that a model comes from gives for the structure; float64, in the bundle's units."""

    framework: str
    dtype: str  #: in which precision its constants are stored
    energy: float
    forces: np.ndarray


@dataclass(frozen=True)
class Reference:
    """A structure and its values: energies include atomic energies; all float64, in the bundle's units."""

    numbers: np.ndarray
    positions: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    energy: float
    node_energies: np.ndarray
    forces: np.ndarray
    outputs: dict[str, np.ndarray] = field(default_factory=dict)  #: extra outputs, [atoms] or [atoms, width]
    original: OriginalValues | None = None
    inputs: dict[str, float] = field(default_factory=dict)  #: graph inputs that are not stored: the defaults

    def manifest(self) -> dict[str, Any]:
        if self.original is None:
            return {"energy": self.energy}
        theirs = {name: getattr(self.original, name) for name in ORIGINAL_FIELDS}
        return {"energy": self.energy, "original": theirs}

    def tensors(self) -> dict[str, np.ndarray]:
        return {
            "reference/numbers": self.numbers.astype(np.int64),
            "reference/positions": self.positions,
            "reference/cell": self.cell,
            "reference/pbc": self.pbc.astype(np.int64),
            "reference/node_energies": self.node_energies,
            "reference/forces": self.forces,
            **{f"reference/{output_field(name)}": values for name, values in self.outputs.items()},
            **({ORIGINAL_FORCES: self.original.forces} if self.original else {}),
        }

    def atoms(self) -> Any:
        from ase import Atoms

        return Atoms(numbers=self.numbers, positions=self.positions, cell=self.cell, pbc=self.pbc)


def stored_reference(bundle: Bundle) -> Reference:
    """The reference that a bundle holds. Raises :class:`FormatError` if it has none."""
    if not bundle.manifest.get("reference"):
        raise FormatError(f"{bundle.path} holds no reference structure to check against; export the model again")
    fields = {name: bundle.tensor(f"reference/{name}") for name in REFERENCE_FIELDS}
    fields["pbc"] = fields["pbc"] != 0
    outputs = {
        name: bundle.tensor(f"reference/{output_field(name)}") for name in bundle.manifest.get("node_outputs", {})
    }
    manifest, original = bundle.manifest["reference"], None
    if "original" in manifest:
        theirs = {name: manifest["original"][name] for name in ORIGINAL_FIELDS}
        original = OriginalValues(forces=bundle.tensor(ORIGINAL_FORCES), **theirs)
    return Reference(energy=float(manifest["energy"]), outputs=outputs, original=original, **fields)


def default_structure(elements: Sequence[str], cutoff: float) -> Any:
    """A small periodic crystal of all ``elements``, displaced and sheared, the same one every time (ase.Atoms).

    Neighbours are about as far apart as bonds between these elements, or closer if the cutoff asks for it.
    """
    from ase import Atoms
    from ase.data import atomic_numbers, covalent_radii

    draw = np.random.RandomState(7)  # its stream is frozen, that of default_rng is not
    side = 2
    while side**3 < len(elements):
        side += 1
    numbers = np.array([atomic_numbers[element] for element in elements])
    numbers = numbers[draw.permutation(np.arange(side**3) % len(numbers))]
    spacing = min(2.2 * float(np.mean(covalent_radii[numbers])), 0.7 * cutoff)
    grid = np.array([(a, b, c) for a in range(side) for b in range(side) for c in range(side)], dtype=float)
    strain = np.eye(3) + np.array([[0.02, 0.0, 0.0], [0.08, -0.01, 0.0], [-0.05, 0.06, 0.03]])
    cell = spacing * side * strain
    positions = spacing * (grid @ strain) + draw.uniform(-0.08, 0.08, (len(grid), 3)) * spacing
    return Atoms(numbers=numbers, positions=np.round(positions, 6), cell=np.round(cell, 6), pbc=True)


def structure_graph(atoms: Any, elements: Sequence[str], cutoff: float, layers: int) -> HopGraph:
    species = species_of(atoms, elements)
    return fold_graph(species, atoms.positions, np.asarray(atoms.cell), np.asarray(atoms.pbc), cutoff, layers)


def species_of(atoms: Any, elements: Sequence[str]) -> np.ndarray:
    known = {element: index for index, element in enumerate(elements)}
    unknown = sorted({symbol for symbol in atoms.symbols if symbol not in known})
    if unknown:
        raise ExportError(f"the reference structure has {', '.join(unknown)}, the model only {' '.join(elements)}")
    return np.array([known[symbol] for symbol in atoms.symbols], dtype=np.int32)
