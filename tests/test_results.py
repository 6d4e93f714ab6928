"""The loader: what asv writes comes back as it was, and nothing damaged is lost in silence."""

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from asv_files import (
    MEASURED,
    MODELLED,
    VERSIONS,
    benchmarks_file,
    git,
    repository,
    result_file,
    row,
    state_line,
    states_file,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import results
from dashboards.repository import RepositoryError, resolve
from dashboards.results import NO_REASON, History, ResultsError, load
from dashboards.series import STATES, direction_of, unquote

H = [f"{at:08x}" * 5 for at in range(1, 60)]
NAN = math.nan


def reasons(history: History) -> str:
    return "\n".join(f"{one.path}: {one.reason}" for one in history.problems)


def find(history: History, case: str, impl: str = "op", benchmark: str = MODELLED) -> int:
    rows = [
        at
        for at, one in enumerate(history.series)
        if (one.benchmark, one.case, one.impl) == (benchmark, case, impl)
    ]
    assert len(rows) == 1, rows
    return rows[0]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "results"
    benchmarks_file(place, {MODELLED: "cycles (modelled)", MEASURED: "us"})
    return place


def test_values_intervals_and_samples(folder):
    line = row(
        [1.5, 2, None, NAN], low=[1.4, None, None, None], high=[1.6, None, None, None], repeat=[7, 1, None, None]
    )
    result_file(folder, H[0], {MEASURED: line})
    history = load(folder, cache=None)
    assert [one.params for one in history.series] == [
        ("small", "op"), ("small", "gather_twin"), ("large", "op"), ("large", "gather_twin"),
    ]  # fmt: skip
    np.testing.assert_array_equal(history.value[:, 0], [1.5, 2, NAN, NAN])
    np.testing.assert_array_equal(history.low[:, 0], [1.4, NAN, NAN, NAN])
    np.testing.assert_array_equal(history.high[:, 0], [1.6, NAN, NAN, NAN])
    assert history.samples[:, 0].tolist() == [7, 1, 0, 0]
    assert [history.state_name(at, 0) for at in range(4)] == [
        "ok",
        "ok",
        "crashed or timed out",
        "not run",
    ]
    assert history.detail(2, 0).reason == NO_REASON
    series = history.series[0]
    assert (series.op, series.metric, series.unit, series.direction) == ("assign", "device_time", "us", "lower")
    assert series.environment.get("ascendnpu-ir") == "1.2.0"
    assert not history.problems


def test_a_file_written_by_asv_itself(folder):
    asv = pytest.importorskip("asv.results")
    machine = {"machine": "ci", "cpu": "c", "os": "o", "arch": "a", "num_cpu": "1", "ram": "1"}
    one = asv.Results({**machine, "python": "3.11"}, {"triton-ascend": "3.2.0"}, H[0], 5, "3.11", "host", {})

    class Outcome:
        result = (3.0, 4.0)
        samples = ([3.0, 3.1, 2.9], None)
        number = (1, None)
        stderr = errcode = profile = None

    one.add_result({"name": "bench.MeasuredX.track_t", "version": "9", "params": [["'a'", "'b'"]]}, Outcome)
    (folder / "ci").mkdir()
    one.save(str(folder))
    history = load(folder, cache=None)
    assert history.value[:, 0].tolist() == [3.0, 4.0]
    assert history.low[0, 0] < 3.0 < history.high[0, 0]
    assert history.samples[0, 0] == 3
    assert history.series[0].version == "9"
    assert history.commits[0].hash == H[0]


def test_states_come_from_the_sidecar_and_the_last_line_wins(folder):
    result_file(folder, H[0], {MODELLED: row([None, 5.0, 6.0, NAN])})
    states_file(
        folder,
        H[0],
        [
            state_line(H[0], "small", "op", "compile failed", reason="first try"),
            state_line(H[0], "small", "op", "wrong result", reason="3 of 8 differ", findings=["race in UB"]),
            state_line(H[0], "large", "op", "wrong result"),
            state_line(H[0], "large", "gather_twin", "unsupported here", reason="no float8"),
            state_line(H[0], "small", "gather_twin", "ok", code="ab12"),
        ],
    )
    history = load(folder, cache=None)
    small, large = find(history, "small"), find(history, "large")
    assert history.state_name(small, 0) == "wrong result"
    assert history.detail(small, 0).reason == "3 of 8 differ"
    assert history.detail(small, 0).findings == ("race in UB",)
    # a wrong kernel never gets a timing point, whatever the result file holds
    assert history.state_name(large, 0) == "wrong result" and math.isnan(history.value[large, 0])
    assert history.code_hash(find(history, "small", "gather_twin"), 0) == "ab12"
    assert history.role(find(history, "small", "gather_twin")) == "twin"
    assert history.role(small) == "op"


def test_no_number_is_unsupported_only_where_a_verdict_says_so(folder):
    other = "bench_model.ScalarLoops.track_ops_per_second"
    result_file(folder, H[0], {MODELLED: row([NAN] * 4), MEASURED: row([NAN] * 4), other: row([NAN] * 4)})
    states_file(
        folder,
        H[0],
        [
            state_line(H[0], "small", "op", "unsupported here", reason="no float8"),
            state_line(H[0], "large", "op", "ok"),
        ],
    )
    history = load(folder, cache=None)
    told = {case: history.state_name(find(history, case), 0) for case in ("small", "large")}
    assert told == {"small": "unsupported here", "large": "not run"}
    assert history.state_name(find(history, "small", "gather_twin"), 0) == "not run"
    assert history.state_name(find(history, "small", benchmark=MEASURED), 0) == "not run"
    # what asv skipped of a benchmark that has no verdicts
    assert history.state_name(find(history, "small", benchmark=other), 0) == "unsupported here"


def test_the_role_is_that_of_the_newest_line_that_names_one(folder):
    for commit, role in zip(H, ("other", "")):
        result_file(folder, commit, {MODELLED: row([1.0] * 4)})
        states_file(folder, commit, [state_line(commit, role=role)])
    history = load(folder, cache=None)
    assert history.role(find(history, "small")) == "other"


def test_a_verdict_ok_does_not_turn_a_failed_metric_into_a_value(folder):
    result_file(folder, H[0], {MODELLED: row([None, 1.0, 1.0, 1.0])})
    states_file(folder, H[0], [state_line(H[0])])
    history = load(folder, cache=None)
    assert history.state_name(find(history, "small"), 0) == "crashed or timed out"


@pytest.mark.parametrize("line", ['{"version":1', "[]", "null", '{"version":7}', "\x00\x01", "{}", '{"a":' * 5000])
def test_damaged_sidecar_lines_are_named_and_the_others_kept(folder, line):
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    states_file(
        folder, H[0], [line, state_line(H[0], state="wrong result"), state_line(H[0], "large", state="fine")]
    )
    history = load(folder, cache=None)
    assert history.state_name(find(history, "small"), 0) == "wrong result"
    assert "line 1 skipped" in reasons(history) and "line 3 skipped: unknown state" in reasons(history)


def test_environments_machines_and_versions_are_series_of_their_own(folder):
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    result_file(
        folder, H[0], {MODELLED: row([2.0] * 4)}, versions={**VERSIONS, "ascendnpu-ir": "1.1.0"}, name="old"
    )
    result_file(folder, H[0], {MODELLED: row([3.0] * 4)}, machine="npu")
    result_file(folder, H[1], {MODELLED: row([4.0] * 4, version="2")})
    states_file(
        folder, H[0], [state_line(H[0], state="wrong result", versions={**VERSIONS, "ascendnpu-ir": "1.1.0"})]
    )
    history = load(folder, cache=None)
    assert len(history.series) == 16 and history.machines == ("ci", "npu")
    got = {
        (one.machine, one.environment.get("ascendnpu-ir"), one.version): history.state_name(at, 0)
        for at, one in enumerate(history.series)
        if one.params == ("small", "op")
    }
    assert got == {
        ("ci", "1.2.0", "1"): "ok",
        ("ci", "1.1.0", "1"): "wrong result",
        ("npu", "1.2.0", "1"): "ok",
        ("ci", "1.2.0", "2"): "not run",
    }


def test_repeated_commits_the_later_run_wins(folder):
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)}, date=10, name="a", env_name="host")
    result_file(folder, H[0], {MODELLED: row([2.0] * 4)}, date=20, name="0", env_name="host")
    history = load(folder, cache=None)
    assert history.value[:, 0].tolist() == [2.0] * 4 and len(history.commits) == 1


