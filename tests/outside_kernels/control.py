"""Loops, branches, atomics, and what has to end in a clear state: the cube unit, prints, inline assembly."""

import math

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, ints, normal, outside


@triton.jit
def collatz(x_ptr, out_ptr):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    steps = 0
    while x != 1:
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    tl.store(out_ptr + pid, steps)


@outside(collatz, "while loop on a scalar with a branch")
def _(g):
    x = torch.tensor([1, 7, 27, 97, 871], dtype=torch.int32)
    want = torch.tensor([0, 16, 111, 118, 178])
    return Launch((5,), {"x_ptr": x, "out_ptr": torch.zeros(5, dtype=torch.int32)}, {"out_ptr": want})


@triton.jit
def while_tiles(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    while start < n:
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + 1.0, mask=mask)
        start += tl.num_programs(0) * BLOCK


@outside(while_tiles, "persistent programs: a while loop over tiles", BLOCK=128)
def _(g):
    x = normal(g, 1000)
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros(1000), "n": 1000}, {"out_ptr": x + 1})


@triton.jit
def nested_loops(x_ptr, start_ptr, out_ptr, width, BLOCK: tl.constexpr):
    request = tl.program_id(0)
    begin = tl.load(start_ptr + request)
    end = tl.load(start_ptr + request + 1)
    for c0 in range(0, width, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        mask = c < width
        best = tl.full([BLOCK], -float("inf"), tl.float32)
        for row in range(begin, end):
            best = tl.maximum(best, tl.load(x_ptr + row * width + c, mask=mask, other=-float("inf")))
        tl.store(out_ptr + request * width + c, best, mask=mask)


@outside(nested_loops, "maximum over ragged rows: loops with bounds from memory, nested", BLOCK=128)
def _(g):
    start = torch.tensor([0, 1, 6, 20], dtype=torch.int32)
    x = normal(g, 20, 300)
    want = torch.stack([x[start[i] : start[i + 1]].amax(0) for i in range(3)])
    args = {"x_ptr": x, "start_ptr": start, "out_ptr": torch.zeros(3, 300), "width": 300}
    return Launch((3,), args, {"out_ptr": want})


@triton.jit
def int64_offsets(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    offs = pid * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + pid * stride + offs, mask=mask), mask=mask)


@outside(int64_offsets, "addresses and bounds in int64", BLOCK=128)
def _(g):
    x = normal(g, 1000)
    want = torch.cat([x[p * 7 + p * 128 : p * 7 + min((p + 1) * 128, 500)] for p in range(4)])
    return Launch((4,), {"x_ptr": x, "out_ptr": torch.zeros(500), "n": 500, "stride": 7}, {"out_ptr": want})


@triton.jit
def early_return(x_ptr, flag_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if tl.load(flag_ptr + pid) == 0:
        return
    at = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * 2)


@outside(early_return, "programs that return early", BLOCK=128)
def _(g):
    x, flag = normal(g, 6, 128), torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.int32)
    return Launch(
        (6,), {"x_ptr": x, "flag_ptr": flag, "out_ptr": torch.zeros_like(x)}, {"out_ptr": x * 2 * flag[:, None]}
    )


@triton.jit
def vector_through_if(x_ptr, mode_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    if tl.load(mode_ptr + pid) > 0:
        y = tl.exp(x)
    else:
        y = x * x
    tl.store(out_ptr + at, y)


@outside(vector_through_if, "a vector that a branch chooses", BLOCK=64)
def _(g):
    x, mode = normal(g, 4, 64), torch.tensor([1, 0, 0, 1], dtype=torch.int32)
    want = torch.where(mode[:, None] > 0, x.double().exp(), x.double() ** 2)
    return Launch((4,), {"x_ptr": x, "mode_ptr": mode, "out_ptr": torch.zeros_like(x)}, {"out_ptr": want}, 1e-5)


@triton.jit
def grid_3d(out_ptr, BLOCK: tl.constexpr):
    i, j, k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (i * tl.num_programs(1) + j) * tl.num_programs(2) + k
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + at * BLOCK + lane, lane + i * 100 + j * 10000 + k * 1000000)


