"""What can be read of Triton kernels from their source alone, with `ast`: nothing of the repository is imported.

Which functions are kernels and which only helpers of kernels; of each parameter whether it is a pointer, a scalar
or a constant; which pointers are written; which scalar bounds a mask; what autotune and heuristics say; and the
function that launches a kernel, with its grid and its arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

POINTER, SCALAR, CONSTANT, UNKNOWN = "pointer", "scalar", "constant", "unknown"
LARGEST = 2 << 20  # bytes of a file that is read
ATOMICS = ("add", "max", "min", "and", "or", "xor", "xchg", "cas")
ACCESSES = {"load": False, "store": True, **{f"atomic_{name}": True for name in ATOMICS}}
DEVICE_WORDS = {"is_cuda", "is_npu", "cuda", "npu", "xpu", "get_device_properties", "current_stream"}
MADE_EMPTY = {"empty", "empty_like", "zeros", "zeros_like", "ones", "full", "full_like", "new_empty", "new_zeros",
              "empty_strided"}  # fmt: skip
INTEGERS = {"int8", "uint8", "int16", "int32", "int", "int64", "long", "bool"}
DTYPES = {"float16", "half", "bfloat16", "float32", "float", "float64", *INTEGERS}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.  index_of: the pointers whose addresses its values decide; bounds: those whose
    masks its values bound.  shape: expressions of its extents, as far as the addresses and their masks tell."""

    name: str
    role: str
    stored: bool = False
    loaded: bool = False
    default: str = ""
    index_of: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wrapper:
    """A function that launches kernels: its parameters (those without default), the grid and arguments of the
    launch as written, and what is plain in its body about its tensors.

    returns: whether it returns something beside what is written.
    """

    file: str
    name: str
    line: int
    parameters: tuple[str, ...]
    grid: str
    arguments: Mapping[str, str]
    constants: Mapping[str, str] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    device_bound: str = ""
    returns: bool = False


@dataclass(frozen=True)
class Kernel:
    """One `@triton.jit` function that is launched, or at least not only called by other kernels."""

    file: str
    name: str
    line: int
    parameters: tuple[Parameter, ...]
    read: tuple[str, ...] = ()
    configs: tuple[Mapping[str, str], ...] = ()
    computed: Mapping[str, str] = field(default_factory=dict)
    tuned: bool = False
    grid: tuple[str, ...] = ()
    suggested: Mapping[str, str] = field(default_factory=dict)
    wrapper: Wrapper | None = None

    @property
    def place(self) -> str:
        return f"{self.file}:{self.name}"

    def role(self, name: str) -> str:
        return next((one.role for one in self.parameters if one.name == name), UNKNOWN)


@dataclass(frozen=True)
class Helper:
    """A jitted function that other kernels call, or that returns a value and so can be no kernel."""

    file: str
    name: str
    line: int
    called_by: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """A file or function that was left out, or that needs a look: a sentence that says what to do."""

    file: str
    line: int
    says: str


@dataclass(frozen=True)
class Found:
    """What a repository's files hold."""

    kernels: tuple[Kernel, ...]
    helpers: tuple[Helper, ...]
    problems: tuple[Problem, ...]
    imports: Mapping[str, tuple[str, ...]]


@dataclass
class _File:
    """One parsed file.  jits: names in it that mean triton.jit; modules: names that mean triton."""

    name: str
    tree: ast.Module
    triton: set[str]
    language: set[str]
    given: dict[str, str]
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)


def read(top: Path, files: Sequence[str]) -> Found:
    """Everything found in `files`, which are relative to `top`."""
    parsed: list[_File] = []
    problems: list[Problem] = []
    for name in files:
        try:
            if (top / name).stat().st_size > LARGEST:
                problems.append(Problem(name, 1, f"larger than {LARGEST >> 20} MiB, not read"))
                continue
            text = (top / name).read_bytes()
            if b"triton" not in text:
                continue
            parsed.append(_parse(name, text))
        except OSError as error:
            problems.append(Problem(name, 1, f"cannot be read: {error.strerror}"))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            words = getattr(error, "msg", None) or str(error) or type(error).__name__
            problems.append(Problem(name, line, f"does not parse ({words}): mend it, then run init again"))
    return _found(parsed, problems)


def _parse(name: str, text: bytes) -> _File:
    tree = ast.parse(text, filename=name)
    triton, language, given = set(), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                if alias.name == "triton" or (alias.name.startswith("triton.") and not alias.asname):
                    triton.add(bound)
                if alias.name == "triton.language" and alias.asname:
                    language.add(bound)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = "." * node.level + (node.module or "")
                given[alias.asname or alias.name] = f"{module}:{alias.name}"
                if module == "triton" and alias.name == "language":
                    language.add(alias.asname or alias.name)
    return _File(name, tree, triton, language, given)


