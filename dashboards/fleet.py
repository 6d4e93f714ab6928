"""What a fleet has to do and in which order: pure reckoning, without machines.

A task is one commit with one compiler on one machine.  Hosts without a device share one machine name, since a
modelled number is the same on all of them.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from dashboards.events import IMPROVEMENT, REGRESSION, STATE, find_events
from dashboards.results import History
from dashboards.series import COMPILERS, NOT_RUN, STATE_CODE, Environment, Series

# What the names of machines without a device begin with.
MODELLED = "modelled-"
COMPILER = "ascendnpu-ir"
ASSUMED_SECONDS = 60.0
ATTEMPTS = 3
# A node that fails this many tasks one after the other, none of them well, gets no more.
NODE_FAILURES = 3
NEWEST, SUSPECT, FAR, FILLING = 0, 1, 2, 3


class Task(NamedTuple):
    """A commit to be measured.  `compiler` is an ascendnpu-ir version, empty on machines without one."""

    commit: str
    compiler: str
    machine: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one task at a time: cores of a node, or a device.  `name` is its own."""

    name: str
    node: str
    machine: str
    compilers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one task; `known` says how many recorded runs the number rests on."""

    seconds: float
    known: int


def measured(history: History, versions: Mapping[str, str]) -> set[Task]:
    """Tasks with results.  `versions` are those that decide a modelled number; other ones do not count."""
    found: dict[tuple[str, str], np.ndarray] = {}
    for row, one in enumerate(history.series):
        if not _counts(one, versions):
            continue
        ran = history.state[row] != STATE_CODE[NOT_RUN]
        key = one.machine, one.environment.get(COMPILER)
        found[key] = found[key] | ran if key in found else ran
    return {
        Task(history.commits[at].hash, compiler, machine)
        for (machine, compiler), ran in found.items()
        for at in np.flatnonzero(ran)
    }


def environments_in(history: History, versions: Mapping[str, str]) -> dict[tuple[str, str], set[Environment]]:
    """(machine, compiler) -> environments whose results count for it; `versions` as in `measured`."""
    found: dict[tuple[str, str], set[Environment]] = {}
    for one in history.series:
        if _counts(one, versions):
            found.setdefault((one.machine, one.environment.get(COMPILER)), set()).add(one.environment)
    return found


def _counts(series: Series, versions: Mapping[str, str]) -> bool:
    """Whether a series is made with today's model and triton-ascend, or is a device's own."""
    fixed = {name: one for name, one in versions.items() if name in COMPILERS and name != COMPILER}
    given = series.environment.versions
    return not series.machine.startswith(MODELLED) or all(given.get(name) == fixed[name] for name in fixed)


def suspected(history: History) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """(machine, compiler) -> pairs of commits between which a number or a state changed."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for event in find_events(history):
        if event.kind in (REGRESSION, IMPROVEMENT, STATE):
            series = history.series[event.series]
            key = series.machine, series.environment.get(COMPILER)
            found.setdefault(key, set()).add((event.last_good, event.first_bad))
    return found


def arrange(
    wanted: Sequence[int], known: Collection[int], suspects: Iterable[tuple[int, int]] = (), newest: int = 1
) -> list[tuple[int, int]]:
    """(stage, commit) in the order of work.  Commits are their places in the history, oldest 0.

    First the newest ones, then the middle of each span with a suspected step in it, then the far end and the
    middles of the widest gaps, so that the next step is suspected early.  `known` are measured or under way.
    """
    everything, walls = sorted(set(wanted)), set(known)
    order: list[tuple[int, int]] = []

    def take(stage: int, one: int) -> None:
        order.append((stage, one))
        walls.add(one)

    for one in reversed(everything[max(0, len(everything) - newest) :]):
        if one not in walls:
            take(NEWEST, one)
    left = [one for one in everything if one not in walls]
    bounds = sorted(set(suspects))
    spans: list[list[int]] = []
    for good, bad in bounds:
        spans += _runs([one for one in left if good < one < bad], walls)
    for one in _middles(spans):
        if one not in walls:
            take(SUSPECT, one)
    left = [one for one in left if one not in walls]
    if left and not any(one < left[0] for one in walls):
        take(FAR, left[0])
    for one in _middles(_runs(left[1:] if left and left[0] in walls else left, walls)):
        take(FILLING, one)
    return order


def _runs(left: Sequence[int], walls: Collection[int]) -> list[list[int]]:
    """Stretches of `left` with none of `walls` in between."""
    fences = sorted(walls)
    runs: list[list[int]] = []
    at = 0
    for one in left:
        fresh = not runs
        while at < len(fences) and fences[at] < one:
            at += 1
            fresh = True
        if fresh or not runs:
            runs.append([])
        runs[-1].append(one)
    return runs


