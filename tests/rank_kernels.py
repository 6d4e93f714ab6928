"""Kernels for the jobs of two published tables: greedy rejection sampling of one draft token, and slot mapping."""

import triton
import triton.language as tl


@triton.jit
def reject_one_each(out, draft, target, bonus):
    """A program a request."""
    r = tl.program_id(0)
    want = tl.load(target + r)
    tl.store(out + r * 2, want)
    if tl.load(draft + r) == want:
        tl.store(out + r * 2 + 1, tl.load(bonus + r))


@triton.jit
def reject_blocks(out, draft, target, bonus, n, BLOCK: tl.constexpr):
    """A program a block of requests: the target tokens as one tile, the bonus tokens one by one."""
    first = tl.program_id(0) * BLOCK
    r = first + tl.arange(0, BLOCK)
    mask = r < n
    tl.store(out + r * 2, tl.load(target + r, mask=mask), mask=mask)
    for i in range(BLOCK):
        one = first + i
        if one < n:
            if tl.load(draft + one) == tl.load(target + one):
                tl.store(out + one * 2 + 1, tl.load(bonus + one))


@triton.jit
def slots_by_page(starts, table, slots, width, PAGE: tl.constexpr):
    """A program a request, page by page: slots of a page are consecutive."""
    r = tl.program_id(0)
    first = tl.load(starts + r)
    count = tl.load(starts + r + 1) - first
    lanes = tl.arange(0, PAGE)
    for page in range(tl.cdiv(count, PAGE)):
        number = tl.load(table + r * width + page)
        offs = page * PAGE + lanes
        tl.store(slots + first + offs, number * PAGE + lanes, mask=offs < count)


@triton.jit
def slots_by_lane(starts, positions, table, slots, width, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """A program a request, position by position: every lane looks its page up."""
    r = tl.program_id(0)
    first = tl.load(starts + r)
    last = tl.load(starts + r + 1)
    for i in range(first, last, BLOCK):
        offs = i + tl.arange(0, BLOCK)
        mask = offs < last
        pos = tl.load(positions + offs, mask=mask, other=0)
        page = pos // PAGE
        number = tl.load(table + r * width + page, mask=mask, other=0)
        tl.store(slots + offs, number * PAGE + (pos - page * PAGE), mask=mask)
