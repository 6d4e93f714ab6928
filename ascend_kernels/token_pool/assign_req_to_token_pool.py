"""Write each request's new token slots into its row of the request-to-token pool.

argument          shape                  dtype        meaning
req_pool_indices  [bs]                   int32/int64  row of each request; rows are distinct
req_to_token      [pool_rows, pool_len]  int32/int64  the pool, written in place
start_offset      [bs]                   int32/int64  first column of each request's span
end_offset        [bs]                   int32/int64  column after the last
out_cache_loc     [sum(end - start)]     any integer  token slots, spans of the requests one after another

Source of the algorithm: SGLang, speculative decoding (EAGLE v2).
Launch: grid (request, part).  A program sums the lengths of earlier requests, then copies every part-th block
of its own span.  Offsets are derived from the loop index: carried ones compile badly or unsafely on Ascend in
several forms (see twins.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import in_interpreter
from ..harness.spec import Unsupported
from . import spans


@triton.jit
def assign_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    part = tl.program_id(1)
    lanes = tl.arange(0, BOUND)
    starts = tl.load(start_offset + lanes, mask=lanes < request, other=0).to(tl.int32)
    ends = tl.load(end_offset + lanes, mask=lanes < request, other=0).to(tl.int32)
    start = tl.load(start_offset + request).to(tl.int32)
    length = tl.load(end_offset + request).to(tl.int32) - start
    row = tl.load(req_pool_indices + request).to(tl.int64)
    # Behind the scalar loads, which then overlap with the two copies it waits for.
    source = tl.sum(ends - starts)
    target = req_to_token + row * pool_len + start
    for i in range(part, tl.cdiv(length, BLOCK), tl.num_programs(1)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        slots = tl.load(out_cache_loc + source + offset, mask=offset < length)
        tl.store(target + offset, slots, mask=offset < length)


@triton.jit
def span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND: tl.constexpr):
    request = tl.program_id(0)
    lanes = tl.arange(0, BOUND)
    starts = tl.load(start_offset + lanes, mask=lanes < request, other=0).to(tl.int32)
    ends = tl.load(end_offset + lanes, mask=lanes < request, other=0).to(tl.int32)
    start = tl.load(start_offset + request).to(tl.int32)
    length = tl.load(end_offset + request).to(tl.int32) - start
    row = tl.load(req_pool_indices + request).to(tl.int64)
    return tl.sum(ends - starts), row * pool_len + start, length


@triton.jit
def prefetch_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.num_programs(1)
    source, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    part = tl.program_id(1)
    first = part * BLOCK + tl.arange(0, BLOCK)
    slots = tl.load(out_cache_loc + source + first, mask=first < length)
    for i in range(part, tl.cdiv(length, BLOCK), parts):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        ahead = (i + parts) * BLOCK + tl.arange(0, BLOCK)
        coming = tl.load(out_cache_loc + source + ahead, mask=ahead < length)
        tl.store(req_to_token + target + offset, slots, mask=offset < length)
        slots = coming


@dataclass(frozen=True)
class Sized:
    """Of two copies the one that is faster on a GPU for so many requests: `few` up to `most` of them."""

    few: spans.Copy
    many: spans.Copy
    most: int

    def launch(
        self,
        req_pool_indices: torch.Tensor,
        req_to_token: torch.Tensor,
        start_offset: torch.Tensor,
        end_offset: torch.Tensor,
        out_cache_loc: torch.Tensor,
        where: device.Device,
    ) -> None:
        """Launch on checked arguments."""
        if where.ascend and not in_interpreter():
            raise Unsupported("impl: sized is for a GPU; on Ascend use impl='derived', its default")
        form = self.few if req_pool_indices.shape[0] <= self.most else self.many
        form.launch(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, where)


# Measured with 1, 8, 32 and with 256 requests: see docs/devices.md.
IMPLEMENTATIONS = {
    "derived": spans.Copy(assign_kernel),
    "sized": Sized(spans.Copy(prefetch_kernel), spans.Copy(assign_kernel), most=32),
}


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    *,
    impl: str | spans.Copy | Sized | None = None,
    validate: bool = False,
) -> None:
    """In place: row `req_pool_indices[r]`, columns `[start_r, end_r)` := the next values of `out_cache_loc`.

    Shapes and dtypes as in the table above.  impl: by default `derived` on Ascend, `sized` on a GPU.  Raises
    TypeError or ValueError naming the argument, PlanError for a batch that does not fit the device.  validate=True
    also checks values, which waits for the device: 0 <= start <= end <= pool_len, distinct rows inside the pool,
    total length equal to len(out_cache_loc).
    """
    spans.check_arguments(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc)
    where = device.of(req_to_token)
    if impl is None:
        impl = "derived" if where.ascend else "sized"
    copy = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        spans.check_values(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc)
    copy.launch(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, where)
