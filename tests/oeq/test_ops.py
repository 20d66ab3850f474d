# SPDX-License-Identifier: BSD-3-Clause
"""The JAX ops: derivatives of any order in any mode through the custom calls, against plain JAX."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import Case, all_paths, random_graph, relative_error
from stablemd import oeq

SMALL = ("3x0e+3x1o", "0e+1o", 1)


@pytest.fixture(scope="module")
def registered():
    pytest.importorskip("stablemd._oeq_native")
    oeq.register("cpu")


def make_case(family: str, rng, dtype="float64", shared=False, **options) -> tuple[Case, object]:
    """A case and its op as a function of the floats."""
    problem = all_paths(*SMALL, dtype=dtype, shared_weights=shared, **options)
    if family == "tp":
        return Case(problem, None, 6, rng), oeq.TensorProduct(problem)
    case = Case(problem, random_graph(5, 14, rng), 0, rng)
    conv, graph = oeq.TensorProductConv(problem), case.graph
    return case, lambda x, y, w: conv(x, y, w, graph.receivers, graph.senders, jnp.asarray(graph.order))


def agree(value, expected, tolerance=1e-12):
    for a, b in zip(jax.tree.leaves(value), jax.tree.leaves(expected), strict=True):
        assert relative_error(np.asarray(a), np.asarray(b)) < tolerance


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("family", ["tp", "conv"])
class TestDerivatives:
    def test_forward_and_reverse_mode(self, family, shared, rng):
        case, op = make_case(family, rng, shared=shared)
        x, y, w, z, xd, yd, wd = case.operands
        agree(jax.jit(op)(x, y, w), case.op(x, y, w))
        agree(jax.jvp(op, (x, y, w), (xd, yd, wd)), jax.jvp(case.op, (x, y, w), (xd, yd, wd)))
        agree(jax.vjp(op, x, y, w)[1](z), jax.vjp(case.op, x, y, w)[1](z))

    def test_adjoint_identity_of_each_order(self, family, shared, rng):
        """<z, J v> = <J^T z, v> for the op, its gradient and the gradient's gradient."""
        case, op = make_case(family, rng, shared=shared)
        x, y, w, z, *varied = case.operands

        def gradient(x, y, w, z):
            return jax.vjp(op, x, y, w)[1](z)

        def second(x, y, w, z, *cotangents):
            return jax.vjp(gradient, x, y, w, z)[1](cotangents)

        for function, primals in ((op, (x, y, w)), (gradient, (x, y, w, z)), (second, (x, y, w, z, *varied))):
            tangents = tuple(rng.standard_normal(p.shape) for p in primals)
            out, tangent = jax.jit(lambda p, t, f=function: jax.jvp(f, p, t))(primals, tangents)
            cotangent = jax.tree.map(lambda o: rng.standard_normal(o.shape), out)
            pulled = jax.jit(lambda p, c, f=function: jax.vjp(f, *p)[1](c))(primals, cotangent)
            left = sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(cotangent), jax.tree.leaves(tangent), strict=True))
            right = sum(np.vdot(a, b) for a, b in zip(pulled, tangents, strict=True))
            assert abs(left - right) < 1e-12 * max(1, abs(left)) * 10


def modes_and_ops():
    """Second order of every op, third order of some; OEQ_EXHAUSTIVE=1 for the rest."""
    always = {("rrr", "conv", False), ("frr", "tp", True), ("rfr", "conv", True), ("ffr", "tp", False)}
    cases = []
    for case in itertools.product(["rr", "fr", "rf", "ff", "rrr", "frr", "rfr", "ffr"], ["tp", "conv"], [False, True]):
        slow = len(case[0]) == 3 and case not in always
        cases.append(pytest.param(*case, marks=pytest.mark.exhaustive) if slow else case)
    return cases


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("modes, family, shared", modes_and_ops())
def test_higher_orders(modes, family, shared, rng):
    """Modes applied innermost last: r the gradient of a scalar, f a directional derivative."""
    case, op = make_case(family, rng, shared=shared)
    primals = case.operands[:3]
    tangents = case.operands[4:]

    def energy(function):
        return lambda *p: jnp.sum(jnp.sin(function(*p)))

    def derive(function, mode):
        if mode == "f":
            return lambda *p: jax.jvp(function, p, tangents)[1]

        def contracted(*p):
            gradients = jax.grad(function, argnums=(0, 1, 2))(*p)
            return sum(jnp.vdot(g, t**2) for g, t in zip(gradients, tangents, strict=True))

        return contracted

    ours, expected = energy(op), energy(case.op)
    for mode in reversed(modes):
        ours, expected = derive(ours, mode), derive(expected, mode)
    agree(jax.jit(ours)(*primals), jax.jit(expected)(*primals), 1e-11)


