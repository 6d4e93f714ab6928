"""Padded MoE ops: properties, gradients, plans, compiled code, and bad input that must change nothing."""

import dataclasses
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_kernels
import ascend_kernels.padded_moe as moe
from ascend_kernels.harness import device, gate
from ascend_kernels.harness.launch import Launch, recorded, run_with
from ascend_kernels.harness.spec import PlanError, bits
from ascend_kernels.padded_moe import cases, plan, reference
from ascend_kernels.padded_moe.padded_scatter import Several
from ascend_kernels.registry import OPS

NPU = device.PROFILES["Ascend910B1"]
GPU = dataclasses.replace(NPU, kind="cuda", name="H200", cores=132, ub_bytes=0)
CALLS = {"gather": moe.padded_gather, "scatter": moe.padded_scatter, "wgrad": moe.padded_scatter_wgrad}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def made(op, *shape, seed=0, **more):
    return cases.arguments(op, *shape, **more)(torch.Generator().manual_seed(seed))


@st.composite
def routings(draw):
    experts, top_k = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    tokens = draw(st.integers(0, 10))
    few = draw(st.lists(st.integers(0, experts - 1), min_size=1, max_size=experts))
    chosen = draw(st.lists(st.sampled_from(few), min_size=tokens * top_k, max_size=tokens * top_k))
    kind = draw(st.sampled_from([torch.int32, torch.int64]))
    return {
        "expert_indices": torch.tensor(chosen, dtype=kind).view(tokens, top_k),
        "num_experts": experts,
        "padding": draw(st.integers(1, 9)),
    }


@settings(max_examples=30, deadline=None)
@given(routings())
def test_route_sorts_stably_and_counts(given):
    actual = moe.route(**given, validate=True)
    for got, want in zip(actual, reference.route(**given)):
        assert got.dtype == torch.int32 and torch.equal(got, want)
    indices, bin_ids, _, padded_bins, counts = actual
    chosen = given["expert_indices"].flatten()
    assert sorted(indices.tolist()) == list(range(len(chosen)))
    keys = list(zip(bin_ids.tolist(), indices.tolist()))
    assert keys == sorted(keys) and torch.equal(chosen[indices.long()].int(), bin_ids)
    assert int(counts.sum()) == len(chosen) and not (padded_bins % given["padding"]).any()


