"""The search itself: which commit, or which compiler, changed a number.  Pure; asks an oracle for outcomes.

A line is a sequence of points from the good end (0) to the bad end.  Exact numbers are bisected by value: a point
that equals neither end shows that there is more than one step.  Numbers with noise are told apart by sequential
tests on interleaved runs.  A point without a number is skipped and never blamed; where that leaves several
commits, all of them are the answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dashboards.sequential import deviation, differs, interval, leaning, signed_rank_p
from dashboards.series import NOT_RUN, OK

STEP = "step"
SEVERAL = "more than one step"
NOT_REPRODUCED = "not reproduced"
SAME_CODE = "slower but the compiled code is the same: machine"
UNDECIDED = "cannot be told apart"
NO_BUDGET = "stopped at the limit of runs"
ENDINGS = (STEP, SEVERAL, NOT_REPRODUCED, SAME_CODE, UNDECIDED, NO_BUDGET)

# Steps smaller than this part of the whole change are listed, not searched for.
WORTH = 0.1
# Rounds after which the two ends, or a point and the ends, are looked at.
LOOKS = (6, 8, 10, 12, 16, 20, 24, 32, 40)
MOST_ROUNDS = 24
LEAST_ROUNDS = 2
CONFIRM_ROUNDS = 4
FUTILE_FROM = 16
# A measured change below this part of the value is not looked for.
LEAST_CHANGE = 0.01
FAILED_ROUNDS = 3
# Parts that a gap behind a step is divided into when looking for a recovery.
SCAN = 12


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A commit and a compiler, as places on their axes."""

    commit: int
    compiler: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one evaluation gave: a state, the number where there is one, and what else is known of it."""

    state: str
    value: float = math.nan
    code: str = ""
    reason: str = ""
    findings: tuple[str, ...] = ()
    stored: bool = False
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """A change between `last_good` and `first_bad` (places on the line); `between` could not be measured.

    `size` is relative to `before`; `low` and `high` hold it with the search's confidence, equal for exact numbers.
    `undone`: a later point of the line is back where it was before.
    """

    last_good: int
    first_bad: int
    before: float
    after: float
    size: float
    low: float
    high: float
    between: tuple[int, ...] = ()
    undone: bool = False

    @property
    def exact(self) -> bool:
        return self.first_bad - self.last_good == 1


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search over one line; `main` is the step that counts, first of `steps`."""

    ending: str
    steps: tuple[Step, ...] = ()
    before: float = math.nan
    after: float = math.nan
    low: float = math.nan
    high: float = math.nan
    skipped: tuple[int, ...] = ()
    words: str = ""

    @property
    def main(self) -> Step | None:
        return self.steps[0] if self.steps else None


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a change that goes to one cause: in the number's unit, its interval, and of the whole change."""

    amount: float
    low: float
    high: float
    part: float


@dataclass(frozen=True, slots=True)
class Grid:
    """The change from (first commit, first compiler) to (last, last), split by cause; the parts sum to 1.

    `corners` maps (commit is last, compiler is last) to the number, None where there is none.  `along_commits` is
    the search over commits with compiler number `compiler`, `along_compilers` that over compilers at commit
    number `commit`; None where that axis does nothing.
    """

    ending: str
    corners: Mapping[tuple[int, int], float | None]
    shares: Mapping[str, Share]
    along_commits: Found | None = None
    compiler: int = 0
    along_compilers: Found | None = None
    commit: int = 0
    words: str = ""


COMMIT, COMPILER, INTERACTION = "commit", "compiler", "interaction"


class Spent(Exception):
    """The limit of evaluations is reached."""


Evaluate = Callable[[Point], Outcome]
Stored = Callable[[Point], Outcome | None]
Read = Callable[[Outcome], float | None]


