"""What state the device was in while it was measured: clocks, temperature, limits, throttling, other processes.

Read through `nvidia-smi` or `npu-smi`, which every driver brings; what they do not say stays None.  Nothing here
sets anything on the device.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

CLOCK_STEP = 0.015  # a relative change of clock above this moves a time that is to be trusted to 2 %
SECONDS = 20  # an answer of the driver's program that takes longer is none
CANN = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")

# Bits of the active clock event reasons, as NVML defines them.  Idle, application clocks, sync boost and display
# clocks are settings; the rest slow down what is running.
SLOWING = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_QUERY = {
    "name": "name",
    "driver": "driver_version",
    "clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "persistence": "persistence_mode",
    "ecc": "ecc.mode.current",
}
# The field was renamed; an older driver refuses the new name and the whole query with it.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", None)


@dataclass(frozen=True)
class Process:
    """A process that uses the device."""

    pid: int
    name: str
    memory_mib: int | None = None


@dataclass(frozen=True)
class DeviceState:
    """One reading.  clock_mhz: SM clock of a GPU, AI Core clock of an NPU.  slowed: reasons why the clock was held
    down at that moment.  others: processes that are not of this run.  problem: why there is no more."""

    name: str = ""
    driver: str = ""
    toolkit: str = ""
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    persistence: str = ""
    ecc: str = ""
    slowed: tuple[str, ...] = ()
    others: tuple[Process, ...] = ()
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Without what is not known."""
        return {k: v for k, v in asdict(self).items() if v not in (None, "", (), [])}


def read(place: str, module: Any = None) -> DeviceState:
    """The state of the device that this process uses.  place: "cuda", "npu" or "dry".

    module: torch's module of the device; where it can be kept busy, the clocks are read under load, since an idle
    device lowers them.
    """
    if place == "dry":
        return module.state() if module is not None else DeviceState()
    sleep = getattr(module, "_sleep", None)
    if sleep is not None:
        sleep(int(4e8))  # a fifth of a second at 2 GHz, longer than the query
    found = read_gpu() if place == "cuda" else read_npu()
    if sleep is not None:
        module.synchronize()
    return found


