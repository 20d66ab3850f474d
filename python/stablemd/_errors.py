# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions of the package. Each carries one line: what is wrong, where, and what to do."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable

from ._text import escaped

# An argument in a message, which is an option to who typed a command. Neither mark occurs in text that people write.
_BEGIN, _SEPARATOR, _END = "\ue000", "\ue001", "\ue002"
_ARGUMENT = re.compile(f"{_BEGIN}([^{_SEPARATOR}]*){_SEPARATOR}([^{_END}]*){_END}")


def argument(name: str, value: object = None, *, code: str = "") -> str:
    """An argument of the Python interface in the text of an error: ``head``, or ``kernels='oeq'`` with a value, or
    with what stands for one in ``code``.

    The command line words it as the option: ``--head``, ``--kernels oeq``.
    """
    return f"{_BEGIN}{name}{_SEPARATOR}{code if value is None else repr(value)}{_END}"


def in_python(name: str, value: str) -> str:
    """How an argument is put to who calls a function."""
    return f"{name}={value}" if value else name


class StableMDError(Exception):
    """Base of all errors that a user can cause or meet; ``str(error)`` is one line."""

    def __str__(self) -> str:
        return self.worded(in_python)

    def worded(self, word: Callable[[str, str], str]) -> str:
        """The line with each :func:`argument` as ``word(name, value as code or "")`` puts it."""
        line = _ARGUMENT.sub(lambda found: word(found[1], found[2]), self.text)
        return escaped(" ".join(part.strip() for part in line.splitlines()))

    @property
    def text(self) -> str:
        """The message as it was given, to begin or end another one's with."""
        return " ".join(map(str, self.args))


class ArgumentError(StableMDError, ValueError):
    """An argument has a wrong value, shape or type."""


class FileError(StableMDError, OSError):
    """A file is missing or cannot be read or written."""


class MissingFileError(FileError, builtins.FileNotFoundError):
    """A file does not exist."""


class FormatError(StableMDError, ValueError):
    """A file is not a bundle (or not a model that can be loaded), is damaged, or has a newer format."""


class PluginError(StableMDError, RuntimeError):
    """There is no PJRT plugin for the device, or it cannot be used."""


class ProviderError(StableMDError, RuntimeError):
    """An FFI provider failed, or a custom call that the bundle needs is registered by none."""


class CompileError(StableMDError, RuntimeError):
    """XLA refused the program."""


class ExecutionError(StableMDError, RuntimeError):
    """The program failed while it ran, or gave an energy that is not finite."""


class OutOfMemoryError(StableMDError, MemoryError):
    """The device or the host has not enough memory for a graph of this size."""


class InternalError(StableMDError, RuntimeError):
    """A defect of the library: please report it."""


# smd_status of stablemd.h, by number; the native module raises these.
BY_STATUS: dict[int, type[StableMDError]] = {
    1: ArgumentError,
    2: FileError,
    3: FormatError,
    4: PluginError,
    5: ProviderError,
    6: CompileError,
    7: ExecutionError,
    8: OutOfMemoryError,
    9: InternalError,
}


class ExportError(StableMDError):
    """An energy function cannot be exported as a program for every number of atoms."""
