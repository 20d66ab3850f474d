# SPDX-License-Identifier: BSD-3-Clause
"""Files of MACE-JAX models: pairs, checkpoints, and damaged ones. test_jax_originals.py has values of MACE-JAX."""

from __future__ import annotations

import json
import pickle
import shutil

import jax
import numpy as np
import pytest
from stablemd import StableMDError
from stablemd.mace import load


def same_parameters(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


def test_a_pair_of_files(data, tmp_path):
    directory = load(data / "sic" / "mace-jax")
    shutil.copy(data / "sic" / "mace-jax" / "config.json", tmp_path / "some.json")
    shutil.copy(data / "sic" / "mace-jax" / "params.msgpack", tmp_path / "some.msgpack")
    for name in ("some.json", "some.msgpack"):
        same_parameters(load(tmp_path / name), directory)
    # the name that MACE-JAX's converter gives
    (tmp_path / "some.msgpack").rename(tmp_path / "some.npz")
    for name in ("some.json", "some.npz"):
        same_parameters(load(tmp_path / name), directory)
    (tmp_path / "some.npz").unlink()
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


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_checkpoint_runs_nothing(data, tmp_path):
    """It may hold whatever a trainer keeps, of libraries that are not here; none of it is imported or called."""
    directory = data / "sic" / "mace-jax"
    config = json.loads((directory / "config.json").read_text())
    content = (directory / "params.msgpack").read_bytes()
    path, harm = tmp_path / "run.ckpt", tmp_path / "harm"
    payload = {"model_config": config, "params": content, "optimizer_state": [Harmful(str(harm))]}
    path.write_bytes(pickle.dumps(payload))
    same_parameters(load(path), load(directory))
    assert not harm.exists()
