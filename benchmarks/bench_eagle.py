"""EAGLE ops: one suite an op, generated from the registry; `decode_step` is the whole step of the scenario."""

from ascend_kernels.harness.suite import Family
from ascend_kernels.registry import OPS

FAMILY = Family("eagle", OPS)


def setup_cache():
    return FAMILY.prepare()


globals().update(FAMILY.suites(__name__))
