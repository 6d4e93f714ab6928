"""The gate bites: wrong kernels and wrong wrappers of every kind fail it, right ones pass."""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import itertools

import pytest
import torch

from ascend_kernels.harness import gate
from ascend_kernels.harness.spec import (
    COMPILE_FAILED,
    CRASHED,
    OK,
    UNSUPPORTED,
    WRONG_RESULT,
    Case,
    CompileFailed,
    Fault,
    Op,
    PlanError,
    Twin,
    Unsupported,
    within,
)
from ascend_kernels.registry import OPS
from ascend_kernels.token_pool.spans import Copy
from ascend_model.outputs import steps_apart

ASSIGN = OPS["assign_req_to_token_pool"]
# The package's name of it is the function.
module = importlib.import_module("ascend_kernels.token_pool.assign_req_to_token_pool")

# What went wrong -> (text of the right kernel, what stands there instead).
WRONG_KERNELS = {
    "mask one too long": ("mask=offset < length", "mask=offset <= length"),
    "mask one too short": ("mask=offset < length", "mask=offset < length - 1"),
    "no mask on the store": (", slots, mask=offset < length", ", slots"),
    "tail block dropped": ("tl.cdiv(length, BLOCK)", "length // BLOCK"),
    "first block skipped": ("range(part,", "range(part + tl.num_programs(1),"),
    "blocks overlap": ("i * BLOCK +", "i * (BLOCK - 1) +"),
    "row of another request": ("tl.load(req_pool_indices + request)", "tl.load(req_pool_indices)"),
    "request number taken for its row": ("tl.load(req_pool_indices + request)", "request"),
    "pool stride one too long": ("row * pool_len", "row * (pool_len + 1)"),
    "start column ignored": ("row * pool_len + start", "row * pool_len"),
    "sum includes the request itself": ("mask=lanes < request", "mask=lanes <= request"),
    "source offset never advanced": ("source = tl.sum(ends - starts)", "source = 0"),
    "sum of ends, not of lengths": ("tl.sum(ends - starts)", "tl.sum(ends)"),
    "length from the end column": (".to(tl.int32) - start\n", ".to(tl.int32)\n"),
    "value changed on the way": ("slots, mask", "slots + 1, mask"),
    "value narrowed on the way": ("slots, mask", "slots.to(tl.int8).to(tl.int32), mask"),
    "writes its source": ("tl.store(target + offset", "tl.store(out_cache_loc + source + offset"),
}


@functools.cache
def source_of_assign() -> str:
    text = inspect.getsource(module)
    begin = text.index("@triton.jit\ndef assign_kernel")
    kernel = text[begin : text.index("\n\n\n", begin) + 1]
    return "import triton\nimport triton.language as tl\n\n\n" + kernel


@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_wrong_kernel_fails(name, tmp_path):
    right, wrong = WRONG_KERNELS[name]
    assert right in source_of_assign()
    file = tmp_path / "wrong.py"
    file.write_text(source_of_assign().replace(right, wrong))
    spec = importlib.util.spec_from_file_location(
        "wrong_" + "".join(c if c.isalnum() else "_" for c in name), file
    )
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    call = functools.partial(module.assign_req_to_token_pool, impl=Copy(loaded.assign_kernel))
    op = dataclasses.replace(ASSIGN, twins={"wrong": Twin(call, name)})
    verdicts = {
        case: gate.verify(op, case, "wrong") for case in ("ragged", "row-end", "verify-32x5-20", "several-blocks")
    }
    failed = {case: verdict for case, verdict in verdicts.items() if verdict.state == WRONG_RESULT}
    assert failed, f"no case shows that {name}"
    assert all(verdict.reason for verdict in failed.values())


def test_reason_names_the_first_differing_place():
    actual = torch.arange(12).view(3, 4)
    expected = actual.clone()
    expected[1, 2], expected[2, 0] = 70, 80
    reason = gate.exact("pool", actual, expected, {})
    assert reason == "pool[1, 2] is 6, expected 70 (2 of 12 elements differ)"


def double(x, out):
    torch.mul(x, 2, out=out)


def op_of(call, reference=double, writes=("out",), make=None, **more) -> Op:
    case = Case(make or (lambda g: {"x": torch.randn(7, 5, generator=g), "out": torch.zeros(7, 5)}))

    def checked(*, impl="own", validate=False, **arguments):
        return call(**arguments)

    return Op("double", "none", checked, reference, {"only": case}, writes, ("own",), **more)


