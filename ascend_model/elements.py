"""Innermost loops that treat every element alike, done for all elements at once.

The Ascend compiler turns some ops on integers into a loop of scalar loads, arithmetic and stores.  Its first
iteration runs as any other and settles order and definedness of the buffers; where the rest can only do the same
with the next elements, it is done by numpy.  What that needs is looked at before each such loop; else, and for
everything this module does not know, the loop goes on element by element.

A store to scattered places becomes a loop with a copy an element: each takes its number through one of two small
buffers and, if its mask says so, to its place.  Their values, too, are had at once; order and time are where they
repeat (see `ascend_model.steady`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ascend_model import replay, steady
from ascend_model.memory import Global
from ascend_model.parse import DYNAMIC, ELEMENT_BITS, Op, memref_type

if TYPE_CHECKING:
    from ascend_model.codegen import Generator, Memory, Scalar

LEAST = 48
"""Iterations from which on a loop may be done at once."""
WHOLE = ("i8", "i16", "i32", "i64")
COMPARE = ("==", "!=", "<", "<=", ">", ">=")


NAMES: dict[str, Any] = {
    "ARANGE": functools.partial(np.arange, dtype=np.int64),
    "INT64": np.int64,
    "WHERE": np.where,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
    "BROADCAST": np.broadcast_to,
    "STORE_EACH": replay.store_each,
    "STORES": steady.Stores,
}
"""What the code of this module calls, beside its own functions."""


class Unlike(Exception):
    """The loop is none of these."""


@dataclass(frozen=True)
class Slice:
    """Neighbouring elements of a buffer, one an iteration, as expressions of the generated code."""

    root: str
    start: str
    end: str
    width: int
    write: bool

    @property
    def bytes(self) -> str:
        return f"{self.start} * {self.width} : {self.end} * {self.width}"

    @property
    def inside(self) -> str:
        return f"{self.root}.lo <= {self.start} * {self.width} and {self.end} * {self.width} <= {self.root}.hi"

    @property
    def ready(self) -> str:
        """Whether scalar accesses to these elements need no closer look."""
        if self.write:
            return f"{self.root}.wr"
        return f"({self.root}.rd == 1 or {self.root}.rd == 2 and 1 not in SHADOW[{self.bytes} : {self.width}])"

    def without(self, first: int, end: int) -> str:
        """Whether none of these elements touches bytes first..end."""
        return f"({self.end} * {self.width} <= {first} or {end} <= {self.start} * {self.width})"

    def apart(self, later: Slice) -> str:
        """Whether no iteration of one touches what another iteration of the other does."""
        away = f"{self.end} * {self.width} <= {later.start} * {later.width}"
        away += f" or {later.end} * {later.width} <= {self.start} * {self.width}"
        if not self.write and self.width == later.width:
            away += f" or {self.start} == {later.start}"
        return f"({away})"


@dataclass(frozen=True)
class Cell:
    """One element of the unified buffer.  at: its index from address zero."""

    elem: str
    at: int

    @property
    def bytes(self) -> tuple[int, int]:
        width = ELEMENT_BITS[self.elem] // 8
        return self.at * width, (self.at + 1) * width


class Elements:
    """Code that does what is left of a loop after its first iteration.

    index: the loop's variable.  last: its end.  cycles: of one iteration, without loads from global memory.
    idle: of one that takes no branch.  asked: the decisions (see `ascend_model.replay`) that an iteration compares
    with the path.
    In the generated code `rest` is the first element that is left, `count` how many are, `all` their numbers.
    """

    def __init__(
        self, generator: Generator, loop: Op, index: str, last: str, cycles: int, idle: int, asked: Sequence[str]
    ):
        self.generator = generator
        self.loop = loop
        self.index, self.last, self.cycles, self.idle, self.asked = index, last, cycles, idle, asked
        self.rest, self.count = generator.fresh("e"), generator.fresh("n")
        self.offsets: dict[str, list[str]] = {loop.regions[0].args[0][0]: []}
        """SSA numbers that are the loop's variable plus numbers that stay the same."""
        self.vectors: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        """Memrefs in global memory that start elsewhere in every iteration."""
        self.slices: list[Slice] = []
        self.lines: list[str] = []
        self.depth = 0
        self.misses = ""
        self.all = ""
        self.cells: dict[str, list[Cell]] = {}
        """Memrefs of one element: where it lies; of two, the first where the number in `choice` is not zero."""
        self.choice: dict[str, str] = {}
        self.copied: list[Cell] = []
        self.stores = ""
        """A `steady.Stores` of the generated code, where order and time are kept, and in"""
        self.skip = ""
        """the number of the iteration to go on with."""
        self.conditions: list[str] = []

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def code(self) -> list[str]:
        """Lines for the end of the loop's body; raises Unlike."""
        generator, region = self.generator, self.loop.regions[0]
        rest, count = self.rest, self.count
        if len(region.args) != 1 or generator.scalar(self.loop.operands[2]).expr != "1":
            raise Unlike
        for op in region.ops:
            self.one(op)
        if any(x.write for x in self.slices) == bool(self.copied):
            raise Unlike  # nothing is written, or more than is looked at here
        spent = f"ts += {count} * {self.cycles}"
        if self.misses:
            spent += f" + {self.misses} * MISS + ({count} - {self.misses}) * HIT"
        if generator.mode != "values" and not self.copied:
            self.emit(spent)
        if generator.mode == "values" or not self.copied:
            self.emit("break")
        conditions = [x.inside for x in self.slices] + self.conditions
        conditions += [x.without(*cell.bytes) for x in self.slices for cell in self.copied]
        if generator.mode != "values":
            conditions += [x.ready for x in self.slices]
        for i, later in enumerate(self.slices):
            conditions += [x.apart(later) for x in self.slices[:i] if x.write or later.write]
        head = [f"{rest} = {self.index} + 1", f"{count} = {self.last} - {rest}"]
        head += [f"if {' and '.join(dict.fromkeys(conditions))}:"]
        if self.all:
            head.append(f"    {self.all} = ARANGE({rest}, {self.last})")
        return [*head, *("    " + line for line in self.lines)]

    # ---- operands

    def scalar(self, name: str) -> Scalar:
        return self.generator.scalar(name)

    def varies(self, name: str) -> bool:
        return name in self.vectors or name in self.offsets

    def value(self, name: str) -> str:
        """A number of every iteration: a vector, or one that stays the same."""
        if name in self.vectors:
            return self.vectors[name]
        if name in self.offsets:
            if not self.all:
                self.all = self.generator.fresh("e")
            return f"({' + '.join([self.all, *self.offsets[name]])})"
        return self.scalar(name).expr

    def bind(self, op: Op, expr: str) -> None:
        name = self.vectors[op.results[0]] = self.generator.fresh("e")
        self.emit(f"{name} = {expr}")

    def wrapped(self, op: Op, expr: str, lo: int, hi: int) -> str:
        """Numpy wraps 64 bits by itself."""
        from ascend_model.codegen import INT_BITS, int_range

        kind = op.result_types[0]
        low, high = int_range(kind)
        if INT_BITS[kind] == 64 or (low <= lo and hi <= high):
            return expr
        half = 1 << (INT_BITS[kind] - 1)
        return f"(({expr} + {half}) & {2 * half - 1}) - {half}"

    # ---- ops

    def one(self, op: Op) -> None:
        if op.name in ("scf.yield", "annotation.mark"):
            return
        if op.name == "memref.load":
            self.load(op)
        elif op.name == "memref.store":
            self.store(op)
        elif op.name == "scf.if":
            self.copy(op)
        elif op.name == "arith.select" and op.result_types[0].startswith("memref"):
            self.choose(op)
        elif op.name == "memref.reinterpret_cast":
            self.moved(op)
        elif op.name.startswith("arith."):
            if any(self.varies(x) for x in op.operands):
                self.arith(op)
        else:
            raise Unlike

    def arith(self, op: Op) -> None:
        from ascend_model.codegen import INT_BITS

        name, kind = op.short, op.result_types[0]
        if (
            len(op.results) != 1
            or kind not in INT_BITS
            or any(self.scalar(x).type not in INT_BITS for x in op.operands)
        ):
            raise Unlike
        a, b = self.scalar(op.operands[0]), self.scalar(op.operands[-1])
        x, y = op.operands[0], op.operands[-1]
        if name in ("index_cast", "extsi", "extui", "trunci", "index_castui"):
            self.cast(op, a, name in ("extui", "index_castui"))
            return
        if kind == "i1" and name in ("andi", "ori", "xori"):
            self.bind(op, f"({self.value(x)} {'&|^'[('andi', 'ori', 'xori').index(name)]} {self.value(y)}) != 0")
        elif name in ("addi", "subi"):
            plus = name == "addi"
            lo, hi = (a.lo + b.lo, a.hi + b.hi) if plus else (a.lo - b.hi, a.hi - b.lo)
            expr = self.wrapped(op, f"{self.value(x)} {'+' if plus else '-'} {self.value(y)}", lo, hi)
            if (
                plus
                and INT_BITS[kind] == 64
                and len({x, y} & self.offsets.keys()) == 1
                and not {x, y} & self.vectors.keys()
            ):
                moving, still = (x, y) if x in self.offsets else (y, x)
                self.offsets[op.results[0]] = [*self.offsets[moving], self.scalar(still).expr]
                return
            self.bind(op, expr)
        elif name == "muli":
            products = [p * q for p in (a.lo, a.hi) for q in (b.lo, b.hi)]
            self.bind(op, self.wrapped(op, f"{self.value(x)} * {self.value(y)}", min(products), max(products)))
        elif name in ("divsi", "remsi") and b.hi > 0 and not self.varies(y):
            if b.lo <= 0:
                self.conditions.append(f"{b.expr} > 0")
            quotient = self.generator.fresh("e")
            self.emit(f"{quotient} = {self.value(x)} // {b.expr}")
            if a.lo < 0:  # numpy rounds down
                self.emit(f"{quotient} += ({self.value(x)} < 0) & ({quotient} * {b.expr} != {self.value(x)})")
            if name == "divsi":
                self.vectors[op.results[0]] = quotient
            else:
                self.bind(op, f"{self.value(x)} - {quotient} * {b.expr}")
        elif name in ("maxsi", "minsi"):
            self.bind(op, f"{'MAXIMUM' if name == 'maxsi' else 'MINIMUM'}({self.value(x)}, {self.value(y)})")
        elif name in ("andi", "ori", "xori"):
            self.bind(op, f"{self.value(x)} {'&|^'[('andi', 'ori', 'xori').index(name)]} {self.value(y)}")
        elif name == "cmpi":
            predicate = op.ints("predicate")[0]
            if predicate >= 6 and (a.lo < 0 or b.lo < 0):
                raise Unlike
            self.bind(
                op, f"{self.value(x)} {COMPARE[predicate if predicate < 6 else predicate - 4]} {self.value(y)}"
            )
        elif name == "select" and kind != "i1":
            self.bind(op, f"WHERE({self.value(x)}, {self.value(op.operands[1])}, {self.value(y)})")
        else:
            raise Unlike

    def cast(self, op: Op, a: Scalar, unsigned: bool) -> None:
        from ascend_model.codegen import INT_BITS, int_range

        name, kind = op.operands[0], op.result_types[0]
        lo, hi = int_range(kind)
        if a.type == "i1" and kind != "i1":
            self.bind(op, f"{'' if unsigned else '-'}{self.value(name)}.astype(INT64)")
        elif kind == "i1":
            self.bind(op, f"({self.value(name)} & 1) != 0")
        elif unsigned and a.lo < 0:
            raise Unlike
        elif lo <= a.lo and a.hi <= hi:
            if name in self.offsets:
                self.offsets[op.results[0]] = self.offsets[name]
            else:
                self.vectors[op.results[0]] = self.vectors[name]
        else:
            self.bind(op, self.wrapped(op, self.value(name), -(1 << (INT_BITS[a.type] - 1)), hi + 1))

    # ---- memory

    def slice(self, memory: Memory, indices: Sequence[str], write: bool) -> Slice:
        """The elements that an access goes through."""
        if memory.elem not in WHOLE:
            raise Unlike
        parts = [str(memory.offset)]
        moving = 0
        for name, stride in zip(indices, memory.strides):
            if name in self.offsets and stride == 1:
                parts += self.offsets[name]
                moving += 1
            elif self.varies(name):
                raise Unlike
            else:
                parts.append(f"{self.scalar(name).expr} * {stride}")
        if moving != 1:
            raise Unlike
        offset = " + ".join(parts)
        if self.generator.indices and not all(self.generator.is_settled(x) for x in (self.index, *parts)):
            raise Unlike  # every index is a decision
        width = ELEMENT_BITS[memory.elem] // 8
        self.slices.append(
            Slice(memory.root, f"({offset} + {self.rest})", f"({offset} + {self.last})", width, write)
        )
        return self.slices[-1]

    def moved(self, op: Op) -> None:
        """Another start in global memory; what else the op says stays the same."""
        memory = self.generator.memory(op.operands[0])
        if not any(self.varies(x) for x in op.operands[1:]):
            return
        if memory.space != "gm" or op.ints("static_offsets") != (DYNAMIC,):
            raise Unlike
        if any(self.varies(x) for x in op.operands[2:]):
            raise Unlike
        self.starts[op.results[0]] = self.value(op.operands[1])

    def load(self, op: Op) -> None:
        memory = self.generator.memory(op.operands[0])
        if memory.space == "ub":
            part = self.slice(memory, op.operands[1:], False)
            self.bind(op, f"UB_{memory.elem}[{part.start} : {part.end}].astype(INT64)")
            return
        stored = memory.root_index is None or memory.root_index in self.generator.stored
        parts = [self.starts.get(op.operands[0], str(memory.offset))]
        parts += [f"{self.value(x)} * {stride}" for x, stride in zip(op.operands[1:], memory.strides)]
        varies = op.operands[0] in self.starts or any(self.varies(x) for x in op.operands[1:])
        if stored or memory.elem not in WHOLE or not varies:
            raise Unlike
        if self.misses or any(x.write for x in self.slices):
            raise Unlike  # two loads take turns in the cache; and nothing is written before it is sure to go on
        where = self.generator.fresh("e")
        self.misses = self.generator.fresh("n")
        self.emit(f"{where} = {' + '.join(parts)}")
        self.emit(f"if 0 <= {where}.min() and {where}.max() < {memory.root}.n_{memory.elem}:")
        self.depth += 1
        self.bind(op, f"{memory.root}.numpy[{memory.elem!r}][{where}].astype(INT64)")
        self.emit(f"{self.misses} = MISSES(tags, {memory.root}, {memory.elem!r}, {where})")
        if self.generator.mode == "record":
            self.emit(f"DECIDED({self.misses})")
        elif self.generator.mode == "values":
            self.emit(f"path = path[{self.misses}]")

    def store(self, op: Op) -> None:
        memory = self.generator.memory(op.operands[1])
        if memory.space != "ub":
            raise Unlike
        part = self.slice(memory, op.operands[2:], True)
        self.emit(f"UB_{memory.elem}[{part.start} : {part.end}] = {self.value(op.operands[0])}")
        if self.generator.mode != "values":
            self.emit(f"if {part.root}.wr == 2:")
            self.emit(f"    SHADOW[{part.bytes}] = bytes({self.count} * {part.width})")

    # ---- copies of one element

    def cell(self, name: str) -> list[Cell]:
        """Where a memref of one element in the unified buffer lies."""
        if name in self.cells:
            return self.cells[name]
        if name not in self.generator.env:
            raise Unlike
        memory = self.generator.memory(name)
        if memory.space != "ub" or not memory.static or memory.sizes != (1,) or memory.elem not in WHOLE:
            raise Unlike
        at = int(memory.offset)
        if not self.generator.in_alloc(memory, at, at):
            raise Unlike
        return [Cell(memory.elem, at)]

    def choose(self, op: Op) -> None:
        """One of two buffers, which take turns."""
        which, yes, no = op.operands
        if which not in self.vectors or yes in self.cells or no in self.cells:
            raise Unlike
        self.cells[op.results[0]] = [*self.cell(yes), *self.cell(no)]
        self.choice[op.results[0]] = self.vectors[which]

    def copy(self, op: Op) -> None:
        """An element that goes to global memory if a condition holds."""
        generator, condition = self.generator, op.operands[0]
        if generator.mode == "record" or generator.machine.time.trace or self.copied or self.misses:
            raise Unlike
        if condition not in self.vectors or op.results or any(region.ops for region in op.regions[1:]):
            raise Unlike
        if [x for x in self.loop.regions[0].ops if x.short not in WITHOUT_VALUES][-1] is not op:
            raise Unlike  # what follows may read what it stores
        inside = [x for x in op.regions[0].ops if x.short not in WITHOUT_VALUES]
        if sorted(x.name for x in inside) != ["hivm.hir.store", "memref.reinterpret_cast", "memref.store"]:
            raise Unlike
        last, cast, held = sorted(inside, key=lambda x: x.name)
        target, kind = cast.operands[0], memref_type(last.operand_types[1])
        if last.operands != (held.operands[1], cast.results[0]) or last is not inside[2]:
            raise Unlike
        if target not in generator.env or kind is None or kind.shape != (1,):
            raise Unlike
        if last.enum("atomic_kind", "none") != "none" or [self.value(x) for x in held.operands[2:]] != ["0"]:
            raise Unlike
        self.moved(cast)
        self.copied = self.cell(held.operands[1])
        elem, memory = self.copied[0].elem, generator.memory(target)
        if cast.results[0] not in self.starts or memory.elem != elem:
            raise Unlike
        index, value = self.starts[cast.results[0]], self.value(held.operands[0])
        which = self.choice.get(held.operands[1], "")
        taken = generator.fresh("e")
        self.emit(f"{taken} = {self.vectors[condition]} != 0")
        self.emit(f"if CAN_STORE({memory.root}, {elem!r}, {index}[{taken}]):")
        self.depth += 1
        where = f"{memory.root}, {elem!r}, {index}"
        if generator.mode == "values":
            self.copied_values(generator.scalar(condition).expr, where, taken, value, which, generator.place(last))
        else:
            flags = [x.operands[0] for x in op.regions[0].ops if x.short.endswith("_flag") and x.operands]
            shape = [*([which] if which else []), *(self.value(x) for x in flags if self.varies(x))]
            self.stores, self.skip = generator.fresh("e"), generator.fresh("e")
            roots = [f"a{i}" for i, x in enumerate(generator.arguments) if x.memref]
            reads = list(dict.fromkeys(x.root for x in self.slices))
            lists = [generator.tuple_of(x) for x in (shape, [cell.at for cell in self.copied], reads, roots)]
            made = f"{where}, {value}, {taken}, {', '.join(lists)}, {self.rest}, {self.idle}"
            self.emit(f"{self.stores} = STORES(M, {made})")

    def copied_values(self, known: str, where: str, taken: str, value: str, which: str, place: int) -> None:
        """The copies where values alone are computed.  known: the decision of each, if it is one."""
        if self.asked not in ([], [known]):
            raise Unlike
        if self.asked:
            self.emit(f"for {known} in {taken}.tolist(): path = path[{known}]")
        elem, values = self.copied[0].elem, self.generator.fresh("e")
        self.emit(f"{values} = BROADCAST({value}, {self.count})[{taken}]")
        self.emit(f"STORE_EACH(M, {where}[{taken}], {values}, {place})")
        through = [f"[{which}[{taken}] {sign} 0]" for sign in ("!=", "==")] if which else [""]
        for cell, those in zip(self.copied, through):
            self.emit(f"for {known} in {values}{those}[-1:]: UB_{elem}[{cell.at}] = {known}")


WITHOUT_VALUES = ("set_flag", "wait_flag", "pipe_barrier", "yield", "mark")
"""Ops that leave nothing but time and order, or nothing at all."""


def can_store(root: Global, elem: str, index: np.ndarray) -> bool:
    """Whether stores to these elements, one after the other, are the same as all at once, and all are inside."""
    if root.kind == 0 or ELEMENT_BITS[elem] // 8 != root.unit:
        return False
    if not index.size:
        return True
    if index.min() < 0 or index.max() >= root.count[elem]:
        return False
    return bool((np.diff(index) > 0).all()) or np.unique(index).size == index.size


def misses(tags: list[int], root: Global, elem: str, index: np.ndarray) -> int:
    """How many of these scalar loads, one after the other, miss the cache, whose lines they leave in `tags`."""
    lines = root.line0 + (index >> ((64 * 8 // ELEMENT_BITS[elem]).bit_length() - 1))
    size, found = len(tags), 0
    # the load after one of the same line hits
    for line in lines[np.flatnonzero(np.diff(lines, prepend=-1))].tolist():
        if tags[line % size] != line:
            tags[line % size] = line
            found += 1
    return found
