from __future__ import annotations

from hyrt.formatting import format_bytes, format_following_duration, format_milliseconds, parse_int, pluralize


def test_sizes_name_a_unit_that_suits() -> None:
    numbers = (0, 1, 5, 2048, 3 << 20, 7 << 30, 700 * 2**20, 3 << 40)
    assert [format_bytes(number) for number in numbers] == [
        "0 bytes", "1 byte", "5 bytes", "2 KiB", "3 MiB", "7 GiB", "700 MiB", "3 TiB"
    ]  # fmt: skip


def test_milliseconds_have_three_digits() -> None:
    assert [format_milliseconds(time_s) for time_s in (0.0, 0.0091, 1.24)] == ["0", "9.10", "1,240"]


def test_one_thing_is_no_plural() -> None:
    assert [pluralize(number, "split") for number in (0, 1, 2000)] == ["0 splits", "1 split", "2,000 splits"]
    assert [pluralize(number, "class", "classes") for number in (1, 7)] == ["1 class", "7 classes"]


def test_a_time_beside_another_is_told_in_its_unit_or_with_its_own() -> None:
    pairs = ((3.4, 3.5), (0.02, 0.03), (0.0155, 0.2), (0.002, 0.2), (130.0, 400.0))
    assert [format_following_duration(*pair) for pair in pairs] == [
        "3.4",
        "20",
        "0.02",
        "2.0 ms",
        "2 min 10 s",
    ]


def test_whole_numbers_are_of_plain_digits() -> None:
    assert [parse_int(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]
    others = ("", "-1", "+1", "1_0", " 1", "1.0", "1e3", "١", "²", "9" * 19, "9" * 5000, "1\n")
    assert [parse_int(text) for text in others] == [None] * len(others)
