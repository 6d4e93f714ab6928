"""Writes results folders as asv does, and git repositories to go with them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = [
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b",
    "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
]  # fmt: skip
VERSIONS = {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "ascend-model": "1"}
MODELLED = "bench_token_pool.ModelledAssign.track_cycles"
MEASURED = "bench_token_pool.MeasuredAssign.track_device_time"
CASES = ("small", "large")
IMPLS = ("op", "gather_twin")


def row(
    values: Sequence[float | None] | None,
    params: Sequence[Sequence[str]] = (CASES, IMPLS),
    *,
    version: str = "1",
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
    repeat: Sequence[int | None] | None = None,
) -> list[Any]:
    """One benchmark's row, trailing nulls cut as asv does."""
    cells: list[Any] = [values, [[repr(one) for one in axis] for axis in params], version, 1, 0.5, low, high]
    cells += [None, None, None, repeat]
    while cells and cells[-1] is None:
        cells.pop()
    return cells


def result_file(
    folder: Path,
    commit: str,
    results: Mapping[str, Any],
    *,
    machine: str = "ci",
    date: int = 0,
    versions: Mapping[str, str] = VERSIONS,
    name: str = "host",
    **more: Any,
) -> Path:
    """One asv result file; `more` overrides its fields."""
    place = folder / machine
    place.mkdir(parents=True, exist_ok=True)
    (place / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}))
    data = {
        "commit_hash": commit,
        "env_name": name,
        "date": date,
        "params": {"machine": machine, "cpu": "x", "os": "Linux", "python": "3.11", **versions},
        "python": "3.11",
        "requirements": dict(versions),
        "env_vars": {},
        "result_columns": COLUMNS,
        "results": dict(results),
        "durations": {},
        "version": 2,
        **more,
    }
    path = place / f"{commit[:8]}-{name}.json"
    path.write_text(json.dumps(data))
    return path


def benchmarks_file(folder: Path, names: Mapping[str, str]) -> None:
    """asv's list of benchmarks: name to unit."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {
        name: {"name": name, "unit": unit, "param_names": ["case", "impl"], "type": "track", "version": "1"}
        for name, unit in names.items()
    }
    (folder / "benchmarks.json").write_text(json.dumps({**rows, "version": 2}))


def state_line(commit: str, case: str = "small", impl: str = "op", state: str = "ok", **more: Any) -> str:
    line = {
        "version": 1,
        "commit": commit,
        "suite": "bench_token_pool.ModelledAssign",
        "op": "assign",
        "case": case,
        "impl": impl,
        "role": "twin" if "twin" in impl else "op",
        "state": state,
        "reason": "",
        "code": "",
        "findings": [],
        "notes": [],
        "versions": {**VERSIONS, "python": "3.11"},
        "machine": "ci",
        "at": 1,
        **more,
    }
    return json.dumps(line)


def states_file(folder: Path, commit: str, lines: Sequence[str]) -> None:
    place = folder / "states"
    place.mkdir(parents=True, exist_ok=True)
    with open(place / f"{commit}.jsonl", "a") as file:
        file.write("\n".join(lines) + "\n")


def git(repo: Path, *arguments: str, date: int = 1_700_000_000) -> str:
    """Runs git in a repository with fixed names and the clock given."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(repo),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_AUTHOR_DATE": f"{date} +0000",
        "GIT_COMMITTER_DATE": f"{date} +0000",
    }
    done = subprocess.run(
        ["git", "-C", str(repo), "-c", "protocol.file.allow=always", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def repository(folder: Path, subjects: Sequence[str], dates: Sequence[int] | None = None) -> list[str]:
    """A repository with one empty commit for each subject; their hashes, oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    hashes = []
    for at, subject in enumerate(subjects):
        when = dates[at] if dates else 1_700_000_000 + at
        git(folder, "commit", "-q", "--allow-empty", "--allow-empty-message", "-m", subject, date=when)
        hashes.append(git(folder, "rev-parse", "HEAD"))
    return hashes
