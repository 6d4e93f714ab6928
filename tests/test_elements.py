"""Loops over elements that are done at once: the result must be the one of going element by element."""

import functools
import importlib
import re
from collections import OrderedDict
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_model import compile_kernel, elements, memory, simulate_text, steady
from tests import model_kernels as kernels
from tests.model_cases import BY_NAME, tensor
from tests.model_faults import moved_buffers, removed_barriers, removed_flags

pytestmark = pytest.mark.compiler

LOOPS = (
    "int_math_i64",
    "compare_i64",
    "slots",
    "slots_i64",
    "assign_where",
    "assign_or_offset",
    "assign_derived_i64",
)
NEVER = 1 << 62
simulate = importlib.import_module("ascend_model.simulate")


@contextmanager
def least(iterations):
    """Loops of more iterations are done at once; no code made with another bound is taken."""
    before, cache = elements.LEAST, simulate._CACHE
    elements.LEAST, simulate._CACHE = iterations, OrderedDict()
    try:
        yield
    finally:
        elements.LEAST, simulate._CACHE = before, cache


def same(text, grid, args, **options):
    """Assert that doing loops at once changes nothing; the result."""
    results = []
    for iterations in (1, NEVER):
        own = [a.clone() if hasattr(a, "clone") else a.copy() if hasattr(a, "copy") else a for a in args]
        with least(iterations):
            done = simulate_text(text, grid, own, **options)
        done.outputs.clear()
        results.append((done, [np.asarray(a).tobytes() for a in own]))
    assert results[0] == results[1]
    return results[0][0]


@functools.cache
def compiled(name):
    case = BY_NAME[name]
    launch = case.launch(np.random.default_rng(1))
    args = {key: tensor(value, case.types.get(key)) for key, value in launch.args.items()}
    code = compile_kernel(case.kernel, args, case.constants)
    assert code.status == "ok", code.message
    return code.generic, launch.grid, [args[key] for key in code.arguments]


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_kernels_with_such_loops(name, replay, monkeypatch):
    done = []
    code = elements.Elements.code
    monkeypatch.setattr(elements.Elements, "code", lambda self: done.append(code(self)) or done[-1])
    same(*compiled(name), replay=replay, keep_numbers=True)
    assert done, "no loop of this kernel can be done at once"


@pytest.mark.parametrize("name", ["compare_i64", "slots_i64", "assign_where"])
def test_planted_faults_are_reported_alike(name):
    """A missing flag or barrier, and a buffer that lies on another one or on bytes nothing wrote."""
    text, grid, args = compiled(name)
    faults = [*removed_flags(text), *removed_barriers(text)]
    faults += [fault for by in (-8, 8, 4096) for fault in moved_buffers(text, by)]
    kinds = set()
    for fault in faults:
        done = same(fault.text, grid, args, keep_numbers=True)
        kinds |= {one.kind for one in done.findings} | {done.status}
    assert {"missing wait", "deadlock", "overlapping buffers"} <= kinds


SCATTERS = ("assign_where", "assign_or_offset", "assign_modulo")
"""Kernels that store each element by a copy of its own."""


@pytest.fixture
def repeated(monkeypatch):
    """Periods that were done at once, a number a loop."""
    done = []
    repeat = steady.repeat

    def counting(machine, before, now, roots, times):
        later = repeat(machine, before, now, roots, times)
        done.append(0 if later is None else times)
        return later

    monkeypatch.setattr(steady, "repeat", counting)
    return done


@functools.cache
def scatter(name):
    arguments = requests([0] * 6, [1] * 6, list(range(6)))
    code = compile_kernel(getattr(kernels, name), arguments, {"UPPER": 64, "BLOCK": 128})
    assert code.status == "ok", code.message
    return code.generic, code.arguments


def requests(start, length, rows, room=600):
    start, length = np.array(start, np.int32), np.array(length, np.int32)
    return {
        "rows": np.array(rows, np.int32),
        "pool": np.full((8, room), -1, np.int32),
        "start": start,
        "end": start + length,
        "source": np.arange(int(length.sum()), dtype=np.int32),
        "pool_len": room,
    }


def scattered(text, names, arguments, replay=False):
    return same(text, len(arguments["rows"]), [arguments[n] for n in names], replay=replay, keep_numbers=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["assign_where", "assign_modulo"])
