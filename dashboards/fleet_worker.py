"""One slot of a fleet: a clone, an asv environment and a place for results of its own on some machine.

The commits come as a git bundle, so a machine needs no access to the repository, only this package and the
compilers.  Measuring is `ascend-perf run` in the clone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_model import toolchain
from dashboards import guarded
from dashboards.evaluate import BUILD_SIGNS, own_config, own_paths, why
from dashboards.fleet import Outcome, Task
from dashboards.guarded import end_processes
from dashboards.repository import git
from dashboards.store import free_bytes

REFS = "refs/fleet/"
HIDE_DEVICES = {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": "", "ASCEND_KERNELS_DEVICE": "cpu"}
MAX_BYTES = 1 << 30


class WorkerError(Exception):
    """This machine cannot work; the message says why."""


@dataclass(frozen=True)
class Order:
    """What every slot of a run is told.  `config` lies below the top of the repository; `work` may be empty."""

    run: str
    head: str
    config: str
    cases: str = ""
    ops: str = ""
    bench: tuple[str, ...] = ()
    timeout: float = 3600.0
    min_free: int = 1 << 30
    work: str = ""


@dataclass(frozen=True)
class Facts:
    """A slot's machine.  `versions` decide its numbers; `free` bytes are left where it works."""

    host: str
    machine: str
    python: str
    versions: Mapping[str, str]
    compilers: tuple[str, ...]
    free: int
    pid: int


