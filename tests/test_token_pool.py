"""Token-pool ops: properties, plans, and bad input that must change nothing."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_kernels
from ascend_kernels.harness import device
from ascend_kernels.harness.launch import Launch, recorded, run_with
from ascend_kernels.harness.spec import PlanError
from ascend_kernels.registry import OPS
from ascend_kernels.token_pool import plan

ASSIGN = ascend_kernels.assign_req_to_token_pool
EXTEND = ascend_kernels.assign_extend_cache_locs
DRAFT = ascend_kernels.assign_draft_cache_locs
NPU = device.PROFILES["Ascend910B1"]


def batch(lengths, pool_len=64, dtype=torch.int32):
    requests = len(lengths)
    length = torch.tensor(lengths, dtype=dtype)
    start = torch.arange(requests, dtype=dtype) % 3
    return {
        "req_pool_indices": torch.arange(requests, dtype=dtype).flip(0),
        "req_to_token": torch.full((requests + 1, pool_len), -1, dtype=torch.int32),
        "start_offset": start,
        "end_offset": start + length,
        "out_cache_loc": torch.arange(100, 100 + sum(lengths), dtype=torch.int32),
    }


@st.composite
def batches(draw):
    pool_len = draw(st.integers(1, 90))
    requests = draw(st.integers(0, 12))
    rows = draw(st.permutations(range(requests + 2)))[:requests]
    spans = [sorted((draw(st.integers(0, pool_len)), draw(st.integers(0, pool_len)))) for _ in range(requests)]
    metadata, values = (draw(st.sampled_from([torch.int32, torch.int64])) for _ in range(2))
    total = sum(end - start for start, end in spans)
    slots = draw(st.lists(st.integers(0, 2**31 - 1), min_size=total, max_size=total))
    return {
        "req_pool_indices": torch.tensor(rows, dtype=metadata),
        "req_to_token": torch.full((requests + 2, pool_len), -9, dtype=values),
        "start_offset": torch.tensor([s for s, _ in spans], dtype=metadata),
        "end_offset": torch.tensor([e for _, e in spans], dtype=metadata),
        "out_cache_loc": torch.tensor(slots, dtype=values),
    }


@settings(max_examples=40, deadline=None)
@given(batches())
def test_assign_then_extend_gives_the_slots_back(arguments):
    pool = arguments["req_to_token"]
    wanted = {}
    taken = 0
    for row, start, end in zip(
        *(arguments[n].tolist() for n in ("req_pool_indices", "start_offset", "end_offset"))
    ):
        for column in range(start, end):
            wanted[row, column] = int(arguments["out_cache_loc"][taken])
            taken += 1
    ASSIGN(**arguments, validate=True)
    found = {(int(r), int(c)): int(pool[r, c]) for r, c in (pool != -9).nonzero()}
    assert found == {place: slot for place, slot in wanted.items() if slot != -9}
    back = torch.full_like(arguments["out_cache_loc"], -3)
    EXTEND(**arguments | {"out_cache_loc": back}, validate=True)
    assert torch.equal(back, arguments["out_cache_loc"])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_draft_reads_the_columns_behind_the_sequence(data):
    requests, topk, steps = (data.draw(st.integers(1, 6)) for _ in range(3))
    pool_len = topk * steps + data.draw(st.integers(0, 20))
    pool = torch.arange((requests + 1) * pool_len, dtype=torch.int32).view(requests + 1, pool_len)
    rows = data.draw(st.permutations(range(requests + 1)))[:requests]
    lens = [data.draw(st.integers(0, pool_len - topk * steps)) for _ in range(requests)]
    out = torch.full((requests * topk * steps,), -1, dtype=torch.int32)
    DRAFT(torch.tensor(rows), pool, torch.tensor(lens), out, topk, steps, validate=True)
    assert out.tolist() == [
        row * pool_len + length + i for row, length in zip(rows, lens) for i in range(topk * steps)
    ]


def spoil(**change):
    return lambda a: a | {k: v(a[k]) if callable(v) else v for k, v in change.items()}


def at(index, value):
    def edit(tensor):
        copy = tensor.clone()
        copy[index] = value
        return copy

    return edit


# always found
BAD_FORM = {
    "not a tensor": (spoil(req_to_token=[[1]]), TypeError, "req_to_token: expected a tensor, got list"),
    "float pool": (
        spoil(req_to_token=lambda t: t.float()),
        TypeError,
        "req_to_token: expected dtype int32 or int64",
    ),
    "float metadata": (spoil(start_offset=lambda t: t.float()), TypeError, "start_offset: expected dtype"),
    "short metadata": (
        spoil(end_offset=lambda t: t[:-1]),
        ValueError,
        r"end_offset: expected shape \[3\], got \[2\]",
    ),
    "mixed offsets": (spoil(end_offset=lambda t: t.long()), TypeError, "end_offset: expected dtype"),
    "one-dimensional pool": (spoil(req_to_token=lambda t: t[0]), ValueError, "req_to_token: expected shape"),
    "two-dimensional slots": (spoil(out_cache_loc=lambda t: t[None]), ValueError, "out_cache_loc: expected shape"),
    "strided pool": (spoil(req_to_token=lambda t: t[:, ::2]), ValueError, "req_to_token: expected a contiguous"),
    "another device": (spoil(out_cache_loc=lambda t: t.to("meta")), ValueError, "expected a tensor on cpu"),
}
# found with validate=True
BAD_VALUES = {
    "end before start": (spoil(end_offset=at(1, 0)), r"end_offset\[1\]: expected at least start_offset"),
    "negative start": (spoil(start_offset=at(0, -1)), r"start_offset\[0\]: expected at least 0, got -1"),
    "end behind the row": (spoil(end_offset=at(2, 65)), r"end_offset\[2\]: expected at most 64"),
    "row behind the pool": (
        spoil(req_pool_indices=at(1, 4)),
        r"req_pool_indices\[1\]: expected a row between 0 and 3",
    ),
    "negative row": (spoil(req_pool_indices=at(2, -1)), r"req_pool_indices\[2\]: expected a row"),
    "repeated row": (spoil(req_pool_indices=at(2, 1)), r"req_pool_indices\[2\]: expected distinct rows, got 1"),
    "too few slots": (spoil(out_cache_loc=lambda t: t[:-1]), "out_cache_loc: expected 12 values"),
    "too many slots": (spoil(out_cache_loc=lambda t: torch.cat([t, t])), "out_cache_loc: expected 12 values"),
}


def refuses(call, arguments, error, words):
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor) and not v.is_meta}
    with recorded() as launches, pytest.raises(error, match=words):
        call(**arguments)
    assert launches == []
    assert all(torch.equal(arguments[k], v) for k, v in before.items())


@pytest.mark.parametrize("call", [ASSIGN, EXTEND], ids=["assign", "extend"])
@pytest.mark.parametrize("name", BAD_FORM)
def test_bad_form_is_refused(name, call):
    change, error, words = BAD_FORM[name]
    refuses(call, change(batch([3, 4, 5])), error, words)


@pytest.mark.parametrize("call", [ASSIGN, EXTEND], ids=["assign", "extend"])
@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_values_are_refused_when_validated(name, call):
    change, words = BAD_VALUES[name]
    refuses(lambda **a: call(**a, validate=True), change(batch([3, 4, 5])), ValueError, words)


def test_bad_draft_arguments():
    good = OPS["assign_draft_cache_locs"].cases["3x4x5"].arguments()
    call = DRAFT
    for change, error, words in [
        ({"topk": 0}, ValueError, "topk: expected at least 1, got 0"),
        ({"num_steps": 2.0}, TypeError, "num_steps: expected an int, got float"),
        ({"num_steps": True}, TypeError, "num_steps: expected an int, got bool"),
        ({"out_cache_loc": good["out_cache_loc"][:-1]}, ValueError, r"out_cache_loc: expected shape \[60\]"),
        ({"seq_lens": good["seq_lens"][:-1]}, ValueError, "seq_lens: expected shape"),
        ({"impl": "nope"}, ValueError, "impl: expected one of derived, got 'nope'"),
    ]:
        refuses(call, good | change, error, words)
    late = good["seq_lens"].clone()
    late[1] = 128 - 20 + 1
    refuses(
        lambda **a: call(**a, validate=True), good | {"seq_lens": late}, ValueError, r"seq_lens\[1\]: expected"
    )


def test_a_batch_that_does_not_fit_is_refused_before_anything_is_compiled():
    requests = 32768
    arguments = batch([1] * requests, pool_len=4)
    words = r"a batch of 32768 requests needs \d+ bits of UB, Ascend910B1 has 1572864"
    refuses(ASSIGN, arguments, PlanError, words)


def test_empty_batches_launch_nothing():
    with recorded() as launches:
        ASSIGN(**batch([]), validate=True)
        ASSIGN(**batch([0, 0]), validate=True)
        EXTEND(**batch([0]), validate=True)
        DRAFT(*(torch.zeros(n, dtype=torch.int32) for n in (0,)), torch.zeros(2, 4, dtype=torch.int32),
              torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), 2, 2)  # fmt: skip
    assert launches == []


@pytest.mark.parametrize("requests", [1, 3, 5, 33, 300, 1024, 4096])
@pytest.mark.parametrize("mean", [1, 31, 32, 33, 4097, 100_000])
@pytest.mark.parametrize("on", [NPU, dataclasses.replace(NPU, kind="cuda", cores=132, ub_bytes=0)])
def test_plans_keep_the_limits(requests, mean, on):
    made = plan.spans(requests, requests * mean, 4, 4, on)
    assert made.bound >= requests and made.bound & (made.bound - 1) == 0
    assert made.block & (made.block - 1) == 0
    assert made.grid[0] == requests and 1 <= made.grid[0] * made.grid[1] <= 65535
    drafts = plan.drafts(requests, mean, on)
    assert 1 <= drafts.grid[0] <= min(requests, 65535)


@pytest.mark.parametrize("programs, fits", [(65535, True), (65536, False), (75264, False)])
def test_no_grid_above_the_limit(programs, fits):
    from ascend_kernels.harness.launch import launch

    seen: list[Launch] = []
    with run_with(seen.append):
        if fits:
            launch(test_no_grid_above_the_limit, (programs,), {})
        else:
            with pytest.raises(PlanError, match=f"a grid of {programs} programs; the limit is 65535"):
                launch(test_no_grid_above_the_limit, (programs,), {})
    assert len(seen) == fits


def test_row_base_beyond_two_gigabytes():
    """Row 20000 of a pool 131072 wide starts beyond 2^31 elements; only the address is computed, with a row far
    in front of a small pool (a negative row would be refused by validate)."""
    from ascend_kernels.token_pool.assign_req_to_token_pool import assign_kernel
    from ascend_model.compile import compile_kernel

    pytest.importorskip("ascendnpuir")
    small = batch([3])
    arguments = {
        k: small[k] for k in ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "out_cache_loc")
    }
    constants = {"BOUND": 16, "BLOCK": 32}
    made = compile_kernel(assign_kernel, arguments | {"pool_len": 131072}, constants)
    assert made.status == "ok", made.message
    # The product of row and row length is 64 bits wide in what was compiled.
    multiply = [line for line in made.linalg.splitlines() if "arith.muli" in line and "i64" in line]
    assert multiply


def test_twenty_batches_compile_a_handful_of_variants():
    """Sizes that change with every batch are run-time arguments; constants come in powers of two."""
    seen = set()
    with run_with(lambda launch: seen.add((launch.kernel, tuple(launch.constants.items())))):
        for requests in range(1, 201, 10):
            ASSIGN(**batch([requests % 7 + 1] * requests))
            rows, pool = torch.arange(requests), torch.zeros(requests, 64, dtype=torch.int32)
            DRAFT(rows, pool, torch.zeros_like(rows), torch.zeros(requests * 6, dtype=torch.int32), 2, 3)
    assert len(seen) <= 6
