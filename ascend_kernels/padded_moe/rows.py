"""Where each assignment's row lies in the padded layout: device code and argument checks the ops share.

Assignment `a = token * top_k + k` stands at sorted position i (`indices[i] == a`) and owns row
`i - bins[e - 1] + padded_bins[e - 1]` of the padded layout, e its expert (row i for e = 0).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # a triton without them: no device of it says that launches overlap
    gdc_launch_dependents = gdc_wait = None

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit
def padded_row(i, expert, bins, padded_bins):
    """Row of sorted position i, scalar or tile.  Expert 0 reads its own bin and adds nothing, which spares the
    masked scalar load that would make the scalar pipe wait."""
    before = tl.maximum(expert - 1, 0)
    shift = tl.load(padded_bins + before).to(tl.int32) - tl.load(bins + before).to(tl.int32)
    return i + shift * tl.minimum(expert, 1)


@triton.jit
def segment(expert, first, last, bins, padded_bins):
    """The expert's sorted positions within [first, last), begin and end, and what to add to one for its row."""
    before = tl.maximum(expert - 1, 0)
    start = tl.load(bins + before).to(tl.int32) * tl.minimum(expert, 1)
    shift = tl.load(padded_bins + before).to(tl.int32) * tl.minimum(expert, 1) - start
    return tl.maximum(first, start), tl.minimum(last, tl.load(bins + expert).to(tl.int32)), shift


@triton.jit
def weight_of(weights, assignment):
    """Weight of one assignment in fp32, from what `as_bits` gives."""
    return _widened(tl.load(weights + assignment))


@triton.jit
def weights_of(weights, assignment, inside):
    """As weight_of, for a tile of assignments."""
    return _widened(tl.load(weights + assignment, mask=inside, other=0))


