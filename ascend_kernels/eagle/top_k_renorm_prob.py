"""Keep the k largest probabilities of each row and renormalise.

argument  shape          dtype        meaning
probs     [rows, vocab]  float32      probabilities, each row sums to one
top_k     [rows]         int32/int64  tokens to keep, at least 1; vocab and more keep all

-> [rows, vocab] float32: kept probabilities over their sum, 0 elsewhere.  Probabilities equal to the smallest
   kept one are kept too, so a row may keep more than k.

Source of the algorithm: SGLang / FlashInfer sampling.
Launch: one row a program; see renorm.py for the search.
"""

from __future__ import annotations

import torch

from ..harness import check
from .renorm import IMPLEMENTATIONS, Cut, check_probabilities


def top_k_renorm_prob(
    probs: torch.Tensor, top_k: torch.Tensor, *, impl: str | Cut = "bits", validate: bool = False
) -> torch.Tensor:
    """`probs` with only the `top_k[r]` largest of row r kept, ties at the cut included, renormalised.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument, PlanError for a
    vocabulary above 2**24.  validate=True also checks, waiting for the device, that rows are probabilities that
    sum to one and that top_k is at least 1.
    """
    check.tensor("probs", probs, dtypes=(torch.float32,), shape=(None, None))
    check.tensor("top_k", top_k, dtypes=check.INTEGERS, shape=probs.shape[:1], like=probs)
    cut = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        check_probabilities("probs", probs)
        check.values("top_k", top_k < 1, top_k, "at least 1")
    out = torch.empty_like(probs)
    if probs.numel():
        cut.launch(probs, top_k, out, mass=False)
    return out
