"""`ascend-perf fleet`: commits x compilers x machines over a Ray cluster, into one history."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_model import toolchain

from . import fleet, fleet_cluster, missing, repository, store
from .asv_config import settings_of
from .bisect_command import refuse_unsaved
from .evaluate import EvaluateError, locked
from .fleet_worker import HIDE_DEVICES, Order, bundle_of
from .guarded import stopped_by_sigterm
from .results import History, ResultsError, load, recorded_seconds
from .results_command import words_of
from .run import choose, positive, states_of
from .series import Environment
from .text import plain

EXAMPLES = """examples:
  ascend-perf fleet plan --last 50 --compiler 1.1.0 --compiler 1.2.0     what is missing, and how long it takes
  ascend-perf fleet run --last 50 --address local                        the cores of this machine
  ascend-perf fleet run main~200..main --address auto                    the Ray cluster this machine belongs to
  ascend-perf fleet run --last 200 --dated --address ray://head:10001    only what dates the steps
  ascend-perf fleet status
Whatever ends a run, the same command goes on with what is missing."""

DONE, SOME_FAILED, NOTHING, USAGE = 0, 1, 3, 4
LAST = 20
SHOWN = 10
LOOK_LEAST, LOOK_SHARE = 1.0, 0.05
STAGES = ("newest", "suspected step", "far end", "filling in")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("action", choices=("plan", "run", "status"))
    parser.add_argument("range", nargs="?", help=f"git range or revision (default: HEAD, its last {LAST} commits)")
    parser.add_argument("--last", type=positive, metavar="N", help="the last N commits that touch kernels")
    parser.add_argument(
        "--paths", nargs="*", help="folders that count as kernels (default: ascend_kernels, or all)"
    )
    parser.add_argument("--every-commit", action="store_true", help="also commits that touch no kernel")
    parser.add_argument("--compiler", action="append", help="ascendnpu-ir version (repeatable)")
    parser.add_argument("--machine", action="append", help="only this machine name (repeatable)")
    parser.add_argument("--newest", type=int, default=1, metavar="N", help="commits to do before all others")
    parser.add_argument("--dated", action="store_true", help="only what dates the steps, not every commit")
    parser.add_argument("--cases", choices=("quick", "timed", "all"), default="", help="cases the model runs")
    parser.add_argument("--ops", default="", help="only these ops, comma-separated")
    parser.add_argument("--bench", action="append", help="only benchmarks that match (as asv's --bench)")
    parser.add_argument("--config", type=Path, default=Path("asv.conf.json"))
    parser.add_argument("--store", metavar="ADDRESS", help="also keep results there: an fsspec address or folder")
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--address", default="local", help="auto, local (default), HOST:PORT or ray://HOST:PORT")
    cluster.add_argument("--device", action="append", help="Ray resource that is a device (default: NPU, GPU)")
    cluster.add_argument("--cores", type=float, default=1.0, metavar="N", help="cores of a modelled task")
    cluster.add_argument("--slots", type=int, metavar="N", help="modelled tasks at a time on a node, at most")
    cluster.add_argument("--timeout", type=float, default=3600, metavar="SECONDS", help="of one task")
    cluster.add_argument("--patience", type=float, default=60, metavar="SECONDS", help="wait for a lost machine")
    cluster.add_argument("--min-free", type=float, default=1.0, metavar="GIB", help="free space a node needs")
    cluster.add_argument(
        "--work", default="", metavar="FOLDER", help="where nodes work (default: their temp folder)"
    )
    parser.add_argument("--json", action="store_true", help="the outcome as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(given: argparse.Namespace) -> int:
    """0 done, 1 tasks without results (named), 3 no commit in the range, 4 usage or environment."""
    try:
        with stopped_by_sigterm():
            if given.action == "status":
                return status(given)
            project = checked(given)
            if not project.commits:
                print("ascend-perf fleet: no commit in that range touches kernels; --every-commit takes all",
                      file=sys.stderr)  # fmt: skip
                return NOTHING
            return plan(given, project) if given.action == "plan" else run_fleet(given, project)
    except (
        repository.RepositoryError, EvaluateError, ResultsError, store.StoreError, toolchain.ToolchainError,
        fleet_cluster.ClusterError,
    ) as error:  # fmt: skip
        print(f"ascend-perf fleet: {plain(str(error), 600)}", file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"ascend-perf fleet: {plain(words_of(error), 600)}; the same command goes on", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("ascend-perf fleet: stopped; the same command goes on from here", file=sys.stderr)
        return 130


@dataclass(frozen=True)
class Project:
    """What was asked, checked.  `place`: each commit's place in the history.  `versions`: as installed here."""

    repo: Path
    config: Path
    results: Path
    head: str
    commits: tuple[repository.Commit, ...]
    place: Mapping[str, int]
    compilers: tuple[str, ...]
    machine: str
    versions: Mapping[str, str]
    newest: int

    @property
    def hashes(self) -> list[str]:
        return [one.hash for one in self.commits]

    @property
    def beside(self) -> Path:
        """Folder of what a fleet leaves here."""
        return self.results.with_name(self.results.name + "-fleet")


