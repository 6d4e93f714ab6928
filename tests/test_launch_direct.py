"""Launches of compiled kernels on device tensors go straight to the kernel, and only those."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ascend_kernels.harness import device, interpreter, launch
from ascend_kernels.harness.spec import PlanError

ROOT = Path(__file__).resolve().parent.parent
ARGS = {"n": 3, "x": torch.empty(4, device="meta"), "y": None}


class JITFunction:
    """Stands for triton's: says what it was called with."""

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.calls.append((grid, args, options))


class InterpretedFunction(JITFunction):
    pass


@pytest.fixture
def prepared(monkeypatch):
    """What is asked or prepared for a launch on the CPU, by name."""
    seen = []
    for module, name in ((device, "kind"), (interpreter, "mend")):
        was = getattr(module, name)
        monkeypatch.setattr(module, name, lambda name=name, was=was: seen.append(name) or was())
    return seen


def test_nothing_is_asked_for_a_compiled_kernel_on_device_tensors(prepared):
    kernel = JITFunction()
    launch.launch(kernel, [2, 1], ARGS, {"BLOCK": 32}, num_warps=4)
    launch.launch(kernel, (0,), ARGS)
    assert kernel.calls == [((2, 1), (3, ARGS["x"], None), {"BLOCK": 32, "num_warps": 4})]
    assert not prepared


@pytest.mark.parametrize("kernel", [JITFunction, InterpretedFunction])
def test_cpu_tensors_and_interpreted_kernels_are_prepared_for(kernel, prepared, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    made = kernel()
    place = "cpu" if kernel is JITFunction else "meta"
    launch.launch(made, (2,), {"x": torch.empty(4, device=place)})
    assert len(made.calls) == 1 and "mend" in prepared


def test_compiled_kernels_on_cpu_tensors_are_refused_without_a_device(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("ASCEND_KERNELS_DEVICE", "cpu")
    for args in ({"x": torch.empty(4)}, {"n": 3}):
        with pytest.raises(RuntimeError, match="import ascend_kernels first"):
            launch.launch(JITFunction(), (2,), args)


def test_runners_and_records_see_launches_on_device_tensors():
    kernel, seen = JITFunction(), []
    with launch.run_with(seen.append):
        launch.launch(kernel, (2,), ARGS, {"BLOCK": 32}, num_warps=4)
    assert not kernel.calls
    [one] = seen
    assert (one.kernel, one.grid, one.args, one.constants) == (kernel, (2,), ARGS, {"BLOCK": 32})
    assert one.args is not ARGS and one.options == {"num_warps": 4}
    with launch.recorded() as recorded:
        launch.launch(kernel, (2,), ARGS)
    assert len(recorded) == 1 and len(kernel.calls) == 1


def test_a_grid_above_the_limit_is_refused_on_device_tensors():
    kernel = JITFunction()
    kernel.__name__ = "copy"
    with pytest.raises(PlanError, match="copy: a grid of 65536 programs"):
        launch.launch(kernel, (65536,), ARGS)
    assert not kernel.calls


def test_every_op_has_a_host_time():
    """`benchmarks.bench_host` reaches a launch of every op without a GPU."""
    from ascend_kernels.registry import OPS
    from benchmarks import bench_host

    command = [sys.executable, "-m", "benchmarks.bench_host", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=True
    )
    rows = json.loads(done.stdout)
    assert {row.split()[0] for row in rows} == set(OPS) - set(bench_host.LEFT_OUT)
    assert all(whole > 0 and bare > 0 for whole, bare in rows.values())
