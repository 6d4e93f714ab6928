"""Affine maps written out: the values by Python's own arithmetic, the ops by MLIR's own pass."""

import subprocess

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ascend_model import toolchain
from ascend_model.affine import read_map, written_out
from ascend_model.parse import ParseError, parse

NAMES = ("d0", "s0", "s1")
VALUES = st.integers(-(2**20), 2**20)


DIVISIONS = {"floordiv": lambda a, b: a // b, "ceildiv": lambda a, b: -(-a // b), "mod": lambda a, b: a % b}


def divided(inner, word, rule):
    by = st.integers(1, 9)
    return st.tuples(inner, by).map(lambda p: (f"({p[0][0]} {word} {p[1]})", lambda v: rule(p[0][1](v), p[1])))


def expressions():
    """Texts as MLIR prints them, each with a function of the names' values."""
    names = st.sampled_from(NAMES).map(lambda name: (name, lambda v: v[name]))
    numbers = st.integers(-9, 9).map(lambda n: (str(n), lambda v: n))
    factors = st.sampled_from([n for n in range(-9, 10) if n])

    def grown(inner):
        two = st.tuples(inner, inner)
        return st.one_of(
            two.map(lambda p: (f"({p[0][0]} + {p[1][0]})", lambda v: p[0][1](v) + p[1][1](v))),
            two.map(lambda p: (f"({p[0][0]} - {p[1][0]})", lambda v: p[0][1](v) - p[1][1](v))),
            inner.map(lambda e: (f"-{e[0]}" if not e[0].startswith("-") else e[0], negated(e))),
            st.tuples(inner, factors).map(lambda p: (f"({p[0][0]} * {p[1]})", lambda v: p[0][1](v) * p[1])),
            *(divided(inner, word, rule) for word, rule in DIVISIONS.items()),
        )

    return st.recursive(st.one_of(names, numbers), grown, max_leaves=8)


def negated(one):
    text, value = one
    return value if text.startswith("-") else lambda v: -value(v)


def executed(steps, known):
    """The value of the last step; divisions as the hardware does them, towards zero."""

    def towards_zero(a, b):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    rules = {
        "addi": lambda a, b: a + b,
        "subi": lambda a, b: a - b,
        "muli": lambda a, b: a * b,
        "divsi": towards_zero,
        "remsi": lambda a, b: a - towards_zero(a, b) * b,
        "select": lambda c, a, b: a if c else b,
        "minsi": min,
        "maxsi": max,
    }
    for name, result, operands, attrs in steps:
        assert name.startswith("arith.") and result not in known
        taken = [known[x] for x in operands]
        kind = name.removeprefix("arith.")
        if kind == "constant":
            known[result] = int(attrs["value"].split(" ")[0])
        elif kind == "cmpi":
            known[result] = taken[0] < taken[1] if attrs["predicate"] == "2 : i64" else taken[0] <= taken[1]
        else:
            known[result] = rules[kind](*taken)
    return known[steps[-1].result]


@given(st.lists(expressions(), min_size=1, max_size=3), st.sampled_from(["min", "max"]), st.tuples(*[VALUES] * 3))
def test_values_are_those_of_the_map(found, join, values):
    known = dict(zip(NAMES, values))
    wanted = (min if join == "min" else max)(value(known) for _, value in found)
    text = f"(d0)[s0, s1] -> ({', '.join(text for text, _ in found)})"
    operands = tuple(f"%{name}" for name in NAMES)
    before = {f"%{name}": value for name, value in known.items()}
    try:
        steps = written_out(f"affine.{join}", text, operands, "%r")
    except ValueError as error:
        assert "computes nothing" in str(error) and len(found) == 1 and found[0][0] in NAMES
        return
    assert steps[-1].result == "%r"
    assert executed(steps, before) == wanted


def module(ops, maps):
    """Generic text of a function of three indices whose ops have these maps."""
    kinds = "(index, index, index)"
    lines = [
        f'  %r{i} = "affine.{op}"(%a, %b, %c) <{{map = affine_map<{text}>}}> : {kinds} -> index'
        for i, (op, text) in enumerate(zip(ops, maps))
    ]
    return "\n".join(
        [
            '"builtin.module"() ({',
            f'"func.func"() <{{function_type = {kinds} -> (), sym_name = "f"}}> ({{',
            "^bb0(%a: index, %b: index, %c: index):",
            *lines,
            '  "func.return"() : () -> ()',
            "}) : () -> ()",
            "}) : () -> ()",
        ]
    )


def shape_of(text):
    """Names, operands as positions, numbers: what must be equal however values are called."""
    seen = {}
    found = []
    for op in parse(text).op.walk():
        for region in op.regions:
            for name, _ in region.args:
                seen[name] = len(seen)
        kept = {k: v for k, v in op.attrs.items() if k in ("value", "predicate")}
        found.append((op.name, [seen[x] for x in op.operands], kept, op.operand_types, op.result_types))
        for name in op.results:
            seen[name] = len(seen)
    return found


@pytest.mark.compiler
@settings(max_examples=4, phases=[Phase.generate])  # two processes each; what differs is shown by its place
@given(st.lists(st.tuples(st.sampled_from(["min", "max", "apply"]), expressions(), expressions()), min_size=20))
def test_ops_are_those_that_mlir_makes(drawn):
    maps = []
    for op, one, two in drawn:
        # names of their own in each, so that no map becomes a number or a name alone
        results = [f"({one[0]}) + d0 * 64 + s0 * 16", f"({two[0]}) + s1 * 32"]
        maps.append(f"(d0)[s0, s1] -> ({', '.join(results[: 1 if op == 'apply' else 2])})")
    opt = str(toolchain.compiler_bin() / "bishengir-opt")

    def asked(text, *more):
        command = [opt, "-", "--mlir-print-op-generic", *more]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # read again, MLIR orders the terms of a sum that it printed without its parentheses
    printed = asked(asked(module([op for op, _, _ in drawn], maps)))
    assert "affine" in printed
    ours, theirs = shape_of(printed), shape_of(asked(printed, "--lower-affine"))
    differ = [(i, *pair) for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]]
    assert not differ[:1], printed
    assert len(ours) == len(theirs)


