"""Running sums, products and recurrences."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, ints, normal, outside


@triton.jit
def cumsum_rows(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0)
    tl.store(out_ptr + row * cols + c, tl.cumsum(x, axis=0), mask=mask)


@outside(cumsum_rows, "running sum of rows of 100", BLOCK=128)
def _(g):
    x = normal(g, 4, 100)
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "cols": 100}
    return Launch((4,), args, {"out_ptr": x.double().cumsum(1)}, 1e-4)


@triton.jit
def cumsum_carry(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    carry = 0
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + offs, mask=mask, other=0)
        tl.store(out_ptr + offs, tl.cumsum(x, 0) - x + carry, mask=mask)
        carry += tl.sum(x, 0)


@outside(cumsum_carry, "exclusive running sum of int32 over tiles with a carry", BLOCK=64)
def _(g):
    x = ints(g, 0, 100, 300)
    want = torch.cat([torch.zeros(1, dtype=torch.int64), x.cumsum(0)[:-1]])
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 300}, {"out_ptr": want})


@triton.jit
def cumsum_columns(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, tl.cumsum(tl.load(x_ptr + at), axis=0))


@outside(cumsum_columns, "running sum down the columns of [16, 64]", R=16, C=64)
def _(g):
    x = normal(g, 16, 64)
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros_like(x)}, {"out_ptr": x.double().cumsum(0)}, 1e-5)


@triton.jit
def cumprod_rows(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.cumprod(tl.load(x_ptr + at), axis=0))


@outside(cumprod_rows, "running product", BLOCK=64)
def _(g):
    x = 1 + normal(g, 3, 64) * 0.1
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros_like(x)}, {"out_ptr": x.double().cumprod(1)}, 1e-4)


@triton.jit
def cumsum_reverse(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.cumsum(tl.load(x_ptr + at), axis=0, reverse=True))


@outside(cumsum_reverse, "running sum from the end", BLOCK=64)
def _(g):
    x = normal(g, 3, 64)
    want = x.double().flip(1).cumsum(1).flip(1)
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros_like(x)}, {"out_ptr": want}, 1e-4)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def running_max(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.associative_scan(tl.load(x_ptr + at), 0, _larger))


@outside(running_max, "running maximum by tl.associative_scan", BLOCK=64)
def _(g):
    x = normal(g, 3, 64)
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros_like(x)}, {"out_ptr": x.cummax(1).values})


@triton.jit
def _compose(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def linear_recurrence(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _, h = tl.associative_scan((tl.load(a_ptr + at), tl.load(b_ptr + at)), 0, _compose)
    tl.store(out_ptr + at, h)


@outside(linear_recurrence, "h[t] = a[t] h[t-1] + b[t] by tl.associative_scan on two values", BLOCK=64)
def _(g):
    a, b = torch.rand(2, 64, generator=g), normal(g, 2, 64)
    h, want = torch.zeros(2, dtype=torch.float64), torch.zeros(2, 64, dtype=torch.float64)
    for t in range(64):
        h = a[:, t].double() * h + b[:, t].double()
        want[:, t] = h
    return Launch((2,), {"a_ptr": a, "b_ptr": b, "out_ptr": torch.zeros(2, 64)}, {"out_ptr": want}, 1e-4)


@triton.jit
def recurrence_loop(a_ptr, b_ptr, out_ptr, steps, width, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = c < width
    h = tl.zeros([BLOCK], dtype=tl.float32)
    for t in range(steps):
        a = tl.load(a_ptr + t * width + c, mask=mask, other=0.0)
        b = tl.load(b_ptr + t * width + c, mask=mask, other=0.0)
        h = a * h + b
        tl.store(out_ptr + t * width + c, h, mask=mask)


@outside(recurrence_loop, "the same as a loop over time, channels as lanes", BLOCK=128)
def _(g):
    a, b = torch.rand(20, 200, generator=g), normal(g, 20, 200)
    h, want = torch.zeros(200, dtype=torch.float64), torch.zeros(20, 200, dtype=torch.float64)
    for t in range(20):
        h = a[t].double() * h + b[t].double()
        want[t] = h
    args = {"a_ptr": a, "b_ptr": b, "out_ptr": torch.zeros(20, 200), "steps": 20, "width": 200}
    return Launch((2,), args, {"out_ptr": want}, 1e-5)


@triton.jit
def state_update(s_ptr, x_ptr, dt_ptr, a_ptr, b_ptr, c_ptr, y_ptr, D: tl.constexpr, N: tl.constexpr):
    head = tl.program_id(0)
    d = tl.arange(0, D)
    n = tl.arange(0, N)
    at = head * D * N + d[:, None] * N + n[None, :]
    dt = tl.load(dt_ptr + head)
    decay = tl.exp(tl.load(a_ptr + head) * dt)
    x = tl.load(x_ptr + head * D + d)
    b = tl.load(b_ptr + n)
    c = tl.load(c_ptr + n)
    s = tl.load(s_ptr + at) * decay + (x * dt)[:, None] * b[None, :]
    tl.store(s_ptr + at, s)
    tl.store(y_ptr + head * D + d, tl.sum(s * c[None, :], axis=1))


@outside(state_update, "one step of a selective state space: outer product, decay, sum", D=32, N=64)
def _(g):
    s, x, dt, a = normal(g, 4, 32, 64), normal(g, 4, 32), torch.rand(4, generator=g), -torch.rand(4, generator=g)
    b, c = normal(g, 64), normal(g, 64)
    decay = (a.double() * dt.double()).exp()[:, None, None]
    new = s.double() * decay + (x.double() * dt.double()[:, None])[..., None] * b.double()
    args = {"s_ptr": s, "x_ptr": x, "dt_ptr": dt, "a_ptr": a, "b_ptr": b, "c_ptr": c, "y_ptr": torch.zeros(4, 32)}
    return Launch((4,), args, {"s_ptr": new, "y_ptr": new @ c.double()}, 1e-4)
