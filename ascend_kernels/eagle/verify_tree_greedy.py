"""Greedy verification of a draft tree.

argument                shape        dtype        meaning
candidates              [bs, nodes]  int32/int64  draft token of each node; node 0 is the root
retrieve_index          [bs, nodes]  int32/int64  place of each node in target_predict and predicts, flattened;
                                                  row r is a permutation of r*nodes .. r*nodes + nodes-1
retrieve_next_token     [bs, nodes]  int32/int64  first child of each node, -1 for none
retrieve_next_sibling   [bs, nodes]  int32/int64  next child of the same parent, -1 for none
target_predict          [bs, nodes]  int32/int64  the target model's token after each place
num_speculative_tokens  int or None  -            width of accept_index (longest path with the root); nodes

-> predicts [bs*nodes] int32: the target's token at each place of the accepted path, -1 elsewhere
   accept_index [bs, num_speculative_tokens] int32: places of the path, the root first, padded with -1
   accept_token_num [bs] int32: accepted drafts, the bonus token not counted

Source of the algorithm: SGLang, speculative decoding.
Launch: one request a program.  The walk reads a few scalars a visited node; what it finds is kept in vectors of
one lane a node and stored once.  It visits each node at most once, so it ends on any links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan, tree


# A size of 1 made constant leaves a loop that never runs, of which the adapter dies.
@triton.jit(do_not_specialize=["requests", "nodes", "steps"])
def walk_kernel(
    candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict,
    predicts, accept_index, accept_token_num, requests, nodes, steps,
    NODES: tl.constexpr, STEPS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, NODES)
    slot = tl.arange(0, STEPS)
    for request in range(tl.program_id(0), requests, PROGRAMS):
        base = request * nodes
        here = tl.load(retrieve_index + base).to(tl.int32)
        wanted = tl.load(target_predict + here).to(tl.int32)
        path = tl.where(slot == 0, here, -1)
        token_at = tl.full([NODES], -1, tl.int32)
        probe = tl.load(retrieve_next_token + base).to(tl.int32)
        accepted = 0
        left = tl.where(steps > 1, nodes, 0)
        while (probe >= 0) & (left > 0):
            token = tl.load(candidates + base + probe).to(tl.int32)
            child = tl.load(retrieve_next_token + base + probe).to(tl.int32)
            sibling = tl.load(retrieve_next_sibling + base + probe).to(tl.int32)
            there = tl.load(retrieve_index + base + probe).to(tl.int32)
            after = tl.load(target_predict + there).to(tl.int32)
            hit = token == wanted
            accepted += hit.to(tl.int32)
            token_at = tl.where(lane == tl.where(hit, here - base, -1), wanted, token_at)
            path = tl.where(slot == tl.where(hit, accepted, -1), there, path)
            here = tl.where(hit, there, here)
            wanted = tl.where(hit, after, wanted)
            probe = tl.where(hit, child, sibling)
            left = tl.where(accepted < steps - 1, left - 1, 0)
        token_at = tl.where(lane == here - base, wanted, token_at)
        tl.store(predicts + base + lane, token_at, mask=lane < nodes)
        tl.store(accept_index + request * steps + slot, path, mask=slot < steps)
        tl.store(accept_token_num + request, accepted)


@dataclass(frozen=True)
class Walk:
    """One implementation, with a kernel that takes the arguments of `walk_kernel`."""

    kernel: Any

    def launch(self, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
        """Launch on checked arguments; both dicts in the order of the kernel's signature."""
        requests, nodes = inputs["candidates"].shape
        steps = outputs["accept_index"].shape[1]
        made = plan.trees(requests, nodes, device.of(inputs["candidates"]))
        launch(
            self.kernel,
            (made.programs,),
            {**inputs, **outputs, "requests": requests, "nodes": nodes, "steps": steps},
            {"NODES": made.tile, "STEPS": plan.lanes(steps), "PROGRAMS": made.programs},
            num_warps=1,
        )


IMPLEMENTATIONS = {"walk": Walk(walk_kernel)}


def verify_tree_greedy(
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    num_speculative_tokens: int | None = None,
    *,
    impl: str | Walk = "walk",
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`(predicts, accept_index, accept_token_num)`: from the root, move to the first child whose candidate is
    the target's token at the current node, until there is none.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument.  validate=True
    also checks, waiting for the device, that the links form one tree a request and that retrieve_index numbers
    its nodes.
    """
    steps = tree.check_tree(
        candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, num_speculative_tokens
    )
    requests, nodes = candidates.shape
    check.tensor("target_predict", target_predict, dtypes=check.INTEGERS, like=candidates)
    if target_predict.numel() != requests * nodes:
        raise ValueError(f"target_predict: expected {[requests, nodes]}, got {list(target_predict.shape)}")
    made = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        tree.check_tree_values(retrieve_index, retrieve_next_token, retrieve_next_sibling)
    outputs = empty_verdict(candidates, steps)
    if requests:
        inputs = {
            "candidates": candidates,
            "retrieve_index": retrieve_index,
            "retrieve_next_token": retrieve_next_token,
            "retrieve_next_sibling": retrieve_next_sibling,
            "target_predict": target_predict,
        }
        made.launch(inputs, outputs)
    return outputs["predicts"], outputs["accept_index"], outputs["accept_token_num"]


def empty_verdict(candidates: torch.Tensor, steps: int) -> dict[str, torch.Tensor]:
    """The three results of a verification, to be written whole by its kernel."""
    requests, nodes = candidates.shape
    options = {"dtype": torch.int32, "device": candidates.device}
    return {
        "predicts": torch.empty(requests * nodes, **options),
        "accept_index": torch.empty(requests, steps, **options),
        "accept_token_num": torch.empty(requests, **options),
    }
