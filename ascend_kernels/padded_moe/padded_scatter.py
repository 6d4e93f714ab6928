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
takes a contiguous run of tokens, so that a sum needs no intermediate [A, H].  A GPU program takes several tokens
at once where rows are narrow.  A GPU saves the first launch where there are few assignments, since a program then
finds its rows itself, and where top_k is 1.
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
from .rows import as_bits, padded_row, wait_for_rows, weight_of, weights_of


@triton.jit
def add_row(total, x, row, weights, assignment, column, HIDDEN: tl.constexpr, LOAD: tl.constexpr):
    """`total` and one assignment's weighted row."""
    source = x + row.to(tl.int64) * HIDDEN
    values = tl.load(source + column, mask=column < HIDDEN, other=0.0, eviction_policy=LOAD).to(tl.float32)
    if weights is not None:
        values = values * weight_of(weights, assignment)
    return total + values


@triton.jit(do_not_specialize=["tokens", "run"])
def scatter_kernel(
    x, placed, weights, out, tokens, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr, LOAD: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_for_rows(OVERLAP)
    first = tl.program_id(0) * run
    lanes = tl.arange(0, TILE)
    for token in range(first, tl.minimum(first + run, tokens)):
        target = out + tl.cast(token, tl.int64) * HIDDEN
        for start in range(0, HIDDEN, TILE):
            column = start + lanes
            total = tl.zeros([TILE], tl.float32)
            if UNROLL:
                for k in tl.static_range(0, TOP_K):
                    row = tl.load(placed + token * TOP_K + k)
                    total = add_row(total, x, row, weights, token * TOP_K + k, column, HIDDEN, LOAD)
            else:
                for k in range(0, TOP_K):
                    row = tl.load(placed + token * TOP_K + k)
                    total = add_row(total, x, row, weights, token * TOP_K + k, column, HIDDEN, LOAD)
            tl.store(target + column, total.to(out.dtype.element_ty), mask=column < HIDDEN)


@triton.jit
def add_rows(
    total, x, placed, weights, token, column, k, inside, mask,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """`total` and the weighted row of assignment k of each token of a block."""
    assignment = token * TOP_K + k
    row = tl.load(placed + assignment, mask=inside, other=0)
    source = x + row.to(tl.int64)[:, None] * HIDDEN
    values = tl.load(source + column, mask=mask, other=0.0).to(tl.float32)
    if weights is not None:
        values = values * weights_of(weights, assignment, inside)[:, None]
    return total + values


@triton.jit(do_not_specialize=["tokens", "run"])
def scatter_several_kernel(
    x, placed, weights, out, tokens, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_for_rows(OVERLAP)
    first = tl.program_id(0) * run
    lanes = tl.arange(0, TILE)[None, :]
    for block in range(first, tl.minimum(first + run, tl.cdiv(tokens, ROWS))):
        token = block * ROWS + tl.arange(0, ROWS)
        inside = token < tokens
        target = out + token.to(tl.int64)[:, None] * HIDDEN
        for start in range(0, HIDDEN, TILE):
            column = start + lanes
            mask = inside[:, None] & (column < HIDDEN)
            total = tl.zeros([ROWS, TILE], tl.float32)
            if UNROLL:
                for k in tl.static_range(0, TOP_K):
                    total = add_rows(total, x, placed, weights, token, column, k, inside, mask, TOP_K, HIDDEN)
            else:
                for k in range(0, TOP_K):
                    total = add_rows(total, x, placed, weights, token, column, k, inside, mask, TOP_K, HIDDEN)
            tl.store(target + column, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["assignments"])
def scatter_search_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, BOUND: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    lanes = tl.arange(0, BOUND)[None, :]
    terms = tl.arange(0, TERMS)
    found = tl.load(indices + lanes, mask=lanes < assignments, other=-1).to(tl.int32)
    i = tl.sum(tl.where(found == (token * TOP_K + terms)[:, None], lanes, 0), axis=1)
    expert = tl.load(bin_ids + i, mask=terms < TOP_K, other=0).to(tl.int32)
    placed = padded_row(i, expert, bins, padded_bins)
    total = tl.zeros([TILE], tl.float32)
    for k in tl.static_range(0, TOP_K):
        row = tl.sum(tl.where(terms == k, placed, 0))
        total = add_row(total, x, row, weights, token * TOP_K + k, column, HIDDEN, "")
    target = out + token.to(tl.int64) * HIDDEN
    tl.store(target + column, total.to(out.dtype.element_ty), mask=column < HIDDEN)


@triton.jit(do_not_specialize=["assignments", "run"])
def scatter_block_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments, run,
    HIDDEN: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    lanes = tl.arange(0, TILE)[None, :]
    for block in range(first, tl.minimum(first + run, tl.cdiv(assignments, ROWS))):
        i = block * ROWS + tl.arange(0, ROWS)
        inside = i < assignments
        token = tl.load(indices + i, mask=inside, other=0).to(tl.int32)
        expert = tl.load(bin_ids + i, mask=inside, other=0).to(tl.int32)
        source = x + padded_row(i, expert, bins, padded_bins).to(tl.int64)[:, None] * HIDDEN
        target = out + token.to(tl.int64)[:, None] * HIDDEN
        if weights is not None:
            weight = weights_of(weights, token, inside)[:, None]
        for start in range(0, HIDDEN, TILE):
            column = start + lanes
            mask = inside[:, None] & (column < HIDDEN)
            values = tl.load(source + column, mask=mask)
            if weights is not None:
                values = (values.to(tl.float32) * weight).to(out.dtype.element_ty)
            tl.store(target + column, values, mask=mask)


@dataclass(frozen=True)
class Sum:
    """One token after another.  given: constants and options instead of the plan's."""

    given: Mapping[str, Any] | None = None

    def launch(self, x, indices, bin_ids, weights, bins, padded_bins, out, top_k: int) -> None:
        """Launch on checked arguments.  Raises PlanError before anything is written."""
        made = plan.scatter(out.shape[0], top_k, x.shape[1], x.element_size(), device.of(x), self.given)
        args = _placed(x, indices, bin_ids, weights, bins, padded_bins, out, made.run)
        launch(scatter_kernel, made.grid, args, made.constants, **made.options)


@dataclass(frozen=True)
class Several:
    """Several tokens at once, of narrow rows; for a GPU."""

    given: Mapping[str, Any] | None = None

    def launch(self, x, indices, bin_ids, weights, bins, padded_bins, out, top_k: int) -> None:
        """As Sum.launch."""
        made = plan.scatter_several(out.shape[0], top_k, x.shape[1], x.element_size(), device.of(x), self.given)
        args = _placed(x, indices, bin_ids, weights, bins, padded_bins, out, made.run)
        launch(scatter_several_kernel, made.grid, args, made.constants, **made.options)


@dataclass(frozen=True)
class Search:
    """Each program looks for its token's rows among all assignments and sums one tile; for few on a GPU."""

    given: Mapping[str, Any] | None = None

    def launch(self, x, indices, bin_ids, weights, bins, padded_bins, out, top_k: int) -> None:
        """As Sum.launch."""
        made = plan.scatter_search(out.shape[0], top_k, x.shape[1], x.element_size(), device.of(x), self.given)
        args = _positions(x, indices, bin_ids, weights, bins, padded_bins, out)
        launch(scatter_search_kernel, made.grid, args, made.constants, **made.options)


@dataclass(frozen=True)
class Blocks:
    """Several sorted positions at once, where top_k is 1 and there is nothing to sum; for a GPU."""

    given: Mapping[str, Any] | None = None

    def launch(self, x, indices, bin_ids, weights, bins, padded_bins, out, top_k: int) -> None:
        """As Sum.launch.  Raises Unsupported for a top_k above 1."""
        if top_k > 1:
            raise Unsupported(f"impl='blocks' sums nothing: it needs top_k = 1, got {top_k}")
        made = plan.scatter_blocks(out.shape[0], x.shape[1], x.element_size(), device.of(x), self.given)
        args = _positions(x, indices, bin_ids, weights, bins, padded_bins, out) | {"run": made.run}
        launch(scatter_block_kernel, made.grid, args, made.constants, **made.options)


@dataclass(frozen=True)
class Planned:
    """The form that suits the device and the sizes."""

    def launch(self, x, indices, bin_ids, weights, bins, padded_bins, out, top_k: int) -> None:
        """As Sum.launch."""
        form = plan.scatter_form(indices.shape[0], top_k, x.shape[1], device.of(x))
        IMPLEMENTATIONS[form].launch(x, indices, bin_ids, weights, bins, padded_bins, out, top_k)


Scatter = Planned | Sum | Several | Search | Blocks
IMPLEMENTATIONS: dict[str, Scatter] = {
    "planned": Planned(),
    "sum": Sum(),
    "several": Several(),
    "search": Search(),
    "blocks": Blocks(),
}


def padded_scatter(
    x: torch.Tensor,
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    weights: torch.Tensor | None,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    top_k: int,
    *,
    impl: str | Scatter = "planned",
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


def _placed(x, indices, bin_ids, weights, bins, padded_bins, out, run: int) -> dict[str, Any]:
    return {
        "x": x, "placed": rows.place(indices, bin_ids, bins, padded_bins), "weights": as_bits(weights), "out": out,
        "tokens": out.shape[0], "run": run,
    }  # fmt: skip


def _positions(x, indices, bin_ids, weights, bins, padded_bins, out) -> dict[str, Any]:
    return {
        "x": x, "indices": indices, "bin_ids": bin_ids, "weights": as_bits(weights), "bins": bins,
        "padded_bins": padded_bins, "out": out, "assignments": indices.shape[0],
    }  # fmt: skip
