"""The metrics of runs as CSV, one row for each epoch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from hyrt.report.records.run_record import RunRecord

METRICS = "metrics.csv"
_FIRST = ("run", "epoch", "step", "seconds", "loss", "lr", "mteps", "is_best")


def metrics_csv(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """The text of the file, with a head.

    Parameters
    ----------
    runs
        What their folders tell. A run has a row for each epoch whose steps are done.
    names
        The names of the runs, for the column `run`.

    Returns
    -------
    The columns `run`, `epoch` (from 1), `step` (steps done in the run), `seconds` (of training), `loss`
    (mean over the targets), `lr` (of its last step), `mteps` and `is_best` (1 where the evaluation was better
    than all before, 0 elsewhere), then `val_<metric>` and `test_<metric>` of all metrics that occur. What is
    not known is empty.
    """
    rows = [row for run, name in zip(runs, names, strict=True) for row in _rows(run, name)]
    columns = dict.fromkeys((*_FIRST, *(column for row in rows for column in row)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(run: RunRecord, name: str) -> list[dict[str, Any]]:
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
