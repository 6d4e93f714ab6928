"""kpool ops on a CUDA GPU: values of the cases against the reference, then device times beside the copy bandwidth.

Run from the repository root: `python tools/gpu_kpool.py`.  Device times come from replayed CUDA graphs, whose
calls go round several input sets that together are larger than L2.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import triton
import triton.language as tl

from ascend_kernels.harness import gate
from ascend_kernels.kpool import entry, reference
from ascend_kernels.kpool.cases import COMPRESS, DECODE
from ascend_kernels.kpool.compare import written_slots
from ascend_kernels.kpool.kpool_compress_and_write_cache import Pools, Tiles, kpool_compress_and_write_cache
from ascend_kernels.kpool.kpool_decode_update_and_maybe_write_cache_batched import Rows
from ascend_kernels.kpool.plan import Tile
from ascend_kernels.registry import OPS

START = time.time()
L2 = 64 << 20


@triton.jit
def simple_decode_kernel(
    codes, scales, tail, tail_slots, key, score, ape, slots, positions, tokens, page_bytes, tail_block, tail_half,
    P: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One program a request, one row a load, the pool read twice, rotation by butterfly, power of two by log2."""
    request = tl.program_id(0)
    d = tl.arange(0, 128)
    for i in range(tokens):
        at = request * tokens + i
        position, slot = tl.load(positions + at), tl.load(slots + at)
        ring = tail + tl.maximum(tl.load(tail_slots + at), 0).to(tl.int64) // P * tail_block
        place = tl.maximum(position, 0) % P
        k = tl.load(key + at * 128 + d)
        s = tl.load(score + at * 128 + d)
        if (slot >= 0) & (position >= 0) & (place == P - 1):
            most = s.to(tl.float32) + tl.load(ape + (P - 1) * 128 + d)
            for p in tl.static_range(P - 1):
                v = tl.load(ring + tail_half + p * 128 + d).to(tl.float32) + tl.load(ape + p * 128 + d)
                most = tl.maximum(most, v)
            mass = tl.exp(s.to(tl.float32) + tl.load(ape + (P - 1) * 128 + d) - most)
            total = k.to(tl.float32) * mass
            for p in tl.static_range(P - 1):
                v = tl.load(ring + tail_half + p * 128 + d).to(tl.float32) + tl.load(ape + p * 128 + d)
                w = tl.exp(v - most)
                mass += w
                total += tl.load(ring + p * 128 + d).to(tl.float32) * w
            x = tl.reshape(entry.rotate_butterfly((total / mass).to(tl.bfloat16), 0, 0), (128,))
            scale = tl.exp2(tl.ceil(tl.log2(tl.maximum(tl.max(tl.abs(x)), 1e-4) / 448.0)))
            page = (slot // PAGE).to(tl.int64)
            tl.store(codes + page * page_bytes + slot % PAGE * 128 + d, (x / scale).to(tl.float8e4nv))
            tl.store(scales + page * (page_bytes // 4) + PAGE * 32 + slot % PAGE, scale)
        if position >= 0:
            tl.store(ring + place * 128 + d, k)
            tl.store(ring + tail_half + place * 128 + d, s)


def simple_decode(
    kv_cache, tail, tail_slot_mapping, key, slot_score, ape, slot_mapping, positions, pool_size, round_scale=True,
    preshuffled=False,
):  # fmt: skip
    page = kv_cache.shape[1]
    simple_decode_kernel[(key.shape[0],)](
        kv_cache.view(torch.float8_e4m3fn), kv_cache.view(torch.float32), tail, tail_slot_mapping, key, slot_score,
        ape, slot_mapping, positions, key.shape[1], kv_cache.stride(0), tail.stride(0), tail.stride(1),
        P=pool_size, PAGE=page,
    )  # fmt: skip


def device_time(call, sets, calls: int = 24, repeats: int = 15) -> float:
    """Median us of one call; `calls` of them, round the input sets, in one graph."""
    for arguments in sets:
        call(**arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(**sets[i % len(sets)])
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / calls)
    return statistics.median(times[3:])


def eager_time(call, arguments, repeats: int = 8) -> float:
    """Median us of one eager call between two events."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(**arguments)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times[2:])


def sets_of(case, size: int) -> list[dict]:
    """Enough copies of a case's arguments on the GPU to exceed L2 three times."""
    first = case.arguments("cuda")
    copies = max(1, min(24, -(-3 * L2 // max(1, size))))
    return [first] + [
        {k: v.clone() if hasattr(v, "clone") else v for k, v in first.items()} for _ in range(copies - 1)
    ]


def copy_bandwidth() -> float:
    """TB/s of a 1 GiB device-to-device copy, bytes read and written; the better of a copy and a replayed one."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    eager = eager_time(lambda: target.copy_(source), {}, repeats=20)
    replayed = device_time(lambda: target.copy_(source), [{}], calls=4)
    words = eager_time(lambda: torch.neg(source.view(torch.int32), out=target.view(torch.int32)), {}, repeats=20)
    print(f"1 GiB: copy {eager:.0f} us, in a graph {replayed:.0f} us, an elementwise kernel {words:.0f} us")
    return 2 * source.numel() / min(eager, replayed, words) / 1e6


def check_values() -> None:
    """Every edge case and the small timed ones, each implementation, through the gate."""
    begin = time.time()
    bad = count = 0
    for op in OPS.values():
        if op.family != "kpool":
            continue
        forms = op.implementations
        if "decode" in op.name:  # on a GPU it has one more
            forms += ("rows",)
            op = dataclasses.replace(op, implementations=forms)
        for name, case in op.cases.items():
            if case.timed and any(word in name for word in ("n8192-p8", "n65536", "n8192-p4", "r8192")):
                continue
            for form in forms:
                if form == "kronecker" and "compress" in op.name and not case.quick:
                    continue
                verdict = gate.verify(op, name, form)
                count += 1
                if not verdict.ok:
                    bad += 1
                    print(f"  {op.name} {name} {form}: {verdict.state}: {verdict.reason[:300]}")
    print(f"values: {count - bad} of {count} right ({time.time() - begin:.0f} s)", flush=True)


def check_bits() -> None:
    """Software and native encoder on every bf16 value, against torch's cast."""
    from ascend_kernels.kpool.entry import encode, encode_natively

    every = (
        torch.arange(-(2**15), 2**15, dtype=torch.int32, device="cuda")
        .to(torch.int16)
        .view(torch.bfloat16)
        .float()
    )
    every = every[every.isfinite()]
    got = {}
    for name, native in (("software", False), ("native", True)):
        out = torch.empty(len(every), dtype=torch.uint8, device="cuda")
        encode_all_kernel[(triton.cdiv(len(every), 1024),)](
            every, out, len(every), NATIVE=native, E=encode, N=encode_natively
        )
        got[name] = out
    want = every.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    print(
        "encoder against torch's cast on every finite bf16:",
        {k: int((v != want).sum()) for k, v in got.items()},
        "differ",
    )


@triton.jit
def encode_all_kernel(values, out, count, NATIVE: tl.constexpr, E: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    x = tl.load(values + at, mask=at < count, other=0)
    if NATIVE:
        code = N(x)
    else:
        code = E(x, True).to(tl.uint8)
    tl.store(out + at, code, mask=at < count)


TILES = {
    "n65536-p4": [Tile(32, 8, 2), Tile(16, 4, 3), Tile(8, 8, 4), Tile(16, 4, 0)],
    "n65536-p8": [Tile(16, 8, 2, False), Tile(8, 4, 4), Tile(4, 4, 4), Tile(8, 4, 3, False)],
    "n8192-p16": [Tile(4, 4, 4, False), Tile(8, 8, 0, False)],
}  # fmt: skip


def off_by(op, case, expected: dict, call) -> str:
    """Share of the written bytes that differ from the reference's; what is wrong, if more than is allowed."""
    got = case.arguments("cuda")
    call(**got)
    wrong = [op.compare(k, got[k].cpu(), expected[k], expected) for k in op.writes]
    different = (got["kv_cache"].cpu() != expected["kv_cache"]).sum() / (132 * len(written_slots(expected)))
    return next((f"WRONG {w[:150]}" for w in wrong if w), f"{100 * float(different):.4f} % of bytes differ")


def expected_of(op, case) -> dict:
    arguments = case.arguments()
    op.reference(**arguments)
    return arguments


def compress_sweep(bandwidth: float) -> None:
    op = OPS["kpool_compress_and_write_cache"]
    for name in TILES:
        size = op.bytes_moved(COMPRESS[name].arguments())
        expected = expected_of(op, COMPRESS[name])
        sets = sets_of(COMPRESS[name], size)

        def show(label: str, us: float, note: str = "", size=size, name=name) -> None:
            rate = size / us / 1e6
            print(
                f"{name:12} {label:42} {us:9.1f} us {rate:6.2f} TB/s "
                f"{100 * rate / bandwidth:5.1f} % of copy {note}",
                flush=True,
            )

        forms = {"default": None} | {
            " ".join(f"{k} {v}" for k, v in vars(t).items()): Tiles(t) for t in TILES[name]
        }
        for label, impl in (forms | {"kronecker, pool a program": Pools()}).items():
            call = functools.partial(kpool_compress_and_write_cache, impl=impl)
            try:
                note = off_by(op, COMPRESS[name], expected, call)
                show(label, device_time(call, sets), note)
            except Exception as error:
                print(f"{name} {label}: {type(error).__name__}: {str(error)[:100]}", flush=True)
        show("torch form (eager)", eager_time(reference.compress_in_torch, sets[0]))


def decode_sweep() -> None:
    op = OPS["kpool_decode_update_and_maybe_write_cache_batched"]
    forms = {"default": None, "kronecker": "kronecker"}
    for ahead, warps in ((4, 2), (4, 4), (2, 1), (1, 1)):
        forms[f"rows ahead {ahead} warps {warps}"] = Rows(ahead, warps)
    calls = {"simple, program a request": simple_decode} | {
        k: functools.partial(op.call, impl=v) for k, v in forms.items()
    }
    for name in ("b256-n4", "b256-n4-p4"):
        expected = expected_of(op, DECODE[name])
        sets = sets_of(DECODE[name], op.bytes_moved(DECODE[name].arguments()))
        for label, call in (calls | {"simple, once more": simple_decode}).items():
            try:
                note = off_by(op, DECODE[name], expected, call)
                print(f"{name:12} {label:34} {device_time(call, sets):9.2f} us {note}", flush=True)
            except Exception as error:
                print(f"{name} {label}: {type(error).__name__}: {str(error)[:100]}", flush=True)
        us = eager_time(reference.decode_in_torch, sets[0], 4)
        print(f"{name:12} {'torch form (eager)':34} {us:9.1f} us", flush=True)


def others(bandwidth: float) -> None:
    for op_name, name in (
        ("kpool_seed_tail_cache", "n8192"),
        ("expand_pools_and_append_tail", "r8192-p4"),
        ("compute_pooled_write_locs", "n8192-p4"),
    ):
        op = OPS[op_name]
        size = op.bytes_moved(op.cases[name].arguments())
        sets = sets_of(op.cases[name], size)
        us = device_time(op.call, sets)
        eager = eager_time(op.torch_form, sets[0])
        rate = size / us / 1e6
        print(
            f"{op_name:30} {name:10} {us:8.2f} us {rate:5.2f} TB/s "
            f"{100 * rate / bandwidth:5.1f} % of copy; torch {eager:.1f} us"
        )


def main() -> None:
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    bandwidth = copy_bandwidth()
    print(f"copy of 1 GiB: {bandwidth:.2f} TB/s", flush=True)
    parts = {
        "bits": check_bits,
        "compress": functools.partial(compress_sweep, bandwidth),
        "decode": decode_sweep,
        "others": functools.partial(others, bandwidth),
        "values": check_values,
    }
    for name in sys.argv[1:] or parts:
        try:
            parts[name]()
        except Exception:
            traceback.print_exc(limit=-3)
    print(f"{time.time() - START:.0f} s in all")


if __name__ == "__main__":
    main()
