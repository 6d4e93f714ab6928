"""A repository that is not ours: three kernels in three layouts, and what a person writes at init's marks."""

from pathlib import Path

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
