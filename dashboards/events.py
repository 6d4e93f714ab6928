"""What happened in a history of results: one event for each change, and related changes as one."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dashboards.detect import (
    LOOSE,
    ChangePoint,
    change_points_of,
    estimate_noise,
    relative,
    without_drift,
)
from dashboards.results import History
from dashboards.series import NOT_RUN, OK, STATE_CODE, STATES, Environment, Series, headline, worse

REGRESSION = "regression"
IMPROVEMENT = "improvement"
SAME_CODE = "same code"
STATE = "state"
BOUNDARY = "boundary"
KINDS = (REGRESSION, IMPROVEMENT, SAME_CODE, STATE, BOUNDARY)

# A measured change smaller than this is not worth anybody's time; modelled ones have no least size.
MEASURED_THRESHOLD = 0.01

# A count that grows where a launch got faster and another count fell is what that was bought with.  One that
# means an access outside a buffer is never for sale, and cycles alone, which rest on constants, buy nothing.
NOT_FOR_SALE = frozenset(("out_of_bounds",))

MACHINE_CHANGED = "the compiled code is the same: the machine or the driver changed"
BOUGHT = "the price of a lower modelled time"
BY_EFFECT = "came with what got worse in the same launch"
MODEL_CHANGED = "the compiled code is the same: the model's own reckoning changed"


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one series; `members` are the others that moved with it, in `group_events`.

    The change lies in (`last_good`, `first_bad`]; their columns are `last_good_at` and `first_bad_at`.
    `before`, `after`, `size`, `low`, `high` and `confidence` are those of the change point; a `state` event
    has the two states instead.  `recovered` is the commit that undid it.  `series` is a row of the history.
    """

    kind: str
    series: int
    op: str
    suite: str
    case: str
    impl: str
    metric: str
    machine: str
    environment: str
    modelled: bool
    role: str
    unit: str
    direction: str
    last_good: str
    first_bad: str
    last_good_at: int
    first_bad_at: int
    before: float
    after: float
    size: float
    low: float
    high: float
    confidence: float
    state_before: str
    state_after: str
    code_before: str
    code_after: str
    recovered: str | None
    cause: str | None
    members: tuple[Event, ...] = ()

    @property
    def alarm(self) -> bool:
        """Whether somebody has to act: an op's own implementation got slower or stopped working."""
        return self.role != "twin" and self.kind in (REGRESSION, STATE)

    @property
    def open(self) -> bool:
        return self.recovered is None

    @property
    def series_rows(self) -> tuple[int, ...]:
        """Rows of all series of the event, its own first."""
        return tuple(dict.fromkeys([self.series, *(row for one in self.members for row in one.series_rows)]))


def find_events(history: History, *, thresholds: Mapping[str, float] | None = None) -> list[Event]:
    """Every event of a history, oldest first.  `thresholds` maps patterns of benchmark names to the least
    relative change that counts; the last pattern that matches wins."""
    events = _trades(_changes(history, thresholds or {})) + _states(history) + _boundaries(history)
    return sorted(events, key=lambda one: (one.first_bad_at, one.suite, one.case, one.impl, one.metric))


def group_events(events: Iterable[Event]) -> list[Event]:
    """Events of one kernel that moved together as one event each; in front the largest change of a time."""
    groups: dict[tuple[object, ...], list[list[Event]]] = {}
    for one in sorted(events, key=lambda event: event.first_bad_at):
        key = (one.op, one.impl, one.kind, one.modelled, one.state_after)
        rows = groups.setdefault(key, [])
        if rows and _together(rows[-1], one):
            rows[-1].append(one)
        else:
            rows.append([one])
    return sorted(
        (_lead(group) for rows in groups.values() for group in rows),
        key=lambda one: (one.first_bad_at, one.suite, one.impl),
    )


