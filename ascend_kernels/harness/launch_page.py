"""One self-contained page about launches in the model: numbers, what is wrong, advice, timeline, source, code.

It loads nothing, works from `file://`, and every text of a kernel is escaped."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ascend_model.markup import Markup, cut, tag, text, visible
from ascend_model.text import change, whole

from .forms import Comparison, Form, Line, advice_of, heads_of, side_by_side
from .timeline_picture import Picture, data, overview, picture, readable_place

LONG = 4000
CODE_LINES = 6000
SHARES = 12
Place = tuple[str, int]


def page(
    groups: Sequence[Sequence[Form]],
    comparisons: Sequence[Sequence[Comparison]],
    traces: Mapping[int, Any],
    folder: str = "",
) -> str:
    """The page of forms that were executed.

    groups: forms to show side by side, the one before first.  comparisons: of each group, its first form with each
    later one.  traces: Chrome trace by `id` of a form, None where it was too long.  folder: paths start here.
    """
    body = [
        part for group, compared in zip(groups, comparisons, strict=True)
        for part in _group(group, compared, traces, folder)
    ]  # fmt: skip
    return _document(_title(groups), [_head(groups, folder), *body])


def _title(groups: Sequence[Sequence[Form]]) -> str:
    kernels = dict.fromkeys(form.what.rpartition(":")[2] for group in groups for form in group)
    return " → ".join(kernels)


def _document(title: str, body: Iterable[object]) -> str:
    script, style = (_asset(name) for name in ("launch.js", "launch.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", cut(visible(title), 120) + " · ascend-perf"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(style)),
    )
    foot = tag("footer", "Modelled: compiled by the Ascend compiler on a CPU and executed there by ascend-perf; "
               "nothing here ran on a device.")  # fmt: skip
    content = tag("body", tag("main", *body), foot, tag("script", Markup(script)))
    return "<!doctype html>\n" + tag("html", head, content, lang="en") + "\n"


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _head(groups: Sequence[Sequence[Form]], folder: str) -> Markup:
    form = groups[-1][-1]
    kernels = dict.fromkeys(_relative(one.what, folder) for group in groups for one in group)
    launch = form.launch
    given = [f"{name} = {_argument(value)}" for name, value in launch.args.items()]
    given += [f"{name} = {value!r}" for name, value in launch.constants.items()]
    return tag(
        "header",
        tag("button", "Theme", id="theme", type="button", title="light or dark"),
        tag("h1", [[Markup(" → ") if i else None, text(one, 300)] for i, one in enumerate(kernels)]),
        tag("p", tag("span", "modelled", class_="badge"), f" {form.target}, ascendnpu-ir "
            f"{', '.join(dict.fromkeys(one.compiler for group in groups for one in group))}"),
        tag("p", [[tag("code", text(one, 120)), " "] for one in given], class_="dim"),
    )  # fmt: skip


def _programs(form: Form) -> int:
    count = 1
    for size in form.launch.grid:
        count *= size
    return count


def _argument(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)


def _relative(what: str, folder: str) -> str:
    file, colon, name = what.rpartition(":")
    real = os.path.abspath(file)
    inside = folder and real.startswith(folder.rstrip(os.sep) + os.sep)
    return (os.path.relpath(real, folder) if inside else file) + colon + name


# ---- a group of forms


def _group(
    group: Sequence[Form], comparisons: Sequence[Comparison], traces: Mapping[int, Any], folder: str
) -> Iterable[Markup]:
    heads = heads_of(group)
    pictures = [picture(trace, form.done) if (trace := traces.get(id(form))) else None for form in group]
    several = len(group) > 1
    versions = ", ".join(dict.fromkeys(form.compiler for form in group))
    if several and versions.count(","):
        yield tag("h2", f"ascendnpu-ir {versions}")
    elif several:
        names = [[Markup(" → ") if i else None, text(one, 120)] for i, one in enumerate(heads)]
        yield tag("h2", names, tag("small", f" on {versions}", class_="dim"))
    yield _verdicts(group, heads, comparisons)
    for comparison, head in zip(comparisons, heads[1:], strict=True):
        yield _comparison(comparison, heads[0], head)
    yield from _advice(group, heads)
    yield tag("h3", "Numbers")
    yield _numbers(group, heads)
    yield from _timelines(group, heads, pictures)
    yield tag("h3", "Source")
    yield from _sources(group, heads, pictures, folder)
    yield tag("h3", "Compiled form")
    for form, head in zip(group, heads, strict=True):
        yield _compiled(form, head)


def _verdicts(group: Sequence[Form], heads: Sequence[str], comparisons: Sequence[Comparison]) -> Markup:
    first = [None, *[group[0]] * (len(group) - 1)]
    made = [_verdict(*one) for one in zip(group, heads if len(group) > 1 else [""], first, strict=True)]
    return tag("div", made, class_="verdicts")


def _verdict(form: Form, head: str, first: Form | None) -> Markup:
    done = form.done
    wrong = done.status != "ok" or bool(done.findings)
    parts: list[object] = [tag("p", text(head, 120), class_="name") if head else None]
    if done.cycles is not None:
        bound = done.bound_cycles or 0
        least = f"its {whole(_bytes(done))} B take at full bandwidth"
        said = (
            f"{done.cycles / bound:.1f} times the {whole(bound)} cycles that {least}"
            if bound
            else "it moves no bytes"
        )
        moved = None
        if first is not None and first.done.cycles:
            size = (done.cycles - first.done.cycles) / first.done.cycles
            moved = tag(
                "span", f" {change(size)}", class_="worse" if size > 0 else "better" if size < 0 else "dim"
            )
        us = done.cycles / _clock() / 1000
        parts += [
            tag("p", tag("b", whole(done.cycles)), f" cycles, {us:.3g} us", moved, class_="big"),
            _bound_bar(done.cycles, bound),
            tag("p", _launched(form) + said, class_="dim"),
            _pipes(done),
        ]  # fmt: skip
    else:
        parts.append(tag("p", done.status, class_="big"))
    if form.stopped:
        parts.append(tag("pre", text(_block(form.reason), 6000), class_="message"))
    for finding in done.findings[:20]:
        parts.append(
            tag("p", tag("b", finding.kind), ": ", text(str(finding).partition(": ")[2], LONG), class_="worse")
        )
    if not wrong:
        parts.append(tag("p", "No hazard and no fault found.", class_="better"))
    for note in done.notes[:10]:
        parts.append(tag("p", text(f"note: {note}", LONG), class_="dim"))
    return tag("section", parts, class_="verdict bad" if wrong else "verdict")


def _launched(form: Form) -> str:
    count = _programs(form)
    return f"{whole(count)} {'program' if count == 1 else 'programs'}; "


def _clock() -> float:
    from ascend_model import load_costs

    return float(load_costs().table()["target.clock"])


def _bytes(done: Any) -> int:
    return done.counts["bytes_in"] + done.counts["bytes_out"]


def _bound_bar(cycles: int, bound: int) -> Markup:
    """Cycles as a bar of which the bound is the filled part."""
    share = 100 * min(1.0, bound / cycles) if cycles else 0
    return tag(
        "svg",
        tag("rect", width="100", height="10", class_="back"),
        tag("rect", width=f"{share:.2f}", height="10", class_="fill"),
        viewBox="0 0 100 10", preserveAspectRatio="none", class_="bound", role="img",
        aria_label=f"the bandwidth bound is {share:.0f} % of the cycles",
    )  # fmt: skip


def _pipes(done: Any) -> Markup:
    """How long each pipe of the slowest program is busy, and what it waits for most."""
    longest = max(done.program_cycles, default=0) or 1
    rows = [
        tag("tr", tag("th", pipe, scope="row"),
            tag("td", tag("svg", tag("rect", width="100", height="8", class_="back"),
                          tag("rect", width=f"{100 * min(1.0, busy / longest):.2f}", height="8", class_=f"p{i}"),
                          viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar", aria_hidden="true")),
            tag("td", whole(busy), class_="number"), tag("td", f"{100 * busy / longest:.0f} %", class_="number"))
        for i, (pipe, busy) in enumerate(done.busy.items())
    ]  # fmt: skip
    stalls = sorted(done.stalls.items(), key=lambda one: -one[1])[:3]
    said = "; ".join(f"{name}: {whole(cycles)}" for name, cycles in stalls)
    return tag(
        "details",
        tag("summary", f"pipes of the busiest program ({whole(longest)} cycles)"),
        tag("table", tag("caption", "busy cycles"), rows, class_="pipes"),
        tag("p", text(f"longest stalls, cycles: {said}", LONG), class_="dim") if said else None,
        open=True,
    )


def _comparison(comparison: Comparison, before: str, after: str) -> Markup:
    outputs = comparison.outputs
    said: list[object] = []
    if outputs.agree:
        said.append(tag("p", f"Outputs agree: {', '.join(outputs.compared)}.", class_="better"))
    said += [tag("p", text(f"Outputs differ: {one}.", LONG), class_="worse") for one in outputs.differences]
    if outputs.note:
        said.append(tag("p", text(f"Outputs: {outputs.note}.", LONG)))
    said += [tag("p", _prose(one)) for one in comparison.explanation.sentences]
    diff = comparison.explanation.diff
    if diff:
        lines = [tag("span", text(line, LONG), "\n", class_=_sign(line)) for line in diff.splitlines()]
        said.append(tag("details", tag("summary", "difference of the code handed to the compiler"),
                        tag("pre", lines, class_="code")))  # fmt: skip
    return tag("section", tag("h3", "What changed: ", text(before, 80), Markup(" → "), text(after, 80)), said)


def _prose(sentence: str) -> Markup:
    """A sentence with what it quotes in backticks set as code."""
    parts = sentence.split("`")
    if len(parts) % 2 == 0:
        return text(sentence, LONG)
    return Markup(
        "".join(tag("code", text(one, LONG)) if i % 2 else text(one, LONG) for i, one in enumerate(parts))
    )


def _sign(line: str) -> str | None:
    return {"+": "add", "-": "del", "@": "at"}.get(line[:1])


def _advice(group: Sequence[Form], heads: Sequence[str]) -> Iterable[Markup]:
    without = []
    for form, head in zip(group, heads, strict=True):
        found = advice_of(form) if form.done.status in ("ok", "out of bounds") else ()
        if found:
            rows = [tag("li", _prose(one.sentence)) for one in found]
            of = [" for ", text(head, 80)] if len(group) > 1 else None
            yield tag("section", tag("h3", "Advice", of), tag("ul", rows))
        elif form.done.status == "ok":
            without.append(head)
    if without:
        of = [", in ", text(", ".join(without), 300)] if len(group) > 1 else None
        yield tag("p", "None of the source patterns known to compile badly was found", of, ".", class_="dim")


def _numbers(group: Sequence[Form], heads: Sequence[str]) -> Markup:
    lines = side_by_side(group)
    head = [tag("th", "modelled", scope="col"), tag("th", "unit", scope="col")]
    for i, one in enumerate(heads):
        head.append(tag("th", text(one, 60) if len(group) > 1 else "", scope="col", class_="number"))
        if i:
            head.append(tag("th", "change", scope="col", class_="number"))
    rows = [tag("tr", tag("th", line.label, scope="row"), tag("td", line.unit, class_="dim"), _cells(line))
            for line in lines]  # fmt: skip
    if not rows:
        return tag("p", "There are none, because it did not run to its end.", class_="dim")
    body = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), class_="numbers")
    return tag("div", body, class_="wide", tabindex="0")


def _cells(line: Line) -> Iterable[Markup]:
    for column, value in enumerate(line.values):
        yield tag("td", "-" if value is None else whole(value), class_="number")
        if column:
            size, worse = line.change(column), line.worse(column)
            kind = "dim" if worse is None else "worse" if worse else "better"
            same = value is not None and value == line.values[0]
            yield tag("td", "=" if same else "-" if size is None else change(size), class_=f"number {kind}")


# ---- timeline

TOO_MANY = "the busiest program has too many ops to keep them all; smaller sizes give a picture."


def _timelines(
    group: Sequence[Form], heads: Sequence[str], pictures: Sequence[Picture | None]
) -> Iterable[Markup]:
    lengths = [one.cycles for one in pictures if one is not None]
    if not lengths:
        if any(form.done.cycles is not None for form in group):
            yield tag("h3", "Timeline")
            yield tag("p", TOO_MANY[0].upper() + TOO_MANY[1:], class_="dim")
        return
    # Side by side says most, but not where one would be a few pixels wide.
    together = max(lengths) <= 4 * min(lengths)
    yield tag("h3", "Timeline of the busiest program")
    yield tag(
        "p", tag("span", "", class_="key p0"), "S scalar ", tag("span", "", class_="key p1"), "V vector ",
        tag("span", "", class_="key p2"), "MTE2 loads ", tag("span", "", class_="key p3"), "MTE3 stores ",
        tag("span", "", class_="key wait"), "S waits ", tag("span", "", class_="key tail"), "result not yet there",
        None if len(lengths) < 2 else "; drawn to one scale" if together else "; each to its own scale",
        class_="legend dim",
    )  # fmt: skip
    for form, head, one in zip(group, heads, pictures, strict=True):
        if one is None:
            if form.done.cycles is not None:
                yield tag("p", text(head, 80), f": {TOO_MANY}", class_="dim")
            continue
        title = f"program {one.program} of {whole(one.programs)}, {whole(one.cycles)} cycles, " \
                f"{whole(one.ops)} {'op' if one.ops == 1 else 'ops'}"  # fmt: skip
        joined = (
            f"; from cycle {whole(one.exact)} on, ops of a pipe within {whole(one.joined)} cycles are drawn as one"
            if one.joined
            else ""
        )
        scale = max(lengths) if together else one.cycles
        held = json.dumps(data(one, scale), separators=(",", ":")).replace("<", "\\u003c")
        yield tag(
            "figure",
            tag("figcaption", [tag("b", text(head, 80)), ": "] if len(group) > 1 else None, title + joined),
            tag("div", overview(one, scale), class_="whole"),
            tag("div", class_="controls", hidden=True),
            tag("canvas", tabindex="0", hidden=True, aria_label="the same, to zoom into: arrows, plus, minus, 0"),
            tag("p", Markup("&nbsp;"), class_="told dim", aria_live="polite"),
            tag("script", Markup(held), type="application/json"),
            _shares(one),
            class_="timeline",
        )  # fmt: skip


def _shares(one: Picture) -> Markup:
    rows = [
        tag("tr", tag("td", row.pipe), tag("td", text(row.name, 80)), tag("td", text(row.place, 120)),
            tag("td", whole(row.count), class_="number"), tag("td", whole(row.cycles), class_="number"),
            tag("td", f"{100 * row.cycles / max(1, one.cycles):.1f} %", class_="number"))
        for row in one.shares[:SHARES]
    ]  # fmt: skip
    names = ("pipe", "op", "line", "times", "cycles", "of the program")
    head = [tag("th", name, scope="col", class_="number" if i > 2 else None) for i, name in enumerate(names)]
    body = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows))
    return tag("details", tag("summary", "where its time goes"), tag("div", body, class_="wide", tabindex="0"))


# ---- source


@dataclass
class Marks:
    """What points at one line.  scalar: accesses in the code.  cycles: of each pipe, in the busiest program."""

    hazards: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    scalar: int = 0
    cycles: dict[str, int] = field(default_factory=dict)


def _sources(
    group: Sequence[Form], heads: Sequence[str], pictures: Sequence[Picture | None], folder: str
) -> Iterable[Markup]:
    blocks = []
    for form, head, one in zip(group, heads, pictures, strict=True):
        blocks.append(_source(form, head if len(group) > 1 else "", one, folder))
    if any(form.compiler.startswith("1.0.") for form in group):
        yield tag(
            "p", "ascendnpu-ir 1.0 keeps no source lines in its last form, so little points at them.", class_="dim"
        )
    yield tag("div", blocks, class_="sides" if len(blocks) > 1 else None)


def _marks(form: Form, one: Picture | None) -> dict[Place, Marks]:
    from ascend_model.explain import scalar_accesses

    found: dict[Place, Marks] = {}

    def at(place: Place | None) -> Marks:
        return found.setdefault(place, Marks()) if place is not None else Marks()

    for finding in form.done.findings:
        at(_place(finding.place)).hazards.append(str(finding))
    for row in advice_of(form):
        at(row.place).advice.append(
            row.sentence.partition(" (" + shown(row.place))[0] if row.place else row.sentence
        )
    if form.done.compiled is not None:
        for place, count in scalar_accesses(form.done.compiled).items():
            at(place).scalar += count
    for share in one.shares if one else ():
        place = _place(share.place)
        if place is not None and share.pipe != "S":
            cycles = at(place).cycles
            cycles[share.pipe] = cycles.get(share.pipe, 0) + share.cycles
    return found


def shown(place: Place) -> str:
    """A place as sentences quote it."""
    return f"{place[0]}:{place[1]}"


def _place(where: str) -> Place | None:
    file, colon, line = readable_place(where).rpartition(":")
    return (file, int(line)) if colon and line.isdigit() else None


def _source(form: Form, head: str, one: Picture | None, folder: str) -> Markup:
    kernel = form.launch.kernel
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    own, line = kernel.__code__.co_filename, kernel.__code__.co_firstlineno
    marks: dict[str, dict[int, Marks]] = {}
    for (file, number), mark in _marks(form, one).items():
        marks.setdefault(_found(file), {})[number] = mark
    marks.setdefault(own, {})
    parts: list[object] = [tag("h4", text(head, 120)) if head else None]
    parts.append(_listing(own, {line, *marks[own]}, marks[own], folder))
    elsewhere = []
    for file, here in marks.items():
        if file == own:
            continue
        # A helper of the user's is shown like the kernel; the compiler's own library is only named.
        if file and "site-packages" not in file:
            parts.append(_listing(file, set(here), here, folder))
        else:
            elsewhere += [one for mark in here.values() for one in (*mark.hazards, *mark.advice)]
    if elsewhere:
        parts.append(tag("ul", [tag("li", _prose(one)) for one in elsewhere]))
    return tag("section", parts)


def _found(file: str) -> str:
    """The file that a location names, as in `ascend_model.source`: absolute, or relative to the import path."""
    for root in ("",) if os.path.isabs(file) else sys.path:
        if file.endswith(".py") and ".." not in file.split("/") and os.path.isfile(os.path.join(root, file)):
            return os.path.abspath(os.path.join(root, file))
    return ""


def _listing(file: str, wanted: set[int], marks: Mapping[int, Marks], folder: str) -> Markup:
    """The functions of a file that hold the wanted lines, each line with what points at it."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return tag("p", text(f"{file} cannot be read.", LONG), class_="dim")
    numbers = sorted({n for start, end in _functions("\n".join(lines), wanted) for n in range(start, end + 1)})
    rows: list[Markup] = []
    last = None
    for number in numbers:
        if last is not None and number != last + 1:
            rows.append(tag("tr", tag("td", "⋮", colspan="3", class_="dim")))
        last = number
        if number <= len(lines):
            rows += _line(number, lines[number - 1], marks.get(number), os.path.basename(file))
    name = os.path.relpath(file, folder) if folder and file.startswith(folder.rstrip(os.sep) + os.sep) else file
    head = tag("thead", tag("tr", tag("th", "line", scope="col"), tag("th", "", scope="col"),
                            tag("th", "in the compiled code", scope="col")))  # fmt: skip
    caption = tag("caption", text(name, 300))
    return tag(
        "div", tag("table", caption, head, tag("tbody", rows), class_="source"), class_="wide", tabindex="0"
    )


