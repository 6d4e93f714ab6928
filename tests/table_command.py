"""What the commands that write tables into docs ask for: names, compiler versions, or JSON."""

import argparse
import sys
from collections.abc import Collection

from ascend_model import toolchain


def asked(
    parser: argparse.ArgumentParser, known: Collection[str], what: str, written: str, arguments: list[str] | None
) -> tuple[argparse.Namespace, list[str], list[str]] | int:
    """Options, names and compiler versions; an exit code where there is nothing to do.

    known: names that can be asked for, each a `what`; written: what --json prints instead of a page.
    """
    parser.add_argument("names", nargs="*", metavar=what.upper(), help="names; default all")
    parser.add_argument("--compiler", help="ascendnpu-ir versions, comma-separated; default all that are here")
    parser.add_argument("--json", action="store_true", help=f"print {written}, write no page")
    try:
        given = parser.parse_args(arguments)
    except SystemExit as leaving:
        return 4 if leaving.code else 0
    here = toolchain.available_versions()
    compilers = given.compiler.split(",") if given.compiler else here
    for word, others, kind in (
        *((name, known, what) for name in given.names), *((v, here, "compiler") for v in compilers),
    ):  # fmt: skip
        if word not in others:
            print(f"no {kind} {word!r}; there are {', '.join(others)}", file=sys.stderr)
            return 4
    return given, given.names or list(known), compilers