def test_first_parent_order_with_merges_and_clocks_that_run_backwards(tmp_path, folder):
    repo = tmp_path / "repo"
    first = repository(repo, ["one", "two"], [2_000_000_000, 1_500_000_000])
    git(repo, "checkout", "-q", "-b", "side")
    git(repo, "commit", "-q", "--allow-empty", "-m", "side", date=2_100_000_000)
    side = git(repo, "rev-parse", "HEAD")
    git(repo, "checkout", "-q", "main")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge", "side", date=1_000_000_000)
    merge = git(repo, "rev-parse", "HEAD")
    for number, commit in enumerate([*first, side, merge]):
        result_file(folder, commit, {MODELLED: row([float(number)] * 4)}, date=9_999 - number)
    history = load(folder, repo, cache=None)
    assert [one.hash for one in history.commits] == [*first, merge]
    assert [one.subject for one in history.commits] == ["one", "two", "merge"]
    assert history.value[0].tolist() == [0.0, 1.0, 3.0]
    assert history.order == "first parent"
    assert f"commit {side[:12]} is not on the first-parent line" in reasons(history)
    assert history.beside == (side,)
    through = load(folder, repo, base=first[1], head=side, cache=None)
    assert [one.hash for one in through.commits] == [*first, side]


def test_commits_that_were_reset_away_are_one_problem(tmp_path, folder):
    hashes = repository(tmp_path / "repo", ["one"])
    for commit in (*hashes, *H):
        result_file(folder, commit, {MODELLED: row([1.0] * 4)})
        states_file(folder, commit, [state_line(commit)])
    history = load(folder, tmp_path / "repo", cache=None)
    [problem] = [one for one in history.problems if "first-parent" in one.reason]
    assert problem.path == f"{2 * len(H)} files" and set(history.beside) == set(H)
    named = ", ".join(one[:12] for one in H[:6])
    more = f" and {len(H) - 6} more" if len(H) > 6 else ""
    assert problem.reason == f"commits {named}{more} are not on the first-parent line that is shown"


