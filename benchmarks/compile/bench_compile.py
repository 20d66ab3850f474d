"""How long eight distinct kernels take to compile: by one worker and by several, and by OpenEquivariance's scheme.

    python benchmarks/compile/bench_compile.py --build build/dev

CPU: one executable with the second derivatives of eight convolutions (the longest kernels), compiled and run once
through a PJRT plugin. NVRTC: the same eight problems' CUDA source, which holds all derivatives, for two architectures,
through the handlers' stages on a stand-in for the GPU (needs the packages openequivariance and nvidia-cuda-nvrtc).
Every run is a process of its own, with caches off. All schemes are run in turn, several times, and the best of each
counts: what other jobs on the machine do can only make a run slower. Where it may, the benchmark asks for real-time
priority, so that they hardly get in its way.

The last line sums up, for NVRTC the worse of the architectures; a part that cannot run here is "nan".
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
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
        out = in1 + (f"+{channels}x2e+{channels}x3o" if number >= 4 else "")
        problem = make_problem(in1, HARMONICS, out, allowed(in1, HARMONICS, out))
        path = folder / f"{gpu or 'cpu'}_{number}.json"
        path.write_text(make_kernel(problem, "conv", gpu=gpu).payload)
        paths.append(path)
    return paths


@dataclass
class Scheme:
    """One way to compile the kernels, and the seconds that it took."""

    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def run(self, program: Path) -> None:
        environment = {**os.environ, "OEQ_CACHE": "off", **self.environment}
        result = subprocess.run([program, *self.arguments], env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{program.name} {' '.join(self.arguments[:3])}: {result.stderr.strip()}")
        self.seconds.append(float(result.stdout.split()[-1]))

    @property
    def best(self) -> float:
        return min(self.seconds)


def with_workers(arguments: list[str], workers: list[int], **environment: str) -> dict[str, Scheme]:
    return {
        f"{n} worker{'s' if n > 1 else ''}": Scheme(arguments, {**environment, "OEQ_COMPILE_THREADS": str(n)})
        for n in workers
    }


def measure(title: str, schemes: dict[str, Scheme], program: Path, rounds: int) -> None:
    """Runs all schemes in turn and prints the best of each."""
    for _ in range(rounds):
        for scheme in schemes.values():
            scheme.run(program)
    base = next(iter(schemes.values())).best
    print(title)
    for name, scheme in schemes.items():
        times = " ".join(f"{seconds:.2f}" for seconds in sorted(scheme.seconds))
        print(f"  {name:<26}{scheme.best:8.2f} s  x{base / scheme.best:.2f}   (of {times})")
    print(flush=True)


def bench_cpu(program: Path, provider: Path, workers: list[int], folder: Path, rounds: int) -> float:
    files = [str(path) for path in write_payloads(folder, None)]
    schemes = with_workers(["xla", cpu_plugin(), str(provider), *files], workers)
    measure(f"CPU: {KERNELS} kernels through one executable", schemes, program, rounds)
    return schemes["1 worker"].best / schemes["2 workers"].best


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


def bench_nvrtc(program: Path, workers: list[int], folder: Path, rounds: int) -> tuple[float, float]:
    nvrtc = nvrtc_path()
    files = [str(path) for path in write_payloads(folder, "h200")]
    two_workers, vs_mutex = [], []
    for architecture in ARCHITECTURES:
        schemes = with_workers(["nvrtc", architecture, *files], workers, OEQ_NVRTC=nvrtc)
        mutex = schemes["one mutex, split-compile"] = Scheme(["mutex", architecture, *files], {"OEQ_NVRTC": nvrtc})
        measure(f"NVRTC, {architecture}: {KERNELS} kernels", schemes, program, rounds)
        two = schemes["2 workers"].best
        two_workers.append(schemes["1 worker"].best / two)
        vs_mutex.append(mutex.best / two)
    return min(two_workers), min(vs_mutex)


def cpu_plugin() -> str:
    import lammps_jax_pjrt_cpu

    return str(Path(lammps_jax_pjrt_cpu.__file__).parent / "pjrt_c_api_cpu_plugin.so")


def ask_for_priority() -> str:
    """Real-time priority for this process and those it starts; returns whether it was granted, in words."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return "with ordinary priority"
    return "with real-time priority"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="CMake's build folder")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    program = options.build / "benchmarks/compile/oeq_compile_kernels"
    provider = options.build / "oeq_native/liboeq_native.so"
    cores = len(os.sched_getaffinity(0))
    workers = sorted({1, 2} | {n for n in (4, 8, 16) if n <= cores})
    print(f"{cores} cores, best of {options.rounds} runs {ask_for_priority()}\n")

    nvrtc_two = nvrtc_mutex = math.nan
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_two = bench_cpu(program, provider.resolve(), workers, folder, options.rounds)
        try:
            nvrtc_two, nvrtc_mutex = bench_nvrtc(program, workers, folder, options.rounds)
        except ImportError as error:
            print(f"NVRTC: not measured: {error}\n")
    print(f"cpu_two_workers={cpu_two:.2f} nvrtc_two_workers={nvrtc_two:.2f} nvrtc_vs_mutex={nvrtc_mutex:.2f}")


if __name__ == "__main__":
    main()
