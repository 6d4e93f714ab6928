"""The types a registry row is made of.  A kernel of any repository is described with these.

They are the contract between a kernel package and the suite: old commits of a package are measured with the
suite of today, so a field is added with a default and never taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ascend_model.outputs import beyond, bits, first_difference, steps_apart

# The seven states, kept apart from the result file to the page and the exit code.
OK = "ok"
WRONG_RESULT = "wrong result"
UNSUPPORTED = "unsupported here"
COMPILE_FAILED = "compile failed"
CRASHED = "crashed or timed out"
BUILD_FAILED = "build failed"
NOT_RUN = "not run"
STATES = (OK, WRONG_RESULT, UNSUPPORTED, COMPILE_FAILED, CRASHED, BUILD_FAILED, NOT_RUN)


class Unsupported(NotImplementedError):
    """This device cannot run this implementation; the message says why."""


class CompileFailed(RuntimeError):
    """The kernel did not compile; the message starts with the failure class."""


class Fault(RuntimeError):
    """The kernel did something no right kernel does, such as an access outside its buffers."""


class NotDescribed(Exception):
    """Nothing can be run yet, or not at this commit: the description lacks something; the message says what."""


class PlanError(ValueError):
    """A launch plan does not fit the device; raised before anything is compiled or written."""


Arguments = dict[str, Any]
Compare = Callable[[str, torch.Tensor, torch.Tensor, Arguments], str | None]


def exact(name: str, actual: torch.Tensor, expected: torch.Tensor, arguments: Arguments) -> str | None:
    """Bit for bit, NaN included.  None when equal, else a sentence with the first place that differs."""
    got, want = bits(actual), bits(expected)
    if got.dtype == want.dtype and torch.equal(got, want):
        return None
    wrong = got != want
    return first_difference(name, actual, expected, wrong) if bool(wrong.any()) else None


@dataclass(frozen=True)
class within:
    """|actual - expected| <= absolute + relative * |expected|, in fp64; NaN and inf must agree in place."""

    relative: float
    absolute: float = 0.0

    def __call__(
        self, name: str, actual: torch.Tensor, expected: torch.Tensor, arguments: Arguments
    ) -> str | None:
        wrong = beyond(actual, expected, self.relative, self.absolute)
        if not bool(wrong.any()):
            return None
        said = first_difference(name, actual, expected, wrong)
        said += f"; the tolerance is {self.relative:.4g} of the value + {self.absolute:.4g}"
        if expected.dtype.is_floating_point:
            steps = steps_apart(actual, expected)[wrong]
            if bool(steps.isfinite().all()):
                most = f"{float(steps.max()):.4g} step{'s' * (float(steps.max()) != 1)}"
                said += f", they are up to {most} of {str(expected.dtype).removeprefix('torch.')} apart"
        return said


@dataclass(frozen=True)
class Case:
    """One named input of an op.  `make(generator)` returns its arguments on the CPU, by name.

    quick: in the set that every commit runs.  timed: worth a timing (an edge case is only checked).
    large: takes a device milliseconds and the model a minute, so the model runs it only when asked for everything.
    Tensors that the op writes are made with the values they hold before the call.
    """

    make: Callable[[torch.Generator], Arguments]
    seed: int = 0
    quick: bool = False
    timed: bool = False
    note: str = ""
    large: bool = False

    def arguments(self, device: torch.device | str = "cpu") -> Arguments:
        """Fresh arguments, the same at every call."""
        made = self.make(torch.Generator().manual_seed(self.seed))
        return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in made.items()}


@dataclass(frozen=True)
class Twin:
    """The same job with one source pattern changed: what a careless edit would do, and what it costs.

    call has the op's signature.  safe is False where the pattern is known to compile into something that may
    touch memory of other programs; its hazard is shown beside its numbers and is not an error of the suite.
    states: what its compiled code is known to come to; where the pattern does not compile, or gives other values
    in some case, that is its result and no error of the suite either.
    """

    call: Callable[..., Any]
    pattern: str
    safe: bool = True
    states: tuple[str, ...] = (OK,)


@dataclass(frozen=True)
class Op:
    """One row of the registry.

    call:            the checked wrapper; takes the arguments by name, `impl=` and `validate=`
    reference:       plain torch on the CPU, the same arguments; writes the same ones and returns the same
    writes:          names of the arguments written in place
    implementations: names for `impl=`, the default on Ascend first
    gpu:             further names, which only a GPU takes
    on_gpu:          the default on a GPU, where that is another
    compare:         how an output is judged: exact, within(...), or a function of its own
    bytes_moved:     arguments -> bytes the job must read and write at least, on any implementation
    torch_form:      what a user without the kernel would write with torch, the arguments by name, checked against
                     `reference`; the measured baseline.  This and bytes_moved are a must in this repository's
                     own registry; a description of another one's kernel may leave them out
    """

    name: str
    family: str
    call: Callable[..., Any]
    reference: Callable[..., Any]
    cases: Mapping[str, Case]
    writes: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ("triton",)
    gpu: tuple[str, ...] = ()
    on_gpu: str = ""
    twins: Mapping[str, Twin] = field(default_factory=dict)
    compare: Compare = exact
    bytes_moved: Callable[[Arguments], int] | None = None
    torch_form: Callable[..., Any] | None = None

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Every implementation and twin by name, as a function of the op's arguments."""
        own = {name: _bound(self.call, name) for name in (*self.implementations, *self.gpu)}
        return own | {name: twin.call for name, twin in self.twins.items()}

    def names(self, kind: str) -> list[str]:
        """What there is to run on a kind of device, the implementations first."""
        return [*self.implementations, *(self.gpu if kind == "cuda" else ()), *self.twins]

    def default(self, kind: str) -> str:
        """The implementation that the wrapper chooses on a kind of device, where the arguments leave a choice."""
        return self.on_gpu if self.on_gpu and kind == "cuda" else self.implementations[0]

    def role(self, impl: str, kind: str) -> str:
        """`op`: what the wrapper chooses on a kind of device.  `other`: another implementation.  `twin`."""
        return "twin" if impl in self.twins else "op" if impl == self.default(kind) else "other"

    def quick_cases(self) -> list[str]:
        """Ids of the cases every commit runs."""
        return [name for name, case in self.cases.items() if case.quick]

    def timed_cases(self) -> list[str]:
        """Ids of the cases worth a timing."""
        return [name for name, case in self.cases.items() if case.timed]


def _bound(call: Callable[..., Any], impl: str) -> Callable[..., Any]:
    def run(**arguments: Any) -> Any:
        return call(**arguments, impl=impl)

    run.__name__ = f"{getattr(call, '__name__', 'op')}[{impl}]"
    return run
