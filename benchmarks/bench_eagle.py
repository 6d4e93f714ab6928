"""EAGLE ops: one suite an op, generated from the registry; `decode_step` is the whole step of the scenario."""

from ascend_kernels.harness.suite import Family
from ascend_kernels.registry import OPS

FAMILY = Family("eagle", OPS)


def setup_cache():
    return FAMILY.prepare()


class HostDecodeStep:
    """What the host does in one decode step."""

    params = ([1, 4, 8], [1, 3, 5], [1, 16, 64])
    param_names = ("topk", "steps", "page_size")

    def setup(self, *_):
        if "decode_step" not in OPS:
            raise NotImplementedError("this commit has no such op")

    def track_host_launches(self, topk, steps, page_size):
        from ascend_kernels.eagle.decode_step import launches

        return launches(topk, steps, page_size)

    track_host_launches.unit = "launches"
    track_host_launches.version = "1"


globals().update(FAMILY.suites(__name__))