def checked(given: argparse.Namespace) -> Project:
    """The project, or the sentence that says what is wrong with it."""
    config = _config(given)
    if (
        given.newest < 0
        or not (given.cores > 0 and given.timeout > 0)
        or (given.slots is not None and given.slots < 1)
    ):
        raise EvaluateError("--cores, --timeout and --slots are numbers above zero, --newest one from zero up")
    if not (given.patience >= 0 and given.min_free >= 0):
        raise EvaluateError("--patience and --min-free are numbers from zero up")
    top = repository.git(config.parent, "rev-parse", "--show-toplevel").rstrip("\n")
    repo = Path(top).resolve()
    if repository.is_shallow(repo):
        raise EvaluateError("the clone is shallow: commits in between may be missing (git fetch --unshallow)")
    settings = settings_of(config)
    refuse_unsaved(repo, config, settings)
    results = config.parent / settings.get("results_dir", "results")
    os.environ.setdefault("ASCEND_PERF_CACHE", str(results.parent.resolve() / "cache"))
    if given.last is None and given.range is None:
        given.last = LAST
    commits = tuple(choose(given))
    head = repository.resolve(repo, "HEAD")
    line = repository.first_parents(repo, commits[-1].hash) if commits else []
    machine, versions = _modelled()
    have = toolchain.available_versions()
    compilers = tuple(given.compiler or ([toolchain.default_version()] if have else [""]))
    for one in compilers:
        if one and not toolchain.VERSION.fullmatch(one):
            raise EvaluateError(f"--compiler {one!r}: expected a version such as 1.2.0")
    return Project(
        repo, config.relative_to(repo), results, head, commits, {one.hash: at for at, one in enumerate(line)},
        tuple(dict.fromkeys(compilers)), machine, versions, given.newest,
    )  # fmt: skip


def _config(given: argparse.Namespace) -> Path:
    if not given.config.is_file():
        raise EvaluateError(f"no {given.config} here; run it from the folder of your project, or name --config")
    return given.config.resolve()


