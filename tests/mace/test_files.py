# SPDX-License-Identifier: BSD-3-Clause
"""Files and arguments that are wrong: each gets one line that names the fault."""

from __future__ import annotations

import builtins
import json
import shutil
import sys
import zipfile
from importlib.util import find_spec

import msgpack
import numpy as np
import pytest
from stablemd import StableMDError
from stablemd.mace import load
from stablemd.mace._basis import coupling_basis


def pack(tree) -> bytes:
    """As flax's serialisation writes a tree of arrays."""

    def default(array):
        array = np.asarray(array)
        content = msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
        return msgpack.ExtType(1, content)

    return msgpack.packb(tree, default=default, strict_types=True)


def unpack(content: bytes):
    def array(_, data):
        shape, dtype, values = msgpack.unpackb(data)
        return np.frombuffer(values, dtype).reshape(shape)

    return msgpack.unpackb(content, ext_hook=array, strict_map_key=False)


@pytest.fixture
def model(data, tmp_path):
    """A copy of the SiC model to spoil."""
    copy = tmp_path / "model"
    shutil.copytree(data / "sic" / "mace-jax", copy)
    return copy


def refuse(path, message, error=ValueError, **arguments):
    with pytest.raises(error, match=message) as caught:
        load(path, **arguments)
    assert isinstance(caught.value, StableMDError)
    assert "\n" not in str(caught.value)


def set_field(model, **fields):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | fields))


def test_the_copy_loads(model):
    potential = load(model)
    assert potential.elements == ("C", "Si") and potential.layers == 2 and potential.cutoff == 4.0
    assert potential.source["head"] == "Default"


def test_missing_paths(model, tmp_path):
    refuse(tmp_path / "nothing", "nothing: no such file or directory", FileNotFoundError)
    (model / "params.msgpack").unlink()
    refuse(model, "params.msgpack: no such file; a MACE-JAX model needs", FileNotFoundError)
    (model / "config.json").unlink()
    refuse(model, "config.json: no such file", FileNotFoundError)


@pytest.mark.parametrize("name", ["params.msgpack", "config.json"])
def test_truncated_at_any_byte(model, name):
    content = (model / name).read_bytes().rstrip()
    places = np.random.default_rng().integers(0, len(content), 40)
    for stop in [0, 1, len(content) - 1, *places.tolist()]:
        (model / name).write_bytes(content[:stop])
        refuse(model, f"{name}: (not|holds no)")


@pytest.mark.parametrize("name", ["params.msgpack", "config.json"])
def test_random_bytes(model, name):
    rng = np.random.default_rng()
    for size in (1, 10, 1000):
        (model / name).write_bytes(rng.bytes(size))
        refuse(model, f"{name}: (not|holds no)")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("interaction_cls", "RealAgnosticAttResidualInteractionBlock"),
        ("interaction_cls_first", "ResidualElementDependentInteractionBlock"),
        ("interaction_cls", None),
        ("readout_cls", "NonLinearDipoleReadoutBlock"),
        ("radial_type", "morse"),
        ("distance_transform", "Tanh"),
        ("embedding_specs charge per", "node"),
        ("embedding_specs charge type", "vector"),
        ("use_so3", True),
        ("use_edge_irreps_first", True),
        ("edge_irreps", "32x0e+32x1e"),
        ("gate", "relu"),
        ("torch_model_class", "AtomicDipolesMACE"),
        ("correlation", 5),
        ("correlation", [3]),
        ("hidden_irreps", "64x0e+32x1o"),
        ("hidden_irreps", "64x0e+64x1e"),
        ("hidden_irreps", "64x0o"),
        ("MLP_irreps", "16x0e+16x1o"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(model, field, value):
    if field.startswith("embedding_specs"):
        usual = {"type": "continuous", "per": "graph", "emb_dim": 4}
        set_field(model, embedding_specs={"charge": {**usual, field.split()[-1]: value}})
    elif field == "use_edge_irreps_first":
        set_field(model, edge_irreps="32x0e", use_edge_irreps_first=value)
    else:
        set_field(model, **{field: value})
    refuse(model, f"config.json: cannot evaluate a MACE with {field} = ")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("r_max", -1.0, "r_max = -1.0 must be a positive number"),
        ("r_max", None, "r_max = None must be a positive number"),
        ("max_ell", "3", "max_ell = 3 must be an integer from 0 to 6"),
        ("max_ell", 40, "max_ell = 40 must be an integer from 0 to 6"),
        ("num_interactions", 9, "num_interactions = 9 must be an integer from 1 to 8"),
        ("atomic_numbers", [6, 6], "atomic_numbers = .* must be distinct"),
        ("atomic_numbers", [6, 200], "atomic_numbers = .* must be distinct"),
        ("atomic_numbers", [], "atomic_numbers = .* must be a list of positive integers"),
        ("num_elements", 3, "num_elements = 3, but atomic_numbers lists 2"),
        ("num_elements", [2], "num_elements = .*, but atomic_numbers lists 2"),
        ("hidden_irreps", "sixty-four", "hidden_irreps = sixty-four are no irreps"),
        ("heads", [1], "heads = .* must be a list of names"),
        ("radial_MLP", [64, 0], "radial_MLP = .* must be a list of positive integers"),
        ("apply_cutoff", "no", "apply_cutoff = no must be true or false"),
        ("edge_irreps", "3y0e", "edge_irreps = 3y0e are no irreps"),
    ],
)
def test_fields_with_impossible_values(model, field, value, message):
    set_field(model, **{field: value})
    refuse(model, message)


