"""A small repository with one cheap kernel, of which some commits are slower, and one does not build."""

import subprocess
from pathlib import Path

KERNEL = """
import torch
import triton
import triton.language as tl

from ascend_kernels.harness.launch import launch
from ascend_kernels.harness.spec import Case, Op


@triton.jit
def kernel(source, target, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    for i in range({rounds}):
        values = tl.load(source + i * BLOCK + lanes, mask=lanes < n)
        tl.store(target + i * BLOCK + lanes, values + {add}, mask=lanes < n)


def shift(source, target, *, impl="plain", validate=False):
    launch(kernel, (1,), {{"source": source, "target": target, "n": 64}}, {{"BLOCK": 64}})


def reference(source, target, **_):
    target[: 64 * {rounds}] = source[: 64 * {rounds}] + 1


def make(generator):
    source = torch.arange(512, dtype=torch.int32)
    return {{"source": source, "target": torch.zeros_like(source)}}


OPS = {{
    "shift": Op(
        name="shift", family="tiny", call=shift, reference=reference, writes=("target",),
        cases={{"short": Case(make, quick=True)}}, implementations=("plain",),
    )
}}
"""
BENCH = """
from ascend_kernels.harness.suite import Family
from tiny.shift import OPS

FAMILY = Family("tiny", OPS)


def setup_cache():
    return FAMILY.prepare()


globals().update(FAMILY.suites(__name__))
"""
CONFIG = """{
    "version": 1, "project": "tiny", "repo": ".", "branches": ["HEAD"], "dvcs": "git",
    "benchmark_dir": "benchmarks", "env_dir": ".asv/env", "results_dir": ".asv/results", "html_dir": ".asv/html",
    "plugins": [".dashboards.host_environment"], "environment_type": "host", "pythons": ["same"],
    "build_command": [], "uninstall_command": [],
    "install_command": ["in-dir={env_dir} python -m dashboards.specimen {build_dir} {env_dir} tiny"],
    "launch_method": "forkserver", "install_timeout": 120, "default_benchmark_timeout": 600
}
"""
SLOW, WRONG, MISSING = 7, 4, 2


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=T", "-c", "user.email=t@localhost", "-C", str(folder), *arguments],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def specimen(folder: Path, commits: int = 12) -> list[str]:
    """Hashes, oldest first: slower from SLOW on, wrong at WRONG, without its package at MISSING."""
    (folder / "tiny").mkdir(parents=True)
    (folder / "benchmarks").mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "asv.conf.json").write_text(CONFIG)
    (folder / ".gitignore").write_text("/.asv/\n/.asv-*.json\n__pycache__/\n")
    (folder / "benchmarks/__init__.py").write_text("")
    (folder / "benchmarks/bench_tiny.py").write_text(BENCH)
    hashes = []
    for number in range(commits):
        package = folder / "tiny/__init__.py"
        if number == MISSING:
            package.unlink()
        else:
            package.write_text(f"# {number}\n")
        text = KERNEL.format(rounds=4 if number >= SLOW else 2, add=2 if number == WRONG else 1)
        (folder / "tiny/shift.py").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"commit {number}")
        hashes.append(git(folder, "rev-parse", "HEAD"))
    return hashes