@contextlib.contextmanager
def _without_devices() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in HIDE_DEVICES}
    os.environ.update(HIDE_DEVICES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _modelled() -> tuple[str, dict[str, str]]:
    """Machine name of modelled numbers, and the versions here that decide them."""
    from .host_environment import machine_facts, toolchain_versions

    with _without_devices():
        return machine_facts()["machine"], toolchain_versions()


class Progress:
    """What is known, what is missing, in which order."""

    def __init__(
        self,
        project: Project,
        environments: Iterable[tuple[str, str]],
        dated: bool,
        asked: missing.Asked | None = None,
    ) -> None:
        self.project, self.dated, self.asked = project, dated, asked
        self.environments = list(environments)
        self._complete: dict[tuple[Any, ...], bool] = {}
        self.read()

    def read(self) -> None:
        """Look at the results folder again."""
        self.known: set[fleet.Task] = set()
        self.suspects: dict[tuple[str, str], set[tuple[str, str]]] = {}
        if self.project.results.is_dir():
            history = load(self.project.results, self.project.repo, head=self.project.commits[-1].hash)
            self.known = fleet.measured(history, self.project.versions)
            self.suspects = fleet.suspected(history)
            if self.asked is not None:
                ours = set(self.project.hashes)
                self.known = {one for one in self.known if one.commit not in ours} | self._whole(history)

    def _whole(self, history: History) -> set[fleet.Task]:
        """Tasks of which everything that is asked for is there: that a commit has results says nothing."""
        found = set()
        for (machine, compiler), some in fleet.environments_in(history, self.project.versions).items():
            for commit in self.project.hashes:
                if any(self._has_all(commit, machine, one) for one in some):
                    found.add(fleet.Task(commit, compiler, machine))
        return found

    def _has_all(self, commit: str, machine: str, environment: Environment) -> bool:
        """Whether the result file of a commit lacks nothing; read again only where it changed."""
        assert self.asked is not None
        results = self.project.results
        place = results / machine / f"{commit[:8]}-{environment.name}.json"
        states = results / "states" / f"{commit}.jsonl"
        seen = place, _stamp(place), _stamp(states)
        if seen[1] is None:
            return False
        if seen not in self._complete:
            if machine.startswith(fleet.MODELLED):
                lines = states_of(results, commit, absent=True)
                left = missing.missing(
                    self.asked, place, lines, machine=machine, versions=environment.versions
                )  # fmt: skip
                self._complete[seen] = left is None
            else:
                self._complete[seen] = missing.has_every_op(self.asked, place)
        return self._complete[seen]

    def order(self, busy: Iterable[fleet.Task] = ()) -> list[tuple[int, fleet.Task]]:
        """(stage, task) of what is missing."""
        backlog = fleet.Backlog(self.project.hashes, self.environments, self.project.newest)
        known = {*self.known, *busy}
        order = backlog.order(known, self.suspects, self.project.place)
        return fleet.to_date(order) if self.dated else order

    @property
    def basis(self) -> tuple[Any, ...]:
        """What an order rests on beside the tasks that are done: the same basis needs no new order."""
        return tuple(self.environments), {key: frozenset(some) for key, some in self.suspects.items()}

    @property
    def undated(self) -> int:
        """Suspected steps whose commit is not known yet."""
        wanted = {key: spans for key, spans in self.suspects.items() if key in self.environments}
        return fleet.undated(self.project.hashes, self.known, wanted, self.project.place)


def _stamp(place: Path) -> tuple[int, int, int] | None:
    """What changes with a file; None where there is none."""
    try:
        found = place.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def asked_of(given: argparse.Namespace, project: Project) -> missing.Asked | None:
    """What a task is to measure on a machine without a device, None where the suite cannot be read here."""
    from asv.util import UserError

    there = {path.name[:8] for path in project.results.glob("*/*.json")}
    if not (given.ops or given.bench or there & {one[:8] for one in project.hashes}):
        return None  # nothing is there, so nothing is there in part
    ops = [one.strip() for one in given.ops.split(",") if one.strip()]
    try:
        with _without_devices():
            return missing.asked(str(given.config), ops=ops, bench=given.bench or (), cases=given.cases)
    except UserError as error:
        raise EvaluateError(str(error)) from None


def environments_of(given: argparse.Namespace, project: Project) -> list[tuple[str, str]]:
    """(machine, compiler) pairs that are asked for before any machine was seen."""
    machines = given.machine or [project.machine]
    return [(machine, compiler) for machine in machines for compiler in project.compilers]


def records(results: Path) -> list[dict[str, Any]]:
    """What fleets put on record of their tasks."""
    rows = []
    for path in sorted((results / "fleet").glob("*.jsonl")):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    rows.append(row)
    return rows


def plan(given: argparse.Namespace, project: Project) -> int:
    """Say what is missing and what it costs."""
    progress = Progress(project, environments_of(given, project), given.dated, asked_of(given, project))
    order = progress.order()
    had = project.results.is_dir()
    cost = fleet.costs(records(project.results) if had else (), recorded_seconds(project.results) if had else ())
    total = sum(cost(task).seconds for _, task in order)
    subject = {one.hash: one.subject for one in project.commits}
    slots = given.slots or max(1, int((os.cpu_count() or 1) / given.cores))
    runs = min((cost(task).known for _, task in order), default=0)
    if given.json:
        print(json.dumps({
            "commits": len(project.commits), "environments": progress.environments,
            "known": len(project.commits) * len(progress.environments) - len(order) if not given.dated else None,
            "missing": len(order), "seconds": total, "slots": slots, "seconds_with_slots": total / slots,
            "recorded_runs": runs, "undated": progress.undated,
            "order": [
                {"commit": task.commit, "compiler": task.compiler, "machine": task.machine,
                 "stage": STAGES[stage], "seconds": cost(task).seconds}
                for stage, task in order
            ],
        }, indent=1))  # fmt: skip
        return DONE
    if not order:
        print(f"nothing is missing: {len(project.commits)} commits, {len(progress.environments)} environments")
        return DONE
    by_environment = Counter((task.machine, task.compiler) for _, task in order)
    for (machine, compiler), count in by_environment.items():
        title = f"{machine} {fleet.COMPILER} {compiler}".rstrip()
        print(f"{plain(title, 60):<60} {count} of {len(project.commits)} commits are missing")
    print()
    for at, (stage, task) in enumerate(order[:SHOWN], 1):
        words = plain(subject[task.commit], 50)
        print(f"{at:>4}. {task.commit[:10]} {task.compiler:<8} {STAGES[stage]:<15} {words}")
    if len(order) > SHOWN:
        print(f"      and {len(order) - SHOWN} more")
    print()
    basis = f"recorded runs: {runs}" if runs else f"no run is on record, {fleet.ASSUMED_SECONDS:.0f} s assumed"
    print(f"{len(order)} tasks, about {_span(total)} of machine time ({basis}), {_span(total / slots)} "
          f"with {slots} at a time")  # fmt: skip
    if progress.undated:
        print(f"{progress.undated} suspected steps are not dated to one commit yet")
    return DONE


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


class Keeper:
    """Puts what comes back into the store, record last, and shows it as plain results."""

    def __init__(self, project: Project, address: str | None, run_id: str, offsets: Mapping[str, float]) -> None:
        self.project, self.run_id, self.offsets = project, run_id, offsets
        self.here = store.Store(project.results)
        self.there = store.Store(address) if address else None
        self.report = store.Report()

    def accept(self, task: fleet.Task, slot: fleet.Slot, outcome: fleet.Outcome) -> None:
        """Keep a task's files.  OSError where they could not be kept: then the task is not done."""
        offset = self.offsets.get(slot.node, 0.0)
        # results say that a commit is done, so they come behind what goes with them
        ordered = sorted(outcome.files, key=lambda one: store.merge.kind_of(one[0]) == store.merge.RESULT)
        files = [(path, corrected(path, content, offset)) for path, content in ordered]
        files.append(self._record(task, slot.node, outcome.seconds, outcome.unbuilt, "", outcome.states))
        self._keep(files)

    def failed(self, task: fleet.Task, reason: str) -> None:
        """Put a task on record that has no results."""
        self._keep([self._record(task, "", 0.0, "", reason, {})])

    def _keep(self, files: list[tuple[str, bytes]]) -> None:
        files = [(path, content) for path, content in files if store.merge.kind_of(path) is not None]
        for place in (self.there, self.here):
            for path, content in files if place else ():
                place.put(path, content)  # type: ignore[union-attr]
        with self.here.locked():
            self.here.refresh(self.report, {store.key_of(path) for path, _ in files})

    def _record(
        self, task: fleet.Task, node: str, seconds: float, unbuilt: str, reason: str, states: Mapping[str, int]
    ) -> tuple[str, bytes]:
        outcome = "failed" if reason else "build failed" if unbuilt else "done"
        row = {
            "version": 1, "commit": task.commit, "compiler": task.compiler, "machine": task.machine,
            "outcome": outcome, "reason": (reason or unbuilt)[:2000], "states": dict(states), "node": node,
            "seconds": round(seconds, 3), "run": self.run_id, "at": int(time.time() * 1000),
        }  # fmt: skip
        return f"fleet/{task.commit}.jsonl", json.dumps(row).encode() + b"\n"


def corrected(path: str, content: bytes, offset: float) -> bytes:
    """Times of a machine whose clock is `offset` seconds ahead, as this machine's clock has them."""
    try:
        return _shifted(path, content, int(offset * 1000)) if offset else content
    except (ValueError, KeyError, TypeError, AttributeError):
        return content  # damaged: the store says so


def _shifted(path: str, content: bytes, shift: int) -> bytes:
    kind = store.merge.kind_of(path)
    if kind == store.merge.STATES:
        lines = []
        for line in content.splitlines():
            row = json.loads(line)
            lines.append(json.dumps({**row, "at": row["at"] - shift}).encode() + b"\n")
        return b"".join(lines)
    if kind == store.merge.RESULT:
        data = json.loads(content)
        at = data["result_columns"].index("started_at")
        for row in data["results"].values():
            if len(row) > at and isinstance(row[at], (int, float)):
                row[at] -= shift
        return json.dumps(data).encode()
    return content


def run_fleet(given: argparse.Namespace, project: Project) -> int:
    """Do what is missing."""
    with locked(project.beside, "fleet"):
        if given.store and (store.is_remote(given.store) or Path(given.store).is_dir()):
            store.merge_into([given.store], project.results)
        elif project.results.is_dir():
            store.merge_into([], project.results)  # what a killed run had put there and not shown yet
        progress = Progress(project, environments_of(given, project), given.dated, asked_of(given, project))
        if not progress.order() and given.machine is None and not _devices_wanted(given):
            return summary(given, progress, fleet.Finished(0, {}, {}, ()), store.Report())
        project.beside.mkdir(parents=True, exist_ok=True)
        # Ray reports dead workers on standard output; what matters of it is named by us
        with open(project.beside / "ray.log", "w") as log, contextlib.redirect_stdout(log):
            fleet_cluster.connect(given.address, int(given.slots * given.cores) if given.slots else None)
            try:
                finished, report = _on_cluster(given, project, progress)
            finally:
                fleet_cluster.disconnect()
        return summary(given, progress, finished, report)


def _devices_wanted(given: argparse.Namespace) -> bool:
    """Whether machines may be there whose tasks are not known before they are seen."""
    return given.address != "local" or bool(given.device)


def _on_cluster(
    given: argparse.Namespace, project: Project, progress: Progress
) -> tuple[fleet.Finished, store.Report]:
    scratch = project.beside / "scratch"
    try:
        bundle = bundle_of(project.repo, scratch, project.head, project.hashes)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    run_id = secrets.token_hex(4)
    order = Order(
        run_id, project.head, project.config.as_posix(), given.cases, given.ops, tuple(given.bench or ()),
        given.timeout, int(given.min_free * 2**30), given.work,
    )  # fmt: skip
    backend = fleet_cluster.RayBackend(
        order, bundle, expected=project.versions, compilers=project.compilers, machines=given.machine or (),
        devices=given.device or fleet_cluster.DEVICES, cores=given.cores, slots=given.slots,
    )  # fmt: skip
    keeper = Keeper(project, given.store, run_id, backend.offsets)
    show = Show(given, project, progress)
    try:
        with show:
            finished = work(backend, keeper, show, progress, given.patience)
    finally:
        backend.close()
        show.write_status("stopped", force=True)
    for task, reason in finished.failed.items():
        with contextlib.suppress(OSError):
            keeper.failed(task, reason)
    show.write_status("finished", force=True, finished=finished)
    progress.read()
    return finished, keeper.report


def work(
    backend: fleet.Backend, keeper: Keeper, show: Show, progress: Progress, patience: float = 60.0
) -> fleet.Finished:
    """The fleet's work on any machines, in an order that follows what the results say."""
    dispatcher = fleet.Dispatcher(task for _, task in progress.order())
    fresh = False
    last, cost = time.monotonic(), 0.0

    def accept(task: fleet.Task, slot: fleet.Slot, outcome: fleet.Outcome) -> None:
        nonlocal fresh
        keeper.accept(task, slot, outcome)
        fresh = True

    def again() -> list[fleet.Task] | None:
        nonlocal fresh, last, cost
        now = time.monotonic()
        # a look costs more the longer the history is: it gets a small share of the time, unless nothing else waits
        if not fresh or (dispatcher.waiting and now - last < max(LOOK_LEAST, cost / LOOK_SHARE)):
            return None
        before = progress.basis
        progress.read()
        same = dispatcher.waiting and progress.basis == before
        order = None if same else [task for _, task in progress.order(dispatcher.busy)]
        fresh, last, cost = False, time.monotonic(), time.monotonic() - now
        return order

    def told(event: fleet.Event) -> None:
        if event.kind == "joined" and event.slot is not None:
            machine, has = event.slot.machine, event.slot.compilers
            known = {one for one, _ in progress.environments}
            if machine not in known:
                compilers = progress.project.compilers if has else ("",)
                progress.environments += [(machine, one) for one in compilers]
                dispatcher.order(task for _, task in progress.order(dispatcher.busy))
        show.event(event, dispatcher)

    head = fleet.Head(backend, dispatcher, accept, again=again, told=told, patience=patience)
    show.watch(head)
    return head.work()


class Show:
    """A bar, lines where the output is no terminal, and the file that `fleet status` reads."""

    def __init__(self, given: argparse.Namespace, project: Project, progress: Progress) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.place = project.beside / "status.json"
        self.progress = progress
        self.subject = {one.hash: one.subject for one in project.commits}
        console = Console(stderr=True)
        self.bar = Progress(
            MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False),
            console=console, disable=given.quiet,
        )  # fmt: skip
        self.plain = not given.quiet and not console.is_terminal
        self.task = self.bar.add_task("machines are being made ready", total=len(progress.order()))
        self.started, self.written = time.time(), 0.0
        self.address = given.address
        self.head: fleet.Head | None = None
        self.since: dict[fleet.Task, float] = {}

    def __enter__(self) -> Show:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def watch(self, head: fleet.Head) -> None:
        """The head whose state is shown."""
        self.head = head
        self.write_status("running", force=True)

    def event(self, event: fleet.Event, dispatcher: fleet.Dispatcher) -> None:
        """Show one thing that happened."""
        done = len(dispatcher.done) + len(dispatcher.failed)
        total = done + dispatcher.waiting + len(dispatcher.busy)
        words = self._words(event)
        self.bar.update(self.task, completed=done, total=total, description=words or None)
        if words and (self.plain or event.kind in ("refused", "left", "lost", "note")):
            self.bar.console.print(f"[{done}/{total}] {words}", markup=False, highlight=False)
        # nothing else may happen for as long as a task takes
        self.write_status("running", force=event.kind == "started")

    def _words(self, event: fleet.Event) -> str:
        if event.kind == "finished" and event.task and event.outcome:
            what = f"{event.task.commit[:10]} {event.task.compiler}".rstrip()
            outcome = event.outcome
            end = outcome.reason or outcome.unbuilt or f"{outcome.seconds:.0f} s"
            return plain(f"{what} on {event.node}: {end}", 160)
        if event.kind == "joined" and event.slot:
            return plain(f"{event.slot.name} is ready")
        if event.kind == "lost" and event.task:
            return plain(f"{event.task.commit[:10]} on {event.node}: {event.reason}; it goes elsewhere", 200)
        return plain(f"{event.node}: {event.reason}", 200) if event.reason else ""

    def write_status(self, state: str, force: bool = False, finished: fleet.Finished | None = None) -> None:
        """Leave the state for `fleet status`, at most once a second."""
        if self.head is None or (not force and time.time() - self.written < 1):
            return
        self.written = time.time()
        dispatcher = self.head.dispatcher
        self.since = {task: self.since.get(task, self.written) for task in dispatcher.busy}
        row = {
            "version": 1, "state": state, "address": self.address, "pid": os.getpid(), "started": self.started,
            "written": self.written, "done": len(dispatcher.done),
            "waiting": dispatcher.waiting + (len(dispatcher.busy) if state != "running" else 0),
            "running": [
                {"commit": task.commit, "compiler": task.compiler, "machine": task.machine, "slot": slot,
                 "seconds": round(self.written - self.since[task], 1)}
                for task, slot in dispatcher.busy.items()
            ] if state == "running" else [],
            "failed": [_failure(task, reason) for task, reason in dispatcher.failed.items()],
            "nodes": sorted(self.head.nodes), "left": self.head.left,
            "notes": list(dict.fromkeys(self.head.notes)), "undated": self.progress.undated,
        }  # fmt: skip
        with contextlib.suppress(OSError):  # a full disk must not end the work of others
            store.write_file(self.place, json.dumps(row, indent=1).encode(), self.place.parent / "tmp")


