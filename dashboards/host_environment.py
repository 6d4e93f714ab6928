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
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asv import benchmarks, environment, machine, results, runner, util
from asv.console import log

from ascend_model import toolchain
from dashboards.series import ABSENT, NOT_RUN, SILENT_STATES, Series

# Stands, by being this very object, for a number that this run did not work on; asv takes it for skipped.
LEFT_OUT = float("nan")
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
    if getattr(runner.run_benchmark, "hands_out_prepared", False):
        return
    runner.run_benchmark = handing_out_prepared(runner.run_benchmark)
    results.Results.add_result = adding_to_what_is_there(results.Results.add_result)
    results.Results.save = saving_at_once(results.Results.save)
    benchmarks.Benchmarks.discover = classmethod(finding_what_is_asked(benchmarks.Benchmarks.discover.__func__))


def handing_out_prepared(run_benchmark: Callable[..., Any]) -> Callable[..., Any]:
    """asv's `run_benchmark`, which starts a process for every number, around one that reads what setup_cache
    already has: a suite's numbers are all taken in one process, and lie in `prepared.json` in its folder.
    Anything that is not in there takes asv's own way."""

    def run(benchmark: dict[str, Any], spawner: Any, profile: bool, **more: Any) -> Any:
        folder = None if profile or not more.get("cwd") else Path(more["cwd"])
        prepared = read_prepared(folder, benchmark["name"]) if folder else None
        selected = more.get("selected_idx")
        if folder is None or prepared is None or not benchmark["params"]:
            answer = run_benchmark(benchmark, spawner, profile, **more)
            if selected is not None and isinstance(answer, runner.BenchmarkResult):
                left = [one if i in selected else LEFT_OUT for i, one in enumerate(answer.result)]
                answer = answer._replace(result=left)
            return answer
        answer = runner.BenchmarkResult([], [], [], 0, "", None)
        words, absent = [], []
        for i, texts in enumerate(itertools.product(*benchmark["params"])):
            key = tuple(ast.literal_eval(text) for text in texts)
            value, error = prepared.get(key, (LEFT_OUT, ""))
            if key not in prepared:
                absent.append(key)
            if selected is not None and i not in selected:
                error = ""  # its value is taken as well, since it is there, but nobody asked how it went
            if error:
                words.append(f"For parameters: {', '.join(texts)}\n{error}")
            sampled = isinstance(value, dict)
            answer.result.append(True if sampled else value)
            answer.samples.append(value["samples"] if sampled else None)
            answer.number.append(value["number"] if sampled else None)
        record_absent(folder, benchmark["name"].rpartition(".")[0], absent)
        return answer._replace(errcode=1 if words else 0, stderr="\n\n".join(words))

    run.hands_out_prepared = True  # type: ignore[attr-defined]
    return run


def adding_to_what_is_there(add_result: Callable[..., None]) -> Callable[..., None]:
    """asv's `Results.add_result`, which replaces all that is known of a benchmark, around one that replaces what
    this run worked on: other cases, and parameters that were left out, keep what they had."""

    def add(self: Any, benchmark: dict[str, Any], result: Any, *, selected_idx: Any = None, **more: Any) -> None:
        name, axes = benchmark["name"], benchmark["params"]
        known = bool(axes) and name in self.get_result_keys({name: benchmark})
        before = self.get_result_params(name) if known else []
        if len(before) != len(axes) or not known:
            add_result(self, benchmark, result, selected_idx=selected_idx, **more)
            return
        failed = all(one is None for one in result.result)
        new = {key: i for i, key in enumerate(itertools.product(*axes))}
        values = self.get_result_value(name, before)
        had = {key for key, one in zip(itertools.product(*before), values) if one is None or one == one}
        kept = [{key[at] for key in had} for at in range(len(axes))]
        wide = [
            [*axis, *(one for one in old if one not in axis and one in some)]
            for axis, old, some in zip(axes, before, kept)
        ]
        nothing = (LEFT_OUT, None, None)
        columns: list[list[Any]] = [[], [], []]
        taken = set()
        for place, key in enumerate(itertools.product(*wide)):
            i = new.get(key)
            cells = nothing if i is None else (result.result[i], result.samples[i], result.number[i])
            if cells[0] is LEFT_OUT or (failed and selected_idx is not None and i not in selected_idx):
                cells = nothing
            if cells is not nothing or key not in had:
                taken.add(place)
            for column, cell in zip(columns, cells):
                column.append(cell)
        widened = result._replace(result=columns[0], samples=columns[1], number=columns[2])
        add_result(self, {**benchmark, "params": wide}, widened, selected_idx=taken, **more)

    return add


