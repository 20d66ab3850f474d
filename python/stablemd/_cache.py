# SPDX-License-Identifier: BSD-3-Clause
"""The folder of compiled programs that the native library keeps: how much is there, and deleting it."""

from __future__ import annotations

from pathlib import Path

from ._connector import cache_directory
from ._errors import FileError

_ENTRY, _OURS = ".exe", (".exe", ".exe.tmp", ".lock")


class CompiledPrograms:
    """What lies in the executable cache. ``folder`` is None where there is none."""

    def __init__(self) -> None:
        folder = cache_directory()
        self.folder = Path(folder) if folder else None

    def _files(self) -> list[Path]:
        if self.folder is None or not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.endswith(_OURS) and path.is_file())

    def count_and_size(self) -> tuple[int, int]:
        """Number of compiled programs and bytes of all files."""
        files = self._files()
        return sum(path.suffix == _ENTRY for path in files), sum(path.stat().st_size for path in files)

    def clear(self) -> None:
        """Deletes the files that the library made, and nothing else in the folder. Raises :class:`FileError`."""
        for path in self._files():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise FileError(f"{path} cannot be deleted: {error.strerror or error}") from None
