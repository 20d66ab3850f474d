# SPDX-License-Identifier: BSD-3-Clause
"""From an energy function in JAX to a program template: what is traced, at which sizes, and why it can fail."""

from __future__ import annotations

import functools
import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import export as jax_export
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

from ._errors import ExportError, argument
from ._manifest import GRAPH_ROLES, RESERVED_OUTPUTS, is_name
from ._sizes import Sizes, symbols, tracing_sets
from ._template import Misfit, fit_template, instantiate
from .graph import Graph

# Custom calls that XLA resolves itself; nobody registers them.
_XLA_TARGETS = frozenset(
    {
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "LayoutConstraint",
        "annotate_device_placement",
        "shape_assertion",
        "mhlo.topk",
        "TopK",
        "ApproxTopK",
        "PartialReduce",
    }
)


@dataclass(frozen=True)
class Program:
    """A template and how to bind it: what a manifest says about one platform."""

    template: str
    graph_roles: tuple[str, ...]  #: roles of the leading arguments, in order
    inputs: tuple[str, ...]  #: names of the graph inputs that follow them
    weights: tuple[int, ...]  #: indices of the weights that follow these
    targets: tuple[str, ...]  #: FFI targets that a provider must register


def x64(dtype: np.dtype) -> Any:
    """Context in which JAX has 64-bit types if and only if ``dtype`` is one, whatever the process has chosen."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(dtype == np.float64)
    from jax.experimental import enable_x64

    return enable_x64(dtype == np.float64)


def energy_and_gradient(
    energy_fn: Callable,
    unflatten: Callable,
    sizes: Sizes,
    notice: Callable[[dict[str, int]], None] = lambda _: None,
    inputs: Sequence[str] = (),
) -> Callable:
    """The function that is exported.

    Graph arrays, graph inputs (called ``inputs``) and weights to (node_energy [C_L], edge_gradient [E_1, 3], extra
    outputs in the order of their names, each [C_L] or [C_L, width]). ``notice`` is told names and widths of the extra
    outputs during tracing.
    """
    rows, edges = sizes.rows, (sizes.edges[0], *sizes.edges)

    def program(species, vectors, centers, neighbors, owned, *others):
        values = dict(zip(inputs, others, strict=False))
        params = unflatten(others[len(inputs) :])

        def owned_rows(values):
            # Rows beyond the owned ones are dummies: their values are finite, and nobody's.
            own = jnp.arange(rows[-1], dtype=jnp.int32) < owned
            return jnp.where(own.reshape(-1, *(1,) * (values.ndim - 1)), values, jnp.zeros_like(values))

        def total_energy(vectors):
            counts = _PerLayer("rows", rows), _PerLayer("edges", edges)
            graph = Graph(species, vectors, centers, neighbors, owned, *counts, values)
            energies, extra = _split_result(energy_fn(params, graph))
            energies = owned_rows(_checked_energies(energies, rows[-1], vectors.dtype))
            notice({name: _checked_width(name, values, rows[-1], vectors.dtype) for name, values in extra.items()})
            return jnp.sum(energies), (energies, [owned_rows(extra[name]) for name in sorted(extra)])

        (_, (energies, extra)), gradient = jax.value_and_grad(total_energy, has_aux=True)(vectors)
        return energies, gradient, *extra

    return program


class NoSuchLayerError(IndexError):
    """The function asks for a layer that the graph has not."""


class _PerLayer(tuple):
    """``graph.rows`` or ``graph.edges``, a tuple that says what is wrong with an index of a layer it has not."""

    def __new__(cls, name: str, values: Sequence[int]) -> _PerLayer:
        self = super().__new__(cls, values)
        self.name = name
        return self

    def __getitem__(self, index: Any) -> Any:
        try:
            return super().__getitem__(index)
        except IndexError:
            layers = len(self) - 1
            asked = index if index >= 0 else -index - 1  # of so many layers -n would be the first
            raise NoSuchLayerError(
                f"energy_fn uses graph.{self.name}[{index}], but the graph has {layers} layer{'s' * (layers > 1)}:"
                f" pass layers={asked} if so many sums over neighbours build on each other"
            ) from None


def _split_result(result: Any) -> tuple[Any, dict[str, Any]]:
    """Energies and extra outputs of what energy_fn returned: energies, or (energies, {name: values})."""
    if not isinstance(result, tuple):
        return result, {}
    if len(result) != 2 or not isinstance(result[1], dict):
        raise ExportError(
            "energy_fn returned a tuple; it must return energies, or (energies, {name: values of each row}) with extra"
            " outputs"
        )
    for name in result[1]:
        if not is_name(name):
            raise ExportError(
                f"energy_fn returned an extra output called {name!r}; use letters, digits and _, beginning with a"
                f" letter, and none of {', '.join(RESERVED_OUTPUTS)}"
            )
    return result


def _checked_width(name: str, values: Any, rows: int, dtype: Any) -> int:
    """Numbers per row of an extra output."""
    shape = getattr(values, "shape", None)
    if shape == (rows,) and values.dtype == dtype:
        return 1
    if shape is not None and len(shape) == 2 and shape[0] == rows and shape[1] >= 2 and values.dtype == dtype:
        return int(shape[1])
    found = f"{values.dtype} {shape}" if shape is not None else f"a {type(values).__name__}"
    raise ExportError(
        f"energy_fn returned the extra output {name!r} as {found} for a graph of {rows} computed rows; it must be"
        f" {dtype} ({rows},) or ({rows}, 2 or more)"
    )


def _checked_energies(energies: Any, rows: int, dtype: Any) -> Any:
    shape = getattr(energies, "shape", None)
    if shape != (rows,):
        found = f"an array of shape {shape}" if shape is not None else f"a {type(energies).__name__}"
        raise ExportError(
            f"energy_fn returned {found} for a graph of {rows} computed rows; it must return one energy for each of the"
            f" graph.rows[-1] leading rows, shape ({rows},)"
        )
    if energies.dtype != dtype:
        raise ExportError(
            f"energy_fn returned {energies.dtype} for vectors in {dtype}; it must work in graph.vectors.dtype"
        )
    return energies


def graph_arguments(sizes: Sizes, dtype: np.dtype) -> list[jax.ShapeDtypeStruct]:
    rows, edges = sizes.rows[0], sizes.edges[0]
    spec = jax.ShapeDtypeStruct
    return [
        spec((rows,), np.int32),
        spec((edges, 3), dtype),
        spec((edges,), np.int32),
        spec((edges,), np.int32),
        spec((), np.int32),
    ]


class Tracer:
    """Traces one energy function at any sizes, for one platform after another."""

    def __init__(
        self,
        energy_fn: Callable,
        unflatten: Callable,
        weights: Sequence[Any],
        dtype: np.dtype,
        targets: Sequence[str],
        inputs: Sequence[str] = (),
    ):
        self.inputs = tuple(inputs)  #: names of graph inputs
        self.energy_fn, self.unflatten, self.dtype = energy_fn, unflatten, dtype
        self.weights = [jax.ShapeDtypeStruct(weight.shape, weight.dtype) for weight in weights]
        self.announced = frozenset(targets)
        self.checks = [jax_export.DisabledSafetyCheck.custom_call(target) for target in targets]
        self.outputs: dict[str, int] | None = None  #: widths of extra outputs by name, known after the first trace
        self._jitted: dict[Sizes, Callable] = {}

    def export(self, sizes: Sizes, platform: str) -> jax_export.Exported:
        # One jitted function per size: its second export, for another platform, need not trace again.
        function = self._jitted.setdefault(
            sizes,
            jax.jit(
                energy_and_gradient(self.energy_fn, self.unflatten, sizes, self._notice, self.inputs),
                keep_unused=False,
            ),
        )
        numbers = [jax.ShapeDtypeStruct((), self.dtype) for _ in self.inputs]
        arguments = [*graph_arguments(sizes, self.dtype), *numbers, *self.weights]
        try:
            return jax_export.export(function, platforms=[platform], disabled_checks=self.checks)(*arguments)
        except ExportError as error:
            # A new error: this one has been through JAX, which adds its own frames and a note behind our line.
            raise self.refusal(error.text) from None
        except Exception as error:
            raise self._tracing_error(error, sizes) from error

    def _tracing_error(self, error: Exception, sizes: Sizes) -> ExportError:
        text = str(error)
        if "custom calls whose targets have no compatibility guarantees" in text:
            names = ", ".join(sorted(set(re.findall(r"custom_call @(\S+?)\(", text)))) or "unknown"
            return self.refusal(
                f"the program makes FFI calls that were not announced; pass targets=[...] with: {names}"
            )
        place = _last_frame(error)
        if isinstance(error, NoSuchLayerError):
            return ExportError(f"{place}: {text}") if place else self.refusal(text)
        what = (
            f"energy_fn cannot be traced for rows={sizes.rows}, edges={sizes.edges}: {type(error).__name__}"
            f"{f' in {place}' if place else ''}: {_first_line(text)}{_advice(error)}"
        ).rstrip(": ")
        return ExportError(what) if place else self.refusal(what)

    def refusal(self, what: str) -> ExportError:
        """The error that says this about the function, with the place of its definition."""
        return about(self.energy_fn, what)

    def _notice(self, outputs: dict[str, int]) -> None:
        if self.outputs not in (None, outputs):
            raise ExportError("energy_fn returns other extra outputs at other sizes")
        self.outputs = outputs


def about(energy_fn: Callable, what: str) -> ExportError:
    """An error about a user's function: ``file:line: what``. Python may not know where it is defined, and models of
    this package are none of the user's."""
    while isinstance(energy_fn, functools.partial):
        energy_fn = energy_fn.func
    function = inspect.unwrap(energy_fn)
    if not hasattr(function, "__code__"):  # a bound method knows its code, an object that can be called does not
        function = inspect.getattr_static(type(function), "__call__", None)
    code = getattr(function, "__code__", None)
    if code is None or Path(__file__).parent in Path(code.co_filename).parents:
        return ExportError(what)
    return ExportError(f"{code.co_filename}:{code.co_firstlineno}: {what}")


