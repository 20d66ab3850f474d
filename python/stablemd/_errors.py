# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions of the package. Each carries one line: what is wrong, where, and what to do."""

from __future__ import annotations

import builtins


class StableMDError(Exception):
    """Base of all errors that a user can cause or meet; ``str(error)`` is one line."""


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
