"""What is kept of a launch as numbers: their names, units and directions, and counts read from text alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ascend_model.parse import Op, memref_type, parse


@dataclass(frozen=True)
class Metric:
    """One series of modelled numbers. `better` is the direction, `primary` says that no constant is in it."""

    label: str
    unit: str
    better: str = "lower"
    primary: bool = True
    join: str = "sum"


METRICS: dict[str, Metric] = {
    "cycles": Metric("Modelled time of the slowest core", "cycles", primary=False),
    "scalar_accesses": Metric("Scalar loads and stores", "accesses"),
    "scalar_waits_in_loops": Metric("Waits between the scalar pipe and another, inside loops", "waits"),
    "dma_in": Metric("Copies from global memory", "copies"),
    "dma_out": Metric("Copies to global memory", "copies"),
    "bytes_in": Metric("Bytes copied from global memory", "B"),
    "bytes_out": Metric("Bytes copied to global memory", "B"),
    "vector_ops": Metric("Vector ops", "ops"),
    "vector_repeats": Metric("256-byte repeats of vector ops", "repeats"),
    "ub_bytes": Metric("Unified buffer used", "B", join="max"),
    "double_buffers": Metric("Buffers held twice", "buffers", better="higher", join="max"),
    "flags": Metric("Flags set or waited for", "flags"),
    "barriers": Metric("Pipe barriers", "barriers"),
    "out_of_bounds": Metric("Elements accessed outside their buffer", "elements"),
}


def of_launch(simulation: Any) -> dict[str, int]:
    """Every metric of one launch that has numbers, by name."""
    if simulation.cycles is None:
        raise ValueError(f"a launch that ended with {simulation.status!r} has no numbers")
    return {"cycles": simulation.cycles, **{name: simulation.counts[name] for name in METRICS if name != "cycles"}}


def combined(simulations: Iterable[Any]) -> dict[str, int]:
    """Metrics of an op that makes several launches, one after another."""
    rows = [of_launch(s) for s in simulations]
    if not rows:
        return dict.fromkeys(METRICS, 0)
    return {
        name: (sum if metric.join == "sum" else max)(row[name] for row in rows)  # type: ignore[operator]
        for name, metric in METRICS.items()
    }


@dataclass(frozen=True)
class Site:
    """One op where it stands: how many loops and constant trips surround it, and whether it is the rare path."""

    op: Op
    weight: int
    loops: int
    rare: bool


def sites(entry: Op) -> Iterator[Site]:
    """Every op of a device function, with the product of the constant trip counts around it."""
    constants = {
        op.results[0]: int(op.attrs["value"].partition(" : ")[0])
        for op in entry.walk()
        if op.name == "arith.constant" and op.attrs["value"].partition(" : ")[0].lstrip("-").isdigit()
    }

    def visit(ops: list[Op], weight: int, loops: int, rare: bool) -> Iterator[Site]:
        for op in ops:
            yield Site(op, weight, loops, rare)
            inner = weight
            if op.name == "scf.for" and all(name in constants for name in op.operands[:3]):
                lower, upper, step = (constants[name] for name in op.operands[:3])
                inner *= len(range(lower, upper, step)) if step else 1
            for region in op.regions:
                yield from visit(
                    region.ops,
                    inner,
                    loops + (op.name in ("scf.for", "scf.while")),
                    rare or "hivm.unlikely_condition" in op.attrs,
                )

    for region in entry.regions:
        yield from visit(region.ops, 1, 0, False)


NOT_WORK = frozenset(
    "pointer_cast bitcast set_flag wait_flag pipe_barrier set_mask_norm set_mask_count set_ctrl "
    "get_block_idx get_block_num get_sub_block_idx load store copy".split()
)
"""Ops of the NPU's dialect that are no vector op."""


def static_counts(generic: str | Op) -> dict[str, int]:
    """Counts read from the text: sites weighted by constant trip counts, the rare path left out.

    ub_bytes: end of the highest buffer. scalar: loads and stores of single elements. sync: waits between the
    scalar pipe and another inside loops. dma_in, dma_out: copies. vector: vector ops in loops, unweighted.
    double_buffers: buffers chosen by the parity of an iteration.
    """
    entry = parse(generic).entry if isinstance(generic, str) else generic
    found = dict.fromkeys(("ub_bytes", "scalar", "sync", "dma_in", "dma_out", "vector", "double_buffers"), 0)
    constants = {
        op.results[0]: int(op.attrs["value"].partition(" : ")[0])
        for op in entry.walk()
        if op.name == "arith.constant" and op.result_types[0] == "i64"
    }
    for site in sites(entry):
        op = site.op
        if op.name in ("memref.load", "memref.store"):
            found["scalar"] += site.weight
        elif op.name == "hivm.hir.wait_flag":
            if site.loops and not site.rare and "S" in (op.pipe("set_pipe"), op.pipe("wait_pipe")):
                found["sync"] += site.weight
        elif op.name == "hivm.hir.pointer_cast":
            kind = memref_type(op.result_types[0])
            if kind and kind.space == "ub" and kind.static_bytes is not None:
                for name in op.operands:
                    found["ub_bytes"] = max(found["ub_bytes"], constants.get(name, 0) + kind.static_bytes)
        elif op.name == "arith.select" and op.result_types[0].endswith("<ub>>"):
            found["double_buffers"] += 1
        elif op.name == "hivm.hir.load" and not site.rare:
            found["dma_in"] += site.weight
        elif op.name == "hivm.hir.store" and not site.rare:
            found["dma_out"] += site.weight
        elif op.name.startswith("hivm.hir.") and op.short not in NOT_WORK and site.loops and not site.rare:
            found["vector"] += 1
    return found
