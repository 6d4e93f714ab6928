"""Kernels that the benchmark of the simulator runs: scalar loops, and one typical launch."""

import triton
import triton.language as tl


@triton.jit
def running_sum(x, out, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.cumsum(tl.load(x + offs, mask=mask, other=0), axis=0), mask=mask)


@triton.jit
def walk(x, out, n):
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
def copy_spans(rows, pool, start, end, source, pool_len, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lo = tl.load(start + pid)
    hi = tl.load(end + pid)
    row = pool + tl.load(rows + pid) * pool_len
    for i in range(tl.cdiv(hi - lo, BLOCK)):
        offs = i * BLOCK + tl.arange(0, BLOCK)
        mask = offs < hi - lo
        tl.store(row + lo + offs, tl.load(source + pid * SPAN + offs, mask=mask), mask=mask)
