# SPDX-License-Identifier: BSD-3-Clause
"""The ops in plain JAX: what kernels are tested and timed against. Differentiable to any order by JAX itself."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ._coupling import real_clebsch_gordan
from ._irreps import Irreps
from ._problem import Problem

if TYPE_CHECKING:
    from ._contraction import ContractionProblem


def _split(row: jax.Array, irreps: Irreps, layout: str) -> list[jax.Array]:
    """Blocks [..., mul, dim] of rows [..., irreps.dim]."""
    blocks = []
    for block, where in zip(irreps, irreps.slices(), strict=True):
        part = row[..., where]
        if layout == "mul_ir":
            blocks.append(part.reshape(*row.shape[:-1], block.mul, block.dim))
        else:
            blocks.append(part.reshape(*row.shape[:-1], block.dim, block.mul).swapaxes(-1, -2))
    return blocks


def _join(blocks: list[jax.Array], layout: str) -> jax.Array:
    if layout == "ir_mul":
        blocks = [block.swapaxes(-1, -2) for block in blocks]
    return jnp.concatenate([block.reshape(*block.shape[:-2], -1) for block in blocks], axis=-1)


def tensor_product(problem: Problem, x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
    """``x`` [rows, in1], ``y`` [rows, in2], ``w`` [rows, weight_numel], or [weight_numel] if shared → [rows, out].

    Weights in e3nn's order. Computes in the operands' dtype.
    """
    a = _split(x, problem.irreps_in1, problem.layout)
    b = _split(y, problem.irreps_in2, problem.layout)
    out = [jnp.zeros((x.shape[0], block.mul, block.dim), x.dtype) for block in problem.irreps_out]
    rows = "" if problem.shared_weights else "e"
    for path, where in zip(problem.instructions, problem.weight_slices, strict=True):
        degrees = (problem.irreps_in1[path.i_in1].l, problem.irreps_in2[path.i_in2].l, problem.irreps_out[path.i_out].l)
        coupling = jnp.asarray(real_clebsch_gordan(*degrees) * path.path_weight, x.dtype)
        matrix = jnp.einsum("ijk,evj->evik", coupling, b[path.i_in2])
        if where is None:
            term = jnp.einsum("eui,evik->euk", a[path.i_in1], matrix)
        else:
            weights = w[..., where].reshape(*w.shape[:-1], *problem.path_shape(path))
            if path.mode == "uvu":
                term = jnp.einsum(f"eui,evik,{rows}uv->euk", a[path.i_in1], matrix, weights)
            else:
                term = jnp.einsum(f"eui,evik,{rows}uvw->ewk", a[path.i_in1], matrix, weights)
        out[path.i_out] = out[path.i_out] + term
    if not out:
        return jnp.zeros((x.shape[0], 0), x.dtype)
    return _join(out, problem.layout)


def convolution(
    problem: Problem, x: jax.Array, y: jax.Array, w: jax.Array, receivers: jax.Array, senders: jax.Array
) -> jax.Array:
    """``x`` [nodes, in1], ``y`` [edges, in2], ``w`` [edges, weight_numel] or [weight_numel] → [nodes, out].

    Row n is the sum over edges with ``receivers == n`` of the product of ``x[senders]`` and ``y``.
    """
    messages = tensor_product(problem, x[senders], y, w)
    return jax.ops.segment_sum(messages, receivers, num_segments=x.shape[0])


def contraction(problem: ContractionProblem, features: jax.Array, weights: jax.Array, species: jax.Array) -> jax.Array:
    """``features`` [rows, features, channels], ``weights`` [elements, paths, channels] → [rows, outputs, channels].

    ``species``: int32 [rows], each row's element.
    """
    outputs = [jnp.zeros_like(features[:, 0]) for _ in range(problem.outputs)]
    own = weights[species]
    for output, path, terms in problem.polynomials:
        value = sum(coefficient * reduce(mul, (features[:, i] for i in indices)) for coefficient, *indices in terms)
        outputs[output] = outputs[output] + own[:, path] * value
    return jnp.stack(outputs, axis=1)
