"""A run of a part of the suite: what asv keeps of the rest, and what a later run finds missing."""

import json
import math
from pathlib import Path

import own_kernels
import pytest
from asv_files import VERSIONS, result_file, row, state_line
from own_kernels import commit, perf, sh

asv = pytest.importorskip("asv")

from asv import benchmarks, results, runner, util  # noqa: E402

from dashboards import host_environment, missing  # noqa: E402
from dashboards.host_environment import LEFT_OUT  # noqa: E402
from dashboards.missing import Part  # noqa: E402

NAN = math.nan
COMMIT = "a" * 40
NAME = "bench_x.ModelledCopy.track_cycles"


def benchmark(cases: str, impls: str = "i", version: str = "1") -> dict:
    params = [[repr(one) for one in cases], [repr(one) for one in impls]]
    return {"name": NAME, "version": version, "params": params}


def answer(values: list, samples: list | None = None, error: int = 0):
    nothing = [None] * len(values)
    number = [None if one is None else 1 for one in samples or nothing]
    return runner.BenchmarkResult(values, samples or nothing, number, error, "", None)


def same(got: list, wanted: list) -> bool:
    return len(got) == len(wanted) and all(
        one is two or one == two or (one != one and two != two) for one, two in zip(got, wanted)
    )


class TestAddingToWhatIsThere:
    @pytest.fixture
    def stored(self, monkeypatch):
        adding = host_environment.adding_to_what_is_there(results.Results.add_result)
        monkeypatch.setattr(results.Results, "add_result", adding)
        found = results.Results({"machine": "ci"}, {}, COMMIT, 0, "3.11", "host", {})
        found.add_result(benchmark("abc"), answer([1.0, 2.0, None]))
        return found

    def values(self, stored) -> dict[str, float | None]:
        cases = [one.strip("'") for one in stored.get_result_params(NAME)[0]]
        return dict(zip(cases, stored.get_result_value(NAME, stored.get_result_params(NAME))))

    def test_a_smaller_set_of_cases_keeps_the_others(self, stored):
        stored.add_result(benchmark("b"), answer([5.0]))
        assert self.values(stored) == {"b": 5.0, "a": 1.0, "c": None}

    def test_a_larger_one_adds(self, stored):
        stored.add_result(benchmark("abcd"), answer([1.0, 2.0, 3.0, 4.0]))
        assert self.values(stored) == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}

    def test_what_was_left_out_keeps_its_value_and_what_is_skipped_does_not(self, stored):
        stored.add_result(benchmark("abc"), answer([LEFT_OUT, NAN, 7.0]))
        assert same(list(self.values(stored).values()), [1.0, NAN, 7.0])

    def test_a_combination_that_neither_had_is_skipped_and_not_failed(self, stored):
        stored.add_result(benchmark("b", "ij"), answer([5.0, 6.0]))
        params = stored.get_result_params(NAME)
        assert params == [["'b'", "'a'", "'c'"], ["'i'", "'j'"]]
        assert same(stored.get_result_value(NAME, params), [5.0, 6.0, 1.0, NAN, None, NAN])

    def test_intervals_of_samples_are_kept(self, stored):
        stored.add_result(benchmark("ab"), answer([True, 3.0], [[1.0, 1.1, 1.2], None]))
        before = stored.get_result_stats(NAME, [["'a'"], ["'i'"]])
        stored.add_result(benchmark("b"), answer([4.0]))
        assert stored.get_result_stats(NAME, [["'a'"], ["'i'"]]) == before and before[0]["repeat"] == 3

    def test_a_failure_of_what_was_selected_leaves_the_rest(self, stored):
        stored.add_result(benchmark("abc"), answer([None] * 3, error=1), selected_idx=[1])
        assert self.values(stored) == {"a": 1.0, "b": None, "c": None}

    def test_a_case_that_was_only_ever_skipped_does_not_stay(self, stored):
        stored.add_result(benchmark("abcd"), answer([1.0, 2.0, 3.0, NAN]))
        stored.add_result(benchmark("a"), answer([1.0]))
        assert self.values(stored) == {"a": 1.0, "b": 2.0, "c": 3.0}

    def test_numbers_of_another_version_are_replaced(self, stored):
        stored.add_result(benchmark("b", version="2"), answer([5.0]))
        assert self.values(stored) == {"b": 5.0}