@settings(max_examples=25, deadline=None)
@given(
    routings(),
    st.integers(1, 40),
    st.sampled_from([BF16, FP16, FP32]),
    st.sampled_from([None, BF16, FP16, FP32]),
    st.sampled_from([torch.int32, torch.int64]),
    st.integers(0, 7),
    st.integers(0, 2**31),
)
def test_fuzzed_routings_agree_with_the_references(given, hidden, dtype, weights, metadata, spare, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens, top_k = given["expert_indices"].shape
    routing = [v.to(metadata) for v in reference.route(**given)[:4]]
    indices, bin_ids, bins, padded_bins = routing
    x = torch.randn(tokens, hidden, generator=generator).to(dtype)
    factor = None if weights is None else torch.randn(tokens * top_k, generator=generator).to(weights)
    rows = int(padded_bins[-1]) + spare
    arguments = dict(
        x=x, indices=indices, bin_ids=bin_ids, weights=factor, bins=bins, padded_bins=padded_bins, top_k=top_k
    )
    with gate.poisoned_allocations():
        padded = moe.padded_gather(**arguments, output_rows=rows, validate=True)
    expected = reference.padded_gather(**arguments, output_rows=rows)
    assert torch.equal(bits(padded), bits(expected))

    y = torch.full((rows, hidden), float("nan"), dtype=dtype)
    owned = [row for _, row in reference._assigned(indices, bin_ids, bins, padded_bins)]
    y[owned] = torch.randn(len(owned), hidden, generator=generator).to(dtype)
    arguments["x"] = y
    wrong = reference.close(
        "sum", moe.padded_scatter(**arguments, validate=True), reference.padded_scatter(**arguments), arguments
    )
    assert wrong is None
    del arguments["weights"]
    arguments["grad"] = x
    wrong = reference.close(
        "wgrad",
        moe.padded_scatter_wgrad(**arguments, validate=True),
        reference.padded_scatter_wgrad(**arguments),
        arguments,
    )
    assert wrong is None


@pytest.mark.parametrize("weights", [None, BF16, FP32], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_gradients_agree_with_autograd_of_the_fp64_reference(dtype, weights):
    a = made("gather", 9, 20, 4, 2, padding=4, dtype=dtype, weights=weights, spare=3)
    routing = (a["indices"], a["bin_ids"], a["bins"], a["padded_bins"])
    generator = torch.Generator().manual_seed(5)
    position, row = (torch.tensor(v) for v in zip(*reference._assigned(*routing)))
    token = position // a["top_k"]

    def gathered(x, w):
        out = x.new_zeros(a["output_rows"], x.shape[1])
        return out.index_put((row,), x[token] * (1 if w is None else w[position, None]))

    def scattered(y, w):
        return y.new_zeros(len(a["x"]), y.shape[1]).index_add(
            0, token, y[row] * (1 if w is None else w[position, None])
        )

    y = torch.randn(a["output_rows"], 20, generator=generator).to(dtype)
    for call, exact, x, more in (
        (moe.padded_gather_with_grad, gathered, a["x"], (a["output_rows"],)),
        (moe.padded_scatter_with_grad, scattered, y, ()),
    ):
        leaves = [v.clone().requires_grad_() for v in (x, a["weights"]) if v is not None]
        mirror = [v.detach().double().requires_grad_() for v in leaves]
        w = leaves[1] if weights else None
        out = call(leaves[0], *routing[:2], w, *routing[2:], a["top_k"], *more)
        grad = torch.randn(out.shape, generator=generator).to(dtype)
        grads = torch.autograd.grad(out, leaves, grad)
        wanted = exact(mirror[0], mirror[1] if weights else None)
        expected = torch.autograd.grad(wanted, mirror, grad.double())
        # The same derivative of absolute values bounds the sums of |terms|.
        sizes = [v.detach().abs().requires_grad_() for v in mirror]
        bound = exact(sizes[0], sizes[1] if weights else None)
        terms = torch.autograd.grad(bound, sizes, grad.double().abs())
        for got, want, size, leaf in zip(grads, expected, terms, leaves):
            assert got.dtype == leaf.dtype
            assert reference.within_rounding("gradient", got, want, size) is None


def test_a_gradient_that_nobody_wants_is_not_computed():
    a = made("gather", 5, 16, 4, 2, padding=4, weights=BF16)
    x, w = a["x"].requires_grad_(), a["weights"]
    out = moe.padded_gather_with_grad(x, a["indices"], a["bin_ids"], w, a["bins"], a["padded_bins"], 2)
    with recorded() as launches:
        out.sum().backward()
    assert {launch.kernel.fn.__name__ for launch in launches} == {"place_each_kernel", "scatter_kernel"}


@pytest.mark.parametrize(
    "case", ["small", "zipf", "top-3", "edges", "one-token", "hidden-33", "no-tokens", "waits"]
)
def test_plans_for_a_gpu_give_the_same_values(case, monkeypatch):
    monkeypatch.setattr(device, "of", lambda _: GPU)
    for name, more in {
        "route": (),
        "padded_gather": ("blocks", "tokens"),
        "padded_scatter": ("search", "sum", "several"),
        "padded_scatter_wgrad": ("blocks", "tokens"),
    }.items():
        if case not in OPS[name].cases:
            continue
        for impl in ("planned" if more else "count", *more):
            op = dataclasses.replace(OPS[name], implementations=(impl,))
            verdict = gate.verify(op, case, impl, repeat=False)
            assert verdict.ok, (name, impl, verdict.reason)


@pytest.mark.parametrize(("cores", "tile"), [(132, 2048), (4, 512)], ids=["a core each", "few"])
def test_wide_rows_of_the_weight_gradient_on_a_gpu(cores, tile, monkeypatch):
    here = dataclasses.replace(GPU, cores=cores)
    monkeypatch.setattr(device, "of", lambda _: here)
    assert plan.wgrad_blocks(26, 2, 1536, 2, here).constants["TILE"] == tile
    a = made("wgrad", 13, 1536, 5, 2, padding=16)
    got = moe.padded_scatter_wgrad(**a, impl="blocks")
    assert reference.close("wgrad", got, reference.padded_scatter_wgrad(**a), a) is None


def test_padding_rows_are_zero_on_a_poisoned_allocation():
    a = made("gather", 13, 33, 5, 2, "empty", padding=16, spare=9, weights=FP32)
    for impl in ("planned", "each", "slices", "tokens", "blocks"):
        with gate.poisoned_allocations():
            out = moe.padded_gather(**a, impl=impl)
        owned = {row for _, row in reference._assigned(a["indices"], a["bin_ids"], a["bins"], a["padded_bins"])}
        for row in set(range(len(out))) - owned:
            assert not bits(out[row]).any(), (impl, row)


def test_rows_beyond_two_billion_elements_are_reached():
    hidden = 7168
    far = 2**31 // hidden + 7
    try:
        x = torch.empty(far + 1, hidden, dtype=BF16)  # only its touched pages exist
    except RuntimeError:
        pytest.skip("the allocator refuses 4 GiB of untouched memory")
    x[0], x[far] = 1.0, 2.0
    ids = torch.tensor([0, 1], dtype=torch.int32)
    routing = {"indices": ids, "bin_ids": ids, "bins": ids + 1, "top_k": 1}
    routing["padded_bins"] = torch.tensor([far, far + 1], dtype=torch.int32)
    out = moe.padded_scatter(x, weights=None, **routing)
    assert out[0].eq(1).all() and out[1].eq(2).all()
    wgrad = moe.padded_scatter_wgrad(x, torch.full((2, hidden), 0.5, dtype=BF16), **routing)
    assert wgrad.tolist() == [hidden / 2, hidden]


class TestClose:
    arguments = made("scatter", 9, 16, 4, 2, padding=4, weights=BF16)
    expected = reference.padded_scatter(**arguments)

    def test_the_nearest_value_passes(self):
        assert reference.close("y", self.expected.to(BF16), self.expected, self.arguments) is None

    def test_the_next_value_is_wrong(self):
        actual = self.expected.to(BF16)
        place = int(actual.abs().argmax())
        actual.view(-1).view(torch.int16)[place] += 1
        words = reference.close("y", actual, self.expected, self.arguments)
        assert words and f"y[{place // 16}, {place % 16}]" in words

    def test_truncation_is_wrong(self):
        cut = (self.expected.float().view(torch.int32) & -65536).view(FP32).to(BF16)
        assert reference.close("y", cut, self.expected, self.arguments)

    def test_a_term_left_out_is_wrong(self):
        spoiled = self.arguments | {"weights": self.arguments["weights"].clone()}
        spoiled["weights"][3] = 0
        assert reference.close("y", moe.padded_scatter(**spoiled), self.expected, self.arguments)

    def test_nan_and_a_wide_dtype_are_wrong(self):
        actual = self.expected.to(BF16)
        actual[2, 3] = float("nan")
        assert reference.close("y", actual, self.expected, self.arguments)
        assert "dtype" in reference.close("y", self.expected, self.expected, self.arguments)

    @pytest.mark.parametrize("dtype", [FP16, BF16, FP32], ids=str)
    def test_half_ulp_is_half_the_distance_to_the_next_value(self, dtype):
        value = torch.tensor([1.0, 1.5, 3.0, -7.0, 1e-3, 0.0, 2.0**-20], dtype=torch.float64).to(dtype)
        step = (
            torch.nextafter(value.float().abs().to(dtype), torch.tensor(float("inf"), dtype=dtype)) - value.abs()
        )
        half = reference.half_ulp(value.double(), dtype)
        assert torch.equal(half * 2, step.double())


EDITS = {
    "bins fall": ("bins", 1, -1, r"bins\[1\]: expected values that never fall, got -1"),
    "bins miss assignments": ("bins", -1, 25, r"bins\[3\]: expected 26, the number of assignments, got 25"),
    "padded bins fall": ("padded_bins", 2, 1, r"padded_bins\[2\]: expected values that never fall"),
    "room below the count": (
        "padded_bins",
        0,
        1,
        r"padded_bins\[0\]: expected room for the \d+ assignments of exp",
    ),
    "expert too large": ("bin_ids", -1, 4, r"bin_ids\[25\]: expected an expert between 0 and 3, got 4"),
    "expert negative": ("bin_ids", 0, -1, r"bin_ids\[0\]: expected an expert between 0 and 3, got -1"),
    "expert of another bin": ("bin_ids", 0, 3, r"bin_ids\[0\]: expected the expert whose bin holds"),
    "token too large": ("indices", 3, 26, r"indices\[3\]: expected an assignment between 0 and 25, got 26"),
    "token negative": ("indices", 0, -1, r"indices\[0\]: expected an assignment between 0 and 25, got -1"),
}


def refuses(call, arguments, error, words):
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor) and not v.is_meta}
    with recorded() as launches, pytest.raises(error, match=words):
        call(**arguments)
    assert launches == []
    assert all(torch.equal(bits(arguments[k]), bits(v)) for k, v in before.items())


