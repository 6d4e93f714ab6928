"""Kernels that are none of ours: each ends right or in a named state, and the page says what a fresh run says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascend_model import Finding, Simulation, toolchain
from ascend_model.costs import load_costs
from ascend_model.memory import Machine
from ascend_model.timeline import Timeline
from tests.outside_kernels import KERNELS, mismatch
from tests.outside_kernels.__main__ import PAGE, cell, escaped, main, number
from tests.outside_kernels.case import Launch
from tests.outside_kernels.faults import FAULTS, RIGHT, UNEXPLAINED, UNSAFE, WRONG, first_line, judge, outcome

PINNED = "1.2.0"
ABSENT = ("not on the page",) * 6
ROWS = dict(
    (line.split("|")[1].strip(" `"), [part.strip() for part in line.replace("\\|", "¦").split("|")[1:-1]])
    for line in PAGE.read_text().splitlines()
    if line.startswith("| `")
)
VERSIONS = PAGE.read_text().partition("one entry for each of ")[2].partition(".\n")[0].split(", ")
here = pytest.mark.skipif(PINNED not in toolchain.available_versions(), reason="the page's figures are of 1.2.0")


def on(text: str, version: str) -> str:
    """What a cell of the page says about one version."""
    parts = text.split(" / ")
    return parts[VERSIONS.index(version)] if len(parts) == len(VERSIONS) else text


def agrees_with_the_page(name: str, version: str) -> None:
    one = outcome(KERNELS[name], version)
    assert one.state != UNEXPLAINED, one.why
    _, _, state, cycles, bound, scalar = (on(text, version) for text in ROWS.get(name, ABSENT))
    fresh = (escaped(cell(one)), number(one.cycles), number(one.bound), number(one.scalar))
    assert (state, cycles, bound, scalar) == fresh, "run `python -m tests.outside_kernels`"


@pytest.mark.compiler
@here
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_right_or_in_a_named_state_as_the_page_says(name):
    agrees_with_the_page(name, PINNED)


TELLING = [
    name
    for name in KERNELS
    if name.startswith("narrow") or any(fault in ROWS.get(name, ABSENT)[2] for fault in FAULTS)
]


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("version", [v for v in toolchain.available_versions() if v != PINNED and v in VERSIONS])
@pytest.mark.parametrize("name", [*TELLING, "pack_int4", "max_pool_2d", "with_print", "atomic_bits"])
def test_faults_and_rare_forms_on_the_other_compilers(name, version):
    agrees_with_the_page(name, version)


def test_the_page_has_every_kernel_and_every_kind_of_code():
    assert list(ROWS) and set(ROWS) == set(KERNELS)
    assert len({kernel.group for kernel in KERNELS.values()}) >= 9
    assert len(KERNELS) >= 36
    assert {fault.smallest for fault in FAULTS.values()} <= set(KERNELS)


# ---- a wrong outcome is seen


def ended(status="ok", kinds=(), message=""):
    counts = {"scalar_accesses": 0} if status in ("ok", "out of bounds", "endless loop") else {}
    findings = tuple(Finding(kind, "", "", 0) for kind in kinds)
    return Simulation(status, message, counts=counts, cycles=5, bound_cycles=1, findings=findings)


def launch(got, **faults):
    return Launch((1,), {"out": torch.tensor(got)}, {"out": torch.tensor([1, 2])}, faults=faults)


SHIFTED = {"signed shift": {"out": torch.tensor([1, 7])}}
READ = {"masked lanes read": {"out": torch.tensor([1, 2])}}


@pytest.mark.parametrize(
    ("made", "done", "state"),
    [
        (launch([1, 2]), ended(), RIGHT),
        (launch([1, 3]), ended(), UNEXPLAINED),
        (launch([1, 7], **SHIFTED), ended(), WRONG),
        (launch([1, 8], **SHIFTED), ended(), UNEXPLAINED),
        (launch([1, 7], **SHIFTED), ended(kinds=["missing wait"]), UNEXPLAINED),
        (launch([1, 2]), ended(kinds=["write-write race"]), UNEXPLAINED),
        (launch([1, 2], **READ), ended("out of bounds", ["out of bounds read"]), UNSAFE),
        (launch([1, 2], **READ), ended("out of bounds", ["out of bounds write"]), UNEXPLAINED),
        (launch([1, 3], **READ), ended("out of bounds", ["out of bounds read"]), UNEXPLAINED),
        (launch([1, 2]), ended("endless loop"), UNEXPLAINED),
        (launch([0, 0], **{"swapped value returned": None}), ended("endless loop"), WRONG),
        (launch([0, 0]), ended("unsupported: cube"), "refused"),
        (launch([0, 0]), ended("ub overflow", message="error: ub overflow"), "does not compile"),
    ],
)
def test_outcomes(made, done, state):
    one = judge(made, done)
    assert one.state == state
    assert (one.cycles is None) == (state not in (RIGHT, UNSAFE))


@pytest.mark.compiler
def test_a_wrong_result_of_a_survey_kernel_is_unexplained():
    kernel = KERNELS["bias_add"]

    def off_by_one(g):
        made = kernel.make(g)
        return replace(made, expected={"out_ptr": made.expected["out_ptr"] + 1})

    assert outcome(replace(kernel, make=off_by_one), PINNED).state == UNEXPLAINED


def test_mismatch_names_the_element():
    made = Launch((1,), {"out": torch.tensor([1.0, 2.5])}, {"out": torch.tensor([1.0, 2.0])}, 0.1)
    assert mismatch(made) == "out: 1 of 2 differ, first at 1: 2.5 for 2.0"
    nan = torch.tensor([float("nan")])
    assert mismatch(Launch((1,), {"out": torch.ones(1)}, {"out": nan}, 0.1))
    assert not mismatch(Launch((1,), {"out": nan}, {"out": nan.clone()}, 0.1))


def test_the_telling_line_of_a_compilers_words():
    assert first_line("noise\nfile.py:3:4: error: no such op\nmore") == "no such op"
    assert first_line("CompilationError: at 1:0:\nValueError: type fp8e4nv not supported") == (
        "ValueError: type fp8e4nv not supported"
    )
    assert first_line("") == ""


# ---- the command


@pytest.mark.compiler
def test_the_command_prints_and_refuses(capsys):
    assert main(["outer_add", "--compiler", PINNED]) == 0
    assert "outer_add" in capsys.readouterr().out
    assert main(["outer_add", "--compiler", PINNED, "--json"]) == 0
    assert '"state": "right"' in capsys.readouterr().out
    assert main(["no_such_kernel"]) == 4
    assert "no kernel 'no_such_kernel'" in capsys.readouterr().err
    assert main(["outer_add", "--compiler", "9.9.9"]) == 4
    assert main(["--nonsense"]) == 4


# ---- bit masks whose rows start every so many bytes


@given(data=st.data())
def test_strided_bit_masks_hold_their_bits_and_no_others(data):
    """Against a plain list of bits; bytes nothing wrote stay unwritten, bits between the rows stay as they are."""
    machine = Machine(Timeline(load_costs().table()), [])
    alloc = machine.add_alloc("mask", 32, 256)
    machine.layout()
    machine.begin(0)
    rows, lanes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 20))
    start = data.draw(st.integers(0, 7))
    stride = 8 * data.draw(st.integers(-(-(start + lanes) // 8), 40 // max(1, rows) + 3))
    first = 8 * 32 + start
    access = machine.access(alloc, "i1", first, (rows, lanes), (stride, 1))
    bits = data.draw(st.lists(st.booleans(), min_size=rows * lanes, max_size=rows * lanes))
    values = np.array(bits).reshape(rows, lanes)
    before = [int(machine.ub[i // 8]) >> i % 8 & 1 for i in range(8 * 32, 8 * 288)]
    machine.put(access, values)
    assert np.array_equal(machine.get(access), values)
    want = list(before)
    for row in range(rows):
        for lane in range(lanes):
            want[start + row * stride + lane] = int(values[row, lane])
    after = [int(machine.ub[i // 8]) >> i % 8 & 1 for i in range(8 * 32, 8 * 288)]
    assert after == want
    machine.define(access)
    written = {32 + (start + row * stride + lane) // 8 for row in range(rows) for lane in range(lanes)}
    assert {i for i in range(32, 288) if not machine.shadow[i]} == written
    assert machine.undefined(access) is None
