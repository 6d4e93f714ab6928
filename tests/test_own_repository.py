"""Kernels of an outside repository, end to end: init, few lines by hand, run, dashboard, check, bisect.

The history: kernels alone; their descriptions; an edit of the wrapper of add that makes it slower; a softmax that
is wrong; the softmax mended and the gather's signature changed together with its description.
"""

import json
from pathlib import Path

import own_kernels
import pytest
from own_kernels import commit, perf, sh

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

BENCH = "benchmarks/bench_kernels.py"


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = own_kernels.repository(tmp_path_factory.mktemp("own") / "repository")
    hashes = {"kernels": commit(folder, "three kernels")}
    told = json.loads(perf(folder, "init", "--json").stdout)
    undescribed = perf(folder, "run", "--json", "--quiet", code=3)
    text, lines = own_kernels.by_hand((folder / BENCH).read_text())
    (folder / BENCH).write_text(text)
    hashes["described"] = commit(folder, "describe the kernels")
    edit(folder / "kernels/vector_add.py", "BLOCK=1024", "BLOCK=64")
    hashes["slower"] = commit(folder, "smaller blocks in add")
    edit(
        folder / "src/nn/softmax.py",
        "cols, e / tl.sum(e, axis=0), mask=cols < n_cols",
        "cols, e, mask=cols < n_cols",
    )
    hashes["wrong"] = commit(folder, "softmax without its sum")
    edit(
        folder / "src/nn/softmax.py",
        "cols, e, mask=cols < n_cols",
        "cols, e / tl.sum(e, axis=0), mask=cols < n_cols",
    )
    gather = folder / "gather.py"
    gather.write_text(
        gather.read_text()
        .replace("out_ptr, width,", "out_ptr, width, pitch,")
        .replace("source * width", "source * pitch")
    )
    edit(
        folder / BENCH,
        '            "width": width,\n',
        '            "width": width,\n            "pitch": width,\n',
    )
    hashes["signature"] = commit(folder, "gather from rows with a pitch")
    done = perf(folder, "run", "--last", "9", "--json", "--quiet")
    return folder, hashes, told, lines, undescribed, json.loads(done.stdout)


def states(summary: dict, commit: str) -> dict[str, int]:
    return next(row["states"] for row in summary["commits"] if row["commit"] == commit)


def sidecar(folder: Path, commit: str) -> dict[tuple[str, str], dict]:
    found = {}
    for line in (folder / f".asv/results/states/{commit}.jsonl").read_text().splitlines():
        row = json.loads(line)
        found[row["op"], row["case"]] = row
    return found


def cycles(folder: Path, commit: str, op: str) -> list:
    [file] = (folder / ".asv/results").glob(f"*/{commit[:8]}-*.json")
    suite = "Modelled" + "".join(part.capitalize() for part in op.split("_"))
    return json.loads(file.read_text())["results"][f"bench_kernels.{suite}.track_cycles"][0]


def test_init_found_the_three_kernels_and_left_the_helper(own):
    told = own[2]
    assert {op["name"]: op["place"] for op in told["ops"]} == {
        "add": "kernels/vector_add.py:add",
        "softmax": "src/nn/softmax.py:softmax",
        "gather": "gather.py:gather_kernel",
    }
    assert told["helpers"] == [{"place": "src/nn/reduce.py:exponentials", "called_by": ["softmax_kernel"]}]
    assert [file["state"] for file in told["files"]] == ["written"] * 4


def test_at_most_ten_lines_a_kernel_are_written_by_hand(own):
    lines = own[3]
    assert lines == {"add": 2, "softmax": 2, "gather": 2}
    assert max(lines.values()) <= 10


def test_before_that_every_op_is_not_run_with_the_line_to_write(own):
    _, hashes, told, _, undescribed, _ = own
    [row] = json.loads(undescribed.stdout)["commits"]
    assert row["commit"] == hashes["kernels"] and row["states"] == {"not run": 3}
    first = {op["op"]: op["reason"] for op in row["bad"]}
    marks = [mark["line"] for mark in told["marks"]]
    for reason in first.values():
        assert reason.startswith(f"not described yet: {BENCH} line ")
        assert int(reason.split(" line ")[1].split(" ")[0]) in marks


def test_commits_have_their_states(own):
    folder, hashes, *_, summary = own
    assert states(summary, hashes["described"]) == {"ok": 4}
    assert states(summary, hashes["slower"]) == {"ok": 4}
    assert states(summary, hashes["wrong"]) == {"ok": 3, "wrong result": 1}
    assert states(summary, hashes["signature"]) == {"ok": 4}
    wrong = sidecar(folder, hashes["wrong"])["softmax", "64x200"]
    assert wrong["state"] == "wrong result" and "output[0, 0] is" in wrong["reason"]
    assert cycles(folder, hashes["wrong"], "softmax") in ([None], None)


def test_kernels_and_descriptions_are_those_of_the_commit(own):
    folder, hashes, *_ = own
    before, after = (cycles(folder, hashes[name], "add") for name in ("described", "slower"))
    assert all(new > 2 * old for old, new in zip(before, after))
    # Both signatures of the gather ran, each as its own commit describes it.
    assert cycles(folder, hashes["described"], "gather")[0] > 0
    assert cycles(folder, hashes["signature"], "gather")[0] > 0


def test_a_commit_from_before_the_descriptions_is_measured_with_todays(own):
    folder, hashes, *_, summary = own
    assert states(summary, hashes["kernels"]) == {"ok": 3, "not run": 1}
    assert cycles(folder, hashes["kernels"], "add") == cycles(folder, hashes["described"], "add")
    gather = sidecar(folder, hashes["kernels"])["gather", "64 of 256"]
    assert gather["state"] == "not run"
    assert "gather_kernel(index_ptr, table_ptr, out_ptr, width, BLOCK) at this commit" in gather["reason"]
    assert "`inputs` gives pitch, which it does not take" in gather["reason"]


def test_check_names_the_slower_and_the_wrong_kernel(own):
    folder, hashes, *_ = own
    slower = perf(folder, "check", "--base", hashes["described"], "--head", hashes["slower"], code=1).stdout
    assert "regression: bench_kernels.ModelledAdd.track_cycles(16k, triton)" in slower
    assert "Softmax" not in slower and "Gather" not in slower
    wrong = perf(folder, "check", "--base", hashes["slower"], "--head", hashes["wrong"], code=2).stdout
    assert "ModelledSoftmax" in wrong and "wrong result" in wrong


def test_pages_show_the_commits(own):
    folder, hashes, *_ = own
    index = Path(perf(folder, "dashboard", "--quiet").stdout.strip().splitlines()[-1])
    site = (folder / index).parent
    text = "".join(p.read_text(errors="replace") for p in site.rglob("*") if p.suffix in (".html", ".js", ".json"))
    for name in ("smaller blocks in add", "softmax without its sum", "wrong result", hashes["slower"][:8]):
        assert name in text


def test_bisect_names_the_commit(own):
    folder, hashes, *_ = own
    found = json.loads(
        perf(folder, "bisect", "add", "--good", hashes["described"], "--bad", "HEAD", "--json", "--quiet").stdout
    )
    assert found["culprit"]["hash"] == hashes["slower"]


def test_the_repository_stays_clean(own):
    assert sh(own[0], "git", "status", "--porcelain") == ""
