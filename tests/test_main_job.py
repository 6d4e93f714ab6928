"""The main job, end to end: a repository with five commits, `ascend-perf run`, the check and the pages.

Commit 3 updates the offsets at the top of the assign kernel's loop, 4 breaks its mask, 5 does not compile for
Ascend.  The suite must name each, and keep every wrong one from having a number.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_model import toolchain

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
DEFAULT = toolchain.installed_version()
KERNEL = "ascend_kernels/token_pool/assign_req_to_token_pool.py"
OP = "assign_req_to_token_pool"
LOOP = """    for i in range(part, tl.cdiv(length, BLOCK), tl.num_programs(1)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
"""
AT_TOP = """    offset = part * BLOCK + tl.arange(0, BLOCK) - tl.num_programs(1) * BLOCK
    for _ in range(part, tl.cdiv(length, BLOCK), tl.num_programs(1)):
        offset += tl.num_programs(1) * BLOCK
"""
STORE = "tl.store(target + offset, slots, mask=offset < length)"
EDITS = {
    "start": lambda text: text,
    "rename a local": lambda text: text.replace("slots", "values"),
    "update offsets at the top of the loop": lambda text: text.replace(LOOP, AT_TOP),
    "let the mask stop one short": lambda text: text.replace(STORE, STORE.replace("length)", "length - 1)")),
    "store through a type Ascend lacks": lambda text: text.replace(
        STORE, "tl.store(target + offset, slots.to(tl.float8e4nv).to(tl.float32), mask=offset < length)"
    ),
}


def sh(folder: Path, *command: str, code: int | None = 0, **more) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **more)
    assert code is None or done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def perf(folder: Path, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess:
    # The commit's copy of the suite is what runs, as in a clone.
    env = {**os.environ, "PYTHONPATH": str(folder), "ASCEND_PERF_CACHE": os.environ["ASCEND_PERF_CACHE"]}
    env.pop("TRITON_INTERPRET", None)
    return sh(folder, sys.executable, "-m", "dashboards.cli", *arguments, code=code, env=env)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "clone"
    files = sh(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    sh(folder, "git", "init", "-q", "-b", "main")
    sh(folder, "git", "config", "user.name", "Test")
    sh(folder, "git", "config", "user.email", "test@localhost")
    right = (folder / KERNEL).read_text()
    hashes = {}
    for subject, edit in EDITS.items():
        # The first two keep their text; from the third on each breaks the right kernel in its own way.
        edited = edit(right)
        assert subject == "start" or edited != right
        (folder / KERNEL).write_text(edited)
        sh(folder, "git", "add", "-A")
        sh(folder, "git", "commit", "-q", "--allow-empty", "-m", subject)
        hashes[subject] = sh(folder, "git", "rev-parse", "HEAD").stdout.strip()
    done = perf(folder, "run", "--last", "5", "--ops", OP, "--json", "--quiet")
    return folder, hashes, json.loads(done.stdout)


def states(folder: Path, commit: str, impl: str = "derived") -> dict[str, dict]:
    found = {}
    for line in (folder / ".asv/results/states" / f"{commit}.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["impl"] == impl and row["op"] == OP:
            found[row["case"]] = row
    return found


def numbers(folder: Path, commit: str, metric: str) -> dict[tuple[str, str], float | None]:
    """(case, implementation) -> number, straight from asv's file."""
    file = next(p for p in (folder / ".asv/results").glob(f"*/{commit[:8]}-*.json") if f"ir{DEFAULT}" in p.name)
    row = json.loads(file.read_text())["results"][f"bench_token_pool.ModelledAssignReqToTokenPool.track_{metric}"]
    cases, impls = ([text.strip("'") for text in axis] for axis in row[1])
    values = row[0] or [None] * (len(cases) * len(impls))
    return {
        (case, impl): values[i * len(impls) + j] for i, case in enumerate(cases) for j, impl in enumerate(impls)
    }


def test_every_commit_ran(clone):
    _, hashes, summary = clone
    assert [row["commit"] for row in summary["commits"]] == list(hashes.values())
    assert all(row["states"] for row in summary["commits"])


def test_an_unchanged_kernel_keeps_every_number(clone):
    folder, hashes, _ = clone
    for metric in ("cycles", "scalar_accesses", "dma_in", "vector_repeats", "ub_bytes"):
        assert numbers(folder, hashes["start"], metric) == numbers(folder, hashes["rename a local"], metric)
    codes = [
        {case: row["code"] for case, row in states(folder, hashes[s]).items()} for s in ("start", "rename a local")
    ]
    assert codes[0] == codes[1]


def test_the_degraded_loop_is_wrong_or_worse_in_every_case(clone):
    folder, hashes, _ = clone
    before, after = hashes["rename a local"], hashes["update offsets at the top of the loop"]
    found = states(folder, after)
    assert {row["state"] for row in found.values()} <= {"ok", "wrong result"}
    # Spans that are no whole number of blocks: the compiled code reads and writes whole tiles.
    assert found["ragged"]["state"] == "wrong result"
    assert "out of bounds" in found["ragged"]["reason"]
    for case, row in found.items():
        old, new = (numbers(folder, commit, "ub_bytes")[case, "derived"] for commit in (before, after))
        if row["state"] == "ok":
            assert new > old
        else:
            assert new is None


def test_a_broken_mask_is_a_wrong_result_without_a_number(clone):
    folder, hashes, _ = clone
    commit = hashes["let the mask stop one short"]
    found = states(folder, commit)
    assert {row["state"] for row in found.values()} == {"wrong result"}
    assert all(row["reason"] for row in found.values())
    assert all(numbers(folder, commit, "cycles")[case, "derived"] is None for case in found)
    # The twins have kernels of their own and stay measured.
    assert states(folder, commit, "carried")["ragged"]["state"] == "ok"


def test_a_kernel_that_does_not_compile_says_so(clone):
    folder, hashes, _ = clone
    commit = hashes["store through a type Ascend lacks"]
    found = states(folder, commit)
    assert {row["state"] for row in found.values()} == {"compile failed"}
    assert all("fp8" in row["reason"] for row in found.values())
    assert all(numbers(folder, commit, "cycles")[case, "derived"] is None for case in found)


def test_plain_carried_offsets_cost_nothing_and_the_degraded_forms_do(clone):
    folder, hashes, _ = clone
    ub = numbers(folder, hashes["start"], "ub_bytes")
    scalar = numbers(folder, hashes["start"], "scalar_accesses")
    for case in ("ragged", "extend-32x512", "several-blocks"):
        for table in (ub, scalar):
            assert table[case, "carried"] / table[case, "derived"] == 1
        for twin in ("carried-at-top", "carried-in-while", "mask-reversed", "mask-by-arithmetic"):
            assert ub[case, twin] / ub[case, "derived"] > 2
        for twin in ("carried-by-where", "modulo", "int64-sum"):
            assert scalar[case, twin] / scalar[case, "derived"] > 10


@pytest.mark.parametrize(
    "subject, before, word",
    [
        ("update offsets at the top of the loop", "rename a local", "wrong result"),
        ("let the mask stop one short", "start", "wrong result"),
        ("store through a type Ascend lacks", "start", "compile failed"),
    ],
)
def test_check_names_commit_op_and_state(clone, subject, before, word):
    folder, hashes, _ = clone
    done = perf(
        folder, "check", "--base", hashes[before], "--head", hashes[subject], "--format", "json", code=None
    )
    assert done.returncode == 2, done.stdout + done.stderr
    text = done.stdout
    assert OP in text and word in text and hashes[subject][:10] in text


def test_check_finds_nothing_between_equal_kernels(clone):
    folder, hashes, _ = clone
    perf(folder, "check", "--base", hashes["start"], "--head", hashes["rename a local"], code=0)


def test_pages_name_the_commits(clone):
    folder, hashes, _ = clone
    done = perf(folder, "dashboard")
    index = Path(done.stdout.strip().splitlines()[-1])
    assert (folder / index).resolve() == (folder / ".asv/site/index.html").resolve()
    site = (folder / index).parent
    text = "".join(
        p.read_text(errors="replace") for p in site.rglob("*") if p.suffix in (".html", ".js", ".json", ".xml")
    )
    assert OP in text and "1.2.0" in text
    for subject in list(EDITS)[2:4]:
        assert subject in text and hashes[subject][:8] in text
    assert "wrong result" in text and "compile failed" in text


def test_another_compiler_is_another_series(clone):
    folder, hashes, _ = clone
    version = next((v for v in toolchain.available_versions() if v != toolchain.default_version()), None)
    if version is None:
        pytest.skip("one compiler version here")
    op = "assign_draft_cache_locs"
    perf(folder, "run", hashes["start"], "--ops", op, "--bench", "AssignDraft", "--compiler", version, "--quiet")
    names = [p.name for p in (folder / ".asv/results").glob(f"*/{hashes['start'][:8]}-*.json")]
    assert len(names) == 2 and any(f"ascendnpu-ir{version}" in name for name in names)


def test_a_compiler_that_is_not_here(clone):
    folder, hashes, _ = clone
    done = perf(folder, "run", hashes["start"], "--compiler", "0.0.1", "--quiet", code=4)
    assert "ascend-perf compilers add 0.0.1" in done.stderr


def test_nothing_outside_the_clone_is_touched(clone):
    folder, _, _ = clone
    assert not sh(folder, "git", "status", "--porcelain").stdout
    assert (folder / ".asv" / "machine.json").is_file()
