# SPDX-License-Identifier: BSD-3-Clause
"""The ASE calculator: the same native code as LAMMPS runs, on neighbour lists from vesin."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import numpy as np
from ase import units
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes

from ._errors import ArgumentError, FormatError
from ._graphs import edge_forces, edge_virials, fold_graph
from ._native import evaluate, load

# What one unit of a bundle is in ASE's eV and Angstrom.
_ENERGY_UNITS = {
    "eV": 1.0,
    "kcal/mol": units.kcal / units.mol,
    "kJ/mol": units.kJ / units.mol,
    "Hartree": units.Hartree,
}
_LENGTH_UNITS = {"Angstrom": 1.0, "nm": units.nm, "Bohr": units.Bohr}


_of_parents: list[Any] = []


class StableMDCalculator(Calculator):
    """Evaluates a bundle in ASE.

    Parameters
    ----------
    model
        Path of the bundle (``stablemd export`` makes one).
    device
        "cpu" or "cuda".
    threads
        CPU threads of XLA; 0: all cores that the process may use.
    plugin
        Path of a PJRT plugin; None: $STABLEMD_PJRT_PLUGIN, else one of the known PyPI packages.
    cache
        Folder of the executable cache; None: the user's (``stablemd cache`` names it); "": none.

    Gives energy, free_energy and energies (eV, atomic energies included), forces (eV/Angstrom), stress and stresses
    (eV/Angstrom^3, Voigt order xx, yy, zz, yz, xz, xy, only where the cell has three vectors). An edge's virial goes
    half to each of its atoms, and ``stresses.sum(axis=0)`` is ``stress``, as in ``ase.calculators.lj``.

    Threads may share a calculator: they take turns. A process that was forked opens the bundle for itself.

    Raises the errors of :mod:`stablemd`: :class:`~stablemd.FileError`, :class:`~stablemd.FormatError` and
    :class:`~stablemd.PluginError` at construction, :class:`~stablemd.ArgumentError` for atoms that the model cannot
    take.
    """

    implemented_properties: ClassVar[list[str]] = [
        "energy",
        "free_energy",
        "energies",
        "forces",
        "stress",
        "stresses",
    ]
    name = "stablemd"

    def __init__(
        self,
        model: str | os.PathLike[str],
        device: str = "cpu",
        threads: int = 0,
        plugin: str | None = None,
        cache: str | os.PathLike[str] | None = None,
    ):
        options = {
            "device": device,
            "threads": threads,
            "plugin": plugin,
            "cache": None if cache is None else str(cache),
        }
        super().__init__(model=os.fspath(model), **options)
        self._open()

    def set(self, **options: Any) -> dict[str, Any]:
        """Changes options of the constructor; the bundle is opened anew, and results are forgotten."""
        before = dict(self.parameters)
        unknown = set(options) - set(before) if before else set()
        if unknown:
            raise ArgumentError(f"StableMDCalculator has no option {sorted(unknown)[0]!r}; it has {', '.join(before)}")
        changed = super().set(**options)
        if changed and before:
            self.reset()
            try:
                self._open()
            except Exception:
                self.parameters.update(before)
                raise
        return changed

    def _open(self) -> None:
        options = dict(self.parameters)
        path = options.pop("model")
        if isinstance(options["threads"], bool) or not isinstance(options["threads"], int):
            raise ArgumentError(f"threads must be a whole number, got {options['threads']!r}")
        for name in ("device", "plugin"):
            if not isinstance(options[name], str) and (name, options[name]) != ("plugin", None):
                raise ArgumentError(f"{name} must be a text, got {options[name]!r}")
        self._model = load(path, **options)
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._species = {element: index for index, element in enumerate(self._model.elements)}
        self._energy_unit = _unit(_ENERGY_UNITS, self._model.energy_unit, path)
        self._length_unit = _unit(_LENGTH_UNITS, self._model.length_unit, path)
        self._atomic_energies = np.array(self._model.atomic_energies)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, or a worker process, opens the bundle for itself.
        return {key: value for key, value in self.__dict__.items() if key not in ("_model", "_turn")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def cutoff(self) -> float:
        """Range of an edge in Angstrom; a model of L layers sees as far as L times this."""
        return self._model.cutoff * self._length_unit

    @property
    def elements(self) -> tuple[str, ...]:
        """Chemical symbols that the model knows."""
        return tuple(self._species)

    def stats(self) -> dict[str, Any]:
        """Counts and times of the native library: evaluations, compilations, cache hits, seconds."""
        return self._model.stats()

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        if os.getpid() != self._process:
            # The threads behind the parent's client do not exist here; even its destruction would wait for ever.
            _of_parents.append(self._model)
            self._open()
        with self._turn:
            self.results = {}
            super().calculate(atoms, properties, system_changes)
            self._calculate(self.atoms, properties)

    def _calculate(self, atoms: Any, properties: Any) -> None:
        has_volume = np.linalg.matrix_rank(np.asarray(atoms.cell)) == 3
        if not has_volume and {"stress", "stresses"} & set(properties):
            raise PropertyNotImplementedError("stress needs a cell of three independent vectors; set atoms.cell")
        graph = fold_graph(
            self._species_of(atoms),
            atoms.positions / self._length_unit,
            np.asarray(atoms.cell) / self._length_unit,
            np.asarray(atoms.pbc),
            self._model.cutoff,
            self._model.layers,
        )
        node_energy, gradient = evaluate(self._model, graph)
        energies = (node_energy + self._atomic_energies[graph.species]) * self._energy_unit
        self.results = {
            "energies": energies,
            "energy": float(energies.sum()),
            "free_energy": float(energies.sum()),
            "forces": edge_forces(graph, gradient, len(atoms)) * (self._energy_unit / self._length_unit),
        }
        if has_volume:
            stresses = edge_virials(graph, gradient, len(atoms)) * (self._energy_unit / atoms.get_volume())
            self.results.update(stress=stresses.sum(axis=0), stresses=stresses)

    def _species_of(self, atoms: Any) -> np.ndarray:
        if len(atoms) == 0:
            raise ArgumentError("there are no atoms to evaluate: the Atoms object is empty")
        unknown = sorted({symbol for symbol in atoms.symbols if symbol not in self._species})
        if unknown:
            known = " ".join(self._species)
            raise ArgumentError(f"the model in {self.parameters['model']} knows {known}, not {', '.join(unknown)}")
        return np.array([self._species[symbol] for symbol in atoms.symbols], dtype=np.int32)


def _unit(table: dict[str, float], name: str, path: str) -> float:
    if name not in table:
        raise FormatError(
            f"{path} uses the unit {name!r}, which is none of {', '.join(table)}; export it in one of these"
        )
    return table[name]
