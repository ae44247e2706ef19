"""Prediction of work on several ranks with each strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hyrt_perfmodel.distributed_epoch import DistributedPrediction, predict_distributed
from hyrt_perfmodel.network import Network, find_network
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR
from hyrt_perfmodel.traffic import StepTraffic, WorkDistribution, expected_traffic, model_bytes
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.distributed.strategies.registry import (
    STRATEGIES,
    create_strategy,
    find_rank_problem,
)
from hyrt.errors import ConfigError
from hyrt.formatting import pluralize
from hyrt.graph.partition.manifest import GRAPH, is_partition, read_manifest
from hyrt.graph.partition.read_parts import PART_IDS_KEY
from hyrt.predict.counted_traffic import configured_strategy, load_counted_steps, multiplies_sources
from hyrt.predict.predict_platform import match_platform, select_designs
from hyrt.predict.workload import configured_terms, workload_assumptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPredictionRequest:
    """Ranks to predict. Raises ConfigError if a number, the network or the strategy is invalid."""

    ranks: int
    """Number of ranks, each on a separate machine."""
    network_name: str
    """Name or rate of the network, as `hyrt_perfmodel.network.find_network` accepts it."""
    strategy_name: str | None = None
    """Name of a strategy, or None for all strategies."""
    locality: float | None = None
    """Fraction of a local target's input rows that are local too; None for random partitions."""
    homes: Path | None = None
    """File with the rank of each vertex, for counting the traffic; None for the dataset's partition."""

    def __post_init__(self) -> None:
        if self.homes is not None and self.locality is not None:
            raise ConfigError(
                "--partition-map defines where every row is, which determines the locality: remove --locality"
            )
        try:
            WorkDistribution(ranks=self.ranks, locality=self._locality)
            find_network(self.network_name)
            if self.strategy_name is not None:
                create_strategy(self.strategy_name)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def _locality(self) -> float:
        return 1 / max(self.ranks, 1) if self.locality is None else self.locality

    @property
    def network(self) -> Network:
        return find_network(self.network_name)

    @property
    def distribution(self) -> WorkDistribution:
        return WorkDistribution(ranks=self.ranks, locality=self._locality)

    @property
    def strategies(self) -> Sequence[str]:
        """Names of the strategies to predict, in the order of the table."""
        return list(STRATEGIES) if self.strategy_name is None else [self.strategy_name]


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksComparison:
    """Predictions of work on several ranks."""

    machine: str
    """Name of the platform, which is the same for all ranks."""
    network: Network
    ranks: int
    predictions: Sequence[DistributedPrediction]
    """One prediction per strategy."""
    relative_error: float
    assumptions: Sequence[str]
    """Assumptions of the predictions, one sentence each."""

    def to_json(self) -> dict[str, Any]:
        """Return the values that `hyrt predict --ranks --json` prints."""
        return {
            "platform": self.machine,
            "ranks": self.ranks,
            "network": asdict(self.network),
            "strategies": [prediction.to_json() for prediction in self.predictions],
            "relative_error": self.relative_error,
            "assumptions": list(self.assumptions),
        }


def predict_on_ranks(
    platform: Platform, work: TrainingWorkload, config: Config | None, request: RankPredictionRequest
) -> RanksComparison:
    """Predict work on several equal machines.

    The batch size of `work` is that of all ranks. `config` is None if the work is given as sizes, whose batch
    is that of one trainer of a rank. Raises ConfigError if the work cannot be divided among ranks.
    """
    if work.resident:
        raise ConfigError("--ranks predicts only mini-batches: remove --full-graph")
    platform, no_kernels = select_designs(platform, work, config, paper=False)
    platform, work = match_platform(platform, work, config)
    if config is None:
        work = replace(work, batch_size=work.batch_size * request.ranks)
    if work.batch_size < request.ranks:
        unit, setting = ("target", "data.batch_size")
        if config is not None:
            unit, setting = config.sampler.unit, config.sampler.units_setting
        raise ConfigError(
            f"a step of {pluralize(work.batch_size, unit)} cannot be divided among {request.ranks} ranks: "
            f"raise {setting}, which counts all ranks together"
        )
    terms = None if config is None else configured_terms(config)
    if work.at(1.0).edge_bytes is not None:
        return _predict_replicated(platform, work, config, request, no_kernels)

    request, partition_notes = _with_dataset_partition(request, config)
    counted_steps, is_split = None, config is not None and _is_split(config)
    if request.homes is not None:
        if config is None:
            raise ConfigError("--partition-map requires a graph: specify --data instead of --workload")
        if config.train.predicts_links:
            raise ConfigError(
                "--partition-map counts the parts of targets, but train.objective=links trains links: "
                "specify --locality instead"
            )
        counted_steps = load_counted_steps(config, request.homes, request.ranks, edges_are_split=is_split)

    def predict_strategy(name: str) -> DistributedPrediction:
        configured_steps = None if config is None else config.distributed.time_steps
        fixed = None if configured_steps is None else min(configured_steps, request.ranks)
        # Merge time steps until epochs do not become shorter.
        step_counts = range(1, request.ranks + 1) if name == "hopgnn" and fixed is None else [fixed]
        predictions_by_steps = []
        for time_steps in step_counts:
            sends_products = config is not None and multiplies_sources(config)
            spread = replace(request.distribution, time_steps=time_steps, multiplies_sources=sends_products)
            if counted_steps is None:
                traffic = expected_traffic(name, work, spread)
            else:
                assert config is not None
                traffic = counted_steps.traffic(configured_strategy(config, name, time_steps), work.at(1.0))
            predictions_by_steps.append(
                predict_distributed(name, platform, work, traffic, request.network, terms=terms)
            )
        return min(predictions_by_steps, key=lambda prediction: prediction.epoch_s)

    unavailable = {} if config is None else _unavailable_strategies(config, request, edges_are_split=is_split)
    predictions = [predict_strategy(name) for name in request.strategies if name not in unavailable]
    error = platform.relative_error
    return RanksComparison(
        machine=platform.name,
        network=request.network,
        ranks=request.ranks,
        predictions=predictions,
        relative_error=ASSUMED_ERROR if error is None else max(error, ASSUMED_ERROR),
        assumptions=[
            *([] if config is None else workload_assumptions(config)),
            *no_kernels,
            *partition_notes,
            *unavailable.values(),
            _spread_sentence(request),
            *_uncounted_settings(config, request),
        ],
    )


