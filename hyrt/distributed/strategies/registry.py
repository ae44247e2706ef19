"""Registry of strategies, and the check that settings work on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from hyrt_perfmodel.suggestions import nearest_name

from hyrt.config import Config
from hyrt.config.compatibility import (
    FEATURES,
    Component,
    distributed_settings_refusal,
    find_conflict,
    list_components,
    list_features,
)
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.local import LocalStrategy
from hyrt.distributed.strategies.model_centric import ModelCentricStrategy
from hyrt.distributed.strategies.naive_migration import NaiveMigrationStrategy
from hyrt.distributed.strategies.p3 import P3Strategy
from hyrt.distributed.strategies.strategy import Strategy
from hyrt.errors import join_names


def find_rank_problem(config: Config, strategy: str | None = None, *, has_split_edges: bool = False) -> str:
    """Return why the settings do not work on several ranks; empty if they do.

    `strategy` is the configured one by default. With `has_split_edges`, each rank has only the edges into its
    vertices.
    """
    features = list_features(config) | {"ranks": FEATURES["ranks"].title}
    if has_split_edges:
        features["split_edges"] = f"{FEATURES['split_edges'].title} (--topology split)"
    components = [*list_components(config)]
    if config.sampler.is_full_graph:
        features["full_graph_ranks"] = FEATURES["full_graph_ranks"].title
        components.append(distributed_settings_refusal("--full-graph"))
    else:
        components.append(strategy_component(strategy or config.distributed.strategy))
    return str(find_conflict(components, features) or "")


def strategy_component(name: str) -> Component:
    """Return the component of a strategy."""

    def suggest_strategies(refused: str, features: Collection[str]) -> str:
        others = [key for key, create in STRATEGIES.items() if not {*features} & {*create().refuses}]
        return f"set distributed.strategy to {join_names(others, 'or')}" if others else ""

    refused = STRATEGIES[name]().refuses
    return Component(f"distributed.strategy={name}", refused, suggest_strategies)


def find_shares_problem(config: Config, num_ranks: int) -> str:
    """Return why the configured shares do not match the number of ranks, or "" if they do."""
    shares = config.distributed.numeric_shares
    if shares is None or len(shares) == num_ranks:
        return ""
    return (
        f"distributed.shares has {len(shares)} numbers, but there are {num_ranks} ranks: set one number "
        "per rank, or distributed.shares=measured"
    )


STRATEGIES: Mapping[str, Callable[[], Strategy]] = MappingProxyType(
    {
        "model-centric": ModelCentricStrategy,
        "p3": P3Strategy,
        "naive-migration": NaiveMigrationStrategy,
        "hopgnn": HopGnnStrategy,
        "home": HomeStrategy,
        "local": LocalStrategy,
    }
)
"""Factory of each strategy by name, in the order of tables."""


def create_strategy(name: str) -> Strategy:
    """Create the named strategy. Raises ValueError for an unknown name."""
    if name not in STRATEGIES:
        near = nearest_name(name, STRATEGIES)
        hint = f"did you mean {near!r}?" if near else f"choose one of {', '.join(STRATEGIES)}"
        raise ValueError(f"unknown strategy {name!r}: {hint}")
    return STRATEGIES[name]()
