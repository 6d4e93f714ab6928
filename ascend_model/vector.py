"""What each vector and copy op does: values by numpy, then its time.

A factory here takes an op of the tree and returns the function that the generated code calls for it.
An op that is not in these tables is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np

from ascend_model import replay
from ascend_model.memory import (
    NUMPY_TYPE,
    REPEAT_BYTES,
    Access,
    Fault,
    Global,
    Machine,
    Made,
    Tile,
    bf16_to_f32,
    f32_to_bf16,
)
from ascend_model.parse import ELEMENT_BITS, Op, memref_type
from ascend_model.timeline import MTE2, MTE3, V

Costs = dict[str, float]
Values = Callable[..., Any]


class Runner(NamedTuple):
    """One op of the compiled code as functions of its resolved operands.

    run:    values, order and time: (time of the scalar pipe, *operands) -> its time afterwards
    values: the values alone, or None where they cannot be had alone
    fixed:  operands that never change -> a function without arguments that does what `values` does with them
    steady: operands that never change -> a function of the time alone that does what `run` does with them
    line, line_values: `run` and `values` of a copy from or to neighbouring elements of global memory, which are
            given as (buffer, first element, how many) in place of a tile
    """

    run: Callable[..., int]
    values: Callable[..., None] | None = None
    fixed: Callable[[tuple[Any, ...]], Callable[[], Any]] | None = None
    steady: Callable[..., Callable[[int], int]] | None = None
    line: Callable[..., int] | None = None
    line_values: Callable[..., None] | None = None

    def fix(self, *operands: Any) -> Callable[[], Any]:
        """`values` of these operands, as a call without arguments."""
        assert self.values is not None
        return self.fixed(operands) if self.fixed else partial(self.values, *operands)


COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def unsupported(op: Op, why: str = "") -> Fault:
    where = f" at {op.loc}" if op.loc else f" at line {op.line} of the IR"
    return Fault("unsupported", f"{op.name}{' ' + why if why else ''} is not modelled{where}")


def _divide(a: Any, b: Any) -> Any:
    kind = np.result_type(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else None
    if kind is not None and kind.kind in "iu":
        wide = np.asarray(b, np.int64)
        safe = np.where(wide == 0, 1, wide)
        quotient = np.abs(np.asarray(a, np.int64)) // np.abs(safe)
        return np.where(wide == 0, -1, quotient * np.sign(safe) * np.sign(np.asarray(a, np.int64))).astype(kind)
    return np.divide(a, b)


def _remainder(a: Any, b: Any) -> Any:
    return np.fmod(a, b)


def _not(a: Any) -> Any:
    return np.logical_not(a) if a.dtype == bool else np.invert(a)


def _rsqrt(a: Any) -> Any:
    return (np.float32(1) / np.sqrt(a)).astype(a.dtype)


def _reciprocal(a: Any) -> Any:
    return (np.float32(1) / a).astype(a.dtype)


def _relu(a: Any) -> Any:
    return np.maximum(a, 0)


def _erf(a: Any) -> Any:
    from math import erf

    return np.array([erf(x) for x in np.asarray(a, np.float64).reshape(-1)], np.float32).reshape(a.shape)


def _shift_left(a: Any, b: Any) -> Any:
    return np.left_shift(a, np.asarray(b).astype(a.dtype))


def _shift_right(a: Any, b: Any) -> Any:
    return np.right_shift(a, np.asarray(b).astype(a.dtype))


LANES: dict[str, Values] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vmul": np.multiply,
    "vdiv": _divide,
    "vmod": _remainder,
    "vmax": np.maximum,
    "vmin": np.minimum,
    "vand": np.bitwise_and,
    "vor": np.bitwise_or,
    "vxor": np.bitwise_xor,
    "vshl": _shift_left,
    "vshr": _shift_right,
    "vpow": np.power,
    "vexp": np.exp,
    "vln": np.log,
    "vsqrt": np.sqrt,
    "vrsqrt": _rsqrt,
    "vrec": _reciprocal,
    "vabs": np.abs,
    "vrelu": _relu,
    "vnot": _not,
    "vtanh": np.tanh,
    "vsin": np.sin,
    "vcos": np.cos,
    "verf": _erf,
}


@cache
def _halves(axis: int, size: int) -> list[tuple[Any, Any, Any]]:
    """Where the two halves of an axis lie, and its middle where the size is odd, down to size one."""
    lead = (slice(None),) * axis
    found = []
    while size > 1:
        half = (size + 1) // 2
        rest = size - half
        middle = (*lead, slice(rest, half)) if half != rest else None
        found.append(((*lead, slice(rest)), (*lead, slice(half, size)), middle))
        size = half
    return found


def _tree(values: np.ndarray, axis: int, join: Values) -> np.ndarray:
    """Join along an axis by halving, the order in which the vector unit adds; the same on every machine."""
    for first, second, middle in _halves(axis, values.shape[axis]):
        head = join(values[first], values[second])
        values = head if middle is None else np.concatenate([head, values[middle]], axis=axis)
    return values


_JOIN: dict[str, Values] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "xori": np.bitwise_xor,
    "ori": np.bitwise_or,
    "andi": np.bitwise_and,
    "any": np.logical_or,
    "all": np.logical_and,
}


def reduce_values(kind: str, axes: tuple[int, ...], values: np.ndarray) -> np.ndarray:
    """Join the given axes, which stay as size one."""
    if values.dtype.kind != "f":
        if kind == "sum":
            return np.add.reduce(values, axis=axes, keepdims=True, dtype=values.dtype)
        return _JOIN[kind].reduce(values, axis=axes, keepdims=True)  # type: ignore[attr-defined]
    for axis in axes:
        values = _tree(values, axis, _JOIN[kind])
    return values


def cast_values(source: str, target: str, mode: str, signed: bool, op: Op) -> Values:
    """Conversion of one element type into another with the op's rounding mode."""
    to = NUMPY_TYPE[target]
    if target == "i1":
        return lambda x: np.not_equal(x, 0)
    if target in ("f32", "f16", "bf16"):
        kind = np.float32 if target == "bf16" else to
        if source in ("f32", "bf16", "f16") and mode not in ("rint", "round"):
            if mode in _WHOLE:
                whole = _WHOLE[mode]
                same = source == target or (source in ("bf16", "f16") and target == "f32")
                if same:
                    return lambda x: whole(x).astype(kind)
            raise unsupported(op, f"from {source} to {target} rounding {mode}")
        if source == target and mode in _WHOLE:
            whole = _WHOLE[mode]
            return lambda x: whole(x).astype(kind)
        if not signed and source.startswith("i") and source != "i1":
            unsigned = np.dtype(NUMPY_TYPE[source]).str.replace("i", "u")
            return lambda x: x.view(unsigned).astype(kind)
        return lambda x: x.astype(kind)
    low, high = np.iinfo(to).min, np.iinfo(to).max
    if source in ("f32", "f16", "bf16"):
        if mode not in _WHOLE:
            if mode != "truncwithoverflow":
                raise unsupported(op, f"from {source} to {target} rounding {mode}")
            return lambda x: np.trunc(np.nan_to_num(x.astype(np.float64))).astype(np.int64).astype(to)
        whole = _WHOLE[mode]
        if target == "i64":
            # 2**63 itself is no int64, so clip to the last float below it
            return lambda x: np.clip(
                np.nan_to_num(whole(x.astype(np.float64)), posinf=2.0**63, neginf=-(2.0**63)), low, 2.0**63 - 1024
            ).astype(to)
        return lambda x: np.clip(
            np.nan_to_num(whole(x.astype(np.float64)), posinf=high, neginf=low), low, high
        ).astype(to)
    if source == "i1" or ELEMENT_BITS[source] <= ELEMENT_BITS[target]:
        if not signed and source != "i1":
            unsigned = np.dtype(NUMPY_TYPE[source]).str.replace("i", "u")
            return lambda x: x.view(unsigned).astype(to)
        return lambda x: x.astype(to)
    if mode == "truncwithoverflow":
        return lambda x: x.astype(to)
    return lambda x: np.clip(x, low, high).astype(to)


