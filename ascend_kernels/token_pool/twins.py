"""The assign kernel with one source pattern changed each: what a careless edit would do.

Every twin has the arguments of `assign_kernel`.  What each costs is read from its compiled code; whether one is
unsafe is the finding of a run, `safe=False` only says that it was seen.
"""

from __future__ import annotations

import functools

import triton
import triton.language as tl

from ..harness.spec import Twin
from .assign_req_to_token_pool import assign_kernel, assign_req_to_token_pool, prefetch_kernel, span_of
from .spans import Copy


@triton.jit
def carried_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.num_programs(1)
    source, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    part = tl.program_id(1)
    offset = part * BLOCK + tl.arange(0, BLOCK)
    for _ in range(part, tl.cdiv(length, BLOCK), parts):
        slots = tl.load(out_cache_loc + source + offset, mask=offset < length)
        tl.store(req_to_token + target + offset, slots, mask=offset < length)
        offset += parts * BLOCK


@triton.jit
def carried_at_top_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.num_programs(1)
    source, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    part = tl.program_id(1)
    # Taken off the vector: taken off the scalar in front of it, the same loop compiles well.
    offset = part * BLOCK + tl.arange(0, BLOCK) - parts * BLOCK
    for _ in range(part, tl.cdiv(length, BLOCK), parts):
        offset += parts * BLOCK
        slots = tl.load(out_cache_loc + source + offset, mask=offset < length)
        tl.store(req_to_token + target + offset, slots, mask=offset < length)


@triton.jit
def carried_in_while_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.num_programs(1)
    source, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    base = tl.program_id(1) * BLOCK
    offset = base + tl.arange(0, BLOCK)
    while base < length:
        slots = tl.load(out_cache_loc + source + offset, mask=offset < length)
        tl.store(req_to_token + target + offset, slots, mask=offset < length)
        offset += parts * BLOCK
        base += parts * BLOCK


@triton.jit
def carried_by_where_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.num_programs(1)
    source, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    part = tl.program_id(1)
    offset = part * BLOCK + tl.arange(0, BLOCK)
    for _ in range(part, tl.cdiv(length, BLOCK), parts):
        slots = tl.load(out_cache_loc + source + offset, mask=offset < length)
        tl.store(req_to_token + target + offset, slots, mask=offset < length)
        offset = tl.where(offset < length, offset + parts * BLOCK, offset)


@triton.jit
def mask_reversed_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.num_programs(1)
    source, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    for i in range(tl.program_id(1), tl.cdiv(length, BLOCK), parts):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        slots = tl.load(out_cache_loc + source + offset, mask=length > offset)
        tl.store(req_to_token + target + offset, slots, mask=length > offset)


@triton.jit
def mask_by_arithmetic_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.num_programs(1)
    source, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    for i in range(tl.program_id(1), tl.cdiv(length, BLOCK), parts):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        slots = tl.load(out_cache_loc + source + offset, mask=(length - offset) > 0)
        tl.store(req_to_token + target + offset, slots, mask=(length - offset) > 0)


@triton.jit
def modulo_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    parts = tl.num_programs(1)
    source, _, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    start = tl.load(start_offset + request).to(tl.int32)
    row = tl.load(req_pool_indices + request).to(tl.int64)
    for i in range(tl.program_id(1), tl.cdiv(length, BLOCK), parts):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        column = (start + offset) % pool_len
        slots = tl.load(out_cache_loc + source + offset, mask=offset < length)
        tl.store(req_to_token + row * pool_len + column, slots, mask=offset < length)


@triton.jit
def int64_sum_kernel(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len,
    BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    lanes = tl.arange(0, BOUND)
    starts = tl.load(start_offset + lanes, mask=lanes < request, other=0).to(tl.int64)
    ends = tl.load(end_offset + lanes, mask=lanes < request, other=0).to(tl.int64)
    source = tl.sum(ends - starts)
    parts = tl.num_programs(1)
    _, target, length = span_of(req_pool_indices, start_offset, end_offset, pool_len, BOUND)
    for i in range(tl.program_id(1), tl.cdiv(length, BLOCK), parts):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        slots = tl.load(out_cache_loc + source + offset, mask=offset < length)
        tl.store(req_to_token + target + offset, slots, mask=offset < length)


def _twin(kernel, pattern: str, *, safe: bool = True, block: int | None = None) -> Twin:
    return Twin(functools.partial(assign_req_to_token_pool, impl=Copy(kernel, block)), pattern, safe)


ASSIGN = {
    "carried": _twin(carried_kernel, "offsets carried through the loop, updated at its end"),
    "carried-at-top": _twin(carried_at_top_kernel, "offsets carried, updated at the top of the loop", safe=False),
    "carried-in-while": _twin(carried_in_while_kernel, "offsets carried through a while loop", safe=False),
    "carried-by-where": _twin(carried_by_where_kernel, "offsets carried, updated by tl.where", safe=False),
    "mask-reversed": _twin(mask_reversed_kernel, "mask written from the other side: length > offset", safe=False),
    "mask-by-arithmetic": _twin(
        mask_by_arithmetic_kernel, "mask through arithmetic: (length - offset) > 0", safe=False
    ),
    "modulo": _twin(modulo_kernel, "column = (start + offset) % pool_len"),
    "int64-sum": _twin(int64_sum_kernel, "sum over earlier requests in int64"),
    "prefetch": _twin(prefetch_kernel, "next block loaded by hand before this one is stored"),
    "small-block": _twin(assign_kernel, "copy block of 32 elements whatever the span", block=32),
}
