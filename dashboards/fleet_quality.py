"""How good the fleet's scheduling and its store are, measured without machines.

    python -m dashboards.fleet_quality speed-up           8 simulated nodes, tasks of 2 to 20 seconds
    python -m dashboards.fleet_quality head               100 000 tasks scheduled, time and memory of the head
    python -m dashboards.fleet_quality dating             runs until a step is dated
    python -m dashboards.fleet_quality writers            ten writers, 10 000 files, random kills

Simulated: the machines and their clock.  Not simulated: the order of work, who gets what, and the store.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import itertools
import json
import math
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboards import store
from dashboards.fleet import Backlog, Dispatcher, Event, Finished, Head, Outcome, Slot, Task, arrange

MACHINE = "modelled-test"
COMPILERS = ("1.1.0", "1.2.0")


class Simulated:
    """Machines of a simulated fleet.  A task takes 2 to 20 seconds, by its name; `overhead` is added to each.

    deaths: node -> second at which it goes away.  broken: node -> reason its tasks fail with.  serves: node ->
    compilers it has.  unfit: nodes whose failures say that the node itself is to blame.
    """

    def __init__(
        self,
        nodes: int,
        slots: int = 1,
        *,
        overhead: float = 0.0,
        deaths: Mapping[str, float] | None = None,
        broken: Mapping[str, str] | None = None,
        serves: Mapping[str, tuple[str, ...]] | None = None,
        unfit: tuple[str, ...] = (),
        poison: tuple[str, ...] = (),
    ) -> None:
        self.overhead, self.broken, self.unfit, self.poison = overhead, broken or {}, unfit, poison
        self.time, self.busy, self.runs = 0.0, 0.0, 0
        self._gone: set[str] = set()
        self._number = 0
        self._events: list[tuple[float, int, Event]] = []
        self._under_way: dict[str, tuple[Slot, Task]] = {}
        names = [f"node{number}" for number in range(nodes)]
        for name in names:
            has = frozenset((serves or {}).get(name, COMPILERS))
            for number in range(slots):
                self._later(0.0, Event("joined", name, slot=Slot(f"{name}-{number}", name, MACHINE, has)))
        for name, when in (deaths or {}).items():
            self._later(when, Event("left", name, reason="the node is gone"))

    def seconds(self, task: Task) -> float:
        """How long a task takes."""
        digest = hashlib.blake2b(f"{task.commit}{task.compiler}".encode(), digest_size=4).digest()
        return 2 + 18 * int.from_bytes(digest, "little") / 2**32

    def start(self, slot: Slot, task: Task) -> None:
        """Begin a task."""
        seconds = self.seconds(task) + self.overhead
        self.busy += seconds - self.overhead
        self.runs += 1
        self._under_way[slot.name] = slot, task
        if task.commit in self.poison:
            self._later(self.time + 1, Event("lost", slot.node, slot=slot, task=task, reason="its process ended"))
            self._number += 1
            again = Slot(f"{slot.name}'", slot.node, slot.machine, slot.compilers)
            self._later(self.time + 2, Event("joined", slot.node, slot=again))
            return
        reason = self.broken.get(slot.node, "")
        outcome = Outcome(seconds, reason=reason, unfit=slot.node in self.unfit)
        self._later(self.time + seconds, Event("finished", slot.node, slot=slot, task=task, outcome=outcome))

    def poll(self, timeout: float) -> list[Event]:
        """The next thing that happens; the clock goes there."""
        while self._events:
            when, _, event = heapq.heappop(self._events)
            if event.kind == "finished" and event.node in self._gone:
                continue
            self.time = max(self.time, when)
            if event.slot is not None and event.kind == "finished":
                self._under_way.pop(event.slot.name, None)
            if event.kind == "left":
                self._gone.add(event.node)
                mine = [pair for pair in self._under_way.values() if pair[0].node == event.node]
                reason = "the node is gone"
                return [event] + [Event("lost", event.node, slot=s, task=t, reason=reason) for s, t in mine]
            return [event]
        self.time += timeout
        return []

    def drop(self, node: str) -> None:
        """Nothing to end."""

    def now(self) -> float:
        return self.time

    def coming(self) -> bool:
        return any(event.kind == "joined" for _, _, event in self._events)

    def _later(self, when: float, event: Event) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))


def tasks_of(count: int) -> list[Task]:
    """Tasks of two compilers."""
    commits = [hashlib.sha1(str(at).encode()).hexdigest() for at in range(math.ceil(count / len(COMPILERS)))]
    return [Task(commit, compiler, MACHINE) for commit in commits for compiler in COMPILERS][:count]


def simulate(backend: Simulated, tasks: list[Task], patience: float = 60.0) -> tuple[Finished, list[Task]]:
    """What a fleet makes of tasks, and those whose results were kept, in that order."""
    kept: list[Task] = []
    head = Head(backend, Dispatcher(tasks), lambda task, slot, outcome: kept.append(task), patience=patience)
    return head.work(), kept


def speed_up(nodes: int, count: int, overhead: float) -> float:
    """Time of one machine over time of the fleet, as a share of the number of nodes."""
    backend = Simulated(nodes, overhead=overhead)
    finished, kept = simulate(backend, tasks_of(count))
    assert finished.done == len(kept) == count
    return backend.busy / backend.time / nodes


def runs_to_date(count: int, step: int) -> int:
    """Runs, one after the other, until a step between two of `count` commits is known to one commit."""
    value = [1.0 if at < step else 2.0 for at in range(count)]
    known: set[int] = set()
    while True:
        row = sorted(known)
        spans = [(a, b) for a, b in itertools.pairwise(row) if value[a] != value[b]]
        if any(b - a == 1 for a, b in spans):
            return len(known)
        order = arrange(range(count), known, spans)
        if not order:
            return len(known)
        known.add(order[0][1])


def head(count: int) -> dict[str, float]:
    """Seconds and memory of ordering and handing out `count` tasks; twenty times a step is suspected elsewhere."""
    before = _memory()
    began = time.process_time()
    commits = [hashlib.sha1(str(at).encode()).hexdigest() for at in range(count // len(COMPILERS))]
    place = {commit: at for at, commit in enumerate(commits)}
    backlog = Backlog(commits, [(MACHINE, one) for one in COMPILERS])
    backend = Simulated(8, 16)
    known: set[Task] = set()
    orders = 0

    def accept(task: Task, slot: Slot, outcome: Outcome) -> None:
        known.add(task)

    def again() -> list[Task] | None:
        nonlocal orders
        if len(known) // (count // 20) <= orders:
            return None
        orders += 1
        at = orders * len(commits) // 22
        suspects = {(MACHINE, COMPILERS[0]): {(commits[at], commits[at + len(commits) // 50])}}
        return [task for _, task in backlog.order({*known, *dispatcher.busy}, suspects, place)]

    dispatcher = Dispatcher(task for _, task in backlog.order((), {}, place))
    finished = Head(backend, dispatcher, accept, again=again).work()
    assert finished.done == len(known) == len(commits) * len(COMPILERS) and not finished.failed
    return {
        "tasks": finished.done, "orders": orders + 1, "seconds": time.process_time() - began,
        "megabytes": (_memory() - before) / 2**20, "megabytes of the process": _memory() / 2**20,
    }  # fmt: skip


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def result_of(number: int) -> tuple[str, bytes]:
    """One asv result file of a writer: path and content."""
    commit = hashlib.sha1(str(number // 2).encode()).hexdigest()
    compiler = COMPILERS[number % 2]
    data = {
        "commit_hash": commit, "env_name": f"host-{compiler}", "date": number, "params": {"machine": MACHINE},
        "python": "3.11", "requirements": {"ascendnpu-ir": compiler}, "env_vars": {},
        "result_columns": ["result", "params", "version", "started_at", "duration"],
        "results": {"bench.ModelledX.track_cycles": [[number, number + 1], [["'a'", "'b'"]], "1", number, 0.5]},
        "durations": {}, "version": 2,
    }  # fmt: skip
    return f"{MACHINE}/{commit[:8]}-host-{compiler}.json", json.dumps(data).encode()


def sources_of(folder: Path, writers: int, files: int) -> list[Path]:
    """A results folder for each writer; every fifth file is in two of them, as after a run done twice."""
    places = [folder / f"source{at}" for at in range(writers)]
    for number in range(files):
        path, content = result_of(number)
        for at in {number % writers, (number + 1) % writers if number % 5 == 0 else number % writers}:
            place = places[at] / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    return places


def writers(folder: Path, count: int, files: int, kills: int, seed: int) -> dict[str, Any]:
    """Let writers merge into one store while they are killed at random; AssertionError where anything is amiss."""
    began = time.monotonic()
    sources = sources_of(folder, count, files)
    target, generator = folder / "store", random.Random(seed)
    command = [sys.executable, "-m", "dashboards.cli", "results", "merge", "--quiet"]

    def begin(at: int) -> subprocess.Popen[bytes]:
        line = [*command, str(sources[at]), "--into", str(target)]
        return subprocess.Popen(line, stdout=subprocess.DEVNULL)

    running = {at: begin(at) for at in range(count)}
    killed = 0
    while running:
        time.sleep(generator.uniform(0.001, 0.01))
        if killed < kills:
            # each is let through a piece of its way, whatever the machine's speed
            at = generator.choice(sorted(running))
            if running[at].poll() is None and _objects(target) > (killed + 1) * files / (2 * kills + 2):
                running[at].send_signal(signal.SIGKILL)
                running[at].wait()
                running[at] = begin(at)
                killed += 1
        for at, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            assert code == 0, f"writer {at} ended with {code}"
            del running[at]
    report = store.check(target)
    assert report.clean, report.aside[:3] or report.conflicts[:3]
    expected = dict(result_of(number) for number in range(files))
    shown = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.glob(f"{MACHINE}/*.json")}
    assert shown == expected, f"{len(expected.items() - shown.items())} of {len(expected)} files differ"
    objects = _objects(target)
    assert objects == files, f"{objects} objects for {files} files"
    return {"files": len(shown), "objects": objects, "killed": killed, "seconds": time.monotonic() - began}


def _objects(target: Path) -> int:
    return sum(map(len, store.LocalObjects(target / store.HIDDEN).names().values()))


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.fleet_quality", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("what", choices=("speed-up", "head", "dating", "writers"))
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--overhead", type=float, default=0.05, help="seconds a task waits for its start")
    parser.add_argument("--writers", type=int, default=10)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.what == "speed-up":
        for count in [given.tasks] if given.tasks else (24, 50, 100, 200, 1000, 10_000):
            share = speed_up(given.nodes, count, given.overhead)
            print(f"{count:>6} tasks on {given.nodes} nodes: {share:.3f} of ideal")
    elif given.what == "head":
        row = head(given.tasks or 100_000)
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    elif given.what == "dating":
        for count in (16, 64, 256, 1024):
            runs = [runs_to_date(count, step) for step in range(1, count)]
            print(f"{count:>5} commits: at most {max(runs)} runs, {sum(runs) / len(runs):.1f} on average")
    else:
        with tempfile.TemporaryDirectory() as folder:
            row = writers(Path(folder), given.writers, given.files, given.kills, given.seed)
            print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
