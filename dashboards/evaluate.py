"""One commit with one compiler, measured through asv in a workplace of its own.

The workplace is a folder beside the results: a clone that shares the repository's objects, an asv environment and
a results folder.  A clone and no `git worktree`, because a killed `git worktree add` leaves its mark in the user's
repository; here nothing of it is written to, whatever happens.  The suite is that of the user's checked-out
commit, so that editing goes on while a search runs.  Results are kept as plain asv results in
`<results>-bisect/results`, apart from the user's: a commit with one benchmark of many would pass for measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dashboards.asv_config import settings_of
from dashboards.bisect import Outcome, Point
from dashboards.guarded import VARIABLE, end_processes, marked
from dashboards.repository import git
from dashboards.results import NO_REASON, History, load
from dashboards.series import ABSENT, BUILD_FAILED, COMPILERS, CRASHED, NOT_RUN, OK, Series

BUILD_SIGNS = ("specimen: ", "build failed", "could not install", "failed to install")
NO_BENCHMARK = "this commit has no benchmark"
LATE = "no end after {:.0f} s"  # reason of what --timeout ended, which says nothing about the commit
LATE_SECONDS = re.compile(r"no end after (\d+) s\Z")
TRACEBACK_END = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$")


class EvaluateError(Exception):
    """Nothing can be measured here; the message says what to do."""


@dataclass(frozen=True)
class Target:
    """What is looked at.  `suite` is `module.Class` or `Class`; empty case and impl mean: all of them."""

    suite: str
    metric: str
    case: str = ""
    impl: str = ""

    def suits(self, series: Series) -> bool:
        """Whether a series is of this suite, case and implementation."""
        return (
            (series.suite == self.suite or series.suite.endswith("." + self.suite))
            and (not self.case or series.case == self.case)
            and (not self.impl or series.impl == self.impl)
        )

    @property
    def pattern(self) -> str:
        """Regular expression for asv's --bench: every metric of the suite, of this case and implementation."""
        params = r"\(" + ", ".join(
            re.escape(repr(one)) if one else ".*" for one in (self.case, self.impl)
        ) + r"\)$"  # fmt: skip
        start = "^" if "." in self.suite else r"(^|\.)"
        return (
            start + re.escape(self.suite) + r"\.[A-Za-z0-9_]+" + (params if self.case or self.impl else r"($|\()")
        )


def place_beside(results: Path) -> Path:
    """Folder of everything that searches over these results leave."""
    return results.with_name(results.name + "-bisect")


@contextlib.contextmanager
def locked(folder: Path, command: str = "bisect") -> Iterator[None]:
    """One such command at a time per results folder; the lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EvaluateError(
                f"another {command} works on these results ({folder / 'lock'} is held); wait for it to end"
            ) from None
        yield


def clear(folder: Path) -> None:
    """Ends what a killed search left running and removes its workplaces.  Call it under the lock."""
    for work in sorted(folder.glob("work-*")):
        end_processes(str(work.resolve()))
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def workplace(repo: Path, folder: Path, config: Path) -> Iterator[Path]:
    """A folder with a clone at the user's commit in `tree`; gone when the block is left.  `config` is relative."""
    clear(folder)
    work = folder / f"work-{os.getpid()}-{time.time_ns():x}"
    work.mkdir(parents=True)
    try:
        head = git(repo, "rev-parse", "HEAD").strip()
        tree = work / "tree"
        git(repo, "clone", "--quiet", "--shared", "--no-checkout", "--", str(repo.resolve()), str(tree.resolve()))
        git(tree, "checkout", "--quiet", "--detach", head)
        if not (tree / config).is_file():
            raise EvaluateError(f"{config} is not committed; commit it first")
        yield work
    finally:
        clear(folder)


def own_config(tree: Path, config: Path, work: Path, results: Path, compiler: str = "") -> Path:
    """The project's configuration with folders of this workplace, as a file beside it in the clone `tree`."""
    settings = settings_of(tree / config)
    settings |= {
        "version": 1, "repo": str(tree), "branches": ["HEAD"], "results_dir": str(results.resolve()),
        "env_dir": str((work / "env").resolve()), "html_dir": str((work / "html").resolve()),
    }  # fmt: skip
    if compiler:
        matrix = {k: v for k, v in settings.get("matrix", {}).items() if k in ("req", "env", "env_nobuild")}
        settings["matrix"] = {**matrix, "req": {**matrix.get("req", {}), "ascendnpu-ir": [compiler]}}
    place = (tree / config).with_name(".asv-own.json")
    place.write_text(json.dumps(settings))
    return place


