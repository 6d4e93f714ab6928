"""A Ray cluster as machines of a fleet.

Ray starts the processes, holds devices apart (`NPU`, `GPU` are its resources) and tells who died; which task goes
where is decided here.  Every slot is an actor on a node: one for a device, and as many as the other cores carry.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.fleet import COMPILER, Event, Slot, Task
from dashboards.fleet_worker import Facts, Order, Worker, WorkerError
from dashboards.series import COMPILERS

DEVICES = ("NPU", "GPU")
# Cores that a device's own slot needs for itself, so that modelled tasks do not disturb its host times.
CORES_OF_A_DEVICE = 2
LOOK_EVERY = 2.0
RESTARTS = 3
SKEW = 2.0
PATIENCE = 5.0
NOWHERE = "http://127.0.0.1:9/"
# Ray would listen on the machine's outward address although it was told the loopback one, and a new cluster asks
# the metadata servers of clouds where it runs.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "http_proxy": NOWHERE, "no_proxy": "127.0.0.1,localhost"}
# A cluster reports even that reporting is off.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_REPORT_URL": NOWHERE, "RAY_DEDUP_LOGS": "0"}


class ClusterError(Exception):
    """No cluster; the message says what to do."""


def connect(address: str, cores: int | None = None) -> str:
    """Join the cluster at `auto`, `local`, `HOST:PORT` or `ray://HOST:PORT`; words for people about it."""
    os.environ.update(QUIET)
    if address == "local" or address.startswith(("127.", "localhost", "ray://127.", "ray://localhost")):
        for name, value in LOOPBACK.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ClusterError("this needs Ray: pip install 'ascend-perf[fleet]' (or pip install ray)") from None
    host, port = _reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        # Ray's store of objects carries bundles and results, no tensors
        options |= {
            "include_dashboard": False, "_node_ip_address": "127.0.0.1", "num_cpus": cores,
            "object_store_memory": 256 << 20,
        }  # fmt: skip
    try:
        ray.init(address=address, **options)
    except ImportError as error:
        raise ClusterError(f"ray:// needs Ray's client: pip install 'ray[client]' ({error})") from None
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClusterError(
            f"no Ray cluster at {address}: {words} Start one (ray start --head), or use --address local"
        ) from None
    return f"{host}:{port}" if host else address


def _reachable(address: str) -> tuple[str, str]:
    """Host and port of an address after a look whether anybody listens: Ray itself waits for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return "", ""
    if not host or not port.isdigit():
        raise ClusterError(f"{address!r} is no address: auto, local, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster at {address}: {getattr(error, 'strerror', None) or error}; is it started, "
            "and does a firewall let this machine in?"
        ) from None
    return host, port


@dataclass
class _Seat:
    """An actor, and what is known of it."""

    name: str
    node: str
    device: str
    actor: Any
    restarts: int = 0
    slot: Slot | None = None
    task: Task | None = None
    asked: float = 0.0


