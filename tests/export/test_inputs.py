# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of the whole structure, such as its charge: from an energy function through the bundle to ASE."""

import json
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from ase.build import bulk
from ase.neighborlist import neighbor_list
from click.testing import CliRunner
from potentials import charged_pairs, message_passing
from stablemd import (
    ArgumentError,
    ExportError,
    FormatError,
    GraphInput,
    StableMDCalculator,
    export_model,
    export_potential,
)
from stablemd._bundle import read_bundle
from stablemd._cli import cli
from stablemd._originals import open_original

OPTIONS = {"dtype": "float64", "platforms": "cpu"}


def carbide(rng):
    atoms = bulk("SiC", "zincblende", a=4.36, cubic=True)
    atoms.positions += rng.normal(0.0, 0.15, atoms.positions.shape)
    return atoms


def expected_energy(atoms, charge, field):
    """Of :func:`potentials.charged_pairs`, from ASE's neighbour list."""
    r = neighbor_list("d", atoms, 3.5)
    t = np.clip((r - 1.75) / 1.75, 0.0, 1.0)
    step = 1.0 - t**3 * (10.0 - 15.0 * t + 6.0 * t**2)
    pairs, density = 15.0 * np.exp(-2.0 * r) * step, step
    return (1.0 + 0.2 * charge) * pairs.sum() + field * density.sum() + 0.05 * charge**2 * len(atoms)


def slope(atoms, charge, field, atom, axis, step=1e-4):
    moved = [atoms.copy() for _ in range(2)]
    for one, sign in zip(moved, (1, -1), strict=True):
        one.positions[atom, axis] += sign * step
    return (expected_energy(moved[0], charge, field) - expected_energy(moved[1], charge, field)) / (2 * step)


@pytest.fixture(scope="module")
def charged(tmp_path_factory, executable_cache):
    path = tmp_path_factory.mktemp("inputs") / "charged.safetensors"
    summary = export_potential(charged_pairs(), path, **OPTIONS)
    assert summary.inputs == charged_pairs().inputs
    assert summary.energy_deviation is not None
    return path


def test_values_come_from_info(charged, rng):
    """The same atoms, of which nothing but ``info`` changes."""
    atoms = carbide(rng)
    atoms.calc = calc = StableMDCalculator(charged)
    assert calc.inputs == charged_pairs().inputs
    count, now = 0, (0, 0.25)
    for info, values in [
        ({}, (0, 0.25)),
        ({"charge": -2}, (-2, 0.25)),
        ({"charge": 1.0, "field": 3}, (1, 3.0)),
        ({"total_charge": np.int64(1), "field": np.array([3.0])}, None),  # the same values
        ({"charge": 2, "total_charge": 2, "field": np.float32(-0.5)}, (2, -0.5)),
        ({"charge": 2, "field": -0.5, "name": "other"}, None),  # nothing of the model's
        ({}, (0, 0.25)),
    ]:
        atoms.info = info
        count, now = count + (values is not None), values or now
        assert atoms.get_potential_energy() == pytest.approx(expected_energy(atoms, *now), abs=1e-10)
        assert calc.stats()["evaluations"] == count
        assert -atoms.get_forces()[3, 1] == pytest.approx(slope(atoms, *now, 3, 1), abs=1e-6)
    assert calc.stats()["compilations"] + calc.stats()["cache_hits"] == 1
    atoms.info = {"charge": 1}
    assert calc.calculation_required(atoms, ["energy"])
    copy = pickle.loads(pickle.dumps(calc))
    assert copy.get_potential_energy(atoms) == atoms.get_potential_energy()


@pytest.mark.parametrize(
    "info, complaint",
    [
        ({"charge": 3}, "`charge` is 3, it must be a whole number from -2 to 2"),
        ({"charge": 0.5}, "`charge` is 0.5, it must be a whole number from -2 to 2"),
        ({"total_charge": -7}, "`charge` is -7, "),
        ({"field": float("nan")}, "`field` is nan, it must be a finite number, at most 10"),
        ({"field": "strong"}, "atoms.info['field'] must be a number, got 'strong'"),
        ({"charge": True}, "atoms.info['charge'] must be a number, got True"),
        ({"charge": [1, 2]}, "atoms.info['charge'] must be a number, got [1, 2]"),
        ({"charge": 1, "total_charge": 0}, "charge = 1 and total_charge = 0, which are one to the model"),
    ],
)
def test_values_that_are_refused(charged, rng, info, complaint):
    atoms = carbide(rng)
    atoms.calc = StableMDCalculator(charged)
    before = atoms.get_potential_energy()
    atoms.info = info
    with pytest.raises(ArgumentError) as caught:
        atoms.get_potential_energy()
    assert complaint in str(caught.value) and "\n" not in str(caught.value)
    atoms.info = {}
    assert atoms.get_potential_energy() == before


def test_manifest_and_info(charged):
    manifest = read_bundle(charged).manifest
    assert manifest["format"] == 3
    assert manifest["graph_inputs"] == {
        "charge": {"default": 0.0, "minimum": -2.0, "maximum": 2.0, "integer": True},
        "field": {"default": 0.25, "minimum": None, "maximum": 10.0, "integer": False},
    }
    inputs = [one for one in manifest["programs"]["cpu"]["inputs"] if one["role"] == "graph_input"]
    assert inputs == [
        {"role": "graph_input", "name": name, "dtype": "float64", "shape": []} for name in ("charge", "field")
    ]
    shown = CliRunner().invoke(cli, ["info", str(charged)]).output
    assert "charge 0 (a whole number from -2 to 2); field 0.25 (a finite number, at most 10)" in shown


