"""Argument checks of the wrappers: each refusal with its words, and nothing else refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ascend_kernels.harness import check

GRID = torch.zeros(2, 3, dtype=torch.int32)
ELSEWHERE = torch.empty(1, device="meta")

REFUSED = {
    "no tensor": ([1], {}, TypeError, "x: expected a tensor, got list"),
    "dtype": (GRID, {"dtypes": (torch.int64,)}, TypeError, "x: expected dtype int64, got int32"),
    "dtypes": (GRID.bool(), {"dtypes": check.INTEGERS}, TypeError, "x: expected dtype int32 or int64, got bool"),
    "length": (GRID, {"shape": (2, 4)}, ValueError, "x: expected shape [2, 4], got [2, 3]"),
    "shape of a tensor": (GRID, {"shape": GRID.T.shape}, ValueError, "x: expected shape [3, 2], got [2, 3]"),
    "one length": (GRID, {"shape": (None, 4)}, ValueError, "x: expected shape [any, 4], got [2, 3]"),
    "list": (GRID, {"shape": [2, 4]}, ValueError, "x: expected shape [2, 4], got [2, 3]"),
    "dimensions": (GRID, {"shape": (None,)}, ValueError, "x: expected shape [any], got [2, 3]"),
    "no dimensions": (GRID, {"shape": ()}, ValueError, "x: expected shape [], got [2, 3]"),
    "device": (GRID, {"like": ELSEWHERE}, ValueError, "x: expected a tensor on meta, got one on cpu"),
    "layout": (GRID.T, {}, ValueError, "x: expected a contiguous tensor, got strides [1, 3]"),
    "dtype first": (
        GRID.T, {"dtypes": (torch.int64,), "shape": (1,), "like": ELSEWHERE}, TypeError,
        "x: expected dtype int64, got int32",
    ),
    "shape before device": (
        GRID.T, {"shape": (1,), "like": ELSEWHERE}, ValueError, "x: expected shape [1], got [3, 2]"
    ),
    "device before layout": (
        GRID.T, {"like": ELSEWHERE}, ValueError, "x: expected a tensor on meta, got one on cpu"
    ),
}  # fmt: skip


@pytest.mark.parametrize("value, wanted, error, words", REFUSED.values(), ids=REFUSED)
def test_each_refusal_has_its_words(value, wanted, error, words):
    with pytest.raises(error) as raised:
        check.tensor("x", value, **wanted)
    assert str(raised.value) == words


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"dtypes": check.ANY_INTEGER, "shape": (2, 3), "like": GRID},
        {"shape": [2, 3]},
        {"shape": GRID.shape},
        {"shape": (None, None)},
        {"shape": [None, 3]},
        {"shape": (2, None)},
    ],
)
def test_what_fits_is_returned(wanted):
    assert check.tensor("x", GRID, **wanted) is GRID
    assert check.tensor("x", GRID.T, shape=(3, None), contiguous=False).shape == (3, 2)


lengths = st.lists(st.integers(0, 3), max_size=4)


@given(lengths, st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=4), st.sampled_from((list, tuple)))
def test_a_shape_fits_where_every_stated_length_agrees(given, wanted, kind):
    value = torch.zeros(given)
    fits = len(given) == len(wanted) and all(w in (None, g) for g, w in zip(given, wanted))
    if fits:
        assert check.tensor("x", value, shape=kind(wanted)) is value
    else:
        with pytest.raises(ValueError, match="x: expected shape"):
            check.tensor("x", value, shape=kind(wanted))


@pytest.mark.parametrize(
    "value, bounds, error, words",
    [
        (True, {}, TypeError, "n: expected an int, got bool"),
        (1.0, {}, TypeError, "n: expected an int, got float"),
        (-1, {}, ValueError, "n: expected at least 0, got -1"),
        (5, {"least": 1, "most": 4}, ValueError, "n: expected between 1 and 4, got 5"),
    ],
)
def test_numbers(value, bounds, error, words):
    with pytest.raises(error) as raised:
        check.number("n", value, **bounds)
    assert str(raised.value) == words
    assert check.number("n", 3, least=3, most=3) == 3


def test_an_implementation_is_a_name_or_itself():
    known = {"tile": math.sin, "lane": None}
    assert check.implementation("tile", known) is math.sin
    assert check.implementation("lane", known) is None
    assert check.implementation(math.cos, known) is math.cos
    with pytest.raises(ValueError) as raised:
        check.implementation("other", known)
    assert str(raised.value) == "impl: expected one of tile, lane, got 'other'"
