# SPDX-License-Identifier: BSD-3-Clause
"""What importing the package costs, and which names it has."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import stablemd

HEAVY = ("jax", "jaxlib", "numpy", "ase", "click", "safetensors", "vesin", "torch", "stablemd._connector")


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code, allowed",
    [
        ("import stablemd; stablemd.__version__; dir(stablemd)", set()),
        ("from stablemd._lammps import plugin_folder; plugin_folder()", set()),
        ("from stablemd import StableMDError", set()),
        ("from stablemd import Graph", set()),
        ("from stablemd import Potential", {"numpy"}),
        ("import stablemd._cli", {"click"}),
        ("from stablemd import StableMDCalculator", set(HEAVY) - {"jax", "jaxlib", "torch", "click"}),
    ],
)
def test_imports_are_light(code, allowed):
    assert modules_after(code) & set(HEAVY) <= allowed


def test_every_public_name_is_there():
    for name in stablemd.__all__:
        assert getattr(stablemd, name) is not None
        assert name in dir(stablemd)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = stablemd.nothing


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert stablemd.__version__ == version("stablemd")


def test_lammps_finds_the_plugin_folder():
    (entry,) = [e for e in entry_points(group="lammps.plugins") if e.name == "stablemd"]
    assert entry.load()().endswith("lib")


def test_errors_match_the_status_codes_of_the_header():
    from pathlib import Path

    from stablemd._errors import BY_STATUS

    header = Path(__file__).parents[2] / "connector/include/stablemd.h"
    import re

    codes = {int(n): name for name, n in re.findall(r"SMD_ERROR_(\w+) = (\d+)", header.read_text())}
    assert set(codes) == set(BY_STATUS)
    names = {"ARGUMENT": "ArgumentError", "FILE": "FileError", "FORMAT": "FormatError", "PLUGIN": "PluginError"}
    names |= {"PROVIDER": "ProviderError", "COMPILE": "CompileError", "EXECUTION": "ExecutionError"}
    names |= {"MEMORY": "OutOfMemoryError", "INTERNAL": "InternalError"}
    for code, name in codes.items():
        assert BY_STATUS[code].__name__ == names[name]
        assert issubclass(BY_STATUS[code], stablemd.StableMDError)
