"""Results of compilers and models stay inside the checkout unless told otherwise."""

import os
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("ASCEND_PERF_CACHE", str(Path(__file__).parent.parent / ".asv" / "cache"))
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import ascend_kernels  # noqa: F401  before any test imports triton: it switches the interpreter on

# No test depends on how fast the machine is.
hypothesis.settings.register_profile("no_deadline", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("no_deadline")


def pytest_collection_modifyitems(items):
    from ascend_model import toolchain

    if toolchain.available_versions() and toolchain.triton_ascend_version():
        return
    skip = pytest.mark.skip(reason="the Ascend compiler is not installed (extra `model`)")
    for item in items:
        if "compiler" in item.keywords:
            item.add_marker(skip)
