"""The one table of constants of the time model, read from `costs.toml`."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIMULATOR = "1"
"""Raised by hand when the simulator itself gives other numbers from the same constants."""


@dataclass(frozen=True)
class Constant:
    """One number: `key` is its path in costs.toml, `source` is empty when it is a guess."""

    key: str
    value: float
    unit: str
    source: str

    @property
    def guess(self) -> bool:
        return not self.source


@dataclass(frozen=True)
class Costs:
    """All constants by key, such as `dma.load_rate` or `vector.ops.vadd.head`."""

    constants: tuple[Constant, ...]

    @property
    def version(self) -> str:
        """What a series of modelled numbers depends on beside the compiled code."""
        text = "\n".join(f"{c.key}={c.value!r}" for c in self.constants)
        return f"{SIMULATOR}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def table(self) -> dict[str, float]:
        return {c.key: c.value for c in self.constants}

    def scaled(self, key: str, factor: float) -> Costs:
        """The same table with one constant multiplied, to see what depends on it."""
        if key not in self.table():
            raise KeyError(f"no constant {key!r}; known: {', '.join(sorted(self.table()))}")
        return self.holding(key, self.table()[key] * factor)

    def holding(self, key: str, value: float) -> Costs:
        """The same table with this value of one constant."""
        return Costs(tuple(replace(c, value=value) if c.key == key else c for c in self.constants))


def read_costs(path: Path) -> Costs:
    """Read a table of constants; every one needs a unit, and a source or `guess = true`."""
    found: list[Constant] = []

    def visit(prefix: str, entry: dict[str, Any]) -> None:
        if "unit" not in entry:
            for key, value in entry.items():
                if not isinstance(value, dict):
                    raise ValueError(f"{path.name}: {prefix}{key} must be a table with value, unit and source")
                visit(f"{prefix}{key}.", value)
            return
        name, source = prefix[:-1], str(entry.get("source", ""))
        if bool(source) == bool(entry.get("guess", False)):
            raise ValueError(f"{path.name}: {name} needs either a source or guess = true")
        for key, value in entry.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                full = name if key == "value" else f"{name}.{key}"
                found.append(Constant(full, value, str(entry["unit"]), source))

    with path.open("rb") as file:
        visit("", tomllib.load(file))
    return Costs(tuple(sorted(found, key=lambda c: c.key)))


@lru_cache(maxsize=1)
def load_costs() -> Costs:
    """The constants shipped with the model."""
    return read_costs(Path(__file__).with_name("costs.toml"))
