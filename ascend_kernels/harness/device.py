"""Which device the kernels run on, and the few facts a launch plan needs of it.

NPU and CUDA share one code path through `torch.get_device_module`.  On a host with neither, plans are made for
a stated Ascend profile, since the CPU only stands in for an NPU (interpreter or model).  "dry" pretends to be a
device, to try everything around a measurement where there is none (`harness.dry`).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ascend_model.lower import TARGETS

KINDS = ("npu", "cuda", "cpu", "dry")
GRID_LIMIT = 65535  # programs of one launch on Ascend; kept on every device so that plans stay comparable


@dataclass(frozen=True)
class Device:
    """kind: npu, cuda, cpu or dry.  cores: vector cores of an NPU, multiprocessors of a GPU.
    ub_bytes: on-chip buffer of one core a tile must fit (Ascend UB; 0 where there is no such limit).
    present: False for a stated profile of a device that is not there.
    overlaps: a launch may begin before the one in front of it has ended, if it waits for what that one writes."""

    kind: str
    name: str
    cores: int
    ub_bytes: int
    grid_limit: int = GRID_LIMIT
    present: bool = True
    overlaps: bool = False

    def __hash__(self) -> int:
        return hash(self.name)  # asked for in every launch

    @property
    def ascend(self) -> bool:
        """Plans follow Ascend's rules: on an NPU, and on a CPU that stands in for one."""
        return self.kind != "cuda"


# UB as the target description inside the compiler's module states it (ascendnpu-ir 1.2.0).
PROFILES = {name: Device("cpu", name, cores, 196608, present=False) for name, cores in TARGETS.items()}


def kind() -> str:
    """npu, cuda, cpu or dry: `ASCEND_KERNELS_DEVICE`, else what is there."""
    given = os.environ.get("ASCEND_KERNELS_DEVICE", "").lower()
    if given:
        if given not in KINDS:
            raise ValueError(f"ASCEND_KERNELS_DEVICE={given!r}: expected one of {', '.join(KINDS)}")
        return given
    # Asking CUDA itself starts the driver, after which no forked process can use the device.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for name in KINDS[:2]:
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return "cpu"


def present() -> bool:
    """Whether there is a device to measure on, asked without starting it: a process that forks later may."""
    return kind() != "cpu"


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on CPU tensors."""
    return kind() in ("cpu", "dry")


def module(kind: str) -> Any:
    """torch's module of a kind of device: `torch.npu`, `torch.cuda`, or the pretended one."""
    if kind == "dry":
        from . import dry

        return dry.DEVICE
    return torch.get_device_module(kind)


def tensors(kind: str) -> str:
    """Where tensors of a kind of device lie, as torch names it."""
    return "cpu" if kind == "dry" else kind


def target() -> str:
    """The Ascend target that stands for the NPU on a host without one: `ASCEND_KERNELS_TARGET` or 910B1."""
    name = os.environ.get("ASCEND_KERNELS_TARGET", "Ascend910B1")
    if name not in PROFILES:
        raise ValueError(f"ASCEND_KERNELS_TARGET={name!r}: expected one of {', '.join(PROFILES)}")
    return name


@contextlib.contextmanager
def standing_for(target: str) -> Iterator[None]:
    """Make launch plans for this Ascend target where there is no NPU."""
    before = os.environ.get("ASCEND_KERNELS_TARGET")
    os.environ["ASCEND_KERNELS_TARGET"] = target
    try:
        yield
    finally:
        if before is None:
            del os.environ["ASCEND_KERNELS_TARGET"]
        else:
            os.environ["ASCEND_KERNELS_TARGET"] = before


def of(tensor: torch.Tensor) -> Device:
    """The device a tensor lies on, as launch plans see it."""
    return PROFILES[target()] if tensor.is_cpu else _at(tensor.device)


def current() -> Device:
    """The device ops run on by default."""
    name = kind()
    if name == "dry":
        return replace(PROFILES[target()], kind="dry", name="dry run", present=True)
    return PROFILES[target()] if name == "cpu" else _present(name, 0)


@functools.cache
def _at(place: torch.device) -> Device:
    return _present(place.type, place.index or 0)


@functools.cache
def _present(kind: str, index: int) -> Device:
    facts = module(kind).get_device_properties(index)
    if kind == "npu":
        cores = getattr(facts, "vector_core_num", 0) or getattr(facts, "multi_processor_count", 0)
        known = PROFILES.get(str(facts.name))
        if not cores and known is None:
            raise RuntimeError(f"torch.npu reports no vector core count for {facts.name}; update torch_npu")
        return Device("npu", str(facts.name), int(cores or known.cores), known.ub_bytes if known else 196608)
    return Device("cuda", str(facts.name), int(facts.multi_processor_count), 0, overlaps=_overlaps(facts))


def _overlaps(facts: Any) -> bool:
    """Whether a GPU, from Hopper on, and triton know programmatic dependent launch."""
    if torch.version.hip is not None or facts.major < 9:
        return False
    try:
        from triton.language.extra.cuda import gdc_wait  # noqa: F401
    except ImportError:
        return False
    return True


def lost(module: Any) -> str:
    """Why the device no longer answers, or an empty string."""
    try:
        module.synchronize()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return ""
