"""Line charts as inline SVG in the page's colours, with their numbers in a table and for its script."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hyrt.report.html.render import render

WIDTH, HEIGHT = 520, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 20, 10, 32
# More points than this are not seen; each bucket keeps its lowest and its highest.
MOST_POINTS = 400
# The page's script gets fewer, or the page of a long run would be too large.
MOST_LIVE_POINTS = 240
MOST_ROWS = 60
COLOURS = 8
_LEAST_TICK = 1e-300
# Of fewer values none leaves the frame.
_FEW = 20

Number = float | int
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart."""

    name: str
    """The name of the line in the legend."""
    x: Sequence[Number]
    y: Sequence[Number]
    """`x` and `y`: its points; NaN where there is none."""
    colour: int = 0
    """Number of the page's colour, from 0."""
    dashed: bool = False
    """Whether the line is, as expectations are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart."""

    key: str
    """One word for it, by which it is asked for."""
    title: str
    """What it shows, with the unit."""
    series: Sequence[Series]
    """The lines of the chart."""
    x_name: str = "step"
    """What x counts."""
    value: Format = "{:.3g}".format
    """How to write a y."""
    unit: str = ""
    """What a y is for the page's script, which writes it: `s`, `%` or `GiB`; empty for a mere number."""
    marks: Sequence[tuple[float, str]] = ()
    """x of moments with what happened then."""
    step: bool = False
    """Whether values hold until the next point."""
    bands: Sequence[tuple[float, float, int, str]] = ()
    """(from x, to x, colour, name) below the lower edge."""
    cut: bool = False
    """Whether a few values far above the others may leave the frame, as steps that compile or wait do."""

    @property
    def note(self) -> str:
        """What the picture does not show; empty where it shows everything."""
        points = [y for series in self.series for _, y in _finite(series)]
        top = self.top
        beyond = sum(y > top for y in points)
        longest = max((len(_finite(series)) for series in self.series), default=0)
        said = []
        if beyond:
            said.append(
                f"{beyond} of {len(points)} values are outside the frame, up to {self.value(max(points))}"
            )
        if longest > MOST_POINTS:
            every = 2 * longest / MOST_POINTS
            said.append(
                f"the lowest and the highest of every {every:.0f} values are drawn, out of {longest:,}"
            )
        return "; ".join(said)

    @property
    def numbers(self) -> str:
        """What the table is called, with how much of it is there."""
        there = len({float(x) for series in self.series for x in series.x})
        return "Numbers" if there <= MOST_ROWS else f"Numbers, {MOST_ROWS} of {there:,} rows"

    @property
    def top(self) -> float:
        """The highest value that is drawn as it is: infinite unless some values are far from all others."""
        points = sorted(y for series in self.series for _, y in _finite(series))
        if not self.cut or len(points) < _FEW:
            return math.inf
        usual = 1.5 * points[int(0.95 * (len(points) - 1))]
        return usual if 0 < usual < points[-1] else math.inf

    @property
    def is_empty(self) -> bool:
        return not any(_finite(series) for series in self.series)

    @property
    def svg(self) -> str:
        """The picture, whose texts are escaped."""
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
        """What the page's script draws, as JSON that ends no element of a page.

        x are told as differences from the one before, y with four digits.
        """
        lines = []
        for series in self.series:
            at = thinned(_finite(series), MOST_LIVE_POINTS)
            xs = [x for x, _ in at]
            steps = [b - a for a, b in zip([0.0, *xs], xs, strict=False)]
            lines.append(
                {
                    "name": series.name,
                    "colour": series.colour % COLOURS,
                    "dashed": series.dashed,
                    "dx": [int(step) if step.is_integer() else step for step in steps],
                    "y": [float(f"{y:.4g}") for _, y in at],
                }
            )
        told = {
            "x": self.x_name,
            "unit": self.unit,
            "step": self.step,
            "top": self.top if math.isfinite(self.top) else None,
            "marks": [[float(x), text] for x, text in self.marks],
            "bands": [[first, last, colour % COLOURS] for first, last, colour, _ in self.bands],
            "lines": lines,
        }
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of its numbers: of many points every so manieth, and always the last."""
        xs = sorted({float(x) for series in self.series for x in series.x})
        if len(xs) > MOST_ROWS:
            every = (len(xs) - 1) / (MOST_ROWS - 1)
            xs = [xs[round(i * every)] for i in range(MOST_ROWS)]
        at = [dict(zip(map(float, series.x), series.y, strict=True)) for series in self.series]
        rows = []
        for x in xs:
            values = [series.get(x) for series in at]
            rows.append(
                [f"{x:g}", *("" if y is None or not math.isfinite(y) else self.value(y) for y in values)]
            )
        return [self.x_name, *(series.name for series in self.series)], rows


class _Frame:
    """Where the numbers of a chart lie in its picture, in its units from the left and from above."""

    def __init__(self, chart: Chart) -> None:
        self._step = chart.step
        self._top = chart.top
        points = [point for series in chart.series for point in _finite(series)]
        xs, ys = [x for x, _ in points], [min(y, self._top) for _, y in points]
        self.x = (min(xs), max(xs)) if xs else (0.0, 1.0)
        if self.x[0] == self.x[1]:
            self.x = (self.x[0] - 0.5, self.x[0] + 0.5)
        low, high = (min(0.0, min(ys)), max(ys)) if ys else (0.0, 1.0)
        # What stays far from zero is shown from where it is: accuracies, memory.
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
        """The line through the points, as SVG writes it; empty where there are none."""
        at = [
            (self.across(x), self.down(min(y, self._top))) for x, y in thinned(_finite(series), MOST_POINTS)
        ]
        join = "H{}V{}" if self._step else "L{} {}"
        path = "".join((join if i else "M{} {}").format(*point) for i, point in enumerate(at))
        return path + "h0.1" if len(at) == 1 else path


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers from at most `low` to at least `high`."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return [0.0, 1.0]
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    size = next((power * m for m in (1, 2, 5, 10) if power * m >= rough), power)
    if not size or not math.isfinite(size) or size < _LEAST_TICK:
        return [low, high]
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    # As a person would write them, not 0.30000000000000004.
    found = [float(f"{i * size:.12g}") for i in range(first, last + 1)]
    # Far from zero twelve digits may not tell them apart.
    return found if len(set(found)) == len(found) > 1 else [low, high]


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """About that many points at most: each bucket's lowest and highest, and the first and last of all."""
    if len(points) <= most:
        return list(points)
    found = [points[0]]
    size = len(points) / (most / 2)
    for bucket in range(int(most / 2)):
        part = points[int(bucket * size) : int((bucket + 1) * size)]
        if part:
            found += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*found, points[-1]] if found[-1] != points[-1] else found


def _finite(series: Series) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(float(y))]
