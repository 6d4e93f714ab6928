"""`ascend-perf bisect` on a repository of this project with 64 commits, through the real asv environment.

One commit makes the assign kernel slow; the commits that the search comes upon fail, each in another way; the
search is killed twice on its way.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboards.bisect import Counted, Outcome, Point, bound, exact_line
from dashboards.series import BUILD_FAILED, COMPILE_FAILED, CRASHED, OK, UNSUPPORTED, WRONG

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
FAMILY = "ascend_kernels/token_pool"
KERNEL = f"{FAMILY}/assign_req_to_token_pool.py"
BENCH = "bench_token_pool.ModelledAssignReqToTokenPool.track_cycles"
COMMITS = 64
CULPRIT = 39
# Seconds until a commit that hangs is given up; the others take a few.
PATIENCE = 75
STORE = "tl.store(target + offset, slots, mask=offset < length)"
CALL = "    copy.launch(req_pool_indices"

# way -> state, word of the reason, edit of the kernel's file
FAILURES: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "does not build": (BUILD_FAILED, "no package", lambda text: text),
    "is wrong": (WRONG, "expected", lambda text: text.replace(STORE, STORE.replace("length)", "length - 1)"))),
    "does not compile for Ascend": (
        COMPILE_FAILED,
        "fp8",
        lambda text: text.replace(STORE, STORE.replace("slots,", "slots.to(tl.float8e4nv).to(tl.float32),")),
    ),
    "does not import": (CRASHED, "SyntaxError", lambda text: text + "\n)\n"),
    "ends its process": (CRASHED, "", lambda text: text.replace(CALL, "    import os; os._exit(7)\n" + CALL)),
    "hangs": (CRASHED, f"no end after {PATIENCE} s", lambda text: text + "\nimport time\n\ntime.sleep(10**6)\n"),
    "is not for this device": (
        UNSUPPORTED,
        "too large",
        lambda text: text.replace(
            CALL, "    from ..harness.spec import PlanError; raise PlanError('too large')\n" + CALL
        ),
    ),
}


def slow(text: str) -> str:
    """Sums lengths as int64, which the compiler turns into scalar accesses."""
    edited = text.replace("tl.sum(ends - starts)", "tl.sum((ends - starts).to(tl.int64))")
    assert edited != text
    return edited


def met() -> list[int]:
    """Commits that the search comes upon, one after the other, when each of them fails."""
    broken: list[int] = []
    for _ in FAILURES:

        def look(point: Point) -> Outcome:
            return (
                Outcome(BUILD_FAILED) if point.commit in broken else Outcome(OK, 1.0 + (point.commit >= CULPRIT))
            )

        oracle = Counted(look)
        exact_line(oracle, [Point(at) for at in range(COMMITS + 1)])
        asked = [point.commit for point, _ in oracle.runs]
        after = asked[asked.index(broken[-1]) + 1 :] if broken else asked
        new = [one for one in after if one not in (0, COMMITS, CULPRIT - 1, CULPRIT)]
        # every other one lets a commit in between be measured
        broken.append(new[len(broken) % 2])
    return broken


def sh(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The repository, the commits' hashes in order, and how each bad one fails."""
    folder = tmp_path_factory.mktemp("bisect") / "clone"
    files = sh(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    sh(folder, "git", "init", "-q", "-b", "main")
    sh(folder, "git", "config", "user.name", "Test")
    sh(folder, "git", "config", "user.email", "test@localhost")
    right = (folder / KERNEL).read_text()
    package = folder / "ascend_kernels/__init__.py"
    initial, notes = package.read_text(), folder / FAMILY / "plan.py"
    plan = notes.read_text()
    failing = dict(zip(met(), FAILURES))
    assert len(failing) == len(FAILURES)
    hashes = []
    for number in range(COMMITS + 1):
        text = slow(right) if number >= CULPRIT else right
        way = failing.get(number)
        if way:
            edited = FAILURES[way][2](text)
            assert edited != text or way == "does not build"
            text = edited
        (folder / KERNEL).write_text(text)
        # every commit touches the kernels' folder, so that none can be left out beforehand
        notes.write_text(f"{plan}\n# {number}\n")
        if way == "does not build":
            package.unlink()
        else:
            package.write_text(initial)
        sh(folder, "git", "add", "-A")
        subject = f"commit {number}" + (f" {way}" if way else "") + (" slows" if number == CULPRIT else "")
        sh(folder, "git", "commit", "-q", "-m", subject)
        hashes.append(sh(folder, "git", "rev-parse", "HEAD"))
    return folder, hashes, failing


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "dashboards.cli", "bisect", BENCH, "--case", "ragged", "--impl", "derived"]
    return subprocess.Popen(
        [*command, "--timeout", str(PATIENCE), *arguments],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def processes_in(folder: Path) -> list[str]:
    """Command lines of running processes that were started for a workplace under `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"ASCEND_PERF_MARK={folder}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def found(clone):
    """The verdict of a search that was killed at its third and at its seventh evaluation."""
    folder, hashes, _ = clone
    arguments = ["--good", hashes[0], "--bad", hashes[-1], "--json"]
    for evaluation in (3, 4):
        process = start(folder, *arguments)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(f"[{evaluation}]"):
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(folder, *arguments)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out), err


def test_the_commit_is_found_with_its_evidence(clone, found):
    _, hashes, _ = clone
    verdict, _ = found
    assert verdict["ending"] == "step" and verdict["culprit"]["hash"] == hashes[CULPRIT]
    evidence = verdict["evidence"]
    assert evidence["code"][0] and evidence["code"][1] and not evidence["same_code"]
    scalar = evidence["counts"]["scalar_accesses"]
    assert scalar[1] > 10 * scalar[0]
    assert verdict["worse"] and verdict["unit"] == "cycles (modelled)"


def test_evaluations_stay_within_the_bound_over_all_starts(found):
    verdict, _ = found
    assert verdict["evaluations"] <= bound(COMMITS) + len(verdict["skipped"])
    assert verdict["resumed"] == 5


def test_every_way_to_fail_is_named_and_none_is_blamed(clone, found):
    _, hashes, failing = clone
    verdict, _ = found
    skipped = {one["hash"]: one for one in verdict["skipped"]}
    assert set(skipped) == {hashes[number] for number in failing}
    for number, way in failing.items():
        state, word, _ = FAILURES[way]
        one = skipped[hashes[number]]
        assert (one["state"], word in one["reason"]) == (state, True), one


def test_nothing_is_left_behind(clone, found):
    folder, _, _ = clone
    assert sh(folder, "git", "status", "--porcelain") == ""
    assert sh(folder, "git", "worktree", "list").count("\n") == 0
    assert sh(folder, "git", "branch", "--format=%(refname)") == "refs/heads/main"
    assert sorted(path.name for path in (folder / ".asv/results-bisect").iterdir()) == ["lock", "results"]
    assert not (folder / ".asv/results").exists()
    assert not processes_in(folder)


def test_what_was_measured_is_kept_as_asv_results_and_not_run_again(clone, found):
    folder, hashes, _ = clone
    verdict, _ = found
    kept = list((folder / ".asv/results-bisect/results").glob("*/*.json"))
    assert any(path.name.startswith(hashes[CULPRIT][:8]) for path in kept)
    process = start(folder, "--good", hashes[CULPRIT - 1], "--bad", hashes[CULPRIT], "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    again = json.loads(out)
    assert again["evaluations"] == 0 and again["culprit"] == verdict["culprit"]
    assert again["evidence"] == verdict["evidence"]
