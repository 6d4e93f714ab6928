"""Launch plans chosen on measured data: every candidate of a plan beside its rule, at the timed cases.

    python tools/gpu_tune.py --json tune.json [--ops NAME,...] [--cases ID,...]  # on the device
    python tools/gpu_tune.py --from tune.json                                    # the table of a run
    python tools/gpu_tune.py --from tune.json --write ascend_kernels/measured_plans.py
    python tools/gpu_tune.py --from A B --json C                                 # on the device: the second half
    python tools/gpu_tune.py --dry --json tune.json                              # try it without a device

A candidate is chosen when its result is right, a call with L2 flushed is faster than the rule's by more than
2 % and twice the noise floor of its case, and it is slower by 1 % in no op that shares the plan, nor with inputs
in L2; and all that once more beside the rule alone in another process, since where the memory of a process lies
makes one of many forms 3 % slower.  --from takes several files: later measurements of a case replace earlier
ones.  Exit code: 0 done, 1 cut short, 3 nothing measured, 4 usage, 130 stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gpu_compare  # first: it puts the repository on the path and looks for --dry
import run_files

from ascend_kernels.eagle import plan as eagle
from ascend_kernels.harness import device, gate, isolated, plans
from ascend_kernels.harness.spec import Op, Twin
from ascend_kernels.kpool import plan as kpool
from ascend_kernels.padded_moe import plan as padded_moe
from ascend_kernels.registry import OPS
from ascend_kernels.token_pool import plan as token_pool

RULE = "rule"
GAIN = 0.02
WORSE = 0.01  # what a candidate may lose in one of the ops that share its plan, or with inputs in L2
FAMILIES = {"token_pool": token_pool, "eagle": eagle, "kpool": kpool, "padded_moe": padded_moe}


def consulted(op: Op, case: str, place: str) -> dict[str, dict[str, plans.Size]]:
    """Plan -> sizes of the plans that the op asks for in a case, of those with candidates."""
    arguments = op.cases[case].arguments()
    with plans.asked() as seen:
        gate.run(op.call, arguments, device.tensors(place))
    return {name: sizes for name, sizes in seen.items() if any(candidates(name, sizes))}


def candidates(name: str, sizes: Mapping[str, Any]) -> list[plans.Choice]:
    """What is worth measuring for a plan."""
    return list(FAMILIES[name.partition(".")[0]].candidates(name, sizes))


def with_candidates(op: Op, asked: Mapping[str, Mapping[str, plans.Size]]) -> Op:
    """The op with its rules as the implementation and every candidate of the plans it asks for as a twin named
    `plan {...}`."""
    twins = {}
    for name, sizes in asked.items():
        for given in candidates(name, sizes):
            twins[f"{name} {json.dumps(given)}"] = Twin(_call(op, {name: given}), pattern="candidate")
    rule = _call(op, {})
    return dataclasses.replace(
        op, implementations=(RULE,), on_gpu="", twins=twins, call=lambda impl, **more: rule(**more)
    )


def _call(op: Op, given: Mapping[str, plans.Choice]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        with plans.trying(given):
            return op.call(**arguments)

    return call


def confirmed(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was chosen in both processes of a run, with the times of the second."""

    def key(one: Mapping[str, Any]) -> str:
        return json.dumps([one["plan"], one["sizes"], one["choice"]])

    # Of ops that share a plan each has to be there: half of a second process confirms nothing.
    both = {(one["op"], one["case"]) for one in found["again"]}
    missing = {
        json.dumps([name, sizes])
        for case in found["cases"]
        if (case["op"], case["case"]) not in both
        for name, sizes in case["sizes"].items()
    }
    second = {
        key(one): one for one in chosen(found["again"]) if json.dumps([one["plan"], one["sizes"]]) not in missing
    }
    return [{**second[key(one)], "tried": one["tried"]} for one in chosen(found["cases"]) if key(one) in second]