_MASKS = (
    " (how many entries a mask keeps is not known while a function is traced: keep them all, and set those that do not"
    " count to zero with jnp.where(mask, values, 0))"
)

#: functions of jax.numpy whose result has as many entries as a condition holds
_COUNTING = ("nonzero", "argwhere", "flatnonzero", "where", "compress", "extract", "unique")


def _advice(error: Exception) -> str:
    text, calls = str(error), {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    if "Reverse-mode differentiation does not work for lax.while_loop" in text:
        return (
            " (forces are a derivative, and a loop of unknown length has none in JAX: use jax.lax.scan, or"
            " jax.lax.fori_loop from one Python int to another)"
        )
    if "callback" in text.lower():
        return (
            " (a bundle runs without Python: no jax.debug.print, no jax.pure_callback and the like in what is exported)"
        )
    if isinstance(error, jax.errors.UnexpectedTracerError) or "safe_zip" in text:
        return (
            " (energy_fn seems to use an array that an earlier call has kept, in a global or a cache: it must compute"
            " all from its arguments)"
        )
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return _MASKS
    if not isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        return ""
    if any(name.startswith("segment_") for name in calls):
        return " (the number of segments must be given: num_segments=graph.rows[-1] where they are the graph's atoms)"
    if not calls.isdisjoint(_COUNTING):
        return _MASKS
    return (
        " (values are not known while a function is traced: use jnp.where, jax.lax and jax.numpy for what needs them)"
    )


def _last_frame(error: BaseException | None) -> str:
    """``file:line`` of the innermost frame that is neither JAX's nor ours.

    What fails while JAX transforms a program has the frames of the operation in its cause.
    """
    while error is not None:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_plumbing(f.filename)]
        if frames:
            return f"{frames[-1].filename}:{frames[-1].lineno}"
        error = error.__cause__
    return ""


