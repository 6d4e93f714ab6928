"""Workers of a test cluster that measure nothing, on machines with something wrong: `FLEET_TEST` of a raylet."""

import os
import time
from dataclasses import replace
from pathlib import Path

from dashboards import fleet_worker
from dashboards.fleet import Outcome
from dashboards.fleet_worker import Facts, Worker

SKEW = 5000.0


class OddWorker(Worker):
    """skewed: its clock is ahead.  lacking: without a compiler.  old: another triton-ascend.  full: no space left
    from the start.  filling: none at its first task.  Anything else: nothing wrong.
    A task ends once there is a file `go` where they work."""

    def __init__(self, name: str, device: str = "") -> None:
        super().__init__(name, device)
        self.wrong = os.environ.get("FLEET_TEST", "")
        if self.wrong == "full":
            fleet_worker.free_bytes = lambda _: 1000

    def clock(self) -> float:
        return time.time() + (SKEW if self.wrong == "skewed" else 0)

    def _facts(self) -> Facts:
        versions = {"triton-ascend": "3.1.0" if self.wrong == "old" else "3.2.0", "ascend-model": "7"}
        compilers = ("1.0.0", "1.2.0") if self.wrong == "lacking" else ("1.1.0", "1.2.0")
        machine = "npu-box" if self.device else "modelled-test"
        return Facts("here", machine, "3.11", versions, compilers, 1 << 40, os.getpid())

    def run(self, task):
        while not Path(self.order.work, "go").exists():
            time.sleep(0.05)
        if self.wrong == "filling":
            fleet_worker.free_bytes = lambda _: 1000
            return super().run(task)
        assert (self.tree / "asv.conf.json").is_file()
        said = self.wrong
        if self.device:
            # held by one task alone, or this fails
            held = Path(self.order.work, f"held-{os.environ['ASCEND_RT_VISIBLE_DEVICES']}")
            held.touch(exist_ok=False)
            time.sleep(0.1)
            held.unlink()
            said = f"{self.device} {os.environ['ASCEND_RT_VISIBLE_DEVICES']}"
        files = ((f"{task.machine}/{task.commit[:8]}-{task.compiler}.json", said.encode()),)
        return replace(Outcome(0.1), files=files)
