"""What the pages share: the kernels of a history, the newest state of each, its events, and stable names."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from dashboards.events import BOUNDARY, REGRESSION, STATE, Event
from dashboards.pages.markup import Markup
from dashboards.repository import Commit
from dashboards.results import Detail, History
from dashboards.series import ABSENT, NOT_RUN, OK, SILENT_STATES, STATE_CODE, STATES, UNSUPPORTED, Series
from dashboards.trust import noise_floors

# The metric that stands for a kernel where only one is shown, best first.
LEADING = ("cycles", "device_time", "device_time_cold", "host_time")
# A measured change is confirmed by this many commits on the new level.
ENOUGH = 3
MODEL_OR_NOT = ((True, "Modelled"), (False, "Measured"))


def slug(*parts: str) -> str:
    """A file name that depends on nothing but `parts`, and differs where they differ."""
    words = [re.sub(r"[^a-z0-9_-]+", "-", part.lower()).strip("-")[:48] for part in parts]
    if words == list(parts) and all(parts):
        return ".".join(words)
    return ".".join([*filter(None, words), digest(*parts)[:8]])


def digest(*parts: str) -> str:
    """Hexadecimal digits that depend on nothing but `parts`."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Kernel:
    """One op with all its series; `rows` are rows of the history, in the order of asv's parameters."""

    family: str
    op: str
    slug: str
    rows: tuple[int, ...]

    @property
    def path(self) -> str:
        return f"kernel/{self.slug}.html"


@dataclass(frozen=True)
class Status:
    """Newest state of one case of one implementation; `row` is its first series, `at` the commit's column."""

    kernel: Kernel
    series: Series
    row: int
    at: int
    role: str
    state: str
    detail: Detail

    @property
    def wrong(self) -> bool:
        """Whether somebody has to act."""
        return self.role != "twin" and self.state != OK and self.state not in SILENT_STATES


@dataclass(frozen=True)
class Other:
    """Newest number of a benchmark that is of no kernel."""

    series: Series
    value: float
    commit: Commit