def test_a_check_against_another_bundle_gives_both_the_same_values(charged, tmp_path, rng):
    import ase.io

    other = charged_pairs(default=1)
    path, structures = tmp_path / "other.safetensors", tmp_path / "some.extxyz"
    export_potential(other, path, **OPTIONS)
    frames = [carbide(rng) for _ in range(2)]
    frames[1].info["charge"] = -1
    ase.io.write(structures, frames)
    for arguments in ([], ["--structures", str(structures)]):
        done = CliRunner().invoke(cli, ["check", str(charged), "--against", str(path), *arguments])
        assert done.exit_code == 0, done.output
    with pytest.raises(ArgumentError) as caught:
        StableMDCalculator([charged, path])
    assert "models of an ensemble must have the same inputs of the whole structure" in str(caught.value)
    assert "has charge 0 (a whole number from -2 to 2); " in str(caught.value)
    assert "has charge 1 (a whole number from -2 to 2); " in str(caught.value)


def test_values_of_a_model_without_inputs_are_fixed(charged, rng):
    """As of bundles that hold one charge in their weights: what a structure says does not matter."""
    atoms = carbide(rng)
    atoms.info["charge"] = 2
    values = open_original(charged, fixed={"total_charge": -1}).evaluate(atoms)
    assert values.energy == pytest.approx(expected_energy(atoms, -1, 0.25), abs=1e-10)


def test_an_ensemble_takes_inputs(charged, rng):
    atoms = carbide(rng)
    atoms.calc = StableMDCalculator([charged, charged])
    for charge in (1, -1):
        atoms.info["charge"] = charge
        assert atoms.get_potential_energy() == pytest.approx(expected_energy(atoms, charge, 0.25), abs=1e-10)


def energy_without_inputs(params, graph):
    return message_passing().energy_fn(params, graph)


@pytest.mark.parametrize(
    "energy, inputs, complaint",
    [
        (energy_without_inputs, {"charge": GraphInput()}, "energy_fn does not use graph.inputs['charge']"),
        (lambda p, g: energy_without_inputs(p, g) * g.inputs["spin"], {}, "KeyError in "),
        (energy_without_inputs, {"a b": GraphInput()}, "inputs has the name 'a b'; use letters"),
        (energy_without_inputs, {"energy": GraphInput()}, "inputs has the name 'energy'"),
        (energy_without_inputs, {"charge": 1.0}, "inputs must be like {'charge': stablemd.GraphInput"),
        (energy_without_inputs, [GraphInput()], "inputs must be like {'charge': stablemd.GraphInput"),
        (
            lambda p, g: energy_without_inputs(p, g) * jnp.sqrt(-g.inputs["field"]),
            {"field": GraphInput()},
            "not finite on the reference structure with field = 1",
        ),
    ],
)
def test_exports_that_are_refused(tmp_path, energy, inputs, complaint):
    plain = message_passing()
    with pytest.raises((ArgumentError, ExportError)) as caught:
        export_model(
            energy,
            plain.params,
            path=tmp_path / "x.safetensors",
            cutoff=plain.cutoff,
            layers=plain.layers,
            elements=plain.elements,
            inputs=inputs,
            **OPTIONS,
        )
    assert complaint in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "fields, complaint",
    [
        ({"default": 3, "maximum": 2}, "default is 3, it must be a finite number, at most 2"),
        ({"default": 0.5, "integer": True}, "default is 0.5, it must be a whole number"),
        ({"minimum": -0.5, "integer": True}, "must be whole"),
        ({"default": None}, "default must be a finite number, got None"),
        ({"maximum": float("inf")}, "maximum must be a finite number, got inf"),
        ({"integer": 1}, "integer must be True or False, got 1"),
    ],
)
def test_inputs_that_contradict_themselves(fields, complaint):
    with pytest.raises(ArgumentError) as caught:
        GraphInput(**fields)
    assert complaint in str(caught.value)


def test_manifests_that_contradict_their_programs(charged, tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(charged, framework="numpy") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118

    def complaint(change):
        manifest = json.loads(metadata["stablemd"])
        change(manifest, manifest["graph_inputs"], manifest["programs"]["cpu"]["inputs"])
        path = tmp_path / "x.safetensors"
        save_file(tensors, path, metadata={"stablemd": json.dumps(manifest)})
        with pytest.raises(FormatError) as caught:
            read_bundle(path)
        return str(caught.value)

    at = next(i for i, one in enumerate(read_bundle(charged).manifest["programs"]["cpu"]["inputs"]) if one.get("name"))
    assert "unknown role 'graph_input'" in complaint(lambda m, g, i: g.pop("charge"))
    assert "lacks charge" in complaint(lambda m, g, i: i.pop(at))
    assert "twice" in complaint(lambda m, g, i: i.append(i[at]))
    assert "is due" in complaint(lambda m, g, i: i[at].update(dtype="float32"))
    assert "is due" in complaint(lambda m, g, i: i[at].update(shape=["N"]))
    assert "has the name 'a b'" in complaint(lambda m, g, i: g.update({"a b": g["charge"]}))
    assert "charge is not default, minimum" in complaint(lambda m, g, i: g["charge"].pop("minimum"))
    assert "charge is wrong: a graph input's default is 5" in complaint(lambda m, g, i: g["charge"].update(default=5))
    assert "integer must be True or False" in complaint(lambda m, g, i: g["charge"].update(integer="yes"))
    assert "graph_inputs is no object" in complaint(lambda m, g, i: m.update(graph_inputs=[]))
    assert "bundle format 4, this StableMD reads up to 3" in complaint(lambda m, g, i: m.update(format=4))
