"""`ascend-perf bisect` on small repositories: what it asks of its input, what it leaves alone, how it goes on."""

import contextlib
import fcntl
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from asv_files import MODELLED, VERSIONS, benchmarks_file, result_file, row, state_line, states_file
from bisect_fake import evaluate

from ascend_model import toolchain
from dashboards import cli
from dashboards.bisect import Outcome, Point
from dashboards.bisect_command import _evidence_lines
from dashboards.evaluate import LATE, NO_BENCHMARK, Evaluator, Journal, Target, reason_of, why
from dashboards.host_environment import toolchain_versions
from dashboards.repository import line_between
from dashboards.results import load
from dashboards.series import ABSENT, COMPILERS, NOT_RUN

ROOT = Path(__file__).parent.parent
BENCH = "bench_x.ModelledCopy.track_cycles"
ROW = ("--case", "c", "--impl", "i")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, value: object, subject: str = "", path: str = "value") -> str:
    (folder / path).write_text(f"{value}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", subject or f"value {value}")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """An empty project; evaluations read `value`."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "Test")
    git(folder, "config", "user.email", "test@localhost")
    settings = {"version": 1, "project": "x", "repo": ".", "results_dir": ".asv/results"}
    (folder / "asv.conf.json").write_text(json.dumps(settings))
    (folder / "benchmarks").mkdir()
    (folder / ".gitignore").write_text("/.asv/\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    return folder


def bisect(*arguments: str, capsys=None) -> tuple[int, str, str]:
    code = cli.main(["bisect", *arguments, "--quiet"])
    out, err = capsys.readouterr()
    return code, out, err


def verdict(*arguments: str, capsys, code: int = 0) -> dict:
    got, out, err = bisect(BENCH, *ROW, *arguments, "--json", capsys=capsys)
    assert got == code, err + out
    return json.loads(out)


def state_of(folder: Path) -> dict[str, object]:
    """Everything of a user's repository that a search must leave alone."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".asv" not in path.parts[len(folder.parts) :][:1]
    }
    return {"files": files, "worktrees": git(folder, "worktree", "list"), "stash": git(folder, "stash", "list")}


def test_finds_the_commit_and_touches_nothing(repo, capsys):
    first = commit(repo, 100)
    commit(repo, "build failed")
    commit(repo, 100, "same again")
    culprit = commit(repo, 120, "make it slow")
    commit(repo, 120, "quiet")
    (repo / "value").write_text("stashed\n")
    git(repo, "stash")
    git(repo, "branch", "other", first)
    before = state_of(repo)
    found = verdict("--good", first, capsys=capsys)
    assert found["ending"] == "step" and found["culprit"]["hash"] == culprit
    assert found["steps"][0]["size"] == pytest.approx(0.2)
    assert found["evidence"]["counts"] == {"cycles": [100, 120]} and found["evidence"]["code"] == ["64", "78"]
    assert state_of(repo) == before
    assert sorted(path.name for path in (repo / ".asv/results-bisect").iterdir()) == ["lock"]
    code, out, _ = bisect(BENCH, *ROW, "--good", first, capsys=capsys)
    assert code == 0 and f"culprit: {culprit[:10]} make it slow (Test)" in out and "+20.0 %" in out


def test_names_the_commits_that_could_not_be_measured(repo, capsys):
    first = commit(repo, 100)
    broken = [commit(repo, one) for one in ("compile failed", "wrong result", "crashed or timed out")]
    last = commit(repo, 120)
    found = verdict("--good", first, capsys=capsys)
    assert found["culprit"] is None
    assert found["steps"][0]["range"] == [*broken, last]
    assert [one["state"] for one in found["steps"][0]["in_between"]] == [
        "compile failed", "wrong result", "crashed or timed out",
    ]  # fmt: skip
    code, out, _ = bisect(BENCH, *ROW, "--good", first, capsys=capsys)
    assert code == 0 and "one of 4 commits" in out and "it is wrong result" in out


def test_state_and_the_command_of_an_event_page_that_names_a_number(repo, capsys):
    first = commit(repo, 100)
    commit(repo, 100, "quiet")
    culprit = commit(repo, "wrong result")
    commit(repo, "wrong result", "quiet")
    found = verdict("--good", first, "--metric", "state", capsys=capsys)
    assert found["culprit"]["hash"] == culprit and found["evidence"]["reason"] == "it is wrong result"
    # the page's command names the metric of its event, and the bad end has none
    found = verdict("--good", first, capsys=capsys)
    assert found["metric"] == "state" and found["culprit"]["hash"] == culprit and found["words"]


