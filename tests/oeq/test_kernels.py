# SPDX-License-Identifier: BSD-3-Clause
"""CPU kernels against plain JAX in float64: every op and order, outputs poisoned, one and two threads."""

import ast
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from native import ORDERS, NativeKernel
from problems import TOLERANCE, Case, Graph, all_paths, hub_graph, random_graph, relative_error
from stablemd.oeq import make_problem


def exhaustive(*values):
    """Values of a test that runs with OEQ_EXHAUSTIVE=1."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


MACE = {"in1": "{c}x0e+{c}x1o", "in2": "0e+1o+2e", "lmax": 2}


def mace_like(channels: int, **options):
    return all_paths(MACE["in1"].format(c=channels), MACE["in2"], MACE["lmax"], **options)


def check(case: Case, generic: bool = False, orders=ORDERS, factor: float = 1.0) -> None:
    """All orders of one case; equal bits for one and two threads."""
    graph = case.graph.operands if case.graph else {}
    for order in orders:
        kernel = NativeKernel(case.problem, case.family, order, generic)
        operands = case.operands[: {"forward": 3, "backward": 4, "double_backward": 7}[order]]
        one, two = (kernel(*operands, threads=threads, **graph) for threads in (1, 2))
        for number, (a, b, expected) in enumerate(zip(one, two, case.reference(order), strict=True)):
            error = relative_error(a, expected)
            assert error <= factor * TOLERANCE[case.problem.dtype], f"{order}, result {number}: {error:.2e}"
            np.testing.assert_array_equal(a, b, err_msg=f"{order}, result {number}: depends on threads")


@pytest.mark.parametrize("mode, shared, layout, family", [
    ("uvu", False, "ir_mul", "conv"),
    ("uvw", True, "mul_ir", "tp"),
    exhaustive("uvu", True, "mul_ir", "tp"),
    exhaustive("uvw", False, "ir_mul", "conv"),
])  # fmt: skip
def test_reference_is_plain_jax(mode, shared, layout, family, rng):
    """The NumPy reference of this file is the JAX op and what JAX makes of it."""
    problem = all_paths("2x0e+3x1o", "0e+2x1o", 1, mode, out_channels=2 if mode == "uvw" else 0,
                        shared_weights=shared, layout=layout, dtype="float64")  # fmt: skip
    case = Case(problem, random_graph(4, 9, rng) if family == "conv" else None, 6, rng)
    for order in ORDERS:
        for value, expected in zip(case.reference(order), case.jax_reference(order), strict=True):
            assert relative_error(value, expected) < 1e-14


@pytest.mark.parametrize("dtype, layout", [("float32", "mul_ir"), ("float32", "ir_mul"), ("float64", "mul_ir")])
@pytest.mark.parametrize("channels", [1, 3, 8, 24, 40, 64, 128])
def test_channel_counts(channels, dtype, layout, rng):
    problem = mace_like(channels, dtype=dtype, layout=layout)
    check(Case(problem, random_graph(17, 90, rng), 0, rng))


@pytest.mark.parametrize("dtype, in1, in2", [
    ("float64", "4x0e+4x2e+4x4e", "0e+1o+3o+4e"),
    ("float32", "2x0o+3x1e+2x2o", "1x1e+1x2o+1x3e"),
    ("float32", "16x4e+16x3e", "1x4e+1x3o"),
    exhaustive("float64", "4x0e+4x1o+4x2e+4x3o+4x4e", "0e+1o+2e+3o+4e"),
    exhaustive("float32", "4x0e+4x1o+4x2e+4x3o+4x4e", "0e+1o+2e+3o+4e"),
    exhaustive("float64", "2x0o+3x1e+2x2o", "1x1e+1x2o+1x3e"),
    exhaustive("float64", "16x4e+16x3e", "1x4e+1x3o"),
])  # fmt: skip
def test_ranks_and_parities_to_four(dtype, in1, in2, rng):
    check(Case(all_paths(in1, in2, 4, dtype=dtype), random_graph(5, 21, rng), 0, rng))


def modes_layouts_and_weights():
    """Every combination; every pair of values is in one that always runs."""
    cases = []
    choices = (["uvu", "uvw"], [False, True], ["mul_ir", "ir_mul"], ["float32", "float64"], ["tp", "conv"])
    for values in itertools.product(*choices):
        first, second, third, fourth, fifth = (c.index(v) for c, v in zip(choices, values, strict=True))
        always = fourth == (first + second) % 2 and fifth == (first + third) % 2
        cases.append(values if always else exhaustive(*values))
    return cases


@pytest.mark.parametrize("mode, shared, layout, dtype, family", modes_layouts_and_weights())
def test_modes_layouts_and_weights(mode, shared, layout, dtype, family, rng):
    in1, in2 = ("5x0e+35x1o", "2x0e+3x1o") if mode == "uvu" else ("3x0e+5x1o", "2x0e+3x1o")
    problem = all_paths(in1, in2, 2, mode, out_channels=7 if mode == "uvw" else 0,
                        shared_weights=shared, layout=layout, dtype=dtype)  # fmt: skip
    graph = random_graph(11, 60, rng) if family == "conv" else None
    check(Case(problem, graph, 37, rng))


@pytest.mark.parametrize("family", ["tp", "conv"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mode", ["uvu", "uvw"])
def test_generic_kernel(mode, shared, family, rng):
    """Up to 9,000 products, so that its sums in float32 are long as well."""
    for dtype, layout, products, lmax in (
        ("float32", "mul_ir", 300, 4), ("float64", "ir_mul", 300, 4), ("float32", "ir_mul", 9_000, 1),
    ):  # fmt: skip
        problem = all_paths("3x0e+2x1o+1x4e", "2x0e+1x1o+1x4e", lmax, mode, out_channels=4 if mode == "uvw" else 0,
                            shared_weights=shared, layout=layout, dtype=dtype)  # fmt: skip
        graph = random_graph(11, products, rng) if family == "conv" else None
        check(Case(problem, graph, products, rng), generic=True)


def sharing_problem(**options):
    """Paths that share inputs and outputs, one without weights, one into no output of its own."""
    paths = [(0, 0, 0, "uvu", True, 2.0), (1, 1, 0, "uvu", False), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", False, 0.5)]
    return make_problem("16x0e+16x1o", "0e+1o", "16x0e+16x1o+16x2e", paths, path_normalization="path", **options)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("family", ["tp", "conv"])
def test_shared_blocks_and_paths_without_weights(family, generic, rng):
    graph = random_graph(9, 50, rng) if family == "conv" else None
    check(Case(sharing_problem(dtype="float64"), graph, 20, rng), generic)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("paths", [[], [(0, 0, 0, "uvu", True)]])
def test_no_path_and_one_path(paths, generic, rng):
    problem = make_problem("8x0e", "1o", "8x1o+3x0e", paths, dtype="float64")
    check(Case(problem, random_graph(6, 20, rng), 0, rng), generic)
    check(Case(problem, None, 12, rng), generic)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_empty_edge_list_and_no_rows(shared, generic, rng):
    problem = mace_like(8, dtype="float64", shared_weights=shared)
    check(Case(problem, random_graph(5, 0, rng), 0, rng), generic)
    check(Case(problem, None, 0, rng), generic)


@pytest.mark.parametrize("sort, ordered", [(True, True), (True, False), (False, True), (False, False)])
def test_edge_orders(sort, ordered, rng):
    """Receivers need not be sorted, nor the order of the senders be given; most of the 400 nodes are isolated."""
    check(Case(mace_like(8, dtype="float64"), random_graph(400, 90, rng, ordered, sort), 0, rng))


@pytest.mark.parametrize("hub_sends", [False, True])
@pytest.mark.parametrize("dtype, shared", [("float32", False), ("float64", False), ("float32", True)])
def test_one_node_with_ten_thousand_edges(dtype, shared, hub_sends, rng):
    problem = mace_like(8, dtype=dtype, shared_weights=shared)
    check(Case(problem, hub_graph(40, 10_000, rng, hub_sends), 0, rng))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 15, 16, 17, 127, 128, 129, 255, 256, 257])
def test_segments_around_internal_blocks(length, rng):
    """Blocks of 2 products for one pass, 8 or 16 for couplings, 128 for partial sums, 256 per piece of work."""
    problem = mace_like(3, dtype="float64", shared_weights=True)
    check(Case(problem, hub_graph(3, length, rng, hub_sends=length % 2 == 0), 0, rng))
    check(Case(problem, None, length, rng), orders=("backward",))


def in_order_of_receivers(channels: int, **options):
    """As in MACE: the output is so much longer than the input that gradients are taken in the receivers' order."""
    return all_paths(f"{channels}x0e+{channels}x1o", "0e+1o+2e", 2, **options)


