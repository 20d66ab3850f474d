# SPDX-License-Identifier: BSD-3-Clause
"""Energy functions that cannot be exported: each stops with one line that names the operation and the way out."""

import dataclasses
import os
import traceback
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stablemd import ArgumentError, ExportError, FileError, PluginError, export_model

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


def two_layers(params, graph):
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    step = jnp.maximum(CUTOFF - r, 0) ** 3
    first = jax.ops.segment_sum(step, graph.centers, graph.rows[1])
    return params * jax.ops.segment_sum(
        step[: graph.edges[2]] * jnp.tanh(first)[graph.neighbors[: graph.edges[2]]],
        graph.centers[: graph.edges[2]],
        graph.rows[2],
    )


def last_rows_in_both_layers(params, graph):
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    step = jnp.maximum(CUTOFF - r, 0) ** 3
    first = jax.ops.segment_sum(step, graph.centers, graph.rows[-1])
    return params * jax.ops.segment_sum(step * jnp.tanh(first)[graph.neighbors], graph.centers, graph.rows[-1])


def all_rows_in_one_layer(params, graph):
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    step = jnp.maximum(CUTOFF - r, 0) ** 3
    first = jax.ops.segment_sum(step, graph.centers, graph.rows[0])
    return params * jax.ops.segment_sum(step * jnp.tanh(first)[graph.neighbors], graph.centers, graph.rows[1])


def test_layers_that_the_graph_has_not(tmp_path):
    line = refused(tmp_path, two_layers, layers=1)
    place = f"{__file__}:{two_layers.__code__.co_firstlineno + 5}"
    assert line == (
        f"{place}: energy_fn uses graph.edges[2], but the graph has 1 layer: pass layers=2 if so many sums over"
        " neighbours build on each other"
    )
    line = refused(tmp_path, lambda p, g: p * jnp.ones(g.rows[-4]), layers=2)
    assert "uses graph.rows[-4], but the graph has 2 layers: pass layers=3" in line


@pytest.mark.parametrize(
    "energy_fn, layers, reason",
    [
        (last_rows_in_both_layers, 2, "graph.rows[-1] is right in the last layer only"),
        (all_rows_in_one_layer, 1, "where sums over neighbours build on each other, pass layers= their number"),
    ],
)
def test_layers_that_are_mixed_up(tmp_path, energy_fn, layers, reason):
    """Right in one piece, where all layers have all rows, and wrong on several ranks."""
    line = refused(tmp_path, energy_fn, layers=layers)
    assert line.startswith(f"{__file__}:{energy_fn.__code__.co_firstlineno}: the exported program differs from JAX by ")
    assert "in one piece it agrees" in line and reason in line and "depend on padding" not in line


def loop_of_unknown_length(params, graph):
    energy = params * pair(graph)
    return jax.lax.while_loop(
        lambda state: state[0] < 3,
        lambda state: (state[0] + 1, jnp.sin(state[1])),
        (0, energy),
    )[1]


def mask(params, graph):
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    near = r[r < CUTOFF]
    return params * pair(graph) + jnp.sum(near)


def indices_of_a_mask(params, graph):
    near = jnp.nonzero(graph.vectors[:, 0] > 0)[0]
    return params * pair(graph) + jnp.sum(near)


def prints(params, graph):
    jax.debug.print("{}", params)
    return params * pair(graph)


def calls_python(params, graph):
    energy = params * pair(graph)
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(energy.shape, energy.dtype), energy)


def keeps_what_it_computed(params, graph, kept={}):  # noqa: B006
    kept.setdefault("twice", 2 * params)
    return kept["twice"] * pair(graph)


def not_written_yet(params, graph):
    raise NotImplementedError


@pytest.mark.parametrize(
    "energy_fn, mistake, hint",
    [
        (keeps_what_it_computed, 0, "it must compute all from its arguments"),
        (loop_of_unknown_length, 2, "use jax.lax.scan, or jax.lax.fori_loop from one Python int to another"),
        (mask, 2, "with jnp.where(mask, values, 0)"),
        (indices_of_a_mask, 1, "with jnp.where(mask, values, 0)"),
        (prints, 0, "no jax.debug.print"),
        (calls_python, 2, "no jax.pure_callback"),
        (lambda graph: pair(graph), 0, "takes 1 positional argument but 2 were given"),
        (lambda p, g: None, 0, "energy_fn returned a NoneType"),
    ],
)
def test_each_mistake_has_its_line_and_its_hint(tmp_path, energy_fn, mistake, hint):
    line = refused(tmp_path, energy_fn)
    assert f"{__file__}:{energy_fn.__code__.co_firstlineno + mistake}: " in line and hint in line


def test_an_exception_without_words(tmp_path):
    line = refused(tmp_path, not_written_yet)
    assert line.endswith(f"NotImplementedError in {__file__}:{not_written_yet.__code__.co_firstlineno + 1}")


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
        ({"atomic_energies": [float("inf")]}, "atomic_energies must be finite numbers, got inf for Si"),
        ({"atomic_energies": {"Si": np.nan}}, "atomic_energies must be finite numbers, got nan for Si"),
        ({"params": np.nan}, "params holds 1 of 1 values that are not finite: nan"),
        (
            {"params": {"a": [np.ones(3), np.array([[1, 2], [np.inf, np.nan]])]}},
            "params[a/1] holds 2 of 4 values that are not finite: inf at index [1, 0]",
        ),
        ({"units": {"energy": "e\x1bV", "length": "Angstrom"}}, r"units has 'e\x1bV', which holds control characters"),
        ({"output_units": {"charges": "\u202ee"}}, r"output_units has '\u202ee', which holds control characters"),
        ({"name": "\udcff"}, "is no text in UTF-8"),
        ({"atomic_energies": {"C": 1.0}}, "atomic_energies has ['C']"),
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'"),
        ({"dtype": "real"}, "dtype must be 'float32' or 'float64'"),
        ({"platforms": []}, "platforms must be some of cpu, cuda"),
        ({"platforms": ["tpu"]}, "platforms must be some of cpu, cuda"),
        ({"platforms": ["cpu", "cpu"]}, "platforms must be some of cpu, cuda"),
        ({"units": {"energy": "eV"}}, "units must be like"),
        ({"params": {"a/b": 1.0, "a": {"b": 2.0}}}, "two leaves that would be stored as weights/a/b"),
        ({"params": {"a": "text"}}, "params[a] is a str"),
        ({"params": {"a": np.nan}}, "params[a] holds 1 of 1 values that are not finite: nan"),
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


