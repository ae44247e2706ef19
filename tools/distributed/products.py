"""Epoch times and traffic of full-graph training with several algorithms on the emulated cluster.

    python tools/distributed/products.py --data metis=parts-metis,volume=parts-volume --rates 200mbit,1gbit \\
        --set model.kind=gcn,model.layers=3,model.hidden=16 --epochs 5 \\
        --runs "1d-oblivious:metis;1d:metis;1d:volume;1.5d:halves,distributed.replication=2"

A run is an algorithm and its partition, with additional settings applied after `--set`; `+` replaces the
commas of a list. Every run is `hyrt run --full-graph` with one node per rank. Epoch times are the medians of
all epochs except the first, which compiles kernels and performs one-time exchanges. Rows are counted over all
ranks in the forward and backward SpMMs of an epoch; MB are the bytes received per rank and epoch (mean and
maximum), including the partial sums of 1.5D. `hidden` is the overlapped fraction of the smaller of
computation and communication, summed over ranks. `wire / counted` is the traffic of all interfaces, including
headers, divided by the bytes counted in the whole run. The send rate of links is limited, with `--both` also
the receive rate, as on real links. `predicted` is the epoch time that `hyrt predict` returns, with the
network that `hyrt calibrate --network` measures once between the same number of nodes with the same rate.
Nodes share the cores of this machine, which must be calibrated (`hyrt calibrate`). The tool needs root, see
cluster.py.
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
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.distributed_epoch import AlgorithmEpoch, algorithm_epoch
from hyrt_perfmodel.network import Network, read_network

from hyrt.config.command_line import new_config
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.source import open_graph
from hyrt.predict.distributed_full_graph import full_graph_work
from hyrt.predict.predict_platform import load_machine
from hyrt.predict.workload import configured_workload

_CLUSTER = Path(__file__).with_name("cluster.py")
_EXCHANGE_PURPOSES = ("rows", "row gradients", "partial sums")


def measure(
    data: Path, nodes: int, rate: str, settings: Sequence[str], limit_s: float, *, both: bool = False
) -> Mapping[str, Any]:
    """Run hyrt once on the cluster, and return its summary, epoch times, and the traffic of all interfaces.

    Raises
    ------
    RuntimeError
        If a rank fails. The message contains the output of the ranks.
    """
    with tempfile.TemporaryDirectory(prefix="hyrt-products-") as folder:
        logs = Path(folder) / "logs"
        command = [
            *(sys.executable, str(_CLUSTER), "--nodes", str(nodes), "--rate", rate, "--json"),
            *("--limit", str(limit_s), "--logs", str(logs), *(["--both"] if both else []), "--"),
            *(sys.executable, "-m", "hyrt", "run", "--data", str(data.resolve()), "--name", "run"),
            *("--full-graph", "evaluate.every=0", *settings),
        ]
        done = subprocess.run(
            command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            printed = "\n".join(log.read_text()[-1000:] for log in sorted(logs.glob("*.log")))
            raise RuntimeError(f"{' '.join(settings)}: exit code {done.returncode}\n{done.stderr}\n{printed}")
        run = Path(folder) / "runs" / "run"
        events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {
            **json.loads((run / "summary.json").read_text()),
            "epochs_s": [event["seconds"] for event in events if event["event"] == "epoch_ended"],
            "on_wire": sum(json.loads(line)["received_bytes"] for line in done.stdout.splitlines()),
        }


def measure_network(nodes: int, rate: str, limit_s: float, *, both: bool = False) -> Network:
    """Measure the network between the nodes with `hyrt calibrate --network`.

    Raises
    ------
    RuntimeError
        If a rank fails. The message contains its output.
    """
    with tempfile.TemporaryDirectory(prefix="hyrt-products-") as folder:
        file = Path(folder) / f"{rate}.yaml"
        command = [
            *(sys.executable, str(_CLUSTER), "--nodes", str(nodes), "--rate", rate, "--limit", str(limit_s)),
            *(["--both"] if both else []),
            *("--", sys.executable, "-m", "hyrt", "calibrate", "--network", str(file)),
        ]
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"calibrate --network: exit code {done.returncode}\n{done.stderr}")
        return read_network(file)


def _environment() -> dict[str, str]:
    """Return environment variables for one thread per library, as in torchrun, and for this source tree."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}


