# SPDX-License-Identifier: BSD-3-Clause
"""The Nequix example against Nequix' own calculator and, in double precision, against its own forward pass.

Needs nequix: `make test-nequix` runs this.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nequix", reason="nequix is not installed; make test-nequix runs this")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "potentials"))

import equinox
import jax
import jax.numpy as jnp
import jraph
import nequix_model
from ase.build import bulk
from nequix.calculator import NequixCalculator
from nequix.data import atomic_numbers_to_indices, dict_to_graphstuple, preprocess_graph
from nequix.model import save_model
from stablemd import StableMDCalculator


def carbide(rng, repeat):
    atoms = bulk("SiC", "zincblende", a=4.36, cubic=True) * repeat
    atoms.set_cell(atoms.cell @ (np.eye(3) + rng.uniform(-0.06, 0.06, (3, 3))), scale_atoms=True)
    atoms.positions += rng.normal(0.0, 0.12, atoms.positions.shape)
    return atoms


@pytest.fixture(scope="module")
def model():
    return nequix_model.random_model(seed=3)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory, executable_cache):
    folder = tmp_path_factory.mktemp("nequix")
    summaries = {d: nequix_model.export(folder / f"{d}.safetensors", *model, d) for d in ("float32", "float64")}
    return {dtype: summary.path for dtype, summary in summaries.items()}


def test_against_its_own_calculator(model, exported, tmp_path, rng):
    path = tmp_path / "model.nqx"
    save_model(path, *model)
    theirs = NequixCalculator(model_path=path, use_kernel=False)
    ours = StableMDCalculator(exported["float32"])
    for repeat in ((1, 1, 1), (2, 1, 1)):
        atoms = carbide(rng, repeat)
        expected = theirs.get_property("forces", atoms)
        largest = np.abs(expected).max()
        # both round, and theirs also adds atomic energies and positions in single precision
        np.testing.assert_allclose(ours.get_property("forces", atoms), expected, atol=4e-5 * largest, rtol=0)
        assert abs(ours.results["energy"] - theirs.results["energy"]) < 4e-6 * len(atoms)
        stress = theirs.get_property("stress", atoms)
        np.testing.assert_allclose(ours.results["stress"], stress, atol=4e-5 * np.abs(stress).max(), rtol=0)


def test_against_its_own_forward_pass_in_double(model, exported, rng):
    own, config = model
    atoms = carbide(rng, (1, 1, 1))
    plain = preprocess_graph(atoms, atomic_numbers_to_indices(config["atomic_numbers"]), config["cutoff"], False)
    with jax.enable_x64(True):
        plain.update(positions=atoms.positions, cell=atoms.cell.array, shifts=plain["shifts"].astype(np.float64))
        weights, rest = equinox.partition(own, equinox.is_inexact_array)
        double = equinox.combine(jax.tree.map(lambda w: w.astype(jnp.float64), weights), rest)
        # its last graph is padding, and it masks that
        padded = jraph.pad_with_graphs(dict_to_graphstuple(plain), len(atoms) + 1, plain["n_edge"][0] + 1, 2)
        energy, forces, stress = equinox.filter_jit(double)(padded)
    atoms.calc = StableMDCalculator(exported["float64"])
    assert float(energy[0]) == pytest.approx(atoms.get_potential_energy(), abs=1e-8 * len(atoms))
    np.testing.assert_allclose(atoms.get_forces(), np.array(forces)[: len(atoms)], atol=1e-7, rtol=0)
    np.testing.assert_allclose(atoms.get_stress(voigt=False), np.array(stress[0]), atol=1e-9, rtol=0)
