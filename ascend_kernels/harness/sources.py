"""Which source a number comes from: the files that an op's launches, reference and cases are made of.

Modelled numbers are exact, so a row of an op whose files did not change need not be computed again.  The files are
found by reading import statements, also those inside functions; what a kernel reads by other means (a data file, a
module named at run time) is not seen, and `ASCEND_PERF_FRESH=1` computes every row anew.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .spec import Op

INSTRUMENT = ("ascend_model", "ascend_kernels.harness")
"""Packages that give the numbers; every one of their files counts, used or not."""


def digest(op: Op) -> str:
    """Hash of the instrument and of every file that `op` is made of."""
    files = {file for package in INSTRUMENT for file in _package(package)}
    start = set(modules_of(op))
    own = {name.partition(".")[0] for name in start}
    for name in closure(start, own):
        file = _file(name)
        if file:
            files.add(file)
    # an old commit's package lies elsewhere than the new one's, so folders do not count
    parts = sorted((file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def modules_of(op: Op) -> Iterator[str]:
    """Modules of the functions that an op's row names, and of what those hold; and their neighbours, since the
    row itself and its constants stand in one of them."""
    seen: set[int] = set()
    waiting: list[Any] = [op.call, op.reference, op.compare, op.bytes_moved, op.torch_form]
    waiting += [case.make for case in op.cases.values()] + [twin.call for twin in op.twins.values()]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or one is None or isinstance(one, str | bytes | int | float):
            continue
        seen.add(id(one))
        if isinstance(one, list | tuple | set | frozenset):
            waiting += one
            continue
        if isinstance(one, dict):
            waiting += one.values()
            continue
        name = getattr(one, "__module__", None)
        if isinstance(name, str) and name in sys.modules and not is_library(name, set()):
            yield name
            package = name.rpartition(".")[0]
            for file in _package(package) if package else ():
                yield f"{package}.{file.stem}" if file.stem != "__init__" else package
        for held in ("fn", "func", "args", "keywords", "__wrapped__"):
            inner = getattr(one, held, None)
            if inner is not None and type(one).__module__ != "torch":
                waiting.append(inner)
        if inspect.isfunction(one):
            waiting += inspect.getclosurevars(one).nonlocals.values()


def closure(start: set[str], own: set[str]) -> set[str]:
    """`start` and every module these import, directly or not, that is no library.  own: packages that are none
    although they lie where libraries do, as an old commit's do."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        file = _file(name)
        if file is not None:
            waiting += [other for other in imports(file, name) if not is_library(other, own)]
    return found


@functools.cache
def imports(file: Path, name: str) -> tuple[str, ...]:
    """Modules that a file's import statements name, wherever these stand."""
    found: list[str] = []
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{above}.{base}" if base else above
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(one for one in found if one)


@functools.cache
def _libraries() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {Path(sysconfig.get_path(kind)).resolve() for kind in kinds}
    # An environment of asv inherits those of the interpreter that made it.
    found |= {Path(p).resolve() for p in sys.path if Path(p).name in ("site-packages", "dist-packages")}
    return tuple(found)


def is_library(name: str, own: set[str]) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    root = name.partition(".")[0]
    if root in own:
        return False
    if root in sys.stdlib_module_names or root in sys.builtin_module_names:
        return True
    file = _file(root)
    return file is None or any(folder in file.resolve().parents for folder in _libraries())


@functools.cache
def _file(name: str) -> Path | None:
    """The source file of a module, or None: built in, not there, or a name that is no module."""
    module = sys.modules.get(name)
    place = getattr(module, "__file__", None)
    if module is None:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:  # finding a submodule imports its package, which may raise anything
            return None
        place = spec.origin if spec and spec.has_location else None
    return Path(place) if place and place.endswith(".py") and Path(place).is_file() else None


@functools.cache
def _package(name: str) -> tuple[Path, ...]:
    """Source and data files of a package's folder."""
    file = _file(name)
    if file is None or file.name != "__init__.py":
        return ()
    return tuple(sorted(one for one in file.parent.iterdir() if one.suffix in (".py", ".toml", ".json")))
