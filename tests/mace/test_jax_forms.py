# SPDX-License-Identifier: BSD-3-Clause
"""Forms of MACE-JAX models: pairs of files, checkpoints, several heads, blocks that no stored model has.

MACE-JAX is not on PyPI, so models of mace-torch are written here as MACE-JAX would write them (its names, its layouts,
its coupling basis) and must give what mace-torch gives.
"""

from __future__ import annotations

import json
import pickle
import shutil

import jax
import numpy as np
import pytest
import torch_models
from evaluation import Evaluator
from stablemd import StableMDError
from stablemd.mace import load
from stablemd.mace._polynomials import dense_to_coefficients
from stablemd.mace._reduced import reduced_basis
from test_files import pack
from torch_models import build, fresh_seed, triclinic_crystal


def same_parameters(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


def test_a_pair_of_files(data, tmp_path):
    directory = load(data / "sic" / "mace-jax")
    shutil.copy(data / "sic" / "mace-jax" / "config.json", tmp_path / "some.json")
    shutil.copy(data / "sic" / "mace-jax" / "params.msgpack", tmp_path / "some.msgpack")
    for name in ("some.json", "some.msgpack"):
        same_parameters(load(tmp_path / name), directory)
    (tmp_path / "some.msgpack").unlink()
    with pytest.raises(FileNotFoundError, match=r"some\.msgpack: no such file"):
        load(tmp_path / "some.json")


def test_a_checkpoint(data, tmp_path):
    directory = data / "sic" / "mace-jax"
    config = json.loads((directory / "config.json").read_text())
    content = (directory / "params.msgpack").read_bytes()
    path = tmp_path / "run.ckpt"
    for key in ("eval_state", "params"):
        path.write_bytes(pickle.dumps({"model_config": config, key: content, "epoch": 3}))
        same_parameters(load(path), load(directory))
    for payload, message in [
        (b"nothing", "run.ckpt: not a checkpoint of MACE-JAX, or damaged"),
        (pickle.dumps([1]), "run.ckpt: the checkpoint holds no model_config"),
        (pickle.dumps({"model_config": config}), "run.ckpt: the checkpoint holds no state or params"),
        (pickle.dumps({"model_config": config, "state": content[:50]}), "run.ckpt: not flax msgpack, or damaged"),
    ]:
        path.write_bytes(payload)
        with pytest.raises(StableMDError, match=message) as caught:
            load(path)
        assert "\n" not in str(caught.value)


# ---- as MACE-JAX would write a model of mace-torch -------------------------------------------------------------------


def put(tree, name, array):
    *path, last = name.split(".")
    for key in path:
        tree = tree.setdefault(key, {})
    tree[last] = np.asarray(array)


def reduced_weights(model, index, degrees, extra):
    """[elements, reduced paths, channels], by polynomial degree, then output degree; random for those in ``extra``."""
    contraction = model.products[index].symmetric_contractions
    max_ell = int(model.spherical_harmonics._lmax)
    parts = []
    for order in range(1, contraction.contractions[0].correlation + 1):
        for place, ell in enumerate(degrees):
            basis = reduced_basis(max_ell, order, ell)
            if ell in extra:
                shape = contraction.contractions[0].weights_max.shape
                parts.append(np.random.default_rng(0).normal(size=(shape[0], len(basis), shape[2])))
                continue
            part = contraction.contractions[place]
            last = order == part.correlation
            weights = part.weights_max if last else part.weights[part.correlation - order - 1]
            matrix = part.U_tensors(order).numpy()
            rows = dense_to_coefficients(matrix if ell else matrix[None], order).reshape(matrix.shape[-1], -1)
            mixing = np.linalg.lstsq(basis.reshape(len(basis), -1).T, rows.T, rcond=None)[0]
            parts.append(np.einsum("rp,epc->erc", mixing, weights.detach().numpy()))
    return np.concatenate(parts, axis=1)


def written(model, folder, extra=(), **fields):
    """A directory of MACE-JAX; ``extra`` are degrees that a lone layer has beside its scalars."""
    tree = {}
    state = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    for name, array in state.items():
        if ".symmetric_contractions." in name or ".conv_tp." in name or name.startswith("spherical_harmonics."):
            continue
        for network in ("conv_tp_weights", "density_fn"):
            name = name.replace(f"{network}.layer", f"{network}.layers.")
        name = name.replace("bessel_fn.bessel_weights", "basis_fn._bessel_weights")
        put(tree, name, array[None] if name.endswith("linear.weight") else array)
    hidden = sorted({irrep.l for _, irrep in model.products[0].linear.irreps_out} | set(extra))
    channels = model.products[0].linear.irreps_out[0].mul
    layers = len(model.products)
    for index in range(layers):
        degrees = hidden if index < layers - 1 or extra else [0]
        put(tree, f"products.{index}.symmetric_contractions.weight", reduced_weights(model, index, degrees, extra))
        if extra:
            more = np.random.default_rng(1).normal(size=len(extra) * channels**2)
            flat = state[f"products.{index}.linear.weight"]
            put(tree, f"products.{index}.linear.weight", np.concatenate([flat, more])[None])
    radial = model.radial_embedding
    config = {
        "r_max": float(model.r_max),
        "num_bessel": len(radial.bessel_fn.bessel_weights),
        "num_polynomial_cutoff": int(radial.cutoff_fn.p),
        "max_ell": int(model.spherical_harmonics._lmax),
        "interaction_cls": type(model.interactions[-1]).__name__,
        "interaction_cls_first": type(model.interactions[0]).__name__,
        "num_interactions": layers,
        "hidden_irreps": "+".join(f"{channels}x{ell}{'eo'[ell % 2]}" for ell in hidden),
        "MLP_irreps": "6x0e",
        "gate": "silu",
        "avg_num_neighbors": 7.5,
        "atomic_numbers": [int(number) for number in model.atomic_numbers],
        "correlation": int(model.products[0].symmetric_contractions.contractions[0].correlation),
        "radial_MLP": [16, 16],
        "heads": list(model.heads),
        "torch_model_class": type(model).__name__,
        "pair_repulsion": hasattr(model, "pair_repulsion_fn"),
        "distance_transform": "Agnesi" if hasattr(radial, "distance_transform") else None,
        "normalize2mom_consts": {"silu": float(model.interactions[0].conv_tp_weights.layer0.act.cst)},
        **fields,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "params.msgpack").write_bytes(pack(tree))
    return folder


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({"heads": 2}, ()),
        ({"first": "Density", "other": "DensityResidual", "distance_transform": "Agnesi", "pair_repulsion": True}, ()),
        ({"num_interactions": 1, "hidden": "4x0e"}, (1, 2)),
    ],
    ids=["two heads", "density, Agnesi, repulsion", "one layer with higher degrees"],
)
def test_agrees_with_mace_torch(tmp_path, options, extra):
    model = build(**{"hidden": "4x0e+4x1o", **options})
    path = written(model, tmp_path / "jax", extra)
    atoms = triclinic_crystal(np.random.default_rng(fresh_seed()))
    for head in model.heads:
        expected = torch_models.evaluate(model, atoms, head)
        result = Evaluator(load(path, head=head), quick=True)(atoms)
        assert np.abs(result.energies - expected.energies).max() < 1e-8
        assert np.abs(result.forces - expected.forces).max() < 1e-7
        assert np.abs(result.stress - expected.stress).max() < 1e-8
