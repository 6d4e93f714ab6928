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
Launch: each program counts one contiguous chunk; one program sums the counts; each program then places its chunk,
a block of assignments at a time, ranks within a block coming from a comparison of all its pairs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan


@triton.jit
def block_of(expert_indices, block, assignments, BLOCK: tl.constexpr, BOUND: tl.constexpr):
    """A block's assignment ids, experts, and one row an assignment with a 1 at its expert."""
    assignment = block * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(expert_indices + assignment, mask=assignment < assignments, other=-1).to(tl.int32)
    return assignment, expert, (expert[:, None] == tl.arange(0, BOUND)[None, :]).to(tl.int32)


@triton.jit(do_not_specialize=["assignments", "run"])
def count_kernel(
    expert_indices, counts, assignments, run, EXPERTS: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    experts = tl.arange(0, BOUND)
    total = tl.zeros([BOUND], tl.int32)
    for block in range(chunk * run, tl.minimum((chunk + 1) * run, tl.cdiv(assignments, BLOCK))):
        _, _, chosen = block_of(expert_indices, block, assignments, BLOCK, BOUND)
        total += tl.sum(chosen, axis=0)
    tl.store(counts + chunk * EXPERTS + experts, total, mask=experts < EXPERTS)


@triton.jit
def total_of(counts, chunks, EXPERTS: tl.constexpr, BOUND: tl.constexpr, ROWS: tl.constexpr):
    """Sum of the first `chunks` rows of counts."""
    experts = tl.arange(0, BOUND)[None, :]
    total = tl.zeros([BOUND], tl.int32)
    for start in range(0, chunks, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        part = tl.load(counts + row * EXPERTS + experts, mask=(row < chunks) & (experts < EXPERTS), other=0)
        total += tl.sum(part, axis=0)
    return total


@triton.jit(do_not_specialize=["chunks"])
def cumulate_kernel(
    counts, bins, padded_bins, tokens_per_expert, chunks,
    PADDING: tl.constexpr, EXPERTS: tl.constexpr, BOUND: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    experts = tl.arange(0, BOUND)
    count = total_of(counts, chunks, EXPERTS, BOUND, ROWS)
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
    expert_indices, counts, bins, tokens_per_expert, indices, bin_ids, assignments, run,
    EXPERTS: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    experts = tl.arange(0, BOUND)
    lanes = tl.arange(0, BLOCK)
    end = tl.load(bins + experts, mask=experts < EXPERTS, other=0)
    next = end - tl.load(tokens_per_expert + experts, mask=experts < EXPERTS, other=0)
    next += total_of(counts, chunk, EXPERTS, BOUND, ROWS)
    for block in range(chunk * run, tl.minimum((chunk + 1) * run, tl.cdiv(assignments, BLOCK))):
        assignment, expert, chosen = block_of(expert_indices, block, assignments, BLOCK, BOUND)
        equal = (expert[:, None] == expert[None, :]).to(tl.int32)
        earlier = (lanes[None, :] < lanes[:, None]).to(tl.int32)
        place = tl.sum(chosen * next[None, :], axis=1) + tl.sum(equal * earlier, axis=1)
        known = tl.sum(chosen, axis=1) > 0
        tl.store(indices + place, assignment, mask=known)
        tl.store(bin_ids + place, expert, mask=known)
        next += tl.sum(chosen, axis=0)


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
    made = plan.route(assignments, num_experts, expert_indices.element_size(), device.of(expert_indices))

    def empty(*size: int) -> torch.Tensor:
        return torch.empty(*size, dtype=torch.int32, device=expert_indices.device)

    indices, bin_ids = empty(assignments), empty(assignments)
    bins, padded_bins, tokens_per_expert = (empty(num_experts) for _ in range(3))
    counts = empty(made.grid[0], num_experts)
    sizes = {"EXPERTS": num_experts, "BOUND": made.constants["BOUND"]}
    block, several = {"BLOCK": made.constants["BLOCK"]}, {"ROWS": made.constants["ROWS"]}
    work = {"assignments": assignments, "run": made.run}
    launch(
        count_kernel,
        made.grid,
        {"expert_indices": expert_indices, "counts": counts} | work,
        sizes | block,
        **made.options,
    )
    launch(
        cumulate_kernel,
        (1,),
        {
            "counts": counts, "bins": bins, "padded_bins": padded_bins, "tokens_per_expert": tokens_per_expert,
            "chunks": made.grid[0],
        },
        {"PADDING": padding} | sizes | several,
        **made.options,
    )  # fmt: skip
    if assignments:
        launch(
            sort_kernel,
            made.grid,
            {
                "expert_indices": expert_indices, "counts": counts, "bins": bins,
                "tokens_per_expert": tokens_per_expert, "indices": indices, "bin_ids": bin_ids,
            } | work,
            sizes | block | several,
            **made.options,
        )  # fmt: skip
    return indices, bin_ids, bins, padded_bins, tokens_per_expert
