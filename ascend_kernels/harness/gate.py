"""The correctness verdict.  It comes before every number, in the same environment and process family.

Inputs are seeded; every allocation the op can reach lies between red zones and is poisoned (NaN in floats, a
large negative pattern in integers), tensors that the wrapper allocates included; what comes back is compared as
a whole, rows, columns and pad bytes that nobody named included; the run is repeated and compared bit by bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import device, interpreter
from .launch import Launch, on_device, run_with
from .spec import (
    COMPILE_FAILED,
    CRASHED,
    NOT_RUN,
    OK,
    UNSUPPORTED,
    WRONG_RESULT,
    Arguments,
    CompileFailed,
    Fault,
    NotDescribed,
    Op,
    PlanError,
    Unsupported,
    exact,
)

RED = 4096  # bytes of red zone on either side; a multiple of every alignment in use
POISON = 0xA5  # byte pattern of integers; floats are filled with 0xFF, a NaN in every format


@dataclass(frozen=True)
class Verdict:
    """state: one of the seven.  reason: the first thing that is wrong, empty when ok.
    findings: hazards the model saw, also where the values are right."""

    state: str
    reason: str = ""
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.state == OK


@dataclass
class Guarded:
    """A tensor inside a poisoned allocation that is compared as a whole."""

    view: torch.Tensor
    allocation: torch.Tensor

    def span(self) -> tuple[int, int]:
        """Addresses between the red zones."""
        begin = self.allocation.data_ptr()
        return begin + RED, begin + len(self.allocation) - RED

    def outside(self) -> torch.Tensor:
        """The allocation's bytes with the named elements blanked: red zones and the gaps between strides."""
        copy = self.allocation.clone()
        _view_of(copy, self.view).fill_(0)
        return copy

    def around(self) -> tuple[slice, slice] | None:
        """The allocation's bytes before and behind the tensor, if there are none between its elements."""
        if not self.view.is_contiguous():
            return None
        item = self.view.element_size()
        begin = self.view.storage_offset() * item
        return slice(0, begin), slice(begin + self.view.numel() * item, None)


def guard(tensor: torch.Tensor, place: torch.device | str) -> Guarded:
    """A copy of `tensor` on device `place`, strides and gap bytes kept, between red zones."""
    # torch.empty may be the poisoned one here.
    storage = torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())
    red = torch.full((RED,), _poison(tensor.dtype), dtype=torch.uint8, device=place)
    return _inside(torch.cat([red, storage.to(place), red]), tensor)


def _inside(allocation: torch.Tensor, like: torch.Tensor) -> Guarded:
    """A view as `like` of what lies between the red zones of an allocation."""
    shift = RED // like.element_size()
    usable = len(allocation) // like.element_size() * like.element_size()
    elements = allocation[:usable].view(like.dtype)
    return Guarded(elements.as_strided(like.shape, like.stride(), like.storage_offset() + shift), allocation)


def _view_of(allocation: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    usable = len(allocation) // like.element_size() * like.element_size()
    return allocation[:usable].view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset())


def _poison(dtype: torch.dtype) -> int:
    return 0xFF if dtype.is_floating_point or dtype.is_complex else POISON


