"""A small repository with one cheap kernel, of which some commits are slower, and one does not build."""

import subprocess
from pathlib import Path

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def kernel(source, target, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    for i in range({rounds}):
        values = tl.load(source + i * BLOCK + lanes, mask=lanes < n)
        tl.store(target + i * BLOCK + lanes, values + {add}, mask=lanes < n)
"""
# Without torch, whose import would be most of the time; it leaves a sidecar and compiled code as the harness does.
BENCH = """
import gzip
import json
import os
import time
from pathlib import Path

import numpy as np

import ascend_model
from ascend_model import toolchain


def record(state, reason, code):
    results, commit = Path(os.environ["ASCEND_PERF_RESULTS"]), os.environ["ASV_COMMIT"]
    versions = {"ascend-model": ascend_model.MODEL_VERSION, "ascendnpu-ir": toolchain.default_version()}
    line = {
        "version": 1, "commit": commit, "suite": "bench_tiny.ModelledShift", "op": "shift", "case": "short",
        "impl": "plain", "role": "op", "state": state, "reason": reason, "code": code.code[:16], "findings": [],
        "notes": [], "versions": versions, "machine": os.environ["ASCEND_PERF_MACHINE"],
        "at": int(time.time() * 1000),
    }
    for folder in ("states", "code"):
        (results / folder).mkdir(exist_ok=True)
    with open(results / "states" / (commit + ".jsonl"), "a") as file:
        file.write(json.dumps(line) + "\\n")
    (results / "code" / (code.code[:16] + ".txt.gz")).write_bytes(gzip.compress(code.linalg.encode(), mtime=0))


class ModelledShift:
    params = (["short"], ["plain"])
    param_names = ("case", "impl")
    timeout = 600

    def track_cycles(self, case, impl):
        from tiny.shift import kernel

        source = np.arange(512, dtype=np.int32)
        arguments = {"source": source, "target": np.zeros_like(source), "n": 64}
        code = ascend_model.compile_kernel(kernel, arguments, {"BLOCK": 64})
        done = ascend_model.simulate_text(code.generic, 1, {name: arguments[name] for name in code.arguments})
        right = np.array_equal(done.outputs["target"][:128], source[:128] + 1)
        record("ok" if right else "wrong result", "" if right else "target is not source + 1", code)
        if not right:
            raise RuntimeError("wrong result")
        return done.cycles

    track_cycles.unit = "cycles (modelled)"
    track_cycles.version = "1"
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
