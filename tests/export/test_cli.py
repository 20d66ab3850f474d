# SPDX-License-Identifier: BSD-3-Clause
"""The command line: what it prints, what it writes, and its exit codes."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import ase.io
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.data import chemical_symbols
from click.testing import CliRunner
from potentials import message_passing
from stablemd import StableMDError, __version__
from stablemd._cli import cli


def run(*arguments, code=0):
    """Runs a command; returns what it wrote to standard output and to standard error."""
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def error(*arguments, code=2):
    """Runs a command that must fail with one line; returns the line."""
    stdout, stderr = run(*arguments, code=code)
    assert stdout == ""
    (line,) = stderr.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A folder that loads as a small potential."""
    import stablemd.mace

    monkeypatch.setattr(stablemd.mace, "load", lambda path, **options: message_passing())
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def test_export_then_info_then_check(tmp_path, model):
    path = tmp_path / "out.safetensors"
    stdout, stderr = run("export", model, "-o", path, "--dtype", "float64")
    assert f"bundle      {path}" in stdout
    assert "elements    Si C" in stdout and "cutoff      3.5, 2 layers" in stdout
    assert "parameters  57 in float64" in stdout and "largest difference from JAX" in stdout
    for step in (
        f"load {model}",
        "trace 1/4 for cpu",
        "fit the program for cpu",
        "evaluate the reference structure in JAX",
        "verify natively against JAX",
        f"write {path}",
    ):
        assert step in stderr
    assert "\x1b" not in stderr  # no terminal, no control characters

    stdout, _ = run("info", path)
    for text in (
        "format 1",
        "Si C",
        "3.5 Angstrom",
        "Si -2, C 1 eV",
        "57 in float64",
        "cpu cuda",
        f"stablemd {__version__}",
    ):
        assert text in stdout
    shown = json.loads(run("info", path, "--json")[0])
    assert shown["manifest"]["elements"] == ["Si", "C"]
    assert shown["tensors"]["weights/species"] == {"dtype": "F64", "shape": [2, 4]}

    stdout, _ = run("check", path)
    assert "energy difference" in stdout and "force difference" in stdout and "result             agrees" in stdout


