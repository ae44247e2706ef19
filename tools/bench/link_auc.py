"""ROC AUC of link prediction in hyrt and in a PyG training loop, on the same splits.

For each dataset and seed, hyrt samples a split of the links. Both libraries train GraphSAGE (2 layers, mean)
with the inner product of embeddings and binary cross entropy, and use the epoch with the best validation ROC
AUC. PyG trains on the full graph with new negative pairs in each epoch, as in its link prediction example.
hyrt does the same (`full graph`), and also trains from mini-batches of links, whose edges are excluded from
message passing (`mini-batches`). hyrt initializes layers with Glorot's scheme, so PyG is also run with this
scheme.

    python tools/bench/link_auc.py data/cora.npz data/citeseer.npz data/amazon_photo.npz
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import negative_sampling

from hyrt.api import train
from hyrt.config import build_config
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.training.open_graph import opened_graph

HIDDEN, WIDTH = 128, 64


class PygSage(torch.nn.Module):
    """Model of PyG's link prediction example, with SAGEConv instead of GCNConv."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(features, HIDDEN), SAGEConv(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edges).relu(), edges)


def train_pyg(graph: Graph, seed: int, epochs: int, lr: float, *, glorot: bool = False) -> float:
    """Return the test ROC AUC at the best validation ROC AUC, with PyG's or Glorot's initial weights."""
    assert graph.links is not None
    torch.manual_seed(seed)
    x = torch.empty(graph.num_vertices, graph.num_features)
    graph.features.rows(np.arange(graph.num_vertices), x.numpy(), Workers(1, "rows"))
    rows = np.repeat(np.arange(graph.num_vertices), graph.topology.in_degrees)
    edges = torch.from_numpy(np.stack([graph.topology.indices.astype(np.int64), rows]))
    links = torch.from_numpy(graph.links.split.train.T.astype(np.int64))
    model = PygSage(graph.num_features)
    if glorot:
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.xavier_uniform_(parameter)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    best, test_auc = 0.0, 0.0
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        z = model(x, edges)
        others = negative_sampling(edges, graph.num_vertices, links.shape[1], method="sparse")
        pairs = torch.cat([links, others], dim=1)
        labels = torch.cat([torch.ones(links.shape[1]), torch.zeros(others.shape[1])])
        binary_cross_entropy_with_logits((z[pairs[0]] * z[pairs[1]]).sum(1), labels).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            z = model(x, edges)
        areas = {}
        for name, part in graph.links.split.held_out.items():
            pairs = torch.from_numpy(np.concatenate([part.links, part.negatives]).astype(np.int64))
            truth = np.repeat([1, 0], [len(part.links), len(part.negatives)])
            areas[name] = roc_auc_score(truth, (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(1).numpy())
        if areas["val"] > best:
            best, test_auc = areas["val"], areas["test"]
    return test_auc


def main() -> None:
    """Print the mean and standard deviation of each dataset, and the results of each seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch-epochs", type=int, default=20)
    options = parser.parse_args()
    print("| dataset | trained by | test ROC AUC | seeds | difference to PyG |")
    print("| --- | --- | ---: | --- | ---: |")
    for path in options.data:
        areas: dict[str, list[float]] = {
            "PyG": [],
            "PyG, Glorot weights": [],
            "hyrt, full graph": [],
            "hyrt, mini-batches": [],
        }
        for seed in range(options.seeds):
            sections = {
                "seed": seed,
                "model": {"kind": "graphsage", "hidden": HIDDEN, "dropout": 0.0},
                "links": {"width": WIDTH, "candidates": 1},
                "evaluate": {"every": 1},
                "balance": {"policy": "static", "predict": False},
            }
            settings = {"objective": "links", "lr": options.lr, "weight_decay": 0.0, "epochs": options.epochs}
            graph = opened_graph(build_config({**sections, "train": settings, "data": {"source": str(path)}}))
            areas["PyG"].append(train_pyg(graph, seed, options.epochs, options.lr))
            of_glorot = train_pyg(graph, seed, options.epochs, options.lr, glorot=True)
            areas["PyG, Glorot weights"].append(of_glorot)
            full_graph = train(
                graph,
                **copy.deepcopy(sections) | {"train": settings, "model": sections["model"]},
                full_graph=True,
            )
            areas["hyrt, full graph"].append(full_graph.metrics["test"]["roc_auc"])
            few = {**settings, "epochs": options.batch_epochs, "lr": options.lr / 3}
            pieces = train(graph, **copy.deepcopy(sections) | {"train": few, "model": sections["model"]})
            areas["hyrt, mini-batches"].append(pieces.metrics["test"]["roc_auc"])
        for name, each in areas.items():
            spread = stdev(each) if len(each) > 1 else 0.0
            difference = 100 * (mean(each) - mean(areas["PyG"]))
            shown = ", ".join(f"{area:.4f}" for area in each)
            print(
                f"| {path.stem} | {name} | {mean(each):.4f} ± {spread:.4f} | {shown} | {difference:+.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
