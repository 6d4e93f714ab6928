"""Read Linalg text as triton-ascend prints it: statements with operands, loops around them and source lines.

Only what `explain` asks for is read.  The text is this tool chain's own; a line that is not understood becomes a
statement without operands rather than an error, because an explanation is no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ascend_model.source import in_library, unescaped

_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')

Place = tuple[str, int, int]
"""File as the compiler was told, line from one, column from zero."""

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$", re.M)
_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_ASSIGN = re.compile(r"^(%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+)*) = (.*)$", re.S)
_LOC = re.compile(r' loc\((?:[^()"]|"(?:[^"\\]|\\.)*"|\((?:[^()"]|"(?:[^"\\]|\\.)*"|\([^()]*\))*\))*\)')
_PAIR = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")
_TENSOR = re.compile(r"tensor<((?:(?:\?|\d+)x)*)(\w+)>")


@dataclass(eq=False)
class Node:
    """A statement, an argument of the kernel ("argument") or a value carried through a loop ("carried").

    inputs: what it reads; of a carried value, its first value and, once the loop is read, its next.
    loops:  the loops it stands in, outermost first.  place: where in the kernel's source, if known.
    """

    op: str
    text: str = ""
    type: str = ""
    inputs: list[Node] = field(default_factory=list)
    loops: tuple[Node, ...] = ()
    place: Place | None = None
    marks: str = ""
    carries: list[Node] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)

    @property
    def short(self) -> str:
        return self.op.rpartition(".")[2]

    @property
    def tensor(self) -> tuple[tuple[int, ...], str] | None:
        """Shape and element type of the result, when it is a tensor; 0 stands for a size not known."""
        found = _TENSOR.findall(self.type)
        if not found:
            return None
        sizes, element = found[-1]
        return tuple(0 if d == "?" else int(d) for d in sizes.split("x")[:-1]), element

    def walk(self) -> Iterator[Node]:
        yield self
        for node in self.body:
            yield from node.walk()

    def origins(self, through: tuple[str, ...] = ()) -> Iterator[Node]:
        """Everything this value is computed from, itself first, each once; what is inside a loop that it is
        the result of included.  Ops named in `through` are yielded but not looked behind."""
        seen: set[int] = set()
        queue = [self]
        while queue:
            node = queue.pop(0)
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if node.op not in through:
                queue += node.inputs


@dataclass(frozen=True)
class Function:
    """One kernel: its name, arguments with (type, tt.tensor_kind), and statements."""

    name: str
    arguments: tuple[tuple[str, int | None], ...]
    root: Node
    inputs: tuple[Node, ...] = ()

    def nodes(self, *ops: str) -> Iterator[Node]:
        for node in self.root.walk():
            if not ops or node.op in ops:
                yield node


def read(text: str) -> Function | None:
    """The kernel in Linalg text; None when there is none."""
    return _Reader(text).function()


class _Reader:
    def __init__(self, text: str):
        self.aliases = dict(_ALIAS.findall(text))
        self.lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self.scopes: list[dict[str, Node]] = [{}]
        self.open: list[Node] = []
        self.loops: list[Node] = []

    def function(self) -> Function | None:
        name, arguments, inputs = "", [], []
        root = Node("func.func")
        for line in self.lines:
            bare = _LOC.sub("", line).strip()
            if bare.startswith("func.func private"):
                continue
            if bare.startswith("func.func"):
                found = re.match(r"func\.func @([\w$.-]+)\((.*)\)", bare)
                if not found or name:
                    return None
                name = found[1]
                for argument in re.findall(r"(%\w+): ([^{,]*(?:<[^>]*>)?[^{,]*)(\{[^}]*\})?", found[2]):
                    kind = re.search(r"tt\.tensor_kind = (\d)", argument[2])
                    arguments.append((argument[1].strip(), int(kind[1]) if kind else None))
                    node = Node("argument", argument[0], argument[1].strip())
                    inputs.append(node)
                    self.scopes[-1][argument[0]] = node
                self.open = [root]
                self.scopes.append({})
            elif name:
                self.statement(bare, self.place(line))
                if not self.open:
                    break
        return Function(name, tuple(arguments), root, tuple(inputs)) if name else None

    def place(self, line: str) -> Place | None:
        found = _LOC.findall(line)
        return self.resolve(found[-1]) if found else None

    def resolve(self, text: str, depth: int = 0) -> Place | None:
        """The source line of the kernel's own file: a helper of triton's library stands for its caller."""
        if depth > 16:
            return None
        places = [(unescaped(m[1]), int(m[2]), int(m[3])) for m in _FILE.finditer(text)]
        for alias in re.findall(r"#loc\d*", text):
            inner = self.resolve(self.aliases.get(alias, ""), depth + 1)
            if inner:
                places.append(inner)
        own = [place for place in places if not in_library(place[0])]
        return next(iter(own or places), None)

    def look(self, name: str) -> Node | None:
        for scope in reversed(self.scopes):
            for key in (name, name.partition("#")[0]):
                if key in scope:
                    return scope[key]
        return None

    def statement(self, bare: str, place: Place | None) -> None:
        if bare.startswith("}"):
            self.close(bare, place)
            if not bare.endswith("{"):
                return
            bare = bare.lstrip("} ")
        opens = bare.endswith("{")
        if bare.startswith(("^bb", "(%")):
            self.block(bare)
            return
        assigned = _ASSIGN.match(bare)
        results, body = (assigned[1], assigned[2]) if assigned else ("", bare)
        word = re.match(r'"?([\w.]+)"?', body)
        op = word[1] if word else body.split(" ")[0]
        op = {"do": "scf.do", "else": "scf.else", "return": "func.return", "call": "func.call"}.get(op, op)
        node = Node(op, body, _result_type(op, body), loops=tuple(self.loops), place=place)
        held = (
            re.search(r"(?:iter_args|scf\.while )\s*\(([^)]*)\)", body) if op in ("scf.for", "scf.while") else None
        )
        carried = _PAIR.findall(held[1]) if held else []
        own = body.replace(held[0], "") if held else body
        if op == "scf.for":
            own = own.partition(" = ")[2]
        node.inputs = [n for n in map(self.look, _NAME.findall(own)) if n is not None]
        # A result named by the op's own body is what the body yields; loads write through their operand.
        node.inputs += [n for n in (self.look(first) for _, first in carried) if n is not None]
        if op == "scf.yield" and self.loops and self.open and self.open[-1].op in ("scf.for", "scf.do"):
            self.carry(node)
        if op in ("memref.copy", "linalg.fill") and not assigned and len(node.inputs) > 1:
            buffer = node.inputs[1]
            while buffer.op == "memref.subview" and buffer.inputs:
                buffer = buffer.inputs[0]
            if buffer.op == "memref.alloc":
                buffer.inputs.append(node)  # it holds what was put into it
        if self.open:
            self.open[-1].body.append(node)
        if results:
            name = results.partition(":")[0]
            for one in name.split(", "):
                self.scopes[-1][one] = node
        marks = re.findall(r"\{(\w+)\}", body)
        node.marks = " ".join(marks)
        if opens or (op == "linalg.reduce" and not body.rstrip().endswith("}")):
            scope: dict[str, Node] = {}
            if op == "scf.for":
                induction = re.match(r"scf\.for (%\w+)", body)
                if induction:
                    scope[induction[1]] = Node("induction", induction[1], loops=(*self.loops, node))
            given = re.split(r", (?![^<]*>)", types) if (types := _types(body)) else []
            kinds = dict(zip((name for name, _ in carried), given, strict=False))
            for name, first in carried:
                start = self.look(first)
                inner = Node(
                    "carried", name, kinds.get(name, ""), [start] if start else [], (*self.loops, node), place
                )
                scope[name] = inner
                node.carries.append(inner)
            if op in ("scf.for", "scf.while"):
                node.type = _types(body)
                self.loops.append(node)
            elif op == "scf.do":
                self.loops.append(node)
            self.open.append(node)
            self.scopes.append(scope)

    def block(self, bare: str) -> None:
        """Block arguments: of a while loop's body they are the carried values."""
        owner = self.open[-1] if self.open else None
        names = re.findall(r"(%[\w$.-]+): ([^,)]*(?:<[^>]*>)?)", bare)
        starts: list[Node] = []
        if owner is not None and owner.op == "scf.do":
            siblings = self.open[-2].body if len(self.open) > 1 else []
            loop = next((n for n in reversed(siblings) if n.op == "scf.while"), None)
            if loop is not None:
                starts = loop.inputs[-len(names) :]
        for position, (name, kind) in enumerate(names):
            start = [starts[position]] if position < len(starts) else []
            op = "carried" if owner is not None and owner.op == "scf.do" else "block argument"
            made = Node(op, name, kind.strip(), start, tuple(self.loops), owner.place if owner else None)
            self.scopes[-1][name] = made
            if owner is not None and op == "carried":
                owner.carries.append(made)

    def carry(self, node: Node) -> None:
        """Join the yielded values to the loop's carried ones."""
        carried = self.open[-1].carries
        values = [self.look(name) for name in _NAME.findall(node.text.partition(" : ")[0])]
        for held, value in zip(carried, values, strict=False):
            if value is not None:
                held.inputs.append(value)
        # What the loop results in is computed inside it.
        self.open[-1].inputs += [v for v in values if v is not None]

    def close(self, bare: str, place: Place | None) -> None:
        if not self.open:
            return
        node = self.open.pop()
        self.scopes.pop()
        if node.op in ("scf.for", "scf.while", "scf.do") and self.loops and self.loops[-1] is node:
            self.loops.pop()
        node.place = place or node.place
        node.marks += " " + " ".join(re.findall(r"\{([\w., ]+)\}", bare))
        if bare.startswith("} ->"):
            node.type = bare.rpartition("-> ")[2]


def _result_type(op: str, body: str) -> str:
    """Type of what an op results in: behind `->` or `to`, or the last of its operands' types."""
    kind = body.rpartition(" : ")[2] if " : " in body else ""
    for word in (" -> ", " to ", " into "):
        kind = kind.rpartition(word)[2]
    if op == "bufferization.to_tensor":
        return kind.replace("memref<", "tensor<", 1)
    if op == "tensor.extract":
        return kind.rpartition("x")[2].rstrip(">").removeprefix("tensor<")
    return kind


def _types(body: str) -> str:
    """Types of the values a loop carries."""
    return body.rpartition("-> (")[2].rpartition(")")[0] if "-> (" in body else ""
