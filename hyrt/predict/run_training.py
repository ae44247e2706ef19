"""What a run asks of the machine, as the performance model takes it."""

from __future__ import annotations

from hyrt_perfmodel.workloads.workload import TrainingWorkload

from hyrt.config import Config
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.machine.workers import Workers
from hyrt.predict.configured_training import configured_training
from hyrt.predict.sampled_sizes import sample_sizes
from hyrt.sampling.sampler import Sampler
from hyrt.training.setup import build_sampler

# Of a row that is made of a sparse one: float32.
_DENSE_BYTES = 4


def run_training(
    config: Config, graph: Graph, sampler: Sampler | None = None, *, sparse_as_rows: bool = False
) -> TrainingWorkload | None:
    """Sample a few mini-batches of a run and say what its epoch asks; None for runs the model has no words for.

    Those are runs over sampled subgraphs, and over sparse features.

    Parameters
    ----------
    config
        All settings.
    graph
        To be trained on.
    sampler
        The run's sampler; one is built where there is no run.
    sparse_as_rows
        Count sparse features as the dense rows that a device without a sparse form gets.
    """
    features = graph.features
    is_dense = isinstance(features, DenseFeatures)
    if config.sampler.unpredictable or not (is_dense or sparse_as_rows):
        return None
    value_bytes = features.values.itemsize if is_dense else _DENSE_BYTES
    targets = graph.split("train", config.data.split)
    if not len(targets):
        return None
    with Workers(1, "hyrt.predict") as workers:
        sizes = sample_sizes(sampler or build_sampler(config, graph, targets), workers)
    return configured_training(
        config,
        sizes.at,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        num_targets=len(targets),
        value_bytes=value_bytes,
        feature_bytes=float(graph.num_vertices) * graph.num_features * value_bytes,
        graph_bytes=float(graph.topology.indptr.nbytes + graph.topology.indices.nbytes),
    )
