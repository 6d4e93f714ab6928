"""What the tools share: usage errors, result files, and being stopped in the middle."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn

USAGE, STOPPED = 4, 130


class Unknown(ValueError):
    """A name that there is not."""


class Parser(argparse.ArgumentParser):
    """Ends with the tools' exit code for usage, and shows a tool's documentation as it is written."""

    def __init__(self, **more: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def read(place: Path, tool: str, version: int, *keys: str) -> dict[str, Any]:
    """A result file.  Raises ValueError, with its name, for one that is cut off or of another tool or version."""
    try:
        found = json.loads(place.read_text())
    except ValueError as error:
        raise ValueError(f"{place} is not whole, or no JSON: {error}") from None
    if not isinstance(found, dict) or any(key not in found for key in keys):
        raise ValueError(f"{place} is no result of {tool}")
    if found.get("version", 1) > version:
        raise ValueError(f"{place} is of a later {tool}: version {found['version']}, this one reads {version}")
    return found


def check_writable(place: Path | None) -> None:
    """Raise OSError before the first measurement for a file that cannot be written; its folder is made."""
    if place is None:
        return
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder, and results go into a file")
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    part.write_text("")
    part.unlink()


def names(words: str | None, known: Collection[str], what: str) -> list[str]:
    """The names of a comma-separated list.  Raises Unknown for one that is not known."""
    found = [name for name in (part.strip() for part in (words or "").split(",")) if name]
    if unknown := sorted(set(found) - set(known)):
        raise Unknown(f"no {what} {', '.join(unknown)}")
    return found


def stoppable(tool: str, main: Callable[[], int]) -> int:
    """Run a tool.  Ctrl-C and SIGTERM end it in order, with what runs below it, and the exit code says so."""
    own = os.getpid()

    def stop(number: int, _: Any) -> None:
        if os.getpid() != own:
            os._exit(128 + number)  # a child that was forked: its parent says what there is to say
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough, and the end may take a moment
        raise KeyboardInterrupt

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, stop)
    try:
        return main()
    except KeyboardInterrupt:
        print(f"{tool}: stopped; what was written before is kept", file=sys.stderr)
        return STOPPED
