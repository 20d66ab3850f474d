# SPDX-License-Identifier: BSD-3-Clause
"""CPU kernels through ctypes, without XLA: memory, poison and thread count are the caller's."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np

from stablemd.oeq import Problem, make_kernel

ORDERS = ("forward", "backward", "double_backward")
FAMILIES = ("tp", "conv")
_POINTERS = (
    "L1 L2 W L3_grad L1_dgrad L2_dgrad W_dgrad L3 L1_grad L2_grad W_grad L3_dgrad receivers senders sender_order"
).split()


class _Call(ctypes.Structure):
    """OeqCall of oeq_call.h."""

    _fields_ = (
        [("products", ctypes.c_int64), ("nodes", ctypes.c_int64)]
        + [(name, ctypes.c_void_p) for name in _POINTERS]
        + [("sender_order_count", ctypes.c_int64), ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_int64)]
        + [("reserved", ctypes.c_int64 * 8)]
    )


def _find_library() -> Path:
    given = os.environ.get("STABLEMD_OEQ_DRIVER")
    root = Path(__file__).parents[2]
    found = [Path(given)] if given else sorted(root.glob("build/**/liboeq_kernel_driver.so"))
    if not found or not found[0].exists():
        raise FileNotFoundError("liboeq_kernel_driver.so not found: build with STABLEMD_TESTS=ON or set STABLEMD_OEQ_DRIVER")
    return found[-1]


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = ctypes.CDLL(str(_find_library()))
        _library.driver_open.restype = ctypes.c_void_p
        _library.driver_close.argtypes = [ctypes.c_void_p]
    return _library


def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An output full of NaN, between guards that tell of writes outside it."""
    guard = 64
    count = int(np.prod(shape))
    memory = np.full(count + 2 * guard, np.nan, dtype)
    return memory[guard : guard + count].reshape(shape)


def guards_intact(array: np.ndarray) -> bool:
    memory = array.base if array.base is not None else array
    while memory.base is not None:
        memory = memory.base
    return bool(np.isnan(memory[:64]).all() and np.isnan(memory[-64:]).all())


class NativeKernel:
    """One op of one problem; `generic`: the kernel for machines without a compiler."""

    def __init__(self, problem: Problem, family: str, order: str, generic: bool = False, payload: str | None = None):
        self.problem, self.family, self.order = problem, family, order
        payload = payload or make_kernel(problem, family).payload
        error = ctypes.create_string_buffer(1 << 16)
        self._handle = library().driver_open(
            payload.encode(), FAMILIES.index(family), ORDERS.index(order), int(generic), error, len(error)
        )
        if not self._handle:
            raise RuntimeError(error.value.decode())

    def __del__(self):
        if getattr(self, "_handle", None):
            library().driver_close(self._handle)

    def __call__(self, *operands, receivers=None, senders=None, sender_order=None, threads: int = 1):
        """Operands in the op's order (see OeqCall); returns the tuple of outputs."""
        names = ["L1", "L2", "W", "L3_grad", "L1_dgrad", "L2_dgrad", "W_dgrad"][: len(operands)]
        call = _Call()
        arrays = [np.ascontiguousarray(o, self.problem.dtype) for o in operands]
        for name, array in zip(names, arrays, strict=True):
            setattr(call, name, array.ctypes.data)
        x, y, w = arrays[:3]
        call.products = len(y)
        if self.family == "conv":
            call.nodes = len(x)
            call.receivers, call.senders = receivers.ctypes.data, senders.ctypes.data
            if sender_order is not None:
                call.sender_order, call.sender_order_count = sender_order.ctypes.data, len(sender_order)
        out_shape = (len(x), self.problem.irreps_out.dim)
        shapes = {
            "forward": {"L3": out_shape},
            "backward": {"L1_grad": x.shape, "L2_grad": y.shape, "W_grad": w.shape},
            "double_backward": {"L1_grad": x.shape, "L2_grad": y.shape, "W_grad": w.shape, "L3_dgrad": out_shape},
        }[self.order]
        outputs = {name: poisoned(shape, np.dtype(self.problem.dtype)) for name, shape in shapes.items()}
        for name, output in outputs.items():
            setattr(call, name, output.ctypes.data)
        error = ctypes.create_string_buffer(1 << 12)
        status = library().driver_run(ctypes.c_void_p(self._handle), ctypes.byref(call), threads, error, len(error))
        if status:
            raise RuntimeError(error.value.decode())
        for name, output in outputs.items():
            assert guards_intact(output), f"{name}: written outside its memory"
        return tuple(outputs.values())
