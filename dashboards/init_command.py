"""`ascend-perf init`: descriptions for the Triton kernels of a repository, as far as their source tells."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dashboards import repository
from dashboards.kernel_sources import (
    CONSTANT,
    INTEGERS,
    POINTER,
    UNKNOWN,
    Found,
    Kernel,
    Parameter,
    Wrapper,
    first_party,
    imports_in,
    read,
)
from dashboards.text import plain

EXAMPLES = """examples:
  ascend-perf init                         the git repository of this folder
  ascend-perf init path/of/kernels         only the kernels below this folder
  ascend-perf init --dry-run               show what would be written
  ascend-perf init --config ascend.json    beside an asv.conf.json that is there already
then write what each todo(...) of benchmarks/bench_kernels.py asks for, commit, and `ascend-perf run`.
exit codes: 0 described, 3 no kernels, 4 usage or environment."""

NO_KERNELS, USAGE = 3, 4
OURS = ("ascend_kernels", "ascend_model", "ascend_pytest", "dashboards")
NOT_KERNELS = re.compile(
    r"(^|/)(tests?|testing|docs?|examples?|\.\w[^/]*)/|(^|/)(test_[^/]*|[^/]*_test|conftest|setup)\.py$"
)
SAFE = re.compile(r"[\w./-]+\Z")
WIDTH = 100  # of a line with a comment behind it
SIZES = {"programs": 64, "rows": 256}
TWO_STEPS = {"bfloat16": "2**-6", "float16": "2**-9", "half": "2**-9"}
"""Relative to a value just above a power of two; the coarsest first.  A rounding moves by half a step, and a right
kernel need not round where the reference does."""


class InitError(Exception):
    """Nothing can be written; the message says what to do."""


@dataclass(frozen=True)
class Described:
    """One op of the file to be written: the kernels it covers, its lines."""

    name: str
    kernels: tuple[Kernel, ...]
    lines: tuple[str, ...]

    @property
    def place(self) -> str:
        first = self.kernels[0]
        wrapper = usable(first)
        return f"{wrapper.file}:{wrapper.name}" if wrapper else first.place

    @property
    def marks(self) -> int:
        return sum(line.count("todo(") for line in self.lines)


@dataclass(frozen=True)
class Planned:
    """One file: what it would hold, and whether something is there already."""

    path: str
    text: str
    exists: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("dir", nargs="?", default=".", metavar="DIR", help="folder to look for kernels in")
    parser.add_argument("--benchmarks", metavar="DIR", help="folder of the descriptions (default: benchmarks)")
    parser.add_argument("--config", default="asv.conf.json", help="asv configuration to write")
    parser.add_argument("--dry-run", action="store_true", help="write nothing, show the files")
    parser.add_argument("--json", action="store_true")


def run(given: argparse.Namespace) -> int:
    """0 described (what exists is left as it is), 3 no kernels, 4 usage or environment."""
    try:
        top, below = place_of(given.dir)
        refuse_clashes(top)
        found = read(top, source_files(top, below))
        ops = described(found)
        folder = given.benchmarks or benchmarks_folder(top)
        if not SAFE.match(folder) or ".." in PurePosixPath(folder).parts or PurePosixPath(folder).is_absolute():
            raise InitError(f"--benchmarks {folder!r}: a folder of this repository, letters, digits, _ and -")
        config = str(PurePosixPath(given.config))
        if "/" in config:
            raise InitError(f"--config {config!r}: a file name; it is written at the top of the repository")
        files = planned(top, folder, config, ops, found) if ops else []
        if not given.dry_run:
            write(top, files)
    except (InitError, repository.RepositoryError) as error:
        print(f"ascend-perf init: {plain(str(error), 600)}", file=sys.stderr)
        return USAGE
    if given.json:
        print(json.dumps(as_json(ops, found, files, given.dry_run), indent=1))
    else:
        print(in_words(ops, found, files, given.dry_run, top))
    return 0 if ops else NO_KERNELS


def place_of(name: str) -> tuple[Path, str]:
    """The top of the git repository that holds a folder, and the folder relative to it."""
    folder = Path(name)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise InitError(f"{name} {what}: name a folder of a git repository")
    try:
        top = Path(repository.git(folder, "rev-parse", "--show-toplevel").rstrip("\n")).resolve()
    except repository.RepositoryError as error:
        words = str(error)
        if "not a git repository" in words or "must be run in a work tree" in words:
            words = f"{name} is in no git repository: series are kept per commit, so `git init` it first"
        raise InitError(words) from None
    return top, folder.resolve().relative_to(top).as_posix()


def refuse_clashes(top: Path) -> None:
    """Packages of the repository that would hide this suite's own."""
    for name in OURS:
        for root in (top, top / "src"):
            if (root / name / "__init__.py").is_file() or (root / f"{name}.py").is_file():
                raise InitError(
                    f"this repository has a module {name} of its own, which would hide ascend-perf's: rename it, "
                    "or keep the kernels in a repository without it"
                )


