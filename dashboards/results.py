"""The one loader of asv result files and state sidecars: everything of a results folder as columns.

Files are parsed once.  What they held is kept in one cache file, under the digest of their bytes, so that a
later load reads only what is new.  Nothing that is left out is left out in silence: see `History.problems`.
"""

from __future__ import annotations

import gc
import hashlib
import io
import itertools
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dashboards.repository import Commit, first_parents, is_shallow, line_through, resolve
from dashboards.series import (
    COMPILERS,
    CRASHED,
    NOT_RUN,
    OK,
    STATE_CODE,
    STATES,
    UNSUPPORTED,
    Environment,
    Series,
    unquote,
)

RESULT_VERSION = 2
STATE_VERSION = 1
CACHE_VERSION = 3

MAX_FILE_BYTES = 256 << 20
MAX_SERIES_PER_FILE = 100_000
MAX_CELLS = 40_000_000
MAX_NAME = 1000
MAX_PROBLEMS_PER_FILE = 5

NAMED = 6  # commits that are named one by one
BESIDE = "not on the first-parent line that is shown"
NO_REASON = "failed (reason not kept)"
NOT_A_NUMBER = "the benchmark returned something that is not a finite number"

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_MACHINE_FACTS = ("arch", "cpu", "machine", "num_cpu", "os", "ram", "version")

_NUMBER, _NULL, _NAN, _UNUSABLE = range(4)


class ResultsError(Exception):
    """The results folder cannot be read at all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file, or a part of one, that was left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Detail:
    """What the sidecar says of one series at one commit.

    `pipes` holds cycles of a modelled launch: `busy` by pipe, `stalls` by cause.  Of a measured one, `device`
    holds the state of the device `before` and `after` and the `marks` of what changed, and `again` how far two
    timings of the same implementation lay apart in this run, by metric.
    """

    reason: str = ""
    role: str = ""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pipes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)
    again: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """Columns of results.  Matrices are [series, commit]; a cell never measured is NaN and `not run`.

    `low` and `high` bound the value with 99 % confidence where samples were kept, else NaN; `state` indexes
    `STATES`, `code` indexes `codes` (0: not known); `order` says what the order of the commits rests on.
    `beside` are commits with results that do not lie on the line shown; `listed` the benchmarks that the suite had
    when it last ran.
    """

    commits: tuple[Commit, ...]
    series: tuple[Series, ...]
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    samples: np.ndarray
    state: np.ndarray
    code: np.ndarray
    codes: tuple[str, ...]
    order: str
    problems: tuple[Problem, ...]
    _detail: np.ndarray = field(repr=False)
    _sides: _Sides = field(repr=False)
    beside: tuple[str, ...] = ()
    listed: frozenset[str] = frozenset()

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(sorted({one.machine for one in self.series}))

    @property
    def environments(self) -> tuple[Environment, ...]:
        return tuple(sorted({one.environment for one in self.series}, key=lambda e: (e.pairs, e.name)))

    def only(self, rows: Sequence[int]) -> History:
        """The same history of some of its series."""
        at = np.array(rows, np.intp)
        cells = ("value", "low", "high", "samples", "state", "code", "_detail")
        parts: dict[str, Any] = {name: getattr(self, name)[at] for name in cells}
        return replace(self, series=tuple(self.series[row] for row in rows), **parts)

    def with_results_of(self, commit: str, other: str, *, leave: bool) -> History:
        """A history where `commit`, which has a column without results, has those of `other`; without `leave`
        `other` has them no longer."""
        to, source = self.column(commit), self.column(other)
        assert to is not None and source is not None
        empty = {"value": np.nan, "low": np.nan, "high": np.nan, "samples": 0, "code": 0, "_detail": -1}
        parts: dict[str, Any] = {}
        for name, nothing in {**empty, "state": STATE_CODE[NOT_RUN]}.items():
            cells = getattr(self, name).copy()
            cells[:, to] = cells[:, source]
            if not leave:
                cells[:, source] = nothing
            parts[name] = cells
        return replace(self, **parts)

    def column(self, commit: str) -> int | None:
        """Column of a full commit hash, None where it has none."""
        return next((at for at, one in enumerate(self.commits) if one.hash == commit), None)

    def state_name(self, series: int, commit: int) -> str:
        return STATES[self.state[series, commit]]

    def code_hash(self, series: int, commit: int) -> str:
        """sha256 of the compiled code, empty where it is not known."""
        return self.codes[self.code[series, commit]]

    def detail(self, series: int, commit: int) -> Detail:
        """Reason, role, findings and notes of one cell; empty where the sidecar says nothing."""
        row = int(self._detail[series, commit])
        if row < 0:
            failed = self.state[series, commit] == STATE_CODE[CRASHED]
            return Detail(reason=NO_REASON if failed else "")
        return self._sides.detail(row)

    def role(self, series: int) -> str:
        """`op`, `other` or `twin`: the newest word of the sidecar, else what the implementation's name says."""
        rows = self._detail[series]
        for row in rows[rows >= 0][::-1]:
            role = self._sides.texts[self._sides.columns["role"][row]]
            if role:
                return role
        return "twin" if "twin" in self.series[series].impl else "op"


