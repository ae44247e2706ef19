"""Expected mini-batches of a configured run, and the memory they take in the host."""

from __future__ import annotations

from dataclasses import replace

from hyrt_perfmodel.prediction.memory import activations_bytes, mini_batch_bytes
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.doctor.children.dataset_sizes import DatasetSizes
from hyrt.predict.configured_training import configured_training, expected_block_sizes

# A stored value of a sparse row with its column; its row's offset, id and number.
_ENTRY_BYTES, _SPARSE_ROW_BYTES = 8, 24


def expected_training(config: Config, sizes: DatasetSizes) -> TrainingWorkload:
    """The work of a run as the performance model counts it: of dense rows, sparse ones too.

    Parameters
    ----------
    config
        All settings.
    sizes
        Of the dataset.
    """
    return configured_training(
        config,
        lambda units: expected_block_sizes(config, sizes.degrees, sizes.targets, units),
        num_features=sizes.features,
        num_classes=sizes.classes,
        num_targets=sizes.targets,
        value_bytes=sizes.value_bytes,
        feature_bytes=sizes.feature_bytes,
        graph_bytes=sizes.graph_bytes,
    )


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
