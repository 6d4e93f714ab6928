"""Jobs that may take their process with them: run in children, in another child after a death.

A kernel that kills its process, or leaves the device in a state from which only a new process recovers, costs its
own job and no other.  What was done before is kept.
"""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

Job = TypeVar("Job")
MOST_DEATHS = 3  # in a row: then it is the device and not the job
RARELY = 100_000  # objects made until a child looks for cycles among them
IMPORT_SECONDS = 120.0  # for a file of kernels and what it imports, torch perhaps
MOST_WORKERS = 8  # each holds its own torch


class LastJob(Exception):
    """Raised by work to hand over an outcome after which its process is of no use: `LastJob(outcome)`."""


def workers() -> int:
    """Processes that modelled jobs are packed on: `ASCEND_PERF_JOBS`, else one more than there are cores, since
    there is always one that waits."""
    asked = os.environ.get("ASCEND_PERF_JOBS", "")
    if asked and not (asked.isdigit() and int(asked)):
        raise ValueError(f"ASCEND_PERF_JOBS={asked!r}: expected a number of processes from 1 on")
    return int(asked) if asked else min(MOST_WORKERS, len(os.sched_getaffinity(0)) + 1)


def each(
    jobs: Sequence[Job],
    work: Callable[[Job], Any],
    *,
    seconds: float = 900,
    workers: int = 1,
    group: Callable[[Job], Any] = id,
    until: float = math.inf,
) -> Iterator[tuple[Job, Any, str]]:
    """(job, outcome, reason) as they end; an outcome is None where the reason says why.

    One worker takes the jobs in order.  Several go on with jobs of the group they were in, which share what they
    have made ready, and otherwise prefer a group that no other works on.  Children are forked, so nothing in this
    process may have started the device.  After MOST_DEATHS children in a row that did not finish a job, the rest
    of the jobs is given up.  So are those that have no outcome at `until` on the monotonic clock, without a word.
    """
    rest = list(range(len(jobs)))
    children: list[_Child] = []
    failures = 0
    try:
        while time.monotonic() < until and (rest or any(child.job is not None for child in children)):
            while rest and failures < MOST_DEATHS:
                child = next((c for c in children if c.job is None), None)
                if child is None:
                    if len(children) >= workers:
                        break
                    child = _start(jobs, work, [c.pipe for c in children])
                    children.append(child)
                busy = [group(jobs[c.job]) for c in children if c.job is not None]
                child.take(_next(jobs, rest, group, child.group, busy), jobs, group)
            for child in [c for c in children if c.job is not None]:
                if child.job is not None and time.monotonic() > child.started + seconds:
                    child.process.kill()
                    child.late = True
            pipes = {c.pipe: c for c in children if c.job is not None}
            if pipes:
                deadline = min(until, *(c.started + seconds for c in pipes.values())) - time.monotonic()
                for pipe in wait(list(pipes), timeout=max(0.05, deadline)):
                    child = pipes[pipe]  # type: ignore[index]
                    job = jobs[child.job]
                    try:
                        outcome, last = child.pipe.recv()
                        reason = ""
                    except (EOFError, ConnectionResetError):
                        outcome, last = None, True
                        child.process.join()
                        reason = f"no end after {seconds:.0f} s" if child.late else _death(child.process.exitcode)
                    child.job = None
                    failures = failures + 1 if last else 0
                    if last:
                        child.stop()
                        children.remove(child)
                    yield job, outcome, reason
            elif failures >= MOST_DEATHS:
                for i in rest:
                    yield jobs[i], None, f"not tried: {failures} processes in a row ended or lost the device"
                return
    finally:
        for child in children:
            child.stop()


@contextlib.contextmanager
def in_time(seconds: float, words: str) -> Iterator[None]:
    """TimeoutError with these words where a block takes longer; only of Python code, in a process's main thread,
    and where nobody else has set its alarm."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def late(*_: Any) -> None:
        raise TimeoutError(f"{words} takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class _Child:
    process: Any
    pipe: Any
    job: int | None = None
    group: Any = None
    started: float = 0.0
    late: bool = False

    def take(self, job: int, jobs: Sequence[Any], group: Callable[[Any], Any]) -> None:
        self.job, self.group, self.started = job, group(jobs[job]), time.monotonic()
        try:
            self.pipe.send(job)
        except OSError:
            pass  # it died meanwhile, which the answer will tell

    def stop(self) -> None:
        self.pipe.close()
        if self.job is not None:
            self.process.kill()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _next(jobs: Sequence[Job], rest: list[int], group: Callable[[Job], Any], own: Any, busy: Sequence[Any]) -> int:
    """Take the job to do next out of `rest`."""
    same = (i for i in rest if group(jobs[i]) == own)
    free = (i for i in rest if group(jobs[i]) not in busy)
    chosen = next(same, next(free, rest[0]))
    rest.remove(chosen)
    return chosen


def _start(jobs: Sequence[Job], work: Callable[[Job], Any], others: Sequence[Any]) -> _Child:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_child, args=([*others, here], there, jobs, work), daemon=True)
    process.start()
    there.close()
    return _Child(process, here)


def _child(parents: Sequence[Any], pipe: Any, jobs: Sequence[Job], work: Callable[[Job], Any]) -> None:
    for end in parents:
        end.close()  # else a child outlives the parent, whose end it holds itself
    # What was imported stays, and jobs leave few cycles behind: do not look through everything for them so often.
    gc.freeze()
    gc.set_threshold(RARELY, 20, 20)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((work(jobs[job]), False))
        except LastJob as last:
            pipe.send((last.args[0], True))
            return


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"the process was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"the process was ended by signal {-code}"
    return f"the process ended with {code} before a verdict"
