"""Run a command that ends with whoever started it, however that ended.

    python -m dashboards.guarded MARK COMMAND...

The command runs in a session of its own with MARK in its environment.  When this process's standard input
closes, because the starter died or let go, everything that carries the mark is killed: asv leaves compilers and
fork servers behind that no process group holds together.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

VARIABLE = "ASCEND_PERF_MARK"
ENDED = 143  # exit code when the starter was gone


def end_processes(mark: str) -> None:
    """Kill processes that carry this mark in their environment: those that were started under it."""
    wanted = f"{VARIABLE}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def main(arguments: list[str]) -> int:
    """Exit code of the command, 143 when the starter went first."""
    mark, *command = arguments
    environment = {**os.environ, VARIABLE: mark}
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
    sys.exit(main(sys.argv[1:]))
