"""Token-pool assignment (SGLang, EAGLE v2 speculative decoding)."""

from .assign_draft_cache_locs import assign_draft_cache_locs
from .assign_extend_cache_locs import assign_extend_cache_locs
from .assign_req_to_token_pool import assign_req_to_token_pool

__all__ = ["assign_draft_cache_locs", "assign_extend_cache_locs", "assign_req_to_token_pool"]
