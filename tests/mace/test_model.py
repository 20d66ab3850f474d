# SPDX-License-Identifier: BSD-3-Clause
"""What must hold for any structure: symmetries, derivatives, locality, whatever the layout of the graph."""

from __future__ import annotations

from dataclasses import replace

import ase
import ase.io
import jax
import numpy as np
import pytest
from ase.build import bulk, molecule
from evaluation import Evaluator
from graphs import forces_and_stress, with_ghosts
from scipy.spatial.transform import Rotation
from stablemd.mace import load


@pytest.fixture(scope="module")
def evaluators(data):
    return {name: Evaluator(load(data / name / "mace-jax")) for name in ("sic", "bpa", "reduced")}


@pytest.fixture
def rng():
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def ethanol(rng) -> ase.Atoms:
    atoms = molecule("CH3CH2OH")
    atoms.positions += rng.normal(scale=0.05, size=(len(atoms), 3))
    return atoms


def silicon_carbide(rng, repeat=(2, 1, 1)) -> ase.Atoms:
    """Triclinic, smaller than the cutoff in two directions."""
    atoms = bulk("SiC", "zincblende", a=4.36) * repeat
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(scale=0.03, size=(3, 3))), scale_atoms=True)
    atoms.positions += rng.normal(scale=0.1, size=(len(atoms), 3))
    return atoms


# 64x0e, and 0e+1o with and without a residual first block
@pytest.mark.parametrize("name", ["sic", "bpa", "reduced"])
def test_rotation_reflection_and_permutation(evaluators, rng, name):
    evaluate = evaluators[name]
    atoms = silicon_carbide(rng) if name == "sic" else ethanol(rng)
    before = evaluate(atoms)
    turn = Rotation.random(random_state=int(rng.integers(2**31))).as_matrix() * rng.choice([-1, 1])
    order = rng.permutation(len(atoms))
    turned = atoms[order]
    turned.set_cell(atoms.cell.array @ turn.T)
    turned.positions = atoms.positions[order] @ turn.T
    after = evaluate(turned)
    assert np.abs(after.energies - before.energies[order]).max() < 1e-10
    assert np.abs(after.forces - before.forces[order] @ turn.T).max() < 1e-9


@pytest.mark.parametrize("name", ["sic", "bpa"])
def test_what_runs_on_cuda_is_the_same_function(evaluators, data, rng, name):
    """It takes other blocks; here on the CPU."""
    potential = load(data / name / "mace-jax")
    atoms = silicon_carbide(rng) if name == "sic" else ethanol(rng)
    expected = evaluators[name](atoms)
    found = Evaluator(replace(potential, energy_fn=potential.platform_energy_fns["cuda"]))(atoms)
    assert np.abs(found.energies - expected.energies).max() < 1e-10
    assert np.abs(found.forces - expected.forces).max() < 1e-10


def slope(energy, step):
    """Central difference of fourth order: random strains meet third derivatives too large for the second order."""
    return (energy(-2 * step) - 8 * energy(-step) + 8 * energy(step) - energy(2 * step)) / (12 * step)


@pytest.mark.parametrize("name", ["sic", "bpa", "reduced"])
def test_forces_are_minus_the_derivative_of_the_energy(evaluators, rng, name):
    evaluate = evaluators[name]
    atoms = silicon_carbide(rng) if name == "sic" else ethanol(rng)
    least = (len(atoms) + 1, evaluate.fold(atoms).graph.edges[0] + 20)
    forces = evaluate(atoms, least=least).forces
    direction = rng.normal(size=(len(atoms), 3))

    def energy(step):
        moved = atoms.copy()
        moved.positions += step * direction
        return evaluate(moved, least=least).energy

    # 4,000 eV of atomic energies leave 1e-12 eV of rounding
    assert slope(energy, 1e-4) == pytest.approx(-(forces * direction).sum(), abs=1e-7)


