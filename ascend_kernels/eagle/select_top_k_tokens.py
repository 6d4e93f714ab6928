"""One step of the draft tree: the best topk of the topk * topk candidates of each request.

argument       shape                      dtype            meaning
step           int                        -                0 for the first draft step
topk_p         [bs, k]; later [bs, k, k]  float32          probabilities of the draft model's best tokens
topk_index     [bs, k]; later [bs, k*k]   int32/int64      those tokens
hidden_states  [bs, H]; later [bs*k, H]   any float        hidden states the step came from; 0 rows: none kept
scores         None; later [bs, k]        float32          path probabilities of the k branches
topk           int                        -                k, 1..16

-> input_ids [bs*k], hidden_states [bs*k, H], scores [bs, k],
   (tree_scores [bs, 1, k]; later [bs, k, k], tree_index [bs, k]; later [bs, k*k],
    tree_parents [bs, k+1]; later [bs, k], int64)
Leading dimensions of topk_p and topk_index may be merged ([bs*k, k]).  Equal scores: the lowest flat index
first.  Where a result is an argument in another shape it is a view of it.

Source of the algorithm: SGLang, speculative decoding (EAGLE v2).
Launch: one.  "tile" compares several requests at once, k rounds of maximum and lowest place, all in vectors, and
then copies hidden rows; "lane" has one program an output row, which finds its own candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ..harness import check, device
from ..harness.launch import launch
from . import implementation, plan

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
Tree = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@triton.jit
def first_kernel(
    hidden_states, hidden_out, tree_parents, requests, width,
    K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    for request in range(tl.program_id(0), requests, PROGRAMS):
        lane = tl.arange(0, SIDE)
        parents = (lane - 1).to(tree_parents.dtype.element_ty)
        tl.store(tree_parents + request * (K + 1) + lane, parents, mask=lane < K + 1)
        source = hidden_states + tl.cast(request, tl.int64) * width
        target = hidden_out + tl.cast(request, tl.int64) * K * width
        for i in range(0, tl.cdiv(width, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            piece = tl.load(source + offset, mask=offset < width)
            for branch in range(0, K):
                tl.store(target + branch * width + offset, piece, mask=offset < width)


@triton.jit
def tile_kernel(
    topk_p, topk_index, hidden_states, scores, input_ids, hidden_out, scores_out, tree_scores, tree_parents,
    requests, width, shift,
    K: tl.constexpr, SIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    side = tl.arange(0, SIDE)
    # Place of each lane among the k*k candidates, -1 for padding.  In one dimension: masks of short rows are
    # padded to 32 bytes a row.
    lane = tl.arange(0, SIDE * SIDE).to(tl.float32)
    branch = tl.floor(lane * (1.0 / SIDE))
    child = lane - branch * SIDE
    order = tl.where(branch < K, tl.where(child < K, branch * K + child, -1.0), -1.0)[None, :]
    flat = row[:, None] * K + side[None, :]
    grid = row[:, None, None] * (K * K) + side[None, :, None] * K + side[None, None, :]
    for group in range(tl.program_id(0), tl.cdiv(requests, ROWS), PROGRAMS):
        first = group * ROWS
        count = tl.minimum(requests - first, ROWS)
        keep = (row[:, None] < count) & (side[None, :] < K)
        inside = (row[:, None, None] < count) & (side[None, :, None] < K) & (side[None, None, :] < K)
        score = tl.load(scores + first * K + flat, mask=keep, other=0.0)
        p = tl.load(topk_p + first * (K * K) + grid, mask=inside, other=0.0)
        token = tl.load(topk_index + first * (K * K) + grid, mask=inside, other=0).to(tl.int32)
        expanded = score[:, :, None] * p
        tl.store(tree_scores + first * (K * K) + grid, expanded, mask=inside)
        left = tl.where(order >= 0.0, tl.reshape(expanded, [ROWS, SIDE * SIDE]), float("-inf"))
        token = tl.reshape(token, [ROWS, SIDE * SIDE])
        best = tl.zeros([ROWS, SIDE], tl.float32)
        chosen = tl.zeros([ROWS, SIDE], tl.float32)
        ids = tl.zeros([ROWS, SIDE], tl.int32)
        for j in tl.static_range(K):
            top = tl.max(left, 1)
            # Lowest place among equals; spent and padding lanes are -inf and never equal a finite top.
            place = tl.min(tl.where(left == top[:, None], order, 65536.0), 1)
            hit = order == place[:, None]
            name = tl.sum(tl.where(hit, token, 0), 1)
            left = tl.where(hit, float("-inf"), left)
            here = tl.where(side.to(tl.float32) == j, 1.0, 0.0)[None, :]
            best += top[:, None] * here
            chosen += place[:, None] * here
            ids += name[:, None] * here.to(tl.int32)
        tl.store(scores_out + first * K + flat, best, mask=keep)
        tl.store(input_ids + first * K + flat, ids.to(input_ids.dtype.element_ty), mask=keep)
        parents = (chosen.to(tl.int32) + shift).to(tree_parents.dtype.element_ty)
        tl.store(tree_parents + first * K + flat, parents, mask=keep)
        origin = tl.floor(chosen * (1.0 / K) + 0.5 / K)
        for r in range(0, count * K):
            # One scalar a hidden row: the row it comes from.
            source = tl.sum(tl.where(flat.to(tl.float32) == r, origin, 0.0)).to(tl.int32)
            source = tl.cast(first + r // K, tl.int64) * K + source
            target = tl.cast(first, tl.int64) * K + r
            for i in range(0, tl.cdiv(width, BLOCK)):
                offset = i * BLOCK + tl.arange(0, BLOCK)
                piece = tl.load(hidden_states + source * width + offset, mask=offset < width)
                tl.store(hidden_out + target * width + offset, piece, mask=offset < width)


@triton.jit
def lane_kernel(
    topk_p, topk_index, hidden_states, scores, input_ids, hidden_out, scores_out, tree_scores, tree_parents,
    requests, width, shift,
    K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, SIDE * SIDE)
    child = tl.arange(0, SIDE)
    # Clamped too: masked lanes of a scattered load may touch memory on Ascend.
    inside = tl.minimum(lane, K * K - 1)
    for r in range(tl.program_id(0), requests * K, PROGRAMS):
        request = r // K
        j = r - request * K
        score = tl.load(scores + request * K + inside // K)
        p = tl.load(topk_p + request * (K * K) + inside)
        expanded = tl.where(lane < K * K, score * p, float("-inf"))
        own = tl.load(topk_p + r * K + child, mask=child < K, other=0.0) * tl.load(scores + r)
        tl.store(tree_scores + r * K + child, own, mask=child < K)
        top = 0.0
        place = 0
        for _ in range(0, j + 1):
            top = tl.max(expanded, 0)
            place = tl.min(tl.where(expanded == top, lane, SIDE * SIDE), 0)
            expanded = tl.where(lane == place, float("-inf"), expanded)
        tl.store(scores_out + r, top)
        tl.store(input_ids + r, tl.load(topk_index + request * (K * K) + place))
        tl.store(tree_parents + r, (place + shift).to(tree_parents.dtype.element_ty))
        source = hidden_states + (request * K + place // K).to(tl.int64) * width
        target = hidden_out + tl.cast(r, tl.int64) * width
        for i in range(0, tl.cdiv(width, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            piece = tl.load(source + offset, mask=offset < width)
            tl.store(target + offset, piece, mask=offset < width)


@dataclass(frozen=True)
class Selection:
    """One implementation of the later steps.  rows: whether its kernel takes several requests at once; group: how
    many, if that is part of the implementation."""

    kernel: Any
    rows: bool
    group: int | None = None

    def launch(
        self, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor], shift: int, k: int
    ) -> None:
        """Launch on checked arguments; both dicts in the order of the kernels' signature."""
        where = device.of(inputs["topk_p"])
        if self.rows:  # Triton 3.6 mixes up its rows on an H200
            implementation.ascend_only(where, "lane")
        hidden = inputs["hidden_states"]
        requests, width = inputs["scores"].shape[0], hidden.shape[1] if hidden.shape[0] else 0
        made = plan.choose(requests, k, where, self.group)
        programs = made.programs if self.rows else plan.programs(requests * k, where)
        block = plan.hidden_block(max(width, 1), hidden.element_size())
        rows = {"ROWS": made.rows} if self.rows else {}
        launch(
            self.kernel,
            (programs,),
            {**inputs, **outputs, "requests": requests, "width": width, "shift": shift},
            {"K": k, "SIDE": made.tile, **rows, "BLOCK": block, "PROGRAMS": programs},
        )


