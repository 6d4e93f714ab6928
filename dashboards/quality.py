"""How good the detection is: every figure with its goal, and other people's detectors on the same series.

    python -m dashboards.quality --short            # a minute, goals only
    python -m dashboards.quality --peers --json out.json

All series come from fixed seeds that were never used to choose a constant of `dashboards.detect`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dashboards.detect import ALERT_CONFIDENCE, change_points, change_points_of, newest_alert, newest_alerts

SEED = 20_260_101
POINTS = 200
MARGIN = 5
NOISES = ("gauss", "ar", "spikes")
LABELLED = Path(__file__).parents[1] / "tests" / "data" / "changepoint"

Detector = Callable[[np.ndarray], list[list[int]]]


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure that has to be reached: `sense` is `>=` or `<=`."""

    name: str
    value: float
    sense: str
    goal: float

    @property
    def met(self) -> bool:
        return bool(self.value >= self.goal if self.sense == ">=" else self.value <= self.goal)


@dataclass(frozen=True, slots=True)
class Score:
    """Hits, false alarms and steps to be found, over a number of points."""

    hits: int
    false: int
    steps: int
    points: int

    def __add__(self, other: Score) -> Score:
        return Score(
            self.hits + other.hits,
            self.false + other.false,
            self.steps + other.steps,
            self.points + other.points,
        )

    @property
    def recall(self) -> float:
        return self.hits / self.steps if self.steps else 1.0

    @property
    def precision(self) -> float:
        return self.hits / (self.hits + self.false) if self.hits + self.false else 1.0

    @property
    def f1(self) -> float:
        return 2 * self.hits / (self.hits + self.false + self.steps) if self.steps else 0.0

    @property
    def false_per_1000(self) -> float:
        return 1000 * self.false / self.points


def synthetic(
    rng: np.random.Generator, count: int, noise: str, spread: float, step: float, places: np.ndarray
) -> np.ndarray:
    """Series of POINTS around 100 with one relative step each.

    `gauss` is independent noise of relative deviation `spread`; `ar` has the same deviation and a correlation
    of 0.5 between neighbours; `spikes` raises one point in twenty of the former by 10 to 50 %.
    """
    plain = rng.standard_normal((count, POINTS))
    if noise == "ar":
        for at in range(1, POINTS):
            plain[:, at] = 0.5 * plain[:, at - 1] + np.sqrt(0.75) * plain[:, at]
    values = 100 * (1 + spread * plain + step * (np.arange(POINTS) >= places[:, None]))
    if noise == "spikes":
        values *= 1 + (rng.random(values.shape) < 0.05) * rng.uniform(0.1, 0.5, values.shape)
    return values


def ours(values: np.ndarray) -> list[list[int]]:
    return [[one.index for one in jumps] for jumps in change_points_of(values)]


def peers() -> dict[str, Detector]:
    """Installed detectors of others, as they are shipped."""
    found: dict[str, Detector] = {}
    try:
        from asv.step_detect import detect_regressions, detect_steps

        def asv(values: np.ndarray) -> list[list[int]]:
            rows = []
            for row in values:
                _, _, places = detect_regressions(detect_steps([float(one) for one in row]))
                rows.append([int(place[1]) for place in places or ()])
            return rows

        found["asv"] = asv
    except ImportError:
        pass
    try:
        from otava.series import AnalysisOptions, Metric, Series

        logging.getLogger().setLevel(logging.ERROR)

        def otava(values: np.ndarray) -> list[list[int]]:
            rows = []
            for row in values:
                data = {"m": [float(one) for one in row]}
                series = Series("s", None, list(range(len(row))), {"m": Metric(1, 1.0)}, data, {})
                changes = series.analyze(AnalysisOptions()).change_points["m"]
                rows.append([int(one.index) for one in changes])
            return rows

        otava(np.ones((1, 8)))
        found["otava"] = otava
    except ImportError:
        pass
    try:
        import ruptures

        def pelt(values: np.ndarray) -> list[list[int]]:
            rows = []
            for row in values:
                deviation = np.median(np.abs(np.diff(row))) * 1.4826 / np.sqrt(2)
                model = ruptures.Pelt(model="l2", min_size=2, jump=1).fit(row)
                cuts = model.predict(pen=max(3 * np.log(len(row)) * deviation**2, 1e-12))
                rows.append([int(cut) for cut in cuts[:-1]])
            return rows

        found["pelt"] = pelt
    except ImportError:
        pass
    return found