def test_stress_is_the_derivative_in_the_strain(evaluators, rng):
    evaluate = evaluators["sic"]
    atoms = silicon_carbide(rng)
    least = (len(atoms) + 1, evaluate.fold(atoms).graph.edges[0] + 40)
    stress = evaluate(atoms, least=least).stress
    strain = rng.normal(size=(3, 3))
    strain = (strain + strain.T) / 2

    def energy_density(step):
        strained = atoms.copy()
        strained.set_cell(atoms.cell.array @ (np.eye(3) + step * strain), scale_atoms=True)
        return evaluate(strained, least=least).energy / atoms.get_volume()

    full = stress[[[0, 5, 4], [5, 1, 3], [4, 3, 2]]]
    assert slope(energy_density, 3e-5) == pytest.approx((full * strain).sum(), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_padding_changes_nothing(data, rng, dtype):
    evaluate = Evaluator(load(data / "sic" / "mace-jax"), dtype)
    atoms = silicon_carbide(rng)
    tight, roomy = evaluate(atoms), evaluate(atoms, extra=(9, 700))
    tolerance = 1e-11 if dtype is np.float64 else 2e-6
    assert np.abs(tight.energies - roomy.energies).max() < tolerance
    assert np.abs(tight.forces - roomy.forces).max() < 10 * tolerance


def test_the_gradient_of_padding_is_zero(evaluators, rng):
    evaluate = evaluators["sic"]
    built = evaluate.fold(silicon_carbide(rng), extra=(3, 50))
    _, gradient = evaluate.graph(built)
    assert not gradient[~built.real].any()


@pytest.mark.parametrize("name", ["sic", "reduced"])
def test_ghosts_by_hops_give_what_folding_gives(evaluators, rng, name):
    evaluate = evaluators[name]
    atoms = silicon_carbide(rng) if name == "sic" else ethanol(rng)
    whole = evaluate(atoms)
    p = evaluate.potential
    gradient_sum = np.zeros((len(atoms), 3))
    # Each half of the atoms in turn is owned, as on two ranks.
    for first in (np.arange(len(atoms)), np.roll(np.arange(len(atoms)), len(atoms) // 2)):
        owned = len(atoms) // 2 if first[0] == 0 else len(atoms) - len(atoms) // 2
        order = first if first[0] == 0 else np.roll(np.arange(len(atoms)), -(len(atoms) // 2))
        part = atoms[order]
        built = with_ghosts(part, p.elements, p.cutoff, p.layers, owned, extra=(2, 7))
        rows, edges = built.graph.rows, built.graph.edges
        assert rows[0] >= rows[1] > rows[2] and edges[1] > edges[2]
        assert name != "sic" or rows[0] > rows[1]
        energies, gradient = evaluate.graph(built)
        energies = energies + p.atomic_energies[built.graph.species[:owned]]
        assert np.abs(energies - whole.energies[order[:owned]]).max() < 1e-10
        forces, _ = forces_and_stress(built, gradient, part)
        gradient_sum[order] += forces
    assert np.abs(gradient_sum - whole.forces).max() < 1e-9


def test_energy_is_smooth_at_the_cutoff(evaluators):
    evaluate = evaluators["sic"]
    cutoff = evaluate.potential.cutoff
    alone = evaluate(ase.Atoms("SiC", [[0, 0, 0], [cutoff + 1, 0, 0]]))
    for inside in (1e-2, 1e-3):
        pair = evaluate(ase.Atoms("SiC", [[0, 0, 0], [cutoff - inside, 0, 0]]))
        # The cutoff function vanishes with the third power of what is left, the force with the second.
        assert abs(pair.energy - alone.energy) < 50 * inside**3
        assert np.abs(pair.forces).max() < 150 * inside**2
    assert np.abs(alone.forces).max() == 0


def test_an_edge_at_or_beyond_the_cutoff_contributes_nothing(evaluators):
    evaluate = evaluators["sic"]
    built = evaluate.fold(ase.Atoms("SiC", [[0, 0, 0], [1.8, 0, 0]]))
    for distance in (evaluate.potential.cutoff, 1.5 * evaluate.potential.cutoff):
        vectors = built.graph.vectors.copy()
        vectors[built.real] *= distance / 1.8
        moved = type(built)(
            type(built.graph)(**{**vars(built.graph), "vectors": vectors}), built.centers, built.neighbors
        )
        energies, gradient = evaluate.graph(moved)
        alone = evaluate(ase.Atoms("SiC", [[0, 0, 0], [50, 0, 0]])).energies
        assert energies + evaluate.potential.atomic_energies[[1, 0]] == pytest.approx(alone, abs=1e-12)
        assert not gradient.any()


def test_isolated_atoms_have_the_energy_of_the_file(evaluators, data):
    frames = ase.io.read(data / "sic" / "mace-jax" / "reference.extxyz", ":")
    isolated = next(atoms for atoms in frames if atoms.info["kind"] == "isolated atom")
    assert isolated.symbols[0] == "Si"
    lone = evaluators["sic"](ase.Atoms("Si"), least=(4, 4))
    assert lone.energy == pytest.approx(isolated.arrays["ref_node_energy"][0], abs=1e-8)


def test_a_subset_of_elements_gives_the_same_numbers_with_smaller_weights(data, rng, evaluators):
    atoms = ethanol(rng)[[0, 1, 3, 4, 5, 6, 7, 8]]
    full = load(data / "bpa" / "mace-jax")
    part = load(data / "bpa" / "mace-jax", elements=["O", "H", "C"])
    assert part.elements == ("O", "H", "C")
    sizes = [sum(array.size for array in _leaves(p.params)) for p in (part, full)]
    assert sizes[0] < sizes[1]
    expected, result = evaluators["bpa"](atoms), Evaluator(part)(atoms)
    assert np.abs(result.energies - expected.energies).max() < 1e-10
    assert np.abs(result.forces - expected.forces).max() < 1e-10


def _leaves(tree):
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _leaves(value)
    else:
        assert isinstance(tree, np.ndarray) and tree.dtype == np.float64
        yield tree


def test_differentiating_in_the_parameters_is_refused(evaluators, rng):
    evaluate = evaluators["sic"]
    graph = evaluate.fold(silicon_carbide(rng)).graph
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.grad(lambda params: evaluate.potential.energy_fn(params, graph).sum())(evaluate.params)
