"""What a fleet does in which order, and what it makes of machines that fail, without machines."""

import errno
import itertools
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from asv_files import MODELLED, benchmarks_file, git, repository, result_file, row, state_line, states_file
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_model import toolchain
from dashboards import cli, fleet, fleet_command, store
from dashboards.fleet import FAR, FILLING, NEWEST, SUSPECT, Dispatcher, Event, Head, Outcome, Task, arrange
from dashboards.fleet_quality import (
    COMPILERS,
    MACHINE,
    Simulated,
    head,
    runs_to_date,
    simulate,
    speed_up,
    tasks_of,
)
from dashboards.series import ABSENT

TASKS = tasks_of(40)


@given(st.sets(st.integers(0, 60), min_size=1), st.sets(st.integers(0, 60)), st.integers(0, 4), st.data())
def test_every_missing_commit_comes_once_and_the_newest_first(wanted, known, newest, data):
    ends = st.tuples(st.integers(-1, 60), st.integers(0, 61)).filter(lambda one: one[0] < one[1])
    spans = data.draw(st.lists(ends, max_size=3))
    order = arrange(sorted(wanted), known, spans, newest)
    places = [one for _, one in order]
    assert sorted(places) == sorted(wanted - known)
    assert [stage for stage, _ in order] == sorted(stage for stage, _ in order)
    top = sorted(wanted)[-newest:] if newest else []
    assert [one for stage, one in order if stage == NEWEST] == [one for one in reversed(top) if one not in known]
    for stage, one in order:
        inside = any(good < one < bad for good, bad in spans)
        assert stage == NEWEST or (stage == SUSPECT) == inside


def test_the_middle_of_a_suspected_span_is_first():
    order = arrange(range(100), {0, 99, 10, 30}, [(10, 30)])
    assert order[0] == (SUSPECT, 20)
    assert {order[1][1], order[2][1]} == {15, 25}
    stages = [stage for stage, _ in order]
    assert stages.count(SUSPECT) == 19 and order[19] == (FILLING, 65)


@given(st.integers(4, 300), st.data())
def test_a_step_is_dated_with_the_runs_of_a_bisection(count, data):
    step = data.draw(st.integers(1, count - 1))
    # both ends, then a halving of the commits in between
    assert runs_to_date(count, step) <= 2 + (count - 2).bit_length()


def test_two_environments_take_turns():
    place = {str(at): at for at in range(8)}
    backlog = fleet.Backlog(list(place), [("m", "a"), ("m", "b")])
    order = backlog.order({Task("7", "a", "m")}, {("m", "b"): {("2", "5")}}, place)
    assert [(stage, task.commit, task.compiler) for stage, task in order][:4] == [
        (NEWEST, "7", "b"), (SUSPECT, "4", "b"), (SUSPECT, "3", "b"), (FAR, "0", "a"),
    ]  # fmt: skip
    assert len(order) == 15
    dated = [(task.commit, task.compiler) for _, task in fleet.to_date(order)]
    assert dated == [("7", "b"), ("4", "b"), ("3", "b"), ("0", "a"), ("0", "b")]


def test_all_tasks_are_done_once_whatever_dies():
    backend = Simulated(4, 2, deaths={"node1": 9.0, "node3": 15.0}, poison=(TASKS[5].commit,))
    finished, kept = simulate(backend, TASKS)
    bad = {task for task in TASKS if task.commit == TASKS[5].commit}
    assert sorted(kept) == sorted(set(TASKS) - bad) and set(finished.failed) == bad
    assert all("ended its worker" in reason for reason in finished.failed.values())
    assert finished.left == {"node1": "the node is gone", "node3": "the node is gone"}
    # what ran on nodes that died ran again, and a commit that kills its worker three times
    assert len(kept) < backend.runs <= len(kept) + 4 + 2 * fleet.ATTEMPTS


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 3), st.dictionaries(st.integers(0, 3), st.floats(0, 60)), st.integers(1, 40)
)
def test_work_goes_on_while_a_node_lives(nodes, slots, deaths, count):
    some = {f"node{at}": when for at, when in deaths.items() if at < nodes - 1}
    finished, kept = simulate(Simulated(nodes, slots, deaths=some), tasks_of(count))
    # three nodes that die under one task are taken for its fault
    assert sorted(kept) == sorted(set(tasks_of(count)) - set(finished.failed))
    assert not finished.failed or len(some) >= fleet.ATTEMPTS


