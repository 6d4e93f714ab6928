"""Numbers inside the model: integer and float arithmetic, casts, time of hand-made programs, constants."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_model import load_costs, simulate_text
from ascend_model.costs import read_costs
from ascend_model.memory import Fault, bf16_to_f32, f32_to_bf16
from ascend_model.metrics import METRICS, combined
from ascend_model.parse import Op
from ascend_model.sensitivity import Flip, flips, survival
from ascend_model.simulate import Simulation, schedule
from ascend_model.vector import atomic_values, cast_values, reduce_values

OP = Op("hivm.hir.test", (), (), {}, (), (), ())


def module(args: str, body: str) -> str:
    """A device function of one grid axis in generic form."""
    names = [f"%arg{i}: {kind}" for i, kind in enumerate([*args.split("; "), "i32", "i32", "i32"])]
    return (
        '"builtin.module"() ({\n"func.func"() <{sym_name = "k"}> ({\n^bb0('
        + ", ".join(names)
        + "):\n"
        + body
        + '\n"func.return"() : () -> ()\n}) {hacc.entry} : () -> ()\n}) : () -> ()\n'
    )


GM = "memref<?x{}, #hivm.address_space<gm>>"
ZERO = '%zero = "arith.constant"() <{value = 0 : index}> : () -> index'

# ---- scalar arithmetic


INTS = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "maxsi": max,
    "minsi": min,
    "divsi": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "remsi": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}


def wrap(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


edge = st.sampled_from([0, 1, -1, 2, 127, -128, 2**31 - 1, -(2**31), 2**30, 65536, -65537])
number = st.one_of(edge, st.integers(-(2**31), 2**31 - 1))


@given(
    st.sampled_from([32, 64]),
    st.lists(
        st.tuples(st.sampled_from(sorted(INTS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8
    ),
    st.lists(number, min_size=3, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_integer_arithmetic_wraps_as_the_type_does(bits, steps, inputs):
    """Chains of ops over three run-time inputs and two constants, against Python's own integers."""
    kind = f"i{bits}"
    names = ["%arg1", "%arg2", "%arg3", "%c0", "%c1"]
    values = [*inputs, 7, -3]
    body = [
        ZERO,
        f'%c0 = "arith.constant"() <{{value = 7 : {kind}}}> : () -> {kind}',
        f'%c1 = "arith.constant"() <{{value = -3 : {kind}}}> : () -> {kind}',
    ]
    for i, (name, a, b) in enumerate(steps):
        a, b = a % len(names), b % len(names)
        if name in ("divsi", "remsi") and values[b] == 0:
            continue
        body.append(f'%v{i} = "arith.{name}"({names[a]}, {names[b]}) : ({kind}, {kind}) -> {kind}')
        values.append(wrap(INTS[name](values[a], values[b]), bits))
        names.append(f"%v{i}")
    memref = GM.format(kind)
    body.append(f'"memref.store"({names[-1]}, %arg0, %zero) : ({kind}, {memref}, index) -> ()')
    out = np.zeros(1, np.int32 if bits == 32 else np.int64)
    done = simulate_text(module(f"{memref}; {kind}; {kind}; {kind}", "\n".join(body)), 1, [out, *inputs])
    assert done.status == "ok", done.message
    assert int(out[0]) == values[-1]


@given(st.sampled_from(range(10)), number, number)
@settings(max_examples=80, deadline=None)
def test_every_integer_comparison(predicate, a, b):
    body = (
        f'{ZERO}\n%c = "arith.cmpi"(%arg1, %arg2) <{{predicate = {predicate} : i64}}> : (i32, i32) -> i1\n'
        '%r = "arith.extui"(%c) : (i1) -> i32\n'
        f'"memref.store"(%r, %arg0, %zero) : (i32, {GM.format("i32")}, index) -> ()'
    )
    out = np.zeros(1, np.int32)
    done = simulate_text(module(f"{GM.format('i32')}; i32; i32", body), 1, [out, a, b])
    ua, ub = a % 2**32, b % 2**32
    want = [a == b, a != b, a < b, a <= b, a > b, a >= b, ua < ub, ua <= ub, ua > ub, ua >= ub][predicate]
    assert done.status == "ok"
    assert out[0] == want


