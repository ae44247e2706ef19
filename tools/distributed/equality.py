"""Whether full graphs on several ranks train as in one process: losses, weights, metrics and bytes.

    python tools/distributed/equality.py --ranks 2,3,4,8 --models gcn,gat --epochs 20
    python tools/distributed/equality.py --ranks 4 --models ggcn --vertices 1000

For each number of ranks, processes are started with torchrun; they train random graphs, symmetric and
directed, cut by `volume`, with every algorithm and every replication in 1, 2, 4 that the ranks and the model
can follow. Each line has the largest relative difference of a loss from one process (1e-5 wanted), the
largest absolute one of a weight (1e-4 wanted) and of the accuracies of all splits, and whether the rows and
gradients of rows that all ranks have received are, to the byte, those that the partition makes them send.
What an oblivious exchange sends is not compared with a partition. The last line counts those that are not.
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
from hyrt.distributed.full_graph.travelling_columns import TravellingColumns
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.sharing.share_full_graph import share_full_graph
from hyrt.graph.graph import Graph
from hyrt.graph.partition.dealt_rows import places_of
from hyrt.graph.partition.methods.registry import partition_method
from hyrt.graph.partition.volumes.block_volumes import block_volumes
from hyrt.graph.row_source import DenseFeatures
from hyrt.observe.events import EpochEnded, Evaluated, Event
from hyrt.training.compose import compose_run
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training, TrainResult

# Softmaxes do not add up over columns.
ATTENTION = ("gat",)
LOSS, WEIGHT = 1e-5, 1e-4
REPLICATIONS = (1, 2, 4)
MODELS = (
    "gcn", "graphsage", "gin", "gat", "ggcn", "commnet", "ggnn", "deepgcn", "gnn-film",
)  # fmt: skip


def drawn_graph(num: int, *, symmetric: bool) -> Graph:
    """A random graph of four groups, with neighbours mostly in the own one."""
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
    return Graph.of_arrays(
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
    return torch.cat([each.detach().flatten() for each in result.model.parameters()])


def told(result: TrainResult, heard: list[Event]) -> dict[str, Any]:
    metrics = [event.metrics for event in heard if isinstance(event, Evaluated)][-1]
    return {
        "losses": np.array([event.loss for event in heard if isinstance(event, EpochEnded)]),
        "weights": weights(result),
        "metrics": {name: of_split["accuracy"] for name, of_split in metrics.items()},
    }


def trained_alone(graph: Graph, given: dict[str, Any]) -> dict[str, Any]:
    heard: list[Event] = []
    config = build_config(given)
    return told(Training(compose_run(config, graph, emit=heard.append)).run(), heard)


def trained_on(ranks: JoinedRanks, graph: Graph, homes: Any, given: dict[str, Any]) -> dict[str, Any]:
    config = build_config(given)
    own = homes == ranks.rank // config.distributed.num_replicas
    rows = DenseFeatures(graph.features.values[own])  # type: ignore[attr-defined]
    prepared = PreparedRun(config, graph)
    before = dict(ranks.counts.received())
    mine = share_full_graph(
        config, graph, OwnRows(rows, homes, places_of(homes, int(homes.max()) + 1)), ranks, prepared
    )
    heard: list[Event] = []
    parts = compose_run(config, mine.graph, prepared=prepared, shared=mine.shared, emit=heard.append)
    found = told(Training(parts).run(), heard)
    after = ranks.counts.received()
    sent = [after.get(what, 0) - before.get(what, 0) for what in ("rows", "row gradients")]
    totals = torch.tensor(sent, dtype=torch.float64)
    ranks.control.add(totals, "control")
    return {**found, "sent": [int(each) for each in totals.tolist()]}


def expected_bytes(graph: Graph, homes: Any, given: dict[str, Any], epochs: int) -> list[int]:
    """Rows and gradients of rows that all ranks receive, by the partition: 4 bytes a number."""
    config = build_config(given)
    model = PreparedRun(config, graph).model
    travels = TravellingColumns.of(model, graph.num_vertices, graph.num_edges, is_sparse=False)
    needed = block_volumes(graph.topology.indptr, graph.topology.indices, homes, int(homes.max()) + 1).needed
    # Each epoch, the evaluation after the last one, and what is gathered of raw features, once.
    once = graph.num_features if len(travels.forward) < config.model.layers else 0
    columns = sum(travels.forward) * (epochs + 1) + once
    return [4 * int(needed.sum()) * columns, 4 * int(needed.sum()) * sum(travels.back) * epochs]


def in_ranks(models: list[str], epochs: int, vertices: int) -> None:
    """What every process of a start does; rank 0 prints a line for each case."""
    store, rank, size = next(iter(rendezvous("env://")))

    @cache
    def graph_of(symmetric: bool) -> Graph:
        return drawn_graph(vertices, symmetric=symmetric)

    @cache
    def homes_of(symmetric: bool, num: int) -> Any:
        topology = graph_of(symmetric).topology
        return partition_method("volume").homes(topology, np.zeros(vertices, np.bool_), num, 0)

    @cache
    def alone(symmetric: bool, kind: str) -> dict[str, Any]:
        return trained_alone(graph_of(symmetric), settings(kind, epochs, {}))

    for number, (symmetric, kind, copies, way) in enumerate(cases(models, size)):
        graph = graph_of(symmetric)
        distributed = {"algorithm": way} | ({"replication": copies} if copies > 1 else {})
        given = settings(kind, epochs, distributed)
        homes = homes_of(symmetric, size // copies)
        # A store of its own for each case: groups of one name meet in it once.
        ranks = JoinedRanks(PrefixStore(f"case {number}", store), rank, size, timeout_s=120.0, silent_s=60.0)
        try:
            found = trained_on(ranks, graph, homes, given)
            ranks.leave()
        finally:
            ranks.close()
        if rank == 0:
            line = compared(found, alone(symmetric, kind))
            if not way.endswith("oblivious"):
                line["wanted"] = expected_bytes(graph, homes, given, epochs)
            line |= {"sent": found["sent"], "way": way, "copies": copies, "model": kind}
            print(json.dumps(line | {"symmetric": symmetric}), flush=True)


def cases(models: list[str], size: int) -> Iterator[tuple[bool, str, int, str]]:
    """Whether the graph is symmetric, the model, how many ranks have a block, and the algorithm."""
    for symmetric in (True, False):
        for kind in models:
            for copies in REPLICATIONS:
                if size % copies == 0 and (copies == 1 or kind not in ATTENTION):
                    for way in ("1d", "1d-oblivious") if copies == 1 else ("1.5d", "1.5d-oblivious"):
                        yield symmetric, kind, copies, way


def compared(found: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    return {
        "loss": float(np.max(np.abs(found["losses"] / alone["losses"] - 1))),
        "weight": float((found["weights"] - alone["weights"]).abs().max()),
        "accuracy": max(abs(found["metrics"][name] - alone["metrics"][name]) for name in alone["metrics"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,3,4,8")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--vertices", type=int, default=600)
    asked = parser.parse_args()
    models = asked.models.split(",")
    if "RANK" in os.environ:
        in_ranks(models, asked.epochs, asked.vertices)
        return
    print("| graph | model | ranks | algorithm | c | loss | weight | accuracy | bytes as counted |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- |", flush=True)
    num = missed = 0
    for ranks in map(int, asked.ranks.split(",")):
        for line in started(ranks, asked):
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


def started(ranks: int, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines of a start with so many processes, as they come."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [__file__, "--models", asked.models, "--epochs", str(asked.epochs)]
    command += ["--vertices", str(asked.vertices)]
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=Path(__file__).parents[2]
        ) as process:
            assert process.stdout
            yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
        if process.returncode:
            said.seek(0)
            raise SystemExit(said.read()[-6000:])


if __name__ == "__main__":
    main()
