"""What a row of the survey is made of: a kernel, how it is launched, and what it must compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

SEED = 20


@dataclass(frozen=True)
class Launch:
    """One launch: CPU tensors and numbers by name, and what the named tensors must hold afterwards.

    tolerance: relative and absolute; zero asks for equality.
    faults:    fault of the compiler -> what code with that fault leaves in the tensors, worked out here and not
               taken from the model; the right values where the fault is a hazard, None where the launch never ends
    """

    grid: tuple[int, ...]
    args: dict[str, Any]
    expected: dict[str, torch.Tensor]
    tolerance: float = 0.0
    faults: dict[str, dict[str, torch.Tensor] | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outside:
    """One kernel written as others write theirs, with its launch. `group` is the file it stands in."""

    name: str
    group: str
    what: str
    kernel: Any
    constants: dict[str, Any]
    make: Callable[[torch.Generator], Launch]

    def launch(self) -> Launch:
        return self.make(torch.Generator().manual_seed(SEED))


KERNELS: dict[str, Outside] = {}


def outside(kernel: Any, what: str, name: str = "", **constants: Any) -> Callable[[Any], Any]:
    """Put a kernel into the survey; decorates the function that makes its launch."""

    def add(make: Callable[[torch.Generator], Launch]) -> Callable[[torch.Generator], Launch]:
        row = Outside(name or kernel.__name__, make.__module__.rpartition(".")[2], what, kernel, constants, make)
        if row.name in KERNELS:
            raise ValueError(f"two kernels of the survey are named {row.name}")
        KERNELS[row.name] = row
        return make

    return add


def normal(g: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=g).to(dtype)


def ints(g: torch.Generator, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=g).to(dtype)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def mismatch(launch: Launch, expected: dict[str, torch.Tensor] | None = None) -> str:
    """What differs from the reference, or from other values; empty when nothing does."""
    for name, want in (launch.expected if expected is None else expected).items():
        got = launch.args[name]
        if got.shape != want.shape:
            return f"{name}: shape {tuple(got.shape)} for {tuple(want.shape)}"
        if launch.tolerance == 0:
            close = got == want.to(got.dtype)
        else:
            close = torch.isclose(
                got.double(), want.double(), rtol=launch.tolerance, atol=launch.tolerance, equal_nan=True
            )
        if not bool(close.all()):
            bad = torch.nonzero(~close.reshape(-1)).reshape(-1)
            at = int(bad[0])
            values = f"{got.reshape(-1)[at].item()} for {want.reshape(-1)[at].item()}"
            return f"{name}: {len(bad)} of {close.numel()} differ, first at {at}: {values}"
    return ""
