# SPDX-License-Identifier: BSD-3-Clause
"""The manifest of a bundle: built and checked here, defined in docs/bundle.md."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._errors import ArgumentError, FormatError
from ._inputs import GraphInput
from ._sizes import MAX_LAYERS, symbols
from ._template import parse_affine
from ._text import is_printable

FORMAT = 3  #: newest version that is read; see :func:`format_of` for what is written
KEY = "stablemd"  #: name of the manifest in the file's __metadata__
DTYPES = ("float32", "float64")
PLATFORMS = ("cpu", "cuda")
REFERENCE_FIELDS = {
    "positions": "F64",
    "cell": "F64",
    "pbc": "I64",
    "numbers": "I64",
    "forces": "F64",
    "node_energies": "F64",
}
#: what a reference's ``original`` says of the framework that the model comes from; its forces are a tensor
ORIGINAL_FIELDS = ("framework", "dtype", "energy")
ORIGINAL_FORCES = "reference/original_forces"


GRAPH_ROLES = ("species", "vectors", "centers", "neighbors", "owned")  #: arrays of the graph, in a program's order


def output_field(name: str) -> str:
    """The reference's field with the values of an extra output."""
    return f"outputs/{name}"


def graph_array(role: str, dtype: str) -> dict[str, Any]:
    """Entry of a graph array in a program's inputs."""
    kinds = {
        "species": ("int32", ["N"]),
        "vectors": (dtype, ["E1", 3]),
        "centers": ("int32", ["E1"]),
        "neighbors": ("int32", ["E1"]),
        "owned": ("int32", []),
    }
    kind, shape = kinds[role]
    return {"role": role, "dtype": kind, "shape": shape}


def graph_input(name: str, dtype: str) -> dict[str, Any]:
    """Entry of a graph input, such as the charge, in a program's inputs."""
    return {"role": "graph_input", "name": name, "dtype": dtype, "shape": []}


# Names that engines give to what they always compute, in ASE's results and elsewhere.
RESERVED_OUTPUTS = ("energy", "energies", "free_energy", "forces", "stress", "stresses")


def is_name(name: Any) -> bool:
    """Whether an extra output or a graph input may be called so: engines use the name as a word of their own input."""
    plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None
    return plain and name not in RESERVED_OUTPUTS and not name.endswith(("_spread", "_flag"))


def format_of(node_outputs: Mapping[str, Any], graph_inputs: Mapping[str, Any]) -> int:
    """The oldest version of docs/bundle.md that describes a bundle, so that older readers take what they can."""
    if graph_inputs:
        return 3
    return 2 if node_outputs else 1


def node_outputs(widths: Mapping[str, int], units: Mapping[str, str]) -> dict[str, Any]:
    """The manifest's field of that name."""
    return {name: {"width": widths[name], "unit": units.get(name, "")} for name in sorted(widths)}


def outputs(dtype: str, layers: int, widths: Mapping[str, int]) -> list[dict[str, Any]]:
    """Results of a program; ``widths``: numbers per row of each extra output."""
    rows = f"C{layers}"
    extra = [
        {"role": "node_output", "name": name, "dtype": dtype, "shape": [rows] if width == 1 else [rows, width]}
        for name, width in sorted(widths.items())
    ]
    return [
        {"role": "node_energy", "dtype": dtype, "shape": [rows]},
        {"role": "edge_gradient", "dtype": dtype, "shape": ["E1", 3]},
        *extra,
    ]


def program_entry(
    text: str,
    graph_roles: Sequence[str],
    graph_inputs: Sequence[str],
    weights: Sequence[str],
    targets: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    dtype: str,
) -> dict[str, Any]:
    """A program of the manifest; ``results`` come from :func:`outputs`."""
    inputs = [graph_array(role, dtype) for role in graph_roles]
    inputs += [graph_input(name, dtype) for name in graph_inputs]
    inputs += [{"role": "weight", "tensor": weight} for weight in weights]
    return {"text": text, "inputs": inputs, "outputs": list(results), "targets": list(targets)}


