# SPDX-License-Identifier: BSD-3-Clause
"""What a tensor product computes, independent of any device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from typing import Any, Literal

import numpy as np

from ._irreps import Irreps

WEIGHT_TILE = 32  # channels in one tile of the order in which OpenEquivariance's kernels read weights


@dataclass(frozen=True)
class Instruction:
    """One path: ``out[i_out] += path_weight * w3j(in1[i_in1], in2[i_in2])``, weighted per channel.

    ``uvu`` weights have shape [mul_in1, mul_in2], ``uvw`` weights [mul_in1, mul_in2, mul_out].
    """

    i_in1: int
    i_in2: int
    i_out: int
    mode: Literal["uvu", "uvw"]
    has_weight: bool
    path_weight: float


@dataclass(frozen=True)
class Problem:
    """A tensor product of irreps with fully normalised instructions; make one with :func:`make_problem`."""

    irreps_in1: Irreps
    irreps_in2: Irreps
    irreps_out: Irreps
    instructions: tuple[Instruction, ...]
    shared_weights: bool
    dtype: str
    layout: str

    def path_shape(self, path: Instruction) -> tuple[int, ...]:
        """Shape of the path's weights, in e3nn's order."""
        shape = (self.irreps_in1[path.i_in1].mul, self.irreps_in2[path.i_in2].mul)
        return shape if path.mode == "uvu" else (*shape, self.irreps_out[path.i_out].mul)

    @cached_property
    def weight_slices(self) -> tuple[slice | None, ...]:
        """Where each path's weights lie in a row of W (e3nn's order); None for a path without weights."""
        slices: list[slice | None] = []
        start = 0
        for path in self.instructions:
            size = prod(self.path_shape(path)) if path.has_weight else 0
            slices.append(slice(start, start + size) if path.has_weight else None)
            start += size
        return tuple(slices)

    @cached_property
    def weight_numel(self) -> int:
        """Length of a row of W."""
        return sum(s.stop - s.start for s in self.weight_slices if s is not None)

    @cached_property
    def oeq_weight_order(self) -> np.ndarray | None:
        """Index of the e3nn weight at each place of OpenEquivariance's order, int32 [weight_numel]; None if equal.

        Its kernels cut channels into tiles of 32 and read each tile as [v, u] or [v, u, w].
        """
        pieces = [np.zeros(0, np.int32)]
        for path, where in zip(self.instructions, self.weight_slices, strict=True):
            if where is None:
                continue
            shape = self.path_shape(path)
            index = np.arange(where.start, where.stop, dtype=np.int32).reshape(*shape, *[1] * (3 - len(shape)))
            starts = [range(0, length, WEIGHT_TILE) for length in index.shape]
            for u in starts[0]:
                for v in starts[1]:
                    for w in starts[2]:
                        tile = index[u : u + WEIGHT_TILE, v : v + WEIGHT_TILE, w : w + WEIGHT_TILE]
                        pieces.append(tile.swapaxes(0, 1).ravel())
        order = np.concatenate(pieces)
        return None if np.array_equal(order, np.arange(len(order))) else order

    def to_json(self, weight_order: str) -> dict[str, Any]:
        """The payload's key ``problem``."""
        return {
            "irreps_in1": str(self.irreps_in1),
            "irreps_in2": str(self.irreps_in2),
            "irreps_out": str(self.irreps_out),
            "instructions": [
                [p.i_in1, p.i_in2, p.i_out, p.mode, p.has_weight, p.path_weight] for p in self.instructions
            ],
            "irrep_dtype": self.dtype,
            "weight_dtype": self.dtype,
            "layout": self.layout,
            "shared_weights": self.shared_weights,
            "weight_order": weight_order,
        }