def scored(found: Sequence[Sequence[int]], places: np.ndarray | None, points: int = POINTS) -> Score:
    """One hit a series at most, within MARGIN points of the step; everything else is a false alarm."""
    hits = false = 0
    for row, indices in enumerate(found):
        near = [at for at in indices if places is not None and abs(at - places[row]) <= MARGIN]
        hits += bool(near)
        false += len(indices) - bool(near)
    return Score(hits, false, 0 if places is None else len(found), len(found) * points)


def step_scores(detector: Detector, count: int) -> dict[tuple[str, float, float], Score]:
    """Scores by noise, spread and step; step 0 has nothing to be found."""
    scores = {}
    for number, noise in enumerate(NOISES):
        for spread in (0.01, 0.03):
            for step in (0.0, 0.02, 0.05, 0.1):
                seed = [SEED, 1, number, int(spread * 100), int(step * 100)]
                rng = np.random.default_rng(seed)
                places = rng.integers(60, 141, count)
                values = synthetic(rng, count, noise, spread, step, places)
                scores[noise, spread, step] = scored(detector(values), places if step else None)
    return scores


def pooled(
    scores: Mapping[tuple[str, float, float], Score],
    *,
    noises: Sequence[str] = NOISES,
    spreads: Sequence[float] = (0.01, 0.03),
    steps: Sequence[float],
) -> Score:
    return sum((scores[n, v, s] for n in noises for v in spreads for s in steps), start=Score(0, 0, 0, 0))


def alert_curve(count: int) -> list[dict[str, float]]:
    """False alerts and delays of the newest-point alert at several confidences.

    A false alert counts when it is first raised; `held` counts every commit on which one stands.  The
    delay is the number of commits up to and including the first that is reported, the median over all series.
    """
    levels = sorted({0.5, 0.6, 0.7, ALERT_CONFIDENCE, 0.9, 0.95})
    quiet = {level: [0, 0, 0] for level in levels}
    for number, noise in enumerate(NOISES):
        for spread in (0.01, 0.03):
            rng = np.random.default_rng([SEED, 2, number, int(spread * 100)])
            values = synthetic(rng, count, noise, spread, 0.0, np.full(count, POINTS))
            sure = np.array([_confidences(values[:, :length]) for length in range(60, POINTS + 1)])
            for level in levels:
                on = sure > level
                quiet[level][0] += int((on[1:] & ~on[:-1]).sum()) + int(on[0].sum())
                quiet[level][1] += int(on.sum())
                quiet[level][2] += on.size
    delays: dict[tuple[float, str, float], np.ndarray] = {}
    for number, noise in enumerate(NOISES):
        for spread, step in ((0.01, 0.02), (0.03, 0.05)):
            rng = np.random.default_rng([SEED, 3, number, int(spread * 100)])
            values = synthetic(rng, count, noise, spread, step, np.full(count, 100))
            sure = np.array([_confidences(values[:, : 100 + after]) for after in range(1, 31)])
            for level in levels:
                on = sure > level
                delays[level, noise, step] = np.where(on.any(axis=0), on.argmax(axis=0) + 1, 99)
    rows = []
    for level in levels:
        raised, held, points = quiet[level]
        row = {
            "confidence": level,
            "false per 1000": 1000 * raised / points,
            "held per 1000": 1000 * held / points,
        }
        for step, name in ((0.02, "2 sigma"), (0.05, "1.67 sigma")):
            for noise in NOISES:
                row[f"{name} {noise}"] = float(np.median(delays[level, noise, step]))
            every = np.concatenate([delays[level, noise, step] for noise in NOISES])
            row[f"{name} pooled"] = float(np.median(every))
            row[f"{name} found in 30"] = float((every <= 30).mean())
        rows.append(row)
    return rows


def _confidences(values: np.ndarray) -> np.ndarray:
    return np.array([one.confidence if one else 0.0 for one in newest_alerts(values, confidence=0.5)])