def least_change(benchmark: str, deterministic: bool, thresholds: Mapping[str, float]) -> float:
    """Least relative change of a benchmark that counts."""
    found = 0.0 if deterministic else MEASURED_THRESHOLD
    for pattern, least in thresholds.items():
        if fnmatch.fnmatchcase(benchmark, pattern):
            found = least
    return found


def jumps_of(history: History, thresholds: Mapping[str, float] | None = None) -> list[list[ChangePoint]]:
    """Change points of every row of a history."""
    found: list[list[ChangePoint]] = [[] for _ in history.series]
    for exact in (True, False):
        rows = [at for at, one in enumerate(history.series) if one.deterministic == exact]
        if not rows:
            continue
        values = history.value[rows]
        intervals = None
        if not exact:
            intervals = np.stack([history.low[rows], history.high[rows]], axis=2)
            beside: dict[Launch, list[int]] = {}
            for row in rows:
                beside.setdefault(_launch(history.series[row]), []).append(row)
            values = np.array([_steadied(history, row, beside) for row in rows])
        jumps = change_points_of(
            values,
            intervals=intervals,
            deterministic=exact,
            direction=[history.series[row].direction for row in rows],
            threshold=[least_change(history.series[row].benchmark, exact, thresholds or {}) for row in rows],
        )
        for row, some in zip(rows, jumps):
            found[row] = some
    return found


Launch = tuple[str, str, str, Environment, str]


def _launch(one: Series) -> Launch:
    return one.benchmark, one.version, one.machine, one.environment, one.case


def _steadied(history: History, row: int, beside: Mapping[Launch, Sequence[int]]) -> np.ndarray:
    """Values of a measured series with the machine's share taken out, where a control tells it.

    Controls are the other implementations of the same launch whose compiled code never changed.
    """
    one, values = history.series[row], history.value[row]
    for other in beside[_launch(one)]:
        codes = history.code[other][np.isfinite(history.value[other])]
        if other != row and codes.size and codes[0] and (codes == codes[0]).all():
            calmer = without_drift(values, history.value[other])
            if calmer is not values:
                return calmer
    return values


def _changes(history: History, thresholds: Mapping[str, float]) -> list[Event]:
    events = []
    for row, jumps in enumerate(jumps_of(history, thresholds)):
        present = np.flatnonzero(~np.isnan(history.value[row]))
        for at, jump in enumerate(jumps):
            index = _at_code_change(history, row, jump.index, present)
            place = int(np.searchsorted(present, index))
            good = int(present[place - 1])
            codes = [history.code_hash(row, good), history.code_hash(row, index)]
            kind, cause = REGRESSION if jump.worse else IMPROVEMENT, None
            if codes[0] and codes[0] == codes[1]:
                kind, cause = SAME_CODE, MODEL_CHANGED if history.series[row].deterministic else MACHINE_CHANGED
            back = _recovery(jump, jumps[at + 1 :])
            events.append(
                _event(
                    history,
                    row,
                    (good, index),
                    kind,
                    jump=jump,
                    recovered=None if back is None else history.commits[back].hash,
                    cause=cause,
                )
            )
    return events


def bought(metric: str, gains: Collection[tuple[str, str]]) -> bool:
    """Whether a metric that got worse is the price of `gains`: (metric, unit) of what got better with it."""
    if metric in NOT_FOR_SALE:
        return False
    return any(headline(unit) for _, unit in gains) and any(not headline(unit) for _, unit in gains)


def by_effect(unit: str, gains: Collection[tuple[str, str]], losses: Collection[tuple[str, str]]) -> bool:
    """Whether what got better is no gain: a count of a launch that got slower or unsafe, and no faster."""
    if headline(unit) or any(headline(other) for _, other in gains):
        return False
    return any(headline(other) or metric in NOT_FOR_SALE for metric, other in losses)


