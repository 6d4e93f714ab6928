"""Descriptions of kernels of any repository: what is not written, what cannot be imported, what is launched."""

import json
import sys
import sysconfig
import textwrap
from pathlib import Path

import own_kernels
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_kernels  # noqa: F401  switches the interpreter on before triton is imported
from ascend_kernels.harness import describe, gate, isolated, kept, sources, suite
from ascend_kernels.harness.describe import DescriptionError, family, op, todo
from ascend_kernels.harness.launch import Launch, run_with
from ascend_kernels.harness.spec import COMPILE_FAILED, CRASHED, NOT_RUN, OK, UNSUPPORTED, WRONG_RESULT
from dashboards import specimen

SIZES = {"16": {"n": 16}}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The three kernels, and a function that describes an op of them as their benchmarks file would."""
    own_kernels.write(tmp_path)
    (tmp_path / "asv.conf.json").write_text("{}")
    monkeypatch.delenv("ASV_ENV_DIR", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in (
            "nn",
            "kernels",
            "other",
            "vector_add",
            "gather",
            "beside",
        ) or name.startswith(("_described", "_of_test")):
            del sys.modules[name]


def ops_of(folder: Path, text: str, name: str = "bench_mine.py") -> dict:
    """Ops of a benchmarks file with this OPS list."""
    place = folder / "benchmarks" / name
    place.parent.mkdir(exist_ok=True)
    head = "import torch, triton\nfrom ascend_kernels.harness.describe import *\n"
    place.write_text(f"{head}OPS = [\n{textwrap.dedent(text)}]\nFAMILY = family(__file__, OPS)\n")
    spec = describe.importlib.util.spec_from_file_location(f"_of_test_{place.stem}", place)
    module = describe.importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.FAMILY.ops)


ADD = """op("add", call="kernels/vector_add.py:add", cases={"16": {"n": 16}, "3000": {"n": 3000}},
   inputs=lambda rng, n: {"x": torch.randn(n, generator=rng), "y": torch.randn(n, generator=rng)},
   reference=lambda x, y: %s),
"""
GATHER = """op("gather", kernel="gather.py:gather_kernel", grid=lambda index_ptr: len(index_ptr),
   constants=lambda width: {"BLOCK": triton.next_power_of_2(width)},
   inputs=lambda rng: {"out_ptr": torch.zeros(5, 6), "width": 6, "table_ptr": torch.randn(9, 6, generator=rng),
       "index_ptr": torch.randint(0, 9, (5,), generator=rng, dtype=torch.int32)},
   cases={"5": {}}, writes=("out_ptr",), reference=lambda index_ptr, table_ptr: %s),
"""
SOFTMAX = """op("softmax", call="src/nn/softmax.py:softmax", cases={"4x9": {"rows": 4, "cols": 9}},
   inputs=lambda rng, rows, cols: {"x": torch.randn(rows, cols, generator=rng)},
   reference=lambda x: torch.softmax(x, -1), compare=within(1e-5, 1e-6)),
