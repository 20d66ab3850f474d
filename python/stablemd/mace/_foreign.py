# SPDX-License-Identifier: BSD-3-Clause
"""What a file is that is given as a trained MACE and is none: told from its bytes, without torch and without running
what a pickle names."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from pathlib import Path as FilePath
from typing import Any

from ._pickles import Stranger

_ANY_JAX = "only MACE is read from files; any other potential is exported from JAX (docs/export.md)"
_WHOLE = "give the whole model, as torch.save(model, ...) and mace-torch write it (.model)"

#: of torch's files before there were zip archives: a number, a version and sizes precede the object
_BEFORE_THE_OBJECT = 3
_OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

_MOST_BYTES = 100_000_000  # of a pickle; numbers of a model are stored beside it


def foreign(path: FilePath) -> str:
    """What the file is and what to do, to follow its name; "" for what may be a model.

    Raises OSError where the file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(2048)
    if not start:
        return "is empty; copy it again"
    if start.startswith(b"PK\x03\x04"):
        return _archive(path)
    if start.startswith(b"PK\x05\x06"):
        return "is an empty zip archive; copy it again"
    if start.startswith(b"\x80"):
        return _old_pickle(path, start)
    if re.match(rb'.{8}\{\s*"', start, re.DOTALL):
        return _safetensors(path, start)
    return _other(path, start)


# ---- files that are not torch's --------------------------------------------------------------------------------------


def _safetensors(path: FilePath, start: bytes) -> str:
    length = int.from_bytes(start[:8], "little")
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(8 + min(length, _MOST_BYTES))[8:])
        is_bundle = "stablemd" in header.get("__metadata__", {})
    except (ValueError, AttributeError, TypeError, RecursionError):
        return "is a damaged .safetensors file; copy it again"
    if is_bundle:
        return "is a bundle already; LAMMPS and ASE take it as it is, and `stablemd info` says what it holds"
    return f"is a .safetensors file with weights but without a model; {_WHOLE}"


