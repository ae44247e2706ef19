"""Runs with the resource manager from the worst and from the predicted split, compared with the best static
split.

The tool first measures static splits over several rounds. Then, runs with the default policy start from the
worst static split and from the predicted split. It prints ms per step of every static split, and for the
other runs the speed relative to the best static split in windows of ten steps.

    python tools/bench/rebalancing.py --source synthetic:products-s --table steer.md
"""

from __future__ import annotations

import argparse
import statistics

from timed_runs import BATCH, add_second_device, make_parser, prepared, settings, show, timed_run


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--source", default="synthetic:products-s")
    parser.add_argument("--model", default="graphsage")
    add_second_device(parser, steps=60)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.02, 0.2, 0.35, 0.5, 0.65, 0.98])
    return parser.parse_args()


def main() -> None:
    options = arguments()
    prepared()
    from hyrt.config import build_config
    from hyrt.graph import open_graph

    graph = open_graph(options.source)

    def step_times(split: list[int] | None, policy: str, steps: int) -> tuple[list[float], list[int]]:
        """Return the wall time of every step in seconds (means over groups of steps), and the last split."""
        config = build_config(
            settings(
                options.model,
                epochs=10 * steps,
                hidden=options.hidden,
                batch=options.batch,
                devices=["cpu:0", options.second],
                split=split,
                balance={"policy": policy, "predict": split is None},
            )
        )
        run = timed_run(config, graph, steps=steps)
        return run.step_s()[:steps], list(run.groups[-1].split.values())

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
    show("\n".join(lines), options.table)


if __name__ == "__main__":
    main()
