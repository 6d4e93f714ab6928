"""Change points of one series, and whether its newest point is worse: pure functions on arrays.

A measured series is a level that stays or jumps, plus noise: Gaussian, correlated from point to point, with
now and then a spike.  The noise is read off differences of neighbouring points, which a few jumps and spikes
hardly touch.  Then the levels that the series ever had are laid out as a grid, and a hidden Markov chain over
that grid gives the probability of a jump at every point (forward and backward, `change_points`) or of a jump
in the last few points (forward only, `newest_alert`).  A spike has a likelihood of its own, so that no single
point, however far off, is a jump.  A deterministic series needs none of that: every difference is a change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dashboards.series import worse

# Chance of a jump at any point.  History asks what is there; the alert may be wrong and be taken back.
HISTORY_HAZARD = 1 / 1000
ALERT_HAZARD = 1 / 50
# Least probability of a jump within LOOSE points of the place reported.
HISTORY_CONFIDENCE = 0.65
ALERT_CONFIDENCE = 0.8
LOOSE = 5
# How much an alert's probability is discounted in a correlated series, per unit of correlation.
DOUBT = 0.2
MOST_DOUBT = 0.1
# An alert looks this far back; a jump before that is history.
LOOKBACK = 20

# Densities per standard deviation: of a spike, and of the level after a jump.
SPREAD = 0.05
# Levels nearer than this, in standard deviations, are one level.
NEAR = 0.4
ALERT_GAP = 0.9
SPACING = 0.5
MAX_LEVELS = 64
MIN_POINTS = 6
# A control is divided out when that leaves less than this share of the noise.
SHARED = 0.8
# Runs of spikes likelier than this must not look like a jump.
SPIKE_RUN = 2e-4
# The newest points are not counted as spikes: a new level may begin with them.
NEW_LEVEL = 3

_LAGS = (1, 2, 3, 4, 6, 8)
_LAG_WEIGHTS = (1.0, 1.0, 0.8, 0.6, 0.5, 0.4)
_RHOS = np.linspace(0, 0.95, 20)
_CHANCE = 2.2
_KEEP = 3.0
# Variance of a standard normal cut off at _KEEP.
_CUT = 1 - 2 * _KEEP * math.exp(-(_KEEP**2) / 2) / math.sqrt(2 * math.pi) / math.erf(_KEEP / math.sqrt(2))
_MAD = 1.4826
_Z99 = 2.5758
_PEAK = 1 / math.sqrt(2 * math.pi)
_CHUNK_CELLS = 2_000_000


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A jump: `index` is the first point of the new level; `size` is relative to the level before.

    `low` and `high` hold the size with 99 % confidence; `confidence` is the probability that there is a jump
    within a few points of `index`; `worse` tells a regression from an improvement.
    """

    index: int
    before: float
    after: float
    size: float
    low: float
    high: float
    confidence: float
    worse: bool


@dataclass(frozen=True)
class Noise:
    """Noise of many series: standard deviation, correlation of neighbours, share of spikes.

    The share is an estimate that never is 0; `seen` is how many there were among the points that could be one.
    """

    sigma: np.ndarray
    rho: np.ndarray
    spikes: np.ndarray
    seen: np.ndarray


def change_points(
    values: Sequence[float | None] | np.ndarray,
    *,
    intervals: Sequence[tuple[float, float]] | np.ndarray | None = None,
    deterministic: bool = False,
    direction: str = "lower",
    threshold: float | None = None,
    confidence: float = HISTORY_CONFIDENCE,
) -> list[ChangePoint]:
    """Jumps of one series.  None and NaN are gaps; `intervals` are 99 % intervals of the points.

    `direction` is `lower` or `higher`, whichever is better; changes smaller than `threshold` (relative) are
    left out.  A deterministic series has a change wherever it differs from its last point.
    """
    row = _as_row(values)
    return change_points_of(
        row[None],
        intervals=None if intervals is None else _as_intervals(intervals, row.size)[None],
        deterministic=deterministic,
        direction=direction,
        threshold=threshold,
        confidence=confidence,
    )[0]


