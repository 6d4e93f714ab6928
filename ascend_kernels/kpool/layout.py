"""Checks of the index cache, the tail rings and the slots that name places in them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..harness import check
from .entry import HEAD

POOL_SIZES = (4, 8, 16)
ENTRY_BYTES = HEAD + 4


class Cache(NamedTuple):
    """page: entries a page.  page_bytes: from one page to the next, pad included.  slots: entries in all."""

    page: int
    page_bytes: int
    slots: int


def check_cache(kv_cache: torch.Tensor, preshuffled: bool) -> Cache:
    """The cache's layout; TypeError or ValueError if it cannot be one."""
    shape = (None, None, ENTRY_BYTES)
    check.tensor("kv_cache", kv_cache, dtypes=(torch.uint8,), shape=shape, contiguous=False)
    blocks, page, _ = kv_cache.shape
    if page == 0:
        raise ValueError("kv_cache: expected at least one entry a page, got shape " + str(list(kv_cache.shape)))
    stride = kv_cache.stride()
    whole = stride[2] == 1 and (page == 1 or stride[1] == ENTRY_BYTES)
    if not whole or (blocks > 1 and stride[0] < page * ENTRY_BYTES):
        raise ValueError(
            f"kv_cache: expected pages of {page * ENTRY_BYTES} bytes in a row (strides "
            f"[at least {page * ENTRY_BYTES}, {ENTRY_BYTES}, 1]), got strides {list(stride)}"
        )
    if stride[0] % 4 or kv_cache.storage_offset() % 4:
        raise ValueError(
            f"kv_cache: expected pages that start at multiples of 4 bytes, got a page stride of {stride[0]} "
            f"and an offset of {kv_cache.storage_offset()}"
        )
    if preshuffled and (page == 1 or page % 16):
        raise ValueError(f"preshuffled: expected a page that is a multiple of 16, got a page of {page}")
    return Cache(page, stride[0], blocks * page)


def check_pool_size(name: str, value: object) -> int:
    """Tokens a pool: 4, 8 or 16."""
    size = check.number(name, value, least=1)
    if size not in POOL_SIZES:
        raise ValueError(f"{name}: expected one of {', '.join(map(str, POOL_SIZES))}, got {size}")
    return size


def check_tail(tail: torch.Tensor, pool_size: int, like: torch.Tensor) -> None:
    """Tail rings [blocks, 2, P, 128] bf16 whose rows are whole; the other strides are free."""
    shape = (None, 2, pool_size, HEAD)
    check.tensor("tail", tail, dtypes=(torch.bfloat16,), shape=shape, like=like, contiguous=False)
    if tail.stride()[3] != 1:
        raise ValueError(f"tail: expected rows without gaps (last stride 1), got strides {list(tail.stride())}")


def check_slots(name: str, slots: torch.Tensor, used: torch.Tensor, most: int) -> None:
    """Slots where `used` holds lie in [0, most) and are distinct.  Waits for the device."""
    bad = used & ((slots < 0) | (slots >= most))
    check.values(name, bad, slots, f"a slot between 0 and {most - 1}")
    check.values(name, repeated(slots, used), slots, "distinct slots")


def repeated(values: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """Where a value was used before, in flat order, among those where `used` holds."""
    flat, places = values.flatten(), used.flatten().nonzero()[:, 0]
    order = flat[places].sort(stable=True)
    again = torch.zeros_like(flat, dtype=torch.bool)
    again[places[order.indices[1:]]] = order.values[1:] == order.values[:-1]
    return again.view(values.shape)
