"""Every op of the registry, through the gate: values against the reference, everywhere it can run.

A row in the registry is enough to be tested here.
"""

import dataclasses

import pytest

from ascend_kernels.harness import gate
from ascend_kernels.harness.model import Modelled
from ascend_kernels.harness.spec import OK, UNSUPPORTED, Op
from ascend_kernels.registry import OPS


def rows(which):
    return list(_rows(which))


def _rows(which):
    for op in OPS.values():
        for case in op.cases:
            if which != "edge" and not op.cases[case].quick:
                continue
            if which == "edge" and (op.cases[case].quick or op.cases[case].timed):
                continue
            own = (*op.implementations, *op.gpu)
            for impl in op.names("cpu") if which == "compiled" else op.calls() if which == "quick" else own:
                yield pytest.param(op, case, impl, id=f"{op.name}-{case}-{impl}")


def known_states(op: Op, impl: str) -> tuple[str, ...]:
    """An own implementation is right; a twin ends as its row says."""
    return op.twins[impl].states if impl in op.twins else (OK,)


@pytest.mark.parametrize("op, case, impl", rows("quick"))
def test_quick_case_in_the_interpreter(op: Op, case: str, impl: str):
    verdict = gate.verify(op, case, impl)
    assert verdict.state in known_states(op, impl), verdict.reason


@pytest.mark.parametrize("op, case, impl", rows("edge"))
def test_edge_case_in_the_interpreter(op: Op, case: str, impl: str):
    verdict = gate.verify(op, case, impl)
    assert verdict.state == OK, verdict.reason


@pytest.mark.compiler
@pytest.mark.parametrize("op, case, impl", rows("compiled"))
def test_quick_case_in_compiled_code(op: Op, case: str, impl: str):
    runner = Modelled(unsafe=impl in op.twins)
    verdict = gate.verify(op, case, impl, runner, repeat=False)
    if verdict.reason.startswith("unsupported: cube"):
        pytest.skip("the model knows no cube unit")
    assert verdict.state in known_states(op, impl), verdict.reason
    assert runner.simulations
    if impl not in op.twins or op.twins[impl].safe:
        assert not verdict.findings


@pytest.mark.compiler
@pytest.mark.parametrize(
    "op, twin",
    [pytest.param(op, t, id=f"{op.name}-{t}") for op in OPS.values() for t in op.twins if not op.twins[t].safe],
)
def test_hazard_of_an_unsafe_twin_is_found(op: Op, twin: str):
    verdicts = [gate.verify(op, case, twin, Modelled(unsafe=True), repeat=False) for case in op.quick_cases()]
    assert any(verdict.findings for verdict in verdicts)


def lacking(op: Op) -> str:
    """What a row of this registry must have and this one does not, and what to write; empty for a complete one."""
    wanted = {
        "a case with quick=True: every commit runs it": op.quick_cases(),
        "a case with timed=True: it is worth a timing": op.timed_cases(),
        "bytes_moved=: arguments -> bytes that any implementation must read and write": op.bytes_moved,
        "torch_form=: the arguments by name -> what a user would write with torch alone": op.torch_form,
    }
    return "; ".join(
        f"{op.name}'s row in {op.family}/ops.py lacks {one}" for one, there in wanted.items() if not there
    )


def test_a_row_that_is_not_complete_is_told_what_it_lacks():
    op = OPS["assign_req_to_token_pool"]
    assert lacking(op) == ""
    said = lacking(dataclasses.replace(op, bytes_moved=None, torch_form=None))
    assert "assign_req_to_token_pool's row in token_pool/ops.py lacks bytes_moved=: arguments -> bytes" in said
    assert "lacks torch_form=: the arguments by name -> what a user would write with torch" in said
    assert "quick=True" not in said
    cases = {name: dataclasses.replace(case, quick=False, timed=False) for name, case in op.cases.items()}
    assert "lacks a case with quick=True" in lacking(dataclasses.replace(op, cases=cases))


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_row_is_complete(op: Op):
    assert lacking(op) == ""
    assert op.writes or op.reference(**op.cases[op.quick_cases()[0]].arguments()) is not None
    arguments = op.cases[op.quick_cases()[0]].arguments()
    assert op.bytes_moved(arguments) > 0
    assert set(op.writes) <= set(arguments)
    assert len({*op.implementations, *op.gpu, *op.twins}) == len(op.calls())
    assert op.names("cpu") == op.names("npu") == [*op.implementations, *op.twins]
    assert op.names("cuda") == list(op.calls())
    for name in op.gpu:
        verdict = gate.verify(op, op.quick_cases()[0], name, Modelled(), repeat=False)
        assert verdict.state == UNSUPPORTED and "for a GPU" in verdict.reason
    assert op.default("cpu") == op.default("npu") == op.implementations[0]
    assert op.default("cuda") in (*op.implementations, *op.gpu)


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_torch_form_agrees_with_the_reference(op: Op):
    assert op.torch_form is not None, lacking(op)
    for case in op.quick_cases():
        arguments = op.cases[case].arguments()
        actual = gate.run(op.torch_form, arguments, "cpu")
        expected = gate.run(op.reference, arguments, "cpu")
        for name in op.writes:
            got, want = actual.arguments[name].view, expected.arguments[name].view
            assert op.compare(name, got, want, arguments) is None
        assert len(actual.returned) == len(expected.returned)
        for (name, got), (_, want) in zip(actual.returned, expected.returned):
            assert op.compare(name, got, want, arguments) is None


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_cases_are_the_same_at_every_call(op: Op):
    for case in op.quick_cases():
        one, two = (op.cases[case].arguments() for _ in range(2))
        assert list(one) == list(two)
        for name, value in one.items():
            if hasattr(value, "dtype"):
                assert gate.exact(name, value, two[name], {}) is None
            else:
                assert value == two[name]