def source_files(top: Path, below: str) -> list[str]:
    """Python files below a folder, tests and the like left out."""
    where = [] if below == "." else ["--", f":(literal){below}"]
    listed = repository.git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard", *where)
    names = sorted({one for one in listed.split("\0") if one.endswith(".py")})
    prefix = "" if below == "." else below + "/"
    return [n for n in names if not NOT_KERNELS.search(n.removeprefix(prefix)) and (top / n).is_file()]


def benchmarks_folder(top: Path) -> str:
    """`benchmarks`, unless that holds Python files which are no asv suite: asv would import them all."""
    others = [
        p.name for p in (top / "benchmarks").rglob("*.py") if p.name not in ("__init__.py", "bench_kernels.py")
    ]
    return "ascend_benchmarks" if others else "benchmarks"


def usable(kernel: Kernel) -> Wrapper | None:
    """The kernel's wrapper, where it runs on CPU tensors and there is something to hand it."""
    wrapper = kernel.wrapper
    return wrapper if wrapper and not wrapper.device_bound and wrapper.tensors else None


def described(found: Found) -> list[Described]:
    """An op for every wrapper that can be called, and one for every kernel without such."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in found.kernels:
        wrapper = usable(kernel)
        groups.setdefault(f"{wrapper.file}:{wrapper.name}" if wrapper else kernel.place, []).append(kernel)
    names = unique_names(groups)
    ops = []
    for place, kernels in groups.items():
        wrapper = usable(kernels[0])
        lines = (
            wrapper_lines(names[place], wrapper, kernels) if wrapper else kernel_lines(names[place], kernels[0])
        )
        ops.append(Described(names[place], tuple(kernels), tuple(lines)))
    return ops


def unique_names(places: Iterable[str]) -> dict[str, str]:
    """A name for every place: the function's, with its file's and folders' before it where two are the same."""
    chosen: dict[str, str] = {}
    for place in places:
        file, _, function = place.rpartition(":")
        parts = [p for p in PurePosixPath(file).with_suffix("").parts if p not in ("src", "__init__")]
        name = proposed(function)
        while name in chosen.values() and parts:
            name = proposed(f"{parts.pop()}_{name}")
        number = 2
        base = name
        while name in chosen.values():
            name, number = f"{base}{number}", number + 1
        chosen[place] = name
    return chosen


