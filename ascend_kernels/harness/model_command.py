"""`ascend-perf model`: compile an op of the registry, or any kernel of a file, execute what came out, count it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .launch import Launch

EXAMPLES = """examples:
  ascend-perf model --list
  ascend-perf model assign_req_to_token_pool
  ascend-perf model assign_req_to_token_pool --case ragged --impl mask-reversed --json
  ascend-perf model assign_req_to_token_pool --case ragged --compiler 1.1.0 --trace launch.json
  ascend-perf model my_kernels.py:softmax --arg x=f32[64,512] --arg out=f32[64,512] --arg n=512 \\
      --const BLOCK=512 --grid 64"""

DTYPES = {
    "f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16", "bf16": "bfloat16",
    "f64": "float64", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "i1": "bool", "bool": "bool",
}  # fmt: skip


class UsageError(ValueError):
    """What was asked cannot be understood; the message says what can."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="?", metavar="OP | FILE.py:KERNEL")
    parser.add_argument("--list", action="store_true", help="ops, cases, implementations and twins")
    parser.add_argument("--case", action="append", help="case id (repeatable; default: the quick cases)")
    parser.add_argument("--impl", action="append", help="implementation or twin (repeatable; default: all)")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="f32[64,512], 7, 0.5, None"
    )
    parser.add_argument(
        "--const", action="append", default=[], metavar="NAME=VALUE", help="a tl.constexpr argument"
    )
    parser.add_argument("--grid", default="1", help="programs along up to three axes: 48 or 8,4")
    parser.add_argument("--seed", type=int, default=0, help="of the random tensors of --arg")
    parser.add_argument("--target", default="Ascend910B1")
    parser.add_argument("--compiler", help="ascendnpu-ir versions, comma-separated")
    parser.add_argument("--trace", metavar="FILE", help="Chrome trace of the (last) launch, for Perfetto")
    parser.add_argument("--json", action="store_true")


def run(given: argparse.Namespace) -> int:
    """0 ok, 2 when something is wrong or failed, 4 for a usage or environment error."""
    from ascend_model import toolchain

    try:
        if given.list:
            return _list(given.json)
        if not given.what:
            raise UsageError("name an op or FILE.py:KERNEL; `--list` shows the ops")
        compilers = given.compiler.split(",") if given.compiler else [toolchain.default_version()]
        rows = []
        for compiler in compilers:
            toolchain.compiler_bin(compiler)
            rows += _file_rows(given, compiler) if ".py:" in given.what else _op_rows(given, compiler)
    except (UsageError, toolchain.ToolchainError) as error:
        print(f"ascend-perf model: {error}", file=sys.stderr)
        return 4
    if given.trace and rows:
        with open(given.trace, "w") as file:
            json.dump(rows[-1].pop("trace", None) or {"traceEvents": []}, file)
    for row in rows:
        row.pop("trace", None)
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        _print(rows)
    return 0 if all(row["status"] == "ok" for row in rows) else 2


def _list(as_json: bool) -> int:
    from ascend_kernels.registry import OPS

    if as_json:
        found = {
            name: {
                "family": op.family,
                "cases": list(op.cases),
                "quick": op.quick_cases(),
                "implementations": list(op.implementations),
                "twins": {t: twin.pattern for t, twin in op.twins.items()},
            }
            for name, op in OPS.items()
        }
        print(json.dumps(found, indent=1))
        return 0
    for name, op in OPS.items():
        print(f"{name}  ({op.family})")
        print(f"  implementations: {', '.join(op.implementations)}")
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
        for impl in _chosen(given.impl, list(op.calls()), op.calls(), "implementation"):
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


