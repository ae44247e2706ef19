"""Records of a run that are read from its folder, CSV export of metrics, and series of runs with different
seeds and splits.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hyrt.config import Config, load_settings
from hyrt.config.command_line import resumed_config
from hyrt.errors import (
    ConfigError,
    DataError,
    HyrtError,
    describe_error,
    join_names,
    one_line,
    system_error_text,
)
from hyrt.formatting import parse_int, pluralize
from hyrt.graph.graph import Graph
from hyrt.report.run_folder import SERIES, RunFolder, read_metrics
from hyrt.report.run_process import explain_write_errors
from hyrt.runtime.files import write_atomically

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Contents of a run folder; parts that the run has not reached are empty."""

    path: Path
    config: str
    """Text of config.yaml."""
    settings: Mapping[str, Any]
    """Settings as nested mappings, without validation, so that reports do not need the run's plug-ins."""
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    """Content of summary.json; `environment` is the content of env.json."""
    lines: Sequence[Line]
    """Lines of metrics.jsonl, in order."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def status(self) -> str:
        """Status `finished`, `early-stopped`, `interrupted` or `failed`; `not ended` without a summary."""
        return str(self.summary.get("status", "not ended"))

    @property
    def is_full_graph(self) -> bool:
        """Whether the run trained on the full graph in each step."""
        return bool(self.settings.get("sampler", {}).get("kind") == "full")

    @property
    def traces(self) -> list[Path]:
        """Trace files: one from the start of the run, and one for each time that the run was resumed."""
        return sorted(self.path.glob("trace*.json.gz"), key=_first_step)

    def label_device(self, name: str) -> str:
        """Return a device name with a label if its times are simulated: `fpga-csim:0 (simulated)`.

        Devices may also be written as in settings, such as `fpga-csim:0=3`.
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
    # Read the settings first, because errors in this file are the most helpful.
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
    """Return the number under nested keys of a line; NaN if it is missing or not finite."""
    value: Any = line
    for key in keys:
        value = value.get(key, {})
    return float(value) if isinstance(value, int | float) else math.nan


def median(lines: Sequence[Line], *keys: str) -> float:
    """Return the median of a number over steps, where a line counts once per step; 0 if it is missing."""
    return weighted_median(lines, [get_number(line, *keys) for line in lines])


def weighted_median(lines: Sequence[Line], values: Sequence[float]) -> float:
    """Return the median of a value per line, weighted by steps; 0 if no value is finite."""
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
    """Return the first step of a trace: 0 for trace.json.gz, and 40 for trace-from-40.json.gz."""
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
        raise DataError(f"{path} is not a JSON object: delete it to write the report without it")
    return content


Result = TypeVar("Result")

# Errors due to unexpected JSON types, such as text instead of a number.
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
    """Return `make_report(runs)`; if a damaged file makes this fail, raise DataError with the file."""
    try:
        return make_report(runs)
    except _RECORD_ERRORS as error:
        reason = f"damaged ({one_line(describe_error(error))})"
        for index, run in enumerate(runs):
            for name, empty in _FILES.items():
                others = [*runs[:index], replace(run, **empty), *runs[index + 1 :]]
                if _succeeds(others, make_report):
                    raise DataError(
                        f"{run.path / name} is {reason}: restore an intact copy, or move it away"
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
    better than all previous ones, otherwise 0), and `val_<metric>` and `test_<metric>` for each metric.
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


