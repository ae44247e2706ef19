from __future__ import annotations

from hyrt.quantities import counted, duration_beside, milliseconds, size, whole_number


def test_sizes_name_a_unit_that_suits() -> None:
    numbers = (0, 1, 5, 2048, 3 << 20, 7 << 30, 700 * 2**20, 3 << 40)
    assert [size(number) for number in numbers] == [
        "0 bytes", "1 byte", "5 bytes", "2 KiB", "3 MiB", "7 GiB", "700 MiB", "3 TiB"
    ]  # fmt: skip


def test_milliseconds_have_three_digits() -> None:
    assert [milliseconds(time_s) for time_s in (0.0, 0.0091, 1.24)] == ["0", "9.10", "1,240"]


def test_one_thing_is_no_plural() -> None:
    assert [counted(number, "split") for number in (0, 1, 2000)] == ["0 splits", "1 split", "2,000 splits"]
    assert [counted(number, "class", "classes") for number in (1, 7)] == ["1 class", "7 classes"]


def test_a_time_beside_another_is_told_in_its_unit_or_with_its_own() -> None:
    pairs = ((3.4, 3.5), (0.02, 0.03), (0.0155, 0.2), (0.002, 0.2), (130.0, 400.0))
    assert [duration_beside(*pair) for pair in pairs] == ["3.4", "20", "0.02", "2.0 ms", "2 min 10 s"]


def test_whole_numbers_are_of_plain_digits() -> None:
    assert [whole_number(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]
    others = ("", "-1", "+1", "1_0", " 1", "1.0", "1e3", "١", "²", "9" * 19, "9" * 5000, "1\n")
    assert [whole_number(text) for text in others] == [None] * len(others)
