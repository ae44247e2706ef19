"""Workloads of runs on heterogeneous graphs, as input of the performance model."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hyrt_perfmodel.workloads.typed_workload import FIRST_COMBINED, TYPED_KINDS, typed_workload
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.errors import ConfigError, listed
from hyrt.nn.models.model_kind import EDGE_TYPES, find_model
from hyrt.predict.typed.typed_sizes import (
    Sizes,
    TypedDatasetSizes,
    expected_sizes_of,
    sampled_sizes_of,
    typed_graph_sizes,
)

if TYPE_CHECKING:
    import numpy as np

    from hyrt.graph.graph import Graph
    from hyrt.sampling.sampler import Sampler

_VALUE_BYTES = 4
# Optimizer state per learned value.
_MOMENTS = {"Adam": 2, "AdamW": 2, "Adagrad": 1}


def expected_typed_work(config: Config, dataset: TypedDatasetSizes) -> TrainingWorkload:
    """Build the work of a run from degrees per relation; nothing is loaded or sampled.

    Raises
    ------
    ConfigError
        If the settings do not support a heterogeneous graph, or the model's products are unknown.
    """
    check_typed_costs(config)
    return _build_workload(config, dataset, expected_sizes_of(config, dataset))


def sampled_typed_work(
    config: Config, graph: Graph, targets: np.ndarray, sampler: Sampler | None = None
) -> TrainingWorkload:
    """Build the work of a run on an open heterogeneous graph, from sampled mini-batches.

    Parameters
    ----------
    config, graph
        All settings, and the graph to train on.
    targets
        [n] training vertices.
    sampler
        The run's sampler; by default one is built.

    Raises
    ------
    ConfigError
        As in `expected_typed_work`.
    """
    from hyrt.machine.workers import Workers
    from hyrt.training.setup import build_sampler

    check_typed_costs(config)
    with Workers(1, "hyrt.predict") as workers:
        built = sampler or build_sampler(config, graph, targets)
        sizes = sampled_sizes_of(config, graph, built, workers)
    return _build_workload(config, typed_graph_sizes(graph, targets), sizes)


def costs_of(kind: str) -> str:
    """Return the kind of model whose costs apply to a kind on a heterogeneous graph; by default the kind
    itself.
    """
    return find_model(kind).costs_like or kind


def check_typed_costs(config: Config) -> None:
    """Reject settings whose cost on a heterogeneous graph is unknown.

    Raises
    ------
    ConfigError
        Naming the setting.
    """
    kind, sampler = config.model.kind, config.sampler
    if sampler.kind not in ("neighbor", "full"):
        raise ConfigError(
            f"sampler.kind={sampler.kind} does not know the relations of a typed graph: give neighbor or full"
        )
    if config.data.rows != "stored":
        raise ConfigError(
            f"data.rows={config.data.rows}: the rows of a typed graph are read as they are stored: omit it"
        )
    if costs_of(kind) not in TYPED_KINDS and find_model(kind).products({}) is None:
        raise ConfigError(
            f"model.kind={kind} cannot be predicted on a typed graph, because it is not known what its "
            f"layers multiply: predict the most similar of {listed(TYPED_KINDS)} with the same settings"
        )


def _build_workload(config: Config, dataset: TypedDatasetSizes, sizes: Sizes) -> TrainingWorkload:
    model, costs = config.model, costs_of(config.model.kind)
    options = {EDGE_TYPES: len(dataset.relations), **model.options}
    products = None if costs in TYPED_KINDS else find_model(model.kind).products(options)

    @cache
    def at(targets: float) -> Workload:
        return typed_workload(
            costs,
            sizes(targets),
            dataset.widths,
            hidden=model.hidden,
            classes=dataset.classes,
            heads=model.heads,
            products=products,
        )

    units = config.sampler.units_per_epoch(dataset.targets)
    is_full_graph = config.sampler.whole_graph
    arrays = 1 + _MOMENTS.get(config.train.optimizer, 0)
    # Layers that aggregate rows first read the feature tables in place.
    in_place = costs in FIRST_COMBINED and config.runtime.fuse_load and model.input_dropout == 0
    if (model.residual and model.layers > 1) or dataset.widths.edge_value_bytes:
        in_place = False
    return TrainingWorkload(
        at=at,
        targets_per_epoch=units,
        batch_size=min(config.units_per_step, units),
        model=costs,
        best_form="in_place" if in_place else "rows",
        feature_bytes=dataset.feature_bytes,
        graph_bytes=dataset.graph_bytes,
        learned_bytes=float(arrays * dataset.learned * model.hidden * _VALUE_BYTES),
        transpose_bytes=dataset.graph_bytes if is_full_graph else 0.0,
        resident=is_full_graph,
        targets=dataset.targets if is_full_graph else None,
    )
