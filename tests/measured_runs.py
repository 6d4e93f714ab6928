"""Results of a device with noise as devices have it, written as the suite writes them.

Shapes of the noise: a slow drift that all series share, the clock stepping down for some runs, each series' own
Gaussian part (0.2 to 0.8 %), heavy tails (one run in fifty is off by up to 20 % in one series), and within a run a
second timing of the same implementation that differs by about half of that.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from asv_files import benchmarks_file, result_file, row

OPS = ("assign", "extend", "gather", "scatter", "compress", "seed")
CASES = tuple(f"case{i}" for i in range(9))
IMPLS = ("op", "plain_twin")
MHZ = 1980.0


def device(clock: float | None = MHZ, **more) -> dict:
    facts = {
        "name": "Some GPU",
        "driver": "580.1",
        "toolkit": "13.0",
        "temperature_c": 41.0,
        "power_limit_w": 700.0,
    }
    if clock:
        facts["clock_mhz"] = clock
    return {"before": dict(facts), "after": dict(facts), "marks": [], **more}


def write(
    results: Path,
    hashes: list[str],
    seed: int,
    *,
    slow: dict[tuple[int, str, str, str], float] | None = None,
    clock: dict[int, float] | None = None,
    clock_known: bool = True,
    spikes: float = 0.02,
    marks: dict[int, list[str]] | None = None,
) -> None:
    """`slow`: (run, op, case, impl) -> factor from that run on.  `clock`: run -> factor of the clock in it."""
    random = np.random.default_rng(seed)
    benchmarks = {op: f"bench_some.Measured{op.capitalize()}.track_device_time" for op in OPS}
    benchmarks_file(results, {name: "us" for name in benchmarks.values()})
    level = {(o, c, i): random.uniform(2, 400) for o in OPS for c in CASES for i in IMPLS}
    own = {key: random.uniform(0.002, 0.008) for key in level}
    drift = 0.0
    for run, commit in enumerate(hashes):
        drift = 0.8 * drift + random.normal(0, 0.0015)
        pace = (clock or {}).get(run, 1.0)
        found, lines = {}, []
        for op in OPS:
            values, low, high = [], [], []
            for case in CASES:
                again = {"device_time": float(abs(random.normal(0, own[op, case, "op"] / 2)))}
                for impl in IMPLS:
                    key = (op, case, impl)
                    factor = 1.0
                    for (since, *of), by in (slow or {}).items():
                        factor *= by if run >= since and tuple(of) == key else 1.0
                    noise = drift + random.normal(0, own[key])
                    if random.random() < spikes:
                        noise += random.uniform(0.02, 0.2)
                    value = level[key] * factor / pace * float(np.exp(noise))
                    values.append(value)
                    low.append(value * (1 - own[key]))
                    high.append(value * (1 + own[key]))
                    state = device(MHZ * pace if clock_known else None, marks=(marks or {}).get(run, []))
                    lines.append(
                        {
                            "version": 1, "commit": commit, "suite": benchmarks[op].rpartition(".")[0], "op": op,
                            "case": case, "impl": impl, "role": "twin" if "twin" in impl else "op", "state": "ok",
                            "reason": "", "versions": {"python": "3.11"}, "machine": "gpu", "device": state,
                            "again": again,
                        }
                    )  # fmt: skip
            found[benchmarks[op]] = row(values, (CASES, IMPLS), low=low, high=high)
        result_file(results, commit, found, machine="gpu", date=run, versions={"torch": "2.11"})
        place = results / "states"
        place.mkdir(exist_ok=True)
        (place / f"{commit}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
