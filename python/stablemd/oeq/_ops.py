# SPDX-License-Identifier: BSD-3-Clause
"""The ops that models call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ._payload import make_kernel
from ._primitives import forward_p
from ._problem import Problem


class _Op:
    _family: Any

    def __init__(self, problem: Problem, gpu: str | None, deterministic: bool) -> None:
        self.problem = problem
        self.kernel = make_kernel(problem, self._family, gpu, deterministic)
        self._weight_order = problem.oeq_weight_order if gpu is not None else None

    def _check(self, name: str, array: jax.Array, shape: tuple[int, ...]) -> None:
        if array.shape != shape or array.dtype != self.problem.dtype:
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, must be {self.problem.dtype}{list(shape)}")

    def _weights(self, w: jax.Array, products: int) -> jax.Array:
        numel = self.problem.weight_numel
        self._check("w", w, (numel,) if self.problem.shared_weights else (products, numel))
        return w if self._weight_order is None else jnp.take(w, self._weight_order, axis=-1)


class TensorProduct(_Op):
    """Tensor product of rows: ``op(x, y, w)``, differentiable to any order.

    ``gpu``: name of the GPU (e.g. ``"h200"``) whose CUDA kernel the payload carries beside the problem from which CPU
    kernels are made; needs the package ``openequivariance``.
    """

    _family = "tp"

    def __init__(self, problem: Problem, *, gpu: str | None = None) -> None:
        super().__init__(problem, gpu, deterministic=False)

    def __call__(self, x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
        """``x`` [rows, in1], ``y`` [rows, in2], ``w`` [rows, weight_numel] or [weight_numel] if shared → [rows, out].

        All of the problem's dtype; weights in e3nn's order. Raises ValueError for other shapes or dtypes.
        """
        rows = x.shape[0]
        self._check("x", x, (rows, self.problem.irreps_in1.dim))
        self._check("y", y, (rows, self.problem.irreps_in2.dim))
        return forward_p.bind(x, y, self._weights(w, rows), kernel=self.kernel)


def sender_order(senders: jax.Array) -> jax.Array:
    """int32 permutation that sorts edges by sender, stable: computed once per graph, used by every backward pass."""
    return jnp.argsort(senders, stable=True).astype(jnp.int32)


class TensorProductConv(_Op):
    """Convolution over a graph: products of senders' features and edges, summed at the receivers.

    Derivatives of any order work. ``gpu``: as for :class:`TensorProduct`; ``deterministic``: the CUDA kernel's variant
    without atomics, which needs ``receivers`` sorted and ``order`` given. CPU results never depend on threads.
    """

    _family = "conv"

    def __init__(self, problem: Problem, *, gpu: str | None = None, deterministic: bool = False) -> None:
        super().__init__(problem, gpu, deterministic)
        self.deterministic = deterministic

    def __call__(
        self,
        x: jax.Array,
        y: jax.Array,
        w: jax.Array,
        receivers: jax.Array,
        senders: jax.Array,
        order: jax.Array | None = None,
    ) -> jax.Array:
        """``x`` [nodes, in1], ``y`` [edges, in2], ``w`` [edges, weight_numel] or [weight_numel] → [nodes, out].

        ``receivers``, ``senders``: int32 [edges]; receivers ascending is fastest. ``order``: :func:`sender_order` of
        the senders; without it each backward pass sorts by itself. Raises ValueError for other shapes or dtypes.
        """
        edges = y.shape[0]
        self._check("x", x, (x.shape[0], self.problem.irreps_in1.dim))
        self._check("y", y, (edges, self.problem.irreps_in2.dim))
        for name, index in (("receivers", receivers), ("senders", senders), ("order", order)):
            if index is not None and (index.shape != (edges,) or index.dtype != jnp.int32):
                raise ValueError(f"{name} is {index.dtype}{list(index.shape)}, must be int32[{edges}]")
        if order is None and self.deterministic:
            raise ValueError("a deterministic convolution needs order=sender_order(senders)")
        workspace = jnp.zeros((self.kernel.workspace_size,), jnp.uint8)
        graph = (receivers, senders, workspace, jnp.zeros((1,), jnp.int32) if order is None else order)
        return forward_p.bind(x, y, self._weights(w, edges), *graph, kernel=self.kernel)
