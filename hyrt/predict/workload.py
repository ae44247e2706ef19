"""Workloads of configured runs, as input of the performance model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from hyrt_perfmodel.degrees import DATASETS, HETERO_DATASETS
from hyrt_perfmodel.expected_sizes import BlockSizes, SampledSizes
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.prediction.stages import ExtraTerms
from hyrt_perfmodel.sampler_sizes import CacheHitCurve, expected_hit_rates
from hyrt_perfmodel.workload import LoadForm, TrainingWorkload, Workload

from hyrt.config import Config, build_config
from hyrt.config.compatibility import check_compatibility, list_components, list_graph_features
from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import find_model, supports_edge_features
from hyrt.predict.dataset_sizes import (
    DatasetSizes,
    FullGraphSizes,
    counted_full_graph_sizes,
    expected_block_sizes,
    expected_full_graph_sizes,
    generated_sizes,
    graph_sizes,
    published_sizes,
    sampled_block_sizes,
    with_row_format,
    with_transpose,
)
from hyrt.predict.hetero_workload import (
    HeteroDatasetSizes,
    expected_hetero_workload,
    generated_hetero_sizes,
    published_hetero_sizes,
    sampled_hetero_workload,
)

if TYPE_CHECKING:
    from hyrt_perfmodel.platform import Platform
    from hyrt_perfmodel.workload import FullGraphStep

    from hyrt.graph.graph import Graph
    from hyrt.sampling.sampler import Sampler

_GENERATED = "synthetic:"
_HALVINGS = 12


def training_workload(
    config: Config,
    dataset: DatasetSizes,
    sizes: Callable[[float], BlockSizes],
    full_graph: FullGraphSizes | None = None,
    hit_rate: Callable[[float], float] | None = None,
) -> TrainingWorkload:
    """Return the work of a run with known mini-batch sizes. Needs no graph, and torch only for full graphs.

    `sizes` returns the sizes of a mini-batch by its number of targets (or subgraphs). `full_graph` is None if
    the CPU trainer's full-graph step is not needed. `hit_rate` is that of `TrainingWorkload`.
    """
    dataset = with_row_format(dataset, config.data.feature_dtype)
    model, kind = config.model, find_model(config.model.kind)
    # User-defined kinds have the rates of GCN by default, with their number of products.
    costs, products = kind.costs_like or "gcn", kind.products(config.model.options)
    widths = [dataset.features, *[model.hidden] * (model.layers - 1), dataset.classes]

    def at(targets: float) -> Workload:
        block_sizes = sizes(targets)
        work = model_workload(
            costs,
            block_sizes.vertices,
            block_sizes.edges,
            widths,
            heads=model.heads,
            bytes_per_value=dataset.value_bytes,
            row_entries=dataset.row_entries,
            hidden=model.hidden,
        )
        if products is not None:
            work = work.with_products(*products)
        return replace(
            work,
            input_bytes=dataset.row_bytes,
            edge_value_bytes=dataset.edge_value_bytes,
            walk_steps=block_sizes.walk_steps,
            scanned_edges=block_sizes.scanned_edges,
        )

    units_per_epoch = config.sampler.units_per_epoch(dataset.targets)
    return TrainingWorkload(
        at=at,
        targets_per_epoch=units_per_epoch,
        batch_size=min(config.units_per_step, units_per_epoch),
        model=kind.costs_like or model.kind,
        best_form=_best_form(config) if dataset.row_entries is None else "sparse",
        feature_bytes=dataset.feature_bytes,
        graph_bytes=dataset.graph_bytes,
        resident=config.sampler.is_full_graph,
        cached_fraction=_cached_fraction(config, dataset),
        hit_rate=hit_rate,
        transpose_bytes=dataset.transpose_bytes if config.sampler.is_full_graph else 0.0,
        targets=dataset.targets if config.sampler.is_full_graph else None,
        target_edges=None if full_graph is None else full_graph.target_edges,
        degrees=None if full_graph is None else full_graph.degrees,
        full_graph_step=None if full_graph is None else _full_graph_step(config, dataset, full_graph),
    )


def _cached_fraction(config: Config, dataset: DatasetSizes) -> float:
    """Return the fraction of rows that each device caches (`data.cache`), or 0 for an unresolved `auto`."""
    cache = config.data.cache
    if cache is None or cache == "auto" or not dataset.feature_bytes:
        return 0.0
    return min(1.0, cache if isinstance(cache, float) else cache / dataset.feature_bytes)


def _full_graph_step(
    config: Config, dataset: DatasetSizes, sizes: FullGraphSizes
) -> Callable[[float, int], FullGraphStep] | None:
    """Return a function for the CPU trainer's full-graph step, or None if the step is unknown."""
    from hyrt.predict.step_dry_run import full_graph_step, is_predictable, model_for_widths

    # Create the model with values, because user-defined layers are tried on a few rows.
    model = model_for_widths(config, dataset.features, dataset.classes)
    if not is_predictable(model):
        return None

    @cache
    def step(memory_bytes: float, threads: int) -> FullGraphStep:
        limited = config.fullgraph.host_memory is not None
        return full_graph_step(model, sizes, memory_bytes=memory_bytes, threads=threads, limited=limited)

    return step


