"""Describe a kernel of any repository as an `Op`, in a few lines of a benchmarks file.

    OPS = [
        op(
            "vector_add",
            kernel="kernels/add.py:add_kernel",
            grid=lambda n, BLOCK: (triton.cdiv(n, BLOCK),),
            constants={"BLOCK": 1024},
            inputs=lambda rng, n: {"x": torch.randn(n, generator=rng), ..., "n": n},
            writes=("out",),
            cases={"16k": {"n": 16384}},
            reference=lambda x, y: x + y,
        ),
    ]
    FAMILY = family(__file__, OPS)

Nothing of the repository is imported before a case is run, so a kernel that cannot be imported is a state of its
own op.  `call="kernels/add.py:add"` instead of kernel, grid and constants describes a wrapper: what it launches
by `kernel[grid](...)` goes through the harness, so its grid and constants are those of the measured commit.

The functions given here are called with the values that their parameters name.  `todo("...")` stands for what is
not written yet; an op that holds one is `not run`, with the line that says what to write.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ascend_model.lower import stand_in_driver

from . import device, isolated
from .launch import for_real, launch, recorded
from .spec import Arguments, Case, Compare, NotDescribed, Op, Twin, Unsupported, exact, within
from .suite import Family

__all__ = ["Todo", "described", "exact", "family", "load", "op", "todo", "within"]

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*\Z")
PLACE = re.compile(r"[^:\0]+\.py:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
ONLY = "triton"  # name of the implementation where there is one
PACKAGE = "_described_at_commit"
LATER = "not-described"  # case id of an op without cases


class DescriptionError(ValueError):
    """A description contradicts itself; the message says where and what to write."""


@dataclass(frozen=True)
class Todo:
    """Stands for what a person has still to write.  says: what that is.  file, line: where."""

    says: str
    file: str
    line: int


def todo(says: str) -> Any:
    """A mark at this line: `says` is what to write in its place."""
    frame = sys._getframe(1)
    return Todo(says, frame.f_code.co_filename, frame.f_lineno)


def op(
    name: str,
    *,
    inputs: Any,
    cases: Any,
    reference: Any,
    kernel: str = "",
    grid: Any = None,
    constants: Any = None,
    call: str = "",
    configs: Any = None,
    writes: Any = (),
    compare: Any = exact,
    twins: Mapping[str, Twin] | None = None,
    bytes_moved: Callable[[Arguments], int] | None = None,
    torch_form: Callable[..., Any] | None = None,
    large: Sequence[str] = (),
) -> Op:
    """An `Op` of a kernel (`kernel`, `grid`, `constants`) or of a wrapper that launches some (`call`).

    kernel, call: "folder/file.py:function", from the top of the repository
    grid:         a tuple, or a function of arguments and constants
    constants:    the tl.constexpr arguments, or a function of the arguments that gives them
    configs:      name -> constants and launch options (num_warps, ...) that go over the others: one implementation
                  each, the first is the op's default; without it an autotuner's first configuration is taken
    inputs:       function of `rng` (a torch.Generator) and the case's sizes; gives the arguments by name
    cases:        id -> sizes
    large:        ids of cases that only a device runs, as long as the model is not asked for everything
    writes:       names of the arguments written in place
    reference:    plain torch; returns what the wrapper returns, or the new contents of `writes` in order, or
                  writes them itself and returns None
    """
    if not NAME.match(name) or re.search(r"(^|_)[a-z]_[a-z](?![a-z])", name):
        raise DescriptionError(
            f"op {name!r}: a name is words in lower case, joined by _, no single letter before another: vector_add"
        )
    if bool(kernel) == bool(call):
        raise DescriptionError(f"op {name}: give kernel= (with grid=) or call=, and not both")
    place = kernel or call
    if not PLACE.match(place):
        raise DescriptionError(f"op {name}: {place!r} is not of the form folder/file.py:function")
    if call and (grid is not None or constants is not None):
        raise DescriptionError(f"op {name}: grid= and constants= go with kernel=; a wrapper has its own")
    if kernel and grid is None:
        raise DescriptionError(f"op {name}: kernel= needs a grid= beside it, such as grid=(48,)")
    file = Path(sys._getframe(1).f_code.co_filename).resolve()
    names = () if isinstance(writes, Todo) else (writes,) if isinstance(writes, str) else tuple(writes)
    made = _Described(
        place=place,
        wrapper=bool(call),
        grid=grid,
        constants=constants or {},
        configs=configs or {},
        inputs=inputs,
        reference=reference,
        compare=compare,
        writes=writes if isinstance(writes, Todo) else names,
        root=repository_of(file),
        file=file,
    )
    chosen = {} if isinstance(configs, Todo) else dict(configs or {})
    return Op(
        name=name,
        family="",
        call=made,
        reference=made.expected,
        cases=made.cases(cases, large),
        writes=names,
        implementations=tuple(chosen) or (ONLY,),
        twins=twins or {},
        compare=exact if isinstance(compare, Todo) else compare,
        bytes_moved=bytes_moved,
        torch_form=torch_form,
    )


@dataclass(frozen=True)
class _Described:
    """What `op` was given; itself the op's `call`."""

    place: str
    wrapper: bool
    grid: Any
    constants: Any
    configs: Any
    inputs: Any
    reference: Any
    compare: Compare | Todo
    writes: Any
    root: Path
    file: Path

    def sources(self) -> set[Path]:
        """Every file that decides what this op comes to: of the description, and of the commit what the kernel's
        file imports, directly or not."""
        top = _root(self.root)
        found = set(self.file.parent.glob("*.py"))
        waiting = [(top / self.place.rpartition(":")[0]).resolve(), *_imported_files(self.file, top)]
        while waiting:
            file = waiting.pop()
            if file in found or not file.is_file() or not file.is_relative_to(top):
                continue
            found.add(file)
            waiting += _imported_files(file, top)
        return found

    def cases(self, given: Any, large: Sequence[str]) -> dict[str, Case]:
        """Cases that refuse to be made while something is not described, or the kernel cannot be imported."""
        if isinstance(given, Todo) or not given:

            def nothing(rng: torch.Generator) -> Arguments:
                self.ready(given)
                raise NotDescribed(f"not described yet: {self.place} has no cases")

            return {LATER: Case(nothing, quick=True)}
        found = {}
        for name, sizes in given.items():
            found[name] = Case(self.maker(sizes), quick=name not in large, timed=True, large=name in large)
        return found

    def maker(self, sizes: Any) -> Callable[[torch.Generator], Arguments]:
        """The `make` of a case."""

        def make(rng: torch.Generator) -> Arguments:
            self.ready(sizes)
            load(self.place, self.root)  # a module that makes tensors when imported must not get poisoned ones
            made = called(self.inputs, {"rng": rng, **sizes}, "inputs")
            if not isinstance(made, Mapping):
                raise DescriptionError(f"inputs of {self.place} gave a {type(made).__name__}, not a dict of names")
            raise_for(made)
            return dict(made)

        return make

    def ready(self, *more: Any) -> None:
        """Raise NotDescribed where a person has still something to write."""
        raise_for(*self.fields(), *more)

    def fields(self) -> tuple[Any, ...]:
        """What may hold a mark."""
        given = (self.grid, self.constants, self.configs, self.inputs, self.reference)
        return (*given, self.compare, self.writes)

    def __call__(self, *, impl: str = ONLY, validate: bool = False, **arguments: Any) -> Any:
        function = load(self.place, self.root)
        config = self.configs.get(impl)
        if self.wrapper:
            return self.through_wrapper(function, config, arguments)
        given = {**self.constants_for(arguments), **(config or {})}
        jitted, names, constexprs = parts_of(function)
        _check_signature(self.place, names, constexprs, arguments, given)
        constants = {n: v for n, v in given.items() if n in constexprs}
        options = {n: v for n, v in given.items() if n not in names}
        ordered = {n: arguments[n] for n in names if n in arguments}
        launch(jitted, grid_of(self.grid, {**arguments, **constants}), ordered, constants, **options)
        return None

    def constants_for(self, arguments: Arguments) -> dict[str, Any]:
        """The constants of one call."""
        given = (
            called(self.constants, arguments, "constants") if callable(self.constants) else dict(self.constants)
        )
        raise_for(given)
        return given

    def through_wrapper(self, function: Any, config: Mapping[str, Any] | None, arguments: Arguments) -> Any:
        """Call the wrapper with its launches going through the harness; arguments it hands back are dropped,
        since they are compared as arguments."""
        if config is None and for_real():
            result = function(
                **arguments
            )  # as its users call it: an autotuner tunes, nothing is added to host time
        else:
            with recorded() as seen, through_harness(config):
                result = function(**arguments)
            if not seen:
                raise RuntimeError(f"{self.place} launched no kernel by `kernel[grid](...)`")
        own = {id(value) for value in arguments.values() if isinstance(value, torch.Tensor)}
        if isinstance(result, tuple | list):
            left = tuple(one for one in result if id(one) not in own)
            return left if len(left) > 1 else (left[0] if left else None)
        return None if id(result) in own else result

    def expected(self, **arguments: Any) -> Any:
        """The reference: values it returns become the new contents of `writes`, in order."""
        given = called(self.reference, arguments, "reference")
        if not self.writes or given is None:
            return given
        values = list(given) if isinstance(given, tuple | list) else [given]
        for name, value in zip(self.writes, values):
            target = arguments[name]
            if not isinstance(value, torch.Tensor):
                raise DescriptionError(f"reference of {self.place}: {name} is a {type(value).__name__}")
            if value.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
                continue
            if value.shape != target.shape:
                raise DescriptionError(
                    f"reference of {self.place}: {name} is {list(target.shape)}, the value for it "
                    f"{list(value.shape)}; give all of it, or write the part in place and return None"
                )
            target.copy_(value)
        rest = values[len(self.writes) :]
        return tuple(rest) if len(rest) > 1 else (rest[0] if rest else None)


