"""The gate: exit codes, states, formats and the second run that confirms an alarm."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from asv_files import (
    CASES,
    MEASURED,
    MODELLED,
    VERSIONS,
    benchmarks_file,
    git,
    repository,
    result_file,
    row,
    state_line,
    states_file,
)

from dashboards import cli
from dashboards.check import (
    FIXED,
    KNOWN,
    MISSING,
    NOT_CONFIRMED,
    STILL,
    SUSPECT,
    TRADED,
    Report,
    asv_rerun,
    check,
    confirm,
    decide_pairs,
    render,
)
from dashboards.events import IMPROVEMENT, REGRESSION, SAME_CODE, STATE, find_events, group_events
from dashboards.results import load
from dashboards.text import change, figures, markdown, plain, value

WRONG, FAILED, SKIPPED = "wrong result", "compile failed", "unsupported here"


class Place:
    """A repository with results, filled commit by commit."""

    def __init__(self, folder, commits):
        self.repo = folder / "repo"
        self.results = folder / "results"
        self.hashes = repository(self.repo, [f"commit {at}" for at in range(commits)])
        benchmarks_file(self.results, {MODELLED: "cycles (modelled)", MEASURED: "us"})

    def modelled(self, at, values=(100.0, 100.0, 100.0, 100.0), states=None, code="", **options):
        commit = self.hashes[at]
        result_file(self.results, commit, {MODELLED: row(list(values))}, date=at, **options)
        pairs = [(case, impl) for case in CASES for impl in ("op", "gather_twin")]
        given = states or ["ok"] * 4
        states_file(
            self.results,
            commit,
            [
                state_line(commit, *pair, state, reason=f"because {state}", code=code, **self.versions(options))
                for pair, state in zip(pairs, given)
            ],
        )

    @staticmethod
    def versions(options):
        return {"versions": options["versions"]} if "versions" in options else {}

    def measured(self, at, values, low=None, high=None):
        result_file(self.results, self.hashes[at], {MEASURED: row(values, low=low, high=high)}, date=at)

    def check(self, head=-1, base=None, **options):
        first = None if base is None else self.hashes[base]
        history = load(self.results, self.repo, head=self.hashes[head], base=first, cache=None)
        return check(history, self.hashes[head], first, **options)

    def run(self, capsys, *arguments):
        code = cli.main(
            ["check", "--repo", str(self.repo), "--results", str(self.results), "--no-cache", *arguments]
        )
        out, err = capsys.readouterr()
        return code, out, err


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path, 4)


def verdicts(report):
    return {(one.verdict, one.case, one.impl) for one in report.findings}


def test_nothing_worse_is_0(place):
    for at in range(4):
        place.modelled(at)
    report = place.check(base=0)
    assert (report.exit_code, report.measured, report.compared, report.findings) == (0, 2, 4, ())


@pytest.mark.parametrize("base", [None, 2, 0])
def test_any_modelled_change_for_the_worse_is_1(place, base):
    for at in range(3):
        place.modelled(at)
    place.modelled(3, (100.1, 100.0, 90.0, 100.0))
    report = place.check(base=base)
    assert report.exit_code == 1
    assert verdicts(report) == {(REGRESSION, "small", "op"), (IMPROVEMENT, "large", "op")}
    assert report.findings[0].size == pytest.approx(0.001) and report.findings[0].alarm
    assert place.check(base=base, thresholds={"*": 0.01}).exit_code == 0


def test_improvements_alone_are_0(place):
    place.modelled(0)
    place.modelled(1, (50.0, 50.0, 50.0, 50.0))
    assert place.check(1, 0).exit_code == 0


@pytest.mark.parametrize("state", [WRONG, FAILED, "crashed or timed out", "build failed", SKIPPED])
def test_ok_to_any_other_state_is_2(place, state):
    place.modelled(0)
    place.modelled(1, (None, 100.0, 100.0, 120.0), [state, "ok", "ok", "ok"])
    report = place.check(1, 0)
    assert report.exit_code == 2
    assert verdicts(report) == {(STATE, "small", "op"), (REGRESSION, "large", "gather_twin")}
    (one,) = [one for one in report.findings if one.alarm]
    assert (one.state_base, one.state_head, one.reason) == ("ok", state, f"because {state}")


def test_a_wrong_kernel_with_a_fast_number_is_2(place):
    place.modelled(0)
    place.modelled(1, (1.0, 100.0, 100.0, 100.0), [WRONG, "ok", "ok", "ok"])
    assert place.check(1, 0).exit_code == 2


def test_failing_before_and_after_is_told_but_not_worse(place):
    place.modelled(0, (None, 1.0, 1.0, 1.0), [WRONG, "ok", "ok", "ok"])
    place.modelled(1, (None, 1.0, 1.0, 1.0), [FAILED, "ok", "ok", "ok"])
    place.modelled(2, (2.0, 1.0, 1.0, 1.0))
    report = place.check(1, 0)
    assert report.exit_code == 0 and verdicts(report) == {(STILL, "small", "op")}
    report = place.check(2, 1)
    assert report.exit_code == 0 and verdicts(report) == {(FIXED, "small", "op")}


def test_a_new_implementation_that_fails_is_2(place):
    place.modelled(0, (1.0, 1.0, math.nan, 1.0), ["ok", "ok", SKIPPED, "ok"])
    place.modelled(1, (1.0, 1.0, None, 1.0), ["ok", "ok", WRONG, "ok"])
    assert place.check(1, 0).exit_code == 2


def test_twins_never_close_the_gate(place):
    place.modelled(0)
    place.modelled(1, (100.0, 500.0, 100.0, None), ["ok", "ok", "ok", WRONG])
    report = place.check(1, 0)
    assert report.exit_code == 0
    assert verdicts(report) == {(REGRESSION, "small", "gather_twin"), (STATE, "large", "gather_twin")}


TRACKS = {
    "cycles": "cycles (modelled)",
    "scalar_accesses": "accesses (modelled)",
    "dma_in": "copies (modelled)",
    "double_buffers": "buffers (modelled)",
    "out_of_bounds": "elements (modelled)",
}


@pytest.mark.parametrize(
    ("changed", "code", "verdicts_of"),
    [
        ({"cycles": 20, "scalar_accesses": 0, "dma_in": 9}, 0, {"dma_in": TRADED}),
        ({"cycles": 20, "scalar_accesses": 0, "double_buffers": 2}, 0, {"double_buffers": IMPROVEMENT}),
        ({"cycles": 20, "double_buffers": 0, "scalar_accesses": 0}, 0, {"double_buffers": TRADED}),
        ({"cycles": 20, "dma_in": 9}, 1, {"dma_in": REGRESSION}),
        ({"scalar_accesses": 0, "dma_in": 9}, 1, {"dma_in": REGRESSION}),
        ({"cycles": 200, "scalar_accesses": 0}, 1, {"cycles": REGRESSION}),
        ({"cycles": 20, "scalar_accesses": 0, "out_of_bounds": 4}, 1, {"out_of_bounds": REGRESSION}),
    ],
    ids=["bought", "a buffer more", "a buffer less", "no count gained", "no time gained", "time lost", "outside"],
)
def test_a_count_that_buys_time_is_a_trade(tmp_path, changed, code, verdicts_of):
    place = Place(tmp_path, 2)
    names = {MODELLED.replace("cycles", metric): unit for metric, unit in TRACKS.items()}
    benchmarks_file(place.results, names)
    before = {"cycles": 100, "scalar_accesses": 64, "dma_in": 3, "double_buffers": 1, "out_of_bounds": 0}
    for at, values in enumerate((before, before | changed)):
        rows = {MODELLED.replace("cycles", metric): row([float(values[metric])] * 4) for metric in TRACKS}
        result_file(place.results, place.hashes[at], rows, date=at)
    report = place.check(1, 0)
    assert report.exit_code == code
    told = {one.metric: one.verdict for one in report.findings}
    assert {metric: told[metric] for metric in verdicts_of} == verdicts_of
    events = {one.metric: one for one in find_events(load(place.results, place.repo)) if one.case == "small"}
    for metric, verdict in verdicts_of.items():
        assert events[metric].kind == (REGRESSION if verdict == REGRESSION else IMPROVEMENT)


@pytest.mark.parametrize(
    ("changed", "slower", "improved"),
    [
        ({"cycles": 104, "double_buffers": 3}, {"cycles", "double_buffers"}, set()),
        ({"double_buffers": 3, "out_of_bounds": 320}, {"double_buffers", "out_of_bounds"}, set()),
        ({"cycles": 4880, "dma_in": 0, "out_of_bounds": 320}, {"cycles", "dma_in", "out_of_bounds"}, set()),
        ({"cycles": 90, "dma_in": 0, "out_of_bounds": 320}, {"out_of_bounds"}, {"cycles", "dma_in"}),
        ({"scalar_accesses": 90, "dma_in": 0}, {"scalar_accesses"}, {"dma_in"}),
    ],
    ids=["slower", "unsafe", "slower and unsafe", "faster and unsafe", "another count"],
)
def test_a_count_that_fell_with_a_slower_launch_is_a_part_of_that_event(tmp_path, changed, slower, improved):
    place = Place(tmp_path, 2)
    benchmarks_file(place.results, {MODELLED.replace("cycles", metric): unit for metric, unit in TRACKS.items()})
    before = {"cycles": 100, "scalar_accesses": 64, "dma_in": 3, "double_buffers": 1, "out_of_bounds": 0}
    for at, values in enumerate((before, before | changed)):
        rows = {MODELLED.replace("cycles", metric): row([float(values[metric])] * 4) for metric in TRACKS}
        result_file(place.results, place.hashes[at], rows, date=at)
    events = [one for one in find_events(load(place.results, place.repo)) if one.impl == "op"]
    by_kind = {kind: {one.metric for one in events if one.kind == kind} for kind in (REGRESSION, IMPROVEMENT)}
    assert by_kind == {REGRESSION: slower, IMPROVEMENT: improved}
    # what got worse by itself stands in front
    fronts = {one.kind: one.metric for one in group_events(events)}
    assert fronts[REGRESSION] not in {"double_buffers", "dma_in"}


def test_nothing_measured_is_3(place):
    place.modelled(0)
    assert place.check(1, 0).exit_code == 3
    assert "no results of" in place.check(1, 0).problems[-1]
    place.modelled(1, (math.nan,) * 4, [SKIPPED] * 4)
    place.modelled(2, (math.nan,) * 4, [SKIPPED] * 4)
    report = place.check(2, 1)
    assert report.exit_code == 3 and report.summary.startswith("nothing measured")


def test_only_failures_are_2_and_not_3(place):
    place.modelled(0, (None,) * 4, [WRONG] * 4)
    place.modelled(1, (None,) * 4, [WRONG] * 4)
    assert place.check(1, 0).exit_code == 2


def test_nothing_to_compare_with_is_3_and_not_green(place):
    place.modelled(3)
    for base in (None, 0):
        report = place.check(3, base)
        assert report.exit_code == 3 and report.measured == 2 and "nothing to compare" in report.summary


def test_another_compiler_is_another_series(place):
    place.modelled(0)
    place.modelled(1, (900.0,) * 4, versions={**VERSIONS, "ascendnpu-ir": "1.3.0"})
    report = place.check(1, 0)
    assert report.exit_code == 3 and {one.verdict for one in report.findings} == {MISSING}
    assert "ascendnpu-ir 1.3.0" in report.problems[-1] and "ascendnpu-ir 1.2.0" in report.problems[-1]


def test_series_without_a_result_at_the_head_are_listed(place):
    place.modelled(0)
    place.modelled(1)
    path = next((place.results / "ci").glob(f"{place.hashes[1][:8]}*"))
    path.write_text(path.read_text().replace("'large'", "'huge'"))
    states_file(place.results, place.hashes[1], [state_line(place.hashes[1], "large", state="not run")])
    report = place.check(1, 0)
    assert report.exit_code == 0 and (MISSING, "large", "op") in verdicts(report)
    assert place.check(1, 0, require_all=True).exit_code == 2


OTHER = "bench_moe.ModelledRoute.track_cycles"


def test_ops_that_only_the_base_has_are_not_passed_over(place):
    """A head where a run was asked for one op only is no head that is right."""
    benchmarks_file(place.results, {MODELLED: "cycles (modelled)", OTHER: "cycles (modelled)"})
    both = {MODELLED: row([100.0] * 4), OTHER: row([50.0] * 4)}
    for at, rows in enumerate((both, {MODELLED: row([100.0] * 4)}, both | {OTHER: row([math.nan] * 4)})):
        result_file(place.results, place.hashes[at], rows, date=at)
    for head in (1, 2):
        for base in (0, None):
            report = place.check(head, base)
            assert report.exit_code == 3 and report.unmeasured == ("route",)
            assert report.summary.startswith("not measured at the head: route: ")
            [one] = report.findings
            assert (one.verdict, one.title, one.state_head) == (MISSING, "bench_moe.ModelledRoute", "not run")
            assert f"ascend-perf run {place.hashes[head][:12]} --every-commit --ops route" in one.reason
            for form in ("text", "markdown", "json", "junit", "github"):
                assert "route" in render(report, form).lower()
                assert form == "json" or "unsupported" not in render(report, form)
            junit = ElementTree.fromstring(render(report, "junit"))
            assert junit.get("errors") == "1" and junit.get("failures") == "0"
    # a regression in what was measured outweighs it
    result_file(place.results, place.hashes[1], {MODELLED: row([101.0] * 4)}, date=1)
    assert place.check(1, 0).exit_code == 1


def test_an_op_that_is_gone_or_known_not_to_be_there_is_only_listed(place):
    both = {MODELLED: row([100.0] * 4), OTHER: row([50.0] * 4)}
    result_file(place.results, place.hashes[0], both, date=0)
    result_file(place.results, place.hashes[1], {MODELLED: row([100.0] * 4)}, date=1)
    # the fixture's list of benchmarks, which the last run left, does not have it
    report = place.check(1, 0)
    assert report.exit_code == 0 and report.unmeasured == ()
    assert {one.benchmark for one in report.findings} == {OTHER}
    benchmarks_file(place.results, {MODELLED: "cycles (modelled)", OTHER: "cycles (modelled)"})
    assert place.check(1, 0).exit_code == 3
    result_file(place.results, place.hashes[1], {MODELLED: row([100.0] * 4), OTHER: row([math.nan] * 4)}, date=1)
    absent = {"suite": OTHER.rpartition(".")[0], "reason": "not at this commit"}
    pairs = [(case, impl) for case in CASES for impl in ("op", "gather_twin")]
    lines = [state_line(place.hashes[1], *pair, "not run", **absent) for pair in pairs]
    states_file(place.results, place.hashes[1], lines)
    report = place.check(1, 0)
    assert report.exit_code == 0
    assert {(one.verdict, one.reason) for one in report.findings} == {(MISSING, "not at this commit")}


def test_the_speed_of_the_suite_is_no_verdict_on_kernels(place):
    own = "bench_model.TypicalLaunch.track_seconds"
    benchmarks_file(place.results, {MODELLED: "cycles (modelled)", own: "s"})
    for at, seconds in enumerate((1.0, 50.0)):
        bounds = {"low": [seconds], "high": [seconds]}
        rows = {MODELLED: row([100.0] * 4), own: row([seconds], [], **bounds)}
        result_file(place.results, place.hashes[at], rows, date=at)
    report = place.check(1, 0)
    assert (report.exit_code, report.compared, report.findings) == (0, 4, ())
    assert report.states["ok"] == 4
    asked = place.check(1, 0, others=True)
    assert asked.exit_code == 1 and {one.benchmark for one in asked.findings} == {own}


class TestTheHeadHasNoResults:
    """What stands in for it: a commit with the same kernels, by the rule that `run` chooses commits with."""

    @pytest.fixture
    def place(self, tmp_path):
        place = Place(tmp_path, 0)
        command = "in-dir=x python -m dashboards.specimen {build_dir} {env_dir} --repository kernels"
        self.add(place, "asv.conf.json", json.dumps({"version": 1, "install_command": [command]}))
        for at, path in enumerate(["kernels/a.py", "kernels/a.py", "CHANGELOG", "docs"]):
            self.add(place, path, str(at))
        return place  # commits: 0 set-up, 1 and 2 kernels, 3 and 4 words

    def add(self, place, path, text):
        (place.repo / path).parent.mkdir(parents=True, exist_ok=True)
        if not (place.repo / ".git").exists():
            git(place.repo, "init", "-q", "-b", "main")
        (place.repo / path).write_text(text)
        git(place.repo, "add", "-A")
        git(place.repo, "commit", "-q", "-m", path)
        place.hashes.append(git(place.repo, "rev-parse", "HEAD"))

    def ask(self, place, capsys, *arguments):
        code, out, _ = place.run(capsys, "--format", "json", *arguments)
        return code, json.loads(out)

    @pytest.mark.parametrize("base", [None, 1])
    def test_the_last_commit_with_its_kernels_stands_in_and_is_named(self, place, capsys, base):
        place.modelled(1)
        place.modelled(2, (110.0, 100.0, 100.0, 100.0))
        arguments = () if base is None else ("--base", place.hashes[base])
        code, report = self.ask(place, capsys, *arguments)
        assert code == 1 and report["head"] == place.hashes[4]
        assert {one["verdict"] for one in report["findings"]} == {REGRESSION}
        head, other = place.hashes[4][:12], place.hashes[2][:12]
        assert f"no results of the head {head}: it has the kernels of {other}, whose" in report["problems"][-1]

    @pytest.mark.parametrize("measured", [2, 3])
    def test_a_base_with_the_same_kernels_is_not_worse(self, place, capsys, measured):
        place.modelled(1, (90.0,) * 4)
        place.modelled(measured)
        code, report = self.ask(place, capsys, "--base", place.hashes[3])
        assert (code, report["compared"], report["findings"]) == (0, 4, [])

    def test_kernels_that_changed_are_not_stood_in_for(self, place, capsys):
        place.modelled(1)
        code, report = self.ask(place, capsys)
        assert code == 3
        head, nearest = place.hashes[4][:12], place.hashes[1][:12]
        said = f"no results of {head}: ascend-perf run {head} --every-commit measures it; "
        assert report["problems"][-1] == said + f"the nearest measured commit is {nearest}"

    def test_a_head_beside_a_base_that_went_on(self, place, capsys):
        """The head's kernels are older than the base's: they are what the head would bring back."""
        git(place.repo, "checkout", "-q", "-b", "side", place.hashes[1])
        self.add(place, "docs", "beside")
        place.modelled(1, (120.0, 100.0, 100.0, 100.0))
        place.modelled(2)
        code, report = self.ask(place, capsys, "--base", place.hashes[2], "--head", place.hashes[5])
        assert code == 1 and report["findings"][0]["base"] == 100.0

    def test_noisy_results_of_the_stand_in_count_once(self, place, capsys):
        rng = np.random.default_rng(3)
        for at in range(12):
            self.add(place, "kernels/a.py", f"more {at}")
        self.add(place, "docs", "more")
        for at in range(5, 16):
            place.measured(at, list(100 + rng.standard_normal(4)))
        place.measured(16, [104.0, 100.0, 100.0, 100.0])
        code, report = self.ask(place, capsys, "--base", place.hashes[15])
        _, alone = self.ask(place, capsys, "--base", place.hashes[15], "--head", place.hashes[16])
        assert report["findings"] == alone["findings"] and code == alone["exit_code"]


def test_a_base_without_results_is_stood_in_for_and_named(place):
    place.modelled(0)
    place.modelled(3, (110.0, 100.0, 100.0, 100.0))
    report = place.check(3, 2)
    assert report.exit_code == 1
    assert any(f"compared with {place.hashes[0][:12]}" in one for one in report.problems)


def test_base_and_head_on_branches_that_parted(place):
    git(place.repo, "checkout", "-q", "-b", "side", place.hashes[1])
    git(place.repo, "commit", "-q", "--allow-empty", "-m", "side")
    place.hashes.append(git(place.repo, "rev-parse", "HEAD"))
    place.modelled(1)
    place.modelled(3, (105.0, 100.0, 100.0, 100.0))
    place.modelled(4, (103.0, 100.0, 100.0, 100.0))
    report = place.check(4, 3)
    assert report.exit_code == 0 and verdicts(report) == {(IMPROVEMENT, "small", "op")}


def test_same_compiled_code_is_not_the_commits_doing(place):
    place.modelled(0, code="aa")
    place.modelled(1, (110.0,) * 4, code="aa")
    place.modelled(2, (120.0,) * 4, code="bb")
    assert place.check(1, 0).exit_code == 0
    assert {one.verdict for one in place.check(1, 0).findings} == {SAME_CODE}
    assert place.check(2, 1).exit_code == 1


@pytest.fixture
def noisy(tmp_path):
    """Forty commits of a measured series with 1 % noise; the newest four are free to be written."""
    place = Place(tmp_path, 44)
    rng = np.random.default_rng(5)
    place.noise = rng.standard_normal((44, 4))
    for at in range(40):
        place.measured(at, [100 + one for one in place.noise[at]])
    return place


def test_measured_noise_passes_and_a_step_is_1(noisy):
    noisy.measured(40, [100 + 1.5, 100.0, 98.0, 100.0])
    assert noisy.check(40, 39).exit_code == 0
    noisy.measured(41, [110.0, 100.0, 100.0, 100.0])
    report = noisy.check(41, 40)
    assert report.exit_code == 1 and verdicts(report) == {(REGRESSION, "small", "op")}
    assert "standard deviations off" in report.findings[0].reason
    assert report.findings[0].size == pytest.approx(0.1, abs=0.01)


def test_a_small_step_is_1_on_the_commit_that_makes_it_certain_and_known_after(noisy):
    codes = []
    for at in range(40, 44):
        noisy.measured(at, [103.0 + 0.3 * noisy.noise[at][0], 100.0, 100.0, 100.0])
        codes.append(noisy.check(at))
    first = [report.exit_code for report in codes].index(1)
    assert first <= 3
    for report in codes[first + 1 :]:
        assert report.exit_code == 0 and {one.verdict for one in report.findings} == {KNOWN}


def test_one_point_of_a_spiky_series_is_only_suspect(tmp_path):
    place = Place(tmp_path, 41)
    rng = np.random.default_rng(6)
    for at in range(40):
        place.measured(at, [100 + one + 30 * (at % 13 == 5) for one in rng.standard_normal(4)])
    place.measured(40, [130.0, 100.0, 100.0, 100.0])
    report = place.check(40, 39)
    assert report.exit_code == 0 and verdicts(report) == {(SUSPECT, "small", "op")}


@pytest.mark.parametrize(
    "new, width, code, verdict",
    [(125.0, 2.0, 1, REGRESSION), (104.0, 1.0, 0, SUSPECT), (125.0, 40.0, 0, SUSPECT), (100.5, 0.1, 0, None)],
)
def test_without_history_intervals_decide(place, new, width, code, verdict):
    for at, centre in ((0, 100.0), (1, new)):
        place.measured(at, [centre] + [100.0] * 3, low=[centre - width] * 4, high=[centre + width] * 4)
    report = place.check(1, 0)
    assert report.exit_code == code
    assert {one.verdict for one in report.findings} == ({verdict} if verdict else set())


# Confirmation.


@pytest.mark.parametrize(
    "truth, code, verdict", [(1.10, 1, REGRESSION), (1.0, 0, NOT_CONFIRMED), (0.9, 0, IMPROVEMENT)]
)
def test_confirmation_decides_from_interleaved_pairs(noisy, truth, code, verdict):
    noisy.measured(40, [110.0, 100.0, 100.0, 100.0])
    report = noisy.check(40, 39)
    rng = np.random.default_rng(8)
    order = []

    def rerun(commit, names):
        assert names == [MEASURED]
        order.append(commit)
        drift = 1 + 0.1 * (len(order) + 1) // 2
        level = 100 * drift * (truth if commit == report.head else 1)
        return {(MEASURED, ("small", "op")): level * (1 + 0.005 * rng.standard_normal())}

    done = confirm(report, rerun, 6, thresholds={})
    base, head = report.base, report.head
    assert order == [base, head, head, base] * 3
    assert done.exit_code == code and done.findings[0].verdict == verdict


def test_an_alarm_that_cannot_be_run_again_stands(noisy):
    noisy.measured(40, [110.0, 100.0, 100.0, 100.0])
    report = noisy.check(40, 39)
    done = confirm(report, lambda commit, names: {}, 3, thresholds={})
    assert done.exit_code == 1 and "not confirmed: 0 usable pairs" in done.findings[0].reason


def test_confirmation_leaves_modelled_alarms_alone(place):
    place.modelled(0)
    place.modelled(1, (200.0,) * 4)
    report = place.check(1, 0)
    assert confirm(report, lambda commit, names: pytest.fail("run"), 3, thresholds={}) == report


def test_pairs_are_decided_right_as_often_as_claimed():
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(2000):
        base, head = 1 + 0.02 * rng.standard_normal((2, 5))
        wrong += decide_pairs(list(zip(base, head)), least=0.0, direction="lower")[0] == REGRESSION
    assert wrong / 2000 < 0.02
    assert decide_pairs([(1, 2), (1, 2)], least=0.0, direction="lower")[0] == REGRESSION
    assert decide_pairs([(1, 2), (1, 2)], least=0.0, direction="higher")[0] == IMPROVEMENT
    assert decide_pairs([(1, 1), (1, 1)], least=0.0, direction="lower")[0] is None
    assert decide_pairs([(0, 1), (-1, 1), (1, 2)], least=0.0, direction="lower")[0] is None


# Formats.

EVIL = "<img src=x onerror=alert(1)>|`x`\n::error::pwn%0A\x1b[31m\u202e]]>&\ud800"


@pytest.fixture
def hostile(tmp_path):
    place = Place(tmp_path, 2)
    name = "bench_<b>.Modelled" + EVIL.encode("utf-8", "replace").decode() + ".track_cycles"
    for at, number in enumerate((1.0, 2.0)):
        result_file(place.results, place.hashes[at], {name: row([number], [[EVIL], ["op"]])}, date=at)
    (place.results / "ci" / "x|`<script>.json").write_text("{")
    return place


@pytest.mark.parametrize("form", ["text", "markdown", "json", "junit", "github"])
def test_every_format_tells_the_alarm_and_escapes_what_others_wrote(hostile, form):
    text = render(hostile.check(1, 0), form)
    assert "\x1b" not in text and "\u202e" not in text and "\ud800" not in text
    if form == "json":
        data = json.loads(text)
        assert data["exit_code"] == 1 and data["findings"][0]["alarm"] is True
        assert data["findings"][0]["size"] is None or data["findings"][0]["size"] == 1.0
    elif form == "junit":
        suite = ElementTree.fromstring(text)
        assert suite.get("failures") == "1" and len(suite.findall(".//failure")) == 1
    elif form == "github":
        assert re.fullmatch(r"(::(error|warning|notice) title=[^:,\n]+::.*\n?)+", text)
        assert text.count("::error") - text.count("�::error") == 2
    elif form == "markdown":
        assert "<img" not in text and "\n::error" not in text
        rows = [line for line in text.splitlines() if line.startswith("| regression")]
        assert len(rows) == 1 and len(re.findall(r"(?<!\\)\|", rows[0])) == 7
    else:
        assert "regression" in text and len([line for line in text.splitlines() if line.startswith("!")]) == 1


def test_junit_counts_and_states(place):
    place.modelled(0)
    place.modelled(1, (None, 100.0, 120.0, 100.0), [WRONG, "ok", "ok", "ok"])
    suite = ElementTree.fromstring(render(place.check(1, 0), "junit"))
    assert (suite.get("failures"), suite.get("errors")) == ("2", "0")
    assert [one.get("type") for one in suite.iter("failure")] == [REGRESSION, STATE]
    place.modelled(2, (math.nan,) * 4, [SKIPPED] * 4)
    empty = ElementTree.fromstring(render(Report("", "x", 3, 0, 0, {}, (), ()), "junit"))
    assert empty.get("errors") == "1" and empty.find("testcase/error") is not None


def test_metrics_of_a_launch_are_one_line_and_long_reports_are_cut(tmp_path):
    place = Place(tmp_path, 2)
    names = [MODELLED.replace("cycles", "bytes"), MODELLED]
    benchmarks_file(place.results, {names[0]: "bytes (modelled)", names[1]: "cycles (modelled)"})
    cases = [f"case-{at:04d}-" + "|" * 60 for at in range(600)]
    for at, number in enumerate((1.0, 2.0)):
        lines = {name: row([number] * 600, [cases, ["op"]]) for name in names}
        result_file(place.results, place.hashes[at], lines, date=at)
    report = place.check(1, 0)
    assert len(report.findings) == 1200 and len(json.loads(render(report, "json"))["findings"]) == 1200
    text = [line for line in render(report, "text").splitlines() if line.startswith("!")]
    assert len(text) == 600 and all("track_cycles" in line and "and 1 more metrics" in line for line in text)
    comment = render(report, "markdown")
    assert len(comment) < 65_536 and "and 560 more" in comment
    assert render(report, "github").count("::error title=regression") == 40


def test_numbers_with_units():
    assert [figures(one) for one in (12.0, 1234567.0, 0.00012345, 12.3456, 999999.0, math.inf)] == [
        "12", "1.235e+06", "0.0001234", "12.35", "999,999", "∞",
    ]  # fmt: skip
    assert value(12.5, "us") == "12.5 us" and value(math.nan, "us") == "-" and value(None) == "-"
    assert [change(one) for one in (0.05, -0.1234, 0.001, 0.0, math.inf, math.nan)] == [
        "+5.0 %", "-12.3 %", "+0.10 %", "+0.0 %", "from 0", "-",
    ]  # fmt: skip
    assert plain("a\nb\x00c") == "a\ufffdb\ufffdc" and len(plain("x" * 999)) == 200
    assert plain("one two three", 10) == "one two …" and plain("one two three", 13) == "one two three"
    assert plain("a " + "x" * 99, 10) == "a xxxxxxx…" and len(plain("ab " * 99, 50)) <= 50
    assert markdown("a|b") == "a\\|b"


# The command.


def test_command_exit_codes(place, capsys):
    place.modelled(0)
    place.modelled(1)
    place.modelled(2, (110.0, 100.0, 100.0, 100.0))
    base, same, worse = place.hashes[:3]
    assert place.run(capsys, "--base", base, "--head", same)[0] == 0
    code, out, _ = place.run(capsys, "--base", "HEAD~3", "--head", worse)
    assert code == 1 and "regression" in out
    assert place.run(capsys, "--head", worse)[0] == 1
    assert place.run(capsys, "--base", base, "--head", "HEAD")[0] == 3
    assert place.run(capsys, "--head", worse, "--threshold", "bench_*=20")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--head", "nothing"],
        ["--base", "--upload-pack=x"],
        ["--base", "HEAD", "--head", "HEAD"],
        ["--results", "/nonexistent"],
        ["--repo", "/nonexistent"],
        ["--confirm", "1", "--base", "HEAD~1"],
        ["--confirm", "3"],
        ["--threshold", "x=-1"],
        ["--threshold", "nan"],
        ["--format", "html"],
        ["--nothing"],
    ],
)
def test_usage_and_environment_are_4(place, capsys, arguments):
    place.modelled(2)
    place.modelled(3)
    assert place.run(capsys, *arguments)[0] == 4


def test_unusable_input_still_gives_a_report_in_the_format_asked(place, capsys):
    code, out, err = place.run(capsys, "--head", "nothing", "--format", "json")
    assert code == 4 and json.loads(out)["exit_code"] == 4 and "unknown revision 'nothing'" in err


def test_report_to_a_file(place, capsys, tmp_path):
    place.modelled(0)
    place.modelled(1)
    arguments = ["--base", place.hashes[0], "--head", place.hashes[1]]
    code, out, _ = place.run(capsys, *arguments, "--format", "markdown", "--output", str(tmp_path / "r.md"))
    assert code == 0 and not out and "nothing worse" in (tmp_path / "r.md").read_text()
    assert place.run(capsys, *arguments, "--output", str(tmp_path / "no" / "r.md"))[0] == 4


def test_shallow_clone_is_named(place, capsys, tmp_path):
    place.modelled(3)
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "clone", "-q", "--depth", "1", f"file://{place.repo}", str(clone / "c"))
    place.repo = clone / "c"
    code, _, err = place.run(capsys, "--base", place.hashes[0], "--head", "HEAD")
    assert code == 4 and "shallow" in err
    code, out, _ = place.run(capsys, "--head", "HEAD")
    assert code == 3 and "the clone is shallow" in out


@pytest.mark.slow
def test_asv_runs_a_commit_again_without_touching_the_results(tmp_path, monkeypatch):
    pytest.importorskip("asv")
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
    repo = tmp_path / "repo"
    for name, text in {
        "kern/__init__.py": "VALUE = 1.0\n",
        "benchmarks/__init__.py": "",
        "benchmarks/bench_kern.py": (
            "class MeasuredKern:\n"
            "    params = [['a'], ['op']]\n"
            "    param_names = ['case', 'impl']\n"
            "    unit = 'us'\n"
            "    version = '1'\n"
            "    def track_time(self, case, impl):\n"
            "        from kern import VALUE\n"
            "        return VALUE\n"
            "    def track_time_other(self, case, impl):\n"
            "        return 0.0\n"
        ),
        "asv.conf.json": json.dumps(
            {
                "version": 1,
                "project": "kern",
                "repo": ".",
                "branches": ["HEAD"],
                "benchmark_dir": "benchmarks",
                "env_dir": ".asv/env",
                "results_dir": ".asv/results",
                "plugins": [".dashboards.host_environment"],
                "environment_type": "host",
                "pythons": ["same"],
                "build_command": [],
                "install_command": ["in-dir={env_dir} python -m dashboards.specimen {build_dir} {env_dir} kern"],
                "uninstall_command": [],
            }
        ),
    }.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "one")
    (repo / "kern" / "__init__.py").write_text("VALUE = 2.0\n")
    git(repo, "commit", "-q", "-am", "two")
    rerun = asv_rerun(repo / "asv.conf.json")
    for revision, expected in (("HEAD", 2.0), ("HEAD~1", 1.0)):
        values = rerun(git(repo, "rev-parse", revision), ["bench_kern.MeasuredKern.track_time"])
        assert values == {("bench_kern.MeasuredKern.track_time", ("a", "op")): expected}
    assert not (repo / ".asv" / "results").exists()
    assert not list(repo.glob(".asv-confirm*"))
