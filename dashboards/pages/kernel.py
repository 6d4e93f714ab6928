"""The page of one kernel: history, shapes, twins, roof, unified buffer, verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dashboards.events import Event
from dashboards.pages import data
from dashboards.pages.markup import Markup, dim, join, page, quantity, table, tag, text
from dashboards.pages.view import LEADING, MODEL_OR_NOT, Kernel, Status, View, event_path, kind_label
from dashboards.series import COMPILERS, OK, STATES, Series
from dashboards.text import change as percent

UB_BYTES = 192 * 1024
SHOWN_EVENTS = 6


def render(view: View, kernel: Kernel, events: Sequence[Event], foot: Markup) -> str:
    """HTML of the page."""
    parts: list[object] = [
        tag("h1", tag("span", kernel.family + " /", class_="dim"), " ", text(kernel.op)),
        _events(view, events),
    ]
    for modelled, word in MODEL_OR_NOT:
        rows = [row for row in kernel.rows if view.history.series[row].modelled == modelled]
        if rows:
            parts.append(_section(view, kernel, rows, modelled, word))
    parts += [_verdicts(view, kernel)]
    scripts = ("assets/plotly.min.js", "data/commits.js", "assets/charts.js")
    marks = [
        {
            "at": one.first_bad_at,
            "impl": data.shown(one.impl),
            "modelled": one.modelled,
            "kind": kind_label(one),
            "path": event_path(one),
        }
        for one in events
    ]
    root = {
        "data_page": "kernel",
        "data_marks": json.dumps(marks),
        "data_states": json.dumps(STATES),
        "data_cases": json.dumps(
            {data.shown(case): data.case_path(kernel, case) for case in cases_of(view, kernel.rows)}
        ),
    }
    return page(f"{kernel.op}", parts, depth=1, scripts=scripts, foot=foot, root=root)


def cases_of(view: View, rows: Iterable[int]) -> dict[str, list[int]]:
    """Rows of each case, in the order of asv's parameters."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(view.history.series[row].case, []).append(row)
    return found


def leading_metric(metrics: Iterable[str]) -> str:
    """The metric to show first."""
    known = list(dict.fromkeys(metrics))
    return next((one for one in LEADING if one in known), known[0] if known else "")


def sparkline(values: np.ndarray, *, width: int = 150, height: int = 34, label: str = "") -> Markup:
    """A small line without axes; gaps stay gaps."""
    places = np.flatnonzero(np.isfinite(values))
    if not places.size:
        return tag("span", "no value", class_="dim")
    if places.size > 2 * width:
        places = places[np.linspace(0, places.size - 1, 2 * width).astype(int)]
    kept = values[places]
    low, high = float(kept.min()), float(kept.max())
    span = (high - low) or 1.0
    x = (places - places[0]) / max(int(places[-1] - places[0]), 1) * (width - 4) + 2
    y = height - 3 - (kept - low) / span * (height - 6) if high > low else np.full(kept.size, height / 2)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))
    line = tag("polyline", points=points, fill="none") if kept.size > 1 else None
    dot = tag("circle", cx=f"{x[-1]:.1f}", cy=f"{y[-1]:.1f}", r="2.5")
    return tag(
        "svg",
        line,
        dot,
        viewBox=f"0 0 {width} {height}",
        preserveAspectRatio="none",
        width=width,
        height=height,
        class_="spark",
        role="img",
        aria_label=label,
    )


def _events(view: View, events: Sequence[Event]) -> Markup:
    if not events:
        return dim("No change in the history of this kernel.")
    rows = [
        tag(
            "li",
            tag("a", kind_label(one), href="../" + event_path(one), class_=f"chip {'bad' if one.alarm else ''}"),
            " ",
            text(f"{one.impl} {one.case} {one.metric}", 80),
            " ",
            percent(one.size) if one.size == one.size else None,
            " at ",
            tag("code", one.first_bad[:10]),
            " ",
            text(view.commit(one.first_bad).subject, 70),
            None if one.open else " (undone since)",
        )
        for one in events
    ]
    first, rest = rows[:SHOWN_EVENTS], rows[SHOWN_EVENTS:]
    older = (
        tag("details", tag("summary", f"{len(rest)} older ones"), tag("ul", rest, class_="plain"))
        if rest
        else None
    )
    return join([tag("h2", "Events"), tag("ul", first, class_="plain"), older])


