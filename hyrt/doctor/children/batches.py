"""Expected mini-batches of a configured run, and the memory they take in the host."""

from __future__ import annotations

import math
from dataclasses import replace

from hyrt_perfmodel.prediction.memory import activations_bytes, mini_batch_bytes
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes, expected_sizes
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.doctor.children.dataset_sizes import DatasetSizes
from hyrt.predict.configured_training import configured_training

# A stored value of a sparse row with its column; its row's offset, id and number.
_ENTRY_BYTES, _SPARSE_ROW_BYTES = 8, 24
_COUNT_BYTES = 4


def expected_training(config: Config, sizes: DatasetSizes) -> TrainingWorkload:
    """The work of a run as the performance model counts it: of dense rows, sparse ones too.

    Parameters
    ----------
    config
        All settings.
    sizes
        Of the dataset.
    """
    walks = config.sampler.kind == "saint"
    training = configured_training(
        config,
        lambda units: (
            _walked(config, sizes, units) if walks else expected_sizes(sizes.degrees, config.fanouts, units)
        ),
        num_features=sizes.features,
        num_classes=sizes.classes,
        num_targets=sizes.targets,
        value_bytes=sizes.value_bytes,
        feature_bytes=sizes.feature_bytes,
        graph_bytes=sizes.graph_bytes,
    )
    return replace(training, batch_size=config.sampler.units) if walks else training


def sampler_bytes(config: Config, sizes: DatasetSizes) -> float:
    """What a sampler keeps besides the graph: counts of each vertex and edge, of random walks."""
    if config.sampler.kind != "saint":
        return 0.0
    return _COUNT_BYTES * float(sizes.degrees.num_vertices + sizes.degrees.num_edges)


def staged_bytes(workload: Workload, sizes: DatasetSizes) -> float:
    """Input rows and blocks of one mini-batch in host memory.

    Parameters
    ----------
    workload
        Of one trainer.
    sizes
        Of the dataset.
    """
    if sizes.row_entries is None:
        return mini_batch_bytes(workload)
    blocks = mini_batch_bytes(replace(workload, features=(0, *workload.features[1:])))
    return blocks + workload.vertices[0] * (_SPARSE_ROW_BYTES + _ENTRY_BYTES * sizes.row_entries)


def computed_bytes(workload: Workload, sizes: DatasetSizes) -> float:
    """Activations of one mini-batch that is computed in host memory.

    The first layer multiplies every sparse row, and keeps the products in place of dense rows.

    Parameters
    ----------
    workload
        Of one trainer.
    sizes
        Of the dataset.
    """
    if sizes.row_entries is None:
        return activations_bytes(workload)
    products = workload.vertices[0] * workload.features[1] / max(1.0, workload.vertices[1])
    later = [workload.f_in(layer) for layer in range(2, workload.layers + 1)]
    return activations_bytes(replace(workload, widths_in=(products, *later)))


def _walked(config: Config, sizes: DatasetSizes, units: float) -> BlockSizes:
    """Subgraphs of random walks: distinct vertices as if steps were drawn uniformly, with all their neighbours' edges."""
    sampler, layers = config.sampler, config.model.layers
    vertices, edges = float(sizes.degrees.num_vertices), float(sizes.degrees.num_edges)
    starts = _distinct(sizes.targets, sampler.roots)
    met = min(vertices, starts + _distinct(vertices, sampler.roots * sampler.walk_length))
    inside = min(edges, met * edges / vertices)
    return BlockSizes(vertices=(units * met,) * (layers + 1), edges=(units * inside,) * layers)


def _distinct(among: float, draws: float) -> float:
    return among * -math.expm1(-draws / among)
