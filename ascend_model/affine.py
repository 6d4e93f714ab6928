"""Affine maps written out as arithmetic.

The compiler's last form still has `affine.apply`, `affine.min` and `affine.max`; what they cost is what they
become.  Source of the algorithm: MLIR's pass lower-affine.  Its divisions round to minus infinity, its remainders
are never negative.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

Expression = int | str | tuple[str, "Expression", "Expression"]
"""A number, the name of a dimension or symbol, or an operator and its two sides."""

_MAP = re.compile(r"\(([\w, ]*)\)(?:\[([\w, ]*)\])?\s*->\s*\((.*)\)\s*", re.DOTALL)
_TOKEN = re.compile(r"\s*(->|\w+|\S)")
_PRODUCTS = ("*", "floordiv", "ceildiv", "mod")
LESS, LESS_OR_EQUAL = "2 : i64", "3 : i64"


class Step(NamedTuple):
    """One op of package arith that gives an index, or a truth value where it compares."""

    name: str
    result: str
    operands: tuple[str, ...]
    attrs: dict[str, str]


@lru_cache(maxsize=1024)
def read_map(text: str) -> tuple[tuple[str, ...], tuple[Expression, ...]]:
    """Names of the operands of a map like `(d0)[s0] -> (d0 * 4 - s0, s0)`, and its results.

    Raises ValueError for anything else.
    """
    found = _MAP.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no affine map")
    names = re.findall(r"\w+", f"{found[1]} {found[2] or ''}")
    tokens = [*_TOKEN.findall(found[3]), ""]
    at = 0

    def accept(*wanted: str) -> str:
        nonlocal at
        token = tokens[at]
        if token not in wanted:
            return ""
        at += 1
        return token

    def factor() -> Expression:
        nonlocal at
        if accept("-"):
            return negative(factor())
        if accept("("):
            inside = total()
            if not accept(")"):
                raise ValueError(f"{text!r}: expected ')', found {tokens[at]!r}")
            return inside
        token = tokens[at]
        at += 1
        if token.isdigit():
            return int(token)
        if token not in names:
            raise ValueError(f"{text!r}: expected a number or one of {', '.join(names)}, found {token!r}")
        return token

    def product() -> Expression:
        left = factor()
        while sign := accept(*_PRODUCTS):
            left = (sign, left, factor())
        return left

    def total() -> Expression:
        left = product()
        while sign := accept("+", "-"):
            right = product()
            left = ("+", left, right if sign == "+" else negative(right))
        return left

    results = [total()]
    while accept(","):
        results.append(total())
    if at != len(tokens) - 1:
        raise ValueError(f"{text!r}: unexpected {tokens[at]!r}")
    return tuple(names), tuple(results)


def negative(one: Expression) -> Expression:
    """An expression times minus one, as MLIR keeps it: the factor is a number on the right."""
    if isinstance(one, int):
        return -one
    if isinstance(one, tuple) and one[0] == "*" and isinstance(one[2], int):
        return "*", one[1], -one[2]
    return "*", one, -1


def written_out(name: str, text: str, operands: tuple[str, ...], result: str) -> list[Step]:
    """The ops that `affine.apply`, `affine.min` or `affine.max` (name) with this map becomes; the last of them
    gives `result`.

    Raises ValueError for a map that cannot be read, or that computes nothing.
    """
    names, results = read_map(text)
    join = {"affine.min": "minsi", "affine.max": "maxsi"}.get(name, "")
    if len(names) != len(operands) or (not join and (name != "affine.apply" or len(results) != 1)):
        raise ValueError(f"{name} of {len(operands)} operands with the map {text!r}")
    steps: list[Step] = []

    def step(op: str, *given: str, **attrs: str) -> str:
        steps.append(Step(f"arith.{op}", f"{result}.{len(steps)}", given, attrs))
        return steps[-1].result

    def number(value: int) -> str:
        return step("constant", value=f"{value} : index")

    def made(one: Expression) -> str:
        if isinstance(one, int):
            return number(one)
        if isinstance(one, str):
            return operands[names.index(one)]
        sign, left, right = one[0], made(one[1]), made(one[2])
        if sign == "+":
            return step("addi", left, right)
        if sign == "*":
            return step("muli", left, right)
        if sign == "mod":
            rest = step("remsi", left, right)
            below = step("cmpi", rest, number(0), predicate=LESS)
            return step("select", below, step("addi", rest, right), rest)
        zero = number(0)
        if sign == "floordiv":
            minus = number(-1)
            below = step("cmpi", left, zero, predicate=LESS)
            part = step("divsi", step("select", below, step("subi", minus, left), left), right)
            return step("select", below, step("subi", minus, part), part)
        plus = number(1)
        below = step("cmpi", left, zero, predicate=LESS_OR_EQUAL)
        negated, lowered = step("subi", zero, left), step("subi", left, plus)
        part = step("divsi", step("select", below, negated, lowered), right)
        negated, raised = step("subi", zero, part), step("addi", part, plus)
        return step("select", below, negated, raised)

    values = [made(one) for one in results]
    last = values[0]
    for one in values[1:]:
        last = step(join, last, one)
    if not steps or steps[-1].result != last:
        raise ValueError(f"{name} with the map {text!r} computes nothing")
    steps[-1] = steps[-1]._replace(result=result)
    return steps