def _failure(task: fleet.Task, reason: str) -> dict[str, str]:
    return {"commit": task.commit, "compiler": task.compiler, "machine": task.machine, "reason": reason}


def summary(given: argparse.Namespace, progress: Progress, finished: fleet.Finished, report: store.Report) -> int:
    """What came of it, with reasons; the exit code."""
    states: Counter[str] = Counter()
    unbuilt = []
    wanted = set(progress.project.hashes)
    latest = {
        (row.get("commit"), row.get("compiler"), row.get("machine")): row
        for row in sorted(records(progress.project.results), key=lambda row: str(row.get("at", "")).zfill(16))
    }  # a commit that was measured again counts once
    for row in latest.values():
        if row.get("commit") in wanted:
            states.update({k: v for k, v in (row.get("states") or {}).items() if isinstance(v, int)})
            if row.get("outcome") == "build failed":
                unbuilt.append(row)
    if given.json:
        print(json.dumps({
            "done": finished.done, "failed": [_failure(task, why) for task, why in finished.failed.items()],
            "build_failed": [{k: row.get(k) for k in ("commit", "compiler", "reason")} for row in unbuilt],
            "left": dict(finished.left), "notes": list(finished.notes), "states": dict(states),
            "conflicts": len(report.conflicts), "undated": progress.undated,
        }, indent=1))  # fmt: skip
        return SOME_FAILED if finished.failed else DONE
    if not finished.done and not finished.failed:
        print(f"nothing is missing: {len(progress.project.commits)} commits")
    else:
        print(f"{finished.done} tasks done, {len(finished.failed)} without results")
    if states:
        print("  " + ", ".join(f"{count} {state}" for state, count in states.most_common()))
    for row in unbuilt[:SHOWN]:
        print(f"build failed: {str(row['commit'])[:10]} {row['compiler']}: {plain(str(row['reason']))}")
    reasons = Counter(finished.failed.values())
    for reason, count in reasons.most_common(SHOWN):
        first = next(task for task, why in finished.failed.items() if why == reason)
        words = f"{first.commit[:10]} {first.compiler}" + (f" and {count - 1} more" if count > 1 else "")
        print(f"failed: {words}: {plain(reason, 300)}")
    for node, reason in finished.left.items():
        print(f"left out: {plain(node)}: {plain(reason, 300)}")
    for note in finished.notes:
        print(f"note: {plain(note, 300)}")
    for conflict in report.conflicts[:SHOWN]:
        print(f"conflict: {plain(conflict.path, 80)}: {plain(conflict.key)}: {plain(conflict.kept)} kept")
    if progress.undated:
        print(f"{progress.undated} suspected steps are not dated to one commit yet")
    if finished.failed:
        print("the same command tries again what has no results")
    return SOME_FAILED if finished.failed else DONE