def test_a_task_for_a_compiler_that_no_node_has_is_named():
    serves = {"node0": ("1.1.0",), "node1": ("1.1.0",)}
    finished, kept = simulate(Simulated(2, serves=serves), TASKS)
    assert {task.compiler for task in kept} == {"1.1.0"} and len(kept) == 20
    assert set(finished.failed.values()) == {
        "no machine for modelled-test with ascendnpu-ir 1.2.0 (there are: modelled-test with 1.1.0)"
    }
    # where one node has it, that one does them all
    finished, kept = simulate(Simulated(2, serves={"node0": ("1.1.0",)}), TASKS)
    assert not finished.failed and len(kept) == 40


def test_when_every_machine_is_gone_it_waits_and_then_says_so():
    backend = Simulated(1, deaths={"node0": 30.0})
    finished, kept = simulate(backend, TASKS, patience=60)
    assert 0 < len(kept) < 6 and len(finished.failed) == 40 - len(kept)
    assert backend.time >= 90
    assert all("none is left" in reason for reason in finished.failed.values())


def test_a_node_that_fails_everything_is_left_out_and_the_rest_goes_on():
    backend = Simulated(3, broken={"node1": "no results, exit code 1: it is broken"})
    finished, kept = simulate(backend, TASKS)
    assert sorted(kept) == sorted(TASKS) and not finished.failed
    assert finished.left == {"node1": "3 failures one after the other, the last one: no results, exit code 1: "
                                      "it is broken"}  # fmt: skip


def test_a_full_disk_of_a_node_is_named_and_the_rest_goes_on():
    words = "the disk is full: 0.1 GiB free in /tmp, 1.0 wanted"
    backend = Simulated(3, broken={"node2": words}, unfit=("node2",))
    finished, kept = simulate(backend, TASKS)
    assert sorted(kept) == sorted(TASKS) and finished.left == {"node2": words}
    assert backend.runs == len(TASKS) + 1


def test_results_that_cannot_be_kept_are_named_and_their_tasks_are_not_done():
    kept: list[Task] = []

    def accept(task, slot, outcome):
        if len(kept) == 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        kept.append(task)

    finished = Head(Simulated(2), Dispatcher(TASKS), accept).work()
    assert finished.done == len(kept) == 10 and len(finished.failed) == 30
    assert any("No space left on device" in one for one in finished.notes)
    # three in a row, and nothing more is begun
    reasons = list(finished.failed.values())
    assert sum(reason.startswith("its results could not be kept") for reason in reasons) <= fleet.NODE_FAILURES + 1
    assert sum(reason.startswith("not begun") for reason in reasons) >= 26


def test_eight_nodes_reach_085_of_the_ideal():
    for count in (50, 200, 1000):
        assert speed_up(8, count, overhead=0.05) >= 0.85
    # one node alone is as fast as it is
    assert speed_up(1, 50, overhead=0.0) == pytest.approx(1.0)


def test_the_head_needs_little_memory_for_many_tasks():
    # 100 000 in docs/fleet.md
    found = head(20_000)
    assert found["tasks"] == 20_000 and found["megabytes"] < 100


