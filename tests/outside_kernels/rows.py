"""One row or column to a program: sums, softmax, norms, losses, matrix times vector."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, ints, normal, outside


@triton.jit
def row_sum(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
    tl.store(out_ptr + row, tl.sum(acc, axis=0))


@outside(row_sum, "sum of rows of 1000, accumulated over tiles", BLOCK=256)
def _(g):
    x = normal(g, 12, 1000)
    return Launch(
        (12,), {"x_ptr": x, "out_ptr": torch.zeros(12), "cols": 1000}, {"out_ptr": x.double().sum(1)}, 1e-4
    )


@triton.jit
def column_sum(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    c = tl.program_id(0) * C + tl.arange(0, C)
    acc = tl.zeros([C], dtype=tl.float32)
    for start in range(0, rows, R):
        r = start + tl.arange(0, R)
        mask = (r[:, None] < rows) & (c[None, :] < cols)
        acc += tl.sum(tl.load(x_ptr + r[:, None] * cols + c[None, :], mask=mask, other=0.0), axis=0)
    tl.store(out_ptr + c, acc, mask=c < cols)


@outside(column_sum, "sum of columns, [70, 200]", R=16, C=64)
def _(g):
    x = normal(g, 70, 200)
    args = {"x_ptr": x, "out_ptr": torch.zeros(200), "rows": 70, "cols": 200}
    return Launch((4,), args, {"out_ptr": x.double().sum(0)}, 1e-4)


@triton.jit
def row_max_min(x_ptr, max_ptr, min_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    at = x_ptr + r[:, None] * cols + c[None, :]
    tl.store(max_ptr + r, tl.max(tl.load(at, mask=mask, other=float("-inf")), axis=1), mask=r < rows)
    tl.store(min_ptr + r, tl.min(tl.load(at, mask=mask, other=float("inf")), axis=1), mask=r < rows)


@outside(row_max_min, "maximum and minimum of rows, eight rows to a program", R=8, C=128)
def _(g):
    x = normal(g, 21, 100)
    args = {"x_ptr": x, "max_ptr": torch.zeros(21), "min_ptr": torch.zeros(21), "rows": 21, "cols": 100}
    return Launch((3,), args, {"max_ptr": x.amax(1), "min_ptr": x.amin(1)})


@triton.jit
def softmax(x_ptr, out_ptr, stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(x_ptr + row * stride + c, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride + c, e / tl.sum(e, axis=0), mask=mask)


@outside(softmax, "softmax of rows of 781", BLOCK=1024)
def _(g):
    x = normal(g, 13, 781)
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "stride": 781, "cols": 781}
    return Launch((13,), args, {"out_ptr": x.double().softmax(1)}, 1e-5)


@triton.jit
def softmax_rows_2d(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    at = r[:, None] * cols + c[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(out_ptr + at, e / tl.sum(e, axis=1)[:, None], mask=mask)


@outside(softmax_rows_2d, "softmax of short rows (60 experts), 16 rows to a program", R=16, C=64)
def _(g):
    x = normal(g, 50, 60)
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "rows": 50, "cols": 60}
    return Launch((4,), args, {"out_ptr": x.double().softmax(1)}, 1e-5)


@triton.jit
def softmax_online(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    top = -float("inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-float("inf"))
        new = tl.maximum(top, tl.max(x, axis=0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), axis=0)
        top = new
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < cols
        x = tl.load(x_ptr + row * cols + c, mask=mask)
        tl.store(out_ptr + row * cols + c, tl.exp(x - top) / total, mask=mask)


@outside(softmax_online, "softmax of rows of 3000 in one pass and a half, running maximum", BLOCK=1024)
def _(g):
    x = normal(g, 5, 3000)
    return Launch(
        (5,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "cols": 3000}, {"out_ptr": x.double().softmax(1)}, 1e-5
    )


@triton.jit
def log_softmax(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(x_ptr + row * cols + c, mask=mask, other=-float("inf")).to(tl.float32)
    x = x - tl.max(x, axis=0)
    y = x - tl.log(tl.sum(tl.exp(x), axis=0))
    tl.store(out_ptr + row * cols + c, y, mask=mask)


@outside(log_softmax, "log-softmax of rows of 500, bf16 in", BLOCK=512)
def _(g):
    x = normal(g, 9, 500, dtype=torch.bfloat16)
    args = {"x_ptr": x, "out_ptr": torch.zeros(9, 500), "cols": 500}
    return Launch((9,), args, {"out_ptr": x.double().log_softmax(1)}, 1e-5)


@triton.jit
def logsumexp(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-float("inf"))
    top = tl.max(x, 0)
    tl.store(out_ptr + row, tl.log(tl.sum(tl.exp(x - top), 0)) + top)


@outside(logsumexp, "log of the sum of exponentials of rows", BLOCK=1024)
def _(g):
    x = normal(g, 6, 900)
    return Launch(
        (6,), {"x_ptr": x, "out_ptr": torch.zeros(6), "cols": 900}, {"out_ptr": x.double().logsumexp(1)}, 1e-5
    )


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, out_ptr, mean_ptr, rstd_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * cols
    out_ptr += row * cols
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + c, mask=c < cols, other=0.0).to(tl.float32)
    mean = tl.sum(acc, axis=0) / cols
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + c, mask=c < cols, other=0.0).to(tl.float32)
        x = tl.where(c < cols, x - mean, 0.0)
        acc += x * x
    rstd = 1 / tl.sqrt(tl.sum(acc, axis=0) / cols + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < cols
        x = tl.load(x_ptr + c, mask=mask, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + c, mask=mask)
        b = tl.load(b_ptr + c, mask=mask)
        tl.store(out_ptr + c, (x - mean) * rstd * w + b, mask=mask)


@outside(layer_norm, "layer norm of rows of 1151, f16, mean and 1/std kept", BLOCK=512)
def _(g):
    x, w, b = normal(g, 7, 1151, dtype=torch.float16), normal(g, 1151), normal(g, 1151)
    v = x.double()
    rstd = (v.var(1, unbiased=False) + 1e-5).rsqrt()
    want = (v - v.mean(1, keepdim=True)) * rstd[:, None] * w.double() + b.double()
    args = {"x_ptr": x, "w_ptr": w, "b_ptr": b, "out_ptr": torch.zeros_like(x), "mean_ptr": torch.zeros(7),
            "rstd_ptr": torch.zeros(7), "cols": 1151, "eps": 1e-5}  # fmt: skip
    return Launch((7,), args, {"out_ptr": want, "mean_ptr": v.mean(1), "rstd_ptr": rstd}, 5e-3)


@triton.jit
def rms_norm(x_ptr, w_ptr, out_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
    w = tl.load(w_ptr + c, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * cols + c, (x * rstd * w).to(out_ptr.dtype.element_ty), mask=mask)


@outside(rms_norm, "RMS norm of rows of 3584, bf16", BLOCK=4096)
def _(g):
    x, w = normal(g, 11, 3584, dtype=torch.bfloat16), normal(g, 3584, dtype=torch.bfloat16)
    v = x.double()
    want = v * (v.pow(2).mean(1, keepdim=True) + 1e-6).rsqrt() * w.double()
    args = {"x_ptr": x, "w_ptr": w, "out_ptr": torch.zeros_like(x), "cols": 3584, "eps": 1e-6}
    return Launch((11,), args, {"out_ptr": want}, 1e-2)


@triton.jit
def fused_add_rms_norm(x_ptr, residual_ptr, w_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0).to(tl.float32)
    r = tl.load(residual_ptr + row * cols + c, mask=mask, other=0.0).to(tl.float32)
    s = x + r
    tl.store(residual_ptr + row * cols + c, s.to(residual_ptr.dtype.element_ty), mask=mask)
    rstd = 1 / tl.sqrt(tl.sum(s * s, axis=0) / cols + eps)
    w = tl.load(w_ptr + c, mask=mask, other=0.0).to(tl.float32)
    tl.store(x_ptr + row * cols + c, (s * rstd * w).to(x_ptr.dtype.element_ty), mask=mask)


@outside(fused_add_rms_norm, "residual add and RMS norm, both in place, f16, rows of 2880", BLOCK=4096)
def _(g):
    x, r, w = (normal(g, *s, dtype=torch.float16) for s in ((8, 2880), (8, 2880), (2880,)))
    s = x.double() + r.double()
    want = s * (s.pow(2).mean(1, keepdim=True) + 1e-6).rsqrt() * w.double()
    args = {"x_ptr": x, "residual_ptr": r, "w_ptr": w, "cols": 2880, "eps": 1e-6}
    return Launch((8,), args, {"x_ptr": want, "residual_ptr": s}, 4e-3)


@triton.jit
def group_norm(x_ptr, w_ptr, b_ptr, out_ptr, spatial, eps, PER: tl.constexpr, S: tl.constexpr):
    image, group = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, PER)
    s = tl.arange(0, S)
    mask = (s[None, :] < spatial) & (c[:, None] < PER)
    channel = group * PER + c
    at = ((image * tl.num_programs(1) * PER + channel[:, None]) * spatial) + s[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    n = PER * spatial
    mean = tl.sum(x) / n
    d = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d) / n + eps)
    w = tl.load(w_ptr + channel)
    b = tl.load(b_ptr + channel)
    tl.store(out_ptr + at, d * rstd * w[:, None] + b[:, None], mask=mask)


@outside(group_norm, "group norm of [2, 24, 49] in three groups", PER=8, S=64)
def _(g):
    x, w, b = normal(g, 2, 24, 49), normal(g, 24), normal(g, 24)
    want = torch.nn.functional.group_norm(x.double(), 3, w.double(), b.double(), 1e-5)
    args = {"x_ptr": x, "w_ptr": w, "b_ptr": b, "out_ptr": torch.zeros_like(x), "spatial": 49, "eps": 1e-5}
    return Launch((2, 3), args, {"out_ptr": want}, 1e-4)


@triton.jit
def l2_normalise(x_ptr, out_ptr, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    at = r[:, None] * cols + c[None, :]
    x = tl.load(x_ptr + at, mask=c[None, :] < cols, other=0.0)
    norm = tl.sqrt(tl.sum(x * x, axis=1))
    tl.store(out_ptr + at, x / tl.maximum(norm, 1e-12)[:, None], mask=c[None, :] < cols)


@outside(l2_normalise, "rows divided by their length, four rows to a program", R=4, C=256)
def _(g):
    x = normal(g, 16, 192)
    want = torch.nn.functional.normalize(x.double(), dim=1)
    return Launch((4,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "cols": 192}, {"out_ptr": want}, 1e-5)


@triton.jit
def _welford_join(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    d = mean_b - mean_a
    n = n_a + n_b
    part = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + d * part, m2_a + m2_b + d * d * n_a * part, n


@triton.jit
def welford(x_ptr, mean_ptr, var_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0)
    n = tl.where(mask, 1.0, 0.0)
    mean, m2, n = tl.reduce((x, tl.zeros([BLOCK], tl.float32), n), 0, _welford_join)
    tl.store(mean_ptr + row, mean)
    tl.store(var_ptr + row, m2 / n)


@outside(welford, "mean and variance by tl.reduce with a function of its own on three values", BLOCK=128)
def _(g):
    x = normal(g, 4, 100)
    args = {"x_ptr": x, "mean_ptr": torch.zeros(4), "var_ptr": torch.zeros(4), "cols": 100}
    v = x.double()
    return Launch((4,), args, {"mean_ptr": v.mean(1), "var_ptr": v.var(1, unbiased=False)}, 1e-5)


@triton.jit
def cross_entropy(logits_ptr, label_ptr, loss_ptr, lse_ptr, cols, ignore, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(label_ptr + row)
    top = -float("inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * cols + c, mask=c < cols, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), 0)
        top = new
    lse = top + tl.log(total)
    tl.store(lse_ptr + row, lse)
    if label == ignore:
        tl.store(loss_ptr + row, 0.0)
    else:
        tl.store(loss_ptr + row, lse - tl.load(logits_ptr + row * cols + label).to(tl.float32))


@outside(cross_entropy, "cross entropy of 10 rows of 5003 bf16 logits, int64 labels, one ignored", BLOCK=1024)
def _(g):
    x, label = normal(g, 10, 5003, dtype=torch.bfloat16), ints(g, 0, 5003, 10, dtype=torch.int64)
    label[3] = -100
    loss = torch.nn.functional.cross_entropy(x.double(), label, reduction="none", ignore_index=-100)
    args = {"logits_ptr": x, "label_ptr": label, "loss_ptr": torch.zeros(10), "lse_ptr": torch.zeros(10),
            "cols": 5003, "ignore": -100}  # fmt: skip
    return Launch((10,), args, {"loss_ptr": loss, "lse_ptr": x.double().logsumexp(1)}, 1e-5)


@triton.jit
def matrix_vector(w_ptr, x_ptr, out_ptr, n, k, N: tl.constexpr, K: tl.constexpr):
    r = tl.program_id(0) * N + tl.arange(0, N)
    acc = tl.zeros([N, K], dtype=tl.float32)
    for start in range(0, k, K):
        c = start + tl.arange(0, K)
        mask = (r[:, None] < n) & (c[None, :] < k)
        w = tl.load(w_ptr + r[:, None] * k + c[None, :], mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + c, mask=c < k, other=0.0).to(tl.float32)
        acc += w * x[None, :]
    tl.store(out_ptr + r, tl.sum(acc, axis=1), mask=r < n)


@outside(matrix_vector, "w[75, 600] @ x[600] in bf16 without tl.dot", N=16, K=128)
def _(g):
    w, x = normal(g, 75, 600, dtype=torch.bfloat16), normal(g, 600, dtype=torch.bfloat16)
    args = {"w_ptr": w, "x_ptr": x, "out_ptr": torch.zeros(75), "n": 75, "k": 600}
    return Launch((5,), args, {"out_ptr": w.double() @ x.double()}, 1e-3)


@triton.jit
def argmax_rows(x_ptr, at_ptr, best_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best = -float("inf")
    at = 0
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-float("inf"))
        m = tl.max(x, axis=0)
        if m > best:
            best = m
            at = start + tl.argmax(x, axis=0)
    tl.store(at_ptr + row, at)
    tl.store(best_ptr + row, best)


@outside(argmax_rows, "argmax over rows of 2500 in tiles, the first of equals", BLOCK=1024)
def _(g):
    x = normal(g, 6, 2500)
    x[2, 700] = x[2, 1900] = 50.0
    args = {"x_ptr": x, "at_ptr": torch.zeros(6, dtype=torch.int32), "best_ptr": torch.zeros(6), "cols": 2500}
    return Launch(
        (6,), args, {"at_ptr": torch.tensor([int(r.numpy().argmax()) for r in x]), "best_ptr": x.amax(1)}
    )


@triton.jit
def max_with_index(x_ptr, at_ptr, best_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-1)
    best, at = tl.max(x, axis=0, return_indices=True)
    tl.store(at_ptr + row, at)
    tl.store(best_ptr + row, best)


@outside(max_with_index, "tl.max with indices on int32", BLOCK=256)
def _(g):
    x = ints(g, 0, 10**9, 5, 200)
    args = {"x_ptr": x, "at_ptr": torch.zeros(5, dtype=torch.int32), "best_ptr": torch.zeros(5, dtype=torch.int32),
            "cols": 200}  # fmt: skip
    return Launch((5,), args, {"at_ptr": x.argmax(1), "best_ptr": x.amax(1)})


@triton.jit
def any_nan(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=0.0)
    tl.store(out_ptr + row, tl.max((x != x).to(tl.int32), axis=0))


@outside(any_nan, "does a row hold a NaN", BLOCK=256)
def _(g):
    x = normal(g, 6, 250)
    x[1, 3] = x[4, 249] = float("nan")
    args = {"x_ptr": x, "out_ptr": torch.zeros(6, dtype=torch.int32), "cols": 250}
    return Launch((6,), args, {"out_ptr": x.isnan().any(1).int()})