@outside(grid_3d, "indices of a 3-D grid", BLOCK=32)
def _(g):
    i, j, k, lane = torch.meshgrid(*(torch.arange(n) for n in (2, 3, 4, 32)), indexing="ij")
    want = lane + i * 100 + j * 10000 + k * 1000000
    return Launch((2, 3, 4), {"out_ptr": torch.zeros(2, 3, 4, 32, dtype=torch.int32)}, {"out_ptr": want})


@triton.jit
def atomic_add_scalar(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_add(out_ptr, tl.sum(x, 0))


@outside(atomic_add_scalar, "sum over programs by one atomic add each", BLOCK=256)
def _(g):
    x = normal(g, 1000)
    want = x.double().sum().reshape(1)
    return Launch((4,), {"x_ptr": x, "out_ptr": torch.zeros(1), "n": 1000}, {"out_ptr": want}, 1e-4)


@triton.jit
def atomic_max_vector(x_ptr, out_ptr, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.atomic_max(out_ptr + c, tl.load(x_ptr + tl.program_id(0) * BLOCK + c))


@outside(atomic_max_vector, "maximum over programs by atomic max of a vector", BLOCK=128)
def _(g):
    x = ints(g, -1000, 1000, 7, 128)
    out = torch.full((128,), -5000, dtype=torch.int32)
    return Launch((7,), {"x_ptr": x, "out_ptr": out}, {"out_ptr": x.amax(0)})


@triton.jit
def atomic_ticket(out_ptr, order_ptr):
    ticket = tl.atomic_add(out_ptr, 1)
    tl.store(order_ptr + ticket, 1)


@outside(atomic_ticket, "a ticket: the old value of an atomic add is used")
def _(g):
    args = {"out_ptr": torch.zeros(1, dtype=torch.int32), "order_ptr": torch.zeros(6, dtype=torch.int32)}
    return Launch((6,), args, {"out_ptr": torch.tensor([6]), "order_ptr": torch.ones(6)})


@triton.jit
def atomic_cas_lock(lock_ptr, total_ptr, x_ptr):
    pid = tl.program_id(0)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(total_ptr, tl.load(total_ptr) + tl.load(x_ptr + pid))
    tl.atomic_xchg(lock_ptr, 0)


@outside(atomic_cas_lock, "a lock by atomic compare-and-swap")
def _(g):
    x = ints(g, 0, 100, 5)
    args = {
        "lock_ptr": torch.zeros(1, dtype=torch.int32),
        "total_ptr": torch.zeros(1, dtype=torch.int32),
        "x_ptr": x,
    }
    want = {"total_ptr": x.sum().reshape(1), "lock_ptr": torch.zeros(1)}
    return Launch((5,), args, want, faults={"swap gone": want, "swapped value returned": None})


@triton.jit
def atomic_cas_value(x_ptr, out_ptr):
    tl.store(out_ptr, tl.atomic_cas(x_ptr, 0, 1))


@outside(atomic_cas_value, "the value that tl.atomic_cas returns")
def _(g):
    def values(x, old):
        return {"x_ptr": torch.tensor([x]), "out_ptr": torch.tensor([old])}

    args = {"x_ptr": torch.zeros(1, dtype=torch.int32), "out_ptr": torch.full((1,), 9, dtype=torch.int32)}
    return Launch(
        (1,), args, values(1, 0), faults={"swap gone": values(0, 0), "swapped value returned": values(1, 1)}
    )


@triton.jit
def atomic_exchange(x_ptr, out_ptr):
    tl.store(out_ptr, tl.atomic_xchg(x_ptr, 7))


@outside(atomic_exchange, "the value that tl.atomic_xchg returns is used")
def _(g):
    args = {"x_ptr": torch.full((1,), 3, dtype=torch.int32), "out_ptr": torch.full((1,), 9, dtype=torch.int32)}
    want = {"x_ptr": torch.tensor([7]), "out_ptr": torch.tensor([3])}
    return Launch((1,), args, want, faults={"exchange gone": {**want, "x_ptr": torch.tensor([3])}})


@triton.jit
def atomic_bits(x_ptr, any_ptr, all_ptr, odd_ptr, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + c)
    tl.atomic_or(any_ptr + c, x)
    tl.atomic_and(all_ptr + c, x)
    tl.atomic_xor(odd_ptr + c, x)


@outside(atomic_bits, "bits over programs by atomic or, and, xor", BLOCK=64)
def _(g):
    x = ints(g, 0, 2**30, 3, 64)
    args = {"x_ptr": x, "any_ptr": torch.zeros(64, dtype=torch.int32),
            "all_ptr": torch.full((64,), -1, dtype=torch.int32),
            "odd_ptr": torch.zeros(64, dtype=torch.int32)}  # fmt: skip
    return Launch(
        (3,), args, {"any_ptr": x[0] | x[1] | x[2], "all_ptr": x[0] & x[1] & x[2], "odd_ptr": x[0] ^ x[1] ^ x[2]}
    )


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


def _matmul(g):
    a, b = normal(g, 64, 128, dtype=torch.float16), normal(g, 128, 64, dtype=torch.float16)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": torch.zeros(64, 64), "M": 64, "N": 64, "K": 128}
    return Launch((2, 2), args, {"c_ptr": a.double() @ b.double()}, 1e-3)


outside(matmul, "matrix product by tl.dot: the cube unit", BM=32, BN=32, BK=64)(_matmul)


@triton.jit
def flash_attention(q_ptr, k_ptr, v_ptr, out_ptr, s, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :])
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, s, BN):
        n = start + tl.arange(0, BN)
        k = tl.load(k_ptr + n[:, None] * D + d[None, :])
        v = tl.load(v_ptr + n[:, None] * D + d[None, :])
        score = tl.dot(q, tl.trans(k)) * scale
        new = tl.maximum(top, tl.max(score, 1))
        p = tl.exp(score - new[:, None])
        rescale = tl.exp(top - new)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(tl.float16), v)
        top = new
    tl.store(out_ptr + m[:, None] * D + d[None, :], acc / total[:, None])


