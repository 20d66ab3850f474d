"""How long eight distinct kernels take to compile: by one worker and by several, and by OpenEquivariance's scheme.

    python benchmarks/compile/bench_compile.py --build build/dev

CPU: one executable with eight convolutions, compiled and run once through a PJRT plugin. NVRTC: the same eight
problems' CUDA source (needs the packages openequivariance and nvidia-cuda-nvrtc, no GPU) for two architectures. Every
figure is the median of `--repeats` fresh processes, schemes in turn. The last line sums up, for NVRTC the worse of the
architectures; a part that cannot run here is "nan".
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from stablemd.oeq import make_kernel, make_problem

KERNELS = 8
ARCHITECTURES = ("sm_80", "sm_90")
HARMONICS = "1x0e+1x1o+1x2e+1x3o"


def allowed(in1: str, in2: str, out: str) -> list[tuple]:
    """Every uvu instruction that couples these blocks."""

    def blocks(irreps: str) -> list[tuple[int, int]]:
        terms = (term.split("x")[1] for term in irreps.split("+"))
        return [(int(term[:-1]), 1 if term[-1] == "e" else -1) for term in terms]

    return [
        (i, j, k, "uvu", True)
        for (i, (l1, p1)), (j, (l2, p2)), (k, (l3, p3)) in itertools.product(
            enumerate(blocks(in1)), enumerate(blocks(in2)), enumerate(blocks(out))
        )
        if p1 * p2 == p3 and abs(l1 - l2) <= l3 <= l1 + l2
    ]


def write_payloads(folder: Path, gpu: str | None) -> list[Path]:
    """Eight convolutions that differ in channels and in their outputs' ranks."""
    paths = []
    for number in range(KERNELS):
        channels = (32, 64, 96, 128)[number % 4]
        in1 = f"{channels}x0e+{channels}x1o"
        out = in1 + (f"+{channels}x2e" if number >= 4 else "")
        problem = make_problem(in1, HARMONICS, out, allowed(in1, HARMONICS, out))
        path = folder / f"{gpu or 'cpu'}_{number}.json"
        path.write_text(make_kernel(problem, "conv", gpu=gpu).payload)
        paths.append(path)
    return paths


def measure(program: Path, arguments: list[str], environment: dict[str, str]) -> float:
    result = subprocess.run(
        [program, *arguments], env={**os.environ, "OEQ_CACHE": "off", **environment}, capture_output=True, text=True
    )
    if result.returncode != 0:
        sys.exit(f"{program.name} {' '.join(arguments[:3])}: {result.stderr.strip()}")
    return float(result.stdout.split()[-1])


def medians(schemes: dict[str, tuple[list[str], dict[str, str]]], program: Path, repeats: int) -> dict[str, float]:
    """Median seconds of each scheme; rounds of all schemes, so that a slow minute hits each of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in schemes}
    for _ in range(repeats):
        for name, (arguments, environment) in schemes.items():
            seconds[name].append(measure(program, arguments, environment))
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(title: str, seconds: dict[str, float]) -> None:
    base = next(iter(seconds.values()))
    print(title)
    for name, value in seconds.items():
        print(f"  {name:<32} {value:8.2f} s {base / value:6.2f}x")
    print(flush=True)


def bench_cpu(program: Path, plugin: str, provider: Path, workers: list[int], folder: Path, repeats: int) -> float:
    files = [str(path) for path in write_payloads(folder, None)]
    schemes = {
        f"{n} worker{'s' if n > 1 else ''}": (["xla", plugin, str(provider), *files], {"OEQ_COMPILE_THREADS": str(n)})
        for n in workers
    }
    seconds = medians(schemes, program, repeats)
    report(f"CPU: {KERNELS} kernels through one executable", seconds)
    return seconds["1 worker"] / seconds["2 workers"]


def nvrtc_path() -> str:
    """$OEQ_NVRTC, else NVRTC of the package nvidia-cuda-nvrtc; raises ImportError where there is neither."""
    if path := os.environ.get("OEQ_NVRTC"):
        return path
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        for name in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
            if (path := Path(folder) / name).exists():
                return str(path)
    raise ImportError("no NVRTC: pip install nvidia-cuda-nvrtc, or set OEQ_NVRTC")


def bench_nvrtc(program: Path, workers: list[int], folder: Path, repeats: int) -> tuple[float, float]:
    nvrtc = {"OEQ_NVRTC": nvrtc_path()}
    files = [str(path) for path in write_payloads(folder, "h200")]
    two_workers, vs_mutex = [], []
    for architecture in ARCHITECTURES:
        schemes: dict[str, tuple[list[str], dict[str, str]]] = {
            f"{n} worker{'s' if n > 1 else ''}": (["nvrtc", str(n), architecture, *files], nvrtc) for n in workers
        }
        schemes["one mutex, split-compile"] = (["mutex", str(max(workers)), architecture, *files], nvrtc)
        seconds = medians(schemes, program, repeats)
        report(f"NVRTC, {architecture}: {KERNELS} kernels", seconds)
        two_workers.append(seconds["1 worker"] / seconds["2 workers"])
        vs_mutex.append(seconds["one mutex, split-compile"] / seconds["2 workers"])
    return min(two_workers), min(vs_mutex)


def cpu_plugin() -> str:
    import lammps_jax_pjrt_cpu

    return str(Path(lammps_jax_pjrt_cpu.__file__).parent / "pjrt_c_api_cpu_plugin.so")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="CMake's build folder")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    program = options.build / "benchmarks/compile/oeq_compile_kernels"
    provider = options.build / "oeq_native/liboeq_native.so"
    cores = len(os.sched_getaffinity(0))
    workers = sorted({1, 2} | {n for n in (4, 8, 16) if n <= cores})
    print(f"{cores} cores, median of {options.repeats}\n")

    nvrtc_two = nvrtc_mutex = math.nan
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_two = bench_cpu(program, cpu_plugin(), provider.resolve(), workers, folder, options.repeats)
        try:
            nvrtc_two, nvrtc_mutex = bench_nvrtc(program, workers, folder, options.repeats)
        except ImportError as error:
            print(f"NVRTC: not measured: {error}\n")
    print(f"cpu_two_workers={cpu_two:.2f} nvrtc_two_workers={nvrtc_two:.2f} nvrtc_vs_mutex={nvrtc_mutex:.2f}")


if __name__ == "__main__":
    main()
