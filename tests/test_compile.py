"""The compile path: statuses, specialisation, cache, and a worker that survives anything."""

import gc
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascend_model import compile as compile_module
from ascend_model import lower, toolchain
from ascend_model.compile import Compiled, compile_kernel, shorten_paths, strip_locations
from ascend_model.linalg import read
from ascend_model.parse import parse
from ascend_model.source import escaped, line_of, unescaped

pytestmark = pytest.mark.compiler


@pytest.fixture
def kernels(tmp_path):
    """Write kernel source to a file and load its functions."""

    def load(source: str, name: str = "user_kernels"):
        file = tmp_path / f"{name}.py"
        file.write_text("import triton\nimport triton.language as tl\n" + textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(f"{name}_{os.urandom(4).hex()}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


ADD = """
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < n
    tl.store(out + offset, tl.load(x + offset, mask=mask) + tl.load(y + offset, mask=mask), mask=mask)
"""


def vectors(n=100, dtype=torch.float32):
    return {name: torch.zeros(n, dtype=dtype) for name in ("x", "y", "out")}


def compile_add(kernels, n=100, block=128, source=ADD, **more) -> Compiled:
    return compile_kernel(kernels(source).add, {**vectors(n), "n": n}, {"BLOCK": block}, **more)


def test_a_kernel_compiles_to_the_last_form(kernels):
    made = compile_add(kernels)
    assert (made.status, made.message) == ("ok", "")
    assert made.arguments == ("x", "y", "out", "n")
    assert "func.func @add" in made.linalg
    assert "hivm.hir.vadd" in made.hivm
    assert made.hivm.startswith(("#", "module"))
    assert made.generic.lstrip().startswith(('"builtin.module"', "#loc"))
    assert made.compiler == toolchain.default_version()


def test_equal_programs_have_equal_codes(kernels):
    once = compile_add(kernels)
    comment = compile_add(
        kernels, source=ADD.replace("    mask =", "    # a comment moves every line\n\n    mask =")
    )
    renamed = compile_add(kernels, source=ADD.replace("offset", "place"))
    other = compile_add(kernels, source=ADD.replace("offset < n", "n > offset"))
    assert once.code == comment.code == renamed.code
    assert once.code != other.code
    assert once.code != compile_add(kernels, block=256).code


def test_an_argument_equal_to_one_becomes_a_constant(kernels):
    made = compile_add(kernels, n=1)
    assert made.arguments == ("x", "y", "out")


def test_ub_overflow_is_its_own_status(kernels):
    made = compile_add(kernels, block=1 << 18)
    assert made.status == "ub overflow"
    assert "requires" in made.message and "1572864 bits available" in made.message
    assert made.generic == ""


def test_a_fall_back_without_double_buffering_is_noted(kernels):
    source = """
    @triton.jit
    def copy(x, out, n, BLOCK: tl.constexpr):
        for i in range(0, tl.cdiv(n, BLOCK)):
            offset = i * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + offset, tl.load(x + offset, mask=offset < n), mask=offset < n)
    """
    copy = kernels(source).copy
    arguments = {"x": torch.zeros(9), "out": torch.zeros(9), "n": 1 << 20}
    fits = compile_kernel(copy, arguments, {"BLOCK": 24576})
    falls = compile_kernel(copy, arguments, {"BLOCK": 32768})
    assert fits.status == falls.status == "ok"
    assert fits.notes == ()
    assert any("auto-multi-buffer to false" in note for note in falls.notes)


def test_frontend_error_names_the_cause(kernels):
    source = """
    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        tl.store(out, tl.load(x).to(tl.float8e4nv))
    """
    made = compile_add(kernels, source=source)
    assert made.status == "frontend error"
    assert "fp8" in made.message


def test_a_frontend_error_whose_heading_says_error_begins_with_the_reason(kernels):
    made = compile_add(kernels, source=ADD.replace("tl.load(y + ", "tl.load(y + 0.5 + "))
    assert made.status == "frontend error"
    assert "invalid operands of type pointer<fp32>" in made.message.splitlines()[0]


def test_a_kernel_with_an_unknown_name(kernels):
    made = compile_add(kernels, source=ADD.replace("tl.load(y", "tl.lode(y"))
    assert made.status == "frontend error"
    assert "lode" in made.message


REFUSED = """
@triton.jit
def inner(x):
    y = x + 1
    return y + missing


@triton.jit
def unknown(x, y, out, n, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    tl.store(out + offset, tl.load(x) + vaule)


@triton.jit
def below(x, y, out, n, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    tl.store(out + offset, inner(tl.load(x + offset)))


@triton.heuristics({})
@triton.jit
def attribute(x, y, out, n, BLOCK: tl.constexpr):
    offset = tl.arange(0, BLOCK)
    tl.store(out + offset, tl.nope(tl.load(x + offset)))


@triton.jit
def shapes(x, y, out, n, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, 64), tl.load(x + tl.arange(0, 48)))


@triton.jit
def asserts(x, y, out, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 1000, "small block")
"""


@pytest.mark.parametrize(
    ("name", "reason", "line"),
    [
        ("unknown", "NameError: vaule is not defined", "tl.store(out + offset, tl.load(x) + vaule)"),
        ("below", "NameError: missing is not defined", "return y + missing"),
        ("attribute", "AttributeError: module 'triton.language' has no attribute 'nope'", "tl.nope(tl.load("),
        ("shapes", "expanded size of the tensor (64) must match the existing size (48)", "tl.arange(0, 48)"),
        ("asserts", "small block", 'tl.static_assert(BLOCK > 1000, "small block")'),
    ],
)
def test_the_first_line_of_a_frontend_error_says_why_and_where(kernels, name, reason, line):
    module = kernels(REFUSED)
    made = compile_kernel(getattr(module, name), {**vectors(), "n": 3}, {"BLOCK": 64})
    text = Path(module.__file__).read_text().splitlines()
    [number] = [i for i, one in enumerate(text, 1) if line in one]
    assert made.status == "frontend error"
    first = made.message.splitlines()[0]
    assert reason in first and f"user_kernels.py:{number}: " in first and line in first


def test_adapter_crash_is_a_status(kernels):
    # A vector carried through `if`: the adapter dies on it, the interpreter passes.
    source = """
    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        offset = tl.arange(0, BLOCK)
        if tl.load(y) > 0:
            offset = offset + n
        tl.store(out + offset, tl.load(x + offset))
    """
    made = compile_add(kernels, source=source)
    assert made.status == "adapter crash"
    assert made.message


def test_the_message_has_no_folder_of_this_machine(kernels, tmp_path):
    assert shorten_paths(f"{tmp_path}/pkg/k.py:3", [str(tmp_path)]) == "pkg/k.py:3"


def test_an_edited_file_is_compiled_anew(kernels):
    before = compile_add(kernels)
    after = compile_add(kernels, source=ADD.replace("+ tl.load(y", "- tl.load(y"))
    assert before.status == after.status == "ok"
    assert "vsub" in after.hivm and "vsub" not in before.hivm


def test_the_worker_is_replaced_after_it_died(kernels):
    assert compile_add(kernels).status == "ok"
    compile_module.WORKER.process.kill()
    compile_module.WORKER.process.wait()
    assert compile_add(kernels, block=512).status == "ok"


def test_the_worker_of_a_forked_child_ends_with_it():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def start_and_stop_its_worker():
        compile_module.WORKER._start()
        os.kill(compile_module.WORKER.process.pid, signal.SIGSTOP)  # so that it cannot end by itself
        there.send(compile_module.WORKER.process.pid)

    child = context.Process(target=start_and_stop_its_worker)
    child.start()
    worker = here.recv()
    child.join()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)


def test_time_limit(kernels):
    made = compile_add(kernels, block=64, timeout=1e-6, cache=False)
    assert made.status == "timed out"
    assert compile_add(kernels, block=64).status == "ok"


def test_the_cache_answers_and_a_damaged_record_is_ignored(kernels, tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    first = compile_add(kernels)
    [record] = (tmp_path / "cache" / "compiled").rglob("*.json.gz")
    monkeypatch.setattr(compile_module, "run_compiler", lambda *_: pytest.fail("not from the cache"))
    assert compile_add(kernels) == first
    monkeypatch.undo()
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    record.write_bytes(record.read_bytes()[:50])
    assert compile_add(kernels) == first


@pytest.mark.parametrize("what", ["nowhere", "full"])
def test_a_cache_that_takes_nothing_decides_nothing(kernels, tmp_path, monkeypatch, what):
    """Compiled as well as ever, and no half file is left; only `run` refuses to begin so."""
    if what == "nowhere":
        (tmp_path / "cache").write_text("no folder")
    else:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(toolchain.os, "replace", full)
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path / "cache"))
    assert compile_add(kernels).status == "ok"
    if what == "nowhere":
        with pytest.raises(toolchain.ToolchainError, match=r"cannot be written.*ASCEND_PERF_CACHE"):
            toolchain.require_cache()
    else:
        toolchain.require_cache()
        kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        assert [path.parent.parent.name for path in kept] == ["lowered"]  # by the other process


