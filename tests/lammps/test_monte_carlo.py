# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixes that insert, delete and exchange atoms, against the same Monte Carlo by hand: the same random numbers, but
energies of structures that hold just the atoms that are there, from ASE's calculator or from JAX."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import potentials
import pytest
import structures
from ase import Atoms
from jax_reference import evaluate_in_jax
from lammps_runner import Setup, measurement, output, preparation, read_dump, read_thermo, run_lammps
from stablemd import StableMDCalculator, export_potential

BOLTZMANN, PLANCK, MVV2E = 8.617343e-5, 4.135667403e-3, 1.0364269e-4  #: LAMMPS' constants of `units metal`
SYMBOLS = ["Si", "C"]
OVERLAP = 1.2  #: Å, where `fix gcmc` refuses an insertion at once


class ParkMiller:
    """The generator of LAMMPS' Monte Carlo (Park and Miller, Commun. ACM 31, 1192 (1988)), by its definition."""

    def __init__(self, seed: int):
        self.state = seed

    def __call__(self) -> float:
        self.state = 16807 * self.state % (2**31 - 1)
        return self.state / (2**31 - 1)


def sparse_crystal() -> Atoms:
    """Where atoms find room, in a box without origin trouble: all inside."""
    atoms = structures.crystal((2, 1, 1))
    del atoms[[3, 9, 12]]
    atoms.positions += 0.5
    atoms.wrap()
    return atoms


def grand_canonical(atoms, energy_of, cycles, steps, seed, temperature, potential):
    """[step]: atoms, attempts and successes of deletions and insertions of carbon by `fix gcmc`."""
    uniform = ParkMiller(seed)
    beta = 1 / (BOLTZMANN * temperature)
    thermal = math.sqrt(PLANCK**2 / (2 * math.pi * 12.011 * MVV2E * BOLTZMANN * temperature))
    activity = math.exp(beta * potential) / thermal**3
    volume, lengths = atoms.get_volume(), atoms.cell.lengths()
    counts = {"insertions": [0, 0], "deletions": [0, 0]}
    table = []
    for _ in range(steps):
        energy = energy_of(atoms)
        for _ in range(cycles):
            uniform()  # whether to move an atom, which is not asked for
            gas = [i for i, symbol in enumerate(atoms.symbols) if symbol == "C"]
            trial = atoms.copy()
            if uniform() < 0.5:
                kind, chosen = "deletions", gas[int(len(gas) * uniform())]
                trial.positions[chosen], trial.symbols[chosen] = trial.positions[-1], trial.symbols[-1]
                del trial[-1]
                weight = len(gas) / (activity * volume)
            else:
                kind = "insertions"
                trial += Atoms("C", [[length * uniform() for length in lengths]])
                weight = activity * volume / (len(gas) + 1)
            counts[kind][0] += 1
            if trial.get_distances(-1, range(len(trial) - 1), mic=True).min() < OVERLAP:
                continue  # before the energy and the random number that it would be weighed with
            after = energy_of(trial)
            if uniform() < weight * math.exp(beta * (energy - after)):
                counts[kind][1] += 1
                atoms, energy = trial, after
        table.append([len(atoms), *counts["insertions"], *counts["deletions"]])
    return np.array(table)


def native_energies(bundle):
    """The energy of any atoms from the calculator, which knows no lists, images or exclusions of LAMMPS'."""
    calculator, known = StableMDCalculator(bundle), {}

    def energy_of(atoms):
        key = atoms.positions.tobytes(), atoms.numbers.tobytes()
        if key not in known:
            calculator.calculate(atoms, ["energy"])
            known[key] = calculator.results["energy"]
        return known[key]

    return energy_of


def run_of(tmp_path, bundle, atoms, lines, ranks=1, **options):
    setup = Setup(bundle, SYMBOLS, before=["atom_modify sort 0 0"], ranks=ranks, **options)
    done = run_lammps(tmp_path, [*preparation(setup, atoms, tmp_path, "data.0"), "timestep 0", *lines], ranks)
    assert done.code == 0, done.output[-3000:]
    return done


def test_grand_canonical_monte_carlo_by_hand(mace_bundle, tmp_path):
    """A few hundred insertions and deletions in silicon carbide: every single decision is the same."""
    bundle, atoms = mace_bundle("sic"), sparse_crystal()
    seed, temperature, potential, cycles, steps = 29494, 12000.0, -15.0, 60, 4
    # attempts and successes of insertions, then of deletions
    lines = ["group gas type 2", "thermo 1", "thermo_style custom step atoms f_mc[3] f_mc[4] f_mc[5] f_mc[6]"]
    fix = f"fix mc gas gcmc 1 {cycles} 0 2 {seed} {temperature} {potential} 0.1 full_energy overlap_cutoff {OVERLAP}"
    lines = [lines[0], fix, *lines[1:], f"run {steps}"]
    expected = grand_canonical(atoms, native_energies(bundle), cycles, steps, seed, temperature, potential)
    assert expected[-1, 2] > 5 and expected[-1, 4] > 5, expected
    found = read_thermo(run_of(tmp_path, bundle, atoms, lines).output)[0][1:, 1:].astype(int)
    np.testing.assert_array_equal(found, expected)