@given(st.floats(width=32), st.floats(width=32), st.sampled_from(["addf", "subf", "mulf", "divf"]))
@settings(max_examples=150, deadline=None)
def test_float_arithmetic_rounds_to_single_precision(a, b, name):
    memref = GM.format("f32")
    body = (
        f'{ZERO}\n%r = "arith.{name}"(%arg1, %arg2) : (f32, f32) -> f32\n'
        f'"memref.store"(%r, %arg0, %zero) : (f32, {memref}, index) -> ()'
    )
    out = np.zeros(1, np.float32)
    done = simulate_text(module(f"{memref}; f32; f32", body), 1, [out, a, b])
    with np.errstate(all="ignore"):
        x, y = np.float32(a), np.float32(b)
        want = {"addf": x + y, "subf": x - y, "mulf": x * y, "divf": np.divide(x, y)}[name]
    assert done.status == "ok"
    assert np.array_equal(out[0], want, equal_nan=True)


def test_division_by_zero_is_a_fault():
    body = (
        f'{ZERO}\n%r = "arith.divsi"(%arg1, %arg2) : (i32, i32) -> i32\n'
        f'"memref.store"(%r, %arg0, %zero) : (i32, {GM.format("i32")}, index) -> ()'
    )
    done = simulate_text(module(f"{GM.format('i32')}; i32; i32", body), 1, [np.zeros(1, np.int32), 5, 0])
    assert done.status == "division by zero"


def test_a_number_that_does_not_fit_its_argument_is_refused():
    text = module(f"{GM.format('i32')}; i32", ZERO)
    with pytest.raises(ValueError, match="does not fit"):
        simulate_text(text, 1, [np.zeros(1, np.int32), 2**31])


# ---- casts and reductions


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
@settings(deadline=None)
def test_bf16_rounds_to_nearest_even_as_torch_does(values):
    torch = pytest.importorskip("torch")
    x = np.array(values, np.float32)
    ours = bf16_to_f32(f32_to_bf16(x))
    theirs = torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    assert np.array_equal(ours, theirs, equal_nan=True)


@pytest.mark.parametrize(
    ("source", "target", "mode", "values", "want"),
    [
        ("f32", "i32", "trunc", [1.9, -1.9, 3e10, -3e10, np.nan], [1, -1, 2**31 - 1, -(2**31), 0]),
        ("f32", "i32", "rint", [0.5, 1.5, 2.5, -0.5], [0, 2, 2, 0]),
        ("f32", "i32", "round", [0.5, 1.5, 2.5, -0.5], [1, 2, 3, -1]),
        ("f32", "i32", "floor", [1.5, -1.5], [1, -2]),
        ("f32", "i32", "ceil", [1.5, -1.5], [2, -1]),
        ("f16", "i8", "trunc", [300.0, -300.0, 5.7], [127, -128, 5]),
        ("i32", "i8", "truncwithoverflow", [255, 256, -129], [-1, 0, 127]),
        ("i32", "i16", "rint", [70000, -70000, 5], [32767, -32768, 5]),
        ("i64", "i32", "truncwithoverflow", [2**32 + 5, -1], [5, -1]),
        ("i32", "f32", "rint", [2**24 + 1, 7], [2.0**24, 7.0]),
        ("i8", "i32", "rint", [-1, 5], [-1, 5]),
        ("f32", "f32", "floor", [1.5, -1.5], [1.0, -2.0]),
    ],
)
def test_casts(source, target, mode, values, want):
    kinds = {
        "f32": np.float32,
        "f16": np.float16,
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
    }
    with np.errstate(all="ignore"):
        got = cast_values(source, target, mode, True, OP)(np.array(values, kinds[source]))
    assert got.dtype == kinds[target]
    assert got.tolist() == want


def test_a_byte_cast_as_unsigned_is_not_negative():
    assert cast_values("i8", "f16", "rint", False, OP)(np.array([-1], np.int8)).tolist() == [255.0]


def test_an_unknown_rounding_mode_is_refused():
    with pytest.raises(Fault, match="rounding odd"):
        cast_values("f32", "i32", "odd", True, OP)


def test_an_unknown_atomic_is_refused():
    with pytest.raises(Fault, match="atomic nand"):
        atomic_values("nand", np.zeros(1), np.zeros(1), OP)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=70), st.sampled_from(["sum", "max", "min"]))
@settings(deadline=None)
def test_float_reductions_by_halving_are_exact_on_small_integers(values, kind):
    x = np.array(values, np.float32)
    want = {"sum": sum, "max": max, "min": min}[kind](values)
    assert reduce_values(kind, (0,), x).tolist() == [want]
    both = np.stack([x, x])
    assert reduce_values(kind, (1,), both).tolist() == [[want], [want]]


# ---- time


