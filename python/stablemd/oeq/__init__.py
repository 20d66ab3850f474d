# SPDX-License-Identifier: BSD-3-Clause
"""OpenEquivariance's tensor products, and MACE's symmetric contraction, as JAX ops that lower to the custom calls of
``oeq_native``."""

from ._contraction import ContractionProblem, SymmetricContraction, make_contraction_kernel
from ._coupling import real_clebsch_gordan
from ._cuda_source import DEVICES
from ._irreps import Irreps
from ._ops import TensorProduct, TensorProductConv, sender_order
from ._payload import Kernel, make_kernel
from ._problem import Instruction, Problem, make_problem
from ._registration import register

#: Targets of the custom calls, for `jax.export` and the like.
TARGETS = (
    *(f"{family}_{op}" for family in ("tp", "conv") for op in ("forward", "backward", "double_backward")),
    "contraction_forward",
    "contraction_backward",
)

__all__ = [
    "DEVICES",
    "TARGETS",
    "ContractionProblem",
    "Instruction",
    "Irreps",
    "Kernel",
    "Problem",
    "SymmetricContraction",
    "TensorProduct",
    "TensorProductConv",
    "make_contraction_kernel",
    "make_kernel",
    "make_problem",
    "real_clebsch_gordan",
    "register",
    "sender_order",
]
