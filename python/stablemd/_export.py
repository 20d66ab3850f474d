# SPDX-License-Identifier: BSD-3-Clause
"""Export: from an energy function in JAX to a bundle."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

from . import _manifest
from ._bundle import atomic_path, bundle_bytes, check_writable
from ._errors import (
    ArgumentError,
    CompileError,
    ExecutionError,
    ExportError,
    FormatError,
    PluginError,
    ProviderError,
    StableMDError,
    argument,
)
from ._evaluate import JaxLacksTargetError, compute_reference
from ._inputs import GraphInput
from ._originals import Original
from ._program import Program, Tracer, about, build_program, x64
from ._reference import OriginalValues, Reference, default_structure, tolerances
from ._sizes import MAX_LAYERS
from ._text import is_printable
from .potential import Potential

# Allowed differences between the native evaluation and JAX: energy of an atom, force; relative where these exceed 1.
_BARS = {"float64": (1e-9, 1e-8), "float32": (5e-6, 5e-5)}

SUFFIX = ".safetensors"

Progress = Callable[[str], None]

_KINDS = {
    "elements": "chemical symbols such as ['Si', 'C']",
    "platforms": "platforms such as ['cpu']",
    "targets": "names of custom calls",
}


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote."""

    path: Path
    elements: tuple[str, ...]
    cutoff: float
    layers: int
    dtype: str
    platforms: tuple[str, ...]
    targets: tuple[str, ...]  #: FFI targets that a provider must register where the bundle is used
    parameters: int  #: numbers in the stored weights
    file_size: int  #: bytes
    #: largest differences between the native evaluation and JAX on the reference structure (energy per atom, force);
    #: None if the export was not verified natively
    energy_deviation: float | None
    force_deviation: float | None
    outputs: tuple[str, ...] = ()  #: names of extra outputs of each atom
    original: dict[str, Any] | None = None  #: framework that the model was compared with, and the differences
    unverified: str = ""  #: why not
    #: largest change of an atom's energy where a neighbour leaves the cutoff, 0 for none; None if it was not looked for
    cutoff_jump: float | None = None
    inputs: Mapping[str, GraphInput] = dataclasses.field(default_factory=dict)  #: what it takes of the whole structure


def jump_text(jump: float) -> str:
    return (
        f"an atom's energy jumps by {jump:.1e} where a neighbour leaves the cutoff, so energy drifts in dynamics; let"
        " the function go to zero at the cutoff"
    )


def export_potential(potential: Potential, path: str | os.PathLike[str], **options: Any) -> ExportSummary:
    """Writes a :class:`Potential` as a bundle. ``options`` are those of :func:`export_model`."""
    return export_model(
        potential.energy_fn,
        potential.params,
        path=path,
        cutoff=potential.cutoff,
        layers=potential.layers,
        elements=potential.elements,
        atomic_energies=potential.atomic_energies,
        units={"energy": potential.energy_unit, "length": potential.length_unit},
        **{
            "name": potential.name,
            "source": potential.source,
            "platform_energy_fns": potential.platform_energy_fns,
            "targets": potential.targets,
            "inputs": potential.inputs,
            **options,
        },
    )


