"""Noise floors, marked runs, shifts of a whole run and spikes: what the gate may call on measured series.

The noise is that of `measured_runs`; a gate without these checks raises false alarms on it, as a test shows.
"""

import json
import math

import measured_runs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import check as gate
from dashboards.check import SUSPECT, check
from dashboards.events import REGRESSION
from dashboards.results import load
from dashboards.series import Series
from dashboards.trust import SIGMAS, noise_floors

RUNS = 13
HASHES = [f"{at:08x}" + "ab" * 16 for at in range(1, RUNS + 1)]
LAST = RUNS - 1
STEP = {(LAST, "gather", case, "op"): 1.05 for case in measured_runs.CASES}


def report(folder, base=None, **noise):
    measured_runs.write(folder, HASHES, **noise)
    return check(load(folder, cache=None), HASHES[-1], base)


def alarms(found):
    return [one.title for one in found.findings if one.alarm]


@pytest.mark.parametrize("base", [None, HASHES[-2]], ids=["history", "base"])
@pytest.mark.parametrize(
    "noise",
    [
        {},
        {"spikes": 0.0},
        {"clock": {LAST: 0.97}},
        {"clock": {LAST: 0.97}, "clock_known": False},
        {"clock": {5: 0.95, 6: 0.95}, "clock_known": False},
    ],
    ids=["heavy tails", "calm", "clock step", "clock step nobody reads", "clock down and up again"],
)
def test_the_same_code_measured_again_raises_no_alarm_in_a_hundred_comparisons(tmp_path, noise, base):
    found = report(tmp_path, base, seed=len(noise) + 1, **noise)
    assert found.compared >= 100
    assert alarms(found) == [] and found.exit_code == 0


def test_without_the_shift_of_a_run_taken_out_the_same_noise_does_raise_alarms(tmp_path, monkeypatch):
    noise = {"clock": {LAST: 0.97}, "clock_known": False, "seed": 1, "spikes": 0.0}
    assert alarms(report(tmp_path / "with", **noise)) == []
    monkeypatch.setattr(gate, "without_shifts", lambda history, rows, values: (values, []))
    assert len(alarms(report(tmp_path / "without", **noise))) > 20


