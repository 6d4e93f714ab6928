"""Sample from a draft tree so that tokens are distributed as the target model's, with target probabilities only.

argument                            shape               dtype        meaning
candidates                          [bs, nodes]         int32/int64  draft token of each node; node 0: the root
retrieve_index                      [bs, nodes]         int32/int64  place of each node in predicts; row r is a
                                                                     permutation of r*nodes .. r*nodes + nodes-1
retrieve_next_token                 [bs, nodes]         int32/int64  first child of each node, -1 for none
retrieve_next_sibling               [bs, nodes]         int32/int64  next child of the same parent, -1 for none
uniform_samples                     [bs, nodes]         float32      coin of each node, in [0, 1)
uniform_samples_for_final_sampling  [bs]                float32      coin of the bonus token, in [0, 1)
target_probs                        [bs, nodes, vocab]  float32      the target's distribution after each node
threshold_single                    float               -            a child this probable is accepted at once
threshold_acc                       float               -            divides the running sum; 1 keeps the target
num_speculative_tokens              int or None         -            width of accept_index; nodes

-> predicts [bs*nodes] int32, accept_index [bs, num_speculative_tokens] int32, accept_token_num [bs] int32, as in
   verify_tree_greedy; the last place of the path holds the bonus token.

Walk: at a node add each child's target probability to a running sum; accept it when coin <= sum / threshold_acc
or its probability >= threshold_single, move there, take its coin and start a sum of 0.  When no child is accepted,
the bonus token is drawn from the node's distribution without the rejected children: the first token at which the
cumulative probability exceeds coin * total.  Nothing left: the last token of the vocabulary.  Sums are in fp32.

Source of the algorithm: SGLang, speculative decoding.
Launch: one request a program.  The walk is scalar; the draw sums tiles of the vocabulary, finds the tile, then
the row of the tile folded into a square, then the column; on Ascend with sums over a triangle in place of a
prefix sum, which a core would do lane by lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import plan, tree
from .renorm import check_probabilities
from .verify_tree_greedy import empty_verdict

LEAST_THRESHOLD = 1e-9


@triton.jit
def _left(probs, tile, vocab, candidates, siblings, first_child, rejected, SIDE: tl.constexpr):
    """A tile of a node's distribution without its rejected children."""
    offset = tile * (SIDE * SIDE) + tl.arange(0, SIDE * SIDE)
    p = tl.load(probs + offset, mask=offset < vocab, other=0.0)
    lane = offset.to(tl.float32)
    child = first_child
    for _ in range(0, rejected):
        token = tl.load(candidates + child).to(tl.float32)
        p = tl.where(lane == token, 0.0, p)
        child = tl.load(siblings + child).to(tl.int32)
    return p


@triton.jit
def _passing(sums, number, before, goal, SCAN: tl.constexpr):
    """The first lane at which `before` plus the sums so far exceeds the goal, and what lies before that lane.

    If rounding lets none pass, the last lane that holds anything."""
    if SCAN:
        reached = before + tl.cumsum(sums, 0)
    else:
        upto = number[None, :] <= number[:, None]
        reached = before + tl.sum(tl.where(upto, sums[None, :], 0.0), 1)
    passing = tl.min(tl.where(reached > goal, tl.where(sums > 0.0, number, 1e9), 1e9))
    last = tl.max(tl.where(sums > 0.0, number, 0.0))
    lane = tl.minimum(passing, last)
    return lane, before + tl.sum(tl.where(number < lane, sums, 0.0))


