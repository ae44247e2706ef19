"""What a run folder tells of its run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt.config import load_settings
from hyrt.errors import DataError, told_of_system
from hyrt.report.records.run_folder import RunFolder, read_metrics

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as its folder has it; parts that it did not reach are empty."""

    path: Path
    """The folder of the run."""
    config: str
    """The text of config.yaml."""
    settings: Mapping[str, Any]
    """The same as nested mappings. Not checked: a page needs no package that a kind of the run is of."""
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    """`environment` and `summary`: env.json and summary.json."""
    lines: Sequence[Line]
    """metrics.jsonl, in order."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def status(self) -> str:
        """`finished`, `early-stopped`, `interrupted`, `failed`, or `not ended` where there is no summary."""
        return str(self.summary.get("status", "not ended"))

    @property
    def is_of_whole_graphs(self) -> bool:
        """Whether each step trained on the whole graph."""
        return bool(self.settings.get("sampler", {}).get("kind") == "full")

    @property
    def traces(self) -> list[Path]:
        """Its traces: of the run from its start, and of each time it was resumed."""
        return sorted(self.path.glob("trace*.json.gz"), key=_first_step)

    def labelled(self, name: str) -> str:
        """A device's name, such as `fpga-csim:0 (simulated)`: its times are not those of a real clock.

        Settings ask for devices as `fpga-csim` and `fpga-csim:0=3`, which are labelled too.
        """
        kind, _, index = name.partition("=")[0].partition(":")
        told = [line["simulated"] for line in self.of("started")]
        if (ended := self.summary.get("simulated_devices")) is not None:
            told.append(ended)
        known = {device for devices in told for device in devices}
        return f"{name} (simulated)" if f"{kind}:{index or 0}" in known else name

    def of(self, event: str) -> list[Line]:
        """The lines of one event."""
        return [line for line in self.lines if line["event"] == event]


def read_run(path: Path) -> RunRecord:
    """Read a run folder.

    Raises
    ------
    CheckpointError
        If it is no run folder.
    DataError
        If one of its files is damaged, naming it.
    """
    folder = RunFolder.open(path, for_reading=True)
    lines = read_metrics(folder.metrics_path) if folder.metrics_path.exists() else []
    # First, as it says what is wrong with the file.
    settings = load_settings(path / "config.yaml")
    return RunRecord(
        path=path,
        config=(path / "config.yaml").read_text(encoding="utf-8"),
        settings=settings,
        environment=_json(path / "env.json"),
        summary=_json(path / "summary.json"),
        lines=lines,
    )


def number_of(line: Line, *keys: str) -> float:
    """A number of a line, under one key or nested ones; NaN where it is missing or was not finite."""
    value: Any = line
    for key in keys:
        value = value.get(key, {})
    return float(value) if isinstance(value, int | float) else math.nan


def median(lines: Sequence[Line], *keys: str) -> float:
    """The median over the steps of a number, of which each line tells of some; 0 where none has it."""
    return weighted_median(lines, [number_of(line, *keys) for line in lines])


def weighted_median(lines: Sequence[Line], values: Sequence[float]) -> float:
    """The median of one value a line, over the steps that the lines tell of; 0 where none is finite."""
    found = sorted(
        (y, len(line["losses"])) for line, y in zip(lines, values, strict=True) if math.isfinite(y)
    )
    half = sum(count for _, count in found) / 2
    passed = 0
    for y, count in found:
        passed += count
        if passed >= half:
            return y
    return 0.0


def _first_step(trace: Path) -> int:
    """0 of trace.json.gz, 40 of trace-from-40.json.gz."""
    number = trace.name.removesuffix(".json.gz").rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {told_of_system(error)}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({error}): delete it to write the report without it"
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object: delete it to write the report without it")
    return content
