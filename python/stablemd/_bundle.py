# SPDX-License-Identifier: BSD-3-Clause
"""Reading and writing bundles: safetensors files as defined in docs/bundle.md."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from . import _manifest
from ._errors import FileError, FormatError, MissingFileError, StableMDError


@dataclass(frozen=True)
class Bundle:
    """Manifest and tensors' kinds of a bundle, read without its weights."""

    path: Path
    manifest: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]  #: name -> (safetensors dtype, shape)

    def tensor(self, name: str) -> np.ndarray:
        with safe_open(self.path, framework="numpy") as file:
            return file.get_tensor(name)

    def text(self, platform: str) -> str:
        """The program template of a platform."""
        content = self.tensor(self.manifest["programs"][platform]["text"]).tobytes()
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise FormatError(f"{self.path}: the program for {platform} is damaged; export the model again") from None

    @property
    def parameter_count(self) -> int:
        return sum(int(np.prod(shape)) for name, (_, shape) in self.tensors.items() if name.startswith("weights/"))


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Opens and checks a bundle. Raises :class:`FileError` or :class:`FormatError`."""
    path = Path(path)
    try:
        exists, is_file = path.exists(), path.is_file()
    except (OSError, ValueError) as error:
        raise FileError(f"{str(path)[:200]!r} cannot be the name of a file: {error}"[:400]) from None
    if not exists:
        raise MissingFileError(f"there is no file {path}; export a model first")
    if not is_file:
        raise FileError(f"{path} is no file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            tensors = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except SafetensorError as error:
        raise FormatError(f"{path} is no bundle or is damaged ({error}); export the model again") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None
    if _manifest.KEY not in metadata:
        raise FormatError(f"{path} is a safetensors file but no StableMD bundle; make one with 'stablemd export'")
    try:
        manifest = json.loads(metadata[_manifest.KEY])
        return Bundle(path, _manifest.validate(manifest, tensors, str(path)), tensors)
    except FormatError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path} has a damaged manifest ({error}); export the model again") from None


_SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float32": "F32",
    "float64": "F64",
}


def bundle_bytes(manifest: Mapping[str, Any], tensors: Mapping[str, np.ndarray], where: str) -> bytes:
    """The file's content, with a checksum in the manifest; the same input gives the same bytes."""
    kinds = {name: (_SAFETENSORS_DTYPES[array.dtype.name], array.shape) for name, array in tensors.items()}
    _manifest.validate(dict(manifest), kinds, where)
    contiguous = {name: np.ascontiguousarray(tensors[name]).reshape(tensors[name].shape) for name in sorted(tensors)}
    try:
        from ._connector import content_hash
    except ImportError:  # a bundle may do without a checksum
        return save(contiguous, metadata={_manifest.KEY: _manifest.dump(manifest)})
    blank = "0" * 32
    content = save(contiguous, metadata={_manifest.KEY: _manifest.dump({**manifest, "checksum": blank})})
    field = b'\\"checksum\\":\\"'  # within a string, hence the backslashes
    before, found, after = content.partition(field + blank.encode())
    assert found
    return before + field + content_hash(content).encode() + after


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place if the block ends well and is removed if not.

    Raises :class:`FileError` if the folder or the file cannot be written.
    """
    temporary = _temporary_beside(path)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if isinstance(error, StableMDError):
            raise
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Complains before long work where a file could not be written. Raises :class:`FileError`."""
    if os.path.isdir(path):  # unlike Path's own, without errors of their own for names that no file may have
        raise FileError(f"{path} is a folder; give the name of a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileError(f"{path} is not an ordinary file; give the name of one")
    if not os.path.isdir(path.parent):
        raise FileError(f"{path} cannot be written: there is no folder {path.parent}")
    _temporary_beside(path).unlink()


def _temporary_beside(path: Path) -> Path:
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    except (OSError, ValueError) as error:  # the latter for a name that no file may have
        raise FileError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
    os.close(descriptor)
    return Path(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