def chosen(outcomes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The candidates that are faster than their rule, one a plan and its sizes at most.

    Where several ops ask the same, a candidate must have been measured in all, be slower in none, and the
    geometric mean over them decides."""
    asked: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for outcome in outcomes:
        for name, sizes in outcome["sizes"].items():
            asked.setdefault((name, json.dumps(sizes)), []).append(outcome)
    found = []
    for (name, sizes), together in asked.items():
        by_text = [
            {row["impl"]: row for row in one["rows"] if "cold_us" in row and not row.get("same", False)}
            for one in together
        ]
        floor = max(one["floor"] for one in together)
        best: tuple[float, str] | None = None
        tried = [text for text in by_text[0] if text.startswith(name + " ")]
        for text in tried:
            if not all(text in rows and RULE in rows for rows in by_text):
                continue
            cold, warm = (
                [rows[text][which] / rows[RULE][which] for rows in by_text] for which in ("cold_us", "warm_us")
            )
            mean = statistics.geometric_mean(cold)
            fair = max(*cold, *warm) <= 1 + max(WORSE, floor)
            if fair and mean < 1 - max(GAIN, 2 * floor) and (best is None or mean < best[0]):
                best = (mean, text)
        if best:
            found.append(
                {
                    "plan": name, "sizes": json.loads(sizes), "choice": json.loads(best[1].partition(" ")[2]),
                    "rule_us": _mean(by_text, RULE), "choice_us": _mean(by_text, best[1]), "tried": len(tried),
                }
            )  # fmt: skip
    return found


def _mean(by_text: Iterable[Mapping[str, Any]], text: str) -> tuple[float, float]:
    rows = [rows[text] for rows in by_text]
    cold, warm = (statistics.geometric_mean([row[which] for row in rows]) for which in ("cold_us", "warm_us"))
    return cold, warm


def run(given: argparse.Namespace) -> int:
    """Measure; the exit code."""
    import torch
    import triton

    place = device.kind()
    if place == "cpu":
        print("gpu_tune: no GPU or NPU here; --dry tries it without one", file=sys.stderr)
        return 4
    try:
        ops = gpu_compare.named(given.ops)
        only = run_files.names(given.cases, {case for op in ops.values() for case in op.cases}, "case")
        run_files.check_writable(given.json)
    except (OSError, ValueError) as error:
        print(f"gpu_tune: {error}", file=sys.stderr)
        return 4
    dry = place == "dry"
    jobs = [
        (op.name, case)
        for op in ops.values()
        for case in (op.quick_cases()[:1] if dry else op.timed_cases())
        if not only or case in only
    ]
    begin = time.monotonic()
    judged, lost = gpu_compare.judge_all(
        jobs,
        lambda name, case: with_candidates(ops[name], consulted(ops[name], case, place)),
        given.workers,
        given.seconds / 2,
        place,
    )
    jobs = [job for job in jobs if job in judged and len(judged[job]) > 1]
    found: dict[str, Any] = {
        "version": 2, "dry": dry, "device": "", "complete": False, "cases": [], "again": [],
        "lost": {" ".join(job): reason for job, reason in lost.items()},
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
    }  # fmt: skip

    cut = False
    for job, outcome, reason in isolated.each(jobs, lambda job: timed(*job, judged[job], place), seconds=300):
        if outcome is None:
            found["lost"][" ".join(job)] = reason
            print(f"{' '.join(job)}: {reason}", flush=True)
        else:
            found["cases"].append(outcome)
            found["device"] = outcome["device"]
            print(f"{' '.join(job)}: {_said(outcome)}", flush=True)
        gpu_compare.keep(given.json, found)
        if time.monotonic() - begin > given.seconds:
            print("time is up", flush=True)
            cut = True
            break
    missed = time_again(found, place, given.json)
    found["complete"] = not cut and not found["lost"] and not missed
    gpu_compare.keep(given.json, found)
    if not found["cases"]:
        print("gpu_tune: nothing was measured", file=sys.stderr)
        return 3
    return 0 if found["complete"] else 1


def timed(name: str, case: str, judged: dict[str, tuple[str, str]], place: str) -> dict[str, Any]:
    """Times of the rule and of the candidates of a case that have a verdict."""
    if place == "dry":
        import torch

        torch.set_num_threads(1)
    sizes = consulted(OPS[name], case, place)
    taken = gpu_compare.time_case(with_candidates(OPS[name], sizes), case, judged, place, judged)
    rows = [{k: v for k, v in row.items() if k != "samples"} for row in taken["rows"]]
    return {
        "op": name, "case": case, "floor": taken["floor"], "rows": rows, "device": device.current().name,
        "sizes": sizes,
    }  # fmt: skip


def time_again(found: dict[str, Any], place: str, keep: Path | None) -> int:
    """Time what was chosen once more beside its rule, in another process; how many cases gave no times.

    What an earlier second process gave for a case stays until there is a new one.  Raises ValueError on another
    device than that of the first process."""
    right: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for one in chosen(found["cases"]):
        for case in found["cases"]:
            if case["sizes"].get(one["plan"]) == one["sizes"]:
                forms = right.setdefault((case["op"], case["case"]), {RULE: ("ok", "")})
                forms[f"{one['plan']} {json.dumps(one['choice'])}"] = ("ok", "")
    missed = 0
    for job in [job for job in right if job[0] not in OPS or job[1] not in OPS[job[0]].cases]:
        missed += 1
        del right[job]
        print(f"{' '.join(job)}: no such case any more, so it is not timed again", flush=True)
    for job, outcome, reason in isolated.each(
        list(right), lambda job: timed(*job, right[job], place), seconds=300
    ):
        if outcome is None:
            missed += 1
            print(f"{' '.join(job)}, timed again: {reason}", flush=True)
            continue
        if outcome["device"] != found["device"]:
            raise ValueError(f"what was chosen on {found['device']} cannot be timed again on {outcome['device']}")
        found["again"] = [one for one in found["again"] if (one["op"], one["case"]) != job] + [outcome]
        print(f"{' '.join(job)}, timed again: {_said(outcome)}", flush=True)
        gpu_compare.keep(keep, found)
    return missed


def run_again(found: dict[str, Any], keep: Path) -> int:
    """Time again what earlier runs chose; the exit code."""
    place = device.kind()
    if place == "cpu":
        print("gpu_tune: no GPU or NPU here; --dry tries it without one", file=sys.stderr)
        return 4
    try:
        run_files.check_writable(keep)
        missed = time_again(found, place, keep)
    except (OSError, ValueError) as error:
        print(f"gpu_tune: {error}", file=sys.stderr)
        return 4
    gpu_compare.keep(keep, found)
    print(f"{len(confirmed(found))} of {len(chosen(found['cases']))} choices hold")
    return 1 if missed else 0


def _said(outcome: Mapping[str, Any]) -> str:
    best = [f"{one['plan']} {one['choice']}: {_gain(one)}" for one in chosen([outcome])]
    return "; ".join(best) or f"the rule stays ({len(outcome['rows']) - 1} candidates)"


def _gain(one: Mapping[str, Any]) -> str:
    before, after = one["rule_us"][0], one["choice_us"][0]
    return f"{before:.2f} -> {after:.2f} us ({after / before - 1:+.1%})"


def merged(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Several runs as one.  Raises ValueError when they are of different devices or versions, or have no case."""
    several = [found for found in several if found["cases"] or found.get("again")]
    if not several:
        raise ValueError("no case was measured in these runs")
    for what in ("device", "versions"):
        kinds = {json.dumps(found.get(what), sort_keys=True) for found in several}
        if len(kinds) > 1:
            raise ValueError(f"runs of different {what.rstrip('s')}s: {', '.join(sorted(kinds))}")
    cases: dict[tuple[str, str], Any] = {}
    again: dict[tuple[str, str], Any] = {}
    for found in several:
        for case in found["cases"]:
            cases[case["op"], case["case"]] = case
            again.pop((case["op"], case["case"]), None)
        again |= {(case["op"], case["case"]): case for case in found.get("again", ())}
    return {
        **several[-1], "cases": list(cases.values()), "again": list(again.values()),
        "dry": any(found.get("dry") for found in several),
    }  # fmt: skip


def table(found: Mapping[str, Any]) -> str:
    """Markdown of what was chosen, and of the plans whose rule stays."""
    lines = ["| plan | sizes | choice | rule, us | choice, us | tried |", "|---|---|---|---|---|---|"]
    made = confirmed(found)
    for one in made:
        where, what = (", ".join(f"{k} {v}" for k, v in one[key].items()) for key in ("sizes", "choice"))
        times = f"{one['rule_us'][0]:.2f} | {one['choice_us'][0]:.2f}"
        lines.append(f"| {one['plan']} | {where} | {what} | {times} | {one['tried']} |")
    asked = {(name, json.dumps(sizes)) for case in found["cases"] for name, sizes in case["sizes"].items()}
    stays: dict[str, int] = {}
    for name, _ in asked - {(one["plan"], json.dumps(one["sizes"])) for one in made}:
        stays[name] = stays.get(name, 0) + 1
    rest = ", ".join(f"{name} ({count})" for name, count in sorted(stays.items()))
    return "\n".join([*lines, "", f"The rule stays, by sizes: {rest}." if rest else "Every rule was beaten."])


def module(found: Mapping[str, Any]) -> str:
    """The text of `ascend_kernels/measured_plans.py`.  Raises ValueError for a dry run."""
    if found.get("dry"):
        raise ValueError("that run was a dry one: its times mean nothing and choose no plan")
    rows = []
    for one in confirmed(found):
        times = ", ".join(f"({cold:.3f}, {warm:.3f})" for cold, warm in (one["rule_us"], one["choice_us"]))
        rows.append(
            f"    Measured(\n        {one['plan']!r}, {found['device']!r},\n        {one['sizes']!r},\n"
            f"        {one['choice']!r},\n        {times}, {one['tried']}, {dict(found['versions'])!r},\n    ),\n"
        )
    table = "(\n" + "".join(rows) + ")" if rows else "()"
    return (
        '"""Launch plans that measured faster than their rule.  Written by `tools/gpu_tune.py --write`."""\n\n'
        f"from .harness.plans import Measured\n\n# fmt: off\nMEASURED: tuple[Measured, ...] = {table}\n"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = run_files.Parser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go, after every case")
    parser.add_argument("--ops", help="only these ops, comma-separated")
    parser.add_argument("--cases", help="only these cases, comma-separated")
    parser.add_argument("--seconds", type=float, default=250, help="start no case after this long (default: 250)")
    parser.add_argument("--workers", type=int, default=8, help="processes for the verdicts (default: 8)")
    parser.add_argument("--dry", action="store_true", help="without a device: times mean nothing")
    parser.add_argument("--from", dest="source", type=Path, nargs="+", metavar="FILE", help="earlier results")
    parser.add_argument("--write", type=Path, metavar="MODULE", help="with --from: write the chosen plans there")
    given = parser.parse_args(arguments)
    if given.write and (given.source is None or given.json):
        parser.error("--write goes with --from, and without --json")
    if given.source is None:
        return run(given)
    try:
        found = merged([run_files.read(place, "gpu_tune", 2, "cases", "lost") for place in given.source])
        if given.json:
            return run_again(found, given.json)
        if given.write:
            given.write.write_text(module(found))
        else:
            print(table(found))
    except (OSError, ValueError, KeyError) as error:
        print(f"gpu_tune: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(run_files.stoppable("gpu_tune", main))
