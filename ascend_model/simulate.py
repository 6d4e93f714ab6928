"""Execute compiled Ascend code of one launch on numpy buffers, keep time, and report what is wrong with it."""

from __future__ import annotations

import hashlib
import heapq
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ascend_model.codegen import INT_BITS, Argument, Generated, generate, int_range, round_bf16, round_half
from ascend_model.compile import (
    TIMEOUT,
    Compiled,
    compile_kernel,
    completed,
    heuristic_names,
    is_constexpr,
    parameters,
)
from ascend_model.costs import Costs, load_costs
from ascend_model.memory import Fault, Finding, Global
from ascend_model.parse import ParseError, parse
from ascend_model.remembered import remembered
from ascend_model.replay import Paths, Record, counters
from ascend_model.timeline import PIPES, Event, chrome_trace, critical_path

MAX_OPS = 50_000_000
"""IR ops one program may execute in loops before it counts as endless."""


CORES = re.compile(r'"VECTOR_CORE_COUNT", ([1-9]\d{0,5}) ')

OK = "ok"
OUT_OF_BOUNDS = "out of bounds"
FAULTS = (OUT_OF_BOUNDS, "deadlock", "endless loop", "division by zero")
"""States of a launch whose compiled code ran in the model and is wrong."""
NOT_MODELLED = ("unsupported", "unsupported: cube", "unreadable IR")
"""States of a launch that compiled, but holds something the model does not know."""


@dataclass(frozen=True)
class Simulation:
    """One launch in the model; nothing here ran on a device.

    status:    "ok", one of FAULTS or NOT_MODELLED, or a state of `compile_kernel`
    message:   why it is not "ok", with the place
    outputs:   the tensors among the arguments, which were written in place
    counts:    what the code did, over all programs; no constant is in them
    cycles:    time until the last core is done; None unless the status is "ok"
    bound_cycles: the time that moving the same bytes takes at full memory bandwidth
    busy, stalls: cycles of the slowest program by pipe and by cause
    findings:  hazards and faults, most of which do not change the result of this one run
    critical_path: cycles of the slowest program by the pipe that held it up, and trace: both only when asked for
    """

    status: str
    message: str = ""
    outputs: dict[str, Any] = field(default_factory=dict, repr=False)
    counts: dict[str, int] = field(default_factory=dict)
    cycles: int | None = None
    bound_cycles: int | None = None
    busy: dict[str, int] = field(default_factory=dict)
    stalls: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    program_cycles: tuple[int, ...] = field(default=(), repr=False)
    critical_path: dict[str, int] = field(default_factory=dict)
    executed_ops: int = 0
    model_version: str = ""
    trace: dict[str, Any] | None = field(default=None, repr=False)
    compiled: Compiled | None = field(default=None, repr=False)

    @property
    def code(self) -> str:
        """Hash of the compiled program; equal codes mean equal programs."""
        return self.compiled.code if self.compiled else ""


@dataclass(frozen=True)
class _Program:
    """The device function of a module as a Python function of one mode, and the machine it works on."""

    run: Callable[..., Any]
    made: Generated
    indices: bool


_CACHE: OrderedDict[tuple[Any, ...], _Program] = OrderedDict()
_CACHE_SIZE = 64
REPEATS = 4
"""Programs from which on it may pay to record the paths that they take."""


def _program(generic: str, costs: Costs, trace: bool, mode: str = "time", indices: bool = False) -> _Program:
    """The program of a module in one mode, from a small cache."""
    key = (hashlib.sha256(generic.encode()).hexdigest(), costs.version, trace, mode, indices)
    found = _CACHE.get(key)
    if found is None:
        module = parse(generic)
        if len(module.entries) > 1:
            raise Fault("unsupported: cube", "the kernel is split over cube and vector cores (tl.dot)")
        if not module.entries:
            raise Fault("unreadable IR", "no function is marked as a device entry")
        made = generate(module.entry, costs.table(), trace, mode, indices)
        exec(compile(made.source, "<compiled kernel>", "exec"), made.namespace)
        found = _CACHE[key] = _Program(made.namespace["program"], made, indices)
        while len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    else:
        _CACHE.move_to_end(key)
    return found


