"""Can the numbers be trusted: machines, last runs, noise, failures with their reasons, what could not be read."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from dashboards.detect import NEW_LEVEL, estimate_noise
from dashboards.events import SAME_CODE
from dashboards.pages import devices
from dashboards.pages.kernel import status_table
from dashboards.pages.markup import Markup, dim, join, page, table, tag, text
from dashboards.pages.view import View
from dashboards.series import NOT_RUN, OK, STATE_CODE

LEAST_POINTS = 8
NEWEST_POINTS = 100
SHOWN = 300


def render(view: View, foot: Markup) -> str:
    """HTML of the page."""
    parts = [
        tag("h1", "Health"),
        _machines(view),
        devices.section(view),
        _noise(view),
        _same_code(view),
        _failures(view),
        _problems(view),
        _detector(),
    ]
    return page("Health", parts, here="health.html", foot=foot, root={"data_page": "health"})


def _machines(view: View) -> Markup:
    history = view.history
    lines = []
    for machine in history.machines:
        rows = [row for row, one in enumerate(history.series) if one.machine == machine]
        newest = max((int(view.last[row]) for row in rows), default=-1)
        if newest < 0:
            continue
        commit = history.commits[newest]
        ran = int((history.state[rows] != STATE_CODE[NOT_RUN]).any(axis=0).sum())
        when = (
            datetime.fromtimestamp(commit.date / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
            if commit.date
            else "–"
        )
        kinds = {history.series[row].modelled for row in rows}
        facts = machine_facts(view.results, machine)
        lines.append(
            tag(
                "tr",
                tag("th", text(machine, 60), scope="row"),
                tag("td", " and ".join("modelled" if one else "measured" for one in sorted(kinds, reverse=True))),
                tag("td", text(facts, 200)),
                tag("td", str(len(rows))),
                tag("td", str(ran)),
                tag("td", tag("code", commit.hash[:10]), " ", text(commit.subject, 60)),
                tag("td", when),
                tag("td", str(view.behind(newest))),
            )
        )
    head = ["machine", "numbers", "what it is", "series", "commits", "newest commit", "its date", "commits behind"]
    body = table(head, lines)
    return join([tag("h2", "Machines"), body])


def machine_facts(results: Path | None, machine: str) -> str:
    """CPU, system and memory as asv's machine file has them."""
    if results is None or "/" in machine or machine in ("", ".", ".."):
        return ""
    try:
        facts = json.loads((results / machine / "machine.json").read_text(errors="replace"))
        return ", ".join(str(facts[key]) for key in ("cpu", "os", "arch", "ram") if facts.get(key))
    except (OSError, ValueError, TypeError, AttributeError):
        return ""


def noise_rows(view: View) -> list[dict[str, Any]]:
    """Noise of each op, metric and machine: the median over its series of one standard deviation / level, and the
    spikes that all of them had."""
    history = view.history
    by_length: dict[int, list[tuple[int, np.ndarray]]] = {}
    for row, one in enumerate(history.series):
        if not one.deterministic:
            values = history.value[row]
            kept = values[~np.isnan(values)][-NEWEST_POINTS:]
            if kept.size >= LEAST_POINTS:
                by_length.setdefault(kept.size, []).append((row, kept))
    groups: dict[tuple[str, str, str], list[tuple[float, float, int, int]]] = {}
    for some_rows in by_length.values():
        values = np.array([kept for _, kept in some_rows])
        noise = estimate_noise(values)
        level = np.abs(np.median(values, axis=1))
        level[level == 0] = 1.0
        points = values.shape[1] - NEW_LEVEL
        for (row, _), sigma, rho, seen in zip(some_rows, noise.sigma / level, noise.rho, noise.seen):
            one = history.series[row]
            key = (one.op, one.metric, one.machine)
            groups.setdefault(key, []).append((float(sigma), float(rho), int(seen), points))
    found = []
    for (op, metric, machine), some in groups.items():
        sigma, rho = (float(np.median([one[at] for one in some])) for at in range(2))
        found.append(
            {
                "op": op,
                "metric": metric,
                "machine": machine,
                "series": len(some),
                "sigma": sigma,
                "rho": rho,
                "spikes": sum(one[2] for one in some),
                "points": sum(one[3] for one in some),
            }
        )
    return sorted(found, key=lambda one: -one["sigma"])


