# SPDX-License-Identifier: BSD-3-Clause
"""The attributes of a call: stable bytes, and OpenEquivariance's CUDA source for a named GPU."""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from problems import Case, all_paths, random_graph, relative_error
from stablemd import oeq
from stablemd.oeq import _cuda_source

needs_openequivariance = pytest.mark.skipif(
    importlib.util.find_spec("openequivariance") is None, reason="openequivariance is not installed"
)


def make(gpu):
    """A tensor product whose weights OpenEquivariance reorders, and MACE's convolution."""
    tp = oeq.make_kernel(all_paths("40x0e+40x1o", "2x0e+33x1o", 1), "tp", gpu)
    return tp, oeq.make_kernel(all_paths("24x0e+24x1o", "0e+1o+2e", 2, layout="ir_mul"), "conv", gpu)


@pytest.mark.parametrize("gpu", [None, pytest.param("h200", marks=needs_openequivariance)])
def test_bytes_are_the_same_in_every_process(gpu):
    """Hash seeds and what was made before do not matter."""
    script = (
        "import sys; from test_payload import *; "
        "sys.argv[1] == '2' and oeq.make_kernel(all_paths('3x0e', '0e', 0), 'tp'); "
        f"[print(len(k.payload), k.hash, k.payload) for k in make({gpu!r})]"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    outputs = [
        subprocess.run([sys.executable, "-c", script, seed], env=environment | {"PYTHONHASHSEED": seed}, check=True,
                       capture_output=True).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert outputs[0] == outputs[1]
    for kernel in make(gpu):
        assert f"{len(kernel.payload)} {kernel.hash} {kernel.payload}".encode() in outputs[0]
        assert kernel.hash == int.from_bytes(hashlib.sha256(kernel.payload.encode()).digest()[:7], "big")


@needs_openequivariance
@pytest.mark.parametrize("gpu", oeq.DEVICES)
@pytest.mark.parametrize("family", ["tp", "conv"])
def test_cuda_source(family, gpu):
    problem = all_paths("32x0e+32x1o", "0e+1o", 1)
    payload = json.loads(oeq.make_kernel(problem, family, gpu).payload)
    assert set(payload) == {
        "kernel", "forward_config", "backward_config", "double_backward_config", "kernel_prop", "problem",
    }  # fmt: skip
    device = _cuda_source.DEVICES[gpu]
    for op in ("forward", "backward", "double_backward"):
        assert re.search(rf"__global__ void\s*(__launch_bounds__\(.*\)\s*)?{op}(_A)?\s*\(", payload["kernel"]), op
        config = payload[f"{op}_config"]
        assert 0 < config["smem"] <= device.shared_memory
        assert config["num_blocks"] % device.multiprocessors == 0
    plain = json.loads(oeq.make_kernel(problem, family).payload)
    assert payload["kernel_prop"] == plain["kernel_prop"]
    assert payload["problem"] == plain["problem"]


@needs_openequivariance
def test_deterministic_convolution_brings_its_workspace():
    problem = all_paths("32x0e+32x1o", "0e+1o", 1)
    kernels = [oeq.make_kernel(problem, "conv", "h200", deterministic) for deterministic in (False, True)]
    flags = [json.loads(k.payload)["kernel_prop"]["deterministic"] for k in kernels]
    assert flags == [0, 1]
    assert kernels[0].workspace_size == 1 < kernels[1].workspace_size


@needs_openequivariance
@pytest.mark.parametrize("mode, channels", [("uvu", 0), ("uvw", 40)])
def test_problem_is_openequivariances(mode, channels):
    """Path weights and the order of the weights, as its own scheduler sees them."""
    problem = all_paths("40x0e+33x1o", "2x0e+35x1o", 1, mode, out_channels=channels)
    upstream = _cuda_source._upstream_problem(problem)
    np.testing.assert_allclose(
        [path.path_weight for path in upstream.instructions], [p.path_weight for p in problem.instructions], rtol=1e-15
    )
    schedule = _cuda_source._import_openequivariance("core.LoopUnrollTP")
    device = _cuda_source._device_properties("h200")
    forward = schedule.LoopUnrollTP(upstream, device, False, torch_op=False).forward_schedule
    weights = np.arange(problem.weight_numel, dtype=np.int32)
    expected = np.zeros_like(weights)
    for spec in forward.weight_reordering_info(weights, False):
        part = weights[spec["parent_range"]].reshape(spec["parent_shape"])[spec["weights_subrange"]]
        expected[spec["child_range"]] = part.transpose(spec["transpose_perm"]).ravel()
    np.testing.assert_array_equal(problem.oeq_weight_order, expected)


@needs_openequivariance
def test_ops_with_cuda_source_run_on_the_cpu(rng):
    """Callers give weights in e3nn's order whatever the payload holds."""
    oeq.register("cpu")
    problem = all_paths("40x0e+40x1o", "2x0e+33x1o", 1, dtype="float64")
    case = Case(problem, random_graph(4, 9, rng), 0, rng)
    op = oeq.TensorProductConv(problem, gpu="a100")
    x, y, w, z, *_ = case.operands
    value, pull = jax.vjp(lambda *a: op(*a, case.graph.receivers, case.graph.senders), x, y, w)
    for ours, expected in zip(
        (value, *pull(z)), (*case.reference("forward"), *case.reference("backward")), strict=True
    ):
        assert relative_error(np.asarray(ours), expected) < 1e-12


def test_wrong_gpus_and_problems_are_refused(monkeypatch):
    problem = all_paths("8x0e+8x1o", "0e+1o", 1)
    with pytest.raises(ValueError, match="unknown GPU 'h20'; known are t4, "):
        oeq.make_kernel(problem, "conv", "h20")
    mixed = [(0, 0, 0, "uvu", True), (0, 0, 0, "uvw", True)]
    with pytest.raises(ValueError, match="CUDA kernels need one mode"):
        oeq.make_kernel(oeq.make_problem("8x0e", "0e", "8x0e", mixed), "tp", "h200")
    for name in [name for name in sys.modules if name.split(".")[0] == "openequivariance"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openequivariance", None)
    with pytest.raises(ImportError, match="CUDA kernels need the package openequivariance"):
        oeq.make_kernel(problem, "conv", "h200")
    assert "OEQ_NOTORCH" not in os.environ