def _best_form(config: Config) -> LoadForm:
    """Return the cheapest form of dense inputs for the configured model, provided that trainers accept it."""
    model = config.model
    if not config.runtime.fuse_load or model.input_dropout > 0:
        return "rows"
    best = find_model(model.kind).best_form
    return "rows" if best == "aggregated" and not aggregates_first(config) else best


def aggregates_first(config: Config) -> bool:
    """Return whether the configured model's first layer aggregates rows before any other operation."""
    model, kind = config.model, find_model(config.model.kind)
    adds_residual = model.residual and model.layers > 1 and not kind.adds_rows_last
    return kind.best_form == "aggregated" and model.input_dropout == 0 and not adds_residual


def expected_workload(config: Config, dataset: DatasetSizes) -> TrainingWorkload:
    """Return the work of a run from the degrees in `dataset`, without loading or sampling the dataset."""
    # Interpolate between the expected sizes of a few mini-batches, because the search for the best split
    # evaluates thousands.
    max_units = min(config.units_per_step, max(1, config.sampler.units_per_epoch(dataset.targets)))
    counts = sorted({max(1.0, max_units / 2**power) for power in range(_HALVINGS)})
    sizes = SampledSizes({count: expected_block_sizes(config, dataset, count) for count in counts})
    if not config.sampler.is_full_graph:
        hits = None
        if config.sampler.kind == "neighbor" and dataset.degrees is not None:
            # Use one hit rate, because it hardly depends on a trainer's share of the step.
            hits = expected_hit_rates(dataset.degrees, config.fanouts, max_units)
        return training_workload(config, dataset, sizes.at, hit_rate=hits)
    return training_workload(config, dataset, sizes.at, expected_full_graph_sizes(config, dataset))


def sampled_workload(config: Config, graph: Graph, sampler: Sampler | None = None) -> TrainingWorkload:
    """Return the work of a run on an open graph from sampled mini-batches.

    If `sampler` is None, the configured sampler is created. Raises ConfigError if the performance model does
    not support the run, or there are no training vertices.
    """
    from hyrt.runtime.workers import Workers
    from hyrt.training.setup import build_sampler, select_edges

    check_predictable(config)
    graph = select_edges(config, _with_links(config, graph))
    targets = training_vertices(config, graph)
    if graph.types is not None:
        return sampled_hetero_workload(config, graph, targets, sampler)
    with Workers(1, "hyrt.predict") as workers:
        built = sampler or build_sampler(config, graph, targets)
        sizes = sampled_block_sizes(config.sampler, built, workers)
    dataset = graph_sizes(graph, targets)
    if not config.sampler.is_full_graph:
        hits = _measured_hit_rate(config, graph, built, targets)
        return training_workload(config, dataset, sizes.at, hit_rate=hits)
    dataset = with_transpose(dataset, graph)
    scored = targets if graph.links is None else np.unique(graph.links.split.train)
    full_graph = counted_full_graph_sizes(config, graph, dataset, scored)
    work = training_workload(config, dataset, sizes.at, full_graph)
    if graph.links is not None:
        return work

    @cache
    def chunks(parts: int) -> tuple[Any, Any]:
        from hyrt.predict.chunked_work import count_graph_chunks

        return count_graph_chunks(graph.topology, targets, parts)

    return replace(work, chunk_counts=chunks)


