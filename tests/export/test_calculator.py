# SPDX-License-Identifier: BSD-3-Clause
"""The ASE calculator against ASE's own Lennard-Jones, finite differences and rules that any potential obeys."""

import copy
import logging
import os
import pickle
import select
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.lj import LennardJones
from ase.neighborlist import neighbor_list
from stablemd import ArgumentError, ExecutionError, FormatError, MissingFileError, PluginError, StableMDCalculator

PROPERTIES = ("energy", "free_energy", "energies", "forces", "stress", "stresses")


def argon(repeat=(2, 2, 2), strain=None, pbc=True, rng=None):
    atoms = bulk("Ar", "fcc", a=5.2, cubic=True) * repeat
    if strain is not None:
        atoms.set_cell(atoms.cell @ (np.eye(3) + strain), scale_atoms=True)
    atoms.pbc = pbc
    if rng is not None:
        atoms.positions += rng.normal(0.0, 0.12, atoms.positions.shape)
    return atoms


def triclinic_cell(rng):
    return argon((2, 2, 1), rng.uniform(-0.12, 0.12, (3, 3)), rng=rng)


def tiny_cell(rng):
    return argon((1, 1, 1), rng=rng)[:2]


def primitive_cell(rng):
    return bulk("Ar", "fcc", a=5.2)


def slab(rng):
    atoms = argon((2, 1, 1), pbc=(True, True, False), rng=rng)
    atoms.center(vacuum=4.0, axis=2)
    return atoms


def wire(rng):
    atoms = argon((1, 1, 2), pbc=(False, False, True), rng=rng)
    atoms.center(vacuum=3.0, axis=(0, 1))
    return atoms


def atoms_outside_of_the_cell(rng):
    atoms = argon(rng=rng)
    atoms.positions += rng.integers(-3, 4, (len(atoms), 3)) @ atoms.cell
    return atoms


STRUCTURES = (argon, triclinic_cell, tiny_cell, primitive_cell, slab, wire, atoms_outside_of_the_cell)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_lennard_jones_of_ase(bundles, rng, structure):
    ours, theirs = structure(rng=rng), None
    theirs = ours.copy()
    ours.calc = StableMDCalculator(bundles("lennard_jones"))
    theirs.calc = LennardJones(sigma=3.4, epsilon=0.0104, rc=8.5, ro=6.0, smooth=True)
    for name in PROPERTIES:
        expected = theirs.calc.get_property(name, theirs)
        bar = 1e-11 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(ours.calc.get_property(name, ours), expected, rtol=0, atol=bar, err_msg=name)


