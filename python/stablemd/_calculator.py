# SPDX-License-Identifier: BSD-3-Clause
"""The ASE calculator: the same native code as LAMMPS runs, on neighbour lists from vesin."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from ase import units
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes

from ._bundle import read_bundle
from ._errors import ArgumentError, FormatError
from ._graphs import edge_forces, edge_virials, fold_graph, independent_vectors
from ._native import evaluate, load

# What one unit of a bundle is in ASE's eV and Angstrom.
_ENERGY_UNITS = {
    "eV": 1.0,
    "kcal/mol": units.kcal / units.mol,
    "kJ/mol": units.kJ / units.mol,
    "Hartree": units.Hartree,
}
_LENGTH_UNITS = {"Angstrom": 1.0, "nm": units.nm, "Bohr": units.Bohr}

_STANDARD = ("energy", "free_energy", "energies", "forces", "stress", "stresses")

_of_parents: list[Any] = []


class StableMDCalculator(Calculator):
    """Evaluates a bundle in ASE, or an ensemble of bundles.

    Parameters
    ----------
    model
        Path of the bundle (``stablemd export`` makes one), or a list of paths: an ensemble, below.
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
    half to each of its atoms, and ``stresses.sum(axis=0)`` is ``stress``, as in ``ase.calculators.lj``. Extra outputs
    of the bundle, such as charges, are in ``results`` under their names, ``[atoms]`` or ``[atoms, width]``, in the
    bundle's units.

    An ensemble gives the means over its models of all these, and spreads: ``forces_spread`` [atoms] is
    sqrt(mean over models of abs(F - mean F)^2), the deviation by which Zhang et al., Comput. Phys. Commun. 253, 107206
    (2020) select structures; ``energies_spread`` [atoms], ``energy_spread`` and ``<name>_spread`` of each extra output
    are defined alike.

    Threads may share a calculator: they take turns. A process that was forked opens the bundle for itself; one
    with OpenEquivariance's kernels it cannot use if its parent has, and gets a :class:`~stablemd.CompileError`.

    Raises the errors of :mod:`stablemd`: :class:`~stablemd.FileError`, :class:`~stablemd.FormatError` and
    :class:`~stablemd.PluginError` at construction, :class:`~stablemd.ArgumentError` for atoms that the model cannot
    take.
    """

    implemented_properties: ClassVar[list[str]] = list(_STANDARD)
    name = "stablemd"

    def __init__(
        self,
        model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        device: str = "cpu",
        threads: int = 0,
        plugin: str | None = None,
        cache: str | os.PathLike[str] | None = None,
    ):
        cache = os.fspath(cache) if isinstance(cache, os.PathLike) else cache  # a text, as ASE writes parameters
        super().__init__(model=_checked_model(model), device=device, threads=threads, plugin=plugin, cache=cache)
        self._open()

    def set(self, **options: Any) -> dict[str, Any]:
        """Changes options of the constructor; the bundle is opened anew, and results are forgotten."""
        before = dict(self.parameters)
        unknown = set(options) - set(before) if before else set()
        if unknown:
            raise ArgumentError(f"StableMDCalculator has no option {sorted(unknown)[0]!r}; it has {', '.join(before)}")
        if "model" in options:
            options["model"] = _checked_model(options["model"])
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
        paths = options.pop("model")
        members = [_Member(path, load(path, **options)) for path in ([paths] if isinstance(paths, str) else paths)]
        _check_ensemble(members)
        self._members = members
        self._process = os.getpid()
        self._turn = threading.RLock()
        spreads = ("energy", "energies", "forces", *members[0].outputs) if len(members) > 1 else ()
        self.implemented_properties = [*_STANDARD, *members[0].outputs, *map(_spread_name, spreads)]

    def __getstate__(self) -> dict[str, Any]:
        # A copy, or a worker process, opens the bundle for itself.
        return {key: value for key, value in self.__dict__.items() if key not in ("_members", "_turn")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def cutoff(self) -> float:
        """Range of an edge in Angstrom; a model of L layers sees as far as L times this."""
        return self._members[0].cutoff

    @property
    def elements(self) -> tuple[str, ...]:
        """Chemical symbols that the model, or every model of the ensemble, knows."""
        first, *others = self._members
        return tuple(symbol for symbol in first.species if all(symbol in other.species for other in others))

    def stats(self) -> dict[str, Any]:
        """Counts and times of the native library: evaluations, compilations, cache hits, seconds; sums over models."""
        each = [member.model.stats() for member in self._members]
        return {name: sum(stats[name] for stats in each) for name in each[0]}

    def get_property(self, name: str, atoms: Any = None, allow_calculation: bool = True) -> Any:
        with self._own_turn():  # also for what ASE compares and takes out of `results`
            return super().get_property(name, atoms, allow_calculation)

    def _own_turn(self) -> threading.RLock:
        """The lock of this process."""
        if os.getpid() != self._process:
            # The threads behind the parent's client do not exist here; even its destruction would wait for ever.
            _of_parents.append(self._members)
            self._open()
        return self._turn

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        with self._own_turn():
            self.results = {}
            super().calculate(atoms, properties, system_changes)
            self.results = self._calculate(self.atoms, properties)

    def _calculate(self, atoms: Any, properties: Any) -> dict[str, Any]:
        has_volume = independent_vectors(np.asarray(atoms.cell)) == 3
        if not has_volume and {"stress", "stresses"} & set(properties):
            raise PropertyNotImplementedError("stress needs a cell of three independent vectors; set atoms.cell")
        if len(atoms) == 0:
            raise ArgumentError("there are no atoms to evaluate: the Atoms object is empty")
        each = [member.evaluate(atoms, has_volume) for member in self._members]
        return each[0] if len(each) == 1 else _ensemble(each)


def _checked_model(model: Any) -> str | list[str]:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    paths = list(model) if isinstance(model, Iterable) and not isinstance(model, bytes) else [model]
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(f"model must be the path of a bundle, or a list of paths, got {model!r}")
    if not paths:
        raise ArgumentError("the list of models is empty; give the path of a bundle, or of several")
    return [os.fspath(path) for path in paths]


def _check_ensemble(members: Sequence[_Member]) -> None:
    """The models of an ensemble see the same neighbours and give the same outputs, as LAMMPS' pair style demands."""
    first, *others = members
    for other in others:
        for kind in ("cutoff and layers", "extra outputs"):
            one, another = (f"{member.path} has {member.traits(kind)}" for member in (first, other))
            if first.traits(kind) != other.traits(kind):
                raise ArgumentError(f"models of an ensemble must have the same {kind}: {one}, {another}")