def history_delay(detector: Detector, count: int) -> dict[str, tuple[float, float]]:
    """Median commits until a detector of histories reports a step, and the share it reports within 30."""
    out = {}
    for spread, step, name in ((0.01, 0.02, "2 sigma"), (0.03, 0.05, "1.67 sigma")):
        rng = np.random.default_rng([SEED, 4, int(spread * 100)])
        values = synthetic(rng, count, "gauss", spread, step, np.full(count, 100))
        first = np.full(count, 99)
        for after in range(1, 31):
            open_rows = np.flatnonzero(first == 99)
            if not open_rows.size:
                break
            for row, indices in zip(open_rows, detector(values[open_rows, : 100 + after])):
                if any(abs(at - 100) <= MARGIN for at in indices):
                    first[row] = after
        out[name] = float(np.median(first)), float((first <= 30).mean())
    return out


def deterministic_scores(count: int) -> Score:
    """Exact series with one change of +5 % or +0.1 %: hits are exact places only."""
    rng = np.random.default_rng([SEED, 5])
    total = Score(0, 0, 0, 0)
    for step in (0.05, 0.001):
        for _ in range(count):
            place = int(rng.integers(2, POINTS - 1))
            values = np.full(POINTS, float(rng.integers(100, 10**6)))
            values[place:] *= 1 + step
            values[rng.integers(0, POINTS, 5)] = np.nan
            first = place + int(np.argmax(~np.isnan(values[place:])))
            found = [one.index for one in change_points(values, deterministic=True)]
            alert = newest_alert(values[: first + 1], deterministic=True)
            exact = first in found and alert is not None and alert.index == first
            total += Score(int(exact), len(found) - (first in found), 1, POINTS)
    return total


def placement(count: int) -> tuple[float, float]:
    """Share of steps of five deviations placed exactly, and within one point, over the three noises."""
    exact = near = 0
    for number, noise in enumerate(NOISES):
        rng = np.random.default_rng([SEED, 6, number])
        places = rng.integers(60, 141, count)
        for row, found in enumerate(ours(synthetic(rng, count, noise, 0.01, 0.05, places))):
            off = min((abs(at - places[row]) for at in found), default=99)
            exact += off == 0
            near += off <= 1
    return exact / count / len(NOISES), near / count / len(NOISES)


def labelled_scores(folder: Path, detector: Detector) -> dict[str, dict[str, float]]:
    """F1, precision, recall and cover of each labelled series, as van den Burg and Williams define them."""
    people = json.loads((folder / "tcpd" / "annotations.json").read_text())
    out = {}
    for name, marks in people.items():
        data = json.loads((folder / "tcpd" / f"{name}.json").read_text())
        raw = [np.nan if one is None else float(one) for one in data["series"][0]["raw"]]
        found = detector(np.array([raw]))[0]
        annotations = [set(one) for one in marks.values()]
        precision, recall = f_measure(annotations, found)
        out[name] = {
            "f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
            "precision": precision,
            "recall": recall,
            "cover": cover(annotations, found, len(raw)),
        }
    return out


def f_measure(annotations: Sequence[set[int]], found: Sequence[int]) -> tuple[float, float]:
    """Precision over the union of the annotators' points, recall as the mean over annotators."""
    marks = [one | {0} for one in annotations]
    points = set(found) | {0}
    precision = _matched(set().union(*marks), points) / len(points)
    recall = float(np.mean([_matched(one, points) / len(one) for one in marks]))
    return precision, recall


def _matched(marks: set[int], points: set[int]) -> int:
    """How many marks have a point of their own within MARGIN."""
    left = set(points)
    hits = 0
    for mark in sorted(marks):
        near = [at for at in left if abs(at - mark) <= MARGIN]
        if near:
            left.discard(min(near, key=lambda at: (abs(at - mark), at)))
            hits += 1
    return hits


def cover(annotations: Sequence[set[int]], found: Sequence[int], length: int) -> float:
    """Overlap of the found segments with each annotator's, weighted by length, the mean over annotators."""
    ours_ = _segments(found, length)
    total = 0.0
    for marks in annotations:
        for low, high in _segments(marks, length):
            best = max(max(0, min(high, b) - max(low, a)) / (max(high, b) - min(low, a)) for a, b in ours_)
            total += (high - low) * best
    return total / length / len(annotations)


