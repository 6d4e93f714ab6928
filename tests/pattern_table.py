"""`python -m tests.pattern_table`: what each source pattern costs on each compiler, as docs/patterns.md.

Every form is launched on the same data and compared with a reference before its numbers count.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ascend_model import compile_kernel, simulate
from ascend_model.explain import explain
from tests import pattern_kernels as kernels
from tests.outside_kernels.case import Launch, ints, mismatch, normal
from tests.table_command import asked

PAGE = Path(__file__).parents[1] / "docs" / "patterns.md"
EXAMPLES = """examples:
  python -m tests.pattern_table                        every pattern, every compiler; rewrites docs/patterns.md
  python -m tests.pattern_table modulo sum-each-tile   two patterns, printed, no page
  python -m tests.pattern_table --compiler 1.2.0 --json
exit code: 0 every form computes the reference, 1 one does not, 4 usage"""

Make = Callable[[torch.Generator], Launch]


@dataclass(frozen=True)
class Pair:
    """A job in two forms.

    what:  the pattern in words.  make: the launch both are given; `grid_bad` where the forms need other grids
    """

    what: str
    good: Any
    bad: Any
    make: Make
    constants: dict[str, Any] = field(default_factory=dict)
    bad_constants: dict[str, Any] | None = None
    grid_bad: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Cost:
    """One form on one compiler. `hazard`: kinds of finding. `wrong`: what differs from the reference, or the
    compiler's state; there are no numbers then."""

    scalar: int = 0
    copies: int = 0
    repeats: int = 0
    ub: int = 0
    cycles: int = 0
    hazard: str = ""
    wrong: str = ""


def _span(g: torch.Generator) -> Launch:
    """Spans of 48 rows, one of which ends where its row does: a whole tile stored there reaches the next row."""
    rows, width = 48, 2048
    length = ints(g, 200, 1200, rows)
    start = ints(g, 0, 600, rows)
    start[5], start[6] = width - length[5], 0
    src = ints(g, 0, 10**6, rows + 1, width)
    dst = torch.full((rows + 1, width), -1, dtype=torch.int32)
    want = dst.clone()
    for r in range(rows):
        want[r, start[r] : start[r] + length[r]] = src[r, : length[r]]
    args = {"src": src, "dst": dst, "start": start, "length": length, "width": width}
    return Launch((rows,), args, {"dst": want})


def _sums(g: torch.Generator) -> Launch:
    x = ints(g, 0, 1000, 1, 256)
    return Launch((1,), {"x": x, "out": torch.zeros(1, dtype=torch.int32)}, {"out": x.sum(1)})


def _compare(g: torch.Generator) -> Launch:
    x, y = ints(g, 0, 1000, 256), ints(g, 0, 1000, 256)
    return Launch((1,), {"x": x, "y": y, "out": torch.zeros_like(x)}, {"out": (x < y).int()})


def _scan(g: torch.Generator) -> Launch:
    x = normal(g, 1, 64)
    return Launch((1,), {"x": x, "out": torch.zeros_like(x)}, {"out": x.double().cumsum(1)}, 1e-4)


def _tiles(g: torch.Generator) -> Launch:
    x = normal(g, 1, 4096)
    return Launch((1,), {"x": x, "out": torch.zeros(1), "cols": 4096}, {"out": x.double().sum(1)}, 1e-3)


def _argmax(g: torch.Generator) -> Launch:
    x = ints(g, 0, 10**6, 1, 256)
    want = torch.tensor([int(row.numpy().argmax()) for row in x])
    return Launch((1,), {"x": x, "out": torch.zeros(1, dtype=torch.int32)}, {"out": want})


def _minimum(g: torch.Generator) -> Launch:
    x, y = normal(g, 1024), normal(g, 1024)
    return Launch((1,), {"x": x, "y": y, "out": torch.zeros_like(x)}, {"out": torch.minimum(x, y)})


def _look_up(g: torch.Generator) -> Launch:
    x, index = normal(g, 1024), ints(g, 0, 1024, 1, 128)
    return Launch((1,), {"x": x, "index": index, "out": torch.zeros(1, 128)}, {"out": x[index.long()]})


def _block(g: torch.Generator) -> Launch:
    x = normal(g, 16, 512)
    return Launch((1,), {"x": x, "out": torch.zeros(16, 32), "width": 512}, {"out": x[:, :32].clone()})


def _pick(g: torch.Generator) -> Launch:
    x, index = normal(g, 100), ints(g, 0, 120, 4)
    index[1] = 110
    want = torch.where(index < 100, x[index.clamp(max=99).long()], torch.zeros(()))
    args = {"x": x, "index": index, "out": torch.zeros(4, 256), "n": 100}
    return Launch((4,), args, {"out": want[:, None].expand(4, 256)})


