"""A launch from the cache is the launch itself: numbers, findings and memory, and never another launch's."""

import ast
from pathlib import Path

import numpy as np
import pytest

import ascend_model
from ascend_model import remembered as module
from tests import model_kernels

pytestmark = pytest.mark.compiler


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASCEND_PERF_CACHE", str(tmp_path))
    return tmp_path / "launches"


def launch(n=300, fill=1.0, **more):
    x = np.arange(n, dtype=np.float32) * fill
    y = np.ones(n, dtype=np.float32)
    out = np.full(n, -1, dtype=np.float32)
    done = ascend_model.simulate(
        model_kernels.add_tail, (-(-n // 128),), {"x": x, "y": y, "out": out, "n": n}, {"BLOCK": 128}, **more
    )
    assert done.status == "ok", done.message
    return done, out


def same(one, two):
    names = (
        "status",
        "message",
        "counts",
        "cycles",
        "bound_cycles",
        "busy",
        "stalls",
        "findings",
        "notes",
        "program_cycles",
        "executed_ops",
        "model_version",
    )
    return all(getattr(one, name) == getattr(two, name) for name in names)


def test_hit_equals_execution(cache, monkeypatch):
    first, out = launch()
    np.testing.assert_array_equal(out, np.arange(300, dtype=np.float32) + 1)
    monkeypatch.setattr(module, "_write", lambda *_: pytest.fail("executed again"))
    again, out = launch()
    assert same(first, again)
    np.testing.assert_array_equal(out, np.arange(300, dtype=np.float32) + 1)
    uncached, _ = launch(cache=False)
    assert same(uncached, again)


@pytest.mark.parametrize("change", [{"fill": 2.0}, {"n": 301}, {"keep_numbers": True}])
def test_anything_else_is_executed(cache, change):
    launch()
    before = len(list(cache.rglob("*")))
    _, out = launch(**change)
    n, fill = change.get("n", 300), change.get("fill", 1.0)
    np.testing.assert_array_equal(out, np.arange(n, dtype=np.float32) * np.float32(fill) + 1)
    assert len(list(cache.rglob("*"))) > before


def test_a_damaged_record_is_executed_again(cache):
    first, _ = launch()
    [record] = [p for p in cache.rglob("*") if p.is_file()]
    for damage in (b"", record.read_bytes()[:40], b"not zlib"):
        record.write_bytes(damage)
        again, out = launch()
        assert same(first, again)
        np.testing.assert_array_equal(out, np.arange(300, dtype=np.float32) + 1)


def test_another_simulator_does_not_read_it(cache, monkeypatch):
    launch()
    monkeypatch.setattr(module, "_instrument", lambda: "another")
    before = len([p for p in cache.rglob("*") if p.is_file()])
    launch()
    assert len([p for p in cache.rglob("*") if p.is_file()]) == before + 1


def test_every_module_that_takes_part_in_executing_decides_a_result():
    folder = Path(module.__file__).parent
    named = set(module.INSTRUMENT)
    for name in named:
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ascend_model":
                whole = [f"ascend_model.{one.name}" for one in node.names] if node.module == "ascend_model" else []
                used = {one.partition(".")[2] for one in (whole or [node.module])}
                # which code there is, and what is kept of results, is judged by their own keys
                assert used <= named | {"compile", "remembered"}, f"{name}.py imports {used}"
