"""The slot allocator of the decode scenario: hands out KV-cache slots page by page, on the host."""

from __future__ import annotations

import numpy as np


class OutOfSlots(RuntimeError):
    """Fewer free pages than a batch needs; nothing was handed out."""


class SlotAllocator:
    """Slots `0 .. pages*page_size-1` in pages.  A page belongs to one request at a time.

    The allocator does not know requests: a request's slots are where its pool row says.  The page that has been
    free longest is handed out first.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"pages, page_size: expected at least 1 each, got {pages} and {page_size}")
        self.page_size = page_size
        self.free = np.arange(pages, dtype=np.int64)

    def extend(self, lengths: np.ndarray, wanted: np.ndarray, last_slots: np.ndarray) -> np.ndarray:
        """Slots that take each request from `lengths` to `wanted` tokens, requests in order.

        The last partial page of a request, the page of its `last_slots`, is continued first; what is left comes
        from whole new pages.  Raises OutOfSlots before anything is handed out.
        """
        lengths, wanted, last_slots = (np.asarray(a, dtype=np.int64) for a in (lengths, wanted, last_slots))
        if not (lengths.shape == wanted.shape == last_slots.shape):
            raise ValueError("lengths, wanted, last_slots: expected one value a request each")
        if (lengths < 0).any() or (wanted < lengths).any():
            raise ValueError("wanted: expected at least the length each request has")
        page = self.page_size
        new_pages = -(-wanted // page) - -(-lengths // page)
        needed = int(new_pages.sum())
        if needed > len(self.free):
            raise OutOfSlots(f"{needed} pages of {page} slots needed, {len(self.free)} are free")
        pages, self.free = self.free[:needed], self.free[needed:]
        total = wanted - lengths
        request = np.repeat(np.arange(len(lengths)), total)
        column = np.arange(int(total.sum())) - np.repeat(total.cumsum() - total, total) + lengths[request]
        first_new = -(-lengths // page)
        continued = column // page < first_new[request]
        nth_page = (new_pages.cumsum() - new_pages - first_new)[request] + column // page
        fresh = np.zeros_like(column)
        fresh[~continued] = pages[nth_page[~continued]] * page
        held = last_slots[request] // page * page
        return np.where(continued, held, fresh) + column % page

    def release(self, slots: np.ndarray) -> None:
        """Take whole pages back: `slots` are all slots of some pages, in any order."""
        slots = np.asarray(slots, dtype=np.int64)
        pages, counts = np.unique(slots // self.page_size, return_counts=True)
        if (counts != self.page_size).any() or len(np.unique(slots)) != len(slots):
            raise ValueError("slots: expected every slot of each page once")
        if np.isin(pages, self.free).any():
            raise ValueError("slots: a page that is free already")
        self.free = np.concatenate([self.free, pages])
