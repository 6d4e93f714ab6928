"""Around attention: rotary embeddings, paged caches, one-query attention on the vector unit."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, ints, normal, outside


def _angles(g, tokens, half):
    angle = torch.rand(tokens, half, generator=g) * 6
    return angle.cos(), angle.sin()


@triton.jit
def rotary_halves(x_ptr, cos_ptr, sin_ptr, heads, HALF: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HALF)
    cos = tl.load(cos_ptr + token * HALF + d)
    sin = tl.load(sin_ptr + token * HALF + d)
    base = x_ptr + (token * heads + head) * 2 * HALF
    a = tl.load(base + d).to(tl.float32)
    b = tl.load(base + HALF + d).to(tl.float32)
    tl.store(base + d, (a * cos - b * sin).to(x_ptr.dtype.element_ty))
    tl.store(base + HALF + d, (b * cos + a * sin).to(x_ptr.dtype.element_ty))


@outside(rotary_halves, "rotary embedding, halves of the head, f16 in place", HALF=64)
def _(g):
    x = normal(g, 5, 4, 128, dtype=torch.float16)
    cos, sin = _angles(g, 5, 64)
    a, b = x.double().chunk(2, -1)
    c, s = cos[:, None].double(), sin[:, None].double()
    want = torch.cat([a * c - b * s, b * c + a * s], -1)
    return Launch((5, 4), {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "heads": 4}, {"x_ptr": want}, 3e-3)


@triton.jit
def rotary_pairs(x_ptr, cos_ptr, sin_ptr, out_ptr, heads, HALF: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HALF)
    cos = tl.load(cos_ptr + token * HALF + d)
    sin = tl.load(sin_ptr + token * HALF + d)
    base = (token * heads + head) * 2 * HALF
    a = tl.load(x_ptr + base + 2 * d).to(tl.float32)
    b = tl.load(x_ptr + base + 2 * d + 1).to(tl.float32)
    tl.store(out_ptr + base + 2 * d, a * cos - b * sin)
    tl.store(out_ptr + base + 2 * d + 1, b * cos + a * sin)


@outside(rotary_pairs, "rotary embedding, neighbouring pairs, strided loads and stores", HALF=32)
def _(g):
    x = normal(g, 6, 3, 64)
    cos, sin = _angles(g, 6, 32)
    a, b = x[..., ::2].double(), x[..., 1::2].double()
    c, s = cos[:, None].double(), sin[:, None].double()
    want = torch.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)
    args = {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "out_ptr": torch.zeros_like(x), "heads": 3}
    return Launch((6, 3), args, {"out_ptr": want}, 1e-5)


@triton.jit
def rotary_heads_2d(x_ptr, cos_ptr, sin_ptr, heads, H: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0)
    h = tl.arange(0, H)
    d = tl.arange(0, HALF)
    at = (token * heads + h[:, None]) * 2 * HALF + d[None, :]
    mask = h[:, None] < heads
    cos = tl.load(cos_ptr + token * HALF + d)[None, :]
    sin = tl.load(sin_ptr + token * HALF + d)[None, :]
    a = tl.load(x_ptr + at, mask=mask, other=0.0)
    b = tl.load(x_ptr + at + HALF, mask=mask, other=0.0)
    tl.store(x_ptr + at, a * cos - b * sin, mask=mask)
    tl.store(x_ptr + at + HALF, b * cos + a * sin, mask=mask)


@outside(rotary_heads_2d, "rotary embedding of all six heads as one 2-D tile", H=8, HALF=64)
def _(g):
    x = normal(g, 4, 6, 128)
    cos, sin = _angles(g, 4, 64)
    a, b = x.double().chunk(2, -1)
    c, s = cos[:, None].double(), sin[:, None].double()
    want = torch.cat([a * c - b * s, b * c + a * s], -1)
    return Launch((4,), {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "heads": 6}, {"x_ptr": want}, 1e-5)


@triton.jit
def reshape_and_cache(key_ptr, cache_ptr, slot_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    slot = tl.load(slot_ptr + token)
    if slot < 0:
        return
    d = tl.arange(0, BLOCK)
    mask = d < width
    tl.store(cache_ptr + slot * width + d, tl.load(key_ptr + token * width + d, mask=mask), mask=mask)


@outside(reshape_and_cache, "keys into a paged cache by slot, int64 slots, padding skipped", BLOCK=512)
def _(g):
    key = normal(g, 9, 384, dtype=torch.float16)
    slot = torch.randperm(40, generator=g)[:9]
    slot[4] = -1
    cache = torch.zeros(40, 384, dtype=torch.float16)
    want = cache.clone()
    for token, to in enumerate(slot.tolist()):
        if to >= 0:
            want[to] = key[token]
    return Launch((9,), {"key_ptr": key, "cache_ptr": cache, "slot_ptr": slot, "width": 384}, {"cache_ptr": want})


@triton.jit
def paged_decode(q_ptr, k_ptr, v_ptr, table_ptr, len_ptr, out_ptr, scale, max_pages,
                 PAGE: tl.constexpr, D: tl.constexpr):  # fmt: skip
    request = tl.program_id(0)
    d = tl.arange(0, D)
    p = tl.arange(0, PAGE)
    q = tl.load(q_ptr + request * D + d).to(tl.float32)
    length = tl.load(len_ptr + request)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    for page in range(0, tl.cdiv(length, PAGE)):
        block = tl.load(table_ptr + request * max_pages + page)
        at = (block * PAGE + p[:, None]) * D + d[None, :]
        mask = page * PAGE + p < length
        k = tl.load(k_ptr + at).to(tl.float32)
        score = tl.sum(q[None, :] * k, axis=1) * scale
        score = tl.where(mask, score, -float("inf"))
        new = tl.maximum(top, tl.max(score, axis=0))
        weight = tl.exp(score - new)
        rescale = tl.exp(top - new)
        v = tl.load(v_ptr + at).to(tl.float32)
        acc = acc * rescale + tl.sum(weight[:, None] * v, axis=0)
        total = total * rescale + tl.sum(weight, axis=0)
        top = new
    tl.store(out_ptr + request * D + d, acc / total)


@outside(paged_decode, "attention of one query over pages of 16, block table, running softmax", PAGE=16, D=128)
def _(g):
    q = normal(g, 3, 128, dtype=torch.float16)
    k, v = (normal(g, 12, 16, 128, dtype=torch.float16) for _ in range(2))
    table = torch.stack([torch.randperm(12, generator=g)[:5] for _ in range(3)]).int()
    length = torch.tensor([1, 37, 80], dtype=torch.int32)
    want = torch.zeros(3, 128, dtype=torch.float64)
    for r in range(3):
        keys = k[table[r].long()].reshape(-1, 128)[: length[r]].double()
        values = v[table[r].long()].reshape(-1, 128)[: length[r]].double()
        want[r] = ((keys @ q[r].double()) * 128**-0.5).softmax(0) @ values
    args = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "table_ptr": table, "len_ptr": length,
            "out_ptr": torch.zeros(3, 128), "scale": 128**-0.5, "max_pages": 5}  # fmt: skip
    return Launch((3,), args, {"out_ptr": want}, 1e-4)


@triton.jit
def merge_states(a_ptr, a_lse_ptr, b_ptr, b_lse_ptr, out_ptr, lse_ptr, D: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    la = tl.load(a_lse_ptr + row)
    lb = tl.load(b_lse_ptr + row)
    top = tl.maximum(la, lb)
    wa = tl.exp(la - top)
    wb = tl.exp(lb - top)
    total = wa + wb
    a = tl.load(a_ptr + row * D + d)
    b = tl.load(b_ptr + row * D + d)
    tl.store(out_ptr + row * D + d, a * (wa / total) + b * (wb / total))
    tl.store(lse_ptr + row, tl.log(total) + top)


@outside(merge_states, "two partial attention results joined by their log-sums", D=128)
def _(g):
    a, b, la, lb = normal(g, 10, 128), normal(g, 10, 128), normal(g, 10) * 3, normal(g, 10) * 3
    la[0] = -float("inf")
    lse = torch.logaddexp(la.double(), lb.double())
    want = a.double() * (la.double() - lse).exp()[:, None] + b.double() * (lb.double() - lse).exp()[:, None]
    args = {"a_ptr": a, "a_lse_ptr": la, "b_ptr": b, "b_lse_ptr": lb, "out_ptr": torch.zeros_like(a),
            "lse_ptr": torch.zeros(10)}  # fmt: skip
    return Launch((10,), args, {"out_ptr": want, "lse_ptr": lse}, 1e-5)


@triton.jit
def causal_softmax(x_ptr, out_ptr, s, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * s + c, mask=c < s, other=-float("inf")) * scale
    x = tl.where(c <= row % s, x, -float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * s + c, e / tl.sum(e, axis=0), mask=c < s)


@outside(causal_softmax, "softmax under a causal mask, two heads of 30 x 30", BLOCK=32)
def _(g):
    x = normal(g, 2, 30, 30)
    masked = (x.double() * 0.25).masked_fill(torch.ones(30, 30).triu(1).bool(), -float("inf"))
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "s": 30, "scale": 0.25}
    return Launch((60,), args, {"out_ptr": masked.softmax(-1)}, 1e-5)


@triton.jit
def slot_mapping(pos_ptr, table_ptr, request_ptr, out_ptr, n, width, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    pos = tl.load(pos_ptr + offs, mask=mask, other=0)
    request = tl.load(request_ptr + offs, mask=mask, other=0)
    block = tl.load(table_ptr + request * width + pos // PAGE, mask=mask, other=0)
    tl.store(out_ptr + offs, block * PAGE + pos % PAGE, mask=mask)


def _slots(dtype):
    def make(g):
        n, width = 300, 20
        pos, table = ints(g, 0, 16 * width, n, dtype=dtype), ints(g, 0, 500, 7, width, dtype=dtype)
        request = ints(g, 0, 7, n, dtype=dtype)
        want = table[request.long(), (pos // 16).long()] * 16 + pos % 16
        args = {"pos_ptr": pos, "table_ptr": table, "request_ptr": request, "out_ptr": torch.zeros_like(want),
                "n": n, "width": width}  # fmt: skip
        return Launch((3,), args, {"out_ptr": want})

    return make


outside(slot_mapping, "slot of a token: block table of its request, page, rest; int32", PAGE=16, BLOCK=128)(
    _slots(torch.int32)
)
outside(slot_mapping, "the same in int64", name="slot_mapping_int64", PAGE=16, BLOCK=128)(_slots(torch.int64))


@triton.jit
def gather_pages(cache_ptr, table_ptr, start_ptr, out_ptr, pages, PAGE: tl.constexpr, D: tl.constexpr):
    request, page = tl.program_id(0), tl.program_id(1)
    length = tl.load(start_ptr + request + 1) - tl.load(start_ptr + request)
    if page * PAGE >= length:
        return
    p = tl.arange(0, PAGE)
    d = tl.arange(0, D)
    block = tl.load(table_ptr + request * pages + page)
    mask = (page * PAGE + p)[:, None] < length
    rows = tl.load(cache_ptr + (block * PAGE + p[:, None]) * D + d[None, :], mask=mask)
    to = tl.load(start_ptr + request) + page * PAGE + p
    tl.store(out_ptr + to[:, None] * D + d[None, :], rows, mask=mask)


@outside(gather_pages, "pages of a cache gathered into one dense buffer, early return", PAGE=16, D=64)
def _(g):
    cache = normal(g, 15, 16, 64)
    table = torch.stack([torch.randperm(15, generator=g)[:4] for _ in range(3)]).int()
    start = torch.tensor([0, 5, 69, 101], dtype=torch.int32)
    parts = [cache[table[r].long()].reshape(-1, 64)[: int(start[r + 1] - start[r])] for r in range(3)]
    args = {
        "cache_ptr": cache,
        "table_ptr": table,
        "start_ptr": start,
        "out_ptr": torch.zeros(101, 64),
        "pages": 4,
    }
    return Launch((3, 4), args, {"out_ptr": torch.cat(parts)})
