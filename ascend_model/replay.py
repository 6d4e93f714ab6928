"""Programs that take the path of an earlier one: values alone, while time and order are taken over.

The programs of a grid mostly differ in their data only.  Time, waits and the counts of one depend on its path:
how often each loop ran, which branches it took, where in the unified buffer and how much it moved, which scalar
loads hit the cache.  The first program on a path is executed in full and leaves a `Record`; a later one runs
code that computes values and compares every decision with the recorded paths, kept as a tree.  Where it leaves
them, what it wrote is taken back and it is executed in full as well, so nothing is ever assumed.

What does depend on data is still done for each program: bounds, who wrote and read which element, and the order
of its global accesses, with the clocks that the record holds for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ascend_model.memory import Access, Global, Machine, Tile
from ascend_model.parse import ELEMENT_BITS
from ascend_model.timeline import MTE2, MTE3, S

LONGEST = 200_000
"""Decisions of one path; a longer one is not kept.  One takes about 250 bytes."""
LARGEST = 1_000_000
"""Decisions of all paths of a launch together."""
TRIES = 8
"""Programs after which paths must have repeated in at least one of two."""
LEAST = 20_000
"""Steps (see `Paths.worthwhile`) that must be left for the code of mode "values" to be worth making."""
CLOCKS = 3
"""Decisions that take the memory of the clocks of one global access."""
END = "end"


class Diverged(Exception):
    """The program left the recorded paths, or does something only full execution can judge."""


@dataclass(frozen=True)
class Record:
    """What one program of a path came to.  moved: counters of the machine that it raised, as `counters` orders
    them.  clocks: one for each access to a tensor that is stored to, as `Machine.clocks` gives them; None where
    the accesses are in order wherever they lie."""

    cycles: int
    blocks: tuple[int, ...]
    busy: tuple[int, ...]
    stalls: dict[str, int]
    moved: tuple[int, ...]
    clocks: tuple[Any, ...]


@dataclass(frozen=True)
class Several:
    """Stores of one element each to global memory, one after the other.  index: which elements."""

    root: Global
    elem: str
    index: np.ndarray
    place: int

    def moves(self) -> Iterator[tuple[Any, ...]]:
        """What `Machine.gm_order` takes for each."""
        width = ELEMENT_BITS[self.elem] // 8
        for i in self.index.tolist():
            yield self.root, self.elem, i * width, (i + 1) * width, None, MTE3, True, self.place


def counters(machine: Machine) -> tuple[int, ...]:
    """What vector and copy ops count, which is all a program leaves in the machine."""
    return (*machine.dma, *machine.dma_bytes, *machine.bursts, machine.vector_ops, machine.repeats)


def raise_counters(machine: Machine, by: Sequence[int]) -> None:
    """Count a program whose ops were not executed one by one."""
    for pair, first in ((machine.dma, 0), (machine.dma_bytes, 2), (machine.bursts, 4)):
        pair[0] += by[first]
        pair[1] += by[first + 1]
    machine.vector_ops += by[6]
    machine.repeats += by[7]


@dataclass
class Paths:
    """Paths of a launch so far, as a tree of decisions whose leaves hold records."""

    tree: dict[Any, Any] = field(default_factory=dict)
    size: int = 0
    programs: int = 0
    steps: int = 0
    tried: int = 0
    repeated: int = 0

    def worthwhile(self, left: int) -> bool:
        """Whether recording, and trying without time, is likely to pay for `left` more programs.

        A step is a decision or a vector or copy op, which is where time is spared.
        """
        if not self.programs:
            return True
        if self.tried >= TRIES and 2 * self.repeated < self.tried:
            return False
        if not self.tree and self.programs > 1:
            return False  # too long to keep, or not clean
        return self.repeated > 0 or self.much(left)

    def much(self, left: int) -> bool:
        """Whether `left` more programs are much work, if they are like those before."""
        return self.steps // max(1, self.programs) * left >= LEAST

    def keep(self, path: Sequence[Any], record: Record) -> None:
        """Remember the path of a program that was executed in full."""
        clocks = CLOCKS * (len(record.clocks) - record.clocks.count(None))
        size = len(path) + clocks
        if size > LONGEST or self.size + size > LARGEST:
            return
        self.size += clocks
        node = self.tree
        for decision in path:
            found = node.get(decision)
            if found is None:
                found = node[decision] = {}
                self.size += 1
            node = found
        node[END] = record

    def executed(self, path: Sequence[Any], record: Record) -> None:
        """Note how much work a program that was executed in full was."""
        self.programs += 1
        self.steps += len(path) + sum(record.moved[:2]) + record.moved[6]

    def repeat(self, program: Callable[..., Any], values: Machine, full: Machine, block: int, *rest: Any) -> Any:
        """The record of the path that this program takes, after its values are written; None, with nothing
        written, when it takes no known path.

        program: the code of mode "values", whose machine is `values`.  rest: its arguments after the tree.
        """
        self.tried += 1
        values.undo, values.moves = [], []
        values.begin_values(block)
        try:
            record = program(block, self.tree, *rest).get(END)
        except Exception:
            # A fault, too, is judged and worded by full execution.
            record = None
        judged = None if record is None else _judged(record.clocks, values.moves)
        if judged is None:
            for array, at, old in reversed(values.undo):
                array[at] = old
            return None
        full.program = block
        for clocks, move in judged:
            full.set_clocks(clocks)
            full.gm_order(*move)
        raise_counters(full, record.moved)
        self.repeated += 1
        return record


def _judged(clocks: Sequence[Any], moves: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """The accesses whose order depends on their places, each with its clocks; None if the path has more or fewer
    accesses than these."""
    if sum(x.index.size if isinstance(x, Several) else 1 for x in moves) != len(clocks):
        return None
    if clocks.count(None) == len(clocks):
        return []
    each = [one for x in moves for one in (x.moves() if isinstance(x, Several) else (x,))]
    return [(known, move) for known, move in zip(clocks, each) if known is not None]


# ---- what the code of mode "values" calls for global memory


def _change(machine: Machine, array: np.ndarray, at: Any, new: Any) -> None:
    old = array[at]
    machine.undo.append((array, at, old.copy() if isinstance(old, np.ndarray) else old))
    array[at] = new


def _read(machine: Machine, root: Global, at: Any) -> None:
    if root.reader is not None:
        _change(machine, root.reader, at, machine.program + 1)


def _own(machine: Machine, root: Global, at: Any) -> None:
    """Take elements, at these positions of the ownership arrays, if no other program wrote them."""
    if root.owner is None or machine.locked:
        return
    me = machine.program + 1
    old = root.owner[at]
    if np.count_nonzero(old) and ((old != 0) & (np.abs(old) != me)).any():
        raise Diverged
    new: Any = me
    if root.reader is not None:
        new = np.where(root.reader[at] == me, -me, me)
    _change(machine, root.owner, at, new)


def _own_one(machine: Machine, root: Global, single: int) -> None:
    """`_own` of one element."""
    owner, me = root.owner, machine.program + 1
    if owner is None or machine.locked:
        return
    old = owner[single]
    if old != 0 and old != me and old != -me:
        raise Diverged
    machine.undo.append((owner, single, old))
    owner[single] = -me if root.reader is not None and root.reader[single] == me else me


def load(machine: Machine, source: Tile, out: Access, place: int) -> None:
    if source.n == 0 and out.n == 0:
        return
    if source.outside or source.n != out.n:
        raise Diverged
    root = source.root
    if root.is_stored:
        strided = source if source.bursts > 1 else None
        machine.moves.append((root, source.elem, source.lo, source.hi, strided, MTE2, False, place))
    if root.reader is not None:
        _read(machine, root, machine.units(source))
    values = source.arr
    out.arr[...] = values if values.shape == out.shape else values.reshape(out.shape)


def load_line(machine: Machine, root: Global, elem: str, first: int, out: Access, place: int) -> None:
    """`load` of the elements from `first` on, as many as fit."""
    end = first + out.n
    if root.is_stored:
        width = ELEMENT_BITS[elem] // 8 or 1
        lo, hi = first * width, end * width
        machine.moves.append((root, elem, lo, hi, None, MTE2, False, place))
        if root.reader is not None:
            _read(machine, root, root.units(lo, hi))
    values = root.numpy[elem][first:end]
    out.arr[...] = values if out.one_axis else values.reshape(out.shape)


Stored = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""What lies in global memory after a store: (what was there, what is stored) -> that."""


