"""`ascend-perf doctor`: what of a CPU-only, a GPU and an NPU set-up is here, and what to do about the rest.

Everything is asked for once and put into `Host`; what is right and wrong of it is decided by functions of that
alone.  Nothing on the device is set, and nothing is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = """examples:
  ascend-perf doctor                 every mode: CPU-only model, GPU, NPU
  ascend-perf doctor --mode npu      only the NPU's checklist (docs/npu.md)
  ascend-perf doctor --json          for machines

exit code: 0 when some mode works (with --mode: when that one does), 1 when none does."""

OK, MISSING, WRONG = "ok", "missing", "wrong"
MODES = {"model": "CPU-only: the Ascend compiler and our model", "gpu": "NVIDIA GPU", "npu": "Ascend NPU"}
COMMON = "all"
DISTRIBUTIONS = (
    "torch", "torch_npu", "triton", "triton-ascend", "ascendnpu-ir", "pybind11", "numpy", "ml_dtypes", "xxhash",
    "asv", "asv_runner", "plotly", "rich", "playwright",
)  # fmt: skip
PROGRAMS = ("git", "nvidia-smi", "npu-smi", "compute-sanitizer", "chromium", "chromium-browser", "google-chrome")
SPACE = 1 << 30  # bytes the cache and the results may need
MODEL_PYTHONS = ((3, 10), (3, 11))
FREE_SHARE = 0.9  # of the device's memory, below which somebody else has it
PROBE_SECONDS = 180
DEV = Path("/dev")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.  needed: the mode does not work without it."""

    mode: str
    name: str
    state: str
    found: str
    advice: str = ""
    needed: bool = True


@dataclass(frozen=True)
class Host:
    """Everything the checks look at.  probe: what torch said in a process of its own, or {"error": why}."""

    python: tuple[int, int] = (3, 11)
    distributions: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    compilers: tuple[str, ...] = ()
    compiler_runs: str = ""
    cann: str = ""
    devices: tuple[str, ...] = ()
    cache: str = ""
    cache_writable: bool = True
    free_bytes: int = 0
    probe: Mapping[str, Any] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("--mode", choices=[*MODES], help="only this mode and what all of them need")
    parser.add_argument("--json", action="store_true", help="the checks as JSON")


def run(given: argparse.Namespace) -> int:
    """0 some mode works, or the one asked for; 1 none does."""
    with _waiting("asking torch, drivers and compilers"):
        host = gather()
    checks = examine(host)
    working = modes(checks)
    if given.mode:
        checks = [one for one in checks if one.mode in (COMMON, given.mode)]
    works = given.mode in working if given.mode else bool(working)
    if given.json:
        print(json.dumps({"works": working, "checks": [asdict(one) for one in checks]}, indent=1))
    else:
        show(checks, working, [given.mode] if given.mode else list(MODES))
    return 0 if works else 1


def show(checks: list[Check], working: list[str], wanted: list[str]) -> None:
    """The checks for people, one block a mode."""
    colour = {OK: "green", MISSING: "yellow", WRONG: "red"}
    for mode in (COMMON, *wanted):
        works = "works" if mode in working else "does not work"
        _print(("Needed by all" if mode == COMMON else f"{MODES[mode]}: {works}", "bold"))
        for one in (one for one in checks if one.mode == mode):
            # Only what a mode cannot do without is loud.
            style = colour[one.state] if one.needed or one.state == OK else "dim"
            _print((f"  {one.state:<8}", style), (f"{one.name:<24}{one.found or '-'}", ""))
            if one.advice:
                _print((f"{'':10}{one.advice}", ""))
    _print(("works here: " + (", ".join(working) or "nothing yet; see what is missing above"), ""))