def _section(view: View, kernel: Kernel, rows: list[int], modelled: bool, word: str) -> Markup:
    series = view.history.series
    metrics = list(dict.fromkeys(series[row].metric for row in rows))
    first = leading_metric(metrics)
    kind = word.lower()
    said = (
        "Modelled: from executing the code that Ascend's compiler made, on a CPU. Nothing here ran on an NPU."
        if modelled
        else "Measured on a device; the band is the 99 % interval of the samples."
    )
    parts: list[object] = [
        tag("h2", word, " ", tag("span", kind, class_=f"badge {kind}")),
        dim(said),
        _controls(view, rows, metrics, first, kind),
        tag("div", _first_line(view, rows, first), id=f"chart-{kind}", class_="chart"),
        tag("p", id=f"point-{kind}", class_="point", aria_live="polite"),
        _shapes(view, rows, first, kind),
        _twins(view, rows, metrics, first, kind),
    ]
    if modelled:
        parts += [_roof(view, rows), _pipes(view, rows), _buffer(view, rows)]
    return tag("section", parts, class_=f"kind {kind}", data_kind=kind, id=kind)


def _first_line(view: View, rows: list[int], metric: str) -> Markup | None:
    """The line that stands in the chart's place until the chart is drawn."""
    row = next((row for row in own_rows(view, rows) if view.history.series[row].metric == metric), None)
    if row is None:
        return None
    return sparkline(view.history.value[row], width=1000, height=330, label=f"history of {metric}")


def _controls(view: View, rows: list[int], metrics: list[str], first: str, kind: str) -> Markup:
    series = view.history.series
    shown_first = next((row for row in rows if view.is_shown(row)), rows[0])

    def choice(name: str, values: Iterable[str], chosen: str) -> Markup:
        known = list(dict.fromkeys(values))
        options = [
            tag("option", text(one, 80), value=data.shown(one), selected=one == chosen) for one in known if one
        ]
        return tag(
            "label", name, tag("select", options, data_control=name, data_kind=kind), hidden=len(options) < 2
        )

    return tag(
        "form",
        choice("case", (series[row].case for row in rows), series[shown_first].case),
        choice("metric", metrics, first),
        choice("machine", (series[row].machine for row in rows), series[shown_first].machine),
        choice("env", (series[row].environment.label for row in rows), series[shown_first].environment.label),
        tag("label", tag("input", type="checkbox", data_control="twins", data_kind=kind, checked=True), "twins"),
        tag("label", tag("input", type="checkbox", data_control="zero", data_kind=kind), "axis from 0"),
        class_="controls",
    )


def own_rows(view: View, rows: Iterable[int]) -> list[int]:
    """Of the environment shown first: the rows of the op's own implementation, which its wrapper chooses there."""
    shown = [row for row in rows if view.is_shown(row)]
    best = min((_RANK.get(view.roles[row], 2) for row in shown), default=0)
    own = [row for row in shown if _RANK.get(view.roles[row], 2) == best]
    return [row for row in own if view.history.series[row].impl == view.history.series[own[0]].impl]


_RANK = {"op": 0, "other": 1, "twin": 3}
# Roles in the order of tables: the form that stands for the op first.
ROLES = {"own": "the op's own", "op": "the op's own elsewhere", "other": "other form", "twin": "twin"}


