# SPDX-License-Identifier: BSD-3-Clause
"""Makes JAX run the custom calls, with the handlers of ``liboeq_native``."""

from __future__ import annotations

from typing import Any, Literal

import jax

_registered: set[str] = set()


def register(platform: Literal["cpu", "cuda"] = "cpu") -> None:
    """Registers every handler of the library's table with JAX, once; exporting needs no registration.

    Raises ImportError where stablemd was built without its native parts.
    """
    if platform in _registered:
        return
    from stablemd import _oeq_native

    handlers: dict[str, Any] = _oeq_native.registrations(platform)
    for name, types in _oeq_native.type_registrations().items():
        jax.ffi.register_ffi_type(name, types, platform=platform)
    for name, bundle in handlers.items():
        jax.ffi.register_ffi_target(name, bundle, platform=platform, api_version=1)
    _registered.add(platform)