class TestSavingAtOnce:
    def save(self, monkeypatch, folder: Path, value: float, save) -> None:
        monkeypatch.setattr(results.Results, "save", host_environment.saving_at_once(save))
        one = results.Results({"machine": "ci"}, {}, COMMIT, 0, "3.11", "host", {})
        one.add_result(benchmark("a"), answer([value]))
        one.save(str(folder))

    def test_killed_midway_leaves_the_file_as_it_was(self, tmp_path, monkeypatch):
        asvs = results.Results.save
        self.save(monkeypatch, tmp_path, 1.0, asvs)
        [place] = (tmp_path / "ci").iterdir()
        before = place.read_bytes()

        def half(self, folder):
            asvs(self, folder)
            path = Path(folder, self._filename)
            path.write_bytes(path.read_bytes()[:20])
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.save(monkeypatch, tmp_path, 2.0, half)
        assert place.read_bytes() == before and list((tmp_path / "ci").iterdir()) == [place]
        self.save(monkeypatch, tmp_path, 2.0, asvs)
        assert json.loads(place.read_text())["results"][NAME][0] == [2.0]


class TestFindingWhatIsAsked:
    NAMES = (
        "bench_x.ModelledTopKTokens.track_cycles",
        "bench_x.MeasuredTopKTokens.track_device_time",
        "bench_x.ModelledCopy.track_cycles",
        "bench_model.ScalarLoops.track_ops_per_second",
    )

    @pytest.fixture
    def found(self, monkeypatch):
        rows = [{"name": name, "params": [], "version": "1"} for name in self.NAMES]
        conf = type("Conf", (), {"benchmark_dir": "."})
        discover = host_environment.finding_what_is_asked(lambda cls, regex=None: cls(conf, rows, regex=regex))

        def names(ops: str, kind: str = "", regex=None) -> set[str]:
            monkeypatch.setenv("ASCEND_PERF_OPS", ops)
            monkeypatch.setenv("ASCEND_PERF_KIND", kind)
            kept = discover(benchmarks.Benchmarks, regex=regex)
            assert kept._all_benchmarks.keys() == set(self.NAMES), "asv writes all to benchmarks.json"
            return {name.split(".")[1] for name in kept}

        return names

    def test_ops_alone(self, found):
        assert found("") == {"ModelledTopKTokens", "MeasuredTopKTokens", "ModelledCopy", "ScalarLoops"}
        assert found("top_k_tokens") == {"ModelledTopKTokens", "MeasuredTopKTokens"}
        assert found("top_k_tokens,copy", "Modelled") == {"ModelledTopKTokens", "ModelledCopy"}
        assert found("top_k_tokens", regex=["Copy"]) == set()

    def test_the_speed_of_the_suite_only_where_it_is_named(self, found):
        assert found("scalar_loops") == {"ScalarLoops"}

    def test_an_unknown_op_is_named(self, found):
        with pytest.raises(util.UserError, match="no op is named cpy; there are copy, scalar_loops, top_k_tokens"):
            found("copy,cpy")


