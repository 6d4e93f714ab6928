"""Named cases of the EAGLE ops: shapes of a serving engine, and the edges that break careless kernels.

Probabilities are multiples of 2**-23 that sum to one, so that fp32 sums are exact in any order and a draw or a cut
has one right answer.
"""

from __future__ import annotations

import torch

from ..harness.spec import Arguments, Case
from .assign_paged_draft_cache_locs import draft_room

GRAIN = 2**23
I32, I64 = torch.int32, torch.int64


def probabilities(rows: int, vocab: int, generator: torch.Generator, *, spread: float = 2.0) -> torch.Tensor:
    """Distributions on the grid of 2**-23.  spread: of the logits; 0 makes all tokens equal but the first."""
    weights = (torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * spread).softmax(-1)
    units = (weights * GRAIN).floor()
    units[:, 0] += GRAIN - units.sum(-1)
    return (units / GRAIN).float()


def coins(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Uniform fp32 numbers in [0, 1)."""
    return torch.rand(shape, generator=generator)


def trees(requests: int, nodes: int, generator: torch.Generator, *, fan: int = 4, dtype=I64) -> Arguments:
    """Links of random trees.  A node's parent is one of the `fan` nodes before it, so fan 1 gives chains."""
    child = torch.full((requests, nodes), -1, dtype=dtype)
    sibling = torch.full((requests, nodes), -1, dtype=dtype)
    draws = torch.rand(requests, nodes, generator=generator)
    for r in range(requests):
        last = [-1] * nodes
        for node in range(1, nodes):
            reach = min(fan, node)
            parent = node - 1 - int(draws[r, node] * reach)
            if last[parent] < 0:
                child[r, parent] = node
            else:
                sibling[r, last[parent]] = node
            last[parent] = node
    index = torch.arange(requests * nodes, dtype=dtype).view(requests, nodes)
    return {"retrieve_index": index, "retrieve_next_token": child, "retrieve_next_sibling": sibling}


def parents(links: Arguments) -> torch.Tensor:
    """Parent of each node, -1 for the root."""
    child, sibling = links["retrieve_next_token"].tolist(), links["retrieve_next_sibling"].tolist()
    found = torch.full(links["retrieve_index"].shape, -1)
    for r in range(len(child)):
        for node in range(len(child[r])):
            at = child[r][node]
            while at != -1:
                found[r, at] = node
                at = sibling[r][at]
    return found


def new_verified(requests: int, drafts: int, *, dtype=I32, lens=I32):
    """Arguments of fill_new_verified_id."""

    def make(generator: torch.Generator) -> Arguments:
        scale = 2**33 + 1 if dtype == I64 else 1
        tokens = torch.randint(0, 152064, (requests * drafts,), generator=generator, dtype=I64) * scale
        accepted = torch.randint(1, drafts + 1, (requests,), generator=generator)
        accepted[:2] = torch.tensor([1, drafts])[: len(accepted)]
        return {
            "verified_id": tokens.to(dtype),
            "accept_lens": accepted.to(lens),
            "new_verified_id": torch.full((requests,), -5, dtype=dtype),
            "num_draft_tokens": drafts,
        }

    return make


def accepted(requests: int, steps: int, nodes: int, *, share: float | None = None, index=I32, slots=I64):
    """Arguments of fill_accepted_out_cache_loc: requests x steps entries that point at requests x nodes slots.

    share: of entries kept, anywhere; None keeps a prefix of each request, as a verification does."""

    def make(generator: torch.Generator) -> Arguments:
        n = requests * steps
        place = torch.stack([torch.randperm(nodes, generator=generator)[:steps] for _ in range(requests)])
        place = place + torch.arange(requests)[:, None] * nodes
        if share is None:
            lengths = torch.randint(1, steps + 1, (requests, 1), generator=generator)
            keep = torch.arange(steps) < lengths
        else:
            keep = torch.rand(requests, steps, generator=generator) < share
        scale = 2**33 + 1 if slots == I64 else 1
        return {
            "accept_index": torch.where(keep, place, -1).flatten().to(index),
            "out_cache_loc": (torch.randperm(requests * nodes, generator=generator) * scale).to(slots),
            "accepted_out_cache_loc": torch.full((n,), -5, dtype=slots),
        }

    return make


def no_entries(generator: torch.Generator) -> Arguments:
    """A batch without requests."""
    return {
        "accept_index": torch.empty(0, dtype=I32),
        "out_cache_loc": torch.empty(0, dtype=I64),
        "accepted_out_cache_loc": torch.empty(0, dtype=I64),
    }


def selection(
    step: int, requests: int, topk: int, hidden: int, *, dtype=torch.bfloat16, index=I64, ties: bool = False
):
    """Arguments of select_top_k_tokens.  hidden 0: no hidden states are kept."""

    def make(generator: torch.Generator) -> Arguments:
        branches = 1 if step == 0 else topk
        p = torch.rand(requests * branches, topk, generator=generator)
        scores = torch.rand(requests, topk, generator=generator)
        if ties:
            p, scores = (p * 3).round() / 4, (scores * 3).round() / 4
        rows = requests * branches if hidden else 0
        return {
            "step": step,
            "topk_p": p,
            "topk_index": torch.randint(0, 152064, p.shape, generator=generator).to(index),
            "hidden_states": torch.randn(rows, max(hidden, 16), generator=generator).to(dtype),
            "scores": scores if step else None,
            "topk": topk,
        }

    return make


def verification(requests: int, nodes: int, *, fan: int = 4, follow: float = 0.7, dtype=I64, steps=None):
    """Arguments of verify_tree_greedy.  follow: how often the target agrees with one of a node's children."""

    def make(generator: torch.Generator) -> Arguments:
        links = trees(requests, nodes, generator, fan=fan, dtype=dtype)
        tokens = torch.randint(0, 151000, (requests, nodes), generator=generator)
        # The target names the token of the last child that wins its draw, or a token that is no candidate.
        target = torch.randint(151000, 152064, (requests, nodes), generator=generator)
        wins = torch.rand(requests, nodes, generator=generator) < follow
        above = parents(links)
        for r in range(requests):
            for node in range(1, nodes):
                if wins[r, node]:
                    target[r, above[r, node]] = tokens[r, node]
        made = {"candidates": tokens.to(dtype), **links, "target_predict": target.to(dtype)}
        return made if steps is None else made | {"num_speculative_tokens": steps}

    return make


def renormalisation(limit: str, rows: int, vocab: int, values=None, *, spread: float = 2.0):
    """Arguments of top_k_renorm_prob (limit "top_k") or top_p_renorm_prob ("top_p").

    values: limits of the rows, repeated; by default drawn, with both ends among them."""

    def make(generator: torch.Generator) -> Arguments:
        probs = probabilities(rows, vocab, generator, spread=spread)
        if values is not None:
            limits = torch.tensor([values[r % len(values)] for r in range(rows)])
        elif limit == "top_k":
            limits = torch.randint(1, min(vocab, 100) + 1, (rows,), generator=generator)
        else:
            limits = torch.rand(rows, generator=generator) * 0.9 + 0.05
        return {"probs": probs, limit: limits.to(I32 if limit == "top_k" else torch.float32)}

    return make


def sampling(requests: int, nodes: int, vocab: int, *, fan: int = 4, single=1.0, acc=1.0, spread=1.0, steps=None):
    """Arguments of tree_speculative_sampling_target_only; drafts are tokens the target finds likely."""

    def make(generator: torch.Generator) -> Arguments:
        links = trees(requests, nodes, generator, fan=fan)
        probs = probabilities(requests * nodes, vocab, generator, spread=spread).view(requests, nodes, vocab)
        tokens = torch.randint(0, vocab, (requests, nodes), generator=generator)
        above = parents(links)
        likely = probs.topk(min(vocab, nodes), dim=-1).indices
        for r in range(requests):
            tried = [0] * nodes
            for node in range(1, nodes):
                parent = int(above[r, node])
                tokens[r, node] = likely[r, parent, tried[parent] % likely.shape[2]]
                tried[parent] += 1
        made = {
            "candidates": tokens,
            **links,
            "uniform_samples": coins((requests, nodes), generator),
            "uniform_samples_for_final_sampling": coins((requests,), generator),
            "target_probs": probs,
            "threshold_single": single,
            "threshold_acc": acc,
        }
        return made if steps is None else made | {"num_speculative_tokens": steps}

    return make


def paged_draft(requests: int, topk: int, num_steps: int, page: int, pool_len: int, *, metadata=I32, pool=I32):
    """Arguments of assign_paged_draft_cache_locs; the first requests end at, before and behind a page border."""

    def make(generator: torch.Generator) -> Arguments:
        most = min(
            length for length in range(pool_len) if length + draft_room(length, topk, num_steps, page) > pool_len
        )
        lengths = torch.randint(0, most, (requests,), generator=generator)
        border = most // 2 // page * page
        edges = torch.tensor([e for e in (border, border - 1, border + 1) if 0 <= e < most][:requests])
        lengths[: len(edges)] = edges
        rows = requests + 3
        copies = requests * (topk - 1) * page
        return {
            "req_pool_indices": torch.randperm(rows, generator=generator)[:requests].to(metadata),
            "req_to_token": torch.randperm(rows * pool_len, generator=generator).to(pool).view(rows, pool_len),
            "seq_lens": lengths.to(metadata),
            "out_cache_loc": torch.full((requests * topk * num_steps,), -5, dtype=I64),
            "copy_source": torch.full((copies,), -5, dtype=I64),
            "copy_target": torch.full((copies,), -5, dtype=I64),
            "topk": topk,
            "num_steps": num_steps,
            "page_size": page,
        }

    return make


NEW_VERIFIED = {
    "1x4": Case(new_verified(1, 4)),
    "3x5": Case(new_verified(3, 5), quick=True),
    "33x7": Case(new_verified(33, 7)),
    "32x8": Case(new_verified(32, 8), quick=True, timed=True),
    "256x8": Case(new_verified(256, 8), timed=True),
    "256x64": Case(new_verified(256, 64), timed=True),
    "300x6": Case(new_verified(300, 6)),
    "3000x5": Case(new_verified(3000, 5), note="more groups than cores"),
    "2x1": Case(new_verified(2, 1), note="no drafts, the bonus token only"),
    "64x8-int64": Case(new_verified(64, 8, dtype=I64, lens=I64), quick=True),
    "no-requests": Case(new_verified(0, 4)),
}

ACCEPTED = {
    "1x6": Case(accepted(1, 6, 6)),
    "3x5": Case(accepted(3, 5, 8), quick=True),
    "32x6": Case(accepted(32, 6, 16), quick=True, timed=True),
    "256x6": Case(accepted(256, 6, 16), timed=True),
    "256x16": Case(accepted(256, 16, 64), timed=True, note="n 4096"),
    "n-63": Case(accepted(63, 1, 1, share=0.5)),
    "n-64": Case(accepted(64, 1, 1, share=0.5)),
    "n-65": Case(accepted(65, 1, 3, share=0.5, slots=I32), quick=True),
    "n-1031": Case(accepted(1031, 1, 5, share=0.3), note="more than one counting tile"),
    "all": Case(accepted(40, 5, 5, share=1.1, slots=I32)),
    "none": Case(accepted(40, 5, 5, share=-1.0), note="nothing may be written"),
    "int64-index": Case(accepted(33, 4, 8, index=I64)),
    "int32-slots": Case(accepted(256, 6, 33, slots=I32)),
    "no-requests": Case(no_entries),
}

SELECT = {
    "step0-3x4": Case(selection(0, 3, 4, 48), quick=True),
    "step0-32x8": Case(selection(0, 32, 8, 4096), timed=True),
    "step0-256x8": Case(selection(0, 256, 8, 4096), timed=True),
    "step0-no-hidden": Case(selection(0, 5, 4, 0)),
    "step1-1x1": Case(selection(1, 1, 1, 64)),
    "step1-3x2": Case(selection(1, 3, 2, 33, dtype=torch.float32), note="hidden rows of no round length"),
    "step2-5x3": Case(selection(2, 5, 3, 40, index=I32), quick=True),
    "step1-17x4": Case(selection(1, 17, 4, 48, dtype=torch.float16), quick=True),
    "step4-7x8-ties": Case(selection(4, 7, 8, 32, ties=True), quick=True, note="the lowest flat index first"),
    "step2-6x5-ties": Case(selection(2, 6, 5, 32, ties=True)),
    "step3-100x2": Case(selection(3, 100, 2, 16)),
    "step1-1x16": Case(selection(1, 1, 16, 16)),
    "step1-no-hidden": Case(selection(1, 9, 4, 0)),
    "step1-32x4": Case(selection(1, 32, 4, 4096), timed=True),
    "step1-32x8": Case(selection(1, 32, 8, 4096), timed=True),
    "step4-256x4": Case(selection(4, 256, 4, 4096), timed=True),
    "step4-256x8": Case(selection(4, 256, 8, 4096), timed=True),
    "no-requests": Case(selection(1, 0, 4, 16)),
}

VERIFY = {
    "1x1": Case(verification(1, 1), note="the root alone"),
    "3x6": Case(verification(3, 6), quick=True),
    "32x16": Case(verification(32, 16), quick=True, timed=True),
    "256x16": Case(verification(256, 16), timed=True),
    "256x64": Case(verification(256, 64, fan=8), timed=True),
    "300x7": Case(verification(300, 7)),
    "chain": Case(verification(9, 6, fan=1, follow=0.9), quick=True, note="topk 1"),
    "all-accepted": Case(verification(5, 9, fan=1, follow=1.1)),
    "all-rejected": Case(verification(5, 9, follow=-1.0)),
    "wide": Case(verification(4, 40, fan=40)),
    "int32": Case(verification(17, 13, dtype=I32)),
    "64-nodes": Case(verification(9, 64, fan=3)),
    "short-path": Case(verification(17, 13, fan=2, follow=0.95, steps=3), note="paths longer than accept_index"),
    "no-requests": Case(verification(0, 4)),
}

TOP_K = {
    "1x64": Case(renormalisation("top_k", 1, 64)),
    "4x1000": Case(renormalisation("top_k", 4, 1000), quick=True),
    "ends": Case(renormalisation("top_k", 5, 1500, [1, 2, 1499, 1500, 5000]), quick=True),
    "ties": Case(renormalisation("top_k", 4, 1030, [1, 2, 3, 1029], spread=0.0), note="all equal but one"),
    "coarse": Case(renormalisation("top_k", 8, 3000, spread=8.0), note="many zeros"),
    "50x130": Case(renormalisation("top_k", 50, 130), note="more rows than cores"),
    "8x32000": Case(renormalisation("top_k", 8, 32000), timed=True),
    "32x32000": Case(renormalisation("top_k", 32, 32000), timed=True),
    "32x152064": Case(renormalisation("top_k", 32, 152064), timed=True),
    "no-rows": Case(renormalisation("top_k", 0, 100)),
}

TOP_P = {
    "1x64": Case(renormalisation("top_p", 1, 64)),
    "4x1000": Case(renormalisation("top_p", 4, 1000), quick=True),
    "ends": Case(renormalisation("top_p", 4, 1500, [1e-6, 0.5, 0.999, 1.0]), quick=True),
    "ties": Case(renormalisation("top_p", 4, 1030, [0.1, 0.5, 0.9, 1.0], spread=0.0)),
    "coarse": Case(renormalisation("top_p", 8, 3000, spread=8.0)),
    "50x130": Case(renormalisation("top_p", 50, 130)),
    "8x32000": Case(renormalisation("top_p", 8, 32000), timed=True),
    "32x32000": Case(renormalisation("top_p", 32, 32000), timed=True),
    "32x152064": Case(renormalisation("top_p", 32, 152064), timed=True),
    "no-rows": Case(renormalisation("top_p", 0, 100)),
}

SAMPLING = {
    "1x1x16": Case(sampling(1, 1, 16), note="nothing to verify, one draw"),
    "3x6x50": Case(sampling(3, 6, 50), quick=True),
    "8x16x1500": Case(sampling(8, 16, 1500, spread=3.0), quick=True),
    "50x5x33": Case(sampling(50, 5, 33, spread=2.0), note="more requests than cores"),
    "chain": Case(sampling(9, 6, 40, fan=1, spread=4.0)),
    "wide": Case(sampling(6, 24, 24, fan=24), note="every token of the vocabulary may be rejected"),
    "thresholds": Case(sampling(20, 8, 40, single=0.3, acc=0.6)),
    "short-path": Case(sampling(20, 8, 40, fan=2, spread=4.0, steps=3)),
    "8x8x32000": Case(sampling(8, 8, 32000), timed=True),
    "32x16x32000": Case(sampling(32, 16, 32000), timed=True),
    "8x8x152064": Case(sampling(8, 8, 152064), timed=True),
    "no-requests": Case(sampling(0, 4, 16)),
}

PAGED_DRAFT = {
    "1x8x5-page4": Case(paged_draft(1, 8, 5, 4, 128)),
    "5x4x3-page16": Case(paged_draft(5, 4, 3, 16, 256), quick=True),
    "7x2x5-page3": Case(paged_draft(7, 2, 5, 3, 64), note="a page of no round size"),
    "9x1x5-page16": Case(paged_draft(9, 1, 5, 16, 64), note="one branch, nothing to copy"),
    "33x8x5-page64": Case(paged_draft(33, 8, 5, 64, 1024, metadata=I64, pool=I64)),
    "32x8x5-page16": Case(paged_draft(32, 8, 5, 16, 8192), timed=True, quick=True),
    "256x8x5-page64": Case(paged_draft(256, 8, 5, 64, 8192), timed=True),
    "no-requests": Case(paged_draft(0, 4, 3, 16, 256)),
}
