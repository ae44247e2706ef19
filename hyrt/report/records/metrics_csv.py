"""Export of metrics to CSV, with one row per epoch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from hyrt.report.records.run_record import RunRecord

METRICS = "metrics.csv"
_LEADING_COLUMNS = ("run", "epoch", "step", "seconds", "loss", "lr", "mteps", "is_best")


def metrics_csv(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Format the metrics of runs as CSV text with a header.

    Parameters
    ----------
    runs
        Records of the runs. Each completed epoch has a row.
    names
        Names of the runs, for the column `run`.

    Returns
    -------
    CSV text with the columns `run`, `epoch` (from 1), `step` (completed steps of the run), `seconds` (of
    training),
    `loss` (mean over the targets), `lr` (of the last step), `mteps` and `is_best` (1 if the evaluation was
    better than
    all previous ones, otherwise 0), followed by `val_<metric>` and `test_<metric>` for all metrics. Unknown
    values are
    empty.
    """
    rows = [row for run, name in zip(runs, names, strict=True) for row in _epoch_rows(run, name)]
    columns = dict.fromkeys((*_LEADING_COLUMNS, *(column for row in rows for column in row)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _epoch_rows(run: RunRecord, name: str) -> list[dict[str, Any]]:
    rates = {line["step"]: line["lr"] for line in run.of("steps")}
    evaluations = {line["epoch"]: line for line in run.of("evaluated")}
    rows = []
    for line in run.of("epoch_ended"):
        row = {"run": name, "lr": rates.get(line["step"])}
        row |= {key: line[key] for key in ("epoch", "step", "seconds", "loss", "mteps")}
        evaluated = evaluations.get(line["epoch"])
        if evaluated is not None:
            row["is_best"] = int(evaluated["is_best"])
            for split, values in evaluated["metrics"].items():
                row |= {f"{split}_{metric}": value for metric, value in values.items()}
        rows.append(row)
    return rows
