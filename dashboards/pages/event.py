"""The page of one event: what moved, when, by whom, why, and the commands that show it again."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence

import numpy as np

from dashboards.events import BOUGHT, BOUNDARY, BY_EFFECT, REGRESSION, SAME_CODE, STATE, Event
from dashboards.pages import data, source
from dashboards.pages.kernel import sparkline
from dashboards.pages.markup import Markup, dim, join, page, prose, quantity, table, tag, text
from dashboards.pages.view import View, confirmed, event_name, kind_label, state_of, title_of
from dashboards.repository import RepositoryError
from dashboards.series import OK
from dashboards.text import change as percent

AROUND = 60
SHOWN_MEMBERS = 40


Keep = Callable[[str, Callable[[], Markup]], Markup]


def made_now(_name: str, make: Callable[[], Markup]) -> Markup:
    """Keeps nothing."""
    return make()


def window(view: View, event: Event) -> tuple[int, int]:
    """Columns around the change."""
    return max(0, event.last_good_at - AROUND), min(len(view.history.commits), event.first_bad_at + AROUND + 1)


def data_file(view: View, event: Event) -> str:
    """The series around the change, its controls and the commits, for the chart."""
    start, end = window(view, event)
    rows = [event.series, *controls(view, event)]
    return data.script(
        f"event/{event_name(event)}",
        {
            "start": start,
            "good": event.last_good_at - start,
            "bad": event.first_bad_at - start,
            "commits": [[one.hash[:10], data.shown(one.subject, 100)] for one in view.history.commits[start:end]],
            "series": [data.series_data(view, row, start, end) for row in rows],
        },
    )


def controls(view: View, event: Event) -> list[int]:
    """Rows beside the event's own: other implementations and twins of the same case, on the same machine."""
    own = view.history.series[event.series]
    return [
        row
        for row in view.kernel_of[event.series].rows
        if row != event.series
        and (one := view.history.series[row]).benchmark == own.benchmark
        and one.case == own.case
        and one.machine == own.machine
        and one.environment == own.environment
    ]


def range_text(view: View, event: Event) -> Markup:
    """The commits that the change lies in."""
    bad = view.commit(event.first_bad)
    between = event.first_bad_at - event.last_good_at
    more = f" ({between} measured commits)" if between > 1 else ""
    return join(
        [
            tag("code", f"{event.last_good[:8]}..{event.first_bad[:8]}"),
            tag("span", more, class_="dim") if more else None,
            " ",
            text(bad.subject, 80),
            tag("small", " by ", text(bad.author, 40), class_="dim") if bad.author else None,
        ]
    )


def suspect(view: View, event: Event, always: bool = False) -> str:
    """The likely cause in words.  Compiled forms are compared for open alarms alone, unless `always`; what came
    with the results costs nothing."""
    if event.cause:
        return event.cause
    if event.kind == BOUNDARY:
        return "another environment"
    if event.code_before and event.code_after and event.code_before != event.code_after:
        compared = always or (event.alarm and event.open)
        find = source.explained if compared else source.recorded
        told = find(event.code_before, event.code_after, view.results)
        return told[0] if told else "the compiled code changed"
    return "not known: no compiled code on record"


def same_commit(view: View, event: Event) -> list[Event]:
    """Other events of the same form of a kernel on the same machine that one commit may have made."""
    return [
        one
        for one in view.beside[event.suite, event.impl, event.machine]
        if one is not event and one.last_good_at < event.first_bad_at and event.last_good_at < one.first_bad_at
    ]


def commands(event: Event) -> dict[str, str]:
    """What to type: the command that shows the change again, and the one that finds its commit."""
    again = ["ascend-perf", "run", event.first_bad, f"--ops={event.op}", "--force"]
    find = ["ascend-perf", "bisect", f"{event.suite}.track_{event.metric}"]
    # with `=`, a name that starts with a dash is no option
    find += [f"--case={event.case}"] if event.case else []
    find += [f"--impl={event.impl}"] if event.impl else []
    find += ["--good", event.last_good, "--bad", event.first_bad]
    return {"reproduce": shlex.join(again), "bisect": shlex.join(find)}


