"""Accuracy of R-GCN on a heterogeneous graph in hyrt, compared with PyG on the full graph.

Both use two layers with one matrix per relation and one for the vertex itself, dropout 0.5 between the
layers, a linear projection before the first layer for each type with features, a learned embedding for each
vertex without features, Adam at 0.01 with weight decay 5e-4 (not for embeddings), and the epoch with the best
validation accuracy.

    python tools/bench/hetero_accuracy.py --data synthetic:hetero --epochs 40 --seeds 3
"""

from __future__ import annotations

import statistics
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from timed_runs import make_parser, prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hyrt.graph.graph import Graph

_BATCH = 1024


def train_hyrt(
    graph: Graph, epochs: int, hidden: int, seed: int, *, full_graph: bool, fanout: list[int]
) -> float:
    """Train with hyrt, and return the test accuracy in percent."""
    import hyrt

    settings: dict[str, Any] = (
        {"sampler": {"kind": "full"}} if full_graph else {"sampler": {"fanout": fanout}}
    )
    if not full_graph:
        settings["data"] = {"batch_size": _BATCH}
    result = hyrt.train(
        graph,
        {"kind": "rgcn", "hidden": hidden, "layers": 2, "dropout": 0.5},
        train={"epochs": epochs, "lr": 0.01, "weight_decay": 5e-4},
        evaluate={"every": 1},
        seed=seed,
        **settings,
    )
    return 100 * result.metrics["test"]["accuracy"]


def train_pyg(graph: Graph, epochs: int, hidden: int, seed: int) -> float:
    """Train PyG's HeteroConv on the full graph, and return the test accuracy in percent."""
    import torch
    from torch_geometric.nn import HeteroConv, SAGEConv

    torch.manual_seed(seed)
    types = graph.types
    assert types is not None
    keys = [(relation.source, relation.name, relation.destination) for relation in types.relations]
    tables = dict(zip(types.vertex_types, graph.features.tables, strict=True))  # type: ignore[attr-defined]
    x = {name: torch.from_numpy(table.values) for name, table in tables.items() if table is not None}

    class Net(torch.nn.Module):
        """Projection or embedding per type, and two layers of a mean per relation and the self row."""

        def __init__(self) -> None:
            super().__init__()
            self.maps = torch.nn.ModuleDict(
                {name: torch.nn.Linear(rows.shape[1], hidden) for name, rows in x.items()}
            )
            self.rows = torch.nn.ModuleDict(
                {
                    name: torch.nn.Embedding(types.count(name), hidden)
                    for name, table in tables.items()
                    if table is None
                }
            )
            widths = (hidden, graph.num_classes)
            self.layers = torch.nn.ModuleList(
                HeteroConv(
                    {key: SAGEConv((hidden, hidden), out, root_weight=False, bias=False) for key in keys},
                    aggr="sum",
                )
                for out in widths
            )
            self.self_linears = torch.nn.ModuleList(torch.nn.Linear(hidden, out) for out in widths)

        def forward(self, edges: dict[Any, torch.Tensor]) -> torch.Tensor:
            rows = {name: self.maps[name](values) for name, values in x.items()}
            rows |= {name: table.weight for name, table in self.rows.items()}
            for number, (layer, self_linear) in enumerate(zip(self.layers, self.self_linears, strict=True)):
                aggregated = layer(rows, edges)
                rows = {name: self_linear(values) + aggregated.get(name, 0) for name, values in rows.items()}
                if number == 0:
                    rows = {
                        name: torch.nn.functional.dropout(values.relu(), 0.5, self.training)
                        for name, values in rows.items()
                    }
            return rows[types.target]

    edges, (low, high) = _edges(graph), types.interval(types.target)
    labels = torch.from_numpy(np.asarray(graph.labels[low:high], np.int64))
    splits = {name: torch.from_numpy(graph.split(name) - low) for name in ("train", "val", "test")}
    net = Net()
    groups = [
        {"params": [p for name, p in net.named_parameters() if not name.startswith("rows.")]},
        {"params": list(net.rows.parameters()), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.01, weight_decay=5e-4)
    best = (-1.0, 0.0)
    for _ in range(epochs):
        net.train()
        optimizer.zero_grad()
        scores = net(edges)[splits["train"]]
        torch.nn.functional.cross_entropy(scores, labels[splits["train"]]).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            right = net(edges).argmax(1) == labels
        best = max(best, tuple(100 * float(right[splits[name]].float().mean()) for name in ("val", "test")))
    return best[1]


def _edges(graph: Graph) -> dict[Any, torch.Tensor]:
    """Return sources and destinations of each relation, numbered within their types."""
    import torch

    topology, types = graph.topology, graph.types
    assert types is not None
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(topology.indptr))
    edges = {}
    for number, relation in enumerate(types.relations):
        positions = np.flatnonzero(topology.edge_types == number)
        first = [types.starts[types.type_index(name)] for name in (relation.source, relation.destination)]
        ends = np.stack([topology.indices[positions] - first[0], rows[positions] - first[1]])
        edges[relation.source, relation.name, relation.destination] = torch.from_numpy(ends.astype(np.int64))
    return edges


def row(name: str, accuracies: Sequence[float], peer: Sequence[float]) -> str:
    """Format a table row."""
    deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    seeds = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
    difference = statistics.mean(accuracies) - statistics.mean(peer)
    return f"| {name} | {statistics.mean(accuracies):.2f} ± {deviation:.2f} | {seeds} | {difference:+.2f} |"


def main() -> None:
    """Train with both libraries, and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", default="synthetic:hetero")
    parser.add_argument("--epochs", type=int, default=40, help="epochs of full-graph training")
    parser.add_argument("--batch-epochs", type=int, default=5, help="epochs of mini-batch training")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fanout", type=int, nargs=2, default=[10, 5])
    options = parser.parse_args()
    prepared()
    from hyrt.graph import open_graph

    warnings.simplefilter("ignore")
    graph, seeds = open_graph(options.data), range(options.seeds)
    peer = [train_pyg(graph, options.epochs, options.hidden, seed) for seed in seeds]
    print(
        "| trained by | test accuracy | seeds | difference to PyG |", "| --- | ---: | --- | ---: |", sep="\n"
    )
    print(row("PyG, full graph", peer, peer), flush=True)
    for name, full_graph in (("hyrt, full graph", True), ("hyrt, mini-batches", False)):
        epochs = options.epochs if full_graph else options.batch_epochs
        accuracies = [
            train_hyrt(graph, epochs, options.hidden, seed, full_graph=full_graph, fanout=options.fanout)
            for seed in seeds
        ]
        print(row(name, accuracies, peer), flush=True)


if __name__ == "__main__":
    main()