def training_vertices(config: Config, graph: Graph) -> np.ndarray:
    """Return the training vertices of a run on an open graph, or the indices of its training links.

    Raises ConfigError if there are none.
    """
    if graph.links is not None:
        return np.arange(len(graph.links.split.train))
    targets = graph.split("train", config.data.split)
    if not len(targets):
        raise ConfigError(
            f"{graph.name} cannot be predicted, because it has no training vertices: set train_mask for some"
        )
    return targets


def _measured_hit_rate(
    config: Config, graph: Graph, sampler: Sampler, targets: np.ndarray
) -> Callable[[float], float] | None:
    """Return a lazily computed cache hit rate, or None if it is not needed or too expensive."""
    if config.sampler.is_full_graph or (config.data.cache is None and config.sampler.kind != "neighbor"):
        return None
    if graph.links is not None:
        return None  # Devices do not cache the rows of the end points of links.

    @cache
    def curve() -> CacheHitCurve:
        from hyrt.runtime.workers import Workers
        from hyrt.sampling.hotness import rank_by_hotness

        share = 1.0 / len(config.device_requests)
        arguments = (
            config.sampler,
            sampler,
            graph.topology,
            targets,
            config.data.batch_size,
            config.fanouts,
            share,
        )
        with Workers(1, "hyrt.predict") as workers:
            ranking = rank_by_hotness(*arguments, workers)
        return CacheHitCurve.from_ranking(
            np.ones(len(ranking.accesses)), ranking.accesses, graph.num_vertices
        )

    return lambda share: curve()(share)


def check_predictable(config: Config) -> None:
    """Raise ConfigError if the performance model does not support the sampler or the model."""
    sampler, model = config.sampler, config.model
    if sampler.unpredictable:
        raise ConfigError(f"sampler.kind={sampler.kind} cannot be predicted: {sampler.unpredictable}")
    reason = calibration_gap(model.kind)
    if reason:
        raise ConfigError(f"model.kind={model.kind} cannot be predicted, because {reason}")


def calibration_gap(kind: str) -> str:
    """Return the reason why a model kind's costs are unknown and cannot be measured, or ""."""
    model_kind = find_model(kind)
    if not (model_kind.costs_like or model_kind.hetero) and supports_edge_features(kind):
        return "its costs would be measured on generated graphs, whose edges have no features"
    return ""


def configured_workload(config: Config) -> TrainingWorkload:
    """Return the work of a configured run.

    Published and generated datasets are not loaded, except for link prediction. Other datasets are opened to
    sample a few mini-batches. Raises ConfigError if the performance model does not support the run, and
    DataError if the dataset is missing or damaged.
    """
    source = config.data.source
    check_predictable(config)
    # End points of links are sampled in proportion to degree, so their mini-batches must be sampled.
    if not config.train.predicts_links:
        hetero_sizes = _unopened_hetero_sizes(source)
        if hetero_sizes is not None:
            check_compatibility(list_components(config), list_graph_features(source, is_hetero=True))
            return expected_hetero_workload(config, hetero_sizes)
        if source in DATASETS or source.startswith(_GENERATED):
            check_compatibility(list_components(config), list_graph_features(source, is_hetero=False))
            published = source in DATASETS
            return expected_workload(
                config, published_sizes(DATASETS[source]) if published else generated_sizes(source)
            )
    from hyrt.training.open_graph import opened_graph

    return sampled_workload(config, opened_graph(config))


