"""Keep the smallest set of largest probabilities whose mass reaches p, and renormalise.

argument  shape          dtype    meaning
probs     [rows, vocab]  float32  probabilities, each row sums to one
top_p     [rows]         float32  mass to reach, above 0 and at most 1

-> [rows, vocab] float32: kept probabilities over their sum, 0 elsewhere.  Probabilities equal to the smallest
   kept one are kept too.  A mass that the row does not reach keeps all.  Masses are summed in fp32.

Source of the algorithm: SGLang / FlashInfer sampling.
Launch: one row a program; see renorm.py for the search.
"""

from __future__ import annotations

import torch

from ..harness import check
from .renorm import IMPLEMENTATIONS, Cut, check_probabilities


def top_p_renorm_prob(
    probs: torch.Tensor, top_p: torch.Tensor, *, impl: str | Cut = "bits", validate: bool = False
) -> torch.Tensor:
    """`probs` with only the fewest largest of row r kept whose sum reaches `top_p[r]`, ties at the cut included,
    renormalised.

    Shapes and dtypes as in the table above.  Raises TypeError or ValueError naming the argument, PlanError for a
    vocabulary above 2**24.  validate=True also checks, waiting for the device, that rows are probabilities that
    sum to one and that 0 < top_p <= 1.
    """
    check.tensor("probs", probs, dtypes=(torch.float32,), shape=(None, None))
    check.tensor("top_p", top_p, dtypes=(torch.float32,), shape=probs.shape[:1], like=probs)
    cut = check.implementation(impl, IMPLEMENTATIONS)
    if validate:
        check_probabilities("probs", probs)
        check.values("top_p", ~((top_p > 0) & (top_p <= 1)), top_p, "above 0 and at most 1")
    out = torch.empty_like(probs)
    if probs.numel():
        cut.launch(probs, top_p, out, mass=True)
    return out