@dataclass
class _Sides:
    """Lines of the sidecars as columns of numbers; texts are indices into `texts`."""

    texts: list[str]
    columns: dict[str, np.ndarray]

    def detail(self, row: int) -> Detail:
        def lines(name: str) -> tuple[str, ...]:
            text = self.texts[self.columns[name][row]]
            return tuple(json.loads(text)) if text else ()

        return Detail(
            reason=self.texts[self.columns["reason"][row]],
            role=self.texts[self.columns["role"][row]],
            findings=lines("findings"),
            notes=lines("notes"),
            pipes=json.loads(self.texts[self.columns["pipes"][row]] or "{}"),
            device=json.loads(self.texts[self.columns["device"][row]] or "{}"),
            again=json.loads(self.texts[self.columns["again"][row]] or "{}"),
        )


_RESULT_COLUMNS: dict[str, Any] = {
    "series": np.int32,
    "value": np.float64,
    "low": np.float64,
    "high": np.float64,
    "samples": np.int32,
    "flag": np.uint8,
}
_STATE_COLUMNS: dict[str, Any] = {
    "key": np.int32,
    "state": np.uint8,
    "code": np.int32,
    "reason": np.int32,
    "role": np.int32,
    "findings": np.int32,
    "notes": np.int32,
    "pipes": np.int32,
    "device": np.int32,
    "again": np.int32,
}


@dataclass
class _Table:
    """Interned rows: the same tuple gets the same number."""

    rows: list[Any]
    index: dict[Any, int]

    @classmethod
    def of(cls, rows: Iterable[Any] = ()) -> _Table:
        kept = list(rows)
        return cls(kept, {row: at for at, row in enumerate(kept)})

    def number(self, row: Any) -> int:
        at = self.index.setdefault(row, len(self.rows))
        if at == len(self.rows):
            self.rows.append(row)
        return at


@dataclass
class _Parsed:
    """One file's rows, or the reason why it gave none."""

    path: str
    kind: str
    size: int
    mtime: int
    digest: str
    commit: str = ""
    when: int = 0
    count: int = 0
    problems: list[str] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class _Whole:
    """What a whole file was made of, so that the next one of its kind needs no loop."""

    names: list[str]
    params: list[Any]
    versions: list[Any]
    counts: list[int]
    series: np.ndarray


@dataclass
class _Store:
    """All files of a results folder with the tables that their rows refer to."""

    # (benchmark, params, machine, environment name, environment pairs, version)
    series: _Table = field(default_factory=_Table.of)
    # (suite, case, impl, machine, versions)
    keys: _Table = field(default_factory=_Table.of)
    texts: _Table = field(default_factory=lambda: _Table.of([""]))
    files: list[_Parsed] = field(default_factory=list)
    layouts: dict[Any, tuple[Any, np.ndarray]] = field(default_factory=dict)
    whole: dict[Any, _Whole] = field(default_factory=dict)


def load(
    results: str | Path,
    repo: str | Path | None = None,
    *,
    head: str = "HEAD",
    base: str | None = None,
    cache: str | Path | bool | None = True,
) -> History:
    """Everything under an asv results folder.

    Commits come in first-parent order of `head` in `repo`; with `base` given, in the order of `base` and
    then of what `head` adds to it, and these two are there even without results.  Without a repository
    they come by date, and `order` says so.  `cache` is a folder, True for the user's cache folder, or None.
    """
    folder = Path(results)
    if not folder.is_dir():
        raise ResultsError(f"no results folder: {folder}")
    place = _cache_file(folder, cache)
    problems: list[Problem] = []
    before = _read_cache(place) if place else _Store()
    # parsing makes millions of objects and no cycles: collecting them over and over is a third of the time
    collecting = gc.isenabled()
    gc.disable()
    try:
        store, changed = _scan(folder, before)
    finally:
        if collecting:
            gc.enable()
    if place and changed:
        try:
            _write_cache(place, store)
        except OSError as error:
            problems.append(Problem(str(place), f"cache not written: {error.strerror or error}"))
    facts, fact_problems = _benchmark_facts(folder)
    problems += fact_problems
    commits, beside, line_problems = _commits(store, repo, head, base)
    order = "date" if repo is None else "first parent"
    history = _columns(store, commits, order, facts, problems + line_problems)
    return replace(history, beside=beside, listed=frozenset(facts))


