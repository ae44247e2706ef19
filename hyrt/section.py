"""Base class of all settings sections, and the types of their numbers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from hyrt.errors import ConfigError


def _refuse_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


NotBool = BeforeValidator(_refuse_truth)
"""Validator that rejects true and false, which Python treats as 1 and 0."""


def parse_list(value: Any) -> Any:
    """Parse `25,10` or `25` to a list; return other values unchanged."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if isinstance(value, set | frozenset):
        raise ValueError("must be a list such as [10, 5], because a set has no order")
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


ListFromText = BeforeValidator(parse_list)
"""Validator that accepts `25,10` and `25` as lists, so that brackets need no shell quoting."""

Count = Annotated[int, Field(ge=1, lt=2**31), NotBool]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0), NotBool]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NotBool]
Index = Annotated[int, Field(ge=0, lt=2**31), NotBool]


_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MIN_BYTES = 2**20


def _as_bytes(value: Any) -> Any:
    """Parse `512MiB` or `0.5 GiB` to bytes; whole numbers are bytes."""
    match = (
        re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]+)?)\s*([KMGT]iB)\s*", value)
        if isinstance(value, str)
        else None
    )
    size = int(float(match[1]) * _UNITS[match[2]]) if match else value
    if isinstance(size, bool) or not isinstance(size, int):
        raise ValueError("must be a size with a unit, such as 512MiB or 1.5GiB")
    if size < _MIN_BYTES:
        raise ValueError("must be a size of at least 1MiB with a unit, such as 512MiB or 1.5GiB")
    return size


Bytes = Annotated[
    int,
    Field(lt=2**63, json_schema_extra={"type": "size such as 512MiB"}),
    BeforeValidator(_as_bytes),
]
"""Size in bytes, which users write as `512MiB`."""


def _as_cache_size(value: Any) -> Any:
    """Parse `20%` or 0.2 to a fraction, or a size as `_as_bytes` does."""
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]+)?)\s*%\s*", value) if isinstance(value, str) else None
    fraction = float(match[1]) / 100 if match else value
    if not isinstance(fraction, float):
        try:
            return _as_bytes(value)
        except ValueError as error:
            raise ValueError(
                "must be a share such as 20%, or a size of at least 1MiB such as 2GiB"
            ) from error
    if not 0 < fraction <= 1:
        raise ValueError("must be a share above 0% and at most 100%, or a size such as 2GiB")
    return fraction


def _as_row_cache(value: Any) -> Any:
    """Accept `auto`, or a value of `_as_cache_size`."""
    try:
        return value if value == "auto" else _as_cache_size(value)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from error


CacheSize = Annotated[
    int | float,
    WithJsonSchema({"type": "share such as 20%, size such as 2GiB"}),
    BeforeValidator(_as_cache_size),
]
"""Size in bytes (int), which users write as `2GiB`; or a fraction of the whole (float), written as `20%`."""

RowCacheSize = Annotated[
    int | float | Literal["auto"],
    WithJsonSchema({"type": "share such as 20%, size such as 2GiB, `auto`"}),
    BeforeValidator(_as_row_cache),
]
"""A `CacheSize`, or `auto`."""


class Section(BaseModel):
    """Base class of a section of the settings: unknown keys are errors, and values are immutable.

    The docstring below a field is its meaning in `docs/configuration.md`.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    def __setattr__(self, name: str, value: Any) -> None:
        raise self._immutable_error(name)

    def __delattr__(self, name: str) -> None:
        raise self._immutable_error(name)

    def _immutable_error(self, name: str) -> ConfigError:
        kind = type(self).__name__
        return ConfigError(
            f"{kind}.{name} cannot be changed, because settings are immutable: set it when "
            "they are created, as in hyrt.train(graph, train={'lr': 0.1}) or "
            "hyrt.Config(train={'lr': 0.1})"
        )


def reject_unknown_keys(section: Section, path: str = "") -> None:
    """Reject unknown keys that `model_copy` has added. Raises ConfigError, which names the first one."""
    for name, value in vars(section).items():
        if name not in type(section).model_fields:
            known = "see `hyrt run --print-config` for all settings"
            raise ConfigError(f"unknown setting {path + name!r}: {known}")
        if isinstance(value, Section):
            reject_unknown_keys(value, f"{path}{name}.")
