"""Triton kernels for Huawei Ascend NPUs, with references and cases.  Needs torch and triton only.

On a host without an NPU or GPU the ops run on CPU tensors through Triton's interpreter, which is switched on
here, before triton is imported.
"""

from .harness import interpreter

interpreter.enable_on_cpu()

from .eagle import (  # noqa: E402
    assign_paged_draft_cache_locs,
    fill_accepted_out_cache_loc,
    fill_new_verified_id,
    select_top_k_tokens,
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)
from .token_pool import (  # noqa: E402
    assign_draft_cache_locs,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)

__all__ = [
    "assign_draft_cache_locs",
    "assign_extend_cache_locs",
    "assign_paged_draft_cache_locs",
    "assign_req_to_token_pool",
    "fill_accepted_out_cache_loc",
    "fill_new_verified_id",
    "select_top_k_tokens",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]
