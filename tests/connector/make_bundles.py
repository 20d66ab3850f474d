# SPDX-License-Identifier: BSD-3-Clause
"""Writes the bundles that the C++ tests run: small potentials whose energies and gradients have closed forms.

Usage: make_bundles.py FOLDER. With u = 1 - (r/cutoff)^2 and f(r) = u^3 inside the cutoff, w a table by species, c and n
an edge's centre and neighbour:

    one layer    E_i = sum over edges with c = i of w[s_c, s_n] f(r)
    two layers   rho_i = sum over edges with c = i of w[s_c, s_n] f(r)
                 E_i = rho_i^2 + sum over edges with c = i of rho_n f(r)
"""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from safetensors.numpy import save_file

jax.config.update("jax_enable_x64", True)

CUTOFF = 2.5
TABLE = np.array([[1.0, -0.5], [-0.5, 0.25]])


def switch(vectors):
    u = 1 - jnp.sum(vectors * vectors, axis=1) / CUTOFF**2
    return jnp.where(u > 0, u, 0) ** 3


def one_layer(sizes, table, species, vectors, centers, neighbors):
    edge = table[species[centers], species[neighbors]] * switch(vectors)
    return jax.ops.segment_sum(edge, centers, sizes["C1"], indices_are_sorted=True)


def two_layers(sizes, table, species, vectors, centers, neighbors):
    f = switch(vectors)
    edge = table[species[centers], species[neighbors]] * f
    rho = jax.ops.segment_sum(edge, centers, sizes["C1"], indices_are_sorted=True)
    used = slice(0, sizes["E2"])
    message = rho[neighbors[used]] * f[used]
    total = jax.ops.segment_sum(message, centers[used], sizes["C2"], indices_are_sorted=True)
    return rho[: sizes["C2"]] ** 2 + total


def coordination(sizes, species, vectors, centers):
    """Extra outputs: sums of f and of f v over the edges of a centre."""
    f = switch(vectors)
    total = functools.partial(jax.ops.segment_sum, segment_ids=centers, num_segments=sizes["C1"])
    return {"coordination": total(f), "moment": total(f[:, None] * vectors)}


def not_finite(sizes, species, vectors, centers):
    """The logarithm of a coordination, infinite for an atom alone."""
    return {"logarithm": jnp.log(coordination(sizes, species, vectors, centers)["coordination"])}


def charged(sizes, table, species, vectors, centers, neighbors, charge, field):
    """The energy of one layer times 1 + charge, and the field."""
    return (1 + charge) * one_layer(sizes, table, species, vectors, centers, neighbors) + field


def broken_energy(sizes, table, species, vectors, centers, neighbors):
    """Infinite for atoms on top of each other."""
    inverse = 1 / jnp.sum(vectors * vectors, axis=1)
    return jax.ops.segment_sum(table[0, 0] * inverse, centers, sizes["C1"], indices_are_sorted=True)


def broken_gradient(sizes, table, species, vectors, centers, neighbors):
    """Fine for atoms on top of each other, but without a derivative there."""
    distance = jnp.sqrt(jnp.sum(vectors * vectors, axis=1))
    return jax.ops.segment_sum(table[0, 0] * distance, centers, sizes["C1"], indices_are_sorted=True)


def program_text(energy, sizes, dtype, layers, target, extra=None, inputs=0):
    """VHLO text of energy and gradient at these sizes, with so many graph inputs."""

    def evaluate(table, species, vectors, centers, neighbors, owned, *values):
        def total(v):
            node = energy(sizes, table, species, v, centers, neighbors, *values)
            node = jnp.where(jnp.arange(node.shape[0]) < owned, node, 0)
            return jnp.sum(node), node

        (_, node), gradient = jax.value_and_grad(total, has_aux=True)(vectors)
        if target:
            shape = jax.ShapeDtypeStruct(node.shape, node.dtype)
            node = jax.ffi.ffi_call(target, shape)(node, scale=np.float32(2.0))
        outputs = extra(sizes, species, vectors, centers) if extra else {}
        return node, gradient, *(outputs[name] for name in sorted(outputs))

    shape = jax.ShapeDtypeStruct
    arguments = (
        shape(TABLE.shape, dtype),
        shape((sizes["N"],), jnp.int32),
        shape((sizes["E1"], 3), dtype),
        shape((sizes["E1"],), jnp.int32),
        shape((sizes["E1"],), jnp.int32),
        shape((), jnp.int32),
        *[shape((), dtype)] * inputs,
    )
    checks = [export.DisabledSafetyCheck.custom_call(target)] if target else []
    exported = export.export(jax.jit(evaluate, keep_unused=True), platforms=["cpu"], disabled_checks=checks)(*arguments)
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(exported.mlir_module_serialized)
        return module.operation.get_asm(print_generic_op_form=True)


def affine(values, samples, symbols):
    """The sum of the symbols that gives these values."""
    matrix = np.array([[*(s[name] for name in symbols), 1] for s in samples], float)
    solution = np.linalg.lstsq(matrix, np.array(values, float), rcond=None)[0]
    factors = solution.round().astype(int)
    assert (matrix @ factors == np.array(values)).all(), values
    terms = [f"{factor:+d}*{name}" for factor, name in zip(factors, [*symbols, ""], strict=True) if factor and name]
    constant = f"{factors[-1]:+d}" if factors[-1] else ""
    return "".join(terms) + constant


