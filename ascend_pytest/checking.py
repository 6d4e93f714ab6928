"""The check behind the fixture: one launch on each compiler, everything that is wrong with it in one message."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import ascend_model
from ascend_model import explain, toolchain
from ascend_model.outputs import as_tensor, beyond, bits, difference
from ascend_model.simulate import MAX_OPS
from ascend_model.source import line_of, shortened

KINDS = (
    "out of bounds read", "out of bounds write", "missing wait", "uninitialised UB read", "overlapping buffers",
    "read-modify-write overlap", "write-write race", "read-write race", "write to input",
)  # fmt: skip
"""Kinds of hazards that the model finds, as `allow=` names them."""

CAUSES = {
    "read-modify-write overlap": ("whole-tile store",),
    "out of bounds read": ("masked scalar load", "whole-tile store"),
    "out of bounds write": ("whole-tile store",),
}
"""Patterns of the source that compile into a hazard of this kind."""

TO_DO = {
    "out of bounds": "mask the access, or hand over a tensor that covers it",
    "endless loop": "if the loop is only long, raise max_ops",
    "unsupported": "it cannot be judged here: the model does not know this op",
    "unsupported: cube": "it cannot be judged here: only vector kernels are modelled",
    "timed out": "if the compiler is only slow here, raise timeout",
    "missing wait": "nothing in the source asks for this wait: compare compilers, or keep the two accesses apart",
    "read-modify-write overlap": "give each program whole tiles, or a mask that is a bound: offset < end",
    "write-write race": "let one program write each element, or use an atomic",
    "read-write race": "let no program read what another one writes in the same launch",
}
MOST = 8
"""Hazards and differences that are told."""


class AscendFailure(AssertionError):
    """A kernel did not pass; the message says what is wrong, where, and what to do."""


@dataclass(frozen=True)
class Report:
    """What a launch that passed came to on one compiler, all of it modelled.

    counts: what the code did, by the names of `ascend_model.METRICS`, over all programs
    cycles, bound_cycles: modelled time, and the time of the same bytes at full bandwidth
    busy, stalls: cycles of the slowest program by pipe and by cause
    hazards: those that `allow` let pass.  notes: what the compiler said beside success
    advice: source patterns known to compile badly, as sentences
    outputs: the tensors after the launch, by name
    on: the reports by compiler, this one among them
    """

    kernel: str
    compiler: str
    target: str
    cycles: int
    bound_cycles: int
    counts: Mapping[str, int]
    busy: Mapping[str, int]
    stalls: Mapping[str, int]
    hazards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    on: Mapping[str, Report] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Ascend:
    """What the fixture `ascend` gives."""

    compilers: tuple[str, ...] = ()
    target: str = "Ascend910B1"
    fail_when_missing: bool = False

    def check(
        self,
        kernel: Any,
        grid: int | Sequence[int],
        args: Mapping[str, Any] | Sequence[Any],
        constants: Mapping[str, Any] | None = None,
        expected: Mapping[str, Any] | None = None,
        *,
        rtol: float = 0.0,
        atol: float = 0.0,
        compilers: Sequence[str] | None = None,
        target: str | None = None,
        scratch: Sequence[str] = (),
        allow: Sequence[str] = (),
        max_ops: int | None = None,
        timeout: float = 120.0,
    ) -> Report:
        """Compile a kernel for Ascend, execute the compiled code, and fail the test on anything wrong with it.

        kernel:    a `@triton.jit` function at the top level of a module
        grid:      programs along one to three axes
        args:      run-time arguments by name or in order: CPU tensors, arrays, numbers; they stay as they are
        constants: values of the `tl.constexpr` arguments
        expected:  tensor, array or number by name of the argument that must hold it afterwards: bit for bit, or
                   within rtol and atol.  Tensors named neither here nor in `scratch` must stay unchanged.  Without
                   `expected` only hazards and faults are judged
        compilers: ascendnpu-ir versions, all of which must pass; default: `--ascend-compilers`, else the installed
        allow:     kinds of hazards that are let pass, out of KINDS
        max_ops:   ops of the compiled code in loops of one program, beyond which it counts as endless

        Returns the numbers on the first compiler; those of the others are in `on`.
        """
        __tracebackhide__ = True
        unknown = [one for one in allow if one not in KINDS]
        if unknown:
            raise ValueError(f"allow: no hazard is called {unknown[0]!r}; there are {', '.join(KINDS)}")
        named = _by_name(kernel, args, constants or {})
        for name in (*(expected or {}), *scratch):
            if not hasattr(named.get(name), "dtype"):
                raise ValueError(f"{name!r} is no tensor among the arguments: {', '.join(named)}")
        asked = tuple(compilers or self.compilers) or (os.environ.get("ASCEND_PERF_COMPILER", ""),)
        missing = {one: reason for one in asked if (reason := _missing(one))}
        reports: dict[str, Report] = {}
        failures: list[str] = []
        for compiler in asked:
            if compiler in missing:
                continue
            given = _copies(named)
            done = ascend_model.simulate(
                kernel,
                grid,
                given,
                constants,
                target=target or self.target,
                compiler=compiler or None,
                max_ops=max_ops or MAX_OPS,
                keep_numbers=any(one.startswith("out of bounds") for one in allow),
                timeout=timeout,
            )
            version = compiler or toolchain.default_version()
            wrong = _wrong(done, kernel, allow)
            if not wrong and expected is not None:
                wrong = _differences(named, given, expected, scratch, rtol, atol)
            if wrong:
                failures.append("\n".join([_headline(kernel, version, target or self.target, done), *wrong]))
            else:
                reports[version] = _report(kernel, version, target or self.target, done)
        if failures:
            passed = f"\n(it passes on {', '.join(reports)})" if reports else ""
            raise AscendFailure("\n\n".join(failures) + passed)
        if missing:
            # A test that did not run on what it asked for has not passed.
            reason = "; ".join(dict.fromkeys(missing.values()))
            if self.fail_when_missing:
                raise AscendFailure(reason)
            pytest.skip(reason)
        reports = {version: replace(one, on=reports) for version, one in reports.items()}
        return next(iter(reports.values()))


def _missing(compiler: str) -> str:
    """Why this compiler cannot run here; "" when it can."""
    if toolchain.triton_ascend_version() is None:
        return (
            "the Ascend compiler is not installed here: `pip install 'ascend-perf[model]'` (Python 3.10 or 3.11)"
        )
    try:
        toolchain.compiler_bin(compiler or None)
    except toolchain.ToolchainError as error:
        return str(error)
    return ""


def _by_name(kernel: Any, args: Mapping[str, Any] | Sequence[Any], constants: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(args, Mapping):
        return dict(args)
    names = [name for name in kernel.arg_names if name not in constants]
    if len(args) > len(names):
        raise ValueError(f"{_name(kernel)} takes {len(names)} run-time arguments, got {len(args)}")
    return dict(zip(names, args, strict=False))


def _copies(named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments once more; views keep their offset and strides, and what shares memory goes on sharing it."""
    storages: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            memory = _memory(value)
            if memory not in storages:
                storages[memory] = value.detach().untyped_storage().clone()
            made = torch.empty(0, dtype=value.dtype)
            return made.set_(storages[memory], value.storage_offset(), value.shape, value.stride())
        if hasattr(value, "dtype") and hasattr(value, "copy"):
            return storages.setdefault(id(value), value.copy())
        return value

    return {name: copied(value) for name, value in named.items()}


