# SPDX-License-Identifier: BSD-3-Clause
"""MACE's symmetric contraction as an op for the CPU.

``contraction_forward`` and ``contraction_backward`` (the gradient with respect to the features) are custom calls. The
op is linear in the weights, so their tangent is a forward call too. What else derivatives need, the gradient with
respect to the weights and everything of higher order, is plain JAX (:func:`.reference.contraction`), slow but right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from . import reference
from ._payload import FLOAT_CODES, INT32_CODE, payload_hash

#: (output, path, ((coefficient, feature, feature, ...), ...))
Polynomial = tuple[int, int, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True)
class ContractionProblem:
    """Polynomials of ``features`` variables: per channel, ``out[output] += w[path] * polynomial(x)``."""

    features: int
    outputs: int
    paths: int
    polynomials: tuple[Polynomial, ...] = field(repr=False)
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in FLOAT_CODES:
            raise ValueError(f"dtype is {self.dtype!r}; allowed are {', '.join(FLOAT_CODES)}")
        for output, path, terms in self.polynomials:
            if not (0 <= output < self.outputs and 0 <= path < self.paths):
                raise ValueError(
                    f"a polynomial of output {output}, path {path}; there are {self.outputs} and {self.paths}"
                )
            for _, *indices in terms:
                if not indices or not all(0 <= i < self.features for i in indices):
                    raise ValueError(f"a product of the features {indices}; there are {self.features}")


@dataclass(frozen=True)
class ContractionKernel:
    """What a primitive carries: hashable by its payload."""

    payload: str = field(repr=False)  #: JSON
    hash: int
    problem: ContractionProblem = field(compare=False)


def make_contraction_kernel(problem: ContractionProblem) -> ContractionKernel:
    """Equal problems give equal bytes."""
    float_code = FLOAT_CODES[problem.dtype]
    properties = {
        "L1_dim": problem.features,
        "L2_dim": 0,
        "L3_dim": problem.outputs,
        "weight_numel": problem.paths,
        "shared_weights": 0,
        "irrep_dtype": float_code,
        "weight_dtype": float_code,
        "idx_dtype": INT32_CODE,
    }
    content = {
        "kernel_prop": properties,
        "problem": {
            "features": problem.features,
            "outputs": problem.outputs,
            "paths": problem.paths,
            "dtype": problem.dtype,
            "polynomials": problem.polynomials,
        },
    }
    payload = json.dumps(content, separators=(",", ":"))
    return ContractionKernel(payload, payload_hash(payload), problem)


class SymmetricContraction:
    """Polynomials of each channel's features with weights of each row's element: ``op(features, weights, species)``.

    Runs on the CPU alone. First derivatives with respect to the features are a custom call; all others, of any order,
    are plain JAX.
    """

    def __init__(self, problem: ContractionProblem) -> None:
        self.problem = problem
        self.kernel = make_contraction_kernel(problem)

    def __call__(self, features: jax.Array, weights: jax.Array, species: jax.Array) -> jax.Array:
        """``features`` [rows, features, channels], ``weights`` [elements, paths, channels], ``species`` int32 [rows].

        Returns [rows, outputs, channels], of the problem's dtype as all floats. Raises ValueError for other shapes or
        dtypes; a species that is no row of the weights is an error when the op runs.
        """
        p, rows, channels = self.problem, features.shape[0], features.shape[-1]
        for name, array, shape, dtype in (
            ("features", features, (rows, p.features, channels), p.dtype),
            ("weights", weights, (weights.shape[0], p.paths, channels), p.dtype),
            ("species", species, (rows,), "int32"),
        ):
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, must be {dtype}{list(shape)}")
        return forward_p.bind(features, weights, species, kernel=self.kernel)


# ---- primitives ------------------------------------------------------------------------------------------------------

forward_p = Primitive("oeq_contraction_forward")
backward_p = Primitive("oeq_contraction_backward")
#: Derivative along tangents of the features; linear in them.
tangent_p = Primitive("oeq_contraction_tangent")


def _out_shape(x: Any, kernel: ContractionKernel) -> tuple[int, ...]:
    return (x.shape[0], kernel.problem.outputs, x.shape[2])


def _call(op: str, shape: tuple[int, ...], kernel: ContractionKernel, *operands: Any) -> Any:
    call = jax.ffi.ffi_call(f"contraction_{op}", jax.ShapeDtypeStruct(shape, operands[0].dtype))
    return call(*operands, kernel=kernel.payload, hash=np.int64(kernel.hash))


def _forward(x: Any, w: Any, species: Any, *, kernel: ContractionKernel) -> Any:
    return _call("forward", _out_shape(x, kernel), kernel, x, w, species)


def _backward(x: Any, w: Any, species: Any, z: Any, *, kernel: ContractionKernel) -> Any:
    return _call("backward", x.shape, kernel, x, w, species, z)


def _plain(x: Any, w: Any, species: Any, kernel: ContractionKernel) -> Any:
    return reference.contraction(kernel.problem, x, w, species)


def _plain_backward(x: Any, w: Any, species: Any, z: Any, kernel: ContractionKernel) -> Any:
    return jax.vjp(lambda x: _plain(x, w, species, kernel), x)[1](z)[0]


def _tangent(x: Any, w: Any, species: Any, dx: Any, *, kernel: ContractionKernel) -> Any:
    return jax.jvp(lambda x: _plain(x, w, species, kernel), (x,), (dx,))[1]


def _forward_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, kernel: ContractionKernel) -> tuple[Any, Any]:
    x, w, species = primals
    dx, dw, _ = tangents
    out = forward_p.bind(x, w, species, kernel=kernel)
    by_features = None if isinstance(dx, ad.Zero) else tangent_p.bind(x, w, species, dx, kernel=kernel)
    if isinstance(dw, ad.Zero):
        return out, jnp.zeros_like(out) if by_features is None else by_features
    by_weights = forward_p.bind(x, dw, species, kernel=kernel)
    return out, by_weights if by_features is None else by_features + by_weights


def _forward_transpose(z: Any, x: Any, w: Any, species: Any, *, kernel: ContractionKernel) -> list[Any]:
    """Linear in the weights alone."""
    weights = jnp.zeros(w.aval.shape, w.aval.dtype)
    return [None, jax.vjp(lambda w: _plain(x, w, species, kernel), weights)[1](ad.instantiate_zeros(z))[0], None]


def _tangent_transpose(z: Any, x: Any, w: Any, species: Any, dx: Any, *, kernel: ContractionKernel) -> list[Any]:
    return [None, None, None, backward_p.bind(x, w, species, ad.instantiate_zeros(z), kernel=kernel)]


def _plain_jvp(function: Any) -> Any:
    """The JVP rule of what ``function(x, w, species, other, kernel)`` computes in plain JAX."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], *, kernel: ContractionKernel) -> tuple[Any, Any]:
        x, w, species, other = primals
        dx, dw, _, dother = map(ad.instantiate_zeros, tangents)
        return jax.jvp(lambda x, w, o: function(x, w, species, o, kernel=kernel), (x, w, other), (dx, dw, dother))

    return rule