def copy_through_ub(n: int, waits: bool = True) -> str:
    """Load n floats, wait, store them: the smallest program with two pipes."""
    gm, ub = GM.format("f32"), f"memref<{n}xf32, #hivm.address_space<ub>>"
    tile = f"memref<{n}xf32, strided<[1]>, #hivm.address_space<gm>>"
    cast = (
        f"<{{static_offsets = array<i64: 0>, static_sizes = array<i64: {n}>, static_strides = array<i64: 1>}}> "
        f": ({gm}) -> {tile}"
    )
    flag = (
        "<{set_pipe = #hivm.pipe<PIPE_MTE2>, static_event_id = #hivm.event<EVENT_ID0>, "
        "wait_pipe = #hivm.pipe<PIPE_MTE3>}> : () -> ()"
    )
    lines = [
        '%a = "arith.constant"() <{value = 0 : i64}> : () -> i64',
        f'%x = "memref.reinterpret_cast"(%arg0) {cast}',
        f'%y = "memref.reinterpret_cast"(%arg1) {cast}',
        f'%u = "hivm.hir.pointer_cast"(%a) : (i64) -> {ub}',
        f'"hivm.hir.load"(%x, %u) : ({tile}, {ub}) -> ()',
        *([f'"hivm.hir.set_flag"() {flag}', f'"hivm.hir.wait_flag"() {flag}'] if waits else []),
        f'"hivm.hir.store"(%u, %y) : ({ub}, {tile}) -> ()',
        '"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()',
    ]
    return module(f"{gm}; {gm}", "\n".join(lines))


def test_time_of_a_copy_is_the_sum_of_its_parts():
    """issue, load, wait, store, barrier: by hand from the constants, on one core."""
    n = 2048
    c = load_costs().table()
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    done = simulate_text(copy_through_ub(n), 1, [x, y])
    assert np.array_equal(x, y)
    load = (
        2 * c["scalar.address"] + c["scalar.issue"] + np.ceil(4 * n / c["dma.load_rate"]) + c["dma.load_latency"]
    )
    store = np.ceil(4 * n / c["dma.store_rate"]) + c["dma.store_latency"]
    assert done.cycles == load + store
    assert done.busy["MTE2"] == np.ceil(4 * n / c["dma.load_rate"])
    assert done.bound_cycles == np.ceil(8 * n / (c["target.memory_bandwidth"] / c["target.clock"]))


def test_a_copy_that_does_not_wait_is_faster_and_wrong():
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    done = simulate_text(copy_through_ub(64, waits=False), 1, [x, y])
    assert [f.kind for f in done.findings] == ["missing wait"]
    assert "MTE3 did not wait for MTE2" in done.findings[0].message
    assert done.cycles < simulate_text(copy_through_ub(64), 1, [x, y]).cycles


def flags(*pipes: str) -> list[str]:
    """A flag from the first of two pipes to the second, set and waited for."""
    of = f"<{{set_pipe = #hivm.pipe<PIPE_{pipes[0]}>, static_event_id = #hivm.event<EVENT_ID0>, "
    return [f'"hivm.hir.{verb}"() {of}wait_pipe = #hivm.pipe<PIPE_{pipes[1]}>}}> : () -> ()'
            for verb in ("set_flag", "wait_flag")]  # fmt: skip


@pytest.mark.parametrize(
    ("back", "kinds"),
    [(flags("V", "S"), []), (flags("V", "MTE2"), ["missing wait"]), ([], ["missing wait"])],
)
def test_a_scalar_write_is_over_where_a_flag_of_a_pipe_that_waited_for_it_came_back(back, kinds):
    """The scalar pipe writes, V waits for that, the scalar pipe for V: what it then hands over is after both."""
    gm, ub = GM.format("f32"), "memref<1xf32, #hivm.address_space<ub>>"
    tile = "memref<1xf32, strided<[1]>, #hivm.address_space<gm>>"
    of = "<{static_offsets = array<i64: 0>, static_sizes = array<i64: 1>, static_strides = array<i64: 1>}>"
    lines = [
        '%a = "arith.constant"() <{value = 0 : i64}> : () -> i64',
        '%b = "arith.constant"() <{value = 32 : i64}> : () -> i64',
        '%i = "arith.constant"() <{value = 0 : index}> : () -> index',
        '%v = "arith.constant"() <{value = 2.5 : f32}> : () -> f32',
        f'%y = "memref.reinterpret_cast"(%arg1) {of} : ({gm}) -> {tile}',
        f'%u = "hivm.hir.pointer_cast"(%a) : (i64) -> {ub}',
        f'%w = "hivm.hir.pointer_cast"(%b) : (i64) -> {ub}',
        f'"memref.store"(%v, %u, %i) : (f32, {ub}, index) -> ()',
        *flags("S", "V"),
        f'"hivm.hir.vbrc"(%v, %w) <{{broadcast_dims = array<i64>}}> : (f32, {ub}) -> ()',
        *back,
        f'"hivm.hir.store"(%u, %y) : ({ub}, {tile}) -> ()',
        '"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_ALL>}> : () -> ()',
    ]
    y = np.zeros(1, np.float32)
    done = simulate_text(module(f"{gm}; {gm}", "\n".join(lines)), 1, [np.zeros(1, np.float32), y])
    assert y[0] == 2.5
    assert [f.kind for f in done.findings] == kinds
    assert all("MTE3 did not wait for S" in f.message for f in done.findings)


