"""Launch plans of the padded MoE ops.  Pure: sizes and a device in; grid, constants and options out.

Sizes that change from batch to batch decide the grid only, never a constant, so that a model compiles once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..harness import plans
from ..harness.device import Device
from ..harness.spec import PlanError
from ..measured_plans import MEASURED

BITS = 8
LEAST_TILE = 32  # bytes; what the Ascend DMA moves at full width
MOST_TILE = 8192  # elements of one feature tile
ZEROS = 2048  # elements of one store of zeros at least; padding is written as flat memory
SLICE_ROWS = 8  # rows of one store, where a form collects them in UB
MOST_UNROLLED = 8  # terms of a scatter's sum written out one by one
SEARCHED = (128, 1024)  # assignments up to which a GPU program looks for its rows itself, which saves a launch
NARROW = 1024  # elements of a row up to which a GPU program of the weight gradient takes several rows
NARROW_SUM = 256  # the same of the scatter, a program of which takes several tokens
READ_ONCE = 512  # elements of a row from which on reading it once may pay for placing the rows first
READ_AGAIN = 32 << 20  # bytes of assigned rows above which a GPU no longer finds them in its L2 cache
READ_AGAIN_WAITING = 256 << 20  # the same where the host waits in every call and a second launch costs its time


@dataclass(frozen=True)
class Plan:
    """grid: programs.  run: units (rows, tokens, blocks of them) a program takes, one after another.
    constants: constexpr arguments of the kernel.  options: num_warps and the like on a GPU."""

    grid: tuple[int, ...]
    run: int
    constants: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def power_of_two(n: int) -> int:
    """Smallest power of two at or above n (1 for n below 1)."""
    return 1 << max(0, n - 1).bit_length()


def feature_tile(what: str, hidden: int, item: int, each: int, device: Device, tile: int | None = None) -> int:
    """Elements of a feature tile: the whole row where UB takes it, a multiple of 32 bytes.

    each: bytes of UB an element of the tile costs, all buffers, double buffering and temporaries counted.
    tile: a given tile instead of the largest.  Raises PlanError when that does not fit.
    """
    smallest = max(1, LEAST_TILE // item)
    limited = device.ascend
    if tile is None:
        tile = min(max(power_of_two(hidden), smallest), MOST_TILE)
        while limited and tile > smallest and tile * each > device.ub_bytes:
            tile //= 2
    need, there = BITS * tile * each, BITS * device.ub_bytes
    if limited and need > there:
        raise PlanError(
            f"{what}: a tile of {tile} elements needs {need} bits of UB, "
            f"{device.name} has {there}; take a smaller tile"
        )
    return tile


def shared(units: int, device: Device, others: int = 0) -> tuple[int, int]:
    """Programs that share `units` in contiguous runs, and units a run: as many programs as an NPU has vector
    cores; on a GPU one a unit, as far as the grid limit less `others` goes."""
    most = device.cores if device.ascend else device.grid_limit - others
    run = max(1, -(-units // most))
    return max(1, -(-units // run)), run


@plans.kept
def place(assignments: int, device: Device) -> Plan:
    """Plan for writing each assignment's padded row."""
    if device.ascend:
        programs, run = shared(assignments, device)
        return Plan((programs,), run)
    programs, run = shared(-(-assignments // 128), device)
    return Plan((programs,), run, {"BLOCK": 128, "OVERLAP": device.overlaps}, {"num_warps": 4})


def overlapping(
    constants: dict[str, Any], options: dict[str, int], device: Device
) -> tuple[dict[str, Any], dict[str, int]]:
    """Constants and options of a launch that follows `place`, and where the device can begins before that ends."""
    more = {"launch_pdl": True} if device.overlaps else {}
    return constants | {"OVERLAP": device.overlaps}, options | more


def gather_form(assignments: int, top_k: int, row_bytes: int, waits: bool, device: Device) -> str:
    """Implementation of the gather that suits the sizes.  waits: the host reads the size of the result first."""
    if device.ascend:
        return "each"
    again = READ_AGAIN_WAITING if waits else READ_AGAIN
    return "tokens" if top_k > 1 and assignments * row_bytes >= again else "blocks"


@plans.kept
def gather_each(
    assignments: int, experts: int, top_k: int, hidden: int, item: int, weighted: bool, device: Device,
    tile: int | None = None, one_each: bool = False,
) -> Plan:  # fmt: skip
    """Plan for a gather of one row after another."""
    # Input twice and zeros once; weighted also the product, in fp32, twice.
    each = item * 3 + (2 * 4 if weighted else 0)
    tile = feature_tile("gather", hidden, item, each, device, tile)
    programs, run = shared(assignments, device)
    if one_each:
        programs = min(max(assignments, 1), device.grid_limit)
        run = max(1, -(-assignments // programs))
    elif device.ascend:
        programs = device.cores  # padding is dealt out to all of them
    return Plan((programs,), run, _gather_constants(experts, top_k, hidden, tile, _parts(experts, device)))


@plans.kept
def gather_slices(
    assignments: int, experts: int, top_k: int, hidden: int, item: int, weighted: bool, device: Device
) -> Plan:
    """Plan for a gather that stores several rows of an expert together."""
    # The rows collected are held twice and zeroed once; one row as in gather_each.
    each = SLICE_ROWS * 3 * item + item * 3 + (3 * 4 if weighted else 0)
    tile = feature_tile("gather by slices", hidden, item, each, device)
    _, run = shared(-(-assignments // SLICE_ROWS), device)
    constants = _gather_constants(experts, top_k, hidden, tile, _parts(experts, device)) | {"ROWS": SLICE_ROWS}
    return Plan((device.cores,), run * SLICE_ROWS, constants)


@plans.kept
def gather_blocks(
    assignments: int, experts: int, top_k: int, hidden: int, item: int, device: Device,
    given: Mapping[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """Plan for a gather of several rows at once."""
    parts = _parts(experts, device, hidden * item)
    tile = min(max(power_of_two(hidden), LEAST_TILE // item), 2048)
    constants = _gather_constants(experts, top_k, hidden, tile, parts) | {
        "ROWS": 8 if device.ascend else _rows_at_once(hidden * item),
        "ZEROERS": min(experts * parts, device.cores if device.ascend else device.grid_limit // 2),
        "LOAD": "",
        "STORE": "",
    }
    sizes = {"assignments": assignments, "hidden": hidden, "item": str(item), "top_k": str(top_k)}
    given = given or plans.choice(MEASURED, "padded_moe.gather_blocks", device, **sizes)
    constants, options = _overridden(constants, {} if device.ascend else {"num_warps": 4}, given)
    blocks = -(-assignments // constants["ROWS"])
    programs, run = shared(blocks, device, constants["ZEROERS"])
    return Plan((programs + constants["ZEROERS"],), run, constants, options)


@plans.kept
def gather_tokens(
    tokens: int, experts: int, top_k: int, hidden: int, item: int, weighted: bool, device: Device,
    given: Mapping[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """Plan for a gather that reads each token's row once."""
    parts = _parts(experts, device, hidden * item)
    each = item * 3 + (3 * 4 if weighted else 0)
    tile = feature_tile("gather by tokens", hidden, item, each, device)
    constants = _gather_constants(experts, top_k, hidden, tile, parts) | {
        "ZEROERS": 0 if device.ascend else min(experts * parts, device.grid_limit // 2),
        "UNROLL": not device.ascend and top_k <= MOST_UNROLLED,
        "LOAD": "",
        "STORE": "" if device.ascend else ".cs",  # written rows are not read again here
    }
    sizes = {"assignments": tokens * top_k, "hidden": hidden, "item": str(item), "top_k": str(top_k)}
    given = given or plans.choice(MEASURED, "padded_moe.gather_tokens", device, **sizes)
    constants, options = _overridden(constants, {} if device.ascend else _warps(tile), given)
    constants, options = overlapping(constants, options, device)
    programs, run = shared(tokens, device, constants["ZEROERS"])
    return Plan((device.cores if device.ascend else programs + constants["ZEROERS"],), run, constants, options)


def scatter_form(assignments: int, top_k: int, hidden: int, device: Device) -> str:
    """Implementation of the scatter that suits the sizes."""
    if device.ascend:
        return "sum"
    if top_k == 1:
        return "blocks"
    if assignments <= SEARCHED[-1]:
        return "search"
    return "several" if hidden <= NARROW_SUM else "sum"


@plans.kept
def scatter(
    tokens: int, top_k: int, hidden: int, item: int, device: Device, given: Mapping[str, Any] | None = None
) -> Plan:
    """Plan for the sum of each token's rows."""
    # Input twice, its fp32 form, the sum and the sum carried over, and the result; unrolled, every input twice.
    tile = feature_tile("scatter", hidden, item, 20, device)
    unroll = top_k <= MOST_UNROLLED and (not device.ascend or tile * (2 * item * top_k + 20) <= device.ub_bytes)
    constants = {"TOP_K": top_k, "HIDDEN": hidden, "TILE": tile, "UNROLL": unroll, "LOAD": ""}
    if not device.ascend:
        constants["TILE"] = min(tile, 1024)
    sizes = {"assignments": tokens * top_k, "hidden": hidden, "item": str(item), "top_k": str(top_k)}
    given = given or plans.choice(MEASURED, "padded_moe.scatter", device, **sizes)
    constants, options = _overridden(constants, {} if device.ascend else {"num_warps": 4}, given)
    constants, options = overlapping(constants, options, device)
    programs, run = shared(tokens, device)
    return Plan((programs,), run, constants, options)


@plans.kept
def scatter_several(
    tokens: int, top_k: int, hidden: int, item: int, device: Device, given: Mapping[str, Any] | None = None
) -> Plan:
    """Plan for the sums of several tokens at once: an element of a tile a thread."""
    tile = min(max(power_of_two(hidden), LEAST_TILE // item), 1024)
    constants = {
        "TOP_K": top_k, "HIDDEN": hidden, "TILE": tile, "ROWS": max(1, 512 // tile),
        "UNROLL": top_k <= MOST_UNROLLED,
    }  # fmt: skip
    sizes = {"assignments": tokens * top_k, "hidden": hidden, "item": str(item), "top_k": str(top_k)}
    given = given or plans.choice(MEASURED, "padded_moe.scatter_several", device, **sizes)
    constants, options = _overridden(constants, {} if device.ascend else {"num_warps": 4}, given)
    constants, options = overlapping(constants, options, device)
    programs, run = shared(-(-tokens // constants["ROWS"]), device)
    return Plan((programs,), run, constants, options)


@plans.kept
def scatter_search(
    tokens: int, top_k: int, hidden: int, item: int, device: Device, given: Mapping[str, Any] | None = None
) -> Plan:
    """Plan for sums whose rows are looked up among all assignments, a program a token and tile."""
    bound = next((b for b in SEARCHED if tokens * top_k <= b), None)
    if bound is None:
        raise PlanError(f"scatter by search: {tokens * top_k} assignments; it takes at most {SEARCHED[-1]}")
    tile = min(max(power_of_two(hidden), LEAST_TILE // item), 1024)
    constants = {
        "TOP_K": top_k, "HIDDEN": hidden, "TILE": tile, "BOUND": bound, "TERMS": power_of_two(top_k)
    }  # fmt: skip
    sizes = {"assignments": tokens * top_k, "hidden": hidden, "item": str(item), "top_k": str(top_k)}
    given = given or plans.choice(MEASURED, "padded_moe.scatter_search", device, **sizes)
    constants, options = _overridden(constants, {} if device.ascend else {"num_warps": 4}, given)
    return Plan((tokens, -(-hidden // constants["TILE"])), 1, constants, options)


@plans.kept
def scatter_blocks(
    assignments: int, hidden: int, item: int, device: Device, given: Mapping[str, Any] | None = None
) -> Plan:
    """Plan for a scatter of several rows at once, each to a token of its own."""
    tile = min(max(power_of_two(hidden), LEAST_TILE // item), 2048)
    constants = {"HIDDEN": hidden, "TILE": tile, "ROWS": _rows_at_once(hidden * item)}
    options = {} if device.ascend else _warps(tile * constants["ROWS"], most=4)
    sizes = {"assignments": assignments, "hidden": hidden, "item": str(item)}
    given = given or plans.choice(MEASURED, "padded_moe.scatter_blocks", device, **sizes)
    constants, options = _overridden(constants, options, given)
    programs, run = shared(-(-assignments // constants["ROWS"]), device)
    return Plan((programs,), run, constants, options)


@plans.kept
def wgrad_each(
    assignments: int, top_k: int, hidden: int, item: int, device: Device, tile: int | None = None,
    one_each: bool = False,
) -> Plan:  # fmt: skip
    """Plan for one dot product after another."""
    tile = feature_tile("wgrad", hidden, item, 4 * item + 4 * 4, device, tile)
    programs, run = shared(assignments, device)
    if one_each:
        programs = min(max(assignments, 1), device.grid_limit)
        run = max(1, -(-assignments // programs))
    return Plan((programs,), run, {"TOP_K": top_k, "HIDDEN": hidden, "TILE": tile})


@plans.kept
def wgrad_tokens(
    tokens: int, top_k: int, hidden: int, item: int, device: Device, given: Mapping[str, Any] | None = None
) -> Plan:
    """Plan for the top_k dot products of one token after another, its gradient read once."""
    tile = feature_tile("wgrad by tokens", hidden, item, 4 * item + 4 * 4, device)
    constants = {"TOP_K": top_k, "HIDDEN": hidden, "TILE": tile}
    options = {}
    if not device.ascend:
        terms = power_of_two(top_k)
        constants |= {"TILE": min(tile, max(256, min(2048, 4096 // terms))), "TERMS": terms, "LOAD": ""}
        options = {"num_warps": 4}
    sizes = {"assignments": tokens * top_k, "hidden": hidden, "item": str(item), "top_k": str(top_k)}
    given = given or plans.choice(MEASURED, "padded_moe.wgrad_tokens", device, **sizes)
    constants, options = _overridden(constants, options, given)
    if not device.ascend:
        constants, options = overlapping(constants, options, device)
    programs, run = shared(tokens, device)
    return Plan((programs,), run, constants, options)


@plans.kept
def wgrad_blocks(
    assignments: int, top_k: int, hidden: int, item: int, device: Device, given: Mapping[str, Any] | None = None
) -> Plan:
    """Plan for several dot products at once: on a GPU of narrow rows many, of others one, all of its row at once
    where it has a core to itself, and in tiles without idle lanes where there are not many more."""
    alone, few = assignments <= device.cores, assignments <= 16 * device.cores
    tile = min(max(power_of_two(hidden), LEAST_TILE // item), MOST_TILE if alone else 1024)
    constants = {"TOP_K": top_k, "HIDDEN": hidden, "TILE": tile, "ROWS": 1}
    options = {} if device.ascend else {"num_warps": 4} if hidden <= NARROW else _warps(tile)
    if device.ascend:
        constants |= {"TILE": min(tile, 1024), "ROWS": 8}
    elif hidden <= NARROW:
        constants["ROWS"] = min(2048 // tile, max(16, power_of_two(assignments)))
    elif few and not alone:
        options = {"num_warps": 4}
        if hidden % tile and hidden % 512 == 0:
            constants["TILE"] = 512
    sizes = {"assignments": assignments, "hidden": hidden, "item": str(item), "top_k": str(top_k)}
    given = given or plans.choice(MEASURED, "padded_moe.wgrad_blocks", device, **sizes)
    constants, options = _overridden(constants, options, given)
    programs, run = shared(-(-assignments // constants["ROWS"]), device)
    return Plan((programs,), run, constants | {"ONCE": run == 1}, options)


def wgrad_form(assignments: int, top_k: int, hidden: int, item: int, device: Device) -> str:
    """Implementation of the weight gradient that suits the sizes."""
    if device.ascend:
        return "each"
    tokens = top_k > 1 and hidden >= READ_ONCE and assignments * hidden * item >= READ_AGAIN
    return "tokens" if tokens else "blocks"


def _gather_constants(experts: int, top_k: int, hidden: int, tile: int, parts: int) -> dict[str, Any]:
    zeros = max(tile, ZEROS)
    return {"EXPERTS": experts, "TOP_K": top_k, "HIDDEN": hidden, "TILE": tile, "PARTS": parts, "ZEROS": zeros}


def _parts(experts: int, device: Device, row_bytes: int = 0) -> int:
    """Workers that share the padding of one expert: all cores of an NPU, or one per 32 KiB of 128 rows."""
    if device.ascend:
        return max(1, device.cores // experts)
    return max(1, min(64, power_of_two(128 * row_bytes // 32768), 16384 // experts))


def _rows_at_once(row_bytes: int) -> int:
    """Rows a GPU program takes at once: about 4 KiB."""
    return max(1, min(16, power_of_two(4096 // row_bytes + 1) // 2))


def _warps(elements: int, most: int = 16) -> dict[str, int]:
    """Warps of a GPU program that holds so many elements at once: 16 of them a thread."""
    return {"num_warps": max(1, min(most, elements // 512))}


def _overridden(
    constants: dict[str, Any], options: dict[str, int], given: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, int]]:
    given = given or {}
    more = {k: v for k, v in given.items() if k.islower()}
    return constants | {k: v for k, v in given.items() if not k.islower()}, options | more


@plans.kept
def route(assignments: int, experts: int, device: Device) -> Plan:
    """Plan for the counting sort: chunks as programs, blocks of assignments a chunk as run."""
    bound = max(16, power_of_two(experts))
    block = 32 if device.ascend else 128
    while device.ascend and block > 8 and _route_bits(block, bound) > BITS * device.ub_bytes:
        block //= 2
    need = _route_bits(block, bound)
    if device.ascend and need > BITS * device.ub_bytes:
        raise PlanError(
            f"route: blocks of {block} assignments to {experts} experts need {need} bits of UB, {device.name} has "
            f"{BITS * device.ub_bytes}"
        )
    blocks = max(1, -(-assignments // block))
    most = device.cores if device.ascend else 128
    run = -(-blocks // most)
    constants = {"BOUND": bound, "BLOCK": block, "ROWS": max(1, 2048 // bound) if device.ascend else 128}
    given = plans.choice(MEASURED, "padded_moe.route", device, assignments=assignments, experts=experts)
    return Plan((-(-blocks // run),), run, constants, {} if device.ascend else {"num_warps": 4} | dict(given))


def _route_bits(block: int, bound: int) -> int:
    """Upper bound of what the compiler asks for: ten buffers of the pairs, five of the one-hot rows."""
    return BITS * 4 * block * (10 * block + 5 * bound)


def candidates(name: str, sizes: Mapping[str, Any]) -> Iterator[plans.Choice]:
    """What is worth measuring for a plan on a GPU."""
    if name == "padded_moe.route":
        yield from ({"num_warps": warps} for warps in (1, 2, 8))
        return
    if not name.startswith("padded_moe."):
        return
    wide = min(max(power_of_two(sizes["hidden"]), LEAST_TILE // int(sizes["item"])), MOST_TILE)
    form = name.partition(".")[2]
    if form in ("gather_blocks", "scatter_blocks"):
        usual = _rows_at_once(sizes["hidden"] * int(sizes["item"]))
        for rows in sorted({max(1, usual // 2), usual, 2 * usual}):
            yield from ({"ROWS": rows, "num_warps": warps} for warps in (1, 2, 4, 8))
    elif form == "scatter_several" or (form == "wgrad_blocks" and sizes["hidden"] <= NARROW):
        for elements in (16, 64, 256, 1024, 2048, 4096):
            rows = max(1, elements // wide)
            yield from ({"ROWS": rows, "num_warps": warps} for warps in (1, 2, 4, 8))
    elif form == "gather_tokens":
        for store in ("", ".cs"):
            yield from ({"STORE": store, "num_warps": warps} for warps in (2, 4, 8, 16))
    else:
        for tile in sorted({min(wide, tile) for tile in (512, 1024, 2048, 4096)}):
            yield from ({"TILE": tile, "num_warps": warps} for warps in (1, 2, 4, 8))
