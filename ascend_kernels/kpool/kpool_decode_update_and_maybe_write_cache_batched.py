"""Stash the tokens of a decode step in their requests' tail rings; compress a pool when its last token comes.

argument           shape               dtype  meaning
kv_cache           [blocks, page, 132] uint8  index cache, as in kpool_compress_and_write_cache
tail               [nblk, 2, P, 128]   bf16   one ring a request: keys, then scores; strides are free but the last
tail_slot_mapping  [B, N]              int32  token slot in tail: block * P + anything below P; < 0: no token
key                [B, N, 128]         bf16   keys of the step's tokens
slot_score         [B, N, 128]         bf16   their scores
ape                [P, 128]            fp32   added to the scores, a row a place in the pool
slot_mapping       [B, N]              int32  flat cache slot of the pool a token completes; < 0: none
positions          [B, N]              int32  position in the sequence; < 0: no token
pool_size                              int    P: 4, 8 or 16
round_scale                            bool   scale is a power of two
preshuffled                            bool   layout of the codes inside a page (page a multiple of 16)

A token without a position or a tail slot writes nothing.  Any other is stashed at ring position pos % P of its
own block; when pos % P is P - 1 and slot_mapping is set, the ring is a whole pool and its entry is written.

Source of the algorithm: vLLM, K-pool compression of the GLM-5-next indexer.
Launch: a program takes every so-many-th request and its tokens in order.  On Ascend the stash comes before the
ring is read, so the pool is read as one block, this token included; the compiler orders the two.  On a GPU the
pool is the ring's other rows and the token's own, which never leave registers; its stash comes after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import in_interpreter, launch
from ..harness.spec import Unsupported
from . import entry, layout, plan


@triton.jit
def decode_kernel(
    kv_cache, scales, tail, tail_slot_mapping, key, slot_score, ape, slot_mapping, positions,
    requests, tokens, page_bytes, tail_block, tail_half, tail_row,
    P: tl.constexpr, PAGE: tl.constexpr, PRESHUFFLED: tl.constexpr, ROUND_SCALE: tl.constexpr,
    BARRIER: tl.constexpr, ROTATE: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, 128)
    bias = tl.load(ape + tl.arange(0, P)[:, None] * 128 + d[None, :])
    h8, h16 = entry.hadamard(8), entry.hadamard(16)
    for request in range(tl.program_id(0), requests, tl.num_programs(0)):
        for i in range(tokens):
            at = request * tokens + i
            position = tl.load(positions + at)
            tail_slot = tl.load(tail_slot_mapping + at)
            slot = tl.load(slot_mapping + at)
            # Before the branch: nothing to wait for, and a token has a key whether it is stashed or not.
            source = tl.cast(at, tl.int64) * 128
            own_key = tl.load(key + source + d)
            own_score = tl.load(slot_score + source + d)
            if (position >= 0) & (tail_slot >= 0):
                ring = tail + (tail_slot // P).to(tl.int64) * tail_block
                place = position % P
                if BARRIER:
                    tl.debug_barrier()  # the last token's ring was read by all threads
                tl.store(ring + place * tail_row + d, own_key)
                tl.store(ring + tail_half + place * tail_row + d, own_score)
                if (slot >= 0) & (place == P - 1):
                    if BARRIER:
                        tl.debug_barrier()
                    x = entry.pool_block(ring, ring + tail_half, tail_row, ape, bias, P)
                    code, scale = entry.quantise(ROTATE(x, h8, h16), ROUND_SCALE)
                    page, token = (slot // PAGE).to(tl.int64), slot % PAGE
                    entry.store_block(kv_cache + page * page_bytes, token, code, PRESHUFFLED)
                    entry.store_scale(scales, page, page_bytes, token, scale, PAGE)


@triton.jit
def decode_rows_kernel(
    kv_cache, scales, tail, tail_slot_mapping, key, slot_score, ape, slot_mapping, positions,
    requests, tokens, page_bytes, tail_block, tail_half, tail_row,
    P: tl.constexpr, PAGE: tl.constexpr, PRESHUFFLED: tl.constexpr, ROUND_SCALE: tl.constexpr,
    AHEAD: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, 128)
    for request in range(tl.program_id(0), requests, tl.num_programs(0)):
        for begin in range(0, tokens, AHEAD):
            # What AHEAD tokens bring is asked for at once, before anything is waited for.
            metadata = ()
            own = ()
            for i in tl.static_range(AHEAD):
                at = request * tokens + begin + i
                there = begin + i < tokens
                position = tl.load(positions + at, mask=there, other=-1)
                tail_slot = tl.load(tail_slot_mapping + at, mask=there, other=-1)
                slot = tl.load(slot_mapping + at, mask=there, other=-1)
                metadata += ((position, tail_slot, slot),)
            for i in tl.static_range(AHEAD):
                source = tl.cast(request * tokens + begin + i, tl.int64) * 128 + d
                there = begin + i < tokens
                own += (
                    (
                        tl.load(key + source, mask=there, other=0),
                        tl.load(slot_score + source, mask=there, other=0),
                    ),
                )
            for i in range(0, tl.minimum(AHEAD, tokens - begin)):
                position, tail_slot, slot = metadata[0][0], metadata[0][1], metadata[0][2]
                own_key, own_score = own[0][0], own[0][1]
                for j in tl.static_range(1, AHEAD):
                    position = tl.where(i == j, metadata[j][0], position)
                    tail_slot = tl.where(i == j, metadata[j][1], tail_slot)
                    slot = tl.where(i == j, metadata[j][2], slot)
                    own_key = tl.where(i == j, own[j][0], own_key)
                    own_score = tl.where(i == j, own[j][1], own_score)
                if (position >= 0) & (tail_slot >= 0):
                    ring = tail + (tail_slot // P).to(tl.int64) * tail_block
                    place = position % P
                    if (slot >= 0) & (place == P - 1):
                        tl.debug_barrier()  # what earlier tokens stashed is there for all threads
                        x = entry.pool_with_last(ring, ring + tail_half, tail_row, ape, own_key, own_score, P)
                        x = tl.reshape(entry.rotate_butterfly(x, 0, 0), (128,))
                        absmax = tl.max(tl.maximum(tl.abs(x), entry.FLOOR, propagate_nan=entry.ALL))
                        scale = entry.scale_of(absmax, ROUND_SCALE)
                        z = entry.scaled(x, scale, ROUND_SCALE)
                        if NATIVE:
                            code = entry.encode_natively(z)
                        else:
                            code = entry.encode(z, True).to(tl.uint8)
                        page, token = (slot // PAGE).to(tl.int64), slot % PAGE
                        entry.store_flat(kv_cache + page * page_bytes, token, code, PRESHUFFLED)
                        entry.store_scale(scales, page, page_bytes, token, scale, PAGE)
                        tl.debug_barrier()  # the ring was read by all threads
                    tl.store(ring + place * tail_row + d, own_key)
                    tl.store(ring + tail_half + place * tail_row + d, own_score)


@dataclass(frozen=True)
class Decode:
    """One request at a time; the rotation is a function of `entry`.

    warps: of a GPU program, if not the plan's."""

    rotate: Any = entry.rotate_kronecker
    warps: int = 0

    def launch(self, tensors: dict[str, Any], constants: dict[str, Any], where: device.Device) -> None:
        """Launch on checked arguments."""
        made = plan.pools(tensors["requests"], constants["P"], where)
        shape = {"BARRIER": not where.ascend, "ROTATE": self.rotate}
        options = {} if where.ascend else {"num_warps": self.warps or made.warps}
        launch(decode_kernel, (made.programs,), tensors, constants | shape, **options)


