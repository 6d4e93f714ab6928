"""torch_npu.profiler as documented: a context that leaves `kernel_details.csv` in `ASCEND_PROFILER_OUTPUT`."""

import csv
import enum
from pathlib import Path

from . import RAN, SAID


class ProfilerActivity(enum.Enum):
    CPU = 0
    NPU = 1


class ProfilerLevel(enum.Enum):
    Level0 = 0
    Level1 = 1
    Level2 = 2


class ExportType(enum.Enum):
    Text = 0
    Db = 1


class _ExperimentalConfig:
    def __init__(self, *, export_type=None, profiler_level=None, data_simplification=True, **more):
        assert all(isinstance(one, ExportType) for one in export_type)
        assert isinstance(profiler_level, ProfilerLevel)


def tensorboard_trace_handler(folder):
    return Path(folder)


class profile:
    COLUMNS = ("Step Id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)")

    def __init__(self, *, activities, on_trace_ready, experimental_config, schedule=None):
        assert ProfilerActivity.NPU in activities and isinstance(experimental_config, _ExperimentalConfig)
        self.folder = on_trace_ready

    def __enter__(self):
        self.since = len(RAN)
        return self

    def __exit__(self, *_):
        how = SAID.get("profiler", "")
        if how == "no table":
            return
        place = self.folder / "host_1_20260101_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        place.mkdir(parents=True)
        rows = RAN[self.since :]
        rows = rows[:-1] if how == "odd" else [] if how == "missing" else rows
        columns = [name for name in self.COLUMNS if how != "columns" or not name.startswith("Duration")]
        with open(place / "kernel_details.csv", "w", newline="") as file:
            table = csv.DictWriter(file, columns, extrasaction="ignore")
            table.writeheader()
            for name, start, us in reversed(rows):  # in no order that could be relied on
                # absolute starts have more digits than a float can add small numbers to; a tab ends them
                facts = {"Name": name, "Type": name, "Accelerator Core": "AI_VECTOR_CORE"}
                table.writerow({**facts, "Start Time(us)": f"{start:.3f}\t", "Duration(us)": f"{us:.3f}"})
