# SPDX-License-Identifier: BSD-3-Clause
"""What README, the manual and the examples tell users to run, run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def python_blocks(document):
    """Python blocks that stand on their own: they import something other than what a reader already has."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [block for block in blocks if "export_" in block]


def run(*words, cwd):
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that looks like the checkout's top to commands that name files in it, with both models exported."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("examples", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for model in ("sic", "bpa"):
        run(BIN / "stablemd", "export", f"tests/data/{model}/mace-jax", "-o", f"{model}.safetensors", cwd=folder)
    return folder


@pytest.mark.parametrize("document", ["README.md", "docs/export.md"])
def test_python_blocks(document, place):
    blocks = python_blocks(document)
    assert blocks
    for block in blocks:
        run(sys.executable, "-c", block, cwd=place)
    assert any(place.glob("*.safetensors"))


@pytest.mark.parametrize(
    "script", ["sic/equation_of_state.py", "bpa/relax.py", "bpa/write_data.py", "potentials/behler_parrinello.py"]
)
def test_ase_examples(script, place):
    assert run(sys.executable, f"examples/{script}", cwd=place)


@pytest.mark.parametrize(
    "script, variables",
    [
        ("sic/in.nve", {"cells": 2, "steps": 5}),
        ("sic/in.npt", {"cells": 2, "steps": 5}),
        ("sic/in.deform", {"cells": 1, "steps": 20}),
        ("bpa/in.molecule", {"steps": 5}),
        ("bpa/in.minimize", {"steps": 3}),
        ("potentials/in.silicon", {"cells": 2, "steps": 5}),
    ],
)
def test_lammps_examples(script, variables, place):
    for name, preparation in (("bpa", "bpa/write_data.py"), ("potentials", "potentials/stillinger_weber.py")):
        if script.startswith(name):
            run(sys.executable, f"examples/{preparation}", cwd=place)
    words = [word for key, value in variables.items() for word in ("-var", key, value)]
    output = run(BIN / "lmp", "-in", f"examples/{script}", *words, cwd=place)
    assert "Loop time" in output
    assert "Evaluations:" in output


def test_readme_names_real_files():
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target


def test_readme_commands_exist():
    """Every `stablemd` subcommand and `make` target that README names exists."""
    text = (ROOT / "README.md").read_text()
    help_text = run(BIN / "stablemd", "--help", cwd=ROOT)
    for command in set(re.findall(r"stablemd (export|info|check|cache)\b", text)):
        assert command in help_text
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z-]+)`", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert shutil.which("make")