def _shapes(view: View, rows: list[int], metric: str, kind: str) -> Markup | None:
    """History of each case in small, all of the op's own implementation."""
    history = view.history
    tiles = []
    for row in own_rows(view, rows):
        one = history.series[row]
        if one.metric != metric:
            continue
        at = int(view.last[row])
        now = quantity(history.value[row, at], one.unit) if at >= 0 else "not run"
        if at >= 0 and history.state_name(row, at) != OK:
            now = history.state_name(row, at)
        tiles.append(
            tag(
                "a",
                tag("b", text(one.case or "all", 40)),
                sparkline(history.value[row], label=f"{one.case}: {now}"),
                tag("span", now),
                class_="tile",
                href="#" + kind,
                data_case=data.shown(one.case),
                data_kind=kind,
            )
        )
    if len(tiles) < 2:
        return None
    unit = next(history.series[row] for row in rows if history.series[row].metric == metric)
    say = (
        f"{metric} over shapes, {unit.unit.replace('(modelled)', '').strip()} ({kind}), {unit.direction} is better"
    )
    return join([tag("h3", text(say)), tag("div", tiles, class_="tiles")])


def axis_title(metric: str, unit: str, kind: str, better: str) -> str:
    """`ub_bytes, B (modelled), lower is better`."""
    plain = unit.replace("(modelled)", "").strip()
    return f"{metric if plain in ('', metric) else f'{metric}, {plain}'} ({kind}), {better} is better"


def _twins(view: View, rows: list[int], metrics: list[str], first: str, kind: str) -> Markup | None:
    """Twins beside their op: how many times its number, with the hazards of each."""
    history = view.history
    shown = [row for row in rows if view.is_shown(row)]
    own = own_rows(view, rows)
    if not own:
        return None
    base = history.series[own[0]].impl
    cell = {(history.series[r].metric, history.series[r].impl, history.series[r].case): r for r in shown}
    roles: dict[str, str] = {}
    for row in shown:
        roles.setdefault(history.series[row].impl, "own" if history.series[row].impl == base else view.roles[row])
    impls = sorted(roles, key=lambda impl: list(ROLES).index(roles[impl]) if roles[impl] in ROLES else len(ROLES))
    cases = list(dict.fromkeys(history.series[row].case for row in shown))
    if len(impls) < 2:
        return None
    tables = []
    for metric in metrics:
        unit = next((history.series[r].unit for r in shown if history.series[r].metric == metric), "")
        better = next((history.series[r].direction for r in shown if history.series[r].metric == metric), "lower")
        lines = []
        for impl in impls:
            found = [cell.get((metric, impl, case)) for case in cases]
            marks = [_ratio(view, row, cell.get((metric, base, case)), better) for row, case in zip(found, cases)]
            role = tag("span", text(ROLES.get(roles[impl], roles[impl]), 40), class_="dim")
            lines.append(tag("tr", tag("th", text(impl, 40), " ", role, scope="row"), marks))
        head = ["implementation", *(text(case or "all", 24) for case in cases)]
        caption = axis_title(metric, unit, kind, better)
        around = {"data_twins": data.shown(metric), "hidden": metric != first}
        tables.append(table(head, lines, caption=text(caption), around=around, class_="grid"))
    hazards = _hazards(view, shown, impls)
    kinds = ["Twins (the same job with one source pattern changed)"] if "twin" in roles.values() else []
    if set(roles.values()) - {"own", "twin"}:
        kinds.append("other forms of the op" if kinds else "Other forms of the op")
    return join(
        [
            tag("h3", " and ".join(kinds), ", as a ratio to ", tag("code", text(base, 40))),
            tables,
            hazards,
        ]
    )


def _ratio(view: View, row: int | None, base: int | None, better: str) -> Markup:
    if row is None:
        return tag("td", "–")
    history = view.history
    at = int(view.last[row])
    one = history.series[row]
    if at < 0:
        return tag("td", "not run", class_="dim")
    state = history.state_name(row, at)
    value = history.value[row, at]
    mark = hazard(history.detail(row, at).findings)
    if state != OK:
        return tag("td", tag("span", state, class_="state", data_state=state, title=view.reason(row, at)), mark)
    below = history.value[base, at] if base is not None else float("nan")
    ratio = value / below if below else float("nan")
    said = "=" if row == base else f"×{ratio:.2f}" if ratio == ratio else ""
    tone = ""
    if ratio == ratio and row != base:
        slower = ratio > 1.005 if better == "lower" else ratio < 0.995
        faster = ratio < 0.995 if better == "lower" else ratio > 1.005
        tone = "worse" if slower else "better" if faster else ""
    return tag(
        "td",
        tag("b", said, class_=tone),
        " ",
        tag("span", quantity(value, one.unit), class_="dim"),
        [" ", mark] if mark else None,
    )