def render(view: View, event: Event, foot: Markup, keep: Keep = made_now) -> str:
    """HTML of the page; `keep` gives back a part that never changes, or makes it."""
    kernel = view.kernel_of[event.series]
    sure, why = confirmed(view, event)
    kind = "modelled" if event.modelled else "measured"
    good, bad = view.commit(event.last_good), view.commit(event.first_bad)
    before, since = ("last good", "first bad") if event.kind in (REGRESSION, STATE) else ("before", "since")
    bad_tone = "bad" if event.alarm and event.open else ""
    sentence = [
        tag("span", kind_label(event), class_=f"chip {bad_tone}"),
        " ",
        tag("span", kind, class_=f"badge {kind}"),
        " ",
        tag("b", percent(event.size) if event.kind != STATE else f"{event.state_before} → {event.state_after}"),
        f" from {quantity(event.before, event.unit)} to {quantity(event.after, event.unit)}"
        if event.kind != STATE
        else None,
    ]
    facts = [
        ("kernel", tag("a", text(event.op), href="../" + kernel.path)),
        ("implementation", [text(event.impl or "-"), tag("span", f" {event.role}", class_="dim")]),
        ("case", text(event.case or "-")),
        ("metric", f"{event.metric}, {event.unit or 'no unit'}; {event.direction} is better"),
        ("machine", text(event.machine)),
        ("environment", text(event.environment, 300)),
        ("change, 99 %", f"{percent(event.low)} … {percent(event.high)}" if event.low < event.high else "exact"),
        (
            "state",
            state_of(event)
            if event.open
            else [
                "undone by ",
                tag("code", (event.recovered or "")[:10]),
                " ",
                text(view.commit(event.recovered or "").subject, 80),
            ],
        ),
        ("confirmed", f"{'yes' if sure else 'not yet'}: {why}"),
        ("suspected cause", prose(suspect(view, event, always=True), 600)),
        (before, [tag("code", good.hash), " ", text(good.subject), " ", tag("span", good.author, class_="dim")]),
        (since, [tag("code", bad.hash), " ", text(bad.subject), " ", tag("span", bad.author, class_="dim")]),
    ]
    others = same_commit(view, event)
    if others:
        links = [
            tag("a", text(f"{kind_label(one)}: {title_of(one)}", 120), href=f"{event_name(one)}.html")
            for one in others
        ]
        facts.append(("in the same commits", join(tag("div", link) for link in links)))
    said = commands(event)
    start, end = window(view, event)
    values = view.history.value[event.series, start:end]
    parts: list[object] = [
        tag("h1", text(title_of(event), 200)),
        tag("p", sentence, class_="lead"),
        tag(
            "div",
            sparkline(values, width=1000, height=330, label="series around the change"),
            id="chart-event",
            class_="chart",
        ),
        tag("p", id="point-event", class_="point", aria_live="polite"),
        tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in facts]),
        tag("h2", "See it again"),
        _command("shows it again", said["reproduce"]),
        _command("finds the commit", said["bisect"]) if event.kind not in (BOUNDARY, SAME_CODE) else None,
        _counts(view, event),
        _beside(view, event),
        _code(view, event),
        _source(view, event, keep),
    ]
    scripts = ("assets/plotly.min.js", f"data/event/{event_name(event)}.js", "assets/charts.js")
    root = {"data_page": "event", "data_event": f"event/{event_name(event)}", "data_kind": kind}
    return page(title_of(event), parts, depth=1, scripts=scripts, foot=foot, root=root)


def _command(what: str, line: str) -> Markup:
    copy = tag("button", "copy", type="button", class_="copy", data_copy=line)
    return tag("div", tag("span", what, class_="dim"), tag("code", text(line, 2000)), copy, class_="command")


