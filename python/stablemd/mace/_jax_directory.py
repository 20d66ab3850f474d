# SPDX-License-Identifier: BSD-3-Clause
"""Reader of a MACE-JAX model: a directory with ``config.json`` and ``params.msgpack`` (flax's serialisation).

Neither mace_jax nor flax is imported. Field names, tensor names and layouts follow MACE-JAX 0.2.
"""

from __future__ import annotations

import json
from math import isfinite, sqrt
from pathlib import Path as FilePath
from typing import Any

import msgpack
import numpy as np

from .._errors import FileError, FormatError, MissingFileError
from ._angular import coupling
from ._assemble import Configuration, Source, assemble, choose_head
from ._basis import coupling_basis
from ._description import Description
from ._polynomials import Polynomials, from_coefficients
from ._refuse import MAX_ELL, check_block, check_fields, check_hidden, check_numbers, unsupported

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
    content = _read_file(path)
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

    def __init__(self, path: FilePath, tree: dict[str, Any], config: Configuration, activation: float | None) -> None:
        self.path, self.tree, self.config, self.activation = path, tree, config, activation

    def _stored(self, name: str) -> np.ndarray | None:
        node: Any = self.tree
        for key in name.replace("conv_tp_weights.layer", "conv_tp_weights.layers.").split("."):
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
        real = stored.dtype.type if stored.dtype.kind == "f" else np.float64
        scaled = stored.astype(real) * (real(1) / np.sqrt(real(inputs)))
        return scaled.astype(np.float64).reshape(inputs, outputs)

    def per_head(self, name: str, heads: int) -> np.ndarray:
        values = self.find(name)
        if values is None and name.startswith("scale_shift."):
            return np.full(heads, 1.0 if name.endswith("scale") else 0.0)
        values = self.get(name)
        elements = len(self.config.atomic_numbers)
        shape = (elements,) if name.startswith("atomic_energies") else ()
        count = int(np.prod(shape, dtype=int))
        if values.size not in (count, heads * count):
            raise FormatError(f"{self.path}: tensor {name} has shape {values.shape}, needs {(heads, *shape)}")
        return np.broadcast_to(values.reshape(-1, *shape), (heads, *shape))

    def activation_scale(self, block: str) -> float:
        own = self.find(f"{block}.act_scale") if "conv_tp_weights" in block else None
        if own is not None:
            return float(own.reshape(-1)[0])
        if self.activation is None:
            raise FormatError(f"{self.path}: neither {block}.act_scale nor normalize2mom_consts is given")
        return self.activation

    def coupling(self, layer: int, path: tuple[int, int, int]) -> np.ndarray:
        return coupling(*path)

    def polynomials(self, layer: int, output: int) -> Polynomials:
        """The weights are reduced, or become so by the ``projection`` that stands beside them."""
        config = self.config
        name = f"products.{layer}.symmetric_contractions"
        degrees = range(1, config.correlation[layer] + 1)
        bases = {
            (degree, ell): coupling_basis(str(self.path), config.max_ell, degree, ell)
            for degree in degrees
            for ell in config.out_degrees(layer)
        }
        weights = self._reduced_weights(name, sum(len(basis) for basis in bases.values()))
        parts, start = [], 0
        for (degree, ell), basis in bases.items():
            stop = start + len(basis)
            if ell == output:
                parts.append((degree, basis, weights[:, start:stop]))
            start = stop
        return from_coefficients(parts, (config.max_ell + 1) ** 2)

    def _reduced_weights(self, name: str, paths: int) -> np.ndarray:
        weights, projection = self.get(f"{name}.weight"), self.find(f"{name}.projection")
        elements, channels = len(self.config.atomic_numbers), self.config.channels
        rows = paths
        if projection is not None:
            if projection.ndim != 2 or projection.shape[1] != paths:
                raise FormatError(f"{self.path}: {name}.projection has shape {projection.shape}, needs (any, {paths})")
            rows = projection.shape[0]
        if weights.shape != (elements, rows, channels):
            raise FormatError(
                f"{self.path}: {name}.weight has shape {weights.shape}, needs {(elements, rows, channels)}"
            )
        return weights if projection is None else np.einsum("eac,ab->ebc", weights, projection)


def _configuration(fields: _Fields) -> Configuration:
    where = str(fields.path)
    check_fields(where, fields.fields)
    if fields.fields.get("torch_model_class", "MACE") not in ("MACE", "ScaleShiftMACE"):
        raise unsupported(where, "torch_model_class", fields.fields["torch_model_class"])
    layers = fields.integer("num_interactions", 1, 8)
    first = check_block(where, "interaction_cls_first", fields.fields.get("interaction_cls_first"))
    others = check_block(where, "interaction_cls", fields.fields.get("interaction_cls"))
    channels, degrees = check_hidden(where, fields.irreps("hidden_irreps"))
    return Configuration(
        cutoff=fields.positive("r_max"),
        cutoff_power=fields.integer("num_polynomial_cutoff", 2, 100),
        max_ell=fields.integer("max_ell", 0, MAX_ELL),
        atomic_numbers=check_numbers(where, fields.integers("atomic_numbers")),
        blocks=(first, *[others] * (layers - 1)),
        correlation=_correlation(fields, layers),
        channels=channels,
        degrees=degrees,
        readout_width=_readout_width(fields) if layers > 1 else 0,
        avg_num_neighbors=fields.positive("avg_num_neighbors"),
        heads=_heads(fields),
    )


def _correlation(fields: _Fields, layers: int) -> tuple[int, ...]:
    value = fields.fields.get("correlation")
    orders = tuple(value) if isinstance(value, list) else (value,) * layers
    if len(orders) != layers or not all(type(order) is int and 1 <= order <= 4 for order in orders):
        raise unsupported(str(fields.path), "correlation", value)
    return orders


def _readout_width(fields: _Fields) -> int:
    irreps = fields.irreps("MLP_irreps")
    if len(irreps) != 1 or irreps[0][1:] != (0, 1):
        raise unsupported(str(fields.path), "MLP_irreps", fields.fields["MLP_irreps"])
    return irreps[0][0]


def _heads(fields: _Fields) -> tuple[str, ...]:
    heads = fields.fields.get("heads") or ["Default"]
    if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
        raise FormatError(f"{fields.path}: heads = {heads} must be a list of names")
    return tuple(heads)


def _activation(fields: _Fields) -> float | None:
    constants = fields.fields.get("normalize2mom_consts")
    if not isinstance(constants, dict) or "silu" not in constants:
        return None
    return float(constants["silu"])


def read(directory: FilePath, head: str | None) -> tuple[Description, str]:
    """The model in ``directory`` for one head, and the head's name."""
    fields = _Fields(directory / "config.json", _read_configuration(directory / "config.json"))
    config = _configuration(fields)
    chosen = choose_head(config.heads, head, str(directory))
    path = directory / "params.msgpack"
    source = _JaxSource(path, _read_parameters(path), config, _activation(fields))
    bessels = fields.integer("num_bessel", 1, 10_000)
    radial = [bessels, *fields.integers("radial_MLP", [64, 64, 64])]
    bessel = source.find("radial_embedding.basis_fn.bessel_weights")
    if bessel is None:
        bessel = source.tensor("radial_embedding.basis_fn._bessel_weights", bessels)
    prefactor = sqrt(2 / config.cutoff)
    description = assemble(source, config, bessel=bessel, prefactor=prefactor, radial=radial, head=chosen)
    return description, config.heads[chosen]