def _check_path(number: int, path: Instruction, in1: Irreps, in2: Irreps, out: Irreps) -> None:
    where = f"instruction {number}"
    for name, index, irreps in (("i_in1", path.i_in1, in1), ("i_in2", path.i_in2, in2), ("i_out", path.i_out, out)):
        if not 0 <= index < len(irreps):
            raise ValueError(f"{where}: {name} = {index}, but there are {len(irreps)} blocks")
    a, b, c = in1[path.i_in1], in2[path.i_in2], out[path.i_out]
    if path.mode not in ("uvu", "uvw"):
        raise ValueError(f"{where}: mode {path.mode!r} is not supported; use 'uvu' or 'uvw'")
    if a.p * b.p != c.p or not abs(a.l - b.l) <= c.l <= a.l + b.l:
        raise ValueError(f"{where}: {a} and {b} do not couple to {c}")
    if path.mode == "uvu" and a.mul != c.mul:
        raise ValueError(f"{where}: a uvu path needs equal channels, not {a.mul} in and {c.mul} out")
    if path.mode == "uvw" and not path.has_weight:
        raise ValueError(f"{where}: a uvw path needs weights")


def _path_weight(path: Instruction, paths: list[Instruction], in1: Irreps, in2: Irreps, out: Irreps,
                 irrep_normalization: str, path_normalization: str) -> float:  # fmt: skip
    """e3nn's normalisation: outputs have unit variance (``component``) or norm for inputs and weights that have."""

    def elements(p: Instruction) -> int:
        return in2[p.i_in2].mul * (in1[p.i_in1].mul if p.mode == "uvw" else 1)

    a, b, c = in1[path.i_in1], in2[path.i_in2], out[path.i_out]
    square = {"component": c.dim, "norm": a.dim * b.dim, "none": 1}[irrep_normalization]
    same_output = [p for p in paths if p.i_out == path.i_out]
    count = {
        "element": sum(map(elements, same_output)),
        "path": elements(path) * len(same_output),
        "none": 1,
    }[path_normalization]
    return sqrt(square * path.path_weight / max(count, 1))


def make_problem(
    irreps_in1: str | Irreps,
    irreps_in2: str | Irreps,
    irreps_out: str | Irreps,
    instructions: list[tuple],
    *,
    shared_weights: bool = False,
    irrep_normalization: Literal["component", "norm", "none"] = "component",
    path_normalization: Literal["element", "path", "none"] = "element",
    dtype: Any = np.float32,
    layout: Literal["mul_ir", "ir_mul"] = "mul_ir",
) -> Problem:
    """Checks and normalises a tensor product given as to e3nn's ``TensorProduct``.

    ``instructions``: tuples ``(i_in1, i_in2, i_out, mode, has_weight[, path_weight])`` with mode ``"uvu"`` or
    ``"uvw"``. Raises ValueError with the number of the instruction that is wrong.
    """
    in1, in2, out = Irreps(irreps_in1), Irreps(irreps_in2), Irreps(irreps_out)
    for name, value, allowed in (
        ("irrep_normalization", irrep_normalization, ("component", "norm", "none")),
        ("path_normalization", path_normalization, ("element", "path", "none")),
        ("layout", layout, ("mul_ir", "ir_mul")),
        ("dtype", np.dtype(dtype).name, ("float32", "float64")),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
    paths = []
    for number, entry in enumerate(instructions):
        if len(entry) not in (5, 6):
            raise ValueError(f"instruction {number}: expected (i_in1, i_in2, i_out, mode, has_weight[, path_weight])")
        path = Instruction(*entry[:3], entry[3], bool(entry[4]), float(entry[5]) if len(entry) == 6 else 1.0)
        _check_path(number, path, in1, in2, out)
        paths.append(path)
    normalised = tuple(
        Instruction(
            p.i_in1, p.i_in2, p.i_out, p.mode, p.has_weight,
            _path_weight(p, paths, in1, in2, out, irrep_normalization, path_normalization),
        )
        for p in paths
    )  # fmt: skip
    return Problem(in1, in2, out, normalised, bool(shared_weights), np.dtype(dtype).name, layout)
