"""Padded MoE routing (MegaBlocks): route, gather, scatter and the gradient of the weights."""

from .autograd import PaddedGather, PaddedScatter, padded_gather_with_grad, padded_scatter_with_grad
from .padded_gather import padded_gather
from .padded_scatter import padded_scatter
from .padded_scatter_wgrad import padded_scatter_wgrad
from .route import route

__all__ = [
    "PaddedGather",
    "PaddedScatter",
    "padded_gather",
    "padded_gather_with_grad",
    "padded_scatter",
    "padded_scatter_wgrad",
    "padded_scatter_with_grad",
    "route",
]
