"""Registry rows of the token_pool ops."""

from __future__ import annotations

from ..harness.spec import Op
from . import cases, reference, twins
from .assign_draft_cache_locs import assign_draft_cache_locs
from .assign_extend_cache_locs import assign_extend_cache_locs
from .assign_req_to_token_pool import assign_req_to_token_pool

METADATA = ("req_pool_indices", "start_offset", "end_offset", "seq_lens")


def _copied_bytes(arguments) -> int:
    """Each value read once and written once, each metadata tensor of the op read once."""
    metadata = [arguments[name] for name in METADATA if name in arguments]
    values = arguments["out_cache_loc"]
    copied = values.numel() * (values.element_size() + arguments["req_to_token"].element_size())
    return copied + sum(m.numel() * m.element_size() for m in metadata)


ROWS = (
    Op(
        name="assign_req_to_token_pool",
        family="token_pool",
        call=assign_req_to_token_pool,
        reference=reference.assign_req_to_token_pool,
        torch_form=reference.assign_in_torch,
        cases=cases.ASSIGN,
        writes=("req_to_token",),
        implementations=("derived",),
        gpu=("sized",),
        on_gpu="sized",
        twins=twins.ASSIGN,
        bytes_moved=_copied_bytes,
    ),
    Op(
        name="assign_extend_cache_locs",
        family="token_pool",
        call=assign_extend_cache_locs,
        reference=reference.assign_extend_cache_locs,
        torch_form=reference.extend_in_torch,
        cases=cases.EXTEND,
        writes=("out_cache_loc",),
        implementations=("derived",),
        bytes_moved=_copied_bytes,
    ),
    Op(
        name="assign_draft_cache_locs",
        family="token_pool",
        call=assign_draft_cache_locs,
        reference=reference.assign_draft_cache_locs,
        torch_form=reference.draft_in_torch,
        cases=cases.DRAFT,
        writes=("out_cache_loc",),
        implementations=("derived",),
        bytes_moved=_copied_bytes,
    ),
)
