"""Rendering of pages from templates, and their output files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hyrt.errors import readable
from hyrt.machine.atomic_write import write_atomically
from hyrt.report.records.write_errors import explained


def render(template: str, **values: Any) -> str:
    """Fill in a template; all values except `Markup` are escaped."""
    return _environment().get_template(template).render(**values)


def write_page(path: Path, page: str, remedy: str = "Give another file with --output") -> None:
    """Write a page atomically.

    Raises
    ------
    HyrtError
        If the file cannot be written; names the file and a remedy.
    """
    with explained(path, remedy):
        write_atomically(path, readable(page).encode("utf-8", "replace"))


def pairs(values: Mapping[str, Any]) -> str:
    """Format pairs: `cpu:0 256, cuda:0 768`."""
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
    # uPlot's licence must be included in every copy.
    texts["script"] = f"/*\nuPlot: {_template('uplot.LICENSE')}*/\n{texts['script']}"
    environment.globals |= {"Markup": Markup, **{name: Markup(text) for name, text in texts.items()}}
    return environment


def _template(name: str) -> str:
    return Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8")
