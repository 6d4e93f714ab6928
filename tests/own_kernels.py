"""A repository that is not ours: three kernels in three layouts, and what a person writes at init's marks."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

ADD = """import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


def add(x, y):
    assert x.dtype == torch.float32 and y.dtype == x.dtype
    out = torch.empty_like(x)
    n = out.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    add_kernel[grid](x, y, out, n, BLOCK=1024)
    return out
"""

# In a package, with a helper kernel of another file, tuned, and with a block size that a heuristic computes.
REDUCE = """import triton
import triton.language as tl


@triton.jit
def exponentials(values):
    return tl.exp(values - tl.max(values, axis=0))
"""
SOFTMAX = """import torch
import triton
import triton.language as tl

from .reduce import exponentials


@triton.autotune(configs=[triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)], key=["n_cols"])
@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n_cols"])})
@triton.jit
def softmax_kernel(out_ptr, x_ptr, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=cols < n_cols, other=-float("inf"))
    e = exponentials(x)
    tl.store(out_ptr + row * stride + cols, e / tl.sum(e, axis=0), mask=cols < n_cols)


def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(rows,)](out, x, x.stride(0), cols)
    return out
"""

# No wrapper; the grid and the tensors are read from the addresses.
GATHER = """import triton
import triton.language as tl


@triton.jit
def gather_kernel(index_ptr, table_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = tl.load(index_ptr + row)
    cols = tl.arange(0, BLOCK)
    values = tl.load(table_ptr + source * width + cols, mask=cols < width)
    tl.store(out_ptr + row * width + cols, values, mask=cols < width)
"""

FILES = {
    "kernels/vector_add.py": ADD,
    "src/nn/__init__.py": "",
    "src/nn/reduce.py": REDUCE,
    "src/nn/softmax.py": SOFTMAX,
    "gather.py": GATHER,
}

# op -> (how the mark begins, what a person writes in its place)
HAND = {
    "add": [
        ("sizes by name", '{"16k": {"n": 16384}, "ragged": {"n": 5000}}'),
        ("plain torch", "lambda x, y: x + y"),
    ],
    "softmax": [
        ("sizes by name", '{"64x200": {"rows": 64, "cols": 200}}'),
        ("plain torch", "lambda x: torch.softmax(x, -1)"),
    ],
    "gather": [
        ("sizes by name", '{"64 of 256": {"programs": 64, "rows": 256, "width": 100}}'),
        ("plain torch", "lambda index_ptr, table_ptr: table_ptr[index_ptr.long()]"),
    ],
}


def sh(folder: Path, *command: str) -> str:
    """What a command in a folder prints; it has to end with 0."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def perf(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
    """`ascend-perf` in a process of its own, as a user starts it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "dashboards.cli", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def commit(folder: Path, subject: str) -> str:
    """Everything in the folder, as a commit; its hash."""
    sh(folder, "git", "add", "-A")
    sh(folder, "git", "commit", "-qm", subject)
    return sh(folder, "git", "rev-parse", "HEAD")


def repository(folder: Path) -> Path:
    """An empty repository with the kernels in it, none of them committed yet."""
    folder.mkdir()
    sh(folder, "git", "init", "-q", "-b", "main")
    sh(folder, "git", "config", "user.name", "Test")
    sh(folder, "git", "config", "user.email", "test@localhost")
    write(folder)
    return folder


def write(folder: Path) -> None:
    """The three kernels, without anything of ascend-perf."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def by_hand(text: str) -> tuple[str, dict[str, int]]:
    """The benchmarks file with every mark replaced, and the number of lines written for each op."""
    lines, written, op = text.splitlines(), {}, ""
    for at, line in enumerate(lines):
        if line.startswith('        "') and line.endswith('",'):
            op = line.strip(' ",')
        start = line.find("todo(")
        if start < 0 or not op:
            continue
        [replacement] = [new for mark, new in HAND[op] if line[start + 6 :].startswith(mark)]
        assert line.endswith("),")
        lines[at] = line[:start] + replacement + ","
        written[op] = written.get(op, 0) + 1 + replacement.count("\n")
    return "\n".join(lines) + "\n", written
