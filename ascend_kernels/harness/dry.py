"""A device that is not there: `ASCEND_KERNELS_DEVICE=dry`.

Kernels run in Triton's interpreter on CPU tensors, so results are right; times come from a clock that a launch
moves by a fixed amount, so they mean nothing.  It lets everything around a measurement (suites, tools, results)
run on any machine.  Its results carry the name `dry run`, a machine and a series of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from .state import DeviceState

NAME = "dry run"
LAUNCH_US = 500.0  # long enough that a sample is one call, which the interpreter takes long for
EVENT_US = 1.0


READING = DeviceState(name=NAME, driver="none", toolkit="none", clock_mhz=1000.0)


class Lost(RuntimeError):
    """The device no longer answers."""


@dataclass
class Pretend:
    """The part of `torch.cuda` and `torch.npu` that a measurement uses.

    pace: pretended microseconds so far -> how much longer than usual everything takes now.
    lost_at, memory_at: number of the launch from which the device is lost, or at which memory runs out.
    events: whether there are timing events.
    """

    now: float = 0.0
    launches: int = 0
    pace: Callable[[float], float] = lambda _: 1.0
    lost_at: int | None = None
    memory_at: int | None = None
    events: bool = True
    gone: bool = False
    reading: DeviceState = READING

    def launched(self) -> None:
        """One kernel launch."""
        self.launches += 1
        if self.launches == self.memory_at:
            raise torch.OutOfMemoryError("dry run: out of memory, as asked for")
        if self.lost_at is not None and self.launches >= self.lost_at:
            self.gone = True
        self.synchronize()
        self.spend(LAUNCH_US)

    def spend(self, us: float) -> None:
        """Let the clock go on."""
        self.now += us * self.pace(self.now)

    def synchronize(self) -> None:
        if self.gone:
            raise Lost("dry run: device lost, as asked for")

    def state(self) -> DeviceState:
        """The reading, its clock slowed as the pace says."""
        clock = self.reading.clock_mhz
        return replace(self.reading, clock_mhz=None if clock is None else clock / self.pace(self.now))

    def is_available(self) -> bool:
        return True

    def empty_cache(self) -> None:
        pass

    def get_device_properties(self, _: int = 0) -> Any:
        return SimpleNamespace(name=NAME, multi_processor_count=48, vector_core_num=48, L2_cache_size=1)

    def Event(self, enable_timing: bool = False) -> Any:
        if not self.events:
            raise RuntimeError("this driver has no timing events")
        return _Event(self)

    def CUDAGraph(self) -> Any:
        return _Graph(self)

    @contextlib.contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        """Nothing is put off while the graph is captured: what it took is what a replay takes."""
        begin = self.now
        yield
        graph.us = self.now - begin
        self.now = begin


@dataclass
class _Event:
    device: Pretend
    at: float = 0.0

    def record(self) -> None:
        self.device.synchronize()
        self.device.spend(EVENT_US)
        self.at = self.device.now

    def synchronize(self) -> None:
        self.device.synchronize()

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) / 1e3


@dataclass
class _Graph:
    device: Pretend
    us: float = 0.0

    def replay(self) -> None:
        self.device.synchronize()
        self.device.spend(self.us)


DEVICE = Pretend()
