"""`ascend-perf run`: asv over the commits that touch kernels, with progress and a summary of what happened."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ascend_model import toolchain

from . import guarded, missing, repository
from .asv_config import settings_of
from .evaluate import why
from .series import ABSENT, NOT_RUN
from .specimen import paths_of

EXAMPLES = """examples:
  ascend-perf run                          the newest commit, if it is not measured yet
  ascend-perf run --last 5                 the last five commits that touch kernels
  ascend-perf run main..my-branch          every commit of a branch that touches kernels
  ascend-perf run --last 3 --compiler 1.1.0 --compiler 1.2.0
asv itself works as well: `asv run HEAD^!`, `asv compare`, `asv publish`."""

PLACE = re.compile(r'File "([^"\n]+)", line (\d+)')
PERCENT = re.compile(r"\[\s*(\d+(?:\.\d+)?)%\]\s+\S+\s*(.*)")
NO_CASES = "not-described"  # case that stands for an op without cases, as in ascend_kernels.harness.describe
LONGEST_TEMPORARY = 60  # characters: 108 are a socket's name at most, and asv's own part of it is 41
NOTHING = 3
USAGE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("range", nargs="?", help="git range or revision (default: HEAD)")
    parser.add_argument("--last", type=positive, metavar="N", help="the last N commits that touch kernels")
    parser.add_argument("--paths", nargs="*", help="what counts as kernels (default: what asv.conf.json installs)")
    parser.add_argument("--every-commit", action="store_true", help="also commits that touch no kernel")
    parser.add_argument(
        "--compiler", action="append", help="ascendnpu-ir version (repeatable); another is another series"
    )
    parser.add_argument(
        "--cases", choices=("quick", "timed", "all", "everything"), help="cases the model runs (default: quick)"
    )
    parser.add_argument("--ops", help="only these ops, comma-separated")
    parser.add_argument("--bench", action="append", help="only benchmarks that match (as asv's --bench)")
    parser.add_argument("--force", action="store_true", help="measure again what is measured already")
    parser.add_argument(
        "--fresh", action="store_true", help="as --force, and execute also rows whose sources did not change"
    )
    parser.add_argument("--config", default="asv.conf.json")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def positive(text: str) -> int:
    """A number of commits."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number from 1 up, got {text}")
    return int(text)


def run(given: argparse.Namespace) -> int:
    """0 measured, 3 nothing was measured, 4 usage or environment, else asv's own code for a broken set-up."""
    if not Path(given.config).is_file():
        words = f"no {given.config} here; run it from the top of your repository, or write one: ascend-perf init"
        print(f"ascend-perf run: {words}", file=sys.stderr)
        return USAGE
    try:
        commits = choose(given)
    except repository.RepositoryError as error:
        print(f"ascend-perf run: {error}", file=sys.stderr)
        return USAGE
    if not commits:
        print(
            "ascend-perf run: no commit in that range touches kernels; --every-commit takes all", file=sys.stderr
        )
        return NOTHING
    from asv.util import UserError

    results = results_folder(given.config)
    for name in edited_descriptions(given.config):
        words = f"{name} has changes that are not committed: a commit is measured with its own description"
        print(f"ascend-perf run: note: {printable(words)}", file=sys.stderr)
    try:
        toolchain.require_cache()
        with guarded.stopped_by_sigterm():
            code = measure(given, commits, results)
    except (toolchain.ToolchainError, UserError) as error:
        print(f"ascend-perf run: {printable(str(error))}", file=sys.stderr)
        return USAGE
    rows = summary(results, commits)
    if given.json:
        print(json.dumps({"exit": code, "commits": rows}, indent=1))
    else:
        print_summary(rows)
    if code not in (0, 2):  # asv ends with 2 when any benchmark failed; the states tell which
        log = results.parent / "asv.log"
        words = f"asv ended with {code}: {what_failed(log, given.config)}; see {log}"
        print(f"ascend-perf run: {printable(words)}", file=sys.stderr)
        return USAGE if code == 1 else code
    ran = any(n for row in rows for state, n in row["states"].items() if state != NOT_RUN)
    return 0 if ran else NOTHING