def test_the_cores_share_the_bandwidth_of_the_memory():
    """48 cores that copy at once are each slower than one alone."""
    x, y = np.zeros(2048, np.float32), np.zeros(2048, np.float32)
    one = simulate_text(copy_through_ub(2048), 1, [x, y])
    many = simulate_text(copy_through_ub(2048), 48, [x, y])
    assert many.program_cycles[0] > one.program_cycles[0]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 48), st.integers(0, 200))
@settings(deadline=None)
def test_programs_queue_for_cores(cycles, cores, interval):
    total = schedule(cycles, cores, interval)
    assert total >= max(max(cycles), -(-sum(cycles) // cores), (len(cycles) - 1) * interval + cycles[-1])
    assert total <= sum(cycles) + len(cycles) * interval
    assert schedule(cycles, 1, 0) == sum(cycles)
    assert schedule(cycles, len(cycles), 0) == max(cycles)


def test_a_trace_has_every_op_and_the_critical_path_every_cycle():
    x, y = np.zeros(2048, np.float32), np.zeros(2048, np.float32)
    done = simulate_text(copy_through_ub(2048), 3, [x, y], trace=True)
    rows = json.loads(json.dumps(done.trace))["traceEvents"]
    names = [row["name"] for row in rows if row["ph"] == "X"]
    assert names.count("load") == names.count("store") == 3
    assert {row["args"]["name"] for row in rows if row["name"] == "thread_name"} == {"S", "V", "MTE2", "MTE3"}
    assert sum(done.critical_path.values()) == max(done.program_cycles)
    assert done.critical_path["MTE2"] > done.critical_path["S"]
    assert done.cycles == simulate_text(copy_through_ub(2048), 3, [x, y]).cycles


# ---- constants and metrics


def test_every_constant_has_a_source_or_is_called_a_guess():
    costs = load_costs()
    assert {c.key for c in costs.constants if c.guess} >= {"scalar.gm_miss", "scalar.flag", "program.dispatch"}
    assert all(c.unit for c in costs.constants)
    assert costs.table()["target.vector_cores"] == 48


def test_a_changed_constant_is_another_model():
    costs = load_costs()
    assert costs.scaled("dma.load_rate", 2).version != costs.version
    assert costs.scaled("dma.load_rate", 1).version == costs.version
    with pytest.raises(KeyError, match="no constant"):
        costs.scaled("dma.nothing", 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[a]\nb = { value = 1, unit = "x" }\n', "a.b needs either a source or guess"),
        ('[a]\nb = { value = 1, unit = "x", source = "S", guess = true }\n', "a.b needs either"),
        ("[a]\nb = 3\n", "a.b must be a table"),
    ],
)
def test_a_table_without_sources_is_refused(tmp_path: Path, text, words):
    file = tmp_path / "costs.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_costs(file)


def test_launches_of_one_op_add_up_but_buffers_do_not():
    counts = dict.fromkeys((name for name in METRICS if name != "cycles"), 2)
    one = Simulation("ok", counts=counts, cycles=10)
    both = combined([one, Simulation("ok", counts={**counts, "ub_bytes": 9}, cycles=5)])
    assert both["cycles"] == 15
    assert both["dma_in"] == 4
    assert both["ub_bytes"] == 9
    with pytest.raises(ValueError, match="deadlock"):
        combined([Simulation("deadlock", counts=counts)])


def test_sensitivity_names_the_constant_that_turns_an_ordering_round():
    def times(costs):
        table = costs.table()
        return {"misses": int(2 * table["scalar.gm_miss"]), "copies": int(3 * table["dma.store_latency"] + 500)}

    found = flips(times)
    assert found == [Flip("scalar.gm_miss", 2.0, "misses", "copies")]
    kept = survival(times, draws=40)
    assert 0 < kept["misses", "copies"] < 40
    assert survival(times, draws=40) == kept
