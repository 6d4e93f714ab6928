"""Jobs that may take their process with them: run one after the other in a child, in another child after a death.

A kernel that kills its process, or leaves the device in a state from which only a new process recovers, costs its
own job and no other.  What was done before is kept.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Job = TypeVar("Job")
MOST_DEATHS = 3  # in a row: then it is the device and not the job


class LastJob(Exception):
    """Raised by work to hand over an outcome after which its process is of no use: `LastJob(outcome)`."""


def each(
    jobs: Sequence[Job], work: Callable[[Job], Any], *, seconds: float = 900
) -> Iterator[tuple[Job, Any, str]]:
    """(job, outcome, reason) in the order of the jobs; an outcome is None where the reason says why.

    A child is forked, so nothing in this process may have started the device.  After MOST_DEATHS children in a
    row that did not finish a job, the rest of the jobs is given up.
    """
    context = multiprocessing.get_context("fork")
    rest, failures = list(jobs), 0
    while rest:
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(there, list(rest), work), daemon=True)
        child.start()
        there.close()
        reason = ""
        try:
            while rest and not reason:
                if not here.poll(seconds):
                    child.kill()
                    reason = f"no end after {seconds:.0f} s"
                    break
                try:
                    outcome, last = here.recv()
                except EOFError:
                    child.join()
                    reason = _death(child.exitcode)
                    break
                failures = failures + 1 if last else 0
                yield rest.pop(0), outcome, ""
                if last:
                    break
        finally:
            if child.is_alive():
                child.kill() if reason else child.join(5)
            if child.is_alive():
                child.kill()
            child.join()
            here.close()
        if reason:
            failures += 1
            yield rest.pop(0), None, reason
        if failures >= MOST_DEATHS:
            for job in rest:
                yield job, None, f"not tried: {failures} processes in a row ended or lost the device"
            return


def _child(pipe: Any, jobs: list[Any], work: Callable[[Any], Any]) -> None:
    for job in jobs:
        try:
            pipe.send((work(job), False))
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
