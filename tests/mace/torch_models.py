# SPDX-License-Identifier: BSD-3-Clause
"""Models with random weights, made on the spot by mace-torch, and what it says about them in float64."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
from dataclasses import dataclass

import ase
import numpy as np
import pytest
from ase.build import bulk

torch = pytest.importorskip("torch", reason="mace-torch files need torch")
modules = pytest.importorskip("mace.modules", reason="mace-torch files need mace-torch")

HEADS = ["pbe", "r2scan"]
NUMBERS = [1, 6, 8, 14]


@contextlib.contextmanager
def precision(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def double_precision():
    return precision(torch.float64)


@functools.cache
def cached_coupling_matrices(irreps_in, irreps_out, **options):
    from mace.tools.cg import U_matrix_real

    return U_matrix_real(irreps_in=irreps_in, irreps_out=irreps_out, **options)


@contextlib.contextmanager
def quick_construction(*, script: bool):
    """Each coupling matrix is computed once per session, and tensor products are not compiled unless ``script``."""
    import e3nn
    from mace.modules import symmetric_contraction

    before, original = e3nn.get_optimization_defaults(), symmetric_contraction.U_matrix_real
    e3nn.set_optimization_defaults(jit_script_fx=script, optimize_einsums=script)
    symmetric_contraction.U_matrix_real = cached_coupling_matrices
    try:
        yield
    finally:
        symmetric_contraction.U_matrix_real = original
        e3nn.set_optimization_defaults(**before)


def block(name: str):
    return modules.interaction_classes[f"RealAgnostic{name}InteractionBlock"]


def fresh_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0])


def build(
    *,
    hidden: str = "4x0e+4x1o",
    first: str = "Residual",
    other: str = "Residual",
    heads: int = 1,
    scaled: bool = True,
    numbers=NUMBERS,
    seed: int | None = None,
    script: bool = False,
    dtype=torch.float64,
    **changes,
):
    """A MACE with every weight random: biases, norms and tables too, which mace-torch starts at zero or one.

    ``dtype``: in which it is built, and its constants are rounded, as published models are in float32.
    """
    from e3nn import o3

    seed = fresh_seed() if seed is None else seed
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    energies = rng.uniform(-30, -5, (heads, len(numbers)))
    options = {
        "r_max": 4.5,
        "num_bessel": 5,
        "num_polynomial_cutoff": 6,
        "max_ell": 2,
        "interaction_cls": block(other),
        "interaction_cls_first": block(first),
        "num_interactions": 2,
        "num_elements": len(numbers),
        "hidden_irreps": o3.Irreps(hidden),
        "MLP_irreps": o3.Irreps("6x0e"),
        "gate": torch.nn.functional.silu,
        "atomic_energies": energies,
        "avg_num_neighbors": 7.5,
        "atomic_numbers": list(numbers),
        "correlation": 2,
        "radial_MLP": [16, 16],
        "radial_type": "bessel",
        "heads": HEADS[:heads],
        **changes,
    }
    for field in ("edge_irreps",):
        if options.get(field) is not None:
            options[field] = o3.Irreps(options[field])
    if "readout_cls" in options:
        options["readout_cls"] = modules.readout_classes[options["readout_cls"]]
    with precision(dtype), quick_construction(script=script), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(seed)
        if scaled:
            factors = np.array([0.7, 1.3])[:heads]
            model = modules.ScaleShiftMACE(**options, atomic_inter_scale=factors, atomic_inter_shift=0.1 * factors)
        else:
            model = modules.MACE(**options)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith((".bias", ".alpha", ".beta")) or ".net." in name or "embedding" in name:
                    parameter += 0.3 * torch.randn_like(parameter)
    return model


def in_double_precision(model):
    """A copy to compare with: cast to float64, e3nn's coupling coefficients as if never rounded."""
    from e3nn.o3 import wigner_3j

    double = copy.deepcopy(model).double()
    for name, table in double.state_dict().items():
        if "_w3j_" in name:
            table.copy_(wigner_3j(*map(int, name.split("_")[-3:]), dtype=torch.float64))
    return double


@dataclass(frozen=True)
class Values:
    """What mace-torch gives; ``energies`` are those of atoms, to which ``constant`` lacks what only the total has."""

    energy: float
    energies: np.ndarray
    forces: np.ndarray
    stress: np.ndarray


def evaluate(model, atoms: ase.Atoms, head: str | None = None, features=None) -> Values:
    from mace import data
    from mace.tools import AtomicNumberTable, torch_geometric

    with double_precision():
        configuration = data.config_from_atoms(atoms, head_name=head or model.heads[0])
        configuration.properties.update(features or {})
        table = AtomicNumberTable([int(number) for number in model.atomic_numbers])
        entry = data.AtomicData.from_config(configuration, table, float(model.r_max), heads=list(model.heads))
        batch = next(iter(torch_geometric.dataloader.DataLoader([entry], batch_size=1)))
        periodic = bool(atoms.pbc.all())
        out = model(batch.to_dict(), compute_force=True, compute_stress=periodic)
    stress = np.zeros(6)
    if periodic:
        stress = out["stress"].detach().numpy().reshape(3, 3)[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    return Values(
        float(out["energy"].detach()[0]), out["node_energy"].detach().numpy(), out["forces"].detach().numpy(), stress
    )


def molecule(rng) -> ase.Atoms:
    """Ethanol and a silicon atom, bent."""
    from ase.build import molecule as named

    atoms = named("CH3CH2OH") + ase.Atoms("Si", [[2.6, 1.0, 0.7]])
    atoms.positions += rng.normal(scale=0.08, size=(len(atoms), 3))
    return atoms


def primitive_cell(rng) -> ase.Atoms:
    atoms = bulk("SiC", "zincblende", a=4.4)
    atoms.positions += rng.normal(scale=0.1, size=(2, 3))
    return atoms


def triclinic_crystal(rng) -> ase.Atoms:
    atoms = bulk("SiC", "zincblende", a=4.4) * (2, 2, 1)
    atoms.symbols[[1, 4]] = "O"
    atoms.symbols[6] = "H"
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(scale=0.05, size=(3, 3))), scale_atoms=True)
    atoms.positions += rng.normal(scale=0.12, size=(len(atoms), 3))
    return atoms


def with_isolated_atom(rng) -> ase.Atoms:
    positions = np.array([[0, 0, 0], [1.1, 0.2, 0], [-0.5, 1.0, 0.3], [9.0, 9.0, 9.0]])
    atoms = ase.Atoms("OHHC", positions + rng.normal(scale=0.05, size=(4, 3)), cell=[18.0] * 3, pbc=True)
    return atoms


STRUCTURES = (molecule, primitive_cell, triclinic_crystal, with_isolated_atom)
