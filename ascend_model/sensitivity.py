"""Which orderings of modelled times depend on a constant of the model, most of which nobody measured."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

from ascend_model.costs import Costs, load_costs

Times = Callable[[Costs], Mapping[str, int]]
"""Cycles by name under a table of constants, such as those of an op and its twins."""


@dataclass(frozen=True)
class Flip:
    """With `constant` times `factor`, `faster` is no longer the faster one."""

    constant: str
    factor: float
    faster: str
    slower: str


def ordered_pairs(times: Mapping[str, int]) -> list[tuple[str, str]]:
    """(faster, slower) for every two names that differ."""
    pairs = []
    for a, b in combinations(times, 2):
        if times[a] != times[b]:
            pairs.append((a, b) if times[a] < times[b] else (b, a))
    return pairs


def flips(times: Times, factors: tuple[float, ...] = (0.5, 2.0), costs: Costs | None = None) -> list[Flip]:
    """Orderings that one constant alone turns round, each constant multiplied by each factor."""
    costs = costs or load_costs()
    pairs = ordered_pairs(times(costs))
    found = []
    for constant in costs.constants:
        for factor in factors:
            now = times(costs.scaled(constant.key, factor))
            found += [Flip(constant.key, factor, a, b) for a, b in pairs if now[a] >= now[b]]
    return found


def survival(
    times: Times, draws: int = 60, spread: float = 2.0, seed: int = 0, costs: Costs | None = None
) -> dict[tuple[str, str], int]:
    """In how many draws each ordering stays, all constants drawn anew within `spread` either way."""
    costs = costs or load_costs()
    pairs = ordered_pairs(times(costs))
    kept = dict.fromkeys(pairs, 0)
    source = random.Random(seed)
    for _ in range(draws):
        drawn = costs
        for constant in costs.constants:
            drawn = drawn.scaled(constant.key, spread ** source.uniform(-1, 1))
        now = times(drawn)
        for a, b in pairs:
            kept[a, b] += now[a] < now[b]
    return kept
