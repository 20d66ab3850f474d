# SPDX-License-Identifier: GPL-2.0-or-later
"""The pair style in whole simulations: changing boxes, minimisation, hybrid styles, reruns, runs in sequence."""

from __future__ import annotations

import itertools
import re

import numpy as np
import potentials
import pytest
import structures
from jax_reference import evaluate_in_jax
from lammps_runner import Setup, measurement, output, preparation, read_dump, read_evaluation, read_thermo, run_lammps

ELEMENTS = ["Si", "C"]


def start(bundle, atoms, folder, **options):
    setup = Setup(bundle, ELEMENTS, **options)
    return [*preparation(setup, atoms, folder, "data.0"), "velocity all create 600 4711 loop geom", *measurement("0")]


def succeeded(folder, lines, ranks=1, environment=None):
    done = run_lammps(folder, lines, ranks, environment)
    assert done.code == 0, done.output[-3000:]
    return done


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_energy_is_conserved_and_ranks_agree(toy_bundle, tmp_path, dtype):
    """Hundreds of steps with rebuilt lists and sorted atoms; the trajectories are the same on one rank and on two."""
    atoms = structures.crystal((2, 2, 2))
    run = ["neighbor 0.4 bin", "atom_modify sort 20 0.0", "timestep 0.0005", "fix move all nve", "thermo 10"]
    run += ["thermo_modify format float %.12g", "run 300"]
    tables = []
    for ranks, style in [(1, ""), (1, "decomposition ghost"), (2, ""), (2, "")]:
        newton = "off" if len(tables) == 3 else "on"
        lines = start(toy_bundle("message_passing", dtype), atoms, tmp_path, style=style, newton=newton)
        done = succeeded(tmp_path, [*lines, *run], ranks)
        builds = re.search(r"Neighbor list builds = (\d+)", done.output)
        assert int(builds[1]) > 3
        tables.append(read_thermo(done.output)[0])
    for table in tables:
        total = table[:, 3] / len(atoms)
        assert np.ptp(table[:, 2]) / len(atoms) > 1e-3, "nothing moves"
        assert np.ptp(total) < 5e-5
    for table in tables[1:]:
        tolerance = 1e-8 if dtype == "float64" else 1e-3
        np.testing.assert_allclose(table[:10, 1:4], tables[0][:10, 1:4], atol=tolerance, rtol=0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_box_that_grows_and_shrinks(toy_bundle, tmp_path, ranks):
    """Edges come and go by thousands: a few compilations, then all sizes are in the cache."""
    potential, atoms = potentials.message_passing(), structures.crystal((3, 2, 2))
    lines = start(toy_bundle("message_passing"), atoms, tmp_path)
    wiggle = " ".join(
        f"{axis} wiggle {0.3 * size} 0.05" for axis, size in zip("xyz", atoms.cell.lengths(), strict=True)
    )
    lines += ["timestep 0.0005", "fix move all nve", f"fix box all deform 1 {wiggle} remap x", "thermo 25", "run 100"]
    # once more in the box that the last step left, which is the first one again
    lines += ["unfix box", "run 0", *output("0")]
    own_cache = {"STABLEMD_CACHE": str(tmp_path / "cache")}
    first = succeeded(tmp_path, lines, ranks, own_cache)
    assert first.count("compilations") >= 2
    # The volume changes by a factor of 6.4, there and back: 7 on one rank. On two each rank has sizes of its own, and
    # they depend on the random potential as well: 14 to 17.
    assert first.count("compilations") <= (9 if ranks == 1 else 24)
    final = read_evaluation(tmp_path, "0", atoms)
    atoms.positions = final.positions
    exact = evaluate_in_jax(potential, atoms)
    assert final.energy == pytest.approx(exact.energy, abs=1e-9 * len(atoms))
    second = succeeded(tmp_path, lines, ranks, own_cache)
    assert second.count("compilations") == 0
    assert second.count("programs from the cache") >= 2


def test_pressure_control(toy_bundle, tmp_path):
    lines = start(toy_bundle("message_passing"), structures.crystal(), tmp_path)
    lines += ["timestep 0.0005", "fix move all npt temp 300 300 0.1 aniso 0 0 0.5", "run 40"]
    for ranks in (1, 2):
        succeeded(tmp_path, lines, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_minimisation(toy_bundle, tmp_path, ranks):
    atoms = structures.crystal((2, 2, 1))
    lines = start(toy_bundle("message_passing"), atoms, tmp_path)
    lines += ["fix relax all box/relax iso 0.0", "minimize 0 1e-4 200 2000", "unfix relax", "minimize 0 1e-6 500 5000"]
    done = succeeded(tmp_path, lines, ranks)
    forces = read_dump(tmp_path / "dump.0")[-1][:, 4:7]
    assert np.abs(forces).max() < 1e-3
    assert "Stopping criterion" in done.output


def test_rerun(toy_bundle, tmp_path):
    """Frames of a trajectory read back give the energies that the run had."""
    lines = start(toy_bundle("message_passing"), structures.crystal(), tmp_path)
    lines += ["thermo 5", "thermo_modify format float %.12g", "fix move all nve", "run 20", "unfix move", "undump all"]
    lines += ["dump all all custom 5 dump.again id x y z fx fy fz c_atom_energy", "dump_modify all sort id"]
    run = [line.replace("custom 1 dump.0", "custom 5 dump.0") for line in lines]
    done = succeeded(tmp_path, [*run, "rerun dump.0 dump x y z"])
    first, again = read_thermo(done.output)
    np.testing.assert_allclose(again[:, 1], first[:, 1], atol=1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_runs_in_sequence(toy_bundle, tmp_path, ranks):
    """Runs without set-up, changed skins and reloaded styles continue where the last one ended."""
    lines = start(toy_bundle("message_passing"), structures.crystal(), tmp_path)
    lines += ["thermo 1", "thermo_modify format float %.12g", "fix move all nve", "run 5", "run 5 pre no post no"]
    lines += ["neighbor 0.7 bin", "run 5", f"pair_coeff * * {toy_bundle('message_passing')} Si C", "run 0"]
    lines += ["pair_style stablemd threads 1", f"pair_coeff * * {toy_bundle('message_passing')} Si C", "run 0"]
    tables = read_thermo(succeeded(tmp_path, lines, ranks).output)
    for before, after in itertools.pairwise(tables):
        np.testing.assert_allclose(after[0, 1], before[-1, 1], atol=1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_hybrid_overlay(toy_bundle, tmp_path, ranks):
    """Two bundles added up, and each alone."""
    atoms, bundles = structures.crystal(), [toy_bundle("message_passing"), toy_bundle("embedded_atom")]
    pair = ["pair_style hybrid/overlay stablemd stablemd"]
    pair += [f"pair_coeff * * stablemd {n} {bundle} Si C" for n, bundle in enumerate(bundles, 1)]
    done = succeeded(tmp_path, [*start("", atoms, tmp_path, pair=pair), "run 0", *output("0")], ranks)
    both = read_evaluation(tmp_path, "0", atoms)
    exact = [evaluate_in_jax(make(), atoms) for make in (potentials.message_passing, potentials.embedded_atom)]
    assert both.energy == pytest.approx(sum(one.energy for one in exact), abs=1e-8)
    np.testing.assert_allclose(both.forces, sum(one.forces for one in exact), atol=1e-9)
    np.testing.assert_allclose(both.energies, sum(one.energies for one in exact), atol=1e-9)
    np.testing.assert_allclose(both.stress, sum(one.stress for one in exact), atol=1e-9)
    assert done.output.count("timing breakdown") >= 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_hybrid_with_types_left_out(toy_bundle, tmp_path, ranks):
    """NULL in a hybrid style: the model sees only the atoms of its own types."""
    atoms, bundle = structures.crystal(), toy_bundle("message_passing")
    pair = ["pair_style hybrid stablemd zero 3.0", f"pair_coeff * * stablemd {bundle} Si NULL", "pair_coeff * 2 zero"]
    succeeded(tmp_path, [*start("", atoms, tmp_path, pair=pair), "run 0", *output("0")], ranks)
    ours = read_evaluation(tmp_path, "0", atoms)
    silicon = atoms.symbols == "Si"
    exact = evaluate_in_jax(potentials.message_passing(), atoms[silicon])
    assert ours.energy == pytest.approx(exact.energy, abs=1e-8)
    np.testing.assert_allclose(ours.forces[silicon], exact.forces, atol=1e-9)
    np.testing.assert_allclose(ours.forces[~silicon], 0.0, atol=0)


def test_breakdown(toy_bundle, tmp_path):
    lines = start(toy_bundle("message_passing"), structures.crystal(), tmp_path)
    done = succeeded(tmp_path, [*lines, "fix move all nve", "run 10", "run 20"], 2)
    tables = done.output.split("Pair style stablemd timing breakdown:")[1:]
    assert len(tables) == 2
    for text, evaluations in zip(tables, (11, 21), strict=True):
        own = text[: text.index("Outside")]
        rows = dict(re.findall(r"^(Graph|Program|Forces|Comm|Library|Compile) *\|.*\| *([\d.]+)$", own, re.M))
        assert len(rows) == 6
        assert sum(float(share) for share in rows.values()) == pytest.approx(100.0, abs=0.1)
        assert f"Evaluations: {evaluations}," in text
    assert "communication cutoff set to" in done.output
    assert done.output.count("communication cutoff set to") == 1
