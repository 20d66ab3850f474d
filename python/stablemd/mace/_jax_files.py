# SPDX-License-Identifier: BSD-3-Clause
"""Reader of a MACE-JAX model: a configuration in JSON and parameters in flax's msgpack, or both in a checkpoint.

Neither mace_jax nor flax is imported. Field names, tensor names and layouts follow MACE-JAX 0.2.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import isfinite, sqrt
from pathlib import Path as FilePath
from typing import Any
from zipfile import is_zipfile

import jax
import msgpack
import numpy as np

from .._errors import FileError, FormatError, MissingFileError
from .._program import x64
from ._angular import coupling
from ._assemble import BLOCKS, Configuration, Interaction, ReadoutShape, Source, assemble, choose_head
from ._basis import reduced_polynomials
from ._description import Basis, Description, Repulsion, Transform
from ._embedding import read_features
from ._foreign import foreign
from ._pickles import Stranger, stranger
from ._polynomials import Polynomials
from ._refuse import MAX_ELL, check_hidden, check_irreps, check_numbers, unsupported

#: Angstrom; what keeps MACE-JAX from dividing by zero is all that its harmonics differ by from exact ones.
_LENGTH_SHIFT = 1e-9

#: flax's msgpack extension types
_NDARRAY, _COMPLEX, _SCALAR = 1, 2, 3


def _extension(code: int, data: bytes) -> Any:
    if code not in (_NDARRAY, _SCALAR):
        raise ValueError(f"extension type {code}")
    shape, dtype, content = msgpack.unpackb(data, raw=True)
    array = np.frombuffer(content, dtype=np.dtype(dtype.decode("ascii"))).reshape(shape)
    return array


def _read_file(path: FilePath) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file; a MACE-JAX model needs config.json and params.msgpack") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None


def _read_parameters(path: FilePath) -> dict[str, Any]:
    return _unpacked(path, _read_file(path))


def _unpacked(path: FilePath, content: bytes) -> dict[str, Any]:
    try:
        tree = msgpack.unpackb(content, ext_hook=_extension, strict_map_key=False)
    except Exception as error:  # msgpack, numpy and the hook raise a dozen different ones on damaged content
        raise FormatError(f"{path}: not flax msgpack, or damaged ({_first_line(error)})") from None
    if not isinstance(tree, dict):
        raise FormatError(f"{path}: holds no tree of parameters")
    while set(tree) == {"params"}:
        tree = tree["params"]
    return tree


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _read_configuration(path: FilePath) -> dict[str, Any]:
    content = _read_file(path)
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise FormatError(f"{path}: not JSON, or damaged ({_first_line(error)})") from None
    if not isinstance(fields, dict):
        raise FormatError(f"{path}: holds no JSON object")
    return fields


class _Fields:
    """Typed access to config.json."""

    def __init__(self, path: FilePath, fields: dict[str, Any]) -> None:
        self.path, self.fields = path, fields

    def _get(self, name: str) -> Any:
        if name not in self.fields:
            raise FormatError(f"{self.path}: field {name} is missing")
        return self.fields[name]

    def integer(self, name: str, least: int, most: int) -> int:
        value = self._get(name)
        if type(value) is not int or not least <= value <= most:
            raise FormatError(f"{self.path}: {name} = {value} must be an integer from {least} to {most}")
        return value

    def positive(self, name: str) -> float:
        value = self._get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or value <= 0:
            raise FormatError(f"{self.path}: {name} = {value} must be a positive number")
        return float(value)

    def integers(self, name: str, default: list[int] | None = None) -> list[int]:
        value = self.fields.get(name) if default is not None else self._get(name)
        if value is None:
            value = default
        if not isinstance(value, list) or not value or not all(type(item) is int and item > 0 for item in value):
            raise FormatError(f"{self.path}: {name} = {value} must be a list of positive integers")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FormatError(f"{self.path}: {name} = {value} must be true or false")
        return value

    def irreps(self, name: str) -> list[tuple[int, int, int]]:
        """Irreps written as [[mul, [l, parity]], ...] or as text, "32x0e+32x1o"."""
        value = self._get(name)
        try:
            if isinstance(value, str):
                return [_parse_irrep(part) for part in value.split("+")]
            return [(int(mul), int(ell), int(parity)) for mul, (ell, parity) in value]
        except (TypeError, ValueError):
            raise FormatError(f"{self.path}: {name} = {value} are no irreps") from None


def _parse_irrep(text: str) -> tuple[int, int, int]:
    mul, _, irrep = text.strip().rpartition("x")
    return int(mul or 1), int(irrep[:-1]), {"e": 1, "o": -1}[irrep[-1]] if irrep[-1:] in ("e", "o") else int("x")


class _JaxSource(Source):
    """The tensors of a MACE-JAX model by mace-torch's names."""

    config: Configuration
    masks_first_scalars = False

    def __init__(self, path: FilePath, tree: dict[str, Any], fields: _Fields) -> None:
        self.path, self.tree, self.fields = path, tree, fields
        self._polynomials: dict[int, dict[int, Polynomials]] = {}

    def _stored(self, name: str) -> np.ndarray | None:
        node: Any = self.tree
        for key in _jax_name(name).split("."):
            if not isinstance(node, dict) or key not in node:
                return None
            node = node[key]
        if not isinstance(node, np.ndarray) or node.dtype.kind not in "fiu":
            raise FormatError(f"{self.path}: {name} is not a real array")
        if not np.isfinite(node).all():
            raise FormatError(f"{self.path}: {name} holds values that are not finite")
        return node

    def find(self, name: str) -> np.ndarray | None:
        values = self._stored(name)
        return None if values is None else values.astype(np.float64)

    def radial_matrix(self, name: str, inputs: int, outputs: int) -> np.ndarray:
        """MACE-JAX divides these weights by sqrt(fan-in) in the precision that they are stored in, and XLA turns that
        into a product with the rounded reciprocal. Done alike here, or a model in float64 differs by 1e-7 eV/atom.
        """
        self.tensor(name, inputs * outputs)
        stored = self._stored(name)
        assert stored is not None
        real = stored.dtype.type if stored.dtype.kind == "f" else np.float64
        scaled = stored.astype(real) * (real(1) / np.sqrt(real(inputs)))
        return scaled.astype(np.float64).reshape(inputs, outputs)

    def dense(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        matrix = self.tensor(f"{name}.kernel", inputs * outputs).reshape(inputs, outputs)
        return matrix.copy(), self.tensor(f"{name}.bias", outputs) if bias else None

    def norm(self, name: str, width: int) -> np.ndarray:
        return np.stack([self.tensor(f"{name}.scale", width), self.tensor(f"{name}.bias", width)])

    def activation(self, block: str) -> tuple[str, float]:
        if "non_linearity" not in block:
            scale = self.find(f"{block}.act_scale")
            return "silu", self._factor("silu") if scale is None else float(scale.reshape(-1)[0])
        gate = _gate(self.fields)
        return gate, 1.0 if gate == "none" else self._factor(gate)

    def _factor(self, activation: str) -> float:
        """From the configuration, or else as MACE-JAX makes it: the silu has one estimate for all models, while others
        are estimated whenever a model is built, from random numbers that depend on its precision.
        """
        constants = self.fields.fields.get("normalize2mom_consts")
        if isinstance(constants, dict) and isinstance(constants.get(activation), int | float):
            return float(constants[activation])
        if activation == "silu":
            return self.number("_normalize2mom_consts_var.silu")
        weights = self._stored("node_embedding.linear.weight")
        assert weights is not None
        return _estimated_factor(activation, weights.dtype)

    def gate_scales(self, layer: int) -> tuple[float, float]:
        return self._factor("silu"), self._factor("sigmoid")

    def coupling(self, layer: int, path: tuple[int, int, int]) -> np.ndarray:
        return coupling(*path)

    def polynomials(self, layer: int, output: int) -> Polynomials:
        """The weights are reduced, or become so by the ``projection`` that stands beside them."""
        if layer not in self._polynomials:
            config = self.config
            name = f"products.{layer}.symmetric_contractions"
            elements = 1 if config.agnostic_product else config.elements
            shape = (config.max_ell, config.interactions[layer].correlation, elements)
            tensors = self.get(f"{name}.weight"), self.find(f"{name}.projection")
            if tensors[0].shape[-1] != config.channels:
                found = tensors[0].shape
                raise FormatError(f"{self.path}: {name}.weight has shape {found}, needs {config.channels} channels")
            where = str(self.path)
            self._polynomials[layer] = reduced_polynomials(where, name, shape, config.out_degrees(layer), tensors)
        return self._polynomials[layer][output]

    def repulsion(self, config: Configuration) -> Repulsion | None:
        if not self.fields.fields.get("pair_repulsion"):
            return None
        numbers = np.array(config.atomic_numbers)
        name = "pair_repulsion_fn"
        exponent, prefactor = self.find(f"{name}.a_exp"), self.find(f"{name}.a_prefactor")
        return Repulsion(
            charges=numbers.astype(float),
            powers=numbers ** (0.3 if exponent is None else float(exponent)),
            length=0.529 * (0.4543 if prefactor is None else float(prefactor)),
            coefficients=self.tensor(f"{name}._c", 4),
            radii=self.get(f"{name}._covalent_radii")[numbers],
            power=config.cutoff_power,
        )


@cache
def _estimated_factor(activation: str, dtype: np.dtype) -> float:
    """One over the root of the mean square of an activation of a million normal random numbers."""
    function = {"tanh": jax.numpy.tanh, "sigmoid": jax.nn.sigmoid, "abs": jax.numpy.abs}[activation]
    with x64(dtype):
        normal = jax.random.normal(jax.random.PRNGKey(0), (1_000_000,), dtype)
        return float(jax.numpy.mean(function(normal) ** 2) ** -0.5)


def _jax_name(name: str) -> str:
    """MACE-JAX's name of a tensor of mace-torch."""
    name = re.sub(r"(conv_tp_weights|density_fn)\.layer(\d+)", r"\1.layers.\2", name)
    name = re.sub(r"(conv_tp_weights|density_fn)\.net\.", r"\1.net.layers.", name)
    if not name.startswith("joint_embedding."):
        return name
    name = name.replace(".project.0.", ".proj_lin.").replace(".weight", ".embedding")
    return re.sub(r"\.([02])\.(kernel|bias)$", lambda match: f".lin{1 + int(match[1]) // 2}.{match[2]}", name)


# ---- configuration ---------------------------------------------------------------------------------------------------


def _blocks(fields: _Fields, layers: int) -> list[str]:
    where = str(fields.path)
    names = [fields.fields.get("interaction_cls_first"), *[fields.fields.get("interaction_cls")] * (layers - 1)]
    for field, name in zip(("interaction_cls_first", *["interaction_cls"] * (layers - 1)), names, strict=True):
        if name not in BLOCKS:
            raise unsupported(where, field, name)
    if fields.fields.get("interaction_cls") not in BLOCKS:
        raise unsupported(where, "interaction_cls", fields.fields.get("interaction_cls"))
    return [str(name) for name in names]


def _interactions(fields: _Fields, channels: int, degrees: tuple[int, ...]) -> tuple[Interaction, ...]:
    where = str(fields.path)
    layers = fields.integer("num_interactions", 1, 8)
    blocks, correlations = _blocks(fields, layers), _correlation(fields, layers)
    radial = tuple(fields.integers("radial_MLP", [64, 64, 64]))
    edges = None
    if fields.fields.get("edge_irreps") is not None:
        if fields.fields.get("use_edge_irreps_first"):
            raise unsupported(where, "use_edge_irreps_first", True)
        edges = check_irreps(where, "edge_irreps", fields.irreps("edge_irreps"), proper=False)
    # A lone layer keeps all its degrees where nothing tells MACE-JAX to leave them out; the readout sees the scalars.
    collapse = fields.fields.get("collapse_hidden_irreps")
    alone = layers == 1 and not (len(degrees) == 1 if collapse is None else collapse)
    found: list[Interaction] = []
    for index in range(layers):
        enters = degrees if index else (0,)
        found.append(
            Interaction(
                block=blocks[index],
                enters=enters,
                leaves=degrees if index < layers - 1 or alone else (0,),
                sent=edges if edges is not None and index else dict.fromkeys(enters, channels),
                correlation=correlations[index],
                average=fields.positive("avg_num_neighbors"),
                radial=radial,
            )
        )
    return tuple(found)


def _correlation(fields: _Fields, layers: int) -> tuple[int, ...]:
    value = fields.fields.get("correlation")
    orders = tuple(value) if isinstance(value, list) else (value,) * layers
    if len(orders) != layers or not all(type(order) is int and 1 <= order <= 4 for order in orders):
        raise unsupported(str(fields.path), "correlation", value)
    return orders


def _readouts(fields: _Fields, layers: int) -> tuple[ReadoutShape, ...]:
    where = str(fields.path)
    last_only = bool(fields.fields.get("use_last_readout_only"))
    if layers == 1:
        if last_only:
            raise unsupported(where, "use_last_readout_only", "true and one layer")
        return (ReadoutShape(0, "linear"),)
    name = fields.fields.get("readout_cls") or "NonLinearReadoutBlock"
    kind = {"NonLinearReadoutBlock": "nonlinear", "NonLinearBiasReadoutBlock": "bias"}.get(name)
    if kind is None:
        raise unsupported(where, "readout_cls", name)
    irreps = fields.irreps("MLP_irreps")
    if len(irreps) != 1 or irreps[0][1:] != (0, 1):
        raise unsupported(where, "MLP_irreps", fields.fields["MLP_irreps"])
    linear = () if last_only else tuple(ReadoutShape(index, "linear") for index in range(layers - 1))
    return (*linear, ReadoutShape(layers - 1, kind, irreps[0][0]))


def _gate(fields: _Fields) -> str:
    """The activation of the readouts."""
    gate = fields.fields.get("gate")
    name = {"none": "none", "silu": "silu", "silu6": "silu", "swish": "silu", "tanh": "tanh", "abs": "abs"}.get(
        str(gate).lower()
    )
    if name is None:
        raise unsupported(str(fields.path), "gate", gate)
    return name


def _heads(fields: _Fields) -> tuple[str, ...]:
    heads = fields.fields.get("heads") or ["Default"]
    if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
        raise FormatError(f"{fields.path}: heads = {heads} must be a list of names")
    return tuple(heads)


def _atomic_numbers(fields: _Fields) -> tuple[int, ...]:
    numbers = check_numbers(str(fields.path), fields.integers("atomic_numbers"))
    count = fields.fields.get("num_elements")
    if count not in (None, len(numbers)):
        raise FormatError(f"{fields.path}: num_elements = {count}, but atomic_numbers lists {len(numbers)}")
    return numbers


def _configuration(fields: _Fields, features: Mapping[str, float]) -> Configuration:
    where = str(fields.path)
    if fields.fields.get("torch_model_class", "MACE") not in ("MACE", "ScaleShiftMACE"):
        raise unsupported(where, "torch_model_class", fields.fields["torch_model_class"])
    _gate(fields)
    if fields.flag("use_so3", False) and fields.integer("max_ell", 0, MAX_ELL):
        # Nor does MACE-JAX: its harmonics refuse the even parity that it asks them for.
        raise unsupported(where, "use_so3", True)
    channels, degrees = check_hidden(where, fields.irreps("hidden_irreps"), proper=False)
    interactions, heads = _interactions(fields, channels, degrees), _heads(fields)
    return Configuration(
        cutoff=fields.positive("r_max"),
        cutoff_power=fields.integer("num_polynomial_cutoff", 2, 100),
        apply_cutoff=fields.flag("apply_cutoff", True),
        max_ell=fields.integer("max_ell", 0, MAX_ELL),
        proper=False,
        atomic_numbers=_atomic_numbers(fields),
        channels=channels,
        interactions=interactions,
        readouts=_readouts(fields, len(interactions)),
        agnostic_product=fields.flag("use_agnostic_product", False),
        heads=heads,
        features=read_features(where, fields.fields.get("embedding_specs"), features),
    )


def _transform(source: _JaxSource, config: Configuration) -> Transform | None:
    kind = source.fields.fields.get("distance_transform")
    if kind in (None, "None"):
        return None
    usual = {"Agnesi": {"q": 0.9183, "p": 4.5791, "a": 1.0805}, "Soft": {"alpha": 4.0}}.get(kind)
    if usual is None:
        raise unsupported(str(source.fields.path), "distance_transform", kind)
    module = "radial_embedding.distance_transform_module"
    trained = {name: source.find(f"{module}.{name}_param") for name in usual}
    parameters = tuple(usual[name] if value is None else float(value) for name, value in trained.items())
    return Transform(kind.lower(), parameters, source.get(f"{module}._covalent_radii")[np.array(config.atomic_numbers)])


def _basis(source: _JaxSource, config: Configuration) -> tuple[Basis, float]:
    """The radial basis and the factor before it."""
    count = source.fields.integer("num_bessel", 1, 10_000)
    kind = source.fields.fields.get("radial_type", "bessel")
    transform = _transform(source, config)
    name = "radial_embedding.basis_fn"
    if kind == "bessel":
        numbers = source.find(f"{name}.bessel_weights")
        numbers = source.tensor(f"{name}._bessel_weights", count) if numbers is None else numbers
        return Basis(kind, numbers, transform=transform), sqrt(2 / config.cutoff)
    if kind == "gaussian":
        spacing = config.cutoff / (count - 1)
        numbers = source.find(f"{name}.gaussian_weights")
        numbers = source.tensor(f"{name}._gaussian_weights", count) if numbers is None else numbers
        return Basis(kind, numbers, spacing, transform), 1.0
    if kind == "chebyshev":
        return Basis(kind, np.arange(1.0, count + 1), transform=transform), 1.0
    raise unsupported(str(source.fields.path), "radial_type", kind)


# ---- files -----------------------------------------------------------------------------------------------------------


def is_model(path: FilePath) -> bool:
    """Whether a path is, by its kind and name, a model of MACE-JAX rather than of mace-torch."""
    return path.is_dir() or path.suffix in (".json", ".msgpack", ".npz", ".ckpt")


def _check_kind(path: FilePath) -> None:
    if path.is_dir():
        models = sorted(one.name for one in path.glob("*.model"))
        if not (path / "config.json").exists() and not (path / "params.msgpack").exists():
            hint = f"; the folder holds {models[0]}: give that file" if models else ""
            raise MissingFileError(
                f"{path / 'config.json'}: no such file; a MACE-JAX model is a folder with config.json and"
                f" params.msgpack{hint}"
            )
    elif path.suffix in (".ckpt", ".npz") and is_zipfile(path):  # MACE-JAX gives these names to other formats
        what = foreign(path) or "is a zip archive; if it is a model of mace-torch, call it .model"
        raise FormatError(f"{path} {what}")


def _open(path: FilePath) -> tuple[_Fields, FilePath, dict[str, Any]]:
    """Configuration, file of the parameters, and parameters."""
    _check_kind(path)
    if path.suffix == ".ckpt" and not path.is_dir():
        fields, tree = _read_checkpoint(path)
        return _Fields(path, fields), path, tree
    if path.is_dir():
        configuration, parameters = path / "config.json", path / "params.msgpack"
    else:
        # The converter of MACE-JAX calls its parameters NAME-jax.npz, though they are msgpack as all others.
        configuration, parameters = path.with_suffix(".json"), path.with_suffix(".msgpack")
        if not parameters.exists() and path.with_suffix(".npz").exists():
            parameters = path.with_suffix(".npz")
    return _Fields(configuration, _read_configuration(configuration)), parameters, _read_parameters(parameters)


def _array_of_jax(reconstruct: Any, arguments: tuple, state: tuple, _: Any) -> np.ndarray:
    """What a JAX array is pickled as, without JAX, which would round it unless set to double precision."""
    array = reconstruct(*arguments)
    array.__setstate__(state)
    return array


class _Checkpoint(pickle.Unpickler):
    """Reads plain data and arrays; it neither imports nor runs anything else that a pickle names."""

    _ARRAYS = ("_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype")

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in self._ARRAYS:
            return super().find_class(module, name)
        if (module, name) == ("jax._src.array", "_reconstruct_array"):
            return _array_of_jax
        return dict if name == "OrderedDict" else stranger(name)


def _read_checkpoint(path: FilePath) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pickled dict with the configuration and the parameters, those for evaluation where there are two."""
    try:
        payload = _Checkpoint(io.BytesIO(_read_file(path))).load()
    except FileError:
        raise
    except Exception as error:
        raise FormatError(f"{path}: not a checkpoint of MACE-JAX, or damaged ({_first_line(error)})") from None
    if not isinstance(payload, dict) or not isinstance(payload.get("model_config"), dict):
        raise FormatError(f"{path}: the checkpoint holds no model_config; MACE-JAX can export the model as a bundle")
    state = next((payload[key] for key in ("eval_state", "state", "eval_params", "params") if payload.get(key)), None)
    if isinstance(state, bytes | bytearray):
        return payload["model_config"], _unpacked(path, bytes(state))
    if not isinstance(state, dict):
        raise FormatError(f"{path}: the checkpoint holds no state or params")
    tree = _as_arrays(state)
    if "params" in tree:  # MACE-JAX's trainer keeps what it does not train apart
        tree = _merged(tree.get("config", {}), tree["params"])
    return payload["model_config"], tree


def _as_arrays(tree: Any) -> Any:
    """A tree with text for keys and numpy arrays for leaves."""
    if isinstance(tree, Stranger):
        tree = getattr(tree, "_data", {})  # MACE-JAX's ConfigDict
    if isinstance(tree, dict):
        return {str(key): _as_arrays(value) for key, value in tree.items()}
    return np.asarray(tree)


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = one.keys() & other.keys()
    nested = {key: _merged(one[key], other[key]) for key in both if isinstance(one[key], dict)}
    return one | other | nested


def read(path: FilePath, head: str | None, features: Mapping[str, float]) -> tuple[Description, str]:
    """The model in ``path`` for one head, and the head's name."""
    try:
        return _read(path, head, features)
    except (TypeError, AttributeError, OverflowError, LookupError, RecursionError, ArithmeticError) as error:
        # Whatever else a file can hold instead of what MACE-JAX writes.
        raise FormatError(f"{path} is damaged or no MACE-JAX model: {type(error).__name__}: {error}") from error


def _read(path: FilePath, head: str | None, features: Mapping[str, float]) -> tuple[Description, str]:
    fields, file, tree = _open(path)
    config = _configuration(fields, features)
    chosen = choose_head(config.heads, head, str(path))
    source = _JaxSource(file, tree, fields)
    source.config = config
    basis, prefactor = _basis(source, config)
    description = assemble(source, config, basis=basis, prefactor=prefactor, head=chosen)
    return replace(description, length_shift=_LENGTH_SHIFT), config.heads[chosen]
