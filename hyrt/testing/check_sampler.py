"""Checks of the optional device sampler, which must sample exactly like the host."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.device import Device
from hyrt.device.capabilities import device_sampler
from hyrt.graph.graph import Graph
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.sampling.kernels import count_neighbors, prefix_sum, relabel, sample_neighbors
from hyrt.sampling.sampler import Hop, HopSampler
from hyrt.testing import cases
from hyrt.testing.trial import (
    Trial,
    check_same_bits,
    copy_result,
    require,
    run_concurrently,
    run_step,
    skip_unless,
)

_FANOUTS = (1, 5, 64, 65, 100, 1000, -1)


def _sampler(device: Device, graph: Graph) -> HopSampler:
    sampler = device_sampler(device, graph)
    skip_unless(sampler is not None, "it does not sample")
    assert sampler is not None
    return sampler


def sample_hop_on_host(graph: Graph, vertices: NDArray[Any], fanout: int, key: np.uint64) -> Hop:
    """Return the hop as sampled by the host."""
    count = len(vertices)
    degrees, counts = np.empty(count, np.int32), np.empty(count, np.int32)
    count_neighbors(graph.topology.indptr, vertices, fanout, 0, count, degrees, counts)
    offsets = np.empty(count + 1, np.int32)
    prefix_sum(counts, offsets)
    neighbors = np.empty(offsets[-1], vertices.dtype)
    positions = np.empty(offsets[-1], np.int64)
    sample_neighbors(
        graph.topology.indptr, graph.topology.indices, vertices, offsets, key, 0, count, positions, neighbors
    )
    local = np.full(graph.num_vertices, -1, np.int32)
    sources = np.empty(count + len(neighbors), vertices.dtype)
    columns = np.empty(len(neighbors), np.int32)
    return Hop(
        degrees, offsets, neighbors, sources[: relabel(vertices, neighbors, local, sources, columns)], columns
    )


def _compare(actual: Hop, expected: Hop, where: str, *, relabelled: bool) -> None:
    fields = ["degrees", "offsets", "neighbors"]
    if relabelled:
        both = (actual.sources is None) == (actual.columns is None)
        require(both, f"both sources and columns, or neither, {where}", "it gives one of them")
        fields += [] if actual.sources is None else ["sources", "columns"]
    for field in fields:
        value, exact = getattr(actual, field), getattr(expected, field)
        require(value.dtype == exact.dtype, f"{field} of {exact.dtype} {where}", f"they are {value.dtype}")
        same = np.array_equal(value, exact)
        require(same, f"the {field} that the host draws, bit for bit, {where}", "they differ")


def sampler_matches_the_host(trial: Trial) -> None:
    """Check sampled edges for fan-outs on both sides of every method, isolated vertices, and empty input."""
    device = trial.open_loaded()
    graph = trial.graph()
    sampler = _sampler(device, graph)
    groups = {
        "all vertices": np.random.default_rng(2).permutation(graph.num_vertices),
        "the hub": np.array([cases.HUB]),
        "vertices without neighbours": np.array(cases.ISOLATED),
        "no vertices": np.empty(0, np.int64),
    }
    for fanout in _FANOUTS:
        for name, vertices in groups.items():
            ids = vertices.astype(np.int32)
            key = stream_key(cases.SEED, SAMPLE, fanout + 1, len(ids))
            expected = sample_hop_on_host(graph, ids, fanout, key)
            for relabelled in (False, True):
                where = f"of {name} at fan-out {fanout}"
                actual = sampler.draw(ids, fanout, key, relabel=relabelled)
                _compare(actual, expected, where, relabelled=relabelled)
    sampler.close()
    sampler.close()


def mini_batches_it_sampled_are_trained(trial: Trial) -> None:
    """Check training with mini-batches that the device samples, and may cache."""
    model: Any = trial.model()
    device = trial.open_loaded(model)
    graph, layers = trial.graph(), model.architecture.layers
    sampler = _sampler(device, graph)
    for count in (40, 1, 120):
        targets = cases.sample_targets(count)
        reference = copy_result(run_step(device, cases.sampled_batch(graph, layers, targets, cases.ROWS)))
        drawn = [cases.sampled_batch(graph, layers, targets, cases.ROWS, hops=sampler) for _ in range(3)]
        staged = [device.transfer(batch) for batch in drawn]
        for handle in staged:
            check_same_bits(device.propagate(handle), reference, "of a mini-batch that the device sampled")


def sampler_draws_while_the_device_trains(trial: Trial) -> None:
    """Check that the sampler can be called from the sample stage's thread during training."""
    model: Any = trial.model()
    device = trial.open_loaded(model)
    graph = trial.graph()
    sampler = _sampler(device, graph)
    ids = np.arange(graph.num_vertices, dtype=np.int32)
    key = stream_key(cases.SEED, SAMPLE, 0, 1)
    expected_hop = sample_hop_on_host(graph, ids, 5, key)
    reference = copy_result(run_step(device, trial.batch()))

    trained = threading.Event()

    def draw() -> None:
        while not trained.is_set():
            actual = sampler.draw(ids, 5, key, relabel=True)
            _compare(actual, expected_hop, "while the device trains", relabelled=True)

    def train() -> None:
        try:
            for _ in range(20):
                check_same_bits(run_step(device, trial.batch()), reference, "while it samples")
        finally:
            trained.set()

    run_concurrently(draw, train)


def the_sampler_may_outlive_the_device(trial: Trial) -> None:
    """Check that a sampler can be closed before its device, after it, or not at all."""
    for order in ("before", "after", "never"):
        device = trial.open_loaded()
        sampler = _sampler(device, trial.graph())
        sampler.draw(np.arange(9, dtype=np.int32), 5, np.uint64(1), relabel=False)
        if order == "before":
            sampler.close()
        device.close()
        if order == "after":
            sampler.close()