def _middles(runs: Iterable[list[int]]) -> Iterator[int]:
    """Every commit of the runs: always the middle of the widest, of two alike the newer."""
    heap = [(-len(run), -run[-1], run) for run in runs if run]
    heapq.heapify(heap)
    while heap:
        _, _, run = heapq.heappop(heap)
        middle = len(run) // 2
        yield run[middle]
        for half in (run[:middle], run[middle + 1 :]):
            if half:
                heapq.heappush(heap, (-len(half), -half[-1], half))


@dataclass(frozen=True)
class Backlog:
    """Everything asked for: commits oldest first, and (machine, compiler) pairs."""

    commits: Sequence[str]
    environments: Sequence[tuple[str, str]]
    newest: int = 1

    def order(
        self,
        known: Collection[Task],
        suspects: Mapping[tuple[str, str], Iterable[tuple[str, str]]],
        place: Mapping[str, int],
    ) -> list[tuple[int, Task]]:
        """(stage, task) of what is missing in the order of work.  `place`: each commit's place in the history."""
        wanted = [place[one] for one in self.commits]
        name = {place[one]: one for one in self.commits}
        had: dict[tuple[str, str], set[int]] = {}
        for task in known:
            if task.commit in place:
                had.setdefault((task.machine, task.compiler), set()).add(place[task.commit])
        ranked: list[tuple[int, int, int, Task]] = []
        for number, environment in enumerate(self.environments):
            machine, compiler = environment
            spans = [
                (place[good], place[bad])
                for good, bad in suspects.get(environment, ())
                if good in place and bad in place
            ]
            for at, (stage, one) in enumerate(arrange(wanted, had.get(environment, ()), spans, self.newest)):
                ranked.append((stage, at, number, Task(name[one], compiler, machine)))
        ranked.sort()  # the first three differ
        return [(row[0], row[3]) for row in ranked]


def to_date(order: Iterable[tuple[int, Task]]) -> list[tuple[int, Task]]:
    """What is needed to date every suspected step: no mere filling in."""
    return [(stage, task) for stage, task in order if stage != FILLING]


def undated(
    commits: Sequence[str],
    known: Collection[Task],
    suspects: Mapping[tuple[str, str], Iterable[tuple[str, str]]],
    place: Mapping[str, int],
) -> int:
    """Suspected steps with a commit in between that is not measured yet."""
    count = 0
    for (machine, compiler), spans in suspects.items():
        for good, bad in spans:
            if good in place and bad in place:
                inside = (one for one in commits if place[good] < place[one] < place[bad])
                count += any(Task(one, compiler, machine) not in known for one in inside)
    return count


def costs(records: Iterable[Mapping[str, Any]], others: Sequence[float] = ()) -> Callable[[Task], Cost]:
    """Seconds of a task: the median of recorded runs of its environment, of its machine, of any, of `others`."""
    by: dict[tuple[str, ...], list[float]] = {}
    for one in records:
        seconds = one.get("seconds")
        if one.get("outcome") == "done" and isinstance(seconds, (int, float)) and 0 < seconds < 1e7:
            for key in ((one.get("machine"), one.get("compiler")), (one.get("machine"),), ()):
                by.setdefault(tuple(str(part) for part in key), []).append(float(seconds))
    medians = {key: Cost(statistics.median(some), len(some)) for key, some in by.items()}
    rest = Cost(statistics.median(others), len(others)) if others else Cost(ASSUMED_SECONDS, 0)

    def cost(task: Task) -> Cost:
        for key in ((task.machine, task.compiler), (task.machine,), ()):
            if key in medians:
                return medians[key]
        return rest

    return cost


