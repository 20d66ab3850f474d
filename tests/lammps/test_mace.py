# SPDX-License-Identifier: GPL-2.0-or-later
"""Trained MACE models in LAMMPS against the stored float64 results of MACE-JAX, and stresses against JAX."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import ase.io
import numpy as np
import pytest
from jax_reference import evaluate_in_jax
from lammps_runner import Setup, evaluate, preparation, read_dump, read_thermo, run_lammps
from stablemd import StableMDCalculator, mace

DATA = Path(__file__).parents[1] / "data"
ELEMENTS = {"sic": ["Si", "C"], "bpa": ["C", "H", "N", "O"], "reduced": ["H", "C", "O"]}
#: eV per atom, and eV/Å (float64) or parts of the largest force (float32)
TOLERANCE = {"float64": (1e-8, 1e-7), "float32": (2e-6, 2e-5)}

ONE_RANK = {}
TWO_RANKS = {"ranks": 2, "processors": "2 1 1"}
TWO_RANKS_OFF = {"ranks": 2, "processors": "1 1 2", "newton": "off", "units": "real"}


@cache
def frames(model: str, kinds: tuple[str, ...] = (), most: int = 1000):
    """Frames of these kinds, all where none are named, at most that many of each kind."""
    chosen, found = [], {}
    for atoms in ase.io.read(DATA / model / "mace-jax" / "reference.extxyz", ":"):
        kind = atoms.info["kind"]
        found[kind] = found.get(kind, 0) + 1
        if found[kind] <= most and (not kinds or kind in kinds):
            chosen.append(atoms)
    return chosen


def assert_reference(ours, atoms, dtype):
    per_atom, force = TOLERANCE[dtype]
    kind, forces = atoms.info["kind"], atoms.arrays["ref_forces"]
    if dtype == "float32":
        force *= np.abs(forces).max()
        # the forces of an isolated atom vanish
        force = max(force, 1e-9)
    assert abs(ours.energy - atoms.info["ref_energy"]) <= per_atom * len(atoms), kind
    np.testing.assert_allclose(ours.forces, forces, atol=force, rtol=0, err_msg=kind)
    # the file rounds energies of atoms to 8 digits
    energy = per_atom + 5e-9
    np.testing.assert_allclose(ours.energies, atoms.arrays["ref_node_energy"], atol=energy, rtol=0, err_msg=kind)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [("sic", "float64"), ("sic", "float32"), ("bpa", "float64"), ("bpa", "float32"), ("reduced", "float64")],
)
def test_every_frame(mace_bundle, tmp_path, model, dtype):
    setup = Setup(mace_bundle(model, dtype), ELEMENTS[model])
    for atoms, ours in zip(frames(model), evaluate(setup, frames(model), tmp_path), strict=True):
        assert_reference(ours, atoms, dtype)


# decompositions are tried in full on the potentials of tests/potentials.py; a program of MACE takes long to compile
@pytest.mark.parametrize(
    ("model", "dtype", "options", "kinds"),
    [
        ("sic", "float64", TWO_RANKS, ("test", "primitive", "triclinic", "slab")),
        ("sic", "float32", TWO_RANKS, ("test", "primitive")),
        ("bpa", "float64", TWO_RANKS, ("test",)),
        ("bpa", "float64", TWO_RANKS_OFF, ("test",)),
    ],
    ids=["sic", "sic in single precision", "bpa", "bpa, newton off, real"],
)
def test_two_ranks(mace_bundle, tmp_path, model, dtype, options, kinds):
    setup, chosen = Setup(mace_bundle(model, dtype), ELEMENTS[model], **options), frames(model, kinds, 1)
    assert len(chosen) == len(kinds)
    for atoms, ours in zip(chosen, evaluate(setup, chosen, tmp_path), strict=True):
        assert_reference(ours, atoms, dtype)


@pytest.mark.parametrize("options", [ONE_RANK, TWO_RANKS], ids=["one rank", "two ranks"])
def test_kernels_of_openequivariance(mace_bundle, tmp_path, options):
    """Their second process finds program and kernels on disk."""
    chosen = frames("sic", ("primitive", "slab"), 1)
    caches = {"STABLEMD_CACHE": str(tmp_path / "programs"), "OEQ_CACHE": str(tmp_path / "kernels"), "OEQ_VERBOSE": "1"}
    setup = Setup(mace_bundle("sic", "float64", "oeq"), ELEMENTS["sic"], environment=caches, **options)
    for atoms, ours in zip(chosen, evaluate(setup, chosen, tmp_path), strict=True):
        assert_reference(ours, atoms, "float64")
    script = (tmp_path / "in.lammps").read_text().splitlines()
    again = run_lammps(tmp_path, script, setup.ranks, caches)
    assert again.code == 0 and again.count("compilations") == 0
    assert "oeq_native] convolution" in again.output and "compiled in" not in again.output


@pytest.mark.parametrize("options", [ONE_RANK, TWO_RANKS], ids=["one rank", "two ranks"])
@pytest.mark.parametrize(
    ("variable", "complaint"),
    [
        ({"OEQ_COMPILE_THREADS": "abc"}, "OEQ_COMPILE_THREADS=abc: must be a whole number from 1 to 256"),
        ({"OEQ_CACHE": "here"}, 'OEQ_CACHE=here: must be an absolute path or "off"'),
    ],
    ids=str,
)
def test_settings_of_kernels_that_are_no_good(mace_bundle, tmp_path, options, variable, complaint):
    setup = Setup(mace_bundle("sic", "float64", "oeq"), ELEMENTS["sic"], **options)
    lines = [*preparation(setup, frames("sic", ("primitive",), 1)[0], tmp_path, "data.x"), "run 0"]
    done = run_lammps(tmp_path, lines, setup.ranks, variable)
    assert done.code != 0 and len(done.errors) == 1, done.output
    assert complaint in done.errors[0] and "needs the FFI target" in done.errors[0]
    assert done.output.count(complaint) == 1, done.output


@pytest.mark.parametrize("options", [ONE_RANK, TWO_RANKS], ids=["one rank", "two ranks"])
def test_agrees_with_ase(mace_bundle, tmp_path, options):
    bundle, chosen = mace_bundle("sic"), frames("sic", ("test", "primitive", "triclinic", "slab"), 1)
    for atoms, ours in zip(chosen, evaluate(Setup(bundle, ELEMENTS["sic"], **options), chosen, tmp_path), strict=True):
        atoms = atoms.copy()
        atoms.calc = StableMDCalculator(bundle, threads=1)
        assert abs(ours.energy - atoms.get_potential_energy()) < 1e-8 * len(atoms)
        np.testing.assert_allclose(ours.energies, atoms.get_potential_energies(), atol=1e-8, rtol=0)
        np.testing.assert_allclose(ours.forces, atoms.get_forces(), atol=1e-7, rtol=0)
        if atoms.pbc.all():
            np.testing.assert_allclose(ours.stress, atoms.get_stress(), atol=1e-9, rtol=0)
            np.testing.assert_allclose(ours.stresses, atoms.get_stresses(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("options", [ONE_RANK, TWO_RANKS], ids=["one rank", "two ranks"])
def test_forces_are_derivatives_of_the_energy(mace_bundle, tmp_path, options):
    """Central differences of fourth order, in a skewed cell smaller than the cutoff."""
    atoms = frames("sic", ("triclinic",), 1)[0].copy()
    step, chosen = 5e-4, [(0, 0), (1, 1), (len(atoms) - 1, 2)]
    structures = [atoms]
    for atom, axis in chosen:
        for times in (-2, -1, 1, 2):
            moved = atoms.copy()
            moved.positions[atom, axis] += times * step
            structures.append(moved)
    found = evaluate(Setup(mace_bundle("sic"), ELEMENTS["sic"], **options), structures, tmp_path)
    for n, (atom, axis) in enumerate(chosen):
        far_below, below, above, far_above = (one.energy for one in found[1 + 4 * n : 5 + 4 * n])
        slope = (8 * (above - below) - (far_above - far_below)) / (12 * step)
        assert found[0].forces[atom, axis] == pytest.approx(-slope, abs=1e-7)


@pytest.mark.parametrize("options", [ONE_RANK, TWO_RANKS], ids=["one rank", "two ranks"])
def test_stress(mace_bundle, tmp_path, options):
    """Six components and the stress per atom, against derivatives with respect to a strain, and mace-torch's own."""
    potential, chosen = mace.load(DATA / "sic" / "mace-jax"), frames("sic", ("test", "primitive", "triclinic"), 1)
    setup = Setup(mace_bundle("sic"), ELEMENTS["sic"], **options)
    torch = ase.io.read(DATA / "sic" / "reference.extxyz", "0").info["ref_stress"]
    for atoms, ours in zip(chosen, evaluate(setup, chosen, tmp_path), strict=True):
        exact, kind = evaluate_in_jax(potential, atoms), atoms.info["kind"]
        np.testing.assert_allclose(ours.stress, exact.stress, atol=1e-9, rtol=0, err_msg=kind)
        np.testing.assert_allclose(ours.stresses, exact.stresses, atol=1e-9, rtol=0, err_msg=kind)
        if kind == "test":
            np.testing.assert_allclose(ours.stress, torch, atol=1e-6, rtol=0)