class RayBackend:
    """`fleet.Backend` on the cluster that `connect` joined.

    expected: the versions here that decide modelled numbers.  compilers: those asked for.  machines: only these.
    """

    def __init__(
        self,
        order: Order,
        bundle: bytes,
        *,
        expected: Mapping[str, str],
        compilers: Collection[str],
        machines: Collection[str] = (),
        devices: Sequence[str] = DEVICES,
        cores: float = 1.0,
        slots: int | None = None,
        worker: type[Worker] = Worker,
    ) -> None:
        import ray

        self.worker = worker

        self.ray = ray
        self.order, self.bundle = order, ray.put(bundle)
        self.expected, self.compilers, self.machines = expected, frozenset(compilers), frozenset(machines)
        self.devices, self.cores, self.slots = devices, cores, slots
        self.offsets: dict[str, float] = {}
        self.facts: dict[str, Facts] = {}
        self._seats: dict[str, _Seat] = {}
        self._pending: dict[Any, tuple[str, _Seat]] = {}
        self._ending: dict[Any, Any] = {}
        self._nodes: dict[str, str] = {}
        self._gone: set[str] = set()
        self._looked = -1.0
        self._events: list[Event] = []
        self._seen_refused: set[tuple[str, str]] = set()

    def now(self) -> float:
        return time.monotonic()

    def coming(self) -> bool:
        return self._looked < 0 or any(step != "run" for step, _ in self._pending.values())

    def start(self, slot: Slot, task: Task) -> None:
        seat = self._seats[slot.name]
        seat.task = task
        self._pending[seat.actor.run.remote(task)] = "run", seat

    def drop(self, node: str) -> None:
        self._gone.add(node)
        for seat in [one for one in self._seats.values() if one.node == node and one.task is None]:
            self._end(seat)

    def poll(self, timeout: float) -> list[Event]:
        if self._looked < 0 or self.now() - self._looked >= LOOK_EVERY:
            self._look()
        events, self._events = self._events, []
        if events:
            return events
        if not self._pending:
            time.sleep(min(timeout, 0.2))
            return []
        ready, _ = self.ray.wait(list(self._pending), num_returns=1, timeout=timeout)
        for one in ready:
            step, seat = self._pending.pop(one)
            self._events += getattr(self, f"_after_{step}")(one, seat)
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """End every slot and remove what it left."""
        for seat in list(self._seats.values()):
            self._end(seat, gone=seat.node in self._gone and seat.node not in self._nodes.values())
        self._bury(timeout=20.0)
        for actor in self._ending.values():
            self._kill(actor)
        self._ending.clear()

    def _look(self) -> None:
        """Take note of nodes that came or went."""
        self._looked = self.now()
        self._bury()
        alive: dict[str, dict[str, Any]] = {}
        for row in self.ray.nodes():
            if row["Alive"]:
                alive[row["NodeID"]] = row
        for node in self._nodes.keys() - alive.keys():
            name = self._nodes.pop(node)
            self._events.append(Event("left", name, reason="the node is gone"))
            self._gone.add(name)
        for node, row in alive.items():
            if node not in self._nodes:
                name = f"{row.get('NodeManagerHostname') or 'node'}-{node[:8]}"
                self._nodes[node] = name
                for device, count in self._places(row["Resources"]):
                    for number in range(count):
                        self._seat(node, name, device, f"{name}-{device.lower() or 'cpu'}{number}")

    def _places(self, resources: Mapping[str, float]) -> list[tuple[str, int]]:
        """(device, how many slots) of a node; an empty device is for processor cores."""
        devices = [(one, int(resources.get(one, 0))) for one in self.devices]
        held = sum(count for _, count in devices)
        cores = resources.get("CPU", 0.0) - CORES_OF_A_DEVICE * held
        return [*devices, ("", max(0, min(int(cores / self.cores), self.slots or 1 << 20)))]

    def _seat(self, node: str, name: str, device: str, seat_name: str, restarts: int = 0) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        needs: dict[str, Any] = {"num_cpus": 0 if device else self.cores}
        if device == "GPU":
            needs["num_gpus"] = 1
        elif device:
            needs["resources"] = {device: 1}
        actor: Any = (
            self.ray.remote(self.worker)
            .options(max_restarts=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), **needs)
            .remote(seat_name, device)
        )
        seat = _Seat(seat_name, name, device, actor, restarts)
        self._seats[seat_name] = seat
        self._pending[actor.prepare.remote(self.order, self.bundle)] = "prepare", seat

    def _after_prepare(self, done: Any, seat: _Seat) -> list[Event]:
        try:
            facts: Facts = self.ray.get(done)
        except Exception as error:
            return self._refuse(seat, _words(error, self.ray))
        reason = self._mismatch(seat, facts)
        if reason:
            return self._refuse(seat, reason)
        self.facts[seat.name] = facts
        has = frozenset(facts.compilers)
        if self.machines and facts.machine not in self.machines:
            self._end(seat)
            return []
        seat.slot = Slot(seat.name, seat.node, facts.machine, has)
        seat.asked = time.time()
        self._pending[seat.actor.clock.remote()] = "clock", seat
        lacks = sorted(self.compilers - has) if has or not seat.device else []
        note = f"has no {COMPILER} {', '.join(lacks)} (it has: {', '.join(sorted(has)) or 'none'})"
        return [Event("note", seat.node, reason=note)] if lacks else []

    def _mismatch(self, seat: _Seat, facts: Facts) -> str:
        """Why modelled numbers of this node would belong to another series; empty where they would not."""
        if seat.device:
            return ""
        for name in ("triton-ascend", "torch", "triton", "ascend-model"):
            here, there = self.expected.get(name), facts.versions.get(name)
            if here != there:
                what = name if name in COMPILERS else f"{name}, which is part of a series' name"
                return f"{what}: {there or 'none'} there, {here or 'none'} here"
        if not set(facts.compilers) & self.compilers and self.compilers - {""}:
            wanted = ", ".join(sorted(self.compilers))
            return f"{COMPILER} {', '.join(facts.compilers) or 'none'} there, {wanted} wanted"
        return ""

    def _refuse(self, seat: _Seat, reason: str) -> list[Event]:
        self._end(seat)
        key = seat.node, reason
        if key in self._seen_refused:
            return []
        self._seen_refused.add(key)
        # a node whose device slot works goes on with that
        others = any(one.node == seat.node for one in self._seats.values())
        return [Event("note" if others else "refused", seat.node, reason=reason)]

    def _after_clock(self, done: Any, seat: _Seat) -> list[Event]:
        try:
            there = float(self.ray.get(done))
        except Exception as error:
            return self._refuse(seat, _words(error, self.ray))
        now = time.time()
        offset, doubt = there - (seat.asked + now) / 2, (now - seat.asked) / 2
        events = []
        if abs(offset) > SKEW + doubt:
            if seat.node not in self.offsets:
                way = "ahead" if offset > 0 else "behind"
                note = f"its clock is {abs(offset):.0f} s {way}; times in its results are corrected"
                events.append(Event("note", seat.node, reason=note))
            self.offsets[seat.node] = offset
        return [*events, Event("joined", seat.node, slot=seat.slot)]

    def _after_run(self, done: Any, seat: _Seat) -> list[Event]:
        task, seat.task = seat.task, None
        try:
            outcome = self.ray.get(done)
        except Exception as error:
            reason = _words(error, self.ray)
            self._end(seat, gone=True)
            node = next((one for one, name in self._nodes.items() if name == seat.node), None)
            if node and seat.node not in self._gone and seat.restarts < RESTARTS:
                self._seat(node, seat.node, seat.device, seat.name, seat.restarts + 1)
            return [Event("lost", seat.node, slot=seat.slot, task=task, reason=reason)]
        if seat.node in self._gone:
            self._end(seat)
        return [Event("finished", seat.node, slot=seat.slot, task=task, outcome=outcome)]

    def _end(self, seat: _Seat, gone: bool = False) -> None:
        """Use a seat no more; its process ends once it has removed what it left."""
        if self._seats.get(seat.name) is seat:
            del self._seats[seat.name]
        if gone:
            self._kill(seat.actor)
        else:
            self._ending[seat.actor.close.remote()] = seat.actor

    def _bury(self, timeout: float = 0.0) -> None:
        """End the processes that have removed what they left."""
        if self._ending:
            ready, _ = self.ray.wait(list(self._ending), num_returns=len(self._ending), timeout=timeout)
            for one in ready:
                self._kill(self._ending.pop(one))

    def _kill(self, actor: Any) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(actor)


def _words(error: Exception, ray: Any) -> str:
    """One line for people about an error of Ray or of a worker."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, WorkerError) or isinstance(error, WorkerError):
        return str(cause or error)
    if isinstance(error, ray.exceptions.RayActorError):
        return "the node is gone" if "node has died" in str(error) else "its process ended"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def disconnect() -> None:
    """Leave the cluster; a local one ends."""
    import ray

    with contextlib.suppress(Exception):
        ray.shutdown()