class Dispatcher:
    """Which task goes to which slot, and what became of each."""

    def __init__(self, tasks: Iterable[Task] = (), attempts: int = ATTEMPTS) -> None:
        self.attempts = attempts
        self.busy: dict[Task, str] = {}
        self.done: set[Task] = set()
        self.failed: dict[Task, str] = {}
        self._tries: dict[Task, int] = {}
        self._avoid: dict[Task, set[str]] = {}
        self._queues: dict[tuple[str, str], deque[tuple[int, Task]]] = {}
        self._waiting = 0
        self.order(tasks)

    @property
    def waiting(self) -> int:
        return self._waiting

    def order(self, tasks: Iterable[Task]) -> None:
        """The tasks to do, first one first; those done, given up or under way are left out."""
        self._queues = {}
        self._waiting = 0
        for rank, task in enumerate(dict.fromkeys(tasks)):
            if task not in self.done and task not in self.busy and task not in self.failed:
                self._queues.setdefault((task.machine, task.compiler), deque()).append((rank, task))
                self._waiting += 1

    def serves(self, slot: Slot) -> bool:
        """Whether any task waits for such a slot."""
        return any(queue and self._fits(slot, key) for key, queue in self._queues.items())

    def pick(self, slot: Slot, alone: bool = False) -> Task | None:
        """The first task this slot can do, under way from now on; `alone`: even one that failed on this node."""
        best: tuple[int, tuple[str, str], int] | None = None
        for key, queue in self._queues.items():
            if not queue or not self._fits(slot, key):
                continue
            for at, (rank, task) in enumerate(queue):
                if best and rank > best[0]:
                    break
                if alone or slot.node not in self._avoid.get(task, ()):
                    best = rank, key, at
                    break
        if best is None:
            return None
        _, key, at = best
        queue = self._queues[key]
        task = queue[at][1]
        del queue[at]
        self._waiting -= 1
        self.busy[task] = slot.name
        return task

    @staticmethod
    def _fits(slot: Slot, key: tuple[str, str]) -> bool:
        machine, compiler = key
        return slot.machine == machine and (not compiler or compiler in slot.compilers)

    def finish(self, task: Task) -> bool:
        """A task's results are kept; False where they were kept before."""
        self.busy.pop(task, None)
        if task in self.done:
            return False
        self.done.add(task)
        self.failed.pop(task, None)
        return True

    def again(self, task: Task, reason: str, node: str, counts: bool = True) -> bool:
        """A task ended without results: it waits again, or is given up after its attempts (False)."""
        self.busy.pop(task, None)
        if task in self.done:
            return True
        self._tries[task] = self._tries.get(task, 0) + counts
        self._avoid.setdefault(task, set()).add(node)
        if self._tries[task] >= self.attempts:
            self.failed[task] = reason
            return False
        # behind the others of its kind only: it is still the first of those that wait for nothing else
        queue = self._queues.setdefault((task.machine, task.compiler), deque())
        rank = queue[0][0] if queue else 0
        queue.appendleft((rank - 1, task))
        self._waiting += 1
        return True

    def fail(self, task: Task, reason: str) -> None:
        """A task is given up."""
        self.busy.pop(task, None)
        self.failed[task] = reason

    def give_up(self, reason: Callable[[Task], str]) -> None:
        """Nobody will do what still waits."""
        for queue in self._queues.values():
            for _, task in queue:
                self.failed[task] = reason(task)
            queue.clear()
        self._waiting = 0


@dataclass(frozen=True)
class Outcome:
    """What a slot hands back.  `reason` is empty where there are results; `unfit`: the node can do no more;
    `unbuilt`: why the commit could not be installed, which is a result too."""

    seconds: float
    files: tuple[tuple[str, bytes], ...] = ()
    reason: str = ""
    unfit: bool = False
    unbuilt: str = ""
    states: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """What happened: `joined`, `refused`, `left`, `finished`, `lost`, `note` at a backend; `started` by us."""

    kind: str
    node: str
    slot: Slot | None = None
    task: Task | None = None
    outcome: Outcome | None = None
    reason: str = ""


class Backend(Protocol):
    """Machines that do tasks: a Ray cluster, or a simulated one."""

    def poll(self, timeout: float) -> list[Event]:
        """What happened since the last call; waits for something up to `timeout` seconds."""

    def start(self, slot: Slot, task: Task) -> None:
        """Let a free slot begin a task."""

    def drop(self, node: str) -> None:
        """Use a node no more."""

    def now(self) -> float:
        """Seconds on a clock that only runs forward."""

    def coming(self) -> bool:
        """Whether slots are being made ready."""


@dataclass(frozen=True)
class Finished:
    """The end of a fleet's work."""

    done: int
    failed: Mapping[Task, str]
    left: Mapping[str, str]
    notes: tuple[str, ...]


