"""The gate: is a commit worse than another one, or than its own history?  Runs nothing unless asked to.

Exit codes: 0 nothing worse, 1 regression, 2 wrong or failed, 3 nothing measured, 4 usage or environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from dashboards.asv_config import ConfigError, settings_of
from dashboards.detect import MIN_POINTS, ChangePoint, change_points_of, estimate_noise, newest_alerts, relative
from dashboards.events import (
    BOUGHT,
    IMPROVEMENT,
    MACHINE_CHANGED,
    MODEL_CHANGED,
    REGRESSION,
    SAME_CODE,
    STATE,
    bought,
    least_change,
)
from dashboards.repository import RepositoryError, is_ancestor, resolve, with_same_paths
from dashboards.results import History, ResultsError, load
from dashboards.series import (
    BUILD_FAILED,
    COMPILE_FAILED,
    CRASHED,
    NOT_RUN,
    OK,
    STATE_CODE,
    STATES,
    WRONG,
    Series,
    headline,
    worse,
)
from dashboards.specimen import paths_of
from dashboards.text import change, markdown, plain, value
from dashboards.trust import FEW_RUNS, Floor, Spikes, doubt, noise_floors, without_shifts

NOTHING_WORSE, REGRESSED, FAILED, NOTHING_MEASURED, UNUSABLE = range(5)

SUSPECT = "suspect"
TRADED = "traded"
KNOWN = "already reported"
NOT_CONFIRMED = "not confirmed"
MISSING = "not measured"
STILL = "still failing"
FIXED = "works again"

FAILING = (WRONG, COMPILE_FAILED, CRASHED, BUILD_FAILED)
FORMATS = ("text", "markdown", "json", "junit", "github")

# A comment on a pull request holds 65 536 characters.
MOST_ROWS = 40

# One point alone has to be this many standard deviations off; the fewer points they are estimated from, the more.
ALONE, ALONE_OF_FEW = 4.0, 2.0
# Where spikes are more common than this, one point alone proves nothing.
SPIKY = 0.01
# One point alone proves nothing either where a run of so many series has more than this many spikes by chance.
BY_CHANCE = 0.05
# Without a history of its noise, a series has to differ by this much.
WITHOUT_HISTORY = 0.10
PAIRS_CONFIDENCE_T = {2: 31.8, 3: 6.96, 4: 4.54, 5: 3.75, 6: 3.36, 7: 3.14, 8: 3.0, 9: 2.9, 10: 2.82}

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Runs the benchmarks of a commit once more: (commit, benchmark names) -> {(benchmark, params): value}
Rerun = Callable[[str, Sequence[str]], Mapping[tuple[str, tuple[str, ...]], float]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be said of one series between base and head."""

    verdict: str
    title: str
    op: str
    case: str
    impl: str
    metric: str
    role: str
    machine: str
    environment: str
    modelled: bool
    unit: str
    direction: str
    base: float
    head: float
    size: float
    state_base: str
    state_head: str
    reason: str
    benchmark: str
    params: tuple[str, ...]

    @property
    def alarm(self) -> bool:
        """Whether the gate closes on this: only on an op's own implementation."""
        return self.role != "twin" and self.verdict in (REGRESSION, STATE)


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one check.  `unmeasured` are ops that the base has results of and the head none."""

    base: str
    head: str
    exit_code: int
    compared: int
    measured: int
    states: Mapping[str, int]
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    unmeasured: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        words = {
            NOTHING_WORSE: "nothing worse",
            REGRESSED: "regression",
            FAILED: "wrong or failed",
            NOTHING_MEASURED: "nothing to compare with" if self.measured else "nothing measured",
            UNUSABLE: "cannot be checked",
        }[self.exit_code]
        if self.exit_code == NOTHING_MEASURED and self.compared:
            words = f"not measured at the head: {_some(self.unmeasured)}"
        states = ", ".join(f"{count} {state}" for state, count in self.states.items() if count)
        counts = f"{self.measured} values at the head, {self.compared} compared"
        return f"{words}: {counts} ({states or 'no results'})"


def check(
    history: History,
    head: str,
    base: str | None = None,
    *,
    thresholds: Mapping[str, float] | None = None,
    require_all: bool = False,
    others: bool = False,
    source: str = "",
) -> Report:
    """Compares the results of `head` with those of `base`, or with the history before `head`.

    others: also benchmarks that are of no kernel, such as this suite's own speed.
    source: the commit that the results of `head` are of, where that is another one.
    """
    thresholds = thresholds or {}
    problems = [f"{plain(one.path, 300)}: {plain(one.reason, 300)}" for one in history.problems]
    if not others:
        history = history.only([row for row, one in enumerate(history.series) if one.of_kernel])
    at = history.column(head)
    if at is None or (history.state[:, at] == STATE_CODE[NOT_RUN]).all():
        problems.append(_nothing_of(history, head))
        return Report(base or "", head, NOTHING_MEASURED, 0, 0, {}, (), tuple(problems))
    end = at - 1 if base is None else _base_column(history, base, at, problems)
    findings = []
    measured = compared = 0
    states = dict.fromkeys(STATES, 0)
    verdicts = _measured_verdicts(history, at, end, thresholds, problems, follow=base is None)
    for row, series in enumerate(history.series):
        then = _base_point(history, row, end)
        state = history.state_name(row, at)
        states[state] += 1
        has_value = not math.isnan(history.value[row, at])
        measured += has_value and history.role(row) != "twin"
        earlier = history.state_name(row, then) if then is not None else NOT_RUN
        found = _state_verdict(history, row, at, earlier, state)
        if found is None and has_value and then is not None and earlier == OK:
            compared += 1
            exact = series.deterministic
            found = _exact_verdict(history, row, then, at, thresholds) if exact else verdicts.get(row)
        if found:
            verdict, base_value, size, reason = found
            findings.append(_finding(history, row, at, verdict, base_value, size, earlier, state, reason))
    if not history.series:
        states = {}
    unmeasured = _unmeasured(history, at, end)
    findings = _with_trades(_one_per_state(_one_per_op(findings, unmeasured, source or head)))
    findings.sort(key=lambda one: (not one.alarm, one.verdict, -abs(one.size) if one.size == one.size else 0))
    problems += _high_floors(history, at, thresholds)
    if measured and not compared:
        problems.append(_why_not_compared(history, at, end))
    code = _exit_code(findings, states, compared, require_all, unmeasured)
    return Report(
        base or "", head, code, compared, measured, states, tuple(findings), tuple(problems), tuple(unmeasured)
    )


def _nothing_of(history: History, head: str) -> str:
    """Says that there is nothing of the head, and what would help."""
    ran = np.flatnonzero((history.state != STATE_CODE[NOT_RUN]).any(axis=0))
    nearest = f"; the nearest measured commit is {history.commits[int(ran[-1])].hash[:12]}" if ran.size else ""
    return f"no results of {head[:12]}: ascend-perf run {head[:12]} --every-commit measures it{nearest}"


def _unmeasured(history: History, at: int, end: int) -> dict[str, tuple[str, ...]]:
    """op -> its suites, of ops that were ok at the base, that the suite still has, and that nothing is known of at
    the head: a run that was asked for other ops leaves them so."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, series in enumerate(history.series):
        rows.setdefault((series.suite.rpartition(".")[0], series.op), []).append(row)
    found: dict[str, tuple[str, ...]] = {}
    for (_, op), some in rows.items():
        if any(history.state_name(row, at) != NOT_RUN or history.detail(row, at).reason for row in some):
            continue
        good = [
            row
            for row in some
            if history.role(row) != "twin"
            and (not history.listed or history.series[row].benchmark in history.listed)
            and (then := _base_point(history, row, end)) is not None
            and history.state_name(row, then) == OK
        ]
        if good:
            found[op] = (*found.get(op, ()), *{history.series[row].suite for row in some})
    return found


