"""The EAGLE v2 decode step against plain Python, and the invariants of its slot allocator."""

import functools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ascend_kernels.eagle import scenario, scenario_reference
from ascend_kernels.eagle.slots import OutOfSlots, SlotAllocator
from ascend_kernels.harness.launch import recorded

CHECKED = {name: functools.partial(op, validate=True) for name, op in scenario.TRITON.items()}


class Follower:
    """Runs an engine and checks every step against plain Python and against what the slots hold."""

    def __init__(self, config, mode, ops, pool_rows, pages=None):
        self.pages = pages or pool_rows * config.pool_len // config.page_size
        self.config, self.mode, self.ops = config, mode, ops
        self.engine = scenario.start(config, pool_rows, self.pages)
        self.written = {}

    def join(self, length):
        prompt = [(length * 37 + i * 11) % 997 for i in range(length)]
        row = scenario.join(self.engine, prompt, self.ops)
        self.written[row] = list(prompt)

    def step(self):
        engine, config = self.engine, self.config
        before = {row: list(engine.tokens[row]) for row in engine.rows}
        done = scenario.decode(engine, self.mode, self.ops)
        for r, row in enumerate(engine.rows):
            want = scenario_reference.accepted(self.mode, config.topk, config.steps, config.nodes, before[row])
            assert engine.tokens[row] == before[row] + want
            assert int(done.accept_lens[r]) == len(want)
            assert int(done.new_verified_id[r]) == want[-1]
            self.written[row] += want
        self.check()
        return [int(n) for n in done.accept_lens]

    def finish(self, row):
        tokens = scenario.finish(self.engine, row)
        assert tokens == self.written.pop(row)
        prompt = next(n for n in range(2, len(tokens) + 1) if n == len(tokens) or self.is_prompt(tokens, n))
        count = len(tokens) - prompt
        assert tokens[prompt:] == scenario_reference.continuation(
            self.mode, self.config.topk, tokens[:prompt], count
        )
        self.check()

    def is_prompt(self, tokens, length):
        return tokens[:length] == [(length * 37 + i * 11) % 997 for i in range(length)]

    def check(self):
        engine, page = self.engine, self.config.page_size
        owned = []
        for row in engine.rows:
            slots = engine.req_to_token[row, : engine.lengths[row]].long()
            assert engine.kv[slots].tolist() == engine.tokens[row][:-1]
            assert engine.draft_kv[slots].tolist() == engine.tokens[row][:-1]
            owned += sorted({int(s) // page for s in slots})
        free = engine.allocator.free.tolist()
        assert sorted(owned + free) == list(range(self.pages))


def run(follower, steps, most, seed):
    """Random joins and finishes between steps."""
    rng = random.Random(seed)
    lens = []
    for _ in range(steps):
        while len(follower.engine.rows) < most and (not follower.engine.rows or rng.random() < 0.5):
            follower.join(rng.randint(2, 40))
        lens += follower.step()
        room = follower.config.pool_len - 2 * follower.config.alloc_len_per_decode
        for row in list(follower.engine.rows):
            if rng.random() < 0.15 or follower.engine.lengths[row] > room:
                follower.finish(row)
    return lens


SHAPES = [(1, 1, 1), (1, 3, 16), (1, 5, 64), (4, 1, 16), (4, 3, 1), (4, 5, 64), (8, 1, 1), (8, 3, 64), (8, 5, 16)]


@pytest.mark.parametrize("mode", scenario.MODES)
@pytest.mark.parametrize("topk, steps, page", SHAPES)
@pytest.mark.parametrize("ops", [scenario.REFERENCE, scenario.TORCH], ids=["reference", "torch"])
def test_torch_forms_decode_the_same_tokens(ops, topk, steps, page, mode):
    config = scenario.Config(topk, steps, page, pool_len=2048)
    lens = run(Follower(config, mode, ops, 4), 6, 4, seed=topk * steps)
    if mode == "all":
        assert set(lens) == {config.path}
    if mode == "none":
        assert set(lens) == {1}


@pytest.mark.parametrize("topk, steps, page, mode", [
    (1, 1, 1, "mixed"), (1, 3, 16, "all"), (1, 5, 64, "none"), (4, 1, 16, "mixed"), (4, 3, 1, "all"),
    (4, 3, 16, "mixed"), (8, 1, 64, "mixed"), (8, 3, 1, "none"),
])  # fmt: skip
def test_kernels_decode_the_same_tokens(topk, steps, page, mode):
    config = scenario.Config(topk, steps, page, pool_len=1024)
    run(Follower(config, mode, CHECKED, 3), 3, 3, seed=page)


@pytest.mark.slow
@pytest.mark.parametrize("requests", [32, 256])
def test_kernels_decode_large_batches(requests):
    config = scenario.Config(1, 1, 16, pool_len=256)
    follower = Follower(config, "mixed", scenario.TRITON, requests)
    for length in range(requests):
        follower.join(2 + length % 40)
    follower.step()


@pytest.mark.slow
def test_kernels_decode_1000_random_steps():
    steps = 0
    for seed in range(25):
        rng = random.Random(seed)
        config = scenario.Config(rng.choice([1, 1, 1, 2]), 1, rng.choice([1, 3, 16]), pool_len=256)
        run(Follower(config, rng.choice(scenario.MODES), scenario.TRITON, 2), 40, 1, seed)
        steps += 40
    assert steps == 1000


def test_1000_random_steps_in_torch():
    steps = 0
    for seed in range(20):
        rng = random.Random(seed)
        topk, depth, page = rng.choice(SHAPES)
        config = scenario.Config(topk, depth, page, rng.choice([4, 16, 24]), pool_len=2048)
        run(Follower(config, rng.choice(scenario.MODES), scenario.TORCH, 3), 50, 3, seed)
        steps += 50
    assert steps == 1000


@pytest.mark.parametrize("topk, steps, page, launches", [(1, 3, 16, 9), (4, 3, 1, 9), (4, 5, 16, 11)])
def test_launches_of_a_step(topk, steps, page, launches):
    config = scenario.Config(topk, steps, page)
    inputs, model = scenario.prepare(config, 2)
    with recorded() as seen:
        scenario.metadata_step(scenario.TRITON, config, inputs, model)
    # Pool, drafts, one a draft step, verify slots, verdict, accepted slots, next roots.
    assert len(seen) == launches == steps + 6


def test_a_planted_fault_is_found():
    """A compaction that keeps the first entries instead of the accepted ones must not pass."""

    def wrong(accept_index, out_cache_loc, accepted_out_cache_loc):
        accepted = int((accept_index >= 0).sum())
        accepted_out_cache_loc[:accepted] = out_cache_loc[:accepted]

    follower = Follower(
        scenario.Config(4, 3, 1), "all", scenario.REFERENCE | {"fill_accepted_out_cache_loc": wrong}, 3
    )
    for length in (5, 9, 7):
        follower.join(length)
    with pytest.raises(AssertionError):
        for _ in range(3):
            follower.step()


def test_branches_see_the_last_partial_page():
    """Behind a shared partial page, every branch's own page starts with the same tokens."""
    config = scenario.Config(4, 3, 16, pool_len=512)
    engine = scenario.start(config, 1, 32)
    scenario.join(engine, list(range(100, 108)), scenario.REFERENCE)
    seen = []

    def copied(self, source, target):
        original(self, source, target)
        groups = target.view(3, 16)
        seen.extend(self.draft_kv[group[group >= 0]].tolist() for group in groups)

    original = scenario.Toy.copied
    try:
        scenario.Toy.copied = copied
        scenario.decode(engine, "mixed", scenario.REFERENCE)
    finally:
        scenario.Toy.copied = original
    assert seen == [list(range(100, 107))] * 3


# ---- the allocator


class Slots(RuleBasedStateMachine):
    """Requests that grow, shrink and end; an independent book of who owns which slot."""

    def __init__(self):
        super().__init__()
        self.page, self.pages = 4, 23
        self.allocator = SlotAllocator(self.pages, self.page)
        self.slots = {}
        self.next = 0

    @rule(more=st.lists(st.integers(0, 17), min_size=1, max_size=5), data=st.data())
    def grow(self, more, data):
        names = [data.draw(st.sampled_from([*sorted(self.slots), self.next + i])) for i in range(len(more))]
        names = list(dict.fromkeys(names))
        self.next = max([self.next, *(n + 1 for n in names)])
        grow(self.allocator, self.slots, dict(zip(names, more)))

    @rule(data=st.data())
    def shrink(self, data):
        if self.slots:
            name = data.draw(st.sampled_from(sorted(self.slots)))
            shrink(self.allocator, self.slots, name, data.draw(st.integers(0, len(self.slots[name]))))

    @invariant()
    def no_slot_twice_none_lost(self):
        check_book(self.allocator, self.slots, self.pages)


def grow(allocator, book, more):
    held = {name: list(book.get(name, [])) for name in more}
    lengths = np.array([len(s) for s in held.values()])
    last = np.array([s[-1] if s else 0 for s in held.values()])
    free = allocator.free.copy()
    try:
        slots = allocator.extend(lengths, lengths + np.array(list(more.values())), last)
    except OutOfSlots:
        assert np.array_equal(allocator.free, free)
        return
    page = allocator.page_size
    for name, count in more.items():
        taken, slots = slots[:count].tolist(), slots[count:]
        before = held[name]
        for column, slot in enumerate(taken, len(before)):
            # A page is a run of slots; a started one is continued before another is begun.
            assert slot % page == column % page
            if column % page:
                assert slot == (before + taken)[column - 1] + 1
        book[name] = before + taken
    assert len(slots) == 0


def shrink(allocator, book, name, keep):
    page = allocator.page_size
    slots = book[name]
    whole = -(-keep // page) * page
    firsts = slots[whole::page]
    if firsts:
        allocator.release(np.array([f + i for f in firsts for i in range(page)]))
    book[name] = slots[:keep]
    if not keep:
        del book[name]


def check_book(allocator, book, pages):
    page = allocator.page_size
    owned = [slot for slots in book.values() for slot in slots]
    assert len(owned) == len(set(owned))
    held = [p for slots in book.values() for p in sorted({s // page for s in slots})]
    assert sorted(held + allocator.free.tolist()) == list(range(pages))


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("page", [1, 16, 64, 3])
def test_slots_over_10_000_random_steps(page):
    rng = random.Random(page)
    pages = 400
    allocator, book, name = SlotAllocator(pages, page), {}, 0
    for step in range(10_000):
        if not book or rng.random() < 0.55:
            names = {
                rng.choice(list(book)) if book and rng.random() < 0.6 else name + i
                for i in range(rng.randint(1, 3))
            }
            name += 3
            grow(allocator, book, {n: rng.randint(0, 3 * page) for n in sorted(names)})
        else:
            chosen = rng.choice(list(book))
            shrink(allocator, book, chosen, rng.choice([0, rng.randint(0, len(book[chosen]))]))
        book = {n: s for n, s in book.items() if s}
        if step % 50 == 0 or step > 9_950:
            check_book(allocator, book, pages)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 5), st.integers(0, 300), st.integers(2, 40))
def test_a_step_fits_what_it_allocates(page, topk, steps, length, nodes):
    config = scenario.Config(topk, steps, page, nodes)
    need = max(scenario.draft_room(length, topk, steps, page), config.nodes)
    assert need <= config.alloc_len_per_decode
    assert config.path <= config.nodes


def test_bad_slot_requests():
    allocator = SlotAllocator(2, 4)
    with pytest.raises(OutOfSlots, match="3 pages of 4 slots needed, 2 are free"):
        allocator.extend(np.array([0]), np.array([9]), np.array([0]))
    assert len(allocator.free) == 2
    with pytest.raises(ValueError, match="wanted: expected at least the length"):
        allocator.extend(np.array([5]), np.array([4]), np.array([0]))
    taken = allocator.extend(np.array([0]), np.array([5]), np.array([0]))
    assert taken.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="every slot of each page once"):
        allocator.release(taken)
    allocator.release(np.arange(4))
    with pytest.raises(ValueError, match="free already"):
        allocator.release(np.arange(4))
    with pytest.raises(ValueError, match="pages, page_size"):
        SlotAllocator(0, 4)


def test_torch_seed_gives_the_same_step():
    config = scenario.Config(4, 3, 16)
    one, two = (scenario.prepare(config, 3, seed=5) for _ in range(2))
    first = scenario.metadata_step(scenario.REFERENCE, config, *one)
    second = scenario.metadata_step(scenario.TORCH, config, *two)
    assert torch.equal(first.accept_lens, second.accept_lens)
    assert torch.equal(first.new_verified_id, second.new_verified_id)