def _functions(source: str, wanted: set[int]) -> list[tuple[int, int]]:
    """First and last line of each outermost function that holds a wanted line; the lines alone where none does."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return [(max(1, n - 3), n + 3) for n in wanted]
    found = []
    left = set(wanted)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            end = node.end_lineno or node.lineno
            if any(start <= n <= end for n in wanted):
                found.append((start, end))
                left -= set(range(start, end + 1))
    return found + [(n, n) for n in left]


def _line(number: int, line: str, mark: Marks | None, file: str) -> Iterable[Markup]:
    said: list[object] = []
    kind = None
    if mark is not None:
        if mark.cycles:
            said += [[tag("span", f"{pipe} {whole(cycles)}", class_=f"chip {pipe}"), " "]
                     for pipe, cycles in mark.cycles.items()]  # fmt: skip
        if mark.scalar:
            said.append(tag("span", f"{whole(mark.scalar)} scalar", class_="chip scalar",
                            title="loads and stores of single elements, as they stand in the code"))  # fmt: skip
        kind = "hazard" if mark.hazards else "advised" if mark.advice else "counted" if mark.scalar else None
    yield tag(
        "tr", tag("td", str(number), class_="at"),
        tag("td", text(line.expandtabs(4).rstrip(), LONG), class_="text"), tag("td", said, class_="said"),
        class_=kind, data_place=f"{file}:{number}",
    )  # fmt: skip
    for words, name in ((mark.hazards, "hazard"), (mark.advice, "advised")) if mark is not None else ():
        for one in dict.fromkeys(words):
            yield tag(
                "tr", tag("td", "", class_="at"), tag("td", _prose(one), class_="note", colspan="2"), class_=name
            )


# ---- compiled form


def _compiled(form: Form, head: str) -> Markup:
    from ascend_model.compile import strip_locations

    made = form.done.compiled
    code = strip_locations(made.hivm or made.linalg) if made is not None else ""
    if not code.strip():
        return tag("p", text(head, 120), ": none, the kernel did not compile.", class_="dim")
    lines = code.splitlines()
    more = f" … {whole(len(lines) - CODE_LINES)} more lines" if len(lines) > CODE_LINES else ""
    what = "what runs on the cores (HIVM)" if made.hivm else "what was handed to the compiler (Linalg)"
    return tag(
        "details",
        tag("summary", text(head, 120), f": {what}, {whole(len(lines))} lines"),
        tag("pre", text(_block("\n".join(lines[:CODE_LINES])), 1 << 24), more, class_="code"),
    )


def _block(given: str) -> Markup:
    """Lines of untrusted text, kept as lines."""
    return Markup("\n".join(text(line.expandtabs(4), LONG) for line in given.splitlines()))
