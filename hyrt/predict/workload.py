"""What a run asks of a machine, as the performance model takes it: the one builder of workloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.sizes.datasets import DATASETS
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
from hyrt_perfmodel.sizes.sampled_sizes import SampledSizes
from hyrt_perfmodel.workloads.model_workload import model_workload
from hyrt_perfmodel.workloads.workload import LoadForm, TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import find_model
from hyrt.predict.block_sizes import expected_block_sizes, sampled_block_sizes
from hyrt.predict.dataset_sizes import DatasetSizes, generated_sizes, graph_sizes, published_sizes

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.sampling.sampler import Sampler

_GENERATED = "synthetic:"
_HALVINGS = 12


def training_workload(
    config: Config, dataset: DatasetSizes, sizes: Callable[[float], BlockSizes]
) -> TrainingWorkload:
    """The work of a run whose mini-batches have known sizes. Needs neither torch nor the graph.

    Parameters
    ----------
    config
        All settings.
    dataset
        The sizes of the dataset.
    sizes
        Gives the sizes of a mini-batch by its number of targets, or of subgraphs where the sampler makes
        these.
    """
    model = config.model
    costs = find_model(model.kind).costs_like
    widths = [dataset.features, *[model.hidden] * (model.layers - 1), dataset.classes]

    def at(targets: float) -> Workload:
        found = sizes(targets)
        return model_workload(
            costs,
            found.vertices,
            found.edges,
            widths,
            heads=model.heads,
            bytes_per_value=dataset.value_bytes,
        )

    return TrainingWorkload(
        at=at,
        targets_per_epoch=dataset.targets,
        batch_size=min(config.units_per_step, dataset.targets),
        model=costs,
        best_form=_best_form(config),
        feature_bytes=dataset.feature_bytes,
        graph_bytes=dataset.graph_bytes,
    )


def _best_form(config: Config) -> LoadForm:
    """The form of input that costs the configured model least, where a trainer takes it."""
    model = config.model
    if not config.runtime.fuse_load or model.input_dropout > 0:
        return "rows"
    form = find_model(model.kind).best_form
    return "rows" if form == "aggregated" and model.residual and model.layers > 1 else form


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
    most = min(config.data.batch_size, max(1, dataset.targets))
    counts = sorted({max(1.0, most / 2**power) for power in range(_HALVINGS)})
    sizes = SampledSizes({count: expected_block_sizes(config, dataset, count) for count in counts})
    return training_workload(config, dataset, sizes.at)


def sampled_workload(
    config: Config, graph: Graph, sampler: Sampler | None = None, *, sparse_as_rows: bool = False
) -> TrainingWorkload | None:
    """The work of a run on an open graph, from sampled mini-batches; None where the model cannot say.

    Those are runs over sampled subgraphs, over sparse features, without training vertices, and of models that
    do not say what they cost.

    Parameters
    ----------
    config
        All settings.
    graph
        The graph to be trained on.
    sampler
        The run's sampler; one is built where there is no run.
    sparse_as_rows
        Whether sparse features count as the dense rows that a device without a sparse form gets.
    """
    from hyrt.graph.row_source import DenseFeatures
    from hyrt.machine.workers import Workers
    from hyrt.training.setup import build_sampler

    has_costs = bool(find_model(config.model.kind).costs_like) and not config.sampler.unpredictable
    if not has_costs or not (isinstance(graph.features, DenseFeatures) or sparse_as_rows):
        return None
    targets = graph.split("train", config.data.split)
    if not len(targets):
        return None
    with Workers(1, "hyrt.predict") as workers:
        sizes = sampled_block_sizes(sampler or build_sampler(config, graph, targets), workers)
    return training_workload(config, graph_sizes(graph, targets), sizes.at)


def configured_workload(config: Config, *, sparse_as_rows: list[str] | None = None) -> TrainingWorkload:
    """The work of a run that the settings name.

    Published and generated datasets are not loaded; others are opened, and a few of their mini-batches
    sampled.

    Parameters
    ----------
    config
        All settings.
    sparse_as_rows
        Called with a sentence that says so where sparse features are counted as dense rows. Without it sparse
        features are refused.

    Raises
    ------
    ConfigError
        If the model has no words for the run.
    DataError
        If the dataset is missing or damaged.
    """
    source = config.data.source
    if config.sampler.unpredictable:
        raise ConfigError(
            f"sampler.kind={config.sampler.kind} cannot be predicted: {config.sampler.unpredictable}"
        )
    if not find_model(config.model.kind).costs_like:
        raise ConfigError(
            f"model.kind={config.model.kind} cannot be predicted: it does not say what it costs"
        )
    if source in DATASETS:
        return expected_workload(config, published_sizes(DATASETS[source]))
    if source.startswith(_GENERATED):
        return expected_workload(config, generated_sizes(source))
    from hyrt.graph.row_source import SparseFeatures
    from hyrt.graph.source import open_graph

    graph = open_graph(source, normalize=config.data.normalize)
    is_sparse = isinstance(graph.features, SparseFeatures)
    training = sampled_workload(config, graph, sparse_as_rows=sparse_as_rows is not None)
    if training is None:
        reason = "the data has no training vertices"
        if is_sparse and sparse_as_rows is None:
            reason = "the features are sparse, and the performance model counts only dense rows"
        raise ConfigError(f"{source} cannot be predicted: {reason}")
    if is_sparse and sparse_as_rows is not None:
        sparse_as_rows.append(
            f"{source} has sparse features: the model counts the dense rows of {graph.num_features:,} "
            "float32 values that the device gets"
        )
    return training


def assumptions_of(config: Config) -> list[str]:
    """What is assumed of a configured run where it is neither published nor counted, one sentence each.

    Parameters
    ----------
    config
        The settings, as `configured_workload` takes them.
    """
    found = []
    source, of_model = config.data.source, find_model(config.model.kind).assumption
    if source in DATASETS:
        found.append(f"{source} has log-normal degrees, and its training vertices are like all others")
    elif source.startswith(_GENERATED):
        found.append(f"{source} has the degrees of the distribution that it is drawn from")
    return [*found, of_model] if of_model else found


def terms_of(config: Config) -> Terms:
    """All terms of the performance model, with what a run of these settings does at the same time."""
    if not config.runtime.pipelined:
        return Terms(overlap="nothing")
    return Terms(overlap="trainers" if config.runtime.depth == 1 else "all")