def _counts(view: View, event: Event) -> Markup:
    """Before and after of every series that moved, and of the others of the same kernel and case."""
    history = view.history
    good, bad = event.last_good_at, event.first_bad_at
    own = history.series[event.series]
    moved = set(event.series_rows)
    traded = {one.series: one.cause for one in event.members if one.cause in (BOUGHT, BY_EFFECT)}
    # the event's own launch first
    rows = sorted(event.series_rows, key=lambda row: history.series[row].params != own.params)[:SHOWN_MEMBERS]
    rows += [
        row
        for row in view.kernel_of[event.series].rows
        if row not in moved
        and (one := history.series[row]).params == own.params
        and one.suite == own.suite
        and one.machine == own.machine
        and one.environment == own.environment
    ]
    lines = []
    for row in rows:
        one = history.series[row]
        before, after = float(history.value[row, good]), float(history.value[row, bad])
        change = (after - before) / before if before else (0.0 if after == before else math.inf)
        worse = change > 0 if one.direction == "lower" else change < 0
        tone = "" if not change or change != change else "worse" if worse else "better"
        states = f"{history.state_name(row, good)} → {history.state_name(row, bad)}"
        if states == f"{OK} → {OK}":
            states = OK
        if row in traded:
            tone, states = "dim", f"{states}, {traded[row]}"
        lines.append(
            tag(
                "tr",
                tag("th", text(one.metric, 60), scope="row"),
                tag("td", text(one.case or "-", 40)),
                tag("td", _spread(view, row, good)),
                tag("td", _spread(view, row, bad)),
                tag("td", percent(change) if change else "=", class_=tone),
                tag("td", f"{one.direction} is better", class_="dim"),
                tag("td", states),
            )
        )
    more = len(moved) - SHOWN_MEMBERS
    kind = "modelled" if event.modelled else "measured"
    head = [
        "metric",
        "case",
        f"before ({event.last_good[:8]})",
        f"after ({event.first_bad[:8]})",
        "change",
        "",
        "state",
    ]
    body = table(head, lines)
    return join(
        [
            tag("h2", f"Before and after, {kind}"),
            body,
            dim(f"and {more} more series") if more > 0 else None,
        ]
    )


def _spread(view: View, row: int, at: int) -> Markup:
    history = view.history
    one = history.series[row]
    low, high = history.low[row, at], history.high[row, at]
    said = quantity(float(history.value[row, at]), one.unit)
    if low == low and high == high:
        interval = (
            f" [{quantity(float(low), '')} … {quantity(float(high), '')}], {int(history.samples[row, at])} samples"
        )
        return join([said, tag("small", interval, class_="dim")])
    return text(said)


def _beside(view: View, event: Event) -> Markup | None:
    """Twins and other implementations at both ends: what moved with the kernel, and what did not."""
    rows = controls(view, event)
    history = view.history
    good, bad = event.last_good_at, event.first_bad_at
    lines = []
    for row in rows:
        one = history.series[row]
        ratios = [_over(history.value[row, at], history.value[event.series, at]) for at in (good, bad)]
        change = _over(history.value[row, bad] - history.value[row, good], history.value[row, good])
        findings = history.detail(row, bad).findings
        lines.append(
            tag(
                "tr",
                tag("th", text(one.impl, 40), " ", tag("span", view.roles[row], class_="dim"), scope="row"),
                [tag("td", f"×{ratio:.2f}" if np.isfinite(ratio) else "–") for ratio in ratios],
                tag("td", percent(float(change)) if change else "="),
                tag(
                    "td",
                    [text(findings[0], 200), f" (and {len(findings) - 1} more)" if len(findings) > 1 else None]
                    if findings
                    else "none",
                    class_="" if findings else "dim",
                ),
            )
        )
    if not lines:
        return None
    head = ["implementation", "ratio before", "ratio after", "its own change", "hazards"]
    body = table(head, lines)
    return join(
        [
            tag("h2", "Twins and controls"),
            tag(
                "p",
                "What moved alike points to the machine, the driver or the model; what did not, to the kernel.",
                class_="dim",
            ),
            body,
        ]
    )


def _over(a: float, b: float) -> float:
    """a / b as a float: 0 where both are 0, infinite or NaN where it is no number."""
    if b:
        return float(a) / float(b)
    return 0.0 if a == 0 else math.copysign(math.inf, a) if a == a else math.nan


