"""Gather the token slots of the accepted drafts, packed one after another.

argument                shape          dtype        meaning
accept_index            [n]            int32/int64  place of each accepted draft in out_cache_loc, -1 for none
out_cache_loc           [slots]        any integer  token slots of all drafts
accepted_out_cache_loc  [>= accepted]  any integer  written: slots of the accepted drafts in the order of
                                                    accept_index; what lies behind them stays as it was

Source of the algorithm: SGLang, speculative decoding (EAGLE v2).
Launch: "tile" gives a program a block of 64 entries: it counts the accepted ones of earlier blocks, finds the
order in its own by comparing all pairs, picks their slots from tiles of out_cache_loc on chip, and stores one
contiguous run.  Nothing is done element by element, which is what an Ascend core is slow at.  "lane" has each
lane follow its own pointers, for a GPU.
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
    accept_index, out_cache_loc, accepted_out_cache_loc, n, slots,
    WORDS: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    order = lane.to(tl.float32)
    earlier = order[None, :] < order[:, None]
    word = tl.arange(0, BLOCK * WORDS).to(tl.float32)
    rank_of_word = tl.floor(word * (1.0 / WORDS))
    half = word - rank_of_word * WORDS
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), PROGRAMS):
        first = block * BLOCK
        seen = tl.zeros([COUNT], tl.float32)
        for i in range(0, tl.cdiv(first, COUNT)):
            past = i * COUNT + tl.arange(0, COUNT)
            index = tl.load(accept_index + past, mask=past < first, other=-1).to(tl.float32)
            seen += tl.where(index >= 0.0, 1.0, 0.0)
        before = tl.sum(seen).to(tl.int32)
        index = tl.load(accept_index + first + lane, mask=lane < n - first, other=-1).to(tl.float32)
        valid = tl.where(index >= 0.0, 1.0, 0.0)
        rank = tl.sum(tl.where(earlier, valid[None, :], 0.0), 1)
        rank = tl.where(index >= 0.0, rank, -1.0)
        source = tl.sum(tl.where(rank_of_word[:, None] == rank[None, :], index[None, :], 0.0), 1)
        source = source * WORDS + half
        value = tl.zeros([BLOCK * WORDS], tl.float32)
        for i in range(0, tl.cdiv(slots * WORDS, TILE)):
            place = i * TILE + tl.arange(0, TILE)
            tile = tl.load(out_cache_loc + place, mask=place < slots * WORDS, other=0)
            local = source - i * TILE
            inside = tl.minimum(tl.maximum(local, 0.0), TILE - 1.0)
            found = tl.gather(tile.to(tl.float32, bitcast=True), inside.to(tl.int32), 0)
            value = tl.where(local == inside, found, value)
        out = tl.arange(0, BLOCK * WORDS)
        count = tl.sum(valid).to(tl.int32) * WORDS
        target = accepted_out_cache_loc + before * WORDS + out
        tl.store(target, value.to(tl.int32, bitcast=True), mask=out < count)


@triton.jit
def lane_kernel(
    accept_index, out_cache_loc, accepted_out_cache_loc, n, slots,
    BLOCK: tl.constexpr, COUNT: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), PROGRAMS):
        first = block * BLOCK
        offset = first + tl.arange(0, BLOCK)
        # What the block needs is asked for before earlier entries are counted, so that one waits for no other.
        index = tl.load(accept_index + offset, mask=offset < n, other=-1)
        # Clamped too: masked lanes of a scattered load touch memory on Ascend.
        slot = tl.load(out_cache_loc + tl.maximum(index, 0), mask=index > -1, other=0)
        seen = tl.zeros([COUNT], tl.int32)
        for i in range(0, tl.cdiv(first, COUNT)):
            past = i * COUNT + tl.arange(0, COUNT)
            earlier = tl.load(accept_index + past, mask=past < first, other=-1)
            seen += (earlier > -1).to(tl.int32)
        valid = (index > -1).to(tl.int32)
        rank = tl.sum(seen) + tl.cumsum(valid, 0) - valid
        tl.store(accepted_out_cache_loc + rank, slot, mask=index > -1)


@dataclass(frozen=True)
class Tile:
    """Compacts blocks on chip with a kernel that takes the arguments of `tile_kernel`."""

    kernel: Any

    def launch(self, accept_index, out_cache_loc, accepted_out_cache_loc) -> None:
        """Launch on checked arguments."""
        words = implementation.word_count(out_cache_loc, accepted_out_cache_loc)
        if not words:
            raise TypeError(
                "accepted_out_cache_loc: expected the dtype of out_cache_loc, 4 or 8 bytes, for 'tile'"
            )
        n, slots = accept_index.shape[0], out_cache_loc.shape[0]
        made = plan.compaction(n, slots, words, device.of(accept_index))
        launch(
            self.kernel,
            (made.programs,),
            {
                "accept_index": accept_index,
                "out_cache_loc": implementation.words(out_cache_loc),
                "accepted_out_cache_loc": implementation.words(accepted_out_cache_loc),
                "n": n,
                "slots": slots,
            },
            {"WORDS": words, "BLOCK": made.rows, "COUNT": 1024, "TILE": made.tile, "PROGRAMS": made.programs},
        )


@dataclass(frozen=True)
class Lane:
    """One lane an entry, with a kernel that takes the arguments of `lane_kernel`."""

    kernel: Any
    block: int = 64

    def launch(self, accept_index, out_cache_loc, accepted_out_cache_loc) -> None:
        """Launch on checked arguments."""
        n, slots = accept_index.shape[0], out_cache_loc.shape[0]
        blocks = plan.programs(-(-n // self.block), device.of(accept_index))
        launch(
            self.kernel,
            (blocks,),
            {
                "accept_index": accept_index,
                "out_cache_loc": out_cache_loc,
                "accepted_out_cache_loc": accepted_out_cache_loc,
                "n": n,
                "slots": slots,
            },
            {"BLOCK": self.block, "COUNT": 1024, "PROGRAMS": blocks},
        )


IMPLEMENTATIONS = {"tile": Tile(tile_kernel), "lane": Lane(lane_kernel)}


def fill_accepted_out_cache_loc(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accepted_out_cache_loc: torch.Tensor,
    *,
    impl: str | Tile | Lane | None = None,
    validate: bool = False,
) -> None:
    """Stable compaction: the q-th entry of `accept_index` that is not -1 gives
    `accepted_out_cache_loc[q] := out_cache_loc[entry]`.

    Shapes and dtypes as in the table above.  impl: by default what suits the device.  Raises TypeError or
    ValueError naming the argument, PlanError above 2**24 entries.  validate=True also checks, waiting for the
    device, that entries are -1 or a place in out_cache_loc and that the accepted ones fit the result.
    """
    index = check.tensor("accept_index", accept_index, dtypes=check.INTEGERS, shape=(None,))
    check.tensor("out_cache_loc", out_cache_loc, dtypes=check.ANY_INTEGER, shape=(None,), like=index)
    check.tensor(
        "accepted_out_cache_loc", accepted_out_cache_loc, dtypes=check.ANY_INTEGER, shape=(None,), like=index
    )
    tiles = implementation.word_count(out_cache_loc, accepted_out_cache_loc) > 0
    made = implementation.chosen(impl, IMPLEMENTATIONS, index, tiles=tiles)
    if validate:
        bad = (index < -1) | (index >= len(out_cache_loc))
        check.values("accept_index", bad, index, f"-1 or a place below {len(out_cache_loc)} in out_cache_loc")
        accepted = int((index > -1).sum())
        if accepted > len(accepted_out_cache_loc):
            raise ValueError(
                f"accepted_out_cache_loc: expected room for {accepted} accepted slots, "
                f"got {len(accepted_out_cache_loc)}"
            )
    if index.shape[0] and accepted_out_cache_loc.shape[0]:
        made.launch(index, out_cache_loc, accepted_out_cache_loc)