"""


@pytest.mark.parametrize(
    "text, state, words",
    [
        (ADD % "x + y", OK, ""),
        (ADD % "x - y", WRONG_RESULT, "output[0] is"),
        (ADD % "x[:3] + y[:3]", WRONG_RESULT, "has shape [16], expected [3]"),
        (GATHER % "table_ptr[index_ptr.long()]", OK, ""),
        (GATHER % "table_ptr[index_ptr.long()] + 1", WRONG_RESULT, "out_ptr[0, 0] is"),
        (GATHER % "None", WRONG_RESULT, "out_ptr[0, 0] is"),
        (SOFTMAX, OK, ""),
    ],
)
def test_verdicts_in_the_interpreter(repository, text, state, words):
    [one] = ops_of(repository, text).values()
    assert {case.quick for case in one.cases.values()} == {True}
    verdict = gate.verify(one, next(iter(one.cases)), one.implementations[0])
    assert verdict.state == state, verdict.reason
    assert words in verdict.reason


def launches(one, case: str, impl: str | None = None) -> list[Launch]:
    seen: list[Launch] = []
    with run_with(seen.append):
        one.calls()[impl or one.implementations[0]](**one.cases[case].arguments())
    return seen


def test_a_wrapper_is_launched_as_it_says_itself(repository):
    [one] = ops_of(repository, ADD % "x + y").values()
    [seen] = launches(one, "3000")
    assert (seen.grid, seen.constants) == ((3,), {"BLOCK": 1024})
    assert list(seen.args) == ["x_ptr", "y_ptr", "out_ptr", "n"] and seen.args["n"] == 3000
    assert seen.kernel.__name__ == "add_kernel"


def test_heuristics_are_computed_and_the_first_configuration_is_taken(repository):
    [one] = ops_of(repository, SOFTMAX).values()
    [seen] = launches(one, "4x9")
    assert (seen.grid, seen.constants) == ((4,), {"BLOCK": 16})
    assert seen.options["num_warps"] == 4


def test_configurations_are_implementations(repository):
    text = SOFTMAX.replace("compare=", 'configs={"eight": {"num_warps": 8}, "32": {"BLOCK": 32}}, compare=')
    [one] = ops_of(repository, text).values()
    assert one.implementations == ("eight", "32")
    assert launches(one, "4x9")[0].options["num_warps"] == 8
    assert launches(one, "4x9", "32")[0].constants == {"BLOCK": 32}


def test_launches_outside_of_a_description_are_tritons_own(repository):
    before = [vars(k).get("__getitem__") for k in kinds()]
    [one] = ops_of(repository, ADD % "x + y").values()
    launches(one, "16")
    with pytest.raises(ZeroDivisionError), describe.through_harness():
        raise ZeroDivisionError
    assert [vars(k).get("__getitem__") for k in kinds()] == before


def test_a_device_runs_a_wrapper_as_its_users_call_it(repository, monkeypatch):
    """Nothing stands between the wrapper and its launches; here the interpreter takes the device's place."""
    monkeypatch.setattr(describe, "for_real", lambda: True)
    [one] = ops_of(repository, ADD % "x + y").values()
    assert launches(one, "16") == []
    assert gate.verify(one, "16", "triton").state == OK


def kinds():
    from triton.runtime import interpreter, jit

    return jit.KernelInterface, interpreter.InterpretedFunction


@pytest.mark.parametrize(
    "field", ["inputs", "cases", "reference", "grid", "constants", "compare", "writes", "value"]
)
def test_a_mark_anywhere_is_not_run_with_its_line(repository, field):
    lines = {
        "inputs": 'inputs=lambda rng, n: {"x": 1}',
        "cases": 'cases={"16": {"n": 16}}', "reference": "reference=len",
        "grid": "grid=(1,)", "constants": 'constants={"BLOCK": 1}', "compare": "compare=exact",
        "writes": "writes=()",
    }  # fmt: skip
    if field == "value":
        lines["inputs"] = 'inputs=lambda rng, n: {"a": 1,\n"x": todo("say it")}'
    else:
        lines[field] = f'{field}=todo("say it")'
    text = 'op("gather", kernel="gather.py:gather_kernel",\n' + ",\n".join(lines.values()) + "),\n"
    [one] = ops_of(repository, text).values()
    bench = (repository / "benchmarks/bench_mine.py").read_text().splitlines()
    line = 1 + next(i for i, words in enumerate(bench) if "todo(" in words)
    case = next(iter(one.cases))
    assert case == ("not-described" if field == "cases" else "16")
    verdict = gate.verify(one, case, one.implementations[0])
    assert verdict.state == NOT_RUN
    assert verdict.reason == f"not described yet: benchmarks/bench_mine.py line {line} says what to write: say it"


