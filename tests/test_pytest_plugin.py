"""The pytest plugin: each kind of fault in a planted kernel fails its test, with the line and what to do."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  here once: a second import in one process fails
import triton  # noqa: F401

import ascend_model

pytest_plugins = ["pytester"]

KERNELS = """
import pytest, torch, triton
import triton.language as tl

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < n
    tl.store(out + offset, tl.load(x + offset, mask=mask) * 2.0, mask=mask)

@triton.jit
def into_input(x, out, n, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    tl.store(out + offset, tl.load(x + offset, mask=offset < n) * 2.0, mask=offset < n)
    tl.store(x + offset, offset * 3.0, mask=offset < n)

@triton.jit
def unmasked(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offset, tl.load(x + offset) * 2.0)  # PLACE unmasked

@triton.jit
def whole_tiles(x, out, n, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    start = tl.program_id(0) * n
    mask = n > offset
    tl.store(out + start + offset, tl.load(x + start + offset, mask=mask) * 2.0, mask=mask)  # PLACE tiles

@triton.jit
def same_element(x, out, n, BLOCK: tl.constexpr):
    i = 0
    while i < n:
        tl.store(out + i // 8, tl.load(x + i) * 2.0)  # PLACE same
        i += 1

@triton.jit
def misspelled(x, out, n, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    tl.store(out + offset, tl.load(x + offset) * factr)  # PLACE misspelled

@triton.jit
def too_large(x, out, n, BLOCK: tl.constexpr):  # PLACE large
    offset = tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < n)
    tl.store(out + offset, value * tl.exp(value) + tl.sqrt(value), mask=offset < n)

@triton.jit
def product(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(x + at)))  # PLACE dot

@triton.jit
def no_end(x, out, n, BLOCK: tl.constexpr):
    i = 0
    while i < n:  # PLACE endless
        tl.store(out + i, 1.0)
        i += tl.load(x)

X = torch.arange(100, dtype=torch.float32)
def given(n=100, size=100):
    return {"x": X.clone(), "out": torch.zeros(size), "n": n}
"""


@pytest.fixture
def ran(pytester, monkeypatch):
    """Runs a test body in a file with the kernels, and gives the result."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(body: str, *options: str):
        text = KERNELS + "\n\n" + body
        pytester.makepyfile(text)
        # A place is named by its comment in the kernels.
        run.lines = {found[1]: n for n, line in enumerate(text.strip().splitlines(), 1)
                     if (found := re.search(r"# PLACE (\w+)", line))}  # fmt: skip
        return pytester.runpytest_inprocess("-p", "ascend_pytest.plugin", "-p", "no:cacheprovider", *options)

    return run


def said(result) -> str:
    return "\n".join(result.outlines)


@pytest.mark.compiler
def test_a_right_kernel_passes_and_gives_its_numbers(ran):
    result = ran('''
def test_double(ascend):
    args = given()
    report = ascend.check(double, 2, args, {"BLOCK": 64}, expected={"out": X * 2})
    assert report.counts["bytes_in"] == 400 and report.counts["bytes_out"] == 400 and report.counts["dma_in"] == 2
    assert report.counts["scalar_accesses"] == 0
    assert report.cycles >= report.bound_cycles > 0
    assert torch.equal(report.outputs["out"], X * 2)
    assert float(args["out"].abs().sum()) == 0, "the arguments of the test stay as they are"
    by_order = ascend.check(double, (2,), [X, torch.zeros(100), 100], {"BLOCK": 64}, {"out": (X * 2).numpy()})
    assert by_order.counts == report.counts and by_order.cycles == report.cycles

def test_a_budget_that_is_not_kept(ascend):
    assert ascend.check(double, 2, given(), {"BLOCK": 64}).counts["dma_in"] <= 1

def test_tolerances(ascend):
    near = X * 2 * 1.001
    ascend.check(double, 2, given(), {"BLOCK": 64}, expected={"out": near}, rtol=0.002)
    ascend.check(double, 2, given(), {"BLOCK": 64}, expected={"out": near.double()}, rtol=0.002)
    ascend.check(double, 2, given(), {"BLOCK": 64}, expected={"out": X * 2 + 0.5}, atol=0.5)
    # 0.002 i > 0.09 + 0.0005 * 2.002 i from i = 91 on
    with pytest.raises(AssertionError, match=r"out\\[91\\] is 182.0, expected 182.18.* \\(9 of 100 elements"):
        ascend.check(double, 2, given(), {"BLOCK": 64}, expected={"out": near}, rtol=0.0005, atol=0.09)

def test_one_tensor_twice(ascend):
    x = X.clone()
    ascend.check(double, 2, {"x": x, "out": x, "n": 100}, {"BLOCK": 64}, expected={"out": X * 2})
''')  # fmt: skip
    result.assert_outcomes(passed=3, failed=1)
    assert "assert 2 <= 1" in said(result)


PLANTED = {
    "wrong result": (
        'ascend.check(double, 2, given(), {"BLOCK": 64}, expected={"out": X * 3})',
        None,
        ["wrong result: out[1] is 2.0, expected 3.0 (99 of 100 elements differ); at most 99 apart"],
    ),
    "shape": (
        'ascend.check(double, 2, given(), {"BLOCK": 64}, expected={"out": torch.zeros(10)})',
        None,
        ["out has shape [100], expected [10]"],
    ),
    "kind": (
        'ascend.check(double, 2, given(), {"BLOCK": 64}, expected={"out": torch.zeros(100, dtype=torch.int32)})',
        None,
        ["out is float32, expected int32"],
    ),
    "written": (
        'ascend.check(into_input, 1, given(), {"BLOCK": 128}, expected={"out": X * 2})',
        None,
        ["`x` was written: x[1] is 3.0, before the launch 1.0 (99 of 100", "or in scratch=['x']"],
    ),
    "out of bounds": (
        'ascend.check(unmasked, 2, given(), {"BLOCK": 64})',
        "unmasked",
        ["out of bounds read: read outside x (100 elements); elements 100..127", "out of bounds write",
         "(28 times)", "what to do: mask the access"],
    ),
    "read-modify-write": (
        'ascend.check(whole_tiles, 2, given(n=40, size=200) | {"x": torch.ones(200)}, {"BLOCK": 64})',
        "tiles",
        ["read-modify-write overlap", "programs 0 and 1",
         "cause: The store to `out` became load, select and store of the whole tile", "write `offset < n`"],
    ),
    "missing wait": (
        'ascend.check(same_element, 1, given(n=5), {"BLOCK": 64})',
        "same",
        ["missing wait: MTE3 overwrites part of out", "what to do:"],
    ),
    "compile failure": (
        'ascend.check(misspelled, 1, given(), {"BLOCK": 64})',
        "misspelled",
        ["frontend error", "factr is not defined"],
    ),
    "unified buffer": (
        'ascend.check(too_large, 1, given(), {"BLOCK": 65536})',
        "large",
        ["ub overflow", "take 524288 bytes of unified buffer where 196608 are there", "use a smaller block"],
    ),
    "unknown op": (
        'ascend.check(product, 1, given(size=1024) | {"x": torch.zeros(1024)}, {"BLOCK": 32})',
        "dot",
        ["unsupported: cube", "tl.dot", "it cannot be judged here"],
    ),
    "endless loop": (
        'ascend.check(no_end, 1, given() | {"x": torch.zeros(1).int()}, {"BLOCK": 32}, max_ops=9000)',
        "endless",
        ["endless loop", "raise max_ops"],
    ),
}  # fmt: skip


@pytest.mark.compiler
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_fails_with_its_line(ran, fault):
    call, place, words = PLANTED[fault]
    result = ran(f"def test_it(ascend):\n    {call}\n")
    result.assert_outcomes(failed=1)
    text = said(result)
    for one in words:
        assert one in text, text
    assert "AscendFailure" in text
    if place:
        [file] = {found[1] for found in re.finditer(r"(test_\w+\.py):\d+: ", text)}
        assert f"{file}:{ran.lines[place]}: " in text, text
    # The traceback shows the line of the test, and nothing of the plugin.
    assert f">       {call}"[:60].strip() in text or call[:40] in text
    assert "checking.py" not in re.sub(r"AscendFailure.*", "", text)


@pytest.mark.compiler
def test_hazards_that_are_allowed_are_reported(ran):
    result = ran("""
def test_it(ascend):
    report = ascend.check(whole_tiles, 2, given(n=40, size=200) | {"x": torch.ones(200)}, {"BLOCK": 64},
                          allow=["read-modify-write overlap"])
    assert [one.partition(":")[0] for one in report.hazards] == ["read-modify-write overlap"] and report.cycles
    assert "load, select and store" in report.advice[0]

def test_outside(ascend):
    report = ascend.check(unmasked, 2, given(), {"BLOCK": 64}, allow=["out of bounds read", "out of bounds write"],
                          expected={"out": X * 2})
    assert report.cycles and report.counts["out_of_bounds"] == 56

def test_scratch(ascend):
    ascend.check(into_input, 1, given(), {"BLOCK": 128}, expected={"out": X * 2}, scratch=["x"])

@pytest.mark.parametrize("wrong", [{"allow": ["nothing"]}, {"expected": {"y": 1}}, {"scratch": ["n"]}])
def test_wrong_calls(ascend, wrong):
    with pytest.raises(ValueError, match="no hazard is called 'nothing'|is no tensor among the arguments: x, out"):
        ascend.check(double, 2, given(), {"BLOCK": 64}, **wrong)
""")
    result.assert_outcomes(passed=6)


@pytest.mark.compiler
def test_a_compiler_that_is_not_here_skips_or_fails(ran):
    body = """
def test_it(ascend):
    report = ascend.check(double, 2, given(), {"BLOCK": 64}, {"out": X * 2})
    assert list(report.on) == [report.compiler] and report.on[report.compiler].counts == report.counts

def test_wrong(ascend):
    ascend.check(double, 2, given(), {"BLOCK": 64}, {"out": X}, compilers=["0.0.9", INSTALLED])
""".replace("INSTALLED", repr(ascend_model.toolchain.installed_version()))
    result = ran(body)
    # What does run is judged even where another compiler is missing.
    result.assert_outcomes(passed=1, failed=1)
    result = ran(body, "--ascend-compilers", "0.0.9", "-rs")
    result.assert_outcomes(skipped=1, failed=1)
    assert "ascend-perf compilers add 0.0.9" in said(result)
    result = ran(body, "--ascend-compilers=0.0.9", "--ascend-missing=fail")
    result.assert_outcomes(failed=2)
    assert "ascend-perf compilers add 0.0.9" in said(result)


@pytest.mark.parametrize(("option", "outcome"), [("", "skipped"), ("--ascend-missing=fail", "failed")])
def test_without_any_compiler(ran, monkeypatch, option, outcome):
    monkeypatch.setattr(ascend_model.toolchain, "triton_ascend_version", lambda: None)
    result = ran("def test_it(ascend):\n    ascend.check(double, 2, given(), {'BLOCK': 64})\n",
                 "-rs", *([option] if option else []))  # fmt: skip
    result.assert_outcomes(**{outcome: 1})
    assert "pip install 'ascend-perf[model]'" in said(result)


@pytest.mark.parametrize(("option", "outcome"), [("skip", "skipped"), ("fail", "errors")])
def test_without_torch(ran, monkeypatch, option, outcome):
    monkeypatch.setitem(sys.modules, "ascend_pytest.checking", None)
    result = ran("def test_it(ascend):\n    pass\n", f"--ascend-missing={option}", "-rs")
    result.assert_outcomes(**{outcome: 1})
    assert "pip install 'ascend-perf[model]'" in said(result)


def test_settings_of_the_project(ran, pytester):
    pytester.makeini(
        "[pytest]\nascend_missing = fail\nascend_compilers = 0.0.9, 0.0.8\nascend_target = Ascend910B3\n"
    )
    body = """
def test_it(ascend):
    assert (ascend.compilers, ascend.target) == (('0.0.9', '0.0.8'), 'Ascend910B3')
    assert ascend.fail_when_missing
"""
    ran(body).assert_outcomes(passed=1)
    pytester.makeini("[pytest]\nascend_missing = perhaps\n")
    result = ran(body)
    result.assert_outcomes(errors=1)
    assert "ascend_missing = perhaps: expected skip or fail" in said(result)
    pytester.makeini("[pytest]\nascend_target = Ascend9\n")
    result = ran(body)
    result.assert_outcomes(errors=1)
    assert "ascend_target: no target 'Ascend9'; there are Ascend910B1, " in said(result)


@pytest.mark.compiler
def test_every_named_compiler_must_pass(ran):
    """ascendnpu-ir 1.0.0 and 1.2.0 need not agree: each failure names its compiler."""
    versions = ascend_model.toolchain.available_versions()
    if len(versions) < 2:
        pytest.skip("one compiler here")
    result = ran(f"""
def test_it(ascend):
    report = ascend.check(double, 2, given(), {{"BLOCK": 64}}, {{"out": X * 2}}, compilers={versions})
    assert list(report.on) == {versions} and report.compiler == {versions[0]!r}
    assert all(one.counts["bytes_in"] == 400 for one in report.on.values())

def test_wrong(ascend):
    ascend.check(double, 2, given(), {{"BLOCK": 64}}, {{"out": X}}, compilers={versions})
""")
    result.assert_outcomes(passed=1, failed=1)
    assert all(f"ascendnpu-ir {one} (modelled)" in said(result) for one in versions)


def test_a_run_without_the_fixture_loads_nothing(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    pytester.makepyfile("""
import sys
def test_it():
    assert "ascend_pytest.plugin" in sys.modules
    loaded = {"torch", "triton", "numpy", "ascend_model", "ascend_kernels", "ascend_pytest.checking"}
    assert not loaded & set(sys.modules)
""")
    pytester.runpytest_subprocess("-p", "ascend_pytest.plugin").assert_outcomes(passed=1)


def test_the_entry_point_of_the_package():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    module = importlib.import_module(project["project"]["entry-points"]["pytest11"]["ascend"])
    assert callable(module.pytest_addoption) and module is sys.modules["ascend_pytest.plugin"]
