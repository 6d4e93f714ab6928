"""Compress pools of P tokens into one fp8 entry each and write the entries into the index cache.

argument           shape               dtype       meaning
kv_cache           [blocks, page, 132] uint8       index cache; one page is page * 128 code bytes, then page
                                                   fp32 scales; pages may be padded (stride of the first axis)
slot_k             [n, P, 128]         bf16        keys of each pool's tokens
slot_score         [n, P, 128]         bf16, fp32  their scores
ape                [P, 128]            fp32        added to the scores, a row a place in the pool
loc                [n]                 int64       flat cache slot of each entry: block * page + token; distinct
pool_size                              int         P: 4, 8 or 16
write_mask         [n] or None         bool        False: the pool is not looked at and nothing is written
round_scale                            bool        scale is a power of two
return_compressed                      bool        also return codes [n, 128] uint8 and scales [n] fp32
write_cache                            bool        write the entries at loc
preshuffled                            bool        layout of the codes inside a page (page a multiple of 16)

Source of the algorithm: vLLM, K-pool compression of the GLM-5-next indexer.
Launch: on Ascend at most one program a vector core, each taking every so-many-th pool, one 2-D load for the
keys and one for the scores; on a GPU many pools a program and the rotation as a matrix product.
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
def compress_kernel(
    kv_cache, scales, slot_k, slot_score, ape, loc, write_mask, codes, code_scales, pools, page_bytes,
    P: tl.constexpr, PAGE: tl.constexpr, PRESHUFFLED: tl.constexpr, ROUND_SCALE: tl.constexpr,
    WRITE: tl.constexpr,
    POOL: tl.constexpr, ROTATE: tl.constexpr, QUANTISE: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    bias = tl.load(ape + tl.arange(0, P)[:, None] * 128 + tl.arange(0, 128)[None, :])
    h8, h16 = entry.hadamard(8), entry.hadamard(16)
    for pool in range(tl.program_id(0), pools, tl.num_programs(0)):
        keep = True
        if write_mask is not None:
            keep = tl.load(write_mask + pool) != 0
        if keep:
            first = tl.cast(pool, tl.int64) * (P * 128)
            x = POOL(slot_k + first, slot_score + first, 128, ape, bias, P)
            code, scale = QUANTISE(ROTATE(x, h8, h16), ROUND_SCALE)
            if WRITE:
                slot = tl.load(loc + pool)
                page, token = slot // PAGE, slot % PAGE
                STORE(kv_cache + page * page_bytes, token, code, PRESHUFFLED)
                entry.store_scale(scales, page, page_bytes, token, scale, PAGE)
            if codes is not None:
                entry.store_block(codes, tl.cast(pool, tl.int64), code, False)
                tl.store(code_scales + pool, scale)


@triton.jit
def compress_tile_kernel(
    kv_cache, scales, slot_k, slot_score, ape, loc, write_mask, codes, code_scales, pools, page_bytes,
    P: tl.constexpr, PAGE: tl.constexpr, PRESHUFFLED: tl.constexpr, ROUND_SCALE: tl.constexpr,
    WRITE: tl.constexpr, ROWS: tl.constexpr, HOIST: tl.constexpr, NATIVE: tl.constexpr, READ: tl.constexpr,
):  # fmt: skip
    # Four values a thread also for bf16: keys, scores and the fp32 ape then share one layout, and a sum over the
    # tokens stays inside a thread.
    d = tl.max_contiguous(tl.arange(0, 128), 4)
    wide = tl.arange(0, 128)
    signs = entry.hadamard_bits()
    member = tl.arange(0, P)[None, :, None]
    if HOIST:
        bias = tl.load(ape + member * 128 + d[None, None, :])
    for tile in range(tl.program_id(0), tl.cdiv(pools, ROWS), tl.num_programs(0)):
        pool = tile * ROWS + tl.arange(0, ROWS)
        keep = pool < pools
        if write_mask is not None:
            keep &= tl.load(write_mask + pool, mask=keep, other=0) != 0
        inside = keep[:, None]
        first = pool.to(tl.int64)[:, None, None] * (P * 128) + member * 128 + d[None, None, :]
        if WRITE:
            slot = tl.load(loc + pool, mask=keep, other=0)
        v = tl.load(slot_score + first, mask=inside[:, None, :], other=0, eviction_policy=READ)
        k = tl.load(slot_k + first, mask=inside[:, None, :], other=0, eviction_policy=READ)
        if not HOIST:
            bias = tl.load(tl.broadcast_to(ape + member * 128 + d[None, None, :], (ROWS, P, 128)))
        v = v.to(tl.float32) + bias
        weight = tl.exp2((v - tl.max(v, 1)[:, None, :]) * entry.LOG2E)
        total = tl.sum(k.to(tl.float32) * weight, 1)
        mass = tl.sum(weight, 1)
        # Exact products of bf16 values, summed in fp32.
        x = tl.dot((total / mass).to(tl.bfloat16), signs) * entry.ROOT
        x = x.to(tl.bfloat16).to(tl.float32)
        scale = entry.scale_of(tl.maximum(tl.max(tl.abs(x), 1), entry.FLOOR), ROUND_SCALE)
        z = entry.scaled(x, scale[:, None], ROUND_SCALE)
        if NATIVE:
            code = entry.encode_natively(z)
        else:
            code = entry.encode(z, True).to(tl.uint8)
        if WRITE:
            page, token = slot // PAGE, slot % PAGE
            if PRESHUFFLED:
                at = (token // 16 * 2048 + token % 16 * 16)[:, None] + (wide // 16 * 256 + wide % 16)[None, :]
            else:
                at = (token * 128)[:, None] + wide[None, :]
            tl.store(kv_cache + (page * page_bytes)[:, None] + at, code, mask=inside)
            tl.store(scales + page * (page_bytes // 4) + PAGE * 32 + token, scale, mask=keep)
        if codes is not None:
            tl.store(codes + pool.to(tl.int64)[:, None] * 128 + wide[None, :], code, mask=inside)
            tl.store(code_scales + pool, scale, mask=keep)


@dataclass(frozen=True)
class Pools:
    """One pool at a time; the steps of the work are functions of `entry`."""

    pool: Any = entry.pool_block
    rotate: Any = entry.rotate_kronecker
    quantise: Any = entry.quantise
    store: Any = entry.store_block

    def launch(self, tensors: dict[str, Any], constants: dict[str, Any], where: device.Device) -> None:
        """Launch on checked arguments."""
        made = plan.pools(tensors["pools"], constants["P"], where)
        steps = {"POOL": self.pool, "ROTATE": self.rotate, "QUANTISE": self.quantise, "STORE": self.store}
        options = {} if where.ascend else {"num_warps": made.warps}
        launch(compress_kernel, (made.programs,), tensors, constants | steps, **options)


@dataclass(frozen=True)
class Tiles:
    """Many pools at a time, the rotation one product with the Hadamard matrix: the form for a GPU.

    tile: of a program, if not the plan's."""

    tile: plan.Tile | None = None

    def launch(self, tensors: dict[str, Any], constants: dict[str, Any], where: device.Device) -> None:
        """Launch on checked arguments."""
        tile = self.tile or plan.TILES[constants["P"]]
        made = plan.tiles(tensors["pools"], tile, where)
        native = entry.native_fp8(tensors["ape"].device)
        kept = tensors["slot_k"].nbytes + tensors["slot_score"].nbytes <= plan.IN_CACHE
        read = "" if kept else "evict_first"
        shape = {"ROWS": made.rows, "HOIST": tile.hoist, "NATIVE": native, "READ": read}
        # Pipelining would put every load of a tile into shared memory: slower in each form tried.
        options = {"num_warps": made.warps, "num_stages": 1}
        launch(compress_tile_kernel, (made.programs,), tensors, constants | shape, **options)


