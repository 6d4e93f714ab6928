"""Padded MoE ops: one suite an op, generated from the registry."""

from ascend_kernels.harness.suite import Family
from ascend_kernels.registry import OPS

FAMILY = Family("padded_moe", OPS)


def setup_cache():
    return FAMILY.prepare()


globals().update(FAMILY.suites(__name__))
