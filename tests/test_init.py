"""`ascend-perf init`: what is read of kernels without importing them, what is written, and what cannot be done."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import own_kernels
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_kernels.harness.spec import within
from dashboards import cli, init_command
from dashboards.kernel_sources import CONSTANT, POINTER, SCALAR, UNKNOWN, read

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"


def sh(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    sh(tmp_path, "git", "init", "-q", "-b", "main")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(folder: Path, source: str, name: str = "mine.py"):
    (folder / name).write_text(HEAD + source)
    return read(folder, [name])


def written(folder: Path, source: str) -> str:
    """The text of the only description made of a source."""
    [op] = init_command.described(found(folder, source))
    return "\n".join(op.lines)


JUDGED = """
@triton.jit
def k(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

def wrap(x, out):
    assert x.dtype == torch.{given}
    {stated}
    k[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
"""


@pytest.mark.parametrize(
    ("given", "result", "compare"),
    [
        ("float32", "float32", "within(relative=1e-3, absolute=1e-5),"),
        ("float32", "bfloat16", "within(relative=2**-6, absolute=1e-5),  # two steps of bfloat16"),
        ("float32", "float16", "within(relative=2**-9, absolute=1e-5),  # two steps of float16"),
        ("bfloat16", "float32", "within(relative=1e-3, absolute=1e-5),"),
        ("bfloat16", "", "within(relative=2**-6, absolute=1e-5),  # two steps of bfloat16"),
        ("bfloat16", "int32", "exact,"),
        ("int32", "", "within(relative=1e-3, absolute=1e-5),"),
    ],
)
def test_results_are_judged_by_their_dtype(given, result, compare, tmp_path):
    stated = f"assert out.dtype == torch.{result}" if result else "pass"
    assert f"        compare={compare}\n" in written(tmp_path, JUDGED.format(given=given, stated=stated))


@pytest.mark.parametrize(("dtype", "relative"), [(torch.bfloat16, 2**-6), (torch.float16, 2**-9)])
def test_two_steps_of_a_format_are_within_and_five_are_not(dtype, relative):
    values = torch.arange(2**14, 2**14 + 2048, dtype=torch.int16)  # every mantissa, at several powers of two
    for steps, right in ((2, True), (-2, True), (5, False), (-5, False)):
        apart = within(relative)("out", (values + steps).view(dtype), values.view(dtype), {})
        assert (apart is None) == right
        if not right:
            assert "(2048 of 2048 elements differ)" in apart


ROLES = {
    "pointers are what addresses start from, whatever their names": (
        """
@triton.jit
def k(n, src, dst, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(dst + i, tl.load(src + i, mask=i < n), mask=i < n)
""",
        {"n": SCALAR, "src": POINTER, "dst": POINTER, "BLOCK": CONSTANT},
        {"dst"},
    ),
    "an address may be carried in names, and moved": (
        """
@triton.jit
def k(X, Y, stride, N, BLOCK: "tl.constexpr"):
    X += tl.program_id(0) * stride
    y = Y + tl.program_id(0) * stride
    cols = tl.arange(0, BLOCK)
    ptrs = y + cols
    tl.store(ptrs, tl.load(X + cols, cols < N), cols < N)
""",
        {"X": POINTER, "Y": POINTER, "stride": SCALAR, "N": SCALAR, "BLOCK": CONSTANT},
        {"Y"},
    ),
    "an offset that is added to a pointer is a number": (
        """
@triton.jit
def k(p, q, start, n, BLOCK: tl.constexpr):
    i = start + tl.arange(0, BLOCK)
    v = tl.load(p + i, mask=i < n)
    tl.atomic_add(q + i, v, mask=i < n)
""",
        {"p": POINTER, "q": POINTER, "start": SCALAR, "n": SCALAR, "BLOCK": CONSTANT},
        {"q"},
    ),
    "a pointer handed to a helper is what the helper makes of it": (
        """
@triton.jit
def put(where, what, i, n):
    tl.store(where + i, what, mask=i < n)

@triton.jit
def k(a, b, n, eps, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    put(b, tl.load(a + i, mask=i < n) + eps, i, n)
""",
        {"a": POINTER, "b": POINTER, "n": SCALAR, "eps": SCALAR, "BLOCK": CONSTANT},
        {"b"},
    ),
    "block pointers": (
        """
@triton.jit
def k(a, b, M, N, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(a, (M, N), (N, 1), (0, 0), (BLOCK, BLOCK), (1, 0))
    target = tl.make_block_ptr(base=b, shape=(M, N), strides=(N, 1), offsets=(0, 0),
                               block_shape=(BLOCK, BLOCK), order=(1, 0))
    tl.store(target, tl.load(source))
""",
        {"a": POINTER, "b": POINTER, "M": UNKNOWN, "N": UNKNOWN, "BLOCK": CONSTANT},
        {"b"},
    ),
    "what is not used is not known": (
        "@triton.jit\ndef k(a, b: tl.constexpr, flag=1):\n    pass\n",
        {"a": UNKNOWN, "b": CONSTANT, "flag": SCALAR},
        set(),
    ),
}


@pytest.mark.parametrize("what", ROLES)
def test_roles(tmp_path, what):
    source, roles, stored = ROLES[what]
    kernels = {k.name: k for k in found(tmp_path, source).kernels}
    kernel = kernels["k"]
    got = {p.name: p.role for p in kernel.parameters}
    if what == "block pointers":  # extents in a tuple of a call: a number either way
        got = {n: UNKNOWN if n in "MN" and r in (SCALAR, UNKNOWN) else r for n, r in got.items()}
    assert got == roles
    assert {p.name for p in kernel.parameters if p.stored} == stored


names = st.lists(
    st.sampled_from("p q src dst idx n m lo hi B T w eps tab x_ptr".split()), min_size=5, max_size=9, unique=True
)


@settings(max_examples=80, deadline=None)
@given(names, st.data())
def test_roles_of_drawn_kernels(tmp_path_factory, drawn, data):
    """Kernels with a bound, a constant and pointers of drawn names, loaded and stored in drawn ways."""
    bound, block, *pointers = drawn
    loaded = data.draw(st.lists(st.sampled_from(pointers), min_size=1, unique=True))
    stored = [one for one in pointers if one not in loaded] or [loaded[0]]
    order = data.draw(st.permutations([one for one in drawn if one != block]))
    rows = data.draw(st.booleans())
    offsets = f"tl.program_id(0) * {bound} + cols" if rows else f"tl.program_id(0) * {block} + cols"
    mask = data.draw(st.sampled_from(["{i} < {n}", "{n} > {i}"])).format(i="cols" if rows else "i", n=bound)
    lines = [
        "@triton.jit",
        f"def k({', '.join([*order, block + ': tl.constexpr'])}):",
        f"    cols = tl.arange(0, {block})",
        f"    i = {offsets}",
        f"    mask = {mask}",
        *[f"    v{at} = tl.load({one} + i, mask=mask)" for at, one in enumerate(loaded)],
        *[
            f"    tl.store({one} + i, {' + '.join(f'v{at}' for at in range(len(loaded)))}, mask=mask)"
            for one in stored
        ],
    ]
    folder = tmp_path_factory.mktemp("drawn")
    [kernel] = found(folder, "\n".join(lines) + "\n").kernels
    got = {p.name: p for p in kernel.parameters}
    used = {*loaded, *stored}
    assert {n for n, p in got.items() if p.role == POINTER} == used
    assert {n for n, p in got.items() if p.stored} == set(stored)
    assert got[bound].role == SCALAR and got[block].role == CONSTANT
    shape = ("programs0", bound) if rows else (bound,)
    assert {p.shape for n, p in got.items() if n in used} == {shape}
    assert kernel.grid == (("programs0",) if rows else (f"triton.cdiv({bound}, {block})",))
    assert kernel.suggested == ({block: f"triton.next_power_of_2({bound})"} if rows else {})
    [op] = init_command.described(read(folder, ["mine.py"]))
    ast.parse("ops = [\n" + "\n".join(op.lines) + "\n]")


def test_a_mask_of_the_rows_says_nothing_of_the_width_of_a_tile(tmp_path):
    """`rows < n` bounds BM; D is the width of a row, which no mask cuts."""
    source = """
@triton.jit
def k(x, out, n, BM: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    v = tl.load(x + rows[:, None] * D + d[None, :], mask=(rows < n)[:, None])
    tl.store(out + rows[:, None] * D + d[None, :], v, mask=(rows < n)[:, None])
"""
    [kernel] = found(tmp_path, source).kernels
    assert kernel.suggested == {}
    cut = source.replace("(rows < n)[:, None]", "(rows < n)[:, None] & (d < n)[None, :]")
    [kernel] = found(tmp_path, cut).kernels
    assert kernel.suggested == {"D": "triton.next_power_of_2(n)"}


def test_the_example_is_read_as_a_person_would(repository):
    own_kernels.write(repository)
    assert cli.main(["init"]) == 0
    text = (repository / "benchmarks/bench_kernels.py").read_text()
    for line in (
        'call="kernels/vector_add.py:add",',
        '"x": torch.randn(n, generator=rng),\n            "y": torch.randn(n, generator=rng),',
        'call="src/nn/softmax.py:softmax",',
        "inputs=lambda rng, rows, cols: {",
        "# heuristics for BLOCK",
        "# autotune with 2 configurations, the first is taken",
        "grid=lambda index_ptr: (len(index_ptr),),",
        'constants=lambda width: {"BLOCK": triton.next_power_of_2(width)},',
        '"index_ptr": torch.randint(0, rows, (programs,), generator=rng, dtype=torch.int32),',
        '"out_ptr": torch.zeros(programs, width),',
        'writes=("out_ptr",),',
    ):
        assert line in text
    assert text.count("todo(") - text.split("OPS = ")[0].count("todo(") == 6
    config = (repository / "asv.conf.json").read_text()
    assert "--repository gather.py kernels src/nn benchmarks" in config
    assert (repository / ".asv/.gitignore").read_text() == "*\n"


GATHER = """
@triton.jit
def gather_kernel(table, index, out, lengths, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    source = table + tl.load(index + row) * width
    for i in range(0, tl.cdiv(length, BLOCK)):
        offset = i * BLOCK + tl.arange(0, BLOCK)
        inside = {mask}
        tl.store(out + row * width + offset, tl.load(source + offset, mask=inside), mask=inside)

def gather(table, index, lengths):
    assert index.dtype == torch.int32 and lengths.dtype == torch.int64
    {sizes}
    out = torch.zeros(rows, width, dtype=table.dtype, device=table.device)
    gather_kernel[(rows,)](table, index, out, lengths, width, BLOCK=256)
    return out
"""


@pytest.mark.parametrize("mask", ["offset < length", "length > offset"])
@pytest.mark.parametrize(
    "sizes",
    [
        "rows, width = index.shape[0], table.shape[1]",
        "rows = index.shape[0]; width = table.shape[1]",
        "rows, width = len(index), table.size(1)",
        "rows = index.size(0); _, width = table.shape[0], table.shape[1]",
    ],
)
def test_single_axes_and_lengths_are_read(tmp_path, mask, sizes):
    text = written(tmp_path, GATHER.format(mask=mask, sizes=sizes))
    assert '"table": torch.randn(table_size0, width, generator=rng),' in text
    assert '"index": torch.randint(0, table_size0, (rows,), generator=rng, dtype=torch.int32),' in text
    assert '"lengths": torch.randint(1, width + 1, (rows,), generator=rng, dtype=torch.int64),' in text
    assert '"rows": 64' in text and '"width": 64' in text


def test_a_tensor_of_which_one_axis_is_spoken_of_may_have_more(tmp_path):
    source = GATHER.format(mask="offset < length", sizes="rows, width = table.shape[0], 128")
    text = written(tmp_path, source)
    assert '"table": todo("a tensor of the shape and the dtype that callers use: torch.randn(' in text
    assert "lengths or ends, which bound the masks of out: torch.randint(1, LONGEST + 1, (64,)" in text
    assert "dtype=torch.int64" in text and '"lengths": todo("a tensor' not in text


def test_what_a_wrapper_returns_beside_what_it_writes_is_asked_for(tmp_path):
    source = JUDGED.format(given="float32", stated="pass")
    assert "plain torch, the new contents of out: lambda x, out: ..." in written(tmp_path, source)
    assert "plain torch, the new contents of out: lambda" in written(tmp_path, source + "    return out\n")
    grid = "    def grid(meta):\n        return (triton.cdiv(x.numel(), 128),)\n"
    assert ", then what wrap returns" not in written(tmp_path, source + grid)
    both = written(tmp_path, source + "    return x.sum()\n")
    assert "plain torch, the new contents of out, then what wrap returns: lambda x, out: ..." in both


def test_a_kernel_without_a_wrapper_has_lengths_too(tmp_path):
    text = written(tmp_path, GATHER.format(mask="offset < length", sizes="").partition("def gather(")[0])
    assert "lengths or ends, which bound the masks of out" in text


def test_an_integer_tensor_of_unknown_shape_is_made_of_integers(tmp_path):
    text = written(tmp_path, JUDGED.format(given="int32", stated="pass").replace("x.numel()", "len(out) // 2"))
    assert (
        '"x": todo("a tensor of the shape and torch.int32 that callers use: torch.randint(0, 100, (64,), ' in text
    )


BOUND_TO_A_DEVICE = """
@triton.autotune(configs=[triton.Config({"BM": 16}, num_warps=2), triton.Config({"BM": 32})], key=["M"])
@triton.jit
def mm_kernel(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.load(a + rows * sa, mask=rows < M) + tl.load(b + rows * sb, mask=rows < M)
    tl.store(c + rows * sc, total, mask=rows < M)

def mm(a, b):
    assert a.is_cuda
    if a.dtype != torch.float16:
        raise TypeError
    M, K = a.shape
    K, N = b.shape
    BN = triton.next_power_of_2(N)
    c = torch.empty((M, N), device=a.device, dtype=torch.int32)
    grid = lambda META: (triton.cdiv(M, META["BM"]) * triton.cdiv(N, BN),)
    mm_kernel[grid](a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0), BN=BN)
    return c
"""


def test_a_wrapper_that_needs_a_device_is_read_not_called(tmp_path):
    text = written(tmp_path, BOUND_TO_A_DEVICE)
    assert 'kernel="mine.py:mm_kernel"' in text and "`a.is_cuda` in line 14 needs a device" in text
    assert 'constants=lambda N: {"BN": triton.next_power_of_2(N)},' in text
    assert '"BM=16": {"BM": 16, "num_warps": 2},\n            # "BM=32": {"BM": 32},' in text
    assert '"a": torch.randn(M, K, generator=rng, dtype=torch.float16),' in text
    assert '"c": torch.zeros(M, N)' in text
    assert '"sa": K,' in text and '"sc": N,' in text
    # The grid names a local of the wrapper, BN, that the kernel has as a constant.
    assert "grid=lambda M, N, BM, BN: (triton.cdiv(M, BM) * triton.cdiv(N, BN),)," in text


K = "@triton.jit\n    def k(x):\n        tl.store(x, 1)\n"
K_TOP = K.replace("\n    ", "\n")


@pytest.mark.parametrize(
    "source, words",
    [
        (f"def make():\n    {K}    return k\n", "is defined inside make(): move it to the top"),
        (f"class A:\n    {K}", "is defined inside class A: move it to the top"),
        (f"{K_TOP}\n{K_TOP}", "is defined twice"),
        (f"{K_TOP}\nprint(k)\n", "importing this file runs `print(k)`"),
    ],
)
def test_what_needs_a_look_is_said(tmp_path, source, words):
    assert any(words in problem.says for problem in found(tmp_path, source).problems)


def test_helpers_are_skipped_unless_they_are_launched(tmp_path):
    source = """
@triton.jit
def both(x, i):
    tl.store(x + i, 1)

@triton.jit
def helper(x, i):
    tl.store(x + i, 1)

@triton.jit
def k(x):
    both(x, 0)
    helper(x, 1)

def run(x: torch.Tensor):
    both[(1,)](x, 0)
"""
    got = found(tmp_path, source)
    assert {k.name for k in got.kernels} == {"k", "both"}
    assert [(h.name, h.called_by) for h in got.helpers] == [("helper", ("k",))]


def test_what_returns_a_value_can_be_no_kernel(tmp_path):
    source = """
@triton.jit
def square(x):
    return x * x

@triton.jit
def early(x, n):
    if n == 0:
        return
    tl.store(x, 1)

@triton.jit
def nothing(x):
    tl.store(x, 1)
    return None
"""
    got = found(tmp_path, source)
    assert {k.name for k in got.kernels} == {"early", "nothing"}
    assert [(h.name, h.called_by) for h in got.helpers] == [("square", ())]


def test_other_decorators_and_unread_ones_are_said(tmp_path):
    source = """
def configs():
    return []

@triton.autotune(configs=configs(), key=[])
@triton.heuristics(HEURISTICS)
@libentry()
@triton.jit
def k(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1)
"""
    [kernel] = found(tmp_path, source).kernels
    assert kernel.read == (
        "autotune, its configurations not (they are no plain list)",
        "heuristics, its functions not (they are no plain dict)",
        "@libentry: not read",
    )


def test_nothing_is_imported(repository):
    mark = repository / "imported"
    own_kernels.write(repository)
    (repository / "kernels/vector_add.py").write_text(
        f"open({str(mark)!r}, 'w')\n{own_kernels.ADD}\nimport no_such_module\n"
    )
    before = set(sys.modules)
    assert cli.main(["init"]) == 0
    assert not mark.exists()
    assert not {
        m for m in set(sys.modules) - before if m.partition(".")[0] in ("vector_add", "kernels", "nn", "gather")
    }


class TestWriting:
    def snapshot(self, folder: Path) -> dict[str, bytes]:
        files = [p for p in folder.rglob("*") if p.is_file() and ".git" not in p.relative_to(folder).parts]
        return {str(p): p.read_bytes() for p in files}

    def test_a_dry_run_shows_what_a_run_writes(self, repository, capsys):
        own_kernels.write(repository)
        before = self.snapshot(repository)
        assert cli.main(["init", "--dry-run"]) == 0
        shown = capsys.readouterr().out
        assert self.snapshot(repository) == before
        assert cli.main(["init"]) == 0
        for name in ("asv.conf.json", "benchmarks/bench_kernels.py"):
            assert f"--- {name}: would be written" in shown
            assert (repository / name).read_text().strip() in shown

    def test_nothing_is_overwritten(self, repository, capsys):
        own_kernels.write(repository)
        (repository / "asv.conf.json").write_text('{"mine": true}')
        (repository / "benchmarks").mkdir()
        (repository / "benchmarks/bench_kernels.py").write_text('call = "kernels/vector_add.py:add"\n')
        assert cli.main(["init"]) == 0
        said = capsys.readouterr().out
        assert (repository / "asv.conf.json").read_text() == '{"mine": true}'
        assert (repository / "benchmarks/bench_kernels.py").read_text() == 'call = "kernels/vector_add.py:add"\n'
        assert "asv.conf.json exists and was left as it is" in said and '"install_command"' in said
        assert "these it does not describe, add them to OPS" in said
        assert 'kernel="gather.py:gather_kernel",' in said and 'call="kernels/vector_add.py:add"' not in said
        before = self.snapshot(repository)
        assert cli.main(["init"]) == 0
        assert self.snapshot(repository) == before

    def test_another_configuration_beside_one_that_is_there(self, repository):
        own_kernels.write(repository)
        (repository / "asv.conf.json").write_text("{}")
        assert cli.main(["init", "--config", "ascend.json", "--benchmarks", "perf/ascend"]) == 0
        config = re.sub(r"^ *//.*$", "", (repository / "ascend.json").read_text(), flags=re.M)
        assert json.loads(config)["benchmark_dir"] == "perf/ascend"
        assert (repository / "perf/ascend/bench_kernels.py").is_file()

    def test_a_folder_of_other_benchmarks_is_left_alone(self, repository):
        own_kernels.write(repository)
        (repository / "benchmarks").mkdir()
        (repository / "benchmarks/throughput.py").write_text("1 / 0\n")
        assert cli.main(["init"]) == 0
        assert os.listdir(repository / "benchmarks") == ["throughput.py"]
        assert (repository / "ascend_benchmarks/bench_kernels.py").is_file()

    def test_only_kernels_below_the_folder_and_no_tests(self, repository, capsys):
        own_kernels.write(repository)
        (repository / "kernels/tests").mkdir()
        (repository / "kernels/tests/test_it.py").write_text(own_kernels.GATHER)
        assert cli.main(["init", "kernels", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [op["name"] for op in told["ops"]] == ["add"]
        assert (repository / "benchmarks/bench_kernels.py").is_file()
        bench = (repository / "benchmarks/bench_kernels.py").read_text().splitlines()
        assert told["marks"] and all("todo(" in bench[mark["line"] - 1] for mark in told["marks"])
        assert {f["path"]: f["state"] for f in told["files"]}["asv.conf.json"] == "written"

    @pytest.mark.parametrize(
        "name", ["it's.py", 'a"b.py', "back\\slash.py", "two\nlines = 1 #.py", "x\ry.py", "ü.py"]
    )
    def test_names_of_files_cannot_become_code(self, repository, name):
        (repository / name).write_text(own_kernels.GATHER)
        (repository / f"w{name}").write_text(own_kernels.ADD)
        assert cli.main(["init"]) == 0
        tree = ast.parse((repository / "benchmarks/bench_kernels.py").read_text())
        assert sum(isinstance(node, ast.Assign) for node in tree.body) == 2
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert {f"{name}:gather_kernel", f"w{name}:add"} <= texts

    def test_the_same_name_in_two_files(self, repository, capsys):
        for name in ("a/ops.py", "b/ops.py", "b/c/ops.py", "ops.py"):
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_text(own_kernels.GATHER)
        assert cli.main(["init", "--json"]) == 0
        found = {op["place"]: op["name"] for op in json.loads(capsys.readouterr().out)["ops"]}
        assert len(set(found.values())) == 4 and "gather" in found.values()
        namespace: dict = {}
        exec(
            compile((repository / "benchmarks/bench_kernels.py").read_text().split("FAMILY =")[0], "x", "exec"),
            namespace,
        )
        assert [op.name for op in namespace["OPS"]] == list(found.values())


@settings(max_examples=200, deadline=None)
@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,14}", fullmatch=True))
def test_proposed_names_are_accepted(name):
    from ascend_kernels.harness.describe import op

    op(init_command.proposed(name), kernel="a.py:f", grid=(1,), inputs=dict, cases={}, reference=None)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nowhere"], "nowhere is not there: name a folder of a git repository"),
        (["gather.py"], "gather.py is a file: name a folder"),
        (["--benchmarks", "../x"], "a folder of this repository"),
        (["--benchmarks", "/tmp/x"], "a folder of this repository"),
        (["--config", "a/b.json"], "it is written at the top"),
    ],
)
def test_bad_arguments(repository, capsys, arguments, words):
    own_kernels.write(repository)
    assert cli.main(["init", *arguments]) == 4
    assert words in capsys.readouterr().err
    assert not (repository / "asv.conf.json").exists()


def test_not_a_repository(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert cli.main(["init"]) == 4
    assert "is in no git repository: series are kept per commit, so `git init` it first" in capsys.readouterr().err


def test_no_kernels(repository, capsys):
    (repository / "plain.py").write_text("import triton\n")
    assert cli.main(["init"]) == 3
    assert "no Triton kernel here" in capsys.readouterr().out
    assert cli.main(["init", "--json"]) == 3
    assert not (repository / "asv.conf.json").exists()


def test_files_that_cannot_be_read_are_said_and_the_others_described(repository, capsys):
    own_kernels.write(repository)
    (repository / "broken.py").write_text("import triton\ndef f(:\n")
    (repository / "zero.py").write_bytes(b"import triton\n\0\n")
    (repository / "latin.py").write_bytes(b"triton = '\xe9'\n")
    (repository / "deep.py").write_text("triton = " + "(" * 3000 + ")" * 3000)
    assert cli.main(["init"]) == 0
    said = capsys.readouterr().out
    for name in ("broken.py line 2", "zero.py", "latin.py", "deep.py"):
        assert f"look at {name}" in said and "does not parse" in said
    assert "add: kernels/vector_add.py:7 add_kernel" in said


def test_a_package_that_would_hide_ours(repository, capsys):
    own_kernels.write(repository)
    (repository / "dashboards").mkdir()
    (repository / "dashboards/grafana.json").write_text("{}")
    assert cli.main(["init", "--dry-run"]) == 0
    (repository / "dashboards/__init__.py").write_text("")
    assert cli.main(["init"]) == 4
    assert "has a module dashboards of its own, which would hide ascend-perf's" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(repository, capsys, monkeypatch):
    own_kernels.write(repository)
    (repository / "perf").write_text("a file")
    assert cli.main(["init", "--benchmarks", "perf"]) == 4
    assert "cannot be written: " in capsys.readouterr().err
    (repository / "asv.conf.json").unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cli.main(["init"]) == 4
    assert "is read-only: make it writable, or look with --dry-run" in capsys.readouterr().err
    assert cli.main(["init", "--dry-run"]) == 0
