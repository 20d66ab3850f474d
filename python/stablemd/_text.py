# SPDX-License-Identifier: BSD-3-Clause
"""Text of files as it may be shown: one line that neither moves the cursor nor lies about its order."""

from __future__ import annotations

import unicodedata

# Controls, marks of direction and without width, halves of characters, ends of lines and paragraphs: as in escape.cc.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def escaped(text: str) -> str:
    r"""``text`` with control characters and others that do not show as ``\n``, ``\x1b`` and ``\u202e``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def is_printable(text: str) -> bool:
    """Whether :func:`escaped` leaves it as it is."""
    return escaped(text) == text


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
