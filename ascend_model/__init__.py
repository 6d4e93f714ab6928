"""What the Ascend compiler makes of a Triton kernel, and what that costs. Needs no NPU."""

from ascend_model.compile import Compiled, compile_kernel
from ascend_model.costs import Costs, load_costs
from ascend_model.lower import stand_in_driver
from ascend_model.memory import Finding
from ascend_model.metrics import METRICS, Metric, combined, static_counts
from ascend_model.simulate import FAULTS, NOT_MODELLED, Simulation, simulate, simulate_text

MODEL_VERSION = load_costs().version

__all__ = [
    "FAULTS",
    "METRICS",
    "MODEL_VERSION",
    "NOT_MODELLED",
    "Compiled",
    "Costs",
    "Finding",
    "Metric",
    "Simulation",
    "combined",
    "compile_kernel",
    "load_costs",
    "simulate",
    "simulate_text",
    "stand_in_driver",
    "static_counts",
]
