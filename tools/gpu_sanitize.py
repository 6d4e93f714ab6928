"""compute-sanitizer over every op, case and implementation, and over fuzzed metadata with validate=True.

    python tools/gpu_sanitize.py --json sanitize.json [--ops NAME,...] [--fuzz 20] [--seconds 360]
    python tools/gpu_sanitize.py --tools memcheck,racecheck --json sanitize.json
    python tools/gpu_sanitize.py --dry --json sanitize.json   # the interpreter's bounds in place of a sanitizer
    python tools/gpu_sanitize.py --read REPORT.txt            # what a report says

A run is clean when the sanitizer came to its summary, the summary counts nothing, and every job was done: silence
is no proof.  Exit code: 0 clean, 1 reports or jobs that were not done, 4 usage, no sanitizer or no job,
130 stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import run_files

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck")
JOB, DONE, UNEXPECTED = "== job ", "== done ", "== unexpected "
LARGEST = 1 << 22  # elements of a case above which racecheck takes too long
# What a wrapper may answer to metadata that makes no sense.
REFUSALS = ("ValueError", "TypeError", "PlanError", "Unsupported")


# ---- reports


@dataclass(frozen=True)
class Report:
    """One finding of a sanitizer.  where: the job during which it came."""

    tool: str
    what: str
    where: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """What one sanitizer run said.  counted: errors and hazards of its summaries; finished: it had a summary."""

    reports: tuple[Report, ...]
    counted: int
    finished: bool
    done: tuple[str, ...]
    unexpected: tuple[str, ...]


def read(text: str, tool: str) -> Reading:
    """Parse the output of a sanitizer and of the jobs below it."""
    reports: list[Report] = []
    done: list[str] = []
    unexpected: list[str] = []
    where, counted, finished = "before the first job", 0, False
    what: str | None = None
    details: list[str] = []

    def close() -> None:
        nonlocal what
        if what is not None:
            reports.append(Report(tool, what, where, tuple(details)))
        what = None
        details.clear()

    for line in text.splitlines():
        found = re.match(r"=========(?: (.*))?$", line.rstrip())
        if found is None:
            if line.startswith((JOB, DONE, UNEXPECTED)):
                close()
            if line.startswith(JOB):
                where = line[len(JOB) :]
            elif line.startswith(DONE):
                done.append(line[len(DONE) :])
                where = f"after {done[-1]}"
            elif line.startswith(UNEXPECTED):
                unexpected.append(f"{where}: {line[len(UNEXPECTED) :]}")
            continue
        words = found[1] or ""
        summary = re.search(r"SUMMARY:\s*([\d,]+)\s+(error|hazard|byte)", words)
        if summary:
            close()
            # The second line of that name says how many of them were not printed.
            if "not printed" not in words:
                counted += int(summary[1].replace(",", ""))
            finished = finished or summary[2] != "byte"
        elif not words.strip() or words.strip().startswith(("COMPUTE-SANITIZER", "LEAK SUMMARY")):
            close()
        elif words.startswith("    "):
            details.append(words.strip())
        else:
            close()
            what = words.strip()
    close()
    return Reading(tuple(reports), counted, finished, tuple(done), tuple(unexpected))


def troubles(reading: Reading, wanted: Iterable[str], code: int | None) -> list[str]:
    """Why a run is not clean, one sentence each."""
    said = [f"{one.where}: {one.what}" for one in reading.reports]
    said += [f"not refused, or with the wrong error: {one}" for one in reading.unexpected]
    if reading.counted and not reading.reports:
        said.append(f"the summary counts {reading.counted}, nothing was printed")
    if not reading.finished:
        said.append(f"the sanitizer came to no summary (exit code {code})")
    left = [job for job in wanted if job not in set(reading.done)]
    if left:
        said.append(f"{len(left)} jobs were not done, first {left[0]}")
    return said


# ---- jobs


def jobs_of(ops: Mapping[str, Any], fuzz: int, sizes: range, *, dry: bool) -> list[str]:
    """`op case impl` for every case of so many elements, `op case fuzz SEED` for metadata gone wrong."""
    from ascend_kernels.harness import isolated

    named = [(op.name, case) for op in ops.values() for case in (list(op.cases)[:2] if dry else op.cases)]
    work = isolated.each(named, lambda job: _size(ops[job[0]].cases[job[1]]), workers=isolated.workers())
    taken = {job: size for job, size, _ in work if size in sizes}
    found = []
    for op in ops.values():
        cases = [case for name, case in named if name == op.name and (name, case) in taken]
        found += [f"{op.name} {case} {impl}" for case in cases for impl in (*op.implementations, *op.gpu)]
        small = sorted(cases, key=lambda case: taken[op.name, case])[:4]
        found += [f"{op.name} {small[seed % len(small)]} fuzz {seed}" for seed in range(fuzz) if small]
    return found


def _size(case: Any) -> int:
    return sum(value.numel() for value in case.arguments().values() if hasattr(value, "numel"))


def fuzzed(arguments: dict[str, Any], seed: int) -> dict[str, Any]:
    """The arguments with some values of their integer tensors, or a length, replaced by what nobody asked for."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def pick(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    names = [n for n, v in arguments.items() if hasattr(v, "numel") and not v.is_floating_point() and v.numel()]
    changed = dict(arguments)
    for _ in range(1 + pick(2)):
        if not names:
            break
        name = names[pick(len(names))]
        tensor = changed[name].clone()
        if not tensor.numel():
            continue
        limits = torch.iinfo(tensor.dtype) if tensor.dtype != torch.bool else None
        if pick(6) == 0 and tensor.dim() == 1:
            changed[name] = tensor[:-1].clone() if pick(2) else torch.cat([tensor, tensor[-1:]])
            continue
        flat = tensor.reshape(-1)
        for _ in range(1 + pick(3)):
            at = pick(flat.numel())
            if limits is None:
                flat[at] = not bool(flat[at])
                continue
            largest = max(int(v.max()) for v in arguments.values() if hasattr(v, "numel") and v.numel() and
                          not v.is_floating_point() and v.dtype != torch.bool) if names else 0  # fmt: skip
            values = [
                -1,
                0,
                1,
                -(2**31),
                2**31 - 1,
                limits.min,
                limits.max,
                largest + 1,
                int(flat[pick(flat.numel())]),
            ]
            value = values[pick(len(values))]
            flat[at] = min(max(value, limits.min), limits.max)
        changed[name] = flat.reshape(tensor.shape)
    return changed


