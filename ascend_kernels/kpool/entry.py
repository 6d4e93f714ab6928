"""What every kpool kernel shares: from the rows of one pool to one entry of the index cache.

One entry is 128 e4m3fn codes and one fp32 scale.  Pooled rows and rotated rows are rounded to bf16, as the
publisher of the algorithm (vLLM) does.  Kernels take these steps as constexpr functions, so that a twin changes
one step and nothing else.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

HEAD = 128
FLOOR = tl.constexpr(1e-4)  # of the absmax
LARGEST = tl.constexpr(448.0)  # of e4m3fn
INVERSE_LARGEST = tl.constexpr(1.0 / 448.0)
ROOT = tl.constexpr(0.08838834764831845)  # 1 / sqrt(128)
LOG2E = tl.constexpr(1.4426950408889634)
ALL = tl.constexpr(tl.PropagateNan.ALL)


@functools.cache
def native_fp8(place: torch.device) -> bool:
    """Whether the device casts to e4m3fn by itself."""
    return place.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(place) >= (8, 9)


@triton.jit
def _parity(ORDER: tl.constexpr):
    both = tl.arange(0, ORDER)[:, None] & tl.arange(0, ORDER)[None, :]
    # The lowest bit of a sum is the parity of the lowest bits: no carry comes from below.
    return (both + (both >> 1) + (both >> 2) + (both >> 3)) & 1


@triton.jit
def hadamard(ORDER: tl.constexpr):
    """Unscaled Hadamard matrix, at most 16 rows, in Sylvester order: -1 where row & column has an odd number
    of ones."""
    return (1 - 2 * _parity(ORDER)).to(tl.float32)


@triton.jit
def hadamard_bits():
    """Unscaled H128 = H8 (x) H16 in bf16: the signs of the factors exclusive-ored into the bit pattern of one.

    4-D blocks: for a GPU, where every program makes the matrix anew and it must cost little."""
    outer = (_parity(8).to(tl.int16) << 15) | 0x3F80
    inner = _parity(16).to(tl.int16) << 15
    bits = tl.reshape(outer, (8, 1, 8, 1)) ^ tl.reshape(inner, (1, 16, 1, 16))
    return tl.reshape(bits, (128, 128)).to(tl.bfloat16, bitcast=True)


@triton.jit
def pool_block(keys, scores, row, ape, bias, P: tl.constexpr):
    """Softmax-weighted mean of P rows `row` elements apart, read as one block; bias is ape, already loaded."""
    at = tl.arange(0, P)[:, None] * row + tl.arange(0, 128)[None, :]
    k = tl.load(keys + at).to(tl.float32)
    v = tl.load(scores + at).to(tl.float32) + bias
    weight = tl.exp(v - tl.max(v, 0)[None, :])
    return tl.div_rn(tl.sum(k * weight, 0), tl.sum(weight, 0)).to(tl.bfloat16)


@triton.jit
def pool_rows(keys, scores, row, ape, bias, P: tl.constexpr):
    """As pool_block, each row loaded by itself, scores twice."""
    d = tl.arange(0, 128)
    most = tl.full((128,), -float("inf"), tl.float32)
    for i in tl.static_range(P):
        v = tl.load(scores + i * row + d).to(tl.float32) + tl.load(ape + i * 128 + d)
        most = tl.maximum(most, v, propagate_nan=ALL)
    total = tl.zeros((128,), tl.float32)
    mass = tl.zeros((128,), tl.float32)
    for i in tl.static_range(P):
        v = tl.load(scores + i * row + d).to(tl.float32) + tl.load(ape + i * 128 + d)
        weight = tl.exp(v - most)
        total += tl.load(keys + i * row + d).to(tl.float32) * weight
        mass += weight
    return tl.div_rn(total, mass).to(tl.bfloat16)


@triton.jit
def pool_with_last(keys, scores, row, ape, last_key, last_score, P: tl.constexpr):
    """As pool_block, the last row given; all loads come before the first use of one.

    Tuples: for a GPU's Triton and the interpreter only."""
    d = tl.arange(0, 128)
    raw = ()
    rows = ()
    for i in tl.static_range(P - 1):
        raw += (tl.load(scores + i * row + d),)
    for i in tl.static_range(P - 1):
        rows += (tl.load(keys + i * row + d),)
    own = last_score.to(tl.float32) + tl.load(ape + (P - 1) * 128 + d)
    most = own
    values = ()
    for i in tl.static_range(P - 1):
        values += (raw[i].to(tl.float32) + tl.load(ape + i * 128 + d),)
        most = tl.maximum(most, values[i], propagate_nan=ALL)
    mass = tl.exp2((own - most) * LOG2E)
    total = last_key.to(tl.float32) * mass
    for i in tl.static_range(P - 1):
        weight = tl.exp2((values[i] - most) * LOG2E)
        total += rows[i].to(tl.float32) * weight
        mass += weight
    return tl.div_rn(total, mass).to(tl.bfloat16)