@dataclass(frozen=True)
class Rows:
    """A request a program, a row a load: the form for a GPU.

    ahead: tokens whose rows are asked for at once.  warps: of a program."""

    ahead: int = 4
    warps: int = 1

    def launch(self, tensors: dict[str, Any], constants: dict[str, Any], where: device.Device) -> None:
        """Launch on checked arguments."""
        if where.ascend and not in_interpreter():
            raise Unsupported("impl: rows is for a GPU; its kernel holds rows in tuples")
        made = plan.pools(tensors["requests"], constants["P"], where)
        ahead = min(self.ahead, plan.power_of_two(tensors["tokens"]))
        shape = {"AHEAD": ahead, "NATIVE": entry.native_fp8(tensors["ape"].device)}
        launch(decode_rows_kernel, (made.programs,), tensors, constants | shape, num_warps=self.warps)


IMPLEMENTATIONS = {"kronecker": Decode(), "rows": Rows()}


def kpool_decode_update_and_maybe_write_cache_batched(
    kv_cache: torch.Tensor,
    tail: torch.Tensor,
    tail_slot_mapping: torch.Tensor,
    key: torch.Tensor,
    slot_score: torch.Tensor,
    ape: torch.Tensor,
    slot_mapping: torch.Tensor,
    positions: torch.Tensor,
    pool_size: int,
    round_scale: bool = True,
    preshuffled: bool = False,
    *,
    impl: str | Decode | Rows | None = None,
    validate: bool = False,
) -> None:
    """Update tail rings and, for pools that become complete, the cache; in place.

    Shapes and dtypes as in the table above.  impl: `kronecker` (default on Ascend) or `rows` (default on a
    GPU, not for an NPU).  Raises TypeError or ValueError naming the argument, before anything is written.
    validate=True also checks values, which waits for the device: slots inside the cache and the rings,
    distinct cache slots, no ring shared by two requests.
    """
    cache = layout.check_cache(kv_cache, preshuffled)
    size = layout.check_pool_size("pool_size", pool_size)
    layout.check_tail(tail, size, kv_cache)
    check.tensor("key", key, dtypes=(torch.bfloat16,), shape=(None, None, entry.HEAD), like=kv_cache)
    batch = key.shape[:2]
    check.tensor("slot_score", slot_score, dtypes=(torch.bfloat16,), shape=key.shape, like=kv_cache)
    check.tensor("ape", ape, dtypes=(torch.float32,), shape=(size, entry.HEAD), like=kv_cache)
    metadata = {"tail_slot_mapping": tail_slot_mapping, "slot_mapping": slot_mapping, "positions": positions}
    for name, value in metadata.items():
        check.tensor(name, value, dtypes=(torch.int32,), shape=batch, like=kv_cache)
    requests, tokens = batch
    check.number("B * N", requests * tokens, most=2**31 - 1)
    where = device.of(kv_cache)
    known = IMPLEMENTATIONS["kronecker" if where.ascend else "rows"] if impl is None else impl
    decode = check.implementation(known, IMPLEMENTATIONS)
    if validate:
        _check_values(cache, tail, tail_slot_mapping, slot_mapping, positions, size)
    if requests == 0 or tokens == 0:
        return
    block, half, row, _ = tail.stride()
    tensors = {
        "kv_cache": kv_cache,
        "scales": kv_cache.view(torch.float32),
        "tail": tail,
        "tail_slot_mapping": tail_slot_mapping,
        "key": key,
        "slot_score": slot_score,
        "ape": ape,
        "slot_mapping": slot_mapping,
        "positions": positions,
        "requests": requests,
        "tokens": tokens,
        "page_bytes": cache.page_bytes,
        "tail_block": block,
        "tail_half": half,
        "tail_row": row,
    }
    constants = {"P": size, "PAGE": cache.page, "PRESHUFFLED": preshuffled, "ROUND_SCALE": bool(round_scale)}
    decode.launch(tensors, constants, where)


def _check_values(cache, tail, tail_slots, slots, positions, size: int) -> None:
    valid = (positions >= 0) & (tail_slots >= 0)
    most = tail.shape[0] * size
    check.values("tail_slot_mapping", valid & (tail_slots >= most), tail_slots, f"a slot below {most}")
    block = tail_slots // size
    first = torch.full((max(1, tail.shape[0]),), tail_slots.shape[0], dtype=torch.int64, device=tail.device)
    request = torch.arange(tail_slots.shape[0], device=tail.device)[:, None].expand(tail_slots.shape)
    first.scatter_reduce_(0, block[valid].long(), request[valid], "amin")
    owner = first[torch.where(valid, block, 0).long()]
    check.values("tail_slot_mapping", valid & (owner != request), tail_slots, "a ring no other request uses")
    complete = valid & (slots >= 0) & (positions % size == size - 1)
    layout.check_slots("slot_mapping", slots, complete, cache.slots)
