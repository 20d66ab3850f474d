# SPDX-License-Identifier: GPL-2.0-or-later
"""The heat flux of LAMMPS' formula: exact for models of one layer with centroid stresses, else refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import potentials
import pytest
import structures
from ase.data import atomic_masses
from ase.neighborlist import neighbor_list
from jax_reference import evaluate_in_jax
from lammps_runner import PRESSURE_UNIT, Setup, preparation, read_dump, run_lammps
from stablemd.graph import Graph

ELEMENTS = ["Si", "C"]
MVV2E = 1.0364269e-4  #: LAMMPS' kinetic energy in eV of amu (Å/ps)^2
FLUX = [
    "compute ke all ke/atom",
    "compute pe all pe/atom",
    "compute stress all centroid/stress/atom NULL virial",
    "compute flux all heat/flux ke pe stress",
    "thermo_style custom step pe c_flux[*]",
]


def flux_by_differences(potential, atoms, velocities, step=5e-6):
    """d/dt of sum_i r_i E_i, the definition, from energies at two times around now. eV Å/ps."""
    masses = atomic_masses[atoms.numbers][:, None] * MVV2E
    acceleration = evaluate_in_jax(potential, atoms).forces / masses

    def moment(time):
        moved = atoms.copy()
        moved.positions += time * velocities
        kinetic = 0.5 * (masses * (velocities + time * acceleration) ** 2).sum(axis=1)
        return (evaluate_in_jax(potential, moved).energies + kinetic) @ moved.positions

    return (moment(step) - moment(-step)) / (2 * step)


@pytest.mark.parametrize(("ranks", "options"), [(1, {}), (1, {"style": "decomposition ghost"}), (2, {"newton": "off"})])
def test_exact_for_one_layer(toy_bundle, tmp_path, ranks, options):
    """A model with a three-body term, a cluster in vacuum, against the numerical derivative."""
    atoms = structures.cluster()
    setup = Setup(toy_bundle("embedded_atom"), ELEMENTS, ranks=ranks, **options)
    lines = [*preparation(setup, atoms, tmp_path, "data.0"), "velocity all create 2000 4711 loop geom mom no", *FLUX]
    lines += ["run 0", "print '$(c_flux[1]:%.17g) $(c_flux[2]:%.17g) $(c_flux[3]:%.17g)' file flux"]
    lines += ["write_dump all custom dump.v vx vy vz modify sort id format float %.17g"]
    done = run_lammps(tmp_path, lines, ranks)
    assert done.code == 0, done.output[-3000:]
    ours = np.array((tmp_path / "flux").read_text().split(), dtype=float)
    (velocities,) = read_dump(tmp_path / "dump.v")
    exact = flux_by_differences(potentials.embedded_atom(), atoms, velocities)
    assert np.abs(exact).max() > 1.0
    np.testing.assert_allclose(ours, exact, rtol=0, atol=2e-6 * np.abs(exact).max())


def centroid_stresses(potential, atoms):
    """[atoms, 3, 3]: for each edge the derivative of its centre's energy times its vector, at its end."""
    centres, neighbours, vectors = neighbor_list("ijD", atoms, potential.cutoff)
    species = jnp.array([potential.elements.index(symbol) for symbol in atoms.symbols], jnp.int32)
    rows, edges = (len(atoms),) * 2, (len(centres),) * 2

    def energy(vectors):
        centers, neighbors = jnp.asarray(centres, jnp.int32), jnp.asarray(neighbours, jnp.int32)
        graph = Graph(species, vectors, centers, neighbors, jnp.int32(len(atoms)), rows, edges)
        return potential.energy_fn(jax.tree.map(jnp.asarray, potential.params), graph).sum()

    with jax.enable_x64(True):
        gradient = np.array(jax.grad(energy)(jnp.asarray(vectors)))
    stresses = np.zeros((len(atoms), 3, 3))
    np.add.at(stresses, neighbours, vectors[:, :, None] * gradient[:, None, :])
    return stresses


