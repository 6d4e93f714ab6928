"""Triton kernels for Huawei Ascend NPUs, with references and cases.  Needs torch and triton only.

On a host without an NPU or GPU the ops run on CPU tensors through Triton's interpreter, which is switched on
here, before triton is imported.
"""

from .harness import interpreter

interpreter.enable_on_cpu()

from .kpool import (  # noqa: E402
    append_tail_to_topk,
    build_pooled_page_table,
    compute_pooled_write_locs,
    expand_pools_and_append_tail,
    expand_pools_to_tokens,
    history_group_budget_for_topk,
    kpool_compress_and_write_cache,
    kpool_decode_update_and_maybe_write_cache_batched,
    kpool_seed_tail_cache,
)
from .token_pool import (  # noqa: E402
    assign_draft_cache_locs,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)

__all__ = [
    "append_tail_to_topk",
    "assign_draft_cache_locs",
    "assign_extend_cache_locs",
    "assign_req_to_token_pool",
    "build_pooled_page_table",
    "compute_pooled_write_locs",
    "expand_pools_and_append_tail",
    "expand_pools_to_tokens",
    "history_group_budget_for_topk",
    "kpool_compress_and_write_cache",
    "kpool_decode_update_and_maybe_write_cache_batched",
    "kpool_seed_tail_cache",
]
