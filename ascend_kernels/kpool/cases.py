"""Named cases of the kpool ops: the shapes to time, and the edges that break careless kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..harness.spec import Arguments, Case

HEAD = 128
BOUNDARY_EXPONENTS = (-13, -6, -1, 0, 3)  # of the powers of two that scales are put around


def cache_of(slots: int, page: int, generator: torch.Generator, pad: int = 0) -> torch.Tensor:
    """An index cache of at least `slots` entries whose bytes are random, pad bytes between pages included."""
    blocks, whole = -(-slots // page), page * (HEAD + 4) + pad
    allocation = torch.randint(0, 256, (blocks, whole), generator=generator, dtype=torch.uint8)
    return allocation.as_strided((blocks, page, HEAD + 4), (whole, HEAD + 4, 1))


def tail_of(blocks: int, pool_size: int, pad: int = 0) -> torch.Tensor:
    """Tail rings that hold NaN everywhere, pad elements between blocks included."""
    allocation = torch.full((blocks, 2 * pool_size * HEAD + pad), float("nan"), dtype=torch.bfloat16)
    stride = (allocation.shape[1], pool_size * HEAD, HEAD, 1)
    return allocation.as_strided((blocks, 2, pool_size, HEAD), stride)


def random_pools(pools: int, pool_size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and scores as a model makes them: scores of a few units, keys whose size varies from pool to pool."""
    size = torch.exp2(4 * torch.randn(pools, 1, 1, generator=generator))
    keys = torch.randn(pools, pool_size, HEAD, generator=generator) * size
    scores = 3 * torch.randn(pools, pool_size, HEAD, generator=generator)
    return keys.to(torch.bfloat16), scores.to(torch.bfloat16)


