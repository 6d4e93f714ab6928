"""What the ops' implementations share: which one a device gets, and how integers are moved bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..harness import check, device
from ..harness.spec import Unsupported


def chosen(impl: Any, known: Mapping[str, Any], tensor: torch.Tensor, *, tiles: bool = True) -> Any:
    """The implementation asked for.  Without one: "tile" on Ascend, where lanes cannot follow pointers of
    their own, if the arguments allow `tiles`; else "lane"."""
    if impl is None:
        impl = "tile" if tiles and device.of(tensor).ascend else "lane"
    return check.implementation(impl, known)


def words(tensor: torch.Tensor) -> torch.Tensor:
    """Integers of 4 or 8 bytes as 32-bit words, which a tile moves without regard to their value."""
    return tensor if tensor.dtype == torch.int32 else tensor.view(torch.int32)


def word_count(*tensors: torch.Tensor) -> int:
    """32-bit words of one element of all the tensors; 0 when they differ or have no whole words."""
    sizes = {t.element_size() for t in tensors}
    return sizes.pop() // 4 if len(sizes) == 1 else 0


def ascend_only(where: device.Device, instead: str) -> None:
    """Raise Unsupported on a GPU, naming the implementation to use there."""
    if not where.ascend:
        raise Unsupported(f"impl='tile' is for Ascend; on a GPU use impl={instead!r}, its default")