def test_not_run_is_neither_a_number_nor_a_failure(repository, monkeypatch):
    from dashboards.host_environment import read_prepared

    rows = ops_of(
        repository, (ADD % "x + y").replace("reference=lambda x, y: x + y", 'reference=todo("what it is")')
    )
    made = suite.Family("mine", rows)
    monkeypatch.setenv("ASV_COMMIT", "a" * 40)
    monkeypatch.setenv("ASCEND_PERF_RESULTS", str(repository / "results"))
    monkeypatch.chdir(repository)
    monkeypatch.setattr(suite, "can_model", lambda: True)
    prepared = made.prepare()
    entry = prepared["ModelledAdd"]["16", "triton"]
    assert entry["state"] == NOT_RUN and "values" not in entry
    [value] = {
        str(v)
        for v, error in read_prepared(repository, "bench_mine.ModelledAdd.track_cycles").values()
        if not error
    }
    assert value == "nan"
    [*_, last] = (repository / "results/states" / ("a" * 40 + ".jsonl")).read_text().splitlines()
    assert json.loads(last)["state"] == NOT_RUN


@pytest.mark.parametrize(
    "text, state, words",
    [
        ("import not_installed_anywhere\n", UNSUPPORTED, "imports not_installed_anywhere, which is not installed"),
        ("import kernels.built\n", UNSUPPORTED, "which this checkout does not hold (is it built?)"),
        ("raise SystemExit(3)\n", CRASHED, "kernels/vector_add.py ended the program at line 1 (SystemExit: 3)"),
        ("import sys\n\n\nsys.argv.remove('nothing of this')\n", CRASHED, "failed at line 4 (ValueError"),
        ("def broken(:\n", CRASHED, "kernels/vector_add.py line 1 does not parse"),
        ("add = 1\n# ", CRASHED, ""),
        (None, NOT_RUN, "this commit has no kernels/vector_add.py"),
        ("def other(): pass\n", NOT_RUN, "this commit has no add in kernels/vector_add.py"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_a_state_of_its_op(repository, text, state, words):
    file = repository / "kernels/vector_add.py"
    file.unlink()
    if text is not None:
        file.write_text(text)
    [one] = ops_of(repository, ADD % "x + y").values()
    entry = suite._guarded(lambda o, c, i: suite._entry(gate.verify(o, c, i)), one, "16", "triton")
    assert entry["state"] == state, entry
    assert words in entry["reason"]
    # A second case says the same.
    assert (
        suite._guarded(lambda o, c, i: suite._entry(gate.verify(o, c, i)), one, "3000", "triton")["state"] == state
    )


def test_a_signature_that_does_not_fit_is_not_run(repository):
    text = (
        (GATHER % "None")
        .replace('"width": 6', '"pitch": 6')
        .replace("lambda width", "lambda pitch")
        .replace("(width)", "(pitch)")
    )
    [one] = ops_of(repository, text).values()
    verdict = gate.verify(one, "5", "triton")
    assert verdict.state == NOT_RUN
    assert "is gather_kernel(index_ptr, table_ptr, out_ptr, width, BLOCK) at this commit" in verdict.reason
    assert "`inputs` lacks width and `inputs` gives pitch, which it does not take" in verdict.reason


def test_two_files_of_one_name_are_two_modules(repository):
    (repository / "other").mkdir()
    text = own_kernels.ADD.replace("x + y, mask", "x - y, mask")
    (repository / "other/vector_add.py").write_text(text)
    both = (ADD % "x + y") + (ADD % "x - y").replace('"add"', '"subtract"').replace("kernels/", "other/")
    for one in ops_of(repository, both).values():
        assert gate.verify(one, "16", "triton").state == OK


def test_what_lies_beside_a_file_is_found_and_an_installed_package_of_its_name_is_not(repository):
    (repository / "kernels/beside.py").write_text("ONE = 1\n")
    file = repository / "kernels/vector_add.py"
    file.write_text("import beside\n" + file.read_text())
    (repository / "json").mkdir()  # as the standard library's package
    (repository / "json/vector_add.py").write_text(own_kernels.ADD)
    both = (ADD % "x + y") + (ADD % "x + y").replace('"add"', '"other"').replace("kernels/", "json/")
    for one in ops_of(repository, both).values():
        verdict = gate.verify(one, "16", "triton")
        assert verdict.state == OK, verdict.reason


def test_a_package_that_is_installed_too_is_refused(repository, tmp_path_factory):
    installed = tmp_path_factory.mktemp("installed")
    (installed / "nn").mkdir()
    (installed / "nn/__init__.py").write_text("")
    (installed / "nn/softmax.py").write_text(own_kernels.SOFTMAX.replace("from .reduce import exponentials\n", ""))
    sys.path.insert(0, str(installed))
    [one] = ops_of(repository, SOFTMAX).values()
    entry = suite._guarded(lambda o, c, i: suite._entry(gate.verify(o, c, i)), one, "4x9", "triton")
    assert entry["state"] == CRASHED and f"nn was imported from {installed / 'nn/__init__.py'}" in entry["reason"]


def test_a_wrapper_that_launches_nothing_says_so(repository):
    (repository / "kernels/vector_add.py").write_text("def add(x, y):\n    return x + y\n")
    [one] = ops_of(repository, ADD % "x + y").values()
    verdict = gate.verify(one, "16", "triton")
    assert verdict.state == CRASHED and "launched no kernel by `kernel[grid](...)`" in verdict.reason


GOOD = {"kernel": "a.py:f", "grid": (1,), "inputs": dict, "cases": SIZES, "reference": None}


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("Add", {}, "a name is words in lower case"),
        ("a_b", {}, "a name is words in lower case"),
        ("x2_3", {}, "a name is words in lower case"),
        ("add", {"kernel": ""}, "give kernel= (with grid=) or call="),
        ("add", {"call": "a.py:f"}, "and not both"),
        ("add", {"kernel": "a.f"}, "is not of the form folder/file.py:function"),
        ("add", {"grid": None}, "needs a grid="),
        ("add", {"kernel": "", "call": "a.py:f"}, "a wrapper has its own"),
    ],
)
def test_contradictions_are_refused(name, change, words):
    with pytest.raises(DescriptionError) as refused:
        op(name, **{**GOOD, **change})
    assert words in str(refused.value)


def test_two_ops_of_one_name_are_refused(tmp_path):
    with pytest.raises(DescriptionError, match=r"bench_x\.py describes two ops named add; rename one"):
        family(str(tmp_path / "bench_x.py"), [op("add", **GOOD), op("add", **GOOD)])
    with pytest.raises(DescriptionError, match=r"name the file bench_<family>\.py"):
        family(str(tmp_path / "x.py"), [])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "ab", "x1", "norm2", "q", "kv"]), min_size=1, max_size=4).map("_".join))
