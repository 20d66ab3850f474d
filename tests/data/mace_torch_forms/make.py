# SPDX-License-Identifier: BSD-3-Clause
"""Makes the models of this folder with mace-torch and its converters, and their values as mace-torch computes them.

Needs mace-torch 0.3.16, cuequivariance-torch 0.13 and openequivariance 0.7 (OEQ_NOTORCH=1 pip install); no GPU.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from ase.io import read

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "mace"))


class Device:
    """As much of a GPU as OpenEquivariance asks for before it makes its kernels."""

    name, warpsize, major, minor, multiprocessorCount, maxSharedMemPerBlock = "none", 32, 9, 0, 132, 232448

    def __init__(self, _: int) -> None: ...


def without_gpu() -> None:
    """OpenEquivariance's own classes, without the extension that needs CUDA."""
    extension = types.ModuleType("openequivariance._torch.extlib")
    absent = ("JITTPImpl", "JITConvImpl", "GroupMM_F32", "GroupMM_F64", "GPUTimer", "torch_ext_so_path")
    known: dict[str, Any] = {"IS_HIP": False, "DeviceProp": Device, "BUILT_EXTENSION": False}
    known |= {"BUILT_EXTENSION_ERROR": None, "LINKED_LIBPYTHON": False, "LINKED_LIBPYTHON_ERROR": None}
    known |= {"USE_PRECOMPILED_EXTENSION": False, "postprocess_kernel": lambda kernel: kernel}
    extension.__dict__.update(dict.fromkeys(absent), **known)
    sys.modules[extension.__name__] = extension


def on_cpu(make: Any) -> Any:
    return lambda *size, device=None, **options: make(*size, **options)


def main() -> None:
    without_gpu()
    import torch_models
    from e3nn import o3
    from mace.cli import convert_e3nn_cueq, convert_e3nn_oeq

    model = torch_models.build(
        hidden="2x0e+2x1o", max_ell=1, correlation=3, numbers=[1, 6, 8], first="Density", other="DensityResidual",
        num_bessel=3, radial_MLP=[4, 4], MLP_irreps=o3.Irreps("3x0e"), r_max=3.7, seed=3,
    )  # fmt: skip
    values = [
        torch_models.evaluate(model, atoms) for atoms in read(HERE.parent / "mace_jax_forms/structures.extxyz", ":")
    ]
    np.savez_compressed(
        HERE / "values.npz",
        atomic=np.concatenate([np.column_stack([found.energies, found.forces]) for found in values]),
        stress=np.stack([found.stress for found in values]),
    )
    with torch_models.double_precision(), torch_models.quick_construction(script=False):
        torch.save(convert_e3nn_cueq.run(model, device="cpu"), HERE / "cuequivariance.model")
        with mock.patch.object(torch, "zeros", on_cpu(torch.zeros)):
            torch.save(convert_e3nn_oeq.run(model, device="cpu"), HERE / "openequivariance.model")


if __name__ == "__main__":
    main()
