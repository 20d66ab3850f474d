# SPDX-License-Identifier: BSD-3-Clause
"""JAX primitives of the ops and their derivatives.

With f the product, linear in each of x, y, w, and Q = <z, f(x, y, w)>, linear in each of four:

* ``forward``: f(x, y, w)
* ``backward``: dQ/dx, dQ/dy, dQ/dw
* ``double_backward``: with T = Q(xd, y, w, z) + Q(x, yd, w, z) + Q(x, y, wd, z), dT/dx, dT/dy, dT/dw, dT/dz

are custom calls. The tangent of each is a sum of calls with one factor replaced by its tangent. ``forward_tangent`` and
``backward_tangent`` are those sums, linear in all tangents at once, so that reverse mode transposes each into a single
``backward`` or ``double_backward`` call. Beyond, ``double_backward`` is the sum of calls of ``forward`` and
``backward`` that :func:`_expand_double_backward` writes down, which JAX differentiates further. So any
order works in any mode.

Operands of a convolution end with the graph (receivers, senders, workspace, sender_order); a tensor product has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._payload import Kernel

PLATFORMS = ("cpu", "cuda", "rocm")

forward_p = Primitive("oeq_forward")
backward_p = Primitive("oeq_backward")
double_backward_p = Primitive("oeq_double_backward")
forward_tangent_p = Primitive("oeq_forward_tangent")
backward_tangent_p = Primitive("oeq_backward_tangent")

_MULTIPLE = (backward_p, double_backward_p, backward_tangent_p)


def _like(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _out_shape(x: Any, kernel: Kernel) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((x.shape[0], kernel.out_dim), x.dtype)


def _ffi_call(kernel: Kernel, op: str, results: Any, operands: Sequence[Any]) -> Any:
    call = jax.ffi.ffi_call(f"{kernel.family}_{op}", results)
    return call(*operands, kernel=kernel.payload, hash=np.int64(kernel.hash))


def _forward(x: Any, y: Any, w: Any, *graph: Any, kernel: Kernel) -> Any:
    return _ffi_call(kernel, "forward", _out_shape(x, kernel), (x, y, w, *graph))


def _backward(x: Any, y: Any, w: Any, z: Any, *graph: Any, kernel: Kernel) -> Any:
    return _ffi_call(kernel, "backward", (_like(x), _like(y), _like(w)), (x, y, w, z, *graph))


def _double_backward(x: Any, y: Any, w: Any, z: Any, xd: Any, yd: Any, wd: Any, *graph: Any, kernel: Kernel) -> Any:
    results = (_like(x), _like(y), _like(w), _like(z))
    return _ffi_call(kernel, "double_backward", results, (x, y, w, z, xd, yd, wd, *graph))


def _forward_tangent(
    x: Any, y: Any, w: Any, dx: Any, dy: Any, dw: Any, *graph: Any, kernel: Kernel, active: tuple[bool, ...]
) -> Any:
    """Sum over the factors in ``active`` of f with that factor replaced by its tangent."""
    primals, tangents = (x, y, w), (dx, dy, dw)
    total = None
    for i in np.flatnonzero(active):
        factors = [tangents[j] if j == i else primals[j] for j in range(3)]
        term = forward_p.bind(*factors, *graph, kernel=kernel)
        total = term if total is None else total + term
    return jnp.zeros(**_fields(_out_shape(x, kernel))) if total is None else total


def _backward_tangent(
    x: Any, y: Any, w: Any, z: Any, dx: Any, dy: Any, dw: Any, dz: Any, *graph: Any,
    kernel: Kernel, active: tuple[bool, ...],
) -> Any:  # fmt: skip
    """As :func:`_forward_tangent`, of all three gradients. A gradient does not depend on its own factor."""
    primals, tangents = (x, y, w, z), (dx, dy, dw, dz)
    totals: list[Any] = [None, None, None]
    for i in np.flatnonzero(active):
        factors = [tangents[j] if j == i else primals[j] for j in range(4)]
        terms = backward_p.bind(*factors, *graph, kernel=kernel)
        for j in range(3):
            if j != i:
                totals[j] = terms[j] if totals[j] is None else totals[j] + terms[j]
    return [jnp.zeros(p.shape, p.dtype) if t is None else t for p, t in zip(primals, totals, strict=False)]


def _expand_double_backward(
    x: Any, y: Any, w: Any, z: Any, xd: Any, yd: Any, wd: Any, *graph: Any, kernel: Kernel
) -> tuple[Any, ...]:
    """``double_backward`` by the other ops, for derivatives of third and higher order."""
    x_varied = backward_p.bind(xd, y, w, z, *graph, kernel=kernel)
    y_varied = backward_p.bind(x, yd, w, z, *graph, kernel=kernel)
    w_varied = backward_p.bind(x, y, wd, z, *graph, kernel=kernel)
    every = (True, True, True)
    gz = forward_tangent_p.bind(x, y, w, xd, yd, wd, *graph, kernel=kernel, active=every)
    return y_varied[0] + w_varied[0], x_varied[1] + w_varied[1], x_varied[2] + y_varied[2], gz


def _fields(shape: jax.ShapeDtypeStruct) -> dict[str, Any]:
    return {"shape": shape.shape, "dtype": shape.dtype}


def _solid(tangent: Any) -> Any:
    """A symbolic zero as an array of zeros."""
    return ad.instantiate_zeros(tangent)


def _known(primal: Any) -> Any:
    """In transposition: an operand that is linear, and so has no value, as zeros that nothing depends on."""
    return jnp.zeros(primal.aval.shape, primal.aval.dtype) if ad.is_undefined_primal(primal) else primal


def _is_active(tangents: Sequence[Any]) -> tuple[bool, ...]:
    return tuple(not isinstance(t, ad.Zero) for t in tangents)


def _forward_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, kernel: Kernel) -> tuple[Any, Any]:
    factors, graph = primals[:3], primals[3:]
    out = forward_p.bind(*primals, kernel=kernel)
    active = _is_active(tangents[:3])
    solid = map(_solid, tangents[:3])
    return out, forward_tangent_p.bind(*factors, *solid, *graph, kernel=kernel, active=active)


def _backward_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, kernel: Kernel) -> tuple[Any, Any]:
    factors, graph = primals[:4], primals[4:]
    out = backward_p.bind(*primals, kernel=kernel)
    active = _is_active(tangents[:4])
    solid = map(_solid, tangents[:4])
    return out, backward_tangent_p.bind(*factors, *solid, *graph, kernel=kernel, active=active)


def _jvp_of(function: Any, floats: int) -> Any:
    """The JVP rule of a primitive that ``function`` computes from other primitives."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        graph = primals[floats:]
        return jax.jvp(
            lambda *operands: function(*operands, *graph, **params),
            tuple(primals[:floats]),
            tuple(map(_solid, tangents[:floats])),
        )

    return rule