def _predict_replicated(
    platform: Platform,
    work: TrainingWorkload,
    config: Config | None,
    question: RankPredictionRequest,
    notes: Sequence[str],
) -> RanksComparison:
    """Predict work on a heterogeneous graph: every rank reads all of it and exchanges only gradients."""
    name = "model-centric"
    if question.strategy_name not in (None, "home", name) or question.homes or question.locality is not None:
        raise ConfigError(
            "every rank has the whole heterogeneous graph: remove --strategy, --locality and "
            "--partition-map, which apply only to partitioned graphs"
        )
    traffic = StepTraffic(
        ranks=question.ranks,
        purposes={},
        gradient_bytes=model_bytes(work.at(work.batch_size / question.ranks)),
    )
    terms = None if config is None else configured_terms(config)
    prediction = predict_distributed(name, platform, work, traffic, question.network, terms=terms)
    error = platform.relative_error
    return RanksComparison(
        machine=platform.name,
        network=question.network,
        ranks=question.ranks,
        predictions=[prediction],
        relative_error=ASSUMED_ERROR if error is None else max(error, ASSUMED_ERROR),
        assumptions=[
            *([] if config is None else workload_assumptions(config)),
            *notes,
            "every rank has the whole heterogeneous graph, so no rows are sent; the gradients of learned "
            "rows are sent like those of weights",
        ],
    )


def _is_split(config: Config) -> bool:
    """Return whether each part of a partitioned dataset contains only the edges into its vertices."""
    folder = Path(config.data.source)
    return is_partition(folder) and read_manifest(folder).topology == "split"


def _unavailable_strategies(
    config: Config, question: RankPredictionRequest, *, edges_are_split: bool
) -> dict[str, str]:
    """Return the reasons for unavailable strategies by name; raise if all requested ones are unavailable."""
    reasons = {
        name: find_rank_problem(config, name, has_split_edges=edges_are_split) for name in question.strategies
    }
    unavailable = {name: reason for name, reason in reasons.items() if reason}
    if len(unavailable) == len(reasons):
        raise ConfigError(next(iter(unavailable.values())))
    return {name: f"not {name}: {reason}" for name, reason in unavailable.items()}


def _with_dataset_partition(
    question: RankPredictionRequest, config: Config | None
) -> tuple[RankPredictionRequest, list[str]]:
    """Return the request with the dataset's partition, and a sentence if its number of ranks differs."""
    if config is None or question.homes is not None or question.locality is not None:
        return question, []
    folder = Path(config.data.source)
    if not is_partition(folder):
        return question, []
    parts = read_manifest(folder).num_parts
    if parts != question.ranks:
        ranks = pluralize(question.ranks, "rank")
        return question, [
            f"{folder} has {pluralize(parts, 'part')}, so its partition does not apply to {ranks}"
        ]
    return replace(question, homes=folder / GRAPH / f"{PART_IDS_KEY}.npy"), []


def _uncounted_settings(config: Config | None, question: RankPredictionRequest) -> list[str]:
    """Return sentences about settings that have an effect only if the traffic is counted."""
    if config is None or question.homes is not None:
        return []
    settings = config.distributed
    uncounted = [f"distributed.cache={settings.cache}"] * (settings.cache is not None)
    uncounted += [f"distributed.comm_dtype={settings.comm_dtype}"] * (settings.comm_dtype != "float32")
    return [
        f"the traffic does not include {setting}: use a partitioned dataset or --partition-map"
        for setting in uncounted
    ]


def _spread_sentence(question: RankPredictionRequest) -> str:
    if question.homes is not None:
        return f"every step sends as much as the first ones, counted with the partition in {question.homes}"
    if question.locality is None:
        return (
            f"the partition is random, so 1 of {question.ranks} rows of a mini-batch is local: specify "
            "--locality for a better partition"
        )
    return f"{question.locality:.0%} of the input rows of local roots are local, too (--locality)"
