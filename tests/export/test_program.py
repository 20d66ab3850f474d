# SPDX-License-Identifier: BSD-3-Clause
"""Energy functions that cannot be exported: each stops with one line that names the operation and the way out."""

import dataclasses
import os
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stablemd import ArgumentError, ExportError, FileError, export_model

CUTOFF = 3.0


def pair(graph):
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    energy = jnp.where(r < CUTOFF, (CUTOFF - r) ** 3, 0.0)
    return jax.ops.segment_sum(energy, graph.centers, graph.rows[1])


def refused(tmp_path, energy_fn, params=1.0, error=ExportError, **options):
    """Exports, expects an error of one line and no file, and returns the line."""
    path = tmp_path / "model.safetensors"
    settings = {"path": path, "cutoff": CUTOFF, "layers": 1, "elements": ["Si"], "platforms": ["cpu"], **options}
    with pytest.raises(error) as caught:
        export_model(energy_fn, params, **settings)
    assert list(tmp_path.iterdir()) == []
    line = str(caught.value)
    assert "\n" not in line
    # what a user sees last of an error that nobody catches
    assert traceback.format_exception(caught.value)[-1] == f"{error.__module__}.{error.__name__}: {line}\n"
    return line


def mean_over_rows(params, graph):
    return params * pair(graph) / graph.rows[1]  # the line that the error names


def mean_over_edges(params, graph):
    return params * pair(graph) - jnp.mean(graph.vectors)


def logarithm_of_a_size(params, graph):
    order = jnp.searchsorted(graph.centers, jnp.arange(graph.rows[1], dtype=jnp.int32))
    return params * pair(graph) + order.astype(graph.vectors.dtype)


def product_of_sizes(params, graph):
    return params * pair(graph) + jnp.sum(jnp.broadcast_to(params, (graph.rows[1] * graph.edges[0],)))


def loop_over_rows(params, graph):
    return sum(params * pair(graph) for _ in range(1 + graph.rows[0] % 5))


def numpy_array_of_rows(params, graph):
    return params * pair(graph) + np.sin(np.arange(graph.rows[1])).astype(np.float32)


@pytest.mark.parametrize(
    "energy_fn, operation, advice",
    [
        (mean_over_rows, "'divide, jax div'", "divide by a constant such as the average number of neighbours"),
        (mean_over_edges, "'divide, jax div'", "which padding changes"),
        (logarithm_of_a_size, "'compare", "avoid products, quotients and logarithms of sizes"),
        (product_of_sizes, "'reduce, jax reduce_sum'", "is no affine function of the sizes"),
        (loop_over_rows, "'", "no Python loop or branch over the number of atoms"),
        (numpy_array_of_rows, "'", "no NumPy array of that length"),
    ],
)
def test_programs_that_do_not_fit(tmp_path, energy_fn, operation, advice):
    line = refused(tmp_path, energy_fn)
    assert line.startswith(f"operation {operation}")
    assert advice in line


def test_the_source_line_is_named(tmp_path):
    number = next(
        i
        for i, line in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if "the line that the error" in line
    )
    assert f"({__file__}:{number})" in refused(tmp_path, mean_over_rows)


def test_branch_over_sizes(tmp_path):
    def branch(params, graph):
        return params * pair(graph) if graph.rows[0] < graph.edges[0] else pair(graph)

    assert "must not branch on numbers of atoms or edges" in refused(tmp_path, branch)


def test_dependence_on_the_number_of_rows_is_caught_by_the_native_check(tmp_path):
    def counts_rows(params, graph):
        ones = jax.ops.segment_sum(jnp.ones_like(graph.vectors[:, 0]), graph.centers, graph.rows[1])
        return params * pair(graph) * jnp.sum(ones)

    assert "must not depend on padding" in refused(tmp_path, counts_rows)


def test_not_finite_on_padding_is_caught_by_the_native_check(tmp_path):
    def undefined_beyond_the_cutoff(params, graph):
        r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
        total = jnp.sum(params * jnp.sqrt(CUTOFF - r))
        return pair(graph) + total - jax.lax.stop_gradient(total)

    line = refused(tmp_path, undefined_beyond_the_cutoff)
    assert "fails where JAX does not" in line or "must not depend on padding" in line


@pytest.mark.parametrize(
    "energy_fn, expected",
    [
        (lambda p, g: jnp.sum(p * pair(g)), "returned an array of shape ()"),
        (lambda p, g: (p * pair(g))[:, None], "must return one energy for each of the graph.rows[-1] leading rows"),
        (lambda p, g: 1.5, "returned a float"),
        (lambda p, g: (p * pair(g)).astype(jnp.float16), "returned float16 for vectors in float32"),
        (lambda p, g: p * np.asarray(pair(g)), "TracerArrayConversionError"),
        (lambda p, g: pair(g) @ jnp.ones((7, 3)), f"TypeError in {__file__}:"),
        (lambda p, g: p["missing"] * pair(g), "cannot be traced"),
        (lambda p, g: p * jnp.ones(g.rows[-1], g.vectors.dtype), "the energies do not depend on graph.vectors"),
        (lambda p, g: jax.ops.segment_sum(g.vectors[:, 0], g.centers), "num_segments=graph.rows[-1]"),
    ],
)
def test_functions_that_do_not_keep_the_contract(tmp_path, energy_fn, expected):
    assert expected in refused(tmp_path, energy_fn)