def salt(atoms, energy_of, cycles, seed, temperature, strength):
    """Attempts, successes and pairs of ions (C+, Si-) that `fix charge/regulation` leaves, and the atoms."""
    uniform, beta = ParkMiller(seed), 1 / (BOLTZMANN * temperature)
    molar_volume = 0.602214 * atoms.get_volume() * 1e-3  # in nm^3, times Avogadro's number
    lengths, energy, successes = atoms.cell.lengths(), energy_of(atoms), 0
    ions = [0] * len(atoms)
    for _ in range(cycles):
        trial, charges = atoms.copy(), list(ions)
        if uniform() < 0.5:
            for symbol, charge in (("Si", -1), ("C", 1)):
                trial += Atoms(symbol, [[length * uniform() for length in lengths]])
                charges.append(charge)
            weight = math.prod(molar_volume * 10**-strength / charges.count(charge) for charge in (-1, 1))
        else:
            if 1 not in ions:
                continue
            weight, chosen = 1.0, []
            for charge in (-1, 1):
                candidates = [i for i, q in enumerate(ions) if q == charge]
                chosen.append(candidates[int(len(candidates) * uniform())])
                weight *= len(candidates) / (molar_volume * 10**-strength)
            for i in sorted(chosen, reverse=True):
                trial.positions[i], trial.symbols[i], charges[i] = trial.positions[-1], trial.symbols[-1], charges[-1]
                del trial[-1]
                charges.pop()
        after = energy_of(trial)
        if uniform() < weight * math.exp(min(700.0, beta * (energy - after))):
            atoms, energy, ions, successes = trial, after, charges, successes + 1
    return successes, ions.count(1), atoms


def test_ions_of_charge_regulation_by_hand(toy_bundle, tmp_path):
    bundle, atoms = toy_bundle("message_passing"), sparse_crystal()
    seed, temperature, strength, cycles = 4711, 40000.0, -1.8, 100
    fix = f"fix mc all charge/regulation 2 1 onlysalt yes 1 -1 pIp {strength} pIm {strength} lunit_nm 0.1"
    lines = [f"{fix} temp {temperature} nevery 1 nmc {cycles} seed {seed}", "thermo 1"]
    lines += ["thermo_style custom step atoms f_mc[2] f_mc[7] pe", "thermo_modify format float %.12g", "run 1"]
    successes, pairs, left = salt(atoms, native_energies(bundle), cycles, seed, temperature, strength)
    assert successes > 10 and successes > 2 * pairs, (successes, pairs)
    _, count, *rest, energy = read_thermo(run_of(tmp_path, bundle, atoms, lines, atom_style="charge").output)[0][1]
    assert (count, *rest) == (len(atoms) + 2 * pairs, successes, pairs)
    assert energy == pytest.approx(evaluate_in_jax(potentials.message_passing(), left).energy, abs=1e-8)


@pytest.mark.parametrize("ranks", [1, 2])
def test_exchange_of_elements(toy_bundle, tmp_path, ranks):
    """At a temperature of nearly nothing `fix atom/swap` goes downhill only, whatever list the new types stand in."""
    bundle, potential = toy_bundle("message_passing"), potentials.message_passing()

    def energy_of(atoms):
        return evaluate_in_jax(potential, atoms).energy

    def shuffled():
        atoms.symbols = np.random.default_rng().permutation(atoms.symbols)
        return atoms.copy()

    atoms = structures.crystal((2, 2, 1))
    atoms = max((shuffled() for _ in range(8)), key=energy_of)  # from where there is a way down
    lines = ["fix mc all atom/swap 1 16 4711 1.0 ke no types 1 2", "thermo 1"]
    lines += ["thermo_style custom step pe f_mc[1] f_mc[2]", "thermo_modify format float %.12g"]
    lines += ["dump all all custom 1 dump.0 id type x y z", "dump_modify all sort id format float %.17g", "run 6"]
    table = read_thermo(run_of(tmp_path, bundle, atoms, lines, ranks).output)[0]
    attempts, successes = table[-1, 2:]
    assert attempts == 96 and 0 < successes < attempts, table
    assert (np.diff(table[:, 1]) <= 1e-9).all() and table[-1, 1] < table[0, 1] - 1e-3, table
    for row, frame in list(zip(table, read_dump(tmp_path / "dump.0"), strict=True))[::3]:
        exchanged = Atoms([SYMBOLS[int(kind) - 1] for kind in frame[:, 1]], frame[:, 2:5], cell=atoms.cell, pbc=True)
        assert row[1] == pytest.approx(energy_of(exchanged), abs=1e-8)


