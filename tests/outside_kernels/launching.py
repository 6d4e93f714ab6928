"""What stands around a kernel: autotuning, heuristics, defaults, optional pointers, values made constants."""

import torch
import triton
import triton.language as tl

from ascend_model import stand_in_driver
from tests.outside_kernels.case import Launch, normal, outside

stand_in_driver()  # as every importer of an autotuned kernel must where there is no device


@triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def autotuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


@outside(autotuned, "@triton.autotune with two configurations, one of them named", name="autotuned", BLOCK=128)
def _(g):
    x = normal(g, 200)
    return Launch((2,), {"x_ptr": x, "out_ptr": torch.zeros(200), "n": 200}, {"out_ptr": x * 2})


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic(x_ptr, out_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        x = tl.load(x_ptr + offs)
    else:
        x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(out_ptr + offs, x * 2, mask=offs < n)


def _doubled(n):
    def make(g):
        x = normal(g, n)
        return Launch((2,), {"x_ptr": x, "out_ptr": torch.zeros(n), "n": n}, {"out_ptr": x * 2})

    return make


outside(heuristic, "@triton.heuristics: a cut last tile", name="heuristic_cut", BLOCK=128)(_doubled(200))
outside(heuristic, "@triton.heuristics: whole tiles", name="heuristic_whole", BLOCK=128)(_doubled(256))


@triton.jit
def activation(x_ptr, out_ptr, n, bias_ptr=None, BLOCK: tl.constexpr = 128, KIND: tl.constexpr = "relu"):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offs, mask=offs < n, other=0.0)
    x = tl.maximum(x, 0.0)
    if KIND == "relu2":
        x = x * x
    tl.store(out_ptr + offs, x, mask=offs < n)


@outside(activation, "defaults of the signature, among them a pointer that is None", name="defaults")
def _(g):
    x = normal(g, 200)
    return Launch((2,), {"x_ptr": x, "out_ptr": torch.zeros(200), "n": 200}, {"out_ptr": x.relu()})


@outside(activation, "the same with a bias and a string constant", name="string_constant", KIND="relu2")
def _(g):
    x, bias = normal(g, 200), normal(g, 200)
    args = {"x_ptr": x, "out_ptr": torch.zeros(200), "n": 200, "bias_ptr": bias}
    return Launch((2,), args, {"out_ptr": (x + bias).relu() ** 2})


@triton.jit
def typed(x_ptr, out_ptr, n, scale, flag, large, BLOCK: tl.constexpr, TYPE: tl.constexpr = tl.float16):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    if flag:
        x = x * scale
    tl.store(out_ptr + offs, x.to(TYPE) + (large >> 32).to(TYPE), mask=offs < n)


@outside(typed, "a type as constant, a bool, a float, an int above 2**32", BLOCK=128)
def _(g):
    x = normal(g, 200)
    args = {"x_ptr": x, "out_ptr": torch.zeros(200, dtype=torch.float16), "n": 200, "scale": 0.5, "flag": True,
            "large": 3 << 32}  # fmt: skip
    return Launch((2,), args, {"out_ptr": (x * 0.5).half() + 3})


@triton.jit
def strided(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs * stride, tl.load(x_ptr + offs * stride, mask=offs < n) * 2, mask=offs < n)


@outside(strided, "a stride of 1, which becomes a constant", name="stride_one", BLOCK=64)
def _(g):
    x = normal(g, 50)
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros(50), "n": 50, "stride": 1}, {"out_ptr": x * 2})


@outside(strided, "a stride of 3", name="stride_three", BLOCK=64)
def _(g):
    x, want = normal(g, 150), torch.zeros(150)
    want[::3] = x[::3] * 2
    return Launch((1,), {"x_ptr": x, "out_ptr": torch.zeros(150), "n": 50, "stride": 3}, {"out_ptr": want})