def read_gpu(gpu: str | None = None) -> DeviceState:
    """State of one NVIDIA GPU; of the first visible one by default."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return DeviceState(problem="nvidia-smi is not on PATH")
    gpu = gpu or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    words = ""
    for reasons in _REASONS:
        names = [*_QUERY.values(), *([reasons] if reasons else [])]
        done = _ask([program, f"--id={gpu}", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"])
        if isinstance(done, str):
            words = done
            continue
        values = next(csv.reader(done.stdout.splitlines()), [])
        if len(values) == len(names):
            break
        words = "nvidia-smi answered in another form"
    else:
        return DeviceState(problem=words)
    texts = dict(zip([*_QUERY, "reasons"], (v.strip() for v in values)))
    found: dict[str, Any] = {}
    for one in fields(DeviceState):
        if one.name in texts:
            known = not texts[one.name].startswith("[") and texts[one.name] != "N/A"
            numeric = one.name.endswith(("_mhz", "_c", "_w"))
            found[one.name] = (number(texts[one.name]) if numeric else texts[one.name]) if known else None
    found = {k: v for k, v in found.items() if v is not None}
    try:
        bits = int(texts.get("reasons", "0"), 16)
    except ValueError:
        bits = 0
    slowed = tuple(word for bit, word in SLOWING.items() if bits & bit)
    return DeviceState(**found, toolkit=_cuda(), slowed=slowed, others=others(_gpu_processes(program, gpu)))


def _gpu_processes(program: str, gpu: str) -> list[Process]:
    query = "--query-compute-apps=pid,process_name,used_memory"
    done = _ask([program, f"--id={gpu}", query, "--format=csv,noheader,nounits"])
    found = []
    for row in csv.reader([] if isinstance(done, str) else done.stdout.splitlines()):
        if len(row) == 3 and row[0].strip().isdigit():
            memory = number(row[2])
            found.append(Process(int(row[0]), row[1].strip()[:200], None if memory is None else int(memory)))
    return found


def read_npu(npu: str | None = None) -> DeviceState:
    """State of one Ascend NPU; of the first visible one by default.

    The tables of `npu-smi info` and the pairs of `npu-smi info -t common` are read by their words, since columns
    differ between versions."""
    program = shutil.which("npu-smi")
    toolkit = cann()
    if program is None:
        return DeviceState(toolkit=toolkit, problem="npu-smi is not on PATH")
    npu = npu or os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    done = _ask([program, "info"])
    if isinstance(done, str):
        return DeviceState(toolkit=toolkit, problem=done)
    table = done.stdout
    version = re.search(r"Version:\s*([\w.]+)", table)
    name, health, power, temperature = "", "", None, None
    for line in table.splitlines():
        cells = [cell.split() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and len(cells[0]) == 2 and cells[0][0] == npu and len(cells[1]) == 1 and not name:
            name, health = cells[0][1], cells[1][0]
            values = [number(word) for word in cells[2]]
            power, temperature = values[0], values[1] if len(values) > 1 else None
    more = _pairs(_ask([program, "info", "-t", "common", "-i", npu]))
    clock = next((v for k, v in more.items() if re.match(r"aicore\s*curfreq", k)), None)
    clock = clock if clock is not None else next((v for k, v in more.items() if "aicore freq" in k), None)
    return DeviceState(
        name=name,
        driver=version[1] if version else "",
        toolkit=toolkit,
        clock_mhz=clock,
        temperature_c=temperature if temperature is not None else more.get("temperature(c)"),
        power_w=power,
        slowed=() if health in ("", "OK") else (f"health {health}",),
        others=others(_npu_processes(table, npu)),
        problem="" if name else f"npu-smi lists no NPU {npu}",
    )


def _pairs(done: subprocess.CompletedProcess[str] | str) -> dict[str, float]:
    found = {}
    for line in [] if isinstance(done, str) else done.stdout.splitlines():
        key, colon, text = line.rpartition(":")
        value = number(text)
        if colon and value is not None:
            found.setdefault(" ".join(key.lower().split()), value)
    return found


def _npu_processes(table: str, npu: str) -> list[Process]:
    found, at = [], table.find("Process id")
    for line in table[at:].splitlines() if at >= 0 else ():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[0].split()[:1] == [npu] and cells[1].isdigit():
            memory = number(cells[3])
            found.append(Process(int(cells[1]), cells[2][:200], None if memory is None else int(memory)))
    return found


def others(processes: list[Process]) -> tuple[Process, ...]:
    """Those that are not this process or one it descends from.

    In a container the driver numbers processes as the host does: a single one that this system does not know is
    taken for our own.
    """
    own, pid = set(), os.getpid()
    while pid > 1 and pid not in own:
        own.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    rest = [one for one in processes if one.pid not in own]
    if len(processes) == 1 and rest and not Path(f"/proc/{rest[0].pid}").exists():
        return ()
    return tuple(rest)


def marks(before: DeviceState, after: DeviceState) -> tuple[str, ...]:
    """Why a number taken between two readings is not to be trusted alone; empty when there is no reason."""
    found = []
    for field, word in (("clock_mhz", "clock"), ("memory_clock_mhz", "memory clock")):
        old, new = getattr(before, field), getattr(after, field)
        if moved(old, new):
            found.append(f"{word} {old:.0f} -> {new:.0f} MHz")
    if before.power_limit_w and after.power_limit_w and before.power_limit_w != after.power_limit_w:
        found.append(f"power limit {before.power_limit_w:.0f} -> {after.power_limit_w:.0f} W")
    slowed = dict.fromkeys((*before.slowed, *after.slowed))
    if slowed:
        found.append(f"slowed down: {', '.join(slowed)}")
    for one in dict.fromkeys((p.pid, p.name) for p in (*before.others, *after.others)):
        found.append(f"process {one[0]} ({one[1] or 'no name'}) used the device too")
    return tuple(found)


def moved(old: float | None, new: float | None) -> bool:
    """Whether two clocks differ by more than a measurement can ignore."""
    return bool(old and new and abs(new - old) > CLOCK_STEP * old)


def number(text: str) -> float | None:
    """The number a text begins with, or None."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)", text)
    return float(found[1]) if found else None


def cann(environment: Mapping[str, str] | None = None) -> str:
    """Version of the CANN toolkit that is set up, or an empty string."""
    for variable in CANN:
        folder = (os.environ if environment is None else environment).get(variable)
        if folder:
            return os.path.basename(os.path.realpath(folder))
    return ""


def _cuda() -> str:
    import torch

    return str(torch.version.cuda or "")


def _ask(command: list[str]) -> subprocess.CompletedProcess[str] | str:
    """What a program answered, or why it did not, in one sentence."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"{name} gave no answer in {SECONDS} s"
    except OSError as error:
        return f"{name} cannot be run: {error.strerror}"
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        return f"{name}: {said[:200]}"
    return done