def raise_for(*values: Any) -> None:
    """Raise NotDescribed for the first mark among the values."""
    marks = sorted(_marks(values), key=lambda one: (one.file, one.line))
    if not marks:
        return
    first = marks[0]
    file = Path(first.file)
    with contextlib.suppress(ValueError):
        file = file.resolve().relative_to(repository_of(file.resolve()))
    more = f" ({len(marks) - 1} more behind it)" if len(marks) > 1 else ""
    raise NotDescribed(
        f"not described yet: {file.as_posix()} line {first.line} says what to write: {first.says}{more}"
    )


def _marks(values: Iterable[Any]) -> Iterator[Todo]:
    for value in values:
        if isinstance(value, Todo):
            yield value
        elif isinstance(value, Mapping):
            yield from _marks(value.values())
        elif isinstance(value, tuple | list):
            yield from _marks(value)


def called(function: Any, values: Mapping[str, Any], what: str) -> Any:
    """`function` with those of `values` that its parameters name."""
    if not callable(function):
        raise DescriptionError(f"{what} is a {type(function).__name__}, not a function")
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return function(**values)
    missing = [one.name for one in parameters if one.name not in values and one.default is one.empty]
    if missing:
        raise DescriptionError(
            f"{what} asks for {', '.join(missing)}, but there {'is' if len(values) == 1 else 'are'} only "
            f"{', '.join(values) or 'nothing'}"
        )
    return function(**{one.name: values[one.name] for one in parameters if one.name in values})