_JAX = tuple(Path(package.__file__).parent for package in (jax, jaxlib))


def _is_plumbing(file: str) -> bool:
    path = Path(file)
    ours = path.parent == Path(__file__).parent
    return ours or file.startswith("<") or any(folder in path.parents for folder in _JAX)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def program_text(exported: jax_export.Exported, locations: bool = False) -> str:
    """VHLO in MLIR's generic form, without source locations unless they are asked for."""
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(exported.mlir_module_serialized)
        return module.operation.get_asm(
            print_generic_op_form=True, enable_debug_info=locations, pretty_debug_info=locations
        )


def build_program(
    tracer: Tracer, layers: int, platform: str, report: Callable[[str], None], like: Program | None = None
):
    """The program of one platform. ``like``: another platform's, which is taken over if it turns out the same.

    Raises :class:`ExportError` that names the operation whose size cannot be expressed.
    """
    names = symbols(layers)
    sizes = tracing_sets(layers, len(names) + 1 + 2)

    def exported(index: int) -> jax_export.Exported:
        report(f"trace {index + 1}/{4 if index < 4 else len(sizes)} for {platform}")
        return tracer.export(sizes[index], platform)

    if like is not None:
        # The last two sets serve no fit, so they show whether the other platform's template holds here too.
        report(f"compare with the program for {platform}")
        probe = tracer.export(sizes[3], platform)
        if program_text(probe) == instantiate(like.template, sizes[3].values()) and _kept(probe) == _all_arguments(
            like, tracer.inputs
        ):
            return like
    arguments: tuple[int, ...] | None = None

    def text(index: int) -> str:
        nonlocal arguments
        module = exported(index)
        if arguments is not None and arguments != _kept(module):
            raise tracer.refusal(
                "energy_fn uses other arrays or weights at other sizes; it must not branch on numbers of atoms or edges"
            )
        arguments = _kept(module)
        return program_text(module)

    try:
        template, traces = fit_template([s.values() for s in sizes], text)
        report(f"fit the program for {platform}: {template.count('@{')} sizes, {traces} traces agree")
    except Misfit as misfit:
        raise _explain(misfit, tracer, sizes, platform) from None
    assert arguments is not None
    targets = _targets(template)
    strangers = [target for target in targets if target not in tracer.announced]
    if strangers:
        raise _unannounced(strangers, tracer, sizes[0], platform)
    count, inputs = len(GRAPH_ROLES), tracer.inputs
    unused = [name for number, name in enumerate(inputs, start=count) if number not in arguments]
    if unused:
        raise tracer.refusal(f"energy_fn does not use graph.inputs[{unused[0]!r}]; use it, or leave it out of inputs")
    weights = count + len(inputs)
    return Program(
        template,
        tuple(GRAPH_ROLES[i] for i in arguments if i < count),
        inputs,
        tuple(i - weights for i in arguments if i >= weights),
        targets,
    )