def export_model(
    energy_fn: Callable[[Any, Any], Any],
    params: Any,
    *,
    path: str | os.PathLike[str],
    cutoff: float,
    layers: int,
    elements: Sequence[str],
    atomic_energies: Sequence[float] | Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    name: str = "",
    dtype: str = "float32",
    platforms: Sequence[str] = ("cpu", "cuda"),
    reference: Any = None,
    platform_energy_fns: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    targets: Sequence[str] = (),
    output_units: Mapping[str, str] | None = None,
    inputs: Mapping[str, GraphInput] | None = None,
    source: Mapping[str, Any] | None = None,
    verify: bool = True,
    original: Original | None = None,
    progress: Progress | None = None,
) -> ExportSummary:
    """Writes an interatomic potential as a bundle that LAMMPS, ASE and the C API evaluate natively.

    Parameters
    ----------
    energy_fn
        ``energy_fn(params, graph)`` returns the energy of each of the ``graph.rows[-1]`` leading rows of a
        :class:`stablemd.Graph`, without atomic energies. JAX must be able to trace and differentiate it. It may not
        depend on padding: an edge at or beyond ``cutoff`` contributes nothing, and nothing is divided by a number of
        rows or edges. It may return ``(energies, {name: values})`` instead, with extra outputs of each of these rows
        such as charges, of shape ``[rows[-1]]`` or ``[rows[-1], width]``; engines offer them by their names.
    params
        Pytree of arrays. They become inputs of the program, real ones in ``dtype``.
    path
        File to write, ``*.safetensors``. It is complete or absent, never half written.
    cutoff, layers, elements
        Range of an edge in ``units["length"]``, number of message-passing layers (1 for a pair potential), and the
        chemical symbols that ``graph.species`` counts through.
    atomic_energies
        Constant energy per element, added by the engine in double precision. Zero if not given.
    units
        ``{"energy": "eV", "length": "Angstrom"}`` unless given.
    dtype
        "float32" or "float64".
    platforms
        For which of "cpu" and "cuda" to write a program.
    reference
        ``ase.Atoms`` whose energy and forces are stored for ``stablemd check``; by default a small crystal made up from
        ``elements``.
    platform_energy_fns
        By platform, a function to make the program from instead of ``energy_fn``: one that computes the same by way of
        custom calls. Reference values are always ``energy_fn``'s, so the native verification compares the two.
    targets
        Names of the FFI custom calls that these functions make.
    output_units
        Units of extra outputs by their names, for the manifest; engines hand out the values as they are.
    inputs
        :class:`stablemd.GraphInput` by name: what ``energy_fn`` finds in ``graph.inputs``, real scalars in ``dtype``
        such as the charge of the whole structure. Engines set them by these names, else they have their defaults.
    source
        Free, JSON-able notes for the manifest.
    verify
        Load the bundle natively and compare it with JAX before it is moved to ``path``. Skipped where the CPU plugin or
        a custom call is missing; the summary says so.
    original
        The framework that the model comes from, evaluated on the reference structure: a model that differs from it is
        not written. For models in eV and Angstrom.
    progress
        Called with one line on every step.

    Raises
    ------
    ArgumentError, ExportError, FileError
        With one line on what to do; nothing is written then.
    """
    report = progress or (lambda line: None)
    path = checked_path(path)
    element_names = _checked_elements(elements)
    model = {
        "cutoff": _checked_cutoff(cutoff),
        "layers": _checked_layers(layers),
        "elements": element_names,
        "atomic_energies": _checked_atomic_energies(atomic_energies, element_names),
    }
    real = _checked_dtype(dtype)
    platform_names = _checked_platforms(platforms)
    announced = _checked_names("targets", targets)
    _check_callables(energy_fn, platform_energy_fns or {}, progress)
    _check_notes(name, source, output_units, reference)
    unit_names = _checked_units(units)
    graph_inputs = _checked_inputs(inputs)
    weight_names, weights, unflatten = _flatten_weights(params, real)

    with x64(real):
        programs: dict[str, Program] = {}
        tracers: dict[int, Tracer] = {}  # by identity: not every object that can be called has a hash
        for platform in platform_names:
            function = (platform_energy_fns or {}).get(platform, energy_fn)
            tracer = tracers.setdefault(
                id(function), Tracer(function, unflatten, weights, real, announced, tuple(graph_inputs))
            )
            like = next(iter(programs.values()), None)
            programs[platform] = build_program(tracer, model["layers"], platform, report, like)
    widths, *others = [tracer.outputs or {} for tracer in tracers.values()]
    if any(other != widths for other in others):
        raise ExportError("platform_energy_fns return other extra outputs than each other")
    outputs = _manifest.node_outputs(widths, _checked_output_units(output_units, widths))
    called = tuple(sorted({target for program in programs.values() for target in program.targets}))
    report("evaluate the reference structure in JAX")
    atoms = reference if reference is not None else default_structure(element_names, model["cutoff"])
    values, elsewhere, unverified = None, [], "" if verify else "verify=False"
    try:
        values, *elsewhere = compute_reference(
            energy_fn, unflatten, weights, real, atoms, *_values_to_verify(graph_inputs), **model
        )
    except JaxLacksTargetError as error:
        if not called:
            raise
        incomparable = f"there is nothing to compare with: {error}"
    else:
        incomparable = ""

    results = _manifest.outputs(real.name, model["layers"], widths)
    against = None
    if original is not None and values is not None:
        report(f"verify against {original.framework}")
        constants = model["atomic_energies"][[element_names.index(symbol) for symbol in atoms.symbols]]
        values = _with_original(original, values)
        against = _verify_against(values, constants, real.name)
    texts, manifest_programs = _store_programs(programs, weight_names, results, real.name)
    used = sorted({weight for program in programs.values() for weight in program.weights})
    tensors = {**texts, **{weight_names[i]: weights[i] for i in used}, **(values.tensors() if values else {})}
    manifest = {
        "format": _manifest.format_of(outputs, graph_inputs),
        "name": name,
        "dtype": real.name,
        "cutoff": model["cutoff"],
        "layers": model["layers"],
        "elements": list(element_names),
        "atomic_energies": model["atomic_energies"].tolist(),
        "units": unit_names,
        "programs": manifest_programs,
        **({"node_outputs": outputs} if outputs else {}),
        **({"graph_inputs": {name: one.manifest() for name, one in graph_inputs.items()}} if graph_inputs else {}),
        "versions": _versions(),
        "source": {**(source or {}), **(against or {})},
        "reference": values.manifest() if values else None,
    }
    content = _encode(manifest, tensors, path)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
        deviation = jump = None
        if not unverified:
            report("verify natively against JAX: compile and evaluate")
            check = _NativeCheck(temporary, path, energy_fn, real, model["layers"])
            deviation, jump, unverified = check.run(programs, called, atoms, [values, *elsewhere] if values else [])
            unverified = unverified or incomparable
        if jump:
            warnings.warn(f"{path}: {jump_text(jump)}", stacklevel=2)
        report(f"write {path}")
    return ExportSummary(
        path=path,
        elements=element_names,
        cutoff=model["cutoff"],
        layers=model["layers"],
        dtype=real.name,
        platforms=platform_names,
        targets=called,
        parameters=sum(weights[i].size for i in used),
        file_size=len(content),
        energy_deviation=deviation.energy if deviation else None,
        force_deviation=deviation.force if deviation else None,
        outputs=tuple(outputs),
        inputs=graph_inputs,
        original=(against or {}).get("verified against"),
        unverified=unverified,
        cutoff_jump=jump,
    )