def _one_per_op(
    findings: Sequence[Finding], unmeasured: Mapping[str, Sequence[str]], commit: str
) -> list[Finding]:
    """One finding for all rows of a suite whose op was not measured at all at `commit`."""
    kept: list[Finding] = []
    gone: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        suite = one.benchmark.rpartition(".")[0]
        if one.verdict == MISSING and suite in unmeasured.get(one.op, ()):
            gone.setdefault((suite, one.machine, one.environment), []).append(one)
        else:
            kept.append(one)
    for (suite, *_), some in gone.items():
        own = next((one for one in some if one.role != "twin"), some[0])
        rows = len({one.params for one in some})
        why = (
            f"{rows} row{'s' * (rows != 1)} at the base, none at the head: "
            f"ascend-perf run {commit[:12]} --every-commit --ops {own.op}"
        )
        kept.append(replace(own, title=suite, case="", impl="", params=(), reason=why))
    return kept


def _some(names: Sequence[str], most: int = 6) -> str:
    """Names in a row, the first ones where they are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(plain(one, 60) for one in names[:most]) + more


def _with_trades(findings: list[Finding]) -> list[Finding]:
    """Counts that are the price of a lower modelled time of the same launch are told and close no gate."""

    def launch(one: Finding) -> tuple[object, ...]:
        return one.benchmark.rpartition(".")[0], one.params, one.machine, one.environment

    gains: dict[tuple[object, ...], set[tuple[str, str]]] = {}
    for one in findings:
        if one.modelled and one.verdict == IMPROVEMENT:
            gains.setdefault(launch(one), set()).add((one.metric, one.unit))
    return [
        replace(one, verdict=TRADED, reason=BOUGHT)
        if one.modelled and one.verdict == REGRESSION and bought(one.metric, gains.get(launch(one), ()))
        else one
        for one in findings
    ]


def _high_floors(history: History, at: int, thresholds: Mapping[str, float]) -> list[str]:
    """One sentence for each metric of which this run cannot show changes as small as were asked for."""
    high: dict[tuple[str, str], list[float]] = {}
    for row, found in noise_floors(history, at).items():
        series, floor = history.series[row], found.least
        if floor > least_change(series.benchmark, series.deterministic, thresholds):
            high.setdefault((series.machine, series.metric), []).append(floor)
    return [
        f"noise floor of {metric} on {plain(machine)}: {len(floors)} series of this run cannot show less than "
        f"{min(floors):.1%} to {max(floors):.1%}"
        for (machine, metric), floors in sorted(high.items())
    ]


def _why_not_compared(history: History, at: int, end: int) -> str:
    """What keeps the head's values apart from all earlier ones."""

    def labels(columns: slice) -> set[str]:
        ran = ~np.isnan(history.value[:, columns]).all(axis=1)
        return {
            f"{history.series[row].environment.label} on {history.series[row].machine}"
            for row in np.flatnonzero(ran)
        }

    now, then = labels(slice(at, at + 1)), labels(slice(0, end + 1))
    if not then:
        return "there is nothing to compare with yet"
    return (
        f"the head was measured with {'; '.join(sorted(now))}, what came before with {'; '.join(sorted(then))}: "
        "another compiler or machine is another series"
    )


