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
from ._graphs import double, edge_forces, edge_virials, fold_graph, independent_vectors
from ._inputs import GraphInput, describe, input_values, stored_inputs
from ._native import evaluate, load

# What one unit of a bundle is in ASE's eV and Angstrom.
_ENERGY_UNITS = {
    "eV": 1.0,
    "kcal/mol": units.kcal / units.mol,
    "kJ/mol": units.kJ / units.mol,
    "Hartree": units.Hartree,
}
_LENGTH_UNITS = {"Angstrom": 1.0, "nm": units.nm, "Bohr": units.Bohr}

# Of an ensemble, what has a spread beside extra outputs; other results are derived from these.
_SPREAD = ("energy", "energies", "forces")
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
    of the bundle, such as charges, are in :attr:`outputs`; ``charges`` and ``magmoms`` are also among ASE's results.

    An ensemble gives the means over its models of all these, and :attr:`spreads`.

    What the model takes of the whole structure (:attr:`inputs`), such as its charge and spin, is read from
    ``atoms.info`` under these names (``total_charge`` and ``total_spin`` will do too), else it has its default. Another
    value is a new calculation.

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
        self._further: dict[str, Any] = {}  # results whose names are not ASE's
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
        first = members[0]
        spreads = (*_SPREAD, *first.outputs) if len(members) > 1 else ()
        # ASE's own names alone: what writes or copies results knows no others.
        self.implemented_properties = [*_STANDARD, *(name for name in first.outputs if first.is_of_ase(name))]
        self._further_names = {*first.outputs, *map(_spread_name, spreads)} - set(self.implemented_properties)

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

    @property
    def inputs(self) -> dict[str, GraphInput]:
        """What the model takes of the whole structure, by the names that ``atoms.info`` has for it."""
        return dict(self._members[0].inputs)

    @property
    def outputs(self) -> dict[str, Any]:
        """Extra outputs of the last calculation by name: float64 ``[atoms]`` or ``[atoms, width]``, in the bundle's
        units; of an ensemble the means. Empty before the first one, and where the bundle has none.

        To write them with the structure: ``atoms.arrays["dipoles"] = calc.outputs["dipoles"]``.
        """
        return self._values({name: name for name in self._members[0].outputs})

    @property
    def spreads(self) -> dict[str, Any]:
        """How far the models of an ensemble disagreed in the last calculation, by the name of what: ``energy`` (a
        float, eV), ``energies`` [atoms], ``forces`` [atoms] (eV/Angstrom) and extra outputs [atoms]. Empty for one
        model, and before the first calculation.

        That of forces is sqrt(mean over models of abs(F - mean F)^2), the deviation by which Zhang et al., Comput.
        Phys. Commun. 253, 107206 (2020) select structures; the others are defined alike. To write them with the
        structure: ``atoms.arrays["forces_spread"] = calc.spreads["forces"]``.
        """
        return self._values({name: _spread_name(name) for name in (*_SPREAD, *self._members[0].outputs)})

    def _values(self, names: dict[str, str]) -> dict[str, Any]:
        """Copies of what there is under these names, in ASE's results or beside them."""
        there = {**self._further, **self.results} if self.results else {}  # ASE clears its own when atoms change
        return {key: np.copy(there[name])[()] for key, name in names.items() if name in there}

    def stats(self) -> dict[str, Any]:
        """Counts and times of the native library: evaluations, compilations, cache hits, seconds; sums over models."""
        each = [member.model.stats() for member in self._members]
        return {name: sum(stats[name] for stats in each) for name in each[0]}

    def get_property(self, name: str, atoms: Any = None, allow_calculation: bool = True) -> Any:
        """One of ASE's properties, an extra output by its name, or a spread such as ``forces_spread``."""
        with self._own_turn():  # also for what ASE compares and takes out of `results`
            if name not in self._further_names:
                return super().get_property(name, atoms, allow_calculation)
            energy = super().get_property("energy", atoms, allow_calculation)
            return None if energy is None else self._values({name: name})[name]

    def check_state(self, atoms: Any, tol: float = 1e-15) -> list[str]:
        """What has changed since the last calculation; ASE does not look at ``atoms.info``, where graph inputs are."""
        changes = super().check_state(atoms, tol)
        inputs = self.inputs
        if not changes and inputs and input_values(self.atoms.info, inputs) != input_values(atoms.info, inputs):
            return ["info"]
        return changes

    def reset(self) -> None:
        """Forgets the last calculation."""
        super().reset()
        self._further = {}

    def _own_turn(self) -> threading.RLock:
        """The lock of this process."""
        if os.getpid() != self._process:
            # The threads behind the parent's client do not exist here; even its destruction would wait for ever.
            _of_parents.append(self._members)
            self._open()
        return self._turn

    def calculate(self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes) -> None:
        with self._own_turn():
            self.results, self._further = {}, {}
            super().calculate(atoms, properties, system_changes)
            everything = self._calculate(self.atoms, properties)
            self._further = {name: everything.pop(name) for name in self._further_names & set(everything)}
            self.results = everything

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
    """The models of an ensemble see the same neighbours, take the same inputs and give the same outputs, as LAMMPS'
    pair style demands."""
    first, *others = members
    for other in others:
        for kind in ("cutoff and layers", "extra outputs", "inputs of the whole structure"):
            one, another = (f"{member.path} has {member.traits(kind)}" for member in (first, other))
            if first.traits(kind) != other.traits(kind):
                raise ArgumentError(f"models of an ensemble must have the same {kind}: {one}, {another}")


class _Member:
    """A bundle with what ASE must know about it."""

    def __init__(self, path: str, model: Any):
        self.path, self.model = path, model
        self.species = {element: index for index, element in enumerate(model.elements)}
        manifest = read_bundle(path).manifest
        self.inputs = stored_inputs(manifest)
        self.output_fields = manifest.get("node_outputs", {})
        self.outputs = tuple(model.outputs)
        self.energy_unit = _unit(_ENERGY_UNITS, model.energy_unit, path)
        self.length_unit = _unit(_LENGTH_UNITS, model.length_unit, path)
        self.cutoff = model.cutoff * self.length_unit
        self.atomic_energies = np.array(model.atomic_energies)

    def traits(self, kind: str) -> str:
        if kind == "cutoff and layers":
            return f"{self.cutoff:.10g} Angstrom and {self.model.layers}"
        if kind == "inputs of the whole structure":
            return describe(self.inputs) or "none"
        outputs = sorted(self.output_fields.items())
        return ", ".join(f"{name} [{one['width']}] {one['unit']}".strip() for name, one in outputs) or "none"

    def is_of_ase(self, output: str) -> bool:
        """Whether an extra output is one of ASE's properties in name and shape."""
        return output in ("charges", "magmoms") and self.output_fields[output]["width"] == 1

    def evaluate(self, atoms: Any, has_volume: bool) -> dict[str, Any]:
        """ASE's results, and extra outputs."""
        cell = double(atoms.cell, "the cell")
        for name, value in input_values(atoms.info, self.inputs).items():
            self.model.set_input(name, value)
        graph = fold_graph(
            self._species_of(atoms),
            double(atoms.positions, "positions") / self.length_unit,
            cell / self.length_unit,
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
            stresses = edge_virials(graph, gradient, len(atoms)) * (self.energy_unit / abs(np.linalg.det(cell)))
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
        if name in _SPREAD or name not in _STANDARD:
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