def template(energy, dtype, layers, target, extra=None, inputs=0):
    samples = [
        {"N": 61 + 7 * a, "C1": 41 + 5 * b, "C2": 23 + 4 * c, "E1": 331 + 13 * d, "E2": 211 + 11 * e}
        for a, b, c, d, e in [(0, 0, 0, 0, 0), *itertools.islice(itertools.permutations(range(1, 6)), 0, 100, 9)]
    ]
    symbols = ["N", "C1", "E1"] if layers == 1 else ["N", "C1", "C2", "E1", "E2"]
    texts = [program_text(energy, sample, dtype, layers, target, extra, inputs) for sample in samples]
    tokens = [re.split(r"(\d+)", text) for text in texts]
    assert len({len(t) for t in tokens}) == 1
    pieces = []
    for column in zip(*tokens, strict=True):
        varies = len(set(column)) > 1
        pieces.append("@{" + affine([int(x) for x in column], samples, symbols) + "}" if varies else column[0])
    return "".join(pieces)


def port(role, dtype, shape):
    return {"role": role, "dtype": dtype, "shape": shape}


def make_manifest(layers, name, target):
    program = {
        "text": "programs/cpu",
        "inputs": [
            {"role": "weight", "tensor": "weights/table"},
            port("species", "int32", ["N"]),
            port("vectors", name, ["E1", 3]),
            port("centers", "int32", ["E1"]),
            port("neighbors", "int32", ["E1"]),
            port("owned", "int32", []),
        ],
        "outputs": [port("node_energy", name, [f"C{layers}"]), port("edge_gradient", name, ["E1", 3])],
        "targets": [target] if target else [],
    }
    return {
        "format": 1,
        "name": "test",
        "dtype": name,
        "cutoff": CUTOFF,
        "layers": layers,
        "elements": ["Si", "C"],
        "atomic_energies": [-1.5, -2.5],
        "units": {"energy": "eV", "length": "Angstrom"},
        "programs": {"cpu": program},
        "versions": {"jax": jax.__version__},
        "source": {},
        "reference": None,
    }


def write(path, text, manifest, table=TABLE):
    tensors = {
        "programs/cpu": np.frombuffer(text.encode(), np.uint8).copy(),
        "weights/table": table.astype(manifest["dtype"]),
    }
    save_file(tensors, path, metadata={"stablemd": json.dumps(manifest)})


def write_broken(folder, text):
    """Bundles with one thing wrong that only the plugin, or only the program's text, can tell."""
    manifest = make_manifest(1, "float32", "")
    manifest["versions"]["stablehlo"] = "99.0.0"
    write(folder / "newer_stablehlo.safetensors", text, manifest)
    manifest = make_manifest(1, "float32", "")
    write(folder / "unknown_symbol.safetensors", text + "@{Q}", manifest)
    write(folder / "not_mlir.safetensors", "@{N} is no program", manifest)
    write(folder / "other_weight.safetensors", text, manifest, TABLE[:1])
    write(folder / "newer_body.safetensors", text.replace('"vhlo.multiply_v1"', '"vhlo.multiply_v9"', 1), manifest)
    write(folder / "broken_body.safetensors", text.replace('"vhlo.multiply_v1"', '"vhlo.multiply_v1', 1), manifest)
    manifest["versions"] = {}
    write(folder / "no_versions.safetensors", text.replace('"vhlo.multiply_v1"', '"vhlo.multiply_v9"', 1), manifest)
    manifest["programs"]["cpu"]["outputs"].reverse()
    write(folder / "swapped_outputs.safetensors", text, manifest)
    manifest = make_manifest(1, "float32", "")
    inputs = manifest["programs"]["cpu"]["inputs"]
    inputs[1:3] = inputs[2:0:-1]
    write(folder / "swapped_inputs.safetensors", text, manifest)
    manifest = make_manifest(1, "float32", "")
    del manifest["programs"]["cpu"]["inputs"][0]
    write(folder / "missing_input.safetensors", text, manifest)


def main(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for layers, dtype in itertools.product((1, 2), ("float32", "float64")):
        text = template(one_layer if layers == 1 else two_layers, dtype, layers, "")
        write(folder / f"layers{layers}_{dtype}.safetensors", text, make_manifest(layers, dtype, ""))
        if (layers, dtype) == (1, "float32"):
            write_broken(folder, text)
    for target in ("toy_staged", "toy_plain", "toy_fail"):
        text = template(one_layer, "float32", 1, target)
        write(folder / f"{target}.safetensors", text, make_manifest(1, "float32", target))
    for extra, widths in ((coordination, {"coordination": 1, "moment": 3}), (not_finite, {"logarithm": 1})):
        manifest = make_manifest(1, "float32", "")
        manifest["format"] = 2
        manifest["node_outputs"] = {name: {"width": width, "unit": f"unit of {name}"} for name, width in widths.items()}
        manifest["programs"]["cpu"]["outputs"] += [
            {"name": name, **port("node_output", "float32", ["C1"] if width == 1 else ["C1", width])}
            for name, width in widths.items()
        ]
        write(folder / f"{extra.__name__}.safetensors", template(one_layer, "float32", 1, "", extra), manifest)
    for dtype in ("float32", "float64"):
        manifest = make_manifest(1, dtype, "")
        manifest["format"] = 3
        manifest["graph_inputs"] = {
            "charge": {"default": 0, "minimum": -2, "maximum": 2, "integer": True},
            "field": {"default": 0.5, "minimum": None, "maximum": 10, "integer": False},
        }
        manifest["programs"]["cpu"]["inputs"] += [
            {"name": name, **port("graph_input", dtype, [])} for name in manifest["graph_inputs"]
        ]
        write(folder / f"charged_{dtype}.safetensors", template(charged, dtype, 1, "", inputs=2), manifest)
    for energy in (broken_energy, broken_gradient):
        text = template(energy, "float32", 1, "")
        write(folder / f"{energy.__name__}.safetensors", text, make_manifest(1, "float32", ""))


if __name__ == "__main__":
    main(sys.argv[1])