def dump(manifest: Mapping[str, Any]) -> str:
    """The manifest as it is stored: same content, same characters."""
    return json.dumps(manifest, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def validate(manifest: Any, tensors: Mapping[str, tuple[str, tuple[int, ...]]], where: str) -> dict[str, Any]:
    """Checks a manifest against docs/bundle.md and against the file's tensors (name -> dtype, shape).

    Returns it. Raises :class:`FormatError` with the first fault; ``where`` is the file's name.
    """

    def fail(what: str) -> None:
        raise FormatError(f"{where} is no valid bundle: {what}; export the model again")

    def expect(condition: bool, what: str) -> None:
        if not condition:
            fail(what)

    expect(isinstance(manifest, dict), "its manifest is no object")
    version = manifest.get("format")
    expect(isinstance(version, int) and not isinstance(version, bool) and version >= 1, "it has no format version")
    if version > FORMAT:
        raise FormatError(f"{where} has bundle format {version}, this StableMD reads up to {FORMAT}; update StableMD")

    layers, elements = manifest.get("layers"), manifest.get("elements")
    expect(isinstance(layers, int) and 1 <= layers <= MAX_LAYERS, f"layers is {layers!r}, not 1..{MAX_LAYERS}")
    expect(manifest.get("dtype") in DTYPES, f"dtype is {manifest.get('dtype')!r}")
    expect(_positive(manifest.get("cutoff")), f"cutoff is {manifest.get('cutoff')!r}")
    expect(_strings(elements) and len(elements) > 0, "it lists no elements")
    expect(len(set(elements)) == len(elements), "it lists an element twice")
    _expect_printable("element", elements, expect)
    energies = manifest.get("atomic_energies")
    expect(
        isinstance(energies, list) and len(energies) == len(elements) and all(map(_finite, energies)),
        "atomic_energies are not one finite number per element",
    )
    units = manifest.get("units")
    expect(
        isinstance(units, dict) and all(isinstance(units.get(k), str) for k in ("energy", "length")),
        "units do not name energy and length",
    )
    _expect_printable("unit", (units["energy"], units["length"]), expect)
    widths = _validated_widths(manifest.get("node_outputs", {}), expect)
    arguments = _validated_arguments(manifest.get("graph_inputs", {}), manifest["dtype"], expect)
    programs = manifest.get("programs")
    expect(isinstance(programs, dict) and len(programs) > 0, "it holds no program")
    for platform, program in programs.items():
        results = outputs(manifest["dtype"], layers, widths)
        _validate_program(program, f"the program for {platform}", layers, arguments, results, tensors, expect)
    reference = manifest.get("reference")
    if reference is not None:
        expect(isinstance(reference, dict) and _finite(reference.get("energy")), "its reference has no energy")
        _validate_reference(tensors, widths, expect)
        _validate_original(reference, tensors, expect)
    return manifest


def _validated_widths(fields: Any, expect: Any) -> dict[str, int]:
    expect(isinstance(fields, dict), "node_outputs is no object")
    for name, one in fields.items():
        expect(is_name(name), f"node_outputs has the name {name!r}")
        whole = isinstance(one, dict) and isinstance(one.get("width"), int) and not isinstance(one["width"], bool)
        expect(whole and one["width"] >= 1, f"the node output {name} has no width")
        expect(isinstance(one.get("unit"), str), f"the node output {name} has no unit")
        _expect_printable("unit", (one["unit"],), expect)
    return {name: one["width"] for name, one in fields.items()}


def _expect_printable(what: str, texts: Iterable[str], expect: Any) -> None:
    """Engines print these as they are."""
    for text in texts:
        expect(is_printable(text), f"the {what} {text!r} holds control characters")


def _validated_arguments(fields: Any, dtype: str, expect: Any) -> list[dict[str, Any]]:
    """Entries of what a program may take besides weights, and must of graph inputs."""
    expect(isinstance(fields, dict), "graph_inputs is no object")
    for name, one in fields.items():
        expect(is_name(name), f"graph_inputs has the name {name!r}")
        known = isinstance(one, dict) and set(one) == {"default", "minimum", "maximum", "integer"}
        expect(known, f"the graph input {name} is not default, minimum, maximum and integer")
        try:
            GraphInput(**one)
        except ArgumentError as error:
            expect(False, f"the graph input {name} is wrong: {error}")
    return [graph_array(role, dtype) for role in GRAPH_ROLES] + [graph_input(name, dtype) for name in fields]


def _validate_program(
    program: Any,
    name: str,
    layers: int,
    arguments: Sequence[Mapping],
    results: Sequence[Mapping],
    tensors: Mapping,
    expect: Any,
) -> None:
    expect(isinstance(program, dict), f"{name} is no object")
    text = program.get("text")
    expect(text in tensors and tensors[text][0] == "U8", f"{name} has no text")
    expect(_strings(program.get("targets")), f"{name} has no list of targets")
    known = set(symbols(layers))
    seen = set()
    for kind in ("inputs", "outputs"):
        entries = program.get(kind)
        expect(isinstance(entries, list) and all(isinstance(e, dict) for e in entries), f"{name} has no {kind}")
        for entry in entries:
            role = entry.get("role")
            if kind == "inputs" and role == "weight":
                expect(
                    entry.get("tensor") in tensors, f"{name} needs the tensor {entry.get('tensor')!r}, which is missing"
                )
                continue
            key = (role, entry.get("name"))
            expect(key not in seen, f"{name} has the role {role!r} twice")
            seen.add(key)
            allowed = {(o["role"], o.get("name")): o for o in (results if kind == "outputs" else arguments)}
            expect(key in allowed, f"{name} has the unknown role {role!r} among its {kind}")
            expect(entry == allowed[key], f"{name} has {entry} where {allowed[key]} is due")
            for dimension in entry["shape"]:
                expect(
                    isinstance(dimension, int) or _expression(dimension, known), f"{name} has the size {dimension!r}"
                )
    due = {("vectors", None), *((o["role"], o.get("name")) for o in results)}
    due |= {(one["role"], one["name"]) for one in arguments if one["role"] == "graph_input"}
    lacking = sorted(other or role for role, other in due - seen)
    expect(not lacking, f"{name} lacks {', '.join(lacking)}")


def _validate_reference(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], widths: Mapping[str, int], expect: Any
) -> None:
    for field, dtype in REFERENCE_FIELDS.items():
        expect(tensors.get(f"reference/{field}", ("",))[0] == dtype, f"reference/{field} is missing or not {dtype}")
    count = tensors["reference/numbers"][1]
    shapes = {
        "positions": (*count, 3),
        "cell": (3, 3),
        "pbc": (3,),
        "numbers": count,
        "forces": (*count, 3),
        "node_energies": count,
    }
    for name, width in widths.items():
        field = output_field(name)
        expect(tensors.get(f"reference/{field}", ("",))[0] == "F64", f"reference/{field} is missing or not F64")
        shapes[field] = count if width == 1 else (*count, width)
    for field, shape in shapes.items():
        expect(tuple(tensors[f"reference/{field}"][1]) == shape, f"reference/{field} has a wrong shape")


def _validate_original(
    reference: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]], expect: Any
) -> None:
    if "original" not in reference:
        return
    original = reference["original"]
    expect(isinstance(original, dict) and _finite(original.get("energy")), "its reference's original has no energy")
    expect(isinstance(original.get("framework"), str), "its reference's original has no framework")
    expect(original.get("dtype") in DTYPES, f"its reference's original has the dtype {original.get('dtype')!r}")
    forces = tensors.get(ORIGINAL_FORCES, ("", ()))
    due = ("F64", tuple(tensors["reference/forces"][1]))
    expect((forces[0], tuple(forces[1])) == due, f"{ORIGINAL_FORCES} is missing or has a wrong type or shape")


def _expression(text: Any, known: set[str]) -> bool:
    try:
        return {symbol for symbol, _ in parse_affine(text).factors} <= known
    except (ValueError, TypeError):
        return False


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v for v in value)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _finite(value) and value > 0
