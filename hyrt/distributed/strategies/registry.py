"""Registry of strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hyrt_perfmodel.nearest_name import nearest_name

from hyrt.distributed.strategies.home import Home
from hyrt.distributed.strategies.hopgnn import HopGnn
from hyrt.distributed.strategies.local import Local
from hyrt.distributed.strategies.model_centric import ModelCentric
from hyrt.distributed.strategies.naive_migration import NaiveMigration
from hyrt.distributed.strategies.p3 import P3
from hyrt.distributed.strategies.strategy import Strategy

STRATEGIES: Mapping[str, Callable[[], Strategy]] = MappingProxyType(
    {
        "model-centric": ModelCentric,
        "p3": P3,
        "naive-migration": NaiveMigration,
        "hopgnn": HopGnn,
        "home": Home,
        "local": Local,
    }
)
"""Factory of each strategy, in the order of tables."""


def strategy(name: str) -> Strategy:
    """Create the strategy with a name.

    Raises
    ------
    ValueError
        If there is no strategy with this name.
    """
    if name not in STRATEGIES:
        near = nearest_name(name, STRATEGIES)
        hint = f"did you mean {near!r}?" if near else f"give one of {', '.join(STRATEGIES)}"
        raise ValueError(f"unknown strategy {name!r}: {hint}")
    return STRATEGIES[name]()