def recorded_seconds(results: str | Path, limit: int = 40) -> list[float]:
    """Seconds that asv took for a commit, from the newest result files that say so."""
    places = [path for path, _, kind in _files(Path(results)) if kind == "result"]
    places.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    found = []
    for path in places[:limit]:
        try:
            data = json.loads(path.read_bytes())
            at = data["result_columns"].index("duration")
            rows = [row[at] for row in data["results"].values() if len(row) > at]
            total = sum(float(one) for one in [*data["durations"].values(), *rows] if one is not None)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if 0 < total < math.inf:
            found.append(total)
    return found


def _scan(folder: Path, before: _Store) -> tuple[_Store, bool]:
    """Every file of the folder, parsed or taken from `before`; whether anything differs from `before`."""
    by_path = {one.path: one for one in before.files}
    by_digest = {(one.digest, one.path): one for one in before.files}
    store = _Store(before.series, before.keys, before.texts)
    changed = False
    for path, name, kind in _files(folder):
        try:
            facts = path.stat()
            known = by_path.get(name)
            if known and (known.size, known.mtime) == (facts.st_size, facts.st_mtime_ns):
                store.files.append(known)
                continue
            changed = True
            parsed = _Parsed(name, kind, facts.st_size, facts.st_mtime_ns, "")
            if facts.st_size > MAX_FILE_BYTES:
                parsed.problems.append(f"larger than {MAX_FILE_BYTES >> 20} MiB")
                store.files.append(parsed)
                continue
            content = path.read_bytes()
        except OSError as error:
            store.files.append(_Parsed(name, kind, -1, -1, "", problems=[f"cannot be read: {error.strerror}"]))
            changed = True
            continue
        parsed.digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        known = by_digest.get((parsed.digest, name))
        if known:
            known.size, known.mtime = parsed.size, parsed.mtime
            store.files.append(known)
            continue
        (_parse_result if kind == "result" else _parse_states)(store, parsed, content)
        store.files.append(parsed)
    return store, changed or len(store.files) != len(before.files)


def _files(folder: Path) -> Iterable[tuple[Path, str, str]]:
    """Result files and sidecars as (path, name below the folder, kind), in a fixed order."""
    for machine in sorted(folder.iterdir()):
        if not machine.is_dir() or machine.is_symlink():
            continue
        for path in sorted(machine.iterdir()):
            name = f"{machine.name}/{path.name}"
            if machine.name == "states":
                if path.suffix == ".jsonl":
                    yield path, name, "states"
            elif path.suffix == ".json" and path.name != "machine.json":
                yield path, name, "result"


