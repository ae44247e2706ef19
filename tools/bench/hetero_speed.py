"""Speed of R-GCN on a heterogeneous graph in hyrt and in PyG, in alternating runs.

The generated graph has papers, authors and institutions with 128, 64 and 32 features, and five relations with
equal numbers of edges, whose sources follow a power law. Both libraries train two layers with fan-out 10 and
5 per relation, 1,024 targets per step, Adam and fp32, and one linear projection per type before the first
layer.

PyG has an advantage: its loader needs pyg-lib or torch-sparse, which have no PyPI wheels for this torch
version, so it receives mini-batches that hyrt's sampler has produced before the timing, and bipartite layers
compute only the rows that the next layer needs. PyG's time covers gathering rows, forward, backward and Adam;
hyrt's time covers everything. PyG runs with one thread and with `--threads` threads, and the faster result
counts. Each run is a separate process. The first epoch is warm-up, and the median of the others is reported.

    python tools/bench/hetero_speed.py --edges 20_000_000 --pairs 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from timed_runs import BATCH, make_parser, prepared, settings

if TYPE_CHECKING:
    import torch

    from hyrt.graph.graph import Graph
    from hyrt.telemetry.events import Event

WIDTHS = {"paper": 128, "author": 64, "institution": 32}
RELATIONS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("institution", "employs", "author"),
    ("author", "works_at", "institution"),
)
CLASSES = 32
FANOUT = [10, 5]


def write_graph(folder: Path, edges: int, targets: int) -> None:
    """Generate the graph, and write it for both libraries."""
    folder.mkdir()
    from hyrt.graph.formats.dataset_files import write_folder
    from hyrt.graph.formats.schema import from_graph
    from hyrt.graph.hetero.dataset import build_hetero_graph

    draw = np.random.default_rng(0)
    counts = {"paper": edges // 20, "author": edges // 25, "institution": max(100, edges // 400)}
    tables = {
        name: draw.standard_normal((count, WIDTHS[name]), dtype=np.float32) for name, count in counts.items()
    }
    edges_per_relation = edges // len(RELATIONS)
    relations = {
        names: (
            (counts[names[0]] * draw.random(edges_per_relation) ** 3).astype(np.int32),
            draw.integers(0, counts[names[2]], edges_per_relation, dtype=np.int32),
        )
        for names in RELATIONS
    }
    masks = {name: np.zeros(counts["paper"], np.bool_) for name in ("train", "val", "test")}
    masks["train"][draw.choice(counts["paper"], targets, replace=False)] = True
    labels = draw.integers(0, CLASSES, counts["paper"])
    labels[:CLASSES] = np.arange(CLASSES)
    write_folder(from_graph(build_hetero_graph("drawn", tables, relations, labels, masks, "paper")), folder)


def train_hyrt(folder: str, epochs: int, hidden: int) -> dict[str, Any]:
    """Train with hyrt in this process."""
    prepared()
    import hyrt
    from hyrt.telemetry.events import EpochEnded, StepMetrics

    groups: list[StepMetrics] = []
    ended: list[EpochEnded] = []

    cpu: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, EpochEnded):
            ended.append(event)
            cpu.append(time.process_time())
        elif isinstance(event, StepMetrics):
            groups.append(event)

    sections = settings("rgcn", epochs, hidden=hidden, sampler={"fanout": FANOUT})
    hyrt.train(folder, sections.pop("model"), emit=on_event, **sections)
    steps = groups[-1].steps_per_epoch
    times = [epoch_event.seconds / steps * 1e3 for epoch_event in ended]
    return {
        "ms": statistics.median(times[1:]),
        "epochs": times,
        "cpu_ms": (cpu[-1] - cpu[0]) / (len(cpu) - 1) / steps * 1e3,
        "edges": statistics.mean(group.mteps * 1e6 * group.step_s for group in groups),
        "loss": ended[-1].loss,
        "stages": {name: 1e3 * seconds for name, seconds in groups[-1].stage_s.items()},
    }


def train_pyg(folder: str, epochs: int, hidden: int, threads: int) -> dict[str, Any]:
    """Train with a PyG loop in this process, on prepared mini-batches."""
    import torch
    from torch_geometric.nn import SAGEConv

    from hyrt.graph import open_graph
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.neighbor_sampler import RelationSampler

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    graph = open_graph(folder)
    assert graph.types is not None
    keys = [(relation.source, relation.name, relation.destination) for relation in graph.types.relations]

    class HeteroNet(torch.nn.Module):
        """Model with a projection per type, then two layers of a mean per relation and the self row."""

        def __init__(self) -> None:
            super().__init__()
            self.maps = torch.nn.ModuleDict(
                {name: torch.nn.Linear(width, hidden) for name, width in WIDTHS.items()}
            )
            # Equivalent to HeteroConv(aggr="sum"), which does not support fewer destinations than sources.
            self.layers = torch.nn.ModuleList(
                torch.nn.ModuleList(
                    SAGEConv((hidden, hidden), out, root_weight=False, bias=False) for _ in keys
                )
                for out in (hidden, CLASSES)
            )
            self.self_linears = torch.nn.ModuleList(torch.nn.Linear(hidden, out) for out in (hidden, CLASSES))

        def forward(self, x: dict[str, Any], layers: list[dict[str, Any]]) -> torch.Tensor:
            x = {name: self.maps[name](rows) for name, rows in x.items()}
            for number, (layer, self_linear, of_layer) in enumerate(
                zip(self.layers, self.self_linears, layers, strict=True)
            ):
                ends = {name: rows[: of_layer["ends"][name]] for name, rows in x.items()}
                total = {name: self_linear(rows) for name, rows in ends.items() if len(rows)}
                for key, convolution in zip(keys, layer, strict=True):
                    source, _, end = key
                    if end in total:
                        part = convolution((x[source], ends[end]), of_layer["edges"][key])
                        total[end] = total[end] + part
                x = total
                x = {name: rows.relu() for name, rows in x.items()} if number == 0 else x
            return x["paper"]

    sampler = RelationSampler(
        graph, graph.split("train"), [[fanout] * len(keys) for fanout in FANOUT], BATCH, 0
    )
    with Workers(1, "sample") as workers:
        steps = [
            _to_pyg(graph, sampler.sample(step, sampler.units(step), workers, in_place=False))
            for step in range(sampler.steps_per_epoch())
        ]
    tables = {name: torch.from_numpy(np.ascontiguousarray(_rows(graph, name))) for name in WIDTHS}
    net = HeteroNet()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, fused=True)
    times, cpu = [], []
    for _ in range(epochs):
        started = time.perf_counter()
        cpu.append(time.process_time())
        for ids, layers, labels in steps:
            x = {name: tables[name][rows] for name, rows in ids.items()}
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x, layers), labels)
            loss.backward()
            optimizer.step()
        times.append((time.perf_counter() - started) / len(steps) * 1e3)
    edges = statistics.mean(
        sum(index.shape[1] for of_layer in layers for index in of_layer["edges"].values())
        for _, layers, _ in steps
    )
    return {
        "ms": statistics.median(times[1:]),
        "epochs": times,
        "cpu_ms": (time.process_time() - cpu[1]) / (epochs - 1) / len(steps) * 1e3,
        "edges": edges,
        "loss": float(loss),
    }


def _rows(graph: Graph, name: str) -> Any:
    table = graph.features.table(name)  # type: ignore[attr-defined]
    return table.values


def _to_pyg(graph: Graph, batch: Any) -> tuple[dict[str, Any], list[dict[str, Any]], torch.Tensor]:
    """Return feature rows by type, edges by relation and layer, and labels of a mini-batch."""
    import torch

    types = graph.types
    assert types is not None
    ids, layers = {}, []
    for number, block in enumerate(batch.blocks):
        kinds = types.vertex_type_indices(block.sources)
        places = np.empty(len(kinds), np.int64)
        for t, name in enumerate(types.vertex_types):
            positions = np.flatnonzero(kinds == t)
            places[positions] = np.arange(len(positions))
            if number == 0:
                ids[name] = torch.from_numpy(block.sources[positions].astype(np.int64) - types.starts[t])
        rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        edges = {}
        for r, relation in enumerate(types.relations):
            positions = np.flatnonzero(block.edge_types == r)
            ends = np.stack([places[block.columns[positions]], places[rows[positions]]])
            edges[relation.source, relation.name, relation.destination] = torch.from_numpy(ends)
        sizes = np.bincount(kinds[: block.num_dst], minlength=len(types.vertex_types)).tolist()
        layers.append({"edges": edges, "ends": dict(zip(types.vertex_types, sizes, strict=True))})
    return ids, layers, torch.from_numpy(np.array(batch.labels))


def run_child(command: list[str]) -> dict[str, Any]:
    """Run a command and return the JSON object in its last line."""
    process = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{process.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Print the results of every pair of runs, and the median of their ratios."""
    parser = make_parser(__doc__)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--steps", type=int, default=24, help="steps per epoch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=("hyrt", "pyg"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work = (options.folder, options.epochs, options.hidden)
        print(json.dumps(train_hyrt(*work) if options.child == "hyrt" else train_pyg(*work, options.threads)))
        return
    with tempfile.TemporaryDirectory(prefix="hyrt-hetero-") as name:
        folder = Path(name) / "graph"
        write_graph(folder, options.edges, options.steps * BATCH)
        command = [sys.executable, __file__, "--folder", str(folder), "--epochs", str(options.epochs)]
        command += ["--hidden", str(options.hidden)]
        ratios: list[float] = []
        cores: list[float] = []
        for number in range(1, options.pairs + 1):
            mine = run_child([*command, "--child", "hyrt"])
            peers = [
                run_child([*command, "--child", "pyg", "--threads", str(n)])
                for n in sorted({1, options.threads})
            ]
            other = min(peers, key=lambda each: float(each["ms"]))
            ratios.append(other["ms"] / mine["ms"])
            cores.append(other["cpu_ms"] / mine["cpu_ms"])
            stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in mine["stages"].items())
            print(f"pair {number}: hyrt {_format_result(mine)} ({stages})", flush=True)
            print(
                f"        PyG {_format_result(other)}, {ratios[-1]:.2f} times, {cores[-1]:.2f} in core time",
                flush=True,
            )
    print(
        f"median of {options.pairs} pairs: {statistics.median(ratios):.2f} times, "
        f"{statistics.median(cores):.2f} in time of cores"
    )


def _format_result(result: dict[str, Any]) -> str:
    return (
        f"{result['ms']:.1f} ms, {result['cpu_ms']:.1f} ms of cores, {result['edges']:,.0f} edges, loss "
        f"{result['loss']:.3f}"
    )


if __name__ == "__main__":
    main()