def verdict_of(call, **more) -> gate.Verdict:
    return gate.verify(op_of(call, **more), "only", "own")


def test_right_call_passes():
    assert verdict_of(double) == gate.Verdict(OK)


def test_element_outside_the_tensor():
    def call(x, out):
        double(x, out)
        out.as_strided((1,), (1,), out.storage_offset() + out.numel())[0] = 1.0

    verdict = verdict_of(call)
    assert verdict.state == WRONG_RESULT
    assert "out: memory outside the tensor was written, 140 bytes (35 elements) from its start" == verdict.reason


def test_element_before_the_tensor():
    def call(x, out):
        double(x, out)
        out.as_strided((1,), (1,), out.storage_offset() - 1)[0] = 1.0

    assert verdict_of(call).state == WRONG_RESULT


def test_pad_bytes_between_strides():
    def make(generator):
        padded = torch.zeros(4, 8)
        return {"x": torch.randn(4, 5, generator=generator), "out": padded[:, :5]}

    def call(x, out):
        double(x, out)
        out.as_strided((4, 8), (8, 1), out.storage_offset())[2, 6] = 9.0

    assert verdict_of(double, make=make).state == OK
    assert verdict_of(call, make=make).state == WRONG_RESULT


def test_changed_input():
    def call(x, out):
        double(x, out)
        x[3, 3] += 1

    verdict = verdict_of(call)
    assert verdict.state == WRONG_RESULT
    assert verdict.reason.startswith("x[3, 3]")
    assert "only to be read" in verdict.reason


def test_unwritten_part_of_an_allocated_output_is_poison():
    def call(x, out):
        double(x, out)
        made = torch.empty(4, 3)
        made[:3] = 0
        return made

    def reference(x, out):
        double(x, out)
        return torch.zeros(4, 3)

    verdict = verdict_of(call, reference=reference)
    assert verdict.state == WRONG_RESULT
    assert "output[3, 0] is nan" in verdict.reason


@pytest.mark.parametrize("allocate", ["empty", "empty_like", "empty_strided", "new_empty"])
def test_write_behind_an_allocated_output(allocate):
    def made(x):
        return {
            "empty": lambda: torch.empty((7, 5)),
            "empty_like": lambda: torch.empty_like(x),
            "empty_strided": lambda: torch.empty_strided((7, 5), (5, 1)),
            "new_empty": lambda: x.new_empty(7, 5),
        }[allocate]()

    def call(x, out, beyond=0):
        double(x, out)
        result = made(x)
        result.as_strided((36,), (1,), result.storage_offset())[: 35 + beyond] = 1.0
        return result

    def reference(x, out):
        double(x, out)
        return torch.ones(7, 5)

    assert verdict_of(call, reference=reference).state == OK
    verdict = verdict_of(functools.partial(call, beyond=1), reference=reference)
    assert verdict.state == WRONG_RESULT
    assert "memory outside" in verdict.reason


def test_wrong_shape_dtype_and_number_of_outputs():
    for give in (torch.ones(3), torch.ones(2, 2, dtype=torch.float64), (torch.ones(2, 2), torch.ones(1)), None):

        def call(x, out, give=give):
            double(x, out)
            return give

        def reference(x, out):
            double(x, out)
            return torch.ones(2, 2)

        assert verdict_of(call, reference=reference).state == WRONG_RESULT


