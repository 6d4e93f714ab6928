"""Launch plans of the token-pool ops.  Pure: sizes and a device in, grid and constants out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..harness import plans
from ..harness.device import Device
from ..harness.spec import PlanError
from ..measured_plans import MEASURED

BLOCKS = (32, 4096)  # smallest and largest copy block, in elements
BITS = 8
QUEUED = 32  # programs a multiprocessor of a GPU has to choose from
INTO, OUT = "into the pool", "out of the pool"  # which way spans are copied


@dataclass(frozen=True)
class Plan:
    """grid: (requests, programs a request).  bound: lanes of the sum over earlier requests, a power of two.
    block: elements copied at once, a power of two.  options: num_warps and the like on a GPU."""

    grid: tuple[int, int]
    bound: int
    block: int
    options: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def power_of_two(n: int) -> int:
    """Smallest power of two at or above n (1 for n below 1)."""
    return 1 << max(0, n - 1).bit_length()


@plans.kept
def spans(
    requests: int,
    total: int,
    item: int,
    metadata_item: int,
    device: Device,
    block: int | None = None,
    way: str = INTO,
) -> Plan:
    """Plan for copying `requests` spans of `total` elements together.

    item, metadata_item: bytes of one copied value and of one metadata value.  way: INTO the pool or OUT of it.
    The spans themselves are on the device and stay there; their mean length decides.  Raises PlanError when the
    batch does not fit.
    """
    bound = max(16, power_of_two(requests))
    mean = -(-total // max(1, requests))
    given: plans.Choice = {}
    if block is None:
        sizes = {"requests": requests, "length": mean, "item": str(item), "way": way}
        given = plans.choice(MEASURED, "token_pool.spans", device, **sizes)
        block = given.get("block", min(max(power_of_two(mean), BLOCKS[0]), BLOCKS[1]))
    if device.ascend:
        # Start and end rows of the batch, their difference and the work row of its sum; two copy buffers.
        need = BITS * (bound * (2 * metadata_item + 2 * 4) + 2 * block * item)
        if need > BITS * device.ub_bytes:
            raise PlanError(
                f"a batch of {requests} requests needs {need} bits of UB, {device.name} has "
                f"{BITS * device.ub_bytes}; split the batch"
            )
    blocks = -(-mean // block)
    # Fill the cores once on Ascend, where a queued program costs a start; several times over on a GPU.
    wanted = device.cores * (1 if device.ascend else QUEUED)
    programs = max(1, min(blocks, -(-wanted // max(1, requests)), device.grid_limit // max(1, requests)))
    if requests > device.grid_limit:
        raise PlanError(f"a batch of {requests} requests; one launch takes at most {device.grid_limit}")
    return Plan((requests, programs), bound, block, plans.options(given))


@plans.kept
def drafts(requests: int, length: int, device: Device) -> Plan:
    """Plan for copying `length` elements of each of `requests` requests."""
    programs = min(requests, device.cores if device.ascend else device.grid_limit)
    given = plans.choice(MEASURED, "token_pool.drafts", device, requests=requests, length=length)
    return Plan((programs, 1), 1, min(max(power_of_two(length), BLOCKS[0]), BLOCKS[1]), plans.options(given))


def candidates(name: str, sizes: Mapping[str, Any]) -> Iterator[plans.Choice]:
    """What is worth measuring for a plan on a GPU."""
    if name == "token_pool.drafts":
        yield from ({"num_warps": warps} for warps in (1, 2, 8))
    if name == "token_pool.spans":
        usual = min(max(power_of_two(sizes["length"]), BLOCKS[0]), BLOCKS[1])
        for block in (usual // 4, usual // 2, usual, 2 * usual):
            if block >= BLOCKS[0]:
                yield from ({"block": block, "num_warps": warps} for warps in (1, 2, 4, 8))
        # Without the pipelining of its loads, which a loop of one turn has no use for.
        yield from ({"num_warps": warps, "num_stages": 1} for warps in (1, 2, 4))