def proposed(function: str) -> str:
    """A name that survives being a class name: words of lower case, none that starts with a digit."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", function).lower()
    name = re.sub(r"^(triton|kernel)_(?=.)|_(kernel|triton|impl|wrapper)$", "", name.strip("_"))
    name = re.sub(r"[^a-z0-9_]", "", name)
    name = re.sub(r"_+(?=[0-9])", "", re.sub(r"__+", "_", name).strip("_"))
    while re.search(r"(^|_)[a-z]_[a-z](?![a-z])", name):
        name = re.sub(r"(^|_)([a-z])_([a-z])(?![a-z])", r"\1\2\3", name)
    return name if re.match(r"[a-z]", name) else f"op{name}" if name else "op"


def wrapper_lines(name: str, wrapper: Wrapper, kernels: Sequence[Kernel]) -> list[str]:
    """An op that calls a wrapper."""
    sizes: dict[str, float] = {}
    entries = []
    outer = {n for n in wrapper.parameters if n not in wrapper.tensors}
    shapes = {t: named_extents(wrapper.shapes.get(t, ()), t, outer) for t in wrapper.tensors}
    stated = {size for shape in shapes.values() for size in shape}
    uses = {t: [p for k in kernels for p in k.parameters if handed(k, p) == t] for t in wrapper.tensors}
    for name_, shape in shapes.items():
        if not shape:  # what the kernel's addresses tell, in the wrapper's words
            told = [tuple(in_wrappers_words(kernels, e) for e in use.shape) for use in uses[name_]]
            shapes[name_] = next((one for one in told if one and all(e in stated for e in one)), ())
    named = {size for shape in shapes.values() for size in shape}
    places = {}
    for use in (p for k in kernels for p in k.parameters if p.role == POINTER):
        for kernel in kernels:
            shape = shapes.get(handed(kernel, use)) or wrapper.shapes.get(handed(kernel, use), ())
            if shape and all(size in named for size in shape):
                places[use.name] = shape
    for parameter in wrapper.parameters:
        if parameter in wrapper.tensors:
            dtype = wrapper.dtypes.get(parameter, "")
            entries.append((parameter, *tensor(shapes[parameter], dtype, uses[parameter], places)))
            sizes |= dict.fromkeys(shapes[parameter], 64)
        else:
            sizes[parameter] = 64
            entries.append((parameter, parameter, ""))
    if list(sizes) and all(len(wrapper.shapes.get(t, ())) < 2 for t in wrapper.tensors):
        sizes |= {s: 4096 for s in sizes if s not in outer}
    lines = comment_lines(
        f"{place_of_line(wrapper.file, wrapper.line)}: {wrapper.name}({', '.join(wrapper.parameters)})"
    )
    for kernel in kernels:
        lines += comment_lines(f"launches {signature(kernel)} of line {kernel.line}")
        launch = kernel.wrapper
        if launch is not None:
            fixed = [f"{p.name}={launch.arguments[p.name]}" for p in kernel.parameters
                     if p.role == CONSTANT and p.name in launch.arguments]  # fmt: skip
            lines += comment_lines(f"its grid{' and ' + ', '.join(fixed) if fixed else ''}: {launch.grid}")
        lines += [line for one in kernel.read for line in comment_lines(one)]
    given = ", ".join(wrapper.parameters)
    result = f"what {wrapper.name} returns"
    returned = "the new contents of " + ", ".join(wrapper.written) if wrapper.written else result
    if wrapper.written and wrapper.returns:
        returned += f", then {result}"
    lines += ["    op(", f'        "{name}",', f"        call={quoted(f'{wrapper.file}:{wrapper.name}')},"]
    lines += inputs_lines(entries, sizes)
    lines += configs_lines(kernels)
    if wrapper.written:
        lines.append(writes_line(wrapper.written))
    kinds = {t: wrapper.dtypes.get(t, "") for t in wrapper.tensors}
    lines += closing_lines(sizes, returned, given, kinds, wrapper.written)
    return lines


def kernel_lines(name: str, kernel: Kernel) -> list[str]:
    """An op that launches a kernel on a grid of its own."""
    wrapper = kernel.wrapper
    names = {p.name for p in kernel.parameters}
    scalars = [p for p in kernel.parameters if p.role not in (POINTER, CONSTANT)]
    sizes: dict[str, float] = {}
    entries = []
    shapes = {p.name: named_extents(wrapper_extents(kernel, p) or p.shape, p.name) for p in kernel.parameters}
    strides = contiguous_strides(kernel, shapes)
    for parameter in kernel.parameters:
        if parameter.role == CONSTANT:
            continue
        if parameter.role == UNKNOWN:
            says = f"{parameter.name}: neither a pointer nor a number by its use; a tensor, a number or None"
            entries.append((parameter.name, mark(says), ""))
        elif parameter.role == POINTER:
            shape = shapes[parameter.name]
            sizes |= {s: SIZES.get(s, 64) for s in shape if s not in names}
            made = tensor(shape, dtype_from(wrapper, parameter), [parameter], shapes)
            entries.append((parameter.name, *made))
        elif parameter.name in strides:
            entries.append((parameter.name, strides[parameter.name], "  # the stride of a contiguous tensor"))
        else:
            sizes[parameter.name] = 0
            entries.append((parameter.name, parameter.name, ""))
    long = 4096 if all(len(shape) < 2 for shape in shapes.values()) else 128
    sizes = {s: n or example_of(s, long) for s, n in sizes.items()}
    lines = comment_lines(f"{place_of_line(kernel.file, kernel.line)}: {signature(kernel)}")
    lines += [line for one in kernel.read for line in comment_lines(one)]
    if wrapper is not None:
        why = f"is not called: {wrapper.device_bound or 'it takes no tensor'}"
        lines += comment_lines(f"its wrapper {wrapper.name} of {place_of_line(wrapper.file, wrapper.line)} {why}")
    lines += ["    op(", f'        "{name}",', f"        kernel={quoted(kernel.place)},", grid_line(kernel)]
    lines += constants_lines(kernel)
    lines += configs_lines([kernel])
    lines += inputs_lines(entries, sizes)
    written = [p.name for p in kernel.parameters if p.stored]
    if written:
        lines.append(writes_line(written))
    elif any(p.role == UNKNOWN for p in kernel.parameters) or not scalars:
        lines.append(
            f"        writes={mark('no store was found: the names of the arguments that the kernel writes')},"
        )
    read_ones = [p.name for p in kernel.parameters if p.role != CONSTANT and (p.loaded or p.role != POINTER)]
    kinds = {p.name: dtype_from(wrapper, p) for p in kernel.parameters if p.role == POINTER}
    returned = "the new contents of " + (", ".join(written) or "what it writes")
    lines += closing_lines(sizes, returned, ", ".join(read_ones), kinds, written)
    return lines


def handed(kernel: Kernel, parameter: Parameter) -> str:
    """What the wrapper hands to a parameter, as written."""
    return kernel.wrapper.arguments.get(parameter.name, "") if kernel.wrapper else ""


def in_wrappers_words(kernels: Sequence[Kernel], extent: str) -> str:
    """An extent over a kernel's parameters or programs, in the words of the wrapper that launches it."""
    for kernel in kernels:
        if kernel.wrapper is None:
            continue
        if extent in kernel.wrapper.arguments:
            return kernel.wrapper.arguments[extent]
        grid = ast.parse(kernel.wrapper.grid, mode="eval").body
        axis = extent.removeprefix("programs")
        if isinstance(grid, ast.Tuple) and axis.isdigit() and int(axis) < len(grid.elts):
            return ast.unparse(grid.elts[int(axis)])
    return ""