def _parse_result(store: _Store, parsed: _Parsed, content: bytes) -> None:
    """Rows of one asv result file into `parsed`; anything unusable into its problems."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        empty = "empty" if not content.strip() else f"not JSON: {_first_line(error)}"
        parsed.problems.append(empty)
        return
    try:
        header = _header(data, parsed)
    except (KeyError, TypeError, ValueError) as error:
        parsed.problems.append(f"not an asv result file: {_first_line(error)}")
        return
    if header is None:
        return
    machine, name, pairs = header
    columns = {column: at for at, column in enumerate(data["result_columns"]) if isinstance(column, str)}
    wanted = ("result", "params", "version", "stats_ci_99_a", "stats_ci_99_b", "stats_repeat")
    at_result, at_params, at_version, at_low, at_high, at_repeat = (columns.get(one, 1 << 30) for one in wanted)
    rows = data["results"]
    if at_result == 1 << 30 or at_params == 1 << 30:
        parsed.problems.append("not an asv result file: no result or params column")
        return
    place = (machine, name, pairs)
    at = (at_result, at_params, at_version, at_low, at_high, at_repeat)
    taken = _as_before(store, place, rows, at) or _row_by_row(store, place, rows, at, parsed)
    series, values, lows, highs, repeats = taken
    parsed.count = len(values)
    value, flag = _numbers(values)
    low, _ = _numbers(lows)
    high, _ = _numbers(highs)
    repeat, _ = _numbers(repeats)
    parsed.columns = {
        "series": series,
        "value": value,
        "low": low,
        "high": high,
        "samples": np.clip(np.nan_to_num(repeat), 0, 1 << 30).astype(np.int32),
        "flag": flag,
    }


_Taken = tuple[np.ndarray, list[Any], list[Any], list[Any], list[Any]]


def _as_before(store: _Store, place: Any, rows: dict[str, Any], at: tuple[int, ...]) -> _Taken | None:
    """Columns of a file with the very benchmarks and parameters of the last one, without a loop; else None."""
    known = store.whole.get(place)
    if known is None or list(rows) != known.names:
        return None
    at_result, at_params, at_version, *others = at
    lines = list(rows.values())
    try:
        if [line[at_params] for line in lines] != known.params:
            return None
        if [line[at_version] for line in lines] != known.versions:
            return None
        results = [line[at_result] for line in lines]
        if set(map(type, results)) != {list} or list(map(len, results)) != known.counts:
            return None
    except (TypeError, IndexError, KeyError):
        return None
    flat = []
    for column in others:
        cells = [line[column] if len(line) > column else None for line in lines]
        flat.append(
            list(
                itertools.chain.from_iterable(
                    cell if type(cell) is list and len(cell) == count else (None,) * count
                    for cell, count in zip(cells, known.counts)
                )
            )
        )
    return known.series, list(itertools.chain.from_iterable(results)), flat[0], flat[1], flat[2]


def _row_by_row(store: _Store, place: Any, rows: dict[str, Any], at: tuple[int, ...], parsed: _Parsed) -> _Taken:
    """Columns of any file; rows that cannot be used become problems."""
    at_result, at_params, at_version, *others = at
    numbers: list[np.ndarray] = []
    values: list[Any] = []
    flat: list[list[Any]] = [[], [], []]
    skipped: list[str] = []
    for benchmark, row in rows.items():
        if not isinstance(row, list) or len(benchmark) > MAX_NAME:
            skipped.append(f"benchmark {benchmark[:80]!r} is not a row of results")
            continue
        # asv cuts trailing nulls, so a row without anything is a benchmark that failed as a whole
        params = row[at_params] if len(row) > at_params else None
        version = row[at_version] if len(row) > at_version else None
        cell = (place, benchmark, version if isinstance(version, str) else "")
        known = store.layouts.get(cell)
        if known is None or known[0] != params:
            try:
                known = (params, _series_numbers(store, cell, params, len(values)))
            except ValueError as error:
                skipped.append(f"benchmark {benchmark[:80]!r}: {error}")
                continue
            store.layouts[cell] = known
        count = len(known[1])
        result = row[at_result] if len(row) > at_result else None
        if result is None:
            result = [None] * count
        elif not isinstance(result, list) or len(result) != count:
            skipped.append(f"benchmark {benchmark[:80]!r} has another number of results than of parameters")
            continue
        numbers.append(known[1])
        values += result
        for target, column in zip(flat, others):
            cells = row[column] if len(row) > column else None
            target += cells if isinstance(cells, list) and len(cells) == count else [None] * count
    series = np.concatenate(numbers) if numbers else np.zeros(0, np.int32)
    if not skipped and all(len(row) > max(at_params, at_version) for row in rows.values()):
        store.whole[place] = _Whole(
            list(rows),
            [row[at_params] for row in rows.values()],
            [row[at_version] for row in rows.values()],
            [len(one) for one in numbers],
            series,
        )
    if len(skipped) > MAX_PROBLEMS_PER_FILE:
        skipped[MAX_PROBLEMS_PER_FILE:] = [f"and {len(skipped) - MAX_PROBLEMS_PER_FILE} more benchmarks"]
    parsed.problems += skipped
    return series, values, flat[0], flat[1], flat[2]


def _header(data: Any, parsed: _Parsed) -> tuple[str, str, tuple[tuple[str, str], ...]] | None:
    """Machine, environment name and environment of a result file; None when it is refused."""
    if not isinstance(data, dict):
        raise ValueError("not an object")
    if data.get("version") != RESULT_VERSION:
        parsed.problems.append(f"result version {data.get('version')!r}, this reads {RESULT_VERSION}")
        return None
    commit = data["commit_hash"]
    if not isinstance(commit, str) or not _COMMIT.match(commit):
        raise ValueError("commit_hash is no full commit hash")
    if not isinstance(data["results"], dict) or not isinstance(data["result_columns"], list):
        raise ValueError("no results")
    params = data["params"]
    if not isinstance(params, dict):
        raise ValueError("params is no object")
    folder = parsed.path.partition("/")[0]
    machine = params.get("machine")
    if machine != folder:
        parsed.problems.append(f"of machine {str(machine)[:80]!r}, but in the folder of {folder!r}")
        return None
    # a memory scan of 10^6 names would never end well: refuse before interning any
    if len(data["results"]) > MAX_SERIES_PER_FILE:
        parsed.problems.append(f"{len(data['results'])} benchmarks, more than {MAX_SERIES_PER_FILE} are not read")
        return None
    requirements = data.get("requirements") or {}
    variables = data.get("env_vars") or {}
    pairs = {str(key): str(value) for key, value in {**requirements, **variables}.items()}
    pairs["python"] = str(data.get("python", ""))
    for key, value in params.items():
        if key not in _MACHINE_FACTS and isinstance(value, str):
            pairs.setdefault(key, value)
    parsed.commit = commit
    date = data.get("date")
    parsed.when = int(date) if isinstance(date, (int, float)) and abs(date) < 1e15 else 0
    return machine, str(data.get("env_name", "")), tuple(sorted(pairs.items()))


def _series_numbers(store: _Store, cell: Any, params: Any, before: int) -> np.ndarray:
    """Numbers of the series of one benchmark, in the order of its flat result list."""
    (machine, name, pairs), benchmark, version = cell
    axes = params or []
    if not isinstance(axes, list) or not all(isinstance(axis, list) for axis in axes):
        raise ValueError("parameters are no lists")
    count = math.prod(len(axis) for axis in axes)
    if before + count > MAX_SERIES_PER_FILE:
        raise ValueError(f"{count} results on top of {before}, more than {MAX_SERIES_PER_FILE} are not read")
    texts = [[unquote(str(one)[:MAX_NAME]) for one in axis] for axis in axes]
    rows = ((benchmark, values, machine, name, pairs, version) for values in itertools.product(*texts))
    return np.fromiter((store.series.number(row) for row in rows), np.int32, count)


def _numbers(values: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Floats of a JSON list with NaN where there is none, and what each entry was."""
    if not set(map(type, values)) <= {float, int, type(None)}:
        plain = [one if type(one) in (float, int) or one is None else math.inf for one in values]
    else:
        plain = values
    try:
        array = np.array(plain, dtype=np.float64)
    except OverflowError:
        array = np.array([math.inf if type(one) is int and abs(one) > 1e300 else one for one in plain], float)
    flag = np.zeros(len(values), np.uint8)
    odd = ~np.isfinite(array)
    if odd.any():
        for at in np.flatnonzero(odd):
            one = plain[at]
            flag[at] = _NULL if one is None else _NAN if one != one else _UNUSABLE
        array[odd] = np.nan
    return array, flag


