"""Read each request's span of token slots out of the request-to-token pool.

argument          shape                  dtype        meaning
req_pool_indices  [bs]                   int32/int64  row of each request; rows are distinct
req_to_token      [pool_rows, pool_len]  int32/int64  the pool, only read
start_offset      [bs]                   int32/int64  first column of each request's span
end_offset        [bs]                   int32/int64  column after the last
out_cache_loc     [sum(end - start)]     any integer  written: the spans, one request after another

Source of the algorithm: SGLang, speculative decoding (EAGLE v2).
Launch: grid (request, part).  A program sums the lengths of earlier requests, then copies every part-th block
of its own span.  Offsets are derived from the loop index: carried ones compile badly or unsafely on Ascend in
several forms (see twins.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..harness import check, device
from . import plan, spans


@triton.jit
def extend_kernel(
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
    before = tl.sum(ends - starts)
    target = out_cache_loc + before
    source = req_to_token + row * pool_len + start
    for i in range(part, tl.cdiv(length, BLOCK), tl.num_programs(1)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        slots = tl.load(source + offset, mask=offset < length)
        tl.store(target + offset, slots, mask=offset < length)


IMPLEMENTATIONS = {"derived": spans.Copy(extend_kernel, way=plan.OUT)}


def assign_extend_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    *,
    impl: str | spans.Copy = "derived",
    validate: bool = False,
) -> None:
    """`out_cache_loc` := columns `[start_r, end_r)` of row `req_pool_indices[r]`, requests in order.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument, PlanError for
    a batch that does not fit the device.  validate=True also checks values, which waits for the device:
    0 <= start <= end <= pool_len, distinct rows inside the pool, total length equal to len(out_cache_loc).
    """
    spans.check_arguments(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc)
    copy = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        spans.check_values(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc)
    copy.launch(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, device.of(req_to_token))
