"""Gradient of the routing weights: one dot product an assignment.

argument     shape        dtype                meaning
x            [rows, H]    fp16/bf16/fp32       padded rows; only rows that an assignment owns are read
grad         [T, H]       as x                 gradient of each token's row
indices      [A]          int32/int64          assignment ids (token * top_k + k), sorted by expert
bin_ids      [A]          int32/int64          expert of each sorted position
bins         [E]          int32/int64          cumulative number of assignments
padded_bins  [E]          int32/int64          cumulative number of rows, each expert's rounded up
top_k        int                               assignments a token; A = T * top_k
dtype        dtype        fp16/bf16/fp32       of the result; default that of x
result       [A]          dtype                by assignment id: dot(x[padded_row], grad[assignment // top_k])

Products and sums are formed in fp32 and rounded once.

Source of the algorithm: MegaBlocks, padded scatter wgrad.
Launch on Ascend: one program a vector core, a contiguous run of sorted positions each.  Products are accumulated
as a vector and summed once a row; the sum stays a tile of one element, since a scalar would make the scalar pipe
wait.  On a GPU: a position a program, of narrow rows many, or, where grad would be read several times from
memory, one token.
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
from .rows import padded_row, segment, wait_for_rows


@triton.jit
def products(a, b, HIDDEN: tl.constexpr, TILE: tl.constexpr):
    """Products of two rows, added up tile by tile: the dot product is the sum of what is returned."""
    lanes = tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, HIDDEN, TILE):
        column = start + lanes
        left = tl.load(a + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
        right = tl.load(b + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
        total += left * right
    return total


@triton.jit(do_not_specialize=["assignments", "run"])
def wgrad_kernel(
    x, grad, indices, bin_ids, bins, padded_bins, out, assignments, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    last = tl.minimum(first + run, assignments)
    if first < last:
        for expert in range(tl.load(bin_ids + first).to(tl.int32), tl.load(bin_ids + last - 1).to(tl.int32) + 1):
            begin, end, shift = segment(expert, first, last, bins, padded_bins)
            for i in range(begin, end):
                assignment = tl.load(indices + i).to(tl.int32)
                a = x + (i + shift).to(tl.int64) * HIDDEN
                b = grad + (assignment // TOP_K).to(tl.int64) * HIDDEN
                total = tl.sum(products(a, b, HIDDEN, TILE)[None, :], axis=1)
                tl.store(out + assignment + tl.arange(0, 1), total.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["tokens", "run"])
def wgrad_tokens_kernel(
    x, grad, placed, out, tokens, run, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    for token in range(first, tl.minimum(first + run, tokens)):
        b = grad + tl.cast(token, tl.int64) * HIDDEN
        for k in range(0, TOP_K):
            a = x + tl.load(placed + token * TOP_K + k).to(tl.int64) * HIDDEN
            total = tl.sum(products(a, b, HIDDEN, TILE)[None, :], axis=1)
            tl.store(out + token * TOP_K + k + tl.arange(0, 1), total.to(out.dtype.element_ty))


@triton.jit
def dots(
    x, grad, indices, bin_ids, bins, padded_bins, out, assignments, block,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The dot products of a block of sorted positions; of one position without masks for positions."""
    if ROWS == 1:
        assignment = tl.load(indices + block).to(tl.int32)
        # Unlike padded_row, with loads under a mask: ptxas then asks for the gradient, which needs no row, before
        # it waits for them.
        expert = tl.load(bin_ids + block).to(tl.int32)
        shift = tl.load(padded_bins + expert - 1, mask=expert > 0, other=0).to(tl.int32)
        row = block + shift - tl.load(bins + expert - 1, mask=expert > 0, other=0).to(tl.int32)
        a = x + row.to(tl.int64) * HIDDEN
        b = grad + (assignment // TOP_K).to(tl.int64) * HIDDEN
        tl.store(out + assignment, tl.sum(products(a, b, HIDDEN, TILE)).to(out.dtype.element_ty))
    else:
        i = block * ROWS + tl.arange(0, ROWS)
        inside = i < assignments
        assignment = tl.load(indices + i, mask=inside, other=0).to(tl.int32)
        expert = tl.load(bin_ids + i, mask=inside, other=0).to(tl.int32)
        row = padded_row(i, expert, bins, padded_bins)
        a = x + row.to(tl.int64)[:, None] * HIDDEN
        b = grad + (assignment // TOP_K).to(tl.int64)[:, None] * HIDDEN
        total = tl.zeros([ROWS, TILE], tl.float32)
        for start in range(0, HIDDEN, TILE):
            column = start + tl.arange(0, TILE)[None, :]
            mask = inside[:, None] & (column < HIDDEN)
            left = tl.load(a + column, mask=mask, other=0.0).to(tl.float32)
            right = tl.load(b + column, mask=mask, other=0.0).to(tl.float32)
            total += left * right
        tl.store(out + assignment, tl.sum(total, axis=1).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["assignments", "run"])
def wgrad_block_kernel(
    x, grad, indices, bin_ids, bins, padded_bins, out, assignments, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    ONCE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if ONCE:
        dots(
            x, grad, indices, bin_ids, bins, padded_bins, out, assignments, program,
            TOP_K, HIDDEN, TILE, ROWS,
        )  # fmt: skip
    else:
        for block in range(program * run, tl.minimum((program + 1) * run, tl.cdiv(assignments, ROWS))):
            dots(
                x, grad, indices, bin_ids, bins, padded_bins, out, assignments, block,
                TOP_K, HIDDEN, TILE, ROWS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "run"])
def wgrad_token_block_kernel(
    x, grad, placed, out, tokens, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, TERMS: tl.constexpr, LOAD: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_for_rows(OVERLAP)
    first = tl.program_id(0) * run
    lanes = tl.arange(0, TILE)
    k = tl.arange(0, TERMS)
    for token in range(first, tl.minimum(first + run, tokens)):
        row = tl.load(placed + token * TOP_K + k, mask=k < TOP_K, other=0)
        a = x + row.to(tl.int64)[:, None] * HIDDEN
        b = grad + tl.cast(token, tl.int64) * HIDDEN
        total = tl.zeros([TERMS, TILE], tl.float32)
        for start in range(0, HIDDEN, TILE):
            column = start + lanes
            mask = (k < TOP_K)[:, None] & (column < HIDDEN)[None, :]
            left = tl.load(a + column[None, :], mask=mask, other=0.0, eviction_policy=LOAD).to(tl.float32)
            right = tl.load(b + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
            total += left * right[None, :]
        sums = tl.sum(total, axis=1).to(out.dtype.element_ty)
        tl.store(out + token * TOP_K + k, sums, mask=k < TOP_K)


@dataclass(frozen=True)
class Each:
    """One dot product after another: a kernel with the arguments of `wgrad_kernel`.

    tile: elements of a feature tile, if that is part of the implementation.  one_each: a program a position."""

    kernel: Any = wgrad_kernel
    tile: int | None = None
    one_each: bool = False

    def launch(self, x, grad, indices, bin_ids, bins, padded_bins, out, top_k: int) -> None:
        """Launch on checked arguments.  Raises PlanError before anything is written."""
        made = plan.wgrad_each(
            indices.shape[0], top_k, x.shape[1], x.element_size(), device.of(x), self.tile, self.one_each
        )  # fmt: skip
        args = _positions(x, grad, indices, bin_ids, bins, padded_bins, out, made.run)
        launch(self.kernel, made.grid, args, made.constants, **made.options)


@dataclass(frozen=True)
class Blocks:
    """Several positions at once; meant for a GPU.  given: constants and options instead of the plan's."""

    given: Mapping[str, Any] | None = None

    def launch(self, x, grad, indices, bin_ids, bins, padded_bins, out, top_k: int) -> None:
        """As Each.launch."""
        made = plan.wgrad_blocks(indices.shape[0], top_k, x.shape[1], x.element_size(), device.of(x), self.given)
        args = _positions(x, grad, indices, bin_ids, bins, padded_bins, out, made.run)
        launch(wgrad_block_kernel, made.grid, args, made.constants, **made.options)


@dataclass(frozen=True)
class Tokens:
    """All dot products of a token together, its gradient read once.  given: as Blocks."""

    given: Mapping[str, Any] | None = None

    def launch(self, x, grad, indices, bin_ids, bins, padded_bins, out, top_k: int) -> None:
        """As Each.launch."""
        here = device.of(x)
        tokens = grad.shape[0]
        made = plan.wgrad_tokens(tokens, top_k, x.shape[1], x.element_size(), here, self.given)
        placed = rows.place(indices, bin_ids, bins, padded_bins)
        args = {"x": x, "grad": grad, "placed": placed, "out": out, "tokens": tokens, "run": made.run}
        kernel = wgrad_tokens_kernel if here.ascend else wgrad_token_block_kernel
        launch(kernel, made.grid, args, made.constants, **made.options)


@dataclass(frozen=True)
class Planned:
    """The form that suits the device and the sizes."""

    def launch(self, x, grad, indices, bin_ids, bins, padded_bins, out, top_k: int) -> None:
        """As Each.launch."""
        form = plan.wgrad_form(indices.shape[0], top_k, x.shape[1], x.element_size(), device.of(x))
        IMPLEMENTATIONS[form].launch(x, grad, indices, bin_ids, bins, padded_bins, out, top_k)


Wgrad = Planned | Each | Blocks | Tokens
IMPLEMENTATIONS: dict[str, Wgrad] = {
    "planned": Planned(),
    "each": Each(),
    "blocks": Blocks(),
    "tokens": Tokens(),
}


def padded_scatter_wgrad(
    x: torch.Tensor,
    grad: torch.Tensor,
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    top_k: int,
    *,
    dtype: torch.dtype | None = None,
    impl: str | Wgrad = "planned",
    validate: bool = False,
) -> torch.Tensor:
    """`result[indices[i]]` := dot(`x[padded_row(i)]`, `grad[indices[i] // top_k]`).

    Shapes and dtypes as in the table above.  Waits for nothing.  Raises TypeError or ValueError naming the
    argument, PlanError for sizes that do not fit the device.  validate=True also checks values, which waits for
    the device: bins that add up and lie inside x, each assignment once, experts in range.
    """
    rows.check_features("x", x)
    tokens = rows.check_routing(indices, bin_ids, None, bins, padded_bins, top_k, x)
    rows.check_features("grad", grad, rows=tokens, like=x)
    if dtype is not None and dtype not in rows.FLOATS:
        raise TypeError(f"dtype: expected float16, bfloat16 or float32, got {dtype}")
    wgrad = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        rows.check_values(indices, bin_ids, bins, padded_bins, "x.shape[0]", len(x))
    out = torch.empty(indices.shape[0], dtype=dtype or x.dtype, device=x.device)
    if tokens:
        wgrad.launch(x, grad, indices, bin_ids, bins, padded_bins, out, top_k)
    return out


def _positions(x, grad, indices, bin_ids, bins, padded_bins, out, run: int) -> dict[str, Any]:
    return {
        "x": x, "grad": grad, "indices": indices, "bin_ids": bin_ids, "bins": bins, "padded_bins": padded_bins,
        "out": out, "assignments": indices.shape[0], "run": run,
    }  # fmt: skip
