"""Padded MoE ops on a CUDA GPU: correctness, then device time against copy bandwidth and plain forms.

Run from the repository root: `python tools/gpu_padded_moe.py`.  Device times are medians of event timings of
replayed graphs; inputs are rotated so that together they exceed the L2 cache.  TB/s are given twice: `moved`
counts every row an assignment reads or writes, `least` only what any implementation must move.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
import triton
import triton.language as tl

from ascend_kernels.harness import gate
from ascend_kernels.padded_moe import padded_gather, padded_scatter, padded_scatter_wgrad, reference, route
from ascend_kernels.registry import OPS

BEGIN = time.perf_counter()
SWEEP_UNTIL, CHECK_UNTIL = 65, 90  # seconds after the start; each new constant costs a compilation
gather_forms = sys.modules["ascend_kernels.padded_moe.padded_gather"]
scatter_forms = sys.modules["ascend_kernels.padded_moe.padded_scatter"]
wgrad_forms = sys.modules["ascend_kernels.padded_moe.padded_scatter_wgrad"]


@triton.jit
def row(i, bin_ids, bins, padded_bins):
    e = tl.load(bin_ids + i)
    shift = tl.load(padded_bins + e - 1, mask=e > 0, other=0) - tl.load(bins + e - 1, mask=e > 0, other=0)
    return (i + shift).to(tl.int64)


@triton.jit
def plain_gather(x, indices, bin_ids, bins, padded_bins, out, K: tl.constexpr, H: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(1) * 32768 + tl.program_id(0)
    source = x + (tl.load(indices + i) // K).to(tl.int64) * H
    target = out + row(i, bin_ids, bins, padded_bins) * H
    for start in range(0, H, B):
        c = start + tl.arange(0, B)
        tl.store(target + c, tl.load(source + c, mask=c < H), mask=c < H)


@triton.jit
def plain_scatter(x, indices, bin_ids, weights, bins, padded_bins, out, H: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(1) * 32768 + tl.program_id(0)
    a = tl.load(indices + i)
    source = x + row(i, bin_ids, bins, padded_bins) * H
    w = tl.load(weights + a).to(tl.float32)
    for start in range(0, H, B):
        c = start + tl.arange(0, B)
        value = tl.load(source + c, mask=c < H).to(tl.float32) * w
        tl.store(out + a.to(tl.int64) * H + c, value.to(out.dtype.element_ty), mask=c < H)


@triton.jit
def plain_wgrad(
    x, grad, indices, bin_ids, bins, padded_bins, out, K: tl.constexpr, H: tl.constexpr, B: tl.constexpr
):
    i = tl.program_id(1) * 32768 + tl.program_id(0)
    a = tl.load(indices + i)
    left = x + row(i, bin_ids, bins, padded_bins) * H
    right = grad + (a // K).to(tl.int64) * H
    total = tl.zeros([B], tl.float32)
    for start in range(0, H, B):
        c = start + tl.arange(0, B)
        total += tl.load(left + c, mask=c < H, other=0.0).to(tl.float32) * tl.load(
            right + c, mask=c < H, other=0.0
        ).to(tl.float32)
    tl.store(out + a, tl.sum(total).to(out.dtype.element_ty))


def grid(assignments):
    return (min(assignments, 32768), -(-assignments // 32768))


def block(hidden):
    return min(1024, triton.next_power_of_2(hidden))


def median(calls, number, rounds=9):
    """Device microseconds of one call; `calls(i)` makes the i-th."""
    calls(0)
    calls(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(number):
            calls(i)
    graph.replay()
    samples = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / number)
    return statistics.median(samples)


@triton.jit
def plain_copy(source, target, B: tl.constexpr):
    c = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(target + c, tl.load(source + c))


def copy_bandwidth():
    """TB/s of device-to-device copies of 1 GiB, bytes read and written: the best of three ways."""
    source, target = (torch.empty(1 << 28, dtype=torch.float32, device="cuda") for _ in range(2))
    ways = {
        "copy engine's call": lambda i: target.copy_(source),
        "torch kernel": lambda i: torch.neg(source, out=target),
        "triton kernel": lambda i: plain_copy[((1 << 28) // 8192,)](source, target, 8192, num_warps=8),
    }
    found = {name: 2 * (1 << 30) / median(way, 4) / 1e6 for name, way in ways.items()}
    written = (1 << 30) / median(lambda i: target.zero_(), 4) / 1e6
    words = ", ".join(f"{name} {speed:.2f}" for name, speed in found.items())
    print(f"copy of 1 GiB, TB/s: {words}; zeros written: {written:.2f}")
    return max(found.values())


def inputs(T, H, E, K, routing="uniform", padding=128, seed=0, dtype=torch.bfloat16):
    """Inputs on the GPU: a routing and random features."""
    g = torch.Generator(device="cuda").manual_seed(seed)
    if routing == "one-hot":
        chosen = torch.zeros(T, K, dtype=torch.int64, device="cuda")
    elif routing == "zipf":
        p = 1 / torch.arange(1, E + 1, device="cuda").float()
        chosen = torch.multinomial(p.expand(T, E), K, generator=g)
    else:
        chosen = torch.rand(T, E, device="cuda", generator=g).topk(K).indices
    if routing == "empty":
        chosen = chosen // 2 * 2
    indices, bin_ids, bins, padded_bins, _ = route(chosen, E, padding, validate=True)
    rows = int(padded_bins[-1])
    return {
        "x": torch.randn(T, H, device="cuda", generator=g, dtype=dtype),
        "y": torch.randn(rows, H, device="cuda", generator=g, dtype=dtype),
        "w": torch.rand(T * K, device="cuda", generator=g).to(dtype),
        "r": (indices, bin_ids, bins, padded_bins), "K": K, "rows": rows, "chosen": chosen,
    }  # fmt: skip


def ours(s, what, impl=None):
    indices, bin_ids, bins, padded_bins = s["r"]
    more = {} if impl is None else {"impl": impl}
    if what == "gather":
        return padded_gather(s["x"], indices, bin_ids, None, bins, padded_bins, s["K"], s["rows"], **more)
    if what == "scatter":
        return padded_scatter(s["y"], indices, bin_ids, s["w"], bins, padded_bins, s["K"], **more)
    return padded_scatter_wgrad(s["y"], s["x"], indices, bin_ids, bins, padded_bins, s["K"], **more)


def plain(s, what):
    indices, bin_ids, bins, padded_bins = s["r"]
    H, K, A = s["x"].shape[1], s["K"], len(indices)
    if what == "gather":
        out = torch.zeros(s["rows"], H, dtype=s["x"].dtype, device="cuda")
        plain_gather[grid(A)](s["x"], indices, bin_ids, bins, padded_bins, out, K, H, block(H))
    elif what == "gather, no zeros":
        out = torch.empty(s["rows"], H, dtype=s["x"].dtype, device="cuda")
        plain_gather[grid(A)](s["x"], indices, bin_ids, bins, padded_bins, out, K, H, block(H))
    elif what == "scatter":
        out = torch.empty(A // K, K, H, dtype=s["x"].dtype, device="cuda")
        plain_scatter[grid(A)](s["y"], indices, bin_ids, s["w"], bins, padded_bins, out, H, block(H))
        out = out.sum(1) if K > 1 else out
    elif what == "scatter, no sum":
        out = torch.empty(A // K, K, H, dtype=s["x"].dtype, device="cuda")
        plain_scatter[grid(A)](s["y"], indices, bin_ids, s["w"], bins, padded_bins, out, H, block(H))
    else:
        out = torch.empty(A, dtype=s["x"].dtype, device="cuda")
        plain_wgrad[grid(A)](s["y"], s["x"], indices, bin_ids, bins, padded_bins, out, K, H, block(H))
    return out


def torch_form(s, what):
    indices, bin_ids, bins, padded_bins = s["r"]
    if what == "gather":
        return reference.gather_in_torch(s["x"], indices, bin_ids, None, bins, padded_bins, s["K"], s["rows"])
    if what == "scatter":
        return reference.scatter_in_torch(s["y"], indices, bin_ids, s["w"], bins, padded_bins, s["K"])
    return reference.wgrad_in_torch(s["y"], s["x"], indices, bin_ids, bins, padded_bins, s["K"])


def exact_forms(s, what):
    """fp64 result and sums of |terms|, in slices of the features so that it fits."""
    indices, bin_ids, bins, padded_bins = (v.long() for v in s["r"])
    shift = torch.cat([bins.new_zeros(1), (padded_bins - bins)[:-1]])
    place = torch.empty_like(indices)
    place[indices] = torch.arange(len(indices), device="cuda") + shift[bin_ids]
    T, H = s["x"].shape
    if what == "scatter":
        out, terms = (torch.zeros(T, H, dtype=torch.float64, device="cuda") for _ in range(2))
        for k in range(s["K"]):
            a = torch.arange(T, device="cuda") * s["K"] + k
            part = s["y"][place[a]].double() * s["w"][a].double()[:, None]
            out += part
            terms += part.abs()
        return out, terms
    sums = []
    for a in torch.arange(len(indices), device="cuda").split(16384):
        part = s["y"][place[a]].double() * s["x"][a // s["K"]].double()
        sums.append(torch.stack([part.sum(1), part.abs().sum(1)]))
    return torch.cat(sums, 1)


def check(s, what, impl=None):
    """None, or what is wrong."""
    got = ours(s, what, impl)
    if what == "gather":
        return None if torch.equal(got, torch_form(s, what)) else "gather differs"
    expected, terms = exact_forms(s, what)
    return reference.within_rounding(what, got, expected, terms)


def check_cases():
    bad = count = 0
    ops = [op for op in OPS.values() if op.family == "padded_moe"]
    cases = sorted(ops[1].cases, key=lambda name: not ops[1].cases[name].quick)
    for op, case in ((op, case) for case in cases for op in ops if case in op.cases):
        if time.perf_counter() - BEGIN > CHECK_UNTIL:
            print("  out of time")
            break
        size = sum(v.numel() for v in op.cases[case].arguments().values() if isinstance(v, torch.Tensor))
        for impl in op.implementations if size < 3_000_000 else ():
            verdict = gate.verify(op, case, impl, repeat=False)
            count += 1
            if verdict.state not in ("ok", "unsupported here"):
                bad += 1
                print(f"  {op.name} {case} {impl}: {verdict.state}: {verdict.reason[:200]}")
    print(f"cases on the GPU: {count} checked, {bad} bad, {time.perf_counter() - BEGIN:.0f} s")


SHAPES = {
    "16384x7168 E64 K8": ((16384, 7168, 64, 8), "uniform"),
    "16384x1024 E8 K4": ((16384, 1024, 8, 4), "uniform"),
    "65536x1024 E8 K1": ((65536, 1024, 8, 1), "uniform"),
    "4096x4096 E64 K2": ((4096, 4096, 64, 2), "uniform"),
    "1024x1536 E64 K2": ((1024, 1536, 64, 2), "uniform"),
    "16384x1024 E8 K4 zipf": ((16384, 1024, 8, 4), "zipf"),
    "16384x1024 E8 K4 one-hot": ((16384, 1024, 8, 4), "one-hot"),
    "16384x1024 E8 K4 empty": ((16384, 1024, 8, 4), "empty"),
    "64x7168 E64 K8": ((64, 7168, 64, 8), "uniform"),
    "8x7168 E64 K8": ((8, 7168, 64, 8), "uniform"),
    "64x1024 E8 K4": ((64, 1024, 8, 4), "uniform"),
    "4x2 E2 K1": ((4, 2, 2, 1), "uniform"),
}


def bytes_of(s, what):
    """(moved, least)"""
    T, H = s["x"].shape
    A, row = len(s["r"][0]), H * s["x"].element_size()
    if what == "gather":
        return (A + s["rows"]) * row, (T + s["rows"]) * row
    if what == "scatter":
        return (A + T) * row, (A + T) * row
    return 2 * A * row, (A + T) * row


def number_for(moved):
    return max(2, min(20, int(2e9 // max(1, moved))))


def timed(sets, number, form, *rest, rounds=9):
    """Device microseconds of `form(one of sets, *rest)`, its results in memory of their own."""
    torch.cuda.empty_cache()
    return median(lambda i: form(sets[i % len(sets)], *rest), number, rounds)


def table_of(name, shape, routing, copy):
    sets = [inputs(*shape, routing, seed=i) for i in range(2 if shape[0] * shape[1] > 10**8 else 4)]
    for what in ("gather", "scatter", "wgrad"):
        wrong = check(sets[0], what)
        if wrong:
            print(f"{name} | {what} | WRONG: {wrong}")
        moved, least = bytes_of(sets[0], what)
        n = number_for(moved)
        us, base, by_torch = (timed(sets, n, form, what) for form in (ours, plain, torch_form))
        part = {"gather": "gather, no zeros", "scatter": "scatter, no sum"}.get(what, what)
        print(
            f"{name} | {what} | {us:.1f} | {moved / us / 1e6:.2f} ({moved / us / 1e6 / copy:.1%}) | "
            f"{least / us / 1e6:.2f} ({least / us / 1e6 / copy:.1%}) | {base:.1f} | "
            f"{timed(sets, n, plain, part):.1f} | {by_torch:.1f}",
            flush=True,
        )
    us = timed(sets, 10, lambda s: route(s["chosen"], shape[2], 128))
    by_torch = timed(sets, 10, lambda s: reference.route_in_torch(s["chosen"], shape[2], 128))
    print(f"{name} | route | {us:.1f} | | | | | {by_torch:.1f}", flush=True)


def table(copy):
    print("shape | op | us | moved TB/s (of copy) | least TB/s (of copy) | plain us | plain, part | torch us")
    for name, (shape, routing) in SHAPES.items():
        table_of(name, shape, routing, copy)
        torch.cuda.empty_cache()


def forms(kind, **fixed):
    """What makes an implementation of a kind from constants and options."""
    kinds = {
        "gather blocks": gather_forms.Blocks, "gather tokens": gather_forms.Tokens,
        "scatter sum": scatter_forms.Sum, "scatter search": scatter_forms.Search,
        "scatter blocks": scatter_forms.Blocks, "wgrad tokens": wgrad_forms.Tokens,
        "wgrad blocks": wgrad_forms.Blocks,
    }  # fmt: skip
    return kind, kinds[kind], fixed


def sweep(copy):
    large = [forms("gather tokens", num_warps=w, TILE=t) for w, t in ((4, 1024), (8, 4096), (16, 8192))]
    large += [forms("gather tokens", num_warps=w, TILE=t, STORE=".cs") for w, t in ((4, 1024), (16, 8192))]
    large += [forms("scatter sum", num_warps=w, TILE=t) for w, t in ((2, 1024), (4, 1024), (4, 2048), (8, 2048))]
    large += [forms("wgrad tokens", num_warps=w, TILE=t) for w, t in ((2, 256), (4, 512), (4, 1024), (4, 2048))]
    ones = [forms("gather blocks", num_warps=4, TILE=1024, ROWS=r) for r in (1, 2, 4)]
    ones += [forms("scatter blocks", num_warps=w, TILE=1024, ROWS=r) for w, r in ((2, 1), (4, 1), (4, 2), (4, 4))]
    ones += [forms("wgrad blocks", num_warps=w, TILE=t, ROWS=1) for w, t in ((1, 1024), (2, 1024), (2, 512))]
    small = [forms("scatter search", num_warps=w, TILE=t) for w, t in ((4, 1024), (8, 2048))]
    small += [forms("wgrad blocks", num_warps=w, TILE=t, ROWS=1)
              for w, t in ((4, 1024), (8, 2048), (8, 4096), (8, 8192), (16, 8192))]  # fmt: skip
    middle = [forms("wgrad blocks", num_warps=w, TILE=t, ROWS=1) for w, t in ((4, 1024), (8, 4096), (4, 2048))]
    for name, plans in {
        "16384x7168 E64 K8": large, "16384x1024 E8 K4": large, "8x7168 E64 K8": small, "64x7168 E64 K8": small,
        "4096x4096 E64 K2": large + middle, "65536x1024 E8 K1": ones, "64x1024 E8 K4": small,
        "1024x1536 E64 K2": large + middle,
    }.items():  # fmt: skip
        sweep_of(name, plans, copy)
        torch.cuda.empty_cache()


def sweep_of(name, plans, copy):
    shape, routing = SHAPES[name]
    sets = [inputs(*shape, routing, seed=i) for i in range(2 if shape[0] * shape[1] > 10**8 else 4)]
    print(f"sweep {name}")
    for kind, make, given in plans:
        if time.perf_counter() - BEGIN > SWEEP_UNTIL:
            print("out of time")
            return
        if given["TILE"] > 2 * shape[1]:
            continue
        what = kind.partition(" ")[0]
        moved, least = bytes_of(sets[0], what)
        us = timed(sets, number_for(moved), ours, what, make(given), rounds=5)
        words = " ".join(f"{k}={v}" for k, v in given.items())
        print(
            f"{kind} {us:.1f} us, moved {moved / us / 1e6 / copy:.1%}, "
            f"least {least / us / 1e6 / copy:.1%}: {words}",
            flush=True,
        )


def main():
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    copy = copy_bandwidth()
    table(copy)
    print(f"{time.perf_counter() - BEGIN:.0f} s")
    sweep(copy)
    copy_bandwidth()
    check_cases()


if __name__ == "__main__":
    main()
