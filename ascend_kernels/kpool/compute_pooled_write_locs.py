"""Cache slots of pools: pages hold 64 entries, and the pools of P token pages share the first of them.

argument       shape   dtype        meaning
page_table_64  [cols]  int32/int64  block id of each token page of one sequence
pool_ids       [n]     int32/int64  pools of that sequence
pool_size              int          P: a pool's page group starts at token page (id // 64) * P
result         [n]     int64        block id of the page group * 64 + id % 64

Source of the algorithm: vLLM, K-pool compression of the GLM-5-next indexer.
Launch: a program takes every so-many-th block of ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan

PAGE = 64


@triton.jit
def write_locs_kernel(page_table_64, pool_ids, out, pools, pool_size, BLOCK: tl.constexpr):
    for part in range(tl.program_id(0), tl.cdiv(pools, BLOCK), tl.num_programs(0)):
        lane = part * BLOCK + tl.arange(0, BLOCK)
        pool = tl.load(pool_ids + lane, mask=lane < pools, other=0).to(tl.int32)
        page = tl.load(page_table_64 + (pool >> 6) * pool_size, mask=lane < pools, other=0)
        tl.store(out + lane, (page.to(tl.int32) * 64 + (pool & 63)).to(tl.int64), mask=lane < pools)


@dataclass(frozen=True)
class Locate:
    """The one implementation."""

    def launch(self, page_table_64, pool_ids, out, size: int) -> None:
        """Launch on checked arguments."""
        pools = pool_ids.shape[0]
        made = plan.ids(pools, device.of(pool_ids))
        launch(
            write_locs_kernel,
            (made.programs,),
            {
                "page_table_64": page_table_64,
                "pool_ids": pool_ids,
                "out": out,
                "pools": pools,
                "pool_size": size,
            },
            {"BLOCK": made.rows},
        )


IMPLEMENTATIONS = {"lanes": Locate()}


def compute_pooled_write_locs(
    page_table_64: torch.Tensor,
    pool_ids: torch.Tensor,
    pool_size: int,
    *,
    impl: str | Locate = "lanes",
    validate: bool = False,
) -> torch.Tensor:
    """Flat cache slot of each pool, int64.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument.  validate=True
    also checks values, which waits for the device: pools inside the page table, block ids from 0 to 2**25.
    """
    check.tensor("pool_ids", pool_ids, dtypes=check.INTEGERS, shape=(None,))
    table = check.tensor("page_table_64", page_table_64, dtypes=check.INTEGERS, shape=(None,), like=pool_ids)
    size = check.number("pool_size", pool_size, least=1)
    locate = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        most = -(-len(table) // size) * PAGE
        bad = (pool_ids < 0) | (pool_ids >= most)
        check.values("pool_ids", bad, pool_ids, f"a pool between 0 and {most - 1}, inside the page table")
        check.values("page_table_64", (table < 0) | (table >= 2**25), table, "a block id between 0 and 2**25 - 1")
    out = torch.empty(pool_ids.shape, dtype=torch.int64, device=pool_ids.device)
    if pool_ids.shape[0]:
        locate.launch(page_table_64, pool_ids, out, size)
    return out
