"""What a configured run asks, from as little of its dataset as there is: a name, a preset, or the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyrt_perfmodel.sizes.datasets import DATASETS
from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.sampled_sizes import SampledSizes

from hyrt.config import Config
from hyrt.errors import ConfigError

if TYPE_CHECKING:
    from hyrt_perfmodel.workloads.workload import TrainingWorkload

_ID_BYTES = 4
_OFFSET_BYTES = 8
_HALVINGS = 12


def training_of(config: Config, *, sparse_as_rows: list[str] | None = None) -> TrainingWorkload:
    """The work of a run. Named datasets and generated ones are not loaded; others are, and a few mini-batches sampled.

    Parameters
    ----------
    config
        All settings.
    sparse_as_rows
        Where sparse features are to be counted as dense rows: takes a sentence that says so. They are refused without.

    Raises
    ------
    ConfigError
        If the model has no words for the run.
    DataError
        If the dataset is not there, or damaged.
    """
    source = config.data.source
    if config.sampler.unpredictable:
        raise ConfigError(
            f"sampler.kind={config.sampler.kind} cannot be predicted: {config.sampler.unpredictable}"
        )
    if source in DATASETS:
        known = DATASETS[source]
        degrees = DegreeDistribution.assumed(
            known.vertices,
            known.edges,
            num_targets=known.targets,
            reciprocity=float(known.symmetric),
        )
        return _from_degrees(config, degrees, known.features, known.classes, known.targets, known.value_bytes)
    if source.startswith("synthetic:"):
        from hyrt.graph.synthetic.degree_law import synthetic_degrees
        from hyrt.graph.synthetic.spec import parse_spec

        spec = parse_spec(source)
        return _from_degrees(
            config,
            synthetic_degrees(spec),
            spec.features,
            spec.classes,
            spec.train,
            2 if spec.dtype == "float16" else 4,
        )
    from hyrt.graph.row_source import SparseFeatures
    from hyrt.graph.source import open_graph
    from hyrt.predict.run_training import run_training

    graph = open_graph(source, normalize=config.data.normalize)
    is_sparse = isinstance(graph.features, SparseFeatures)
    training = run_training(config, graph, sparse_as_rows=sparse_as_rows is not None)
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
    """What is assumed of the work where it is neither published nor counted, one sentence each.

    Parameters
    ----------
    config
        As `training_of` takes it.
    """
    found = []
    source, kind = config.data.source, config.model.kind
    if source in DATASETS:
        found.append(f"{source} has log-normal degrees, and its training vertices are like all others")
    elif source.startswith("synthetic:"):
        found.append(f"{source} has the degrees of the distribution that it is drawn from")
    if kind == "gin":
        found.append("a gin layer costs its aggregation and two products; its activation costs nothing")
    elif kind == "gat":
        found.append("a gat layer reads a row for each edge and head; scores and softmax cost nothing")
    return found


def _from_degrees(
    config: Config, degrees: DegreeDistribution, features: int, classes: int, targets: int, value_bytes: int
) -> TrainingWorkload:
    from hyrt.predict.configured_training import configured_training, expected_block_sizes

    # Expected once at some sizes of mini-batches, and interpolated: the best split is searched among thousands.
    most = min(config.data.batch_size, max(1, targets))
    counts = sorted({max(1.0, most / 2**power) for power in range(_HALVINGS)})
    sizes = SampledSizes({count: expected_block_sizes(config, degrees, targets, count) for count in counts})
    return configured_training(
        config,
        sizes.at,
        num_features=features,
        num_classes=classes,
        num_targets=targets,
        value_bytes=value_bytes,
        feature_bytes=float(degrees.num_vertices) * features * value_bytes,
        graph_bytes=float(degrees.num_edges) * _ID_BYTES + float(degrees.num_vertices) * _OFFSET_BYTES,
    )
