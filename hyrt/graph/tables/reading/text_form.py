"""CSV dialect of a table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from hyrt.section import Section


def _as_tab(value: object) -> object:
    return "\t" if value in ("tab", "\\t") else value


def _plain(letter: str) -> str:
    if len(letter) > 1 or not letter.isascii() or letter in ("\n", "\r", "\0"):
        raise ValueError("give a single ASCII character that is not a line break")
    return letter


def _without_none(value: object) -> object:
    if isinstance(value, list) and None in value:
        raise ValueError("write null and ~ in quotes: 'null'")
    return value


class TextForm(Section):
    """How a CSV file is written; Parquet files need none of it."""

    delimiter: Annotated[str, BeforeValidator(_as_tab), AfterValidator(_plain)] = ","
    """The letter between two values, such as `;`; `tab` for a tab."""
    header: bool = True
    """Whether the first line has the names of the columns. Without names, columns are called by their
    numbers: 1, 2 and so on."""
    quote: Annotated[str, AfterValidator(_plain)] = '"'
    """The letter around values that have the delimiter in them; empty where there is none."""
    decimal: Literal[".", ","] = "."
    """What stands between a number and its decimal places."""
    nulls: Annotated[list[str], BeforeValidator(_without_none)] = Field(
        default=["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
    )
    """What stands for a missing value."""
    encoding: Literal["utf-8", "cp1252", "latin-1"] = "utf-8"
    """The encoding of the letters: `cp1252` is what programs for Windows write that do not write UTF-8."""

    @model_validator(mode="after")
    def _fits(self) -> TextForm:
        if self.delimiter in ("", self.quote):
            raise ValueError("give a delimiter, and a quote that differs from it (quote: '' for no quotes)")
        return self
