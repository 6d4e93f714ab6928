"""Launches of the test kernels with numpy references: what compiled code must compute."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ascend_model.memory import bf16_to_f32, f32_to_bf16
from tests import model_kernels as kernels


@dataclass(frozen=True)
class Launch:
    """One launch: arguments in order, and what the named ones must hold afterwards."""

    grid: int | tuple[int, ...]
    args: dict[str, Any]
    expected: dict[str, np.ndarray]
    tolerance: float = 0.0


@dataclass(frozen=True)
class Case:
    """A kernel with its constants; `types` overrides the element type of an argument, for bf16 bits."""

    name: str
    kernel: Any
    constants: dict[str, int]
    launch: Callable[[np.random.Generator], Launch]
    types: dict[str, str] = field(default_factory=dict)
    over_reads: bool = False
    """The compiled form reads whole tiles of the source, also past its end."""


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _ints(rng: np.random.Generator, low: int, high: int, n: int, kind: Any = np.int32) -> np.ndarray:
    return rng.integers(low, high, n).astype(kind)


def bf16(values: np.ndarray) -> np.ndarray:
    return f32_to_bf16(values.astype(np.float32))


def _add(n: int, block: int, programs: int = 0) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        x, y = _normal(rng, n), _normal(rng, n)
        args: dict[str, Any] = {"x": x, "y": y, "out": np.full(n, np.nan, np.float32), "n": n}
        if programs:
            args["programs"] = programs
        return Launch(programs or -(-n // block), args, {"out": x + y})

    return make


def _copy(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 4096)
    return Launch(4, {"x": x, "out": np.zeros_like(x)}, {"out": x})


def _float_math(rng: np.random.Generator) -> Launch:
    n = 3000
    a, b = _normal(rng, n), _normal(rng, n)
    x, y = a.astype(np.float64), b.astype(np.float64)
    r = np.exp(x) + np.log(np.abs(y) + 1) + np.sqrt(np.abs(x)) / np.sqrt(np.abs(y) + 0.5)
    r = np.where(a > b, r, -r)
    r = np.maximum(r, -4) / (y * y + 2) + 1 / (1 + np.exp(-x))
    return Launch(3, {"x": a, "y": b, "out": np.zeros(n, np.float32), "n": n}, {"out": r}, 1e-5)


def _cast(source: str, target: str) -> Callable[[np.random.Generator], Launch]:
    kinds = {
        "f32": np.float32,
        "f16": np.float16,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
    }

    def make(rng: np.random.Generator) -> Launch:
        n = 2500
        raw: np.ndarray
        if source == "bf16":
            raw = bf16(_normal(rng, n))
            wide = bf16_to_f32(raw)
        elif source[0] == "i":
            raw = _ints(rng, -40, 40, n, kinds[source])
            wide = raw.astype(np.float32)
        else:
            raw = _normal(rng, n).astype(kinds[source])
            wide = raw.astype(np.float32)
        v = wide * np.float32(1.7) + np.float32(0.3)
        if target == "bf16":
            out = bf16(v)
        elif target[0] == "i":
            out = np.trunc(v).astype(kinds[target])
        else:
            out = v.astype(kinds[target])
        return Launch(3, {"x": raw, "out": np.zeros_like(out), "n": n}, {"out": out})

    return make


def _int_math(kind: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        n = 700
        span = 12 if kind is np.int8 else 3000
        x, y = _ints(rng, -span, span, n, kind), _ints(rng, -span, span, n, kind)
        want = x * kind(3) + y - np.minimum(x, y) + np.maximum(x, y)
        return Launch(3, {"x": x, "y": y, "out": np.zeros_like(x), "n": n}, {"out": want})

    return make


def _bits(kind: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        n = 120
        x = _ints(rng, -(2**31), 2**31, n, kind)
        want = (((x & 0x7FFFF) << 3) | (x >> 20)) ^ 0x55AA
        return Launch(1, {"x": x, "out": np.zeros_like(x), "n": n}, {"out": want})

    return make


def _power_of_two(rng: np.random.Generator) -> Launch:
    n = 900
    x = np.exp(rng.normal(size=n) * 5).astype(np.float32)
    x[:4] = [1.0, 2.0, 0.5, 1.0000001]
    want = np.exp2(np.ceil(np.log2(x.astype(np.float64)))).astype(np.float32)
    return Launch(1, {"x": x, "out": np.zeros_like(x), "n": n}, {"out": want})


def _compare(kind: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        n = 700
        x, y = _ints(rng, 0, 10, n, kind), _ints(rng, 0, 10, n, kind)
        want = (x < y) * 1 + (x == y) * 2 + ((x > 3) & (y != 5)) * 4 + ((x >= 7) | (y <= 2)) * 8
        args = {"x": x, "y": y, "out": np.zeros(n, np.int32), "n": n}
        return Launch(-(-n // (256 if kind is np.int64 else 1024)), args, {"out": want.astype(np.int32)})

    return make


def _where_not(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 1000)
    return Launch(1, {"x": x, "out": np.zeros_like(x), "n": 1000}, {"out": np.where(x > 0.5, 0, x)})


def _softmax(half: bool) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        kind = np.float16 if half else np.float32
        x = _normal(rng, 7, 781).astype(kind)
        e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        want = e / e.sum(axis=1, keepdims=True)
        args = {"x": x, "out": np.zeros_like(x), "cols": 781, "stride": 781}
        return Launch(7, args, {"out": want}, 3e-3 if half else 1e-5)

    return make


def _row_stats(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 6, 1000)
    out = {name: np.zeros(6, np.float32) for name in ("total", "largest", "smallest")}
    want = {"total": x.sum(axis=1, dtype=np.float64), "largest": x.max(axis=1), "smallest": x.min(axis=1)}
    return Launch(6, {"x": x, **out, "cols": 1000}, want, 1e-4)


def _sum_2d(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 3, 16, 64)
    args = {"x": x, "rows_out": np.zeros((3, 16), np.float32), "cols_out": np.zeros((3, 64), np.float32)}
    return Launch(3, args, {"rows_out": x.sum(axis=2), "cols_out": x.sum(axis=1)}, 1e-4)


def _int_sum(kind: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        x = _ints(rng, -(10**6), 10**6, 200, kind)
        want = np.array([x.sum(), max(int(x.max()), 0)], kind)
        return Launch(1, {"x": x, "out": np.zeros(2, kind), "n": 200}, {"out": want})

    return make


def _cumsum(kind: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        x = _ints(rng, -100, 100, 201, kind)
        return Launch(1, {"x": x, "out": np.zeros_like(x), "n": 201}, {"out": np.cumsum(x).astype(kind)}, 1e-4)

    return make


def _dot_rows(rng: np.random.Generator) -> Launch:
    x, y = bf16(_normal(rng, 5, 1300)), bf16(_normal(rng, 5, 1300))
    want = (bf16_to_f32(x).astype(np.float64) * bf16_to_f32(y)).sum(axis=1)
    return Launch(5, {"x": x, "y": y, "out": np.zeros(5, np.float32), "cols": 1300}, {"out": want}, 1e-3)


def _argmax(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 5, 500)
    x[2, 100] = x[2, 300] = 99.0
    return Launch(
        5, {"x": x, "out": np.zeros(5, np.int32), "cols": 500}, {"out": x.argmax(axis=1).astype(np.int32)}
    )


def _row_gather(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 9, 700)
    index = _ints(rng, 0, 9, 6)
    args = {"x": x, "index": index, "out": np.zeros((6, 700), np.float32), "cols": 700}
    return Launch(6, args, {"out": x[index]})


def _lane_gather(rng: np.random.Generator) -> Launch:
    x, index = _normal(rng, 1000), _ints(rng, 0, 1000, 600)
    return Launch(3, {"x": x, "index": index, "out": np.zeros(600, np.float32), "n": 600}, {"out": x[index]})


def _lane_scatter(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 200)
    index = rng.permutation(300)[:200].astype(np.int32)
    want = np.full(300, -1, np.float32)
    want[index] = x
    return Launch(1, {"x": x, "index": index, "out": np.full(300, -1, np.float32), "n": 200}, {"out": want})


def _atomic_sum(kind: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        x = _ints(rng, -50, 50, 900, kind)
        want = np.array([x.sum() + 5], kind)
        return Launch(4, {"x": x, "out": np.array([5], kind), "n": 900}, {"out": want}, 1e-4)

    return make


def _atomic_rows(kind: Any, join: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        x = _ints(rng, -50, 50, 4 * 256, kind).reshape(4, 256)
        start = _ints(rng, -20, 20, 256, kind)
        want = join.reduce(np.concatenate([start[None], x]), axis=0)
        return Launch(4, {"x": x, "out": start.copy()}, {"out": want}, 1e-5)

    return make


def _scalar_walk(rng: np.random.Generator) -> Launch:
    x = _ints(rng, -5, 6, 77)
    want = np.array([x[x > 0].sum() - (x <= 0).sum()], np.int32)
    return Launch(1, {"x": x, "out": np.zeros(1, np.int32), "n": 77}, {"out": want})


def _collatz(rng: np.random.Generator) -> Launch:
    x = np.array([1, 7, 27, 97, 871], np.int32)
    return Launch(5, {"x": x, "out": np.zeros(5, np.int32)}, {"out": np.array([0, 16, 111, 118, 178], np.int32)})


def _scalar_fill(rng: np.random.Generator) -> Launch:
    return Launch(1, {"out": np.zeros(50, np.int32), "n": 40}, {"out": np.r_[np.arange(40) * 3 - 1, np.zeros(10)]})


def _slots(kind: Any) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        n = 700
        pos, table = _ints(rng, 0, 128 * 20, n, kind), _ints(rng, 0, 99, 20)
        want = (table[pos // 128] * 128 + pos % 128).astype(kind)
        args = {"positions": pos, "table": table, "out": np.zeros(n, kind), "n": n, "width": 20}
        return Launch(3, args, {"out": want})

    return make


def _transpose(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 16, 32)
    return Launch(1, {"x": x, "out": np.zeros((32, 16), np.float32)}, {"out": x.T.copy()})


def _interleave(rng: np.random.Generator) -> Launch:
    x, y = _normal(rng, 64), _normal(rng, 64)
    return Launch(1, {"x": x, "y": y, "out": np.zeros(128, np.float32)}, {"out": np.stack([x, y], 1).reshape(-1)})


def _split(rng: np.random.Generator) -> Launch:
    x = _normal(rng, 128)
    args = {"x": x, "even": np.zeros(64, np.float32), "odd": np.zeros(64, np.float32)}
    return Launch(1, args, {"even": x[::2], "odd": x[1::2]})


def _masked_gather(rng: np.random.Generator) -> Launch:
    x, weight = _normal(rng, 9, 400), _normal(rng, 11)
    index = _ints(rng, 0, 9, 11)
    args = {"x": x, "index": index, "weight": weight, "out": np.zeros((11, 400), np.float32), "n": 11, "cols": 400}
    return Launch(4, args, {"out": x[index] * weight[:, None]})


def _pool_softmax(rng: np.random.Generator) -> Launch:
    k, score, ape = bf16(_normal(rng, 5, 4, 128)), bf16(_normal(rng, 5, 4, 128)), _normal(rng, 4, 128)
    v = bf16_to_f32(score).astype(np.float64) + ape
    e = np.exp(v - v.max(axis=1, keepdims=True))
    want = (bf16_to_f32(k) * e).sum(axis=1) / e.sum(axis=1)
    args = {"k": k, "score": score, "ape": ape, "out": np.zeros((5, 128), np.uint16)}
    return Launch(5, args, {"out": want}, 1e-2)


def _absmax(rng: np.random.Generator) -> Launch:
    x = bf16(_normal(rng, 6, 128))
    wide = bf16_to_f32(x)
    s = np.maximum(np.abs(wide).max(axis=1), np.float32(1e-4)) * np.float32(0.0022321429569274187)
    q = np.clip(wide / s[:, None], -127, 127)
    args = {"x": x, "code": np.zeros((6, 128), np.int8), "scale": np.zeros(6, np.float32)}
    return Launch(6, args, {"code": np.trunc(q).astype(np.int8), "scale": s})


def _two_axes(rng: np.random.Generator) -> Launch:
    x = _ints(rng, 0, 99, 3 * 600).reshape(3, 600)
    args = {"x": x, "out": np.zeros_like(x), "R": 3, "C": 600}
    return Launch((3, 3), args, {"out": x + np.arange(3, dtype=np.int32)[:, None]})


def token_pool(
    rng: np.random.Generator, lengths: list[int], pool_len: int, pool_rows: int, kind: Any = np.int32
) -> Launch:
    """assign_req_to_token_pool: request r's row, columns [start, end), gets the next values of the source."""
    bs = len(lengths)
    rows = rng.permutation(pool_rows)[:bs].astype(kind)
    start = np.array([rng.integers(0, pool_len - n + 1) for n in lengths], kind)
    end = (start + np.array(lengths)).astype(kind)
    source = _ints(rng, 1, 10**6, sum(lengths), kind)
    pool = -np.ones((pool_rows, pool_len), kind)
    want = pool.copy()
    at = 0
    for r, n in enumerate(lengths):
        want[rows[r], start[r] : end[r]] = source[at : at + n]
        at += n
    args = {"rows": rows, "pool": pool, "start": start, "end": end, "source": source, "pool_len": pool_len}
    return Launch(bs, args, {"pool": want})


