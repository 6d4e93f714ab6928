"""Plain references of the token-pool ops: one request after another, one slice each."""

from __future__ import annotations

import torch


def assign_req_to_token_pool(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc) -> None:
    """Each request's span of its pool row takes the next values of out_cache_loc."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start]
        taken += end - start


def assign_extend_cache_locs(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc) -> None:
    """out_cache_loc takes each request's span of its pool row, one after another."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end]
        taken += end - start


def assign_draft_cache_locs(req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk, num_steps) -> None:
    """Each request's draft slots: the topk * num_steps columns behind its sequence."""
    n = topk * num_steps
    for r, (row, start) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        out_cache_loc[r * n : (r + 1) * n] = req_to_token[row, start : start + n]


def assign_in_torch(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc) -> None:
    """The vectorised torch form a user would write on a device; the measured baseline."""
    rows, columns = _places(req_pool_indices, start_offset, end_offset, len(out_cache_loc))
    req_to_token[rows, columns] = out_cache_loc.to(req_to_token.dtype)


def extend_in_torch(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc) -> None:
    """As assign_in_torch, the other way."""
    rows, columns = _places(req_pool_indices, start_offset, end_offset, len(out_cache_loc))
    out_cache_loc.copy_(req_to_token[rows, columns])


def draft_in_torch(req_pool_indices, req_to_token, seq_lens, out_cache_loc, topk, num_steps) -> None:
    """Vectorised torch form of assign_draft_cache_locs."""
    columns = seq_lens.long()[:, None] + torch.arange(topk * num_steps, device=seq_lens.device)
    out_cache_loc.copy_(req_to_token[req_pool_indices.long()[:, None], columns].flatten())


def _places(rows, starts, ends, total):
    lengths = (ends - starts).long()
    firsts = lengths.cumsum(0) - lengths
    request = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), lengths, output_size=total)
    columns = torch.arange(total, device=rows.device) - firsts[request] + starts.long()[request]
    return rows.long()[request], columns
