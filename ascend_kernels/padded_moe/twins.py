"""The ops with one source pattern changed each: what a careless edit would do.

Kernels have the arguments of the op's own.  What each costs, and whether it is unsafe, is read from its compiled
code and its run.
"""

from __future__ import annotations

import functools

import triton
import triton.language as tl

from ..harness.spec import Twin
from .padded_gather import Blocks as GatherBlocks
from .padded_gather import Each as GatherEach
from .padded_gather import padded_gather, zero_padding
from .padded_scatter import Sum, padded_scatter
from .padded_scatter_wgrad import Blocks as WgradBlocks
from .padded_scatter_wgrad import Each as WgradEach
from .padded_scatter_wgrad import padded_scatter_wgrad, products
from .rows import padded_row, segment, weight_of

SMALL = 256  # elements of the tiles in twins that take several a row


@triton.jit(do_not_specialize=["assignments", "output_rows", "run"])
def lookup_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments, output_rows, run,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first = program * run
    lanes = tl.arange(0, TILE)
    for i in range(first, tl.minimum(first + run, assignments)):
        assignment = tl.load(indices + i).to(tl.int32)
        row = padded_row(i, tl.load(bin_ids + i).to(tl.int32), bins, padded_bins)
        source = x + (assignment // TOP_K).to(tl.int64) * HIDDEN
        target = out + row.to(tl.int64) * HIDDEN
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
def masked_scalar_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments, output_rows, run,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first = program * run
    lanes = tl.arange(0, TILE)
    for i in range(first, tl.minimum(first + run, assignments)):
        assignment = tl.load(indices + i).to(tl.int32)
        expert = tl.load(bin_ids + i).to(tl.int32)
        before = tl.load(bins + expert - 1, mask=expert > 0, other=0).to(tl.int32)
        row = i - before + tl.load(padded_bins + expert - 1, mask=expert > 0, other=0).to(tl.int32)
        source = x + (assignment // TOP_K).to(tl.int64) * HIDDEN
        target = out + row.to(tl.int64) * HIDDEN
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
def weight_each_tile_kernel(
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
                for start in range(0, HIDDEN, TILE):
                    column = start + lanes
                    values = tl.load(source + column, mask=column < HIDDEN)
                    if weights is not None:
                        weight = weight_of(weights, assignment)
                        values = (values.to(tl.float32) * weight).to(out.dtype.element_ty)
                    tl.store(target + column, values, mask=column < HIDDEN)
    zero_padding(
        out, bins, padded_bins, output_rows, program, tl.num_programs(0), EXPERTS, HIDDEN, ZEROS, PARTS
    )  # fmt: skip


@triton.jit(do_not_specialize=["assignments", "output_rows", "run"])
def weight_cast_kernel(
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
                    weight = tl.load(weights + assignment).to(tl.float32)
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
def int64_kernel(
    x, indices, bin_ids, weights, bins, padded_bins, out, assignments, output_rows, run,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
    ZEROS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first = program * run
    lanes = tl.arange(0, TILE).to(tl.int64)
    for i in range(first, tl.minimum(first + run, assignments)):
        assignment = tl.load(indices + i).to(tl.int64)
        expert = tl.load(bin_ids + i).to(tl.int64)
        before = tl.maximum(expert - 1, 0)
        shift = tl.load(padded_bins + before).to(tl.int64) - tl.load(bins + before).to(tl.int64)
        source = x + assignment // TOP_K * HIDDEN
        target = out + (i + shift * tl.minimum(expert, 1)) * HIDDEN
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


@triton.jit(do_not_specialize=["assignments", "run"])
def sum_each_tile_kernel(
    x, grad, indices, bin_ids, bins, padded_bins, out, assignments, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    last = tl.minimum(first + run, assignments)
    lanes = tl.arange(0, TILE)
    if first < last:
        for expert in range(tl.load(bin_ids + first).to(tl.int32), tl.load(bin_ids + last - 1).to(tl.int32) + 1):
            begin, end, shift = segment(expert, first, last, bins, padded_bins)
            for i in range(begin, end):
                assignment = tl.load(indices + i).to(tl.int32)
                a = x + (i + shift).to(tl.int64) * HIDDEN
                b = grad + (assignment // TOP_K).to(tl.int64) * HIDDEN
                total = 0.0
                for start in range(0, HIDDEN, TILE):
                    column = start + lanes
                    left = tl.load(a + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
                    right = tl.load(b + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
                    total += tl.sum(left * right)
                tl.store(out + assignment, total.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["assignments", "run"])
def scalar_sum_kernel(
    x, grad, indices, bin_ids, bins, padded_bins, out, assignments, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    last = tl.minimum(first + run, assignments)
    lanes = tl.arange(0, TILE)
    if first < last:
        for expert in range(tl.load(bin_ids + first).to(tl.int32), tl.load(bin_ids + last - 1).to(tl.int32) + 1):
            begin, end, shift = segment(expert, first, last, bins, padded_bins)
            for i in range(begin, end):
                assignment = tl.load(indices + i).to(tl.int32)
                a = x + (i + shift).to(tl.int64) * HIDDEN
                b = grad + (assignment // TOP_K).to(tl.int64) * HIDDEN
                total = tl.zeros([TILE], tl.float32)
                for start in range(0, HIDDEN, TILE):
                    column = start + lanes
                    left = tl.load(a + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
                    right = tl.load(b + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
                    total += left * right
                tl.store(out + assignment, tl.sum(total).to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["assignments", "run"])
def wgrad_lookup_kernel(
    x, grad, indices, bin_ids, bins, padded_bins, out, assignments, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    for i in range(first, tl.minimum(first + run, assignments)):
        assignment = tl.load(indices + i).to(tl.int32)
        row = padded_row(i, tl.load(bin_ids + i).to(tl.int32), bins, padded_bins)
        a = x + row.to(tl.int64) * HIDDEN
        b = grad + (assignment // TOP_K).to(tl.int64) * HIDDEN
        total = tl.sum(products(a, b, HIDDEN, TILE)[None, :], axis=1)
        tl.store(out + assignment + tl.arange(0, 1), total.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["assignments", "run"])
def wgrad_masked_scalar_kernel(
    x, grad, indices, bin_ids, bins, padded_bins, out, assignments, run,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * run
    for i in range(first, tl.minimum(first + run, assignments)):
        assignment = tl.load(indices + i).to(tl.int32)
        expert = tl.load(bin_ids + i).to(tl.int32)
        before = tl.load(bins + expert - 1, mask=expert > 0, other=0).to(tl.int32)
        row = i - before + tl.load(padded_bins + expert - 1, mask=expert > 0, other=0).to(tl.int32)
        a = x + row.to(tl.int64) * HIDDEN
        b = grad + (assignment // TOP_K).to(tl.int64) * HIDDEN
        total = tl.sum(products(a, b, HIDDEN, TILE)[None, :], axis=1)
        tl.store(out + assignment + tl.arange(0, 1), total.to(out.dtype.element_ty))


def _twin(op, impl, pattern: str, safe: bool = True) -> Twin:
    return Twin(functools.partial(op, impl=impl), pattern, safe)


_ONE_EACH = "one program a row instead of one a core"
_LOOKUP = "each row's place looked up, not once for all rows of an expert"
_MASKED = "lookup, the bins of the expert before loaded as masked scalars"
_ROWS = "several rows at once through a vector of row addresses"

GATHER = {
    "lookup": _twin(padded_gather, GatherEach(lookup_kernel), _LOOKUP),
    "masked-scalar": _twin(padded_gather, GatherEach(masked_scalar_kernel), _MASKED, safe=False),
    "row-vector": _twin(padded_gather, GatherBlocks(), _ROWS, safe=False),
    "int64": _twin(padded_gather, GatherEach(int64_kernel), "lookup, positions, rows and columns in int64"),
    "one-row-programs": _twin(padded_gather, GatherEach(one_each=True), _ONE_EACH),
    "small-tile": _twin(padded_gather, GatherEach(tile=SMALL), f"feature tiles of {SMALL} elements"),
    "weight-each-tile": _twin(
        padded_gather,
        GatherEach(weight_each_tile_kernel, tile=SMALL),
        "small-tile, the weight loaded again a tile",
    ),
    "weight-cast": _twin(
        padded_gather, GatherEach(weight_cast_kernel, bits=False), "weight widened by a scalar cast"
    ),
}
SCATTER = {
    "rolled": _twin(padded_scatter, Sum(given={"UNROLL": False}), "sum over top_k in a loop, not unrolled"),
    "small-tile": _twin(
        padded_scatter,
        Sum(given={"TILE": SMALL}),
        f"feature tiles of {SMALL}; rows and weights loaded again a tile",
    ),
}
WGRAD = {
    "lookup": _twin(padded_scatter_wgrad, WgradEach(wgrad_lookup_kernel), _LOOKUP),
    "masked-scalar": _twin(padded_scatter_wgrad, WgradEach(wgrad_masked_scalar_kernel), _MASKED, safe=False),
    "row-vector": _twin(padded_scatter_wgrad, WgradBlocks(), _ROWS, safe=False),
    "one-row-programs": _twin(padded_scatter_wgrad, WgradEach(one_each=True), _ONE_EACH),
    "small-tile": _twin(padded_scatter_wgrad, WgradEach(tile=SMALL), f"feature tiles of {SMALL} elements"),
    "sum-each-tile": _twin(
        padded_scatter_wgrad, WgradEach(sum_each_tile_kernel, tile=SMALL), "small-tile, summed to a scalar a tile"
    ),
    "scalar-sum": _twin(padded_scatter_wgrad, WgradEach(scalar_sum_kernel), "the row's sum stored as a scalar"),
}
