"""Options and the fixture; all that every pytest run loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ascend_pytest.checking import Ascend

OPTIONS = {
    "ascend_missing": (
        "what a test of the fixture `ascend` does where the Ascend compiler is not installed: skip or fail",
        "skip",
    ),
    "ascend_compilers": ("ascendnpu-ir versions for tests that name none, comma-separated", ""),
    "ascend_target": ("target for tests that name none", "Ascend910B1"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ascend", "Triton kernels for Ascend, without an NPU")
    for name, (words, default) in OPTIONS.items():
        choices = ("skip", "fail") if name == "ascend_missing" else None
        group.addoption("--" + name.replace("_", "-"), choices=choices, help=words)
        parser.addini(name, f"{words} (default: {default or 'the installed one'})", default=default)


@pytest.fixture
def ascend(request: pytest.FixtureRequest) -> Ascend:
    """`ascend.check(kernel, grid, args, constants, expected={"out": tensor})`: compile, execute, fail on what is
    wrong; returns the modelled numbers."""

    def option(name: str) -> str:
        return request.config.getoption(name) or request.config.getini(name)

    missing = option("ascend_missing")
    if missing not in ("skip", "fail"):
        raise pytest.UsageError(f"ascend_missing = {missing}: expected skip or fail")
    try:
        from ascend_model.lower import known_target
        from ascend_pytest.checking import Ascend
    except ModuleNotFoundError as error:
        reason = f"{error.name} is not installed here: `pip install 'ascend-perf[model]'`"
        (pytest.skip if missing == "skip" else pytest.fail)(reason)
    try:
        target = known_target(option("ascend_target"))
    except ValueError as error:
        raise pytest.UsageError(f"ascend_target: {error}") from error
    compilers = [one.strip() for one in option("ascend_compilers").split(",") if one.strip()]
    return Ascend(tuple(compilers), target, missing == "fail")
