# SPDX-License-Identifier: BSD-3-Clause
"""Speed of the generated CPU convolution: against plain JAX and against the core's vector peak.

MACE's second layer: 128x0e+128x1o times spherical harmonics l <= 3, 10 uvu paths, float32; 2,000 nodes in a periodic
box in space order, about 60,000 edges (pairs within a cutoff). Prints one line per measurement and ends with
``speedup=<times> peak=<fraction>`` (forward + backward; best of repeats that alternate between all that is measured).
"of peak" counts the operations of :func:`flops` against fused multiply-adds in registers; "of memory" compares with the
time that operands and results (:func:`traffic`) alone would take at the rate of a plain loop in the same run.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "oeq"))


def random_graph(nodes: int, neighbours: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Receivers (sorted) and senders, int32, of points in a periodic cube, numbered cell by cell."""
    points = rng.random((nodes, 3))
    cells = np.floor(points * round((nodes / 8) ** (1 / 3))).astype(int)
    points = points[np.lexsort(cells.T)]
    cutoff = (neighbours * 3 / (4 * np.pi * nodes)) ** (1 / 3)
    difference = points[:, None] - points[None]
    difference -= np.round(difference)
    near = (difference**2).sum(-1) < cutoff**2
    np.fill_diagonal(near, False)
    receivers, senders = np.nonzero(near)
    return receivers.astype(np.int32), senders.astype(np.int32)


def mace_problem(layout: str, channels: int):
    from stablemd.oeq import Irreps, make_problem

    in1, in2 = Irreps(f"{channels}x0e+{channels}x1o"), Irreps("0e+1o+2e+3o")
    out, paths = [], []
    for i, a in enumerate(in1):
        for j, b in enumerate(in2):
            for degree in range(abs(a.l - b.l), min(a.l + b.l, 3) + 1):
                if a.p * b.p == (-1) ** degree:  # MACE keeps what couples to the next spherical harmonics
                    paths.append((degree, i, j))
                    out.append(f"{channels}x{degree}{'e' if degree % 2 == 0 else 'o'}")
    order = sorted(range(len(paths)), key=lambda p: (paths[p][0], p))
    instructions = [(paths[p][1], paths[p][2], k, "uvu", True) for k, p in enumerate(order)]
    return make_problem(in1, in2, "+".join(out[p] for p in order), instructions, layout=layout)


def flops(problem, edges: int) -> tuple[float, float]:
    """Additions and multiplications per channel that the couplings need, times channels and edges; forward, backward.

    Per path with d1 x d3 coupling entries: forward z = w x and the entries; backward the entries twice (towards x and
    towards y), z = w x, dx += w t and dw += x t. Making the entries from y and summing over channels do not count.
    """
    from stablemd.oeq import real_clebsch_gordan

    forward = backward = 0
    for p in problem.instructions:
        a, b, c = problem.irreps_in1[p.i_in1], problem.irreps_in2[p.i_in2], problem.irreps_out[p.i_out]
        entries = int((np.abs(real_clebsch_gordan(a.l, b.l, c.l)).sum(1) > 0).sum())
        forward += a.mul * (2 * entries + a.dim)
        backward += a.mul * (4 * entries + 5 * a.dim)
    return float(forward * edges), float(backward * edges)


def traffic(problem, nodes: int, edges: int) -> dict[str, tuple[int, int]]:
    """Bytes of operands, each read once, and of results, each written once."""
    x, z = nodes * problem.irreps_in1.dim, nodes * problem.irreps_out.dim
    edge = edges * (problem.irreps_in2.dim + problem.weight_numel)
    return {"forward": (4 * (x + edge), 4 * z), "backward": (4 * (x + edge + z), 4 * (x + edge))}


class Machine:
    """Peaks of one core, by peak.cc."""

    def __init__(self, stream_bytes: int = 1 << 28) -> None:
        self._library = _compile_peak()
        self._library.fma_peak.restype = self._library.stream.restype = ctypes.c_double
        self._library.stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]
        self._sink, self._bytes = ctypes.c_float(), stream_bytes
        memory = [np.ones(stream_bytes + 64, np.uint8) for _ in range(2)]
        self._memory, self._places = memory, [m.ctypes.data + -m.ctypes.data % 64 for m in memory]

    def flops(self) -> float:
        """GFLOP/s of fused multiply-adds in registers."""
        return self._library.fma_peak(ctypes.c_long(4_000_000), ctypes.byref(self._sink))

    def stream(self, write: bool) -> float:
        """GB/s of reading, or of reading and writing as much."""
        source, target = self._places
        return self._library.stream(source, target if write else None, self._bytes, ctypes.byref(self._sink))


