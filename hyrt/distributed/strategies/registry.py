"""Registry of strategies, and their compatibility with samplers, link prediction and topologies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hyrt_perfmodel.suggestions import nearest_name

from hyrt.config import Config
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.local import LocalStrategy
from hyrt.distributed.strategies.model_centric import ModelCentricStrategy
from hyrt.distributed.strategies.naive_migration import NaiveMigrationStrategy
from hyrt.distributed.strategies.p3 import P3Strategy
from hyrt.distributed.strategies.strategy import Strategy


def find_strategy_problem(config: Config, strategy: str, *, has_partitioned_topology: bool = False) -> str:
    """Return why a sampler or partitioned topology cannot be combined with a strategy, or "" if it can.

    With `has_partitioned_topology`, each rank has only the edges into its vertices.
    """
    sampler, setting = config.sampler, f"distributed.strategy={strategy}"
    if sampler.unit != "target" and strategy != "model-centric":
        return (
            f"{setting} assigns targets to ranks, but sampler.kind={sampler.kind} trains {sampler.unit}s: "
            "set distributed.strategy=model-centric"
        )
    if sampler.draws_whole_steps and strategy == "local":
        return (
            f"{setting} samples targets locally, but sampler.kind={sampler.kind} samples edges for the "
            "targets of whole steps: use another strategy"
        )
    if has_partitioned_topology and strategy in ("p3", "naive-migration"):
        return (
            f"{setting} samples the mini-batches of all ranks, but these parts were made with --topology "
            "split: partition with --topology replicated, or use another strategy"
        )
    return ""


def find_link_problem(config: Config, strategy: str | None = None) -> str:
    """Return why the settings do not support link prediction on several ranks, or "" if they do.

    `strategy` defaults to the configured strategy.
    """
    strategy = strategy or config.distributed.strategy
    if not config.train.predicts_links:
        return ""
    if config.sampler.is_full_graph:
        return (
            "train.objective=links trains the whole graph in one process only: remove --full-graph, or "
            "run without torchrun"
        )
    if strategy not in ("home", "model-centric"):
        return (
            f"distributed.strategy={strategy} assigns vertices to ranks, but train.objective=links trains "
            "links: set distributed.strategy to home or model-centric"
        )
    if config.distributed.cache is not None:
        return "distributed.cache does not support train.objective=links: remove distributed.cache"
    return ""


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
