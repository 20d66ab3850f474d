# SPDX-License-Identifier: GPL-2.0-or-later
"""The cores that a rank takes where it says nothing: its share among all ranks of a launch on this host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structures
from lammps_runner import Setup, preparation

CORES = sorted(os.sched_getaffinity(0))
SCRIPTS = Path(sys.executable).parent
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def threads_of(text: str) -> int:
    return int(re.search(r"(\d+) threads? per rank", text)[1])


@pytest.fixture
def script(toy_bundle, tmp_path):
    lines = preparation(Setup(toy_bundle("message_passing"), ["Si", "C"]), structures.dimer(), tmp_path, "data.0")
    (tmp_path / "in.lammps").write_text("\n".join([*lines, "run 0"]) + "\n")
    return lines


def launched(folder, *words, environment=None):
    """Standard output of a command in which lmp and mpirun are this environment's."""
    words = [str(SCRIPTS / word) if word in ("lmp", "mpirun") else word for word in words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_rank_takes_all(script, tmp_path):
    assert threads_of(launched(tmp_path, "lmp", "-in", "in.lammps")) == len(CORES)


@needs_two_cores
def test_partitions_share_the_host(script, tmp_path):
    """Each replica is a world of its own; two of one rank each must not both take every core."""
    launched(tmp_path, "mpirun", "-np", "2", "lmp", "-partition", "2x1", "-in", "in.lammps", "-log", "log")
    for world in (0, 1):
        assert threads_of((tmp_path / f"log.{world}").read_text()) == len(CORES) // 2


@needs_two_cores
def test_a_partition_without_the_style_does_not_hang(script, tmp_path):
    lines = [f"partition yes 1 {line}" if line.startswith("pair_") else line for line in script]
    lines += ["partition yes 2 pair_style zero 4.0", "partition yes 2 pair_coeff * *", "run 0"]
    (tmp_path / "in.lammps").write_text("\n".join(lines) + "\n")
    launched(tmp_path, "mpirun", "-np", "2", "lmp", "-partition", "2x1", "-in", "in.lammps", "-log", "log")
    assert threads_of((tmp_path / "log.0").read_text()) == len(CORES) // 2


@needs_two_cores
def test_partitions_of_a_launcher_that_tells_nothing(script, tmp_path):
    lmp = f"env -u MPI_LOCALNRANKS {SCRIPTS / 'lmp'} -partition 2x1 -in in.lammps -log log"
    launched(tmp_path, "mpirun", "-np", "2", "sh", "-c", lmp)
    for world in (0, 1):
        assert threads_of((tmp_path / f"log.{world}").read_text()) == len(CORES) // 2


@needs_two_cores
def test_bound_ranks_keep_what_they_are_bound_to(script, tmp_path):
    words = ["mpirun", "-bind-to", "core", "-np", "2", "lmp", "-partition", "2x1", "-in", "in.lammps", "-log", "log"]
    launched(tmp_path, *words)
    for world in (0, 1):
        assert threads_of((tmp_path / f"log.{world}").read_text()) == 1


@needs_two_cores
def test_a_launch_on_part_of_the_host(script, tmp_path):
    words = ["taskset", "-c", str(CORES[0]), "mpirun", "-np", "2", "lmp", "-in", "in.lammps", "-log", "log"]
    assert threads_of(launched(tmp_path, *words)) == 1


PIECES = """
import ctypes, sys
from mpi4py import MPI
from lammps import lammps
rank = MPI.COMM_WORLD.Get_rank()
lmp = lammps(comm=MPI.COMM_WORLD.Split(rank, 0), cmdargs=["-screen", "none", "-log", f"log.{rank}"])
lmp.file("in.lammps")
"""


@needs_two_cores
def test_instances_on_parts_of_a_communicator(script, tmp_path):
    """Of each other they know nothing but what the launcher tells."""
    pytest.importorskip("mpi4py")
    launched(tmp_path, "mpirun", "-np", "2", sys.executable, "-c", PIECES)
    for rank in (0, 1):
        assert threads_of((tmp_path / f"log.{rank}").read_text()) == len(CORES) // 2


@needs_two_cores
def test_instances_started_one_by_one_by_ranks(script, tmp_path):
    """Programs of one rank each, such as ASE starts them from every rank of a job: the environment is the launch's."""
    lmp = f"{SCRIPTS / 'lmp'} -in in.lammps -log log.$MPI_LOCALRANKID -screen none"
    launched(tmp_path, "mpirun", "-np", "2", "sh", "-c", f"env -u PMI_RANK -u PMI_FD {lmp}")
    for rank in (0, 1):
        assert threads_of((tmp_path / f"log.{rank}").read_text()) == len(CORES) // 2


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "7(x2),2", "SLURM_NODEID": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2),7", "SLURM_NODEID": "1"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "nonsense", "SLURM_NODEID": "x"}, 1),
        ({"SLURM_TASKS_PER_NODE": "64"}, 1),  # a job's script is no launch
    ],
)
@needs_two_cores
def test_what_other_launchers_tell(script, tmp_path, environment, ranks):
    output = launched(tmp_path, "lmp", "-in", "in.lammps", environment=environment)
    assert threads_of(output) == max(1, len(CORES) // ranks)