# ---- arguments -------------------------------------------------------------------------------------------------------


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The path of a bundle to write. Raises :class:`ArgumentError` or :class:`FileError` where there can be none."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path must be the name of a file, got {path!r}")
    path = Path(path)
    if not os.path.isdir(path) and path.suffix != SUFFIX:
        raise ArgumentError(f"{path} must end in {SUFFIX}: a bundle is such a file, and engines know it by that name")
    check_writable(path)
    return path


def _check_callables(energy_fn: Any, others: Any, progress: Any) -> None:
    if not isinstance(others, Mapping) or not set(others) <= set(_manifest.PLATFORMS):
        raise ArgumentError(f"platform_energy_fns must be like {{'cuda': function}}, got {others!r}")
    for function in (energy_fn, *others.values()):
        if not callable(function):
            raise ArgumentError(f"energy_fn must be a function of parameters and a graph, got {function!r}")
    if progress is not None and not callable(progress):
        raise ArgumentError(f"progress must be a function of one line, got {progress!r}")


def _check_notes(name: Any, source: Any, output_units: Any, reference: Any) -> None:
    if not isinstance(name, str):
        raise ArgumentError(f"name must be a text, got {name!r}")
    if not name.isascii() and name != name.encode(errors="replace").decode():
        raise ArgumentError(f"{argument('name', name)} is no text in UTF-8")
    if source is not None and not isinstance(source, Mapping):
        raise ArgumentError(f"source must be like {{'run': 'third'}}, got {source!r}")
    units = {} if output_units is None else output_units
    if not isinstance(units, Mapping) or not all(isinstance(unit, str) for unit in units.values()):
        raise ArgumentError(f"output_units must be like {{'charges': 'e'}}, got {output_units!r}")
    for unit in units.values():
        _check_printable("output_units", unit)
    if reference is not None and not (hasattr(reference, "get_positions") and len(reference) > 0):
        raise ArgumentError(f"reference must be ase.Atoms with at least one atom, got {reference!r}")


