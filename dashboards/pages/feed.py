"""Events as an Atom feed."""

from __future__ import annotations

import html
from datetime import datetime, timezone

from dashboards.events import STATE, Event
from dashboards.pages.event import suspect
from dashboards.pages.markup import cut, quantity, visible
from dashboards.pages.view import View, event_name, event_path, kind_label, title_of
from dashboards.text import change as percent

LENGTH = 50


def render(view: View) -> str:
    """The feed, newest event first; links are relative, so that they hold wherever the site lies."""
    events = view.events[:LENGTH]
    newest = max((view.history.commits[one.first_bad_at].date for one in events), default=0)
    entries = "".join(_entry(view, one) for one in events)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">'
        "<title>ascend-perf events</title><id>urn:ascend-perf:events</id>"
        f'<link rel="self" href="feed.xml"/><link href="index.html"/><updated>{_date(newest)}</updated>'
        f"{entries}</feed>\n"
    )


def _entry(view: View, event: Event) -> str:
    commit = view.history.commits[event.first_bad_at]
    if event.kind == STATE:
        what = f"{event.state_before} → {event.state_after}"
    else:
        what = f"{percent(event.size)}, {quantity(event.before, event.unit)} → {quantity(event.after, event.unit)}"
    kind = "modelled" if event.modelled else "measured"
    summary = (
        f"{kind_label(event)} ({kind}): {what}. {event.last_good[:10]}..{event.first_bad[:10]} {commit.subject}. "
        f"{suspect(view, event)}."
    )
    return (
        f"<entry><id>urn:ascend-perf:event:{event_name(event)}</id><title>{_text(title_of(event))}</title>"
        f'<link href="{event_path(event)}"/><updated>{_date(commit.date)}</updated>'
        f"<author><name>{_text(commit.author or 'unknown')}</name></author>"
        f"<summary>{_text(summary)}</summary></entry>"
    )


def _text(value: str) -> str:
    return html.escape(cut(visible(value), 600))


def _date(milliseconds: int) -> str:
    return datetime.fromtimestamp(max(milliseconds, 0) / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