def test_widom_insertion_of_an_element_with_a_large_energy(tmp_path):
    """exp(-E/kT) of energies with their atomic ones is beyond a double: the style warns, and can do without."""
    bundle = tmp_path / "large.safetensors"
    potential = dataclasses.replace(potentials.message_passing(), atomic_energies=np.array([-7800.0, -1030.0]))
    export_potential(potential, bundle, dtype="float64", platforms=("cpu",))
    atoms, seed, temperature, insertions = sparse_crystal(), 815, 9000.0, 12
    lines = [f"fix mc all widom 1 {insertions} 2 {seed} {temperature} full_energy", "thermo 1"]
    lines += ["thermo_style custom step f_mc[1] f_mc[2]", "thermo_modify format float %.12g", "run 1"]
    uniform, energy_of = ParkMiller(seed), native_energies(bundle)
    weights = []
    for _ in range(insertions):
        trial = atoms + Atoms("C", [[length * uniform() for length in atoms.cell.lengths()]])
        inserted = energy_of(trial) - energy_of(atoms) - potential.atomic_energies[1]
        weights.append(math.exp(-inserted / (BOLTZMANN * temperature)))
    for style, warnings in (("", 1), ("atomic_energies no", 0)):
        done = run_of(tmp_path, bundle, atoms, lines, style=style)
        told = [line for line in done.output.splitlines() if "atomic energies of up to 7800, which overflows" in line]
        assert len(told) == warnings, done.output[-3000:]
    table = read_thermo(done.output)[0]
    assert table[1, 2] == pytest.approx(np.mean(weights), rel=1e-6)
    assert table[1, 1] == pytest.approx(-BOLTZMANN * temperature * math.log(np.mean(weights)), rel=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_atoms_excluded_from_all_are_not_there(toy_bundle, tmp_path, ranks):
    """As many ways as `neigh_modify` has to say so; no energy, no force, in sums and of the atom."""
    bundle, atoms = toy_bundle("message_passing"), structures.crystal((2, 2, 1))
    atoms.symbols[[4, 7, 9]] = "C"
    potential, number = potentials.message_passing(), np.arange(len(atoms))
    ways = {
        "exclude group few all": np.isin(number, [2, 7]),
        "exclude group all few": np.isin(number, [2, 7]),
        "exclude type 1 1 exclude type 1 2": atoms.symbols == "Si",
        "exclude group few rest exclude group few few": np.isin(number, [2, 7]),
        "exclude group all all": number >= 0,
    }
    setup = Setup(bundle, SYMBOLS, ranks=ranks)
    lines = [*preparation(setup, atoms, tmp_path, "data.0"), "group few id 3 8", "group rest subtract all few"]
    lines += measurement("0")[:4]
    for n, way in enumerate(ways):
        lines += [
            "neigh_modify exclude none",
            f"neigh_modify {way}",
            *measurement(f"{n}")[4:],
            "run 0",
            *output(f"{n}"),
        ]
        lines += ["undump all"]
    done = run_lammps(tmp_path, lines, ranks)
    assert done.code == 0, done.output[-3000:]
    for n, absent in enumerate(ways.values()):
        (frame,) = read_dump(tmp_path / f"dump.{n}")
        rest = evaluate_in_jax(potential, atoms[~absent]) if not absent.all() else None
        total = float((tmp_path / f"result.{n}").read_text().split()[0])
        assert total == pytest.approx(rest.energy if rest else 0.0, abs=1e-9 * len(atoms))
        assert np.abs(frame[absent][:, 4:]).max(initial=0.0) == 0.0
        if rest:
            np.testing.assert_allclose(frame[~absent][:, 7], rest.energies, atol=1e-9)
            np.testing.assert_allclose(frame[~absent][:, 4:7], rest.forces, atol=1e-8)
    # the mutual exclusion of some is no removal, and said to be doubtful
    assert done.output.count("pairs that neigh_modify exclude takes out") == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_excluded_silicon_in_silicon_carbide(mace_bundle, tmp_path, ranks):
    """One of 64 atoms: it used to keep the energy of a lone silicon atom, -4.34719 eV."""
    bundle, atoms = mace_bundle("sic"), structures.crystal((2, 2, 2))
    chosen = int(np.flatnonzero(atoms.symbols == "Si")[5])
    energy_of = native_energies(bundle)
    assert energy_of(Atoms("Si", cell=[20.0] * 3, pbc=True)) == pytest.approx(-4.34719, abs=1e-5)
    lines = [f"group one id {chosen + 1}", "neigh_modify exclude group one all", "run 0"]
    run_of(tmp_path, bundle, atoms, [*lines, "print '$(pe:%.12g)' file energy"], ranks)
    del atoms[chosen]
    assert float((tmp_path / "energy").read_text()) == pytest.approx(energy_of(atoms), abs=1e-8 * len(atoms))