def test_equal_in_processes_with_other_hash_seeds(tmp_path):
    file = tmp_path / "one.py"
    file.write_text("import triton\nimport triton.language as tl\n" + ADD)
    script = """
import sys, json, torch
sys.path.insert(0, sys.argv[1])
import one
from ascend_model.compile import compile_kernel
x = torch.zeros(100)
made = compile_kernel(one.add, {"x": x, "y": x, "out": x, "n": 100}, {"BLOCK": 128}, cache=False)
print(json.dumps([made.code, made.generic]))
"""
    found = set()
    for seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent.parent)}
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, env=env
        )
        assert done.returncode == 0, done.stderr
        found.add(tuple(json.loads(done.stdout)))
    assert len(found) == 1


def test_what_cannot_be_described_is_refused(kernels):
    add = kernels(ADD).add
    with pytest.raises(TypeError, match="argument n: expected a tensor"):
        compile_kernel(add, {**vectors(), "n": "100"}, {"BLOCK": 128})
    with pytest.raises(TypeError, match="constant BLOCK"):
        compile_kernel(add, {**vectors(), "n": 100}, {"BLOCK": object()})


def test_a_kernel_inside_a_function_is_refused():
    import triton

    @triton.jit
    def inner(x):
        pass

    with pytest.raises(TypeError, match="move it to the top of its module"):
        compile_kernel(inner, {"x": torch.zeros(1)})


