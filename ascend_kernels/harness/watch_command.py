"""`ascend-perf watch`: on every save, what the edit changed in the compiled code of a kernel."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .forms import Comparison, Form, Line, advice_of, compare, execute, side_by_side
from .model_command import add_launch_arguments, form_row, sound, working
from .user_kernel import UsageError, check_values, file_launch, forget, imported_with, split

EXAMPLES = """examples:
  ascend-perf watch my_kernels.py:softmax --arg x=f32[64,512] --arg out=f32[64,512] --arg n=512 \\
      --const BLOCK=512 --grid 64
  ascend-perf watch my_kernels.py:softmax ... --rtol 1e-5       (outputs may differ by that much)
  ascend-perf watch my_kernels.py:softmax ... --json            (one line of JSON for every save)
  ascend-perf watch my_kernels.py:softmax ... --once            (one look, then the exit code)"""

POLL = 0.2
"""Seconds between two looks at the files."""
SETTLE = 0.1
"""Seconds for which a saved file must stay as it is: editors write in steps."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("what", metavar="FILE.py:KERNEL")
    add_launch_arguments(parser)
    parser.add_argument("--compiler", help="ascendnpu-ir version")
    parser.add_argument("--once", action="store_true", help="look once and end with the exit code of `model`")
    parser.add_argument("--json", action="store_true", help="one line of JSON for every save")


def run(given: argparse.Namespace) -> int:
    """0 when stopped with Ctrl-C; with --once as `model`: 0 ok, 2 wrong or failed, 4 usage or environment."""
    from ascend_model import toolchain

    try:
        file, _ = split(given.what)
        if not Path(file).is_file():
            raise UsageError(f"no file {file}")
        check_values(given.arg, given.const, given.grid)
        compiler = given.compiler or toolchain.default_version()
        toolchain.compiler_bin(compiler)
        show = _json if given.json else _screen()
    except (UsageError, toolchain.ToolchainError) as error:
        print(f"ascend-perf watch: {error}", file=sys.stderr)
        return 4
    watch = Watch(given, compiler)
    try:
        seen = _looked(watch)
        show(watch, seen)
        if given.once:
            return 4 if seen.form is None else 0 if sound(seen.form) else 2
        while True:
            wait_for_save(watch.saved)
            show(watch, _looked(watch))
    except KeyboardInterrupt:
        print(f"stopped after {watch.count} {'run' if watch.count == 1 else 'runs'}", file=sys.stderr)
        return 0


def _looked(watch: Watch) -> Seen:
    with working() as say:
        say(f"compiling and executing {watch.given.what}")
        return watch.look()


@dataclass(frozen=True)
class Seen:
    """One save: what became of it (or why the file cannot be used), beside the last one that ran to its end."""

    number: int
    form: Form | None
    error: str = ""
    comparison: Comparison | None = None
    before: Form | None = None
    first: Form | None = None


class Watch:
    """A kernel over its saves.  Only a form that ran to its end is one that the next is compared with."""

    def __init__(self, given: argparse.Namespace, compiler: str):
        self.given = given
        self.compiler = compiler
        self.file = os.path.realpath(split(given.what)[0])
        self.files = {self.file}
        self.saved = snapshot(self.files)
        self.count = 0
        self.first: Form | None = None
        self.before: Form | None = None

    def look(self) -> Seen:
        """Compile and execute the kernel as it is saved now; whatever is wrong with it is part of the answer."""
        given = self.given
        self.count += 1
        self.saved = snapshot(self.files)
        forget(self.files)
        try:
            launch = file_launch(given.what, given.arg, given.const, given.grid, given.seed)
            self._follow()
            lines = _kept(self.files)
            made = execute(given.what, launch, given.target, self.compiler)
        except UsageError as error:
            self._follow()
            return Seen(self.count, None, str(error), None, self.before, self.first)
        form = Form(made.what, made.compiler, made.target, made.launch, made.done, made.written, lines)
        comparison = compare(self.before, form, given.rtol, given.atol) if self.before is not None else None
        seen = Seen(self.count, form, "", comparison, self.before, self.first)
        if form.done.status == "ok":
            self.before = form
            self.first = self.first or form
        return seen

    def _follow(self) -> None:
        """Watch what the kernel's file imports from beside it, too; one that no longer imports keeps its list."""
        fresh = imported_with(self.file) - self.files
        self.files |= fresh
        self.saved |= snapshot(fresh)


def snapshot(files: set[str]) -> dict[str, tuple[int, ...]]:
    """What tells one save of a file from the next; () where there is none, as while an editor replaces it."""
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            state = os.stat(file)
            found[file] = (state.st_mtime_ns, state.st_size, state.st_ino)
        except OSError:
            found[file] = ()
    return found


def wait_for_save(saved: dict[str, tuple[int, ...]], poll: float = POLL, settle: float = SETTLE) -> None:
    """Return when a file is another than in `saved` and stays as it is.

    A handful of files is looked at a few times a second: that also sees saves by renaming and on network folders,
    which notifications of the kernel do not, and costs less than a thousandth of a core."""
    files = set(saved)
    while True:
        time.sleep(poll)
        now = snapshot(files)
        if now == saved:
            continue
        while True:
            time.sleep(settle)
            later = snapshot(files)
            if later == now and all(later.values()):
                return
            now = later


