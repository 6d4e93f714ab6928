"""Change points, alerts, events: right places on series whose truth is known, and quiet on the others."""

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from asv_files import (
    CASES,
    MEASURED,
    MODELLED,
    VERSIONS,
    benchmarks_file,
    repository,
    result_file,
    row,
    state_line,
    states_file,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import cli
from dashboards.detect import (
    change_points,
    change_points_of,
    estimate_noise,
    newest_alert,
    newest_alerts,
    running_median,
    without_drift,
)
from dashboards.events import BOUNDARY, IMPROVEMENT, REGRESSION, SAME_CODE, STATE, find_events, group_events
from dashboards.results import load

DATA = Path(__file__).parent / "data" / "changepoint"
H = [f"{at:08x}" * 5 for at in range(1, 60)]


def noisy(seed, levels, spread=1.0, rho=0.0):
    """Levels with Gaussian noise of deviation `spread`, correlated by `rho`."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(len(levels))
    for at in range(1, len(levels)):
        noise[at] = rho * noise[at - 1] + math.sqrt(1 - rho * rho) * noise[at]
    return np.asarray(levels, float) + spread * noise


def steps(*pairs):
    return np.concatenate([np.full(count, float(level)) for count, level in pairs])


def indices(values, **options):
    return [one.index for one in change_points(values, **options)]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-3, 3)), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), max_size=8),
)
def test_exact_series_change_exactly_where_they_change(pairs, gaps):
    values = steps(*pairs)
    values[[at for at in gaps if at < len(values)]] = np.nan
    present = [(at, one) for at, one in enumerate(values) if one == one]
    truth = [b[0] for a, b in itertools.pairwise(present) if a[1] != b[1]]
    assert indices(values, deterministic=True) == truth


def test_exact_change_has_exact_size_and_direction():
    (one,) = change_points([1000, 1000, 1001], deterministic=True)
    assert (one.index, one.before, one.after, one.confidence, one.worse) == (2, 1000, 1001, 1.0, True)
    assert one.size == one.low == one.high == pytest.approx(0.001)
    assert not change_points([1000, 1000, 1001], deterministic=True, direction="higher")[0].worse
    assert change_points([1000, 1001], deterministic=True, threshold=0.01) == []
    assert change_points([0, 5], deterministic=True)[0].size == math.inf
    assert change_points([-4.0, -2.0], deterministic=True)[0].size == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_steps_of_many_deviations_are_found_exactly(seed):
    values = noisy(seed, steps((50, 100), (40, 110), (60, 104), (30, 130)))
    found = change_points(values)
    assert [one.index for one in found] == [50, 90, 150]
    assert [one.worse for one in found] == [True, False, True]
    for one, (before, after) in zip(found, [(100, 110), (110, 104), (104, 130)]):
        assert one.low < after / before - 1 < one.high
        assert one.size == pytest.approx(after / before - 1, abs=0.01)
        assert one.confidence > 0.9


def test_sizes_hold_the_truth_as_often_as_they_claim():
    inside = total = 0
    for seed in range(150):
        values = noisy(seed, steps((60, 100), (60, 105)), rho=0.5 if seed % 2 else 0.0)
        for one in change_points(values):
            total += 1
            inside += one.low <= 0.05 <= one.high
    assert total >= 145 and inside / total > 0.95


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_noise_is_estimated_through_steps_and_spikes(rho):
    rows = np.array([noisy(seed, steps((100, 100), (100, 120)), 2.0, rho) for seed in range(60)])
    rng = np.random.default_rng(9)
    rows += 40 * (rng.random(rows.shape) < 0.03)
    noise = estimate_noise(rows)
    assert np.median(noise.sigma) == pytest.approx(2.0, rel=0.12)
    assert np.median(noise.rho) == pytest.approx(rho, abs=0.1)
    assert np.median(noise.spikes) == pytest.approx(0.025, abs=0.012)


def test_running_median_is_the_median_of_the_window():
    values = np.random.default_rng(3).random((2, 11))
    got = running_median(values, 5)
    for series in range(2):
        for at in range(11):
            assert got[series, at] == np.median(values[series, max(0, at - 2) : at + 3])


def test_a_spike_is_no_jump_and_a_slope_no_staircase():
    values = noisy(1, steps((100, 100)))
    values[40] = 300
    values[70] = 20
    assert indices(values) == []
    assert indices(noisy(2, np.linspace(100, 140, 200))) == []


def test_gaps_keep_places():
    values = list(noisy(4, steps((60, 100), (60, 115))))
    for at in (0, 5, 58, 59, 60, 61, 90, 119):
        values[at] = None
    assert indices(values) == [62]


def test_intervals_say_which_points_to_believe():
    values = noisy(5, steps((60, 100), (4, 106)), 1.0)
    tight = np.stack([values - 0.5, values + 0.5], axis=1)
    loose = tight.copy()
    loose[60:] = np.stack([values[60:] - 15, values[60:] + 15], axis=1)
    assert newest_alert(values, intervals=tight).index == 60
    assert newest_alert(values, intervals=loose) is None
    missing = np.full((64, 2), np.nan)
    assert newest_alert(values, intervals=missing) == newest_alert(values)


@pytest.mark.parametrize("factor", [1e-9, 3.0, 1e12])
def test_the_unit_does_not_matter(factor):
    values = noisy(6, steps((70, 100), (50, 105)))
    plain, scaled = change_points(values), change_points(values * factor)
    assert [(one.index, one.worse) for one in plain] == [(one.index, one.worse) for one in scaled]
    assert [one.size for one in scaled] == pytest.approx([one.size for one in plain])
    assert scaled[0].before == pytest.approx(plain[0].before * factor)


def test_many_series_at_once_are_as_one_by_one():
    rng = np.random.default_rng(7)
    rows = np.array([noisy(seed, steps((50, 100), (50, 100 + seed))) for seed in range(8)])
    rows[rng.random(rows.shape) < 0.1] = np.nan
    for single, joint in zip(rows, change_points_of(rows)):
        alone = change_points(single)
        assert [one.index for one in joint] == [one.index for one in alone]
        assert [one.size for one in joint] == pytest.approx([one.size for one in alone])
    for single, alert in zip(rows, newest_alerts(rows)):
        assert (alert is None) == (newest_alert(single) is None)


def test_a_late_or_repeated_commit_moves_no_other_change():
    values = list(noisy(8, steps((60, 100), (60, 110), (60, 100))))
    assert indices(values) == [60, 120]
    for at in (10, 75, 150):
        longer = [*values[:at], values[at], *values[at:]]
        assert indices(longer) == [60 + (at < 60), 120 + (at < 120)]


def test_alert_comes_soon_and_only_for_what_is_new_and_worse():
    reported = []
    for seed in range(20):
        values = noisy(seed, steps((100, 100), (30, 104)))
        first = next((at for at in range(1, 31) if newest_alert(values[: 100 + at])), 99)
        reported.append(first)
        assert newest_alert(values[:100]) is None
    assert np.median(reported) <= 3
    better = noisy(3, steps((100, 100), (10, 90)))
    assert newest_alert(better) is None
    assert newest_alert(better, direction="higher").worse
    assert newest_alert(noisy(3, steps((100, 100), (60, 110)))) is None
    assert newest_alert([5.0, 5.0, 6.0], deterministic=True).index == 2
    assert newest_alert([5.0, 6.0, 6.0], deterministic=True) is None
    assert newest_alert([5.0, 6.0, 5.0], deterministic=True) is None


def test_two_spikes_in_a_spiky_series_raise_no_alert():
    rng = np.random.default_rng(11)
    values = noisy(11, steps((120, 100)))
    values[rng.choice(110, 6, replace=False)] += 20
    values[118:] += 20
    assert newest_alert(values) is None
    plain = noisy(12, steps((118, 100), (2, 120)))
    assert newest_alert(plain).index == 118


@pytest.mark.parametrize("values", [[], [1.0], [None] * 30, [1.0, 2.0, 3.0, 4.0, 5.0], [7.0] * 40, [0.0] * 40])
def test_too_little_to_say_anything(values):
    assert change_points(values) == [] and newest_alert(values) is None


@pytest.mark.parametrize("values", [["a"], [[1, 2], [3, 4]], [1, {}], "12"])
def test_what_is_no_series_is_refused(values):
    with pytest.raises(ValueError):
        change_points(values)
    with pytest.raises(ValueError):
        change_points([1.0, 2.0], intervals=[(1, 2)])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.floats(), st.sampled_from([0.0, 1.0, 1.0, 5e-324, 1e308, -1e308])),
        max_size=60,
    )
)
def test_no_series_makes_it_fall(values):
    for one in change_points(values):
        assert values[one.index] is not None and 0 < one.confidence <= 1
    newest_alert(values)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(15, 85), st.sampled_from([-0.3, 0.15, 0.5]))
def test_a_quantised_clock_does_not_hide_or_invent_steps(seed, place, size):
    rng = np.random.default_rng(seed)
    values = np.round((100 + 0.6 * rng.standard_normal(100)) * (1 + size * (np.arange(100) >= place)))
    assert indices(values) == [place]


def test_published_histories():
    data = json.loads((DATA / "otava" / "tigerbeetle.json").read_text())
    found = change_points(data["series"], direction="higher")
    assert {15, 71, 95} <= {one.index for one in found}
    assert 10 not in {one.index for one in found}
    assert [one.worse for one in found if one.index in (15, 71, 95)] == [True, False, True]


def test_a_control_takes_the_machines_share_out():
    rng = np.random.default_rng(21)
    machine = 1 + 0.03 * rng.standard_normal(120) + 0.1 * (np.arange(120) >= 40)
    control = 50 * machine * (1 + 0.002 * rng.standard_normal(120))
    values = steps((90, 100), (30, 103)) * machine * (1 + 0.002 * rng.standard_normal(120))
    assert 40 in indices(values) and 90 not in indices(values)
    steady = without_drift(values, control)
    assert indices(steady) == [90]
    assert change_points(steady)[0].size == pytest.approx(0.03, abs=0.005)
    # a control that moves on its own is left alone
    alone = 50 * (1 + 0.03 * rng.standard_normal(120))
    assert without_drift(values, alone) is values
    assert without_drift(values, np.full(120, np.nan)) is values
    control[10] = np.nan
    assert without_drift(values, control)[10] == values[10]


# Events of a history of results.


def history(folder, columns, *, codes=None, names=None, cases=CASES, **options):
    """A history with one benchmark: `columns` are flat lists of values, one for each commit."""
    names = names or {MODELLED: "cycles (modelled)"}
    benchmarks_file(folder, names)
    for number, values in enumerate(columns):
        result_file(
            folder,
            H[number],
            {name: row(values, (cases, ("op", "gather_twin"))) for name in names},
            date=number,
            **options,
        )
        lines = []
        for at, value in enumerate(values):
            case, impl = cases[at // 2], ("op", "gather_twin")[at % 2]
            state = "wrong result" if value is None else "ok"
            code = "" if codes is None else codes[number]
            lines.append(
                state_line(H[number], case, impl, state, code=code, reason="differs" if value is None else "")
            )
        states_file(folder, H[number], lines)
    return load(folder, cache=None)


def test_events_of_one_kernel_are_one_event(tmp_path):
    columns = [[100.0, 200.0, 300.0, 400.0]] * 3 + [[110.0, 200.0, 360.0, 400.0]] * 3
    events = find_events(history(tmp_path, columns))
    assert [(one.kind, one.case, one.impl, one.first_bad_at) for one in events] == [
        (REGRESSION, "large", "op", 3),
        (REGRESSION, "small", "op", 3),
    ]
    (group,) = group_events(events)
    assert group.case == "large" and group.size == pytest.approx(0.2) and len(group.members) == 1
    assert (group.last_good, group.first_bad, group.recovered) == (H[2], H[3], None)
    assert group.alarm and group.open and len(group.series_rows) == 2


def test_recovered_regressions_stay_and_improvements_are_events(tmp_path):
    columns = [[100.0] * 4] * 2 + [[150.0] * 4] * 2 + [[101.0] * 4] * 2
    events = [one for one in find_events(history(tmp_path, columns)) if one.impl == "op" and one.case == "small"]
    assert [(one.kind, one.first_bad_at, one.recovered) for one in events] == [
        (REGRESSION, 2, H[4]),
        (IMPROVEMENT, 4, None),
    ]


def test_a_twin_is_information_and_never_an_alarm(tmp_path):
    columns = [[100.0, 100.0, 5.0, 5.0], [100.0, 150.0, 5.0, None]]
    events = find_events(history(tmp_path, columns))
    assert {(one.kind, one.role, one.alarm) for one in events} == {
        (REGRESSION, "twin", False),
        (STATE, "twin", False),
    }


def test_a_state_is_one_event_for_all_metrics(tmp_path):
    other = MODELLED.replace("cycles", "dmas")
    names = {MODELLED: "cycles (modelled)", other: "DMAs (modelled)"}
    columns = [[1.0] * 4, [None, 1.0, 1.0, 1.0], [None, 1.0, 1.0, 1.0], [1.0] * 4]
    (event,) = find_events(history(tmp_path, columns, names=names))
    assert (event.kind, event.state_before, event.state_after) == (STATE, "ok", "wrong result")
    assert (event.last_good, event.first_bad, event.recovered) == (H[0], H[1], H[3])
    assert event.cause == "differs" and event.alarm


def test_same_compiled_code_with_another_number_is_not_the_commit(tmp_path):
    columns = [[100.0] * 4, [110.0] * 4, [120.0] * 4]
    events = find_events(history(tmp_path, columns, codes=["a", "a", "b"]))
    assert {(one.first_bad_at, one.kind, one.alarm and one.role == "op") for one in events} == {
        (1, SAME_CODE, False),
        (2, REGRESSION, False),
        (2, REGRESSION, True),
    }


def test_measured_jump_belongs_to_the_commit_that_changed_the_code(tmp_path):
    rng = np.random.default_rng(1)
    names = {MODELLED: "cycles (modelled)", MEASURED: "us"}
    times = 100 + rng.standard_normal((40, 4)) + 2 * (np.arange(40) >= 22)[:, None]
    columns = [[round(float(one), 3) for one in values] for values in times]
    codes = ["a"] * 22 + ["b"] * 18
    found = history(tmp_path, columns, codes=codes, names=names)
    events = [one for one in find_events(found) if one.metric == "device_time"]
    assert events and {one.first_bad_at for one in events} == {22}
    assert {one.kind for one in events} == {REGRESSION}
    same = history(tmp_path / "same", columns, codes=["a"] * 40, names=names)
    assert {one.kind for one in find_events(same) if one.metric == "device_time"} == {SAME_CODE}


def test_host_time_is_the_commits_doing_even_with_the_same_compiled_code(tmp_path):
    host = MEASURED.replace("device_time", "host_time")
    names = {MODELLED: "cycles (modelled)", MEASURED: "us", host: "us"}
    rng = np.random.default_rng(3)
    times = 100 + rng.standard_normal((40, 4)) + 20 * (np.arange(40) >= 25)[:, None]
    found = history(tmp_path, times.tolist(), codes=["a"] * 40, names=names)
    kinds = {(one.metric, one.kind) for one in find_events(found) if not one.modelled}
    assert kinds == {("host_time", REGRESSION), ("device_time", SAME_CODE)}


def test_a_machine_that_slowed_down_is_seen_in_the_control(tmp_path):
    rng = np.random.default_rng(2)
    names = {MODELLED: "cycles (modelled)", MEASURED: "us"}
    machine = 1 + 0.02 * rng.standard_normal(60) + 0.15 * (np.arange(60) >= 20)
    op = np.where(np.arange(60) >= 45, 104.0, 100.0)
    columns = [[round(one * m, 4), round(200 * m, 4), 1.0, 1.0] for one, m in zip(op, machine)]
    benchmarks_file(tmp_path, names)
    commits = [f"{at:08x}" * 5 for at in range(1, 61)]
    for number, (commit, values) in enumerate(zip(commits, columns)):
        result_file(tmp_path, commit, {name: row(values) for name in names}, date=number)
        codes = [("op", "new" if number >= 45 else "old"), ("gather_twin", "same")]
        states_file(tmp_path, commit, [state_line(commit, "small", impl, code=code) for impl, code in codes])
    events = [one for one in find_events(load(tmp_path, cache=None)) if one.metric == "device_time"]
    assert [(one.first_bad_at, one.kind) for one in events if one.impl == "op"] == [(45, REGRESSION)]
    assert {one.kind for one in events if one.impl == "gather_twin"} == {SAME_CODE}


def test_another_compiler_is_a_boundary_and_not_a_regression(tmp_path):
    benchmarks_file(tmp_path, {MODELLED: "cycles (modelled)"})
    newer = {**VERSIONS, "ascendnpu-ir": "1.3.0"}
    for number in range(6):
        versions = VERSIONS if number < 3 else newer
        result_file(
            tmp_path, H[number], {MODELLED: row([100.0 + 50 * (number >= 3)] * 4)}, date=number, versions=versions
        )
    events = find_events(load(tmp_path, cache=None))
    assert {one.kind for one in events} == {BOUNDARY} and not any(one.alarm for one in events)
    assert events[0].cause == "ascendnpu-ir 1.2.0 -> 1.3.0" and events[0].size == pytest.approx(0.5)


def test_thresholds_by_benchmark(tmp_path):
    found = history(tmp_path, [[100.0] * 4, [101.0] * 4])
    assert len(find_events(found)) == 4
    assert find_events(found, thresholds={"*": 0.02}) == []
    assert len(find_events(found, thresholds={"*": 0.02, "*.track_cycles": 0.005})) == 4


# The command.


def command(capsys, *arguments):
    code = cli.main(["detect", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_command_reads_json_and_csv(tmp_path, capsys):
    values = [*noisy(1, steps((40, 10), (40, 12)), 0.05)]
    (tmp_path / "a.json").write_text(json.dumps(values))
    code, out, _ = command(capsys, tmp_path / "a.json")
    (one,) = json.loads(out)
    assert code == 0 and one["index"] == 40 and one["size"] == pytest.approx(0.2, abs=0.01)
    (tmp_path / "a.csv").write_text("commit,time\n" + "".join(f"{at},{one}\n" for at, one in enumerate(values)))
    assert json.loads(command(capsys, tmp_path / "a.csv", "--column", "time")[1])[0]["index"] == 40
    assert json.loads(command(capsys, tmp_path / "a.csv", "--column", "2")[1])[0]["index"] == 40
    assert json.loads(command(capsys, tmp_path / "a.json", "--threshold", "30")[1]) == []
    (tmp_path / "b.json").write_text("[5, 5, null, 6]")
    assert json.loads(command(capsys, tmp_path / "b.json", "--deterministic", "--newest")[1])[0]["index"] == 3


def test_command_reads_a_results_folder(tmp_path, capsys):
    history(tmp_path, [[100.0] * 4, [100.0, 100.0, 100.0, 0.0], [100.0] * 4])
    code, out, _ = command(capsys, tmp_path)
    (one,) = json.loads(out)
    assert code == 0 and one["params"] == ["large", "gather_twin"]
    assert [(c["index"], c["commit"], c["size"]) for c in one["change_points"]] == [
        (1, H[1], -1.0),
        (2, H[2], None),
    ]


def test_command_takes_the_order_of_the_repository_around_a_results_folder(tmp_path, capsys):
    """Commits of one second, as a rebase makes them, have no order of their own."""
    repo = tmp_path / "repo"
    hashes = repository(repo, [f"commit {at}" for at in range(8)])
    results = repo / ".asv/results"
    for at, one in enumerate(hashes):
        result_file(results, one, {MODELLED: row([100.0 if at < 5 else 120.0], (("c",), ("i",)))}, date=1000)
    benchmarks_file(results, {MODELLED: "cycles (modelled)"})
    for more in ((), ("--repo", repo)):
        code, out, err = command(capsys, results, *more)
        (one,) = json.loads(out)
        assert code == 0 and [point["commit"] for point in one["change_points"]] == [hashes[5]] and not err
    # elsewhere there is none, and that is said
    shutil.copytree(results, tmp_path / "elsewhere")
    code, _, err = command(capsys, tmp_path / "elsewhere")
    assert code == 0 and "in the order of their dates; --repo" in err


def test_command_refuses_options_that_results_have_no_use_for(tmp_path, capsys):
    history(tmp_path, [[100.0] * 4, [120.0] * 4])
    for option in ("--newest", "--deterministic", "--column=x", "--direction=lower", "--confidence=0.9"):
        code, out, err = command(capsys, tmp_path, option)
        assert code == 4 and "goes with a file of values" in err and not out, option


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "empty"),
        (b"{}", "a JSON list"),
        (b"[1, 2", "not JSON"),
        (b'[1, "2"]', "entry 1 is no number"),
        (b"[true]", "entry 0 is no number"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a,b\n1,2\n", "2 columns"),
        (b"a\n1\nx\n", "line 3 is no number"),
    ],
)
def test_command_refuses_what_it_cannot_read(tmp_path, capsys, content, reason):
    (tmp_path / "f").write_bytes(content)
    code, out, err = command(capsys, tmp_path / "f")
    assert code == 4 and reason in err and not out


def test_command_refuses_odd_options(tmp_path, capsys):
    (tmp_path / "f").write_text("[1, 2]")
    assert command(capsys, tmp_path / "missing")[0] == 4
    assert command(capsys, tmp_path / "f", "--confidence", "2")[0] == 4
    assert command(capsys, tmp_path / "f", "--threshold", "x")[0] == 4
    assert command(capsys, tmp_path / "f", "--direction", "up")[0] == 4
