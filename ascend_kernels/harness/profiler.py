"""Duration of kernels as Ascend's own profiler gives it (`torch_npu.profiler`), apart from events.

Everything that is the profiler's is in this module: how it is switched on, where it leaves its table and what the
columns are called.  Interface and columns are those of its documentation; nothing here ran on an NPU.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME, START, DURATION = "Name", "Start Time(us)", "Duration(us)"


class ProfilerError(RuntimeError):
    """The profiler gave nothing that is a duration of the calls."""


def kernel_times(call: Callable[[], Any], times: int, module: Any) -> tuple[float, ...]:
    """Microseconds of device time in kernels, one number a call.

    Every kernel counts, whatever it is called.  Raises ProfilerError unless every call made the same number of
    kernels, one at least.
    """
    import torch_npu.profiler as profiler

    settings = profiler._ExperimentalConfig(
        export_type=[profiler.ExportType.Text],
        profiler_level=profiler.ProfilerLevel.Level1,
        data_simplification=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        with profiler.profile(
            activities=[profiler.ProfilerActivity.NPU],
            on_trace_ready=profiler.tensorboard_trace_handler(folder),
            experimental_config=settings,
        ):
            for _ in range(times):
                call()
            module.synchronize()
        return per_call(read_kernels(Path(folder)), times)


def read_kernels(folder: Path) -> list[tuple[str, float]]:
    """(name, microseconds) of every kernel in the order they started, from `kernel_details.csv` below `folder`."""
    tables = sorted(folder.rglob("kernel_details.csv"))
    if len(tables) != 1:
        raise ProfilerError(f"the profiler left {len(tables)} tables kernel_details.csv, one is expected")
    with open(tables[0], newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names = [name.strip() for name in reader.fieldnames or ()]
        missing = [name for name in (NAME, START, DURATION) if name not in names]
        if missing:
            raise ProfilerError(f"kernel_details.csv has no column {missing[0]}; it has {', '.join(names)}")
        reader.fieldnames = names
        try:
            rows = [(float(r[START]), r[NAME].strip(), float(r[DURATION])) for r in reader]
        except (TypeError, ValueError, AttributeError) as error:
            raise ProfilerError(f"kernel_details.csv cannot be read: {error}") from None
    return [(name, duration) for _, name, duration in sorted(rows)]


def per_call(kernels: list[tuple[str, float]], times: int) -> tuple[float, ...]:
    """Sums of the kernels of each call; their number has to be a whole multiple of the calls."""
    if not kernels:
        raise ProfilerError(f"the profiler lists no kernel for {times} calls")
    each, rest = divmod(len(kernels), times)
    if rest:
        raise ProfilerError(f"the profiler lists {len(kernels)} kernels for {times} calls, not the same for each")
    names = [tuple(name for name, _ in kernels[i : i + each]) for i in range(0, len(kernels), each)]
    other = next((one for one in names if one != names[0]), None)
    if other:
        raise ProfilerError(f"calls made different kernels: {' '.join(names[0])}, then {' '.join(other)}")
    return tuple(sum(us for _, us in kernels[i : i + each]) for i in range(0, len(kernels), each))
