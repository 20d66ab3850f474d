# SPDX-License-Identifier: BSD-3-Clause
"""Reader of a mace-torch ``.model`` file: a pickled or compiled module, to be trusted before it is loaded.

torch and mace-torch are needed here and nowhere else. Names follow mace-torch 0.3.0 to 0.3.16. A compiled module has
lost most of its attributes, so what shapes the model is read from the shapes of its tensors wherever they tell it.
Constants that the file keeps rounded (coupling matrices, Bessel prefactor) are taken as they are: they belong to the
trained function. Tables of e3nn's coupling coefficients do not: the kernels of other libraries have the exact ones.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import warnings
from collections.abc import Mapping
from math import isfinite, isqrt, sqrt
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from .._errors import ArgumentError, FileError, FormatError
from .._rounding import rounded_from
from ._angular import coupling
from ._assemble import BLOCKS, Configuration, Interaction, ReadoutShape, Source, assemble, choose_head
from ._basis import reduced_polynomials
from ._description import Basis, Description, Repulsion, Transform
from ._embedding import read_features
from ._foreign import foreign
from ._pickles import Stranger, stranger
from ._polynomials import Polynomials, dense_to_coefficients, from_coefficients
from ._refuse import MAX_ELL, Irreps, check_hidden, check_irreps, check_numbers, unsupported

#: libraries whose layers hold tensors in e3nn's layout or in the reduced basis, and where their modules begin
_MODULES_OF = {
    "cuequivariance": "no modules",
    "cuequivariance_torch": "cuequivariance_torch.",
    "openequivariance": "openequivariance._torch.",
}
_MODELS = ("MACE", "ScaleShiftMACE")
_READOUTS = {
    "LinearReadoutBlock": "linear",
    "NonLinearReadoutBlock": "nonlinear",
    "NonLinearBiasReadoutBlock": "bias",
}
_BASES = {"BesselBasis": "bessel", "GaussianBasis": "gaussian", "ChebychevBasis": "chebyshev"}


# ---- the file --------------------------------------------------------------------------------------------------------


def unpickle(path: FilePath) -> Any:
    """The module in a file. What torch, e3nn and mace say while they are imported is not about the user's file."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return _unpickle_aloud(path)


def _check_kind(path: FilePath) -> None:
    """Before a large package is asked for, and before anything is run that a pickle names."""
    try:
        what = foreign(path)
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    if what:
        raise FormatError(f"{path} {what}")
    if not start.startswith((b"PK\x03\x04", b"\x80")):
        raise FormatError(f"{path}: neither a MACE-JAX model nor a mace-torch model: it is no file of torch")


def _unpickle_aloud(path: FilePath) -> Any:
    _check_kind(path)
    try:
        import mace.modules  # noqa: F401  (the pickle names its classes)
        import torch
    except ImportError:
        raise ArgumentError(
            f"{path}: a mace-torch file needs torch and mace-torch: pip install torch mace-torch"
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_WithStrangers)
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"{path}: the file names classes of {error.name}, which is not installed: pip install {error.name}"
        ) from None
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise FormatError(f"{path}: neither a MACE-JAX model nor a mace-torch model, or damaged ({line})") from None


def _strange_module(name: str) -> type:
    """A class of modules with whatever tensors and attributes a pickle gives them."""
    from torch.nn import Module

    def start(self: Any, *_: Any, **__: Any) -> None:
        Module.__init__(self)

    def set_state(self: Any, state: dict[str, Any]) -> None:
        Module.__init__(self)
        self.__dict__.update(state)

    return type(name, (Module,), {"__init__": start, "__setstate__": set_state})


