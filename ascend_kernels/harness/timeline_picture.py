"""The pipes of one program over time, from a launch's trace: bars, and an overview of them as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ascend_model.markup import Markup, tag
from ascend_model.timeline import PIPES

MOST_BARS = 12_000
"""Bars a picture holds; of a longer program, neighbours on a pipe are drawn as one."""
COLUMNS = 1000
LANE = 14


@dataclass(frozen=True)
class Bar:
    """One op on a pipe, its result there at done; `wait` is the scalar pipe standing still.

    busy: cycles from start to end in which the pipe works, where several ops are drawn as one."""

    pipe: int
    name: str
    place: str
    start: int
    end: int
    done: int
    wait: bool = False
    busy: int = -1

    @property
    def works(self) -> int:
        return self.end - self.start if self.busy < 0 else self.busy


@dataclass(frozen=True)
class Share:
    """Cycles that one op of one line keeps a pipe busy, in all its runs."""

    pipe: str
    name: str
    place: str
    count: int
    cycles: int


@dataclass(frozen=True)
class Picture:
    """The busiest program of a launch.

    ops: how many it ran.  shares: where its time goes, the most first.  joined: cycles within which all ops of a
    pipe are one bar from cycle `exact` on; 0 when each has its own.
    """

    program: int
    programs: int
    cycles: int
    clock: float
    bars: tuple[Bar, ...]
    ops: int
    shares: tuple[Share, ...]
    joined: int = 0
    exact: int = 0


def picture(trace: Mapping[str, Any], done: Any) -> Picture | None:
    """The program that takes longest in a trace of the launch; None where there are no numbers."""
    if not done.program_cycles:
        return None
    cycles = max(done.program_cycles)
    program = done.program_cycles.index(cycles)
    clock = float(trace["otherData"]["clock_ghz"])
    bars = []
    for row in trace["traceEvents"]:
        if row["ph"] != "X" or row["pid"] != program:
            continue
        start = round(row["ts"] * clock * 1000)
        told = row["args"]
        end = start + told["cycles"]
        bars.append(
            Bar(row["tid"], row["name"], told["place"], start, end, told["usable_at_cycle"], row["tid"] == 0)
        )
    ops = sum(not bar.wait for bar in bars)
    bars += _scalar(bars, done.busy.get("S", 0))
    bars.sort(key=lambda bar: (bar.pipe, bar.start, bar.end))
    drawn, joined, exact = bars, 0, cycles
    if len(bars) > MOST_BARS:
        # The start stays exact, so that one can see what an iteration is made of.
        exact = sorted(bar.start for bar in bars)[MOST_BARS // 2]
        head = [bar for bar in bars if bar.end <= exact]
        rest = [bar for bar in bars if bar.end > exact]
        while len(drawn) > MOST_BARS:
            joined = 2 * joined or max(1, cycles // 100_000)
            drawn = [*head, *_joined(rest, joined)]
        drawn.sort(key=lambda bar: (bar.pipe, bar.start, bar.end))
    return Picture(
        program, len(done.program_cycles), cycles, clock, tuple(drawn), ops, _shares(bars), joined, exact
    )


def _scalar(bars: list[Bar], busy: int) -> list[Bar]:
    """The scalar pipe runs the program whenever it does not wait; the trace holds its waits alone."""
    waits = sorted((bar.start, bar.end) for bar in bars if bar.wait)
    end = busy + sum(b - a for a, b in waits)
    made, at = [], 0
    for start, stop in [*waits, (end, end)]:
        if start > at:
            made.append(Bar(0, "runs the program", "", at, start, start))
        at = max(at, stop)
    return made


def _joined(bars: list[Bar], gap: int) -> list[Bar]:
    """Bars of a pipe that together fit into `gap` cycles are one, called after what most of it is."""
    made: list[Bar] = []
    open_groups: dict[tuple[int, bool], list[Bar]] = {}
    for bar in bars:
        group = open_groups.setdefault((bar.pipe, bar.wait), [])
        if group and bar.end - group[0].start > gap:
            made.append(_one(group))
            group.clear()
        group.append(bar)
    made += [_one(group) for group in open_groups.values()]
    return made


def _one(group: list[Bar]) -> Bar:
    if len(group) == 1:
        return group[0]
    names: Counter[tuple[str, str]] = Counter()
    for bar in group:
        names[bar.name, bar.place] += bar.works
    (name, place), _ = names.most_common(1)[0]
    first = group[0]
    return Bar(
        first.pipe, f"{len(group)} times, most of it {name}", place, first.start, max(bar.end for bar in group),
        max(bar.done for bar in group), first.wait, sum(bar.works for bar in group),
    )  # fmt: skip


def data(of: Picture, scale: int) -> dict[str, Any]:
    """What the page's script draws: names and places by number, bars as numbers, starts as steps."""
    names = {name: i for i, name in enumerate(dict.fromkeys(bar.name for bar in of.bars))}
    places = {place: i for i, place in enumerate(dict.fromkeys(bar.place for bar in of.bars))}
    rows: list[int] = []
    at = 0
    for bar in of.bars:
        rows += (
            bar.pipe, names[bar.name], places[bar.place], bar.start - at, bar.end - bar.start,
            max(0, bar.done - bar.end), int(bar.wait), bar.works,
        )  # fmt: skip
        at = bar.start
    return {
        "pipes": list(PIPES), "cycles": of.cycles, "scale": scale, "joined": of.joined,
        "names": list(names), "places": [readable_place(one) for one in places], "bars": rows,
    }  # fmt: skip