class _Member:
    """A bundle with what ASE must know about it."""

    def __init__(self, path: str, model: Any):
        self.path, self.model = path, model
        self.species = {element: index for index, element in enumerate(model.elements)}
        self.outputs = tuple(model.outputs)
        self.energy_unit = _unit(_ENERGY_UNITS, model.energy_unit, path)
        self.length_unit = _unit(_LENGTH_UNITS, model.length_unit, path)
        self.cutoff = model.cutoff * self.length_unit
        self.atomic_energies = np.array(model.atomic_energies)

    def traits(self, kind: str) -> str:
        if kind == "cutoff and layers":
            return f"{self.cutoff:.10g} Angstrom and {self.model.layers}"
        outputs = read_bundle(self.path).manifest.get("node_outputs", {})
        each = [f"{name} [{one['width']}] {one['unit']}".strip() for name, one in sorted(outputs.items())]
        return ", ".join(each) or "none"

    def evaluate(self, atoms: Any, has_volume: bool) -> dict[str, Any]:
        """ASE's results."""
        graph = fold_graph(
            self._species_of(atoms),
            atoms.positions / self.length_unit,
            np.asarray(atoms.cell) / self.length_unit,
            np.asarray(atoms.pbc),
            self.model.cutoff,
            self.model.layers,
        )
        node_energy, gradient, outputs = evaluate(self.model, graph)
        energies = (node_energy + self.atomic_energies[graph.species]) * self.energy_unit
        results = {
            "energies": energies,
            "energy": float(energies.sum()),
            "free_energy": float(energies.sum()),
            "forces": edge_forces(graph, gradient, len(atoms)) * (self.energy_unit / self.length_unit),
            **outputs,
        }
        if has_volume:
            stresses = edge_virials(graph, gradient, len(atoms)) * (self.energy_unit / atoms.get_volume())
            results.update(stress=stresses.sum(axis=0), stresses=stresses)
        return results

    def _species_of(self, atoms: Any) -> np.ndarray:
        unknown = sorted({symbol for symbol in atoms.symbols if symbol not in self.species})
        if unknown:
            raise ArgumentError(f"the model in {self.path} knows {' '.join(self.species)}, not {', '.join(unknown)}")
        return np.array([self.species[symbol] for symbol in atoms.symbols], dtype=np.int32)


def _ensemble(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over models, and the spreads of what is not derived from something else."""
    results = {}
    for name in each[0]:
        values = np.array([one[name] for one in each])
        mean = values.mean(axis=0)
        results[name] = float(mean) if mean.ndim == 0 else mean
        if name not in ("free_energy", "stress", "stresses"):
            deviations = (values - mean) ** 2
            squares = deviations.sum(axis=2) if deviations.ndim == 3 else deviations
            spread = np.sqrt(squares.mean(axis=0))
            results[_spread_name(name)] = float(spread) if spread.ndim == 0 else spread
    return results


def _spread_name(name: str) -> str:
    return f"{name}_spread"


def _unit(table: dict[str, float], name: str, path: str) -> float:
    if name not in table:
        raise FormatError(
            f"{path} uses the unit {name!r}, which is none of {', '.join(table)}; export it in one of these"
        )
    return table[name]
