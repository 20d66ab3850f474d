# SPDX-License-Identifier: BSD-3-Clause
"""The attributes of a call: the payload ``kernel`` and its ``hash``."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from ._cuda_source import cuda_payload
from ._problem import Problem

FLOAT_CODES = {"float32": 1, "float64": 2}
INT32_CODE = 3


@dataclass(frozen=True)
class Kernel:
    """What a primitive carries: hashable, equal for equal payloads."""

    family: Literal["tp", "conv"]
    payload: str = field(repr=False)  #: JSON, OpenEquivariance's keys and ``problem``
    hash: int
    out_dim: int
    workspace_size: int  #: bytes of the operand ``workspace``


def payload_hash(payload: str) -> int:
    """56 bits, as OpenEquivariance's hash, so that it is a non-negative int64."""
    return int.from_bytes(hashlib.sha256(payload.encode()).digest()[:7], "big")


def _kernel_properties(problem: Problem, family: str, deterministic: bool) -> dict[str, int]:
    convolution = family == "conv"
    return {
        "L1_dim": problem.irreps_in1.dim,
        "L2_dim": problem.irreps_in2.dim,
        "L3_dim": problem.irreps_out.dim,
        "weight_numel": problem.weight_numel,
        "workspace_size": int(convolution),
        "opt_level": 3,
        "shared_weights": int(problem.shared_weights),
        "deterministic": int(deterministic or not convolution),
        "irrep_dtype": FLOAT_CODES[problem.dtype],
        "weight_dtype": FLOAT_CODES[problem.dtype],
        "idx_dtype": INT32_CODE if convolution else 0,
    }


def make_kernel(
    problem: Problem, family: Literal["tp", "conv"], gpu: str | None = None, deterministic: bool = False
) -> Kernel:
    """The kernel of a problem, with CUDA source if ``gpu`` names a GPU. Equal arguments give equal bytes."""
    if gpu is None:
        content: dict[str, Any] = {"kernel": "", "kernel_prop": _kernel_properties(problem, family, deterministic)}
    else:
        content = cuda_payload(problem, family, gpu, deterministic)
    order = "oeq" if gpu is not None and problem.oeq_weight_order is not None else "e3nn"
    content["problem"] = problem.to_json(order)
    payload = json.dumps(content)
    workspace = content["kernel_prop"]["workspace_size"]
    return Kernel(family, payload, payload_hash(payload), problem.irreps_out.dim, workspace)