def test_costs_come_from_what_is_on_record():
    def record(compiler, seconds, outcome="done"):
        return {"machine": MACHINE, "compiler": compiler, "seconds": seconds, "outcome": outcome}

    cost = fleet.costs([record("1.1.0", 4), record("1.1.0", 6), record("1.2.0", 20), record("1.2.0", 1, "failed")])
    assert cost(Task("c", "1.1.0", MACHINE)) == fleet.Cost(5, 2)
    assert cost(Task("c", "1.2.0", MACHINE)) == fleet.Cost(20, 1)
    assert cost(Task("c", "1.0.0", MACHINE)) == fleet.Cost(6, 3)
    assert cost(Task("c", "1.1.0", "another")) == fleet.Cost(6, 3)
    assert fleet.costs([], [10, 30])(TASKS[0]) == fleet.Cost(20, 2)
    assert fleet.costs([])(TASKS[0]) == fleet.Cost(fleet.ASSUMED_SECONDS, 0)


def test_times_of_a_wrong_clock_are_corrected():
    result = json.dumps({
        "version": 2, "commit_hash": "ab" * 20, "result_columns": ["result", "params", "version", "started_at"],
        "results": {"x": [[1], [], "1", 3_700_000], "failed": [None, []]},
    }).encode()  # fmt: skip
    found = json.loads(fleet_command.corrected("m/abababab-host.json", result, 3600.0))
    assert found["results"] == {"x": [[1], [], "1", 100_000], "failed": [None, []]}
    line = json.dumps({"at": 3_700_000, "state": "ok"}).encode()
    path = f"states/{'ab' * 20}.jsonl"
    assert json.loads(fleet_command.corrected(path, line, 3600.0)) == {"at": 100_000, "state": "ok"}
    assert fleet_command.corrected(path, line, 0.0) == line
    for damaged in (b"{cut", b"[]", b'{"at": "x"}'):
        assert fleet_command.corrected(path, damaged, 3600.0) == damaged


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository of ten commits with results of some of them; the compilers are there by name."""
    folder = tmp_path / "repo"
    hashes = repository(folder, [f"commit {at}" for at in range(10)])
    config = {"version": 1, "project": "x", "repo": ".", "results_dir": ".asv/results"}
    (folder / "asv.conf.json").write_text(json.dumps(config))
    (folder / ".gitignore").write_text("/.asv/\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "the suite")
    hashes.append(git(folder, "rev-parse", "HEAD"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(toolchain, "available_versions", lambda: list(COMPILERS))
    versions = {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "ascend-model": "7"}
    monkeypatch.setattr(fleet_command, "_modelled", lambda: (MACHINE, versions))
    return folder, hashes


def results_of(folder: Path, commit: str, value: float, compiler: str = "1.2.0", model: str = "7") -> None:
    versions = {"triton-ascend": "3.2.0", "ascendnpu-ir": compiler, "ascend-model": model}
    place = folder / ".asv/results"
    result_file(place, commit, {MODELLED: row([value] * 4)}, machine=MACHINE, versions=versions,
                name=f"host-{compiler}-{model}", durations={"<build>": 1.0, "bench:1": 7.0})  # fmt: skip
    benchmarks_file(place, {MODELLED: "cycles (modelled)"})


def plan(*arguments: str, capsys) -> dict:
    assert cli.main(["fleet", "plan", "--every-commit", "--last", "11", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_says_what_is_missing_and_what_it_costs(project, capsys):
    folder, hashes = project
    found = plan("--compiler", "1.1.0", "--compiler", "1.2.0", capsys=capsys)
    assert (found["missing"], found["seconds"], found["recorded_runs"]) == (22, 22 * 60.0, 0)
    for at in (0, 9):
        results_of(folder, hashes[at], 100 + at)
    results_of(folder, hashes[5], 1, model="6")  # another model: another series
    found = plan("--compiler", "1.1.0", "--compiler", "1.2.0", "--slots", "4", capsys=capsys)
    # what asv says of building, of setup_cache and of the benchmark
    assert (found["missing"], found["known"], found["seconds"]) == (20, 2, 20 * 8.5)
    assert found["seconds_with_slots"] == found["seconds"] / 4 and found["undated"] == 1
    order = [(one["stage"], hashes.index(one["commit"]), one["compiler"]) for one in found["order"]]
    assert order[:3] == [("newest", 10, "1.1.0"), ("newest", 10, "1.2.0"), ("suspected step", 5, "1.2.0")]
    assert {one["commit"] for one in found["order"] if one["compiler"] == "1.2.0"} == {
        hashes[at] for at in (1, 2, 3, 4, 5, 6, 7, 8, 10)
    }
    record = {"machine": MACHINE, "compiler": "1.2.0", "seconds": 2.5, "outcome": "done", "commit": hashes[0]}
    (folder / ".asv/results/fleet").mkdir()
    (folder / f".asv/results/fleet/{hashes[0]}.jsonl").write_text(json.dumps(record) + "\n{cut")
    assert plan(capsys=capsys)["seconds"] == 9 * 2.5
    assert cli.main(["fleet", "plan", "--every-commit", "--last", "11"]) == 0
    out = capsys.readouterr().out
    assert "9 of 11 commits are missing" in out and "9 tasks, about 22 s of machine time" in out
    assert "1 suspected steps are not dated" in out


class TestACommitMeasuredInPart:
    """Two ops of one case each, of which a commit may have both, one or none."""

    COPY, MOVE = "bench_x.ModelledCopy.track_cycles", "bench_x.ModelledMove.track_cycles"
    SUITE = """
