"""The EAGLE kernels with one source pattern changed each: what a careless edit would do.

Every twin has the arguments of the kernel it stands beside.  What each costs is read from its compiled code;
whether one is unsafe is the finding of a run, `safe=False` only says that it was seen.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from ..harness.launch import launch
from ..harness.spec import Twin
from .fill_accepted_out_cache_loc import Lane, Tile, fill_accepted_out_cache_loc
from .renorm import Cut
from .select_top_k_tokens import Selection, select_top_k_tokens, tile_kernel
from .top_k_renorm_prob import top_k_renorm_prob
from .tree_speculative_sampling_target_only import Sampling, tree_speculative_sampling_target_only


@triton.jit
def int64_count_kernel(
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
        seen = tl.zeros([COUNT], tl.int64)
        for i in range(0, tl.cdiv(first, COUNT)):
            past = i * COUNT + tl.arange(0, COUNT)
            index = tl.load(accept_index + past, mask=past < first, other=-1).to(tl.int64)
            seen += tl.where(index >= 0, 1, 0).to(tl.int64)
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
def unclamped_kernel(
    accept_index, out_cache_loc, accepted_out_cache_loc, n, slots,
    BLOCK: tl.constexpr, COUNT: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), PROGRAMS):
        first = block * BLOCK
        offset = first + tl.arange(0, BLOCK)
        index = tl.load(accept_index + offset, mask=offset < n, other=-1)
        slot = tl.load(out_cache_loc + index, mask=index > -1, other=0)
        seen = tl.zeros([COUNT], tl.int32)
        for i in range(0, tl.cdiv(first, COUNT)):
            past = i * COUNT + tl.arange(0, COUNT)
            earlier = tl.load(accept_index + past, mask=past < first, other=-1)
            seen += (earlier > -1).to(tl.int32)
        valid = (index > -1).to(tl.int32)
        rank = tl.sum(seen) + tl.cumsum(valid, 0) - valid
        tl.store(accepted_out_cache_loc + rank, slot, mask=index > -1)


@triton.jit
def entry_kernel(accept_index, out_cache_loc, accepted_out_cache_loc, BOUND: tl.constexpr):
    entry = tl.program_id(0)
    lane = tl.arange(0, BOUND)
    source = tl.load(accept_index + entry)
    if source > -1:
        earlier = tl.load(accept_index + lane, mask=lane < entry, other=-1)
        rank = tl.sum((earlier != -1).to(tl.int32))
        tl.store(accepted_out_cache_loc + rank, tl.load(out_cache_loc + source))


@dataclass(frozen=True)
class Entry:
    """One program an entry, as in the source of the algorithm."""

    kernel: Any

    def launch(self, accept_index, out_cache_loc, accepted_out_cache_loc) -> None:
        """Launch on checked arguments."""
        launch(
            self.kernel,
            (len(accept_index),),
            {
                "accept_index": accept_index,
                "out_cache_loc": out_cache_loc,
                "accepted_out_cache_loc": accepted_out_cache_loc,
            },
            {"BOUND": max(16, triton.next_power_of_2(len(accept_index)))},
        )


@triton.jit
def integer_bounds_kernel(
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
            bound = low + bound_number * step
            held = tl.zeros([8], tl.float32)
            for i in range(0, tl.cdiv(vocab, BLOCK)):
                offset = i * BLOCK + tl.arange(0, BLOCK)
                p = tl.load(probs + base + offset, mask=offset < vocab, other=-1.0)
                pattern = p.to(tl.int32, bitcast=True)
                weight = p if MASS else tl.full([BLOCK], 1.0, tl.float32)
                held += tl.sum(tl.where(pattern[None, :] >= bound[:, None], weight[None, :], 0.0), 1)
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


SELECT = {
    "one-request": Twin(
        functools.partial(select_top_k_tokens, impl=Selection(tile_kernel, rows=True, group=1)),
        "one request at a time: vectors of one element become scalars",
    ),
}

ACCEPTED = {
    "int64-count": Twin(
        functools.partial(fill_accepted_out_cache_loc, impl=Tile(int64_count_kernel)),
        "accepted entries before a block counted in int64",
    ),
    "program-an-entry": Twin(
        functools.partial(fill_accepted_out_cache_loc, impl=Entry(entry_kernel)),
        "one program an entry, each of which counts all earlier ones",
    ),
    "unclamped": Twin(
        functools.partial(fill_accepted_out_cache_loc, impl=Lane(unclamped_kernel)),
        "scattered load at -1 under a mask, address not clamped",
        safe=False,
    ),
}

TOP_K = {
    "integer-bounds": Twin(
        functools.partial(top_k_renorm_prob, impl=Cut(integer_bounds_kernel)),
        "bit patterns compared as int32 instead of as the floats they are",
    ),
}

SAMPLING = {
    "cumsum": Twin(
        functools.partial(tree_speculative_sampling_target_only, impl=Sampling(scan=True)),
        "tl.cumsum in the draw instead of sums over a triangle",
    ),
}
