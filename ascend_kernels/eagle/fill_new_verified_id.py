"""Pick each request's last accepted token, which the next step starts from.

argument          shape                    dtype        meaning
verified_id       [bs * num_draft_tokens]  any integer  tokens of the verified tree, in accepted order
accept_lens       [bs]                     int32/int64  accepted tokens with the bonus, 1..num_draft_tokens
new_verified_id   [bs]                     any integer  written: verified_id[num_draft_tokens*r + accept - 1]
num_draft_tokens  int                      -            tokens of one request in verified_id

Source of the algorithm: SGLang, speculative decoding (EAGLE v2).
Launch: "tile" loads the tokens of several requests as one contiguous tile and picks from it on chip, since a
lane of an Ascend core cannot follow a pointer of its own; "lane" follows pointers, for a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import implementation, plan


@triton.jit
def tile_kernel(
    verified_id, accept_lens, new_verified_id, requests, num_draft_tokens,
    WORDS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    # Two words of one element are two lanes; fp32 compares and multiplies on Ascend, where int32 may not.
    word = tl.arange(0, ROWS * WORDS).to(tl.float32)
    row = tl.floor(word * (1.0 / WORDS))
    half = word - row * WORDS
    for group in range(tl.program_id(0), tl.cdiv(requests, ROWS), PROGRAMS):
        first = group * ROWS
        count = tl.minimum(requests - first, ROWS)
        lane = tl.arange(0, ROWS)
        accept = tl.load(accept_lens + first + lane, mask=lane < count, other=1).to(tl.float32)
        accept = tl.gather(accept, row.to(tl.int32), 0)
        offset = tl.arange(0, TILE)
        start = tl.cast(first, tl.int64) * num_draft_tokens * WORDS
        tile = tl.load(verified_id + start + offset, mask=offset < count * num_draft_tokens * WORDS, other=0)
        place = (row * num_draft_tokens + accept - 1.0) * WORDS + half
        place = tl.minimum(tl.maximum(place, 0.0), TILE - 1.0).to(tl.int32)
        found = tl.gather(tile.to(tl.float32, bitcast=True), place, 0)
        out = tl.arange(0, ROWS * WORDS)
        target = new_verified_id + first * WORDS + out
        tl.store(target, found.to(tl.int32, bitcast=True), mask=out < count * WORDS)


@triton.jit
def lane_kernel(
    verified_id, accept_lens, new_verified_id, requests, num_draft_tokens,
    BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    for block in range(tl.program_id(0), tl.cdiv(requests, BLOCK), PROGRAMS):
        request = block * BLOCK + tl.arange(0, BLOCK)
        accept = tl.load(accept_lens + request, mask=request < requests, other=1).to(tl.int64)
        # Clamped too: masked lanes of a scattered load touch memory on Ascend.
        place = tl.minimum(request, requests - 1).to(tl.int64) * num_draft_tokens + accept - 1
        token = tl.load(verified_id + place, mask=request < requests, other=0)
        tl.store(new_verified_id + request, token, mask=request < requests)


@dataclass(frozen=True)
class Tile:
    """Picks from tiles with a kernel that takes the arguments of `tile_kernel`."""

    kernel: Any

    def launch(self, verified_id, accept_lens, new_verified_id, num_draft_tokens: int) -> None:
        """Launch on checked arguments."""
        words = implementation.word_count(verified_id, new_verified_id)
        if not words:
            raise TypeError("new_verified_id: expected the 4 or 8-byte dtype of verified_id for impl='tile'")
        requests = accept_lens.shape[0]
        made = plan.new_verified(requests, num_draft_tokens, words, device.of(verified_id))
        launch(
            self.kernel,
            (made.programs,),
            {
                "verified_id": implementation.words(verified_id),
                "accept_lens": accept_lens,
                "new_verified_id": implementation.words(new_verified_id),
                "requests": requests,
                "num_draft_tokens": num_draft_tokens,
            },
            {"WORDS": words, "ROWS": made.rows, "TILE": made.tile, "PROGRAMS": made.programs},
        )


@dataclass(frozen=True)
class Lane:
    """Follows a pointer a lane with a kernel that takes the arguments of `lane_kernel`."""

    kernel: Any
    block: int = 128

    def launch(self, verified_id, accept_lens, new_verified_id, num_draft_tokens: int) -> None:
        """Launch on checked arguments."""
        requests = accept_lens.shape[0]
        blocks = plan.programs(-(-requests // self.block), device.of(verified_id))
        launch(
            self.kernel,
            (blocks,),
            {
                "verified_id": verified_id,
                "accept_lens": accept_lens,
                "new_verified_id": new_verified_id,
                "requests": requests,
                "num_draft_tokens": num_draft_tokens,
            },
            {"BLOCK": self.block, "PROGRAMS": blocks},
        )


IMPLEMENTATIONS = {"tile": Tile(tile_kernel), "lane": Lane(lane_kernel)}


def fill_new_verified_id(
    verified_id: torch.Tensor,
    accept_lens: torch.Tensor,
    new_verified_id: torch.Tensor,
    num_draft_tokens: int,
    *,
    impl: str | Tile | Lane | None = None,
    validate: bool = False,
) -> None:
    """`new_verified_id[r] := verified_id[num_draft_tokens*r + accept_lens[r] - 1]`.

    Shapes and dtypes as in the table above.  impl: by default what suits the device.  Raises TypeError or
    ValueError naming the argument, PlanError for draft tokens that do not fit.  validate=True also checks,
    waiting for the device, that 1 <= accept_lens <= num_draft_tokens.
    """
    lens = check.tensor("accept_lens", accept_lens, dtypes=check.INTEGERS, shape=(None,))
    drafts = check.number("num_draft_tokens", num_draft_tokens, least=1)
    total = check.number("bs * num_draft_tokens", lens.shape[0] * drafts, most=2**31 - 1)
    check.tensor("verified_id", verified_id, dtypes=check.ANY_INTEGER, shape=(total,), like=lens)
    check.tensor("new_verified_id", new_verified_id, dtypes=check.ANY_INTEGER, shape=lens.shape, like=lens)
    if impl is None:  # the tile is the faster one on a GPU, too: tools/gpu_compare.py
        words = implementation.word_count(verified_id, new_verified_id)
        fits = device.of(lens).ascend or drafts * words <= plan.GATHER_TILE // 2
        impl = "tile" if words and fits else "lane"
    made = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        bad = (lens < 1) | (lens > drafts)
        check.values("accept_lens", bad, lens, f"between 1 and {drafts}, the number of draft tokens")
    if total:
        made.launch(verified_id, lens, new_verified_id, drafts)