def wrapper_extents(kernel: Kernel, parameter: Parameter) -> tuple[str, ...]:
    """The extents that a wrapper states of what it hands to a pointer, over the kernel's own parameters."""
    wrapper = kernel.wrapper
    if wrapper is None or parameter.role != POINTER:
        return ()
    known = {value: name for name, value in reversed(list(wrapper.arguments.items()))}
    extents = [known.get(e, "") for e in wrapper.shapes.get(wrapper.arguments.get(parameter.name, ""), ())]
    return tuple(extents) if all(extents) else ()


def contiguous_strides(kernel: Kernel, shapes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Parameters that a wrapper gives `x.stride(i)`, as products of the sizes of a contiguous x."""
    wrapper = kernel.wrapper
    found: dict[str, str] = {}
    by_value = {value: name for name, value in wrapper.arguments.items()} if wrapper else {}
    for parameter in kernel.parameters:
        match = re.fullmatch(r"(\w+)\.stride\((-?\d+)\)", handed(kernel, parameter))
        shape = shapes.get(by_value.get(match[1], ""), ()) if match else ()
        if match and shape and -len(shape) <= int(match[2]) < len(shape):
            found[parameter.name] = " * ".join(shape[int(match[2]) % len(shape) + 1 :]) or "1"
    return found


def example_of(name: str, extent: int) -> float:
    """A value for the example of a case: an extent, or a small number where the name is of one."""
    if "eps" in name.lower():
        return 1e-5
    return 0.5 if re.search(r"scale|alpha|beta|prob|rate|momentum", name.lower()) else extent


def place_of_line(file: str, line: int) -> str:
    return f"{file}:{line}"


def signature(kernel: Kernel) -> str:
    """`add_kernel(*x_ptr, n, BLOCK)`: a star before each pointer."""
    star = {POINTER: "*"}
    return f"{kernel.name}({', '.join(star.get(p.role, '') + p.name for p in kernel.parameters)})"


def named_extents(extents: Sequence[str], owner: str, taken: Iterable[str] = ()) -> tuple[str, ...]:
    """The sizes of a case that the extents of a tensor are."""
    names = ["programs" if e == "programs0" else e for e in extents]
    return tuple(
        e if e.isidentifier() and not e.startswith("_") and e not in taken else f"{owner}_size{at}"
        for at, e in enumerate(names)
    )


def tensor(
    shape: Sequence[str], dtype: str, uses: Sequence[Parameter], shapes: Mapping[str, Sequence[str]]
) -> tuple[str, str]:
    """An expression that makes one tensor argument, or the mark that says what to write; and a comment."""
    indexed = [name for use in uses for name in use.index_of]
    sizes = ", ".join(shape)
    if indexed:
        length = next(iter(shapes.get(indexed[0], ())), "")
        kind = dtype or "int32"
        made = f"torch.randint(0, {length or 'LENGTH'}, ({sizes or '64'},), generator=rng, dtype=torch.{kind})"
        if length and sizes and all(shapes.get(name) for name in indexed):
            return made, f"  # indices into {indexed[0]}" + ("" if dtype else "; the source states no dtype")
        return mark(f"indices into {indexed[0]}: {made}"), ""
    bounded = [name for use in uses for name in use.bounds]
    if bounded and not any(use.stored for use in uses):
        most = next((shapes[name][-1] for name in bounded if shapes.get(name)), "")
        kind = dtype or "int32"
        made = f"torch.randint(1, {most or 'LONGEST'} + 1, ({sizes or '64'},), generator=rng, dtype=torch.{kind})"
        if most and sizes:
            return made, f"  # they bound the masks of {bounded[0]}" + ("" if dtype else "; no dtype is stated")
        return mark(f"lengths or ends, which bound the masks of {bounded[0]}: {made}"), ""
    if not shape:
        kind = f"torch.{dtype}" if dtype else "the dtype"
        made = f"torch.randint(0, 100, (64,), generator=rng, dtype={kind})"
        made = made if dtype in INTEGERS else "torch.randn(64, 512, generator=rng)"
        return mark(f"a tensor of the shape and {kind} that callers use: {made}"), ""
    comment = "" if dtype else "  # float32, as the source states no dtype"
    kind = f", dtype=torch.{dtype}" if dtype and dtype not in ("float32", "float") else ""
    if uses and all(use.stored and not use.loaded for use in uses):
        return f"torch.zeros({sizes}{kind})", comment
    if dtype in INTEGERS:
        return f"torch.randint(0, {2 if dtype == 'bool' else 100}, ({sizes},), generator=rng{kind})", ""
    return f"torch.randn({sizes}, generator=rng{kind})", comment


def dtype_from(wrapper: Wrapper | None, parameter: Parameter) -> str:
    """What a wrapper states of the tensor that it hands to a parameter."""
    return wrapper.dtypes.get(wrapper.arguments.get(parameter.name, ""), "") if wrapper else ""


def mark(says: str) -> str:
    return f"todo({quoted(says)})"


def quoted(text: str) -> str:
    """A Python literal in double quotes where that needs no escape."""
    return f'"{text}"' if not re.search(r'["\\]', text) and text.isprintable() else repr(text)


def inputs_lines(entries: Sequence[tuple[str, str, str]], sizes: Mapping[str, float]) -> list[str]:
    lines = [f"        inputs=lambda {', '.join(['rng', *sizes])}: {{"]
    for name, text, comment in entries:
        line = f"            {quoted(name)}: {text},"
        if comment and len(line) + len(comment) > WIDTH:
            lines.append(f"            {comment.strip()}")
            comment = ""
        lines.append(line + comment)
    return [*lines, "        },"]


def writes_line(names: Sequence[str]) -> str:
    return f"        writes=({', '.join(map(quoted, names))}{',' * (len(names) == 1)}),"


def comment_lines(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent="    # ", subsequent_indent="    #   ", break_long_words=False
    )


def configs_lines(kernels: Sequence[Kernel]) -> list[str]:
    """The first configuration as the one implementation, the others beside it as comments."""
    distinct: dict[str, Mapping[str, str]] = {}
    for kernel in kernels:
        names = [p.name for p in kernel.parameters]
        for config in kernel.configs:
            constants = {n: v for n, v in config.items() if n in names}
            label = " ".join(f"{n}={v}" for n, v in constants.items())
            distinct.setdefault(label, config)
    distinct.pop("", None)
    if not distinct or len(kernels) > 1:
        return []
    rows = []
    for at, (label, config) in enumerate(distinct.items()):
        values = ", ".join(f"{quoted(n)}: {v}" for n, v in config.items())
        rows.append(f"            {'# ' if at else ''}{quoted(label)}: {{{values}}},")
    return ["        configs={", *rows, "        },"]


def comparison(kinds: Mapping[str, str], written: Sequence[str]) -> str:
    """How results are judged: by the dtypes of what is written, where all are known, else by the coarsest one."""
    results = [kinds.get(name, "") for name in written]
    known = results if results and all(results) else list(kinds.values())
    if known and all(kind in INTEGERS for kind in known):
        return "exact,"
    coarse = next((kind for kind in TWO_STEPS if kind in known), "")
    if not coarse:
        return "within(relative=1e-3, absolute=1e-5),"
    return f"within(relative={TWO_STEPS[coarse]}, absolute=1e-5),  # two steps of {coarse}"


def closing_lines(
    sizes: Mapping[str, float], returned: str, given: str, kinds: Mapping[str, str], written: Sequence[str]
) -> list[str]:
    example = ", ".join(f'"{name}": {n}' for name, n in sizes.items())
    cases = f'sizes by name, small ones: {{"small": {{{example}}}}}'
    return [
        f"        cases={mark(cases)},",
        f"        reference={mark(f'plain torch, {returned}: lambda {given}: ...')},",
        f"        compare={comparison(kinds, written)}",
        "    ),",
    ]


def grid_line(kernel: Kernel) -> str:
    """The grid from the wrapper's launch, from the program ids, or a mark."""
    names = [p.name for p in kernel.parameters]
    if kernel.wrapper is not None:
        text = translated(kernel.wrapper.grid, kernel.wrapper, names)
        if text:
            return f"        grid={function(text, names)},"
    holders: dict[str, str] = {}
    for p in kernel.parameters:
        if p.role == POINTER and p.shape and p.shape[0].startswith("programs"):
            holders.setdefault(p.shape[0], f"len({p.name})")
    axes = [holders.get(axis, axis) for axis in kernel.grid]
    if axes and not any(axis.startswith("programs") for axis in axes):
        return f"        grid={function('(' + ', '.join(axes) + (',)' if len(axes) == 1 else ')'), names)},"
    return (
        f"        grid={mark('the programs along each axis, such as lambda n, BLOCK: (triton.cdiv(n, BLOCK),)')},"
    )


def constants_lines(kernel: Kernel) -> list[str]:
    """Constants from the launch, heuristics, configurations and masks; a mark for what none of them tells."""
    names = [p.name for p in kernel.parameters]
    values: dict[str, str] = {}
    for parameter in kernel.parameters:
        if parameter.role != CONSTANT:
            continue
        name = parameter.name
        if any(name in config for config in kernel.configs):
            continue
        text = ""
        if kernel.wrapper is not None and name in kernel.wrapper.constants:
            plain_names = [p.name for p in kernel.parameters if p.role != CONSTANT]
            text = translated(kernel.wrapper.constants[name], kernel.wrapper, plain_names)
        if not text and name in kernel.computed:
            text = translated(kernel.computed[name], None, names)
        text = text or kernel.suggested.get(name, "")
        if not text and parameter.default:
            continue
        values[name] = text or mark(f"{name}: a tl.constexpr, such as a block size: 1024")
    if not values:
        return []
    body = "{" + ", ".join(f"{quoted(n)}: {v}" for n, v in values.items()) + "}"
    return [f"        constants={function(body, names)},"]


def function(body: str, names: Sequence[str]) -> str:
    """An expression over arguments as a lambda of those it names; itself where it names none."""
    used = {n.id for n in ast.walk(ast.parse(body, mode="eval")) if isinstance(n, ast.Name)}
    asked = [name for name in names if name in used]
    return f"lambda {', '.join(asked)}: {body}" if asked else body


class _Translate(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, str], meta: str, names: Sequence[str]) -> None:
        self.known, self.meta, self.names = known, meta, names
        self.strange = False

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and ast.unparse(node) in self.known:
            return ast.Name(self.known[ast.unparse(node)], ast.Load())
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == self.meta:
            key = node.slice
            if isinstance(key, ast.Constant) and key.value in self.names:
                return ast.Name(str(key.value), ast.Load())
        if isinstance(node, ast.Name) and node.id not in ("triton", "tl", "torch", "min", "max", "len", "True"):
            self.strange = True
        if isinstance(
            node, ast.Lambda | ast.NamedExpr | ast.Await | ast.Yield | ast.comprehension | ast.JoinedStr
        ):
            self.strange = True
        return self.generic_visit(node)


