"""Any two of commit, machine and environment beside each other."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator

import numpy as np

from dashboards.pages import data
from dashboards.pages.markup import Markup, dim, page, tag
from dashboards.pages.view import View


def files(view: View, foot: Markup) -> Iterator[tuple[str, tuple[str, Callable[[], str]]]]:
    """(name, (key, content)) of the page, the list of series and one file for each commit."""
    names = data.script("series", series_list(view))
    series_key = data.digest_of(names)
    yield "data/series.js", (series_key, lambda: names)
    content = render(view, foot)
    yield "compare.html", (data.digest_of(content), lambda: content)
    for at, commit in enumerate(view.history.commits):
        column = view.history.value[:, at]
        key = series_key + data.digest_of(np.ascontiguousarray(column).tobytes())
        yield f"data/at/{commit.hash}.js", (key, functools.partial(_at, view, at))


def _at(view: View, at: int) -> str:
    return data.script(f"at/{view.history.commits[at].hash}", data.numbers(view.history.value[:, at]))


def series_list(view: View) -> dict[str, object]:
    """What each row of a commit's file is: indices into lists of names, to keep it short."""
    texts: dict[str, int] = {}

    def index(value: str) -> int:
        return texts.setdefault(data.shown(value), len(texts))

    rows = []
    for row, one in enumerate(view.history.series):
        kernel = view.kernel_of[row]
        rows.append(
            [
                index(kernel.slug),
                index(one.op),
                index(one.case),
                index(one.impl or "-"),
                index(one.metric),
                index(one.machine),
                index(one.environment.label),
                index(one.unit.replace("(modelled)", "").strip()),
                int(one.direction == "higher"),
                int(one.modelled),
                int(view.roles[row] == "twin"),
            ]
        )
    return {"texts": list(texts), "rows": rows}


Place = tuple[str, str]


def columns_with_results(view: View) -> dict[Place, list[int]]:
    """Columns that hold a number, for each machine and environment; of a machine the newest environment first."""
    history = view.history
    rows: dict[Place, list[int]] = {}
    for row, one in enumerate(history.series):
        rows.setdefault((one.machine, one.environment.label), []).append(row)
    found = {
        place: np.flatnonzero(np.isfinite(history.value[some]).any(axis=0)).tolist()
        for place, some in rows.items()
    }
    machines = list(dict.fromkeys(machine for machine, _ in found))
    order = sorted(found, key=lambda place: (machines.index(place[0]), -max(found[place], default=-1)))
    return {place: found[place] for place in order}


def render(view: View, foot: Markup) -> str:
    """The page; its table is made in the browser, from the files of the two commits."""
    history = view.history
    places = columns_with_results(view)
    machines = list(dict.fromkeys(machine for machine, _ in places))
    labels = list(dict.fromkeys(label for _, label in places))
    shown_first = next((columns for columns in places.values() if columns), [0])

    def choices(values: list[str], limit: int) -> list[Markup]:
        return [tag("option", data.shown(one, limit), value=data.shown(one)) for one in values]

    def side(name: str, commit: int) -> Markup:
        options = [
            tag("option", f"{one.hash[:10]} {data.shown(one.subject, 60)}", value=str(at), selected=at == commit)
            for at, one in reversed(list(enumerate(history.commits)))
        ]
        return tag(
            "fieldset",
            tag("legend", name),
            tag("label", "commit", tag("select", options, data_side=name, data_what="commit")),
            tag("label", "machine", tag("select", choices(machines, 60), data_side=name, data_what="machine")),
            tag("label", "environment", tag("select", choices(labels, 120), data_side=name, data_what="env")),
        )

    parts = [
        tag("h1", "Compare"),
        dim("B against A: any two commits, machines or environments (compiler versions)."),
        tag("form", side("A", shown_first[-2:][0]), side("B", shown_first[-1]), class_="sides"),
        tag(
            "form",
            tag("input", type="search", id="search", placeholder="search ( / )", aria_label="search"),
            tag("label", tag("input", type="checkbox", id="only-changed", checked=True), "only what differs"),
            tag("label", tag("input", type="checkbox", id="with-twins"), "twins"),
            tag("output", "", id="match-count", aria_live="polite"),
            class_="filters",
        ),
        tag("div", id="compared"),
        tag("noscript", tag("p", "This page needs JavaScript; the kernel pages' tables do not.")),
    ]
    hashes = json.dumps([one.hash for one in history.commits])
    measured = json.dumps([[data.shown(name) for name in place] + [columns] for place, columns in places.items()])
    root = {"data_page": "compare", "data_commits": hashes, "data_places": measured}
    return page(
        "Compare",
        parts,
        here="compare.html",
        scripts=("data/series.js", "assets/compare.js"),
        foot=foot,
        root=root,
    )
