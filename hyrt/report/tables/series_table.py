"""Text output of a run series: mean and deviation of each metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyrt.report.terminal.progress_line import metric_name


def series_lines(summary: Mapping[str, Any], total: int) -> list[str]:
    """Return the final output of `hyrt run --seeds` as lines.

    Parameters
    ----------
    summary
        Result of `RunSeries.summarize`.
    total
        Number of runs, complete or not.
    """
    done = len(summary["runs"])
    seeds, splits = _numbers("seed", summary["seeds"]), _numbers("split", summary["splits"])
    lines = [f"{done} of {total} runs · {seeds} · {splits}"]
    if not done:
        return lines
    lines.append(f"{'':16} {'mean':>8}   {'deviation':>9} {'lowest':>8} {'highest':>8}")
    for split, metrics in summary["metrics"].items():
        for name, statistics in metrics.items():
            deviation = "-" if statistics["deviation"] is None else f"{statistics['deviation']:.4f}"
            lines.append(
                f"{f'{split} {metric_name(name)}':16} {statistics['mean']:8.4f} ± {deviation:>9} "
                f"{statistics['lowest']:8.4f} {statistics['highest']:8.4f}"
            )
    return lines


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{noun}s {first} to {last}"
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
