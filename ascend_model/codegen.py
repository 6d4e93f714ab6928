"""Turn the device function of a module into Python source, one local variable an SSA value.

Scalar code becomes plain Python with 64- and 32-bit wrap-around only where the value range does not rule it
out; vector and copy ops become calls of the functions that `ascend_model.vector` makes.  Scalar cycles of a
straight stretch are added up here and cost one addition at run time; how often each stretch ran gives every
count that depends on no constant.

There are three modes.  "time" is the whole of it; "record" also lists the decisions that the time of a program
depends on; "values" computes values alone and follows the recorded decisions (see `ascend_model.replay`).
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from ascend_model import elements, replay
from ascend_model.memory import VIEW_CODE, Access, Alloc, Fault, Machine, Made, bf16_to_f32
from ascend_model.parse import DYNAMIC, ELEMENT_BITS, MemRef, Op, Region, dense_strides, memref_type
from ascend_model.timeline import PIPES, Timeline
from ascend_model.vector import runner, unsupported

INT_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}
FLOATS = ("f16", "bf16", "f32")
CUBE_SPACES = ("cbuf", "cc", "ca", "cb", "l1", "l0a", "l0b", "l0c")


@dataclass(frozen=True)
class Scalar:
    """An SSA number: a Python expression (a name or a literal) and the range its value is known to lie in."""

    expr: str
    type: str
    lo: int
    hi: int


@dataclass(frozen=True)
class Memory:
    """An SSA memref: where it points, as expressions. `root` is an Alloc or a Global at run time."""

    space: str
    elem: str
    root: str
    offset: int | str
    sizes: tuple[int | str, ...]
    strides: tuple[int | str, ...]
    root_index: int | None
    """Which alloc or argument it is, where that is known before the run."""

    @property
    def static(self) -> bool:
        parts = (self.offset, *self.sizes, *self.strides)
        return self.root_index is not None and all(isinstance(x, int) for x in parts)


Value = Scalar | Memory


def int_range(kind: str) -> tuple[int, int]:
    if kind == "i1":
        return 0, 1
    bits = INT_BITS[kind]
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def constant_value(text: str, kind: str) -> int | float:
    """The number in an arith.constant attribute such as `1.0e+00 : f32` or `0xFF800000 : f32`."""
    body = text.partition(" : ")[0].strip()
    if body in ("true", "false"):
        return int(body == "true")
    if kind in INT_BITS:
        return int(body, 0)
    if body.startswith("0x"):
        raw = int(body, 16)
        if kind == "f32":
            return float(struct.unpack("<f", struct.pack("<I", raw))[0])
        if kind == "f16":
            return float(struct.unpack("<e", struct.pack("<H", raw))[0])
        return float(bf16_to_f32(np.array([raw], np.uint16))[0])
    return float(np.float32(body)) if kind != "f16" else float(np.float16(body))


def literal(value: int | float) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INF" if value > 0 else "(-INF)"
        return repr(value) if value >= 0 and not repr(value).startswith("-") else f"({value!r})"
    return str(value) if value >= 0 else f"({value})"


def number(text: str) -> int | float:
    """What `literal` wrote."""
    bare = text.strip("()").removeprefix("-")
    named = {"NAN": math.nan, "INF": math.inf}
    size: int | float = named[bare] if bare in named else ast.literal_eval(bare)
    return -size if "-" in text.strip("()")[:1] else size


# ---- helpers that the generated code calls


def divide_trunc(a: int, b: int) -> int:
    if b == 0:
        raise Fault("division by zero", "an integer division by zero in scalar code")
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def remainder_trunc(a: int, b: int) -> int:
    return a - b * divide_trunc(a, b)


def divide_float(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def to_int(value: float, lo: int, hi: int) -> int:
    if value != value:
        return 0
    if value >= hi:
        return hi
    return lo if value <= lo else int(value)


def bits_of(value: Any, source: str, target: str) -> Any:
    pack = {"f32": "f", "i32": "i", "f16": "e", "i16": "h"}
    if source in pack and target in pack:
        return struct.unpack("<" + pack[target], struct.pack("<" + pack[source], value))[0]
    if source == "bf16" and target == "i16":
        return struct.unpack("<i", struct.pack("<f", value))[0] >> 16
    if source == "i16" and target == "bf16":
        return struct.unpack("<f", struct.pack("<i", value << 16))[0]
    raise Fault("unsupported", f"arith.bitcast from {source} to {target} is not modelled")


def round_half(value: float) -> float:
    return float(np.float16(value))


def round_bf16(value: float) -> float:
    from ascend_model.memory import f32_to_bf16

    return float(bf16_to_f32(f32_to_bf16(np.array([value], np.float32)))[0])


def float_max(a: float, b: float) -> float:
    return a if a != a else b if b != b else max(a, b)


def float_min(a: float, b: float) -> float:
    return a if a != a else b if b != b else min(a, b)


def _numpy_function(fn: Any) -> Any:
    def call(*values: float) -> float:
        with np.errstate(all="ignore"):
            return float(fn(*[np.float32(v) for v in values]))

    return call


def _erf(value: np.float32) -> float:
    return math.erf(float(value))


MATH = {
    "math.absf": np.abs,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log1p": np.log1p,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.trunc": np.trunc,
    "math.roundeven": np.rint,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tanh": np.tanh,
    "math.erf": _erf,
    "math.powf": np.power,
}
HELPERS: dict[str, Any] = {
    "_div": divide_trunc,
    "_rem": remainder_trunc,
    "_fdiv": divide_float,
    "_to_int": to_int,
    "_bits_of": bits_of,
    "_half": round_half,
    "_bf16": round_bf16,
    "_fmax": float_max,
    "_fmin": float_min,
    "NAN": math.nan,
    "INF": math.inf,
    "Fault": Fault,
    **{"_" + name.replace(".", "_"): _numpy_function(fn) for name, fn in MATH.items()},
}
COMPARE_INT = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
COMPARE_FLOAT = {
    0: "False",
    1: "{a} == {b}",
    2: "{a} > {b}",
    3: "{a} >= {b}",
    4: "{a} < {b}",
    5: "{a} <= {b}",
    6: "({a} < {b} or {a} > {b})",
    7: "({a} == {a} and {b} == {b})",
    8: "not ({a} < {b} or {a} > {b})",
    9: "not {a} <= {b}",
    10: "not {a} < {b}",
    11: "not {a} >= {b}",
    12: "not {a} > {b}",
    13: "{a} != {b}",
    14: "({a} != {a} or {b} != {b})",
    15: "True",
}
NUMBER = re.compile(r"\(?-?(?:INF|NAN|[0-9][0-9.e+-]*)\)?")
NO_CODE = {
    "hivm.hir.set_mask_norm",
    "hivm.hir.set_mask_count",
    "hivm.hir.set_ctrl",
    "annotation.mark",
    "memref.assume_alignment",
    "hivm.hir.free_lock_var",
    "hivm.hir.init_debug",
    "hivm.hir.debug",
    "hivm.hir.finish_debug",
}

PRINTS = "the kernel prints or asserts on the device; the model does neither, and gives it no time"


@dataclass
class Argument:
    """One argument of the device function, in order. `kind` is tt.tensor_kind, `role` hacc's for hidden ones."""

    name: str
    type: str
    memref: MemRef | None
    kind: int | None
    role: str


@dataclass
class Generated:
    """Python source of the device function and what its blocks count."""

    source: str
    namespace: dict[str, Any]
    machine: Machine
    arguments: list[Argument]
    blocks: list[Counter[str]]
    loaded: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    double_buffers: int = 0
    notes: tuple[str, ...] = ()


@dataclass
class Scope:
    """What is known of variables where code is being made, and in the regions inside.

    settled: those whose values follow from the arguments and the decisions so far, see `Generator.decide`.
    bound:   expression and type -> the number that holds it already.
    """

    settled: set[str] = field(default_factory=set)
    bound: dict[tuple[str, str], Scalar] = field(default_factory=dict)

    def inside(self) -> Scope:
        return Scope(set(self.settled), dict(self.bound))