def _kept(exported: jax_export.Exported) -> tuple[int, ...]:
    return tuple(exported.module_kept_var_idx)


def _all_arguments(program: Program, inputs: Sequence[str]) -> tuple[int, ...]:
    leading = (*GRAPH_ROLES, *inputs)
    roles = tuple(leading.index(name) for name in (*program.graph_roles, *program.inputs))
    return roles + tuple(len(leading) + weight for weight in program.weights)


def _targets(template: str) -> tuple[str, ...]:
    found = re.findall(r'call_target_name = #vhlo\.string_v1<"([^"]*)">', template)
    return tuple(sorted(set(found) - _XLA_TARGETS))


def _unannounced(targets: Sequence[str], tracer: Tracer, sizes: Sizes, platform: str) -> ExportError:
    """About custom calls that JAX serves with libraries of its own, and that a PJRT plugin cannot."""
    text = program_text(tracer.export(sizes, platform), locations=True)
    code = [line for line in text.split("\n") if not line.startswith("#loc")]
    target = f'call_target_name = #vhlo.string_v1<"{targets[0]}">'
    first = next(number for number, line in enumerate(code) if target in line)
    operation, place = locate(text, first)
    where = f"operation '{operation}'" + (f" ({place})" if place else "")
    what = (
        f"{where} calls {', '.join(targets)}, which JAX brings along for {platform} and no bundle can call: write it"
        " with sums, products and elementary functions (eigenvalues, inverses and determinants of 2x2 and 3x3 matrices"
        f" have closed forms), leave {platform} out of {argument('platforms')}, or pass"
        f" {argument('targets', list(targets))} and put a provider on STABLEMD_FFI_PATH where it runs"
    )
    return ExportError(what) if place else tracer.refusal(what)


_REASONS = {
    "constant": (
        "a mean over atoms or edges divides by their number, which padding changes; divide by a constant"
        " such as the average number of neighbours"
    ),
    "integer": "only sums of multiples of the sizes can be resized; avoid products, quotients and logarithms of sizes",
    "structure": (
        "energy_fn must build the same operations at every size: no Python loop or branch over the number of atoms"
        " or edges, no NumPy array of that length"
    ),
}