@dataclass(frozen=True)
class View:
    """Everything a page is made of.  `events` are grouped, newest first; `history` holds kernels alone."""

    history: History
    events: tuple[Event, ...]
    repo: Path | None = None
    notices: tuple[str, ...] = ()
    results: Path | None = None
    kernels: tuple[Kernel, ...] = field(default=())
    others: tuple[Other, ...] = ()

    @functools.cached_property
    def kernel_of(self) -> dict[int, Kernel]:
        return {row: kernel for kernel in self.kernels for row in kernel.rows}

    @functools.cached_property
    def event_rows(self) -> dict[str, Markup]:
        """Lines of lists of events by the event's name: the overview and the list of all share them."""
        return {}

    @functools.cached_property
    def last(self) -> np.ndarray:
        """Newest column of each series that is not `not run`; -1 where there is none."""
        ran = self.history.state != STATE_CODE[NOT_RUN]
        if not ran.shape[1]:
            return np.full(ran.shape[0], -1)
        at = ran.shape[1] - 1 - ran[:, ::-1].argmax(axis=1)
        return np.where(ran.any(axis=1), at, -1)

    @functools.cached_property
    def newest(self) -> dict[tuple[str, bool], int]:
        """Newest column with results, for each machine and kind of number."""
        found: dict[tuple[str, bool], int] = {}
        for row, one in enumerate(self.history.series):
            key = (one.machine, one.modelled)
            found[key] = max(found.get(key, -1), int(self.last[row]))
        return found

    def behind(self, at: int) -> int:
        """How many commits with results are newer than a column."""
        return len(self.history.commits) - 1 - at

    @functools.cached_property
    def noise(self) -> dict[int, float]:
        """Relative change below which a series' run at its machine's newest commit cannot tell one from none."""
        newest = {column for (_, modelled), column in self.newest.items() if not modelled and column >= 0}
        return {
            row: floor.least
            for column in newest
            for row, floor in noise_floors(self.history, column).items()
            if self.last[row] == column
        }

    @functools.cached_property
    def statuses(self) -> tuple[Status, ...]:
        """One for each suite, case, implementation, machine and environment, at its machine's newest commit, or,
        where a run there left the whole suite out, at the last commit that it ran at."""
        history = self.history
        seen: dict[tuple[object, ...], Status] = {}
        for row, one in enumerate(history.series):
            newest = self.shown_at(row)
            if newest < 0 or not one.suite:
                continue
            key = (one.suite, one.params, one.machine, one.environment)
            state = history.state_name(row, newest)
            if state == NOT_RUN and history.detail(row, newest).reason in ("", ABSENT):
                continue  # not asked for, or nothing that this commit has: no state of a kernel
            before = seen.get(key)
            # one metric that failed is a failure of the case
            if before and (before.state != OK or state in (OK, NOT_RUN)):
                continue
            seen[key] = Status(
                self.kernel_of[row], one, row, newest, self.roles[row], state, history.detail(row, newest)
            )
        current = self.current_environments
        return tuple(
            one
            for one in seen.values()
            if one.state != NOT_RUN or (one.series.machine, one.series.modelled, one.series.environment) in current
        )

    def shown_at(self, row: int) -> int:
        """The column whose state stands for a series now."""
        one = self.history.series[row]
        newest = self.newest[one.machine, one.modelled]
        if newest < 0:  # what has never run may have said why, as what is not described yet does
            return len(self.history.commits) - 1
        if (one.machine, one.modelled, one.environment) not in self.current_environments:
            return newest
        still = not self.history.listed or one.benchmark in self.history.listed
        return self._suites_at[one.suite, one.machine, one.environment] if still else newest

    @functools.cached_property
    def _suites_at(self) -> dict[tuple[object, ...], int]:
        """Newest column with results of each suite, machine and environment, or a word of why there are none."""
        found: dict[tuple[object, ...], int] = {}
        for row, one in enumerate(self.history.series):
            at, newest = int(self.last[row]), self.newest[one.machine, one.modelled]
            if at < newest and self.history.detail(row, newest).reason:
                at = newest
            key = one.suite, one.machine, one.environment
            found[key] = max(found.get(key, -1), at)
        return found

    @functools.cached_property
    def left_out(self) -> dict[str, tuple[str, ...]]:
        """Commit -> ops that were left out when their machine measured it, and are shown as they were before."""
        found: dict[str, dict[str, None]] = {}
        for one in self.statuses:
            newest = self.newest[one.series.machine, one.series.modelled]
            if one.at < newest:
                found.setdefault(self.history.commits[newest].hash, {})[one.series.op] = None
        return {commit: tuple(ops) for commit, ops in found.items()}

    @functools.cached_property
    def current_environments(self) -> set[object]:
        """(machine, modelled, environment) of those with a result at their machine's newest commit; all of a
        machine that has none anywhere."""
        return {
            (one.machine, one.modelled, one.environment)
            for row, one in enumerate(self.history.series)
            if self.last[row] == self.newest[one.machine, one.modelled]
        }

    @functools.cached_property
    def roles(self) -> tuple[str, ...]:
        known: dict[tuple[object, ...], str] = {}
        found = []
        for row, one in enumerate(self.history.series):
            key = (one.suite, one.params, one.machine, one.environment)
            if key not in known:
                known[key] = self.history.role(row)
            found.append(known[key] or "op")
        return tuple(found)

    def counts(self, modelled: bool) -> Counter[str]:
        """How many cases of implementations are in each of the seven states now."""
        counted = Counter(dict.fromkeys(STATES, 0))
        counted.update(one.state for one in self.statuses if one.series.modelled == modelled)
        return counted

    @functools.cached_property
    def alarms(self) -> tuple[Event, ...]:
        """Events that somebody has to act on, and that nothing has undone."""
        return tuple(one for one in self.events if one.alarm and one.open)

    @functools.cached_property
    def beside(self) -> dict[tuple[str, str, str], list[Event]]:
        """Events of each suite, implementation and machine."""
        found: dict[tuple[str, str, str], list[Event]] = {}
        for one in self.events:
            found.setdefault((one.suite, one.impl, one.machine), []).append(one)
        return found

    def reason(self, row: int, at: int) -> str:
        """Why a series has the state it has at a column; where no word was kept, what else is known."""
        history, state = self.history, self.history.state_name(row, at)
        kept = history.detail(row, at).reason
        if kept or state == OK:
            return kept
        known = "the run skipped it" if state == UNSUPPORTED else "no result" if state == NOT_RUN else "it ended"
        told = f"{known} and kept no reason"
        others = np.flatnonzero(~np.isin(history.state[row, :at], (STATE_CODE[state], STATE_CODE[NOT_RUN])))
        if not others.size:
            return f"{told}, nor has it ever been anything else"
        last = int(others[-1])
        before = history.detail(row, last).reason
        return (
            f"{told}; {history.state_name(row, last)} at {history.commits[last].hash[:10]}"
            + f": {before}" * bool(before)
        )

    def commit(self, name: str) -> Commit:
        at = self.columns.get(name)
        return Commit(name) if at is None else self.history.commits[at]

    @functools.cached_property
    def columns(self) -> dict[str, int]:
        return {one.hash: at for at, one in enumerate(self.history.commits)}

    @functools.cached_property
    def latest_environment(self) -> dict[tuple[str, str, bool], str]:
        """Name of the environment to show first, for each suite, machine and kind of number."""
        found: dict[tuple[str, str, bool], tuple[int, object, str]] = {}
        for row, one in enumerate(self.history.series):
            key = (one.suite, one.machine, one.modelled)
            rank = (int(self.last[row]), one.environment.pairs, one.environment.label)
            if key not in found or rank > found[key]:  # type: ignore[operator]
                found[key] = rank
        return {key: rank[2] for key, rank in found.items()}

    def is_shown(self, row: int) -> bool:
        """Whether a series belongs to the environment that is shown first."""
        one = self.history.series[row]
        return self.latest_environment[one.suite, one.machine, one.modelled] == one.environment.label


