"""Triton's interpreter on hosts without an NPU or GPU: switched on by itself, and mended where it is known wrong.

It shows the logic of a kernel on CPU tensors.  It says nothing about hardware.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import device

NAME = "TRITON_INTERPRET"


def on() -> bool:
    """Whether kernels defined in this process run in the interpreter."""
    return os.environ.get(NAME, "0").lower() in ("1", "true", "on", "yes")


def enable_on_cpu() -> None:
    """Switch the interpreter on where there is no device, unless `TRITON_INTERPRET` already says otherwise.

    Works only before triton is imported, since its own functions bind to one mode at import.
    """
    if NAME not in os.environ and device.interpreted() and "triton" not in sys.modules:
        os.environ[NAME] = "1"


def mend() -> None:
    """fp32 -> bf16 rounds to nearest even (stock: truncates); a bf16 dot uses the values (stock: raw bits);
    integer sums keep their type (stock: numpy widens them, and a store then writes past the tensor);
    triton-ascend's insert_slice, extract_slice and gather run (stock: they do not)."""
    import numpy as np
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    if getattr(interpreter, "_mended", False):
        return
    interpreter._mended = True
    convert = interpreter._convert_float

    def rounded(values, source, result, mode):
        if getattr(source, "scalar", source) == tl.float32 and getattr(result, "scalar", result) == tl.bfloat16:
            exact = torch.from_numpy(np.array(values, dtype=np.float32, copy=True))
            return exact.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return convert(values, source, result, mode)

    interpreter._convert_float = rounded
    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot

    def widened(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        values = (handle.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(values, tl.float32)

    def dot_of_values(self, a, b, *rest):
        return dot(self, widened(a), widened(b), *rest)

    builder.create_dot = dot_of_values
    for reduction in (interpreter.ReduceOps, interpreter.ScanOps):
        reduction.to_tensor = _keeping_type(interpreter, reduction.to_tensor)
    if not hasattr(builder, "create_gather"):

        def gathered(self, source, index, axis):
            values = np.take_along_axis(source.data, index.data.astype(np.int64), axis)
            return interpreter.TensorHandle(values, source.dtype.scalar)

        builder.create_gather = gathered
    _watch_accesses(interpreter, builder)
    if hasattr(tl, "insert_slice"):
        tl.insert_slice, tl.extract_slice = _insert_slice, _extract_slice


def _keeping_type(interpreter: Any, to_tensor: Callable[..., Any]) -> Callable[..., Any]:
    def kept(self, values, dtype):
        if getattr(values, "shape", ()):
            values = values.astype(interpreter._get_np_dtype(dtype), copy=False)
        return to_tensor(self, values, dtype)

    return kept


class OutOfBounds(IndexError):
    """A kernel touched memory of no tensor that was handed to it."""


_WATCH: list[Callable[[], Iterable[tuple[int, int]]]] = []
_HANDED: list[list[tuple[int, int]]] = []


@contextlib.contextmanager
def handed(arguments: Iterable[Any]) -> Iterator[None]:
    """The tensors of one launch: where accesses are watched, only their memory may be touched."""
    spans = []
    if _WATCH:
        known = list(_WATCH[-1]())
        for tensor in arguments:
            if not hasattr(tensor, "untyped_storage") or tensor.device.type != "cpu":
                continue
            storage = tensor.untyped_storage()
            begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
            # An allocation with red zones ends before them.
            inside = [span for span in known if begin <= span[0] and span[1] <= end]
            spans += inside or [(begin, end)]
    _HANDED.append(spans)
    try:
        yield
    finally:
        _HANDED.pop()


@contextlib.contextmanager
def watched(ranges: Callable[[], Iterable[tuple[int, int]]]) -> Iterator[None]:
    """Inside the block every interpreted access must lie in a tensor handed to the launch, and lanes that a mask
    leaves out without `other=` are loaded as poison, as nothing defines them.

    ranges: addresses `[begin, end)` of the allocations that lie between red zones; of these only the part
    between the zones counts.

    Raises OutOfBounds, through triton's InterpreterError, with the program and the place.
    """
    if on():
        mend()
    _WATCH.append(ranges)
    try:
        yield
    finally:
        _WATCH.pop()


def _check(what: str, pointers: Any, mask: Any, size: int, program: Any) -> None:
    import numpy as np

    addresses = np.asarray(pointers).astype(np.int64).ravel()
    wanted = np.broadcast_to(np.asarray(mask, dtype=bool), np.shape(pointers)).ravel()
    addresses = addresses[wanted]
    inside = np.zeros(addresses.shape, dtype=bool)
    nearest = None
    for begin, end in _HANDED[-1] if _HANDED else _WATCH[-1]():
        inside |= (addresses >= begin) & (addresses + size <= end)
        if len(addresses) and (nearest is None or abs(addresses[0] - begin) < abs(addresses[0] - nearest)):
            nearest = begin
    if not inside.all():
        at = int(addresses[~inside][0])
        where = (
            "" if nearest is None else f", {(at - nearest) // size} elements from the start of the nearest tensor"
        )
        raise OutOfBounds(f"out of bounds {what} in program {tuple(program)}{where}")


def _watch_accesses(interpreter: Any, builder: Any) -> None:
    import numpy as np

    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def item(pointers: Any) -> int:
        return max(1, pointers.get_element_ty().primitive_bitwidth // 8)

    def checked_load(self, ptrs, mask, other, *rest):
        if not _WATCH:
            return load(self, ptrs, mask, other, *rest)
        _check("read", ptrs.data, mask.data, item(ptrs), self.grid_idx)
        result = load(self, ptrs, mask, other, *rest)
        if other is None and not np.all(mask.data):
            unset = np.full(1, 0xFF if ptrs.get_element_ty().is_floating() else 0xA5, np.uint8)
            poison = np.repeat(unset, result.data.dtype.itemsize).view(result.data.dtype)
            result = interpreter.TensorHandle(np.where(mask.data, result.data, poison), result.dtype)
        return result

    def checked_store(self, ptrs, value, mask, *rest):
        if _WATCH:
            _check("write", ptrs.data, mask.data, item(ptrs), self.grid_idx)
        return store(self, ptrs, value, mask, *rest)

    def checked_rmw(self, op, ptr, value, mask, *rest):
        if _WATCH:
            _check("atomic access", ptr.data, mask.data, item(ptr), self.grid_idx)
        return rmw(self, op, ptr, value, mask, *rest)

    def checked_cas(self, ptr, *rest):
        if _WATCH:
            _check("atomic access", ptr.data, True, item(ptr), self.grid_idx)
        return cas(self, ptr, *rest)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = checked_rmw, checked_cas


def _insert_slice(full, part, offsets, sizes, strides):
    values = full.handle.data.copy()
    values[_slices(offsets, sizes, strides)] = part.handle.data
    return _like(full, values)


def _extract_slice(full, offsets, sizes, strides):
    return _like(full, full.handle.data[_slices(offsets, sizes, strides)].copy())


def _like(tensor, values):
    import triton.language as tl
    from triton.runtime import interpreter

    scalar = tensor.type.scalar
    return tl.tensor(interpreter.TensorHandle(values, scalar), tl.block_type(scalar, list(values.shape)))


def _slices(offsets, sizes, strides):
    starts = [int(o if isinstance(o, int) else o.handle.data.item()) for o in offsets]
    return tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(starts, sizes, strides))
