"""Sort assignments by expert, and count them: what the padded ops need to know of a routing decision.

argument           shape   dtype        meaning
expert_indices     [T, K]  int32/int64  expert of each assignment token * K + k
num_experts        int                  E
padding            int                  rows of an expert are rounded up to a multiple of it, 1 to 4096
result, all int32:
indices            [A]                  assignment ids sorted by expert, in order within an expert; A = T * K
bin_ids            [A]                  their experts
bins               [E]                  cumulative number of assignments
padded_bins        [E]                  cumulative number of rows, each expert's rounded up
tokens_per_expert  [E]                  number of assignments

Source of the algorithm: MegaBlocks, indices and padded bins; here a counting sort, which needs no keys.
Launch: each program counts one contiguous chunk, block by block; one program sums the counts; each program then
places its chunk, a block of assignments at a time, ranks within a block coming from a comparison of all its pairs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan


@triton.jit(do_not_specialize=["assignments", "run"])
def count_kernel(
    expert_indices, earlier, totals, assignments, run,
    EXPERTS: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each expert: assignments in earlier blocks of the chunk, and in the whole chunk."""
    chunk = tl.program_id(0)
    experts = tl.arange(0, BOUND)
    count = tl.zeros([BOUND], tl.int32)
    for block in range(chunk * run, tl.minimum((chunk + 1) * run, tl.cdiv(assignments, BLOCK))):
        assignment = block * BLOCK + tl.arange(0, BLOCK)
        expert = tl.load(expert_indices + assignment, mask=assignment < assignments, other=-1).to(tl.int32)
        tl.store(earlier + block * EXPERTS + experts, count, mask=experts < EXPERTS)
        count += tl.sum((expert[:, None] == experts[None, :]).to(tl.int32), axis=0)
    tl.store(totals + chunk * EXPERTS + experts, count, mask=experts < EXPERTS)


