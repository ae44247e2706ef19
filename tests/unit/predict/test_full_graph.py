"""The prediction of training on the whole graph: exact sizes, one stage, and memory array by array."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from graphs import random_graph
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.initial_assignment import full_graph_arrays, initial_assignment
from hyrt_perfmodel.prediction.predict import Prediction, predict
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.config import build_config
from hyrt.predict.workload import configured_terms, configured_workload, sampled_workload
from hyrt.report.predict_table import prediction_lines

PLATFORM = load_platform("2x-epyc7763-4x-a5000")
THREADS = Threads(sample=1, load=1, train=128)


def config_of(kind: str = "gcn", **more: Any) -> Any:
    return build_config({"sampler": {"kind": "full"}, "model": {"kind": kind, "hidden": 32}, **more})


def predicted(work: TrainingWorkload, split: tuple[int, ...] = (1, 0, 0, 0, 0)) -> Prediction:
    terms = configured_terms(config_of())
    return predict(PLATFORM, work, assignment=Assignment(split=split, threads=THREADS), terms=terms)


def test_the_sizes_are_those_of_the_graph() -> None:
    graph = random_graph(200, features=10, classes=4)
    work = sampled_workload(config_of(), graph)
    whole = work.at(1.0)
    assert whole.vertices == pytest.approx((200.0,) * 3)
    assert whole.edges == pytest.approx((float(graph.num_edges),) * 2)
    assert (work.batch_size, work.targets_per_epoch, work.resident) == (1, 1, True)
    published = configured_workload(config_of(data={"source": "ogbn-arxiv"})).at(1.0)
    assert published.vertices == pytest.approx((169_343.0,) * 3)
    assert published.edges == pytest.approx((1_166_243.0,) * 2)


@pytest.mark.parametrize("split", [(1, 0, 0, 0, 0), (0, 1, 0, 0, 0)], ids=["cpu", "gpu"])
def test_a_step_is_its_propagation(split: tuple[int, ...]) -> None:
    work = configured_workload(config_of(data={"source": "ogbn-arxiv"}))
    now = predicted(work, split)
    assert (now.stages.sample_s, now.stages.load_s, now.stages.transfer_s) == (0, 0, 0)
    assert now.epoch_s == now.iteration_s == pytest.approx(now.stages.propagate_s)
    assert (now.iterations, now.bottleneck) == (1, "propagate")
    # Without edges, what is left are products and activations.
    bare = replace(work, at=lambda units: replace(work.at(units), edges=(0.0, 0.0)))
    sync_s = now.stages.synchronize_s
    rest = (predicted(bare, split).iteration_s - sync_s) / (now.iteration_s - sync_s)
    assert now.gather_share == pytest.approx(1 - rest)
    assert sum(now.arrays.values()) == now.memory["host" if split[0] else "a5000:0"].needed_bytes


@pytest.mark.parametrize("symmetric", [True, False])
def test_memory_array_by_array(symmetric: bool) -> None:
    graph = random_graph(200, features=10, classes=4, symmetric=symmetric)
    work = sampled_workload(config_of(), graph)
    topology = graph.topology.indptr.nbytes + graph.topology.indices.nbytes
    found = full_graph_arrays(work.at(1.0), work)
    assert found.pop("edges by source", 0.0) == (0 if symmetric else topology)
    assert found == pytest.approx(
        {
            "topology": topology,
            "degrees and their factors": 200 * 2 * 4,
            "features": 200 * 10 * 4,
            "gathered by layer 1": 200 * 10 * 4,
            "hidden rows of layer 1": 200 * 32 * 4,
            "gathered by layer 2": 200 * 32 * 4,
            "scores": 200 * 4 * 4,
            "gradient of the widest": 200 * 32 * 4,
            "parameters, gradients, optimizer": 6 * (10 * 32 + 32 * 4) * 4,
        }
    )


def test_attention_gathers_a_row_for_each_head_and_numbers_its_edges() -> None:
    graph = random_graph(200, features=10, classes=4)
    work = sampled_workload(config_of("gat"), graph)
    found = full_graph_arrays(work.at(1.0), work)
    assert found["gathered by layer 2"] == pytest.approx(200 * 4 * 32 * 4)
    assert found["edges' numbers by source"] == pytest.approx(4 * graph.num_edges)


def test_a_device_without_the_memory_is_not_chosen() -> None:
    work = configured_workload(config_of(data={"source": "ogbn-papers100M"}))
    split = initial_assignment(PLATFORM, work, threads=THREADS, terms=configured_terms(config_of())).split
    assert split == (1, 0, 0, 0, 0), "only the host has the memory"
    assert not predicted(work, (0, 1, 0, 0, 0)).memory["a5000:0"].fits


def test_the_table_has_a_line_for_each_array_and_says_what_bounds() -> None:
    now = predicted(configured_workload(config_of(data={"source": "ogbn-arxiv"})))
    text = "\n".join(prediction_lines(now, [], PLATFORM))
    assert all(f"  {name} " in text for name in now.arrays)
    assert f"({now.gather_share:.0%} reading rows along edges, the rest products and activations)" in text
    assert now.to_json()["arrays_bytes"].keys() == now.arrays.keys()
