"""EAGLE ops: properties against independent computations, compiled-code bounds, bad input that changes nothing."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_kernels
from ascend_kernels.eagle import cases, plan, reference
from ascend_kernels.eagle.assign_paged_draft_cache_locs import draft_room
from ascend_kernels.eagle.tree import tree_fault
from ascend_kernels.harness import device
from ascend_kernels.harness.launch import recorded, run_with
from ascend_kernels.harness.model import Modelled
from ascend_kernels.harness.spec import PlanError
from ascend_kernels.registry import OPS

NPU = device.PROFILES["Ascend910B1"]
GPU = dataclasses.replace(NPU, kind="cuda", cores=132, ub_bytes=0)
EAGLE = [op for op in OPS.values() if op.family == "eagle"]
FILL_NEW = ascend_kernels.fill_new_verified_id
FILL_ACCEPTED = ascend_kernels.fill_accepted_out_cache_loc
SELECT = ascend_kernels.select_top_k_tokens
VERIFY = ascend_kernels.verify_tree_greedy
TOP_K = ascend_kernels.top_k_renorm_prob
TOP_P = ascend_kernels.top_p_renorm_prob
SAMPLE = ascend_kernels.tree_speculative_sampling_target_only
PAGED = ascend_kernels.assign_paged_draft_cache_locs


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# ---- the compactions


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(-1, 40), min_size=1, max_size=200),
    st.sampled_from([torch.int32, torch.int64]),
    st.sampled_from([torch.int32, torch.int64]),
    st.sampled_from(["tile", "lane"]),
)
def test_accepted_slots_are_packed_in_order(entries, index, slots, impl):
    wide = 2**40 if slots == torch.int64 else 1
    table = torch.arange(41, dtype=torch.int64) * wide - 7
    out = torch.full((len(entries),), -5, dtype=slots)
    FILL_ACCEPTED(torch.tensor(entries, dtype=index), table.to(slots), out, impl=impl, validate=True)
    wanted = [e * wide - 7 for e in entries if e >= 0]
    assert out.tolist() == wanted + [-5] * (len(entries) - len(wanted))


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 70), st.sampled_from(["tile", "lane"]))
def test_new_root_is_the_last_accepted_token(data, requests, drafts, impl):
    lens = data.draw(st.lists(st.integers(1, drafts), min_size=requests, max_size=requests))
    tokens = torch.arange(requests * drafts, dtype=torch.int64) * 2**33 - 3
    out = torch.zeros(requests, dtype=torch.int64)
    FILL_NEW(tokens, torch.tensor(lens), out, drafts, impl=impl, validate=True)
    assert out.tolist() == [int(tokens[r * drafts + n - 1]) for r, n in enumerate(lens)]


def test_dtypes_that_differ_take_the_implementation_that_converts():
    out = torch.zeros(2, dtype=torch.int32)
    FILL_NEW(torch.arange(8), torch.tensor([1, 4]), out, 4)
    assert out.tolist() == [0, 7]
    packed = torch.zeros(2, dtype=torch.int32)
    FILL_ACCEPTED(torch.tensor([-1, 3, 0]), torch.arange(10, 20), packed)
    assert packed.tolist() == [13, 10]
    with pytest.raises(TypeError, match="new_verified_id: expected the"):
        FILL_NEW(torch.arange(8), torch.tensor([1, 4]), out, 4, impl="tile")


# ---- the draft step


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 2**31),
    st.sampled_from(["tile", "lane"]),
)
def test_best_candidates_lowest_place_first(k, requests, step, seed, impl):
    rng = np.random.default_rng(seed)
    p = (rng.integers(0, 5, (requests, k, k)) / 4).astype(np.float32)
    scores = (rng.integers(0, 5, (requests, k)) / 4).astype(np.float32)
    index = rng.integers(0, 2**31 - 1, (requests, k * k))
    hidden = torch.arange(requests * k, dtype=torch.float32)[:, None].repeat(1, 5)
    ids, states, best, (tree, tokens, parents) = SELECT(
        step, torch.from_numpy(p), torch.from_numpy(index), hidden, torch.from_numpy(scores), k,
        impl=impl, validate=True,
    )  # fmt: skip
    expanded = scores[:, :, None] * p
    order = np.argsort(-expanded.reshape(requests, k * k), axis=1, kind="stable")[:, :k]
    assert np.array_equal(tree.numpy(), expanded)
    assert np.array_equal(best.numpy(), np.take_along_axis(expanded.reshape(requests, -1), order, 1))
    assert np.array_equal(ids.numpy().reshape(requests, k), np.take_along_axis(index, order, 1))
    assert np.array_equal(parents.numpy(), order + k * k * (step - 1) + k)
    rows = order // k + np.arange(requests)[:, None] * k
    assert np.array_equal(states.numpy(), np.repeat(rows.reshape(-1, 1), 5, 1).astype(np.float32))
    assert np.array_equal(tokens.numpy(), index)


def test_first_step_views_and_repeats():
    p, index = torch.rand(3, 4, generator=generator()), torch.arange(12).view(3, 4)
    hidden = torch.randn(3, 7, generator=generator())
    ids, states, scores, (tree, tokens, parents) = SELECT(0, p, index, hidden, None, 4)
    assert torch.equal(ids, index.flatten()) and torch.equal(states, hidden.repeat_interleave(4, 0))
    assert torch.equal(scores, p) and tree.shape == (3, 1, 4) and torch.equal(tokens, index)
    assert parents.tolist() == [[-1, 0, 1, 2, 3]] * 3


def test_one_launch_a_call():
    quick = {"fill_new_verified_id": "3x5", "fill_accepted_out_cache_loc": "3x5", "verify_tree_greedy": "3x6",
             "select_top_k_tokens": "step2-5x3", "top_k_renorm_prob": "1x64", "top_p_renorm_prob": "1x64",
             "tree_speculative_sampling_target_only": "3x6x50"}  # fmt: skip
    for name, case in quick.items():
        with recorded() as launches:
            OPS[name].call(**OPS[name].cases[case].arguments())
        assert len(launches) == 1, name


# ---- trees


def known_trees():
    """Two trees of six nodes with a known verdict: one chain of three accepted, one of two."""
    target = torch.full((2, 6), 18)
    for r, node, token in [(0, 0, 3), (0, 3, 4), (0, 4, 5), (1, 0, 11), (1, 4, 12)]:
        target[r, node] = token
    return {
        "candidates": torch.tensor([[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]]),
        "retrieve_index": torch.arange(12).view(2, 6),
        "retrieve_next_token": torch.tensor([[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]]),
        "retrieve_next_sibling": torch.tensor([[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]]),
        "target_predict": target,
    }


def test_known_verdict():
    predicts, accept_index, counts = VERIFY(**known_trees(), num_speculative_tokens=4, validate=True)
    assert predicts.tolist() == [3, -1, -1, 4, 5, 18, 11, -1, -1, -1, 12, 18]
    assert accept_index.tolist() == [[0, 3, 4, 5], [6, 10, 11, -1]]
    assert counts.tolist() == [3, 2]
    _, wide, _ = VERIFY(**known_trees())
    assert wide.tolist() == [[0, 3, 4, 5, -1, -1], [6, 10, 11, -1, -1, -1]]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 20),
    st.floats(0, 1),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_greedy_walk_on_random_trees(requests, nodes, fan, follow, seed, shuffled):
    arguments = cases.verification(requests, nodes, fan=fan, follow=follow)(generator(seed))
    if shuffled:  # places of a request in any order within its slice
        index = arguments["retrieve_index"]
        arguments["retrieve_index"] = index.gather(
            1, torch.rand(index.shape, generator=generator(seed)).argsort(1)
        )
    for impl in ("tile", "walk"):
        for got, want in zip(
            VERIFY(**arguments, impl=impl, validate=True), reference.verify_tree_greedy(**arguments)
        ):
            assert torch.equal(got, want)


@pytest.mark.parametrize("impl", ["tile", "walk"])
def test_links_that_never_end_do_not_hang(impl):
    loop = known_trees() | {"retrieve_next_sibling": torch.tensor([[-1, 1, -1, -1, -1, -1]] * 2)}
    loop["target_predict"] = torch.full((2, 6), 99)
    _, accept_index, counts = VERIFY(**loop, impl=impl)
    assert counts.tolist() == [0, 0] and accept_index[:, 0].tolist() == [0, 6]


@pytest.mark.parametrize(
    "child, sibling, fault",
    [
        ([1, -1, -1], [-1, 2, -1], None),
        ([1, 2, -1], [-1, -1, -1], None),
        ([-1], [-1], None),
        ([1, -1, -1], [-1, -1, -1], "node 2 has no path from the root"),
        ([1, 0, -1], [-1, 2, -1], "node 0 is reached twice"),
        ([1, 2, -1], [-1, 2, -1], "node 2 is reached twice"),
        ([1, -1, -1], [-1, 2, 1], "node 1 is reached twice"),
        ([1, -1, -1], [2, -1, -1], "the root has node 2 as its sibling"),
    ],
)
def test_what_is_no_tree(child, sibling, fault):
    assert tree_fault(child, sibling) == fault


# ---- renormalisation


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 300), st.integers(0, 2**31), st.floats(0, 6))
def test_top_k_keeps_the_largest_and_their_equals(rows, vocab, seed, spread):
    probs = cases.probabilities(rows, vocab, generator(seed), spread=spread)
    k = torch.from_numpy(np.random.default_rng(seed).integers(1, vocab + 3, rows))
    out = TOP_K(probs, k, validate=True)
    for row, kept, n in zip(probs, out, k.tolist()):
        values = sorted(row.tolist(), reverse=True)
        cut = values[min(n, vocab) - 1]
        assert torch.equal(kept > 0, (row >= cut) & (row > 0))
        total = math.fsum(v for v in values if v >= cut)
        assert torch.allclose(kept.double(), torch.where(row >= cut, row, 0.0).double() / total, rtol=1e-6, atol=0)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(1, 300), st.integers(0, 2**31), st.floats(0, 6))
def test_top_p_keeps_the_fewest_that_reach_the_mass(rows, vocab, seed, spread):
    probs = cases.probabilities(rows, vocab, generator(seed), spread=spread)
    p = torch.rand(rows, generator=generator(seed)).clamp(min=1e-3)
    out = TOP_P(probs, p, validate=True)
    for row, kept, mass in zip(probs, out, p.tolist()):
        values = sorted(row.tolist(), reverse=True)
        count = next(n for n in range(1, vocab + 1) if math.fsum(values[:n]) >= mass)
        assert torch.equal(kept > 0, (row >= values[count - 1]) & (row > 0))
        assert abs(float(kept.double().sum()) - 1) < 1e-5


@pytest.mark.parametrize("k, kept", [(1, [5]), (2, [4, 5]), (3, [3, 4, 5]), (4, [2, 3, 4, 5]), (6, range(7))])
def test_the_smallest_patterns_are_told_apart(k, kept):
    """Zero and neighbouring subnormal numbers: the search reads bit patterns."""
    row = torch.tensor([[0.0, 2**-149, 2 * 2**-149, 3 * 2**-149, 0.25, 0.75, 0.0]])
    out = TOP_K(row, torch.tensor([k]))
    assert (out[0] > 0).nonzero().flatten().tolist() == [i for i in kept if row[0, i] > 0]
    assert TOP_P(row, torch.tensor([0.8]))[0].tolist() == [0, 0, 0, 0, 0.25, 0.75, 0]


# ---- sampling


def draws_of(number, acc=1.0, seed=11, vocab=12):
    """One root with three children, `number` times: arguments of the sampling and the target's distribution."""
    gen = generator(seed)
    target = cases.probabilities(1, vocab, gen, spread=1.0)[0]
    return {
        "candidates": torch.tensor([[0, 3, 7, 1]]).repeat(number, 1),
        "retrieve_index": torch.arange(number * 4).view(number, 4),
        "retrieve_next_token": torch.tensor([[1, -1, -1, -1]]).repeat(number, 1),
        "retrieve_next_sibling": torch.tensor([[-1, 2, 3, -1]]).repeat(number, 1),
        "uniform_samples": cases.coins((number, 4), gen),
        "uniform_samples_for_final_sampling": cases.coins((number,), gen),
        "target_probs": target.expand(number, 4, vocab).contiguous(),
        "threshold_acc": acc,
    }, target