def _assign(kind: Any = np.int32) -> Callable[[np.random.Generator], Launch]:
    def make(rng: np.random.Generator) -> Launch:
        lengths = [int(n) for n in rng.integers(0, 700, 13)]
        lengths[:6] = [0, 1, 127, 128, 129, 257]
        return token_pool(rng, lengths, 1024, 17, kind)

    return make


_B = {"BLOCK": 1024}
_POOL = {"UPPER": 64, "BLOCK": 128}
UNSAFE = ("carried_top", "while", "reversed_mask", "arith_mask", "or_mask")
"""Patterns whose store the compiler turns into load, select, store of the whole tile."""
OVER_READS = (*UNSAFE, "or_offset")
ASSIGN = (
    "derived", "carried", "carried_top", "while", "where", "reversed_mask", "arith_mask", "or_mask", "or_offset",
    "modulo", "prefetch", "wide_prefix",
)  # fmt: skip

CASES = (
    Case("add", kernels.add_tail, _B, _add(5000, 1024)),
    Case("add_exact", kernels.add_tail, _B, _add(4096, 1024)),
    Case("add_short", kernels.add_tail, _B, _add(3, 1024)),
    Case("add_many", kernels.add_tail, _B, _add(100_000, 1024)),
    Case("add_persistent", kernels.add_persistent, _B, _add(20_000, 1024, 7)),
    Case("copy", kernels.copy_block, _B, _copy),
    Case("float_math", kernels.float_math, _B, _float_math),
    Case("cast_f32_bf16", kernels.cast_bf16, _B, _cast("f32", "bf16"), {"out": "bf16"}),
    Case("cast_bf16_bf16", kernels.cast_bf16, _B, _cast("bf16", "bf16"), {"x": "bf16", "out": "bf16"}),
    Case("cast_bf16_f16", kernels.cast_bf16, _B, _cast("bf16", "f16"), {"x": "bf16"}),
    Case("cast_i32_f16", kernels.cast_bf16, _B, _cast("i32", "f16")),
    Case("cast_i8_i32", kernels.cast_bf16, _B, _cast("i8", "i32")),
    Case("cast_i64_i64", kernels.cast_bf16, _B, _cast("i64", "i64")),
    Case("cast_i16_i8", kernels.cast_bf16, _B, _cast("i16", "i8")),
    Case("int_math", kernels.int_math, {"BLOCK": 256}, _int_math(np.int32)),
    Case("int_math_i64", kernels.int_math, {"BLOCK": 256}, _int_math(np.int64)),
    Case("int_math_i16", kernels.int_math, {"BLOCK": 256}, _int_math(np.int16)),
    Case("int_math_i8", kernels.int_math, {"BLOCK": 256}, _int_math(np.int8)),
    Case("bit_ops", kernels.bit_ops, {"BLOCK": 128}, _bits(np.int32)),
    Case("bit_ops_i64", kernels.bit_ops, {"BLOCK": 128}, _bits(np.int64)),
    Case("power_of_two", kernels.bit_cast_scale, _B, _power_of_two),
    Case("compare", kernels.compare_ops, _B, _compare(np.int32)),
    Case("compare_f32", kernels.compare_ops, _B, _compare(np.float32)),
    Case("compare_i64", kernels.compare_ops, {"BLOCK": 256}, _compare(np.int64)),
    Case("where_not", kernels.where_not, _B, _where_not),
    Case("softmax", kernels.softmax, _B, _softmax(False)),
    Case("softmax_f16", kernels.softmax, _B, _softmax(True)),
    Case("row_stats", kernels.row_stats, _B, _row_stats),
    Case("sum_2d", kernels.sum_2d, {"R": 16, "C": 64}, _sum_2d),
    Case("int_sum", kernels.int_sum, {"BLOCK": 256}, _int_sum(np.int32)),
    Case("int_sum_i64", kernels.int_sum, {"BLOCK": 256}, _int_sum(np.int64)),
    Case("cumsum", kernels.cumsum, {"BLOCK": 256}, _cumsum(np.int32)),
    Case("cumsum_f32", kernels.cumsum, {"BLOCK": 256}, _cumsum(np.float32)),
    Case("dot_rows", kernels.dot_rows, {"BLOCK": 512}, _dot_rows, {"x": "bf16", "y": "bf16"}),
    Case("argmax", kernels.argmax_row, {"BLOCK": 512}, _argmax),
    Case("row_gather", kernels.row_gather, {"BLOCK": 512}, _row_gather),
    Case("lane_gather", kernels.lane_gather, {"BLOCK": 256}, _lane_gather),
    Case("lane_scatter", kernels.lane_scatter, {"BLOCK": 256}, _lane_scatter),
    Case("atomic_sum", kernels.atomic_sum, {"BLOCK": 256}, _atomic_sum(np.int32)),
    Case("atomic_sum_f32", kernels.atomic_sum, {"BLOCK": 256}, _atomic_sum(np.float32)),
    Case("atomic_rows", kernels.atomic_rows, {"BLOCK": 256}, _atomic_rows(np.float32, np.add)),
    Case("atomic_max", kernels.atomic_max_rows, {"BLOCK": 256}, _atomic_rows(np.int32, np.maximum)),
    Case("scalar_walk", kernels.scalar_walk, {}, _scalar_walk),
    Case("collatz", kernels.collatz, {}, _collatz),
    Case("scalar_fill", kernels.scalar_fill, {}, _scalar_fill),
    Case("slots", kernels.slot_mapping_modulo, {"BLOCK": 256, "PAGE": 128}, _slots(np.int32)),
    Case("slots_i64", kernels.slot_mapping_modulo, {"BLOCK": 256, "PAGE": 128}, _slots(np.int64)),
    Case("transpose", kernels.transpose_tile, {"R": 16, "C": 32}, _transpose),
    Case("interleave", kernels.interleave_halves, {"BLOCK": 64}, _interleave),
    Case("split", kernels.split_pairs, {"BLOCK": 64}, _split),
    Case("masked_gather", kernels.masked_scalar_gather, {"BLOCK": 512}, _masked_gather),
    Case(
        "pool_softmax",
        kernels.pool_softmax,
        {"P": 4, "D": 128},
        _pool_softmax,
        {"k": "bf16", "score": "bf16", "out": "bf16"},
    ),
    Case("absmax", kernels.absmax_scale, {"D": 128}, _absmax, {"x": "bf16"}),
    Case("two_axes", kernels.two_grid_axes, {"BLOCK": 256}, _two_axes),
    *(
        Case(f"assign_{p}", getattr(kernels, f"assign_{p}"), _POOL, _assign(), over_reads=p in OVER_READS)
        for p in ASSIGN
    ),
    Case("assign_derived_i64", kernels.assign_derived, _POOL, _assign(np.int64)),
)
BY_NAME = {case.name: case for case in CASES}


def tensor(value: Any, kind: str | None) -> Any:
    """An argument as the torch tensor a user would pass: bf16 travels as its bits until here."""
    import torch

    if not isinstance(value, np.ndarray):
        return value
    shared = torch.from_numpy(value)
    return shared.view(torch.bfloat16) if kind == "bf16" else shared


def mismatch(case: Case, launch: Launch) -> str:
    """What differs from the reference; empty when nothing does."""
    for name, want in launch.expected.items():
        got = launch.args[name]
        if case.types.get(name) == "bf16":
            exact = launch.tolerance == 0
            if not exact:
                got = bf16_to_f32(got)
        close = (
            np.array_equal(got, want)
            if launch.tolerance == 0
            else np.allclose(got, want, rtol=launch.tolerance, atol=launch.tolerance)
        )
        if not close:
            bad = np.flatnonzero(np.reshape(got, -1) != np.reshape(want, -1))
            at = int(bad[0])
            pair = f"{np.reshape(got, -1)[at]} for {np.reshape(want, -1)[at]}"
            return f"{name}: {bad.size} differ, first at {at}: {pair}"
    return ""
