"""`ascend-perf model FILE.py:KERNEL`: two forms, several compilers, advice, the page, and bad input."""

import html.parser
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ascend_model
from ascend_kernels.harness import isolated, launch_page, timeline_picture
from ascend_kernels.harness.forms import Line
from ascend_kernels.harness.timeline_picture import Bar, Picture, picture
from ascend_kernels.harness.user_kernel import UsageError, file_launch, grid_sizes, load_kernel, load_module
from ascend_model.outputs import difference
from dashboards import cli

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def bound(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < n
    tl.store(out + offset, tl.load(x + offset, mask=mask) * 2.0, mask=mask)

@triton.jit
def whole(x, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = n > offset
    tl.store(out + offset, tl.load(x + offset, mask=mask) * 2.0, mask=mask)

@triton.jit
def tripled(x, out, n, factor, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < n
    tl.store(out + offset, tl.load(x + offset, mask=mask) * factor, mask=mask)

@triton.jit
def scattered(x, index, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(index + offset)
    tl.store(out + offset, tl.load(x + at))

@triton.jit
def too_large(x, out, n, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK * 1024)
    value = tl.load(x + offset, mask=offset < n)
    tl.store(out + offset, value * tl.exp(value) + tl.sqrt(value), mask=offset < n)
"""
GOOD = ["--arg", "x=f32[128]", "--arg", "out=f32[128]", "--arg", "n=100", "--const", "BLOCK=64", "--grid", "2"]
compiler = pytest.mark.compiler


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "own_kernels.py"
    path.write_text(KERNELS)
    return path


def model(*arguments: object) -> int:
    return cli.main(["model", *map(str, arguments)])


def again(file: Path, source: str) -> Path:
    """Another file beside it, of one kernel."""
    path = file.with_name("other_kernels.py")
    path.write_text(f"import triton\nimport triton.language as tl\n\n@triton.jit\n{source}")
    return path


# ---- two forms and several compilers


@compiler
def test_two_forms_side_by_side(file, capsys):
    assert model(f"{file}:whole", "--against", f"{file}:bound", *GOOD) == 0
    text = capsys.readouterr().out
    rows = {
        line[: line.rindex(",")].strip(): line.split()[-4:] for line in text.splitlines() if ", copies" in line
    }
    # A form that stores a whole tile loads it too: two tiles a program instead of one, of two programs.
    assert rows["Copies from global memory"] == ["2", "4", "+100.0", "%"]
    assert rows["Copies to global memory"][-3:] == ["2", "2", "="]
    assert "Outputs agree: out." in text
    assert "The store to `out` became load, select and store of the whole tile" in text
    assert text.index("advice for whole") > text.index("bound -> whole")
    assert model(f"{file}:whole", "--against", f"{file}:bound", *GOOD, "--json") == 0
    before, after = json.loads(capsys.readouterr().out)
    assert "against" not in before and (before["op"], after["op"]) == ("bound", "whole")
    against = after["against"]
    assert against["changes"]["dma_in"] == {"before": 2, "after": 4, "change": 1.0}
    assert against["outputs"] == {"agree": True, "compared": ["out"], "differences": [], "note": ""}
    assert against["cause"] == "whole-tile store" and after["advice"][0]["place"][1] == 14 and not before["advice"]


@compiler
def test_a_launch_that_does_not_end_says_so_beside_its_hazards(file, capsys, tmp_path, monkeypatch):
    """Two stores of one element a round, without a barrier between: a hazard, and no reason to hide the other."""
    source = "def k(x, out, n):\n    i = 0\n    while i < n:\n        tl.store(out, i)\n        i -= 1\n"
    kernel, page = f"{again(file, source)}:k", tmp_path / "page.html"
    given = ["--arg", "x=f32[4]", "--arg", "out=i32[4]", "--arg", "n=1"]
    monkeypatch.setitem(ascend_model.simulate.__kwdefaults__, "max_ops", 20_000)
    assert model(kernel, *given, "--html", page) == 2
    text = capsys.readouterr().out
    assert "\nhazard: missing wait: " in text
    [said] = re.findall(r"^endless loop: (.*)", text, re.M)
    assert "other_kernels.py:7" in said
    assert said[:40] in page.read_text()
    assert cli.main(["watch", "--once", kernel, *given]) == 2
    assert "endless loop: " in capsys.readouterr().out


@compiler
def test_forms_that_compute_something_else(file, capsys):
    """Arguments that only one form takes are for that one; the first place that differs is named."""
    what = [f"{file}:tripled", "--against", f"{file}:bound", *GOOD, "--arg", "factor=3.0"]
    assert model(*what, "--json") == 2
    _, after = json.loads(capsys.readouterr().out)
    launch = file_launch(f"{file}:bound", GOOD[1:6:2], ["BLOCK=64"], "2")
    first = float(launch.args["x"][0])
    [said] = after["against"]["outputs"]["differences"]
    found = re.match(
        r"out\[0\] is ([-\d.e]+), before ([-\d.e]+) \(100 of 128 elements differ\); at most ([\d.e-]+)", said
    )
    assert float(found[1]) == pytest.approx(3 * first) and float(found[2]) == pytest.approx(2 * first)
    assert float(found[3]) == pytest.approx(float(launch.args["x"][:100].abs().max()), rel=1e-3)
    assert model(*what, "--rtol", "0.6") == 0
    assert "Outputs agree: out." in capsys.readouterr().out
    assert model(*what, "--rtol", "0.49") == 2
    assert model(f"{file}:bound", *GOOD, "--arg", "factor=3.0") == 4
    assert "it has no factor" in capsys.readouterr().err


@compiler
def test_one_kernel_with_other_constants(file, capsys):
    what = [f"{file}:bound", "--against", f"{file}:bound", "--against-const", "BLOCK=32", "--against-grid", "4"]
    assert model(*what, *GOOD) == 0
    text = capsys.readouterr().out
    assert "bound BLOCK=32 grid=4 -> bound BLOCK=64 grid=2" in text and "Outputs agree: out." in text


@compiler
def test_a_form_that_fails_beside_one_that_runs(file, capsys):
    assert model(f"{file}:too_large", "--against", f"{file}:bound", *GOOD) == 2
    text = capsys.readouterr().out
    assert "ub overflow" in text and "no longer compiles" in text
    # in bytes and first, before the compiler's own words, which are in bits
    assert re.search(
        r"^ub overflow of .*: its buffers take \d+ bytes of unified buffer where 196608 are", text, re.M
    )
    assert "Outputs: not compared, because" in text
    assert model(f"{file}:bound", "--against", f"{file}:too_large", *GOOD) == 2
    assert "compiles again" in capsys.readouterr().out


@compiler
def test_compilers_side_by_side(file, capsys):
    from ascend_model import toolchain

    versions = toolchain.available_versions()
    if len(versions) < 2:
        pytest.skip("one compiler here")
    assert model(f"{file}:bound", *GOOD, "--compiler", ",".join(versions), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["compiler"] for row in rows] == versions
    assert all(
        row["against"]["compiler"] == versions[0] and row["against"]["outputs"]["agree"] for row in rows[1:]
    )
    assert model(f"{file}:bound", *GOOD, "--compiler", ",".join(versions)) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("modelled  "))
    assert head.split()[1:] == versions


@compiler
def test_each_form_imports_its_own_helpers(tmp_path, monkeypatch, capsys):
    """Two versions of a file in two folders, with a helper of the same name beside each."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for folder, factor in (("old", 2.0), ("new", 5.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_helper.py").write_text(
            f"import triton.language as tl\nFACTOR = tl.constexpr({factor})\n"
        )
        (tmp_path / folder / "kernels.py").write_text(
            "from own_helper import FACTOR\n" + KERNELS.replace("* 2.0", "* FACTOR", 1)
        )
    old, new = (f"{tmp_path / folder / 'kernels.py'}:bound" for folder in ("old", "new"))
    assert model(new, "--against", old, *GOOD, "--json") == 2
    [said] = json.loads(capsys.readouterr().out)[1]["against"]["outputs"]["differences"]
    found = re.match(r"out\[0\] is ([-\d.e]+), before ([-\d.e]+)", said)
    assert float(found[1]) / float(found[2]) == pytest.approx(2.5)


@compiler
@pytest.mark.parametrize("constant", ["SIZE", "settings.SIZE"])
def test_an_edited_constant_is_another_kernel(tmp_path, monkeypatch, capsys, constant):
    """Compiled code is kept by the kernel's source; a value from outside of it belongs to that."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    results = []
    for size in (2.0, 7.0):
        folder = tmp_path / f"{size}"
        folder.mkdir()
        (folder / "settings.py").write_text(f"import triton.language as tl\nSIZE = tl.constexpr({size})\n")
        path = tmp_path / "edited.py"
        path.write_text(
            f"import sys\nsys.path.insert(0, {str(folder)!r})\nsys.modules.pop('settings', None)\n"
            "import settings\nfrom settings import SIZE\n" + KERNELS.replace("* 2.0", f"* {constant}", 1)
        )
        assert model(f"{path}:bound", *GOOD, "--json") == 0
        capsys.readouterr()
        launch = file_launch(f"{path}:bound", GOOD[1:6:2], ["BLOCK=64"], "2")
        from ascend_model import simulate

        x = launch.args["x"].clone()
        done = simulate(launch.kernel, launch.grid, launch.args, launch.constants)
        results.append(float(done.outputs["out"][0] / x[0]))
    assert results == pytest.approx([2.0, 7.0])


@compiler
def test_advice_on_a_single_form(file, capsys):
    arguments = ["--arg", "x=f32[128]", "--arg", "index=i32[128]", *GOOD[2:]]
    assert model(f"{file}:scattered", *arguments) == 0
    [said] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("- ")]
    assert "The load of `x` became single elements, 64 to a tile" in said
    assert "own_kernels.py:27: `tl.store(out + offset, tl.load(x + at))`" in said
    assert model(f"{file}:bound", *GOOD) == 0
    assert "\nadvice" not in capsys.readouterr().out


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=20))
def test_the_first_difference_is_found(pairs):
    """Against a plain loop: bit for bit, so that -0.0 is not 0.0 and one NaN is the same NaN."""
    a, b = (torch.tensor([pair[side] for pair in pairs], dtype=torch.float32) for side in (0, 1))
    raw = [(x.view(torch.int32).item(), y.view(torch.int32).item()) for x, y in zip(a, b)]
    wrong = [i for i, (x, y) in enumerate(raw) if x != y]
    said = difference("out", a, b)
    assert (said is None) == (not wrong)
    if wrong:
        assert said.startswith(f"out[{wrong[0]}] is ") and f"({len(wrong)} of {len(pairs)} element" in said


@pytest.mark.parametrize(
    ("values", "better", "change", "worse"),
    [((10, 15), "lower", 0.5, True), ((10, 5), "lower", -0.5, False), ((2, 1), "higher", -0.5, True),
     ((0, 1), "lower", float("inf"), True), ((3, 3), "lower", None, None), ((None, 3), "lower", None, None)],
)  # fmt: skip
def test_changes_and_their_direction(values, better, change, worse):
    line = Line("dma_in", "", "", better, values)
    assert line.change(1) == change and line.worse(1) == worse


# ---- the page


class Reader(html.parser.HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)


@compiler
def test_the_page_is_whole_and_loads_nothing(file, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert model(f"{file}:whole", "--against", f"{file}:bound", *GOOD, "--html", out) == 0
    text = out.read_text()
    page = Reader(text)
    assert not [one for _, one in page.tags if {"src", "href"} & set(one) and one.get("href") != "data:,"]
    assert "http" not in text.replace("http-equiv", "")
    policy = next(one["content"] for tag, one in page.tags if one.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    words = "".join(page.words)
    for one in (
        "The store to out became load, select and store",
        "Outputs agree: out.",
        "Copies from global memory",
        "def whole(x, out, n, BLOCK: tl.constexpr):",
        "hivm.hir.load",
        "nothing here ran on a device",
    ):
        assert one in words, one
    marked = {one["data-place"]: one.get("class") for _, one in page.tags if "data-place" in one}
    assert marked["own_kernels.py:14"] == "advised" and not marked["own_kernels.py:8"]
    assert sum(tag == "svg" and one.get("class") == "overview" for tag, one in page.tags) == 2


@compiler
def test_hostile_text_is_only_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "hostile.py"
    hostile = "  # </td><script>alert(2)</script><img src=x> \u202e"
    path.write_text(
        "# <script>alert(1)</script>\n" + KERNELS.replace(
            "    mask = n > offset\n", f"    mask = n > offset{hostile}\n"
        )
    )  # fmt: skip
    out = tmp_path / "<b>page.html"
    assert model(f"{path}:whole", *GOOD, "--html", out) == 0
    text = out.read_text()
    page = Reader(text)
    assert sum(tag == "script" for tag, _ in page.tags) == 2 and not [
        tag for tag, _ in page.tags if tag in ("img", "b>")
    ]
    assert "</td><script>alert(2)</script>" in "".join(page.words) and "\u202e" not in text


@compiler
def test_the_page_of_what_does_not_run(file, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert model(f"{file}:too_large", *GOOD, "--html", out) == 2
    words = "".join(Reader(out.read_text()).words)
    assert "ub overflow" in words and "def too_large" in words
    assert model(f"{file}:bound", *[one.replace("x=f32[128]", "x=f32[90]") for one in GOOD], "--html", out) == 2
    page = Reader(out.read_text())
    assert "out of bounds read" in "".join(page.words)
    assert ("tr", "hazard") in [(tag, one.get("class")) for tag, one in page.tags]
    assert model(f"{file}:bound", *GOOD, "--html", tmp_path / "none" / "x.html") == 4
    assert "cannot be written" in capsys.readouterr().err


@compiler
def test_of_a_launch_with_many_ops_the_busiest_program_is_drawn(file, tmp_path, monkeypatch):
    from ascend_kernels.harness import forms

    arguments = [f"{file}:scattered", "--arg", "x=f32[256]", "--arg", "index=i32[256]", "--arg", "out=f32[256]",
                 "--arg", "n=1", "--const", "BLOCK=64", "--grid", "4"]  # fmt: skip
    pages, traces = [], []
    for most in (forms.TRACED_OPS, 4, 1):  # of eight copies, two a program
        monkeypatch.setattr(forms, "TRACED_OPS", most)
        pages.append(tmp_path / f"{most}.html")
        traces.append(tmp_path / f"{most}.json")
        assert model(*arguments, "--html", pages[-1], "--trace", traces[-1]) in (0, 2)
    rows = [json.loads(trace.read_text())["traceEvents"] for trace in traces]
    assert [len({row["pid"] for row in one}) for one in rows] == [4, 1, 0]
    [program] = {row["pid"] for row in rows[1]}
    assert rows[1] == [row for row in rows[0] if row["pid"] == program]
    whole, alone, none = (" ".join(Reader(page.read_text()).words) for page in pages)
    assert "Timeline of the busiest program" in whole and "Timeline of the busiest program" in alone
    assert f"program {program} of 4" in whole and f"program {program} of 4" in alone
    assert "The busiest program has too many ops to keep them all" in none


@compiler
def test_the_picture_holds_what_the_trace_does(file, tmp_path, capsys):
    """Busy cycles of each pipe, as the simulation counts them, from the bars; the scalar pipe's from the rest."""
    from ascend_model import simulate

    launch = file_launch(
        f"{file}:scattered", ["x=f32[256]", "index=i32[256]", "out=f32[256]", "n=1"], ["BLOCK=64"], "4"
    )
    done = simulate(launch.kernel, launch.grid, launch.args, launch.constants, trace=True)
    one = picture(done.trace, done)
    assert one.cycles == max(done.program_cycles) and one.programs == 4
    for number, pipe in enumerate(("S", "V", "MTE2", "MTE3")):
        bars = [bar for bar in one.bars if bar.pipe == number and not bar.wait]
        assert sum(bar.works for bar in bars) == done.busy[pipe], pipe
        assert all(a.end <= b.start for a, b in itertools.pairwise(bars))
    shares = {}
    for share in one.shares:
        if not share.name.startswith("wait"):
            shares[share.pipe] = shares.get(share.pipe, 0) + share.cycles
    assert shares == {pipe: busy for pipe, busy in done.busy.items() if busy}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=60),
       st.integers(1, 200))  # fmt: skip
def test_joining_bars_loses_no_cycle(steps, gap):
    at = [0, 0, 0, 0]
    bars = []
    for pipe, busy, idle in steps:
        start = at[pipe] + idle
        at[pipe] = start + busy
        bars.append(
            Bar(
                pipe,
                f"op{busy % 3}",
                "k.py:1:1",
                start,
                start + busy,
                start + busy + 5,
                pipe == 0 and busy % 2 == 0,
            )
        )
    bars.sort(key=lambda bar: (bar.pipe, bar.start))
    joined = timeline_picture._joined(bars, gap)
    for pipe in range(4):
        for wait in (False, True):
            mine, theirs = ([b for b in some if b.pipe == pipe and b.wait == wait] for some in (joined, bars))
            assert sum(b.works for b in mine) == sum(b.works for b in theirs)
            assert all(b.end - b.start <= max(gap, 30) and b.works <= b.end - b.start for b in mine)
    total = max(at)
    of = Picture(0, 1, total, 1.0, tuple(joined), len(bars), ())
    for pipe in range(4):
        cells = [a + b for a, b in zip(*(timeline_picture._busy(of, pipe, wait, total) for wait in (False, True)))]
        assert sum(cells) * total / timeline_picture.COLUMNS == pytest.approx(
            sum(b.works for b in bars if b.pipe == pipe)
        )


def test_a_long_program_is_joined_after_an_exact_start(monkeypatch):
    def event(i: int) -> dict:
        told = {"place": "k.py:3:1", "cycles": 4, "usable_at_cycle": i * 10 + 9}
        return {"ph": "X", "pid": 0, "tid": 1, "name": "vadd", "ts": i * 10 / 1000, "args": told}

    events = [event(i) for i in range(50_000)]

    class Done:
        program_cycles = (500_000,)
        busy = {"S": 500_000, "V": 200_000}  # noqa: RUF012

    one = picture({"traceEvents": events, "otherData": {"clock_ghz": 1.0}}, Done)
    assert len(one.bars) <= timeline_picture.MOST_BARS and one.joined and one.ops == 50_000
    assert sum(bar.works for bar in one.bars if bar.pipe == 1) == 200_000
    exact = [bar for bar in one.bars if bar.pipe == 1 and bar.end <= one.exact]
    assert len(exact) >= 5000 and all(bar.name == "vadd" and bar.works == 4 for bar in exact)
    assert len(json.dumps(timeline_picture.data(one, 500_000))) < 500_000


# ---- bad input


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import sys\nprint('usage: me')\nsys.exit(2)\n",
            "ends the program while it is imported (line 3) after saying",
        ),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('file')\np.parse_args()\n",
            "(line 4) after saying",
        ),
        (
            "from not_here_at_all import x\n",
            "needs the module not_here_at_all, which is not installed here (line 1)",
        ),
        ("from math import nothing_like_it\n", "cannot be imported: ImportError: cannot import name"),
        ("from . import x\n", "imports relative to its package (line 1)"),
        ("def f(:\n    pass\n", "line 1, is not Python"),
        ("x = 1\n\n1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (line 3)"),
        ("input('size? ')\n", "cannot be imported: EOFError"),
        ("raise KeyError('a')\n", "if __name__"),
        ("\0\0", "bad_file.py is not Python: source code"),
        ("a = 1\nwhile True:\n    pass\n", "takes more than 2 s (line "),
        ("a = 1\n", "has no @triton.jit function 'k'; it has none"),
    ],
)
def test_a_file_that_cannot_be_used_says_so_in_one_sentence(tmp_path, monkeypatch, capsys, text, words):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(isolated, "IMPORT_SECONDS", 2)
    path = tmp_path / "bad_file.py"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load_kernel(str(path), "k")
    said = str(raised.value)
    assert words in said and "\n" not in said
    assert capsys.readouterr() == ("", "")
    left = [name for name in sys.modules if name.startswith("_kernels_bad_file")]
    assert bool(left) == ("it has none" in words)


