"""What a launch fills in: defaults, heuristics, an only configuration; and importing without a device."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from ascend_model import simulate
from ascend_model.compile import completed, wrappers
from dashboards.cli import main
from tests.outside_kernels import launching
from tests.outside_kernels.rows import softmax

pytestmark = pytest.mark.compiler
AUTOTUNED = """
import triton, triton.language as tl
CORES = triton.runtime.driver.active.utils.get_device_properties(0)["num_vectorcore"]

@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def double(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, ADD: tl.constexpr = 1):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2 + ADD, mask=i < n)
"""


def test_defaults_of_the_signature_are_filled_in_in_order():
    args, constants = completed(launching.activation, {"x_ptr": 1, "out_ptr": 2, "n": 3}, {})
    assert list(args.items()) == [("x_ptr", 1), ("out_ptr", 2), ("n", 3), ("bias_ptr", None)]
    assert constants == {"BLOCK": 128, "KIND": "relu"}
    args, constants = completed(launching.activation, {"x_ptr": 1, "out_ptr": 2, "n": 3}, {"KIND": "relu2"})
    assert constants == {"BLOCK": 128, "KIND": "relu2"}


@pytest.mark.parametrize(("n", "even"), [(256, True), (200, False)])
def test_heuristics_are_computed_unless_they_are_given(n, even):
    _, constants = completed(launching.heuristic, {"x_ptr": 1, "out_ptr": 2, "n": n}, {"BLOCK": 128})
    assert constants == {"BLOCK": 128, "EVEN": even}
    _, constants = completed(launching.heuristic, {"n": n}, {"BLOCK": 128, "EVEN": not even})
    assert constants["EVEN"] is not even


def test_an_autotuned_kernel_needs_a_configuration():
    with pytest.raises(ValueError, match=r"autotuned.*BLOCK=128 \| BLOCK=256"):
        completed(launching.autotuned, {"n": 1}, {})
    assert completed(launching.autotuned, {"n": 1}, {"BLOCK": 256})[1] == {"BLOCK": 256}


def test_a_plain_kernel_is_left_as_it_is():
    assert list(wrappers(softmax)) == []
    assert completed(softmax, {"cols": 3}, {"BLOCK": 4}) == ({"cols": 3}, {"BLOCK": 4})


def test_positional_arguments_leave_out_what_heuristics_give():
    x = np.arange(200, dtype=np.float32)
    out = np.zeros_like(x)
    done = simulate(launching.heuristic, 2, [x, out, 200], {"BLOCK": 128})
    assert done.status == "ok"
    assert np.array_equal(out, x * 2)
    out = torch.zeros(200)
    assert simulate(launching.activation, 2, [torch.ones(200), out, 200]).status == "ok"
    assert bool((out == 1).all())


def test_the_command_takes_an_autotuned_kernel_on_a_machine_without_a_device(tmp_path):
    """In a process of its own, where nothing put a driver in place before."""
    file = tmp_path / "kernels.py"
    file.write_text(AUTOTUNED)
    base = [sys.executable, "-m", "dashboards.cli", "model", f"{file}:double", "--arg", "x=f32[200]", "--arg",
            "out=f32[200]", "--arg", "n=200", "--grid", "2"]  # fmt: skip
    done = subprocess.run([*base, "--const", "BLOCK=128", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"status": "ok"' in done.stdout
    done = subprocess.run(base, capture_output=True, text=True)
    assert done.returncode == 4
    assert "--const BLOCK=64|128" in done.stderr


def test_an_unsigned_argument_of_the_command(tmp_path, capsys):
    file = tmp_path / "kernels.py"
    file.write_text(AUTOTUNED.replace("double", "twice"))
    words = ["model", f"{file}:twice", "--arg", "x=u32[64]", "--arg", "out=u32[64]", "--arg", "n=64", "--const",
             "BLOCK=64", "--json"]  # fmt: skip
    assert main(words) == 0
    assert '"cycles"' in capsys.readouterr().out