def chi_square_p(counts, target):
    """Probability of a chi-square at least this large, by the Wilson-Hilferty approximation."""
    expected = target.double() * counts.sum()
    chi = float(((counts - expected) ** 2 / expected).sum())
    free = len(target) - 1
    z = ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    return 0.5 * math.erfc(z / math.sqrt(2))


def walk(arguments, keep_rejected=False):
    """First tokens of draws_of by the rule itself, all draws at once: a third way beside kernel and reference."""
    p = arguments["target_probs"][0, 0].double().numpy()
    coin, final = (
        arguments["uniform_samples"][:, 0].numpy(),
        arguments["uniform_samples_for_final_sampling"].numpy(),
    )
    tokens = arguments["candidates"][0, 1:].tolist()
    token, mass = np.full(len(coin), -1), 0.0
    for child in tokens:
        mass += p[child]
        token = np.where((token < 0) & (coin <= mass / arguments["threshold_acc"]), child, token)
    left = p.copy()
    if not keep_rejected:
        left[tokens] = 0
    drawn = np.searchsorted(left.cumsum(), final * left.sum(), side="right")
    return torch.from_numpy(np.where(token < 0, drawn, token))


def test_200_000_draws_follow_the_target():
    arguments, target = draws_of(200_000)
    assert chi_square_p(torch.bincount(walk(arguments), minlength=12).double(), target) > 0.001


