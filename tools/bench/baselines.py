"""hyrt compared with a baseline (DGL or PyG) on the same work, in alternating runs.

Each run is a separate process. The tool prints ms per step, MTEPS, peak memory and accuracy of both systems,
the ratio of each pair of runs and the median ratio, and for hyrt a lower bound on the time of each stage,
from measured rates of this machine.

    python tools/bench/baselines.py --workload products-s --model sage --peer-python peer-dgl/bin/python

The baselines' scripts and the workload generator are in the folder `--peers`; its README describes their
environments.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lower_bounds import lower_bounds
from timed_runs import (
    KINDS,
    append_records,
    child_record,
    make_parser,
    open_workload,
    prepared,
    settings,
    stage_ms,
    step_mean,
    timed_run,
)

if TYPE_CHECKING:
    from hyrt.telemetry.events import Event

REPOSITORY = Path(__file__).resolve().parents[2]
# Environment that the README of the baselines sets for all: otherwise, fresh memory pages for the arrays of
# each step cost a third of their speed.
PEER_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "8589934592",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
PEERS = {
    "dgl": ["dgl_peer.py", "--sampler", "dgl", "--idx", "64"],
    "dgl-graphbolt": ["dgl_peer.py", "--sampler", "gb", "--idx", "32"],
    "pyg": ["pyg_peer.py", "--mode", "plain", "--workers", "1", "--fpw", "0", "--threads", "1"],
    "pyg-bipartite": ["pyg_peer.py", "--mode", "bipcsr", "--workers", "1", "--fpw", "0", "--threads", "1"],
}


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--workload", default="products-s")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder for generated workloads")
    parser.add_argument("--peers", type=Path, default=REPOSITORY.parent / "shared" / "peers")
    parser.add_argument("--peer", choices=[*PEERS, "serial", "none"], default="dgl")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--model", choices=list(KINDS), default="sage")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3, help="measured epochs, after one warm-up epoch")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--serial", action="store_true", help="run hyrt's stages serially")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of hyrt, key.path=value")
    parser.add_argument("--json", type=Path, help="append each run and the ratios to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_hyrt(options: argparse.Namespace) -> None:
    """Run hyrt once and print one JSON line."""
    prepared()
    import resource

    from hyrt.config import apply_overrides, build_config
    from hyrt.runtime.hardware import available_cores
    from hyrt.telemetry.events import EpochEnded

    graph = open_workload(options.data / options.workload)
    run_settings = settings(
        KINDS[options.model],
        epochs=options.epochs + 1,
        model={"heads": 4},
        train={"precision": options.precision},
        runtime={"pipelined": not options.serial},
    )
    config = build_config(apply_overrides(run_settings, options.set))
    data_bytes = sum(
        (options.data / options.workload / f"{key}.npy").stat().st_size
        for key in ("indptr", "indices", "x", "y", "train", "val", "test")
    )
    peak_kib = 0

    def on_event(event: Event) -> None:
        nonlocal peak_kib
        if isinstance(event, EpochEnded):
            # Read the peak before the evaluation, which baselines do not run.
            peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    run = timed_run(config, graph, on_event=on_event)
    groups, epochs = run.groups, run.epochs
    steps = groups[-1].steps_per_epoch
    resident = {group.epoch: group.memory_bytes for group in groups}
    last = [group for group in groups if group.epoch == len(epochs)]
    ms = statistics.median(epoch.seconds / steps * 1e3 for epoch in epochs[1:])
    record = {
        "system": "hyrt",
        "workload": options.workload,
        "model": options.model,
        "precision": options.precision,
        "ms_per_step": round(ms, 2),
        "epoch_ms_per_step": [round(epoch.seconds / steps * 1e3, 2) for epoch in epochs],
        "mteps": round(statistics.median(epoch.mteps for epoch in epochs[1:]), 2),
        "peak_gib": round(peak_kib / 2**20, 3),
        "data_gib": round(data_bytes / 2**30, 3),
        "epoch_end_gib": [round(bytes_ / 2**30, 3) for bytes_ in resident.values()],
        "train_accuracy": round(step_mean(last, lambda group: group.training_metrics["accuracy"]), 4),
        "test_accuracy": round(run.result.metrics["test"]["accuracy"], 4),
        "stage_ms": stage_ms([group for group in groups if group.epoch > 1]),
        "bound_ms": lower_bounds(graph, config, threads=available_cores()),
    }
    print(json.dumps(record), flush=True)


def run_peer(options: argparse.Namespace) -> dict[str, Any]:
    if options.peer == "serial":
        # Run hyrt without the pipeline, to measure the gain from pipelining.
        return {**run_child("--serial"), "system": "serial"}
    script, *flags = PEERS[options.peer]
    command = [
        options.peer_python,
        str(options.peers / script),
        *flags,
        *("--data", str(options.data / options.workload), "--model", options.model),
        *("--epochs", str(options.epochs), "--acc", "1", "--out", os.devnull),
    ]
    record = child_record(command, f"the peer ({' '.join(command)})", {**os.environ, **PEER_MALLOC})
    return {
        "system": options.peer,
        "ms_per_step": record["ms_it"],
        "mteps": record["MTEPS"],
        "peak_gib": record["peak_rss_self_gb"] + record["kids_uss_gb"],
        "train_accuracy": record["acc"][-1] if record["acc"] else None,
    }


def run_child(*more: str) -> dict[str, Any]:
    return child_record([sys.executable, __file__, *sys.argv[1:], *more, "--child"], "hyrt")


def format_line(record: dict[str, Any]) -> str:
    accuracy = record.get("train_accuracy")
    return (
        f"{record['system']:14s} {record['ms_per_step']:7.1f} ms/step  {record['mteps']:6.2f} MTEPS  "
        f"peak {record['peak_gib']:.2f} GiB"
        + (f" (data + {record['peak_gib'] - record['data_gib']:.2f})" if "data_gib" in record else "")
        + f"  train accuracy {accuracy if accuracy is not None else '-'}"
        + (f"  test {record['test_accuracy']}" if "test_accuracy" in record else "")
    )


def main() -> None:
    options = arguments()
    if options.child:
        run_hyrt(options)
        return
    folder = options.data / options.workload
    if not (folder / "meta.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, str(options.peers / "workload.py"), options.workload, str(folder)], check=True
        )
    print(
        f"{options.workload} {options.model} {options.precision} · {options.pairs} alternating pairs · "
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"
    )
    # Warm up the page cache and the kernel cache with one run of each system.
    run_child()
    mine, theirs = [], []
    for _ in range(options.pairs):
        mine.append(run_child())
        print(format_line(mine[-1]), flush=True)
        if options.peer != "none":
            theirs.append(run_peer(options))
            print(format_line(theirs[-1]), flush=True)
    middle = sorted(mine, key=lambda r: r["ms_per_step"])[len(mine) // 2]
    floor, stage = middle["bound_ms"], middle["stage_ms"]
    print(
        "stage      measured ms   bound ms   (work time of the stage while all overlap; serial: whole step)"
    )
    for name in ("sample", "load", "propagate"):
        print(f"{name:10s} {stage[name]:11.1f} {floor[name]:10.1f}")
    print(f"{'step':10s} {middle['ms_per_step']:11.1f} {floor['serial']:10.1f}")
    summary = {
        "workload": options.workload,
        "model": options.model,
        "precision": options.precision,
        "hyrt_ms": statistics.median(r["ms_per_step"] for r in mine),
        "hyrt_peak_gib": statistics.median(r["peak_gib"] for r in mine),
        "data_gib": mine[0]["data_gib"],
    }
    if theirs:
        ratios = [t["ms_per_step"] / m["ms_per_step"] for m, t in zip(mine, theirs, strict=True)]
        summary |= {
            "peer": options.peer,
            "peer_ms": statistics.median(r["ms_per_step"] for r in theirs),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(r, 3) for r in ratios],
        }
        pairs = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{options.peer} / hyrt: median {summary['ratio']:.2f}, pairs {pairs}")
    append_records(options.json, [*mine, *theirs, summary])


if __name__ == "__main__":
    main()
