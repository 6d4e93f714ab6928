"""Launch plans chosen by measuring: which measurement speaks for which sizes, and what may be chosen."""

import argparse
import copy
import dataclasses
import importlib
import inspect
import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_kernels import families, measured_plans
from ascend_kernels.harness import device, gate, launch, plans
from ascend_kernels.harness.spec import OK, PlanError
from ascend_kernels.kpool import plan as kpool_plan
from ascend_kernels.registry import OPS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
GPU = dataclasses.replace(device.PROFILES["Ascend910B1"], kind="cuda", name="Some GPU", cores=132, ub_bytes=0)
NAMES = ("rows", "length")


def record(sizes, choice, name="Some GPU", plan="family.copy"):
    return plans.Measured(plan, name, sizes, choice, (2.0, 2.0), (1.0, 1.0), 3, {"torch": "2", "triton": "3"})


sizes = st.fixed_dictionaries({"rows": st.integers(1, 10**6), "length": st.integers(0, 10**6)})


@given(st.lists(sizes, max_size=6), sizes)
def test_the_nearest_measurement_speaks_and_none_beyond_twice_the_size(measured, asked):
    table = tuple(record(one, {"at": i}) for i, one in enumerate(measured))
    got = plans.choice(table, "family.copy", GPU, **asked)

    def octaves(one):
        return max(abs(math.log2(max(1, one[name]) / max(1, asked[name]))) for name in NAMES)

    near = [i for i, one in enumerate(measured) if octaves(one) <= 1 + 1e-12]
    if not got:
        assert not near
    else:
        assert octaves(measured[got["at"]]) <= min(octaves(measured[i]) for i in near) + 1e-12


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Another GPU"},
        {"plan": "family.other"},
        {"sizes": {"rows": 8, "item": "4"}},
        {"sizes": {"rows": 8}},
    ],
    ids=["device", "plan", "text", "names"],
)
def test_another_device_plan_or_text_says_nothing(change):
    asked = {"rows": 8, "item": "2"}
    table = (record(**{"sizes": asked, "choice": {"block": 64}} | change),)
    assert plans.choice(table, "family.copy", GPU, **asked) == {}
    assert plans.choice((record(asked, {"block": 64}),), "family.copy", GPU, **asked) == {"block": 64}


def test_trying_replaces_what_was_measured_and_nothing_outlasts_it():
    table = (record({"rows": 8}, {"block": 64}),)
    with plans.asked() as seen, plans.trying({"family.copy": {"block": 16}}):
        assert plans.choice(table, "family.copy", GPU, rows=8) == {"block": 16}
        assert plans.choice(table, "family.other", GPU, rows=9) == {}
    assert seen == {"family.copy": {"rows": 8}, "family.other": {"rows": 9}}
    with plans.trying({}):
        assert plans.choice(table, "family.copy", GPU, rows=8) == {}
    assert plans.choice(table, "family.copy", GPU, rows=8) == {"block": 64}


@pytest.fixture
def on_gpu(monkeypatch):
    """Plans are a GPU's; kernels run in the interpreter."""
    monkeypatch.setattr(device, "of", lambda tensor: GPU)
    monkeypatch.setattr(device, "current", lambda: GPU)


TUNED = ["assign_draft_cache_locs", "assign_req_to_token_pool", "expand_pools_and_append_tail", "padded_gather",
         "padded_scatter", "padded_scatter_wgrad", "route", "top_p_renorm_prob"]  # fmt: skip


@pytest.mark.parametrize("name", TUNED)
def test_every_candidate_gives_the_right_result(name, on_gpu):
    import gpu_tune

    op = OPS[name]
    case = min(op.quick_cases(), key=lambda case: gpu_tune_size(op, case))
    tuned = gpu_tune.with_candidates(op, gpu_tune.consulted(op, case, "cpu"))
    assert len(tuned.twins) >= 3
    expected = gate.Expected.of(tuned, case)
    for impl in tuned.calls():
        verdict = gate.verify(tuned, case, impl, repeat=False, expected=expected)
        assert verdict.state == OK, f"{impl}: {verdict.reason}"


def gpu_tune_size(op, case):
    return sum(v.numel() for v in op.cases[case].arguments().values() if hasattr(v, "numel"))