def _half_away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


_WHOLE: dict[str, Values] = {
    "rint": np.rint,
    "round": _half_away,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}


def _op_costs(costs: Costs, name: str) -> tuple[float, float, float]:
    if f"vector.ops.{name}.head" not in costs:
        name = "other"
    return tuple(costs[f"vector.ops.{name}.{part}"] for part in ("head", "repeat", "tail"))  # type: ignore[return-value]


def _no_inline(op: Op) -> None:
    """Refuse forms whose operands are transposed on the way; an inline broadcast is numpy's own rule."""
    if op.ints("transpose"):
        raise unsupported(op, "with an inline transpose")


def lanes(machine: Machine, op: Op, place: int, costs: Costs) -> Runner:
    """Ops that compute every lane of the result from the same lane of the operands."""
    _no_inline(op)
    fn: Values
    if op.short == "vcmp":
        fn = COMPARE[op.enum("compare_mode", "eq")]
    elif op.short == "vsel":
        fn = np.where
    elif op.short == "vcast":
        source, target = memref_type(op.operand_types[0]), memref_type(op.operand_types[1])
        assert source and target
        signed = "unsigned" not in op.attrs.get("cast", "")
        fn = cast_values(source.element, target.element, op.enum("round_mode", "rint"), signed, op)
    else:
        fn = LANES[op.short]
    head, slope, tail = _op_costs(costs, op.short)
    groups = op.operand_groups()
    inputs = len(groups[0])
    issue = machine.time.issuer(V, ceil(tail), op.short, machine.places[place])
    in_place = fn if isinstance(fn, np.ufunc) else None
    get = machine.get

    def compute(*operands: Any) -> None:
        out = operands[inputs]
        if in_place is not None and out.elem not in ("bf16", "i1"):
            in_place(*[get(x) for x in operands[:inputs]], out=out.arr, casting="unsafe")
        else:
            machine.put(out, fn(*[get(x) for x in operands[:inputs]]))

    def fixed(operands: tuple[Any, ...]) -> Callable[[], Any]:
        out = operands[inputs]
        bits = any(type(x) is Access and x.elem in ("bf16", "i1") for x in operands[: inputs + 1])
        if in_place is None or bits:
            return partial(compute, *operands)
        return partial(in_place, *[get(x) for x in operands[:inputs]], out=out.arr, casting="unsafe")

    def step_of(reads: tuple[Access, ...], writes: tuple[Access, ...]) -> Callable[[int, Callable[[], Any]], int]:
        out, scratch = writes[0], writes[1:]
        repeats = max(a.repeats for a in (out, *reads))
        occupied = ceil(head + slope * repeats)
        touch = machine.toucher(V, reads, writes, place)

        def step(ts: int, values: Callable[[], Any]) -> int:
            touch()
            unknown = None
            for a in reads:
                mask = machine.undefined(a)
                if mask is not None:
                    unknown = _lane_mask(machine, a, mask, out, unknown)
            if scratch:
                machine.spoil(scratch)
            values()
            machine.define(out, unknown)
            machine.vector_ops += 1
            machine.repeats += repeats
            return issue(ts, occupied)

        return step

    steps = Made(lambda operands: step_of(*operands))

    def operands_of(operands: tuple[Any, ...]) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return tuple(x for x in operands[:inputs] if type(x) is Access), operands[inputs:]

    def run(ts: int, *operands: Any) -> int:
        return steps[operands_of(operands)](ts, partial(compute, *operands))

    def steady(*operands: Any) -> Callable[[int], int]:
        step, values = step_of(*operands_of(operands)), fixed(operands)
        return lambda ts: step(ts, values)

    return Runner(run, compute, fixed, steady)


