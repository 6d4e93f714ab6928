"""`ascend-perf detect FILE`: change points of a JSON list, a column of a CSV file or a folder of asv results."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dashboards.check import CheckError, parse_thresholds
from dashboards.detect import HISTORY_CONFIDENCE, ChangePoint, change_points, newest_alert
from dashboards.events import jumps_of
from dashboards.repository import Commit, RepositoryError, exists, git
from dashboards.results import ResultsError, load
from dashboards.text import plain

USAGE = 4
MAX_BYTES = 64 << 20
# Commits of a results folder that are looked for in the repository around it.
SOME = 20


EXAMPLES = """examples:
  ascend-perf detect timings.json
  ascend-perf detect timings.csv --column median --threshold 2
  ascend-perf detect .asv/results --repo .
  seq 1 20 | ascend-perf detect - --direction higher"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("file", help="JSON list of numbers, CSV file, or asv results folder; - for standard input")
    parser.add_argument("--column", help="column of a CSV file: its name, or its number from 1")
    parser.add_argument("--direction", choices=("lower", "higher"), help="which is better (default: lower)")
    parser.add_argument("--deterministic", action="store_true", help="no noise: every difference is a change")
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="[PATTERN=]PERCENT",
        help="least change that counts; patterns are for the benchmark names of asv results",
    )
    parser.add_argument("--confidence", type=float, help=f"least probability, {HISTORY_CONFIDENCE} by default")
    parser.add_argument("--newest", action="store_true", help="only the regression that the newest points show")
    parser.add_argument(
        "--repo",
        type=Path,
        help="git repository that gives asv results their order (default: the one around them)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the change points as JSON; 4 where the file cannot be used."""
    try:
        thresholds = parse_thresholds(args.threshold)
        path = Path(args.file)
        if args.file != "-" and path.is_dir():
            _only_of_values(args)
            found: Any = _of_results(path, args.repo, thresholds)
        else:
            found = _of_values(_read(args.file, args.column), args, thresholds)
    except (DetectError, CheckError, ResultsError, RepositoryError, ValueError) as error:
        print(f"ascend-perf detect: {plain(args.file)}: {plain(str(error), 400)}", file=sys.stderr)
        return USAGE
    json.dump(found, sys.stdout, indent=1, allow_nan=False)
    print()
    return 0


class DetectError(Exception):
    """The file holds no series."""


def _of_values(values: Sequence[float | None], args: argparse.Namespace, thresholds: dict[str, float]) -> Any:
    options: dict[str, Any] = {
        "deterministic": args.deterministic,
        "direction": args.direction or "lower",
        "threshold": thresholds.get("*"),
    }
    if args.confidence is not None:
        if not 0 < args.confidence < 1:
            raise DetectError(f"a confidence lies between 0 and 1: {args.confidence}")
        options["confidence"] = args.confidence
    if args.newest:
        alert = newest_alert(values, **options)
        return [_plain_row(alert)] if alert else []
    return [_plain_row(one) for one in change_points(values, **options)]


def _only_of_values(args: argparse.Namespace) -> None:
    """DetectError for an option that asv results, which say themselves what they are, have no use for."""
    for name in ("column", "direction", "deterministic", "confidence", "newest"):
        if getattr(args, name) not in (None, False):
            raise DetectError(f"--{name} goes with a file of values, not with a folder of results")


def _around(folder: Path, commits: Sequence[Commit]) -> Path | None:
    """The repository that a results folder lies in, where that has any of its commits."""
    try:
        top = Path(git(folder, "rev-parse", "--show-toplevel").rstrip("\n"))
    except RepositoryError:
        return None
    return top if exists(top, [one.hash for one in commits[-SOME:]]) else None


def _of_results(folder: Path, repo: Path | None, thresholds: dict[str, float]) -> Any:
    history = load(folder, repo)
    if repo is None:
        around = _around(folder, history.commits)
        if around is not None:
            history = load(folder, around)
        elif history.commits:
            words = "the commits are in the order of their dates; --repo gives them that of a repository"
            print(f"ascend-perf detect: note: {words}", file=sys.stderr)
    for problem in history.problems:
        print(f"ascend-perf detect: {plain(problem.path)}: {plain(problem.reason)}", file=sys.stderr)
    return [
        {
            "benchmark": series.benchmark,
            "params": list(series.params),
            "machine": series.machine,
            "environment": series.environment.versions,
            "unit": series.unit,
            "direction": series.direction,
            "change_points": [{**_plain_row(one), "commit": history.commits[one.index].hash} for one in jumps],
        }
        for series, jumps in zip(history.series, jumps_of(history, thresholds))
        if jumps
    ]


def _plain_row(one: ChangePoint) -> dict[str, Any]:
    """A change point as JSON can hold it: infinity and NaN become null."""
    return {
        key: None if isinstance(item, float) and not math.isfinite(item) else item
        for key, item in asdict(one).items()
    }


def _read(name: str, column: str | None) -> list[float | None]:
    """The values of a JSON list or of a CSV column."""
    try:
        if name == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DetectError(error.strerror or str(error)) from None
    if len(content) > MAX_BYTES:
        raise DetectError(f"larger than {MAX_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DetectError("neither JSON nor CSV: not UTF-8 text") from None
    if not text.strip():
        raise DetectError("empty")
    if text.lstrip()[0] in "[{":
        return _from_json(text)
    return _from_csv(text, column)


def _from_json(text: str) -> list[float | None]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DetectError(f"not JSON: {error or 'nested too deeply'}") from None
    if not isinstance(data, list):
        raise DetectError("a JSON list of numbers is expected, with null for a gap")
    for at, one in enumerate(data):
        if one is not None and (isinstance(one, bool) or not isinstance(one, (int, float))):
            raise DetectError(f"entry {at} is no number: {str(one)[:40]!r}")
    return [None if one is None or abs(one) > sys.float_info.max else float(one) for one in data]


def _from_csv(text: str, column: str | None) -> list[float | None]:
    try:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    except csv.Error as error:
        raise DetectError(f"not CSV: {error}") from None
    head = [cell.strip() for cell in rows[0]]
    named = not all(_is_number(cell) or not cell for cell in head)
    body = rows[1:] if named else rows
    if column is None:
        if len(head) > 1:
            raise DetectError(f"{len(head)} columns: choose one with --column" + (f" of {head}" if named else ""))
        at = 0
    elif named and column in head:
        at = head.index(column)
    elif column.isdigit() and 1 <= int(column) <= len(head):
        at = int(column) - 1
    else:
        raise DetectError(f"no column {column!r}" + (f" among {head}" if named else ""))
    values: list[float | None] = []
    for number, row in enumerate(body, 2 if named else 1):
        cell = row[at].strip() if at < len(row) else ""
        if cell.lower() in ("", "nan", "null", "none", "na"):
            values.append(None)
        elif _is_number(cell):
            values.append(float(cell))
        else:
            raise DetectError(f"line {number} is no number: {cell[:40]!r}")
    return values


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
