"""Store the last tokens of each request of a prefill batch in its tail ring.

argument  shape              dtype        meaning
tail      [nblk, 2, P, 128]  bf16         one ring a request: keys, then scores; strides are free but the last
key       [n, 128]           bf16         keys of the batch's tokens, a request's tokens in a row
score     [n, 128]           bf16         their scores
tslot     [n]                int32/int64  token slot in tail: block * P + ring position; < 0: token is not stored
P                            int          4, 8 or 16

A token is skipped when token i + P lies in the same block: it is not among its request's last P.

Source of the algorithm: vLLM, K-pool compression of the GLM-5-next indexer.
Launch: on Ascend a program takes every so-many-th token; on a GPU a program takes a block of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import entry, layout, plan


@triton.jit
def seed_kernel(tail, key, score, tslot, tokens, tail_block, tail_half, tail_row, P: tl.constexpr):
    d = tl.arange(0, 128)
    for i in range(tl.program_id(0), tokens, tl.num_programs(0)):
        slot = tl.load(tslot + i).to(tl.int32)
        later = tl.load(tslot + tl.minimum(i + P, tokens - 1)).to(tl.int32)
        superseded = (i + P < tokens) & (later >= 0) & (later // P == slot // P)
        if (slot >= 0) & (superseded == 0):
            ring = tail + (slot // P).to(tl.int64) * tail_block + slot % P * tail_row
            source = tl.cast(i, tl.int64) * 128
            tl.store(ring + d, tl.load(key + source + d))
            tl.store(ring + tail_half + d, tl.load(score + source + d))


@triton.jit
def seed_tile_kernel(
    tail, key, score, tslot, tokens, tail_block, tail_half, tail_row,
    P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, 128)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(tokens, ROWS), tl.num_programs(0)):
        i = tile * ROWS + tl.arange(0, ROWS)
        slot = tl.load(tslot + i, mask=i < tokens, other=-1).to(tl.int32)
        later = tl.load(tslot + i + P, mask=i + P < tokens, other=-1).to(tl.int32)
        keep = (slot >= 0) & ((later < 0) | (later // P != slot // P))
        inside = keep[:, None]
        ring = tail + ((slot // P).to(tl.int64) * tail_block + slot % P * tail_row)[:, None] + d
        source = i.to(tl.int64)[:, None] * 128 + d
        tl.store(ring, tl.load(key + source, mask=inside), mask=inside)
        tl.store(ring + tail_half, tl.load(score + source, mask=inside), mask=inside)


@dataclass(frozen=True)
class Seed:
    """tiles: many tokens at a time; None: on a GPU."""

    tiles: bool | None = None

    def launch(self, tensors: dict[str, Any], size: int, where: device.Device) -> None:
        """Launch on checked arguments."""
        tiles = not where.ascend if self.tiles is None else self.tiles
        made = plan.tokens(tensors["tokens"], tiles, where)
        if tiles:
            launch(seed_tile_kernel, (made.programs,), tensors, {"P": size, "ROWS": made.rows})
        else:
            launch(seed_kernel, (made.programs,), tensors, {"P": size})


IMPLEMENTATIONS = {"tokens": Seed()}


def kpool_seed_tail_cache(
    tail: torch.Tensor,
    key: torch.Tensor,
    score: torch.Tensor,
    tslot: torch.Tensor,
    P: int,
    *,
    impl: str | Seed = "tokens",
    validate: bool = False,
) -> None:
    """Each request's last P tokens into its ring, in place.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument, before
    anything is written.  validate=True also checks values, which waits for the device: slots inside the rings,
    no slot stored twice.
    """
    size = layout.check_pool_size("P", P)
    check.tensor("key", key, dtypes=(torch.bfloat16,), shape=(None, entry.HEAD))
    layout.check_tail(tail, size, key)
    check.tensor("score", score, dtypes=(torch.bfloat16,), shape=key.shape, like=key)
    check.tensor("tslot", tslot, dtypes=check.INTEGERS, shape=key.shape[:1], like=key)
    tokens = check.number("n", key.shape[0], most=2**31 - 1 - size)
    seed = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        most = tail.shape[0] * size
        check.values("tslot", tslot >= most, tslot, f"a slot below {most}")
        block = torch.where(tslot < 0, -1, tslot // size)
        later = torch.full_like(block, -1)
        later[:-size] = block[size:]
        stored = (block >= 0) & (later != block)
        check.values("tslot", layout.repeated(tslot, stored), tslot, "a slot no other stored token has")
    if tokens == 0:
        return
    block, half, row, _ = tail.stride()
    tensors = {
        "tail": tail,
        "key": key,
        "score": score,
        "tslot": tslot,
        "tokens": tokens,
        "tail_block": block,
        "tail_half": half,
        "tail_row": row,
    }
    seed.launch(tensors, size, device.of(key))