def _other(path: FilePath, start: bytes) -> str:
    if start.startswith(b"\x89HDF"):
        return "is an HDF5 file, no model of MACE"
    if path.suffix == ".onnx" or (start[:1] == b"\x08" and re.search(rb"^\x08.\x12.(pytorch|tf2onnx|onnx|jax)", start)):
        return f"is an ONNX file, which holds no model that can be differentiated; {_WHOLE}"
    text = _text(start)
    if text is None:
        return ""
    if re.match(r"\s*\d+\s*\n", text) and len(text.split()) > 1:
        return "is a file of structures (xyz), no model; give the trained model"
    if path.suffix in (".yaml", ".yml"):
        return "is a configuration in YAML, no model; give the trained model that came of it"
    if text.startswith("version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself; run `git lfs pull`"
    if re.match(r"\s*<(!doctype|html)", text, re.IGNORECASE):
        return "is a web page, not the file that was to be downloaded; download it again"
    return ""


def _text(start: bytes) -> str | None:
    try:
        text = start.decode(errors="strict" if len(start) < 2048 else "ignore")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


# ---- files of torch --------------------------------------------------------------------------------------------------


def _archive(path: FilePath) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inner = {name.split("/", 1)[-1] for name in names}
            if all(name.endswith(".npy") for name in names):
                return "is a NumPy archive, no model"
            if any("/.data/" in f"/{name}" and name.endswith(("extern_modules", "python_version")) for name in names):
                return _packaged(path, inner)
            if "archive_format" in inner or any(name.startswith("data/aotinductor/") for name in inner):
                of = _of_nequip(path, inner)
                return f"is a program that PyTorch has compiled or exported{of} (.pt2); {_whole(path)}"
            pickles = [name for name in names if name.endswith("data.pkl") and name.count("/") <= 1]
            if not pickles:
                return "is a zip archive, but none of PyTorch"
            if archive.getinfo(pickles[0]).file_size > _MOST_BYTES:
                return ""
            content = archive.read(pickles[0])
    except (OSError, ValueError, RuntimeError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile):
        return ""  # torch says what is damaged
    if any(name.startswith("code/") for name in inner):
        return _script(path, inner, content)
    return _object(path, content, 0)


def _packaged(path: FilePath, inner: set[str]) -> str:
    return f"is a package of torch{_of_nequip(path, inner) or ' with a model and its code'}; {_ANY_JAX}"


def _of_nequip(path: FilePath, inner: set[str]) -> str:
    names = " ".join((path.name, *inner)).lower()
    return " with an Allegro model" if "allegro" in names else " with a NequIP model" if "nequip" in names else ""


def _whole(path: FilePath) -> str:
    return _ANY_JAX if re.search("allegro|nequip", path.name.lower()) else _WHOLE


def _script(path: FilePath, inner: set[str], content: bytes) -> str:
    """A compiled module: MACE's are read."""
    if any(name.startswith("code/__torch__/mace/") for name in inner):
        return ""
    of = _of_nequip(path, inner)
    if of:
        return f"is a TorchScript file{of}; {_ANY_JAX}"
    found = _root(io.BytesIO(content))
    kind = _name(found).removeprefix("__torch__.")
    return f"is a TorchScript file with a {kind}, which is no MACE: {_ANY_JAX}"


def _old_pickle(path: FilePath, start: bytes) -> str:
    return _object(path, path.read_bytes(), _BEFORE_THE_OBJECT if start.startswith(_OLD_MAGIC) else 0)


def _object(path: FilePath, content: bytes, skipped: int) -> str:
    try:
        file = io.BytesIO(content)
        for _ in range(skipped):
            _StandIn(file).load()
        found = _root(file)
    except Exception:  # whatever a damaged pickle raises
        return ""
    if isinstance(found, dict):
        return _dict(path, found)
    if _is_tensor(found):
        return f"is a lone tensor; {_WHOLE}"
    if isinstance(found, Stranger):
        kind, library = _name(found), type(found).__module__.split(".")[0]
        may_be = "MACE" in kind or library == "mace" or (library == "torch" and not kind.startswith("torch.nn."))
        return "" if may_be else f"holds a {kind}, which is no MACE; {_ANY_JAX}"
    return f"holds a Python {type(found).__name__}, no model; {_WHOLE}"


def _dict(path: FilePath, found: dict[Any, Any]) -> str:
    keys = [str(key) for key in found]
    if "model_config" in keys:
        return ""  # MACE-JAX's
    if {"model", "optimizer"} <= set(keys):
        return (
            "is a checkpoint of a training (weights and the optimizer's state), not a model; give the .model file that"
            " mace_run_train writes at its end, or start it again with --restart_latest to write one"
        )
    if any("lightning" in key for key in keys):
        return f"is a checkpoint of PyTorch Lightning{_of_nequip(path, set())}, not a MACE model; {_whole(path)}"
    if keys and all(map(_is_tensor, found.values())):
        return f"is a state dict: weights without their model; {_WHOLE}"
    shown = ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")
    return f"is a dict with the keys {shown or 'of nothing'}, not a MACE model; {_WHOLE}"


class _Dict(dict):
    """An ordered one, to which torch adds attributes."""


class _StandIn(pickle.Unpickler):
    """Makes stand-ins of all that a pickle names, and runs none of it."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        return type(name, (Stranger,), {"__module__": module})

    def persistent_load(self, identity: Any) -> Any:
        of_module = isinstance(identity, tuple) and len(identity) > 1 and identity[0] == "module"
        return identity[1] if of_module else Stranger()  # a class with its source, or numbers


def _root(file: io.BytesIO) -> Any:
    return _StandIn(file).load()


def _name(found: Any) -> str:
    return f"{type(found).__module__}.{type(found).__qualname__}"


def _is_tensor(found: Any) -> bool:
    return isinstance(found, Stranger) and type(found).__name__.startswith("_rebuild_")
