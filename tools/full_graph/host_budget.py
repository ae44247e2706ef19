"""Measure the peak memory of full-graph training with limited host memory, and check that the bits are equal.

Each run is a separate process whose anonymous memory is read every 2 ms. Features, topology and labels are
memory-mapped from files. The first run is not limited; its losses and weights are the reference for the other
runs.

    python tools/full_graph/host_budget.py FOLDER --model gcn --hidden 128 --budget 512MiB 256MiB 64MiB
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

_PAUSE_S = 0.002
_MIB = 2**20


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="indptr, indices, x, y, train, val and test as .npy files")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--budget", nargs="+", default=["512MiB"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def open_mapped(folder: Path) -> Any:
    """Open the files as a memory-mapped graph."""
    import numpy as np

    from hyrt.graph.graph import Graph
    from hyrt.graph.row_source import DenseFeatures

    def mapped(key: str) -> Any:
        return np.load(folder / f"{key}.npy", mmap_mode="r")

    labels = mapped("y").astype(np.int16)
    masks = {split: np.zeros(len(labels), np.bool_) for split in ("train", "val", "test")}
    for split, mask in masks.items():
        mask[mapped(split)] = True
    features = DenseFeatures(mapped("x"))
    return Graph.from_arrays(folder.name, mapped("indptr"), mapped("indices"), features, labels, masks)


def train(options: argparse.Namespace) -> None:
    """Run once and print one JSON line."""
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()
    import hyrt
    from hyrt.telemetry.events import EpochEnded, StepMetrics

    graph = open_mapped(options.folder)
    losses: list[float] = []
    ends = [(time.perf_counter(), time.process_time())]

    def on_event(event: Any) -> None:
        if isinstance(event, StepMetrics):
            losses.extend(event.losses)
        if isinstance(event, EpochEnded):
            ends.append((time.perf_counter(), time.process_time()))
            if len(ends) == options.epochs + 1:
                # Report the end of training, because the evaluation that follows has a separate budget.
                print("over", file=sys.stderr, flush=True)

    print("begins", file=sys.stderr, flush=True)
    result = hyrt.train(
        graph,
        {"kind": options.model, "hidden": options.hidden, "dropout": 0.0, "norm": "none"},
        emit=on_event,
        full_graph=True,
        train={"epochs": options.epochs, "lr": 0.01, "weight_decay": 0.0},
        data={"normalize": "none"},
        evaluate={"every": 0},
        balance={"predict": False},
        fullgraph={"host_memory": options.child or None},
    )
    digest = hashlib.sha256()
    for parameter in result.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    # Skip the first epoch, which also computes values that later epochs reuse.
    steps = list(pairwise(ends[1:]))
    record = {
        "losses": losses,
        "weights": digest.hexdigest()[:16],
        "wall_s": min(b[0] - a[0] for a, b in steps),
        "cpu_s": min(b[1] - a[1] for a, b in steps),
    }
    print(json.dumps(record))


def status_mib(process: int) -> dict[str, float]:
    """Return the resident memory of a process by kind in MiB, or an empty dict if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.startswith("Rss"))
    return {key.rstrip(":"): int(value) / 1024 for key, value, _ in fields}


def run_child(options: argparse.Namespace, budget: str) -> dict[str, Any]:
    """Run once in a separate process, and return its record with the memory peaks during training."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", budget]
    peaks = {"RssAnon": 0.0, "RssFile": 0.0}
    before: dict[str, float] = {}
    errors: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stdout is not None
        listener = threading.Thread(target=errors.extend, args=(child.stderr,))
        listener.start()
        while child.poll() is None and "over\n" not in errors:
            now = status_mib(child.pid)
            if "begins\n" in errors and now:
                before = before or now
                peaks = {key: max(peak, now.get(key, 0.0)) for key, peak in peaks.items()}
            time.sleep(_PAUSE_S)
        out = child.stdout.read()
        listener.join()
    if child.returncode:
        raise SystemExit(f"the run with {budget or 'no budget'} failed:\n{''.join(errors)}")
    return {**json.loads(out.splitlines()[-1]), **peaks, "before": before["RssAnon"]}


def main() -> None:
    options = arguments()
    if options.child is not None:
        train(options)
        return
    run_child(options, "")  # Warm up the page cache and the kernel cache.
    free: dict[str, Any] = {}
    for budget in ("", *options.budget):
        run = run_child(options, budget)
        free = free or run
        equal = run["losses"] == free["losses"] and run["weights"] == free["weights"]
        print(
            f"{budget or 'no budget':>10s}: anonymous at most {run['RssAnon']:6,.0f} MiB "
            f"({run['before']:,.0f} before), of files {run['RssFile']:6,.0f} MiB, epoch "
            f"{run['cpu_s']:.2f} CPU s {run['wall_s']:.2f} s, loss {run['losses'][-1]:.6f}, "
            f"bits {'equal' if equal else 'DIFFER'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
