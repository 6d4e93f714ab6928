"""Argument checks shared by the wrappers.  Each error says which argument, what it got, what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch

Implementation = TypeVar("Implementation")

INTEGERS = (torch.int32, torch.int64)
ANY_INTEGER = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def tensor(
    name: str,
    value: object,
    *,
    dtypes: Sequence[torch.dtype] = (),
    shape: Sequence[int | None] | None = None,
    contiguous: bool = True,
    like: torch.Tensor | None = None,
) -> torch.Tensor:
    """`value` as a tensor of one of `dtypes`, with `shape` (None: any length), on the device of `like`.

    Raises TypeError for a wrong type or dtype, ValueError for shape, device or layout.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    if dtypes and value.dtype not in dtypes:
        raise TypeError(f"{name}: expected dtype {_names(dtypes)}, got {str(value.dtype).removeprefix('torch.')}")
    if shape is not None and value.shape != shape and not _fits(value, shape):
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        raise ValueError(f"{name}: expected shape [{wanted}], got {list(value.shape)}")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name}: expected a tensor on {like.device}, got one on {value.device}")
    if contiguous and not value.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {list(value.stride())}")
    return value


def number(name: str, value: object, *, least: int = 0, most: int | None = None) -> int:
    """`value` as an int between `least` and `most`; TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
    if value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"between {least} and {most}"
        raise ValueError(f"{name}: expected {bound}, got {value}")
    return value


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """`value` as one of the names in `allowed`; ValueError otherwise."""
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
    return str(value)


def implementation(impl: object, known: Mapping[str, Implementation]) -> Implementation:
    """The implementation named `impl`; one that is already an implementation (a twin's) passes through."""
    if not isinstance(impl, str):
        return impl  # type: ignore[return-value]
    if impl not in known:
        choice("impl", impl, tuple(known))
    return known[impl]


def values(name: str, bad: torch.Tensor, values: torch.Tensor, wanted: str) -> None:
    """Raise ValueError naming the first place where `bad` holds.  Reads the device: only with validate=True."""
    if bool(bad.any()):
        place = [int(i) for i in bad.nonzero()[0]]
        at = f"{name}[{', '.join(map(str, place))}]"
        raise ValueError(f"{at}: expected {wanted}, got {values[tuple(place)].item()}")


def _fits(value: torch.Tensor, shape: Sequence[int | None]) -> bool:
    if value.dim() != len(shape):
        return False
    if shape.count(None) < len(shape):
        for given, wanted in zip(value.shape, shape):
            if wanted is not None and wanted != given:
                return False
    return True


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(str(d).removeprefix("torch.") for d in dtypes)
