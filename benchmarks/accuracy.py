# SPDX-License-Identifier: BSD-3-Clause
"""Largest deviations from the stored float64 references, through JAX, ASE (the C API) and LAMMPS.

Every frame of every model in tests/data, from both forms of its file:

python benchmarks/accuracy.py [MODEL ...]

Energy in eV/atom, per-atom energy in eV, force in eV/Angstrom (float64) or as a fraction of the frame's largest force
(float32), stress in eV/Angstrom^3. The references come from mace-torch for mace.model and from MACE-JAX for mace-jax/.
MACE-JAX's frames hold no stress where the reference has none.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import ase.io
import jax
import numpy as np
import stablemd.mace
from ase import Atoms
from ase.calculators.calculator import PropertyNotImplementedError
from lammps_runs import BIN, ROOT
from stablemd import StableMDCalculator

sys.path += [str(ROOT / "tests" / part) for part in ("", "lammps", "mace")]
import lammps_runner
from evaluation import Evaluator

jax.config.update("jax_enable_x64", True)

DATA = ROOT / "tests" / "data"
FORMS = {"mace-torch": ("mace.model", "reference.extxyz"), "mace-jax": ("mace-jax", "mace-jax/reference.extxyz")}

#: energy, per-atom energies, forces, stress (None where it is not defined)
Values = tuple[float, np.ndarray, np.ndarray, np.ndarray | None]


def by_jax(source: Path, dtype: str, frames: list[Atoms]) -> list[Values]:
    evaluate = Evaluator(stablemd.mace.load(source), np.dtype(dtype).type)
    graphs = [evaluate.fold(atoms).graph for atoms in frames]
    least = (max(graph.rows[0] for graph in graphs), max(graph.edges[0] for graph in graphs))
    found = [evaluate(atoms, least=least) for atoms in frames]
    return [(one.energy, one.energies, one.forces, one.stress) for one in found]


def by_ase(bundle: Path, frames: list[Atoms]) -> list[Values]:
    calculator = StableMDCalculator(bundle)
    values = []
    for atoms in frames:
        energy, energies, forces = (calculator.get_property(p, atoms) for p in ("energy", "energies", "forces"))
        try:
            stress = calculator.get_property("stress", atoms)
        except PropertyNotImplementedError:
            stress = None
        values.append((energy, energies, forces, stress))
    return values


def by_lammps(bundle: Path, frames: list[Atoms], ranks: int) -> list[Values]:
    elements = StableMDCalculator(bundle).elements
    with tempfile.TemporaryDirectory() as folder:
        setup = lammps_runner.Setup(bundle, elements, ranks=ranks)
        found = lammps_runner.evaluate(setup, frames, Path(folder))
    return [(e.energy, e.energies, e.forces, e.stress) for e in found]


def worst(frames: list[Atoms], values: list[Values], relative: bool) -> list[float]:
    deviations = []
    for atoms, (energy, energies, forces, stress) in zip(frames, values, strict=True):
        expected = atoms.arrays["ref_forces"]
        row = [
            abs(energy - atoms.info["ref_energy"]) / len(atoms),
            np.abs(energies - atoms.arrays["ref_node_energy"]).max(),
            np.abs(forces - expected).max() / (max(np.abs(expected).max(), 1e-9) if relative else 1.0),
            np.nan,
        ]
        if stress is not None and "ref_stress" in atoms.info and atoms.pbc.all():
            row[3] = np.abs(stress - atoms.info["ref_stress"]).max()
        deviations.append(row)
    return np.nanmax(np.array([[0.0] * 4, *deviations]), axis=0).tolist()


def main() -> None:
    print(f"{'model':>8} {'form':>10} {'dtype':>8} {'through':>14} {'E/atom':>9} {'E_i':>9} {'force':>9} {'stress':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for model in sys.argv[1:] or ("sic", "bpa", "reduced"):
            for form, (source, reference) in FORMS.items():
                # largest first, so that few sizes are compiled
                frames = sorted(ase.io.read(DATA / model / reference, ":"), key=len, reverse=True)
                for dtype in ("float64", "float32"):
                    bundle = Path(folder) / f"{model}-{form}-{dtype}.safetensors"
                    words = [BIN / "stablemd", "export", DATA / model / source, "-o", bundle, "--dtype", dtype]
                    subprocess.run(words, check=True, capture_output=True)
                    ways: dict[str, Callable[[], list[Values]]] = {
                        "JAX": functools.partial(by_jax, DATA / model / source, dtype, frames),
                        "ASE (C API)": functools.partial(by_ase, bundle, frames),
                        "LAMMPS 1 rank": functools.partial(by_lammps, bundle, frames, 1),
                        "LAMMPS 2 ranks": functools.partial(by_lammps, bundle, frames, 2),
                    }
                    for way, evaluate in ways.items():
                        figures = " ".join(f"{x:9.1e}" for x in worst(frames, evaluate(), dtype == "float32"))
                        print(f"{model:>8} {form:>10} {dtype:>8} {way:>14} {figures}", flush=True)


if __name__ == "__main__":
    main()
