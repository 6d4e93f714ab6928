"""Triton kernels that only the tests of the model use: one per kind of compiled code it must execute."""

import triton
import triton.language as tl

# ---- elementwise, tails, dtypes


@triton.jit
def add_tail(x, y, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.load(x + offs, mask=mask) + tl.load(y + offs, mask=mask), mask=mask)


@triton.jit
def add_persistent(x, y, out, n, programs, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    for block in range(pid, tl.cdiv(n, BLOCK), programs):
        offs = block * BLOCK + tl.arange(0, BLOCK)
        mask = offs < n
        tl.store(out + offs, tl.load(x + offs, mask=mask) + tl.load(y + offs, mask=mask), mask=mask)


@triton.jit
def copy_block(x, out, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offs, tl.load(x + offs))


@triton.jit
def float_math(x, y, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(x + offs, mask=mask, other=1.0)
    b = tl.load(y + offs, mask=mask, other=1.0)
    r = tl.exp(a) + tl.log(tl.abs(b) + 1.0) + tl.sqrt(tl.abs(a)) * tl.rsqrt(tl.abs(b) + 0.5)
    r = tl.where(a > b, r, -r)
    r = tl.maximum(r, -4.0) / (b * b + 2.0) + tl.sigmoid(a)
    tl.store(out + offs, r, mask=mask)


@triton.jit
def cast_bf16(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    v = tl.load(x + offs, mask=mask).to(tl.float32) * 1.7 + 0.3
    tl.store(out + offs, v.to(out.dtype.element_ty), mask=mask)


@triton.jit
def int_math(x, y, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(x + offs, mask=mask, other=1)
    b = tl.load(y + offs, mask=mask, other=1)
    r = a * 3 + b - tl.minimum(a, b) + tl.maximum(a, b)
    tl.store(out + offs, r, mask=mask)


@triton.jit
def bit_ops(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(x + offs, mask=mask, other=0)
    r = ((a & 0x7FFFF) << 3) | (a >> 20)
    r = r ^ 0x55AA
    tl.store(out + offs, r, mask=mask)


@triton.jit
def bit_cast_scale(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    r = tl.load(x + offs, mask=mask, other=1.0)
    e = (r.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    tl.store(out + offs, (e << 23).to(tl.float32, bitcast=True), mask=mask)


@triton.jit
def compare_ops(x, y, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(x + offs, mask=mask, other=0)
    b = tl.load(y + offs, mask=mask, other=0)
    r = tl.where(a < b, 1, 0) + tl.where(a == b, 2, 0) + tl.where((a > 3) & (b != 5), 4, 0)
    r += tl.where((a >= 7) | (b <= 2), 8, 0)
    tl.store(out + offs, r, mask=mask)


@triton.jit
def where_not(x, out, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(x + offs, mask=mask, other=0.0)
    big = a > 0.5
    tl.store(out + offs, tl.where(~big, a, 0.0), mask=mask)


# ---- reductions and scans


@triton.jit
def softmax(x, out, cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    v = tl.load(x + row * stride + offs, mask=mask, other=-float("inf"))
    p = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + offs, p / tl.sum(p, axis=0), mask=mask)


@triton.jit
def row_stats(x, total, largest, smallest, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    v = tl.load(x + row * cols + offs, mask=mask, other=0.0)
    tl.store(total + row, tl.sum(v, axis=0))
    tl.store(largest + row, tl.max(tl.where(mask, v, -3.0e38), axis=0))
    tl.store(smallest + row, tl.min(tl.where(mask, v, 3.0e38), axis=0))


@triton.jit
def sum_2d(x, rows_out, cols_out, R: tl.constexpr, C: tl.constexpr):
    r = tl.arange(0, R)
    c = tl.arange(0, C)
    v = tl.load(x + tl.program_id(0) * R * C + r[:, None] * C + c[None, :])
    tl.store(rows_out + tl.program_id(0) * R + r, tl.sum(v, axis=1))
    tl.store(cols_out + tl.program_id(0) * C + c, tl.sum(v, axis=0))


@triton.jit
def int_sum(x, out, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    v = tl.load(x + offs, mask=offs < n, other=0)
    tl.store(out, tl.sum(v, axis=0))
    tl.store(out + 1, tl.max(v, axis=0))


@triton.jit
def cumsum(x, out, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.cumsum(tl.load(x + offs, mask=mask, other=0), axis=0), mask=mask)


@triton.jit
def dot_rows(x, y, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < cols
        a = tl.load(x + row * cols + offs, mask=mask, other=0.0).to(tl.float32)
        acc += a * tl.load(y + row * cols + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(acc, axis=0))


@triton.jit
def argmax_row(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + offs, mask=offs < cols, other=-float("inf"))
    tl.store(out + row, tl.argmax(v, axis=0))


# ---- gathers, scatters, atomics, scalar code


@triton.jit
def row_gather(x, index, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = tl.load(index + row)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < cols
        tl.store(out + row * cols + offs, tl.load(x + source * cols + offs, mask=mask), mask=mask)


@triton.jit
def row_scatter(x, index, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    target = tl.load(index + row)
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < cols
        tl.store(out + target * cols + offs, tl.load(x + row * cols + offs, mask=mask), mask=mask)


@triton.jit
def two_rows_scatter(x, index, out, cols, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    for k in range(2):
        row = 2 * tl.program_id(0) + k
        target = tl.load(index + row)
        tl.store(out + target * cols + offs, tl.load(x + row * cols + offs, mask=mask), mask=mask)


@triton.jit
def lane_gather(x, index, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    i = tl.load(index + offs, mask=mask, other=0)
    tl.store(out + offs, tl.load(x + i, mask=mask, other=0), mask=mask)


@triton.jit
def lane_scatter(x, index, out, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    i = tl.load(index + offs, mask=mask, other=0)
    tl.store(out + i, tl.load(x + offs, mask=mask, other=0), mask=mask)


@triton.jit
def atomic_sum(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + offs, mask=offs < n, other=0)
    tl.atomic_add(out, tl.sum(v, axis=0))


@triton.jit
def atomic_rows(x, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_add(out + offs, tl.load(x + tl.program_id(0) * BLOCK + offs))


@triton.jit
def atomic_max_rows(x, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_max(out + offs, tl.load(x + tl.program_id(0) * BLOCK + offs))


@triton.jit
def scalar_walk(x, out, n):
    total = 0
    i = 0
    while i < n:
        v = tl.load(x + i)
        if v > 0:
            total += v
        else:
            total -= 1
        i += 1
    tl.store(out, total)


@triton.jit
def collatz(x, out):
    v = tl.load(x + tl.program_id(0))
    steps = 0
    while v != 1:
        if v % 2 == 0:
            v = v // 2
        else:
            v = 3 * v + 1
        steps += 1
    tl.store(out + tl.program_id(0), steps)


@triton.jit
def scalar_fill(out, n):
    for i in range(n):
        tl.store(out + i, i * 3 - 1)


@triton.jit
def slot_mapping_modulo(positions, table, out, n, width, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    pos = tl.load(positions + offs, mask=mask, other=0)
    page = tl.load(table + pos // PAGE, mask=mask, other=0)
    tl.store(out + offs, page * PAGE + pos % PAGE, mask=mask)


@triton.jit
def transpose_tile(x, out, R: tl.constexpr, C: tl.constexpr):
    r = tl.arange(0, R)
    c = tl.arange(0, C)
    v = tl.load(x + r[:, None] * C + c[None, :])
    tl.store(out + c[:, None] * R + r[None, :], tl.trans(v))


@triton.jit
def interleave_halves(x, y, out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    v = tl.interleave(tl.load(x + offs), tl.load(y + offs))
    tl.store(out + tl.arange(0, 2 * BLOCK), v)


@triton.jit
def split_pairs(x, even, odd, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, 2 * BLOCK))
    a, b = tl.split(tl.reshape(v, (BLOCK, 2)))
    tl.store(even + tl.arange(0, BLOCK), a)
    tl.store(odd + tl.arange(0, BLOCK), b)


@triton.jit
def masked_scalar_gather(x, index, weight, out, n, cols, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    for row in range(pid, n, tl.num_programs(0)):
        source = tl.load(index + row, mask=row < n, other=0)
        scale = tl.load(weight + row, mask=source >= 0, other=0.0)
        offs = tl.arange(0, BLOCK)
        mask = offs < cols
        v = tl.load(x + source * cols + offs, mask=mask, other=0.0)
        tl.store(out + row * cols + offs, v * scale, mask=mask)


@triton.jit
def matmul_tile(x, y, out, N: tl.constexpr):
    r = tl.arange(0, N)
    a = tl.load(x + r[:, None] * N + r[None, :])
    b = tl.load(y + r[:, None] * N + r[None, :])
    tl.store(out + r[:, None] * N + r[None, :], tl.dot(a, b))


# ---- small parts of pooled key compression


@triton.jit
def pool_softmax(k, score, ape, out, P: tl.constexpr, D: tl.constexpr):
    pid = tl.program_id(0)
    p = tl.arange(0, P)
    d = tl.arange(0, D)
    tile = p[:, None] * D + d[None, :]
    key = tl.load(k + pid * P * D + tile).to(tl.float32)
    v = tl.load(score + pid * P * D + tile).to(tl.float32) + tl.load(ape + tile)
    e = tl.exp(v - tl.max(v, axis=0)[None, :])
    x = tl.sum(key * e, axis=0) / tl.sum(e, axis=0)
    tl.store(out + pid * D + d, x.to(tl.bfloat16))


@triton.jit
def absmax_scale(x, code, scale, D: tl.constexpr):
    pid = tl.program_id(0)
    d = tl.arange(0, D)
    v = tl.load(x + pid * D + d).to(tl.float32)
    top = tl.maximum(tl.max(tl.abs(v), axis=0), 1e-4)
    s = top * 0.0022321429569274187
    q = v / s
    tl.store(code + pid * D + d, tl.minimum(tl.maximum(q, -127.0), 127.0).to(tl.int8))
    tl.store(scale + pid, s)


# ---- token pool assignment: one source pattern changed at a time


@triton.jit
def prefix(start, end, pid, UPPER: tl.constexpr):
    lanes = tl.arange(0, UPPER)
    before = lanes < pid
    s = tl.load(start + lanes, mask=before, other=0)
    e = tl.load(end + lanes, mask=before, other=0)
    return tl.sum(e - s, axis=0)


@triton.jit
def assign_derived(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        offs = i * BLOCK + tl.arange(0, BLOCK)
        mask = offs < hi - lo
        tl.store(row + lo + offs, tl.load(src + offs, mask=mask), mask=mask)


@triton.jit
def assign_carried(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    save = lo + tl.arange(0, BLOCK)
    load = tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(hi - lo, BLOCK)):
        mask = save < hi
        tl.store(row + save, tl.load(src + load, mask=mask), mask=mask)
        save += BLOCK
        load += BLOCK


@triton.jit
def assign_carried_top(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    offs = tl.arange(0, BLOCK) - BLOCK
    for _ in range(tl.cdiv(hi - lo, BLOCK)):
        offs += BLOCK
        mask = offs < hi - lo
        tl.store(row + lo + offs, tl.load(src + offs, mask=mask), mask=mask)


@triton.jit
def assign_while(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    save = lo + tl.arange(0, BLOCK)
    load = tl.arange(0, BLOCK)
    done = lo
    while done < hi:
        mask = save < hi
        tl.store(row + save, tl.load(src + load, mask=mask), mask=mask)
        save += BLOCK
        load += BLOCK
        done += BLOCK


@triton.jit
def assign_where(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    save = lo + tl.arange(0, BLOCK)
    load = tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(hi - lo, BLOCK)):
        mask = save < hi
        tl.store(row + save, tl.load(src + load, mask=mask), mask=mask)
        save = tl.where(save < hi, save + BLOCK, save)
        load = tl.where(save < hi, load + BLOCK, load)


@triton.jit
def assign_reversed_mask(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        load = i * BLOCK + tl.arange(0, BLOCK)
        save = lo + load
        mask = hi > save
        tl.store(row + save, tl.load(src + load, mask=mask), mask=mask)


@triton.jit
def assign_arith_mask(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        load = i * BLOCK + tl.arange(0, BLOCK)
        save = lo + load
        mask = (hi - save) > 0
        tl.store(row + save, tl.load(src + load, mask=mask), mask=mask)


@triton.jit
def assign_or_mask(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        offs = i * BLOCK + tl.arange(0, BLOCK)
        mask = (offs < hi - lo) | (offs < 0)
        tl.store(row + lo + offs, tl.load(src + offs, mask=mask), mask=mask)


@triton.jit
def assign_or_offset(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        offs = (i * BLOCK) | tl.arange(0, BLOCK)
        mask = offs < hi - lo
        tl.store(row + lo + offs, tl.load(src + offs, mask=mask), mask=mask)


@triton.jit
def assign_modulo(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        offs = i * BLOCK + tl.arange(0, BLOCK)
        mask = offs < hi - lo
        v = tl.load(src + offs, mask=mask)
        tl.store(row + (lo + offs) % pool_len, v, mask=mask)


@triton.jit
def assign_prefetch(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix(start, end, pid, UPPER)
    offs = tl.arange(0, BLOCK)
    ahead = tl.load(src + offs, mask=offs < hi - lo)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        offs = i * BLOCK + tl.arange(0, BLOCK)
        now = ahead
        nxt = (i + 1) * BLOCK + tl.arange(0, BLOCK)
        ahead = tl.load(src + nxt, mask=nxt < hi - lo)
        tl.store(row + lo + offs, now, mask=offs < hi - lo)


@triton.jit
def prefix_wide(start, end, pid, UPPER: tl.constexpr):
    lanes = tl.arange(0, UPPER)
    before = lanes < pid
    s = tl.load(start + lanes, mask=before, other=0)
    e = tl.load(end + lanes, mask=before, other=0)
    return tl.sum((e - s).to(tl.int64), axis=0)


@triton.jit
def assign_wide_prefix(rows, pool, start, end, source, pool_len, UPPER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    src = source + prefix_wide(start, end, pid, UPPER)
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        offs = i * BLOCK + tl.arange(0, BLOCK)
        mask = offs < hi - lo
        tl.store(row + lo + offs, tl.load(src + offs, mask=mask), mask=mask)


@triton.jit
def loop_for_ever(x, out):
    v = tl.load(x)
    while v > 0:
        v = v * 3 + 1
        if v < 10:
            v = 1
        if v > 1000:
            v = 7
    tl.store(out, v)


@triton.jit
def two_grid_axes(x, out, R, C, BLOCK: tl.constexpr):
    r = tl.program_id(1)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < C
    tl.store(out + r * C + offs, tl.load(x + r * C + offs, mask=mask) + r, mask=mask)


@triton.jit
def shift_in_place(x, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs + 1 < n
    tl.store(x + offs, tl.load(x + offs + 1, mask=mask), mask=mask)