class _WithStrangers:
    """Python's pickle as torch wants it, where libraries of kernels need not be here to read the weights."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            # also where they are here: some of their classes look for a GPU when they are loaded
            library = module.split(".")[0]
            if library in _MODULES_OF:
                return _strange_module(name) if module.startswith(_MODULES_OF[library]) else stranger(name)
            return super().find_class(module, name)

    load = pickle.load


def unwrap(module: Any) -> tuple[Any, int | None]:
    """The MACE inside of what LAMMPS' interfaces of mace-torch wrap round it, and the head that they chose."""
    head = None
    while not hasattr(module, "interactions") and (hasattr(module, "model") or hasattr(module, "_orig_mod")):
        if getattr(module, "head", None) is not None:
            head = int(module.head.reshape(-1)[0])
        module = module.model if hasattr(module, "model") else module._orig_mod
    return module, head


def _name(thing: Any) -> str:
    return getattr(thing, "original_name", type(thing).__name__)


def _irreps(irreps: Any) -> Irreps:
    """Of e3nn's irreps, which are nested tuples, also in a compiled module, or of cuequivariance's by their text."""
    if isinstance(irreps, Stranger):
        return [(int(part.mul), int(part.ir.l), int(part.ir.p)) for part in irreps._mulirreps]
    if not isinstance(irreps, tuple):
        from e3nn.o3 import Irreps as Parsed

        irreps = Parsed(str(irreps))
    return [(int(mul), int(ell), int(parity)) for mul, (ell, parity) in irreps]


def _items(modules: Any) -> list[Any]:
    """The members of a list of modules, which a compiled one does not iterate over."""
    return [member for _, member in modules.named_children()]


def _attribute(module: Any, *names: str) -> Any:
    """An attribute of an attribute, or None where a compiled module has none."""
    for name in names:
        module = getattr(module, name, None)
    return module


def _recognised(activation: Any) -> tuple[str, float]:
    """Name and factor of an activation: a compiled one tells neither, so both are taken from its values."""
    if activation is None:
        return "none", 1.0
    import torch

    points = torch.linspace(-2.0, 2.0, 4, dtype=torch.float64)
    values = activation(points)
    known = {"silu": torch.nn.functional.silu, "tanh": torch.tanh, "abs": torch.abs, "none": lambda x: x}
    for name, function in known.items():
        factors = values / function(points)
        if float(factors.max() - factors.min()) < 1e-12:
            return name, float(factors[0])
    return _name(getattr(activation, "f", activation)), 1.0


# ---- tensors ---------------------------------------------------------------------------------------------------------