def test_energy_that_is_not_finite(tmp_path):
    line = refused(tmp_path, lambda p, g: p * pair(g) / jnp.zeros((), g.vectors.dtype))
    assert "not finite" in line and "reference=ase.Atoms" in line


def raises(params, graph):
    raise ValueError("of two lines\nthe first")


def branches(params, graph):
    energy = params * pair(graph)
    return energy if energy[0] > 0 else -energy


@dataclasses.dataclass
class Weighted:
    """Without a hash, as equinox' modules with arrays are."""

    weight: object

    def __call__(self, params, graph):
        return jnp.sum(self.weight * params * pair(graph))


@pytest.mark.parametrize(
    "energy_fn, mistake, within, complaint",
    [
        (lambda p, g: jnp.sum(p * pair(g)), 0, None, ": energy_fn returned an array of shape ()"),
        (lambda p, g: (p * pair(g)).astype(jnp.float16), 0, None, ": energy_fn returned float16"),
        (lambda p, g: (p * pair(g), {"a b": pair(g)}), 0, None, ": energy_fn returned an extra output called 'a b'"),
        (lambda p, g: (p * pair(g), {"q": g.vectors}), 0, None, ": energy_fn returned the extra output 'q'"),
        (lambda p, g: (p * pair(g), {"q": jnp.nan * pair(g)}), 0, None, ": not finite on the reference structure: q;"),
        (lambda p, g: jnp.nan * p * pair(g), 0, None, ": not finite on the reference structure: energy"),
        (Weighted(jnp.ones(1)), 0, Weighted.__call__, ": energy_fn returned an array of shape ()"),
        (raises, 1, None, ": of two lines"),
        (branches, 2, None, ": Attempted boolean conversion of traced array with shape bool[]. (values are not known"),
    ],
)
def test_the_function_is_named_by_file_and_line(tmp_path, energy_fn, mistake, within, complaint):
    number = (within or energy_fn).__code__.co_firstlineno + mistake
    assert f"{__file__}:{number}{complaint}" in refused(tmp_path, energy_fn)


def test_models_of_the_package_are_not_the_users_code(tmp_path):
    from stablemd._program import about

    assert str(about(refused, "wrong")) == f"{__file__}:{refused.__code__.co_firstlineno}: wrong"
    assert str(about(export_model, "wrong")) == str(about(len, "wrong")) == "wrong"


