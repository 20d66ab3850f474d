"""CUDA kernels on a real GPU: results against CPU kernels, compilation by 1 to 16 workers, the time of a dispatch.

On any machine with the packages openequivariance, numpy and jax:

    python benchmarks/gpu_check.py prepare payloads            # payloads for an H200 (--gpu)

On the machine with the GPU, with only a build (the tests' one), NVRTC and a host compiler:

    python benchmarks/gpu_check.py run payloads --build build/dev

`run` takes under four minutes, uses nothing but Python's standard library and ends with the line `gpu_check: ok` or
`gpu_check: WRONG`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

WORKERS = (1, 2, 4, 8, 16)
TIME_LIMIT = 230  # seconds


def prepare(folder: Path, gpu: str) -> None:
    """Writes payloads with CUDA source: ops of each kind, and eight convolutions to time compilation."""
    sys.path.insert(0, str(Path(__file__).parent / "compile"))
    from bench_compile import HARMONICS, allowed, write_payloads
    from stablemd.oeq import make_kernel, make_problem

    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, family: str, in1: str, out: str, deterministic: bool = False, **options) -> None:
        problem = make_problem(in1, HARMONICS, out, allowed(in1, HARMONICS, out), **options)
        kernel = make_kernel(problem, family, gpu=gpu, deterministic=deterministic)
        (folder / f"{name}.json").write_text(kernel.payload)

    narrow, wide = "32x0e+32x1o", "128x0e+128x1o"
    for dtype in ("float32", "float64"):
        write(f"tp_{dtype}", "tp", narrow, narrow, dtype=dtype)
        write(f"tp_shared_{dtype}", "tp", narrow, narrow, dtype=dtype, shared_weights=True)
        write(f"conv_{dtype}", "conv", narrow, narrow, dtype=dtype)
        write(f"conv_det_{dtype}", "conv", narrow, narrow, deterministic=True, dtype=dtype)
    write("conv_ir_mul", "conv", narrow, narrow, layout="ir_mul")
    write("conv_mace", "conv", wide, wide + "+128x2e+128x3o")
    timing = folder / "timing"
    timing.mkdir(exist_ok=True)
    write_payloads(timing, gpu)


def time_compilation(program: Path, payloads: list[str], architecture: str, all_workers: list[int]) -> None:
    print(f"{'workers':>8} {'seconds':>10}")
    for workers in all_workers:
        command = [program, "nvrtc", architecture, *payloads]
        environment = {**os.environ, "OEQ_CACHE": "off", "OEQ_COMPILE_THREADS": str(workers)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)
        print(f"{workers:>8} {result.stdout.strip() or result.stderr.strip():>10}", flush=True)


def run(folder: Path, build: Path, architecture: str, all_workers: list[int]) -> None:
    programs = build / "benchmarks/compile"
    ops = sorted(str(path) for path in folder.glob("*.json"))
    timing = sorted(str(path) for path in (folder / "timing").glob("*.json"))
    environment = {**os.environ, "OEQ_CACHE": "off"}
    checked = subprocess.run([programs / "oeq_gpu_check", *ops], env=environment, timeout=TIME_LIMIT)
    print()
    time_compilation(programs / "oeq_compile_kernels", timing, architecture, all_workers)
    print("gpu_check:", "ok" if checked.returncode == 0 else "WRONG")
    sys.exit(checked.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", default="h200", help="the GPU that payloads are made for (default h200)")
    parser.add_argument("--build", type=Path, help="CMake's build folder")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="to time compilation with")
    parser.add_argument("--architecture", default="sm_90", help="what compilation is timed for (default sm_90)")
    options = parser.parse_args()
    if options.action == "prepare":
        prepare(options.folder, options.gpu)
    elif options.build is None:
        parser.error("run needs --build")
    else:
        run(options.folder, options.build, options.architecture, options.workers)


if __name__ == "__main__":
    main()