def eigenvalues(params, graph):
    tensors = jax.ops.segment_sum(graph.vectors[:, :, None] * graph.vectors[:, None], graph.centers, graph.rows[-1])
    return params * pair(graph) + jnp.linalg.eigvalsh(tensors)[:, 0]


def inverse(params, graph):
    return jnp.linalg.inv(params * jnp.eye(3))[0, 0] * pair(graph)


@pytest.mark.parametrize(
    "energy_fn, mistake, platform, verify, called",
    [
        (eigenvalues, 2, "cpu", True, "jax eigh' ({}) calls lapack_ssyevd_ffi"),
        (eigenvalues, 2, "cpu", False, "jax eigh' ({}) calls lapack_ssyevd_ffi"),
        (eigenvalues, 2, "cuda", True, "jax eigh' ({}) calls cusolver_syevd_ffi"),
        (inverse, 1, "cpu", True, "jax lu' ({}) calls lapack_sgetrf_ffi, lapack_strsm_ffi"),
    ],
)
def test_custom_calls_of_jax_are_refused(tmp_path, energy_fn, mistake, platform, verify, called):
    """JAX brings LAPACK along; no PJRT plugin does, so the bundle could never be loaded."""
    line = refused(tmp_path, energy_fn, platforms=[platform], verify=verify)
    place = f"{__file__}:{energy_fn.__code__.co_firstlineno + mistake}"
    assert line.startswith(f"operation 'custom_call, {called.format(place)}, which JAX brings along for {platform}")
    assert "closed forms" in line and "pass targets=['" in line and "STABLEMD_FFI_PATH" in line


def test_custom_calls_of_jax_may_be_announced(tmp_path):
    path = tmp_path / "model.safetensors"
    summary = export_model(
        inverse,
        1.0,
        path=path,
        cutoff=CUTOFF,
        layers=1,
        elements=["Si"],
        platforms=["cpu"],
        targets=["lapack_sgetrf_ffi", "lapack_strsm_ffi"],
    )
    assert summary.unverified.startswith("no provider is here for a custom call that was announced: ")
    assert f"{path}: needs the FFI target `lapack_sgetrf_ffi`" in summary.unverified


def test_what_stays_unverified_and_what_is_refused(tmp_path, monkeypatch):
    """Without any plugin a bundle is written with a word of it; a plugin that was chosen must work."""
    import stablemd._native

    monkeypatch.setenv("STABLEMD_PJRT_PLUGIN", str(tmp_path / "none.so"))
    line = refused(tmp_path, lambda p, g: p * pair(g))
    assert "the exported program cannot be verified: " in line and "none.so" in line

    def no_plugin(**options):
        raise PluginError("no PJRT plugin for device `cpu`: run `pip install one`")

    monkeypatch.setattr(stablemd._native, "shared_runtime", no_plugin)
    settings = {"cutoff": CUTOFF, "layers": 1, "elements": ["Si"], "path": tmp_path / "model.safetensors"}
    for options, reason in (
        ({}, "no PJRT plugin for device `cpu`: run `pip install one`"),
        ({"platforms": ["cuda"]}, "it holds no program for the CPU"),
        ({"verify": False}, "verify=False"),
    ):
        summary = export_model(lambda p, g: p * pair(g), 1.0, **settings, **options)
        assert (summary.unverified, summary.energy_deviation, summary.cutoff_jump) == (reason, None, None)


def with_a_jump(params, graph):
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    return params * jax.ops.segment_sum(jnp.where(r < CUTOFF, jnp.exp(-r), 0), graph.centers, graph.rows[-1])


def without_a_cutoff(params, graph):
    """Right for padding, but engines leave out edges beyond the cutoff."""
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    return params * jax.ops.segment_sum(jnp.exp(-r), graph.centers, graph.rows[-1])


def with_a_kink(params, graph):
    r = jnp.sqrt(jnp.sum(graph.vectors**2, axis=1))
    return params * jax.ops.segment_sum(jnp.maximum(CUTOFF - r, 0), graph.centers, graph.rows[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "energy_fn, jump", [(with_a_jump, np.exp(-CUTOFF)), (without_a_cutoff, np.exp(-CUTOFF)), (with_a_kink, 0.0)]
)
def test_jumps_at_the_cutoff(tmp_path, energy_fn, jump, dtype):
    settings = {"cutoff": CUTOFF, "layers": 1, "elements": ["Si", "C"], "platforms": ["cpu"], "dtype": dtype}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = export_model(energy_fn, 1.0, path=tmp_path / "model.safetensors", **settings)
    assert summary.cutoff_jump == pytest.approx(jump, rel=1e-4)
    told = [one for one in caught if "where a neighbour leaves the cutoff" in str(one.message)]
    assert [one.filename for one in told] == [__file__] * bool(jump > 0)


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
