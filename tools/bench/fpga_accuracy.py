"""Test accuracy of training with the simulated FPGA trainer beside the CPU, and with the CPU alone.

    python tools/bench/fpga_accuracy.py --data ../shared/data/cora.npz
    python tools/bench/fpga_accuracy.py --model graphsage --seeds 5 --json

The settings are those of cora in `tools/bench/accuracy.py`. Every step is split in halves, and the accuracy
is that of the test vertices at the evaluation that is best on the validation vertices. Exits with 1 where the
means differ by more than 0.5 points.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from accuracy import PLANETOID, ROOT, Experiment, train_once
from timed_runs import parser, prepared

MOST_POINTS = 0.5


def main() -> int:
    asked = parser(__doc__)
    asked.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "cora.npz", help="a .npz file"
    )
    asked.add_argument(
        "--model", default="gcn", choices=("gcn", "graphsage"), help="what the trainer's kernels compute"
    )
    asked.add_argument("--seeds", type=int, default=3, help="runs of each, seeds 0, 1, ...")
    asked.add_argument("--epochs", type=int, default=PLANETOID["train"]["epochs"])
    asked.add_argument("--json", action="store_true", help="print one JSON object")
    options = asked.parse_args()
    if min(options.seeds, options.epochs) < 1:
        asked.error("--seeds and --epochs must be at least 1")

    prepared()
    settings = PLANETOID | {
        "model": PLANETOID["model"] | {"kind": options.model},
        "train": PLANETOID["train"] | {"epochs": options.epochs},
        "balance": {"policy": "static"},
    }
    experiment = Experiment("accuracy", 0.0, False, settings)
    started = time.perf_counter()
    alone, both = (
        [train_once(options.data, experiment, seed, devices).test for seed in range(options.seeds)]
        for devices in (("cpu",), ("cpu", "fpga-csim"))
    )
    apart = abs(statistics.fmean(both) - statistics.fmean(alone))
    met = apart <= MOST_POINTS
    if options.json:
        print(
            json.dumps(
                {
                    "dataset": options.data.stem,
                    "model": options.model,
                    "epochs": options.epochs,
                    "seeds": options.seeds,
                    "cpu": alone,
                    "both": both,
                    "apart": apart,
                    "met": met,
                }
            )
        )
    else:
        print(
            f"{options.data.stem}, {options.model}, {options.epochs} epochs, seeds 0 to {options.seeds - 1} "
            f"({time.perf_counter() - started:.0f} s)\n\n"
            "| trainers | test accuracy by seed | mean |\n| --- | --- | ---: |"
        )
        for name, found in (("cpu", alone), ("cpu, fpga-csim (simulated)", both)):
            print(
                f"| {name} | {', '.join(f'{each:.1f}' for each in found)} | {statistics.fmean(found):.2f} |"
            )
        print(f"\n{apart:.2f} points apart, {MOST_POINTS} are allowed: {'met' if met else 'missed'}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
