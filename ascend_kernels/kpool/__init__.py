"""K-pool compression (vLLM, GLM-5-next indexer)."""

from .compute_pooled_write_locs import compute_pooled_write_locs
from .expand_pools_and_append_tail import expand_pools_and_append_tail
from .index_helpers import (
    append_tail_to_topk,
    build_pooled_page_table,
    expand_pools_to_tokens,
    history_group_budget_for_topk,
)
from .kpool_compress_and_write_cache import kpool_compress_and_write_cache
from .kpool_decode_update_and_maybe_write_cache_batched import kpool_decode_update_and_maybe_write_cache_batched
from .kpool_seed_tail_cache import kpool_seed_tail_cache

__all__ = [
    "append_tail_to_topk",
    "build_pooled_page_table",
    "compute_pooled_write_locs",
    "expand_pools_and_append_tail",
    "expand_pools_to_tokens",
    "history_group_budget_for_topk",
    "kpool_compress_and_write_cache",
    "kpool_decode_update_and_maybe_write_cache_batched",
    "kpool_seed_tail_cache",
]
