"""OpenEquivariance's own provider, and ours, through the connector's provider loader, without a GPU.

$OEQ_EXTJAX_SDIST is the sdist of openequivariance-extjax 0.7.0, which `make test` downloads. CUDA's headers come from
nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-nvrtc; CUDA's libraries are replaced by stubs. The PJRT plugin for
CUDA lies in $OEQ_CUDA_PACKAGES, which `make test-cuda` sets up.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = [f"{family}_{order}" for family in ("tp", "conv") for order in ("forward", "backward", "double_backward")]


def package_file(module: str, path: str) -> Path:
    """A file of an installed package; skips the test where there is none."""
    spec = importlib.util.find_spec(module)
    for folder in spec.submodule_search_locations if spec else []:
        if (found := Path(folder) / path).exists():
            return found
    pytest.skip(f"{path} of {module} is not installed")


def built(pattern: str) -> Path:
    """A file that the native build made; $OEQ_BUILD is its folder."""
    build = Path(os.environ.get("OEQ_BUILD", ROOT / "build"))
    found = sorted(build.glob(f"**/{pattern}"), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip(f"{pattern} is not built (STABLEMD_TESTS=ON)")
    return found[-1]


def register(plugin: Path, device: str, provider: Path) -> str:
    """What provider_targets prints."""
    result = subprocess.run(
        [built("oeq_provider_targets"), plugin, device, *TARGETS],
        env={**os.environ, "STABLEMD_FFI_PATH": str(provider)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return result.stdout


def all_registered(providers: int) -> str:
    return f"providers: {providers}\n" + "".join(f"{target}: registered\n" for target in TARGETS)


@pytest.fixture(scope="session")
def cpu_plugin() -> Path:
    return package_file("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so")


@pytest.fixture(scope="session")
def cuda_plugin() -> Path:
    packages = os.environ.get("OEQ_CUDA_PACKAGES")
    if packages is None:
        pytest.skip("needs a PJRT plugin for CUDA: make test-cuda")
    return Path(packages, "jax_plugins/xla_cuda13/xla_cuda_plugin.so").resolve(strict=True)


@pytest.fixture(scope="session")
def upstream_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    sdist = os.environ.get("OEQ_EXTJAX_SDIST")
    if sdist is None:
        pytest.skip("OEQ_EXTJAX_SDIST is not set: make test")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("openequivariance_extjax-*/src"))


def run(*command: str | Path) -> str:
    result = subprocess.run(list(command), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def cuda_include() -> list[str]:
    headers = [
        package_file("nvidia", f"cu13/include/{name}") for name in ("cuda_runtime.h", "crt/host_config.h", "nvrtc.h")
    ]
    return [f"-I{headers[0].parent}"]


def compile_objects(sources: list[Path], folder: Path, flags: list[str]) -> list[Path]:
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        run("c++", "-std=c++17", "-O0", "-fPIC", "-w", *flags, "-c", source, "-o", objects[-1])
    return objects


def compile_cuda_stubs(objects: list[Path], folder: Path) -> Path:
    """A library that defines every CUDA function that the objects call; each fails."""
    undefined = run("nm", "-u", *objects).split()
    names = sorted({name for name in undefined if re.fullmatch(r"(cu|cuda|nvrtc)[A-Z]\w*", name)})
    assert len(names) > 20
    source = folder / "cuda_stubs.c"
    source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in names))
    stubs = folder / "libcuda_stubs.so"
    run("cc", "-shared", "-fPIC", source, "-o", stubs)
    return stubs


@pytest.fixture(scope="session")
def upstream_provider(upstream_sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("provider")
    extension = upstream_sources / "extension"
    flags = [f"-I{upstream_sources}", f"-I{extension}", "-DCUDA_BACKEND=1", *cuda_include()]
    flags.append(f"-I{package_file('jaxlib', 'include')}")
    sources = [
        upstream_sources / "ffi_provider.cpp",
        upstream_sources / "ffi_handlers.cpp",
        extension / "json11/json11.cpp",
    ]
    objects = compile_objects(sources, folder, flags)
    stubs = compile_cuda_stubs(objects, folder)
    provider = folder / "libupstream_provider.so"
    run("c++", "-shared", *objects, stubs, f"-Wl,-rpath,{folder}", "-o", provider)
    return provider


def test_upstreams_targets_register_on_the_cuda_plugin(cuda_plugin: Path, upstream_provider: Path) -> None:
    assert register(cuda_plugin, "cuda", upstream_provider).endswith(all_registered(1))


def test_upstreams_targets_register_on_a_cpu_plugin(cpu_plugin: Path, upstream_provider: Path) -> None:
    assert register(cpu_plugin, "cpu", upstream_provider).endswith(all_registered(1))


def test_our_targets_register_on_the_cuda_plugin(cuda_plugin: Path) -> None:
    assert register(cuda_plugin, "cuda", built("liboeq_native.so")) == all_registered(1)


def test_our_targets_register_on_a_cpu_plugin(cpu_plugin: Path) -> None:
    assert register(cpu_plugin, "cpu", built("liboeq_native.so")) == all_registered(1)


def test_upstreams_consumer_refuses_our_table(upstream_sources: Path, tmp_path: Path, cpu_plugin: Path) -> None:
    """OpenEquivariance's consumer knows version 2 of the table and must not read ours."""
    table = tmp_path / "our_version.cc"
    table.write_text(
        '#include "ffi_handler_table.h"\n'
        "static const OeqFfiHandlerTable table = {3, 0, nullptr};\n"
        'extern "C" const OeqFfiHandlerTable *oeq_ffi_handler_table() { return &table; }\n'
    )
    flags = [f"-I{upstream_sources}", f"-I{package_file('jaxlib', 'include')}"]
    objects = compile_objects([upstream_sources / "ffi_provider.cpp", table], tmp_path, flags)
    provider = tmp_path / "libconsumer.so"
    run("c++", "-shared", *objects, "-o", provider)
    assert "RegisterFFi failed with code 1" in register(cpu_plugin, "cpu", provider)