def choose(given: argparse.Namespace) -> list[repository.Commit]:
    """Commits to measure, oldest first."""
    revision = given.range or "HEAD"
    if ".." in revision:
        base, _, head = revision.partition("..")
        head = repository.resolve(".", head.lstrip(".") or "HEAD")
        wanted = [f"{repository.resolve('.', base)}..{head}"]
    else:
        wanted = [repository.resolve(".", revision)]
        if given.last is None:
            given.last = 1
    if given.last is not None:
        wanted.append(f"--max-count={given.last}")
    paths = given.paths
    if paths is None and not given.every_commit:
        # The configuration says what of a commit is installed; one that leaves it as it was leaves every number.
        paths = paths_of(settings_of(given.config))
    text = repository.git(
        ".", "log", "--first-parent", "-z", "--format=%H%x00%an%x00%ct%x00%s", *wanted, "--", *(paths or [])
    )
    fields = text.split("\0")
    rows = [fields[i : i + 4] for i in range(0, len(fields) - 3, 4)]
    return [repository.Commit(h, subject, author) for h, author, _, subject in reversed(rows)]


def results_folder(config: str) -> Path:
    """The folder asv writes to: its configuration has it as seen from where that lies."""
    from asv.config import Config

    settings_of(config)
    return Path(os.path.relpath(Path(config).resolve().parent / Config.load(config).results_dir))


def measure(given: argparse.Namespace, commits: list[repository.Commit], results: Path) -> int:
    """asv over what is missing, one compiler after another; the worst of its exit codes."""
    for version in given.compiler or ():
        toolchain.compiler_bin(version)
    codes = [0]
    named = given.ops or os.environ.get("ASCEND_PERF_OPS", "")
    wanted = tuple(one.strip() for one in named.split(",") if one.strip())
    everything = missing.Part(wanted)

    @functools.cache
    def suite() -> missing.Asked | None:
        return missing.asked(given.config, ops=wanted, bench=given.bench or (), cases=given.cases or "")

    for version in given.compiler or [None]:
        parts: dict[missing.Part, list[repository.Commit]] = {}
        for commit in commits:
            part: missing.Part | None = everything
            place, facts = result_place(given.config, results, commit.hash, version)
            if not (given.force or given.fresh) and place is not None and place.is_file():
                lines = states_of(results, commit.hash, absent=True)
                asked = suite()
                if asked is not None:  # else asv says what is wrong with the suite
                    part = missing.missing(asked, place, lines, **facts)
                    part = everything if part == missing.Part() else part
            if part is not None:
                set_aside_damaged(place)
                parts.setdefault(part, []).append(commit)
        for part, some in parts.items():
            codes.append(call_asv(given, some, results.parent / "asv.log", version, part))
    if len(codes) == 1 and not given.quiet:
        words = "all that is asked for is measured already; --force measures it again"
        print(f"ascend-perf run: {words}", file=sys.stderr)
    return max(codes)


def set_aside_damaged(place: Path | None) -> None:
    """Rename a result file that is no JSON, which asv would stop at, and say so."""
    if place is None or not place.is_file():
        return
    try:
        json.loads(place.read_bytes())
    except ValueError:
        aside = place.with_name(place.name + ".damaged")
        place.replace(aside)
        words = f"{place} is damaged; it was set aside as {aside.name}, and its commit is measured again"
        print(f"ascend-perf run: note: {printable(words)}", file=sys.stderr)


def what_failed(log: Path, config: str) -> str:
    """The end of the last traceback in asv's log, with its line in the benchmarks folder."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    folder = benchmark_dir(config)
    places = [m for m in PLACE.finditer(text) if Path(m[1]).parent == folder]
    at = f"{Path(places[-1][1]).relative_to(folder.parent)} line {places[-1][2]}: " if places else ""
    return at + why(text).rpartition("describe.")[2]


def benchmark_dir(config: str) -> Path:
    """The folder of the benchmarks, from asv's configuration."""
    settings = settings_of(config)
    return Path(config).resolve().parent / settings.get("benchmark_dir", "benchmarks")