class Head:
    """Hands tasks to slots until none is left.

    accept: keeps a task's results; an OSError from it says that they could not be kept.  again: a new order of
    what is left, or None where the old one stands.  told: hears of every event.  enough: ends the handing out.
    patience: seconds that tasks wait for a machine when those that could do them went away.
    """

    def __init__(
        self,
        backend: Backend,
        dispatcher: Dispatcher,
        accept: Callable[[Task, Slot, Outcome], None],
        *,
        again: Callable[[], Iterable[Task] | None] = lambda: None,
        told: Callable[[Event], None] = lambda event: None,
        enough: Callable[[], bool] = lambda: False,
        patience: float = 60.0,
    ) -> None:
        self.backend, self.dispatcher, self.accept = backend, dispatcher, accept
        self.again, self.told, self.enough, self.patience = again, told, enough, patience
        self.slots: dict[str, Slot] = {}
        self.free: dict[str, Slot] = {}
        self.left: dict[str, str] = {}
        self.notes: list[str] = []
        self._failures: dict[str, int] = {}
        self._unsaved = 0
        self._idle_since: float | None = None

    def work(self) -> Finished:
        """The end of it all."""
        while True:
            stop = self.enough()
            if not stop:
                self._hand_out()
            if not self.dispatcher.busy and (stop or self._nothing_left()):
                break
            for event in self.backend.poll(1.0):
                self._take(event)
                self.told(event)
            order = self.again()
            if order is not None:
                self.dispatcher.order(order)
        notes = tuple(dict.fromkeys(self.notes))
        return Finished(len(self.dispatcher.done), dict(self.dispatcher.failed), dict(self.left), notes)

    @property
    def nodes(self) -> set[str]:
        """Nodes that take tasks."""
        return {one.node for one in self.slots.values()} - self.left.keys()

    def _hand_out(self) -> None:
        for alone in (False, True):
            for slot in list(self.free.values()):
                task = self.dispatcher.pick(slot, alone)
                if task is not None:
                    del self.free[slot.name]
                    self.backend.start(slot, task)
                    self.told(Event("started", slot.node, slot, task))
            if self.dispatcher.busy:
                break

    def _nothing_left(self) -> bool:
        # a machine that is still being made ready may bring tasks of its own
        return self._nobody() if self.dispatcher.waiting else not self.backend.coming()

    def _nobody(self) -> bool:
        """Nothing is under way: whether to give up what still waits, since no machine can do it."""
        now = self.backend.now()
        if self._idle_since is None:
            self._idle_since = now
        hope = bool(self.left) or not self.nodes
        if self.backend.coming() or (hope and now - self._idle_since < self.patience):
            return False
        live = [one for one in self.slots.values() if one.node not in self.left]
        kinds = {f"{one.machine} with {', '.join(sorted(one.compilers)) or 'no compiler'}" for one in live}
        have = "; ".join(sorted(kinds)) or "none is left"

        def reason(task: Task) -> str:
            compiler = f" with {COMPILER} {task.compiler}" if task.compiler else ""
            return f"no machine for {task.machine}{compiler} (there are: {have})"

        self.dispatcher.give_up(reason)
        return True

    def _take(self, event: Event) -> None:
        slot, task, outcome = event.slot, event.task, event.outcome
        if event.kind == "joined" and slot is not None and slot.node not in self.left:
            self.slots[slot.name] = self.free[slot.name] = slot
            self._idle_since = None
        elif event.kind in ("refused", "left"):
            self.left.setdefault(event.node, event.reason)
            self.free = {name: one for name, one in self.free.items() if one.node != event.node}
        elif event.kind == "note":
            self.notes.append(f"{event.node}: {event.reason}")
        elif event.kind == "lost" and slot is not None:
            self.slots.pop(slot.name, None)
            self.free.pop(slot.name, None)
            if task is not None:
                self.dispatcher.again(task, f"ended its worker: {event.reason}", event.node)
        elif event.kind == "finished" and slot is not None and task is not None and outcome is not None:
            self._idle_since = None
            if slot.node not in self.left:
                self.free[slot.name] = slot
            if outcome.reason:
                self._failed(slot, task, outcome)
            elif task not in self.dispatcher.done:
                self._keep(slot, task, outcome)

    def _failed(self, slot: Slot, task: Task, outcome: Outcome) -> None:
        count = self._failures[slot.node] = self._failures.get(slot.node, 0) + 1
        self.dispatcher.again(task, outcome.reason, slot.node, counts=not outcome.unfit)
        if outcome.unfit:
            self._drop(slot.node, outcome.reason)
        elif count >= NODE_FAILURES and len(self.nodes) > 1:
            self._drop(slot.node, f"{count} failures one after the other, the last one: {outcome.reason}")

    def _keep(self, slot: Slot, task: Task, outcome: Outcome) -> None:
        try:
            self.accept(task, slot, outcome)
        except OSError as error:
            reason = f"its results could not be kept: {error.strerror or error}"
            self.dispatcher.fail(task, reason)
            self.notes.append(f"{task.commit[:10]}: {reason}")
            self._unsaved += 1
            if self._unsaved >= NODE_FAILURES:
                self.dispatcher.give_up(lambda _: f"not begun, {reason}")
            return
        self._unsaved = self._failures[slot.node] = 0
        self.dispatcher.finish(task)

    def _drop(self, node: str, reason: str) -> None:
        self.left[node] = reason
        self.backend.drop(node)
        self.free = {name: slot for name, slot in self.free.items() if slot.node != node}
