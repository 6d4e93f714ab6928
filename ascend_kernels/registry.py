"""Every op under watch, one row each.  Tests, benchmarks, model and pages are made from these rows."""

from __future__ import annotations

from . import padded_moe, token_pool
from .eagle import rows as eagle_rows
from .harness.spec import Op
from .padded_moe import cases as padded_moe_cases
from .padded_moe import reference as padded_moe_reference
from .padded_moe import twins as padded_moe_twins
from .token_pool import cases as token_pool_cases
from .token_pool import reference as token_pool_reference
from .token_pool import twins as token_pool_twins


def _span_bytes(arguments) -> int:
    metadata = [arguments[n] for n in ("req_pool_indices", "start_offset", "end_offset")]
    values = arguments["out_cache_loc"]
    copied = values.numel() * (values.element_size() + arguments["req_to_token"].element_size())
    return copied + sum(m.numel() * m.element_size() for m in metadata)


def _draft_bytes(arguments) -> int:
    metadata = [arguments[n] for n in ("req_pool_indices", "seq_lens")]
    values = arguments["out_cache_loc"]
    copied = values.numel() * (values.element_size() + arguments["req_to_token"].element_size())
    return copied + sum(m.numel() * m.element_size() for m in metadata)


_ROWS = (
    *eagle_rows.ROWS,
    Op(
        name="route",
        family="padded_moe",
        call=padded_moe.route,
        reference=padded_moe_reference.route,
        torch_form=padded_moe_reference.route_in_torch,
        cases=padded_moe_cases.ROUTE,
        implementations=("count",),
        bytes_moved=padded_moe_cases.route_bytes,
    ),
    Op(
        name="padded_gather",
        family="padded_moe",
        call=padded_moe.padded_gather,
        reference=padded_moe_reference.padded_gather,
        torch_form=padded_moe_reference.gather_in_torch,
        cases=padded_moe_cases.GATHER,
        implementations=("planned", "slices", "tokens"),
        twins=padded_moe_twins.GATHER,
        bytes_moved=padded_moe_cases.gather_bytes,
    ),
    Op(
        name="padded_scatter",
        family="padded_moe",
        call=padded_moe.padded_scatter,
        reference=padded_moe_reference.padded_scatter,
        torch_form=padded_moe_reference.scatter_in_torch,
        cases=padded_moe_cases.SCATTER,
        implementations=("planned",),
        twins=padded_moe_twins.SCATTER,
        compare=padded_moe_reference.close,
        bytes_moved=padded_moe_cases.scatter_bytes,
    ),
    Op(
        name="padded_scatter_wgrad",
        family="padded_moe",
        call=padded_moe.padded_scatter_wgrad,
        reference=padded_moe_reference.padded_scatter_wgrad,
        torch_form=padded_moe_reference.wgrad_in_torch,
        cases=padded_moe_cases.WGRAD,
        implementations=("planned", "tokens"),
        twins=padded_moe_twins.WGRAD,
        compare=padded_moe_reference.close,
        bytes_moved=padded_moe_cases.wgrad_bytes,
    ),
    Op(
        name="assign_req_to_token_pool",
        family="token_pool",
        call=token_pool.assign_req_to_token_pool,
        reference=token_pool_reference.assign_req_to_token_pool,
        torch_form=token_pool_reference.assign_in_torch,
        cases=token_pool_cases.ASSIGN,
        writes=("req_to_token",),
        implementations=("derived",),
        twins=token_pool_twins.ASSIGN,
        bytes_moved=_span_bytes,
    ),
    Op(
        name="assign_extend_cache_locs",
        family="token_pool",
        call=token_pool.assign_extend_cache_locs,
        reference=token_pool_reference.assign_extend_cache_locs,
        torch_form=token_pool_reference.extend_in_torch,
        cases=token_pool_cases.EXTEND,
        writes=("out_cache_loc",),
        implementations=("derived",),
        bytes_moved=_span_bytes,
    ),
    Op(
        name="assign_draft_cache_locs",
        family="token_pool",
        call=token_pool.assign_draft_cache_locs,
        reference=token_pool_reference.assign_draft_cache_locs,
        torch_form=token_pool_reference.draft_in_torch,
        cases=token_pool_cases.DRAFT,
        writes=("out_cache_loc",),
        implementations=("derived",),
        bytes_moved=_draft_bytes,
    ),
)

OPS: dict[str, Op] = {op.name: op for op in _ROWS}
