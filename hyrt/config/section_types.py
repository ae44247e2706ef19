"""Settings sections as keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

SectionMapping = Mapping[str, Any]


class Sections(TypedDict, total=False):
    """Keyword arguments of `hyrt.train` besides the model: the keys of `hyrt.config.Config` except
    `model`.
    """

    seed: int
    data: SectionMapping
    sampler: SectionMapping
    train: SectionMapping
    links: SectionMapping
    evaluate: SectionMapping
    devices: str | Sequence[str]
    split: Sequence[int] | str | None
    runtime: SectionMapping
    fullgraph: SectionMapping
    balance: SectionMapping
    distributed: SectionMapping
    checkpoint: SectionMapping
    loggers: str | Sequence[str]