def _rows(g: torch.Generator) -> Launch:
    x, index = normal(g, 500, 512), ints(g, 0, 500, 8)
    return Launch((1,), {"x": x, "index": index, "out": torch.zeros(8, 512)}, {"out": x[index.long()]})


def _turn(g: torch.Generator) -> Launch:
    x = normal(g, 1, 32, 64)
    want = x.transpose(1, 2).contiguous()
    return Launch((1,), {"x": x, "out": torch.zeros(1, 64, 32)}, {"out": want})


def _deal(g: torch.Generator) -> Launch:
    x = normal(g, 1, 256)
    args = {"x": x, "even": torch.zeros(1, 128), "odd": torch.zeros(1, 128)}
    return Launch((1,), args, {"even": x[:, ::2].clone(), "odd": x[:, 1::2].clone()})


def _count(g: torch.Generator) -> Launch:
    x = ints(g, 0, 32, 128)
    want = torch.bincount(x, minlength=32)
    return Launch((1,), {"x": x, "out": torch.zeros(32, dtype=torch.int32)}, {"out": want})


def _weights(g: torch.Generator) -> Launch:
    x, w = normal(g, 1, 16, 512), normal(g, 16)
    w = w.bfloat16().float()
    want = x * w[:, None]
    return Launch((1,), {"x": x, "w": w, "out": torch.zeros_like(x), "rows": 16}, {"out": want}, 1e-6)


def _copy(g: torch.Generator) -> Launch:
    x = normal(g, 48, 16384)
    return Launch((48,), {"x": x, "out": torch.zeros_like(x), "n": 16384}, {"out": x.clone()})


def _spread(g: torch.Generator) -> Launch:
    x = normal(g, 1)
    return Launch((1,), {"x": x, "out": torch.zeros(1, 256)}, {"out": x.exp()[:, None].expand(1, 256)}, 1e-5)


def _power(g: torch.Generator) -> Launch:
    x = torch.exp(normal(g, 512) * 4)
    want = torch.exp2(x.double().log2().ceil())
    return Launch((1,), {"x": x, "out": torch.zeros_like(x)}, {"out": want}, 1e-4)


def _programs(g: torch.Generator) -> Launch:
    x = normal(g, 1024, 256)
    return Launch((48,), {"x": x, "out": torch.zeros_like(x), "rows": 1024}, {"out": x + 1})


def _of_span(bad: Any, what: str) -> Pair:
    return Pair(what, kernels.span, bad, _span, {"BLOCK": 128})