def sample(op):
    return made(op, 13, 16, 4, 2, padding=8, **({} if op == "wgrad" else {"weights": BF16}))


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("name", EDITS)
def test_bad_values_are_refused_when_validated(op, name):
    argument, place, value, words = EDITS[name]
    arguments = sample(op)
    arguments[argument] = arguments[argument].clone()
    arguments[argument][place] = value
    refuses(functools.partial(CALLS[op], validate=True), arguments, ValueError, words)


@pytest.mark.parametrize("op", CALLS)
def test_a_repeated_assignment_is_refused_when_validated(op):
    arguments = sample(op)
    arguments["indices"] = arguments["indices"].clone()
    arguments["indices"][5] = arguments["indices"][7]
    refuses(functools.partial(CALLS[op], validate=True), arguments, ValueError, "expected each assignment once")


def test_too_few_rows_are_refused_when_validated():
    rows = int(sample("gather")["padded_bins"][-1])
    words = f"output_rows: expected at least {rows}, the padded length, got {rows - 1}"
    refuses(
        functools.partial(moe.padded_gather, validate=True),
        sample("gather") | {"output_rows": rows - 1}, ValueError, words,
    )  # fmt: skip
    for op in ("scatter", "wgrad"):
        arguments = sample(op)
        arguments["x"] = arguments["x"][:-1]
        words = rf"x.shape\[0\]: expected at least {rows}, the padded length, got {rows - 1}"
        refuses(functools.partial(CALLS[op], validate=True), arguments, ValueError, words)