_COMPLETE = ("finished", "early-stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """Folder of a series of runs, with a run folder `split-<split>-seed-<seed>` for each run."""

    path: Path
    config: Config
    """Settings of all runs, with the first seed."""
    seeds: tuple[int, ...]
    splits: tuple[int, ...]

    @classmethod
    def create(
        cls, root: Path, name: str | None, config: Config, seeds: int | None, splits: Sequence[int]
    ) -> RunSeries:
        """Create the folder of a new series, as `RunFolder.create` does.

        `seeds` is the number of seeds, counted up from the seed of the settings, or None for only this seed.
        `splits` are the indices of the dataset's splits.
        """
        if config.seed + (seeds or 1) > 2**63:
            raise ConfigError(
                f"--seeds {seeds} with seed={config.seed} would exceed the largest seed, "
                f"{2**63 - 1}: lower seed"
            )
        folder = RunFolder.create(root, name, config)
        folder.checkpoints.rmdir()
        folder.metrics_path.unlink()
        numbers = range(config.seed, config.seed + (seeds or 1))
        series = cls(path=folder.path, config=config, seeds=tuple(numbers), splits=tuple(splits))
        series._write(SERIES, {"seeds": series.seeds, "splits": series.splits})
        return series

    @classmethod
    def open(cls, path: Path, settings_file: Path | None = None, overrides: Sequence[str] = ()) -> RunSeries:
        """Open the folder of a series, with changed settings if it is resumed, and write nothing.

        Raises DataError if series.json is damaged, and ConfigError if there is a `settings_file` or a setting
        in `overrides` must not change.
        """
        file = path / SERIES
        try:
            content = json.loads(file.read_bytes())
            seeds, splits = (tuple(int(number) for number in content[key]) for key in ("seeds", "splits"))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(f"{file} cannot be read ({error}): start a new series") from None
        config = resumed_config(RunFolder(path).config(), settings_file, overrides)
        return cls(path=path, config=config, seeds=seeds, splits=splits)

    def store_settings(self) -> None:
        """Store changed settings, such as more epochs. The caller must hold the lock of the series."""
        RunFolder(self.path).set_config(self.config)

    @property
    def runs(self) -> list[tuple[Path, Config]]:
        """Folder and settings of each run, in order of the splits."""
        return [
            (
                self.path / f"split-{split}-seed-{seed}",
                self.config.model_copy(
                    update={
                        "seed": seed,
                        "data": self.config.data.model_copy(update={"split": split}),
                    }
                ),
            )
            for split in self.splits
            for seed in self.seeds
        ]

    def open_or_create_run(self, path: Path, config: Config) -> tuple[RunFolder, bool]:
        """Open or create the folder of one run; return the folder, and whether it was created."""
        if (path / "config.yaml").is_file():
            return RunFolder.open(path), False
        # Remove the incomplete folder of a killed process.
        shutil.rmtree(path, ignore_errors=True)
        return RunFolder.create(path.parent, path.name, config), True

    def summarize(self) -> dict[str, Any]:
        """Write summary.json and return its contents.

        `status` is `finished` if all runs are complete, otherwise `unfinished`. `runs` has the folder, seed,
        split and metrics of each complete run. `metrics[split][name]` has the `mean`, the sample standard
        `deviation` (n - 1; None for one run), the `lowest` and `highest` value and the number of `runs`.
        """
        done = []
        for path, config in self.runs:
            with suppress(FileNotFoundError, ValueError):
                summary = json.loads((path / "summary.json").read_bytes())
                if summary["status"] in _COMPLETE:
                    known = {key: summary[key] for key in ("status", "best_epoch", "metrics")}
                    done.append({"run": path.name, "seed": config.seed, "split": config.data.split, **known})
        summary = {
            "status": "finished" if len(done) == len(self.runs) else "unfinished",
            "seeds": self.seeds,
            "splits": self.splits,
            "metrics": _aggregate_metrics([run["metrics"] for run in done]),
            "runs": done,
        }
        self._write("summary.json", summary)
        return summary

    def summarize_failure(self) -> None:
        """Write the summary after a failed run, or remove the folder if not even one run has started."""
        if not any(path.exists() for path, _ in self.runs):
            shutil.rmtree(self.path)
            return
        # If the disk is full, report the first error, not this one.
        with suppress(HyrtError):
            self.summarize()

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        with explain_write_errors(self.path / name):
            write_atomically(self.path / name, (json.dumps(content, indent=2) + "\n").encode())


def _aggregate_metrics(
    runs: Sequence[Mapping[str, Mapping[str, float | None]]],
) -> dict[str, dict[str, dict[str, float | None]]]:
    aggregated: dict[str, dict[str, dict[str, float | None]]] = {}
    for split in dict.fromkeys(split for run in runs for split in run):
        for name in dict.fromkeys(name for run in runs for name in run.get(split, {})):
            all_values = [run.get(split, {}).get(name) for run in runs]
            values = [value for value in all_values if value is not None]
            if values:
                aggregated.setdefault(split, {})[name] = {
                    "mean": statistics.fmean(values),
                    "deviation": statistics.stdev(values) if len(values) > 1 else None,
                    "lowest": min(values),
                    "highest": max(values),
                    "runs": len(values),
                }
    return aggregated


def parse_splits(text: str | None, config: Config, graph: Graph) -> list[int]:
    """Parse `--splits`: `all`, or numbers separated by commas. The default is the split of the settings.

    Raises ConfigError if the value is invalid, or a split does not exist.
    """
    if text is None:
        return [config.data.split]
    if config.train.predicts_links:
        raise ConfigError(
            f"--splits {text} has no effect with train.objective=links: use --seeds, which also vary the "
            "split of the links"
        )
    if config.data.split:
        raise ConfigError(
            f"--splits {text} cannot be combined with data.split={config.data.split}: remove data.split"
        )
    if text == "all":
        return list(range(graph.num_splits))
    named = [parse_int(word.strip()) for word in text.split(",")]
    splits = [number for number in named if number is not None]
    if len(splits) < len(named):
        raise ConfigError(f"--splits {text} must be all, or numbers such as 0,1,2")
    if not all(0 <= split < graph.num_splits for split in splits) or len(set(splits)) < len(splits):
        raise ConfigError(
            f"--splits {text} is invalid, because {graph.name} has "
            f"{pluralize(graph.num_splits, 'split')}, numbered from 0: use each number only "
            "once"
        )
    return splits
