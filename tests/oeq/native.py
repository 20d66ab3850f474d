# SPDX-License-Identifier: BSD-3-Clause
"""CPU kernels through ctypes, without XLA: memory, poison and thread count are the caller's."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import numpy as np
from stablemd.oeq import ContractionProblem, Problem, make_contraction_kernel, make_kernel

ORDERS = ("forward", "backward", "double_backward")
FAMILIES = ("tp", "conv", "contraction")
_TENSORS = ("L1", "L2", "W", "L3_grad", "L1_dgrad", "L2_dgrad", "W_dgrad")
_RESULTS = ("L3", "L1_grad", "L2_grad", "W_grad", "L3_dgrad")
_POINTERS = (*_TENSORS, *_RESULTS, "receivers", "senders", "sender_order")


class _Call(ctypes.Structure):
    """OeqCall of oeq_call.h."""

    _fields_ = (
        [("products", ctypes.c_int64), ("nodes", ctypes.c_int64)]
        + [(name, ctypes.c_void_p) for name in _POINTERS]
        + [("sender_order_count", ctypes.c_int64), ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_int64)]
        + [("channels", ctypes.c_int64), ("reserved", ctypes.c_int64 * 8)]
    )


def _find_library() -> Path:
    given = os.environ.get("STABLEMD_OEQ_DRIVER")
    root = Path(__file__).parents[2]
    built = root.glob("build/**/liboeq_kernel_driver.so")
    # Those of sanitizers cannot be loaded into a plain Python.
    found = [Path(given)] if given else [path for path in built if not {"asan", "tsan"} & set(path.parts)]
    if not found or not found[0].exists():
        raise FileNotFoundError(
            "liboeq_kernel_driver.so not found: build with STABLEMD_TESTS=ON or set STABLEMD_OEQ_DRIVER"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = ctypes.CDLL(str(_find_library()))
        _library.driver_open.restype = ctypes.c_void_p
    return _library


_GUARD = 64  # numbers before and after an output that must stay NaN
_ALIGNMENT = 64  # bytes, as XLA aligns its buffers


def _aligned(count: int, dtype: np.dtype) -> np.ndarray:
    memory = np.empty(count + _ALIGNMENT // dtype.itemsize, dtype)
    start = -memory.ctypes.data % _ALIGNMENT // dtype.itemsize
    return memory[start : start + count]


def aligned_copy(array: np.ndarray, dtype: str) -> np.ndarray:
    copy = _aligned(array.size, np.dtype(dtype)).reshape(array.shape)
    copy[...] = array
    return copy


class Output:
    """An output full of NaN, between guards that tell of writes outside it."""

    def __init__(self, shape: tuple[int, ...], dtype: str):
        count = int(np.prod(shape))
        self._memory = _aligned(count + 2 * _GUARD, np.dtype(dtype))
        self._memory[:] = np.nan
        self.array = self._memory[_GUARD : _GUARD + count].reshape(shape)

    def is_guarded(self) -> bool:
        return bool(np.isnan(self._memory[:_GUARD]).all() and np.isnan(self._memory[-_GUARD:]).all())


@cache
def _open(payload: str, family: str, order: str, generic: int) -> int:
    """A kernel's handle; compiled once, and then it stays: tests run with all earlier kernels loaded."""
    error = ctypes.create_string_buffer(1 << 16)
    numbers = FAMILIES.index(family), ORDERS.index(order), int(generic)
    handle = library().driver_open(payload.encode(), *numbers, error, len(error))
    if not handle:
        raise RuntimeError(error.value.decode())
    return handle


def compile_source(text: str, stop_after: float = -1, limit: float = 600) -> None:
    """Runs the host compiler; RuntimeError if it fails, after `limit` seconds or as at the end of a process."""
    error = ctypes.create_string_buffer(1 << 16)
    milliseconds = int(1000 * stop_after), int(1000 * limit)
    if library().driver_compile(text.encode(), *milliseconds, error, len(error)):
        raise RuntimeError(error.value.decode())


