"""The harness: its scores are right, our detector reaches its goals, and broken detectors do not."""

import dataclasses
import json

import numpy as np
import pytest

from dashboards import detect, quality
from dashboards.quality import MARGIN, Goal, Score, cover, f_measure, scored, synthetic


def test_scores_of_known_detections():
    places = np.array([100, 100, 100, 100])
    found = [[100], [105, 30], [106], []]
    assert scored(found, places) == Score(hits=2, false=2, steps=4, points=800)
    assert scored([[95, 105]], np.array([100])) == Score(1, 1, 1, 200)
    assert scored([[3], []], None) == Score(0, 1, 0, 400)
    score = Score(2, 2, 4, 800)
    assert (score.recall, score.precision, score.f1, score.false_per_1000) == (0.5, 0.5, 0.5, 2.5)


def test_labelled_scores_of_known_detections():
    # one annotator sees 10 and 50, the other nothing: union {0, 10, 50}
    people = [{10, 50}, set()]
    assert f_measure(people, [12]) == (1.0, (2 / 3 + 1) / 2)
    assert f_measure(people, [12, 30]) == (2 / 3, (2 / 3 + 1) / 2)
    assert f_measure(people, []) == (1.0, (1 / 3 + 1) / 2)
    # two points cannot both match one mark
    assert f_measure([{10}], [8, 12])[0] == 2 / 3
    assert cover([{50}], [50], 100) == 1.0
    assert cover([{50}], [], 100) == 0.5
    assert cover([set()], [25], 100) == 0.75


def test_synthetic_series_are_what_they_say():
    rng = np.random.default_rng(1)
    at = np.full(2000, 100)
    for noise in quality.NOISES:
        values = synthetic(rng, 2000, noise, 0.03, 0.1, at)
        assert np.median(values[:, :100]) == pytest.approx(100, rel=0.01)
        assert np.median(values[:, 100:]) == pytest.approx(110, rel=0.01)
    correlated = synthetic(rng, 2000, "ar", 0.03, 0.0, at)
    assert correlated.std() == pytest.approx(3, rel=0.03)
    assert np.corrcoef(correlated[:, :-1].ravel(), correlated[:, 1:].ravel())[0, 1] == pytest.approx(0.5, abs=0.02)
    spikes = synthetic(rng, 2000, "spikes", 0.001, 0.0, at)
    assert (spikes > 105).mean() == pytest.approx(0.05, abs=0.005)


def test_goals_know_which_way_is_better():
    assert Goal("x", 1.0, ">=", 1.0).met and not Goal("x", 0.9, ">=", 1.0).met
    assert Goal("x", 0.3, "<=", 0.3).met and not Goal("x", 0.4, "<=", 0.3).met


def outcome(detector, count=25):
    scores = quality.step_scores(detector, count)
    return quality._pooled_row(scores)


def test_ours_is_quiet_and_finds_steps():
    got = outcome(quality.ours)
    assert got["5+10 % F1"] >= 0.96 and got["2 % at 1 % F1"] >= 0.9
    assert got["5 % at 3 % recall"] >= 0.8 and got["5 % at 3 % false"] <= 0.6
    assert max(got[f"none {noise} false"] for noise in quality.NOISES) <= 0.2


@pytest.mark.parametrize("fault", ["deaf", "nervous", "late"])
def test_a_broken_detector_misses_the_goals(monkeypatch, fault):
    plain, found = detect.estimate_noise, quality.ours

    def nervous(values):
        noise = plain(values)
        return dataclasses.replace(noise, sigma=noise.sigma / 3, rho=0 * noise.rho)

    if fault == "nervous":
        monkeypatch.setattr(detect, "estimate_noise", nervous)
    elif fault == "late":
        found = lambda values: [[at + MARGIN + 1 for at in row] for row in quality.ours(values)]  # noqa: E731
    else:
        found = lambda values: [[] for _ in values]  # noqa: E731
    got = outcome(found, 8)
    assert got["5+10 % F1"] < 0.9


def test_exact_series_are_exact():
    score = quality.deterministic_scores(20)
    assert score.recall == 1.0 and score.false == 0
    exact, near = quality.placement(10)
    assert exact >= 0.8 and near >= 0.95


def test_labelled_series_reach_precision():
    rows = quality.labelled_scores(quality.LABELLED, quality.ours)
    never = quality.labelled_scores(quality.LABELLED, lambda values: [[]])
    assert len(rows) == 6
    assert np.mean([one["precision"] for one in rows.values()]) >= 0.8
    assert np.mean([one["f1"] for one in rows.values()]) > np.mean([one["f1"] for one in never.values()])


def test_peers_are_measured_where_they_are_installed():
    for name, peer in quality.peers().items():
        values = synthetic(np.random.default_rng(3), 2, "gauss", 0.01, 0.2, np.array([100, 120]))
        found = peer(values)
        assert [any(abs(at - place) <= 2 for at in row) for row, place in zip(found, (100, 120))] == [
            True,
            True,
        ], name


@pytest.mark.slow
def test_the_report_holds_every_goal_and_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(quality, "peers", lambda: {})
    quality.main(["--series", "10", "--short", "--json", str(tmp_path / "q.json")])
    data = json.loads((tmp_path / "q.json").read_text())
    text = capsys.readouterr().out
    assert len(data["goals"]) == 21 and all(one["name"] in text for one in data["goals"])
    delays = {one["name"]: one["value"] for one in data["goals"] if "commits" in one["name"]}
    assert delays["commits until reported, 2 sigma, Gaussian"] <= 8
    assert data["seed"] == quality.SEED