def _found(files: list[_File], problems: list[Problem]) -> Found:
    jitted: dict[str, tuple[_File, ast.FunctionDef]] = {}
    for one in files:
        for node, inside in _functions(one.tree):
            if not any(_decorator(one, d) == "jit" for d in node.decorator_list):
                continue
            if inside:
                words = f"kernel {node.name} is defined inside {inside}: move it to the top of the file"
                problems.append(Problem(one.name, node.lineno, words))
                continue
            if f"{one.name}:{node.name}" in jitted:
                words = f"kernel {node.name} is defined twice; the last one counts"
                problems.append(Problem(one.name, node.lineno, words))
            one.functions[node.name] = node
            jitted[f"{one.name}:{node.name}"] = (one, node)
    launched: set[str] = set()
    callers: dict[str, set[str]] = {}
    for one in files:
        for inner in ast.walk(one.tree):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Subscript):
                place = _resolve(inner.func.value, one, jitted)
                launched |= {place} if place else set()
    for place, (one, node) in jitted.items():
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                called = _resolve(inner.func, one, jitted)
                if called and called != place:
                    callers.setdefault(called, set()).add(node.name)
    helpers = [
        Helper(jitted[place][0].name, jitted[place][1].name, jitted[place][1].lineno, tuple(sorted(names)))
        for place, names in callers.items()
        if place not in launched
    ]
    helpers += [
        Helper(one.name, node.name, node.lineno, ())
        for place, (one, node) in jitted.items()
        if place not in launched and place not in callers and _returns_a_value(node)
    ]
    known = {f"{h.file}:{h.name}" for h in helpers}
    roles = _Roles(jitted)
    kernels = [_kernel(one, node, roles) for place, (one, node) in jitted.items() if place not in known]
    kernels = [replace(k, wrapper=_wrapper(k, files, jitted)) for k in kernels]
    for one in files:
        if any(k.file == one.name or (k.wrapper and k.wrapper.file == one.name) for k in kernels):
            problems += _side_effects(one)
    imports = {one.name: _imported(one.tree) for one in files}
    return Found(tuple(sorted(kernels, key=lambda k: (k.file, k.line))), tuple(helpers), tuple(problems), imports)


def _returns_a_value(function: ast.FunctionDef) -> bool:
    returns = (inner.value for inner in ast.walk(function) if isinstance(inner, ast.Return))
    return any(value is not None and not _is_none(value) for value in returns)


def _functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[ast.FunctionDef, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, inside
            yield from _functions(node, f"{node.name}()")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"class {node.name}")
        elif not isinstance(node, ast.expr):
            yield from _functions(node, inside)


def _decorator(file: _File, node: ast.expr) -> str:
    """`jit`, `autotune`, `heuristics` for triton's own, else the decorator as written."""
    target = node.func if isinstance(node, ast.Call) else node
    if isinstance(target, ast.Attribute):
        base = ast.unparse(target.value)
        if base in file.triton or base.partition(".")[0] in file.triton:
            return target.attr
        return ast.unparse(target)
    if isinstance(target, ast.Name):
        module, _, name = file.given.get(target.id, ":").partition(":")
        return name if module.partition(".")[0] == "triton" else target.id
    return ast.unparse(target)


def _resolve(node: ast.expr, file: _File, jitted: Mapping[str, object]) -> str:
    """The kernel that an expression names: of this file, or imported into it."""
    if isinstance(node, ast.Name):
        if f"{file.name}:{node.id}" in jitted:
            return f"{file.name}:{node.id}"
        module, _, name = file.given.get(node.id, ":").partition(":")
        stem = module.rpartition(".")[2]
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        name = node.attr
        module, _, stem = file.given.get(node.value.id, f":{node.value.id}").partition(":")
    else:
        return ""
    if not name:
        return ""
    places = [p for p in jitted if p.endswith(f":{name}") and (not stem or _module_is(p, module, stem))]
    return places[0] if len(places) == 1 else ""


def _module_is(place: str, module: str, stem: str) -> bool:
    path = Path(place.rpartition(":")[0])
    return (
        stem == path.stem or (path.name == "__init__.py" and stem == path.parent.name) or stem == path.parent.name
    )


def described_places(text: bytes, op: str) -> list[str]:
    """Files of the kernels and wrappers that a benchmarks file describes under an op's name, as it is written."""
    found = []
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            given = {one.arg: one.value for one in node.keywords}
            name = node.args[0] if node.args else given.get("name")
            if not isinstance(name, ast.Constant) or name.value != op:
                continue
            for place in (given.get("kernel"), given.get("call")):
                if isinstance(place, ast.Constant) and isinstance(place.value, str):
                    found.append(place.value.rpartition(":")[0])
    return found


def imported_by(text: bytes) -> tuple[str, ...]:
    """`imports_in`, nothing for a file that is no Python."""
    return _imported(_tree(text))


def _tree(text: bytes) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def imports_in(text: bytes) -> tuple[str, ...]:
    """Modules that a file imports, dotted, relative ones with their dots in front."""
    return _imported(ast.parse(text))


