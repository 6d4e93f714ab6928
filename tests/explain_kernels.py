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


# ---- the same patterns in another kernel: normalised rows


@triton.jit
def rms(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + r * cols + c, mask=c < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        tl.store(
            out + r * cols + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + c, mask=c < cols, other=0.0), mask=c < cols
        )


@triton.jit
def rms_rev(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + r * cols + c, mask=c < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        tl.store(
            out + r * cols + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + c, mask=c < cols, other=0.0), mask=cols > c
        )


@triton.jit
def rms_i64(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK).to(tl.int64)
        v = tl.load(x + r * cols + c, mask=c < cols.to(tl.int64) * 1, other=0.0)
        s = tl.sum(v * v, 0) / cols
        v = tl.where((c * 3) % 7 < 5, v, 0.0)
        tl.store(
            out + r * cols + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + c, mask=c < cols, other=0.0), mask=c < cols
        )


@triton.jit
def rms_gather(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + r * cols + c, mask=c < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        i = tl.load(w + c, mask=c < cols, other=0.0).to(tl.int32)
        tl.store(
            out + r * cols + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + i, mask=c < cols, other=0.0), mask=c < cols
        )


@triton.jit
def rms_mod(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + r * cols + c, mask=c < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        tl.store(
            out + r * cols + c,
            v * tl.rsqrt(s + 1e-6) * tl.load(w + c % 64, mask=c < cols, other=0.0),
            mask=c < cols,
        )


@triton.jit
def rms_odd_mask(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + r * cols + c, mask=c < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        tl.store(
            out + r * cols + c,
            v * tl.rsqrt(s + 1e-6) * tl.load(w + c, mask=c < cols, other=0.0),
            mask=(c < cols) & (v > 0.0),
        )


@triton.jit
def rms_carry(x, w, out, rows, cols, BLOCK: tl.constexpr):
    c0 = tl.arange(0, BLOCK)
    c = c0 + tl.program_id(0) * cols - 8 * cols
    for _ in range(tl.program_id(0), rows, 8):
        c += 8 * cols
        v = tl.load(x + c, mask=c < rows * cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        tl.store(
            out + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + c0, mask=c0 < cols, other=0.0), mask=c < rows * cols
        )


@triton.jit
def rms_cumsum(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + r * cols + c, mask=c < cols, other=0.0)
        s = tl.max(tl.cumsum(v * v, 0), 0) / cols
        tl.store(
            out + r * cols + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + c, mask=c < cols, other=0.0), mask=c < cols
        )


@triton.jit
def rms_prefetch(x, w, out, rows, cols, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * cols + c, mask=c < cols, other=0.0)
    for r in range(tl.program_id(0), rows, 8):
        n = tl.load(x + (r + 8) * cols + c, mask=c < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        tl.store(
            out + r * cols + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + c, mask=c < cols, other=0.0), mask=c < cols
        )
        v = n


@triton.jit
def rms_scalarw(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + r * cols + c, mask=c < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        g = tl.load(w + r, mask=r < cols, other=0.0)
        tl.store(out + r * cols + c, v * tl.rsqrt(s + 1e-6) * g, mask=c < cols)


@triton.jit
def rms_or(x, w, out, rows, cols, BLOCK: tl.constexpr):
    for r in range(tl.program_id(0), rows, 8):
        c = (r * 256) | tl.arange(0, BLOCK)
        d = tl.arange(0, BLOCK)
        v = tl.load(x + c, mask=d < cols, other=0.0)
        s = tl.sum(v * v, 0) / cols
        tl.store(out + c, v * tl.rsqrt(s + 1e-6) * tl.load(w + d, mask=d < cols, other=0.0), mask=d < cols)


# ---- sums of squares of rows in tiles, as in a fused addition and normalisation


@triton.jit
def norm_unrolled(x, w, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        squares = 0.0
        for i in tl.static_range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            squares += tl.sum(v * v)
        scale = tl.rsqrt(squares / WIDTH + 1e-5)
        for i in tl.static_range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32) * scale
            g = tl.load(w + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            tl.store(out + row * WIDTH + c, (v * g).to(out.dtype.element_ty), mask=c < WIDTH)


@triton.jit
def norm_rolled(x, w, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        squares = 0.0
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            squares += tl.sum(v * v)
        scale = tl.rsqrt(squares / WIDTH + 1e-5)
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32) * scale
            g = tl.load(w + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            tl.store(out + row * WIDTH + c, (v * g).to(out.dtype.element_ty), mask=c < WIDTH)


@triton.jit
def norm_one_element(x, w, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        squares = tl.zeros([1], tl.float32)
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            squares += tl.sum(v * v, 0, keep_dims=True)
        scale = tl.rsqrt(squares / WIDTH + 1e-5)
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32) * scale
            g = tl.load(w + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            tl.store(out + row * WIDTH + c, (v * g).to(out.dtype.element_ty), mask=c < WIDTH)


@triton.jit
def norm_partial(x, w, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        squares = tl.zeros([BLOCK], tl.float32)
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            squares += v * v
        scale = tl.rsqrt(tl.sum(squares) / WIDTH + 1e-5)
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32) * scale
            g = tl.load(w + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            tl.store(out + row * WIDTH + c, (v * g).to(out.dtype.element_ty), mask=c < WIDTH)


@triton.jit
def norm_two_rows(x, w, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    for pair in range(tl.program_id(0), rows // 2, tl.num_programs(0)):
        row = pair * 2 + tl.arange(0, 2)[:, None]
        squares = tl.zeros([2, 1], tl.float32)
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)[None, :]
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            squares += tl.sum(v * v, 1, keep_dims=True)
        scale = tl.rsqrt(squares / WIDTH + 1e-5)
        for i in range(0, WIDTH, BLOCK):
            c = i + tl.arange(0, BLOCK)[None, :]
            v = tl.load(x + row * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32) * scale
            g = tl.load(w + c, mask=c < WIDTH, other=0.0).to(tl.float32)
            tl.store(out + row * WIDTH + c, (v * g).to(out.dtype.element_ty), mask=c < WIDTH)


@triton.jit
def lanes(x, out, OP: tl.constexpr, NARROW: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    v = tl.load(x + c)
    if NARROW:
        v = v.to(tl.int32)
    if OP == "+":
        v = v + 5
    elif OP == "-":
        v = 5 - v
    elif OP == "<<":
        v = v << 3
    else:
        v = v >> 3
    tl.store(out + c, v)


@triton.jit
def count_lanes(x, out, BINS: tl.constexpr, BLOCK: tl.constexpr):
    tl.atomic_add(out + tl.load(x + tl.arange(0, BLOCK)), 1)


@triton.jit
def count_bins(x, out, BINS: tl.constexpr, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    b = tl.arange(0, BINS)
    tl.atomic_add(out + b, tl.sum((v[None, :] == b[:, None]).to(tl.int32), 1))


@triton.jit
def bag(index, x, out, n, BLOCK: tl.constexpr, FIXED: tl.constexpr):
    c = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(n):
        row = tl.load(index if FIXED else index + i)
        total += tl.load(x + row * BLOCK + c) * i
    tl.store(out + c, total)


@triton.jit
def scan_tile(x, out, PROD: tl.constexpr, AXIS: tl.constexpr, TURNED: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 32 + tl.arange(0, 32)[None, :]
    v = tl.load(x + at)
    if TURNED:
        v = tl.trans(v)
    along: tl.constexpr = 1 - AXIS if TURNED else AXIS
    if PROD:
        v = tl.cumprod(v, along, reverse=REVERSE)
    else:
        v = tl.cumsum(v, along, reverse=REVERSE)
    if TURNED:
        v = tl.trans(v)
    tl.store(out + at, v)
