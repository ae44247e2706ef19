"""What training on ranks costs beside training in one process: CPU seconds and seconds of an epoch.

    hyrt data convert synthetic:products-s products-s
    hyrt partition --data products-s --parts 2 -o parts2
    python tools/distributed/rank_overhead.py --data products-s --parts parts2 --rounds 2 \\
        --runs "home;home,distributed.share_rows=false" \\
        --set model.hidden=256,sampler.fanout=25+10,data.batch_size=1024

Each run is a whole `hyrt run`, of one process with all cores or of one rank a part under torchrun, with fewer
and with more epochs: the CPU seconds of all its processes, system time included, that the further epochs have
taken are those of an epoch, without what it takes to start. They hardly depend on what else the machine
does, as long as it has memory to spare. Seconds of an epoch are the median of all but the first, and say
something on an idle machine alone. Rounds take the runs in turn.

Large files of both datasets leave the memory first, so that all runs read them from the disk into large
pages: how a file came into memory makes its rows up to 1.7 times as slow to read. By default, ranks on one
machine read each other's rows where they lie; "home,distributed.share_rows=false" sends them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hyrt.graph.formats.recorded_npy import let_go

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a run has taken."""

    cpu_s: float
    """Of all processes, from their start to their end."""
    epochs_s: Sequence[float]
    """Each epoch, by the clock."""
    loss: float
    """The last step's."""


def cost(command: Sequence[str], epochs: int) -> RunCost:
    """Run hyrt once.

    Raises
    ------
    RuntimeError
        If it fails, with what it has printed.
    """
    with tempfile.TemporaryDirectory(prefix="hyrt-overhead-") as folder:
        asked = [*command, f"train.epochs={epochs}", "--name", "run"]
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                asked,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            # Of the process and of all those that it has waited for.
            _, code, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
            log.seek(0)
            if process.returncode:
                raise RuntimeError(f"{' '.join(asked)}: exit code {process.returncode}\n{log.read()[-3000:]}")
        lines = (Path(folder) / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return RunCost(
        cpu_s=used.ru_utime + used.ru_stime,
        epochs_s=[event["seconds"] for event in events if event["event"] == "epoch_ended"],
        loss=[event for event in events if event["event"] == "steps"][-1]["losses"][-1],
    )


def commands(asked: argparse.Namespace) -> dict[str, list[str]]:
    """The command of each run, by its name in the table."""
    parts = len(json.loads((asked.parts / "partition.json").read_text())["parts"])
    settings = [_list(setting) for setting in asked.set.split(",") if setting]
    settings += ["evaluate.every=0", "evaluate.mode=sampled", "checkpoint.every_epochs=0"]
    python, run = sys.executable, ["-m", "hyrt", "run", "--data"]
    found = {"one process": [python, *run, str(asked.data.resolve()), *settings]}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(parts)]
    for name in asked.runs.split(";"):
        strategy, _, own = name.partition(",")
        own_settings = [f"distributed.strategy={strategy}", *(_list(each) for each in own.split(",") if each)]
        found[f"{parts} ranks, {name}"] = [
            *(python, *launcher, *run, str(asked.parts.resolve())),
            *(*settings, *own_settings),
        ]
    return found


def _list(setting: str) -> str:
    return setting.replace("+", ",")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DATA", help="the graph, for one process")
    parser.add_argument("--parts", type=Path, required=True, metavar="PARTS", help="the same graph in parts")
    parser.add_argument("--runs", default="home", help="strategies, each with settings of its own")
    parser.add_argument("--set", default="", help="settings of all runs; + stands for the commas of a list")
    parser.add_argument("--epochs", default="2,6", metavar="FEW,MORE")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    asked = parser.parse_args()
    few, more = map(int, asked.epochs.split(","))
    runs = commands(asked)
    for folder in (asked.data, asked.parts):
        for file in folder.rglob("*.npy"):
            let_go(file)
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    wall: dict[str, list[float]] = {name: [] for name in runs}
    losses: dict[str, float] = {}
    for _ in range(asked.rounds):
        for name, command in runs.items():
            first, second = cost(command, few), cost(command, more)
            cpu[name].append((second.cpu_s - first.cpu_s) / (more - few))
            wall[name] += second.epochs_s[1:]
            losses[name] = second.loss
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs")
    print("| run | CPU s an epoch | of one process | s an epoch | one process over this | last loss |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    alone_cpu, alone_wall = (statistics.median(of["one process"]) for of in (cpu, wall))
    for name in runs:
        each = ", ".join(f"{seconds:.2f}" for seconds in cpu[name])
        seconds = statistics.median(wall[name])
        print(
            f"| {name} | {each} | {statistics.median(cpu[name]) / alone_cpu:.2f} | {seconds:.2f} | "
            f"{alone_wall / seconds:.2f} | {losses[name]:.6f} |"
        )


if __name__ == "__main__":
    main()
