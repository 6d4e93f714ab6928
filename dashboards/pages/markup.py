"""The frame of the site's pages, around the HTML that `ascend_model.markup` makes of untrusted text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ascend_model.markup import LIMIT, Markup, cut, join, table, tag, text, visible
from dashboards.text import value

__all__ = [
    "POLICY",
    "Markup",
    "cut",
    "dim",
    "join",
    "page",
    "prose",
    "quantity",
    "table",
    "tag",
    "text",
    "visible",
]

PARAGRAPH = 1000

# Scripts and styles come from the site's own files, and nothing else is loaded from anywhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; object-src 'none'"
)


def dim(*children: object) -> Markup:
    """A paragraph beside the matter."""
    return tag("p", [text(one, PARAGRAPH) if isinstance(one, str) else one for one in children], class_="dim")


def prose(given: str, limit: int = LIMIT) -> Markup:
    """Untrusted sentences as `text` shows them, with what stands between backticks as code."""
    shown = visible(given)
    parts = re.split("`([^`]+)`", cut(shown, limit))
    words = join(tag("code", text(one, limit)) if at % 2 else text(one, limit) for at, one in enumerate(parts))
    return words if len(shown) <= limit else tag("span", words, title=shown)


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
