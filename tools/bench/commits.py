"""Two commits of hyrt on the same work, in turn: the throughput of the second over that of the first.

    python tools/bench/commits.py main .
    python tools/bench/commits.py ../before . --models graphsage gcn --rounds 5 --json commits.json

BEFORE and AFTER are source trees or commits, whose files are taken to a temporary folder. Each run is a
`hyrt run` in a process of its own with the packages and entry points of one of the two: GraphSAGE and GCN on
products-s, on the CPU, with a fixed number of threads in each stage and a policy that moves nothing. After a
run of each that is not counted, each round runs both, and the rounds take turns in which goes first. All that
is read of a run is in its run folder, so that the two may differ in everything else.

Printed for each model: ms a step, throughput, loss and test accuracy of both, the median of the rounds'
ratios of throughput (after over before) and the range of them, and whether all losses are equal in every bit.
Exits with 1 where a median is below `--least`.
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
from timed_runs import BATCH, FANOUT, LR, ChildFailed, append_records, parser


def arguments() -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("before", help="a source tree, or a commit of this repository")
    asked.add_argument("after", help="a source tree, or a commit of this repository")
    asked.add_argument("--models", nargs="+", default=["graphsage", "gcn"])
    asked.add_argument("--rounds", type=int, default=5, help="counted pairs of runs of each model")
    asked.add_argument("--epochs", type=int, default=3, help="counted epochs of a run, after one of warm-up")
    asked.add_argument("--source", default="synthetic:products-s", help="generated once, for all runs")
    asked.add_argument("--threads", type=int, default=1, help="threads that sample, and threads that load")
    asked.add_argument(
        "--full-graph", action="store_true", help="train on the whole graph; in tiles with fullgraph.chunks=4"
    )
    asked.add_argument("--set", nargs="*", default=[], help="further settings, key.path=value")
    asked.add_argument("--least", type=float, default=0.98, help="the least median ratio that passes")
    asked.add_argument("--json", type=Path, help="append each run and the ratios to this file")
    options = asked.parse_args()
    if min(options.rounds, options.epochs, options.threads) < 1:
        asked.error("--rounds, --epochs and --threads must be at least 1")
    return options


@dataclass(frozen=True, slots=True)
class CommitSide:
    """One of the two: its name in what is printed, and the environment that its hyrt runs in."""

    name: str
    environment: dict[str, str]

    def hyrt(self, words: Sequence[str | Path], folder: Path) -> None:
        """Run this side's `hyrt` to its end, in a folder that holds no package."""
        command = [sys.executable, "-m", "hyrt", *map(str, words)]
        done = subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ChildFailed(f"{self.name}: {' '.join(command)} failed:\n{done.stderr[-3000:]}")

    def check(self, tree: Path, folder: Path) -> None:
        """Make sure that this runs the tree's code: else a commit would be compared with itself."""
        done = subprocess.run(
            [sys.executable, "-c", "import hyrt; print(hyrt.__file__)"],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found = Path(done.stdout.strip()).resolve()
        if not found.is_relative_to(tree.resolve()):
            raise SystemExit(f"{self.name}: hyrt comes from {found}, not from {tree}")


@dataclass(frozen=True, slots=True)
class CommitRun:
    """What a run folder says of a run."""

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
            # The first epoch warms up.
            ms_per_step=1e3 * statistics.median(epoch["seconds"] / steps for epoch in epochs[1:]),
            mteps=statistics.median(epoch["mteps"] for epoch in epochs[1:]),
            loss=epochs[-1]["loss"],
            test_accuracy=summary["metrics"]["test"]["accuracy"],
            losses=tuple(loss for line in lines if line["event"] == "steps" for loss in line["losses"]),
            processor=f"{cpu['model']}, {len(cpu['affinity'])} CPUs",
        )


def train(side: CommitSide, model: str, data: Path, options: argparse.Namespace) -> CommitRun:
    """One run, in a folder that is removed."""
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
    """The counted runs of both sides, pair by pair."""
    for side in sides:
        # Page cache, compiled kernels.
        train(side, model, data, options)
    runs: list[list[CommitRun]] = [[] for _ in sides]
    for number in range(options.rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for i in order:
            run = train(sides[i], model, data, options)
            runs[i].append(run)
            print(
                f"round {number + 1}: {model}, {run.side}: {run.ms_per_step:.1f} ms a step, "
                f"{run.mteps:.2f} MTEPS, loss {run.loss:.6f}, test accuracy {run.test_accuracy:.4f}",
                flush=True,
            )
    return runs


def summary(model: str, before: Sequence[CommitRun], after: Sequence[CommitRun]) -> dict[str, Any]:
    """The ratios of the pairs, and what stands beside them."""
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
    for found in results:
        cells = [
            found["model"],
            f"{found['ratio']:.3f}",
            f"{min(found['ratios']):.3f} to {max(found['ratios']):.3f}",
            ", ".join(f"{ratio:.3f}" for ratio in found["ratios"]),
            *(
                " → ".join(format(value, form) for value in found[key])
                for key, form in (
                    ("ms_per_step", ".1f"),
                    ("mteps", ".2f"),
                    ("loss", ".6f"),
                    ("test_accuracy", ".4f"),
                )
            ),
            "yes" if found["equal_losses"] else "**no**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    options = arguments()
    results = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hyrt-commits-")))
        sides = []
        for name, given in (("before", options.before), ("after", options.after)):
            tree = stack.enter_context(source_tree(given))
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
    return int(any(found["ratio"] < options.least for found in results))


if __name__ == "__main__":
    sys.exit(main())
