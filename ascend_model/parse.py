"""Read MLIR text in generic form (`--mlir-print-op-generic`) into a small op tree.

Only what the generic form needs is understood: ops, regions with one block each, attributes as text, types,
and source locations.  Anything else is an error that names its place.  Affine maps are written out as arithmetic.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ascend_model.affine import written_out
from ascend_model.source import in_library, unescaped

DYNAMIC = -9223372036854775808
"""What MLIR prints in a static_* array where a run-time operand stands."""

ELEMENT_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64, "f16": 16, "bf16": 16, "f32": 32}

_TOKEN = re.compile(
    r"""  "(?:[^"\\\n]|\\.)*"
      | %[\w.$-]+(?:\#\d+)?
      | \^[\w.$-]+
      | -> | <\{ | \}>
      | memref<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>
      | (?:array|\#[\w.]+)<[^<>]*>
      | [(){}\[\],:=<>]
      | [^\s(){}\[\],:=<>"]+""",
    re.VERBOSE,
)
"""A type of memory and an attribute without brackets inside are one token."""
_BLANK = re.compile(r"(?:\s+|//[^\n]*)*")
_PIECE = re.compile(f"(?!//)(?:{_TOKEN.pattern})(?:{_BLANK.pattern})", re.VERBOSE)
"""A token and the white space and comments behind it."""
_OPEN = {"(": ")", "{": "}", "[": "]", "<": ">", "<{": "}>"}
_CLOSE = set(_OPEN.values())
_POSITION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)|(#loc\d*)')
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$", re.MULTILINE)
_MAP_ALIAS = re.compile(r"^(#\w+) = affine_map<(.*)>\s*$", re.MULTILINE)


class ParseError(ValueError):
    """Text that is no generic MLIR; `line` and `column` count from one."""

    def __init__(self, message: str, line: int, column: int):
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


@dataclass(frozen=True)
class MemRef:
    """A memref type. None stands for a size, stride or offset known only at run time."""

    shape: tuple[int | None, ...]
    element: str
    strides: tuple[int | None, ...]
    offset: int | None
    space: str

    @property
    def bits(self) -> int:
        return ELEMENT_BITS[self.element]

    @property
    def static_bytes(self) -> int | None:
        """Bytes of a densely packed buffer of this shape, or None when the shape is dynamic."""
        count = 1
        for size in self.shape:
            if size is None:
                return None
            count *= size
        return (count * self.bits + 7) // 8


@dataclass
class Region:
    """One block: its arguments as (name, type) and its ops."""

    args: tuple[tuple[str, str], ...]
    ops: list[Op]


@dataclass
class Op:
    """One operation. `line` is where it stands in the text, `loc` its line in the kernel's source, if known."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attrs: dict[str, str]
    regions: tuple[Region, ...]
    operand_types: tuple[str, ...]
    result_types: tuple[str, ...]
    line: int = 0
    loc: str = ""

    @cached_property
    def short(self) -> str:
        """The name without its dialect: `vadd` for `hivm.hir.vadd`."""
        return self.name.rsplit(".", 1)[-1]

    def ints(self, key: str) -> tuple[int, ...]:
        """An `array<i64: 1, 2>` attribute, or a plain integer, as a tuple; () when the attribute is absent."""
        text = self.attrs.get(key, "")
        body = text.partition(":")[2] if text.startswith("array<") else text.partition(":")[0]
        return tuple(int(x) for x in re.findall(r"-?\d+", body))

    def enum(self, key: str, default: str = "") -> str:
        """`rint` for `#hivm.round_mode<rint>`."""
        found = re.search(r"<\s*(\w+)\s*>", self.attrs.get(key, ""))
        return found.group(1) if found else default

    def pipe(self, key: str) -> str:
        """`MTE2` for `#hivm.pipe<PIPE_MTE2>`."""
        return self.enum(key).removeprefix("PIPE_")

    def operand_groups(self) -> list[tuple[str, ...]]:
        """Operands split by operandSegmentSizes; one group when the op has none."""
        sizes = self.ints("operandSegmentSizes") or (len(self.operands),)
        groups, start = [], 0
        for size in sizes:
            groups.append(self.operands[start : start + size])
            start += size
        return groups

    def walk(self) -> Iterator[Op]:
        yield self
        for region in self.regions:
            for op in region.ops:
                yield from op.walk()


@dataclass
class Module:
    """A parsed module. `entry` is the device function that a launch runs."""

    op: Op
    entries: list[Op] = field(default_factory=list)

    @property
    def entry(self) -> Op:
        if len(self.entries) != 1:
            raise ValueError(f"expected one function with hacc.entry, found {len(self.entries)}")
        return self.entries[0]


@lru_cache(maxsize=4096)
def memref_type(text: str) -> MemRef | None:
    """The MemRef a type text stands for, or None for any other type."""
    found = re.fullmatch(r"memref<((?:(?:\?|\d+)x)*)(\w+)(?:,\s*(.*))?>", text.strip(), re.DOTALL)
    if not found:
        return None
    dims, element, rest = found.groups()
    shape = tuple(None if d == "?" else int(d) for d in dims.split("x")[:-1])
    space = re.search(r"address_space<(\w+)>", rest or "")
    layout = re.search(r"strided<\[([^\]]*)\](?:,\s*offset:\s*(\?|-?\d+))?>", rest or "")
    strides: tuple[int | None, ...]
    if layout:
        strides = tuple(None if s.strip() == "?" else int(s) for s in layout.group(1).split(",") if s.strip())
        offset = layout.group(2)
        start = None if offset == "?" else int(offset or 0)
    else:
        start, strides = 0, dense_strides(shape)
    return MemRef(shape, element, strides, start, space.group(1) if space else "")


def dense_strides(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Row-major strides; a stride over a dynamic size is itself dynamic."""
    strides: list[int | None] = []
    step: int | None = 1
    for size in reversed(shape):
        strides.append(step)
        step = None if step is None or size is None else step * size
    return tuple(reversed(strides))


class _Reader:
    def __init__(self, text: str):
        self.text = text
        first = _BLANK.match(text).end()  # type: ignore[union-attr]
        pieces = _PIECE.findall(text, first)
        starts = list(itertools.accumulate(map(len, pieces), initial=first))
        if starts.pop() != len(text):
            raise self.unreadable(first)
        tokens: Iterable[str] = map(str.rstrip, pieces)
        if "//" in text:
            tokens = (_TOKEN.match(piece)[0] for piece in pieces)  # type: ignore[index]
        # the text ends with tokens that are empty, so that one can always look at the next
        self.tokens: list[str] = [*tokens, "", ""]
        self.starts: list[int] = [*starts, len(text), len(text)]
        self.at = 0
        self.line = 1
        self.counted = 0
        self.aliases = dict(_ALIAS.findall(text))
        self.places: dict[str, str] = {}
        self.maps = dict(_MAP_ALIAS.findall(text))

    def error_at(self, offset: int, message: str) -> ParseError:
        line = self.text.count("\n", 0, offset) + 1
        return ParseError(message, line, offset - self.text.rfind("\n", 0, offset))

    def unreadable(self, at: int) -> ParseError:
        """The first place from `at` on where no token starts."""
        while (found := _PIECE.match(self.text, at)) is not None:
            at = found.end()
        return self.error_at(at, f"cannot read {self.text[at : at + 20]!r}")

    def fail(self, message: str) -> ParseError:
        return self.error_at(self.starts[self.at], message)

    def peek(self) -> str:
        return self.tokens[self.at]

    def next(self) -> str:
        token = self.tokens[self.at]
        if not token:
            raise self.fail("the text ends in the middle of an op")
        self.at += 1
        return token

    def expect(self, wanted: str) -> None:
        token = self.tokens[self.at]
        if token != wanted:
            raise self.fail(f"expected {wanted!r}, found {token or 'the end of the text'!r}")
        self.at += 1

    def accept(self, wanted: str) -> bool:
        if self.tokens[self.at] == wanted:
            self.at += 1
            return True
        return False

    def current_line(self) -> int:
        offset = self.starts[self.at]
        self.line += self.text.count("\n", self.counted, offset)
        self.counted = offset
        return self.line

    def skip_balanced(self, stop: tuple[str, ...]) -> str:
        """Text up to one of `stop` outside any bracket; the stop token stays unread."""
        tokens, first, at = self.tokens, self.at, self.at
        depth: list[str] = []
        while True:
            token = tokens[at]
            if not depth and token in stop:
                self.at = at
                return self.text[self.starts[first] : self.starts[at]].strip()
            if token in _OPEN:
                depth.append(_OPEN[token])
            elif token in _CLOSE:
                if not depth or depth.pop() != token:
                    self.at = at
                    raise self.fail(f"unmatched {token!r}")
            elif not token:
                self.at = at
                raise self.fail(f"the text ends where {' or '.join(map(repr, stop))} should stand")
            at += 1

    def attributes(self, close: str) -> dict[str, str]:
        found: dict[str, str] = {}
        while not self.accept(close):
            key = self.next().strip('"')
            found[key] = self.skip_balanced((",", close)) if self.accept("=") else ""
            if not self.accept(",") and self.peek() != close:
                raise self.fail(f"expected ',' or {close!r} after attribute {key}, found {self.peek()!r}")
        return found

    def type(self) -> str:
        first = self.starts[self.at]
        if self.peek() == "(":
            self.at += 1
            self.skip_balanced((")",))
            self.at += 1
            if self.accept("->"):
                self.types()
        else:
            self.next()
            if self.accept("<"):
                self.skip_balanced((">",))
                self.at += 1
        return self.text[first : self.starts[self.at - 1] + len(self.tokens[self.at - 1])]

    def types(self) -> tuple[str, ...]:
        if not self.accept("("):
            return (self.type(),)
        found: list[str] = []
        while not self.accept(")"):
            found.append(self.type())
            if not self.accept(",") and self.peek() != ")":
                raise self.fail(f"expected ',' or ')' after a type, found {self.peek()!r}")
        return tuple(found)

    def location(self) -> str:
        if self.peek() != "loc" or self.tokens[self.at + 1] != "(":
            return ""
        self.at += 2
        text = self.skip_balanced((")",))
        self.at += 1
        place = self.places.get(text)
        if place is None:
            place = self.places[text] = self.place(text)
        return place

    def place(self, text: str) -> str:
        """`file:line:column` of the innermost source position, following aliases; "" for unknown.  A helper of
        triton's library stands for its caller."""
        found = list(self.positions(text))
        return next((one for one in found if not in_library(one)), found[0] if found else "")

    def positions(self, text: str, depth: int = 0) -> Iterator[str]:
        """The source positions of a location, innermost first."""
        for match in _POSITION.finditer(text):
            file, line, column, alias = match.groups()
            if alias:
                if alias in self.aliases and depth < 8:
                    yield from self.positions(self.aliases[alias], depth + 1)
            # bishengir-opt gives ops it creates a place in the dump itself, which is no kernel source
            elif not file.endswith(".mlir"):
                yield f"{unescaped(file)}:{line}:{column}"

    def op(self) -> Op:
        line = self.current_line()
        results: list[str] = []
        if self.peek().startswith("%"):
            while True:
                name = self.next()
                if self.accept(":"):
                    results += [f"{name}#{i}" for i in range(self.integer())]
                else:
                    results.append(name)
                if self.accept("="):
                    break
                self.expect(",")
        name = self.next()
        if not name.startswith('"'):
            self.at -= 1
            raise self.fail(f"expected an op name in quotes, found {name!r}")
        self.expect("(")
        operands: list[str] = []
        while not self.accept(")"):
            token = self.next()
            if not token.startswith("%"):
                self.at -= 1
                raise self.fail(f"expected an operand, found {token!r}")
            operands.append(token)
            if not self.accept(",") and self.peek() != ")":
                raise self.fail(f"expected ',' or ')' after an operand, found {self.peek()!r}")
        if self.accept("["):
            self.skip_balanced(("]",))
            self.at += 1
        attrs = self.attributes("}>") if self.accept("<{") else {}
        regions: list[Region] = []
        if self.accept("("):
            while not self.accept(")"):
                regions.append(self.region())
                if not self.accept(",") and self.peek() != ")":
                    raise self.fail(f"expected ',' or ')' after a region, found {self.peek()!r}")
        if self.accept("{"):
            attrs.update(self.attributes("}"))
        self.expect(":")
        operand_types = self.types()
        self.expect("->")
        result_types = self.types()
        if len(operand_types) != len(operands):
            raise self.fail(f"{name} has {len(operands)} operands and {len(operand_types)} operand types")
        if len(result_types) != len(results) and results:
            raise self.fail(f"{name} has {len(results)} results and {len(result_types)} result types")
        loc = self.location()
        return Op(
            name[1:-1],
            tuple(results),
            tuple(operands),
            attrs,
            tuple(regions),
            operand_types,
            result_types,
            line,
            loc,
        )

    def integer(self) -> int:
        token = self.next()
        if not token.isdigit():
            self.at -= 1
            raise self.fail(f"expected a number, found {token!r}")
        return int(token)

    def region(self) -> Region:
        self.expect("{")
        args: list[tuple[str, str]] = []
        if self.peek().startswith("^"):
            self.at += 1
            if self.accept("("):
                while not self.accept(")"):
                    name = self.next()
                    self.expect(":")
                    args.append((name, self.type()))
                    self.location()
                    if not self.accept(",") and self.peek() != ")":
                        raise self.fail(f"expected ',' or ')' after a block argument, found {self.peek()!r}")
            self.expect(":")
        ops: list[Op] = []
        while not self.accept("}"):
            if self.peek().startswith("^"):
                raise self.fail("a region with several blocks is not understood")
            start = self.starts[self.at]
            op = self.op()
            ops += self.arithmetic(op, start) if op.name.startswith("affine.") else (op,)
        return Region(tuple(args), ops)

    def arithmetic(self, op: Op, start: int) -> list[Op]:
        """The ops that one with an affine map, which begins at `start`, stands for."""
        text = op.attrs.get("map", "")
        text = self.maps.get(text, text.removeprefix("affine_map<").removesuffix(">"))
        try:
            steps = written_out(op.name, text, op.operands, *op.results)
        except (TypeError, ValueError) as error:
            raise self.error_at(start, str(error)) from error
        kinds: dict[str, str] = {}
        made = []
        for name, result, operands, attrs in steps:
            kinds[result] = "i1" if name == "arith.cmpi" else "index"
            types = tuple(kinds.get(x, "index") for x in operands)
            made.append(Op(name, (result,), operands, attrs, (), types, (kinds[result],), op.line, op.loc))
        return made


@lru_cache(maxsize=8)
def parse(text: str) -> Module:
    """Parse a module in generic form.  Raises ParseError, with line and column, on anything else.

    The tree is not to be changed: code in every mode is made from the same one.
    """
    reader = _Reader(text)
    while reader.peek().startswith("#") and reader.tokens[reader.at + 1] == "=":
        reader.at += 2
        reader.next()
        if reader.peek() in ("(", "<"):
            close = _OPEN[reader.next()]
            reader.skip_balanced((close,))
            reader.at += 1
    if reader.peek() != '"builtin.module"':
        raise reader.fail(f'expected "builtin.module", found {reader.peek() or "the end of the text"!r}')
    op = reader.op()
    while reader.peek().startswith("#"):
        reader.at += 2
        reader.next()
        if reader.peek() == "(":
            reader.at += 1
            reader.skip_balanced((")",))
            reader.at += 1
    if reader.peek():
        raise reader.fail(f"text after the module: {reader.peek()!r}")
    entries = [f for r in op.regions for f in r.ops if f.name == "func.func" and "hacc.entry" in f.attrs]
    return Module(op, entries)
