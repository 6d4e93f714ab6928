"""Every op under watch.  Tests, benchmarks, model and pages are made from these rows.

A family keeps its rows in `<family>/ops.py`, one an op; a new family is found by itself.
"""

from __future__ import annotations

import importlib

from . import families
from .harness.spec import Op


def _rows() -> dict[str, Op]:
    found: dict[str, Op] = {}
    for family in families():
        for op in importlib.import_module(f"{__package__}.{family}.ops").ROWS:
            if op.name in found or op.family != family:
                raise ValueError(f"row {op.name} in {family}/ops.py: name taken, or of family {op.family}")
            found[op.name] = op
    return found


OPS: dict[str, Op] = _rows()
