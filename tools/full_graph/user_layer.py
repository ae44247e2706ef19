"""Speed of a user-defined gated layer that hyrt fuses, compared with the layer in PyG's MessagePassing.

Two layers as in docs/layers.md are trained on the full graph. Each library runs in a separate single-thread
process, from the same weights, so that losses are equal. In PyG, linear maps are applied to vertices, as its
users would do. Runs alternate, so that other load slows both. The last line has the speed-up of hyrt in the
median pair of runs, and its range. `cpu_s` is the CPU time of the fastest epoch; `extra` is the peak resident
memory in addition to imports and data.

With `--fanout`, both train on the same mini-batches, which hyrt has sampled in advance together with their
feature rows. `cpu_s` is then the time of forward, backward and optimizer, without sampling.

    python tools/full_graph/user_layer.py /data/tolokers.npz --hidden 64
    python tools/full_graph/user_layer.py /data/tolokers.npz --hidden 64 --fanout 10,10
    python tools/full_graph/user_layer.py synthetic:products-s,vertices=20k --hidden 64
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

_MIB = 1024


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="dataset, as for hyrt.load")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--fanout", default="", help="neighbours per layer, the last layer first")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10, help="maximum number of mini-batches per epoch")
    parser.add_argument("--pairs", type=int, default=1, help="alternating runs of both libraries")
    parser.add_argument("--child", choices=("hyrt", "pyg"), help=argparse.SUPPRESS)
    return parser.parse_args()


def memory_mib(key: str) -> float:
    """Return a value of /proc/self/status in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / _MIB
    raise ValueError(key)


def hyrt_model(widths: list[int]) -> Any:
    """Return the model of docs/layers.md."""
    import torch

    import hyrt

    class Gated(hyrt.nn.SagaLayer):
        def __init__(self, in_features: int, out_features: int) -> None:
            super().__init__(in_features, out_features)
            self.gate_dst = torch.nn.Linear(in_features, in_features)
            self.gate_src = torch.nn.Linear(in_features, in_features)
            self.update = torch.nn.Linear(in_features, out_features)

        def apply_edge(self, edge: Any) -> Any:
            return torch.sigmoid(self.gate_dst(edge.dst) + self.gate_src(edge.src)) * edge.src

        def apply_vertex(self, vertex: Any, gathered: Any) -> Any:
            return self.update(gathered)

    torch.manual_seed(0)
    return hyrt.nn.stack(Gated(widths[0], widths[1]), Gated(widths[1], widths[2]))


def train_hyrt(graph: Any, model: Any, epochs: int) -> dict[str, Any]:
    """Train with hyrt, and return the CPU seconds of each epoch and the losses."""
    import hyrt
    from hyrt.telemetry.events import EpochEnded, StepMetrics

    losses: list[float] = []
    ends = [time.process_time()]

    def on_event(event: Any) -> None:
        if isinstance(event, StepMetrics):
            losses.extend(event.losses)
        if isinstance(event, EpochEnded):
            ends.append(time.process_time())

    hyrt.train(
        graph,
        model,
        full_graph=True,
        train={"epochs": epochs, "lr": 0.01, "weight_decay": 0.0},
        evaluate={"every": 10 * epochs},
        runtime={"train_threads": 1},
        emit=on_event,
    )
    return {"seconds": [b - a for a, b in pairwise(ends)], "losses": losses}


def pyg_layers(model: Any) -> list[Any]:
    """Return the layers of a model in PyG, with the same parameters."""
    import torch
    from torch_geometric.nn import MessagePassing

    class PygGated(MessagePassing):
        def __init__(self, layer: Any) -> None:
            super().__init__(aggr="sum")
            self.gate_dst, self.gate_src, self.update_rows = layer.gate_dst, layer.gate_src, layer.update

        def forward(self, x: Any, edge_index: Any, num_dst: int | None = None, scale: Any = 1) -> Any:
            """Apply the layer. In a block, destinations are the first sources, and sums are scaled."""
            x_dst = x[:num_dst]
            ends = {"x": (x, x_dst), "a": (None, self.gate_dst(x_dst)), "b": (self.gate_src(x), None)}
            gathered = self.propagate(edge_index, **ends, size=(len(x), len(x_dst)))
            return self.update_rows(gathered * scale)

        def message(self, x_j: Any, a_i: Any, b_j: Any) -> Any:
            return torch.sigmoid(a_i + b_j) * x_j

    return [PygGated(layer) for layer in model.layers]


