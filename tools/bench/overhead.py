"""Framework overhead of an epoch on small graphs, measured with full-graph GCN on growing numbers of edges.

The graphs have 32,768 vertices with 10^4 to 10^7 random edges and 64 features; datasets follow. Each line has
the fastest of many epochs of each system in ms of CPU time, each in a separate process, and the training
accuracy after the last epoch. For hyrt, it also has the time of empty steps: pipeline, optimizer and events.
Time that does not shrink with the number of edges is overhead.

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
from timed_runs import append_records, child_record, make_parser

VERTICES = 32_768
FEATURES, CLASSES, TRAINED = 64, 7, 1_000
MODEL = "gcn16"


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--graph", type=Path, nargs="*", default=[], help="datasets in addition to the random graphs"
    )
    parser.add_argument("--edges", type=int, nargs="*", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder for generated workloads")
    parser.add_argument("--peers", type=Path, default=full_graph.REPOSITORY.parent / "shared" / "peers")
    parser.add_argument("--peer-python", nargs="*", default=[], metavar="PEER=PYTHON")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--json", type=Path, help="append each run to this file")
    return parser.parse_args()


def random_workload(data: Path, edges: int) -> str:
    """Return the folder name of a random symmetric graph, which is generated if necessary."""
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
    peers = dict(peer_python.split("=", 1) for peer_python in options.peer_python)
    print(
        f"{MODEL}, the fastest of {options.epochs} epochs, CPU ms (training accuracy) · "
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"
    )
    print("| graph | hyrt | overhead around the step | " + " | ".join(peers) + " |")
    print("|---|" + "---:|" * (2 + len(peers)))
    graphs = [["--workload", random_workload(options.data, edges)] for edges in options.edges]
    graphs += [["--graph", str(path)] for path in options.graph]
    for graph in graphs:
        child_arguments = [*graph, "--data", str(options.data), "--epochs", str(options.epochs)]
        child_arguments += ["--peers", str(options.peers)]
        tool = [sys.executable, full_graph.__file__, *child_arguments, "--child", MODEL]
        records: list[dict[str, Any]] = [child_record(tool, "hyrt")]
        records.append({**child_record([*tool, "--no-work"], "hyrt"), "lib": "hyrt, no work"})
        child_options = full_graph.arguments(child_arguments)
        for name, python in peers.items():
            child_options.peer, child_options.peer_python = name, python
            records.append(full_graph.run_peer(child_options, full_graph.input_folder(child_options), MODEL))
        append_records(options.json, [{"graph": graph[1], **record} for record in records])
        cells = [f"{1e3 * records[0]['cpumin']:.2f} ({records[0]['acc']:.3f})"]
        cells.append(f"{1e3 * records[1]['cpumin']:.2f}")
        cells += [f"{1e3 * record['cpumin']:.2f} ({record['acc']:.3f})" for record in records[2:]]
        print(f"| {Path(graph[1]).stem} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
