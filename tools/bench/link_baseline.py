"""Link prediction with GraphSAGE in DGL on the arrays of link_speed.py, with one JSON line as output.

This script runs in DGL's environment, which does not contain hyrt.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ["DGLBACKEND"] = "pytorch"
import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
from dgl.nn import SAGEConv


class BlockSage(torch.nn.Module):
    """Model with two GraphSAGE layers over blocks."""

    def __init__(self, features: int, hidden: int, width: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(features, hidden, "mean"), SAGEConv(hidden, width, "mean")

    def forward(self, blocks: list[Any], x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.second(blocks[1], self.first(blocks[0], x).relu())
        return rows


def graphbolt_steps(options: argparse.Namespace, arrays: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the blocks, input vertices, pairs and labels of an epoch's steps, with GraphBolt."""
    graph = gb.fused_csc_sampling_graph(arrays["indptr"].to(torch.int32), arrays["indices"])
    items = gb.ItemSet(arrays["links"].to(torch.int32), names="node_pairs")
    pipe = gb.ItemSampler(items, batch_size=options.batch, shuffle=True)
    pipe = pipe.sample_uniform_negative(graph, options.negatives)
    pipe = pipe.sample_neighbor(graph, options.fanout[::-1])
    pipe = pipe.transform(partial(gb.exclude_seed_edges, include_reverse_edges=True))
    for batch in gb.DataLoader(pipe):
        (u, v), labels = batch.node_pairs_with_labels
        yield batch.blocks, batch.input_nodes, u, v, labels


def dataloader_steps(options: argparse.Namespace, arrays: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the same values with DGL's older DataLoader."""
    csc = ("csc", (arrays["indptr"], arrays["indices"].long(), torch.empty(0, dtype=torch.int64)))
    graph = dgl.graph(csc, num_nodes=len(arrays["indptr"]) - 1)
    u, v = arrays["links"].long().T
    edges = graph.edge_ids(u, v)
    reverse = torch.zeros(graph.num_edges(), dtype=torch.int64)
    reverse[edges] = graph.edge_ids(v, u)
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler(options.fanout[::-1]),
        exclude="reverse_id",
        reverse_eids=reverse,
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(options.negatives),
    )
    loader = dgl.dataloading.DataLoader(
        graph, edges, sampler, batch_size=options.batch, shuffle=True, num_workers=0, use_ddp=False
    )
    while True:
        for inputs, links, others, blocks in loader:
            pairs = [torch.cat(ends) for ends in zip(links.edges(), others.edges(), strict=True)]
            labels = torch.cat([torch.ones(links.num_edges()), torch.zeros(others.num_edges())])
            yield blocks, inputs, *pairs, labels
        yield ()


def main() -> None:
    """Train, and print milliseconds per step and the loss of the last epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loader", choices=("graphbolt", "dataloader"), default="graphbolt")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--negatives", type=int, required=True)
    parser.add_argument("--fanout", type=int, nargs=2, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    names = ("indptr", "indices", "x", "links")
    arrays = {name: torch.from_numpy(np.load(options.folder / f"{name}.npy")) for name in names}
    model = BlockSage(arrays["x"].shape[1], options.hidden, options.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    old = dataloader_steps(options, arrays) if options.loader == "dataloader" else None
    epochs, losses, edges, steps = [], [], 0, 0
    for _ in range(options.epochs):
        started, losses, edges, steps = time.perf_counter(), [], 0, 0
        for blocks, inputs, u, v, labels in (
            iter(old.__next__, ()) if old else graphbolt_steps(options, arrays)
        ):
            z = model(blocks, torch.index_select(arrays["x"], 0, inputs))
            scores = (z[u.long()] * z[v.long()]).sum(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            edges += sum(block.num_edges() for block in blocks)
            steps += 1
        epochs.append((time.perf_counter() - started) / steps * 1e3)
    result = {"ms": statistics.median(epochs[1:]), "epochs": epochs, "edges": edges / steps}
    print(json.dumps({**result, "loss": statistics.mean(losses)}))


if __name__ == "__main__":
    main()