@triton.jit
def _widened(weight):
    if weight.dtype == tl.int16:
        wide = (weight.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = weight.to(tl.float32)
    return wide


@triton.jit(do_not_specialize=["assignments", "run"])
def place_each_kernel(indices, bin_ids, bins, padded_bins, rows, assignments, run):
    first = tl.program_id(0) * run
    last = tl.minimum(first + run, assignments)
    lanes = tl.arange(0, 8)
    if first < last:
        for expert in range(tl.load(bin_ids + first).to(tl.int32), tl.load(bin_ids + last - 1).to(tl.int32) + 1):
            begin, end, shift = segment(expert, first, last, bins, padded_bins)
            for i in range(begin, end):
                # 32 bytes are filled and one element is stored: storing a scalar makes the scalar pipe wait.
                tl.store(
                    rows + tl.load(indices + i) + lanes, tl.zeros([8], tl.int32) + (i + shift), mask=lanes < 1
                )


@triton.jit(do_not_specialize=["assignments", "run"])
def place_block_kernel(
    indices, bin_ids, bins, padded_bins, rows, assignments, run, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        gdc_launch_dependents()
    first = tl.program_id(0) * run
    for block in range(first, tl.minimum(first + run, tl.cdiv(assignments, BLOCK))):
        i = block * BLOCK + tl.arange(0, BLOCK)
        inside = i < assignments
        expert = tl.load(bin_ids + i, mask=inside, other=0).to(tl.int32)
        row = padded_row(i, expert, bins, padded_bins)
        tl.store(rows + tl.load(indices + i, mask=inside, other=0), row, mask=inside)


@triton.jit
def wait_for_rows(OVERLAP: tl.constexpr):
    """Behind this, what `place` writes is there, also in a launch that overlaps with it."""
    if OVERLAP:
        gdc_wait()


def as_bits(weights: torch.Tensor | None) -> torch.Tensor | None:
    """bf16 weights as integers, for kernels to widen by their bits: a scalar cast from bf16 goes through UB on
    Ascend, and the scalar pipe waits for that twice a row.  Others unchanged."""
    return weights.view(torch.int16) if weights is not None and weights.dtype == torch.bfloat16 else weights


def place(
    indices: torch.Tensor, bin_ids: torch.Tensor, bins: torch.Tensor, padded_bins: torch.Tensor
) -> torch.Tensor:
    """int32 `[A]`: padded row of each assignment, by assignment id.  Waits for nothing.

    Where the device overlaps launches, one with the plan's `overlapping` options may begin before this one ends;
    its programs call `wait_for_rows` before they read the rows."""
    assignments = indices.shape[0]
    rows = torch.empty(assignments, dtype=torch.int32, device=indices.device)
    here = device.of(indices)
    made = plan.place(assignments, here)
    kernel = place_each_kernel if here.ascend else place_block_kernel
    args = {
        "indices": indices, "bin_ids": bin_ids, "bins": bins, "padded_bins": padded_bins, "rows": rows,
        "assignments": assignments, "run": made.run,
    }  # fmt: skip
    launch(kernel, made.grid, args, made.constants, **made.options)
    return rows


def check_routing(
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    weights: torch.Tensor | None,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    top_k: int,
    like: torch.Tensor,
) -> int:
    """Number of tokens after checking types, dtypes, shapes, devices and layout; never reads a value."""
    check.tensor("indices", indices, dtypes=check.INTEGERS, shape=(None,), like=like)
    assignments = check.number("len(indices)", indices.shape[0], most=2**31 - 1)
    check.tensor("bin_ids", bin_ids, dtypes=check.INTEGERS, shape=indices.shape, like=like)
    if weights is not None:
        check.tensor("weights", weights, dtypes=FLOATS, shape=indices.shape, like=like)
    check.tensor("bins", bins, dtypes=check.INTEGERS, shape=(None,), like=like)
    check.number("len(bins)", bins.shape[0], least=1)
    check.tensor("padded_bins", padded_bins, dtypes=check.INTEGERS, shape=bins.shape, like=like)
    check.number("top_k", top_k, least=1)
    if assignments % top_k:
        raise ValueError(f"indices: expected a multiple of top_k = {top_k} assignments, got {assignments}")
    return assignments // top_k


def check_features(name: str, value: torch.Tensor, rows: int | None = None, like: torch.Tensor | None = None):
    """`value` as a float tensor `[rows, hidden]`, of the hidden size and dtype of `like`."""
    width = None if like is None else like.shape[1]
    check.tensor(name, value, dtypes=FLOATS, shape=(rows, width), like=like)
    length, hidden = value.shape
    check.number(f"{name}.shape[0]", length, most=2**31 - 1)
    check.number(f"{name}.shape[1]", hidden, least=1)
    if like is not None and value.dtype != like.dtype:
        raise TypeError(f"{name}: expected dtype {_word(like.dtype)} as x, got {_word(value.dtype)}")
    return value


def check_values(
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    rows_name: str,
    rows: int | None,
) -> None:
    """A routing that adds up, inside `rows` padded rows.  Waits for the device."""
    assignments, experts = len(indices), len(bins)
    for name, value in (("bins", bins), ("padded_bins", padded_bins)):
        before = torch.cat([value.new_zeros(1), value[:-1]])
        check.values(name, value < before, value, "values that never fall")
    counts = torch.diff(bins.long(), prepend=bins.new_zeros(1).long())
    room = torch.diff(padded_bins.long(), prepend=bins.new_zeros(1).long())
    if int(bins[-1]) != assignments:
        raise ValueError(
            f"bins[{experts - 1}]: expected {assignments}, the number of assignments, got {int(bins[-1])}"
        )
    short = room < counts
    if bool(short.any()):
        e = int(short.nonzero()[0])
        raise ValueError(
            f"padded_bins[{e}]: expected room for the {int(counts[e])} assignments of expert {e}, "
            f"got {int(room[e])} rows"
        )
    check.values(
        "bin_ids", (bin_ids < 0) | (bin_ids >= experts), bin_ids, f"an expert between 0 and {experts - 1}"
    )
    sorted_ids = torch.repeat_interleave(torch.arange(experts, device=bins.device), counts)
    check.values("bin_ids", bin_ids != sorted_ids, bin_ids, "the expert whose bin holds this position")
    check.values(
        "indices",
        (indices < 0) | (indices >= assignments),
        indices,
        f"an assignment between 0 and {assignments - 1}",
    )
    order = indices.sort(stable=True)
    repeated = torch.zeros_like(indices, dtype=torch.bool)
    repeated[order.indices[1:]] = order.values[1:] == order.values[:-1]
    check.values("indices", repeated, indices, "each assignment once")
    if rows is not None and rows < int(padded_bins[-1]):
        raise ValueError(f"{rows_name}: expected at least {int(padded_bins[-1])}, the padded length, got {rows}")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
