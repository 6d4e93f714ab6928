"""Plain references of the padded MoE ops: one assignment after another, in fp64.

Scatter and weight gradient return the fp64 result itself; `close` judges a rounded one against it.
"""

from __future__ import annotations

from typing import Any

import torch

from ..harness.spec import Arguments, first_difference

EPS = 2.0**-23  # of fp32


def route(expert_indices, num_experts, padding):
    """Assignments of expert 0 in order, then of expert 1, and so on."""
    chosen = expert_indices.flatten().tolist()
    lists = [[a for a, e in enumerate(chosen) if e == expert] for expert in range(num_experts)]
    bins, padded_bins, total, padded = [], [], 0, 0
    for assignments in lists:
        total += len(assignments)
        padded += -(-len(assignments) // padding) * padding
        bins.append(total)
        padded_bins.append(padded)
    indices = [a for assignments in lists for a in assignments]
    bin_ids = [e for e, assignments in enumerate(lists) for _ in assignments]
    counts = [len(assignments) for assignments in lists]
    return tuple(torch.tensor(v, dtype=torch.int32) for v in (indices, bin_ids, bins, padded_bins, counts))


def padded_gather(x, indices, bin_ids, weights, bins, padded_bins, top_k, output_rows=None):
    """Every assigned row, its product rounded to fp32 and then to x's dtype; all other rows zero."""
    rows = int(padded_bins[-1]) if output_rows is None else output_rows
    out = torch.zeros(rows, x.shape[1], dtype=x.dtype)
    for assignment, row in _assigned(indices, bin_ids, bins, padded_bins):
        if weights is None:
            out[row] = x[assignment // top_k]
        else:
            product = x[assignment // top_k].double() * weights[assignment].double()
            out[row] = product.float().to(x.dtype)
    return out


def padded_scatter(x, indices, bin_ids, weights, bins, padded_bins, top_k):
    """The fp64 sums."""
    out = torch.zeros(len(indices) // top_k, x.shape[1], dtype=torch.float64)
    for assignment, row in _assigned(indices, bin_ids, bins, padded_bins):
        out[assignment // top_k] += x[row].double() * (1 if weights is None else weights[assignment].double())
    return out


def padded_scatter_wgrad(x, grad, indices, bin_ids, bins, padded_bins, top_k, dtype=None):
    """The fp64 dot products."""
    out = torch.zeros(len(indices), dtype=torch.float64)
    for assignment, row in _assigned(indices, bin_ids, bins, padded_bins):
        out[assignment] = (x[row].double() * grad[assignment // top_k].double()).sum()
    return out


def _assigned(indices, bin_ids, bins, padded_bins):
    """Assignment id and padded row of each sorted position."""
    ends, padded_ends = [0, *bins.tolist()], [0, *padded_bins.tolist()]
    for i, (assignment, expert) in enumerate(zip(indices.tolist(), bin_ids.tolist())):
        yield assignment, i - ends[expert] + padded_ends[expert]


def close(name: str, actual: torch.Tensor, expected: torch.Tensor, arguments: Arguments) -> str | None:
    """Within half an ulp of the output's dtype plus 16 eps(fp32) * sum of |terms| of the fp64 result."""
    return within_rounding(name, actual, expected, _sums(arguments))


# Arguments and sums of |terms| of the case that this process works on, whose forms share them.
_LAST: list[Any] = []


def _sums(arguments: Arguments) -> torch.Tensor:
    """Sums of |terms|; those of the call before, if it had the same tensors and none was written since."""
    given = [(k, v, v._version if isinstance(v, torch.Tensor) else 0) for k, v in arguments.items()]
    known = _LAST[0] if _LAST else []
    if len(known) != len(given) or any(
        a != b or v is not w or n != m for (a, v, n), (b, w, m) in zip(known, given)
    ):
        sizes = {
            k: v.abs() if k in ("x", "grad", "weights") and v is not None else v for k, v in arguments.items()
        }
        terms = (padded_scatter_wgrad if "grad" in arguments else padded_scatter)(**sizes)
        _LAST[:] = [given, terms]
    return _LAST[1]


def within_rounding(name: str, actual: torch.Tensor, expected: torch.Tensor, terms: torch.Tensor) -> str | None:
    """As `close`, with the sums of |terms| given."""
    if not actual.dtype.is_floating_point or actual.dtype == torch.float64:
        return f"{name} has dtype {actual.dtype}, expected a float of 16 or 32 bits"
    distance = (actual.double() - expected).abs()
    good = distance <= half_ulp(expected, actual.dtype) + 16 * EPS * terms
    good |= (actual.double() == expected) | (actual.isnan() & expected.isnan())
    return None if bool(good.all()) else first_difference(name, actual, expected, ~good)


def half_ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the distance between neighbours of `dtype` at |value|."""
    facts = torch.finfo(dtype)
    least = torch.tensor(facts.smallest_normal, dtype=torch.float64)
    _, exponent = torch.frexp(torch.maximum(value.abs().double(), least))
    return torch.ldexp(torch.full_like(value, facts.eps / 2, dtype=torch.float64), exponent - 1)


def route_in_torch(expert_indices, num_experts, padding):
    """The vectorised torch form a user would write on a device; the measured baseline."""
    chosen, order = expert_indices.flatten().sort(stable=True)
    experts = torch.arange(num_experts, device=chosen.device, dtype=chosen.dtype)
    bins = torch.searchsorted(chosen, experts, right=True).int()
    counts = torch.diff(bins, prepend=bins.new_zeros(1))
    padded = ((counts + padding - 1) // padding * padding).cumsum(0)
    return order.int(), chosen.int(), bins, padded.int(), counts


def gather_in_torch(x, indices, bin_ids, weights, bins, padded_bins, top_k, output_rows=None):
    """As route_in_torch."""
    out = x.new_zeros(int(padded_bins[-1]) if output_rows is None else output_rows, x.shape[1])
    values = x[indices.long() // top_k]
    if weights is not None:
        values = (values.float() * weights[indices.long(), None].float()).to(x.dtype)
    out[_rows(bin_ids, bins, padded_bins)] = values
    return out


def scatter_in_torch(x, indices, bin_ids, weights, bins, padded_bins, top_k):
    """As route_in_torch."""
    values = x[_rows(bin_ids, bins, padded_bins)].float()
    if weights is not None:
        values *= weights[indices.long(), None].float()
    out = torch.zeros(len(indices) // top_k, x.shape[1], dtype=torch.float32, device=x.device)
    return out.index_add_(0, indices.long() // top_k, values).to(x.dtype)


def wgrad_in_torch(x, grad, indices, bin_ids, bins, padded_bins, top_k, dtype=None):
    """As route_in_torch."""
    values = x[_rows(bin_ids, bins, padded_bins)].float() * grad[indices.long() // top_k].float()
    out = torch.empty(len(indices), dtype=dtype or x.dtype, device=x.device)
    out[indices.long()] = values.sum(1).to(out.dtype)
    return out


def _rows(bin_ids, bins, padded_bins):
    shift = torch.zeros(len(bins), dtype=torch.int64, device=bins.device)
    shift[1:] = (padded_bins - bins)[:-1].long()
    return torch.arange(len(bin_ids), device=bins.device) + shift[bin_ids.long()]