def _segments(cuts: Sequence[int] | set[int], length: int) -> list[tuple[int, int]]:
    edges = [0, *sorted(set(cuts) - {0}), length]
    return list(itertools.pairwise(edges))


def costs(repeats: int, large: bool) -> dict[str, float]:
    """Processor milliseconds for one series of 200 points, and seconds for 1600 of 1000 points."""
    rng = np.random.default_rng([SEED, 7])
    row = synthetic(rng, 1, "ar", 0.03, 0.05, np.array([100]))[0]
    change_points(row)
    start = time.process_time()
    for _ in range(repeats):
        change_points(row)
    out = {"ms per 200 points": (time.process_time() - start) / repeats * 1000}
    if large:
        matrix = 100 + rng.standard_normal((1600, 1000)) + 5 * (np.arange(1000) >= 600)
        start = time.process_time()
        change_points_of(matrix)
        out["s per 1600 x 1000"] = time.process_time() - start
    return out


def measure(count: int, labelled: Path, *, with_peers: bool, large: bool) -> dict[str, Any]:
    """All tables and goals as plain data."""
    detectors: dict[str, Detector] = {"ours": ours, **(peers() if with_peers else {})}
    steps = {name: step_scores(one, count) for name, one in detectors.items()}
    mine = steps["ours"]
    curve = alert_curve(count)
    here = next(row for row in curve if row["confidence"] == ALERT_CONFIDENCE)
    exact, near = placement(count)
    labels = {name: labelled_scores(labelled, one) for name, one in detectors.items() if name != "asv"}
    means = {
        name: {
            key: float(np.mean([row[key] for row in rows.values()]))
            for key in ("f1", "precision", "recall", "cover")
        }
        for name, rows in labels.items()
    }
    strict = deterministic_scores(count)
    cost = costs(20, large)
    big, small = pooled(mine, steps=(0.05, 0.1)), pooled(mine, spreads=(0.01,), steps=(0.02,))
    hard = pooled(mine, spreads=(0.03,), steps=(0.05,))
    goals = [
        Goal("step 5+10 %: F1", big.f1, ">=", 0.97),
        Goal("step 5+10 %: precision", big.precision, ">=", 0.98),
        Goal("step 5+10 %: recall", big.recall, ">=", 0.96),
        Goal("step 2 % at cv 1 %: F1", small.f1, ">=", 0.92),
        Goal("step 5 % at cv 3 %: recall", hard.recall, ">=", 0.85),
        Goal("step 5 % at cv 3 %: false alarms per 1000", hard.false_per_1000, "<=", 0.3),
        Goal("step 5 %, AR(1): F1", pooled(mine, noises=("ar",), steps=(0.05,)).f1, ">=", 0.88),
        Goal("no step, history: false alarms per 1000", pooled(mine, steps=(0.0,)).false_per_1000, "<=", 0.05),
        Goal("no step, alert: false alarms per 1000", here["false per 1000"], "<=", 0.3),
        Goal("commits until reported, 2 sigma, Gaussian", here["2 sigma gauss"], "<=", 5),
        Goal("commits until reported, 1.67 sigma, Gaussian", here["1.67 sigma gauss"], "<=", 7),
        Goal("commits until reported, 2 sigma, three noises", here["2 sigma pooled"], "<=", 5),
        Goal("commits until reported, 1.67 sigma, three noises", here["1.67 sigma pooled"], "<=", 7),
        Goal("deterministic: found exactly at the commit", strict.recall, ">=", 1.0),
        Goal("deterministic: false alarms", strict.false, "<=", 0),
        Goal("place at 5 sigma: exact", exact, ">=", 0.8),
        Goal("place at 5 sigma: within one", near, ">=", 0.95),
        Goal("labelled: F1", means["ours"]["f1"], ">=", 0.76),
        Goal("labelled: cover", means["ours"]["cover"], ">=", 0.71),
        Goal("labelled: precision", means["ours"]["precision"], ">=", 0.8),
        Goal("cost: ms per 200 points", cost["ms per 200 points"], "<=", 10),
    ]
    if large:
        goals.append(Goal("cost: s per 1600 series x 1000 points", cost["s per 1600 x 1000"], "<=", 10))
    return {
        "seed": SEED,
        "series a cell": count,
        "labelled series": sorted(labels["ours"]),
        "goals": [{**asdict(one), "met": one.met} for one in goals],
        "steps": {
            name: [
                {
                    "noise": noise,
                    "spread": spread,
                    "step": step,
                    "recall": one.recall,
                    "precision": one.precision,
                    "f1": one.f1,
                    "false per 1000": one.false_per_1000,
                }
                for (noise, spread, step), one in scores.items()
            ]
            for name, scores in steps.items()
        },
        "pooled": {name: _pooled_row(scores) for name, scores in steps.items()},
        "alert": curve,
        "history delay": {
            name: history_delay(one, min(count, 40)) for name, one in detectors.items() if with_peers
        },
        "labelled": means,
        "labelled by series": labels["ours"],
        "cost": cost,
    }