def train_pyg(graph: Any, model: Any, epochs: int) -> dict[str, Any]:
    """Train the same model with PyG."""
    import numpy as np
    import torch

    first, second = pyg_layers(model)
    topology = graph.topology
    rows = np.repeat(np.arange(graph.num_vertices), topology.in_degrees)
    edges = torch.from_numpy(np.stack([topology.indices.astype(np.int64), rows]))
    x, labels = torch.from_numpy(graph.features.matrix), torch.from_numpy(graph.labels.astype(np.int64))
    targets = torch.from_numpy(graph.split("train").astype(np.int64))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(epochs):
        began = time.process_time()
        optimizer.zero_grad()
        scores = second(first(x, edges).relu(), edges)
        loss = torch.nn.functional.cross_entropy(scores[targets], labels[targets])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        seconds.append(time.process_time() - began)
    return {"seconds": seconds, "losses": losses}


def sample_batches(graph: Any, options: argparse.Namespace) -> list[tuple[Any, Any, Any]]:
    """Return, for each step of an epoch, the blocks, the feature rows of their sources, and the labels."""
    import numpy as np
    import torch

    from hyrt.runtime.workers import Workers
    from hyrt.sampling.neighbor_sampler import NeighborSampler

    fanouts = [int(fanout) for fanout in options.fanout.split(",")]
    sampler = NeighborSampler(graph, graph.split("train"), fanouts, options.batch_size, 0)
    batches = []
    with Workers(1, "sample") as team:
        for step in range(min(options.steps, sampler.steps_per_epoch())):
            batch = sampler.sample(step, sampler.units(step), team, in_place=False)
            rows = torch.from_numpy(graph.features.matrix[batch.blocks[0].sources])
            labels = torch.from_numpy(graph.labels[batch.targets].astype(np.int64))
            batches.append((batch.blocks, rows, labels))
    return batches


def train_on_blocks(graph: Any, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Train a model of either library on prepared blocks."""
    import numpy as np
    import torch

    from hyrt.runtime.buffer_pool import BufferPool
    from hyrt.runtime.workers import Workers, use_workers

    batches, steps = sample_batches(graph, options), []
    if options.child == "hyrt":
        steps = [(partial(model, blocks, rows), labels) for blocks, rows, labels in batches]
    else:
        layers = pyg_layers(model)

        def scores(blocks: list[tuple[Any, ...]], rows: Any) -> Any:
            for i, (layer, block) in enumerate(zip(layers, blocks, strict=True)):
                rows = layer(rows if i == 0 else rows.relu(), *block)
            return rows

        for blocks, rows, labels in batches:
            operands = []
            for block in blocks:
                counts = np.diff(block.indptr)
                rows_of = np.repeat(np.arange(block.num_dst), counts)
                ends = torch.from_numpy(np.stack([block.columns, rows_of]).astype(np.int64))
                scale = (block.degrees / np.maximum(counts, 1)).astype(np.float32)[:, None]
                operands.append((ends, block.num_dst, torch.from_numpy(scale)))
            steps.append((partial(scores, operands, rows), labels))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seconds, losses = [], []
    # Use a buffer pool, as the worker threads of a run do.
    with Workers(1, "train", pool=BufferPool()) as team, use_workers(team):
        for _ in range(options.epochs):
            began = time.process_time()
            total = 0.0
            for forward, labels in steps:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(forward(), labels)
                loss.backward()
                optimizer.step()
                total += float(loss.detach())
            losses.append(total / len(steps))
            seconds.append(time.process_time() - began)
    return {"seconds": seconds, "losses": losses}


def run_child(options: argparse.Namespace) -> None:
    """Run one library, and print one JSON line."""
    import torch

    torch.set_num_threads(1)
    import hyrt

    if options.child == "pyg":
        import torch_geometric.nn  # noqa: F401
    graph = hyrt.load(options.data, normalize="standard")
    model = hyrt_model([graph.num_features, options.hidden, graph.num_classes])
    graph.topology.in_degrees  # noqa: B018
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = memory_mib("VmRSS")
    if options.fanout:
        result = train_on_blocks(graph, model, options)
    else:
        result = (train_hyrt if options.child == "hyrt" else train_pyg)(graph, model, options.epochs)
    result["extra"] = memory_mib("VmHWM") - before
    print(json.dumps(result))


def main() -> None:
    """Run both libraries and print a table."""
    options = arguments()
    if options.child:
        run_child(options)
        return
    print(f"{'':6} {'cpu_s':>8} {'extra MiB':>10}  losses")
    took: dict[str, list[float]] = {"hyrt": [], "pyg": []}
    # The first run of hyrt compiles and caches the loops.
    for number, library in enumerate(("hyrt", *(("hyrt", "pyg") * options.pairs))):
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--child", library],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{library} failed: {done.stderr.strip().splitlines()[-1]}")
        result = json.loads(done.stdout.splitlines()[-1])
        losses = " ".join(f"{loss:.5f}" for loss in result["losses"][-3:])
        print(f"{library:6} {min(result['seconds']):8.4f} {result['extra']:10.0f}  {losses}", flush=True)
        if number:
            took[library].append(min(result["seconds"]))
    ratios = [pyg / hyrt for hyrt, pyg in zip(took["hyrt"], took["pyg"], strict=True)]
    print(f"speed-up: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
