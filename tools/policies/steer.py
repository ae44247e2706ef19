"""Real runs with the resource manager: from the worst split, and from the prediction, against the best static split.

Static splits are swept first, in turn over the rounds. Then runs with the default policy start from the worst of them and from the
prediction. Printed: ms a step of every static split; for the steered runs the speed over the best static one's in windows of ten steps.

    python tools/policies/steer.py --source synthetic:products-s --table steer.md
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from hyrt.process import prepare_process


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", default="synthetic:products-s")
    parser.add_argument("--second", default="opencl:0")
    parser.add_argument("--model", default="graphsage")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.02, 0.2, 0.35, 0.5, 0.65, 0.98])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--table", type=Path)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    prepare_process()
    from hyrt.config import build_config
    from hyrt.graph.source import open_graph
    from hyrt.runtime.events import StepGroup
    from hyrt.runtime.train import Training

    graph = open_graph(options.source)

    def step_times(split: list[int] | None, policy: str, steps: int) -> tuple[list[float], list[int]]:
        """Wall seconds of every step (means over groups), and the last split."""
        groups: list[StepGroup] = []
        config = build_config(
            {
                "model": {"kind": options.model, "hidden": options.hidden},
                "sampler": {"fanout": [25, 10]},
                "data": {"batch_size": options.batch},
                "train": {"epochs": 10 * steps},
                "evaluate": {"every": 0},
                "devices": ["cpu:0", options.second],
                "split": split,
                "balance": {"policy": policy, "predict": split is None},
            }
        )
        Training(
            config,
            graph,
            emit=lambda event: groups.append(event) if isinstance(event, StepGroup) else None,
            should_stop=lambda: bool(groups) and groups[-1].step >= steps,
        ).run()
        times = [group.step_s for group in groups for _ in group.losses]
        return times[:steps], list(groups[-1].split.values())

    splits = [
        [n, options.batch - n] for n in (max(1, round(share * options.batch)) for share in options.shares)
    ]
    seen: list[list[float]] = [[] for _ in splits]
    for _ in range(options.rounds):
        for times, split in zip(seen, splits, strict=True):
            times.append(statistics.median(step_times(split, "static", options.steps)[0][10:]))
    medians = [statistics.median(times) for times in seen]
    best, worst = min(medians), max(medians)
    lines = ["| static split (cpu, second) | ms a step |", "|---|---:|"]
    lines += [f"| {split} | {1e3 * each:.1f} |" for split, each in zip(splits, medians, strict=True)]
    lines += [
        "",
        "| start | speed over the best static split's, in windows of ten steps | last split |",
        "|---|---|---|",
    ]
    for name, start in (
        ("worst static split", splits[medians.index(worst)]),
        ("the prediction", None),
    ):
        for _ in range(options.rounds):
            times, last = step_times(start, "model", 2 * options.steps)
            windows = [best / statistics.fmean(times[i : i + 10]) for i in range(0, len(times) - 9, 10)]
            lines.append(f"| {name} | {' '.join(f'{speed:.2f}' for speed in windows)} | {last} |")
    text = "\n".join(lines)
    print(text)
    if options.table:
        options.table.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
