"""Accuracy of `hyrt run --data X --model KIND` with default settings, compared with published accuracies.

    python tools/bench/first_runs.py --data ../shared/data
    python tools/bench/first_runs.py --only cora,citeseer --models gcn --seeds 1

The test metric is that of the evaluation with the best validation metric, averaged over seeds. If a graph has
several splits, seed s trains on split s. Published values are from Kipf and Welling 2017 and Velickovic et
al. 2018 (cora, citeseer), Luo et al. 2024 (amazon_photo, coauthor_cs: 3 to 6 and 1 to 2 layers, tuned) and
Platonov et al. 2023 (minesweeper: with residual connections, LayerNorm, a feed-forward block per layer and
512 units).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from accuracy import ROOT, Experiment, train_once
from timed_runs import make_parser, prepared

KINDS = ("gcn", "graphsage", "gat", "gin")
# Published accuracies in percent by dataset, in the order of KINDS; None if there is none.
PUBLISHED: dict[str, tuple[float | None, ...]] = {
    "cora": (81.5, None, 83.0, None),
    "citeseer": (70.3, None, 72.5, None),
    "amazon_photo": (96.10, 96.78, 96.60, None),
    "coauthor_cs": (96.17, 96.38, 96.21, None),
    "minesweeper": (89.75, 93.51, 92.01, None),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz files"
    )
    parser.add_argument("--only", default=",".join(PUBLISHED), help="datasets, comma-separated")
    parser.add_argument("--models", default=",".join(KINDS), help="model kinds, comma-separated")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs each, with seeds 0, 1, ...")
    options = parser.parse_args(arguments)
    prepared()
    print(
        "| dataset | model | metric | mean ± std | published | difference | epochs | best | s per run |\n"
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | ---: |"
    )
    for name in options.only.split(","):
        metric = "roc_auc" if name == "minesweeper" else "accuracy"
        for kind in options.models.split(","):
            published = PUBLISHED[name][KINDS.index(kind)]
            plain = Experiment(metric, published or 0.0, name == "minesweeper", {"model": {"kind": kind}})
            runs = [train_once(options.data / f"{name}.npz", plain, seed) for seed in range(options.seeds)]
            mean = statistics.fmean(run.test for run in runs)
            spread = statistics.stdev(run.test for run in runs) if len(runs) > 1 else 0.0
            cells = [
                *(name, kind, metric, f"{mean:.2f} ± {spread:.2f}"),
                *((f"{published:.2f}", f"{mean - published:+.2f}") if published else ("", "")),
                str(runs[0].epochs),
                ", ".join(str(run.best_epoch) for run in runs),
                f"{statistics.fmean(run.seconds for run in runs):.1f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