def test_unknown_commits_and_shallow_clones_are_named(tmp_path, folder):
    repo = tmp_path / "repo"
    hashes = repository(repo, ["one", "two", "three"])
    for commit in [*hashes, H[5]]:
        result_file(folder, commit, {MODELLED: row([1.0] * 4)})
    assert f"commit {H[5][:12]} is not" in reasons(load(folder, repo, cache=None))
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "clone", "-q", "--depth", "1", f"file://{repo}", str(clone / "c"))
    history = load(folder, clone / "c", cache=None)
    assert [one.hash for one in history.commits] == hashes[-1:]
    assert "the clone is shallow" in reasons(history)
    with pytest.raises(RepositoryError, match="shallow"):
        resolve(clone / "c", hashes[0])


@pytest.mark.parametrize(
    "revision", ["nothing", "--all", "-h", "", "a\0b", "HEAD --exec=x", "HEAD^{tree}", "../x"]
)
def test_odd_revisions_are_refused(tmp_path, revision):
    repository(tmp_path / "repo", ["one"])
    with pytest.raises(RepositoryError):
        resolve(tmp_path / "repo", revision)


def test_a_folder_that_is_no_repository(tmp_path, folder):
    with pytest.raises(RepositoryError):
        load(folder, tmp_path / "nothing", cache=None)
    with pytest.raises(ResultsError, match="no results folder"):
        load(tmp_path / "nothing", cache=None)