def _lane_mask(
    machine: Machine, a: Access, mask: np.ndarray, out: Access, so_far: np.ndarray | None
) -> np.ndarray:
    """Undefined lanes of `a` as lanes (bytes, for bits) of the result."""
    if a.elem == "i1" and out.elem != "i1":
        shift = a.arr - 8 * a.lo
        if a.bits is None:
            mask = np.repeat(mask, 8)[shift : shift + a.n].reshape(a.shape)
        elif mask.shape != a.shape or a.shape[-1] == 1:
            mask = np.repeat(mask, 8, axis=-1)[..., shift : shift + a.shape[-1]]
    elif a.elem != "i1" and out.elem == "i1":
        mask = np.array([mask.any()])
    if out.elem != "i1":
        mask = np.broadcast_to(mask, out.shape)
    elif mask.shape != out.shadow.shape:
        mask = np.broadcast_to(np.array(mask.any()), out.shadow.shape)
    return mask if so_far is None else so_far | mask


def layout(machine: Machine, op: Op, place: int, costs: Costs, fn: Values, inputs: int) -> Runner:
    """Ops that only move lanes; `fn` maps operand values, and masks of undefined lanes, to result values."""
    head, slope, tail = _op_costs(costs, op.short)
    name = op.short
    issue = machine.time.issuer(V, ceil(tail), name, machine.places[place])

    def compute(*operands: Any) -> None:
        values = fn(*[machine.get(x) for x in operands[:inputs]])
        machine.put(operands[inputs], np.array(values) if isinstance(values, np.ndarray) else values)

    def step_of(*operands: Any) -> Callable[[int], int]:
        sources, out, scratch = operands[:inputs], operands[inputs], operands[inputs + 1 :]
        reads = tuple(x for x in sources if type(x) is Access)
        repeats = max([out.repeats, *(a.repeats for a in reads)])
        occupied = ceil(head + slope * repeats)
        touch = machine.toucher(V, reads, operands[inputs:], place)

        def step(ts: int) -> int:
            touch()
            masks = [machine.undefined(a) if type(a) is Access else None for a in sources]
            unknown = None
            if any(m is not None for m in masks):
                if out.elem == "i1":
                    for a in reads:
                        machine.need_defined(a, name, place)
                else:
                    lanes = [
                        np.zeros(a.shape, bool) if m is None else m
                        for a, m in zip(sources, masks)
                        if type(a) is Access
                    ]
                    unknown = np.broadcast_to(fn(*lanes), out.shape)
            machine.spoil(scratch)
            compute(*operands)
            machine.define(out, unknown)
            machine.vector_ops += 1
            machine.repeats += repeats
            return issue(ts, occupied)

        return step

    return Runner(lambda ts, *operands: step_of(*operands)(ts), compute, steady=step_of)