def _run(handle: int, call: _Call, threads: int) -> None:
    error = ctypes.create_string_buffer(1 << 12)
    if library().driver_run(ctypes.c_void_p(handle), ctypes.byref(call), threads, error, len(error)):
        raise RuntimeError(error.value.decode())


def open_contraction(payload: str, order: str, unit: int = 0) -> int:
    """A kernel's handle; ``unit`` 0 is the fastest. RuntimeError for a bad payload or a unit that is not there."""
    return _open(payload, "contraction", order, unit)


class NativeContraction:
    """One order of a symmetric contraction."""

    def __init__(self, problem: ContractionProblem, order: str, unit: int = 0):
        self.problem, self.order = problem, order
        self._handle = open_contraction(make_contraction_kernel(problem).payload, order, unit)

    def __call__(self, x: np.ndarray, w: np.ndarray, species: np.ndarray, *z: np.ndarray, threads=1) -> np.ndarray:
        """Runs the op once into poisoned memory."""
        arrays = [aligned_copy(a, self.problem.dtype) for a in (x, w, *z)]
        backward = self.order == "backward"
        output = Output(x.shape if backward else (len(x), self.problem.outputs, x.shape[2]), self.problem.dtype)
        call = _Call(products=len(x), nodes=len(w), channels=x.shape[2], receivers=species.ctypes.data)
        for name, array in zip(("L1", "W", "L3_grad"), arrays, strict=False):
            setattr(call, name, array.ctypes.data)
        setattr(call, "L1_grad" if backward else "L3", output.array.ctypes.data)
        _run(self._handle, call, threads)
        assert output.is_guarded(), "written outside its memory"
        return output.array


class NativeKernel:
    """One op of one problem; `generic`: the kernel for machines without a compiler."""

    def __init__(self, problem: Problem, family: str, order: str, generic: bool = False, payload: str | None = None):
        self.problem, self.family, self.order = problem, family, order
        self._handle = _open(payload or make_kernel(problem, family).payload, family, order, generic)

    def prepare(self, *operands, receivers=None, senders=None, sender_order=None, threads: int = 1):
        """Operands in the op's order (see OeqCall); returns a function that runs the op again in the same memory."""
        names = _POINTERS[: len(operands)]
        arrays = [aligned_copy(np.asarray(o), self.problem.dtype) for o in operands]
        x, y, w = arrays[:3]
        call = _Call(products=len(y), **{n: a.ctypes.data for n, a in zip(names, arrays, strict=True)})
        graph = (receivers, senders, sender_order)
        if self.family == "conv":
            call.nodes = len(x)
            call.receivers, call.senders = receivers.ctypes.data, senders.ctypes.data
        if sender_order is not None:
            call.sender_order, call.sender_order_count = sender_order.ctypes.data, len(sender_order)
        outputs = self._outputs(x, y, w)
        for name, output in outputs.items():
            setattr(call, name, output.array.ctypes.data)

        def run(_keep_alive=(arrays, graph)) -> dict[str, Output]:
            _run(self._handle, call, threads)
            return outputs

        return run

    def __call__(self, *operands, **graph) -> tuple[np.ndarray, ...]:
        """Runs the op once into poisoned memory."""
        outputs = self.prepare(*operands, **graph)()
        for name, output in outputs.items():
            assert output.is_guarded(), f"{name}: written outside its memory"
        return tuple(output.array for output in outputs.values())

    def _outputs(self, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> dict[str, Output]:
        out_shape = (len(x), self.problem.irreps_out.dim)
        gradients = {"L1_grad": x.shape, "L2_grad": y.shape, "W_grad": w.shape}
        shapes = {
            "forward": {"L3": out_shape},
            "backward": gradients,
            "double_backward": {**gradients, "L3_dgrad": out_shape},
        }[self.order]
        return {name: Output(shape, self.problem.dtype) for name, shape in shapes.items()}


def source(problem: Problem, family: str, order: str) -> str:
    """The generated C++."""
    text = ctypes.create_string_buffer(1 << 22)
    arguments = make_kernel(problem, family).payload.encode(), FAMILIES.index(family), ORDERS.index(order)
    if library().driver_source(*arguments, text, len(text)) < 0:
        raise RuntimeError(text.value.decode())
    return text.value.decode()