def saving_at_once(save: Callable[..., None]) -> Callable[..., None]:
    """asv's `Results.save`, which writes over a file piece by piece, around one that puts a whole file in its
    place: a run that is killed leaves what was there."""

    def saved(self: Any, result_dir: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            save(self, folder)
            for path in Path(folder).rglob("*.json"):
                place = Path(result_dir) / path.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                part = place.with_name(f".{place.name}.{os.getpid()}.part")
                part.write_bytes(path.read_bytes())
                os.replace(part, place)

    return saved


def finding_what_is_asked(discover: Callable[..., Any]) -> Callable[..., Any]:
    """asv's `Benchmarks.discover`, without the benchmarks of ops that ASCEND_PERF_OPS leaves out, so that asv
    does not touch their results."""

    def found(cls: Any, *arguments: Any, **named: Any) -> Any:
        known = discover(cls, *arguments, **named)
        ops = [one for one in os.environ.get("ASCEND_PERF_OPS", "").split(",") if one]
        return known.filter_out(left_out(known, ops, os.environ.get("ASCEND_PERF_KIND", "")))

    return found


def left_out(known: Any, ops: Sequence[str], kind: str = "") -> set[str]:
    """Names of asv's benchmarks `known` that are of none of `ops`, or not of the `kind`, Modelled or Measured;
    none where nothing is asked for in particular.  util.UserError where an op is not among them."""
    every = {name: Series.named(name) for name in known._all_benchmarks}
    there = {_letters(one.op) for one in every.values()}
    unknown = [one for one in ops if _letters(one) not in there]
    if unknown:
        names = ", ".join(sorted({one.op for one in every.values()}))
        raise util.UserError(f"no op is named {', '.join(unknown)}; there are {names}")
    asked = {_letters(one) for one in ops}
    return {
        name
        for name, one in every.items()
        if (asked and _letters(one.op) not in asked)
        or (kind and not one.suite.rpartition(".")[2].startswith(kind))
    }


def _letters(op: str) -> str:
    """An op's name as its class tells it: which of its letters were parted by `_` is lost there."""
    return op.replace("_", "").lower()


_ABSENT: set[tuple[str, str]] = set()


def record_absent(folder: Path, suite: str, absent: Sequence[tuple[str, ...]]) -> None:
    """Lines in the sidecar for the parameters of a suite that the measured commit does not have, once a commit:
    without them they would pass for not measured yet."""
    if not absent or os.environ.get("ASCEND_PERF_CASE") or os.environ.get("ASCEND_PERF_IMPL"):
        return
    place = folder / "prepared.json"
    head = _prepared_file(place, place.stat().st_mtime_ns).get("run") or {}
    if not head.get("results") or (head["commit"], f"{folder} {suite}") in _ABSENT:
        return
    _ABSENT.add((head["commit"], f"{folder} {suite}"))
    op = Series.of_suite(suite).op
    lines = [
        json.dumps(
            {
                "version": 1, "commit": head["commit"], "suite": suite, "op": op, "case": case, "impl": impl,
                "role": "", "pattern": "", "state": NOT_RUN, "reason": ABSENT, "code": "", "findings": [],
                "notes": [], "pipes": {}, "device": {}, "again": {}, "versions": head["versions"],
                "machine": head["machine"], "at": int(time.time() * 1000),
            }
        )
        for case, impl in absent
    ]  # fmt: skip
    states = Path(head["results"], "states", f"{head['commit']}.jsonl")
    states.parent.mkdir(parents=True, exist_ok=True)
    with open(states, "ab", buffering=0) as file:
        file.write("".join(line + "\n" for line in lines).encode())


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
        elif row["state"] in SILENT_STATES:
            found[row["case"], row["impl"]] = math.nan, ""
        else:
            found[row["case"], row["impl"]] = None, f"{row['state']}: {row['reason']}"
    return found
