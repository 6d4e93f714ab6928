"""The configuration that asv, and everything around it, reads: `asv.conf.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """A configuration that cannot be read; the message names it and says why."""


def settings_of(config: str | Path) -> dict[str, Any]:
    """What a configuration file says, comments left out.  Raises ConfigError."""
    from asv.util import UserError, load_json

    try:
        settings = load_json(str(config), js_comments=True)
    except (UserError, OSError, ValueError) as error:
        raise ConfigError(f"{config} cannot be read: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{config} is no asv configuration: expected an object, as `ascend-perf init` writes")
    return settings