def predict_epoch(data: Path, nodes: int, network: Network, settings: Sequence[str]) -> AlgorithmEpoch:
    """Predict an epoch with the performance model."""
    overrides = [setting for setting in settings if not setting.startswith("evaluate")]
    config = new_config(None, [f"data.source={data}", "sampler.kind=full", *overrides])
    platform, _ = load_machine("this-machine")
    graph = open_graph(str(data))
    work = full_graph_work(config, graph, platform, configured_workload(config))
    homes = np.load(data / "graph" / "home.npy")
    num = int(homes.max()) + 1
    volumes = count_block_volumes(graph.topology.indptr, graph.topology.indices, homes, num)
    return algorithm_epoch(config.distributed.algorithm, volumes, nodes, work, network)


def row(rate: str, name: str, summary: Mapping[str, Any], predicted_s: float) -> str:
    """Return a row of the table."""
    distributed, products = summary["distributed"], summary["products"]
    received = [
        sum(rank_values["bytes_received"].get(key, 0) for key in _EXCHANGE_PURPOSES)
        for rank_values in distributed["by_rank"]
    ]
    passes = summary["epochs"]
    computed, communicated, waited = (
        [rank_values[key] for rank_values in products] for key in ("compute_s", "communicate_s", "wait_s")
    )
    overlappable = sum(min(*rank_values) for rank_values in zip(computed, communicated, strict=True))
    hidden = sum(max(0.0, c - w) for c, w in zip(communicated, waited, strict=True))
    counted = sum(sum(rank_values["bytes_received"].values()) for rank_values in distributed["by_rank"])
    times = summary["epochs_s"]
    return (
        f"| {rate} | {name} | {statistics.median(times[1:] or times):.3f} | {predicted_s:.3f} | "
        f"{sum(rank_values['remote_rows'] for rank_values in products):,} | "
        f"{statistics.fmean(received) / passes / 1e6:.2f} | {max(received) / passes / 1e6:.2f} | "
        f"{sum(computed) / len(products) / max(1, passes - 1):.3f} | "
        f"{sum(communicated) / len(products) / max(1, passes - 1):.3f} | "
        f"{min(1.0, hidden / overlappable) if overlappable else 0:.0%} | "
        f"{summary['on_wire'] / counted:.3f} | {summary['metrics']['val']['accuracy']:.4f} |"
    )


def _settings(text: str) -> list[str]:
    return [setting.replace("+", ",") for setting in text.split(",") if setting]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="NAME=PARTS,NAME=PARTS: folders of hyrt partition")
    parser.add_argument("--rates", default="200mbit,1gbit")
    parser.add_argument("--runs", required=True)
    parser.add_argument("--set", default="", help="settings of all runs")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--both", action="store_true", help="limit the receive rate as well")
    parser.add_argument("--limit", type=float, default=400.0, help="time limit of a run in seconds")
    options = parser.parse_args(arguments)
    folders = {name: Path(path) for name, _, path in (run.partition("=") for run in options.data.split(","))}
    columns = [
        *("rate", "run", "epoch (s)", "predicted", "remote rows a product", "MB a rank and epoch", "at most"),
        *("multiplying (s)", "communicating (s)", "hidden", "wire / counted", "val accuracy"),
    ]
    print(f"| {' | '.join(columns)} |\n| --- | ---{' | ---:' * (len(columns) - 2)} |", flush=True)
    networks: dict[tuple[str, int], Network] = {}
    for rate in options.rates.split(","):
        for run in options.runs.split(";"):
            name, _, run_settings = run.partition(",")
            algorithm, _, partition = name.partition(":")
            settings = [
                *_settings(options.set),
                f"distributed.algorithm={algorithm}",
                *_settings(run_settings),
            ]
            settings.append(f"train.epochs={options.epochs}")
            copies = 1 if algorithm.startswith("1d") else 2
            for setting in settings:
                if setting.startswith("distributed.replication="):
                    copies = int(setting.partition("=")[2])
            data = folders[partition]
            nodes = copies * len(json.loads((data / "partition.json").read_text())["parts"])
            if (rate, nodes) not in networks:
                networks[rate, nodes] = measure_network(nodes, rate, options.limit, both=options.both)
            summary = measure(data, nodes, rate, settings, options.limit, both=options.both)
            expected = predict_epoch(data, nodes, networks[rate, nodes], settings)
            print(row(rate, f"{run} at {nodes}", summary, expected.epoch_s), flush=True)
    for (rate, nodes), network in networks.items():
        print(f"{rate}, {nodes} nodes: {network}")


if __name__ == "__main__":
    main()
