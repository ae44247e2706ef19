"""Network failure of one node during training: every rank must end in time and name a lost rank.

    python tools/faults/cut_links.py --cuts 12

Ranks train on emulated nodes (tools/distributed/cluster.py). After the first steps, the interface of one node
is taken down (`ip link set eth0 down`) at a random time: packets are lost, but no connection is closed. Every
rank, including the rank of that node, must exit by itself within the heartbeat timeout plus ten seconds, with
exit code 1 and an error that names a rank: the disconnected rank, or on the disconnected node any other rank.
Root and iproute2 are required; without them the tool prints the reason and exits with 77.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

sys.path.append(str(Path(__file__).resolve().parents[1] / "distributed"))

from cluster import SKIPPED, EmulatedCluster, NodeEnd, unavailable_reason
from trials import DATA, Trials, make_parser, print_table

from hyrt.distributed.heartbeat import MAX_SILENCE_S

LIMIT_S = MAX_SILENCE_S + 10.0
STARTS_S = 180.0
# Long enough that it does not end by itself; checkpoints show the progress.
SETTINGS = (
    *("data.batch_size=60", "train.epochs=100000", "evaluate.every=0", "checkpoint.every_steps=5"),
    *("runtime.sample_threads=1", "runtime.load_threads=1", "runtime.train_threads=1"),
)
FULL_GRAPH_SETTINGS = (
    "--full-graph",
    "--model",
    "gcn",
    "train.epochs=10000000",
    "evaluate.every=0",
    "checkpoint.every_steps=5",
)
WAYS = {
    "home": (*SETTINGS, "distributed.strategy=home"),
    "hopgnn": (*SETTINGS, "distributed.strategy=hopgnn"),
    "p3": (*SETTINGS, "distributed.strategy=p3"),
    "1d": FULL_GRAPH_SETTINGS,
}


@dataclass
class LinkCut:
    """Result of one run; `problems` is empty if all checks passed."""

    nodes: int
    way: str
    rank: int
    ended_s: dict[int, float] = field(default_factory=dict)
    """Seconds between the disconnection and the exit of each rank."""
    errors: dict[int, str] = field(default_factory=dict)
    """Error message of each rank."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.way}: rank {self.rank} cut off"


def disconnect_node(folder: Path, parts: Path, nodes: int, way: str, draw: random.Random) -> LinkCut:
    """Train on nodes, take down the interface of one node, and record how the ranks end."""
    result = LinkCut(nodes, way, draw.randrange(nodes))
    words = ["run", "--data", str(parts), "--name", "run", "--output", str(folder / "runs"), *WAYS[way]]
    ends: list[NodeEnd] = []
    with EmulatedCluster(nodes) as cluster:
        began = time.perf_counter()

        def run() -> None:
            ends.extend(
                cluster.run(
                    [sys.executable, "-m", "hyrt", *words],
                    logs=folder,
                    limit_s=STARTS_S + 2 * LIMIT_S,
                    grace_s=LIMIT_S,
                    environment={"OMP_NUM_THREADS": "1"},
                )
            )

        running = threading.Thread(target=run)
        running.start()
        while running.is_alive() and not list((folder / "runs" / "run" / "checkpoints").glob("step-*")):
            if time.perf_counter() - began > STARTS_S:
                break
            time.sleep(0.05)
        time.sleep(2 * draw.random())
        down = time.perf_counter() - began
        cluster.cut_off(result.rank)
        running.join()
    for end in ends:
        result.ended_s[end.rank] = end.ended_s - down
        result.errors[end.rank] = _error((folder / f"rank-{end.rank}.log").read_text())
        result.problems += _problems(end, result)
    return result


def _problems(end: NodeEnd, result: LinkCut) -> list[str]:
    """Return the problems with the end of a rank."""
    error_text, name = result.errors[end.rank], f"rank {end.rank}"
    problems = []
    if end.code != 1:
        problems.append(f"{name} ends with {end.code}: {error_text}")
    if not 0 < result.ended_s[end.rank] <= LIMIT_S:
        problems.append(f"{name} ends {result.ended_s[end.rank]:.1f} s after the cut: {error_text}")
    named = re.findall(r"rank (\d+) was lost", error_text)
    if end.rank == result.rank:
        # The disconnected rank loses all others, and may name any of them.
        right = bool(named) and str(end.rank) not in named
    else:
        right = named == [str(result.rank)]
    if not right:
        problems.append(f"{name} names {named or 'none'}: {error_text}")
    return problems


def _error(log: str) -> str:
    """Return the error line in a rank's output."""
    return next((line for line in log.splitlines() if line.startswith("error: ")), log[-500:].strip())


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cuts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.cuts < 1:
        parser.error("--cuts must be at least 1")
    reason = unavailable_reason()
    if reason is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return SKIPPED
    signal.signal(signal.SIGTERM, _stop)
    trials, draw, results = Trials(), random.Random(options.seed), []
    with tempfile.TemporaryDirectory(prefix="hyrt-cut-links-") as name:
        for index in range(options.cuts):
            nodes, way = 2 + index % 2, list(WAYS)[index // 2 % len(WAYS)]
            parts = Path(name) / f"parts-{nodes}"
            if not parts.is_dir():
                words = [
                    "partition",
                    "--data",
                    DATA,
                    "--parts",
                    str(nodes),
                    "--method",
                    "random",
                    "-o",
                    str(parts),
                ]
                subprocess.run([sys.executable, "-m", "hyrt", *words], check=True, capture_output=True)
            folder = Path(name) / f"run-{index}"
            folder.mkdir()
            done = disconnect_node(folder, parts, nodes, way, draw)
            results.append(done)
            trials.add([f"{nodes} nodes, {way}"], f"{index}: {done}", done.problems)
            for rank, error_text in done.errors.items():
                print(
                    f"{index}: {done}: rank {rank} after {done.ended_s[rank]:.1f} s: {error_text}", flush=True
                )
    print_table(
        ("nodes", "way", "cut off", "end of that rank, s", "slowest end of the others, s"),
        [
            (
                *(result.nodes, result.way, f"rank {result.rank}", f"{result.ended_s[result.rank]:.1f}"),
                f"{max(took for rank, took in result.ended_s.items() if rank != result.rank):.1f}",
            )
            for result in results
        ],
    )
    print(
        f"{trials.count - trials.failed} of {trials.count} runs: every rank ended within {LIMIT_S:g} s with "
        f"exit code 1 and named the rank; {trials.seconds:.0f} s"
    )
    return trials.exit_code


if __name__ == "__main__":
    sys.exit(main())
