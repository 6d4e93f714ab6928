"""No own implementation carries offsets through a loop.

Loop-carried offset vectors that reach a pointer or a mask were miscompiled by several backends, and several forms
of them compile for Ascend into accesses outside the tile.  Twins do it on purpose.
"""

import ast
import inspect
import textwrap

import pytest

from ascend_kernels.harness.launch import recorded, run_with
from ascend_kernels.harness.spec import Op
from ascend_kernels.registry import OPS

ACCESSES = ("load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg")


def names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def carried_offsets(source: str) -> list[str]:
    """Vectors made from `arange` before a loop, changed inside it, that reach an address or a mask there."""
    function = ast.parse(textwrap.dedent(source)).body[0]
    found = []
    vectors: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            made = any(isinstance(n, ast.Attribute) and n.attr == "arange" for n in ast.walk(node.value))
            if made or names(node.value) & vectors:
                vectors.add(node.targets[0].id)
    for loop in (n for n in ast.walk(function) if isinstance(n, ast.For | ast.While)):
        changed, made_here = set(), set()
        for node in (n for statement in loop.body for n in ast.walk(statement)):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                changed |= {node.target.id} - made_here
            elif isinstance(node, ast.Assign):
                for target in (t for t in node.targets if isinstance(t, ast.Name)):
                    if target.id in names(node.value):
                        changed |= {target.id} - made_here
                    else:
                        made_here.add(target.id)
        used: set[str] = set()
        for call in (n for n in ast.walk(loop) if isinstance(n, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in ACCESSES:
                parts = call.args[:1] + [k.value for k in call.keywords if k.arg == "mask"]
                used |= set().union(*(names(part) for part in parts))
        found += sorted(changed & used & vectors)
    return found


def launched_kernels(op: Op) -> dict[str, object]:
    """Kernels that the own implementations of an op launch on its first quick case."""
    seen: dict[str, object] = {}
    for impl in op.implementations:
        with recorded() as launches:
            op.calls()[impl](**op.cases[op.quick_cases()[0]].arguments())
        for launch in launches:
            kernel = launch.kernel
            while hasattr(kernel, "fn"):
                kernel = kernel.fn
            seen[f"{kernel.__module__}.{kernel.__name__}"] = kernel
    return seen


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_own_kernels_derive_their_offsets(op):
    kernels = launched_kernels(op)
    assert kernels
    for name, kernel in kernels.items():
        assert carried_offsets(inspect.getsource(kernel)) == [], name


@pytest.mark.parametrize("twin", ["carried", "carried-at-top", "carried-in-while", "carried-by-where"])
def test_the_lint_sees_the_twins(twin):
    op = OPS["assign_req_to_token_pool"]
    seen = []
    with run_with(lambda launch: seen.append(launch.kernel)):
        op.calls()[twin](**op.cases["ragged"].arguments())
    assert carried_offsets(inspect.getsource(seen[0].fn)) == ["offset"]
