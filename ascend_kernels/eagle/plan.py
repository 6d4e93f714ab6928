"""Launch plans of the EAGLE ops.  Pure: sizes and a device in, grid and constants out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..harness import plans
from ..harness.device import Device
from ..harness.spec import PlanError
from ..measured_plans import MEASURED

EXACT = 2**24  # integers of smaller size are exact in fp32, in which lanes are compared on Ascend
GATHER_TILE = 4096  # words of a table kept on chip while lanes pick from it
TREE_LANES = 64  # nodes of a tree that is walked beside others
DRAW_SIDE = 64  # a tile of a draw is a square of tokens with this side; so is the field of tile sums
BITS = 8


@dataclass(frozen=True)
class Plan:
    """programs: size of the grid.  rows: requests, or elements, a program takes at once.  tile: lanes of a
    tile, a power of two.  options: num_warps and the like on a GPU."""

    programs: int
    rows: int
    tile: int
    options: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def power_of_two(n: int) -> int:
    """Smallest power of two at or above n (1 for n below 1)."""
    return 1 << max(0, n - 1).bit_length()


def programs(jobs: int, device: Device) -> int:
    """One program a job on a GPU; on Ascend at most one a core, each taking every so-many-th job."""
    return min(jobs, device.cores if device.ascend else device.grid_limit)


@plans.kept
def new_verified(requests: int, drafts: int, words: int, device: Device) -> Plan:
    """Requests whose draft tokens fit one gather tile.  Raises PlanError when one request alone does not."""
    drafts_words = drafts * words
    most = GATHER_TILE // 2
    if drafts_words > most:
        raise PlanError(
            f"{drafts} draft tokens of {4 * words} bytes a request need {32 * drafts_words} bits of UB, "
            f"a gather tile has {32 * most}"
        )
    # At least eight: the compiler takes short vectors apart into scalars.
    rows = max(8, min(64, GATHER_TILE // power_of_two(drafts_words), power_of_two(-(-requests // device.cores))))
    return Plan(programs(-(-requests // rows), device), rows, power_of_two(rows * drafts_words))


@plans.kept
def compaction(n: int, slots: int, words: int, device: Device) -> Plan:
    """Blocks of 64 entries, whose order is found by comparing all pairs.  Raises PlanError above 2**24."""
    if max(n, slots * words) > EXACT:
        raise PlanError(f"{max(n, slots)} entries; positions are exact up to {EXACT // words}")
    rows = 64
    tile = min(GATHER_TILE, power_of_two(max(slots * words, 2 * rows)))
    return Plan(programs(-(-n // rows), device), rows, tile)


@plans.kept
def choose(requests: int, topk: int, device: Device, rows: int | None = None) -> Plan:
    """Requests a program compares at once: as many as a core gets, up to a tile of 512 candidates.

    Raises PlanError for a topk whose k*k candidates do not fit."""
    side = max(8, power_of_two(topk))  # rows of fewer than 32 bytes are padded to them, masks by more
    if side > 16:
        raise PlanError(
            f"topk {topk}: {side * side} padded candidates a request need {side * side * 64 * 4 * BITS} bits of "
            f"UB, {device.name} has {device.ub_bytes * BITS}"
        )
    # At least two: the compiler takes a single row apart into scalars.
    rows = rows or max(2, min(512 // (side * side), power_of_two(-(-requests // device.cores))))
    return Plan(programs(-(-requests // rows), device), rows, side)


def hidden_block(width: int, item: int) -> int:
    """Elements of a hidden-state row copied at once: at most 8 KiB, so that two buffers fit beside the rest."""
    return min(power_of_two(width), 8192 // item)


@plans.kept
def vocabulary(rows: int, vocab: int, device: Device, block: int = 1024, form: str = "") -> Plan:
    """One row a program at a time, in blocks of the vocabulary; a block is compared with eight bounds at once.

    form: the kernel the plan is for."""
    if vocab > EXACT:
        raise PlanError(f"a vocabulary of {vocab}; token numbers are exact up to {EXACT}")
    given = plans.choice(MEASURED, "eagle.vocabulary", device, rows=rows, vocab=vocab, form=form)
    block = min(given.get("block", block), power_of_two(vocab))
    return Plan(programs(rows, device), 1, block, plans.options(given))


def candidates(name: str, sizes: Mapping[str, Any]) -> Iterator[plans.Choice]:
    """What is worth measuring for a plan on a GPU."""
    if name == "eagle.vocabulary":
        for block in (8192, 16384, 32768):
            yield from ({"block": block, "num_warps": warps} for warps in (8, 16, 32))
    if name == "eagle.draw":
        yield from ({"num_warps": warps} for warps in (4, 16, 32))


@plans.kept
def paged(requests: int, longest: int, device: Device) -> Plan:
    """One request a program at a time; a run of `longest` slots, a page or the draft steps, is copied at once."""
    tile = power_of_two(longest)
    need = BITS * tile * 48  # two loads and two stores of up to 8 bytes a slot, in two buffers, and their casts
    if device.ascend and need > BITS * device.ub_bytes:
        raise PlanError(
            f"runs of {longest} slots need {need} bits of UB, {device.name} has {BITS * device.ub_bytes}"
        )
    return Plan(programs(requests, device), 1, tile)


@plans.kept
def trees(requests: int, nodes: int, device: Device) -> Plan:
    """One request a program at a time."""
    return Plan(programs(requests, device), 1, lanes(nodes))


@plans.kept
def tree_rows(requests: int, longest: int, device: Device) -> Plan:
    """Eight requests a program; `longest`: nodes of a tree or places of a path.  Raises PlanError above 64 of them
    or above 2**24 nodes in all."""
    if longest > TREE_LANES:
        need = BITS * 8 * 200 * power_of_two(longest)
        raise PlanError(
            f"trees of {longest} nodes need {need} bits of UB, {device.name} has {BITS * device.ub_bytes}"
        )
    if requests * longest > EXACT:
        raise PlanError(f"{requests} trees of {longest} nodes; places are exact up to {EXACT}")
    return Plan(programs(-(-requests // 8), device), 8, lanes(longest))


def lanes(n: int) -> int:
    """Lanes of a vector that holds n values: the compiler takes vectors below 32 bytes apart, or dies of them."""
    return max(8, power_of_two(n))


@dataclass(frozen=True)
class Draw:
    """side: of the square tiles a draw takes from the vocabulary.  tiles: their number rounded up to a power of
    two.  options: num_warps and the like on a GPU."""

    side: int
    tiles: int
    options: Mapping[str, int]


@plans.kept
def draw(requests: int, vocab: int, device: Device) -> Draw:
    """Plan for drawing a token a request."""
    if vocab > DRAW_SIDE**3:
        raise PlanError(f"a vocabulary of {vocab}; a draw takes at most {DRAW_SIDE**3} tokens")
    side = min(DRAW_SIDE, max(16, 1 << (power_of_two(vocab).bit_length() // 2)))
    given = plans.choice(MEASURED, "eagle.draw", device, requests=requests, vocab=vocab)
    # Eight warps were faster than four at every size measured: see docs/devices.md.
    options = {} if device.ascend else {"num_warps": 8, **plans.options(given)}
    return Draw(side, max(16, power_of_two(-(-vocab // (side * side)))), options)
