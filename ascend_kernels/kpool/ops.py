"""Registry rows of the kpool ops."""

from __future__ import annotations

from ..harness.spec import Op
from . import cases, compare, cost, reference, twins
from .compute_pooled_write_locs import compute_pooled_write_locs
from .expand_pools_and_append_tail import expand_pools_and_append_tail
from .kpool_compress_and_write_cache import kpool_compress_and_write_cache
from .kpool_decode_update_and_maybe_write_cache_batched import kpool_decode_update_and_maybe_write_cache_batched
from .kpool_seed_tail_cache import kpool_seed_tail_cache

ROWS = (
    Op(
        name="compute_pooled_write_locs",
        family="kpool",
        call=compute_pooled_write_locs,
        reference=reference.compute_pooled_write_locs,
        torch_form=reference.write_locs_in_torch,
        cases=cases.LOCATE,
        implementations=("lanes",),
        bytes_moved=cost.locate_bytes,
    ),
    Op(
        name="expand_pools_and_append_tail",
        family="kpool",
        call=expand_pools_and_append_tail,
        reference=reference.expand_pools_and_append_tail,
        torch_form=reference.expand_in_torch,
        cases=cases.EXPAND,
        implementations=("block",),
        twins=twins.EXPAND,
        bytes_moved=cost.expand_bytes,
    ),
    Op(
        name="kpool_compress_and_write_cache",
        family="kpool",
        call=kpool_compress_and_write_cache,
        reference=reference.kpool_compress_and_write_cache,
        torch_form=reference.compress_in_torch,
        cases=cases.COMPRESS,
        writes=("kv_cache",),
        implementations=("kronecker", "matrix"),
        gpu=("sized",),
        on_gpu="sized",
        twins=twins.COMPRESS,
        compare=compare.entries_close,
        bytes_moved=cost.compress_bytes,
    ),
    Op(
        name="kpool_decode_update_and_maybe_write_cache_batched",
        family="kpool",
        call=kpool_decode_update_and_maybe_write_cache_batched,
        reference=reference.kpool_decode_update_and_maybe_write_cache_batched,
        torch_form=reference.decode_in_torch,
        cases=cases.DECODE,
        writes=("kv_cache", "tail"),
        implementations=("kronecker",),
        gpu=("rows",),
        on_gpu="rows",
        compare=compare.entries_close,
        bytes_moved=cost.decode_bytes,
    ),
    Op(
        name="kpool_seed_tail_cache",
        family="kpool",
        call=kpool_seed_tail_cache,
        reference=reference.kpool_seed_tail_cache,
        torch_form=reference.seed_in_torch,
        cases=cases.SEED,
        writes=("tail",),
        implementations=("tokens",),
        bytes_moved=cost.seed_bytes,
    ),
)
