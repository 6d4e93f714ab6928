"""Tools for a machine with a device, tried without one: in dry mode, with fake programs, their parsers alone."""

import copy
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import fake_programs as fake
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_kernels.harness import device
from ascend_kernels.kpool.kpool_compress_and_write_cache import Sized
from ascend_kernels.registry import OPS
from dashboards.results import load

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "tools"
OP = "assign_draft_cache_locs"


@pytest.fixture(scope="module", autouse=True)
def path():
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


def tool(name, *arguments, code=0, timeout=240, **more):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, **more}
    env.pop("TRITON_INTERPRET", None)
    command = [str(TOOLS / name)] if name.endswith(".sh") else [sys.executable, str(TOOLS / name)]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=timeout
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def until(reached, process, seconds=120):
    """Wait until something is so, while a process runs."""
    end = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)


# ---- reports of compute-sanitizer

CLEAN = """\
========= COMPUTE-SANITIZER
== job a b c
== done a b c
========= ERROR SUMMARY: 0 errors
"""
MEMCHECK = """\
========= COMPUTE-SANITIZER
== job assign ragged derived
========= Invalid __global__ write of size 4 bytes
=========     at assign_kernel+0x3f0 in assign.py:48
=========     by thread (12,0,0) in block (3,0,0)
=========     Access to 0x7f2c00000414 is out of bounds
=========     and is 21 bytes after the nearest allocation at 0x7f2c00000000 of size 1024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x2f0a10] in libcuda.so.1
=========\x20
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call.
=========     Saved host backtrace up to driver entry point at error
=========\x20
== unexpected RuntimeError: ['CUDA error: unspecified launch failure']
== done assign ragged derived
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
========= ERROR SUMMARY: 1,000 errors were not printed. Use --print-limit option to adjust the number
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
== job gather k2 tokens
========= Error: Race reported between Write access at gather_kernel+0x210 in g.py:9
=========     and Read access at gather_kernel+0x2b0 in g.py:11 [4096 hazards]
=========
========= Warning: Race reported between Read access at gather_kernel+0x10
=========     and Write access at gather_kernel+0x20 [1 hazards]
=========
== done gather k2 tokens
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
== job seed short rows
========= Uninitialized __global__ memory read of size 2 bytes
=========     at seed_kernel+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f0000000200
=========
== done seed short rows
========= ERROR SUMMARY: 1 error
"""
REFUSED = "========= Error: Device not supported. Please refer to the documentation.\n"


@pytest.mark.parametrize(
    "text, whats, counted, finished",
    [
        (CLEAN, [], 0, True),
        (MEMCHECK, ["Invalid __global__ write of size 4 bytes", "Program hit CUDA_ERROR_LAUNCH_FAILED",
                    "Target application returned an error"], 2, True),
        (RACECHECK, ["Error: Race reported between Write", "Warning: Race reported between Read"], 2, True),
        (INITCHECK, ["Uninitialized __global__ memory read of size 2 bytes"], 1, True),
        (REFUSED, ["Error: Device not supported"], 0, False),
        ("", [], 0, False),
        (MEMCHECK.partition("========= Program")[0], ["Invalid __global__ write"], 0, False),
    ],
)  # fmt: skip
def test_reports_are_read(text, whats, counted, finished):
    import gpu_sanitize

    found = gpu_sanitize.read(text, "t")
    assert [one.what[: len(what)] for one, what in zip(found.reports, whats)] == whats
    assert (len(found.reports), found.counted, found.finished) == (len(whats), counted, finished)


def test_a_report_knows_its_job_kernel_and_place():
    import gpu_sanitize

    first = gpu_sanitize.read(MEMCHECK, "memcheck").reports[0]
    assert first.where == "assign ragged derived" and first.tool == "memcheck"
    assert first.details[0] == "at assign_kernel+0x3f0 in assign.py:48"
    assert first.details[3].startswith("and is 21 bytes after")


