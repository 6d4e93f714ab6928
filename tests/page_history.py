"""Histories for the tests of the pages: a plain one whose numbers are known, and one full of hostile text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asv_files as asv

MODELLED = "bench_token_pool.ModelledAssign"
MEASURED = "bench_token_pool.MeasuredAssign"
CASES = ("small", "large")
IMPLS = ("derived", "carried")
LENGTH = 24
JUMP = 15

HOSTILE = (
    "<script>alert(1)</script>",
    "javascript:alert(1)",
    "\"' onmouseover=alert(1) x='",
    "</script><img src=x onerror=alert(1)>",
    "abc\u202egpj.exe\u2066\u200b\x07\x1b[31m",
    "../../../outside",
    "&lt;b&gt;%3Cscript%3E{{7*7}}${x}`",
    "x" * 10_000,
)


@dataclass(frozen=True)
class Place:
    """Folders of one history and its commits, oldest first."""

    root: Path
    commits: tuple[str, ...]

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def repo(self) -> Path:
        return self.root / "repo"


def kernel_repository(folder: Path, length: int) -> tuple[str, ...]:
    """Commits that each change the kernel's file."""
    folder.mkdir(parents=True)
    asv.git(folder, "init", "-q", "-b", "main")
    source = folder / "ascend_kernels" / "token_pool" / "assign.py"
    source.parent.mkdir(parents=True)
    for at in range(length):
        source.write_text(f"BLOCK = {at}\n")
        asv.git(folder, "add", ".")
        asv.git(folder, "commit", "-q", "-m", f"Commit number {at}", date=1_700_000_000 + at * 3600)
    return tuple(asv.git(folder, "log", "--reverse", "--format=%H").split())


def plain(
    root: Path, *, length: int = LENGTH, factor: float = 1.25, wrong: str = "", wrong_impl: str = "derived"
) -> Place:
    """One op with a twin that takes twice its cycles; the op's numbers jump by `factor` at commit JUMP
    (the large case's cycles by half of that).

    `wrong` is a state that the small case of `wrong_impl` ends in at the newest commit.
    """
    commits = kernel_repository(root / "repo", length)
    results = root / "results"
    names = {f"{MODELLED}.track_cycles": "cycles (modelled)", f"{MODELLED}.track_ub_bytes": "B (modelled)"}
    names |= {f"{MODELLED}.track_bytes_in": "B (modelled)", f"{MODELLED}.track_bytes_out": "B (modelled)"}
    asv.benchmarks_file(results, {**names, f"{MEASURED}.track_device_time": "us"})
    noise = random.Random(5)
    for at, commit in enumerate(commits):
        step = factor if at >= JUMP else 1.0
        failed = bool(wrong) and at == length - 1
        first, twin = 1000 * step, 2000
        if failed:
            first, twin = (None, twin) if wrong_impl == IMPLS[0] else (first, None)
        cycles = [first, twin, 4000 * (1 + step) / 2, 8000]
        counts = [first and 4096, twin and 4096, 8192, 8192]
        files = {
            f"{MODELLED}.track_cycles": asv.row(cycles, (CASES, IMPLS)),
            f"{MODELLED}.track_ub_bytes": asv.row(counts, (CASES, IMPLS)),
            f"{MODELLED}.track_bytes_in": asv.row(counts, (CASES, IMPLS)),
            f"{MODELLED}.track_bytes_out": asv.row(counts, (CASES, IMPLS)),
        }
        asv.result_file(results, commit, files, machine="model", date=1_700_000_000_000 + at)
        times = [base * step * (1 + 0.004 * noise.gauss(0, 1)) for base in (10, 20, 40, 80)]
        asv.result_file(
            results,
            commit,
            {
                f"{MEASURED}.track_device_time": asv.row(
                    times,
                    (CASES, IMPLS),
                    low=[t * 0.99 for t in times],
                    high=[t * 1.01 for t in times],
                    repeat=[9] * 4,
                )
            },
            machine="npu-1",
            date=1_700_000_000_000 + at,
        )
        lines = []
        for suite, machine in ((MODELLED, "model"), (MEASURED, "npu-1")):
            for case in CASES:
                for impl in IMPLS:
                    bad = failed and suite == MODELLED and (case, impl) == ("small", wrong_impl)
                    twin = impl != IMPLS[0]
                    lines.append(
                        asv.state_line(
                            commit, case, impl, wrong if bad else "ok", suite=suite, machine=machine,
                            role="twin" if twin else "op", reason="out[3] is 5, expected 9" if bad else "",
                            code="c0de" * 4 if at < JUMP or twin else "0123456789abcdef",
                            findings=["out of bounds read past the pool"] if twin and case == "large" else [],
                            pipes={"busy": {"S": 600, "V": 100}, "stalls": {"S waits for MTE2": 400}},
                        )
                    )  # fmt: skip
        asv.states_file(results, commit, lines)
    return Place(root, commits)


def once_wrong(root: Path) -> Place:
    """Three commits; at the oldest one each case is something else, later all are ok."""
    first = {"gap": ("wrong result", None), "text": ("compile failed", None), "zero": ("ok", 0), "even": ("ok", 7)}
    commits = asv.repository(root / "repo", ["first", "second", "third"])
    results = root / "results"
    name = f"{MODELLED}.track_cycles"
    asv.benchmarks_file(results, {name: "cycles (modelled)"})
    for at, commit in enumerate(commits):
        cases = first if not at else {**dict.fromkeys(first, ("ok", 7)), "late": ("ok", 7)}
        values = [value for _, value in cases.values()]
        rows = {name: asv.row(values, (tuple(cases), ("derived",)))}
        asv.result_file(results, commit, rows, machine="model", date=at)
        lines = [
            asv.state_line(
                commit, case, "derived", state, machine="model", reason=f"{case} {state}" if state != "ok" else ""
            )
            for case, (state, _) in cases.items()
        ]
        asv.states_file(results, commit, lines)
    return Place(root, tuple(commits))


def hostile(root: Path, texts: Sequence[str] = HOSTILE) -> Place:
    """Every name, subject, parameter, unit, reason and finding is hostile."""
    subjects = [text.replace("\x00", "") for text in texts]
    commits = asv.repository(root / "repo", subjects)
    results = root / "results"
    short = [text[:900] for text in texts]
    suites = [f"bench_{text}.Modelled{text}" for text in short]
    asv.benchmarks_file(results, {f"{suite}.track_{text}": text for suite, text in zip(suites, short)})
    cases, impls = tuple(short), ("derived", short[0])
    for at, commit in enumerate(commits):
        values = [100.0 + at + place for place in range(len(cases) * len(impls))]
        files = {f"{suite}.track_{text}": asv.row(values, (cases, impls)) for suite, text in zip(suites, short)}
        versions = {"ascendnpu-ir": short[at % len(short)], short[0]: short[1]}
        asv.result_file(
            results, commit, files, machine="m", versions=versions, date=at, env_name=short[at % len(short)]
        )
        state = "wrong result" if at == len(commits) - 1 else "ok"
        lines = []
        for suite in suites:
            for case in cases:
                for impl in impls:
                    more = {"suite": suite, "machine": "m", "versions": versions, "reason": case * 2}
                    more |= {"code": f"../../{case}"[:60] + str(at), "findings": [case, "../x"], "notes": [case]}
                    more["role"] = texts[0] if impl == "derived" else "twin"
                    lines.append(asv.state_line(commit, case, impl, state, **more))
        asv.states_file(results, commit, lines)
    return Place(root, tuple(commits))
