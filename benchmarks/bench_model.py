"""How fast the model itself is: IR ops a second in loops, seconds of a typical launch and of a whole commit.

    python -m benchmarks.bench_model                   loops and launches: CPU time of one process
    python -m benchmarks.bench_model --commit quick    every quick row of all families: cold, then unchanged
    python -m benchmarks.bench_model --commit all      every row but those of large cases

The first is CPU time, so that a busy host disturbs it little; a commit is wall time on all cores, with an empty
cache of its own that is taken away afterwards.
"""

import argparse
import os
import resource
import tempfile
import time
from collections import Counter

import numpy as np

import ascend_model

from . import model_loops


def _running_sum():
    n = 16384
    x = np.ones(n, np.int32)
    return model_loops.running_sum, 1, {"x": x, "out": np.zeros_like(x), "n": n}, {"BLOCK": n}


def _walk():
    n = 200_000
    x = (np.arange(n, dtype=np.int32) % 7) - 3
    return model_loops.walk, 1, {"x": x, "out": np.zeros(1, np.int32), "n": n}, {}


def _spans():
    requests, span = 256, 1024
    args = {
        "rows": np.arange(requests, dtype=np.int32),
        "pool": np.zeros((requests, 8192), np.int32),
        "start": np.zeros(requests, np.int32),
        "end": np.full(requests, span, np.int32),
        "source": np.arange(requests * span, dtype=np.int32),
        "pool_len": 8192,
    }
    return model_loops.copy_spans, requests, args, {"SPAN": span, "BLOCK": 128}


LAUNCHES = {"running_sum": _running_sum, "walk": _walk, "copy_spans": _spans}


def _seconds(name):
    """Best of three runs of compiled code, and what it executed."""
    kernel, grid, args, constants = LAUNCHES[name]()
    code = ascend_model.compile_kernel(kernel, args, constants)
    if code.status != "ok":
        raise RuntimeError(f"{code.status}: {code.message}")
    taken = {key: args[key] for key in code.arguments}
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        done = ascend_model.simulate_text(code.generic, grid, taken)
        best = min(best, time.process_time() - start)
    if done.status != "ok":
        raise RuntimeError(f"{done.status}: {done.message}")
    return best, done.executed_ops


class ScalarLoops:
    """The model must sustain two million IR ops a second here."""

    params = ("running_sum", "walk")
    param_names = ("kernel",)
    timeout = 300

    def track_ops_per_second(self, kernel):
        seconds, ops = _seconds(kernel)
        return ops / seconds

    track_ops_per_second.unit = "IR ops/s"
    track_ops_per_second.version = "1"


class TypicalLaunch:
    """The model must take less than a second here."""

    timeout = 300

    def track_seconds(self):
        return _seconds("copy_spans")[0]

    track_seconds.unit = "s"
    track_seconds.version = "1"


def commit(which):
    """Seconds (wall, CPU) of all rows of a set of cases, and how many ended in which state."""
    from ascend_kernels.harness import suite
    from ascend_kernels.registry import OPS

    os.environ["ASCEND_PERF_CASES"] = which

    def cpu():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    wall, busy = time.monotonic(), cpu()
    entries = suite.model_all(OPS.values())
    states = Counter(entry["state"] for rows in entries.values() for entry in rows.values())
    return time.monotonic() - wall, cpu() - busy, states


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", choices=("quick", "timed", "all", "everything"))
    given = parser.parse_args()
    if given.commit:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ASCEND_PERF_CACHE"] = folder
            for words in ("cold", "unchanged"):
                wall, busy, states = commit(given.commit)
                told = ", ".join(f"{n} {state}" for state, n in states.most_common())
                print(f"{given.commit} {words}: {wall:.1f} s, {busy:.1f} s of CPU; {told}", flush=True)
        return
    for name in LAUNCHES:
        seconds, ops = _seconds(name)
        print(f"{name:12s} {ops:9d} IR ops in {seconds:6.3f} s: {ops / seconds / 1e6:5.1f} M a second")


if __name__ == "__main__":
    main()
