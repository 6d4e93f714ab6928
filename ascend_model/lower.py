"""Worker process: a Triton kernel's source to Linalg text, with triton-ascend.

It runs apart from its caller for two reasons: triton's own helpers bind to the interpreter or to the
compiler when they are imported, so a process in interpreter mode cannot lower; and the lowering can crash or
never end.  One JSON request a line on standard input, one JSON answer a line on standard output.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.util
import inspect
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from typing import Any

LIBRARY = os.path.dirname(os.__file__) + os.sep  # Python's own modules
REPR = re.compile(r"""\A(\w+)\((['"])(.*)\2\)\Z""", re.S)  # of an exception with one text
RARELY = 10_000  # objects made until this process looks for cycles among them
FOLDERS: set[str] = set()  # of files that were loaded by their path
FILES: dict[str, int] = {}  # source file -> its time when imported; a changed one makes this process stale
MODULES: dict[str, tuple[Any, str]] = {}  # name -> the module and its file, or "" for one that nobody edits


def load_kernel(request: dict[str, Any]):
    """The jitted function named by module, file and qualified name."""
    if "path" in request:  # a function among the constants brings none of its own
        sys.path[:] = request["path"]
        stand_in_driver(request["target"])
    name, file = request["module"], request["file"]
    module = None
    if name != "__main__" and not name.startswith("_ascend_model_file_"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or name):
                raise
    if module is None or os.path.realpath(module.__file__ or "") != os.path.realpath(file):
        name = "_ascend_model_file_" + hashlib.sha256(os.fsencode(file)).hexdigest()[:16]
        module = sys.modules.get(name)
        if module is None:
            spec = importlib.util.spec_from_file_location(name, file)
            if spec is None or spec.loader is None:
                raise ImportError(f"{file} is no Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            folder = os.path.dirname(os.path.abspath(file))
            sys.path.insert(0, folder)
            forget_namesakes(folder)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
    found: Any = module
    for part in request["qualname"].split("."):
        found = getattr(found, part)
    return found


def forget_namesakes(folder: str) -> None:
    """Forget what files of other folders imported from beside them where this folder has a module of that name:
    two versions of a kernel's file each import their own helpers."""
    others = FOLDERS - {folder}
    FOLDERS.add(folder)
    clashing = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or "." in name:
            continue
        place = os.path.dirname(file)
        if os.path.basename(file) == "__init__.py":
            place = os.path.dirname(place)
        here = os.path.join(folder, name)
        if place in others and (os.path.isfile(here + ".py") or os.path.isfile(os.path.join(here, "__init__.py"))):
            clashing.add(name)
    for name in list(sys.modules):
        if name.partition(".")[0] in clashing:
            del sys.modules[name]


def constant(value: Any) -> Any:
    """A constexpr from its JSON form: plain values, a triton dtype, or another jitted function."""
    if isinstance(value, dict):
        if "dtype" in value:
            import triton.language as tl

            return tl.dtype(value["dtype"])
        if "tuple" in value:
            return tuple(constant(v) for v in value["tuple"])
        if "enum" in value:
            kind: Any = importlib.import_module(value["enum"])
            for part in value["qualname"].split("."):
                kind = getattr(kind, part)
            return kind[value["name"]]
        return load_kernel(value)
    return value


# Vector cores of each target that is modelled, as the compiler states them in the module (ascendnpu-ir 1.2.0); the
# 910_93xx are the 910C family.
TARGETS = {
    "Ascend910B1": 48, "Ascend910B2": 48, "Ascend910B2C": 48, "Ascend910B3": 40, "Ascend910B4": 40,
    "Ascend910B4-1": 40, "Ascend910_9362": 40, "Ascend910_9372": 40, "Ascend910_9381": 48, "Ascend910_9382": 48,
    "Ascend910_9391": 48, "Ascend910_9392": 48,
}  # fmt: skip


def known_target(name: str) -> str:
    """A name out of TARGETS; ValueError naming them for any other."""
    if name not in TARGETS:
        raise ValueError(f"no target {name!r}; there are {', '.join(TARGETS)}")
    return name


class AbsentDriver:
    """Answers what a module asks of triton's driver while it is imported (an autotuner its benchmarker, a launch
    plan the number of cores), for an NPU that is not there.  It runs nothing."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.utils = self

    def get_benchmarker(self):
        def refuse(*_, **__):
            raise RuntimeError(f"no {self.target} here: nothing can be tuned")

        return refuse

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("npu", self.target, 0)

    def get_current_device(self) -> int:
        return 0

    def get_aivector_core_num(self) -> int:
        return TARGETS.get(self.target, 48)

    def get_aicore_num(self) -> int:
        return self.get_aivector_core_num() // 2

    def get_device_properties(self, device: Any = 0) -> dict[str, int]:
        vector = self.get_aivector_core_num()
        return {"max_shared_mem": 1, "num_aicore": vector // 2, "num_vectorcore": vector}


def stand_in_driver(target: str = "Ascend910B1") -> None:
    """Let a module be imported that asks triton's driver for something while it is, where there is no device.

    `@triton.autotune` asks for a benchmarker, module code for the number of cores.  A machine with a driver keeps
    its own.
    """
    import warnings

    try:
        from triton.backends import backends
        from triton.runtime.driver import driver
    except ModuleNotFoundError:
        return  # the importer says so

    if driver.active is not driver.default:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no device's compiler is no news here
        if not any(one.driver.is_active() for one in backends.values()):
            driver.set_active(AbsentDriver(target))


@functools.cache
def mentioned(source: str) -> list[tuple[str, str]]:
    """Names in Python source, each with the attribute that is taken of it, or "" for the name itself."""
    found: dict[tuple[str, str], None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found[node.id, ""] = None
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found[node.value.id, node.attr] = None
    return list(found)


def captured(kernel: Any) -> list[str]:
    """Values from outside that a kernel and the functions it calls are compiled with: globals, attributes of
    modules, defaults of arguments.  A file can change them without changing any of those functions."""
    found: set[str] = set()
    seen: set[int] = set()
    queue = [kernel]
    while queue:
        function = queue.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        found |= {f"{function.__name__}({p.name}={p.default!r})" for p in function.params if p.has_default}
        for name, attribute in mentioned(function.src):
            value = function.__globals__.get(name)
            if attribute:
                name, value = f"{name}.{attribute}", getattr(value, attribute, None)
            if hasattr(value, "params") and hasattr(value, "parse"):
                queue.append(value)
            elif isinstance(value, bool | int | float | str | tuple) or type(value).__name__ == "constexpr":
                found.add(f"{name}={value!r}")
    return sorted(found)


class Pointer:
    """Stands for a tensor argument; triton asks only whether its address is a multiple of 16."""

    def __init__(self, aligned: bool) -> None:
        self.aligned = aligned

    def data_ptr(self) -> int:
        return 16 if self.aligned else 8


class Once:
    """Stands for `warnings` where triton walks a kernel's tree: it would set the filters anew at every node, and
    they are set once, around the walk."""

    catch_warnings = contextlib.nullcontext

    @staticmethod
    def simplefilter(*_: Any) -> None:
        pass


class Adapter:
    """Stands for `subprocess` where triton starts its adapter, which then does not verify each op again that it
    prints.  Where it fails it is asked again as triton asks, so that its words are the same."""

    CalledProcessError = subprocess.CalledProcessError

    @staticmethod
    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[Any]:
        done = subprocess.run([*command, "--mlir-print-assume-verified"], **{**how, "check": False})
        return subprocess.run(command, **how) if done.returncode else done


_signature = functools.cache(inspect.signature)


def signature_of(function: Any) -> inspect.Signature:
    """Stands for `inspect.signature` where triton asks whether a function has a parameter of some name.  Of a
    method the function is kept, not the value that it is bound to."""
    return _signature(getattr(function, "__func__", function))


@functools.cache
def spare_triton_work() -> None:
    """What triton 3.2 would do again for every node or call, and need not.  Its output is the same."""
    import triton

    if not triton.__version__.startswith("3.2."):
        return  # its names may mean something else
    from triton.backends.ascend import compiler
    from triton.compiler import code_generator
    from triton.runtime.jit import JITFunction

    parse = JITFunction.parse

    @functools.cache
    def tree_of(source: str) -> ast.Module:
        return parse(types.SimpleNamespace(src=source))  # nothing that walks it changes it

    # What was imported stays: do not look through it for cycles again and again.
    gc.freeze()
    gc.set_threshold(RARELY, 20, 20)
    code_generator.get_jit_fn_file_line = functools.cache(code_generator.get_jit_fn_file_line)
    code_generator.warnings = Once
    code_generator.inspect = types.SimpleNamespace(**{**vars(inspect), "signature": signature_of})
    JITFunction.parse = lambda function: tree_of(function.src)
    compiler.subprocess = Adapter


def lower(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request: `{"linalg": text, "arguments": names}` or `{"error": class, "message": text}`."""
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import AscendBackend, make_ttir, ttir_to_linalg
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    spare_triton_work()
    kernel = load_kernel(request)
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn  # autotuner, heuristics
    target = GPUTarget("npu", request["target"], 0)
    backend = AscendBackend(target)
    constants = {name: constant(value) for name, value in request["constants"].items()}
    given = request["arguments"]
    values = []
    for parameter in kernel.params:
        value = constants.get(parameter.name)
        if parameter.name in given:
            value = given[parameter.name]["value"]
            value = Pointer(value["aligned"]) if isinstance(value, dict) else value
        values.append(value)
    attributes = backend.get_attrs_descriptor(kernel.params, values)
    ones = attributes.get_constants()
    for parameter in kernel.params:
        if parameter.name in given and (parameter.num in ones or given[parameter.name]["value"] is None):
            constants[parameter.name] = ones.get(parameter.num)
    signature = {name: argument["type"] for name, argument in given.items()}
    source = ASTSource(kernel, signature, constants, attributes)
    options = backend.parse_options(request["options"])
    record = None
    if request["cache"]:
        # hash() covers the kernel's source, what it calls, its line, the argument classes and the constants, but
        # neither the arguments' order nor the values of names outside of the kernel.
        key = [source.hash(), request["file"], request["target"], options.hash(), repr(constants), version()]
        key += [*given, *captured(kernel)]
        name = hashlib.sha256("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()
        record = os.path.join(request["cache"], name[:2], name + ".json")
        kept = read(record)
        if kept is not None:
            return kept
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            parts = backend.get_codegen_implementation(), backend.get_module_map()
            module = source.make_ir(options, *parts, context)
        metadata = {"hash": "", "target": target, **options.__dict__}
        module = make_ttir(module, metadata, options)
    except Exception as error:
        return {"error": "frontend error", "message": told(error)}
    try:
        linalg = ttir_to_linalg(module, metadata, options, named_ops=True)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace")
        return {"error": "adapter crash", "message": said or f"triton-adapter-opt ended with {error.returncode}"}
    answer = {"linalg": linalg, "arguments": [name for name in given if name not in constants]}
    if record:
        write(record, answer)
    return answer


def told(error: BaseException) -> str:
    """What triton refused: first the reason, with the line of the file where it can be found, then its own words
    from outside in."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    last = chain[-1]
    if hasattr(last, "error_message"):  # one of triton's, which quotes the source in front of the reason
        reason = REPR.sub(r"\1: \3", last.error_message or type(last).__name__)
    else:
        reason = f"{type(last).__name__}: {last}"
    place = next(filter(None, map(place_of, reversed(chain))), "")
    return "\n".join([f"{reason}{place}", *(f"{type(one).__name__}: {one}" for one in chain)])


def place_of(error: BaseException) -> str:
    """` (file:line: its text)` of what a jitted function was being made of when the error came, or ""."""
    from triton.runtime.jit import get_jit_fn_file_line

    source, node = getattr(error, "src", None), getattr(error, "node", None)
    function = None
    frame = error.__traceback__
    while frame is not None:
        here = frame.tb_frame.f_locals
        own = here.get("self")
        kernel: Any = getattr(own, "jit_fn", own)  # triton's generator has one; else one that looks for its names
        if hasattr(kernel, "src") and hasattr(kernel, "fn") and source in (None, kernel.src):
            function = kernel
        if source is None and hasattr(here.get("node"), "lineno"):
            node = here["node"]
        frame = frame.tb_next
    if function is None or node is None or not hasattr(node, "lineno"):
        return ""
    file, first = get_jit_fn_file_line(function)
    line = first + node.lineno - 1
    return f" ({file}:{line}: {linecache.getline(file, line).strip()})"


def version() -> str:
    """Version of triton-ascend."""
    import importlib.metadata

    return importlib.metadata.version("triton-ascend")


def read(record: str) -> dict[str, Any] | None:
    """A kept answer, or None where there is none or it was cut off."""
    try:
        with open(record) as file:
            kept = json.load(file)
        return kept if kept["linalg"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(record: str, answer: dict[str, Any]) -> None:
    """Keep an answer, as `toolchain.keep`, which is not to be imported here."""
    name = ""
    try:
        os.makedirs(os.path.dirname(record), exist_ok=True)
        handle, name = tempfile.mkstemp(dir=os.path.dirname(record))
        with os.fdopen(handle, "w") as file:
            json.dump(answer, file)
        os.replace(name, record)
    except OSError:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)


def changed_file() -> str | None:
    """A source file that was edited after this process imported it."""
    for name, module in list(sys.modules.items()):
        known, file = MODULES.get(name, (None, ""))
        if known is not module:
            file = getattr(module, "__file__", None) or ""
            if "site-packages" in file or file.startswith(LIBRARY):
                file = ""
            MODULES[name] = module, file
        if not file:
            continue
        try:
            time = os.stat(file).st_mtime_ns
        except OSError:
            continue
        if FILES.setdefault(file, time) != time:
            if not name.startswith("_ascend_model_file_"):
                return file
            # Loaded by its path, so that no other module holds anything of it: it is loaded anew.
            del sys.modules[name]
            FILES[file] = time
    return None


def main() -> None:
    """Serve requests until standard input closes."""
    # Kernels may print while they are imported; the channel must stay clean.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = {"stale": True} if changed_file() else lower(json.loads(line))
            changed_file()
        except BaseException as error:
            last = "".join(traceback.format_exception(error)[-3:])
            answer = {"error": "frontend error", "message": f"{told(error)}\n{last}"}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
