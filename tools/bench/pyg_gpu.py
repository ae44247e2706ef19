"""The benchmark workload of `gpu_check.py` in PyTorch Geometric on the same device.

PyG uses its neighbour loader if pyg-lib or torch-sparse is installed. Otherwise, hyrt's sampler provides
mini-batches on a separate thread, which the result states. In both cases, feature rows are gathered from
device memory, and the device computes everything that it can.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from timed_runs import BATCH, FANOUT, LR

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph

HIDDEN = 256


def has_pyg_sampler() -> bool:
    from torch_geometric import typing

    return bool(typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE)


def sage(features: int, classes: int) -> torch.nn.Module:
    from torch_geometric.nn import SAGEConv

    return torch.nn.ModuleList([SAGEConv(features, HIDDEN), SAGEConv(HIDDEN, classes)])


# Mini-batch: edges and number of destinations of each layer, input rows, labels, and number of targets.
Step = tuple[list[tuple[torch.Tensor, int]], torch.Tensor, torch.Tensor, int]


def pyg_epochs(graph: Graph, device: torch.device, workers: int) -> Iterator[Iterator[Step]]:
    """Iterate over epochs of PyG's loader, which samples in separate processes."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    indptr = torch.from_numpy(graph.topology.indptr)
    rows = torch.arange(graph.num_vertices).repeat_interleave(indptr.diff())
    data = Data(
        edge_index=torch.stack([torch.from_numpy(graph.topology.indices).long(), rows]),
        num_nodes=graph.num_vertices,
    )
    targets = torch.from_numpy(graph.split("train"))
    loader = NeighborLoader(
        data,
        num_neighbors=FANOUT,
        input_nodes=targets,
        batch_size=BATCH,
        shuffle=True,
        is_sorted=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    labels = torch.from_numpy(graph.labels).to(device).long()

    def epoch() -> Iterator[Step]:
        for batch in loader:
            ids = batch.n_id.to(device, non_blocking=True)
            edges = batch.edge_index.to(device, non_blocking=True)
            nodes, hops = batch.num_sampled_nodes, batch.num_sampled_edges
            if nodes is None:
                # torch-sparse's sampler does not count by hop: every layer covers the whole subgraph.
                layers, num_edges = [(edges, len(ids))] * 2, 2 * edges.shape[1]
            else:
                layers = [(edges, nodes[0] + nodes[1]), (edges[:, : hops[0]], nodes[0])]
                num_edges = edges.shape[1] + hops[0]
            yield layers, ids, labels[ids[: batch.batch_size]], num_edges

    while True:
        yield epoch()


def hyrt_epochs(graph: Graph, device: torch.device, threads: int) -> Iterator[Iterator[Step]]:
    """Iterate over epochs of hyrt's sampler, whose CSR arrays are converted to edge lists on the device."""
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.neighbor_sampler import NeighborSampler

    sampler = NeighborSampler(graph, graph.split("train"), FANOUT, BATCH, 0)
    steps = sampler.steps_per_epoch()
    team = Workers(threads, "peer.sample")

    def to_device(array: Any) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    def epoch(number: int) -> Iterator[Step]:
        ready: queue.Queue[Any] = queue.Queue(4)

        def produce() -> None:
            for step in range(number * steps, (number + 1) * steps):
                ready.put(sampler.sample(step, sampler.units(step), team, in_place=False))

        threading.Thread(target=produce, daemon=True).start()
        for _ in range(steps):
            batch = ready.get()
            layers = []
            for block in batch.blocks:
                counts = to_device(block.indptr).diff()
                rows = torch.arange(block.num_dst, device=device).repeat_interleave(
                    counts, output_size=block.num_edges
                )
                layers.append((torch.stack([to_device(block.columns).long(), rows]), block.num_dst))
            ids, labels = to_device(batch.blocks[0].sources), to_device(batch.labels)
            edges = batch.num_edges
            batch.release()
            yield layers, ids, labels, edges

    number = 0
    while True:
        yield epoch(number)
        number += 1


def run(graph: Graph, device: torch.device, epochs: int) -> dict[str, Any]:
    """Train GraphSAGE, and return the results of the epochs after the first, which is warm-up."""
    cores = len(os.sched_getaffinity(0))
    uses_pyg_sampler = has_pyg_sampler()
    feed = (pyg_epochs if uses_pyg_sampler else hyrt_epochs)(graph, device, max(1, cores // 2))
    features = torch.from_numpy(graph.features.values).to(device)  # type: ignore[union-attr]
    torch.manual_seed(0)
    model = sage(graph.num_features, graph.num_classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    cuda = device.type == "cuda"
    times, busy, accuracy, edges = [], [], [], []
    for _ in range(epochs + 1):
        marks: list[tuple[Any, Any]] = []
        correct = torch.zeros((), dtype=torch.int64, device=device)
        num_edges = targets = steps = 0
        started = time.perf_counter()
        for layers, ids, labels, count in next(feed):
            if cuda:
                marks.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
                marks[-1][0].record()
            x = features[ids].float()
            for i, (edge_index, num_dst) in enumerate(layers):
                x = model[i]((x, x[:num_dst]), edge_index)
                x = x.relu() if i + 1 < len(layers) else x
            x = x[: len(labels)]
            loss = torch.nn.functional.cross_entropy(x, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (x.argmax(1) == labels).sum()
            if cuda:
                marks[-1][1].record()
            num_edges, targets, steps = num_edges + count, targets + len(labels), steps + 1
        num_correct = int(correct)  # This conversion waits for the device.
        seconds = time.perf_counter() - started
        times.append(seconds / steps)
        edges.append(num_edges / seconds / 1e6)
        accuracy.append(num_correct / targets)
        busy.append(sum(a.elapsed_time(b) for a, b in marks) / 1e3 / seconds)
    middle = sorted(range(1, epochs + 1), key=times.__getitem__)[epochs // 2]
    return {
        "system": "pyg",
        "sampler": "its own neighbour loader"
        if uses_pyg_sampler
        else "hyrt's sampler (neither pyg-lib nor torch-sparse)",
        "ms_per_step": 1e3 * times[middle],
        "mteps": edges[middle],
        "busy": busy[middle] if cuda else None,
        "train_accuracy": accuracy[-1],
    }
