"""Speed of link prediction with GraphSAGE in hyrt and in DGL, on the same links, in alternating runs.

A step trains on 1,024 links with one negative pair each: two layers of 256, fan-out 25 and 10, inner product,
binary cross entropy, Adam, fp32. The edges of a step's links and their reverses are excluded from message
passing. An epoch has `--steps` steps; the first epoch is warm-up, and the median of the others is reported.
Each run is a separate process.

    python tools/bench/link_speed.py --peer-python peer-dgl/bin/python --pairs 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from timed_runs import BATCH, FANOUT, make_parser, prepared, settings

if TYPE_CHECKING:
    from hyrt.telemetry.events import Event

HIDDEN, NEGATIVES = 256, 1
PEER_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}


def write_work(folder: Path, source: str, steps: int) -> None:
    """Write the graph, and a random sample of links for one epoch."""
    from hyrt.graph import open_graph
    from hyrt.graph.links.edges import list_links
    from hyrt.runtime.workers import Workers

    graph = open_graph(source)
    links = list_links(graph.topology)[0]
    chosen = np.random.default_rng(0).choice(len(links), steps * BATCH, replace=False)
    rows = np.empty((graph.num_vertices, graph.num_features), np.float32)
    graph.features.rows(np.arange(graph.num_vertices), rows, Workers(1, "rows"))
    arrays = {
        "indptr": graph.topology.indptr,
        "indices": graph.topology.indices,
        "x": rows,
        "links": links[chosen],
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder / "links.npz", train=links[chosen])


def run_hyrt(source: str, folder: Path, epochs: int) -> None:
    """Train with hyrt in this process, and print the same values as the baseline."""
    prepared()
    import hyrt
    from hyrt.telemetry.events import EpochEnded, StepMetrics

    groups: list[StepMetrics] = []
    ended: list[EpochEnded] = []

    def on_event(event: Event) -> None:
        if isinstance(event, EpochEnded):
            ended.append(event)
        elif isinstance(event, StepMetrics):
            groups.append(event)

    sections = settings("graphsage", epochs, hidden=HIDDEN)
    sections["train"]["objective"] = "links"
    sections["links"] = {"split": str(folder / "links.npz"), "num_negatives": NEGATIVES}
    model = sections.pop("model")
    hyrt.train(source, model, emit=on_event, **sections)
    steps = groups[-1].steps_per_epoch
    times = [epoch_event.seconds / steps * 1e3 for epoch_event in ended]
    edges = statistics.mean(group.mteps * 1e6 * group.step_s for group in groups)
    stages = {name: 1e3 * seconds for name, seconds in groups[-1].stage_s.items()}
    result = {"ms": statistics.median(times[1:]), "epochs": times, "edges": edges}
    print(json.dumps({**result, "loss": ended[-1].loss, "stages": stages}))


def run_child(command: list[str], **environment: str) -> dict[str, Any]:
    """Run a command and return the JSON object in its last line."""
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{process.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Print the results of every pair of runs, and the median of their ratios."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", default="synthetic:products-s")
    parser.add_argument(
        "--peer-python", type=Path, required=True, help="Python interpreter of an environment with DGL"
    )
    parser.add_argument("--loader", choices=("graphbolt", "dataloader"), default="graphbolt")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_hyrt(options.data, options.child, options.epochs)
        return
    with tempfile.TemporaryDirectory(prefix="hyrt-links-") as name:
        folder = Path(name)
        write_work(folder, options.data, options.steps)
        command = [
            sys.executable,
            __file__,
            "--data",
            options.data,
            "--peer-python",
            str(options.peer_python),
        ]
        command += ["--child", name, "--epochs", str(options.epochs)]
        peer = [str(options.peer_python), str(Path(__file__).with_name("link_baseline.py")), name]
        peer += ["--loader", options.loader, "--epochs", str(options.epochs), "--batch", str(BATCH)]
        peer += ["--hidden", str(HIDDEN), "--negatives", str(NEGATIVES), "--threads", str(options.threads)]
        peer += ["--fanout", *map(str, FANOUT)]
        ratios = []
        for number in range(1, options.pairs + 1):
            mine, other = run_child(command), run_child(peer, **PEER_MALLOC)
            ratios.append(other["ms"] / mine["ms"])
            stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in mine["stages"].items())
            print(
                f"pair {number}: hyrt {mine['ms']:.1f} ms ({mine['edges']:,.0f} edges, loss "
                f"{mine['loss']:.3f}; {stages}), {options.loader} {other['ms']:.1f} ms "
                f"({other['edges']:,.0f} edges, loss {other['loss']:.3f}), {ratios[-1]:.2f} times",
                flush=True,
            )
    print(f"median of {options.pairs} pairs: {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
