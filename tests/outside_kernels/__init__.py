"""Kernels that are none of ours: written as serving and training code writes them, each with its reference.

`python -m tests.outside_kernels` runs them on every compiler version and writes docs/outside-kernels.md.
"""

from tests.outside_kernels import (
    attention,
    control,
    elementwise,
    indexing,
    launching,
    layout,
    quantise,
    rows,
    sampling,
    scans,
    training,
)
from tests.outside_kernels.case import KERNELS, Launch, Outside, mismatch

GROUPS = (elementwise, rows, attention, sampling, indexing, quantise, layout, scans, training, control, launching)

__all__ = ["GROUPS", "KERNELS", "Launch", "Outside", "mismatch"]