@triton.jit
def rounded(x):
    """128 values to bf16 and back, as [8, 16].

    The reshape keeps ascendnpu-ir 1.0.0 from dropping the pair of casts, and the rounding with it.
    """
    return tl.reshape(tl.reshape(x, (128,)).to(tl.bfloat16), (8, 16)).to(tl.float32)


@triton.jit
def rotate_kronecker(x, h8, h16):
    """H128 = H8 (x) H16: two products by small factors, each a broadcast multiply and a sum."""
    inner = tl.sum(tl.reshape(x, (8, 1, 16)).to(tl.float32) * h16[None, :, :], 2)
    outer = tl.sum(tl.reshape(inner, (1, 8, 16)) * h8[:, :, None], 1)
    return rounded(outer * ROOT)


@triton.jit
def rotate_matrix(x, h8, h16):
    """As rotate_kronecker, by two matrix products: the first of exact bf16 factors, the second in fp32."""
    twice = tl.reshape(tl.broadcast_to(tl.reshape(x, (1, 8, 16)), (2, 8, 16)), (16, 16))
    inner = tl.dot(twice, h16.to(tl.bfloat16))
    # H16 is [[H8, H8], [H8, -H8]]: applied to the same rows twice it gives H8 of them twice over, and zero.
    outer = tl.sum(tl.reshape(tl.dot(h16, inner, input_precision="ieee"), (2, 8, 16)), 0)
    return rounded(outer * (0.5 * ROOT))


@triton.jit
def _butterfly(x, BLOCKS: tl.constexpr, HALF: tl.constexpr):
    pairs = tl.trans(tl.reshape(x, (BLOCKS, 2, HALF)), 0, 2, 1)
    a, b = tl.split(pairs)
    return tl.reshape(tl.trans(tl.join(a + b, a - b), 0, 2, 1), (128,))


@triton.jit
def rotate_butterfly(x, h8, h16):
    """Seven stages of sums and differences."""
    y = tl.reshape(tl.reshape(x, (8, 16)).to(tl.float32), (128,))
    y = _butterfly(y, 64, 1)
    y = _butterfly(y, 32, 2)
    y = _butterfly(y, 16, 4)
    y = _butterfly(y, 8, 8)
    y = _butterfly(y, 4, 16)
    y = _butterfly(y, 2, 32)
    y = _butterfly(y, 1, 64)
    return rounded(y * ROOT)