@dataclass(frozen=True)
class Matrix:
    """The rotation on the cube or tensor core: pool by pool on Ascend, tiles of pools on a GPU."""

    def launch(self, tensors: dict[str, Any], constants: dict[str, Any], where: device.Device) -> None:
        """Launch on checked arguments."""
        form = Pools(rotate=entry.rotate_matrix) if where.ascend else Tiles()
        form.launch(tensors, constants, where)


@dataclass(frozen=True)
class Sized:
    """On a GPU, pools one by one with the rotation as sums where they are few, else tiles, each of whose programs
    has to make the whole matrix of its product first.  most: measured with 56, 512 and 8192 pools."""

    few: Pools = Pools(rotate=entry.rotate_butterfly)
    many: Tiles = Tiles()
    most: int = 512

    def launch(self, tensors: dict[str, Any], constants: dict[str, Any], where: device.Device) -> None:
        """Launch on checked arguments."""
        if where.ascend and not in_interpreter():
            raise Unsupported("impl: sized is for a GPU; on Ascend use impl='kronecker', its default")
        form = self.few if tensors["pools"] <= self.most else self.many
        form.launch(tensors, constants, where)


IMPLEMENTATIONS = {"kronecker": Pools(), "matrix": Matrix(), "sized": Sized()}


def kpool_compress_and_write_cache(
    kv_cache: torch.Tensor,
    slot_k: torch.Tensor,
    slot_score: torch.Tensor,
    ape: torch.Tensor,
    loc: torch.Tensor,
    pool_size: int,
    write_mask: torch.Tensor | None = None,
    round_scale: bool = True,
    return_compressed: bool = False,
    write_cache: bool = True,
    preshuffled: bool = False,
    *,
    impl: str | Pools | Tiles | Matrix | Sized | None = None,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """One cache entry a pool at `loc`; codes and scales too with return_compressed.

    Shapes and dtypes as in the table above.  impl: `kronecker` (default on Ascend), `matrix` or `sized` (for a
    GPU, its default).  Raises TypeError or ValueError naming the argument, before anything is written.
    validate=True also checks values, which waits for the device: loc inside the cache and distinct.
    """
    cache = layout.check_cache(kv_cache, preshuffled)
    size = layout.check_pool_size("pool_size", pool_size)
    check.tensor("slot_k", slot_k, dtypes=(torch.bfloat16,), shape=(None, size, entry.HEAD), like=kv_cache)
    shape = slot_k.shape
    check.tensor("slot_score", slot_score, dtypes=(torch.bfloat16, torch.float32), shape=shape, like=kv_cache)
    check.tensor("ape", ape, dtypes=(torch.float32,), shape=shape[1:], like=kv_cache)
    check.tensor("loc", loc, dtypes=(torch.int64,), shape=shape[:1], like=kv_cache)
    if write_mask is not None:
        check.tensor("write_mask", write_mask, dtypes=(torch.bool,), shape=shape[:1], like=kv_cache)
    if write_mask is not None and return_compressed:
        raise ValueError("write_mask: expected None with return_compressed, got a mask")
    if not (write_cache or return_compressed):
        raise ValueError("write_cache: expected True unless return_compressed, got False")
    where = device.of(kv_cache)
    known = IMPLEMENTATIONS["kronecker" if where.ascend else "sized"] if impl is None else impl
    compress = check.implementation(known, IMPLEMENTATIONS)
    if validate and write_cache:
        written = torch.ones_like(loc, dtype=torch.bool) if write_mask is None else write_mask
        layout.check_slots("loc", loc, written, cache.slots)
    pools = shape[0]
    codes = code_scales = None
    if return_compressed:
        codes = torch.empty((pools, entry.HEAD), dtype=torch.uint8, device=kv_cache.device)
        code_scales = torch.empty((pools,), dtype=torch.float32, device=kv_cache.device)
    if pools:
        tensors = {
            "kv_cache": kv_cache,
            "scales": kv_cache.view(torch.float32),
            "slot_k": slot_k,
            "slot_score": slot_score,
            "ape": ape,
            "loc": loc,
            "write_mask": None if write_mask is None else write_mask.view(torch.uint8),
            "codes": codes,
            "code_scales": code_scales,
            "pools": pools,
            "page_bytes": cache.page_bytes,
        }
        constants = {
            "P": size,
            "PAGE": cache.page,
            "PRESHUFFLED": preshuffled,
            "ROUND_SCALE": bool(round_scale),
            "WRITE": bool(write_cache),
        }
        compress.launch(tensors, constants, where)
    return (codes, code_scales) if return_compressed else None