@pytest.mark.parametrize(
    ("op", "map_", "operands", "words"),
    [
        ("affine.apply", "(d0 -> (d0)", ("%a",), "no affine map"),
        ("affine.apply", "(d0) -> (d0 + x)", ("%a",), "found 'x'"),
        ("affine.apply", "(d0) -> (d0 + (d0)", ("%a",), "no affine map|expected"),
        ("affine.apply", "(d0) -> (d0 d0)", ("%a",), "unexpected 'd0'"),
        ("affine.apply", "(d0)[s0] -> (d0 + s0)", ("%a",), "1 operands"),
        ("affine.apply", "(d0) -> (d0 + 1, d0)", ("%a",), "affine.apply of"),
        ("affine.for", "(d0) -> (d0 + 1)", ("%a",), "affine.for of"),
        ("affine.apply", "(d0) -> (d0)", ("%a",), "computes nothing"),
        ("affine.apply", "(d0) -> ()", ("%a",), "expected a number"),
    ],
)
def test_what_is_no_map_is_refused_with_its_words(op, map_, operands, words):
    with pytest.raises(ValueError, match=words):
        written_out(op, map_, operands, "%r")


def test_a_map_that_cannot_be_read_is_an_error_with_its_place():
    text = module(["apply"], ["(d0)[s0, s1] -> (d0 + q)"])
    with pytest.raises(ParseError, match=r"line 4, column \d+: .*found 'q'"):
        parse(text)


def test_a_negative_factor_stays_a_number():
    assert read_map("(d0) -> (d0 - d0 * 8)")[1] == (("+", "d0", ("*", "d0", -8)),)
    assert read_map("(d0) -> (-d0)")[1] == (("*", "d0", -1),)
    assert read_map("(d0) -> (d0 - 4)")[1] == (("+", "d0", -4),)
