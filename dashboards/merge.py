"""How several versions of one file of a results folder become one: nothing lost, nothing twice, conflicts named.

The outcome depends on the set of versions alone, not on their order or on when they came.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dashboards.results import RESULT_VERSION, STATE_VERSION

RESULT, MACHINE, BENCHMARKS, STATES, FLEET, CODE, OTHER = (
    "result", "machine", "benchmarks", "states", "fleet", "code", "other",
)  # fmt: skip

LATER = "the later one"
PER_CELL = (
    "result", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75", "stats_number", "stats_repeat",
    "samples",
)  # fmt: skip
PER_ROW = ("params", "version", "started_at", "duration", "profile")
COLUMNS = (
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25",
    "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
)  # fmt: skip
MAX_PARTS = 3
MAX_UNION = 100_000
_PART = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f]{1,200}\Z")


@dataclass(frozen=True, slots=True)
class Conflict:
    """The same key with different values.  `kept` and `dropped` are short forms; `rule` says why."""

    path: str
    key: str
    kept: str
    dropped: str
    rule: str


@dataclass(frozen=True)
class Joined:
    """One file made of its versions; `unread` are versions that took no part, with the reason."""

    content: bytes
    conflicts: tuple[Conflict, ...] = ()
    unread: Mapping[int, str] = field(default_factory=dict)


def kind_of(path: str) -> str | None:
    """What a file of a results folder is, by its path below the folder; None where it is not to be carried."""
    parts = path.split("/")
    if (
        len(parts) > MAX_PARTS
        or not all(_PART.match(one) for one in parts)
        or parts[-1].endswith((".part", ".tmp"))
    ):
        return None
    if parts == ["benchmarks.json"]:
        return BENCHMARKS
    if len(parts) == 2:
        folder, name = parts
        if folder in (STATES, FLEET):
            return folder if name.endswith(".jsonl") else None
        if folder == CODE:
            return CODE
        if name == "machine.json":
            return MACHINE
        if name.endswith(".json"):
            return RESULT
    return OTHER


def unreadable(path: str, content: bytes) -> str | None:
    """Why a version of a file cannot be used, None where it can."""
    kind = kind_of(path)
    try:
        if kind == RESULT:
            _result(content)
        elif kind in (MACHINE, BENCHMARKS):
            _object(content)
        elif kind == CODE:
            gzip.decompress(content)
        elif kind is None:
            return "not a name that a results folder has"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        return (str(error).splitlines() or ["unreadable"])[0][:200] if content.strip() else "empty"
    except (OSError, EOFError, zlib.error) as error:
        return f"not gzip: {error}"[:200]
    return None


def join(path: str, versions: Sequence[bytes]) -> Joined:
    """One file from all its versions.  A single version stays as it is, byte for byte."""
    versions = sorted(set(versions), key=_digest)
    unread = {at: why for at, one in enumerate(versions) if (why := unreadable(path, one))}
    good = [one for at, one in enumerate(versions) if at not in unread]
    if len(good) < 2:
        return Joined(good[0] if good else b"", (), unread)
    joiner = {
        RESULT: _join_results, STATES: _join_states, FLEET: _join_fleet, BENCHMARKS: _join_benchmarks,
    }.get(kind_of(path) or OTHER, _pick)  # fmt: skip
    content, conflicts = joiner(path, good)
    return Joined(content, tuple(conflicts), unread)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _object(content: bytes) -> dict[str, Any]:
    data = json.loads(content)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


def _result(content: bytes) -> dict[str, Any]:
    """An asv result file, or ValueError."""
    data = _object(content)
    if data.get("version") != RESULT_VERSION:
        raise ValueError(f"result version {data.get('version')!r}, this reads {RESULT_VERSION}")
    if not isinstance(data["commit_hash"], str) or not isinstance(data["results"], dict):
        raise ValueError("not an asv result file")
    columns = data["result_columns"]
    if not isinstance(columns, list) or not {"result", "params"} <= set(columns):
        raise ValueError("not an asv result file: no result or params column")
    return data


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else _text(value)
    return text if len(text) <= 80 else text[:79] + "…"


@dataclass(frozen=True)
class _Row:
    """A benchmark of one version of a file; `order` makes later ones the larger ones.

    bare: it failed as a whole, which asv writes without a list.
    """

    order: tuple[float, str]
    fields: Mapping[str, Any]
    cells: Mapping[tuple[str, ...], tuple[Any, ...]]
    axes: tuple[tuple[str, ...], ...]
    bare: bool

    @property
    def version(self) -> tuple[int, str]:
        text = str(self.fields.get("version") or "")
        return (int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1, text)


def _row(columns: Sequence[str], row: Any, digest: str) -> _Row:
    if not isinstance(row, list):
        raise ValueError("not a row of results")
    named = {name: row[at] if at < len(row) else None for at, name in enumerate(columns)}
    params = named.get("params") or []
    axes = tuple(tuple(str(one) for one in axis) for axis in params)
    count = math.prod(len(axis) for axis in axes)
    if count > MAX_UNION:
        raise ValueError(f"{count} results of one benchmark")
    flat = []
    for name in PER_CELL:
        value = named.get(name)
        if isinstance(value, list) and len(value) == count:
            flat.append(value)
        elif value is None:
            flat.append([None] * count)
        else:
            raise ValueError("another number of results than of parameters")
    cells = dict(zip(itertools.product(*axes), zip(*flat)))
    started = named.get("started_at")
    when = float(started) if isinstance(started, (int, float)) and math.isfinite(started) else 0.0
    fields = {name: named.get(name) for name in PER_ROW}
    return _Row((when, digest), fields, cells, axes, named.get("result") is None)


def _skipped(cell: tuple[Any, ...]) -> bool:
    return isinstance(cell[0], float) and math.isnan(cell[0])


def _join_results(path: str, versions: Sequence[bytes]) -> tuple[bytes, list[Conflict]]:
    """A skipped cell yields to any other; of two others the one of the later run is kept."""
    conflicts: list[Conflict] = []
    files = [(_result(one), _digest(one)) for one in versions]
    newest = max(files, key=lambda pair: (last_start(pair[0]), pair[1]))[0]
    commit, environment = newest["commit_hash"], newest.get("env_name")
    for data, _ in files:
        for name in ("commit_hash", "env_name"):
            if data.get(name) != newest.get(name):
                rule = "the file with the latest run"
                conflicts.append(Conflict(path, name, _short(newest.get(name)), _short(data.get(name)), rule))
    files = [pair for pair in files if (pair[0]["commit_hash"], pair[0].get("env_name")) == (commit, environment)]
    by_name: dict[str, list[_Row]] = {}
    odd: dict[str, list[Any]] = {}
    for data, digest in files:
        for name, row in data["results"].items():
            try:
                by_name.setdefault(name, []).append(_row(data["result_columns"], row, digest))
            except (ValueError, TypeError):
                odd.setdefault(name, []).append(row)
    results = {name: _join_rows(path, name, rows, conflicts) for name, rows in sorted(by_name.items())}
    for name in sorted(odd.keys() - by_name.keys()):
        results[name] = max(odd[name], key=_text)  # the loader says what is wrong with it
    durations: dict[str, Any] = {}
    for data, _ in sorted(files, key=lambda pair: (last_start(pair[0]), pair[1])):
        if isinstance(data.get("durations"), dict):
            durations |= data["durations"]
    joined = {**newest, "result_columns": list(COLUMNS), "results": results, "durations": durations}
    return json.dumps(joined).encode(), conflicts


def last_start(data: Mapping[str, Any]) -> float:
    """When the latest run of a file began."""
    columns = data["result_columns"]
    if "started_at" not in columns:
        return 0.0
    at = columns.index("started_at")
    starts = [row[at] for row in data["results"].values() if isinstance(row, list) and len(row) > at]
    return max((float(one) for one in starts if isinstance(one, (int, float)) and math.isfinite(one)), default=0.0)


def _join_rows(path: str, name: str, rows: Sequence[_Row], conflicts: list[Conflict]) -> list[Any]:
    top = max(one.version for one in rows)
    for one in rows:
        if one.version != top:
            rule = "the higher version of the benchmark"
            conflicts.append(Conflict(path, f"{name} version", _short(top[1]), _short(one.version[1]), rule))
    rows = sorted((one for one in rows if one.version == top), key=lambda one: one.order, reverse=True)
    latest = rows[0]
    alike = [one for one in rows if len(one.axes) == len(latest.axes)]
    for one in rows:
        if len(one.axes) != len(latest.axes):
            conflicts.append(Conflict(path, f"{name} parameters", _short(latest.axes), _short(one.axes), LATER))
    # the later run says the order of the values, sorted ones follow that only earlier runs had
    axes = []
    for at, axis in enumerate(latest.axes):
        more = sorted({value for one in alike for value in one.axes[at]} - set(axis))
        axes.append([*axis, *more])
    if math.prod(len(axis) for axis in axes) > MAX_UNION:
        conflicts.append(Conflict(path, f"{name} parameters", _short(latest.axes), "earlier ones", LATER))
        axes, alike = [list(axis) for axis in latest.axes], [latest]
    blank = (math.nan, *[None] * (len(PER_CELL) - 1))
    cells = []
    for key in itertools.product(*axes):
        found = [(one, one.cells[key]) for one in alike if key in one.cells]
        if not found:
            cells.append(blank)
            continue
        kept = max(found, key=lambda pair: _rank(*pair))[1]
        cells.append(kept)
        for _, cell in found:
            if not _skipped(cell) and _text(cell) != _text(kept):
                title = name + (f"({', '.join(key)})" if key else "")
                conflicts.append(Conflict(path, title, _short(kept[0]), _short(cell[0]), LATER))
    row = {**latest.fields, "params": axes}
    for at, column in enumerate(PER_CELL):
        values = [cell[at] for cell in cells]
        bare = column != "result" or any(one.bare for one in alike)
        row[column] = None if bare and all(one is None for one in values) else values
    return _cut([row.get(one) for one in COLUMNS])


def _rank(row: _Row, cell: tuple[Any, ...]) -> tuple[Any, ...]:
    return not _skipped(cell), row.order[0], cell[0] is not None, _text(cell)


def _cut(row: list[Any]) -> list[Any]:
    """asv cuts trailing nulls."""
    while row and row[-1] is None:
        row = row[:-1]
    return row


def _lines(content: bytes) -> Iterable[tuple[bytes, dict[str, Any]]]:
    """Lines of a sidecar that are objects; what is cut off or damaged stays behind in its version."""
    for line in content.split(b"\n"):
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            yield line, data


def _when(data: Mapping[str, Any]) -> float:
    at = data.get("at")
    return float(at) if isinstance(at, (int, float)) and math.isfinite(at) else 0.0


def _join_states(path: str, versions: Sequence[bytes]) -> tuple[bytes, list[Conflict]]:
    """Last line of each key in each version, then the latest of these."""
    best: dict[str, list[tuple[float, bytes, dict[str, Any]]]] = {}
    for content in versions:
        last: dict[str, tuple[bytes, dict[str, Any]]] = {}
        for line, data in _lines(content):
            if data.get("version") != STATE_VERSION:
                last[line.decode("utf-8", "replace")] = line, data
                continue
            names = [str(data.get(name, "")) for name in ("suite", "case", "impl", "machine")]
            last[_text([*names, data.get("versions") or {}])] = line, data
        for key, (line, data) in last.items():
            best.setdefault(key, []).append((_when(data), line, data))
    out, conflicts = [], []
    for key in sorted(best):
        _, line, kept = max(best[key], key=lambda one: one[:2])
        out.append(line)
        for _, _, other in best[key]:
            if (other.get("state"), other.get("code")) != (kept.get("state"), kept.get("code")):
                title = " ".join(str(kept.get(name, "")) for name in ("suite", "case", "impl"))
                words = [f"{one.get('state')} {one.get('code') or ''}".strip() for one in (kept, other)]
                conflicts.append(Conflict(path, title, _short(words[0]), _short(words[1]), LATER))
    return b"".join(line + b"\n" for line in out), conflicts


def _join_fleet(path: str, versions: Sequence[bytes]) -> tuple[bytes, list[Conflict]]:
    """Every record once."""
    lines = {line: data for content in versions for line, data in _lines(content)}
    order = sorted(lines, key=lambda line: (_when(lines[line]), line))
    return b"".join(line + b"\n" for line in order), []


def _join_benchmarks(path: str, versions: Sequence[bytes]) -> tuple[bytes, list[Conflict]]:
    """Every benchmark; of two descriptions the one with the higher version."""
    out: dict[str, Any] = {}
    conflicts = []
    files = [_object(one) for one in versions]
    for name in sorted({name for one in files for name in one} - {"version"}):
        rows = [one[name] for one in files if name in one]
        kept = max(rows, key=lambda row: (_version_of(row), _text(row)))
        out[name] = kept
        for row in rows:
            facts = [
                {key: one.get(key) for key in ("unit", "param_names", "version")} if isinstance(one, dict) else one
                for one in (kept, row)
            ]
            if _text(facts[0]) != _text(facts[1]):
                rule = "the higher version of the benchmark"
                conflicts.append(Conflict(path, name, _short(facts[0]), _short(facts[1]), rule))
    # asv's own version of the file
    numbers = [one["version"] for one in files if isinstance(one.get("version"), int)]
    return json.dumps({**out, "version": max(numbers, default=RESULT_VERSION)}, indent=1).encode(), conflicts


def _version_of(row: Any) -> tuple[int, str]:
    text = str(row.get("version", "")) if isinstance(row, dict) else ""
    return (int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1, text)


def _pick(path: str, versions: Sequence[bytes]) -> tuple[bytes, list[Conflict]]:
    """A file that cannot be put together from parts: one of its versions, by digest."""
    forms: dict[str, bytes] = {}
    for one in versions:
        forms.setdefault(_meaning(path, one), one)
    ordered = sorted(forms.values(), key=_digest)
    conflicts = [
        Conflict(path, "the file", _digest(ordered[0])[:16], _digest(one)[:16], "the smaller digest")
        for one in ordered[1:]
    ]
    return ordered[0], conflicts


def _meaning(path: str, content: bytes) -> str:
    """What makes two versions the same: compressed code by what is inside, JSON by its values."""
    kind = kind_of(path)
    if kind == CODE:
        return _digest(gzip.decompress(content))
    return _text(_object(content)) if kind == MACHINE else _digest(content)
