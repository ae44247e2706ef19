"""Compare the throughput of two commits of hyrt on the same work, in alternating runs.

    python tools/bench/commits.py main .
    python tools/bench/commits.py ../before . --models graphsage gcn --rounds 5 --json commits.json

BEFORE and AFTER are source trees, or commits that are extracted to a temporary folder. Each run is a `hyrt
run` in a separate process with the packages and entry points of one source tree: GraphSAGE and GCN on
products-s, on the CPU, with a fixed number of threads per stage and a static policy. After a warm-up run of
each commit, every round runs both in alternating order. All results are read from run folders, so the two
commits may differ in everything else.

For each model, the tool prints ms per step, throughput, loss and test accuracy of both commits, the median
and range of the rounds' throughput ratios (after / before), and whether all losses are bit-equal. The exit
code is 1 if a median is below `--min-ratio`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from source_tree import environment_of, source_tree
from timed_runs import BATCH, FANOUT, LR, ChildFailed, append_records, make_parser


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("before", help="a source tree, or a commit of this repository")
    parser.add_argument("after", help="a source tree, or a commit of this repository")
    parser.add_argument("--models", nargs="+", default=["graphsage", "gcn"])
    parser.add_argument("--rounds", type=int, default=5, help="measured pairs of runs per model")
    parser.add_argument(
        "--epochs", type=int, default=3, help="measured epochs per run, after one warm-up epoch"
    )
    parser.add_argument("--source", default="synthetic:products-s", help="generated once, for all runs")
    parser.add_argument(
        "--threads", type=int, default=1, help="number of sampling threads, and of loading threads"
    )
    parser.add_argument(
        "--full-graph", action="store_true", help="train on the full graph; in tiles with fullgraph.chunks=4"
    )
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key.path=value")
    parser.add_argument("--min-ratio", type=float, default=0.98, help="minimum median ratio")
    parser.add_argument("--json", type=Path, help="append each run and the ratios to this file")
    options = parser.parse_args()
    if min(options.rounds, options.epochs, options.threads) < 1:
        parser.error("--rounds, --epochs and --threads must be at least 1")
    return options


@dataclass(frozen=True, slots=True)
class CommitSide:
    """One of the two commits, with its name in the output and the environment of its `hyrt`."""

    name: str
    environment: dict[str, str]

    def hyrt(self, arguments: Sequence[str | Path], folder: Path) -> None:
        """Run the `hyrt` of this commit in a folder without packages, and wait until it ends."""
        command = [sys.executable, "-m", "hyrt", *map(str, arguments)]
        result = subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise ChildFailed(f"{self.name}: {' '.join(command)} failed:\n{result.stderr[-3000:]}")

    def check(self, tree: Path, folder: Path) -> None:
        """Check that `hyrt` runs the tree's code: otherwise a commit would be compared with itself."""
        result = subprocess.run(
            [sys.executable, "-c", "import hyrt; print(hyrt.__file__)"],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        imported_from = Path(result.stdout.strip()).resolve()
        if not imported_from.is_relative_to(tree.resolve()):
            raise SystemExit(f"{self.name}: hyrt was imported from {imported_from}, not from {tree}")


@dataclass(frozen=True, slots=True)
class CommitRun:
    """Results of a run, which are read from its run folder."""

    side: str
    model: str
    ms_per_step: float
    mteps: float
    loss: float
    test_accuracy: float
    losses: tuple[float, ...]
    processor: str

    @staticmethod
    def read(side: str, model: str, folder: Path) -> CommitRun:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        epochs = [line for line in lines if line["event"] == "epoch_ended"]
        steps = epochs[0]["step"]
        summary = json.loads((folder / "summary.json").read_text())
        cpu = json.loads((folder / "env.json").read_text())["cpu"]
        return CommitRun(
            side=side,
            model=model,
            # Skip the first epoch, which is warm-up.
            ms_per_step=1e3 * statistics.median(epoch["seconds"] / steps for epoch in epochs[1:]),
            mteps=statistics.median(epoch["mteps"] for epoch in epochs[1:]),
            loss=epochs[-1]["loss"],
            test_accuracy=summary["metrics"]["test"]["accuracy"],
            losses=tuple(loss for line in lines if line["event"] == "steps" for loss in line["losses"]),
            processor=f"{cpu['model']}, {len(cpu['affinity'])} CPUs",
        )


def train(side: CommitSide, model: str, data: Path, options: argparse.Namespace) -> CommitRun:
    """Run `hyrt run` once in a folder that is deleted afterwards, and return the results."""
    with tempfile.TemporaryDirectory(prefix="hyrt-commits-run-") as name:
        folder = Path(name)
        words: list[str | Path] = [
            *("run", "--quiet", "--data", data, "--model", model, "--devices", "cpu:0"),
            *("--output", folder / "runs", "--name", "run"),
            *("model.hidden=256", "model.layers=2"),
            *(
                ["--full-graph"]
                if options.full_graph
                else [
                    *(f"sampler.fanout={FANOUT}", f"data.batch_size={BATCH}"),
                    *(f"runtime.sample_threads={options.threads}", f"runtime.load_threads={options.threads}"),
                ]
            ),
            *("model.dropout=0", "model.norm=none"),
            *(
                f"train.epochs={options.epochs + 1}",
                f"train.lr={LR}",
                "train.weight_decay=0",
                "evaluate.every=0",
            ),
            *("checkpoint.every_epochs=0", "balance.policy=static", "balance.predict=false"),
            *options.set,
        ]
        side.hyrt(words, folder)
        return CommitRun.read(side.name, model, folder / "runs" / "run")


def compare(
    sides: Sequence[CommitSide], model: str, data: Path, options: argparse.Namespace
) -> list[list[CommitRun]]:
    """Run both commits in pairs, and return the measured runs."""
    for side in sides:
        # Warm up the page cache and the kernel cache.
        train(side, model, data, options)
    runs: list[list[CommitRun]] = [[] for _ in sides]
    for number in range(options.rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for i in order:
            run = train(sides[i], model, data, options)
            runs[i].append(run)
            print(
                f"round {number + 1}: {model}, {run.side}: {run.ms_per_step:.1f} ms per step, "
                f"{run.mteps:.2f} MTEPS, loss {run.loss:.6f}, test accuracy {run.test_accuracy:.4f}",
                flush=True,
            )
    return runs


def summary(model: str, before: Sequence[CommitRun], after: Sequence[CommitRun]) -> dict[str, Any]:
    """Return the ratios of the pairs of runs, and the medians of the other values."""
    ratios = [b.mteps / a.mteps for a, b in zip(before, after, strict=True)]

    def medians(key: str) -> list[float]:
        return [statistics.median(getattr(run, key) for run in runs) for runs in (before, after)]

    return {
        "model": model,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        **{key: medians(key) for key in ("ms_per_step", "mteps", "loss", "test_accuracy")},
        "equal_losses": len({run.losses for run in (*before, *after)}) == 1,
        "processor": before[0].processor,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| model | ratio of throughputs, after / before: median | least to most | each pair | ms a step "
        "| MTEPS | loss | test accuracy | losses equal in every bit |",
        "| --- | ---: | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for summary_of_model in results:
        cells = [
            summary_of_model["model"],
            f"{summary_of_model['ratio']:.3f}",
            f"{min(summary_of_model['ratios']):.3f} to {max(summary_of_model['ratios']):.3f}",
            ", ".join(f"{ratio:.3f}" for ratio in summary_of_model["ratios"]),
            *(
                " → ".join(format(value, form) for value in summary_of_model[key])
                for key, form in (
                    ("ms_per_step", ".1f"),
                    ("mteps", ".2f"),
                    ("loss", ".6f"),
                    ("test_accuracy", ".4f"),
                )
            ),
            "yes" if summary_of_model["equal_losses"] else "**no**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    options = arguments()
    results = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hyrt-commits-")))
        sides = []
        for name, source in (("before", options.before), ("after", options.after)):
            tree = stack.enter_context(source_tree(source))
            sides.append(CommitSide(name, environment_of(tree, folder / name)))
            sides[-1].check(tree, folder)
        data = folder / "data"
        sides[0].hyrt(["data", "generate", options.source.removeprefix("synthetic:"), data], folder)
        for model in options.models:
            before, after = compare(sides, model, data, options)
            results.append(summary(model, before, after))
            records = [{k: v for k, v in asdict(run).items() if k != "losses"} for run in (*before, *after)]
            append_records(options.json, [*records, results[-1]])
    print(f"\n{options.before} → {options.after}, {options.source}: {results[0]['processor']}, ", end="")
    print(f"load average {os.getloadavg()[0]:.1f} at the end\n\n{table(results)}")
    return int(any(result["ratio"] < options.min_ratio for result in results))


if __name__ == "__main__":
    sys.exit(main())