def _forward_tangent_transpose(cotangent: Any, *operands: Any, kernel: Kernel, active: tuple[bool, ...]) -> list[Any]:
    factors, graph = map(_known, operands[:3]), operands[6:]
    gradients = backward_p.bind(*factors, _solid(cotangent), *graph, kernel=kernel)
    linear = [g if a else None for g, a in zip(gradients, active, strict=True)]
    return [None] * 3 + linear + [None] * len(graph)


def _backward_tangent_transpose(
    cotangents: Sequence[Any], *operands: Any, kernel: Kernel, active: tuple[bool, ...]
) -> list[Any]:
    factors, graph = map(_known, operands[:4]), operands[8:]
    gradients = double_backward_p.bind(*factors, *map(_solid, cotangents), *graph, kernel=kernel)
    linear = [g if a else None for g, a in zip(gradients, active, strict=True)]
    return [None] * 4 + linear + [None] * len(graph)


def _transpose_by_tangent(function: Any, floats: int) -> Any:
    """Transposition of an op that is linear in whichever operands have no value."""

    def rule(cotangents: Any, *operands: Any, kernel: Kernel) -> list[Any]:
        linear = [i for i in range(floats) if ad.is_undefined_primal(operands[i])]

        def of_linear(*values: Any) -> Any:
            filled = list(operands)
            for i, value in zip(linear, values, strict=True):
                filled[i] = value
            return function(*filled, kernel=kernel)

        zeros = [_known(operands[i]) for i in linear]
        _, pull = jax.vjp(of_linear, *zeros)
        solid = tuple(map(_solid, cotangents)) if isinstance(cotangents, list | tuple) else _solid(cotangents)
        result: list[Any] = [None] * len(operands)
        for i, gradient in zip(linear, pull(solid), strict=True):
            result[i] = gradient
        return result

    return rule


