"""What a run asks of a machine, as the performance model takes it: the one builder of workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.sizes.datasets import DATASETS, TYPED_DATASETS
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
from hyrt_perfmodel.sizes.hit_curve import HitCurve, expected_hits
from hyrt_perfmodel.sizes.sampled_sizes import SampledSizes
from hyrt_perfmodel.workloads.model_workload import model_workload
from hyrt_perfmodel.workloads.typed_workload import TYPED_KINDS
from hyrt_perfmodel.workloads.workload import LoadForm, TrainingWorkload, Workload

from hyrt.config import Config, build_config
from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import find_model, takes_edge_features, takes_edge_types
from hyrt.predict.block_sizes import expected_block_sizes, sampled_block_sizes
from hyrt.predict.dataset_sizes import (
    DatasetSizes,
    generated_sizes,
    graph_sizes,
    in_format,
    published_sizes,
)
from hyrt.predict.typed.typed_sizes import (
    TypedDatasetSizes,
    generated_typed_sizes,
    published_typed_sizes,
)
from hyrt.predict.typed.typed_work import expected_typed_work, sampled_typed_work
from hyrt.predict.whole_graphs.whole_graph_sizes import (
    WholeGraphSizes,
    counted_sizes,
    expected_sizes,
    with_transpose,
)

if TYPE_CHECKING:
    from hyrt_perfmodel.platforms.platform import Platform
    from hyrt_perfmodel.workloads.whole_graph import WholeGraphStep

    from hyrt.graph.graph import Graph
    from hyrt.sampling.sampler import Sampler

_GENERATED = "synthetic:"
_HALVINGS = 12


def training_workload(
    config: Config,
    dataset: DatasetSizes,
    sizes: Callable[[float], BlockSizes],
    whole: WholeGraphSizes | None = None,
    hit_rate: Callable[[float], float] | None = None,
) -> TrainingWorkload:
    """The work of a run whose mini-batches have known sizes. Needs no graph, and torch for whole graphs only.

    Parameters
    ----------
    config
        All settings.
    dataset
        The sizes of the dataset.
    sizes
        Gives the sizes of a mini-batch by its number of targets, or of subgraphs where the sampler makes
        these.
    whole
        The graph, where all of it is trained on; None where the step that the CPU trainer makes of it need
        not be known.
    hit_rate
        `TrainingWorkload.hit_rate`.
    """
    dataset = in_format(dataset, config.data.rows)
    model, kind = config.model, find_model(config.model.kind)
    # Rates of a kind of its own are fitted to the terms of GCN's form, with its own products.
    costs, products = kind.costs_like or "gcn", kind.products(config.model.options)
    widths = [dataset.features, *[model.hidden] * (model.layers - 1), dataset.classes]

    def at(targets: float) -> Workload:
        found = sizes(targets)
        work = model_workload(
            costs,
            found.vertices,
            found.edges,
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
            walk_steps=found.walk_steps,
            scanned_edges=found.scanned_edges,
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
        resident=config.sampler.whole_graph,
        kept_part=_kept_part(config, dataset),
        hit_rate=hit_rate,
        transpose_bytes=dataset.transpose_bytes if config.sampler.whole_graph else 0.0,
        targets=dataset.targets if config.sampler.whole_graph else None,
        target_edges=None if whole is None else whole.target_edges,
        degrees=None if whole is None else whole.degrees,
        whole=None if whole is None else _whole_step(config, dataset, whole),
    )


def _kept_part(config: Config, dataset: DatasetSizes) -> float:
    """The part of all rows that `data.cache` lets each device keep; with `auto`, none that is known."""
    asked = config.data.cache
    if asked is None or asked == "auto" or not dataset.feature_bytes:
        return 0.0
    return min(1.0, asked if isinstance(asked, float) else asked / dataset.feature_bytes)


def _whole_step(
    config: Config, dataset: DatasetSizes, sizes: WholeGraphSizes
) -> Callable[[float, int], WholeGraphStep] | None:
    """The step of the CPU trainer over a whole graph; None where it is not known."""
    from hyrt.predict.bare_model import small_model
    from hyrt.predict.whole_graphs.whole_graph_work import can_say, whole_graph_step

    # With weights: layers that are read are tried on a few rows.
    model = small_model(config, dataset.features, dataset.classes)
    if not can_say(model):
        return None

    @cache
    def step(memory_bytes: float, threads: int) -> WholeGraphStep:
        limited = config.fullgraph.host_memory is not None
        return whole_graph_step(model, sizes, memory_bytes=memory_bytes, threads=threads, limited=limited)

    return step


def _best_form(config: Config) -> LoadForm:
    """The form of dense input that costs the configured model least, where a trainer takes it."""
    model = config.model
    if not config.runtime.fuse_load or model.input_dropout > 0:
        return "rows"
    best = find_model(model.kind).best_form
    return "rows" if best == "aggregated" and not aggregates_first(config) else best


def aggregates_first(config: Config) -> bool:
    """Whether the first layer of the configured model aggregates rows before all else."""
    model, kind = config.model, find_model(config.model.kind)
    adds_own = model.residual and model.layers > 1 and not kind.adds_rows_last
    return kind.best_form == "aggregated" and model.input_dropout == 0 and not adds_own


def expected_workload(config: Config, dataset: DatasetSizes) -> TrainingWorkload:
    """The work of a run, its mini-batches expected from the degrees; nothing is loaded or sampled.

    Parameters
    ----------
    config
        All settings.
    dataset
        The sizes of the dataset, with its degrees.
    """
    # Expected once at some sizes of mini-batches, and interpolated: the best split is searched among
    # thousands.
    most = min(config.units_per_step, max(1, config.sampler.units_per_epoch(dataset.targets)))
    counts = sorted({max(1.0, most / 2**power) for power in range(_HALVINGS)})
    sizes = SampledSizes({count: expected_block_sizes(config, dataset, count) for count in counts})
    if not config.sampler.whole_graph:
        hits = None
        if config.sampler.kind == "neighbor" and dataset.degrees is not None:
            # A trainer's part of a step moves the rates little.
            hits = expected_hits(dataset.degrees, config.fanouts, most)
        return training_workload(config, dataset, sizes.at, hit_rate=hits)
    return training_workload(config, dataset, sizes.at, expected_sizes(config, dataset))


def sampled_workload(config: Config, graph: Graph, sampler: Sampler | None = None) -> TrainingWorkload:
    """The work of a run on an open graph, from sampled mini-batches.

    Parameters
    ----------
    config
        All settings.
    graph
        The graph to be trained on.
    sampler
        The run's sampler; one is built where there is no run.

    Raises
    ------
    ConfigError
        If the model has no words for the run, or there are no training vertices.
    """
    from hyrt.machine.workers import Workers
    from hyrt.training.setup import build_sampler

    check_predictable(config)
    graph = _with_links(config, graph)
    targets = training_vertices(config, graph)
    if graph.types is not None:
        return sampled_typed_work(config, graph, targets, sampler)
    with Workers(1, "hyrt.predict") as workers:
        built = sampler or build_sampler(config, graph, targets)
        sizes = sampled_block_sizes(config.sampler, built, workers)
    dataset = graph_sizes(graph, targets)
    if not config.sampler.whole_graph:
        hits = _counted_hits(config, graph, built, targets)
        return training_workload(config, dataset, sizes.at, hit_rate=hits)
    dataset = with_transpose(dataset, graph)
    scored = targets if graph.links is None else np.unique(graph.links.split.train)
    whole = counted_sizes(config, graph, dataset, scored)
    found = training_workload(config, dataset, sizes.at, whole)
    if graph.links is not None:
        return found

    @cache
    def chunks(parts: int) -> tuple[Any, Any]:
        from hyrt.predict.chunks.counted_chunks import counted_chunks

        return counted_chunks(graph.topology, targets, parts)

    return replace(found, chunk_counts=chunks)


def training_vertices(config: Config, graph: Graph) -> np.ndarray:
    """The training vertices of a run on an open graph, or the numbers of its links.

    Raises
    ------
    ConfigError
        If there are none.
    """
    if graph.links is not None:
        return np.arange(len(graph.links.split.train))
    targets = graph.split("train", config.data.split)
    if not len(targets):
        raise ConfigError(
            f"{graph.name} cannot be predicted: the data has no training vertices: set train_mask for some"
        )
    return targets


def _counted_hits(
    config: Config, graph: Graph, sampler: Sampler, targets: np.ndarray
) -> Callable[[float], float] | None:
    """Hit rates of rows that devices keep, worked out when they are asked for; None where that is long and
    nothing is kept.
    """
    if config.sampler.whole_graph or (config.data.cache is None and config.sampler.kind != "neighbor"):
        return None
    if graph.links is not None:
        return None  # No device keeps rows of ends of links.

    @cache
    def curve() -> HitCurve:
        from hyrt.machine.workers import Workers
        from hyrt.sampling.visits.row_ranking import rank_rows

        part = 1.0 / len(config.device_requests)
        asked = config.sampler, sampler, graph.topology, targets, config.data.batch_size, config.fanouts, part
        with Workers(1, "hyrt.predict") as workers:
            ranking = rank_rows(*asked, workers)
        return HitCurve.of_ranking(np.ones(len(ranking.visits)), ranking.visits, graph.num_vertices)

    return lambda part: curve()(part)


def check_predictable(config: Config) -> None:
    """Refuse settings that the performance model has no words for.

    Raises
    ------
    ConfigError
        Naming the sampler or the model.
    """
    sampler, model = config.sampler, config.model
    if sampler.unpredictable:
        raise ConfigError(f"sampler.kind={sampler.kind} cannot be predicted: {sampler.unpredictable}")
    why = why_not_measured(model.kind)
    if why:
        raise ConfigError(f"model.kind={model.kind} cannot be predicted: {why}")


def why_not_measured(kind: str) -> str:
    """Why nothing says what a kind of model costs, nor can it be measured; empty if neither holds."""
    made = find_model(kind)
    if not (made.costs_like or made.typed) and takes_edge_features(kind):
        return "its costs would be measured on generated graphs, whose edges have no features"
    return ""


def configured_workload(config: Config) -> TrainingWorkload:
    """The work of a run that the settings name.

    Published and generated datasets are not loaded; others are opened, and a few of their mini-batches
    sampled, and so are all where links are predicted.

    Parameters
    ----------
    config
        All settings.

    Raises
    ------
    ConfigError
        If the model has no words for the run.
    DataError
        If the dataset is missing or damaged.
    """
    source = config.data.source
    check_predictable(config)
    # Ends of links are drawn by their edges, so mini-batches around them are sampled.
    if not config.train.predicts_links:
        known = _unopened_types(source)
        if known is not None:
            _check_types_of_model(config, source, typed=True)
            return expected_typed_work(config, known)
        if source in DATASETS or source.startswith(_GENERATED):
            _check_types_of_model(config, source, typed=False)
            published = source in DATASETS
            return expected_workload(
                config, published_sizes(DATASETS[source]) if published else generated_sizes(source)
            )
    from hyrt.training.given.opened_graph import opened_graph

    return sampled_workload(config, opened_graph(config))


def _with_links(config: Config, graph: Graph) -> Graph:
    """The graph with the links that are predicted, where such are."""
    if not config.train.predicts_links:
        return graph
    from hyrt.training.given.link_graph import link_graph

    return link_graph(config, graph)


def _unopened_types(source: str) -> TypedDatasetSizes | None:
    """The sizes of a typed dataset that is not loaded to be predicted; None for any other."""
    if source in TYPED_DATASETS:
        return published_typed_sizes(TYPED_DATASETS[source])
    if not source.startswith(_GENERATED):
        return None
    from hyrt.graph.synthetic.spec import parse_spec

    return generated_typed_sizes(source) if parse_spec(source).typed else None


def _check_types_of_model(config: Config, source: str, *, typed: bool) -> None:
    """Refuse a kind of model for other graphs, as a run does once the data is open."""
    name = config.model.kind
    if typed and not (find_model(name).typed or takes_edge_types(name)):
        raise ConfigError(
            f"{source} has several types of vertices, which model.kind={name} does not tell apart: choose "
            f"a kind for typed graphs, such as {TYPED_KINDS[0]}"
        )
    if not typed and find_model(name).typed:
        raise ConfigError(
            f"model.kind={name} is for typed graphs, and {source} has vertices of one type: choose another "
            "kind, such as graphsage"
        )


def other_samplers(config: Config, training: TrainingWorkload) -> list[tuple[str, TrainingWorkload]]:
    """What the work would be with samplers that read fewer rows, each in a few words.

    Only in place of neighbour sampling with its defaults, and where sizes follow from degrees: others would
    have to be sampled.

    Parameters
    ----------
    config
        All settings.
    training
        The work as it is, with rows of the format that they have.
    """
    source = config.data.source
    is_named = (source in DATASETS or source.startswith(_GENERATED)) and _unopened_types(source) is None
    if config.sampler.kind != "neighbor" or not is_named or config.train.predicts_links:
        return []
    sampler = build_config(
        {"sampler": {"kind": "labor", "fanout": config.fanouts}, "model": {"layers": config.model.layers}}
    ).sampler
    labor = configured_workload(config.model_copy(update={"sampler": sampler}))
    labor = replace(labor, kept_part=training.kept_part, hit_rate=training.hit_rate)
    labor = labor.with_rows_of(training.at(1.0).dense_row_bytes)
    return [("neighbours that vertices share (sampler.kind=labor, which learns more slowly at first)", labor)]


def assumptions_of(config: Config) -> list[str]:
    """What is assumed of a configured run where it is neither published nor counted, one sentence each.

    Parameters
    ----------
    config
        The settings, as `configured_workload` takes them.
    """
    found = []
    source, of_model = config.data.source, find_model(config.model.kind).assumption
    if config.train.predicts_links:
        found.append("scoring pairs, and finding the edges that a step leaves out, take no time")
    elif source in DATASETS or source in TYPED_DATASETS:
        found.append(f"{source} has log-normal degrees, and its training vertices are like all others")
    elif source.startswith(_GENERATED):
        found.append(f"{source} has the degrees of the distribution that it is drawn from")
    if config.sampler.whole_graph:
        found.append(
            "the time of an epoch leaves out what is done once: opening the data, finding the edges by "
            "source, copying all of it to a device with memory of its own"
        )
    return [*found, of_model] if of_model else found


def dense_rows(platform: Platform, work: TrainingWorkload) -> list[str]:
    """A sentence on the trainers that get sparse features as dense rows, if there are any."""
    step = work.at(1.0)
    names = sorted({each.device.kind for each in platform.trainers() if each.taken(step) != step})
    if not names:
        return []
    return [
        f"{', '.join(names)} takes no sparse features, so the model counts the dense rows of "
        f"{step.features[0]:,} float32 values that it gets instead"
    ]


def terms_of(config: Config) -> Terms:
    """All terms of the performance model, with what a run of these settings does at the same time."""
    if config.sampler.whole_graph:
        # One stage has work.
        return Terms(overlap="nothing", shared_cores=False)
    if not config.runtime.pipelined:
        return Terms(overlap="nothing")
    return Terms(overlap="trainers" if config.runtime.depth == 1 else "all")


def other_ways(config: Config) -> list[tuple[str, Terms]]:
    """Other ways to run the same steps, each in a few words: short ones may do better without threads."""
    serial = config.model_copy(update={"runtime": config.runtime.model_copy(update={"pipelined": False})})
    if terms_of(serial) == terms_of(config):
        return []
    return [("one stage after the other (runtime.pipelined=false)", terms_of(serial))]
