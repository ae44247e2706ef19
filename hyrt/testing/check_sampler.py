"""Checks of the optional sampler: it draws what the host draws."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.device import Device
from hyrt.device.capabilities import device_sampler
from hyrt.graph.graph import Graph
from hyrt.machine.generator import SAMPLE, stream_key
from hyrt.sampling.kernels import count_neighbors, draw_neighbors, prefix_sum, relabel
from hyrt.sampling.sampler import Hop, HopSampler
from hyrt.testing import cases
from hyrt.testing.trial import Trial, demand, kept, same_bits, skip_unless, step, together

_FANOUTS = (1, 5, 64, 65, 100, 1000, -1)


def _sampler(device: Device, graph: Graph) -> HopSampler:
    sampler = device_sampler(device, graph)
    skip_unless(sampler is not None, "it does not sample")
    assert sampler is not None
    return sampler


def host_hop(graph: Graph, vertices: NDArray[Any], fanout: int, key: np.uint64) -> Hop:
    """What the host draws."""
    num = len(vertices)
    degrees, counts = np.empty(num, np.int32), np.empty(num, np.int32)
    count_neighbors(graph.topology.indptr, vertices, fanout, 0, num, degrees, counts)
    offsets = np.empty(num + 1, np.int32)
    prefix_sum(counts, offsets)
    neighbors = np.empty(offsets[-1], vertices.dtype)
    positions = np.empty(offsets[-1], np.int64)
    draw_neighbors(
        graph.topology.indptr, graph.topology.indices, vertices, offsets, key, 0, num, positions, neighbors
    )
    local = np.full(graph.num_vertices, -1, np.int32)
    room = np.empty(num + len(neighbors), vertices.dtype)
    columns = np.empty(len(neighbors), np.int32)
    return Hop(
        degrees, offsets, neighbors, room[: relabel(vertices, neighbors, local, room, columns)], columns
    )


def _compare(found: Hop, wanted: Hop, where: str, *, relabelled: bool) -> None:
    parts = ["degrees", "offsets", "neighbors"]
    if relabelled:
        both = (found.sources is None) == (found.columns is None)
        demand(both, f"both sources and columns, or neither, {where}", "it gives one of them")
        parts += [] if found.sources is None else ["sources", "columns"]
    for part in parts:
        mine, exact = getattr(found, part), getattr(wanted, part)
        demand(mine.dtype == exact.dtype, f"{part} of {exact.dtype} {where}", f"they are {mine.dtype}")
        same = np.array_equal(mine, exact)
        demand(same, f"the {part} that the host draws, bit for bit, {where}", "they differ")


def sampler_draws_what_the_host_draws(trial: Trial) -> None:
    """For fan-outs on both sides of every method, with and without neighbours, for both id widths."""
    device = trial.loaded()
    graph = trial.graph()
    sampler = _sampler(device, graph)
    groups = {
        "all vertices": np.random.default_rng(2).permutation(graph.num_vertices),
        "the hub": np.array([cases.HUB]),
        "vertices without neighbours": np.array(cases.LONELY),
        "no vertices": np.empty(0, np.int64),
    }
    for fanout in _FANOUTS:
        for name, vertices in groups.items():
            ids = vertices.astype(np.int32)
            key = stream_key(cases.SEED, SAMPLE, fanout + 1, len(ids))
            wanted = host_hop(graph, ids, fanout, key)
            for relabelled in (False, True):
                where = f"of {name} at fan-out {fanout}"
                found = sampler.draw(ids, fanout, key, relabel=relabelled)
                _compare(found, wanted, where, relabelled=relabelled)
    sampler.close()
    sampler.close()


def mini_batches_it_sampled_are_trained(trial: Trial) -> None:
    """A mini-batch that the device sampled, of which it may have kept a copy, gives what the host's gives."""
    model: Any = trial.model()
    device = trial.loaded(model)
    graph, layers = trial.graph(), model.architecture.layers
    sampler = _sampler(device, graph)
    for count in (40, 1, 120):
        targets = cases.some_targets(count)
        wanted = kept(step(device, cases.sampled(graph, layers, targets, cases.ROWS)))
        drawn = [cases.sampled(graph, layers, targets, cases.ROWS, hops=sampler) for _ in range(3)]
        staged = [device.transfer(batch) for batch in drawn]
        for each in staged:
            same_bits(device.propagate(each), wanted, "of a mini-batch that the device sampled")


def sampler_draws_while_the_device_trains(trial: Trial) -> None:
    """It is called by the thread of the sample stage."""
    model: Any = trial.model()
    device = trial.loaded(model)
    graph = trial.graph()
    sampler = _sampler(device, graph)
    ids = np.arange(graph.num_vertices, dtype=np.int32)
    key = stream_key(cases.SEED, SAMPLE, 0, 1)
    wanted_hop = host_hop(graph, ids, 5, key)
    wanted = kept(step(device, trial.batch()))

    trained = threading.Event()

    def draw() -> None:
        while not trained.is_set():
            found = sampler.draw(ids, 5, key, relabel=True)
            _compare(found, wanted_hop, "while the device trains", relabelled=True)

    def train() -> None:
        try:
            for _ in range(20):
                same_bits(step(device, trial.batch()), wanted, "while it samples")
        finally:
            trained.set()

    together(draw, train)


def its_sampler_goes_with_the_device(trial: Trial) -> None:
    """A sampler may be closed before its device, after it, or not at all."""
    for order in ("before", "after", "never"):
        device = trial.loaded()
        sampler = _sampler(device, trial.graph())
        sampler.draw(np.arange(9, dtype=np.int32), 5, np.uint64(1), relabel=False)
        if order == "before":
            sampler.close()
        device.close()
        if order == "after":
            sampler.close()
