"""A Triton kernel to the Ascend compiler's last textual form, without an NPU.

Triton source -> TTIR -> Linalg (triton-ascend, in a worker process) -> HIVM (bishengir-compile), stopped
just before convert-hivm-to-std, where UB addresses, double buffers, flags and barriers are final and the
operations are still typed.  The last step to a binary (hivmc) belongs to CANN and is not needed: success means
that the wanted text is there and the compiler printed no error but the one about the missing hivmc.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gzip
import hashlib
import inspect
import json
import multiprocessing.util
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from . import toolchain
from .lower import known_target
from .source import escaped, line_of, unescaped

OK = "ok"
FRONTEND_ERROR = "frontend error"  # triton refused the source
ADAPTER_CRASH = "adapter crash"  # triton-adapter-opt died on it
UB_OVERFLOW = "ub overflow"  # the tiles do not fit the unified buffer
COMPILE_FAILED = "compile failed"  # bishengir-compile gave an error of another kind
TIMED_OUT = "timed out"

FORMAT = 2  # of the cached records; a new one ignores the old
LEVEL = 3  # of their compression; the highest takes seven times as long for a fifth less
INSIDE = "ASCEND_PERF_LOWERING"  # set in the process that lowers
STOP = "convert-hivm-to-std"
TIMEOUT = 120.0  # seconds for one program of the compiler
FLAGS = (
    "--enable-auto-multi-buffer=true",
    "--enable-auto-bind-sub-block=true",
    "--enable-hfusion-compile=true",
    "--enable-hivm-compile=true",
    "--enable-triton-kernel-compile=true",
)
DTYPES = {
    "bool": "i1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
}  # fmt: skip

LOCATION_LINE = re.compile(r"^#loc\d* = .*\n?", re.M)
LOCATION_USE = re.compile(r' loc\((?:[^()"]|"(?:[^"\\]|\\.)*"|\((?:[^()"]|"(?:[^"\\]|\\.)*"|\([^()]*\))*\))*\)')
LOCATION_FILE = re.compile(r'(loc\(")((?:[^"\\]|\\.)*)(")')
LOCATION_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
DUMP_HEADER = re.compile(r"\A// -----// IR Dump Before .*\n")
TELLING = re.compile(r"error:|[Aa]ssert|UNREACHABLE|LLVM ERROR|encountered|unsupported operation|dyn_cast|Error: ")
HIVMC = re.compile(r"hivmc|Failed to run BiShengIR pipeline|BiShengIR pipeline")


@dataclass(frozen=True)
class Compiled:
    """What the Ascend compiler made of one kernel, or why it made nothing.

    status:        "ok", or one of the failure classes of this module
    message:       the compiler's own words when it failed
    arguments:     names of the run-time arguments, in the order of the compiled function (an argument equal
                   to 1 becomes a constant, as at a real launch)
    linalg:        text handed to bishengir-compile, with source locations
    generic:       the last form, in MLIR's generic syntax (what `parse` reads)
    notes:         what the compiler said beside success, such as a fall-back without double buffering
    code:          sha256 of the Linalg text without locations, options and compiler version: equal codes mean
                   equal programs
    """

    status: str
    message: str
    kernel: str
    target: str
    compiler: str
    triton_ascend: str
    arguments: tuple[str, ...] = ()
    linalg: str = ""
    generic: str = ""
    notes: tuple[str, ...] = ()
    code: str = ""

    @cached_property
    def hivm(self) -> str:
        """The last form as people read it; "" without one, or where its compiler is not on this machine."""
        with contextlib.suppress(toolchain.ToolchainError, OSError, subprocess.TimeoutExpired):
            return _printed(self.generic, self.compiler) if self.generic else ""
        return ""


def compile_kernel(
    kernel: Any,
    args: Mapping[str, Any],
    constants: Mapping[str, Any] | None = None,
    *,
    target: str = "Ascend910B1",
    compiler: str | None = None,
    options: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
    cache: bool = True,
) -> Compiled:
    """Compile `kernel` for `target` as one launch with these arguments would.

    kernel:    a `@triton.jit` function that can be imported from its file (also in interpreter mode)
    args:      name -> tensor (torch or numpy), int, float, bool or None; only dtype, alignment and, for integers,
               the value classes 1 / multiple of 16 matter
    constants: name -> value of every `tl.constexpr` argument without a default, except those of
               `@triton.heuristics`
    compiler:  ascendnpu-ir version, default `toolchain.default_version()`
    options:   launch options triton-ascend knows (multibuffer, ...)
    timeout:   seconds each of the two stages may take

    Raises TypeError for an argument it cannot describe, ValueError for a target that is not in `lower.TARGETS` and
    ToolchainError when the compiler is missing; every failure of the compilation itself is a status.
    """
    known_target(target)
    version = compiler or toolchain.default_version()
    toolchain.compiler_bin(version)
    args, constants = completed(kernel, args, constants or {})
    check_names(kernel, args, constants)
    request = describe(kernel, args, constants, target, options or {})
    name = request["qualname"].rpartition(".")[2]
    made = Compiled(OK, "", name, target, version, toolchain.triton_ascend_version() or "")
    request["cache"] = str(toolchain.cache_dir() / "lowered") if cache else ""
    answer = WORKER.ask(request, timeout)
    if "error" in answer:
        text = shorten_paths(answer["message"], request["path"])
        # the worker puts what triton refused first itself
        words = _first_words(text if answer["error"] == "frontend error" else _telling(text))
        return dataclasses.replace(made, status=answer["error"], message=words)
    linalg = portable_locations(answer["linalg"], request["path"])
    flags = [f"--target={target}", *FLAGS]
    bare = strip_locations(linalg)
    code = _digest([bare, *flags, version])
    made = dataclasses.replace(made, linalg=linalg, code=code, arguments=tuple(answer["arguments"]))
    record = toolchain.cache_dir() / "compiled" / code[:2] / f"{_digest([code, linalg, str(FORMAT)])}.json.gz"
    if cache:
        kept = _read(record)
        if kept is not None:
            _remember(made, record)
            return dataclasses.replace(made, **kept)
    kept = run_compiler(linalg, flags, version, timeout)
    if cache and kept["status"] != TIMED_OUT:
        _write(record, kept)
        _remember(made, record)
    return dataclasses.replace(made, **kept)


def wrappers(kernel: Any) -> Iterator[Any]:
    """The decorators around a jitted function, outermost first."""
    while hasattr(kernel, "fn") and not inspect.isfunction(kernel.fn):
        yield kernel
        kernel = kernel.fn


def parameters(kernel: Any) -> dict[str, inspect.Parameter]:
    """The kernel's own parameters, in order."""
    function = kernel
    while hasattr(function, "fn"):
        function = function.fn
    return dict(inspect.signature(function).parameters)