def _imported(tree: ast.Module) -> tuple[str, ...]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            joint = "." if node.module else ""
            found += [base, *(f"{base}{joint}{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(found))


def first_party(name: str, modules: Iterable[str], holds: Callable[[str], bool]) -> list[str]:
    """Files of the repository that a file's imports mean.  holds: whether the repository has a file."""
    found = []
    here = PurePosixPath(name).parent
    for module in modules:
        bare = module.lstrip(".")
        level = len(module) - len(bare)
        bases = [PurePosixPath("."), PurePosixPath("src"), here]
        if level:
            base = here
            for _ in range(level - 1):
                base = base.parent
            bases = [base]
        for base in bases:
            path = base.joinpath(*bare.split(".")) if bare else base
            for candidate in (path.with_name(path.name + ".py") if path.name else path, path / "__init__.py"):
                if ".." not in candidate.parts and holds(candidate.as_posix()):
                    found.append(candidate.as_posix())
    return found


def _side_effects(file: _File) -> list[Problem]:
    """Statements at the top that do something when the file is imported."""
    found = []
    for node in file.tree.body:
        call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        loop = isinstance(node, ast.For | ast.While | ast.With)
        if not (call or loop):
            continue
        words = ast.unparse(node).splitlines()[0][:60]
        says = f"importing this file runs `{words}`: put it below `if __name__ == '__main__':` if it does any work"
        found.append(Problem(file.name, node.lineno, says))
    return found


class _Roles:
    """Roles of the parameters of jitted functions; a pointer handed to a helper is what the helper makes of it."""

    def __init__(self, jitted: Mapping[str, tuple[_File, ast.FunctionDef]]) -> None:
        self.jitted = jitted
        self._known: dict[str, _Body | None] = {}

    def of(self, place: str) -> _Body | None:
        if place not in self._known:
            self._known[place] = None  # a function that calls itself
            file, node = self.jitted[place]
            self._known[place] = _Body(file, node, self)
        return self._known[place]


@dataclass(frozen=True)
class _Access:
    pointer: str
    stored: bool
    address: ast.expr
    mask: ast.expr | None


class _Body:
    """One reading of a jitted function: what each name was assigned, and every access."""

    def __init__(self, file: _File, node: ast.FunctionDef, roles: _Roles) -> None:
        self.file, self.node = file, node
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        defaults = dict(
            zip([a.arg for a in [*arguments.posonlyargs, *arguments.args]][::-1], arguments.defaults[::-1])
        )
        defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults) if d is not None}
        self.names = [one.arg for one in every]
        self.defaults = {name: ast.unparse(value) for name, value in defaults.items()}
        self.constants = {
            one.arg for one in every if one.annotation and "constexpr" in ast.unparse(one.annotation)
        }
        annotated = {one.arg: ast.unparse(one.annotation) for one in every if one.annotation}
        self.assigned: dict[str, ast.expr] = {}
        self.numbers: set[str] = set()
        self.moved: dict[str, list[ast.expr] | None] = {}
        self.accesses: list[_Access] = []
        self.handed: dict[str, list[tuple[str, Parameter]]] = {}
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Assign)
                and len(inner.targets) == 1
                and isinstance(inner.targets[0], ast.Name)
            ):
                self.assigned.setdefault(inner.targets[0].id, inner.value)
        for inner in ast.walk(node):
            if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
                once = inner in node.body and isinstance(inner.op, ast.Add) and inner.target.id not in self.moved
                self.moved[inner.target.id] = [inner.value] if once else None
            self._numbers(inner)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self._access(inner)
                called = _resolve(inner.func, file, roles.jitted)
                other = roles.of(called) if called else None
                if other is not None:
                    self._hand(inner, other)
        self.pointers: dict[str, tuple[bool, bool]] = {}
        for one in self.accesses:
            loaded, stored = self.pointers.get(one.pointer, (False, False))
            self.pointers[one.pointer] = (loaded or not one.stored, stored or one.stored)
        for name, uses in self.handed.items():
            for _, use in uses:
                if use.role == POINTER:
                    loaded, stored = self.pointers.get(name, (False, False))
                    self.pointers[name] = (loaded or use.loaded, stored or use.stored)
        for name, words in annotated.items():
            if "pointer" in words.lower() or words.strip("'\"").startswith("*"):
                self.pointers.setdefault(name, (True, False))
        self.parameters = tuple(self._parameter(name) for name in self.names)

    def _numbers(self, node: ast.AST) -> None:
        """Parameters used as numbers: multiplied, compared, a bound of a loop."""
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Sub):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Compare):
            operands = [o for o in [node.left, *node.comparators] if not _is_none(o)]
            if any(_is_none(o) for o in node.comparators):
                operands = []
        elif isinstance(node, ast.Call) and _last(node.func) in (
            "range",
            "cdiv",
            "static_range",
            "minimum",
            "maximum",
        ):
            operands = list(node.args)
        for one in operands:
            for name in _sum_leaves(one):
                if isinstance(name, ast.Name) and name.id in self.names:
                    self.numbers.add(name.id)

    def _access(self, call: ast.Call) -> None:
        name = _last(call.func)
        address: ast.expr | None = None
        if name in ACCESSES and call.args and self._of_language(call.func):
            address = call.args[0]
        elif name in ("make_block_ptr", "make_tensor_descriptor"):
            address = call.args[0] if call.args else _keyword(call, "base")
        if address is None:
            return
        pointer = self._pointer(address)
        mask = _keyword(call, "mask")
        position = 1 if name == "load" else 2
        if mask is None and name in ("load", "store") and len(call.args) > position:
            mask = call.args[position]
        if pointer:
            stored = ACCESSES.get(name, False)
            if name.startswith("make_"):
                stored = self._descriptor_stored(call)
            self.accesses.append(_Access(pointer, stored, address, mask))
            if name.startswith("atomic"):
                self.accesses.append(_Access(pointer, False, address, mask))

    def _of_language(self, func: ast.expr) -> bool:
        if isinstance(func, ast.Attribute):
            return ast.unparse(func.value) in self.file.language or ast.unparse(func.value).endswith("language")
        return isinstance(func, ast.Name) and self.file.given.get(func.id, "").startswith("triton.language")

    def _descriptor_stored(self, call: ast.Call) -> bool:
        held = {name for name, value in self.assigned.items() if value is call}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Call) and _last(node.func) == "store":
                first = node.args[0] if node.args else None
                owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                if any(isinstance(o, ast.Name) and o.id in held for o in (first, owner)):
                    return True
        return False

    def _pointer(self, address: ast.expr, seen: tuple[str, ...] = ()) -> str:
        """The parameter that an address starts from."""
        found = []
        for leaf in _sum_leaves(address):
            if not isinstance(leaf, ast.Name) or leaf.id in seen:
                continue
            if leaf.id in self.names and leaf.id not in self.assigned:
                found.append(leaf.id)
            elif leaf.id in self.names:
                found.append(leaf.id)
            elif leaf.id in self.assigned:
                inner = self._pointer(self.assigned[leaf.id], (*seen, leaf.id))
                if inner:
                    found.append(inner)
        rest = [n for n in found if n not in self.constants and n not in self.numbers]
        named = [n for n in rest if n.lower().endswith(("ptr", "_p")) or "ptr" in n.lower()]
        return (named or rest or [""])[0]

    def _hand(self, call: ast.Call, other: _Body) -> None:
        pairs = list(zip(other.parameters, call.args))
        pairs += [(p, k.value) for k in call.keywords for p in other.parameters if p.name == k.arg]
        for parameter, value in pairs:
            name = self._pointer(value) if parameter.role == POINTER else ""
            if name:
                self.handed.setdefault(name, []).append((other.node.name, parameter))

    def _parameter(self, name: str) -> Parameter:
        default = self.defaults.get(name, "")
        if name in self.constants:
            return Parameter(name, CONSTANT, default=default)
        if name in self.pointers:
            loaded, stored = self.pointers[name]
            index_of, bounds = self._used_by(name)
            return Parameter(name, POINTER, stored, loaded, default, index_of, self._shape(name), bounds)
        used = any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(self.node) if n is not self.node)
        plain = name in self.numbers or self._handed_scalar(name) or (used and self._in_sums(name))
        return Parameter(name, SCALAR if plain or default not in ("", "None") else UNKNOWN, default=default)

    def _handed_scalar(self, name: str) -> bool:
        return any(use.role == SCALAR for _, use in self.handed.get(name, []))

    def _in_sums(self, name: str) -> bool:
        """Whether it is part of arithmetic, and no address starts from it."""
        return any(
            isinstance(node, ast.BinOp | ast.Call | ast.IfExp | ast.If)
            and any(isinstance(n, ast.Name) and n.id == name for n in ast.iter_child_nodes(node))
            for node in ast.walk(self.node)
        )

    def _used_by(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Pointers whose addresses hold something loaded from this one, and those whose masks it bounds."""
        loads = {
            target
            for target, value in self.assigned.items()
            for call in ast.walk(value)
            if isinstance(call, ast.Call) and _last(call.func) == "load" and call.args
            if self._pointer(call.args[0]) == name
        }
        grown = True
        while grown:
            more = {
                target
                for target, value in self.assigned.items()
                if target not in loads
                and not any(isinstance(n, ast.Call) and _last(n.func) == "load" for n in ast.walk(value))
                and any(isinstance(n, ast.Name) and n.id in loads for n in ast.walk(value))
            }
            grown = bool(more)
            loads |= more
        others = [one for one in self.accesses if one.pointer != name]
        index_of = [one.pointer for one in others if _names(one.address) & loads]
        bounds = [one.pointer for one in others if any(_names(side) & loads for side in self._bounds(one.mask))]
        return tuple(dict.fromkeys(index_of)), tuple(dict.fromkeys(bounds))

    def _bounds(self, mask: ast.expr | None) -> list[ast.expr]:
        """What stands on the larger side of a mask's comparisons."""
        if isinstance(mask, ast.Name) and mask.id in self.assigned:
            mask = self.assigned[mask.id]
        return [
            node.comparators[0] if isinstance(node.ops[0], ast.Lt | ast.LtE) else node.left
            for node in (ast.walk(mask) if mask is not None else ())
            if isinstance(node, ast.Compare) and len(node.ops) == 1
            if isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        ]

    def _cuts(self, mask: ast.expr | None, lanes: ast.expr) -> bool:
        """Whether a mask compares these lanes with its bound: those of another axis say nothing of this one."""
        if isinstance(mask, ast.Name) and mask.id in self.assigned:
            mask = self.assigned[mask.id]
        compares = [n for n in (ast.walk(mask) if mask is not None else ()) if isinstance(n, ast.Compare)]
        sides = [side for n in compares for side in (n.left, *n.comparators)]
        return any(ast.dump(term) == ast.dump(lanes) for side in sides for term in self._expanded(side))

    def _expanded(self, node: ast.expr, seen: tuple[str, ...] = ()) -> list[ast.expr]:
        """The terms of a sum, with names replaced by what they were assigned."""
        terms: list[ast.expr] = []
        for leaf in _sum_leaves(node):
            if isinstance(leaf, ast.Name) and leaf.id in self.assigned and leaf.id not in seen:
                value = self.assigned[leaf.id]
                if isinstance(value, ast.BinOp | ast.Name):
                    terms += self._expanded(value, (*seen, leaf.id))
                    continue
                terms.append(value if _last(getattr(value, "func", value)) in ("arange", "program_id") else leaf)
                continue
            terms.append(leaf)
        return terms

    def _axis(self, node: ast.expr) -> int | None:
        """The axis of a program id that an expression is, or None."""
        if isinstance(node, ast.Name) and node.id in self.assigned:
            node = self.assigned[node.id]
        while isinstance(node, ast.Call) and _last(node.func) in ("to", "cast"):
            node = (
                node.func.value
                if isinstance(node.func, ast.Attribute) and _last(node.func) == "to"
                else node.args[0]
            )
        if isinstance(node, ast.Call) and _last(node.func) == "program_id":
            given = node.args[0] if node.args else _keyword(node, "axis")
            if given is None:
                return 0
            return given.value if isinstance(given, ast.Constant) and isinstance(given.value, int) else None
        return None

    def bound(self, mask: ast.expr | None, offset: ast.expr | None = None) -> str:
        """The scalar parameter that a mask `offsets < n` compares with; empty where there is none or more."""
        if isinstance(mask, ast.Name) and mask.id in self.assigned:
            mask = self.assigned[mask.id]
        if mask is None:
            return ""
        found = set()
        for node in ast.walk(mask):
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                sides = (node.left, node.comparators[0])
                right = sides[1] if isinstance(node.ops[0], ast.Lt) else sides[0]
                if isinstance(node.ops[0], ast.Lt | ast.Gt) and isinstance(right, ast.Name):
                    if right.id in self.names and right.id not in self.constants:
                        found.add(right.id)
        return found.pop() if len(found) == 1 else ""

    def _shape(self, name: str) -> tuple[str, ...]:
        """Extents of a tensor whose every access reads `ptr + offsets` or `ptr + row * stride + columns`."""
        shapes = {self._extent(one) for one in self.accesses if one.pointer == name}
        return shapes.pop() if len(shapes) == 1 else ()

    def _extent(self, access: _Access) -> tuple[str, ...]:
        bound = self.bound(access.mask)
        named = {n.id for n in ast.walk(access.address) if isinstance(n, ast.Name)}
        terms = self._expanded(access.address)
        for name in named & set(self.moved):
            steps = self.moved[name]
            if steps is None or name != access.pointer:  # moved in a loop, or more than once
                return ()
            terms += [term for step in steps for term in self._expanded(step)]
        terms = [t for t in terms if not (isinstance(t, ast.Name) and t.id == access.pointer)]
        rows = [t for t in terms if isinstance(t, ast.BinOp) and isinstance(t.op, ast.Mult)]
        lanes = [t for t in terms if isinstance(t, ast.Call) and _last(t.func) == "arange"]
        if len(terms) == 1 and self._axis(terms[0]) is not None:
            return (f"programs{self._axis(terms[0])}",)
        if len(lanes) != 1 or not bound or len(terms) != len(rows) + 1 or len(rows) > 1:
            return ()
        if not rows:
            return (bound,)
        sides = (rows[0].left, rows[0].right)
        for one, other in (sides, sides[::-1]):
            if not isinstance(other, ast.Name):
                continue
            if self._axis(one) is not None:
                if other.id in self.constants:  # block number times block size: one long row
                    return (bound,)
                if other.id in self.names:
                    return (f"programs{self._axis(one)}", other.id)
            if isinstance(one, ast.Name) and self._loaded(one) and other.id in self.names:
                return ("rows", other.id)
        return ()

    def _loaded(self, name: ast.Name) -> bool:
        value = self.assigned.get(name.id)
        return (
            any(isinstance(n, ast.Call) and _last(n.func) == "load" for n in ast.walk(value)) if value else False
        )

    def grid(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The grid that the program ids ask for, an expression an axis, and constants that a mask decides."""
        axes: dict[int, str] = {}
        suggested: dict[str, str] = {}
        for access in self.accesses:
            bound = self.bound(access.mask)
            terms = self._expanded(access.address)
            terms += [t for step in self.moved.get(access.pointer) or () for t in self._expanded(step)]
            lanes = [t for t in terms if isinstance(t, ast.Call) and _last(t.func) == "arange"]
            block = lanes[0].args[1] if len(lanes) == 1 and len(lanes[0].args) == 2 else None
            blocked = False
            for term in terms:
                axis = self._axis(term)
                if axis is not None:
                    axes.setdefault(axis, f"programs{axis}")
                if not (isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult)):
                    continue
                for one, other in ((term.left, term.right), (term.right, term.left)):
                    axis = self._axis(one)
                    if axis is None or not isinstance(other, ast.Name):
                        continue
                    if other.id in self.constants:
                        blocked = True
                        if bound:
                            axes[axis] = f"triton.cdiv({bound}, {other.id})"
                    else:
                        axes.setdefault(axis, f"programs{axis}")
            if not (isinstance(block, ast.Name) and block.id in self.constants and bound) or blocked:
                continue
            if self._cuts(access.mask, lanes[0]):
                suggested[block.id] = f"triton.next_power_of_2({bound})"
        loops = any(isinstance(n, ast.Call) and _last(n.func) == "num_programs" for n in ast.walk(self.node))
        asked = {
            axis for n in ast.walk(self.node) if isinstance(n, ast.Call) and (axis := self._axis(n)) is not None
        }
        if loops or not asked or asked != set(axes) or asked != set(range(len(asked))):
            return (), suggested
        return tuple(axes[axis] for axis in sorted(axes)), suggested


def _kernel(file: _File, node: ast.FunctionDef, roles: _Roles) -> Kernel:
    body = roles.of(f"{file.name}:{node.name}")
    assert body is not None
    read: list[str] = []
    configs: tuple[Mapping[str, str], ...] = ()
    computed: dict[str, str] = {}
    tuned = False
    for decorator in node.decorator_list:
        kind = _decorator(file, decorator)
        if kind == "jit":
            continue
        if kind == "autotune":
            tuned = True
            configs = _configs(decorator)
            words = (
                f"autotune with {len(configs)} configurations" if configs else "autotune, its configurations not"
            )
            read.append(words + (", the first is taken" if configs else " (they are no plain list)"))
        elif kind == "heuristics":
            computed = _heuristics(decorator)
            words = f"heuristics for {', '.join(computed)}" if computed else "heuristics, its functions not"
            read.append(words + ("" if computed else " (they are no plain dict)"))
        else:
            read.append(f"@{kind}: not read")
    if any(isinstance(n, ast.Call) and _last(n.func) == "dot" for n in ast.walk(node)):
        read.append("tl.dot: the model does not cover the cube unit, so on a CPU it will be `unsupported here`")
    grid, suggested = body.grid()
    return Kernel(
        file.name, node.name, node.lineno, body.parameters, tuple(read), configs, computed, tuned, grid, suggested
    )  # fmt: skip


def _configs(decorator: ast.expr) -> tuple[Mapping[str, str], ...]:
    if not isinstance(decorator, ast.Call):
        return ()
    given = _keyword(decorator, "configs") or (decorator.args[0] if decorator.args else None)
    found = []
    for one in given.elts if isinstance(given, ast.List | ast.Tuple) else ():
        if not (isinstance(one, ast.Call) and _last(one.func) == "Config"):
            return ()
        constants = one.args[0] if one.args else _keyword(one, "kwargs")
        if not isinstance(constants, ast.Dict):
            return ()
        values: dict[str, str] = {}
        for key, value in zip(constants.keys, constants.values):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str) and _literal(value)):
                return ()
            values[key.value] = ast.unparse(value)
        for word in one.keywords:
            if word.arg in ("num_warps", "num_stages", "multibuffer") and _literal(word.value):
                values[word.arg] = ast.unparse(word.value)
        found.append(values)
    return tuple(found)


def _heuristics(decorator: ast.expr) -> dict[str, str]:
    """Constant -> the function of the arguments that gives it, as written."""
    if not isinstance(decorator, ast.Call):
        return {}
    given = decorator.args[0] if decorator.args else _keyword(decorator, "values")
    if not isinstance(given, ast.Dict):
        return {}
    return {
        str(key.value): ast.unparse(value)
        for key, value in zip(given.keys, given.values)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Lambda)
    }


def _wrapper(kernel: Kernel, files: Iterable[_File], jitted: Mapping[str, object]) -> Wrapper | None:
    """The function that launches a kernel: at the top of a file, and rather one that runs without a device."""
    found = []
    for file in files:
        for node, inside in _functions(file.tree):
            if any(_decorator(file, d) == "jit" for d in node.decorator_list):
                continue
            for call in ast.walk(node):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript)):
                    continue
                if _resolve(call.func.value, file, jitted) == kernel.place:
                    one = _described(file, node, call, kernel)
                    found.append(replace(one, device_bound=f"it is inside {inside}") if inside else one)
                    break
    return min(found, key=lambda w: (bool(w.device_bound), w.file != kernel.file, w.line), default=None)


def _described(file: _File, node: ast.FunctionDef, call: ast.Call, kernel: Kernel) -> Wrapper:
    assert isinstance(call.func, ast.Subscript)
    assigned = {
        inner.targets[0].id: inner.value
        for inner in ast.walk(node)
        if isinstance(inner, ast.Assign) and len(inner.targets) == 1 and isinstance(inner.targets[0], ast.Name)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef) and inner is not node and len(inner.body) == 1:
            only = inner.body[0]
            if isinstance(only, ast.Return) and only.value is not None:
                assigned[inner.name] = ast.Lambda(inner.args, only.value)
    grid: ast.expr = call.func.slice
    if isinstance(grid, ast.Name) and grid.id in assigned:
        grid = assigned[grid.id]
    names = [p.name for p in kernel.parameters]
    arguments = {name: ast.unparse(value) for name, value in zip(names, call.args)}
    arguments |= {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}
    constants = {}
    for parameter in kernel.parameters:
        text = arguments.get(parameter.name, "")
        if parameter.role == CONSTANT and text:
            held = assigned.get(text)
            constants[parameter.name] = ast.unparse(held) if held is not None else text
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    needed = [a.arg for a in positional[: len(positional) - len(given.defaults)]]
    needed += [a.arg for a, d in zip(given.kwonlyargs, given.kw_defaults) if d is None]
    every = [*positional, *given.kwonlyargs]
    tensors = {a.arg for a in every if a.annotation and "Tensor" in ast.unparse(a.annotation)}
    written = set()
    for parameter in kernel.parameters:
        value = arguments.get(parameter.name, "")
        if parameter.role == POINTER and value in {a.arg for a in every}:
            tensors.add(value)
            if parameter.stored and not (isinstance(assigned.get(value), ast.Call) and _made(assigned[value])):
                written.add(value)
    flat = {arguments.get(p.name, "") for p in kernel.parameters if p.role == POINTER and len(p.shape) == 1}
    dtypes, shapes = _facts(node, {a.arg for a in every}, flat)
    tensors |= set(shapes) & {a.arg for a in every}
    for local, made in assigned.items():
        extents = _extents_made(made, shapes)
        if extents:
            shapes.setdefault(local, extents)
    kept = [n for n in needed if n in tensors] + [n for n in needed if n not in tensors]
    return Wrapper(
        file.name, node.name, node.lineno, tuple(needed), ast.unparse(grid), arguments, constants,
        tuple(n for n in kept if n in tensors), dtypes, shapes, tuple(n for n in needed if n in written),
        _device_bound(node), any(_names(value) - written for value in _returned(node)),
    )  # fmt: skip


def _extents_made(value: ast.expr, shapes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Extents of what `torch.empty((M, N), ...)`, `x.new_empty(M, N)` or `torch.empty_like(x)` makes."""
    if not (isinstance(value, ast.Call) and _made(value) and value.args):
        return ()
    first = value.args[0]
    if _last(value.func).endswith("_like"):
        return shapes.get(first.id, ()) if isinstance(first, ast.Name) else ()
    parts = first.elts if isinstance(first, ast.Tuple | ast.List) else value.args
    return (
        tuple(p.id for p in parts if isinstance(p, ast.Name))
        if all(isinstance(p, ast.Name) for p in parts)
        else ()
    )


def _made(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _last(value.func) in MADE_EMPTY


def _facts(
    node: ast.FunctionDef, names: set[str], flat: set[str]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """dtypes and extents that a wrapper states plainly: assertions, and how it takes a shape apart.
    flat: arguments that the kernel addresses along one axis."""
    dtypes: dict[str, str] = {}
    shapes: dict[str, tuple[str, ...]] = {}
    same: list[tuple[str, str]] = []
    alike = {name: name for name in names}
    axes: dict[str, dict[int, str]] = {}
    for inner in ast.walk(node):
        taken = _axis_taken(inner, alike)
        if taken:
            axes.setdefault(taken[0], {}).setdefault(taken[1], "")
        if isinstance(inner, ast.Assign) and len(inner.targets) == 1:
            for target, value in _pairs(inner.targets[0], inner.value):
                named = _axis_taken(value, alike)
                if named and isinstance(target, ast.Name) and not _called(value, "stride"):
                    axes.setdefault(named[0], {})[named[1]] = target.id
            held = inner.targets[0].id if isinstance(inner.targets[0], ast.Name) else ""
            source = _like(inner.value, alike)
            if held and source:
                alike.setdefault(held, source)
            owner = _attribute(inner.value, "shape", alike) or _called_on(inner.value, "size", alike)
            target = inner.targets[0]
            if owner and isinstance(target, ast.Tuple) and all(isinstance(e, ast.Name) for e in target.elts):
                shapes[owner] = tuple(e.id for e in target.elts if isinstance(e, ast.Name))
            counted = _called_on(inner.value, "numel", alike)
            if counted and isinstance(target, ast.Name):
                shapes.setdefault(counted, (target.id,))
        if isinstance(inner, ast.Compare):
            for left, op, right in zip([inner.left, *inner.comparators], inner.ops, inner.comparators):
                if not isinstance(op, ast.Eq | ast.In):
                    # `if x.dtype != torch.float32: raise` states the same
                    if not (isinstance(op, ast.NotEq | ast.NotIn) and _raises(node, inner)):
                        continue
                one = _attribute(left, "dtype", alike)
                first = (
                    right.elts[0] if isinstance(right, ast.Tuple | ast.List | ast.Set) and right.elts else right
                )
                if one and isinstance(first, ast.Attribute) and first.attr in DTYPES:
                    dtypes[one] = first.attr
                pair = _attribute(left, "shape", alike), _attribute(right, "shape", alike)
                if all(pair):
                    same.append((pair[0], pair[1]))
                pair = _attribute(left, "dtype", alike), _attribute(right, "dtype", alike)
                if all(pair):
                    for one, other in (pair, pair[::-1]):
                        if other in dtypes:
                            dtypes.setdefault(one, dtypes[other])
    for owner, extents in axes.items():  # a tensor of which only the first axis is spoken of may have more
        if any(extents.values()) and (max(extents) > 0 or owner in flat):
            shapes.setdefault(owner, tuple(extents.get(axis, "") for axis in range(max(extents) + 1)))
    for one, other in same:
        if one in shapes:
            shapes.setdefault(other, shapes[one])
        elif other in shapes:
            shapes.setdefault(one, shapes[other])
    return dtypes, shapes


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`a, b = x, y` as two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts))
    return [(target, value)]


def _axis_taken(node: ast.AST, owners: Mapping[str, str]) -> tuple[str, int] | None:
    """The argument and axis of `x.shape[1]`, `x.size(1)`, `x.stride(1)` and `len(x)`."""
    owner, axis = "", node
    if isinstance(node, ast.Subscript):
        owner, axis = _attribute(node.value, "shape", owners), node.slice
    elif isinstance(node, ast.Call) and len(node.args) == 1:
        if _last(node.func) == "len" and isinstance(node.args[0], ast.Name):
            owner, axis = owners.get(node.args[0].id, ""), ast.Constant(0)
        else:
            owner = _attribute(node.func, "size", owners) or _attribute(node.func, "stride", owners)
            axis = node.args[0]
    if not (owner and isinstance(axis, ast.Constant) and type(axis.value) is int and axis.value >= 0):
        return None
    return owner, axis.value


def _raises(node: ast.FunctionDef, test: ast.Compare) -> bool:
    return any(
        isinstance(n, ast.If)
        and any(m is test for m in ast.walk(n.test))
        and any(isinstance(b, ast.Raise) for b in n.body)
        for n in ast.walk(node)
    )


def _device_bound(node: ast.FunctionDef) -> str:
    """What in a wrapper asks for a device, so that it does not run on CPU tensors; empty where nothing does."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and inner.attr in DEVICE_WORDS:
            return f"`{ast.unparse(inner)}` in line {inner.lineno} needs a device"
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            if inner.value.partition(":")[0] in ("cuda", "npu", "xpu"):
                return f"{inner.value!r} in line {inner.lineno} needs a device"
    return ""


def _like(node: ast.expr, alike: Mapping[str, str]) -> str:
    """The argument that `torch.empty_like(x)` or `x.contiguous()` has the shape of."""
    if isinstance(node, ast.Call) and _last(node.func) in ("empty_like", "zeros_like") and node.args:
        return alike.get(_last(node.args[0]), "") if isinstance(node.args[0], ast.Name) else ""
    return _called_on(node, "contiguous", alike)


def _attribute(node: ast.expr, name: str, owners: Mapping[str, str]) -> str:
    """The argument that stands for `x` in `x.name`."""
    if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.value, ast.Name):
        return owners.get(node.value.id, "")
    return ""


def _called_on(node: ast.expr, name: str, owners: Mapping[str, str]) -> str:
    return _attribute(node.func, name, owners) if isinstance(node, ast.Call) and not node.args else ""


def _returned(node: ast.FunctionDef) -> list[ast.expr]:
    """What a function returns; functions inside it return something else."""
    inner = {n for f in ast.walk(node) if isinstance(f, ast.FunctionDef) and f is not node for n in ast.walk(f)}
    return [
        n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None and n not in inner
    ]


def _called(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _last(node.func) == name


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _sum_leaves(node: ast.expr) -> list[ast.expr]:
    """The terms of a sum, left to right; the broadcasts and casts around them taken off."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return [*_sum_leaves(node.left), *_sum_leaves(node.right)]
    if isinstance(node, ast.Subscript):
        return _sum_leaves(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return _sum_leaves(node.func.value)
    return [node]
