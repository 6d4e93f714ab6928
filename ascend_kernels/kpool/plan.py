"""Launch plans of the kpool ops.  Pure: sizes and a device in, programs and blocks out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..harness import plans
from ..harness.device import Device
from ..harness.spec import PlanError
from ..measured_plans import MEASURED

BITS = 8


@dataclass(frozen=True)
class Plan:
    """programs of the launch, rows (pools, tokens, groups) a program takes at once, warps of a GPU program."""

    programs: int
    rows: int = 1
    warps: int = 4


@dataclass(frozen=True)
class Tile:
    """A GPU program's tile of pools: rows of pools; warps of the program; programs a multiprocessor, 0 for one
    program a tile; hoist: ape stays in registers from tile to tile."""

    rows: int = 16
    warps: int = 4
    programs: int = 4
    hoist: bool = True


# Bytes of keys and scores up to which a GPU's L2 cache, 60 MB on an H200, is asked to keep them; of more, what is
# read is evicted first.  Measured with 34 and 67 MB.
IN_CACHE = 48 << 20
# By pool size, the fastest measured.  A tile lies in registers as a whole: 64 keys and scores a thread leave room
# for several programs a multiprocessor.
TILES = {4: Tile(), 8: Tile(8, 4, 4, False), 16: Tile(8, 8, 2, False)}


@plans.kept
def pools(count: int, pool_size: int, device: Device) -> Plan:
    """Plan for `count` pools or requests taken one at a time.  Raises PlanError when a pool does not fit UB."""
    if device.ascend:
        # Two double-buffered bf16 rows and six fp32 rows a token; factors and products of the rotation.
        need = BITS * (4352 * pool_size + 38400)
        if need > BITS * device.ub_bytes:
            raise PlanError(
                f"a pool of {pool_size} tokens needs {need} bits of UB, {device.name} has {BITS * device.ub_bytes}"
            )
    return Plan(min(count, device.cores if device.ascend else device.grid_limit), 1, 1)


@plans.kept
def tiles(count: int, tile: Tile, device: Device) -> Plan:
    """Plan for `count` pools taken a tile at a time on a GPU, the rotation a matrix product.

    Programs take several tiles, since each makes the matrix anew."""
    most = min(device.grid_limit, tile.programs * device.cores if tile.programs else device.grid_limit)
    return Plan(min(-(-count // tile.rows), most), tile.rows, tile.warps)


@plans.kept
def tokens(count: int, tile: bool, device: Device) -> Plan:
    """Plan for `count` tokens of a prefill batch, one at a time or many."""
    rows = 32 if tile else 1
    programs = min(-(-count // rows), device.cores if device.ascend else device.grid_limit)
    return Plan(programs, rows)


@plans.kept
def groups(rows: int, count: int, pool_size: int, device: Device) -> Plan:
    """Plan for expanding `count` selected pools in each of `rows` rows; Plan.rows is the block of groups.

    Raises PlanError when a block does not fit UB.
    """
    block = min(power_of_two(count), max(16, (2048 if device.ascend else 1024) // pool_size))
    given = plans.choice(MEASURED, "kpool.groups", device, rows=rows, groups=count, pool_size=str(pool_size))
    block = given.get("block", block)
    if device.ascend:
        # Pools and tokens of a block: two load and two store buffers, the products and their sums.
        need = BITS * (block * 40 + block * pool_size * 32)
        if need > BITS * device.ub_bytes:
            raise PlanError(
                f"pools of {pool_size} tokens need {need} bits of UB, {device.name} has {BITS * device.ub_bytes}"
            )
    work = rows * max(1, -(-count // block))
    programs = min(work, device.cores if device.ascend else device.grid_limit)
    return Plan(programs, block, given.get("num_warps", 4))


def candidates(name: str, sizes: Mapping[str, Any]) -> Iterator[plans.Choice]:
    """What is worth measuring for a plan on a GPU."""
    if name == "kpool.groups":
        for block in sorted(
            {min(power_of_two(sizes["groups"]), n // int(sizes["pool_size"])) for n in (512, 1024, 2048)}
        ):
            yield from ({"block": block, "num_warps": warps} for warps in (1, 2, 4, 8))


@plans.kept
def ids(count: int, device: Device) -> Plan:
    """Plan for `count` ids that are looked up one by one."""
    block = min(power_of_two(-(-count // device.cores)), 256) if device.ascend else 256
    return Plan(min(-(-count // block), device.cores if device.ascend else device.grid_limit), block)


def power_of_two(n: int) -> int:
    """Smallest power of two at or above n (1 for n below 1)."""
    return 1 << max(0, n - 1).bit_length()