def test_a_users_folder_called_jax(tmp_path):
    """Only JAX's own files are left out where the line of a mistake is looked for."""
    (tmp_path / "jax").mkdir()
    script = tmp_path / "jax" / "mine.py"
    script.write_text("def energy(params, graph):\n    return params['missing']\n")
    names = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    (tmp_path / "out").mkdir()
    assert f"KeyError in {script}:2" in refused(tmp_path / "out", names["energy"], {"a": 1.0})


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"cutoff": 0.0}, "cutoff must be a positive number"),
        ({"cutoff": float("nan")}, "cutoff must be a positive number"),
        ({"cutoff": "3"}, "cutoff must be a positive number"),
        ({"layers": 0}, "layers must be a whole number from 1 to 8"),
        ({"layers": 9}, "layers must be a whole number from 1 to 8"),
        ({"layers": 1.0}, "layers must be a whole number from 1 to 8"),
        ({"elements": []}, "elements is empty"),
        ({"elements": "Si"}, "must be a list of chemical symbols"),
        ({"elements": ["Si", "Si"]}, "lists a symbol twice"),
        ({"elements": ["Si", "Xx"]}, "'Xx', which is no chemical symbol"),
        ({"elements": ["X"]}, "'X', which is no chemical symbol"),
        ({"atomic_energies": [1.0, 2.0]}, "one finite number per element (1)"),
        ({"atomic_energies": [float("inf")]}, "one finite number per element (1)"),
        ({"atomic_energies": {"C": 1.0}}, "atomic_energies has ['C']"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'"),
        ({"dtype": "real"}, "dtype must be 'float32' or 'float64'"),
        ({"platforms": []}, "platforms must be some of cpu, cuda"),
        ({"platforms": ["tpu"]}, "platforms must be some of cpu, cuda"),
        ({"platforms": ["cpu", "cpu"]}, "platforms must be some of cpu, cuda"),
        ({"units": {"energy": "eV"}}, "units must be like"),
        ({"params": {"a/b": 1.0, "a": {"b": 2.0}}}, "two leaves that would be stored as weights/a/b"),
        ({"params": {"a": "text"}}, "params[a] is a str"),
        ({"params": {"a": np.nan}}, "params[a] holds values that are not finite"),
        ({"params": {"a": 1e300}}, "params[a] holds values beyond the range of float32"),
        ({"params": {"a": 2**40}}, "params[a] holds whole numbers beyond 32 bits"),
        ({"params": {"a": 1j}}, "params[a] is a complex"),
        ({"source": {"made": object()}}, "cannot be written as JSON"),
        ({"source": ["made"]}, "source must be like"),
        ({"name": 3}, "name must be a text"),
        ({"cutoff": True}, "cutoff must be a positive number"),
        ({"elements": None}, "elements must be a list of chemical symbols"),
        ({"elements": [14]}, "elements must be a list of chemical symbols such as ['Si', 'C'], got 14 in it"),
        ({"elements": [["Si"]]}, "elements must be a list of chemical symbols"),
        ({"atomic_energies": "low"}, "atomic_energies must be numbers"),
        ({"atomic_energies": {1: 1.0, "C": 1.0}}, "atomic_energies has ['1', 'C']"),
        ({"units": ["eV"]}, "units must be like"),
        ({"output_units": ["e"]}, "output_units must be like {'charges': 'e'}, got ['e']"),
        ({"output_units": {"charges": 1}}, "output_units must be like"),
        ({"platforms": None}, "platforms must be a list of platforms"),
        ({"targets": "conv"}, "targets must be a list of names"),
        ({"reference": "Si2"}, "reference must be ase.Atoms"),
        ({"platform_energy_fns": {"tpu": pair}}, "platform_energy_fns must be like"),
        ({"platform_energy_fns": {"cpu": 3}}, "energy_fn must be a function"),
        ({"progress": "yes"}, "progress must be a function"),
        ({"path": None}, "path must be the name of a file"),
        ({"path": "model.pt"}, "model.pt must end in .safetensors"),
        ({"path": Path("model")}, "model must end in .safetensors"),
    ],
)
def test_wrong_arguments(tmp_path, options, expected):
    line = refused(tmp_path, lambda p, g: pair(g), error=ArgumentError, **options)
    assert expected in line


def test_wrong_paths(tmp_path):
    def attempt(path):
        with pytest.raises(FileError) as caught:
            export_model(lambda p, g: pair(g), None, path=path, cutoff=CUTOFF, layers=1, elements=["Si"])
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "there is no folder" in attempt(tmp_path / "missing" / "model.safetensors")
    assert "is a folder" in attempt(tmp_path)
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    assert "is not an ordinary file" in attempt(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("path", ["/proc/model.safetensors", "x" * 300 + ".safetensors", "a\0.safetensors"])
def test_files_that_cannot_be_written_are_refused_before_any_work(path):
    def never(params, graph):
        raise AssertionError("was traced")

    with pytest.raises(FileError, match="cannot be written"):
        export_model(never, None, path=path, cutoff=CUTOFF, layers=1, elements=["Si"])


def test_reference_with_another_element(tmp_path):
    from ase import Atoms

    atoms = Atoms("SiC", positions=[[0, 0, 0], [0, 0, 2]])
    assert "the reference structure has C" in refused(tmp_path, lambda p, g: p * pair(g), reference=atoms)


def test_reference_without_neighbours(tmp_path):
    from ase import Atoms

    atoms = Atoms("Si2", positions=[[0, 0, 0], [0, 0, 9]])
    assert "no two atoms of the reference structure" in refused(tmp_path, lambda p, g: p * pair(g), reference=atoms)


def ffi_energy(params, graph):
    energies = params * pair(graph)
    shape = jax.ShapeDtypeStruct(energies.shape, energies.dtype)
    extra = jax.ffi.ffi_call("tests_of_export", shape)(jax.lax.stop_gradient(energies))
    return energies + extra


def test_custom_calls_must_be_announced(tmp_path):
    assert "pass targets=[...] with: tests_of_export" in refused(tmp_path, ffi_energy)


def test_custom_calls_are_listed(tmp_path):
    from stablemd._bundle import read_bundle

    path = tmp_path / "model.safetensors"
    summary = export_model(
        ffi_energy, 1.0, path=path, cutoff=CUTOFF, layers=1, elements=["Si"], targets=["tests_of_export"]
    )
    assert summary.targets == ("tests_of_export",)
    assert "tests_of_export" in summary.unverified and summary.energy_deviation is None
    manifest = read_bundle(path).manifest
    assert [program["targets"] for program in manifest["programs"].values()] == [["tests_of_export"]] * 2
    assert manifest["reference"] is None
