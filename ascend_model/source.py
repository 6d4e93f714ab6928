"""Words of the user's kernel for a place that compiled code points to.  They are quoted, never executed."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache

Lines = Callable[[str, int], str]
"""(file, line) -> the text of that line, "" when it is not known."""

LONGEST = 160
"""Characters of a line that are quoted."""


_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|\\)")


def unescaped(name: str) -> str:
    """A file's name out of MLIR text, which writes bytes that are no printable ASCII as two hexadecimal digits."""
    if "\\" not in name:
        return name
    found = _ESCAPE.sub(
        lambda match: b"\\" if match[1] == b"\\" else bytes([int(match[1], 16)]), os.fsencode(name)
    )
    return os.fsdecode(found)


def escaped(name: str) -> str:
    """A file's name as MLIR text writes it."""
    return "".join(
        "\\\\" if byte == 0x5C else chr(byte) if 0x20 <= byte < 0x7F and byte != 0x22 else f"\\{byte:02X}"
        for byte in os.fsencode(name)
    )


def line_of(file: str, line: int) -> str:
    """A line of a Python file, as locations name it: absolute, or relative to an entry of the import path."""
    lines = _read(file, tuple(sys.path))
    return lines[line - 1].rstrip() if 0 < line <= len(lines) else ""


def in_library(file: str) -> bool:
    """Whether a file is of triton's own library, whose lines say nothing about a kernel."""
    return "triton/language/" in file.replace("\\", "/")


def shortened(text: str) -> str:
    """A line as it is quoted: without its indent, of a length to read, nothing in it that a terminal obeys."""
    text = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _read(file: str, path: tuple[str, ...]) -> tuple[str, ...]:
    parts = file.replace("\\", "/").split("/")
    if not file.endswith(".py") or ".." in parts:
        return ()
    for root in ("",) if os.path.isabs(file) else path:
        place = os.path.join(root, file)
        try:
            return _lines(place, os.stat(place).st_mtime_ns)
        except (OSError, ValueError):  # not there, or no name of a file here
            continue
    return ()


@lru_cache(maxsize=64)
def _lines(place: str, saved: int) -> tuple[str, ...]:
    """Lines of a file as it was saved at that time."""
    with open(place, encoding="utf-8", errors="replace") as text:
        return tuple(text.read().splitlines())


_AROUND = (("", ""), ("", " pass"), ("f(", ")"), ("f(", ""), ("", ")"), ("", "))"))
"""What makes a line of a longer statement one that can be parsed: a header, arguments, a call that goes on."""


def _parsed(text: str) -> tuple[ast.AST | None, int]:
    """A line's tree, and how many characters were put in front of it."""
    for before, after in _AROUND:
        try:
            return ast.parse(before + text + after), len(before)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None, 0


def mask_at(text: str, column: int) -> ast.expr | None:
    """The condition that a place of a line belongs to: a `mask=` argument, what is assigned, or a comparison."""
    column -= len(text) - len(text.lstrip())
    tree, before = _parsed(text.strip().rstrip(","))
    if tree is None:
        return None
    column += before

    def holds(node: ast.expr) -> bool:
        return node.col_offset <= column < (node.end_col_offset or 0)

    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "mask" and holds(node.value):
            return node.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and holds(node.value) and not isinstance(node.value, ast.Call):
            return node.value
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and holds(node)]
    return min(found, key=lambda node: (node.end_col_offset or 0) - node.col_offset, default=None)


def turned(expression: ast.expr | None) -> str:
    """`offset < length` for `length > offset`; "" for anything else."""
    flipped = {ast.Gt: "<", ast.GtE: "<=", ast.Lt: ">", ast.LtE: ">="}
    if isinstance(expression, ast.Compare) and len(expression.ops) == 1 and type(expression.ops[0]) in flipped:
        left, right = ast.unparse(expression.comparators[0]), ast.unparse(expression.left)
        return f"{left} {flipped[type(expression.ops[0])]} {right}"
    return ""
