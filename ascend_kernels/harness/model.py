"""Runs launches in the model of compiled Ascend code, so that one wrapper serves device and model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import device
from .launch import Launch
from .spec import CompileFailed, Unsupported


@dataclass
class Modelled:
    """A launch runner: compiles each launch for Ascend, executes the compiled code on the CPU tensors and keeps
    what it counted.

    target, compiler: as in `ascend_model.simulate`.  simulations: one a launch, in order.
    """

    target: str = field(default_factory=device.target)
    compiler: str | None = None
    simulations: list[Any] = field(default_factory=list)

    def __call__(self, launch: Launch) -> None:
        import ascend_model

        done = ascend_model.simulate(
            launch.kernel, launch.grid, launch.args, launch.constants, target=self.target, compiler=self.compiler
        )
        self.simulations.append(done)
        if done.status != "ok":
            words = f"{done.status}: {done.message}"
            raise (Unsupported if done.status in ascend_model.NOT_MODELLED else CompileFailed)(words)

    @property
    def findings(self) -> list[str]:
        """Hazards and faults of every launch so far, as sentences."""
        return [str(finding) for done in self.simulations for finding in done.findings]