def is_constexpr(parameter: inspect.Parameter) -> bool:
    return "constexpr" in str(parameter.annotation)


def heuristic_names(kernel: Any) -> list[str]:
    """Arguments whose values `@triton.heuristics` computes."""
    return [name for one in wrappers(kernel) for name in getattr(one, "values", ())]


def completed(
    kernel: Any, args: Mapping[str, Any], constants: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments and constants of a launch, with what a launch fills in: defaults of the signature, the values of
    `@triton.heuristics`, and the constants of an autotuned kernel's only configuration.

    Raises ValueError for an autotuned kernel of whose configurations none is named: which one is best is not known
    without measuring, and what is counted must be what was asked for.
    """
    named, chosen = dict(args), dict(constants)
    for one in wrappers(kernel):
        for name, rule in getattr(one, "values", {}).items():
            if name not in chosen:
                chosen[name] = rule({**named, **chosen})
        forms = [dict(config.kwargs) for config in getattr(one, "configs", ())]
        unset = {name for form in forms for name in form} - chosen.keys() - named.keys()
        if unset and len(forms) == 1:
            chosen.update({name: forms[0][name] for name in unset})
        elif unset:
            shown = " | ".join(", ".join(f"{k}={v}" for k, v in form.items()) for form in forms[:8])
            raise ValueError(f"the kernel is autotuned: name the constants of one configuration: {shown}")
    own = parameters(kernel)
    left = {
        name: one.default
        for name, one in own.items()
        if name not in named and name not in chosen and one.default is not one.empty
    }
    chosen.update({name: value for name, value in left.items() if is_constexpr(own[name])})
    named.update({name: value for name, value in left.items() if name not in chosen})
    # the compiled code takes them in the order of the signature, however they were named here
    order = [*(name for name in own if name in named), *(name for name in named if name not in own)]
    return {name: named[name] for name in order}, chosen


def check_names(kernel: Any, args: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
    """Raise TypeError, as a call would, for a parameter without a value and an argument that is no parameter."""
    own = parameters(kernel)
    missing = [name for name in own if name not in args and name not in constants]
    unknown = [name for name in args if name not in own]
    said = [f"missing {', '.join(missing)}"] if missing else []
    said += [f"it has no {', '.join(unknown)}"] if unknown else []
    if said:
        raise TypeError(f"the kernel takes ({', '.join(own)}): {'; '.join(said)}")


def describe(
    kernel: Any,
    args: Mapping[str, Any],
    constants: Mapping[str, Any],
    target: str,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The request to the lowering worker for one launch."""
    inner = kernel
    while hasattr(inner, "fn"):
        inner = inner.fn
    return {
        **_place(inner),
        "target": target,
        "arguments": {name: _argument(name, value) for name, value in args.items()},
        "constants": {name: _constant(name, value) for name, value in constants.items()},
        "options": dict(options),
        "path": _import_path(),
    }


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry or ".")]


