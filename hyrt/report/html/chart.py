"""Line charts as inline SVG, and pages that are rendered from templates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hyrt.errors import escape_undecodable
from hyrt.report.run_process import explain_write_errors
from hyrt.runtime.files import write_atomically


def render(template: str, **values: Any) -> str:
    """Fill in a template. All values except `Markup` are escaped."""
    return _environment().get_template(template).render(**values)


def write_page(path: Path, page: str, remedy: str = "Choose another --output") -> None:
    """Write a page atomically; if this fails, raise HyrtError with the file and `remedy`."""
    with explain_write_errors(path, remedy):
        write_atomically(path, escape_undecodable(page).encode("utf-8", "replace"))


def pairs(values: Mapping[str, Any]) -> str:
    """Format names and values as text: `cpu:0 256, cuda:0 768`."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("hyrt.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": "{:.0%}".format, "pairs": pairs}
    texts = {
        name: "\n".join(_template(file) for file in files)
        for name, files in {
            "style": ("uplot.min.css", "style.css"),
            "script": ("uplot.min.js", "charts.js"),
        }.items()
    }
    # The licence of uPlot must be in every copy.
    texts["script"] = f"/*\nuPlot: {_template('uplot.LICENSE')}*/\n{texts['script']}"
    environment.globals |= {"Markup": Markup, **{name: Markup(text) for name, text in texts.items()}}
    return environment


def _template(name: str) -> str:
    return Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8")


WIDTH, HEIGHT = 520, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 20, 10, 32
# Maximum number of points of a line, since more are not visible. Each bucket keeps its minimum and maximum.
MAX_POINTS = 400
# Maximum number of points for the page's script, so that the page of a long run is not too large.
MAX_LIVE_POINTS = 240
MAX_ROWS = 60
COLOURS = 8
_MIN_TICK = 1e-300
# Minimum number of values for which outliers are cut off.
_MIN_CUT_VALUES = 20