def test_without_the_spikes_of_other_series_the_same_noise_does_raise_alarms(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(gate, "BY_CHANCE", math.inf)
    for seed in range(6):
        found += alarms(report(tmp_path / str(seed), seed=seed))
    assert len(found) >= 3
    monkeypatch.undo()
    for seed in range(6):
        assert alarms(report(tmp_path / str(seed), seed=seed)) == []


def test_a_step_of_five_percent_is_found_by_the_first_run_on_a_calm_machine(tmp_path):
    found = report(tmp_path, seed=3, spikes=0.0, slow=STEP)
    assert found.exit_code == 1
    hit = [one for one in found.findings if one.alarm]
    assert {one.op for one in hit} == {"gather"} and len(hit) >= 8
    assert all(abs(one.size - 0.05) < 0.03 for one in hit)


def test_on_a_machine_with_spikes_one_run_is_a_suspicion_and_two_are_an_alarm(tmp_path):
    first = report(tmp_path / "first", seed=4, slow=STEP)
    suspects = [one for one in first.findings if one.verdict == SUSPECT and one.op == "gather"]
    assert alarms(first) == [] and len(suspects) >= 8
    assert any("earlier points were as far off for one run" in one.reason for one in suspects)
    earlier = {(LAST - 1, *of): by for (_, *of), by in STEP.items()}
    second = report(tmp_path / "second", HASHES[-3], seed=4, slow=earlier)
    assert second.exit_code == 1
    assert {one.op for one in second.findings if one.alarm} == {"gather"}


def test_a_step_of_five_percent_is_found_through_a_clock_step(tmp_path):
    found = report(tmp_path, seed=5, spikes=0.0, slow=STEP, clock={LAST: 0.97}, clock_known=False)
    assert {one.op for one in found.findings if one.alarm} == {"gather"}
    assert all(abs(one.size - 0.05) < 0.03 for one in found.findings if one.alarm)
    [words] = [one for one in found.problems if "moved together" in one]
    assert "6 ops on gpu moved together by" in words and HASHES[-1][:12] in words


def test_host_times_that_move_together_are_the_commits_doing(tmp_path, monkeypatch):
    """The code around all kernels is often the same."""
    slow = {"seed": 1, "spikes": 0.0, "clock": {LAST: 0.94}, "clock_known": False}
    assert alarms(report(tmp_path / "device", **slow)) == []
    monkeypatch.setattr(Series, "of_host", property(lambda self: True))
    assert len(alarms(report(tmp_path / "host", **slow))) > 20


def test_a_marked_run_is_a_suspicion_with_its_reason(tmp_path):
    words = "slowed down: software power cap"
    found = report(tmp_path, seed=6, spikes=0.0, slow=STEP, marks={LAST: [words]})
    assert found.exit_code == 0
    suspects = [one for one in found.findings if one.verdict == SUSPECT and one.op == "gather"]
    assert len(suspects) >= 8 and all(words in one.reason for one in suspects)


def test_one_run_without_a_mark_is_enough(tmp_path):
    slow = {(LAST - 1, *of): by for (_, *of), by in STEP.items()}
    found = report(
        tmp_path, HASHES[-3], seed=6, spikes=0.0, slow=slow, marks={LAST: ["slowed down: software power cap"]}
    )
    assert {one.op for one in found.findings if one.verdict == REGRESSION} == {"gather"}


def test_a_run_that_differs_from_itself_by_more_than_the_step_cannot_show_it(tmp_path):
    measured_runs.write(tmp_path, HASHES, seed=3, spikes=0.0, slow=STEP)
    place = tmp_path / "states" / f"{HASHES[-1]}.jsonl"
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    for line in lines:
        line["again"] = {"device_time": math.log(1.08)}
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = check(load(tmp_path, cache=None), HASHES[-1])
    assert alarms(found) == []
    assert any("noise floor of device_time on gpu" in one for one in found.problems)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.0, 0.05), min_size=54, max_size=54))
def test_the_floor_is_three_deviations_and_no_less_than_the_case_itself(tmp_path_factory, apart):
    folder = tmp_path_factory.mktemp("floor")
    measured_runs.write(folder, HASHES[:1], seed=1)
    place = folder / "states" / f"{HASHES[0]}.jsonl"
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    cases = [(op, case) for op in measured_runs.OPS for case in measured_runs.CASES]
    given_apart = dict(zip(cases, apart))
    for line in lines:
        line["again"] = {"device_time": given_apart[line["op"], line["case"]]}
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = load(folder, cache=None)
    relative = np.expm1(apart)
    pooled = SIGMAS * np.median(relative) / 0.674_489_75  # of a normal |x| half lies below this
    for row, floor in noise_floors(history, 0).items():
        one = history.series[row]
        own = math.expm1(given_apart[one.op, one.case])
        assert floor.least == pytest.approx(max(own, pooled), rel=1e-3, abs=1e-12)
        assert floor.widest == pytest.approx(max(relative), rel=1e-3, abs=1e-12)
    assert len(noise_floors(history, 0)) == len(history.series)


@pytest.mark.parametrize(
    "broken", [{"device": [1]}, {"device": {"before": 3}}, {"device": {"marks": "x"}}, {"again": [0.1]}]
)
def test_a_damaged_state_of_a_device_is_a_problem_and_no_crash(tmp_path, broken):
    measured_runs.write(tmp_path, HASHES[:1], seed=1)
    place = tmp_path / "states" / f"{HASHES[0]}.jsonl"
    first, *rest = place.read_text().splitlines()
    place.write_text("\n".join([json.dumps({**json.loads(first), **broken}), *rest]))
    history = load(tmp_path, cache=None)
    assert any(("device" in one.reason or "again" in one.reason) for one in history.problems)
    assert len(history.series) == 108