def readable_place(place: str) -> str:
    """`kernels.py:33` of `kernels.py:33:32 (load, IR line 77)`."""
    parts = place.split(" ", 1)[0].split(":")
    return ":".join(parts[:2]) if len(parts) >= 2 and parts[1].isdigit() else ""


def overview(of: Picture, scale: int) -> Markup:
    """The whole program as SVG, a thousand columns wide, each as high as the pipe is busy in it."""
    shapes = []
    for pipe in range(len(PIPES)):
        runs, waits = (_busy(of, pipe, wait, scale) for wait in (False, True))
        both = [a + b for a, b in zip(runs, waits, strict=True)]
        for heights, wait in ((both if any(waits) else waits, True), (runs, False)):
            path = "".join(_steps(heights, LANE * (pipe + 1) - 2))
            if path:
                shapes.append(tag("path", d=path, class_=f"p{pipe}{' wait' if wait else ''}"))
    height = LANE * len(PIPES)
    return tag(
        "svg", tag("title", f"program {of.program}: {of.cycles} cycles"), shapes,
        viewBox=f"0 0 {COLUMNS} {height}", preserveAspectRatio="none", role="img", class_="overview",
        aria_label=f"pipes {', '.join(PIPES)} of program {of.program} over {of.cycles} cycles",
    )  # fmt: skip


def _busy(of: Picture, pipe: int, wait: bool, scale: int) -> list[float]:
    """The part of each column in which the pipe works (or waits), from 0 to 1."""
    cells = [0.0] * COLUMNS
    for bar in of.bars:
        if bar.pipe != pipe or bar.wait != wait or bar.end <= bar.start:
            continue
        a, b = COLUMNS * bar.start / scale, COLUMNS * bar.end / scale
        part = bar.works / (bar.end - bar.start)
        for column in range(int(a), min(COLUMNS, int(b) + 1)):
            cells[column] += part * max(0.0, min(b, column + 1) - max(a, column))
    return cells


def _steps(cells: list[float], floor: int) -> Iterator[str]:
    """Columns of equal height as one rectangle; what is there at all is high enough to be seen."""
    tall = LANE - 4
    heights = [0.0 if cell <= 0 else round(max(1.0, tall * min(1.0, cell)), 1) for cell in cells]
    start = 0
    for at in range(1, COLUMNS + 1):
        if at == COLUMNS or heights[at] != heights[start]:
            if heights[start]:
                yield f"M{start} {floor}h{at - start}v-{heights[start]:g}h-{at - start}z"
            start = at


def _shares(bars: list[Bar]) -> tuple[Share, ...]:
    found: dict[tuple[int, str, str], list[int]] = {}
    for bar in bars:
        one = found.setdefault((bar.pipe, bar.name, readable_place(bar.place)), [0, 0])
        one[0] += 1
        one[1] += bar.end - bar.start
    rows = (Share(PIPES[p], n, at, count, cycles) for (p, n, at), (count, cycles) in found.items())
    return tuple(sorted(rows, key=lambda row: -row.cycles))
