"""Times of calls on devices that are not there: one that pretends (`harness.dry`), and a fake torch_npu.

Their clocks are moved by hand, so every time has one right value.
"""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ascend_kernels.harness import device, dry, profiler, suite, timing
from ascend_kernels.harness.spec import CRASHED, OK, UNSUPPORTED
from ascend_kernels.registry import OPS

OP = OPS["assign_draft_cache_locs"]


@pytest.fixture
def pretend(monkeypatch):
    """A pretended device of this test's own."""
    made = dry.Pretend()
    monkeypatch.setattr(dry, "DEVICE", made)
    monkeypatch.setenv("ASCEND_KERNELS_DEVICE", "dry")
    return made


def taking(us, pretend):
    def call(**_):
        pretend.spend(us)

    return call


def test_a_call_takes_what_the_clock_says(pretend):
    found = timing.measure({"a": taking(10.0, pretend), "b": taking(30.0, pretend)}, {}, "dry", rounds=4)
    # The event that ends a region is part of it.
    for name, us in (("a", 10.0), ("b", 30.0)):
        one = found[name]
        assert one.number == pytest.approx(timing.SAMPLE_US / us, rel=0.1)
        assert one.warm == pytest.approx([us + dry.EVENT_US / one.number] * 4)
        assert len(one.cold) == len(one.host) == 4 and one.by_graph and one.kernel == ()


def test_a_clock_that_drifts_moves_all_calls_alike(pretend):
    pretend.pace = lambda now: 1 + now / 4e4
    found = timing.measure({"a": taking(20.0, pretend), "b": taking(20.0, pretend)}, {}, "dry", rounds=20)
    assert found["a"].warm[-1] > 1.5 * found["a"].warm[0]
    # One after the other they would differ by half of that.
    assert found["a"].median() == pytest.approx(found["b"].median(), rel=0.05)


def test_a_compilation_inside_a_timed_region_is_refused(pretend, monkeypatch):
    compiled = iter(range(100))
    monkeypatch.setattr(timing, "compile_count", lambda: next(compiled))
    with pytest.raises(timing.TimingError, match="compiled inside a timed region"):
        timing.measure({"a": taking(10.0, pretend)}, {}, "dry", rounds=2)


def test_a_driver_without_events_is_told_apart(pretend):
    pretend.events = False
    with pytest.raises(timing.TimingError, match=r"no timing events.*update the driver"):
        timing.measure({"a": taking(10.0, pretend)}, {}, "dry")


def test_inputs_keep_strides_and_are_copied(pretend):
    base = torch.arange(40)
    given = {"x": base.as_strided((3, 4), (10, 1), 2)}
    seen = []

    def call(x):
        seen.append(x)
        pretend.spend(100)

    timing.measure({"a": call}, given, "dry", rounds=1)
    assert all(x.stride() == (10, 1) and torch.equal(x, given["x"]) for x in seen)
    assert base.data_ptr() not in {x.untyped_storage().data_ptr() for x in seen}
    assert len({x.data_ptr() for x in seen}) >= 2  # cold goes through several sets
    assert len({x.data_ptr() for x in seen[:2]}) == 1  # compiled on the warm set


@pytest.fixture
def order(pretend, monkeypatch):
    """What happens on the pretended device: addresses that calls read, and "flush", which takes 70 us."""
    happened = []

    def flush():
        happened.append("flush")
        pretend.spend(70)

    monkeypatch.setattr(timing, "_flush", lambda *_: flush)
    return happened


def walks(order):
    """What was called between one flush and the next."""
    parts = [[]]
    for one in order:
        if one == "flush":
            parts.append([])
        else:
            parts[-1].append(one)
    return parts[1:]


def test_cold_calls_find_nothing_of_their_inputs_in_the_cache(pretend, order):
    def call(x):
        order.append(x.data_ptr())
        pretend.spend(100)

    found = timing.measure({"a": call}, {"x": torch.zeros(500)}, "dry", rounds=3)["a"]
    cold = walks(order)[-1][: found.number]  # behind it come calls for the host's time
    assert len(set(cold)) == found.number == 4
    assert found.cold == pytest.approx([100.0] * 3)  # without the flush


def test_a_walk_is_no_longer_than_a_sample_and_no_set_is_walked_twice(pretend, order):
    def call(x):
        order.append(x.data_ptr())
        pretend.spend(1.0)

    found = timing.measure({"a": call}, {"x": torch.zeros(500)}, "dry", rounds=1)["a"]
    cold = [walk for walk in walks(order) if walk]
    assert found.number > 3 * timing.MOST_SETS and len(cold) >= found.number / timing.MOST_SETS
    for walk in cold[:-1]:
        assert len(walk) == len(set(walk)) == timing.MOST_SETS
    assert found.cold == pytest.approx([1.0])


