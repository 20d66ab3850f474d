# SPDX-License-Identifier: BSD-3-Clause
"""Makes `release_VERSION.model` and its values with the mace-torch that is on the path, an older release.

pip install --no-deps --target old mace-torch==0.3.6
PYTHONPATH=old TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 python make_release.py
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from ase.io import read
from e3nn import o3
from mace import data, modules, tools
from mace.tools import torch_geometric

HERE = Path(__file__).resolve().parent


def build() -> torch.nn.Module:
    torch.manual_seed(4)
    return modules.ScaleShiftMACE(
        r_max=3.7,
        num_bessel=3,
        num_polynomial_cutoff=5,
        max_ell=1,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        num_interactions=2,
        num_elements=3,
        hidden_irreps=o3.Irreps("2x0e+2x1o"),
        MLP_irreps=o3.Irreps("3x0e"),
        gate=torch.nn.functional.silu,
        atomic_energies=np.array([-3.0, -7.0, -11.0]),
        avg_num_neighbors=6.0,
        atomic_numbers=[1, 6, 8],
        correlation=3,
        radial_MLP=[4, 4],
        radial_type="bessel",
        atomic_inter_scale=0.8,
        atomic_inter_shift=0.1,
    )


def evaluate(model: torch.nn.Module, atoms) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    configuration = data.config_from_atoms(atoms)
    table = tools.AtomicNumberTable([int(number) for number in model.atomic_numbers])
    entry = data.AtomicData.from_config(configuration, z_table=table, cutoff=float(model.r_max))
    batch = next(iter(torch_geometric.dataloader.DataLoader([entry], batch_size=1)))
    periodic = bool(atoms.pbc.all())
    out = model(batch.to_dict(), compute_force=True, compute_stress=periodic)
    stress = np.zeros(6)
    if periodic:
        stress = out["stress"].detach().numpy().reshape(3, 3)[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    return out["node_energy"].detach().numpy(), out["forces"].detach().numpy(), stress


def main() -> None:
    name = f"release_{version('mace-torch')}"
    torch.set_default_dtype(torch.float64)
    model = build()
    values = [evaluate(model, atoms) for atoms in read(HERE.parent / "mace_jax_forms" / "structures.extxyz", ":")]
    np.savez_compressed(
        HERE / f"{name}.npz",
        atomic=np.concatenate([np.column_stack([energies, forces]) for energies, forces, _ in values]),
        stress=np.stack([stress for *_, stress in values]),
    )
    torch.save(model, HERE / f"{name}.model")


if __name__ == "__main__":
    main()
