"""What the two renormalisations share: the exact search for the smallest probability that is kept.

The bit pattern of a non-negative float, read as an integer, orders as the float does.  So the cut is found from
its highest bit down, for every pattern below 2.0; nothing is sorted and no lane is treated alone.  "bits" finds
one bit a pass: thirty passes with little to do in each.  "digits" finds three bits a pass by comparing tiles of
the vocabulary with eight bounds at once: ten passes, better for a vocabulary that fits one tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan

SUM_TOLERANCE = 1e-3  # of a row of probabilities from one


@triton.jit
def digits_kernel(
    probs, limits, out, rows, vocab,
    MASS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    bound_number = tl.arange(0, 8)
    for row in range(tl.program_id(0), rows, PROGRAMS):
        base = tl.cast(row, tl.int64) * vocab
        limit = tl.load(limits + row).to(tl.float32)
        low = 0
        for digit in range(0, 10):
            step = 1 << (27 - 3 * digit)
            bound = (low + bound_number * step).to(tl.float32, bitcast=True)
            held = tl.zeros([8], tl.float32)
            for i in range(0, tl.cdiv(vocab, BLOCK)):
                offset = i * BLOCK + tl.arange(0, BLOCK)
                p = tl.load(probs + base + offset, mask=offset < vocab, other=-1.0)
                weight = p if MASS else tl.full([BLOCK], 1.0, tl.float32)
                held += tl.sum(tl.where(p[None, :] >= bound[:, None], weight[None, :], 0.0), 1)
            # Bounds rise, so what they hold falls; the lowest always counts as holding enough.
            enough = tl.sum(tl.where(held >= limit, 1.0, 0.0)).to(tl.int32)
            low += tl.maximum(enough - 1, 0) * step
        cut = low.to(tl.float32, bitcast=True)
        kept = tl.zeros([BLOCK], tl.float32)
        for i in range(0, tl.cdiv(vocab, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            p = tl.load(probs + base + offset, mask=offset < vocab, other=-1.0)
            kept += tl.where(p >= cut, p, 0.0)
        total = tl.sum(kept)
        for i in range(0, tl.cdiv(vocab, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            p = tl.load(probs + base + offset, mask=offset < vocab, other=-1.0)
            tl.store(out + base + offset, tl.where(p >= cut, p / total, 0.0), mask=offset < vocab)


@triton.jit
def bits_kernel(
    probs, limits, out, rows, vocab,
    MASS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    for row in range(tl.program_id(0), rows, PROGRAMS):
        base = tl.cast(row, tl.int64) * vocab
        limit = tl.load(limits + row).to(tl.float32)
        low = 0
        for bit in range(0, 30):
            step = 1 << (29 - bit)
            bound = (low + step).to(tl.float32, bitcast=True)
            held = tl.zeros([BLOCK], tl.float32)
            for i in range(0, tl.cdiv(vocab, BLOCK)):
                offset = i * BLOCK + tl.arange(0, BLOCK)
                p = tl.load(probs + base + offset, mask=offset < vocab, other=-1.0)
                weight = p if MASS else tl.full([BLOCK], 1.0, tl.float32)
                held += tl.where(p >= bound, weight, 0.0)
            low += tl.where(tl.sum(held) >= limit, step, 0)
        cut = low.to(tl.float32, bitcast=True)
        kept = tl.zeros([BLOCK], tl.float32)
        for i in range(0, tl.cdiv(vocab, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            p = tl.load(probs + base + offset, mask=offset < vocab, other=-1.0)
            kept += tl.where(p >= cut, p, 0.0)
        total = tl.sum(kept)
        for i in range(0, tl.cdiv(vocab, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            p = tl.load(probs + base + offset, mask=offset < vocab, other=-1.0)
            tl.store(out + base + offset, tl.where(p >= cut, p / total, 0.0), mask=offset < vocab)


@dataclass(frozen=True)
class Cut:
    """One implementation, with a kernel that takes the arguments of `digits_kernel`.  block: most tokens a tile;
    large_block: on a GPU."""

    kernel: Any
    block: int = 1024
    large_block: int = 8192
    warps: int = 8

    def launch(self, probs: torch.Tensor, limits: torch.Tensor, out: torch.Tensor, *, mass: bool) -> None:
        """Launch on checked arguments.  mass: limits are masses to reach, not numbers of tokens."""
        rows, vocab = probs.shape
        where = device.of(probs)
        block = self.block if where.ascend else self.large_block
        made = plan.vocabulary(rows, vocab, where, block, f"{self.kernel.__name__} {'mass' if mass else 'count'}")
        launch(
            self.kernel,
            (made.programs,),
            {"probs": probs, "limits": limits, "out": out, "rows": rows, "vocab": vocab},
            {"MASS": mass, "BLOCK": made.tile, "PROGRAMS": made.programs},
            **{"num_warps": self.warps} | made.options,
        )


IMPLEMENTATIONS = {"bits": Cut(bits_kernel, 4096, 16384, warps=16), "digits": Cut(digits_kernel)}


def check_probabilities(name: str, probs: torch.Tensor) -> None:
    """Every row lies in [0, 1] and sums to one.  Waits for the device."""
    check.values(name, ~((probs >= 0) & (probs <= 1)), probs, "a probability between 0 and 1")
    sums = probs.sum(-1, dtype=torch.float64)
    check.values(name + ".sum(-1)", (sums - 1).abs() > SUM_TOLERANCE, sums, f"1 within {SUM_TOLERANCE}")