def simulate(
    kernel: Any,
    grid: int | Sequence[int],
    args: Mapping[str, Any] | Sequence[Any],
    constants: Mapping[str, Any] | None = None,
    target: str = "Ascend910B1",
    compiler: str | None = None,
    trace: bool = False,
    *,
    costs: Costs | None = None,
    max_ops: int = MAX_OPS,
    keep_numbers: bool = False,
    timeout: float = TIMEOUT,
    cache: bool = True,
    only: int | None = None,
) -> Simulation:
    """Compile a `@triton.jit` function for Ascend and execute what the compiler made of it.

    kernel:    any `@triton.jit` function that can be imported from its file
    grid:      programs along one to three axes
    args:      run-time arguments by name, or in the order of the signature: CPU tensors (written in place),
               numpy arrays, numbers, None
    constants: values of the `tl.constexpr` arguments
    compiler:  ascendnpu-ir version; the default is the one `toolchain.default_version()` finds
    trace:     keep a Chrome trace of every program
    only:      with trace: of this program alone, where a launch has too many ops to keep; it is the last that is
               executed, so that the numbers are not those of the launch
    """
    named, constants = completed(kernel, _by_name(kernel, args, constants or {}), constants or {})
    compiled = compile_kernel(
        kernel, named, constants, target=target, compiler=compiler, timeout=timeout, cache=cache
    )
    if compiled.status != OK:
        return Simulation(compiled.status, compiled.message, notes=compiled.notes, compiled=compiled)
    taken = {name: named[name] for name in compiled.arguments}

    def execute() -> Simulation:
        return simulate_text(
            compiled.generic, grid, taken, costs=costs, trace=trace, max_ops=max_ops, keep_numbers=keep_numbers,
            only=only,
        )  # fmt: skip

    if trace or not cache:
        done = execute()
    else:
        memory = {name: _bytes_of(name, value) for name, value in taken.items() if hasattr(value, "dtype")}
        scalars = {name: value for name, value in taken.items() if name not in memory}
        version = (costs or load_costs()).version
        done = remembered(
            execute, Simulation, Finding, compiled.code, compiled.generic, _grid(grid), scalars, memory,
            version=version, max_ops=max_ops, keep_numbers=keep_numbers,
        )  # fmt: skip
    tensors = {name: value for name, value in named.items() if hasattr(value, "dtype")}
    return replace(done, outputs=tensors, notes=(*compiled.notes, *done.notes), compiled=compiled)


