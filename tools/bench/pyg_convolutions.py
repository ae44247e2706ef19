"""Test accuracy of PyG's GATv2 on real graphs, in hyrt with `hyrt.from_pyg` and in a PyG training loop.

    python tools/bench/pyg_convolutions.py --data ../shared/data --seeds 5

Both libraries train two layers (8 heads of 8, then one head) on the full graph from the same weights with
Adam and equal settings, and report the test accuracy at the epoch with the best validation accuracy. Dropout
masks differ, and therefore the results of single seeds too. The exit code is 1 if the means differ by more
than 0.3 points.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import GATv2Conv

import hyrt

EPOCHS, RATE, DECAY, DROPOUT = 100, 0.005, 5e-4, 0.5
MAX_DIFFERENCE = 0.3


def convolutions(features: int, classes: int, seed: int) -> list[torch.nn.Module]:
    torch.manual_seed(seed)
    return [GATv2Conv(features, 8, heads=8), GATv2Conv(64, classes, heads=1)]


def train_hyrt(graph: Any, convs: list[torch.nn.Module], seed: int) -> float:
    result = hyrt.train(
        graph,
        hyrt.from_pyg(*convs, activation=torch.nn.functional.elu, dropout=DROPOUT),
        full_graph=True,
        seed=seed,
        train={"epochs": EPOCHS, "lr": RATE, "weight_decay": DECAY},
        evaluate={"every": 1},
        balance={"predict": False},
    )
    return 100 * result.metrics["test"]["accuracy"]


def train_pyg(graph: Any, convs: list[torch.nn.Module], seed: int) -> float:
    torch.manual_seed(seed)
    topology = graph.topology
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(topology.indptr))
    edges = torch.from_numpy(np.stack([topology.indices.astype(np.int64), rows]))
    x = torch.from_numpy(dense(graph.features))
    y = torch.from_numpy(graph.labels.astype(np.int64))
    splits = {name: torch.from_numpy(graph.split(name)) for name in ("train", "val", "test")}
    modules = torch.nn.ModuleList(convs)
    optimizer = torch.optim.Adam(modules.parameters(), lr=RATE, weight_decay=DECAY)

    def scores() -> torch.Tensor:
        hidden = torch.nn.functional.elu(modules[0](x, edges))
        return modules[1](torch.nn.functional.dropout(hidden, DROPOUT, modules.training), edges)

    best = (-1.0, 0.0)
    for _ in range(EPOCHS):
        modules.train()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores()[splits["train"]], y[splits["train"]]).backward()
        optimizer.step()
        modules.eval()
        with torch.no_grad():
            hits = scores().argmax(1) == y
        val, test = (100 * float(hits[splits[name]].float().mean()) for name in ("val", "test"))
        best = max(best, (val, test), key=lambda pair: pair[0])
    return best[1]


def dense(features: Any) -> np.ndarray:
    if hasattr(features, "values") and features.values.ndim == 2:
        return np.asarray(features.values, np.float32)
    out = np.zeros((len(features.indptr) - 1, features.width), np.float32)
    out[np.repeat(np.arange(len(out)), np.diff(features.indptr)), features.columns] = features.values
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of .npz files")
    parser.add_argument("--only", default="cora,citeseer", help="names of the datasets, comma-separated")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    failed = False
    for name in options.only.split(","):
        graph = hyrt.load(options.data / f"{name}.npz", normalize="row")
        mine, theirs = [], []
        for seed in range(options.seeds):
            convs = convolutions(graph.num_features, graph.num_classes, seed)
            theirs.append(train_pyg(graph, copy.deepcopy(convs), seed))
            mine.append(train_hyrt(graph, convs, seed))
            print(f"{name}, seed {seed}: hyrt {mine[-1]:.1f}, PyG {theirs[-1]:.1f}", flush=True)
        means = statistics.fmean(mine), statistics.fmean(theirs)
        apart = means[0] - means[1]
        failed |= abs(apart) > MAX_DIFFERENCE
        print(
            f"{name}: hyrt {means[0]:.2f}, PyG {means[1]:.2f}, "
            f"{apart:+.2f} points over {options.seeds} seeds",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
