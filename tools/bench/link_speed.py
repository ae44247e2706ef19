"""Speed of link prediction with GraphSAGE in hyrt and in DGL, in turn, on the same links.

A step trains 1,024 links with one pair each that is none: two layers of 256, fan-out 25 and 10, inner
product, binary cross entropy, Adam, fp32; the edges of its links, and their reverses, carry no messages. An
epoch has `--steps` steps; the first one warms up, and the median of the others counts. Each run is a process
of its own.

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
from timed_runs import BATCH, FANOUT, parser, prepared, settings

if TYPE_CHECKING:
    from hyrt.observe.events import Event

HIDDEN, NEGATIVES = 256, 1
PEER_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}


def write_work(folder: Path, source: str, steps: int) -> None:
    """The graph, and as many of its links as an epoch's steps train, drawn at random."""
    from hyrt.graph import open_graph
    from hyrt.graph.links.message_edges import links_of
    from hyrt.machine.workers import Workers

    graph = open_graph(source)
    links = links_of(graph.topology)[0]
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


def in_hyrt(source: str, folder: Path, epochs: int) -> None:
    """Train in this process, and print what the peers print."""
    prepared()
    import hyrt
    from hyrt.observe.events import EpochEnded, StepGroup

    groups: list[StepGroup] = []
    ended: list[EpochEnded] = []

    def hear(event: Event) -> None:
        if isinstance(event, EpochEnded):
            ended.append(event)
        elif isinstance(event, StepGroup):
            groups.append(event)

    sections = settings("graphsage", epochs, hidden=HIDDEN)
    sections["train"]["objective"] = "links"
    sections["links"] = {"split": str(folder / "links.npz"), "num_negatives": NEGATIVES}
    model = sections.pop("model")
    hyrt.train(source, model, emit=hear, **sections)
    steps = groups[-1].steps_per_epoch
    times = [each.seconds / steps * 1e3 for each in ended]
    edges = statistics.mean(group.mteps * 1e6 * group.step_s for group in groups)
    stages = {name: 1e3 * seconds for name, seconds in groups[-1].stage_s.items()}
    found = {"ms": statistics.median(times[1:]), "epochs": times, "edges": edges}
    print(json.dumps({**found, "loss": ended[-1].loss, "stages": stages}))


def child(command: list[str], **environment: str) -> dict[str, Any]:
    """What a process prints on its last line."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Print every pair of runs, and the median of their ratios."""
    asked = parser(__doc__)
    asked.add_argument("--data", default="synthetic:products-s")
    asked.add_argument("--peer-python", type=Path, required=True, help="the interpreter that has DGL")
    asked.add_argument("--loader", choices=("graphbolt", "dataloader"), default="graphbolt")
    asked.add_argument("--pairs", type=int, default=5)
    asked.add_argument("--steps", type=int, default=48)
    asked.add_argument("--epochs", type=int, default=4)
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.child:
        in_hyrt(given.data, given.child, given.epochs)
        return
    with tempfile.TemporaryDirectory(prefix="hyrt-links-") as name:
        folder = Path(name)
        write_work(folder, given.data, given.steps)
        own = [sys.executable, __file__, "--data", given.data, "--peer-python", str(given.peer_python)]
        own += ["--child", name, "--epochs", str(given.epochs)]
        peer = [str(given.peer_python), str(Path(__file__).with_name("link_peer.py")), name]
        peer += ["--loader", given.loader, "--epochs", str(given.epochs), "--batch", str(BATCH)]
        peer += ["--hidden", str(HIDDEN), "--negatives", str(NEGATIVES), "--threads", str(given.threads)]
        peer += ["--fanout", *map(str, FANOUT)]
        ratios = []
        for number in range(1, given.pairs + 1):
            mine, other = child(own), child(peer, **PEER_MALLOC)
            ratios.append(other["ms"] / mine["ms"])
            stages = ", ".join(f"{stage} {ms:.1f}" for stage, ms in mine["stages"].items())
            print(
                f"pair {number}: hyrt {mine['ms']:.1f} ms ({mine['edges']:,.0f} edges, loss "
                f"{mine['loss']:.3f}; {stages}), {given.loader} {other['ms']:.1f} ms "
                f"({other['edges']:,.0f} edges, loss {other['loss']:.3f}), {ratios[-1]:.2f} times",
                flush=True,
            )
    print(f"median of {given.pairs} pairs: {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