class TestMissing:
    """What of two suites of two cases is not there."""

    OTHER = "bench_x.ModelledMove.track_cycles"
    OWN = "bench_model.ScalarLoops.track_speed"
    AXES = (["'small'", "'large'"], ["'op'"])

    def asked(self, *names: str, axes=AXES, selected=None) -> missing.Asked:
        return {name: (axes, "1", selected) for name in names}

    def of(self, folder: Path, wanted: missing.Asked, rows: dict, lines: list | None = None) -> Part | None:
        place = result_file(folder, COMMIT, rows)
        lines = [json.loads(one) for one in lines or []]
        return missing.missing(wanted, place, lines, machine="ci", versions=VERSIONS)

    def row(self, *values: float | None, cases=("small", "large")) -> list:
        return row(list(values), (cases, ("op",)))

    def line(self, name: str, case: str, state: str = "ok", **more) -> str:
        return state_line(COMMIT, case, "op", state, suite=name.rpartition(".")[0], **more)

    def test_nothing(self, tmp_path):
        rows = {NAME: self.row(1.0, None), self.OTHER: self.row(1.0, 2.0)}
        assert self.of(tmp_path, self.asked(NAME, self.OTHER), rows) is None

    def test_no_file_and_a_damaged_one(self, tmp_path):
        (tmp_path / "cut").write_text("{")
        for name in ("none", "cut"):
            place = tmp_path / name
            assert missing.missing(self.asked(NAME), place, [], machine="ci", versions=VERSIONS) == Part()

    def test_an_op_that_was_left_out(self, tmp_path):
        wanted = self.asked(NAME, self.OTHER)
        assert self.of(tmp_path, wanted, {NAME: self.row(1.0, 2.0)}) == Part(("move",), "Modelled")
        # as older runs left it: no number, and no word of why
        rows = {NAME: self.row(1.0, 2.0), self.OTHER: self.row(NAN, NAN)}
        assert self.of(tmp_path, wanted, rows) == Part(("move",), "Modelled")

    def test_an_op_that_the_commit_does_not_have_is_not_missing(self, tmp_path):
        lines = [
            self.line(self.OTHER, case, "not run", reason="not at this commit") for case in ("small", "large")
        ]
        rows = {NAME: self.row(1.0, 2.0), self.OTHER: self.row(NAN, NAN)}
        assert self.of(tmp_path, self.asked(NAME, self.OTHER), rows, lines) is None

    def test_a_case_that_was_not_in_the_smaller_set(self, tmp_path):
        rows = {NAME: self.row(1.0, cases=("small",)), self.OTHER: self.row(1.0, 2.0)}
        assert self.of(tmp_path, self.asked(NAME, self.OTHER), rows) == Part(("copy",), "Modelled")
        # and the other way about nothing is missing
        small = self.asked(NAME, axes=(["'small'"], ["'op'"]))
        assert self.of(tmp_path, small, {NAME: self.row(1.0, 2.0)}) is None

    def test_only_the_combinations_that_are_asked_for(self, tmp_path):
        rows = {NAME: self.row(1.0, NAN)}
        assert self.of(tmp_path, self.asked(NAME, selected=[0]), rows) is None
        assert self.of(tmp_path, self.asked(NAME, selected=[1]), rows) == Part()

    @pytest.mark.parametrize("reason", [missing.DIED, "not described yet: line 7"])
    def test_what_was_not_finished(self, tmp_path, reason):
        state = "not run" if "described" in reason else "crashed or timed out"
        lines = [self.line(NAME, "small", state, reason=reason)]
        rows = {NAME: self.row(1.0, 1.0), self.OTHER: self.row(1.0, 2.0)}
        assert self.of(tmp_path, self.asked(NAME, self.OTHER), rows, lines) == Part(("copy",), "Modelled")
        other = [self.line(NAME, "small", state, reason=reason, versions={**VERSIONS, "ascendnpu-ir": "1.0.0"})]
        assert self.of(tmp_path, self.asked(NAME, self.OTHER), rows, other) is None, "of another compiler"

    def test_numbers_of_an_older_version_of_the_benchmark(self, tmp_path):
        rows = {NAME: row([1.0, 2.0], (("small", "large"), ("op",)), version="0"), self.OTHER: self.row(1.0, 2.0)}
        assert self.of(tmp_path, self.asked(NAME, self.OTHER), rows) == Part(("copy",), "Modelled")

    def test_the_speed_of_the_suite_is_a_part_of_its_own(self, tmp_path):
        rows = {NAME: self.row(1.0, 2.0)}
        assert self.of(tmp_path, self.asked(NAME, self.OWN), rows) == Part(("scalar_loops",), "")
        rows[self.OWN] = self.row(NAN, NAN)
        assert self.of(tmp_path, self.asked(NAME, self.OWN), rows) is None, "asv skipped it, and has no verdicts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = own_kernels.repository(tmp_path_factory.mktemp("partial") / "repository")
    perf(folder, "init", "--json")
    bench = folder / "benchmarks/bench_kernels.py"
    bench.write_text(own_kernels.by_hand(bench.read_text())[0])
    (folder / "benchmarks/bench_model.py").write_text(
        "class ScalarLoops:\n    def track_speed(self):\n        return 2.0\n"
    )
    commit(folder, "kernels")
    perf(folder, "run", "--quiet")
    softmax = folder / "src/nn/softmax.py"
    softmax.write_text(softmax.read_text().replace("e / tl.sum(e, axis=0), mask", "e, mask"))
    commit(folder, "softmax without its sum")
    return folder


