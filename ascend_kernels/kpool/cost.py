"""Bytes that the job of each kpool op must read and write at least, on any implementation."""

from __future__ import annotations

from ..harness.spec import Arguments
from .compare import written_slots

ENTRY = 128 + 4


def compress_bytes(arguments: Arguments) -> int:
    """Keys and scores of the pools that are compressed, their slots, ape; entries and returned values."""
    pools, size, head = arguments["slot_k"].shape
    mask = arguments.get("write_mask")
    kept = pools if mask is None else int(mask.sum())
    row = arguments["slot_k"].element_size() + arguments["slot_score"].element_size()
    read = kept * size * head * row + (0 if mask is None else pools) + size * head * 4
    copies = arguments.get("write_cache", True) + arguments.get("return_compressed", False)
    return read + kept * (8 * arguments.get("write_cache", True) + ENTRY * copies)


def decode_bytes(arguments: Arguments) -> int:
    """Metadata; each valid token's key and score in and out; what is in the ring of each pool, its entry; ape."""
    positions, size = arguments["positions"], arguments["pool_size"]
    valid = int(((positions >= 0) & (arguments["tail_slot_mapping"] >= 0)).sum())
    ring = (size - 1) * 128 * 4
    return (
        positions.numel() * 12 + valid * 4 * 128 * 2 + len(written_slots(arguments)) * (ring + ENTRY) + size * 512
    )


def seed_bytes(arguments: Arguments) -> int:
    """Slots; keys and scores of the tokens that are stored, in and out."""
    slots, size = arguments["tslot"], arguments["P"]
    block = slots.div(size, rounding_mode="floor")
    stored = int((slots >= 0).sum()) - int(((block[size:] == block[:-size]) & (slots[:-size] >= 0)).sum())
    return slots.numel() * slots.element_size() + stored * 4 * 128 * 2


def expand_bytes(arguments: Arguments) -> int:
    """Pool ids and lengths in, token ids out."""
    ids, lengths, size = arguments["pool_ids"], arguments["seq_lens"], arguments["pool_size"]
    rows, groups = ids.shape
    read = ids.numel() * ids.element_size() + rows * lengths.element_size()
    return read + 4 * rows * (groups * size + size - 1)


def locate_bytes(arguments: Arguments) -> int:
    """Pool ids in, slots out, and one table entry for each page group in use."""
    ids, table = arguments["pool_ids"], arguments["page_table_64"]
    groups = len((ids // 64).unique())
    return ids.numel() * (ids.element_size() + 8) + groups * table.element_size()
