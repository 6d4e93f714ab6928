"""Gather and scatter that torch can differentiate: the gradients of each are the other and the weight gradient."""

from __future__ import annotations

import torch

from .padded_gather import padded_gather
from .padded_scatter import padded_scatter
from .padded_scatter_wgrad import padded_scatter_wgrad


class PaddedGather(torch.autograd.Function):
    """`padded_gather`; differentiable in x and weights."""

    @staticmethod
    def forward(ctx, x, indices, bin_ids, weights, bins, padded_bins, top_k, output_rows=None):
        ctx.save_for_backward(x if weights is not None else None, indices, bin_ids, weights, bins, padded_bins)
        ctx.top_k = top_k
        return padded_gather(x, indices, bin_ids, weights, bins, padded_bins, top_k, output_rows)

    @staticmethod
    def backward(ctx, grad):
        x, indices, bin_ids, weights, bins, padded_bins = ctx.saved_tensors
        grad = grad.contiguous()
        to_x = to_weights = None
        if ctx.needs_input_grad[0]:
            to_x = padded_scatter(grad, indices, bin_ids, weights, bins, padded_bins, ctx.top_k)
        if ctx.needs_input_grad[3]:
            to_weights = padded_scatter_wgrad(
                grad, x, indices, bin_ids, bins, padded_bins, ctx.top_k, dtype=weights.dtype
            )
        return to_x, None, None, to_weights, None, None, None, None


class PaddedScatter(torch.autograd.Function):
    """`padded_scatter`; differentiable in x and weights.  Rows of x that no assignment owns get gradient 0."""

    @staticmethod
    def forward(ctx, x, indices, bin_ids, weights, bins, padded_bins, top_k):
        ctx.save_for_backward(x if weights is not None else None, indices, bin_ids, weights, bins, padded_bins)
        ctx.top_k, ctx.rows = top_k, len(x)
        return padded_scatter(x, indices, bin_ids, weights, bins, padded_bins, top_k)

    @staticmethod
    def backward(ctx, grad):
        x, indices, bin_ids, weights, bins, padded_bins = ctx.saved_tensors
        grad = grad.contiguous()
        to_x = to_weights = None
        if ctx.needs_input_grad[0]:
            to_x = padded_gather(grad, indices, bin_ids, weights, bins, padded_bins, ctx.top_k, ctx.rows)
        if ctx.needs_input_grad[3]:
            to_weights = padded_scatter_wgrad(
                x, grad, indices, bin_ids, bins, padded_bins, ctx.top_k, dtype=weights.dtype
            )
        return to_x, None, None, to_weights, None, None, None


def padded_gather_with_grad(
    x: torch.Tensor,
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    weights: torch.Tensor | None,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    top_k: int,
    output_rows: int | None = None,
) -> torch.Tensor:
    """`padded_gather` that torch can differentiate in x and weights."""
    return PaddedGather.apply(x, indices, bin_ids, weights, bins, padded_bins, top_k, output_rows)


def padded_scatter_with_grad(
    x: torch.Tensor,
    indices: torch.Tensor,
    bin_ids: torch.Tensor,
    weights: torch.Tensor | None,
    bins: torch.Tensor,
    padded_bins: torch.Tensor,
    top_k: int,
) -> torch.Tensor:
    """`padded_scatter` that torch can differentiate in x and weights."""
    return PaddedScatter.apply(x, indices, bin_ids, weights, bins, padded_bins, top_k)
