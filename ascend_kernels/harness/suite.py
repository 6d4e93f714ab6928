"""asv suites from registry rows.  A benchmark module is three lines:

    FAMILY = Family("token_pool", OPS)
    def setup_cache(): return FAMILY.prepare()
    globals().update(FAMILY.suites(__name__))

One process (asv's setup_cache) gives every verdict of the family and, where it is ok, every number; the
`track_` functions only hand them out, so that a wrong kernel never gets a number and the numbers of one case
are taken side by side.  Verdicts and reasons go to a sidecar beside asv's results, since asv keeps neither.

What is measured on a device runs in a process of its own, so that a kernel that loses the device costs its own
case and no other.  Each case also times one implementation twice: what these two differ by is noise, and the
sidecar keeps it, with the state of the device before and after.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import device, isolated, kept, state
from .gate import Expected, Verdict, verify
from .model import Modelled
from .spec import CRASHED, NOT_RUN, OK, UNSUPPORTED, NotDescribed, Op, Unsupported

MEASURED = {
    # metric -> kind of sample, label
    "device_time": ("warm", "device time, inputs in L2"),
    "device_time_cold": ("cold", "device time, L2 flushed"),
    "host_time": ("host", "host time until the call returns"),
    "kernel_time": ("kernel", "the profiler's duration of the kernels; Ascend only"),
}
ROUNDS = 8  # samples of either process
CASE_SETS = ("quick", "timed", "all", "everything")
# Of every benchmark; raised by hand when a number stops meaning what it meant.  Measured 2: two processes, 3: L2
# overwritten before cold calls.
VERSIONS = {"Modelled": "1", "Measured": "3"}


@dataclass(frozen=True)
class Family:
    """The ops of one family, as asv suites: `Modelled<Op>` and, where there is a device, `Measured<Op>`.

    Which cases the model runs is up to `modelled_cases`.
    """

    name: str
    ops: Mapping[str, Op]

    def rows(self) -> list[Op]:
        """Ops of this family, those that `ASCEND_PERF_OPS` (comma-separated names) leaves in."""

        def letters(name: str) -> str:
            """Of a class's name, which is all that some callers have: it does not tell where the op's has `_`."""
            return name.replace("_", "").lower()

        only = {letters(name) for name in os.environ.get("ASCEND_PERF_OPS", "").split(",") if name}
        rows = [op for op in self.ops.values() if op.family == self.name]
        return [op for op in rows if not only or letters(op.name) in only]

    def prepare(self) -> dict[str, Any]:
        """Verdicts and numbers of the whole family: suite -> (case, implementation) -> entry."""
        prepared: dict[str, Any] = {}
        rows = self.rows()
        kind = os.environ.get("ASCEND_PERF_KIND", "")
        # first: a device is only started in processes that are forked here
        if device.present() and kind in ("", "Measured"):
            prepared |= measure_all(rows)
            hand_over(self.name, prepared)
        if can_model() and kind in ("", "Modelled"):
            for op in rows:
                prepared |= model_all([op])
        hand_over(self.name, prepared)
        return prepared

    def suites(self, module: str) -> dict[str, Any]:
        """Classes for the namespace of the benchmark module, and a stand-in for ops an old commit lacks."""
        found: dict[str, Any] = {"__getattr__": _absent(module)}
        for op in self.ops.values():
            if op.family != self.name:
                continue
            if can_model():
                found[suite_name("Modelled", op)] = _suite(
                    "Modelled", op, modelled_cases(op), _modelled_metrics(), module
                )
            if device.present():
                metrics = dict.fromkeys(measured_metrics(), "us")
                found[suite_name("Measured", op)] = _suite("Measured", op, measured_cases(op), metrics, module)
        return found


def hand_over(family: str, prepared: Mapping[str, Mapping[tuple[str, str], Mapping[str, Any]]]) -> None:
    """Leave everything in `prepared.json` in the working folder, which is asv's cache folder of this process: the
    host environment reads it there and spares a process a number (thousands a commit)."""
    suites = {
        f"bench_{family}.{name}": [
            {"case": case, "impl": impl, **{k: entry.get(k) for k in ("state", "reason", "values")}}
            for (case, impl), entry in entries.items()
        ]
        for name, entries in prepared.items()
    }
    if os.environ.get("ASV_COMMIT"):
        run = {
            "commit": os.environ["ASV_COMMIT"],
            "results": os.environ.get("ASCEND_PERF_RESULTS", ""),
            "machine": os.environ.get("ASCEND_PERF_MACHINE", ""),
            "versions": _versions(),
        }
        Path("prepared.json").write_text(json.dumps({"version": 1, "run": run, "suites": suites}))


def can_model() -> bool:
    """Whether the Ascend compiler is here."""
    from ascend_model import toolchain

    return bool(toolchain.available_versions()) and toolchain.triton_ascend_version() is not None


def suite_name(kind: str, op: Op) -> str:
    """`ModelledAssignReqToTokenPool`."""
    return kind + "".join(part.capitalize() for part in op.name.split("_"))


def modelled_cases(op: Op) -> list[str]:
    """Ids of the cases the model runs: `ASCEND_PERF_CASES` = quick (default), timed, all, or everything.

    Only the last one has the large cases.
    """
    which = os.environ.get("ASCEND_PERF_CASES", "quick")
    if which not in CASE_SETS:
        raise ValueError(f"ASCEND_PERF_CASES={which!r}: expected one of {', '.join(CASE_SETS)}")
    if which == "quick":
        found = op.quick_cases()
    else:
        found = op.timed_cases() if which == "timed" else list(op.cases)
    if which != "everything":
        found = [name for name in found if not op.cases[name].large]
    one = os.environ.get("ASCEND_PERF_CASE")
    return [*found, one] if one in op.cases and one not in found else found


def measured_cases(op: Op) -> list[str]:
    """Ids of the cases that are measured; the interpreter of a dry run is too slow for the timed ones."""
    return op.quick_cases() if device.kind() == "dry" else op.timed_cases()


def measured_metrics() -> list[str]:
    """Names of what is measured on the device at hand."""
    return [name for name in MEASURED if name != "kernel_time" or device.kind() == "npu"]


def wanted(case: str, impl: str) -> bool:
    """Whether `ASCEND_PERF_CASE` and `ASCEND_PERF_IMPL`, one id each, leave this in."""
    only = os.environ.get("ASCEND_PERF_CASE"), os.environ.get("ASCEND_PERF_IMPL")
    return only[0] in (None, "", case) and only[1] in (None, "", impl)


def _modelled_metrics() -> dict[str, str]:
    from ascend_model import METRICS

    units = {name: f"{metric.unit} (modelled)" for name, metric in METRICS.items()}
    return {**units, "launches": "launches (modelled)"}


def _suite(kind: str, op: Op, cases: list[str], metrics: dict[str, str], module: str) -> type:
    name = suite_name(kind, op)

    def setup(self, prepared: dict, case: str, impl: str) -> None:
        entry = prepared.get(name, {}).get((case, impl))
        if entry is None or entry["state"] in (UNSUPPORTED, NOT_RUN):
            raise NotImplementedError("not at this commit" if entry is None else entry["reason"])

    body: dict[str, Any] = {
        "__module__": module,
        "__doc__": f"{kind} numbers of {op.name}.",
        "params": [cases, op.names(device.kind() if kind == "Measured" else "cpu")],
        "param_names": ["case", "impl"],
        "timeout": 3600,
        "setup": setup,
    }
    for metric, unit in metrics.items():
        body[f"track_{metric}"] = _track(name, metric, unit)
    return type(name, (), body)


def _track(suite: str, metric: str, unit: str) -> Callable[..., Any]:
    def track(self, prepared: dict, case: str, impl: str) -> Any:
        entry = prepared[suite][case, impl]
        if entry["state"] != OK:
            raise RuntimeError(f"{entry['state']}: {entry['reason']}")
        return entry["values"][metric]

    track.__name__ = f"track_{metric}"
    track.unit = unit
    track.version = VERSIONS["Measured" if suite.startswith("Measured") else "Modelled"]
    track.pretty_source = f"{suite}.{metric}"
    return track


def _absent(module: str) -> Callable[[str], Any]:
    """Lets asv run a benchmark of an op that the installed commit does not have: skipped, not failed."""

    def stand_in(name: str) -> Any:
        if not name.startswith(("Modelled", "Measured")):
            raise AttributeError(f"module {module} has no attribute {name}")

        def setup(self, *_: Any) -> None:
            raise NotImplementedError("this commit has no such op")

        def track(self, *_: Any) -> float:
            raise NotImplementedError

        modelled = name.startswith("Modelled") and can_model()
        metrics = [*_modelled_metrics()] if modelled else measured_metrics()
        return type(name, (), {"setup": setup, **{f"track_{m}": track for m in metrics}, "__module__": module})

    return stand_in


@dataclass(frozen=True, eq=False)
class Row:
    """One modelled row to be: an implementation or twin of an op on one of its cases."""

    op: Op
    case: str
    impl: str

    @property
    def group(self) -> tuple[str, str]:
        """Rows of one group share arguments and reference."""
        return self.op.name, self.case


def model_all(ops: Iterable[Op]) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
    """Entries of all modelled rows of some ops, by suite: what is known from disk, and the rest on all cores."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    keys: dict[Row, str] = {}
    target = device.target()  # asked here, since a forked child cannot start a device
    for op in ops:
        base = kept.base(op, target)
        found[suite_name("Modelled", op)] = {}
        for case in modelled_cases(op):
            for impl in op.names("cpu"):
                if wanted(case, impl):
                    keys[Row(op, case, impl)] = kept.key(base, case, impl)
    left = []
    for row, key in keys.items():
        entry = kept.read(key)
        if entry is None or not all(_keep_code(code) for code in entry["codes"]):
            left.append(row)
        else:
            _found(found, row, entry)
    # the large ones first, so that no core waits for the last
    left.sort(key=lambda row: not row.op.cases[row.case].timed)

    def work(row: Row) -> dict[str, Any]:
        torch.set_num_threads(1)  # one process a core, and OpenMP does not survive a fork
        # Written first, so that a death of all processes is on record too.
        died = {"state": CRASHED, "reason": "the process ended before a verdict"}
        _record(row.op, "Modelled", row.case, row.impl, died)
        return _guarded(lambda *_: _model_entry(row, target), row.op, row.case, row.impl)

    for row, entry, reason in isolated.each(left, work, workers=isolated.workers(), group=lambda row: row.group):
        if entry is not None:
            kept.write(keys[row], entry)
        _found(found, row, entry or {"state": CRASHED, "reason": reason})
    return found


