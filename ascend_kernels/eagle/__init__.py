"""Metadata and verification of EAGLE v2 speculative decoding (SGLang)."""

from .assign_paged_draft_cache_locs import assign_paged_draft_cache_locs
from .decode_step import decode_step
from .fill_accepted_out_cache_loc import fill_accepted_out_cache_loc
from .fill_new_verified_id import fill_new_verified_id
from .select_top_k_tokens import select_top_k_tokens
from .top_k_renorm_prob import top_k_renorm_prob
from .top_p_renorm_prob import top_p_renorm_prob
from .tree_speculative_sampling_target_only import tree_speculative_sampling_target_only
from .verify_tree_greedy import verify_tree_greedy

__all__ = [
    "assign_paged_draft_cache_locs",
    "decode_step",
    "fill_accepted_out_cache_loc",
    "fill_new_verified_id",
    "select_top_k_tokens",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]
