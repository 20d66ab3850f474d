# SPDX-License-Identifier: BSD-3-Clause
"""The folders of compiled programs and kernels that the native libraries keep: how much is there, and deleting it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ._connector import cache_directory
from ._errors import ArgumentError, FileError


@dataclass(frozen=True)
class Cache:
    """One of these folders. ``folder`` is None where there is none."""

    folder: Path | None
    content: str
    variable: str  #: that names the folder
    entry: str  #: suffix of an entry's name
    ours: re.Pattern[str]  #: names of all files that the library makes

    def _files(self) -> list[Path]:
        if self.folder is None:
            return []
        try:
            if not self.folder.exists():
                return []
            return sorted(path for path in self.folder.iterdir() if self.ours.search(path.name) and path.is_file())
        except OSError as error:
            raise FileError(f"{self.folder} cannot be read: {error.strerror or error}") from None

    def count_and_size(self) -> tuple[int, int]:
        """Number of entries and bytes of all files."""
        sizes = {path: _size(path) for path in self._files()}
        return sum(path.suffix == self.entry for path in sizes), sum(sizes.values())

    def clear(self) -> None:
        """Deletes the files that the library made, and nothing else in the folder. Raises :class:`FileError`."""
        for path in self._files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise FileError(f"{path} cannot be deleted: {error.strerror or error}") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another process has deleted it meanwhile
        return 0


def _folder(name: str) -> Path | None:
    return Path(name) if name else None


def compiled_programs() -> Cache:
    ours = re.compile(r"^([0-9a-f]{32}\.exe(\.tmp)?|[0-9a-f]{2}\.lock|limit\.lock)$")
    return Cache(_folder(cache_directory()), "compiled programs", "STABLEMD_CACHE", ".exe", ours)


def compiled_kernels() -> Cache:
    """Raises :class:`ArgumentError` where ``OEQ_CACHE`` is no good."""
    from . import _oeq_native

    try:
        folder = _folder(_oeq_native.cache_directory())
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    return Cache(folder, "compiled kernels", "OEQ_CACHE", ".oeqimage", re.compile(r"\.oeqimage(\.\w{6})?$"))