def translated(text: str, wrapper: Wrapper | None, names: Sequence[str]) -> str:
    """An expression of a wrapper or a heuristic, over the kernel's own parameters; empty where it needs more."""
    tree: ast.expr = ast.parse(text, mode="eval").body
    meta = ""
    if isinstance(tree, ast.Lambda):
        meta = tree.args.args[0].arg if len(tree.args.args) == 1 else ""
        tree = tree.body
    known: dict[str, str] = {}
    for name, value in (wrapper.arguments if wrapper else {}).items():
        if name in names and not _is_literal(value):
            known.setdefault(value, name)
    change = _Translate(known, meta, names)
    made = ast.unparse(change.visit(tree))
    return "" if change.strange else made


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def planned(top: Path, folder: str, config: str, ops: Sequence[Described], found: Found) -> list[Planned]:
    """Every file init writes."""
    texts = {
        config: configuration(top, folder, found),
        f"{folder}/__init__.py": "",
        f"{folder}/bench_kernels.py": benchmarks_text(ops, folder),
        ".asv/.gitignore": "*\n",
    }
    return [Planned(path, text, (top / path).exists()) for path, text in texts.items()]


def configuration(top: Path, folder: str, found: Found) -> str:
    """asv's configuration: this commit's checkout in front of the host's packages."""
    paths = [*decisive_paths(top, found), folder]
    command = "in-dir={env_dir} python -m dashboards.specimen {build_dir} {env_dir} --repository " + " ".join(
        paths
    )
    settings = {
        "version": 1,
        "project": re.sub(r"[^\w.-]", "-", top.name) or "kernels",
        "project_url": "",
        "repo": ".",
        "branches": ["HEAD"],
        "dvcs": "git",
        "benchmark_dir": folder,
        "env_dir": ".asv/env",
        "results_dir": ".asv/results",
        "html_dir": ".asv/html",
        "plugins": [".dashboards.host_environment"],
        "environment_type": "host",
        "pythons": ["same"],
        "build_command": [],
        "install_command": [command],
        "uninstall_command": [],
        "launch_method": "forkserver",
        "install_timeout": 120,
        "default_benchmark_timeout": 600,
    }
    comment = (
        "    // The paths decide the kernels' numbers: commits that leave them as they are need no measurement.\n"
    )
    lines = json.dumps(settings, indent=4).splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"install_command"' in line)
    return "".join([*lines[:at], comment, *lines[at:]]) + "\n"