# ---- what is wrong


def _wrong(done: Any, kernel: Any, allow: Sequence[str]) -> list[str]:
    """Lines about a launch that did not run well; none when it did."""
    said: list[str] = []
    hazards = [one for one in done.findings if one.kind not in allow]
    # An access outside a buffer is told as the hazard that it is.
    if done.status not in ("ok", "out of bounds"):
        said += _status(done, kernel)
    for one in hazards[:MOST]:
        place = _place(one.place)
        times = f" ({one.count:,} times)" if one.count > 1 else ""
        at = f"{place[0]}:{place[1]}: " if place else ""
        said.append(f"  {at}{one.kind}: {one.message}; program {one.program}{times}")
        said += _quoted(place)
    if len(hazards) > MOST:
        said.append(f"  ... and {len(hazards) - MOST} more hazards")
    kinds = {one.kind for one in hazards}
    if done.compiled is not None and done.compiled.status == "ok":
        causes = {pattern for kind in kinds for pattern in CAUSES.get(kind, ())}
        said += [f"  cause: {one.sentence}" for one in explain.advise(done) if one.kind in causes]
    for kind in sorted({"out of bounds" if one.startswith("out of bounds") else one for one in kinds}):
        if kind in TO_DO:
            said.append(f"  what to do: {TO_DO[kind]}")
    return said


