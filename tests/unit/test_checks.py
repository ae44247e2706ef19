"""The checks at the public boundary: right values pass as they are, and each wrong one is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hyrt.checks import (
    check_choice,
    check_flag,
    check_ids,
    check_int,
    check_number,
    check_offsets,
    check_range,
    show,
)
from hyrt.errors import ArgumentError, HyrtError


@given(
    st.lists(st.integers(-3, 12), max_size=12),
    st.integers(1, 10),
    st.sampled_from(["int8", "int16", "int32", "int64"]),
    st.booleans(),
)
def test_ids_pass_if_each_is_one_of_the_vertices(
    values: list[int], count: int, dtype: str, distinct: bool
) -> None:
    array = np.array(values, dtype)
    is_right = all(0 <= value < count for value in values) and (
        not distinct or len(set(values)) == len(values)
    )
    if is_right:
        found = check_ids("units", array, count, distinct=distinct)
        assert found.tolist() == values
        assert found.dtype in (np.int32, np.int64)
        assert found.flags.c_contiguous
        assert found.flags.writeable
    else:
        with pytest.raises(ArgumentError, match=r"^units.*: (pass|use|list) "):
            check_ids("units", array, count, distinct=distinct)


def test_the_first_bad_number_is_named_with_its_position() -> None:
    with pytest.raises(
        ArgumentError, match=r"^units\[2\] is -5, but there are only 9 vertices: use numbers from 0 to 8$"
    ):
        check_ids("units", np.array([1, 2, -5, -6]), 9)
    with pytest.raises(ArgumentError, match=r"^x\[0\] is 9223372036854775807, "):
        check_range("x", np.array([2**63 - 1]), 9, "rows")
    with pytest.raises(ArgumentError, match=r"^units contains 4 twice: list each of the vertices only once$"):
        check_ids("units", np.array([4, 1, 4]), 9, distinct=True)


def test_arrays_that_loops_cannot_take_are_copied() -> None:
    array = np.arange(10, dtype=np.int32)
    assert check_ids("x", array, 10) is array
    array.flags.writeable = False
    for values in (array, array[::2], array.astype(np.int16)):
        found = check_ids("x", values, 10)
        assert found.tolist() == values.tolist()
        assert found.flags.writeable


@pytest.mark.parametrize(
    "values",
    [
        None,
        3,
        [1, 2],
        "ab",
        np.array([1.0]),
        np.array([[1]]),
        np.array(1),
        np.array([1], ">i4"),
        np.array([None]),
    ],
)
def test_what_is_no_array_of_whole_numbers_is_refused(values: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^units is .*: pass ids of vertices as a numpy array \[n\]$"):
        check_ids("units", values, 10)


@pytest.mark.parametrize("offsets", [[0, 2, 5], [0, 0, 0, 5], [0, 5, 5, 5]])
def test_offsets_go_up(offsets: list[int]) -> None:
    array = np.array(offsets, np.int32)
    assert check_offsets("indptr", array, len(offsets) - 1, 5, (np.int32,)) is array


@pytest.mark.parametrize("offsets", [[1, 2, 5], [0, 3, 2, 5], [0, 2, 4], [0, 2, 6], [0, 9, 5], [0, -1, 5]])
def test_other_offsets_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ArgumentError, match=r"^indptr must increase from 0 to 5"):
        check_offsets("indptr", np.array(offsets, np.int32), len(offsets) - 1, 5, (np.int32,))
    with pytest.raises(ArgumentError, match=r"^indptr is .*: pass row offsets as"):
        check_offsets("indptr", np.array(offsets, np.int32), len(offsets), 5, (np.int32,))


@pytest.mark.parametrize("value", [True, None, "3", 2.0, 0, 11, np.array(3)])
def test_whole_numbers(value: Any) -> None:
    assert check_int("count", np.int16(3), 1, 10) == 3
    with pytest.raises(ArgumentError, match=r"^count must be .*, got "):
        check_int("count", value, 1, 10)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None, True, -0.1, 1.1, 1j])
def test_numbers(value: Any) -> None:
    assert check_number("rate", np.float32(0.5), 0, 1) == 0.5
    with pytest.raises(ArgumentError, match=r"^rate must be a finite number from 0 to 1, got "):
        check_number("rate", value, 0, 1)


def test_flags_and_words() -> None:
    assert check_flag("force", np.True_) is True
    assert check_choice("op", "add", ("add", "sub")) == "add"
    with pytest.raises(ArgumentError, match=r"^force must be True or False, got 'no'$"):
        check_flag("force", "no")
    for value in ("mul", None, np.arange(3)):
        with pytest.raises(ArgumentError, match=r"^op must be one of add, sub, got "):
            check_choice("op", value, ("add", "sub"))


def test_it_is_both_kinds_of_error() -> None:
    assert issubclass(ArgumentError, HyrtError)
    assert issubclass(ArgumentError, ValueError)


def test_a_value_is_shown_in_one_short_line() -> None:
    assert show(np.zeros((2, 3), np.float32)) == "ndarray float32[2, 3]"
    assert show("a\nb") == r"'a\nb'"
    assert show({"a": 1}) == "{'a': 1}"
    assert show([1] * 100) == "of type list"
    assert show(object()) == "of type object"
    assert len(show("x" * 1000)) < 60


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float64(1.5), "1.5"),
        (np.float32(0.1), "0.1"),
        (np.int8(-3), "-3"),
        (np.True_, "True"),
        (np.float64("nan"), "nan"),
        (np.complex64(1j), "1j"),
        (np.str_("a\nb"), r"'a\nb'"),
        (np.datetime64("2020-01-02"), "2020-01-02"),
        (np.array(2.5), "2.5"),
        (torch.tensor(0.1), "0.1"),
        (torch.tensor(7), "7"),
        (torch.tensor(0.5, dtype=torch.bfloat16), "0.5"),
        (torch.nn.Parameter(torch.tensor(2.0)), "2.0"),
        ([np.float64(1), 2], "[1.0, 2]"),
        ((np.int64(3),), "(3,)"),
        ({"a": np.float32(0.1)}, "{'a': 0.1}"),
        ([torch.zeros(3)], "[Tensor float32[3]]"),
        (torch.zeros(2, 3, dtype=torch.int64), "Tensor int64[2, 3]"),
    ],
)
def test_numbers_of_numpy_and_torch_are_shown_as_numbers(value: Any, text: str) -> None:
    assert show(value) == text


@given(st.floats(allow_nan=False, width=32) | st.integers(-(2**31), 2**31 - 1) | st.booleans())
def test_a_shown_number_reads_as_the_same_number(value: float) -> None:
    for dtype in (np.float32, np.float64) if isinstance(value, float) else (np.int64,):
        assert dtype(show(dtype(value))) == value
        assert dtype(show(torch.tensor(dtype(value)))) == value
    assert show(value) == show(np.asarray(value)[()])
