"""Overhead of training on several ranks compared with one process: CPU seconds and wall seconds per epoch.

    hyrt data convert synthetic:products-s products-s
    hyrt partition --data products-s --parts 2 -o parts2
    python tools/distributed/rank_overhead.py --data products-s --parts parts2 --rounds 2 \\
        --runs "home;home,distributed.shared_memory_features=false" \\
        --set model.hidden=256,sampler.fanout=25+10,data.batch_size=1024

Each run is a complete `hyrt run`: one process with all cores, or one rank per part under torchrun, with fewer
and with more epochs. The difference of CPU seconds (all processes, including system time) gives the CPU
seconds per epoch without start-up, which hardly depend on other load if enough memory is free. Wall seconds
per epoch are the median of all epochs except the first, and are meaningful only on an idle machine. Runs
alternate.

Large files of both datasets are first dropped from the page cache, so that all runs read them from disk into
large pages: otherwise, rows may be up to 1.7 times slower to read. By default, ranks on one machine read each
other's rows from shared memory; "home,distributed.shared_memory_features=false" sends rows instead.
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

from hyrt.graph.formats.npy import evict_from_page_cache

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class RunCost:
    """CPU and wall time of a run."""

    cpu_s: float
    """CPU seconds of all processes from start to end."""
    epochs_s: Sequence[float]
    """Wall seconds of each epoch."""
    loss: float
    """Loss of the last step."""


def cost(command: Sequence[str], epochs: int) -> RunCost:
    """Run hyrt once, and return its cost.

    Raises
    ------
    RuntimeError
        If the run fails. The message contains its output.
    """
    with tempfile.TemporaryDirectory(prefix="hyrt-overhead-") as folder:
        run_command = [*command, f"train.epochs={epochs}", "--name", "run"]
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                run_command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            # This is the usage of the process and of all its children that have been waited for.
            _, code, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
            log.seek(0)
            if process.returncode:
                raise RuntimeError(
                    f"{' '.join(run_command)}: exit code {process.returncode}\n{log.read()[-3000:]}"
                )
        lines = (Path(folder) / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return RunCost(
        cpu_s=used.ru_utime + used.ru_stime,
        epochs_s=[event["seconds"] for event in events if event["event"] == "epoch_ended"],
        loss=[event for event in events if event["event"] == "steps"][-1]["losses"][-1],
    )


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each run, by its name in the table."""
    parts = len(json.loads((options.parts / "partition.json").read_text())["parts"])
    settings = [_list(setting) for setting in options.set.split(",") if setting]
    settings += ["evaluate.every=0", "evaluate.mode=sampled", "checkpoint.every_epochs=0"]
    python, run = sys.executable, ["-m", "hyrt", "run", "--data"]
    commands_by_name = {"one process": [python, *run, str(options.data.resolve()), *settings]}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(parts)]
    for name in options.runs.split(";"):
        strategy, _, run_settings = name.partition(",")
        all_settings = [
            f"distributed.strategy={strategy}",
            *(_list(each) for each in run_settings.split(",") if each),
        ]
        commands_by_name[f"{parts} ranks, {name}"] = [
            *(python, *launcher, *run, str(options.parts.resolve())),
            *(*settings, *all_settings),
        ]
    return commands_by_name


def _list(setting: str) -> str:
    return setting.replace("+", ",")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DATA", help="the graph, for one process")
    parser.add_argument("--parts", type=Path, required=True, metavar="PARTS", help="the same graph in parts")
    parser.add_argument("--runs", default="home", help="strategies, each with optional settings")
    parser.add_argument("--set", default="", help="settings of all runs; + replaces the commas of a list")
    parser.add_argument("--epochs", default="2,6", metavar="FEW,MORE")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    options = parser.parse_args()
    few, more = map(int, options.epochs.split(","))
    runs = commands(options)
    for folder in (options.data, options.parts):
        for file in folder.rglob("*.npy"):
            evict_from_page_cache(file)
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    wall: dict[str, list[float]] = {name: [] for name in runs}
    losses: dict[str, float] = {}
    for _ in range(options.rounds):
        for name, command in runs.items():
            first, second = cost(command, few), cost(command, more)
            cpu[name].append((second.cpu_s - first.cpu_s) / (more - few))
            wall[name] += second.epochs_s[1:]
            losses[name] = second.loss
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs")
    print("| run | CPU s per epoch | relative to one process | s per epoch | speed-up | last loss |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    alone_cpu, alone_wall = (statistics.median(times["one process"]) for times in (cpu, wall))
    for name in runs:
        cpu_values = ", ".join(f"{seconds:.2f}" for seconds in cpu[name])
        seconds = statistics.median(wall[name])
        print(
            f"| {name} | {cpu_values} | {statistics.median(cpu[name]) / alone_cpu:.2f} | {seconds:.2f} | "
            f"{alone_wall / seconds:.2f} | {losses[name]:.6f} |"
        )


if __name__ == "__main__":
    main()
