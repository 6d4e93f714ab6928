"""Devices behind the measured numbers: what they were, in which state, and which of their runs are marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dashboards.pages.markup import Markup, dim, join, table, tag, text
from dashboards.pages.view import View
from dashboards.results import History
from dashboards.series import NOT_RUN, STATE_CODE
from dashboards.trust import noise_floors

NEWEST = 20  # runs of a machine that are looked through for marks
FACTS = (
    ("driver", "driver", ""),
    ("toolkit", "toolkit", ""),
    ("clock_mhz", "clock", " MHz"),
    ("memory_clock_mhz", "memory clock", " MHz"),
    ("temperature_c", "temperature", " °C"),
    ("power_limit_w", "power limit", " W"),
)


def section(view: View) -> Markup:
    """HTML of the section; a sentence where nothing was measured."""
    history = view.history
    parts = [tag("h2", "Devices")]
    lines, marked = [], []
    for machine in history.machines:
        rows = [row for row, one in enumerate(history.series) if one.machine == machine and not one.deterministic]
        ran = (
            np.flatnonzero((history.state[rows] != STATE_CODE[NOT_RUN]).any(axis=0)) if rows else np.zeros(0, int)
        )
        if not ran.size:
            continue
        device = _newest(history, rows, int(ran[-1]))
        lines.append(_line(history, machine, int(ran[-1]), device, rows))
        for column in ran[::-1][:NEWEST]:
            marked += _marks(history, machine, rows, int(column))
    if not lines:
        return join([*parts, dim("No number here was measured on a device.")])
    head = ["machine", "device", "state in the newest run", "noise floor of that run", "newest run"]
    parts.append(table(head, lines))
    parts.append(
        dim(
            "Noise floor: the same implementation timed twice in the run differs by this much; "
            "smaller changes cannot be seen in it."
        )
    )
    if not marked:
        parts.append(dim(f"No run of the newest {NEWEST} is marked: no change of clock, nothing slowed it down."))
    else:
        parts.append(tag("h3", "Marked runs"))
        parts.append(table(["machine", "commit", "why", "cases"], marked))
    return join(parts)


def _newest(history: History, rows: list[int], column: int) -> Mapping[str, Any]:
    return next((found for row in rows if (found := history.detail(row, column).device)), {})


def _line(history: History, machine: str, column: int, device: Mapping[str, Any], rows: list[int]) -> Markup:
    after = device.get("after", {})
    said = [f"{word} {_number(after[key])}{unit}" for key, word, unit in FACTS if after.get(key) not in (None, "")]
    floors: dict[str, list[float]] = {}
    wanted = set(rows)
    for row, floor in noise_floors(history, column).items():
        if row in wanted:
            floors.setdefault(history.series[row].metric, []).append(floor.least)
    noise = [f"{metric} {float(np.median(some)):.1%}" for metric, some in sorted(floors.items())]
    commit = history.commits[column]
    return tag(
        "tr",
        tag("th", text(machine, 60), scope="row"),
        tag("td", text(str(after.get("name") or "not recorded"), 80)),
        tag("td", text(", ".join(said) or "not recorded", 300)),
        tag("td", text(", ".join(noise) or "not recorded", 200)),
        tag("td", tag("code", commit.hash[:10]), " ", text(commit.subject, 60)),
    )


def _marks(history: History, machine: str, rows: list[int], column: int) -> list[Markup]:
    """A line for each reason for which cases of a run are marked."""
    cases: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        for mark in history.detail(row, column).device.get("marks", ()):
            cases.setdefault(mark, set()).add((history.series[row].suite, history.series[row].case))
    return [
        tag(
            "tr",
            tag("th", text(machine, 60), scope="row"),
            tag("td", tag("code", history.commits[column].hash[:10])),
            tag("td", text(mark, 200)),
            tag("td", str(len(some))),
        )
        for mark, some in sorted(cases.items())
    ]


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