@triton.jit
def scale_of(absmax, ROUND_SCALE: tl.constexpr):
    """Scale of an entry: absmax / 448, or the smallest power of two at or above it, from the bit pattern."""
    r = absmax * INVERSE_LARGEST
    if ROUND_SCALE:
        r = (((r.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23) << 23).to(tl.float32, bitcast=True)
    return r


@triton.jit
def scaled(x, scale, ROUND_SCALE: tl.constexpr):
    """x / scale; by a power of two through an exact product with its inverse."""
    if ROUND_SCALE:
        inverse = ((254 << 23) - scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
        return x * inverse
    else:
        return tl.div_rn(x, scale)


@triton.jit
def at_most(x, limit, PROPAGATE: tl.constexpr):
    """The lesser of the two; what a NaN does is left open unless PROPAGATE, which costs less on Ascend."""
    if PROPAGATE:
        return tl.minimum(x, limit, propagate_nan=ALL)
    else:
        return tl.minimum(x, limit)


@triton.jit
def encode(x, PROPAGATE: tl.constexpr):
    """e4m3fn codes as int32, without an fp8 type: nearest even, saturating, -0 and subnormals kept.

    Normal numbers round in the bit pattern; below 2**-6 adding 16384 rounds to a multiple of 2**-9.  The larger
    of the two is the code.  A NaN gives the NaN code.
    """
    size = at_most(tl.abs(x), LARGEST, PROPAGATE)
    b = size.to(tl.int32, bitcast=True)
    normal = ((b + ((b >> 20) & 1) + 0x7FFFF) >> 20) - 960
    small = (at_most(size, 0.015625, PROPAGATE) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    return tl.minimum(tl.maximum(normal, small), 0x7F) | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)


@triton.jit
def encode_natively(x):
    """e4m3fn codes by the device's own cast (NVIDIA, compute capability 8.9 and above)."""
    size = tl.minimum(tl.maximum(x, -LARGEST, propagate_nan=ALL), LARGEST, propagate_nan=ALL)
    return size.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def quantise(x, ROUND_SCALE: tl.constexpr):
    """uint8 codes and the scale of one rotated row."""
    scale = scale_of(tl.max(tl.maximum(tl.abs(x), FLOOR, propagate_nan=ALL)), ROUND_SCALE)
    return encode(scaled(x, scale, ROUND_SCALE), True).to(tl.uint8), scale


@triton.jit
def quantise_default_nan(x, ROUND_SCALE: tl.constexpr):
    """As quantise, without saying what minimum and maximum do with a NaN."""
    scale = scale_of(tl.maximum(tl.max(tl.abs(x)), FLOOR), ROUND_SCALE)
    return encode(scaled(x, scale, ROUND_SCALE), False).to(tl.uint8), scale


@triton.jit
def quantise_by_log2(x, ROUND_SCALE: tl.constexpr):
    """As quantise, the power of two through log2 and exp2, which may miss it by one next to a power of two."""
    r = tl.max(tl.maximum(tl.abs(x), FLOOR, propagate_nan=ALL)) * INVERSE_LARGEST
    if ROUND_SCALE:
        r = tl.exp2(tl.ceil(tl.log2(r)))
    return encode(tl.div_rn(x, r), True).to(tl.uint8), r


@triton.jit
def store_block(page, token, codes, PRESHUFFLED: tl.constexpr):
    """Codes [8, 16] of one entry as one block: 8 pieces of 16 bytes."""
    piece = tl.arange(0, 8)[:, None]
    byte = tl.arange(0, 16)[None, :]
    if PRESHUFFLED:
        tl.store(page + (token // 16) * 2048 + (token % 16) * 16 + piece * 256 + byte, codes)
    else:
        tl.store(page + token * 128 + piece * 16 + byte, codes)


@triton.jit
def store_flat(page, token, codes, PRESHUFFLED: tl.constexpr):
    """As store_block, each byte with an address of its own."""
    d = tl.arange(0, 128)
    flat = tl.reshape(codes, (128,))
    if PRESHUFFLED:
        tl.store(page + (token // 16) * 2048 + (token % 16) * 16 + (d // 16) * 256 + d % 16, flat)
    else:
        tl.store(page + token * 128 + d, flat)


@triton.jit
def store_scale(scales, page, page_bytes, token, scale, PAGE: tl.constexpr):
    """Scale of one entry; scales is the cache seen as fp32."""
    tl.store(scales + page * (page_bytes // 4) + PAGE * 32 + token, scale)