@pytest.mark.parametrize(("size", "sets"), [(0, 64), (1 << 20, 64), (100 << 20, 5), (400 << 20, 2), (3 << 30, 2)])
def test_as_many_input_sets_as_memory_is_set_aside_for(size, sets, monkeypatch):
    monkeypatch.setattr(timing, "MOST_BYTES", timing.MOST_BYTES >> 10)
    assert len(timing._input_sets({"x": torch.zeros(size >> 10, dtype=torch.uint8), "n": 3}, "cpu")) == sets
    assert len(timing._input_sets({"x": torch.zeros(size >> 10, dtype=torch.uint8)}, "cpu", most=1)) == 1


def test_what_is_overwritten_is_twice_the_cache(pretend, monkeypatch):
    facts = pretend.get_device_properties()
    facts.L2_cache_size = 10_000
    monkeypatch.setattr(pretend, "get_device_properties", lambda _=0: facts)
    written = timing._flush("dry", pretend)()
    assert written.nbytes == 20_000 and not written.any()


@pytest.mark.parametrize("how", ["no graphs", "capture fails"])
def test_without_a_graph_the_calls_queue_behind_a_backlog(pretend, monkeypatch, how):
    slept = []
    monkeypatch.setattr(pretend, "_sleep", slept.append, raising=False)
    if how == "no graphs":
        monkeypatch.setattr(pretend, "CUDAGraph", None, raising=False)
    else:

        def fails(_):
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(pretend, "graph", fails, raising=False)
    found = timing.measure({"a": taking(40.0, pretend)}, {}, "dry", rounds=3)["a"]
    assert not found.by_graph and found.warm == pytest.approx([40.0 + dry.EVENT_US / found.number] * 3)
    assert len(slept) >= 6  # a warm and a cold sample each round


def test_out_of_memory_while_capturing_is_not_taken_for_a_call_without_a_graph(pretend, monkeypatch):
    def fails(_):
        raise torch.OutOfMemoryError("by hand")

    monkeypatch.setattr(pretend, "graph", fails, raising=False)
    with pytest.raises(torch.OutOfMemoryError):
        timing.measure({"a": taking(40.0, pretend)}, {}, "dry", rounds=1)


def test_host_time_begins_with_the_device_idle_and_waits_for_nothing(pretend, monkeypatch):
    order = []
    monkeypatch.setattr(pretend, "synchronize", lambda: order.append("wait"), raising=False)
    ready = timing.prepare(lambda: order.append("call"), {}, "dry")
    order.clear()
    monkeypatch.setattr(ready._warm, "calls", lambda: None)
    ready.sample()
    assert order[-2:] == ["wait", "call"]


# ---- the suite on a device