def _trades(events: list[Event]) -> list[Event]:
    """The price of an improvement as a part of it, and counts that fell with a regression as a part of that,
    where both are modelled and of one launch."""
    moved: dict[tuple[object, ...], dict[str, set[tuple[str, str]]]] = {}

    def key(one: Event) -> tuple[object, ...]:
        return one.suite, one.case, one.impl, one.machine, one.environment, one.first_bad_at

    def traded(one: Event) -> Event:
        gains, losses = (moved.get(key(one), {}).get(kind, set()) for kind in (IMPROVEMENT, REGRESSION))
        if one.kind == REGRESSION and bought(one.metric, gains):
            return dataclasses.replace(one, kind=IMPROVEMENT, cause=BOUGHT)
        if one.kind == IMPROVEMENT and by_effect(one.unit, gains, losses):
            return dataclasses.replace(one, kind=REGRESSION, cause=BY_EFFECT)
        return one

    for one in events:
        if one.modelled:
            moved.setdefault(key(one), {}).setdefault(one.kind, set()).add((one.metric, one.unit))
    return [traded(one) if one.modelled else one for one in events]


def _at_code_change(history: History, row: int, index: int, present: np.ndarray) -> int:
    """The one point nearby where the compiled code changed, which is where a measured jump belongs."""
    if history.series[row].deterministic:
        return index
    place = int(np.searchsorted(present, index))
    near = present[max(place - LOOSE - 1, 0) : place + LOOSE + 1]
    codes = history.code[row, near]
    if (codes == 0).any():
        return index
    changed = np.flatnonzero(np.diff(codes)) + 1
    return int(near[changed[0]]) if changed.size == 1 else index


def _recovery(jump: ChangePoint, later: Sequence[ChangePoint]) -> int | None:
    """First later jump after which the level is nearer to that before `jump` than to that after it."""
    for one in later:
        if abs(one.after - jump.before) < abs(one.after - jump.after):
            return one.index
    return None


def _states(history: History) -> list[Event]:
    """An implementation that was ok and is not any more; one event for all metrics of a suite."""
    ok, not_run = STATE_CODE[OK], STATE_CODE[NOT_RUN]
    seen: dict[tuple[object, ...], Event] = {}
    for row, one in enumerate(history.series):
        line = history.state[row]
        ran = np.flatnonzero(line != not_run)
        if not ran.size or (line[ran] == ok).all():
            continue
        for at in np.flatnonzero((line[ran][:-1] == ok) & (line[ran][1:] != ok)):
            good, bad = int(ran[at]), int(ran[at + 1])
            key = (one.suite, one.params, one.machine, one.environment, bad, int(line[bad]))
            if key in seen:
                continue
            back = ran[(ran > bad) & (line[ran] == ok)]
            seen[key] = _event(
                history,
                row,
                (good, bad),
                STATE,
                recovered=history.commits[int(back[0])].hash if back.size else None,
                cause=history.detail(row, bad).reason or None,
            )
    return list(seen.values())


def _boundaries(history: History) -> list[Event]:
    """Where another environment took over, and what that did to each series: no commit is to blame."""
    rows_of: dict[tuple[object, ...], list[int]] = {}
    for row, one in enumerate(history.series):
        if not np.isnan(history.value[row]).all():
            rows_of.setdefault((one.benchmark, one.params, one.machine, one.version), []).append(row)
    events = []
    for rows in rows_of.values():
        if len(rows) < 2:
            continue
        first = {row: int(np.flatnonzero(~np.isnan(history.value[row]))[0]) for row in rows}
        ordered = sorted(rows, key=lambda row: (first[row], history.series[row].environment.pairs))
        for old, new in itertools.pairwise(ordered):
            event = _boundary(history, old, new)
            if event:
                events.append(event)
    return events


