"""The gate on times of a real GPU: sixteen processes that ran the same kernels, paired to runs in many ways.

Small kernels are slower by up to a fifth in some processes than in others, as long as these live.
"""

import copy
import gzip
import hashlib
import json
import random
import sys
from pathlib import Path

import pytest

from dashboards import trust
from dashboards.check import check
from dashboards.results import load

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
DATA = json.loads(gzip.decompress((ROOT / "tests" / "data" / "gpu" / "same-code.json.gz").read_bytes()))
RUNS = 8
HASHES = [hashlib.sha1(bytes([at])).hexdigest() for at in range(RUNS)]
DAY = 86_400_000
STEADY = "select_top_k_tokens", "top_k_renorm_prob", "top_p_renorm_prob"


def history(folder, seed, processes=2, slower=1.0):
    """Eight runs of the recorded processes in some order; the last two runs of the steady ops take longer."""
    import gpu_history

    order = random.Random(seed).sample(DATA["processes"], RUNS * processes)
    entries = []
    for at, commit in enumerate(HASHES):
        for rows in zip(*order[at * processes : (at + 1) * processes]):
            rows = copy.deepcopy(rows)
            for row in rows:
                if row["op"] in STEADY and at >= RUNS - 2:
                    row["samples"] = [[slower * value for value in sample] for sample in row["samples"]]
            one = gpu_history.together(
                [{**row, "commit": commit, "reason": "", "device": {"after": {"name": "H200"}}} for row in rows]
            )
            entries.append(one)
    commits = [{"hash": name, "date": at * DAY, "subject": ""} for at, name in enumerate(HASHES)]
    found = {
        "commits": commits, "entries": entries, "versions": DATA["versions"], "python": "3.12", "started": 0
    }  # fmt: skip
    gpu_history.write(found, folder, "h200")
    return load(folder, cache=None)


def alarms(folder, seeds, **more):
    """Titles of alarms, and how many comparisons there were, over every run of each history."""
    titles, compared = [], 0
    for seed in seeds:
        measured = history(folder / f"{seed}", seed, **more)
        for head in HASHES[1:]:
            report = check(measured, head)
            titles += [one.title for one in report.findings if one.alarm]
            compared += report.compared
    return titles, compared


def test_the_same_code_raises_no_alarm_in_a_hundred_comparisons(tmp_path):
    titles, compared = alarms(tmp_path, range(12))
    assert compared > 5000
    assert len(titles) * 1000 <= compared, titles  # one in a thousand at most: mostly none in a hundred


def test_with_one_process_a_run_the_same_code_does_raise_alarms(tmp_path):
    titles, compared = alarms(tmp_path, range(6), processes=1)
    assert len(titles) * 300 > compared, "the recorded noise would bite a gate that measures in one process"


@pytest.mark.parametrize("slower, least", [(1.05, 0.7), (1.15, 0.85)])
def test_steady_kernels_that_got_slower_are_found(tmp_path, slower, least):
    found = wanted = 0
    for seed in range(8):
        measured = history(tmp_path / f"{seed}", seed, slower=slower)
        titles = set()
        for head in HASHES[-2:]:
            titles |= {one.title for one in check(measured, head).findings if one.alarm}
        steady = {one.title for one in measured.series if one.op in STEADY and one.metric == "device_time_cold"}
        wanted += len(steady)
        found += len(steady & titles)
    assert found >= least * wanted, f"{found} of {wanted}"


def test_the_first_runs_are_judged_by_what_their_processes_differ_by(tmp_path, monkeypatch):
    seeds = range(12)
    early, _ = alarms(tmp_path / "with", seeds)
    monkeypatch.setattr("dashboards.check.FEW_RUNS", 0)
    without, _ = alarms(tmp_path / "without", seeds)
    assert len(without) > len(early)
    assert trust.FEW_RUNS >= 2


if __name__ == "__main__":  # the figures of docs/devices.md
    import tempfile

    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as scratch:
            titles, compared = alarms(Path(scratch), range(40), processes=processes)
        print(f"{processes} a run: {len(titles)} alarms in {compared} comparisons")