@pytest.mark.parametrize(
    ("make", "ranks"), [(structures.primitive, 1), (structures.triclinic, 1), (structures.slab, 2)]
)
def test_centroid_stresses(toy_bundle, tmp_path, make, ranks):
    """Also where every atom is its own neighbour, and in skewed cells."""
    bundle, atoms = toy_bundle("embedded_atom"), make()
    setup = Setup(bundle, ELEMENTS, ranks=ranks)
    lines = [*preparation(setup, atoms, tmp_path, "data.0"), FLUX[2]]
    lines += ["dump all all custom 1 dump.0 c_stress[*]", "dump_modify all sort id format float %.17g", "run 0"]
    done = run_lammps(tmp_path, lines, ranks)
    assert done.code == 0, done.output[-3000:]
    (columns,) = read_dump(tmp_path / "dump.0")
    order = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)]
    ours = np.zeros((len(atoms), 3, 3))
    for k, (a, b) in enumerate(order):
        ours[:, a, b] = columns[:, k] / PRESSURE_UNIT["metal"]
    _, rotation = atoms.cell.standard_form() if atoms.pbc.all() else (None, np.eye(3))
    np.testing.assert_allclose(
        rotation.T @ ours @ rotation, centroid_stresses(potentials.embedded_atom(), atoms), atol=1e-8
    )


REFUSED = {
    "plain stress": (
        "embedded_atom",
        ["compute stress all stress/atom NULL virial", *FLUX[:2], FLUX[3]],
        ["compute flux heat/flux would be wrong with compute stress stress/atom", "centroid/stress/atom"],
    ),
    "two layers": ("message_passing", ["compute stress all stress/atom NULL virial", *FLUX[:2], FLUX[3]],
                   ["compute flux heat/flux would be wrong", "2 layers", "fix thermal/conductivity"]),
    "two layers, centroid": ("message_passing", FLUX[:4], ["heat/flux would be wrong", "2 layers"]),
    "tally": ("embedded_atom", ["compute t all pe/tally all"], ["t pe/tally would be zero", "no sum over pairs"]),
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_the_run(toy_bundle, tmp_path, case, ranks):
    kind, commands, parts = REFUSED[case]
    lines = preparation(
        Setup(toy_bundle(kind), ELEMENTS, ranks=ranks), structures.crystal((1, 1, 1)), tmp_path, "data.0"
    )
    done = run_lammps(tmp_path, [*lines, *commands, "run 0"], ranks)
    assert done.code != 0 and len(done.errors) == 1, done.output[-3000:]
    for part in parts:
        assert part in done.errors[0], done.errors[0]


def test_a_plain_stress_behind_the_flux_serves_something_else(toy_bundle, tmp_path):
    setup = Setup(toy_bundle("embedded_atom"), ELEMENTS)
    lines = preparation(setup, structures.crystal((1, 1, 1)), tmp_path, "data.0")
    done = run_lammps(tmp_path, [*lines, *FLUX, "compute plain all stress/atom NULL virial", "run 0"])
    assert done.code == 0, done.output[-3000:]


@pytest.mark.parametrize(
    ("kind", "commands", "part"),
    [
        ("message_passing", REFUSED["two layers"][1], "heat/flux would be wrong"),
        # LAMMPS' own word: a hybrid style asks its parts before they know their models
        ("embedded_atom", FLUX, "does not support compute centroid/stress/atom"),
    ],
)
def test_hybrid_styles(toy_bundle, tmp_path, kind, commands, part):
    bundle = toy_bundle(kind)
    pair = ["pair_style hybrid/overlay stablemd zero 4.0", f"pair_coeff * * stablemd {bundle} Si C"]
    setup = Setup(bundle, ELEMENTS, pair=[*pair, "pair_coeff * * zero"])
    lines = preparation(setup, structures.crystal((1, 1, 1)), tmp_path, "data.0")
    done = run_lammps(tmp_path, [*lines, *commands, "run 0"])
    assert len(done.errors) == 1 and part in done.errors[0], done.output[-3000:]
