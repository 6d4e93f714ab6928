"""Every op side by side in one run: its implementations and twins, the torch form, the one-program-a-row kernel,
an empty kernel and the copy bandwidth.  Verdict first, then times; targets are checked and misses printed.

    python tools/gpu_compare.py --json compare.json [--ops NAME,...] [--cases ID,...] [--seconds 400] [--workers 8]
    python tools/gpu_compare.py --from compare.json --docs docs/devices.md   # write tables of runs, no device
    python tools/gpu_compare.py --dry --json compare.json                    # try it without a device

Verdicts of all cases come first, on several processes at once, since nothing is timed meanwhile; then one process
times what is right.  Where the op is slower than another form, both are timed once more in a second process,
without the rest, and what they differ by there counts: where the memory of a process lies can make a small kernel
slower by a fifth, and what ran before it by a quarter of a microsecond (behind launches that overlap, kernels
start sooner).  A form that launches just what the op launches in a case is no other form there.  Results are kept
after every case, so a run that is cut short has what it measured.

Exit code: 0 all targets met, 1 misses, wrong results or cut short, 3 nothing measured, 4 usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if "--dry" in sys.argv:
    os.environ["ASCEND_KERNELS_DEVICE"] = "dry"

import run_files

import ascend_kernels  # noqa: F401  before triton, which binds to interpreter or compiler when it is imported
from ascend_kernels.harness import device, gate, isolated, state, timing
from ascend_kernels.harness.launch import Launch, launch, recorded
from ascend_kernels.harness.spec import Arguments, Op, Twin
from ascend_kernels.registry import OPS

TORCH, ROWS, AGAIN = "torch form", "one program a row", "(again)"
COPY_BYTES = 1 << 30
# Targets, as in docs/devices.md.
COPY_SHARE = 0.60  # of copy bandwidth, of the two large copies of the token pool
LARGE = {("assign_req_to_token_pool", "extend-1024x4096"), ("assign_extend_cache_locs", "extend-1024x4096")}
OVER_EMPTY = 0.10  # a launch-bound case of the token pool over an empty kernel's time
LAUNCH_BOUND = 0.10  # its bytes at copy bandwidth take less than this share of an empty kernel
OVER_TWIN = 0.03
LARGE_THREADS = 4  # times as many threads for the reference of a large case
BEGIN, END = "<!-- begin of gpu_compare -->", "<!-- end of gpu_compare -->"


def baseline(place: str) -> dict[str, Any]:
    """Copy bandwidth in bytes a second, read and written, and microseconds of an empty kernel and of a chain: one
    program that loads an index, loads what it points at and stores that, the least a copy through metadata can do.

    The copy is the fastest of the driver's own, on its own and in a graph, and of a kernel that copies."""
    import statistics

    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def empty_kernel(out):
        pass

    @triton.jit
    def chain_kernel(index, out):
        lanes = tl.arange(0, 32)
        at = tl.load(index) + lanes
        tl.store(out + at, tl.load(index + at))

    dry = place == "dry"
    size = 1 << 16 if dry else COPY_BYTES
    source = torch.ones(size // 4, dtype=torch.int32, device=device.tensors(place))
    target = torch.zeros_like(source)
    rounds = 2 if dry else 20
    calls: dict[str, Callable[..., Any]] = {
        "driver in a graph": lambda: target.copy_(source),
        "kernel": lambda: torch.add(source, 0, out=target),
        "empty": lambda: launch(empty_kernel, (1,), {"out": target}),
        "chain": lambda: launch(chain_kernel, (1,), {"index": source, "out": target}),
    }
    found = timing.measure(calls, {}, place, rounds=rounds)
    module = device.module(place)
    alone = []
    for _ in range(rounds):
        begin, end = (module.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        alone.append(begin.elapsed_time(end) * 1e3)
    copies = {name: found[name].median() for name in ("driver in a graph", "kernel")}
    copies["driver"] = statistics.median(alone)
    return {
        "copy_us": copies,
        "copy_bytes_a_second": 2 * size / (min(copies.values()) * 1e-6),
        "empty_us": found["empty"].median(),
        "empty_alone_us": timing.alone(calls["empty"], {}, place, rounds),
        "chain_us": found["chain"].median(),
        "chain_alone_us": timing.alone(calls["chain"], {}, place, rounds),
        "empty_host_us": found["empty"].median("host"),
    }


def with_baselines(op: Op, case: str) -> Op:
    """The op with its torch form and its one-program-a-row kernel among the twins."""
    import row_kernels

    more = {}
    rows = row_kernels.of(op.cases[case].arguments()).get(op.name)
    for name, form in ((TORCH, op.torch_form), (ROWS, rows)):
        if form is not None:
            more[name] = Twin(_without_validate(form), pattern=name)
    return dataclasses.replace(op, twins={**op.twins, **more})


def _without_validate(form: Callable[..., Any]) -> Callable[..., Any]:
    return lambda validate=False, **arguments: form(**arguments)


Job = tuple[str, str, tuple[str, ...]]
"""An op, a case of it, and the forms that are timed, none for all."""


def verdicts(op: Op, case: str) -> dict[str, tuple[str, str]]:
    """State and reason of everything that is to be timed in one case."""
    expected = gate.Expected.of(op, case)
    found = {name: gate.verify(op, case, name, expected=expected) for name in op.names(device.kind())}
    return {name: (verdict.state, verdict.reason[:300]) for name, verdict in found.items()}


def judge_all(
    jobs: list[tuple[str, str]], extended: Callable[[str, str], Op], workers: int, seconds: float, place: str
) -> tuple[dict[tuple[str, str], dict[str, tuple[str, str]]], dict[tuple[str, str], str]]:
    """Verdicts of all cases, several at once, and why a case has none; those not begun in time have neither."""
    import torch

    def judge(job: tuple[str, str]) -> dict[str, tuple[str, str]]:
        # A large case is gigabytes of arithmetic for the reference, and the longest of them ends last.
        share = max(1, (os.cpu_count() or 1) // workers)
        large = OPS[job[0]].cases[job[1]].large
        torch.set_num_threads(1 if place == "dry" else share * (LARGE_THREADS if large else 1))
        return verdicts(extended(*job), job[1])

    judged, lost = {}, {}
    begin = time.monotonic()
    # The large ones first, so that none of them is left at the end.
    ordered = sorted(jobs, key=lambda job: not OPS[job[0]].cases[job[1]].large)
    for job, outcome, reason in isolated.each(ordered, judge, seconds=300, workers=workers, until=begin + seconds):
        if outcome is None:
            lost[job] = reason
        else:
            judged[job] = outcome
    if len(judged) + len(lost) < len(jobs):
        print("no more time for verdicts: the other cases are not timed", flush=True)
    print(f"{len(judged)} of {len(jobs)} cases have verdicts after {time.monotonic() - begin:.0f} s", flush=True)
    return judged, lost


def launches_of(call: Callable[..., Any], arguments: Arguments) -> list[tuple[Any, ...]]:
    """What a call launches: kernels, grids, constants, options, and the form of what they are given."""
    import torch

    def form(value: Any) -> Any:
        return (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value

    def facts(one: Launch) -> tuple[Any, ...]:
        given = {name: form(value) for name, value in one.args.items()}
        return id(one.kernel), one.grid, dict(one.constants), dict(one.options), given

    with recorded() as seen:
        call(**arguments)
    return [facts(one) for one in seen]


def same_as(first: str, calls: Mapping[str, Callable[..., Any]], arguments: Arguments, place: str) -> set[str]:
    """Calls that launch just what the call named `first` launches: their times differ by chance alone."""
    import torch

    where = device.tensors(place)
    held = {k: v.to(where) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    own = launches_of(calls[first], held)
    return {name for name, call in calls.items() if name != first and launches_of(call, held) == own}


def time_case(
    op: Op, case: str, judged: dict[str, tuple[str, str]], place: str, only: Collection[str] = ()
) -> dict[str, Any]:
    """Times of one case, of what is right; only: names of the forms, all of them for none."""
    module = device.module(place)
    names = [name for name in op.names(place) if not only or name in only]
    right = {name: op.calls()[name] for name in names if judged[name][0] == "ok"}
    arguments = op.cases[case].arguments()
    before = state.read(place, module)
    default = op.default(place)
    first = default if default in right else next(iter(right), None)
    timed: dict[str, timing.Timing] = {}
    same: set[str] = set()
    if first is not None:
        forms = {name: call for name, call in right.items() if name not in (TORCH, ROWS)}
        if first in forms:
            same = same_as(first, forms, arguments, place)
        calls = {**right, AGAIN: right[first]}
        timed = timing.measure(calls, arguments, place, rounds=2 if place == "dry" else 15)
        alone = timing.alone(right[first], arguments, place, 3 if place == "dry" else 31)
    after = state.read(place, module)
    again = timed.pop(AGAIN, None)
    floor = abs(math.log(again.median("cold") / timed[first].median("cold"))) if again and first else 0.0
    moved = op.bytes_moved(arguments) if op.bytes_moved else None
    rows = []
    for name in names:
        rows.append(row := {**_row(op, case, name, place), "bytes": moved})
        row["state"], row["reason"] = judged[name]
        row["same"] = name in same
        if name in timed:
            one = timed[name]
            row |= {"warm_us": one.median("warm"), "cold_us": one.median("cold"), "host_us": one.median("host")}
            if name == first:
                row["alone_us"] = alone
            row |= {"samples": {k: list(getattr(one, k)) for k in ("warm", "cold", "host")}, "graph": one.by_graph}
    device_state = {
        "before": before.as_dict(),
        "after": after.as_dict(),
        "marks": list(state.marks(before, after)),
    }
    return {"rows": rows, "floor": floor, "device": device_state}


def _row(op: Op, case: str, name: str, place: str) -> dict[str, Any]:
    """What a row says before anything is known of it.  role: "op" is what the wrapper chooses on this device."""
    role = "baseline" if name in (TORCH, ROWS) else op.role(name, place)
    return {"op": op.name, "family": op.family, "case": case, "impl": name, "role": role}


def by_case(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows of each op and case."""
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["op"], row["case"]), []).append(row)
    return cases


def others(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The timed rows of the op's other forms and twins, of those that launch something else than it does."""
    return [
        row for row in rows if row["role"] in ("twin", "other") and "warm_us" in row and not row.get("same", False)
    ]


def own_of(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The timed row of the op itself."""
    return next((row for row in rows if row["role"] == "op" and "warm_us" in row), None)


Slower = tuple[str, str, str, dict[str, Any], dict[str, Any]]


def slower(found: dict[str, Any]) -> list[Slower]:
    """Where the op takes longer than another form, by more than it may: op, case, which time, both rows.

    Of a case that was timed again, the second process decides."""
    places: list[Slower] = []
    for (op, case), rows in by_case(found["rows"]).items():
        name = f"{op} {case}"
        second = found.get("again", {}).get(name)
        floor = second["floor"] if second else found.get("floors", {}).get(name, 0.0)
        places += _slower(op, case, second["rows"] if second else rows, floor)
    return places


def _slower(op: str, case: str, rows: list[dict[str, Any]], floor: float) -> list[Slower]:
    timed = {row["impl"]: row for row in rows if "warm_us" in row}
    own = own_of(rows)
    if own is None:
        return []
    places = []
    forms = others(rows)
    for which in ("warm_us", "cold_us"):
        best = min(forms, key=lambda row: row[which], default=None)
        baselines = [(timed[name], 0.0) for name in (TORCH, ROWS) if name in timed]
        for other, allowed in baselines + ([(best, OVER_TWIN)] if best else []):
            if own[which] > other[which] * (1 + max(allowed, floor)):
                places.append((op, case, which, own, other))
    return places


def misses(found: dict[str, Any]) -> list[str]:
    """Targets that were not reached, one sentence each."""
    cases = by_case(found["rows"])
    said = [
        f"{row['op']} {row['case']} {row['impl']}: {row['state']}: {row['reason']}"
        for row in found["rows"]
        if row["role"] in ("op", "other") and row["state"] not in ("ok", "unsupported here")
    ]
    for op, case, which, own, other in slower(found):
        words = other["impl"] if other["role"] == "baseline" else f"{other['role']} {other['impl']}"
        said.append(f"{op} {case}: {own[which]:.2f} us {which[:4]}, {words} {other[which]:.2f} us")
    copy, empty = found.get("copy_bytes_a_second"), found.get("empty_us")
    for (op, case), rows in cases.items():
        own = own_of(rows)
        if own is None:
            continue
        if copy and own["bytes"]:
            share = own["bytes"] / (own["cold_us"] * 1e-6) / copy
            if (op, case) in LARGE and share < COPY_SHARE:
                said.append(f"{op} {case}: {share:.0%} of copy bandwidth, {COPY_SHARE:.0%} is the target")
            small = empty and own["bytes"] / copy * 1e6 < LAUNCH_BOUND * empty
            for which, least in (("warm_us", empty), ("alone_us", found.get("empty_alone_us"))):
                if small and least and own["family"] == "token_pool" and own[which] > (1 + OVER_EMPTY) * least:
                    where = "in a graph" if which == "warm_us" else "alone"
                    said.append(f"{op} {case}: {own[which]:.2f} us {where}, an empty kernel {least:.2f} us")
    if found.get("large_cases_expected"):
        measured = {key for key, rows in cases.items() if any("warm_us" in row for row in rows)}
        said += [f"{op} {case}: not measured" for op, case in sorted(LARGE - measured)]
    return said


def table(found: dict[str, Any]) -> str:
    """Markdown of a run: facts, then one line a case."""
    after = found["device"].get("after", {})
    facts = ", ".join(
        str(part)
        for part in (
            after.get("name"), f"driver {after.get('driver')}", f"toolkit {after.get('toolkit')}",
            f"SM clock {after['clock_mhz']:.0f} MHz" if after.get("clock_mhz") else None,
            f"torch {found['versions']['torch']}", f"triton {found['versions']['triton']}",
        )
        if part
    )  # fmt: skip
    copy = found.get("copy_bytes_a_second")
    lines = [
        f"{facts}, commit `{found['commit'][:10]}`.",
        f"Copy bandwidth {found['copy_bytes_a_second'] / 1e12:.2f} TB/s read and written, an empty kernel "
        f"{found['empty_us']:.2f} us in a graph of many, {found['empty_alone_us']:.2f} us between two events and "
        f"{found['empty_host_us']:.1f} us on the host.  A program that loads an index, loads what it points at "
        f"and stores that takes {found['chain_us']:.2f} us in a graph, {found['chain_alone_us']:.2f} us alone."
        if copy
        else "Copy bandwidth and an empty kernel were not measured.",
        "Medians in us; warm: inputs in L2, cold: L2 flushed, both in a graph; alone: a call between two events.",
        "The other forms: cold.",
        "",
        "| op | case | warm | cold | alone | of copy | torch form | one program a row | best other form |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (op, case), rows in by_case(found["rows"]).items():
        own = own_of(rows)
        if own is None:
            state = next((row["state"] for row in rows if row["role"] == "op"), rows[0]["state"])
            lines.append(f"| {op} | {case} | {state} | | | | | | |")
            continue
        cold = {row["impl"]: f"{row['cold_us']:.2f}" for row in rows if "cold_us" in row}
        best = min(others(rows), key=lambda row: row["cold_us"], default=None)
        share = f"{own['bytes'] / (own['cold_us'] * 1e-6) / copy:.0%}" if own["bytes"] and copy else ""
        twin = f"{best['cold_us']:.2f} ({best['impl']})" if best else ""
        times = " | ".join(f"{own[which]:.2f}" for which in ("warm_us", "cold_us", "alone_us"))
        words = f"{times} | {share} | {cold.get(TORCH, '')} | {cold.get(ROWS, '')}"
        lines.append(f"| {op} | {case} | {words} | {twin} |")
    said = misses(found)
    met = "Every target is met." if copy else "No target of those that need no copy bandwidth is missed."
    lines += ["", f"Targets missed: {len(said)}." if said else met]
    bound = [one for one in said if " an empty kernel " in one]
    rest = [one for one in said if one not in bound]
    if bound:
        took = sorted(float(one.partition(": ")[2].split()[0]) for one in bound if "in a graph" in one)
        alone = sorted(float(one.partition(": ")[2].split()[0]) for one in bound if " alone," in one)
        words = [f"{some[0]:.2f} to {some[-1]:.2f} us {where}" for some, where in
                 ((took, "in a graph"), (alone, "alone")) if some]  # fmt: skip
        rest.append(
            f"launch-bound cases over an empty kernel's time by more than {OVER_EMPTY:.0%}: {', '.join(words)}"
        )
    return "\n".join([*lines, *(f"- {one}" for one in rest)])


def write_docs(page: Path, runs: list[dict[str, Any]]) -> None:
    """Put the tables of runs between the marks of a page."""
    if any(found.get("dry") for found in runs):
        raise ValueError("that run was a dry one: its times mean nothing and go into no page")
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no marks {BEGIN} and {END}")
    head, _, rest = text.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{tables(runs)}\n{END}{rest.partition(END)[2]}")


def tables(runs: list[dict[str, Any]]) -> str:
    """The table of each run, without cases that a later one measured on such a device; no run speaks for the times
    of another.  Raises ValueError when there is no case."""
    found: list[str] = []
    taken: dict[str | None, set[tuple[str, str]]] = {}
    for run in reversed(runs):
        later = taken.setdefault(run["device"].get("after", {}).get("name"), set())
        rows = [row for row in run["rows"] if (row["op"], row["case"]) not in later]
        expected = run.get("large_cases_expected") and len(rows) == len(run["rows"])
        found += [table({**run, "rows": rows, "large_cases_expected": expected})] if rows else []
        later |= {key for key, those in by_case(rows).items() if own_of(those)}
    if not found:
        raise ValueError("no case was measured in these runs")
    return "\n\n".join(reversed(found))


def keep(place: Path | None, found: dict[str, Any]) -> None:
    """Write what there is so far, whole or not at all."""
    if place:
        part = place.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1))
        part.replace(place)


def named(names: str | None) -> dict[str, Op]:
    """The ops of a comma-separated list, all of them for none.  Raises ValueError for one that there is not."""
    only = run_files.names(names, OPS, "op")
    return {name: op for name, op in OPS.items() if not only or name in only}


def run(given: argparse.Namespace) -> int:
    """Measure; the exit code."""
    import torch
    import triton

    place = device.kind()
    if place == "cpu":
        print("gpu_compare: no GPU or NPU here; --dry tries it without one", file=sys.stderr)
        return 4
    try:
        ops = named(given.ops)
        only = run_files.names(given.cases, {case for op in ops.values() for case in op.cases}, "case")
        run_files.check_writable(given.json)
    except (OSError, ValueError) as error:
        print(f"gpu_compare: {error}", file=sys.stderr)
        return 4
    dry = place == "dry"
    # The smallest ops first: their cases are many and their targets the sharpest.
    order = sorted(ops.values(), key=lambda op: op.family != "token_pool")
    jobs = [
        (op.name, case)
        for op in order
        for case in (op.quick_cases()[:1] if dry else op.timed_cases())
        if not only or case in only
    ]
    if not jobs:
        print(f"gpu_compare: no timed case {given.cases} of {', '.join(ops)}", file=sys.stderr)
        return 4
    begin = time.monotonic()
    found: dict[str, Any] = {
        "version": 1, "dry": dry, "commit": _commit(), "complete": False, "rows": [], "floors": {}, "again": {},
        "device": {}, "marks": [], "large_cases_expected": not dry and not given.ops and not only,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
    }  # fmt: skip

    def failed(name: str, case: str, reason: str) -> None:
        print(f"{name} {case}: {reason}", flush=True)
        op = ops[name]
        row = _row(op, case, op.default(place), place)
        found["rows"].append({**row, "state": "crashed or timed out", "reason": reason, "bytes": None})

    judged, lost = judge_all(
        jobs, lambda name, case: with_baselines(ops[name], case), given.workers, given.seconds / 2, place
    )
    for job, reason in lost.items():
        failed(*job, reason)

    def work(job: Job) -> dict[str, Any]:
        if dry:
            torch.set_num_threads(1)
        name, case, only = job
        if not name:
            return baseline(place)
        return time_case(with_baselines(ops[name], case), case, judged[name, case], place, only)

    out_of_time = len(judged) + len(lost) < len(jobs)
    timed: list[Job] = [("", "baseline", ()), *((*job, ()) for job in jobs if job in judged)]
    for (name, case, _), outcome, reason in isolated.each(timed, work, seconds=300):
        if outcome is None and not name:
            print(f"baseline: {reason}", flush=True)
        elif outcome is None:
            failed(name, case, reason)
        elif not name:
            found |= outcome
        else:
            found["rows"] += outcome["rows"]
            found["floors"][f"{name} {case}"] = outcome["floor"]
            found["device"] = found["device"] or outcome["device"]
            found["device"]["after"] = outcome["device"]["after"]
            found["marks"] += [f"{name} {case}: {mark}" for mark in outcome["device"]["marks"]]
            times = {row["impl"]: row["cold_us"] for row in outcome["rows"] if "cold_us" in row}
            print(f"{name} {case}: " + ", ".join(f"{k} {v:.2f}" for k, v in times.items()) + " us", flush=True)
        keep(given.json, found)
        if time.monotonic() - begin > given.seconds:
            out_of_time = True
            print("time is up", flush=True)
            break
    if not dry:
        confirm(found, work, given)
    found["complete"] = not out_of_time
    found["misses"] = [] if dry else misses(found)  # a dry run's times say nothing
    keep(given.json, found)
    for one in found["misses"]:
        print("miss:", one)
    for one in found["marks"]:
        print("marked:", one)
    if not any("warm_us" in row for row in found["rows"]):
        print("gpu_compare: nothing was measured", file=sys.stderr)
        return 3
    return 1 if found["misses"] or out_of_time else 0


def confirm(found: dict[str, Any], work: Callable[[Job], dict[str, Any]], given: Any) -> None:
    """Time the op and the forms it was slower than once more, in a process of their own."""
    forms: dict[tuple[str, str], dict[str, None]] = {}
    for op, case, _, own, other in slower(found):
        forms.setdefault((op, case), {}).update({own["impl"]: None, other["impl"]: None})
    jobs = [(op, case, tuple(names)) for (op, case), names in forms.items()]
    for (op, case, _), outcome, reason in isolated.each(jobs, work, seconds=300):
        if outcome is None:
            print(f"{op} {case}, timed again: {reason}", flush=True)
            continue
        found["again"][f"{op} {case}"] = {"rows": outcome["rows"], "floor": outcome["floor"]}
        found["marks"] += [f"{op} {case}, timed again: {mark}" for mark in outcome["device"]["marks"]]
        times = {row["impl"]: row["cold_us"] for row in outcome["rows"] if "cold_us" in row}
        print(
            f"{op} {case}, timed again: " + ", ".join(f"{k} {v:.2f}" for k, v in times.items()) + " us", flush=True
        )
        keep(given.json, found)


def _commit() -> str:
    import subprocess

    given = os.environ.get("ASCEND_PERF_COMMIT")
    root = Path(__file__).resolve().parent.parent
    try:
        return (
            given
            or subprocess.run(
                ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
            ).stdout.strip()
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(arguments: list[str] | None = None) -> int:
    parser = run_files.Parser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go, after every case")
    parser.add_argument("--ops", help="only these ops, comma-separated")
    parser.add_argument("--cases", help="only these cases, comma-separated")
    parser.add_argument("--seconds", type=float, default=400, help="start no case after this long (default: 400)")
    parser.add_argument("--workers", type=int, default=8, help="processes for the verdicts (default: 8)")
    parser.add_argument("--dry", action="store_true", help="without a device: times mean nothing")
    parser.add_argument(
        "--from", dest="source", type=Path, nargs="+", metavar="FILE", help="results of earlier runs"
    )
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="with --from: write the tables into this page")
    given = parser.parse_args(arguments)
    if given.docs and given.source is None:
        parser.error("--docs goes with --from")
    if given.source is None:
        return run(given)
    try:
        runs = [run_files.read(place, "gpu_compare", 1, "rows", "commit") for place in given.source]
        if given.docs:
            write_docs(given.docs, runs)
        else:
            print(tables(runs))
    except (OSError, ValueError, KeyError) as error:
        print(f"gpu_compare: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(run_files.stoppable("gpu_compare", main))
