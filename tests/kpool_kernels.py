"""Kernels that run one step of the kpool ops by itself."""

import triton
import triton.language as tl

from ascend_kernels.kpool import entry


@triton.jit
def encode_kernel(values, codes, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(values + at, mask=at < count, other=0)
    tl.store(codes + at, entry.encode(x, True).to(tl.uint8), mask=at < count)


@triton.jit
def scale_kernel(absmax, scales, ROUND_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(scales + at, entry.scale_of(tl.load(absmax + at), ROUND_SCALE))


@triton.jit
def scaled_kernel(values, scales, results, ROUND_SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(results + at, entry.scaled(tl.load(values + at), tl.load(scales + at), ROUND_SCALE))


@triton.jit
def rotate_kernel(rows, rotated, ROTATE: tl.constexpr):
    d = tl.arange(0, 128)
    row = tl.program_id(0) * 128
    y = ROTATE(tl.load(rows + row + d), entry.hadamard(8), entry.hadamard(16))
    tl.store(rotated + row + d, tl.reshape(y, (128,)))


@triton.jit
def place_kernel(page, tokens, HIGH: tl.constexpr, PRESHUFFLED: tl.constexpr, STORE: tl.constexpr):
    """Every byte of a page takes one byte of the number token * 128 + d of the code it holds."""
    d = tl.reshape(tl.arange(0, 128), (8, 16))
    for token in range(tokens):
        number = token * 128 + d
        if HIGH:
            number = number >> 8
        STORE(page, token, (number & 255).to(tl.uint8), PRESHUFFLED)
