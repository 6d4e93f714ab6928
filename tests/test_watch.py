"""`ascend-perf watch`: each save is judged, whatever state the file is in."""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from ascend_kernels.harness import watch_command
from ascend_kernels.harness.user_kernel import TOOL, forget, imported_with
from ascend_kernels.harness.watch_command import Watch, snapshot, wait_for_save
from dashboards import cli

ROOT = Path(__file__).parent.parent
KERNEL = """
import triton
import triton.language as tl
from watched_factor import FACTOR, by

@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = {mask}
    tl.store(out + offset, by(tl.load(x + offset, mask=mask), FACTOR), mask=mask)
"""
FACTOR = """
import triton
import triton.language as tl
FACTOR = tl.constexpr({factor})

@triton.jit
def by(x, factor: tl.constexpr):
    return x * factor
"""
GOOD = ["--arg", "x=f32[128]", "--arg", "out=f32[128]", "--arg", "n=100", "--const", "BLOCK=64", "--grid", "2"]
WHOLE = "n > offset"
BOUND = "offset < n"

pytestmark = pytest.mark.compiler


def save(file: Path, text: str) -> None:
    """As editors save: to another file, which is then renamed; a save within the clock's grain is seen, too."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    other = file.with_suffix(".tmp")
    other.write_text(text)
    os.replace(other, file)
    if file.stat().st_mtime_ns <= before:
        os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    kernel, factor = tmp_path / "watched.py", tmp_path / "watched_factor.py"
    save(kernel, KERNEL.format(mask=BOUND))
    save(factor, FACTOR.format(factor=2.0))
    yield kernel, factor
    forget({str(kernel), str(factor)})


@pytest.fixture
def watch(files):
    from ascend_model import toolchain

    parser = argparse.ArgumentParser()
    watch_command.add_arguments(parser)
    given = parser.parse_args([f"{files[0]}:scale", *GOOD])
    return Watch(given, toolchain.default_version())


def shown(watch: Watch, seen: watch_command.Seen) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))
    for part in watch_command._parts(watch, seen):
        console.print(part)
    return console.export_text()


def test_what_an_edit_changed_is_told(watch, files):
    first = watch.look()
    assert first.form.done.status == "ok" and first.comparison is None
    assert {Path(one).name for one in watch.files} == {"watched.py", "watched_factor.py"}
    save(files[0], KERNEL.format(mask=WHOLE))
    second = watch.look()
    assert second.comparison.explanation.cause == "whole-tile store"
    assert second.comparison.explanation.sentences[0].startswith(
        "The store to `out` became load, select and store"
    )
    assert second.form.numbers["dma_in"] == 4 and second.before.numbers["dma_in"] == 2
    assert "Copies from global memory, copies" in shown(watch, second) and "+100.0 %" in shown(watch, second)
    save(files[0], KERNEL.format(mask=BOUND))
    third = watch.look()
    # The sentence quotes the line as it was, though the file has changed since.
    assert "`mask = n > offset`" in third.comparison.explanation.sentences[0]


def test_results_are_compared_with_the_last_form_that_ran(watch, files):
    watch.look()
    save(files[1], FACTOR.format(factor=3.0))
    changed = watch.look()
    [difference] = changed.comparison.outputs.differences
    before, after = (form.done.outputs["out"] for form in (changed.before, changed.form))
    assert after[0] == pytest.approx(1.5 * before[0])
    assert difference.startswith(f"out[0] is {after[0]}, before {before[0]} (100 of 128")
    assert "outputs differ from the last form that ran: out[0]" in shown(watch, changed)
    save(files[0], KERNEL.format(mask=BOUND) + "# nothing\n")
    same = watch.look()
    assert same.comparison.outputs.agree and same.comparison.explanation.cause == "same code"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def scale(x:\n", "is not Python"),
        ("", "has no @triton.jit function 'scale'"),
        (KERNEL[: KERNEL.index("def scale") + 20], "is not Python"),
        ("import sys\nsys.exit(3)\n", "ends the program while it is imported (line 2)"),
        ("import not_installed_anywhere\n", "needs the module not_installed_anywhere"),
        (KERNEL.format(mask=BOUND).replace("n, BLOCK", "n, more, BLOCK"), "missing --arg more=..."),
    ],
)
def test_a_broken_save_is_survived(watch, files, text, words):
    good = watch.look()
    save(files[0], text)
    broken = watch.look()
    assert broken.form is None and words in broken.error
    assert words in shown(watch, broken) and f"{good.form.done.cycles:,} cycles" in shown(watch, broken)
    save(files[0], KERNEL.format(mask=WHOLE))
    mended = watch.look()
    # What came between is no side of the comparison.
    assert mended.before is good.form and mended.comparison.explanation.cause == "whole-tile store"


def test_the_tool_itself_is_not_watched(tmp_path):
    """Its checkout may lie below the folder of the kernel; imported anew, its classes would be others."""
    packages = tuple(f"{ROOT / one}{os.sep}" for one in TOOL)
    for name in ("mine.py", "ascend_kernels/mine.py"):
        mine = str(ROOT / name)
        found = imported_with(mine)  # with what other tests have imported from beside it
        assert mine in found and not [one for one in found - {mine} if one.startswith(packages)]
    import ascend_kernels.token_pool.spans as spans

    family = imported_with(str(ROOT / "ascend_kernels" / "token_pool" / "mine.py"))
    assert spans.__file__ in family and not [one for one in family if "harness" in one]


def test_a_kernel_that_does_not_compile_is_survived(watch, files):
    watch.look()
    save(files[0], KERNEL.format(mask="offset < missing"))
    broken = watch.look()
    assert broken.form.done.status == "frontend error"
    assert broken.comparison.explanation.sentences[0].startswith("The kernel no longer compiles: frontend error")
    assert "missing is not defined" in shown(watch, broken)
    save(files[0], KERNEL.format(mask=BOUND))
    assert watch.look().comparison.explanation.cause == "same code"


def test_a_save_counts_when_it_is_whole(tmp_path):
    """A writer leaves a file empty, half and gone before it is whole; the wait ends only at the last state."""
    file = tmp_path / "kernel.py"
    file.write_text("old")
    before = snapshot({str(file)})
    assert set(before) == {str(file)}

    def write():
        for text in ("", "ha", "half", "half of"):
            file.write_text(text)
            time.sleep(0.02)
        file.unlink()
        time.sleep(0.3)
        save(file, "the whole text")

    writer = threading.Thread(target=write)
    writer.start()
    wait_for_save(before, poll=0.01, settle=0.15)
    first = file.read_text()
    writer.join()
    assert first == "the whole text"


def test_one_look(files, capsys):
    what = f"{files[0]}:scale"
    assert cli.main(["watch", what, *GOOD, "--once"]) == 0
    assert "no hazard and no fault found" in capsys.readouterr().out
    assert cli.main(["watch", what, *GOOD, "--once", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["status"] == "ok" and seen["counts"]["bytes_in"] == 400 and seen["run"] == 1 and not seen["error"]
    outside = [one.replace("x=f32[128]", "x=f32[90]") for one in GOOD]
    assert cli.main(["watch", what, *outside, "--once"]) == 2
    assert "out of bounds read" in capsys.readouterr().out
    save(files[0], "broken(\n")
    assert cli.main(["watch", what, *GOOD, "--once"]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.py:k"], "no file nothing.py"),
        (["nothing.py"], "expected FILE.py:KERNEL"),
        (["{}:scale", "--grid", "0"], "grid '0'"),
        (["{}:scale", "--arg", "x=f31[4]"], "expected dtype[shape]"),
        (["{}:scale", "--compiler", "0.0.1"], "compilers add 0.0.1"),
    ],
)
def test_what_no_save_can_mend_ends_it(files, arguments, words, capsys):
    assert cli.main(["watch", *(one.format(files[0]) for one in arguments)]) == 4
    assert words in capsys.readouterr().err


def test_saves_are_seen_and_ctrl_c_ends_it(files):
    command = [sys.executable, "-m", "dashboards.cli", "watch", f"{files[0]}:scale", *GOOD, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
        # what a shell starts in the background ignores Ctrl-C, and so would all that it starts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:

        def line() -> dict:
            ready, _, _ = select.select([process.stdout], [], [], 120)
            assert ready, "nothing came"
            return json.loads(process.stdout.readline())

        try:
            assert line()["status"] == "ok"
            save(files[0], "half(")
            assert "is not Python" in line()["error"]
            save(files[0], KERNEL.format(mask=WHOLE))
            seen = line()
            assert seen["run"] == 3 and seen["against"]["cause"] == "whole-tile store"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            errors = process.stderr.read()
            assert errors == "stopped after 3 runs\n"
        finally:
            process.kill()
