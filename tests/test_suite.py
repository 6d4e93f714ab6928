"""From registry rows to asv: suites, the sidecar, what asv is handed, the environment and the specimen."""

import dataclasses
import json
import math
import os
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from ascend_kernels.harness import suite
from ascend_kernels.harness.spec import CRASHED, OK, UNSUPPORTED
from ascend_kernels.registry import OPS
from dashboards import specimen

OP = OPS["assign_draft_cache_locs"]
ENTRY = {"state": OK, "reason": "", "findings": [], "values": {"cycles": 7}}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("ASV_COMMIT", "a" * 40)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "states" / f"{'a' * 40}.jsonl"


def rows(place: Path) -> list[dict]:
    return [json.loads(line) for line in place.read_text().splitlines()]


def test_one_suite_an_op_and_one_track_a_metric():
    from ascend_model import METRICS

    found = suite.Family("token_pool", OPS).suites("bench_token_pool")
    if not suite.can_model():
        pytest.skip("no Ascend compiler")
    classes = {name: c for name, c in found.items() if isinstance(c, type)}
    assert set(classes) == {suite.suite_name("Modelled", op) for op in OPS.values() if op.family == "token_pool"}
    for op in (op for op in OPS.values() if op.family == "token_pool"):
        one = classes[suite.suite_name("Modelled", op)]
        assert one.param_names == ["case", "impl"]
        assert one.params == [op.quick_cases(), op.names("cpu")]
        for metric, facts in METRICS.items():
            track = getattr(one, f"track_{metric}")
            assert track.unit == f"{facts.unit} (modelled)"
            assert track.version == suite.VERSIONS["Modelled"]


def test_a_number_is_only_handed_out_for_a_right_result():
    made = suite._suite("Modelled", OP, ["a", "b", "c"], {"cycles": "cycles"}, "bench")
    prepared = {
        suite.suite_name("Modelled", OP): {
            ("a", "derived"): ENTRY,
            ("b", "derived"): {"state": "wrong result", "reason": "out[0] is 1, expected 2"},
            ("c", "derived"): {"state": UNSUPPORTED, "reason": "no cube"},
        }
    }
    bench = made()
    bench.setup(prepared, "a", "derived")
    assert bench.track_cycles(prepared, "a", "derived") == 7
    bench.setup(prepared, "b", "derived")
    with pytest.raises(RuntimeError, match=r"wrong result: out\[0\] is 1, expected 2"):
        bench.track_cycles(prepared, "b", "derived")
    for case in ("c", "a case of a later commit"):
        with pytest.raises(NotImplementedError):
            bench.setup(prepared, case, "derived")


def test_an_op_that_a_commit_lacks_is_skipped_not_failed():
    stand_in = suite._absent("bench")
    made = stand_in("ModelledSomethingNew")()
    with pytest.raises(NotImplementedError, match="this commit has no such op"):
        made.setup({}, "case", "impl")
    with pytest.raises(AttributeError):
        stand_in("something_else")


@pytest.fixture
def one_row(results, monkeypatch, tmp_path):
    """`model_all` of one row, whose work is the function given."""
    if not suite.can_model():
        pytest.skip("no Ascend compiler")
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ASCEND_PERF_CASE", "3x4x5")
    monkeypatch.setattr(suite, "modelled_cases", lambda op: ["3x4x5"])

    def model(work):
        monkeypatch.setattr(suite, "_model_entry", work)
        return suite.model_all([OP])[suite.suite_name("Modelled", OP)]["3x4x5", "derived"]

    return model


def test_death_of_the_process_is_on_record_and_costs_its_row_alone(results, one_row):
    entry = one_row(lambda *_: os.kill(os.getpid(), 9))
    assert entry["state"] == CRASHED and "SIGKILL" in entry["reason"]
    first, last = rows(results)
    assert (first["state"], first["op"], first["case"]) == (CRASHED, OP.name, "3x4x5")
    assert last["reason"] == entry["reason"]


