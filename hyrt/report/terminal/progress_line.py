"""Formatting of the progress display's lines for a given width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyrt.observe.events import EpochEnded, Evaluated, Predicted, StepGroup
from hyrt.quantities import brief_duration, brief_milliseconds, duration_beside, size, three_digits

_METRIC_NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "roc_auc": "ROC AUC",
    "mean_average_precision": "mean AP",
    "average_precision": "AP",
    "mrr": "MRR",
    "mse": "MSE",
    "mae": "MAE",
    "r2": "R2",
}
# Errors have the unit of the labels, or its square: no fixed number of decimals is suitable.
_UNBOUNDED_METRICS = ("mse", "mae")


def step_line(group: StepGroup, epochs: int, width: int | None) -> str:
    """Format the position of the run, its speed and its bottleneck as one line.

    If the line is too long, these parts are omitted in this order: the bar, memory, stages under 2 % of the
    longest
    stage, all stages except the bottleneck, all stages, speed.

    Parameters
    ----------
    group
        The newest steps.
    epochs
        Number of epochs of the run.
    width
        Available columns; None for no limit and no bar.
    """
    stages, memory = stages_text(group.stage_s, group.bottleneck), process_text(group)
    if width is not None and (line := with_bar(group, epochs, [stages, memory], width)):
        return line
    return _fit_line(head(group, epochs), group.stage_s, group.bottleneck, memory, width)


def head(group: StepGroup, epochs: int) -> list[str]:
    """Return the position of the run, its loss and its speed."""
    position = [f"epoch {group.epoch}/{epochs}", f"{group.steps_done}/{group.steps_per_epoch}"]
    return [*position, f"loss {three_digits(group.loss)}", f"{three_digits(group.mteps)} MTEPS"]


def with_bar(group: StepGroup, epochs: int, more: Sequence[str], width: int) -> str:
    """Format the position of the run with a bar of the epoch's steps; empty if the bar does not fit."""
    epoch, count, *rates = head(group, epochs)
    columns = min(24, width - len("  ".join([epoch, count, *rates, *more])))
    if columns < 8:
        return ""
    share = group.steps_done / group.steps_per_epoch if group.steps_per_epoch else 1.0
    return "  ".join([f"{epoch} {bar(share, columns)} {count}", *rates, *more])


def epoch_line(
    ended: EpochEnded,
    epochs: int,
    stage_s: Mapping[str, float],
    bottleneck: str,
    memory_bytes: int,
    width: int | None,
) -> str:
    """Format an epoch's time, loss, speed, and mean stage times per step as one line.

    If the line is too long, parts are omitted as in `step_line`.
    """
    parts = [
        f"epoch {ended.epoch}/{epochs}",
        brief_duration(ended.seconds),
        f"loss {three_digits(ended.loss)}",
        f"{three_digits(ended.mteps)} MTEPS",
    ]
    return _fit_line(parts, stage_s, bottleneck, memory_text(memory_bytes), width)


def _fit_line(
    start: list[str], stage_s: Mapping[str, float], bottleneck: str, memory: str, width: int | None
) -> str:
    longest = max(stage_s.values(), default=0.0)
    notable = {
        name: time_s for name, time_s in stage_s.items() if time_s > 0.02 * longest or name == bottleneck
    }
    bound = {name: time_s for name, time_s in stage_s.items() if name == bottleneck}
    all_stages = stages_text(stage_s, bottleneck)
    candidates = [[*start, all_stages, memory], [*start, all_stages]]
    candidates += [[*start, stages_text(stages, bottleneck)] for stages in (notable, bound)]
    candidates += [start, start[:-1]]
    for parts in candidates:
        line = "  ".join(part for part in parts if part)
        if width is None or len(line) <= width:
            return line
    return line[:width]


def evaluation_line(evaluated: Evaluated) -> str:
    """Format the metric that selects the best epoch, for every split."""
    scores = scores_text(evaluated.metrics, evaluated.chosen_by)
    if not scores:
        return "nothing to evaluate: the data has no validation and no test vertices"
    # Without validation targets, the last evaluation always counts as the best.
    is_best = evaluated.is_best and "val" in evaluated.metrics
    return f"{scores}{'  best so far' if is_best else ''}  ({brief_duration(evaluated.seconds)})"


def prediction_line(predicted: Predicted) -> str:
    """Format a prediction: `3.4 s per epoch ± 0.4, bottleneck propagate`."""
    error_text = ""
    if predicted.relative_error is not None:
        error_s = predicted.epoch_s * predicted.relative_error
        error_text = f" ± {duration_beside(error_s, predicted.epoch_s)}"
    return f"{brief_duration(predicted.epoch_s)} per epoch{error_text}, bottleneck {predicted.bottleneck}"


def metric_name(metric: str) -> str:
    """Return the display name of a metric such as `macro_f1`."""
    return _METRIC_NAMES.get(metric, metric)


def scores_text(metrics: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """Format scores: `val accuracy 0.913 · test accuracy 0.908`."""
    name = metric_name(metric)

    def shown(value: float) -> str:
        return three_digits(value) if metric in _UNBOUNDED_METRICS else f"{value:.3f}"

    return " · ".join(
        f"{split} {name} {shown(values[metric])}" for split, values in metrics.items() if metric in values
    )


def stages_text(stage_s: Mapping[str, float], bottleneck: str) -> str:
    """Format stage times: `sample 6.1 ms  load 9.0  propagate 41 ◀`; the bottleneck is marked."""
    parts: list[str] = []
    for name, time_s in stage_s.items():
        unit = "" if parts else " ms"
        parts.append(f"{name} {brief_milliseconds(time_s)}{unit}{' ◀' if name == bottleneck else ''}")
    return "  ".join(parts)


def memory_text(memory_bytes: int) -> str:
    """Format memory: `mem 700 MiB`; empty if unknown."""
    return f"mem {size(memory_bytes)}" if memory_bytes else ""


def process_text(group: StepGroup) -> str:
    """Format memory: `mem 700 MiB`; with several ranks also `rank 2 of 0 to 3 is slowest`."""
    memory = memory_text(group.memory_bytes)
    if group.slowest_rank is None:
        return memory
    ranks = f"rank {group.slowest_rank} of 0 to {group.num_ranks - 1} is slowest"
    return f"{memory}  {ranks}" if memory else ranks


def bar(share: float, columns: int) -> str:
    """Draw a bar that is filled from the left: ━━━━╌╌╌╌."""
    filled = int(min(max(share, 0.0), 1.0) * columns)
    return "━" * filled + "╌" * (columns - filled)
