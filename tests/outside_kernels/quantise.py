"""Eight-bit and four-bit values: quantise, dequantise, pack, unpack."""

import torch
import triton
import triton.language as tl

from tests.outside_kernels.case import Launch, ints, normal, outside


def _half_up(x):
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


@triton.jit
def quantise_tensor(x_ptr, scale_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    scale = tl.load(scale_ptr)
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32) / scale
    x = tl.clamp(tl.floor(x + 0.5), -128.0, 127.0)
    tl.store(out_ptr + offs, x.to(tl.int8), mask=mask)


@outside(quantise_tensor, "f16 to int8 with one scale, rounded and clamped", BLOCK=1024)
def _(g):
    x = normal(g, 3300, dtype=torch.float16)
    scale = torch.tensor([0.02])
    want = torch.floor(x.float() / scale + 0.5).clamp(-128, 127).to(torch.int8)
    args = {"x_ptr": x, "scale_ptr": scale, "out_ptr": torch.zeros(3300, dtype=torch.int8), "n": 3300}
    return Launch((4,), args, {"out_ptr": want})


@triton.jit
def quantise_token(x_ptr, out_ptr, scale_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0).to(tl.float32)
    top = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-10)
    q = x * (127 / top)
    q = tl.where(q >= 0, q + 0.5, q - 0.5).to(tl.int8)
    tl.store(out_ptr + row * cols + c, q, mask=mask)
    tl.store(scale_ptr + row, top / 127)


@outside(quantise_token, "bf16 to int8 with a scale a token", BLOCK=1024)
def _(g):
    x = normal(g, 6, 770, dtype=torch.bfloat16)
    top = x.float().abs().amax(1)
    want = _half_up(x.float() * (127 / top)[:, None]).to(torch.int8)
    args = {"x_ptr": x, "out_ptr": torch.zeros(6, 770, dtype=torch.int8), "scale_ptr": torch.zeros(6), "cols": 770}
    return Launch((6,), args, {"out_ptr": want, "scale_ptr": top / 127}, 1e-6)


@triton.jit
def quantise_group(x_ptr, out_ptr, scale_ptr, G: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, G)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + row * G * N + at).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10) / 127
    y = x / scale[:, None]
    tl.store(out_ptr + row * G * N + at, tl.where(y >= 0, y + 0.5, y - 0.5).to(tl.int8))
    tl.store(scale_ptr + row * G + tl.arange(0, G), scale)


@outside(quantise_group, "f16 to int8 with a scale every 128 columns", G=8, N=128)
def _(g):
    x = normal(g, 4, 8, 128, dtype=torch.float16)
    scale = x.float().abs().amax(2) / 127
    want = _half_up(x.float() / scale[..., None]).to(torch.int8)
    args = {"x_ptr": x, "out_ptr": torch.zeros(4, 8, 128, dtype=torch.int8), "scale_ptr": torch.zeros(4, 8)}
    return Launch((4,), args, {"out_ptr": want, "scale_ptr": scale}, 1e-6)


@triton.jit
def dequantise_channel(q_ptr, scale_ptr, zero_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    q = tl.load(q_ptr + r[:, None] * cols + c[None, :], mask=mask, other=0)
    scale = tl.load(scale_ptr + c, mask=c < cols, other=0.0)
    zero = tl.load(zero_ptr + c, mask=c < cols, other=0)
    y = (q.to(tl.float32) - zero.to(tl.float32)[None, :]) * scale[None, :]
    tl.store(out_ptr + r[:, None] * cols + c[None, :], y.to(tl.float16), mask=mask)


@outside(dequantise_channel, "int8 to f16, scale and zero point a channel", R=8, C=128)
def _(g):
    q, scale = ints(g, -128, 128, 20, 200, dtype=torch.int8), torch.rand(200, generator=g)
    zero = ints(g, -10, 10, 200, dtype=torch.int8)
    want = ((q.float() - zero.float()) * scale).half()
    args = {"q_ptr": q, "scale_ptr": scale, "zero_ptr": zero, "out_ptr": torch.zeros(20, 200, dtype=torch.float16),
            "rows": 20, "cols": 200}  # fmt: skip
    return Launch((3, 2), args, {"out_ptr": want})


@triton.jit
def pack_int4(x_ptr, out_ptr, WORDS: tl.constexpr):
    row = tl.program_id(0)
    w = tl.arange(0, WORDS)
    word = tl.zeros([WORDS], dtype=tl.int32)
    for i in tl.static_range(8):
        nibble = tl.load(x_ptr + (row * WORDS + w) * 8 + i) & 15
        word = word | (nibble << (4 * i))
    tl.store(out_ptr + row * WORDS + w, word)


@outside(pack_int4, "eight four-bit values to a word", WORDS=32)
def _(g):
    x = ints(g, 0, 16, 3, 32, 8)
    words = (x.long() << (4 * torch.arange(8))).sum(-1)
    want = torch.where(words >= 2**31, words - 2**32, words).int()
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros(3, 32, dtype=torch.int32)}, {"out_ptr": want})


