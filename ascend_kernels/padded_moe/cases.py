"""Named cases of the padded MoE ops: the shapes to time, and the edges that break careless kernels.

Rows of a padded input that no assignment owns hold NaN, so that reading one shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..harness.spec import Arguments, Case
from .reference import gather_in_torch, route_in_torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def choices(tokens: int, experts: int, top_k: int, style: str | Sequence[int], generator) -> torch.Tensor:
    """int64 `[tokens, top_k]`: an expert of each assignment.

    style: uniform, zipf, one-hot, empty (only every other expert), or the number of tokens of each expert.
    """
    if not isinstance(style, str):
        chosen = torch.repeat_interleave(torch.arange(experts), torch.tensor(style))
        return chosen[torch.randperm(len(chosen), generator=generator)].view(tokens, top_k)
    weight = torch.ones(experts)
    if style == "zipf":
        weight = 1 / torch.arange(1, experts + 1)
    elif style == "empty":
        weight[1::2] = 0
    elif style == "one-hot":
        weight[: experts // 2] = weight[experts // 2 + 1 :] = 0
    # A token's experts are distinct wherever there are enough with a chance.
    distinct = int((weight > 0).sum()) >= top_k
    if not tokens:
        return torch.zeros(0, top_k, dtype=torch.int64)
    return torch.multinomial(weight.expand(tokens, -1), top_k, replacement=not distinct, generator=generator)


def arguments(
    op: str,
    tokens: int,
    hidden: int,
    experts: int,
    top_k: int,
    style: str | Sequence[int] = "uniform",
    *,
    padding: int = 128,
    dtype: torch.dtype = BF16,
    weights: torch.dtype | None = None,
    metadata: torch.dtype = torch.int32,
    spare: int | None = 0,
) -> Callable[[torch.Generator], Arguments]:
    """Arguments of `op`.  weights: their dtype, None for no weights.  spare: rows of the padded layout beyond the
    last expert's; None leaves output_rows of a gather to be read from the bins."""

    def make(generator: torch.Generator) -> Arguments:
        chosen = choices(tokens, experts, top_k, style, generator)
        if op == "route":
            return {"expert_indices": chosen.to(metadata), "num_experts": experts, "padding": padding}
        indices, bin_ids, bins, padded_bins = (
            v.to(metadata) for v in route_in_torch(chosen, experts, padding)[:4]
        )
        x = torch.randn(tokens, hidden, generator=generator).to(dtype)
        factor = None if weights is None else torch.rand(tokens * top_k, generator=generator).to(weights)
        routing = {
            "indices": indices,
            "bin_ids": bin_ids,
            "bins": bins,
            "padded_bins": padded_bins,
            "top_k": top_k,
        }
        rows = int(padded_bins[-1]) + (spare or 0)
        if op == "gather":
            return {"x": x, "weights": factor, "output_rows": None if spare is None else rows} | routing
        owned = gather_in_torch(torch.ones(tokens, 1), indices, bin_ids, None, bins, padded_bins, top_k, rows)
        padded = torch.randn(rows, hidden, generator=generator).to(dtype)
        padded[owned[:, 0] == 0] = float("nan")
        return ({"x": padded, "weights": factor} if op == "scatter" else {"x": padded, "grad": x}) | routing

    return make


SHAPES = {
    "4x2-e2-k1": (4, 2, 2, 1),
    "1024x1536-e64-k2": (1024, 1536, 64, 2),
    "16384x1024-e8-k4": (16384, 1024, 8, 4),
    "65536x1024-e8-k1": (65536, 1024, 8, 1),
    "4096x4096-e64-k2": (4096, 4096, 64, 2),
    "16384x7168-e64-k8": (16384, 7168, 64, 8),
    "decode-8x7168-e64-k8": (8, 7168, 64, 8),
    "decode-64x7168-e64-k8": (64, 7168, 64, 8),
}
LARGE = 1 << 22  # values of features from which a case of features is one for devices
EDGES = (0, 1, 15, 16, 17, 32)  # tokens of each expert around a padding of 16


