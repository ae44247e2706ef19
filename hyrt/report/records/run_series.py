"""Run series: runs with the same settings but different seeds and splits, and their mean metrics."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt.config import Config
from hyrt.config.command_line import resumed_config
from hyrt.errors import ConfigError, DataError, HyrtError
from hyrt.formatting import parse_int, pluralize
from hyrt.graph.graph import Graph
from hyrt.report.records.run_folder import SERIES, RunFolder
from hyrt.report.records.run_process import explain_write_errors
from hyrt.runtime.files import write_atomically

_COMPLETE = ("finished", "early-stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """Folder of a run series, with a run folder `split-<split>-seed-<seed>` per run."""

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

        `seeds`: number of seeds, counting up from the seed of the settings (None: only that seed). `splits`:
        numbers of the dataset's splits.
        """
        if config.seed + (seeds or 1) > 2**63:
            raise ConfigError(
                f"--seeds {seeds}: seed={config.seed} leaves too few up to {2**63 - 1}: lower it"
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
        """Open the folder of a series, with changed settings if it is resumed; nothing is written.

        A `settings_file` is rejected. Raises DataError if series.json is damaged, and ConfigError if one of
        `overrides` may not change.
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
        """Store changed settings, such as more epochs; the caller must hold the lock of the series."""
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
        split and metrics of each complete run. `metrics[split][name]` has the `mean`, the sample `deviation`
        (n - 1; None for one run), the `lowest` and `highest` value and the number of `runs`.
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
        """Write the summary after a failed run; remove the folder if not even the first run could start."""
        if not any(path.exists() for path, _ in self.runs):
            shutil.rmtree(self.path)
            return
        # If the disk is full, the first error is the one to report.
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
    """Parse `--splits`: `all`, or numbers separated by commas; default: the split of the settings.

    Raises ConfigError if the value is neither, or a split does not exist.
    """
    if text is None:
        return [config.data.split]
    if config.data.split:
        raise ConfigError(f"--splits {text} chooses the splits: omit data.split={config.data.split}")
    if text == "all":
        return list(range(graph.num_splits))
    named = [parse_int(word.strip()) for word in text.split(",")]
    splits = [number for number in named if number is not None]
    if len(splits) < len(named):
        raise ConfigError(f"--splits {text}: give all, or numbers such as 0,1,2")
    if not all(0 <= split < graph.num_splits for split in splits) or len(set(splits)) < len(splits):
        raise ConfigError(
            f"--splits {text}: {graph.name} has {pluralize(graph.num_splits, 'split')}, numbered from 0: "
            "give each number once"
        )
    return splits