def _hazards(view: View, shown: list[int], impls: list[str]) -> Markup | None:
    """What executing each implementation found, once for each of them."""
    lines = []
    for impl in impls:
        seen: dict[str, list[str]] = {}
        for row in shown:
            one = view.history.series[row]
            if one.impl == impl and view.last[row] >= 0:
                for finding in view.history.detail(row, int(view.last[row])).findings:
                    where = seen.setdefault(finding, [])
                    if one.case not in where:
                        where.append(one.case)
        if seen:
            finding, cases = next(iter(seen.items()))
            more = f"; {len(seen) - 1} more like it" if len(seen) > 1 else ""
            where_text = tag("span", f" ({', '.join(cases)}{more})", class_="dim")
            lines.append(tag("li", tag("b", text(impl, 40)), ": ", text(finding, 400), where_text))
    if not lines:
        return None
    said = f"⚠ Hazards found in the executed code of {len(lines)} implementations"
    return tag("details", tag("summary", said), tag("ul", lines), open=True)


def _latest(view: View, rows: Iterable[int], metric: str) -> dict[str, float]:
    """Newest value of each case."""
    found = {}
    for row in rows:
        one = view.history.series[row]
        if one.metric == metric and view.last[row] >= 0:
            value = float(view.history.value[row, int(view.last[row])])
            if value == value:
                found[one.case] = value
    return found


def _roof(view: View, rows: list[int]) -> Markup | None:
    """Time against bytes, with the line below which no launch can be."""
    own = own_rows(view, rows)
    cycles = _latest(view, own, "cycles")
    moved = [_latest(view, own, name) for name in ("bytes_in", "bytes_out")]
    points = {case: sum(one.get(case, 0.0) for one in moved) for case in cycles}
    points = {case: size for case, size in points.items() if size > 0}
    rate = bytes_per_cycle()
    if not points or not rate:
        return None
    lines = [
        tag(
            "tr",
            tag("th", text(case or "all", 40), scope="row"),
            tag("td", quantity(size, "B")),
            tag("td", quantity(cycles[case], "cycles")),
            tag("td", quantity(round(size / rate), "cycles") if size >= rate else "under 1 cycle"),
            tag("td", f"{size / rate / cycles[case]:.1%}", _bar(size / rate / cycles[case])),
        )
        for case, size in points.items()
    ]
    plot = [[data.shown(case), size, cycles[case]] for case, size in points.items()]
    head = [
        "case",
        "bytes moved",
        "time (modelled)",
        "time at full bandwidth",
        "fraction of roof, higher is better",
    ]
    return join(
        [
            tag("h3", "Time against bytes (modelled)"),
            tag("div", id="roof", class_="chart", data_points=json.dumps(plot), data_rate=rate),
            table(head, lines),
            dim(f"The roof is {rate:.0f} B a cycle: the memory bandwidth of the model's table of costs."),
        ]
    )


def bytes_per_cycle() -> float:
    """Memory bandwidth of the model, over all cores; 0 where it is not known."""
    try:
        from ascend_model import load_costs

        costs = load_costs().table()
        return costs["target.memory_bandwidth"] / costs["target.clock"]
    except (ImportError, OSError, KeyError, ValueError):
        return 0.0


