"""Run a command that ends with whoever started it, however that ended.

    python -m dashboards.guarded MARK COMMAND...

The command runs in a session of its own with MARK in its environment.  When this process's standard input
closes, because the starter died or let go, everything that carries the mark is killed: asv leaves compilers and
fork servers behind that no process group holds together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "ASCEND_PERF_MARK"
ENDED = 143  # exit code when the starter was gone


def marked(mark: str) -> str:
    """Value of VARIABLE for what is started under this mark: one that is there already stays, so that whoever
    started us ends that too."""
    return "\n".join(filter(None, (os.environ.get(VARIABLE, ""), mark)))


def end_processes(mark: str) -> None:
    """Kill processes that carry this mark in their environment: those that were started under it."""
    name = f"{VARIABLE}=".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            entries = (process / "environ").read_bytes().split(b"\0")
            marks = next((one[len(name) :] for one in entries if one.startswith(name)), b"").split(b"\n")
            if os.fsencode(mark) in marks and int(process.name) != os.getpid():
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


@contextlib.contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what it started is ended and removed."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: list[str]) -> int:
    """Exit code of the command, 143 when the starter went first."""
    mark, *command = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's, which lets go when it is done
    environment = {**os.environ, VARIABLE: marked(mark)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)

    def watch() -> None:
        sys.stdin.buffer.read()
        end_processes(mark)
        os._exit(ENDED)

    threading.Thread(target=watch, daemon=True).start()
    code = process.wait()
    end_processes(mark)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(ended)  # Python's own end waits for the thread that reads
