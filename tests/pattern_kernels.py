"""Pairs of kernels that do the same job, one of them with a pattern that compiles badly on Ascend."""

import triton
import triton.language as tl

# ---- a span of a row, whose start and length come from memory


@triton.jit
def span(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < n
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_carried(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    offset = tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(n, BLOCK)):
        mask = offset < n
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)
        offset += BLOCK


@triton.jit
def span_carried_top(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    offset = tl.arange(0, BLOCK) - BLOCK
    for _ in range(tl.cdiv(n, BLOCK)):
        offset += BLOCK
        mask = offset < n
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_carried_while(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    offset = tl.arange(0, BLOCK)
    at = 0
    while at < n:
        mask = offset < n
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)
        offset += BLOCK
        at += BLOCK


@triton.jit
def span_carried_where(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    offset = tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(n, BLOCK)):
        mask = offset < n
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)
        offset = tl.where(mask, offset + BLOCK, offset)


@triton.jit
def span_mask_reversed(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = n > offset
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_mask_difference(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = (n - offset) > 0
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_mask_or(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = (offset < n) | (offset == 0)
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_mask_int8(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = (offset < n).to(tl.int8) != 0
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_bits(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = (i * BLOCK) | tl.arange(0, BLOCK)
        mask = offset < n
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_reversed(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = n - 1 - i * BLOCK - tl.arange(0, BLOCK)
        mask = offset >= 0
        tl.store(to + offset, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_modulo(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < n
        tl.store(to + offset % width, tl.load(src + row * width + offset, mask=mask), mask=mask)


@triton.jit
def span_prefetch(src, dst, start, length, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.load(length + row)
    to = dst + row * width + tl.load(start + row)
    lane = tl.arange(0, BLOCK)
    value = tl.load(src + row * width + lane, mask=lane < n)
    for i in range(tl.cdiv(n, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        mask = offset < n
        after = tl.load(src + row * width + offset + BLOCK, mask=offset + BLOCK < n)
        tl.store(to + offset, value, mask=mask)
        value = after


# ---- sums, scans, compares


@triton.jit
def sum_int32(x, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + row, tl.sum(v.to(tl.int32), 0))


@triton.jit
def sum_int64(x, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + row, tl.sum(v.to(tl.int64), 0))


@triton.jit
def compare_int32(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.where(a.to(tl.int32) < b.to(tl.int32), 1, 0))


@triton.jit
def compare_int64(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.where(a.to(tl.int64) < b.to(tl.int64), 1, 0))


@triton.jit
def compare_int16(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.where(a.to(tl.int16) < b.to(tl.int16), 1, 0))


@triton.jit
def scan_builtin(x, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    v = tl.load(x + row * BLOCK + lane)
    tl.store(out + row * BLOCK + lane, tl.cumsum(v, 0))


@triton.jit
def scan_triangle(x, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    v = tl.load(x + row * BLOCK + lane)
    tl.store(out + row * BLOCK + lane, tl.sum(tl.where(lane[None, :] <= lane[:, None], v[None, :], 0.0), 1))


@triton.jit
def sum_once(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, cols, BLOCK):
        total += tl.load(x + row * cols + at + tl.arange(0, BLOCK))
    tl.store(out + row, tl.sum(total, 0))


@triton.jit
def sum_each_tile(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for at in range(0, cols, BLOCK):
        total += tl.sum(tl.load(x + row * cols + at + tl.arange(0, BLOCK)), 0)
    tl.store(out + row, total)


@triton.jit
def argmax_float(x, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + row, tl.argmax(v.to(tl.float32), 0))


@triton.jit
def argmax_int(x, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + row, tl.argmax(v, 0))


@triton.jit
def minimum_any(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def minimum_quiet(x, y, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.minimum(a, b))


# ---- addresses


@triton.jit
def look_up_tile(x, index, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.load(index + row * BLOCK + tl.arange(0, BLOCK))
    v = tl.gather(tl.load(x + tl.arange(0, N)), i, 0)
    tl.store(out + row * BLOCK + tl.arange(0, BLOCK), v)


@triton.jit
def look_up_memory(x, index, out, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.load(index + row * BLOCK + tl.arange(0, BLOCK))
    v = tl.load(x + i)
    tl.store(out + row * BLOCK + tl.arange(0, BLOCK), v)


@triton.jit
def block_2d(x, out, width, R: tl.constexpr, C: tl.constexpr):
    row, col = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    at = row * width + col
    tl.store(out + row * C + col, tl.load(x + tl.program_id(0) * C + at))


@triton.jit
def block_flat(x, out, width, R: tl.constexpr, C: tl.constexpr):
    lane = tl.arange(0, R * C)
    at = lane // C * width + lane % C
    tl.store(out + lane, tl.load(x + tl.program_id(0) * C + at))


@triton.jit
def pick_clamped(x, index, out, n, D: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.load(index + pid)
    w = tl.where(i < n, tl.load(x + tl.minimum(i, n - 1)), 0.0)
    tl.store(out + pid * D + tl.arange(0, D), tl.full([D], 1.0, tl.float32) * w)


@triton.jit
def pick_masked(x, index, out, n, D: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.load(index + pid)
    w = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + pid * D + tl.arange(0, D), tl.full([D], 1.0, tl.float32) * w)


@triton.jit
def rows_one_by_one(x, index, out, D: tl.constexpr, R: tl.constexpr):
    first = tl.program_id(0) * R
    d = tl.arange(0, D)
    for r in range(R):
        v = tl.load(x + tl.load(index + first + r) * D + d)
        tl.store(out + (first + r) * D + d, v)


@triton.jit
def rows_as_tile(x, index, out, D: tl.constexpr, R: tl.constexpr):
    first = tl.program_id(0) * R
    d = tl.arange(0, D)
    r = first + tl.arange(0, R)
    v = tl.load(x + tl.load(index + r)[:, None] * D + d[None, :])
    tl.store(out + r[:, None] * D + d[None, :], v)


@triton.jit
def turn_tile(x, out, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    v = tl.load(x + tl.program_id(0) * R * C + r[:, None] * C + c[None, :])
    tl.store(out + tl.program_id(0) * R * C + c[:, None] * R + r[None, :], tl.trans(v))


@triton.jit
def turn_addresses(x, out, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    v = tl.load(x + tl.program_id(0) * R * C + r[:, None] * C + c[None, :])
    tl.store(out + tl.program_id(0) * R * C + c[None, :] * R + r[:, None], v)


@triton.jit
def deal_split(x, even, odd, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.split(tl.reshape(tl.load(x + tl.program_id(0) * 2 * N + tl.arange(0, 2 * N)), (N, 2)))
    tl.store(even + at, a)
    tl.store(odd + at, b)


@triton.jit
def deal_strided(x, even, odd, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + 2 * at), tl.load(x + 2 * at + 1)
    tl.store(even + at, a)
    tl.store(odd + at, b)


@triton.jit
def count_compare(x, out, BLOCK: tl.constexpr, BINS: tl.constexpr):
    v = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    b = tl.arange(0, BINS)
    tl.atomic_add(out + b, tl.sum((v[None, :] == b[:, None]).to(tl.int32), 1))


@triton.jit
def count_atomic(x, out, BLOCK: tl.constexpr, BINS: tl.constexpr):
    v = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(out + v, 1)


# ---- scalars, tiles, programs


@triton.jit
def weight_float(x, w, out, rows, D: tl.constexpr):
    d = tl.arange(0, D)
    for r in range(rows):
        v = tl.load(x + (tl.program_id(0) * rows + r) * D + d)
        tl.store(out + (tl.program_id(0) * rows + r) * D + d, v * tl.load(w + r))


@triton.jit
def weight_half(x, w, out, rows, D: tl.constexpr):
    d = tl.arange(0, D)
    for r in range(rows):
        v = tl.load(x + (tl.program_id(0) * rows + r) * D + d)
        tl.store(out + (tl.program_id(0) * rows + r) * D + d, v * tl.load(w + r).to(tl.float32))


@triton.jit
def copy_tiles(x, out, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * n
    for at in range(0, n, BLOCK):
        lane = first + at + tl.arange(0, BLOCK)
        tl.store(out + lane, tl.load(x + lane))


@triton.jit
def add_one(x, out, rows, D: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = row * D + tl.arange(0, D)
        tl.store(out + at, tl.load(x + at) + 1.0)


@triton.jit
def spread_scalar(x, out, D: tl.constexpr):
    row = tl.program_id(0)
    w = tl.load(x + row)
    tl.store(out + row * D + tl.arange(0, D), tl.exp(tl.full([D], 0.0, tl.float32) + w))


@triton.jit
def spread_vector(x, out, D: tl.constexpr):
    row = tl.program_id(0)
    w = tl.exp(tl.load(x + row + tl.arange(0, 1)))
    tl.store(out + row * D + tl.arange(0, D), tl.full([D], 0.0, tl.float32) + w)


@triton.jit
def power_bits(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(x + at).to(tl.int32, bitcast=True)
    up = (bits + 0x7FFFFF) & 0x7F800000
    tl.store(out + at, up.to(tl.float32, bitcast=True))


@triton.jit
def power_exp(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    up = tl.exp2(tl.ceil(tl.log2(v)))
    tl.store(out + at, up)