@triton.jit
def sum_of(totals, chunks, EXPERTS: tl.constexpr, BOUND: tl.constexpr, ROWS: tl.constexpr):
    """Sum of the first `chunks` rows of totals."""
    experts = tl.arange(0, BOUND)[None, :]
    count = tl.zeros([BOUND], tl.int32)
    for start in range(0, chunks, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        part = tl.load(totals + row * EXPERTS + experts, mask=(row < chunks) & (experts < EXPERTS), other=0)
        count += tl.sum(part, axis=0)
    return count


@triton.jit(do_not_specialize=["chunks"])
def cumulate_kernel(
    totals, bins, padded_bins, tokens_per_expert, chunks,
    PADDING: tl.constexpr, EXPERTS: tl.constexpr, BOUND: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    experts = tl.arange(0, BOUND)
    count = sum_of(totals, chunks, EXPERTS, BOUND, ROWS)
    # ceil(count / PADDING) in two steps: Ascend divides int32 vectors in fp32, exact only below 2**24.
    top = (count + (PADDING - 1)) >> 12
    low = (count + (PADDING - 1)) & 4095
    quotient = top // PADDING
    quotient = quotient * 4096 + ((top - quotient * PADDING) * 4096 + low) // PADDING
    tl.store(tokens_per_expert + experts, count, mask=experts < EXPERTS)
    tl.store(bins + experts, tl.cumsum(count, 0), mask=experts < EXPERTS)
    tl.store(padded_bins + experts, tl.cumsum(quotient * PADDING, 0), mask=experts < EXPERTS)


@triton.jit(do_not_specialize=["assignments", "run"])
def sort_kernel(
    expert_indices, earlier, totals, bins, tokens_per_expert, indices, bin_ids, assignments, run,
    EXPERTS: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    experts = tl.arange(0, BOUND)
    lanes = tl.arange(0, BLOCK)
    end = tl.load(bins + experts, mask=experts < EXPERTS, other=0)
    first = end - tl.load(tokens_per_expert + experts, mask=experts < EXPERTS, other=0)
    first += sum_of(totals, chunk, EXPERTS, BOUND, ROWS)
    for block in range(chunk * run, tl.minimum((chunk + 1) * run, tl.cdiv(assignments, BLOCK))):
        assignment = block * BLOCK + lanes
        expert = tl.load(expert_indices + assignment, mask=assignment < assignments, other=-1).to(tl.int32)
        # Read back, not carried through the loop: a carried row makes the compiler keep every temporary apart.
        next = first + tl.load(earlier + block * EXPERTS + experts, mask=experts < EXPERTS, other=0)
        chosen = (expert[:, None] == experts[None, :]).to(tl.int32)
        equal = (expert[:, None] == expert[None, :]).to(tl.int32)
        before = (lanes[None, :] < lanes[:, None]).to(tl.int32)
        place = tl.sum(chosen * next[None, :], axis=1) + tl.sum(equal * before, axis=1)
        known = (expert >= 0) & (expert < EXPERTS)
        tl.store(indices + place, assignment, mask=known)
        tl.store(bin_ids + place, expert, mask=known)


IMPLEMENTATIONS = {"count": None}


def route(
    expert_indices: torch.Tensor,
    num_experts: int,
    padding: int,
    *,
    impl: str = "count",
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(indices, bin_ids, bins, padded_bins, tokens_per_expert) of a routing decision, all on the device.

    Shapes and dtypes as in the table above.  Waits for nothing.  Raises TypeError or ValueError naming the
    argument, PlanError for sizes that do not fit the device.  validate=True also checks that every expert lies
    in [0, num_experts), which waits for the device; without it an assignment to another expert is in no bin.
    """
    check.tensor("expert_indices", expert_indices, dtypes=check.INTEGERS, shape=(None, None))
    assignments = check.number("expert_indices.numel()", expert_indices.numel(), most=2**31 - 1)
    check.number("expert_indices.shape[1]", expert_indices.shape[1], least=1)
    check.number("num_experts", num_experts, least=1)
    check.number("padding", padding, least=1, most=4096)
    check.number("assignments with their padding", assignments + num_experts * (padding - 1), most=2**31 - 1)
    check.choice("impl", impl, tuple(IMPLEMENTATIONS))
    if validate:
        bad = (expert_indices < 0) | (expert_indices >= num_experts)
        check.values("expert_indices", bad, expert_indices, f"an expert between 0 and {num_experts - 1}")
    made = plan.route(assignments, num_experts, device.of(expert_indices))

    def empty(*size: int) -> torch.Tensor:
        return torch.empty(*size, dtype=torch.int32, device=expert_indices.device)

    indices, bin_ids = empty(assignments), empty(assignments)
    bins, padded_bins, tokens_per_expert = (empty(num_experts) for _ in range(3))
    blocks = -(-assignments // made.constants["BLOCK"])
    earlier, totals = empty(blocks, num_experts), empty(made.grid[0], num_experts)
    sizes = {"EXPERTS": num_experts, "BOUND": made.constants["BOUND"]}
    block, several = {"BLOCK": made.constants["BLOCK"]}, {"ROWS": made.constants["ROWS"]}
    work = {"assignments": assignments, "run": made.run}
    count_args = {"expert_indices": expert_indices, "earlier": earlier, "totals": totals, **work}
    cumulate_args = {
        "totals": totals, "bins": bins, "padded_bins": padded_bins, "tokens_per_expert": tokens_per_expert,
        "chunks": made.grid[0],
    }  # fmt: skip
    sort_args = {
        "expert_indices": expert_indices, "earlier": earlier, "totals": totals, "bins": bins,
        "tokens_per_expert": tokens_per_expert, "indices": indices, "bin_ids": bin_ids, **work,
    }  # fmt: skip
    launch(count_kernel, made.grid, count_args, sizes | block, **made.options)
    launch(cumulate_kernel, (1,), cumulate_args, {"PADDING": padding} | sizes | several, **made.options)
    if assignments:
        launch(sort_kernel, made.grid, sort_args, sizes | block | several, **made.options)
    return indices, bin_ids, bins, padded_bins, tokens_per_expert
