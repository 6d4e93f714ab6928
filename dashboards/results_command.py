"""`ascend-perf results`: join results folders and stores without loss, and see whether one is whole."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from . import store
from .text import plain

EXAMPLES = """examples:
  ascend-perf results merge laptop/results .asv/results             laptop's results into .asv/results
  ascend-perf results merge a/results b/results --into all          both into a third one
  ascend-perf results merge s3://bucket/perf --into .asv/results    a store elsewhere becomes plain results
  ascend-perf results merge .asv/results --into s3://bucket/perf    and the other way
  ascend-perf results check .asv/results                            every file readable?
A source is only read. The target keeps every version of every file, and shows one."""

DONE, NAMED, NOTHING, USAGE = 0, 1, 3, 4
SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=("merge", "check"))
    parser.add_argument("places", nargs="+", metavar="FOLDER", help="results folders or fsspec addresses")
    parser.add_argument("--into", metavar="FOLDER", help="with merge: where they go (default: the last one named)")
    parser.add_argument("--json", action="store_true", help="what happened as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(given: argparse.Namespace) -> int:
    """0 whole, 1 conflicts or damaged files (named), 3 there was nothing, 4 usage or environment."""
    try:
        if given.action == "check":
            if given.into:
                raise store.StoreError("--into goes with merge")
            reports = [(place, store.check(place)) for place in given.places]
        else:
            sources, target = split(given.places, given.into)
            reports = [(target, merged(sources, target, given.quiet or given.json))]
    except store.StoreError as error:
        print(f"ascend-perf results: {plain(str(error), 600)}", file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"ascend-perf results: {plain(words_of(error), 600)}; the same command goes on", file=sys.stderr)
        return USAGE
    if given.json:
        print(json.dumps([{"folder": place, **asdict(report)} for place, report in reports], indent=1))
    else:
        for place, report in reports:
            print_report(given.action, place, report)
    if not any(report.files for _, report in reports):
        return NOTHING if all(report.clean for _, report in reports) else NAMED
    return DONE if all(report.clean for _, report in reports) else NAMED


def split(places: Sequence[str], into: str | None) -> tuple[list[str], str]:
    """Sources and target."""
    if into is not None:
        sources, target = list(places), into
    elif len(places) < 2:
        raise store.StoreError("name two folders, or one and --into: `results merge A B`")
    else:
        sources, target = list(places[:-1]), places[-1]
        if not store.is_remote(target) and not Path(target).is_dir():
            raise store.StoreError(f"no results folder: {target}; a new one is named with --into")
    for one in sources:
        if not store.is_remote(one) and not store.is_remote(target):
            if Path(one).resolve() == Path(target).resolve() and len(sources) == 1:
                raise store.StoreError(f"source and target are the same folder: {one}")
    return sources, target


def merged(sources: Sequence[str], target: str, quiet: bool) -> store.Report:
    """The merge, with a bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=quiet or not console.is_terminal,
    )  # fmt: skip
    with bar:
        steps: dict[str, object] = {}

        def show(step: str, done: int, of: int) -> None:
            if step not in steps:
                steps[step] = bar.add_task(step, total=None)
            bar.update(steps[step], completed=done, total=of or None)  # type: ignore[arg-type]

        return store.merge_into(sources, target, show)


def words_of(error: OSError) -> str:
    """What went wrong with a file, and what to do about it."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{where}: make room"
    return f"{error.strerror or error}{where}"


def print_report(action: str, place: str, report: store.Report) -> None:
    """The outcome for people."""
    if action == "merge":
        print(f"{report.files} files read, {report.added} new in {plain(place)}, {report.shown} written there")
    else:
        print(f"{report.files} files in {plain(place)}" + ("" if report.aside else ", every one readable"))
    for one in report.aside[:SHOWN]:
        kept = f"; it lies in {one.place}" if one.place else "; left where it is"
        print(f"damaged: {plain(one.name)}: {plain(one.reason)}{plain(kept, 400)}")
    _more(len(report.aside))
    for conflict in report.conflicts[:SHOWN]:
        words = f"{conflict.key}: {conflict.kept} kept ({conflict.rule}), {conflict.dropped} not shown"
        print(f"conflict: {plain(conflict.path, 80)}: {plain(words)}")
    _more(len(report.conflicts))
    for name in report.ahead[:SHOWN]:
        print(f"clock: {plain(name)} speaks of a time that is still to come")
    _more(len(report.ahead))


def _more(count: int) -> None:
    if count > SHOWN:
        print(f"  and {count - SHOWN} more (--json lists all)")
