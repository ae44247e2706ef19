"""What HyScale-GNN says of its machines (Fig. 9), from the built-in platform and published dataset sizes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hyrt_perfmodel.degrees import DATASETS, DegreeDistribution
from hyrt_perfmodel.expected_sizes import expected_sizes
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.prediction.predict import predict, with_accelerators
from hyrt_perfmodel.workload import TrainingWorkload, proportional_workload

FPGA = load_platform("2x-epyc7763-4x-u250")


def training(model: str, dataset: str) -> TrainingWorkload:
    known = DATASETS[dataset]
    degrees = DegreeDistribution.assumed(
        known.vertices, known.edges, num_targets=known.targets, reciprocity=float(known.symmetric)
    )
    sizes = expected_sizes(degrees, (25, 10), 1024)
    work = model_workload(model, sizes.vertices, sizes.edges, (known.features, 256, known.classes))
    return TrainingWorkload(
        at=proportional_workload(work, 1024),
        targets_per_epoch=known.targets,
        batch_size=1024,
        batch_per_trainer=1024,
    )


@pytest.mark.parametrize("model", ["gcn", "graphsage"])
@pytest.mark.parametrize("dataset", ["ogbn-products", "ogbn-papers100M"])
def test_it_saturates_beyond_12_accelerators_by_host_bandwidth(model: str, dataset: str) -> None:
    work = training(model, dataset)
    found = [predict(with_accelerators(FPGA, count), work, paper=True) for count in range(1, 17)]
    speeds = [each.throughput_mteps for each in found]
    assert all(after > before * 1.05 for before, after in pairwise(speeds[:12]))
    assert max(speeds[12:]) < speeds[11] * 1.001
    assert {each.bottleneck for each in found[12:]} == {"load"}


def test_gcn_on_products_is_bound_by_transfer() -> None:
    assert predict(FPGA, training("gcn", "ogbn-products"), paper=True).bottleneck == "transfer"