def test_hostile_repositories_run_nothing(tmp_path):
    repo = tmp_path / "repo"
    repository(repo, ["$(touch pwned) `x` \x1b[31m <script>"])
    mark = tmp_path / "ran"
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "gpg.program", "core.pager", "diff.external"):
        git(repo, "config", key, str(program))
    git(repo, "config", "log.showSignature", "true")
    from dashboards.repository import first_parents

    assert len(first_parents(repo)) == 1 and not mark.exists()


CONTENTS = {
    "empty": (b"", "empty"),
    "cut off": (b'{"commit_hash": "00', "not JSON"),
    "not JSON": (b"<html>", "not JSON"),
    "not UTF-8": (b"\xff\xfe\x00{", "not JSON"),
    "a list": (b"[1, 2]", "not an asv result file"),
    "nothing in it": (b"{}", "result version None"),
    "deep": (b"[" * 100_000, "not JSON"),
    "version 1": (b'{"version": 1}', "result version 1"),
    "version 3": (b'{"version": 3}', "result version 3"),
    "no commit": (b'{"version": 2, "params": {}}', "not an asv result file"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_that_cannot_be_used_are_named_and_the_rest_is_read(folder, name):
    content, reason = CONTENTS[name]
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    (folder / "ci" / "bad.json").write_bytes(content)
    history = load(folder, cache=None)
    assert history.value.shape == (4, 1)
    assert [one.path for one in history.problems] == ["ci/bad.json"]
    assert reason in history.problems[0].reason


@pytest.mark.parametrize(
    "field, value, reason",
    [
        ("commit_hash", "../../etc/passwd", "commit_hash"),
        ("commit_hash", H[0][:8], "commit_hash"),
        ("commit_hash", 7, "commit_hash"),
        ("params", None, "not an asv result file"),
        ("params", {"machine": "other"}, "in the folder of 'ci'"),
        ("results", [], "no results"),
        ("result_columns", ["x"], "no result or params column"),
        ("requirements", [1], "not an asv result file"),
    ],
)
def test_fields_of_the_wrong_kind(folder, field, value, reason):
    path = result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    history = load(folder, cache=None)
    assert not history.series and reason in reasons(history)


@pytest.mark.parametrize(
    "bad, reason",
    [
        ("text", "is not a row"),
        ([[1.0], [["'a'", "'b'"]], "1"], "another number of results"),
        ([[1.0], "params", "1"], "parameters are no lists"),
        ([{"x": 1}, [], "1"], "another number of results"),
    ],
)
def test_rows_of_the_wrong_kind_cost_only_themselves(folder, bad, reason):
    result_file(folder, H[0], {"bench_x.Y.track_z": bad, MODELLED: row([1.0] * 4)})
    history = load(folder, cache=None)
    assert len(history.series) == 4 and reason in reasons(history)


@pytest.mark.parametrize("value", ["12", True, [1.0], {"a": 1}, math.inf, -math.inf, 10**400])
def test_values_that_are_no_finite_numbers(folder, value):
    result_file(folder, H[0], {MODELLED: row([value, 2.0, 3.0, 4.0])})
    history = load(folder, cache=None)
    assert history.state_name(0, 0) == "crashed or timed out" and math.isnan(history.value[0, 0])
    assert history.value[1:, 0].tolist() == [2.0, 3.0, 4.0]
    assert "not a finite number" in reasons(history)


def test_a_benchmark_that_failed_as_a_whole(folder):
    result_file(folder, H[0], {MODELLED: row(None)})
    history = load(folder, cache=None)
    assert [history.state_name(at, 0) for at in range(4)] == ["crashed or timed out"] * 4


def test_a_million_benchmarks_are_refused_with_a_reason(folder):
    names = ",".join(f'"b{at}":[]' for at in range(1_000_000))
    path = result_file(folder, H[0], {})
    path.write_text(path.read_text().replace('"results": {}', '"results": {' + names + "}"))
    axis = [str(at) for at in range(1000)]
    result_file(folder, H[1], {"bench.X.track_y": row([1.0], [axis, axis]), MODELLED: row([1.0] * 4)})
    history = load(folder, cache=None)
    assert "1000000 benchmarks" in reasons(history) and "1000000 results" in reasons(history)
    assert len(history.series) == 4


HOSTILE = ["<script>alert(1)</script>", "a|b`c`", "../../x", "\x1b[2J", "\u202eevil", "x" * 900, "日本", "'; DROP"]


def test_hostile_names_are_only_text(folder):
    line = row([1.0] * len(HOSTILE), [HOSTILE, ["op"]])
    result_file(folder, H[0], {"bench_<b>.Modelled$(x).track_`y`": line, "n" * 5000: row([1.0] * 4)})
    history = load(folder, cache=None)
    assert [one.case for one in history.series] == HOSTILE
    assert "is not a row" in reasons(history)


def test_damaged_or_missing_list_of_benchmarks(folder):
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    for content in (b"", b"[]", b'{"version": 1}', None):
        if content is None:
            (folder / "benchmarks.json").unlink()
        else:
            (folder / "benchmarks.json").write_bytes(content)
        history = load(folder, cache=None)
        assert "units" in reasons(history)
        assert history.series[0].param_names == ("case", "impl") and history.series[0].modelled


def test_what_is_worse_is_known_without_the_list_of_benchmarks(folder):
    names = {
        "bench_x.ModelledCopy.track_cycles": ("cycles (modelled)", "lower"),
        "bench_x.ModelledCopy.track_double_buffers": ("buffers (modelled)", "higher"),
        "bench_x.MeasuredCopy.track_device_time_cold": ("us", "lower"),
        "bench_x.ScalarLoops.track_speed": ("", "lower"),
    }
    result_file(folder, H[0], {name: row([1.0] * 4) for name in names})
    (folder / "benchmarks.json").write_bytes(b"")
    found = {one.benchmark: (one.unit, direction_of(one.unit)) for one in load(folder, cache=None).series}
    assert found == names


def test_unreadable_and_linked_files(folder, tmp_path):
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    (folder / "ci" / "gone.json").symlink_to(tmp_path / "nothing")
    (folder / "elsewhere").symlink_to(folder / "ci")
    history = load(folder, cache=None)
    assert len(history.series) == 4
    assert [one.path for one in history.problems] == ["ci/gone.json"]


def same(one: History, other: History) -> None:
    for name in ("value", "low", "high", "samples", "state"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.commits == other.commits and one.series == other.series and one.problems == other.problems
    cells = [(row, at) for row in range(len(one.series)) for at in range(len(one.commits))]
    assert [one.code_hash(*cell) for cell in cells] == [other.code_hash(*cell) for cell in cells]
    assert [one.detail(*cell) for cell in cells] == [other.detail(*cell) for cell in cells]


def test_the_cache_gives_the_same_history_and_reads_only_what_is_new(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    for number, commit in enumerate(H[:5]):
        result_file(folder, commit, {MODELLED: row([number, None, NAN, 1.0])}, date=number)
        states_file(folder, commit, [state_line(commit, code=f"c{number}", findings=["f"]), "broken"])
    same(load(folder, cache=cache), load(folder, cache=None))
    parsed = []
    plain = results._parse_result

    def counted(store, one, content):
        parsed.append(one.path)
        plain(store, one, content)

    monkeypatch.setattr(results, "_parse_result", counted)
    same(load(folder, cache=cache), load(folder, cache=None))
    assert len(parsed) == 5  # those of the load without a cache
    parsed.clear()
    changed = result_file(folder, H[2], {MODELLED: row([77.0, None, NAN, 1.0])}, date=2)
    added = result_file(folder, H[5], {MEASURED: row([1.0] * 4)}, date=5)
    (folder / "ci" / f"{H[0][:8]}-host.json").unlink()
    history = load(folder, cache=cache)
    assert sorted(parsed) == sorted(f"ci/{path.name}" for path in (changed, added))
    same(history, load(folder, cache=None))
    assert 77.0 in history.value


def test_a_rewritten_file_with_the_same_size_and_time_is_seen_by_its_inode_change(folder, tmp_path):
    cache = tmp_path / "cache"
    path = result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    load(folder, cache=cache)
    facts = path.stat()
    path.write_text(path.read_text().replace("1.0", "2.0"))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert load(folder, cache=cache).value[0, 0] == 2.0


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "object"])
def test_a_damaged_cache_is_only_slower(folder, tmp_path, damage):
    cache = tmp_path / "cache"
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    load(folder, cache=cache)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    if damage == "object":
        np.savez(path, header=np.array([{"a": 1}], dtype=object))
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "noise": b"\x00" * 99, "empty": b""}[damage])
    assert load(folder, cache=cache).value[:, 0].tolist() == [1.0] * 4


