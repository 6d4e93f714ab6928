"""Every op under watch, one row each.  Tests, benchmarks, model and pages are made from these rows."""

from __future__ import annotations

from . import kpool, padded_moe, token_pool
from .harness.spec import Op
from .kpool import cases as kpool_cases
from .kpool import compare as kpool_compare
from .kpool import cost as kpool_cost
from .kpool import reference as kpool_reference
from .kpool import twins as kpool_twins
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
    Op(
        name="compute_pooled_write_locs",
        family="kpool",
        call=kpool.compute_pooled_write_locs,
        reference=kpool_reference.compute_pooled_write_locs,
        torch_form=kpool_reference.write_locs_in_torch,
        cases=kpool_cases.LOCATE,
        implementations=("lanes",),
        bytes_moved=kpool_cost.locate_bytes,
    ),
    Op(
        name="expand_pools_and_append_tail",
        family="kpool",
        call=kpool.expand_pools_and_append_tail,
        reference=kpool_reference.expand_pools_and_append_tail,
        torch_form=kpool_reference.expand_in_torch,
        cases=kpool_cases.EXPAND,
        implementations=("block",),
        twins=kpool_twins.EXPAND,
        bytes_moved=kpool_cost.expand_bytes,
    ),
    Op(
        name="kpool_compress_and_write_cache",
        family="kpool",
        call=kpool.kpool_compress_and_write_cache,
        reference=kpool_reference.kpool_compress_and_write_cache,
        torch_form=kpool_reference.compress_in_torch,
        cases=kpool_cases.COMPRESS,
        writes=("kv_cache",),
        implementations=("kronecker", "matrix"),
        twins=kpool_twins.COMPRESS,
        compare=kpool_compare.entries_close,
        bytes_moved=kpool_cost.compress_bytes,
    ),
    Op(
        name="kpool_decode_update_and_maybe_write_cache_batched",
        family="kpool",
        call=kpool.kpool_decode_update_and_maybe_write_cache_batched,
        reference=kpool_reference.kpool_decode_update_and_maybe_write_cache_batched,
        torch_form=kpool_reference.decode_in_torch,
        cases=kpool_cases.DECODE,
        writes=("kv_cache", "tail"),
        implementations=("kronecker",),
        compare=kpool_compare.entries_close,
        bytes_moved=kpool_cost.decode_bytes,
    ),
    Op(
        name="kpool_seed_tail_cache",
        family="kpool",
        call=kpool.kpool_seed_tail_cache,
        reference=kpool_reference.kpool_seed_tail_cache,
        torch_form=kpool_reference.seed_in_torch,
        cases=kpool_cases.SEED,
        writes=("tail",),
        implementations=("tokens",),
        bytes_moved=kpool_cost.seed_bytes,
    ),
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
