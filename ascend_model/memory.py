"""Memory of one launch: the unified buffer by address, global buffers with bounds, and who may see what.

Every access is checked three ways.  *Bounds*: inside the allocation or the tensor.  *Definedness*: bytes of
the unified buffer that nothing wrote are followed through copies and lane-wise ops, and reported where they
reach global memory, a reduction or the scalar pipe.  *Order*: each pipe runs on its own, so a pipe may use
what another one wrote only after waiting for it; vector clocks say what each pipe has waited for, although
the simulation itself runs in program order.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from ascend_model.parse import ELEMENT_BITS
from ascend_model.timeline import MTE2, MTE3, PIPES, S, Timeline, V

UB_BYTES = 196608
REPEAT_BYTES = 256
"""What the vector unit takes in one repeat."""

NUMPY_TYPE: dict[str, Any] = {
    "i1": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
}
VIEW_CODE = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "f16": "H", "bf16": "H", "f32": "f"}
MOST_CLOCKS = 100_000
"""Global accesses of one program whose clocks are recorded; a program with more is not kept."""
ALWAYS = 1 << 62
"""A sequence number above any other: a pipe that keeps its own order has always seen its earlier work."""


class Fault(Exception):
    """Ends a launch: `status` is its state, the message says what and where."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Finding:
    """Something wrong with the compiled code or its arguments, seen during one launch."""

    kind: str
    message: str
    place: str
    program: int
    count: int = 1

    def __str__(self) -> str:
        where = f" at {self.place}" if self.place else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}: {self.message}{where}, program {self.program}{times}"


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    return bits.view(bfloat16).astype(np.float32)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Round to nearest even; a NaN stays a NaN."""
    return np.asarray(values, np.float32).astype(bfloat16).view(np.uint16)


@functools.lru_cache(maxsize=4096)
def bf16_bits(value: float) -> int:
    """The bits of one number, rounded as `f32_to_bf16` does."""
    return int(f32_to_bf16(np.array([value], np.float32))[0])


class Atom:
    """A stretch of the unified buffer that every allocation covers as a whole or not at all."""

    __slots__ = ("dirty", "hi", "holder", "last", "lo", "r", "w", "w_hi", "w_lo", "watchers", "writer")

    def __init__(self, lo: int, hi: int):
        self.lo = lo
        self.hi = hi
        self.watchers: list[Alloc] = []
        # by pipe: the last write and read, and the bytes of that write; the same lists from program to program
        self.w = [0, 0, 0, 0]
        self.r = [0, 0, 0, 0]
        self.w_lo = [0, 0, 0, 0]
        self.w_hi = [0, 0, 0, 0]
        self.reset()

    def reset(self) -> None:
        for one in (self.w, self.r, self.w_lo, self.w_hi):
            one[:] = 0, 0, 0, 0
        self.last = -1
        self.writer = -1
        self.holder: Alloc | None = None
        self.dirty = True


class Alloc:
    """A typed buffer at a fixed address.

    `rd` and `wr` spare scalar accesses the order check: 0 it is needed, 1 it was done and every byte is written,
    2 it was done and some bytes may be unwritten.  `scalar` says that the kernel has scalar accesses to it.
    """

    __slots__ = ("atoms", "hi", "lo", "name", "rd", "scalar", "wr")

    def __init__(self, name: str, lo: int, hi: int):
        self.name = name
        self.lo = lo
        self.hi = hi
        self.atoms: tuple[Atom, ...] = ()
        self.rd = 0
        self.wr = 0
        self.scalar = False


class Access:
    """One operand in the unified buffer, resolved: numpy view, byte range, and the atoms it touches."""

    __slots__ = (
        "alloc",
        "arr",
        "atoms",
        "bits",
        "dense",
        "elem",
        "hi",
        "lo",
        "n",
        "nbytes",
        "one_axis",
        "outside",
        "repeats",
        "shadow",
        "shape",
    )

    repeats: int
    alloc: Alloc
    arr: Any
    shadow: Any
    atoms: tuple[Atom, ...]
    bits: Any
    """Of a strided bit mask: for each lane, its bit counted from byte `lo`."""
    elem: str
    shape: tuple[int, ...]
    lo: int
    hi: int
    n: int
    nbytes: int
    dense: bool
    one_axis: bool
    outside: bool


class Global:
    """A global buffer: the bytes of one tensor argument."""

    def __init__(self, index: int, name: str, data: np.ndarray, elem: str, kind: int | None):
        self.index = index
        self.name = name
        self.bytes = data
        self.size = data.size
        self.elem = elem
        self.kind = kind
        self.unit = max(1, ELEMENT_BITS[elem] // 8)
        self.line0 = (index + 1) << 40
        self.is_loaded = False
        self.is_stored = False
        self.owner: np.ndarray | None = None
        self.reader: np.ndarray | None = None
        self.pending: list[tuple[int, int, int, int, bool, Tile | None]] = []
        self.cleared = 0
        self.placed = False
        """Whether it depends on the places of this program's accesses that all of them are in order."""
        self.numpy: dict[str, np.ndarray] = {}
        self.view: dict[str, Any] = {}
        self.count: dict[str, int] = {}
        for code in NUMPY_TYPE:
            width = max(1, ELEMENT_BITS[code] // 8)
            typed = data[: data.size // width * width].view(NUMPY_TYPE[code])
            self.numpy[code] = typed
            self.count[code] = typed.size
            # a memoryview gives Python numbers; it has no half floats, which stay bits
            self.view[code] = memoryview(typed.view(np.uint16) if code == "f16" else typed)
        for code in ("i8", "i16", "i32", "i64", "f16", "bf16", "f32"):
            setattr(self, "v_" + code, self.view[code])
            setattr(self, "n_" + code, self.count[code])

    def begin(self) -> None:
        """Start a program: none of its accesses has been seen."""
        self.pending = []
        self.cleared = 0
        self.placed = False

    def units(self, lo: int, hi: int) -> slice:
        """Where the ownership arrays have these bytes."""
        return slice(lo // self.unit, -(-hi // self.unit))

    def track(self) -> None:
        """Remember which program wrote and read each element, to see programs that disturb each other."""
        if self.is_stored:
            self.owner = np.zeros(-(-self.size // self.unit), np.int32)
            if self.is_loaded:
                self.reader = np.zeros(-(-self.size // self.unit), np.int32)


class Tile:
    """One operand in global memory, resolved."""

    __slots__ = (
        "arr",
        "bursts",
        "elem",
        "first",
        "hi",
        "lo",
        "n",
        "nbytes",
        "outside",
        "root",
        "shape",
        "strides",
    )

    root: Global
    arr: Any
    elem: str
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    lo: int
    hi: int
    n: int
    nbytes: int
    bursts: int
    outside: bool

    def indices(self) -> np.ndarray:
        """Element index of every lane, in lane order."""
        index = np.full(self.shape, self.first, np.int64)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides)):
            steps = np.arange(size, dtype=np.int64) * stride
            index += steps.reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
        return index.reshape(-1)


class Made(dict[Any, Any]):
    """What `make` gives for a key, made when it is first asked for."""

    def __init__(self, make: Callable[[Any], Any]):
        self.make = make

    def __missing__(self, key: Any) -> Any:
        made = self[key] = self.make(key)
        return made


class Machine:
    """The state that the generated code works on, one a compiled kernel; `begin` starts a program of the grid."""

    def __init__(self, timeline: Timeline, places: Sequence[str]):
        self.time = timeline
        self.places = places
        self.ub = np.zeros(UB_BYTES, np.uint8)
        self.numpy = {code: self.ub.view(kind) for code, kind in NUMPY_TYPE.items()}
        self.view = {code: memoryview(self.numpy["bf16" if code == "f16" else code]) for code in VIEW_CODE}
        self.shadow_bytes = bytearray(b"\1") * UB_BYTES
        self.shadow = np.frombuffer(self.shadow_bytes, np.uint8)
        self.allocs: list[Alloc] = []
        self.atoms: list[Atom] = []
        self.by_address: dict[tuple[int, int], Alloc] = {}
        self.peak = 0
        self.flags: defaultdict[tuple[int, int, int], deque[tuple[int, list[int], int]]] = defaultdict(deque)
        self.setters: Made = Made(lambda flag: self._setter(*flag))
        self.waiters: Made = Made(lambda flag: self._waiter(*flag))
        self.scalar_allocs: list[Alloc] = []
        self.seq = [0, 0, 0, 0]
        self.clock = [[0] * 4 for _ in range(4)]
        self.findings: dict[tuple[str, int, str], list[Any]] = {}
        self.program = 0
        self.dma = [0, 0]
        self.dma_bytes = [0, 0]
        self.bursts = [0, 0]
        self.vector_ops = 0
        self.repeats = 0
        self.out_of_bounds = 0
        self.locked = False
        self.load_rate = 1.0
        self.store_rate = 1.0
        self.stored_until = 0
        self.reported = 0
        # of a program that is recorded, see `replay`: clocks of its global accesses, its decisions, whether data
        # decided what was judged, and whether it took single values of a buffer that is written in part
        self.recorded: list[tuple[Global, Any]] | None = None
        self.path: list[Any] = []
        self.delicate = False
        self.partial = False
        # of a program that repeats a path: what to put back, and its global accesses
        self.undo: list[tuple[Any, Any, Any]] = []
        self.moves: list[Any] = []

    # ---- set-up

    def add_alloc(self, name: str, lo: int, nbytes: int) -> Alloc:
        """A buffer at an address of the unified buffer; the same address and size give the same buffer."""
        known = self.by_address.get((lo, nbytes))
        if known is None:
            if lo < 0 or lo + nbytes > UB_BYTES:
                raise Fault("out of bounds", f"{name} lies at bytes {lo}..{lo + nbytes} of {UB_BYTES} B of UB")
            known = self.by_address[lo, nbytes] = Alloc(name, lo, lo + nbytes)
            self.allocs.append(known)
            self.peak = max(self.peak, lo + nbytes)
        return known

    def layout(self) -> None:
        """Cut the unified buffer where any allocation begins or ends."""
        cuts = sorted({0, UB_BYTES} | {x for a in self.allocs for x in (a.lo, a.hi)})
        self.atoms = [Atom(lo, hi) for lo, hi in pairwise(cuts)]
        for alloc in self.allocs:
            alloc.atoms = tuple(a for a in self.atoms if a.lo < alloc.hi and a.hi > alloc.lo)
            if alloc.scalar:
                self.scalar_allocs.append(alloc)
                for atom in alloc.atoms:
                    atom.watchers.append(alloc)

    def begin_launch(self, load_rate: float, store_rate: float) -> None:
        """Forget the launch before; rates in bytes a cycle."""
        self.load_rate, self.store_rate = load_rate, store_rate
        self.findings = {}
        self.dma, self.dma_bytes, self.bursts = [0, 0], [0, 0], [0, 0]
        self.vector_ops = self.repeats = self.out_of_bounds = self.reported = 0

    def take_over(self, other: Machine) -> None:
        """Go on with a launch that another machine of the same kernel began."""
        self.begin_launch(other.load_rate, other.store_rate)
        self.findings, self.reported, self.out_of_bounds = other.findings, other.reported, other.out_of_bounds
        self.dma, self.dma_bytes, self.bursts = other.dma, other.dma_bytes, other.bursts
        self.vector_ops, self.repeats = other.vector_ops, other.repeats

    def begin(self, program: int) -> None:
        self.program = program
        self.delicate = self.partial = False
        self.path.clear()
        if self.recorded is not None:
            self.recorded = []
        self.time.reset()
        for queue in self.flags.values():
            queue.clear()
        self.ub[: self.peak] = 0xFF
        self.shadow[: self.peak] = 1
        for atom in self.atoms:
            atom.reset()
        for alloc in self.scalar_allocs:
            alloc.rd = alloc.wr = 0
        self.seq[:] = 0, 0, 0, 0
        self.stored_until = 0
        self.locked = False
        # a pipe keeps the order of its own work, except that vector results need a barrier; of its own writes the
        # scalar pipe knows which are over for others, too, from flags that come back to it
        for p, clock in enumerate(self.clock):
            clock[:] = [ALWAYS if p == q and p not in (S, V) else 0 for q in range(4)]

    def begin_values(self, program: int) -> None:
        """Start a program of which values alone are computed."""
        self.program = program
        self.ub[: self.peak] = 0xFF
        self.locked = False

    def clocks(self) -> tuple[Any, ...]:
        """What the order of a global access is judged by."""
        s, _, loads, stores = self.clock
        return [s.copy(), (), loads.copy(), stores.copy()], self.seq.copy(), self.stored_until

    def set_clocks(self, clocks: tuple[Any, ...]) -> None:
        """As `clocks` gave them, for a program that repeats the path of the one they are from."""
        (self.clock[S][:], _, self.clock[MTE2][:], self.clock[MTE3][:]), self.seq[:], self.stored_until = clocks

    def end(self) -> None:
        for (source, waiter, event), queue in self.flags.items():
            if not queue:
                continue
            self.report(
                "missing wait",
                f"{PIPES[source]} set flag {event} for {PIPES[waiter]} and nothing waited for it",
                -1,
            )

    def cross_reads(self, root: Global) -> None:
        """After a launch: elements that one program stored and another one loaded, in whatever order."""
        if root.owner is None or root.reader is None:
            return
        # an element its writer had loaded before is the read-modify-write overlap, reported where it happens
        mixed = (root.owner > 0) & (root.reader > 0) & (root.owner != root.reader)
        count = int(np.count_nonzero(mixed))
        if count:
            at = int(np.flatnonzero(mixed)[0])
            self.program = int(root.reader[at]) - 1
            self.report(
                "read-write race",
                f"a program loads elements of {root.name} that another program stores: "
                f"what it gets depends on which one runs first",
                -1,
                count,
                f"element {at}, loaded by program {self.program}, stored by program {int(root.owner[at]) - 1}",
            )

    def report(self, kind: str, message: str, place: int, count: int = 1, detail: str = "") -> None:
        """Keep one finding a kind, place and message; `detail` belongs to the first occurrence only."""
        self.reported += 1
        entry = self.findings.get((kind, place, message))
        if entry is None:
            self.findings[kind, place, message] = [count, self.program, detail]
        else:
            entry[0] += count

    # ---- resolving operands

    def access(
        self, alloc: Alloc, elem: str, first: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Access:
        """Resolve an operand in the unified buffer; `first` counts elements (bits for i1) from address 0."""
        bits = ELEMENT_BITS[elem]
        a = Access()
        a.alloc, a.elem, a.bits = alloc, elem, None
        shape = tuple(max(0, n) for n in shape)
        n = 1
        for size in shape:
            n *= size
        a.n, a.shape, a.one_axis = n, shape, len(shape) == 1
        if n == 0:
            a.lo = a.hi = first * bits // 8
            a.atoms, a.nbytes, a.dense, a.outside, a.repeats = (), 0, True, False, 0
            a.arr = np.empty(shape, NUMPY_TYPE[elem])
            a.shadow = np.empty(shape, np.uint8)
            return a
        last = first + sum((size - 1) * stride for size, stride in zip(shape, strides))
        a.dense = last - first + 1 == n
        if bits == 1:
            a.lo, a.hi = first // 8, last // 8 + 1
        else:
            a.lo, a.hi = first * bits // 8, (last + 1) * bits // 8
        a.outside = a.lo < alloc.lo or a.hi > alloc.hi
        if a.lo < 0 or a.hi > UB_BYTES:
            raise Fault("out of bounds", f"{alloc.name}: bytes {a.lo}..{a.hi} of {UB_BYTES} B of UB")
        a.nbytes = a.hi - a.lo if bits == 1 else n * bits // 8
        if a.dense:
            a.repeats = -(-a.nbytes // REPEAT_BYTES)
        else:
            a.repeats = n // shape[-1] * -(-shape[-1] * bits // 8 // REPEAT_BYTES)
        a.atoms = tuple(t for t in (self.atoms if a.outside else alloc.atoms) if t.lo < a.hi and t.hi > a.lo)
        if bits == 1 and a.dense:
            a.arr, a.shadow = first, self.shadow[a.lo : a.hi]
        elif bits == 1:
            a.arr = first
            self._strided_bits(a, shape, strides)
        elif len(shape) == 1 and strides[0] == 1:
            a.arr = self.numpy[elem][first : first + n]
            a.shadow = self.shadow[a.lo : a.hi : bits // 8]
        else:
            width = bits // 8
            steps = [stride * width for stride in strides]
            a.arr = np.ndarray(shape, NUMPY_TYPE[elem], self.ub.data, a.lo, steps)
            a.shadow = np.ndarray(shape, np.uint8, self.shadow_bytes, a.lo, steps)
        return a

    def _strided_bits(self, a: Access, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """A bit mask whose rows start every so many bytes: each lane's bit, and the bytes that hold them."""
        shift = a.arr - 8 * a.lo
        a.bits = np.full(shape, shift, np.int64)
        for axis, (size, stride) in enumerate(zip(shape, strides)):
            steps = np.arange(size, dtype=np.int64) * stride
            a.bits += steps.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        if strides[-1] == 1 or shape[-1] == 1:
            outer, row = strides[:-1], ((shift + shape[-1] + 7) // 8,)
            held, steps_of = (*shape[:-1], *row), [*(s // 8 for s in outer), 1]
        else:
            outer, held, steps_of = strides, shape, [s // 8 for s in strides]
        if any(s % 8 for s in outer):
            raise Fault("unsupported", f"a bit mask in the unified buffer with strides {strides} of bits")
        a.shadow = np.ndarray(held, np.uint8, self.shadow_bytes, a.lo, steps_of)
        a.nbytes = int(np.prod(held))

    def tile(self, root: Global, elem: str, first: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tile:
        """Resolve an operand in global memory."""
        t = Tile()
        width = ELEMENT_BITS[elem] // 8 or 1
        t.root, t.elem, t.first, t.strides = root, elem, first, strides
        if shape == (1,):
            t.shape, t.n, t.bursts, t.nbytes = shape, 1, 1, width
            t.lo = first * width
            t.hi = t.lo + width
            t.outside = not 0 <= first < root.count[elem]
            t.arr = None if t.outside else root.numpy[elem][first : first + 1]
            return t
        if len(shape) == 1:
            n = shape[0]
            if n < 0:
                n, shape = 0, (0,)
            span = (n - 1) * strides[0]
            bursts = 1 if strides[0] == 1 else n
        else:
            shape = tuple(max(0, size) for size in shape)
            n, span, bursts, dense = 1, 0, 1, 1
            for size, stride in zip(reversed(shape), reversed(strides)):
                n *= size
                span += (size - 1) * stride
                if size != 1:
                    if stride == dense:
                        dense *= size
                    else:
                        bursts *= size
                        dense = -1
        t.shape, t.n, t.bursts = shape, n, bursts
        t.nbytes = n * width
        if n == 0:
            t.lo = t.hi = 0
            t.outside = False
            t.arr = np.empty(tuple(map(int, shape)), NUMPY_TYPE[elem])
            return t
        t.lo, t.hi = first * width, (first + span + 1) * width
        limit = root.count[elem]
        t.outside = first < 0 or first + span >= limit
        if t.outside:
            t.arr = None
        elif len(shape) == 1 and strides[0] == 1:
            t.arr = root.numpy[elem][first : first + n]
        else:
            flat = root.numpy[elem]
            t.arr = np.ndarray(shape, flat.dtype, flat, first * width, [s * width for s in strides])
        return t

    # ---- order between pipes

    def toucher(
        self, pipe: int, reads: tuple[Access, ...], writes: tuple[Access, ...], place: int
    ) -> Callable[[], None]:
        """A function that records that a pipe's next op reads and writes these operands, and reports what it did
        not wait for."""
        clock, issuer, all_seq = self.clock[pipe], self.clock[S], self.seq
        outside = [(a, verb) for part, verb in ((reads, "read"), (writes, "write")) for a in part if a.outside]
        read = [(atom, atom.w, atom.r, a, a.alloc) for a in reads for atom in a.atoms]
        written = [(atom, atom.w, atom.r, a, a.lo, a.hi) for a in writes for atom in a.atoms]

        def touch() -> None:
            s, v, loads, stores = issuer
            if s > clock[0]:
                clock[0] = s
            if v > clock[1]:
                clock[1] = v
            if loads > clock[2]:
                clock[2] = loads
            if stores > clock[3]:
                clock[3] = stores
            all_seq[pipe] = seq = all_seq[pipe] + 1
            c0, c1, c2, c3 = clock
            for a, verb in outside:
                self.ub_outside(a, verb, place)
            for atom, (w0, w1, w2, w3), _, a, alloc in read:
                if w0 > c0 or w1 > c1 or w2 > c2 or w3 > c3:
                    self.late(pipe, a, atom, "reads", place)
                if atom.holder is not alloc:
                    self.clobbered(alloc, atom, PIPES[pipe], place)
            for atom, (w0, w1, w2, w3), (_, r1, r2, r3), a, _, _ in written:
                if w0 > c0 or w1 > c1 or w2 > c2 or w3 > c3:
                    self.late(pipe, a, atom, "overwrites", place)
                if r1 > c1 or r2 > c2 or r3 > c3:
                    self.early(pipe, a, atom, place)
            for atom, _, r, _, _ in read:
                r[pipe] = seq
                atom.last = pipe
                for alloc in atom.watchers:
                    alloc.wr = 0
            for atom, w, _, a, lo, hi in written:
                before = w[pipe]
                if atom.last == pipe and before and before == seq - 1:
                    if lo < atom.w_lo[pipe]:
                        atom.w_lo[pipe] = lo
                    if hi > atom.w_hi[pipe]:
                        atom.w_hi[pipe] = hi
                else:
                    atom.w_lo[pipe] = lo
                    atom.w_hi[pipe] = hi
                w[pipe] = seq
                atom.writer = place
                atom.holder = a.alloc
                atom.last = pipe
                for alloc in atom.watchers:
                    alloc.rd = alloc.wr = 0

        return touch

    def clobbered(self, alloc: Alloc, atom: Atom, reader: str, place: int) -> None:
        """Report a read of bytes that were last written through another buffer, which does not hold this one.

        A narrower result may stand at the start of its operand, where the op is done in place.
        """
        holder = atom.holder
        if holder is None or holder.lo == alloc.lo or (holder.lo < alloc.lo and alloc.hi <= holder.hi):
            return
        self.report(
            "overlapping buffers",
            f"{reader} reads the buffer at UB bytes {alloc.lo}..{alloc.hi}, part of which was overwritten through "
            f"the buffer at {holder.lo}..{holder.hi}",
            place,
        )

    def late(self, pipe: int, a: Access, atom: Atom, verb: str, place: int) -> None:
        for q in range(1 if pipe == S else 0, 4):
            if atom.w[q] > self.clock[pipe][q] and a.lo < atom.w_hi[q] and atom.w_lo[q] < a.hi:
                if q == pipe and atom.writer == place:
                    # The compiler puts no barrier between a lane-wise op in place and its own next iteration,
                    # where every lane follows itself through the same pipeline.
                    continue
                what = "no barrier stands between" if q == pipe else f"{PIPES[pipe]} did not wait for {PIPES[q]}"
                self.report(
                    "missing wait",
                    f"{PIPES[pipe]} {verb} UB bytes {atom.lo}..{atom.hi}, written by {PIPES[q]}: {what}",
                    place,
                )

    def early(self, pipe: int, a: Access, atom: Atom, place: int) -> None:
        # A scalar read is over before the scalar pipe hands over any later op, so it needs no flag.
        for q in (1, 2, 3):
            if atom.r[q] > self.clock[pipe][q]:
                if q == pipe and atom.writer == place:
                    continue
                what = "no barrier stands between" if q == pipe else f"{PIPES[pipe]} did not wait for {PIPES[q]}"
                self.report(
                    "missing wait",
                    f"{PIPES[pipe]} overwrites UB bytes {atom.lo}..{atom.hi}, "
                    f"which {PIPES[q]} may still read: {what}",
                    place,
                )

    def _setter(self, source: int, waiter: int, event: int) -> Callable[[int], None]:
        """A function that sets a flag of one pipe for another, after all that the pipe was given until `ts`."""
        clock, issuer, seq = self.clock[source], self.clock[S], self.seq
        done, last, scalar_allocs = self.time.done, self.time.last, self.scalar_allocs
        put = self.flags[source, waiter, event].append

        def set_by_scalar(ts: int) -> None:
            # the next scalar write belongs to the next flag
            for alloc in scalar_allocs:
                alloc.wr = 0
            known = clock.copy()
            known[S] = seq[S]
            put((ts, known, last[S]))

        def set_flag(ts: int) -> None:
            s, v, loads, stores = issuer
            if s > clock[0]:
                clock[0] = s
            if v > clock[1]:
                clock[1] = v
            if loads > clock[2]:
                clock[2] = loads
            if stores > clock[3]:
                clock[3] = stores
            known = clock.copy()
            known[source] = seq[source]
            up = done[source]
            put((ts if ts > up else up, known, last[source]))

        return set_by_scalar if source == S else set_flag

    def _waiter(self, source: int, waiter: int, event: int) -> Callable[[int, int], int]:
        """A function that lets a pipe wait for a flag: (ts, place of the wait) -> the scalar pipe's time."""
        clock, wait = self.clock[waiter], self.time.waiter(source, waiter)
        queue = self.flags[source, waiter, event]
        take = queue.popleft

        def wait_flag(ts: int, place: int) -> int:
            if not queue:
                raise Fault(
                    "deadlock",
                    f"{PIPES[waiter]} waits for flag {event} of {PIPES[source]}, which was not set, "
                    f"at {self.places[place]}, program {self.program}",
                )
            up, (s, v, loads, stores), after = take()
            if s > clock[0]:
                clock[0] = s
            if v > clock[1]:
                clock[1] = v
            if loads > clock[2]:
                clock[2] = loads
            if stores > clock[3]:
                clock[3] = stores
            return wait(ts, up, after)

        return wait_flag

    def barrier(self, ts: int, pipe: int) -> int:
        clock = self.clock[pipe]
        if self.seq[pipe] > clock[pipe]:
            clock[pipe] = self.seq[pipe]
        self.seq_barrier(pipe)
        return self.time.barrier(ts, pipe)

    def seq_barrier(self, pipe: int) -> None:
        """Within global memory the store pipe, too, needs a barrier to keep its order."""
        if pipe == MTE3:
            self.stored_until = self.seq[MTE3]

    def barrier_all(self, ts: int) -> int:
        for clock in self.clock:
            for q in range(4):
                if self.seq[q] > clock[q]:
                    clock[q] = self.seq[q]
        self.seq_barrier(MTE3)
        return self.time.barrier_all(ts)

    # ---- definedness

    def undefined(self, a: Access) -> np.ndarray | None:
        """Mask of lanes that nothing wrote (bytes, for a bit mask), or None when all are written."""
        for atom in a.atoms:
            if atom.dirty:
                break
        else:
            return None
        if a.dense:
            if not np.count_nonzero(self.shadow[a.lo : a.hi]):  # quicker than any()
                for atom in a.atoms:
                    if a.lo <= atom.lo and atom.hi <= a.hi:
                        atom.dirty = False
                return None
            return a.shadow.astype(bool)
        return a.shadow.astype(bool) if np.count_nonzero(a.shadow) else None

    def define(self, a: Access, mask: np.ndarray | None = None) -> None:
        """Mark an operand written; `mask` says which lanes took a value nothing wrote."""
        if mask is None:
            for atom in a.atoms:
                if atom.dirty:
                    break
            else:
                return
            if a.dense:
                self.shadow[a.lo : a.hi] = 0
                for atom in a.atoms:
                    if a.lo <= atom.lo and atom.hi <= a.hi:
                        atom.dirty = False
            else:
                self._shadow_lanes(a, 0)
            return
        for atom in a.atoms:
            atom.dirty = True
        self._shadow_lanes(a, mask)

    def _shadow_lanes(self, a: Access, value: Any) -> None:
        width = ELEMENT_BITS[a.elem] // 8
        if width <= 1:
            a.shadow[...] = value
            return
        wide = np.ndarray((*a.shadow.shape, width), np.uint8, self.shadow_bytes, a.lo, (*a.shadow.strides, 1))
        wide[...] = value if isinstance(value, int) else np.asarray(value)[..., None]

    def spoil(self, scratch: Sequence[Access]) -> None:
        """Mark operands that an op works in as holding nothing that was written."""
        for a in scratch:
            self.shadow[a.lo : a.hi] = 1
            for atom in a.atoms:
                atom.dirty = True

    def need_defined(self, a: Access, what: str, place: int) -> None:
        mask = self.undefined(a)
        if mask is not None and mask.any():
            self.report(
                "uninitialised UB read",
                f"{what} takes bytes {a.lo}..{a.hi} of UB, of which some were never written",
                place,
                int(mask.sum()),
            )

    def ub_outside(self, a: Access, verb: str, place: int) -> None:
        self.out_of_bounds += 1
        self.report(
            f"out of bounds {verb}",
            f"{verb} of UB bytes {a.lo}..{a.hi} through a buffer at {a.alloc.lo}..{a.alloc.hi}",
            place,
        )

    # ---- values

    def get(self, a: Any) -> Any:
        """Values of an operand, in a type numpy computes in.  Scalars pass."""
        if type(a) is not Access:
            return a
        elem = a.elem
        if elem == "bf16":
            return bf16_to_f32(a.arr)
        if elem == "i1":
            if a.n == 0:
                return np.zeros(a.shape, bool)
            shift = a.arr - 8 * a.lo
            bits = np.unpackbits(self.ub[a.lo : a.hi], bitorder="little").view(bool)
            if a.bits is not None:
                return bits[a.bits]
            return bits[shift : shift + a.n].reshape(a.shape)
        return a.arr

    def put(self, a: Access, values: Any) -> None:
        elem = a.elem
        if elem == "bf16":
            if isinstance(values, np.ndarray):
                a.arr.view(bfloat16)[...] = np.asarray(values, np.float32)
            else:
                a.arr[...] = bf16_bits(values)
        elif elem == "i1":
            if a.n == 0:
                return
            if a.bits is not None:
                old = np.unpackbits(self.ub[a.lo : a.hi], bitorder="little")
                old[a.bits] = np.broadcast_to(np.asarray(values, bool), a.shape)
                self.ub[a.lo : a.hi] = np.packbits(old, bitorder="little")
                return
            bits = np.asarray(values, bool)
            if bits.shape != a.shape:
                bits = np.broadcast_to(bits, a.shape)
            bits = bits.reshape(-1)
            shift, rest = a.arr - 8 * a.lo, a.hi * 8 - a.arr - a.n
            if shift or rest:
                old = np.unpackbits(self.ub[a.lo : a.hi], bitorder="little")
                old[shift : shift + a.n] = bits
                bits = old
            self.ub[a.lo : a.hi] = np.packbits(bits, bitorder="little")
        else:
            a.arr[...] = values

    # ---- scalar accesses that need a closer look

    def _scalar_claim(self, alloc: Alloc, lo: int, hi: int, write: bool, place: int) -> bool:
        """Order check of a scalar access; True when every byte of the buffer is defined."""
        seq = self.seq[S] + 1
        self.seq[S] = seq
        clock = self.clock[S]
        dirty = False
        probe = Access()
        probe.lo, probe.hi = lo, hi
        for atom in alloc.atoms:
            dirty = dirty or atom.dirty
            w, r = atom.w, atom.r
            if w[1] > clock[1] or w[2] > clock[2] or w[3] > clock[3]:
                self.delicate = True
                self.late(S, probe, atom, "overwrites" if write else "reads", place)
            if write and (r[1] > clock[1] or r[2] > clock[2] or r[3] > clock[3]):
                self.delicate = True
                self.early(S, probe, atom, place)
            if atom.holder is not alloc and not write:
                self.clobbered(alloc, atom, "S", place)
            if write:
                atom.holder = alloc
                w[0] = seq
                atom.w_lo[0], atom.w_hi[0] = alloc.lo, alloc.hi
                for other in atom.watchers:
                    if other is not alloc:
                        other.rd = other.wr = 0
            else:
                r[0] = seq
            atom.last = S
        return not dirty

    def ub_load(self, alloc: Alloc, elem: str, index: int, place: int) -> Any:
        bits = ELEMENT_BITS[elem]
        lo, hi = index * bits // 8, (index * bits + bits + 7) // 8
        if not alloc.lo <= lo < hi <= alloc.hi:
            self.out_of_bounds += 1
            self.report(
                "out of bounds read",
                f"scalar read of UB bytes {lo}..{hi} through a buffer at {alloc.lo}..{alloc.hi}",
                place,
            )
            if lo < 0 or hi > UB_BYTES:
                return 0
        elif self._scalar_claim(alloc, lo, hi, False, place):
            alloc.rd = 1 if bits > 1 else 0
        elif 1 not in self.shadow_bytes[lo:hi]:
            self.partial = True
            alloc.rd = 2 if bits > 1 else 0
        else:
            self.report(
                "uninitialised UB read",
                f"the scalar pipe takes bytes {lo}..{hi} of UB, which were never written",
                place,
            )
        return self.scalar_at(elem, index)

    def ub_store(self, alloc: Alloc, elem: str, index: int, value: Any, place: int) -> None:
        bits = ELEMENT_BITS[elem]
        lo, hi = index * bits // 8, (index * bits + bits + 7) // 8
        if not alloc.lo <= lo < hi <= alloc.hi:
            self.out_of_bounds += 1
            self.report(
                "out of bounds write",
                f"scalar write of UB bytes {lo}..{hi} through a buffer at {alloc.lo}..{alloc.hi}",
                place,
            )
            return
        if not alloc.wr:
            clean = self._scalar_claim(alloc, lo, hi, True, place)
            self.partial = self.partial or not clean
            alloc.wr = 0 if bits == 1 else 1 if clean else 2
        self.shadow_bytes[lo:hi] = b"\0" * (hi - lo)
        self.scalar_put(elem, index, value)

    @staticmethod
    def scalar_value(elem: str, raw: Any) -> Any:
        if elem == "bf16":
            return float(bf16_to_f32(np.array([raw], np.uint16))[0])
        if elem == "f16":
            return float(np.array([raw], np.uint16).view(np.float16)[0])
        return raw

    @staticmethod
    def scalar_bits(elem: str, value: Any) -> Any:
        if elem == "bf16":
            return bf16_bits(value)
        if elem == "f16":
            return int(np.array([value], np.float16).view(np.uint16)[0])
        return value

    def scalar_at(self, elem: str, index: int) -> Any:
        """A value in the unified buffer; `index` counts elements, bits for i1."""
        if elem == "i1":
            return (int(self.ub[index // 8]) >> (index % 8)) & 1
        return self.scalar_value(elem, self.view[elem][index])

    def scalar_put(self, elem: str, index: int, value: Any) -> None:
        if elem == "i1":
            old = int(self.ub[index // 8]) & ~(1 << (index % 8)) & 255
            self.ub[index // 8] = old | ((int(value) & 1) << (index % 8))
        else:
            self.view[elem][index] = self.scalar_bits(elem, value)

    def gm_outside(self, root: Global, elem: str, index: int, verb: str, place: int) -> int:
        self.out_of_bounds += 1
        self.report(
            f"out of bounds {verb}",
            f"scalar {verb} outside {root.name} ({root.count[elem]} elements)",
            place,
            detail=f"element {index}",
        )
        return 0

    def gm_seen(self, root: Global, elem: str, index: int, write: bool, place: int) -> None:
        """Order and ownership of a scalar access to a buffer that the kernel both reads and writes."""
        width = ELEMENT_BITS[elem] // 8
        lo, hi = index * width, (index + 1) * width
        self.seq[S] += 1
        self.gm_order(root, elem, lo, hi, None, S, write, place)
        if write:
            self.own_one(root, lo, hi, None, None, place)
        elif root.reader is not None:
            root.reader[root.units(lo, hi)] = self.program + 1

    # ---- global memory: order within a program, ownership between programs

    def gm_order(
        self, root: Global, elem: str, lo: int, hi: int, strided: Tile | None, pipe: int, write: bool, place: int
    ) -> None:
        """Report an access to bytes lo..hi, all of them unless `strided` says which, that is not in order with an
        earlier one of this program."""
        if not root.is_stored:
            return
        if self.recorded is not None and len(self.recorded) < MOST_CLOCKS:
            self.recorded.append((root, self.clocks()))
        if not root.is_loaded and root.cleared != self.stored_until:
            # only stores matter, and all before the last barrier are in order
            root.pending.clear()
            root.cleared = self.stored_until
        pending = root.pending
        clock = self.clock[pipe]
        for first, end, q, seq, wrote, other in pending:
            if q == pipe:
                if q != MTE3 or seq <= self.stored_until:
                    continue
            elif seq <= clock[q]:
                continue
            if wrote or (write and q != S):
                root.placed = True
                if end <= lo or hi <= first:
                    continue
                if other is not None and other.elem == elem:
                    width = ELEMENT_BITS[elem] // 8 or 1
                    mine = np.arange(lo // width, hi // width) if strided is None else strided.indices()
                    if not np.isin(mine, other.indices()).any():
                        continue
                verb = "overwrites" if write else "reads"
                if wrote:
                    what = f"written by {PIPES[q]}"
                else:
                    what = f"which {PIPES[q]} may still read"
                fix = "no barrier stands between" if q == pipe else f"{PIPES[pipe]} did not wait for {PIPES[q]}"
                self.report("missing wait", f"{PIPES[pipe]} {verb} part of {root.name}, {what}: {fix}", place)
                break
        if pipe == S and pending and pending[-1][2] == S and pending[-1][4] == write:
            # neighbouring scalar accesses count as one
            first, end = pending[-1][:2]
            if first <= hi and lo <= end:
                pending[-1] = (min(first, lo), max(end, hi), S, self.seq[S], write, None)
                return
        pending.append((lo, hi, pipe, self.seq[pipe], write, strided))
        if len(pending) > 96:
            root.placed = True  # what is dropped here is not judged
            keep = [e for e in pending if any(e[3] > self.clock[p][e[2]] for p in (2, 3) if p != e[2])]
            root.pending = keep[-64:]

    @staticmethod
    def units(t: Tile) -> Any:
        """Positions in the ownership arrays, one a stored element."""
        if t.bursts == 1:
            return t.root.units(t.lo, t.hi)
        width = ELEMENT_BITS[t.elem] // 8 or 1
        if width == t.root.unit:
            return t.indices()
        return np.unique(t.indices() * width // t.root.unit)

    def own_one(self, root: Global, lo: int, hi: int, values: Any, before: Any, place: int) -> None:
        """`own` of one element at bytes lo..hi."""
        owner = root.owner
        if owner is None or self.locked:
            return
        me = self.program + 1
        single = lo // root.unit
        writer = owner[single]
        if writer == 0 or writer == me or writer == -me:
            owner[single] = -me if root.reader is not None and root.reader[single] == me else me
            return
        self.own(root, root.units(lo, hi), values, before, place)

    def own(self, root: Global, at: Any, values: Any, before: Any, place: int) -> None:
        """This program writes values over those before: report elements that another program also writes.

        at: their positions in the ownership arrays.  An element written by a program that loaded it before is a
        read-modify-write: whatever another program stores there in between is lost.  Two blind writes of different
        values are a race.
        """
        owner = root.owner
        if owner is None or self.locked:
            return
        me = self.program + 1
        old = owner[at]
        mixed = None
        if root.reader is not None:
            mixed = root.reader[at] == me
        others = (old != 0) & (np.abs(old) != me) if np.count_nonzero(old) else None
        if others is not None and others.any():
            modified = others & (old < 0)
            if mixed is not None:
                modified |= others & mixed
            first = int(np.flatnonzero(others)[0])
            position = first + at.start if isinstance(at, slice) else int(at[first])
            other = abs(int(old[first])) - 1
            where = f"element {position}, programs {other} and {self.program}"
            if modified.any():
                self.report(
                    "read-modify-write overlap",
                    f"a tile of {root.name} is loaded, changed in part and stored as a whole, and another program "
                    f"stores to the same elements: one of the two stores is lost in some order",
                    place,
                    int(modified.sum()),
                    where,
                )
            elif values is not None and before is not None and old.size == np.size(values):
                differ = np.asarray(values).reshape(-1) != before.reshape(-1)
                if (differ & others.reshape(-1)).any():
                    self.report(
                        "write-write race",
                        f"two programs store different values to the same elements of {root.name}",
                        place,
                        int((differ & others.reshape(-1)).sum()),
                        where,
                    )
        if mixed is None:
            owner[at] = me
        else:
            owner[at] = np.where(mixed, -me, me)