INTEGERS = """
import triton
import triton.language as tl

@triton.jit
def many(a, b, c, d, e, f):
    tl.store(a, 1)
"""


def test_random_integers_are_indices_of_their_own_tensor_or_from_the_bounds_given(tmp_path):
    (tmp_path / "k.py").write_text(INTEGERS)
    asked = {
        "a": ("i32[64]", 0, 63), "b": ("i32[4,500]:1..7", 1, 7), "c": ("i64[500]:-3..3", -3, 3),
        "d": ("i32[8]:500..500", 500, 500), "e": ("u8[4000]", 0, 126), "f": ("i1[500]", 0, 1),
    }  # fmt: skip
    given = [f"{name}={text}" for name, (text, _, _) in asked.items()]
    one, two = (file_launch(f"{tmp_path}/k.py:many", given, [], "1").args for _ in range(2))
    for name, (text, least, most) in asked.items():
        assert least <= int(one[name].min()) and int(one[name].max()) <= most
        assert one[name].equal(two[name])
        if one[name].numel() >= 500:  # all of them occur, both bounds too
            assert set(one[name].flatten().tolist()) == set(range(least, most + 1)), text
    other = file_launch(f"{tmp_path}/k.py:many", given, [], "1", seed=1).args
    assert not one["a"].equal(other["a"]) and not one["b"].equal(other["b"])


