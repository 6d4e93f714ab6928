"""Sum each token's expert rows back out of the padded layout, weighted.

argument     shape        dtype                meaning
x            [rows, H]    fp16/bf16/fp32       padded rows; only rows that an assignment owns are read
indices      [A]          int32/int64          assignment ids (token * top_k + k), sorted by expert
bin_ids      [A]          int32/int64          expert of each sorted position
weights      [A] or None  fp16/bf16/fp32       factor of each assignment, by assignment id
bins         [E]          int32/int64          cumulative number of assignments
padded_bins  [E]          int32/int64          cumulative number of rows, each expert's rounded up
top_k        int                               assignments a token; A = T * top_k
result       [T, H]       as x                 token t := sum over k, in order, of weight * its row

Sums are formed in fp32 and rounded once.

Source of the algorithm: MegaBlocks, padded scatter.
Launch: first the padded row of every assignment is written by assignment id (4 bytes each); then each program
takes a contiguous run of tokens, so that a sum needs no intermediate [A, H].  A GPU with few assignments looks
for the rows in the second launch itself and saves the first.
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
from . import plan, rows
from .rows import padded_row, weight_of


@triton.jit
def add_row(
    total, x, placed, indices, bin_ids, weights, bins, padded_bins, assignment, assignments, column,
    HIDDEN: tl.constexpr, BOUND: tl.constexpr, LOAD: tl.constexpr,
):  # fmt: skip
    """`total` and one assignment's weighted row."""
    if BOUND == 0:
        row = tl.load(placed + assignment)
    else:
        lanes = tl.arange(0, BOUND)
        found = tl.load(indices + lanes, mask=lanes < assignments, other=-1).to(tl.int32)
        i = tl.sum(tl.where(found == assignment, lanes, 0))
        row = padded_row(i, tl.load(bin_ids + i).to(tl.int32), bins, padded_bins)
    source = x + row.to(tl.int64) * HIDDEN
    values = tl.load(source + column, mask=column < HIDDEN, other=0.0, eviction_policy=LOAD).to(tl.float32)
    if weights is not None:
        values = values * weight_of(weights, assignment)
    return total + values


@triton.jit(do_not_specialize=["tokens", "run"])
def scatter_kernel(
    x, placed, indices, bin_ids, weights, bins, padded_bins, out, tokens, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, BOUND: tl.constexpr, UNROLL: tl.constexpr,
    LOAD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    lanes = tl.arange(0, TILE)
    for token in range(first, tl.minimum(first + run, tokens)):
        target = out + tl.cast(token, tl.int64) * HIDDEN
        for start in range(0, HIDDEN, TILE):
            column = start + lanes
            total = tl.zeros([TILE], tl.float32)
            if UNROLL:
                for k in tl.static_range(0, TOP_K):
                    total = add_row(
                        total, x, placed, indices, bin_ids, weights, bins, padded_bins, token * TOP_K + k,
                        tokens * TOP_K, column, HIDDEN, BOUND, LOAD,
                    )  # fmt: skip
            else:
                for k in range(0, TOP_K):
                    total = add_row(
                        total, x, placed, indices, bin_ids, weights, bins, padded_bins, token * TOP_K + k,
                        tokens * TOP_K, column, HIDDEN, BOUND, LOAD,
                    )  # fmt: skip
            tl.store(
                target + column, total.to(out.dtype.element_ty), mask=column < HIDDEN, cache_modifier=STORE
            )  # fmt: skip


@dataclass(frozen=True)
class Sum:
    """A kernel with the arguments of `scatter_kernel`.  given: constants and options instead of the plan's."""

    kernel: Any = scatter_kernel
    given: Mapping[str, Any] | None = None

    def launch(self, x, indices, bin_ids, weights, bins, padded_bins, out, top_k: int) -> None:
        """Launch on checked arguments.  Raises PlanError before anything is written."""
        made = plan.scatter(
            len(out), len(indices), top_k, x.shape[1], x.element_size(), device.of(x), self.given
        )  # fmt: skip
        searched = made.constants["BOUND"] > 0
        args = {
            "x": x,
            "placed": None if searched else rows.place(indices, bin_ids, bins, padded_bins),
            "indices": indices if searched else None,
            "bin_ids": bin_ids if searched else None,
            "weights": weights,
            "bins": bins if searched else None,
            "padded_bins": padded_bins if searched else None,
            "out": out,
            "tokens": len(out),
            "run": made.run,
        }
        launch(self.kernel, made.grid, args, made.constants, **made.options)


IMPLEMENTATIONS = {"sum": Sum()}


def padded_scatter(
    x: torch.Tensor,
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    weights: torch.Tensor | None,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    top_k: int,
    *,
    impl: str | Sum = "sum",
    validate: bool = False,
) -> torch.Tensor:
    """Token t := sum over its top_k assignments, in k order, of weight * `x[padded_row]`.

    Shapes and dtypes as in the table above.  Waits for nothing.  Raises TypeError or ValueError naming the
    argument, PlanError for sizes that do not fit the device.  validate=True also checks values, which waits for
    the device: bins that add up and lie inside x, each assignment once, experts in range.
    """
    rows.check_features("x", x)
    tokens = rows.check_routing(indices, bin_ids, weights, bins, padded_bins, top_k, x)
    scatter = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        rows.check_values(indices, bin_ids, bins, padded_bins, "x.shape[0]", len(x))
    out = torch.empty(tokens, x.shape[1], dtype=x.dtype, device=x.device)
    if tokens:
        scatter.launch(x, indices, bin_ids, weights, bins, padded_bins, out, top_k)
    return out