def _base_column(history: History, base: str, at: int, problems: list[str]) -> int:
    """Last column that counts as the base; a base without results is stood in for by what came before it."""
    column = history.column(base)
    if column is None or column >= at:
        problems.append(f"the base {base[:12]} is not before the head")
        return -1
    ran = (history.state != STATE_CODE[NOT_RUN]).any(axis=0)
    if ran[column]:
        return column
    earlier = np.flatnonzero(ran[:column])
    if not earlier.size:
        problems.append(f"no results of the base {base[:12]}, nor of anything before it")
        return -1
    stand_in = history.commits[int(earlier[-1])].hash
    problems.append(f"no results of the base {base[:12]}: compared with {stand_in[:12]}, the last before it")
    return int(earlier[-1])


def _base_point(history: History, row: int, end: int) -> int | None:
    """Last column up to the base where the series ran."""
    ran = np.flatnonzero(history.state[row, : end + 1] != STATE_CODE[NOT_RUN])
    return int(ran[-1]) if ran.size else None


Verdict = tuple[str, float, float, str]


def _state_verdict(history: History, row: int, at: int, earlier: str, state: str) -> Verdict | None:
    reason = history.detail(row, at).reason
    nan = math.nan
    if state == NOT_RUN:
        return (MISSING, nan, nan, reason or "no result at the head") if earlier == OK else None
    if state == OK:
        return (FIXED, nan, nan, f"was {earlier}") if earlier in FAILING else None
    if earlier == OK:
        return STATE, nan, nan, reason
    if state in FAILING:
        return (STILL, nan, nan, reason) if earlier in FAILING else (STATE, nan, nan, reason)
    return None


def _exact_verdict(
    history: History, row: int, then: int, at: int, thresholds: Mapping[str, float]
) -> Verdict | None:
    series = history.series[row]
    old, new = float(history.value[row, then]), float(history.value[row, at])
    if math.isnan(old) or old == new:
        return None
    size = relative(old, new)
    if abs(size) < least_change(series.benchmark, series.deterministic, thresholds):
        return None
    if _same_code(history, row, then, at):
        return SAME_CODE, old, size, MODEL_CHANGED
    return (REGRESSION if worse(size, series.direction) else IMPROVEMENT), old, size, ""


