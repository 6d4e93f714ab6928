"""Pairs of forms of one job: each computes its reference, and the page says what a fresh run says."""

from dataclasses import replace

import pytest

from ascend_model import toolchain
from tests.pattern_table import PAGE, PAIRS, cost, costs, forms, main, named, row, source

PINNED = "1.2.0"
TEXT = PAGE.read_text()
SECTIONS = {part.partition("\n")[0]: part for part in TEXT.split("\n## ")[1:]}
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(PINNED not in toolchain.available_versions(), reason="the page's figures are of 1.2.0"),
]


def test_the_page_has_every_pattern_with_both_sources():
    assert set(SECTIONS) == set(PAIRS)
    for name, pair in PAIRS.items():
        good, bad = source(pair)
        assert "\n".join(["# good", *good, "# bad", *bad, "```"]) in SECTIONS[name]


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_compute_the_reference_and_cost_what_the_page_says(name):
    two = costs(name, PINNED)
    assert [one.wrong for one in two] == ["", ""]
    fresh = row(name, PINNED, two)
    assert [line for line in SECTIONS[name].splitlines() if line.startswith(f"| {PINNED} |")] == fresh, (
        "run `python -m tests.pattern_table`"
    )


@pytest.mark.parametrize("name", ["modulo", "mask-reversed", "scan", "one-element", "many-programs"])
def test_the_name_that_explain_gives_is_on_the_page(name):
    (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| [{name}]")]
    assert line.endswith(f"| {named(name, PINNED)} |")


@pytest.mark.parametrize("name", ["mask-reversed", "modulo", "scan", "sum-int64", "look-up", "turned-addresses"])
def test_patterns_of_the_compiler_notes_cost_more(name):
    good, bad = costs(name, PINNED)
    assert bad.cycles > good.cycles
    assert (bad.scalar, bad.copies, bad.repeats) != (good.scalar, good.copies, good.repeats)


def test_a_form_that_computes_something_else_has_no_numbers():
    (kernel, constants, made), _ = forms(PAIRS["compare-int64"])
    wrong = cost(kernel, constants, replace(made, expected={"out": made.expected["out"] + 1}), PINNED)
    assert wrong.wrong.startswith("out: 256 of 256 differ")
    assert wrong.cycles == 0


def test_a_form_that_does_not_compile_says_so():
    (kernel, _, made), _ = forms(PAIRS["small-tiles"])
    assert cost(kernel, {"BLOCK": 65536}, made, PINNED).wrong.startswith("ub overflow")


def test_the_command_prints_and_refuses(capsys):
    assert main(["modulo", "--compiler", PINNED]) == 0
    assert "| 1.2.0 | bad |" in capsys.readouterr().out
    assert main(["no-such-pattern"]) == 4
    assert "no pattern 'no-such-pattern'" in capsys.readouterr().err
    assert main(["modulo", "--compiler", "0.0.1"]) == 4
