# SPDX-License-Identifier: BSD-3-Clause
"""CUDA source of OpenEquivariance for a named GPU, made on any machine from its pure-Python part."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from ._problem import Problem


@dataclass(frozen=True)
class Device:
    """What OpenEquivariance's scheduler asks of a GPU."""

    multiprocessors: int
    shared_memory: int  #: bytes a block may opt in to
    major: int
    minor: int


#: NVIDIA GPUs by the name that exports take. Sources: the "compute capability" tables of the CUDA C++ Programming Guide
#: (shared memory per block, opt-in) and NVIDIA's data sheets (multiprocessors of the SXM or desktop part).
DEVICES = {
    "t4": Device(40, 65536, 7, 5),
    "v100": Device(80, 98304, 7, 0),
    "a100": Device(108, 166912, 8, 0),
    "a40": Device(84, 101376, 8, 6),
    "a6000": Device(84, 101376, 8, 6),
    "rtx3090": Device(82, 101376, 8, 6),
    "l40s": Device(142, 101376, 8, 9),
    "rtx4090": Device(128, 101376, 8, 9),
    "h100": Device(132, 232448, 9, 0),
    "h200": Device(132, 232448, 9, 0),
    "gh200": Device(132, 232448, 9, 0),
    "b200": Device(148, 232448, 10, 0),
}


def _import_openequivariance(module: str) -> Any:
    """Imports without its PyTorch part, which needs a compiled extension."""
    before = os.environ.get("OEQ_NOTORCH")
    os.environ["OEQ_NOTORCH"] = "1"
    try:
        return import_module(f"openequivariance.{module}")
    except ImportError as error:
        raise ImportError(
            "CUDA kernels need the package openequivariance (its Python part is enough): "
            f"OEQ_NOTORCH=1 pip install openequivariance ({error})"
        ) from error
    finally:
        if before is None:
            del os.environ["OEQ_NOTORCH"]
        else:
            os.environ["OEQ_NOTORCH"] = before


def _check_supported(problem: Problem) -> None:
    modes = {path.mode for path in problem.instructions}
    if len(modes) != 1 or not all(path.has_weight for path in problem.instructions):
        raise ValueError("CUDA kernels need one mode (uvu or uvw) for all instructions, and weights for each")
    if problem.layout == "ir_mul" and modes != {"uvu"}:
        raise ValueError("CUDA kernels take the layout ir_mul only with uvu instructions")


def _upstream_problem(problem: Problem) -> Any:
    """Ours as OpenEquivariance's; its constructor squares no weight when both normalisations are "none"."""
    lite = _import_openequivariance("core.e3nn_lite")
    instructions = [(p.i_in1, p.i_in2, p.i_out, p.mode, p.has_weight, p.path_weight**2) for p in problem.instructions]
    dtype = np.dtype(problem.dtype).type
    return lite.TPProblem(
        *(lite.Irreps(str(i)) for i in (problem.irreps_in1, problem.irreps_in2, problem.irreps_out)),
        instructions,
        irrep_normalization="none",
        path_normalization="none",
        internal_weights=False,
        shared_weights=problem.shared_weights,
        irrep_dtype=dtype,
        weight_dtype=dtype,
        layout=problem.layout,
    )


def _device_properties(gpu: str) -> SimpleNamespace:
    """What OpenEquivariance would ask of the GPU itself."""
    if gpu not in DEVICES:
        raise ValueError(f"unknown GPU {gpu!r}; known are {', '.join(DEVICES)}")
    device = DEVICES[gpu]
    return SimpleNamespace(
        name=gpu,
        warpsize=32,
        major=device.major,
        minor=device.minor,
        multiprocessorCount=device.multiprocessors,
        maxSharedMemPerBlock=device.shared_memory,
    )


def cuda_payload(problem: Problem, family: str, gpu: str, deterministic: bool) -> dict[str, Any]:
    """OpenEquivariance's payload for the named GPU: CUDA source, launch configurations, ``kernel_prop``.

    Raises ValueError for an unknown GPU or a problem that its kernels do not cover, ImportError without the package.
    """
    properties = _device_properties(gpu)
    _check_supported(problem)
    upstream = _upstream_problem(problem)
    if family == "tp":
        kernel = _import_openequivariance("core.LoopUnrollTP").LoopUnrollTP(upstream, properties, False, torch_op=False)
    else:
        kernel = _import_openequivariance("core.LoopUnrollConv").LoopUnrollConv(
            upstream, properties, False, idx_dtype=np.int32, torch_op=False, deterministic=deterministic
        )
    return json.loads(kernel.kernel_string)
