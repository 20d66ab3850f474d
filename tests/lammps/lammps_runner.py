# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs this environment's `lmp` on ASE structures and reads back energies, forces and stresses in full precision."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.data import atomic_masses, atomic_numbers

#: LAMMPS' own constants (update.cpp, utils.cpp): pressure * volume -> energy, and energy per eV
PRESSURE_UNIT = {"metal": 1.6021765e6, "real": 68568.415}
ENERGY_UNIT = {"metal": 1.0, "real": 23.060549}

TIMEOUT = 300  #: s; a run that hangs fails its test


@dataclass
class Run:
    """What one `lmp` process left."""

    code: int
    output: str
    folder: Path

    @property
    def errors(self) -> list[str]:
        return [line for line in self.output.splitlines() if line.startswith("ERROR")]

    def count(self, name: str) -> int:
        """Sum over the runs in one process of a count in the pair style's own report."""
        return sum(int(n) for n in re.findall(rf"{name}: (\d+)", self.output))


@dataclass
class Evaluation:
    """Energies in eV, forces in eV/Å, stress in eV/Å^3 with ASE's sign and order (xx, yy, zz, yz, xz, xy)."""

    energy: float
    energies: np.ndarray
    forces: np.ndarray
    stress: np.ndarray
    stresses: np.ndarray
    positions: np.ndarray


@dataclass
class Setup:
    """How LAMMPS shall evaluate: the part of the input that tests vary."""

    bundle: Path | str
    elements: Sequence[str]
    style: str = ""  #: arguments of pair_style stablemd
    ranks: int = 1
    units: str = "metal"
    newton: str = "on"
    processors: str = "* * *"
    free: str = "f"  #: boundary of directions that are not periodic
    margin: tuple[float, float] = (6.0, 6.0)  #: vacuum below and above free directions, Å
    before: Sequence[str] = ()  #: commands before the box is read
    after: Sequence[str] = ()  #: commands after pair_coeff
    pair: Sequence[str] | None = None  #: instead of pair_style stablemd and its pair_coeff
    environment: dict[str, str] = field(default_factory=dict)
    atom_style: str = "atomic"


def run_lammps(folder: Path, lines: Sequence[str], ranks: int = 1, environment: dict[str, str] | None = None) -> Run:
    """Runs an input script in `folder`; never raises for a failing LAMMPS."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.lammps").write_text("\n".join(lines) + "\n")
    scripts = Path(sys.executable).parent
    command = [str(scripts / "lmp"), "-in", "in.lammps", "-log", "log.lammps"]
    if ranks > 1:
        command = [str(scripts / "mpirun"), "-np", str(ranks), *command]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT
    )
    return Run(done.returncode, done.stdout, folder)


def evaluate(setup: Setup, frames: Sequence[Atoms], folder: Path) -> list[Evaluation]:
    """Energy, forces and stress of each frame (`run 0`), all in one process."""
    lines = []
    for n, atoms in enumerate(frames):
        lines += [] if n == 0 else ["clear"]
        lines += [*preparation(setup, atoms, folder, f"data.{n}"), *measurement(f"{n}"), "run 0", *output(f"{n}")]
    done = run_lammps(folder, lines, setup.ranks, setup.environment)
    assert done.code == 0, done.output[-3000:]
    return [read_evaluation(folder, f"{n}", atoms, setup.units) for n, atoms in enumerate(frames)]


def preparation(setup: Setup, atoms: Atoms, folder: Path, data: str) -> list[str]:
    """Input lines from `units` to `pair_coeff`; writes the data file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / data).write_text(data_file(atoms, setup))
    boundary = " ".join("p" if periodic else setup.free for periodic in atoms.pbc)
    pair = setup.pair or [
        f"pair_style stablemd {setup.style}",
        f"pair_coeff * * {setup.bundle} {' '.join(setup.elements)}",
    ]
    return [
        f"units {setup.units}",
        f"atom_style {setup.atom_style}",
        f"boundary {boundary}",
        f"newton {setup.newton}",
        f"processors {setup.processors}",
        *setup.before,
        f"read_data {data}",
        *pair,
        *setup.after,
    ]


def measurement(name: str) -> list[str]:
    columns = "id x y z fx fy fz c_atom_energy c_atom_stress[1] c_atom_stress[2] c_atom_stress[3] "
    columns += "c_atom_stress[6] c_atom_stress[5] c_atom_stress[4]"
    return [
        "compute atom_energy all pe/atom",
        "compute atom_stress all stress/atom NULL virial",
        "compute virial all pressure NULL virial",
        "thermo_style custom step pe ke etotal c_virial[*]",
        f"dump all all custom 1 dump.{name} {columns}",
        "dump_modify all sort id format float %.17g",
    ]


