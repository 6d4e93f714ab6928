"""`python -m tests.outside_kernels`: run the survey and write docs/outside-kernels.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.outside_kernels import GROUPS, KERNELS
from tests.outside_kernels.faults import (
    FAULTS,
    NOT_COMPILED,
    REFUSED,
    RIGHT,
    UNSAFE,
    WRONG,
    Outcome,
    evidence,
    outcome,
)
from tests.table_command import asked

PAGE = Path(__file__).parents[2] / "docs" / "outside-kernels.md"
EXAMPLES = """examples:
  python -m tests.outside_kernels                          all of it; rewrites docs/outside-kernels.md
  python -m tests.outside_kernels softmax gelu_erf         two kernels, printed, no page
  python -m tests.outside_kernels --compiler 1.2.0 --json  one compiler, for machines
exit code: 0 every kernel is right or in a named state, 1 some outcome is unexplained, 4 usage"""

Survey = dict[str, dict[str, Outcome]]


def survey(names: list[str], compilers: list[str]) -> Survey:
    """name -> compiler -> outcome, with a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: Survey = {name: {} for name in names}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(names) * len(compilers))
        for name in names:
            for compiler in compilers:
                progress.update(task, description=f"{name} {compiler}")
                found[name][compiler] = outcome(KERNELS[name], compiler)
                progress.advance(task)
    return found


def across(values: list[str]) -> str:
    """One value where all compilers agree, else all of them."""
    return values[0] if len(set(values)) == 1 else " / ".join(values)


def cell(one: Outcome) -> str:
    if one.state in (NOT_COMPILED, REFUSED):
        return f"{one.state}: {one.why}"
    return f"{one.state}: {one.fault}" if one.fault else one.state


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}".replace(",", " ")


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def page(found: Survey, compilers: list[str]) -> str:
    """The page: how many end how, a table a group, and what the compiler gets wrong with its evidence."""
    lines = [
        "# Kernels that are none of ours",
        "",
        "Kernels in the shapes that serving and training code has, each with random data and a reference of its "
        "own (torch or plain Python), compiled by every version of the Ascend compiler and executed in the model. "
        "Every number is modelled; nothing here ran on an NPU. Made by `python -m tests.outside_kernels`; the "
        "sources are in `tests/outside_kernels/`.",
        "",
        "**right**: the result equals the reference and nothing is reported. **right, unsafe**: so does the "
        "result, but the compiled code does something that other data or memory would punish. **wrong**: the "
        "compiler's doing, explained below; the model computes exactly what the fault predicts, and a wrong "
        "kernel has no number. **does not compile**: the compiler's words. **refused**: the model says what it "
        f"does not know. Where versions differ, a cell has one entry for each of {', '.join(compilers)}.",
        "",
        "| compiler | " + " | ".join((RIGHT, UNSAFE, WRONG, NOT_COMPILED, REFUSED)) + " |",
        "|---|" + "---|" * 5,
    ]
    for compiler in compilers:
        tally = Counter(rows[compiler].state for rows in found.values())
        states = (RIGHT, UNSAFE, WRONG, NOT_COMPILED, REFUSED)
        lines.append(f"| {compiler} | " + " | ".join(str(tally[state]) for state in states) + " |")
    for group in GROUPS:
        name = group.__name__.rpartition(".")[2]
        lines += ["", f"## {name.capitalize()}", "", str(group.__doc__).strip(), ""]
        lines += ["| kernel | what | state | cycles | bound | scalar accesses |", "|---|---|---|---|---|---|"]
        for key, rows in found.items():
            kernel = KERNELS[key]
            if kernel.group != name:
                continue
            ones = [rows[compiler] for compiler in compilers]
            cells = (
                f"`{key}`",
                escaped(kernel.what),
                escaped(across([cell(one) for one in ones])),
                across([number(one.cycles) for one in ones]),
                across([number(one.bound) for one in ones]),
                across([number(one.scalar) for one in ones]),
            )
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "## What the compiler gets wrong", ""]
    for name, fault in FAULTS.items():
        seen = {
            compiler: [key for key, rows in found.items() if rows[compiler].fault == name]
            for compiler in compilers
        }
        versions = [compiler for compiler in compilers if seen[compiler]]
        if not versions:
            continue
        hit = list(dict.fromkeys(key for keys in seen.values() for key in keys))
        lines += [f"### {name}", "", fault.why, ""]
        lines += [f"Compilers {', '.join(versions)}; kernels {', '.join(f'`{key}`' for key in hit)}.", ""]
        shown = next(version for version in reversed(versions) if fault.smallest in seen[version])
        linalg, hivm = evidence(fault, KERNELS[fault.smallest], shown)
        lines += [f"`{fault.smallest}` on {shown}, before and after bishengir-compile:", "", "```mlir"]
        lines += [*linalg, "// becomes", *(hivm or ["// nothing of it"]), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.outside_kernels", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    wanted = asked(parser, KERNELS, "kernel", "outcomes", arguments)
    if isinstance(wanted, int):
        return wanted
    given, names, compilers = wanted
    found = survey(names, compilers)
    if given.json:
        print(
            json.dumps({name: {v: asdict(o) for v, o in rows.items()} for name, rows in found.items()}, indent=1)
        )
    elif given.names or given.compiler:
        print("modelled, nothing here ran on a device")
        for name, rows in found.items():
            for version, one in rows.items():
                print(f"{name:<24} {version}  {number(one.cycles):>9} cycles  {cell(one)}")
    else:
        PAGE.write_text(page(found, compilers))
        print(PAGE)
    lost = [f"{name} on {v}: {o.why}" for name, rows in found.items() for v, o in rows.items() if not o.clear]
    for line in lost:
        print(f"unexplained: {line}", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
