"""The one door to a kernel launch.

Wrappers call `launch(...)` instead of `kernel[grid](...)`.  So the same wrapper, with its checks and plans, can
run on the device, be counted, or be handed to the model of compiled Ascend code.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from . import device, interpreter
from .device import GRID_LIMIT
from .spec import PlanError


@dataclass(frozen=True)
class Launch:
    """One kernel launch: run-time arguments in signature order, constexpr arguments apart.

    options: what the compiler of the device takes beside (num_warps, num_stages, multibuffer)."""

    kernel: Any
    grid: tuple[int, ...]
    args: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def on_device(launch: Launch) -> None:
    """Run on the device of the tensors, on its current stream (on CPU tensors: Triton's interpreter)."""
    if interpreter.on():
        interpreter.mend()
    elif device.interpreted():
        raise RuntimeError(
            "no NPU or GPU here, and triton was imported before ascend_kernels could switch its interpreter on: "
            "import ascend_kernels first, or set TRITON_INTERPRET=1"
        )
    if device.kind() == "dry":
        device.module("dry").launched()
    with interpreter.handed(launch.args.values()):
        launch.kernel[launch.grid](*launch.args.values(), **launch.constants, **launch.options)


_RUNNER: contextvars.ContextVar[Callable[[Launch], None]] = contextvars.ContextVar("runner", default=on_device)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    args: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Launch `kernel` over `grid`; an empty grid is no launch.  Raises PlanError above 65535 programs."""
    programs = math.prod(grid)
    if programs == 0:
        return
    if programs > GRID_LIMIT:
        raise PlanError(f"{kernel.__name__}: a grid of {programs} programs; the limit is {GRID_LIMIT}")
    runner, constants = _RUNNER.get(), constants or {}
    if runner is on_device and _compiled_for_device(kernel, args):
        kernel[tuple(grid)](*args.values(), **constants, **options)  # all that on_device would do
    else:
        runner(Launch(kernel, tuple(grid), dict(args), dict(constants), options))


def _compiled_for_device(kernel: Any, args: Mapping[str, Any]) -> bool:
    """Whether a kernel is one that triton compiles, and its first tensor lies on a device."""
    if type(kernel).__name__ != "JITFunction":  # triton itself is not imported here
        return False
    for value in args.values():
        if isinstance(value, torch.Tensor):
            return not value.is_cpu
    return False


def for_real() -> bool:
    """Whether launches now go to an NPU or a GPU."""
    return _RUNNER.get() is on_device and device.kind() != "cpu"


def in_interpreter() -> bool:
    """Whether launches now go to Triton's interpreter, which stands in for any device."""
    return _RUNNER.get() is on_device and device.interpreted()


@contextlib.contextmanager
def run_with(runner: Callable[[Launch], None]) -> Iterator[None]:
    """Every launch inside the block goes to `runner`."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Every launch inside the block runs as before and is put on the list."""
    before, seen = _RUNNER.get(), []

    def keep(launch: Launch) -> None:
        seen.append(launch)
        before(launch)

    with run_with(keep):
        yield seen