def _found(found: dict[str, Any], row: Row, entry: dict[str, Any]) -> None:
    found[suite_name("Modelled", row.op)][row.case, row.impl] = entry
    _record(row.op, "Modelled", row.case, row.impl, entry)


def _guarded(entry_of: Callable[[Op, str, str], dict[str, Any]], op: Op, case: str, impl: str) -> dict[str, Any]:
    try:
        return entry_of(op, case, impl)
    except NotDescribed as error:
        return {"state": NOT_RUN, "reason": str(error)}
    except Unsupported as error:
        return {"state": UNSUPPORTED, "reason": str(error)}
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return {"state": CRASHED, "reason": f"{type(error).__name__}: {error} ({where})"}


_EXPECTED: list[Expected] = []  # of the case that this process works on


def _expected(op: Op, case: str) -> Expected:
    """Arguments and reference of a case, shared by its implementations."""
    if not _EXPECTED or _EXPECTED[0].op is not op or _EXPECTED[0].case != case:
        _EXPECTED[:] = []  # before the next one is made: these can be large
        _EXPECTED[:] = [Expected.of(op, case)]
    return _EXPECTED[0]


def _model_entry(row: Row, target: str) -> dict[str, Any]:
    """Verdict from executing the compiled code, and its counts and cycles."""
    from ascend_model import combined

    runner = Modelled(target, unsafe=row.impl in row.op.twins)
    # Executing compiled code is deterministic; a second run could only repeat the first.
    verdict = verify(row.op, row.case, row.impl, runner, repeat=False, expected=_expected(row.op, row.case))
    entry = _entry(verdict)
    codes = {done.code: done.compiled.linalg for done in runner.simulations if done.code}
    entry["codes"] = list(codes)
    entry["code"] = "+".join(code[:16] for code in codes)
    entry["notes"] = [note for done in runner.simulations for note in done.notes]
    entry["launches"] = len(runner.simulations)
    entry["pipes"] = _pipes(runner.simulations)
    for code, linalg in codes.items():
        _keep_code(code, linalg)
    if verdict.ok:
        entry["values"] = {**combined(runner.simulations), "launches": len(runner.simulations)}
    return entry


