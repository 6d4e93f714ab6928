"""How far a measured run can be trusted: its noise floor, and what happened to its device meanwhile.

Every measured case is timed in two processes, whose memory lies in two places.  What they differ by is noise of
that run; a change below it cannot be told from none.  It only ever makes the gate more careful: noise from run to
run is estimated from the history of the series, once there is some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboards.detect import MIN_POINTS, running_median
from dashboards.results import History
from dashboards.series import NOT_RUN, STATE_CODE

SIGMAS = 3.0  # of the differences within the run
HALF_NORMAL = 0.6745  # median of |x| of a standard normal x
CLOCK_STEP = 0.015  # a change of clock above this explains a change of time
LEVEL = 10  # earlier runs whose clock and whose noise are the usual ones
FEW_RUNS = 4  # earlier runs below which their spread says little
# A shift that a whole run shares is the machine's: said of runs with this many series of this many ops.
LEAST_SERIES, LEAST_OPS = 20, 5
LEAST, SAME_WAY = 0.01, 0.9
ODD = 4.5  # standard deviations from the neighbours that make a spike
NEARLY = 0.8  # a spike of this share of a change is as good as one of its size


@dataclass(frozen=True, slots=True)
class Floor:
    """Least relative change of a series that a run can show.

    least: three standard deviations of what all series of its machine, environment and metric differed from
    themselves, and no less than its own differences, in this run and the LEVEL runs before.  widest: the largest
    difference of any of these series in them."""

    least: float
    widest: float


def noise_floors(history: History, column: int) -> dict[int, Floor]:
    """Floors of the run at a column, by row; rows without a second timing are left out."""
    own: dict[int, list[float]] = {}
    groups: dict[tuple[object, ...], list[float]] = {}
    for row, series in enumerate(history.series):
        if series.deterministic or history.state[row, column] == STATE_CODE[NOT_RUN]:
            continue
        if series.metric not in history.detail(row, column).again:
            continue
        ran = np.flatnonzero(history.state[row, : column + 1] != STATE_CODE[NOT_RUN])[-LEVEL - 1 :]
        apart = [history.detail(row, int(then)).again.get(series.metric) for then in ran]
        own[row] = [math.expm1(min(one, 50.0)) for one in apart if one is not None]
        groups.setdefault(_group(history, row), []).extend(own[row])
    pooled = {key: SIGMAS * float(np.median(some)) / HALF_NORMAL for key, some in groups.items()}
    return {
        row: Floor(max(*some, pooled[_group(history, row)]), max(groups[_group(history, row)]))
        for row, some in own.items()
    }


def doubt(history: History, row: int, first: int, at: int) -> str:
    """Why the points of a series from column `first` to `at` may be the device's doing; empty when one of them is
    free of suspicion."""
    usual = _usual_clock(history, row, first)
    words = ""
    for column in range(at, first - 1, -1):
        if history.state[row, column] == STATE_CODE[NOT_RUN]:
            continue
        device = history.detail(row, column).device
        found = list(device.get("marks", ()))
        clock = _clock(device)
        if usual and clock and abs(clock - usual) > CLOCK_STEP * usual:
            found.append(f"clock {clock:.0f} MHz, {usual:.0f} MHz before")
        if not found:
            return ""
        words = words or "; ".join(found)
    return words


def _usual_clock(history: History, row: int, first: int) -> float | None:
    clocks: list[float] = []
    for column in range(first - 1, -1, -1):
        clock = _clock(history.detail(row, column).device)
        if clock:
            clocks.append(clock)
        if len(clocks) == LEVEL:
            break
    return float(np.median(clocks)) if clocks else None


def _clock(device: object) -> float | None:
    after = device.get("after", {}) if isinstance(device, dict) else {}
    clock = after.get("clock_mhz") if isinstance(after, dict) else None
    return float(clock) if isinstance(clock, int | float) else None


@dataclass(frozen=True, slots=True)
class Shift:
    """A relative change between two runs that nearly all series of a machine and metric share."""

    column: int
    machine: str
    metric: str
    size: float
    ops: int


def without_shifts(history: History, rows: Sequence[int], values: np.ndarray) -> tuple[np.ndarray, list[Shift]]:
    """Measured values of some rows without the shifts that whole runs share, and these shifts.

    A clock that stepped moves everything at once, a commit hardly does: from one run to the next at least LEAST of
    the change has to be common, in nearly all of many series of several ops.  Host times are left alone: the code
    around all kernels is often the same, and a commit that slows it moves them all.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, row in enumerate(rows):
        series = history.series[row]
        groups.setdefault((series.machine, series.environment, series.metric), []).append(place)
    steady = values.copy()
    found = []
    for places in groups.values():
        some = [history.series[rows[place]] for place in places]
        ops = sorted({one.op for one in some})
        if len(ops) < LEAST_OPS or len(places) < LEAST_SERIES or some[0].of_host:
            continue
        op_of = np.array([ops.index(one.op) for one in some])
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(np.where(values[places] > 0, values[places], np.nan))
        before = np.full(len(places), np.nan)
        total = 0.0
        for column in range(logs.shape[1]):
            moves = logs[:, column] - before
            known = np.isfinite(moves)
            here = np.unique(op_of[known])
            if known.sum() >= LEAST_SERIES and here.size >= LEAST_OPS:
                step = float(np.median([np.median(moves[known & (op_of == op)]) for op in here]))
                same_way = float(((moves[known] > 0) == (step > 0)).mean())
                if abs(step) >= LEAST and same_way >= SAME_WAY:
                    total += step
                    found.append(Shift(column, some[0].machine, some[0].metric, math.expm1(step), int(here.size)))
            steady[places, column] /= math.exp(total)
            before = np.where(np.isfinite(logs[:, column]), logs[:, column], before)
    return steady, found