def _parse_states(store: _Store, parsed: _Parsed, content: bytes) -> None:
    """Lines of one sidecar into `parsed`; a damaged line is named and skipped."""
    commit = parsed.path.rpartition("/")[2].removesuffix(".jsonl")
    if not _COMMIT.match(commit):
        parsed.problems.append("the file's name is no full commit hash")
        return
    parsed.commit = commit
    rows: dict[int, tuple[int, ...]] = {}
    bad: list[str] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            key, row = _state_row(store, json.loads(line), commit)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            bad.append(f"line {number} skipped: {_first_line(error)}")
            continue
        rows.pop(key, None)
        rows[key] = row
    if len(bad) > MAX_PROBLEMS_PER_FILE:
        bad[MAX_PROBLEMS_PER_FILE:] = [f"and {len(bad) - MAX_PROBLEMS_PER_FILE} more lines"]
    parsed.problems += bad
    parsed.count = len(rows)
    flat = np.array([(key, *row) for key, row in rows.items()], np.int64).reshape(-1, len(_STATE_COLUMNS))
    parsed.columns = {name: flat[:, at].astype(kind) for at, (name, kind) in enumerate(_STATE_COLUMNS.items())}


def _state_row(store: _Store, line: Any, commit: str) -> tuple[int, tuple[int, ...]]:
    if not isinstance(line, dict):
        raise ValueError("not an object")
    if line.get("version") != STATE_VERSION:
        raise ValueError(f"version {line.get('version')!r}, this reads {STATE_VERSION}")
    if line["commit"] != commit:
        raise ValueError("of another commit than the file")
    if line["state"] not in STATE_CODE:
        raise ValueError(f"unknown state {str(line['state'])[:40]!r}")
    names = [line["suite"], line["case"], line["impl"]]
    if not all(isinstance(name, str) and len(name) <= MAX_NAME for name in names):
        raise ValueError("suite, case and impl are to be short strings")
    versions = line.get("versions") or {}
    pairs = tuple(sorted((str(key), str(value)) for key, value in versions.items()))
    key = store.keys.number((*names, str(line.get("machine", "")), pairs))

    def text(name: str) -> int:
        return store.texts.number(str(line.get(name) or "")[:4000])

    def texts(name: str) -> int:
        lines = line.get(name) or []
        if not isinstance(lines, list):
            raise ValueError(f"{name} is no list")
        kept = [str(one)[:1000] for one in lines[:50]]
        return store.texts.number(json.dumps(kept) if kept else "")

    role = text("role")
    return key, (
        STATE_CODE[line["state"]],
        text("code"),
        text("reason"),
        role,
        texts("findings"),
        texts("notes"),
        store.texts.number(_pipes(line.get("pipes"))),
        store.texts.number(_device(line.get("device"))),
        store.texts.number(_again(line.get("again"))),
    )