@triton.jit
def unpack_int4(q_ptr, scale_ptr, out_ptr, W: tl.constexpr):
    row = tl.program_id(0)
    w = tl.arange(0, W)
    word = tl.load(q_ptr + row * W + w)
    scale = tl.load(scale_ptr + row)
    for i in tl.static_range(8):
        nibble = (word >> (4 * i)) & 15
        tl.store(out_ptr + (row * 8 + i) * W + w, (nibble - 8).to(tl.float32) * scale)


@outside(unpack_int4, "a word to eight four-bit values, scaled", W=64)
def _(g):
    q, scale = ints(g, -(2**31), 2**31, 4, 64), torch.rand(4, generator=g)
    nibble = (q.long()[:, None] >> (4 * torch.arange(8))[:, None]) & 15
    args = {"q_ptr": q, "scale_ptr": scale, "out_ptr": torch.zeros(4, 8, 64)}
    return Launch((4,), args, {"out_ptr": (nibble - 8).float() * scale[:, None, None]})


@triton.jit
def pack_mask(x_ptr, out_ptr, WORDS: tl.constexpr):
    row = tl.program_id(0)
    w = tl.arange(0, WORDS)
    b = tl.arange(0, 32)
    x = tl.load(x_ptr + (row * WORDS + w[:, None]) * 32 + b[None, :])
    bits = (x > 0).to(tl.int32) << b[None, :]
    tl.store(out_ptr + row * WORDS + w, tl.sum(bits, axis=1))


@outside(pack_mask, "signs of 32 floats to the bits of a word, by shift and sum", WORDS=16)
def _(g):
    x = normal(g, 3, 16, 32)
    words = ((x > 0).long() << torch.arange(32)).sum(-1)
    want = torch.where(words >= 2**31, words - 2**32, words).int()
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros(3, 16, dtype=torch.int32)}, {"out_ptr": want})


@triton.jit
def bitcast_exponent(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    bits = tl.load(x_ptr + offs, mask=mask, other=1.0).to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) & 255) - 127
    tl.store(out_ptr + offs, exponent, mask=mask)


@outside(bitcast_exponent, "exponent of a float by its bits", BLOCK=512)
def _(g):
    x = torch.exp(normal(g, 1000) * 6)
    args = {"x_ptr": x, "out_ptr": torch.zeros(1000, dtype=torch.int32), "n": 1000}
    return Launch((2,), args, {"out_ptr": torch.frexp(x).exponent - 1})


@triton.jit
def cast_fp8(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x.to(tl.float8e4nv), mask=mask)


@outside(cast_fp8, "f32 to fp8 e4m3, which this chip lacks", BLOCK=512)
def _(g):
    x = normal(g, 700)
    want = x.to(torch.float8_e4m3fn)
    args = {"x_ptr": x, "out_ptr": torch.zeros(700).to(torch.float8_e4m3fn), "n": 700}
    return Launch((2,), args, {"out_ptr": want})


@triton.jit
def hash_mix(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * 0x45D9F3B
    x = (x ^ (x >> 13)) * 0x119DE1F3
    tl.store(out_ptr + offs, (x ^ (x >> 16)).to(tl.int32, bitcast=True), mask=mask)


@outside(hash_mix, "an integer hash: unsigned shifts, xor, wrapping products", BLOCK=256)
def _(g):
    x = ints(g, -(2**31), 2**31, 500)

    def mixed(signed):
        def shifted(a, by):
            return (a - (a >> 31 << 32) >> by) & 0xFFFFFFFF if signed else a >> by

        v = [int(a) & 0xFFFFFFFF for a in x]
        v = [((a ^ shifted(a, 16)) * 0x45D9F3B) & 0xFFFFFFFF for a in v]
        v = [((a ^ shifted(a, 13)) * 0x119DE1F3) & 0xFFFFFFFF for a in v]
        v = [a ^ shifted(a, 16) for a in v]
        return {"out_ptr": torch.tensor([a - 2**32 if a >= 2**31 else a for a in v], dtype=torch.int32)}

    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 500}
    return Launch((2,), args, mixed(False), faults={"signed shift": mixed(True)})
