"""`ascend-perf bisect`: which commit, which compiler, or both, made a benchmark slower or wrong."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dashboards import bisect, missing, repository
from dashboards.asv_config import settings_of
from dashboards.bisect import Counted, Found, Grid, Outcome, Point, Step
from dashboards.evaluate import (
    LATE_SECONDS,
    NO_BENCHMARK,
    EvaluateError,
    Evaluator,
    Journal,
    Target,
    locked,
    place_beside,
    workplace,
)
from dashboards.guarded import stopped_by_sigterm
from dashboards.repository import Commit, RepositoryError
from dashboards.results import ResultsError, load
from dashboards.series import BUILD_FAILED, NOT_RUN, OK, STATE_CODE, Series, direction_of, unquote, worse
from dashboards.specimen import paths_of
from dashboards.text import change, figures, plain

FOUND, NO_CULPRIT, USAGE = 0, 3, 4
MEASURED = ("device_time", "device_time_cold", "host_time")
DEEPEST_MERGE = 5
BLAMING = (bisect.STEP, bisect.SEVERAL)
# A sentence of an explanation, a finding or a reason is shown whole up to this; its remedy comes last.
SENTENCE = 2000
MOST_SENTENCES, MOST_FINDINGS, MOST_NAMES = 12, 3, 40

EXAMPLES = """examples:
  ascend-perf bisect bench_token_pool.ModelledAssignReqToTokenPool.track_cycles --good v1 --bad HEAD
  ascend-perf bisect assign_req_to_token_pool --case ragged --impl derived --good v1 --bad HEAD
  ascend-perf bisect assign_req_to_token_pool --metric state --good v1 --bad HEAD
  ascend-perf bisect assign_req_to_token_pool --good v1 --bad HEAD --compiler 1.0.0..1.2.0
exit codes: 0 culprit found, 3 none (the reason is said), 4 usage, environment, or no change in between."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("benchmark", help="benchmark (`module.Suite.track_metric`) or name of an op")
    parser.add_argument("--good", required=True, metavar="REV", help="a revision where all was well")
    parser.add_argument("--bad", default="HEAD", metavar="REV", help="a later one where it is not (default: HEAD)")
    parser.add_argument("--case", default="", help="case id (default: the one that changed most)")
    parser.add_argument("--impl", default="", help="implementation (default: the op's own one that changed most)")
    parser.add_argument("--metric", help="state, cycles, device_time, ... (default: the benchmark's, else cycles)")
    parser.add_argument("--compiler", metavar="A..B", help="ascendnpu-ir version, or the range to search too")
    parser.add_argument("--error", type=float, default=0.01, help="error probability with noise (default 0.01)")
    parser.add_argument("--max-runs", type=int, default=1000, metavar="N", help="stop after N evaluations")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS", help="of one evaluation")
    parser.add_argument("--into-merge", action="store_true", help="when a merge is to blame, search its branch")
    parser.add_argument(
        "--cases", choices=("quick", "timed", "all", "everything"), default="", help="cases to look at"
    )
    parser.add_argument("--config", type=Path, default=Path("asv.conf.json"))
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


@dataclass(frozen=True)
class Setup:
    """What the command was asked, checked."""

    repo: Path
    config: Path
    results: Path
    good: str
    bad: str
    paths: tuple[str, ...]
    compilers: tuple[str, ...]
    target: Target
    chosen: bool
    given: argparse.Namespace

    @property
    def noisy(self) -> bool:
        return self.target.metric in MEASURED or self.target.suite.rpartition(".")[2].startswith("Measured")