def _check_printable(what: str, text: str) -> None:
    if not is_printable(text):
        raise ArgumentError(f"{what} has {text!r}, which holds control characters")


def _checked_cutoff(cutoff: float) -> float:
    number = isinstance(cutoff, int | float | np.integer | np.floating) and not isinstance(cutoff, bool)
    if not (number and 0 < cutoff < float("inf")):
        raise ArgumentError(f"cutoff must be a positive number, got {cutoff!r}")
    return float(cutoff)


def _checked_layers(layers: int) -> int:
    if isinstance(layers, bool) or not isinstance(layers, int | np.integer) or not 1 <= layers <= MAX_LAYERS:
        raise ArgumentError(f"layers must be a whole number from 1 to {MAX_LAYERS}, got {layers!r}")
    return int(layers)


def _checked_elements(elements: Sequence[str]) -> tuple[str, ...]:
    from ase.data import atomic_numbers

    names = _checked_names("elements", elements)
    if not names:
        raise ArgumentError("elements is empty; list the chemical symbols that the model knows")
    for element in names:
        if element not in atomic_numbers or atomic_numbers[element] == 0:
            raise ArgumentError(f"elements has {element!r}, which is no chemical symbol")
    if len(set(names)) != len(names):
        raise ArgumentError(f"elements lists a symbol twice: {' '.join(names)}")
    return names


def _checked_atomic_energies(energies: Any, elements: tuple[str, ...]) -> np.ndarray:
    if energies is None:
        return np.zeros(len(elements))
    if isinstance(energies, Mapping):
        if set(energies) != set(elements):
            given = sorted(map(str, energies))
            raise ArgumentError(f"atomic_energies has {given}, elements are {sorted(elements)}")
        energies = [energies[element] for element in elements]
    try:
        array = np.asarray(energies, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"atomic_energies must be numbers, one per element, got {energies!r}") from None
    if array.shape != (len(elements),):
        raise ArgumentError(
            f"atomic_energies must be one finite number per element ({len(elements)}), got shape {array.shape}"
        )
    for element, energy in zip(elements, array, strict=True):
        if not np.isfinite(energy):
            raise ArgumentError(f"atomic_energies must be finite numbers, got {energy} for {element}")
    return array


def _checked_dtype(dtype: Any) -> np.dtype:
    try:
        real = np.dtype(dtype)
    except TypeError:
        real = None
    if real is None or real.name not in _manifest.DTYPES:
        raise ArgumentError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    return real


def _checked_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    names = (platforms,) if isinstance(platforms, str) else _checked_names("platforms", platforms)
    unknown = [name for name in names if name not in _manifest.PLATFORMS]
    if unknown or not names or len(set(names)) != len(names):
        given = " ".join(map(str, names)) or "none"
        raise ArgumentError(f"{argument('platforms')} must be some of {', '.join(_manifest.PLATFORMS)}, got {given}")
    return tuple(sorted(names))