def _status(done: Any, kernel: Any) -> list[str]:
    failed_to_compile = done.compiled is None or done.compiled.status != "ok"
    lines = [line for line in done.message.splitlines() if line.strip()]
    place = _place_in(done.message) or _source_place(done.message, kernel)
    if done.status == "ub overflow":
        lines = [explain.too_large(done.message)]
    at = f"{place[0]}:{place[1]}: " if place else ""
    said = [f"  {at}{done.status}: {lines[0] if lines else 'no reason given'}"]
    said += [f"    {line}" for line in lines[1:12]] if failed_to_compile else []
    said += _quoted(place)
    if done.status in TO_DO:
        said.append(f"  what to do: {TO_DO[done.status]}")
    return said


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], expected: Mapping[str, Any], scratch: Sequence[str],
    rtol: float, atol: float,
) -> list[str]:  # fmt: skip
    said = []
    for name, wanted in expected.items():
        one = _difference(name, after[name], wanted, rtol, atol)
        if one:
            said.append(f"  wrong result: {one}")
    judged = {_memory(before[name]) for name in (*expected, *scratch)}
    for name, value in before.items():
        if not hasattr(value, "dtype") or _memory(value) in judged:
            continue
        if bool((bits(as_tensor(value)) != bits(as_tensor(after[name]))).any()):
            where = difference(name, after[name], value, word="before the launch")
            said.append(f"  `{name}` was written: {where}")
            said.append(
                f"  what to do: name it in expected=, or in scratch=[{name!r}] if its values do not matter"
            )
    return said[: 2 * MOST]


def _difference(name: str, actual: Any, wanted: Any, rtol: float, atol: float) -> str | None:
    """`ascend_model.outputs.difference`, with expected values of the same kind but another width cast, and a
    number standing for a tensor of it."""
    a, e = as_tensor(actual), as_tensor(wanted)
    if e.ndim == 0 and a.ndim:
        e = e.expand(a.shape)
    same_kind = a.dtype.is_floating_point == e.dtype.is_floating_point and (a.dtype == torch.bool) == (
        e.dtype == torch.bool
    )
    if not same_kind or a.shape != e.shape:
        return difference(name, a, e)
    if (rtol or atol) and a.dtype != e.dtype:
        # Judged against the wide value, and told as the output's own type.
        if not bool(beyond(a, e, rtol, atol).any()):
            return None
    return difference(name, a, e.to(a.dtype), rtol, atol)


def _memory(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else id(value)


# ---- words


def _headline(kernel: Any, compiler: str, target: str, done: Any) -> str:
    file, line = _defined(kernel)
    return f"{_name(kernel)} ({file}:{line}) fails on {target}, ascendnpu-ir {compiler} (modelled):"


def _inner(kernel: Any) -> Any:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _name(kernel: Any) -> str:
    return getattr(_inner(kernel), "__name__", "kernel")


def _defined(kernel: Any) -> tuple[str, int]:
    code = _inner(kernel).__code__
    return _relative(code.co_filename), code.co_firstlineno


def _relative(file: str) -> str:
    inside = os.path.abspath(file).startswith(os.getcwd() + os.sep)
    return os.path.relpath(file) if inside else file


_PLACE = re.compile(r"([^\s:()\"]+\.py):(\d+)(?::\d+)?")
_LOC = re.compile(r'loc\("([^"]+\.py)":(\d+):')
_AT = re.compile(r"^(?:\w+: )?at (\d+):\d+:\n(.*?)$", re.M)


def _place(where: str) -> tuple[str, int] | None:
    """File and line of `kernels.py:33:32 (load, IR line 77)`."""
    found = _PLACE.match(where)
    return (found[1], int(found[2])) if found else None


def _place_in(message: str) -> tuple[str, int] | None:
    found = _LOC.search(message) or _PLACE.search(message)
    return (found[1], int(found[2])) if found else None


def _source_place(message: str, kernel: Any) -> tuple[str, int] | None:
    """triton counts lines from the kernel's `def`; its message quotes from there."""
    found = _AT.search(message)
    if not found or not found[2].startswith(f"def {_name(kernel)}("):
        return None
    file, first = _defined(kernel)
    code_file = _inner(kernel).__code__.co_filename
    start = next((n for n in range(first, first + 50) if line_of(code_file, n).lstrip().startswith("def ")), None)
    return (file, start + int(found[1]) - 1) if start else None


def _quoted(place: tuple[str, int] | None) -> list[str]:
    text = shortened(line_of(os.path.abspath(place[0]), place[1]) or line_of(*place)) if place else ""
    return [f"      {text}"] if text else []


def _report(kernel: Any, compiler: str, target: str, done: Any) -> Report:
    return Report(
        _name(kernel), compiler, target, done.cycles, done.bound_cycles, dict(done.counts), dict(done.busy),
        dict(done.stalls), tuple(str(one) for one in done.findings), done.notes,
        tuple(one.sentence for one in explain.advise(done)), done.outputs,
    )  # fmt: skip