def store(machine: Machine, source: Access, out: Tile, atomic: bool, stored: Stored, place: int) -> None:
    if source.n == 0 and out.n == 0:
        return
    if out.outside or source.n != out.n or out.root.kind == 0:
        raise Diverged
    root = out.root
    if root.is_stored:
        strided = out if out.bursts > 1 else None
        machine.moves.append((root, out.elem, out.lo, out.hi, strided, MTE3, True, place))
    if not atomic:
        _own(machine, root, machine.units(out))
    values = source.arr if source.shape == out.shape else source.arr.reshape(out.shape)
    _change(machine, out.arr, ..., stored(out.arr, values))


def store_line(
    machine: Machine, source: Access, root: Global, elem: str, first: int, atomic: bool, stored: Stored, place: int
) -> None:
    """`store` to the elements from `first` on, as many as there are."""
    end = first + source.n
    width = ELEMENT_BITS[elem] // 8 or 1
    lo, hi = first * width, end * width
    if root.is_stored:
        machine.moves.append((root, elem, lo, hi, None, MTE3, True, place))
    if not atomic and source.n == 1:
        _own_one(machine, root, lo // root.unit)
    elif not atomic:
        _own(machine, root, root.units(lo, hi))
    out = root.numpy[elem][first:end]
    values = source.arr if source.one_axis else source.arr.reshape(-1)
    machine.undo.append((out, ..., out.copy()))
    out[...] = stored(out, values)


def scalar_read(machine: Machine, root: Global, elem: str, index: int, place: int) -> None:
    """A scalar load, inside its tensor, from one that the kernel also stores to."""
    width = ELEMENT_BITS[elem] // 8
    lo, hi = index * width, (index + 1) * width
    if root.is_stored:
        machine.moves.append((root, elem, lo, hi, None, S, False, place))
    if root.reader is not None:
        _read(machine, root, root.units(lo, hi))


def scalar_write(machine: Machine, root: Global, elem: str, index: int, value: Any, place: int) -> None:
    """A scalar store to global memory."""
    if not 0 <= index < root.count[elem]:
        raise Diverged
    width = ELEMENT_BITS[elem] // 8
    lo, hi = index * width, (index + 1) * width
    if root.is_stored:
        machine.moves.append((root, elem, lo, hi, None, S, True, place))
    _own_one(machine, root, lo // root.unit)
    _change(machine, root.view[elem], index, value)


def store_each(
    machine: Machine, root: Global, elem: str, index: np.ndarray, values: np.ndarray, place: int
) -> None:
    """Stores of one element each, to elements that all differ, as `elements.can_store` found them."""
    if root.is_stored:
        machine.moves.append(Several(root, elem, index, place))
    _own(machine, root, index)
    _change(machine, root.numpy[elem], index, values)
