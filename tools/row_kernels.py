"""The obvious kernel of an op: one program a row, no thought of the device.  A baseline, not a twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gpu_padded_moe as moe
import torch
import triton
import triton.language as tl

from ascend_kernels.harness.launch import GRID_LIMIT, launch

BLOCK = 128


@triton.jit
def assign_rows_kernel(rows, pool, start, end, out, pool_len, INTO: tl.constexpr, B: tl.constexpr):
    r = tl.program_id(0)
    source = 0
    for i in range(r):
        source += tl.load(end + i) - tl.load(start + i)
    first = tl.load(start + r)
    length = tl.load(end + r) - first
    line = pool + tl.load(rows + r).to(tl.int64) * pool_len + first
    for begin in range(0, length, B):
        c = begin + tl.arange(0, B)
        if INTO:
            tl.store(line + c, tl.load(out + source + c, mask=c < length), mask=c < length)
        else:
            tl.store(out + source + c, tl.load(line + c, mask=c < length), mask=c < length)


def _spans(into: bool) -> Callable[..., None]:
    def call(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, validate=False):
        args = {
            "rows": req_pool_indices, "pool": req_to_token, "start": start_offset, "end": end_offset,
            "out": out_cache_loc, "pool_len": req_to_token.shape[1],
        }  # fmt: skip
        launch(assign_rows_kernel, (len(req_pool_indices),), args, {"INTO": into, "B": BLOCK})

    return call


def _go(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], constants: dict[str, Any]) -> None:
    if math.prod(grid) > GRID_LIMIT:  # which the obvious kernel knows nothing of
        kernel[grid](*args.values(), **constants)
    else:
        launch(kernel, grid, args, constants)


def gather(x, indices, bin_ids, weights, bins, padded_bins, top_k, output_rows=None, validate=False):
    out = torch.zeros(output_rows or int(padded_bins[-1]), x.shape[1], dtype=x.dtype, device=x.device)
    size = moe.block(x.shape[1])
    args = {"x": x, "i": indices, "e": bin_ids, "b": bins, "p": padded_bins, "out": out}
    _go(moe.plain_gather, moe.grid(len(indices)), args, {"K": top_k, "H": x.shape[1], "B": size})
    return out


def scatter(x, indices, bin_ids, weights, bins, padded_bins, top_k, validate=False):
    hidden, size = x.shape[1], moe.block(x.shape[1])
    out = torch.empty(len(indices) // top_k, top_k, hidden, dtype=x.dtype, device=x.device)
    args = {"x": x, "i": indices, "e": bin_ids, "w": weights, "b": bins, "p": padded_bins, "out": out}
    _go(moe.plain_scatter, moe.grid(len(indices)), args, {"H": hidden, "B": size})
    return out.sum(1) if top_k > 1 else out[:, 0]


def wgrad(x, grad, indices, bin_ids, bins, padded_bins, top_k, dtype=None, validate=False):
    out = torch.empty(len(indices), dtype=dtype or x.dtype, device=x.device)
    args = {"x": x, "g": grad, "i": indices, "e": bin_ids, "b": bins, "p": padded_bins, "out": out}
    constants = {"K": top_k, "H": x.shape[1], "B": moe.block(x.shape[1])}
    _go(moe.plain_wgrad, moe.grid(len(indices)), args, constants)
    return out


def of(arguments: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Op -> its one-program-a-row kernel, of the ops and arguments that have one."""
    found: dict[str, Callable[..., Any]] = {
        "assign_req_to_token_pool": _spans(True),
        "assign_extend_cache_locs": _spans(False),
        "padded_scatter_wgrad": wgrad,
    }
    if arguments.get("weights") is None:
        found["padded_gather"] = gather
    else:
        found["padded_scatter"] = scatter
    return found