# A size of 1 made constant leaves a loop that never runs, of which the adapter dies.
@triton.jit(do_not_specialize=["requests", "nodes", "steps"])
def sampling_kernel(
    candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling,
    uniform_samples, uniform_samples_for_final_sampling, target_probs,
    predicts, accept_index, accept_token_num, requests, nodes, steps, vocab, threshold_single, threshold_acc,
    NODES: tl.constexpr, STEPS: tl.constexpr, TILES: tl.constexpr, SIDE: tl.constexpr, PROGRAMS: tl.constexpr,
    SCAN: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, NODES)
    slot = tl.arange(0, STEPS)
    number = tl.arange(0, SIDE).to(tl.float32)
    tile_number = tl.arange(0, TILES).to(tl.float32)
    for request in range(tl.program_id(0), requests, PROGRAMS):
        base = request * nodes
        node = 0
        here = tl.load(retrieve_index + base).to(tl.int32)
        coin = tl.load(uniform_samples + base)
        path = tl.where(slot == 0, here, -1)
        token_at = tl.full([NODES], -1, tl.int32)
        probe = tl.load(retrieve_next_token + base).to(tl.int32)
        probe = tl.where(steps > 1, probe, -1)
        first_child = probe
        accepted = 0
        rejected = 0
        mass = 0.0
        # Not a while loop: the compiler loses track of the vectors carried through it.
        for _ in range(1, nodes):
            live = probe >= 0
            probe = tl.maximum(probe, 0)
            token = tl.load(candidates + base + probe).to(tl.int32)
            child = tl.load(retrieve_next_token + base + probe).to(tl.int32)
            sibling = tl.load(retrieve_next_sibling + base + probe).to(tl.int32)
            there = tl.load(retrieve_index + base + probe).to(tl.int32)
            fresh = tl.load(uniform_samples + base + probe)
            p = tl.load(target_probs + tl.cast(base + node, tl.int64) * vocab + token)
            mass += tl.where(live, p, 0.0)
            hit = (coin <= mass / threshold_acc) | (p >= threshold_single)
            hit = hit & live
            accepted += hit.to(tl.int32)
            token_at = tl.where(lane == tl.where(hit, here - base, -1), token, token_at)
            path = tl.where(slot == tl.where(hit, accepted, -1), there, path)
            here = tl.where(hit, there, here)
            node = tl.where(hit, probe, node)
            coin = tl.where(hit, fresh, coin)
            mass = tl.where(hit, 0.0, mass)
            child = tl.where(accepted < steps - 1, child, -1)
            first_child = tl.where(hit, child, first_child)
            rejected = tl.where(hit, 0, rejected + live.to(tl.int32))
            probe = tl.where(live, tl.where(hit, child, sibling), -1)

        # Every child of `node` was rejected, the first `rejected` of them, or there was none to try.
        probs = target_probs + tl.cast(base + node, tl.int64) * vocab
        sums = tl.zeros([TILES], tl.float32)
        for i in range(0, tl.cdiv(vocab, SIDE * SIDE)):
            p = _left(
                probs, i, vocab, candidates + base, retrieve_next_sibling + base, first_child, rejected, SIDE
            )
            sums += tl.where(tile_number == i, tl.sum(p), 0.0)
        total = tl.sum(sums)
        goal = tl.load(uniform_samples_for_final_sampling + request) * total
        tile, before = _passing(sums, tile_number, 0.0, goal, SCAN)
        tile = tile.to(tl.int32)
        p = _left(probs, tile, vocab, candidates + base, retrieve_next_sibling + base, first_child, rejected, SIDE)
        square = tl.reshape(p, [SIDE, SIDE])
        row, before = _passing(tl.sum(square, 1), number, before, goal, SCAN)
        cells = tl.sum(tl.where(number[:, None] == row, square, 0.0), 0)
        column, before = _passing(cells, number, before, goal, SCAN)
        drawn = tile * (SIDE * SIDE) + (row * SIDE + column).to(tl.int32)
        drawn = tl.where(total > 0.0, drawn, vocab - 1)
        token_at = tl.where(lane == here - base, drawn, token_at)
        tl.store(predicts + base + lane, token_at, mask=lane < nodes)
        tl.store(accept_index + request * steps + slot, path, mask=slot < steps)
        tl.store(accept_token_num + request, accepted)


