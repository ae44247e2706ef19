"""Test accuracy of training on the CPU and the simulated FPGA together, compared with the CPU alone.

    python tools/bench/fpga_accuracy.py --data ../shared/data/cora.npz
    python tools/bench/fpga_accuracy.py --model graphsage --seeds 5 --json

The settings are those of cora in `tools/bench/accuracy.py`. The CPU and the FPGA each train on half of every
step. The accuracy is the test accuracy at the evaluation with the best validation accuracy. The exit code is
1 if the means differ by more than 0.5 points.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from accuracy import PLANETOID, ROOT, Experiment, train_once
from timed_runs import make_parser, prepared

MAX_DIFFERENCE = 0.5


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data" / "cora.npz", help="a .npz file"
    )
    parser.add_argument(
        "--model", default="gcn", choices=("gcn", "graphsage"), help="model that the kernels support"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of runs each, with seeds 0, 1, ...")
    parser.add_argument("--epochs", type=int, default=PLANETOID["train"]["epochs"])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if min(options.seeds, options.epochs) < 1:
        parser.error("--seeds and --epochs must be at least 1")

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
    passed = apart <= MAX_DIFFERENCE
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
                    "met": passed,
                }
            )
        )
    else:
        print(
            f"{options.data.stem}, {options.model}, {options.epochs} epochs, seeds 0 to {options.seeds - 1} "
            f"({time.perf_counter() - started:.0f} s)\n\n"
            "| trainers | test accuracy by seed | mean |\n| --- | --- | ---: |"
        )
        for name, accuracies in (("cpu", alone), ("cpu, fpga-csim (simulated)", both)):
            print(
                f"| {name} | {', '.join(f'{accuracy:.1f}' for accuracy in accuracies)} | "
                f"{statistics.fmean(accuracies):.2f} |"
            )
        print(f"\n{apart:.2f} points apart, {MAX_DIFFERENCE} are allowed: {'met' if passed else 'missed'}")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