class TestAGoodEndThatFails:
    """A search for what made it fail begins at an end that is ok, which such an end is not."""

    SUITE = "bench_x.ModelledCopy"

    def refused(self, capsys, good: str, bad: str = "HEAD", *more: str) -> str:
        code, out, err = bisect(BENCH, *ROW, "--good", good, "--bad", bad, *more, capsys=capsys)
        assert code == 4 and not out
        return err

    def test_is_told_which_search_would_find_something(self, repo, capsys):
        right = commit(repo, 100)
        wrong = commit(repo, "wrong result")
        commit(repo, "compile failed")
        mended = commit(repo, 90)
        said = self.refused(capsys, wrong)
        assert f"good {wrong[:10]} has no cycles, it is `wrong result`: it is wrong result; " in said
        advice = f"--metric state --bad {wrong[:10]} with an earlier --good, where it is ok, finds what made it so"
        assert said.endswith(f"{advice}; --metric state with the ends as they are finds what made it ok\n")
        # both work
        found = verdict("--good", right, "--bad", wrong, "--metric", "state", capsys=capsys)
        assert found["culprit"]["hash"] == wrong
        found = verdict("--good", wrong, "--bad", mended, "--metric", "state", capsys=capsys)
        assert found["steps"][0]["commit"]["hash"] == mended

    def test_the_last_measured_commit_that_is_ok_is_named(self, repo, capsys):
        first, right = commit(repo, 90), commit(repo, 100)
        commit(repo, 100, "not measured")
        wrong = commit(repo, "wrong result")
        commit(repo, "compile failed")
        for one in (first, right):
            results = repo / ".asv/results"
            result_file(results, one, {BENCH: row([100.0], [["c"], ["i"]])})
            states_file(results, one, [state_line(one, "c", "i", suite=self.SUITE)])
        said = self.refused(capsys, wrong)
        assert f"; --metric state --good {right[:10]} --bad {wrong[:10]} finds what made it so" in said
        assert "with the ends as they are" not in said

    def test_where_both_fail_alike(self, repo, capsys):
        wrong = commit(repo, "wrong result")
        commit(repo, "wrong result", "still")
        said = self.refused(capsys, wrong, "HEAD", "--metric", "state")
        assert "there is no change between them" in said
        assert f"--metric state --bad {wrong[:10]} with an earlier --good, where it is ok, finds what" in said

    def test_a_bad_end_that_fails_is_found_by_its_state(self, repo, capsys):
        right = commit(repo, 100)
        wrong = commit(repo, "wrong result")
        said = self.refused(capsys, right, "HEAD", "--metric", "cycles")
        assert f"bad {wrong[:10]} has no cycles" in said and said.endswith(
            "; --metric state finds what made it so\n"
        )


class TestABadEndWithoutANumber:
    CRASHED = "crashed or timed out"

    @pytest.fixture
    def late(self, monkeypatch):
        def ended(self, point: Point) -> Outcome:
            found = evaluate(self, point)
            return found if found.state == "ok" else Outcome(found.state, reason=LATE.format(self.timeout))

        monkeypatch.setattr(Evaluator, "evaluate", ended)

    def test_the_first_commit_that_crashes_is_found(self, repo, capsys):
        first = commit(repo, 100)
        hidden = [commit(repo, self.CRASHED, f"crash {at}") for at in range(6)]
        for more in ((), ("--metric", "state")):
            found = verdict("--good", first, *more, capsys=capsys)
            assert found["culprit"]["hash"] == hidden[0] and "already differ" not in found["words"]

    @pytest.mark.parametrize("timed", [False, True])
    def test_a_number_that_changed_before_is_said(self, timed, repo, capsys, request):
        if timed:
            request.getfixturevalue("late")
        first, slow = commit(repo, 100), commit(repo, 120)
        commit(repo, self.CRASHED)
        commit(repo, self.CRASHED, "again")
        found = verdict("--good", first, capsys=capsys, code=3 if timed else 0)
        assert f"{slow[:10]} already differ from those of the good end: search with --bad" in found["words"]

    def test_no_commit_is_blamed_where_all_up_to_it_time_out(self, repo, capsys, late):
        first = commit(repo, 100)
        hidden = [commit(repo, self.CRASHED, f"late {at}") for at in range(6)]
        for more in ((), ("--metric", "state")):
            found = verdict("--good", first, "--timeout", "2", *more, capsys=capsys, code=3)
            assert found["ending"] == "cannot be told apart" and found["culprit"] is None
            [step] = found["steps"]
            assert (step["last_good"], step["range"]) == (first, hidden)
            assert {one["state"] for one in step["in_between"]} == {self.CRASHED}
            assert found["words"].endswith("--timeout gives them more time.")
        code, out, _ = bisect(BENCH, *ROW, "--good", first, "--timeout", "2", capsys=capsys)
        assert code == 3 and "one of 6 commits up to " + hidden[-1][:10] in out and "culprit: " not in out
        assert f"{first[:10]} is the last one that could." in out

    def test_the_range_begins_behind_the_last_one_that_ran(self, repo, capsys, late):
        first = commit(repo, 100)
        right = [commit(repo, 100, f"right {at}") for at in range(5)]
        hidden = [commit(repo, self.CRASHED, f"late {at}") for at in range(3)]
        found = verdict("--good", first, capsys=capsys, code=3)
        [step] = found["steps"]
        assert (step["last_good"], step["range"]) == (right[-1], hidden)
        assert "already differ" not in found["words"]

    def test_the_only_commit_is_the_culprit(self, repo, capsys, late):
        first, last = commit(repo, 100), commit(repo, self.CRASHED)
        found = verdict("--good", first, capsys=capsys)
        assert found["culprit"]["hash"] == last and "could not be judged" in found["words"]

    def test_what_had_too_little_time_is_run_again_with_more(self, repo, capsys):
        first = commit(repo, 100)
        slow, last = commit(repo, 120), commit(repo, 120, "quiet")
        kept = repo / ".asv/results-bisect/results"
        versions = {name: one for name, one in toolchain_versions().items() if name in COMPILERS}
        result_file(kept, slow, {BENCH: row([None], [["c"], ["i"]])}, versions=versions)
        line = state_line(
            slow,
            "c",
            "i",
            self.CRASHED,
            suite="bench_x.ModelledCopy",
            reason="no end after 2 s",
            versions=versions,
        )
        states_file(kept, slow, [line])
        found = verdict("--good", first, "--bad", last, "--timeout", "2", capsys=capsys)
        assert found["culprit"] is None and found["steps"][0]["range"] == [slow, last]
        found = verdict("--good", first, "--bad", last, "--timeout", "9", capsys=capsys)
        assert found["culprit"]["hash"] == slow


