"""The text of a series of runs: mean and deviation of each metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hyrt.report.terminal.progress_line import metric_name


def series_lines(summary: Mapping[str, Any], total: int) -> list[str]:
    """What `hyrt run --seeds` prints in the end.

    Parameters
    ----------
    summary
        What `RunSeries.summarize` returned.
    total
        The number of runs, done or not.
    """
    done = len(summary["runs"])
    seeds, splits = _numbers("seed", summary["seeds"]), _numbers("split", summary["splits"])
    lines = [f"{done} of {total} runs · {seeds} · {splits}"]
    if not done:
        return lines
    lines.append(f"{'':16} {'mean':>8}   {'deviation':>9} {'lowest':>8} {'highest':>8}")
    for split, metrics in summary["metrics"].items():
        for name, found in metrics.items():
            spread = "-" if found["deviation"] is None else f"{found['deviation']:.4f}"
            lines.append(
                f"{f'{split} {metric_name(name)}':16} {found['mean']:8.4f} ± {spread:>9} "
                f"{found['lowest']:8.4f} {found['highest']:8.4f}"
            )
    return lines


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{noun}s {first} to {last}"
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
