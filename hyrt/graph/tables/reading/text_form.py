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
    """Form of a CSV file. It has no effect on Parquet files."""

    delimiter: Annotated[str, BeforeValidator(_as_tab), AfterValidator(_plain)] = ","
    """The character between two values, such as `;`; `tab` for a tab."""
    header: bool = True
    """Whether the first line has the column names. Otherwise columns are named by their numbers: 1, 2 and so
    on."""
    quote: Annotated[str, AfterValidator(_plain)] = '"'
    """The character around values that contain the delimiter; empty if there is none."""
    decimal: Literal[".", ","] = "."
    """The decimal point."""
    nulls: Annotated[list[str], BeforeValidator(_without_none)] = Field(
        default=["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
    )
    """The texts that represent a missing value."""
    encoding: Literal["utf-8", "cp1252", "latin-1"] = "utf-8"
    """The text encoding. Windows programs that do not write UTF-8 usually write `cp1252`."""

    @model_validator(mode="after")
    def _fits(self) -> TextForm:
        if self.delimiter in ("", self.quote):
            raise ValueError("give a delimiter, and a quote that differs from it (quote: '' for no quotes)")
        return self