def _pooled_row(scores: Mapping[tuple[str, float, float], Score]) -> dict[str, float]:
    big = pooled(scores, steps=(0.05, 0.1))
    hard = pooled(scores, spreads=(0.03,), steps=(0.05,))
    row = {
        "5+10 % recall": big.recall,
        "5+10 % precision": big.precision,
        "5+10 % F1": big.f1,
        "2 % at 1 % F1": pooled(scores, spreads=(0.01,), steps=(0.02,)).f1,
        "5 % at 3 % recall": hard.recall,
        "5 % at 3 % false": hard.false_per_1000,
        "5 % AR F1": pooled(scores, noises=("ar",), steps=(0.05,)).f1,
    }
    for noise in NOISES:
        row[f"none {noise} false"] = pooled(scores, noises=(noise,), steps=(0.0,)).false_per_1000
    return row


def as_text(result: Mapping[str, Any]) -> str:
    """The figures as tables for people."""
    lines = [f"{result['series a cell']} series a cell, seed {result['seed']}", ""]
    lines.append(f"{'goal':52} {'value':>9}    {'goal':>8}")
    for one in result["goals"]:
        verdict = "" if one["met"] else "   MISSED"
        lines.append(f"{one['name']:52} {one['value']:9.3f} {one['sense']} {one['goal']:8.3f}{verdict}")
    lines += ["", "pooled", *_table(result["pooled"])]
    lines += ["", "newest-point alert by confidence: median commits until reported"]
    lines += _table(
        {
            f"{row['confidence']:.2f}": {k: v for k, v in row.items() if k != "confidence"}
            for row in result["alert"]
        }
    )
    if result["history delay"]:
        lines += ["", "history, Gaussian: median commits until reported (share within 30)"]
        for name, row in result["history delay"].items():
            lines.append(f"  {name:8}" + "".join(f"  {k}: {v[0]:g} ({v[1]:.2f})" for k, v in row.items()))
    lines += ["", f"labelled, {len(result['labelled series'])} series", *_table(result["labelled"])]
    lines += ["", "cost: " + ", ".join(f"{value:.1f} {name}" for name, value in result["cost"].items())]
    return "\n".join(lines)


def _table(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    columns = list(rows)
    names = list(next(iter(rows.values())))
    lines = [f"  {'':24}" + "".join(f"{column:>9}" for column in columns)]
    lines += [f"  {name:24}" + "".join(f"{rows[column][name]:9.3f}" for column in columns) for name in names]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards.quality", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="25 series a cell instead of 100, no large batch")
    parser.add_argument("--series", type=int, help="series a cell")
    parser.add_argument("--peers", action="store_true", help="measure asv, apache-otava and ruptures too")
    parser.add_argument("--labelled", type=Path, default=LABELLED, help="folder of labelled series")
    parser.add_argument("--json", type=Path, help="write everything there as JSON")
    options = parser.parse_args(argv)
    count = options.series or (25 if options.short else 100)
    result = measure(count, options.labelled, with_peers=options.peers, large=not options.short)
    print(as_text(result), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(one["met"] for one in result["goals"]) else 1


if __name__ == "__main__":
    sys.exit(main())