def change_points_of(
    values: np.ndarray,
    *,
    intervals: np.ndarray | None = None,
    deterministic: bool = False,
    direction: str | Sequence[str] = "lower",
    threshold: float | Sequence[float | None] | None = None,
    confidence: float = HISTORY_CONFIDENCE,
) -> list[list[ChangePoint]]:
    """`change_points` of many series at once: `values` is [series, point], `intervals` [series, point, 2]."""
    values = np.asarray(values, float)
    count = len(values)
    directions = [direction] * count if isinstance(direction, str) else list(direction)
    least = [threshold] * count if threshold is None or isinstance(threshold, (int, float)) else list(threshold)
    if deterministic:
        found = [_exact(row, way) for row, way in zip(values, directions)]
    else:
        found = [[] for _ in range(count)]
        for rows, batch, spread, kept in _batches(values, intervals):
            for row, jumps in zip(rows, _history(batch, spread, confidence, [directions[r] for r in rows])):
                found[row] = [_moved(jump, kept[row]) for jump in jumps]
    return [[jump for jump in jumps if abs(jump.size) >= (limit or 0.0)] for jumps, limit in zip(found, least)]


def newest_alert(
    values: Sequence[float | None] | np.ndarray,
    *,
    intervals: Sequence[tuple[float, float]] | np.ndarray | None = None,
    deterministic: bool = False,
    direction: str = "lower",
    threshold: float | None = None,
    confidence: float = ALERT_CONFIDENCE,
) -> ChangePoint | None:
    """The regression that the newest points show, or None.  Earlier regressions are history, not alerts."""
    row = _as_row(values)
    return newest_alerts(
        row[None],
        intervals=None if intervals is None else _as_intervals(intervals, row.size)[None],
        deterministic=deterministic,
        direction=direction,
        threshold=threshold,
        confidence=confidence,
    )[0]


def newest_alerts(
    values: np.ndarray,
    *,
    intervals: np.ndarray | None = None,
    deterministic: bool = False,
    direction: str | Sequence[str] = "lower",
    threshold: float | Sequence[float | None] | None = None,
    confidence: float = ALERT_CONFIDENCE,
) -> list[ChangePoint | None]:
    """`newest_alert` of many series at once."""
    values = np.asarray(values, float)
    count = len(values)
    directions = [direction] * count if isinstance(direction, str) else list(direction)
    least = [threshold] * count if threshold is None or isinstance(threshold, (int, float)) else list(threshold)
    found: list[ChangePoint | None] = [None] * count
    if deterministic:
        for row, (points, way) in enumerate(zip(values, directions)):
            jumps = _exact(points, way)
            if jumps and jumps[-1].worse and jumps[-1].index == _last_valid(points):
                found[row] = jumps[-1]
    else:
        for rows, batch, spread, kept in _batches(values, intervals):
            ways = [directions[row] for row in rows]
            for row, jump in zip(rows, _alerts(batch, spread, confidence, ways)):
                found[row] = jump and _moved(jump, kept[row])
    return [
        jump if jump is None or abs(jump.size) >= (limit or 0.0) else None for jump, limit in zip(found, least)
    ]