def test_planted_faults_in_loops_with_a_copy_an_element(name, repeated):
    text, names = scatter(name)
    arguments = requests([3, 0, 7], [128, 300, 100], [2, 0, 1])
    kinds = set()
    for fault in [*removed_flags(text), *removed_barriers(text), *moved_buffers(text, 8)]:
        done = scattered(fault.text, names, arguments)
        kinds |= {one.kind for one in done.findings} | {done.status}
    assert {"missing wait", "deadlock"} <= kinds
    assert any(repeated)


@pytest.mark.parametrize("name", SCATTERS)
def test_a_copy_an_element_is_done_at_once(name, repeated):
    text, names = scatter(name)
    scattered(text, names, requests([3] * 8, range(200, 208), range(8)))
    assert max(repeated) > 40


@pytest.mark.parametrize("name", SCATTERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(-5, 500), min_size=5, max_size=5),
    st.lists(st.sampled_from([0, 1, 17, 33, 100, 128, 130, 300]), min_size=5, max_size=5),
    st.lists(st.integers(0, 8), min_size=5, max_size=5),
    st.booleans(),
)
def test_elements_that_leave_the_pool_or_belong_to_another_program(name, start, length, rows, replay):
    text, names = scatter(name)
    scattered(text, names, requests(start, length, rows), replay)


def test_two_elements_of_one_place(repeated):
    """A remainder smaller than the span: places come again, and the last store stays."""
    text, names = scatter("assign_modulo")
    done = scattered(text, names, requests([0] * 3, [128] * 3, [0, 2, 4]) | {"pool_len": 50})
    assert done.status == "ok" and not any(repeated)


def test_numbers_that_grow_and_numbers_that_stay():
    assert steady.growth([5, 4, 1], [7, 6, 1]) == 2
    assert steady.growth([5, 1, memory.ALWAYS], [7, 1, memory.ALWAYS]) == 2
    assert steady.growth([5, 5], [5, 5]) == 0
    assert steady.growth([5, 4], [7, 7]) is None
    assert steady.growth([5, 5], [7, 5]) is None, "the first overtakes the second"
    assert steady.growth([5, 9], [7, 9]) is None, "the first will overtake the second"
    assert steady.growth([5, 4], [5, 6]) is None


@pytest.mark.parametrize("what", ["free", "done", "seq", "clock", "atom", "flag"])
def test_a_state_that_differs_is_no_repetition(what, repeated, monkeypatch):
    """Each part of the machine's state is looked at."""
    state, states = steady.state, []

    def disturbed(machine, ts, roots):
        states.append(ts)
        by = 1000 * len(states) ** 2
        time, queue = machine.time, next(q for q in machine.flags.values() if q)
        part = {
            "free": time.free, "done": time.done, "seq": machine.seq, "clock": machine.clock[2],
            "atom": machine.atoms[0].w, "flag": queue[0][1],
        }[what]  # fmt: skip
        part[3] += by
        found = state(machine, ts, roots)
        part[3] -= by
        return found

    monkeypatch.setattr(steady, "state", disturbed)
    text, names = scatter("assign_modulo")
    scattered(text, names, requests([3], [128], [0]))
    assert states and not any(repeated)


QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
EDGES = [0, 1, -1, 15, 16, 17, -16, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)]
I64 = st.one_of(st.sampled_from(EDGES), st.integers(-(2**63), 2**63 - 1))
SIZE = 100


@functools.cache
def int_math():
    x = np.ones(SIZE, np.int64)
    code = compile_kernel(kernels.int_math, {"x": x, "y": x.copy(), "out": x.copy(), "n": SIZE}, {"BLOCK": 64})
    assert code.status == "ok", code.message
    return code.generic


@QUICK
@given(st.lists(I64, min_size=SIZE, max_size=SIZE), st.lists(I64, min_size=SIZE, max_size=SIZE))
def test_numbers_that_wrap(x, y):
    x, y = np.array(x, np.int64), np.array([b or 1 for b in y], np.int64)
    same(int_math(), 2, [x, y, np.zeros_like(x), SIZE])


