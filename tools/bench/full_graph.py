"""Full-graph training with hyrt and with a baseline: memory, time and accuracy, in alternating runs.

Each run is a separate process that trains two layers with Adam at 0.01, without dropout, on the loss over the
training vertices. The tool prints for each run: `extra`, the peak of resident memory minus imports and data
(CSR, features, labels, targets); the peak including the data; CPU seconds and wall time of the fastest epoch;
and loss and training accuracy after the last epoch. The baseline's script and the workload generator are in
the folder `--peers`.

    python tools/bench/full_graph.py --model gcn16 gat1 --peer-python peer-dgl/bin/python
    python tools/bench/full_graph.py --graph coauthor_physics.npz --peer pyg-csr --model gcn16
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timed_runs import append_records, child_record, make_parser, prepared, settings, timed_run

if TYPE_CHECKING:
    from hyrt.telemetry.events import Event

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS: dict[str, dict[str, Any]] = {
    "gcn16": {"kind": "gcn", "hidden": 16},
    "gcn128": {"kind": "gcn", "hidden": 128},
    "gin64": {"kind": "gin", "hidden": 64},
    "gat1": {"kind": "gat", "hidden": 16, "heads": 1},
    # The last layer has one head in the baseline.
    "gat3": {"kind": "gat", "hidden": 48, "heads": 3, "options": {"out_heads": 1}},
    "gat8": {"kind": "gat", "hidden": 64, "heads": 8},
}
"""Model settings by the names of the baseline's script, which has no `gat8`."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the given options, or by default the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--workload", default="products-s", help="a workload of the generator in --peers")
    parser.add_argument("--graph", type=Path, help="a .npz dataset, instead of a workload")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder for generated workloads")
    parser.add_argument("--peers", type=Path, default=REPOSITORY.parent / "shared" / "peers")
    parser.add_argument("--peer", choices=["dgl", "pyg-csr", "pyg-coo", "none"], default="dgl")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=["gcn16"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--in-memory", action="store_true", help="load features instead of mapping the file")
    parser.add_argument(
        "--no-work",
        action="store_true",
        help="skip all computation in hyrt's steps, to measure the overhead around the steps",
    )
    parser.add_argument("--set", nargs="*", default=[], help="further settings of hyrt, key.path=value")
    parser.add_argument("--json", type=Path, help="append each run to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def input_folder(options: argparse.Namespace) -> Path:
    """Return the folder with the baseline's input files, which is created if necessary."""
    if options.graph is None:
        folder: Path = options.data / options.workload
        if not (folder / "meta.json").exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            script = options.peers / "workload.py"
            subprocess.run([sys.executable, str(script), options.workload, str(folder)], check=True)
        return folder
    folder = options.data / options.graph.stem
    if not (folder / "train.npy").exists():
        import numpy as np

        import hyrt
        from hyrt.runtime.workers import Workers

        graph = hyrt.load(options.graph)
        folder.mkdir(parents=True, exist_ok=True)
        rows = np.empty((graph.num_vertices, graph.num_features), np.float32)
        vertices = np.arange(graph.num_vertices)
        graph.features.rows(vertices, rows, Workers(1, "rows"))
        arrays = {
            "indptr": graph.topology.indptr,
            "indices": graph.topology.indices,
            "x": rows,
            "y": graph.labels.astype(np.int64),
            "val": graph.split("val"),
            "test": graph.split("test"),
            "train": graph.split("train"),
        }
        for key, values in arrays.items():
            np.save(folder / f"{key}.npy", values)
    return folder


def status_mib(key: str) -> float:
    """Return a value of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def run_hyrt(options: argparse.Namespace) -> None:
    """Run hyrt once and print one JSON line."""
    prepared()
    import numpy as np
    from hyrt_devices import cpu  # noqa: F401  Count a run's imports as imports, as for the baseline.

    from hyrt.config import apply_overrides, build_config
    from hyrt.graph.graph import Graph
    from hyrt.graph.row_source import DenseFeatures
    from hyrt.graph.source import open_graph
    from hyrt.telemetry.events import EpochEnded, StepMetrics

    folder = input_folder(options)
    run_settings = settings(
        "gcn",
        options.epochs,
        model=MODELS[options.child],
        sampler={"kind": "full"},
        train={"lr": 0.01},
        data={"normalize": "none"},
        balance={"predict": False},
    )
    del run_settings["sampler"]["fanout"], run_settings["data"]["batch_size"]
    config = build_config(apply_overrides(run_settings, options.set))

    def read(key: str, mode: Any = None) -> Any:
        return np.load(folder / f"{key}.npy", mmap_mode=mode)

    base = status_mib("VmRSS")
    if options.graph is not None:
        # Leave sparse features sparse, as users do.
        graph = open_graph(options.graph)
    else:
        labels = read("y").astype(np.int16)
        masks = {split: np.zeros(len(labels), np.bool_) for split in ("train", "val", "test")}
        for split, mask in masks.items():
            mask[read(split)] = True
        features = DenseFeatures(read("x", None if options.in_memory else "r"))
        graph = Graph.from_arrays(folder.name, read("indptr"), read("indices"), features, labels, masks)
    # Count the data as the baseline does: 4-byte offsets, 8-byte labels and target ids.
    data_bytes = 4 * graph.num_edges + 12 * graph.num_vertices + 8 * int(graph.masks["train"].sum())
    data = (graph.features.nbytes + data_bytes) / 2**20
    if options.no_work:
        skip_computation()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    marks: list[tuple[float, float]] = [(time.perf_counter(), time.process_time())]
    last: dict[str, float] = {}
    peak = 0.0

    def on_event(event: Event) -> None:
        nonlocal peak
        if isinstance(event, StepMetrics):
            last.update(accuracy=event.training_metrics["accuracy"], loss=event.losses[-1])
        if isinstance(event, EpochEnded):
            marks.append((time.perf_counter(), time.process_time()))
            # Read the peak before the evaluation, which the baseline does not run.
            peak = status_mib("VmHWM")

    timed_run(config, graph, on_event=on_event)
    walls, cpus = ([b[k] - a[k] for a, b in pairwise(marks)] for k in (0, 1))
    record = {
        "lib": "hyrt",
        "model": options.child,
        "epochs": len(walls),
        "extra": round(peak - base - data),
        "hwm": round(peak),
        "data": round(data),
        "t1": round(walls[0], 2),
        "tmin": round(min(walls), 4),
        "cpumin": round(min(cpus), 4),
        "acc": round(last["accuracy"], 4),
        "loss": round(last["loss"], 4),
    }
    print(json.dumps(record), flush=True)


def skip_computation() -> None:
    """Patch full-graph steps so that they return zero gradients without any computation."""
    import torch

    from hyrt.fullgraph.replica import FullGraphReplica, FullGraphStepTotals

    def step(self: Any, batch: Any, *others: Any) -> FullGraphStepTotals:
        gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        return FullGraphStepTotals(1.0, {"correct": 0.0, "targets": float(len(batch.targets))}, gradients)

    FullGraphReplica.step = step  # type: ignore[method-assign]


def run_peer(options: argparse.Namespace, folder: Path, model: str) -> dict[str, Any]:
    """Run the baseline once, and return its record."""
    script = str(options.peers / "full_graph_peer.py")
    command = [options.peer_python, script, options.peer, str(folder), model, str(options.epochs)]
    return child_record(command, f"the peer ({' '.join(command)})", dict(os.environ))


def format_line(record: dict[str, Any]) -> str:
    return (
        f"{record['lib']:8s} extra {record['extra']:6,} MiB  peak {record['hwm']:6,} MiB  "
        f"epoch {record['cpumin']:8.4f} CPU s  {record['tmin']:8.4f} s  "
        f"loss {record['loss']:.4f}  train accuracy {record['acc']:.4f}  after {record['epochs']} epochs"
    )


def main() -> None:
    options = arguments()
    if options.child:
        run_hyrt(options)
        return
    folder = input_folder(options)
    print(
        f"{folder.name} · {options.pairs} alternating pairs of {options.epochs} epochs · "
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"
    )
    for model in options.model:
        child = [sys.executable, __file__, *sys.argv[1:], "--child", model]
        # Warm up the page cache and the kernel cache.
        child_record(child, "hyrt")
        print(f"\n{model}")
        pairs = []
        for _ in range(options.pairs):
            mine = child_record(child, "hyrt")
            print(format_line(mine), flush=True)
            append_records(options.json, [mine])
            if options.peer == "none" or model == "gat8":
                continue
            theirs = run_peer(options, folder, model)
            print(format_line(theirs), flush=True)
            append_records(options.json, [theirs])
            pairs.append((mine, theirs))
        for key, name in (
            ("extra", "extra memory"),
            ("hwm", "peak"),
            ("cpumin", "CPU seconds"),
            ("tmin", "wall time"),
        ):
            if pairs:
                ratios = [theirs[key] / mine[key] for mine, theirs in pairs]
                print(f"{name}: {statistics.median(ratios):.2f} times less in hyrt (median of pairs)")


if __name__ == "__main__":
    main()