def _checked_units(units: Mapping[str, str] | None) -> dict[str, str]:
    default = {"energy": "eV", "length": "Angstrom"}
    given = default if units is None else units
    if not (
        isinstance(given, Mapping)
        and set(given) == set(default)
        and all(isinstance(unit, str) and unit for unit in given.values())
    ):
        raise ArgumentError(f"units must be like {default}, got {units!r}")
    for unit in given.values():
        _check_printable("units", unit)
    return dict(given)


def _checked_names(argument: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ArgumentError(f"{argument} must be a list of {_KINDS[argument]}, got {names!r}")
    result = tuple(names)
    for one in result:
        if not isinstance(one, str):
            raise ArgumentError(f"{argument} must be a list of {_KINDS[argument]}, got {one!r} in it")
    return result


def _checked_inputs(inputs: Any) -> dict[str, GraphInput]:
    given = {} if inputs is None else inputs
    if not isinstance(given, Mapping) or not all(isinstance(one, GraphInput) for one in given.values()):
        raise ArgumentError(f"inputs must be like {{'charge': stablemd.GraphInput(default=0.0)}}, got {inputs!r}")
    for name in given:
        if not _manifest.is_name(name):
            raise ArgumentError(
                f"inputs has the name {name!r}; use letters, digits and _, beginning with a letter, and none of"
                f" {', '.join(_manifest.RESERVED_OUTPUTS)}"
            )
    return dict(sorted(given.items()))


def _values_to_verify(inputs: Mapping[str, GraphInput]) -> list[dict[str, float]]:
    """The defaults, and where there are inputs other values: a program that ignored them would pass else."""
    defaults = {name: one.default for name, one in inputs.items()}
    others = {name: one.another() for name, one in inputs.items()}
    return [defaults] if others == defaults else [defaults, others]


def _checked_output_units(units: Mapping[str, str] | None, widths: Mapping[str, int]) -> dict[str, str]:
    given = dict(units or {})
    unknown = sorted(set(given) - set(widths))
    if unknown:
        known = f"its extra outputs are {', '.join(sorted(widths))}" if widths else "it returns no extra outputs"
        raise ArgumentError(f"output_units has {unknown[0]!r}, which energy_fn does not return; {known}")
    return given


# ---- weights ---------------------------------------------------------------------------------------------------------


def _flatten_weights(params: Any, real: np.dtype) -> tuple[list[str], list[np.ndarray], Callable]:
    """Names ``weights/<path>``, arrays in their stored types, and the way back to ``params``."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    names = ["/".join(("weights", *map(_key_name, path))) for path, _ in leaves]
    duplicates = {name for name in names if names.count(name) > 1} if len(set(names)) != len(names) else set()
    if duplicates:
        raise ArgumentError(f"params has two leaves that would be stored as {sorted(duplicates)[0]}; rename one")
    arrays = [_stored(leaf, name, real) for name, (_, leaf) in zip(names, leaves, strict=True)]
    return names, arrays, functools.partial(jax.tree_util.tree_unflatten, structure)


def _key_name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _stored(leaf: Any, name: str, real: np.dtype) -> np.ndarray:
    where = f"params[{name.removeprefix('weights/')}]" if name != "weights" else "params"
    try:
        array = np.asarray(leaf)
    except Exception:
        array = np.array(None)
    if jax.numpy.issubdtype(array.dtype, jax.numpy.floating):
        _check_finite(where, array)
        with np.errstate(over="ignore"):
            stored = array.astype(real)
        if not np.isfinite(stored).all():
            raise ArgumentError(f"{where} holds values beyond the range of {real.name}")
        return stored
    if array.dtype == np.bool_:
        return array
    if not np.issubdtype(array.dtype, np.integer):
        raise ArgumentError(f"{where} is a {type(leaf).__name__}, not an array of real or whole numbers")
    if array.dtype.itemsize == 8 and real == np.float32:
        narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise ArgumentError(f"{where} holds whole numbers beyond 32 bits; use {argument('dtype', 'float64')}")
        return narrow
    return array


def _check_finite(where: str, array: np.ndarray) -> None:
    values = array.astype(np.float64)
    broken = np.argwhere(~np.isfinite(values))
    if len(broken) == 0:
        return
    index = tuple(map(int, broken[0]))
    place = f" at index {list(index)}" if index else ""
    raise ArgumentError(
        f"{where} holds {len(broken)} of {array.size} values that are not finite: {values[index]}{place}"
    )


# ---- the file --------------------------------------------------------------------------------------------------------


def _store_programs(
    programs: Mapping[str, Program], weight_names: Sequence[str], results: Sequence[Mapping[str, Any]], dtype: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Texts as tensors, each stored once, and the manifest's entries."""
    if not all("vectors" in program.graph_roles for program in programs.values()):
        raise ExportError("the energies do not depend on graph.vectors, so there are no forces; nothing is written")
    sharing: dict[str, list[str]] = {}
    for platform, program in programs.items():
        sharing.setdefault(program.template, []).append(platform)
    names = {template: f"programs/{'-'.join(users)}" for template, users in sharing.items()}
    tensors = {name: np.frombuffer(template.encode(), dtype=np.uint8) for template, name in names.items()}
    entries = {
        platform: _manifest.program_entry(
            names[program.template],
            program.graph_roles,
            program.inputs,
            [weight_names[i] for i in program.weights],
            program.targets,
            results,
            dtype,
        )
        for platform, program in programs.items()
    }
    return tensors, entries


def _encode(manifest: Mapping[str, Any], tensors: Mapping[str, np.ndarray], path: Path) -> bytes:
    try:
        return bundle_bytes(manifest, tensors, str(path))
    except (TypeError, ValueError) as error:
        if re.search("JSON", str(error)):
            raise ArgumentError(f"name or source cannot be written as JSON: {error}") from None
        raise


def _versions() -> dict[str, str]:
    from . import __version__

    return {"stablemd": __version__, "jax": jax.__version__, "jaxlib": jaxlib.__version__}


def _with_original(original: Original, values: Reference) -> Reference:
    theirs = original.evaluate(values.atoms())
    kept = OriginalValues(original.framework, original.dtype, theirs.energy, theirs.forces)
    return dataclasses.replace(values, original=kept)


def _verify_against(values: Reference, constants: np.ndarray, dtype: str) -> dict[str, Any]:
    """What the manifest says of the comparison. Raises :class:`ExportError` if the model is another one.

    ``constants``: the atomic energies of the reference's atoms.
    """
    theirs, count = values.original, len(values.numbers)
    assert theirs is not None
    energy = abs(values.energy - theirs.energy) / count
    force = float(np.abs(values.forces - theirs.forces).max())
    largest_force = float(np.abs(theirs.forces).max())
    largest_energy = abs(theirs.energy - constants.sum()) / count
    energy_bar, force_bar = tolerances(dtype, largest_energy, largest_force, theirs.dtype)
    if not (energy <= energy_bar and force <= force_bar):
        raise ExportError(
            f"the loaded model differs from {theirs.framework} by {energy:.1e} in energy per atom and {force:.1e} in"
            " force on the reference structure, so nothing is written; please report this model"
        )
    return {"verified against": {"framework": theirs.framework, "energy": energy, "force": force}}


@dataclass(frozen=True)
class _NativeCheck:
    """Loads and runs a bundle that was just written in the native library, with padding and as on two ranks."""

    file: Path
    target: Path  #: what the file will be called
    energy_fn: Callable[[Any, Any], Any]
    real: np.dtype
    layers: int

    def run(
        self, programs: Mapping[str, Program], called: Sequence[str], atoms: Any, references: Sequence[Reference]
    ) -> tuple[Any, float | None, str]:
        """The first reference's deviations from JAX and the jump at the cutoff, or None and why not: what cannot be
        run here, as the user knows.

        Without ``references`` the bundle is run, but not compared. Raises :class:`ExportError` where the bundle cannot
        be loaded or run, or differs too much.
        """
        if "cpu" not in programs:
            return None, None, "it holds no program for the CPU"
        try:
            from ._native import compare_with_reference, jump_at_the_cutoff, load, run_structure
        except ImportError as error:
            return None, None, f"the native module is missing ({error})"
        try:
            model = load(self.file)
            if not references:
                run_structure(model, atoms)
                return None, None, ""
            deviations = []
            for reference in references:
                deviations.append(compare_with_reference(model, reference, parts=2))
                if self._complaint(deviations[-1]):
                    whole = compare_with_reference(model, reference)
                    break
        except PluginError as error:
            if error.text.startswith("no PJRT plugin for device"):
                return None, None, str(error)
            raise self._failure("the exported program cannot be verified", error) from None
        except ProviderError as error:
            # Whoever announces a target says that a provider will be there where the bundle is used.
            if any(f"needs the FFI target `{target}`" in error.text for target in called):
                why = "no provider is here for a custom call that was announced"
                return None, None, f"{why}: {self._named(error)}"
            raise self._failure("the exported program cannot be verified", error) from None
        except (CompileError, ExecutionError, FormatError) as error:
            raise self._failure("the exported program fails where JAX does not", error) from None
        deviation, complaint = deviations[0], self._complaint(deviations[-1])
        if complaint:
            raise about(self.energy_fn, f"{complaint}; {self._reason(self._complaint(whole))}")
        bar = _BARS[self.real.name][0] * max(1.0, deviation.largest_energy)
        try:
            jump = jump_at_the_cutoff(model, atoms, bar, parts=2)
        except ExecutionError:  # an atom that is made to lack a neighbour may be more than the function can do
            jump = None
        return deviation, jump, ""

    def _named(self, error: StableMDError) -> str:
        return error.text.replace(str(self.file), str(self.target))

    def _failure(self, what: str, error: StableMDError) -> ExportError:
        return about(self.energy_fn, f"{what}: {self._named(error)}")

    def _complaint(self, deviation: Any) -> str:
        """What differs from JAX by more than rounding, or \"\"."""
        energy_bar, force_bar = _BARS[self.real.name]
        for name, (difference, largest) in deviation.outputs.items():
            if not difference <= energy_bar * max(1.0, largest):
                return (
                    f"the extra output {name!r} differs from JAX by {difference:.1e} on the reference structure, padded"
                    " and split as on two ranks"
                )
        energy_bar *= max(1.0, deviation.largest_energy)
        force_bar *= max(1.0, deviation.largest_force)
        if deviation.energy <= energy_bar and deviation.force <= force_bar:
            return ""
        return (
            f"the exported program differs from JAX by {deviation.energy:.1e} in energy per atom and"
            f" {deviation.force:.1e} in force on the reference structure, padded and split as on two ranks"
        )

    def _reason(self, also_whole: str) -> str:
        if also_whole:
            return (
                "energy_fn must not depend on padding: edges beyond the cutoff, dummy rows, numbers of rows and edges"
            )
        if self.layers == 1:
            return (
                "in one piece it agrees, so an atom's energy depends on its row, or on atoms that are not its"
                " neighbours: where sums over neighbours build on each other, pass layers= their number, and have layer"
                " l use the first graph.edges[l] edges and compute graph.rows[l] rows"
            )
        return (
            "in one piece it agrees, so the layers mix up their rows: layer l uses the first graph.edges[l] edges and"
            f" computes graph.rows[l] rows, for l = 1 to {self.layers}; graph.rows[-1] is right in the last layer only,"
            " and layers= must be the number of sums over neighbours that build on each other"
        )