def whole(
    machine: Machine,
    op: Op,
    place: int,
    costs: Costs,
    fn: Values,
    inputs: int,
    outputs: int,
    cycles: Callable[[tuple[Access, ...]], float] | None = None,
) -> Runner:
    """Ops whose every result lane may depend on every operand lane: reductions, scans, gathers, sorts."""
    head, slope, tail = _op_costs(costs, op.short)
    name = op.short
    issue = machine.time.issuer(V, ceil(tail), name, machine.places[place])

    def compute(*operands: Any) -> None:
        results = fn(*[machine.get(x) for x in operands[:inputs]])
        for out, values in zip(operands[inputs : inputs + outputs], results if outputs > 1 else (results,)):
            machine.put(out, np.array(values).reshape(out.shape))

    def steady(*operands: Any) -> Callable[[int], int]:
        reads = tuple(x for x in operands[:inputs] if type(x) is Access)
        writes, outs = operands[inputs:], operands[inputs : inputs + outputs]
        repeats = max(a.repeats for a in (*reads, *outs))
        occupied = ceil(head + slope * repeats if cycles is None else cycles(reads))
        touch = machine.toucher(V, reads, writes, place)

        def step(ts: int) -> int:
            touch()
            for a in reads:
                machine.need_defined(a, name, place)
            machine.spoil(writes[outputs:])
            compute(*operands)
            for out in outs:
                machine.define(out)
            machine.vector_ops += 1
            machine.repeats += repeats
            return issue(ts, occupied)

        return step

    return Runner(lambda ts, *operands: steady(*operands)(ts), compute, steady=steady)


