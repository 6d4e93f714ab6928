"""Token ids of the selected pools, and of the tokens after the last whole pool.

argument  shape   dtype        meaning
pool_ids  [R, G]  int32/int64  selected pools of each row; < 0: none
seq_lens  [R]     int32/int64  tokens of each row's sequence
pool_size         int          P, a power of two
within_seq        bool         also leave out pools at or beyond seq_len // P
result    [R, G * P + P - 1]  int32  P tokens a pool, then the open pool's tokens; -1: none

Source of the algorithm: vLLM, K-pool compression of the GLM-5-next indexer.
Launch: a program takes every so-many-th block of groups of every row.  The group is an axis of the block, so that
no lane has an address of its own; what is left out becomes -1 by arithmetic, since an integer compare is scalar on
Ascend.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan


@triton.jit
def expand_kernel(
    pool_ids, seq_lens, out, rows, groups, parts,
    P: tl.constexpr, BLOCK: tl.constexpr, WITHIN_SEQ: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, P)
    for work in range(tl.program_id(0), rows * parts, tl.num_programs(0)):
        row, part = work // parts, work % parts
        length = tl.load(seq_lens + row).to(tl.int32)
        whole = length // P
        target = out + tl.cast(row, tl.int64) * (groups * P + P - 1)
        group = part * BLOCK + tl.arange(0, BLOCK)
        chosen = tl.load(pool_ids + tl.cast(row, tl.int64) * groups + group, mask=group < groups, other=-1)
        pool = tl.maximum(chosen.to(tl.int32), -1)
        token = tl.maximum(pool[:, None] * P + place[None, :], -1)
        if WITHIN_SEQ:
            token = token | ((whole - 1 - pool) >> 31)[:, None]
        column = group[:, None] * P + place[None, :]
        tl.store(target + column, token, mask=(group < groups)[:, None])
        if P > 1:
            if part == parts - 1:
                open_token = (whole * P + place) | ((length - whole * P - 1 - place) >> 31)
                tl.store(target + groups * P + place, open_token, mask=place < P - 1)


@dataclass(frozen=True)
class Expand:
    """The one implementation."""

    def launch(self, pool_ids, seq_lens, out, size: int, within_seq: bool) -> None:
        """Launch on checked arguments."""
        rows, groups = pool_ids.shape
        where = device.of(pool_ids)
        made = plan.groups(rows, groups, size, where)
        launch(
            expand_kernel,
            (made.programs,),
            {
                "pool_ids": pool_ids,
                "seq_lens": seq_lens,
                "out": out,
                "rows": rows,
                "groups": groups,
                "parts": max(1, -(-groups // made.rows)),
            },
            {"P": size, "BLOCK": made.rows, "WITHIN_SEQ": within_seq},
            **({} if where.ascend else {"num_warps": made.warps}),
        )


IMPLEMENTATIONS = {"block": Expand()}


def expand_pools_and_append_tail(
    pool_ids: torch.Tensor,
    seq_lens: torch.Tensor,
    pool_size: int,
    within_seq: bool = False,
    *,
    impl: str | Expand = "block",
    validate: bool = False,
) -> torch.Tensor:
    """`expand_pools_to_tokens` and `append_tail_to_topk` in one launch, without page table and offsets.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument.  validate=True
    also checks values, which waits for the device: lengths of at least 0, token ids below 2**31.
    """
    check.tensor("pool_ids", pool_ids, dtypes=check.INTEGERS, shape=(None, None))
    check.tensor("seq_lens", seq_lens, dtypes=check.INTEGERS, shape=pool_ids.shape[:1], like=pool_ids)
    size = check.number("pool_size", pool_size, least=1)
    if size & (size - 1):
        raise ValueError(f"pool_size: expected a power of two, got {size}")
    rows, groups = pool_ids.shape
    width = check.number("columns of the result", groups * size + size - 1, most=2**31 - 1)
    expand = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        most = 2**31 // size
        check.values("pool_ids", pool_ids.long() >= most, pool_ids, f"a pool below {most}")
        bad = (seq_lens < 0) | (seq_lens.long() >= 2**31)
        check.values("seq_lens", bad, seq_lens, "at least 0 and below 2**31")
    out = torch.empty((rows, width), dtype=torch.int32, device=pool_ids.device)
    if rows and width:
        expand.launch(pool_ids, seq_lens, out, size, bool(within_seq))
    return out
