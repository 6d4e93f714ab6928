"""HTML from untrusted text: every string is escaped and every hidden character shown, unless it is `Markup`."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping

LIMIT = 160
TITLE_LIMIT = 20_000

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