@dataclass(frozen=True)
class Sampling:
    """One implementation.  scan: whether the draw takes prefix sums; by default on a GPU."""

    scan: bool | None = None

    def launch(
        self,
        inputs: dict[str, torch.Tensor],
        outputs: dict[str, torch.Tensor],
        threshold_single: float,
        threshold_acc: float,
    ) -> None:
        """Launch on checked arguments; both dicts in the order of the kernel's signature."""
        requests, nodes, vocab = inputs["target_probs"].shape
        steps = outputs["accept_index"].shape[1]
        where = device.of(inputs["candidates"])
        made = plan.trees(requests, nodes, where)
        draw = plan.draw(requests, vocab, where)
        sizes = {"requests": requests, "nodes": nodes, "steps": steps, "vocab": vocab}
        thresholds = {"threshold_single": threshold_single, "threshold_acc": threshold_acc}
        launch(
            sampling_kernel,
            (made.programs,),
            {**inputs, **outputs, **sizes, **thresholds},
            {
                "NODES": made.tile,
                "STEPS": plan.lanes(steps),
                "TILES": draw.tiles,
                "SIDE": draw.side,
                "PROGRAMS": made.programs,
                "SCAN": not where.ascend if self.scan is None else self.scan,
            },
            **draw.options,
        )


IMPLEMENTATIONS = {"walk": Sampling()}


def tree_speculative_sampling_target_only(
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    num_speculative_tokens: int | None = None,
    *,
    impl: str | Sampling = "walk",
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`(predicts, accept_index, accept_token_num)` of the walk described above; the same for the same coins.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument, PlanError for a
    vocabulary above 2**18.  validate=True also checks, waiting for the device, that the links form one tree a
    request, that retrieve_index numbers its nodes, that candidates lie in the vocabulary, that coins lie in
    [0, 1) and that every distribution sums to one.
    """
    steps = tree.check_tree(
        candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling, num_speculative_tokens
    )
    requests, nodes = candidates.shape
    floats = {"dtypes": (torch.float32,), "like": candidates}
    check.tensor("uniform_samples", uniform_samples, shape=(requests, nodes), **floats)
    final = uniform_samples_for_final_sampling
    check.tensor("uniform_samples_for_final_sampling", final, shape=(requests,), **floats)
    check.tensor("target_probs", target_probs, shape=(requests, nodes, None), **floats)
    vocab = check.number("target_probs.shape[2]", target_probs.shape[2], least=1)
    single = _threshold("threshold_single", threshold_single)
    accumulated = max(_threshold("threshold_acc", threshold_acc), LEAST_THRESHOLD)
    made = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        tree.check_tree_values(retrieve_index, retrieve_next_token, retrieve_next_sibling)
        bad = (candidates < 0) | (candidates >= vocab)
        bad[:, 0] = False  # the root's token is past and not looked up
        check.values("candidates", bad, candidates, f"a token below {vocab}")
        for name, coins in (("uniform_samples", uniform_samples), ("uniform_samples_for_final_sampling", final)):
            check.values(name, ~((coins >= 0) & (coins < 1)), coins, "a coin in [0, 1)")
        check_probabilities("target_probs", target_probs)
    outputs = empty_verdict(candidates, steps)
    if requests:
        inputs = {
            "candidates": candidates,
            "retrieve_index": retrieve_index,
            "retrieve_next_token": retrieve_next_token,
            "retrieve_next_sibling": retrieve_next_sibling,
            "uniform_samples": uniform_samples,
            "uniform_samples_for_final_sampling": final,
            "target_probs": target_probs,
        }
        made.launch(inputs, outputs, single, accumulated)
    return outputs["predicts"], outputs["accept_index"], outputs["accept_token_num"]


def _threshold(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: expected a float, got {type(value).__name__}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a number between 0 and 1, got {value}")
    return float(value)