def test_a_compiler_that_is_not_here(kernels):
    with pytest.raises(toolchain.ToolchainError, match=r"ascend-perf compilers add 0\.0\.1"):
        compile_add(kernels, compiler="0.0.1")
    with pytest.raises(toolchain.ToolchainError, match="is not a compiler version"):
        compile_add(kernels, compiler="../../bin")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_file_name_survives_the_compiler_s_text(name):
    written = escaped(name)
    assert written.isascii() and '"' not in written and unescaped(written) == name


def test_a_place_names_a_file_of_any_letters(tmp_path, monkeypatch):
    folder = tmp_path / "Kärnel ü"
    folder.mkdir()
    file = folder / "add_ä.py"
    file.write_text("import triton\nimport triton.language as tl\n" + ADD)
    spec = importlib.util.spec_from_file_location("letters_of_any_kind", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    made = compile_kernel(module.add, {**vectors(), "n": 100}, {"BLOCK": 128})
    places = {op.loc.rsplit(":", 2)[0] for op in parse(made.generic).op.walk() if op.loc}
    assert "Kärnel ü/add_ä.py" in places and str(tmp_path) not in made.linalg
    assert line_of("Kärnel ü/add_ä.py", 4) == "@triton.jit"
    stores = [node for node in read(made.linalg).nodes() if node.place]
    assert stores and {node.place[0] for node in stores} == {"Kärnel ü/add_ä.py"}


def test_locations_are_stripped_whole():
    text = (
        '#loc1 = loc("k.py":3:0)\n%0 = "a.b"() : () -> i32 loc(#loc1)\n'
        '%1 = "c.d"() : () -> () loc(callsite("f"("g.py":1:2) at #loc1))\n#loc2 = loc(unknown)\n'
    )
    assert strip_locations(text) == '%0 = "a.b"() : () -> i32\n%1 = "c.d"() : () -> ()\n'


def test_a_script_without_a_guard_ends_at_once(tmp_path):
    """The process that lowers imports the script; it must not start another one that does the same."""
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import torch, triton\nimport triton.language as tl\nfrom ascend_model import compile_kernel\n"
        "@triton.jit\ndef zero(x):\n    tl.store(x, 0.0)\n"
        "made = compile_kernel(zero, {'x': torch.ones(1)}, cache=False)\nprint(made.status, made.message)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "compiles kernels while it is imported" in done.stdout and "__name__" in done.stdout, done.stderr


def test_what_triton_asks_for_signatures_is_kept_without_the_values():
    class Value:
        def cast(self, dtype, _builder=None, _generator=None):
            return dtype

    value = Value()
    gone = weakref.ref(value)
    assert "_generator" in lower.signature_of(value.cast).parameters
    assert "_generator" not in lower.signature_of(len).parameters
    assert lower.signature_of(Value().cast) is lower.signature_of(value.cast)
    del value
    gc.collect()
    assert gone() is None
