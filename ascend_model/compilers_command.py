"""`ascend-perf compilers`: which ascendnpu-ir versions can be used here, and how to get another."""

from __future__ import annotations

import argparse
import json
import sys

from . import toolchain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = "examples:\n  ascend-perf compilers\n  ascend-perf compilers add 1.1.0 1.0.0"
    parser.add_argument("action", nargs="?", choices=("list", "add"), default="list")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="with add: versions to fetch with pip")
    parser.add_argument("--wheel", help="with add and one version: unpack this wheel instead of fetching one")
    parser.add_argument("--json", action="store_true")


def run(given: argparse.Namespace) -> int:
    """0 when done, 4 when a version could not be had."""
    try:
        if given.action == "add":
            if not given.versions or (given.wheel and len(given.versions) != 1):
                raise toolchain.ToolchainError("name the version to add, one with --wheel: `compilers add 1.1.0`")
            for version in given.versions:
                toolchain.add_compiler(version, given.wheel)
        installed = toolchain.installed_version()
        rows = [
            {
                "version": v,
                "where": "installed" if v == installed else "cache",
                "path": str(toolchain.compiler_bin(v)),
            }
            for v in toolchain.available_versions()
        ]
    except toolchain.ToolchainError as error:
        print(f"ascend-perf compilers: {error}", file=sys.stderr)
        return 4
    if given.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            print(f"ascendnpu-ir {row['version']:<8} {row['where']}")
        if not rows:
            print("no Ascend compiler here; install the extra `model` or `ascend-perf compilers add 1.2.0`")
    return 0