def _kept(files: set[str]) -> Callable[[str, int], str]:
    """The lines of these files as they are now, by the names that compiled code gives them."""
    from ascend_model.source import line_of

    texts = {file: {n: line_of(file, n) for n in range(1, _length(file) + 1)} for file in files}

    def line(file: str, number: int) -> str:
        for name, lines in texts.items():
            if name == file or name.endswith(os.sep + file):
                return lines.get(number, "")
        return line_of(file, number)

    return line


def _length(file: str) -> int:
    try:
        return len(Path(file).read_bytes().splitlines())
    except OSError:
        return 0


# ---- what is shown


def _json(watch: Watch, seen: Seen) -> None:
    row = form_row(seen.form, seen.comparison) if seen.form is not None else {}
    print(json.dumps({"run": seen.number, "error": seen.error, **row}), flush=True)


def _screen() -> Callable[[Watch, Seen], None]:
    """A function that shows one save on the terminal; the terminal is cleared before, where it is one."""
    try:
        from rich.console import Console
    except ImportError as error:
        raise UsageError("watch needs the library rich: install the extra `dash`, or use --json") from error
    console = Console(highlight=False)

    def show(watch: Watch, seen: Seen) -> None:
        if console.is_terminal:
            console.clear()
        for part in _parts(watch, seen):
            console.print(part)

    return show


def _parts(watch: Watch, seen: Seen) -> Iterator[Any]:
    from rich.rule import Rule
    from rich.text import Text

    from ascend_model.text import plain

    def text(said: str, style: str = "") -> Text:
        return Text(plain(said, 2000), style)

    given, form = watch.given, seen.form
    title = Text(f"{plain(given.what)}  {time.strftime('%H:%M:%S')}")
    yield Rule(title, style="bold", align="left")
    yield text(f"save {seen.number}; modelled: {given.target}, ascendnpu-ir {watch.compiler}, no device", "dim")
    yield Text()
    if form is None:
        yield text(seen.error, "bold red")
        if seen.before is not None:
            yield text(f"the last form that ran: {seen.before.done.cycles:,} cycles", "dim")
    else:
        yield from _verdict(seen, form, text)
        yield from _numbers(seen, form)
        yield from _said(seen, form, text)
    yield Text()
    names = sorted(os.path.relpath(one, os.path.dirname(watch.file)) for one in watch.files)
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    yield text("one look" if given.once else f"watching {', '.join(names[:6])}{more}; Ctrl-C ends", "dim")


def _verdict(seen: Seen, form: Form, text: Any) -> Iterator[Any]:
    done = form.done
    if form.stopped:
        lines = [line for line in form.reason.splitlines() if line.strip()]
        yield text(f"{done.status}: {lines[0] if lines else ''}", "bold red")
        yield from (text(f"  {line}", "red") for line in lines[1:8])
    for finding in done.findings[:6]:
        yield text(f"hazard: {finding}", "red")
    if sound(form):
        yield text("no hazard and no fault found", "green")
    if seen.comparison is not None:
        outputs = seen.comparison.outputs
        if outputs.agree:
            yield text(f"outputs agree with the last form that ran: {', '.join(outputs.compared)}", "green")
        yield from (
            text(f"outputs differ from the last form that ran: {one}", "red") for one in outputs.differences
        )
        if outputs.note:
            yield text(f"outputs {outputs.note}", "dim")


def _numbers(seen: Seen, form: Form) -> Iterator[Any]:
    """First, last and this form; only the first time all numbers, afterwards those that moved and the cycles."""
    from rich.table import Table
    from rich.text import Text

    from ascend_model.text import change

    forms = [one for one in (seen.first, seen.before, form) if one is not None]
    heads = ["first", "before", "now"][-len(forms) :] if len(forms) != 2 else ["before", "now"]
    if len(forms) == 3 and forms[0] is forms[1]:
        forms, heads = forms[1:], heads[1:]
    if not form.numbers:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right")
    if len(forms) > 1:
        table.add_column("change", justify="right")
    for line in side_by_side(forms):
        moved = len(set(line.values)) > 1
        if len(forms) > 1 and not moved and line.name != "cycles":
            continue
        cells = ["-" if value is None else f"{value:,}" for value in line.values]
        row: list[Any] = [f"{line.label}, {line.unit}", *cells]
        if len(forms) > 1:
            last = Line(line.name, line.label, line.unit, line.better, line.values[-2:])
            size, worse = last.change(1), last.worse(1)
            row.append(
                Text("=" if size is None else change(size), "" if worse is None else "red" if worse else "green")
            )
        table.add_row(*row)
    yield Text()
    yield table


def _said(seen: Seen, form: Form, text: Any) -> Iterator[Any]:
    from rich.text import Text

    if seen.comparison is not None:
        explanation = seen.comparison.explanation
        yield Text()
        yield from (text(one) for one in explanation.sentences)
        if not explanation.known and explanation.diff:
            lines = explanation.diff.splitlines()
            yield from (text(line, "green" if line[:1] == "+" else "red" if line[:1] == "-" else "dim")
                        for line in lines[:16])  # fmt: skip
            if len(lines) > 16:
                yield text(f"... {len(lines) - 16} more lines: `ascend-perf explain` shows all", "dim")
    told = seen.comparison.explanation.sentences if seen.comparison is not None else ()
    advice = [one for one in advice_of(form) if form.done.status in ("ok", "out of bounds")]
    advice = [one for one in advice if one.sentence not in told]
    if advice:
        yield Text()
        yield text("advice", "bold")
        yield from (text(f"- {one.sentence}", "yellow") for one in advice[:5])
