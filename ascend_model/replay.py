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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ascend_model.memory import Access, Global, Machine, Tile
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
    them.  clocks: of each global access whose order matters, as `Machine.clocks` gives them."""

    cycles: int
    blocks: tuple[int, ...]
    busy: tuple[int, ...]
    stalls: dict[str, int]
    moved: tuple[int, ...]
    clocks: tuple[Any, ...]


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
        return self.repeated > 0 or self.steps // self.programs * left >= LEAST

    def keep(self, path: Sequence[Any], record: Record) -> None:
        """Remember the path of a program that was executed in full."""
        size = len(path) + CLOCKS * len(record.clocks)
        if size > LONGEST or self.size + size > LARGEST:
            return
        self.size += CLOCKS * len(record.clocks)
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
        if record is None or len(record.clocks) != len(values.moves):
            for array, at, old in reversed(values.undo):
                array[at] = old
            return None
        full.program = block
        for clocks, (tile, pipe, write, place) in zip(record.clocks, values.moves):
            full.set_clocks(clocks)
            full.gm_order(tile, pipe, write, place)
        raise_counters(full, record.moved)
        self.repeated += 1
        return record


# ---- what the code of mode "values" calls for global memory


def _change(machine: Machine, array: np.ndarray, at: Any, new: Any) -> None:
    old = array[at]
    machine.undo.append((array, at, old.copy() if isinstance(old, np.ndarray) else old))
    array[at] = new


def _read(machine: Machine, tile: Tile) -> None:
    root = tile.root
    if root.reader is not None:
        _change(machine, root.reader, machine.units(tile), machine.program + 1)


def _own(machine: Machine, tile: Tile) -> None:
    """Take the elements of a tile, if no other program wrote them."""
    root, me = tile.root, machine.program + 1
    if root.owner is None or machine.locked:
        return
    at = machine.units(tile)
    old = root.owner[at]
    if old.any() and ((old != 0) & (np.abs(old) != me)).any():
        raise Diverged
    new: Any = me
    if root.reader is not None:
        new = np.where(root.reader[at] == me, -me, me)
    _change(machine, root.owner, at, new)


def load(machine: Machine, source: Tile, out: Access, place: int) -> None:
    if source.n == 0 and out.n == 0:
        return
    if source.outside or source.n != out.n:
        raise Diverged
    if source.root.is_stored:
        machine.moves.append((source, MTE2, False, place))
    _read(machine, source)
    values = source.arr
    out.arr[...] = values if values.shape == out.shape else values.reshape(out.shape)


def store(
    machine: Machine,
    source: Access,
    out: Tile,
    atomic: bool,
    stored: Callable[[np.ndarray, np.ndarray], np.ndarray],
    place: int,
) -> None:
    if source.n == 0 and out.n == 0:
        return
    if out.outside or source.n != out.n or out.root.kind == 0:
        raise Diverged
    if out.root.is_stored:
        machine.moves.append((out, MTE3, True, place))
    if not atomic:
        _own(machine, out)
    values = source.arr if source.shape == out.shape else source.arr.reshape(out.shape)
    _change(machine, out.arr, ..., stored(out.arr, values))


def scalar_read(machine: Machine, root: Global, elem: str, index: int, place: int) -> None:
    """A scalar load, inside its tensor, from one that the kernel also stores to."""
    tile = Tile.element(root, elem, index)
    if root.is_stored:
        machine.moves.append((tile, S, False, place))
    _read(machine, tile)


def scalar_write(machine: Machine, root: Global, elem: str, index: int, value: Any, place: int) -> None:
    """A scalar store to global memory."""
    if not 0 <= index < root.count[elem]:
        raise Diverged
    tile = Tile.element(root, elem, index)
    if root.is_stored:
        machine.moves.append((tile, S, True, place))
    _own(machine, tile)
    _change(machine, root.view[elem], index, value)