def work(jobs: list[str]) -> int:
    """Run the jobs on the device in this process; the sanitizer around it sees every launch."""
    import ascend_kernels  # noqa: F401  before triton
    from ascend_kernels.harness import device, gate
    from ascend_kernels.registry import OPS

    place = device.kind()
    module, where = device.module(place), device.tensors(place)
    for job in jobs:
        print(JOB + job, flush=True)
        name, case, impl, *seed = job.split(" ")
        op = OPS[name]
        try:
            if seed:
                arguments = fuzzed(op.cases[case].arguments(), int(seed[0]))
                gate.run(op.call, arguments, where, validate=True)
            else:
                gate.run(op.calls()[impl], op.cases[case].arguments(), where, validate=True)
            module.synchronize()
        except Exception as error:
            names = {one.__name__ for one in type(error).__mro__}
            if not names & set(REFUSALS):
                print(f"{UNEXPECTED}{type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
        print(DONE + job, flush=True)
    return 0


# ---- runs


def run_tool(
    tool: str, program: str | None, jobs: list[str], end: float, place: Path, workers: int
) -> dict[str, Any]:
    """One sanitizer over the jobs, dealt to several processes; what they print is kept in `place` and one file a
    further process."""
    environment = {
        **os.environ,
        # Without torch's own pool every tensor is an allocation of its own, with an end that can be overrun.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    begin = time.monotonic()
    parts: list[tuple[list[str], Path, subprocess.Popen[bytes]]] = []
    for i in range(min(workers, len(jobs)) or 1):
        text = place if i == 0 else place.with_name(f"{place.stem}-{i + 1}{place.suffix}")
        listing = text.with_suffix(".jobs")
        listing.write_text(json.dumps(jobs[i::workers]))
        command = [sys.executable, str(Path(__file__).resolve()), "--work", str(listing)]
        if program:
            command = [
                program, "--tool", tool, "--target-processes", "application-only", "--print-limit", "100",
                "--error-exitcode", "77", *command,
            ]  # fmt: skip
        with open(text, "w") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
            )
        parts.append((jobs[i::workers], text, process))
    codes: list[int | None] = []
    try:
        for _, _, process in parts:
            try:
                codes.append(process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
    finally:
        for _, _, process in parts:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the sanitizer and what runs below it
                process.wait()
    readings: list[Reading] = []
    said: list[str] = []
    for (wanted, text, _), code in zip(parts, codes):
        words = text.read_text(errors="replace")
        if program is None:  # the interpreter raises where a sanitizer would report
            words += "\n========= ERROR SUMMARY: 0 errors\n" if code == 0 else ""
        readings.append(read(words, tool))
        said += troubles(readings[-1], wanted, code)
    return {
        "tool": tool, "seconds": round(time.monotonic() - begin, 1), "exit": codes, "jobs": len(jobs),
        "done": sum(len(one.done) for one in readings), "counted": sum(one.counted for one in readings),
        "troubles": said, "reports": [asdict(report) for one in readings for report in one.reports],
        "text": [str(text) for _, text, _ in parts],
    }  # fmt: skip


def summary(runs: Iterable[Mapping[str, Any]]) -> str:
    """Markdown table of the runs."""
    lines = ["| tool | jobs | done | reports | seconds | clean |", "|---|---|---|---|---|---|"]
    for one in runs:
        clean = "no" if one["troubles"] else "yes"
        reports = max(len(one["reports"]), one["counted"])
        lines.append(
            f"| {one['tool']} | {one['jobs']} | {one['done']} | {reports} | {one['seconds']:g} | {clean} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = run_files.Parser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the reports go, after every tool")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--ops", help="only these ops, comma-separated")
    parser.add_argument("--fuzz", type=int, default=20, metavar="N", help="fuzzed calls of each op (default: 20)")
    parser.add_argument(
        "--largest",
        type=int,
        default=LARGEST,
        metavar="N",
        help=f"elements of a case at most (default: {LARGEST})",
    )
    parser.add_argument(
        "--smallest", type=int, default=0, metavar="N", help="elements of a case at least (default: 0)"
    )
    parser.add_argument("--seconds", type=float, default=360, help="for all tools together (default: 360)")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="processes a tool")
    parser.add_argument("--sanitizer", help="the program (default: compute-sanitizer on PATH)")
    parser.add_argument("--dry", action="store_true", help="on the CPU, without a sanitizer")
    parser.add_argument("--read", type=Path, metavar="REPORT", help="parse a report and print what it says")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.work:
        return work(json.loads(given.work.read_text()))
    if given.read:
        try:
            reading = read(given.read.read_text(errors="replace"), "given")
        except OSError as error:
            print(f"gpu_sanitize: {error}", file=sys.stderr)
            return 4
        print(json.dumps(asdict(reading), indent=1))
        return 1 if reading.reports or reading.counted or not reading.finished else 0
    if given.dry:
        os.environ["ASCEND_KERNELS_DEVICE"] = "dry"
    import ascend_kernels  # noqa: F401
    from ascend_kernels.harness import device
    from ascend_kernels.registry import OPS

    program = None if given.dry and not given.sanitizer else given.sanitizer or shutil.which("compute-sanitizer")
    if not given.dry and (device.kind() != "cuda" or program is None):
        what = "compute-sanitizer" if program is None else "GPU"
        print(f"gpu_sanitize: no {what} here; --dry tries it without one", file=sys.stderr)
        return 4
    try:
        tools = run_files.names(given.tools, TOOLS, "tool")
        only = run_files.names(given.ops, OPS, "op")
        run_files.check_writable(given.json)
    except (OSError, ValueError) as error:
        print(f"gpu_sanitize: {error}", file=sys.stderr)
        return 4
    ops = {name: op for name, op in OPS.items() if not only or name in only}
    jobs = jobs_of(ops, given.fuzz, range(given.smallest, given.largest + 1), dry=given.dry)
    if not jobs or not tools:  # nothing that was looked at is nothing that is clean
        print("gpu_sanitize: no job: no tool, or no case of that size", file=sys.stderr)
        return 4
    folder = given.json.parent if given.json else Path.cwd()
    begin = time.monotonic()
    runs: list[dict[str, Any]] = []
    for i, tool in enumerate(tools):
        end = begin + given.seconds * (i + 1) / len(tools)
        runs.append(run_tool(tool, program, jobs, end, folder / f"sanitize-{tool}.txt", given.workers))
        for one in runs[-1]["troubles"][:20]:
            print(f"{tool}: {one}", flush=True)
        if given.json:
            given.json.write_text(json.dumps({"version": 1, "dry": given.dry, "runs": runs}, indent=1))
    print(summary(runs))
    return 1 if any(one["troubles"] for one in runs) else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main() if "--work" in sys.argv else run_files.stoppable("gpu_sanitize", main))
