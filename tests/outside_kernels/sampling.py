"""Steps of a sampler: temperature, penalties, top-k, top-p, drawing, verifying drafts."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, ints, normal, outside


@triton.jit
def temperature(logits_ptr, t_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    t = tl.load(t_ptr + row)
    t = tl.where(t < 1e-5, 1.0, t)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < cols
        x = tl.load(logits_ptr + row * cols + c, mask=mask).to(tl.float32)
        tl.store(out_ptr + row * cols + c, x / t, mask=mask)


@outside(temperature, "logits divided by the request's temperature, zero means greedy", BLOCK=1024)
def _(g):
    x, t = normal(g, 5, 2050, dtype=torch.bfloat16), torch.tensor([0.7, 0.0, 1.3, 1.0, 2.0])
    want = x.float() / torch.where(t < 1e-5, torch.ones(()), t)[:, None]
    args = {"logits_ptr": x, "t_ptr": t, "out_ptr": torch.zeros(5, 2050), "cols": 2050}
    return Launch((5,), args, {"out_ptr": want}, 1e-6)


@triton.jit
def repetition_penalty(logits_ptr, seen_ptr, penalty_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    penalty = tl.load(penalty_ptr + row)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < cols
        x = tl.load(logits_ptr + row * cols + c, mask=mask, other=0.0)
        seen = tl.load(seen_ptr + row * cols + c, mask=mask, other=0)
        y = tl.where(x > 0, x / penalty, x * penalty)
        tl.store(logits_ptr + row * cols + c, tl.where(seen != 0, y, x), mask=mask)


@outside(repetition_penalty, "repetition penalty under an int8 mask of tokens seen", BLOCK=512)
def _(g):
    x, seen = normal(g, 3, 1300), ints(g, 0, 2, 3, 1300, dtype=torch.int8)
    penalty = torch.tensor([1.0, 1.5, 2.0])
    y = torch.where(x > 0, x / penalty[:, None], x * penalty[:, None])
    args = {"logits_ptr": x, "seen_ptr": seen, "penalty_ptr": penalty, "cols": 1300}
    return Launch((3,), args, {"logits_ptr": torch.where(seen != 0, y, x)}, 1e-6)


@triton.jit
def top_k_iterative(x_ptr, value_ptr, index_ptr, cols, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=-float("inf"))
    for k in range(K):
        best = tl.max(x, axis=0)
        at = tl.argmax(x, axis=0)
        tl.store(value_ptr + row * K + k, best)
        tl.store(index_ptr + row * K + k, at)
        x = tl.where(c == at, -float("inf"), x)


@outside(top_k_iterative, "top 8 of 60 experts by repeated argmax", K=8, BLOCK=64)
def _(g):
    x = normal(g, 11, 60)
    value, index = x.topk(8, dim=1)
    args = {
        "x_ptr": x,
        "value_ptr": torch.zeros(11, 8),
        "index_ptr": torch.zeros(11, 8, dtype=torch.int32),
        "cols": 60,
    }
    return Launch((11,), args, {"value_ptr": value, "index_ptr": index})


@triton.jit
def moe_gate(logits_ptr, weight_ptr, expert_ptr, rows, experts, R: tl.constexpr, E: tl.constexpr, K: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    e = tl.arange(0, E)
    inside = (r[:, None] < rows) & (e[None, :] < experts)
    x = tl.load(logits_ptr + r[:, None] * experts + e[None, :], mask=inside, other=-float("inf"))
    p = tl.exp(x - tl.max(x, axis=1)[:, None])
    p = p / tl.sum(p, axis=1)[:, None]
    for k in tl.static_range(K):
        best = tl.max(p, axis=1)
        at = tl.argmax(p, axis=1)
        tl.store(weight_ptr + r * K + k, best, mask=r < rows)
        tl.store(expert_ptr + r * K + k, at, mask=r < rows)
        p = tl.where(e[None, :] == at[:, None], -1.0, p)


@outside(moe_gate, "softmax over 16 experts and top 2, eight tokens to a program", R=8, E=16, K=2)
def _(g):
    x = normal(g, 24, 16)
    weight, expert = x.double().softmax(1).topk(2, dim=1)
    args = {"logits_ptr": x, "weight_ptr": torch.zeros(24, 2), "expert_ptr": torch.zeros(24, 2, dtype=torch.int32),
            "rows": 24, "experts": 16}  # fmt: skip
    return Launch((3,), args, {"weight_ptr": weight, "expert_ptr": expert.int()}, 1e-5)


@triton.jit
def sort_row(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + c, mask=c < cols, other=float("inf"))
    tl.store(out_ptr + row * cols + c, tl.sort(x), mask=c < cols)


@outside(sort_row, "tl.sort of rows of 128", BLOCK=128)
def _(g):
    x = normal(g, 4, 128)
    return Launch((4,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "cols": 128}, {"out_ptr": x.sort(1).values})


@triton.jit
def sort_descending(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.sort(tl.load(x_ptr + at), descending=True))


def _sorted(dtype):
    def make(g):
        x = (normal(g, 3, 64) * 40).to(dtype)
        return Launch(
            (3,), {"x_ptr": x, "out_ptr": torch.zeros_like(x)}, {"out_ptr": x.sort(1, descending=True).values}
        )

    return make


outside(sort_descending, "tl.sort, largest first, f16", name="sort_f16", BLOCK=64)(_sorted(torch.float16))
outside(sort_descending, "tl.sort, largest first, int32", name="sort_int32", BLOCK=64)(_sorted(torch.int32))


@triton.jit
def top_k_builtin(x_ptr, out_ptr, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + row * K + tl.arange(0, K), tl.topk(x, K))


@outside(top_k_builtin, "tl.topk: a bitonic sort of 64 elements", K=8, BLOCK=64)
def _(g):
    x = normal(g, 2, 64)
    return Launch((2,), {"x_ptr": x, "out_ptr": torch.zeros(2, 8)}, {"out_ptr": x.topk(8, dim=1).values})


@triton.jit
def top_p_sorted(p_ptr, top_p_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    p = tl.load(p_ptr + row * cols + c, mask=mask, other=0.0)
    before = tl.cumsum(p, 0) - p
    kept = tl.where(before < tl.load(top_p_ptr + row), p, 0.0)
    tl.store(out_ptr + row * cols + c, kept / tl.sum(kept, 0), mask=mask)


@outside(top_p_sorted, "top-p on sorted probabilities: running sum, cut, renormalise", BLOCK=256)
def _(g):
    p = normal(g, 5, 200).mul(2).softmax(1).sort(1, descending=True).values
    top_p = torch.tensor([0.1, 0.5, 0.9, 0.95, 1.0])
    before = p.double().cumsum(1) - p.double()
    kept = torch.where(before < top_p[:, None].double(), p.double(), torch.zeros((), dtype=torch.float64))
    args = {"p_ptr": p, "top_p_ptr": top_p, "out_ptr": torch.zeros_like(p), "cols": 200}
    return Launch((5,), args, {"out_ptr": kept / kept.sum(1, keepdim=True)}, 1e-4)


@triton.jit
def top_p_threshold(p_ptr, top_p_ptr, out_ptr, cols, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    p = tl.load(p_ptr + row * cols + c, mask=c < cols, other=0.0)
    target = tl.load(top_p_ptr + row)
    low = 0.0
    high = tl.max(p, 0)
    for _ in range(STEPS):
        mid = (low + high) * 0.5
        mass = tl.sum(tl.where(p >= mid, p, 0.0), 0)
        enough = mass >= target
        low = tl.where(enough, mid, low)
        high = tl.where(enough, high, mid)
    tl.store(out_ptr + row, low)


@outside(top_p_threshold, "top-p without a sort: threshold by 20 bisections", STEPS=20, BLOCK=512)
def _(g):
    p = normal(g, 4, 500).mul(2).softmax(1)
    top_p = torch.tensor([0.3, 0.6, 0.9, 0.99])
    want = torch.zeros(4)
    for r in range(4):
        low, high = torch.zeros(()), p[r].max()
        for _ in range(20):
            mid = (low + high) * 0.5
            enough = bool(p[r][p[r] >= mid].double().sum() >= top_p[r])
            low, high = (mid, high) if enough else (low, mid)
        want[r] = low
    args = {"p_ptr": p, "top_p_ptr": top_p, "out_ptr": torch.zeros(4), "cols": 500}
    return Launch((4,), args, {"out_ptr": want}, 1e-6)


@triton.jit
def min_p(logits_ptr, min_p_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(logits_ptr + row * cols + c, mask=mask, other=-float("inf"))
    bound = tl.max(x, 0) + tl.log(tl.load(min_p_ptr + row))
    tl.store(logits_ptr + row * cols + c, tl.where(x < bound, -float("inf"), x), mask=mask)


@outside(min_p, "min-p filter in place", BLOCK=1024)
def _(g):
    x, bound = normal(g, 4, 900), torch.tensor([0.01, 0.1, 0.3, 0.9])
    cut = x.amax(1, keepdim=True) + bound.log()[:, None]
    args = {"logits_ptr": x, "min_p_ptr": bound, "cols": 900}
    return Launch((4,), args, {"logits_ptr": torch.where(x < cut, torch.tensor(-float("inf")), x)})


@triton.jit
def gumbel_argmax(logits_ptr, uniform_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(logits_ptr + row * cols + c, mask=mask, other=-float("inf"))
    u = tl.load(uniform_ptr + row * cols + c, mask=mask, other=0.5)
    noise = -tl.log(-tl.log(u))
    tl.store(out_ptr + row, tl.argmax(x + noise, 0).to(tl.int64))


@outside(gumbel_argmax, "a draw by Gumbel noise and argmax, int64 token out", BLOCK=512)
def _(g):
    x, u = normal(g, 7, 400), torch.rand(7, 400, generator=g).clamp(1e-6, 1 - 1e-6)
    want = (x.double() - (-u.double().log()).log()).argmax(1)
    args = {"logits_ptr": x, "uniform_ptr": u, "out_ptr": torch.zeros(7, dtype=torch.int64), "cols": 400}
    return Launch((7,), args, {"out_ptr": want})


@triton.jit
def multinomial(p_ptr, u_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    p = tl.load(p_ptr + row * cols + c, mask=c < cols, other=0.0)
    below = tl.cumsum(p, 0) <= tl.load(u_ptr + row)
    tl.store(out_ptr + row, tl.sum((below & (c < cols)).to(tl.int32), 0))


@outside(multinomial, "a draw by running sum and count", BLOCK=128)
def _(g):
    p, u = normal(g, 8, 100).softmax(1), torch.rand(8, generator=g)
    want = (p.double().cumsum(1) <= u[:, None].double()).sum(1).int()
    args = {"p_ptr": p, "u_ptr": u, "out_ptr": torch.zeros(8, dtype=torch.int32), "cols": 100}
    return Launch((8,), args, {"out_ptr": want})


@triton.jit
def greedy_verify(draft_ptr, target_ptr, bonus_ptr, start_ptr, out_ptr, WIDTH: tl.constexpr):
    request = tl.program_id(0)
    begin = tl.load(start_ptr + request)
    count = tl.load(start_ptr + request + 1) - begin
    rejected = False
    for i in range(count):
        if not rejected:
            token = tl.load(target_ptr + begin + i)
            tl.store(out_ptr + request * WIDTH + i, token)
            if tl.load(draft_ptr + begin + i) != token:
                rejected = True
    if not rejected:
        tl.store(out_ptr + request * WIDTH + count, tl.load(bonus_ptr + request))


@outside(greedy_verify, "greedy verification of ragged drafts, bonus token when all pass", WIDTH=5)
def _(g):
    lengths = [3, 0, 4, 1, 2]
    start = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    draft, target = ints(g, 0, 2, 10), ints(g, 0, 2, 10)
    draft[:3] = target[:3]
    bonus = ints(g, 5, 9, 5)
    want = torch.full((5, 5), -1, dtype=torch.int32)
    for r, n in enumerate(lengths):
        good = True
        for i in range(n):
            if good:
                want[r, i] = target[start[r] + i]
                good = bool(draft[start[r] + i] == target[start[r] + i])
        if good:
            want[r, n] = bonus[r]
    args = {"draft_ptr": draft, "target_ptr": target, "bonus_ptr": bonus, "start_ptr": start,
            "out_ptr": torch.full((5, 5), -1, dtype=torch.int32)}  # fmt: skip
    return Launch((5,), args, {"out_ptr": want})


@triton.jit
def token_bitmask(logits_ptr, bits_ptr, cols, words, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < cols
        word = tl.load(bits_ptr + row * words + c // 32, mask=mask, other=0)
        allowed = (word >> (c % 32)) & 1
        x = tl.load(logits_ptr + row * cols + c, mask=mask)
        tl.store(logits_ptr + row * cols + c, tl.where(allowed != 0, x, -float("inf")), mask=mask)


@outside(token_bitmask, "grammar mask: 32 tokens a word, forbidden ones to -inf", BLOCK=256)
def _(g):
    x, bits = normal(g, 2, 500), ints(g, -(2**31), 2**31, 2, 16)
    c = torch.arange(500)
    allowed = (bits.long()[:, c // 32] >> (c % 32)) & 1
    args = {"logits_ptr": x, "bits_ptr": bits, "cols": 500, "words": 16}
    return Launch((2,), args, {"logits_ptr": torch.where(allowed != 0, x, torch.tensor(-float("inf")))})
