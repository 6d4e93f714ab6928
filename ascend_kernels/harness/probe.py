"""What torch says of this host, as JSON: `python -m ascend_kernels.harness.probe`.

A process of its own, since a driver or torch_npu that is wrong can end it.  Each fact stands beside the error that
kept the next ones from being asked for.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def facts() -> dict[str, Any]:
    """torch, triton and the device at hand."""
    import torch

    from . import device, state, timing

    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "kind": "", "errors": {}}
    errors = found["errors"]

    def attempt(name: str, ask: Any) -> Any:
        try:
            found[name] = ask()
        except Exception as error:
            words = str(error).strip().splitlines() or [""]
            errors[name] = f"{type(error).__name__}: {words[0][:300]}"
        return found.get(name)

    def triton() -> str:
        import triton
        import triton.language

        return f"{triton.__version__} in {triton.__path__[0]}"

    attempt("triton", triton)
    kind = attempt("kind", device.kind)
    found["kinds"] = [name for name in ("npu", "cuda") if getattr(torch, name, None) is not None]
    if kind in (None, "cpu", "dry"):
        return found
    module = attempt("module", lambda: device.module(kind))
    found.pop("module", None)
    if module is None:
        return found
    current = attempt("device", lambda: vars(device.current()))
    if current is None:
        return found

    def adds() -> bool:
        one = torch.ones(4, device=device.tensors(kind))
        return (one + one).tolist() == [2.0] * 4

    attempt("adds", adds)
    attempt("events", lambda: timing.require_events(module, kind) is None)
    attempt("memory", lambda: [int(n) for n in module.mem_get_info()])
    attempt("state", lambda: state.read(kind, module).as_dict())
    if kind == "npu":
        attempt("profiler", profiler)
    return found


def profiler() -> bool:
    """Whether torch_npu's profiler has the names that are used of it."""
    import torch_npu.profiler as found

    names = ("profile", "tensorboard_trace_handler", "_ExperimentalConfig", "ProfilerActivity", "ProfilerLevel")
    missing = [name for name in (*names, "ExportType") if not hasattr(found, name)]
    if missing:
        raise AttributeError(f"torch_npu.profiler has no {', '.join(missing)}")
    return True


if __name__ == "__main__":
    json.dump(facts(), sys.stdout, default=str)