def _print(*parts: tuple[str, str]) -> None:
    """A line of (text, style), in colours where rich is here: it is one of the things that are looked for."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        print("".join(text for text, _ in parts))
    else:
        Console(highlight=False, soft_wrap=True).print(Text.assemble(*parts))


def _waiting(words: str) -> contextlib.AbstractContextManager[Any]:
    try:
        from rich.console import Console
    except ImportError:
        return contextlib.nullcontext()
    return Console(stderr=True).status(words)


def gather() -> Host:
    """Ask this host."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    cache, compilers = Path(), tuple[str, ...]()
    try:
        from ascend_model import toolchain
    except ImportError:
        pass  # a package that ours need is missing, which the checks name
    else:
        cache, compilers = toolchain.cache_dir(), tuple(toolchain.available_versions())
    there = next((folder for folder in (cache, *cache.parents) if folder.is_dir()), Path("/"))
    cann = next((os.environ[v] for v in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH") if os.environ.get(v)), "")
    return Host(
        python=(sys.version_info[0], sys.version_info[1]),
        distributions=versions,
        programs={name: found for name in PROGRAMS if (found := shutil.which(name))},
        environment=dict(os.environ),
        compilers=compilers,
        compiler_runs=_compiler_runs() if compilers else "",
        cann=cann if not cann or Path(cann).is_dir() else f"{cann} (no such folder)",
        devices=tuple(sorted(p.name for p in DEV.glob("davinci[0-9]*"))),
        cache=str(cache),
        cache_writable=_writable(there),
        free_bytes=shutil.disk_usage(there).free,
        probe=ask_torch() if "torch" in versions else {"error": "torch is not installed"},
    )


def _writable(folder: Path) -> bool:
    """Whether a file can be written there, which permissions alone do not tell."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _compiler_runs() -> str:
    """An empty string when the Ascend compiler starts, else why it does not."""
    from ascend_model import toolchain

    try:
        program = toolchain.compiler_bin() / "bishengir-compile"
        done = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (toolchain.ToolchainError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (said[-1][:200] if said else f"exit code {done.returncode}")


def ask_torch() -> dict[str, Any]:
    """Facts from `ascend_kernels.harness.probe`, or {"error": why}."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "ascend_kernels.harness.probe"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"error": f"torch gave no answer in {PROBE_SECONDS} s: the driver or the device hangs"}
    if done.returncode < 0:
        return {"error": f"the process that asked torch was ended by signal {-done.returncode}"}
    try:
        found = json.loads(done.stdout)
        return found if isinstance(found, dict) else {"error": "torch gave another answer than expected"}
    except ValueError:
        said = done.stderr.strip().splitlines()
        return {"error": said[-1][:300] if said else f"exit code {done.returncode}"}


def examine(host: Host) -> list[Check]:
    """Every check, by mode."""
    return [*_common(host), *_model(host), *_gpu(host), *_npu(host)]


def modes(checks: list[Check]) -> list[str]:
    """Modes of which everything that is needed is ok."""
    bad = {one.mode for one in checks if one.needed and one.state != OK}
    return [] if COMMON in bad else [mode for mode in MODES if mode not in bad]


def _checker(mode: str, checks: list[Check]) -> Callable[..., bool]:
    """A function that adds one check: ok when `found` is there and nothing is `wrong` with it."""

    def check(name: str, found: str, advice: str, *, wrong: str = "", needed: bool = True) -> bool:
        state = WRONG if wrong else OK if found else MISSING
        words = ": ".join(filter(None, (found, wrong)))
        checks.append(Check(mode, name, state, words, "" if state == OK else advice, needed))
        return state == OK

    return check


def _common(host: Host) -> list[Check]:
    checks: list[Check] = []
    check = _checker(COMMON, checks)
    versions = host.distributions
    old = "" if host.python >= (3, 10) else "3.10 or newer is needed"
    check("python", ".".join(map(str, host.python)), "Run it with Python 3.11.", wrong=old)
    check("git", host.programs.get("git", ""), "Install git (`apt install git`): commits are read with it.")
    for name in ("torch", "numpy", "ml_dtypes", "xxhash", "asv", "rich"):
        advice = f"`pip install '.[dash]' torch` in the clone brings {name}."
        wrong = _other(versions.get(name, ""), "0.6") if name == "asv" else ""
        check(name, versions.get(name, ""), advice, wrong=wrong)
    free = f"{host.free_bytes / (1 << 30):.1f} GiB free"
    little = "less than 1 GiB" if host.free_bytes < SPACE else ""
    check("disk space", free, "Free some, or set ASCEND_PERF_CACHE to a folder on another disk.", wrong=little)
    locked = "" if host.cache_writable else "cannot be written"
    check("cache folder", host.cache, "Set ASCEND_PERF_CACHE to a folder that can be written.", wrong=locked)
    plotly = versions.get("plotly", "")
    check("plotly", plotly, "`pip install plotly` to build pages here.", needed=False)
    browser = next((host.programs[name] for name in PROGRAMS[4:] if name in host.programs), "")
    check("chromium", browser, "`apt install chromium` to run the tests of the pages.", needed=False)
    return checks


def _other(version: str, wanted: str) -> str:
    return "" if not version or version.startswith(f"{wanted}.") else f"tested with {wanted}"


def _clash(host: Host) -> str:
    """triton-ascend and triton are both the package `triton`; what was installed last has the files."""
    both = {"triton", "triton-ascend"} <= set(host.distributions)
    return "triton-ascend and triton are both installed and overwrite each other's files" if both else ""


def _triton_imports(host: Host) -> str:
    return str(host.probe.get("errors", {}).get("triton", "")) if "error" not in host.probe else ""


CLASH = "`pip uninstall triton triton-ascend`, then install the one you need: one environment takes one of them."


def _model(host: Host) -> list[Check]:
    checks: list[Check] = []
    check = _checker("model", checks)
    wrong = "" if host.python in MODEL_PYTHONS else "triton-ascend has wheels for 3.10 and 3.11 only"
    check("python", ".".join(map(str, host.python)), "Make the environment with Python 3.11.", wrong=wrong)
    ascend = host.distributions.get("triton-ascend", "")
    broken = _clash(host) or _triton_imports(host)
    check(
        "triton-ascend",
        ascend,
        CLASH if ascend and broken else "`pip install triton-ascend==3.2.0`.",
        wrong=broken,
    )
    check("ascendnpu-ir", ", ".join(host.compilers), "`pip install ascendnpu-ir==1.2.0`.")
    if host.compilers:
        words = "Install its wheel again; it needs x86-64 or aarch64 Linux with glibc."
        check("bishengir-compile", "starts" if not host.compiler_runs else "", words, wrong=host.compiler_runs)
    check("pybind11", host.distributions.get("pybind11", ""), "`pip install pybind11`: triton-ascend imports it.")
    return checks


def _device(host: Host, mode: str, kind: str, check: Callable[..., bool]) -> None:
    """What both kinds of device share, from torch's own words."""
    probe = host.probe
    errors = probe.get("errors", {})
    given = host.environment.get("ASCEND_KERNELS_DEVICE", "")
    other = f"ASCEND_KERNELS_DEVICE={given}" if given and given != kind else ""
    here = probe.get("kind") == kind
    if "error" in probe:
        check("device in torch", "", f"`python -c 'import torch'` has to end well; it says: {probe['error']}.")
        return
    name = str((probe.get("device") or {}).get("name", "")) if here else ""
    failed = str(errors.get("device", "") or errors.get("kind", "")) if here or errors.get("kind") else ""
    advice = (
        "Unset ASCEND_KERNELS_DEVICE."
        if other
        else f"`python -c 'import torch; print(torch.{kind}.is_available())'` has to say True: driver, toolkit, "
        "container access to the device, and torch's build have to fit."
    )
    if not check("device in torch", name, advice, wrong=other or failed):
        return
    unit = "vector cores" if kind == "npu" else "multiprocessors"
    cores = probe["device"].get("cores", 0)
    check(unit, str(cores) if cores else "", "Update torch_npu: plans need the number of cores.")
    advice = "A first addition on the device fails: look at the driver's log (dmesg)."
    wrong = str(errors.get("adds", "")) or ("" if probe.get("adds") else "1 + 1 is not 2")
    check("runs a kernel", "yes", advice, wrong=wrong)
    advice = "Update the driver and torch's module of the device: without events there is no device time."
    check("timing events", "yes" if probe.get("events") else "", advice, wrong=str(errors.get("events", "")))
    state = probe.get("state", {})
    others = state.get("others", [])
    words = ", ".join(f"{one.get('pid')} ({one.get('name')})" for one in others)
    advice = "Wait for them or take another device (CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES)."
    check("no other process", "none seen" if not words else "", advice, wrong=words, needed=False)
    memory = probe.get("memory") or []
    if len(memory) == 2 and memory[1]:
        full = "" if memory[0] >= FREE_SHARE * memory[1] else "somebody holds the rest"
        check("free memory", f"{memory[0] / memory[1]:.0%}", advice, wrong=full, needed=False)
    slowed = ", ".join(state.get("slowed", []))
    clock = f"{state['clock_mhz']:.0f} MHz" if state.get("clock_mhz") else ""
    advice = "Without the clock a run that was slowed down cannot be marked; look for the driver's own program."
    if slowed:
        advice = "Let the device cool down, or raise its limit: times taken now are those of a slowed device."
    check("clock", clock, advice, wrong=slowed, needed=False)


def _gpu(host: Host) -> list[Check]:
    checks: list[Check] = []
    check = _checker("gpu", checks)
    state = host.probe.get("state", {}) if host.probe.get("kind") == "cuda" else {}
    driver = str(state.get("driver", "")) or host.programs.get("nvidia-smi", "")
    check("driver (nvidia-smi)", driver, "Install NVIDIA's driver; in a container start it with the GPU.")
    cuda = str(host.probe.get("cuda") or "")
    check("torch built for CUDA", cuda, "This torch is a CPU build: install torch from PyTorch's CUDA index.")
    upstream = host.distributions.get("triton", "")
    broken = _clash(host) or (_triton_imports(host) if upstream else "")
    advice = CLASH if broken else "`pip install triton`: it comes with torch's CUDA build on Linux."
    if "triton-ascend" in host.distributions and not upstream:
        advice = "triton-ascend takes triton's place here and has no code for GPUs: use another environment."
    check("triton", upstream, advice, wrong=broken)
    _device(host, "gpu", "cuda", check)
    if state:
        mode = str(state.get("persistence", ""))
        off = "off: the first calls after a pause are slow" if mode.lower() == "disabled" else ""
        check(
            "persistence mode", mode, "An administrator can set it: `nvidia-smi -pm 1`.", wrong=off, needed=False
        )
        check(
            "ECC",
            str(state.get("ecc", "")),
            "Not reported; it moves bandwidth, so keep it the same.",
            needed=False,
        )
    sanitizer = host.programs.get("compute-sanitizer", "")
    check(
        "compute-sanitizer", sanitizer, "Comes with the CUDA toolkit; tools/gpu_sanitize.py uses it.", needed=False
    )
    return checks


def _npu(host: Host) -> list[Check]:
    checks: list[Check] = []
    check = _checker("npu", checks)
    versions = host.distributions
    state = host.probe.get("state", {}) if host.probe.get("kind") == "npu" else {}
    check("driver (npu-smi)", str(state.get("driver", "")) or host.programs.get("npu-smi", ""),
          "Install the Ascend driver and firmware; in a container mount it and /dev/davinci*.")  # fmt: skip
    words = "Give the container the devices: --device /dev/davinci0 --device /dev/davinci_manager and their kin."
    check("/dev/davinci*", ", ".join(host.devices), words)
    nowhere = "names no folder" if host.cann.endswith("(no such folder)") else ""
    advice = "Source CANN's set_env.sh (`source /usr/local/Ascend/ascend-toolkit/set_env.sh`)."
    check("CANN toolkit", host.cann, advice, wrong=nowhere)
    npu, torch = versions.get("torch_npu", ""), versions.get("torch", "")
    apart = ""
    if npu and torch and _minor(npu) != _minor(torch):
        apart = f"made for torch {_minor(npu)}, torch {torch} is installed"
    check(
        "torch_npu",
        npu,
        f"`pip install torch_npu` of the release for torch {_minor(torch) or '2.x'}.",
        wrong=apart,
    )
    loading = host.environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "")
    off = "torch_npu is not loaded with torch" if loading == "0" else ""
    advice = "`unset TORCH_DEVICE_BACKEND_AUTOLOAD` (0 is right only on machines without an NPU)."
    check("backend autoload", loading or "not set, so on", advice, wrong=off)
    ascend = versions.get("triton-ascend", "")
    broken = _clash(host) or (_triton_imports(host) if ascend else "")
    check("triton-ascend", ascend, CLASH if broken else "`pip install triton-ascend==3.2.0`.", wrong=broken)
    advice = "`pip install ascendnpu-ir==1.2.0`, so that changes are explained."
    check("ascendnpu-ir", ", ".join(host.compilers), advice, needed=False)
    _device(host, "npu", "npu", check)
    if host.probe.get("kind") == "npu":
        failed = str(host.probe.get("errors", {}).get("profiler", ""))
        advice = "Update torch_npu; without its profiler there are times from events only."
        found = "yes" if host.probe.get("profiler") else ""
        check("profiler", found, advice, wrong=failed, needed=False)
    return checks


def _minor(version: str) -> str:
    """`2.7` of `2.7.1.post2+cpu`."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else ""