class Counted:
    """An oracle that remembers exact outcomes, takes what is stored first, and stops at a limit."""

    def __init__(self, evaluate: Evaluate, stored: Stored | None = None, limit: int = 1000) -> None:
        self.evaluate, self.stored, self.limit = evaluate, stored or (lambda _: None), limit
        self.count = 0
        self.known: dict[Point, Outcome] = {}
        self.runs: list[tuple[Point, Outcome]] = []

    def peek(self, point: Point) -> Outcome | None:
        """What is known without running anything."""
        if point not in self.known:
            outcome = self.stored(point)
            if outcome is None:
                return None
            self.known[point] = replace(outcome, stored=True)
        return self.known[point]

    def exact(self, point: Point) -> Outcome:
        """The outcome, evaluated once."""
        known = self.peek(point)
        if known is None:
            known = self.known[point] = self.fresh(point)
        return known

    def fresh(self, point: Point) -> Outcome:
        """The outcome of one more run."""
        if self.count >= self.limit:
            raise Spent
        self.count += 1
        outcome = self.evaluate(point)
        self.runs.append((point, outcome))
        return outcome


def number(outcome: Outcome) -> float | None:
    """The value of an outcome that has one."""
    return outcome.value if outcome.state == OK and math.isfinite(outcome.value) else None


def state_reader(good: str, bad: str) -> Read:
    """0 for the good end's state, 1 for the bad end's; any other state tells neither."""
    return lambda outcome: {good: 0.0, bad: 1.0}.get(outcome.state)


def bound(count: int) -> int:
    """Most evaluations for a clean step over `count` commits, without skipped ones."""
    return math.ceil(math.log2(count)) + 2 if count > 0 else 2


def exact_line(oracle: Counted, line: Sequence[Point], read: Read = number) -> Found:
    """Every step of a line that holds a fair part of the change.  Both ends must be readable."""
    last = len(line) - 1
    values: dict[int, float] = {}
    skipped: set[int] = set()

    def take(at: int, outcome: Outcome) -> None:
        value = read(outcome)
        if value is None:
            skipped.add(at)
        else:
            values[at] = value

    for at in (0, last):
        take(at, oracle.exact(line[at]))
    if skipped:
        raise ValueError("an end of the line has no number")
    total = values[last] - values[0]
    for at in range(1, last):
        known = oracle.peek(line[at])
        if known is not None and known.state != NOT_RUN:
            take(at, known)
    spent = False
    while True:
        wanted = _next(values, skipped, total)
        if wanted is None:
            break
        try:
            take(wanted, oracle.exact(line[wanted]))
        except Spent:
            spent = True
            break
    steps = _steps(values, skipped, total)
    found = Found(STEP, steps, values[0], values[last], skipped=tuple(sorted(skipped)))
    size = found_size(total, values[0])
    found = replace(found, low=size, high=size)
    if not steps or total == 0:
        return replace(found, ending=NOT_REPRODUCED)
    if spent:
        return replace(found, ending=NO_BUDGET)
    return found if len(steps) == 1 else replace(found, ending=SEVERAL)


def unjudged_line(found: Found, last: int) -> Found:
    """What a search for the last point that is ok says where nothing is known of the points behind that one, the
    bad end among them: any may have made it bad.  `found` comes from `exact_line` with states."""
    low = max((step.last_good for step in found.steps if step.after == 1.0), default=0)
    between = {at for step in found.steps for at in (step.first_bad, *step.between)} | set(found.skipped)
    step = Step(
        low, last, 0.0, 1.0, math.inf, math.inf, math.inf, tuple(at for at in sorted(between) if low < at < last)
    )  # fmt: skip
    ending = found.ending if found.ending == NO_BUDGET else STEP if step.exact else UNDECIDED
    return replace(found, ending=ending, steps=(step,))


def exact_grid(oracle: Counted, commits: int, compilers: int, read: Read = number) -> Grid:
    """Attribution over `commits` x `compilers` steps, with the culprit on each axis."""
    corners: dict[tuple[int, int], float | None] = {}
    for commit, compiler in ((0, 0), (1, 1), (1, 0), (0, 1)):
        corners[commit, compiler] = read(oracle.exact(Point(commit * commits, compiler * compilers)))
    if corners[0, 0] is None or corners[1, 1] is None:
        raise ValueError("an end of the grid has no number")
    grid = split({key: None if one is None else [one] for key, one in corners.items()}, 0.01)
    return _along(grid, commits, compilers, lambda line: exact_line(oracle, line, read), 0.0)


