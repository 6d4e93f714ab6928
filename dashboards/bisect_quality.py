"""How often the search blames the right commit: simulated histories with noise, and `asv find` beside it.

python -m dashboards.bisect_quality [--histories 200] [--seed 1] [--asv 40] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from dashboards.bisect import (
    NOT_REPRODUCED,
    SEVERAL,
    STEP,
    UNDECIDED,
    Counted,
    Found,
    Outcome,
    Point,
    noisy_line,
)
from dashboards.series import BUILD_FAILED, COMPILE_FAILED, CRASHED, OK, WRONG

RIGHT, ENCLOSING, UNDONE, OPEN, WRONG_BLAME = (
    "right commit",
    "enclosing range",
    "undone step",
    "no answer",
    "wrong",
)
BROKEN = (BUILD_FAILED, COMPILE_FAILED, CRASHED, WRONG)


@dataclass(frozen=True)
class Scene:
    """A simulated history: the true level at each point, which are broken, and the machine's noise.

    `steps` are the commits that made it slower; the last one persists.  `drift` is per run, in units of the value.
    """

    levels: tuple[float, ...]
    steps: tuple[int, ...]
    broken: frozenset[int]
    sigma: float
    drift: float
    wave: float
    seed: int

    def oracle(self) -> Counted:
        """Runs of this history; what a run gives depends on how many were made before it."""
        noise = np.random.default_rng(self.seed)
        clock = iter(range(10**9))

        def evaluate(point: Point) -> Outcome:
            when = next(clock)
            gauss, spike, size = noise.normal(), noise.random(), noise.uniform(3, 30)
            if point.commit in self.broken:
                return Outcome(BROKEN[point.commit % len(BROKEN)], reason="broken")
            value = self.levels[point.commit] + self.sigma * gauss + self.drift * when
            value += self.wave * math.sin(when / 40)
            return Outcome(OK, value + (self.sigma * size if spike < 0.05 else 0.0))

        return Counted(evaluate, limit=5000)


def scene(seed: int, *, step: bool) -> Scene:
    """History number `seed`: step of 3 to 10 deviations, spikes, drifts, 10 % broken commits, some recoveries."""
    random = np.random.default_rng([seed, 7])
    count = int(random.integers(8, 129))
    sigma = float(random.choice([0.01, 0.03]))
    size = sigma * float(random.uniform(3, 10))
    levels = np.full(count + 1, 1.0)
    steps: list[int] = []
    if step:
        steps.append(int(random.integers(1, count + 1)))
        levels[steps[0] :] += size
    kind = random.random()
    if kind < 0.25 and count > 20:
        # a bump that was undone: before the step, or the only thing there is
        room = steps[0] if step else count
        if room > 10:
            start = int(random.integers(1, room - 6))
            end = int(random.integers(start + 2, room - 2))
            levels[start:end] += size * float(random.uniform(0.8, 1.2))
            steps.insert(0, start)
    if random.random() < 0.3:
        # many tiny changes
        levels += np.linspace(0, 0.5 * sigma, count + 1) if step else 0
    broken = frozenset(int(at) for at in range(1, count) if random.random() < 0.1)
    drift = sigma * float(random.uniform(-0.03, 0.03)) * (random.random() < 0.5)
    wave = sigma * 2 * (random.random() < 0.5)
    return Scene(tuple(levels), tuple(steps), broken, sigma, drift, float(wave), seed)


def score(one: Scene, found: Found) -> str:
    """What an answer is worth, for a history whose last step persists."""
    true = one.steps[-1]
    if found.ending not in (STEP, SEVERAL):
        return OPEN
    main = found.main
    assert main is not None
    if main.last_good < true <= main.first_bad:
        return RIGHT if main.exact else ENCLOSING
    if any(main.last_good < at <= main.first_bad for at in one.steps):
        listed = any(step.last_good < true <= step.first_bad for step in found.steps)
        return UNDONE if not listed else ENCLOSING
    return WRONG_BLAME


def line_of(one: Scene) -> list[Point]:
    """Its points."""
    return [Point(at) for at in range(len(one.levels))]


def measure(histories: int, seed: int) -> dict[str, Any]:
    """Counts over histories with a step and without one."""
    with_step: Counter[str] = Counter()
    without: Counter[str] = Counter()
    runs: list[int] = []
    bad: list[int] = []
    for number in range(seed * 100_000, seed * 100_000 + histories):
        one = scene(number, step=True)
        oracle = one.oracle()
        worth = score(one, noisy_line(oracle, line_of(one)))
        with_step[worth] += 1
        runs.append(oracle.count)
        if worth not in (RIGHT, ENCLOSING):
            bad.append(number)
        quiet = scene(number, step=False)
        found = noisy_line(quiet.oracle(), line_of(quiet))
        without[found.ending] += 1
        main = found.main if found.ending in (STEP, SEVERAL) else None
        if main and not any(main.last_good < at <= main.first_bad for at in quiet.steps):
            without[WRONG_BLAME] += 1
    return {
        "histories": histories,
        "with a step": dict(with_step),
        "without": dict(without),
        "right or enclosing": (with_step[RIGHT] + with_step[ENCLOSING]) / histories,
        "wrong blame": with_step[WRONG_BLAME] + without[WRONG_BLAME],
        "not reproduced": without[NOT_REPRODUCED] / histories,
        "undecided": without[UNDECIDED],
        "runs, median": float(np.median(runs)),
        "runs, most": max(runs),
        "not right": bad,
    }


def asv_find(one: Scene) -> str:
    """What the installed `asv find` answers on the same history."""
    from asv.commands import find

    oracle = one.oracle()
    said: list[str] = []
    hashes = [f"{at:040x}" for at in range(len(one.levels))]
    benchmarks = mock.MagicMock()
    benchmarks.__len__.return_value = 1
    benchmarks.keys.return_value = ["bench"]
    benchmarks.__getitem__.side_effect = lambda name: {"type": "track", "params": [], "timeout": 60}
    current: list[int] = []

    def result(params: Any, requirements: Any, commit: str, *_: Any) -> Any:
        current[:] = [int(commit, 16)]
        return SimpleNamespace()

    def run_benchmarks(*_: Any, **__: Any) -> Any:
        outcome = oracle.fresh(Point(current[0]))
        value = outcome.value if outcome.state == OK else None
        return SimpleNamespace(get_result_value=lambda *_: [value], errcode={"bench": 0})

    repo = SimpleNamespace(
        pull=lambda: None, get_hashes_from_range=lambda _: hashes[::-1],
        get_decorated_hash=lambda commit, _: commit, get_date=lambda _: 0,
    )  # fmt: skip
    environment = mock.MagicMock()
    environment.requirements = {}
    with (
        mock.patch.object(find, "Machine", mock.MagicMock()),
        mock.patch.object(find, "get_repo", lambda _: repo),
        mock.patch.object(find, "Setup", SimpleNamespace(run=lambda **_: [environment])),
        mock.patch.object(find, "Benchmarks", SimpleNamespace(discover=lambda *_, **__: benchmarks)),
        mock.patch.object(find, "Results", result),
        mock.patch.object(find, "run_benchmarks", run_benchmarks),
        mock.patch.object(find, "log", SimpleNamespace(
            info=said.append, warning=said.append, error=said.append, indent=mock.MagicMock()
        )),
    ):  # fmt: skip
        try:
            find.Find.run(SimpleNamespace(project="p", results_dir="", branches=[]), "", "bench", skip_save=True)
        except Exception as error:
            return f"{OPEN}: {error}"
    blamed = [re.fullmatch(r"Greatest regression found: ([0-9a-f]{40})", line) for line in said]
    places = [int(match[1], 16) for match in blamed if match]
    if not places:
        return OPEN
    if not one.steps:
        return WRONG_BLAME
    if places[0] == one.steps[-1]:
        return RIGHT
    return UNDONE if places[0] in one.steps else WRONG_BLAME


def beside_asv(histories: int, seed: int) -> dict[str, dict[str, int]]:
    """`asv find` on histories with a step and without one."""
    numbers = range(seed * 100_000, seed * 100_000 + histories)
    return {
        "with a step": dict(Counter(asv_find(scene(number, step=True)) for number in numbers)),
        "without": dict(Counter(asv_find(scene(number, step=False)) for number in numbers)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.bisect_quality", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--asv", type=int, default=40, help="histories that `asv find` searches too")
    given = parser.parse_args(arguments)
    figures = {"bisect": measure(given.histories, given.seed)}
    if given.asv:
        figures["asv find"] = beside_asv(given.asv, given.seed)
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
