"""Moving data: transposes, strides, padding, concatenation, windows."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, normal, outside


@triton.jit
def transpose_by_address(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    x = tl.load(x_ptr + r[:, None] * cols + c[None, :], mask=mask)
    tl.store(out_ptr + c[None, :] * rows + r[:, None], x, mask=mask)


@outside(transpose_by_address, "transpose [40, 50], addresses turned at the store", R=16, C=32)
def _(g):
    x = normal(g, 40, 50)
    args = {"x_ptr": x, "out_ptr": torch.zeros(50, 40), "rows": 40, "cols": 50}
    return Launch((3, 2), args, {"out_ptr": x.t().contiguous()})


@triton.jit
def transpose_tile(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * cols + c[None, :], mask=(r[:, None] < rows) & (c[None, :] < cols))
    at = c[:, None] * rows + r[None, :]
    tl.store(out_ptr + at, tl.trans(x), mask=(c[:, None] < cols) & (r[None, :] < rows))


@outside(transpose_tile, "transpose [40, 50] by tl.trans of tiles, f16", R=16, C=32)
def _(g):
    x = normal(g, 40, 50, dtype=torch.float16)
    args = {"x_ptr": x, "out_ptr": torch.zeros(50, 40, dtype=torch.float16), "rows": 40, "cols": 50}
    return Launch((3, 2), args, {"out_ptr": x.t().contiguous()})


@triton.jit
def permute_3d(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a = tl.program_id(0)
    b = tl.arange(0, B)
    c = tl.arange(0, C)
    x = tl.load(x_ptr + (a * B + b[:, None]) * C + c[None, :])
    tl.store(out_ptr + (b[:, None] * A + a) * C + c[None, :], x)


@outside(permute_3d, "[5, 8, 64] to [8, 5, 64]", A=5, B=8, C=64)
def _(g):
    x = normal(g, 5, 8, 64)
    return Launch(
        (5,), {"x_ptr": x, "out_ptr": torch.zeros(8, 5, 64)}, {"out_ptr": x.transpose(0, 1).contiguous()}
    )


@triton.jit
def copy_strided(x_ptr, out_ptr, rows, cols, sx0, sx1, so0, so1, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    x = tl.load(x_ptr + r[:, None] * sx0 + c[None, :] * sx1, mask=mask)
    tl.store(out_ptr + r[:, None] * so0 + c[None, :] * so1, x, mask=mask)


@outside(copy_strided, "2-D copy of a view: row stride 300, columns of 170", R=8, C=128)
def _(g):
    whole = normal(g, 19, 300)
    x, out = whole[:, 20:190], torch.zeros(19, 256)[:, :170]
    args = {"x_ptr": x, "out_ptr": out, "rows": 19, "cols": 170, "sx0": 300, "sx1": 1, "so0": 256, "so1": 1}
    return Launch((3, 2), args, {"out_ptr": x.clone()})


@outside(copy_strided, "the same reading every second column", name="copy_every_second", R=8, C=32)
def _(g):
    x = normal(g, 12, 100)[:, ::2]
    args = {
        "x_ptr": x,
        "out_ptr": torch.zeros(12, 50),
        "rows": 12,
        "cols": 50,
        "sx0": 100,
        "sx1": 2,
        "so0": 50,
        "so1": 1,
    }
    return Launch((2, 2), args, {"out_ptr": x.clone()})


@triton.jit
def copy_block_ptr(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    first = tl.program_id(0) * R
    source = tl.make_block_ptr(x_ptr, (rows, cols), (cols, 1), (first, 0), (R, C), (1, 0))
    target = tl.make_block_ptr(out_ptr, (rows, cols), (cols, 1), (first, 0), (R, C), (1, 0))
    for _ in range(0, cols, C):
        x = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, x * 2, boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        target = tl.advance(target, (0, C))


@outside(copy_block_ptr, "block pointers with bounds checked, advanced along a row", R=8, C=64)
def _(g):
    x = normal(g, 21, 150)
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "rows": 21, "cols": 150}
    return Launch((3,), args, {"out_ptr": x * 2})


@triton.jit
def concatenate(a_ptr, b_ptr, out_ptr, na, nb, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + row * na + c, mask=c < na)
    tl.store(out_ptr + row * (na + nb) + c, a, mask=c < na)
    b = tl.load(b_ptr + row * nb + c, mask=c < nb)
    tl.store(out_ptr + row * (na + nb) + na + c, b, mask=c < nb)


@outside(concatenate, "rows of 192 and 64 joined", BLOCK=256)
def _(g):
    a, b = normal(g, 6, 192, dtype=torch.bfloat16), normal(g, 6, 64, dtype=torch.bfloat16)
    args = {"a_ptr": a, "b_ptr": b, "out_ptr": torch.zeros(6, 256, dtype=torch.bfloat16), "na": 192, "nb": 64}
    return Launch((6,), args, {"out_ptr": torch.cat([a, b], 1)})


@triton.jit
def pad_rows(x_ptr, start_ptr, out_ptr, width, most, value, BLOCK: tl.constexpr):
    request, position = tl.program_id(0), tl.program_id(1)
    begin = tl.load(start_ptr + request)
    length = tl.load(start_ptr + request + 1) - begin
    c = tl.arange(0, BLOCK)
    mask = c < width
    x = tl.load(x_ptr + (begin + position) * width + c, mask=mask & (position < length), other=value)
    tl.store(out_ptr + (request * most + position) * width + c, x, mask=mask)


@outside(pad_rows, "ragged rows padded with a value", BLOCK=128)
def _(g):
    start = torch.tensor([0, 3, 3, 8], dtype=torch.int32)
    x = normal(g, 8, 100)
    want = torch.full((3, 5, 100), 7.0)
    for r in range(3):
        want[r, : start[r + 1] - start[r]] = x[start[r] : start[r + 1]]
    args = {
        "x_ptr": x,
        "start_ptr": start,
        "out_ptr": torch.zeros(3, 5, 100),
        "width": 100,
        "most": 5,
        "value": 7.0,
    }
    return Launch((3, 5), args, {"out_ptr": want})


@triton.jit
def reverse_rows(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    tl.store(out_ptr + row * cols + c, tl.load(x_ptr + row * cols + cols - 1 - c, mask=mask), mask=mask)


@outside(reverse_rows, "rows reversed by a negative stride", BLOCK=64)
def _(g):
    x = normal(g, 4, 50)
    want = {"out_ptr": x.flip(1)}
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "cols": 50}
    return Launch((4,), args, want, faults={"masked lanes read": want})


@triton.jit
def join_and_split(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 2 * N))
    even, odd = tl.split(tl.reshape(x, (N, 2)))
    tl.store(out_ptr + tl.arange(0, 2 * N), tl.interleave(-odd, even))


@outside(join_and_split, "pairs (a, b) to (-b, a) by tl.split and tl.interleave", N=64)
def _(g):
    x = normal(g, 128)
    want = torch.stack([-x[1::2], x[::2]], 1).reshape(-1)
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros(128)}, {"out_ptr": want})


@triton.jit
def causal_conv1d(x_ptr, w_ptr, b_ptr, out_ptr, seq, width, K: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.program_id(1)
    mask = c < width
    acc = tl.load(b_ptr + c, mask=mask, other=0.0)
    for k in tl.static_range(K):
        at = t + k - (K - 1)
        x = tl.load(x_ptr + at * width + c, mask=mask & (at >= 0), other=0.0)
        acc += x * tl.load(w_ptr + k * width + c, mask=mask, other=0.0)
    tl.store(out_ptr + t * width + c, acc * tl.sigmoid(acc), mask=mask)


@outside(causal_conv1d, "depthwise causal window of four with SiLU, channels last", K=4, BLOCK=128)
def _(g):
    x, w, b = normal(g, 15, 200), normal(g, 4, 200), normal(g, 200)
    padded = torch.cat([torch.zeros(3, 200), x]).double()
    y = sum(padded[k : k + 15] * w[k].double() for k in range(4)) + b.double()
    args = {"x_ptr": x, "w_ptr": w, "b_ptr": b, "out_ptr": torch.zeros_like(x), "seq": 15, "width": 200}
    return Launch((2, 15), args, {"out_ptr": torch.nn.functional.silu(y)}, 1e-5)


@triton.jit
def window_sum(x_ptr, out_ptr, n, K: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(K):
        at = offs + k - K // 2
        acc += tl.load(x_ptr + at, mask=(at >= 0) & (at < n), other=0.0)
    tl.store(out_ptr + offs, acc / K, mask=offs < n)


@outside(window_sum, "moving average over five neighbours, masked at both ends", K=5, BLOCK=128)
def _(g):
    x = normal(g, 300)
    padded = torch.nn.functional.pad(x.double(), (2, 2))
    want = {"out_ptr": sum(padded[k : k + 300] for k in range(5)) / 5}
    args = {"x_ptr": x, "out_ptr": torch.zeros(300), "n": 300}
    return Launch((3,), args, want, 1e-5, {"masked lanes read": want})


@triton.jit
def max_pool_2d(x_ptr, out_ptr, h, w, W: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, W)
    mask = c < w // 2
    best = tl.full([W], -float("inf"), tl.float32)
    for dy in tl.static_range(2):
        for dx in tl.static_range(2):
            x = tl.load(x_ptr + (2 * row + dy) * w + 2 * c + dx, mask=mask, other=-float("inf"))
            best = tl.maximum(best, x)
    tl.store(out_ptr + row * (w // 2) + c, best, mask=mask)


@outside(max_pool_2d, "2 x 2 maximum pooling of [20, 60]", W=32)
def _(g):
    x = normal(g, 20, 60)
    want = torch.nn.functional.max_pool2d(x[None, None], 2)[0, 0]
    return Launch((10,), {"x_ptr": x, "out_ptr": torch.zeros(10, 30), "h": 20, "w": 60}, {"out_ptr": want})


@triton.jit
def triangular(x_ptr, out_ptr, n, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    at = r[:, None] * n + c[None, :]
    mask = (r[:, None] < n) & (c[None, :] < n)
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + at, tl.where(r[:, None] >= c[None, :], x, 0.0), mask=mask)


@outside(triangular, "lower triangle of [45, 45], 2-D condition", R=16, C=64)
def _(g):
    x = normal(g, 45, 45)
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 45}, {"out_ptr": x.tril()})


@triton.jit
def narrow_mask(x_ptr, out_ptr, rows, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    at = r[:, None] * C + c[None, :]
    x = tl.load(x_ptr + at, mask=r[:, None] < rows, other=0.0)
    tl.store(out_ptr + at, tl.where(x > 0.25, x, -x), mask=r[:, None] < rows)


@outside(narrow_mask, "rows of four floats, condition on each element", R=32, C=4)
def _(g):
    x = normal(g, 50, 4)
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "rows": 50}
    return Launch((2,), args, {"out_ptr": torch.where(x > 0.25, x, -x)})


@triton.jit
def narrow_where(x_ptr, y_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    at = r[:, None] * cols + c[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    y = tl.load(y_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + at, tl.where((x > y) & (x > 0), x, y), mask=mask)


def _narrow(cols, dtype):
    def make(g):
        x, y = normal(g, 20, cols, dtype=dtype), normal(g, 20, cols, dtype=dtype)
        args = {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros_like(x), "rows": 20, "cols": cols}
        return Launch((2,), args, {"out_ptr": torch.where((x > y) & (x > 0), x, y)})

    return make


outside(narrow_where, "rows of 3 floats, compound condition: masks of less than 32 bytes a row", R=16, C=4)(
    _narrow(3, torch.float32)
)
outside(narrow_where, "rows of 5 f16, compound condition", name="narrow_where_f16", R=16, C=8)(
    _narrow(5, torch.float16)
)


@triton.jit
def narrow_count(x_ptr, row_ptr, column_ptr, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(row_ptr + tl.arange(0, R), tl.sum((x > 0).to(tl.int32), axis=1))
    tl.store(column_ptr + tl.arange(0, C), tl.sum((x < 0).to(tl.int32), axis=0))


@outside(narrow_count, "conditions counted by row and by column, [4, 4]", R=4, C=4)
def _(g):
    x = normal(g, 4, 4)
    args = {
        "x_ptr": x,
        "row_ptr": torch.zeros(4, dtype=torch.int32),
        "column_ptr": torch.zeros(4, dtype=torch.int32),
    }
    return Launch((1,), args, {"row_ptr": (x > 0).sum(1), "column_ptr": (x < 0).sum(0)})


@triton.jit
def narrow_broadcast(x_ptr, w_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r = tl.arange(0, R)
    c = tl.arange(0, C)
    at = r[:, None] * C + c[None, :]
    x = tl.load(x_ptr + at)
    limit = tl.load(w_ptr + r)
    keep = c[None, :] < limit[:, None]
    tl.store(out_ptr + at, tl.where(keep, x, 0.0))


@outside(narrow_broadcast, "rows of 16 cut at a length of their own", R=16, C=16)
def _(g):
    x = normal(g, 16, 16)
    limit = torch.randint(0, 17, (16,), generator=g).int()
    want = torch.where(torch.arange(16) < limit[:, None], x, torch.zeros(()))
    return Launch((1,), {"x_ptr": x, "w_ptr": limit, "out_ptr": torch.ones(16, 16)}, {"out_ptr": want})
