"""A kernel of any file, and the launch that the command line describes: `FILE.py:KERNEL --arg x=f32[64] ...`."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import math
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_model.compile import heuristic_names, is_constexpr, parameters, wrappers
from ascend_model.lower import forget_namesakes, stand_in_driver

from . import isolated
from .launch import GRID_LIMIT, Launch

DTYPES = {
    "f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16", "bf16": "bfloat16",
    "f64": "float64", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "i1": "bool", "bool": "bool",
}  # fmt: skip

GUARD = 'put what must not run on import under `if __name__ == "__main__":`'


class UsageError(ValueError):
    """What was asked cannot be understood; the message says what can."""


def split(what: str) -> tuple[str, str]:
    """File and kernel of `FILE.py:KERNEL`."""
    file, colon, name = what.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        raise UsageError(f"{what!r}: expected FILE.py:KERNEL, e.g. my_kernels.py:softmax")
    return file, name


def file_launch(
    what: str, args: list[str], constants: list[str], grid: str, seed: int = 0, others: Sequence[str] = ()
) -> Launch:
    """The launch that `FILE.py:KERNEL --arg ... --const ... --grid ...` describes; UsageError if it cannot be.

    others: kernels that are given the same arguments; one that only they take is left out here."""
    kernel = load_kernel(*split(what))
    name = split(what)[1]
    given, fixed = dict(_pair(text) for text in args), dict(_pair(text) for text in constants)
    theirs = {parameter for other in others for parameter in parameters(load_kernel(*split(other)))}
    own = parameters(kernel)
    given = {k: v for k, v in given.items() if k in own or k not in theirs}
    fixed = {k: v for k, v in fixed.items() if k in own or k not in theirs}
    _check_names(kernel, name, given, fixed)
    return Launch(
        kernel,
        grid_sizes(grid),
        # in the order of the signature, as a launch would hand them over
        {k: _argument(k, given[k], seed) for k in own if k in given},
        {k: _plain(v) for k, v in fixed.items()},
    )


def grid_sizes(grid: str) -> tuple[int, ...]:
    """`48` or `8,4` as numbers; UsageError for what no device takes."""
    try:
        sizes = tuple(int(part) for part in grid.split(","))
    except ValueError as error:
        raise UsageError(f"grid {grid!r}: expected numbers, e.g. 48 or 8,4") from error
    if not 1 <= len(sizes) <= 3 or any(size < 1 for size in sizes):
        raise UsageError(f"grid {grid!r}: expected one to three numbers from 1 up, e.g. 48 or 8,4")
    if math.prod(sizes) > GRID_LIMIT:
        raise UsageError(f"grid {grid!r}: {math.prod(sizes)} programs, and the device takes {GRID_LIMIT}")
    return sizes


TOOL = ("ascend_kernels", "ascend_model", "ascend_pytest", "dashboards")
_LOADED: dict[str, tuple[int, ModuleType]] = {}


def forget(files: Iterable[str]) -> None:
    """Import these files anew the next time; what imported them from elsewhere keeps what it has."""
    for file in files:
        _LOADED.pop(file, None)
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in files:
            del sys.modules[name]


def imported_with(file: str) -> set[str]:
    """The file, and the modules from its folder or below that are imported now, but for the running tool."""
    real = os.path.realpath(file)
    folder = os.path.dirname(real) + os.sep
    found = {real}
    for name, module in list(sys.modules.items()):
        one = getattr(module, "__file__", None)
        if not one or not one.startswith(folder) or not one.endswith(".py") or "site-packages" in one:
            continue
        if not _runs_this(name, folder):
            found.add(one)
    return found


def _runs_this(name: str, folder: str) -> bool:
    """Whether a module is of this package, whose checkout may lie below the kernel's folder: imported a second
    time, its classes would no longer be those that this process works with.  Kernels of a family are not."""
    if name.partition(".")[0] not in TOOL:
        return False
    families = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
    return not folder.startswith(families) or os.path.join(families, "harness", "").startswith(folder)


def check_values(args: list[str], constants: list[str], grid: str) -> None:
    """UsageError for what cannot be right for any kernel."""
    grid_sizes(grid)
    for text in args:
        _argument(*_pair(text), 0)
    for text in constants:
        _pair(text)


def load_kernel(file: str, name: str) -> Any:
    """The `@triton.jit` function `name` of a file.  Raises UsageError saying what is wrong with the file."""
    module = load_module(file)
    kernels = kernels_of(module)
    if name not in kernels:
        close = difflib.get_close_matches(name, kernels, 1)
        hint = f"; did you mean {file}:{close[0]}?" if close else ""
        raise UsageError(
            f"{file} has no @triton.jit function {name!r}; it has {', '.join(kernels) or 'none'}{hint}"
        )
    return getattr(module, name)


def kernels_of(module: ModuleType) -> list[str]:
    """Names of the jitted functions of a module, wrapped by an autotuner or not."""
    return [name for name, one in vars(module).items() if hasattr(one, "fn") and hasattr(one, "__getitem__")]


def load_module(file: str) -> ModuleType:
    """A file as a module, imported once until it is saved again.

    What it prints meanwhile is not shown, it sees no arguments, and `sys.exit` ends only its import."""
    path = Path(file)
    if path.is_dir() or not path.exists():
        raise UsageError(f"no file {file}" if not path.exists() else f"{file} is a folder, not a Python file")
    real = str(path.resolve())
    saved = path.stat().st_mtime_ns
    kept = _LOADED.get(real)
    if kept is not None and kept[0] == saved:
        return kept[1]
    name = f"_kernels_{path.stem}_{hashlib.sha256(os.fsencode(real)).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = real
    # Modules beside the file are found here and by the compiler's process, as when the file itself is run.
    folder = os.path.dirname(real)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    forget_namesakes(folder)
    sys.modules[name] = module
    said = io.StringIO()
    try:
        with _alone(file, said), isolated.in_time(isolated.IMPORT_SECONDS, f"importing {file}"):
            stand_in_driver()
            exec(compile(path.read_bytes(), real, "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SystemExit):
            raise UsageError(_ended(file, real, error, said.getvalue())) from error
        if isinstance(error, Exception):
            raise UsageError(_why_not(file, real, error)) from error
        raise
    _LOADED[real] = (saved, module)
    return module


@contextlib.contextmanager
def _alone(file: str, said: io.StringIO) -> Iterator[None]:
    """An import that finds no arguments and no input, and whose output is kept apart."""
    before = sys.argv, sys.stdin
    with open(os.devnull) as nothing, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        sys.argv, sys.stdin = [file], nothing
        try:
            yield
        finally:
            sys.argv, sys.stdin = before


def _ended(file: str, real: str, error: SystemExit, said: str) -> str:
    last = (said.strip().splitlines() or [""])[-1][:200]
    told = f" after saying {last!r}" if last else ""
    return f"{file} ends the program while it is imported{_at(real, error)}{told}: {GUARD}"


def _why_not(file: str, real: str, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        where = f", line {error.lineno}," if error.lineno else ""
        of = file if error.filename in (real, None) else error.filename
        text = (error.text or "").strip()[:120]
        return f"{of}{where} is not Python: {error.msg}{f': `{text}`' if text else ''}"
    if isinstance(error, ValueError) and "null bytes" in str(error):  # no SyntaxError before Python 3.11.4
        return f"{file} is not Python: {error}"
    if isinstance(error, ModuleNotFoundError):
        hint = "install it, or import it only where it is used"
        if (error.name or "").partition(".")[0] in ("triton", "torch"):
            hint = "install ascend-perf with the extra `model`"
        return f"{file} needs the module {error.name}, which is not installed here{_at(real, error)}: {hint}"
    if isinstance(error, OSError) and not _at(real, error):
        return f"{file} cannot be read: {error.strerror or error}"
    words = " ".join(str(error).split())[:300]
    if isinstance(error, ImportError) and "relative import" in words:
        return f"{file} imports relative to its package{_at(real, error)}: import by the package's full name"
    return (
        f"{file} cannot be imported: {type(error).__name__}{f': {words}' if words else ''}{_at(real, error)}; "
        f"{GUARD}"
    )


def _at(real: str, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == real]
    return f" (line {lines[-1]})" if lines else ""


def _check_names(kernel: Any, name: str, arguments: dict[str, str], constants: dict[str, str]) -> None:
    own = parameters(kernel)
    compile_time = [n for n, p in own.items() if is_constexpr(p)]
    run_time = [n for n in own if n not in compile_time]
    configs = [config.kwargs for one in wrappers(kernel) for config in getattr(one, "configs", ())]
    filled = [*heuristic_names(kernel), *(configs[0] if len(configs) == 1 else ())]

    def needed(names: list[str], given: dict[str, str], option: str) -> list[str]:
        wanted = [n for n in names if n not in given and n not in filled and own[n].default is own[n].empty]
        choices = {n: "|".join(dict.fromkeys(str(c[n]) for c in configs if n in c)) for n in wanted}
        return [f"{option} {n}={choices[n] or '...'}" for n in wanted]

    missing = [*needed(run_time, arguments, "--arg"), *needed(compile_time, constants, "--const")]
    # Said under the other option, it is not missing but misplaced.
    swapped = [f"{n} is a tl.constexpr: --const {n}=..." for n in arguments if n in compile_time]
    swapped += [f"{n} is no tl.constexpr: --arg {n}=..." for n in constants if n in run_time]
    unknown = [n for n in (*arguments, *constants) if n not in own]
    if missing or unknown or swapped:
        words = [f"missing {', '.join(missing)}"] if missing else []
        words += [f"it has no {', '.join(unknown)}"] if unknown else []
        raise UsageError(f"{name}({', '.join(own)}): {'; '.join([*words, *swapped])}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r}: expected NAME=VALUE")
    return name, value


def _plain(text: str) -> Any:
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _argument(name: str, text: str, seed: int) -> Any:
    """A number, None, or a random tensor `dtype[shape]`: floats of a normal distribution, integers from 0 to the
    tensor's own last index, or of `dtype[shape]:LOW..HIGH` from LOW to HIGH."""
    import torch

    dtype, bracket, shape = text.partition("[")
    if not bracket:
        value = _plain(text)
        if value is not None and not isinstance(value, bool | int | float):
            raise UsageError(f"argument {name}: {text!r} is neither a number nor dtype[shape], e.g. f32[64,512]")
        return value
    shape, closed, span = shape.partition("]")
    if dtype not in DTYPES or not closed or (span and not span.startswith(":")):
        raise UsageError(f"argument {name}: {text!r}: expected dtype[shape] with dtype one of {', '.join(DTYPES)}")
    try:
        sizes = [int(part) for part in shape.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"argument {name}: {text!r}: a shape is numbers, e.g. f32[64,512]") from None
    if any(size < 0 for size in sizes):
        raise UsageError(f"argument {name}: {text!r}: a shape has no negative numbers, e.g. f32[64,512]")
    kind = getattr(torch, DTYPES[dtype])
    generator = torch.Generator().manual_seed(seed + sum(map(ord, name)))
    if span:
        least, most = _span(name, text, span[1:], kind)
    else:
        last = max(1, math.prod(sizes)) - 1
        small = kind in (torch.int8, torch.uint8)
        least, most = 0, 1 if kind == torch.bool else min(last, 126) if small else last
    try:
        if kind.is_floating_point:
            return torch.randn(sizes, generator=generator).to(kind)
        return torch.randint(least, most + 1, sizes, generator=generator).to(kind)
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise UsageError(f"argument {name}: {text!r} does not fit the memory of this machine") from error


def _span(name: str, text: str, span: str, kind: Any) -> tuple[int, int]:
    """The bounds of `LOW..HIGH`, both of which may occur."""
    import torch

    found = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", span)
    if kind.is_floating_point or kind == torch.bool or not found:
        raise UsageError(
            f"argument {name}: {text!r}: behind a shape of integers comes LOW..HIGH, e.g. i32[64]:1..500"
        )
    least, most = int(found[1]), int(found[2])
    limits = torch.iinfo(kind)
    if not max(limits.min, -(2**63)) <= least <= most <= min(limits.max, 2**63 - 2):
        raise UsageError(f"argument {name}: {text!r}: no integer of this dtype is from {least} to {most}")
    return least, most