@pytest.fixture
def results(pretend, tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("ASV_COMMIT", "a" * 40)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "states" / f"{'a' * 40}.jsonl"


def last_lines(place: Path) -> dict[tuple[str, str], dict]:
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    return {(line["case"], line["impl"]): line for line in lines}


def test_a_measured_case_carries_state_and_second_timing(results, pretend):
    found = suite.measure_all([OP])[suite.suite_name("Measured", OP)]
    assert {case for case, _ in found} == set(OP.quick_cases())
    for entry in found.values():
        assert entry["state"] == OK
        assert set(entry["values"]) == {"device_time", "device_time_cold", "host_time"}
        assert entry["values"]["device_time"]["samples"][0] == pytest.approx(dry.LAUNCH_US + dry.EVENT_US)
    lines = last_lines(results)
    assert set(lines) == set(found)
    for line in lines.values():
        assert line["state"] == OK and line["device"]["after"]["name"] == "dry run"
        assert line["device"]["marks"] == []
        assert line["again"]["device_time"] == 0.0 and line["again"]["host_time"] >= 0


def test_a_clock_that_steps_marks_the_run(results, pretend):
    begin = []

    def pace(now):
        begin.append(now)
        return 1.0 if now < 6 * dry.LAUNCH_US else 1.25

    pretend.pace = pace
    suite.measure_all([OP])
    line = last_lines(results)[OP.quick_cases()[0], "derived"]
    assert line["device"]["marks"] == ["clock 1000 -> 800 MHz"]


@pytest.fixture
def second(monkeypatch):
    """What to do to the device before the second processes are forked."""
    todo, calls, each = [], [], suite.isolated.each

    def watched(*jobs, **more):
        calls.append(1)
        if len(calls) == 2:
            for change in todo:
                change()
        return each(*jobs, **more)

    monkeypatch.setattr(suite.isolated, "each", watched)
    return todo


def test_two_processes_give_one_time_and_what_they_differ_by(results, pretend, second):
    # The pretended graph holds times at the pace of its capture and replays them at its own: 1.1 twice.
    second.append(lambda: setattr(pretend, "pace", lambda now: 1.1))
    found = suite.measure_all([OP])[suite.suite_name("Measured", OP)]
    one = dry.LAUNCH_US + dry.EVENT_US
    for entry in found.values():
        for metric in ("device_time", "device_time_cold"):
            assert entry["again"][metric] == pytest.approx(math.log(1.21), abs=0.01)
        assert entry["values"]["device_time"]["samples"] == pytest.approx([1.1 * one] * 2, rel=0.01)
        assert entry["device"]["marks"] == []
    first = OP.quick_cases()[0], "derived"
    assert last_lines(results)[first]["again"] == found[first]["again"]


def test_what_fails_in_its_second_process_has_no_number(results, pretend, second):
    second.append(lambda: setattr(pretend, "lost_at", 3))
    found = suite.measure_all([OP])[suite.suite_name("Measured", OP)]
    entries = [found[case, "derived"] for case in OP.quick_cases()]
    assert all(entry["state"] == CRASHED and "values" not in entry for entry in entries)
    assert entries[0]["reason"].startswith("in its second process: the device was lost")
    assert last_lines(results)[OP.quick_cases()[0], "derived"]["state"] == CRASHED


def test_out_of_memory_is_unsupported_and_the_rest_goes_on(results, pretend, second):
    second.append(lambda: setattr(pretend, "memory_at", None))
    pretend.memory_at = 6  # a launch of the timed part; the child of each process counts on
    found = suite.measure_all([OP])[suite.suite_name("Measured", OP)]
    first, *rest = OP.quick_cases()
    assert found[first, "derived"]["state"] == UNSUPPORTED
    assert "out of device memory" in found[first, "derived"]["reason"]
    assert "values" not in found[first, "derived"]
    assert rest and all(found[case, "derived"]["state"] == OK for case in rest)


@pytest.mark.parametrize("launch", [1, 7], ids=["in the verdict", "in the timing"])
def test_a_lost_device_costs_its_case_and_a_new_process_goes_on(results, pretend, launch, second):
    second.append(lambda: setattr(pretend, "lost_at", None))
    ops = [OP, OPS["fill_new_verified_id"]]
    pretend.lost_at = launch
    # What a new process finds: the fork copies the device as it was, so a fresh one has to be set up in it.
    original, tries = suite._measure_case, Path("tries")

    def once(op, case):
        if tries.exists():
            pretend.lost_at = None
        tries.write_text("")
        return original(op, case)

    suite._measure_case = once
    try:
        found = suite.measure_all(ops)
    finally:
        suite._measure_case = original
    flat = {(name, *key): entry for name, entries in found.items() for key, entry in entries.items()}
    bad = [key for key, entry in flat.items() if entry["state"] != OK]
    assert [key[1] for key in bad] == [OP.quick_cases()[0]]
    assert all("the device was lost" in flat[key]["reason"] and "values" not in flat[key] for key in bad)
    assert len(flat) > len(bad) + 3


def test_a_device_that_stays_lost_is_given_up_with_a_state_for_every_case(results, pretend):
    pretend.lost_at = 1
    found = suite.measure_all([OP, OPS["fill_new_verified_id"], OPS["select_top_k_tokens"]])
    entries = [entry for some in found.values() for entry in some.values()]
    assert len(entries) > 3 and {entry["state"] for entry in entries} == {CRASHED}
    reasons = [entry["reason"] for entry in entries]
    assert any("the device was lost" in reason for reason in reasons)
    assert any("not tried: 3 processes in a row" in reason for reason in reasons)
    assert all(line["state"] == CRASHED for line in last_lines(results).values())


def test_a_driver_without_events_gives_a_state_and_no_number(results, pretend):
    pretend.events = False
    found = suite.measure_all([OP])[suite.suite_name("Measured", OP)]
    assert {entry["state"] for entry in found.values()} == {CRASHED}
    assert all("no timing events" in entry["reason"] for entry in found.values())


def test_another_process_on_the_device_marks_the_run(results, pretend):
    from dataclasses import replace

    from ascend_kernels.harness.state import Process

    pretend.reading = replace(pretend.reading, others=(Process(4321, "train.py", 900),))
    suite.measure_all([OP])
    line = last_lines(results)[OP.quick_cases()[0], "derived"]
    assert line["device"]["marks"] == ["process 4321 (train.py) used the device too"]
    assert line["state"] == OK


def test_without_a_device_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("ASCEND_KERNELS_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASCEND_PERF_OPS", "nothing")
    assert suite.Family("token_pool", OPS).prepare() == {}
    assert not any(name.startswith("Measured") for name in suite.Family("token_pool", OPS).suites("bench"))


# ---- torch_npu


@pytest.fixture(scope="module")
def fake_npu():
    """The fake torch_npu, imported once: torch remembers the module of a kind of device."""
    sys.path.insert(0, str(Path(__file__).parent / "fakes"))
    try:
        fake = importlib.import_module("torch_npu")
        fake.profiler = importlib.import_module("torch_npu.profiler")
    finally:
        sys.path.pop(0)
    module = torch.npu
    del torch.npu
    yield fake, module
    for name in ("torch_npu", "torch_npu.profiler", "torch.npu"):
        sys.modules.pop(name, None)


@pytest.fixture
def npu(fake_npu, monkeypatch):
    fake, module = fake_npu
    monkeypatch.setattr(torch, "npu", module, raising=False)
    fake.SAID.clear()
    monkeypatch.setattr(device, "tensors", lambda kind: "cpu")
    monkeypatch.setenv("ASCEND_KERNELS_DEVICE", "npu")
    device._present.cache_clear()
    yield fake
    device._present.cache_clear()


def test_an_npu_says_its_vector_cores(npu):
    found = device.current()
    assert (found.kind, found.name, found.cores, found.ub_bytes) == ("npu", "Ascend910B1", 48, 196608)
    assert found.ascend and found.present


def test_an_npu_that_does_not_say_them_is_known_by_name(npu):
    npu.SAID["vector_core_num"] = 0
    assert device.current().cores == device.PROFILES["Ascend910B1"].cores


def test_events_graphs_and_profiler_of_an_npu(npu):
    def one(**_):
        npu.kernel("assign", 7.0)

    def two(**_):
        npu.kernel("Cast", 2.0)
        npu.kernel("ReduceSum", 3.0)  # a name that other tools take for the clearing of a cache

    found = timing.measure({"one": one, "two": two}, {}, "npu", rounds=3)
    assert found["one"].warm == pytest.approx([7.0] * 3) and found["one"].by_graph
    assert found["one"].kernel == pytest.approx([7.0] * timing.PROFILED) and found["one"].notes == ()
    assert found["two"].warm == pytest.approx([5.0] * 3)
    assert found["two"].kernel == pytest.approx([5.0] * timing.PROFILED)


@pytest.mark.parametrize(
    "how, words",
    [
        ("no table", "left 0 tables"),
        ("odd", "9 kernels for 10 calls"),
        ("missing", "no kernel for 10 calls"),
        ("columns", "no column Duration(us); it has Step Id, Name"),
    ],
)
def test_a_profiler_that_says_nothing_useful_costs_only_its_own_number(npu, how, words):
    npu.SAID["profiler"] = how
    found = timing.measure({"a": lambda: npu.kernel("a", 5.0)}, {}, "npu", rounds=2)["a"]
    assert found.kernel == () and words in found.notes[0]
    assert found.warm == pytest.approx([5.0] * 2)


@pytest.mark.parametrize(
    "kernels, times, expected",
    [
        ([("a", 1.0)] * 4, 4, (1.0,) * 4),
        ([("a", 1.0), ("b", 2.0)] * 3, 3, (3.0,) * 3),
        ([], 3, "no kernel"),
        ([("a", 1.0)] * 5, 3, "5 kernels for 3 calls"),
        ([("a", 1.0), ("b", 1.0)], 2, "different kernels: a, then b"),
    ],
)
def test_kernels_of_a_call(kernels, times, expected):
    if isinstance(expected, tuple):
        assert profiler.per_call(kernels, times) == expected
    else:
        with pytest.raises(profiler.ProfilerError, match=expected):
            profiler.per_call(kernels, times)


def test_the_time_of_the_profiler_is_a_metric_on_ascend_only(npu, monkeypatch):
    assert "kernel_time" in suite.measured_metrics()
    monkeypatch.setenv("ASCEND_KERNELS_DEVICE", "cuda")
    assert "kernel_time" not in suite.measured_metrics()


def test_kernels_made_are_counted_without_a_hook_that_writes_constants_as_json(tmp_path):
    """Triton's own hooks turn constants into JSON: with one set, a kernel that takes a function as a constant no
    longer compiles."""
    script = tmp_path / "count.py"
    script.write_text(COUNTED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["0", "1"], done.stderr


COUNTED = """
import triton
from triton.compiler import CompiledKernel
from ascend_kernels.harness import timing

print(timing.compile_count())
assert triton.JITFunction.compiled_hook is None and triton.JITFunction.cache_hook is None
try:
    CompiledKernel(None, {}, "")  # no metadata: it counts from the first line on
except StopIteration:
    pass
print(timing.compile_count())
"""