METHANE = [
    "units metal", "atom_style bond", "atom_modify map array", "region box block 0 12 0 12 0 12",
    "create_box 2 box bond/types 1 extra/bond/per/atom 4 extra/special/per/atom 8",
    "create_atoms 1 single 6 6 6", "create_atoms 2 single 6.63 6.63 6.63", "create_atoms 2 single 5.37 5.37 6.63",
    "create_atoms 2 single 5.37 6.63 5.37", "create_atoms 2 single 6.63 5.37 5.37", "mass 1 12.011", "mass 2 1.008",
    "bond_style zero", "bond_coeff 1 1.1", "fix slow all nve/limit 1e-12", "thermo 1",
    "thermo_style custom step atoms bonds pe fnorm", "thermo_modify format float %.10f",
]  # fmt: skip
HYDROGEN = """hydrogen

2 atoms
1 bonds

Coords

1 -0.37 0.0 0.0
2  0.37 0.0 0.0

Types

1 2
2 2

Bonds

1 1 1 2
"""
LATE_BONDS = {
    "bond/create": ["fix bonds all bond/create 1 1 2 1.3 1 iparam 4 1 jparam 1 2", "run 6"],
    "deposit": [
        "molecule two two.mol", "region floor block 0 12 0 12 0 2", "group new type 2",
        "fix more new deposit 2 0 2 4711 region floor near 2.0 mol two", "run 6",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "ranks"), [("bond/create", 1), ("deposit", 2)])