@contextlib.contextmanager
def poisoned_allocations() -> Iterator[list[Guarded]]:
    """torch.empty and its kin inside the block give poisoned tensors between red zones; all are on the list."""
    made: list[Guarded] = []

    def give(size, stride, dtype, place) -> torch.Tensor:
        dtype = dtype or torch.get_default_dtype()
        shape = original["empty_strided"](size, stride, dtype=dtype, device="meta")
        room = RED + shape.untyped_storage().nbytes() + RED
        guarded = _inside(torch.full((room,), _poison(dtype), dtype=torch.uint8, device=place or "cpu"), shape)
        made.append(guarded)
        return guarded.view

    def contiguous(size) -> list[int]:
        strides, step = [], 1
        for n in reversed(size):
            strides.append(step)
            step *= max(1, n)
        return strides[::-1]

    def flat(size) -> list[int]:
        inner = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return [int(n) for n in inner]

    def empty(*size, dtype=None, device=None, **_):
        size = flat(size)
        return give(size, contiguous(size), dtype, device)

    def empty_like(tensor, dtype=None, device=None, **_):
        return give(tensor.shape, contiguous(tensor.shape), dtype or tensor.dtype, device or tensor.device)

    def empty_strided(size, stride, dtype=None, device=None, **_):
        return give(list(size), list(stride), dtype, device)

    def new_empty(self, *size, dtype=None, device=None, **_):
        size = flat(size)
        return give(size, contiguous(size), dtype or self.dtype, device or self.device)

    original = {name: getattr(torch, name) for name in ("empty", "empty_like", "empty_strided")}
    original_new = torch.Tensor.new_empty
    torch.empty, torch.empty_like, torch.empty_strided = empty, empty_like, empty_strided
    torch.Tensor.new_empty = new_empty
    try:
        yield made
    finally:
        for name, function in original.items():
            setattr(torch, name, function)
        torch.Tensor.new_empty = original_new


@dataclass
class Run:
    """What one call left behind: every guarded argument, what it returned, what it allocated."""

    arguments: dict[str, Guarded]
    returned: list[tuple[str, torch.Tensor]]
    allocated: list[Guarded]


def run(call: Callable[..., Any], arguments: Arguments, place: torch.device | str, **more: Any) -> Run:
    """Call on poisoned copies of `arguments` that lie on device `place`."""
    guarded = {k: guard(v, place) for k, v in arguments.items() if isinstance(v, torch.Tensor)}
    given = {k: guarded[k].view if k in guarded else v for k, v in arguments.items()}
    with poisoned_allocations() as allocated:
        with interpreter.watched(lambda: [one.span() for one in (*guarded.values(), *allocated)]):
            result = call(**given, **more)
    return Run(guarded, list(flatten("output", result)), allocated)