def test_biased_draws_are_rejected():
    biased, target = draws_of(200_000, acc=0.9)
    assert chi_square_p(torch.bincount(walk(biased), minlength=12).double(), target) < 0.001
    arguments, target = draws_of(200_000)
    kept = walk(arguments, keep_rejected=True)
    assert chi_square_p(torch.bincount(kept, minlength=12).double(), target) < 0.001


def test_kernel_draws_are_those_draws():
    number = 150
    arguments, _ = draws_of(200_000)
    part = {k: v[:number] if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    predicts, _, _ = SAMPLE(**part, validate=True)
    assert torch.equal(predicts.view(-1, 4)[:, 0].long(), walk(part))


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 10), st.integers(2, 90), st.integers(1, 10), st.integers(0, 2**31),
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 5),
)  # fmt: skip
def test_sampling_walk_on_random_trees(requests, nodes, vocab, fan, seed, single, acc, spread):
    make = cases.sampling(requests, nodes, vocab, fan=fan, single=single, acc=acc, spread=spread)
    arguments = make(generator(seed))
    for got, want in zip(
        SAMPLE(**arguments, validate=True), reference.tree_speculative_sampling_target_only(**arguments)
    ):
        assert torch.equal(got, want)


def test_nothing_left_gives_the_last_token():
    arguments, _ = draws_of(1)
    arguments["target_probs"] = torch.zeros(1, 4, 12)
    arguments["target_probs"][..., [3, 7, 1]] = torch.tensor([0.5, 0.25, 0.125])
    arguments["uniform_samples"][:] = 0.9999
    predicts, accept_index, counts = SAMPLE(**arguments)
    assert counts.tolist() == [0] and accept_index.tolist() == [[0, -1, -1, -1]]
    assert predicts.tolist() == [11, -1, -1, -1]