FORMS = {
    "no tensor": ({"x": [[1.0]]}, TypeError, "x: expected a tensor, got list"),
    "integer features": ({"x": lambda t: t.int()}, TypeError, "x: expected dtype float16 or bfloat16 or float32"),
    "flat features": ({"x": lambda t: t[:, 0].contiguous()}, ValueError, "x: expected shape"),
    "strided features": ({"x": lambda t: t[:, ::2]}, ValueError, "x: expected a contiguous tensor"),
    "no features": ({"x": lambda t: t[:, :0]}, ValueError, r"x.shape\[1\]: expected at least 1, got 0"),
    "float indices": ({"indices": lambda t: t.float()}, TypeError, "indices: expected dtype int32 or int64"),
    "short bin_ids": ({"bin_ids": lambda t: t[:-1]}, ValueError, r"bin_ids: expected shape \[26\], got \[25\]"),
    "short padded_bins": ({"padded_bins": lambda t: t[:-1]}, ValueError, "padded_bins: expected shape"),
    "no experts": ({"bins": lambda t: t[:0]}, ValueError, r"len\(bins\): expected at least 1, got 0"),
    "top_k zero": ({"top_k": 0}, ValueError, "top_k: expected at least 1, got 0"),
    "top_k a float": ({"top_k": 2.0}, TypeError, "top_k: expected an int, got float"),
    "top_k no divisor": (
        {"top_k": 3},
        ValueError,
        "indices: expected a multiple of top_k = 3 assignments, got 26",
    ),
    "another device": ({"bins": lambda t: t.to("meta")}, ValueError, "bins: expected a tensor on cpu"),
    "unknown impl": ({"impl": "nope"}, ValueError, "impl: expected one of"),
}


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("name", FORMS)
def test_bad_form_is_always_refused(op, name):
    change, error, words = FORMS[name]
    arguments = sample(op)
    refuses(
        CALLS[op], arguments | {k: v(arguments[k]) if callable(v) else v for k, v in change.items()}, error, words
    )


