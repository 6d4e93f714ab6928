"""kpool ops: each step against exact arithmetic, ops against each other, bad input, and what they compile to."""

import dataclasses
import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_kernels as ops
from ascend_kernels.harness import device, gate
from ascend_kernels.harness.launch import launch, recorded, run_with
from ascend_kernels.harness.model import Modelled
from ascend_kernels.harness.spec import OK, UNSUPPORTED, WRONG_RESULT, PlanError, Unsupported
from ascend_kernels.kpool import cases, compare, entry, plan, reference
from ascend_kernels.kpool.kpool_compress_and_write_cache import Tiles
from ascend_kernels.kpool.kpool_seed_tail_cache import Seed
from ascend_kernels.registry import OPS
from ascend_model import toolchain
from tests import kpool_kernels as steps

NPU = device.PROFILES["Ascend910B1"]
GPU = dataclasses.replace(NPU, kind="cuda", cores=132, ub_bytes=0)
COMPRESS = OPS["kpool_compress_and_write_cache"]
DECODE = OPS["kpool_decode_update_and_maybe_write_cache_batched"]
SEED = OPS["kpool_seed_tail_cache"]
EXPAND = OPS["expand_pools_and_append_tail"]
LOCATE = OPS["compute_pooled_write_locs"]
EVERY_BF16 = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).float()
COMPILERS = toolchain.available_versions() if toolchain.triton_ascend_version() else []


def modelled_or_interpreted():
    return pytest.mark.parametrize(
        "runner", [None, pytest.param("model", marks=pytest.mark.compiler)], ids=["interpreted", "compiled"]
    )


def run(runner, call):
    """`call`, its launches interpreted or executed as compiled for Ascend without a finding."""
    if runner is None:
        return call()
    model = Modelled()
    with run_with(model):
        result = call()
    assert model.findings == []
    return result


# one step at a time


def edges_of_codes() -> torch.Tensor:
    """Every e4m3fn value, every middle between two of them, and the fp32 numbers on both sides of each."""
    values = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    points = torch.cat([values, (values[1:] + values[:-1]) / 2]).float()
    around = [points, points.nextafter(torch.tensor(math.inf)), points.nextafter(torch.tensor(-math.inf))]
    positive = torch.cat([*around, torch.tensor([448.1, 463.9, 464.0, 465.0, 1e9, 3e38, 1e-45])])
    return torch.cat([positive, -positive])