def in_order_of_senders(channels: int, **options):
    """The output is no longer than the input."""
    paths = [(0, 0, 0, "uvu", True), (1, 1, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", True)]
    irreps = f"{channels}x0e+{channels}x1o"
    return make_problem(irreps, "0e+1o", irreps, paths, **options)


@pytest.mark.parametrize("make", [in_order_of_receivers, in_order_of_senders])
@pytest.mark.parametrize("layout, dtype, shared", [("ir_mul", "float32", False), ("mul_ir", "float64", True)])
def test_gradients_of_many_edges(make, layout, dtype, shared, rng):
    """Nodes in space order, where one item knows few senders; at random; and receivers that are not sorted."""
    problem = make(16 if dtype == "float32" else 5, layout=layout, dtype=dtype, shared_weights=shared)
    node = np.repeat(np.arange(400), 13)
    near = Graph(400, node.astype(np.int32), ((node + rng.integers(-9, 9, node.size)) % 400).astype(np.int32))
    anywhere = random_graph(400, 1_200, rng, ordered=False)
    unsorted = random_graph(40, 5_000, rng, ordered=False, sort=False)
    for graph in (near, anywhere, unsorted):
        check(Case(problem, graph, 0, rng), orders=("backward", "double_backward"))


def test_many_pieces_of_work(rng):
    problem = mace_like(8, dtype="float64", shared_weights=True)
    check(Case(problem, random_graph(900, 5_000, rng), 0, rng))
    check(Case(problem, None, 3_000, rng))


def test_infinite_channel_stays_in_its_lane(rng):
    """Padding lanes and neighbouring channels know nothing of each other."""
    case = Case(mace_like(3, dtype="float32"), random_graph(4, 12, rng), 0, rng)
    x = case.operands[0].copy()
    x[:, 1] = np.inf  # channel 1 of the scalars
    out = NativeKernel(case.problem, "conv", "forward")(x, *case.operands[1:3], **case.graph.operands)[0]
    finite = NativeKernel(case.problem, "conv", "forward")(*case.operands[:3], **case.graph.operands)[0]
    touched = ~np.isfinite(out)
    assert touched.any() and not touched.all()
    np.testing.assert_array_equal(out[~touched], finite[~touched])


@pytest.mark.parametrize("operand, value", [("receivers", 9), ("senders", -1)])
def test_index_outside_the_graph_is_refused(operand, value, rng):
    case = Case(mace_like(1), random_graph(9, 20, rng), 0, rng)
    graph = case.graph.operands
    graph[operand][7] = value
    with pytest.raises(RuntimeError, match=rf"{operand[:-1]} of edge \d+ is {value}, but there are 9 nodes"):
        NativeKernel(case.problem, "conv", "forward")(*case.operands[:3], **graph)


def test_oeq_weight_order_is_the_same_op(rng):
    """A payload in OpenEquivariance's weight order gives the same with reordered weights."""
    from stablemd.oeq import make_kernel

    for mode in ("uvu", "uvw"):
        problem = all_paths(
            "40x0e+40x1o", "2x0e+33x1o", 1, mode, out_channels=35 if mode == "uvw" else 0, dtype="float64"
        )
        order = problem.oeq_weight_order
        case = Case(problem, None, 3, rng)
        payload = make_kernel(problem, "tp").payload.replace('"weight_order": "e3nn"', '"weight_order": "oeq"')
        x, y, w, z, *_ = case.operands
        for generic in (False, True):
            kernel = NativeKernel(problem, "tp", "backward", generic, payload)
            results = kernel(x, y, w[:, order], z)
            gx, gy, gw = case.reference("backward")
            for value, expected in zip(results, (gx, gy, gw[:, order]), strict=True):
                assert relative_error(value, expected) < 1e-12


@pytest.mark.parametrize("change, message", [
    ({"layout": "other"}, "`layout` is \"other\"; expected mul_ir or ir_mul"),
    ({"irreps_in1": "8x0q"}, "`irreps_in1` has the block \"8x0q\"; expected e.g. 128x1o"),
    ({"instructions": [[0, 0, 0, "uvu", True, 1.0]]}, "disagrees with `kernel_prop` about weight_numel"),
    ({"instructions": [[0, 5, 0, "uvu", True, 1.0]]}, "instruction 0 refers to a block of irreps that does not exist"),
    ({"irrep_dtype": "float16"}, "`irrep_dtype` is \"float16\"; expected float32 or float64"),
])  # fmt: skip
def test_foreign_problems_are_refused(change, message):
    import json

    from stablemd.oeq import make_kernel

    problem = mace_like(8)
    payload = json.loads(make_kernel(problem, "conv").payload)
    payload["problem"] |= change
    with pytest.raises(RuntimeError) as error:
        NativeKernel(problem, "conv", "forward", payload=json.dumps(payload))
    assert str(error.value) == "payload key `problem`: " + message


def test_source_is_the_same_in_another_process():
    script = (
        "import native, hashlib; from problems import all_paths; "
        "p = all_paths('24x0e+24x1o', '0e+1o', 2); "
        "sources = [native.source(p, f, o) for f in ('tp', 'conv') for o in native.ORDERS]; "
        "print([hashlib.sha256(s.encode()).hexdigest() for s in sources])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    outputs = {
        subprocess.run([sys.executable, "-c", script], env=environment | {"PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1
    assert len(set(ast.literal_eval(outputs.pop()))) == 6  # two families, three orders