def test_a_missing_field(model):
    config = json.loads((model / "config.json").read_text())
    del config["avg_num_neighbors"]
    (model / "config.json").write_text(json.dumps(config))
    refuse(model, "config.json: field avg_num_neighbors is missing")


@pytest.mark.parametrize(
    ("keys", "array", "message"),
    [
        ("interactions 1 linear_up weight", None, "tensor interactions.1.linear_up.weight is missing"),
        ("interactions 0 skip_tp weight", np.ones((1, 4)), r"skip_tp.weight has shape \(1, 4\), needs 8192"),
        ("products 0 symmetric_contractions weight", np.ones((2, 27, 64)), r"needs \(2, 28\) \+ channels"),
        ("products 0 symmetric_contractions weight", np.ones((2, 28, 32)), r"shape \(2, 28, 32\), needs 64 channels"),
        ("products 0 symmetric_contractions projection", np.ones((28, 12)), r"projection has shape \(28, 12\), needs"),
        ("readouts 0 linear weight", np.full((1, 64), np.nan), "linear.weight holds values that are not finite"),
        ("readouts 0 linear weight", np.ones((1, 64), complex), "readouts.0.linear.weight is not a real array"),
        ("scale_shift scale", np.ones(3), r"scale_shift.scale has shape \(3,\), needs \(1,\)"),
    ],
)  # fmt: skip
def test_tensors_that_are_missing_or_wrong(model, keys, array, message):
    tree = unpack((model / "params.msgpack").read_bytes())
    *path, last = keys.split()
    node = tree
    for key in path:
        node = node[key]
    if array is None:
        del node[last]
    else:
        node[last] = array
    (model / "params.msgpack").write_bytes(pack(tree))
    refuse(model, message)


def test_heads(model):
    refuse(model, "has no head 'pbe': choose one of Default", head="pbe")
    assert load(model, head="Default").source["head"] == "Default"
    set_field(model, heads=["pbe", "r2scan"])
    refuse(model, "has several heads: choose one with head=, of pbe, r2scan")


def test_elements(model):
    refuse(model, "knows no element 'O': it has C, Si", elements=["Si", "O"])
    refuse(model, "must name each element once", elements=["Si", "Si"])
    refuse(model, "must name each element once", elements=[])


