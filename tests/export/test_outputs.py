# SPDX-License-Identifier: BSD-3-Clause
"""Extra outputs of atoms: from the energy function through the bundle to ASE's results."""

import ase.io
import jax.numpy as jnp
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.calculator import PropertyNotImplementedError, all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from potentials import charge_transfer, charges_and_moments
from stablemd import ArgumentError, ExportError, FormatError, StableMDCalculator, export_potential
from stablemd._bundle import read_bundle

OPTIONS = {"dtype": "float64", "platforms": "cpu"}


@pytest.fixture(scope="module")
def charged(tmp_path_factory, executable_cache):
    path = tmp_path_factory.mktemp("outputs") / "charged.safetensors"
    units = {"charges": "e", "moments": "Angstrom"}
    summary = export_potential(charge_transfer(), path, output_units=units, **OPTIONS)
    assert summary.outputs == ("charges", "moments")
    assert summary.energy_deviation is not None
    return path


def carbide(rng):
    atoms = bulk("SiC", "zincblende", a=4.36, cubic=True) * (2, 1, 1)
    atoms.set_cell(atoms.cell @ (np.eye(3) + rng.uniform(-0.06, 0.06, (3, 3))), scale_atoms=True)
    atoms.positions += rng.normal(0.0, 0.15, atoms.positions.shape)
    return atoms


def test_results_in_ase(charged, rng):
    atoms = carbide(rng)
    atoms.calc = StableMDCalculator(charged)
    charges, moments = charges_and_moments(atoms, charge_transfer())
    np.testing.assert_allclose(atoms.get_charges(), charges, atol=1e-12, rtol=0)  # the name that ASE itself uses
    np.testing.assert_allclose(atoms.calc.outputs["charges"], charges, atol=1e-12, rtol=0)
    np.testing.assert_allclose(atoms.calc.outputs["moments"], moments, atol=1e-12, rtol=0)
    np.testing.assert_allclose(atoms.calc.get_property("moments", atoms), moments, atol=1e-12, rtol=0)
    assert np.abs(charges).max() > 0.1
    with pytest.raises(PropertyNotImplementedError):
        atoms.calc.get_property("dipole", atoms)


def test_results_have_the_names_of_ase(charged, tmp_path, rng):
    """So that what copies and writes results takes them; a name of the bundle's own would be refused or dropped."""
    atoms = carbide(rng)
    atoms.calc = calc = StableMDCalculator(charged)
    assert calc.outputs == {}
    atoms.get_potential_energy()
    assert set(calc.results) <= set(all_properties) and set(calc.implemented_properties) <= set(all_properties)
    kept = SinglePointCalculator(atoms, **calc.results)
    np.testing.assert_array_equal(kept.get_charges(atoms), calc.outputs["charges"])
    assert "charges" in calc.export_properties()
    atoms.arrays["moments"] = calc.outputs["moments"]
    for name in ("some.extxyz", "some.traj"):
        ase.io.write(tmp_path / name, atoms)
        read = ase.io.read(tmp_path / name)
        np.testing.assert_allclose(read.get_charges(), calc.outputs["charges"], atol=1e-7)
        np.testing.assert_allclose(read.get_stress(), calc.results["stress"], atol=1e-7)
        if name == "some.extxyz":  # the other has room for ASE's own arrays alone
            np.testing.assert_allclose(read.arrays["moments"], calc.outputs["moments"], atol=1e-7)
    atoms.positions[0, 0] += 0.1
    assert calc.get_property("moments", atoms, allow_calculation=False) is None
    assert calc.outputs == {}  # nothing of other positions
    assert calc.get_property("moments", atoms).shape == (len(atoms), 3)
    calc.reset()
    assert calc.outputs == {}


def test_manifest(charged):
    manifest = read_bundle(charged).manifest
    assert manifest["format"] == 2
    assert manifest["node_outputs"] == {
        "charges": {"width": 1, "unit": "e"},
        "moments": {"width": 3, "unit": "Angstrom"},
    }
    assert manifest["programs"]["cpu"]["outputs"][2:] == [
        {"role": "node_output", "name": "charges", "dtype": "float64", "shape": ["C1"]},
        {"role": "node_output", "name": "moments", "dtype": "float64", "shape": ["C1", 3]},
    ]


