# SPDX-License-Identifier: BSD-3-Clause
"""Reader of a mace-torch ``.model`` file: a pickled module, to be trusted before it is loaded.

torch and mace-torch are needed here and nowhere else. Names follow mace-torch 0.3.12 to 0.3.16. Constants that the file
keeps rounded (coupling matrices, Bessel prefactor) are taken as they are: they belong to the trained function.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from math import isfinite, sqrt
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from .._errors import ArgumentError, FormatError
from ._angular import coupling
from ._assemble import Configuration, Source, assemble, choose_head
from ._description import Description
from ._polynomials import Polynomials, dense_to_coefficients, from_coefficients
from ._refuse import MAX_ELL, check_block, check_fields, check_hidden, check_numbers, unsupported

_FIELDS = (
    "apply_cutoff",
    "edge_irreps",
    "embedding_specs",
    "pair_repulsion",
    "use_agnostic_product",
    "use_edge_irreps_first",
    "use_last_readout_only",
    "use_so3",
)


def _unpickle(path: FilePath) -> Any:
    # What torch, e3nn and mace say while they are imported is not about the user's file.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return _unpickle_aloud(path)


def _unpickle_aloud(path: FilePath) -> Any:
    try:
        import mace.modules  # noqa: F401  (the pickle names its classes)
        import torch
    except ImportError:
        raise ArgumentError(
            f"{path}: a mace-torch file needs torch and mace-torch: pip install 'stablemd[torch]'"
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise FormatError(f"{path}: neither a MACE-JAX directory nor a mace-torch model, or damaged ({line})") from None


def _name(thing: Any) -> str:
    return getattr(thing, "original_name", type(thing).__name__)


class _TorchSource(Source):
    """The tensors of a mace-torch module."""

    def __init__(self, path: FilePath, model: Any, config: Configuration) -> None:
        self.path, self.model, self.config = path, model, config
        self.state = model.state_dict()

    def find(self, name: str) -> np.ndarray | None:
        if name not in self.state:
            return None
        values = self.state[name].detach().double().numpy()
        if not np.isfinite(values).all():
            raise FormatError(f"{self.path}: {name} holds values that are not finite")
        return values

    def radial_matrix(self, name: str, inputs: int, outputs: int) -> np.ndarray:
        return self.tensor(name, inputs * outputs).reshape(inputs, outputs) / sqrt(inputs)

    def per_head(self, name: str, heads: int) -> np.ndarray:
        values = self.find(name)
        if values is None and name.startswith("scale_shift."):
            return np.full(heads, 1.0 if name.endswith("scale") else 0.0)
        values = self.get(name)
        shape = (len(self.config.atomic_numbers),) if name.startswith("atomic_energies") else ()
        count = int(np.prod(shape, dtype=int))
        if values.size not in (count, heads * count):
            raise FormatError(f"{self.path}: tensor {name} has shape {values.shape}, needs {(heads, *shape)}")
        return np.broadcast_to(values.reshape(-1, *shape), (heads, *shape))

    def activation_scale(self, block: str) -> float:
        module = self.model.get_submodule(block)
        activation = module.acts[0] if hasattr(module, "acts") else module.act
        function = _name(getattr(activation, "f", activation)).lower()
        if getattr(activation, "f", None) is not None and hasattr(activation.f, "__name__"):
            function = activation.f.__name__.lower()
        if function not in ("silu", "swish"):
            raise unsupported(str(self.path), f"{block} activation", function)
        return float(activation.cst)

    def coupling(self, layer: int, path: tuple[int, int, int]) -> np.ndarray:
        ours = coupling(*path)
        name = "_w3j_{}_{}_{}".format(*path)
        for key in self.state:
            if key.startswith(f"interactions.{layer}.conv_tp.") and key.endswith(name):
                theirs = self.get(key)
                if theirs.shape != ours.shape:
                    raise FormatError(f"{self.path}: tensor {key} has shape {theirs.shape}, needs {ours.shape}")
                return theirs * sqrt(2 * path[2] + 1)
        return ours

    def polynomials(self, layer: int, output: int) -> Polynomials:
        """From the coupling matrices in the file, whichever basis they span."""
        config = self.config
        index = config.out_degrees(layer).index(output)
        name = f"products.{layer}.symmetric_contractions.contractions.{index}"
        size, elements = (config.max_ell + 1) ** 2, len(config.atomic_numbers)
        correlation = config.correlation[layer]
        parts = []
        for degree in range(1, correlation + 1):
            matrix = self.get(f"{name}.U_matrix_{degree}")
            wanted = (2 * output + 1,) * (output > 0) + (size,) * degree
            if matrix.shape[:-1] != wanted:
                raise FormatError(
                    f"{self.path}: {name}.U_matrix_{degree} has shape {matrix.shape}, needs {wanted} + paths"
                )
            key = f"{name}.weights_max" if degree == correlation else f"{name}.weights.{correlation - degree - 1}"
            weights = self.get(key)
            if weights.shape != (elements, matrix.shape[-1], config.channels):
                needed = (elements, matrix.shape[-1], config.channels)
                raise FormatError(f"{self.path}: tensor {key} has shape {weights.shape}, needs {needed}")
            dense = matrix if output else matrix[None]
            parts.append((degree, dense_to_coefficients(dense, degree), weights))
        return from_coefficients(parts, size)


def _irreps(irreps: Any) -> list[tuple[int, int, int]]:
    if isinstance(irreps, str):
        from e3nn.o3 import Irreps

        irreps = Irreps(irreps)
    return [(int(mul), int(ir.l), int(ir.p)) for mul, ir in irreps]


def _check(path: FilePath, model: Any) -> None:
    where = str(path)
    fields = {field: getattr(model, field) for field in _FIELDS if hasattr(model, field)}
    radial = model.radial_embedding
    fields["radial_type"] = {"BesselBasis": "bessel"}.get(_name(radial.bessel_fn), _name(radial.bessel_fn))
    if hasattr(radial, "distance_transform"):
        fields["distance_transform"] = _name(radial.distance_transform)
    fields["apply_cutoff"] = bool(getattr(radial, "apply_cutoff", True))
    for field in ("joint_embedding", "embedding_readout", "les"):
        if hasattr(model, field):
            raise unsupported(where, field, _name(getattr(model, field)))
    check_fields(where, fields)
    for index, product in enumerate(model.products):
        contraction = product.symmetric_contractions
        if not hasattr(contraction, "contractions"):
            raise unsupported(where, f"products.{index}.symmetric_contractions", _name(contraction))
    for index, readout in enumerate(model.readouts):
        last = index == len(model.readouts) - 1 and index > 0
        allowed = ("LinearReadoutBlock", "NonLinearReadoutBlock") if last else ("LinearReadoutBlock",)
        if _name(readout) not in allowed:
            raise unsupported(where, f"readouts.{index}", _name(readout))
    if len(model.readouts) != len(model.interactions):
        raise unsupported(where, "number of readouts", len(model.readouts))


def _configuration(path: FilePath, model: Any) -> Configuration:
    where = str(path)
    if _name(model) not in ("MACE", "ScaleShiftMACE"):
        raise unsupported(where, "model class", _name(model))
    _check(path, model)
    interactions, products = list(model.interactions), list(model.products)
    blocks = tuple(
        check_block(where, f"interactions.{index}", _name(block)) for index, block in enumerate(interactions)
    )
    # Only the last layer's features lose their higher degrees.
    hidden = interactions[-1].node_feats_irreps if len(interactions) > 1 else interactions[0].hidden_irreps
    channels, degrees = check_hidden(where, _irreps(hidden))
    if _irreps(products[-1].symmetric_contractions.irreps_out) != [(channels, 0, 1)]:
        raise unsupported(where, "features of the last layer", products[-1].symmetric_contractions.irreps_out)
    max_ell = max(ell for _, ell, _ in _irreps(interactions[0].edge_attrs_irreps))
    if max_ell > MAX_ELL:
        raise unsupported(where, "max_ell", max_ell)
    heads = tuple(str(head) for head in getattr(model, "heads", None) or ["Default"])
    averages = {float(block.avg_num_neighbors) for block in interactions}
    average = averages.pop()
    if averages or not isfinite(average) or average <= 0:
        raise unsupported(where, "avg_num_neighbors", sorted({average, *averages}))
    return Configuration(
        cutoff=float(model.r_max),
        cutoff_power=int(model.radial_embedding.cutoff_fn.p),
        max_ell=max_ell,
        atomic_numbers=check_numbers(where, [int(number) for number in model.atomic_numbers]),
        blocks=blocks,
        correlation=tuple(int(product.symmetric_contractions.contractions[0].correlation) for product in products),
        channels=channels,
        degrees=degrees,
        readout_width=_readout_width(where, model.readouts[-1], len(heads)),
        avg_num_neighbors=average,
        heads=heads,
    )


def _readout_width(where: str, readout: Any, heads: int) -> int:
    if _name(readout) == "LinearReadoutBlock":
        return 0
    irreps = _irreps(readout.hidden_irreps)
    if len(irreps) != 1 or irreps[0][1:] != (0, 1) or irreps[0][0] % heads:
        raise unsupported(where, "MLP_irreps", readout.hidden_irreps)
    return irreps[0][0] // heads


def read(path: FilePath, head: str | None) -> tuple[Description, str]:
    """The model in ``path`` for one head, and the head's name."""
    model = _unpickle(path)
    try:
        config = _configuration(path, model)
    except AttributeError as error:
        raise FormatError(f"{path}: {_name(model)} is not a MACE that this version knows ({error})") from None
    chosen = choose_head(config.heads, head, str(path))
    source = _TorchSource(path, model, config)
    bessel = source.get("radial_embedding.bessel_fn.bessel_weights")
    radial = [bessel.size, *(int(width) for width in model.interactions[0].conv_tp_weights.hs[1:-1])]
    prefactor = float(source.tensor("radial_embedding.bessel_fn.prefactor", 1)[0])
    return assemble(source, config, bessel=bessel, prefactor=prefactor, radial=radial, head=chosen), config.heads[
        chosen
    ]