def test_runs_that_differ():
    counter = itertools.count()

    def call(x, out):
        double(x, out)
        out[0, 0] += 1e-9 * next(counter)
        return torch.tensor(float(next(counter)))

    def reference(x, out):
        double(x, out)
        return torch.tensor(1.0)

    verdict = verdict_of(call, reference=reference, compare=within(1.0, 10.0))
    assert verdict.state == WRONG_RESULT
    assert "two runs on the same input differ" in verdict.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_neighbours_are_one_step_apart(dtype):
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[torch.finfo(dtype).bits // 8]
    values = torch.tensor([1.0, 1.5, 1.9921875, -3.0, 1e-3, 0.0], dtype=dtype)
    values[-1] = torch.finfo(dtype).tiny
    for steps in (1, 2, 5):
        apart = steps_apart((values.view(bits) + steps).view(dtype), values)
        # Across a power of two the steps double.
        assert ((apart == steps) | ((apart > steps) & (values == 1.9921875))).all()


def test_a_result_beyond_its_tolerance_says_both_and_the_steps():
    expected = torch.ones(2, 4, dtype=torch.bfloat16)
    actual = expected.clone()
    actual[1, 2], actual[1, 3] = 1 + 2**-7, 1 + 3 * 2**-7
    assert within(1e-3, 1e-5)("out", actual, expected, {}) == (
        "out[1, 2] is 1.0078125, expected 1.0 (2 of 8 elements differ); the tolerance is 0.001 of the value "
        "+ 1e-05, they are up to 3 steps of bfloat16 apart"
    )
    assert within(1e-3)("out", actual[:, :3], expected[:, :3], {}).endswith("up to 1 step of bfloat16 apart")
    said = within(1e-3)("out", torch.tensor([5]), torch.tensor([9]), {})
    assert said == "out[0] is 5, expected 9 (1 of 1 element differs); the tolerance is 0.001 of the value + 0"
    lost = within(1e-3)("out", torch.tensor([float("nan")]), torch.tensor([1.0]), {})
    assert "tolerance" in lost and "steps" not in lost


def test_nan_is_equal_to_nan_only():
    nan = torch.tensor([float("nan"), 1.0])
    assert within(1e-3)("o", nan, nan.clone(), {}) is None
    assert within(1e-3)("o", torch.tensor([0.0, 1.0]), nan, {}) is not None
    assert within(1e-3)("o", nan, torch.tensor([0.0, 1.0]), {}) is not None
    assert within(1e-3)("o", torch.tensor([float("inf")]), torch.tensor([float("inf")]), {}) is None
    assert within(1e-3)("o", torch.tensor([float("inf")]), torch.tensor([float("-inf")]), {}) is not None


@pytest.mark.parametrize(
    "error, state",
    [
        (Unsupported("no cube"), UNSUPPORTED),
        (PlanError("needs 10 bits"), UNSUPPORTED),
        (Fault("deadlock: wait without set"), WRONG_RESULT),
        (CompileFailed("ub overflow: ..."), COMPILE_FAILED),
        (RuntimeError("boom"), CRASHED),
        (torch.OutOfMemoryError("2 GiB"), UNSUPPORTED),
    ],
)
def test_states_of_errors(error, state):
    def call(x, out):
        raise error

    verdict = verdict_of(call)
    assert verdict.state == state
    assert str(error) in verdict.reason


def test_hazard_is_wrong_in_an_own_implementation_and_noted_in_a_twin():
    class Runner:
        findings = ("two programs write the same tile",)

        def __call__(self, launch):
            raise AssertionError

    own = op_of(double)
    twin = dataclasses.replace(own, twins={"twin": Twin(double_of_twin, "pattern")})
    assert gate.verify(own, "only", "own", Runner()).state == WRONG_RESULT
    verdict = gate.verify(twin, "only", "twin", Runner())
    assert verdict.state == OK
    assert verdict.findings == Runner.findings


def double_of_twin(x, out, validate=False):
    double(x, out)


def test_allocators_are_restored():
    before = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)
    with pytest.raises(KeyError), gate.poisoned_allocations():
        raise KeyError
    assert before == (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)


@pytest.mark.parametrize("allocate", ["torch.full", "torch.zeros", "a result of torch"])
def test_kernels_may_use_what_torch_ops_allocate(allocate):
    """Intermediates that torch makes inside the wrapper are memory of the launch like any other."""

    def call(out, source):
        value = {
            "torch.full": lambda: torch.full((8,), 3, dtype=torch.int32),
            "torch.zeros": lambda: torch.zeros(8, dtype=torch.int32) + 3,
            "a result of torch": lambda: source.sort().values,
        }[allocate]()
        copied = torch.zeros(8, dtype=torch.int32)
        zero, end = torch.zeros(1, dtype=torch.int32), torch.full((1,), 8, dtype=torch.int32)
        arguments = {
            "req_pool_indices": zero,
            "req_to_token": copied[None],
            "start_offset": zero,
            "end_offset": end,
        }
        module.assign_req_to_token_pool(**arguments, out_cache_loc=value)
        out.copy_(copied)

    def reference(out, source):
        out.fill_(3)

    def make(generator):
        return {"out": torch.zeros(8, dtype=torch.int32), "source": torch.full((8,), 3, dtype=torch.int32)}

    assert verdict_of(call, reference=reference, make=make) == gate.Verdict(OK)