def _one_by_one(primitive: Primitive) -> Any:
    """Batching: one call per element, since a kernel takes one graph."""

    def rule(operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        batched = [jnp.moveaxis(o, a, 0) for o, a in zip(operands, axes, strict=True) if a is not None]

        def call(elements: Sequence[Any]) -> Any:
            rest = iter(elements)
            return primitive.bind(
                *(o if a is None else next(rest) for o, a in zip(operands, axes, strict=True)), **params
            )

        results = jax.lax.map(call, batched)
        return results, ([0] * len(results) if primitive.multiple_results else 0)

    return rule


def _register(primitive: Primitive, function: Any) -> None:
    primitive.multiple_results = primitive in _MULTIPLE
    tangent = primitive in (forward_tangent_p, backward_tangent_p)
    evaluate = jax.jit(function, static_argnames=("kernel", "active") if tangent else "kernel")

    def implementation(*operands: Any, **params: Any) -> Any:
        return evaluate(*operands, **params)

    def abstract(*operands: Any, **params: Any) -> Any:
        return shapes(primitive, operands, params["kernel"])

    primitive.def_impl(implementation)
    primitive.def_abstract_eval(abstract)
    lowering = mlir.lower_fun(function, multiple_results=primitive.multiple_results)
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, lowering, platform=platform)
    batching.primitive_batchers[primitive] = _one_by_one(primitive)


def shapes(primitive: Primitive, operands: Sequence[Any], kernel: Kernel) -> Any:
    """Abstract results of a primitive."""

    def shaped(struct: Any) -> Any:
        return jax.core.ShapedArray(struct.shape, struct.dtype)

    if primitive in (forward_p, forward_tangent_p):
        return shaped(_out_shape(operands[0], kernel))
    return [shaped(o) for o in operands[: 4 if primitive is double_backward_p else 3]]


_register(forward_p, _forward)
_register(backward_p, _backward)
_register(double_backward_p, _double_backward)
_register(forward_tangent_p, _forward_tangent)
_register(backward_tangent_p, _backward_tangent)

ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_jvps[backward_p] = _backward_jvp
ad.primitive_jvps[double_backward_p] = _jvp_of(_expand_double_backward, 7)
ad.primitive_jvps[forward_tangent_p] = _jvp_of(_forward_tangent, 6)
ad.primitive_jvps[backward_tangent_p] = _jvp_of(_backward_tangent, 8)
ad.primitive_transposes[forward_tangent_p] = _forward_tangent_transpose
ad.primitive_transposes[backward_tangent_p] = _backward_tangent_transpose
ad.primitive_transposes[forward_p] = _transpose_by_tangent(forward_p.bind, 3)
ad.primitive_transposes[backward_p] = _transpose_by_tangent(backward_p.bind, 4)
ad.primitive_transposes[double_backward_p] = _transpose_by_tangent(_expand_double_backward, 7)
