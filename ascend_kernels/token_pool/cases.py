"""Named cases of the token-pool ops: the shapes to time, and the edges that break careless kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..harness.spec import Arguments, Case


def spans(
    lengths: Sequence[int] | tuple[int, int, int],
    pool_len: int,
    *,
    prefix: int | str = "any",
    pool_rows: int | None = None,
    metadata: torch.dtype = torch.int32,
    pool: torch.dtype = torch.int32,
    reverse: bool = False,
):
    """A batch whose request r has lengths[r] new columns, in rows drawn at random.

    prefix: first column of every span, "any" for one drawn a request, "end" for spans that end the row.
    reverse: arguments of the reverse copy, whose out_cache_loc is written instead of the pool.
    """

    def make(generator: torch.Generator) -> Arguments:
        requests = len(lengths)
        rows = pool_rows or requests + 3
        length = torch.tensor(list(lengths), dtype=torch.int64)
        room = pool_len - length
        if prefix == "any":
            start = (torch.rand(requests, generator=generator, dtype=torch.float64) * (room + 1)).long()
        else:
            start = room if prefix == "end" else torch.full_like(length, int(prefix))
        total = int(length.sum())
        slots = torch.randperm(rows * pool_len if reverse else max(total, 1), generator=generator)
        # Values that use the whole width of their type, so that a narrowed copy shows.
        scale = 2**33 + 1 if pool == torch.int64 else 1
        table = torch.full((rows, pool_len), -7, dtype=pool)
        if reverse:
            table = (slots * scale).to(pool).view(rows, pool_len)
        return {
            "req_pool_indices": torch.randperm(rows, generator=generator)[:requests].to(metadata),
            "req_to_token": table,
            "start_offset": start.to(metadata),
            "end_offset": (start + length).to(metadata),
            "out_cache_loc": torch.full((total,), -5, dtype=pool) if reverse else (slots[:total] * scale).to(pool),
        }

    return make


def lengths(requests: int, least: int, most: int) -> list[int]:
    """Lengths spread evenly over [least, most], in an order that is not sorted."""
    span = most - least + 1
    return [least + (r * 7919) % span for r in range(requests)]


def span_cases(reverse: bool) -> dict[str, Case]:
    """Cases of assign_req_to_token_pool, or of its reverse."""

    def case(length, pool_len, **more) -> Case:
        options = {k: more.pop(k) for k in ("quick", "timed", "note", "seed") if k in more}
        return Case(spans(length, pool_len, reverse=reverse, **more), **options)

    i64 = torch.int64
    return {
        # decode, verify and extend shapes of a serving engine
        "decode-1x1": case([1], 8192, timed=True),
        "decode-32x1-2": case(lengths(32, 1, 2), 8192, quick=True, timed=True),
        "decode-256x1-2": case(lengths(256, 1, 2), 8192, timed=True),
        "decode-512x1-2": case(lengths(512, 1, 2), 8192, timed=True),
        "verify-32x5-20": case(lengths(32, 5, 20), 8192, quick=True, timed=True),
        "verify-256x5-20": case(lengths(256, 5, 20), 8192, timed=True),
        "extend-32x512": case([512] * 32, 8192, quick=True, timed=True),
        "extend-256x1024": case([1024] * 256, 8192, timed=True),
        "extend-1024x4096": case([4096] * 1024, 8192, timed=True),
        "long-row-32x512": case([512] * 32, 32768, timed=True),
        "longest-row-8x512": case([512] * 8, 131072, timed=True),
        # edges
        "ragged": case(lengths(33, 0, 300), 1024, quick=True, note="around multiples of the block, empty too"),
        "several-blocks": case(
            [2048, 1023, 3, 1024, 1025, 7], 4096, quick=True, note="spans of several full blocks, more or less one"
        ),
        "empty-span": case([3, 0, 7], 16, quick=True),
        "all-empty": case([0, 0, 0], 16),
        "no-requests": case([], 16),
        "bs-3": case([129, 127, 128], 512),
        "bs-5": case([1, 31, 32, 33, 65], 128),
        "bs-300": case(lengths(300, 0, 9), 64),
        "row-end": case(
            [5, 128, 1, 200], 256, prefix="end", quick=True, note="spans end at the row's last column"
        ),
        "whole-row": case([257, 257], 257, prefix=0),
        "prime-row": case(lengths(7, 90, 101), 131, note="rows whose length is no multiple of anything"),
        "int64-metadata": case(lengths(32, 5, 20), 8192, metadata=i64),
        "int64-pool": case(lengths(32, 5, 20), 8192, pool=i64),
        "int64-both": case(lengths(33, 0, 300), 1024, metadata=i64, pool=i64),
    }


def drafts(requests: int, topk: int, num_steps: int, pool_len: int, *, metadata=torch.int32, pool=torch.int32):
    """Arguments of assign_draft_cache_locs with sequence lengths drawn at random."""

    def make(generator: torch.Generator) -> Arguments:
        rows = requests + 3
        most = pool_len - topk * num_steps
        table = torch.randperm(rows * pool_len, generator=generator).to(pool).view(rows, pool_len)
        return {
            "req_pool_indices": torch.randperm(rows, generator=generator)[:requests].to(metadata),
            "req_to_token": table,
            "seq_lens": torch.randint(0, most + 1, (requests,), generator=generator).to(metadata),
            "out_cache_loc": torch.full((requests * topk * num_steps,), -5, dtype=pool),
            "topk": topk,
            "num_steps": num_steps,
        }

    return make


def draft_cases() -> dict[str, Case]:
    """Cases of assign_draft_cache_locs."""
    return {
        "1x1x1": Case(drafts(1, 1, 1, 64)),
        "1x8x5": Case(drafts(1, 8, 5, 8192), timed=True),
        "3x4x5": Case(drafts(3, 4, 5, 128), quick=True),
        "32x8x5": Case(drafts(32, 8, 5, 8192), quick=True, timed=True),
        "256x8x5": Case(drafts(256, 8, 5, 8192), timed=True),
        "300x4x3": Case(drafts(300, 4, 3, 256)),
        "33x1x1": Case(drafts(33, 1, 1, 32)),
        "2x64x80": Case(drafts(2, 64, 80, 8192), note="a draft longer than a block"),
        "exact-row": Case(drafts(5, 4, 8, 32), note="drafts that fill the row"),
        "int64-both": Case(drafts(33, 4, 5, 128, metadata=torch.int64, pool=torch.int64)),
        "no-requests": Case(drafts(0, 4, 5, 128)),
    }


ASSIGN = span_cases(reverse=False)
EXTEND = span_cases(reverse=True)
DRAFT = draft_cases()