def grid_of(grid: Any, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The programs along each axis."""
    made = called(grid, values, "grid") if callable(grid) else grid
    return tuple(int(n) for n in (made if isinstance(made, tuple | list) else (made,)))


@functools.lru_cache(maxsize=256)
def parts_of(kernel: Any) -> tuple[Any, list[str], set[str]]:
    """The jitted function below autotuners and heuristics, its parameters, and which of them are constants."""
    while hasattr(kernel, "fn") and hasattr(kernel.fn, "fn"):
        kernel = kernel.fn
    function = getattr(kernel, "fn", None)
    if function is None:
        raise DescriptionError(f"{getattr(kernel, '__name__', kernel)} is no @triton.jit function")
    parameters = inspect.signature(function).parameters
    return kernel, list(parameters), {n for n, p in parameters.items() if "constexpr" in str(p.annotation)}


def _check_signature(
    place: str, names: Sequence[str], constexprs: set[str], arguments: Arguments, constants: Mapping[str, Any]
) -> None:
    signature = f"{place} is {place.rpartition(':')[2]}({', '.join(names)}) at this commit"
    unknown = [n for n in arguments if n not in names or n in constexprs]
    missing = [n for n in names if n not in constexprs and n not in arguments]
    if unknown or missing:
        words = [f"`inputs` lacks {', '.join(missing)}"] if missing else []
        words += [f"`inputs` gives {', '.join(unknown)}, which it does not take"] if unknown else []
        raise NotDescribed(f"the description does not fit: {signature}; {' and '.join(words)}")


@contextlib.contextmanager
def through_harness(config: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Inside the block `kernel[grid](...)` is a launch of the harness; nothing is tuned, a configuration is
    taken: `config`, or the first of the autotuner."""
    from triton.runtime import interpreter, jit

    kinds = [
        kind for kind in (jit.KernelInterface, interpreter.InterpretedFunction) if "__getitem__" in vars(kind)
    ]
    before = {kind: vars(kind)["__getitem__"] for kind in kinds}
    inside = False

    def door(original: Any) -> Any:
        def get(kernel: Any, grid: Any) -> Any:
            if inside:
                return original(kernel, grid)

            def started(*args: Any, **kwargs: Any) -> None:
                nonlocal inside
                inside = True
                try:
                    _start(kernel, grid, args, kwargs, config)
                finally:
                    inside = False

            return started

        return get

    for kind, original in before.items():
        kind.__getitem__ = door(original)
    try:
        yield
    finally:
        for kind, original in before.items():
            kind.__getitem__ = original


def _start(kernel: Any, grid: Any, args: Sequence[Any], kwargs: dict[str, Any], config: Any) -> None:
    jitted, names, constexprs = parts_of(kernel)
    given = {**dict(zip(names, args)), **kwargs}
    layer = kernel
    while layer is not jitted:
        if hasattr(layer, "configs"):
            first = layer.configs[0]
            if config is None:
                options = {n: v for n, v in first.all_kwargs().items() if n not in first.kwargs and v}
                given |= first.kwargs | options
            if first.pre_hook is not None:
                first.pre_hook(given)
        elif isinstance(getattr(layer, "values", None), Mapping):
            for name, value in layer.values.items():
                given[name] = value(dict(given))
        layer = layer.fn
    if config is not None:
        given |= config
    for name, parameter in inspect.signature(jitted.fn).parameters.items():
        if name not in given and parameter.default is not parameter.empty:
            given[name] = parameter.default
    shape = grid(given) if callable(grid) else grid
    ordered = {n: given[n] for n in names if n in given and n not in constexprs}
    constants = {n: given[n] for n in names if n in given and n in constexprs}
    options = {n: v for n, v in given.items() if n not in names and n not in ("grid", "warmup")}
    launch(
        jitted, grid_of(tuple(shape) if not isinstance(shape, int) else shape, {}), ordered, constants, **options
    )


def load(place: str, root: Path) -> Any:
    """The function `folder/file.py:name` of the measured commit, or of the repository at `root` outside asv.

    Raises NotDescribed where this commit has none, Unsupported where a module it needs is not installed, and
    RuntimeError with the line where importing its file fails.
    """
    return _loaded(place, _root(root))


@functools.lru_cache(maxsize=256)
def _loaded(place: str, top: Path) -> Any:
    file_name, _, name = place.rpartition(":")
    file = (top / file_name).resolve()
    if not file.is_file() or not file.is_relative_to(top):
        raise NotDescribed(f"this commit has no {file_name}")
    found: Any = _module(file, file_name, top)
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotDescribed(f"this commit has no {name} in {file_name}")
        found = getattr(found, part)
    return found


def _root(root: Path) -> Path:
    """Where kernels are taken from: the commit that asv has checked out, else `root`."""
    environment = os.environ.get("ASV_ENV_DIR")
    checkout = Path(environment, "specimen") if environment else None
    return (checkout if checkout is not None and checkout.exists() else root).resolve()


_FAILED: dict[Path, BaseException] = {}


def _module(file: Path, shown: str, top: Path) -> ModuleType:
    """The module of a file, imported by the name that the repository's own code would import it by."""
    if device.kind() == "cpu":
        stand_in_driver(device.target())
    name, place = file.stem, file.parent
    while (place / "__init__.py").is_file() and place != top:
        name, place = f"{place.name}.{name}", place.parent
    packaged = "." in name
    for entry in (top, top / "src", *([place] if packaged else [])):
        _on_path(entry)
    if not packaged:
        # Places in compiled code are named from the path's folders on: rather ops/window.py than window.py.
        base = top / "src" if file.is_relative_to(top / "src") else top
        folders = place.relative_to(base).parts
        name = ".".join([*folders, name]) if all(one.isidentifier() for one in folders) else name
    try:
        if file in _FAILED:  # a second try would find half of what it imports in place
            raise _FAILED[file]
        with isolated.in_time(isolated.IMPORT_SECONDS, f"importing {shown}"):
            try:
                return _imported(name, file, packaged)
            except ModuleNotFoundError as error:
                beside = place / (error.name or "").partition(".")[0]
                if packaged or not (beside.is_dir() or beside.with_suffix(".py").is_file()):
                    raise
                _on_path(place)  # it imports what lies beside it
                return _imported(name, file, packaged)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _FAILED[file] = error
        raise _in_words(error, file, shown, top) from error


@functools.lru_cache(maxsize=4096)
def _imported_files(file: Path, top: Path) -> tuple[Path, ...]:
    """Files of a checkout that a file's import statements may mean; nothing is imported to find them."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    roots = [top, top / "src", *(p for p in file.parents if p.is_relative_to(top))]
    found: set[Path] = {one / "__init__.py" for one in file.parents if one.is_relative_to(top)}
    for node in ast.walk(tree):
        names: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            names = [(root, alias.name) for alias in node.names for root in roots]
        elif isinstance(node, ast.ImportFrom):
            bases = [file.parents[node.level - 1]] if 0 < node.level <= len(file.parents) else roots
            for base in bases:
                names += [(base, ".".join(filter(None, (node.module, a.name)))) for a in node.names]
        for base, name in names:
            parts = name.split(".")
            for end in range(1, len(parts) + 1):  # packages on the way, and names that are no modules
                place = base.joinpath(*parts[:end])
                found |= {place.with_name(place.name + ".py"), place / "__init__.py"}
    return tuple(one.resolve() for one in found if one.is_file())


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path and folder.is_dir():
        sys.path.append(str(folder))


def _imported(name: str, file: Path, packaged: bool) -> ModuleType:
    """The module by its name where that means this file, else from the file itself."""
    alone = "_described_" + hashlib.sha256(os.fsencode(file)).hexdigest()[:16]
    if alone in sys.modules:
        return sys.modules[alone]
    first = name.partition(".")[0]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if packaged or (error.name or "").partition(".")[0] != first:
            raise
        module = None  # a package of that name is installed
    if module is not None and _is_of(module, file):
        return module
    if packaged:
        other = getattr(sys.modules[first], "__file__", None) or "elsewhere"
        raise ImportError(f"{first} was imported from {other}, not from this commit")
    spec = importlib.util.spec_from_file_location(alone, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alone] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alone]
        raise
    return module


def _is_of(module: ModuleType, file: Path) -> bool:
    return Path(getattr(module, "__file__", None) or "").resolve() == file


def _in_words(error: BaseException, file: Path, shown: str, top: Path) -> Exception:
    """What an import that failed means, and what to do."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == file]
    at = f"line {frames[-1].lineno}" if frames else "its import"
    if isinstance(error, SyntaxError):
        return RuntimeError(f"{shown} line {error.lineno} does not parse: {error.msg}")
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or "a module"
        ours = (top / missing.partition(".")[0]).exists() or (top / "src" / missing.partition(".")[0]).exists()
        if ours:
            return Unsupported(
                f"{shown} {at} imports {missing}, which this checkout does not hold (is it built?): keep the "
                "kernel in a file that needs no built module"
            )
        return Unsupported(
            f"{shown} {at} imports {missing}, which is not installed here: install it where ascend-perf is, or "
            "import it inside the functions that use it"
        )
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    advice = "what runs at import belongs below `if __name__ == '__main__':`"
    if isinstance(error, SystemExit):
        return RuntimeError(f"importing {shown} ended the program at {at} ({what}): {advice}")
    return RuntimeError(f"importing {shown} failed at {at} ({what}): {advice}, or install what it needs")


def family(file: str, ops: Iterable[Op]) -> Family:
    """The suites of a benchmarks file, `benchmarks/bench_<family>.py`.

    Under asv an op's description is the measured commit's where it has a finished one, so that a kernel whose
    signature changed is described as it was; else, as for commits from before the file, it is today's.
    """
    path = Path(file).resolve()
    if not path.name.startswith("bench_"):
        raise DescriptionError(f"{path.name}: name the file bench_<family>.py")
    name = path.stem.removeprefix("bench_")
    today = _rows(ops, name, path)
    then = _at_commit(path, today)
    return Described(name, {**today, **{n: one for n, one in then.items() if _finished(one)}}, today)


def _finished(one: Op) -> bool:
    return LATER not in one.cases and not (isinstance(one.call, _Described) and any(_marks(one.call.fields())))


def _rows(ops: Iterable[Op], name: str, path: Path) -> dict[str, Op]:
    rows: dict[str, Op] = {}
    for one in ops:
        if one.name in rows:
            raise DescriptionError(f"{path.name} describes two ops named {one.name}; rename one")
        rows[one.name] = dataclasses.replace(one, family=name)
    return rows


def repository_of(path: Path) -> Path:
    """The folder above a file that has an asv.conf.json or a .git, else the one above its own."""
    for folder in path.parents:
        if (folder / "asv.conf.json").is_file() or (folder / ".git").exists():
            return folder
    return path.parent.parent


def _at_commit(path: Path, today: Mapping[str, Op]) -> dict[str, Op]:
    """The descriptions of the measured commit; none outside asv, in that file itself, and where it has no such."""
    own = repository_of(path)
    top = _root(own)
    conf = os.environ.get("ASV_CONF_DIR")
    base = Path(conf).resolve() if conf else own
    if top == own or not path.is_relative_to(base) or top in path.parents:
        return {}
    file = top / path.relative_to(base)
    if not file.is_file():
        return {}
    try:
        sys.modules.pop(f"{PACKAGE}.{file.stem}", None)
        package = ModuleType(PACKAGE)
        package.__path__ = [str(file.parent)]
        sys.modules[PACKAGE] = package
        rows = importlib.import_module(f"{PACKAGE}.{file.stem}").FAMILY.ops
        return dict(rows)
    except (Exception, SystemExit) as error:
        words = (
            f"{file.relative_to(top).as_posix()} of this commit cannot be read: {type(error).__name__}: {error}"
        )

        def refuse(rng: torch.Generator) -> Arguments:
            raise NotDescribed(words)

        return {
            n: dataclasses.replace(o, cases={k: dataclasses.replace(c, make=refuse) for k, c in o.cases.items()})
            for n, o in today.items()
        }


@dataclass(frozen=True)
class Described(Family):
    """A family whose rows are the measured commit's; suites and parameters cover today's too, since asv asks for
    the benchmarks that it found once for all commits."""

    today: Mapping[str, Op] = dataclasses.field(default_factory=dict)

    def suites(self, module: str) -> dict[str, Any]:
        both = dict(self.today)
        for name, one in self.ops.items():
            known = both.get(name, one)
            cases = {**known.cases, **one.cases}
            if len(cases) > 1:
                cases.pop(LATER, None)
            both[name] = dataclasses.replace(one, cases=cases)
        return Family(self.name, both).suites(module)


def described(config: Path) -> dict[str, Op]:
    """Every op that the benchmarks files of an asv configuration describe, by name; runs those files."""
    match = re.search(r'"benchmark_dir"\s*:\s*"([^"\\]+)"', config.read_text(errors="replace"))
    folder = config.resolve().parent / (match[1] if match else "benchmarks")
    found: dict[str, Op] = {}
    for file in sorted(folder.glob("bench_*.py")):
        if "ascend_kernels.harness.describe" not in file.read_text(errors="replace"):
            continue
        package = ModuleType(PACKAGE)
        package.__path__ = [str(folder)]
        sys.modules[PACKAGE] = package
        found |= importlib.import_module(f"{PACKAGE}.{file.stem}").FAMILY.ops
    return found