def _pipes(given: Any) -> str:
    """Cycles by pipe and by cause of a stall as JSON, empty where there are none."""
    if not given:
        return ""
    if not isinstance(given, dict) or not all(isinstance(one, dict) for one in given.values()):
        raise ValueError("pipes is no table of tables")
    kept = {
        str(kind)[:40]: {str(name)[:80]: cycles for name, cycles in list(some.items())[:40] if type(cycles) is int}
        for kind, some in list(given.items())[:4]
    }
    return json.dumps(kept, sort_keys=True) if any(kept.values()) else ""


def _device(given: Any) -> str:
    """State of a device before and after, and the marks of a run, as JSON; empty where there is none."""
    if not given:
        return ""
    if not isinstance(given, dict) or not isinstance(given.get("marks", []), list):
        raise ValueError("device is no table with a list of marks")
    kept: dict[str, Any] = {"marks": [str(one)[:300] for one in given.get("marks", [])[:20]]}
    for when in ("before", "after"):
        facts = given.get(when) or {}
        if not isinstance(facts, dict):
            raise ValueError(f"device: {when} is no table")
        kept[when] = {
            str(name)[:40]: fact if isinstance(fact, int | float) and math.isfinite(fact) else str(fact)[:200]
            for name, fact in list(facts.items())[:20]
            if isinstance(fact, int | float | str)
        }
    return json.dumps(kept, sort_keys=True)


def _again(given: Any) -> str:
    """Differences of two timings of the same by metric, as JSON; empty where there are none."""
    if not given:
        return ""
    if not isinstance(given, dict):
        raise ValueError("again is no table")
    kept = {
        str(metric)[:80]: float(apart)
        for metric, apart in list(given.items())[:20]
        if isinstance(apart, int | float) and math.isfinite(apart) and apart >= 0
    }
    return json.dumps(kept, sort_keys=True) if kept else ""


def _benchmark_facts(folder: Path) -> tuple[dict[str, tuple[str, tuple[str, ...]]], list[Problem]]:
    """Unit and parameter names of each benchmark, from asv's own list of them."""
    path = folder / "benchmarks.json"
    try:
        data = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_FILE_BYTES else None
    except FileNotFoundError:
        return {}, [Problem(path.name, "not there: units and parameter names are not known")]
    except (OSError, ValueError, RecursionError) as error:
        return {}, [Problem(path.name, f"not read, units are not known: {_first_line(error)}")]
    if not isinstance(data, dict) or data.get("version") != RESULT_VERSION:
        return {}, [Problem(path.name, "of another version, units and parameter names are not known")]
    facts = {}
    for name, row in data.items():
        if isinstance(row, dict):
            names = row.get("param_names")
            unit = row.get("unit")
            facts[name] = (
                unit if isinstance(unit, str) else "",
                tuple(str(one) for one in names) if isinstance(names, list) else (),
            )
    return facts, []


def _commits(
    store: _Store, repo: str | Path | None, head: str, base: str | None
) -> tuple[list[Commit], tuple[str, ...], list[Problem]]:
    """The commits to show, in order, those that are left out of them, and what is to be said of it."""
    dates: dict[str, int] = {}
    for one in store.files:
        if one.commit:
            dates[one.commit] = max(one.when, dates.get(one.commit, 0))
    if repo is None:
        ordered = sorted(dates, key=lambda commit: (dates[commit], commit))
        return [Commit(one, date=dates[one]) for one in ordered], (), []
    line = first_parents(repo, head) if base is None else line_through(repo, base, head)
    names = {commit.hash for commit in line}
    beside = [one for one in store.files if one.commit and one.commit not in names]
    problems = _beside_the_line(beside)
    if is_shallow(repo):
        problems.append(Problem(str(repo), "the clone is shallow: older commits of its history are not there"))
    asked = set() if base is None else {resolve(repo, base), resolve(repo, head)}
    shown = [commit for commit in line if commit.hash in dates or commit.hash in asked]
    return shown, tuple(dict.fromkeys(one.commit for one in beside)), problems


def _beside_the_line(files: Sequence[_Parsed]) -> list[Problem]:
    """One problem for all files of commits that were reset away or lie on another branch."""
    commits = list(dict.fromkeys(one.commit for one in files))
    if not commits:
        return []
    named = ", ".join(one[:12] for one in commits[:NAMED])
    more = f" and {len(commits) - NAMED} more" if len(commits) > NAMED else ""
    path = files[0].path if len(files) == 1 else f"{len(files)} files"
    several = len(commits) > 1
    return [Problem(path, f"commit{'s' * several} {named}{more} {'are' if several else 'is'} {BESIDE}")]