def status(given: argparse.Namespace) -> int:
    """Say how far a fleet is."""
    from .run import results_folder

    _config(given)
    results = results_folder(str(given.config))
    beside = results.with_name(results.name + "-fleet")
    try:
        row = json.loads((beside / "status.json").read_bytes())
    except (OSError, ValueError):
        print("ascend-perf fleet: no fleet has run on these results", file=sys.stderr)
        return NOTHING
    if row["state"] == "running" and not _held(beside / "lock"):
        row |= {"state": "ended before its time", "waiting": row["waiting"] + len(row["running"]), "running": []}
    if given.json:
        print(json.dumps(row, indent=1))
        return DONE
    ago = _span(max(0.0, time.time() - row["written"]))
    print(f"{row['state']} (said {ago} ago): {row['done']} done, {len(row['failed'])} failed, "
          f"{row['waiting']} waiting, {len(row['running'])} under way at {plain(row['address'])}")  # fmt: skip
    for one in row["running"]:
        print(f"  {one['commit'][:10]} {one['compiler']:<8} {_span(one['seconds']):>8}  {plain(one['slot'])}")
    for one in row["failed"][:SHOWN]:
        print(f"failed: {one['commit'][:10]} {one['compiler']}: {plain(one['reason'], 300)}")
    for node, reason in row["left"].items():
        print(f"left out: {plain(node)}: {plain(reason, 300)}")
    for note in row["notes"]:
        print(f"note: {plain(note, 300)}")
    if row["state"] not in ("running", "finished"):
        print("`ascend-perf fleet run` with the same arguments goes on")
    return DONE


def _held(place: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        with open(place) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
