"""The one place that writes numbers with their units, and makes untrusted text fit to be shown."""

from __future__ import annotations

import math
import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~@$-])")


def plain(text: str, limit: int = 200) -> str:
    """One line without control or direction characters; what is longer than `limit` ends in `…`, after a whole
    word where there is one to end with."""
    line = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    if len(line) <= limit:
        return line
    words = line[: limit - 1].rpartition(" ")[0]
    return words + " …" if len(words) > limit // 2 else line[: limit - 1] + "…"


def markdown(text: str, limit: int = 200) -> str:
    """Text as Markdown that shows just that text, in a table cell too."""
    entities = plain(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", entities)


def value(number: float | None, unit: str = "") -> str:
    """A value with its unit: `12.5 us`; a dash where there is none."""
    if number is None or math.isnan(number):
        return "-"
    return f"{figures(number)} {plain(unit, 40)}".rstrip()


def figures(number: float) -> str:
    """Four significant figures; whole numbers up to a million in full."""
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if number == int(number) and abs(number) < 1e6:
        return f"{int(number):,}"
    return f"{number:,.4g}" if 1e-3 <= abs(number) < 1e6 else f"{number:.4g}"


def whole(count: int) -> str:
    """A count in full: `24,720,016`."""
    return f"{count:,}"


def change(size: float | None) -> str:
    """A relative change: `+5.2 %`; small ones keep two figures."""
    if size is None or math.isnan(size):
        return "-"
    if math.isinf(size):
        return "from 0" if size > 0 else "to below 0"
    percent = 100 * size
    digits = 1 if abs(percent) >= 1 or percent == 0 else min(6, 1 - math.floor(math.log10(abs(percent))))
    return f"{percent:+.{digits}f} %"
