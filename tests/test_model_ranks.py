"""Modelled cycles against published timings of the same jobs: ranks and ratios, never microseconds.

The published kernels ran on other compiler versions and partly on another chip; the kernels here do the same
job and are written here.  `program.dispatch` was fitted to the first column of the first table.
"""

import functools

import numpy as np
import pytest

from ascend_model import compile_kernel, load_costs, simulate, simulate_text
from ascend_model.sensitivity import flips, survival
from tests import model_kernels
from tests import rank_kernels as kernels
from tests.model_cases import token_pool

pytestmark = pytest.mark.compiler

BATCHES = (1, 8, 32, 64, 128, 256, 512, 1024)
ONE_EACH = (2.934, 4.467, 6.98, 11.087, 13.414, 19.66, 39.908, 81.781)
BLOCKS = (3.64, 4.0, 4.54, 6.42, 7.84, 8.487, 11.62, 18.16)
"""us before and after the rewrite of the greedy rejection sampler (vllm-ascend#5259), one draft token."""
SLOTS = {4: 69, 32: 71, 128: 204}
"""us of the generic slot mapping (FlagGems-vllm#816), requests x 8192 positions."""
CORES = 48


def ranks(values):
    """Ranks with ties shared."""
    values = np.asarray(values, float)
    return np.array([(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values])


def spearman(a, b):
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def rejection(batch, costs=None):
    """Cycles of both forms, after checking their results."""
    rng = np.random.default_rng(batch)
    target = rng.integers(0, 99, batch).astype(np.int32)
    draft = np.where(rng.random(batch) < 0.5, target, target + 1).astype(np.int32)
    bonus = rng.integers(100, 200, batch).astype(np.int32)
    want = np.stack([target, np.where(draft == target, bonus, -1)], 1)
    block = 1
    while block * CORES < batch:
        block *= 2
    found = []
    for kernel, grid, more, constants in (
        (kernels.reject_one_each, batch, {}, {}),
        (kernels.reject_blocks, -(-batch // block), {"n": batch}, {"BLOCK": block}),
    ):
        out = np.full((batch, 2), -1, np.int32)
        args = {"out": out, "draft": draft, "target": target, "bonus": bonus, **more}
        done = simulate(kernel, grid, args, constants, costs=costs)
        assert done.status == "ok", done.message
        assert done.findings == ()
        assert np.array_equal(out, want)
        found.append(done.cycles)
    return found


def test_rejection_sampler_ranks_as_published(capsys):
    modelled = [rejection(batch) for batch in BATCHES]
    with capsys.disabled():
        print("\nbatch  published us      modelled cycles")
        for batch, a, b, (x, y) in zip(BATCHES, ONE_EACH, BLOCKS, modelled):
            print(f"{batch:5d} {a:8.2f} {b:8.2f} {x:9d} {y:9d}")
        rho = spearman([*ONE_EACH, *BLOCKS], [x for x, _ in modelled] + [y for _, y in modelled])
        print(f"Spearman over the 16 points: {rho:.3f}")
    assert rho >= 0.95
    for batch, a, b, (x, y) in zip(BATCHES, ONE_EACH, BLOCKS, modelled):
        if batch > 32:
            assert (a < b) == (x < y), f"the faster form at batch {batch}"


def slots(requests, by_page, costs=None):
    length, page = 8192, 16
    starts = np.arange(requests + 1, dtype=np.int32) * length
    positions = np.tile(np.arange(length, dtype=np.int32), requests)
    table = np.random.default_rng(0).integers(0, 9999, (requests, length // page)).astype(np.int32)
    out = np.zeros(requests * length, np.int32)
    args = {"starts": starts, "table": table, "slots": out, "width": length // page}
    if by_page:
        done = simulate(kernels.slots_by_page, requests, args, {"PAGE": page}, costs=costs)
    else:
        args = {"starts": starts, "positions": positions, **args}
        done = simulate(kernels.slots_by_lane, requests, args, {"PAGE": page, "BLOCK": 1024}, costs=costs)
    assert done.status == "ok", done.message
    row = np.repeat(np.arange(requests), length)
    assert np.array_equal(out, table[row, positions // page] * page + positions % page)
    return done.cycles


def test_slot_mapping_within_twice_the_published_time(capsys):
    clock = load_costs().table()["target.clock"]
    rows = []
    for requests, published in SLOTS.items():
        rows.append((requests, published, slots(requests, True) / clock / 1000, published))
    with capsys.disabled():
        print("\nrequests  published us  modelled us, page by page")
        for requests, published, us, _ in rows:
            print(f"{requests:8d} {published:13.0f} {us:12.1f}")
    for _, published, us, _ in rows:
        assert published / 2 <= us <= published * 2
    assert rows[2][2] / rows[1][2] == pytest.approx(SLOTS[128] / SLOTS[32], rel=0.15)


PATTERNS = ("derived", "while", "where", "reversed_mask", "or_offset", "modulo", "wide_prefix")


@functools.cache
def twin(pattern):
    """Compiled form and arguments of one token-pool pattern on six requests of 256."""
    launch = token_pool(np.random.default_rng(0), [256] * 6, 512, 8)
    args = {**launch.args, "source": np.concatenate([launch.args["source"], np.zeros(256, np.int32)])}
    kernel = getattr(model_kernels, f"assign_{pattern}")
    code = compile_kernel(kernel, args, {"UPPER": 32, "BLOCK": 128})
    assert code.status == "ok", code.message
    return code.generic, {name: args[name] for name in code.arguments}


def twins(costs):
    found = {}
    for pattern in PATTERNS:
        text, args = twin(pattern)
        done = simulate_text(text, 6, args, costs=costs)
        assert done.status == "ok", done.message
        found[pattern] = done.cycles
    return found


SCALAR = ("where", "or_offset", "modulo")
"""Patterns whose store became one copy an element: by counts alone they cannot win."""


@pytest.mark.slow
def test_which_orderings_of_twins_depend_on_a_constant(capsys):
    kept = survival(twins, draws=60)
    alone = flips(twins)
    with capsys.disabled():
        print("\nfaster         slower         kept in draws  turned round by one constant alone")
        for (a, b), count in sorted(kept.items()):
            by = [f"{f.constant} x{f.factor:g}" for f in alone if (f.faster, f.slower) == (a, b)]
            print(f"{a:14s} {b:14s} {count:6d} of 60  {', '.join(by)}")
    for pair, count in kept.items():
        if pair[0] not in SCALAR and pair[1] in SCALAR:
            assert count == 60
    assert not [f for f in alone if f.faster not in SCALAR and f.slower in SCALAR]