_K = kernels
PAIRS = {
    "carried": _of_span(_K.span_carried, "an offset carried through the loop, updated at its end"),
    "carried-at-top": _of_span(
        _K.span_carried_top, "an offset carried through the loop, updated before it is used"
    ),
    "carried-in-while": _of_span(_K.span_carried_while, "an offset carried through a while loop"),
    "carried-by-where": _of_span(_K.span_carried_where, "an offset carried through the loop by tl.where"),
    "mask-reversed": _of_span(_K.span_mask_reversed, "the bound on the left of the mask's compare"),
    "mask-difference": _of_span(_K.span_mask_difference, "a mask by a difference"),
    "mask-or": _of_span(_K.span_mask_or, "a mask with `|`"),
    "mask-int8": _of_span(_K.span_mask_int8, "a mask through int8"),
    "offset-bits": _of_span(_K.span_bits, "`|` used as an addition in an address"),
    "modulo": _of_span(_K.span_modulo, "a remainder of every lane in an address"),
    "prefetch": _of_span(_K.span_prefetch, "the next tile loaded by hand"),
    "small-tiles": Pair(
        "tiles of 128 instead of 4096 elements",
        _K.copy_tiles,
        _K.copy_tiles,
        _copy,
        {"BLOCK": 4096},
        {"BLOCK": 128},
    ),
    "many-programs": Pair(
        "a program a row instead of a program a core",
        _K.add_one,
        _K.add_one,
        _programs,
        {"D": 256},
        grid_bad=(1024,),
    ),
    "sum-int64": Pair("a sum in int64", _K.sum_int32, _K.sum_int64, _sums, {"BLOCK": 256}),
    "compare-int64": Pair(
        "a compare of int64 lanes", _K.compare_int32, _K.compare_int64, _compare, {"BLOCK": 256}
    ),
    "compare-int16": Pair(
        "a compare of int16 lanes", _K.compare_int32, _K.compare_int16, _compare, {"BLOCK": 256}
    ),
    "scan": Pair("tl.cumsum", _K.scan_triangle, _K.scan_builtin, _scan, {"BLOCK": 64}),
    "sum-each-tile": Pair(
        "a sum of every tile instead of one at the end", _K.sum_once, _K.sum_each_tile, _tiles, {"BLOCK": 512}
    ),
    "argmax-int": Pair(
        "argmax of int32 lanes (below 2**24)", _K.argmax_float, _K.argmax_int, _argmax, {"BLOCK": 256}
    ),
    "quiet-minimum": Pair("a minimum that skips NaN", _K.minimum_any, _K.minimum_quiet, _minimum, {"BLOCK": 1024}),
    "look-up": Pair(
        "single elements of memory by an index vector",
        _K.look_up_tile,
        _K.look_up_memory,
        _look_up,
        {"N": 1024, "BLOCK": 128},
    ),
    "flat-block": Pair(
        "`//` and `%` of every lane in an address", _K.block_2d, _K.block_flat, _block, {"R": 16, "C": 32}
    ),
    "masked-scalar": Pair(
        "a single element loaded under a mask", _K.pick_clamped, _K.pick_masked, _pick, {"D": 256}
    ),
    "rows-as-tile": Pair(
        "rows by an index vector as one tile", _K.rows_one_by_one, _K.rows_as_tile, _rows, {"D": 512, "R": 8}
    ),
    "turned-addresses": Pair(
        "a transpose by addresses", _K.turn_tile, _K.turn_addresses, _turn, {"R": 32, "C": 64}
    ),
    "strided-pairs": Pair("every second element loaded", _K.deal_split, _K.deal_strided, _deal, {"N": 128}),
    "atomic-lanes": Pair(
        "atomic adds of single elements", _K.count_compare, _K.count_atomic, _count, {"BLOCK": 128, "BINS": 32}
    ),
    "scalar-cast": Pair("a bf16 scalar widened in a loop", _K.weight_float, _K.weight_half, _weights, {"D": 512}),
    "offset-reversed": _of_span(_K.span_reversed, "a span copied backwards"),
    "one-element": Pair(
        "a vector of one element for a scalar", _K.spread_scalar, _K.spread_vector, _spread, {"D": 256}
    ),
    "exp-and-log": Pair(
        "the next power of two by exp2 and log2", _K.power_bits, _K.power_exp, _power, {"BLOCK": 512}
    ),
}


def forms(pair: Pair) -> tuple[tuple[Any, dict[str, Any], Launch], tuple[Any, dict[str, Any], Launch]]:
    """(kernel, constants, launch) of the good form and of the bad one, on equal data."""
    good, bad = (pair.make(torch.Generator().manual_seed(20)) for _ in range(2))
    if pair.bad is kernels.weight_half:
        bad.args["w"] = bad.args["w"].bfloat16()
    if pair.grid_bad:
        bad = Launch(pair.grid_bad, bad.args, bad.expected, bad.tolerance)
    constants = pair.constants if pair.bad_constants is None else pair.bad_constants
    return (pair.good, pair.constants, good), (pair.bad, constants, bad)


def cost(kernel: Any, constants: dict[str, Any], launch: Launch, compiler: str, cache: bool = True) -> Cost:
    """Compile, execute, verify and count one form."""
    done = simulate(kernel, launch.grid, launch.args, constants, compiler=compiler, keep_numbers=True, cache=cache)
    wrong = mismatch(launch) if done.cycles is not None else f"{done.status}: {done.message.splitlines()[0]}"
    if wrong:
        return Cost(wrong=wrong)
    counts = done.counts
    return Cost(
        counts["scalar_accesses"], counts["dma_in"] + counts["dma_out"], counts["vector_repeats"],
        counts["ub_bytes"], done.cycles or 0, ", ".join(sorted({finding.kind for finding in done.findings})),
    )  # fmt: skip


def costs(name: str, compiler: str, cache: bool = True) -> tuple[Cost, Cost]:
    good, bad = forms(PAIRS[name])
    return cost(*good, compiler, cache), cost(*bad, compiler, cache)


def named(name: str, compiler: str) -> str:
    """What `explain` calls the pattern."""
    good, bad = (compile_kernel(k, made.args, c, compiler=compiler) for k, c, made in forms(PAIRS[name]))
    return explain(good, bad).cause or "-"


