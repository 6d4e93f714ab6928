"""Addresses that come from memory: lookups, gathers, scatters, segments, histograms, searches."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, cdiv, ints, normal, outside


@triton.jit
def embedding(id_ptr, table_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    row = tl.load(id_ptr + token)
    for start in range(0, width, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < width
        tl.store(out_ptr + token * width + c, tl.load(table_ptr + row * width + c, mask=mask), mask=mask)


@outside(embedding, "embedding rows of 900 bf16 by int64 token id", BLOCK=512)
def _(g):
    table, ids = normal(g, 50, 900, dtype=torch.bfloat16), ints(g, 0, 50, 13, dtype=torch.int64)
    args = {"id_ptr": ids, "table_ptr": table, "out_ptr": torch.zeros(13, 900, dtype=torch.bfloat16), "width": 900}
    return Launch((13,), args, {"out_ptr": table[ids]})


@triton.jit
def embedding_shard(id_ptr, table_ptr, out_ptr, first, rows, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    row = tl.load(id_ptr + token) - first
    c = tl.arange(0, BLOCK)
    mine = (row >= 0) & (row < rows)
    x = tl.load(table_ptr + row * width + c, mask=mine & (c < width), other=0.0)
    tl.store(out_ptr + token * width + c, x, mask=c < width)


@outside(embedding_shard, "a vocabulary shard: rows of other shards give zero", BLOCK=512)
def _(g):
    table, ids = normal(g, 20, 300), ints(g, 0, 60, 12)
    want = torch.zeros(12, 300)
    for i, one in enumerate(ids.tolist()):
        if 20 <= one < 40:
            want[i] = table[one - 20]
    args = {
        "id_ptr": ids,
        "table_ptr": table,
        "out_ptr": torch.ones(12, 300),
        "first": 20,
        "rows": 20,
        "width": 300,
    }
    return Launch((12,), args, {"out_ptr": want})


@triton.jit
def index_select(x_ptr, index_ptr, out_ptr, n, width, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    row = tl.load(index_ptr + r, mask=r < n, other=0)
    c = tl.arange(0, C)
    mask = (r[:, None] < n) & (c[None, :] < width)
    x = tl.load(x_ptr + row[:, None] * width + c[None, :], mask=mask)
    tl.store(out_ptr + r[:, None] * width + c[None, :], x, mask=mask)


@outside(index_select, "rows by an index vector, eight rows as one 2-D tile", R=8, C=128)
def _(g):
    x, index = normal(g, 30, 100), ints(g, 0, 30, 21)
    index[5] = 29
    args = {"x_ptr": x, "index_ptr": index, "out_ptr": torch.zeros(21, 100), "n": 21, "width": 100}
    want = {"out_ptr": x[index.long()]}
    return Launch((3,), args, want, faults={"masked lanes read": want})


@triton.jit
def gather_lanes(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    tl.store(out_ptr + offs, tl.load(x_ptr + index, mask=mask), mask=mask)


@outside(gather_lanes, "single elements by an index vector", BLOCK=256)
def _(g):
    x, index = normal(g, 1000), ints(g, 0, 1000, 600)
    args = {"x_ptr": x, "index_ptr": index, "out_ptr": torch.zeros(600), "n": 600}
    return Launch((3,), args, {"out_ptr": x[index.long()]})


@triton.jit
def take_along_rows(x_ptr, index_ptr, out_ptr, cols, K: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * cols + tl.arange(0, C), mask=tl.arange(0, C) < cols, other=0.0)
    index = tl.load(index_ptr + row * K + tl.arange(0, K))
    tl.store(out_ptr + row * K + tl.arange(0, K), tl.gather(x, index, 0))


@outside(take_along_rows, "tl.gather on a row held in the unified buffer", K=32, C=256)
def _(g):
    x, index = normal(g, 5, 200), ints(g, 0, 200, 5, 32)
    args = {"x_ptr": x, "index_ptr": index, "out_ptr": torch.zeros(5, 32), "cols": 200}
    return Launch((5,), args, {"out_ptr": x.gather(1, index.long())})


@triton.jit
def scatter_rows(x_ptr, index_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    to = tl.load(index_ptr + token)
    c = tl.arange(0, BLOCK)
    mask = c < width
    tl.store(out_ptr + to * width + c, tl.load(x_ptr + token * width + c, mask=mask), mask=mask)


@outside(scatter_rows, "rows to places of an index vector", BLOCK=256)
def _(g):
    x, index = normal(g, 9, 250), torch.randperm(14, generator=g)[:9].int()
    want = torch.zeros(14, 250)
    want[index.long()] = x
    args = {"x_ptr": x, "index_ptr": index, "out_ptr": torch.zeros(14, 250), "width": 250}
    return Launch((9,), args, {"out_ptr": want})


@triton.jit
def scatter_lanes(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    tl.store(out_ptr + index, tl.load(x_ptr + offs, mask=mask), mask=mask)


@outside(scatter_lanes, "single elements to places of an index vector", BLOCK=128)
def _(g):
    x, index = normal(g, 300), torch.randperm(500, generator=g)[:300].int()
    want = torch.zeros(500)
    want[index.long()] = x
    args = {"x_ptr": x, "index_ptr": index, "out_ptr": torch.zeros(500), "n": 300}
    return Launch((3,), args, {"out_ptr": want})


@triton.jit
def segment_sum(x_ptr, start_ptr, out_ptr, width, BLOCK: tl.constexpr):
    segment = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < width
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(tl.load(start_ptr + segment), tl.load(start_ptr + segment + 1)):
        acc += tl.load(x_ptr + row * width + c, mask=mask, other=0.0)
    tl.store(out_ptr + segment * width + c, acc, mask=mask)


@outside(segment_sum, "sums of ragged segments of rows, one of them empty", BLOCK=128)
def _(g):
    start = torch.tensor([0, 4, 4, 11, 12, 30], dtype=torch.int32)
    x = normal(g, 30, 100)
    want = torch.stack([x[start[i] : start[i + 1]].double().sum(0) for i in range(5)])
    args = {"x_ptr": x, "start_ptr": start, "out_ptr": torch.ones(5, 100), "width": 100}
    return Launch((5,), args, {"out_ptr": want}, 1e-5)


@triton.jit
def segment_sum_atomic(x_ptr, segment_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    segment = tl.load(segment_ptr + row)
    c = tl.arange(0, BLOCK)
    mask = c < width
    tl.atomic_add(out_ptr + segment * width + c, tl.load(x_ptr + row * width + c, mask=mask), mask=mask)


@outside(segment_sum_atomic, "the same by atomic adds of rows", BLOCK=128)
def _(g):
    segment, x = ints(g, 0, 5, 30), normal(g, 30, 100)
    want = torch.zeros(5, 100, dtype=torch.float64).index_add_(0, segment, x.double())
    args = {"x_ptr": x, "segment_ptr": segment, "out_ptr": torch.zeros(5, 100), "width": 100}
    return Launch((30,), args, {"out_ptr": want}, 1e-5)


@triton.jit
def histogram_atomic(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0)
    tl.atomic_add(out_ptr + x, 1, mask=mask)


@outside(histogram_atomic, "histogram by atomic adds of single elements", BLOCK=128)
def _(g):
    x = ints(g, 0, 32, 300)
    args = {"x_ptr": x, "out_ptr": torch.zeros(32, dtype=torch.int32), "n": 300}
    return Launch((3,), args, {"out_ptr": torch.bincount(x, minlength=32)})


@triton.jit
def histogram_builtin(x_ptr, out_ptr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.arange(0, BINS), tl.histogram(x, BINS))


@outside(histogram_builtin, "tl.histogram", BLOCK=256, BINS=32)
def _(g):
    x = ints(g, 0, 32, 256)
    args = {"x_ptr": x, "out_ptr": torch.zeros(32, dtype=torch.int32)}
    return Launch((1,), args, {"out_ptr": torch.bincount(x, minlength=32)})


@triton.jit
def histogram_compare(x_ptr, out_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    bins = tl.arange(0, BINS)
    acc = tl.zeros([BINS], dtype=tl.int32)
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=-1)
        acc += tl.sum((x[None, :] == bins[:, None]).to(tl.int32), axis=1)
    tl.store(out_ptr + bins, acc)


@outside(histogram_compare, "tokens an expert: every id compared with every bin", BLOCK=128, BINS=16)
def _(g):
    x = ints(g, 0, 16, 300)
    args = {"x_ptr": x, "out_ptr": torch.zeros(16, dtype=torch.int32), "n": 300}
    return Launch((1,), args, {"out_ptr": torch.bincount(x, minlength=16)})


@triton.jit
def binary_search(sorted_ptr, x_ptr, out_ptr, size, n, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    x = tl.load(x_ptr + i)
    low = 0
    high = size
    while low < high:
        mid = (low + high) // 2
        if tl.load(sorted_ptr + mid) < x:
            low = mid + 1
        else:
            high = mid
    tl.store(out_ptr + i, low)


@outside(binary_search, "place in a sorted list: while loop with a load in its condition", BLOCK=1)
def _(g):
    s, x = ints(g, 0, 1000, 100).sort().values, ints(g, -5, 1005, 20)
    args = {"sorted_ptr": s, "x_ptr": x, "out_ptr": torch.zeros(20, dtype=torch.int32), "size": 100, "n": 20}
    return Launch((20,), args, {"out_ptr": torch.searchsorted(s, x)})


@triton.jit
def expand_segments(start_ptr, out_ptr, segments, S: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = tl.arange(0, S)
    ends = tl.load(start_ptr + 1 + s, mask=s < segments, other=2147483647)
    total = tl.load(start_ptr + segments)
    owner = tl.sum((offs[:, None] >= ends[None, :]).to(tl.int32), axis=1)
    tl.store(out_ptr + offs, owner, mask=offs < total)


@outside(expand_segments, "request of every token: each position compared with each end", S=8, BLOCK=64)
def _(g):
    start = torch.tensor([0, 30, 31, 31, 90, 150], dtype=torch.int32)
    want = torch.repeat_interleave(torch.arange(5), start.diff().long())
    args = {"start_ptr": start, "out_ptr": torch.full((150,), -1, dtype=torch.int32), "segments": 5}
    return Launch((cdiv(150, 64),), args, {"out_ptr": want})


@triton.jit
def moe_sum(x_ptr, out_ptr, width, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, K)
    mask = c < width
    x = tl.load(x_ptr + (token * K + k[:, None]) * width + c[None, :], mask=mask[None, :], other=0.0)
    tl.store(out_ptr + token * width + c, tl.sum(x.to(tl.float32), axis=0), mask=mask)


@outside(moe_sum, "sum over the four experts of a token, f16", K=4, BLOCK=256)
def _(g):
    x = normal(g, 7, 4, 700, dtype=torch.float16)
    args = {"x_ptr": x, "out_ptr": torch.zeros(7, 700, dtype=torch.float16), "width": 700}
    return Launch((7, 3), args, {"out_ptr": x.double().sum(1)}, 3e-3)


@triton.jit
def gather_or_zero(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + offs, mask=offs < n, other=-1)
    tl.store(out_ptr + offs, tl.load(x_ptr + index, mask=index >= 0, other=0.0), mask=offs < n)


@outside(gather_or_zero, "elements by an index vector in which -1 means none", BLOCK=64)
def _(g):
    x, index = normal(g, 30), ints(g, -1, 30, 50)
    index[7] = -1
    want = {"out_ptr": torch.where(index >= 0, x[index.clamp(min=0).long()], torch.zeros(()))}
    args = {"x_ptr": x, "index_ptr": index, "out_ptr": torch.zeros(50), "n": 50}
    return Launch((1,), args, want, faults={"masked lanes read": want})


@triton.jit
def masked_scalar(x_ptr, out_ptr, n):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid, mask=pid < n, other=-1)
    tl.store(out_ptr + pid, x * 2, mask=pid < n - 1)


@outside(masked_scalar, "one element a program, masked load and store")
def _(g):
    x = ints(g, 0, 9, 5)
    want = torch.full((7,), -5, dtype=torch.int32)
    want[:4] = x[:4] * 2
    args = {"x_ptr": x, "out_ptr": torch.full((7,), -5, dtype=torch.int32), "n": 5}
    return Launch((7,), args, {"out_ptr": want}, faults={"masked lanes read": {"out_ptr": want}})


@triton.jit
def store_where(x_ptr, keep_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.load(keep_ptr + offs)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs), mask=keep != 0)


@outside(store_where, "stores under an int8 mask from memory", BLOCK=64)
def _(g):
    x, keep = normal(g, 128), ints(g, 0, 2, 128, dtype=torch.int8)
    args = {"x_ptr": x, "keep_ptr": keep, "out_ptr": torch.full((128,), 9.0)}
    return Launch((2,), args, {"out_ptr": torch.where(keep != 0, x, torch.tensor(9.0))})


@triton.jit
def compact(x_ptr, out_ptr, count_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    keep = x > 0
    place = tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(out_ptr + place, x, mask=keep)
    tl.store(count_ptr, tl.sum(keep.to(tl.int32), 0))


@outside(compact, "positive elements moved to the front: running sum and scatter", BLOCK=64)
def _(g):
    x = normal(g, 64)
    kept = x[x > 0]
    want = torch.full((64,), 9.0)
    want[: len(kept)] = kept
    args = {"x_ptr": x, "out_ptr": torch.full((64,), 9.0), "count_ptr": torch.zeros(1, dtype=torch.int32)}
    return Launch((1,), args, {"out_ptr": want, "count_ptr": torch.tensor([len(kept)])})


@triton.jit
def embedding_bag(x_ptr, index_ptr, out_ptr, N: tl.constexpr, D: tl.constexpr):
    bag = tl.program_id(0)
    row = tl.load(index_ptr + bag * N + tl.arange(0, N))
    x = tl.load(x_ptr + row[:, None] * D + tl.arange(0, D)[None, :])
    tl.store(out_ptr + bag * D + tl.arange(0, D), tl.sum(x, axis=0))


@outside(embedding_bag, "sum of 16 rows by an index vector", N=16, D=64)
def _(g):
    x, index = normal(g, 30, 64), ints(g, 0, 30, 3, 16)
    args = {"x_ptr": x, "index_ptr": index, "out_ptr": torch.zeros(3, 64)}
    return Launch((3,), args, {"out_ptr": x[index.long()].double().sum(1)}, 1e-5)
