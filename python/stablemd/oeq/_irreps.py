# SPDX-License-Identifier: BSD-3-Clause
"""Irreps of O(3) in e3nn's notation, as far as tensor products need them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(r"(?:(\d+)x)?(\d+)([eo])")


@dataclass(frozen=True)
class Block:
    """``mul`` copies of the irrep of degree ``l`` and parity ``p`` (1 or -1), e.g. ``128x1o``."""

    mul: int
    l: int  # noqa: E741
    p: int

    @property
    def dim(self) -> int:
        """Components of one copy."""
        return 2 * self.l + 1

    def __str__(self) -> str:
        return f"{self.mul}x{self.l}{'e' if self.p == 1 else 'o'}"


class Irreps(tuple[Block, ...]):
    """Blocks of a feature row, in order; made from text such as ``"128x0e+128x1o"``."""

    def __new__(cls, irreps: str | Irreps | tuple[Block, ...] = ()) -> Irreps:
        if not isinstance(irreps, str):
            return super().__new__(cls, tuple(irreps))
        blocks = []
        for text in filter(None, irreps.replace(" ", "").split("+")):
            match = _BLOCK.fullmatch(text)
            if not match:
                raise ValueError(f"irreps {irreps!r}: {text!r} is not a block such as 128x1o")
            mul, degree, parity = match.groups()
            blocks.append(Block(int(mul or 1), int(degree), 1 if parity == "e" else -1))
        return super().__new__(cls, tuple(blocks))

    @property
    def dim(self) -> int:
        """Length of a feature row."""
        return sum(block.mul * block.dim for block in self)

    def slices(self) -> list[slice]:
        """Where each block lies in a row."""
        slices, start = [], 0
        for block in self:
            slices.append(slice(start, start + block.mul * block.dim))
            start += block.mul * block.dim
        return slices

    def __str__(self) -> str:
        return "+".join(map(str, self))

    def __repr__(self) -> str:
        return f"Irreps({str(self)!r})"
