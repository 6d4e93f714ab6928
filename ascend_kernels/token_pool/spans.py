"""What the two span copies share: their argument checks and the way they are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..harness import check, device
from ..harness.launch import launch
from . import plan


@dataclass(frozen=True)
class Copy:
    """One implementation of a span copy: a kernel with the arguments of `assign_kernel`, its block if the block is
    part of the implementation, and which way it copies, `plan.INTO` the pool or `plan.OUT` of it."""

    kernel: Any
    block: int | None = None
    way: str = plan.INTO

    def launch(
        self,
        req_pool_indices: torch.Tensor,
        req_to_token: torch.Tensor,
        start_offset: torch.Tensor,
        end_offset: torch.Tensor,
        out_cache_loc: torch.Tensor,
        where: device.Device,
    ) -> None:
        """Launch on checked arguments.  Raises PlanError before anything is written."""
        requests, total = req_pool_indices.shape[0], out_cache_loc.shape[0]
        if requests == 0 or total == 0:
            return
        made = plan.spans(
            requests, total, max(req_to_token.element_size(), out_cache_loc.element_size()),
            start_offset.element_size(), where, self.block, self.way,
        )  # fmt: skip
        launch(
            self.kernel,
            made.grid,
            {
                "req_pool_indices": req_pool_indices,
                "req_to_token": req_to_token,
                "start_offset": start_offset,
                "end_offset": end_offset,
                "out_cache_loc": out_cache_loc,
                "pool_len": req_to_token.shape[1],
            },
            {"BOUND": made.bound, "BLOCK": made.block},
            **made.options,
        )


def check_arguments(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> None:
    """Types, dtypes, shapes, devices and layout; never reads a value."""
    pool = check.tensor("req_to_token", req_to_token, dtypes=check.INTEGERS, shape=(None, None))
    rows = check.tensor("req_pool_indices", req_pool_indices, dtypes=check.INTEGERS, shape=(None,), like=pool)
    check.tensor("start_offset", start_offset, dtypes=check.INTEGERS, shape=rows.shape, like=pool)
    check.tensor("end_offset", end_offset, dtypes=check.INTEGERS, shape=rows.shape, like=pool)
    if start_offset.dtype != end_offset.dtype:
        raise TypeError(f"end_offset: expected dtype {start_offset.dtype} as start_offset, got {end_offset.dtype}")
    check.tensor("out_cache_loc", out_cache_loc, dtypes=check.ANY_INTEGER, shape=(None,), like=pool)
    check.number("len(out_cache_loc)", out_cache_loc.shape[0], most=2**31 - 1)


def check_values(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> None:
    """Spans inside the pool, rows distinct and inside it, lengths that add up.  Waits for the device."""
    pool_rows, pool_len = req_to_token.shape
    check_rows(req_pool_indices, pool_rows)
    check.values("start_offset", start_offset < 0, start_offset, "at least 0")
    check.values("end_offset", end_offset < start_offset, end_offset, "at least start_offset of the same request")
    check.values("end_offset", end_offset > pool_len, end_offset, f"at most {pool_len}, the length of a pool row")
    total = int((end_offset.long() - start_offset.long()).sum())
    if total != len(out_cache_loc):
        raise ValueError(
            f"out_cache_loc: expected {total} values, the sum of end - start, got {len(out_cache_loc)}"
        )


def check_rows(req_pool_indices: torch.Tensor, pool_rows: int) -> None:
    """Rows inside the pool, each at most once."""
    rows = req_pool_indices
    check.values(
        "req_pool_indices", (rows < 0) | (rows >= pool_rows), rows, f"a row between 0 and {pool_rows - 1}"
    )
    order = rows.sort(stable=True)
    repeated = torch.zeros_like(rows, dtype=torch.bool)
    repeated[order.indices[1:]] = order.values[1:] == order.values[:-1]
    check.values("req_pool_indices", repeated, rows, "distinct rows")
