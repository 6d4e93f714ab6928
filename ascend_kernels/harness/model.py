"""Runs launches in the model of compiled Ascend code, so that one wrapper serves device and model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from . import device
from .launch import Launch
from .spec import CompileFailed, Fault, Unsupported


@dataclass
class Modelled:
    """A launch runner: compiles each launch for Ascend, executes the compiled code on the CPU tensors and keeps
    what it counted.

    target, compiler: as in `ascend_model.simulate`.  simulations: one a launch, in order.
    unsafe: go on after an access outside a buffer, which then is a finding beside the numbers (for twins).
    """

    target: str = field(default_factory=device.target)
    compiler: str | None = None
    unsafe: bool = False
    trace: bool = False
    simulations: list[Any] = field(default_factory=list)

    def __call__(self, launch: Launch) -> None:
        import ascend_model

        done = ascend_model.simulate(
            launch.kernel,
            launch.grid,
            launch.args,
            launch.constants,
            target=self.target,
            compiler=self.compiler,
            trace=self.trace,
            keep_numbers=self.unsafe,
        )
        self.simulations.append(done)
        if done.status != "ok" and done.cycles is None:
            kind: type[Exception] = CompileFailed
            if done.status in ascend_model.FAULTS:
                kind = Fault
            elif done.status in ascend_model.NOT_MODELLED:
                kind = Unsupported
            raise kind(f"{done.status}: {done.message}")

    @property
    def findings(self) -> list[str]:
        """Hazards and faults of every launch so far, as sentences."""
        return [str(finding) for done in self.simulations for finding in done.findings]


@dataclass
class Compiling:
    """A launch runner that only compiles: what each launch's kernel became, and as how many programs it would run.

    A kernel that does not compile is kept too.  Nothing is executed, so outputs stay as they were.
    """

    target: str = field(default_factory=device.target)
    compiler: str | None = None
    sides: list[Any] = field(default_factory=list)

    def __call__(self, launch: Launch) -> None:
        from ascend_model import compile_kernel
        from ascend_model.explain import Side

        made = compile_kernel(
            launch.kernel, launch.args, launch.constants, target=self.target, compiler=self.compiler
        )
        self.sides.append(Side(made, math.prod(launch.grid)))
