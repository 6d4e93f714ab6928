"""What a run is asked for and a results folder does not hold yet, commit by commit and op by op."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.series import COMPILERS, NOT_RUN, Series, unquote

NOT_DESCRIBED = "not described yet"
DIED = "the process ended before a verdict"  # as in ascend_kernels.harness.suite


# name of a benchmark -> values of each parameter, version, and the places of the combinations that are asked for,
# all of them where that is None
Asked = Mapping[str, tuple[Sequence[Sequence[str]], str, Sequence[int] | None]]


@dataclass(frozen=True, order=True)
class Part:
    """A part of the suite.  `ops` is empty for all of it; `kind` is Modelled, Measured, or empty for both."""

    ops: tuple[str, ...] = ()
    kind: str = ""


def asked(config: str, *, ops: Sequence[str], bench: Sequence[str], cases: str) -> Asked | None:
    """What today's suite has of what is asked for; None where the suite cannot be read, and asv will say why.

    asv.util.UserError where an op is unknown, or no benchmark matches.
    """
    from asv import runner
    from asv.benchmarks import Benchmarks
    from asv.config import Config
    from asv.util import UserError

    from .host_environment import left_out

    settings = Config.load(config)
    environment = dict(os.environ)
    environment.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    environment.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parent.parent), *filter(None, [environment.get("PYTHONPATH")])]
    )
    if cases:
        environment["ASCEND_PERF_CASES"] = cases
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "benchmarks.json")
        benches = str(Path(config).resolve().parent / settings.benchmark_dir)
        command = [sys.executable, runner.BENCHMARK_RUN_SCRIPT, "discover", benches, str(out)]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode or not out.is_file():
            return None
        rows = json.loads(out.read_bytes())
    known = Benchmarks(settings, rows, regex=list(bench))
    if bench and not known:
        words = " or ".join(map(repr, bench))
        like = f", such as {min(rows)}" if (rows := known._all_benchmarks) else ""
        raise UserError(f"no benchmark matches {words}; a pattern is looked for in full names{like}")
    names = known.keys() - left_out(known, ops)
    return {
        name: (known[name]["params"], str(known[name]["version"]), known.benchmark_selection.get(name))
        for name in sorted(names)
    }


def missing(
    wanted: Asked, place: Path, lines: Sequence[Mapping[str, Any]], *, machine: str, versions: Mapping[str, str]
) -> Part | None:
    """What of `wanted` the result file at `place` lacks, None where it has all of it.

    lines: the sidecar's last word of each row of the commit, which tells a number that there is none of from one
    that was never asked for.
    """
    rows = _rows(place)
    if rows is None:
        return Part()
    own = [one for one in lines if _same(one, machine, versions)]
    done = {(one["suite"], one["case"], one["impl"]) for one in own if not unfinished(one)}
    again = {one["suite"] for one in own if unfinished(one)}
    suites = set()
    for name, (axes, version, selected) in wanted.items():
        series = Series.named(name)
        suite = series.suite
        if suite in suites:
            continue
        params, values, stored = rows.get(name, ((), None, ""))
        if name not in rows or stored != version or suite in again:
            suites.add(suite)
            continue
        known = list(itertools.product(*params))
        there = dict(zip(known, [None] * len(known) if values is None else values))
        for at, key in enumerate(itertools.product(*axes)):
            if selected is not None and at not in selected:
                continue
            skipped = isinstance(there.get(key), float) and math.isnan(there[key])
            bare = tuple(unquote(one) for one in key)
            if key not in there or (skipped and series.of_kernel and (suite, *bare) not in done):
                suites.add(suite)
                break
    if not suites:
        return None
    every = {name.rpartition(".")[0] for name in wanted}
    kinds = {_kind(one) for one in suites}
    ops = tuple(sorted({Series.of_suite(one).op for one in suites}))
    return Part() if suites == every else Part(ops, kinds.pop() if len(kinds) == 1 else "")


def has_every_op(wanted: Asked, place: Path) -> bool:
    """Whether the result file at `place` has anything of every op of `wanted`: all that can be said of a machine
    whose suites, those of its device, are not known here."""
    asked_for = {one.op for one in map(Series.named, wanted) if one.of_kernel}
    return asked_for <= {Series.named(name).op for name in _rows(place) or ()}


def unfinished(line: Mapping[str, Any]) -> bool:
    """Whether a row has to be run again: it was not described then, or the run was killed while it was at it."""
    reason = str(line.get("reason"))
    return reason == DIED or (line.get("state") == NOT_RUN and reason.startswith(NOT_DESCRIBED))


def _kind(suite: str) -> str:
    name = suite.rpartition(".")[2]
    return next((one for one in ("Modelled", "Measured") if name.startswith(one)), "")


def _same(line: Mapping[str, Any], machine: str, versions: Mapping[str, str]) -> bool:
    """Whether a line of the sidecar is of this machine and these compilers."""
    said = line.get("versions") or {}
    alike = all(said.get(name, versions.get(name)) == versions.get(name) for name in COMPILERS)
    return alike and line.get("machine") in (None, "", machine)


def _rows(place: Path) -> dict[str, tuple[Sequence[Sequence[str]], list[Any] | None, str]] | None:
    """name -> values of each parameter, results, version, of an asv result file; None where there is none."""
    try:
        data = json.loads(place.read_bytes())
        columns = data["result_columns"]
        at = [columns.index(name) for name in ("params", "result", "version")]
        found = {}
        for name, row in data["results"].items():
            params, values, version = (row[one] if one < len(row) else None for one in at)
            found[name] = (params or [], values, str(version))
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
