"""Commit x compiler version: which states, and how the leading numbers differ between versions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dashboards.pages.kernel import compiler_of, leading_metric
from dashboards.pages.markup import Markup, dim, join, page, table, tag, text
from dashboards.pages.view import MODEL_OR_NOT, View
from dashboards.series import NOT_RUN, OK, STATES

NEWEST = 100


def render(view: View, foot: Markup) -> str:
    """HTML of the page."""
    parts: list[object] = [
        tag("h1", "Compilers"),
        dim(
            "Each cell: how many series are in which state, and the geometric mean of the leading number ",
            "against the first column at the same commit (below 1 is faster).",
        ),
    ]
    for modelled, word in MODEL_OR_NOT:
        grid = _grid(view, modelled, word.lower())
        if grid:
            parts.append(grid)
    return page("Compilers", parts, here="compilers.html", foot=foot, root={"data_page": "compilers"})


def _grid(view: View, modelled: bool, kind: str) -> Markup | None:
    history = view.history
    columns: dict[tuple[str, str], list[int]] = {}
    for row, one in enumerate(history.series):
        if one.modelled == modelled and view.roles[row] != "twin":
            columns.setdefault((compiler_of(one), one.machine), []).append(row)
    if not columns:
        return None
    order = sorted(columns, key=lambda one: (-len(columns[one]), one))
    first = {_key(view, row): row for row in columns[order[0]]}
    lines = []
    for at in range(len(history.commits) - 1, max(-1, len(history.commits) - 1 - NEWEST), -1):
        cells = [_cell(view, columns[one], first if one != order[0] else {}, at) for one in order]
        commit = history.commits[at]
        head = tag("th", tag("code", commit.hash[:10]), " ", text(commit.subject, 60), scope="row")
        lines.append(tag("tr", head, cells))
    names = [
        join([text(compiler, 120), tag("small", " on ", text(machine, 40), class_="dim")])
        for compiler, machine in order
    ]
    body = table(["commit", *names], lines, class_="grid")
    note = None
    if len(order) == 1 and "ascendnpu-ir" in history.series[columns[order[0]][0]].environment.versions:
        note = tag(
            "p",
            "One compiler is measured. Another one is another series: ",
            tag("code", "ascend-perf run --last 3 --compiler 1.1.0 --compiler 1.2.0"),
            class_="notice",
        )
    return tag(
        "section",
        tag("h2", kind.capitalize(), " ", tag("span", kind, class_=f"badge {kind}")),
        note,
        body,
        class_=f"kind {kind}",
    )


def _key(view: View, row: int) -> tuple[object, ...]:
    one = view.history.series[row]
    return one.benchmark, one.params


def _cell(view: View, rows: list[int], first: dict[tuple[object, ...], int], at: int) -> Markup:
    history = view.history
    counts = Counter(STATES[code] for code in history.state[rows, at])
    if counts[NOT_RUN] == len(rows):
        return tag("td", "–", class_="dim")
    metric = leading_metric(history.series[row].metric for row in rows)
    ratios = []
    for row in rows:
        other = first.get(_key(view, row))
        if other is None or history.series[row].metric != metric:
            continue
        ratio = history.value[row, at] / history.value[other, at]
        if np.isfinite(ratio) and ratio > 0:
            ratios.append(float(np.log(ratio)))
    mean = (
        tag("b", f"×{np.exp(np.mean(ratios)):.3f} ", title=f"{metric}, {len(ratios)} series") if ratios else None
    )
    words = [
        tag("span", f"{counts[state]} {state}", class_="state", data_state=state)
        for state in STATES
        if counts[state] and state != NOT_RUN
    ]
    return tag("td", mean, join(words), class_="" if counts[OK] else "fails")
