"""The EAGLE v2 decode step, from slots to accepted tokens, over all token-pool and EAGLE metadata ops.

`metadata_step` is what happens on the device: it never waits for it, so it can be captured and timed as a whole.
What a draft and a target model would add comes from a `Model`; `Toy` is one that plain Python can follow token by
token, `Canned` one that costs nothing, for timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ..token_pool import assign_draft_cache_locs, assign_extend_cache_locs, assign_req_to_token_pool
from ..token_pool import reference as token_pool_reference
from . import cases, reference
from .assign_paged_draft_cache_locs import assign_paged_draft_cache_locs, draft_room
from .fill_accepted_out_cache_loc import fill_accepted_out_cache_loc
from .fill_new_verified_id import fill_new_verified_id
from .select_top_k_tokens import select_top_k_tokens
from .slots import SlotAllocator
from .verify_tree_greedy import verify_tree_greedy

Ops = Mapping[str, Callable[..., Any]]

TRITON: Ops = {
    "assign_req_to_token_pool": assign_req_to_token_pool,
    "assign_draft_cache_locs": assign_draft_cache_locs,
    "assign_paged_draft_cache_locs": assign_paged_draft_cache_locs,
    "select_top_k_tokens": select_top_k_tokens,
    "assign_extend_cache_locs": assign_extend_cache_locs,
    "verify_tree_greedy": verify_tree_greedy,
    "fill_accepted_out_cache_loc": fill_accepted_out_cache_loc,
    "fill_new_verified_id": fill_new_verified_id,
}
TORCH: Ops = {
    "assign_req_to_token_pool": token_pool_reference.assign_in_torch,
    "assign_draft_cache_locs": token_pool_reference.draft_in_torch,
    "assign_paged_draft_cache_locs": reference.paged_draft_in_torch,
    "select_top_k_tokens": reference.select_in_torch,
    "assign_extend_cache_locs": token_pool_reference.extend_in_torch,
    "verify_tree_greedy": reference.verify_in_torch,
    "fill_accepted_out_cache_loc": reference.accepted_in_torch,
    "fill_new_verified_id": reference.new_verified_in_torch,
}
REFERENCE: Ops = {
    "assign_req_to_token_pool": token_pool_reference.assign_req_to_token_pool,
    "assign_draft_cache_locs": token_pool_reference.assign_draft_cache_locs,
    "assign_paged_draft_cache_locs": reference.assign_paged_draft_cache_locs,
    "select_top_k_tokens": reference.select_top_k_tokens,
    "assign_extend_cache_locs": token_pool_reference.assign_extend_cache_locs,
    "verify_tree_greedy": reference.verify_tree_greedy,
    "fill_accepted_out_cache_loc": reference.fill_accepted_out_cache_loc,
    "fill_new_verified_id": reference.fill_new_verified_id,
}


@dataclass(frozen=True)
class Config:
    """One way to run the decode step.  nodes: tokens verified a request, with the root; limited by what the draft
    offers.  pool_len: columns of a pool row.  hidden: width of the hidden states."""

    topk: int
    steps: int
    page_size: int = 1
    nodes_wanted: int = 16
    pool_len: int = 1024
    hidden: int = 16

    @property
    def nodes(self) -> int:
        """Nodes of a request's tree."""
        return min(self.nodes_wanted, 1 + self.topk + (self.steps - 1) * self.topk**2)

    @property
    def path(self) -> int:
        """Longest accepted path, with the root."""
        return min(self.steps + 1, self.nodes)

    @property
    def paged(self) -> bool:
        """Whether branches have pages of their own."""
        return self.page_size > 1 and self.topk > 1

    @property
    def alloc_len_per_decode(self) -> int:
        """Slots a step may need behind a request's tokens, whatever its length: drafts, or nodes to verify."""
        rooms = [draft_room(rest, self.topk, self.steps, self.page_size) for rest in range(self.page_size)]
        return max(*rooms, self.nodes)


@dataclass(frozen=True)
class Tree:
    """A draft tree of each request, as verify_tree_greedy takes it, and the parent of each node where a model asks
    for it; all [bs, nodes]."""

    candidates: torch.Tensor
    retrieve_index: torch.Tensor
    retrieve_next_token: torch.Tensor
    retrieve_next_sibling: torch.Tensor
    parents: torch.Tensor | None = None


