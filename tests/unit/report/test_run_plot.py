from __future__ import annotations

import math
import re
import resource
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from hyrt.errors import ConfigError, DataWriteError
from hyrt.report.html.chart import Chart, Series
from hyrt.report.plots import check_plot, plot_charts, save_plot, select_charts

LOSS = Chart(
    key="loss",
    title="Loss of a $ run",
    series=[Series(name="first", x=[1, 2, 3], y=[3.0, math.nan, 1.0]), Series(name="b$c$", x=[1], y=[2.0])],
)
SPLIT = Chart(key="split", title="Split", series=[Series(name="cpu:0", x=[1, 9], y=[5, 7])], step=True)


def test_every_chart_and_series_is_in_the_file_as_text(tmp_path: Path) -> None:
    plot_charts([LOSS, SPLIT], tmp_path / "x.svg")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "x.svg").read_text())
    assert {"Loss of a $ run", "first", "b$c$", "Split", "cpu:0", "step"} <= set(texts)


def test_points_are_where_their_values_are(tmp_path: Path) -> None:
    """The heights of three points, read back from the picture, lie as their values do."""
    values = [1.0, 4.0, 2.0]
    line = Chart(key="loss", title="t", series=[Series(name="s", x=[0, 1, 2], y=values)])
    plot_charts([line], tmp_path / "x.svg")
    drawn = (tmp_path / "x.svg").read_text()
    (path,) = re.findall(r'<path d="(M [^"]+)"[^>]*clip-path[^>]*stroke: #1f77b4', drawn)
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, rel=1e-4)
    # From above: a higher value has a lower number.
    assert (y0 - y1) / (y0 - y2) == pytest.approx(3.0, rel=1e-4)


def test_equal_plots_are_equal_files(tmp_path: Path) -> None:
    for kind in ("svg", "pdf"):
        for name in ("a", "b"):
            plot_charts([LOSS], tmp_path / f"{name}.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_charts_are_chosen_by_name_in_the_order_given() -> None:
    assert select_charts([LOSS, SPLIT], ["split", "loss"]) == [SPLIT, LOSS]
    assert select_charts([SPLIT, LOSS], None) == [LOSS]
    assert select_charts([SPLIT], None) == [SPLIT]
    with pytest.raises(
        ConfigError, match="--charts times is not available for these runs: use loss or split"
    ):
        select_charts([LOSS, SPLIT], ["times"])
    with pytest.raises(ConfigError, match="no steps have been recorded yet"):
        select_charts([], None)


@pytest.mark.parametrize("kind", ["docx", "gif", "pgf", "raw", "tif", "webp", ""])
def test_a_file_of_another_kind_is_refused(kind: str) -> None:
    """Of those that matplotlib names as its own, some refuse metadata or need TeX."""
    says = (
        rf"--output x\.{kind} has an unknown file type: use a name that ends in \.png, \.svg, \.pdf or \.eps"
    )
    with pytest.raises(ConfigError, match=says):
        check_plot(Path(f"x.{kind}"), "--output")


@pytest.mark.parametrize("kind", ["png", "SVG", "pdf", "eps"])
def test_every_kind_that_is_not_refused_is_written(kind: str, tmp_path: Path) -> None:
    check_plot(tmp_path / f"x.{kind}", "--output")
    save_plot(Figure(), tmp_path / f"x.{kind}")
    assert (tmp_path / f"x.{kind}").stat().st_size


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_a_plot_that_does_not_fit_on_the_disk_leaves_the_one_before(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"x.{kind}"
    file.write_bytes(b"before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files is a full disk to whoever writes, once its signal is ignored, as in Python.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(
            DataWriteError, match=r"cannot be written: .*\. Free space, or choose another file$"
        ):
            save_plot(Figure(), file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]
