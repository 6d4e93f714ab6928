"""HTML from untrusted text: every string is escaped and every hidden character shown, unless it is `Markup`."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping

from dashboards.text import value

LIMIT = 160
PARAGRAPH = 1000
TITLE_LIMIT = 20_000

# Scripts and styles come from the site's own files, and nothing else is loaded from anywhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; object-src 'none'"
)

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_PLAIN = re.compile(r"[\x20-\x7e]*\Z")
_VOID = {"meta", "link", "input", "br", "hr", "img"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text on one line, with control, bidirectional and other hidden characters as `⟨U+202E⟩`."""
    if _PLAIN.match(text):
        return text
    return "".join(_seen(one) for one in text)


def _seen(character: str) -> str:
    if character in "\n\r\t":
        return " "
    if unicodedata.category(character) in _HIDDEN:
        return f"⟨U+{ord(character):04X}⟩"
    return character


def cut(text: str, limit: int = LIMIT) -> str:
    """At most `limit` characters, the last of which says that there were more."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text(given: str, limit: int = LIMIT) -> Markup:
    """Untrusted text for an element; what is too long is cut and given in full as its title."""
    if isinstance(given, Markup):
        return given
    shown = visible(given)
    if len(shown) <= limit:
        return Markup(html.escape(shown))
    return tag("span", Markup(html.escape(cut(shown, limit))), title=cut(shown, TITLE_LIMIT))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """`tag("td", "a < b", class_="x", data_op="y")`; None and False leave an attribute out."""
    parts = [f"<{name}"]
    for key, given in attributes.items():
        if given is None or given is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        parts.append(f" {word}" if given is True else f' {word}="{html.escape(visible(str(given)))}"')
    if name in _VOID:
        return Markup("".join(parts) + ">")
    return Markup("".join(parts) + ">" + join(children) + f"</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Children one after another: strings escaped, lists opened, None left out."""
    out = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            out.append(child)
        elif isinstance(child, Iterable) and not isinstance(child, str):
            out.append(join(child))
        else:
            out.append(text(str(child)))
    return Markup("".join(out))


def table(
    head: Iterable[object],
    rows: Iterable[Markup],
    *,
    caption: object = None,
    around: Mapping[str, object] | None = None,
    **attributes: object,
) -> Markup:
    """A table that scrolls by itself where it is too wide; `around` are attributes of what it scrolls in."""
    cells = [tag("th", one, scope="col") for one in head]
    body = tag(
        "table",
        tag("caption", caption) if caption is not None else None,
        tag("thead", tag("tr", cells)) if cells else None,
        tag("tbody", rows),
        **attributes,
    )
    return tag("div", body, **{"class_": "wide", "tabindex": "0", **(around or {})})


def dim(*children: object) -> Markup:
    """A paragraph beside the matter."""
    return tag("p", [text(one, PARAGRAPH) if isinstance(one, str) else one for one in children], class_="dim")


def quantity(number: float, unit: str) -> str:
    """A number with its unit; that it is modelled is said beside it."""
    return value(number, unit.replace("(modelled)", "").strip())


def page(
    title: str,
    body: Iterable[object],
    *,
    depth: int = 0,
    here: str = "",
    scripts: Iterable[str] = (),
    foot: object = None,
    root: Mapping[str, str] | None = None,
    alone: bool = False,
) -> str:
    """A whole page; `scripts` are files of the site, `root` are attributes of the body; `alone` has no others."""
    up = "../" * depth
    links = (
        ("Overview", "index.html"),
        ("Events", "events.html"),
        ("Compare", "compare.html"),
        ("Compilers", "compilers.html"),
        ("Health", "health.html"),
    )
    feed = None if alone else tag("a", "Feed", href=up + "feed.xml")
    nav = tag(
        "nav",
        tag("a", "ascend-perf", class_="brand", href=up + "index.html"),
        []
        if alone
        else [tag("a", n, href=up + at, aria_current="page" if at == here else None) for n, at in links],
        feed,
        tag("button", "Theme", id="theme", type="button", title="light, dark or as the system (t)"),
        tag("button", "?", id="keys", type="button", title="keys (?)"),
        aria_label="pages",
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", cut(visible(title), 120) + " · ascend-perf"),
        tag("link", rel="icon", href=up + "assets/icon.svg"),
        tag("link", rel="stylesheet", href=up + "assets/pages.css"),
        None
        if alone
        else tag("link", rel="alternate", type="application/atom+xml", href=up + "feed.xml", title="events"),
        tag("script", src=up + "assets/pages.js"),
        [tag("script", src=up + one, defer=True) for one in scripts],
    )
    content = tag(
        "body",
        tag("a", "Skip to content", class_="skip", href="#content"),
        tag("header", nav),
        tag("main", join(body), id="content", tabindex="-1"),
        tag("footer", foot),
        data_up=up,
        **(root or {}),
    )
    return "<!doctype html>\n" + tag("html", head, content, lang="en") + "\n"
