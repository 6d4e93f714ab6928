"""Every op under watch.  Tests, benchmarks, model and pages are made from these rows.

A family keeps its rows in `<family>/ops.py`, one an op; a new family is found by itself.  In another repository
that `ascend-perf init` set up, its descriptions are rows too, so that `model` and `explain` know them by name.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

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


def _described_here() -> dict[str, Op]:
    """Ops that the benchmarks of the working folder's repository describe."""
    if not Path("asv.conf.json").is_file():
        return {}
    from .harness.describe import described

    try:
        return described(Path("asv.conf.json"))
    except (Exception, SystemExit) as error:
        words = f"{type(error).__name__}: {error}"
        print(
            f"ascend-perf: descriptions of this repository are left out, they cannot be read: {words}",
            file=sys.stderr,
        )
        return {}


_HERE = _described_here()
OPS: dict[str, Op] = {**_HERE, **{name: op for name, op in _rows().items() if name not in _HERE}}
