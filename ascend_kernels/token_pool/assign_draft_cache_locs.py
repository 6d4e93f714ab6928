"""Read the token slots of a speculative draft out of the request-to-token pool (page size 1).

argument          shape                     dtype        meaning
req_pool_indices  [bs]                      int32/int64  row of each request; rows are distinct
req_to_token      [pool_rows, pool_len]     int32/int64  the pool, only read
seq_lens          [bs]                      int32/int64  first draft column of each request
out_cache_loc     [bs * topk * num_steps]   any integer  written: topk * num_steps slots a request

Source of the algorithm: SGLang, speculative decoding (EAGLE v2).
Launch: programs that each take every so-many-th request; all drafts are equally long, so no sum is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan, spans


@triton.jit
def draft_kernel(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, requests, length, pool_len,
    BLOCK: tl.constexpr,
):  # fmt: skip
    for request in range(tl.program_id(0), requests, tl.num_programs(0)):
        start = tl.load(seq_lens + request).to(tl.int64)
        row = tl.load(req_pool_indices + request).to(tl.int64)
        source = req_to_token + row * pool_len + start
        target = out_cache_loc + request * length
        for i in range(0, tl.cdiv(length, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            slots = tl.load(source + offset, mask=offset < length)
            tl.store(target + offset, slots, mask=offset < length)


@dataclass(frozen=True)
class Draft:
    """One implementation: a kernel with the arguments of `draft_kernel`."""

    kernel: Any

    def launch(self, req_pool_indices, req_to_token, seq_lens, out_cache_loc, length: int) -> None:
        """Launch on checked arguments."""
        requests = req_pool_indices.shape[0]
        made = plan.drafts(requests, length, device.of(req_to_token))
        launch(
            self.kernel,
            made.grid[:1],
            {
                "req_pool_indices": req_pool_indices,
                "req_to_token": req_to_token,
                "seq_lens": seq_lens,
                "out_cache_loc": out_cache_loc,
                "requests": requests,
                "length": length,
                "pool_len": req_to_token.shape[1],
            },
            {"BLOCK": made.block},
            **made.options,
        )


IMPLEMENTATIONS = {"derived": Draft(draft_kernel)}


def assign_draft_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    topk: int,
    num_steps: int,
    *,
    impl: str | Draft = "derived",
    validate: bool = False,
) -> None:
    """`out_cache_loc[r*n:(r+1)*n]` := row `req_pool_indices[r]`, columns `[seq_len_r, seq_len_r + n)`,
    n = topk * num_steps.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument.
    validate=True also checks values, which waits for the device: rows distinct and inside the pool, drafts
    inside their rows.
    """
    pool = check.tensor("req_to_token", req_to_token, dtypes=check.INTEGERS, shape=(None, None))
    rows = check.tensor("req_pool_indices", req_pool_indices, dtypes=check.INTEGERS, shape=(None,), like=pool)
    check.tensor("seq_lens", seq_lens, dtypes=check.INTEGERS, shape=rows.shape, like=pool)
    length = check.number("topk", topk, least=1) * check.number("num_steps", num_steps, least=1)
    total = check.number("len(out_cache_loc)", rows.shape[0] * length, most=2**31 - 1)
    check.tensor("out_cache_loc", out_cache_loc, dtypes=check.ANY_INTEGER, shape=(total,), like=pool)
    draft = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        spans.check_rows(rows, pool.shape[0])
        most = pool.shape[1] - length
        bad = (seq_lens < 0) | (seq_lens > most)
        check.values("seq_lens", bad, seq_lens, f"between 0 and {most}, so that {length} draft slots fit the row")
    if total:
        draft.launch(req_pool_indices, req_to_token, seq_lens, out_cache_loc, length)