def test_verdict_replaces_the_record_made_before_it(results, one_row):
    one_row(lambda *_: dict(ENTRY))
    states = [row["state"] for row in rows(results)]
    assert states == [CRASHED, OK]
    last = rows(results)[-1]
    assert last["suite"] == "bench_token_pool.ModelledAssignDraftCacheLocs"
    assert last["role"] == "op" and last["impl"] == "derived" and last["commit"] == "a" * 40
    assert last["versions"]["ascend-model"]


def test_an_exception_of_the_suite_is_a_state_with_its_place(one_row):
    def broken(*_):
        raise ZeroDivisionError("by hand")

    entry = one_row(broken)
    assert entry["state"] == CRASHED
    assert "ZeroDivisionError: by hand (test_suite.py:" in entry["reason"]


def test_a_row_is_known_the_next_time(results, one_row, monkeypatch):
    first = one_row(suite._model_entry)
    assert first["state"] == OK and first["values"]["cycles"] > 0 and first["codes"]
    (code,) = (results.parent.parent / "code").iterdir()
    code.unlink()
    never = lambda *_: pytest.fail("computed again")  # noqa: E731
    assert one_row(never) == first
    assert code.exists(), "the compiled form goes to the results of a known row as well"
    monkeypatch.setenv("ASCEND_PERF_FRESH", "1")
    again = one_row(lambda *_: ENTRY | {"codes": [], "reason": "fresh"})
    assert again["reason"] == "fresh"


@pytest.mark.parametrize("damage", ["", "{", '{"state": "ok"}', "[1]", '{"state": "happy", "codes": []}'])
def test_a_damaged_row_is_computed_again(one_row, damage):
    one_row(lambda *_: ENTRY | {"codes": []})
    (file,) = (Path(os.environ["ASCEND_PERF_CACHE"]) / "rows").glob("*/*.json")
    file.write_text(damage)
    assert one_row(lambda *_: ENTRY | {"codes": [], "reason": "anew"})["reason"] == "anew"


def test_a_crash_is_not_kept(one_row):
    assert one_row(lambda *_: {"state": CRASHED, "reason": "once", "codes": []})["state"] == CRASHED
    assert one_row(lambda *_: ENTRY | {"codes": []})["state"] == OK


@pytest.mark.parametrize("what", ["sources", "compiler", "target"])
def test_another_key_is_another_row(one_row, monkeypatch, what):
    one_row(lambda *_: ENTRY | {"codes": []})
    if what == "sources":
        monkeypatch.setattr("ascend_kernels.harness.sources.digest", lambda op: "other")
    elif what == "compiler":
        monkeypatch.setattr("ascend_model.toolchain.default_version", lambda: "9.9.9")
    else:
        monkeypatch.setattr("ascend_kernels.harness.device.target", lambda: "Ascend910_9362")
    assert one_row(lambda *_: ENTRY | {"codes": [], "reason": "anew"})["reason"] == "anew"


