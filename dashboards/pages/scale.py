"""How long the pages take to build on a large, made-up history, next to `asv publish` on the same files.

python -m dashboards.pages.scale                      # 1600 series, 1000 commits
python -m dashboards.pages.scale --publish --keep DIR # with `asv publish` in the same run
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MODELLED = ("cycles", "scalar_accesses", "bytes_in", "bytes_out", "dma_in", "ub_bytes", "vector_ops")
UNITS = ("cycles", "accesses", "B", "B", "copies", "B", "ops")
MEASURED = ("device_time", "device_time_cold", "host_time")
CASES = ("decode-32x1-2", "verify-32x5-20", "extend-32x512", "ragged")
IMPLS = ("derived", "carried", "modulo", "prefetch")
PINS = {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0"}
START = 1_700_000_000
OVERVIEW = ("index.html", "data/heat.js", "assets/pages.js", "assets/pages.css", "assets/icon.svg")


def make_repository(place: Path, count: int) -> list[str]:
    """A git repository of `count` commits, each changing one kernel file; full hashes, oldest first."""
    place.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "-b", "main", str(place)], check=True)
    lines = []
    for at in range(count):
        subject = f'Commit {at}: tune <tile> sizes & "masks"\n'
        body = f"BLOCK = {at}\n"
        lines.append(
            f"commit refs/heads/main\nmark :{at + 1}\n"
            f"committer Made Up <made-up@example.invalid> {START + 3600 * at} +0000\n"
            f"data {len(subject.encode())}\n{subject}"
            + (f"from :{at}\n" if at else "")
            + f"M 100644 inline ascend_kernels/made_up/op_{at % 10:02}.py\ndata {len(body)}\n{body}\n"
        )
    subprocess.run(["git", "-C", str(place), "fast-import", "--quiet"], input="".join(lines).encode(), check=True)
    out = subprocess.run(
        ["git", "-C", str(place), "log", "--reverse", "--format=%H", "main"],
        check=True,
        capture_output=True,
        text=True,
    )
    return out.stdout.split()


def make_results(place: Path, commits: list[str], ops: int = 10, *, seed: int = 7) -> Iterator[int]:
    """Writes asv result files and state sidecars of `ops` x 160 series; yields after each commit."""
    random = np.random.default_rng(seed)
    shape = (ops, len(CASES), len(IMPLS))
    length = len(commits)
    # every implementation of an op changes its level a few times in the history, all cases together
    level = np.ones((length, ops, 1, len(IMPLS)))
    for op in range(ops):
        for impl in range(len(IMPLS)):
            for start in random.integers(10, max(11, length - 3), 3):
                level[start:, op, 0, impl] *= random.choice([0.8, 0.9, 1.1, 1.25])
    base = random.integers(1_000, 100_000, (len(MODELLED), *shape))
    times = random.uniform(5, 500, (len(MEASURED), *shape))
    folders = [place / "modelled-ascend910b1", place / "npu-1", place / "states"]
    for folder in folders:
        folder.mkdir(parents=True)
    for folder in folders[:2]:
        facts = {"arch": "any", "cpu": "made up", "machine": folder.name, "num_cpu": "", "os": "any", "ram": ""}
        (folder / "machine.json").write_text(json.dumps({**facts, "version": 1}))
    (place / "benchmarks.json").write_text(json.dumps(_benchmarks(ops)))
    for at, commit in enumerate(commits):
        counts = np.rint(base * level[at]).astype(int)
        noisy = times * level[at] * (1 + 0.01 * random.standard_normal(times.shape))
        rows: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for op in range(ops):
            for metric, name in enumerate(MODELLED):
                rows[0][_name("Modelled", op, name)] = _row(counts[metric, op], None)
            for metric, name in enumerate(MEASURED):
                rows[1][_name("Measured", op, name)] = _row(noisy[metric, op], 0.01)
        for folder, results in zip(folders, rows):
            text = json.dumps(_file(commit, START + 3600 * at, folder.name, results))
            (folder / f"{commit[:8]}-host.json").write_text(text)
        codes = level[at, :, 0, :]
        with open(folders[2] / f"{commit}.jsonl", "w") as out:
            for op in range(ops):
                for kind, machine in zip(("Modelled", "Measured"), folders):
                    for case in CASES:
                        for impl, name in enumerate(IMPLS):
                            out.write(
                                json.dumps(_state(commit, op, kind, machine.name, case, name, codes[op, impl]))
                            )
                            out.write("\n")
        yield at


def _name(kind: str, op: int, metric: str) -> str:
    return f"bench_made_up.{kind}Op{op:02}.track_{metric}"


def _row(values: np.ndarray, noise: float | None) -> list[Any]:
    flat = values.ravel().tolist()
    row = [flat, [[repr(c) for c in CASES], [repr(i) for i in IMPLS]], "1", 1, 0.1]
    if noise is not None:
        low, high = (values * (1 - noise)).ravel().tolist(), (values * (1 + noise)).ravel().tolist()
        row += [low, high, low, high, [1] * len(flat), [10] * len(flat)]
    return row


def _file(commit: str, when: int, machine: str, results: dict[str, Any]) -> dict[str, Any]:
    columns = "result params version started_at duration stats_ci_99_a stats_ci_99_b stats_q_25 stats_q_75"
    return {
        "commit_hash": commit,
        "env_name": "host",
        "date": when * 1000,
        "params": {"machine": machine, "python": "3.11", "arch": "any", "cpu": "made up", "os": "any", **PINS},
        "python": "3.11",
        "requirements": PINS,
        "env_vars": {},
        "result_columns": [*columns.split(), "stats_number", "stats_repeat", "samples", "profile"],
        "results": results,
        "durations": {},
        "version": 2,
    }


def _state(commit: str, op: int, kind: str, machine: str, case: str, impl: str, code: float) -> dict[str, Any]:
    return {
        "version": 1,
        "commit": commit,
        "suite": f"bench_made_up.{kind}Op{op:02}",
        "op": f"op{op:02}",
        "case": case,
        "impl": impl,
        "role": "op" if impl == IMPLS[0] else "twin",
        "pattern": "",
        "state": "ok",
        "reason": "",
        "code": f"{code:.9f}",
        "findings": [],
        "notes": [],
        "versions": PINS,
        "machine": machine,
    }


def _benchmarks(ops: int) -> dict[str, Any]:
    found: dict[str, Any] = {"version": 2}
    for op in range(ops):
        names = [("Modelled", name, f"{unit} (modelled)") for name, unit in zip(MODELLED, UNITS)]
        names += [("Measured", name, "us") for name in MEASURED]
        for kind, name, unit in names:
            full = _name(kind, op, name)
            found[full] = {
                "name": full,
                "type": "track",
                "unit": unit,
                "param_names": ["case", "impl"],
                "version": "1",
                "params": [[repr(c) for c in CASES], [repr(i) for i in IMPLS]],
                "code": "",
                "timeout": 60,
            }
    return found


def timed_build(place: Path, name: str) -> dict[str, Any]:
    """One build in a process of its own, on one core: seconds of the wall and of the processor, peak memory."""
    command = [sys.executable, "-m", "dashboards.cli", "dashboard", "--results", str(place / "results")]
    command += ["--repo", str(place / "repo"), "--out", str(place / "site")]
    return {"build": name, **_timed(command, place)}


def _timed(command: list[str], place: Path) -> dict[str, Any]:
    environment = dict(os.environ, XDG_CACHE_HOME=str(place / "cache"))
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    if shutil.which("taskset"):
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        started = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        _, status, used = os.wait4(started.pid, 0)
        wall = time.perf_counter() - start
        if status:
            said.seek(0)
            raise SystemExit(said.read()[-2000:].decode(errors="replace"))
    seconds = round(used.ru_utime + used.ru_stime, 2)
    return {"wall": round(wall, 2), "processor": seconds, "peak_mb": round(used.ru_maxrss / 1024)}


def timed_publish(place: Path) -> dict[str, Any]:
    """`asv publish` on the same results."""
    settings = {
        "version": 1, "project": "made up", "project_url": "", "repo": str(place / "repo"), "branches": ["main"],
        "dvcs": "git", "benchmark_dir": str(place / "benchmarks"), "env_dir": str(place / "env"),
        "results_dir": str(place / "results"), "html_dir": str(place / "html"),
    }  # fmt: skip
    (place / "asv.conf.json").write_text(json.dumps(settings))
    (place / "benchmarks").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "asv", "--config", str(place / "asv.conf.json"), "publish"]
    return {"build": "asv publish", **_timed(command, place)}


def main(arguments: list[str] | None = None) -> int:
    """Builds cold, again, and after one more commit; prints one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--ops", type=int, default=10, help="each has 160 series")
    parser.add_argument("--publish", action="store_true", help="time `asv publish` too")
    parser.add_argument("--keep", help="folder to work in, and to leave behind")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(given.keep or folder)
        commits = make_repository(place / "repo", given.commits)
        for _ in make_results(place / "results", commits, given.ops):
            pass
        aside = place / "aside"
        newest = commits[-1]
        files = [
            *(place / "results").glob(f"*/{newest[:8]}-*.json"),
            place / "results" / "states" / f"{newest}.jsonl",
        ]
        for path in files:
            (aside / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.move(path, aside / path.parent.name / path.name)
        print(json.dumps(timed_build(place, "cold")), flush=True)
        print(json.dumps(timed_build(place, "nothing new")), flush=True)
        for path in files:
            shutil.move(aside / path.parent.name / path.name, path)
        print(json.dumps(timed_build(place, "one new commit")), flush=True)
        site = place / "site"
        sizes = {"index.html": (site / "index.html").stat().st_size}
        sizes["overview"] = sum((site / one).stat().st_size for one in OVERVIEW)
        sizes["site"] = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
        print(json.dumps({"bytes": sizes}), flush=True)
        if given.publish:
            print(json.dumps(timed_publish(place)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
