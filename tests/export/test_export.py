# SPDX-License-Identifier: BSD-3-Clause
"""What an export writes, and that native evaluation agrees with JAX at sizes and hop patterns never traced."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import stablemd
from potentials import POTENTIALS, embedded_atom, lennard_jones, message_passing
from safetensors import safe_open
from stablemd import ExportError, FormatError, export_potential
from stablemd._bundle import read_bundle
from stablemd._evaluate import graph_arrays
from stablemd._graphs import HopGraph
from stablemd._native import evaluate, load
from stablemd._program import energy_and_gradient, x64
from stablemd._template import instantiate

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", POTENTIALS)
def test_export_agrees_with_jax_on_the_reference(bundles, kind, dtype):
    bundles(kind, dtype)
    summary = bundles.summaries[kind, dtype]
    assert summary.unverified == ""
    assert summary.energy_deviation <= TOLERANCE[dtype] * 100
    assert summary.file_size == summary.path.stat().st_size


def test_the_file_is_plain_safetensors(bundles):
    path = bundles("message_passing", "float32")
    with safe_open(path, framework="numpy") as file:
        assert set(file.metadata()) == {"stablemd"}
        manifest = json.loads(file.metadata()["stablemd"])
        names = set(file.keys())
        potential = message_passing()
        mix = file.get_tensor("weights/layers/1/mix")
        assert mix.dtype == np.float32
        np.testing.assert_array_equal(mix, potential.params["layers"][1]["mix"].astype(np.float32))
        numbers = file.get_tensor("reference/numbers")
    assert manifest["format"] == 1
    assert manifest["elements"] == ["Si", "C"] and manifest["layers"] == 2 and manifest["cutoff"] == 3.5
    assert manifest["atomic_energies"] == potential.atomic_energies.tolist()
    assert manifest["units"] == {"energy": "eV", "length": "Angstrom"}
    assert set(manifest["programs"]) == {"cpu", "cuda"}
    inputs = {entry["role"]: entry for entry in manifest["programs"]["cpu"]["inputs"]}
    assert inputs["vectors"] == {"role": "vectors", "dtype": "float32", "shape": ["E1", 3]}
    assert inputs["owned"] == {"role": "owned", "dtype": "int32", "shape": []}
    outputs = manifest["programs"]["cpu"]["outputs"]
    assert outputs[0] == {"role": "node_energy", "dtype": "float32", "shape": ["C2"]}
    assert outputs[1] == {"role": "edge_gradient", "dtype": "float32", "shape": ["E1", 3]}
    assert set(numbers) == {6, 14}
    # Identical programs are stored once.
    assert [name for name in names if name.startswith("programs/")] == ["programs/cpu-cuda"]


def test_unused_arguments_are_dropped(tmp_path):
    def energy(params, graph):
        return params["used"] * lennard_jones().energy_fn({"sigma": 3.0, "epsilon": 0.01}, graph)

    path = tmp_path / "model.safetensors"
    params = {"used": 1.0, "unused": np.ones(1000)}
    stablemd.export_model(energy, params, path=path, cutoff=8.5, layers=1, elements=["Ar"], platforms="cpu")
    bundle = read_bundle(path)
    assert "weights/unused" not in bundle.tensors and bundle.parameter_count == 1
    roles = [entry["role"] for entry in bundle.manifest["programs"]["cpu"]["inputs"]]
    assert roles == ["vectors", "centers", "owned", "weight"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exporting_twice_gives_the_same_bytes(tmp_path, bundles, dtype):
    script = Path(__file__).parents[1] / "potentials.py"
    path = tmp_path / "again.safetensors"
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    subprocess.run([sys.executable, script, "message_passing", path, dtype], check=True, env=environment, timeout=300)
    digests = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (path, bundles("message_passing", dtype))]
    assert digests[0] == digests[1]


def test_programs_hold_no_paths(bundles):
    for kind in POTENTIALS:
        text = read_bundle(bundles(kind)).text("cpu")
        assert "loc(" not in text and ".py" not in text


@pytest.mark.parametrize("enabled", [False, True])
def test_the_choice_of_64_bits_is_left_alone(tmp_path, enabled):
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", enabled)
    try:
        for dtype in ("float32", "float64"):
            path = tmp_path / f"{dtype}.safetensors"
            export_potential(lennard_jones(), path, dtype=dtype, verify=False)
            assert jax.config.jax_enable_x64 == enabled
            assert read_bundle(path).manifest["dtype"] == dtype
    finally:
        jax.config.update("jax_enable_x64", before)


def test_nothing_is_left_when_the_check_fails(tmp_path, monkeypatch):
    import stablemd._export as module

    path = tmp_path / "model.safetensors"
    path.write_bytes(b"an older bundle")
    monkeypatch.setattr(module, "_BARS", {"float64": (-1.0, -1.0)})
    with pytest.raises(ExportError, match="differs from JAX"):
        export_potential(lennard_jones(), path, dtype="float64")
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    assert path.read_bytes() == b"an older bundle"


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    import tempfile

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(stablemd.FileError, match=r"cannot be written: Permission denied"):
        export_potential(lennard_jones(), tmp_path / "model.safetensors")


def test_progress_names_every_step(tmp_path):
    steps = []
    export_potential(lennard_jones(), tmp_path / "model.safetensors", progress=steps.append)
    assert "trace 1/4 for cpu" in steps and "compare with the program for cuda" in steps
    assert any(step.startswith("fit the program for cpu: ") for step in steps)
    assert steps[-3:] == [
        "evaluate the reference structure in JAX",
        "verify natively against JAX: compile and evaluate",
        f"write {tmp_path / 'model.safetensors'}",
    ]


# ---- native evaluation at sizes that were never traced --------------------------------------------------------------


def random_graph(rng, potential, nodes, edges) -> HopGraph:
    """Any graph that keeps the order of docs/bundle.md; ``nodes`` and ``edges`` per hop. Not of real atoms."""
    first = np.concatenate([[0], np.cumsum(nodes)])
    centers, neighbors = [], []
    for hop, count in enumerate(edges):
        centers.append(np.sort(rng.integers(first[hop], first[hop + 1], count)))
        neighbors.append(rng.integers(0, first[min(hop + 2, len(nodes))], count))
    directions = rng.normal(size=(sum(edges), 3))
    lengths = rng.uniform(0.35, 1.05, (sum(edges), 1)) * potential.cutoff
    vectors = lengths * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    species = rng.integers(0, len(potential.elements), sum(nodes)).astype(np.int32)
    centers, neighbors = (np.concatenate([np.zeros(0, int), *parts]) for parts in (centers, neighbors))
    return HopGraph(species, centers, neighbors, vectors, tuple(nodes), tuple(edges), np.arange(sum(nodes)))


def by_jax(potential, graph: HopGraph, dtype: str):
    """The energy function itself, without padding."""
    real = np.dtype(dtype)
    leaves, structure = jax.tree_util.tree_flatten(potential.params)
    weights = [np.asarray(leaf).astype(real) for leaf in leaves]
    with x64(real):
        program = energy_and_gradient(potential.energy_fn, structure.unflatten, graph.sizes)
        energies, gradient = jax.jit(program)(*graph_arrays(graph, real), *weights)
    return np.asarray(energies, np.float64)[: graph.owned], np.asarray(gradient, np.float64)


# Rows and edges per hop for two layers; the last hop's rows are nobody's centre.
PATTERNS = {
    "fold": ([37, 0, 0], [211, 0]),
    "fold, one atom": ([1, 0, 0], [6, 0]),
    "fold, no edges": ([5, 0, 0], [0, 0]),
    "all hops": ([23, 17, 40], [150, 90]),
    "first hop of ghosts only": ([11, 9, 0], [60, 30]),
    "ghosts without edges": ([11, 9, 0], [60, 0]),
    "ghosts, none computed": ([8, 0, 5], [40, 0]),
    "one of each": ([1, 1, 1], [1, 1]),
    "larger": ([400, 300, 500], [9000, 7000]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_hop_pattern_of_two_layers(bundles, rng, pattern, dtype):
    nodes, edges = PATTERNS[pattern]
    potential = message_passing()
    graph = random_graph(rng, potential, nodes, edges)
    energies, gradient, _ = evaluate(load(bundles("message_passing", dtype)), graph)
    expected_energies, expected_gradient = by_jax(potential, graph, dtype)
    bar = TOLERANCE[dtype] * max(1.0, np.abs(expected_gradient).max(initial=0), np.abs(expected_energies).max())
    np.testing.assert_allclose(energies, expected_energies, rtol=0, atol=bar)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=bar)


@pytest.mark.parametrize("layers", [1, 3])
def test_other_numbers_of_layers(bundles, rng, layers):
    potential = message_passing(layers=layers)
    model = load(bundles("message_passing", layers=layers))
    for _ in range(3):
        nodes = rng.integers(1, 40, layers + 1).tolist()
        edges = rng.integers(1, 200, layers).tolist()
        graph = random_graph(rng, potential, nodes, edges)
        energies, gradient, _ = evaluate(model, graph)
        expected_energies, expected_gradient = by_jax(potential, graph, "float64")
        np.testing.assert_allclose(energies, expected_energies, rtol=0, atol=1e-11)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-11)


def test_a_size_that_grows_and_shrinks(bundles, rng):
    potential = embedded_atom()
    model = load(bundles("embedded_atom"))
    for count in (3, 200, 10, 150, 1):
        graph = random_graph(rng, potential, [count, 2 * count], [30 * count])
        energies, gradient, _ = evaluate(model, graph)
        expected_energies, expected_gradient = by_jax(potential, graph, "float64")
        bar = 1e-11 * max(1.0, np.abs(expected_gradient).max())
        np.testing.assert_allclose(energies, expected_energies, rtol=0, atol=bar)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=bar)


def test_no_atoms(bundles):
    potential = message_passing()
    empty = random_graph(np.random.default_rng(0), potential, [0, 0, 0], [0, 0])
    energies, gradient, _ = evaluate(load(bundles("message_passing")), empty)
    assert energies.shape == (0,) and gradient.shape == (0, 3)


def test_a_template_is_the_program_of_any_size(bundles):
    """The template at a size that no export traces is what JAX writes for that size."""
    from stablemd._program import Tracer, program_text
    from stablemd._sizes import Sizes

    potential = message_passing()
    leaves, structure = jax.tree_util.tree_flatten(potential.params)
    real = np.dtype("float64")
    weights = [np.asarray(leaf, real) for leaf in leaves]
    tracer = Tracer(potential.energy_fn, structure.unflatten, weights, real, ())
    sizes = Sizes((5003, 4001, 3001), (70001, 30011))
    with x64(real):
        expected = program_text(tracer.export(sizes, "cpu"))
    assert instantiate(read_bundle(bundles("message_passing")).text("cpu"), sizes.values()) == expected


# ---- reading --------------------------------------------------------------------------------------------------------


def test_what_is_no_bundle(tmp_path, bundles):
    from safetensors.numpy import save_file

    def failure(path, error=FormatError):
        with pytest.raises(error) as caught:
            read_bundle(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
        return str(caught.value)

    missing = tmp_path / "missing.safetensors"
    assert "there is no file" in failure(missing, stablemd.MissingFileError)
    assert "is no file" in failure(tmp_path, stablemd.FileError)
    path = tmp_path / "broken.safetensors"
    whole = bundles("lennard_jones").read_bytes()
    for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        failure(path)
    path.write_bytes(np.random.default_rng(0).bytes(5000))
    failure(path)
    save_file({"a": np.ones(3)}, path)
    assert "no StableMD bundle" in failure(path)
    save_file({"a": np.ones(3)}, path, metadata={"stablemd": "{"})
    assert "damaged manifest" in failure(path)
    save_file({"a": np.ones(3)}, path, metadata={"stablemd": "[" * 100_000})
    assert "damaged manifest" in failure(path)
    with pytest.raises(stablemd.FileError, match="cannot be the name of a file"):
        read_bundle("x" * 5000)
    save_file({"a": np.ones(3)}, path, metadata={"stablemd": json.dumps({"format": 4})})
    assert "has bundle format 4, this StableMD reads up to 3" in failure(path)


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("format", None, "no format version"),
        ("layers", 0, "layers is 0"),
        ("dtype", "float16", "dtype is 'float16'"),
        ("cutoff", -1, "cutoff is -1"),
        ("elements", [], "lists no elements"),
        ("elements", ["Ar", "Ar"], "lists an element twice"),
        ("atomic_energies", [], "not one finite number per element"),
        ("units", {}, "units do not name energy and length"),
        ("units", {"energy": "e\x1bV", "length": "A"}, "the unit 'e.x1bV' holds control characters"),
        ("elements", ["A\u202er"], "the element 'A.u202er' holds control characters"),
        ("node_outputs", {"q": {"width": 1, "unit": "e\r"}}, "the unit 'e.r' holds control characters"),
        ("programs", {}, "holds no program"),
        ("programs", {"cpu": {"text": "programs/none"}}, "has no text"),
        ("reference", {}, "its reference has no energy"),
        ("reference", {"energy": 1.0, "original": {"energy": 1.0}}, "its reference's original has no framework"),
        (
            "reference",
            {"energy": 1.0, "original": {"energy": 1.0, "framework": "x", "dtype": "float32"}},
            "reference/original_forces is missing or has a wrong type or shape",
        ),
    ],
)
def test_manifests_that_are_refused(bundles, key, value, expected):
    from stablemd._manifest import validate

    bundle = read_bundle(bundles("lennard_jones"))
    with pytest.raises(FormatError, match=expected):
        validate({**bundle.manifest, key: value}, bundle.tensors, "file")


def test_unknown_roles_are_refused(bundles):
    from stablemd._manifest import validate

    bundle = read_bundle(bundles("lennard_jones"))
    manifest = json.loads(json.dumps(bundle.manifest))
    manifest["programs"]["cpu"]["inputs"][0]["role"] = "positions"
    with pytest.raises(FormatError, match="unknown role 'positions'"):
        validate(manifest, bundle.tensors, "file")


def test_the_manual_lists_all_that_a_summary_says():
    import dataclasses

    manual = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    for field in dataclasses.fields(stablemd.ExportSummary):
        assert f"`{field.name}`" in manual
