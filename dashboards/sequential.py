"""Tests on runs that come one after the other: is there a step, and on which side of it does a point lie?

The noise is what a device gives: roughly normal, with spikes, and a level that drifts from run to run.  So only
runs taken side by side are compared, a spike counts for little, and no test relies on a known deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Degrees of freedom of the likelihood: heavy tails bound what a spike can say.
HEAVY = 4
SPREAD_OF_MAD = 1.4826


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t above one half, from its distribution function by halving."""
    low, high = 0.0, 1.0
    while _t_below(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _t_below(t: float, freedom: int) -> float:
    """P(T < t) for t >= 0: the finite sums for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom % 2:
        term, total = cosine, 0.0
        for at in range(1, (freedom - 1) // 2 + 1):
            total += term
            term *= cosine * cosine * (2 * at) / (2 * at + 1)
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    term, total = 1.0, 0.0
    for at in range(freedom // 2):
        total += term
        term *= cosine * cosine * (2 * at + 1) / (2 * at + 2)
    return 0.5 + math.sin(angle) * total / 2


def interval(differences: Sequence[float], error: float) -> tuple[float, float, float]:
    """Middle, low and high of paired differences; far ones are pulled in to four deviations of the others."""
    array = np.asarray(differences, float)
    if array.size < 2:
        return (float(array[0]) if array.size else math.nan), -math.inf, math.inf
    middle, spread = float(np.median(array)), deviation(array)
    kept = np.clip(array, middle - 4 * spread, middle + 4 * spread)
    mean = float(kept.mean())
    margin = t_quantile(1 - error / 2, array.size - 1) * float(kept.std(ddof=1)) / math.sqrt(array.size)
    return mean, mean - margin, mean + margin


def deviation(values: np.ndarray | Sequence[float]) -> float:
    """Standard deviation that spikes hardly move, widened for few values."""
    array = np.asarray(values, float)
    if array.size < 2:
        return math.inf
    robust = SPREAD_OF_MAD * float(np.median(np.abs(array - np.median(array)))) * (1 + 2 / array.size)
    # with few values the median of their distances may be small by chance alone
    plain = float(array.std(ddof=1))
    return max(robust, plain / 3, 1e-12 * float(np.abs(array).max()), 1e-300)


def differs(differences: Sequence[float], error: float) -> bool:
    """Whether paired differences are centred off zero: a t test, which heavy tails only make shy, with half of the
    error probability, or signs or signed ranks, whose distribution does not depend on the noise."""
    array = np.asarray(differences, float)
    if array.size < 4 or not np.any(array):
        return False
    spread = float(array.std(ddof=1))
    if spread == 0:
        return array.size >= 8
    t = abs(float(array.mean())) * math.sqrt(array.size) / spread
    return (
        t > t_quantile(1 - error / 4, array.size - 1)
        or signed_rank_p(array) < error / 4
        or sign_p(array) < error / 4
    )


def sign_p(differences: np.ndarray | Sequence[float]) -> float:
    """Two-sided p-value of the sign test, exact."""
    array = np.asarray(differences, float)
    count = int((array != 0).sum())
    fewer = min(int((array > 0).sum()), int((array < 0).sum()))
    return min(1.0, 2 * sum(math.comb(count, at) for at in range(fewer + 1)) / 2**count)


def signed_rank_p(differences: np.ndarray | Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed ranks, exact."""
    array = np.asarray(differences, float)
    array = array[array != 0]
    if not array.size:
        return 1.0
    sizes = np.abs(array)
    # twice the mean rank is whole, ties included
    ranks = [int((sizes < one).sum() * 2 + (sizes == one).sum() + 1) for one in sizes]
    total = sum(ranks)
    ways = np.zeros(total + 1)
    ways[0] = 1
    for rank in ranks:
        ways[rank:] = ways[rank:] + ways[: total + 1 - rank].copy()
    ways /= ways.sum()
    positive = sum(rank for rank, one in zip(ranks, array) if one > 0)
    return min(1.0, 2 * float(ways[: min(positive, total - positive) + 1].sum()))


def leaning(places: Sequence[float], step: float, spread: float) -> float:
    """Log likelihood ratio of `+step / 2` against `-step / 2` for places measured with deviation `spread`."""
    array = np.asarray(places, float)
    below = 1 + ((array - step / 2) / spread) ** 2 / HEAVY
    above = 1 + ((array + step / 2) / spread) ** 2 / HEAVY
    return float(((HEAVY + 1) / 2 * np.log(above / below)).sum())