def run(given: argparse.Namespace) -> int:
    """0 culprit found, 3 none, 4 usage or environment."""
    try:
        with stopped_by_sigterm():
            setup = checked(given)
            folder = place_beside(setup.results)
            with locked(folder), workplace(setup.repo, folder, setup.config) as work:
                verdict = search(setup, folder, work)
    except (RepositoryError, EvaluateError, ResultsError) as error:
        print(f"ascend-perf bisect: {plain(str(error), SENTENCE)}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("ascend-perf bisect: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(json.dumps(_clean(verdict), indent=1, allow_nan=False) if given.json else in_words(verdict))
    return exit_code(verdict)


def exit_code(verdict: dict[str, Any]) -> int:
    """Of a verdict: numbers without noise that do not differ are a wrong question."""
    if verdict["ending"] == bisect.NOT_REPRODUCED:
        return NO_CULPRIT if verdict["noisy"] else USAGE
    return FOUND if verdict["ending"] in BLAMING else NO_CULPRIT


def checked(given: argparse.Namespace) -> Setup:
    """The setup, or the sentence that says what is wrong with it."""
    if not 0 < given.error <= 0.2:
        raise EvaluateError(f"--error is a probability up to 0.2, not {given.error}")
    if not given.timeout > 0:
        raise EvaluateError(f"--timeout is a number of seconds above zero, not {given.timeout}")
    if given.max_runs < 2:
        raise EvaluateError("--max-runs: at least the two ends have to be run")
    if not given.config.is_file():
        raise EvaluateError(f"no {given.config} here; `ascend-perf init` writes one")
    config = given.config.resolve()
    top = repository.git(config.parent, "rev-parse", "--show-toplevel").rstrip("\n")
    repo = Path(top).resolve()
    if repository.is_shallow(repo):
        raise EvaluateError("the clone is shallow: commits in between may be missing (git fetch --unshallow)")
    good, bad = repository.resolve(repo, given.good), repository.resolve(repo, given.bad)
    if good == bad:
        raise EvaluateError(f"good and bad are the same commit {good[:10]}: there is no change between them")
    base = repository.merge_base(repo, good, bad)
    if base == bad:
        raise EvaluateError(f"good {good[:10]} comes after bad {bad[:10]}: swap them")
    if base != good:
        words = f"; their common ancestor {base[:10]} may be a good one" if base else ""
        raise EvaluateError(f"good {good[:10]} is not an ancestor of bad {bad[:10]}{words}")
    settings = settings_of(config)
    refuse_unsaved(repo, config, settings)
    results = config.parent / settings.get("results_dir", "results")
    os.environ.setdefault("ASCEND_PERF_CACHE", str(results.parent.resolve() / "cache"))
    target, chosen = target_of(given)
    return Setup(
        repo, config.relative_to(repo), results, good, bad, paths_of(settings),
        _compilers(given.compiler, target), target, chosen, given,
    )  # fmt: skip


def refuse_unsaved(repo: Path, config: Path, settings: dict[str, Any]) -> None:
    """EvaluateError where the work tree is not that of its commit, whose suite is what measures."""
    dirty = repository.git(repo, "status", "--porcelain", "--untracked-files=no").splitlines()
    benches = config.parent / settings.get("benchmark_dir", "benchmarks")
    dirty += repository.git(repo, "status", "--porcelain", "--", str(benches)).splitlines()
    if dirty:
        raise EvaluateError(
            f"the work tree has changes ({dirty[0][3:]}{' and more' if len(set(dirty)) > 1 else ''}): commit or "
            "stash them, the suite that measures is that of the commit checked out"
        )


def _compilers(text: str | None, target: Target) -> tuple[str, ...]:
    from ascend_model import toolchain

    have = toolchain.available_versions()
    measured = target.metric in MEASURED or "Measured" in target.suite
    if not text:
        if not have or measured:
            return ("",)
        return (toolchain.default_version(),)
    first, dots, last = text.partition("..")
    wanted = [first, last] if dots else [first]
    for one in wanted:
        if one not in have:
            raise EvaluateError(
                f"ascendnpu-ir {one!r} is not here (available: {', '.join(have) or 'none'}); "
                "`ascend-perf compilers add VERSION` fetches one"
            )
    if not dots:
        return (first,)
    ends = have.index(first), have.index(last)
    span = have[min(ends) : max(ends) + 1]
    return tuple(span if ends[0] <= ends[1] else reversed(span))


def target_of(given: argparse.Namespace) -> tuple[Target, bool]:
    """The target, and whether its metric was named."""
    name, _, row = given.benchmark.partition("(")
    if row:
        _take_row(given, row)
    suite, _, method = name.rpartition(".")
    metric = given.metric or ""
    if suite and method.startswith(("track_", "time_", "mem_", "peakmem_")):
        own = method.partition("_")[2]
        return Target(suite, metric or own, given.case, given.impl), bool(metric)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise EvaluateError(f"{given.benchmark!r} is neither `module.Suite.track_metric` nor the name of an op")
    kind = "Measured" if metric in MEASURED else "Modelled"
    camel = kind + "".join(part.capitalize() for part in name.split("_"))
    return Target(camel, metric or "cycles", given.case, given.impl), bool(metric)


def _take_row(given: argparse.Namespace, row: str) -> None:
    """Case and implementation from a title as `check` and asv write it: `track_cycles(ragged, derived)`."""
    parts = [unquote(one.strip()) for one in row.removesuffix(")").split(",")]
    if len(parts) != 2:
        raise EvaluateError(f"{given.benchmark!r}: expected (case, implementation) behind the name")
    for option, part in zip(("case", "impl"), parts):
        if getattr(given, option) not in ("", part):
            raise EvaluateError(f"--{option} {getattr(given, option)} and {given.benchmark!r} name two of them")
        setattr(given, option, part)


@dataclass(frozen=True)
class Line:
    """The commits of one search: `groups[i]` share their kernels."""

    groups: Sequence[Sequence[Commit]]

    @property
    def hashes(self) -> list[list[str]]:
        return [[one.hash for one in group] for group in self.groups]

    @property
    def last(self) -> int:
        return len(self.groups) - 1

    def first(self, at: int) -> Commit:
        return self.groups[at][0]


@dataclass
class Searched:
    """One search that has ended."""

    line: Line
    target: Target
    found: Found | Grid
    oracle: Counted
    ends: tuple[Outcome, Outcome]
    resumed: int
    words: str
    surveyed: int


def search(setup: Setup, folder: Path, work: Path) -> dict[str, Any]:
    """The verdict; runs what is missing."""
    line = Line(repository.line_between(setup.repo, setup.good, setup.bad, setup.paths))
    if line.last == 0 and len(setup.compilers) == 1:
        raise EvaluateError(
            f"no commit between {setup.good[:10]} and {setup.bad[:10]} changes the kernels: "
            "there is no change between them"
        )
    first = contained_search(setup, folder, work, line)
    searched = [first]
    if setup.given.into_merge:
        while len(searched) <= DEEPEST_MERGE:
            inner = _merged_line(setup, searched[-1])
            if inner is None:
                break
            try:
                searched.append(contained_search(replace(setup, target=first.target), folder, work, inner))
            except EvaluateError as error:
                searched[-1].words += f" The merged branch could not be searched: {error}"
                break
            if not _steps(searched[-1].found):
                break
    return verdict_of(setup, searched)


def _merged_line(setup: Setup, one: Searched) -> Line | None:
    """The branch that the culprit merged, from where it left the line."""
    found = one.found.along_commits if isinstance(one.found, Grid) else one.found
    if found is None or not found.main or not found.main.exact:
        return None
    above = repository.parents(setup.repo, one.line.first(found.main.first_bad).hash)
    if len(above) < 2:
        return None
    base = repository.merge_base(setup.repo, above[0], above[1])
    if not base or base == above[1]:
        return None
    line = Line(repository.line_between(setup.repo, base, above[1], setup.paths))
    return line if line.last else None


def contained_search(setup: Setup, folder: Path, work: Path, line: Line) -> Searched:
    """`one_search`; where it blames a commit beside good, which lacks what good has, only those that contain it.

    Good may lie on a branch that was merged later: what that branch mended is missing in commits beside it, and
    looks as if they had broken it.  They are to blame only where the merge is as bad as they are.
    """
    found = one_search(setup, folder, work, line)
    steps = _steps(found.found)
    if not steps:
        return found
    good = line.first(0).hash
    inside = repository.descendants(setup.repo, good, line.groups[-1][-1].hash)
    groups = [[one for one in group if one.hash in inside] for group in line.groups[1:]]
    if groups[steps[0].first_bad - 1] or not any(groups):
        return found
    kept = Line([line.groups[0], *filter(None, groups)])
    again = one_search(replace(setup, target=found.target), folder, work, kept)
    steps = _steps(again.found)
    if steps and steps[0].last_good == 0:
        return found
    again.words += (
        f" Commits before {kept.first(1).hash[:10]} do not contain the good end, which is on another branch: "
        "they were left out."
    )
    again.surveyed += found.surveyed + found.oracle.count
    return again


def one_search(setup: Setup, folder: Path, work: Path, line: Line) -> Searched:
    """One line of commits, and all compilers, searched for the setup's target."""
    target = setup.target
    progress = None if setup.given.quiet else _Progress(line, setup.compilers)
    evaluator = Evaluator(
        setup.repo, setup.config, setup.results, work, line.hashes, setup.compilers, target,
        timeout=setup.given.timeout, cases=setup.given.cases, progress=progress,
    )  # fmt: skip
    refuse_unknown(setup, evaluator)
    noisy = setup.noisy
    ends_at = Point(0, 0), Point(line.last, len(setup.compilers) - 1)
    surveyed = 0
    if not target.case or not target.impl:
        target, surveyed = _choose(setup, evaluator, ends_at, line)
        evaluator.target = target
    points = [Point(a, b) for a in range(line.last + 1) for b in range(len(setup.compilers))]
    stored = (lambda _: None) if noisy else evaluator.stored
    journal = Journal(folder / f"{_key(setup, line)}.jsonl", evaluator.evaluate, stored, points)
    oracle = Counted(journal.evaluate, journal.stored, setup.given.max_runs)
    try:
        searched = _searched(setup, line, evaluator, target, oracle)
    except EvaluateError:
        # an answer: asked again after a remedy, it is looked for anew
        journal.close()
        raise
    journal.close()
    return replace(searched, resumed=journal.resumed, surveyed=surveyed)


def _searched(setup: Setup, line: Line, evaluator: Evaluator, target: Target, oracle: Counted) -> Searched:
    """The search itself, between the ends of a line."""
    noisy = setup.noisy
    ends_at = Point(0, 0), Point(line.last, len(setup.compilers) - 1)
    ends = oracle.exact(ends_at[0]), oracle.exact(ends_at[1])
    target, words = _readable(setup, target, ends, line)
    evaluator.target = target
    unjudged = target.metric == "state" and ends[0].state == OK and LATE_SECONDS.match(ends[1].reason)
    if unjudged and len(setup.compilers) > 1:
        state = f"`{ends[1].state}`: {ends[1].reason}"
        raise EvaluateError(
            f"bad {line.first(line.last).hash[:10]} could not be judged, it is {state}; search with one compiler"
        )
    read: bisect.Read = bisect.number
    if target.metric == "state":
        read, noisy = bisect.state_reader(ends[0].state, ends[1].state), False
    whole = [Point(at) for at in range(line.last + 1)]
    found: Found | Grid
    error = setup.given.error
    if len(setup.compilers) > 1:
        steps = line.last, len(setup.compilers) - 1
        found = (
            bisect.noisy_grid(oracle, *steps, error=error) if noisy else bisect.exact_grid(oracle, *steps, read)
        )
    else:
        found = bisect.noisy_line(oracle, whole, error=error) if noisy else bisect.exact_line(oracle, whole, read)
    if unjudged and isinstance(found, Found):
        found = bisect.unjudged_line(found, line.last)
        words = _unjudged_words(setup, line, oracle, found, ends)
    elif words and isinstance(found, Found):
        words += _already_other(setup, line, oracle, found, ends)
    return Searched(line, target, found, oracle, ends, 0, words, 0)


def refuse_unknown(setup: Setup, evaluator: Evaluator) -> None:
    """EvaluateError with the names there are where neither today's suite nor any result has what is asked for."""
    rows = evaluator.names()
    if any(setup.target.suits(one) and setup.target.metric in ("state", one.metric) for one in rows):
        return
    asked = missing.asked(str(setup.repo / setup.config), ops=(), bench=(), cases="everything")
    for name, (axes, _, _) in (asked or {}).items():
        for key in itertools.product(*axes):
            bare = tuple(unquote(one) for one in key)
            rows.add(replace(Series.named(name), params=bare, param_names=("case", "impl")[: len(bare)]))
    words = unknown(setup.target, rows, setup.given.benchmark)
    # where nothing is known at all, asv says why
    if rows and words:
        raise EvaluateError(words)


def unknown(target: Target, rows: Collection[Series], name: str) -> str:
    """What of a target none of `rows` has, with what they have; empty where one has all of it."""
    op = Series.of_suite(target.suite).op
    suites = [one for one in rows if replace(target, case="", impl="").suits(one)]
    alike = [one for one in rows if one.op == op and one.of_kernel]
    if not suites and (not alike or "." in target.suite):
        whole = {one.benchmark for one in rows} if "." in name else {one.op for one in rows}
        return f"there is no {'benchmark' if '.' in name else 'op'} {name}; there are {_listed(whole)}"
    if not suites or target.metric not in {"state", *(one.metric for one in suites)}:
        metrics = {one.metric for one in suites or alike}
        return f"{op} has no metric {target.metric} here; it has {_listed({'state', *metrics})}"
    for what, wanted, there in (
        ("case", target.case, {one.case for one in suites}),
        ("implementation", target.impl, {one.impl for one in suites}),
    ):
        if wanted and wanted not in there:
            return f"{op} has no {what} {wanted}; it has {_listed(there)}"
    if not any(target.suits(one) for one in suites):
        return f"{op} has no implementation {target.impl} of case {target.case}"
    return ""


def _listed(names: Collection[str]) -> str:
    """Names for people, the first ones of many."""
    shown = sorted(names)
    more = f" and {len(shown) - MOST_NAMES} more" if len(shown) > MOST_NAMES else ""
    return ", ".join(shown[:MOST_NAMES]) + more


class _Progress:
    """A line for each evaluation."""

    def __init__(self, line: Line, compilers: Sequence[str]) -> None:
        self.line, self.compilers, self.count = line, compilers, 0

    def __call__(self, point: Point) -> None:
        self.count += 1
        commit, compiler = self.line.first(point.commit), self.compilers[point.compiler]
        place = f"{point.commit} of {self.line.last}" + (f", ascendnpu-ir {compiler}" if compiler else "")
        words = f"[{self.count}] {commit.hash[:10]} {plain(commit.subject, 60)} ({place})"
        print(words, file=sys.stderr, flush=True)


def _key(setup: Setup, line: Line) -> str:
    """Name of a search: the same question over the same commits with the same tools."""
    from dashboards.host_environment import toolchain_versions

    head = repository.resolve(setup.repo, "HEAD")
    parts = [
        asdict(setup.target), setup.given.cases, line.hashes, setup.compilers, setup.given.error, head,
        setup.given.timeout,
        {name: version for name, version in toolchain_versions().items()},
    ]  # fmt: skip
    return "search-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _choose(setup: Setup, evaluator: Evaluator, ends: tuple[Point, Point], line: Line) -> tuple[Target, int]:
    """The case and the implementation that changed most between the two ends; how many evaluations that took."""
    found: list[dict[tuple[str, str], Outcome]] = []
    ran = 0
    for point in ends:
        known = evaluator.survey(point)
        if not known:
            ran += 1
            outcome = evaluator.evaluate(point)
            if outcome.state == NOT_RUN:
                raise EvaluateError(_absent(setup, line, point.commit, outcome))
            known = evaluator.survey(point)
        found.append(known)
    wanted = setup.target

    def changed(key: tuple[str, str]) -> tuple[float, float]:
        old, new = found[0][key], found[1][key]
        if (old.state, new.state).count(OK) == 1:
            return (2, 0.0) if old.state == OK else (0, 0.0)
        size = bisect.found_size(new.value - old.value, old.value)
        return (1, abs(size)) if size == size else (0, 0.0)

    both = [key for key in found[0] if key in found[1]]
    if not both:
        raise EvaluateError(
            f"no case and implementation of {wanted.suite} is at both ends: renamed in between, or failed to build"
        )
    if wanted.metric != "state" and not setup.chosen:
        numbers = [key for key in both if found[0][key].state == OK == found[1][key].state]
        both = numbers or both
    case, impl = max(both, key=changed)
    return replace(wanted, case=case, impl=impl), ran


def _readable(setup: Setup, target: Target, ends: tuple[Outcome, Outcome], line: Line) -> tuple[Target, str]:
    """The target that both ends have, or the sentence that says why there is none."""
    for at, end in zip((0, line.last), ends):
        if end.state == NOT_RUN:
            raise EvaluateError(_absent(setup, line, at, end))
    names = line.first(0).hash[:10], line.first(line.last).hash[:10]
    good, bad = ends
    if target.metric == "state":
        if good.state == bad.state:
            words = f"{target.suite} is `{good.state}` at good {names[0]} and at bad {names[1]}"
            if good.state != OK:
                words += f"; {_before(setup, target)}"
            raise EvaluateError(f"there is no change between them: {words}")
        return target, ""
    if good.state == OK and bad.state not in (OK, BUILD_FAILED) and not setup.chosen:
        words = (
            f"The bad end has no {target.metric}: it is `{bad.state}`; searched for the commit that made it so."
        )
        return replace(target, metric="state"), words
    for name, revision, end in zip(("good", "bad"), names, ends):
        if bisect.number(end) is None:
            state = f"`{end.state}`" + (f": {end.reason}" if end.reason else "")
            if end.state == OK:
                raise EvaluateError(f"{name} {revision} has no metric {target.metric}; it has {sorted(end.facts)}")
            raise EvaluateError(
                f"{name} {revision} has no {target.metric}, it is {state}; {_remedy(setup, target, ends)}"
            )
    return target, ""


def _unjudged_words(setup: Setup, line: Line, oracle: Counted, found: Found, ends: tuple[Outcome, Outcome]) -> str:
    """Why no commit is blamed, and what is known of the last one that could be judged."""
    assert found.main is not None
    low = found.main.last_good
    name, first = line.groups[low][-1].hash[:10], line.first(low + 1).hash[:10]
    words = f"The bad end could not be judged, it is `{ends[1].state}`"
    if not found.main.exact:
        words += f", and {first} neither: the culprit is one of the commits that could not be judged"
    words += f"; {name} is the last one that could."
    return f"{words}{_already_other(setup, line, oracle, found, ends)} --timeout gives them more time."


def _already_other(setup: Setup, line: Line, oracle: Counted, found: Found, ends: tuple[Outcome, Outcome]) -> str:
    """That the number asked for changed before the state did, where it did."""
    low = found.main.last_good if found.main is not None else 0
    known = oracle.known.get(Point(low))
    if setup.noisy or setup.target.metric == "state" or known is None or known.value == ends[0].value:
        return ""
    name = line.groups[low][-1].hash[:10]
    what = setup.target.metric
    return f" The {what} of {name} already differ from those of the good end: search with --bad {name}."


def _remedy(setup: Setup, target: Target, ends: tuple[Outcome, Outcome]) -> str:
    """Which search would find something, where an end has no number."""
    good, bad = ends
    if good.state == OK:
        return "--metric state finds what made it so"
    between = "; --metric state with the ends as they are finds what made it ok" if bad.state == OK else ""
    return _before(setup, target) + between


def _before(setup: Setup, target: Target) -> str:
    """The search that finds what made a good end fail: it begins at an end that is ok."""
    earlier = ""
    if setup.results.is_dir():
        history = load(setup.results, setup.repo, head=setup.good, cache=None)
        rows = [row for row, one in enumerate(history.series) if target.suits(one)]
        ok = (history.state[rows] == STATE_CODE[OK]).any(axis=0)
        known = [one.hash for one, right in zip(history.commits, ok) if right and one.hash != setup.good]
        earlier = known[-1][:10] if known else ""
    if earlier:
        words = f"--metric state --good {earlier} --bad {setup.good[:10]} finds what made it so"
        return f"{words} ({earlier} is the last measured commit before it that is ok)"
    return f"--metric state --bad {setup.good[:10]} with an earlier --good, where it is ok, finds what made it so"


def _absent(setup: Setup, line: Line, at: int, end: Outcome) -> str:
    which = "good" if at == 0 else "bad"
    rest = ", ".join(one for one in (setup.target.case, setup.target.impl) if one)
    return (
        f"the {which} end {line.first(at).hash[:10]} has no benchmark {setup.target.suite}"
        + (f" with {rest}" if rest else "")
        + (f": {end.reason}" if end.reason and not end.reason.startswith(NO_BENCHMARK) else "")
        + "; if it was renamed in between, search on the side that has this name"
    )


def _steps(found: Found | Grid) -> tuple[Step, ...]:
    line = found.along_commits if isinstance(found, Grid) else found
    return line.steps if line else ()


def verdict_of(setup: Setup, searched: Sequence[Searched]) -> dict[str, Any]:
    """Everything that is to be said, as JSON would have it."""
    first, last = searched[0], searched[-1]
    if len(searched) > 1 and not _steps(last.found):
        last = searched[-2]
    grid = first.found if isinstance(first.found, Grid) else None
    found = last.found if isinstance(last.found, Found) else last.found.along_commits
    target, line = last.target, last.line
    state = target.metric == "state"
    steps = [_step(line, one, last) for one in found.steps] if found else []
    ending = grid.ending if grid else found.ending if found else bisect.NOT_REPRODUCED
    words = [first.words, found.words if found else "", grid.words if grid else ""]
    main = found.main if found else None
    evidence = _evidence(last, main) if main else {}
    codes = evidence.get("code", ["", ""])
    if main and main.exact and not state and codes[0] and codes[0] == codes[1]:
        if setup.noisy and target.metric != "host_time":
            ending = bisect.SAME_CODE
        else:
            words.append("The compiled code is the same: the commit changed how it is launched, or on what.")
    if ending == bisect.NOT_REPRODUCED and first.ends[0].code and first.ends[0].code == first.ends[1].code:
        words.append("The compiled code of both ends is the same.")
    unit = direction = ""
    if not state:
        unit = _unit(setup, target)
        direction = direction_of(unit)
    merges = [one.line.first(_steps(one.found)[0].first_bad).hash for one in searched[:-1] if _steps(one.found)]
    if len(searched) > 1 and last is searched[-2]:
        words.append("Neither end of the merged branch differs: the merge itself makes the difference.")
    runs = [(one, point, outcome) for one in searched for point, outcome in one.oracle.runs]
    stored = [
        (one, point, outcome)
        for one in searched
        for point, outcome in one.oracle.known.items()
        if outcome.stored and point not in {p for p, _ in one.oracle.runs}
    ]
    return {
        "version": 1,
        "benchmark": target.suite + ("" if state else f".track_{target.metric}"),
        "case": target.case,
        "impl": target.impl,
        "metric": target.metric,
        "unit": unit,
        "noisy": setup.noisy and not state,
        "modelled": not setup.noisy,
        "good": setup.good,
        "bad": setup.bad,
        "compilers": list(setup.compilers),
        "error": setup.given.error if setup.noisy else 0.0,
        "ending": ending,
        "words": " ".join(one.strip() for one in words if one),
        "commits": sum(len(group) for group in first.line.groups) - 1,
        "commits_with_kernels": first.line.last,
        "states": [first.ends[0].state, first.ends[1].state],
        "before": grid.corners[0, 0] if grid else found.before if found else None,
        "after": grid.corners[1, 1] if grid else found.after if found else None,
        "change": [found.low, found.high] if found and not grid else None,
        "worse": bool(main and not state and worse(main.after - main.before, direction)),
        "culprit": steps[0]["commit"] if steps and steps[0]["exact"] and ending in BLAMING else None,
        "steps": steps,
        "through_merges": merges,
        "evidence": evidence,
        "grid": _grid(setup, first, grid) if grid else None,
        "skipped": [_skipped(one, at) for one in searched for at in _skips(one)],
        "evaluations": sum(one.oracle.count + one.surveyed for one in searched),
        "resumed": sum(one.resumed for one in searched),
        "runs": [_run(setup, *row) for row in runs],
        "stored": [_run(setup, *row) for row in stored],
    }


def _step(line: Line, step: Step, searched: Searched) -> dict[str, Any]:
    commits = [line.first(at) for at in range(step.last_good + 1, step.first_bad + 1)]
    return {
        "exact": step.exact,
        "commit": _commit(line.first(step.first_bad)),
        "last_good": line.groups[step.last_good][-1].hash,
        "range": [one.hash for one in commits],
        "before": step.before,
        "after": step.after,
        "size": step.size,
        "interval": [step.low, step.high],
        "undone": step.undone,
        "in_between": [_skipped(searched, at) for at in step.between],
    }


def _commit(one: Commit) -> dict[str, Any]:
    return {"hash": one.hash, "subject": one.subject, "author": one.author, "date": one.date}


def _skips(one: Searched) -> list[int]:
    if isinstance(one.found, Found):
        return list(one.found.skipped)
    return list(one.found.along_commits.skipped) if one.found.along_commits else []


def _skipped(one: Searched, at: int) -> dict[str, Any]:
    outcomes = [outcome for point, outcome in one.oracle.runs if point.commit == at]
    outcomes += [outcome for point, outcome in one.oracle.known.items() if point.commit == at]
    bad = next((outcome for outcome in outcomes if outcome.state != OK), None)
    state, reason = (bad.state, bad.reason) if bad else (OK, "cannot be told apart with this noise")
    commit = one.line.first(at)
    return {"hash": commit.hash, "subject": commit.subject, "state": state, "reason": reason}


def _evidence(one: Searched, step: Step) -> dict[str, Any]:
    """Counts, code and reasons on both sides of a step, and what the compiled code says of it."""
    sides = []
    compiler = one.found.compiler if isinstance(one.found, Grid) else 0
    for at in (step.last_good, step.first_bad):
        point = Point(at, compiler)
        outcomes = [outcome for place, outcome in one.oracle.runs if place == point]
        known = one.oracle.known.get(point)
        outcomes += [known] if known is not None else []
        sides.append(outcomes[-1] if outcomes else Outcome(NOT_RUN))
    before, after = sides
    facts = {
        name: [before.facts.get(name), after.facts.get(name)]
        for name in dict.fromkeys([*before.facts, *after.facts])
        if before.facts.get(name) != after.facts.get(name)
    }
    return {
        "code": [before.code, after.code],
        "same_code": bool(before.code) and before.code == after.code,
        "states": [before.state, after.state],
        "reason": after.reason,
        "findings": list(after.findings),
        "counts": facts,
        "explained": explained(before.code, after.code),
    }


def explained(before: str, after: str) -> str:
    """What the two compiled forms differ in, where both are known here."""
    if not before or not after or before == after:
        return ""
    try:
        from ascend_model.explain import explain_codes

        found = explain_codes(before, after)
    except ImportError:
        return ""
    except Exception as error:
        # an explanation that fails must not cost the verdict
        return f"(no explanation: {type(error).__name__}: {error})"
    return str(found) if found else ""


def _unit(setup: Setup, target: Target) -> str:
    """asv's own word for the benchmark's unit."""
    for folder in (setup.results, place_beside(setup.results) / "results"):
        try:
            rows = json.loads((folder / "benchmarks.json").read_bytes())
        except (OSError, ValueError):
            continue
        for name, row in rows.items():
            if name.endswith(f"{target.suite}.track_{target.metric}") and isinstance(row, dict):
                return str(row.get("unit", ""))
    return ""


def _grid(setup: Setup, one: Searched, grid: Grid) -> dict[str, Any]:
    along = grid.along_compilers
    compilers = []
    for step in along.steps if along else ():
        compilers.append(
            {
                "from": setup.compilers[step.last_good],
                "to": setup.compilers[step.first_bad],
                "before": step.before,
                "after": step.after,
                "size": step.size,
                "interval": [step.low, step.high],
            }
        )
    return {
        "corners": [
            {"commit": one.line.first(one.line.last * a).hash, "compiler": setup.compilers[-b], "value": value}
            for (a, b), value in sorted(grid.corners.items())
        ],
        "shares": {name: asdict(share) for name, share in grid.shares.items()},
        "commits_at_compiler": setup.compilers[grid.compiler],
        "compilers_at_commit": one.line.first(grid.commit).hash,
        "compiler_steps": compilers,
        "compiler_ending": along.ending if along else None,
        "commit_ending": grid.along_commits.ending if grid.along_commits else None,
    }


def _run(setup: Setup, one: Searched, point: Point, outcome: Outcome) -> dict[str, Any]:
    return {
        "commit": one.line.first(point.commit).hash,
        "compiler": setup.compilers[point.compiler],
        "state": outcome.state,
        "value": outcome.value,
        "reason": outcome.reason,
    }


def _clean(one: Any) -> Any:
    if isinstance(one, float) and not math.isfinite(one):
        return None
    if isinstance(one, dict):
        return {key: _clean(item) for key, item in one.items()}
    if isinstance(one, (list, tuple)):
        return [_clean(item) for item in one]
    return one


def in_words(verdict: dict[str, Any]) -> str:
    """The verdict for people."""
    kind = "state" if verdict["metric"] == "state" else "modelled" if verdict["modelled"] else "measured"
    lines = [
        f"{verdict['benchmark']}({verdict['case']}, {verdict['impl']}), {kind}",
        f"{verdict['ending'].upper()}: {_headline(verdict)}",
    ]
    if verdict["words"]:
        lines.append(plain(verdict["words"], SENTENCE))
    for at, step in enumerate(verdict["steps"]):
        lines += _step_lines(verdict, step, first=at == 0)
    if verdict["grid"]:
        lines += _grid_lines(verdict)
    lines += _evidence_lines(verdict["evidence"])
    outside = [
        one for one in verdict["skipped"] if not any(one in step["in_between"] for step in verdict["steps"])
    ]
    if outside:
        lines.append("skipped, not in the range: " + "; ".join(_skip_words(one) for one in outside))
    runs = f"{verdict['evaluations']} evaluations"
    if verdict["resumed"]:
        runs += f" ({verdict['resumed']} of them before it was stopped)"
    if verdict["stored"]:
        runs += f", {len(verdict['stored'])} read from stored results"
    others = verdict["commits"] - verdict["commits_with_kernels"]
    rest = f", {others} more leave the kernels as they are" if others else ""
    lines.append(f"{runs}; {verdict['commits_with_kernels']} commits to search{rest}.")
    if verdict["noisy"]:
        lines.append(
            f"Wrong with probability {verdict['error']:.2g} at most, where runs are as noisy as it allows."
        )
    return "\n".join(lines)


def _headline(verdict: dict[str, Any]) -> str:
    unit, ends = verdict["unit"], (verdict["before"], verdict["after"])
    if verdict["metric"] == "state":
        return f"{verdict['states'][0]} -> {verdict['states'][1]}"
    if ends[0] is None or math.isnan(ends[0]):
        return f"after {verdict['evaluations']} runs"
    size = bisect.found_size(ends[1] - ends[0], ends[0])
    words = f"{figures(ends[0])} -> {figures(ends[1])} {unit}, {change(size)}"
    if verdict["noisy"] and verdict["change"]:
        words += f" ({change(verdict['change'][0])} to {change(verdict['change'][1])})"
        if verdict["ending"] in (bisect.NOT_REPRODUCED, bisect.UNDECIDED):
            words += f" after {verdict['evaluations']} runs"
    return words


def _step_lines(verdict: dict[str, Any], step: dict[str, Any], *, first: bool) -> list[str]:
    commit = step["commit"]
    name = f"{commit['hash'][:10]} {plain(commit['subject'], 80)} ({plain(commit['author'], 40)})"
    size = ""
    if verdict["metric"] != "state" and step["size"] is not None and step["size"] == step["size"]:
        size = f", {figures(step['before'])} -> {figures(step['after'])} {verdict['unit']}, {change(step['size'])}"
        if verdict["noisy"]:
            size += f" ({change(step['interval'][0])} to {change(step['interval'][1])})"
    undone = ", undone later" if step["undone"] else ""
    head = "also" if not first else "culprit" if verdict["ending"] in BLAMING else "where it shows"
    if step["exact"]:
        return [f"{head}: {name}{size}{undone}"]
    lines = [f"{head}: one of {len(step['range'])} commits up to {name}{size}{undone}"]
    lines += [f"  in between: {_skip_words(one)}" for one in step["in_between"]]
    return lines


def _skip_words(one: dict[str, Any]) -> str:
    reason = f": {plain(one['reason'], 400)}" if one["reason"] else ""
    return f"{one['hash'][:10]} {plain(one['subject'], 60)}: {one['state']}{reason}"


def _grid_lines(verdict: dict[str, Any]) -> list[str]:
    grid = verdict["grid"]
    shares = [
        f"{name} {100 * one['part']:.1f} % ({figures(one['amount'])})" for name, one in grid["shares"].items()
    ]
    lines = ["of the change: " + ", ".join(shares)] if shares else []
    for one in grid["compiler_steps"]:
        words = f"{figures(one['before'])} -> {figures(one['after'])} {verdict['unit']}, {change(one['size'])}"
        lines.append(
            f"compiler: ascendnpu-ir {one['from']} -> {one['to']}, {words}, at {grid['compilers_at_commit'][:10]}"
        )
    if verdict["steps"]:
        lines.append(f"commits were searched with ascendnpu-ir {grid['commits_at_compiler']}")
    return lines


def _evidence_lines(evidence: dict[str, Any]) -> list[str]:
    if not evidence:
        return []
    lines = []
    counts = [
        f"{name} {'-' if old is None else figures(old)} -> {'-' if new is None else figures(new)}"
        for name, (old, new) in evidence["counts"].items()
    ]
    if counts:
        lines.append("counts: " + ", ".join(counts))
    codes = evidence["code"]
    if any(codes):
        same = "the same" if evidence["same_code"] else f"{codes[0][:16] or '-'} -> {codes[1][:16] or '-'}"
        lines.append(f"compiled code: {same}")
    if evidence["reason"]:
        lines.append(f"reason: {plain(evidence['reason'], SENTENCE)}")
    lines += [f"finding: {one}" for one in _whole(evidence["findings"], MOST_FINDINGS)]
    said = _whole(evidence["explained"].splitlines(), MOST_SENTENCES)
    if said:
        lines.append("why: " + "\n     ".join(said))
    return lines


def _whole(sentences: Sequence[str], most: int) -> list[str]:
    """Untrusted sentences, the first ones of many."""
    more = [f"… and {len(sentences) - most} more"] if len(sentences) > most else []
    return [plain(one, SENTENCE) for one in sentences[:most]] + more