Number = float | int
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Line of a chart."""

    name: str
    """Name of the line in the legend."""
    x: Sequence[Number]
    y: Sequence[Number]
    """Values of the points at `x`; NaN for missing values."""
    colour: int = 0
    """Index of the line's colour on the page, from 0."""
    dashed: bool = False
    """Whether the line is dashed, as predictions are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart of several lines."""

    key: str
    """Key by which the chart is selected."""
    title: str
    """Title of the chart, with the unit."""
    series: Sequence[Series]
    x_name: str = "step"
    value: Format = "{:.3g}".format
    """Function that formats a y value."""
    unit: str = ""
    """Unit of y values for the page's script: `s`, `%`, `GiB`, or ""."""
    marks: Sequence[tuple[float, str]] = ()
    """Positions and descriptions of events, as (x, text)."""
    step: bool = False
    """Whether each value holds until the next point."""
    bands: Sequence[tuple[float, float, int, str]] = ()
    """Bands below the lower edge, as (from x, to x, colour, name)."""
    clips_outliers: bool = False
    """Whether outliers, such as steps that include compilation or a wait, are cut off at the top."""

    @property
    def note(self) -> str:
        """Description of what the image omits, or ""."""
        points = [y for series in self.series for _, y in _finite(series)]
        top = self.top
        beyond = sum(y > top for y in points)
        longest = max((len(_finite(series)) for series in self.series), default=0)
        parts = []
        if beyond:
            parts.append(
                f"{beyond} of {len(points)} values are outside the frame, up to {self.value(max(points))}"
            )
        if longest > MAX_POINTS:
            group_size = 2 * longest / MAX_POINTS
            parts.append(
                f"showing the lowest and highest of every {group_size:.0f} values, out of {longest:,}"
            )
        return "; ".join(parts)

    @property
    def numbers(self) -> str:
        """Title of the table, with the number of rows."""
        num_rows = len({float(x) for series in self.series for x in series.x})
        return "Numbers" if num_rows <= MAX_ROWS else f"Numbers, {MAX_ROWS} of {num_rows:,} rows"

    @property
    def top(self) -> float:
        """Highest value that is not cut off; infinite if nothing is cut off."""
        points = sorted(y for series in self.series for _, y in _finite(series))
        if not self.clips_outliers or len(points) < _MIN_CUT_VALUES:
            return math.inf
        usual = 1.5 * points[int(0.95 * (len(points) - 1))]
        return usual if 0 < usual < points[-1] else math.inf

    @property
    def is_empty(self) -> bool:
        return not any(_finite(series) for series in self.series)

    @property
    def svg(self) -> str:
        """SVG image of the chart, with all text escaped."""
        return render(
            "chart.svg",
            chart=self,
            frame=_Frame(self),
            width=WIDTH,
            height=HEIGHT,
            left=_LEFT,
            right=WIDTH - _RIGHT,
            top=_TOP,
            bottom=HEIGHT - _BOTTOM,
            colours=COLOURS,
        )

    @property
    def points(self) -> str:
        """JSON data for the page's script, which is safe inside HTML elements.

        Each x value is the difference from the previous x value; y values have four digits.
        """
        lines = []
        for series in self.series:
            points = downsample(_finite(series), MAX_LIVE_POINTS)
            xs = [x for x, _ in points]
            steps = [b - a for a, b in zip([0.0, *xs], xs, strict=False)]
            lines.append(
                {
                    "name": series.name,
                    "colour": series.colour % COLOURS,
                    "dashed": series.dashed,
                    "dx": [int(step) if step.is_integer() else step for step in steps],
                    "y": [float(f"{y:.4g}") for _, y in points],
                }
            )
        content = {
            "x": self.x_name,
            "unit": self.unit,
            "step": self.step,
            "top": self.top if math.isfinite(self.top) else None,
            "marks": [[float(x), text] for x, text in self.marks],
            "bands": [[first, last, colour % COLOURS] for first, last, colour, _ in self.bands],
            "lines": lines,
        }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the table; of a long table, evenly spaced rows and the last row."""
        xs = sorted({float(x) for series in self.series for x in series.x})
        if len(xs) > MAX_ROWS:
            spacing = (len(xs) - 1) / (MAX_ROWS - 1)
            xs = [xs[round(i * spacing)] for i in range(MAX_ROWS)]
        values_by_x = [dict(zip(map(float, series.x), series.y, strict=True)) for series in self.series]
        rows = []
        for x in xs:
            values = [series.get(x) for series in values_by_x]
            rows.append(
                [f"{x:g}", *("" if y is None or not math.isfinite(y) else self.value(y) for y in values)]
            )
        return [self.x_name, *(series.name for series in self.series)], rows


class _Frame:
    """Mapping of chart values to image coordinates, whose origin is at the top left."""

    def __init__(self, chart: Chart) -> None:
        self._step = chart.step
        self._top = chart.top
        points = [point for series in chart.series for point in _finite(series)]
        xs, ys = [x for x, _ in points], [min(y, self._top) for _, y in points]
        self.x = (min(xs), max(xs)) if xs else (0.0, 1.0)
        if self.x[0] == self.x[1]:
            self.x = (self.x[0] - 0.5, self.x[0] + 0.5)
        low, high = (min(0.0, min(ys)), max(ys)) if ys else (0.0, 1.0)
        # If all values are far from zero, such as accuracies or memory, the axis does not start at zero.
        if ys and min(ys) > 0 and min(ys) > 0.6 * high:
            low = min(ys) - 0.25 * (high - min(ys) or high)
        self.ticks = ticks(low, high)
        self.x_ticks = [x for x in ticks(*self.x) if self.x[0] <= x <= self.x[1]]

    def across(self, x: float) -> float:
        first, last = self.x
        return round(_LEFT + (x - first) / (last - first) * (WIDTH - _LEFT - _RIGHT), 1)

    def down(self, y: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return round(HEIGHT - _BOTTOM - (y - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    def path(self, series: Series) -> str:
        """Return the SVG path of the line through the points; empty if there are no points."""
        points = [
            (self.across(x), self.down(min(y, self._top))) for x, y in downsample(_finite(series), MAX_POINTS)
        ]
        join = "H{}V{}" if self._step else "L{} {}"
        path = "".join((join if i else "M{} {}").format(*point) for i, point in enumerate(points))
        return path + "h0.1" if len(points) == 1 else path


def ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers from at most `low` to at least `high`."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return [0.0, 1.0]
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    size = next((power * m for m in (1, 2, 5, 10) if power * m >= rough), power)
    if not size or not math.isfinite(size) or size < _MIN_TICK:
        return [low, high]
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    # Round the values: 0.3 instead of 0.30000000000000004.
    values = [float(f"{i * size:.12g}") for i in range(first, last + 1)]
    # Far from zero, twelve digits may be too few to distinguish the numbers.
    return values if len(set(values)) == len(values) > 1 else [low, high]


def downsample(points: Sequence[tuple[float, float]], max_points: int) -> list[tuple[float, float]]:
    """Reduce points to about `max_points`: the minimum and maximum of each bucket, and both end points."""
    if len(points) <= max_points:
        return list(points)
    selected = [points[0]]
    size = len(points) / (max_points / 2)
    for bucket in range(int(max_points / 2)):
        part = points[int(bucket * size) : int((bucket + 1) * size)]
        if part:
            selected += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*selected, points[-1]] if selected[-1] != points[-1] else selected


def _finite(series: Series) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(float(y))]
