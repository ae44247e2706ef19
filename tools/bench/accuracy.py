"""Test metrics of sampled or full-graph training on real graphs, averaged over seeds, compared with targets.

    python tools/bench/accuracy.py --data ../shared/data
    python tools/bench/accuracy.py --full-graph
    python tools/bench/accuracy.py --only cora,citeseer --seeds 5 --json

The test metric is that of the evaluation with the best validation metric. Evaluations use all neighbours. If
a graph has several splits, seed s trains on split s. The exit code is 1 if a mean misses its target.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from timed_runs import make_parser, prepared

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Row of the table: the metric of a dataset, its target in percent, and the settings."""

    metric: str
    target: float
    several_splits: bool
    settings: Mapping[str, Mapping[str, Any]]
    dataset: str = ""
    """Name of the file if it differs from the name of the row."""


PLANETOID: dict[str, dict[str, Any]] = {
    "model": {"kind": "gcn", "hidden": 64, "dropout": 0.5, "input_dropout": 0.5},
    "sampler": {"fanout": [25, 10]},
    "train": {"epochs": 200, "lr": 0.01, "weight_decay": 5e-4},
    "data": {"normalize": "row"},
    "evaluate": {"every": 2},
}
EXPERIMENTS: dict[str, Experiment] = {
    "cora": Experiment("accuracy", 80.5, False, PLANETOID),
    "citeseer": Experiment("accuracy", 69.0, False, PLANETOID),
    "amazon_photo": Experiment(
        "accuracy",
        94.5,
        False,
        {
            "model": {"kind": "graphsage", "hidden": 64, "dropout": 0.5, "norm": "layer"},
            "sampler": {"fanout": [10, 10]},
            "train": {"epochs": 20, "lr": 3e-3, "weight_decay": 0.0},
            "data": {"batch_size": 512, "normalize": "none"},
        },
    ),
    "coauthor_cs": Experiment(
        "accuracy",
        94.0,
        False,
        {
            "model": {"kind": "graphsage", "hidden": 64, "dropout": 0.5, "norm": "layer"},
            "sampler": {"fanout": [10, 10]},
            "train": {"epochs": 10, "lr": 3e-3, "weight_decay": 0.0},
            "data": {"batch_size": 512, "normalize": "none"},
        },
    ),
    "coauthor_physics": Experiment(
        "accuracy",
        96.0,
        False,
        {
            "model": {"kind": "gcn", "hidden": 64, "dropout": 0.5, "norm": "layer"},
            "sampler": {"fanout": [10, 10]},
            "train": {"epochs": 10, "lr": 3e-3, "weight_decay": 0.0},
            "data": {"normalize": "none"},
        },
    ),
    "tolokers": Experiment(
        "roc_auc",
        81.0,
        True,
        {
            "model": {"kind": "graphsage", "layers": 2, "hidden": 128, "dropout": 0.2, "norm": "layer"},
            "sampler": {"fanout": [25, 10]},
            "train": {"epochs": 120, "lr": 3e-3, "weight_decay": 0.0, "metric": "roc_auc"},
            "data": {"normalize": "standard"},
            "evaluate": {"every": 3},
        },
    ),
    "minesweeper": Experiment(
        "roc_auc",
        89.0,
        True,
        {
            "model": {
                "kind": "graphsage",
                "layers": 4,
                "hidden": 64,
                "dropout": 0.2,
                "norm": "layer",
                "residual": True,
            },
            "sampler": {"fanout": [8, 8, 8, 8]},
            "train": {"epochs": 40, "lr": 3e-3, "weight_decay": 0.0, "metric": "roc_auc"},
            "evaluate": {"every": 2},
        },
    ),
}
FULL: dict[str, dict[str, Any]] = {"sampler": {"kind": "full"}, "data": {"normalize": "auto"}}
FULL_GRAPHS: dict[str, Experiment] = {
    # Dropout of the input as published (Kipf and Welling 2017, 5.2; Velickovic et al. 2018, 3.3).
    "cora": Experiment("accuracy", 81.0, False, {**FULL, "model": {"kind": "gcn", "input_dropout": 0.5}}),
    "citeseer": Experiment("accuracy", 70.0, False, {**FULL, "model": {"kind": "gcn", "input_dropout": 0.5}}),
    "cora-gat": Experiment(
        "accuracy", 82.0, False, {**FULL, "model": {"kind": "gat", "input_dropout": 0.6}}, "cora"
    ),
    "amazon_photo": Experiment("accuracy", 94.5, False, {**FULL, "model": {"kind": "graphsage"}}),
    "coauthor_physics": Experiment("accuracy", 96.0, False, {**FULL, "model": {"kind": "gcn"}}),
}
"""Experiments with full-graph training. All other settings have their defaults."""