def decisive_paths(top: Path, found: Found) -> list[str]:
    """Folders of the kernels, and what their files import from elsewhere in the repository."""
    files = {k.file for k in found.kernels} | {k.wrapper.file for k in found.kernels if k.wrapper}
    files |= {h.file for h in found.helpers}
    seen, queue = set(files), list(files)
    while queue:
        name = queue.pop()
        for other in first_party(name, imports_of(top, name, found), lambda one: (top / one).is_file()):
            if other not in seen:
                seen.add(other)
                queue.append(other)
    folders = {PurePosixPath(f).parent.as_posix() for f in files}
    kept = {f for f in folders if f != "."} | {f for f in files if "/" not in f}
    kept |= {f for f in seen if not any(f.startswith(g + "/") for g in kept)}
    if len(kept) > 12:
        kept = {PurePosixPath(f).parts[0] for f in kept}
    outer = {f for f in kept if not any(f.startswith(g + "/") for g in kept)}
    return sorted({f if SAFE.match(f) and not f.startswith("-") else "." for f in outer})


def imports_of(top: Path, name: str, found: Found) -> Sequence[str]:
    """Modules that a file imports; nothing where it cannot be read."""
    if name in found.imports:
        return found.imports[name]
    try:
        return imports_in((top / name).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


HEADER = '''"""Kernels of this repository for ascend-perf: what each takes, its cases, and what is right.

Write what each todo(...) asks for; until then its op is `not run`, which is no error.  Sizes of a case are handed
to `inputs` by name; arguments and constants to `grid`, `constants` and `reference` by theirs.  Cases are executed
by a model, so a few thousand programs are a few seconds.  Then commit this file, and `ascend-perf run`.
"""

'''


def benchmarks_text(ops: Sequence[Described], folder: str) -> str:
    """The benchmarks file."""
    body = "\n".join(line for op in ops for line in op.lines)
    code = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("#"))
    modules = ["import torch"]
    modules += ["import triton"] if "triton." in re.sub(r'"[^"\n]*"', "", code) else []
    modules += ["import triton.language as tl"] if re.search(r"\btl\.", re.sub(r'"[^"\n]*"', "", code)) else []
    names = [
        n
        for n in ("exact", "family", "op", "todo", "within")
        if n in ("family", "op") or f"{n}(" in code or f"compare={n}" in code
    ]
    imports = "\n".join(modules) + f"\n\nfrom ascend_kernels.harness.describe import {', '.join(names)}\n\n"
    closing = """]

FAMILY = family(__file__, OPS)


def setup_cache():
    return FAMILY.prepare()


globals().update(FAMILY.suites(__name__))
"""
    return f"{HEADER}{imports}OPS = [\n{body}\n{closing}"