@pytest.mark.parametrize(
    "text, wanted, words",
    [
        (CLEAN, ["a b c"], []),
        (CLEAN, ["a b c", "d e f"], ["1 jobs were not done, first d e f"]),
        ("== job a b c\n== done a b c\n", ["a b c"], ["came to no summary"]),
        ("========= ERROR SUMMARY: 3 errors\n", [], ["counts 3, nothing was printed"]),
        (MEMCHECK, ["assign ragged derived"], ["Invalid", "Program hit", "Target", "not refused"]),
    ],
)
def test_only_a_summary_of_nothing_after_every_job_is_clean(text, wanted, words):
    import gpu_sanitize

    said = gpu_sanitize.troubles(gpu_sanitize.read(text, "t"), wanted, 0)
    assert len(said) == len(words) and all(word in one for word, one in zip(words, said))


@given(
    st.lists(
        st.sampled_from(
            [*MEMCHECK.splitlines(), *RACECHECK.splitlines(), *INITCHECK.splitlines(), "noise", "", "="]
        ),
        max_size=40,
    )
)
def test_any_mixture_of_lines_is_read_and_no_error_line_is_lost(lines):
    import gpu_sanitize

    found = gpu_sanitize.read("\n".join(lines), "t")
    heads = ("Invalid __", "Error: Race", "Warning: Race", "Uninitialized __", "Program hit", "Target app")
    wanted = sum(any(line.startswith(f"========= {head}") for head in heads) for line in lines)
    assert len(found.reports) == wanted
    assert found.finished == any("SUMMARY" in line and "not printed" not in line for line in lines) or any(
        "not printed" in line for line in lines
    )


SANITIZER = """#!/bin/sh
# Takes a sanitizer's options off and runs the rest, then says what it is told to.
while [ "$1" != "{python}" ]; do shift; done
echo "========= COMPUTE-SANITIZER"
{before}
"$@"
{after}
"""


@pytest.mark.parametrize(
    "before, after, code, words",
    [
        ("", 'echo "========= ERROR SUMMARY: 0 errors"', 0, "| memcheck | 4 | 4 | 0 |"),
        (
            'echo "========= Invalid __global__ read of size 8 bytes"; echo "=========     at k+0x1"',
            'echo "========= ERROR SUMMARY: 1 error"; exit 77', 1, "Invalid __global__ read of size 8 bytes",
        ),
        ("exit 1", "", 1, "came to no summary (exit code 1)"),
    ],
    ids=["clean", "a report", "ends at once"],
)  # fmt: skip
def test_a_sanitizer_end_to_end(tmp_path, before, after, code, words):
    script = SANITIZER.format(python=sys.executable, before=before, after=after)
    program = fake.program(tmp_path, "compute-sanitizer", script)
    arguments = ["--dry", "--sanitizer", program, "--tools", "memcheck", "--ops", OP, "--fuzz", 2]
    done = tool("gpu_sanitize.py", *arguments, "--json", tmp_path / "s.json", code=code)
    assert words in done.stdout
    [run] = json.loads((tmp_path / "s.json").read_text())["runs"]
    assert (run["troubles"] == []) == (code == 0)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--ops", "nope"], "no op nope"),
        (["--tools", "memcheck,foo"], "no tool foo"),
        (["--ops", OP, "--smallest", 10**9, "--largest", 10**9], "no job"),
    ],
)
def test_a_sanitizer_that_looked_at_nothing_is_not_clean(tmp_path, arguments, words):
    assert words in tool("gpu_sanitize.py", "--dry", *arguments, "--json", tmp_path / "s.json", code=4).stderr


def test_a_report_that_is_not_there_is_usage(tmp_path):
    assert "No such file" in tool("gpu_sanitize.py", "--read", tmp_path / "none.txt", code=4).stderr


