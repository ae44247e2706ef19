"""How much of an epoch on a small graph is framework: full-graph GCN over growing numbers of edges.

Graphs of 32,768 vertices with 10^4 to 10^7 random edges and 64 features, then datasets. Each line has the
fastest of many epochs of each system in a process of its own, in ms of CPU time, with the training accuracy
after the last epoch, and for hyrt what is left when a step computes nothing: the pipeline, the optimizer and
the events. Where time no longer falls with the edges, it is overhead.

    python tools/bench/overhead.py --graph cora.npz --peer-python dgl=peer-dgl/bin/python pyg-coo=python
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import full_graph
from timed_runs import append_records, child_record, parser

VERTICES = 32_768
FEATURES, CLASSES, TRAINED = 64, 7, 1_000
MODEL = "gcn16"


def arguments() -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--graph", type=Path, nargs="*", default=[], help="datasets beside the random graphs")
    asked.add_argument("--edges", type=int, nargs="*", default=[10**4, 10**5, 10**6, 10**7])
    asked.add_argument("--data", type=Path, default=Path("data"), help="folder for what is generated")
    asked.add_argument("--peers", type=Path, default=full_graph.REPOSITORY.parent / "shared" / "peers")
    asked.add_argument("--peer-python", nargs="*", default=[], metavar="PEER=PYTHON")
    asked.add_argument("--epochs", type=int, default=200)
    asked.add_argument("--json", type=Path, help="append each run to this file")
    return asked.parse_args()


def random_workload(data: Path, edges: int) -> str:
    """The name of a folder with a random symmetric graph; made where it is not there yet."""
    import numpy as np

    name = f"random-{edges}"
    folder = data / name
    if not (folder / "meta.json").exists():
        rng = np.random.default_rng(edges)
        folder.mkdir(parents=True, exist_ok=True)
        ends = rng.integers(0, VERTICES, (2, edges // 2))
        numbers = np.unique(np.concatenate([ends[0] * VERTICES + ends[1], ends[1] * VERTICES + ends[0]]))
        labels = rng.integers(0, CLASSES, VERTICES)
        order = rng.permutation(VERTICES)
        arrays = {
            "indptr": np.searchsorted(numbers, np.arange(VERTICES + 1) * VERTICES),
            "indices": (numbers % VERTICES).astype(np.int32),
            "x": (rng.standard_normal((VERTICES, FEATURES)) + labels[:, None]).astype(np.float32),
            "y": labels,
            "train": np.sort(order[:TRAINED]),
            "val": np.sort(order[TRAINED : 2 * TRAINED]),
            "test": np.sort(order[2 * TRAINED :]),
        }
        for key, values in arrays.items():
            np.save(folder / f"{key}.npy", values)
        (folder / "meta.json").write_text(json.dumps({"name": name}), encoding="utf-8")
    return name


def main() -> None:
    options = arguments()
    peers = dict(each.split("=", 1) for each in options.peer_python)
    print(
        f"{MODEL}, the fastest of {options.epochs} epochs, CPU ms (training accuracy) · "
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"
    )
    print("| graph | hyrt | of it around the step | " + " | ".join(peers) + " |")
    print("|---|" + "---:|" * (2 + len(peers)))
    graphs = [["--workload", random_workload(options.data, edges)] for edges in options.edges]
    graphs += [["--graph", str(path)] for path in options.graph]
    for graph in graphs:
        given = [*graph, "--data", str(options.data), "--epochs", str(options.epochs)]
        given += ["--peers", str(options.peers)]
        tool = [sys.executable, full_graph.__file__, *given, "--child", MODEL]
        records: list[dict[str, Any]] = [child_record(tool, "hyrt")]
        records.append({**child_record([*tool, "--no-work"], "hyrt"), "lib": "hyrt, no work"})
        asked = full_graph.arguments(given)
        for name, python in peers.items():
            asked.peer, asked.peer_python = name, python
            records.append(full_graph.run_peer(asked, full_graph.folder_of(asked), MODEL))
        append_records(options.json, [{"graph": graph[1], **record} for record in records])
        cells = [f"{1e3 * records[0]['cpumin']:.2f} ({records[0]['acc']:.3f})"]
        cells.append(f"{1e3 * records[1]['cpumin']:.2f}")
        cells += [f"{1e3 * record['cpumin']:.2f} ({record['acc']:.3f})" for record in records[2:]]
        print(f"| {Path(graph[1]).stem} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