@pytest.mark.parametrize(
    "op, change, error, words",
    [
        ("gather", {"x": lambda t: t[:-1]}, ValueError, r"x: expected shape \[13, any\], got \[12, 16\]"),
        ("gather", {"weights": lambda t: t[:-1]}, ValueError, r"weights: expected shape \[26\], got \[25\]"),
        ("scatter", {"weights": lambda t: t.long()}, TypeError, "weights: expected dtype float16"),
        ("gather", {"output_rows": -1}, ValueError, "output_rows: expected between 0 and"),
        ("gather", {"output_rows": 64.0}, TypeError, "output_rows: expected an int, got float"),
        ("wgrad", {"grad": lambda t: t[:, :-1].contiguous()}, ValueError, r"grad: expected shape \[13, 16\]"),
        ("wgrad", {"grad": lambda t: t.float()}, TypeError, "grad: expected dtype bfloat16 as x, got float32"),
        ("wgrad", {"dtype": torch.int32}, TypeError, "dtype: expected float16, bfloat16 or float32"),
    ],
)
def test_bad_form_of_one_op_is_always_refused(op, change, error, words):
    arguments = sample(op)
    change = {k: v(arguments[k]) if callable(v) else v for k, v in change.items()}
    refuses(CALLS[op], arguments | change, error, words)


def test_bad_routing_decisions_are_refused():
    good = {"expert_indices": torch.tensor([[0, 1], [2, 3]]), "num_experts": 4, "padding": 8}
    for change, error, words in (
        ({"expert_indices": torch.zeros(4, dtype=torch.int32)}, ValueError, "expert_indices: expected shape"),
        ({"expert_indices": torch.zeros(2, 2)}, TypeError, "expert_indices: expected dtype int32 or int64"),
        ({"num_experts": 0}, ValueError, "num_experts: expected at least 1, got 0"),
        ({"padding": 0}, ValueError, "padding: expected between 1 and 4096, got 0"),
        ({"impl": "nope"}, ValueError, "impl: expected one of count, got 'nope'"),
        ({"num_experts": 5000}, PlanError, "5000 experts need 10506240 bits of UB, Ascend910B1 has 1572864"),
    ):
        refuses(moe.route, good | change, error, words)
    for bad in (-1, 4):
        choice = torch.tensor([[0, 1], [bad, 3]])
        words = rf"expert_indices\[1, 0\]: expected an expert between 0 and 3, got {bad}"
        refuses(functools.partial(moe.route, validate=True), good | {"expert_indices": choice}, ValueError, words)


def ignore(_: Launch) -> None:
    pass


