"""Whether two tensors hold the same, and where they first differ."""

from __future__ import annotations

from typing import Any

import torch


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bit patterns as integers of the same size and shape."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def first_difference(
    name: str, actual: torch.Tensor, expected: torch.Tensor, differs: torch.Tensor, word: str = "expected"
) -> str:
    """`pool[3, 17] is 5, expected 9 (12 of 4096 elements differ)`."""
    place = [int(i) for i in differs.nonzero()[0]]
    at = name + (f"[{', '.join(map(str, place))}]" if place else "")
    got, want = actual[tuple(place)].item(), expected[tuple(place)].item()
    count = int(differs.sum())
    plural = "elements differ" if count > 1 else "element differs"
    return f"{at} is {got}, {word} {want} ({count} of {differs.numel()} {plural})"


def beyond(actual: torch.Tensor, expected: torch.Tensor, relative: float, absolute: float) -> torch.Tensor:
    """Where |actual - expected| > absolute + relative * |expected|, in fp64; NaN and inf must agree in place."""
    a, e = actual.double(), expected.double()
    good = e.isfinite() & ((a - e).abs() <= absolute + relative * e.abs())
    return ~(good | (a == e) | (a.isnan() & e.isnan()))


def steps_apart(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """|actual - expected| in steps of the expected dtype at the expected value; inf and NaN stay what they are."""
    kind = torch.finfo(expected.dtype)
    a, e = actual.double(), expected.double()
    exponent = e.abs().clamp(min=kind.tiny).log2().floor()
    return (a - e).abs() / (kind.eps * exponent.exp2())


def difference(
    name: str, actual: Any, expected: Any, relative: float = 0.0, absolute: float = 0.0, word: str = "expected"
) -> str | None:
    """None when two tensors or arrays agree, else a sentence with the first place that differs: bit for bit, or
    `beyond` the tolerances when there are any."""
    a, e = as_tensor(actual), as_tensor(expected)
    if a.shape != e.shape:
        return f"{name} has shape {list(a.shape)}, {word} {list(e.shape)}"
    if a.dtype != e.dtype:
        return f"{name} is {_short(a.dtype)}, {word} {_short(e.dtype)}"
    wrong = beyond(a, e, relative, absolute) if relative or absolute else bits(a) != bits(e)
    if not bool(wrong.any()):
        return None
    said = first_difference(name, a, e, wrong, word)
    if a.dtype.is_floating_point:
        apart = (a.double() - e.double()).abs()[wrong]
        far = apart[apart.isfinite()]
        if far.numel():
            said += f"; at most {float(far.max()):.4g} apart"
    return said


def as_tensor(value: Any) -> torch.Tensor:
    """A tensor of a tensor, array, list or number; arrays share their memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return torch.as_tensor(value)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