def source(pair: Pair) -> tuple[list[str], list[str]]:
    """The lines that only the good form and only the bad one has, without their common indent."""
    if pair.good is pair.bad:
        both = pair.constants, pair.bad_constants or pair.constants
        grids = (
            (f", grid {pair.make(torch.Generator()).grid[0]}", f", grid {pair.grid_bad[0]}")
            if pair.grid_bad
            else ("", "")
        )
        texts = [", ".join(f"{k} = {v}" for k, v in one.items()) + grid for one, grid in zip(both, grids)]
        return [texts[0]], [texts[1]]
    old, new = (inspect.getsource(kernel.fn).splitlines()[2:] for kernel in (pair.good, pair.bad))
    lines = list(difflib.ndiff(old, new))
    only = ["\n".join(line[2:] for line in lines if line.startswith(sign)) for sign in ("- ", "+ ")]
    return textwrap.dedent(only[0]).splitlines(), textwrap.dedent(only[1]).splitlines()


def row(name: str, compiler: str, two: tuple[Cost, Cost]) -> list[str]:
    """The two lines of a pattern's table for one compiler."""
    good = two[0]
    made = []
    for form, one in zip(("good", "bad"), two):
        if one.wrong:
            made.append(f"| {compiler} | {form} | {one.wrong} | | | | | | |")
            continue
        ratio = f"{one.cycles / good.cycles:.2f}" if form == "bad" and not good.wrong else ""
        made.append(
            f"| {compiler} | {form} | {one.scalar} | {one.copies} | {one.repeats} | {one.ub} | {one.cycles} | "
            f"{ratio} | {one.hazard} |"
        )
    return made


def page(found: dict[str, dict[str, tuple[Cost, Cost]]], compilers: list[str]) -> str:
    newest = compilers[-1]
    lines = [
        "# Source patterns and what they cost",
        "",
        "Each pattern is a pair of small kernels that do the same job. Both are compiled by every version of the "
        "Ascend compiler, executed in the model, compared with a reference, and counted; all numbers are "
        "modelled, nothing here ran on an NPU. Made by `python -m tests.pattern_table` from "
        "`tests/pattern_kernels.py`.",
        "",
        "Spans, copies and `many-programs` are launches of 48 programs or more, the others of one to four, in "
        "which the latency of the first load and the last store is most of the time.",
        "",
        "Cycles of the bad form over those of the good form: 1.00 or less says that the pattern costs nothing in "
        "this kernel. **!** marks a bad form whose compiled code is unsafe, **-** a form that does not compile. "
        f"Named: what `ascend-perf explain` calls the difference on {newest}.",
        "",
        "| pattern | what | " + " | ".join(compilers) + " | named |",
        "|---|---|" + "---|" * (len(compilers) + 1),
    ]
    for name, rows in found.items():
        ratios = []
        for compiler in compilers:
            good, bad = rows[compiler]
            ratio = "-" if good.wrong or bad.wrong else f"{bad.cycles / good.cycles:.2f}"
            ratios.append(ratio + (" **!**" if bad.hazard else ""))
        what = PAIRS[name].what.replace("|", "\\|")
        lines.append(f"| [{name}](#{name}) | {what} | {' | '.join(ratios)} | {named(name, newest)} |")
    for name, rows in found.items():
        good_lines, bad_lines = source(PAIRS[name])
        what = PAIRS[name].what
        lines += ["", f"## {name}", "", f"{what[:1].upper()}{what[1:]}.", "", "```python"]
        lines += ["# good", *good_lines, "# bad", *bad_lines, "```", ""]
        lines.append(
            "| compiler | form | scalar accesses | copies | vector repeats | UB bytes | cycles | ratio | hazard |"
        )
        lines.append("|---|---|---|---|---|---|---|---|---|")
        for compiler in compilers:
            lines += row(name, compiler, rows[compiler])
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parser = argparse.ArgumentParser(
        prog="python -m tests.pattern_table", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    wanted = asked(parser, PAIRS, "pattern", "costs", arguments)
    if isinstance(wanted, int):
        return wanted
    given, names, compilers = wanted
    found: dict[str, dict[str, tuple[Cost, Cost]]] = {name: {} for name in names}
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(names) * len(compilers))
        for name in names:
            for compiler in compilers:
                progress.update(task, description=f"{name} {compiler}")
                found[name][compiler] = costs(name, compiler)
                progress.advance(task)
    if given.json:
        print(
            json.dumps(
                {n: {v: [asdict(c) for c in two] for v, two in r.items()} for n, r in found.items()}, indent=1
            )
        )
    elif given.names or given.compiler:
        print("modelled, nothing here ran on a device")
        for name, rows in found.items():
            for compiler, two in rows.items():
                print(name, *row(name, compiler, two), sep="\n")
    else:
        PAGE.write_text(page(found, compilers))
        print(PAGE)
    wrong = [
        f"{name} on {version}, {form} form: {one.wrong}"
        for name, rows in found.items()
        for version, two in rows.items()
        for form, one in zip(("good", "bad"), two)
        if one.wrong
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