def kernels_of(series: Sequence[Series]) -> tuple[Kernel, ...]:
    """The kernels that series belong to, by family and name."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, one in enumerate(series):
        rows.setdefault((family_of(one), one.op or one.benchmark), []).append(row)
    return tuple(Kernel(family, op, slug(family, op), tuple(at)) for (family, op), at in sorted(rows.items()))


def others_of(history: History) -> tuple[Other, ...]:
    """Newest numbers of what is of no kernel, such as this suite's own speed."""
    found = []
    for row, one in enumerate(history.series):
        at = np.flatnonzero(~np.isnan(history.value[row]))
        if not one.of_kernel and at.size:
            found.append(Other(one, float(history.value[row, at[-1]]), history.commits[int(at[-1])]))
    return tuple(found)


def family_of(series: Series) -> str:
    """`token_pool` of `bench_token_pool.ModelledX.track_y`."""
    module = series.suite.rpartition(".")[0] or series.suite or "benchmarks"
    return module.rpartition(".")[2].removeprefix("bench_").removeprefix("benchmarks_") or "benchmarks"


def faced(event: Event) -> Event:
    """The same event with a leading metric in front, where one moved: time says more than a count."""
    some = (event, *event.members)
    known = [one for one in some if one.metric in LEADING]
    if event.kind == STATE or not known:
        return event
    face = min(known, key=lambda one: (LEADING.index(one.metric), -abs(one.size)))
    others = tuple(dataclasses.replace(one, members=()) if one.members else one for one in some if one is not face)
    return dataclasses.replace(face, members=others)


def day(commit: Commit) -> str:
    """Its date for people; empty where that is not known."""
    return datetime.fromtimestamp(commit.date / 1000, timezone.utc).strftime("%Y-%m-%d") if commit.date else ""


def event_name(event: Event) -> str:
    """A name that stays while the commits, the kernel and the kind of the event stay."""
    # another commit between two measured ones, or another metric, makes it no other event
    parts = (event.suite, event.impl, event.machine, event.kind, event.first_bad, event.state_after)
    return digest(*parts)[:12]


def event_path(event: Event) -> str:
    return f"event/{event_name(event)}.html"


def confirmed(view: View, event: Event) -> tuple[bool, str]:
    """Whether an event can be trusted, and why, in words."""
    if event.modelled:
        return True, "exact: modelled numbers have no noise"
    if event.kind == STATE:
        return True, "a verdict, not a number"
    values = view.history.value[event.series, event.first_bad_at :]
    after = int((~np.isnan(values)).sum())
    sure = f"{event.confidence:.0%} sure"
    if after >= ENOUGH and event.confidence >= 0.9:
        return True, f"{sure}, {ENOUGH} commits or more since"
    return False, f"{sure}, {after} commit{'s' * (after != 1)} since"


def title_of(event: Event) -> str:
    """One line for lists, feeds and page titles."""
    if event.kind == STATE:
        what = f"{event.state_before} → {event.state_after}"
    else:
        what = f"{event.metric} {'modelled' if event.modelled else 'measured'}"
    return f"{event.op} {event.impl}: {what}"


def kind_label(event: Event) -> str:
    """Kind of an event for people."""
    if event.kind == BOUNDARY:
        return "another environment"
    if event.kind == STATE:
        return event.state_after
    if event.kind == REGRESSION:
        return "slower" if event.metric in LEADING else "worse"
    return event.kind


def state_of(event: Event) -> str:
    """Whether somebody still has to act."""
    if not event.open:
        return "undone"
    return "open" if event.kind in (REGRESSION, STATE) else "holds"