def _compile_peak() -> ctypes.CDLL:
    folder = tempfile.mkdtemp()
    target = os.path.join(folder, "peak.so")
    source = Path(__file__).with_name("peak.cc")
    compiler = os.environ.get("CXX", "c++").split()
    subprocess.run([*compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", target, str(source)], check=True)
    return ctypes.CDLL(target)


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    call()
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=("mul_ir", "ir_mul"), default="ir_mul")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--neighbours", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--skip-jax", action="store_true")
    arguments = parser.parse_args()

    from native import NativeKernel

    problem = mace_problem(arguments.layout, arguments.channels)
    rng = np.random.default_rng(0)
    receivers, senders = random_graph(arguments.nodes, arguments.neighbours, rng)
    edges = len(senders)
    shapes = (
        (arguments.nodes, problem.irreps_in1.dim),
        (edges, problem.irreps_in2.dim),
        (edges, problem.weight_numel),
        (arguments.nodes, problem.irreps_out.dim),
    )
    x, y, w, z = (rng.standard_normal(shape, np.float32) for shape in shapes)
    order = np.argsort(senders, kind="stable").astype(np.int32)
    print(f"{arguments.nodes} nodes, {edges} edges, {problem.irreps_in1} -> {problem.irreps_out.dim}, {problem.layout}")

    forward, backward = NativeKernel(problem, "conv", "forward"), NativeKernel(problem, "conv", "backward")
    graph = {"receivers": receivers, "senders": senders, "threads": arguments.threads}
    run_forward = forward.prepare(x, y, w, **graph)
    run_backward = backward.prepare(x, y, w, z, sender_order=order, **graph)
    machine = Machine()
    run_jax = None if arguments.skip_jax else jax_forward_backward(problem, x, y, w, z, receivers, senders)

    # One thread: time that it ran, as for the peak, so that other processes on a busy machine count less.
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    best = {"forward": np.inf, "backward": np.inf, "jax": np.inf, "peak": 0.0, "read": 0.0, "copy": 0.0}
    for _ in range(arguments.repeats):
        best["peak"] = max(best["peak"], machine.flops())
        best["read"] = max(best["read"], machine.stream(write=False))
        best["copy"] = max(best["copy"], machine.stream(write=True))
        best["forward"] = min(best["forward"], seconds(run_forward, clock))
        best["backward"] = min(best["backward"], seconds(run_backward, clock))
        if run_jax:
            best["jax"] = min(best["jax"], seconds(run_jax, time.process_time))
    work = flops(problem, edges)
    print(
        f"peak      {best['peak']:7.1f} GFLOP/s, memory: {best['read']:.1f} GB/s read, {best['copy']:.1f} read + write"
    )
    for name, count in zip(("forward", "backward"), work, strict=True):
        rate = count / best[name] / 1e9
        read, written = traffic(problem, arguments.nodes, edges)[name]
        copied = 2 * min(read, written)
        memory = (copied / best["copy"] + (read + written - copied) / best["read"]) / 1e9
        print(f"{name:9s} {best[name] * 1e3:7.2f} ms {rate:7.1f} GFLOP/s {rate / best['peak']:.2f} of peak, "
              f"{memory / best[name]:.2f} of memory ({memory * 1e3:.2f} ms)")  # fmt: skip
    both = best["forward"] + best["backward"]
    print(f"JAX       {best['jax'] * 1e3:7.2f} ms forward + backward")
    print(f"speedup={best['jax'] / both:.2f} peak={sum(work) / both / 1e9 / best['peak']:.3f}")


def jax_forward_backward(problem, *operands):
    import jax
    from stablemd.oeq import reference

    *floats, receivers, senders = operands
    x, y, w, z = map(jax.device_put, floats)

    @jax.jit
    def both(x, y, w, z):
        out, pull = jax.vjp(lambda *a: reference.convolution(problem, *a, receivers, senders), x, y, w)
        return out, pull(z)

    jax.block_until_ready(both(x, y, w, z))
    return lambda: jax.block_until_ready(both(x, y, w, z))


if __name__ == "__main__":
    main()
