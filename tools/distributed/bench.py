"""Traffic by purpose and epoch times of several strategies on the emulated cluster.

    python tools/distributed/bench.py --data parts --rates 200mbit,1gbit --epochs 3 \\
        --set model.hidden=16,sampler.fanout=10+10,data.batch_size=4096 \\
        --runs "home;model-centric;home,distributed.cache=20%;home,distributed.comm_dtype=float16"

Every run is `hyrt run` with one node per part of DATA. A run of `--runs` is a strategy with additional
settings, applied after `--set`; `+` replaces the commas of a list. Epoch times are the medians of all epochs
except the first, which compiles kernels. Bytes are counted by the ranks, in MB, averaged over nodes and
epochs (a node receives as much as it sends on average); `once` is sent before the first step. `wire /
counted` is the traffic of all interfaces, including headers, divided by the bytes counted in the whole run.
`train accuracy` is that of the last epoch's steps. Nodes share the cores of this machine, so only effects of
the links can be measured. The tool needs root, see cluster.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PURPOSES = ("rows", "indices", "hidden", "partials", "models", "gradients")
_CLUSTER = Path(__file__).with_name("cluster.py")


@dataclass(frozen=True, slots=True)
class EpochOnCluster:
    """Measurements of one run on the cluster."""

    epoch_s: float
    bytes: Mapping[str, float]
    """Bytes per node and epoch by purpose."""
    cached: float
    """Bytes of cached rows per node, which are transferred once per run."""
    wire_over_counted: float
    hit_rates: tuple[float, float] | None
    """Measured and predicted hit rate of the cache, or None."""
    train_accuracy: float
    val_accuracy: float


def measure(
    data: Path, nodes: int, rate: str, settings: Sequence[str], epochs: int, limit_s: float
) -> EpochOnCluster:
    """Run hyrt once on the cluster, and return the measurements.

    Raises
    ------
    RuntimeError
        If a rank fails. The message contains the output of the ranks.
    """
    with tempfile.TemporaryDirectory(prefix="hyrt-bench-") as folder:
        logs = Path(folder) / "logs"
        command = [
            *(sys.executable, str(_CLUSTER), "--nodes", str(nodes), "--rate", rate, "--json"),
            *("--limit", str(limit_s), "--logs", str(logs), "--"),
            *(sys.executable, "-m", "hyrt", "run", "--data", str(data.resolve()), "--name", "run"),
            *(f"train.epochs={epochs}", "evaluate.mode=sampled", "evaluate.every=0", *settings),
        ]
        done = subprocess.run(
            command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            printed = "\n".join(log.read_text()[-1000:] for log in sorted(logs.glob("*.log")))
            raise RuntimeError(f"{' '.join(settings)}: exit code {done.returncode}\n{done.stderr}\n{printed}")
        ends = [json.loads(line) for line in done.stdout.splitlines()]
        run = Path(folder) / "runs" / "run"
        summary = json.loads((run / "summary.json").read_text())
        events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return _measured(summary, events, sum(end["received_bytes"] for end in ends), nodes)


def _environment() -> dict[str, str]:
    """Return environment variables for one thread per library, as in torchrun, and for this source tree."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}


def _measured(
    summary: dict[str, Any], events: Sequence[dict[str, Any]], received: int, nodes: int
) -> EpochOnCluster:
    sent, epochs = summary["distributed"]["bytes_sent"], summary["epochs"]
    times = [event["seconds"] for event in events if event["event"] == "epoch_ended"]
    last = [event for event in events if event["event"] == "steps" and event["epoch"] == epochs]
    accuracies = [event["train_accuracy"] for event in last]
    weights = [len(event["losses"]) for event in last]
    cache = summary.get("row_cache")
    return EpochOnCluster(
        epoch_s=statistics.median(times[1:] or times),
        bytes={purpose: sent.get(purpose, 0) / nodes / epochs for purpose in PURPOSES},
        cached=(sent["cache"] + sent.get("columns", 0)) / nodes,
        wire_over_counted=received / sum(sent.values()),
        hit_rates=None if cache is None else (cache["hit_rate"], cache["predicted_hit_rate"]),
        train_accuracy=statistics.fmean(accuracies, weights),
        val_accuracy=summary["metrics"]["val"]["accuracy"],
    )


def head() -> list[str]:
    """Return the head of the table."""
    return [
        "| rate | run | epoch (s) | MB per node and epoch | "
        + " | ".join(PURPOSES)
        + " | once | wire / counted | "
        "hit rate (predicted) | train accuracy | val accuracy |",
        "| --- | --- " + "| ---: " * (len(PURPOSES) + 7) + "|",
    ]


def row(rate: str, name: str, epoch: EpochOnCluster) -> str:
    """Return a row of the table."""
    purposes = " | ".join(f"{epoch.bytes[purpose] / 1e6:,.1f}" for purpose in PURPOSES)
    rates = "" if epoch.hit_rates is None else f"{epoch.hit_rates[0]:.3f} ({epoch.hit_rates[1]:.3f})"
    return (
        f"| {rate} | {name} | {epoch.epoch_s:.2f} | {sum(epoch.bytes.values()) / 1e6:,.1f} | {purposes} | "
        f"{epoch.cached / 1e6:,.1f} | {epoch.wire_over_counted:.3f} | {rates} | {epoch.train_accuracy:.4f} | "
        f"{epoch.val_accuracy:.4f} |"
    )


def _settings(text: str) -> list[str]:
    return [setting.replace("+", ",") for setting in text.split(",") if setting]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="output folder of hyrt partition")
    parser.add_argument("--rates", default="200mbit,1gbit")
    parser.add_argument("--runs", default="model-centric;p3;naive-migration;hopgnn;home;local")
    parser.add_argument("--set", default="", help="settings of all runs")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=400.0, help="time limit of a run in seconds")
    options = parser.parse_args(arguments)
    nodes = len(json.loads((options.data / "partition.json").read_text())["parts"])
    print("\n".join(head()), flush=True)
    for rate in options.rates.split(","):
        for name in options.runs.split(";"):
            strategy, _, run_settings = name.partition(",")
            settings = [*_settings(options.set), f"distributed.strategy={strategy}", *_settings(run_settings)]
            epoch = measure(options.data, nodes, rate, settings, options.epochs, options.limit)
            print(row(rate, name, epoch), flush=True)


if __name__ == "__main__":
    main()
