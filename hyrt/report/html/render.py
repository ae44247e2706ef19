"""Templates of the pages, filled in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hyrt.report.html.units import percent


def render(template: str, **values: Any) -> str:
    """Fill in a template; every value in it is escaped that is no `Markup`."""
    return _environment().get_template(template).render(**values)


def pairs(values: Mapping[str, Any]) -> str:
    """`cpu:0 256, cuda:0 768`."""
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
    environment.filters |= {"percent": percent, "pairs": pairs}
    style = Path(__file__).with_name("templates").joinpath("style.css").read_text(encoding="utf-8")
    environment.globals |= {"Markup": Markup, "style": Markup(style)}
    return environment
