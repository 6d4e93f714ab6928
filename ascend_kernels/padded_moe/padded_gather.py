"""Copy token rows into the padded layout, sorted by expert, scaled by their routing weights.

argument     shape        dtype                meaning
x            [T, H]       fp16/bf16/fp32       one row a token
indices      [A]          int32/int64          assignment ids (token * top_k + k), sorted by expert
bin_ids      [A]          int32/int64          expert of each sorted position
weights      [A] or None  fp16/bf16/fp32       factor of each assignment, by assignment id
bins         [E]          int32/int64          cumulative number of assignments
padded_bins  [E]          int32/int64          cumulative number of rows, each expert's rounded up
top_k        int                               assignments a token; A = T * top_k
output_rows  int or None                       rows of the result, at least padded_bins[-1]; None reads that value,
                                               which waits for the device
result       [rows, H]    as x                 row of position i := x[indices[i] // top_k] * weight;
                                               other rows exactly 0

The product is formed in fp32 and rounded once to the result's dtype.

Source of the algorithm: MegaBlocks, padded gather.
Launch on Ascend: one program a vector core.  Each takes a contiguous run of sorted positions, one row after
another in feature tiles, then its share of the padding.  On a GPU: many programs of a few rows each, and some
that only write padding; or, where the rows of x would be read several times from memory, one a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from ..harness.spec import Unsupported
from . import plan, rows
from .rows import padded_row, segment, wait_for_rows, weight_of, weights_of


@triton.jit
def zero_rows(out, first, count, worker, workers, HIDDEN: tl.constexpr, ZEROS: tl.constexpr):
    """Rows [first, first + count) := 0, as flat memory, tile after tile dealt out to the workers."""
    lanes = tl.arange(0, ZEROS)
    zeros = tl.zeros([ZEROS], out.dtype.element_ty)
    base = out + first.to(tl.int64) * HIDDEN
    size = count.to(tl.int64) * HIDDEN
    for block in range(worker, tl.cdiv(size, ZEROS).to(tl.int32), workers):
        start = tl.cast(block, tl.int64) * ZEROS
        left = tl.minimum(size - start, ZEROS).to(tl.int32)
        tl.store(base + start + lanes, zeros, mask=lanes < left)


@triton.jit
def zero_padding(
    out, bins, padded_bins, output_rows, worker, workers,
    EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, ZEROS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Zero behind each expert's rows, PARTS workers an expert, and behind the last expert, all workers."""
    for unit in range(worker, EXPERTS * PARTS, workers):
        expert = unit // PARTS
        used = padded_row(tl.load(bins + expert).to(tl.int32), expert, bins, padded_bins)
        end = tl.load(padded_bins + expert).to(tl.int32)
        zero_rows(out, used, end - used, unit % PARTS, PARTS, HIDDEN, ZEROS)
    used = tl.load(padded_bins + EXPERTS - 1).to(tl.int32)
    zero_rows(out, used, output_rows - used, worker, workers, HIDDEN, ZEROS)


