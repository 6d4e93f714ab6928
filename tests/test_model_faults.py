"""Faults planted in compiled code: each is reported, and the code without a fault has no finding."""

from collections import Counter

import numpy as np
import pytest

from ascend_model import compile_kernel, simulate_text
from tests import model_kernels as kernels
from tests.model_cases import BY_NAME, Case, Launch, mismatch, tensor
from tests.model_faults import (
    dropped_masks,
    moved_buffers,
    removed_barriers,
    removed_flags,
    swapped_buffers,
    widened_bounds,
)

pytestmark = pytest.mark.compiler


def long_rows(rng: np.random.Generator) -> Launch:
    """Five tiles a row, the last one cut, so that both halves of a double buffer are used again."""
    x = rng.normal(size=(4, 1200)).astype(np.float32)
    index = np.array([3, 0, 2], np.int32)
    args = {"x": x, "index": index, "out": np.zeros((3, 1200), np.float32), "cols": 1200}
    return Launch(3, args, {"out": x[index]})


SUBJECTS = (
    BY_NAME["add"],
    BY_NAME["softmax"],
    BY_NAME["assign_derived"],
    Case("row_gather_long", kernels.row_gather, {"BLOCK": 256}, long_rows),
    BY_NAME["dot_rows"],
    BY_NAME["cumsum"],
    BY_NAME["pool_softmax"],
)


def code_of(case):
    launch = case.launch(np.random.default_rng(1))
    args = {name: tensor(value, case.types.get(name)) for name, value in launch.args.items()}
    return compile_kernel(case.kernel, args, case.constants)


def run(case, code, text):
    """(reported by the simulator, differs from the reference) of one edited text."""
    launch = case.launch(np.random.default_rng(1))
    done = simulate_text(text, launch.grid, {name: launch.args[name] for name in code.arguments}, max_ops=200_000)
    return done.status != "ok" or bool(done.findings), bool(mismatch(case, launch))


@pytest.fixture(params=SUBJECTS, ids=lambda case: case.name)
def subject(request):
    return request.param, code_of(request.param)


def test_the_code_as_compiled_has_no_finding(subject):
    case, code = subject
    assert run(case, code, code.generic) == (False, False)


def test_every_removed_flag_is_reported(subject):
    case, code = subject
    missed = [f"{f.kind}, {f.what}" for f in removed_flags(code.generic) if not run(case, code, f.text)[0]]
    assert missed == []


def test_every_removed_vector_barrier_is_reported(subject):
    case, code = subject
    faults = [f for f in removed_barriers(code.generic) if "PIPE_V" in f.what]
    assert [f.what for f in faults if not run(case, code, f.text)[0]] == []


def test_every_dropped_mask_is_reported(subject):
    case, code = subject
    assert [f.what for f in dropped_masks(code.generic) if not run(case, code, f.text)[0]] == []


def test_every_wider_bound_is_reported(subject):
    case, code = subject
    assert [f.what for f in widened_bounds(code.generic) if not run(case, code, f.text)[0]] == []


@pytest.mark.parametrize("by", [-32, 64, 1024])
def test_a_moved_buffer_is_reported_unless_it_still_lies_free(subject, by):
    """A buffer may move where nothing else lives; a move that changes the result must never pass in silence."""
    case, code = subject
    for fault in moved_buffers(code.generic, by):
        reported, differs = run(case, code, fault.text)
        assert reported or not differs, fault.what


def test_swapped_operands_change_the_result(subject):
    case, code = subject
    for fault in swapped_buffers(code.generic):
        assert any(run(case, code, fault.text)), fault.what


def test_how_many_planted_faults_are_reported(capsys):
    found: Counter[str] = Counter()
    planted: Counter[str] = Counter()
    for case in SUBJECTS:
        code = code_of(case)
        text = code.generic
        for fault in (
            *removed_flags(text),
            *removed_barriers(text),
            *moved_buffers(text, 64),
            *dropped_masks(text),
            *widened_bounds(text),
            *swapped_buffers(text),
        ):
            reported, differs = run(case, code, fault.text)
            planted[fault.kind] += 1
            found[fault.kind] += reported or differs
    with capsys.disabled():
        print()
        for kind, count in planted.items():
            print(f"{kind:22s} {found[kind]:4d} of {count:4d} reported")
    assert sum(found.values()) >= 25
    assert all(found.values())