def _pipes(simulations: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Cycles that each pipe of the slowest program was busy, and stalls by cause, summed over the launches."""
    found: dict[str, dict[str, int]] = {"busy": {}, "stalls": {}}
    for done in simulations:
        for name, total in found.items():
            for key, cycles in getattr(done, name).items():
                total[key] = total.get(key, 0) + cycles
    return found


def _keep_code(code: str, linalg: str = "") -> bool:
    """Leave a compiled form in `<results>/code`, for pages on a machine that did not compile it; False if it is
    neither given nor known here."""
    folder = os.environ.get("ASCEND_PERF_RESULTS")
    if not folder:
        return True
    place = Path(folder, "code", f"{code[:16]}.txt.gz")
    if not place.exists():
        if not linalg:
            from ascend_model.compile import stored

            known = stored(code)
            linalg = known[0].linalg if known else ""
        if not linalg:
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(f".{os.getpid()}")
        part.write_bytes(gzip.compress(linalg.encode(), mtime=0))
        part.replace(place)
    return True


Entry = dict[str, Any]


def measure_all(ops: Iterable[Op]) -> dict[str, dict[tuple[str, str], Entry]]:
    """Entries of all measured cases of some ops, by suite.

    Cases are timed in one process and, what was right, in another one: where its memory lies changes the time of
    a small kernel by up to a fifth, and stays the same as long as a process lives."""
    rows = {op.name: op for op in ops}
    names = {op.name: op.names(device.kind()) for op in rows.values()}
    jobs = [(op.name, case) for op in rows.values() for case in measured_cases(op)]
    jobs = [(name, case) for name, case in jobs if any(wanted(case, impl) for impl in names[name])]
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {
        suite_name("Measured", op): {} for op in rows.values()
    }
    once: dict[tuple[str, str], dict[str, Entry]] = {}
    for (name, case), entries, reason in isolated.each(jobs, lambda job: _measure_case(rows[job[0]], job[1])):
        if entries is None:
            impls = [impl for impl in names[name] if wanted(case, impl)]
            entries = {impl: {"state": CRASHED, "reason": reason} for impl in impls}
        once[name, case] = entries
        _keep(found, rows[name], case, entries)
    right = {job: [i for i, entry in entries.items() if "values" in entry] for job, entries in once.items()}
    left = [job for job, impls in right.items() if impls]
    second = isolated.each(left, lambda job: _time_case(rows[job[0]], job[1], right[job]))
    for (name, case), entries, reason in second:
        if entries is None:
            entries = {impl: {"state": CRASHED, "reason": reason} for impl in right[name, case]}
        both = {impl: _together(once[name, case][impl], entry) for impl, entry in entries.items()}
        _keep(found, rows[name], case, both)
    return found


def _keep(found: dict[str, Any], op: Op, case: str, entries: Mapping[str, Entry]) -> None:
    for impl, entry in entries.items():
        found[suite_name("Measured", op)][case, impl] = entry
        _record(op, "Measured", case, impl, entry)


def _together(one: Entry, two: Entry) -> Entry:
    """Entries of two processes as one: each sample the geometric mean of one of either, `again` what their medians
    differ by."""
    if "values" not in two:
        rest = {key: value for key, value in one.items() if key != "values"}
        return {**rest, **two, "reason": f"in its second process: {two['reason']}"}
    values, again = {}, {}
    for metric, first in one["values"].items():
        pairs = list(zip(first["samples"], two["values"].get(metric, {}).get("samples", ())))
        values[metric] = {**first, "samples": [math.sqrt(a * b) for a, b in pairs]}
        again[metric] = apart(*zip(*pairs)) if pairs else 0.0
    before, after = one["device"]["before"], two["device"]["after"]
    marks = list(dict.fromkeys((*one["device"]["marks"], *two["device"]["marks"])))
    return {
        **one, "values": values, "again": again, "device": {"before": before, "after": after, "marks": marks},
        "notes": list(dict.fromkeys((*one["notes"], *two["notes"]))),
    }  # fmt: skip


def apart(one: Iterable[float], two: Iterable[float]) -> float:
    """|log| of the ratio of two medians; 0 where one is not positive."""
    a, b = (statistics.median(samples) for samples in (one, two))
    return abs(math.log(a / b)) if a > 0 and b > 0 else 0.0


def _device() -> tuple[str, Any]:
    """Kind and module of the device, in a forked child that may use it."""
    place = device.kind()
    if place == "dry":
        torch.set_num_threads(1)  # OpenMP does not survive the fork
    return place, device.module(place)


def _measure_case(op: Op, case: str) -> dict[str, Entry]:
    """Verdicts of one case, then the times of what is right, by implementation."""
    place, module = _device()
    entries: dict[str, Entry] = {}
    right: list[str] = []
    for impl in op.names(place):
        if not wanted(case, impl):
            continue
        _record(op, "Measured", case, impl, {"state": CRASHED, "reason": "the process ended before a verdict"})
        entries[impl] = _guarded(lambda o, c, i: _entry(verify(o, c, i, expected=_expected(o, c))), op, case, impl)
        lost = device.lost(module)
        if lost:
            reason = entries[impl]["reason"] or lost
            entries[impl] = {"state": CRASHED, "reason": f"the device was lost: {reason}"}
            raise isolated.LastJob(_without_numbers(entries, right, lost))
        if entries[impl]["state"] == OK:
            right.append(impl)
    try:
        timed = _time_case(op, case, right)
    except isolated.LastJob as last:
        raise isolated.LastJob(entries | last.args[0]) from None
    return entries | {impl: entries[impl] | entry for impl, entry in timed.items()}


def _time_case(op: Op, case: str, right: list[str]) -> dict[str, Entry]:
    """Times of the implementations that are right, with the state of the device."""
    from . import timing

    place, module = _device()
    entries: dict[str, Entry] = {}
    if not right:
        return entries
    try:
        before = state.read(place, module)
        calls = {impl: op.calls()[impl] for impl in right}
        rounds = 2 if place == "dry" else ROUNDS
        timed = timing.measure(calls, _expected(op, case).arguments, place, rounds=rounds)
        after = state.read(place, module)
    except Exception as error:
        lost = device.lost(module)
        if lost:
            why = f"{type(error).__name__}: {error}"
            raise isolated.LastJob(_without_numbers(entries, right, why)) from None
        module.empty_cache()
        memory = isinstance(error, torch.OutOfMemoryError)
        words = f"out of device memory: {error}" if memory else f"{type(error).__name__}: {error}"
        return {impl: {"state": UNSUPPORTED if memory else CRASHED, "reason": words} for impl in right}
    kept = {"before": before.as_dict(), "after": after.as_dict(), "marks": list(state.marks(before, after))}
    for impl, one in timed.items():
        values = {
            metric: {"samples": list(getattr(one, kind)), "number": 1 if metric == "host_time" else one.number}
            for metric, (kind, _) in MEASURED.items()
            if getattr(one, kind)
        }
        entries[impl] = {"state": OK, "values": values, "device": kept, "again": {}, "notes": list(one.notes)}
    return entries


def _without_numbers(
    entries: dict[str, dict[str, Any]], right: Iterable[str], why: str
) -> dict[str, dict[str, Any]]:
    """Entries of a case whose device was lost: what was right has no numbers now."""
    for impl in right:
        entries[impl] = {"state": CRASHED, "reason": f"the device was lost: {why}"}
    return entries


def _entry(verdict: Verdict) -> dict[str, Any]:
    return {"state": verdict.state, "reason": verdict.reason, "findings": list(verdict.findings)}


def _record(op: Op, kind: str, case: str, impl: str, entry: Mapping[str, Any]) -> None:
    """Append one line to the sidecar `<results>/states/<commit>.jsonl`; the last line of a key counts."""
    folder, commit = os.environ.get("ASCEND_PERF_RESULTS"), os.environ.get("ASV_COMMIT")
    if not folder or not commit:
        return
    line = {
        "version": 1,
        "commit": commit,
        "suite": f"bench_{op.family}.{suite_name(kind, op)}",
        "op": op.name,
        "case": case,
        "impl": impl,
        "role": op.role(impl, device.kind() if kind == "Measured" else "cpu"),
        "pattern": op.twins[impl].pattern if impl in op.twins else "",
        "state": entry["state"],
        "reason": entry["reason"][:2000],
        "code": entry.get("code", ""),
        "findings": [f[:500] for f in entry.get("findings", [])[:20]],
        "notes": entry.get("notes", [])[:20],
        "pipes": entry.get("pipes", {}),
        "device": entry.get("device", {}),
        "again": entry.get("again", {}),
        "versions": _versions(),
        "machine": os.environ.get("ASCEND_PERF_MACHINE", ""),
        "at": int(time.time() * 1000),
    }
    place = Path(folder, "states", f"{commit}.jsonl")
    place.parent.mkdir(parents=True, exist_ok=True)
    # One write of one line: two environments may append to the same file.
    with open(place, "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\n").encode())


def _versions() -> dict[str, str]:
    from ascend_model import MODEL_VERSION, toolchain

    found = {"ascend-model": MODEL_VERSION, "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    if can_model():
        found["triton-ascend"] = toolchain.triton_ascend_version() or ""
        found["ascendnpu-ir"] = toolchain.default_version()
    return found
