"""Comparison of full-graph training on several ranks and in one process: losses, weights, metrics and bytes.

    python tools/distributed/equality.py --ranks 2,3,4,8 --models gcn,gat --epochs 20
    python tools/distributed/equality.py --ranks 4 --models ggcn --vertices 1000

For each number of ranks, torchrun starts the processes. These train on random graphs, symmetric and directed,
partitioned with `volume`, with every algorithm and every replication of 1, 2 or 4 that the number of ranks
and the model support. Each line has the maximum relative difference of a loss to that of one process
(tolerance 1e-5), the maximum absolute difference of a weight (tolerance 1e-4) and of the accuracies of all
splits, and whether all ranks received as many bytes of rows and row gradients as the partition implies,
except for oblivious exchanges. The last line counts the failed cases.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hyrt.config import build_config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.gather_ops import ExchangeWidths
from hyrt.distributed.local_rows import LocalRows
from hyrt.distributed.rank_setup import set_up_full_graph
from hyrt.graph.graph import Graph
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.partition.partitioned_rows import compute_local_ids
from hyrt.graph.partition.registry import get_partition_method
from hyrt.graph.row_source import DenseFeatures
from hyrt.telemetry.events import EpochEnded, EvaluationFinished, Event
from hyrt.training.build_run import build_run
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training, TrainResult

# Models with attention, whose softmax cannot be added up over columns.
ATTENTION = ("gat",)
LOSS, WEIGHT = 1e-5, 1e-4
REPLICATIONS = (1, 2, 4)
MODELS = (
    "gcn", "graphsage", "gin", "gat", "ggcn", "commnet", "ggnn", "deepgcn", "gnn-film",
)  # fmt: skip


def random_graph(num: int, *, symmetric: bool) -> Graph:
    """Return a random graph with four groups of vertices, whose neighbours are mostly in the same group."""
    rng = np.random.default_rng(11)
    groups = np.sort(rng.integers(0, 4, num))
    into = rng.integers(0, num, 6 * num)
    near = np.searchsorted(groups, groups[into]) + (rng.random(6 * num) * num / 4).astype(np.int64)
    sources = np.where(rng.random(6 * num) < 0.8, np.minimum(near, num - 1), rng.integers(0, num, 6 * num))
    if symmetric:
        into, sources = np.concatenate([into, sources]), np.concatenate([sources, into])
    pairs = np.unique(np.stack([into, sources]), axis=1)
    into, sources = pairs[:, pairs[0] != pairs[1]]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(into, minlength=num))]).astype(np.int64)
    features = rng.standard_normal((num, 12)).astype(np.float32)
    features[np.arange(num), groups] += 1
    split = rng.integers(0, 3, num)
    masks = {name: split == number for number, name in enumerate(("train", "val", "test"))}
    return Graph.from_arrays(
        "drawn", indptr, sources.astype(np.int32), DenseFeatures(features), groups.astype(np.int16), masks
    )


def settings(kind: str, epochs: int, distributed: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"kind": kind, "hidden": 16, "layers": 3, "dropout": 0.5},
        "sampler": {"kind": "full"},
        "train": {"epochs": epochs, "lr": 0.01},
        "runtime": {"sample_threads": 1, "load_threads": 1, "train_threads": 1},
        "evaluate": {"every": epochs},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        "distributed": distributed,
    }


def weights(result: TrainResult) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in result.model.parameters()])


def collect_result(result: TrainResult, events: list[Event]) -> dict[str, Any]:
    metrics = [event.metrics for event in events if isinstance(event, EvaluationFinished)][-1]
    return {
        "losses": np.array([event.loss for event in events if isinstance(event, EpochEnded)]),
        "weights": weights(result),
        "metrics": {name: of_split["accuracy"] for name, of_split in metrics.items()},
    }


def train_alone(graph: Graph, run_settings: dict[str, Any]) -> dict[str, Any]:
    events: list[Event] = []
    config = build_config(run_settings)
    return collect_result(Training(build_run(config, graph, emit=events.append)).run(), events)


def train_on(
    ranks: DistributedContext, graph: Graph, homes: Any, run_settings: dict[str, Any]
) -> dict[str, Any]:
    config = build_config(run_settings)
    is_local = homes == ranks.rank // config.distributed.num_replicas
    rows = DenseFeatures(graph.features.values[is_local])  # type: ignore[attr-defined]
    prepared = PreparedRun(config, graph)
    before = dict(ranks.counts.received())
    mine = set_up_full_graph(
        config, graph, LocalRows(rows, homes, compute_local_ids(homes, int(homes.max()) + 1)), ranks, prepared
    )
    events: list[Event] = []
    parts = build_run(config, mine.graph, prepared=prepared, shared=mine.shared, emit=events.append)
    result = collect_result(Training(parts).run(), events)
    after = ranks.counts.received()
    sent = [after.get(purpose, 0) - before.get(purpose, 0) for purpose in ("rows", "row gradients")]
    totals = torch.tensor(sent, dtype=torch.float64)
    ranks.control.all_reduce(totals, "control")
    return {**result, "sent": [int(total) for total in totals.tolist()]}


def expected_bytes(graph: Graph, homes: Any, run_settings: dict[str, Any], epochs: int) -> list[int]:
    """Return the bytes of float32 rows and row gradients that all ranks receive, from the partition."""
    config = build_config(run_settings)
    model = PreparedRun(config, graph).model
    travels = ExchangeWidths.from_model(model, graph.num_vertices, graph.num_edges, is_sparse=False)
    needed = count_block_volumes(
        graph.topology.indptr, graph.topology.indices, homes, int(homes.max()) + 1
    ).needed
    # Count each epoch, the final evaluation, and one exchange of raw features for the first layer.
    once = graph.num_features if len(travels.forward) < config.model.layers else 0
    columns = sum(travels.forward) * (epochs + 1) + once
    return [4 * int(needed.sum()) * columns, 4 * int(needed.sum()) * sum(travels.backward) * epochs]


def run_ranks(models: list[str], epochs: int, vertices: int) -> None:
    """Run as the entry point of every process; rank 0 prints a line per case."""
    store, rank, size = next(iter(rendezvous("env://")))

    @cache
    def graph_of(symmetric: bool) -> Graph:
        return random_graph(vertices, symmetric=symmetric)

    @cache
    def homes_of(symmetric: bool, num: int) -> Any:
        topology = graph_of(symmetric).topology
        return get_partition_method("volume").homes(topology, np.zeros(vertices, np.bool_), num, 0)

    @cache
    def alone(symmetric: bool, kind: str) -> dict[str, Any]:
        return train_alone(graph_of(symmetric), settings(kind, epochs, {}))

    for number, (symmetric, kind, copies, way) in enumerate(cases(models, size)):
        graph = graph_of(symmetric)
        distributed = {"algorithm": way} | ({"replication": copies} if copies > 1 else {})
        run_settings = settings(kind, epochs, distributed)
        homes = homes_of(symmetric, size // copies)
        # Use a separate store prefix per case, because a group name can be used only once per store.
        ranks = DistributedContext(
            PrefixStore(f"case {number}", store), rank, size, timeout_s=120.0, max_silence_s=60.0
        )
        try:
            result = train_on(ranks, graph, homes, run_settings)
            ranks.shut_down()
        finally:
            ranks.close()
        if rank == 0:
            line = compare(result, alone(symmetric, kind))
            if not way.endswith("oblivious"):
                line["wanted"] = expected_bytes(graph, homes, run_settings, epochs)
            line |= {"sent": result["sent"], "way": way, "copies": copies, "model": kind}
            print(json.dumps(line | {"symmetric": symmetric}), flush=True)


def cases(models: list[str], size: int) -> Iterator[tuple[bool, str, int, str]]:
    """Iterate over the cases (symmetry, model, ranks per block, algorithm)."""
    for symmetric in (True, False):
        for kind in models:
            for copies in REPLICATIONS:
                if size % copies == 0 and (copies == 1 or kind not in ATTENTION):
                    for way in ("1d", "1d-oblivious") if copies == 1 else ("1.5d", "1.5d-oblivious"):
                        yield symmetric, kind, copies, way


def compare(result: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    return {
        "loss": float(np.max(np.abs(result["losses"] / alone["losses"] - 1))),
        "weight": float((result["weights"] - alone["weights"]).abs().max()),
        "accuracy": max(abs(result["metrics"][name] - alone["metrics"][name]) for name in alone["metrics"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,3,4,8")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--vertices", type=int, default=600)
    options = parser.parse_args()
    models = options.models.split(",")
    if "RANK" in os.environ:
        run_ranks(models, options.epochs, options.vertices)
        return
    print("| graph | model | ranks | algorithm | c | loss | weight | accuracy | bytes as counted |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- |", flush=True)
    num = missed = 0
    for ranks in map(int, options.ranks.split(",")):
        for line in run_torchrun(ranks, options):
            num += 1
            counted = line.get("wanted")
            same = "" if counted is None else "equal" if counted == line["sent"] else "differ"
            missed += line["loss"] > LOSS or line["weight"] > WEIGHT or same == "differ"
            print(
                f"| {'symmetric' if line['symmetric'] else 'directed'} | {line['model']} | {ranks} | "
                f"{line['way']} | {line['copies']} | {line['loss']:.1e} | {line['weight']:.1e} | "
                f"{line['accuracy']:.4f} | {same} |",
                flush=True,
            )
    print(f"\n{num} cases, of which {missed} are not equal")


def run_torchrun(ranks: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Start a number of processes, and iterate over the printed lines."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [__file__, "--models", options.models, "--epochs", str(options.epochs)]
    command += ["--vertices", str(options.vertices)]
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=Path(__file__).parents[2]
        ) as process:
            assert process.stdout
            yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
        if process.returncode:
            errors.seek(0)
            raise SystemExit(errors.read()[-6000:])


if __name__ == "__main__":
    main()