def test_a_sanitizer_that_is_stopped_takes_its_processes_with_it(tmp_path):
    program = fake.program(tmp_path, "compute-sanitizer", f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    command = [TOOLS / "gpu_sanitize.py", "--dry", "--sanitizer", program, "--tools", "memcheck", "--ops", OP,
               "--json", tmp_path / "s.json", "--workers", 1]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("TRITON_INTERPRET", None)
    process = subprocess.Popen([sys.executable, *map(str, command)], env=env, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text().strip(), process)
        process.terminate()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "gpu_sanitize: stopped" in said and "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_metadata_near_the_end_of_int32_is_refused(monkeypatch):
    """Found by fuzzing: the end of the span wrapped, and the check let it pass."""
    import torch

    op = OPS["assign_paged_draft_cache_locs"]
    arguments = op.cases["5x4x3-page16"].arguments()
    arguments["seq_lens"] = torch.tensor([2**31 - 1, 63, 65, 80, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match="seq_lens"):
        op.call(**arguments, validate=True)


@given(st.integers(0, 10_000), st.integers(0, 2))
def test_fuzzed_metadata_keeps_types_and_leaves_the_original_alone(seed, which):
    import gpu_sanitize
    import torch

    op = list(OPS.values())[which]
    case = op.cases[next(iter(op.cases))]
    given_arguments, same = case.arguments(), case.arguments()
    changed = gpu_sanitize.fuzzed(given_arguments, seed)
    again = gpu_sanitize.fuzzed(case.arguments(), seed)
    for name, value in same.items():
        if isinstance(value, torch.Tensor):
            assert changed[name].dtype == value.dtype
            assert torch.equal(given_arguments[name], value)
            assert torch.equal(changed[name].nan_to_num(), again[name].nan_to_num())


# ---- comparison

ROW = {
    "op": "assign_req_to_token_pool",
    "family": "token_pool",
    "case": "extend-1024x4096",
    "state": "ok",
    "reason": "",
}


def comparison(**times):
    """A run in which every target is met; `times` are microseconds by implementation."""
    us = {"derived": 10.0, "plain": 10.2, "torch form": 40.0, **times}
    roles = {"derived": "op", "plain": "twin", "torch form": "baseline"}
    rows = [
        {
            **ROW,
            "impl": impl,
            "role": roles[impl],
            "bytes": 4 * 10**7,
            "warm_us": value,
            "cold_us": value,
            "host_us": 9.0,
            "alone_us": 5.0,
        }
        for impl, value in us.items()
    ]
    other = [{**row, "op": "assign_extend_cache_locs"} for row in copy.deepcopy(rows)]
    return {
        "version": 1, "dry": False, "commit": "c" * 40, "rows": [*rows, *other], "floors": {},
        "copy_bytes_a_second": 4e12, "empty_us": 2.0, "empty_host_us": 9.0, "large_cases_expected": True,
        "empty_alone_us": 4.9, "chain_us": 2.5, "chain_alone_us": 5.1,
        "device": {"after": {"name": "Some GPU", "driver": "1", "toolkit": "2", "clock_mhz": 1980.0}},
        "versions": {"torch": "2.11", "triton": "3.6"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda found: None, None),
        (lambda found: found["rows"][2].update(cold_us=9.9), "torch form 9.90 us"),
        (lambda found: found["rows"][1].update(warm_us=9.6), "twin plain 9.60 us"),
        (lambda found: found["rows"][1].update(warm_us=9.8), None),
        (lambda found: found.update(copy_bytes_a_second=7e12), "57% of copy bandwidth, 60% is the target"),
        (lambda found: found["rows"][0].update(state="wrong result", reason="off by one"), "off by one"),
        (
            lambda found: found.update(rows=found["rows"][:3]),
            "assign_extend_cache_locs extend-1024x4096: not measured",
        ),
        (
            lambda found: [row.update(case="decode", bytes=100) for row in found["rows"][:3]],
            "10.00 us in a graph, an empty kernel 2.00 us",
        ),
        (
            lambda found: [row.update(case="decode", bytes=100, alone_us=5.5) for row in found["rows"][:3]],
            "5.50 us alone, an empty kernel 4.90 us",
        ),
        (
            lambda found: found["rows"].append({**found["rows"][1], "impl": "n", "role": "other", "cold_us": 9.0}),
            "other n 9.00 us",
        ),
        (
            lambda found: found["rows"].append({**found["rows"][2], "impl": "one program a row", "warm_us": 9.0}),
            "10.00 us warm, one program a row 9.00 us",
        ),
        (lambda found: found["rows"][1].update(warm_us=9.6, same=True), None),
        (
            lambda found: (
                found["rows"][1].update(warm_us=9.0, same=True),
                found["rows"].append({**found["rows"][1], "impl": "n", "same": False, "warm_us": 9.5}),
            ),
            "10.00 us warm, twin n 9.50 us",
        ),
    ],
)
def test_every_target_is_checked(change, words):
    import gpu_compare

    found = comparison()
    change(found)
    said = gpu_compare.misses(found)
    assert (said == []) if words is None else any(words in one for one in said), said


def test_a_form_that_launches_the_same_is_found(monkeypatch):
    """On a GPU the op itself rotates few pools by sums and differences, as one of its twins does any number."""
    import gpu_compare

    monkeypatch.setattr(device, "of", lambda _: device.Device("cuda", "H200", 132, 0))
    op = OPS["kpool_compress_and_write_cache"]
    few = functools.partial(op.call, impl="sized")
    many = functools.partial(op.call, impl=Sized(most=0))
    twins = {name: op.twins[name].call for name in ("butterfly", "row-loads")}
    arguments = op.cases["plain"].arguments()
    assert gpu_compare.same_as("op", {"op": few, **twins}, arguments, "cpu") == {"butterfly"}
    assert gpu_compare.same_as("op", {"op": many, **twins}, arguments, "cpu") == set()


def test_noise_of_the_run_is_no_miss():
    import gpu_compare

    found = comparison()
    found["rows"][2]["cold_us"] = 9.9
    found["floors"] = {"assign_req_to_token_pool extend-1024x4096": 0.02}
    assert gpu_compare.misses(found) == []


@pytest.mark.parametrize(
    ("second", "floor", "left"),
    [
        ({"cold_us": 9.0}, 0.0, []),  # without the rest in front of it the op is as fast
        ({"cold_us": 10.0}, 0.0, ["cold_us"]),  # it is as slow again
        ({"cold_us": 9.9}, 0.0, ["cold_us"]),
        ({"cold_us": 9.9}, 0.12, []),  # that process cannot tell
        ({"cold_us": 9.0, "warm_us": 12.0}, 0.0, ["warm_us"]),
    ],
)
def test_what_is_slower_than_another_form_is_timed_beside_it_alone(second, floor, left, tmp_path):
    import argparse

    import gpu_compare

    found = comparison()
    found["rows"][1]["cold_us"] = 9.0
    assert [which for _, _, which, *_ in gpu_compare.slower(found)] == ["cold_us"]
    names = [row["impl"] for row in found["rows"][:2]]
    again = copy.deepcopy(found["rows"][:2])
    again[0] |= second

    def work(job):
        assert job == ("assign_req_to_token_pool", "extend-1024x4096", tuple(names))
        return {"rows": again, "floor": floor, "device": {"marks": ["hot"]}}

    given = argparse.Namespace(json=tmp_path / "c.json")
    gpu_compare.confirm(found | {"marks": [], "again": {}}, work, given)
    kept = json.loads(given.json.read_text())
    assert kept["rows"] == found["rows"]  # the table is that of the first process
    assert kept["marks"] == ["assign_req_to_token_pool extend-1024x4096, timed again: hot"]
    assert [which for _, _, which, *_ in gpu_compare.slower(kept)] == left
    for which in left:
        assert any(f"{again[0][which]:.2f} us {which[:4]}" in one for one in gpu_compare.misses(kept))


def test_the_page_is_written_from_the_results_and_never_from_a_dry_run(tmp_path):
    page = tmp_path / "devices.md"
    page.write_text("# Devices\n\n<!-- begin of gpu_compare -->\nold\n<!-- end of gpu_compare -->\n\nMore.\n")
    (tmp_path / "c.json").write_text(json.dumps(comparison()))
    for _ in range(2):  # writing again changes nothing
        tool("gpu_compare.py", "--from", tmp_path / "c.json", "--docs", page)
        text = page.read_text()
        assert text.startswith("# Devices\n") and text.endswith("\n\nMore.\n") and "\nold\n" not in text
        assert "Copy bandwidth 4.00 TB/s" in text and "SM clock 1980 MHz" in text
        assert (
            "| assign_req_to_token_pool | extend-1024x4096 | 10.00 | 10.00 | 5.00 | 100% | 40.00 |  "
            "| 10.20 (plain) |" in text
        )
        assert "Every target is met." in text
    (tmp_path / "c.json").write_text(json.dumps({**comparison(), "dry": True}))
    done = tool("gpu_compare.py", "--from", tmp_path / "c.json", "--docs", page, code=4)
    assert "dry" in done.stderr and page.read_text() == text


def test_what_a_later_run_measured_is_left_out_of_the_tables_before():
    import gpu_compare

    first, second = comparison(), comparison()
    more = {**first["rows"][0], "op": "route", "case": "few"}
    first |= {"rows": [*first["rows"], more], "large_cases_expected": True}
    second["rows"][0]["cold_us"] = 9.0
    text = gpu_compare.tables([first, second])
    one, two = text.split("\n\nSome GPU")
    assert "| route | few | 10.00 | 10.00 |" in one and "assign_req_to_token_pool" not in one
    assert "| assign_req_to_token_pool | extend-1024x4096 | 10.00 | 9.00 |" in two and "route" not in two
    assert gpu_compare.tables([second, comparison()]) == gpu_compare.table(comparison())


def test_runs_of_other_devices_keep_their_tables_and_a_later_case_without_times_replaces_none():
    import gpu_compare

    first, second = comparison(), comparison()
    second["device"] = {"after": {"name": "Another GPU"}}
    text = gpu_compare.tables([first, second])
    assert text.count("| assign_extend_cache_locs |") == 2 and "Another GPU" in text
    second = comparison()
    for row in second["rows"]:
        if row["role"] == "op":
            row["state"] = "wrong result"
            del row["warm_us"], row["cold_us"]
    second["rows"].reverse()  # whatever row comes first
    text = gpu_compare.tables([first, second])
    assert text.count("| assign_extend_cache_locs | extend-1024x4096 | 10.00 |") == 1
    assert text.count("| assign_extend_cache_locs | extend-1024x4096 | wrong result |") == 1
    with pytest.raises(ValueError, match="no case was measured"):
        gpu_compare.tables([{**first, "rows": []}])


def test_a_run_whose_empty_kernel_failed_still_has_its_table():
    import gpu_compare

    found = comparison()
    for name in [name for name in found if name.startswith(("copy_", "empty_", "chain_"))]:
        del found[name]
    text = gpu_compare.table(found)
    assert "| assign_req_to_token_pool | extend-1024x4096 | 10.00 | 10.00 | 5.00 |  | 40.00 |" in text
    assert "were not measured." in text and "Every target is met." not in text


def test_a_comparison_that_ran_out_of_time_says_so_with_its_exit_code(tmp_path):
    arguments = ["--dry", "--ops", "assign_draft_cache_locs,route", "--workers", 1, "--seconds", 0.1]
    done = tool("gpu_compare.py", *arguments, "--json", tmp_path / "new" / "c.json", code=3)
    assert "nothing was measured" in done.stderr
    assert "no case nope" in tool("gpu_compare.py", "--dry", "--cases", "nope", code=4).stderr


@pytest.mark.parametrize("name", ["gpu_compare.py", "gpu_history.py", "gpu_sanitize.py"])
def test_without_a_device_a_tool_says_so(name):
    assert "--dry tries it without one" in tool(name, code=4, ASCEND_KERNELS_DEVICE="cpu").stderr


def history_run(cases, **more):
    """A run of two commits with one sample of each case."""
    commits = [{"hash": letter * 40, "date": date, "subject": letter} for letter, date in (("a", 2), ("b", 1))]
    device = {"after": {"name": "Some GPU"}, "before": {}, "marks": []}
    entries = [
        {"commit": one["hash"], "op": OP, "case": case, "impl": "runs", "samples": [[value] * 3], "device": device}
        for one in commits
        for case, value in cases.items()
    ]
    return {"version": 1, "commits": commits, "versions": {"torch": "2.11"}, "entries": entries, **more}


def test_runs_of_a_history_are_joined_case_by_case():
    import gpu_history

    first, second = history_run({"one": 1.0, "two": 2.0}), history_run({"two": 9.0, "three": 3.0})
    found = gpu_history.joined([first, second])
    values = {(entry["commit"][0], entry["case"]): entry["samples"][0][0] for entry in found["entries"]}
    assert values == {
        (c, case): value for c in "ab" for case, value in (("one", 1.0), ("two", 2.0), ("three", 3.0))
    }
    assert [commit["subject"] for commit in found["commits"]] == ["b", "a"]  # oldest first


@pytest.mark.parametrize("other", ["versions", "device"])
def test_runs_of_another_environment_are_not_joined(other):
    import gpu_history

    second = history_run({"three": 3.0})
    if other == "versions":
        second["versions"] = {"torch": "2.12"}
    else:
        second["entries"][0]["device"] = {"after": {"name": "Another GPU"}}
    with pytest.raises(ValueError, match="write each for itself"):
        gpu_history.joined([history_run({"one": 1.0}), second])


STAND_IN = """
import json, os, sys
for line in sys.stdin:
    [(verb, what)] = json.loads(line).items()
    answer = {{"form": {{"state": "ok", "reason": ""}}}}
    if verb == "sample":
        answer = [1.0, 2.0, 3.0]
    elif what[1] in {bad}:
        answer = {{"form": {{"state": "crashed", "reason": "bad address"}}, "lost": "no answer"}}
    elif what[1] == "silent death":
        os._exit(7)
    print(json.dumps(answer), flush=True)
    if "lost" in answer:
        sys.exit(1)
"""


@pytest.mark.parametrize(
    ("cases", "bad", "states"),
    [
        (["a", "b", "c"], ["b"], ["ok", "crashed", "ok"]),
        (["a", "silent death", "c"], [], ["ok", "crashed or timed out", "ok"]),
        # Lost again and again, so it is the device: nobody waits for more of it.
        (["a", "b", "c", "d", "e"], list("abcd"), ["crashed"] * 3 + ["crashed or timed out"] * 2),
    ],
)
def test_a_lost_device_costs_a_commit_its_case(cases, bad, states, tmp_path, monkeypatch):
    import gpu_history

    monkeypatch.setattr(gpu_history, "WORKER", (sys.executable, "-c", STAND_IN.format(bad=bad)))
    key = ("c" * 40, 0)
    workers = {key: gpu_history.Worker(tmp_path, dry=True)}
    lists = {key: {OP: {"family": "token_pool", "cases": cases, "roles": {"form": "op"}}}}
    found = []
    for case in cases:
        workers[key].revive()
        found += gpu_history.ask_all(workers, lists, OP, case, 2)
    workers[key].close()
    assert [entry["state"] for entry in found] == states
    assert all(bool(entry["samples"]) == (entry["state"] == "ok") for entry in found)
    assert all("the device was lost: no answer" in entry["reason"] for entry in found[3:])


@pytest.mark.parametrize(
    "name, words",
    [
        ("gpu_compare", "is no result of gpu_compare"),
        ("gpu_tune", "is no result of gpu_tune"),
        ("gpu_history", "is no result of gpu_history"),
    ],
)
def test_a_file_that_is_no_result_is_named(name, words, tmp_path, capsys):
    bad = {"cut": '{"version": 1, "rows', "list": "[1]", "empty": '{"version": 1}', "later": None}
    fields = {"version": 9, "rows": [], "commit": "", "cases": [], "lost": {}, "entries": [], "commits": []}
    bad["later"] = json.dumps(fields)
    says = {"cut": "is not whole", "later": "is of a later"}
    for kind, text in bad.items():
        (tmp_path / kind).write_text(text)
        assert importlib.import_module(name).main(["--from", str(tmp_path / kind)]) == 4
        assert f"{tmp_path / kind} {says.get(kind, words)}" in capsys.readouterr().err


def test_names_are_stripped_and_unknown_ones_named():
    import run_files

    assert run_files.names(" a, b ,", {"a", "b"}, "op") == ["a", "b"]
    with pytest.raises(run_files.Unknown, match="no op d, e"):
        run_files.names("a,e,d", {"a"}, "op")


def test_a_place_that_takes_no_results_is_found_before_anything_is_measured(tmp_path):
    import run_files

    run_files.check_writable(tmp_path / "new folder" / "c.json")
    assert list((tmp_path / "new folder").iterdir()) == []
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "c.json"):
        with pytest.raises(OSError, match=str(place.parent if place != tmp_path else place)):
            run_files.check_writable(place)