IMPLEMENTATIONS = {"tile": Selection(tile_kernel, rows=True), "lane": Selection(lane_kernel, rows=False)}


def select_top_k_tokens(
    step: int,
    topk_p: torch.Tensor,
    topk_index: torch.Tensor,
    hidden_states: torch.Tensor,
    scores: torch.Tensor | None,
    topk: int,
    *,
    impl: str | Selection | None = None,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tree]:
    """`(input_ids, hidden_states, scores, (tree_scores, tree_index, tree_parents))` of one draft step.

    Shapes and dtypes as in the table above.  impl: by default what suits the device.  Raises TypeError or
    ValueError naming the argument, PlanError for a topk above 16.  validate=True also checks, waiting for the
    device, that probabilities and scores lie in [0, 1] and that tokens fit 31 bits.
    """
    step = check.number("step", step)
    k = check.number("topk", topk, least=1)
    p = check.tensor("topk_p", topk_p, dtypes=(torch.float32,))
    index = check.tensor("topk_index", topk_index, dtypes=check.INTEGERS, like=p)
    hidden = check.tensor("hidden_states", hidden_states, dtypes=FLOATS, shape=(None, None), like=p)
    each = k if step == 0 else k * k
    requests = p.numel() // each
    merged = [requests, k] if step == 0 else [requests, k, k]
    if p.numel() != requests * each or p.dim() < 2 or p.shape[-1] not in (k, each):
        raise ValueError(f"topk_p: expected shape {merged} with {k} probabilities a branch, got {list(p.shape)}")
    if index.numel() != p.numel():
        raise ValueError(f"topk_index: expected {p.numel()} tokens, one a probability, got {list(index.shape)}")
    kept = requests if step == 0 else requests * k
    if hidden.shape[0] not in (0, kept):
        raise ValueError(f"hidden_states: expected {kept} rows, or none, got {list(hidden.shape)}")
    if step:
        check.tensor("scores", scores, dtypes=(torch.float32,), shape=(requests, k), like=p)
    elif scores is not None:
        raise TypeError("scores: expected None at step 0, where topk_p gives the scores")
    made = implementation.chosen(impl, IMPLEMENTATIONS, p)
    if validate:
        for name, values in (("topk_p", p), ("scores", scores)):
            if values is not None:
                check.values(name, ~((values >= 0) & (values <= 1)), values, "a probability between 0 and 1")
        check.values("topk_index", (index < 0) | (index.long() >= 2**31), index, "a token number below 2**31")
    if list(p.shape) != merged:
        p = p.view(merged)
    if index.shape != (requests, each):
        index = index.view(requests, each)
    if step == 0:
        return _first(p, index, hidden, k)
    ids = torch.empty(requests * k, dtype=index.dtype, device=p.device)
    outputs = {
        "input_ids": ids,
        "hidden_out": torch.empty_like(hidden),
        "scores_out": torch.empty_like(scores),
        "tree_scores": torch.empty_like(p),
        "tree_parents": torch.empty(requests, k, dtype=torch.int64, device=p.device),
    }
    if requests:
        inputs = {"topk_p": p, "topk_index": index, "hidden_states": hidden, "scores": scores}
        made.launch(inputs, outputs, k * k * (step - 1) + k, k)
    tree = (outputs["tree_scores"], index, outputs["tree_parents"])
    return ids, outputs["hidden_out"], outputs["scores_out"], tree


def _first(p: torch.Tensor, index: torch.Tensor, hidden: torch.Tensor, k: int):
    requests = p.shape[0]
    rows, width = hidden.shape
    repeated = torch.empty(rows * k, width, dtype=hidden.dtype, device=hidden.device)
    parents = torch.empty(requests, k + 1, dtype=torch.int64, device=p.device)
    where = device.of(p)
    plan.choose(max(requests, 1), k, where)
    programs = plan.programs(requests, where)
    if not rows:
        width = 0
    if requests:
        launch(
            first_kernel,
            (programs,),
            {
                "hidden_states": hidden,
                "hidden_out": repeated,
                "tree_parents": parents,
                "requests": requests,
                "width": width,
            },
            {
                "K": k,
                "SIDE": plan.power_of_two(k + 1),
                "BLOCK": plan.hidden_block(max(width, 1), hidden.element_size()),
                "PROGRAMS": programs,
            },
        )
    return index.view(-1), repeated, p, (p.view(requests, 1, k), index, parents)