class Worker:
    """A slot.  `device`: the name of the device it holds, empty for a slot of processor cores."""

    def __init__(self, name: str, device: str = "") -> None:
        self.name, self.device = name, device
        self._lock: Any = None

    def clock(self) -> float:
        """This machine's time, in seconds."""
        return time.time()

    def prepare(self, order: Order, bundle: bytes) -> Facts:
        """A clone of the bundle; raises WorkerError where this machine cannot work."""
        self.order = order
        base = Path(order.work or Path(tempfile.gettempdir(), f"ascend-perf-fleet-{os.getuid()}"))
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            if free_bytes(base) < order.min_free:
                raise WorkerError(_full(base, order.min_free))
            self.work = base / f"{order.run}-{self.name}-{os.getpid()}"
            with open(base / ".lock", "w") as one_at_a_time:
                fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
                clear(base)
                self._lock = _hold(self.work)
            self._clone(bundle)
        except OSError as error:
            raise WorkerError(f"{base}: {error.strerror or error}") from None
        return self._facts()

    def _clone(self, bundle: bytes) -> None:
        tree = self.work / "tree"
        (self.work / "bundle").write_bytes(bundle)
        git(self.work, "init", "--quiet", str(tree.resolve()))
        git(tree, "fetch", "--quiet", str((self.work / "bundle").resolve()), f"{REFS}*:{REFS}*")
        git(tree, "checkout", "--quiet", "--detach", self.order.head)
        (self.work / "bundle").unlink()
        self.tree = tree.resolve()

    def _facts(self) -> Facts:
        code = (
            "import json; from dashboards.host_environment import machine_facts, toolchain_versions; "
            "print(json.dumps([machine_facts()['machine'], toolchain_versions()]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=self._environment(), cwd=self.tree
        )
        if done.returncode:
            raise WorkerError(f"the package does not work here: {why(done.stderr)}")
        machine, versions = json.loads(done.stdout.splitlines()[-1])
        return Facts(
            platform.node(), machine, f"{sys.version_info[0]}.{sys.version_info[1]}", versions,
            tuple(toolchain.available_versions()), free_bytes(self.work), os.getpid(),
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = own_paths(self.tree)
        environment["ASCEND_PERF_CACHE"] = str(toolchain.cache_dir().resolve())
        if not self.device:
            environment |= HIDE_DEVICES
        return environment

    def run(self, task: Task) -> Outcome:
        """Measure one commit; never raises for what a commit or a machine may do."""
        began = time.monotonic()
        try:
            return self._run(task, began)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = f"the disk is full ({self.work})" if full else f"{error.strerror or error}"
            return Outcome(time.monotonic() - began, reason=reason, unfit=full)

    def _run(self, task: Task, began: float) -> Outcome:
        if free_bytes(self.work) < self.order.min_free:
            return Outcome(0.0, reason=_full(self.work, self.order.min_free), unfit=True)
        results = self.work / "out" / "results"
        shutil.rmtree(results.parent, ignore_errors=True)
        results.mkdir(parents=True)
        config = own_config(self.tree, Path(self.order.config), self.work, results)
        command = [
            sys.executable, "-m", "dashboards.cli", "run", task.commit, "--every-commit", "--force", "--quiet",
            "--json", "--config", config.name,
        ]  # fmt: skip
        for option, value in (("compiler", task.compiler), ("cases", self.order.cases), ("ops", self.order.ops)):
            command += [f"--{option}={value}"] if value else []
        command += [f"--bench={one}" for one in self.order.bench]
        code, out, late = self._guarded(command, config.parent)
        seconds = time.monotonic() - began
        log = results.parent / "asv.log"
        said = log.read_text(errors="replace") if log.is_file() else out
        if late:
            return Outcome(seconds, reason=f"no end after {self.order.timeout:.0f} s")
        if not any(results.glob(f"*/{task.commit[:8]}-*.json")):
            full = os.strerror(errno.ENOSPC) in said
            return Outcome(seconds, reason=f"no results, exit code {code}: {why(said)}", unfit=full)
        states = _states(out)
        broken = not states and any(sign in said.lower() for sign in BUILD_SIGNS)
        return Outcome(seconds, tuple(_files(results)), states=states, unbuilt=why(said) if broken else "")

    def _guarded(self, command: list[str], folder: Path) -> tuple[int, str, bool]:
        """Exit code, last words and whether it ran too long; it ends with this process."""
        mark = str(self.work.resolve())
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(
                [sys.executable, "-I", guarded.__file__, mark, *command],
                cwd=folder, env=self._environment(), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
            late = False
            try:
                process.wait(self.order.timeout)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                assert process.stdin is not None
                process.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                end_processes(mark)
            out.seek(0)
            return process.returncode, out.read().decode("utf-8", "replace"), late

    def close(self) -> None:
        """Remove everything of this slot."""
        if self._lock is not None:
            end_processes(str(self.work.resolve()))
            shutil.rmtree(self.work, ignore_errors=True)
            self._lock.close()
            self._lock = None


def _full(folder: Path, wanted: int) -> str:
    return f"the disk is full: {free_bytes(folder) / 2**30:.1f} GiB free in {folder}, {wanted / 2**30:.1f} wanted"


def _hold(folder: Path) -> Any:
    """A new folder with a lock that ends with the process."""
    folder.mkdir()
    file = open(folder / "lock", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def clear(base: Path) -> None:
    """End and remove what slots left that were killed."""
    for lock in base.glob("*/lock"):
        with contextlib.suppress(OSError), open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end_processes(str(lock.parent.resolve()))
            shutil.rmtree(lock.parent, ignore_errors=True)


def _states(out: str) -> dict[str, int]:
    """States of a commit's rows, from the summary of `ascend-perf run`; empty for suites that keep none."""
    try:
        [row] = json.JSONDecoder().raw_decode(out[out.index("{") :])[0]["commits"]
        return {str(state): int(count) for state, count in row["states"].items()}
    except (ValueError, KeyError, TypeError):
        return {}


def _files(results: Path) -> Iterator[tuple[str, bytes]]:
    total = 0
    for path in sorted(results.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            total += path.stat().st_size
            if total > MAX_BYTES:
                raise OSError(errno.EFBIG, "results larger than 1 GiB")
            yield path.relative_to(results).as_posix(), path.read_bytes()


def bundle_of(repo: Path, scratch: Path, head: str, commits: list[str]) -> bytes:
    """Everything that these commits need, as a git bundle; the repository is read and not written."""
    bare = scratch / "bare"
    shutil.rmtree(bare, ignore_errors=True)
    scratch.mkdir(parents=True, exist_ok=True)
    git(repo, "clone", "--quiet", "--bare", "--shared", "--", str(repo.resolve()), str(bare.resolve()))
    lines = "".join(f"create {REFS}{one} {one}\n" for one in dict.fromkeys([head, *commits]))
    subprocess.run(["git", "-C", str(bare), "update-ref", "--stdin"], input=lines.encode(), check=True)
    place = (scratch / "bundle").resolve()
    git(bare, "bundle", "create", "--quiet", str(place), f"--glob={REFS}*")
    shutil.rmtree(bare, ignore_errors=True)
    data = place.read_bytes()
    place.unlink()
    return data