def test_coins_at_the_ends():
    arguments, target = draws_of(2)
    arguments["uniform_samples"][:] = 0.999999
    arguments["uniform_samples_for_final_sampling"][:] = torch.tensor([0.0, 1 - 2**-24])
    predicts, _, _ = SAMPLE(**arguments)
    left = [t for t in range(12) if t not in (3, 7, 1) and target[t] > 0]
    assert predicts.view(2, 4)[:, 0].tolist() == [left[0], left[-1]]


# ---- paged drafts


@pytest.mark.parametrize(
    "topk, steps, page, length", [(8, 5, 4, 7), (8, 5, 4, 8), (2, 3, 16, 15), (4, 1, 64, 100)]
)
def test_copies_of_the_last_partial_page_are_disjoint(topk, steps, page, length):
    pool = torch.randperm(1024, generator=generator()).to(torch.int32).view(1, 1024)
    drafts = torch.full((topk * steps,), -9)
    source, target = (torch.full(((topk - 1) * page,), -9) for _ in range(2))
    PAGED(
        torch.tensor([0]), pool, torch.tensor([length]), drafts, source, target, topk, steps, page, validate=True
    )
    rest = length % page
    copied = source[source >= 0].tolist()
    assert copied == pool[0, length - rest : length].tolist() * (topk - 1)
    written = target[target >= 0].tolist() + drafts.tolist()
    assert len(written) == len(set(written)) and not set(written) & set(pool[0, :length].tolist())
    room = draft_room(length, topk, steps, page)
    assert set(written) <= set(pool[0, length : length + room].tolist())
    for branch in range(topk):
        first = length - rest + branch * (rest + room) // topk
        assert drafts[branch * steps : (branch + 1) * steps].tolist() == pool[0, first + rest :][:steps].tolist()


