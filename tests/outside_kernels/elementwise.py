"""One lane in, one lane out: activations, masks, casts, broadcasts, random numbers."""

import torch
import triton
import triton.language as tl
import triton.language.extra.ascend.libdevice as libdevice

from tests.outside_kernels.case import Launch, cdiv, ints, normal, outside


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@outside(vector_add, "x + y, 98 432 floats, cut last tile", BLOCK=1024)
def _(g):
    x, y = normal(g, 98432), normal(g, 98432)
    return Launch((97,), {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros_like(x), "n": 98432}, {"out_ptr": x + y})


@triton.jit
def gelu_tanh(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    t = 2 * tl.sigmoid(2 * inner) - 1
    tl.store(out_ptr + offs, (0.5 * x * (1 + t)).to(out_ptr.dtype.element_ty), mask=mask)


@outside(gelu_tanh, "GELU, tanh form, f16", BLOCK=2048)
def _(g):
    x = normal(g, 11008, dtype=torch.float16)
    want = torch.nn.functional.gelu(x.double(), approximate="tanh")
    return Launch((6,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 11008}, {"out_ptr": want}, 2e-3)


@triton.jit
def gelu_erf(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=mask)


@outside(gelu_erf, "GELU with tl.erf, f32", BLOCK=1024)
def _(g):
    x = normal(g, 5000)
    want = torch.nn.functional.gelu(x.double())
    return Launch((5,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 5000}, {"out_ptr": want}, 1e-5)


@triton.jit
def silu_and_mul(x_ptr, out_ptr, d, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, d, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < d
        gate = tl.load(x_ptr + row * 2 * d + cols, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(x_ptr + row * 2 * d + d + cols, mask=mask, other=0.0).to(tl.float32)
        y = gate * tl.sigmoid(gate) * up
        tl.store(out_ptr + row * d + cols, y.to(out_ptr.dtype.element_ty), mask=mask)


@outside(silu_and_mul, "SwiGLU activation, 17 rows of 2 x 5504, bf16", BLOCK=2048)
def _(g):
    x = normal(g, 17, 2 * 5504, dtype=torch.bfloat16)
    gate, up = x.double().chunk(2, dim=1)
    want = gate / (1 + torch.exp(-gate)) * up
    return Launch((17,), {"x_ptr": x, "out_ptr": torch.zeros(17, 5504, dtype=torch.bfloat16), "d": 5504},
                  {"out_ptr": want}, 1e-2)  # fmt: skip


@triton.jit
def silu_and_mul_backward(dy_ptr, gate_ptr, up_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    dy = tl.load(dy_ptr + offs, mask=mask, other=0)
    gate = tl.load(gate_ptr + offs, mask=mask, other=0)
    up = tl.load(up_ptr + offs, mask=mask, other=0)
    s = tl.sigmoid(gate)
    silu = gate * s
    tl.store(gate_ptr + offs, dy * (silu * (1 - s) + s) * up, mask=mask)
    tl.store(up_ptr + offs, dy * silu, mask=mask)


@outside(silu_and_mul_backward, "gradient of SwiGLU, written over its inputs", BLOCK=1024)
def _(g):
    dy, gate, up = normal(g, 6000), normal(g, 6000), normal(g, 6000)
    a, b = gate.double().requires_grad_(), up.double().requires_grad_()
    (torch.nn.functional.silu(a) * b).backward(dy.double())
    return Launch((6,), {"dy_ptr": dy, "gate_ptr": gate, "up_ptr": up, "n": 6000},
                  {"gate_ptr": a.grad, "up_ptr": b.grad}, 1e-5)  # fmt: skip


@triton.jit
def masked_tail(x_ptr, out_ptr, n, slope, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=-1.0)
    tl.store(out_ptr + offs, tl.where(x > 0, x, x * slope))


@outside(masked_tail, "leaky ReLU, tail filled by other=-1, whole tiles stored", BLOCK=512)
def _(g):
    x, n = normal(g, 1111), 1111
    want = torch.cat([torch.where(x > 0, x, x * 0.125), torch.full((1536 - n,), -0.125)])
    return Launch((3,), {"x_ptr": x, "out_ptr": torch.zeros(1536), "n": n, "slope": 0.125}, {"out_ptr": want})


@triton.jit
def clamp_chain(x_ptr, lo_ptr, out_ptr, n, hi, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    lo = tl.load(lo_ptr + offs, mask=mask)
    y = tl.minimum(tl.maximum(x, lo), hi)
    keep = (y == x) & (x != 0) | (lo >= hi)
    tl.store(out_ptr + offs, tl.where(keep, y, -y), mask=mask)


@outside(clamp_chain, "clamp with bounds from a tensor, where on a compound condition", BLOCK=1024)
def _(g):
    x, lo = normal(g, 3000), normal(g, 3000) - 1
    x[::7] = 0
    y = torch.minimum(torch.maximum(x, lo), torch.tensor(0.5))
    keep = (y == x) & (x != 0) | (lo >= 0.5)
    return Launch((3,), {"x_ptr": x, "lo_ptr": lo, "out_ptr": torch.zeros(3000), "n": 3000, "hi": 0.5},
                  {"out_ptr": torch.where(keep, y, -y)})  # fmt: skip


@triton.jit
def bias_add(x_ptr, bias_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * C + tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    at = r[:, None] * cols + c[None, :]
    x = tl.load(x_ptr + at, mask=mask)
    bias = tl.load(bias_ptr + c, mask=c < cols)
    tl.store(out_ptr + at, x + bias[None, :], mask=mask)


@outside(bias_add, "x[45, 300] + bias[300] by 2-D tiles of a 2-D grid", R=16, C=128)
def _(g):
    x, bias = normal(g, 45, 300), normal(g, 300)
    return Launch((3, 3), {"x_ptr": x, "bias_ptr": bias, "out_ptr": torch.zeros_like(x), "rows": 45, "cols": 300},
                  {"out_ptr": x + bias})  # fmt: skip


@triton.jit
def outer_add(x_ptr, y_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r = tl.arange(0, R)
    c = tl.arange(0, C)
    x = tl.load(x_ptr + r)
    y = tl.load(y_ptr + c)
    tl.store(out_ptr + r[:, None] * C + c[None, :], x[:, None] + y[None, :])


@outside(outer_add, "x[:, None] + y[None, :]", R=32, C=256)
def _(g):
    x, y = normal(g, 32), normal(g, 256)
    return Launch((1,), {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros(32, 256)}, {"out_ptr": x[:, None] + y})


@triton.jit
def mixed_types(x_ptr, y_ptr, z_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    z = tl.load(z_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x.to(tl.float32) * y + z.to(tl.float32), mask=mask)


@outside(mixed_types, "f16 * f32 + int8, stored as bf16", BLOCK=1024)
def _(g):
    n = 2500
    x, y, z = normal(g, n, dtype=torch.float16), normal(g, n), ints(g, -100, 100, n, dtype=torch.int8)
    want = (x.float() * y + z.float()).bfloat16()
    args = {"x_ptr": x, "y_ptr": y, "z_ptr": z, "out_ptr": torch.zeros(n, dtype=torch.bfloat16), "n": n}
    return Launch((3,), args, {"out_ptr": want})


@triton.jit
def half_arithmetic(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x * y + x, mask=mask)


@outside(half_arithmetic, "x * y + x in f16 all the way", name="arithmetic_f16", BLOCK=1024)
def _(g):
    x, y = normal(g, 3001, dtype=torch.float16), normal(g, 3001, dtype=torch.float16)
    return Launch((3,), {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros_like(x), "n": 3001},
                  {"out_ptr": x.double() * y.double() + x.double()}, 4e-3)  # fmt: skip


@outside(half_arithmetic, "x * y + x in bf16 all the way", name="arithmetic_bf16", BLOCK=1024)
def _(g):
    x, y = normal(g, 3001, dtype=torch.bfloat16), normal(g, 3001, dtype=torch.bfloat16)
    return Launch((3,), {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros_like(x), "n": 3001},
                  {"out_ptr": x.double() * y.double() + x.double()}, 3e-2)  # fmt: skip


@outside(half_arithmetic, "x * y + x in int8, wrapping", name="arithmetic_int8", BLOCK=1024)
def _(g):
    x, y = ints(g, -128, 128, 3001, dtype=torch.int8), ints(g, -128, 128, 3001, dtype=torch.int8)
    want = (x.int() * y.int() + x.int()).to(torch.int8)
    return Launch((3,), {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros_like(x), "n": 3001}, {"out_ptr": want})


@outside(half_arithmetic, "x * y + x in int64, wrapping", name="arithmetic_int64", BLOCK=256)
def _(g):
    x, y = (ints(g, -(2**40), 2**40, 700, dtype=torch.int64) for _ in range(2))
    return Launch((3,), {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros_like(x), "n": 700}, {"out_ptr": x * y + x})


@triton.jit
def divide_and_remainder(x_ptr, y_ptr, q_ptr, r_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0)
    y = tl.load(y_ptr + offs, mask=mask, other=1)
    tl.store(q_ptr + offs, x // y, mask=mask)
    tl.store(r_ptr + offs, x % y, mask=mask)


def _quotients(low, high):
    def make(g):
        x, y = ints(g, low, high, 900), ints(g, 1, 1000, 900)
        args = {"x_ptr": x, "y_ptr": y, "q_ptr": torch.zeros_like(x), "r_ptr": torch.zeros_like(x), "n": 900}
        q = torch.div(x, y, rounding_mode="trunc")
        in_f32 = (x.float() / y.float()).trunc().int()
        return Launch((4,), args, {"q_ptr": q, "r_ptr": x - q * y},
                      faults={"division in f32": {"q_ptr": in_f32, "r_ptr": x - q * y}})  # fmt: skip

    return make


_small = _quotients(-(2**20), 2**20)
_large = _quotients(-(2**31), 2**31)


@outside(divide_and_remainder, "x // y and x % y of int32 lanes below 2**24", BLOCK=256)
def _(g):
    return _small(g)


@outside(divide_and_remainder, "the same with lanes up to 2**31", name="divide_large", BLOCK=256)
def _(g):
    return _large(g)


@triton.jit
def transcendental(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=1.0)
    y = tl.exp2(tl.log2(tl.abs(x) + 1.0)) + tl.sqrt(tl.abs(x)) + tl.rsqrt(tl.abs(x) + 1.0)
    y += tl.sin(x) * tl.cos(x) + tl.floor(x) - tl.ceil(x) + tl.fma(x, x, x)
    tl.store(out_ptr + offs, y, mask=mask)


@outside(transcendental, "exp2, log2, sqrt, rsqrt, sin, cos, floor, ceil, fma", BLOCK=1024)
def _(g):
    x = normal(g, 2000) * 3
    v = x.double()
    want = (
        v.abs() + 1 + v.abs().sqrt() + (v.abs() + 1).rsqrt() + v.sin() * v.cos() + v.floor() - v.ceil() + v * v + v
    )
    return Launch((2,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 2000}, {"out_ptr": want}, 1e-4)


@triton.jit
def dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    keep = tl.rand(seed, offs) > p
    tl.store(out_ptr + offs, tl.where(keep, x / (1 - p), 0.0), mask=mask)


def philox(seed: int, offsets: torch.Tensor, signed_products: bool = False) -> torch.Tensor:
    """tl.rand: ten rounds of Philox 4x32 on (offset, 0, 0, 0), the first word as a number in [0, 1)."""
    low = 0xFFFFFFFF
    c0, c1, c2, c3 = (offsets.long() & low, *(torch.zeros_like(offsets, dtype=torch.int64) for _ in range(3)))
    k0, k1 = seed & low, seed >> 32 & low

    def product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = [int(x) * b for x in a]
        if signed_products:
            words = [(int(x) - (int(x) >> 31 << 32)) * (b - (b >> 31 << 32)) for x in a]
        return torch.tensor([w >> 32 & low for w in words]), torch.tensor([w & low for w in words])

    for _ in range(10):
        (h0, l0), (h1, l1) = product(c0, 0xD2511F53), product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    signed = torch.where(c0 >= 2**31, c0 - 2**32, c0)
    return (torch.where(signed < 0, -signed - 1, signed).float() * 4.6566127342e-10).float()


@outside(dropout, "dropout with tl.rand", BLOCK=256)
def _(g):
    n, p, seed = 300, 0.3, 1234
    x = normal(g, n)
    want, signed = (
        {"out_ptr": torch.where(philox(seed, torch.arange(n), form) > p, x / (1 - p), torch.zeros(()))}
        for form in (False, True)
    )
    args = {"x_ptr": x, "out_ptr": torch.zeros(n), "n": n, "p": p, "seed": seed}
    return Launch((cdiv(n, 256),), args, want, 1e-6, {"signed umulhi": signed})


@triton.jit
def mul3d(x_ptr, y_ptr, out_ptr, b, h, s, BLOCK: tl.constexpr):
    i, j, k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    offs = k * BLOCK + tl.arange(0, BLOCK)
    mask = offs < s
    at = (i * h + j) * s + offs
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + i * s + offs, mask=mask)
    tl.store(out_ptr + at, x * y, mask=mask)


@outside(mul3d, "x[3, 5, 333] * y[3, 1, 333] on a 3-D grid", BLOCK=128)
def _(g):
    x, y = normal(g, 3, 5, 333), normal(g, 3, 1, 333)
    args = {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros_like(x), "b": 3, "h": 5, "s": 333}
    return Launch((3, 5, 3), args, {"out_ptr": x * y})


@triton.jit
def high_product(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0).to(tl.uint32, bitcast=True)
    high = tl.umulhi(x, tl.full([BLOCK], 0xD2511F53, tl.uint32))
    tl.store(out_ptr + offs, high.to(tl.int32, bitcast=True), mask=offs < n)


@outside(high_product, "tl.umulhi: upper half of an unsigned product", BLOCK=64)
def _(g):
    x = ints(g, -(2**31), 2**31, 50)
    right = [(int(v) & 0xFFFFFFFF) * 0xD2511F53 >> 32 for v in x]
    want = torch.tensor([v - 2**32 if v >= 2**31 else v for v in right])
    signed = torch.tensor([int(v) * (0xD2511F53 - 2**32) >> 32 for v in x])
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 50}
    return Launch((1,), args, {"out_ptr": want}, faults={"signed umulhi": {"out_ptr": signed}})


@triton.jit
def compare_unsigned(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr + offs, (x < y).to(tl.int32) + 2 * (x >= y).to(tl.int32), mask=offs < n)


def _unsigned(dtype, bits):
    def make(g):
        x, y = (torch.randint(0, 2**bits, (200,), generator=g) for _ in range(2))
        y[::5] = x[::5]
        args = {
            "x_ptr": x.to(dtype),
            "y_ptr": y.to(dtype),
            "out_ptr": torch.zeros(200, dtype=torch.int32),
            "n": 200,
        }
        a, b = (torch.where(v >= 2 ** (bits - 1), v - 2**bits, v) for v in (x, y))
        taken = {"out_ptr": (x != y).int() + 2 * (a < b).int()}
        return Launch(
            (1,), args, {"out_ptr": (x < y).int() + 2 * (x >= y).int()}, faults={"unsigned compare": taken}
        )

    return make


outside(compare_unsigned, "< and >= of uint8 lanes", name="compare_uint8", BLOCK=256)(_unsigned(torch.uint8, 8))
outside(compare_unsigned, "< and >= of uint16 lanes", name="compare_uint16", BLOCK=256)(
    _unsigned(torch.uint16, 16)
)
outside(compare_unsigned, "< and >= of uint32 lanes", name="compare_uint32", BLOCK=256)(
    _unsigned(torch.uint32, 32)
)


@triton.jit
def unsigned_shift(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0).to(tl.uint32, bitcast=True)
    tl.store(out_ptr + offs, (x >> 5).to(tl.int32, bitcast=True), mask=offs < n)


@outside(unsigned_shift, "x >> 5 of unsigned lanes", BLOCK=64)
def _(g):
    x = ints(g, -(2**31), 2**31, 50)
    want = ((x.long() & 0xFFFFFFFF) >> 5).int()
    args = {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 50}
    return Launch((1,), args, {"out_ptr": want}, faults={"signed shift": {"out_ptr": x >> 5}})


@triton.jit
def library_functions(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = libdevice.tanh(x) + libdevice.log1p(tl.abs(x)) + libdevice.round(x) + libdevice.trunc(x)
    y += libdevice.pow(tl.abs(x) + 0.5, x) + libdevice.atan(x) + libdevice.expm1(x) + libdevice.relu(x)
    tl.store(out_ptr + offs, tl.where(libdevice.isnan(x), 0.0, y), mask=offs < n)


@outside(library_functions, "libdevice: tanh, log1p, round, trunc, pow, atan, expm1, relu, isnan", BLOCK=128)
def _(g):
    x = normal(g, 200) * 2
    v = x.double()
    y = v.tanh() + v.abs().log1p() + v.round() + v.trunc() + (v.abs() + 0.5) ** v + v.atan() + v.expm1() + v.relu()
    return Launch((2,), {"x_ptr": x, "out_ptr": torch.zeros_like(x), "n": 200}, {"out_ptr": y}, 1e-4)


@triton.jit
def write_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr + offs, (x > 2) & (x != 4), mask=offs < n)


@outside(write_mask, "a condition stored as bool", BLOCK=64)
def _(g):
    x = ints(g, 0, 6, 150)
    args = {"x_ptr": x, "out_ptr": torch.zeros(150, dtype=torch.bool), "n": 150}
    return Launch((3,), args, {"out_ptr": (x > 2) & (x != 4)})


@triton.jit
def read_mask(x_ptr, keep_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    keep = tl.load(keep_ptr + offs, mask=mask, other=0)
    tl.store(out_ptr + offs, tl.where(keep, tl.load(x_ptr + offs, mask=mask, other=0.0), -1.0), mask=mask)


@outside(read_mask, "a condition read as bool", BLOCK=64)
def _(g):
    x, keep = normal(g, 150), ints(g, 0, 2, 150).bool()
    args = {"x_ptr": x, "keep_ptr": keep, "out_ptr": torch.zeros(150), "n": 150}
    return Launch((3,), args, {"out_ptr": torch.where(keep, x, torch.tensor(-1.0))})


@triton.jit
def double_precision(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) * 2)


@outside(double_precision, "f64, which the vector unit lacks", BLOCK=64)
def _(g):
    x = normal(g, 64).double()
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros_like(x)}, {"out_ptr": x * 2})