def _measured_verdicts(
    history: History, at: int, end: int, thresholds: Mapping[str, float], problems: list[str], *, follow: bool
) -> dict[int, Verdict]:
    """Verdicts of all series with noise, from their history up to the base and the points after it.

    With `follow` the head is one more commit of a line: an alert that it is the first to raise is its own,
    even where the jump lies a few commits back; one that stood already is known.
    """
    rows = [
        row
        for row, series in enumerate(history.series)
        if not series.deterministic and not math.isnan(history.value[row, at])
    ]
    if not rows or end < 0:
        return {}
    values, shifts = without_shifts(history, rows, history.value[rows])
    for shift in shifts:
        if shift.column > end:
            problems.append(
                f"{shift.ops} ops on {plain(shift.machine)} moved together by {change(shift.size)} in "
                f"{shift.metric} at {history.commits[shift.column].hash[:12]}: taken for the machine's doing"
            )
    paced = (history.value[rows] / values)[..., None]
    intervals = np.stack([history.low[rows], history.high[rows]], axis=2) / np.where(np.isnan(paced), 1, paced)
    directions = [history.series[row].direction for row in rows]
    alerts = newest_alerts(values[:, : at + 1], intervals=intervals[:, : at + 1], direction=directions)
    earlier: list[ChangePoint | None] = [None] * len(rows)
    if follow:
        earlier = newest_alerts(values[:, :at], intervals=intervals[:, :at], direction=directions)
    jumps = change_points_of(values[:, : end + 1], intervals=intervals[:, : end + 1])
    floors = _floors(history, at, end)
    spikes = Spikes(history, rows, values[:, : end + 1])
    found = {}
    for place, row in enumerate(rows):
        series = history.series[row]
        past = values[place, : end + 1]
        start = jumps[place][-1].index if jumps[place] else 0
        level_points = past[start:][~np.isnan(past[start:])]
        if not level_points.size:
            continue
        alert = alerts[place]
        floor = floors.get(row, Floor(0.0, 0.0))
        least = max(least_change(series.benchmark, series.deterministic, thresholds), floor.least)
        new = float(values[place, at])
        first = at
        if alert and (follow or alert.index > end) and abs(alert.size) >= least:
            since = f"since {history.commits[alert.index].hash[:12]}"
            kind = KNOWN if earlier[place] else REGRESSION
            first = alert.index
            verdict: Verdict | None = (kind, alert.before, alert.size, since)
        else:
            points = past[~np.isnan(past)]
            bounds = intervals[place, end], intervals[place, at]
            verdict = _single(points, level_points, new, series.direction, least, bounds)
        if verdict and verdict[0] == REGRESSION:
            why = doubt(history, row, first, at)
            if not why and first == at:
                often, count, points_before = spikes.expected(history, row, verdict[2])
                if often > BY_CHANCE:
                    why = f"{count} of {points_before} earlier points were as far off for one run"
                elif (past_runs := int((~np.isnan(past)).sum())) < FEW_RUNS and abs(verdict[2]) <= floor.widest:
                    why = (
                        f"{past_runs} earlier run{'s' if past_runs > 1 else ''} only, and series of this machine "
                        f"differ by up to {floor.widest:.1%} from one process to the next"
                    )
            if why:
                verdict = (SUSPECT, *verdict[1:3], f"{verdict[3]}; {why}")
        if verdict and verdict[0] not in (SUSPECT, KNOWN):
            ran = np.flatnonzero(~np.isnan(past))
            if _same_code(history, row, int(ran[-1]), at):
                verdict = (SAME_CODE, *verdict[1:3], MACHINE_CHANGED)
        if verdict:
            found[row] = verdict
    return found


def _floors(history: History, at: int, end: int) -> dict[int, Floor]:
    """What both runs can show, by row: the head's, and the last one's up to the base."""
    found = dict(noise_floors(history, at))
    bases = {row: then for row in found if (then := _base_point(history, row, end)) is not None}
    for then in set(bases.values()):
        floors = noise_floors(history, then)
        for row, column in bases.items():
            if column == then:
                other = floors.get(row, found[row])
                found[row] = Floor(max(found[row].least, other.least), max(found[row].widest, other.widest))
    return found


def _single(
    points: np.ndarray,
    level_points: np.ndarray,
    new: float,
    direction: str,
    least: float,
    bounds: tuple[np.ndarray, np.ndarray],
) -> Verdict | None:
    """What one new point says: it has to stand out of the noise of its history, spikes included."""
    level = float(np.median(level_points))
    size = relative(level, new)
    if abs(size) < least:
        return None
    bad = worse(size, direction)
    if points.size < MIN_POINTS:
        (old_low, old_high), (new_low, new_high) = bounds
        apart = bool(new_low > old_high or new_high < old_low)
        words = "intervals apart, no history of its noise" if apart else "no history of its noise"
        if apart and abs(size) >= WITHOUT_HISTORY:
            return (REGRESSION if bad else IMPROVEMENT), level, size, words
        return (SUSPECT, level, size, words) if bad else None
    noise = estimate_noise(points[None])
    deviation = float(noise.sigma[0]) * math.sqrt(1 + 1 / level_points.size)
    if abs(new - level) < ALONE * (1 + ALONE_OF_FEW / points.size) * deviation:
        return None
    off = f"{abs(new - level) / deviation:.1f} standard deviations off"
    if noise.spikes[0] > max(SPIKY, 1.5 / (points.size + 50)):
        return (SUSPECT, level, size, f"{off}, but the series has spikes") if bad else None
    return (REGRESSION if bad else IMPROVEMENT), level, size, f"one point, {off}"