@pytest.mark.parametrize(
    "arguments, elements",
    [
        ([], None),
        (["--elements", "Si", "C"], ["Si", "C"]),
        (["--elements", "Si,C"], ["Si", "C"]),
        (["--elements", "Si C"], ["Si", "C"]),
        (["--elements", "C"], ["C"]),
        (["--elements=Si,C"], ["Si", "C"]),
        (["--elements", "Si", "--elements", "Si", "C"], ["Si", "C"]),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_lists_of_elements(tmp_path, model, monkeypatch, arguments, elements, last):
    import stablemd.mace

    asked = {}

    def load(path, **options):
        asked.update(path=path, **options)
        raise StableMDError("enough")

    monkeypatch.setattr(stablemd.mace, "load", load)
    rest = [model, "-o", tmp_path / "out.safetensors", "--head", "dft", "-q"]
    assert error("export", *(rest + arguments if last else arguments + rest)) == "Error: enough"
    assert asked == {"path": model, "head": "dft", "elements": elements, "features": {}, "kernels": "xla", "gpu": None}


def test_check_finds_a_changed_weight(tmp_path, bundles):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    for dtype, change in (("float64", 1e-6), ("float32", 1e-3)):
        with safe_open(bundles("message_passing", dtype), framework="numpy") as file:
            tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        tensors["weights/readout"] = tensors["weights/readout"] + np.array(change, dtype)
        path = tmp_path / f"{dtype}.safetensors"
        save_file(tensors, path, metadata=metadata)
        assert "damaged: its bytes are not those that were written" in error("check", path)
        manifest = json.loads(metadata["stablemd"])
        del manifest["checksum"]
        save_file(tensors, path, metadata={"stablemd": json.dumps(manifest)})
        stdout, _ = run("check", path, code=1)
        assert "DIFFERS" in stdout


@pytest.mark.parametrize("command", ["info", "check"])
def test_files_that_are_no_bundles(tmp_path, bundles, command):
    assert "there is no file" in error(command, tmp_path / "none.safetensors")
    assert "is no file" in error(command, tmp_path)
    path = tmp_path / "broken.safetensors"
    path.write_bytes(bundles("lennard_jones").read_bytes()[:-1])
    assert "is no bundle or is damaged" in error(command, path)
    path.write_bytes(b"")
    assert "is no bundle or is damaged" in error(command, path)


def test_check_without_a_plugin(tmp_path, bundles):
    assert "none.so" in error("check", bundles("lennard_jones"), "--plugin", tmp_path / "none.so")


DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(scope="module")
def carbide(tmp_path_factory, executable_cache):
    """A mace-torch model as a bundle; what its export printed."""
    pytest.importorskip("mace")
    path = tmp_path_factory.mktemp("check") / "sic.safetensors"
    stdout, stderr = run("export", DATA / "sic" / "mace.model", "-o", path, "--dtype", "float64", "--platforms", "cpu")
    return path, stdout, stderr


def test_export_compares_with_the_original(carbide):
    path, stdout, stderr = carbide
    assert "verify against mace-torch" in stderr
    assert re.search(r"original +mace-torch \S+: largest difference \d\.\de-\d\d in energy per atom", stdout)
    assert re.search(r"original +mace-torch \S+: largest difference", run("info", path)[0])


def test_the_original_s_values_are_kept(carbide, tmp_path):
    """As mace-torch gives them, and `check` compares with them."""
    from mace.calculators import MACECalculator
    from stablemd._bundle import read_bundle
    from stablemd._reference import stored_reference

    reference = stored_reference(read_bundle(carbide[0]))
    atoms = reference.atoms()
    atoms.calc = MACECalculator(model_paths=DATA / "sic" / "mace.model", device="cpu", default_dtype="float64")
    assert reference.original.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-9)
    np.testing.assert_allclose(reference.original.forces, atoms.get_forces(), rtol=0, atol=1e-9)
    assert re.search(r"original +mace-torch \S+, energy -\d+\.\d+ eV: differences \d", run("check", carbide[0])[0])
    data, number = carbide[0].read_bytes(), repr(reference.original.energy).encode()
    assert data.count(number + b',\\"framework') == 1
    other = tmp_path / "other.safetensors"
    changed = number.replace(b".", b"1.", 1)[1 if number.startswith(b"-") else 0 :][: len(number)]
    data = data.replace(number + b',\\"framework', changed + b',\\"framework')
    other.write_bytes(data)
    assert "damaged" in error("check", other)
    other.write_bytes(data.replace(b'\\"checksum\\"', b'\\"Checksum\\"'))
    assert "DIFFERS" in run("check", other, code=1)[0]


def test_a_model_that_differs_from_its_original_is_not_written(tmp_path, monkeypatch):
    """The loader gives the model other weights than the file has."""
    pytest.importorskip("mace")
    import jax
    import stablemd.mace

    right = stablemd.mace.load

    def wrong(path, **options):
        potential = right(path, **options)
        params = jax.tree.map(lambda w: w * 1.00001 if w.dtype.kind == "f" else w, potential.params)
        return dataclasses.replace(potential, params=params)

    monkeypatch.setattr(stablemd.mace, "load", wrong)
    words = ("export", DATA / "sic" / "mace.model", "-o", tmp_path / "x.safetensors", "-q", "--dtype", "float64")
    line = error(*words)
    assert "the loaded model differs from mace-torch" in line and "nothing is written" in line
    assert list(tmp_path.iterdir()) == []
    run(*words, "--no-original", "--platforms", "cpu")


def test_check_against_the_original(carbide, tmp_path):
    path, picture = carbide[0], tmp_path / "parity.png"
    model = DATA / "sic" / "mace.model"
    stdout, stderr = run("check", path, "--against", model, "--plot", picture)
    assert "structures         5, 40 atoms" in stdout and "stored in float32" in stdout
    assert stdout.count("result             agrees") == 2
    assert "structure 5/5, 8 atoms" in stderr
    assert picture.read_bytes().startswith(b"\x89PNG")

    frames = ase.io.read(DATA / "sic" / "reference.extxyz", ":2")
    ase.io.write(tmp_path / "some.xyz", frames)
    stdout, _ = run("check", path, "--against", model, "--structures", tmp_path / "some.xyz", "-q")
    assert f"structures         2, {sum(map(len, frames))} atoms" in stdout
    force = float(re.findall(r"force difference +(\S+) eV", stdout)[1])
    assert 0 < force < 1e-6


def test_check_against_another_model(carbide, bundles, tmp_path):
    """A bundle serves as the original; one with other weights does not agree."""
    stdout, _ = run("check", carbide[0], "--against", carbide[0])
    assert stdout.count("agrees") == 2 and "0.00e+00 eV/atom" in stdout
    other, picture = bundles("message_passing"), tmp_path / "differs.pdf"
    stdout, _ = run("check", carbide[0], "--against", other, "--plot", picture, code=1)
    assert "DIFFERS" in stdout and picture.read_bytes().startswith(b"%PDF")


def test_check_mistakes(bundles, tmp_path):
    bundle = bundles("message_passing")
    (tmp_path / "noise.model").write_bytes(b"noise")
    (tmp_path / "dict.model").write_bytes(b"\x80\x02}X\5\0\0\0epochK\3s.")
    (tmp_path / "noise.xyz").write_text("noise")
    words = ("check", bundle, "-q")
    assert "--plot needs --against MODEL" in error(*words, "--plot", "x.png")
    assert "--structures needs --against MODEL" in error(*words, "--structures", "x.xyz")
    ase.io.write(tmp_path / "iron.xyz", ase.Atoms("Fe"))
    cases = [
        (["--against", tmp_path / "none.model"], "there is no file"),
        (["--against", tmp_path / "noise.model"], "mace-torch cannot open"),
        (["--against", tmp_path / "dict.model"], "dict.model is a dict with the keys epoch, not a MACE model"),
        (["--against", DATA / "sic" / "mace-jax"], "looks like a MACE-JAX model"),
        (["--against", bundle, "--plot", tmp_path / "x.docx"], "no suffix of a picture"),
        (["--against", bundle, "--plot", tmp_path / "x"], "no suffix of a picture"),
        (["--against", bundle, "--plot", tmp_path / "no" / "x.png"], "there is no folder"),
        (["--against", bundle, "--plot", "/proc/x.png"], "/proc/x.png cannot be written"),
        (["--against", bundle, "--structures", tmp_path / "none.xyz"], "there is no file"),
        (["--against", bundle, "--structures", tmp_path / "noise.xyz"], "ASE cannot read structures"),
        (["--against", bundle, "--structures", tmp_path / "iron.xyz"], "iron.xyz has Fe, the model only Si C"),
        (["--threads", 10**12], "threads must be a whole number"),
    ]
    for options, complaint in cases:  # before any work: nothing is printed of the first comparison
        assert complaint in error(*words, *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dict.model", "iron.xyz", "noise.model", "noise.xyz"]


def test_info_on_kernels_for_a_gpu(tmp_path):
    from potentials import lennard_jones
    from stablemd import export_potential

    path = tmp_path / "gpu.safetensors"
    export_potential(lennard_jones(), path, verify=False, source={"kernels": "oeq", "gpu": "h200"})
    stdout, _ = run("info", path)
    assert re.search(r"^GPU +h200$", stdout, re.MULTILINE) and re.search(
        r"^source +kernels: oeq$", stdout, re.MULTILINE
    )


def test_info_on_outputs(tmp_path, executable_cache):
    from potentials import charge_transfer
    from stablemd import export_potential

    path = tmp_path / "charged.safetensors"
    units = {"charges": "e"}
    export_potential(charge_transfer(), path, dtype="float64", platforms="cpu", output_units=units)
    assert re.search(r"outputs +charges \(e\), moments", run("info", path)[0])
    stdout, _ = run("check", path)
    assert "charges difference" in stdout and "moments difference" in stdout


def test_export_mistakes(tmp_path, model):
    out = tmp_path / "out.safetensors"
    assert "there is no model" in error("export", tmp_path / "missing", "-o", out)
    for arguments, complaint in (
        ((tmp_path / "no" / "out.safetensors",), "there is no folder"),
        ((tmp_path / "out.pt",), "out.pt must end in .safetensors"),
        (("/proc/out.safetensors",), "/proc/out.safetensors cannot be written"),
    ):
        assert complaint in error("export", model, "-q", "-o", *arguments)
    assert "is the model itself" in error("export", model, "-o", model)
    assert "--dtype" in error("export", model, "-o", out, "--dtype", "float16")
    assert "--output" in error("export", model)
    assert "MODEL" in error("export", "-o", out)
    assert "--elements" in error("export", model, "-o", out, "--elements", " ")
    assert "--elements" in error("export", model, "-o", out, "--elements")
    for feature in ("total_charge", "total_charge=one", "="):
        assert f"--feature {feature} is not NAME=VALUE" in error("export", model, "-o", out, "--feature", feature)
    assert "platforms must be some of" in error("export", model, "-o", out, "-q", "--platforms", "tpu")
    assert "unexpected" in error("export", model, "more", "-o", out)
    assert "No such command" in error("exprot")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def mace_jax(folder, **fields):
    """A copy of a small MACE-JAX model with other fields in its configuration."""
    source = DATA / "mace_jax_forms"
    config = json.loads((source / "embedded.json").read_text())
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    shutil.copy(source / "embedded.msgpack", folder / "params.msgpack")
    return folder


PYTHON = re.compile(
    r"""\b[a-z_]+=(?![A-Z]+\b)|\b(head|elements|gpu|kernels|features|platforms|dtype)\s=\s|\['|\{'|\('"""
)


def test_errors_name_the_options_that_were_typed(tmp_path, bundles):
    """Not the arguments of the Python functions behind them."""
    config = json.loads((DATA / "mace_jax_forms" / "embedded.json").read_text())
    spec = next(iter(config["embedding_specs"].values()))
    plain, out = mace_jax(tmp_path / "plain"), tmp_path / "out.safetensors"
    heads = mace_jax(tmp_path / "heads", heads=["pbe", "r2scan"])
    specs = mace_jax(tmp_path / "specs", embedding_specs={"pressure": {**spec, "type": "continuous", "in_dim": 1}})
    symbol = chemical_symbols[config["atomic_numbers"][0]]
    cases = [
        ((heads,), "has several heads: choose one with --head, of pbe, r2scan"),
        ((plain, "--head", "pbe"), "has no head 'pbe'"),
        ((plain, "--gpu", "h200"), "--gpu names the device of OpenEquivariance's kernels; it needs --kernels oeq"),
        ((plain, "--kernels", "oeq", "--gpu", "abacus"), "--gpu abacus is not known; known are "),
        ((plain, "--elements", symbol, symbol), f"--elements {symbol} {symbol} must name each element once"),
        ((plain, "--elements", "Og"), "knows no element 'Og'"),
        ((plain, "--feature", "total_mass=3"), "takes no total_mass: it embeds"),
        ((specs,), "embeds pressure: give its default with --feature pressure=VALUE"),
        ((plain, "--platforms", "tpu gpu"), "--platforms must be some of cpu, cuda, got tpu gpu"),
        ((plain, "--platforms", ","), "--platforms must be some of cpu, cuda, got none"),
        ((plain, "--name", "\udcff"), "--name \\udcff is no text in UTF-8"),
    ]
    lines = [(error("export", *arguments, "-o", out, "-q"), complaint) for arguments, complaint in cases]
    bundle = bundles("lennard_jones")
    lines.append((error("check", bundle, "--threads", 10**12), "--threads must be a whole number from 1 to 1024"))
    for line, complaint in lines:
        assert complaint in line
        assert not PYTHON.search(line.replace(str(tmp_path), "")), line


def test_an_argument_that_no_option_has(tmp_path, model, monkeypatch):
    """The user is told where to give it."""
    import stablemd.mace

    potential = message_passing()
    broken = dataclasses.replace(potential, energy_fn=lambda p, g: jnp.nan * potential.energy_fn(p, g))
    monkeypatch.setattr(stablemd.mace, "load", lambda path, **options: broken)
    line = error("export", model, "-o", tmp_path / "out.safetensors", "-q", "--platforms", "cpu")
    assert "pass a structure that suits the model as reference=ase.Atoms from Python" in line


def test_a_jump_at_the_cutoff_is_told(tmp_path, model, monkeypatch):
    import stablemd.mace
    from potentials import lennard_jones

    def cut(params, graph):
        r2 = jnp.sum(graph.vectors**2, axis=1)
        pair = jnp.where(r2 < 8.5**2, 1000 / r2**3, 0)
        return jax.ops.segment_sum(pair, graph.centers, graph.rows[1])

    monkeypatch.setattr(
        stablemd.mace, "load", lambda path, **options: dataclasses.replace(lennard_jones(), energy_fn=cut)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stdout, _ = run("export", model, "-o", tmp_path / "x.safetensors", "-q", "--platforms", "cpu")
    assert f"warning     an atom's energy jumps by {1000 / 8.5**6:.1e} where a neighbour leaves the cutoff" in stdout


HOSTILE = "a\x1b[2J\rb\nc\u202ed\x7f\x9b"
SHOWN = r"a\x1b[2J\rb\nc\u202ed\x7f\x9b"


def hostile_bundle(path, bundle, **changes):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(bundle, framework="numpy") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    manifest = json.loads(metadata["stablemd"])
    del manifest["checksum"]
    manifest.update(changes)
    save_file(tensors, path, metadata={"stablemd": json.dumps(manifest)})
    return path


def test_what_a_file_says_is_shown_without_control_characters(tmp_path, bundles):
    bundle = bundles("lennard_jones")
    path = tmp_path / f"{HOSTILE}.safetensors"
    against = {"framework": HOSTILE, "energy": 0.0, "force": 0.0}
    source = {HOSTILE: HOSTILE, "verified against": against, "gpu": HOSTILE}
    hostile_bundle(path, bundle, name=HOSTILE, source=source, versions={HOSTILE: HOSTILE})
    stdout, _ = run("info", path)
    assert all(line.isprintable() for line in stdout.split("\n"))
    for label in ("name", "GPU"):
        assert re.search(rf"^{label} +{re.escape(SHOWN)}$", stdout, re.MULTILINE)
    assert f"made with        {SHOWN} {SHOWN}" in stdout and f"original         {SHOWN}: largest" in stdout
    stdout, _ = run("info", path, "--json")
    assert all(line.isprintable() and line.isascii() for line in stdout.split("\n"))
    assert json.loads(stdout)["manifest"]["name"] == HOSTILE
    stdout, stderr = run("check", path, "-q")
    assert all(line.isprintable() for line in (stdout + stderr).split("\n"))
    line = error("export", path, "-o", tmp_path / "x.safetensors", "-q")
    assert line.isprintable() and "is a bundle already" in line
    for unit in ({"energy": HOSTILE, "length": "A"}, {"energy": "eV", "length": "\u202eA"}):
        line = error("info", hostile_bundle(path, bundle, units=unit))
        assert line.isprintable() and "holds control characters" in line
    assert "holds control characters" in error("info", hostile_bundle(path, bundle, elements=["A\x1b"]))


def test_errors_of_a_loader_are_one_line(tmp_path, model, monkeypatch):
    import stablemd.mace

    def refuse(path, **choices):
        raise StableMDError(f"{path} has no head 'x';\n it has: a, b")

    monkeypatch.setattr(stablemd.mace, "load", refuse)
    line = error("export", model, "-o", tmp_path / "out.safetensors", "-q")
    assert line == f"Error: {model} has no head 'x'; it has: a, b"


def test_cache(tmp_path, bundles, monkeypatch):
    monkeypatch.setenv("STABLEMD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OEQ_CACHE", "off")
    monkeypatch.setenv("STABLEMD_CACHE_LIMIT", "2GB")
    for row in (r"entries +0", r"limit +2.0 GB"):
        assert re.search(row, run("cache")[0])
    monkeypatch.setenv("STABLEMD_CACHE_LIMIT", "much")
    assert "STABLEMD_CACHE_LIMIT is `much`" in error("cache")
    monkeypatch.delenv("STABLEMD_CACHE_LIMIT")
    run("check", bundles("lennard_jones"))
    stdout, _ = run("cache")
    assert f"compiled programs  {tmp_path / 'cache'}" in stdout
    # one for the reference structure, another for its parts where these do not fit into the same program
    entries = len(list((tmp_path / "cache").glob("*.exe")))
    assert entries in (1, 2) and re.search(rf"entries +{entries}$", stdout, re.MULTILINE)
    mine = {"mine.txt", "setup.exe", "uv.lock", "ab.lock.txt"}
    for name in mine:
        (tmp_path / "cache" / name).write_text("not a compiled program")
    assert f"deleted {entries} compiled program" in run("cache", "--clear")[0]
    assert {p.name for p in (tmp_path / "cache").iterdir()} == mine
    monkeypatch.setenv("STABLEMD_CACHE", str(tmp_path / "cache" / "mine.txt"))
    assert "mine.txt cannot be read: Not a directory" in error("cache")
    monkeypatch.setenv("STABLEMD_CACHE", "off")
    lines = run("cache")[0].splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "there is no cache of compiled programs",
        "there is no cache of compiled kernels",
    ]


def test_cache_of_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("STABLEMD_CACHE", "off")
    for variable, folder in (("OEQ_CACHE", tmp_path / "kernels"), ("XDG_CACHE_HOME", tmp_path / "home" / "oeq_native")):
        monkeypatch.setenv(variable, str(folder if variable == "OEQ_CACHE" else folder.parent))
        folder.mkdir(parents=True)
        (folder / "ab12.oeqimage").write_bytes(b"x" * 2000)
        (folder / "ab12.oeqimage.Xy3Z9a").write_bytes(b"x" * 500)  # of a process that was killed
        (folder / "mine.txt").write_text("not a compiled kernel")
        stdout, _ = run("cache")
        for row in (rf"compiled kernels +{folder}", "entries +1", "size +2.5 kB"):
            assert re.search(f"^{row}$", stdout, re.MULTILINE)
        assert f"deleted 1 compiled kernels (2.5 kB) from {folder}" in run("cache", "--clear")[0]
        assert [path.name for path in folder.iterdir()] == ["mine.txt"]
        monkeypatch.delenv("OEQ_CACHE", raising=False)
    monkeypatch.setenv("OEQ_CACHE", "kernels")
    _, stderr = run("cache", code=2)
    assert stderr == 'Error: OEQ_CACHE=kernels: must be an absolute path or "off"\n'


def test_help_and_version():
    stdout, _ = run("--help")
    for command in ("export", "info", "check", "cache"):
        assert command in stdout
    assert "pickle" in run("export", "--help")[0]
    assert run("--version")[0].strip().endswith(__version__)


@pytest.mark.parametrize("entry", [[sys.executable, "-m", "stablemd"]])
def test_as_a_process(tmp_path, bundles, entry):
    done = subprocess.run([*entry, "info", bundles("lennard_jones")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "smooth Lennard-Jones" in done.stdout and done.stderr == ""
    done = subprocess.run([*entry, "info", tmp_path / "none"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"Error: there is no file {tmp_path / 'none'}; export a model first\n"
    done = subprocess.run([*entry, "check", bundles("lennard_jones")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "agrees" in done.stdout


def test_a_missing_gpu_is_no_warning(tmp_path):
    """torch warns where a CUDA toolkit is installed and no GPU is there."""
    pytest.importorskip("mace")
    toolkit = tmp_path / "cuda"
    toolkit.mkdir()
    (tmp_path / "noise.model").write_bytes(b"PK\x03\x04 and noise")
    words = [
        sys.executable,
        "-m",
        "stablemd",
        "export",
        tmp_path / "noise.model",
        "-o",
        tmp_path / "x.safetensors",
        "-q",
    ]
    environment = {**os.environ, "CUDA_HOME": str(toolkit)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


EXPORT = """
import sys
import potentials, stablemd.mace
from stablemd.__main__ import main
stablemd.mace.load = lambda path, **choices: potentials.message_passing()
main()
"""


def heeds_ctrl_c():
    """Jobs that a shell starts in the background ignore it, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number, line", [(signal.SIGINT, "Error: interrupted"), (signal.SIGTERM, "Error: terminated")])
@pytest.mark.parametrize("step", ["trace 2/4", "evaluate the reference", "verify natively"])
def test_an_export_that_is_ended(tmp_path, number, line, step):
    """One line, no partial file, and the exit code of shells."""
    (tmp_path / "model").mkdir()
    words = [sys.executable, "-c", EXPORT, "export", tmp_path / "model", "-o", tmp_path / "out.safetensors"]
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": tests, "STABLEMD_CACHE": "off"}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds_ctrl_c
    ) as process:
        seen = []
        while not seen or step not in seen[-1]:
            seen.append(process.stderr.readline())
            assert seen[-1], seen
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert stdout == "" and stderr.splitlines()[-1] == line
    assert all(re.match(r" *\d+\.\d s  ", other) for other in stderr.splitlines()[:-1])  # of steps before the signal
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


LOST = """
import os, time, weakref
import stablemd.mace
from stablemd.__main__ import main
class Thing: pass
def load(path, **choices):
    thing = Thing()
    weakref.finalize(thing, lambda: os.kill(os.getpid(), {number}))
    del thing  # an exception that a handler raises in there is lost
    for _ in range(600):
        time.sleep(0.1)
stablemd.mace.load = load
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_whose_exception_is_lost_comes_again(tmp_path, number):
    (tmp_path / "model").mkdir()
    program = LOST.format(number=int(number))
    words = [sys.executable, "-c", program, "export", tmp_path / "model", "-o", tmp_path / "out.safetensors", "-q"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, preexec_fn=heeds_ctrl_c)
    assert "Exception ignored" in done.stderr and done.returncode == 128 + number
    line = "Error: interrupted" if number == signal.SIGINT else "Error: terminated"
    assert done.stderr.splitlines()[-1] == line
