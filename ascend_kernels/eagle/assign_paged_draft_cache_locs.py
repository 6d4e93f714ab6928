"""Token slots of a draft whose branches have pages of their own, and which slots to copy for them.

argument          shape                     dtype        meaning
req_pool_indices  [bs]                      int32/int64  row of each request
req_to_token      [pool_rows, pool_len]     int32/int64  the pool, only read
seq_lens          [bs]                      int32/int64  tokens each request has
out_cache_loc     [bs * topk * num_steps]   any integer  written: num_steps slots a branch, branches in order
copy_source       [bs * (topk-1) * page]    any integer  written: slots of the request's last partial page, once
                                                         for each branch but the first; -1 where there is none
copy_target       [bs * (topk-1) * page]    any integer  written: where they go in the branch's first page, or -1
topk, num_steps, page_size  int             -            branches, draft steps, tokens a page

With pages a branch cannot start in the middle of a page another branch writes.  So each branch takes
pages = ceil((seq_len % page + num_steps) / page), branch b those from column
seq_len - seq_len % page + b * pages * page on; branch 0 continues the last partial page, the others get a copy
of it.  No slot is written twice and none that is copied from is written.

Source of the algorithm: SGLang, speculative decoding (EAGLE v2).
Launch: one request a program; all runs are contiguous in the request's row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan


@triton.jit
def paged_kernel(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, copy_source, copy_target,
    requests, pool_len, num_steps, page_size,
    TOPK: tl.constexpr, STEPS: tl.constexpr, PAGE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    step = tl.arange(0, STEPS)
    place = tl.arange(0, PAGE)
    for request in range(tl.program_id(0), requests, PROGRAMS):
        length = tl.load(seq_lens + request).to(tl.int32)
        row = tl.load(req_pool_indices + request).to(tl.int64)
        rest = length - length // page_size * page_size
        span = (rest + num_steps + page_size - 1) // page_size * page_size
        start = req_to_token + row * pool_len + (length - rest)
        drafts = out_cache_loc + request * TOPK * num_steps
        shared = tl.load(start + place, mask=place < rest, other=-1)
        for branch in range(0, TOPK):
            slots = tl.load(start + branch * span + rest + step, mask=step < num_steps)
            tl.store(drafts + branch * num_steps + step, slots, mask=step < num_steps)
        for branch in range(1, TOPK):
            own = tl.load(start + branch * span + place, mask=place < rest, other=-1)
            copies = (request * (TOPK - 1) + branch - 1) * page_size
            tl.store(copy_source + copies + place, shared, mask=place < page_size)
            tl.store(copy_target + copies + place, own, mask=place < page_size)


@dataclass(frozen=True)
class PagedDraft:
    """One implementation, with a kernel that takes the arguments of `paged_kernel`."""

    kernel: Any

    def launch(self, tensors: dict[str, torch.Tensor], topk: int, num_steps: int, page_size: int) -> None:
        """Launch on checked arguments, in the order of the kernel's signature."""
        requests, pool_len = tensors["seq_lens"].shape[0], tensors["req_to_token"].shape[1]
        made = plan.paged(requests, max(page_size, num_steps), device.of(tensors["seq_lens"]))
        sizes = {"requests": requests, "pool_len": pool_len, "num_steps": num_steps, "page_size": page_size}
        launch(
            self.kernel,
            (made.programs,),
            {**tensors, **sizes},
            {
                "TOPK": topk,
                "STEPS": plan.power_of_two(num_steps),
                "PAGE": plan.power_of_two(page_size),
                "PROGRAMS": made.programs,
            },
        )


IMPLEMENTATIONS = {"runs": PagedDraft(paged_kernel)}


def draft_room(seq_len: int, topk: int, num_steps: int, page_size: int) -> int:
    """Columns behind `seq_len` that a draft of a request uses."""
    if page_size == 1 or topk == 1:
        return topk * num_steps
    rest = seq_len % page_size
    return topk * (-(-(rest + num_steps) // page_size) * page_size) - rest


def assign_paged_draft_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    copy_source: torch.Tensor,
    copy_target: torch.Tensor,
    topk: int,
    num_steps: int,
    page_size: int,
    *,
    impl: str | PagedDraft = "runs",
    validate: bool = False,
) -> None:
    """Draft slots of every branch, and the copies its first page needs.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument, PlanError for
    pages that do not fit.  validate=True also checks, waiting for the device, that rows lie in the pool and drafts
    in their rows.
    """
    pool = check.tensor("req_to_token", req_to_token, dtypes=check.INTEGERS, shape=(None, None))
    rows = check.tensor("req_pool_indices", req_pool_indices, dtypes=check.INTEGERS, shape=(None,), like=pool)
    check.tensor("seq_lens", seq_lens, dtypes=check.INTEGERS, shape=rows.shape, like=pool)
    requests = rows.shape[0]
    topk = check.number("topk", topk, least=1)
    num_steps = check.number("num_steps", num_steps, least=1)
    page_size = check.number("page_size", page_size, least=1)
    total = check.number("len(out_cache_loc)", requests * topk * num_steps, most=2**31 - 1)
    copies = check.number("len(copy_source)", requests * (topk - 1) * page_size, most=2**31 - 1)
    check.tensor("out_cache_loc", out_cache_loc, dtypes=check.ANY_INTEGER, shape=(total,), like=pool)
    check.tensor("copy_source", copy_source, dtypes=check.INTEGERS, shape=(copies,), like=pool)
    check.tensor("copy_target", copy_target, dtypes=check.INTEGERS, shape=(copies,), like=pool)
    made = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        bad = (rows < 0) | (rows >= pool.shape[0])
        check.values("req_pool_indices", bad, rows, f"a row between 0 and {pool.shape[0] - 1}")
        lengths = seq_lens.long()  # the end of a length near 2**31 wraps in int32
        rest = lengths % page_size
        span = -(-(rest + num_steps) // page_size) * page_size
        end = lengths - rest + topk * span
        bad = (seq_lens < 0) | (end > pool.shape[1])
        check.values("seq_lens", bad, seq_lens, f"a length whose draft pages fit {pool.shape[1]} columns")
    if requests:
        tensors = {
            "req_pool_indices": rows,
            "req_to_token": pool,
            "seq_lens": seq_lens,
            "out_cache_loc": out_cache_loc,
            "copy_source": copy_source,
            "copy_target": copy_target,
        }
        made.launch(tensors, topk, num_steps, page_size)