class Model(Protocol):
    """What the step needs of the models, and what it tells them about slots."""

    def first(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """topk_p, topk_index and hidden states behind each request's root."""

    def draft(
        self, step: int, ids: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same behind each branch."""

    def tree(self, config: Config, tree_parts: list[tuple[torch.Tensor, ...]]) -> Tree:
        """The trees to verify, made of the parts each draft step gave."""

    def target(self, tree: Tree) -> torch.Tensor:
        """The target's token after each node."""

    def drafted(self, step: int, ids: torch.Tensor, slots: torch.Tensor) -> None:
        """Draft tokens of a step take these slots, [bs * topk] each."""

    def copied(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Draft slots that are copied, -1 for none."""

    def verified(self, tree: Tree, slots: torch.Tensor) -> None:
        """Nodes take these slots in the target's cache."""

    def moved(self, kept: torch.Tensor, slots: torch.Tensor, accept_lens: torch.Tensor) -> None:
        """Slots of the accepted nodes, -1 behind the last; they belong in the first of each request's slots."""


@dataclass(frozen=True)
class Step:
    """What one step gives: tokens accepted with the bonus, by request; the path's tokens, accept_lens of them; the
    next roots; slots of drafts, of the verified nodes and of the accepted ones; the last draft step's tokens."""

    accept_lens: torch.Tensor
    tokens: torch.Tensor
    new_verified_id: torch.Tensor
    draft_slots: torch.Tensor
    verify_slots: torch.Tensor
    accepted_slots: torch.Tensor
    drafted: torch.Tensor


@dataclass(frozen=True)
class Inputs:
    """Device tensors of one step: the pool, each request's row, its length, the column behind its nodes, the span
    of its new slots, and them."""

    req_to_token: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    verify_end: torch.Tensor
    allocated: torch.Tensor
    wanted: torch.Tensor
    new_slots: torch.Tensor


def metadata_step(ops: Ops, config: Config, inputs: Inputs, model: Model) -> Step:
    """One decode step of a batch, without a wait for the device."""
    table, rows, lens = inputs.req_to_token, inputs.req_pool_indices, inputs.seq_lens
    requests, k, steps, nodes = len(rows), config.topk, config.steps, config.nodes
    ops["assign_req_to_token_pool"](rows, table, inputs.allocated, inputs.wanted, inputs.new_slots)

    def empty(n: int) -> torch.Tensor:
        return torch.empty(n, dtype=torch.int64, device=table.device)

    drafts = empty(requests * k * steps)
    if config.paged:
        source, target = (empty(requests * (k - 1) * config.page_size) for _ in range(2))
        ops["assign_paged_draft_cache_locs"](rows, table, lens, drafts, source, target, k, steps, config.page_size)
        model.copied(source, target)
    else:
        ops["assign_draft_cache_locs"](rows, table, lens, drafts, k, steps)
    by_step = drafts.view(requests * k, steps)
    p, index, hidden = model.first()
    scores, parts = None, []
    for step in range(steps):
        ids, hidden, scores, part = ops["select_top_k_tokens"](step, p, index, hidden, scores, k)
        parts.append(part)
        model.drafted(step, ids, by_step[:, step])
        if step < steps - 1:
            p, index, hidden = model.draft(step, ids, hidden)
    tree = model.tree(config, parts)
    slots = empty(requests * nodes)
    ops["assign_extend_cache_locs"](rows, table, lens, inputs.verify_end, slots)
    model.verified(tree, slots)
    predicts, accept_index, accepted = ops["verify_tree_greedy"](
        tree.candidates, tree.retrieve_index, tree.retrieve_next_token, tree.retrieve_next_sibling,
        model.target(tree), config.path,
    )  # fmt: skip
    accept_lens = torch.add(accepted, 1, out=torch.empty_like(accepted))
    # Places behind the path are -1; what they give is left out by accept_lens.
    place = accept_index.view(-1).clamp(min=0)
    tokens = torch.index_select(predicts, 0, place, out=torch.empty_like(place))
    kept = empty(requests * config.path).fill_(-1)
    ops["fill_accepted_out_cache_loc"](accept_index.view(-1), slots, kept)
    model.moved(kept, slots, accept_lens)
    roots = torch.empty(requests, dtype=torch.int32, device=table.device)
    ops["fill_new_verified_id"](tokens, accept_lens, roots, config.path)
    return Step(accept_lens, tokens.view(requests, config.path), roots, drafts, slots, kept, ids)


def build_tree(config: Config, parts: list[tuple[torch.Tensor, ...]], roots: torch.Tensor) -> Tree:
    """The root and the best nodes-1 candidates of all draft steps, earlier ones first among equals, in the order
    in which they were drafted; children of a node in that order too."""
    requests, nodes, k = len(roots), config.nodes, config.topk
    device = roots.device
    scores = torch.cat([part[0].flatten(1) for part in parts], dim=1)
    tokens = torch.cat([part[1].flatten(1) for part in parts], dim=1)
    groups = torch.cat([part[2] for part in parts], dim=1)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, : nodes - 1].sort(dim=1).values
    candidates = torch.cat([roots.long().unsqueeze(1), tokens.gather(1, best).long()], dim=1)
    # A candidate's group of k names the candidate it was drafted behind, -1 for the root.
    above = groups.gather(1, best // k)
    found = (best.unsqueeze(1) == above.unsqueeze(2)).long()
    parents = torch.where(above < 0, 0, found.argmax(2) + 1)
    parents = torch.cat([torch.full((requests, 1), -1, device=device), parents], dim=1)
    number = torch.arange(nodes, device=device)

    def first_of(mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask.any(2), mask.long().argmax(2), -1)

    child = first_of(parents.unsqueeze(1) == number.view(1, -1, 1))
    later = number.view(1, 1, -1) > number.view(1, -1, 1)
    sibling = first_of((parents.unsqueeze(1) == parents.unsqueeze(2)) & later)
    index = torch.arange(requests * nodes, device=device).view(requests, nodes)
    return Tree(candidates, index, child, sibling, parents)


VOCAB = 997  # of the toy's drafts; the target may name tokens beyond, which no draft offers
MODES = ("mixed", "all", "none")


def toy_children(mode: str, k: int, token: torch.Tensor, mark: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities (sixteenths) and tokens of the toy draft behind `token`, whose predecessor left `mark`."""
    j = torch.arange(k, device=token.device)
    token, mark = token.long().unsqueeze(-1), mark.long().unsqueeze(-1)
    tokens = (token * 31 + mark * 11 + j * 7 + 3) % VOCAB
    if mode == "all":
        weight = torch.where(j == (token + mark) % k, 16, 1 + (token + j) % 8)
    else:
        weight = 1 + (token * 13 + mark * 3 + j * 5) % 12 + 4 * (j == (token + mark) % k)
    return weight.float() / 16, tokens


def toy_target(mode: str, k: int, token: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
    """The toy target's token behind `token`: one of the draft's, or one no draft offers."""
    _, offered = toy_children(mode, k, token, mark)
    token, mark = token.long(), mark.long()
    choice = (token + mark) % k
    likely = offered.gather(-1, choice.unsqueeze(-1)).squeeze(-1)
    other = VOCAB + (token * 7 + mark) % 89
    if mode == "all":
        return likely
    return other if mode == "none" else torch.where((token * 17 + mark * 5) % 10 < 6, likely, other)


def toy_mark(token: torch.Tensor) -> torch.Tensor:
    """What a token leaves in its hidden state: small enough for bf16."""
    return token.long() % 251


@dataclass
class Toy:
    """Draft and target of a small language: the next token depends on the last two.

    roots, before: last token of each request, not in the cache yet, and the one before it.
    kv, draft_kv: token that each slot of the target's and of the draft's cache holds."""

    config: Config
    mode: str
    roots: torch.Tensor
    before: torch.Tensor
    kv: torch.Tensor
    draft_kv: torch.Tensor

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        return toy_mark(tokens).to(torch.bfloat16).unsqueeze(1).repeat(1, self.config.hidden)

    def first(self):
        p, tokens = toy_children(self.mode, self.config.topk, self.roots, toy_mark(self.before))
        return p, tokens, self._hidden(self.roots)

    def draft(self, step: int, ids: torch.Tensor, hidden: torch.Tensor):
        p, tokens = toy_children(self.mode, self.config.topk, ids, hidden[:, -1])
        return p, tokens, self._hidden(ids)

    def tree(self, config: Config, tree_parts: list[tuple[torch.Tensor, ...]]) -> Tree:
        return build_tree(config, tree_parts, self.roots)

    def target(self, tree: Tree) -> torch.Tensor:
        assert tree.parents is not None
        above = tree.candidates.gather(1, tree.parents.clamp(min=0))
        above = torch.where(tree.parents < 0, self.before.long().unsqueeze(1), above)
        return toy_target(self.mode, self.config.topk, tree.candidates, toy_mark(above))

    def drafted(self, step: int, ids: torch.Tensor, slots: torch.Tensor) -> None:
        self.draft_kv[slots] = ids.long()

    def copied(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.draft_kv[target[target >= 0]] = self.draft_kv[source[source >= 0]]

    def verified(self, tree: Tree, slots: torch.Tensor) -> None:
        self.kv[slots] = tree.candidates.flatten()

    def moved(self, kept: torch.Tensor, slots: torch.Tensor, accept_lens: torch.Tensor) -> None:
        place = torch.arange(self.config.nodes, device=slots.device)
        home = slots.view(-1, self.config.nodes)[place < accept_lens.unsqueeze(1)]
        values = self.kv[kept[kept >= 0]]
        self.kv[home] = self.draft_kv[home] = values


@dataclass
class Engine:
    """A serving engine around the step: requests that join, decode and finish.

    rows: pool rows of the running requests, in batch order.  lengths, allocated: tokens in the cache and slots
    held, by row.  tokens: every token of each row's request, the last one not in the cache yet."""

    config: Config
    allocator: SlotAllocator
    req_to_token: torch.Tensor
    kv: torch.Tensor
    draft_kv: torch.Tensor
    lengths: np.ndarray
    allocated: np.ndarray
    rows: list[int] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)


def start(config: Config, pool_rows: int, pages: int, device: torch.device | str = "cpu") -> Engine:
    """An engine without requests."""
    slots = pages * config.page_size
    return Engine(
        config,
        SlotAllocator(pages, config.page_size),
        torch.full((pool_rows, config.pool_len), -1, dtype=torch.int32, device=device),
        torch.full((slots,), -1, dtype=torch.int64, device=device),
        torch.full((slots,), -1, dtype=torch.int64, device=device),
        np.zeros(pool_rows, dtype=np.int64),
        np.zeros(pool_rows, dtype=np.int64),
    )


def grow(engine: Engine, rows: list[int], wanted: np.ndarray) -> Inputs:
    """Slots for each row up to `wanted` tokens, and the inputs of a step.  The pool is not written yet."""
    table = engine.req_to_token
    held = engine.allocated[rows]
    last = np.maximum(held - 1, 0)
    at = table[torch.tensor(rows, device=table.device), torch.from_numpy(last).to(table.device)].cpu().numpy()
    slots = engine.allocator.extend(held, wanted, at)
    engine.allocated[rows] = wanted

    def send(values: np.ndarray, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(table.device, dtype)

    return Inputs(
        table,
        send(np.asarray(rows)),
        send(engine.lengths[rows]),
        send(engine.lengths[rows] + engine.config.nodes),
        send(held),
        send(wanted),
        send(slots, torch.int64),
    )


def join(engine: Engine, prompt: list[int], ops: Ops = TRITON) -> int:
    """A request with this prompt of two tokens and more; its last token is the first root.  Returns its row."""
    row = min(set(range(len(engine.lengths))) - set(engine.rows))
    inputs = grow(engine, [row], np.array([len(prompt) - 1]))
    ops["assign_req_to_token_pool"](
        inputs.req_pool_indices, inputs.req_to_token, inputs.allocated, inputs.wanted, inputs.new_slots
    )
    cached = torch.tensor(prompt[:-1], device=engine.kv.device)
    engine.kv[inputs.new_slots] = cached
    engine.draft_kv[inputs.new_slots] = cached
    engine.lengths[row] = len(prompt) - 1
    engine.tokens[row] = list(prompt)
    engine.rows.append(row)
    return row


def finish(engine: Engine, row: int) -> list[int]:
    """End a request and take its slots back.  Returns its tokens."""
    engine.rows.remove(row)
    _shrink(engine, [row], 0)
    engine.lengths[row] = 0
    return engine.tokens.pop(row)


def decode(engine: Engine, mode: str, ops: Ops = TRITON) -> Step:
    """One decode step of all running requests."""
    config, rows = engine.config, engine.rows
    wanted = engine.lengths[rows] + config.alloc_len_per_decode
    inputs = grow(engine, rows, np.maximum(wanted, engine.allocated[rows]))
    last = torch.tensor([engine.tokens[row][-2:] for row in rows], device=engine.kv.device)
    model = Toy(config, mode, last[:, 1], last[:, 0], engine.kv, engine.draft_kv)
    step = metadata_step(ops, config, inputs, model)
    for row, path, length in zip(rows, step.tokens.tolist(), step.accept_lens.tolist()):
        engine.tokens[row] += path[:length]
        engine.lengths[row] += length
    _shrink(engine, rows, engine.lengths[rows])
    return step


def _shrink(engine: Engine, rows: list[int], keep: np.ndarray | int) -> None:
    """Give back what lies behind the first `keep` tokens of each row: whole pages to the allocator, the rest of
    the last page to the row itself, which continues there."""
    page, table = engine.config.page_size, engine.req_to_token.cpu().numpy()
    held = engine.allocated[rows]
    pages = -(-np.broadcast_to(keep, held.shape) // page) * page
    ends = -(-held // page) * page
    spans = [(row, int(begin), int(end)) for row, begin, end in zip(rows, pages, ends)]
    # A page is released whole; its slots follow from its first.
    released = [table[row, begin:end:page][:, None] + np.arange(page) for row, begin, end in spans]
    engine.allocator.release(np.concatenate([r.ravel() for r in released]))
    engine.allocated[rows] = keep


@dataclass(frozen=True)
class Canned:
    """Answers prepared in advance, so that only the step itself costs time."""

    answers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    trees: Tree
    predictions: torch.Tensor

    def first(self):
        return self.answers[0]

    def draft(self, step: int, ids: torch.Tensor, hidden: torch.Tensor):
        return self.answers[step + 1]

    def tree(self, config: Config, tree_parts: list[tuple[torch.Tensor, ...]]) -> Tree:
        return self.trees

    def target(self, tree: Tree) -> torch.Tensor:
        return self.predictions

    def drafted(self, step: int, ids: torch.Tensor, slots: torch.Tensor) -> None: ...

    def copied(self, source: torch.Tensor, target: torch.Tensor) -> None: ...

    def verified(self, tree: Tree, slots: torch.Tensor) -> None: ...

    def moved(self, kept: torch.Tensor, slots: torch.Tensor, accept_lens: torch.Tensor) -> None: ...


def prepare(
    config: Config, requests: int, device: torch.device | str = "cpu", seed: int = 0
) -> tuple[Inputs, Canned]:
    """Inputs of one step of a batch in the middle of decoding, with canned answers, to be run again and again."""
    generator = torch.Generator().manual_seed(seed)
    rows, k, hidden = requests + 3, config.topk, config.hidden
    table = torch.randperm(rows * config.pool_len, generator=generator).to(torch.int32)
    room = config.pool_len - config.alloc_len_per_decode
    lens = torch.randint(1, room, (requests,), generator=generator, dtype=torch.int32)
    wanted = lens + config.alloc_len_per_decode
    fresh = torch.randint(0, rows * config.pool_len, (int((wanted - lens).sum()),), generator=generator)
    inputs = Inputs(
        table.view(rows, config.pool_len),
        torch.randperm(rows, generator=generator)[:requests].to(torch.int32),
        lens,
        lens + config.nodes,
        lens.clone(),
        wanted,
        fresh,
    )
    answers = []
    for step in range(config.steps):
        n = requests if step == 0 else requests * k
        p = torch.rand(n, k, generator=generator)
        index = torch.randint(0, 32000, (n, k), generator=generator)
        answers.append((p, index, torch.randn(n, hidden, generator=generator).to(torch.bfloat16)))
    verify = cases.verification(requests, config.nodes, fan=k)(generator)
    tree = Tree(
        verify["candidates"],
        verify["retrieve_index"],
        verify["retrieve_next_token"],
        verify["retrieve_next_sibling"],
    )
    moved = [tuple(t.to(device) for t in answer) for answer in answers]
    return _on(device, inputs), Canned(moved, _on(device, tree), verify["target_predict"].to(device))


def _on(device: torch.device | str, tensors: Any) -> Any:
    return type(tensors)(
        **{name: None if value is None else value.to(device) for name, value in vars(tensors).items()}
    )