def _columns(
    store: _Store,
    commits: Sequence[Commit],
    order: str,
    facts: dict[str, tuple[str, tuple[str, ...]]],
    problems: list[Problem],
) -> History:
    """The matrices of a history from the rows of all files."""
    problems = [Problem(one.path, reason) for one in store.files for reason in one.problems] + problems
    column = {commit.hash: at for at, commit in enumerate(commits)}
    shown = [one for one in store.files if one.commit in column and one.count]
    results = sorted((one for one in shown if one.kind == "result"), key=lambda one: (one.when, one.path))
    states = [one for one in shown if one.kind == "states"]

    flat = {name: _join(results, name, kind) for name, kind in _RESULT_COLUMNS.items()}
    used = np.unique(flat["series"])
    if used.size * len(commits) > MAX_CELLS:
        raise ResultsError(
            f"{used.size} series of {len(commits)} commits are more than {MAX_CELLS} cells; "
            "remove the results that do not belong here"
        )
    row_of = np.full(len(store.series.rows), -1, np.int32)
    row_of[used] = np.arange(used.size)
    rows = row_of[flat["series"]]
    cols = np.repeat([column[one.commit] for one in results], [one.count for one in results]).astype(np.int64)
    shape = (used.size, len(commits))

    def matrix(fill: Any, kind: Any, at: tuple[np.ndarray, np.ndarray], values: Any) -> np.ndarray:
        out = np.full(shape, fill, kind)
        out[at] = values
        return out

    series = [_series(store.series.rows[number], facts) for number in used]
    from_flag = np.array([STATE_CODE[one] for one in (OK, CRASHED, UNSUPPORTED, CRASHED)], np.uint8)
    flagged = from_flag[flat["flag"]]
    # that a kernel is unsupported is a verdict, which the sidecar has; NaN alone was left out of the run
    of_kernel = np.array([one.of_kernel for one in series], bool)
    flagged[(flagged == STATE_CODE[UNSUPPORTED]) & of_kernel[rows]] = STATE_CODE[NOT_RUN]
    at = (rows, cols)
    value = matrix(np.nan, float, at, flat["value"])
    state = matrix(STATE_CODE[NOT_RUN], np.uint8, at, flagged)
    detail = np.full(shape, -1, np.int32)
    code = np.zeros(shape, np.int32)
    sides = _Sides(store.texts.rows, {name: _join(states, name, kind) for name, kind in _STATE_COLUMNS.items()})
    if states:
        _place_states(store, series, states, sides, column, (state, detail, code))
        _lend_codes(series, code)
    problems += _unusable(store, results)
    return History(
        commits=tuple(commits),
        series=tuple(series),
        value=np.where(state == STATE_CODE[OK], value, np.nan),
        low=matrix(np.nan, float, at, flat["low"]),
        high=matrix(np.nan, float, at, flat["high"]),
        samples=matrix(0, np.int32, at, flat["samples"]),
        state=state,
        code=code,
        codes=tuple(store.texts.rows),
        order=order,
        problems=tuple(problems),
        _detail=detail,
        _sides=sides,
    )