def _place(function: Any) -> dict[str, Any]:
    qualname = function.__qualname__
    if "<locals>" in qualname:
        raise TypeError(f"kernel {qualname} is defined inside a function; move it to the top of its module")
    return {
        "module": function.__module__,
        "file": os.path.abspath(function.__code__.co_filename),
        "qualname": qualname,
    }


def _argument(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "*i8", "value": None}
    if isinstance(value, bool):
        return {"type": "i1", "value": value}
    if isinstance(value, int):
        small = -(2**31) <= value < 2**31
        return {"type": "i32" if small else "u64" if value >= 2**63 else "i64", "value": value}
    if isinstance(value, float):
        return {"type": "fp32", "value": value}
    dtype = str(getattr(value, "dtype", "")).rpartition(".")[2]
    if dtype not in DTYPES:
        raise TypeError(
            f"argument {name}: expected a tensor, int, float, bool or None, got {type(value).__name__}"
        )
    # Allocators of NPUs and GPUs align to far more than 16 bytes; only an offset view can break that.
    offset = value.storage_offset() * value.element_size() if hasattr(value, "storage_offset") else 0
    return {"type": "*" + DTYPES[dtype], "value": {"aligned": offset % 16 == 0}}


def _constant(name: str, value: Any) -> Any:
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {"tuple": [_constant(name, v) for v in value]}
    if type(value).__name__ == "dtype" and type(value).__module__.startswith("triton."):
        return {"dtype": value.name}
    if hasattr(value, "fn"):
        while hasattr(value, "fn"):
            value = value.fn
        return _place(value)
    if isinstance(value, enum.Enum):
        kind = type(value)
        return {"enum": kind.__module__, "qualname": kind.__qualname__, "name": value.name}
    raise TypeError(f"constant {name}: cannot hand a {type(value).__name__} to the compiler")


