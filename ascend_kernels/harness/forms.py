"""Forms of one job side by side: kernels of files, or one kernel under several compilers, on the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .launch import Launch
from .user_kernel import UsageError

TRACED_OPS = 400_000
"""Ops beyond which no timeline is recorded: a trace holds every one of them in memory."""


@dataclass(frozen=True)
class Form:
    """One kernel, compiled by one compiler and executed once.

    written: names of the tensors it changed.  done: the `ascend_model.Simulation`.  lines: the source as it was
    then, where the files may have changed since.
    """

    what: str
    compiler: str
    target: str
    launch: Launch
    done: Any
    written: tuple[str, ...] = ()
    lines: Callable[[str, int], str] | None = field(default=None, compare=False)

    @property
    def stopped(self) -> bool:
        """Whether its message says what no finding does: why it did not compile or run to its end."""
        return self.done.status != "ok" and not (self.done.status == "out of bounds" and self.done.findings)

    @property
    def reason(self) -> str:
        """Why it stopped: how much the tiles take where they do not fit, then what compiler or simulator say."""
        from ascend_model.compile import UB_OVERFLOW
        from ascend_model.explain import too_large

        first = f"{too_large(self.done.message)}\n" if self.done.status == UB_OVERFLOW else ""
        return first + self.done.message

    @property
    def numbers(self) -> dict[str, int]:
        """Every metric by name, and the bandwidth bound; {} where there are none."""
        from ascend_model.metrics import of_launch

        if self.done.cycles is None:
            return {}
        numbers = of_launch(self.done)
        return {"cycles": numbers.pop("cycles"), "bound_cycles": self.done.bound_cycles, **numbers}


@dataclass(frozen=True)
class Outputs:
    """Whether two forms wrote the same: one sentence a tensor that differs, and the names of those compared."""

    compared: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    note: str = ""

    @property
    def agree(self) -> bool:
        return bool(self.compared) and not self.differences


@dataclass(frozen=True)
class Comparison:
    """Two forms, the one before first."""

    before: Form
    after: Form
    outputs: Outputs
    explanation: Any


def execute(
    what: str, launch: Launch, target: str, compiler: str, trace: bool = False, only: int | None = None
) -> Form:
    """Compile and execute one launch; UsageError for arguments that cannot be handed over.  trace, only: as
    `ascend_model.simulate` has them."""
    import ascend_model

    tensors = {name: value for name, value in launch.args.items() if hasattr(value, "dtype")}
    before = {name: value.clone() for name, value in tensors.items()}
    try:
        done = ascend_model.simulate(
            launch.kernel,
            launch.grid,
            launch.args,
            launch.constants,
            target=target,
            compiler=compiler,
            trace=trace,
            only=only,
        )
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    written = tuple(name for name, value in tensors.items() if not _equal(value, before[name]))
    return Form(what, compiler, target, launch, done, written)


def traced(form: Form, launch: Launch, whole: bool = False) -> dict[str, Any] | None:
    """The Chrome trace of a form's busiest program, from executing a fresh launch again; whole: of all programs,
    where they are not too many.  None where even one would be too large."""
    numbers = form.numbers
    if not numbers:
        return None
    ops = sum(numbers.get(name, 0) for name in ("vector_ops", "dma_in", "dma_out", "scalar_waits_in_loops"))
    cycles = form.done.program_cycles
    only = None if whole and ops <= TRACED_OPS else cycles.index(max(cycles))
    if only is not None and ops * cycles[only] > TRACED_OPS * sum(cycles):
        return None
    return execute(form.what, launch, form.target, form.compiler, trace=True, only=only).done.trace


def compare(before: Form, after: Form, relative: float = 0.0, absolute: float = 0.0) -> Comparison:
    """Counts, outputs and causes of two forms that were given the same data."""
    import math

    from ascend_model.explain import Side, explain
    from ascend_model.source import line_of

    sides = [
        Side(form.done.compiled, math.prod(form.launch.grid), form.lines or line_of) for form in (before, after)
    ]
    return Comparison(before, after, _outputs(before, after, relative, absolute), explain(*sides))


def _outputs(before: Form, after: Form, relative: float, absolute: float) -> Outputs:
    from ascend_model.outputs import difference

    for form in (before, after):
        if form.done.status != "ok":
            return Outputs(note=f"not compared, because {form.what} on {form.compiler} is {form.done.status!r}")
    names = [name for name in after.done.outputs if name in before.done.outputs]
    written = [name for name in names if name in before.written or name in after.written]
    alone = [name for name in (*before.written, *after.written) if name not in names]
    if not written:
        return Outputs(note="neither form changes a tensor that both take")
    found = (
        difference(n, after.done.outputs[n], before.done.outputs[n], relative, absolute, "before") for n in written
    )
    note = f"only one form takes {', '.join(dict.fromkeys(alone))}, which it writes" if alone else ""
    return Outputs(tuple(written), tuple(one for one in found if one), note)


def _equal(a: Any, b: Any) -> bool:
    from ascend_model.outputs import bits

    return bool((bits(a) == bits(b)).all())


# ---- side by side


@dataclass(frozen=True)
class Line:
    """One row of the table: a metric's name and unit, and its value in each form (None where there is none)."""

    name: str
    label: str
    unit: str
    better: str
    values: tuple[int | None, ...] = field(default=())

    def change(self, column: int) -> float | None:
        """Relative change of a column from the first; None where it cannot be said."""
        first, value = self.values[0], self.values[column]
        if column == 0 or first is None or value is None or first == value:
            return None
        return (value - first) / first if first else float("inf")

    def worse(self, column: int) -> bool | None:
        """Whether a column is worse than the first; None where it is neither."""
        size = self.change(column)
        if size is None or self.name == "bound_cycles":
            return None
        return (size > 0) == (self.better == "lower")