@pytest.mark.compiler
@pytest.mark.slow
class TestOnARepository:
    """Three kernels; the second commit breaks the softmax, and only add is measured there at first."""

    def stored(self, folder: Path, revision: str = "HEAD") -> dict[str, list]:
        name = sh(folder, "git", "rev-parse", revision)[:8]
        [place] = (folder / ".asv/results").glob(f"*/{name}-*.json")
        rows = json.loads(place.read_text())["results"]
        return {
            name.partition(".")[2]: row[0]
            for name, row in rows.items()
            if "track_cycles" in name or "speed" in name
        }

    def test_only_what_is_asked_for_is_measured_and_a_later_run_takes_the_rest(self, folder):
        perf(folder, "run", "--ops", "add", "--quiet")
        assert self.stored(folder).keys() == {"ModelledAdd.track_cycles"}
        told = perf(folder, "check", "--base", "HEAD~1", "--head", "HEAD", code=3).stdout
        assert "gather" in told and "softmax" in told and "unsupported" not in told and "ScalarLoops" not in told
        assert "ascend-perf run" in told
        again = perf(folder, "run", "--ops", "add")
        assert "measured already" in again.stderr
        perf(folder, "run", "--quiet")
        assert self.stored(folder).keys() == {
            "ModelledAdd.track_cycles", "ModelledSoftmax.track_cycles", "ModelledGather.track_cycles",
            "ScalarLoops.track_speed",
        }  # fmt: skip
        told = perf(folder, "check", "--base", "HEAD~1", "--head", "HEAD", code=2).stdout
        assert "wrong result" in told and "ScalarLoops" not in told
        assert "measured already" in perf(folder, "run").stderr

    def test_measuring_one_op_again_keeps_the_others(self, folder):
        before = self.stored(folder, "HEAD~1")
        assert all(value and value[0] > 0 for value in before.values())
        perf(folder, "run", "HEAD~1", "--ops", "gather", "--force", "--quiet")
        assert self.stored(folder, "HEAD~1") == before

    def test_a_damaged_result_file_is_set_aside(self, folder):
        before = self.stored(folder, "HEAD~1")
        name = sh(folder, "git", "rev-parse", "HEAD~1")[:8]
        [place] = (folder / ".asv/results").glob(f"*/{name}-*.json")
        half = place.read_bytes()[:300]
        place.write_bytes(half)
        told = perf(folder, "run", "HEAD~1", "--quiet").stderr
        assert "is damaged; it was set aside as" in told and self.stored(folder, "HEAD~1") == before
        assert place.with_name(place.name + ".damaged").read_bytes() == half
        place.with_name(place.name + ".damaged").unlink()

    def test_a_suite_that_cannot_be_read_is_said_and_not_taken_for_measured(self, folder):
        bench = folder / "benchmarks/bench_kernels.py"
        text = bench.read_text()
        bench.write_text(text + "\nthis_is_not_defined\n")
        try:
            told = perf(folder, "run", "HEAD~1", "--quiet", code=4).stderr
        finally:
            bench.write_text(text)
        assert "this_is_not_defined" in told and "measured already" not in told

    def test_an_op_that_is_none(self, folder):
        for more in ((), ("--force",)):
            told = perf(folder, "run", "--ops", "sofmax", "--quiet", *more, code=4).stderr
            assert "no op is named sofmax; there are add, gather, scalar_loops, softmax" in told