def test_only_named_ops_are_prepared(monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_OPS", "assign_draft_cache_locs")
    assert [op.name for op in suite.Family("token_pool", OPS).rows()] == ["assign_draft_cache_locs"]


@pytest.mark.parametrize("kind", ["Modelled", "Measured"])
def test_only_the_kind_of_number_that_is_asked_for_is_prepared(monkeypatch, kind):
    monkeypatch.setenv("ASCEND_PERF_KIND", kind)
    monkeypatch.setattr(suite.device, "present", lambda: True)
    monkeypatch.setattr(suite, "can_model", lambda: True)
    monkeypatch.setattr(suite, "measure_all", lambda ops: {"Measured": {}})
    monkeypatch.setattr(suite, "model_all", lambda ops: {"Modelled": {}})
    assert suite.Family("token_pool", OPS).prepare() == {kind: {}}


@pytest.mark.parametrize("which", ["quick", "timed", "all", "everything"])
def test_cases_of_the_model(monkeypatch, which):
    monkeypatch.setenv("ASCEND_PERF_CASES", which)
    moe = OPS["padded_gather"]
    assert moe.cases["16384x1024-e8-k4"].large and not moe.cases["16384x2-e8-k4"].large
    for op in (OP, moe):
        wanted = {"quick": op.quick_cases(), "timed": op.timed_cases()}.get(which, list(op.cases))
        small = [name for name in wanted if which == "everything" or not op.cases[name].large]
        assert suite.modelled_cases(op) == small
    monkeypatch.setenv("ASCEND_PERF_CASE", "16384x1024-e8-k4")
    assert "16384x1024-e8-k4" in suite.modelled_cases(moe), "a case that is asked for by name"


def test_a_set_of_cases_that_is_none(monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_CASES", "fast")
    with pytest.raises(ValueError, match="expected one of quick, timed, all, everything"):
        suite.modelled_cases(OP)


class TestHandingOut:
    """asv's own runner is only asked for what setup_cache did not leave."""

    NAME = "bench_token_pool.ModelledAssignDraftCacheLocs.track_cycles"
    BENCHMARK: ClassVar = {"name": NAME, "params": [["'a'", "'b'", "'c'", "'d'"], ["'derived'"]]}

    @pytest.fixture
    def run(self, tmp_path, monkeypatch):
        pytest.importorskip("asv")
        from dashboards.host_environment import handing_out_prepared

        monkeypatch.setenv("ASV_COMMIT", "a" * 40)
        monkeypatch.chdir(tmp_path)
        suite.hand_over(
            "token_pool",
            {
                "ModelledAssignDraftCacheLocs": {
                    ("a", "derived"): ENTRY,
                    ("b", "derived"): {"state": "wrong result", "reason": "off by one"},
                    ("c", "derived"): {"state": UNSUPPORTED, "reason": "no cube"},
                },
                "MeasuredAssignDraftCacheLocs": {
                    ("a", "derived"): {**ENTRY, "values": {"device_time": {"samples": [1.0, 2.0], "number": 5}}}
                },
            },
        )
        return handing_out_prepared(lambda *_, **__: "asv")

    def test_values_errors_and_skips(self, run, tmp_path):
        answer = run(self.BENCHMARK, None, False, cwd=str(tmp_path))
        assert answer.result[:2] == [7, None]
        assert math.isnan(answer.result[2]) and math.isnan(answer.result[3])
        assert answer.errcode == 1
        assert "wrong result: off by one" in answer.stderr

    def test_what_is_there_is_handed_out_and_only_what_was_selected_can_fail(self, run, tmp_path):
        answer = run(self.BENCHMARK, None, False, cwd=str(tmp_path), selected_idx={0})
        assert answer.result[:2] == [7, None] and all(math.isnan(v) for v in answer.result[2:])
        assert answer.errcode == 0

    def test_what_the_commit_does_not_have_is_on_record_once(self, run, tmp_path, results, monkeypatch):
        monkeypatch.chdir(tmp_path)
        suite.hand_over("token_pool", {"ModelledAssignDraftCacheLocs": {("a", "derived"): ENTRY}})
        for metric in ("cycles", "launches"):
            benchmark = {**self.BENCHMARK, "name": self.NAME.replace("cycles", metric)}
            run(benchmark, None, False, cwd=str(tmp_path))
        found = [(row["suite"], row["case"], row["state"], row["reason"]) for row in rows(results)]
        name = self.NAME.rpartition(".")[0]
        assert found == [(name, case, "not run", "not at this commit") for case in "bcd"]
        assert rows(results)[0]["versions"] == suite._versions()

    def test_what_was_left_out_is_not_on_record_as_absent(self, run, tmp_path, results, monkeypatch):
        monkeypatch.setenv("ASCEND_PERF_CASE", "a")
        run(self.BENCHMARK, None, False, cwd=str(tmp_path))
        assert not results.exists()

    def test_samples(self, run, tmp_path):
        benchmark = {
            "name": self.NAME.replace("Modelled", "Measured").replace("cycles", "device_time"),
            "params": [["'a'"], ["'derived'"]],
        }
        answer = run(benchmark, None, False, cwd=str(tmp_path))
        assert (answer.result, answer.samples, answer.number) == ([True], [[1.0, 2.0]], [5])

    def test_an_op_that_was_left_out_is_skipped_without_a_process(self, run, tmp_path):
        benchmark = {**self.BENCHMARK, "name": "bench_token_pool.ModelledOther.track_cycles"}
        answer = run(benchmark, None, False, cwd=str(tmp_path))
        assert all(math.isnan(value) for value in answer.result) and answer.errcode == 0

    @pytest.mark.parametrize("change", ["profile", "no folder", "other suite", "damaged"])
    def test_anything_else_is_asvs(self, run, tmp_path, change):
        benchmark, profile, cwd = self.BENCHMARK, False, str(tmp_path)
        if change == "profile":
            profile = True
        elif change == "no folder":
            cwd = None
        elif change == "other suite":
            benchmark = {**benchmark, "name": "bench_token_pool.HostStep.track_launches"}
        else:
            (tmp_path / "prepared.json").write_text("{")
        assert run(benchmark, None, profile, cwd=cwd) == "asv"


class TestSpecimen:
    """An old commit's kernels, today's harness."""

    @pytest.fixture
    def checkout(self, tmp_path, monkeypatch):
        host = tmp_path / "host" / "kernels"
        for place, words in ((host, "today"), (tmp_path / "build" / "kernels", "then")):
            (place / "harness").mkdir(parents=True)
            (place / "__init__.py").write_text(f"WHEN = {words!r}\n")
            (place / "harness" / "__init__.py").write_text(f"WHEN = {words!r}\n")
        monkeypatch.syspath_prepend(str(host.parent))
        return tmp_path

    def read(self, target: Path) -> tuple[str, str]:
        return tuple((target / p).read_text().split("'")[1] for p in ("__init__.py", "harness/__init__.py"))

    def test_kernels_of_then_harness_of_today(self, checkout):
        target = specimen.place(checkout / "build", checkout / "env", "kernels", ("harness",))
        assert target.is_relative_to(checkout / "env")
        assert self.read(target) == ("then", "today")
        # A second commit replaces the first and leaves the host's harness alone.
        again = specimen.place(checkout / "build", checkout / "env", "kernels")
        assert self.read(again) == ("then", "then")
        assert (checkout / "host/kernels/harness/__init__.py").read_text() == "WHEN = 'today'\n"

    def test_a_commit_without_the_package(self, checkout, capsys):
        assert specimen.main([str(checkout), str(checkout / "env"), "kernels"]) == 1
        assert "this commit has no package kernels" in capsys.readouterr().err

    def test_a_kept_part_the_host_lacks(self, checkout, capsys):
        code = specimen.main([str(checkout / "build"), str(checkout / "env"), "kernels", "--keep", "nothing"])
        assert code == 1
        assert "the host has none" in capsys.readouterr().err


def test_the_machine_of_modelled_numbers_is_the_same_everywhere(monkeypatch):
    pytest.importorskip("asv")
    from dashboards.host_environment import machine_facts

    monkeypatch.setenv("ASCEND_KERNELS_DEVICE", "cpu")
    monkeypatch.delenv("ASCEND_PERF_MACHINE", raising=False)
    facts = machine_facts()
    assert facts["machine"] == "modelled-ascend910b1"
    assert os.uname().nodename not in json.dumps(facts) and os.uname().release not in json.dumps(facts)


def test_the_overlay_is_the_interpreter_that_runs_this():
    pytest.importorskip("asv")
    from dashboards.host_environment import HostEnvironment

    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert HostEnvironment.matches("same") and HostEnvironment.matches(here)
    assert not HostEnvironment.matches("2.7")


@pytest.mark.parametrize("asked", ["Layer_Norm", "layer_norm", "LayerNorm", "layernorm"])
def test_ops_are_found_by_their_name_and_by_that_of_their_class(monkeypatch, asked):
    """A class's name does not tell capitals and `_` apart, and is all that a search has."""
    ops = {
        name: dataclasses.replace(OPS["assign_draft_cache_locs"], name=name) for name in ("Layer_Norm", "other")
    }
    monkeypatch.setenv("ASCEND_PERF_OPS", asked)
    assert [op.name for op in suite.Family("token_pool", ops).rows()] == ["Layer_Norm"]
