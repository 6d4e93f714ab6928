"""References of the kpool ops in plain torch, fp64 inside, and the torch forms a user would write.

They share no formula with the kernels: the fp8 code is torch's cast, the layout is a view of the page, the
rotation a product with a matrix made by Kronecker products, the power of two comes from frexp.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

HEAD = 128


@functools.cache
def rotation(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The 128-point Hadamard matrix in Sylvester order, scaled by 1/sqrt(128)."""
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    matrix = functools.reduce(torch.kron, [two] * 7) / 128**0.5
    return matrix.to(device=device, dtype=dtype)


def compress(k, score, ape, round_scale) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [n, 128] uint8 and scales [n] fp32 of pools k, score [n, P, 128]."""
    weight = torch.softmax(score.double() + ape.double(), dim=1)
    pooled = (weight * k.double()).sum(1).to(torch.bfloat16)
    rotated = (pooled.double() @ rotation()).to(torch.bfloat16).float()
    absmax = rotated.abs().amax(1).clamp_min(1e-4)
    scale = absmax * torch.tensor(1.0 / 448.0)
    if round_scale:
        fraction, exponent = torch.frexp(scale)
        scale = torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).int())
    codes = (rotated / scale[:, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8), scale


def pages(kv_cache: torch.Tensor, preshuffled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the cache: codes as [block, tile, piece, token, byte], scale bytes as [block, token, 4].

    Plain pages are one tile of tokens with all pieces of a token in a row: [block, 1, token, piece, byte].
    """
    blocks, page, _ = kv_cache.shape
    flat = kv_cache.as_strided((blocks, page * (HEAD + 4)), (kv_cache.stride(0), 1))
    codes, scales = flat[:, : page * HEAD], flat[:, page * HEAD :]
    if preshuffled:
        return codes.unflatten(1, (page // 16, 8, 16, 16)), scales.unflatten(1, (page, 4))
    return codes.unflatten(1, (1, page, 8, 16)).transpose(2, 3), scales.unflatten(1, (page, 4))


def write_entries(kv_cache, loc, codes, scale, preshuffled) -> None:
    """Entries into the cache at flat slots."""
    page = kv_cache.shape[1]
    block, token = loc.long() // page, loc.long() % page
    code_view, scale_view = pages(kv_cache, preshuffled)
    tokens = code_view.shape[3]
    code_view[block, token // tokens, :, token % tokens] = codes.unflatten(1, (8, 16))
    scale_view[block, token] = scale[:, None].contiguous().view(torch.uint8)


def kpool_compress_and_write_cache(
    kv_cache, slot_k, slot_score, ape, loc, pool_size, write_mask=None, round_scale=True,
    return_compressed=False, write_cache=True, preshuffled=False,
):  # fmt: skip
    """One entry a pool."""
    codes, scale = compress(slot_k, slot_score, ape, round_scale)
    if write_cache:
        keep = slice(None) if write_mask is None else write_mask
        write_entries(kv_cache, loc[keep], codes[keep], scale[keep], preshuffled)
    return (codes, scale) if return_compressed else None


def kpool_decode_update_and_maybe_write_cache_batched(
    kv_cache, tail, tail_slot_mapping, key, slot_score, ape, slot_mapping, positions, pool_size,
    round_scale=True, preshuffled=False,
) -> None:  # fmt: skip
    """Token after token: compress what it completes from ring and token, then stash it."""
    for request in range(key.shape[0]):
        for i in range(key.shape[1]):
            slot, position = int(slot_mapping[request, i]), int(positions[request, i])
            tail_slot = int(tail_slot_mapping[request, i])
            if position < 0 or tail_slot < 0:
                continue
            ring = tail[tail_slot // pool_size]
            own_key, own_score = key[request, i], slot_score[request, i]
            if slot >= 0 and position % pool_size == pool_size - 1:
                k = torch.cat([ring[0, :-1], own_key[None]])[None]
                score = torch.cat([ring[1, :-1], own_score[None]])[None]
                codes, scale = compress(k, score, ape, round_scale)
                write_entries(kv_cache, slot_mapping[request, i : i + 1], codes, scale, preshuffled)
            ring[0, position % pool_size] = own_key
            ring[1, position % pool_size] = own_score


def kpool_seed_tail_cache(tail, key, score, tslot, P) -> None:
    """Token after token."""
    slots = tslot.tolist()
    for i, slot in enumerate(slots):
        if slot < 0 or (i + P < len(slots) and slots[i + P] // P == slot // P):
            continue
        tail[slot // P, 0, slot % P] = key[i]
        tail[slot // P, 1, slot % P] = score[i]


def expand_pools_and_append_tail(pool_ids, seq_lens, pool_size, within_seq=False) -> torch.Tensor:
    """Row after row: the tokens of each pool, -1 where it is not there, then those behind the last whole pool."""
    if pool_ids.numel() and (int(pool_ids.max()) + 1) * pool_size > 2**31:
        raise OverflowError(f"pool {int(pool_ids.max())} of {pool_size} tokens: no int32 holds their numbers")
    count = pool_ids.shape[1] * pool_size
    found = torch.full((len(pool_ids), count + pool_size - 1), -1, dtype=torch.int32)
    tokens_of = np.arange(pool_size)
    for row, chosen, length in zip(found.numpy(), pool_ids.numpy(), seq_lens.tolist()):
        whole = length // pool_size
        tokens = chosen.astype(np.int64)[:, None] * pool_size + tokens_of
        tokens[(chosen < 0) | (within_seq & (chosen >= whole))] = -1
        row[:count] = tokens.reshape(-1)
        row[count : count + length % pool_size] = range(whole * pool_size, length)
    return found


def compute_pooled_write_locs(page_table_64, pool_ids, pool_size) -> torch.Tensor:
    """Pool after pool."""
    table = page_table_64.tolist()
    found = [table[pool // 64 * pool_size] * 64 + pool % 64 for pool in pool_ids.tolist()]
    return torch.tensor(found, dtype=torch.int64)


def compress_in_torch(
    kv_cache, slot_k, slot_score, ape, loc, pool_size, write_mask=None, round_scale=True,
    return_compressed=False, write_cache=True, preshuffled=False,
):  # fmt: skip
    """The vectorised torch form a user would write on a device; the measured baseline."""
    codes, scale = _compress_fp32(slot_k, slot_score, ape, round_scale)
    if write_cache:
        keep = slice(None) if write_mask is None else write_mask
        write_entries(kv_cache, loc[keep], codes[keep], scale[keep], preshuffled)
    return (codes, scale) if return_compressed else None


def decode_in_torch(
    kv_cache, tail, tail_slot_mapping, key, slot_score, ape, slot_mapping, positions, pool_size,
    round_scale=True, preshuffled=False,
) -> None:  # fmt: skip
    """As compress_in_torch; one step a token of the batch, all requests at once."""
    for i in range(key.shape[1]):
        position, slot, tail_slot = positions[:, i].long(), slot_mapping[:, i], tail_slot_mapping[:, i].long()
        valid = (position >= 0) & (tail_slot >= 0)
        block, place = tail_slot[valid] // pool_size, position[valid] % pool_size
        tail[block, 0, place] = key[valid, i]
        tail[block, 1, place] = slot_score[valid, i]
        complete = (place == pool_size - 1) & (slot[valid] >= 0)
        ring = tail[block[complete]]
        codes, scale = _compress_fp32(ring[:, 0], ring[:, 1], ape, round_scale)
        write_entries(kv_cache, slot[valid][complete], codes, scale, preshuffled)


def seed_in_torch(tail, key, score, tslot, P) -> None:
    """As compress_in_torch."""
    slot = tslot.long()
    block = torch.where(slot < 0, -1, slot // P)
    later = torch.full_like(block, -1)
    later[:-P] = block[P:]
    keep = (block >= 0) & (later != block)
    tail[block[keep], 0, slot[keep] % P] = key[keep]
    tail[block[keep], 1, slot[keep] % P] = score[keep]


def expand_in_torch(pool_ids, seq_lens, pool_size, within_seq=False) -> torch.Tensor:
    """As compress_in_torch."""
    whole = (seq_lens // pool_size)[:, None]
    valid = pool_ids >= 0
    if within_seq:
        valid &= pool_ids < whole
    place = torch.arange(pool_size, device=pool_ids.device)
    tokens = torch.where(valid[:, :, None], pool_ids[:, :, None] * pool_size + place, -1).flatten(1)
    last = whole * pool_size + place[:-1]
    return torch.cat([tokens, torch.where(last < seq_lens[:, None], last, -1)], 1).to(torch.int32)


def write_locs_in_torch(page_table_64, pool_ids, pool_size) -> torch.Tensor:
    """As compress_in_torch."""
    pool = pool_ids.long()
    return page_table_64.long()[pool // 64 * pool_size] * 64 + pool % 64


def _compress_fp32(k, score, ape, round_scale) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.softmax(score.float() + ape, dim=1)
    pooled = (weight * k.float()).sum(1).to(torch.bfloat16)
    rotated = (pooled.float() @ rotation(k.device, torch.float32)).to(torch.bfloat16).float()
    scale = rotated.abs().amax(1).clamp_min(1e-4) * (1.0 / 448.0)
    if round_scale:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    codes = (rotated / scale[:, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8), scale