def test_bundles_without_outputs_keep_the_first_format(bundles):
    manifest = read_bundle(bundles("lennard_jones")).manifest
    assert manifest["format"] == 1
    assert "node_outputs" not in manifest


@pytest.mark.parametrize(
    "extra, complaint",
    [
        (lambda g: {"charges": jnp.zeros(3)}, "the extra output 'charges' as float32 (3,)"),
        (lambda g: {"charges": jnp.zeros((g.rows[1], 1))}, "or (%d, 2 or more)"),
        (lambda g: {"charges": jnp.zeros(g.rows[1], jnp.int32)}, "the extra output 'charges' as int32"),
        (lambda g: {"charges": 1.0}, "the extra output 'charges' as a float"),
        (lambda g: {"forces": jnp.zeros(g.rows[1])}, "an extra output called 'forces'"),
        (lambda g: {"a b": jnp.zeros(g.rows[1])}, "an extra output called 'a b'"),
        (lambda g: {"my_spread": jnp.zeros(g.rows[1])}, "an extra output called 'my_spread'"),
        (lambda g: {3: jnp.zeros(g.rows[1])}, "an extra output called 3"),
        (lambda g: [jnp.zeros(g.rows[1])], "energy_fn returned a tuple"),
        (lambda g: {"charges": jnp.zeros(g.rows[1]) + jnp.sum(g.vectors)}, "must not depend on padding"),
        (lambda g: {"charges": jnp.zeros(g.rows[1]) / 0.0}, "not finite on the reference structure: charges"),
        (lambda g: {f"q{g.rows[0]}": jnp.zeros(g.rows[1])}, "returns other extra outputs at other sizes"),
    ],
)
def test_outputs_that_are_refused(tmp_path, extra, complaint):
    plain = charge_transfer()

    def energy(params, graph):
        return plain.energy_fn(params, graph)[0], extra(graph)

    potential = type(plain)(energy, plain.params, plain.cutoff, 1, plain.elements, plain.atomic_energies)
    with pytest.raises(ExportError) as caught:
        export_potential(potential, tmp_path / "x.safetensors", dtype="float32", platforms="cpu")
    line = str(caught.value)
    assert complaint.split("%d")[0] in line and "\n" not in line
    assert list(tmp_path.iterdir()) == []


def test_units_of_outputs_that_are_not_there(tmp_path):
    for units, complaint in (({"charge": "e"}, "are charges, moments"), ({"charges": 1}, "must be like")):
        with pytest.raises(ArgumentError, match=complaint):
            export_potential(charge_transfer(), tmp_path / "x.safetensors", output_units=units, **OPTIONS)


def test_manifests_that_contradict_their_programs(charged, tmp_path):
    import json

    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(charged, framework="numpy") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118

    def complaint(change, drop=()):
        manifest = json.loads(metadata["stablemd"])
        change(manifest)
        path = tmp_path / "x.safetensors"
        kept = {name: tensor for name, tensor in tensors.items() if name not in drop}
        save_file(kept, path, metadata={"stablemd": json.dumps(manifest)})
        with pytest.raises(FormatError) as caught:
            read_bundle(path)
        return str(caught.value)

    def outputs(manifest):
        return manifest["programs"]["cpu"]["outputs"]

    assert "unknown role 'node_output'" in complaint(lambda m: m["node_outputs"].pop("charges"))
    assert "lacks moments" in complaint(lambda m: outputs(m).pop())
    assert "is due" in complaint(lambda m: m["node_outputs"]["moments"].update(width=2))
    assert "twice" in complaint(lambda m: outputs(m).append(outputs(m)[-1]))
    assert "has no unit" in complaint(lambda m: m["node_outputs"]["charges"].pop("unit"))
    assert "reference/outputs/charges is missing" in complaint(lambda m: None, drop=("reference/outputs/charges",))
