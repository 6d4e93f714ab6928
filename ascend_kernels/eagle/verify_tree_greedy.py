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
Launch: "walk" takes one request at a time and reads a few scalars a visited node; what it finds is kept in vectors
of one lane a node and stored once.  "tile" walks eight requests side by side and picks from their trees on chip,
without scalars, for Ascend.  Both visit each node at most once, so they end on any links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import implementation, plan, tree


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


@triton.jit
def _pick(table, place):
    return tl.gather(table.to(tl.float32, bitcast=True), place.to(tl.int32), 0).to(tl.int32, bitcast=True)


@triton.jit
def _one_hot(number, place):
    """1 where a row's number is its place, else 0, without masks, whose short rows are padded."""
    return tl.maximum(1.0 - tl.abs(number - place[:, None]), 0.0)


@triton.jit(do_not_specialize=["requests", "nodes", "steps"])
def tile_kernel(
    candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, target_predict,
    predicts, accept_index, accept_token_num, requests, nodes, steps,
    ROWS: tl.constexpr, NODES: tl.constexpr, STEPS: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    flat = tl.arange(0, TILE)
    slot = tl.arange(0, STEPS).to(tl.float32)[None, :]
    lane = tl.arange(0, NODES).to(tl.float32)[None, :]
    for group in range(tl.program_id(0), tl.cdiv(requests, ROWS), PROGRAMS):
        first = group * ROWS
        count = tl.minimum(requests - first, ROWS)
        start = first * nodes
        total = count * nodes
        token_of = tl.load(candidates + start + flat, mask=flat < total, other=0).to(tl.int32)
        target_of = tl.load(target_predict + start + flat, mask=flat < total, other=0).to(tl.int32)
        place_of = tl.load(retrieve_index + start + flat, mask=flat < total, other=0).to(tl.float32) - start
        child_of = tl.load(retrieve_next_token + start + flat, mask=flat < total, other=-1).to(tl.float32)
        sibling_of = tl.load(retrieve_next_sibling + start + flat, mask=flat < total, other=-1).to(tl.float32)
        base = tl.minimum(row, count - 1).to(tl.float32) * nodes
        here = tl.gather(place_of, base.to(tl.int32), 0)
        wanted = _pick(target_of, here)
        probe = tl.gather(child_of, base.to(tl.int32), 0)
        probe = tl.where(steps > 1, probe, -1.0)
        accepted = tl.zeros([ROWS], tl.float32)
        path = _one_hot(slot, tl.zeros([ROWS], tl.float32)) * (here + 1.0)[:, None] - 1.0
        token_at = tl.full([ROWS, NODES], -1, tl.int32)
        for _ in range(1, nodes):
            live = tl.where(probe >= 0.0, 1.0, 0.0)
            at = base + tl.maximum(probe, 0.0)
            token = _pick(token_of, at)
            there = tl.gather(place_of, at.to(tl.int32), 0)
            after = _pick(target_of, there)
            hit = tl.where(token == wanted, live, 0.0)
            accepted += hit
            mark = tl.where(hit > 0.0, here - base, -1.0)
            token_at += _one_hot(lane, mark).to(tl.int32) * (wanted + 1)[:, None]
            mark = tl.where(hit > 0.0, accepted, -1.0)
            path += _one_hot(slot, mark) * (there + 1.0)[:, None]
            here = tl.where(hit > 0.0, there, here)
            wanted = tl.where(hit > 0.0, after, wanted)
            child = tl.gather(child_of, at.to(tl.int32), 0)
            child = tl.where(accepted < steps - 1, child, -1.0)
            sibling = tl.gather(sibling_of, at.to(tl.int32), 0)
            onward = tl.where(hit > 0.0, child, sibling)
            probe = tl.where(live > 0.0, onward, -1.0)
        token_at += _one_hot(lane, here - base).to(tl.int32) * (wanted + 1)[:, None]
        node = tl.arange(0, NODES)[None, :]
        tl.store(
            predicts + start + row[:, None] * nodes + node, token_at,
            mask=(row[:, None] < count) & (node < nodes),
        )  # fmt: skip
        step = tl.arange(0, STEPS)[None, :]
        path += tl.minimum(path + 1.0, 1.0) * start
        tl.store(
            accept_index + first * steps + row[:, None] * steps + step, path.to(tl.int32),
            mask=(row[:, None] < count) & (step < steps),
        )  # fmt: skip
        tl.store(accept_token_num + first + row, accepted.to(tl.int32), mask=row < count)


@dataclass(frozen=True)
class Walk:
    """One request at a time, with a kernel that takes the arguments of `walk_kernel`."""

    kernel: Any

    def launch(
        self, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor], where: device.Device
    ) -> None:
        """Launch on checked arguments; both dicts in the order of the kernel's signature."""
        requests, nodes = inputs["candidates"].shape
        steps = outputs["accept_index"].shape[1]
        made = plan.trees(requests, nodes, where)
        launch(
            self.kernel,
            (made.programs,),
            {**inputs, **outputs, "requests": requests, "nodes": nodes, "steps": steps},
            {"NODES": made.tile, "STEPS": plan.lanes(steps), "PROGRAMS": made.programs},
            num_warps=1,
        )


@dataclass(frozen=True)
class Tile:
    """Several requests at a time, with a kernel that takes the arguments of `tile_kernel`."""

    kernel: Any

    def launch(
        self, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor], where: device.Device
    ) -> None:
        """Launch on checked arguments; both dicts in the order of the kernel's signature."""
        implementation.ascend_only(where, "walk")
        requests, nodes = inputs["candidates"].shape
        steps = outputs["accept_index"].shape[1]
        made = plan.tree_rows(requests, max(nodes, steps), where)
        launch(
            self.kernel,
            (made.programs,),
            {**inputs, **outputs, "requests": requests, "nodes": nodes, "steps": steps},
            {
                "ROWS": made.rows,
                "NODES": plan.lanes(nodes),
                "STEPS": plan.lanes(steps),
                "TILE": plan.power_of_two(made.rows * nodes),
                "PROGRAMS": made.programs,
            },
        )


IMPLEMENTATIONS = {"tile": Tile(tile_kernel), "walk": Walk(walk_kernel)}


def verify_tree_greedy(
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    num_speculative_tokens: int | None = None,
    *,
    impl: str | Walk | Tile | None = None,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`(predicts, accept_index, accept_token_num)`: from the root, move to the first child whose candidate is
    the target's token at the current node, until there is none.

    Shapes and dtypes as in the table above.  impl: by default what suits the device.  Raises TypeError or
    ValueError naming the argument, PlanError for trees that do not fit a tile.  validate=True also checks, waiting
    for the device, that the links form one tree a request and that retrieve_index numbers its nodes.
    """
    steps = tree.check_tree(
        candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, num_speculative_tokens
    )
    requests, nodes = candidates.shape
    check.tensor("target_predict", target_predict, dtypes=check.INTEGERS, like=candidates)
    if target_predict.numel() != candidates.numel():
        raise ValueError(f"target_predict: expected {[requests, nodes]}, got {list(target_predict.shape)}")
    where = device.of(candidates)
    if impl is None:
        fits = requests * nodes <= plan.EXACT and max(nodes, steps) <= plan.TREE_LANES
        impl = "tile" if fits and where.ascend else "walk"
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
        made.launch(inputs, outputs, where)
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