def _place_states(
    store: _Store,
    series: Sequence[Series],
    states: Sequence[_Parsed],
    sides: _Sides,
    column: dict[str, int],
    into: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Writes each sidecar line into the cells of the series it speaks of."""
    state, detail, code = into
    targets = _targets(store.keys.rows, series)
    keys = sides.columns["key"]
    cols = np.repeat([column[one.commit] for one in states], [one.count for one in states])
    by_key: dict[int, np.ndarray] = {}
    order = np.argsort(keys, kind="stable")
    borders = np.flatnonzero(np.diff(keys[order])) + 1
    for lines in np.split(order, borders):
        if lines.size:
            by_key[int(keys[lines[0]])] = lines
    for key, lines in by_key.items():
        for row in targets[key]:
            at = cols[lines]
            said = sides.columns["state"][lines]
            # a value without `ok` is not shown; `ok` without a value means that the metric itself failed
            failed_here = (said == STATE_CODE[OK]) & (state[row, at] != STATE_CODE[OK])
            state[row, at] = np.where(failed_here, state[row, at], said)
            detail[row, at] = lines
            code[row, at] = sides.columns["code"][lines]


def _lend_codes(series: Sequence[Series], code: np.ndarray) -> None:
    """Compiled code of device times from the modelled series of the same launch; it says nothing of host times."""
    modelled: dict[tuple[str, str, str], int] = {}
    for row, one in enumerate(series):
        if one.modelled and code[row].any():
            modelled.setdefault((one.op, one.case, one.impl), row)
    for row, one in enumerate(series):
        source = modelled.get((one.op, one.case, one.impl))
        if one.of_host:
            code[row] = 0
        elif source is not None and not one.modelled and not code[row].any():
            code[row] = code[source]


def _targets(keys: Sequence[Any], series: Sequence[Series]) -> list[list[int]]:
    """Rows of the series that each sidecar key speaks of: all that the key names is the same."""
    by_name: dict[tuple[str, str, str], list[int]] = {}
    for row, one in enumerate(series):
        by_name.setdefault((one.suite, one.case, one.impl), []).append(row)
    machines = {one.machine for one in series}
    found = []
    for suite, case, impl, machine, pairs in keys:
        rows = []
        for row in by_name.get((suite, case, impl), ()):
            one = series[row]
            if machine in machines and one.machine != machine:
                continue
            versions = one.environment.versions
            if all(versions.get(name, value) == value for name, value in pairs if name in COMPILERS):
                rows.append(row)
        found.append(rows)
    return found


def _unusable(store: _Store, results: Sequence[_Parsed]) -> list[Problem]:
    """One problem for each file with values that are no finite numbers, such as a list or infinity."""
    problems = []
    for one in results:
        bad = np.flatnonzero(one.columns["flag"] == _UNUSABLE)
        if bad.size:
            name = store.series.rows[one.columns["series"][bad[0]]][0]
            problems.append(Problem(one.path, f"{NOT_A_NUMBER}: {bad.size} times, first in {name[:80]!r}"))
    return problems


def _join(files: Sequence[_Parsed], name: str, kind: Any) -> np.ndarray:
    return np.concatenate([one.columns[name] for one in files]) if files else np.zeros(0, kind)


def _series(row: Any, facts: dict[str, tuple[str, tuple[str, ...]]]) -> Series:
    benchmark, params, machine, name, pairs, version = row
    unit, names = facts.get(benchmark, ("", ()))
    if len(names) != len(params):
        two = ("case", "impl")
        names = two if len(params) == 2 else tuple(f"param{at + 1}" for at in range(len(params)))
    one = Series(benchmark, params, names, machine, Environment(name, pairs), version, unit)
    return one if unit or not one.of_kernel else replace(one, unit=_own_unit(one))


def _own_unit(one: Series) -> str:
    """Unit of a metric of this suite, which decides what is worse, where the list of benchmarks is lost."""
    from ascend_model import METRICS

    if not one.modelled:
        return "us"
    known = METRICS.get(one.metric)
    return f"{known.unit} (modelled)" if known else ""


def _cache_file(folder: Path, cache: str | Path | bool | None) -> Path | None:
    if cache is None or cache is False:
        return None
    if cache is True:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascend-perf"
    else:
        root = Path(cache)
    name = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=16).hexdigest()
    return root / f"results-{name}.npz"


def _read_cache(path: Path) -> _Store:
    """The store of an earlier load; an empty one where there is none that can be used."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            if header["version"] != CACHE_VERSION:
                return _Store()
            columns = {
                kind: {name: arrays[f"{kind}_{name}"] for name in names}
                for kind, names in (("result", _RESULT_COLUMNS), ("states", _STATE_COLUMNS))
            }
        environments = [tuple((key, value) for key, value in pairs) for pairs in header["environments"]]
        series = [
            (benchmark, tuple(params), machine, name, environments[pairs], version)
            for benchmark, params, machine, name, pairs, version in header["series"]
        ]
        keys = [(*row[:4], environments[row[4]]) for row in header["keys"]]
        store = _Store(_Table.of(series), _Table.of(keys), _Table.of(header["texts"]))
        start = {"result": 0, "states": 0}
        for row in header["files"]:
            one = _Parsed(*row)
            begin = start[one.kind]
            start[one.kind] = begin + one.count
            one.columns = {name: array[begin : begin + one.count] for name, array in columns[one.kind].items()}
            store.files.append(one)
        return store
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        EOFError,
        io.UnsupportedOperation,
    ):
        return _Store()
    except Exception as error:  # zipfile and zlib have errors of their own for a damaged archive
        if type(error).__module__.split(".")[0] in ("zipfile", "zlib"):
            return _Store()
        raise


def _write_cache(path: Path, store: _Store) -> None:
    environments = _Table.of()
    header = {
        "version": CACHE_VERSION,
        "series": [
            [benchmark, params, machine, name, environments.number(pairs), version]
            for benchmark, params, machine, name, pairs, version in store.series.rows
        ],
        "keys": [[*row[:4], environments.number(row[4])] for row in store.keys.rows],
        "texts": store.texts.rows,
        "files": [
            [f.path, f.kind, f.size, f.mtime, f.digest, f.commit, f.when, f.count, f.problems] for f in store.files
        ],
        "environments": environments.rows,
    }
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for kind, names in (("result", _RESULT_COLUMNS), ("states", _STATE_COLUMNS)):
        files = [one for one in store.files if one.kind == kind and one.count]
        arrays |= {f"{kind}_{name}": _join(files, name, of) for name, of in names.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