def write(top: Path, files: Sequence[Planned]) -> None:
    """Every file that is not there yet, or none."""
    if all(one.exists for one in files):
        return
    if not os.access(top, os.W_OK):
        raise InitError(f"{top.name} is read-only: make it writable, or look with --dry-run")
    for one in files:
        if one.exists:
            continue
        place = top / one.path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with open(place, "x", encoding="utf-8") as file:
                file.write(one.text)
        except OSError as error:
            raise InitError(f"{one.path} cannot be written: {error.strerror}") from None


def marks_of(files: Sequence[Planned]) -> list[dict[str, Any]]:
    """Line and words of every mark of the benchmarks file."""
    text = next((one.text for one in files if one.path.endswith("bench_kernels.py")), "")
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "todo":
            found.append({"line": node.lineno, "says": ast.literal_eval(node.args[0])})
    return sorted(found, key=lambda one: one["line"])


def as_json(ops: Sequence[Described], found: Found, files: Sequence[Planned], dry: bool) -> dict[str, Any]:
    """Everything init read and wrote."""
    return {
        "version": 1,
        "ops": [
            {
                "name": op.name,
                "place": op.place,
                "marks": op.marks,
                "kernels": [
                    {
                        "place": k.place,
                        "line": k.line,
                        "parameters": [
                            {"name": p.name, "role": p.role, "written": p.stored, "shape": list(p.shape)}
                            for p in k.parameters
                        ],
                        "read": list(k.read),
                        "wrapper": f"{k.wrapper.file}:{k.wrapper.name}" if k.wrapper else None,
                    }
                    for k in op.kernels
                ],
            }
            for op in ops
        ],
        "helpers": [{"place": f"{h.file}:{h.name}", "called_by": list(h.called_by)} for h in found.helpers],
        "problems": [{"file": p.file, "line": p.line, "says": p.says} for p in found.problems],
        "files": [
            {
                "path": one.path,
                "state": "exists" if one.exists else "not written" if dry else "written",
                "text": one.text,
            }
            for one in files
        ],
        "marks": marks_of(files),
    }