def edited_descriptions(config: str) -> list[str]:
    """Descriptions that differ from those of HEAD; nothing where descriptions are no part of a commit."""
    settings = settings_of(config)
    if "--repository" not in str(settings.get("install_command")):
        return []
    folder = benchmark_dir(config)
    listed = repository.git(Path(config).resolve().parent, "diff", "--name-only", "-z", "HEAD", "--", str(folder))
    return [name for name in listed.split("\0") if name.endswith(".py")]


def result_place(
    config: str, results: Path, commit: str, version: str | None
) -> tuple[Path | None, dict[str, Any]]:
    """The result file of a commit in the environment that would measure it now, with its machine and versions:
    asv's own --skip-existing-commits takes results of any compiler or model for it."""
    from asv import environment

    from .host_environment import machine_facts, toolchain_versions

    machine = machine_facts()["machine"]
    versions = toolchain_versions() | ({"ascendnpu-ir": version} if version else {})
    facts = {"machine": machine, "versions": versions}
    if settings_of(config).get("environment_type") != "host":
        return next(results.glob(f"*/{commit[:8]}-*.json"), None), facts
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    name = environment.get_env_name("host", python, versions, {})
    return results / machine / f"{commit[:8]}-{name}.json", facts


def call_asv(
    given: argparse.Namespace,
    commits: list[repository.Commit],
    log: Path,
    version: str | None = None,
    part: missing.Part | None = None,
) -> int:
    """Run asv over the commits, newest first; its output goes to `log`, its progress to the terminal."""
    part = part or missing.Part()
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    environment.setdefault("ASCEND_PERF_CACHE", str(toolchain.cache_dir()))
    if given.cases:
        environment["ASCEND_PERF_CASES"] = given.cases
    if given.fresh:
        environment["ASCEND_PERF_FRESH"] = "1"
    if part.ops:
        environment["ASCEND_PERF_OPS"] = ",".join(part.ops)
    if part.kind:
        environment["ASCEND_PERF_KIND"] = part.kind
    with contextlib.ExitStack() as removed:
        # asv puts a socket there, whose name may not be long.
        short = None if len(tempfile.gettempdir()) <= LONGEST_TEMPORARY else "/tmp"
        folder = removed.enter_context(tempfile.TemporaryDirectory(dir=short, ignore_cleanup_errors=True))
        record = removed.enter_context(open(log, "w", encoding="utf-8", errors="backslashreplace"))
        config, hashes = Path(given.config), Path(folder, "commits")
        if version:
            config = with_compiler(config, version)
            removed.callback(config.unlink)
        hashes.write_text("".join(commit.hash + "\n" for commit in reversed(commits)))
        # Nothing that asv starts outlives this process, and what it leaves in its temporary folder goes with it.
        environment["TMPDIR"] = folder
        command = [
            sys.executable, "-I", guarded.__file__, folder,
            sys.executable, "-m", "asv", "--config", str(config), "run", f"HASHFILE:{hashes}", "--show-stderr",
        ]  # fmt: skip
        for pattern in given.bench or ():
            command += ["--bench", pattern]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            errors="replace", env=environment,
        )  # fmt: skip
        assert process.stdout is not None and process.stdin is not None
        show = Progress(quiet=given.quiet)
        try:
            with show:
                for line in process.stdout:
                    record.write(line)
                    show.line(line)
        finally:
            process.stdin.close()
            process.wait()
            guarded.end_processes(folder)
    return process.returncode


def with_compiler(config: Path, version: str) -> Path:
    """The configuration with this ascendnpu-ir version, as a file beside it, since its paths are relative."""
    settings = settings_of(config)
    settings["matrix"] = {**settings.get("matrix", {}), "req": {"ascendnpu-ir": [version]}}
    settings["version"] = 1
    for left in config.parent.glob(".asv-compiler-*.json"):
        if not Path("/proc", left.stem.rpartition("-")[2]).exists():  # of a run that was killed
            left.unlink(missing_ok=True)
    place = config.with_name(f".asv-compiler-{os.getpid()}.json")
    place.write_text(json.dumps(settings))
    return place