@dataclass(frozen=True, slots=True)
class AccuracyOutcome:
    """Result of one run: metric in percent, best epoch and times."""

    seed: int
    test: float
    validation: float
    best_epoch: int
    epochs: int
    seconds: float
    train_s: float


def train_once(
    source: Path, experiment: Experiment, seed: int, devices: Sequence[str] = ("cpu",)
) -> AccuracyOutcome:
    """Train on a dataset with a seed, which is also the number of the split if there are several."""
    import hyrt

    sections: dict[str, Any] = {name: dict(section) for name, section in experiment.settings.items()}
    if experiment.several_splits:
        sections.setdefault("data", {})["split"] = seed
    graph = hyrt.load(source, normalize=sections.get("data", {}).get("normalize", "none"))
    started = time.perf_counter()
    result = hyrt.train(graph, sections.pop("model"), seed=seed, devices=list(devices), **sections)
    return AccuracyOutcome(
        seed=seed,
        test=100 * result.metrics["test"][experiment.metric],
        validation=100 * result.metrics["val"][experiment.metric],
        best_epoch=result.summary["best_epoch"],
        epochs=result.summary["epochs"],
        seconds=time.perf_counter() - started,
        train_s=result.summary["trained_s"],
    )


def describe(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the settings in one line."""
    from hyrt.config import build_config

    config = build_config(settings)
    m, t = config.model, config.train
    parts = [
        f"{m.layers} layers of {m.hidden}",
        "LayerNorm" if m.norm == "layer" else "",
        "residual" if m.residual else "",
        f"dropout {m.dropout:g}" + (f" (input {m.input_dropout:g})" if m.input_dropout else ""),
        *(
            ["full graph"]
            if config.sampler.is_full_graph
            else [f"fan-out {','.join(map(str, config.fanouts))}", f"batch {config.data.batch_size}"]
        ),
        f"{t.optimizer} {t.lr:g}" + (f" decay {t.weight_decay:g}" if t.weight_decay else ""),
        f"features {config.data.normalize}-normalised" if config.data.normalize != "none" else "",
    ]
    return " · ".join(part for part in parts if part)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of .npz files"
    )
    parser.add_argument("--only", help="rows of the table, comma-separated; all by default")
    parser.add_argument("--full-graph", action="store_true", help="train on the full graph")
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of runs per dataset, with seeds 0, 1, ..."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per dataset")
    options = parser.parse_args(arguments)
    experiments = FULL_GRAPHS if options.full_graph else EXPERIMENTS
    names = list(experiments) if options.only is None else options.only.split(",")
    unknown = [name for name in names if name not in experiments]
    if unknown or options.seeds < 1:
        parser.error(
            f"unknown row {unknown[0]!r}: choose from {', '.join(experiments)}"
            if unknown
            else "--seeds must be at least 1"
        )

    prepared()
    if not options.json:
        print(
            "| dataset | model | metric | mean ± std | target | met | epochs | best epochs | s per run "
            "| of it training | settings |\n"
            "| --- | --- | --- | ---: | ---: | --- | ---: | --- | ---: | ---: | --- |"
        )
    missed = False
    for name in names:
        experiment = experiments[name]
        source = options.data / f"{experiment.dataset or name}.npz"
        runs = [train_once(source, experiment, seed) for seed in range(options.seeds)]
        mean = statistics.fmean(run.test for run in runs)
        passed = mean >= experiment.target
        missed |= not passed
        print(
            report_json(name, experiment, runs, mean, passed)
            if options.json
            else report_row(name, experiment, runs, mean, passed),
            flush=True,
        )
    return int(missed)


def report_json(
    name: str, experiment: Experiment, runs: list[AccuracyOutcome], mean: float, passed: bool
) -> str:
    return json.dumps(
        {
            "dataset": name,
            "metric": experiment.metric,
            "mean": mean,
            "target": experiment.target,
            "met": passed,
            "settings": experiment.settings,
            "runs": [asdict(run) for run in runs],
        }
    )


def report_row(
    name: str, experiment: Experiment, runs: list[AccuracyOutcome], mean: float, passed: bool
) -> str:
    spread = statistics.stdev(run.test for run in runs) if len(runs) > 1 else 0.0
    cells = [
        name,
        str(experiment.settings["model"]["kind"]),
        experiment.metric,
        f"{mean:.2f} ± {spread:.2f}",
        f"{experiment.target:.1f}",
        "yes" if passed else "**no**",
        str(runs[0].epochs),
        ", ".join(str(run.best_epoch) for run in runs),
        f"{statistics.fmean(run.seconds for run in runs):.1f}",
        f"{statistics.fmean(run.train_s for run in runs):.1f}",
        describe(experiment.settings),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