# ---- what the Ascend compiler makes of it


def modelled(name, case, impl):
    runner = Modelled()
    arguments = OPS[name].cases[case].arguments()
    with run_with(runner):
        OPS[name].calls()[impl](**arguments)
    assert runner.findings == []
    return [done.counts for done in runner.simulations]


@pytest.mark.compiler
def test_compaction_of_4096_entries_has_no_scalar_loop():
    (counts,) = modelled("fill_accepted_out_cache_loc", "256x16", "tile")
    # Two a block of 64: how many came before it, how many it holds.
    assert counts["scalar_accesses"] <= 2 * 4096 // 64
    (slow,) = modelled("fill_accepted_out_cache_loc", "256x6", "lane")
    assert slow["scalar_accesses"] > 1536


@pytest.mark.compiler
@pytest.mark.parametrize(
    "case, choices", [("step1-3x2", 6), ("step2-5x3", 15), ("step1-17x4", 68), ("step4-7x8-ties", 56)]
)
def test_selection_has_no_scalar_loop_over_candidates(case, choices):
    (counts,) = modelled("select_top_k_tokens", case, "tile")
    assert counts["scalar_accesses"] <= choices  # the row a hidden state comes from


@pytest.mark.compiler
def test_new_roots_need_no_scalar_at_all():
    (counts,) = modelled("fill_new_verified_id", "64x8-int64", "tile")
    assert counts["scalar_accesses"] == 0


@pytest.mark.compiler
@pytest.mark.parametrize("impl, passes", [("bits", 30), ("digits", 10)])
@pytest.mark.parametrize("name", ["top_k_renorm_prob", "top_p_renorm_prob"])
def test_renormalisation_reads_a_scalar_a_pass(name, impl, passes):
    (counts,) = modelled(name, "4x1000", impl)
    assert counts["scalar_accesses"] <= 4 * (passes + 2)  # the limit and the total, too, by row


@pytest.mark.compiler
def test_verification_in_tiles_needs_no_scalar():
    (counts,) = modelled("verify_tree_greedy", "32x16", "tile")
    assert counts["scalar_accesses"] == 0


@pytest.mark.compiler
def test_counting_in_int64_is_scalar():
    (fast,) = modelled("fill_accepted_out_cache_loc", "32x6", "tile")
    (slow,) = modelled("fill_accepted_out_cache_loc", "32x6", "int64-count")
    assert slow["scalar_accesses"] > 1000 * fast["scalar_accesses"]


@pytest.mark.compiler
@pytest.mark.parametrize(
    "name, make",
    [
        ("fill_accepted_out_cache_loc", cases.accepted(1, 1, 1)),
        ("fill_new_verified_id", cases.new_verified(1, 1)),
        ("select_top_k_tokens", cases.selection(1, 1, 1, 1)),
        ("verify_tree_greedy", cases.verification(1, 1)),
        ("verify_tree_greedy", cases.verification(1, 16, steps=1)),
        ("top_k_renorm_prob", cases.renormalisation("top_k", 1, 1)),
        ("tree_speculative_sampling_target_only", cases.sampling(1, 1, 1)),
        ("assign_paged_draft_cache_locs", cases.paged_draft(1, 2, 1, 1, 8)),
    ],
)
def test_sizes_of_one_in_compiled_code(name, make):
    """A size of 1 becomes a constant, which makes other code."""
    arguments, expected = make(generator()), make(generator())
    with run_with(Modelled()):
        got = OPS[name].call(**arguments)
    want = OPS[name].reference(**expected)
    for one, two in zip(flat(got), flat(want)):
        assert OPS[name].compare("output", one, two, expected) is None
    for key in OPS[name].writes:
        assert torch.equal(arguments[key], expected[key])


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value or () for t in flat(part)]