def test_bonds_that_appear_during_a_run(mace_bundle, tmp_path, kind, ranks):
    """They would take neighbours from the model, without a word: refused at the start, right where they may not."""
    (tmp_path / "two.mol").write_text(HYDROGEN)
    bundle = mace_bundle("bpa")
    lines = [*METHANE, "pair_style stablemd", f"pair_coeff * * {bundle} C H"]
    refused = run_lammps(tmp_path, [*lines, *LATE_BONDS[kind]], ranks)
    assert refused.code != 0
    assert len(refused.errors) == 1 and "special_bonds lj/coul 1.0 1.0 1.0" in refused.errors[0], refused.output

    lines += ["special_bonds lj/coul 1.0 1.0 1.0", *LATE_BONDS[kind]]
    lines += ["write_dump all custom dump.0 type x y z modify sort id format float %.17g"]
    done = run_lammps(tmp_path, lines, ranks)
    assert done.code == 0, done.output[-3000:]
    table = read_thermo(done.output)[0]
    (frame,) = read_dump(tmp_path / "dump.0")
    atoms = ase.Atoms(["CH"[int(n) - 1] for n in frame[:, 0]], frame[:, 1:], cell=[12.0] * 3, pbc=True)
    atoms.calc = StableMDCalculator(bundle)
    assert table[-1, 2] >= 2, "no bonds appeared"
    assert table[0, 3] == pytest.approx(-3618.372857, abs=2e-6)
    assert table[-1, 3] == pytest.approx(atoms.get_potential_energy(), abs=1e-7)
    assert table[-1, 4] == pytest.approx(np.linalg.norm(atoms.get_forces()), abs=1e-6)
    if kind == "bond/create":
        np.testing.assert_allclose(table[:, 3], -3618.372857, atol=2e-6)


def test_special_bonds_that_change_between_runs(mace_bundle, tmp_path):
    """A second run may prepare nothing; what matters is how the lists were made, and those of the first run stay."""
    lines = [*METHANE, "pair_style stablemd", f"pair_coeff * * {mace_bundle('bpa')} C H"]
    lines += ["special_bonds lj/coul 1.0 1.0 1.0", LATE_BONDS["bond/create"][0], "run 6"]
    done = run_lammps(tmp_path, [*lines, "special_bonds lj/coul 0.0 0.0 0.0", "run 2 pre no", "run 1"])
    assert len(done.errors) == 1 and "special_bonds lj/coul 1.0 1.0 1.0" in done.errors[0], done.output
    first, second = read_thermo(done.output)
    assert second[-1, 3] == pytest.approx(first[-1, 3], abs=2e-6)