def test_what_is_kept_is_a_candidate_that_was_faster():
    import gpu_tune

    for one in measured_plans.MEASURED:
        assert one.choice in gpu_tune.candidates(one.plan, one.sizes)
        assert one.choice_us[0] < one.rule_us[0] * (1 - gpu_tune.GAIN)
        assert one.choice_us[1] <= one.rule_us[1] * 1.05 and one.tried >= 3
    keys = [(one.plan, one.device, json.dumps(dict(one.sizes))) for one in measured_plans.MEASURED]
    assert len(keys) == len(set(keys))


CASE = {
    "op": "a", "case": "large", "floor": 0.001, "sizes": {"f.p": {"rows": 8}}, "device": "Some GPU",
    "rows": [
        {"impl": "rule", "cold_us": 10.0, "warm_us": 8.0},
        {"impl": 'f.p {"block": 1}', "cold_us": 9.0, "warm_us": 8.0},
        {"impl": 'f.p {"block": 2}', "cold_us": 9.5, "warm_us": 8.0},
        {"impl": 'f.p {"block": 3}'},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "change, block",
    [
        (lambda a, b: None, 1),
        (lambda a, b: a["rows"][1].update(warm_us=8.2), 2),
        (lambda a, b: a.update(floor=0.03), 1),
        (lambda a, b: a.update(floor=0.06), None),
        (lambda a, b: [row.update(cold_us=9.85) for one in (a, b) for row in one["rows"][1:3]], None),
        (lambda a, b: a["rows"].pop(0), None),
        (lambda a, b: b["rows"][1].update(cold_us=10.2), 2),
        (lambda a, b: b["rows"].pop(1), 2),
        (lambda a, b: b["rows"][2].update(cold_us=7.0), 2),
    ],
    ids=["fastest", "slower in L2", "noise", "more noise", "too little", "no rule", "slower in the other op",
         "wrong in the other op", "mean of both"],
)  # fmt: skip
def test_which_candidate_is_chosen(change, block):
    import gpu_tune

    one, two = copy.deepcopy(CASE), {**copy.deepcopy(CASE), "op": "b"}
    change(one, two)
    found = gpu_tune.chosen([one, two])
    assert [chosen["choice"]["block"] for chosen in found] == ([] if block is None else [block])


def alone(cold, warm=8.0, block=1):
    """The second process of CASE: the rule and one candidate."""
    return {**CASE, "rows": [{"impl": "rule", "cold_us": 20.0, "warm_us": 8.0},
                             {"impl": f'f.p {{"block": {block}}}', "cold_us": cold, "warm_us": warm}]}  # fmt: skip


@pytest.mark.parametrize(
    "again, kept",
    [
        ([alone(18.0)], [(20.0, 18.0)]),
        ([], []),
        ([alone(19.9)], []),
        ([alone(18.0, warm=9.0)], []),
        ([alone(18.0, block=2)], []),
    ],
    ids=["as fast again", "not timed again", "the same", "slower in L2", "another one"],
)
def test_a_choice_holds_in_a_second_process_whose_times_count(again, kept):
    import gpu_tune

    found = gpu_tune.confirmed({"cases": [CASE], "again": again})
    assert [(one["rule_us"][0], one["choice_us"][0]) for one in found] == [pytest.approx(pair) for pair in kept]
    assert all(one["tried"] == 2 for one in found)


def test_a_case_measured_anew_is_to_be_timed_again():
    import gpu_tune

    run = {"device": "Some GPU", "cases": [CASE], "again": [alone(18.0)]}
    assert gpu_tune.confirmed(gpu_tune.merged([run])) and not gpu_tune.confirmed(
        gpu_tune.merged([run, {**run, "again": []}])
    )
    assert gpu_tune.confirmed(gpu_tune.merged([{**run, "again": []}, {**run, "cases": []}]))


def test_half_of_a_second_process_confirms_nothing():
    import gpu_tune

    other = {**CASE, "op": "b"}
    found = {"cases": [CASE, other], "again": [alone(18.0)]}
    assert gpu_tune.confirmed(found) == []
    assert gpu_tune.confirmed({**found, "again": [alone(18.0), {**alone(18.0), "op": "b"}]})


@pytest.mark.parametrize(
    "outcome, code, words, left",
    [
        ({"device": "Some GPU"}, 0, "1 of 1 choices hold", 17.0),
        ({"device": "dry run"}, 4, "chosen on Some GPU cannot be timed again on dry run", 18.0),
        (None, 1, "timed again: it died", 18.0),
    ],
    ids=["held", "another device", "died"],
)
def test_the_second_half_alone(outcome, code, words, left, tmp_path, monkeypatch, capsys):
    import gpu_tune

    monkeypatch.setattr(gpu_tune.device, "kind", lambda: "dry")
    monkeypatch.setattr(gpu_tune, "OPS", {"a": argparse.Namespace(cases={"large": None})})
    made = outcome and {**alone(17.0), **outcome}
    monkeypatch.setattr(gpu_tune.isolated, "each", lambda jobs, *_, **__: [(job, made, "it died") for job in jobs])
    run = {"version": 2, "device": "Some GPU", "cases": [CASE], "again": [alone(18.0)], "lost": {}, "versions": {},
           "dry": False}  # fmt: skip
    place = tmp_path / "t.json"
    place.write_text(json.dumps(run))
    assert gpu_tune.main(["--from", str(place), "--json", str(place)]) == code
    said = capsys.readouterr()
    assert words in said.out + said.err
    [again] = json.loads(place.read_text())["again"]
    assert again["device"] == "Some GPU" and again["rows"][1]["cold_us"] == left


def test_runs_that_cannot_be_one_are_refused_and_empty_ones_do_not_count():
    import gpu_tune

    run = {"device": "Some GPU", "cases": [CASE], "again": [], "versions": {"triton": "3.6"}}
    empty = {**run, "device": "", "cases": []}
    assert gpu_tune.merged([empty, run, empty])["device"] == "Some GPU"
    with pytest.raises(ValueError, match="different versions"):
        gpu_tune.merged([run, {**run, "versions": {"triton": "3.7"}}])
    with pytest.raises(ValueError, match="no case was measured"):
        gpu_tune.merged([empty])


def test_a_module_of_plans_is_what_was_chosen():
    import gpu_tune

    run = {"device": "Some GPU", "cases": [CASE], "again": [CASE], "versions": {"torch": "2", "triton": "3"},
           "dry": False}  # fmt: skip
    other = {**CASE, "rows": [{**row, "cold_us": 10.0, "warm_us": 8.0} for row in CASE["rows"]]}
    space: dict = {"__name__": "ascend_kernels.made", "__package__": "ascend_kernels"}
    exec(gpu_tune.module(gpu_tune.merged([{**run, "cases": [other]}, run])), space)
    [made] = space["MEASURED"]
    assert made == plans.Measured(
        "f.p", "Some GPU", {"rows": 8}, {"block": 1}, (10.0, 8.0), (9.0, 8.0), 2, run["versions"]
    )
    exec(gpu_tune.module(gpu_tune.merged([run, {**run, "cases": [other]}])), space)
    assert space["MEASURED"] == ()
    with pytest.raises(ValueError, match="dry"):
        gpu_tune.module({**run, "dry": True})
    with pytest.raises(ValueError, match="different devices"):
        gpu_tune.merged([run, {**run, "device": "Another GPU"}])


# ---- plans that are kept

FAMILIES = {name: importlib.import_module(f"ascend_kernels.{name}.plan") for name in families()}
KEPT = [
    pytest.param(made, id=f"{name}.{function}")
    for name, module in FAMILIES.items()
    for function, made in vars(module).items()
    if hasattr(made, "__wrapped__") and made.__module__ == module.__name__
]
DEVICES = [GPU, dataclasses.replace(GPU, cores=84), dataclasses.replace(GPU, name="NVIDIA H200", overlaps=True),
           *(device.PROFILES[name] for name in ("Ascend910B1", "Ascend910B4"))]  # fmt: skip
few, many = st.integers(1, 16), st.integers(1, 70000)
DRAWN = {
    "device": st.sampled_from(DEVICES), "weighted": st.booleans(), "one_each": st.booleans(),
    "item": st.sampled_from((2, 4, 8)), "metadata_item": st.sampled_from((4, 8)), "words": st.integers(1, 2),
    "pool_size": st.sampled_from((4, 8, 16, 4096)), "topk": st.integers(1, 20), "top_k": few,
    "block": st.sampled_from((None, 32)), "form": st.sampled_from(("", "bits_kernel mass")),
    "given": st.sampled_from((None, {"num_warps": 2})),
}  # fmt: skip


def arguments_of(plan):
    """Drawn arguments of a plan function, in its order."""
    of_tile = {"tiles": st.sampled_from(list(kpool_plan.TILES.values())), "tokens": st.booleans()}
    drawn = {"tile": of_tile.get(plan.__name__, st.sampled_from((None, 64))), **DRAWN}
    if plan.__name__ == "vocabulary":
        drawn["block"] = st.sampled_from((1024, 8192))
    return st.tuples(*(drawn.get(name, st.one_of(few, many)) for name in inspect.signature(plan).parameters))


def outcome(plan, arguments):
    try:
        return plan(*arguments)
    except PlanError as error:
        return str(error)


@pytest.mark.parametrize("plan", KEPT)
@given(data=st.data())
def test_a_kept_plan_is_what_would_be_made_anew(plan, data):
    one, two = (data.draw(arguments_of(plan)) for _ in range(2))
    for arguments in (one, two, one, two):
        assert outcome(plan, arguments) == outcome(plan.__wrapped__, arguments)


def test_every_plan_of_a_launch_is_kept():
    plain = [
        f"{name}.{function}"
        for name, module in FAMILIES.items()
        for function, made in vars(module).items()
        if inspect.isfunction(made) and made.__annotations__.get("return") in ("Plan", "Draw")
        and not hasattr(made, "__wrapped__")
    ]  # fmt: skip
    assert not plain and len(KEPT) >= 20


SPANS = (32, 512, 4, 4, GPU)


def test_a_choice_that_is_tried_replaces_a_kept_plan_and_is_not_kept():
    before = FAMILIES["token_pool"].spans(*SPANS)
    with plans.trying({"token_pool.spans": {"block": 2048, "num_warps": 1}}):
        tried = FAMILIES["token_pool"].spans(*SPANS)
    assert (tried.block, dict(tried.options)) == (2048, {"num_warps": 1})
    assert FAMILIES["token_pool"].spans(*SPANS) == before != tried


def test_a_kept_plan_still_says_which_sizes_it_asks_for():
    FAMILIES["token_pool"].spans(*SPANS)
    with plans.asked() as seen:
        FAMILIES["token_pool"].spans(*SPANS)
    assert seen == {"token_pool.spans": {"requests": 32, "length": 16, "item": "4", "way": "into the pool"}}


def test_another_table_is_seen_after_a_plan_was_kept(monkeypatch):
    module = FAMILIES["token_pool"]
    before = module.spans(*SPANS)
    for block in (2048, 1024):
        sizes = {"requests": 32, "length": 16, "item": "4", "way": "into the pool"}
        monkeypatch.setattr(module, "MEASURED", (record(sizes, {"block": block}, plan="token_pool.spans"),))
        assert module.spans(*SPANS).block == block
    monkeypatch.undo()
    assert module.spans(*SPANS) == before


def test_another_target_is_seen_after_a_plan_was_kept(monkeypatch):
    grids = []
    for target in ("Ascend910B1", "Ascend910B4", "Ascend910B1"):
        monkeypatch.setenv("ASCEND_KERNELS_TARGET", target)
        case = OPS["assign_draft_cache_locs"].cases["256x8x5"]
        with launch.run_with(lambda one: grids.append(one.grid)):
            OPS["assign_draft_cache_locs"].call(**case.arguments())
    assert grids == [(48,), (40,), (48,)]


def test_devices_are_equal_by_all_their_facts():
    other = dataclasses.replace(GPU, cores=84)
    assert GPU != other and hash(GPU) == hash(dataclasses.replace(GPU)) and GPU == dataclasses.replace(GPU)
    assert FAMILIES["eagle"].programs(10**6, GPU) == device.GRID_LIMIT
    assert FAMILIES["kpool"].ids(10**6, GPU) != FAMILIES["kpool"].ids(10**6, device.PROFILES["Ascend910B1"])


def test_no_more_plans_are_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(plans, "MOST_KEPT", 4)
    made = []
    kept = plans.kept(lambda size: made.append(size) or size)
    assert [kept(size) for size in (*range(1, 5), 1, 5, 1)] == [1, 2, 3, 4, 1, 5, 1]
    assert made == [1, 2, 3, 4, 5, 1]
