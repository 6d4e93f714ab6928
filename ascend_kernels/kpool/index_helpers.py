"""Index arithmetic around the selection of pools, in plain torch on the device of its tensors.

Source of the algorithm: vLLM, K-pool compression of the GLM-5-next indexer.
"""

from __future__ import annotations

import torch

from ..harness import check


def history_group_budget_for_topk(topk: int, pool_size: int) -> int:
    """How many pools to select so that their tokens number `topk`.  Raises ValueError unless P divides it."""
    size = check.number("pool_size", pool_size, least=1)
    if check.number("topk", topk) % size:
        raise ValueError(f"topk: expected a multiple of pool_size {size}, got {topk}")
    return topk // size


def expand_pools_to_tokens(
    group_ids: torch.Tensor,
    group_valid: torch.Tensor,
    topk: int,
    pool_size: int,
    page_table: torch.Tensor | None = None,
    topk_offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    """Token ids int32 [R, topk] of selected pools [R, topk / P]; -1 where group_valid is False.

    page_table [R, columns]: ids are looked up in their row.  topk_offsets [R] or [R, 1]: added to the ids of
    their row.  At most one of the two.
    """
    groups = history_group_budget_for_topk(topk, pool_size)
    check.tensor("group_ids", group_ids, dtypes=check.INTEGERS, shape=(None, groups), contiguous=False)
    shape = tuple(group_ids.shape)
    check.tensor("group_valid", group_valid, dtypes=(torch.bool,), shape=shape, like=group_ids, contiguous=False)
    _check_mapping(group_ids, page_table, topk_offsets)
    place = torch.arange(pool_size, device=group_ids.device)
    tokens = (group_ids.long()[:, :, None] * pool_size + place).flatten(1)
    valid = group_valid.repeat_interleave(pool_size, 1)
    return torch.where(valid, _mapped(tokens, page_table, topk_offsets), -1).to(torch.int32)


def append_tail_to_topk(
    topk_result: torch.Tensor,
    seq_lens: torch.Tensor,
    pool_lens: torch.Tensor,
    pool_size: int,
    page_table: torch.Tensor | None = None,
    topk_offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each row's own history int32 [R, W], then the tokens behind its last whole pool: [R, W + P - 1].

    seq_lens [R]: tokens of the row's sequence.  pool_lens [R]: its whole pools.  Ids go through page_table or
    topk_offsets as in expand_pools_to_tokens; -1 where there is no token.
    """
    size = check.number("pool_size", pool_size, least=1)
    check.tensor("topk_result", topk_result, dtypes=(torch.int32,), shape=(None, None), contiguous=False)
    for name, value in (("seq_lens", seq_lens), ("pool_lens", pool_lens)):
        check.tensor(name, value, dtypes=check.INTEGERS, shape=(len(topk_result),), like=topk_result,
                     contiguous=False)  # fmt: skip
    _check_mapping(topk_result, page_table, topk_offsets)
    tokens = pool_lens.long()[:, None] * size + torch.arange(size - 1, device=topk_result.device)
    valid = tokens < seq_lens.long()[:, None]
    tail = torch.where(valid, _mapped(tokens, page_table, topk_offsets), -1).to(torch.int32)
    return torch.cat([topk_result, tail], 1)


def build_pooled_page_table(page_table: torch.Tensor, pool_size: int) -> torch.Tensor:
    """Every P-th column of the token page table, in a contiguous tensor of its own.

    Raises ValueError unless P divides the number of columns.
    """
    size = check.number("pool_size", pool_size, least=1)
    check.tensor("page_table", page_table, dtypes=check.INTEGERS, contiguous=False)
    if page_table.dim() == 0 or page_table.shape[-1] % size:
        raise ValueError(
            f"page_table: expected a number of columns that pool_size {size} divides, "
            f"got shape {list(page_table.shape)}"
        )
    # Clone in a stated format: contiguous() keeps the strides of a result with one column.
    return page_table[..., ::size].clone(memory_format=torch.contiguous_format)


def _check_mapping(rows: torch.Tensor, page_table, topk_offsets) -> None:
    if page_table is not None and topk_offsets is not None:
        raise ValueError("topk_offsets: expected None with a page_table, got both")
    if page_table is not None:
        check.tensor("page_table", page_table, dtypes=check.INTEGERS, shape=(len(rows), None), like=rows,
                     contiguous=False)  # fmt: skip
    if topk_offsets is not None:
        shape = (len(rows), 1) if getattr(topk_offsets, "ndim", 1) == 2 else (len(rows),)
        check.tensor("topk_offsets", topk_offsets, dtypes=check.INTEGERS, shape=shape, like=rows, contiguous=False)


def _mapped(tokens: torch.Tensor, page_table, topk_offsets) -> torch.Tensor:
    if page_table is not None:
        if page_table.shape[1] == 0:
            return torch.full_like(tokens, -1)
        return page_table.gather(1, tokens.clamp(0, page_table.shape[1] - 1)).long()
    if topk_offsets is not None:
        return tokens + topk_offsets.long().reshape(-1, 1)
    return tokens
