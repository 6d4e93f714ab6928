"""Optimisers, gradients, vision: longer bodies, several outputs, loops until something converges."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, ints, normal, outside


@triton.jit
def adamw(p_ptr, g_ptr, m_ptr, v_ptr, n, lr, beta1, beta2, eps, decay, fix1, fix2, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    p = tl.load(p_ptr + offs, mask=mask)
    g = tl.load(g_ptr + offs, mask=mask)
    m = beta1 * tl.load(m_ptr + offs, mask=mask) + (1 - beta1) * g
    v = beta2 * tl.load(v_ptr + offs, mask=mask) + (1 - beta2) * g * g
    p = p * (1 - lr * decay) - lr * (m / fix1) / (tl.sqrt(v / fix2) + eps)
    tl.store(p_ptr + offs, p, mask=mask)
    tl.store(m_ptr + offs, m, mask=mask)
    tl.store(v_ptr + offs, v, mask=mask)


@outside(adamw, "one AdamW step of 1700 parameters, three tensors in place", BLOCK=512)
def _(g):
    p, grad, m, v = normal(g, 1700), normal(g, 1700), normal(g, 1700), normal(g, 1700) ** 2
    m1 = 0.9 * m.double() + 0.1 * grad.double()
    v1 = 0.999 * v.double() + 0.001 * grad.double() ** 2
    p1 = p.double() * (1 - 1e-3 * 0.01) - 1e-3 * (m1 / 0.5) / ((v1 / 0.2).sqrt() + 1e-8)
    args = {"p_ptr": p, "g_ptr": grad, "m_ptr": m, "v_ptr": v, "n": 1700, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999,
            "eps": 1e-8, "decay": 0.01, "fix1": 0.5, "fix2": 0.2}  # fmt: skip
    return Launch((4,), args, {"p_ptr": p1, "m_ptr": m1, "v_ptr": v1}, 1e-5)


@triton.jit
def layer_norm_backward(
    dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    c = tl.arange(0, BLOCK)
    mask = c < cols
    w = tl.load(w_ptr + c, mask=mask, other=0.0)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0) * ROWS, (tl.program_id(0) + 1) * ROWS):
        x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row * cols + c, mask=mask, other=0.0)
        rstd = tl.load(rstd_ptr + row)
        unit = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
        wdy = w * dy
        along = tl.sum(unit * wdy, 0) / cols
        level = tl.sum(wdy, 0) / cols
        tl.store(dx_ptr + row * cols + c, (wdy - (unit * along + level)) * rstd, mask=mask)
        dw += dy * unit
        db += dy
    tl.atomic_add(dw_ptr + c, dw, mask=mask)
    tl.atomic_add(db_ptr + c, db, mask=mask)


@outside(
    layer_norm_backward, "gradients of layer norm, those of weight and bias by atomic adds", ROWS=5, BLOCK=256
)
def _(g):
    x, dy, w = normal(g, 20, 200), normal(g, 20, 200), normal(g, 200)
    a, b, c = (t.double().requires_grad_() for t in (x, w, torch.zeros(200)))
    torch.nn.functional.layer_norm(a, (200,), b, c, 1e-5).backward(dy.double())
    args = {"dy_ptr": dy, "x_ptr": x, "w_ptr": w, "mean_ptr": x.mean(1), "dx_ptr": torch.zeros_like(x),
            "rstd_ptr": (x.var(1, unbiased=False) + 1e-5).rsqrt(), "dw_ptr": torch.zeros(200),
            "db_ptr": torch.zeros(200), "cols": 200}  # fmt: skip
    order = ("dy_ptr", "x_ptr", "w_ptr", "mean_ptr", "rstd_ptr", "dx_ptr", "dw_ptr", "db_ptr", "cols")
    want = {"dx_ptr": a.grad, "dw_ptr": b.grad, "db_ptr": c.grad}
    return Launch((4,), {name: args[name] for name in order}, want, 1e-4)


@triton.jit
def cross_entropy_backward(logits_ptr, label_ptr, lse_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    label = tl.load(label_ptr + row)
    lse = tl.load(lse_ptr + row)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < cols
        p = tl.exp(tl.load(logits_ptr + row * cols + c, mask=mask, other=-float("inf")) - lse)
        tl.store(out_ptr + row * cols + c, p - tl.where(c == label, 1.0, 0.0), mask=mask)


@outside(cross_entropy_backward, "gradient of cross entropy, int64 labels", BLOCK=256)
def _(g):
    x, label = normal(g, 4, 600), ints(g, 0, 600, 4, dtype=torch.int64)
    want = x.double().softmax(1)
    want[torch.arange(4), label] -= 1
    args = {
        "logits_ptr": x,
        "label_ptr": label,
        "lse_ptr": x.logsumexp(1),
        "out_ptr": torch.zeros_like(x),
        "cols": 600,
    }
    return Launch((4,), args, {"out_ptr": want}, 1e-5)


@triton.jit
def mandelbrot(out_ptr, width, height, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    cr = col.to(tl.float32) / width * 3 - 2
    ci = (row + col * 0).to(tl.float32) / height * 2 - 1
    zr = tl.zeros([BLOCK], tl.float32)
    zi = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.int32)
    for _ in range(STEPS):
        inside = zr * zr + zi * zi < 4
        real = zr * zr - zi * zi + cr
        zi = tl.where(inside, 2 * zr * zi + ci, zi)
        zr = tl.where(inside, real, zr)
        count += inside.to(tl.int32)
    tl.store(out_ptr + row * BLOCK + col, count)


@outside(mandelbrot, "escape times: conditions carried as vectors", BLOCK=64, STEPS=12)
def _(g):
    cr = torch.arange(64).float() / 64 * 3 - 2
    ci = (torch.arange(5).float() / 8 * 2 - 1)[:, None].expand(5, 64)
    zr, zi, count = torch.zeros(5, 64), torch.zeros(5, 64), torch.zeros(5, 64, dtype=torch.int32)
    for _ in range(12):
        inside = zr * zr + zi * zi < 4
        real = zr * zr - zi * zi + cr
        zi, zr = torch.where(inside, 2 * zr * zi + ci, zi), torch.where(inside, real, zr)
        count += inside.int()
    args = {"out_ptr": torch.zeros(5, 64, dtype=torch.int32), "width": 64, "height": 8}
    return Launch((5,), args, {"out_ptr": count})


@triton.jit
def newton(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = x * 0 + 1.0
    step = 1.0
    rounds = 0
    while (step > 1e-5) & (rounds < 50):
        better = 0.5 * (y + x / y)
        step = tl.max(tl.abs(better - y), 0)
        y = better
        rounds += 1
    tl.store(out_ptr + offs, y)


@outside(newton, "square roots by iteration: a while loop that carries a vector until it converges", BLOCK=64)
def _(g):
    x = torch.rand(64, generator=g) * 10 + 0.1
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros(64)}, {"out_ptr": x.double().sqrt()}, 1e-5)


@triton.jit
def wide_softmax(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * cols + c, e / tl.sum(e, 0), mask=c < cols)


@outside(wide_softmax, "softmax of rows of 32 000 as one tile, too wide for the unified buffer", BLOCK=32768)
def _(g):
    x = normal(g, 1, 32000)
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "cols": 32000}
    return Launch((1,), args, {"out_ptr": x.double().softmax(1)}, 1e-5)


@triton.jit
def box_overlap(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    mask = j < n
    ax0, ay0, ax1, ay1 = (
        tl.load(a_ptr + i * 4), tl.load(a_ptr + i * 4 + 1), tl.load(a_ptr + i * 4 + 2), tl.load(a_ptr + i * 4 + 3)
    )  # fmt: skip
    bx0 = tl.load(b_ptr + j * 4, mask=mask, other=0.0)
    by0 = tl.load(b_ptr + j * 4 + 1, mask=mask, other=0.0)
    bx1 = tl.load(b_ptr + j * 4 + 2, mask=mask, other=0.0)
    by1 = tl.load(b_ptr + j * 4 + 3, mask=mask, other=0.0)
    wide = tl.maximum(tl.minimum(ax1, bx1) - tl.maximum(ax0, bx0), 0.0)
    high = tl.maximum(tl.minimum(ay1, by1) - tl.maximum(ay0, by0), 0.0)
    both = wide * high
    area = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - both
    tl.store(out_ptr + i * n + j, both / area, mask=mask)


@outside(box_overlap, "intersection over union of boxes, coordinates four apart", BLOCK=32)
def _(g):
    a, b = (
        torch.cat([p := torch.rand(n, 2, generator=g), p + torch.rand(n, 2, generator=g) + 0.1], 1)
        for n in (4, 20)
    )
    sides = torch.minimum(a[:, None, 2:], b[:, 2:]) - torch.maximum(a[:, None, :2], b[:, :2])
    both = sides.clamp(min=0).double().prod(2)
    area = [(box[:, 2:] - box[:, :2]).double().prod(1) for box in (a, b)]
    args = {"a_ptr": a, "b_ptr": b, "out_ptr": torch.zeros(4, 20), "n": 20}
    return Launch((4,), args, {"out_ptr": both / (area[0][:, None] + area[1] - both)}, 1e-4)


@triton.jit
def bilinear(x_ptr, out_ptr, h, w, out_h, out_w, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    mask = col < out_w
    y = tl.maximum((row + 0.5) * h / out_h - 0.5, 0.0)
    y0 = tl.floor(y).to(tl.int32)
    y1 = tl.minimum(y0 + 1, h - 1)
    fy = y - y0
    x = tl.maximum((col + 0.5) * w / out_w - 0.5, 0.0)
    x0 = tl.floor(x).to(tl.int32)
    x1 = tl.minimum(x0 + 1, w - 1)
    fx = x - x0
    top = tl.load(x_ptr + y0 * w + x0, mask=mask, other=0.0) * (1 - fx)
    top += tl.load(x_ptr + y0 * w + x1, mask=mask, other=0.0) * fx
    low = tl.load(x_ptr + y1 * w + x0, mask=mask, other=0.0) * (1 - fx)
    low += tl.load(x_ptr + y1 * w + x1, mask=mask, other=0.0) * fx
    tl.store(out_ptr + row * out_w + col, top * (1 - fy) + low * fy, mask=mask)


@outside(bilinear, "bilinear upsampling of [7, 13] to [14, 26]", BLOCK=32)
def _(g):
    x = normal(g, 7, 13)
    want = {"out_ptr": torch.nn.functional.interpolate(x[None, None].double(), (14, 26), mode="bilinear")[0, 0]}
    args = {"x_ptr": x, "out_ptr": torch.zeros(14, 26), "h": 7, "w": 13, "out_h": 14, "out_w": 26}
    return Launch((14,), args, want, 1e-4, {"masked lanes read": want})


@triton.jit
def batch_norm(x_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, out_ptr, channels, spatial, eps, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    channel = plane % channels
    scale = tl.load(w_ptr + channel) / tl.sqrt(tl.load(var_ptr + channel) + eps)
    shift = tl.load(b_ptr + channel) - tl.load(mean_ptr + channel) * scale
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + plane * spatial + offs, mask=offs < spatial)
    tl.store(out_ptr + plane * spatial + offs, x * scale + shift, mask=offs < spatial)


@outside(batch_norm, "batch norm for inference, [2, 5, 49]", BLOCK=64)
def _(g):
    x, mean, w, b, var = normal(g, 2, 5, 49), normal(g, 5), normal(g, 5), normal(g, 5), normal(g, 5) ** 2 + 0.1
    want = torch.nn.functional.batch_norm(x.double(), *(t.double() for t in (mean, var, w, b)), eps=1e-5)
    args = {"x_ptr": x, "mean_ptr": mean, "var_ptr": var, "w_ptr": w, "b_ptr": b, "out_ptr": torch.zeros_like(x),
            "channels": 5, "spatial": 49, "eps": 1e-5}  # fmt: skip
    return Launch((10,), args, {"out_ptr": want}, 1e-5)


@triton.jit
def join_splits(part_ptr, lse_ptr, out_ptr, splits, D: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for s in range(splits):
        lse = tl.load(lse_ptr + row * splits + s)
        new = tl.maximum(top, lse)
        old, add = tl.exp(top - new), tl.exp(lse - new)
        acc = acc * old + add * tl.load(part_ptr + (row * splits + s) * D + d)
        total = total * old + add
        top = new
    tl.store(out_ptr + row * D + d, acc / total)


@outside(join_splits, "partial results of split attention joined in a loop", D=64)
def _(g):
    part, lse = normal(g, 3, 5, 64), normal(g, 3, 5) * 2
    want = (lse.double().softmax(1)[:, :, None] * part.double()).sum(1)
    args = {"part_ptr": part, "lse_ptr": lse, "out_ptr": torch.zeros(3, 64), "splits": 5}
    return Launch((3,), args, {"out_ptr": want}, 1e-5)
