"""What one series of results is: a benchmark, its parameters, a machine and an environment."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass

OK = "ok"
WRONG = "wrong result"
UNSUPPORTED = "unsupported here"
COMPILE_FAILED = "compile failed"
CRASHED = "crashed or timed out"
BUILD_FAILED = "build failed"
NOT_RUN = "not run"
STATES = (OK, WRONG, UNSUPPORTED, COMPILE_FAILED, CRASHED, BUILD_FAILED, NOT_RUN)
STATE_CODE = {state: code for code, state in enumerate(STATES)}
# Neither good nor bad: nothing was claimed about the kernel.
SILENT_STATES = (UNSUPPORTED, NOT_RUN)
# Reason of a row that is `not run` because the measured commit has no such op, case or implementation.
ABSENT = "not at this commit"

COMPILERS = ("triton-ascend", "ascendnpu-ir", "ascend-model")


@dataclass(frozen=True, slots=True)
class Environment:
    """What a result was made with: Python, requirements, environment variables; sorted pairs."""

    name: str
    pairs: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        """Version of one requirement, or an empty string."""
        return dict(self.pairs).get(name, "")

    @property
    def versions(self) -> dict[str, str]:
        return dict(self.pairs)

    @property
    def label(self) -> str:
        """Short name for people: the pairs that say something."""
        return ", ".join(f"{key} {value}".strip() for key, value in self.pairs) or self.name


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a graph.  `params` are in the order of `param_names`, unquoted."""

    benchmark: str
    params: tuple[str, ...]
    param_names: tuple[str, ...]
    machine: str
    environment: Environment
    version: str
    unit: str

    @classmethod
    def named(cls, benchmark: str) -> Series:
        """What a benchmark's name alone tells: its suite, op and metric, and whether it is of a kernel."""
        return cls(benchmark, (), (), "", Environment("", ()), "", "")

    @classmethod
    def of_suite(cls, suite: str) -> Series:
        """What a suite's name alone tells, such as its op."""
        return cls.named(f"{suite}.")

    @property
    def suite(self) -> str:
        """Module and class of the benchmark; the key under which states are kept."""
        return self.benchmark.rpartition(".")[0]

    @property
    def metric(self) -> str:
        return _metric_of(self.benchmark)

    @property
    def modelled(self) -> bool:
        return self.suite.rpartition(".")[2].startswith("Modelled") or self.unit.endswith("(modelled)")

    @property
    def of_kernel(self) -> bool:
        """Whether this is a number of a kernel: any other benchmark, such as this suite's own speed, is a time of
        this computer, neither modelled nor measured on a device."""
        return self.modelled or self.suite.rpartition(".")[2].startswith("Measured")

    @property
    def deterministic(self) -> bool:
        """Bit-identical from run to run, so that any change is a change."""
        return self.modelled

    @property
    def of_host(self) -> bool:
        """Time of the code around a kernel, which changes while the compiled kernel does not."""
        return self.metric.startswith("host")

    @property
    def op(self) -> str:
        """The op's name; for a suite that is neither modelled nor measured, the class's own name."""
        name = self.suite.rpartition(".")[2]
        return _snake(re.sub(r"^(Modelled|Measured)(?=[A-Z0-9])", "", name))

    @property
    def case(self) -> str:
        return self._param("case")

    @property
    def impl(self) -> str:
        return self._param("impl")

    @property
    def direction(self) -> str:
        return direction_of(self.unit)

    @property
    def title(self) -> str:
        """Benchmark and parameters as asv writes them."""
        return self.benchmark + (f"({', '.join(self.params)})" if self.params else "")

    def _param(self, name: str) -> str:
        return dict(zip(self.param_names, self.params)).get(name, "")


@functools.lru_cache(maxsize=1 << 14)
def _metric_of(benchmark: str) -> str:
    return re.sub(r"^(track|time|timeraw|mem|peakmem)_", "", benchmark.rpartition(".")[2])


@functools.lru_cache(maxsize=1 << 14)
def direction_of(unit: str) -> str:
    """`higher` for rates, fractions of a roof and what the model says so of, `lower` for everything else."""
    plain = unit.replace("(modelled)", "").strip().lower()
    modelled = plain != unit.strip().lower() and plain in _higher_units()
    rate = plain.endswith("/s") or plain.startswith("fraction of roof")
    return "higher" if modelled or rate else "lower"


@functools.cache
def _higher_units() -> frozenset[str]:
    from ascend_model import METRICS

    return frozenset(metric.unit.lower() for metric in METRICS.values() if metric.better == "higher")


def headline(unit: str) -> bool:
    """Whether a unit is one of time or cycles: what the other metrics of a launch explain."""
    return unit.removesuffix("(modelled)").strip() in ("cycles", "ns", "us", "ms", "s", "seconds")


def worse(size: float, direction: str) -> bool:
    """Whether a relative change goes the wrong way."""
    return size < 0 if direction == "higher" else size > 0


def unquote(text: str) -> str:
    """asv keeps a parameter's repr; the string itself where it was a string."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        if isinstance(value, str):
            return value
    return text


@functools.lru_cache(maxsize=1 << 14)
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