def _code(view: View, event: Event) -> Markup:
    """What the compiler made, before and after."""
    head = tag("h2", "Compiled code")
    before, after = event.code_before, event.code_after
    if not before or not after:
        return join([head, dim("No compiled code is on record for one of the two commits.")])
    codes = tag("p", tag("code", text(before, 80)), " → ", tag("code", text(after, 80)))
    if before == after:
        said = "The compiled code is the same at both commits: the machine, the driver or the model changed."
        return join([head, codes, tag("p", said)])
    texts = source.compiled(before, after, view.results)
    sentences = source.explained(before, after, view.results)
    parts: list[object] = [head, codes]
    if sentences:
        parts.append(tag("ul", [tag("li", prose(one, 1000)) for one in sentences]))
    if all(texts):
        parts.append(side_by_side(source.pairs(*map(source.bare, texts))))
    else:
        parts.append(
            tag(
                "p",
                "These kernels were not compiled on this machine; the first command above does that.",
                class_="dim",
            )
        )
    return join(parts)


def _source(view: View, event: Event, keep: Keep) -> Markup:
    """The kernel's source between the two commits; it never changes, so that it is made once."""
    head = tag("h2", "Source")
    repo, kernel = view.repo, view.kernel_of[event.series]
    if repo is None:
        return join([head, dim("The git history is not here, so that the difference cannot be shown.")])
    good, bad = event.last_good, event.first_bad
    try:
        body = keep(
            f"source {good} {bad} {kernel.slug}", lambda: _difference(source.difference(repo, good, bad, kernel))
        )
    except RepositoryError as error:
        body = dim(f"git cannot show it: {error}")
    return join([head, body])


def _difference(found: source.Difference) -> Markup:
    parts: list[object] = []
    if found.commits:
        commits = [
            tag(
                "li",
                tag("code", one.hash[:10]),
                " ",
                text(one.subject),
                " ",
                tag("span", one.author, class_="dim"),
            )
            for one in found.commits
        ]
        parts.append(tag("details", tag("summary", f"{len(commits)} commits in the range"), tag("ul", commits)))
    if not found.lines:
        parts.append(dim("No file of the kernel changed between the two commits."))
    else:
        if found.of == source.OTHERS:
            parts.append(dim("No file of the kernel itself changed; these did."))
        if found.of == source.UNKNOWN:
            parts.append(dim("Which files are the kernel's is not known; these changed."))
        parts.append(diff_block(found.lines))
    return join(parts)


def diff_block(lines: Sequence[str]) -> Markup:
    """A unified difference."""
    tones = {"+": "add", "-": "del", "@": "at"}
    rows = [tag("span", text(one, 400) if one else " ", class_=tones.get(one[:1])) for one in lines]
    return tag("pre", join(Markup(row + "\n") for row in rows), class_="diff", tabindex="0")


def side_by_side(rows: Sequence[tuple[str | None, str | None]]) -> Markup:
    """Two texts beside each other, rows that differ marked."""

    def cell(one: str | None, other: str | None) -> Markup:
        tone = None if one == other else "none" if one is None else "changed"
        return tag("td", text(one or "", 240), class_=tone)

    lines = [tag("tr", cell(a, b), cell(b, a)) for a, b in rows]
    return table(["before", "after"], lines, around={"class_": "wide code"})


def fingerprint(view: View, event: Event) -> str:
    """Changes when anything that the page shows changes."""
    start, end = window(view, event)
    history = view.history
    rows = [event.series, *controls(view, event)]
    ends = history.value[np.ix_(view.kernel_of[event.series].rows, (event.last_good_at, event.first_bad_at))]
    columns = [
        column[rows, start:end].tobytes()
        for column in (history.value, history.low, history.high, history.state, history.code)
    ]
    names = [[one.hash for one in history.commits[start:end]], start, event.last_good_at, event.first_bad_at]
    said: list[object] = [
        event_name(event),
        title_of(event),
        kind_label(event),
        state_of(event),
        confirmed(view, event),
        suspect(view, event),
        percent(event.size),
        percent(event.low),
        percent(event.high),
        event.recovered,
        quantity(event.before, event.unit),
        quantity(event.after, event.unit),
        event.environment,
        [(event_name(one), kind_label(one), title_of(one)) for one in same_commit(view, event)],
        [one.cause for one in event.members],
    ]
    return data.digest_of(json.dumps([names, said, event.series_rows]), ends.tobytes(), *columns)