# ---- plans


@pytest.mark.parametrize("on", [NPU, GPU], ids=["ascend", "cuda"])
@pytest.mark.parametrize("n", [1, 3, 5, 33, 300, 4096, 65535, 65536, 75264])
def test_plans_keep_the_limits(n, on):
    made = [
        plan.new_verified(n, 64, 1, on), plan.compaction(n, 2 * n, 2, on), plan.choose(n, 8, on),
        plan.vocabulary(n, 152064, on), plan.trees(n, 64, on),
    ]  # fmt: skip
    for one in made:
        assert 1 <= one.programs <= 65535
        assert one.tile & (one.tile - 1) == 0
        if on.ascend:
            assert one.programs <= on.cores


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: plan.new_verified(4, 5000, 1, NPU), "need 160000 bits of UB"),
        (lambda: plan.compaction(2**25, 4, 1, NPU), "33554432 entries"),
        (lambda: plan.choose(4, 17, NPU), r"topk 17: .* need \d+ bits of UB, Ascend910B1 has 1572864"),
        (lambda: plan.vocabulary(4, 2**24 + 1, NPU), "a vocabulary of 16777217"),
        (lambda: plan.draw(4, 2**18 + 1, NPU), "a vocabulary of 262145"),
        (lambda: plan.tree_rows(4, 65, NPU), "trees of 65 nodes need 1638400 bits of UB, Ascend910B1 has 1572864"),
        (lambda: plan.paged(4, 4097, NPU), "runs of 4097 slots need 3145728 bits of UB, Ascend910B1 has 1572864"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(PlanError, match=words):
        make()


# ---- bad input


def case(name, which=None):
    op = OPS[name]
    return op.cases[which or {"select_top_k_tokens": "step2-5x3"}.get(name) or op.quick_cases()[0]].arguments()


def at(*place):
    *index, value = place

    def edit(tensor):
        copy = tensor.clone()
        copy[tuple(index)] = value
        return copy

    return edit


NEW, ACC, SEL, VER = (
    "fill_new_verified_id",
    "fill_accepted_out_cache_loc",
    "select_top_k_tokens",
    "verify_tree_greedy",
)
K, P, SAM = "top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only"
PAGE = "assign_paged_draft_cache_locs"

BAD_FORM = [
    (NEW, "verified_id", [1, 2], TypeError, "verified_id: expected a tensor, got list"),
    (NEW, "accept_lens", lambda t: t.float(), TypeError, "accept_lens: expected dtype int32 or int64"),
    (NEW, "verified_id", lambda t: t[:-1], ValueError, r"verified_id: expected shape \[15\], got \[14\]"),
    (NEW, "new_verified_id", lambda t: t[:-1], ValueError, "new_verified_id: expected shape"),
    (NEW, "num_draft_tokens", 0, ValueError, "num_draft_tokens: expected at least 1, got 0"),
    (NEW, "impl", "nope", ValueError, "impl: expected one of tile, lane, got 'nope'"),
    (ACC, "accept_index", lambda t: t.view(3, -1), ValueError, "accept_index: expected shape"),
    (ACC, "out_cache_loc", lambda t: t.double(), TypeError, "out_cache_loc: expected dtype"),
    (ACC, "out_cache_loc", lambda t: t[::2], ValueError, "out_cache_loc: expected a contiguous"),
    (ACC, "accepted_out_cache_loc", lambda t: t.to("meta"), ValueError, "expected a tensor on cpu"),
    (SEL, "step", -1, ValueError, "step: expected at least 0, got -1"),
    (SEL, "topk", 0, ValueError, "topk: expected at least 1, got 0"),
    (SEL, "topk_p", lambda t: t.double(), TypeError, "topk_p: expected dtype float32, got float64"),
    (SEL, "topk_p", lambda t: t[:-1], ValueError, "topk_p: expected shape|topk_index: expected"),
    (SEL, "topk_index", lambda t: t[:-1], ValueError, "topk_index: expected 45 tokens"),
    (SEL, "hidden_states", lambda t: t[:-1], ValueError, "hidden_states: expected 15 rows, or none"),
    (SEL, "scores", None, TypeError, "scores: expected a tensor, got NoneType"),
    (SEL, "scores", lambda t: t[:, :-1], ValueError, "scores: expected shape"),
    (VER, "candidates", lambda t: t[0], ValueError, "candidates: expected shape"),
    (VER, "retrieve_next_token", lambda t: t[:, :-1], ValueError, "retrieve_next_token: expected shape"),
    (VER, "target_predict", lambda t: t[:, :-1].contiguous(), ValueError, "target_predict: expected"),
    (VER, "num_speculative_tokens", 0, ValueError, "num_speculative_tokens: expected at least 1"),
    (K, "probs", lambda t: t.half(), TypeError, "probs: expected dtype float32, got float16"),
    (K, "probs", lambda t: t.T, ValueError, "top_k: expected shape|probs: expected a contiguous"),
    (K, "top_k", lambda t: t[:-1], ValueError, "top_k: expected shape"),
    (K, "top_k", lambda t: t.float(), TypeError, "top_k: expected dtype int32 or int64"),
    (P, "top_p", lambda t: t.double(), TypeError, "top_p: expected dtype float32"),
    (SAM, "uniform_samples", lambda t: t[:, :-1], ValueError, "uniform_samples: expected shape"),
    (SAM, "target_probs", lambda t: t[:-1], ValueError, "target_probs: expected shape"),
    (SAM, "threshold_acc", 1.5, ValueError, "threshold_acc: expected a number between 0 and 1, got 1.5"),
    (SAM, "threshold_single", "1", TypeError, "threshold_single: expected a float, got str"),
    (PAGE, "page_size", 0, ValueError, "page_size: expected at least 1"),
    (PAGE, "copy_source", lambda t: t[:-1], ValueError, "copy_source: expected shape"),
]  # fmt: skip

BAD_VALUES = [
    (NEW, "accept_lens", at(1, 0), r"accept_lens\[1\]: expected between 1 and 5, .* got 0"),
    (NEW, "accept_lens", at(2, 6), r"accept_lens\[2\]: expected between 1 and 5, .* got 6"),
    (ACC, "accept_index", at(3, -2), r"accept_index\[3\]: expected -1 or a place below 24 .* got -2"),
    (ACC, "accept_index", at(0, 24), r"accept_index\[0\]: expected -1 or a place below 24"),
    (ACC, "accepted_out_cache_loc", lambda t: t[:2].clone(), "accepted_out_cache_loc: expected room for"),
    (SEL, "topk_p", at(0, 1, 1.5), r"topk_p\[0, 1\]: expected a probability between 0 and 1, got 1.5"),
    (SEL, "scores", at(1, 2, math.nan), r"scores\[1, 2\]: expected a probability .* got nan"),
    (SEL, "topk_index", at(0, 0, -4), r"topk_index\[0, 0\]: expected a token number"),
    (VER, "retrieve_next_token", at(1, 0, 6), r"retrieve_next_token\[1, 0\]: expected -1 or a node below 6"),
    (VER, "retrieve_next_token", at(0, 0, 0), "no tree in request 0: node 0 is reached twice"),
    (VER, "retrieve_next_token", at(2, 0, -1), "no tree in request 2: node 1 has no path from the root"),
    (VER, "retrieve_next_sibling", at(1, 0, 3), "no tree in request 1: the root has node 3 as its sibling"),
    (VER, "retrieve_index", at(1, 2, 0), "retrieve_index.*: expected rows that are permutations"),
    (K, "top_k", at(2, 0), r"top_k\[2\]: expected at least 1, got 0"),
    (K, "probs", at(1, 3, 0.9), r"probs.sum\(-1\)\[1\]: expected 1 within 0.001, got 1.8|probs.sum"),
    (K, "probs", at(1, 3, -0.1), r"probs\[1, 3\]: expected a probability between 0 and 1"),
    (P, "top_p", at(0, 0.0), r"top_p\[0\]: expected above 0 and at most 1, got 0"),
    (P, "top_p", at(0, math.nan), r"top_p\[0\]: expected above 0 and at most 1, got nan"),
    (P, "probs", at(0, 0, math.inf), r"probs\[0, 0\]: expected a probability"),
    (SAM, "target_probs", lambda t: t * 0.5, r"target_probs.sum\(-1\)\[0, 0\]: expected 1 within 0.001, got 0.5"),
    (SAM, "uniform_samples", at(0, 1, 1.0), r"uniform_samples\[0, 1\]: expected a coin in \[0, 1\), got 1.0"),
    (SAM, "candidates", at(1, 2, 50), r"candidates\[1, 2\]: expected a token below 50, got 50"),
    (SAM, "retrieve_next_token", at(0, 0, -1), "no tree in request 0"),
    (PAGE, "seq_lens", at(1, 250), r"seq_lens\[1\]: expected a length whose draft pages fit 256 columns, got 250"),
    (PAGE, "req_pool_indices", at(0, 8), r"req_pool_indices\[0\]: expected a row between 0 and 7, got 8"),
]  # fmt: skip


def refuses(name, argument, change, error, words, **more):
    arguments = case(name)
    arguments[argument] = change(arguments[argument]) if callable(change) else change
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor) and not v.is_meta}
    with recorded() as launches, pytest.raises(error, match=words):
        OPS[name].call(**arguments, **more)
    assert launches == []
    assert all(torch.equal(arguments[k].nan_to_num(9), v.nan_to_num(9)) for k, v in before.items())