@triton.jit(do_not_specialize=["assignments", "output_rows", "run"])
def gather_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments, output_rows, run,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first = program * run
    last = tl.minimum(first + run, assignments)
    lanes = tl.arange(0, TILE)
    if first < last:
        for expert in range(tl.load(bin_ids + first).to(tl.int32), tl.load(bin_ids + last - 1).to(tl.int32) + 1):
            begin, end, shift = segment(expert, first, last, bins, padded_bins)
            for i in range(begin, end):
                assignment = tl.load(indices + i).to(tl.int32)
                source = x + (assignment // TOP_K).to(tl.int64) * HIDDEN
                target = out + (i + shift).to(tl.int64) * HIDDEN
                if weights is not None:
                    weight = weight_of(weights, assignment)
                for start in range(0, HIDDEN, TILE):
                    column = start + lanes
                    values = tl.load(source + column, mask=column < HIDDEN)
                    if weights is not None:
                        values = (values.to(tl.float32) * weight).to(out.dtype.element_ty)
                    tl.store(target + column, values, mask=column < HIDDEN)
    zero_padding(
        out, bins, padded_bins, output_rows, program, tl.num_programs(0), EXPERTS, HIDDEN, ZEROS, PARTS
    )  # fmt: skip


@triton.jit(do_not_specialize=["assignments", "output_rows", "run"])
def gather_slices_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments, output_rows, run,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first = program * run
    last = tl.minimum(first + run, assignments)
    rows = tl.arange(0, ROWS)[:, None]
    lanes = tl.arange(0, TILE)[None, :]
    if first < last:
        for expert in range(tl.load(bin_ids + first).to(tl.int32), tl.load(bin_ids + last - 1).to(tl.int32) + 1):
            begin, end, shift = segment(expert, first, last, bins, padded_bins)
            for i in range(begin, end, ROWS):
                together = tl.minimum(ROWS, end - i)
                target = out + (i + shift).to(tl.int64) * HIDDEN + rows * HIDDEN
                for start in range(0, HIDDEN, TILE):
                    column = start + lanes
                    tile = tl.zeros([ROWS, TILE], out.dtype.element_ty)
                    for j in range(0, together):
                        assignment = tl.load(indices + i + j).to(tl.int32)
                        source = x + (assignment // TOP_K).to(tl.int64) * HIDDEN
                        values = tl.load(source + column, mask=column < HIDDEN)
                        if weights is not None:
                            weight = weight_of(weights, assignment)
                            values = (values.to(tl.float32) * weight).to(out.dtype.element_ty)
                        tile = tl.insert_slice(tile, values, [j, 0], [1, TILE], [1, 1])
                    tl.store(target + column, tile, mask=(rows < together) & (column < HIDDEN))
    zero_padding(
        out, bins, padded_bins, output_rows, program, tl.num_programs(0), EXPERTS, HIDDEN, ZEROS, PARTS
    )  # fmt: skip


@triton.jit
def put_row(out, rows, weights, assignment, values, column, HIDDEN: tl.constexpr, STORE: tl.constexpr):
    """Store a token's values to the row of one of its assignments."""
    target = out + tl.load(rows + assignment).to(tl.int64) * HIDDEN
    scaled = values
    if weights is not None:
        scaled = (values.to(tl.float32) * weight_of(weights, assignment)).to(out.dtype.element_ty)
    tl.store(target + column, scaled, mask=column < HIDDEN, cache_modifier=STORE)


@triton.jit(do_not_specialize=["output_rows", "tokens", "run"])
def gather_tokens_kernel(
    x, rows, weights, bins, padded_bins, out, output_rows, tokens, run,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr, ZEROERS: tl.constexpr, UNROLL: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if ZEROERS == 0:
        zero_padding(
            out, bins, padded_bins, output_rows, program, tl.num_programs(0), EXPERTS, HIDDEN, ZEROS, PARTS
        )  # fmt: skip
    elif program < ZEROERS:
        zero_padding(out, bins, padded_bins, output_rows, program, ZEROERS, EXPERTS, HIDDEN, ZEROS, PARTS)
    first = (program - ZEROERS) * run
    lanes = tl.arange(0, TILE)
    if first >= 0:
        for token in range(first, tl.minimum(first + run, tokens)):
            source = x + tl.cast(token, tl.int64) * HIDDEN
            for start in range(0, HIDDEN, TILE):
                column = start + lanes
                values = tl.load(source + column, mask=column < HIDDEN, eviction_policy=LOAD)
                wait_for_rows(OVERLAP)
                if UNROLL:
                    for k in tl.static_range(0, TOP_K):
                        put_row(out, rows, weights, token * TOP_K + k, values, column, HIDDEN, STORE)
                else:
                    for k in range(0, TOP_K):
                        put_row(out, rows, weights, token * TOP_K + k, values, column, HIDDEN, STORE)


@triton.jit(do_not_specialize=["assignments", "output_rows", "run"])
def gather_block_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments, output_rows, run,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr, ROWS: tl.constexpr, ZEROERS: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < ZEROERS:
        zero_padding(out, bins, padded_bins, output_rows, program, ZEROERS, EXPERTS, HIDDEN, ZEROS, PARTS)
    else:
        first = (program - ZEROERS) * run
        lanes = tl.arange(0, TILE)[None, :]
        for block in range(first, tl.minimum(first + run, tl.cdiv(assignments, ROWS))):
            i = block * ROWS + tl.arange(0, ROWS)
            inside = i < assignments
            assignment = tl.load(indices + i, mask=inside, other=0).to(tl.int32)
            expert = tl.load(bin_ids + i, mask=inside, other=0).to(tl.int32)
            row = padded_row(i, expert, bins, padded_bins)
            source = x + (assignment // TOP_K).to(tl.int64)[:, None] * HIDDEN
            target = out + row.to(tl.int64)[:, None] * HIDDEN
            if weights is not None:
                weight = weights_of(weights, assignment, inside)[:, None]
            for start in range(0, HIDDEN, TILE):
                column = start + lanes
                mask = inside[:, None] & (column < HIDDEN)
                values = tl.load(source + column, mask=mask, eviction_policy=LOAD)
                if weights is not None:
                    values = (values.to(tl.float32) * weight).to(out.dtype.element_ty)
                tl.store(target + column, values, mask=mask, cache_modifier=STORE)


@dataclass(frozen=True)
class Routing:
    """The checked arguments of a gather beside x.  waits: the size of the result is on the device."""

    indices: torch.Tensor
    bin_ids: torch.Tensor
    weights: torch.Tensor | None
    bins: torch.Tensor
    padded_bins: torch.Tensor
    top_k: int
    waits: bool

    def positions(self, x: torch.Tensor, run: int) -> dict[str, Any]:
        """Arguments of a kernel that walks over sorted positions."""
        return {
            "x": x, "indices": self.indices, "bin_ids": self.bin_ids, "weights": rows.as_bits(self.weights),
            "bins": self.bins, "padded_bins": self.padded_bins, "out": None, "assignments": self.indices.shape[0],
            "output_rows": None, "run": run,
        }  # fmt: skip


@dataclass(frozen=True)
class Ready:
    """A launch that lacks only its result: `out` and `output_rows` of the arguments are still None."""

    kernel: Any
    made: plan.Plan
    args: dict[str, Any]

    def into(self, out: torch.Tensor) -> None:
        """Launch."""
        launch(
            self.kernel, self.made.grid, {**self.args, "out": out, "output_rows": out.shape[0]},
            self.made.constants, **self.made.options,
        )  # fmt: skip


@dataclass(frozen=True)
class Each:
    """One row after another: a kernel with the arguments of `gather_kernel`.

    tile: elements of a feature tile, if that is part of the implementation.  one_each: a program a row.
    bits: bf16 weights are handed over as integers."""

    kernel: Any = gather_kernel
    tile: int | None = None
    one_each: bool = False
    bits: bool = True

    def ready(self, x: torch.Tensor, routing: Routing) -> Ready:
        """All that needs no result, for checked arguments.  Raises PlanError."""
        made = plan.gather_each(
            routing.indices.shape[0], routing.bins.shape[0], routing.top_k, x.shape[1], x.element_size(),
            routing.weights is not None, device.of(x), self.tile, self.one_each,
        )  # fmt: skip
        args = routing.positions(x, made.run)
        if not self.bits:
            args["weights"] = routing.weights
        return Ready(self.kernel, made, args)


@dataclass(frozen=True)
class Slices:
    """Rows of one expert collected in UB by `insert_slice`, then stored together."""

    def ready(self, x: torch.Tensor, routing: Routing) -> Ready:
        """As Each.ready.  Raises Unsupported where Triton has no insert_slice."""
        if not hasattr(tl, "insert_slice"):
            raise Unsupported("impl='slices' needs insert_slice, which only triton-ascend has")
        made = plan.gather_slices(
            routing.indices.shape[0], routing.bins.shape[0], routing.top_k, x.shape[1], x.element_size(),
            routing.weights is not None, device.of(x),
        )  # fmt: skip
        return Ready(gather_slices_kernel, made, routing.positions(x, made.run))


@dataclass(frozen=True)
class Blocks:
    """Several rows at once and programs of their own for the padding; meant for a GPU.

    given: constants and options instead of the plan's, to try others."""

    given: Mapping[str, Any] | None = None

    def ready(self, x: torch.Tensor, routing: Routing) -> Ready:
        """As Each.ready."""
        made = plan.gather_blocks(
            routing.indices.shape[0], routing.bins.shape[0], routing.top_k, x.shape[1], x.element_size(),
            device.of(x), self.given,
        )  # fmt: skip
        return Ready(gather_block_kernel, made, routing.positions(x, made.run))


@dataclass(frozen=True)
class Tokens:
    """Each row of x read once and written top_k times."""

    given: Mapping[str, Any] | None = None

    def ready(self, x: torch.Tensor, routing: Routing) -> Ready:
        """As Each.ready."""
        made = plan.gather_tokens(
            x.shape[0], routing.bins.shape[0], routing.top_k, x.shape[1], x.element_size(),
            routing.weights is not None, device.of(x), self.given,
        )  # fmt: skip
        placed = rows.place(routing.indices, routing.bin_ids, routing.bins, routing.padded_bins)
        args = {
            "x": x, "rows": placed, "weights": rows.as_bits(routing.weights), "bins": routing.bins,
            "padded_bins": routing.padded_bins, "out": None, "output_rows": None, "tokens": x.shape[0],
            "run": made.run,
        }  # fmt: skip
        return Ready(gather_tokens_kernel, made, args)


@dataclass(frozen=True)
class Planned:
    """The form that suits the device and the sizes."""

    def ready(self, x: torch.Tensor, routing: Routing) -> Ready:
        """As Each.ready."""
        row = x.shape[1] * x.element_size()
        form = plan.gather_form(routing.indices.shape[0], routing.top_k, row, routing.waits, device.of(x))
        return IMPLEMENTATIONS[form].ready(x, routing)


Gather = Planned | Each | Slices | Blocks | Tokens
IMPLEMENTATIONS: dict[str, Gather] = {
    "planned": Planned(),
    "each": Each(),
    "slices": Slices(),
    "blocks": Blocks(),
    "tokens": Tokens(),
}


def padded_gather(
    x: torch.Tensor,
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    weights: torch.Tensor | None,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    top_k: int,
    output_rows: int | None = None,
    *,
    impl: str | Gather = "planned",
    validate: bool = False,
) -> torch.Tensor:
    """Row `padded_row(i)` := `x[indices[i] // top_k]` times its weight; every other row exactly 0.

    Shapes and dtypes as in the table above.  Given `output_rows`, nothing waits for the device.  Raises TypeError
    or ValueError naming the argument, PlanError for sizes that do not fit the device.  validate=True also checks
    values, which waits for the device: bins that add up, room for every expert, each assignment once, experts
    and output_rows in range.
    """
    rows.check_features("x", x)
    tokens = rows.check_routing(indices, bin_ids, weights, bins, padded_bins, top_k, x)
    check.tensor("x", x, shape=(tokens, None))
    if output_rows is not None:
        check.number("output_rows", output_rows, most=2**31 - 1)
    gather = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        rows.check_values(indices, bin_ids, bins, padded_bins, "output_rows", output_rows)
    routing = Routing(indices, bin_ids, weights, bins, padded_bins, top_k, output_rows is None)
    ready = gather.ready(x, routing)
    if output_rows is None:  # as late as can be: what is above happens while the device still works
        output_rows = int(padded_bins[-1])
    out = torch.empty(output_rows, x.shape[1], dtype=x.dtype, device=x.device)
    ready.into(out)
    return out
