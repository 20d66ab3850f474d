# SPDX-License-Identifier: BSD-3-Clause
"""Templates: the expression language, the fit, and what it must refuse."""

import pytest
from stablemd._sizes import Sizes, symbols, tracing_sets
from stablemd._template import Affine, Misfit, fit_template, instantiate, parse_affine


def fit(write, layers=1, count=12):
    """Fits texts ``write(values)``; returns the template and at how many sizes it was traced."""
    sizes = [one.values() for one in tracing_sets(layers, count)]
    return fit_template(sizes, lambda index: write(sizes[index]))


@pytest.mark.parametrize(
    "text, values, expected",
    [
        ("N", {"N": 7}, 7),
        ("2*N-1", {"N": 7}, 13),
        ("C1-C2", {"C1": 9, "C2": 4}, 5),
        ("-C2+C1+3", {"C1": 9, "C2": 4}, 8),
        ("12", {}, 12),
        ("-3*E1+E1", {"E1": 2}, -4),
    ],
)
def test_expressions(text, values, expected):
    assert parse_affine(text)(values) == expected


@pytest.mark.parametrize("text", ["", "N N", "N*2", "2N", "N+", "N--1", "n", "1.5", "N C1", "2*-N", " N"])
def test_what_is_no_expression(text):
    with pytest.raises(ValueError, match="no size expression"):
        parse_affine(text)


@pytest.mark.parametrize(
    "form", [Affine((("N", 1),)), Affine((("C1", -1), ("E2", 64)), -3), Affine((), 0), Affine((), 5)]
)
def test_expressions_are_read_as_written(form):
    assert parse_affine(str(form)) == form
    assert " " not in str(form)


def test_fit_finds_the_forms_that_were_written():
    def write(v):
        return (
            f"a<{v['N']}x64xf32> b<{v['N'] - 1}> c<{v['C1'] - v['C2']}> d<{3 * v['E1']}x{v['E2'] * 128}>"
            f" e<{v['N'] - v['C1'] - 1}> -{v['E1'] - v['E2']} 17"
        )

    template, traced = fit(write, layers=2)
    assert template == ("a<@{N}x64xf32> b<@{N-1}> c<@{C1-C2}> d<@{3*E1}x@{128*E2}> e<@{N-C1-1}> -@{E1-E2} 17")
    assert traced == 4
    hops = Sizes.of_hops((5, 0, 0), (11, 0)).values()
    assert instantiate(template, hops) == "a<5x64xf32> b<4> c<0> d<33x1408> e<-1> -0 17"


def test_forms_that_two_texts_do_not_tell_are_solved_for():
    def write(v):
        return f"x<{5 * v['N'] - 7 * v['C1'] + 11 * v['E1'] + 1000000}>"

    template, traced = fit(write)
    assert template == "x<@{5*N-7*C1+11*E1+1000000}>"
    assert traced == 4 + 2


@pytest.mark.parametrize("layers", range(1, 9))
def test_fit_for_every_number_of_layers(layers):
    names = symbols(layers)
    template, _ = fit(lambda v: " ".join(str(v[name]) for name in names), layers, 2 * layers + 4)
    assert template == " ".join(f"@{{{name}}}" for name in names)


@pytest.mark.parametrize(
    "write, kind, line",
    [
        (lambda v: f"first\nlog {v['N'].bit_length()} {v['N']}", "integer", 1),
        (lambda v: f"square {v['N'] ** 2}", "integer", 0),
        (lambda v: f"product\n\n{v['N'] * v['E1']}", "integer", 2),
        (lambda v: f"half {v['N'] // 2}", "integer", 0),
        (lambda v: f"one\nmean {1.0 / v['N']:e}", "constant", 1),
        (lambda v: f"exact {float(v['E1']):e}", "constant", 0),
        (lambda v: f'packed "0x{v["N"]:08X}"', None, 0),
        (lambda v: "a\nb\n" + "op\n" * (v["N"] % 7), "structure", None),
        (lambda v: "a\nb " + ("slice" if v["N"] > v["E1"] else "pad"), "structure", 1),
        (lambda v: f"@{{N}} {v['N']}", "structure", 0),
    ],
)
def test_what_no_template_describes(write, kind, line):
    with pytest.raises(Misfit) as caught:
        fit(write)
    assert kind is None or caught.value.kind == kind
    assert line is None or caught.value.line == line


def test_a_form_that_fails_on_held_out_sizes_only_is_refused():
    sizes = [one.values() for one in tracing_sets(1, 8)]
    with pytest.raises(Misfit):
        fit_template(sizes, lambda index: f"{sizes[index]['N'] + (1 if index >= 3 else 0)}")


def test_a_small_integer_that_starts_to_vary_is_refused():
    sizes = [one.values() for one in tracing_sets(1, 8)]
    with pytest.raises(Misfit):
        fit_template(sizes, lambda index: f"{sizes[index]['N']} {8 if index < 2 else 9}")


@pytest.mark.parametrize("layers", [1, 2, 3, 8])
def test_tracing_sizes_are_distinct_and_ordered(layers):
    sets = tracing_sets(layers, 2 * layers + 4)
    assert sets == tracing_sets(layers, 2 * layers + 4)
    for one in sets:
        values = list(one.values().values())
        assert len(set(values)) == len(values) == 2 * layers + 1
        assert list(one.rows) == sorted(one.rows, reverse=True)
        assert list(one.edges) == sorted(one.edges, reverse=True)
    assert any(one.rows[-1] > one.edges[0] for one in sets)
    assert any(one.edges[-1] > one.rows[0] for one in sets)


def test_sizes_of_hops():
    sizes = Sizes.of_hops((10, 20, 30), (100, 200))
    assert sizes.values() == {"N": 60, "C1": 30, "C2": 10, "E1": 300, "E2": 100}
    with pytest.raises(ValueError):
        Sizes((1, 2), (3,))
