"""What ascend-perf uses of torch_npu, on a machine without an NPU; names and results follow its documentation.

`FAKE_NPU` (JSON) says what is wrong with it: {"available": false}, {"events": false}, {"vector_core_num": 0},
{"profiler": "no table" | "odd" | "columns" | "missing"}, {"init": "words"},
{"adds": 1} where tensors are to be had.
"""

import json
import os
import sys
import types

import torch

SAID = json.loads(os.environ.get("FAKE_NPU", "{}"))
__version__ = SAID.get("version", "2.7.1")
NOW = [0.0]  # microseconds
RAN = []  # (name, start, duration) of every kernel


def kernel(name, us):
    """What a launch on the device is to its clock and to the profiler."""
    RAN.append((name, NOW[0], us))
    NOW[0] += us


class Event:
    def __init__(self, enable_timing=False):
        if SAID.get("events") is False:
            raise RuntimeError("EE9999: event timing is not supported by this driver")
        self.timed, self.at = enable_timing, None

    def record(self):
        self.at = NOW[0]

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e3


class NPUGraph:
    def replay(self):
        for name, us in self.kernels:
            kernel(name, us)


class graph:
    def __init__(self, graph):
        self.graph = graph

    def __enter__(self):
        self.since, self.now = len(RAN), NOW[0]

    def __exit__(self, *_):
        self.graph.kernels = [(name, us) for name, _, us in RAN[self.since :]]
        del RAN[self.since :]
        NOW[0] = self.now


def _properties(_=0):
    return types.SimpleNamespace(
        name="Ascend910B1",
        vector_core_num=SAID.get("vector_core_num", 48),
        cube_core_num=24,
        L2_cache_size=1,
        total_memory=64 << 30,
    )


npu = types.ModuleType("torch.npu")
npu.Event, npu.NPUGraph, npu.graph = Event, NPUGraph, graph
npu.is_available = lambda: SAID.get("available", True)
npu.device_count = lambda: 1 if npu.is_available() else 0
npu.synchronize = lambda *_: None
npu.empty_cache = lambda: None
npu.is_initialized = lambda: True
npu.get_device_properties = _properties
if "init" in SAID:

    def _fail(*_):
        raise RuntimeError(SAID["init"])

    npu.get_device_properties = npu.synchronize = _fail

try:
    torch.utils.rename_privateuse1_backend("npu")
except RuntimeError:
    pass
torch.npu = npu
sys.modules["torch.npu"] = npu

if "adds" in SAID:  # tensors "on the NPU" of a process that only asks what there is
    _ones = torch.ones
    torch.ones = lambda *size, device=None, **more: _ones(*size, **more) * SAID["adds"]