def noisy_grid(
    oracle: Counted, commits: int, compilers: int, *, error: float = 0.01, least: float = LEAST_CHANGE
) -> Grid:
    """The same for numbers with noise: corners in interleaved rounds, then a search on each axis that counts."""
    order = [(0, 0), (1, 1), (1, 0), (0, 1)]
    points = [Point(commit * commits, compiler * compilers) for commit, compiler in order]
    series: dict[tuple[int, int], list[float] | None] = {key: [] for key in order}
    try:
        for rounds in range(1, MOST_ROUNDS + 1):
            try:
                values = _round(oracle, [p for p, key in zip(points, order) if series[key] is not None], rounds)
            except _Unreadable as missing:
                key = [key for key in order if series[key] is not None][missing.at]
                if key in order[:2]:
                    raise ValueError("an end of the grid has no number") from None
                series[key] = None
                continue
            for key, value in zip([key for key in order if series[key] is not None], values):
                kept = series[key]
                assert kept is not None
                kept.append(value)
            grid = split(series, error / 2)
            decided = all(one.low > 0 or one.high < 0 for one in grid.shares.values())
            if rounds >= 2 * CONFIRM_ROUNDS and (decided or rounds >= FUTILE_FROM):
                break
        return _along(
            grid, commits, compilers, lambda line: noisy_line(oracle, line, error=error / 4, least=least), least
        )
    except Spent:
        return replace(split(series, error), ending=NO_BUDGET)


def split(series: Mapping[tuple[int, int], Sequence[float] | None], error: float) -> Grid:
    """Attribution from the runs of the corners, which lie side by side.

    Without the number of one mixed corner the path through the other is taken, and no interaction can be told.
    """

    def effect(*signed: tuple[int, tuple[int, int]]) -> tuple[float, float, float]:
        rows = [(sign, series[key] or ()) for sign, key in signed]
        count = min(len(row) for _, row in rows)
        sums = [sum(sign * row[at] for sign, row in rows) for at in range(count)]
        if count == 1:
            return sums[0], sums[0], sums[0]
        return interval(sums, error)

    mixed = series.get((1, 0)) is not None, series.get((0, 1)) is not None
    whole = effect((1, (1, 1)), (-1, (0, 0)))
    parts: dict[str, tuple[float, float, float]] = {}
    words = ""
    if mixed[0]:
        parts[COMMIT] = effect((1, (1, 0)), (-1, (0, 0)))
    if mixed[1]:
        parts[COMPILER] = effect((1, (0, 1)), (-1, (0, 0)))
    if all(mixed):
        parts[INTERACTION] = effect((1, (1, 1)), (-1, (1, 0)), (-1, (0, 1)), (1, (0, 0)))
    elif mixed[0]:
        parts[COMPILER] = effect((1, (1, 1)), (-1, (1, 0)))
        words = "the first commit has no number with the last compiler: the interaction counts as the compiler's"
    elif mixed[1]:
        parts[COMMIT] = effect((1, (1, 1)), (-1, (0, 1)))
        words = "the last commit has no number with the first compiler: the interaction counts as the commit's"
    else:
        words = "neither mixed corner has a number: commit and compiler cannot be told apart"
    total = sum(one[0] for one in parts.values())
    shares = {
        name: Share(*one, one[0] / total if total else 0.0)
        for name, one in sorted(parts.items(), key=lambda row: (COMMIT, COMPILER, INTERACTION).index(row[0]))
    }
    middles = {key: None if row is None else interval(row, error)[0] for key, row in series.items()}
    ending = STEP if parts and whole[0] else NOT_REPRODUCED if not whole[0] else UNDECIDED
    return Grid(ending, middles, shares, words=words)


