"""Time of one program: when each pipe is free, when its results are there, and what waited for what.

The scalar pipe runs the program and hands work to the other pipes in order.  A pipe starts its next op when it
is free, when the scalar pipe has handed the op over, and when the flags it waits for were set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

PIPES = ("S", "V", "MTE2", "MTE3")
S, V, MTE2, MTE3 = range(4)


@dataclass(frozen=True)
class Event:
    """One op on a pipe: busy from start to end, its result usable at done. `after` is the event it waited for."""

    pipe: int
    name: str
    place: str
    start: int
    end: int
    done: int
    after: int


class Timeline:
    """Pipe times of one program.  The scalar pipe's own time is kept by the caller and passed in as `ts`.

    What runs often is a function made once for its pipe, which holds the lists it works on; so these stay the same
    lists from program to program.
    """

    def __init__(self, costs: dict[str, float], trace: bool = False):
        self.issue_cost = ceil(costs["scalar.issue"])
        self.flag_cost = ceil(costs["scalar.flag"])
        self.barrier_cost = ceil(costs["scalar.barrier"])
        self.trace = trace
        self.free = [0, 0, 0, 0]
        self.done = [0, 0, 0, 0]
        self.busy = [0, 0, 0, 0]
        self.stalls: dict[str, int] = {}
        # by pipe: its last event, and the event that decides when it is free
        self.last = [-1, -1, -1, -1]
        self.cause = [-1, -1, -1, -1]
        self.reset()

    def reset(self) -> None:
        for times in (self.free, self.done, self.busy):
            times[:] = 0, 0, 0, 0
        self.stalls.clear()
        self.waiting = 0
        self.events: list[Event] = []
        self.last[:] = self.cause[:] = -1, -1, -1, -1

    def issuer(self, pipe: int, latency: int, name: str, place: str) -> Callable[[int, int], int]:
        """A function that hands an op to a pipe at `ts` for so many cycles, and gives the scalar pipe's time after
        that; its result is there `latency` cycles later."""
        free, done, busy, cost, trace = self.free, self.done, self.busy, self.issue_cost, self.trace

        def issue(ts: int, occupied: int) -> int:
            ts += cost
            start = free[pipe]
            late = ts > start
            if late:
                start = ts
            end = start + occupied
            free[pipe] = end
            busy[pipe] += occupied
            usable = end + latency
            if usable > done[pipe]:
                done[pipe] = usable
            if trace:
                after = self.cause[S] if late else self.cause[pipe]
                self.last[pipe] = self.cause[pipe] = len(self.events)
                self.events.append(Event(pipe, name, place, start, end, usable, after))
            return ts

        return issue

    def stall(self, cause: str, cycles: int) -> None:
        self.stalls[cause] = self.stalls.get(cause, 0) + cycles

    def waiter(self, source: int, waiter: int) -> Callable[[int, int, int], int]:
        """A function that lets a pipe wait for a flag of another one: (ts, when it is up, event it was set after)
        -> the scalar pipe's time."""
        free, stalls, trace, cause = self.free, self.stalls, self.trace, self.cause
        why = f"{PIPES[waiter]} waits for {PIPES[source]}"

        def wait_as_scalar(ts: int, up: int, event: int) -> int:
            if up <= ts:
                return ts
            stalls[why] = stalls.get(why, 0) + up - ts
            self.waiting += up - ts
            if trace:
                cause[S] = len(self.events)
                self.events.append(Event(S, f"wait for {PIPES[source]}", "", ts, up, up, event))
            return up

        def wait(ts: int, up: int, event: int) -> int:
            now = free[waiter]
            if ts > now:
                now = ts
            if up > now:
                stalls[why] = stalls.get(why, 0) + up - now
                free[waiter] = up
                if trace:
                    cause[waiter] = event
            return ts

        return wait_as_scalar if waiter == S else wait

    def barrier(self, ts: int, pipe: int) -> int:
        now = self.free[pipe] if self.free[pipe] > ts else ts
        if self.done[pipe] > now:
            self.stall(f"{PIPES[pipe]} barrier", self.done[pipe] - now)
            self.free[pipe] = self.done[pipe]
        return ts

    def barrier_all(self, ts: int) -> int:
        end = max(ts, self.done[V], self.done[MTE2], self.done[MTE3])
        if end > ts:
            self.stall("barrier over all pipes", end - ts)
            self.waiting += end - ts
            if self.trace:
                pipe = max((V, MTE2, MTE3), key=lambda p: self.done[p])
                self.cause[S] = len(self.events)
                self.events.append(Event(S, "wait for all pipes", "", ts, end, end, self.last[pipe]))
        self.free[:] = end, end, end, end
        if self.trace:
            self.cause[:] = [self.cause[S]] * 4
        return end


def critical_path(events: list[Event], total: int) -> dict[str, int]:
    """Cycles of a program by the pipe that nothing could have overtaken, from the end back to the start.

    What lies between an op's start and the end of the op it waited for is the scalar pipe's own time.
    """
    found = dict.fromkeys(PIPES, 0)
    at = total
    index = max(range(len(events)), key=lambda i: events[i].done, default=-1)
    while index >= 0:
        event = events[index]
        if event.pipe == S:
            # a wait takes no time of its own: go on with what it waited for
            index = event.after
            continue
        found["S"] += max(0, at - event.done)
        found[PIPES[event.pipe]] += max(0, min(at, event.done) - event.start)
        at = min(at, event.start)
        index = event.after
    found["S"] += at
    return found


def chrome_trace(programs: dict[int, list[Event]], clock_ghz: float, title: str) -> dict[str, Any]:
    """Chrome trace format, as Perfetto opens it: one process a program, one thread a pipe, times in us."""
    us = 1.0 / (clock_ghz * 1000.0)
    rows: list[dict[str, Any]] = []
    for program, events in sorted(programs.items()):
        name = {"name": f"{title}, program {program}"}
        rows.append({"ph": "M", "name": "process_name", "pid": program, "args": name})
        for pipe, label in enumerate(PIPES):
            rows.append({"ph": "M", "name": "thread_name", "pid": program, "tid": pipe, "args": {"name": label}})
        for event in events:
            rows.append(
                {
                    "ph": "X",
                    "name": event.name,
                    "cat": "modelled",
                    "pid": program,
                    "tid": event.pipe,
                    "ts": event.start * us,
                    "dur": (event.end - event.start) * us,
                    "args": {
                        "place": event.place,
                        "cycles": event.end - event.start,
                        "usable_at_cycle": event.done,
                    },
                }
            )
    return {"traceEvents": rows, "displayTimeUnit": "ns", "otherData": {"clock_ghz": clock_ghz}}