def _noise(view: View) -> Markup:
    rows = noise_rows(view)
    head = tag("h2", "Noise between commits, measured")
    modelled = tag(
        "p",
        "Modelled numbers have none: the same compiled code gives the same numbers, bit for bit.",
        class_="dim",
    )
    if not rows:
        said = f"No measured series with {LEAST_POINTS} points or more, so that no noise can be given."
        return join([head, tag("p", said), modelled])
    lines = [
        tag(
            "tr",
            tag("th", text(one["op"], 50), scope="row"),
            tag("td", text(one["metric"], 40)),
            tag("td", text(one["machine"], 40)),
            tag("td", str(one["series"])),
            tag("td", f"{one['sigma']:.2%}"),
            tag("td", f"{one['rho']:.2f}"),
            tag("td", f"{one['spikes']} of {one['points']} points" if one["spikes"] else "none seen"),
        )
        for one in rows[:SHOWN]
    ]
    names = ["op", "metric", "machine", "series", "standard deviation", "correlation of neighbours", "spikes"]
    body = table(names, lines)
    say = "Steps taken out; the median over the series. Lower is better: a change well below this cannot be seen."
    return join([head, dim(say), body, modelled])


def _same_code(view: View) -> Markup:
    """Changes of numbers without a change of compiled code: the machine, the driver or the model."""
    events = [one for one in view.events if one.kind == SAME_CODE]
    head = tag("h2", "Same compiled code, other number")
    if not events:
        return join([head, dim("None on record.")])
    lines = [
        tag(
            "li",
            text(f"{one.machine}: {one.op} {one.metric}", 120),
            " at ",
            tag("code", one.first_bad[:10]),
            " ",
            text(one.cause or "", 160),
        )
        for one in events[:30]
    ]
    return join([head, tag("ul", lines)])


def _failures(view: View) -> Markup:
    loud = [one for one in view.statuses if one.state != OK]
    head = tag("h2", "Not ok at the newest commit")
    if not loud:
        return join([head, tag("p", "Everything is ok.", class_="good")])
    return join([head, status_table(view, loud, limit=1000)])


def _problems(view: View) -> Markup:
    problems = view.history.problems
    head = tag("h2", "Results that could not be read")
    order = {
        "first parent": "Commits are in first-parent order.",
        "date": "Commits are ordered by date: no git history.",
    }
    said = dim(order.get(view.history.order, view.history.order))
    if not problems:
        return join([head, said, dim("None.")])
    lines = [
        tag("tr", tag("td", text(one.path, 120)), tag("td", text(one.reason, 300))) for one in problems[:SHOWN]
    ]
    more = dim(f"and {len(problems) - SHOWN} more") if len(problems) > SHOWN else None
    body = table(["file", "why"], lines)
    return join([head, said, body, more])


def _detector() -> Markup:
    """Figures of the detector, from the file that comes with it."""
    head = tag("h2", "Detector")
    try:
        figures = json.loads((Path(__file__).parents[1] / "quality.json").read_text())
        goals = figures["goals"]
        lines = [
            tag(
                "tr",
                tag("th", text(str(one["name"])), scope="row"),
                tag("td", f"{one['value']:.3g}"),
                tag("td", f"{one['sense']} {one['goal']:g}"),
                tag("td", "yes" if one["met"] else "no"),
            )
            for one in goals
        ]
    except (OSError, ValueError, KeyError, TypeError):
        said = [
            "How well changes are found is measured by ",
            tag("code", "python -m dashboards.quality --short"),
            ".",
        ]
        return join([head, tag("p", said)])
    again = tag("code", "python -m dashboards.quality --short")
    say = dim("Made-up and labelled series with known changes; ", again, " measures again.")
    return join([head, say, table(["figure", "value", "goal", "met"], lines)])