def _same_code(history: History, row: int, then: int, at: int) -> bool:
    code = history.code_hash(row, then)
    return bool(code) and code == history.code_hash(row, at)


def _finding(
    history: History,
    row: int,
    at: int,
    verdict: str,
    base_value: float,
    size: float,
    earlier: str,
    state: str,
    reason: str,
) -> Finding:
    series: Series = history.series[row]
    return Finding(
        verdict=verdict,
        title=series.title,
        op=series.op,
        case=series.case,
        impl=series.impl,
        metric=series.metric,
        role=history.role(row),
        machine=series.machine,
        environment=series.environment.label,
        modelled=series.modelled,
        unit=series.unit,
        direction=series.direction,
        base=base_value,
        head=float(history.value[row, at]),
        size=size,
        state_base=earlier,
        state_head=state,
        reason=reason,
        benchmark=series.benchmark,
        params=series.params,
    )


def _one_per_state(findings: Sequence[Finding]) -> list[Finding]:
    """A state holds for a whole suite, so one finding stands for all its metrics."""
    kept: dict[tuple[object, ...], Finding] = {}
    for one in findings:
        whole = one.verdict in (STATE, STILL, FIXED, MISSING)
        key = (
            one.verdict,
            one.benchmark.rpartition(".")[0] if whole else one.benchmark,
            one.params,
            one.machine,
            one.environment,
            one.state_head,
        )
        kept.setdefault(key, one)
    return list(kept.values())


def _exit_code(
    findings: Sequence[Finding],
    states: Mapping[str, int],
    compared: int,
    require_all: bool,
    unmeasured: Collection[str],
) -> int:
    alarms = [one for one in findings if one.alarm]
    missing = [one for one in findings if one.verdict == MISSING and one.role != "twin"]
    if any(one.verdict == STATE for one in alarms) or (require_all and missing):
        return FAILED
    if alarms:
        return REGRESSED
    if not compared:
        return FAILED if any(states.get(state, 0) for state in FAILING) else NOTHING_MEASURED
    return NOTHING_MEASURED if unmeasured else NOTHING_WORSE


def confirm(
    report: Report,
    rerun: Rerun,
    rounds: int,
    *,
    thresholds: Mapping[str, float],
    require_all: bool = False,
) -> Report:
    """Decides the measured alarms and suspects of a report anew, from pairs run one after the other.

    The order within a pair changes from round to round, so that a drift of the machine cancels.
    """
    doubtful = [one for one in report.findings if one.verdict in (REGRESSION, SUSPECT) and not one.modelled]
    if not doubtful or not report.base:
        return report
    names = sorted({one.benchmark for one in doubtful})
    pairs: dict[tuple[str, tuple[str, ...]], list[tuple[float, float]]] = {}
    for number in range(rounds):
        order = (report.base, report.head) if number % 2 == 0 else (report.head, report.base)
        values = {commit: rerun(commit, names) for commit in order}
        for key, old in values[report.base].items():
            new = values[report.head].get(key, math.nan)
            if not (math.isnan(old) or math.isnan(new)):
                pairs.setdefault(key, []).append((old, new))
    findings = []
    for one in report.findings:
        if one not in doubtful:
            findings.append(one)
            continue
        got = pairs.get((one.benchmark, one.params), [])
        least = least_change(one.benchmark, one.modelled, thresholds)
        verdict, size, words = decide_pairs(got, least=least, direction=one.direction)
        if verdict is None and len(got) < 2:
            findings.append(replace(one, reason=f"{one.reason}; not confirmed: {words}"))
        else:
            findings.append(replace(one, verdict=verdict or NOT_CONFIRMED, size=size, reason=words))
    code = _exit_code(findings, report.states, report.compared, require_all, report.unmeasured)
    return replace(report, findings=tuple(findings), exit_code=code)


