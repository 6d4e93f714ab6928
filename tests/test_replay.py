"""Programs that repeat a path are not timed again: the result must be the one of timing every program."""

import functools
import importlib
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_model import compile_kernel, replay, simulate_text
from ascend_model.codegen import Generator
from ascend_model.memory import Global
from tests import model_kernels as kernels
from tests.model_cases import ASSIGN, CASES, tensor
from tests.model_faults import removed_barriers, removed_flags

pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Small launches record, too; the list counts the programs that repeated a path."""
    monkeypatch.setattr(replay, "LEAST", 0)
    repeated = []
    whole = replay.Paths.repeat

    def counting(self, *arguments):
        record = whole(self, *arguments)
        repeated.append(record is not None)
        return record

    monkeypatch.setattr(replay.Paths, "repeat", counting)
    return repeated


def both(text, grid, args, **options):
    """The launch with and without replay, and the bytes that each left in its arguments."""
    results = []
    for on in (True, False):
        own = [a.clone() if hasattr(a, "clone") else a.copy() if hasattr(a, "copy") else a for a in args]
        done = simulate_text(text, grid, own, replay=on, **options)
        left = [np.asarray(a.view(-1).view(_bytes()) if hasattr(a, "clone") else a).tobytes() for a in own]
        results.append((done, left))
    return results


@functools.cache
def _bytes():
    import torch

    return torch.uint8


def same(text, grid, args, **options):
    """Assert that replay changes nothing; the result."""
    (one, left), (two, right) = both(text, grid, args, **options)
    one.outputs.clear()
    two.outputs.clear()
    assert one == two
    assert left == right
    return one


def taken(case, seed=1):
    launch = case.launch(np.random.default_rng(seed))
    args = {name: tensor(value, case.types.get(name)) for name, value in launch.args.items()}
    code = compile_kernel(case.kernel, args, case.constants)
    assert code.status == "ok", code.message
    return code.generic, launch.grid, [args[name] for name in code.arguments]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_kernel(case):
    same(*taken(case), keep_numbers=True)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_program_traced_alone_is_as_in_the_trace_of_all(case):
    text, grid, args = taken(case)
    fresh = lambda: [a.clone() if hasattr(a, "clone") else a for a in args]  # noqa: E731
    every = simulate_text(text, grid, fresh(), trace=True, keep_numbers=True)
    programs = len(every.program_cycles)
    for only in sorted({0, programs // 2, programs - 1}):
        alone = simulate_text(text, grid, fresh(), trace=True, keep_numbers=True, only=only)
        rows = [row for row in every.trace["traceEvents"] if row["pid"] == only]
        assert rows and alone.trace == {**every.trace, "traceEvents": rows}
        assert alone.program_cycles == every.program_cycles[: only + 1]


def test_only_a_program_of_the_launch_is_traced_alone():
    text, grid, args = taken(next(c for c in CASES if c.name == "add_many"))
    for trace, only in ((True, 10**6), (True, -1), (False, 0)):
        with pytest.raises(ValueError, match=f"only={only} names one of"):
            simulate_text(text, grid, args, trace=trace, only=only)


@pytest.mark.parametrize("name", ["add_many", "row_gather", "softmax", "dot_rows", "atomic_sum"])
def test_programs_on_one_path_repeat(name, always):
    text, grid, args = taken(next(c for c in CASES if c.name == name))
    simulate_text(text, grid, args)
    assert sum(always) >= 1


@pytest.mark.parametrize("bound", ["LONGEST", "LARGEST"])
def test_paths_that_would_take_much_memory_are_not_kept(bound, always, monkeypatch):
    monkeypatch.setattr(replay, bound, 1)
    same(*taken(next(c for c in CASES if c.name == "add_many")))
    assert not any(always)


@pytest.mark.parametrize("name", ["softmax", "row_gather", "masked_gather"])
def test_every_planted_fault_is_reported_alike(name):
    text, grid, args = taken(next(c for c in CASES if c.name == name))
    for fault in [*removed_flags(text), *removed_barriers(text)]:
        same(fault.text, grid, args, keep_numbers=True)


QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@functools.cache
def gather_code():
    x = np.zeros((9, 40), np.float32)
    index = np.zeros(40, np.int32)
    code = compile_kernel(kernels.row_gather, {"x": x, "index": index, "out": x.copy(), "cols": 40}, {"BLOCK": 64})
    assert code.status == "ok", code.message
    return code.generic


@QUICK
@given(st.lists(st.integers(-3, 60), min_size=40, max_size=40), st.integers(1, 64))
def test_indices_that_leave_the_row(index, cols):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, cols)).astype(np.float32)
    args = [x, np.array(index, np.int32), np.zeros_like(x), cols]
    same(gather_code(), 9, args, keep_numbers=True)


@functools.cache
def scatter_code():
    x = np.zeros((9, 64), np.float32)
    index = np.zeros(9, np.int32)
    code = compile_kernel(
        kernels.row_scatter, {"x": x, "index": index, "out": x.copy(), "cols": 64}, {"BLOCK": 64}
    )
    assert code.status == "ok", code.message
    return code.generic


def scattered(index):
    x = np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)
    return same(scatter_code(), 9, [x, np.array(index, np.int32), np.zeros_like(x), 64])


@QUICK
@given(st.lists(st.integers(0, 8), min_size=9, max_size=9))
def test_rows_that_several_programs_store(index):
    raced = any(one.kind == "write-write race" for one in scattered(index).findings)
    assert raced == (len(set(index)) < 9)


def test_a_race_with_a_program_that_repeated_a_path(always):
    assert [one.kind for one in scattered([0, 1, 2, 3, 4, 5, 6, 7, 6]).findings] == ["write-write race"]
    assert always[5], "the program that stored row 6 first was not executed in full"


@functools.cache
def assign_code(name):
    kernel, args = getattr(kernels, name), pool_arguments([0] * 6, [1] * 6, list(range(6)))
    code = compile_kernel(kernel, args, {"UPPER": 64, "BLOCK": 128})
    assert code.status == "ok", code.message
    return code.generic, code.arguments


def pool_arguments(start, length, rows):
    start, length = np.array(start, np.int32), np.array(length, np.int32)
    return {
        "rows": np.array(rows, np.int32),
        "pool": np.full((8, 600), -1, np.int32),
        "start": start,
        "end": start + length,
        "source": np.arange(int(length.sum()), dtype=np.int32),
        "pool_len": 600,
    }


@pytest.mark.parametrize("name", [f"assign_{pattern}" for pattern in ASSIGN])
@QUICK
@given(
    st.lists(st.integers(0, 200), min_size=6, max_size=6),
    st.lists(st.sampled_from([0, 1, 100, 128, 300]), min_size=6, max_size=6),
    st.lists(st.integers(0, 7), min_size=6, max_size=6),
)
def test_ragged_requests_that_may_share_a_row(name, start, length, rows):
    """Equal lengths repeat a path, others do not, and two requests of one row disturb each other."""
    text, names = assign_code(name)
    args = pool_arguments(start, length, rows)
    same(text, 6, [args[n] for n in names], keep_numbers=True)


def test_a_program_that_leaves_the_buffer_among_others_that_do_not():
    text, names = assign_code("assign_derived")
    args = pool_arguments([0] * 6, [128] * 6, list(range(6)))
    args["rows"][4] = 70
    done = same(text, 6, [args[n] for n in names])
    assert done.status == "out of bounds"
    assert "program 4" in done.message


def test_the_comparison_bites(monkeypatch):
    """Without the decisions, a program of another length is taken for a repetition."""
    monkeypatch.setattr(Generator, "decide", lambda self, *exprs: None)
    bites(monkeypatch)


def test_settled_numbers_are_told_from_others(monkeypatch):
    """A program whose branches are all taken for settled is taken for a repetition."""
    monkeypatch.setattr(Generator, "is_settled", lambda self, expr: True)
    bites(monkeypatch)


def bites(monkeypatch):
    monkeypatch.setattr(importlib.import_module("ascend_model.simulate"), "_CACHE", OrderedDict())
    text, names = assign_code("assign_derived")
    args = pool_arguments([0] * 6, [300, 300, 300, 128, 1, 0], list(range(6)))
    with pytest.raises(AssertionError):
        same(text, 6, [args[n] for n in names])


@functools.cache
def unordered_scatter():
    """Two stores a program, to rows that the data name, without the barrier between them."""
    x, index = np.zeros((12, 64), np.float32), np.zeros(12, np.int32)
    args = {"x": x, "index": index, "out": x.copy(), "cols": 64}
    code = compile_kernel(kernels.two_rows_scatter, args, {"BLOCK": 64})
    assert code.status == "ok", code.message
    return [one.text for one in removed_barriers(code.generic) if "PIPE_MTE3" in one.what]


def missing_waits(text, index):
    x = np.random.default_rng(0).normal(size=(12, 64)).astype(np.float32)
    found = same(text, 6, [x, np.array(index, np.int32), np.zeros_like(x), 64]).findings
    return [one.program for one in found if one.kind == "missing wait"]


def test_stores_that_meet_only_in_a_program_that_repeats_a_path(always):
    texts = unordered_scatter()
    apart, meeting = list(range(12)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 10, 11]
    assert [missing_waits(text, apart) for text in texts] == [[]] * len(texts)
    assert always[-1], "no path was repeated"
    assert [4] in [missing_waits(text, meeting) for text in texts]


def test_an_order_that_depends_on_places_is_judged_anew(monkeypatch):
    """Taken for ordered wherever they lie, stores that meet in a later program go unseen."""
    monkeypatch.setattr(Global, "placed", property(lambda self: False, lambda self, value: None), raising=False)
    meeting = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 10, 11]
    with pytest.raises(AssertionError):
        for text in unordered_scatter():
            missing_waits(text, meeting)
