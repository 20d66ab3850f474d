# SPDX-License-Identifier: BSD-3-Clause
"""Tensor products, graphs and reference derivatives for the tests of the ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from stablemd.oeq import Irreps, Problem, make_problem, real_clebsch_gordan, reference

#: Largest error relative to the largest number of an array.
TOLERANCE = {"float64": 1e-12, "float32": 2e-6}


def all_paths(in1: str, in2: str, lmax: int, mode: str = "uvu", out_channels: int = 0, **options) -> Problem:
    """Every path up to degree lmax, each into a block of its own."""
    a, b = Irreps(in1), Irreps(in2)
    out, instructions = [], []
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            for degree in range(abs(x.l - y.l), min(x.l + y.l, lmax) + 1):
                instructions.append((i, j, len(out), mode, True))
                out.append(f"{out_channels or x.mul}x{degree}{'e' if x.p * y.p == 1 else 'o'}")
    return make_problem(a, b, "+".join(out), instructions, **options)


@dataclass
class Graph:
    nodes: int
    receivers: np.ndarray
    senders: np.ndarray
    order: np.ndarray | None = None  #: of the senders, if given to the kernel

    @property
    def operands(self) -> dict[str, np.ndarray | None]:
        return {"receivers": self.receivers, "senders": self.senders, "sender_order": self.order}


def random_graph(nodes: int, edges: int, rng: np.random.Generator, ordered: bool = True, sort: bool = True) -> Graph:
    """Random edges; with few edges some nodes are isolated."""
    receivers = rng.integers(0, nodes, edges).astype(np.int32)
    senders = rng.integers(0, nodes, edges).astype(np.int32)
    if sort:
        receivers.sort()
    return Graph(nodes, receivers, senders, np.argsort(senders, kind="stable").astype(np.int32) if ordered else None)


def hub_graph(nodes: int, hub_edges: int, rng: np.random.Generator, hub_sends: bool) -> Graph:
    """One node with many edges, in or out, between others with one each."""
    hub = np.full(hub_edges, nodes // 2, np.int32)
    others = rng.integers(0, nodes, hub_edges).astype(np.int32)
    receivers, senders = (others, hub) if hub_sends else (hub, others)
    ring = np.arange(nodes, dtype=np.int32)
    receivers, senders = np.append(receivers, ring), np.append(senders, np.roll(ring, 1))
    by_receiver = np.argsort(receivers, kind="stable")
    receivers, senders = receivers[by_receiver], senders[by_receiver]
    return Graph(nodes, receivers, senders, np.argsort(senders, kind="stable").astype(np.int32))


@dataclass
class Case:
    """Random operands of one op, rounded to the problem's dtype, and the reference results in float64."""

    problem: Problem
    graph: Graph | None  #: None: a tensor product of `rows` rows
    rows: int
    rng: np.random.Generator
    operands: tuple[np.ndarray, ...] = field(init=False)

    def __post_init__(self):
        p = self.problem
        nodes = self.graph.nodes if self.graph else self.rows
        products = len(self.graph.senders) if self.graph else self.rows
        weights = (p.weight_numel,) if p.shared_weights else (products, p.weight_numel)
        x, y, w, z = (nodes, p.irreps_in1.dim), (products, p.irreps_in2.dim), weights, (nodes, p.irreps_out.dim)
        self.operands = tuple(self.rng.standard_normal(shape).astype(p.dtype) for shape in (x, y, w, z, x, y, w))

    @property
    def family(self) -> str:
        return "conv" if self.graph else "tp"

    @property
    def op(self) -> Callable:
        """The op in plain JAX."""
        if self.graph is None:
            return lambda x, y, w: reference.tensor_product(self.problem, x, y, w)
        graph = self.graph
        return lambda x, y, w: reference.convolution(self.problem, x, y, w, graph.receivers, graph.senders)

    def jax_reference(self, order: str) -> tuple[np.ndarray, ...]:
        """Results by plain JAX and its own differentiation: slow to trace, so for small problems."""
        x, y, w, z, *varied = (jnp.asarray(o, jnp.float64) for o in self.operands)

        def backward(x, y, w, z):
            return jax.vjp(self.op, x, y, w)[1](z)

        @jax.jit
        def results(x, y, w, z, *varied):
            if order == "forward":
                return (self.op(x, y, w),)
            if order == "backward":
                return backward(x, y, w, z)
            return jax.vjp(backward, x, y, w, z)[1](varied)

        return tuple(map(np.asarray, results(x, y, w, z, *varied)))

    def reference(self, order: str) -> tuple[np.ndarray, ...]:
        """Results in float64 by NumPy from the multilinear form; test_kernels.py holds it against jax_reference."""
        x, y, w, z, xd, yd, wd = (o.astype(np.float64) for o in self.operands)
        if order == "forward":
            return (self._derivative("z", x=x, y=y, w=w),)
        if order == "backward":
            return tuple(self._derivative(name, **{"x": x, "y": y, "w": w, "z": z}) for name in "xyw")
        varied = {"x": {"x": xd, "y": y, "w": w}, "y": {"x": x, "y": yd, "w": w}, "w": {"x": x, "y": y, "w": wd}}
        return tuple(
            sum(
                self._derivative(name, **factors, z=z, varied=which)
                for which, factors in varied.items()
                if which != name
            )
            for name in "xywz"
        )

    def _derivative(self, name: str, varied: str = "", **factors: np.ndarray) -> np.ndarray:
        """Derivative of <z, f(x, y, w)> with respect to one factor. `varied` "w": paths without weights vanish."""
        p, graph = self.problem, self.graph
        rows = {"x": graph.senders, "z": graph.receivers} if graph else {}
        factors = {n: f[rows[n]] if n in rows else f for n, f in factors.items() if n != name}
        irreps = {"x": p.irreps_in1, "y": p.irreps_in2, "z": p.irreps_out}
        shapes = dict(zip("xywz", (o.shape for o in self.operands[:4]), strict=True))
        products = self.operands[1].shape[0]
        length = products if name in "xyz" or not p.shared_weights else None
        total = np.zeros(shapes[name][-1:] if length is None else (length, shapes[name][-1]))
        split = {n: _blocks(f, irreps[n], p.layout) for n, f in factors.items() if n != "w"}
        places = _blocks(np.arange(shapes[name][-1]), irreps[name], p.layout) if name != "w" else None
        for path, where in zip(p.instructions, p.weight_slices, strict=True):
            if where is None and "w" in (name, varied):
                continue
            out = "u" if path.mode == "uvu" else "w"
            edge = "" if p.shared_weights else "e"
            labels = {"x": "eui", "y": "evj", "z": f"e{out}k", "w": edge + ("uv" if path.mode == "uvu" else "uvw")}
            block = {"x": path.i_in1, "y": path.i_in2, "z": path.i_out}
            degrees = (p.irreps_in1[path.i_in1].l, p.irreps_in2[path.i_in2].l, p.irreps_out[path.i_out].l)
            arrays, indices = [real_clebsch_gordan(*degrees) * path.path_weight], ["ijk"]
            for n in factors:
                if n == "w" and where is None:
                    arrays.append(np.ones(p.path_shape(path)))
                    indices.append("uv")
                    continue
                part = factors[n][..., where].reshape(*factors[n].shape[:-1], *p.path_shape(path)) if n == "w" else None
                arrays.append(split[n][block[n]] if part is None else part)
                indices.append(labels[n])
            term = np.einsum(f"{','.join(indices)}->{labels[name]}", *arrays, optimize=True)
            place = np.arange(where.start, where.stop) if name == "w" else places[block[name]].ravel()
            total[..., place] += term.reshape(*total.shape[:-1], place.size)
        if name not in rows:
            return total
        summed = np.zeros(shapes[name])
        np.add.at(summed, rows[name], total)
        return summed


def _blocks(rows: np.ndarray, irreps: Irreps, layout: str) -> list[np.ndarray]:
    """Blocks [..., mul, dim] of rows."""
    blocks = []
    for block, where in zip(irreps, irreps.slices(), strict=True):
        shape = (block.mul, block.dim) if layout == "mul_ir" else (block.dim, block.mul)
        part = rows[..., where].reshape(*rows.shape[:-1], *shape)
        blocks.append(part if layout == "mul_ir" else part.swapaxes(-1, -2))
    return blocks


def relative_error(value: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest expected number; NaN anywhere is infinite."""
    assert value.shape == expected.shape
    if not value.size:
        return 0.0
    difference = np.abs(value.astype(np.float64) - expected)
    if np.isnan(difference).any():
        return np.inf
    scale = np.abs(expected).max()
    return float(difference.max() / scale) if scale else float(difference.max())