class Worker:
    """The lowering process, started at the first request, and anew after a crash, a hang or an edit."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.errors: Any = None
        self.lock = threading.Lock()

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        with self.lock:
            for _ in range(2):
                answer = self._ask(request, timeout)
                if not answer.get("stale"):
                    return answer
                self.stop()
            return {
                "error": FRONTEND_ERROR,
                "message": "the kernel's file keeps changing while it is compiled",
            }

    def _ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            self._start()
            timeout += 60  # the first answer includes importing torch and triton
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request, ensure_ascii=False) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._crashed()
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        if not ready:
            self.stop()
            return {"error": TIMED_OUT, "message": f"lowering to Linalg took more than {timeout:g} s"}
        line = process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else self._crashed()

    def _start(self) -> None:
        if os.environ.get(INSIDE):
            raise RuntimeError(
                "the kernel's file compiles kernels while it is imported, and the compiler's process imports it: "
                'put that under `if __name__ == "__main__":`'
            )
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONSTARTUP", "PYTHONIOENCODING")}
        # Set, not removed: a kernel package that turns the interpreter on by itself leaves a set value alone.
        environment["TRITON_INTERPRET"] = "0"
        environment["TRITON_DISABLE_LINE_INFO"] = "false"
        environment[INSIDE] = "1"
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        environment["PYTHONUTF8"] = "1"  # triton takes no other names of files, whatever the locale
        # The same search order as here: two copies of a package may be on it.
        environment["PYTHONPATH"] = os.pathsep.join(_import_path())
        # Not atexit, which is silent where a forked child ends: its worker would go on, waited for by nobody.
        multiprocessing.util.Finalize(None, self.stop, exitpriority=0)
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("lower.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            encoding="utf-8", errors="surrogateescape", env=environment,
        )  # fmt: skip

    def _crashed(self) -> dict[str, Any]:
        assert self.process is not None
        code = self.process.wait()
        self.errors.seek(0)
        words = self.errors.read()[-4000:]
        self.stop()
        if "No module named" in words and "triton" in words:
            raise toolchain.ToolchainError("triton-ascend is not installed here: install the extra `model`")
        return {"error": ADAPTER_CRASH, "message": f"the lowering process ended with {code}\n{words}"}

    def stop(self) -> None:
        """End the worker; the next request starts another."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError, AttributeError):
                    pipe.close()  # type: ignore[union-attr]
        if self.errors is not None:
            self.errors.close()
        self.process = self.errors = None


WORKER = Worker()


def _forget_after_fork() -> None:
    global WORKER
    WORKER = Worker()  # the parent's pipes must not be shared


os.register_at_fork(after_in_child=_forget_after_fork)


def _when_written(dump: Path) -> tuple[int, list[int]]:
    """Time, and the numbers of the passes in the name for those of one tick of the clock."""
    return dump.stat().st_mtime_ns, [int(one) for one in re.findall(r"\d+", dump.name)]


def run_compiler(linalg: str, flags: list[str], version: str, timeout: float) -> dict[str, Any]:
    """Run bishengir-compile on Linalg text; status, message, generic and notes as a dict."""
    programs = toolchain.compiler_bin(version)
    with tempfile.TemporaryDirectory() as folder:
        source, last, dumps = Path(folder, "kernel.mlir"), Path(folder, "last.mlir"), Path(folder, "dumps")
        source.write_text(linalg)
        command = [
            str(programs / "bishengir-compile"),
            str(source),
            *flags,
            "-o",
            str(Path(folder, "kernel.o")),
            "--mlir-print-debuginfo",
            "--mlir-print-op-generic",
            "--mlir-disable-threading",  # its threads wait for each other more than they do
        ]
        environment = dict(os.environ)
        if toolchain.version_key(version) >= (1, 1):
            # To a file, which is written in one piece; to standard error every word is a system call.
            command += [f"--mlir-print-ir-before={STOP}", f"--mlir-print-ir-tree-dir={dumps}"]
        else:
            environment["PATH"] = f"{_input_keeper(folder, last)}{os.pathsep}{environment.get('PATH', '')}"
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env=environment,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            return _failure(TIMED_OUT, f"bishengir-compile took more than {timeout:g} s")
        words = done.stderr
        notes = tuple(dict.fromkeys(re.findall(r"^\[NOTE\] (.*)$", words, re.M)))
        attempts = sorted(dumps.rglob("*.mlir"), key=_when_written)
        kept = attempts[-1] if attempts else last
        generic = DUMP_HEADER.sub("", kept.read_text()) if kept.exists() else ""
        errors = [line for line in words.splitlines() if "error:" in line.lower() and not HIVMC.search(line)]
        errors.sort(key=lambda line: "pipeline" in line)  # the line that says why comes first
        if errors or not generic.strip():
            own = "\n".join(line for line in words.splitlines() if not HIVMC.search(line))
            text = "\n".join(errors) or _first_words(own) or f"bishengir-compile ended with {done.returncode}"
            if done.returncode < 0:
                text = f"bishengir-compile crashed: {signal.Signals(-done.returncode).name}\n{text}"
            status = UB_OVERFLOW if "ub overflow" in text.lower() else COMPILE_FAILED
            return _failure(status, text.replace(str(source), "kernel.mlir"), notes)
        # Locations that the compiler made up name its input file; its folder is another at every run.
        return {"status": OK, "message": "", "generic": generic.replace(folder + os.sep, ""), "notes": notes}