@pytest.mark.parametrize(
    "name, option",
    [("gpu_compare", "--nope"), ("gpu_compare", "--docs=p.md"), ("gpu_tune", "--write=m.py"), ("carry", "bring")],
)
def test_usage_ends_with_the_exit_code_that_is_said(name, option, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main([option])
    assert ended.value.code == 4 and "usage:" in capsys.readouterr().err


@pytest.mark.slow
def test_unknown_ops_and_revisions_of_a_history_are_said():
    done = tool("gpu_history.py", "--dry", "--last", 1, "--ops", "nope", code=4)
    assert "no op nope in these commits" in done.stderr
    done = tool("gpu_history.py", "--dry", "nosuch", code=4)
    assert "gpu_history: git log: fatal: " in done.stderr and "nosuch" in done.stderr


# ---- everything in one run, and a machine without a network


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp("all")
    done = tool("gpu_all.sh", out, "--dry", "--ops", OP, LAST="2", FUZZ="1")
    return out, done.stdout


@pytest.mark.slow
def test_all_parts_in_one_dry_run(everything):
    out, said = everything
    assert [line.split()[:3] for line in (out / "summary.txt").read_text().splitlines()] == [
        [name, "exit", "0"] for name in ("compare", "history", "sanitize")
    ]
    assert str(out / "devices.tar.gz") in said
    with tarfile.open(out / "devices.tar.gz") as packed:
        names = {Path(name).name for name in packed.getnames()}
    assert {"doctor.json", "compare.json", "history.json", "sanitize.json", "summary.txt", "compare.log"} <= names
    compare = json.loads((out / "compare.json").read_text())
    assert compare["dry"] and compare["complete"] and compare["misses"] == []
    assert {row["impl"] for row in compare["rows"]} == {"derived", "torch form"}
    assert json.loads((out / "doctor.json").read_text())["checks"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--parts", "compare,foo"], "no part foo"),
        (["--ops"], "--ops needs a value"),
        (["--specimens", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_usage_of_all_parts(tmp_path, arguments, words):
    assert words in tool("gpu_all.sh", tmp_path / "out", "--dry", *arguments, code=4).stderr
    assert not (tmp_path / "out").exists()


FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *gpu_compare.py*)
    while [ "$1" != --json ]; do shift; done
    echo "{mark}" > "$2"
    {then} ;;
esac
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_all_parts_stopped_in_the_middle_are_packed_and_nothing_is_overwritten(tmp_path, how):
    """timeout's process group of its own would let Ctrl-C pass by."""
    out = tmp_path / "a folder"
    first = fake.program(tmp_path, "first", FAKE_PYTHON.format(mark="first", then="exit 0"))
    tool("gpu_all.sh", out, "--parts", "compare", PYTHON=str(first))
    second = fake.program(tmp_path, "second", FAKE_PYTHON.format(mark="second", then="exec sleep 300"))
    process = subprocess.Popen(
        [str(TOOLS / "gpu_all.sh"), str(out)], env={**os.environ, "PYTHON": str(second)}, stdout=subprocess.PIPE,
        text=True, preexec_fn=lambda: signal.signal(how, signal.SIG_DFL),  # nohup and a shell's & ignore some
    )  # fmt: skip
    try:
        kept = out / "compare.json"
        until(lambda: kept.is_file() and kept.read_text() == "second\n", process)
        process.send_signal(how)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1 and "history: not begun" in said
    assert (out / "earlier-1" / "compare.json").read_text() == "first\n"
    with tarfile.open(out / "devices.tar.gz") as packed:
        assert {"./compare.json", "./earlier-1/compare.json", "./summary.txt"} <= set(packed.getnames())


@pytest.mark.slow
def test_limits_of_all_parts_are_under_twenty_minutes():
    text = (TOOLS / "gpu_all.sh").read_text()
    limits = [int(line.split()[2]) for line in text.splitlines() if line.startswith("part ")]
    assert len(limits) == 3 and sum(limits) + 60 < 20 * 60


@pytest.mark.slow
def test_a_history_becomes_plain_asv_results(everything, tmp_path):
    out, _ = everything
    history = json.loads((out / "history.json").read_text())
    assert len(history["commits"]) == 2 and history["complete"]
    for _ in range(2):  # writing it twice adds nothing
        tool("gpu_history.py", "--from", out / "history.json", "--results", tmp_path / "results")
    found = load(tmp_path / "results", ROOT, cache=None)
    assert not found.problems and found.machines == ("dry-run",)
    assert [one.hash for one in found.commits] == [one["hash"] for one in history["commits"]]
    assert {one.metric for one in found.series} == {"device_time", "device_time_cold", "host_time"}
    assert {one.title.partition("(")[0] for one in found.series} == {
        f"bench_token_pool.MeasuredAssignDraftCacheLocs.track_{metric}"
        for metric in ("device_time", "device_time_cold", "host_time")
    }
    row = next(at for at, one in enumerate(found.series) if one.metric == "device_time")
    entry = history["entries"][0]
    assert found.value[row, 0] == pytest.approx(sorted(sample[0] for sample in entry["samples"])[0])
    assert found.detail(row, 0).device["after"]["name"] == "dry run"
    assert found.detail(row, 0).again["device_time"] == 0.0
    lines = (tmp_path / "results" / "states" / f"{found.commits[0].hash}.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 1


@pytest.mark.slow
def test_there_and_back_without_git_network_or_device(tmp_path):
    done = tool("carry.py", "pack", tmp_path / "carry", "--last", 1, "--no-wheels")
    assert "1 commit," in done.stdout
    assert not subprocess.run(
        ["git", "-C", str(ROOT), "for-each-ref", "refs/carry"], capture_output=True, text=True
    ).stdout
    script = tmp_path / "carry" / "run.sh"
    env = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")},
        "PYTHON": sys.executable, "ASCEND_KERNELS_DEVICE": "dry",
    }  # fmt: skip
    command = [str(script), str(tmp_path / "out"), "--no-asv", "--dry", "--ops", OP]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "out" / "history.log").read_text()
    archive = tmp_path / "out" / "results.tar.gz"
    assert done.stdout.splitlines()[-1] == str(archive)
    tool("carry.py", "bring", archive, tmp_path / "home")
    found = load(tmp_path / "home", ROOT, cache=None)
    assert len(found.commits) == 1 and not found.problems
    assert "0 files" in tool("carry.py", "bring", archive, tmp_path / "home").stdout
    result = next((tmp_path / "home" / "dry-run").glob("*-host-*.json"))
    result.write_text("{}")
    done = tool("carry.py", "bring", archive, tmp_path / "home", code=1)
    assert f"left alone, another file is there: dry-run/{result.name}" in done.stdout
    assert result.read_text() == "{}"


def test_there_one_interrupt_ends_all_commits_and_packs(tmp_path):
    (tmp_path / "run.sh").write_text((TOOLS / "carry_run.sh").read_text())
    (tmp_path / "head").write_text("h\n")
    (tmp_path / "commits").write_text("a\nb\nc\n")
    results = tmp_path / "out" / "work" / "tree" / ".asv" / "results"
    results.mkdir(parents=True)
    run = 'case "$*" in *"cli run"*) trap "exit 130" INT; echo {} > .asv/results/$4.json; sleep 60 & wait ;; esac'
    python = fake.program(tmp_path, "python", f"#!/bin/sh\n{run}\n")
    process = subprocess.Popen(
        ["bash", str(tmp_path / "run.sh"), str(tmp_path / "out")], env={**os.environ, "PYTHON": str(python)},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        until(lambda: (results / "a.json").is_file(), process)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1 and "run b: not begun" in said and "run c: not begun" in said
    with tarfile.open(tmp_path / "out" / "results.tar.gz") as packed:
        assert "./a.json" in packed.getnames() and "./b.json" not in packed.getnames()


@pytest.mark.parametrize(
    "name, kind, words",
    [
        ("../outside.json", tarfile.REGTYPE, "no results file"),
        ("/tmp/outside.json", tarfile.REGTYPE, "no results file"),
        ("a/link.json", tarfile.SYMTYPE, "no results file"),
        ("a/run.sh", tarfile.REGTYPE, "no results file"),
    ],
)
def test_an_archive_with_anything_else_is_refused(tmp_path, name, kind, words):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as packed:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        packed.addfile(member)
    done = tool("carry.py", "bring", tmp_path / "bad.tar.gz", tmp_path / "results", code=4)
    assert words in done.stderr
    assert not list((tmp_path / "results").rglob("*")) and not (tmp_path / "outside.json").exists()


def test_an_archive_that_was_cut_off_copies_nothing_and_says_so(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([os.urandom(500).hex() for _ in range(20)]))
    with tarfile.open(tmp_path / "good.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "a.json", "a.json")
    whole = (tmp_path / "good.tar.gz").read_bytes()
    for size in (0, 5, 60, len(whole) // 2):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:size])
        done = tool("carry.py", "bring", tmp_path / "cut.tar.gz", tmp_path / "results", code=4)
        assert "is not whole, so nothing was copied" in done.stderr and "Traceback" not in done.stderr
        assert not list((tmp_path / "results").rglob("*"))