@compiler
def test_output_while_importing_is_not_mixed_in(file, capsys):
    file.write_text(
        "import argparse, sys\nprint('hello')\nassert sys.argv[1:] == []\n" + KERNELS
        + "\nif __name__ == '__main__':\n    sys.exit(1)\n"
    )  # fmt: skip
    assert model(f"{file}:bound", *GOOD, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["status"] == "ok"


@compiler
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}:bond"], "did you mean"),
        (["{}"], "name one of its kernels"),
        (["{}:bound", "--grid", "0"], "grid '0': expected one to three numbers from 1 up"),
        (["{}:bound", "--grid", "1,2,3,4"], "expected one to three numbers"),
        (["{}:bound", "--grid", "70000"], "70000 programs, and the device takes 65535"),
        (["{}:bound", "--grid", "many"], "expected numbers"),
        (["{}:bound", "--arg", "x=f32[-1]"], "no negative numbers"),
        (["{}:bound", "--arg", "x=f32[a]"], "a shape is numbers"),
        (["{}:bound", "--arg", "x=f32[99999999999999]"], "does not fit the memory"),
        (["{}:bound", "--arg", "x=(1,2)"], "neither a number nor dtype[shape]"),
        (["{}:bound", "--arg", "x=f32[64]:1..5"], "behind a shape of integers comes LOW..HIGH"),
        (["{}:bound", "--arg", "x=i32[64]:5"], "behind a shape of integers comes LOW..HIGH"),
        (["{}:bound", "--arg", "x=i32[64]1..5"], "expected dtype[shape]"),
        (["{}:bound", "--arg", "x=i32[64"], "expected dtype[shape]"),
        (["{}:bound", "--arg", "x=i32[64]:5..1"], "no integer of this dtype is from 5 to 1"),
        (["{}:bound", "--arg", "x=u8[64]:0..256"], "no integer of this dtype is from 0 to 256"),
        (["{}:bound", "--arg", "BLOCK=64"], "BLOCK is a tl.constexpr: --const BLOCK=..."),
        (["{}:bound", "--const", "n=64"], "n is no tl.constexpr: --arg n=..."),
        (["{}:bound", "--const", "BLOCK"], "expected NAME=VALUE"),
        (["{}:bound", "--against", "nothing"], "expected FILE.py:KERNEL"),
        (["{}:bound", "--against", "{}:none"], "has no @triton.jit function 'none'"),
        (["{}:bound", "--against-const", "BLOCK=2"], "go with --against"),
        (["{}:bound", "--case", "ragged"], "--case and --impl go with an op"),
        (["assign_draft_cache_locs", "--html", "x.html"], "--against and --html go with FILE.py:KERNEL"),
        (["{}/x.py:k"], "no file"),
    ],
)
def test_what_was_asked_wrongly_ends_with_four(file, capsys, arguments, words):
    extra = [] if arguments[0] == "assign_draft_cache_locs" else GOOD
    assert model(arguments[0].format(file), *extra, *(one.format(file) for one in arguments[1:])) == 4
    said = capsys.readouterr().err
    assert words in said and said.startswith("ascend-perf model: ") and said.count("\n") == 1


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        load_module(str(tmp_path / "folder.py"))


@given(st.text(max_size=12))
def test_any_grid_is_numbers_or_a_sentence(text):
    try:
        sizes = grid_sizes(text)
    except UsageError as error:
        assert "grid" in str(error)
    else:
        assert sizes == tuple(int(part) for part in text.split(",")) and all(size >= 1 for size in sizes)


def test_the_assets_are_packaged():
    tomllib = pytest.importorskip("tomllib")
    data = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "harness/assets/*" in data["package-data"]["ascend_kernels"]
    assert launch_page._asset("launch.js") and launch_page._asset("launch.css")