def output(name: str) -> list[str]:
    values = " ".join(f"$({value}:%.17g)" for value in ("pe", *(f"c_virial[{n}]" for n in (1, 2, 3, 6, 5, 4))))
    return [f'print "{values}" file result.{name} screen no']


def read_evaluation(folder: Path, name: str, atoms: Atoms, units: str = "metal") -> Evaluation:
    """The last frame of a dump, turned back into the frame of `atoms`."""
    numbers = np.array((folder / f"result.{name}").read_text().split(), dtype=float)
    table = read_dump(folder / f"dump.{name}")[-1]
    _, rotation = standard_cell(atoms)
    to_stress, to_energy = PRESSURE_UNIT[units], 1.0 / ENERGY_UNIT[units]
    volume = abs(np.linalg.det(atoms.cell.array)) or 1.0
    # real: 68568.415 turns kcal/mol/Å^3 into atm, so its result is a kcal/mol too
    return Evaluation(
        energy=numbers[0] * to_energy,
        energies=table[:, 7] * to_energy,
        forces=table[:, 4:7] @ rotation * to_energy,
        stress=rotated(-numbers[1:7] / to_stress * to_energy, rotation),
        stresses=rotated(table[:, 8:14] / to_stress / volume * to_energy, rotation),
        positions=table[:, 1:4],
    )


def read_dump(path: Path) -> list[np.ndarray]:
    """Tables of a dump file, one per step."""
    tables = []
    for block in path.read_text().split("ITEM: TIMESTEP\n")[1:]:
        rows = block[block.index("ITEM: ATOMS") :].splitlines()[1:]
        tables.append(np.array([row.split() for row in rows], dtype=float))
    return tables


def read_thermo(text: str) -> list[np.ndarray]:
    """Tables of thermo output, one per run, with the columns of `thermo_style`."""
    tables, rows = [], None
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["Step"]:
            rows = []
        elif line.startswith("Loop time"):
            tables.append(np.array(rows, dtype=float))
            rows = None
        elif rows is not None and words and re.fullmatch(r"-?\d+", words[0]):
            rows.append([float(word) for word in words])
    return tables


def standard_cell(atoms: Atoms) -> tuple[np.ndarray, np.ndarray]:
    """LAMMPS' lower-triangular cell and the rotation R with cell = standard @ R."""
    if not atoms.pbc.any():
        return np.zeros((3, 3)), np.eye(3)
    standard, rotation = atoms.cell.standard_form()
    return np.array(standard), np.array(rotation)


def rotated(voigt: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Symmetric tensors in ASE's Voigt order, from LAMMPS' frame to that of the structure."""
    xx, yy, zz, yz, xz, xy = np.moveaxis(np.asarray(voigt), -1, 0)
    tensor = np.moveaxis(np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]), (0, 1), (-2, -1))
    tensor = rotation.T @ tensor @ rotation
    return np.stack([tensor[..., i, j] for i, j in ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))], axis=-1)


def data_file(atoms: Atoms, setup: Setup) -> str:
    """A LAMMPS data file with types in the order of the setup's elements; free directions get a margin of vacuum."""
    cell, rotation = standard_cell(atoms)
    positions = atoms.positions @ rotation.T
    bounds = []
    for axis, periodic in enumerate(atoms.pbc):
        if periodic:
            bounds.append((0.0, cell[axis, axis]))
        else:
            bounds.append((positions[:, axis].min() - setup.margin[0], positions[:, axis].max() + setup.margin[1]))
    tilt = (cell[1, 0], cell[2, 0], cell[2, 1])
    kinds = list(setup.elements)
    lines = ["StableMD test", "", f"{len(atoms)} atoms", f"{len(kinds)} atom types", ""]
    lines += [f"{low:.17g} {high:.17g} {axis}lo {axis}hi" for axis, (low, high) in zip("xyz", bounds, strict=True)]
    if np.abs(tilt).max() > 1e-12:
        lines += ["{:.17g} {:.17g} {:.17g} xy xz yz".format(*tilt)]
    lines += ["", "Masses", ""]
    lines += [f"{n} {atomic_masses[atomic_numbers[symbol]]:.6f}" for n, symbol in enumerate(kinds, 1)]
    lines += ["", f"Atoms # {setup.atom_style}", ""]
    extra = {"atomic": "", "charge": " 0.0"}[setup.atom_style]
    for n, (symbol, position) in enumerate(zip(atoms.symbols, positions, strict=True), 1):
        lines.append(f"{n} {kinds.index(symbol) + 1}{extra} {position[0]:.17g} {position[1]:.17g} {position[2]:.17g}")
    return "\n".join(lines) + "\n"