def decide_pairs(
    pairs: Sequence[tuple[float, float]], *, least: float, direction: str
) -> tuple[str | None, float, str]:
    """Verdict, mean relative change and reason of pairs (base, head): 99 % sure, and large enough."""
    ratios = [math.log(new / old) for old, new in pairs if old > 0 and new > 0]
    if len(ratios) < 2:
        return None, math.nan, f"{len(ratios)} usable pairs, two are needed"
    count = len(ratios)
    mean = sum(ratios) / count
    deviation = math.sqrt(sum((one - mean) ** 2 for one in ratios) / (count - 1))
    margin = PAIRS_CONFIDENCE_T.get(count, 2.8) * deviation / math.sqrt(count)
    size = math.exp(mean) - 1
    words = f"{count} pairs: {change(size)}"
    if abs(mean) <= margin or abs(size) < least or size == 0:
        return None, size, words
    return (REGRESSION if worse(size, direction) else IMPROVEMENT), size, words


def asv_rerun(config: Path) -> Rerun:
    """Runs benchmarks once more with asv, into a results folder of its own that is thrown away."""

    def rerun(commit: str, names: Sequence[str]) -> dict[tuple[str, tuple[str, ...]], float]:
        settings = settings_of(config)
        with tempfile.TemporaryDirectory() as folder:
            settings["results_dir"] = folder
            handle, name = tempfile.mkstemp(prefix=".asv-confirm-", suffix=".json", dir=config.parent)
            try:
                with os.fdopen(handle, "w") as out:
                    json.dump(settings, out)
                pattern = "^(" + "|".join(re.escape(one) for one in names) + r")($|\()"
                command = ["asv", "--config", name, "run", "--bench", pattern, "--show-stderr", f"{commit}^!"]
                done = subprocess.run(
                    [sys.executable, "-m", *command], cwd=config.parent, stdout=sys.stderr, check=False
                )
                history = load(folder, cache=None)
            finally:
                Path(name).unlink(missing_ok=True)
            at = history.column(commit)
            if at is None:
                raise CheckError(f"asv ended with {done.returncode} and measured nothing of {commit[:12]}")
            return {
                (one.benchmark, one.params): float(history.value[row, at])
                for row, one in enumerate(history.series)
            }

    return rerun


class CheckError(Exception):
    """The check cannot be made; the message says what to do."""


def render(report: Report, form: str) -> str:
    """The report in one of FORMATS."""
    return {
        "text": _as_text,
        "markdown": _as_markdown,
        "json": _as_json,
        "junit": _as_junit,
        "github": _as_github,
    }[form](report)


