# SPDX-License-Identifier: BSD-3-Clause
"""Program templates: one text for every size, fitted to texts that were traced at a few sizes.

Texts of one program at different sizes have the same tokens except for integers, and every integer that varies is an
affine function of the sizes. :func:`fit_template` finds these functions on some texts; others, not used for the fit,
must be reproduced to the letter. The syntax of templates is defined in docs/bundle.md, section "Program text".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

_INTEGER = re.compile(r"(\d+)")
_HOLE = re.compile(r"@\{([^}]*)\}")
_TERM = re.compile(r"([+-]?)(?:(?:(\d+)\*)?([A-Z]\d*)|(\d+))")

Values = Mapping[str, int]


@dataclass(frozen=True)
class Affine:
    """``constant + sum(factor * symbol)`` with integer factors."""

    factors: tuple[tuple[str, int], ...]
    constant: int = 0

    def __call__(self, values: Values) -> int:
        return self.constant + sum(factor * values[symbol] for symbol, factor in self.factors)

    def __str__(self) -> str:
        terms = [f"{factor:+d}*{symbol}" for symbol, factor in self.factors]
        terms = [re.sub(r"^([+-])1\*", r"\1", term) for term in terms]
        if self.constant or not terms:
            terms.append(f"{self.constant:+d}")
        return "".join(terms).removeprefix("+")


def parse_affine(text: str) -> Affine:
    """The function that an expression such as ``2*N-1`` stands for. Raises ValueError on anything else."""
    factors: dict[str, int] = {}
    constant = end = 0
    for term in _TERM.finditer(text):
        sign, factor, symbol, number = term.groups()
        if term.start() != end or (end > 0 and not sign):
            break
        end = term.end()
        value = -1 if sign == "-" else 1
        if symbol is None:
            constant += value * int(number)
        else:
            factors[symbol] = factors.get(symbol, 0) + value * int(factor or 1)
    if end != len(text) or not text:
        raise ValueError(f"'{text}' is no size expression")
    return Affine(tuple(factors.items()), constant)


def instantiate(template: str, values: Values) -> str:
    """The text of a template at one set of sizes."""
    return _HOLE.sub(lambda hole: str(parse_affine(hole[1])(values)), template)


class Misfit(Exception):
    """A text that no template describes. ``line`` counts from 0 in text number ``text``."""

    def __init__(self, kind: str, line: int, text: int, detail: str):
        super().__init__(f"{kind} in line {line + 1}: {detail}")
        self.kind, self.line, self.text, self.detail = kind, line, text, detail


@dataclass
class _Column:
    """One varying integer: its values in the texts and where it stands."""

    position: int
    values: tuple[int, ...]
    forms: list[Affine] = field(default_factory=list)


def fit_template(sizes: Sequence[Values], trace: Callable[[int], str], held_out: int = 2) -> tuple[str, int]:
    """The template of the texts ``trace(i)`` at ``sizes[i]``, and how many texts it took.

    Two texts suffice where each varying integer has one simple form (see :func:`_simple_form`); otherwise one text more
    than there are symbols determines the forms by solving for them. Either way the next ``held_out`` texts must come
    out of the template exactly. ``trace`` is called only for texts that are needed. Raises :class:`Misfit`.
    """
    texts: list[str] = []

    def text(index: int) -> str:
        while len(texts) <= index:
            texts.append(trace(len(texts)))
        return texts[index]

    count = 2
    try:
        template = _fit([text(0), text(1)], sizes[:2], _simple_form)
        for index in range(count, count + held_out):
            _verify(template, text(index), index, sizes[index])
    except Misfit as misfit:
        if misfit.kind != "integer":
            raise
        count = len(sizes[0]) + 1
        template = _fit([text(index) for index in range(count)], sizes[:count], _solved_form)
        for index in range(count, count + held_out):
            _verify(template, text(index), index, sizes[index])
    return template, len(texts)


Form = Callable[[Sequence[int], Sequence[Values]], Affine | None]


def _fit(texts: Sequence[str], sizes: Sequence[Values], find_form: Form) -> str:
    if any("@{" in text for text in texts):
        raise Misfit("structure", 0, 0, "the program holds '@{', which marks sizes in a template")
    tokens = [_INTEGER.split(text) for text in texts]
    _check_structure(tokens)
    parts = list(tokens[0])
    forms: dict[tuple[int, ...], Affine | None] = {}
    for position in range(1, len(parts), 2):
        column = tuple(text[position] for text in tokens)
        if all(token == column[0] for token in column):
            continue
        _check_context(tokens[0], position)
        if any(len(token) > 1 and token.startswith("0") for token in column):
            raise Misfit("integer", _line(tokens[0], position), 0, f"{' and '.join(column)} are no plain integers")
        values = tuple(map(int, column))
        if values not in forms:
            forms[values] = find_form(values, sizes)
        form = forms[values]
        if form is None:
            raise Misfit(
                "integer", _line(tokens[0], position), 0, f"{_list(values)} is no affine function of the sizes"
            )
        parts[position] = f"@{{{form}}}"
    return "".join(parts)


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _line(tokens: Sequence[str], position: int) -> int:
    return sum(token.count("\n") for token in tokens[:position])


def _check_structure(tokens: Sequence[Sequence[str]]) -> None:
    """All that stands between integers must be equal."""
    first = tokens[0]
    for number, other in enumerate(tokens[1:], start=1):
        for position in range(0, min(len(first), len(other)), 2):
            if first[position] != other[position]:
                line = _line(first, position) + _common_lines(first[position], other[position])
                raise Misfit("structure", line, 0, "the program has other operations at other sizes")
        if len(first) != len(other):
            raise Misfit("structure", _line(first, len(first)), number, "the program is longer at other sizes")


def _common_lines(one: str, other: str) -> int:
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    return one[:common].count("\n")


def _check_context(tokens: Sequence[str], position: int) -> None:
    """Digits of a real number or of a packed constant are not sizes, whatever they happen to fit."""
    before, after = tokens[position - 1], tokens[position + 1]
    start = position - 1
    while start > 0 and not set(tokens[start]) & {'"', "\n"}:
        start -= 1
    packed = re.search(r'"0x[0-9A-Fa-f]*$', "".join(tokens[start:position]))
    if before in (".", "e+", "e-") or after in (".", "e+", "e-") or packed:
        raise Misfit("constant", _line(tokens, position), 0, "a constant depends on the sizes")


def _verify(template: str, expected: str, number: int, values: Values) -> None:
    text = instantiate(template, values)
    if text == expected:
        return
    ours, theirs = text.split("\n"), expected.split("\n")
    line = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), len(ours))
    same_structure = _INTEGER.split(text)[::2] == _INTEGER.split(expected)[::2]
    kind = "integer" if same_structure else "structure"
    raise Misfit(kind, min(line, len(theirs) - 1), number, "a size that was not used for the fit is not reproduced")


def _simple_form(values: Sequence[int], sizes: Sequence[Values]) -> Affine | None:
    """The only form ``a*S + c`` through two values, else the only ``a*S + b*T + c`` with small a, b, c.

    The sizes are primes of three or four digits, so that a form fits by accident about once in a thousand; an accident
    makes the form ambiguous or fails on the texts that are held out, and then the forms are solved for.
    """
    for candidates in (_one_symbol_forms(values, sizes), _two_symbol_forms(values, sizes)):
        if candidates:
            return candidates[0] if len(candidates) == 1 else None
    return None


def _one_symbol_forms(values: Sequence[int], sizes: Sequence[Values]) -> list[Affine]:
    forms = []
    for symbol in sizes[0]:
        factor, rest = divmod(values[0] - values[1], sizes[0][symbol] - sizes[1][symbol])
        constant = values[0] - factor * sizes[0][symbol]
        # Rows may be extended by a block of any width; a multiple of them seldom is.
        largest_constant = 65536 if factor == 1 else 4
        if rest == 0 and factor > 0 and abs(constant) <= largest_constant:
            forms.append(Affine(((symbol, factor),), constant))
    return forms


def _two_symbol_forms(
    values: Sequence[int], sizes: Sequence[Values], largest_factor: int = 4, largest_constant: int = 2
) -> list[Affine]:
    factors = [f for f in range(-largest_factor, largest_factor + 1) if f != 0]
    forms = []
    for one, other in combinations(sizes[0], 2):
        for a in factors:
            for b in factors:
                constants = [v - a * s[one] - b * s[other] for v, s in zip(values, sizes, strict=True)]
                if constants[0] == constants[1] and abs(constants[0]) <= largest_constant:
                    forms.append(Affine(((one, a), (other, b)), constants[0]))
    return forms


def _solved_form(values: Sequence[int], sizes: Sequence[Values]) -> Affine | None:
    """The form through as many values as there are unknowns, by exact elimination; None if it is not whole."""
    names = list(sizes[0])
    rows = [
        [Fraction(s[name]) for name in names] + [Fraction(1), Fraction(v)] for s, v in zip(sizes, values, strict=True)
    ]
    unknowns = len(names) + 1
    for column in range(unknowns):
        pivot = next((r for r in range(column, unknowns) if rows[r][column] != 0), None)
        if pivot is None:
            raise ValueError("the sizes do not determine an affine function")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [x / rows[column][column] for x in rows[column]]
        for r in range(unknowns):
            if r != column and rows[r][column] != 0:
                factor = rows[r][column]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[column], strict=True)]
    solution = [row[-1] for row in rows]
    if any(x.denominator != 1 for x in solution):
        return None
    factors = tuple((name, int(x)) for name, x in zip(names, solution, strict=False) if x != 0)
    return Affine(factors, int(solution[-1]))
