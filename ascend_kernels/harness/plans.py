"""Launch plans chosen by measuring: what was fastest on a device of that name, at sizes like these.

A plan function asks `choice` and applies what it gets over its own rule.  Without a measurement for this device
near these sizes it gets nothing, and the rule stands.  `tools/gpu_tune.py` measures the candidates and writes the
table.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .device import Device

NEAR = 2.0  # a measurement speaks for sizes up to so many times larger or smaller than its own

Choice = Mapping[str, Any]
Size = int | str


@dataclass(frozen=True)
class Measured:
    """One measurement.

    plan: `family.function`.  device: its name.  sizes: numbers that need only be near, texts that must be equal.
    choice: what is applied over the rule.  rule_us, choice_us: medians of one call, inputs not in L2 and in it.
    tried: how many candidates there were.  versions: of torch and triton.
    """

    plan: str
    device: str
    sizes: Mapping[str, Size]
    choice: Choice
    rule_us: tuple[float, float]
    choice_us: tuple[float, float]
    tried: int
    versions: Mapping[str, str]


MOST_KEPT = 4096
_FOUND: dict[tuple[Any, ...], tuple[Any, Choice]] = {}  # with the table, whose id is taken as long as it lives
Made = TypeVar("Made")
_TRYING: contextvars.ContextVar[Mapping[str, Choice] | None] = contextvars.ContextVar("trying", default=None)
_ASKED: contextvars.ContextVar[dict[str, dict[str, Size]] | None] = contextvars.ContextVar("asked", default=None)


def choice(table: Sequence[Measured], plan: str, device: Device, **sizes: Size) -> Choice:
    """What the nearest measurement chose; empty where there is none near."""
    asked = _ASKED.get()
    if asked is not None:
        asked[plan] = sizes
    trying = _TRYING.get()
    if trying is not None:
        return trying.get(plan, {})
    key = (id(table), plan, device.name, *sizes.items())
    if key not in _FOUND:
        near = [
            (apart, one)
            for one in table
            if one.plan == plan and one.device == device.name and (apart := distance(one.sizes, sizes)) <= NEAR
        ]
        if len(_FOUND) >= MOST_KEPT:
            _FOUND.clear()
        _FOUND[key] = table, min(near, key=lambda pair: pair[0])[1].choice if near else {}
    return _FOUND[key][1]


def kept(plan: Callable[..., Made]) -> Callable[..., Made]:
    """`plan`, a pure function of its arguments and of `MEASURED` in its module, with what it made kept: every
    launch asks, mostly for the same sizes.  Inside `trying` and `asked` it is made anew.  Not to be changed."""
    known: dict[tuple[Any, ...], tuple[Any, Made]] = {}

    @functools.wraps(plan)
    def ask(*args: Any, **named: Any) -> Made:
        if named or _TRYING.get() is not None or _ASKED.get() is not None:
            return plan(*args, **named)
        table = plan.__globals__.get("MEASURED")
        try:
            of, made = known.get(args, (None, None))
        except TypeError:  # a mapping among the arguments
            return plan(*args)
        if made is None or of is not table:
            made = plan(*args)
            if len(known) >= MOST_KEPT:
                known.clear()
            known[args] = table, made
        return made

    return ask


def options(given: Choice) -> dict[str, Any]:
    """The part of a choice that is for the compiler."""
    return {name: value for name, value in given.items() if name.startswith("num_")}


def distance(one: Mapping[str, Size], two: Mapping[str, Size]) -> float:
    """The largest ratio between two sizes of the same name, from 1 on; infinite where a text differs."""
    if one.keys() != two.keys():
        return math.inf
    ratios = [1.0]
    for name, a in one.items():
        b = two[name]
        if isinstance(a, str) or isinstance(b, str):
            ratios.append(1.0 if a == b else math.inf)
        else:
            ratios.append(max(a, 1) / max(b, 1) if a > b else max(b, 1) / max(a, 1))
    return max(ratios)


@contextlib.contextmanager
def trying(given: Mapping[str, Choice]) -> Iterator[None]:
    """Inside the block plans get these choices whatever was measured; a plan without one follows its rule."""
    token = _TRYING.set(given)
    try:
        yield
    finally:
        _TRYING.reset(token)


@contextlib.contextmanager
def asked() -> Iterator[dict[str, dict[str, Size]]]:
    """Plan -> sizes of the last time it asked inside the block."""
    seen: dict[str, dict[str, Size]] = {}
    token = _ASKED.set(seen)
    try:
        yield seen
    finally:
        _ASKED.reset(token)