def _line(one: Finding) -> str:
    """One finding as a sentence without markup; untrusted words still need the format's own escapes."""
    kind = "modelled" if one.modelled else "measured"
    twin = " (twin, for information)" if one.role == "twin" else ""
    if one.size == one.size:
        what = f"{value(one.base, one.unit)} -> {value(one.head, one.unit)}, {change(one.size)}, {kind}"
    else:
        what = f"{one.state_base} -> {one.state_head}"
    reason = f": {plain(one.reason, 1000)}" if one.reason else ""
    return f"{one.verdict}: {plain(one.title)}{twin}: {what}{reason} [{plain(one.machine)}]"


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """One finding a launch and verdict for people: its time if that moved, with the number of other metrics."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for one in findings:
        suite = one.benchmark.rpartition(".")[0]
        key = (one.verdict, one.role, suite, one.params, one.machine, one.environment)
        groups.setdefault(key, []).append(one)
    folded = []
    for some in groups.values():
        first = min(some, key=lambda one: (not headline(one.unit), not math.isfinite(one.size)))
        more = f"and {len(some) - 1} more metrics" if len(some) > 1 else ""
        folded.append(replace(first, reason="; ".join(filter(None, (first.reason, more)))))
    return folded


def _as_text(report: Report) -> str:
    base = f", base {report.base[:12]}" if report.base else ""
    lines = [report.summary, f"head {report.head[:12]}{base}"]
    lines += [("! " if one.alarm else "  ") + _line(one) for one in _folded(report.findings)]
    if report.problems:
        lines += ["left out or noted:", *(f"  {plain(one, 1000)}" for one in report.problems)]
    return "\n".join(lines)


def _as_markdown(report: Report) -> str:
    sign = {NOTHING_WORSE: "✅", REGRESSED: "❌", FAILED: "❌"}.get(report.exit_code, "⚠️")
    lines = [f"### {sign} {markdown(report.summary)}", ""]
    lines.append(
        f"Head `{plain(report.head)[:12]}`" + (f", base `{plain(report.base)[:12]}`" if report.base else "")
    )
    for title, some in (
        ("To be looked at", [one for one in _folded(report.findings) if one.alarm]),
        ("For information", [one for one in _folded(report.findings) if not one.alarm]),
    ):
        if not some:
            continue
        lines += ["", f"#### {title}", "", "| | benchmark | base | head | change | why |", "|-|-|-|-|-|-|"]
        for one in some[:MOST_ROWS]:
            number = one.size == one.size
            twin, modelled = " (twin)" * (one.role == "twin"), ", modelled" * one.modelled
            cells = [
                one.verdict + twin + modelled,
                one.title,
                value(one.base, one.unit) if number else one.state_base,
                value(one.head, one.unit) if number else one.state_head,
                change(one.size),
                one.reason,
            ]
            lines.append("| " + " | ".join(markdown(cell, 300) for cell in cells) + " |")
        if len(some) > MOST_ROWS:
            lines += ["", f"and {len(some) - MOST_ROWS} more"]
    if report.problems:
        lines += ["", "<details><summary>Left out or noted</summary>", ""]
        lines += [f"- {markdown(one, 300)}" for one in report.problems[:MOST_ROWS]]
        if len(report.problems) > MOST_ROWS:
            lines += [f"- and {len(report.problems) - MOST_ROWS} more"]
        lines += ["", "</details>"]
    return "\n".join(lines)


def _as_json(report: Report) -> str:
    def clean(one: object) -> object:
        if isinstance(one, float) and not math.isfinite(one):
            return None
        if isinstance(one, Mapping):
            return {key: clean(item) for key, item in one.items()}
        if isinstance(one, (list, tuple)):
            return [clean(item) for item in one]
        return one

    data = {"version": 1, "summary": report.summary, **asdict(report)}
    for row, one in zip(data["findings"], report.findings):
        row["alarm"] = one.alarm
    return json.dumps(clean(data), indent=1, allow_nan=False)


def _as_junit(report: Report) -> str:
    alarms = [one for one in report.findings if one.alarm]
    skipped = [one for one in report.findings if one.verdict in (MISSING, SUSPECT)]
    unusable = report.exit_code in (NOTHING_MEASURED, UNUSABLE)
    states = sum(one.verdict == STATE for one in alarms)
    suite = ElementTree.Element(
        "testsuite",
        name="ascend-perf check",
        tests=str(max(report.compared + states, len(report.findings), 1)),
        failures=str(len(alarms)),
        errors=str(int(unusable)),
        skipped=str(len(skipped)),
    )
    if unusable:
        case = ElementTree.SubElement(suite, "testcase", classname="ascend-perf", name="results")
        ElementTree.SubElement(case, "error", message=_xml(report.summary))
    for one in report.findings:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_xml(plain(one.benchmark)), name=_xml(plain(one.title))
        )
        if one.alarm:
            ElementTree.SubElement(case, "failure", type=one.verdict, message=_xml(_line(one)))
        elif one in skipped:
            ElementTree.SubElement(case, "skipped", message=_xml(_line(one)))
        else:
            ElementTree.SubElement(case, "system-out").text = _xml(_line(one))
    if not report.findings and not unusable:
        ElementTree.SubElement(suite, "testcase", classname="ascend-perf", name=_xml(report.summary))
    if report.problems:
        words = "\n".join(plain(one, 1000) for one in report.problems)
        ElementTree.SubElement(suite, "system-err").text = _xml(words)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode")


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


def _as_github(report: Report) -> str:
    lines = []
    findings = _folded(report.findings)
    for one in findings[:MOST_ROWS]:
        level = "error" if one.alarm else "warning" if one.verdict in (MISSING, SUSPECT, STILL) else "notice"
        lines.append(f"::{level} title={_property(one.verdict)}::{_message(_line(one))}")
    left = max(len(findings) - MOST_ROWS, 0) + max(len(report.problems) - MOST_ROWS, 0)
    if left:
        lines.append(f"::notice title=more::{left} more in the other formats of this report")
    for problem in report.problems[:MOST_ROWS]:
        lines.append(f"::notice title=left out::{_message(plain(problem, 300))}")
    level = "notice" if report.exit_code == NOTHING_WORSE else "error"
    lines.append(f"::{level} title=ascend-perf check::{_message(report.summary)}")
    return "\n".join(lines)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


EXAMPLES = """examples:
  ascend-perf check --base main --head HEAD
  ascend-perf check                                          HEAD against the history before it
  ascend-perf check --base main --format markdown --output perf.md
  ascend-perf check --base main --confirm 6                  measured alarms again, in six pairs