def _buffer(view: View, rows: list[int]) -> Markup | None:
    used = _latest(view, own_rows(view, rows), "ub_bytes")
    if not used:
        return None
    lines = [
        tag(
            "tr",
            tag("th", text(case or "all", 40), scope="row"),
            tag("td", quantity(size, "B")),
            tag("td", f"{size / UB_BYTES:.1%}", _bar(size / UB_BYTES)),
        )
        for case, size in used.items()
    ]
    return join(
        [
            tag("h3", "Unified buffer used, of 192 KB (modelled, lower is better)"),
            table([], lines),
        ]
    )


def _bar(share: float) -> Markup:
    width = max(0.0, min(share, 1.0)) * 100
    return tag(
        "svg",
        tag("rect", width=100, height=8, class_="back"),
        tag("rect", width=f"{width:.1f}", height=8, class_="fill"),
        viewBox="0 0 100 8",
        width=100,
        height=8,
        class_="bar",
        aria_hidden="true",
    )


def _verdicts(view: View, kernel: Kernel) -> Markup:
    """State of each case of each implementation, and the reasons of those that are not ok."""
    mine = [one for one in view.statuses if one.kernel is kernel]
    parts: list[object] = [tag("h2", "Last verdicts", id="verdicts")]
    parts.append(
        tag(
            "p",
            "A verdict compares every output with the reference, before any number is kept; the "
            "tolerance is the registry's. ⚠ counts what is unsafe in the executed code of a twin.",
            class_="dim",
        )
    )
    groups: dict[tuple[bool, str], list[Status]] = {}
    for one in mine:
        groups.setdefault((one.series.modelled, one.series.machine), []).append(one)
    for (modelled, machine), some in groups.items():
        cases = list(dict.fromkeys(one.series.case for one in some))
        by_impl: dict[str, dict[str, Status]] = {}
        for one in some:
            by_impl.setdefault(one.series.impl, {})[one.series.case] = one
        lines = [
            tag(
                "tr",
                _form(impl, row),
                [_verdict(view, row.get(case)) for case in cases],
            )
            for impl, row in by_impl.items()
        ]
        head = ["implementation", *(text(case or "all", 24) for case in cases)]
        kind = "modelled" if modelled else "measured"
        caption = [
            tag("span", kind, class_=f"badge {kind}"),
            " ",
            text(machine, 60),
            " at ",
            tag("code", view.history.commits[max(one.at for one in some)].hash[:10]),
        ]
        parts.append(table(head, lines, caption=caption, class_="grid"))
    loud = [one for one in mine if one.state != OK]
    if loud:
        parts.append(status_table(view, loud, up="../"))
    return join(parts)


def _form(impl: str, row: Mapping[str, Status]) -> Markup:
    role = next(iter(row.values())).role
    said = tag("span", text(ROLES.get(role, role), 40), class_="dim") if role != "op" else None
    return tag("th", text(impl or "-", 40), " " if said else None, said, scope="row")


def _verdict(view: View, status: Status | None) -> Markup:
    if status is None:
        return tag("td", "–", class_="dim")
    why = view.reason(status.row, status.at)
    said = tag("span", status.state, class_="state", data_state=status.state, title=why or None)
    return tag("td", said, hazard(status.detail.findings))


def hazard(findings: Sequence[str]) -> Markup | None:
    """How many hazards the executed code showed."""
    if not findings:
        return None
    return tag("span", f"⚠ {len(findings)}", class_="hazard", title="; ".join(findings))