def _backward_transpose(z: Any, *operands: Any, kernel: ContractionKernel) -> list[Any]:
    """Linear in the weights or in the cotangent, whichever has no value."""
    i = next(i for i in (1, 3) if ad.is_undefined_primal(operands[i]))

    def of_linear(value: Any) -> Any:
        return _plain_backward(*operands[:i], value, *operands[i + 1 :], kernel=kernel)

    zeros = jnp.zeros(operands[i].aval.shape, operands[i].aval.dtype)
    result: list[Any] = [None] * 4
    result[i] = jax.vjp(of_linear, zeros)[1](ad.instantiate_zeros(z))[0]
    return result


def _register(primitive: Primitive, function: Any, shape: Any, platform: str | None) -> None:
    evaluate = jax.jit(function, static_argnames="kernel")
    primitive.def_impl(evaluate)
    primitive.def_abstract_eval(lambda x, *rest, kernel: jax.core.ShapedArray(shape(x, kernel), x.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False), platform=platform)


_register(forward_p, _forward, _out_shape, "cpu")
_register(backward_p, _backward, lambda x, kernel: x.shape, "cpu")
_register(tangent_p, _tangent, _out_shape, None)

ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_jvps[backward_p] = _plain_jvp(_plain_backward)
ad.primitive_jvps[tangent_p] = _plain_jvp(_tangent)
ad.primitive_transposes[forward_p] = _forward_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
ad.primitive_transposes[tangent_p] = _tangent_transpose
