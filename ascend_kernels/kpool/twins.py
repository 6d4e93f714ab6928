"""The kpool ops with one step written another way each: what a careless edit would do, and what it costs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from ..harness import device
from ..harness.launch import launch
from ..harness.spec import COMPILE_FAILED, OK, UNSUPPORTED, WRONG_RESULT, Twin
from . import entry, plan
from .expand_pools_and_append_tail import expand_pools_and_append_tail
from .kpool_compress_and_write_cache import Pools, kpool_compress_and_write_cache


@triton.jit
def expand_lanes_kernel(
    pool_ids, seq_lens, out, rows, groups,
    P: tl.constexpr, BLOCK: tl.constexpr, WITHIN_SEQ: tl.constexpr,
):  # fmt: skip
    width = groups * P + P - 1
    parts = tl.cdiv(width, BLOCK * P)
    for work in range(tl.program_id(0), rows * parts, tl.num_programs(0)):
        row, part = work // parts, work % parts
        length = tl.load(seq_lens + row).to(tl.int32)
        whole = length // P
        column = part * (BLOCK * P) + tl.arange(0, BLOCK * P)
        history = column < groups * P
        first = pool_ids + tl.cast(row, tl.int64) * groups
        pool = tl.load(first + column // P, mask=history, other=-1).to(tl.int32)
        selected = pool >= 0
        if WITHIN_SEQ:
            selected &= pool < whole
        token = tl.where(selected, pool * P + column % P, -1)
        place = column - groups * P
        tail = tl.where(place < length % P, whole * P + place, -1)
        tl.store(
            out + tl.cast(row, tl.int64) * width + column, tl.where(history, token, tail), mask=column < width
        )


@dataclass(frozen=True)
class Lanes:
    """An address, a division and a compare of its own for every lane of the result."""

    kernel: Any

    def launch(self, pool_ids, seq_lens, out, size: int, within_seq: bool) -> None:
        """Launch on checked arguments."""
        rows, groups = pool_ids.shape
        made = plan.groups(rows, groups, size, device.of(pool_ids))
        launch(
            self.kernel,
            (made.programs,),
            {"pool_ids": pool_ids, "seq_lens": seq_lens, "out": out, "rows": rows, "groups": groups},
            {"P": size, "BLOCK": made.rows, "WITHIN_SEQ": within_seq},
        )


def _compress(pattern: str, states: tuple[str, ...] = (OK,), **steps: Any) -> Twin:
    return Twin(functools.partial(kpool_compress_and_write_cache, impl=Pools(**steps)), pattern, states=states)


COMPRESS = {
    # Overflows UB from 16 tokens a pool on; the model lacks an op of its transposes.
    "butterfly": _compress(
        "rotation as seven stages of sums and differences",
        (OK, COMPILE_FAILED, UNSUPPORTED),
        rotate=entry.rotate_butterfly,
    ),
    "row-loads": _compress("each token's row loaded by itself", pool=entry.pool_rows),
    "flat-store": _compress("codes stored as one row of 128 addresses", store=entry.store_flat),
    "default-nan": _compress("minimum and maximum without propagate_nan", quantise=entry.quantise_default_nan),
    # Compiled to logarithm and exponential of base e, the scale is only near a power of two.
    "log2-scale": _compress(
        "power of two through log2 and exp2", (OK, WRONG_RESULT), quantise=entry.quantise_by_log2
    ),
}
EXPAND = {
    "lanes": Twin(
        functools.partial(expand_pools_and_append_tail, impl=Lanes(expand_lanes_kernel)),
        "column // P and column % P of every lane, a gather of the pool ids",
        safe=False,
    ),
}
