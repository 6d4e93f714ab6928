"""Modelled rows kept on disk: the same sources, compiler and case give the same verdict and numbers."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from . import sources
from .spec import OK, UNSUPPORTED, WRONG_RESULT, Op

STATES = (OK, WRONG_RESULT, UNSUPPORTED)
"""What only depends on the key; a crash or a compiler that took too long may not happen again."""


def base(op: Op, target: str) -> str:
    """What all rows of an op depend on: its sources, the instrument's, and the versions of what they use."""
    import importlib.metadata

    from ascend_model import toolchain

    versions = [platform.python_version(), toolchain.default_version(), toolchain.triton_ascend_version()]
    versions += [importlib.metadata.version(name) for name in ("torch", "numpy")]
    return json.dumps([op.name, sources.digest(op), target, *versions])


def key(base: str, case: str, impl: str) -> str:
    return hashlib.sha256(json.dumps([base, case, impl]).encode()).hexdigest()


def read(key: str) -> dict[str, Any] | None:
    """The entry of a row, or None: unknown, damaged, or everything is to be computed anew."""
    if os.environ.get("ASCEND_PERF_FRESH", "") not in ("", "0"):
        return None
    try:
        entry = json.loads(_place(key).read_text())
        known = isinstance(entry["codes"], list) and entry["state"] in STATES and isinstance(entry["reason"], str)
        return entry if known else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(key: str, entry: dict[str, Any]) -> None:
    if entry["state"] not in STATES or "codes" not in entry:
        return
    from ascend_model import toolchain

    toolchain.keep(_place(key), json.dumps(entry).encode())


def _place(key: str) -> Path:
    from ascend_model import toolchain

    return toolchain.cache_dir() / "rows" / key[:2] / f"{key}.json"