@modelled_or_interpreted()
def test_codes_are_those_of_torch_on_every_bf16_and_on_every_boundary(runner):
    finite = EVERY_BF16[EVERY_BF16.isfinite()]
    random = torch.randn(20000, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [0.01, 1, 100, 400]
    ).repeat(5000)
    values = torch.cat([finite, edges_of_codes(), random])
    codes = torch.zeros(len(values), dtype=torch.uint8)
    grid = (-(-len(values) // 2048),)
    run(
        runner,
        lambda: launch(
            steps.encode_kernel, grid, {"values": values, "codes": codes, "count": len(values)}, {"BLOCK": 2048}
        ),
    )
    assert torch.equal(codes, values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


def test_every_code_comes_back_and_a_nan_stays_one():
    every = torch.arange(256, dtype=torch.uint8)
    values = every.view(torch.float8_e4m3fn).float()
    codes = torch.zeros(256, dtype=torch.uint8)
    launch(steps.encode_kernel, (1,), {"values": values, "codes": codes, "count": 256}, {"BLOCK": 256})
    assert torch.equal(codes & 0x7F, every & 0x7F)
    assert torch.equal(codes[~values.isnan()], every[~values.isnan()])


@modelled_or_interpreted()
def test_rounded_scale_is_the_smallest_power_of_two_not_below(runner):
    absmax = EVERY_BF16[(EVERY_BF16 >= 1e-4) & EVERY_BF16.isfinite()]
    absmax = torch.cat([absmax, torch.full((-len(absmax) % 1024,), 1e-4)])
    scales = torch.zeros_like(absmax)
    grid, constants = (len(absmax) // 1024,), {"ROUND_SCALE": True, "BLOCK": 1024}
    run(runner, lambda: launch(steps.scale_kernel, grid, {"absmax": absmax, "scales": scales}, constants))
    least = (absmax * torch.tensor(1 / 448)).double()
    assert bool((torch.frexp(scales).mantissa == 0.5).all())
    assert bool(((scales.double() >= least) & (scales.double() / 2 < least)).all())
    assert bool((scales.double() == least).any()), "no absmax whose scale is exactly a power of two"


@modelled_or_interpreted()
@pytest.mark.parametrize("rounded", [True, False], ids=["rounded", "unrounded"])
def test_scaling_divides_exactly(runner, rounded):
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(2048, generator=generator).bfloat16().float()
    scales = torch.exp2(torch.randint(-40, 40, (2048,), generator=generator).float())
    if not rounded:
        scales *= 1 + torch.rand(2048, generator=generator)
    results = torch.zeros_like(values)
    arguments = {"values": values, "scales": scales, "results": results}
    run(runner, lambda: launch(steps.scaled_kernel, (2,), arguments, {"ROUND_SCALE": rounded, "BLOCK": 1024}))
    assert torch.equal(results, values / scales)


ROTATIONS = {
    "kronecker": entry.rotate_kronecker,
    "matrix": entry.rotate_matrix,
    "butterfly": entry.rotate_butterfly,
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotation_of_unit_vectors_gives_the_rows_of_the_matrix(name):
    unit, rotated = torch.eye(128, dtype=torch.bfloat16), torch.zeros(128, 128)
    launch(steps.rotate_kernel, (128,), {"rows": unit, "rotated": rotated}, {"ROTATE": ROTATIONS[name]})
    assert torch.equal(rotated, reference.rotation().to(torch.bfloat16).float())


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotation_is_orthogonal(name):
    rows = torch.randn(4, 128, generator=torch.Generator().manual_seed(3)).bfloat16()
    rotated = torch.zeros(4, 128)
    launch(steps.rotate_kernel, (4,), {"rows": rows, "rotated": rotated}, {"ROTATE": ROTATIONS[name]})
    exact = rows.double() @ reference.rotation()
    assert bool(((rotated.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-6).all())
    back = rotated.double() @ reference.rotation()
    assert bool(((back - rows.double()).abs() < 0.05).all())


@pytest.mark.parametrize("store", [entry.store_block, entry.store_flat], ids=["block", "flat"])
@pytest.mark.parametrize(
    "page, preshuffled", [(1, False), (16, False), (64, False), (16, True), (48, True), (64, True)]
)
def test_layout_is_a_bijection_in_the_order_it_is_said_to_have(page, preshuffled, store):
    low, high = (torch.zeros(page * 128, dtype=torch.uint8) for _ in range(2))
    for bytes_, is_high in ((low, False), (high, True)):
        constants = {"HIGH": is_high, "PRESHUFFLED": preshuffled, "STORE": store}
        launch(steps.place_kernel, (1,), {"page": bytes_, "tokens": page}, constants)
    holds = (high.int() * 256 + low.int()).tolist()
    assert sorted(holds) == list(range(page * 128))
    # Bytes of a preshuffled page, first to last: 16 tokens at a time, 16 bytes of a code at a time.
    order = itertools.product(range(page // 16), range(8), range(16), range(16))
    told = [(tile * 16 + token) * 128 + piece * 16 + byte for tile, piece, token, byte in order]
    assert holds == (told if preshuffled else list(range(page * 128)))


# ops against each other


def sequence(length: int, pool_size: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randn(length, 128, generator=generator).bfloat16()
    score = (3 * torch.randn(length, 128, generator=generator)).bfloat16()
    return key, score, torch.randn(pool_size, 128, generator=generator)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([4, 8, 16]), st.integers(0, 40), st.lists(st.integers(1, 9), max_size=4), st.booleans())
def test_prefill_then_decode_gives_the_entries_of_whole_pools(pool_size, prefill, steps_, rounded):
    """A sequence seeded into the ring and continued step by step has the entries of its pools compressed."""
    length = prefill + sum(steps_)
    key, score, ape = sequence(length, pool_size, length)
    pools = length // pool_size
    cache = torch.zeros(2, 16, 132, dtype=torch.uint8)
    tail = torch.full((3, 2, pool_size, 128), float("nan"), dtype=torch.bfloat16)
    slots = torch.arange(length) % pool_size + pool_size
    ops.kpool_seed_tail_cache(tail, key[:prefill], score[:prefill], slots[:prefill], pool_size, validate=True)
    done = prefill
    for n in steps_:
        positions = torch.arange(done, done + n, dtype=torch.int32)[None]
        mapping = torch.where(positions % pool_size == pool_size - 1, positions // pool_size, -1).int()
        ops.kpool_decode_update_and_maybe_write_cache_batched(
            cache, tail, slots[None, done : done + n].int(), key[None, done : done + n],
            score[None, done : done + n], ape, mapping, positions, pool_size, rounded, True, validate=True,
        )  # fmt: skip
        done += n
    first = prefill // pool_size
    whole = [
        t[first * pool_size : pools * pool_size].unflatten(0, (pools - first, pool_size)) for t in (key, score)
    ]
    codes, scales = compare.read_entries(cache, True)
    if pools > first:
        want = ops.kpool_compress_and_write_cache(
            cache.clone(), *whole, ape, torch.arange(pools - first), pool_size, None, rounded, True, False
        )
        assert torch.equal(codes[first:pools], want[0]) and torch.equal(scales[first:pools], want[1])
    assert not bool(codes[pools:].any()) and not bool(codes[:first].any())
    held = length - pools * pool_size
    assert torch.equal(tail[1, 0, :held], key[length - held :]) and torch.equal(
        tail[1, 1, :held], score[length - held :]
    )


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_one_call_is_its_tokens_one_after_another(data):
    requests, tokens = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 7))
    invalid = data.draw(st.sampled_from(["", "leading", "middle", "trailing", "scattered", "requests"]))
    made = cases.decode(requests, tokens, 4, page=16, preshuffled=True, invalid=invalid)
    arguments = made(torch.Generator().manual_seed(data.draw(st.integers(0, 1000))))
    stepwise = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    DECODE.call(**arguments, validate=True)
    for i in range(tokens):
        names = ("tail_slot_mapping", "key", "slot_score", "slot_mapping", "positions")
        DECODE.call(**stepwise | {n: stepwise[n][:, i : i + 1].contiguous() for n in names})
    assert torch.equal(arguments["kv_cache"], stepwise["kv_cache"])
    assert torch.equal(arguments["tail"].view(torch.int16), stepwise["tail"].view(torch.int16))


def test_requests_do_not_know_of_each_other():
    arguments = DECODE.cases["several-completions"].arguments()
    together = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    DECODE.call(**together)
    for request in reversed(range(len(arguments["key"]))):
        names = ("tail_slot_mapping", "key", "slot_score", "slot_mapping", "positions")
        DECODE.call(**arguments | {n: arguments[n][request : request + 1] for n in names})
    assert torch.equal(arguments["kv_cache"], together["kv_cache"])


@pytest.mark.parametrize("case", ["masked", "page-48", "padded-page", "returned", "unrounded", "extreme-scores"])
@pytest.mark.parametrize("hoist", [False, True])
def test_tiles_of_a_gpu_give_the_same_entries(case, hoist):
    op = dataclasses.replace(
        COMPRESS,
        twins={},
        implementations=("tiles",),
        call=lambda impl, **a: COMPRESS.call(**a, impl=Tiles(plan.Tile(rows=16, hoist=hoist))),
    )
    verdict = gate.verify(op, case, "tiles", repeat=False)
    assert verdict.state == OK, verdict.reason


def test_a_gpu_keeps_in_its_cache_what_fits(monkeypatch):
    monkeypatch.setattr(device, "of", lambda tensor: GPU)
    arguments = COMPRESS.cases["plain"].arguments()
    size = sum(arguments[name].nbytes for name in ("slot_k", "slot_score"))
    read = []
    for most in (size - 1, size):
        monkeypatch.setattr(plan, "IN_CACHE", most)
        with run_with(lambda launch: read.append(launch.constants["READ"])):
            COMPRESS.call(**arguments, impl="matrix")
    assert read == ["evict_first", ""]


def test_rows_are_refused_on_an_npu(monkeypatch):
    assert gate.verify(DECODE, "plain", "rows", Modelled()).state == UNSUPPORTED
    monkeypatch.setattr(device, "of", lambda tensor: dataclasses.replace(NPU, kind="npu"))
    monkeypatch.setattr(device, "kind", lambda: "npu")
    with pytest.raises(Unsupported, match="rows is for a GPU"):
        DECODE.call(**DECODE.cases["plain"].arguments(), impl="rows")


def test_the_form_of_a_decode_step_is_the_devices(monkeypatch):
    chosen = []
    for on in (NPU, GPU):
        monkeypatch.setattr(device, "of", lambda tensor, on=on: on)
        with run_with(lambda launch: chosen.append(launch.kernel.fn.__name__)):
            DECODE.call(**DECODE.cases["plain"].arguments())
    assert chosen == ["decode_kernel", "decode_rows_kernel"]


@pytest.mark.parametrize("case", [name for name, case in SEED.cases.items() if not case.timed])
def test_tiles_of_a_gpu_seed_the_same_rings(case):
    op = dataclasses.replace(
        SEED, implementations=("tiles",), call=lambda impl, **a: SEED.call(**a, impl=Seed(tiles=True))
    )
    verdict = gate.verify(op, case, "tiles", repeat=False)
    assert verdict.state == OK, verdict.reason


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_expansion_is_the_two_helpers_in_sequence(data):
    rows, groups = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 40))
    pool_size = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    ids = torch.randint(-3, 200, (rows, groups), generator=generator)
    lengths = torch.randint(0, 3000, (rows,), generator=generator)
    got = ops.expand_pools_and_append_tail(ids, lengths, pool_size, validate=True)
    history = ops.expand_pools_to_tokens(ids, ids >= 0, groups * pool_size, pool_size)
    want = ops.append_tail_to_topk(history, lengths, lengths // pool_size, pool_size)
    assert got.dtype == want.dtype == torch.int32 and got.shape == (rows, groups * pool_size + pool_size - 1)
    assert torch.equal(got, want)


# index helpers


def test_history_budget():
    assert ops.history_group_budget_for_topk(2048, 4) == 512
    assert ops.history_group_budget_for_topk(0, 16) == 0
    with pytest.raises(ValueError, match="topk: expected a multiple of pool_size 4, got 2051"):
        ops.history_group_budget_for_topk(2051, 4)


def test_expand_pools_through_table_and_offsets():
    ids = torch.tensor([[2, 0], [1, 7]])
    valid = torch.tensor([[True, True], [True, False]])
    plain = ops.expand_pools_to_tokens(ids, valid, 4, 2)
    assert plain.tolist() == [[4, 5, 0, 1], [2, 3, -1, -1]]
    table = torch.arange(12, dtype=torch.int32).view(2, 6) * 10
    assert ops.expand_pools_to_tokens(ids, valid, 4, 2, table).tolist() == [[40, 50, 0, 10], [80, 90, -1, -1]]
    for offsets in (torch.tensor([100, 200]), torch.tensor([[100], [200]])):
        got = ops.expand_pools_to_tokens(ids, valid, 4, 2, topk_offsets=offsets)
        assert got.tolist() == [[104, 105, 100, 101], [202, 203, -1, -1]]


def test_append_tail_keeps_each_row_its_own_history():
    history = torch.tensor([[7, 8], [-1, 9], [5, -1]], dtype=torch.int32)
    lengths, pools = torch.tensor([11, 8, 2]), torch.tensor([2, 2, 0])
    got = ops.append_tail_to_topk(history, lengths, pools, 4)
    assert got.tolist() == [[7, 8, 8, 9, 10], [-1, 9, -1, -1, -1], [5, -1, 0, 1, -1]]
    table = torch.arange(33).view(3, 11) + 100
    assert ops.append_tail_to_topk(history, lengths, pools, 4, table).tolist()[2] == [5, -1, 122, 123, -1]
    shifted = ops.append_tail_to_topk(history, lengths, pools, 4, topk_offsets=torch.tensor([1000, 0, 50]))
    assert shifted.tolist()[0] == [7, 8, 1008, 1009, 1010]


@pytest.mark.parametrize("pool_size, groups, width", [(1, 2048, 2048), (2, 1024, 2049), (4, 512, 2051)])
def test_width_of_the_selection_is_a_parameter(pool_size, groups, width):
    ids = torch.arange(groups)[None]
    got = ops.expand_pools_and_append_tail(ids, torch.tensor([groups * pool_size + pool_size - 1]), pool_size)
    assert got.tolist() == [list(range(width))]


@pytest.mark.parametrize("shape", [(1, 4), (3, 12), (2, 3, 8), (0, 4), (3, 0)])
def test_pooled_page_table(shape):
    table = torch.arange(math.prod(shape), dtype=torch.int32).view(shape)
    got = ops.build_pooled_page_table(table, 4)
    assert torch.equal(got, table[..., torch.arange(0, shape[-1], 4)])
    assert got.is_contiguous() and (got.numel() == 0 or got.stride(-1) == 1)
    assert got.data_ptr() != table.data_ptr() or got.numel() == 0


# bad input

BAD_COMPRESS = {
    "cache dtype": ({"kv_cache": lambda t: t.to(torch.int8)}, TypeError, "kv_cache: expected dtype uint8"),
    "cache shape": ({"kv_cache": lambda t: t[..., :128]}, ValueError, r"kv_cache: expected shape"),
    "cache stride": ({"kv_cache": lambda t: t.transpose(0, 1)}, ValueError, "kv_cache: expected pages of"),
    "cache offset": (
        {"kv_cache": lambda t: torch.zeros(t.numel() + 2, dtype=torch.uint8)[2:].view(t.shape)},
        ValueError, "kv_cache: expected pages that start at multiples of 4 bytes",
    ),
    "key dtype": ({"slot_k": lambda t: t.half()}, TypeError, "slot_k: expected dtype bfloat16, got float16"),
    "score dtype": ({"slot_score": lambda t: t.int()}, TypeError, "slot_score: expected dtype bfloat16 or"),
    "score shape": ({"slot_score": lambda t: t[1:]}, ValueError, "slot_score: expected shape"),
    "head": ({"slot_k": lambda t: t[..., :64]}, ValueError, r"slot_k: expected shape \[any, 4, 128\]"),
    "strided key": ({"slot_k": lambda t: t.repeat(1, 1, 2)[..., :128]}, ValueError, "slot_k: expected a contig"),
    "ape dtype": ({"ape": lambda t: t.bfloat16()}, TypeError, "ape: expected dtype float32"),
    "ape shape": ({"ape": lambda t: t[:3]}, ValueError, r"ape: expected shape \[4, 128\]"),
    "loc dtype": ({"loc": lambda t: t.int()}, TypeError, "loc: expected dtype int64, got int32"),
    "loc length": ({"loc": lambda t: t[1:]}, ValueError, "loc: expected shape"),
    "pool size": ({"pool_size": lambda p: 5}, ValueError, "pool_size: expected one of 4, 8, 16, got 5"),
    "other pool size": ({"pool_size": lambda p: 8}, ValueError, "slot_k: expected shape"),
    "mask dtype": (
        {"write_mask": lambda m: torch.ones(5, dtype=torch.int32)}, TypeError, "write_mask: expected dtype bool",
    ),
    "mask and return": (
        {"write_mask": lambda m: torch.ones(5, dtype=torch.bool), "return_compressed": lambda r: True},
        ValueError, "write_mask: expected None with return_compressed",
    ),
    "nothing to do": ({"write_cache": lambda w: False}, ValueError, "write_cache: expected True unless"),
    "page not preshuffled": (
        {"kv_cache": lambda t: torch.zeros(4, 24, 132, dtype=torch.uint8), "preshuffled": lambda p: True},
        ValueError, "preshuffled: expected a page that is a multiple of 16, got a page of 24",
    ),
    "page of one preshuffled": (
        {"kv_cache": lambda t: torch.zeros(99, 1, 132, dtype=torch.uint8), "preshuffled": lambda p: True},
        ValueError, "got a page of 1",
    ),
    "another device": ({"loc": lambda t: t.to("meta")}, ValueError, "loc: expected a tensor on cpu"),
    "implementation": ({"impl": lambda i: "nope"}, ValueError, "impl: expected one of kronecker, matrix"),
    "loc below": ({"loc": lambda t: put(t, 2, -1)}, ValueError, r"loc\[2\]: expected a slot between 0 and 127"),
    "loc above": ({"loc": lambda t: put(t, 1, 128)}, ValueError, r"loc\[1\]: expected a slot between"),
    "loc twice": ({"loc": lambda t: put(t, 4, int(t[0]))}, ValueError, r"loc\[4\]: expected distinct slots"),
}  # fmt: skip
BAD_DECODE = {
    "tail dtype": ({"tail": lambda t: t.float()}, TypeError, "tail: expected dtype bfloat16"),
    "tail shape": ({"tail": lambda t: t[:, :1]}, ValueError, r"tail: expected shape \[any, 2, 4, 128\]"),
    "tail rows": ({"tail": lambda t: t.repeat(1, 1, 1, 2)[..., ::2]}, ValueError, "tail: expected rows without"),
    "key dtype": ({"key": lambda t: t.float()}, TypeError, "key: expected dtype bfloat16"),
    "score dtype": ({"slot_score": lambda t: t.float()}, TypeError, "slot_score: expected dtype bfloat16"),
    "slot dtype": ({"slot_mapping": lambda t: t.long()}, TypeError, "slot_mapping: expected dtype int32"),
    "position shape": ({"positions": lambda t: t[:, :1]}, ValueError, r"positions: expected shape \[3, 2\]"),
    "pool size": ({"pool_size": lambda p: 16}, ValueError, "tail: expected shape"),
    "page not preshuffled": (
        {"kv_cache": lambda t: torch.zeros(9, 8, 132, dtype=torch.uint8), "preshuffled": lambda p: True},
        ValueError, "got a page of 8",
    ),
    "slot above": (
        {"slot_mapping": lambda t: put(t, (1, 0), 128)}, ValueError, r"slot_mapping\[1, 0\]: expected a slot",
    ),
    "slot twice": (
        {"slot_mapping": lambda t: put(t, (2, 0), int(t[0, 0]))},
        ValueError, r"slot_mapping\[2, 0\]: expected distinct",
    ),
    "tail slot above": (
        {"tail_slot_mapping": lambda t: put(t, (0, 1), 32)},
        ValueError, r"tail_slot_mapping\[0, 1\]: expected a slot below 32",
    ),
    "shared ring": (
        {"tail_slot_mapping": lambda t: put(t, (2, 1), int(t[0, 0]))},
        ValueError, "expected a ring no other request uses",
    ),
}  # fmt: skip
BAD_SEED = {
    "slot dtype": ({"tslot": lambda t: t.float()}, TypeError, "tslot: expected dtype int32 or int64"),
    "score shape": ({"score": lambda t: t[1:]}, ValueError, "score: expected shape"),
    "pool size": ({"P": lambda p: 6}, ValueError, "P: expected one of 4, 8, 16, got 6"),
    "tail pool": ({"P": lambda p: 8}, ValueError, "tail: expected shape"),
    "slot above": ({"tslot": lambda t: put(t, 3, 32)}, ValueError, r"tslot\[3\]: expected a slot below 32"),
    "slot twice": (
        {"tslot": lambda t: put(t, 16, int(t[15]))},
        ValueError,
        r"tslot\[16\]: expected a slot no other",
    ),
}
BAD_EXPAND = {
    "id dtype": ({"pool_ids": lambda t: t.float()}, TypeError, "pool_ids: expected dtype int32 or int64"),
    "lengths": ({"seq_lens": lambda t: t[1:]}, ValueError, r"seq_lens: expected shape \[5\]"),
    "pool size": ({"pool_size": lambda p: 6}, ValueError, "pool_size: expected a power of two, got 6"),
    "negative length": ({"seq_lens": lambda t: put(t, 2, -1)}, ValueError, r"seq_lens\[2\]: expected at least 0"),
    "id above": (
        {"pool_ids": lambda t: put(t, (1, 1), 2**29)},
        ValueError,
        r"pool_ids\[1, 1\]: expected a pool below",
    ),
}
BAD_LOCATE = {
    "table shape": ({"page_table_64": lambda t: t[None]}, ValueError, "page_table_64: expected shape"),
    "id dtype": ({"pool_ids": lambda t: t.bool()}, TypeError, "pool_ids: expected dtype int32 or int64"),
    "id above": (
        {"pool_ids": lambda t: put(t, 0, 128)},
        ValueError,
        r"pool_ids\[0\]: expected a pool between 0 and 127",
    ),
    "id below": ({"pool_ids": lambda t: put(t, 3, -1)}, ValueError, r"pool_ids\[3\]: expected a pool between"),
    "block id": (
        {"page_table_64": lambda t: put(t, 1, -1)},
        ValueError,
        r"page_table_64\[1\]: expected a block id",
    ),
}


def put(tensor, place, value):
    copy = tensor.clone()
    copy[place] = value
    return copy


def bad_rows():
    rows = []
    tables = ((COMPRESS, "plain", BAD_COMPRESS), (DECODE, "plain", BAD_DECODE), (SEED, "short", BAD_SEED),
              (EXPAND, "5x8", BAD_EXPAND), (LOCATE, "n5", BAD_LOCATE))  # fmt: skip
    for op, case, table in tables:
        for name, (change, error, words) in table.items():
            rows.append(pytest.param(op, case, change, error, words, id=f"{op.name}-{name}"))
    return rows


@pytest.mark.parametrize("op, case, change, error, words", bad_rows())
def test_bad_input_is_refused_and_nothing_is_written(op, case, change, error, words):
    arguments = op.cases[case].arguments()
    arguments |= {name: edit(arguments.get(name)) for name, edit in change.items()}
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor) and not v.is_meta}
    with recorded() as launches, pytest.raises(error, match=words):
        op.call(**arguments, validate=True)
    assert launches == []
    assert all(gate.exact(k, arguments[k], v, {}) is None for k, v in before.items())


def test_bad_input_of_the_index_helpers():
    ids, valid = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, 3, dtype=torch.bool)
    table, offsets = torch.zeros(2, 9, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="topk: expected a multiple of pool_size 4, got 13"):
        ops.expand_pools_to_tokens(ids, valid, 13, 4)
    with pytest.raises(ValueError, match=r"group_ids: expected shape \[any, 4\]"):
        ops.expand_pools_to_tokens(ids, valid, 16, 4)
    with pytest.raises(TypeError, match="group_valid: expected dtype bool"):
        ops.expand_pools_to_tokens(ids, ids, 12, 4)
    with pytest.raises(ValueError, match="topk_offsets: expected None with a page_table"):
        ops.expand_pools_to_tokens(ids, valid, 12, 4, table, offsets)
    with pytest.raises(ValueError, match=r"page_table: expected shape \[2, any\]"):
        ops.expand_pools_to_tokens(ids, valid, 12, 4, table[:1])
    with pytest.raises(TypeError, match="topk_result: expected dtype int32"):
        ops.append_tail_to_topk(ids.long(), offsets, offsets, 4)
    with pytest.raises(ValueError, match=r"seq_lens: expected shape \[2\]"):
        ops.append_tail_to_topk(ids, offsets[:1], offsets, 4)
    with pytest.raises(ValueError, match="page_table: expected a number of columns that pool_size 4 divides"):
        ops.build_pooled_page_table(table, 4)
    with pytest.raises(ValueError, match="pool_size: expected at least 1, got 0"):
        ops.build_pooled_page_table(table, 0)


# the checks themselves


def byte_of(slot: int, d: int) -> tuple[int, int, int]:
    """Index of code d of a slot in a plain cache with pages of 64."""
    within = slot % 64 * 128 + d
    return slot // 64, within // 132, within % 132


def test_comparison_allows_a_rounding_and_nothing_more():
    arguments = cases.compress(512, 4, spare=600)(torch.Generator().manual_seed(0))
    want = arguments["kv_cache"].clone()
    reference.kpool_compress_and_write_cache(**arguments | {"kv_cache": want})
    slots = arguments["loc"].tolist()
    unused = next(i for i in range(512 + 600) if i not in slots)
    sizes = compare.read_entries(want, False)[0].view(torch.float8_e4m3fn).float().abs()

    def verdict(change, *places):
        got = want.clone()
        for place in places:
            got[place] = change(got[place])
        return compare.entries_close("kv_cache", got, want, arguments)

    middling = [byte_of(slot, int((sizes[slot] - 40).abs().argmin())) for slot in slots]
    largest = byte_of(slots[7], int(sizes[slots[7]].argmax()))
    assert verdict(lambda c: c) is None
    assert verdict(lambda c: c ^ 1, *middling[:67]) is None, "0.1 % of bytes may be rounded the other way"
    assert "68 of 67584 written bytes differ from the reference, more than 67" in verdict(
        lambda c: c ^ 1, *middling[:68]
    )
    assert 0x78 < int(want[largest]) & 0x7F < 0x7E, "a code above 256, where one step exceeds 0.08 of the absmax"
    assert verdict(lambda c: c + 1, largest) is None and verdict(lambda c: c - 1, largest) is None
    assert "dequantised" in verdict(lambda c: c - 2, largest)
    assert "dequantised" in verdict(lambda c: c ^ 0x80, largest)
    assert "dequantised" in verdict(lambda c: c - 8, largest)
    assert "not to be written" in verdict(lambda c: c ^ 1, byte_of(unused, 0))


PLANTED = {
    "stash needs a cache slot": (
        "unmapped",
        lambda a: {"tail_slot_mapping": torch.where(a["slot_mapping"] < 0, -1, a["tail_slot_mapping"])},
    ),
    "block of the request's first token": (
        "leading-invalid",
        lambda a: {"tail_slot_mapping": a["tail_slot_mapping"][:, :1].expand_as(a["positions"]).contiguous()},
    ),
    "invalid tokens take part": ("middle-invalid", lambda a: {"positions": a["positions"].abs()}),
    "completion by slot alone": ("several-completions", lambda a: {"positions": a["positions"] + 1}),
    "other layout": ("preshuffled", lambda a: {"preshuffled": False}),
    "scale not rounded": ("plain", lambda a: {"round_scale": False}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_cases_bite(name):
    case, change = PLANTED[name]
    arguments = DECODE.cases[case].arguments()
    got, want = (gate.run(DECODE.reference, a, "cpu") for a in (arguments | change(arguments), arguments))
    assert gate.compare(DECODE, arguments, got, want) is not None or any(
        gate.exact(n, got.arguments[n].view, want.arguments[n].view, {}) for n in DECODE.writes
    )


def test_boundary_cases_hold_scales_on_and_next_to_powers_of_two():
    arguments = COMPRESS.cases["boundaries-unrounded"].arguments()
    _, scales = reference.compress(arguments["slot_k"], arguments["slot_score"], arguments["ape"], False)
    for exponent in cases.BOUNDARY_EXPONENTS:
        distance = (scales / 2.0**exponent - 1).abs()
        assert bool((distance < 1e-6).any()) and bool(((distance > 1e-6) & (distance < 0.02)).sum() >= 2)
    assert bool((scales == torch.tensor(1e-4) * torch.tensor(1 / 448)).any())


# plans


@pytest.mark.parametrize("on", [NPU, GPU], ids=["npu", "gpu"])
@pytest.mark.parametrize("count", [1, 3, 47, 48, 49, 65535, 65536, 75264, 10**6])
def test_plans_keep_the_limits(count, on):
    made = [
        plan.pools(count, 16, on),
        plan.tiles(count, plan.TILES[4], on),
        plan.tokens(count, on.kind == "cuda", on),
        plan.groups(count, 512, 4, on),
        plan.groups(3, count, 16, on),
        plan.ids(count, on),
    ]
    for one in made:
        assert 1 <= one.programs <= (on.cores if on.ascend and one is not made[1] else 65535)
        assert one.rows & (one.rows - 1) == 0 and one.warps & (one.warps - 1) == 0


def test_a_pool_that_does_not_fit_is_refused_before_anything_is_compiled():
    small = dataclasses.replace(NPU, ub_bytes=65536)
    with pytest.raises(PlanError, match=r"a pool of 16 tokens needs \d+ bits of UB, Ascend910B1 has 524288"):
        plan.pools(9, 16, small)
    with pytest.raises(PlanError, match=r"pools of 4 tokens need \d+ bits of UB"):
        plan.groups(9, 512, 4, small)


def test_empty_input_launches_nothing():
    with recorded() as launches:
        for op in (COMPRESS, DECODE, SEED, EXPAND, LOCATE):
            for name, case in op.cases.items():
                if name.startswith("no-") and name != "no-groups":
                    op.call(**case.arguments(), validate=True)
    assert launches == []
    codes, scales = ops.kpool_compress_and_write_cache(**COMPRESS.cases["no-pools-returned"].arguments())
    assert codes.shape == (0, 128) and codes.dtype == torch.uint8
    assert scales.shape == (0,) and scales.dtype == torch.float32


def test_pages_beyond_two_gigabytes():
    """The cache is only mapped, not touched, but for the page that is written."""
    cache = torch.empty(270_000, 64, 132, dtype=torch.uint8)
    arguments = COMPRESS.cases["plain"].arguments()
    last = cache.shape[0] * 64 - 5
    COMPRESS.call(**arguments | {"kv_cache": cache, "loc": torch.arange(last, last + 5)})
    codes, scales = compare.read_entries(cache[-1:], False)
    want = reference.compress(*(arguments[n] for n in ("slot_k", "slot_score", "ape", "round_scale")))
    assert torch.equal(codes[-5:], want[0]) and torch.equal(scales[-5:], want[1])


# compiled for Ascend


def compiled(op, arguments, impl=None, compiler=None):
    """The launches of a call, compiled for Ascend910B1."""
    from ascend_model import compile_kernel

    seen = []
    with run_with(seen.append):
        op.call(**arguments, impl=impl or op.implementations[0])
    made = [compile_kernel(one.kernel, one.args, one.constants, compiler=compiler) for one in seen]
    assert all(one.status == "ok" for one in made), [one.message for one in made]
    return made


def in_loops(generic, name):
    from ascend_model.metrics import sites
    from ascend_model.parse import parse

    return sum(1 for site in sites(parse(generic).entry) if site.op.name == name and site.loops)


@pytest.mark.compiler
@pytest.mark.parametrize("preshuffled", [True, False], ids=["preshuffled", "plain"])
@pytest.mark.parametrize("rounded", [True, False], ids=["rounded", "unrounded"])
def test_compress_compiles_to_few_operations(preshuffled, rounded):
    from ascend_model import static_counts

    made = cases.compress(64, 16, preshuffled=preshuffled, round_scale=rounded)
    (one,) = compiled(COMPRESS, made(torch.Generator()))
    counts = static_counts(one.generic)
    assert counts["vector"] <= 45 and counts["scalar"] <= 5
    assert in_loops(one.generic, "hivm.hir.load") == 2 and in_loops(one.generic, "hivm.hir.store") == 2
    assert counts["ub_bytes"] <= 112 * 1024
    assert counts["ub_bytes"] <= 4352 * 16 + 38400, "the plan's estimate is too low"
    assert "matmul" not in one.linalg and one.notes == ()


@pytest.mark.compiler
@pytest.mark.parametrize("pool_size", [4, 8, 16])
def test_decode_compiles_to_few_operations(pool_size):
    from ascend_model import static_counts

    made = cases.decode(64, 4, pool_size, preshuffled=True)
    (one,) = compiled(DECODE, made(torch.Generator()))
    counts = static_counts(one.generic)
    assert counts["vector"] <= 60 and counts["scalar"] <= 6
    assert counts["ub_bytes"] <= 4352 * pool_size + 38400, "the plan's estimate is too low"
    assert "matmul" not in one.linalg and one.notes == ()


@pytest.mark.compiler
@pytest.mark.parametrize("pool_size", [4, 16])
@pytest.mark.parametrize("within_seq", [True, False], ids=["within", "all"])
def test_expand_compiles_without_a_scalar_loop(pool_size, within_seq):
    from ascend_model import static_counts

    made = cases.expand(16, 512, pool_size, within_seq=within_seq)
    (one,) = compiled(EXPAND, made(torch.Generator()))
    counts = static_counts(one.generic)
    assert counts["scalar"] == 1, "the length of the row"
    assert counts["dma_in"] == 1 and counts["dma_out"] == 2
    assert counts["ub_bytes"] <= (2048 // pool_size) * 40 + 2048 * 32, "the plan's estimate is too low"


@pytest.mark.compiler
def test_matrix_rotation_compiles_for_the_cube_unit():
    (one,) = compiled(COMPRESS, COMPRESS.cases["preshuffled"].arguments(), "matrix")
    assert one.linalg.count("linalg.matmul") == 2


@pytest.mark.compiler
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("case", ["boundaries", "extreme-scores-16", "padded-page", "unrounded"])
def test_compressed_entries_in_compiled_code(case, compiler):
    verdict = gate.verify(COMPRESS, case, "kronecker", Modelled(compiler=compiler), repeat=False)
    assert (verdict.state, verdict.findings) == (OK, ()), verdict.reason


@pytest.mark.compiler
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("case", ["long-call", "scattered-invalid", "padded-tail", "unmapped"])
def test_decoded_entries_in_compiled_code(case, compiler):
    verdict = gate.verify(DECODE, case, "kronecker", Modelled(compiler=compiler), repeat=False)
    assert (verdict.state, verdict.findings) == (OK, ()), verdict.reason


@pytest.mark.compiler
def test_the_ring_is_read_after_the_stash_and_removing_that_wait_is_found():
    from ascend_model import simulate_text

    made = cases.decode(2, 9, 4, aligned=True)
    arguments = made(torch.Generator().manual_seed(4))
    (one,) = compiled(DECODE, arguments)
    seen = []
    with run_with(seen.append):
        DECODE.call(**arguments)
    taken = {name: seen[0].args[name] for name in one.arguments}
    lines = one.generic.splitlines()
    waits = [
        i for i, line in enumerate(lines) if '"hivm.hir.wait_flag"' in line and STASH_BEFORE_READ.search(line)
    ]
    whole = simulate_text(one.generic, seen[0].grid, {k: copied(v) for k, v in taken.items()})
    assert whole.status == "ok" and whole.findings == ()
    assert waits, "no wait of the ring's load for the stash"
    cut = "\n".join(line for i, line in enumerate(lines) if i not in waits)
    broken = simulate_text(cut, seen[0].grid, {k: copied(v) for k, v in taken.items()})
    assert broken.findings, "the missing wait was not found"


STASH_BEFORE_READ = re.compile(r"<PIPE_MTE3>.*<PIPE_MTE2>")


def copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


@pytest.mark.compiler
def test_a_twin_by_log2_misses_powers_of_two_in_compiled_code():
    verdict = gate.verify(COMPRESS, "boundaries", "log2-scale", Modelled(unsafe=True), repeat=False)
    assert verdict.state == WRONG_RESULT