class ModelledCopy:
    params = (["c"], ["i"])
    param_names = ("case", "impl")

    def track_cycles(self, case, impl):
        return 1

    track_cycles.version = "1"


class ModelledMove(ModelledCopy):
    pass
"""

    @pytest.fixture
    def suite(self, project):
        folder, hashes = project
        (folder / "benchmarks").mkdir()
        (folder / "benchmarks/__init__.py").write_text("")
        (folder / "benchmarks/bench_x.py").write_text(self.SUITE)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "two ops")
        return folder, [*hashes, git(folder, "rev-parse", "HEAD")]

    def put(self, folder: Path, commit: str, *names: str, machine: str = MACHINE) -> None:
        versions = {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "ascend-model": "7"}
        rows = {name: row([float("nan") if name.endswith("?") else 5.0], (("c",), ("i",))) for name in names}
        rows = {name.rstrip("?"): one for name, one in rows.items()}
        result_file(folder / ".asv/results", commit, rows, machine=machine, versions=versions, name="host-7")
        benchmarks_file(folder / ".asv/results", dict.fromkeys((self.COPY, self.MOVE), "cycles (modelled)"))

    def missing(self, hashes: list[str], *arguments: str, capsys) -> list[int]:
        order = plan("--compiler", "1.2.0", "--last", "3", *arguments, capsys=capsys)["order"]
        return sorted(hashes.index(one["commit"]) for one in order)

    def test_lacks_what_it_was_not_measured_for(self, suite, capsys):
        folder, hashes = suite
        self.put(folder, hashes[9], self.COPY)
        self.put(folder, hashes[10], self.MOVE)
        self.put(folder, hashes[11], self.COPY, self.MOVE)
        assert self.missing(hashes, "--ops", "copy", capsys=capsys) == [10]
        assert self.missing(hashes, "--ops", "move", capsys=capsys) == [9]
        assert self.missing(hashes, "--bench", "Move", capsys=capsys) == [9]
        assert self.missing(hashes, capsys=capsys) == [9, 10]
        # and what came since is seen
        self.put(folder, hashes[9], self.COPY, self.MOVE)
        assert self.missing(hashes, capsys=capsys) == [10]

    def test_does_not_lack_an_op_that_it_does_not_have(self, suite, capsys):
        folder, hashes = suite
        self.put(folder, hashes[9], self.COPY + "?")
        assert self.missing(hashes, "--ops", "copy", capsys=capsys) == [9, 10, 11]
        line = state_line(
            hashes[9], "c", "i", "not run", suite="bench_x.ModelledCopy", reason=ABSENT, machine=MACHINE,
            versions={"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "ascend-model": "7"},
        )  # fmt: skip
        states_file(folder / ".asv/results", hashes[9], [line])
        assert self.missing(hashes, "--ops", "copy", capsys=capsys) == [10, 11]

    def test_on_a_device_an_op_counts_whichever_suite_it_has(self, suite, capsys):
        folder, hashes = suite
        for at, op in ((9, "Copy"), (10, "Move")):
            self.put(folder, hashes[at], f"bench_x.Measured{op}.track_device_time", machine="npu-1")
        arguments = ("--machine", "npu-1", "--ops", "copy")
        assert self.missing(hashes, *arguments, capsys=capsys) == [10, 11]

    def test_names_that_are_none_are_said(self, suite, capsys):
        folder, hashes = suite
        self.put(folder, hashes[9], self.COPY)
        for arguments, words in (
            (("--ops", "cpoy"), "no op is named cpoy; there are copy, move"),
            (("--bench", "Cpoy"), "no benchmark matches 'Cpoy'"),
        ):
            for action in ("plan", "run"):
                assert cli.main(["fleet", action, "--every-commit", *arguments]) == 4, arguments
                assert words in capsys.readouterr().err


class Fake(Simulated):
    """Simulated machines that hand back files as asv writes them: slower from the eighth commit on."""

    def __init__(self, folder, hashes, nodes=2, stop_after=None, offset=0.0, **more):
        super().__init__(nodes, **more)
        self.folder, self.hashes, self.stop_after, self.order = folder, hashes, stop_after, []
        self.offsets = {"node0": offset} if offset else {}

    def start(self, slot, task):
        super().start(slot, task)
        self.order.append(self.hashes.index(task.commit))

    def poll(self, timeout):
        events = super().poll(timeout)
        for at, event in enumerate(events):
            if event.kind == "finished" and not event.outcome.reason:
                if self.stop_after is not None and len(self.order) > self.stop_after:
                    raise KeyboardInterrupt
                events[at] = Event(
                    "finished", event.node, event.slot, event.task, Outcome(3.0, tuple(self.files(event.task)))
                )
        return events

    def files(self, task):
        scratch = self.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        at = self.hashes.index(task.commit)
        results_of(scratch, task.commit, 100.0 if at < 7 else 140.0, task.compiler)
        base = scratch / ".asv/results"
        return [
            (path.relative_to(base).as_posix(), path.read_bytes()) for path in base.rglob("*") if path.is_file()
        ]

    def close(self):
        pass


def fleet_run(monkeypatch, backend, *arguments) -> int:
    monkeypatch.setattr(fleet_command.fleet_cluster, "connect", lambda *_: "")
    monkeypatch.setattr(fleet_command.fleet_cluster, "disconnect", lambda: None)
    monkeypatch.setattr(fleet_command.fleet_cluster, "RayBackend", lambda *_, **__: backend)
    # a look after every result, however long it takes
    monkeypatch.setattr(fleet_command, "LOOK_LEAST", 0.0)
    monkeypatch.setattr(fleet_command, "LOOK_SHARE", float("inf"))
    return cli.main(["fleet", "run", "--every-commit", "--last", "11", "--quiet", "--json", *arguments])


def test_run_goes_on_after_it_was_stopped_and_every_task_is_done_once(project, tmp_path, capsys, monkeypatch):
    folder, hashes = project
    arguments = ("--compiler", "1.1.0", "--compiler", "1.2.0")
    first = Fake(tmp_path, hashes, stop_after=8)
    assert fleet_run(monkeypatch, first, *arguments) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert cli.main(["fleet", "status"]) == 0
    assert capsys.readouterr().out.startswith("stopped (said ")
    second = Fake(tmp_path, hashes)
    assert fleet_run(monkeypatch, second, *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    rows = fleet_command.records(folder / ".asv/results")
    assert sorted((one["commit"], one["compiler"]) for one in rows) == sorted(itertools.product(hashes, COMPILERS))
    assert found["undated"] == 0 and found["failed"] == []
    assert len({one["run"] for one in rows}) == 2
    third = Fake(tmp_path, hashes)
    assert fleet_run(monkeypatch, third, *arguments) == 0 and third.order == []
    capsys.readouterr()
    assert plan(*arguments, capsys=capsys)["missing"] == 0


def test_run_bisects_a_step_that_shows_up_on_the_way(project, tmp_path, capsys, monkeypatch):
    _, hashes = project
    backend = Fake(tmp_path, hashes, nodes=1)
    assert fleet_run(monkeypatch, backend, "--dated", "--compiler", "1.2.0") == 0
    # the newest, the far end, then halves of what lies between 0 and 10 until 6 and 7 are both known
    assert backend.order == [10, 0, 5, 8, 7, 6]
    assert json.loads(capsys.readouterr().out)["undated"] == 0
    # on another compiler nothing is known: it is searched there too
    other = Fake(tmp_path, hashes, nodes=1)
    assert fleet_run(monkeypatch, other, "--dated", "--compiler", "1.1.0") == 0 and other.order == backend.order
    rest = Fake(tmp_path, hashes, nodes=1)
    assert fleet_run(monkeypatch, rest) == 0 and sorted(rest.order) == [1, 2, 3, 4, 9]


def test_a_full_disk_at_the_head_ends_the_run_with_its_name(project, tmp_path, capsys, monkeypatch):
    folder, hashes = project
    puts = itertools.count()
    right = store.LocalObjects.write

    def full(self, name, data):
        if next(puts) > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        right(self, name, data)

    monkeypatch.setattr(store.LocalObjects, "write", full)
    assert fleet_run(monkeypatch, Fake(tmp_path, hashes)) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["done"] >= 3 and "No space left on device" in found["failed"][0]["reason"]
    monkeypatch.setattr(store.LocalObjects, "write", right)
    assert fleet_run(monkeypatch, Fake(tmp_path, hashes)) == 0
    done = [one for one in fleet_command.records(folder / ".asv/results") if one["outcome"] == "done"]
    # the one whose record did not fit any more has its results
    capsys.readouterr()
    assert len(done) >= 10 and plan(capsys=capsys)["missing"] == 0


def test_a_store_elsewhere_gets_everything_and_gives_it_to_another_machine(project, tmp_path, capsys, monkeypatch):
    folder, hashes = project
    assert fleet_run(monkeypatch, Fake(tmp_path, hashes), "--store", str(tmp_path / "store")) == 0
    store.merge_into([], tmp_path / "store")
    here = {path.name: path.read_bytes() for path in (folder / f".asv/results/{MACHINE}").glob("*-host*.json")}
    there = {path.name: path.read_bytes() for path in (tmp_path / f"store/{MACHINE}").glob("*-host*.json")}
    assert here == there and len(here) == 11
    shutil.rmtree(folder / ".asv")
    again = Fake(tmp_path, hashes)
    assert fleet_run(monkeypatch, again, "--store", str(tmp_path / "store")) == 0 and again.order == []


def test_times_of_a_node_with_a_wrong_clock_are_corrected_in_the_results(project, tmp_path, capsys, monkeypatch):
    folder, hashes = project
    backend = Fake(tmp_path, hashes, nodes=1, offset=-3600.0)
    assert fleet_run(monkeypatch, backend) == 0
    for path in (folder / f".asv/results/{MACHINE}").glob("*-host*.json"):
        assert json.loads(path.read_bytes())["results"][MODELLED][3] == 1 + 3_600_000


def test_bad_input_gets_a_sentence_and_exit_code_4(project, capsys, monkeypatch):
    folder, _ = project
    every = ["--every-commit"]
    for arguments, words, code in (
        (["plan", "nowhere", *every], "unknown revision", 4),
        (["plan", "--config", "none.json"], "no none.json here", 4),
        (["plan", "--compiler", "new", *every], "expected a version", 4),
        (["run", "--address", "somewhere", *every], "is no address", 4),
        (["run", "--address", "127.0.0.1:1", *every], "no Ray cluster at 127.0.0.1:1", 4),
        (["run", "--address", "ray://127.0.0.1:1", *every], "no Ray cluster at ray://127.0.0.1:1", 4),
        (["run", "--cores", "0", *every], "above zero", 4),
        (["plan", "--timeout", "0", *every], "above zero", 4),
        (["plan", "--timeout", "nan", *every], "above zero", 4),
        (["plan", "--min-free", "-1", *every], "from zero up", 4),
        (["status"], "no fleet has run", 3),
        (["plan", "--paths", "nothing"], "no commit in that range", 3),
    ):
        assert cli.main(["fleet", *arguments]) == code, arguments
        assert words in capsys.readouterr().err, arguments
    (folder / "asv.conf.json").write_text(json.dumps({"version": 1, "project": "y", "repo": "."}))
    assert cli.main(["fleet", "plan", *every]) == 4
    assert "the work tree has changes (asv.conf.json)" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(project, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert cli.main(["fleet", "run", "--every-commit"]) == 4
    assert "pip install 'ascend-perf[fleet]'" in capsys.readouterr().err


def test_status_of_a_fleet_that_was_killed(project, tmp_path, capsys, monkeypatch):
    folder, hashes = project
    assert fleet_run(monkeypatch, Fake(tmp_path, hashes)) == 0
    capsys.readouterr()
    place = folder / ".asv/results-fleet/status.json"
    said = json.loads(place.read_text())
    assert said["state"] == "finished" and said["done"] == 11
    running = [{"commit": hashes[0], "compiler": "1.2.0", "machine": MACHINE, "slot": "s", "seconds": 2}]
    place.write_text(json.dumps({**said, "state": "running", "running": running, "written": time.time()}))
    assert cli.main(["fleet", "status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "ended before its time" and found["running"] == []
    assert found["waiting"] == said["waiting"] + 1


def test_the_summary_has_the_last_record_of_each_task(project, tmp_path, capsys, monkeypatch):
    folder, hashes = project
    row = {"commit": hashes[3], "compiler": "1.2.0", "machine": MACHINE, "seconds": 1.0}
    rows = [
        {**row, "outcome": "done", "states": {"ok": 5}, "at": 2000},
        {**row, "outcome": "build failed", "states": {"build failed": 1}, "reason": "no compiler", "at": 900},
        {**row, "compiler": "1.1.0", "outcome": "done", "states": {"ok": 2}, "at": 10},
    ]
    place = folder / f".asv/results/fleet/{hashes[3]}.jsonl"
    place.parent.mkdir(parents=True)
    place.write_text("".join(json.dumps(one) + "\n" for one in rows))
    for one in hashes:
        results_of(folder, one, 100)
    assert fleet_run(monkeypatch, Fake(tmp_path, hashes), "--compiler", "1.2.0") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["states"] == {"ok": 7} and found["build_failed"] == []


def test_status_counts_what_is_under_way_and_loses_none(project, tmp_path, capsys, monkeypatch):
    folder, hashes = project
    seen = []

    class Looked(Fake):
        def poll(self, timeout):
            seen.append(json.loads((folder / ".asv/results-fleet/status.json").read_text()))
            return super().poll(timeout)

    assert fleet_run(monkeypatch, Looked(tmp_path, hashes, nodes=2, stop_after=6)) == 130
    # as soon as a task begins, however little happens after that
    counts = [(len(one["running"]), one["waiting"] + len(one["running"]) + one["done"]) for one in seen[2:]]
    assert {under_way for under_way, _ in counts[1:]} == {2} and {total for _, total in counts} == {11}
    last = json.loads((folder / ".asv/results-fleet/status.json").read_text())
    assert last["state"] == "stopped" and last["running"] == [] and last["done"] + last["waiting"] == 11
