"""asv environment "host": one commit's kernels on top of everything the host already has.

torch, torch_npu, CANN and the compilers cannot be installed per commit.  So an environment is a bare venv that
sees every site-packages folder of the interpreter that runs asv, and in which only the kernels of the commit
are put (`dashboards.specimen`).  The versions that decide a number become requirements, so that another
compiler or another model is another series.

asv.conf.json: `"plugins": [".dashboards.host_environment"], "environment_type": "host"` (without the leading
dot asv looks inside its own package only and says nothing).
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import itertools
import json
import math
import os
import platform
import shutil
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asv import environment, machine, runner
from asv.console import log

from ascend_model import toolchain

MEASURED_WITH = ("triton-ascend", "ascendnpu-ir", "triton", "torch", "torch_npu")
CANN = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")


def toolchain_versions() -> dict[str, str]:
    """Versions of what turns a kernel into a number on this host."""
    found = {}
    for name in MEASURED_WITH:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for variable in CANN:
        folder = os.environ.get(variable)
        if folder:
            found["cann"] = os.path.basename(os.path.realpath(folder))
            break
    if os.environ.get("ASCEND_KERNELS_DEVICE") == "dry":
        found["device"] = "dry-run"
    if "ascendnpu-ir" in found:
        from ascend_model import MODEL_VERSION

        found["ascend-model"] = MODEL_VERSION
    return found


class HostEnvironment(environment.Environment):
    """A venv that inherits the host and holds one commit's kernels."""

    tool_name = "host"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict) -> None:
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if not self.matches(python):
            raise environment.EnvironmentUnavailable(f"environment `host` runs Python {here} only, not {python}")
        self._python = here
        self._results = os.path.abspath(conf.results_dir)
        self._requirements = {**toolchain_versions(), **{k: v for k, v in requirements.items() if v}}
        super().__init__(conf, here, self._requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        return python in ("same", f"{sys.version_info[0]}.{sys.version_info[1]}")

    def _setup(self) -> None:
        log.info(f"Creating an environment on top of the host for {self.name}")
        venv.EnvBuilder(with_pip=False, symlinks=True, clear=True).create(self._path)
        own = Path(sysconfig.get_path("purelib", vars={"base": self._path, "platbase": self._path}))
        # CANN publishes its modules through PYTHONPATH, which asv takes from every child.
        given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        inherited = [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
        tool = str(Path(__file__).resolve().parent.parent)
        # This suite first: an installed copy, editable ones too, may be another version of it.
        lines = [f"import site; site.addsitedir({p!r})\n" for p in dict.fromkeys([tool, *inherited, *given])]
        # The name sorts behind the environment's own packages, so the commit's kernels win.
        (own / "zz-host.pth").write_text("".join(lines))
        pip = Path(self._path, "bin", "pip")  # asv asks for it before it believes in an environment
        pip.write_text(f'#!/bin/sh\nexec "{self._path}/bin/python" -m pip "$@"\n')
        pip.chmod(0o755)
        for program in ("uv", "git"):  # asv finds programs only inside the environment
            found = shutil.which(program)
            if found:
                os.symlink(found, Path(self._path, "bin", program))

    def run(self, args: list[str], **kwargs: Any) -> Any:
        log.debug(f"Running '{' '.join(args)}' in {self.name}")
        return self.run_executable("python", args, **kwargs)

    def run_executable(self, executable: str, args: list[str], **kwargs: Any) -> Any:
        env = dict(kwargs.pop("env", os.environ))
        env["ASCEND_PERF_RESULTS"] = self._results
        env.setdefault("ASCEND_PERF_CACHE", str(toolchain.cache_dir()))
        env["ASCEND_PERF_MACHINE"] = machine_facts()["machine"]
        compiler = self._requirements.get("ascendnpu-ir")
        if compiler:
            env["ASCEND_PERF_COMPILER"] = compiler
        env.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0" if "torch_npu" not in self._requirements else "1")
        # A fork after cuInit cannot use the device; NVML tells of a device without it.
        env.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        return super().run_executable(executable, args, env=env, **kwargs)


def machine_facts() -> dict[str, str]:
    """Name and facts of this machine for asv.

    A modelled number is the same on every machine, so hosts without a device share one name.  The facts of a
    device host leave out what changes with a kernel patch, which would split its series.
    """
    from ascend_kernels.harness import device

    found = device.current()
    name = os.environ.get("ASCEND_PERF_MACHINE")
    if not found.present:
        name = name or f"modelled-{found.name.lower()}"
        facts = {"os": "any", "arch": "any", "cpu": f"model of {found.name}", "num_cpu": "", "ram": ""}
    else:
        short = "".join(c if c.isalnum() else "-" for c in found.name.lower()).strip("-")
        name = name or f"{platform.node()}-{short}"
        facts = {
            "os": platform.system(), "arch": platform.machine(), "cpu": found.name,
            "num_cpu": str(os.cpu_count()), "ram": "",
        }  # fmt: skip
    return {"machine": name, **facts}


def setup() -> None:
    """Called by asv when it loads the plugin: keep the machine file beside the results, never in the home."""
    place = Path(os.environ.get("ASCEND_PERF_ASV_HOME", ".asv"), "machine.json").absolute()
    facts = machine_facts()
    machine.MachineCollection.get_machine_file_path = staticmethod(lambda: str(place))
    machine.Machine.hardcoded_machine_name = facts["machine"]
    place.parent.mkdir(parents=True, exist_ok=True)
    machine.MachineCollection.save(facts["machine"], facts)
    if not getattr(runner.run_benchmark, "hands_out_prepared", False):
        runner.run_benchmark = handing_out_prepared(runner.run_benchmark)


def handing_out_prepared(run_benchmark: Callable[..., Any]) -> Callable[..., Any]:
    """asv's `run_benchmark`, which starts a process for every number, around one that reads what setup_cache
    already has: a suite's numbers are all taken in one process, and lie in `prepared.json` in its folder.
    Anything that is not in there takes asv's own way."""

    def run(benchmark: dict[str, Any], spawner: Any, profile: bool, **more: Any) -> Any:
        prepared = None if profile or not more.get("cwd") else read_prepared(Path(more["cwd"]), benchmark["name"])
        if prepared is None or not benchmark["params"]:
            return run_benchmark(benchmark, spawner, profile, **more)
        selected = more.get("selected_idx")
        answer = runner.BenchmarkResult([], [], [], 0, "", None)
        words = []
        for i, texts in enumerate(itertools.product(*benchmark["params"])):
            value, error = prepared.get(tuple(ast.literal_eval(text) for text in texts), (math.nan, ""))
            if selected is not None and i not in selected:
                value, error = math.nan, ""
            if error:
                words.append(f"For parameters: {', '.join(texts)}\n{error}")
            sampled = isinstance(value, dict)
            answer.result.append(True if sampled else value)
            answer.samples.append(value["samples"] if sampled else None)
            answer.number.append(value["number"] if sampled else None)
        return answer._replace(errcode=1 if words else 0, stderr="\n\n".join(words))

    run.hands_out_prepared = True  # type: ignore[attr-defined]
    return run


@functools.lru_cache(maxsize=4)
def _prepared_file(place: Path, changed: int) -> dict[str, Any]:
    return json.loads(place.read_text())


def read_prepared(folder: Path, benchmark: str) -> dict[tuple[str, ...], tuple[Any, str]] | None:
    """(case, implementation) -> (value or None, error) of one benchmark, empty for an op that was left out; None
    where setup_cache left nothing or the benchmark is of another kind."""
    place = folder / "prepared.json"
    suite, _, metric = benchmark.rpartition(".track_")
    if not suite.rpartition(".")[2].startswith(("Modelled", "Measured")):
        return None
    try:
        rows = _prepared_file(place, place.stat().st_mtime_ns)["suites"].get(suite, [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    found: dict[tuple[str, ...], tuple[Any, str]] = {}
    for row in rows:
        if row["state"] == "ok":
            found[row["case"], row["impl"]] = row["values"].get(metric, math.nan), ""
        elif row["state"] == "unsupported here":
            found[row["case"], row["impl"]] = math.nan, ""
        else:
            found[row["case"], row["impl"]] = None, f"{row['state']}: {row['reason']}"
    return found