def test_a_name_that_is_accepted_survives_being_a_class(name):
    from dashboards.series import Environment, Series

    try:
        one = op(name, **GOOD)
    except DescriptionError:
        return
    made = Series(
        f"bench_x.{suite.suite_name('Modelled', one)}.track_cycles", (), (), "", Environment("", ()), "", ""
    )
    assert made.op == name


class TestOfACommit:
    """Under asv kernels and finished descriptions are those of the checkout."""

    @pytest.fixture
    def checkout(self, repository, tmp_path_factory, monkeypatch):
        environment = tmp_path_factory.mktemp("env")
        build = environment / "project"
        build.mkdir()
        own_kernels.write(build)
        (build / "asv.conf.json").write_text("{}")
        paths = {"base": str(environment), "platbase": str(environment)}
        Path(sysconfig.get_path("purelib", vars=paths)).mkdir(parents=True)
        specimen.link(build, environment)
        monkeypatch.setenv("ASV_ENV_DIR", str(environment))
        monkeypatch.setenv("ASV_CONF_DIR", str(repository))
        return build

    def bench(self, build: Path, text: str) -> None:
        (build / "benchmarks").mkdir(exist_ok=True)
        head = "import torch, triton\nfrom ascend_kernels.harness.describe import *\n"
        (build / "benchmarks/bench_mine.py").write_text(
            f"{head}OPS = [\n{text}]\nFAMILY = family(__file__, OPS)\n"
        )

    def test_the_kernel_is_the_commits(self, repository, checkout):
        file = checkout / "kernels/vector_add.py"
        file.write_text(file.read_text().replace("x + y, mask", "x * y, mask"))
        [one] = ops_of(repository, ADD % "x * y").values()
        assert gate.verify(one, "16", "triton").state == OK

    def test_the_description_is_the_commits(self, repository, checkout):
        self.bench(checkout, ADD % "x - y")
        [one] = ops_of(repository, ADD % "x + y").values()
        assert gate.verify(one, "16", "triton").state == WRONG_RESULT

    def test_an_unfinished_one_is_todays(self, repository, checkout):
        self.bench(checkout, (ADD % "x - y").replace("reference=lambda x, y: x - y", 'reference=todo("later")'))
        [one] = ops_of(repository, ADD % "x + y").values()
        assert gate.verify(one, "16", "triton").state == OK

    def test_one_that_cannot_be_read_is_not_run(self, repository, checkout):
        self.bench(checkout, "1 / 0")
        [one] = ops_of(repository, ADD % "x + y").values()
        verdict = gate.verify(one, "16", "triton")
        assert verdict.state == NOT_RUN
        assert "benchmarks/bench_mine.py of this commit cannot be read: ZeroDivisionError" in verdict.reason

    def test_asv_is_offered_the_cases_of_both(self, repository, checkout, monkeypatch):
        monkeypatch.setattr(suite, "can_model", lambda: True)
        self.bench(checkout, (ADD % "x + y").replace('"16"', '"sixteen"') + (GATHER % "None"))
        place = repository / "benchmarks/bench_mine.py"
        ops_of(repository, ADD % "x + y")
        spec = describe.importlib.util.spec_from_file_location("_of_test_both", place)
        module = describe.importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = module.FAMILY.suites("bench_mine")
        assert found["ModelledAdd"].params[0] == ["16", "3000", "sixteen"]
        assert found["ModelledGather"].params[0] == ["5"]

    def test_the_checkout_comes_before_the_hosts_packages(self, checkout):
        environment = checkout.parent
        [path] = environment.rglob(specimen.ON_PATH)
        assert path.read_text().splitlines() == [str(checkout), str(checkout / "src")]
        assert path.name < "zz-host.pth"


