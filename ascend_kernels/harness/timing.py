"""Device time and host time of calls, on NPU and CUDA through one code path.

Device time comes from events around a replayed graph of calls, so that the host's launch cost is not in it;
where a device cannot capture a graph, from events behind a backlog that is longer than the host needs to queue
the calls.  Implementations are interleaved round by round, so that a clock that drifts moves all of them.
A region in which something was compiled is no measurement and is refused.

Cold times are of an L2 cache that holds none of the inputs.  Several copies of them lie in memory; a walk goes
through all of them once, behind a write of twice the cache's size, whose own time is measured beside it and taken
off.  One write a walk instead of one a call, so that what its time varies by weighs little against a call.

On Ascend the profiler's own duration of the kernels is kept beside the events.  A driver without timing events
gives no device time; that is said, and nothing else takes its place.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from . import device
from .spec import Arguments

MOST_SETS = 64  # copies of the inputs that a cold measurement walks through
MOST_BYTES = 512 << 20  # of them together, as far as two are fewer
USUAL_CACHE = 192 << 20  # bytes of L2 where the device does not say
SAMPLE_US = 400.0  # a sample lasts about this long, far above an event's resolution and a graph's start
PROBE = 5  # calls in the region that tells how long one takes
PROFILED = 10  # calls under the profiler


Profiled = tuple[tuple[float, ...], tuple[str, ...]]  # samples, and why there are none


class TimingError(RuntimeError):
    """A measurement that would not mean what its name says."""


@dataclass(frozen=True)
class Timing:
    """Samples in microseconds a call.

    warm: one input set, replayed.  cold: the L2 cache overwritten before each walk through the input sets; of a
    call that no graph can be captured of, only as many sets as MOST_SETS and MOST_BYTES allow, one after another.
    host: until the call returned, the device idle before.  kernel: the profiler's duration of the kernels, on
    Ascend only.  number: calls in a device sample.  notes: what could not be had, and why.
    """

    warm: tuple[float, ...]
    cold: tuple[float, ...]
    host: tuple[float, ...]
    number: int
    by_graph: bool
    kernel: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def median(self, which: str = "warm") -> float:
        """Median of one kind of sample, microseconds."""
        return statistics.median(getattr(self, which))


def measure(
    calls: Mapping[str, Callable[..., Any]],
    arguments: Arguments,
    place: str,
    *,
    rounds: int = 15,
) -> dict[str, Timing]:
    """Time each call on copies of `arguments` on device `place` ("cuda", "npu" or "dry").

    Every call is first run twice outside the timed region, which compiles it.  Raises TimingError when a kernel
    was compiled inside a timed region, or the driver has no timing events.
    """
    module = device.module(place)
    require_events(module, place)
    sets = _input_sets(arguments, device.tensors(place))
    for call in calls.values():
        _compile(call, sets[0], module)
    compiled = compile_count()
    ready = {name: Prepared(call, sets, place, module) for name, call in calls.items()}
    samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        # Another one goes first every round: the first finds the device idle and its clock low.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            samples[name].append(ready[name].sample())
    module.synchronize()
    if compile_count() != compiled:
        raise TimingError("a kernel was compiled inside a timed region; its samples mean nothing")
    # Last, since a profiler may slow down what runs after it.
    profiled = {
        name: _profiled(call, sets[0], module) if place == "npu" else ((), ()) for name, call in calls.items()
    }
    return {
        name: Timing(*zip(*taken), ready[name].number, ready[name].by_graph, *profiled[name])
        for name, taken in samples.items()
    }


def _compile(call: Callable[..., Any], inputs: Arguments, module: Any) -> None:
    for _ in range(2):
        call(**inputs)
    module.synchronize()


def prepare(call: Callable[..., Any], arguments: Arguments, place: str) -> Prepared:
    """One call, compiled and ready to give samples, for a schedule of the caller's own."""
    module = device.module(place)
    require_events(module, place)
    sets = _input_sets(arguments, device.tensors(place))
    _compile(call, sets[0], module)
    return Prepared(call, sets, place, module)