class Generator:
    def __init__(
        self, entry: Op, costs: dict[str, float], trace: bool = False, mode: str = "time", indices: bool = False
    ):
        self.entry = entry
        self.mode = mode
        self.indices = indices
        self.costs = costs
        self.places: list[str] = []
        self.place_of: dict[str, int] = {}
        self.machine = Machine(Timeline(costs, trace), self.places)
        if mode == "record":
            self.machine.recorded = []
        self.lines: list[str] = []
        self.depth = 1
        self.pending = 0
        self.names = 0
        self.env: dict[str, Value] = {}
        self.namespace: dict[str, Any] = dict(HELPERS)
        self.blocks: list[Counter[str]] = []
        self.block = 0
        self.loops = 0
        self.every_scalar = False
        self.views: set[str] = set()
        self.allocs: dict[int, Alloc] = {}
        self.late: list[tuple[str, Memory]] = []
        self.fixed: list[tuple[str, Callable[..., Any], list[Scalar | Memory]]] = []
        self.scope = Scope()
        self.roots: set[int] = set()
        self.loaded: set[int] = set()
        self.stored: set[int] = set()
        self.arguments = [self._argument(i, name, kind) for i, (name, kind) in enumerate(entry.regions[0].args)]

    # ---- small tools

    def _argument(self, index: int, name: str, kind: str) -> Argument:
        attrs = re.findall(r"\{[^{}]*\}", self.entry.attrs.get("arg_attrs", ""))
        text = attrs[index] if index < len(attrs) else ""
        tensor_kind = re.search(r"tt\.tensor_kind = (\d+)", text)
        role = re.search(r"hacc\.arg_type<(\w+)>", text)
        return Argument(
            name,
            kind,
            memref_type(kind),
            int(tensor_kind.group(1)) if tensor_kind else None,
            role.group(1) if role else "",
        )

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def flush(self) -> None:
        if self.pending and self.mode != "values":
            self.emit(f"ts += {self.pending}")
        self.pending = 0

    def decide(self, *exprs: int | str) -> None:
        """Numbers that time, order or counts depend on: note them, or follow the recorded path that has them.

        What the path has settled already is not asked again.
        """
        if self.mode == "time":
            return
        new = [str(x) for x in exprs if not self.is_settled(x)]
        if new:
            numbers = new[0] if len(new) == 1 else f"({', '.join(new)})"
            self.emit(f"DECIDED({numbers})" if self.mode == "record" else f"path = path[{numbers}]")
            self.scope.settled.update(new)

    def is_settled(self, expr: int | str) -> bool:
        """Whether a number is the same in all programs that took the same path so far: written out, an argument,
        or computed from such numbers."""
        if isinstance(expr, int) or NUMBER.fullmatch(expr):
            return True
        return expr in self.scope.settled or expr.removesuffix(".lo").removesuffix(".hi") in self.scope.settled

    def settle_results(self, op: Op) -> None:
        """What an op computes from settled numbers alone is settled."""
        if all(isinstance(v := self.env[x], Scalar) and self.is_settled(v.expr) for x in op.operands):
            for name in op.results:
                value = self.env[name]
                if isinstance(value, Scalar):
                    self.scope.settled.add(value.expr)

    def ran(self, times: str = "1") -> None:
        """The current block runs once more, or so many times."""
        if self.mode != "values":
            self.emit(f"c{self.block} += {times}")

    def fresh(self, stem: str = "t") -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def cost(self, key: str) -> None:
        self.pending += ceil(self.costs[key])

    def count(self, key: str, n: int = 1) -> None:
        self.blocks[self.block][key] += n

    def place(self, op: Op) -> int:
        text = op.loc or f"IR line {op.line}"
        if op.loc:
            text = f"{op.loc} ({op.short}, IR line {op.line})"
        else:
            text = f"IR line {op.line} ({op.short})"
        if text not in self.place_of:
            self.place_of[text] = len(self.places)
            self.places.append(text)
        return self.place_of[text]

    def scalar(self, name: str) -> Scalar:
        value = self.env[name]
        assert isinstance(value, Scalar), name
        return value

    def memory(self, name: str) -> Memory:
        value = self.env[name]
        assert isinstance(value, Memory), name
        return value

    def bind(self, op: Op, expr: str, lo: int, hi: int, kind: str | None = None) -> None:
        """Assign an expression to the op's result; wrap it when its range leaves the type."""
        kind = kind or op.result_types[0]
        known = self.scope.bound.get((expr, kind))
        if known is not None:
            self.env[op.results[0]] = known
            return
        name = self.fresh("v")
        if kind in INT_BITS:
            low, high = int_range(kind)
            self.emit(f"{name} = {expr}")
            if lo < low or hi > high:
                if kind == "i1":
                    self.emit(f"{name} &= 1")
                else:
                    half = 1 << (INT_BITS[kind] - 1)
                    self.emit(f"if not {low} <= {name} <= {high}:")
                    self.emit(f"    {name} = (({name} + {half}) & {2 * half - 1}) - {half}")
                lo, hi = low, high
        elif kind == "f32":
            self.emit(f"F32[0] = {expr}")
            self.emit(f"{name} = F32[0]")
        elif kind in ("f16", "bf16"):
            self.emit(f"{name} = {'_half' if kind == 'f16' else '_bf16'}({expr})")
        else:
            raise unsupported(op, f"with a result of type {kind}")
        self.env[op.results[0]] = self.scope.bound[expr, kind] = Scalar(name, kind, lo, hi)

    def open_block(self) -> int:
        self.blocks.append(Counter())
        return len(self.blocks) - 1

    # ---- whole function

    def generate(self) -> Generated:
        everything = list(self.entry.walk())
        for op in everything:
            for kind in (*op.operand_types, *op.result_types):
                memref = memref_type(kind) if kind.startswith("memref") else None
                if memref and memref.space in CUBE_SPACES:
                    raise Fault(
                        "unsupported: cube",
                        f"the kernel uses the cube unit (tl.dot): {op.name}"
                        f"{' at ' + op.loc if op.loc else ''}; only vector kernels are modelled",
                    )
        if "AIC" in self.entry.attrs.get("hivm.func_core_type", ""):
            raise Fault("unsupported: cube", "the kernel runs on the cube core; only vector kernels are modelled")
        for op in everything:
            self.place(op)  # here, so that a place has the same number in every mode
        self._find_roots(everything)
        names = []
        for i, argument in enumerate(self.arguments):
            name = f"a{i}"
            names.append(name)
            self.scope.settled.add(name)
            if argument.memref:
                memref = argument.memref
                self.env[argument.name] = Memory(
                    "gm", memref.element, name, 0, ("?",) * len(memref.shape), (1,) * len(memref.shape), i
                )
            else:
                lo, hi = int_range(argument.type) if argument.type in INT_BITS else (0, 0)
                self.env[argument.name] = Scalar(name, argument.type, lo, hi)
        # the last three arguments are the grid, whose sizes are positive
        for i in range(len(self.arguments) - 3, len(self.arguments)):
            self.env[self.arguments[i].name] = Scalar(f"a{i}", "i32", 1, (1 << 31) - 1)
        self.block = self.open_block()
        self.ops(self.entry.regions[0])
        self.flush()
        body = self.lines
        if self.mode == "values":
            head = [f"def program(block, path, tags, {', '.join(names)}):"]
            end = "    return path"
        else:
            head = [f"def program(block, left, tags, {', '.join(names)}):", "    ts = START"]
            head += [f"    c{i} = 0" for i in range(len(self.blocks))]
            head += ["    c0 = 1"]
            end = f"    return ts, ({', '.join(f'c{i}' for i in range(len(self.blocks)))},)"
        head += [f"    U_{code} = VIEWS[{code!r}]" for code in sorted(self.views)]
        source = "\n".join([*head, *body, end, ""])
        if self.every_scalar:
            for alloc in self.machine.allocs:
                alloc.scalar = True
        self.machine.layout()
        self._finish_namespace()
        return Generated(
            source,
            self.namespace,
            self.machine,
            self.arguments,
            self.blocks,
            self.loaded,
            self.stored,
            sum(1 for op in everything if op.name == "arith.select" and "<ub>" in op.result_types[0]),
            (PRINTS,) if any(op.name == "hivm.hir.debug" for op in everything) else (),
        )

    def _find_roots(self, ops: Sequence[Op]) -> None:
        """Which arguments the function loads from and stores to, before any code is made."""
        base: dict[str, set[int]] = {a.name: {i} for i, a in enumerate(self.arguments) if a.memref}
        # only memrefs are followed: a number that was loaded says where in a buffer, not in which
        flows: list[tuple[list[str], list[str]]] = []  # from any of these names to all of those
        for op in ops:
            inner = [x for region in op.regions for x in region.ops if x.name in ("scf.yield", "scf.condition")]
            into = [name for name, kind in zip(op.results, op.result_types) if kind.startswith("memref")]
            into += [name for r in op.regions for name, kind in r.args if kind.startswith("memref")]
            if into:
                flows.append(([*op.operands, *(name for x in inner for name in x.operands)], into))
        size = -1
        while size != (size := sum(map(len, base.values()))):
            for sources, into in flows:
                found: set[int] = set().union(*(base[name] for name in sources if name in base))
                if found:
                    for name in into:
                        base.setdefault(name, set()).update(found)
        for op in ops:
            if op.name in ("hivm.hir.load", "memref.load"):
                self.loaded |= base.get(op.operands[0], set())
            elif op.name in ("hivm.hir.store", "memref.store"):
                self.stored |= base.get(op.operands[1], set())

    def _finish_namespace(self) -> None:
        machine = self.machine
        self.namespace.update(
            M=machine,
            VIEWS=machine.view,
            SHADOW=machine.shadow_bytes,
            **{f"ZEROS_{n}": bytes(n) for n in (1, 2, 4, 8)},
            F32=np.zeros(1, np.float32).data,
            START=ceil(self.costs["program.start"]),
            HIT=ceil(self.costs["scalar.gm_hit"]),
            MISS=ceil(self.costs["scalar.gm_miss"]),
            SET=machine.setters,
            WAIT=machine.waiters,
            BARRIER=machine.barrier,
            BARRIER_ALL=machine.barrier_all,
            UB_LOAD=machine.ub_load,
            UB_STORE=machine.ub_store,
            ACCESS=machine.access,
            TILE=machine.tile,
            GM_OUTSIDE=machine.gm_outside,
            GM_SEEN=machine.gm_seen,
            ALLOC=machine.add_alloc,
            DECIDED=machine.path.append,
            Diverged=replay.Diverged,
            GM_READ=replay.scalar_read,
            GM_WRITE=replay.scalar_write,
            LEAST=elements.LEAST,
            MISSES=elements.misses,
            CAN_STORE=elements.can_store,
            **{f"UB_{code}": machine.numpy[code] for code in elements.WHOLE},
            **elements.NAMES,
        )
        for index, alloc in self.allocs.items():
            self.namespace[f"A{index}"] = alloc
        for name, memory in self.late:
            self.namespace[name] = self.resolved(memory)
        for name, ready, operands in self.fixed:
            known = [self.resolved(x) if isinstance(x, Memory) else number(x.expr) for x in operands]
            self.namespace[name] = ready(*known)

    def resolved(self, memory: Memory) -> Access:
        """A buffer whose place is known before the run."""
        assert memory.root_index is not None
        return self.machine.access(
            self.allocs[memory.root_index],
            memory.elem,
            memory.offset,  # type: ignore[arg-type]
            memory.sizes,  # type: ignore[arg-type]
            memory.strides,  # type: ignore[arg-type]
        )

    def ops(self, region: Region) -> Op | None:
        """Code of a region's ops; its terminator is returned, not emitted."""
        for op in region.ops:
            if op.name in ("scf.yield", "scf.condition", "func.return"):
                return op
            self.count("ops")
            self.one(op)
        return None

    # ---- one op

    def one(self, op: Op) -> None:
        name = op.name
        dialect = name.partition(".")[0]
        if name in NO_CODE:
            return
        if dialect == "arith":
            self.arith(op)
            self.settle_results(op)
        elif dialect == "math":
            self.math(op)
            self.settle_results(op)
        elif dialect == "memref":
            self.memref(op)
        elif name == "scf.for":
            self.for_loop(op)
        elif name == "scf.if":
            self.branch(op)
        elif name == "scf.while":
            self.while_loop(op)
        elif name.startswith("hivm.hir."):
            self.hivm(op)
        elif name == "builtin.unrealized_conversion_cast":
            self.pointer_bitcast(op)
        else:
            raise unsupported(op)

    def arith(self, op: Op) -> None:
        name = op.short
        kind = op.result_types[0]
        if name == "constant":
            value = constant_value(op.attrs["value"], kind)
            bound = value if isinstance(value, int) else 0
            self.env[op.results[0]] = Scalar(literal(value), kind, bound, bound)
            return
        if name == "select" and kind.startswith("memref"):
            self.select_memory(op)
            return
        values = [self.scalar(x) for x in op.operands]
        if name in ("mulsi_extended", "mului_extended"):
            self.long_product(op, values[0], values[1], name == "mului_extended")
            return
        if name in ("index_cast", "index_castui", "extsi", "extui", "trunci"):
            self.integer_cast(op, values[0], name in ("extui", "index_castui"))
            return
        a = values[0]
        b = values[1] if len(values) > 1 else a
        x, y = a.expr, b.expr
        if kind in INT_BITS or name in ("cmpi", "cmpf"):
            self.integer(op, name, values, x, y, a, b)
            return
        self.cost("scalar.float")
        if name in ("addf", "subf", "mulf"):
            self.bind(op, f"{x} {'+-*'[('addf', 'subf', 'mulf').index(name)]} {y}", 0, 0)
        elif name == "divf":
            self.cost("scalar.divide")
            self.bind(op, f"_fdiv({x}, {y})", 0, 0)
        elif name == "remf":
            self.bind(op, f"_math_fmod({x}, {y})", 0, 0)
        elif name == "negf":
            self.bind(op, f"-{x}", 0, 0)
        elif name in ("maximumf", "minimumf"):
            self.bind(op, f"{'_fmax' if name == 'maximumf' else '_fmin'}({x}, {y})", 0, 0)
        elif name in ("maxnumf", "minnumf"):
            fn = "max" if name == "maxnumf" else "min"
            self.bind(op, f"({y} if {x} != {x} else {x} if {y} != {y} else {fn}({x}, {y}))", 0, 0)
        elif name in ("sitofp", "uitofp"):
            if a.type == "i1" and name == "sitofp":
                x = f"-{x}"
            elif name == "uitofp" and a.lo < 0:
                x = f"({x} & {(1 << INT_BITS[a.type]) - 1})"
            self.bind(op, f"float({x})", 0, 0)
        elif name in ("extf", "truncf"):
            self.bind(op, x, 0, 0)
        elif name == "select":
            self.bind(op, f"{y} if {x} else {values[2].expr}", 0, 0)
        elif name == "bitcast":
            self.bind(op, f"_bits_of({x}, {a.type!r}, {kind!r})", 0, 0)
        else:
            raise unsupported(op)

    def integer_cast(self, op: Op, a: Scalar, unsigned: bool) -> None:
        kind = op.result_types[0]
        lo, hi = int_range(kind)
        expr = a.expr
        if a.type == "i1" and kind != "i1":
            self.bind(op, f"{1 if unsigned else -1} if {expr} else 0", 0 if unsigned else -1, 1 if unsigned else 0)
            return
        if a.type == "i1" and kind != "i1":
            self.bind(op, f"{expr} + 0", a.lo, a.hi)  # a comparison's result becomes a number
            return
        if kind == "i1":
            self.bind(op, f"{expr} & 1", 0, 1)
            return
        if unsigned and a.lo < 0:
            mask = (1 << INT_BITS[a.type]) - 1
            self.bind(op, f"{expr} & {mask}", 0, mask)
            return
        if lo <= a.lo and a.hi <= hi:
            self.env[op.results[0]] = Scalar(expr, kind, a.lo, a.hi)
            return
        self.bind(op, expr, a.lo, a.hi)

    def integer(self, op: Op, name: str, values: list[Scalar], x: str, y: str, a: Scalar, b: Scalar) -> None:
        kind = op.result_types[0]
        self.cost("scalar.alu")
        corners = (a.lo, a.hi), (b.lo, b.hi)
        if name == "addi":
            self.bind(op, f"{x} + {y}", a.lo + b.lo, a.hi + b.hi)
        elif name == "subi":
            self.bind(op, f"{x} - {y}", a.lo - b.hi, a.hi - b.lo)
        elif name == "muli":
            products = [p * q for p in corners[0] for q in corners[1]]
            self.bind(op, f"{x} * {y}", min(products), max(products))
        elif name in ("divsi", "remsi", "floordivsi", "ceildivsi", "divui", "remui", "ceildivui"):
            self.division(op, name, x, y, a, b)
        elif name in ("maxsi", "minsi"):
            fn = max if name == "maxsi" else min
            sign = ">" if name == "maxsi" else "<"
            self.bind(op, f"{x} if {x} {sign} {y} else {y}", fn(a.lo, b.lo), fn(a.hi, b.hi))
        elif name in ("maxui", "minui"):
            mask = (1 << INT_BITS[kind]) - 1
            sign = ">" if name == "maxui" else "<"
            self.bind(op, f"{x} if ({x} & {mask}) {sign} ({y} & {mask}) else {y}", *int_range(kind))
        elif name in ("andi", "ori", "xori"):
            lo, hi = int_range(kind)
            if a.lo >= 0 and b.lo >= 0:
                top = max(a.hi, b.hi)
                lo, hi = 0, min(a.hi, b.hi) if name == "andi" else (1 << top.bit_length()) - 1
            elif name == "andi" and (a.lo >= 0 or b.lo >= 0):
                lo, hi = 0, a.hi if a.lo >= 0 else b.hi
            self.bind(op, f"{x} {'&|^'[('andi', 'ori', 'xori').index(name)]} {y}", lo, hi)
        elif name == "shli":
            bits = INT_BITS[kind]
            if b.lo >= 0 and b.hi < bits:
                ends = [p << q for p in corners[0] for q in corners[1]]
                self.bind(op, f"{x} << {y}", min(ends), max(ends))
            else:
                self.bind(op, f"({x} << {y} if 0 <= {y} < {bits} else 0)", -(1 << 128), 1 << 128)
        elif name == "shrsi":
            bits = INT_BITS[kind]
            self.bind(op, f"{x} >> ({y} if 0 <= {y} < {bits} else {bits - 1})", min(a.lo, 0), max(a.hi, 0))
        elif name == "shrui":
            bits = INT_BITS[kind]
            mask = (1 << bits) - 1
            self.bind(op, f"(({x} & {mask}) >> {y} if 0 <= {y} < {bits} else 0)", -(1 << 128), 1 << 128)
        elif name == "cmpi":
            predicate = op.ints("predicate")[0]
            if predicate >= 6 and (a.lo < 0 or b.lo < 0):
                mask = (1 << INT_BITS[a.type]) - 1
                x, y = f"({x} & {mask})", f"({y} & {mask})"
            self.bind(op, f"{x} {COMPARE_INT[predicate]} {y}", 0, 1)
        elif name == "cmpf":
            self.bind(op, COMPARE_FLOAT[op.ints("predicate")[0]].format(a=x, b=y), 0, 1)
        elif name == "select":
            c = values[2]
            self.bind(op, f"{y} if {x} else {c.expr}", min(b.lo, c.lo), max(b.hi, c.hi))
        elif name in ("fptosi", "fptoui"):
            lo, hi = int_range(kind) if name == "fptosi" else (0, (1 << INT_BITS[kind]) - 1)
            self.bind(op, f"_to_int({x}, {lo}, {hi})", lo, hi)
        elif name == "bitcast":
            self.bind(op, f"_bits_of({x}, {a.type!r}, {kind!r})", *int_range(kind))
        else:
            raise unsupported(op)

    def long_product(self, op: Op, a: Scalar, b: Scalar, unsigned: bool) -> None:
        """Both halves of a product."""
        self.cost("scalar.alu")
        kind = op.result_types[0]
        bits = INT_BITS[kind]
        mask, half = (1 << bits) - 1, 1 << (bits - 1)
        x, y = (f"({v.expr} & {mask})" if unsigned and v.lo < 0 else v.expr for v in (a, b))
        whole = self.fresh("p")
        self.emit(f"{whole} = {x} * {y}")
        for result, part in zip(op.results, (whole, f"({whole} >> {bits})")):
            name = self.fresh("v")
            self.emit(f"{name} = (({part} + {half}) & {mask}) - {half}")
            self.env[result] = Scalar(name, kind, *int_range(kind))

    def division(self, op: Op, name: str, x: str, y: str, a: Scalar, b: Scalar) -> None:
        # a compiler turns a constant divisor into shifts and a product
        key = "scalar.divide_constant" if b.lo == b.hi else "scalar.divide"
        self.pending += ceil(self.costs[key]) - ceil(self.costs["scalar.alu"])
        kind = op.result_types[0]
        if name.endswith("ui"):
            mask = (1 << INT_BITS[kind]) - 1
            x = x if a.lo >= 0 else f"({x} & {mask})"
            y = y if b.lo >= 0 else f"({y} & {mask})"
            a = Scalar(x, kind, max(a.lo, 0), mask if a.lo < 0 else a.hi)
            b = Scalar(y, kind, max(b.lo, 0), mask if b.lo < 0 else b.hi)
            name = {"divui": "divsi", "remui": "remsi", "ceildivui": "ceildivsi"}[name]
        small = max(abs(a.lo), abs(a.hi))
        largest = max(abs(b.lo), abs(b.hi)) or 1
        plain = a.lo >= 0 and b.lo > 0
        positive = f"{x} >= 0" if b.lo > 0 else f"{x} >= 0 and {y} > 0"
        if name in ("floordivsi", "ceildivsi"):
            guard = f"if {y} == 0: _div(0, 0)"
            if b.lo <= 0 <= b.hi:
                self.emit(guard)
            self.bind(op, f"{x} // {y}" if name == "floordivsi" else f"-(-{x} // {y})", -small, small)
        elif name == "divsi":
            if plain:
                self.bind(op, f"{x} // {y}", a.lo // b.hi, a.hi // b.lo)
            elif b.lo == b.hi and b.lo > 0:
                self.bind(op, f"{x} // {y} if {x} >= 0 else -(-{x} // {y})", -(small // b.lo), small // b.lo)
            else:
                self.bind(op, f"{x} // {y} if {positive} else _div({x}, {y})", -small, small)
        else:
            bound = min(small, largest - 1) if largest > 1 else 0
            if plain:
                self.bind(op, f"{x} % {y}", 0, bound)
            else:
                expr = f"{x} % {y} if {positive} else _rem({x}, {y})"
                self.bind(op, expr, 0 if a.lo >= 0 else -bound, bound)

    def math(self, op: Op) -> None:
        values = [self.scalar(x).expr for x in op.operands]
        if op.name in MATH:
            self.cost("scalar.root" if op.short not in ("absf", "floor", "ceil", "trunc") else "scalar.float")
            self.bind(op, f"_{op.name.replace('.', '_')}({', '.join(values)})", 0, 0)
        elif op.name == "math.fma":
            self.cost("scalar.float")
            self.bind(op, f"{values[0]} * {values[1]} + {values[2]}", 0, 0)
        elif op.name == "math.absi":
            self.cost("scalar.alu")
            a = self.scalar(op.operands[0])
            self.bind(op, f"abs({values[0]})", 0, max(abs(a.lo), abs(a.hi)))
        else:
            raise unsupported(op)

    # ---- memrefs

    def select_memory(self, op: Op) -> None:
        condition = self.scalar(op.operands[0]).expr
        yes, no = self.memory(op.operands[1]), self.memory(op.operands[2])
        self.cost("scalar.alu")
        self.decide(condition)
        self.env[op.results[0]] = self.join(op, condition, yes, no)

    def join(self, op: Op, condition: str, yes: Memory, no: Memory) -> Memory:
        def pick(a: int | str, b: int | str) -> int | str:
            if a == b:
                return a
            name = self.fresh("m")
            self.emit(f"{name} = {a} if {condition} else {b}")
            if all(self.is_settled(x) for x in (condition, a, b)):
                self.scope.settled.add(name)
            return name

        if yes.space != no.space or len(yes.sizes) != len(no.sizes):
            raise unsupported(op, "between unlike memrefs")
        root = str(pick(yes.root, no.root))
        return Memory(
            yes.space,
            yes.elem,
            root,
            pick(yes.offset, no.offset),
            tuple(pick(a, b) for a, b in zip(yes.sizes, no.sizes)),
            tuple(pick(a, b) for a, b in zip(yes.strides, no.strides)),
            yes.root_index if yes.root == no.root else None,
        )

    def mixed(self, op: Op, key: str, dynamic: list[str]) -> list[int | str]:
        """A static_* attribute with its run-time holes filled from the operands left."""
        out: list[int | str] = []
        for value in op.ints(key):
            if value == DYNAMIC:
                scalar = self.scalar(dynamic.pop(0))
                out.append(scalar.lo if scalar.lo == scalar.hi else scalar.expr)
            else:
                out.append(value)
        return out

    def total(self, terms: Sequence[tuple[int | str, int | str]], start: int | str) -> int | str:
        """start + sum of products, folded where constant, as one local variable."""
        constant = start if isinstance(start, int) else 0
        parts = [] if isinstance(start, int) else [start]
        for a, b in terms:
            if isinstance(a, int) and isinstance(b, int):
                constant += a * b
            elif a != 0 and b != 0:
                parts.append(str(b) if a == 1 else str(a) if b == 1 else f"{a} * {b}")
        if not parts:
            return constant
        if len(parts) == 1 and not constant and "*" not in parts[0]:
            return parts[0]
        if constant:
            parts.append(str(constant))
        name = self.fresh("o")
        self.emit(f"{name} = {' + '.join(parts)}")
        if all(self.is_settled(x) for x in (start, *itertools.chain(*terms))):
            self.scope.settled.add(name)
        return name

    def memref(self, op: Op) -> None:
        name = op.short
        if name == "load":
            self.scalar_load(op)
            return
        if name == "store":
            self.scalar_store(op)
            return
        source = self.memory(op.operands[0])
        dynamic = list(op.operands[1:])
        if name == "reinterpret_cast":
            offset, sizes, strides = (
                self.mixed(op, k, dynamic) for k in ("static_offsets", "static_sizes", "static_strides")
            )
            self.cost("scalar.address")
            start = self.total([(offset[0], 1)], self.base(source))
            self.env[op.results[0]] = Memory(
                source.space, source.elem, source.root, start, tuple(sizes), tuple(strides), source.root_index
            )
        elif name == "subview":
            offsets, sizes, strides = (
                self.mixed(op, k, dynamic) for k in ("static_offsets", "static_sizes", "static_strides")
            )
            self.cost("scalar.address")
            start = self.total(list(zip(offsets, source.strides)), source.offset)
            steps: list[int | str] = []
            for a, b in zip(strides, source.strides):
                steps.append(self.total([(a, b)], 0))
            kept = self.kept_axes(op, sizes, steps)
            self.env[op.results[0]] = Memory(
                source.space,
                source.elem,
                source.root,
                start,
                tuple(sizes[i] for i in kept),
                tuple(steps[i] for i in kept),
                source.root_index,
            )
        elif name == "cast":
            self.env[op.results[0]] = source
        elif name in ("collapse_shape", "expand_shape"):
            self.reshape(op, source, dynamic)
        elif name == "memory_space_cast":
            self.env[op.results[0]] = source
        elif name == "extract_strided_metadata":
            self.metadata(op, source)
        elif name == "view":
            self.typed_view(op, source)
        elif name == "dim":
            axis = self.scalar(op.operands[1])
            size = source.sizes[axis.lo]
            if isinstance(size, int):
                self.env[op.results[0]] = Scalar(str(size), "index", size, size)
            else:
                self.env[op.results[0]] = Scalar(size, "index", 0, (1 << 31) - 1)
        else:
            raise unsupported(op)

    def typed_view(self, op: Op, source: Memory) -> None:
        """Bytes of an argument from a constant offset on, as a dense buffer of another type."""
        kind = memref_type(op.result_types[0])
        assert kind
        start = self.scalar(op.operands[1])
        width = kind.bits // 8
        fixed = start.lo == start.hi and isinstance(source.offset, int)
        if source.space != "gm" or kind.static_bytes is None or source.root_index is None or not fixed:
            raise unsupported(op, f"from {op.operand_types[0]}")
        at = start.lo + int(source.offset)
        if at % width:
            raise unsupported(op, "at an odd address")
        shape = tuple(x for x in kind.shape if x is not None)
        strides = tuple(x for x in dense_strides(shape) if x is not None)
        self.env[op.results[0]] = Memory(
            "gm", kind.element, source.root, at // width, shape, strides, source.root_index
        )

    def base(self, source: Memory) -> int | str:
        """Where the whole buffer of a memref starts, in its elements."""
        if source.space != "ub":
            return 0
        if source.root_index is not None:
            return self.allocs[source.root_index].lo * 8 // ELEMENT_BITS[source.elem]
        name = self.fresh("o")
        self.emit(f"{name} = {source.root}.lo * 8 // {ELEMENT_BITS[source.elem]}")
        return name

    def metadata(self, op: Op, source: Memory) -> None:
        """A memref taken apart: its whole buffer, and offset, sizes and strides in it."""
        base = self.base(source)
        self.env[op.results[0]] = Memory(source.space, source.elem, source.root, base, (), (), source.root_index)
        offset = self.total([(source.offset, 1), (base, -1)], 0)
        for result, value in zip(op.results[1:], (offset, *source.sizes, *source.strides)):
            bounds = (value, value) if isinstance(value, int) else (-(1 << 31), (1 << 31) - 1)
            self.env[result] = Scalar(str(value), "index", *bounds)

    def pointer_bitcast(self, op: Op) -> None:
        """The start of an argument seen as another element type; offsets into it come later, in its own units."""
        kind = memref_type(op.result_types[0])
        source = self.env[op.operands[0]]
        if kind is None or not isinstance(source, Memory) or source.space != "gm" or source.offset != 0:
            raise unsupported(op, f"from {op.operand_types[0]} to {op.result_types[0]}")
        self.env[op.results[0]] = Memory(
            "gm", kind.element, source.root, 0, source.sizes, source.strides, source.root_index
        )

    def kept_axes(self, op: Op, sizes: Sequence[int | str], strides: Sequence[int | str]) -> list[int]:
        """Axes a rank-reducing subview keeps: it drops axes of size one, and the result's sizes and strides tell
        which (several may have size one)."""
        result = memref_type(op.result_types[0])
        assert result
        drop = len(sizes) - len(result.shape)
        ones = [axis for axis, size in enumerate(sizes) if size == 1]

        def agrees(known: int | None, value: int | str) -> bool:
            return not isinstance(value, int) if known is None else not isinstance(value, int) or known == value

        def axes(with_strides: bool) -> list[int] | None:
            for dropped in itertools.combinations(ones, drop):
                kept = [axis for axis in range(len(sizes)) if axis not in dropped]
                if not all(agrees(known, sizes[axis]) for known, axis in zip(result.shape, kept)):
                    continue
                if not with_strides or all(agrees(k, strides[axis]) for k, axis in zip(result.strides, kept)):
                    return kept
            return None

        # A stride of an axis of size one carries no meaning, so a result may state another one for it.
        found = axes(True) or axes(False)
        if found is None:
            raise unsupported(op, "with this rank reduction")
        return found

    def reshape(self, op: Op, source: Memory, dynamic: list[str]) -> None:
        groups = [
            [int(x) for x in re.findall(r"\d+", g)]
            for g in re.findall(r"\[([\d,\s]*)\]", op.attrs["reassociation"])
        ]
        if op.short == "collapse_shape":
            sizes: list[int | str] = []
            strides: list[int | str] = []
            for group in groups:
                size: int | str = 1
                step: int | str = source.strides[group[-1]]
                first = True
                for axis in reversed(group):
                    if source.sizes[axis] != 1 and first:
                        step, first = source.strides[axis], False
                for axis in group:
                    a = source.sizes[axis]
                    if isinstance(size, int) and isinstance(a, int):
                        size = size * a
                    elif size == 1:
                        size = a
                    elif a != 1:
                        joined = self.fresh("s")
                        self.emit(f"{joined} = {size} * {a}")
                        size = joined
                sizes.append(size)
                strides.append(step)
            self.env[op.results[0]] = Memory(
                source.space,
                source.elem,
                source.root,
                source.offset,
                tuple(sizes),
                tuple(strides),
                source.root_index,
            )
            return
        shape = self.mixed(op, "static_output_shape", dynamic)
        if not shape:
            result = memref_type(op.result_types[0])
            assert result
            if None in result.shape:
                raise unsupported(op, "with a dynamic shape")
            shape = [x for x in result.shape if x is not None]
        strides = [0] * len(shape)
        for axis, group in enumerate(groups):
            step = source.strides[axis]
            for i in reversed(group):
                strides[i] = step
                step = self.total([(step, shape[i])], 0) if shape[i] != 1 else step
        self.env[op.results[0]] = Memory(
            source.space, source.elem, source.root, source.offset, tuple(shape), tuple(strides), source.root_index
        )

    def element_index(self, memory: Memory, indices: list[Scalar]) -> tuple[int | str, int, int]:
        """Index of an element from address zero, as an expression, and the range it lies in."""
        terms: list[tuple[int | str, int | str]] = []
        lo = hi = memory.offset if isinstance(memory.offset, int) else 0
        known = isinstance(memory.offset, int)
        for index, stride in zip(indices, memory.strides):
            terms.append((index.lo if index.lo == index.hi else index.expr, stride))
            if isinstance(stride, int):
                ends = (index.lo * stride, index.hi * stride)
                lo, hi = lo + min(ends), hi + max(ends)
            else:
                known = False
        expr = self.total(terms, memory.offset)
        return expr, (lo if known else -(1 << 63)), (hi if known else 1 << 63)

    def in_alloc(self, memory: Memory, lo: int, hi: int) -> bool:
        if memory.root_index is None:
            return False
        alloc = self.allocs[memory.root_index]
        bits = ELEMENT_BITS[memory.elem]
        return alloc.lo * 8 <= lo * bits and (hi + 1) * bits <= alloc.hi * 8

    def scalar_load(self, op: Op) -> None:
        memory = self.memory(op.operands[0])
        index, lo, hi = self.element_index(memory, [self.scalar(x) for x in op.operands[1:]])
        place, elem = self.place(op), memory.elem
        name = self.fresh("v")
        low, high = int_range(elem) if elem in INT_BITS else (0, 0)
        self.env[op.results[0]] = Scalar(name, op.result_types[0], low, high)
        if memory.space == "ub":
            self.cost("scalar.ub_load")
            self.count("ub_loads")
            slow = f"{name} = UB_LOAD({memory.root}, {elem!r}, {index}, {place})"
            plain, inside = self.ub_element(memory, index, lo, hi)
            if self.mode == "values":
                value = f"U_{elem}[{index}]" if plain else f"M.scalar_at({elem!r}, {index})"
                self.emit(f"{name} = {value}")
                return
            if not plain:
                self.emit(slow)
                return
            first = self.byte_of(elem, index)
            self.emit(f"if {memory.root}.rd and ({memory.root}.rd == 1 or not SHADOW[{first}]){inside}:")
            self.emit(f"    {name} = U_{elem}[{index}]")
            self.emit("else:")
            self.emit(f"    {slow}")
            return
        self.count("gm_loads")
        self.flush()
        root = memory.root
        shift = (64 * 8 // ELEMENT_BITS[elem]).bit_length() - 1 if elem != "i1" else 6
        elem = "i8" if elem == "i1" else elem
        self.emit(f"if 0 <= {index} < {root}.n_{elem}:")
        value = f"{root}.v_{elem}[{index}]"
        if elem in ("f16", "bf16"):
            value = f"M.scalar_value({elem!r}, {value})"
        self.emit(f"    {name} = {value}")
        if memory.root_index is None or memory.root_index in self.stored:
            if self.mode == "values":
                self.emit(f"    GM_READ(M, {root}, {elem!r}, {index}, {place})")
            else:
                self.emit(f"    GM_SEEN({root}, {elem!r}, {index}, False, {place})")
        line, lines = self.fresh("l"), int(self.costs["scalar.cache_lines"])
        self.emit(f"    {line} = {root}.line0 + ({index} >> {shift})")
        self.depth += 1
        self.decide(f"tags[{line} % {lines}] == {line}")
        self.depth -= 1
        if self.mode == "values":
            self.emit(f"    tags[{line} % {lines}] = {line}")
            self.emit("else:")
            self.emit("    raise Diverged")
            return
        self.emit(f"    if tags[{line} % {lines}] == {line}:")
        self.emit("        ts += HIT")
        self.emit("    else:")
        self.emit(f"        tags[{line} % {lines}] = {line}")
        self.emit("        ts += MISS")
        self.emit("else:")
        self.emit(f"    {name} = GM_OUTSIDE({root}, {elem!r}, {index}, 'read', {place})")

    def ub_element(self, memory: Memory, index: int | str, lo: int, hi: int) -> tuple[bool, str]:
        """What scalar loads and stores of the unified buffer share before their access: whether a memoryview has
        the element, and the condition (` and ...`) that it lies in its buffer, where that is not known."""
        self.mark_scalar(memory)
        if self.indices and not isinstance(index, int):
            self.decide(index)
        plain = memory.elem in VIEW_CODE and memory.elem not in ("f16", "bf16")
        if plain:
            self.views.add(memory.elem)
        inside = "" if self.in_alloc(memory, lo, hi) else self.alloc_bounds(memory, index)
        if inside and self.mode == "values":
            self.emit(f"if not ({inside.removeprefix(' and ')}): raise Diverged")
        return plain, inside

    def mark_scalar(self, memory: Memory) -> None:
        """Note that scalar code uses a buffer; through a pointer chosen at run time it may be any."""
        if memory.root_index is None:
            self.every_scalar = True
        else:
            self.allocs[memory.root_index].scalar = True

    @staticmethod
    def byte_of(elem: str, index: int | str) -> int | str:
        width = ELEMENT_BITS[elem] // 8
        if isinstance(index, int):
            return index * width
        return index if width == 1 else f"{index} * {width}"

    def alloc_bounds(self, memory: Memory, index: int | str) -> str:
        bits = ELEMENT_BITS[memory.elem]
        if memory.root_index is not None:
            alloc = self.allocs[memory.root_index]
            return f" and {-(-alloc.lo * 8 // bits)} <= {index} < {alloc.hi * 8 // bits}"
        width = bits // 8
        return f" and {memory.root}.lo <= {index} * {width} < {memory.root}.hi"

    def scalar_store(self, op: Op) -> None:
        value = self.scalar(op.operands[0]).expr
        memory = self.memory(op.operands[1])
        index, lo, hi = self.element_index(memory, [self.scalar(x) for x in op.operands[2:]])
        place, elem = self.place(op), memory.elem
        if memory.space == "ub":
            self.cost("scalar.ub_store")
            self.count("ub_stores")
            slow = f"UB_STORE({memory.root}, {elem!r}, {index}, {value}, {place})"
            plain, inside = self.ub_element(memory, index, lo, hi)
            if self.mode == "values":
                text = f"U_{elem}[{index}] = {value}" if plain else f"M.scalar_put({elem!r}, {index}, {value})"
                self.emit(text)
                return
            if not plain:
                self.emit(slow)
                return
            width, first = ELEMENT_BITS[elem] // 8, self.byte_of(elem, index)
            self.emit(f"if {memory.root}.wr{inside}:")
            self.emit(f"    U_{elem}[{index}] = {value}")
            self.emit(f"    if {memory.root}.wr == 2:")
            self.emit(f"        SHADOW[{first} : {first} + {width}] = ZEROS_{width}")
            self.emit("else:")
            self.emit(f"    {slow}")
            return
        self.cost("scalar.gm_store")
        self.count("gm_stores")
        root = memory.root
        elem = "i8" if elem == "i1" else elem
        if elem in ("f16", "bf16"):
            value = f"M.scalar_bits({elem!r}, {value})"
        if self.mode == "values":
            self.emit(f"GM_WRITE(M, {root}, {elem!r}, {index}, {value}, {place})")
            return
        self.emit(f"if 0 <= {index} < {root}.n_{elem}:")
        self.emit(f"    GM_SEEN({root}, {elem!r}, {index}, True, {place})")
        self.emit(f"    {root}.v_{elem}[{index}] = {value}")
        self.emit("else:")
        self.emit(f"    GM_OUTSIDE({root}, {elem!r}, {index}, 'write', {place})")

    # ---- control flow

    def carried(self, op: Op, value: Value, stem: str) -> Value:
        """A loop-carried value as fresh local variables, so that every iteration can assign them."""
        if isinstance(value, Scalar):
            name = self.fresh(stem)
            self.emit(f"{name} = {value.expr}")
            lo, hi = int_range(value.type) if value.type in INT_BITS else (0, 0)
            return Scalar(name, value.type, lo, hi)
        root, offset = self.fresh("r"), self.fresh("o")
        self.emit(f"{root}, {offset} = {value.root}, {value.offset}")
        sizes = tuple(self.own(x, "s") for x in value.sizes)
        strides = tuple(self.own(x, "d") for x in value.strides)
        return Memory(value.space, value.elem, root, offset, sizes, strides, None)

    def own(self, part: int | str, stem: str) -> int | str:
        if isinstance(part, int):
            return part
        name = self.fresh(stem)
        self.emit(f"{name} = {part}")
        return name

    def assign(self, op: Op, targets: Sequence[Value], names: Sequence[str]) -> None:
        """targets, all at once, = the values of these SSA names."""
        left: list[str] = []
        right: list[str] = []
        for target, name in zip(targets, names):
            value = self.env[name]
            if isinstance(target, Scalar):
                assert isinstance(value, Scalar)
                left.append(target.expr)
                right.append(value.expr)
                continue
            assert isinstance(value, Memory)
            left += [target.root, str(target.offset)]
            right += [value.root, str(value.offset)]
            for a, b in zip((*target.sizes, *target.strides), (*value.sizes, *value.strides)):
                if isinstance(a, int):
                    if a != b:
                        raise unsupported(op, "with a carried memref that changes its layout")
                else:
                    left.append(a)
                    right.append(str(b))
        pairs = [(a, b) for a, b in zip(left, right) if a != b]
        if pairs:
            self.emit(f"{', '.join(a for a, _ in pairs)} = {', '.join(b for _, b in pairs)}")

    def for_loop(self, op: Op) -> None:
        lower, upper, step, *start = op.operands
        lo, hi, by = self.scalar(lower), self.scalar(upper), self.scalar(step)
        region = op.regions[0]
        carried = [self.carried(op, self.env[x], "i") for x in start]
        self.flush()
        outer_block, outer_env = self.block, self.env
        self.block = self.open_block()
        trips = self.fresh("n")
        if by.lo <= 0:
            self.emit(f"if {by.expr} <= 0: raise Fault('endless loop', 'a loop with step 0 at {self.safe(op)}')")
        self.emit(f"{trips} = len(range({lo.expr}, {hi.expr}, {by.expr}))")
        if all(self.is_settled(x.expr) for x in (lo, hi, by)):
            self.scope.settled.add(trips)
        self.decide(trips)
        self.ran(trips)
        budget = len(self.lines)
        index = self.fresh("i")
        self.emit(f"for {index} in range({lo.expr}, {hi.expr}, {by.expr}):")
        self.depth += 1
        self.loops += 1
        outer_scope, self.scope = self.scope, self.scope.inside()
        if self.is_settled(lo.expr) and self.is_settled(by.expr):
            self.scope.settled.add(index)
        self.env = dict(outer_env)
        name, kind = region.args[0]
        self.env[name] = Scalar(index, kind, lo.lo, max(lo.lo, hi.hi - 1))
        for (name, _), value in zip(region.args[1:], carried):
            self.env[name] = value
        end = self.ops(region)
        self.count("ops")
        self.cost("scalar.branch")
        self.flush()
        if end is not None:
            self.assign(op, carried, end.operands)
        self.emit("pass")
        self.at_once(op, budget, index, hi.expr, trips)
        self.loops -= 1
        self.depth -= 1
        weight = self.blocks[self.block]["ops"]
        self.limit(op, budget, self.depth, f"{trips} * {weight}")
        self.env, self.scope = outer_env, outer_scope
        self.block = outer_block
        for result, value in zip(op.results, carried):
            self.env[result] = value

    def at_once(self, op: Op, head: int, index: str, last: str, trips: str) -> None:
        """Let a loop whose body is made and whose head is at line `head` do what is left after one iteration."""
        made = self.lines[head:]
        steps = [x for line in made if (x := re.fullmatch(r"( *)ts \+= (\d+)", line))]
        cycles = sum(int(step[2]) for step in steps)
        idle = sum(int(step[2]) for step in steps if len(step[1]) == 4 * self.depth)
        asked = [x[1] for line in made if (x := re.fullmatch(r" *path = path\[(.*)\]", line))]
        try:
            loop = elements.Elements(self, op, index, last, cycles, idle, asked)
            code = loop.code()
        except elements.Unlike:
            return
        once = self.fresh("w")
        before = [f"{once} = {trips} > LEAST"]
        if loop.stores:
            before += [f"{loop.stores} = None", f"{loop.skip} = -1"]
            self.lines.insert(head + 1, "    " * self.depth + f"if {index} < {loop.skip}: continue")
        self.lines[head:head] = ["    " * (self.depth - 1) + line for line in before]
        self.emit(f"if {once}:")
        for line in [f"{once} = False", *code]:
            self.emit("    " + line)
        if loop.stores:
            self.emit(f"if {loop.stores} is not None:")
            self.emit(f"    ts, {loop.skip}, {loop.count} = {loop.stores}.after({index}, ts)")
            self.emit(f"    c{len(self.blocks) - 1} += {loop.count}")

    def limit(self, op: Op, line: int, depth: int, ops: str) -> None:
        """Take the ops of a loop from the program's budget; a recorded path has stayed inside it."""
        if self.mode == "values":
            return
        pad = "    " * depth
        self.lines.insert(line, f"{pad}if left < 0: raise Fault('endless loop', ENDLESS + {self.safe(op)!r})")
        self.lines.insert(line, f"{pad}left -= {ops}")

    def safe(self, op: Op) -> str:
        return self.places[self.place(op)].replace("'", "")

    def branch(self, op: Op) -> None:
        condition = self.scalar(op.operands[0]).expr
        self.cost("scalar.branch")
        self.flush()
        self.decide(condition)
        outer_block, outer_env, outer_scope = self.block, self.env, self.scope
        results: list[Value] = []
        for kind in op.result_types if op.results else ():
            results.append(self.placeholder(op, kind))
        for i, region in enumerate(op.regions):
            if i == 1 and not region.ops:
                continue
            if i == 0:
                self.emit(f"if {condition}:")
            else:
                self.emit("else:")
            self.depth += 1
            self.block = self.open_block()
            self.ran()
            self.env, self.scope = dict(outer_env), outer_scope.inside()
            end = self.ops(region)
            self.flush()
            if end is not None and op.results:
                for j, name in enumerate(end.operands):
                    results[j] = self.settle(op, results[j], self.env[name])
            self.emit("pass")
            self.depth -= 1
        self.env, self.scope = outer_env, outer_scope
        self.block = outer_block
        for result, value in zip(op.results, results):
            self.env[result] = value

    def placeholder(self, op: Op, kind: str) -> Value:
        memref = memref_type(kind) if kind.startswith("memref") else None
        if memref is None:
            lo, hi = int_range(kind) if kind in INT_BITS else (0, 0)
            return Scalar(self.fresh("v"), kind, lo, hi)
        strides = memref.strides if None not in memref.strides else dense_strides(memref.shape)
        return Memory(
            memref.space,
            memref.element,
            self.fresh("r"),
            self.fresh("o"),
            tuple(self.fresh("s") if x is None else x for x in memref.shape),
            tuple(self.fresh("d") if x is None else x for x in strides),
            None,
        )

    def settle(self, op: Op, target: Value, value: Value) -> Value:
        """Assign a branch's value to the variables of the result."""
        if isinstance(target, Scalar):
            assert isinstance(value, Scalar)
            self.emit(f"{target.expr} = {value.expr}")
            return target
        assert isinstance(value, Memory)
        self.emit(f"{target.root}, {target.offset} = {value.root}, {value.offset}")
        for a, b in zip((*target.sizes, *target.strides), (*value.sizes, *value.strides)):
            if isinstance(a, str):
                self.emit(f"{a} = {b}")
            elif a != b:
                raise unsupported(op, "with a memref result whose layout depends on the branch")
        return target

    def while_loop(self, op: Op) -> None:
        before, after = op.regions
        carried = [self.carried(op, self.env[x], "w") for x in op.operands]
        results = [self.placeholder(op, kind) for kind in (op.result_types if op.results else ())]
        self.flush()
        outer_block, outer_env, outer_scope = self.block, self.env, self.scope
        self.block = self.open_block()
        self.emit("while True:")
        self.depth += 1
        self.loops += 1
        self.ran()
        budget = len(self.lines)
        self.env, self.scope = dict(outer_env), outer_scope.inside()
        for (name, _), value in zip(before.args, carried):
            self.env[name] = value
        end = self.ops(before)
        self.count("ops")
        self.cost("scalar.branch")
        self.flush()
        assert end is not None and end.name == "scf.condition"
        go = self.scalar(end.operands[0]).expr
        for j, name in enumerate(end.operands[1:]):
            results[j] = self.settle(op, results[j], self.env[name])
        self.decide(go)
        self.emit(f"if not {go}: break")
        first = self.block
        weight = self.blocks[first]["ops"]
        self.block = self.open_block()
        self.ran()
        self.env = dict(outer_env)
        for (name, _), value in zip(after.args, results):
            self.env[name] = value
        end = self.ops(after)
        self.count("ops")
        self.flush()
        weight += self.blocks[self.block]["ops"]
        if end is not None:
            self.assign(op, carried, end.operands)
        self.loops -= 1
        self.depth -= 1
        self.limit(op, budget, self.depth + 1, str(weight))
        self.env, self.scope = outer_env, outer_scope
        self.block = outer_block
        for result, value in zip(op.results, results):
            self.env[result] = value

    # ---- the NPU's own ops

    def hivm(self, op: Op) -> None:
        name = op.short
        if name == "get_block_idx":
            self.cost("scalar.alu")
            self.env[op.results[0]] = Scalar("block", op.result_types[0], 0, 65535)
        elif name == "pointer_cast":
            self.pointer_cast(op)
        elif name == "bitcast":
            source = self.memory(op.operands[0])
            kind = memref_type(op.result_types[0])
            assert kind
            if ELEMENT_BITS[kind.element] != ELEMENT_BITS[source.elem]:
                raise unsupported(op, f"from {source.elem} to {kind.element}")
            self.env[op.results[0]] = Memory(
                source.space,
                kind.element,
                source.root,
                source.offset,
                source.sizes,
                source.strides,
                source.root_index,
            )
        elif name in ("set_flag", "wait_flag"):
            giver, waiter = op.pipe("set_pipe"), op.pipe("wait_pipe")
            if giver not in PIPES or waiter not in PIPES:
                raise unsupported(op, f"between {giver} and {waiter}")
            event = re.search(r"EVENT_ID(\d+)", op.attrs.get("static_event_id", ""))
            which = event.group(1) if event else self.scalar(op.operands[0]).expr
            if not event:
                self.decide(which)
            self.cost("scalar.flag")
            self.count("flags")
            self.flush()
            if name == "wait_flag" and "S" in (giver, waiter) and self.loops:
                self.count("scalar_waits_in_loops")
            if self.mode == "values":
                return
            pair = PIPES.index(giver), PIPES.index(waiter)
            if name == "set_flag":
                self.emit(f"{self.flag('SET', self.machine.setters, *pair, which)}(ts)")
            else:
                self.emit(f"ts = {self.flag('WAIT', self.machine.waiters, *pair, which)}(ts, {self.place(op)})")
        elif name in ("sync_block_lock", "sync_block_unlock"):
            self.cost("scalar.lock")
            self.flush()
            self.emit(f"M.locked = {name == 'sync_block_lock'}")
        elif name == "pipe_barrier":
            pipe = op.pipe("pipe")
            self.cost("scalar.barrier")
            self.count("barriers")
            self.flush()
            if self.mode == "values" and (pipe == "ALL" or pipe in PIPES):
                return
            if pipe == "ALL":
                self.emit("ts = BARRIER_ALL(ts)")
            elif pipe in PIPES:
                self.emit(f"ts = BARRIER(ts, {PIPES.index(pipe)})")
            else:
                raise unsupported(op, f"on {pipe}")
        else:
            self.data_op(op)

    def flag(self, stem: str, made: Made, giver: int, waiter: int, event: str) -> str:
        """The function for one flag, by name where its number is known before the run."""
        if not event.isdigit():
            return f"{stem}[{giver}, {waiter}, {event}]"
        name = f"{stem}_{giver}_{waiter}_{event}"
        self.namespace[name] = made[giver, waiter, int(event)]
        return name

    def pointer_cast(self, op: Op) -> None:
        kind = memref_type(op.result_types[0])
        if kind is None or kind.space != "ub" or kind.static_bytes is None or len(op.operands) != 1:
            raise unsupported(op, f"to {op.result_types[0]}")
        address = self.scalar(op.operands[0])
        if address.lo != address.hi:
            raise unsupported(op, "with an address known only at run time")
        alloc = self.machine.add_alloc(op.results[0], address.lo, kind.static_bytes)
        index = self.machine.allocs.index(alloc)
        self.allocs[index] = alloc
        self.scope.settled.add(f"A{index}")
        strides = tuple(x if x is not None else 1 for x in kind.strides)
        self.env[op.results[0]] = Memory(
            "ub",
            kind.element,
            f"A{index}",
            address.lo * 8 // kind.bits,
            tuple(x for x in kind.shape if x is not None),
            strides,
            index,
        )

    def data_op(self, op: Op) -> None:
        place = self.place(op)
        function = f"K{len(self.namespace)}"
        made = runner(self.machine, op, place, self.costs)
        if self.mode == "values" and made.values is None:
            raise unsupported(op, "without its time")
        self.namespace[function] = made.values if self.mode == "values" else made.run
        operands = [self.env[x] for x in (op.operands[:2] if op.short in ("load", "store") else op.operands)]
        self.flush()
        keys = [key for x in operands if isinstance(x, Memory) and x.space == "ub" for key in self.keys(x)]
        self.decide(*keys)
        constant = all((isinstance(x, Memory) and x.space == "ub") or is_literal(x) for x in operands)
        ready = made.fix if self.mode == "values" else made.steady
        if constant and ready is not None and not keys:
            self.fixed.append((function, ready, operands))
            self.emit(f"{function}()" if self.mode == "values" else f"ts = {function}(ts)")
            return
        if constant and ready is not None:
            self.remembered_call(function, ready, operands)
            return
        texts: list[str] = []
        for value in operands:
            if isinstance(value, Scalar):
                texts.append(value.expr)
            elif made.line is not None and value.space == "gm" and value.strides == (1,) and value.sizes != ("?",):
                self.namespace[function] = made.line_values if self.mode == "values" else made.line
                self.decide(value.sizes[0])
                texts += [value.root, str(value.offset), str(value.sizes[0])]
            elif value.space == "gm":
                texts.append(self.tile(op, value))
            elif value.static:
                text = f"X{len(self.late)}"
                self.late.append((text, value))
                texts.append(text)
            else:
                texts.append(self.cached_access(value))
        call = (
            f"{function}({', '.join(texts)})" if self.mode == "values" else f"{function}(ts, {', '.join(texts)})"
        )
        self.emit(call if self.mode == "values" else f"ts = {call}")

    def tile(self, op: Op, value: Memory) -> str:
        """An operand in global memory, as an expression."""
        if op.short not in ("load", "store"):
            raise unsupported(op, "on global memory")
        if "?" in value.sizes:
            raise unsupported(op, "on an argument of unknown shape")
        parts = (value.root, repr(value.elem), value.offset, self.tuple_of(value.sizes))
        text = f"TILE({', '.join(map(str, parts))}, {self.tuple_of(value.strides)})"
        if self.mode == "time" or not any(isinstance(x, str) for x in (*value.sizes, *value.strides)):
            return text
        name = self.fresh("t")
        self.emit(f"{name} = {text}")
        if not all(self.is_settled(x) for x in (*value.sizes, *value.strides)):
            self.decide(f"{name}.nbytes", f"{name}.bursts")
        return name

    def keys(self, value: Memory) -> list[str]:
        """What decides at run time where an operand in the unified buffer is; nothing when that is known."""
        return [] if value.static else [*self.unknown_root(value, ".lo", ".hi"), *self.run_time_parts(value)]

    @staticmethod
    def unknown_root(value: Memory, *parts: str) -> list[str]:
        return [value.root + part for part in parts] if value.root_index is None else []

    @staticmethod
    def run_time_parts(value: Memory) -> list[str]:
        return [str(x) for x in (value.offset, *value.sizes, *value.strides) if isinstance(x, str)]

    def remember(self, operands: Sequence[Memory], name: str, made: str) -> None:
        """Assign to `name` what `made` gives for operands whose place is known at run time, or gave before."""
        cache, key = self.fresh("C"), self.fresh("k")
        self.namespace[cache] = {}
        parts = dict.fromkeys(p for x in operands for p in (*self.unknown_root(x, ""), *self.run_time_parts(x)))
        self.emit(f"{key} = {', '.join(parts)}")
        self.emit(f"{name} = {cache}.get({key})")
        self.emit(f"if {name} is None:")
        self.emit(f"    {name} = {cache}[{key}] = {made}")

    def cached_access(self, value: Memory) -> str:
        """Resolve an operand whose place is known at run time, remembering what was resolved before."""
        name = self.fresh("x")
        self.remember([value], name, self.access(value))
        return name

    def access(self, value: Memory) -> str:
        where = f"{value.root}, {value.elem!r}, {value.offset}"
        return f"ACCESS({where}, {self.tuple_of(value.sizes)}, {self.tuple_of(value.strides)})"

    def remembered_call(self, function: str, ready: Callable[..., Any], operands: Sequence[Value]) -> None:
        """An op whose operands lie in a few places: one call ready for each of them."""
        self.namespace[function] = ready
        parts = [x.expr if isinstance(x, Scalar) else self.access(x) for x in operands]
        name = self.fresh("f")
        self.remember([x for x in operands if isinstance(x, Memory)], name, f"{function}({', '.join(parts)})")
        self.emit(f"{name}()" if self.mode == "values" else f"ts = {name}(ts)")

    @staticmethod
    def tuple_of(parts: Sequence[int | str]) -> str:
        return f"({', '.join(map(str, parts))},)" if parts else "()"


def is_literal(value: Value) -> bool:
    """Whether a number is written out in the code, not computed by it."""
    return isinstance(value, Scalar) and NUMBER.fullmatch(value.expr) is not None


def generate(
    entry: Op, costs: dict[str, float], trace: bool = False, mode: str = "time", indices: bool = False
) -> Generated:
    """Generated code of a device function; raises Fault when it holds something that is not modelled.

    mode: "time", "record" or "values".  indices: places of scalar accesses count as decisions, too.
    """
    made = Generator(entry, costs, trace, mode, indices).generate()
    made.namespace["ENDLESS"] = "the op budget ran out in a loop at "
    return made