def test_a_cache_that_cannot_be_written_is_named(folder, tmp_path):
    result_file(folder, H[0], {MODELLED: row([1.0] * 4)})
    (tmp_path / "file").write_text("")
    history = load(folder, cache=tmp_path / "file" / "cache")
    assert "cache not written" in reasons(history) and len(history.series) == 4


def test_an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    history = load(tmp_path / "empty", cache=None)
    assert history.value.shape == (0, 0) and history.commits == ()


CELL = st.one_of(
    st.none(), st.just(NAN), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**60), 2**60)
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(CELL, min_size=4, max_size=4), min_size=1, max_size=5))
def test_any_table_of_values_comes_back(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("results")
    benchmarks_file(folder, {MODELLED: "cycles (modelled)"})
    for number, values in enumerate(table):
        result_file(folder, H[number], {MODELLED: row(values)}, date=number)
    history = load(folder, cache=None)
    for column, values in enumerate(table):
        for at, one in enumerate(values):
            got = history.value[at, column]
            if one is None:
                assert history.state_name(at, column) == "crashed or timed out"
            elif one != one:
                assert history.state_name(at, column) == "not run"
            else:
                assert got == float(one)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_loader_fall(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("results")
    (folder / "ci").mkdir()
    (folder / "states").mkdir()
    (folder / "ci" / "x.json").write_bytes(content)
    (folder / "states" / f"{H[0]}.jsonl").write_bytes(content)
    history = load(folder, cache=None)
    assert "ci/x.json" in reasons(history)


def test_units_that_are_better_high():
    assert [direction_of(unit) for unit in ("us", "cycles (modelled)", "GB/s", "TB/s (modelled)")] == [
        "lower", "lower", "higher", "higher",
    ]  # fmt: skip
    assert direction_of("fraction of roof") == "higher" and direction_of("") == "lower"
    assert len(STATES) == 7


def test_parameters_are_unquoted_only_when_they_are_strings():
    assert [unquote(one) for one in ("'a'", '"b"', "1", "'it''s", "None", "'\\n'", "")] == [
        "a", "b", "1", "'it''s", "None", "\n", "",
    ]  # fmt: skip


@pytest.mark.slow
def test_1600_series_of_1000_commits_fit_in_memory(tmp_path):
    folder = tmp_path / "results"
    names = [f"bench_x.MeasuredOp{at}.track_t" for at in range(80)]
    benchmarks_file(folder, dict.fromkeys(names, "us"))
    axes = [[f"case{at}" for at in range(10)], ["op", "twin"]]
    rng = np.random.default_rng(1)
    for number in range(1000):
        values = rng.random((80, 20)).tolist()
        lines = {name: row(one, axes, low=one, high=one) for name, one in zip(names, values)}
        result_file(folder, f"{number:040x}"[::-1], lines, date=number)
    script = (
        # ru_maxrss would start at what the forking process had.
        "import re, sys; from dashboards.results import load; h = load(sys.argv[1], cache=sys.argv[2]);"
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read());"
        "print(h.value.shape, int(peak[1]) // 1024)"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder), str(tmp_path / "cache")],
            capture_output=True,
            text=True,
            check=True,
        )
        shape, _, megabytes = done.stdout.strip().rpartition(" ")
        assert shape == "(1600, 1000)" and int(megabytes) < 500