exit codes: 0 nothing worse, 1 regression, 2 wrong or failed, 3 nothing measured, 4 usage or environment"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("--head", default="HEAD", help="commit to check (default HEAD)")
    parser.add_argument("--base", help="commit to compare with; without it, the history before the head")
    parser.add_argument(
        "--results", type=Path, help="asv results folder (default: that of the configuration, else .asv/results)"
    )
    parser.add_argument("--repo", type=Path, default=Path("."), help="git repository of the commits")
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument("--output", type=Path, help="write the report there instead of to standard output")
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="[PATTERN=]PERCENT",
        help="least change that counts, for benchmarks whose name matches; may be repeated",
    )
    parser.add_argument(
        "--confirm",
        type=int,
        default=0,
        metavar="N",
        help="run measured alarms again, N pairs of base and head",
    )
    parser.add_argument("--config", type=Path, help="asv configuration (default REPO/asv.conf.json)")
    parser.add_argument("--require-all", action="store_true", help="a series without a result at the head fails")
    parser.add_argument(
        "--others",
        action="store_true",
        help="also benchmarks that are of no kernel, such as this suite's own speed",
    )
    parser.add_argument("--no-cache", action="store_true", help="read every result file anew")


def run(args: argparse.Namespace) -> int:
    """Checks and prints; returns the exit code."""
    try:
        report = _checked(args)
    except (RepositoryError, ResultsError, CheckError) as error:
        report = Report(args.base or "", args.head, UNUSABLE, 0, 0, {}, (), (str(error),))
        print(f"ascend-perf check: {plain(str(error), 1000)}", file=sys.stderr)
    text = render(report, args.format)
    if args.output:
        try:
            args.output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            print(f"ascend-perf check: {args.output}: {error.strerror}", file=sys.stderr)
            return UNUSABLE
    else:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
            sys.stdout.flush()
    return report.exit_code


def _checked(args: argparse.Namespace) -> Report:
    thresholds = parse_thresholds(args.threshold)
    if args.confirm < 0 or args.confirm == 1:
        raise CheckError("--confirm takes 0 or at least 2 pairs")
    if args.confirm and not args.base:
        raise CheckError("--confirm compares two commits: give --base too")
    head = resolve(args.repo, args.head)
    base = resolve(args.repo, args.base) if args.base else None
    if base == head:
        raise CheckError("base and head are the same commit")
    config = args.config or args.repo / "asv.conf.json"
    history = load(args.results or _results_of(config), args.repo, head=head, base=base, cache=not args.no_cache)
    other = stand_in(history, args.repo, config, head)
    measured = head
    if other and base:
        # what is only the head's is taken out of the line before it, where it would count twice
        history = history.with_results_of(head, other, leave=is_ancestor(args.repo, other, base))
    elif other:
        measured = other
    report = check(
        history, measured, base, thresholds=thresholds, require_all=args.require_all, others=args.others,
        source=other or "",
    )  # fmt: skip
    if other:
        words = f"no results of the head {head[:12]}: it has the kernels of {other[:12]}, whose results stand in"
        report = replace(report, head=head, problems=(*report.problems, words))
    if args.confirm:
        if not config.is_file():
            raise CheckError(f"no asv configuration to confirm with: {config}")
        rerun = asv_rerun(config.resolve())
        report = confirm(report, rerun, args.confirm, thresholds=thresholds, require_all=args.require_all)
    return report


def _results_of(config: Path) -> Path:
    """The results folder that a configuration names, `.asv/results` where there is none."""
    from dashboards.run import results_folder

    return results_folder(str(config)) if config.is_file() else Path(".asv/results")


def stand_in(history: History, repo: Path, config: Path, head: str) -> str | None:
    """The newest measured commit with the kernels of a head that has no results itself; None where it has some,
    and where there is no such commit.  Which paths are the kernels is up to the configuration, as for `run`."""
    of_kernels = [row for row, one in enumerate(history.series) if one.of_kernel]
    some = (history.state[of_kernels] != STATE_CODE[NOT_RUN]).any(axis=0)
    ran = {commit.hash for commit, measured in zip(history.commits, some) if measured}
    if head in ran or not config.is_file():
        return None
    try:
        paths = paths_of(settings_of(config))
    except ConfigError:
        return None
    return next((one for one in with_same_paths(repo, head, paths) if one in ran), None) if paths else None


def parse_thresholds(texts: Sequence[str]) -> dict[str, float]:
    """`5` or `bench_token_pool.*=5`, in percent."""
    found = {}
    for text in texts:
        pattern, _, percent = text.rpartition("=")
        try:
            number = float(percent)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise CheckError(f"not a threshold: {text!r}, expected PERCENT or PATTERN=PERCENT")
        found[pattern or "*"] = number / 100
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ascend-perf check", description=__doc__.splitlines()[0])
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except SystemExit as stop:
        return UNUSABLE if stop.code else 0


if __name__ == "__main__":
    sys.exit(main())
