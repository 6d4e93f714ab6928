"""Registry rows of the EAGLE ops, with the bytes each job must move."""

from __future__ import annotations

import torch

from ..harness.spec import Op, within
from . import cases, reference, twins
from .assign_paged_draft_cache_locs import assign_paged_draft_cache_locs
from .decode_step import CASES as DECODE_STEP
from .decode_step import bytes_moved as decode_step_bytes
from .decode_step import decode_step
from .decode_step import reference as decode_step_reference
from .decode_step import torch_form as decode_step_in_torch
from .fill_accepted_out_cache_loc import fill_accepted_out_cache_loc
from .fill_new_verified_id import fill_new_verified_id
from .select_top_k_tokens import select_top_k_tokens
from .top_k_renorm_prob import top_k_renorm_prob
from .top_p_renorm_prob import top_p_renorm_prob
from .tree_speculative_sampling_target_only import tree_speculative_sampling_target_only
from .verify_tree_greedy import verify_tree_greedy

# Kept probabilities are divided by a sum of fp32 numbers; zeros must be exact.
RENORMALISED = within(relative=1e-6)


def _bytes(*tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def _new_verified_bytes(a) -> int:
    return _bytes(a["accept_lens"]) + 2 * _bytes(a["new_verified_id"])


def _accepted_bytes(a) -> int:
    accepted = int((a["accept_index"] > -1).sum())
    return _bytes(a["accept_index"]) + 2 * accepted * a["out_cache_loc"].element_size()


def _select_bytes(a) -> int:
    metadata = _bytes(a["topk_p"], a["topk_index"], a["scores"])
    hidden = a["hidden_states"]
    if a["step"] == 0:
        requests = a["topk_p"].numel() // a["topk"]
        return (1 + a["topk"]) * _bytes(hidden) + 8 * requests * (a["topk"] + 1)
    k, requests = a["topk"], a["scores"].shape[0]
    written = _bytes(a["topk_p"]) + requests * k * (a["topk_index"].element_size() + 4 + 8)
    return metadata + written + 2 * _bytes(hidden)


def _tree_bytes(a) -> int:
    links = _bytes(
        *(a[n] for n in ("candidates", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling"))
    )
    requests, nodes = a["candidates"].shape
    return links + 4 * requests * (nodes + a.get("num_speculative_tokens", nodes) + 1)


def _verify_bytes(a) -> int:
    return _tree_bytes(a) + _bytes(a["target_predict"])


def _sampling_bytes(a) -> int:
    requests, _, vocab = a["target_probs"].shape
    coins = _bytes(a["uniform_samples"], a["uniform_samples_for_final_sampling"])
    return _tree_bytes(a) + coins + 4 * requests * vocab


def _renorm_bytes(a) -> int:
    return 2 * _bytes(a["probs"]) + 4 * len(a["probs"])


def _paged_bytes(a) -> int:
    moved = _bytes(a["out_cache_loc"], a["copy_source"], a["copy_target"])
    read = moved // 8 * a["req_to_token"].element_size()
    return moved + read + _bytes(a["req_pool_indices"], a["seq_lens"])


ROWS = (
    Op(
        name="assign_paged_draft_cache_locs",
        family="eagle",
        call=assign_paged_draft_cache_locs,
        reference=reference.assign_paged_draft_cache_locs,
        torch_form=reference.paged_draft_in_torch,
        cases=cases.PAGED_DRAFT,
        writes=("out_cache_loc", "copy_source", "copy_target"),
        implementations=("runs",),
        bytes_moved=_paged_bytes,
    ),
    Op(
        name="decode_step",
        family="eagle",
        call=decode_step,
        reference=decode_step_reference,
        torch_form=decode_step_in_torch,
        cases=DECODE_STEP,
        writes=("req_to_token",),
        implementations=("triton",),
        bytes_moved=decode_step_bytes,
    ),
    Op(
        name="fill_accepted_out_cache_loc",
        family="eagle",
        call=fill_accepted_out_cache_loc,
        reference=reference.fill_accepted_out_cache_loc,
        torch_form=reference.accepted_in_torch,
        cases=cases.ACCEPTED,
        writes=("accepted_out_cache_loc",),
        implementations=("tile", "lane"),
        on_gpu="lane",
        twins=twins.ACCEPTED,
        bytes_moved=_accepted_bytes,
    ),
    Op(
        name="fill_new_verified_id",
        family="eagle",
        call=fill_new_verified_id,
        reference=reference.fill_new_verified_id,
        torch_form=reference.new_verified_in_torch,
        cases=cases.NEW_VERIFIED,
        writes=("new_verified_id",),
        implementations=("tile", "lane"),
        bytes_moved=_new_verified_bytes,
    ),
    Op(
        name="select_top_k_tokens",
        family="eagle",
        call=select_top_k_tokens,
        reference=reference.select_top_k_tokens,
        torch_form=reference.select_in_torch,
        cases=cases.SELECT,
        implementations=("tile", "lane"),
        on_gpu="lane",
        twins=twins.SELECT,
        bytes_moved=_select_bytes,
    ),
    Op(
        name="top_k_renorm_prob",
        family="eagle",
        call=top_k_renorm_prob,
        reference=reference.top_k_renorm_prob,
        torch_form=reference.top_k_in_torch,
        cases=cases.TOP_K,
        implementations=("bits", "digits"),
        compare=RENORMALISED,
        twins=twins.TOP_K,
        bytes_moved=_renorm_bytes,
    ),
    Op(
        name="top_p_renorm_prob",
        family="eagle",
        call=top_p_renorm_prob,
        reference=reference.top_p_renorm_prob,
        torch_form=reference.top_p_in_torch,
        cases=cases.TOP_P,
        implementations=("bits", "digits"),
        compare=RENORMALISED,
        bytes_moved=_renorm_bytes,
    ),
    Op(
        name="tree_speculative_sampling_target_only",
        family="eagle",
        call=tree_speculative_sampling_target_only,
        reference=reference.tree_speculative_sampling_target_only,
        torch_form=reference.sampling_in_torch,
        cases=cases.SAMPLING,
        implementations=("walk",),
        twins=twins.SAMPLING,
        bytes_moved=_sampling_bytes,
    ),
    Op(
        name="verify_tree_greedy",
        family="eagle",
        call=verify_tree_greedy,
        reference=reference.verify_tree_greedy,
        torch_form=reference.verify_in_torch,
        cases=cases.VERIFY,
        implementations=("tile", "walk"),
        on_gpu="walk",
        bytes_moved=_verify_bytes,
    ),
)