class _TorchSource(Source):
    """The tensors of a mace-torch module."""

    config: Configuration

    def __init__(self, path: FilePath, model: Any) -> None:
        self.path, self.model = path, model
        self.state = model.state_dict()

    def find(self, name: str) -> np.ndarray | None:
        if name not in self.state:
            return None
        values = self.state[name].detach().double().numpy()
        if not np.isfinite(values).all():
            raise FormatError(f"{self.path}: {name} holds values that are not finite")
        return values

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.state:
            raise FormatError(f"{self.path}: tensor {name} is missing")
        return tuple(self.state[name].shape)

    def radial_matrix(self, name: str, inputs: int, outputs: int) -> np.ndarray:
        return self.tensor(name, inputs * outputs).reshape(inputs, outputs) / sqrt(inputs)

    def dense(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> tuple[np.ndarray, np.ndarray | None]:
        matrix = self.tensor(f"{name}.weight", inputs * outputs).reshape(outputs, inputs).T.copy()
        return matrix, self.tensor(f"{name}.bias", outputs) if bias else None

    def norm(self, name: str, width: int) -> np.ndarray:
        return np.stack([self.tensor(f"{name}.weight", width), self.tensor(f"{name}.bias", width)])

    def activation(self, block: str) -> tuple[str, float]:
        module = self.model
        for part in block.split("."):
            module = dict(module.named_children())[part]
        if not hasattr(module, "acts"):
            return _recognised(module.act)
        activations = _items(module.acts)
        return _recognised(activations[0] if activations else None)

    def gate_scales(self, layer: int) -> tuple[float, float]:
        gate = _items(self.model.interactions)[layer].equivariant_nonlin
        if hasattr(gate, "_scalar_cst"):
            return float(gate._scalar_cst), float(gate._gate_cst)
        # e3nn's own gate, of releases before 0.3.16
        return float(gate.act_scalars.acts[0].cst), float(gate.act_gates.acts[0].cst)

    def coupling(self, layer: int, path: tuple[int, int, int]) -> np.ndarray:
        """e3nn's in double precision, where its signs are its own if the degrees' sum is odd; the file's if others."""
        name = "_w3j_{}_{}_{}".format(*path)
        shape = tuple(2 * degree + 1 for degree in path)
        for key in self.state:
            if key.startswith(f"interactions.{layer}.conv_tp.") and key.endswith(name):
                theirs = self.get(key)
                if theirs.shape != shape:
                    raise FormatError(f"{self.path}: tensor {key} has shape {theirs.shape}, needs {shape}")
                exact = coupling(*path) * np.sign((theirs * coupling(*path)).sum())
                scale = sqrt(2 * path[2] + 1)
                return exact if rounded_from(theirs, exact / scale) else theirs * scale
        if sum(path) % 2 == 0:
            return coupling(*path)
        from e3nn.o3 import wigner_3j
        from torch import float64

        return wigner_3j(*path, dtype=float64).numpy() * sqrt(2 * path[2] + 1)

    def polynomials(self, layer: int, output: int) -> Polynomials:
        """From the coupling matrices in the file, whichever basis they span."""
        config = self.config
        correlation = config.interactions[layer].correlation
        elements = 1 if config.agnostic_product else config.elements
        whole = f"products.{layer}.symmetric_contractions"
        if f"{whole}.weight" in self.state:
            shape = (config.max_ell, correlation, elements)
            tensors = self.get(f"{whole}.weight"), self.find(f"{whole}.projection")
            return reduced_polynomials(str(self.path), whole, shape, config.out_degrees(layer), tensors)[output]
        name = f"{whole}.contractions.{config.out_degrees(layer).index(output)}"
        size = (config.max_ell + 1) ** 2
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
            needed = (elements, matrix.shape[-1], config.channels)
            if weights.shape != needed:
                raise FormatError(f"{self.path}: tensor {key} has shape {weights.shape}, needs {needed}")
            dense = matrix if output else matrix[None]
            parts.append((degree, dense_to_coefficients(dense, degree), weights))
        return from_coefficients(parts, size)

    def repulsion(self, config: Configuration) -> Repulsion | None:
        if not hasattr(self.model, "pair_repulsion_fn"):
            return None
        name = "pair_repulsion_fn"
        numbers = np.array(config.atomic_numbers)
        # 0.529 Angstrom is the reference's Bohr radius; it raises the numbers to the power in its own precision.
        exponent = self.number(f"{name}.a_exp")
        return Repulsion(
            charges=numbers.astype(float),
            powers=numbers**exponent,
            length=0.529 * self.number(f"{name}.a_prefactor"),
            coefficients=self.tensor(f"{name}.c", 4),
            radii=self.get(f"{name}.covalent_radii")[numbers],
            power=int(self.number(f"{name}.p")),
        )


# ---- configuration ---------------------------------------------------------------------------------------------------


def _check(source: _TorchSource) -> None:
    where, model = str(source.path), source.model
    if _name(model) not in _MODELS:
        raise unsupported(where, "model class", _name(model))
    for field in ("les", "lora", "coulomb_energy"):
        if hasattr(model, field):
            raise unsupported(where, field, _name(getattr(model, field)))
    for index, block in enumerate(_items(model.interactions)):
        if _name(block) not in BLOCKS:
            raise unsupported(where, f"interactions.{index}", _name(block))


def _out_degrees(source: _TorchSource, index: int, channels: int, proper: bool) -> tuple[int, ...]:
    """Degrees of the features that a layer makes, from the coupling matrices or else the linear layer behind them."""
    where, name = str(source.path), f"products.{index}"
    irreps = _attribute(_items(source.model.products)[index], "linear", "irreps_out")
    if irreps is not None:
        found, degrees = check_hidden(where, _irreps(irreps), proper=proper)
        if found != channels:
            raise unsupported(where, "hidden_irreps", irreps)
        return degrees
    first = f"{name}.symmetric_contractions.contractions"
    degrees = []
    while f"{first}.{len(degrees)}.U_matrix_1" in source.state:
        shape = source.shape(f"{first}.{len(degrees)}.U_matrix_1")
        degrees.append((shape[0] - 1) // 2 if len(shape) == 3 else 0)
    count = source.get(f"{name}.linear.weight").size // channels**2
    return tuple(degrees) if degrees else tuple(range(count))


def _sent(source: _TorchSource, index: int, enters: tuple[int, ...], channels: int, proper: bool) -> dict[int, int]:
    """Channels of what is sent to neighbours."""
    where = str(source.path)
    irreps = _attribute(_items(source.model.interactions)[index], "linear_up", "irreps_out")
    if irreps is not None:
        return check_irreps(where, "edge_irreps", _irreps(irreps), proper=proper)
    if source.get(f"interactions.{index}.linear_up.weight").size != len(enters) * channels**2:
        raise unsupported(where, "edge_irreps", "other than the hidden irreps in a compiled model")
    return dict.fromkeys(enters, channels)


def _correlation(source: _TorchSource, index: int) -> int:
    name = f"products.{index}.symmetric_contractions"
    if f"{name}.weight" in source.state:
        return int(_items(source.model.products)[index].symmetric_contractions.contraction_degree)
    degree = 0
    while f"{name}.contractions.0.U_matrix_{degree + 1}" in source.state:
        degree += 1
    if not degree:
        raise FormatError(f"{source.path}: tensor {name}.contractions.0.U_matrix_1 is missing")
    return degree


def _radial_widths(source: _TorchSource, index: int) -> tuple[int, ...]:
    """Hidden widths of the radial network."""
    pattern = re.compile(rf"interactions\.{index}\.conv_tp_weights\.(?:layer|net\.)(\d+)\.weight")
    layers = sorted((int(match[1]), key) for key in source.state if (match := pattern.fullmatch(key)))
    # Layer norms stand between the matrices of the second kind.
    shapes = [shape for _, key in layers if len(shape := source.shape(key)) == 2]
    widths = [shape[0] if ".net." in layers[0][1] else shape[1] for shape in shapes]
    return tuple(widths[:-1])


def _average(source: _TorchSource, index: int) -> float:
    average = float(_items(source.model.interactions)[index].avg_num_neighbors)
    if not isfinite(average) or average <= 0:
        raise unsupported(str(source.path), f"avg_num_neighbors of interactions.{index}", average)
    return average


def _interactions(source: _TorchSource, channels: int, proper: bool) -> tuple[Interaction, ...]:
    found: list[Interaction] = []
    for index, block in enumerate(_items(source.model.interactions)):
        enters = found[-1].leaves if found else (0,)
        found.append(
            Interaction(
                block=_name(block),
                enters=enters,
                leaves=_out_degrees(source, index, channels, proper),
                sent=_sent(source, index, enters, channels, proper),
                correlation=_correlation(source, index),
                average=_average(source, index),
                radial=_radial_widths(source, index),
            )
        )
    return tuple(found)


def _readout_shapes(source: _TorchSource, channels: int, heads: int) -> tuple[ReadoutShape, ...]:
    where, blocks = str(source.path), _items(source.model.readouts)
    layers = len(_items(source.model.interactions))
    if len(blocks) not in (1, layers):
        raise unsupported(where, "number of readouts", len(blocks))
    shapes = []
    for index, block in enumerate(blocks):
        kind = _READOUTS.get(_name(block))
        if kind is None:
            raise unsupported(where, f"readouts.{index}", _name(block))
        hidden, width = getattr(block, "hidden_irreps", None), 0
        if kind != "linear":
            if hidden is not None and [irrep[1:] for irrep in _irreps(hidden)] != [(0, 1)]:
                raise unsupported(where, "MLP_irreps", hidden)
            width = source.get(f"readouts.{index}.linear_2.weight").size // heads**2
        shapes.append(ReadoutShape(layers - 1 if len(blocks) == 1 else index, kind, width))
    return tuple(shapes)


def _max_ell(source: _TorchSource) -> int:
    name = "products.0.symmetric_contractions.contractions.0.U_matrix_1"
    known = name in source.state
    max_ell = isqrt(source.shape(name)[-2]) - 1 if known else int(source.model.spherical_harmonics._lmax)
    if max_ell > MAX_ELL:
        raise unsupported(str(source.path), "max_ell", max_ell)
    return max_ell


def _configuration(source: _TorchSource, features: Mapping[str, float]) -> Configuration:
    where, model = str(source.path), source.model
    _check(source)
    numbers = check_numbers(where, [int(number) for number in model.atomic_numbers])
    channels = source.get("node_embedding.linear.weight").size // len(numbers)
    proper = bool(getattr(model, "use_so3", False))
    names = [str(name) for name in getattr(model, "heads", None) or [] if name is not None]
    heads = tuple(names) or ("Default",)
    agnostic = any(bool(getattr(product, "use_agnostic_product", False)) for product in _items(model.products))
    return Configuration(
        cutoff=source.number("r_max"),
        cutoff_power=int(source.number("radial_embedding.cutoff_fn.p")),
        apply_cutoff=bool(getattr(model.radial_embedding, "apply_cutoff", True)),
        max_ell=_max_ell(source),
        proper=proper,
        atomic_numbers=numbers,
        channels=channels,
        interactions=_interactions(source, channels, proper),
        readouts=_readout_shapes(source, channels, len(heads)),
        agnostic_product=agnostic,
        heads=heads,
        features=read_features(where, getattr(model, "embedding_specs", None), features),
    )


def _transform(source: _TorchSource, config: Configuration) -> Transform | None:
    module = getattr(source.model.radial_embedding, "distance_transform", None)
    if module is None:
        return None
    name = "radial_embedding.distance_transform"
    kinds = {"AgnesiTransform": ("agnesi", ("q", "p", "a")), "SoftTransform": ("soft", ("alpha",))}
    if _name(module) not in kinds:
        raise unsupported(str(source.path), "distance_transform", _name(module))
    kind, parameters = kinds[_name(module)]
    radii = source.get(f"{name}.covalent_radii")[np.array(config.atomic_numbers)]
    return Transform(kind, tuple(source.number(f"{name}.{parameter}") for parameter in parameters), radii)


def _basis(source: _TorchSource, config: Configuration) -> tuple[Basis, float]:
    """The radial basis and the factor before it."""
    module, name = source.model.radial_embedding.bessel_fn, "radial_embedding.bessel_fn"
    kind = _BASES.get(_name(module))
    transform = _transform(source, config)
    if kind == "bessel":
        numbers = source.get(f"{name}.bessel_weights").reshape(-1)
        return Basis(kind, numbers, transform=transform), source.number(f"{name}.prefactor")
    if kind == "gaussian":
        numbers = source.get(f"{name}.gaussian_weights").reshape(-1)
        return Basis(kind, numbers, sqrt(-0.5 / float(module.coeff)), transform), 1.0
    if kind == "chebyshev":
        return Basis(kind, source.get(f"{name}.n").reshape(-1), transform=transform), 1.0
    raise unsupported(str(source.path), "radial_type", _name(module))


def read(path: FilePath, head: str | None, features: Mapping[str, float]) -> tuple[Description, str]:
    """The model in ``path`` for one head, and the head's name."""
    model, wrapped = unwrap(unpickle(path))
    if not hasattr(model, "state_dict"):
        raise unsupported(str(path), "model class", _name(model))
    source = _TorchSource(path, model)
    try:
        config = source.config = _configuration(source, features)
        basis, prefactor = _basis(source, config)
    except AttributeError as error:
        raise FormatError(f"{path}: {_name(model)} is not a MACE that this version knows ({error})") from None
    if head is None and wrapped is not None and wrapped < len(config.heads):
        head = config.heads[wrapped]
    chosen = choose_head(config.heads, head, str(path))
    return assemble(source, config, basis=basis, prefactor=prefactor, head=chosen), config.heads[chosen]