@pytest.mark.parametrize("name, argument, change, error, words", BAD_FORM)
def test_bad_form_is_refused(name, argument, change, error, words):
    refuses(name, argument, change, error, words)


@pytest.mark.parametrize("name, argument, change, words", BAD_VALUES)
def test_bad_values_are_refused_when_validated(name, argument, change, words):
    refuses(name, argument, change, ValueError, words, validate=True)


def test_scores_at_step_zero_are_refused():
    arguments = case(SEL, "step0-3x4") | {"scores": torch.ones(3, 4)}
    with pytest.raises(TypeError, match="scores: expected None at step 0"):
        SELECT(**arguments)


def test_empty_batches_launch_nothing():
    empty = [("no-requests", n) for n in (NEW, ACC, SEL, VER, SAM, PAGE)] + [("no-rows", n) for n in (K, P)]
    for which, name in empty:
        with recorded() as launches:
            OPS[name].call(**case(name, which), validate=True)
        assert launches == [], name


def test_offsets_are_derived_not_carried():
    """No loop of an own kernel adds to a vector that a mask or pointer uses; carried ones may get wrong bounds."""
    import ast
    import inspect

    import ascend_kernels.eagle as family

    for name in family.__all__:
        module = inspect.getmodule(getattr(family, name))
        for loop in (
            n for n in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(n, ast.For | ast.While)
        ):
            carried = {
                n.target.id
                for n in ast.walk(loop)
                if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
            }
            for call in (n for n in ast.walk(loop) if isinstance(n, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr in ("load", "store"):
                    used = {n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)}
                    masks = [k.value for k in call.keywords if k.arg == "mask"]
                    used |= {n.id for m in masks for n in ast.walk(m) if isinstance(n, ast.Name)}
                    assert not used & carried, (name, call.lineno, used & carried)


def test_order_of_requests_does_not_matter():
    """A batch in another order gives the same verdicts in that order."""
    arguments = cases.verification(12, 9)(generator(3))
    order = list(range(12))
    random.Random(1).shuffle(order)
    _, index, counts = VERIFY(**arguments)
    moved = {k: v[order].contiguous() for k, v in arguments.items() if k != "retrieve_index"}
    _, again, counts_again = VERIFY(**moved, retrieve_index=arguments["retrieve_index"])
    first = torch.arange(12)[:, None] * 9
    paths = torch.where(index >= 0, index - first, -1)
    assert torch.equal(counts[order], counts_again)
    assert torch.equal(paths[order], torch.where(again >= 0, again - first, -1))