def _pipes(view: View, rows: list[int]) -> Markup | None:
    """How long each pipe of the slowest program is busy, and what it waits for."""
    found = {}
    for row in own_rows(view, rows):
        one = view.history.series[row]
        if one.case not in found and view.last[row] >= 0:
            pipes = view.history.detail(row, int(view.last[row])).pipes
            if pipes.get("busy"):
                found[one.case] = pipes
    if not found:
        return None
    names = list(dict.fromkeys(name for pipes in found.values() for name in pipes["busy"]))
    lines = []
    for case, pipes in found.items():
        busy, stalls = pipes["busy"], pipes.get("stalls", {})
        waits = {name: _waits(name, stalls) for name in names}
        total = max(busy.get(name, 0) + waits[name] for name in names) or 1
        cells = [
            tag(
                "td",
                _busy_bar(busy.get(name, 0) / total, waits[name] / total),
                f" {busy.get(name, 0) / total:.0%}",
            )
            for name in names
        ]
        longest = sorted(stalls.items(), key=lambda one: -one[1])[:3]
        said = ", ".join(f"{cause} {cycles:,}" for cause, cycles in longest if cycles)
        lines.append(
            tag(
                "tr",
                tag("th", text(case or "all", 40), scope="row"),
                cells,
                tag("td", quantity(total, "cycles")),
                tag("td", text(said or "none", 200), class_="dim"),
            )
        )
    head = ["case", *(f"{name} busy" for name in names), "of (modelled)", "longest stalls, cycles"]
    body = table(head, lines)
    say = (
        "The slowest program: full part busy, orange part waiting, rest idle. S scalar, V vector, MTE2 copies in, "
        "MTE3 copies out. "
    )
    trace = tag("code", "ascend-perf model OP --case CASE --trace FILE")
    return join(
        [
            tag("h3", "Pipes of the launch (modelled)"),
            dim(say, trace, " writes every op for a trace viewer."),
            body,
        ]
    )


def _waits(pipe: str, stalls: Mapping[str, int]) -> int:
    """Cycles that a pipe stood still for others; a barrier over all pipes is the scalar pipe's."""
    return sum(
        cycles
        for cause, cycles in stalls.items()
        if cause.startswith((f"{pipe} waits", f"{pipe} barrier"))
        or (pipe == "S" and cause == "barrier over all pipes")
    )


def _busy_bar(busy: float, waiting: float) -> Markup:
    full, half = min(busy, 1.0) * 100, min(waiting, 1.0 - min(busy, 1.0)) * 100
    return tag(
        "svg",
        tag("rect", width=100, height=8, class_="back"),
        tag("rect", width=f"{full:.1f}", height=8, class_="fill"),
        tag("rect", x=f"{full:.1f}", width=f"{half:.1f}", height=8, class_="waits"),
        viewBox="0 0 100 8",
        width=100,
        height=8,
        class_="bar",
        role="img",
        aria_label=f"busy {busy:.0%}, waiting {waiting:.0%}",
    )


def status_table(view: View, statuses: Sequence[Status], *, up: str = "", limit: int = 400) -> Markup:
    """State, reason and place of each, those that are not ok first."""
    ordered = sorted(statuses, key=lambda one: (not one.wrong, one.state == OK))
    rows = [
        tag(
            "tr",
            tag("td", tag("span", one.state, class_="state", data_state=one.state)),
            tag("td", tag("a", text(one.kernel.op, 50), href=up + one.kernel.path)),
            tag("td", text(one.series.case or "-", 40)),
            tag("td", text(one.series.impl or "-", 40), tag("span", f" {one.role}", class_="dim")),
            tag("td", "modelled" if one.series.modelled else "measured"),
            tag("td", text(one.series.machine, 40)),
            tag("td", tag("code", view.history.commits[one.at].hash[:10]) if one.at >= 0 else "–"),
            tag("td", text(view.reason(one.row, one.at), 200)),
            data_family=data.shown(one.kernel.family),
            data_op=data.shown(one.kernel.op),
            data_state=one.state,
            data_device=data.shown(one.series.machine),
            data_compiler=data.shown(compiler_of(one.series)),
        )
        for one in ordered[:limit]
    ]
    more = f"and {len(ordered) - limit} more that are {ordered[-1].state}" if len(ordered) > limit else None
    head = ["state", "op", "case", "implementation", "number", "machine", "commit", "reason"]
    return join([table(head, rows, class_="filtered"), dim(more) if more else None])


def compiler_of(series: Series) -> str:
    """Versions of the compilers that a series was made with, as one short text."""
    known = series.environment.versions
    names = [name for name in COMPILERS if name in known] or [name for name in ("triton",) if name in known]
    return ", ".join(f"{name} {known[name]}" for name in names) or "compiler not named"