def _by_name(kernel: Any, args: Mapping[str, Any] | Sequence[Any], constants: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(args, Mapping):
        return dict(args)
    filled = heuristic_names(kernel)
    own = parameters(kernel)
    names = [n for n in own if n not in constants and n not in filled and not is_constexpr(own[n])]
    if len(args) > len(names):
        raise ValueError(f"{kernel.__name__} takes {len(names)} run-time arguments, got {len(args)}")
    return dict(zip(names, args))


def simulate_text(
    generic: str,
    grid: int | Sequence[int],
    args: Mapping[str, Any] | Sequence[Any],
    *,
    costs: Costs | None = None,
    trace: bool = False,
    max_ops: int = MAX_OPS,
    keep_numbers: bool = False,
    replay: bool = True,
    only: int | None = None,
) -> Simulation:
    """Run the generic-form IR of one kernel over a grid.

    `args` are the kernel's run-time arguments in order: torch CPU tensors or numpy arrays, written in place,
    and numbers.  A launch that is wrong (out of bounds, deadlock, endless loop) has no cycles; with
    `keep_numbers` the cycles of an out-of-bounds launch are given all the same, beside its status.
    Without `replay` every program is executed in full, which is slower and gives the same.  `only` as in
    `simulate`; ValueError for a program that there is not, or without `trace`.
    """
    costs = costs or _costs_of(generic)
    sizes = _grid(grid)
    programs = math.prod(sizes)
    if only is not None and not (trace and 0 <= only < programs):
        raise ValueError(f"only={only} names one of {programs} programs to trace")
    every = trace and only is None
    traced = range(programs if every else 0) if only is None else range(only, only + 1)
    repeats = replay and not every and programs >= REPEATS

    def program(mode: str, indices: bool = False, trace: bool = every) -> _Program:
        return _program(generic, costs, trace, mode, indices)

    try:
        made = program("record" if repeats else "time").made
    except ParseError as error:
        return Simulation("unreadable IR", str(error), model_version=costs.version)
    except Fault as fault:
        return Simulation(fault.status, str(fault), model_version=costs.version)
    named = dict(args) if isinstance(args, Mapping) else {f"arg{i}": a for i, a in enumerate(args)}
    values = _bind(made.arguments, sizes, named)
    return _launch(program, repeats, values, sizes, named, costs, traced, max_ops, keep_numbers)


def _costs_of(generic: str) -> Costs:
    """The constants, with as many vector cores as the module states of its target."""
    costs = load_costs()
    stated = CORES.search(generic)
    if stated is None or int(stated[1]) == costs.table()["target.vector_cores"]:
        return costs
    return costs.holding("target.vector_cores", int(stated[1]))


def _grid(grid: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (grid,) if isinstance(grid, int) else tuple(int(g) for g in grid)
    if not 1 <= len(sizes) <= 3 or any(g < 1 for g in sizes):
        raise ValueError(f"a grid has one to three positive sizes, got {grid!r}")
    if math.prod(sizes) > 65535:
        raise ValueError(f"the device takes at most 65535 programs, got {math.prod(sizes)}")
    return (*sizes, 1, 1)[:3]  # type: ignore[return-value]


def _bytes_of(name: str, value: Any) -> np.ndarray:
    """The memory of a tensor or array, from its first to its last element, as bytes that can be written."""
    if isinstance(value, np.ndarray):
        if value.size == 0:
            return np.zeros(0, np.uint8)
        span = 1 + sum((n - 1) * s // value.itemsize for n, s in zip(value.shape, value.strides))
        flat = np.lib.stride_tricks.as_strided(value, (span,), (value.itemsize,))
        return flat.view(np.uint8)
    if value.device.type != "cpu":
        raise TypeError(f"{name} is on {value.device}; the model needs CPU tensors")
    if value.numel() == 0:
        return np.zeros(0, np.uint8)
    import torch

    value = value.detach()
    span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride()))
    storage = torch.as_strided(value, (span,), (1,), value.storage_offset())
    return storage.view(torch.uint8).numpy()


def _bind(arguments: Sequence[Argument], grid: tuple[int, int, int], named: dict[str, Any]) -> list[Any]:
    """Values for the device function: hidden arguments, the kernel's own, and the grid."""
    own = [a for a in arguments[:-3] if not a.role]
    if len(named) != len(own):
        raise ValueError(f"the kernel takes {len(own)} run-time arguments, got {len(named)}: {', '.join(named)}")
    values: list[Any] = []
    given = iter(named.items())
    for i, argument in enumerate(arguments[:-3]):
        if argument.role:
            empty = np.zeros(0, np.uint8)
            hidden = Global(i, argument.role, empty, "i8", None) if argument.memref else 0
            values.append(hidden)
            continue
        name, value = next(given)
        if argument.memref:
            if not hasattr(value, "dtype") or not hasattr(value, "shape"):
                raise TypeError(f"{name} must be a tensor or an array, got {type(value).__name__}")
            values.append(Global(i, name, _bytes_of(name, value), argument.memref.element, argument.kind))
        elif argument.type in INT_BITS:
            lo, hi = int_range(argument.type)
            number = int(value)
            if not lo <= number <= hi:
                raise ValueError(f"{name} = {number} does not fit the kernel's {argument.type}")
            values.append(number)
        else:
            exact = {"f16": round_half, "bf16": round_bf16}.get(argument.type, lambda x: float(np.float32(x)))
            values.append(exact(float(value)))
    return [*values, *grid]


def _launch(
    program: Callable[..., _Program],
    repeats: bool,
    values: list[Any],
    grid: tuple[int, int, int],
    named: dict[str, Any],
    costs: Costs,
    traced: range,
    max_ops: int,
    keep_numbers: bool,
) -> Simulation:
    table = costs.table()
    full = program("record" if repeats else "time")
    made, machine = full.made, full.made.machine
    machine.recorded = [] if repeats else None
    roots = [v for v in values if isinstance(v, Global)]
    for root in roots:
        root.is_loaded = root.index in made.loaded
        root.is_stored = root.index in made.stored
        root.track()
    programs = math.prod(grid)
    cores = min(int(table["target.vector_cores"]), programs)
    # the memory's bandwidth is shared by the cores that are busy
    shared = table["target.memory_bandwidth"] / table["target.clock"] / cores
    rates = min(table["dma.load_rate"], shared), min(table["dma.store_rate"], shared)
    machine.begin_launch(*rates)
    lines = int(table["scalar.cache_lines"])
    blocks = [0] * len(made.blocks)
    per_program: list[int] = []
    busy: Sequence[int] = [0, 0, 0, 0]
    stalls: dict[str, int] = {}
    events: dict[int, list[Event]] = {}
    slowest = -1
    fault: Fault | None = None
    paths = Paths()
    bare: _Program | None = None
    with np.errstate(all="ignore"):
        for block in range(programs):
            for root in roots:
                root.begin()
            one: Record | None = None
            if repeats and not paths.worthwhile(programs - block):
                # no path to come is worth its record; code that makes none is worth it where there is much to do
                repeats = False
                machine.recorded = None
                if paths.much(programs - block):
                    full = program("time")
                    full.made.machine.take_over(machine)
                    machine = full.made.machine
            if block in traced and not machine.time.trace:
                repeats = False
                full = program("time", trace=True)
                full.made.machine.take_over(machine)
                machine = full.made.machine
            if repeats and paths.tree:
                if bare is None:
                    bare = program("values", full.indices)
                one = paths.repeat(bare.run, bare.made.machine, machine, block, [0] * lines, *values)
            if one is None:
                machine.begin(block)
                before = counters(machine)
                reported = machine.reported
                try:
                    ts, ran = full.run(block, max_ops, [0] * lines, *values)
                except Fault as error:
                    fault = error
                    break
                machine.end()
                time = machine.time
                one = Record(
                    max(ts, *time.done),
                    ran,
                    (ts - time.waiting, *time.busy[1:]),
                    dict(time.stalls),
                    tuple(b - a for a, b in zip(before, counters(machine))),
                    tuple(clocks if root.placed else None for root, clocks in machine.recorded or ()),
                )
                if block in traced:
                    events[block] = time.events
                if repeats:
                    paths.executed(machine.path, one)
                if repeats and machine.reported == reported and not machine.delicate:
                    if machine.partial and not full.indices:
                        # single values of buffers that are written in part: where they lie decides as well
                        if paths.worthwhile(programs - block - 1):
                            full = program("record", True)
                            full.made.machine.take_over(machine)
                            machine = full.made.machine
                            machine.recorded = []
                    else:
                        paths.keep(machine.path, one)
            per_program.append(one.cycles)
            for i, n in enumerate(one.blocks):
                blocks[i] += n
            if slowest < 0 or one.cycles > per_program[slowest]:
                slowest, busy, stalls = block, one.busy, one.stalls
            if block in traced[-1:]:
                break
    for root in roots:
        machine.cross_reads(root)
    made = full.made
    counts = _counts(made, blocks)
    findings = tuple(
        Finding(
            kind,
            message + (f"; {detail}" if detail else ""),
            machine.places[place] if place >= 0 else "",
            program_,
            n,
        )
        for (kind, place, message), (n, program_, detail) in sorted(machine.findings.items())
    )
    outputs = {a: named[a] for a in named if hasattr(named[a], "dtype")}
    version = costs.version
    executed = sum(n * made.blocks[i]["ops"] for i, n in enumerate(blocks))
    if fault is not None:
        return Simulation(
            fault.status,
            str(fault),
            outputs,
            counts,
            findings=findings,
            notes=made.notes,
            executed_ops=executed,
            model_version=version,
        )
    wrong = [f for f in findings if f.kind.startswith("out of bounds")]
    status, message = OK, ""
    if wrong:
        status, message = OUT_OF_BOUNDS, f"{wrong[0].message} at {wrong[0].place}, program {wrong[0].program}"
    total = schedule(per_program, cores, math.ceil(table["program.dispatch"]))
    moved = counts["bytes_in"] + counts["bytes_out"]
    bound = math.ceil(moved / (table["target.memory_bandwidth"] / table["target.clock"]))
    numbers = not wrong or keep_numbers
    return Simulation(
        status,
        message,
        outputs,
        counts,
        total if numbers else None,
        bound if numbers else None,
        dict(zip(PIPES, busy)) if numbers else {},
        stalls if numbers else {},
        findings,
        notes=made.notes,
        program_cycles=tuple(per_program) if numbers else (),
        critical_path=critical_path(events[slowest], per_program[slowest])
        if numbers and slowest in events
        else {},
        executed_ops=executed,
        model_version=version,
        trace=chrome_trace(events, table["target.clock"], "modelled") if traced else None,
    )


def schedule(per_program: Sequence[int], cores: int, dispatch: int) -> int:
    """Cycles until all programs are done: each goes, in order, to the core that is free first."""
    free = [0] * cores
    for i, cycles in enumerate(per_program):
        start = max(heapq.heappop(free), i * dispatch)
        heapq.heappush(free, start + cycles)
    return max(free)


def _counts(made: Generated, blocks: Sequence[int]) -> dict[str, int]:
    """Counts that depend on no constant, over all programs of the launch."""

    def total(key: str) -> int:
        return sum(n * made.blocks[i][key] for i, n in enumerate(blocks))

    machine = made.machine
    scalar = {key: total(key) for key in ("ub_loads", "ub_stores", "gm_loads", "gm_stores")}
    return {
        "scalar_accesses": sum(scalar.values()),
        "scalar_waits_in_loops": total("scalar_waits_in_loops"),
        "dma_in": machine.dma[0],
        "dma_out": machine.dma[1],
        "bytes_in": machine.dma_bytes[0],
        "bytes_out": machine.dma_bytes[1],
        "bursts_in": machine.bursts[0],
        "bursts_out": machine.bursts[1],
        "vector_ops": machine.vector_ops,
        "vector_repeats": machine.repeats,
        "ub_bytes": machine.peak,
        "double_buffers": made.double_buffers,
        "flags": total("flags"),
        "barriers": total("barriers"),
        "out_of_bounds": machine.out_of_bounds,
    }
