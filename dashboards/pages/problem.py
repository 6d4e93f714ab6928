"""Pages for a history that holds nothing, and for an event that is not found any more."""

from __future__ import annotations

from dashboards.pages.markup import page, prose, tag, text
from dashboards.pages.view import View


def render(view: View, *, example: bool = False) -> str:
    """Says what is missing and what to do; `example` when there are pages of the example beside."""
    lines = [prose(one, 1000) for one in view.notices]
    lines += [text(f"{one.path}: {one.reason}", 600) for one in view.history.problems[:50]]
    return page(
        "No results",
        [
            tag("h1", "No results yet"),
            tag("p", "Nothing was found that could be shown.", class_="lead"),
            tag("ul", [tag("li", one) for one in lines]) if lines else None,
            tag("h2", "What to do"),
            tag(
                "ol",
                tag("li", "Measure something: ", tag("code", "ascend-perf run --last 5")),
                tag("li", "Build again: ", tag("code", "ascend-perf dashboard")),
                tag(
                    "li",
                    "Results lie elsewhere? ",
                    tag("code", "ascend-perf dashboard --results FOLDER --repo REPOSITORY"),
                ),
            ),
            tag("p", tag("a", "An example", href="example/index.html"), ": what is here with some history.")
            if example
            else None,
        ],
        here="index.html",
        alone=True,
    )


def render_gone() -> str:
    """For links to an event that newer results moved or took back."""
    return page(
        "No such event any more",
        [
            tag("h1", "No such event any more"),
            tag("p", "Newer results took this change back, or place it at another commit."),
            tag("p", tag("a", "All events", href="../events.html")),
        ],
        depth=1,
    )