def test_sentences_are_shown_whole_and_plain():
    sentence = "The mask " + "is not a bound, so " * 40 + "write `offset < length`\x1b[2J"
    evidence = {
        "counts": {}, "code": ["", ""], "same_code": False, "reason": "r " * 400 + "end.",
        "findings": [f"{at} " + "f " * 400 + "remedy." for at in range(5)],
        "explained": "\n".join([sentence] * 14),
    }  # fmt: skip
    reason, *rest = _evidence_lines(evidence)
    assert reason == f"reason: {evidence['reason']}"
    assert (
        rest[:3] == [f"finding: {one}" for one in evidence["findings"][:3]] and rest[3] == "finding: … and 2 more"
    )
    lines = rest[4].split("\n     ")
    assert lines[0] == "why: " + sentence.replace("\x1b", "\ufffd") and lines[12] == "… and 2 more"
    # bounded all the same, after a whole word and with a mark
    [long] = _evidence_lines({**evidence, "reason": "word " * 10_000, "findings": [], "explained": ""})
    assert len(long) < 2100 and long.endswith(" word …")


def test_follows_first_parents_and_goes_into_a_merge_on_request(repo, capsys):
    first = commit(repo, 100)
    git(repo, "checkout", "-q", "-b", "side")
    commit(repo, 1, path="other")
    culprit = commit(repo, 130, "slow on the side")
    commit(repo, 2, path="other")
    git(repo, "checkout", "-q", "main")
    commit(repo, 1, "meanwhile", path="third")
    git(repo, "merge", "-q", "--no-ff", "-m", "merge side", "side")
    merge = git(repo, "rev-parse", "HEAD")
    commit(repo, 2, "after", path="third")
    outside = verdict("--good", first, capsys=capsys)
    assert outside["culprit"]["hash"] == merge and outside["through_merges"] == []
    inside = verdict("--good", first, "--into-merge", capsys=capsys)
    assert inside["culprit"]["hash"] == culprit and inside["through_merges"] == [merge]


class TestAGoodEndOnABranchThatWasMerged:
    """Commits beside it on the line do not have what it has."""

    def branch(self, repo, main: list[object], side: list[object], merged: object) -> tuple[str, list[str], str]:
        """The branch's tip, the commits of main beside it, and the merge."""
        commit(repo, 100, "start")
        git(repo, "checkout", "-q", "-b", "side")
        tip = [commit(repo, one, f"side {at}") for at, one in enumerate(side)][-1]
        git(repo, "checkout", "-q", "main")
        beside = [commit(repo, one, f"beside {at}") for at, one in enumerate(main)]
        git(repo, "merge", "-q", "--no-ff", "--no-commit", "-s", "ours", "side")
        return tip, beside, commit(repo, merged, "merge side")

    def test_what_it_mended_is_not_blamed_on_those_that_lack_it(self, repo, capsys):
        good, beside, _ = self.branch(repo, [100, 100, 100], [80], 80)
        commit(repo, 80, "quiet")
        culprit = commit(repo, 100, "slow again")
        commit(repo, 100, "quiet again")
        found = verdict("--good", good, capsys=capsys)
        assert found["culprit"]["hash"] == culprit and found["ending"] == "step"
        assert "do not contain the good end" in found["words"] and good not in beside

    def test_what_came_beside_it_is(self, repo, capsys):
        good, beside, _ = self.branch(repo, [100, 130, 130], [100], 130)
        commit(repo, 130, "quiet")
        found = verdict("--good", good, capsys=capsys)
        assert found["culprit"]["hash"] == beside[1]

    def test_the_merge_itself_is(self, repo, capsys):
        good, _, merge = self.branch(repo, [100, 100], [100], 130)
        assert verdict("--good", good, capsys=capsys)["culprit"]["hash"] == merge

    def test_no_commit_beside_it_shares_its_kernels(self, repo):
        (repo / "kernels").mkdir()
        start = commit(repo, 1, path="kernels/a.py")
        git(repo, "checkout", "-q", "-b", "side")
        good = commit(repo, 2, path="kernels/a.py")
        git(repo, "checkout", "-q", "main")
        beside = commit(repo, 0, path="notes")
        git(repo, "merge", "-q", "--no-ff", "-m", "merge", "side")
        merge = git(repo, "rev-parse", "HEAD")
        after = commit(repo, 1, path="notes")
        groups = line_between(repo, good, "HEAD", ["kernels"])
        assert [[one.hash for one in group] for group in groups] == [[good], [beside], [merge, after]]
        groups = line_between(repo, start, "HEAD", ["kernels"])
        assert [[one.hash for one in group] for group in groups] == [[start, beside], [merge, after]]