def boundary_pools(pool_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One key a pool, all its tokens alike, whose rotation has the absmax 448 * 2**e or one of its neighbours.

    A key a * e_0 + b * e_1 rotates to (a + b) / sqrt(128) and (a - b) / sqrt(128); b is what a lacks.
    The last pools lie around the absmax floor of 1e-4; one is zero.
    """
    middles = torch.tensor([448 * 2.0**e for e in BOUNDARY_EXPONENTS] + [1e-4]).to(torch.bfloat16)
    steps = torch.arange(-2, 3, dtype=torch.int16)
    absmax = (middles.view(torch.int16)[:, None] + steps).flatten().view(torch.bfloat16)
    whole = torch.cat([absmax, -absmax[:2], absmax[:1] * 0]).double() * HEAD**0.5
    keys = torch.zeros(len(whole), pool_size, HEAD, dtype=torch.bfloat16)
    keys[:, :, 0] = whole[:, None].to(torch.bfloat16)
    keys[:, :, 1] = (whole[:, None] - keys[:, :, 0].double()).to(torch.bfloat16)
    return keys, torch.zeros_like(keys)


def extreme_pools(pools: int, pool_size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of -inf (never a whole column), of large magnitude, and in every fifth pool one of +inf."""
    keys, scores = random_pools(pools, pool_size, generator)
    scores[torch.rand(scores.shape, generator=generator) < 0.2] = float("-inf")
    scores[:, 1][torch.rand(pools, HEAD, generator=generator) < 0.3] = 3e38
    scores[:, 2][torch.rand(pools, HEAD, generator=generator) < 0.3] = -3e38
    scores[:, 0][scores.isinf().all(1)] = 0
    scores[4::5, 3, 77] = float("inf")
    return keys, scores


def compress(
    pools: int,
    pool_size: int,
    page: int = 64,
    *,
    preshuffled: bool = False,
    pad: int = 0,
    masked: float | None = None,
    round_scale: bool = True,
    return_compressed: bool = False,
    write_cache: bool = True,
    made: Callable[[int, int, torch.Generator], tuple[torch.Tensor, torch.Tensor]] = random_pools,
    scores: torch.dtype = torch.bfloat16,
    spare: int = 70,
) -> Callable[[torch.Generator], Arguments]:
    """Arguments of kpool_compress_and_write_cache: entries go to distinct slots drawn at random.

    masked: part of the pools that the mask leaves out; their loc is -1.  spare: slots beyond the pools.
    """

    def make(generator: torch.Generator) -> Arguments:
        keys, values = made(pools, pool_size, generator)
        cache = cache_of(len(keys) + spare, page, generator, pad)
        loc = torch.randperm(cache.shape[0] * page, generator=generator)[: len(keys)]
        mask = None
        if masked is not None:
            mask = torch.rand(len(keys), generator=generator) >= masked
            loc[~mask] = -1
        return {
            "kv_cache": cache,
            "slot_k": keys,
            "slot_score": values.to(scores),
            "ape": torch.randn(pool_size, HEAD, generator=generator),
            "loc": loc,
            "pool_size": pool_size,
            "write_mask": mask,
            "round_scale": round_scale,
            "return_compressed": return_compressed,
            "write_cache": write_cache,
            "preshuffled": preshuffled,
        }

    return make


def decode(
    requests: int,
    tokens: int,
    pool_size: int,
    page: int = 64,
    *,
    preshuffled: bool = False,
    cache_pad: int = 0,
    tail_pad: int = 0,
    invalid: str = "",
    round_scale: bool = True,
    unmapped: bool = False,
    aligned: bool = False,
) -> Callable[[torch.Generator], Arguments]:
    """Arguments of the decode update: requests at positions drawn at random, in rings of permuted blocks.

    The rings hold what came before, and NaN in every place that must not be read.
    invalid: tokens that are no tokens: "leading", "middle", "trailing", "scattered", or "requests" for every
    other request as a whole.  unmapped: every other completed pool has no cache slot.  aligned: every request
    completes a pool with its first token.
    """

    def make(generator: torch.Generator) -> Arguments:
        def draw(least: int, most: int, *shape: int) -> torch.Tensor:
            return torch.randint(least, most, shape, generator=generator)

        valid = _valid_tokens(requests, tokens, invalid, generator)
        start = draw(0, 50, requests) * pool_size
        start += pool_size - 1 if aligned else draw(0, pool_size, requests)
        positions = torch.where(valid, start[:, None] + valid.int().cumsum(1) - 1, -1)
        complete = valid & (positions % pool_size == pool_size - 1)
        cache = cache_of(int(complete.sum()) + 70, page, generator, cache_pad)
        free = torch.randperm(cache.shape[0] * page, generator=generator)
        slots = torch.full((requests, tokens), -1)
        slots[complete] = free[: int(complete.sum())]
        if unmapped:
            slots[complete.nonzero()[::2].unbind(1)] = -1
        blocks = torch.randperm(requests + 5, generator=generator)[:requests]
        tail_slots = torch.where(valid, blocks[:, None] * pool_size + draw(0, pool_size, requests, tokens), -1)
        tail = tail_of(requests + 5, pool_size, tail_pad)
        for request, block in enumerate(blocks.tolist()):
            held = int(start[request]) % pool_size
            tail[block, 0, :held] = torch.randn(held, HEAD, generator=generator).to(torch.bfloat16)
            tail[block, 1, :held] = (3 * torch.randn(held, HEAD, generator=generator)).to(torch.bfloat16)
        return {
            "kv_cache": cache,
            "tail": tail,
            "tail_slot_mapping": tail_slots.int(),
            "key": torch.randn(requests, tokens, HEAD, generator=generator).to(torch.bfloat16),
            "slot_score": (3 * torch.randn(requests, tokens, HEAD, generator=generator)).to(torch.bfloat16),
            "ape": torch.randn(pool_size, HEAD, generator=generator),
            "slot_mapping": slots.int(),
            "positions": positions.int(),
            "pool_size": pool_size,
            "round_scale": round_scale,
            "preshuffled": preshuffled,
        }

    return make


def _valid_tokens(requests: int, tokens: int, invalid: str, generator: torch.Generator) -> torch.Tensor:
    valid = torch.ones(requests, tokens, dtype=torch.bool)
    many = max(1, tokens // 3)
    if invalid == "leading":
        valid[:, :many] = False
    elif invalid == "trailing":
        valid[:, tokens - many :] = False
    elif invalid == "middle":
        valid[:, tokens // 2 : tokens // 2 + many] = False
    elif invalid == "scattered":
        valid &= torch.rand(requests, tokens, generator=generator) < 0.7
    elif invalid == "requests":
        valid[::2] = False
    return valid


def seed(
    lengths: list[int], pool_size: int, *, tail_pad: int = 0, skipped: bool = False, dtype=torch.int32
) -> Callable[[torch.Generator], Arguments]:
    """Arguments of kpool_seed_tail_cache: prefill requests one after another, in rings of permuted blocks.

    skipped: every third request has no ring (slots of -1).
    """

    def make(generator: torch.Generator) -> Arguments:
        blocks = torch.randperm(len(lengths) + 3, generator=generator)
        parts = []
        for request, length in enumerate(lengths):
            first = int(torch.randint(0, 100, (1,), generator=generator))
            place = (first + torch.arange(length)) % pool_size
            there = not (skipped and request % 3 == 0)
            parts.append(blocks[request] * pool_size + place if there else torch.full((length,), -1))
        slots = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
        return {
            "tail": tail_of(len(lengths) + 3, pool_size, tail_pad),
            "key": torch.randn(len(slots), HEAD, generator=generator).to(torch.bfloat16),
            "score": torch.randn(len(slots), HEAD, generator=generator).to(torch.bfloat16),
            "tslot": slots.to(dtype),
            "P": pool_size,
        }

    return make


def expand(
    rows: int, groups: int, pool_size: int, *, longest: int = 4000, within_seq: bool = False, ids=torch.int32
) -> Callable[[torch.Generator], Arguments]:
    """Arguments of expand_pools_and_append_tail: a fifth of the pools not selected, some beyond the sequence."""

    def make(generator: torch.Generator) -> Arguments:
        lengths = torch.randint(0, longest + 1, (rows,), generator=generator, dtype=torch.int32)
        if rows > 2:
            lengths[:2] = torch.tensor([0, pool_size])
        chosen = torch.randint(0, longest // pool_size + 2, (rows, groups), generator=generator)
        chosen[torch.rand(rows, groups, generator=generator) < 0.2] = -1
        return {
            "pool_ids": chosen.to(ids),
            "seq_lens": lengths,
            "pool_size": pool_size,
            "within_seq": within_seq,
        }

    return make


def locate(
    pools: int, pool_size: int, *, table=torch.int32, ids=torch.int64, highest: int = 5000
) -> Callable[[torch.Generator], Arguments]:
    """Arguments of compute_pooled_write_locs: consecutive pools from one drawn at random, or all in disorder."""

    def make(generator: torch.Generator) -> Arguments:
        pages = -(-(pools + 100) // 64) * pool_size
        order = torch.randperm(pages // pool_size * 64, generator=generator)[:pools]
        return {
            "page_table_64": torch.randint(0, highest, (pages,), generator=generator).to(table),
            "pool_ids": order.to(ids),
            "pool_size": pool_size,
        }

    return make


def compress_cases() -> dict[str, Case]:
    """Cases of kpool_compress_and_write_cache."""
    sizes = [(n, p) for n in (56, 512, 8192, 65536) for p in (4, 8, 16)]
    timed = {f"n{n}-p{p}": Case(compress(n, p), timed=True, large=n >= 8192) for n, p in sizes}
    return timed | {
        "n8192-p16-preshuffled": Case(compress(8192, 16, preshuffled=True), timed=True, large=True),
        "plain": Case(compress(5, 4), quick=True),
        "preshuffled": Case(compress(7, 16, preshuffled=True), quick=True),
        "more-than-cores": Case(compress(50, 4, preshuffled=True), note="programs loop"),
        "masked": Case(compress(9, 8, masked=0.5), quick=True),
        "returned": Case(compress(6, 4, round_scale=False, return_compressed=True), quick=True),
        "page-1": Case(compress(6, 4, 1)),
        "page-16": Case(compress(9, 8, 16, preshuffled=True)),
        "page-48": Case(compress(9, 4, 48, preshuffled=True), note="a page that is no power of two"),
        "padded-page": Case(compress(9, 4, 16, preshuffled=True, pad=60), note="pad bytes must not change"),
        "padded-page-plain": Case(compress(9, 16, 64, pad=4)),
        "one-page": Case(compress(16, 4, 16, preshuffled=True, spare=0), note="every slot of the page is written"),
        "all-masked": Case(compress(5, 4, masked=1.1)),
        "none-masked": Case(compress(5, 4, masked=-0.1)),
        "only-returned": Case(compress(6, 8, return_compressed=True, write_cache=False)),
        "no-pools": Case(compress(0, 4)),
        "no-pools-returned": Case(compress(0, 4, return_compressed=True)),
        "fp32-scores": Case(compress(5, 8, scores=torch.float32)),
        "unrounded": Case(compress(9, 16, round_scale=False, preshuffled=True)),
        "boundaries": Case(compress(0, 4, made=lambda n, p, g: boundary_pools(p))),
        "boundaries-unrounded": Case(compress(0, 4, round_scale=False, made=lambda n, p, g: boundary_pools(p))),
        "extreme-scores": Case(compress(15, 4, made=extreme_pools)),
        "extreme-scores-16": Case(compress(6, 16, preshuffled=True, made=extreme_pools)),
    }


def decode_cases() -> dict[str, Case]:
    """Cases of kpool_decode_update_and_maybe_write_cache_batched."""
    timed = {f"b{b}-n{n}": Case(decode(b, n, 16), timed=True) for b in (1, 32, 256) for n in (1, 4)}
    return timed | {
        "b256-n4-p4": Case(decode(256, 4, 4), timed=True),
        "plain": Case(decode(3, 2, 4, aligned=True), quick=True),
        "preshuffled": Case(decode(5, 4, 4, preshuffled=True), quick=True),
        "several-completions": Case(decode(2, 11, 4), quick=True, note="more tokens than a pool holds"),
        "p16": Case(decode(3, 3, 16, aligned=True, preshuffled=True), quick=True),
        "leading-invalid": Case(decode(4, 7, 4, invalid="leading"), quick=True),
        "more-than-cores": Case(decode(50, 1, 4, aligned=True), note="programs loop"),
        "middle-invalid": Case(decode(4, 7, 4, invalid="middle")),
        "trailing-invalid": Case(decode(4, 7, 4, invalid="trailing")),
        "scattered-invalid": Case(decode(8, 9, 8, invalid="scattered")),
        "invalid-requests": Case(decode(6, 5, 4, invalid="requests"), note="padded requests of a short batch"),
        "one-token": Case(decode(9, 1, 8)),
        "below-pool": Case(decode(7, 5, 16)),
        "pool-exactly": Case(decode(5, 8, 8, page=16, preshuffled=True)),
        "long-call": Case(decode(2, 40, 16), note="two or three completions a request"),
        "unmapped": Case(decode(6, 9, 4, unmapped=True), note="the stash does not depend on slot_mapping"),
        "padded-tail": Case(decode(5, 6, 4, tail_pad=17984), note="block stride of 19008 elements"),
        "padded-cache": Case(decode(5, 6, 4, page=16, cache_pad=28, preshuffled=True)),
        "page-1": Case(decode(4, 6, 4, page=1)),
        "unrounded": Case(decode(6, 6, 4, round_scale=False)),
        "no-requests": Case(decode(0, 4, 4)),
        "no-tokens": Case(decode(3, 0, 4)),
    }


def seed_cases() -> dict[str, Case]:
    """Cases of kpool_seed_tail_cache."""
    return {
        "n8192": Case(seed([512] * 16, 16), timed=True),
        "n8192-p4": Case(seed([64] * 128, 4), timed=True),
        "short": Case(seed([3, 1, 4, 7, 2], 4), quick=True),
        "p16": Case(seed([20, 16, 15, 33], 16), quick=True),
        "skipped": Case(seed([5, 9, 3, 8, 8], 4, skipped=True), quick=True),
        "p8": Case(seed([8, 9, 7, 100], 8)),
        "one-request": Case(seed([131], 4)),
        "one-token": Case(seed([1], 16)),
        "padded-tail": Case(seed([5, 6], 4, tail_pad=17984), note="block stride of 19008 elements"),
        "int64-slots": Case(seed([20, 3, 17], 8, dtype=torch.int64)),
        "no-tokens": Case(seed([], 4)),
    }


def expand_cases() -> dict[str, Case]:
    """Cases of expand_pools_and_append_tail."""
    timed = {f"r{r}-p4": Case(expand(r, 512, 4, longest=131072), timed=True) for r in (1, 16, 56, 8192)}
    return timed | {
        "r56-p16": Case(expand(56, 512, 16, longest=131072), timed=True),
        "5x8": Case(expand(5, 8, 4, longest=40), quick=True),
        "3x33": Case(expand(3, 33, 4, longest=137), quick=True),
        "within-seq": Case(expand(6, 40, 8, longest=500, within_seq=True), quick=True),
        "p16": Case(expand(4, 300, 16, longest=9000), quick=True, note="more groups than a block"),
        "p1": Case(expand(3, 7, 1, longest=9), note="no open pool"),
        "p2": Case(expand(5, 9, 2, longest=30)),
        "no-groups": Case(expand(4, 0, 4, longest=20), note="only the tail"),
        "no-rows": Case(expand(0, 8, 4)),
        "one-group": Case(expand(9, 1, 4, longest=20, within_seq=True)),
        "prime": Case(expand(7, 521, 4, longest=5000, within_seq=True)),
        "int64-ids": Case(expand(5, 60, 4, ids=torch.int64, within_seq=True)),
        "long-sequence": Case(expand(3, 70, 16, longest=2**30), note="ids beyond 2**24, where fp32 has gaps"),
    }


def locate_cases() -> dict[str, Case]:
    """Cases of compute_pooled_write_locs."""
    return {
        "n8192-p4": Case(locate(8192, 4), timed=True),
        "n56-p16": Case(locate(56, 16), timed=True),
        "n5": Case(locate(5, 4), quick=True),
        "n700": Case(locate(700, 4), quick=True),
        "int32-ids": Case(locate(300, 8, ids=torch.int32)),
        "int64-table": Case(locate(65, 16, table=torch.int64)),
        "high-blocks": Case(locate(200, 4, highest=2**25), note="slots of up to 2**31"),
        "p1": Case(locate(130, 1)),
        "no-pools": Case(locate(0, 4)),
    }


COMPRESS = compress_cases()
DECODE = decode_cases()
SEED = seed_cases()
EXPAND = expand_cases()
LOCATE = locate_cases()
