# SPDX-License-Identifier: BSD-3-Clause
"""The manifest of a bundle: built and checked here, defined in docs/bundle.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ._errors import FormatError
from ._sizes import MAX_LAYERS, symbols
from ._template import parse_affine

FORMAT = 1
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


def graph_input(role: str, dtype: str) -> dict[str, Any]:
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


def outputs(dtype: str, layers: int) -> list[dict[str, Any]]:
    return [
        {"role": "node_energy", "dtype": dtype, "shape": [f"C{layers}"]},
        {"role": "edge_gradient", "dtype": dtype, "shape": ["E1", 3]},
    ]


def program_entry(
    text: str, graph_roles: Sequence[str], weights: Sequence[str], targets: Sequence[str], dtype: str, layers: int
) -> dict[str, Any]:
    inputs = [graph_input(role, dtype) for role in graph_roles]
    inputs += [{"role": "weight", "tensor": weight} for weight in weights]
    return {"text": text, "inputs": inputs, "outputs": outputs(dtype, layers), "targets": list(targets)}


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
    programs = manifest.get("programs")
    expect(isinstance(programs, dict) and len(programs) > 0, "it holds no program")
    for platform, program in programs.items():
        _validate_program(program, f"the program for {platform}", layers, manifest["dtype"], tensors, expect)
    reference = manifest.get("reference")
    if reference is not None:
        expect(isinstance(reference, dict) and _finite(reference.get("energy")), "its reference has no energy")
        _validate_reference(tensors, expect)
    return manifest


def _validate_program(program: Any, name: str, layers: int, dtype: str, tensors: Mapping, expect: Any) -> None:
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
            expect(role not in seen, f"{name} has the role {role!r} twice")
            seen.add(role)
            allowed = (
                {o["role"]: o for o in outputs(dtype, layers)}
                if kind == "outputs"
                else {r: graph_input(r, dtype) for r in ("species", "vectors", "centers", "neighbors", "owned")}
            )
            expect(role in allowed, f"{name} has the unknown role {role!r} among its {kind}")
            expect(entry == allowed[role], f"{name} has {entry} where {allowed[role]} is due")
            for dimension in entry["shape"]:
                expect(
                    isinstance(dimension, int) or _expression(dimension, known), f"{name} has the size {dimension!r}"
                )
    expect({"vectors", "node_energy", "edge_gradient"} <= seen, f"{name} lacks vectors, node_energy or edge_gradient")


def _validate_reference(tensors: Mapping[str, tuple[str, tuple[int, ...]]], expect: Any) -> None:
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
    for field, shape in shapes.items():
        expect(tuple(tensors[f"reference/{field}"][1]) == shape, f"reference/{field} has a wrong shape")


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