def cases(op: str) -> dict[str, Case]:
    """Cases of one op.  Features and weights play no part in those of route."""
    factor = BF16 if op == "scatter" else None

    def case(*shape, quick=False, timed=False, note="", **more) -> Case:
        made = arguments(op, *shape, **{"weights": factor, **more})
        large = op != "route" and shape[0] * shape[1] > LARGE
        return Case(made, quick=quick, timed=timed, note=note, large=large)

    made = {name: case(*shape, timed=True, quick=name == "4x2-e2-k1") for name, shape in SHAPES.items()}
    made |= {
        f"16384x1024-e8-k4-{style}": case(*SHAPES["16384x1024-e8-k4"], style, timed=True)
        for style in ("zipf", "one-hot", "empty")
    }
    made["16384x2-e8-k4"] = case(
        16384, 2, 8, 4, "zipf", timed=True, note="more assignments than a grid may have programs"
    )
    made |= {
        "small": case(24, 48, 4, 2, padding=8, note="tail shorter than a tile"),
        "edges": case(sum(EDGES), 8, 6, 1, EDGES, padding=16, note="none, one, and around the padding"),
        "zipf": case(11, 16, 8, 2, "zipf", padding=16, quick=True),
        "one-hot": case(33, 16, 5, 1, "one-hot", padding=32, note="all tokens on one expert"),
        "empty": case(31, 16, 8, 2, "empty", padding=4, note="every other expert has no token"),
        "one-token": case(1, 7, 3, 1),
        "one-expert": case(5, 16, 1, 1, padding=4),
        "no-tokens": case(0, 16, 4, 2),
        "prime": case(101, 3, 7, 1, padding=16, note="a prime number of assignments"),
        "block-less-1": case(63, 2, 4, 1, padding=32),
        "block-plus-1": case(65, 2, 4, 1, padding=32),
        "top-3": case(21, 16, 6, 3, padding=8),
        "padding-1": case(19, 16, 4, 2, padding=1),
        "padding-3": case(19, 16, 4, 2, padding=3, note="a padding that is no power of two"),
        "int64-metadata": case(9, 48, 4, 2, padding=8, metadata=torch.int64, quick=op in ("route", "gather")),
    }
    if op == "route":
        made["edges-128"] = case(385, 1, 5, 1, (0, 1, 127, 128, 129))
        made["experts-300"] = case(77, 1, 300, 6, padding=16)
        return made
    made |= {
        "16384x1024-e8-k4-fp16": case(*SHAPES["16384x1024-e8-k4"], dtype=FP16, timed=True),
        "hidden-1": case(17, 1, 4, 2, padding=8),
        "hidden-33": case(11, 33, 4, 2, padding=8, quick=True),
        "hidden-1536": case(5, 1536, 4, 2, padding=4),
        "hidden-7168": case(3, 7168, 4, 2, padding=2),
        "hidden-9000": case(3, 9000, 4, 2, padding=2, note="more than the largest tile"),
        "fp16": case(24, 48, 4, 2, padding=8, dtype=FP16),
        "fp32": case(11, 48, 4, 2, padding=8, dtype=FP32),
        "fp32-7168": case(3, 7168, 4, 2, padding=2, dtype=FP32),
        "spare-rows": case(24, 48, 4, 2, padding=8, spare=13, note="more rows than the experts need"),
    }
    if op == "gather":
        made["16384x1024-e8-k4-waits"] = case(
            *SHAPES["16384x1024-e8-k4"], spare=None, timed=True, note="output_rows read from the device"
        )
        made["edges-128"] = case(385, 8, 5, 1, (0, 1, 127, 128, 129))
        made["waits"] = case(24, 48, 4, 2, padding=8, spare=None)
    if op != "wgrad":
        made |= {
            "unweighted": case(24, 48, 4, 2, padding=8, weights=None),
            "weights-bf16": case(13, 48, 4, 2, padding=8, weights=BF16, quick=op == "gather"),
            "weights-fp16": case(24, 48, 4, 2, padding=8, weights=FP16, dtype=FP16),
            "weights-fp32": case(24, 48, 4, 2, padding=8, weights=FP32),
            "weights-fp32-7168": case(3, 7168, 4, 2, padding=2, weights=FP32),
        }
    return made


ROUTE, GATHER, SCATTER, WGRAD = (cases(op) for op in ("route", "gather", "scatter", "wgrad"))


def route_bytes(given: Arguments) -> int:
    """Bytes a route must move: the choices in, five results out."""
    chosen = given["expert_indices"]
    return chosen.numel() * (chosen.element_size() + 2 * 4) + given["num_experts"] * 3 * 4


def gather_bytes(given: Arguments) -> int:
    """Bytes a gather must move: each token's row once, every padded row, the routing."""
    rows = given["output_rows"]
    rows = int(given["padded_bins"][-1]) if rows is None else rows
    row = given["x"].shape[1] * given["x"].element_size()
    return (len(given["x"]) + rows) * row + _routing_bytes(given)


def scatter_bytes(given: Arguments) -> int:
    """Bytes a scatter must move: each assignment's row, each token's sum, the routing."""
    row = given["x"].shape[1] * given["x"].element_size()
    assignments = len(given["indices"])
    return (assignments + assignments // given["top_k"]) * row + _routing_bytes(given)


def wgrad_bytes(given: Arguments) -> int:
    """Bytes a weight gradient must move: each assignment's row, each token's gradient, a value an assignment."""
    assignments, item = len(given["indices"]), given["x"].element_size()
    return (
        (assignments + len(given["grad"])) * given["x"].shape[1] * item
        + assignments * item
        + _routing_bytes(given)
    )


def _routing_bytes(given: Arguments) -> int:
    names = ("indices", "bin_ids", "bins", "padded_bins", "weights")
    return sum(given[n].numel() * given[n].element_size() for n in names if given.get(n) is not None)
