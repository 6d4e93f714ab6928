"""Triton kernels for Huawei Ascend NPUs, with references and cases.  Needs torch and triton only.

On a host without an NPU or GPU the ops run on CPU tensors through Triton's interpreter, which is switched on
here, before triton is imported.
"""

from .harness import interpreter

interpreter.enable_on_cpu()

from .token_pool import (  # noqa: E402
    assign_draft_cache_locs,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)

__all__ = ["assign_draft_cache_locs", "assign_extend_cache_locs", "assign_req_to_token_pool"]