def reduction(machine: Machine, op: Op, place: int, costs: Costs) -> Runner:
    kind = op.enum("arith")
    axes = op.ints("reduce_dims")
    add_head, add_repeat, add_tail = _op_costs(costs, "vadd")
    head, slope, _ = _op_costs(costs, "vreduce")
    outputs = len(op.operand_groups()[1])

    def cycles(reads: tuple[Access, ...]) -> float:
        """Halve by adds down to one repeat a row, then reduce inside a repeat: by one op for floats, by steps."""
        source = reads[0]
        joined = 1
        for axis in axes:
            joined *= source.shape[axis]
        rows = max(1, source.n // max(1, joined))
        repeats = max(1, source.repeats)
        occupied = 0.0
        if len(source.shape) - 1 not in axes:
            steps = ceil(log2(max(1, joined)))
            return (
                sum(add_head + add_repeat * max(1, repeats >> (i + 1)) + add_tail for i in range(steps))
                or add_head
            )
        for i in range(ceil(log2(max(1, repeats / rows)))):
            occupied += add_head + add_repeat * max(1, repeats >> (i + 1)) + add_tail
        lanes_left = min(joined, REPEAT_BYTES * 8 // ELEMENT_BITS[source.elem])
        if source.elem in ("f32", "f16"):
            return occupied + head + slope * rows
        return occupied + ceil(log2(max(2, lanes_left))) * (add_head + add_repeat * rows + add_tail)

    if outputs == 2:
        base, _, rest = kind.partition("_with_index")
        if base not in ("max", "min") or rest not in ("_left", "_right", "") or len(axes) != 1:
            raise unsupported(op, f"of kind {kind}")
        pick = np.argmax if base == "max" else np.argmin
        axis = axes[0]

        def with_index(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if rest == "_right":
                index = values.shape[axis] - 1 - pick(np.flip(values, axis), axis=axis, keepdims=True)
            else:
                index = pick(values, axis=axis, keepdims=True)
            return np.take_along_axis(values, index, axis), index

        return whole(machine, op, place, costs, with_index, 1, 2, cycles)
    if kind not in _JOIN:
        raise unsupported(op, f"of kind {kind}")
    return whole(machine, op, place, costs, lambda x: reduce_values(kind, axes, x), 1, 1, cycles)


def broadcast(machine: Machine, op: Op, place: int, costs: Costs) -> Runner:
    head, slope, tail = _op_costs(costs, op.short)
    if op.operand_types[0].startswith("memref"):
        return layout(machine, op, place, costs, lambda x: x, 1)
    issue = machine.time.issuer(V, ceil(tail), "vbrc", machine.places[place])

    touchers = Made(lambda writes: machine.toucher(V, (), writes, place))

    def fill(ts: int, value: Any, *writes: Access) -> int:
        out = writes[0]
        touchers[writes]()
        machine.put(out, value)
        machine.define(out)
        machine.vector_ops += 1
        machine.repeats += out.repeats
        return issue(ts, ceil(head + slope * out.repeats))

    return Runner(fill, lambda value, out, *scratch: machine.put(out, value))


def arange(machine: Machine, op: Op, place: int, costs: Costs) -> Runner:
    head, slope, tail = _op_costs(costs, op.short)
    issue = machine.time.issuer(V, ceil(tail), "varange", machine.places[place])
    has_offset = (op.ints("operandSegmentSizes") or (1, 1, 1))[1] == 1

    def compute(out: Access, *numbers: int) -> None:
        offset, steps = (numbers[0], numbers[1:]) if has_offset else (0, numbers)
        index = np.full(out.shape, offset, np.int64)
        for axis, step in enumerate(steps):
            line = np.arange(out.shape[axis], dtype=np.int64) * step
            index += line.reshape([-1 if i == axis else 1 for i in range(len(out.shape))])
        machine.put(out, index)

    touchers = Made(lambda out: machine.toucher(V, (), (out,), place))

    def run(ts: int, out: Access, *numbers: int) -> int:
        touchers[out]()
        compute(out, *numbers)
        machine.define(out)
        machine.vector_ops += 1
        machine.repeats += out.repeats
        return issue(ts, ceil(head + slope * out.repeats))

    return Runner(run, compute)


def _interleave(*sources: np.ndarray) -> np.ndarray:
    return np.stack(sources, axis=-1).reshape(*sources[0].shape[:-1], -1)


def _deinterleave(op: Op) -> Values:
    channels = (op.ints("channel_num") or (2,))[0]
    mode = op.enum("index_mode", "ALL_CHANNELS")
    source, out = memref_type(op.operand_types[0]), memref_type(op.operand_types[1])
    assert source and out
    if source.strides[-1] == channels and source.shape[-1] == out.shape[-1]:
        if mode != "CHANNEL_0":
            raise unsupported(op, f"of a strided operand, {mode}")
        return lambda x: x  # the operand's stride already leaves the other channels out
    if mode.startswith("CHANNEL_"):
        start = int(mode.removeprefix("CHANNEL_"))
        return lambda x: x[..., start::channels]
    return lambda x: tuple(x[..., i::channels] for i in range(channels))


def _cumulative(op: Op, fn: Any) -> Values:
    axes = op.ints("cum_dims")
    if len(axes) != 1:
        raise unsupported(op, "over several axes")
    [axis] = axes
    if op.attrs.get("reverse", "false") == "true":  # from the last element on
        return lambda x: np.flip(fn(np.flip(x, axis), axis=axis, dtype=x.dtype), axis)
    return lambda x: fn(x, axis=axis, dtype=x.dtype)


def load(machine: Machine, op: Op, place: int, costs: Costs) -> Runner:
    """Global memory to the unified buffer."""
    if op.attrs.get("init_out_buffer", "false") == "true":
        raise unsupported(op, "with init_out_buffer")
    address, piece, where = ceil(costs["scalar.address"]), costs["dma.piece"], machine.places[place]
    issue = machine.time.issuer(MTE2, ceil(costs["dma.load_latency"]), "load", where)
    elem, width = _element(op, 0)
    touchers = Made(lambda out: machine.toucher(MTE2, (), (out,), place))

    def run(ts: int, source: Tile, out: Access) -> int:
        if source.n != out.n:
            raise Fault("unreadable IR", f"{where} copies {source.n} elements into {out.n}")
        if source.n == 0:
            return ts + address
        touchers[out]()
        root = source.root
        strided = source if source.bursts > 1 else None
        machine.gm_order(root, source.elem, source.lo, source.hi, strided, MTE2, False, place)
        if root.reader is not None and not source.outside:
            root.reader[machine.units(source)] = machine.program + 1
        if source.outside:
            values = read_outside(machine, source, place)
        else:
            values = source.arr
        out.arr[...] = values if values.shape == out.shape else values.reshape(out.shape)
        machine.define(out)
        machine.dma[0] += 1
        machine.dma_bytes[0] += source.nbytes
        machine.bursts[0] += source.bursts
        pieces = source.bursts * max(piece, source.nbytes / source.bursts / machine.load_rate)
        return issue(ts, ceil(pieces))

    def line(ts: int, root: Global, first: int, n: int, out: Access) -> int:
        end = first + n
        if n <= 0 or n != out.n or first < 0 or end > root.count[elem]:
            return run(ts, machine.tile(root, elem, first, (n,), (1,)), out)
        touchers[out]()
        if root.is_stored:
            lo, hi = first * width, end * width
            machine.gm_order(root, elem, lo, hi, None, MTE2, False, place)
            if root.reader is not None:
                root.reader[root.units(lo, hi)] = machine.program + 1
        values = root.numpy[elem][first:end]
        out.arr[...] = values if out.one_axis else values.reshape(out.shape)
        machine.define(out)
        machine.dma[0] += 1
        machine.dma_bytes[0] += n * width
        machine.bursts[0] += 1
        cycles = n * width / machine.load_rate
        return issue(ts, ceil(cycles if cycles > piece else piece))

    def compute(source: Tile, out: Access) -> None:
        replay.load(machine, source, out, place)

    def line_values(root: Global, first: int, n: int, out: Access) -> None:
        if n <= 0 or n != out.n or first < 0 or first + n > root.count[elem]:
            compute(machine.tile(root, elem, first, (n,), (1,)), out)
        else:
            replay.load_line(machine, root, elem, first, out, place)

    return Runner(run, compute, line=line, line_values=line_values)


def _element(op: Op, operand: int) -> tuple[str, int]:
    """Element type of an operand in global memory, and its bytes there."""
    kind = memref_type(op.operand_types[operand])
    if kind is None:
        raise unsupported(op, f"on {op.operand_types[operand]}")
    return kind.element, ELEMENT_BITS[kind.element] // 8 or 1


def read_outside(machine: Machine, tile: Tile, place: int) -> np.ndarray:
    """Values of a tile that leaves its tensor: what lies inside, zero elsewhere, and a finding."""
    index = tile.indices()
    flat = tile.root.numpy[tile.elem]
    inside = (index >= 0) & (index < flat.size)
    values = np.zeros(index.size, flat.dtype)
    values[inside] = flat[index[inside]]
    outside_report(machine, tile, "read", index, inside, place)
    return values.reshape(tile.shape)


def outside_report(
    machine: Machine, tile: Tile, verb: str, index: np.ndarray, inside: np.ndarray, place: int
) -> None:
    bad = index[~inside]
    machine.out_of_bounds += bad.size
    machine.report(
        f"out of bounds {verb}",
        f"{verb} outside {tile.root.name} ({tile.root.count[tile.elem]} elements)",
        place,
        bad.size,
        f"elements {int(bad.min())}..{int(bad.max())}",
    )


def atomic_values(kind: str, old: np.ndarray, new: np.ndarray, op: Op) -> np.ndarray:
    join = {
        "add": np.add,
        "max": np.maximum,
        "min": np.minimum,
        "umax": np.maximum,
        "umin": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }.get(kind)
    if join is None:
        raise unsupported(op, f"with atomic {kind}")
    return join(old, new)


def store(machine: Machine, op: Op, place: int, costs: Costs) -> Runner:
    """The unified buffer to global memory, atomically or not."""
    address, piece, where = ceil(costs["scalar.address"]), costs["dma.piece"], machine.places[place]
    issue = machine.time.issuer(MTE3, ceil(costs["dma.store_latency"]), "store", where)
    elem, width = _element(op, 1)
    touchers = Made(lambda source: machine.toucher(MTE3, (source,), (), place))
    atomic = op.enum("atomic_kind", "none")
    bf16 = any("xbf16" in t for t in op.operand_types)

    def stored(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        if atomic == "none":
            return new
        if bf16:
            return f32_to_bf16(atomic_values(atomic, bf16_to_f32(old), bf16_to_f32(new), op))
        return atomic_values(atomic, old, new, op)

    def run(ts: int, source: Access, out: Tile) -> int:
        if source.n != out.n:
            raise Fault("unreadable IR", f"{where} copies {source.n} elements into {out.n}")
        if out.n == 0:
            return ts + address
        touchers[source]()
        for atom in source.atoms:
            if atom.dirty:
                machine.need_defined(source, "a store to global memory", place)
                break
        root = out.root
        strided = out if out.bursts > 1 else None
        machine.gm_order(root, out.elem, out.lo, out.hi, strided, MTE3, True, place)
        values = source.arr if source.shape == out.shape else source.arr.reshape(out.shape)
        if root.kind == 0:
            machine.report("write to input", f"stores to {root.name}, which the kernel only reads", place)
        if out.outside:
            write_outside(machine, out, values, place)
        else:
            if atomic == "none" and out.n == 1:
                machine.own_one(root, out.lo, out.hi, values, out.arr, place)
            elif atomic == "none":
                machine.own(root, machine.units(out), values, out.arr, place)
            out.arr[...] = stored(out.arr, values)
        machine.dma[1] += 1
        machine.dma_bytes[1] += out.nbytes
        machine.bursts[1] += out.bursts
        cycles = ceil(out.bursts * max(piece, out.nbytes / out.bursts / machine.store_rate))
        return issue(ts, cycles)

    def line(ts: int, source: Access, root: Global, first: int, n: int) -> int:
        end = first + n
        if n <= 0 or n != source.n or first < 0 or end > root.count[elem] or root.kind == 0:
            return run(ts, source, machine.tile(root, elem, first, (n,), (1,)))
        touchers[source]()
        for atom in source.atoms:
            if atom.dirty:
                machine.need_defined(source, "a store to global memory", place)
                break
        lo, hi = first * width, end * width
        machine.gm_order(root, elem, lo, hi, None, MTE3, True, place)
        values = source.arr if source.one_axis else source.arr.reshape(-1)
        out = root.numpy[elem][first:end]
        if atomic == "none" and n == 1:
            machine.own_one(root, lo, hi, values, out, place)
        elif atomic == "none":
            machine.own(root, root.units(lo, hi), values, out, place)
        out[...] = stored(out, values)
        machine.dma[1] += 1
        machine.dma_bytes[1] += n * width
        machine.bursts[1] += 1
        cycles = n * width / machine.store_rate
        return issue(ts, ceil(cycles if cycles > piece else piece))

    def compute(source: Access, out: Tile) -> None:
        replay.store(machine, source, out, atomic != "none", stored, place)

    def line_values(source: Access, root: Global, first: int, n: int) -> None:
        if n <= 0 or n != source.n or first < 0 or first + n > root.count[elem] or root.kind == 0:
            compute(source, machine.tile(root, elem, first, (n,), (1,)))
        else:
            replay.store_line(machine, source, root, elem, first, atomic != "none", stored, place)

    return Runner(run, compute, line=line, line_values=line_values)


def write_outside(machine: Machine, tile: Tile, values: np.ndarray, place: int) -> None:
    index = tile.indices()
    flat = tile.root.numpy[tile.elem]
    inside = (index >= 0) & (index < flat.size)
    flat[index[inside]] = values.reshape(-1)[inside]
    outside_report(machine, tile, "write", index, inside, place)


def runner(machine: Machine, op: Op, place: int, costs: Costs) -> Runner:
    """The function for a vector or copy op, or a Fault that names the op."""
    name = op.short
    inputs = len(op.operand_groups()[0])
    if name in LANES or name in ("vcmp", "vsel", "vcast"):
        return lanes(machine, op, place, costs)
    if name == "load":
        return load(machine, op, place, costs)
    if name == "store":
        return store(machine, op, place, costs)
    if name == "vbrc":
        return broadcast(machine, op, place, costs)
    if name == "vreduce":
        return reduction(machine, op, place, costs)
    if name == "varange":
        return arange(machine, op, place, costs)
    if name == "copy":
        return layout(machine, op, place, costs, lambda x: x, 1)
    if name == "vtranspose":
        order = op.ints("permutation")
        return layout(machine, op, place, costs, lambda x: np.transpose(x, order), 1)
    if name == "vinterleave":
        return layout(machine, op, place, costs, _interleave, inputs)
    if name == "vdeinterleave":
        split = _deinterleave(op)
        outputs = len(op.operands) - 1
        if outputs == 1:
            return layout(machine, op, place, costs, split, 1)
        return whole(machine, op, place, costs, split, 1, outputs)
    if name == "vconcat":
        axis = op.ints("dim")[0]
        return layout(machine, op, place, costs, lambda *x: np.concatenate(x, axis=axis), inputs)
    if name == "vflip":
        axes = op.ints("flip_axis") or (-1,)
        return layout(machine, op, place, costs, lambda x: np.flip(x, axes), 1)
    if name == "vcumsum":
        return whole(machine, op, place, costs, _cumulative(op, np.cumsum), 1, 1)
    if name == "vcumprod":
        return whole(machine, op, place, costs, _cumulative(op, np.cumprod), 1, 1)
    if name == "vsort" and len(op.operand_groups()[1]) == 1:
        axis, down = op.ints("sort_axis")[0], op.attrs.get("descending") == "true"
        return whole(machine, op, place, costs, lambda x: _sorted(x, axis, down), 1, 1)
    if name == "vgather":
        return whole(machine, op, place, costs, _gather(op), 2, 1)
    raise unsupported(op)


def _sorted(values: np.ndarray, axis: int, down: bool) -> np.ndarray:
    ordered = np.sort(values, axis=axis)
    return np.flip(ordered, axis) if down else ordered


def _gather(op: Op) -> Values:
    def gather(source: np.ndarray, index: np.ndarray) -> np.ndarray:
        where = index.astype(np.int64)
        size = source.shape[-1]
        if where.size and (where.min() < 0 or where.max() >= size):
            raise Fault(
                "out of bounds", f"{op.name} takes lanes {where.min()}..{where.max()} of {size}, line {op.line}"
            )
        return np.take_along_axis(source, where, -1) if source.ndim == where.ndim > 1 else source[..., where]

    return gather
