"""Records of a run as read from its folder, diagnosis of damaged records, and CSV export of metrics."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hyrt.config import load_settings
from hyrt.errors import DataError, describe_error, join_names, one_line, system_error_text
from hyrt.report.records.run_folder import RunFolder, read_metrics

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Contents of a run folder; parts that the run did not reach are empty."""

    path: Path
    config: str
    """Text of config.yaml."""
    settings: Mapping[str, Any]
    """Settings as nested mappings; not validated, so that a report does not need the run's plug-ins."""
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    """Contents of summary.json; `environment` has those of env.json."""
    lines: Sequence[Line]
    """Lines of metrics.jsonl, in order."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def status(self) -> str:
        """`finished`, `early-stopped`, `interrupted` or `failed`; `not ended` without a summary."""
        return str(self.summary.get("status", "not ended"))

    @property
    def is_full_graph(self) -> bool:
        """Whether the run trained on the full graph in each step."""
        return bool(self.settings.get("sampler", {}).get("kind") == "full")

    @property
    def traces(self) -> list[Path]:
        """Trace files: one from the start of the run, and one from each time it was resumed."""
        return sorted(self.path.glob("trace*.json.gz"), key=_first_step)

    def label_device(self, name: str) -> str:
        """Return a device name with a label if its times are simulated: `fpga-csim:0 (simulated)`.

        Also accepts devices as written in settings, such as `fpga-csim:0=3`.
        """
        kind, _, index = name.partition("=")[0].partition(":")
        simulated = [line["simulated"] for line in self.select("started")]
        if (ended := self.summary.get("simulated_devices")) is not None:
            simulated.append(ended)
        known_devices = {device for devices in simulated for device in devices}
        return f"{name} (simulated)" if f"{kind}:{index or 0}" in known_devices else name

    def select(self, event: str) -> list[Line]:
        """Return the lines of one event."""
        return [line for line in self.lines if line["event"] == event]


def read_run(path: Path) -> RunRecord:
    """Read a run folder.

    Raises CheckpointError if it is not a run folder, and DataError if a file is damaged.
    """
    folder = RunFolder.open(path, for_reading=True)
    lines = read_metrics(folder.metrics_path) if folder.metrics_path.exists() else []
    # Read the settings first: errors on this file are the most helpful.
    settings = load_settings(path / "config.yaml")
    return RunRecord(
        path=path,
        config=(path / "config.yaml").read_text(encoding="utf-8"),
        settings=settings,
        environment=_read_json(path / "env.json"),
        summary=_read_json(path / "summary.json"),
        lines=lines,
    )


def get_number(line: Line, *keys: str) -> float:
    """Return a number of a line under nested keys; NaN if it is missing or infinite."""
    value: Any = line
    for key in keys:
        value = value.get(key, {})
    return float(value) if isinstance(value, int | float) else math.nan


def median(lines: Sequence[Line], *keys: str) -> float:
    """Return the median of a number over steps (a line counts once for each of its steps); 0 if missing."""
    return weighted_median(lines, [get_number(line, *keys) for line in lines])


def weighted_median(lines: Sequence[Line], values: Sequence[float]) -> float:
    """Return the median of one value per line, weighted by steps; 0 without finite values."""
    weighted = sorted(
        (y, len(line["losses"])) for line, y in zip(lines, values, strict=True) if math.isfinite(y)
    )
    half = sum(count for _, count in weighted) / 2
    passed = 0
    for y, count in weighted:
        passed += count
        if passed >= half:
            return y
    return 0.0


def _first_step(trace: Path) -> int:
    """Return the first step of a trace: 0 for trace.json.gz, 40 for trace-from-40.json.gz."""
    number = trace.name.removesuffix(".json.gz").rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {system_error_text(error)}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): delete it to write the report without it"
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object: delete it to write the report without it")
    return content


Result = TypeVar("Result")

# Errors due to unexpected JSON types, for example text instead of a number.
_RECORD_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
_FILES: Mapping[str, dict[str, Any]] = {
    "summary.json": {"summary": {}},
    "env.json": {"environment": {}},
    "metrics.jsonl": {"lines": ()},
    "config.yaml": {"settings": {}},
}


def diagnose_damage(
    runs: Sequence[RunRecord], make_report: Callable[[Sequence[RunRecord]], Result]
) -> Result:
    """Return `make_report(runs)`; if it fails because of a damaged file, raise DataError with that file."""
    try:
        return make_report(runs)
    except _RECORD_ERRORS as error:
        reason = f"not what hyrt writes ({one_line(describe_error(error))})"
        for index, run in enumerate(runs):
            for name, empty in _FILES.items():
                others = [*runs[:index], replace(run, **empty), *runs[index + 1 :]]
                if _succeeds(others, make_report):
                    raise DataError(
                        f"{run.path / name}: {reason}: restore an intact copy, or move it away"
                    ) from error
        folders = join_names([str(run.path) for run in runs], "or")
        raise DataError(f"the records in {folders} are {reason}: restore intact copies") from error


def _succeeds(runs: Sequence[RunRecord], make_report: Callable[[Sequence[RunRecord]], object]) -> bool:
    try:
        make_report(runs)
    except _RECORD_ERRORS:
        return False
    return True


METRICS = "metrics.csv"
_LEADING_COLUMNS = ("run", "epoch", "step", "seconds", "loss", "lr", "mteps", "is_best")


def metrics_csv(runs: Sequence[RunRecord], names: Sequence[str]) -> str:
    """Format the metrics of runs as CSV text with a header and one row per completed epoch.

    The columns are `run` (from `names`), `epoch` (from 1), `step` (completed steps), `seconds` (of training),
    `loss` (mean over the targets), `lr` (of the last step), `mteps`, `is_best` (1 if the evaluation was
    better than all previous ones, otherwise 0), and `val_<metric>` and `test_<metric>` for all metrics.
    Unknown values are empty.
    """
    rows = [row for run, name in zip(runs, names, strict=True) for row in _epoch_rows(run, name)]
    columns = dict.fromkeys((*_LEADING_COLUMNS, *(column for row in rows for column in row)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _epoch_rows(run: RunRecord, name: str) -> list[dict[str, Any]]:
    rates = {line["step"]: line["lr"] for line in run.select("steps")}
    evaluations = {line["epoch"]: line for line in run.select("evaluated")}
    rows = []
    for line in run.select("epoch_ended"):
        row = {"run": name, "lr": rates.get(line["step"])}
        row |= {key: line[key] for key in ("epoch", "step", "seconds", "loss", "mteps")}
        evaluated = evaluations.get(line["epoch"])
        if evaluated is not None:
            row["is_best"] = int(evaluated["is_best"])
            for split, values in evaluated["metrics"].items():
                row |= {f"{split}_{metric}": value for metric, value in values.items()}
        rows.append(row)
    return rows
