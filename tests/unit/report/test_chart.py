"""Charts: what is drawn is where it belongs, whatever the numbers and names are."""

from __future__ import annotations

import json
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hyrt.report.html.chart import (
    HEIGHT,
    MAX_LIVE_POINTS,
    MAX_POINTS,
    MAX_ROWS,
    WIDTH,
    Chart,
    Series,
    downsample,
    ticks,
)

ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)
NAME = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(chart.svg)


def points(path: str) -> list[tuple[float, float]]:
    """The corners of a drawn line, from its own commands."""
    found: list[tuple[float, float]] = []
    for letter, words in re.findall(r"([MLHVh])([^MLHVh]*)", path):
        numbers = [float(word) for word in words.split()]
        match letter:
            case "M" | "L":
                found.append((numbers[0], numbers[1]))
            case "H":
                found.append((numbers[0], found[-1][1]))
            case "V":
                found.append((found[-1][0], numbers[0]))
    return found


@given(st.lists(ANY, min_size=1, max_size=50), NAME, NAME, st.booleans(), st.booleans())
def test_any_numbers_and_names_make_a_picture(
    values: list[float], name: str, text: str, step: bool, cut: bool
) -> None:
    series = Series(name=name, x=range(len(values)), y=values)
    chart = Chart(
        key="loss",
        title=text,
        series=[series],
        marks=[(0, text)],
        bands=[(0, 1, 9, name)],
        step=step,
        clips_outliers=cut,
    )
    svg = drawn(chart)
    assert svg.get("aria-label") == text
    lines = [path for path in svg.iter("path") if "line" in (path.get("class") or "")]
    assert bool(lines) == any(map(math.isfinite, values))
    for line in lines:
        assert line.findtext("title") == name
        for x, y in points(line.get("d") or ""):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
    heads, rows = chart.table
    assert all(len(row) == len(heads) for row in rows)
    assert len(rows) <= MAX_ROWS


def test_a_point_is_drawn_in_proportion() -> None:
    chart = Chart(key="loss", title="t", series=[Series(name="s", x=[0, 5, 10], y=[0.0, 2.0, 10.0])])
    (line,) = [path for path in drawn(chart).iter("path") if "line" in (path.get("class") or "")]
    (x0, y0), (x1, y1), (x2, y2) = points(line.get("d") or "")
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert (y0 - y1) / (y0 - y2) == pytest.approx(0.2, abs=0.01)


def test_what_the_script_is_given_are_the_points_of_the_lines() -> None:
    ys = [1.0, math.nan, 2.0004999, 1e9]
    chart = Chart(
        key="loss",
        title="t",
        series=[Series(name="</script>", x=[3, 4, 10, 11.5], y=ys, colour=9, dashed=True)],
        unit="s",
        marks=[(5, "a <b>")],
    )
    assert "<" not in chart.points
    told = json.loads(chart.points)
    (line,) = told["lines"]
    assert line == {"name": "</script>", "colour": 1, "dashed": True, "dx": [3, 7, 1.5], "y": [1, 2, 1e9]}
    assert (told["unit"], told["marks"], told["top"]) == ("s", [[5, "a <b>"]], None)
    long = Chart(key="loss", title="t", series=[Series(name="s", x=range(9999), y=[7.0, *range(9998)])])
    (line,) = json.loads(long.points)["lines"]
    assert len(line["y"]) <= MAX_LIVE_POINTS + 2
    assert sum(line["dx"]) == 9998
    assert line["y"][-1] == pytest.approx(9997, rel=1e-3)


def test_steps_hold_until_the_next_point() -> None:
    chart = Chart(key="loss", title="t", series=[Series(name="s", x=[0, 10], y=[1.0, 3.0])], step=True)
    (line,) = [path for path in drawn(chart).iter("path") if "line" in (path.get("class") or "")]
    first, corner, last = points(line.get("d") or "")
    assert corner == (last[0], first[1])


def test_a_few_values_far_off_leave_the_frame_and_are_told() -> None:
    values = [1.0] * 99 + [1000.0]
    cut = Chart(key="loss", title="t", series=[Series(name="s", x=range(100), y=values)], clips_outliers=True)
    assert cut.top == 1.5
    assert cut.note == "1 of 100 values are outside the frame, up to 1e+03"
    whole = Chart(key="loss", title="t", series=cut.series)
    assert whole.top == math.inf
    assert not whole.note
    assert cut.table[1][-1][1] == "1e+03"


@example(360287970190.0, 6.103515625e-05)
@given(
    st.floats(-1e12, 1e12, allow_nan=False).map(lambda x: round(x, 6)),
    st.floats(1e-6, 1e12, allow_nan=False),
)
def test_ticks_surround_and_are_few(low: float, width: float) -> None:
    high = low + width
    found = ticks(low, high)
    assert found[0] < found[-1]
    assert found == sorted(found)
    assert 2 <= len(found) <= 9
    slack = 1e-6 * (abs(low) + abs(high))
    assert found[0] <= low + slack
    assert found[-1] >= high - slack


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4000))
def test_thinning_keeps_extremes_and_order(values: list[float]) -> None:
    whole = list(enumerate(values))
    few = downsample(whole, MAX_POINTS)
    assert len(few) <= max(len(whole) if len(whole) <= MAX_POINTS else 0, MAX_POINTS + 2)
    assert [x for x, _ in few] == sorted(x for x, _ in few)
    assert set(few) <= set(whole)
    assert {min(values), max(values)} <= {y for _, y in few}
    assert (few[0], few[-1]) == (whole[0], whole[-1])
