"""`ascend-perf model`: compile an op of the registry, or any kernel of a file, execute what came out, count it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ascend_model.lower import TARGETS, known_target

from . import device
from .forms import (
    Comparison,
    Form,
    advice_of,
    compare,
    execute,
    heads_of,
    side_by_side,
    table_lines,
    traced,
)
from .launch import Launch
from .user_kernel import UsageError, file_launch, kernels_of, load_module

EXAMPLES = """examples:
  ascend-perf model --list
  ascend-perf model assign_req_to_token_pool
  ascend-perf model assign_req_to_token_pool --case ragged --impl mask-reversed --json
  ascend-perf model assign_req_to_token_pool --case ragged --compiler 1.1.0 --trace launch.json
  ascend-perf model my_kernels.py:softmax --arg x=f32[64,512] --arg out=f32[64,512] --arg n=512 \\
      --const BLOCK=512 --grid 64 --html report.html
  ascend-perf model my_kernels.py:new --against my_kernels.py:old --arg x=f32[4096] --arg out=f32[4096] \\
      --arg n=4000 --const BLOCK=512 --grid 8
  ascend-perf model my_kernels.py:new --against my_kernels.py:new --against-const BLOCK=256 ...
  ascend-perf model my_kernels.py:new --compiler 1.0.0,1.1.0,1.2.0 ..."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="?", metavar="OP | FILE.py:KERNEL")
    parser.add_argument("--list", action="store_true", help="ops, cases, implementations and twins")
    parser.add_argument("--case", action="append", help="case id (repeatable; default: the quick cases)")
    parser.add_argument("--impl", action="append", help="implementation or twin (repeatable; default: all)")
    add_launch_arguments(parser)
    parser.add_argument("--compiler", help="ascendnpu-ir versions, comma-separated; a file's kernel side by side")
    parser.add_argument(
        "--against", metavar="FILE.py:KERNEL", help="the form before, executed with the same arguments and data"
    )
    parser.add_argument(
        "--against-const", action="append", default=[], metavar="NAME=VALUE", help="constants of that form alone"
    )
    parser.add_argument("--against-grid", metavar="N", help="grid of that form (default: the same)")
    parser.add_argument("--html", metavar="FILE", help="one self-contained page of it, with the pipes' timeline")
    parser.add_argument("--trace", metavar="FILE", help="Chrome trace of the (last) launch, for Perfetto")
    parser.add_argument("--json", action="store_true")


def add_kernel_arguments(parser: argparse.ArgumentParser) -> None:
    """What describes the launch of a file's kernel."""
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="f32[64,512] (normal), i32[64]:1..500 (without bounds up to the last index, 63), 7, 0.5, None",
    )
    parser.add_argument(
        "--const", action="append", default=[], metavar="NAME=VALUE", help="a tl.constexpr argument"
    )
    parser.add_argument("--grid", default="1", help="programs along up to three axes: 48 or 8,4")
    parser.add_argument(
        "--target",
        type=target,
        default=os.environ.get("ASCEND_KERNELS_TARGET", "Ascend910B1"),
        metavar="NAME",
        help=f"{', '.join(TARGETS)} (default: ASCEND_KERNELS_TARGET, else the first)",
    )


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """What describes the launch of a file's kernel, and how outputs are compared."""
    add_kernel_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the random tensors of --arg")
    parser.add_argument(
        "--rtol",
        type=tolerance,
        default=0.0,
        help="outputs may differ by this much of their value (default: exact)",
    )
    parser.add_argument("--atol", type=tolerance, default=0.0, help="outputs may differ by this much")