def own_paths(tree: Path, repo: Path | None = None) -> str:
    """PYTHONPATH of a run in the clone `tree`: the suite in it first, the user's repository left out."""
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    ours = [one for one in given if repo is None or Path(one).resolve() != repo.resolve()]
    return os.pathsep.join([str(tree), *ours])


class Evaluator:
    """Outcomes of points: `commits[i]` are hashes with the same kernels, the first is the one to measure."""

    def __init__(
        self,
        repo: Path,
        config: Path,
        results: Path,
        work: Path,
        commits: Sequence[Sequence[str]],
        compilers: Sequence[str],
        target: Target,
        *,
        timeout: float = 3600,
        cases: str = "",
        progress: Any = None,
    ) -> None:
        self.repo, self.config, self.results, self.work = repo, config, results, work
        self.commits, self.compilers, self.target = commits, compilers, target
        self.timeout, self.cases, self.progress = timeout, cases, progress
        self.kept = place_beside(results) / "results"
        self._loaded: list[History] | None = None

    def stored(self, point: Point) -> Outcome | None:
        """What an earlier run left, of any commit with the same kernels."""
        for history in self._histories():
            for commit in self.commits[point.commit]:
                found = outcome_of(history, commit, self.target, self.versions(point), sure=True)
                late = LATE_SECONDS.match(found.reason) if found is not None else None
                if late and int(late[1]) < round(self.timeout):
                    continue  # it has more time now
                if found is not None:
                    return replace(found, stored=True)
        return None

    def survey(self, point: Point) -> dict[tuple[str, str], Outcome]:
        """(case, impl) -> what is stored, of an op's own implementations, for a target that leaves them open.

        Nothing where a run was asked for some of the rows only: the row looked for may be another.
        """
        versions = self.versions(point)
        for history in self._histories():
            for commit in self.commits[point.commit]:
                found: dict[tuple[str, str], Outcome | None] = {}
                roles: dict[tuple[str, str], str] = {}
                at = history.column(commit)
                for row, one in enumerate(history.series):
                    if at is None or not self.target.suits(one) or history.state_name(row, at) == NOT_RUN:
                        continue
                    narrow = replace(self.target, case=one.case, impl=one.impl)
                    found[one.case, one.impl] = outcome_of(history, commit, narrow, versions, sure=True)
                    roles[one.case, one.impl] = history.role(row)
                kept = {key: outcome for key, outcome in found.items() if outcome is not None}
                if found and len(kept) == len(found):
                    return {key: outcome for key, outcome in kept.items() if roles[key] != "twin"}
        return {}

    def names(self) -> set[Series]:
        """Every series that results are stored of, here or of earlier searches."""
        return {one for history in self._histories() for one in history.series}

    def _histories(self) -> list[History]:
        if self._loaded is None:
            folders = [one for one in (self.results, self.kept) if one.is_dir()]
            self._loaded = [load(one, cache=None) for one in folders]
        return self._loaded

    def versions(self, point: Point) -> dict[str, str]:
        """What a number at this point is made with, as far as it decides a modelled number."""
        from dashboards.host_environment import toolchain_versions

        versions = {name: one for name, one in toolchain_versions().items() if name in COMPILERS}
        compiler = self.compilers[point.compiler]
        return {**versions, "ascendnpu-ir": compiler} if compiler else versions

    def evaluate(self, point: Point) -> Outcome:
        """Run asv on one commit with one compiler."""
        commit, compiler = self.commits[point.commit][0], self.compilers[point.compiler]
        if self.progress:
            self.progress(point)
        scratch = self.work / "results"
        shutil.rmtree(scratch, ignore_errors=True)
        _seed(self.kept, scratch, commit)
        log, late = self._asv(commit, compiler, scratch)
        history = load(scratch, cache=None)
        outcome = outcome_of(history, commit, self.target, self.versions(point))
        if late:
            outcome = Outcome(CRASHED, reason=LATE.format(self.timeout))
        elif outcome is None:
            said = reason_of(history, commit, self.target)
            outcome = Outcome(NOT_RUN, reason=said or f"{NO_BENCHMARK} {self.target.suite}: {why(log)}")
        elif outcome.state == CRASHED and outcome.reason in ("", NO_REASON):
            built = not any(sign in log.lower() for sign in BUILD_SIGNS)
            outcome = replace(outcome, state=CRASHED if built else BUILD_FAILED, reason=why(log))
        if outcome.state in (BUILD_FAILED, CRASHED):
            self._record(scratch, commit, history, outcome, self.versions(point))
        if outcome.state != NOT_RUN:
            _store(scratch, self.kept)
            self._loaded = None
        return outcome

    def _asv(self, commit: str, compiler: str, results: Path) -> tuple[str, bool]:
        tree = (self.work / "tree").resolve()
        place = own_config(tree, self.config, self.work, results, compiler)
        hashes = self.work / "commits"
        hashes.write_text(commit + "\n")
        command = [
            sys.executable, "-m", "asv", "--config", str(place), "run", f"HASHFILE:{hashes.resolve()}",
            "--show-stderr", "--bench", self.target.pattern,
        ]  # fmt: skip
        with open(self.work / "asv.log", "w+b") as log:
            process = subprocess.Popen(
                command, cwd=tree, env=self._environment(tree), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            late = False
            try:
                process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                end_processes(str(self.work.resolve()))
            log.seek(0)
            words = log.read().decode("utf-8", "replace")
        return words, late

    def _environment(self, tree: Path) -> dict[str, str]:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = own_paths(tree, self.repo)
        environment[VARIABLE] = marked(str(self.work.resolve()))
        name = self.target.suite.rpartition(".")[2]
        environment["ASCEND_PERF_OPS"] = Series.of_suite(name).op
        for variable, value in (
            ("ASCEND_PERF_CASE", self.target.case),
            ("ASCEND_PERF_IMPL", self.target.impl),
            ("ASCEND_PERF_CASES", self.cases),
        ):
            if value:
                environment[variable] = value
        return environment

    def _record(
        self, scratch: Path, commit: str, history: History, outcome: Outcome, versions: Mapping[str, str]
    ) -> None:
        """A sidecar line for an end that the suite itself could not put on record."""
        rows = [one for one in history.series if self.target.suits(one)]
        if not rows or not self.target.case or not self.target.impl:
            return
        line = {
            "version": 1, "commit": commit, "suite": rows[0].suite, "op": rows[0].op, "case": self.target.case,
            "impl": self.target.impl, "role": history.role(history.series.index(rows[0])), "pattern": "",
            "state": outcome.state, "reason": outcome.reason[:2000], "code": "", "findings": [], "notes": [],
            "pipes": {}, "versions": dict(versions), "machine": rows[0].machine, "at": int(time.time() * 1000),
        }  # fmt: skip
        place = scratch / "states" / f"{commit}.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "a") as file:
            file.write(json.dumps(line) + "\n")


def outcome_of(
    history: History, commit: str, target: Target, versions: Mapping[str, str], *, sure: bool = False
) -> Outcome | None:
    """What a history says of a target at a commit; None where it says nothing.

    `sure`: a failure without a reason, or a gap, says nothing: it may be that of another case's run.
    """
    at = history.column(commit)
    if at is None:
        return None
    rows = [
        row
        for row, one in enumerate(history.series)
        if target.suits(one) and all(one.environment.get(name) == value for name, value in versions.items())
    ]
    facts = {
        history.series[row].metric: float(history.value[row, at])
        for row in rows
        if not math.isnan(history.value[row, at])
    }
    chosen = [row for row in rows if history.series[row].metric == target.metric]
    if target.metric == "state":
        chosen = rows
    chosen = [row for row in chosen if history.state_name(row, at) != NOT_RUN]
    if not chosen:
        return None
    # a benchmark's version is raised when its number stops meaning what it meant
    row = max(chosen, key=lambda one: history.series[one].version)
    detail, state = history.detail(row, at), history.state_name(row, at)
    known = bool(detail.role)
    value = float(history.value[row, at])
    if sure and (not known or (state == OK and math.isnan(value) and target.metric != "state")):
        return None
    return Outcome(
        state=state, value=value, code=history.code_hash(row, at), reason=detail.reason,
        findings=detail.findings, facts=facts,
    )  # fmt: skip


def reason_of(history: History, commit: str, target: Target) -> str:
    """Why a target was not run at a commit, where the suite says so; that it is not there needs no words."""
    at = history.column(commit)
    rows = [row for row, one in enumerate(history.series) if target.suits(one)] if at is not None else []
    said = (history.detail(row, at).reason for row in rows if at is not None)
    return next((one for one in said if one and one not in (ABSENT, NO_REASON)), "")


def why(log: str) -> str:
    """The line of asv's log that tells most: the end of a traceback, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        if TRACEBACK_END.match(line) or line.startswith("specimen: "):
            return line[:400]
    return lines[-1][:400] if lines else "asv said nothing"


def _seed(kept: Path, scratch: Path, commit: str) -> None:
    """Give asv what is kept of this commit already, so that it adds to it."""
    scratch.mkdir(parents=True)
    for path in kept.glob(f"*/{commit[:8]}-*.json"):
        _copy(path, scratch / path.parent.name / path.name)
    states = kept / "states" / f"{commit}.jsonl"
    if states.is_file():
        _copy(states, scratch / "states" / states.name)


def _store(scratch: Path, kept: Path) -> None:
    """Put new results in place, each file at once."""
    for path in scratch.rglob("*"):
        if path.is_file():
            _copy(path, kept / path.relative_to(scratch))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.copyfile(source, part)
    os.replace(part, target)


class Journal:
    """Outcomes of a search in the order they came, on disk; a search started again takes them from here.

    The first lines hold what was stored before the search, so that a second start sees the same.
    """

    def __init__(self, path: Path, evaluate: Any, stored: Any, points: Sequence[Point]) -> None:
        self.path, self._evaluate = path, evaluate
        rows = _whole_lines(path)
        begun = next((at for at, row in enumerate(rows) if row.get("kind") == "begun"), None)
        if begun is None:
            self.earlier = {point: found for point in points if (found := stored(point)) is not None}
            self.runs: list[tuple[Point, Outcome]] = []
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            lines = [_row("stored", point, found) for point, found in self.earlier.items()]
            part.write_text("".join(line + "\n" for line in [*lines, json.dumps({"kind": "begun"})]))
            os.replace(part, path)
        else:
            self.earlier = dict(_unrow(row) for row in rows[:begun])
            self.runs = [_unrow(row) for row in rows[begun + 1 :]]
            part = path.with_suffix(".part")
            part.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.replace(part, path)
        self.resumed = len(self.runs)
        self._next = 0

    def stored(self, point: Point) -> Outcome | None:
        """What was there before the search began."""
        return self.earlier.get(point)

    def evaluate(self, point: Point) -> Outcome:
        """The next outcome: from the journal as far as it goes, then from a run."""
        if self._next < len(self.runs):
            kept, outcome = self.runs[self._next]
            if kept != point:
                raise EvaluateError(f"{self.path} is of another search; remove it")
            self._next += 1
            return outcome
        outcome = self._evaluate(point)
        with open(self.path, "ab", buffering=0) as file:
            file.write((_row("run", point, outcome) + "\n").encode())
            os.fsync(file.fileno())
        self.runs.append((point, outcome))
        self._next += 1
        return outcome

    def close(self) -> None:
        """The search has ended; the next one begins anew."""
        self.path.unlink(missing_ok=True)


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a journal up to the first that is cut off."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            break
        rows.append(row)
    return rows


def _row(kind: str, point: Point, outcome: Outcome) -> str:
    return json.dumps({"kind": kind, "point": [point.commit, point.compiler], "outcome": asdict(outcome)})


def _unrow(row: Mapping[str, Any]) -> tuple[Point, Outcome]:
    fields = dict(row["outcome"])
    return Point(*row["point"]), Outcome(**{**fields, "findings": tuple(fields["findings"])})