def in_words(ops: Sequence[Described], found: Found, files: Sequence[Planned], dry: bool, top: Path) -> str:
    """What was found and written, and what to do next."""
    lines = []
    if not ops:
        lines.append("no Triton kernel here: no @triton.jit function was found that is not only called by others")
    for op in ops:
        kernels = ", ".join(f"{k.file}:{k.line} {k.name}" for k in op.kernels)
        wrapper = usable(op.kernels[0])
        how = f"through {wrapper.name}({', '.join(wrapper.parameters)})" if wrapper else "on a grid of its own"
        left = f"{op.marks} thing{'s' * (op.marks != 1)} to write"
        lines.append(plain(f"{op.name}: {kernels}, {how}; {left}", 300))
        lines += [plain(f"  {one}", 200) for k in op.kernels for one in k.read]
    for helper in found.helpers:
        called = f"called by {', '.join(helper.called_by)}" if helper.called_by else "which returns a value"
        lines.append(plain(f"skipped {helper.file}:{helper.line} {helper.name}: a helper, {called}", 300))
    for problem in found.problems:
        lines.append(plain(f"look at {problem.file} line {problem.line}: {problem.says}", 400))
    if dry:
        for one in files:
            state = (
                "exists, and would be left as it is; init would have written" if one.exists else "would be written"
            )
            lines += ["", f"--- {one.path}: {state}", one.text.rstrip("\n")]
        return "\n".join(lines)
    written = [one.path for one in files if not one.exists]
    if written:
        lines.append("wrote " + ", ".join(written))
    for one in files:
        if one.exists:
            lines += left_alone(one, ops, top)
    bench = next((one for one in files if one.path.endswith("bench_kernels.py")), None)
    if bench is not None and not bench.exists:
        lines += [f"  line {m['line']}: {plain(m['says'], 160)}" for m in marks_of(files)]
        lines.append(
            f"next: write these lines of {bench.path}, commit, then `ascend-perf run` and `ascend-perf dashboard`"
        )
    return "\n".join(lines)


def left_alone(one: Planned, ops: Sequence[Described], top: Path) -> list[str]:
    """What exists, and what init would have put there."""
    if one.path.endswith("bench_kernels.py"):
        text = (top / one.path).read_text(errors="replace")
        missing = [op for op in ops if op.place not in text and not any(k.place in text for k in op.kernels)]
        if not missing:
            return [f"{one.path} exists and describes all of them; left as it is"]
        lines = [f"{one.path} exists and was left as it is; these it does not describe, add them to OPS:"]
        return [*lines, *(line for op in missing for line in op.lines)]
    if one.path.endswith("__init__.py") or one.path.startswith(".asv"):
        return []
    same = (top / one.path).read_text(errors="replace") == one.text
    if same:
        return [f"{one.path} exists; left as it is"]
    other = "write another with --config ascend-perf.json, and name it to `run` and `bisect` in the same way"
    return [f"{one.path} exists and was left as it is ({other}); init would have written:", one.text.rstrip("\n")]