class Prepared:
    """A call with its regions: one input set warm, all of them cold.  number: calls in a device sample."""

    def __init__(self, call: Callable[..., Any], sets: list[Arguments], place: str, module: Any) -> None:
        flush = _flush(place, module)

        def once() -> None:
            call(**sets[0])

        def walk() -> None:
            for one in walked:
                call(**one)

        def flushed_walk() -> None:
            flush()
            walk()

        self.number = _calls_for(once, place, module)
        walked = sets[: max(2, self.number)]
        walks = -(-self.number // len(walked))
        self._warm = _region(once, self.number, place, module)
        self._flushes = _region(flush, walks, place, module) if self.by_graph else None
        self._cold = _region(flushed_walk if self._flushes else walk, walks, place, module)
        self._walked = len(walked)
        self._once = once
        self._module = module

    @property
    def by_graph(self) -> bool:
        """Whether the calls were captured in a graph."""
        return self._warm.graph is not None

    def sample(self) -> tuple[float, float, float]:
        """Microseconds of one call: warm, cold, host."""
        flush = self._flushes.sample() if self._flushes else 0.0
        cold = (self._cold.sample() - flush) / self._walked
        # Behind cold calls, so that nothing in the cache is there because of another call.
        warm = self._warm.sample()
        self._module.synchronize()
        begin = time.perf_counter()
        self._once()
        return warm, cold, (time.perf_counter() - begin) * 1e6


def alone(call: Callable[..., Any], arguments: Arguments, place: str, rounds: int = 31) -> float:
    """Median microseconds between two events with one compiled call between them, the device busy until then.

    The events' own distance is in it: compare with an empty kernel timed the same way."""
    module = device.module(place)
    require_events(module, place)
    inputs = _input_sets(arguments, device.tensors(place), most=1)[0]
    _compile(call, inputs, module)
    region = _Region(lambda: call(**inputs), 1, module, None)
    return statistics.median(region.sample() for _ in range(rounds))


def require_events(module: Any, place: str) -> None:
    """Raise TimingError unless the device's events tell time."""
    try:
        begin, end = (module.Event(enable_timing=True) for _ in range(2))
        begin.record()
        end.record()
        end.synchronize()
        begin.elapsed_time(end)
    except (AttributeError, TypeError, NotImplementedError, RuntimeError) as error:
        module.synchronize()  # a lost device is another matter
        words = f"{place}: no timing events, so no device time can be taken ({error})"
        raise TimingError(f"{words}; update the driver and torch's module of the device") from error


def _profiled(
    call: Callable[..., Any], inputs: Arguments, module: Any
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    from . import profiler

    try:
        return profiler.kernel_times(lambda: call(**inputs), PROFILED, module), ()
    except (ImportError, AttributeError, TypeError, OSError, RuntimeError) as error:
        module.synchronize()  # a lost device is another matter
        return (), (f"no duration from the profiler: {type(error).__name__}: {error}",)


def compile_count() -> int:
    """Kernels that triton has compiled or loaded in this process so far."""
    return _COMPILED[0] if _COMPILED else _watch_compiles()


_COMPILED: list[int] = []


def _watch_compiles() -> int:
    """Count the kernels that triton makes; its own hooks turn every constant into JSON first, which a constant
    that is a function does not survive."""
    from triton.compiler import CompiledKernel

    _COMPILED.append(0)
    made = CompiledKernel.__init__

    def counted(self: Any, *args: Any, **more: Any) -> None:
        _COMPILED[0] += 1
        made(self, *args, **more)

    CompiledKernel.__init__ = counted
    return 0


def _flush(place: str, module: Any) -> Callable[[], Any]:
    """Writes twice as much as the L2 cache holds."""
    cache = getattr(module.get_device_properties(0), "L2_cache_size", 0) or USUAL_CACHE
    return _overwritten(2 * cache, device.tensors(place)).zero_


@functools.lru_cache(maxsize=1)
def _overwritten(size: int, where: str) -> torch.Tensor:
    """Memory of so many bytes that holds nothing."""
    return torch.empty(size, dtype=torch.uint8, device=where)


def _input_sets(arguments: Arguments, place: str, most: int = MOST_SETS) -> list[Arguments]:
    """Copies of the arguments on a device, two at least where more than one may be."""
    # Only a copy of the storage keeps strides and padding.
    storages = {
        name: torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to(place)
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor)
    }
    size = sum(storage.numel() * storage.element_size() for storage in storages.values())
    count = min(most, max(2, MOST_BYTES // max(1, size)))

    def copy(name: str, value: Any) -> Any:
        if name not in storages:
            return value
        return storages[name].clone().as_strided(value.shape, value.stride(), value.storage_offset())

    return [{name: copy(name, value) for name, value in arguments.items()} for _ in range(count)]


@dataclass
class _Region:
    calls: Callable[[], None]
    number: int
    module: Any
    graph: Any

    def sample(self) -> float:
        """Microseconds of one of `number`."""
        begin, end = (self.module.Event(enable_timing=True) for _ in range(2))
        if self.graph is None:
            sleep = getattr(self.module, "_sleep", None)
            if sleep is not None:
                sleep(int(2e6))  # cycles; the host queues the calls meanwhile
        begin.record()
        self.calls() if self.graph is None else self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / self.number


def _region(once: Callable[[], Any], number: int, place: str, module: Any) -> _Region:
    """`once` so many times, in a graph where one can be captured."""

    def calls() -> None:
        for _ in range(number):
            once()

    kind = getattr(module, "NPUGraph" if place == "npu" else "CUDAGraph", None)
    graph = None
    if kind is not None:
        try:
            graph = kind()
            with module.graph(graph):
                calls()
            graph.replay()
            module.synchronize()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # the call waits for the device or copies from the host: no graph of it
            graph = None
            module.synchronize()
    if graph is None:
        calls()
        module.synchronize()
    return _Region(calls, number, module, graph)


def _calls_for(once: Callable[[], Any], place: str, module: Any) -> int:
    """Calls in a sample, so that starting the graph weighs little against them."""
    probe = _region(once, PROBE, place, module)
    each = min(probe.sample() for _ in range(3))
    return int(min(1000, max(1, -(-SAMPLE_US // max(each, 1e-3)))))