@functools.cache
def slots():
    text, _, args = compiled("slots_i64")
    return text, [a.numpy() if hasattr(a, "numpy") else a for a in args]


@QUICK
@given(st.data())
def test_places_that_leave_the_tensor(data):
    """Negative positions and such beyond the table: the first one outside is the one that is named."""
    text, args = slots()
    positions = args[0]
    drawn = data.draw(st.lists(st.integers(-20, 4000), min_size=positions.size, max_size=positions.size))
    same(text, 3, [np.array(drawn, positions.dtype), *args[1:]], keep_numbers=True)


@pytest.mark.parametrize("name", ["slots", "assign_where"])
def test_places_outside_are_found(name):
    text, grid, args = compiled(name)
    args = [a.numpy()[:1].copy() if i and hasattr(a, "numpy") else a for i, a in enumerate(args)]
    done = same(text, grid, args, keep_numbers=True)
    assert done.status == "out of bounds"


def in_the_remainder(text, edit, *constants):
    """The text with one edit of the lines of its loop that takes a remainder in place, and constants of type index
    before everything."""
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if "arith.remsi" in line and "memref.load" in lines[i - 1])
    body = edit("\n".join(lines[at - 3 : at + 2]))
    first = next(i for i, line in enumerate(lines) if "^bb0(%arg0" in line)
    made = [f'    {name} = "arith.constant"() <{{value = {n} : index}}> : () -> index' for name, n in constants]
    return "\n".join([*lines[: first + 1], *made, *lines[first + 1 : at - 3], body, *lines[at + 2 :]])


def test_a_loop_that_reads_what_it_wrote_an_iteration_before():
    text, grid, args = compiled("slots")

    def edit(body):
        index = re.search(r"memref\.load\"\(%\w+, (%arg\d+)\)", body)[1]
        lines = body.split("\n")
        lines[0] = re.sub(r'for"\(%\w+,', 'for"(%one,', lines[0])
        lines[2] = lines[2].replace(f", {index})", ", %before)")
        lines.insert(2, f'%before = "arith.addi"({index}, %less) : (index, index) -> index')
        return "\n".join(lines)

    assert same(in_the_remainder(text, edit, ("%less", -1), ("%one", 1)), grid, args).status == "ok"


def test_a_loop_that_leaves_its_buffer():
    text, grid, args = compiled("slots")

    def edit(body):
        return re.sub(r'"scf\.for"\((%\w+), %\w+,', r'"scf.for"(\1, %longer,', body)

    done = same(in_the_remainder(text, edit, ("%longer", 260)), grid, args, keep_numbers=True)
    assert [one.count for one in done.findings if one.kind == "out of bounds write"] == [3, 3, 3, 3]


@pytest.mark.parametrize("name", ["addi", "subi", "muli", "divsi", "andi", "ori", "xori", "maxsi", "minsi"])
def test_arithmetic_on_32_bits(name):
    """Its result, and the quotient of that, which tells what was not wrapped."""
    text, grid, args = compiled("slots")
    rng = np.random.default_rng(3)
    wide = rng.integers(-(2**31), 2**31, args[0].shape, dtype=np.int64).astype(np.int32)

    def before_it(body):
        lines = body.split("\n")
        lines.insert(3, re.sub(r"%\w+ = .arith.remsi", f'%first = "arith.{name}', lines[3]))
        lines[4] = re.sub(r"remsi\"\(%\w+, ", 'divsi"(%first, ', lines[4])
        return "\n".join(lines)

    for edit in (lambda body: body.replace("arith.remsi", f"arith.{name}"), before_it):
        for positions in (wide, args[0]):
            same(in_the_remainder(text, edit), grid, [positions, *args[1:]], keep_numbers=True)


LINES = st.lists(st.integers(0, 40), min_size=1, max_size=80)


@given(LINES, LINES)
def test_misses_are_those_of_one_load_after_the_other(first, then):
    root = type("Root", (), {"line0": 1 << 40})()
    tags, expected = [0] * 8, [0] * 8
    for lines in (first, then):
        missed = 0
        for line in (root.line0 + x for x in lines):
            missed += expected[line % 8] != line
            expected[line % 8] = line
        assert elements.misses(tags, root, "i32", np.array(lines, np.int64) * 16) == missed
        assert tags == expected
