"""The token-pool copy with one source pattern changed each, beyond the patterns of model_kernels."""

import triton
import triton.language as tl

from tests.model_kernels import prefix


@triton.jit
def _row(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    length = tl.load(end + pid) - lo
    row = pool + tl.load(rows + pid) * pool_len
    return row + lo, source + prefix(start, end, pid, UPPER), length


@triton.jit
def base(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def other_comment(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    # The same with other names and a comment, which no compiled form keeps.
    to, origin, count = _row(rows, pool, start, end, source, pool_len, UPPER)

    for step in range(tl.cdiv(count, BLOCK)):
        place = step * BLOCK + tl.arange(0, BLOCK)
        inside = place < count
        tl.store(to + place, tl.load(origin + place, mask=inside), mask=inside)


@triton.jit
def mask_not_equal(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = (offset // length) != 1
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def mask_negated(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = ~(offset >= length)
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def mask_int8(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = (offset < length).to(tl.int8) != 0
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def mask_greater_equal(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = length - 1 >= offset
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def offset_bits(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        tl.store(target + (offset & 4095), tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def offset_reversed(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        back = length - 1 - offset
        tl.store(target + back, tl.load(src + back, mask=mask), mask=mask)


@triton.jit
def offset_divided(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        tl.store(target + offset, tl.load(src + offset // 3, mask=mask), mask=mask)


@triton.jit
def table_lookup(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        index = tl.load(src + offset, mask=mask, other=0)
        tl.store(target + offset, tl.load(source + index, mask=mask), mask=mask)


@triton.jit
def running_sum(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        tl.store(target + offset, tl.cumsum(tl.load(src + offset, mask=mask, other=0), 0), mask=mask)


@triton.jit
def sum_in_loop(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        value = tl.load(src + offset, mask=mask, other=0)
        tl.store(target + offset, value + tl.sum(value, 0), mask=mask)


@triton.jit
def carried_pointers(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    offset = tl.arange(0, BLOCK)
    into, out_of = target + offset, src + offset
    for i in range(tl.cdiv(length, BLOCK)):
        mask = i * BLOCK + offset < length
        tl.store(into, tl.load(out_of, mask=mask), mask=mask)
        into += BLOCK
        out_of += BLOCK


@triton.jit
def scalar_carry(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    at = 0
    for _ in range(tl.cdiv(length, BLOCK)):
        offset = at + tl.arange(0, BLOCK)
        mask = offset < length
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)
        at += BLOCK


@triton.jit
def mask_or_equal(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset <= length - 1
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def two_ranges(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = (offset < length) & (offset < pool_len)
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def stepped_range(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for at in range(0, length, BLOCK):
        offset = at + tl.arange(0, BLOCK)
        mask = offset < length
        tl.store(target + offset, tl.load(src + offset, mask=mask), mask=mask)


@triton.jit
def plus_one(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    target, src, length = _row(rows, pool, start, end, source, pool_len, UPPER)
    for i in range(tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < length
        tl.store(target + offset, tl.load(src + offset, mask=mask) + 1, mask=mask)
