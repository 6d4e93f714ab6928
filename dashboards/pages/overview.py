"""The first page: is anything wrong now; the newest events; the seven states; op x case against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboards.detect import relative
from dashboards.events import BOUNDARY, IMPROVEMENT, REGRESSION, SAME_CODE, STATE, Event
from dashboards.pages import data
from dashboards.pages.event import range_text, suspect
from dashboards.pages.kernel import compiler_of, own_rows, status_table
from dashboards.pages.markup import Markup, dim, join, page, prose, quantity, table, tag, text
from dashboards.pages.view import (
    LEADING,
    MODEL_OR_NOT,
    View,
    confirmed,
    day,
    event_name,
    event_path,
    kind_label,
    state_of,
)
from dashboards.series import (
    BUILD_FAILED,
    COMPILE_FAILED,
    CRASHED,
    NOT_RUN,
    OK,
    SILENT_STATES,
    STATE_CODE,
    STATES,
    WRONG,
)
from dashboards.text import change as percent

LISTED_EVENTS = 200
# Of these, the rest stays folded until somebody asks for it or filters.
SHOWN_EVENTS = 12
# An event of one of this many newest commits is called new.
NEW = 20
# The heat map's data file stays below this, by leaving out the oldest commits.
HEAT_BYTES = 600_000
BASELINE = 20
# What a cell of the heat map, which is narrow, says of a baseline without a number.
WAS = {
    WRONG: "was wrong",
    COMPILE_FAILED: "no compile",
    CRASHED: "crashed",
    BUILD_FAILED: "no build",
}


def render(view: View, foot: Markup) -> str:
    """HTML of the overview."""
    parts: list[object] = [tag("h1", "Is anything wrong now?", class_="skip-print"), verdict(view), notices(view)]
    parts += [_filters(view), _states(view)]
    for modelled, word in reversed(MODEL_OR_NOT):
        events = [one for one in view.events if one.modelled == modelled]
        if any(one.modelled == modelled for one in view.history.series):
            parts.append(_events(view, events, word))
    parts += [*_heat(view), _kernels(view), _others(view)]
    return page(
        "Overview", parts, here="index.html", scripts=("data/heat.js",), foot=foot, root={"data_page": "overview"}
    )


def render_events(view: View, foot: Markup) -> str:
    """HTML of the list of all events."""
    parts: list[object] = [tag("h1", "All events"), _filters(view)]
    for modelled, word in reversed(MODEL_OR_NOT):
        events = [one for one in view.events if one.modelled == modelled]
        parts.append(_events(view, events, word, limit=4000, shown=4000))
    return page("All events", parts, here="events.html", foot=foot, root={"data_page": "events"})


def verdict(view: View) -> Markup:
    """One sentence: whether somebody has to act."""
    wrong = [one for one in view.statuses if one.wrong]
    slower = [one for one in view.alarms if one.kind == REGRESSION]
    newest = max(view.newest.values(), default=-1)
    where = _newest_results(view)
    if not wrong and not slower:
        late = " in the newest results of each machine" if any(map(view.behind, view.newest.values())) else ""
        calm = tag("b", f"✓ Nothing is wrong{late}. ")
        sentence = tag("p", calm, "No open regression, no failing kernel.", class_="good")
        return tag("div", sentence, where, class_="verdict")
    said = []
    if wrong:
        said.append(f"{len(wrong)} case{'s' * (len(wrong) != 1)} of kernels failing")
    if slower:
        counts = [sum(one.modelled == modelled for one in slower) for modelled, _ in reversed(MODEL_OR_NOT)]
        words = " and ".join(
            f"{count} {word.lower()}" for count, (_, word) in zip(counts, reversed(MODEL_OR_NOT)) if count
        )
        new = sum(one.first_bad_at > newest - NEW for one in slower)
        recent = f", {new} of them new in the last {NEW} commits" if newest >= NEW else ""
        said.append(f"{words} regression{'s' * (len(slower) != 1)} open{recent}")
    return tag("div", tag("p", tag("b", "✗ " + "; ".join(said)), class_="bad"), where, class_="verdict alarm")


def _newest_results(view: View) -> Markup | None:
    """Of each machine and kind of number the newest commit with results, and how old that is."""
    lines = []
    for (machine, modelled), at in sorted(view.newest.items(), key=lambda one: (-one[1], one[0])):
        if at < 0:
            continue
        commit, behind = view.history.commits[at], view.behind(at)
        late = f", {behind} commit{'s' * (behind != 1)} older than the newest with results" if behind else ""
        lines.append(
            tag(
                "li",
                f"{'modelled' if modelled else 'measured'} on ",
                text(machine, 60),
                ": ",
                tag("code", commit.hash[:10]),
                tag("b", late) if late else None,
                " ",
                text(commit.subject, 100),
                f", {day(commit)}" if commit.date else None,
            )
        )
    if not lines:
        return None
    return tag("div", "Newest results:", tag("ul", lines, class_="plain"), class_="dim")


def notices(view: View) -> Markup:
    """What the reader must know of the data itself."""
    return join(tag("p", prose(one, 600), class_="notice", role="note") for one in view.notices)


def _filters(view: View) -> Markup:
    series = view.history.series
    places = {
        "family": sorted({kernel.family for kernel in view.kernels}),
        "op": sorted({kernel.op for kernel in view.kernels}),
        "device": sorted({one.machine for one in series}),
        "compiler": sorted({compiler_of(one) for one in series}),
        "metric": sorted({one.metric for one in series}),
        "state": ["open", "undone", REGRESSION, IMPROVEMENT, SAME_CODE, BOUNDARY, *STATES],
    }
    controls = []
    for name, values in places.items():
        options = [tag("option", f"any {name}", value="")]
        options += [tag("option", text(one, 60), value=data.shown(one)) for one in values[:300]]
        controls.append(tag("select", options, data_filter=name, aria_label=name))
    search = tag(
        "input", type="search", id="search", placeholder="search ( / )", aria_label="search", autocomplete="off"
    )
    return tag(
        "form",
        search,
        controls,
        tag("button", "Clear", type="reset", id="clear"),
        tag("output", "", id="match-count", aria_live="polite"),
        class_="filters",
        role="search",
    )


def _events(
    view: View, events: Sequence[Event], word: str, limit: int = LISTED_EVENTS, shown: int = SHOWN_EVENTS
) -> Markup:
    kind = word.lower()
    head = tag("h2", "Events ", tag("span", kind, class_=f"badge {kind}"))
    if not events:
        return tag("section", head, dim("No change in the whole history."), class_=f"kind {kind}")
    ordered = sorted(events, key=_urgency) if shown == SHOWN_EVENTS else events
    rows = [event_row(view, one, folded=at >= shown) for at, one in enumerate(ordered[:limit])]
    fold = more = None
    if len(rows) > shown:
        fold = tag("button", f"show {len(rows) - shown} more", type="button", class_="unfold")
    if len(events) > limit:
        more = tag("p", tag("a", f"all {len(events)} events", href="events.html"))
    head_row = ["what", "kernel", "metric", "change", "commits", "state", "trust", "suspected cause"]
    body = table(head_row, rows, class_="filtered events")
    lead = (
        "What needs somebody first, then newest first; twins last." if shown == SHOWN_EVENTS else "Newest first."
    )
    return tag(
        "section",
        head,
        dim(lead),
        body,
        fold,
        more,
        class_=f"kind {kind}",
    )


def _urgency(event: Event) -> int:
    """Open alarms in front, changes of twins behind."""
    return 0 if event.alarm and event.open else 1 if event.role != "twin" else 2


def event_row(view: View, event: Event, *, folded: bool = False) -> Markup:
    """One line of a list of events; a folded one shows when it is asked for."""
    name = event_name(event)
    made = view.event_rows.get(name) or view.event_rows.setdefault(name, _event_row(view, event))
    return Markup(made.replace("<tr ", "<tr data-folded ", 1)) if folded else made


def _event_row(view: View, event: Event) -> Markup:
    kernel = view.kernel_of[event.series]
    sure, why = confirmed(view, event)
    if event.kind == STATE:
        change: object = [event.state_before, " → ", tag("b", event.state_after)]
    else:
        interval = f"{percent(event.low)} … {percent(event.high)}" if event.low < event.high else "exact"
        change = [
            tag("b", percent(event.size), class_="worse" if event.kind == REGRESSION else ""),
            tag(
                "span",
                f" {quantity(event.before, event.unit)} → {quantity(event.after, event.unit)}",
                class_="dim",
            ),
            tag("small", f" 99 %: {interval}" if interval != "exact" else " exact", class_="dim"),
        ]
    tone = "bad" if event.alarm and event.open else "good" if event.kind == IMPROVEMENT else ""
    others = len(event.series_rows) - 1
    series = view.history.series[event.series]
    states = ["open" if event.open else "undone", event.kind]
    if event.kind == STATE:
        states.append(event.state_after)
    return tag(
        "tr",
        tag("td", tag("a", kind_label(event), href=event_path(event), class_=f"chip {tone}")),
        tag(
            "td",
            tag("a", text(event.op, 50), href=kernel.path),
            " ",
            text(event.impl, 40),
            tag("small", f" {event.role}" if event.role == "twin" else "", class_="dim"),
        ),
        tag(
            "td",
            text(event.metric, 40),
            tag("small", f" {event.direction} is better", class_="dim"),
            tag("small", f", {event.case}" + (f" and {others} more series" if others else ""), class_="dim"),
        ),
        tag("td", change),
        tag("td", range_text(view, event)),
        tag("td", state_of(event)),
        tag("td", "confirmed" if sure else "not confirmed", title=why),
        tag("td", prose(suspect(view, event))),
        data_family=data.shown(kernel.family),
        data_op=data.shown(event.op),
        data_device=data.shown(event.machine),
        data_compiler=data.shown(compiler_of(series)),
        data_metric=data.shown(event.metric),
        data_state="|".join(states),
        tabindex="0",
    )


def _states(view: View) -> Markup:
    parts: list[object] = [tag("h2", "States at the newest results", id="states")]
    for modelled, word in reversed(MODEL_OR_NOT):
        kind = word.lower()
        if not any(one.modelled == modelled for one in view.history.series):
            parts.append(dim(tag("span", kind, class_=f"badge {kind}"), f" No {kind} results."))
            continue
        counts = view.counts(modelled)
        chips = [
            tag(
                "button",
                tag("b", str(counts[one])),
                f" {one}",
                type="button",
                class_="chip state",
                data_state=one,
                data_pick=one,
                disabled=not counts[one],
            )
            for one in STATES
        ]
        parts.append(
            tag("p", tag("span", kind, class_=f"badge {kind}"), " ", chips, _age(view, modelled), class_="chips")
        )
    loud = [one for one in view.statuses if one.state != OK]
    if loud:
        parts.append(
            tag(
                "details",
                tag("summary", f"Reasons of the {len(loud)} that are not ok"),
                status_table(view, loud),
                open=any(one.wrong for one in loud),
            )
        )
    return tag("section", parts)


def _age(view: View, modelled: bool) -> Markup:
    """How old the states of one kind of number are."""
    places = [at for (_, kind), at in view.newest.items() if kind == modelled and at >= 0]
    if len(places) != 1:
        most = max((view.behind(at) for at in places), default=0)
        return tag(
            "small", f"{len(places)} machines" + f", at most {most} commits behind" * bool(most), class_="dim"
        )
    behind = view.behind(places[0])
    late = f", {behind} commit{'s' * (behind != 1)} behind" if behind else ""
    return tag("small", "at ", tag("code", view.history.commits[places[0]].hash[:10]), late, class_="dim")


def heat_rows(view: View) -> list[dict[str, Any]]:
    """The op's own implementation of every case in every leading metric."""
    found = []
    history = view.history
    for kernel in view.kernels:
        for modelled, word in MODEL_OR_NOT:
            rows = [row for row in kernel.rows if history.series[row].modelled == modelled]
            for row in own_rows(view, rows):
                one = history.series[row]
                if one.metric in LEADING or (one.metric in ("ub_bytes", "scalar_accesses") and modelled):
                    found.append({"row": row, "kernel": kernel, "kind": word.lower(), "metric": one.metric})
    return found