def test_the_row_of_a_title_is_taken(repo, capsys):
    first = commit(repo, 100)
    commit(repo, 120)
    for title in (f"{BENCH}(c, i)", f"{BENCH}('c', 'i')"):
        code, out, err = bisect(title, "--good", first, "--json", capsys=capsys)
        assert code == 0, err
        assert [json.loads(out)[name] for name in ("case", "impl")] == ["c", "i"]
    for arguments, words in (
        ((f"{BENCH}(c, i)", "--case", "d"), "name two of them"),
        ((f"{BENCH}(c)",), "expected (case, implementation)"),
    ):
        code, _, err = bisect(*arguments, "--good", first, capsys=capsys)
        assert code == 4 and words in err


def test_a_merge_that_is_slow_by_itself_is_the_culprit(repo, capsys):
    first = commit(repo, 100)
    git(repo, "checkout", "-q", "-b", "side")
    commit(repo, 1, path="other")
    git(repo, "checkout", "-q", "main")
    commit(repo, 1, path="third")
    git(repo, "merge", "-q", "--no-commit", "--no-ff", "side")
    merge = commit(repo, 150, "merge with an edit")
    found = verdict("--good", first, "--into-merge", capsys=capsys)
    assert found["culprit"]["hash"] == merge and "the merge itself" in found["words"]


def test_commits_that_leave_the_kernels_alone_are_not_run(repo, capsys):
    (repo / "kernels").mkdir()
    (repo / "kernels/__init__.py").write_text("")
    settings = json.loads((repo / "asv.conf.json").read_text())
    command = "in-dir={env_dir} python -m dashboards.specimen {build_dir} {env_dir} kernels --keep harness"
    (repo / "asv.conf.json").write_text(json.dumps({**settings, "install_command": [command]}))
    first = commit(repo, 100)
    for number in range(10):
        commit(repo, number, path="notes")
    culprit = commit(repo, "a", path="kernels/a.py")
    (repo / "value").write_text("140")
    git(repo, "commit", "-qa", "--amend", "--no-edit")
    culprit = git(repo, "rev-parse", "HEAD")
    commit(repo, 0, path="notes")
    (repo / "kernels/harness").mkdir()
    commit(repo, 0, path="kernels/harness/x.py")
    found = verdict("--good", first, capsys=capsys)
    assert found["culprit"]["hash"] == culprit
    assert (found["evaluations"], found["commits"], found["commits_with_kernels"]) == (2, 13, 1)