@outside(flash_attention, "attention with two tl.dot and vector work between them", BM=32, BN=32, D=64)
def _(g):
    q, k, v = (normal(g, 64, 64, dtype=torch.float16) for _ in range(3))
    want = (q.double() @ k.double().t() / 8).softmax(1) @ v.double()
    args = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "out_ptr": torch.zeros(64, 64),
        "s": 64,
        "scale": 1 / math.sqrt(64),
    }
    return Launch((2,), args, {"out_ptr": want}, 1e-2)


@triton.jit
def with_print(x_ptr, out_ptr, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + c)
    tl.device_print("x", x)
    tl.store(out_ptr + c, x + 1)


@outside(with_print, "tl.device_print in the middle", BLOCK=64)
def _(g):
    x = normal(g, 64)
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros(64)}, {"out_ptr": x + 1})


@triton.jit
def with_assert(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.device_assert(n <= BLOCK, "too long")
    tl.static_assert(BLOCK % 16 == 0)
    x = tl.load(x_ptr + c, mask=c < n)
    tl.store(out_ptr + c, x + 1, mask=c < n)


@outside(with_assert, "tl.device_assert and tl.static_assert", BLOCK=64)
def _(g):
    x = normal(g, 50)
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros(50), "n": 50}, {"out_ptr": x + 1})


@triton.jit
def inline_assembly(x_ptr, out_ptr, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + c)
    y = tl.inline_asm_elementwise("shl.b32 $0, $1, 1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr + c, y)


@outside(inline_assembly, "inline assembly of another machine", BLOCK=64)
def _(g):
    x = ints(g, 0, 100, 64)
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros_like(x)}, {"out_ptr": x * 2})


@triton.jit
def with_hints(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    start = tl.multiple_of(tl.program_id(0) * BLOCK, BLOCK)
    offs = tl.max_contiguous(start + tl.arange(0, BLOCK), BLOCK)
    tl.debug_barrier()
    x = tl.load(x_ptr + offs, mask=offs < n, cache_modifier=".cg", eviction_policy="evict_first")
    tl.store(out_ptr + offs, x * 3, mask=offs < n, cache_modifier=".wb")


@outside(with_hints, "multiple_of, max_contiguous, cache modifiers, debug_barrier", BLOCK=128)
def _(g):
    x = normal(g, 300)
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros(300), "n": 300}, {"out_ptr": x * 3})