def archive(path, files):
    """As torch writes a zip archive with files in a folder."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in files.items():
            file.writestr(f"{path.stem}/{name}", content)


def pickled(*names):
    """A pickle of protocol 2 that calls each of these functions, and a list of what comes of them."""
    calls = b"".join(b"c" + name.replace(" ", "\n").encode() + b"\n)R" for name in names)
    return b"\x80\x02(" + calls + b"l."


def object_of(name):
    return b"\x80\x02c" + name.replace(" ", "\n").encode() + b"\n)\x81}b."


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n)R"
FOREIGN = [
    (
        "weights.pt",
        {"data.pkl": b"\x80\x02}X\1\0\0\0w" + TENSOR + b"s."},
        "is a state dict: weights without their model",
    ),
    (
        "x_epoch-9.pt",
        {"data.pkl": b"\x80\x02}(X\5\0\0\0model}X\x09\0\0\0optimizer}u."},
        "is a checkpoint of a training .* give the .model file that mace_run_train writes",
    ),
    (
        "other.pt",
        {"data.pkl": b"\x80\x02}X\6\0\0\0net\n\x1b[}s."},
        r"is a dict with the keys net \\x1b\[",
    ),
    ("list.pt", {"data.pkl": pickled("sys exit")}, "holds a Python list, no model"),
    ("whole.pt", {"data.pkl": object_of("sevenn.nn Sequential")}, "holds a sevenn.nn.Sequential, which is no MACE"),
    (
        "script.pth",
        {"data.pkl": object_of("__torch__.torch.nn.linear Linear"), "code/__torch__/torch/nn/linear.py": b""},
        "is a TorchScript file with a torch.nn.linear.Linear, which is no MACE",
    ),
    (
        "deployed.pth",
        {"data.pkl": object_of("__torch__.x Y"), "code/x.py": b"", "extra/nequip_version": b"0.6"},
        "is a TorchScript file with a NequIP model; only MACE is read",
    ),
    (
        "deployed.pth",
        {"data.pkl": object_of("__torch__.x Y"), "code/__torch__/allegro/nn.py": b"", "extra/nequip_version": b""},
        "is a TorchScript file with an Allegro model; only MACE is read",
    ),
    (
        "a.nequip.zip",
        {".data/extern_modules": b"", "model/model.pkl": b""},
        "is a package of torch with a NequIP model",
    ),
    (
        "a.pt2",
        {"archive_format": b"pt2", "models/model.json": b"{}"},
        "is a program that PyTorch has compiled or exported",
    ),
    (
        "a.nequip.pt2",
        {"data/aotinductor/model/model.so": b""},
        "PyTorch has compiled or exported with a NequIP model .*docs/export.md",
    ),
    (
        "epoch.ckpt",
        {"data.pkl": b"\x80\x02}X\x19\0\0\0pytorch-lightning_versionNs."},
        "checkpoint of PyTorch Lightning",
    ),
    ("arrays.npz", {"x.npy": b""}, "is a NumPy archive, no model"),
    ("any.zip", {"readme.txt": b""}, "is a zip archive, but none of PyTorch"),
    ("empty.model", b"", "is empty; copy it again"),
    ("a.onnx", b"\x08\x07\x12\x07pytorch", "is an ONNX file"),
    ("any.model", b"\x08\x07\x12\x07pytorch\x1a\x05", "is an ONNX file"),
    ("a.h5", b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
    ("a.xyz", b"2\n\nSi 0 0 0\nC 1 1 1\n", "is a file of structures"),
    ("a.yaml", b"r_max: 5.0\n", "is a configuration in YAML"),
    ("a.model", b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
    ("a.model", b"<!DOCTYPE html>\n<html>", "is a web page"),
    ("a.model", b"some text", "neither a MACE-JAX model nor a mace-torch model"),
]


@pytest.mark.parametrize(("name", "content", "message"), FOREIGN, ids=[f"{n}-{m[:30]}" for n, _, m in FOREIGN])
def test_files_of_other_kinds_are_named(tmp_path, monkeypatch, name, content, message):
    """Without torch, and without running what their pickles name."""
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / name
    archive(path, content) if isinstance(content, dict) else path.write_bytes(content)
    refuse(path, f"{name}:? .*{message}")


def test_bundles_and_weights_in_safetensors(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "x.model"
    save_file({"a": np.ones(2)}, path, metadata={"stablemd": "{}"})
    refuse(path, "x.model is a bundle already; LAMMPS and ASE take it as it is")
    save_file({"a": np.ones(2)}, path)
    refuse(path, "x.model is a .safetensors file with weights but without a model")


def test_a_folder_without_a_model(tmp_path):
    refuse(tmp_path, "a MACE-JAX model is a folder with config.json and params.msgpack$", FileNotFoundError)
    (tmp_path / "mace.model").write_bytes(b"")
    refuse(tmp_path, "the folder holds mace.model: give that file", FileNotFoundError)


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_what_torch_itself_writes(tmp_path):
    import torch

    net = torch.nn.Linear(3, 2)
    path = tmp_path / "x.pt"
    for new in (True, False):
        torch.save(net.state_dict(), path, _use_new_zipfile_serialization=new)
        refuse(path, "is a state dict")
        torch.save(net, path, _use_new_zipfile_serialization=new)
        refuse(path, "holds a torch.nn.modules.linear.Linear, which is no MACE")
    state = torch.optim.Adam(net.parameters()).state_dict()
    torch.save({"model": net.state_dict(), "optimizer": state, "lr_scheduler": {}}, path)
    refuse(path, "is a checkpoint of a training")
    torch.jit.save(torch.jit.trace(net, torch.ones(3)), path)
    refuse(path, "is a TorchScript file with a torch.nn.modules.linear.Linear")


def test_a_torch_file_without_torch(data, monkeypatch):
    real = builtins.__import__

    def without_torch(name, *arguments, **options):
        if name.split(".")[0] in ("torch", "mace"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    refuse(data / "sic" / "mace.model", r"needs torch and mace-torch: pip install torch mace-torch")


def test_a_basis_that_only_cuequivariance_knows(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuequivariance", None)
    with pytest.raises(
        ValueError, match=r"model: .* max_ell = 3, correlation 4, l = 1 needs cuequivariance: pip install"
    ):
        coupling_basis("model", 3, 4, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"interaction_cls": ["x"]},
        {"interaction_cls_first": {}},
        {"readout_cls": ["x"]},
        {"distance_transform": ["x"]},
        {"embedding_specs": 2},
        {"embedding_specs": [None]},
        {"r_max": 10**400},
        {"avg_num_neighbors": 10**400},
        {"hidden_irreps": [[float("inf"), [0, 1]]]},
        {"MLP_irreps": [[float("inf"), [0, 1]]]},
    ],
    ids=str,
)
def test_values_that_no_configuration_has(model, fields):
    set_field(model, **fields)
    refuse(model, model.name)


def test_nesting_without_end(model):
    (model / "config.json").write_text("[" * 100_000)
    refuse(model, "model.*damaged or no MACE-JAX model")


@pytest.mark.parametrize("tree", [{"params": 3}, 3, []])
def test_parameters_that_are_no_tree(model, tree):
    (model / "params.msgpack").write_bytes(pack(tree))
    refuse(model, "params.msgpack: holds no|damaged or no MACE-JAX model")
