"""Time of one program: when each pipe is free, when its results are there, and what waited for what.

The scalar pipe runs the program and hands work to the other pipes in order.  A pipe starts its next op when it
is free, when the scalar pipe has handed the op over, and when the flags it waits for were set.
"""

from __future__ import annotations

from collections import deque
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
    """Pipe times of one program.  The scalar pipe's own time is kept by the caller and passed in as `ts`."""

    def __init__(self, costs: dict[str, float], trace: bool = False):
        self.issue_cost = ceil(costs["scalar.issue"])
        self.flag_cost = ceil(costs["scalar.flag"])
        self.barrier_cost = ceil(costs["scalar.barrier"])
        self.trace = trace
        self.reset()

    def reset(self) -> None:
        self.free = [0, 0, 0, 0]
        self.done = [0, 0, 0, 0]
        self.busy = [0, 0, 0, 0]
        self.stalls: dict[str, int] = {}
        self.waiting = 0
        self.events: list[Event] = []
        self.last = [-1, -1, -1, -1]

    def issue(self, ts: int, pipe: int, occupied: int, latency: int, name: str, place: str) -> int:
        ts += self.issue_cost
        start = self.free[pipe]
        if ts > start:
            start = ts
        end = start + occupied
        self.free[pipe] = end
        end_of_result = end + latency
        if end_of_result > self.done[pipe]:
            self.done[pipe] = end_of_result
        self.busy[pipe] += occupied
        if self.trace:
            self.last[pipe] = len(self.events)
            self.events.append(Event(pipe, name, place, start, end, end_of_result, -1))
        return ts

    def stall(self, cause: str, cycles: int) -> None:
        self.stalls[cause] = self.stalls.get(cause, 0) + cycles

    def set_flag(self, ts: int, source: int) -> int:
        """The time at which the flag is up: all earlier work of the source pipe is done."""
        return ts if source == S or ts > self.done[source] else self.done[source]

    def wait_flag(self, ts: int, source: int, waiter: int, up: int) -> int:
        if waiter == S:
            if up > ts:
                self.stall(f"S waits for {PIPES[source]}", up - ts)
                self.waiting += up - ts
                if self.trace:
                    self.events.append(Event(S, f"wait for {PIPES[source]}", "", ts, up, up, self.last[source]))
                return up
            return ts
        now = self.free[waiter]
        if ts > now:
            now = ts
        if up > now:
            self.stall(f"{PIPES[waiter]} waits for {PIPES[source]}", up - now)
            self.free[waiter] = up
        return ts

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
        self.free = [end] * 4
        return end


class Flags:
    """Flags between pipes: each set is answered by one wait, in order."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int, int], deque[Any]] = {}

    def reset(self) -> None:
        self.queues.clear()

    def put(self, key: tuple[int, int, int], item: Any) -> None:
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = deque()
        queue.append(item)

    def take(self, key: tuple[int, int, int]) -> Any:
        """The oldest set that nobody waited for yet, or None."""
        queue = self.queues.get(key)
        return queue.popleft() if queue else None

    def left(self) -> list[tuple[int, int, int]]:
        return [key for key, queue in self.queues.items() if queue]


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