def _explain(misfit: Misfit, tracer: Tracer, sizes: Sequence[Sizes], platform: str) -> ExportError:
    text = program_text(tracer.export(sizes[misfit.text], platform), locations=True)
    operation, place = locate(text, misfit.line)
    where = f"operation '{operation}'" + (f" ({place})" if place else "")
    return ExportError(f"{where} cannot be exported for every size: {misfit.detail}; {_REASONS[misfit.kind]}")


def locate(text_with_locations: str, line: int) -> tuple[str, str]:
    """Name and source place of the operation in line ``line`` (without location lines) of a text with locations.

    A constant has no place of its own: it stands for the operation that it first goes into. What JAX keeps in a
    function of its own has the place of the first call of that function.
    """
    lines = text_with_locations.split("\n")
    aliases = dict(match.groups() for match in (re.match(r"(#loc\d*) = (.*)$", one) for one in lines) if match)
    code = [one for one in lines if not one.startswith("#loc")]
    line = min(line, len(code) - 1)
    while line > 0 and _OPERATION.search(code[line]) is None:
        line -= 1
    line = _first_use(code, line)
    match = _OPERATION.search(code[line])
    operation = re.sub(r"^\w+\.|_v\d+$", "", match[1]) if match else "module"
    place = _PLACE.search(code[_end(code, line)])
    if place is None:
        return operation, ""
    primitive = (place[1] or place[3] or "").rsplit("/", 1)[-1].rstrip(":")
    if primitive and primitive != operation:
        operation = f"{operation}, jax {primitive}"
    source = _source(place[2] or "", aliases)
    seen: set[int] = set()
    while not source and (call := _first_call(code, line)) is not None and call not in seen:
        seen.add(call)
        line, place = call, _PLACE.search(code[call])
        source = _source((place and place[2]) or "", aliases)
    return operation, source


_OPERATION = re.compile(r'"((?:vhlo|stablehlo|builtin|func)\.[\w.]+)"')
_CARRIERS = re.compile(r'^\s*(%\w+) = "vhlo\.(?:constant|broadcast_in_dim|convert|reshape)_v\d+"')


_PLACE = re.compile(r'(?:(?:"([^"]*)"\()?(#loc\d+)\)?|"([^"]*)")$')
_NAME = re.compile(r'sym_name = #vhlo\.string_v1<"([^"]*)">')


def _first_call(code: Sequence[str], line: int) -> int | None:
    """The line that first calls the function which ``line`` belongs to."""
    begin = next((i for i in range(line, -1, -1) if '"vhlo.func_v' in code[i]), None)
    name = _NAME.search(code[begin]) if begin is not None else None
    if name is None:
        return None
    callee = f'callee = #vhlo.string_v1<"{name[1]}">'
    return next((i for i, one in enumerate(code) if callee in one), None)


def _first_use(code: Sequence[str], line: int) -> int:
    """The line itself, or for a constant that of the operation that uses it, through shape changes."""
    while match := _CARRIERS.match(code[line]):
        used = re.compile(rf"[(, ]{match[1]}[,)]")
        user = next((i for i in range(line + 1, len(code)) if used.search(code[i])), None)
        if user is None:
            break
        line = user
    return line


def _end(code: Sequence[str], line: int) -> int:
    """The last line of an operation, which says where it comes from: its own, or that which closes its region."""
    if not code[line].endswith("({"):
        return line
    indent = code[line][: len(code[line]) - len(code[line].lstrip())]
    return next((i for i in range(line + 1, len(code)) if code[i].startswith(indent + "})")), line)


def _source(alias: str, aliases: dict[str, str]) -> str:
    """``file:line`` of the innermost place that an alias leads to, outside of JAX where there is one."""
    pending, seen, places = [alias], set(), []
    while pending:
        name = pending.pop(0)
        if name in seen or name not in aliases:
            continue
        seen.add(name)
        body = aliases[name]
        match = re.match(r"([^\"#]+):(\d+):\d+", body)
        if match:
            places.append((match[1], match[2]))
        pending += re.findall(r"#loc\d*", body)
    outside = [place for place in places if not _is_plumbing(place[0])]
    if not (outside or places):
        return ""
    file, number = (outside or places)[0]
    return f"{file}:{number}"