def test_a_cluster_without_a_cell(bundles, rng):
    corners = np.array([[0, 0, 0], [3.9, 0, 0], [0, 3.9, 0], [0, 0, 3.9]])
    atoms = Atoms("Ar4", positions=corners + rng.uniform(-0.4, 0.4, (4, 3)))
    other = atoms.copy()
    atoms.calc = StableMDCalculator(bundles("lennard_jones"))
    other.calc = LennardJones(sigma=3.4, epsilon=0.0104, rc=8.5, ro=6.0, smooth=True)
    np.testing.assert_allclose(atoms.get_potential_energy(), other.get_potential_energy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(atoms.get_forces(), other.get_forces(), rtol=0, atol=1e-12)
    for get in (atoms.get_stress, atoms.get_stresses):
        with pytest.raises(PropertyNotImplementedError, match="three independent vectors"):
            get()


def test_an_atom_alone(bundles):
    atoms = Atoms("C", calculator=StableMDCalculator(bundles("embedded_atom")))
    assert atoms.get_potential_energy() == pytest.approx(-1.75, abs=1e-14)  # its atomic energy
    np.testing.assert_array_equal(atoms.get_forces(), np.zeros((1, 3)))


def silicon_carbide(rng, repeat=(2, 1, 1)):
    atoms = bulk("SiC", "zincblende", a=4.36, cubic=True) * repeat
    atoms.set_cell(atoms.cell @ (np.eye(3) + rng.uniform(-0.06, 0.06, (3, 3))), scale_atoms=True)
    atoms.positions += rng.normal(0.0, 0.15, atoms.positions.shape)
    return atoms


def without_edges_at_the_cutoff(calc, rng, repeat, margin):
    """No edge crosses the cutoff within a finite difference: there the toys' third derivative jumps."""
    for _ in range(1000):
        atoms = silicon_carbide(rng, repeat)
        if np.abs(neighbor_list("d", atoms, calc.cutoff + 2 * margin) - calc.cutoff).min() > margin:
            atoms.calc = calc
            return atoms
    raise AssertionError("no such structure")


@pytest.mark.parametrize("kind", ["embedded_atom", "message_passing"])
def test_forces_are_minus_the_gradient(bundles, rng, kind):
    atoms = without_edges_at_the_cutoff(StableMDCalculator(bundles(kind)), rng, (2, 1, 1), 0.0012)
    forces = atoms.get_forces()
    for _ in range(6):
        direction = rng.normal(size=forces.shape)
        direction /= np.linalg.norm(direction)
        slope = _slope(lambda h, d=direction: _moved(atoms, h * d))
        assert slope == pytest.approx(-np.sum(forces * direction), abs=2e-8)


@pytest.mark.parametrize("kind", ["embedded_atom", "message_passing"])
def test_stress_is_the_derivative_by_strain(bundles, rng, kind):
    atoms = without_edges_at_the_cutoff(StableMDCalculator(bundles(kind)), rng, (1, 1, 1), 0.003)
    stress, volume = atoms.get_stress(), atoms.get_volume()
    for component, (i, j) in enumerate([(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]):
        strain = np.zeros((3, 3))
        strain[i, j] += 0.5
        strain[j, i] += 0.5
        slope = _slope(lambda h, s=strain: _strained(atoms, np.eye(3) + h * s)) / volume
        assert slope == pytest.approx(stress[component], abs=2e-9)


def _moved(atoms, displacement):
    other = atoms.copy()
    other.positions += displacement
    return atoms.calc.get_property("energy", other)


def _strained(atoms, deformation):
    other = atoms.copy()
    other.set_cell(atoms.cell @ deformation, scale_atoms=True)
    return atoms.calc.get_property("energy", other)


def _slope(energy, step=3e-4):
    """Central difference of fourth order; short, so that few edges cross the cutoff."""
    return (8 * (energy(step) - energy(-step)) - (energy(2 * step) - energy(-2 * step))) / (12 * step)


@pytest.mark.parametrize("kind", ["embedded_atom", "message_passing"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums(bundles, rng, kind, dtype):
    atoms = silicon_carbide(rng)
    atoms.calc = StableMDCalculator(bundles(kind, dtype))
    assert atoms.get_potential_energies().sum() == pytest.approx(atoms.get_potential_energy(), abs=1e-12)
    np.testing.assert_allclose(atoms.get_stresses().sum(axis=0), atoms.get_stress(), rtol=0, atol=1e-14)
    # Momentum is conserved in float32 too: what one atom gets, another gives, in double precision.
    np.testing.assert_allclose(atoms.get_forces().sum(axis=0), 0.0, rtol=0, atol=1e-12)
    assert atoms.get_forces().dtype == np.float64


@pytest.mark.parametrize("kind", ["embedded_atom", "message_passing"])
def test_a_supercell_is_its_cell_many_times(bundles, rng, kind):
    cell = silicon_carbide(rng, (1, 1, 1))
    large = cell * (1, 2, 2)
    small_calc, large_calc = (StableMDCalculator(bundles(kind)) for _ in range(2))
    np.testing.assert_allclose(
        large_calc.get_property("energies", large), np.tile(small_calc.get_property("energies", cell), 4), atol=1e-11
    )
    np.testing.assert_allclose(
        large_calc.get_property("forces", large), np.tile(small_calc.get_property("forces", cell), (4, 1)), atol=1e-11
    )
    np.testing.assert_allclose(
        large_calc.get_property("stress", large), small_calc.get_property("stress", cell), atol=1e-12
    )


def test_rotation_and_order_of_atoms(bundles, rng):
    atoms = silicon_carbide(rng)
    calc = StableMDCalculator(bundles("message_passing"))
    energies, forces = (calc.get_property(name, atoms).copy() for name in ("energies", "forces"))
    turned = atoms.copy()
    turned.rotate(float(rng.uniform(0, 360)), rng.normal(size=3), rotate_cell=True)
    np.testing.assert_allclose(calc.get_property("energies", turned), energies, rtol=0, atol=1e-11)
    order = rng.permutation(len(atoms))
    np.testing.assert_allclose(calc.get_property("energies", atoms[order]), energies[order], rtol=0, atol=1e-11)
    np.testing.assert_allclose(calc.get_property("forces", atoms[order]), forces[order], rtol=0, atol=1e-11)


def test_float32_stays_near_float64(bundles, rng):
    atoms = silicon_carbide(rng)
    single, double = (StableMDCalculator(bundles("message_passing", dtype)) for dtype in ("float32", "float64"))
    forces = double.get_property("forces", atoms)
    np.testing.assert_allclose(
        single.get_property("energies", atoms), double.get_property("energies", atoms), rtol=0, atol=2e-6
    )
    difference = np.abs(single.get_property("forces", atoms) - forces).max()
    assert 0 < difference <= 2e-5 * np.abs(forces).max()


def test_two_calculators_do_not_disturb_each_other(bundles, rng):
    atoms = silicon_carbide(rng)
    one, other = StableMDCalculator(bundles("embedded_atom")), StableMDCalculator(bundles("message_passing"))
    before = one.get_property("forces", atoms).copy()
    other.get_property("forces", atoms * (2, 2, 1))
    one.reset()
    np.testing.assert_array_equal(one.get_property("forces", atoms), before)


def test_one_runtime_per_device_and_process(bundles):
    calcs = [StableMDCalculator(bundles(kind)) for kind in ("embedded_atom", "lennard_jones")]
    calcs.append(StableMDCalculator(bundles("lennard_jones"), threads=1))
    first, same, other = (calc._members[0].model.runtime for calc in calcs)
    assert first is same
    assert first is not other


def test_copies_and_pickles(bundles, rng):
    atoms = silicon_carbide(rng)
    atoms.calc = StableMDCalculator(bundles("message_passing"))
    energy = atoms.get_potential_energy()
    for calc in (copy.deepcopy(atoms.calc), pickle.loads(pickle.dumps(atoms.calc))):
        calc.reset()
        assert calc.get_property("energy", atoms) == energy


def test_properties_of_the_model(bundles):
    calc = StableMDCalculator(bundles("message_passing"))
    assert calc.cutoff == 3.5 and calc.elements == ("Si", "C")
    assert calc.stats()["evaluations"] == 0


def test_molecular_dynamics_conserves_energy(bundles, rng):
    from ase import units
    from ase.md.verlet import VelocityVerlet

    atoms = argon((2, 2, 2))
    atoms.calc = StableMDCalculator(bundles("lennard_jones"))
    atoms.set_velocities(rng.normal(0.0, np.sqrt(units.kB * 40 / 39.95), atoms.positions.shape))
    dynamics = VelocityVerlet(atoms, timestep=2.0 * units.fs)
    energies = []
    dynamics.attach(lambda: energies.append(atoms.get_total_energy() / len(atoms)), interval=5)
    dynamics.run(200)
    assert np.ptp(energies) < 2e-6


def test_units_of_the_bundle_are_converted(tmp_path, bundles, rng):
    from ase import units
    from potentials import lennard_jones
    from stablemd import export_model

    # The same potential written in kcal/mol and nm.
    scale = units.mol / units.kcal
    potential = lennard_jones(sigma=0.34, epsilon=0.0104 * scale, cutoff=0.85, inner=0.6)
    path = tmp_path / "kcal.safetensors"
    settings = {"cutoff": 0.85, "layers": 1, "elements": ["Ar"], "units": {"energy": "kcal/mol", "length": "nm"}}
    export_model(potential.energy_fn, potential.params, path=path, dtype="float64", verify=False, **settings)
    atoms = argon(rng=rng)
    ours, theirs = StableMDCalculator(path), StableMDCalculator(bundles("lennard_jones"))
    assert ours.cutoff == pytest.approx(8.5)
    for name in PROPERTIES:
        np.testing.assert_allclose(ours.get_property(name, atoms), theirs.get_property(name, atoms), atol=1e-10, rtol=0)
    export_model(
        potential.energy_fn,
        potential.params,
        path=path,
        verify=False,
        **{**settings, "units": {"energy": "furlong", "length": "nm"}},
    )
    with pytest.raises(FormatError, match="uses the unit 'furlong'"):
        StableMDCalculator(path)


# ---- mistakes --------------------------------------------------------------------------------------------------------


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unknown_element(bundles):
    atoms = molecule("CH4", calculator=StableMDCalculator(bundles("embedded_atom")))
    with pytest.raises(ArgumentError) as error:
        atoms.get_potential_energy()
    assert "knows Si C, not H" in one_line(error)


def test_no_atoms(bundles):
    with pytest.raises(ArgumentError) as error:
        Atoms(calculator=StableMDCalculator(bundles("embedded_atom"))).get_potential_energy()
    assert "the Atoms object is empty" in one_line(error)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_positions_that_are_not_finite(bundles, value):
    atoms = argon()
    atoms.positions[3, 1] = value
    atoms.calc = StableMDCalculator(bundles("lennard_jones"))
    with pytest.raises(ArgumentError) as error:
        atoms.get_forces()
    assert "the position of atom 3 is not finite" in one_line(error)


def test_periodic_without_a_cell(bundles):
    atoms = Atoms("Ar2", positions=[[0, 0, 0], [0, 0, 4]], cell=[5, 5, 0], pbc=True)
    atoms.calc = StableMDCalculator(bundles("lennard_jones"))
    with pytest.raises(ArgumentError) as error:
        atoms.get_potential_energy()
    assert "zero or linearly dependent" in one_line(error)


def test_atoms_on_top_of_each_other(bundles):
    from stablemd import StableMDError

    atoms = Atoms("Ar2", positions=[[0, 0, 0], [0, 0, 0]], calculator=StableMDCalculator(bundles("lennard_jones")))
    with pytest.raises(StableMDError) as error:
        atoms.get_potential_energy()
    one_line(error)


def test_files_and_plugins_that_are_missing(tmp_path, bundles):
    with pytest.raises(MissingFileError) as error:
        StableMDCalculator(tmp_path / "none.safetensors")
    assert "there is no file" in one_line(error)
    assert isinstance(error.value, FileNotFoundError)
    with pytest.raises(PluginError) as error:
        StableMDCalculator(bundles("lennard_jones"), plugin=str(tmp_path / "none.so"))
    assert "none.so" in one_line(error)
    with pytest.raises(ArgumentError):
        StableMDCalculator(bundles("lennard_jones"), device="tpu")


def test_an_unwritable_cache_is_one_warning(tmp_path, bundles, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    atoms = argon()
    atoms.calc = StableMDCalculator(bundles("lennard_jones"), cache=blocked)
    with caplog.at_level("WARNING", logger="stablemd"):
        atoms.get_potential_energy()
        (atoms * (2, 2, 2)).calc = atoms.calc
        atoms.calc.get_property("energy", atoms * (2, 2, 2))
    assert len([record for record in caplog.records if "cache" in record.message]) == 1


# ---- graphs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("structure", [silicon_carbide, lambda rng: silicon_carbide(rng, (4, 1, 1))])
def test_parts_of_a_graph_add_up(bundles, rng, structure, parts):
    """Atoms dealt out to several owners, the others their ghosts by hops: the same energies and forces."""
    from stablemd._graphs import edge_forces, part_graph
    from stablemd._native import evaluate, load
    from stablemd._reference import structure_graph

    atoms = structure(rng)
    calc, model = StableMDCalculator(bundles("message_passing")), load(bundles("message_passing"))
    whole = structure_graph(atoms, model.elements, model.cutoff, model.layers)
    owner = rng.integers(0, parts, len(atoms))
    energies, forces = np.full(len(atoms), np.nan), np.zeros((len(atoms), 3))
    for part in range(parts):
        graph = part_graph(whole, np.flatnonzero(owner == part), model.layers)
        assert graph.owned == np.count_nonzero(owner == part) and (np.diff(graph.centers) >= 0).all()
        node_energy, gradient, _ = evaluate(model, graph)
        energies[graph.atoms[: graph.owned]] = node_energy
        forces += edge_forces(graph, gradient, len(atoms))
    energies += np.array(model.atomic_energies)[whole.species]
    np.testing.assert_allclose(energies, calc.get_property("energies", atoms), rtol=0, atol=1e-11)
    np.testing.assert_allclose(forces, calc.get_property("forces", atoms), rtol=0, atol=1e-11)


def test_threads_may_share_a_calculator(bundles, rng):
    """Structures of different sizes, so that each call moves the library's arrays."""
    structures = [argon((1, 1, 1), rng=rng), argon((2, 2, 1), rng=rng), argon((2, 2, 2), rng=rng)]
    calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    expected = [energy_and_force(calc, atoms) for atoms in structures]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns in the midst of what ASE does around a calculation
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda k: energy_and_force(calc, structures[k % 3]), range(600)))
    finally:
        sys.setswitchinterval(interval)
    np.testing.assert_allclose(found, [expected[k % 3] for k in range(600)], rtol=1e-12)


def energy_and_force(calc, atoms):
    atoms = atoms.copy()
    atoms.calc = calc
    return atoms.get_potential_energy(), np.abs(atoms.get_forces()).max()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_forked_process_opens_the_bundle_itself(bundles, rng, fresh):
    calc, atoms = StableMDCalculator(bundles("lennard_jones", "float64")), argon(rng=rng)
    expected = calc.get_potential_energy(atoms)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mine = copy.copy(calc) if fresh else calc
            atoms.positions += 0.0
            mine.calculate(atoms)
            os.write(write, f"{mine.results['energy']!r}".encode())
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], 60)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert ready, "the child hangs"
    assert float(os.read(read, 100).decode() or "nan") == pytest.approx(expected, rel=1e-12)
    os.close(read)


def test_a_failure_leaves_no_results(bundles):
    calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    calc.calculate(argon())
    overlapping = Atoms("Ar2", [[0, 0, 0], [0, 0, 0]])
    with pytest.raises(ExecutionError):
        calc.calculate(overlapping)
    assert calc.results == {}


def test_options_that_change(bundles, tmp_path):
    calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    atoms = argon()
    first, cutoff = calc.get_potential_energy(atoms), calc.cutoff
    with pytest.raises(MissingFileError):
        calc.set(model=str(tmp_path / "absent.safetensors"))
    assert calc.get_potential_energy(atoms) == first
    other = bundles("message_passing", "float64")
    calc.set(model=str(other))
    assert calc.results == {}
    assert calc.cutoff == StableMDCalculator(other).cutoff != cutoff
    with pytest.raises(ArgumentError, match="no option 'models'"):
        calc.set(models=str(other))


@pytest.mark.parametrize("scale", [1e155, 1e300])
def test_sizes_beyond_all_precision(bundles, scale):
    calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    with pytest.raises(ArgumentError, match="precision"):
        calc.get_potential_energy(Atoms("Ar", cell=[scale] * 3, pbc=True))
    with pytest.raises(ArgumentError, match="precision"):
        calc.get_potential_energy(Atoms("Ar2", [[0, 0, 0], [scale, 0, 0]]))


def strided(array):
    """The same numbers, every other one of an array."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize(
    "change",
    [
        {"positions": np.float32},
        {"positions": np.int64},
        {"positions": np.float16},
        {"positions": np.longdouble},
        {"positions": np.asfortranarray},
        {"positions": strided},
        {"positions": np.float32, "cell": np.float32, "numbers": np.uint8, "pbc": np.int32},
        {"cell": np.int16, "numbers": np.float64},
        {"cell": np.asfortranarray, "numbers": strided},
    ],
)
def test_arrays_of_any_type(bundles, rng, change):
    """What readers and users put into ``atoms.arrays`` is evaluated in double precision, as the numbers that it is."""
    changed = argon((2, 1, 1), rng.uniform(-0.05, 0.05, (3, 3)), rng=rng)
    for name, kind in change.items():
        whole = name == "cell" and kind == np.int16
        array = np.round(changed.cell.array) if whole else getattr(changed, name)
        array = kind(array) if callable(kind) and not isinstance(kind, type) else np.asarray(array).astype(kind)
        if name == "cell":
            changed.cell.array = array
        elif name == "pbc":
            changed._pbc = array
        else:
            changed.arrays[name] = array
    plain = Atoms(
        numbers=np.array(changed.arrays["numbers"], int),
        positions=np.array(changed.positions, np.float64),
        cell=np.array(changed.cell.array, np.float64),
        pbc=np.array(changed.pbc, bool),
    )
    assert plain.positions.dtype == np.float64 and plain.positions.flags.c_contiguous
    calc, expected = (StableMDCalculator(bundles("lennard_jones", "float64")) for _ in range(2))
    for name in PROPERTIES:
        np.testing.assert_array_equal(calc.get_property(name, changed), expected.get_property(name, plain))
    assert calc.results["forces"].dtype == np.float64


def test_positions_that_are_no_numbers(bundles):
    atoms = argon((1, 1, 1))
    calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    atoms.arrays["positions"] = atoms.positions + 0j
    with pytest.raises(ArgumentError, match="positions must be real numbers, got an array of complex128"):
        calc.calculate(atoms)
    atoms.arrays["positions"] = np.full((len(atoms), 3), "far", object)
    with pytest.raises(ArgumentError, match="positions must be real numbers, got an array of object"):
        calc.calculate(atoms)


@pytest.mark.parametrize("thin", [1e-4, 1e-10])
def test_cells_too_thin(bundles, thin):
    calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    with pytest.raises(ArgumentError, match=r"thin|dependent"):
        calc.get_potential_energy(Atoms("Ar", cell=[[5, 0, 0], [0, 5, 0], [5, 5, thin]], pbc=True))


def test_no_stress_in_a_flat_cell(bundles):
    atoms = Atoms("Ar", cell=[[5, 0, 0], [0, 5, 0], [5, 5, 0]], pbc=False)
    atoms.calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    assert np.isfinite(atoms.get_potential_energy())
    with pytest.raises(PropertyNotImplementedError, match="three independent vectors"):
        atoms.get_stress()


@pytest.mark.parametrize("threads", [-1, 1025, 10**9, 10**12, 10**30, "two", True, None, 1.5])
def test_numbers_of_threads_that_are_refused(bundles, threads):
    with pytest.raises(
        ArgumentError, match="threads must be a whole number from 1 to 1024, or 0 for all cores"
    ) as error:
        StableMDCalculator(bundles("lennard_jones", "float64"), threads=threads)
    assert repr(threads) in one_line(error)


@pytest.mark.parametrize("threads", [0, np.int64(1), 1024])
def test_numbers_of_threads(bundles, threads):
    assert StableMDCalculator(bundles("lennard_jones", "float64"), threads=threads).cutoff == 8.5


@pytest.mark.parametrize("options", [{"device": None}, {"plugin": 3}, {"cache": 3}])
def test_options_of_a_wrong_type(bundles, options):
    with pytest.raises(ArgumentError, match="must be a text"):
        StableMDCalculator(bundles("lennard_jones", "float64"), **options)


@pytest.mark.parametrize("model", [None, 3, [None], b"model.safetensors", True])
def test_models_of_a_wrong_type(bundles, model):
    with pytest.raises(ArgumentError, match="model must be the path of a bundle"):
        StableMDCalculator(model)
    calc = StableMDCalculator(bundles("lennard_jones", "float64"))
    with pytest.raises(ArgumentError, match="model must be the path of a bundle"):
        calc.set(model=model)
    assert calc.cutoff == 8.5


def test_a_flipped_bit_is_noticed_at_load(bundles, tmp_path):
    """Also one that no comparison of energies could see, and one in the stored reference."""
    content = bytearray(bundles("lennard_jones", "float32").read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for place in (header, (header + len(content)) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path = tmp_path / "damaged.safetensors"
        path.write_bytes(damaged)
        with pytest.raises(FormatError) as error:
            StableMDCalculator(path)
        assert "damaged.safetensors: damaged: its bytes are not those that were written" in one_line(error)


def test_compilation_is_logged(bundles, tmp_path, caplog):
    calc = StableMDCalculator(bundles("lennard_jones"), cache=tmp_path)
    with caplog.at_level("INFO", logger="stablemd"):
        calc.get_property("energy", argon())
    first, second = (record.message for record in caplog.records)
    assert first.startswith("compiling the program for N=") and second.startswith("compiled in ")


def test_each_calculator_reads_the_environment_anew(bundles, rng, tmp_path, monkeypatch):
    atoms, bundle = silicon_carbide(rng), bundles("embedded_atom")
    calculators = []  # all kept, and their runtimes with them
    for name in ("one", "two"):
        monkeypatch.setenv("STABLEMD_CACHE", str(tmp_path / name))
        calculators.append(StableMDCalculator(bundle))
        calculators[-1].get_property("energy", atoms)
        assert len(list((tmp_path / name).glob("*.exe"))) == 1


@pytest.mark.parametrize(
    ("positions", "cell", "pbc"),
    [
        ([[0, 0, 0], [2500, 2500, 0]], np.zeros((3, 3)), False),
        ([[0, 0, 0], [5e5, 0, 0]], np.zeros((3, 3)), False),
        ([[0, 0, 0], [1, 2, 0], [2000, 3000, 4]], np.diag([3000.0, 4000, 5]), True),
        ([[0, 0, 0], [1, 1, 1], [1, 1, 9e5]], np.diag([5.0, 5, 1e6]), [True, True, False]),
    ],
)
def test_flat_and_long_systems(bundles, rng, positions, cell, pbc):
    """Far more boxes of the cutoff's size than atoms; the energy is that of the parts."""
    from ase import Atoms

    path = bundles("embedded_atom")
    whole = Atoms(f"Si{len(positions)}", positions=positions, cell=cell, pbc=pbc)
    calc = StableMDCalculator(path)
    energies, forces = calc.get_property("energies", whole).copy(), calc.get_property("forces", whole).copy()
    near = Atoms(whole.symbols[:2], positions=positions[:2], cell=np.where(cell > 100, 100, cell), pbc=pbc)
    if np.linalg.norm(whole.positions[1] - whole.positions[0]) > 50:
        near = near[:1]
    np.testing.assert_allclose(energies[: len(near)], calc.get_property("energies", near), rtol=0, atol=1e-11)
    np.testing.assert_allclose(forces[: len(near)], calc.get_property("forces", near), rtol=0, atol=1e-11)


def test_a_cell_that_is_not_finite(bundles):
    from ase import Atoms

    atoms = Atoms("Si", cell=[np.nan, 5, 5], pbc=True)
    with pytest.raises(ArgumentError, match="cell is not finite"):
        StableMDCalculator(bundles("embedded_atom")).get_property("energy", atoms)


@pytest.mark.parametrize("number, raised", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_while_a_line_is_logged(bundles, number, raised):
    """Python's handlers run inside the log callback then, from which their exceptions must get out."""

    class Ending(logging.Handler):
        def emit(self, record):
            if "compiling" in record.getMessage():
                os.kill(os.getpid(), number)

    def end(*_):
        raise raised

    logger, handler, before = logging.getLogger("stablemd"), Ending(), signal.signal(number, end)
    level = logger.level
    logger.setLevel("INFO")
    logger.addHandler(handler)
    try:
        atoms = argon((2, 2, 3 if number == signal.SIGINT else 4))  # of a size that is not compiled yet
        atoms.calc = StableMDCalculator(bundles("lennard_jones"), cache="", threads=1)
        with pytest.raises(raised):
            atoms.get_potential_energy()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        signal.signal(number, before)
    assert np.isfinite(atoms.get_potential_energy())