def _printed(generic: str, version: str) -> str:
    """MLIR text as the dialects print it."""
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder, "kernel.mlir")
        last.write_text(generic)
        done = subprocess.run(
            [str(toolchain.compiler_bin(version) / "bishengir-opt"), str(last), "--mlir-print-debuginfo"],
            capture_output=True, text=True, errors="replace", timeout=TIMEOUT, cwd=folder,
        )  # fmt: skip
        return done.stdout.replace(folder + os.sep, "")


def _failure(status: str, message: str, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"status": status, "message": message, "generic": "", "notes": notes}


def _input_keeper(folder: str, last: Path) -> str:
    """A folder with a program named hivmc that only keeps its input; it stands in for the real one, which
    belongs to CANN, because ascendnpu-ir 1.0.0 has no other way to show its last form."""
    place = Path(folder, "keeper")
    place.mkdir()
    program = place / "hivmc"
    program.write_text(f'#!/bin/sh\n[ -f "$1" ] && cp "$1" "{last}"\nexit 1\n')
    program.chmod(0o755)
    return str(place)


def strip_locations(text: str) -> str:
    """MLIR text without source locations."""
    return LOCATION_USE.sub("", LOCATION_LINE.sub("", text))


def portable_locations(text: str, path: list[str]) -> str:
    """MLIR text whose location files are relative to the import path, the same on every machine."""

    def portable(match: re.Match[str]) -> str:
        return match[1] + escaped(shorten_paths(unescaped(match[2]), path)) + match[3]

    return LOCATION_FILE.sub(portable, text)


def shorten_paths(text: str, path: list[str]) -> str:
    """Text without the import path's folders in front of file names."""
    for root in sorted({entry.rstrip(os.sep) + os.sep for entry in path}, key=len, reverse=True):
        text = text.replace(root, "")
    return text


def _telling(text: str) -> str:
    """The lines of a compiler's last words that say what happened, in front of the dump it printed."""
    lines = text.splitlines()
    telling = [line for line in lines if TELLING.search(line)]
    return "\n".join([*telling, *(line for line in lines if line not in telling)])


def _first_words(text: str, most: int = 40) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:most])[:4000]


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _read(record: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(gzip.decompress(record.read_bytes()))
        return {**kept, "notes": tuple(kept["notes"])}
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None  # absent, or cut off by a crash: compile again


def _write(record: Path, kept: dict[str, Any]) -> None:
    toolchain.keep(record, gzip.compress(json.dumps(kept).encode(), LEVEL, mtime=0))


def _remember(made: Compiled, record: Path) -> None:
    """Let `stored` find a compiled kernel by the digits of its code that results keep."""
    place = _by_code(made.code)
    if place.exists():
        return
    named = {(unescaped(match[1]), int(match[2])) for match in LOCATION_PLACE.finditer(made.linalg)}
    lines = {f"{file}:{line}": text for file, line in sorted(named) if (text := line_of(file, line))}
    told = {name: getattr(made, name) for name in _TOLD}
    _write(place, {**told, "record": record.name, "lines": lines})


_TOLD = ("kernel", "target", "compiler", "triton_ascend", "arguments", "linalg", "code")
CODE_DIGITS = 16
"""Digits of a code that results keep."""


def _by_code(code: str) -> Path:
    return toolchain.cache_dir() / "by_code" / code[:2] / f"{code[:CODE_DIGITS]}.json.gz"


def stored(code: str) -> tuple[Compiled, dict[str, str]] | None:
    """A kernel that was compiled on this machine, by the first digits of its code, and `file:line` -> source text
    as it was then.  None when there is none, or its record is damaged."""
    if not re.fullmatch(r"[0-9a-f]{16,64}", code):
        return None
    try:
        told = json.loads(gzip.decompress(_by_code(code).read_bytes()))
        name, lines = str(told.pop("record")), dict(told.pop("lines"))
        kept = _read(toolchain.cache_dir() / "compiled" / code[:2] / os.path.basename(name))
        if kept is None:
            return None
        made = Compiled(message="", status="", **{**told, "arguments": tuple(told["arguments"])})
        return dataclasses.replace(made, **kept), {str(k): str(v) for k, v in lines.items()}
    except (OSError, ValueError, EOFError, KeyError, TypeError):
        return None
