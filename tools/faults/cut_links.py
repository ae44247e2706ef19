"""A node's network interface goes down while it trains: every rank must end in time, with a name.

    python tools/faults/cut_links.py --cuts 12

Ranks train on emulated nodes (tools/distributed/cluster.py), until the interface of one is taken down (`ip
link set eth0 down`) at a random time after the first steps: no packet comes or goes any more, and no
connection is closed. Every rank, that of the node too, must end by itself within the time for which it bears
to hear nothing and ten seconds more, with exit code 1 and an error that names a rank: those that are left the
one that was cut off, and that one another. Root and iproute2 are needed; without them it says so and exits
with 77.
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

from hyrt.distributed.fellow_ranks import SILENT_S

LIMIT_S = SILENT_S + 10.0
STARTS_S = 180.0
# Long enough that it does not end by itself; checkpoints tell how far it is.
SETTINGS = (
    *("data.batch_size=60", "train.epochs=100000", "evaluate.every=0", "checkpoint.every_steps=5"),
    *("runtime.sample_threads=1", "runtime.load_threads=1", "runtime.train_threads=1"),
)
WHOLE = (
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
    "1d": WHOLE,
}


@dataclass
class LinkCut:
    """What became of one run. `problems` is empty where all held."""

    nodes: int
    way: str
    rank: int
    ended_s: dict[int, float] = field(default_factory=dict)
    """Seconds from the cut to the end of each rank."""
    said: dict[int, str] = field(default_factory=dict)
    """The error of each rank."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.nodes} nodes, {self.way}: rank {self.rank} cut off"


def cut(folder: Path, parts: Path, nodes: int, way: str, draw: random.Random) -> LinkCut:
    """Train on nodes, take down the interface of one, and see how they end."""
    found = LinkCut(nodes, way, draw.randrange(nodes))
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
        cluster.cut_off(found.rank)
        running.join()
    for end in ends:
        found.ended_s[end.rank] = end.ended_s - down
        found.said[end.rank] = _error((folder / f"rank-{end.rank}.log").read_text())
        found.problems += _problems(end, found)
    return found


def _problems(end: NodeEnd, found: LinkCut) -> list[str]:
    """What is wrong with how a rank ended."""
    said, name = found.said[end.rank], f"rank {end.rank}"
    problems = []
    if end.code != 1:
        problems.append(f"{name} ends with {end.code}: {said}")
    if not 0 < found.ended_s[end.rank] <= LIMIT_S:
        problems.append(f"{name} ends {found.ended_s[end.rank]:.1f} s after the cut: {said}")
    named = re.findall(r"rank (\d+) was lost", said)
    if end.rank == found.rank:
        # All others are lost to it; any of them may be the first that it misses.
        right = bool(named) and str(end.rank) not in named
    else:
        right = named == [str(found.rank)]
    if not right:
        problems.append(f"{name} names {named or 'none'}: {said}")
    return problems


def _error(log: str) -> str:
    """The line of the error that a rank printed."""
    return next((line for line in log.splitlines() if line.startswith("error: ")), log[-500:].strip())


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cuts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.cuts < 1:
        parser.error("--cuts: at least 1")
    reason = unavailable_reason()
    if reason is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return SKIPPED
    signal.signal(signal.SIGTERM, _stop)
    trials, draw, found = Trials(), random.Random(options.seed), []
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
            done = cut(folder, parts, nodes, way, draw)
            found.append(done)
            trials.add([f"{nodes} nodes, {way}"], f"{index}: {done}", done.problems)
            for rank, said in done.said.items():
                print(f"{index}: {done}: rank {rank} after {done.ended_s[rank]:.1f} s: {said}", flush=True)
    print_table(
        ("nodes", "way", "cut off", "end of that rank, s", "slowest end of the others, s"),
        [
            (
                *(each.nodes, each.way, f"rank {each.rank}", f"{each.ended_s[each.rank]:.1f}"),
                f"{max(took for rank, took in each.ended_s.items() if rank != each.rank):.1f}",
            )
            for each in found
        ],
    )
    print(
        f"{trials.count - trials.failed} of {trials.count} runs: every rank ended within {LIMIT_S:g} s with "
        f"exit code 1 and named the rank; {trials.seconds:.0f} s"
    )
    return trials.exit_code


if __name__ == "__main__":
    sys.exit(main())