def _along(
    grid: Grid, commits: int, compilers: int, search: Callable[[Sequence[Point]], Found], least: float
) -> Grid:
    """The searches on those edges of the grid that change most in each direction."""
    if not grid.shares:
        return grid

    def edges(axis: int) -> list[tuple[float, int]]:
        found = []
        for other in (0, 1):
            ends = [grid.corners[(end, other) if axis == 0 else (other, end)] for end in (0, 1)]
            if ends[0] is not None and ends[1] is not None:
                found.append((ends[1] - ends[0], other))
        return found

    base = abs(grid.corners[0, 0] or 0.0)
    total = (grid.corners[1, 1] or 0.0) - (grid.corners[0, 0] or 0.0)

    def widest(axis: int) -> int | None:
        some = [one for one in edges(axis) if one[0] and abs(one[0]) > least * base]
        return max(some, key=lambda one: (one[0] * total > 0, abs(one[0]), -one[1]))[1] if some else None

    at, along_commits = widest(0), None
    if at is not None and commits:
        line = [Point(commit, at * compilers) for commit in range(commits + 1)]
        along_commits = search(line)
    place, along_compilers = widest(1), None
    if place is not None and compilers:
        line = [Point(place * commits, compiler) for compiler in range(compilers + 1)]
        along_compilers = search(line)
    found = [one for one in (along_commits, along_compilers) if one is not None]
    # equal ends may hide a commit and a compiler that cancel each other
    ending = grid.ending if not found or grid.ending != NOT_REPRODUCED else SEVERAL
    if any(one.ending == NO_BUDGET for one in found):
        ending = NO_BUDGET
    return replace(
        grid,
        ending=ending,
        along_commits=along_commits,
        compiler=(at or 0) * compilers,
        along_compilers=along_compilers,
        commit=(place or 0) * commits,
    )


def _next(values: Mapping[int, float], skipped: set[int], total: float) -> int | None:
    """The point to evaluate: in the widest change that is not pinned down yet."""
    open_ = []
    for low, high in itertools.pairwise(sorted(values)):
        step = values[high] - values[low]
        inside = [at for at in range(low + 1, high) if at not in skipped]
        if inside and total and step and abs(step) >= WORTH * abs(total):
            open_.append((step * total > 0, abs(step), low, inside))
    if not open_:
        return None
    inside = max(open_, key=lambda one: one[:3])[3]
    return inside[middle(inside, skipped)]


def middle(inside: Sequence[int], skipped: set[int]) -> int:
    """Where to cut so that no answer costs more than halving would, as far from skipped points as that allows."""
    count = len(inside)
    half = 2 ** (math.ceil(math.log2(count + 1)) - 1)
    window = range(max(0, count - half), min(count - 1, half - 1) + 1)
    near = [one for one in skipped if inside[0] - 1 <= one <= inside[-1] + 1]

    def worth(at: int) -> tuple[float, float]:
        away = min((abs(inside[at] - one) for one in near), default=0)
        return away, -abs(at - (count - 1) / 2)

    return max(window, key=worth)


def _steps(values: Mapping[int, float], skipped: set[int], total: float) -> tuple[Step, ...]:
    """Changes between neighbours among the measured points, the one that counts first."""
    steps = []
    order = sorted(values)
    for low, high in itertools.pairwise(order):
        before, after = values[low], values[high]
        if before == after:
            continue
        between = tuple(at for at in range(low + 1, high) if at in skipped)
        later = [values[at] for at in order if at > high]
        undone = any(abs(one - before) < abs(one - after) for one in later)
        size = found_size(after - before, before)
        steps.append(Step(low, high, before, after, size, size, size, between, undone))
    return tuple(sorted(steps, key=lambda one: _rank(one, total)))


def _rank(step: Step, total: float) -> tuple[bool, bool, float, int]:
    change = step.after - step.before
    return change * total < 0, step.undone, -abs(change), -step.first_bad


def found_size(change: float, before: float) -> float:
    """A change relative to the value before it."""
    if before:
        return change / abs(before)
    return 0.0 if change == 0 else math.copysign(math.inf, change)