def _file_rows(given: argparse.Namespace, compiler: str) -> list[dict[str, Any]]:
    import ascend_model

    file, _, name = given.what.rpartition(":")
    launch = file_launch(given.what, given.arg, given.const, given.grid, given.seed)
    try:
        done = ascend_model.simulate(
            launch.kernel, launch.grid, launch.args, launch.constants, target=given.target, compiler=compiler,
            trace=bool(given.trace),
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    named = {"op": name, "case": "", "impl": file}
    return [_row(named, given.target, compiler, done.status, done.message, [done])]


def file_launch(what: str, args: list[str], constants: list[str], grid: str, seed: int = 0) -> Launch:
    """The launch that `FILE.py:KERNEL --arg ... --const ... --grid ...` describes; UsageError if it cannot be."""
    file, _, name = what.rpartition(":")
    kernel = load_kernel(file, name)
    given, fixed = dict(_pair(text) for text in args), dict(_pair(text) for text in constants)
    _check_names(kernel, name, given, fixed)
    try:
        sizes = tuple(int(part) for part in grid.split(","))
    except ValueError as error:
        raise UsageError(f"grid {grid!r}: expected numbers, e.g. 48 or 8,4") from error
    return Launch(
        kernel,
        sizes,
        {k: _argument(k, v, seed) for k, v in given.items()},
        {k: _plain(v) for k, v in fixed.items()},
    )


def load_kernel(file: str, name: str) -> Any:
    """The `@triton.jit` function `name` of a file.  Raises UsageError saying what is wrong with the file."""
    import importlib.util
    from pathlib import Path

    from ascend_model import stand_in_driver

    if not Path(file).is_file():
        raise UsageError(f"no file {file}")
    stand_in_driver()
    spec = importlib.util.spec_from_file_location(f"_kernels_{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"{file} needs the module {error.name}, which is not installed here") from error
    except BaseException as error:
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    kernels = [n for n, v in vars(module).items() if hasattr(v, "fn") and hasattr(v, "__getitem__")]
    if name not in kernels:
        raise UsageError(f"{file} has no @triton.jit function {name!r}; it has {', '.join(kernels) or 'none'}")
    return getattr(module, name)


def _check_names(kernel: Any, name: str, arguments: dict[str, str], constants: dict[str, str]) -> None:
    from ascend_model.compile import heuristic_names, is_constexpr, wrappers
    from ascend_model.compile import parameters as of_kernel

    filled = heuristic_names(kernel)
    configs = [config.kwargs for one in wrappers(kernel) for config in getattr(one, "configs", ())]
    filled += configs[0] if len(configs) == 1 else ()
    parameters = of_kernel(kernel)
    compile_time = [n for n, p in parameters.items() if is_constexpr(p)]
    run_time = [n for n in parameters if n not in compile_time]
    missing = [
        f"--arg {n}=..." for n in run_time if n not in arguments and parameters[n].default is parameters[n].empty
    ]
    missing += [
        f"--const {n}={'|'.join(dict.fromkeys(str(c[n]) for c in configs if n in c)) or '...'}"
        for n in compile_time
        if n not in constants and n not in filled and parameters[n].default is parameters[n].empty
    ]
    unknown = [n for n in arguments if n not in run_time] + [n for n in constants if n not in compile_time]
    if missing or unknown:
        words = [f"missing {', '.join(missing)}"] if missing else []
        words += [f"it has no {', '.join(unknown)}"] if unknown else []
        raise UsageError(f"{name}({', '.join(parameters)}): {'; '.join(words)}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r}: expected NAME=VALUE")
    return name, value


def _plain(text: str) -> Any:
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _argument(name: str, text: str, seed: int) -> Any:
    """A number, None, or a random tensor `dtype[shape]` (integers from 0 to the tensor's last index)."""
    import torch

    dtype, bracket, shape = text.partition("[")
    if not bracket:
        value = _plain(text)
        if isinstance(value, str):
            raise UsageError(f"argument {name}: {text!r} is neither a number nor dtype[shape], e.g. f32[64,512]")
        return value
    if dtype not in DTYPES or not shape.endswith("]"):
        raise UsageError(f"argument {name}: {text!r}: expected dtype[shape] with dtype one of {', '.join(DTYPES)}")
    try:
        sizes = [int(part) for part in shape[:-1].split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"argument {name}: {text!r}: a shape is numbers, e.g. f32[64,512]") from None
    kind = getattr(torch, DTYPES[dtype])
    generator = torch.Generator().manual_seed(seed + sum(map(ord, name)))
    if kind.is_floating_point:
        return torch.randn(sizes, generator=generator).to(kind)
    count = max(1, torch.Size(sizes).numel())
    most = 2 if kind == torch.bool else min(count, 127 if kind in (torch.int8, torch.uint8) else count)
    return torch.randint(0, most, sizes, generator=generator).to(kind)


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