def target(text: str) -> str:
    """A target that the compiler knows and the model covers."""
    try:
        return known_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def tolerance(text: str) -> float:
    """A number from 0 up that is one."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number from 0 up, got {text}")
    return value


def run(given: argparse.Namespace) -> int:
    """0 ok, 2 when something is wrong or failed, 4 for a usage or environment error."""
    from ascend_model import toolchain

    try:
        if given.list:
            return _list(given.json)
        if not given.what:
            raise UsageError("name an op or FILE.py:KERNEL; `--list` shows the ops")
        compilers = [one.strip() for one in given.compiler.split(",")] if given.compiler else []
        compilers = list(dict.fromkeys(compilers)) or [toolchain.default_version()]
        for compiler in compilers:
            toolchain.compiler_bin(compiler)
        if ".py:" in given.what:
            return _file(given, compilers)
        return _op(given, compilers)
    except (UsageError, toolchain.ToolchainError) as error:
        print(f"ascend-perf model: {error}", file=sys.stderr)
        return 4


def _op(given: argparse.Namespace, compilers: Sequence[str]) -> int:
    if given.what.endswith(".py"):
        found = ", ".join(f"{given.what}:{name}" for name in kernels_of(load_module(given.what)))
        raise UsageError(f"name one of its kernels: {found or 'it has no @triton.jit function'}")
    if given.against or given.html or given.against_const or given.against_grid:
        raise UsageError(
            "--against and --html go with FILE.py:KERNEL; for an op: `ascend-perf explain OP --impl A --against B`"
        )
    with device.standing_for(given.target):
        rows = [row for compiler in compilers for row in _op_rows(given, compiler)]
    if given.trace and rows:
        _save(given.trace, json.dumps(rows[-1].get("trace") or {"traceEvents": []}))
    for row in rows:
        row.pop("trace", None)
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        _print(rows)
    return 0 if all(row["status"] == "ok" for row in rows) else 2


# ---- kernels of files


def launch_of(given: argparse.Namespace, what: str, against: bool = False) -> Launch:
    """A fresh launch of one side: its tensors are the same at every call."""
    constants = [*given.const, *(given.against_const if against else [])]
    grid = (given.against_grid if against else None) or given.grid
    others = [one for one in (given.what, getattr(given, "against", None)) if one and one != what]
    return file_launch(what, given.arg, constants, grid, given.seed, others)


def _file(given: argparse.Namespace, compilers: Sequence[str]) -> int:
    if given.case or given.impl:
        raise UsageError("--case and --impl go with an op, not with FILE.py:KERNEL")
    if (given.against_const or given.against_grid) and not given.against:
        raise UsageError("--against-const and --against-grid go with --against FILE.py:KERNEL")
    sides = [(given.against, True)] if given.against else []
    sides.append((given.what, False))
    groups: list[list[Form]] = []
    traces: dict[int, Any] = {}
    with working() as say:
        made = [[
            _executed(given, what, against, compiler, say, traces) for what, against in sides
        ] for compiler in compilers]  # fmt: skip
        # One table: two forms on one compiler, or one form on all of them.
        groups = made if given.against else [[form for [form] in made]]
        comparisons = [[compare(group[0], form, given.rtol, given.atol) for form in group[1:]] for group in groups]
    if given.trace:
        last = groups[-1][-1]
        _save(given.trace, json.dumps(traces.get(id(last)) or {"traceEvents": []}))
    if given.html:
        from .launch_page import page

        _save(given.html, page(groups, comparisons, traces, folder=os.getcwd()))
    if given.json:
        rows = [
            form_row(form, comparison)
            for group, compared in zip(groups, comparisons, strict=True)
            for form, comparison in zip(group, [None, *compared], strict=True)
        ]
        print(json.dumps(rows, indent=1))
    else:
        for group, compared in zip(groups, comparisons, strict=True):
            print("\n".join(_said(group, compared)))
        if given.html:
            print(f"\nwritten: {given.html}")
    right = all(sound(form) for group in groups for form in group)
    agree = all(not one.outputs.differences for compared in comparisons for one in compared)
    return 0 if right and agree else 2


def sound(form: Form) -> bool:
    """Whether a form ran to its end without a hazard."""
    return form.done.status == "ok" and not form.done.findings


def _executed(
    given: argparse.Namespace, what: str, against: bool, compiler: str, say: Any, traces: dict[int, Any]
) -> Form:
    say(f"{what} on {compiler}")
    form = execute(what, launch_of(given, what, against), given.target, compiler)
    if given.html or given.trace:
        say(f"timeline of {what} on {compiler}")
        traces[id(form)] = traced(form, launch_of(given, what, against), whole=bool(given.trace))
    return form


@contextlib.contextmanager
def working() -> Iterator[Any]:
    """A spinner on a terminal that says what is being done; nothing anywhere else."""
    try:
        from rich.console import Console
        from rich.markup import escape
    except ImportError:
        yield lambda _: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("compiling") as status:
        yield lambda text: status.update(escape(text))


def _save(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error


def _said(group: Sequence[Form], comparisons: Sequence[Comparison]) -> Iterator[str]:
    """One group as lines of text: the table, what is wrong, whether outputs agree, causes, advice."""
    from ascend_model.text import plain

    heads = heads_of(group)
    yield f"modelled: {group[0].target}, nothing here ran on a device"
    kernels = " -> ".join(dict.fromkeys(form.what for form in group))
    versions = ", ".join(dict.fromkeys(form.compiler for form in group))
    yield f"{plain(kernels)}, ascendnpu-ir {versions}\n"
    yield from table_lines(group, heads)
    for form, head in zip(group, heads, strict=True):
        of = f" of {plain(head, 60)}" if len(group) > 1 else ""
        if form.done.findings or form.done.notes or form.done.status != "ok":
            yield ""
        if form.stopped:
            yield f"{form.done.status}{of}: {_first(form.reason)}"
        for finding in form.done.findings:
            yield f"hazard{of}: {plain(str(finding), 400)}"
        for note in form.done.notes:
            yield f"note{of}: {plain(note, 400)}"
    for comparison, head in zip(comparisons, heads[1:], strict=True):
        yield f"\n{plain(heads[0], 60)} -> {plain(head, 60)}"
        yield from outputs_said(comparison)
        yield str(comparison.explanation)
    form, head = group[-1], heads[-1]
    advice = [] if form.done.status not in ("ok", "out of bounds") else advice_of(form)
    if advice:
        yield f"\nadvice{f' for {plain(head, 60)}' if len(group) > 1 else ''}"
        yield from (f"- {one.sentence}" for one in advice)


def outputs_said(comparison: Comparison) -> Iterator[str]:
    """Whether the outputs of two forms agree, one sentence a tensor that does not."""
    outputs = comparison.outputs
    if outputs.agree:
        yield f"Outputs agree: {', '.join(outputs.compared)}."
    for one in outputs.differences:
        yield f"Outputs differ: {one}."
    if outputs.note:
        yield f"Outputs: {outputs.note}."


def _first(message: str) -> str:
    from ascend_model.text import plain

    return plain(next(iter(message.splitlines()), ""), 400)


def form_row(form: Form, comparison: Comparison | None) -> dict[str, Any]:
    """One form as JSON gives it, with what it is compared to."""
    file, _, name = form.what.rpartition(":")
    named = {"op": name, "case": "", "impl": file}
    row = _row(named, form.target, form.compiler, form.done.status, form.done.message, [form.done])
    del row["trace"]
    row["grid"] = list(form.launch.grid)
    row["advice"] = [
        {"kind": one.kind, "sentence": one.sentence, "place": list(one.place) if one.place else None}
        for one in advice_of(form)
    ]
    if comparison is not None:
        lines = side_by_side([comparison.before, comparison.after])
        row["against"] = {
            "what": comparison.before.what,
            "compiler": comparison.before.compiler,
            "changes": {
                line.name: {"before": line.values[0], "after": line.values[1], "change": _finite(line.change(1))}
                for line in lines
            },
            "outputs": {
                "agree": comparison.outputs.agree,
                "compared": list(comparison.outputs.compared),
                "differences": list(comparison.outputs.differences),
                "note": comparison.outputs.note,
            },
            "cause": comparison.explanation.cause,
            "sentences": list(comparison.explanation.sentences),
        }
    return row


def _finite(size: float | None) -> float | None:
    """A change as JSON can hold it: null for one from zero, and for none."""
    return None if size is None or size == float("inf") else size


# ---- ops of the registry


def _list(as_json: bool) -> int:
    from ascend_kernels.registry import OPS

    if as_json:
        found = {
            name: {
                "family": op.family,
                "cases": list(op.cases),
                "quick": op.quick_cases(),
                "implementations": list(op.implementations),
                "gpu": list(op.gpu),
                "twins": {t: twin.pattern for t, twin in op.twins.items()},
            }
            for name, op in OPS.items()
        }
        print(json.dumps(found, indent=1))
        return 0
    for name, op in OPS.items():
        print(f"{name}  ({op.family})")
        gpu = f"; on a GPU also {', '.join(op.gpu)}" if op.gpu else ""
        print(f"  implementations: {', '.join(op.implementations)}{gpu}")
        print(f"  quick cases:     {', '.join(op.quick_cases())}")
        print(f"  other cases:     {', '.join(c for c in op.cases if not op.cases[c].quick)}")
        for twin, row in op.twins.items():
            print(f"  twin {twin}: {row.pattern}")
    return 0


def _op_rows(given: argparse.Namespace, compiler: str) -> list[dict[str, Any]]:
    from ascend_kernels.registry import OPS

    from .gate import verify
    from .model import Modelled

    op = OPS.get(given.what)
    if op is None:
        raise UsageError(f"no op {given.what!r}; there are {', '.join(OPS)}")
    rows = []
    for case in _chosen(given.case, op.quick_cases(), op.cases, "case"):
        for impl in _chosen(given.impl, op.names("npu"), op.calls(), "implementation"):
            runner = Modelled(given.target, compiler, impl in op.twins, trace=bool(given.trace))
            verdict = verify(op, case, impl, runner, repeat=False)
            named = {"op": op.name, "case": case, "impl": impl}
            rows.append(_row(named, given.target, compiler, verdict.state, verdict.reason, runner.simulations))
    return rows


def _chosen(asked: list[str] | None, default: list[str], known: Any, what: str) -> list[str]:
    for name in asked or ():
        if name not in known:
            raise UsageError(f"no {what} {name!r}; there are {', '.join(known)}")
    return asked or default


def _row(
    named: dict[str, str], target: str, compiler: str, state: str, reason: str, simulations: list[Any]
) -> dict[str, Any]:
    from ascend_model import combined

    last = simulations[-1] if simulations else None
    timed = bool(simulations) and all(done.cycles is not None for done in simulations)
    counts = combined(simulations) if timed else {}
    cycles = counts.pop("cycles", None)
    status = state
    # The compiler's or the model's own word is more exact than the state it leads to.
    if state != "ok" and last is not None and last.status != "ok":
        status = last.status

    def total(part: str) -> dict[str, int]:
        joined: dict[str, int] = {}
        for done in simulations if timed else ():
            for key, value in getattr(done, part).items():
                joined[key] = joined.get(key, 0) + value
        return joined

    return {
        **named,
        "target": target,
        "compiler": compiler,
        "status": status,
        "state": state,
        "reason": reason,
        "cycles": cycles if state == "ok" else None,
        "bound_cycles": sum(done.bound_cycles for done in simulations) if timed and state == "ok" else None,
        "counts": counts if state == "ok" else {},
        "busy": total("busy") if state == "ok" else {},
        "stalls": total("stalls") if state == "ok" else {},
        "findings": [str(finding) for done in simulations for finding in done.findings],
        "notes": [note for done in simulations for note in done.notes],
        "launches": len(simulations),
        "trace": last.trace if last is not None else None,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    print(f"modelled: {rows[0]['target']}, nothing here ran on a device")
    columns = ("cycles", "scalar_accesses", "scalar_waits_in_loops", "dma_in", "dma_out", "vector_ops", "ub_bytes",
               "double_buffers")  # fmt: skip
    short = ("cycles", "scalar", "waits", "dma in", "dma out", "vector", "UB B", "dbuf")
    width = max(len(f"{r['case']} {r['impl']} {r['compiler']}") for r in rows)
    print(f"{'case implementation compiler':<{width}}  " + "".join(f"{s:>9}" for s in short))
    for row in rows:
        name = f"{row['case']} {row['impl']} {row['compiler']}".strip()
        if row["state"] == "ok":
            values = [row["cycles"] if c == "cycles" else row["counts"][c] for c in columns]
            print(f"{name:<{width}}  " + "".join(f"{v:>9}" for v in values))
        else:
            print(f"{name:<{width}}  {row['status']}: {row['reason'].splitlines()[0] if row['reason'] else ''}")
        for finding in row["findings"]:
            print(f"{'':<{width}}    hazard: {finding}")
        for note in row["notes"]:
            print(f"{'':<{width}}    note: {note}")