def _with_links(config: Config, graph: Graph) -> Graph:
    """Return the graph, with its links if the run predicts links."""
    if not config.train.predicts_links:
        return graph
    from hyrt.training.open_graph import link_graph

    return link_graph(config, graph)


def _unopened_hetero_sizes(source: str) -> HeteroDatasetSizes | None:
    """Return the sizes of a published or generated heterogeneous dataset, or None for other datasets."""
    if source in HETERO_DATASETS:
        return published_hetero_sizes(HETERO_DATASETS[source])
    if not source.startswith(_GENERATED):
        return None
    from hyrt.graph.synthetic.spec import parse_spec

    return generated_hetero_sizes(source) if parse_spec(source).is_hetero else None


def other_samplers(config: Config, training: TrainingWorkload) -> list[tuple[str, TrainingWorkload]]:
    """Return (description, workload) pairs for other samplers that read fewer rows.

    The list is empty unless the run uses default neighbor sampling and its sizes follow from degrees;
    otherwise the data would have to be sampled. `training` contains rows in the configured format.
    """
    source = config.data.source
    is_named = (source in DATASETS or source.startswith(_GENERATED)) and _unopened_hetero_sizes(
        source
    ) is None
    if config.sampler.kind != "neighbor" or not is_named or config.train.predicts_links:
        return []
    sampler = build_config(
        {"sampler": {"kind": "labor", "fanout": config.fanouts}, "model": {"layers": config.model.layers}}
    ).sampler
    labor = configured_workload(config.model_copy(update={"sampler": sampler}))
    labor = replace(labor, cached_fraction=training.cached_fraction, hit_rate=training.hit_rate)
    labor = labor.with_row_bytes(training.at(1.0).dense_row_bytes)
    return [("neighbours that vertices share (sampler.kind=labor, which learns more slowly at first)", labor)]


def workload_assumptions(config: Config) -> list[str]:
    """Return the assumptions about the sizes of a run, one sentence each."""
    assumptions = []
    source, of_model = config.data.source, find_model(config.model.kind).assumption
    if config.train.predicts_links:
        assumptions.append("scoring pairs, and finding the edges that a step leaves out, take no time")
    elif source in DATASETS or source in HETERO_DATASETS:
        assumptions.append(f"{source} has log-normal degrees, and its training vertices are like all others")
    elif source.startswith(_GENERATED):
        assumptions.append(f"{source} has the degrees of the distribution that it is drawn from")
    if config.sampler.is_full_graph:
        assumptions.append(
            "the time of an epoch excludes work that is done once: opening the data, finding the edges by "
            "source, and copying the data to a device with separate memory"
        )
    return [*assumptions, of_model] if of_model else assumptions


def dense_row_notes(platform: Platform, work: TrainingWorkload) -> list[str]:
    """Return a sentence about the trainers that receive sparse features as dense rows, if there are any."""
    step = work.at(1.0)
    names = sorted(
        {trainer.device.kind for trainer in platform.trainers() if trainer.adapt_workload(step) != step}
    )
    if not names:
        return []
    return [
        f"{', '.join(names)} does not support sparse features, so the model counts the dense rows of "
        f"{step.features[0]:,} float32 values that are used instead"
    ]


def configured_terms(config: Config) -> ExtraTerms:
    """Return all terms of the performance model, with `overlap` and `shared_cores` as in a run."""
    if config.sampler.is_full_graph:
        # Nothing overlaps, because only one stage has work.
        return ExtraTerms(overlap="nothing", shared_cores=False)
    if not config.runtime.pipelined:
        return ExtraTerms(overlap="nothing")
    return ExtraTerms(overlap="trainers" if config.runtime.max_in_flight_steps == 1 else "all")


def other_schedules(config: Config) -> list[tuple[str, ExtraTerms]]:
    """Return (description, terms) of other schedules: threads may not pay off for short steps."""
    serial = config.model_copy(update={"runtime": config.runtime.model_copy(update={"pipelined": False})})
    if configured_terms(serial) == configured_terms(config):
        return []
    return [("one stage after the other (runtime.pipelined=false)", configured_terms(serial))]