@pytest.mark.usefixtures("registered")
def test_only_what_is_asked_for_is_differentiated(rng):
    case, op = make_case("conv", rng)
    x, y, w, _, xd, *_ = case.operands
    agree(jax.grad(lambda y: op(x, y, w).sum())(y), jax.grad(lambda y: case.op(x, y, w).sum())(y))
    agree(jax.jvp(lambda x: op(x, y, w), (x,), (xd,)), jax.jvp(lambda x: case.op(x, y, w), (x,), (xd,)))


@pytest.mark.usefixtures("registered")
def test_several_ops_in_one_program(rng):
    """Different kernels and equal ones, float32 and float64, tensor products and convolutions."""
    makers = [("tp", "float32"), ("conv", "float64"), ("conv", "float32"), ("conv", "float32")]
    cases = [make_case(family, rng, dtype) for family, dtype in makers]

    @jax.jit
    def run(*operands):
        return [op(*o[:3]) for (_, op), o in zip(cases, operands, strict=True)]

    for value, (case, _) in zip(run(*(case.operands for case, _ in cases)), cases, strict=True):
        agree(value, case.reference("forward")[0], 2e-6)


@pytest.mark.usefixtures("registered")
def test_vmap(rng):
    case, op = make_case("conv", rng)
    x, y, w, *_ = case.operands
    batch = np.stack([x, 2 * x, -x])
    agree(jax.vmap(lambda x: op(x, y, w))(batch), jnp.stack([case.op(x, y, w) for x in batch]))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_lowering_is_upstreams_custom_calls(platform):
    problem = all_paths(*SMALL)
    conv = oeq.TensorProductConv(problem)
    shapes = [(5, 12), (14, 4), (14, problem.weight_numel)]
    floats = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    index = [jax.ShapeDtypeStruct((14,), jnp.int32)] * 3

    def gradients(x, y, w, *graph):
        return jax.grad(lambda *a: jnp.sum(conv(*a, *graph) ** 2), argnums=(0, 1, 2))(x, y, w)

    text = jax.jit(gradients).trace(*floats, *index).lower(lowering_platforms=(platform,)).as_text()
    calls = re.findall(r"custom_call @(conv_\w+)\(([^)]*)\)", text)
    assert [name for name, _ in calls] == ["conv_forward", "conv_backward"]
    assert [len(operands.split(",")) for _, operands in calls] == [7, 8]
    assert f"hash = {conv.kernel.hash} : i64" in text
    assert "kernel = " in text


@pytest.mark.parametrize("change, message", [
    (dict(x=np.zeros((5, 11), np.float32)), r"x is float32\[5, 11\], must be float32\[5, 12\]"),
    (dict(y=np.zeros((14, 4), np.float64)), r"y is float64\[14, 4\], must be float32\[14, 4\]"),
    (dict(senders=np.zeros(14, np.int64)), r"senders is int64\[14\], must be int32\[14\]"),
])  # fmt: skip
def test_wrong_operands_are_refused(change, message):
    problem = all_paths(*SMALL)
    index = np.zeros(14, np.int32)
    operands = dict(x=np.zeros((5, 12), np.float32), y=np.zeros((14, 4), np.float32),
                    w=np.zeros((14, problem.weight_numel), np.float32), receivers=index, senders=index)  # fmt: skip
    with pytest.raises(ValueError, match=message):
        oeq.TensorProductConv(problem)(**operands | change)


@pytest.mark.parametrize("instruction, message", [
    ((0, 0, 1, "uvu", True), "instruction 0: 8x0e and 1x0e do not couple to 4x1o"),
    ((0, 1, 1, "uvu", True), "instruction 0: a uvu path needs equal channels, not 8 in and 4 out"),
    ((0, 0, 0, "uuu", True), "instruction 0: mode 'uuu' is not supported; use 'uvu' or 'uvw'"),
    ((0, 2, 0, "uvu", True), "instruction 0: i_in2 = 2, but there are 2 blocks"),
])  # fmt: skip
def test_wrong_instructions_are_refused(instruction, message):
    with pytest.raises(ValueError) as error:
        oeq.make_problem("8x0e", "0e+1o", "8x0e+4x1o", [instruction])
    assert str(error.value) == message
