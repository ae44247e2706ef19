"""Accuracy of R-GCN on a typed graph: a loop of PyG's over the whole graph, and hyrt.

Both have two layers of one matrix a relation and one for the own row, dropout 0.5 between them, a linear map
a type with features before the first and a learned row for each vertex without, Adam at 0.01 with weight
decay 5e-4 (learned rows have none), and take the weights of the epoch with the best validation accuracy.

    python tools/bench/typed_accuracy.py --data synthetic:typed --epochs 40 --seeds 3
"""

from __future__ import annotations

import statistics
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from timed_runs import parser, prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from hyrt.graph.graph import Graph

_BATCH = 1024


def in_hyrt(graph: Graph, epochs: int, hidden: int, seed: int, *, whole: bool, fanout: list[int]) -> float:
    """Test accuracy in percent."""
    import hyrt

    settings: dict[str, Any] = {"sampler": {"kind": "full"}} if whole else {"sampler": {"fanout": fanout}}
    if not whole:
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


def in_pyg(graph: Graph, epochs: int, hidden: int, seed: int) -> float:
    """Test accuracy in percent, of HeteroConv over the whole graph."""
    import torch
    from torch_geometric.nn import HeteroConv, SAGEConv

    torch.manual_seed(seed)
    types = graph.types
    assert types is not None
    keys = [(each.source, each.name, each.destination) for each in types.relations]
    tables = dict(zip(types.vertex_types, graph.features.tables, strict=True))  # type: ignore[attr-defined]
    x = {name: torch.from_numpy(table.values) for name, table in tables.items() if table is not None}

    class Net(torch.nn.Module):
        """A map or a learned row, and two layers of a mean a relation and the own row."""

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
            self.own = torch.nn.ModuleList(torch.nn.Linear(hidden, out) for out in widths)

        def forward(self, edges: dict[Any, torch.Tensor]) -> torch.Tensor:
            rows = {name: self.maps[name](each) for name, each in x.items()}
            rows |= {name: table.weight for name, table in self.rows.items()}
            for number, (layer, own) in enumerate(zip(self.layers, self.own, strict=True)):
                found = layer(rows, edges)
                rows = {name: own(each) + found.get(name, 0) for name, each in rows.items()}
                if number == 0:
                    rows = {
                        name: torch.nn.functional.dropout(each.relu(), 0.5, self.training)
                        for name, each in rows.items()
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
    """Sources and destinations of each relation, numbered within their types."""
    import torch

    topology, types = graph.topology, graph.types
    assert types is not None
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(topology.indptr))
    found = {}
    for number, each in enumerate(types.relations):
        at = np.flatnonzero(topology.edge_types == number)
        first = [types.starts[types.number(name)] for name in (each.source, each.destination)]
        ends = np.stack([topology.indices[at] - first[0], rows[at] - first[1]])
        found[each.source, each.name, each.destination] = torch.from_numpy(ends.astype(np.int64))
    return found


def row(name: str, found: Sequence[float], peer: Sequence[float]) -> str:
    """A line of the table."""
    deviation = statistics.stdev(found) if len(found) > 1 else 0.0
    seeds = ", ".join(f"{each:.2f}" for each in found)
    off = statistics.mean(found) - statistics.mean(peer)
    return f"| {name} | {statistics.mean(found):.2f} ± {deviation:.2f} | {seeds} | {off:+.2f} |"


def main() -> None:
    """Print a table."""
    asked = parser(__doc__)
    asked.add_argument("--data", default="synthetic:typed")
    asked.add_argument("--epochs", type=int, default=40, help="epochs of the whole graph")
    asked.add_argument("--batch-epochs", type=int, default=5, help="epochs of mini-batches")
    asked.add_argument("--hidden", type=int, default=64)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--fanout", type=int, nargs=2, default=[10, 5])
    given = asked.parse_args()
    prepared()
    from hyrt.graph import open_graph

    warnings.simplefilter("ignore")
    graph, seeds = open_graph(given.data), range(given.seeds)
    peer = [in_pyg(graph, given.epochs, given.hidden, seed) for seed in seeds]
    print("| trained by | test accuracy | seeds | points off PyG |", "| --- | ---: | --- | ---: |", sep="\n")
    print(row("PyG, full graph", peer, peer), flush=True)
    for name, whole in (("hyrt, full graph", True), ("hyrt, mini-batches", False)):
        epochs = given.epochs if whole else given.batch_epochs
        found = [
            in_hyrt(graph, epochs, given.hidden, seed, whole=whole, fanout=given.fanout) for seed in seeds
        ]
        print(row(name, found, peer), flush=True)


if __name__ == "__main__":
    main()
