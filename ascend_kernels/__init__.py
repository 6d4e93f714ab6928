"""Triton kernels for Huawei Ascend NPUs, with references and cases.  Needs torch and triton only.

Every public op can be imported from here and from its family's package.  On a host without an NPU or GPU the
ops run on CPU tensors through Triton's interpreter, which is switched on here, before triton is imported.
Families are loaded when first asked for.
"""

import importlib
import pkgutil
from typing import Any

from .harness import interpreter

interpreter.enable_on_cpu()


def families() -> list[str]:
    """Names of the kernel families: the subpackages beside the harness."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.ispkg and m.name != "harness")


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        for family in families():
            package = importlib.import_module(f"{__name__}.{family}")
            if name in package.__all__:
                return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names = [n for family in families() for n in importlib.import_module(f"{__name__}.{family}").__all__]
    return sorted([*names, "families"])