def side_by_side(forms: Sequence[Form]) -> list[Line]:
    """The metrics of which any form has some, the cycles and their bound first."""
    from ascend_model import METRICS

    numbers = [form.numbers for form in forms]
    lines = []
    for name in ("cycles", "bound_cycles", *(name for name in METRICS if name != "cycles")):
        values = tuple(one.get(name) for one in numbers)
        if not any(values):
            continue
        if name == "bound_cycles":
            lines.append(Line(name, "The same bytes at full bandwidth", "cycles", "lower", values))
        else:
            metric = METRICS[name]
            lines.append(Line(name, metric.label, metric.unit, metric.better, values))
    return lines


def table_lines(forms: Sequence[Form], heads: Sequence[str]) -> Iterable[str]:
    """`side_by_side` as text, each later form with its change from the first."""
    from ascend_model.text import plain, whole

    lines = side_by_side(forms)
    label = max([len("modelled"), *(len(f"{line.label}, {line.unit}") for line in lines)])
    cells = [
        [
            ("-" if value is None else whole(value))
            + ("" if column == 0 or line.values[0] is None or value is None else f"  {_percent(line, column):>10}")
            for column, value in enumerate(line.values)
        ]
        for line in lines
    ]
    states = [
        plain(form.done.status, 40) if not form.numbers else "ok" if not form.done.findings else "ok, with hazards"
        for form in forms
    ]
    heads = [plain(head, 60) for head in heads]
    width = [max(len(row[i]) for row in (*cells, heads, states)) for i in range(len(forms))]

    def row(name: str, values: Sequence[str]) -> str:
        return f"{name:<{label}}  " + "  ".join(f"{v:>{w}}" for v, w in zip(values, width, strict=True))

    yield row("modelled", heads)
    yield row("", states)
    for line, values in zip(lines, cells, strict=True):
        yield row(f"{line.label}, {line.unit}", values)


def _percent(line: Line, column: int) -> str:
    from ascend_model.text import change

    size = line.change(column)
    return "=" if size is None else change(size)


def heads_of(forms: Sequence[Form]) -> list[str]:
    """What tells the forms apart: their kernels, their compilers, or both."""
    kernels = {form.what for form in forms}
    compilers = {form.compiler for form in forms}
    names = {form.what: _short(form.what, kernels) for form in forms}
    if len(kernels) == 1 and len(compilers) > 1:
        return [form.compiler for form in forms]
    if len(kernels) == 1 and len(forms) > 1:
        return [f"{names[form.what]} {_settings(form, forms)}".strip() for form in forms]
    return [names[form.what] for form in forms]


def _short(what: str, others: Iterable[str]) -> str:
    name = what.rpartition(":")[2]
    return what if sum(one.rpartition(":")[2] == name for one in others) > 1 else name


def _settings(form: Form, forms: Sequence[Form]) -> str:
    """The constants and the grid in which forms of one kernel differ."""
    names = [
        name for name in form.launch.constants
        if len({repr(one.launch.constants.get(name)) for one in forms}) > 1
    ]  # fmt: skip
    parts = [f"{name}={form.launch.constants[name]}" for name in names]
    if len({one.launch.grid for one in forms}) > 1:
        parts.append(f"grid={','.join(map(str, form.launch.grid))}")
    return " ".join(parts)


def advice_of(form: Form) -> tuple[Any, ...]:
    """`ascend_model.explain.advise` of a form that compiled or failed to."""
    from ascend_model.explain import advise

    return advise(form.done) if form.done.compiled is not None else ()