class TestWhatARowIsKeptUnder:
    """Another file, another row; what an op does not use leaves it as it is, and nothing is imported to tell."""

    def base(self, repository: Path, text: str = SOFTMAX) -> str:
        describe._imported_files.cache_clear()
        [one] = ops_of(repository, text).values()
        return sources.digest(one)

    @pytest.mark.parametrize(
        "name, counts",
        [
            ("src/nn/softmax.py", True),
            ("src/nn/reduce.py", True),
            ("src/nn/__init__.py", True),
            ("benchmarks/shapes.py", True),
            ("gather.py", False),
            ("kernels/vector_add.py", False),
            ("src/nn/unused.py", False),
        ],
    )
    def test_files(self, repository, name, counts):
        before = self.base(repository)
        (repository / name).touch()
        assert (self.base(repository) != before) == (name == "benchmarks/shapes.py")
        with open(repository / name, "a") as file:
            file.write("\nMORE = 1\n")
        assert (self.base(repository) != before) == counts
        assert not {m for m in sys.modules if m.partition(".")[0] == "nn"}

    def test_the_description(self, repository):
        assert self.base(repository) != self.base(repository, SOFTMAX.replace("1e-6", "1e-7"))

    @pytest.mark.parametrize(
        "line",
        ["import nn.deep.one", "from nn.deep import one", "from .deep.one import x", "from . import deep.one"],
    )
    def test_imports_however_they_are_written(self, repository, line):
        deep = repository / "src/nn/deep"
        deep.mkdir()
        (deep / "__init__.py").write_text("")
        (deep / "one.py").write_text("x = 1\n")
        reduce = repository / "src/nn/reduce.py"
        line = line.replace("from . import deep.one", "def late():\n    from .deep import one")
        reduce.write_text(f"{reduce.read_text()}\n{line}\n")
        before = self.base(repository)
        (deep / "one.py").write_text("x = 2\n")
        assert self.base(repository) != before

    def test_what_the_description_imports(self, repository):
        (repository / "references.py").write_text("ONE = 1\n")
        text = SOFTMAX.replace("lambda x: torch", "lambda x: __import__('references') and torch")
        bench = repository / "benchmarks/bench_mine.py"
        self.base(repository, text)
        bench.write_text("import references\n" + bench.read_text())

        def now():
            describe._imported_files.cache_clear()
            spec = describe.importlib.util.spec_from_file_location("_of_test_imports", bench)
            module = describe.importlib.util.module_from_spec(spec)
            sys.path.append(str(repository))
            spec.loader.exec_module(module)
            return sources.digest(module.FAMILY.ops["softmax"])

        before = now()
        (repository / "references.py").write_text("ONE = 2\n")
        assert now() != before

    def test_a_missing_module_is_not_kept(self, repository, monkeypatch, tmp_path):
        monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
        file = repository / "kernels/vector_add.py"
        file.write_text("import not_installed_anywhere\n" + file.read_text())
        [one] = ops_of(repository, ADD % "x + y").values()
        entry = suite._guarded(
            lambda *_: suite._model_entry(suite.Row(one, "16", "triton"), "Ascend910B1"), one, "16", ""
        )
        assert entry["state"] == UNSUPPORTED
        kept.write("k", entry)
        assert kept.read("k") is None


