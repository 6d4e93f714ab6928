"""Triton's interpreter on hosts without an NPU or GPU: switched on by itself, and mended where it is known wrong.

It shows the logic of a kernel on CPU tensors.  It says nothing about hardware.
"""

from __future__ import annotations

import os
import sys

from . import device

NAME = "TRITON_INTERPRET"


def on() -> bool:
    """Whether kernels defined in this process run in the interpreter."""
    return os.environ.get(NAME, "0").lower() in ("1", "true", "on", "yes")


def enable_on_cpu() -> None:
    """Switch the interpreter on where there is no device, unless `TRITON_INTERPRET` already says otherwise.

    Works only before triton is imported, since its own functions bind to one mode at import.
    """
    if NAME not in os.environ and device.kind() == "cpu" and "triton" not in sys.modules:
        os.environ[NAME] = "1"
    if on():
        mend()


def mend() -> None:
    """fp32 -> bf16 rounds to nearest even (stock: truncates); a bf16 dot uses the values (stock: raw bits);
    `tl.gather` works (triton-ascend's interpreter has none)."""
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

    if not hasattr(builder, "create_gather"):

        def gathered(self, source, index, axis):
            values = np.take_along_axis(source.data, index.data.astype(np.int64), axis)
            return interpreter.TensorHandle(values, source.dtype.scalar)

        builder.create_gather = gathered
