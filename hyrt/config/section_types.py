"""The sections of the settings as keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Section = Mapping[str, Any]


class Sections(TypedDict, total=False):
    """What `hyrt.train` takes beside the model: the keys of `hyrt.config.Config` but `model`."""

    seed: int
    data: Section
    sampler: Section
    train: Section
    links: Section
    evaluate: Section
    devices: str | Sequence[str]
    split: Sequence[int] | str | None
    runtime: Section
    fullgraph: Section
    balance: Section
    distributed: Section
    checkpoint: Section
    loggers: str | Sequence[str]