def heat_data(view: View) -> str:
    """The data file of the heat map: as many of the newest commits as fit."""
    rows = heat_rows(view)
    length = len(view.history.commits)
    keep = max(2, min(length, HEAT_BYTES // (8 * max(len(rows), 1))))
    start = length - min(keep, length)
    return data.script(
        "heat",
        {
            "commits": [[one.hash[:10], data.shown(one.subject, 60)] for one in view.history.commits[start:]],
            "states": STATES,
            "was": [WAS.get(state, "new") for state in STATES],
            "rows": [
                [
                    one["kind"],
                    data.shown(one["metric"]),
                    data.shown(view.history.series[one["row"]].machine),
                    one["kernel"].slug,
                    data.shown(view.history.series[one["row"]].case),
                    view.history.series[one["row"]].direction,
                    data.numbers(view.history.value[one["row"], start:]),
                    round(view.noise.get(one["row"], 0.0), 5),
                    _runs(view.history.state[one["row"], start:]),
                ]
                for one in rows
            ],
        },
    )


def _runs(states: np.ndarray) -> list[list[int]]:
    """[column, state] wherever the state changes."""
    return [[int(at), int(states[at])] for at in np.flatnonzero(np.diff(states.astype(int), prepend=-1))]


def _heat(view: View) -> list[Markup]:
    """op x case, for each kind of number and machine: the newest value against the baseline."""
    rows = heat_rows(view)
    history = view.history
    found = []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in rows:
        groups.setdefault((one["kind"], history.series[one["row"]].machine), []).append(one)
    for (kind, machine), some in groups.items():
        metrics = list(dict.fromkeys(one["metric"] for one in some))
        first = next((one for one in LEADING if one in metrics), metrics[0])
        kernels = list(dict.fromkeys(one["kernel"].slug for one in some))
        by_slug = {one["kernel"].slug: one["kernel"] for one in some}
        # Commits that this machine measured: another one's say nothing of it.
        ran = history.state[[one["row"] for one in some]] != STATE_CODE[NOT_RUN]
        measured = np.flatnonzero(ran.any(axis=0))
        if not len(measured):  # the first steps: nothing is described yet
            continue
        newest = int(measured[-1])
        base = int(measured[max(0, len(measured) - 1 - BASELINE)])
        lines = []
        for name in kernels:
            cells = []
            for one in (one for one in some if one["kernel"].slug == name and one["metric"] == first):
                series = history.series[one["row"]]
                cells.append(_cell(view, one["row"], base, newest, by_slug[name].path, data.shown(series.case)))
            lines.append(
                tag(
                    "tr",
                    tag("th", tag("a", text(by_slug[name].op, 50), href=by_slug[name].path), scope="row"),
                    tag("td", tag("div", cells, class_="cells")),
                    data_family=data.shown(by_slug[name].family),
                    data_op=data.shown(by_slug[name].op),
                    data_device=data.shown(machine),
                    data_slug=name,
                )
            )
        choices = [
            tag("option", text(one, 40), value=data.shown(one))
            for one in sorted(metrics, key=lambda m: m != first)
        ]
        controls = tag(
            "form",
            tag("label", "metric", tag("select", choices, data_heat="metric")),
            tag(
                "label",
                "baseline",
                tag(
                    "select",
                    tag("option", f"{history.commits[base].hash[:10]}", value=str(base)),
                    data_heat="base",
                ),
            ),
            class_="controls",
        )
        body = table(
            [],
            lines,
            class_="heat filtered",
            data_kind=kind,
            data_machine=data.shown(machine),
            data_base=history.commits[base].hash[:10],
            data_newest=history.commits[newest].hash[:10],
        )
        found.append(
            tag(
                "section",
                tag(
                    "h2",
                    "Op × case against a baseline ",
                    tag("span", kind, class_=f"badge {kind}"),
                    " ",
                    tag("small", text(machine, 40), class_="dim"),
                ),
                controls,
                tag(
                    "p",
                    "Its newest commit, ",
                    tag("code", history.commits[newest].hash[:10]),
                    ", against the baseline; ▲ worse, ▼ better, = no change, ≈ within the noise of the run, "
                    "✗ not ok, · not run or unsupported; new: that was so at the baseline.",
                    class_="dim legend",
                ),
                body,
                class_=f"kind {kind}",
            )
        )
    return found


def _cell(view: View, row: int, base: int, newest: int, path: str, case: str) -> Markup:
    history, noise = view.history, view.noise.get(row, 0.0)
    now, before = history.value[row, newest], history.value[row, base]
    state = history.state_name(row, newest)
    one = history.series[row]
    if state != OK:
        said, tone, title = ("✗" if state not in SILENT_STATES else "·"), "state", f"{case}: {state}"
        if state not in SILENT_STATES:
            tone += " fails"
    else:
        change = relative(float(before), float(now))
        was = history.state_name(row, base)
        said, tone = tone_of(change, one.direction, noise, was)
        then = quantity(before, one.unit) if was in (OK, NOT_RUN) else was
        title = f"{case}: {then} → {quantity(now, one.unit)}"
        if said == "≈":
            title += f", {percent(change)}, which is noise up to {100 * noise:.1f} %"
    return tag(
        "a",
        tag("i", text(case or "all", 18)),
        tag("b", said),
        class_="cell " + tone,
        href=f"{path}#case={case}",
        title=title,
        data_case=case,
    )


def tone_of(change: float, direction: str, noise: float = 0.0, was: str = NOT_RUN) -> tuple[str, str]:
    """What a cell says and how strong it looks; a change up to `noise` is none that the run could show.

    Without a number at the baseline, it is the state that it had there: `was`.
    """
    if change != change:
        return WAS.get(was, "new"), "tone0"
    if abs(change) < 5e-4:
        return "=", "tone0"
    if abs(change) <= noise:
        return "≈", "tone0"
    bad = change > 0 if direction == "lower" else change < 0
    step = int(np.searchsorted([0.02, 0.05, 0.15], abs(change), side="right")) + 1
    return f"{'▲' if bad else '▼'}{percent(change)}", f"{'worse' if bad else 'better'}{min(step, 3)}"


def _kernels(view: View) -> Markup:
    """Links to every kernel, with its alarms."""
    alarms: dict[str, int] = {}
    for one in view.alarms:
        name = view.kernel_of[one.series].slug
        alarms[name] = alarms.get(name, 0) + 1
    tiles = [
        tag(
            "a",
            tag("b", text(kernel.op, 50)),
            tag("span", text(kernel.family, 40), class_="dim"),
            tag(
                "span",
                f"✗ {alarms[kernel.slug]} open" if kernel.slug in alarms else "✓",
                class_="worse" if kernel.slug in alarms else "better",
            ),
            class_="tile",
            href=kernel.path,
            data_family=data.shown(kernel.family),
            data_op=data.shown(kernel.op),
        )
        for kernel in view.kernels
    ]
    return tag("section", tag("h2", "Kernels", id="kernels"), tag("div", tiles, class_="tiles filtered-tiles"))


def _others(view: View) -> Markup | None:
    """Benchmarks that are of no kernel, which are in no state and no count above."""
    if not view.others:
        return None
    rows = [
        tag(
            "tr",
            tag("td", text(one.series.title, 120)),
            tag("td", quantity(one.value, one.series.unit)),
            tag("td", text(one.series.machine, 40)),
            tag("td", tag("code", one.commit.hash[:10])),
        )
        for one in view.others
    ]
    return tag(
        "section",
        tag("h2", "Other benchmarks", id="others"),
        dim("Of no kernel, such as this suite's own speed: neither modelled nor measured on a device."),
        table(["benchmark", "newest", "run as", "commit"], rows),
    )


def foot(view: View) -> Markup:
    """Compiler versions and where the data came from, on every page."""
    known: dict[str, set[str]] = {}
    for one in view.history.environments:
        for name, value in one.pairs:
            if name in (
                "triton-ascend",
                "ascendnpu-ir",
                "ascend-model",
                "torch",
                "triton",
                "torch_npu",
                "cann",
                "python",
            ):
                known.setdefault(name, set()).add(value)
    words = "; ".join(f"{name} {', '.join(sorted(values))}" for name, values in sorted(known.items()))
    return tag(
        "p",
        "Made with ",
        text(words or "no environment named", 600),
        ". Modelled numbers come from a model of compiled code, never from an NPU.",
    )