def _boundary(history: History, old: int, new: int) -> Event | None:
    before, after = history.value[old], history.value[new]
    both = np.flatnonzero(~np.isnan(before) & ~np.isnan(after))
    start = int(np.flatnonzero(~np.isnan(after))[0])
    series = history.series[new]
    if series.deterministic:
        earlier = np.flatnonzero(~np.isnan(before[: start + 1]))
        at = int(both[0]) if both.size else start
        last = at if both.size else int(earlier[-1]) if earlier.size else -1
        if last < 0 or before[last] == after[at]:
            return None
        jump = _between(at, float(before[last]), float(after[at]), 0.0, series.direction)
    else:
        olds = before[both] if both.size > 2 else before[~np.isnan(before)][-20:]
        news = after[both] if both.size > 2 else after[~np.isnan(after)][:20]
        if min(olds.size, news.size) < 6:
            return None
        noise = [estimate_noise(part[None]) for part in (olds, news)]
        error = float(
            np.sqrt(
                sum(
                    one.sigma[0] ** 2 * (1 + one.rho[0]) / (1 - one.rho[0]) / part.size
                    for one, part in zip(noise, (olds, news))
                )
            )
        )
        levels = float(np.median(olds)), float(np.median(news))
        if abs(levels[1] - levels[0]) < max(4 * error, MEASURED_THRESHOLD * abs(levels[0])):
            return None
        at, last = (int(both[0]),) * 2 if both.size > 2 else (start, max(start - 1, 0))
        jump = _between(at, *levels, 2.58 * error, series.direction)
    versions = history.series[old].environment.versions, series.environment.versions
    names = sorted(set(versions[0]) | set(versions[1]))
    moved = [
        f"{name} {versions[0].get(name, '-')} -> {versions[1].get(name, '-')}"
        for name in names
        if versions[0].get(name) != versions[1].get(name)
    ]
    return _event(history, new, (last, at), BOUNDARY, jump=jump, cause=", ".join(moved))


def _between(index: int, before: float, after: float, error: float, direction: str) -> ChangePoint:
    size = relative(before, after)
    margin = error / abs(before) if before else 0.0
    return ChangePoint(index, before, after, size, size - margin, size + margin, 1.0, worse(size, direction))


def _event(
    history: History,
    row: int,
    at: tuple[int, int],
    kind: str,
    *,
    jump: ChangePoint | None = None,
    recovered: str | None = None,
    cause: str | None = None,
) -> Event:
    series = history.series[row]
    good, bad = at
    nan = float("nan")
    return Event(
        kind=kind,
        series=row,
        op=series.op,
        suite=series.suite,
        case=series.case,
        impl=series.impl,
        metric=series.metric,
        machine=series.machine,
        environment=series.environment.label,
        modelled=series.modelled,
        role=history.role(row),
        unit=series.unit,
        direction=series.direction,
        last_good=history.commits[good].hash,
        first_bad=history.commits[bad].hash,
        last_good_at=good,
        first_bad_at=bad,
        before=jump.before if jump else nan,
        after=jump.after if jump else nan,
        size=jump.size if jump else nan,
        low=jump.low if jump else nan,
        high=jump.high if jump else nan,
        confidence=jump.confidence if jump else 1.0,
        state_before=STATES[history.state[row, good]],
        state_after=STATES[history.state[row, bad]],
        code_before=history.code_hash(row, good),
        code_after=history.code_hash(row, bad),
        recovered=recovered,
        cause=cause,
    )


def _together(group: Sequence[Event], one: Event) -> bool:
    """Whether an event may be the same commit's as a group's: their commit ranges meet."""
    slack = 0 if one.modelled or one.kind == STATE else LOOSE
    return any(
        one.last_good_at - slack < other.first_bad_at and other.last_good_at - slack < one.first_bad_at
        for other in group
    )


def _lead(group: Sequence[Event]) -> Event:
    def rank(one: Event) -> tuple[bool, bool, bool, float, str]:
        known = math.isfinite(one.size)
        return (
            one.cause in (BOUGHT, BY_EFFECT),
            not headline(one.unit),
            not known,
            -abs(one.size) if known else 0.0,
            one.metric,
        )

    ordered = sorted(group, key=rank)
    return dataclasses.replace(ordered[0], members=tuple(ordered[1:]))