class Progress:
    """A bar from asv's own percentages; plain lines where the output is no terminal."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.percentage:>3.0f}%"), BarColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False), console=console, disable=quiet,
        )  # fmt: skip
        self.plain = not quiet and not console.is_terminal
        self.task = self.bar.add_task("starting asv", total=100)
        self.shown = ""

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def line(self, line: str) -> None:
        """Take one line of asv's output."""
        found = PERCENT.search(line)
        if not found or "For parameters" in line:
            return
        percent, words = float(found[1]), found[2].strip(" ·•").rstrip(":")
        if words.startswith("Setting up "):
            words = "compiling, verifying, modelling " + words.removeprefix("Setting up ").partition(":")[0]
        elif not words.startswith("For "):
            words = words.split(" ")[0]
        self.bar.update(self.task, completed=percent, description=words)
        if self.plain and words.startswith(("For ", "compiling")) and words != self.shown:
            print(f"[{percent:3.0f}%] {words}", file=sys.stderr, flush=True)
            self.shown = words


def summary(results: Path, commits: list[repository.Commit]) -> list[dict[str, Any]]:
    """A row a commit: how many rows of ops and of twins ended in which state, from the sidecars."""
    rows = []
    for commit in commits:
        last = states_of(results, commit.hash)
        states = Counter(one["state"] for one in last if one.get("role") != "twin")
        twins = Counter(one["state"] for one in last if one.get("role") == "twin")
        bad = [o for o in last if o.get("role") != "twin" and o["state"] not in ("ok", "unsupported here")]
        rows.append(
            {
                "commit": commit.hash,
                "subject": commit.subject,
                "states": dict(states),
                "twins": dict(twins),
                "bad": [{k: o[k] for k in ("op", "case", "impl", "state", "reason")} for o in bad],
            }
        )
    return rows


def states_of(results: Path, commit: str, *, absent: bool = False) -> list[dict[str, Any]]:
    """The sidecar's last line of every case and implementation of a commit, with `absent` also of those that the
    commit does not have.  An op that got cases has outgrown the line that stood for it before."""
    last: dict[tuple[str, ...], dict[str, Any]] = {}
    place = results / "states" / f"{commit}.jsonl"
    for line in place.read_text(errors="replace").splitlines() if place.is_file() else ():
        try:
            one = json.loads(line)
            key = (one["suite"], one["case"], one["impl"], json.dumps(one["versions"], sort_keys=True))
            one["state"]
        except (ValueError, KeyError, TypeError):
            continue
        last[key] = one
    if not absent:
        last = {key: one for key, one in last.items() if one.get("reason") != ABSENT}
    grown = {one["suite"] for one in last.values() if one["case"] != NO_CASES}
    return [one for one in last.values() if one["case"] != NO_CASES or one["suite"] not in grown]


def print_summary(rows: list[dict[str, Any]]) -> None:
    """The summary for people."""
    for row in rows:
        print(f"{row['commit'][:10]}  {printable(row['subject'])[:60]:<60}  {counted(row['states'])}")
        if row["twins"]:
            print(f"{'':10}  {'':<60}  twins: {counted(row['twins'])}")
        for one in row["bad"][:5]:
            words = printable(one["reason"]).strip()[:140]
            print(f"            {one['op']} {one['case']} {one['impl']}: {one['state']}: {words}")
        if len(row["bad"]) > 5:
            print(f"            and {len(row['bad']) - 5} more")


def counted(states: dict[str, int]) -> str:
    """`287 ok, 1 wrong result`."""
    return ", ".join(f"{n} {state}" for state, n in sorted(states.items(), key=lambda pair: -pair[1])) or "not run"


def printable(text: str) -> str:
    """Untrusted text on one line, without control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)
