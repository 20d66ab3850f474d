# SPDX-License-Identifier: BSD-3-Clause
"""What a pickle names and we do not need: stand-ins that take whatever state they are given."""

from __future__ import annotations

from typing import Any


class Stranger:
    """Any object of a library that is not here; what it is made from stays readable."""

    def __new__(cls, *_: Any, **__: Any) -> Stranger:
        return object.__new__(cls)

    def __init__(self, *arguments: Any, **_: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__.update(part)

    def __setitem__(self, *_: Any) -> None: ...

    def append(self, _: Any) -> None: ...

    extend = append


def stranger(name: str) -> type[Stranger]:
    return type(name, (Stranger,), {})