@dataclass
class _Controls:
    """Two points whose difference is known, run beside every point that is asked about."""

    good: Point
    bad: Point
    levels: list[float]
    differences: list[float]

    @property
    def step(self) -> float:
        return interval(self.differences, 0.01)[0]

    @property
    def spread(self) -> float:
        return deviation(self.differences)


class _Unreadable(Exception):
    """A point gave no number in too many rounds; `at` is its place in the round."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def noisy_line(
    oracle: Counted, line: Sequence[Point], *, error: float = 0.01, least: float = LEAST_CHANGE, depth: int = 2
) -> Found:
    """The step of a line whose numbers have noise; wrong with at most probability `error`.

    Half of `error` goes to the belief that the ends differ, the rest in equal parts to the cuts, the confirmation
    of the step by new runs, and the search for a recovery behind it.
    """
    share = error / 6
    last = len(line) - 1
    controls = _Controls(line[0], line[last], [], [])
    try:
        found = _ends(oracle, controls, error / 2, least)
    except Spent:
        return Found(NO_BUDGET, (_open_step(0, last, controls),))
    except _Unreadable as end:
        return Found(
            UNDECIDED, words=f"the {'good' if end.at == 0 else 'bad'} end failed in {FAILED_ROUNDS} rounds"
        )
    if found is not None:
        return found
    whole = _whole(controls, error)
    if last == 1:
        step = Step(
            0, 1, whole.before, whole.after, found_size(controls.step, whole.before), whole.low, whole.high
        )
        return replace(whole, steps=(step,))
    skipped: set[int] = set()
    bracket = [0, last]
    try:
        for attempt in range(2):
            bracket[:] = 0, last
            slow = {last}
            odd = _cut(oracle, line, controls, bracket, skipped, share / 10**attempt, slow)
            if odd is not None:
                return _halves(oracle, line, whole, odd, skipped, error, least, depth)
            confirmed = _confirm(oracle, line, controls, bracket, skipped, share)
            if confirmed is None:
                continue
            found = _behind(oracle, line, controls, confirmed, skipped, share, whole, slow)
            return replace(found, skipped=tuple(sorted(skipped)))
    except Spent:
        step = replace(_open_step(bracket[0], bracket[1], controls), between=_inside(bracket, skipped))
        return replace(whole, ending=NO_BUDGET, steps=(step,), skipped=tuple(sorted(skipped)))
    return replace(
        whole,
        ending=UNDECIDED,
        steps=(_open_step(0, last, controls),),
        skipped=tuple(sorted(skipped)),
        words="the place that the cuts gave was not confirmed by new runs, twice",
    )


def _ends(oracle: Counted, controls: _Controls, share: float, least: float) -> Found | None:
    """None when the ends differ; else the honest ending."""
    for rounds in range(1, LOOKS[-1] + 1):
        good, bad = _round(oracle, (controls.good, controls.bad), rounds)
        controls.levels.append(good)
        controls.differences.append(bad - good)
        if rounds not in LOOKS:
            continue
        if differs(controls.differences, share / len(LOOKS)):
            return None
        _, low, high = interval(controls.differences, 0.01)
        run = controls.spread / math.sqrt(2)
        blind = max(2 * run, least * abs(interval(controls.levels, 0.01)[0]))
        if rounds >= FUTILE_FROM and low <= 0 <= high and max(-low, high) < blind:
            break
    whole = _whole(controls, 0.01)
    if signed_rank_p(controls.differences) < 0.005:
        return replace(whole, ending=UNDECIDED)
    return replace(whole, ending=NOT_REPRODUCED)


def _round(oracle: Counted, points: Sequence[Point], number_: int, failures: int = FAILED_ROUNDS) -> list[float]:
    """One run of each point, the order turning from round to round; a failed round is made again."""
    while True:
        order = list(range(len(points)))
        turn = number_ % len(order)
        order = order[turn:] + order[:turn]
        if (number_ // len(order)) % 2:
            order.reverse()
        values: dict[int, float] = {}
        for at in order:
            value = number(oracle.fresh(points[at]))
            if value is None:
                failures -= 1
                if failures <= 0 or (len(points) == 3 and at == 1 and number_ == 1):
                    raise _Unreadable(at)
                break
            values[at] = value
        else:
            return [values[at] for at in range(len(points))]


def _whole(controls: _Controls, error: float) -> Found:
    before = interval(controls.levels, error)[0]
    change, low, high = interval(controls.differences, error)
    return Found(STEP, (), before, before + change, low=found_size(low, before), high=found_size(high, before))


def _cut(
    oracle: Counted,
    line: Sequence[Point],
    controls: _Controls,
    bracket: list[int],
    skipped: set[int],
    share: float,
    slow: set[int],
) -> int | None:
    """Narrows `bracket` down; a point that lies on neither side is returned.  Bad points go into `slow`."""
    decisions = math.ceil(math.log2(max(2, bracket[1] - bracket[0]))) + 1
    while True:
        inside = [at for at in range(bracket[0] + 1, bracket[1]) if at not in skipped]
        if not inside:
            return None
        at = inside[middle(inside, skipped)]
        side = _side(oracle, line[at], controls, share / decisions)
        if side is None:
            skipped.add(at)
        elif side == 0:
            return at
        else:
            bracket[0 if side < 0 else 1] = at
            slow |= {at} if side > 0 else set()


def _side(oracle: Counted, point: Point, controls: _Controls, error: float) -> int | None:
    """-1 as the good end, 1 as the bad end, 0 in between, None where that cannot be told."""
    needed = math.log(1 / error)
    above, below = [], []
    for rounds in range(1, MOST_ROUNDS + 1):
        try:
            good, value, bad = _round(oracle, (controls.good, point, controls.bad), rounds)
        except _Unreadable:
            return None
        controls.levels.append(good)
        controls.differences.append(bad - good)
        above.append(value - good)
        below.append(bad - value)
        if rounds < LEAST_ROUNDS:
            continue
        step = controls.step
        places = [(a - b) / 2 * math.copysign(1, step) for a, b in zip(above, below)]
        # a run less the mean of two: 3/2 of a run's variance, where a difference has 2
        lean = leaning(places, abs(step), controls.spread * math.sqrt(0.75))
        if abs(lean) >= needed:
            return 1 if lean > 0 else -1
    apart = [interval(some, error) for some in (above, below)]
    return 0 if all(low > 0 or high < 0 for _, low, high in apart) else None


def _confirm(
    oracle: Counted,
    line: Sequence[Point],
    controls: _Controls,
    bracket: Sequence[int],
    skipped: set[int],
    share: float,
) -> Step | None:
    """The step between the two ends of a bracket, from new runs of just these; None when it is not there."""
    needed = math.log(1 / share)
    levels: list[float] = []
    differences: list[float] = []
    sign = math.copysign(1, controls.step)
    for rounds in range(1, MOST_ROUNDS + 1):
        try:
            good, bad = _round(oracle, (line[bracket[0]], line[bracket[1]]), rounds)
        except _Unreadable:
            return None
        levels.append(good)
        differences.append(bad - good)
        if rounds < CONFIRM_ROUNDS:
            continue
        step = abs(controls.step)
        lean = leaning([one * sign - step / 2 for one in differences], step, controls.spread)
        if lean <= -needed:
            return None
        if lean >= needed and interval(differences, share)[1 if sign > 0 else 2] * sign > 0:
            break
    change, low, high = interval(differences, share)
    if not (low > 0 if sign > 0 else high < 0):
        return None
    before = interval(levels, share)[0]
    size, low, high = (found_size(one, before) for one in (change, low, high))
    return Step(bracket[0], bracket[1], before, before + change, size, low, high, _inside(bracket, skipped))


def _behind(
    oracle: Counted,
    line: Sequence[Point],
    controls: _Controls,
    step: Step,
    skipped: set[int],
    share: float,
    whole: Found,
    slow: set[int],
) -> Found:
    """Whether the step was undone later on and something else made the bad end slow."""
    steps = [step]
    for _ in range(3):
        back = None
        for at in _suspects(oracle, line, controls, steps[0].first_bad, skipped, slow):
            # twice, with new runs: a wrong answer here would move the blame
            if all(_side(oracle, line[at], controls, share / 9) == -1 for _ in range(2)):
                back = at
                break
            slow.add(at)
        if back is None:
            break
        bracket = [back, min(at for at in slow if at > back)]
        later = None
        if _cut(oracle, line, controls, bracket, skipped, share, slow) is None:
            later = _confirm(oracle, line, controls, bracket, skipped, share)
        if later is None:
            # a recovery that leads to no other step is none
            slow.add(back)
            continue
        steps[0] = replace(steps[0], undone=True)
        steps.insert(0, later)
    found = replace(whole, steps=tuple(steps))
    part = sorted(abs(one) for one in (steps[0].low, steps[0].high))
    rest = part[1] < min(abs(whole.low), abs(whole.high))
    if len(steps) > 1 or rest:
        words = "part of the change lies elsewhere" if rest else "an earlier step was undone in between"
        return replace(found, ending=SEVERAL, words=words)
    return found


def _suspects(
    oracle: Counted, line: Sequence[Point], controls: _Controls, start: int, skipped: set[int], slow: set[int]
) -> list[int]:
    """Points behind a step that one run beside the controls puts nearer to the good end, latest first.

    SCAN - 1 places in each gap between points known to be slow: the cuts left gaps of every size, and a recovery
    may hide in any.
    """
    places: set[int] = set()
    for low, high in itertools.pairwise(sorted({start} | {at for at in slow if at > start})):
        places |= {low + round((high - low) * part / SCAN) for part in range(1, SCAN)} - {low, high}
    wanted = sorted(places - skipped - slow)
    found = []
    for first in range(0, len(wanted), 4):
        good = number(oracle.fresh(controls.good))
        values = {at: number(oracle.fresh(line[at])) for at in wanted[first : first + 4]}
        bad = number(oracle.fresh(controls.bad))
        for at, value in values.items():
            if value is None:
                skipped.add(at)
            elif good is None or bad is None or abs(value - good) < abs(value - bad):
                found.append(at)
    return sorted(found, reverse=True)


def _halves(
    oracle: Counted,
    line: Sequence[Point],
    whole: Found,
    odd: int,
    skipped: set[int],
    error: float,
    least: float,
    depth: int,
) -> Found:
    """A point between the levels of the ends: a step on either side of it."""
    steps: list[Step] = []
    for low, high in ((0, odd), (odd, len(line) - 1)):
        part = None
        if depth:
            kept = [at for at in range(low, high + 1) if at not in skipped]
            part = noisy_line(oracle, [line[at] for at in kept], error=error / 2, least=least, depth=depth - 1)
            skipped |= {kept[at] for at in part.skipped}
        if part is None or part.ending not in (STEP, SEVERAL):
            nan = math.nan
            steps.append(Step(low, high, nan, nan, nan, nan, nan, _inside((low, high), skipped)))
            continue
        for one in part.steps:
            ends = kept[one.last_good], kept[one.first_bad]
            moved = replace(one, last_good=ends[0], first_bad=ends[1], between=_inside(ends, skipped))
            steps.append(moved)
    steps.sort(key=lambda one: -abs(one.size) if one.size == one.size else 0.0)
    return replace(whole, ending=SEVERAL, steps=tuple(steps), skipped=tuple(sorted(skipped)))


def _inside(bracket: Sequence[int], skipped: set[int]) -> tuple[int, ...]:
    return tuple(at for at in range(bracket[0] + 1, bracket[1]) if at in skipped)


def _open_step(low: int, high: int, controls: _Controls) -> Step:
    """A range without a step of its own measured yet; its size is that of the ends."""
    if not controls.differences:
        nan = math.nan
        return Step(low, high, nan, nan, nan, nan, nan)
    whole = _whole(controls, 0.01)
    size = found_size(controls.step, whole.before)
    return Step(low, high, whole.before, whole.after, size, whole.low, whole.high)