def test_an_import_that_never_ends_costs_its_rows_their_verdict(repository, monkeypatch):
    monkeypatch.setattr(isolated, "IMPORT_SECONDS", 2)
    file = repository / "kernels/vector_add.py"
    file.write_text(file.read_text() + "\nwhile True:\n    pass\n")
    [one] = ops_of(repository, ADD % "x + y").values()
    for _ in range(2):  # the second time it is known
        entry = suite._guarded(lambda o, c, i: suite._entry(gate.verify(o, c, i)), one, "16", "triton")
        assert entry["state"] == CRASHED
        assert "importing kernels/vector_add.py takes more than 2 s" in entry["reason"]


def test_large_cases_are_for_devices(repository):
    [one] = ops_of(repository, (ADD % "x + y").replace("inputs=", 'large=("3000",), inputs=')).values()
    assert one.quick_cases() == ["16"] and one.timed_cases() == ["16", "3000"]
    assert suite.modelled_cases(one) == ["16"]


@pytest.mark.compiler
def test_the_compiled_code_of_a_tuned_kernel_is_modelled(repository):
    from ascend_kernels.harness.model import Modelled

    [one] = ops_of(repository, SOFTMAX).values()
    runner = Modelled()
    verdict = gate.verify(one, "4x9", "triton", runner, repeat=False)
    assert verdict.state == OK, verdict
    assert runner.simulations[0].cycles > 0
    assert COMPILE_FAILED != verdict.state


def test_todo_knows_its_line():
    made = todo("x")
    assert made.line == test_todo_knows_its_line.__code__.co_firstlineno + 1 and made.file == __file__


def test_torch_is_not_poisoned_while_a_kernels_file_is_imported(repository):
    file = repository / "kernels/vector_add.py"
    file.write_text(file.read_text() + "\n\nTABLE = torch.zeros(3)\nEMPTY = torch.empty(3)\n")
    [one] = ops_of(repository, ADD % "x + y").values()
    assert gate.verify(one, "16", "triton").state == OK
    held = describe.load("kernels/vector_add.py:EMPTY", repository)
    assert held.untyped_storage().nbytes() == 12 and torch.equal(
        describe.load("kernels/vector_add.py:TABLE", repository), torch.zeros(3)
    )
