"""`ascend-perf explain`: why one compiled form of a kernel does not perform as another."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from . import device
from .launch import run_with
from .model_command import add_kernel_arguments
from .user_kernel import UsageError, file_launch

EXAMPLES = """examples:
  ascend-perf explain assign_req_to_token_pool --impl mask-reversed
  ascend-perf explain assign_req_to_token_pool --impl derived --against carried-at-top --case ragged --json
  ascend-perf explain assign_req_to_token_pool --compiler 1.2.0 --compiler-against 1.0.0
  ascend-perf explain kernels.py:old kernels.py:new --arg x=f32[4096] --arg out=f32[4096] --arg n=4000 \\
      --const BLOCK=1024 --grid 4"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("what", metavar="OP | FILE.py:KERNEL", help="an op of the registry, or the kernel before")
    parser.add_argument("after", nargs="?", metavar="FILE.py:KERNEL", help="the kernel after (files only)")
    parser.add_argument("--case", help="case id (default: the first quick case)")
    parser.add_argument("--impl", help="implementation or twin to explain (default: the op's first)")
    parser.add_argument("--against", help="implementation or twin it is compared with (default: the op's first)")
    add_kernel_arguments(parser)
    parser.add_argument("--compiler", help="ascendnpu-ir version")
    parser.add_argument("--compiler-against", help="ascendnpu-ir version of the other side (default: the same)")
    parser.add_argument("--diff", action="store_true", help="print the difference of the compiled texts as well")
    parser.add_argument("--json", action="store_true")


def run(given: argparse.Namespace) -> int:
    """0 when both sides could be looked at, 4 for a usage or environment error."""
    from ascend_model import toolchain
    from ascend_model.explain import explain_all

    try:
        after_compiler = given.compiler or toolchain.default_version()
        before_compiler = given.compiler_against or after_compiler
        for version in (before_compiler, after_compiler):
            toolchain.compiler_bin(version)
        if ".py:" in given.what:
            before, after = _from_files(given, before_compiler, after_compiler)
        else:
            before, after = _from_registry(given, before_compiler, after_compiler)
    except (UsageError, toolchain.ToolchainError) as error:
        print(f"ascend-perf explain: {error}", file=sys.stderr)
        return 4
    explanation = explain_all(before["sides"], after["sides"])
    if given.json:
        sides = {name: _described(side) for name, side in (("before", before), ("after", after))}
        print(json.dumps({**sides, **dataclasses.asdict(explanation)}, indent=1))
        return 0
    print(f"compiled for {given.target}, nothing ran on a device")
    print(f"{_named(before)}  ->  {_named(after)}\n")
    print(explanation)
    if given.diff and explanation.known and explanation.diff:
        print(f"\n{explanation.diff}")
    return 0


def _from_registry(given: argparse.Namespace, *compilers: str) -> tuple[dict[str, Any], dict[str, Any]]:
    from ascend_kernels.registry import OPS

    from .model import Compiling

    op = OPS.get(given.what)
    if op is None:
        raise UsageError(f"no op {given.what!r}; there are {', '.join(OPS)}")
    if given.after or given.arg or given.const:
        raise UsageError("a second kernel, --arg and --const go with FILE.py:KERNEL, not with an op")
    case = given.case or next(iter(op.quick_cases()), next(iter(op.cases)))
    if case not in op.cases:
        raise UsageError(f"no case {case!r}; there are {', '.join(op.cases)}")
    calls = op.calls()
    sides = []
    for impl, compiler in zip((given.against, given.impl), compilers, strict=True):
        impl = impl or op.implementations[0]
        if impl not in calls:
            raise UsageError(f"no implementation {impl!r}; there are {', '.join(calls)}")
        runner = Compiling(given.target, compiler)
        with device.standing_for(given.target), run_with(runner):
            calls[impl](**op.cases[case].arguments())
        sides.append({"what": f"{op.name} {case} {impl}", "compiler": compiler, "sides": runner.sides})
    if [sides[0][k] for k in ("what", "compiler")] == [sides[1][k] for k in ("what", "compiler")]:
        raise UsageError("both sides are the same: give --impl, --against or --compiler-against")
    return sides[0], sides[1]


def _from_files(given: argparse.Namespace, *compilers: str) -> tuple[dict[str, Any], dict[str, Any]]:
    from .model import Compiling

    if given.case or given.impl or given.against:
        raise UsageError("--case, --impl and --against go with an op, not with FILE.py:KERNEL")
    sides = []
    for what, compiler in zip((given.what, given.after or given.what), compilers, strict=True):
        if ".py:" not in what:
            raise UsageError(f"{what!r}: expected FILE.py:KERNEL")
        runner = Compiling(given.target, compiler)
        try:
            runner(file_launch(what, given.arg, given.const, given.grid))
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from error
        sides.append({"what": what, "compiler": compiler, "sides": runner.sides})
    return sides[0], sides[1]


def _described(side: dict[str, Any]) -> dict[str, Any]:
    launches = [
        {
            "kernel": one.compiled.kernel,
            "status": one.compiled.status,
            "code": one.compiled.code,
            "programs": one.programs,
        }
        for one in side["sides"]
    ]
    return {"what": side["what"], "compiler": side["compiler"], "launches": launches}


def _named(side: dict[str, Any]) -> str:
    return f"{side['what']} ({side['compiler']})"
