"""Data files of the site: JavaScript that hands over one JSON value, so that pages work from `file://`."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboards.pages.markup import cut, visible
from dashboards.pages.view import Kernel, View, slug
from dashboards.series import NOT_RUN, OK, SILENT_STATES, STATE_CODE, STATES, UNSUPPORTED

NAME_LIMIT = 300
MAX_REASONS = 10
DOUBTED = 100  # newest measured points whose device is looked at
MOST_SINGLE = 1e38


def script(name: str, value: Any) -> str:
    """`perf.put("name", ...)`; the JSON holds nothing that could end a script element."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        body = body.replace(character, f"\\u{ord(character):04x}")
    return f"perf.put({json.dumps(name)},{body});\n"


def shown(value: str, limit: int = NAME_LIMIT) -> str:
    """Untrusted text for a data file."""
    return cut(visible(value), limit)


def numbers(values: np.ndarray) -> str | None:
    """An array as base64, `4` or `8` bytes a number; None where it holds no number at all.

    Counts are kept exactly; of a measured time, seven digits are enough.
    """
    known = np.isfinite(values)
    finite = values[known]
    if not finite.size:
        return None
    kept = values.astype("<f8")
    if np.abs(finite).max() < MOST_SINGLE:
        small = values.astype("<f4")
        whole = bool((finite == np.rint(finite)).all())
        if not whole or bool((small[known] == finite).all()):
            kept = small
    return f"{kept.itemsize}{base64.b64encode(kept.tobytes()).decode()}"


def commits(view: View) -> str:
    """The commits of all pages: hash, subject, author, date."""
    rows = view.history.commits
    return script(
        "commits",
        {
            "hash": [one.hash for one in rows],
            "subject": [shown(one.subject) for one in rows],
            "author": [shown(one.author, 80) for one in rows],
            "date": [one.date for one in rows],
        },
    )


def case_path(kernel: Kernel, case: str) -> str:
    return f"data/{kernel.slug}/{slug(case or 'all')}.js"


def case_file(view: View, kernel: Kernel, case: str, rows: Sequence[int]) -> str:
    """Every series of one case of a kernel, over all commits."""
    return script(case_path(kernel, case), [series_data(view, row, 0, None) for row in rows])


def series_data(view: View, row: int, start: int, end: int | None) -> dict[str, Any]:
    """One series between two columns."""
    history = view.history
    one = history.series[row]
    part = slice(start, end)
    state = history.state[row, part]
    found: dict[str, Any] = {
        "metric": shown(one.metric),
        "unit": shown(one.unit.replace("(modelled)", "").strip(), 40),
        "better": one.direction,
        "modelled": one.modelled,
        "impl": shown(one.impl or ", ".join(one.params) or "-"),
        "role": view.roles[row],
        "machine": shown(one.machine),
        "env": shown(one.environment.label),
        "v": numbers(history.value[row, part]),
        "codes": code_changes(view, row, part),
    }
    if np.isfinite(history.low[row, part]).any():
        found["lo"] = numbers(history.low[row, part])
        found["hi"] = numbers(history.high[row, part])
        found["n"] = int(history.samples[row, part].max())
    bad = [
        int(at)
        for at in np.flatnonzero((state != STATE_CODE[OK]) & (state != STATE_CODE[NOT_RUN]))
        # Without a word of the sidecar the form or the case did not exist at that commit.
        if state[at] != STATE_CODE[UNSUPPORTED] or history.detail(row, start + int(at)).reason
    ]
    if bad:
        found["bad"] = [[at, int(state[at])] for at in bad]
        loud = [at for at in bad if STATES[state[at]] not in SILENT_STATES][-MAX_REASONS:]
        found["why"] = {at: shown(history.detail(row, start + at).reason) for at in loud}
    doubt = {} if one.modelled else _doubts(view, row, start, state)
    if doubt:
        found["doubt"] = doubt
    return found


def _doubts(view: View, row: int, start: int, state: np.ndarray) -> dict[int, str]:
    """Why the device made a point doubtful, by column, of the newest ones."""
    found = {}
    for at in np.flatnonzero(state == STATE_CODE[OK])[-DOUBTED:]:
        marks = view.history.detail(row, start + int(at)).device.get("marks", ())
        if marks:
            found[int(at)] = shown("; ".join(str(mark) for mark in marks))
    return found


def code_changes(view: View, row: int, part: slice) -> list[list[Any]]:
    """[column, short name of the compiled code] wherever that changed."""
    codes = view.history.code[row, part]
    known = np.flatnonzero(codes)
    if not known.size:
        return []
    changed = known[np.flatnonzero(np.diff(codes[known], prepend=-1))]
    return [[int(at), shown(view.history.codes[codes[at]], 12)] for at in changed]


def digest_of(*parts: str | bytes) -> str:
    """A short digest of everything that a page depends on."""
    sum_ = hashlib.blake2b(digest_size=12)
    for part in parts:
        sum_.update(part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass"))
        sum_.update(b"\0")
    return sum_.hexdigest()