def flatten(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of what a call returned, each with its place: output, output[0], output[0][1], ..."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from flatten(f"{name}[{i}]", part)
    elif value is not None:
        yield name, torch.tensor(value)


@dataclass
class Expected:
    """Arguments of a case and, once somebody asks, what the reference makes of them; every implementation shares
    them."""

    op: Op
    case: str
    arguments: Arguments
    _run: Run | None = None

    @classmethod
    def of(cls, op: Op, case: str) -> Expected:
        return cls(op, case, op.cases[case].arguments())

    @property
    def run(self) -> Run:
        if self._run is None:
            self._run = run(self.op.reference, self.arguments, "cpu")
        return self._run


def verify(
    op: Op,
    case: str,
    impl: str,
    runner: Callable[[Launch], None] = on_device,
    repeat: bool = True,
    expected: Expected | None = None,
) -> Verdict:
    """Verdict on one implementation or twin of `op` on one of its cases.

    runner: where launches go: the device of the tensors (the interpreter on a CPU) or the model.  A runner that
    has `findings` adds them: in an op's own implementation a finding is a wrong result, in a twin it is noted.
    repeat: run a second time and compare bit by bit.
    expected: `Expected.of(op, case)`, when several implementations of one case follow each other.
    """
    call = op.calls()[impl]
    # The model and the interpreter work on CPU tensors whatever device is there.
    place = device.tensors(device.kind()) if runner is on_device else "cpu"
    try:
        expected = expected or Expected.of(op, case)
    except (NotDescribed, Unsupported) as error:
        return Verdict(*_state_of(error))
    arguments = expected.arguments
    try:
        with run_with(runner):
            first = run(call, arguments, place, validate=True)
            second = run(call, arguments, place, validate=True) if repeat else None
    except Exception as error:
        return Verdict(*_state_of(error), findings=tuple(getattr(runner, "findings", ())))
    findings = tuple(getattr(runner, "findings", ()))
    wrong = compare(op, arguments, first, expected.run)
    if wrong is None and second is not None:
        wrong = differ(first, second)
    if wrong is None and findings and impl not in op.twins:
        wrong = findings[0]
    return Verdict(WRONG_RESULT if wrong else OK, wrong or "", findings)


def compare(op: Op, arguments: Arguments, actual: Run, expected: Run) -> str | None:
    """The first thing in which a run differs from the reference's run, or None."""
    for name, guarded in actual.arguments.items():
        got, want = guarded.view.cpu(), expected.arguments[name].view
        if name not in op.writes:
            wrong = exact(name, got, want, arguments)
            if wrong:
                return f"{wrong}; this argument is only to be read"
        else:
            wrong = op.compare(name, got, want, arguments)
            if wrong:
                return wrong
        wrong = _outside(name, guarded, expected.arguments[name])
        if wrong:
            return wrong
    for guarded in actual.allocated:
        wrong = _outside("an output", guarded, None)
        if wrong:
            return wrong
    if [n for n, _ in actual.returned] != [n for n, _ in expected.returned]:
        return f"returned {len(actual.returned)} tensors, expected {len(expected.returned)}"
    for (name, got), (_, want) in zip(actual.returned, expected.returned):
        if got.shape != want.shape:
            return f"{name} has shape {list(got.shape)}, expected {list(want.shape)}"
        if op.compare is exact and got.dtype != want.dtype:
            return f"{name} has dtype {got.dtype}, expected {want.dtype}"
        wrong = op.compare(name, got.cpu(), want, arguments)
        if wrong:
            return wrong
    return None


def _outside(name: str, actual: Guarded, expected: Guarded | None) -> str | None:
    """Whether bytes that `actual` does not name are as in `expected`, or still poisoned if there is none."""
    around = actual.around()
    if expected is None:
        if around and all(bool((actual.allocation[part] == _poison(actual.view.dtype)).all()) for part in around):
            return None
        expected = Guarded(actual.view, torch.full_like(actual.allocation, _poison(actual.view.dtype)))
    elif around and len(actual.allocation) == len(expected.allocation):
        if all(torch.equal(actual.allocation[part].cpu(), expected.allocation[part].cpu()) for part in around):
            return None
    got, want = actual.outside().cpu(), Guarded(_relocated(expected, actual), expected.allocation).outside().cpu()
    if torch.equal(got, want):
        return None
    place = int((got != want).nonzero()[0]) - RED
    item = actual.view.element_size()
    return (
        f"{name}: memory outside the tensor was written, {place} bytes ({place // item} elements) from its start"
    )


def _relocated(expected: Guarded, actual: Guarded) -> torch.Tensor:
    return _view_of(expected.allocation, actual.view)


def differ(first: Run, second: Run) -> str | None:
    """The first place in which two runs on the same input differ, or None."""
    pairs = [(name, g.view, second.arguments[name].view) for name, g in first.arguments.items()]
    pairs += [(name, one, two) for (name, one), (_, two) in zip(first.returned, second.returned)]
    for name, one, two in pairs:
        wrong = exact(name, two.cpu(), one.cpu(), {})
        if wrong:
            return f"two runs on the same input differ: {wrong.replace('expected', 'before')}"
    return None


def _state_of(error: Exception) -> tuple[str, str]:
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, NotDescribed):
        return NOT_RUN, str(error)
    if isinstance(error, Unsupported | PlanError):
        return UNSUPPORTED, str(error)
    if isinstance(error, Fault):
        return WRONG_RESULT, str(error)
    if isinstance(error, CompileFailed):
        return COMPILE_FAILED, str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, interpreter.OutOfBounds):
            return WRONG_RESULT, str(cause)
        cause = cause.__cause__ or cause.__context__
    # triton's own names; the module is not imported here since not every host has it
    if type(error).__name__ in ("CompilationError", "CompileTimeAssertionFailure", "MLIRCompilationError"):
        return COMPILE_FAILED, words
    if isinstance(error, torch.OutOfMemoryError):
        return UNSUPPORTED, f"out of device memory: {error}"
    return CRASHED, words