class Spikes:
    """Points of the history that stood off for one run only, by machine and metric."""

    def __init__(self, history: History, rows: Sequence[int], values: np.ndarray) -> None:
        """values: of the rows, up to the last run before the one that is judged."""
        self._off: dict[tuple[object, ...], list[np.ndarray]] = {}
        self._points: dict[tuple[object, ...], int] = {}
        self._series: dict[tuple[object, ...], int] = {}
        by_length: dict[int, list[tuple[int, np.ndarray]]] = {}
        for place, row in enumerate(rows):
            points = values[place][~np.isnan(values[place])]
            self._series[_group(history, row)] = self._series.get(_group(history, row), 0) + 1
            if points.size >= MIN_POINTS:
                by_length.setdefault(points.size, []).append((row, points))
        for several in by_length.values():
            batch = np.array([points for _, points in several])
            middle = running_median(batch, 5)
            apart = np.abs(batch - middle)
            sigma = np.median(np.abs(np.diff(batch, axis=1)), axis=1) * 1.4826 / math.sqrt(2)
            odd = apart > ODD * sigma[:, None]
            for (row, _), off, which, level in zip(several, apart, odd, np.abs(middle)):
                # The newest points may be the first of a new level.
                off, which, level = off[:-2], which[:-2], level[:-2]
                key = _group(history, row)
                self._points[key] = self._points.get(key, 0) + off.size
                self._off.setdefault(key, []).append(off[which] / np.maximum(level[which], 1e-300))

    def expected(self, history: History, row: int, size: float) -> tuple[float, int, int]:
        """How many series of a run are to be expected as far off as `size` by chance, from how often it happened
        before; that count, and of how many points."""
        key = _group(history, row)
        points = self._points.get(key, 0)
        off = np.concatenate(self._off[key]) if self._off.get(key) else np.zeros(0)
        count = int((off >= NEARLY * abs(size)).sum())
        return (count / points * self._series[key] if points else 0.0), count, points


def _group(history: History, row: int) -> tuple[object, ...]:
    series = history.series[row]
    return series.machine, series.environment, series.metric
