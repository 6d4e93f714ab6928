"""Iterations that repeat: what a loop of copies does to order and time again and again, done many times at once.

Where every iteration does the same ops on the same buffers, what they do to the machine soon repeats: after some
period each time is later by the same number of cycles and each sequence number higher by the same amount, or has
not changed.  Order and time only ever compare two times, or two sequence numbers of one pipe, so the next period
does the same once more, as long as no comparison of a number that grows with one that stays can turn round: those
that grow must be above those that stay already.  Nothing is assumed: the states before and after one period are
compared in full, and data that decides something (places, owners, masks) is looked at for every element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ascend_model.memory import ALWAYS, Alloc, Global, Machine
from ascend_model.parse import ELEMENT_BITS
from ascend_model.timeline import MTE3

TRIES = 12
"""Periods after which a loop that did not repeat goes on element by element."""
LEAST = 8
"""Periods from which on it pays to look."""


class State(NamedTuple):
    """A machine between two iterations.  times: of pipes and flags.  numbers: by pipe, sequence numbers of it.
    sums: what is only ever added to.  fixed: everything else that order and time depend on."""

    times: list[int]
    numbers: list[list[int]]
    sums: list[int]
    fixed: list[Any]


def state(machine: Machine, ts: int, roots: Sequence[Global]) -> State:
    """State at time `ts` of the scalar pipe.  roots: the buffers whose accesses are judged."""
    time, atoms = machine.time, machine.atoms
    times = [ts, *time.free, *time.done]
    rows = [machine.seq, *machine.clock]
    rows += [x for atom in atoms for x in (atom.w, atom.r)]
    fixed: list[Any] = [x for a in atoms for x in (*a.w_lo, *a.w_hi, a.last, a.writer, a.holder, a.dirty)]
    fixed += [x for alloc in machine.scalar_allocs for x in (alloc.rd, alloc.wr)]
    fixed += [machine.reported, machine.out_of_bounds, machine.locked]
    for flag, queue in machine.flags.items():
        fixed += [flag, len(queue)]
        for up, known, after in queue:
            times.append(up)
            rows.append(known)
            fixed.append(after)
    numbers = [list(column) for column in zip(*rows)]
    numbers[MTE3].append(machine.stored_until)
    for root in roots:
        numbers[MTE3].append(root.cleared)
        fixed.append(len(root.pending))
        for _, _, pipe, seq, wrote, strided in root.pending:
            numbers[pipe].append(seq)
            fixed += [pipe, wrote, strided]
    sums = [*time.busy, time.waiting, *machine.dma, *machine.dma_bytes, *machine.bursts]
    sums += [machine.vector_ops, machine.repeats, *time.stalls.values()]
    fixed += time.stalls
    return State(times, numbers, sums, fixed)


def growth(before: Sequence[int], after: Sequence[int]) -> int | None:
    """By how much the first number has grown, if each has grown by that or not at all, and those that grow were
    above those that stay; else None."""
    by = after[0] - before[0]
    grown = [old for old, new in zip(before, after) if new != old]
    if any(new - old not in (0, by) for old, new in zip(before, after)) or by < 0:
        return None
    stay = [old for old, new in zip(before, after) if new == old and old != ALWAYS]
    return None if grown and stay and min(grown) <= max(stay) else by


def repeat(machine: Machine, before: State, now: State, roots: Sequence[Global], times: int) -> int | None:
    """Let the period between two states happen so many times more; by how much later the scalar pipe is then.
    None, with nothing done, if the period does not repeat."""
    if len(before.times) != len(now.times) or before.fixed != now.fixed:
        return None
    later = growth(before.times, now.times)
    higher = [growth(old, new) for old, new in zip(before.numbers, now.numbers)]
    if later is None or None in higher:
        return None
    time = machine.time
    moved = [times * (new - old) for old, new in zip(before.times, now.times)]
    raised = [[times * (new - old) for old, new in zip(a, b)] for a, b in zip(before.numbers, now.numbers)]
    for i in range(4):
        time.free[i] += moved[1 + i]
        time.done[i] += moved[5 + i]
    ups = iter(moved[9:])
    left = [iter(column) for column in raised]
    for row in (machine.seq, *machine.clock, *(x for atom in machine.atoms for x in (atom.w, atom.r))):
        for pipe in range(4):
            row[pipe] += next(left[pipe])
    for queue in machine.flags.values():
        for i, (up, known, after) in enumerate(queue):
            queue[i] = up + next(ups), [n + next(left[pipe]) for pipe, n in enumerate(known)], after
    machine.stored_until += next(left[MTE3])
    for root in roots:
        root.cleared += next(left[MTE3])
        root.pending = [
            (lo, hi, pipe, seq + next(left[pipe]), wrote, strided)
            for lo, hi, pipe, seq, wrote, strided in root.pending
        ]
    sums = iter([times * (new - old) for old, new in zip(before.sums, now.sums)])
    for i in range(4):
        time.busy[i] += next(sums)
    time.waiting += next(sums)
    for pair in (machine.dma, machine.dma_bytes, machine.bursts):
        pair[0] += next(sums)
        pair[1] += next(sums)
    machine.vector_ops += next(sums)
    machine.repeats += next(sums)
    for cause in time.stalls:
        time.stalls[cause] += next(sums)
    return moved[0]


class Stores:
    """What is left of a loop whose iterations store one element each to global memory, or nothing.

    index, values: of each iteration that is left, its element and what it stores there; `elements.can_store` has
    looked at those that are taken.  taken: whether it stores.  shape: numbers of each iteration that say which
    buffer and which flag it takes.  first: the number of the first of these iterations.  period: of the shape.
    idle: cycles of an iteration that does not store.  cells: elements of the unified buffer, of the type `elem`,
    that a value goes through; of two, the first where the first number of `shape` is not zero.  reads: buffers
    that an iteration takes elements of.  roots: all buffers in global memory.
    """

    def __init__(
        self, machine: Machine, root: Global, elem: str, index: np.ndarray, values: Any, taken: np.ndarray,
        shape: Sequence[np.ndarray], cells: Sequence[int], reads: Sequence[Alloc], roots: Sequence[Any],
        first: int, idle: int,
    ):  # fmt: skip
        self.machine, self.root, self.elem, self.reads = machine, root, elem, reads
        self.roots = [x for x in roots if isinstance(x, Global) and x.is_stored]
        self.index, self.taken, self.shape = index, taken, shape
        self.values = np.broadcast_to(values, taken.shape)
        self.cells, self.first, self.idle = cells, first, idle
        self.period = 2 if shape else 1
        self.ends = np.flatnonzero(np.diff(taken, append=not taken[-1])) + 1
        self.before: State | None = None
        self.at = 0
        self.tries = 0
        at, me = index[taken], machine.program + 1
        if root.owner is not None and not machine.locked:
            old = root.owner[at]
            if ((old != 0) & (np.abs(old) != me)).any():
                self.tries = TRIES

    def after(self, number: int, ts: int) -> tuple[int, int, int]:
        """After iteration `number`, which ended at `ts`, do those that follow at once where that is possible.
        Gives the time then, the number of the iteration to go on with, and how many have stored."""
        at = number + 1 - self.first
        before, self.before = self.before, None
        if at >= self.taken.size or not all(alloc.rd for alloc in self.reads):
            return ts, number, 0
        end = int(self.ends[np.searchsorted(self.ends, at, side="right")])
        if not self.taken[at]:
            return ts + (end - at) * self.idle, self.first + end, 0
        if self.tries >= TRIES or end - at < LEAST * self.period:
            return ts, number, 0
        if before is not None and at < self.at + self.period:
            self.before = before
            return ts, number, 0
        now = self.before = state(self.machine, ts, self.roots)
        begun, self.at = self.at, at
        judged, self.root.placed = self.root.placed, False
        if before is None:
            return ts, number, 0
        self.tries += 1
        times = (end - at) // self.period
        done = times * self.period
        alike = all((x[begun : at + done - self.period] == x[at : at + done]).all() for x in self.shape)
        if not alike or not self.taken[begun:at].all() or judged or len(self.root.pending) != 1:
            return ts, number, 0
        later = repeat(self.machine, before, now, self.roots, times)
        if later is None:
            return ts, number, 0
        self.store(at, at + done)
        self.before = None
        return ts + later, number + 1 + done, done

    def store(self, at: int, end: int) -> None:
        """Values, owners and places of these iterations."""
        machine, root, index, values = self.machine, self.root, self.index[at:end], self.values[at:end]
        width, me = ELEMENT_BITS[self.elem] // 8, machine.program + 1
        if root.owner is not None and not machine.locked:
            root.owner[index] = me if root.reader is None else np.where(root.reader[index] == me, -me, me)
        root.numpy[self.elem][index] = values
        _, _, pipe, seq, wrote, strided = root.pending[0]
        last = index[-1].item()
        root.pending[0] = last * width, (last + 1) * width, pipe, seq, wrote, strided
        parts = [values]
        if len(self.cells) > 1:
            chosen = self.shape[0][at:end] != 0
            parts = [values[chosen], values[~chosen]]
        for cell, through in zip(self.cells, parts):
            for value in through[-1:]:
                machine.numpy[self.elem][cell] = value
