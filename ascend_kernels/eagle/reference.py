"""Plain references of the EAGLE ops: Python loops over requests and nodes, and the torch forms users write."""

from __future__ import annotations

import numpy as np
import torch


def fill_new_verified_id(verified_id, accept_lens, new_verified_id, num_draft_tokens) -> None:
    """Each request's last accepted token."""
    tokens = verified_id.tolist()
    for r, accepted in enumerate(accept_lens.tolist()):
        new_verified_id[r] = tokens[r * num_draft_tokens : (r + 1) * num_draft_tokens][accepted - 1]


def fill_accepted_out_cache_loc(accept_index, out_cache_loc, accepted_out_cache_loc) -> None:
    """Slots of the accepted drafts, in order."""
    filled = 0
    for index in accept_index.tolist():
        if index != -1:
            accepted_out_cache_loc[filled] = out_cache_loc[index]
            filled += 1


def assign_paged_draft_cache_locs(
    req_pool_indices,
    req_to_token,
    seq_lens,
    out_cache_loc,
    copy_source,
    copy_target,
    topk,
    num_steps,
    page_size,
) -> None:
    """Slots of each branch, then the copies of the last partial page."""
    drafts, sources, targets = [], [], []
    for row, length in zip(req_pool_indices.tolist(), seq_lens.tolist()):
        slots = req_to_token[row].tolist()
        page_start = length - length % page_size
        pages = -(-(length % page_size + num_steps) // page_size)
        for branch in range(topk):
            start = page_start + branch * pages * page_size
            drafts += slots[start + length % page_size :][:num_steps]
            if branch:
                for i in range(page_size):
                    sources.append(slots[page_start + i] if i < length % page_size else -1)
                    targets.append(slots[start + i] if i < length % page_size else -1)
    for tensor, values in ((out_cache_loc, drafts), (copy_source, sources), (copy_target, targets)):
        tensor.copy_(torch.tensor(values, dtype=torch.int64))


def select_top_k_tokens(step, topk_p, topk_index, hidden_states, scores, topk):
    """One draft step, a request at a time."""
    k = topk
    each = k if step == 0 else k * k
    p, index = topk_p.reshape(-1, each), topk_index.reshape(-1, each)
    requests, has_hidden = len(p), len(hidden_states) > 0
    ids, hidden, chosen_scores, parents = [], [], [], []
    expanded = p.reshape(requests, 1, k) if step == 0 else torch.empty(requests, k, k)
    for r in range(requests):
        if step == 0:
            choice = list(range(k))
            values = p[r]
            parents.append(list(range(-1, k)))
        else:
            for branch in range(k):
                for child in range(k):
                    expanded[r, branch, child] = scores[r, branch] * p[r, branch * k + child]
            values = expanded[r].flatten()
            ranked = values.tolist()
            choice = sorted(range(k * k), key=lambda c: (-ranked[c], c))[:k]
            parents.append([c + k * k * (step - 1) + k for c in choice])
        ids += [index[r, c] for c in choice]
        chosen_scores.append(values[choice])
        if has_hidden:
            hidden += [hidden_states[r if step == 0 else r * k + c // k] for c in choice]
    wide = k + 1 if step == 0 else k
    return (
        torch.stack(ids) if ids else index.new_empty(0),
        torch.stack(hidden) if hidden else hidden_states.clone(),
        torch.stack(chosen_scores) if chosen_scores else p.new_empty(0, k),
        (expanded, index, torch.tensor(parents, dtype=torch.int64).reshape(requests, wide)),
    )


def verify_tree_greedy(
    candidates,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    target_predict,
    num_speculative_tokens=None,
):
    """Walk every tree along the target's own choices."""
    requests, nodes = candidates.shape
    steps = num_speculative_tokens or nodes
    predicts, accept_index, counts = _no_verdict(requests, nodes, steps)
    target = target_predict.flatten().tolist()
    for r in range(requests):
        token, place = candidates[r].tolist(), retrieve_index[r].tolist()
        first, following = retrieve_next_token[r].tolist(), retrieve_next_sibling[r].tolist()
        node, path = 0, [0]
        while len(path) < steps:
            match = [c for c in children(node, first, following) if token[c] == target[place[node]]]
            if not match:
                break
            predicts[place[node]] = token[match[0]]
            node = match[0]
            path.append(node)
        predicts[place[node]] = target[place[node]]
        accept_index[r, : len(path)] = torch.tensor([place[n] for n in path])
        counts[r] = len(path) - 1
    return predicts, accept_index, counts


def tree_speculative_sampling_target_only(
    candidates,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    uniform_samples,
    uniform_samples_for_final_sampling,
    target_probs,
    threshold_single=1.0,
    threshold_acc=1.0,
    num_speculative_tokens=None,
):
    """Walk every tree by its coins, then draw the bonus token from what is left."""
    requests, nodes = candidates.shape
    steps = num_speculative_tokens or nodes
    predicts, accept_index, counts = _no_verdict(requests, nodes, steps)
    single, accumulated = np.float32(threshold_single), np.float32(max(threshold_acc, 1e-9))
    for r in range(requests):
        token, place = candidates[r].tolist(), retrieve_index[r].tolist()
        first, following = retrieve_next_token[r].tolist(), retrieve_next_sibling[r].tolist()
        coins, probs = uniform_samples[r].numpy(), target_probs[r].numpy()
        node, path, rejected = 0, [0], []
        while len(path) < steps:
            rejected, mass, accepted = [], np.float32(0), None
            for child in children(node, first, following):
                p = probs[node, token[child]]
                mass = np.float32(mass + p)
                if coins[node] <= mass / accumulated or p >= single:
                    accepted = child
                    break
                rejected.append(token[child])
            if accepted is None:
                break
            predicts[place[node]] = token[accepted]
            node, rejected = accepted, []
            path.append(node)
        left = probs[node].copy()
        left[rejected] = 0
        predicts[place[node]] = draw(left, uniform_samples_for_final_sampling[r].item())
        accept_index[r, : len(path)] = torch.tensor([place[n] for n in path])
        counts[r] = len(path) - 1
    return predicts, accept_index, counts


def draw(weights: np.ndarray, coin: float) -> int:
    """First token whose cumulative weight exceeds coin * total; the last one when there is no weight."""
    cumulative = weights.astype(np.float64).cumsum()
    goal = np.float32(coin) * np.float32(cumulative[-1])
    above = np.flatnonzero(cumulative > goal)
    return int(above[0]) if len(above) else len(weights) - 1


def children(node: int, first: list[int], following: list[int]) -> list[int]:
    """A node's children, first to last."""
    found, child = [], first[node]
    while child != -1:
        found.append(child)
        child = following[child]
    return found


def top_k_renorm_prob(probs, top_k):
    """Sort each row, cut behind the k-th value and its equals."""
    out = torch.zeros_like(probs)
    for r, k in enumerate(top_k.tolist()):
        cut = probs[r].sort(descending=True).values[min(k, probs.shape[1]) - 1]
        out[r] = _kept(probs[r], cut)
    return out


def top_p_renorm_prob(probs, top_p):
    """Sort each row, cut behind the value that reaches the mass and its equals."""
    out = torch.zeros_like(probs)
    for r, mass in enumerate(top_p.tolist()):
        ordered = probs[r].sort(descending=True).values
        reached = (ordered.double().cumsum(0) >= mass).nonzero()
        cut = ordered[reached[0, 0]] if len(reached) else torch.tensor(0.0)
        out[r] = _kept(probs[r], cut)
    return out


def _kept(row, cut):
    kept = torch.where(row >= cut, row, 0.0).double()
    return (kept / kept.sum()).float()


def _no_verdict(requests, nodes, steps):
    def minus_one(*shape):
        return torch.full(shape, -1, dtype=torch.int32)

    return minus_one(requests * nodes), minus_one(requests, steps), torch.zeros(requests, dtype=torch.int32)


def new_verified_in_torch(verified_id, accept_lens, new_verified_id, num_draft_tokens) -> None:
    """Vectorised torch form of fill_new_verified_id."""
    first = torch.arange(len(accept_lens), device=accept_lens.device) * num_draft_tokens
    new_verified_id.copy_(verified_id[first + accept_lens - 1])


def accepted_in_torch(accept_index, out_cache_loc, accepted_out_cache_loc) -> None:
    """Vectorised torch form of fill_accepted_out_cache_loc that does not wait for the device."""
    accepted = accept_index != -1
    place = torch.where(accepted, accepted.cumsum(0) - 1, len(accepted_out_cache_loc))
    longer = torch.cat([accepted_out_cache_loc, accepted_out_cache_loc.new_empty(1)])
    longer.scatter_(0, place, out_cache_loc[accept_index.clamp(min=0).long()])
    accepted_out_cache_loc.copy_(longer[:-1])


def select_in_torch(step, topk_p, topk_index, hidden_states, scores, topk):
    """Vectorised torch form of select_top_k_tokens."""
    k = topk
    if step == 0:
        p, index = topk_p.reshape(-1, k), topk_index.reshape(-1, k)
        parents = torch.arange(-1, k, device=p.device).unsqueeze(0).repeat(len(p), 1)
        return index.flatten(), hidden_states.repeat_interleave(k, dim=0), p, (p.unsqueeze(1), index, parents)
    expanded = scores.unsqueeze(2) * topk_p.reshape(-1, k, k)
    index = topk_index.reshape(-1, k * k)
    # A stable sort: topk would take equal scores in any order.
    ordered = expanded.flatten(1).sort(dim=1, descending=True, stable=True)
    best, choice = ordered.values[:, :k], ordered.indices[:, :k]
    ids = index.gather(1, choice).flatten()
    if len(hidden_states):
        first = torch.arange(0, len(hidden_states), k, device=scores.device).repeat_interleave(k)
        hidden_states = hidden_states[choice.flatten() // k + first]
    return ids, hidden_states, best.contiguous(), (expanded, index, choice + k * k * (step - 1) + k)


def verify_in_torch(
    candidates,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    target_predict,
    num_speculative_tokens=None,
):
    """Vectorised torch form of verify_tree_greedy: all requests take one link a round, without a wait.

    A round moves every request to its next candidate, child or sibling; nodes - 1 rounds visit every node."""
    requests, nodes = candidates.shape
    steps = num_speculative_tokens or nodes
    device = candidates.device
    target = target_predict.flatten()
    place = retrieve_index.long()
    predicts = torch.full((requests * nodes,), -1, dtype=torch.int32, device=device)
    accept_index = torch.full((requests, steps + 1), -1, dtype=torch.int32, device=device)
    counts = torch.zeros(requests, 1, dtype=torch.int64, device=device)
    here = place[:, :1]
    accept_index[:, :1] = here.int()
    probe = retrieve_next_token[:, :1].long() if steps > 1 else torch.full_like(here, -1)
    for _ in range(nodes - 1):
        at = probe.clamp(min=0)
        token, there = candidates.gather(1, at), place.gather(1, at)
        hit = (probe >= 0) & (token == target[here])
        value = torch.where(hit, token.int(), predicts[here])
        predicts.scatter_(0, here.flatten(), value.flatten())
        counts = counts + hit
        accept_index.scatter_(1, torch.where(hit, counts, steps), there.int())
        here = torch.where(hit, there, here)
        onward = torch.where(hit, retrieve_next_token.gather(1, at), retrieve_next_sibling.gather(1, at))
        probe = torch.where((probe >= 0) & (counts < steps - 1), onward.long(), -1)
    predicts.scatter_(0, here.flatten(), target[here].int().flatten())
    return predicts, accept_index[:, :steps].contiguous(), counts.flatten().int()


def top_k_in_torch(probs, top_k):
    """Vectorised torch form of top_k_renorm_prob."""
    ordered = probs.sort(dim=-1, descending=True).values
    cut = ordered.gather(1, (top_k.long().clamp(max=probs.shape[1]) - 1).unsqueeze(1))
    kept = torch.where(probs >= cut, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_in_torch(probs, top_p):
    """Vectorised torch form of top_p_renorm_prob."""
    ordered = probs.sort(dim=-1, descending=True).values
    below = (ordered.cumsum(-1) < top_p.unsqueeze(1)).sum(-1, keepdim=True)
    cut = torch.where(below < probs.shape[1], ordered.gather(1, below.clamp(max=probs.shape[1] - 1)), 0.0)
    kept = torch.where(probs >= cut, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def sampling_in_torch(
    candidates,
    retrieve_index,
    retrieve_next_token,
    retrieve_next_sibling,
    uniform_samples,
    uniform_samples_for_final_sampling,
    target_probs,
    threshold_single=1.0,
    threshold_acc=1.0,
    num_speculative_tokens=None,
):
    """Vectorised torch form of the sampling: one link a round, then one draw for all requests."""
    requests, nodes = candidates.shape
    vocab = target_probs.shape[2]
    steps = num_speculative_tokens or nodes
    device = candidates.device
    place, token_of = retrieve_index.long(), candidates.long()
    predicts = torch.full((requests * nodes + 1,), -1, dtype=torch.int32, device=device)
    accept_index = torch.full((requests, steps + 1), -1, dtype=torch.int32, device=device)
    counts = torch.zeros(requests, 1, dtype=torch.int64, device=device)
    removed = torch.zeros(requests, vocab + 1, dtype=torch.bool, device=device)
    every = torch.arange(requests, device=device).unsqueeze(1)
    node = torch.zeros_like(counts)
    here = place[:, :1]
    accept_index[:, :1] = here.int()
    mass = torch.zeros(requests, 1, device=device)
    probe = retrieve_next_token[:, :1].long() if steps > 1 else torch.full_like(here, -1)
    for _ in range(nodes - 1):
        tried = probe >= 0
        at = probe.clamp(min=0)
        token, there = token_of.gather(1, at), place.gather(1, at)
        p = torch.where(tried, target_probs[every, node, token], 0.0)
        mass = mass + p
        hit = (uniform_samples.gather(1, node) <= mass / max(threshold_acc, 1e-9)) | (p >= threshold_single)
        hit &= tried
        predicts.scatter_(0, torch.where(hit, here, requests * nodes).flatten(), token.int().flatten())
        removed.scatter_(1, torch.where(tried & ~hit, token, vocab), True)
        removed &= ~hit
        counts = counts + hit
        accept_index.scatter_(1, torch.where(hit, counts, steps), there.int())
        here, node, mass = torch.where(hit, there, here), torch.where(hit, at, node), torch.where(hit, 0.0, mass)
        onward = torch.where(hit, retrieve_next_token.gather(1, at), retrieve_next_sibling.gather(1, at))
        probe = torch.where(tried & (counts < steps - 1), onward.long(), -1)
    left = torch.where(removed[:, :vocab], 0.0, target_probs[every, node].squeeze(1))
    cumulative = left.cumsum(-1)
    goal = uniform_samples_for_final_sampling.unsqueeze(1) * cumulative[:, -1:]
    drawn = (cumulative <= goal).sum(-1).clamp(max=vocab - 1)
    predicts.scatter_(0, here.flatten(), drawn.int())
    return predicts[:-1], accept_index[:, :steps].contiguous(), counts.flatten().int()


def paged_draft_in_torch(
    req_pool_indices,
    req_to_token,
    seq_lens,
    out_cache_loc,
    copy_source,
    copy_target,
    topk,
    num_steps,
    page_size,
) -> None:
    """Vectorised torch form of assign_paged_draft_cache_locs."""
    device = seq_lens.device
    rows = req_pool_indices.long().view(-1, 1, 1)
    lengths = seq_lens.long().view(-1, 1, 1)
    rest = lengths % page_size
    span = (rest + num_steps + page_size - 1) // page_size * page_size
    start = lengths - rest + torch.arange(topk, device=device).view(1, -1, 1) * span
    drafts = req_to_token[rows, start + rest + torch.arange(num_steps, device=device)]
    out_cache_loc.copy_(drafts.flatten())
    place = torch.arange(page_size, device=device)
    most = req_to_token.shape[1] - 1
    copied = (place < rest).expand(-1, topk - 1, -1)
    targets = req_to_token[rows, (start[:, 1:] + place).clamp(max=most)]
    sources = req_to_token[rows, (start[:, :1] + place).clamp(max=most)].expand(-1, topk - 1, -1)
    copy_source.copy_(torch.where(copied, sources, -1).flatten())
    copy_target.copy_(torch.where(copied, targets, -1).flatten())