def estimate_noise(values: np.ndarray) -> Noise:
    """Noise of each row from differences at several lags; no gaps allowed."""
    count, length = values.shape
    spread = np.median(np.abs(np.diff(values, axis=1)), axis=1) * _MAD / math.sqrt(2)
    spread = np.maximum(spread, _floor(values))
    odd = np.abs(values - running_median(values, 7)) > 4.5 * spread[:, None]
    plain = np.where(odd, np.nan, values)
    lags = [lag for lag in _LAGS if lag <= max(2, length // 4)]
    weights = np.array(_LAG_WEIGHTS[: len(lags)])
    weights /= weights.sum()
    logs = np.empty((count, len(lags)))
    for at, lag in enumerate(lags):
        logs[:, at] = np.log(_half_variance(plain[:, lag:] - plain[:, :-lag], spread))
    # log of half the variance of a difference at lag k is log sigma^2 + log(1 - rho^k)
    shapes = np.log1p(-(_RHOS[:, None] ** np.array(lags)))
    rest = logs[:, None, :] - shapes[None]
    centre = (rest * weights).sum(axis=2)
    best = (weights * (rest - centre[:, :, None]) ** 2).sum(axis=2).argmin(axis=1)
    # a correlation that chance explains would only dull the eye
    best[_RHOS[best] < _CHANCE / math.sqrt(length)] = 0
    sigma = np.exp(centre[np.arange(count), best] / 2)
    settled = odd[:, : length - NEW_LEVEL]
    seen = settled.sum(axis=1)
    spikes = (seen + 0.5) / (settled.shape[1] + 50)
    return Noise(np.maximum(sigma, _floor(values)), _RHOS[best], spikes, seen)


def without_drift(values: np.ndarray, control: np.ndarray) -> np.ndarray:
    """A series without what a control measured in the same runs shares with it.

    The control is a kernel that nobody touched: all its movement, jumps too, is the machine's.  It is divided
    out as far as the two move together from run to run, and left alone where that makes nothing quieter.
    """
    both = np.isfinite(values) & np.isfinite(control)
    if both.sum() < 2 * MIN_POINTS or np.median(control[both]) <= 0:
        return values
    wave = control / np.median(control[both]) - 1
    moves = _calm(np.diff(values[both]) / np.median(np.abs(values[both])))
    pushes = _calm(np.diff(wave[both]))
    power = float((pushes * pushes).sum())
    share = min(max(float((moves * pushes).sum()) / power, 0.0), 1.0) if power else 0.0
    before, after = float((moves * moves).sum()), float(((moves - share * pushes) ** 2).sum())
    if after > SHARED * before:
        return values
    return np.where(both, values / (1 + share * np.where(both, wave, 0.0)), values)


def _calm(moves: np.ndarray) -> np.ndarray:
    """Moves with the far ones pulled in, so that one jump does not decide how two series move together."""
    reach = 3 * _MAD * np.median(np.abs(moves))
    return np.clip(moves, -reach, reach)


def running_median(values: np.ndarray, width: int) -> np.ndarray:
    """Median of the `width` points around each one; fewer at the ends."""
    half = width // 2
    out = np.empty_like(values)
    length = values.shape[1]
    if length > 2 * half:
        windows = np.lib.stride_tricks.sliding_window_view(values, width, axis=1)
        out[:, half : length - half] = np.median(windows, axis=2)
    for at in {*range(min(half, length)), *range(max(length - half, 0), length)}:
        out[:, at] = np.median(values[:, max(at - half, 0) : at + half + 1], axis=1)
    return out


def _floor(values: np.ndarray) -> np.ndarray:
    """Least standard deviation worth believing: a series of few distinct values has no spread of its own."""
    steps = np.sort(np.abs(np.diff(values, axis=1)), axis=1)
    kept = steps[:, : max(1, int(steps.shape[1] * 0.75))]
    tiny = 1e-7 * np.median(np.abs(values), axis=1) + 1e-300
    floor = np.maximum(np.sqrt((kept**2).mean(axis=1) / 2), tiny)
    # repeated values tell of a clock that ticks: half a tick is its noise
    tick = np.where(steps > 0, steps, np.inf).min(axis=1)
    ticking = ((steps == 0).mean(axis=1) > 0.1) & np.isfinite(tick)
    return np.where(ticking, np.maximum(floor, tick / 2), floor)


def _half_variance(steps: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Half the variance of each row's differences, jumps and spikes cut off; NaN is left out."""
    sizes = np.abs(steps)
    present = ~np.isnan(sizes)
    sizes = np.where(present, sizes, 0.0)
    middle = np.array([np.median(row[on]) if on.any() else 0.0 for row, on in zip(sizes, present)])
    scale = np.maximum(middle * _MAD, spread)
    for _ in range(3):
        kept = present & (sizes < _KEEP * scale[:, None])
        total = np.where(kept, sizes * sizes, 0.0).sum(axis=1)
        scale = np.maximum(np.sqrt(total / np.maximum(kept.sum(axis=1), 1) / _CUT), spread)
    return np.maximum(scale**2 / 2, 1e-300)


@dataclass(frozen=True)
class _Chain:
    """Probabilities of a batch of series, [point, series, level]; levels in standard deviations.

    `stay` and `enter` are the likelihood of a point on the level that held before or on one just entered,
    times the chance of that; `forward` is the probability of each level given the points so far.
    """

    noise: Noise
    levels: np.ndarray
    stay: np.ndarray
    enter: np.ndarray
    forward: np.ndarray
    total: np.ndarray


def _chain(values: np.ndarray, spread: np.ndarray | None, hazard: float) -> _Chain:
    """The forward pass over the levels of each series."""
    noise = estimate_noise(values)
    centre = np.median(values, axis=1)
    scaled = (values - centre[:, None]) / noise.sigma[:, None]
    levels, prior = _levels(scaled)
    wide = _point_spread(noise, spread)
    rest = _narrow(scaled.T[:, :, None] - levels[None])
    spikes = noise.spikes.astype(np.float32)[None, :, None]
    rho = noise.rho.astype(np.float32)[None, :, None]
    independent = _normal(rest, wide)
    alone = spikes * SPREAD + (1 - spikes) * independent
    entry = (prior * hazard).astype(np.float32)[None]
    start = (prior / prior.sum(axis=1, keepdims=True)).astype(np.float32)
    stay = alone.copy()
    correlated = bool((noise.rho > 0).any())
    if correlated:
        stay[1:] = _given(rest[1:], rest[:-1], independent[1:], independent[:-1], rho, spikes, wide)
    enter = alone * entry
    stay *= np.float32(1 - hazard)
    forward, total = _forward(start * alone[0], stay, enter)
    if correlated:
        # what the noise of the last point says of the noise of the first point on a new level
        before = _narrow(scaled.T - (forward * levels[None]).sum(axis=2))[:-1, :, None]
        enter[1:] = entry * _given(
            rest[1:],
            before,
            independent[1:],
            _normal(before, wide if wide is None else wide[:-1]),
            rho,
            spikes,
            wide,
        )
        forward, total = _forward(start * alone[0], stay, enter)
    return _Chain(noise, levels, stay, enter, forward, total)


def _narrow(rest: np.ndarray) -> np.ndarray:
    """Distances in single precision; how far off a point far off is does not matter."""
    return np.clip(rest, -1e4, 1e4).astype(np.float32)


def _normal(rest: np.ndarray, wide: np.ndarray | None) -> np.ndarray:
    if wide is None:
        return np.exp(-0.5 * rest * rest) * np.float32(_PEAK)
    unit = rest / wide
    return np.exp(-0.5 * unit * unit) * (np.float32(_PEAK) / wide)


def _given(
    rest: np.ndarray,
    before: np.ndarray,
    independent: np.ndarray,
    independent_before: np.ndarray,
    rho: np.ndarray,
    spikes: np.ndarray,
    wide: np.ndarray | None,
) -> np.ndarray:
    """Likelihood of points given the one before, which says nothing of this one if it was a spike."""
    spike_before = spikes * SPREAD / (spikes * SPREAD + (1 - spikes) * independent_before)
    narrow = np.sqrt(1 - rho * rho)
    scale = narrow if wide is None else narrow * wide[1:]
    unit = (rest - rho * before) / scale
    following = np.exp(-0.5 * unit * unit) * (np.float32(_PEAK) / scale)
    return spikes * SPREAD + (1 - spikes) * (following + spike_before * (independent - following))


def _forward(first: np.ndarray, stay: np.ndarray, enter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of each level given the points so far, and of each point given those before it."""
    forward = np.empty_like(stay)
    total = np.empty((*stay.shape[:2], 1), stay.dtype)
    forward[0] = first
    for at in range(len(stay)):
        here = forward[at]
        if at:
            np.multiply(forward[at - 1], stay[at], out=here)
            here += enter[at]
        np.add.reduce(here, axis=1, keepdims=True, out=total[at])
        here /= total[at]
    return forward, total[:, :, 0]


def _levels(scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Candidate levels of each series, from medians of few points, with the prior weight of each.

    Rows with fewer levels than others end in levels of weight 0.
    """
    medians = running_median(scaled, 5)
    rows: list[np.ndarray] = []
    steps: list[float] = []
    for row in medians:
        step = SPACING
        while True:
            bins = np.unique(np.round(row / step))
            bins = np.unique(np.concatenate([bins - 1, bins, bins + 1]))
            if bins.size <= MAX_LEVELS:
                break
            step *= 1.5
        rows.append(bins * step)
        steps.append(step)
    width = max(row.size for row in rows)
    levels = np.zeros((len(rows), width))
    prior = np.zeros((len(rows), width))
    for at, (row, step) in enumerate(zip(rows, steps)):
        levels[at, : row.size] = row
        prior[at, : row.size] = step * SPREAD
    return levels, prior


def _point_spread(noise: Noise, spread: np.ndarray | None) -> np.ndarray | None:
    """Standard deviation of each point in units of its series', from what its own interval says."""
    if spread is None:
        return None
    variance = (spread / noise.sigma[:, None]) ** 2
    known = ~np.isnan(variance)
    typical = np.array([np.median(row[on]) if on.any() else 0.0 for row, on in zip(variance, known)])
    between = np.maximum(1 - typical, 0.1)[:, None]
    wide = np.sqrt(between + np.where(known, variance, typical[:, None]))
    return wide.T.astype(np.float32)[:, :, None]


def _history(
    values: np.ndarray, spread: np.ndarray | None, confidence: float, directions: Sequence[str]
) -> list[list[ChangePoint]]:
    chain = _chain(values, spread, HISTORY_HAZARD)
    jump, path = _backward(chain)
    found = []
    for row, way in enumerate(directions):
        sigma = float(chain.noise.sigma[row])
        places = _without_slopes(values[row], sigma, _places(path[:, row], jump[:, row], confidence))
        places = _at_the_edge(values[row], sigma, places)
        found.append(_measured(values[row], chain.noise, row, places, way))
    return found


def _backward(chain: _Chain) -> tuple[np.ndarray, np.ndarray]:
    """Probability of a jump at each point, and the likeliest level there, given the whole series."""
    after = np.ones_like(chain.stay)
    share = 1 / chain.total[:, :, None]
    for at in range(len(after) - 1, 0, -1):
        entering = np.add.reduce(chain.enter[at] * after[at], axis=1, keepdims=True)
        np.multiply(after[at], chain.stay[at], out=after[at - 1])
        after[at - 1] += entering
        after[at - 1] *= share[at]
    jump = np.zeros(chain.total.shape)
    jump[1:] = (chain.enter[1:] * after[1:] * (1 - chain.forward[:-1])).sum(axis=2) * share[1:, :, 0]
    best = (chain.forward * after).argmax(axis=2)
    return jump, np.take_along_axis(chain.levels, best.T, axis=1).T


def _places(path: np.ndarray, jump: np.ndarray, confidence: float) -> list[tuple[int, float]]:
    """Where the likeliest path jumps, each moved to where most of the probability lies."""
    length = len(jump)
    borders = np.flatnonzero(np.abs(np.diff(path)) > NEAR) + 1
    if not borders.size:
        return []
    box, near = _around(jump, LOOSE), _around(jump, 1)

    # one jump may show as two short hops: as many borders as the probability speaks for
    kept: list[int] = []
    for border in borders:
        if kept and border - kept[-1] <= LOOSE and _joint(jump, kept[-1], border) < 1.5:
            if jump[border] > jump[kept[-1]]:
                kept[-1] = int(border)
        else:
            kept.append(int(border))
    score = box + 0.3 * jump + 0.2 * near
    edges = [0, *kept, length]
    found = []
    for before, border, after in zip(edges, kept, edges[2:]):
        low = max(1, border - LOOSE - 3, (before + border) // 2 + 1)
        high = min(length, border + LOOSE + 4, (border + after + 1) // 2)
        place = low + int(score[low:high].argmax()) if high > low else border
        if box[place] > confidence:
            found.append((place, min(float(box[place]), 1.0)))
    return found


def _without_slopes(
    values: np.ndarray, sigma: float, places: Sequence[tuple[int, float]]
) -> list[tuple[int, float]]:
    """The places where a step tells more than a straight line: to a step model a slope is a staircase."""
    kept = list(places)
    while kept:
        edges = [0, *(place for place, _ in kept), len(values)]
        gains = [
            _slope_gain(values[low:high], place - low, sigma)
            for low, place, high in zip(edges, edges[1:], edges[2:])
        ]
        if max(gains) <= 0:
            return kept
        del kept[int(np.argmax(gains))]
    return kept


def _at_the_edge(values: np.ndarray, sigma: float, places: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The places of large jumps, moved over neighbours that plainly belong to the other side."""
    edges = [0, *(place for place, _ in places), len(values)]
    moved = []
    for (place, sure), low, high in zip(places, edges, edges[2:]):
        before, after = np.median(values[low:place]), np.median(values[place:high])
        if abs(after - before) > 5 * sigma:
            nearer_after = np.abs(values - after) < np.abs(values - before)
            for _ in range(2):
                if place < high - 1 and not nearer_after[place] and nearer_after[place + 1]:
                    place += 1
                elif place > low + 1 and nearer_after[place - 1] and not nearer_after[place - 2]:
                    place -= 1
        moved.append((place, sure))
    return moved


def _slope_gain(part: np.ndarray, place: int, sigma: float) -> float:
    """How much better a straight line fits than a step at `place`; spikes off the step count for neither."""
    levels = np.where(np.arange(part.size) < place, np.median(part[:place]), np.median(part[place:]))
    calm = np.abs(part - levels) < 4 * sigma
    at = np.flatnonzero(calm).astype(float)
    points = part[calm]
    early = at < place
    if early.all() or not early.any():
        return -1.0
    step = sum(float(((some - some.mean()) ** 2).sum()) for some in (points[early], points[~early]))
    at -= at.mean()
    rest = points - points.mean()
    spread = float((at * at).sum())
    line = float((rest * rest).sum()) - (float((at * rest).sum()) ** 2 / spread if spread else 0.0)
    return step - line


def _around(jump: np.ndarray, reach: int) -> np.ndarray:
    """Sum of the probabilities within `reach` of each point."""
    mass = np.concatenate([[0.0], np.cumsum(jump)])
    at = np.arange(len(jump))
    return mass[np.minimum(at + reach + 1, len(jump))] - mass[np.maximum(at - reach, 0)]


def _joint(jump: np.ndarray, first: int, last: int) -> float:
    return float(jump[max(first - LOOSE, 0) : last + LOOSE + 1].sum())


def _measured(
    values: np.ndarray, noise: Noise, row: int, places: Sequence[tuple[int, float]], direction: str
) -> list[ChangePoint]:
    """Sizes of the jumps at the places given, from the points between them without their spikes."""
    edges = [0, *(place for place, _ in places), len(values)]
    sigma, rho = float(noise.sigma[row]), float(noise.rho[row])
    means, counts = [], []
    for low, high in itertools.pairwise(edges):
        part = values[low:high]
        kept = part[np.abs(part - np.median(part)) < 4 * sigma]
        means.append(float((kept if kept.size else part).mean()))
        counts.append(kept.size or part.size)
    jumps = []
    for at, (place, sure) in enumerate(places):
        before, after = means[at], means[at + 1]
        error = sigma * math.sqrt(_mean_variance(counts[at], rho) + _mean_variance(counts[at + 1], rho))
        jumps.append(_change(place, before, after, _Z99 * error, sure, direction))
    return jumps


def _mean_variance(count: int, rho: float) -> float:
    """Variance of the mean of `count` correlated points of variance 1."""
    if rho == 0 or count == 1:
        return 1 / count
    return (1 + 2 * rho / (1 - rho) * (1 - (1 - rho**count) / (count * (1 - rho)))) / count


def _change(
    index: int, before: float, after: float, error: float, confidence: float, direction: str
) -> ChangePoint:
    size = relative(before, after)
    margin = error / abs(before) if before else math.inf if error else 0.0
    low, high = (size - margin, size + margin) if margin else (size, size)
    return ChangePoint(index, before, after, size, low, high, confidence, worse(size, direction))


def relative(before: float, after: float) -> float:
    """Change relative to `before`; infinite where there was nothing to be relative to."""
    if before == after:
        return 0.0
    return (after - before) / abs(before) if before else math.copysign(math.inf, after)


def _alerts(
    values: np.ndarray, spread: np.ndarray | None, confidence: float, directions: Sequence[str]
) -> list[ChangePoint | None]:
    """Regressions among the last points of each series, from the forward pass alone."""
    chain = _chain(values, spread, ALERT_HAZARD)
    length, count = chain.total.shape
    start = max(0, length - 1 - LOOKBACK)
    # as many points on the new level as a run of spikes seldom has
    run = np.clip(np.ceil(math.log(SPIKE_RUN) / np.log(chain.noise.spikes)), 2, 5)
    width = chain.levels.shape[1]
    pairs = chain.forward[start][:, :, None] * np.eye(width, dtype=np.float32)
    settled = pairs.copy()
    for at in range(start + 1, length):
        entering = chain.enter[at][:, None, :]
        may = (at <= length - run).astype(np.float32)[:, None, None]
        kept = chain.stay[at][:, None, :]
        settled = settled * kept + entering * settled.sum(axis=2, keepdims=True) * may
        pairs = pairs * kept + entering * pairs.sum(axis=2, keepdims=True)
        total = pairs.sum(axis=(1, 2), keepdims=True)
        pairs /= total
        settled /= total
    sign = np.array([-1.0 if way == "higher" else 1.0 for way in directions])[:, None, None]
    apart = (chain.levels[:, None, :] - chain.levels[:, :, None]) * sign > ALERT_GAP
    # the correlation is itself an estimate, and too low a one makes a wave look like a jump
    doubt = np.minimum(DOUBT * chain.noise.rho, MOST_DOUBT)
    sure = (settled * apart).sum(axis=(1, 2)) * (1 - doubt)
    found: list[ChangePoint | None] = [None] * count
    if (sure > confidence).any():
        jump, _ = _backward(chain)
        for row in np.flatnonzero(sure > confidence):
            place = start + 1 + int(jump[start + 1 :, row].argmax())
            one = _measured(values[row], chain.noise, row, [(place, float(sure[row]))], directions[row])[0]
            found[row] = one if one.worse else None
    return found


def _exact(values: np.ndarray, direction: str) -> list[ChangePoint]:
    """Changes of a series without noise: every difference from the last point there was."""
    present = np.flatnonzero(~np.isnan(values))
    points = values[present]
    return [
        _change(int(present[at]), float(points[at - 1]), float(points[at]), 0.0, 1.0, direction)
        for at in np.flatnonzero(np.diff(points)) + 1
    ]


def _batches(values: np.ndarray, intervals: np.ndarray | None):
    """Rows with enough points, their gaps closed, in batches of equal length that fit the cache."""
    spread = None
    if intervals is not None:
        spread = (intervals[..., 1] - intervals[..., 0]) / (2 * _Z99)
        spread = np.where(np.isfinite(spread) & (spread >= 0), spread, np.nan)
        if np.isnan(spread).all():
            spread = None
    present = np.isfinite(values)
    lengths = present.sum(axis=1)
    for length in np.unique(lengths):
        if length < MIN_POINTS:
            continue
        rows = np.flatnonzero(lengths == length)
        size = max(1, _CHUNK_CELLS // (int(length) * 24))
        for low in range(0, rows.size, size):
            some = rows[low : low + size]
            kept = {int(row): np.flatnonzero(present[row]) for row in some}
            batch = np.array([values[row, at] for row, at in kept.items()])
            # squares of what a float can hold are more than it can hold
            scale = np.abs(batch).max(axis=1)
            scale = np.where(scale > 0, scale, 1.0)
            known = None
            if spread is not None:
                known = np.array([spread[row, at] for row, at in kept.items()]) / scale[:, None]
            places = {row: (kept[row], float(scale[at])) for at, row in enumerate(kept)}
            yield [int(row) for row in some], batch / scale[:, None], known, places


def _moved(jump: ChangePoint, place: tuple[np.ndarray, float]) -> ChangePoint:
    """The jump in the series with gaps and in its own scale."""
    points, scale = place
    return replace(jump, index=int(points[jump.index]), before=jump.before * scale, after=jump.after * scale)


def _last_valid(values: np.ndarray) -> int:
    present = np.flatnonzero(~np.isnan(values))
    return int(present[-1]) if present.size else -1


def _as_row(values: Sequence[float | None] | np.ndarray) -> np.ndarray:
    """A series as floats; refuses what is no number and what is no flat list."""
    try:
        row = np.asarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("a series is a flat list of numbers, with None or NaN for a gap") from None
    if row.ndim != 1:
        raise ValueError(f"a series is a flat list of numbers, not one of {row.ndim} dimensions")
    return np.where(np.isfinite(row), row, np.nan)


def _as_intervals(intervals: Sequence[tuple[float, float]] | np.ndarray, length: int) -> np.ndarray:
    array = np.asarray(intervals, dtype=float)
    if array.shape != (length, 2):
        raise ValueError(f"intervals are {length} pairs of low and high, one for each value")
    return array
