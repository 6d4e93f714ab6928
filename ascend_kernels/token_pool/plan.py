"""Launch plans of the token-pool ops.  Pure: sizes and a device in, grid and constants out."""

from __future__ import annotations

from dataclasses import dataclass

from ..harness.device import Device
from ..harness.spec import PlanError

BLOCKS = (32, 4096)  # smallest and largest copy block, in elements
BITS = 8


@dataclass(frozen=True)
class Plan:
    """grid: (requests, programs a request).  bound: lanes of the sum over earlier requests, a power of two.
    block: elements copied at once, a power of two."""

    grid: tuple[int, int]
    bound: int
    block: int


def power_of_two(n: int) -> int:
    """Smallest power of two at or above n (1 for n below 1)."""
    return 1 << max(0, n - 1).bit_length()


def spans(
    requests: int, total: int, item: int, metadata_item: int, device: Device, block: int | None = None
) -> Plan:
    """Plan for copying `requests` spans of `total` elements together.

    item, metadata_item: bytes of one copied value and of one metadata value.  The spans themselves are on the
    device and stay there; their mean length decides.  Raises PlanError when the batch does not fit.
    """
    bound = max(16, power_of_two(requests))
    mean = -(-total // max(1, requests))
    if block is None:
        block = min(max(power_of_two(mean), BLOCKS[0]), BLOCKS[1])
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
    wanted = device.cores * (1 if device.ascend else 32)
    programs = max(1, min(blocks, -(-wanted // max(1, requests)), device.grid_limit // max(1, requests)))
    if requests > device.grid_limit:
        raise PlanError(f"a batch of {requests} requests; one launch takes at most {device.grid_limit}")
    return Plan((requests, programs), bound, block)


def drafts(requests: int, length: int, device: Device) -> Plan:
    """Plan for copying `length` elements of each of `requests` requests."""
    programs = min(requests, device.cores if device.ascend else device.grid_limit)
    return Plan((programs, 1), 1, min(max(power_of_two(length), BLOCKS[0]), BLOCKS[1]))
