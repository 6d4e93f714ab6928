"""The EAGLE kernels with one source pattern changed each: what a careless edit would do."""

from __future__ import annotations

ACCEPTED: dict = {}
SELECT: dict = {}
TOP_K: dict = {}
SAMPLING: dict = {}