def test_a_measured_step_without_another_code_is_the_machines(repo, capsys):
    first = commit(repo, "100 aa")
    commit(repo, "100 aa", "quiet")
    commit(repo, "130 aa", "slow")
    code, out, _ = bisect("copy", *ROW, "--metric", "device_time", "--good", first, "--json", capsys=capsys)
    found = json.loads(out)
    assert code == 3 and found["culprit"] is None
    assert found["ending"] == "slower but the compiled code is the same: machine"
    assert found["steps"][0]["commit"]["subject"] == "slow"
    # a call that got slower on the host is the commit's, whatever the kernel
    code, out, _ = bisect("copy", *ROW, "--metric", "host_time", "--good", first, "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["culprit"]["subject"] == "slow"
    last = commit(repo, "130 aa", "quiet again")
    code, out, _ = bisect(
        "copy", *ROW, "--metric", "device_time", "--good", "HEAD~1", "--bad", last, capsys=capsys
    )
    assert code == 3 and "NOT REPRODUCED" in out and "both ends is the same" in out


def test_the_limit_of_runs(repo, capsys):
    first = commit(repo, 100)
    for number in range(1, 20):
        commit(repo, 100 if number < 7 else 120, f"commit {number}")
    found = verdict("--good", first, "--max-runs", "3", capsys=capsys, code=3)
    assert found["ending"] == "stopped at the limit of runs" and found["culprit"] is None
    assert len(found["steps"][0]["range"]) < 19 and found["evaluations"] == 3


def test_compilers_make_a_grid(repo, capsys, monkeypatch):
    monkeypatch.setattr(toolchain, "available_versions", lambda: ["1.0", "1.5", "2.0"])
    first = commit(repo, 100)
    commit(repo, 100, "quiet")
    culprit = commit(repo, 120)
    found = verdict("--good", first, "--compiler", "1.0..2.0", capsys=capsys)
    assert found["culprit"]["hash"] == culprit
    shares = {name: one["part"] for name, one in found["grid"]["shares"].items()}
    assert shares == pytest.approx({"commit": 0.8, "compiler": 0.2, "interaction": 0})
    [step] = found["grid"]["compiler_steps"]
    assert (step["from"], step["to"]) == ("1.5", "2.0")
    assert (found["before"], found["after"]) == (100, 125)
    _, out, _ = bisect(BENCH, *ROW, "--good", first, "--compiler", "1.0..2.0", capsys=capsys)
    assert "commit 80.0 %" in out and "ascendnpu-ir 1.5 -> 2.0" in out


def bad_inputs(repo: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    first, second = commit(repo, 100), commit(repo, 120)
    git(repo, "checkout", "-q", "-b", "side", first)
    side = commit(repo, 130, "on the side")
    git(repo, "checkout", "-q", "main")
    same = commit(repo, 120, "no change")
    absent = commit(repo, "absent")
    late = commit(repo, 120, "named anew")
    return {
        "unknown good": (("--good", "nowhere", "--bad", second), "unknown revision 'nowhere'"),
        "unknown bad": (("--good", first, "--bad", "f" * 40), "unknown revision"),
        "an option as a revision": (("--good=--help", "--bad", second), "unknown revision"),
        "good after bad": (("--good", second, "--bad", first), "comes after bad"),
        "same": (("--good", first, "--bad", first), "same commit"),
        "other branch": (("--good", side, "--bad", second), "not an ancestor"),
        "renamed": (("--good", absent, "--bad", late), "renamed in between"),
        "number without one": (("--good", first, "--bad", absent), "renamed in between"),
        "state did not change": (("--good", first, "--bad", second, "--metric", "state"), "no change between"),
        "unknown compiler": (("--good", first, "--bad", second, "--compiler", "9.9"), "not here"),
        "probability": (("--good", first, "--error", "2"), "probability"),
        "no time": (("--good", first, "--timeout", "0"), "--timeout"),
        "no number of seconds": (("--good", first, "--timeout", "nan"), "--timeout"),
        "no runs": (("--good", first, "--max-runs", "1"), "--max-runs"),
        "no configuration": (("--good", first, "--config", "none.json"), "no none.json here"),
        "equal numbers": (("--good", second, "--bad", same), ""),
    }


def test_bad_input_gets_a_sentence_and_exit_code_4(repo, capsys):
    for name, (arguments, words) in bad_inputs(repo).items():
        code, out, err = bisect(BENCH, *ROW, *arguments, capsys=capsys)
        assert code == 4, (name, out, err)
        if words:
            assert words in err and len(err.strip().splitlines()) == 1, (name, err)
        else:
            assert "NOT REPRODUCED" in out, (name, out)
        assert not list((repo / ".asv").rglob("work-*")), name


def test_why_an_end_has_no_benchmark_is_said_where_the_suite_says_so(tmp_path):
    name, commits = "bench_x.ModelledCopy", ["a" * 40, "b" * 40, "c" * 40]
    for one, reason in zip(commits, ("this commit has no ops/copy.py", ABSENT, "")):
        result_file(tmp_path, one, {f"{name}.track_cycles": row([float("nan")], [["c"], ["i"]])})
        states_file(tmp_path, one, [state_line(one, "c", "i", "not run", suite=name, reason=reason)])
    history = load(tmp_path, cache=None)
    said = [reason_of(history, one, Target("ModelledCopy", "cycles")) for one in [*commits, "d" * 40]]
    assert said == ["this commit has no ops/copy.py", "", "", ""]


def test_an_end_without_a_benchmark_is_refused_with_the_reason(repo, capsys, monkeypatch):
    first = commit(repo, "absent")
    commit(repo, 120)
    for reason, words in (
        ("it has no ops/copy.py", ": it has no ops/copy.py; if"),
        (NO_BENCHMARK, "copy with c, i; if"),
    ):
        monkeypatch.setattr(Evaluator, "evaluate", lambda self, point, said=reason: Outcome(NOT_RUN, reason=said))
        code, _, err = bisect("copy", *ROW, "--good", first, capsys=capsys)
        assert code == 4 and words.lower() in err.lower()


def test_a_refused_search_is_made_anew_when_it_is_asked_again(repo, capsys, monkeypatch):
    """Its reason may have been a full disk, or too little time."""
    first = commit(repo, 100)
    culprit = commit(repo, 120)

    def broken(self, point: Point) -> Outcome:
        return Outcome("crashed or timed out", reason="No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Evaluator, "evaluate", broken)
        code, _, err = bisect(BENCH, *ROW, "--good", first, capsys=capsys)
    assert code == 4 and "No space left" in err
    assert sorted(path.name for path in (repo / ".asv/results-bisect").iterdir()) == ["lock"]
    assert verdict("--good", first, capsys=capsys)["culprit"]["hash"] == culprit


def test_a_name_that_is_no_benchmark(repo, capsys):
    first = commit(repo, 100)
    commit(repo, 120)
    for name in ("a b", "../x", "x.y", ""):
        code, _, err = bisect(name, "--good", first, capsys=capsys)
        assert code == 4 and len(err.strip().splitlines()) == 1


class TestANameThatIsNone:
    """Said with the names there are, before anything is run."""

    SUITE = """
class ModelledCopy:
    params = (["c", "d"], ["i"])
    param_names = ("case", "impl")

    def track_cycles(self, case, impl):
        return 1

    def track_bytes_in(self, case, impl):
        return 1


class ModelledMove(ModelledCopy):
    pass
"""

    @pytest.fixture
    def suite(self, repo, monkeypatch):
        (repo / "benchmarks/__init__.py").write_text("")
        (repo / "benchmarks/bench_x.py").write_text(self.SUITE)
        first = commit(repo, 100)
        commit(repo, 120)
        ran = []

        def looked(self, point: Point) -> Outcome:
            ran.append(point)
            return evaluate(self, point)

        monkeypatch.setattr(Evaluator, "evaluate", looked)
        return repo, first, ran

    @pytest.mark.parametrize(
        "arguments, words",
        [
            (("cpoy",), "there is no op cpoy; there are copy, move"),
            (("copy", "--case", "e", "--impl", "i"), "copy has no case e; it has c, d"),
            (("copy", "--case", "c", "--impl", "j"), "copy has no implementation j; it has i"),
            (("copy", "--metric", "cycle"), "copy has no metric cycle here; it has bytes_in, cycles, state"),
            (("copy", "--metric", "device_time"), "copy has no metric device_time here; it has bytes_in, cycles"),
            ((BENCH.replace("cycles", "cycle"),), "copy has no metric cycle here; it has bytes_in, cycles, state"),
            (
                ("bench_y.ModelledCopy.track_cycles",),
                "there is no benchmark bench_y.ModelledCopy.track_cycles; there",
            ),
        ],
    )
    def test_with_the_names_there_are(self, suite, capsys, arguments, words):
        _, first, ran = suite
        code, out, err = bisect(*arguments, "--good", first, capsys=capsys)
        assert code == 4 and words in err and not out and not ran

    def test_a_right_one_is_run(self, suite, capsys):
        _, first, ran = suite
        assert verdict("--good", first, capsys=capsys)["culprit"]["subject"] == "value 120" and ran

    def test_one_of_stored_results_alone_is_right(self, suite, capsys):
        repo, first, _ = suite
        name = "bench_x.ModelledGone.track_cycles"
        result_file(repo / ".asv/results", first, {name: row([100.0], [["c"], ["i"]])})
        benchmarks_file(repo / ".asv/results", {name: "cycles"})
        assert bisect("gone", *ROW, "--good", first, capsys=capsys)[0] == 0
        _, _, err = bisect("gone", "--case", "x", "--impl", "i", "--good", first, capsys=capsys)
        assert "gone has no case x; it has c" in err


def test_a_dirty_tree_is_refused(repo, capsys):
    first = commit(repo, 100)
    commit(repo, 120)
    for path in ("value", "benchmarks/bench_new.py"):
        (repo / path).write_text("changed\n")
        code, _, err = bisect(BENCH, *ROW, "--good", first, capsys=capsys)
        assert code == 4 and "changes" in err and path.split("/")[0] in err
        git(repo, "checkout", "-q", "--", "value")
    (repo / "benchmarks/bench_new.py").unlink()
    (repo / "notes").write_text("untracked files elsewhere do no harm\n")
    assert bisect(BENCH, *ROW, "--good", first, capsys=capsys)[0] == 0


def test_a_shallow_clone_is_refused(repo, tmp_path, capsys, monkeypatch):
    first = commit(repo, 100)
    commit(repo, 120)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    monkeypatch.chdir(tmp_path / "shallow")
    code, _, err = bisect(BENCH, *ROW, "--good", first, capsys=capsys)
    assert code == 4 and "shallow" in err


def test_not_a_repository(tmp_path, capsys, monkeypatch):
    (tmp_path / "asv.conf.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, _, err = bisect(BENCH, *ROW, "--good", "HEAD", capsys=capsys)
    assert code == 4 and "not a git repository" in err


def test_one_at_a_time_for_each_results_folder(repo, capsys):
    first = commit(repo, 100)
    commit(repo, 120)
    folder = repo / ".asv/results-bisect"
    folder.mkdir(parents=True)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = bisect(BENCH, *ROW, "--good", first, capsys=capsys)
        assert code == 4 and "another bisect" in err
        other = {**json.loads((repo / "asv.conf.json").read_text()), "results_dir": ".asv/others"}
        (repo / "other.conf.json").write_text(json.dumps(other))
        commit(repo, 120, "another configuration")
        assert bisect(BENCH, *ROW, "--good", first, "--config", "other.conf.json", capsys=capsys)[0] == 0
    assert bisect(BENCH, *ROW, "--good", first, capsys=capsys)[0] == 0


def test_untrusted_words_are_shown_on_one_line(repo, capsys):
    first = commit(repo, 100)
    commit(repo, 120, "\x1b[31mred\x07 \u202e back")
    _, out, _ = bisect(BENCH, *ROW, "--good", first, capsys=capsys)
    assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out


def test_a_repository_cannot_run_programs(repo, capsys, tmp_path):
    first = commit(repo, 100)
    commit(repo, 120)
    hook = repo / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(hook))
    assert bisect(BENCH, *ROW, "--good", first, capsys=capsys)[0] == 0
    assert not (tmp_path / "ran").exists()


def test_a_journal_with_a_cut_line_goes_on_from_the_line_before(tmp_path):
    asked = []

    def look(point: Point) -> Outcome:
        asked.append(point)
        return Outcome("ok", point.commit * 1.5, findings=("a",), facts={"cycles": 1.0})

    stored = {Point(9): Outcome("ok", 3.0)}
    points = [Point(at) for at in range(10)]
    first = Journal(tmp_path / "j.jsonl", look, stored.get, points)
    outcomes = [first.evaluate(Point(at)) for at in (0, 4, 2)]
    data = (tmp_path / "j.jsonl").read_bytes()
    for cut in range(data.index(b"begun") + 10, len(data), 7):
        (tmp_path / "j.jsonl").write_bytes(data[:cut])
        asked.clear()
        # what is stored by now does not count: the search has to go the same way
        again = Journal(tmp_path / "j.jsonl", look, {Point(1): Outcome("ok", 0.0)}.get, points)
        assert [again.evaluate(Point(at)) for at in (0, 4, 2)] == outcomes
        assert len(asked) == 3 - again.resumed
        assert again.stored(Point(9)) == stored[Point(9)] and again.stored(Point(1)) is None
        assert (tmp_path / "j.jsonl").read_bytes().count(b'"run"') == 3


def test_the_reason_in_a_log():
    assert why("x\n  File 'a'\nSyntaxError: unmatched ')'\nasv: done\n") == "SyntaxError: unmatched ')'"
    assert why("one\nspecimen: this commit has no package\nthree") == "specimen: this commit has no package"
    assert why("") == "asv said nothing" and why("only") == "only"


def test_the_pattern_selects_one_row_of_one_suite():
    import re

    target = Target("bench_x.ModelledCopy", "cycles", "a.b", "i")
    assert re.search(target.pattern, "bench_x.ModelledCopy.track_cycles('a.b', 'i')")
    for other in (
        "bench_x.ModelledCopy.track_cycles('axb', 'i')",
        "bench_x.ModelledCopy.track_cycles('a.b', 'ii')",
        "bench_y.ModelledCopy.track_cycles('a.b', 'i')",
        "bench_x.ModelledCopy2.track_cycles('a.b', 'i')",
    ):
        assert not re.search(target.pattern, other)


def test_groups_begin_with_the_commits_that_change_the_paths(repo):
    first = commit(repo, 1)
    second = commit(repo, 1, path="notes")
    third = commit(repo, 2)
    fourth = commit(repo, 2, path="notes")
    groups = line_between(repo, first, fourth, (":(top)value",))
    assert [[one.hash for one in group] for group in groups] == [[first, second], [third, fourth]]
    assert [[one.hash for one in group] for group in line_between(repo, first, fourth)] == [
        [first], [second], [third], [fourth],
    ]  # fmt: skip


def test_terminated(repo):
    first = commit(repo, 100)
    commit(repo, 120)
    command = [sys.executable, str(ROOT / "tests/bisect_fake.py"), "600", BENCH, *ROW, "--good", first]
    process = subprocess.Popen(
        command, cwd=repo, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, stderr=subprocess.PIPE
    )
    while process.poll() is None and not list((repo / ".asv").glob("results-bisect/search-*.jsonl")):
        time.sleep(0.05)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on from here" in err
    assert not list((repo / ".asv/results-bisect").glob("work-*"))


@pytest.mark.slow
def test_killed_at_any_moment_and_started_again(repo, capsys):
    """SIGKILL at 20 moments spread over the whole run, each time into what the kill before it left."""
    first = commit(repo, 100)
    for number in range(1, 40):
        commit(repo, "wrong result" if number % 9 == 4 else 100 if number < 23 else 117, f"commit {number}")
    arguments = [BENCH, *ROW, "--good", first, "--json"]
    before = state_of(repo)
    command = [sys.executable, str(ROOT / "tests/bisect_fake.py"), "0.1", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            command, cwd=repo, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def journalled() -> int:
        """Lines that the search has on disk: one when it has begun, and one an evaluation."""
        found = 0
        for place in (repo / ".asv/results-bisect").glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError):  # a search that ends takes it away
                found += place.read_text().count("\n")
        return found

    plain = start()
    out, err = plain.communicate(timeout=120)
    assert plain.returncode == 0, err
    right = json.loads(out)
    assert right["steps"][0]["commit"]["subject"].startswith("commit 23")
    moments = random.Random(4)
    killed = 0
    resumed = []
    for moment in range(20):
        process = start()
        # By progress, not by the clock: while it starts, in its first evaluation, in its second, in its third.
        while process.poll() is None and journalled() < moment % 4:
            time.sleep(0.005)
        time.sleep(0.1 * moments.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if moment % 4 == 3:
            again = start()
            out, err = again.communicate(timeout=120)
            assert again.returncode == 0, err
            found = json.loads(out)
            resumed.append(found.pop("resumed"))
            assert found == {key: value for key, value in right.items() if key != "resumed"}
            assert sorted(path.name for path in (repo / ".asv/results-bisect").iterdir()) == ["lock"]
    assert killed >= 15 and min(resumed) > 0
    assert state_of(repo) == before


def stored_results(repo: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Twelve commits, all measured: `large` gets slower at the eighth, `small` a little at the third."""
    monkeypatch.setattr(toolchain, "available_versions", lambda: ["1.2.0"])
    monkeypatch.setattr(toolchain, "default_version", lambda: "1.2.0")
    monkeypatch.setattr("dashboards.host_environment.toolchain_versions", lambda: dict(VERSIONS))

    def refuse(*_: object) -> Outcome:
        raise AssertionError("nothing has to be run")

    monkeypatch.setattr(Evaluator, "evaluate", refuse)
    folder, hashes = repo / ".asv/results", []
    for number in range(12):
        hashes.append(commit(repo, number))
        rows = [100 + (number >= 3), 50, 200 + 90 * (number >= 8), 70]
        result_file(folder, hashes[-1], {MODELLED: row(rows)})
        cells = itertools.product(("small", "large"), ("op", "gather_twin"))
        states_file(folder, hashes[-1], [state_line(hashes[-1], case, impl) for case, impl in cells])
    benchmarks_file(folder, {MODELLED: "cycles (modelled)"})
    return hashes


def test_stored_results_answer_without_a_run(repo, capsys, monkeypatch):
    hashes = stored_results(repo, monkeypatch)
    for name in (MODELLED, "assign"):
        # neither case nor implementation is named: the op's own row that changed most
        code, out, err = bisect(name, "--good", hashes[0], "--json", capsys=capsys)
        assert code == 0, err
        found = json.loads(out)
        assert (found["case"], found["impl"]) == ("large", "op")
        assert found["culprit"]["hash"] == hashes[8] and found["steps"][0]["size"] == pytest.approx(0.45)
        assert found["evaluations"] == 0 and len(found["stored"]) == 12
        assert found["unit"] == "cycles (modelled)" and found["worse"]


def test_stored_results_of_other_tools_do_not_count(repo, capsys, monkeypatch):
    hashes = stored_results(repo, monkeypatch)
    monkeypatch.setattr(
        "dashboards.host_environment.toolchain_versions", lambda: {**VERSIONS, "ascend-model": "2"}
    )
    with pytest.raises(AssertionError, match="nothing has to be run"):
        cli.main(["bisect", MODELLED, "--case", "large", "--impl", "op", "--good", hashes[0], "--quiet"])


def test_a_row_without_a_state_does_not_count(repo, capsys, monkeypatch):
    """A gap may be that of a run that asked for another case only."""
    hashes = stored_results(repo, monkeypatch)
    (repo / ".asv/results/states" / f"{hashes[0]}.jsonl").unlink()
    with pytest.raises(AssertionError, match="nothing has to be run"):
        cli.main(["bisect", MODELLED, "--case", "large", "--impl", "op", "--good", hashes[0], "--quiet"])


def test_the_row_to_look_at_is_not_chosen_from_a_part_of_the_rows(repo, capsys, monkeypatch):
    hashes = stored_results(repo, monkeypatch)
    for one in (hashes[0], hashes[-1]):
        (repo / ".asv/results/states" / f"{one}.jsonl").unlink()
        states_file(repo / ".asv/results", one, [state_line(one, "small", "op")])
    with pytest.raises(AssertionError, match="nothing has to be run"):
        cli.main(["bisect", MODELLED, "--good", hashes[0], "--quiet"])