def test_nothing_waits_for_the_device(monkeypatch):
    def waits(*_, **__):
        raise AssertionError("a value was read from the device")

    arguments = {op: sample(op) for op in CALLS}
    chosen = torch.tensor([[0, 1], [2, 3]])
    for name in ("item", "tolist", "cpu", "numpy", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    with run_with(ignore):
        for op in CALLS:
            CALLS[op](**arguments[op])
        moe.route(chosen, 4, 8)
        with pytest.raises(AssertionError, match="was read"):
            moe.padded_gather(**arguments["gather"] | {"output_rows": None})


SIZES = [1, 2, 63, 64, 65, 509, 4097, 65535, 65536, 131072, 1 << 22]


@pytest.mark.parametrize("on", [NPU, GPU], ids=["npu", "gpu"])
@pytest.mark.parametrize("hidden", [1, 2, 33, 1024, 1536, 7168, 9000])
@pytest.mark.parametrize("item", [2, 4])
def test_plans_keep_the_limits(on, hidden, item):
    for top_k in (1, 2, 8):
        for tokens in SIZES:
            a = tokens * top_k
            plans = [
                plan.place(a, on),
                plan.gather_each(a, 64, top_k, hidden, item, True, on),
                plan.gather_each(a, 64, top_k, hidden, item, True, on, one_each=True),
                plan.gather_blocks(a, 64, top_k, hidden, item, on),
                plan.gather_tokens(tokens, 64, top_k, hidden, item, True, on),
                plan.scatter(tokens, top_k, hidden, item, on),
                plan.wgrad_each(a, top_k, hidden, item, on),
                plan.wgrad_blocks(a, top_k, hidden, item, on),
                plan.wgrad_tokens(tokens, top_k, hidden, item, on),
                plan.scatter_several(tokens, top_k, hidden, item, on),
                plan.route(a, 64, on),
            ]
            for made in plans:
                assert 0 < made.grid[0] <= 65535
                assert made.run >= 1
                if "TILE" in made.constants:
                    tile = made.constants["TILE"]
                    assert tile & (tile - 1) == 0 and tile * item % 32 == 0
            # Every unit has a program.
            units = {0: a, 1: a, 2: a, 6: a, 4: tokens, 5: tokens, 8: tokens}
            for index, many in units.items():
                if index == 0 and on is GPU:
                    continue
                zeroers = plans[index].constants.get("ZEROERS", 0)
                assert (plans[index].grid[0] - zeroers) * plans[index].run >= many
            several = plan.scatter_several(tokens, top_k, hidden, item, on)
            assert several.grid[0] * several.run * several.constants["ROWS"] >= tokens


@given(rows=st.integers(1, 1 << 20), parts=st.integers(3, 40))
def test_weight_gradients_leave_no_lanes_idle_and_take_no_rows_that_are_not_there(rows, parts):
    wide = plan.wgrad_blocks(rows, 1, 512 * parts, 2, GPU)
    if GPU.cores < rows <= 16 * GPU.cores:
        assert 512 * parts % wide.constants["TILE"] == 0 and wide.constants["ROWS"] == 1
    narrow = plan.wgrad_blocks(rows, 1, 2, 2, GPU)
    assert narrow.constants["ROWS"] <= max(16, 2 * rows - 1)
    assert narrow.grid[0] * narrow.run * narrow.constants["ROWS"] >= rows


@pytest.mark.parametrize("form", ["gather_tokens", "scatter", "scatter_several", "wgrad_tokens"])
def test_launches_overlap_only_where_both_sides_know_of_it(form):
    sizes = (4096, 64, 4, 1024, 2, True) if form == "gather_tokens" else (4096, 4, 1024, 2)
    follows = getattr(plan, form)
    for on in (GPU, dataclasses.replace(GPU, overlaps=True)):
        one, two = plan.place(16384, on), follows(*sizes, on)
        assert one.constants["OVERLAP"] == two.constants["OVERLAP"] == on.overlaps
        assert two.options.get("launch_pdl", False) == on.overlaps and "launch_pdl" not in one.options
    assert "launch_pdl" not in follows(*sizes, NPU).options


def test_more_experts_than_programs_still_leave_some_for_the_rows():
    for make in (
        lambda: plan.gather_blocks(64, 70000, 1, 8, 2, GPU),
        lambda: plan.gather_tokens(64, 70000, 2, 8, 2, False, GPU),
    ):
        made = make()
        assert made.constants["ZEROERS"] < made.grid[0] <= 65535


def test_a_plan_that_does_not_fit_is_refused_with_its_bits():
    from ascend_kernels.padded_moe.padded_gather import Each

    arguments = made("gather", 4, 40000, 2, 1, padding=2)
    words = (
        "gather: a tile of 65536 elements needs 3145728 bits of UB, Ascend910B1 has 1572864; take a smaller tile"
    )
    refuses(functools.partial(moe.padded_gather, impl=Each(tile=65536)), arguments, PlanError, words)
    assert plan.gather_each(8, 4, 1, 40000, 2, False, NPU).constants["TILE"] == 8192
    assert plan.gather_slices(8, 4, 1, 40000, 4, True, NPU).constants["TILE"] < 8192


def key(launch: Launch):
    """What decides whether Triton compiles a kernel again: constants, options and the classes of its integers."""
    named = set(launch.kernel.rewriter.kwargs["do_not_specialize"] or ())
    sizes = {n: (v == 1, v % 16 == 0) for n, v in launch.args.items() if isinstance(v, int) and n not in named}
    return tuple(launch.constants.items()), tuple(launch.options.items()), tuple(sizes.items())


A = [1, 2, 3, 5, 16, 17, 63, 64, 65, 127, 128, 129, 509, 1000, 1021, 1024, 2048, 4096, 8191, 65536]


def launches_of(tokens, dtype=BF16, weights=BF16, hidden=1024, top_k=2, experts=8):
    """Every launch of every op at this size; nothing runs."""
    seen: list[Launch] = []
    x, ids = torch.empty(tokens, hidden, dtype=dtype), torch.empty(tokens * top_k, dtype=torch.int32)
    padded, bins = torch.empty(tokens * top_k + 7, 1, dtype=dtype).expand(-1, hidden), ids.new_empty(experts)
    factor = None if weights is None else torch.empty(tokens * top_k, dtype=weights)
    with run_with(seen.append), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_contiguous", lambda _: True)  # no memory for what is not touched
        moe.route(ids.view(tokens, top_k), experts, 128)
        moe.padded_gather(x, ids, ids, factor, bins, bins, top_k, len(padded))
        moe.padded_scatter(padded, ids, ids, factor, bins, bins, top_k)
        moe.padded_scatter_wgrad(padded, x, ids, ids, bins, bins, top_k)
    return seen


@pytest.mark.parametrize("on", [NPU, GPU], ids=["npu", "gpu"])
def test_twenty_batch_sizes_compile_at_most_three_variants(on, monkeypatch):
    monkeypatch.setattr(device, "of", lambda _: on)
    variants: dict[str, set] = {}
    for tokens in A:
        for launch in launches_of(tokens):
            variants.setdefault(launch.kernel.fn.__name__, set()).add(key(launch))
    assert len(variants) >= 7
    assert {name: len(keys) for name, keys in variants.items() if len(keys) > 3} == {}


@pytest.mark.compiler
def test_twenty_batch_sizes_are_three_programs_of_the_compiler_at_most():
    from ascend_model import compile_kernel

    codes: dict[str, set] = {}
    for tokens in A:
        for launch in launches_of(tokens):
            done = compile_kernel(launch.kernel, launch.args, launch.constants)
            codes.setdefault(done.kernel, set()).add(done.code)
    assert {name: len(made) for name, made in codes.items() if len(made) > 3} == {}


@functools.cache
def compiled(tokens, dtype, weights, hidden, top_k, experts):
    from ascend_model import compile_kernel

    done = [
        (launch, compile_kernel(launch.kernel, launch.args, launch.constants))
        for launch in launches_of(tokens, dtype, weights, hidden, top_k, experts)
    ]
    return {made.kernel: (launch, made) for launch, made in done}


@pytest.mark.compiler
@pytest.mark.parametrize("weights", [None, BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("shape", [(64, 1024, 4, 8), (64, 7168, 8, 64), (4, 2, 1, 2), (64, 1536, 2, 64)], ids=str)
def test_compiled_rows_wait_for_no_scalar_and_are_double_buffered(shape, dtype, weights):
    from ascend_model import static_counts

    tokens, hidden, top_k, experts = shape
    done = compiled(tokens, dtype, weights, hidden, top_k, experts)
    for name in ("gather_kernel", "scatter_kernel", "wgrad_kernel", "place_each_kernel"):
        _, made = done[name]
        assert made.status == "ok" and not made.notes, (name, made.message, made.notes)
        counts = static_counts(made.generic)
        assert counts["sync"] == 0, name
        assert counts["double_buffers"] >= 1, name
        assert counts["ub_bytes"] <= NPU.ub_bytes
        if hidden % 16 == 0:
            # A row base in int32 would overflow: every product with the hidden size is in int64.
            products = [line for line in made.hivm.splitlines() if "arith.muli" in line and f"%c{hidden}_" in line]
            assert products or name == "place_each_kernel"
            assert all(": i64" in line for line in products), name


@pytest.mark.compiler
@pytest.mark.parametrize("weights", [None, FP32], ids=str)
@pytest.mark.parametrize("hidden", [16, 1024, 7168])
@pytest.mark.parametrize("impl", ["slices", "tokens"])
def test_other_forms_of_the_gather_compile_as_planned(impl, hidden, weights):
    from ascend_model import compile_kernel, static_counts

    for dtype in (BF16, FP32):
        arguments = made("gather", 6, hidden, 4, 2, padding=2, dtype=dtype, weights=weights)
        seen: list[Launch] = []
        with run_with(seen.append):
            moe.padded_gather(**arguments, impl=impl)
        done = compile_kernel(seen[-1].kernel, seen[-1].args, seen[-1].constants)
        assert done.status == "ok" and not done.notes, (done.message, done.notes)
        counts = static_counts(done.generic)
        assert counts["sync"] == 0 and counts["double_buffers"] >= 1


@pytest.mark.compiler
@pytest.mark.parametrize("experts", [1, 8, 64, 256])
def test_route_compiles_without_losing_its_buffers(experts):
    done = compiled(64, BF16, None, 16, 2, experts)
    for name in ("count_kernel", "cumulate_kernel", "sort_kernel"):
        assert done[name][1].status == "ok" and not done[name][1].notes, name


@pytest.mark.compiler
@pytest.mark.slow
def test_more_assignments_than_a_grid_may_have_programs_in_compiled_code():
    from ascend_kernels.harness.model import Modelled

    op = OPS["padded_gather"]
    verdict = gate.verify(op, "16384x2-e8-k4", "planned", Modelled(), repeat=False)
    assert verdict.ok, verdict.reason


def test_public_names():
    for name in moe.__all__:
        assert getattr(ascend_kernels, name) is getattr(moe, name)


@pytest.mark.parametrize(
    ("assignments", "top_k", "row", "waits", "form"),
    [
        (65536, 4, 2048, False, "tokens"),  # 128 MB: rows are read from memory again
        (65536, 4, 2048, True, "blocks"),  # one launch, since the host has to wait for the last call's
        (131072, 8, 14336, True, "tokens"),  # 1.8 GB
        (65536, 1, 2048, False, "blocks"),  # every row is read once
        (2048, 2, 3072, False, "blocks"),
    ],
)
def test_the_form_of_a_gather_on_a_gpu(assignments, top_k, row, waits, form):
    assert plan.gather_form(assignments, top_k, row, waits, GPU) == form
    assert plan.gather_form(assignments, top_k, row, waits, NPU) == "each"


@pytest.mark.parametrize(
    ("assignments", "top_k", "hidden", "form"),
    [
        (65536, 4, 2, "several"),
        (65536, 4, 4096, "sum"),
        (64, 8, 2, "search"),  # one launch
        (65536, 1, 2, "blocks"),  # nothing to sum
    ],
)
def test_the_form_of_a_scatter_on_a_gpu(assignments, top_k, hidden, form):
    assert plan.scatter_form(assignments, top_k, hidden, GPU) == form
    assert plan.scatter_form(assignments, top_k, hidden, NPU) == "sum"


@pytest.mark.parametrize("top_k", [1, 3, 9])  # 9: terms in a loop
@pytest.mark.parametrize("hidden", [1, 33, 70])
def test_several_tokens_at_once_give_the_values_of_one_after_another(top_k, hidden, monkeypatch):
    """Also where the last block is not full, a row takes several tiles and a program several blocks."""
    monkeypatch.setattr(device, "of", lambda _: dataclasses.replace(GPU, grid_limit=2))
    arguments = made("scatter", 13, hidden, 5, top_k, padding=4, weights=FP32)
    expected = reference.padded_scatter(**arguments)
    for choice in (None, {"TILE": 32, "ROWS": 4}, {"ROWS": 1}, {"ROWS": 64, "UNROLL": False}):
        out = moe.padded_scatter(**arguments, impl=Several(choice), validate=True)
        assert reference.close("out", out, expected, arguments) is None, choice


def test_what_a_gather_needs_is_made_ready_before_the_host_waits():
    """The size of the result is read when everything else is done, so that the device works meanwhile."""
    arguments = OPS["padded_gather"].cases["waits"].arguments()
    order = []

    class Watched(torch.Tensor):
        def __int__(self):
            order.append("read")
            return int(self.as_subclass(torch.Tensor))

    arguments["padded_bins"] = arguments["padded_bins"].as_subclass(Watched)
    with run_with(lambda launch: order.append(launch.kernel.__name__)):
        moe.padded_gather(**arguments, impl="tokens")
    assert order == ["place_each_kernel", "read", "gather_tokens_kernel"]
