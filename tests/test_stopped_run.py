"""`ascend-perf run` that is stopped: however it ends, nothing that it started goes on, and nothing of it stays."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import own_kernels
import pytest
from own_kernels import commit, perf, sh

pytest.importorskip("asv")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
TOKEN = "ASCEND_PERF_TEST_TOKEN"


def with_token(token: str) -> list[str]:
    """Command lines of processes that have this token in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{TOKEN}={token}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def until(condition, seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Kernels of which one file never ends being imported."""
    folder = own_kernels.repository(tmp_path_factory.mktemp("stopped") / "repository")
    perf(folder, "init", "--json")
    bench = folder / "benchmarks/bench_kernels.py"
    bench.write_text(own_kernels.by_hand(bench.read_text())[0])
    for file in folder.rglob("*.py"):
        if "@triton.jit" in file.read_text():
            file.write_text(file.read_text() + "\nwhile True:\n    pass\n")
    commit(folder, "kernels")
    return folder


@pytest.mark.parametrize("how", ["ctrl-c", "SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_is_left_of_a_run(folder, tmp_path, how):
    token = secrets.token_hex(8)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), TOKEN: token, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "dashboards.cli", "run", "--compiler", "1.2.0"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        start_new_session=True,
        # Whoever runs the tests in the background of a shell ignores it, and so would the run.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert until(lambda: any("run_server" in one or "forkserver" in one for one in with_token(token)))
        time.sleep(2)
        if how == "ctrl-c":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of the group
        else:
            process.send_signal(getattr(signal, how))
        out, said = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130), (out + said).decode()
        assert how == "SIGKILL" or said.endswith(b"stopped\n")
        assert until(lambda: not with_token(token), 30), with_token(token)
    finally:
        if process.poll() is None:
            process.kill()
    if how != "SIGKILL":
        # A long name is not taken for the temporary folder, since asv makes a socket in it.
        assert list(tmp_path.iterdir()) == []
        assert sh(folder, "git", "status", "--porcelain", "--ignored=no") == ""
