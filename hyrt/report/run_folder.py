"""Run folder: config.yaml, env.json, metrics.jsonl, summary.json, checkpoints/."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Self

from numpy.typing import NDArray

from hyrt.config import Config, build_config, load_settings, to_yaml
from hyrt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    HyrtError,
    escape_undecodable,
    system_error_text,
)
from hyrt.graph.links.build_split import write_links
from hyrt.graph.links.link_split import LinkSplit
from hyrt.nn.models.model_kind import MODELS
from hyrt.objective.objective import AUTO_OBJECTIVE, OBJECTIVES
from hyrt.report.run_process import describe_environment, explain_write_errors
from hyrt.runtime.files import is_path_too_long, write_atomically
from hyrt.sampling.sampler_settings import SAMPLERS
from hyrt.telemetry.events import (
    AssignmentChanged,
    CheckpointWritten,
    EpochEnded,
    EvaluationFinished,
    Event,
    Notice,
    PredictionMade,
    RunEnded,
    RunStarted,
    StepMetrics,
)
from hyrt.training.open_graph import LINKS

_EVENT_NAMES = {
    RunStarted: "started",
    PredictionMade: "predicted",
    AssignmentChanged: "balanced",
    StepMetrics: "steps",
    EvaluationFinished: "evaluated",
    EpochEnded: "epoch_ended",
    CheckpointWritten: "checkpointed",
    Notice: "notice",
}

SERIES = "series.json"
"""File that marks the folder of a series of runs."""

# File systems allow 255 bytes, and temporary names are longer than the final name.
_MAX_NAME_BYTES = 200

# Names of the temporary files of `write_atomically`.
_TEMPORARY_FILE = re.compile(r"\..+\.\d+\.partial")


class RunFolder:
    """Folder of a run, which also writes its records; must be closed, or used as a context manager.

    Use `create` for a new run and `open` for an existing run; `handle` records the run's events.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._file: BinaryIO | None = None
        self._start_s = clock()
        self._has_created_root = False

    @staticmethod
    def remove_incomplete(path: Path) -> None:
        """Remove a run folder that a killed process has not created completely; keep any other folder."""
        if not path.is_dir():
            return
        run = RunFolder(path)
        initial_files = {run.checkpoints, run.metrics_path}
        others = [
            path_in_run
            for path_in_run in path.iterdir()
            if path_in_run not in initial_files and not _TEMPORARY_FILE.fullmatch(path_in_run.name)
        ]
        has_records = run.metrics_path.exists() and run.metrics_path.stat().st_size > 0
        if not others and not has_records and not any(run.checkpoints.glob("*")):
            shutil.rmtree(path)

    @classmethod
    def create(cls, root: Path, name: str | None, config: Config) -> RunFolder:
        """Create the folder of a new run, with config.yaml and env.json.

        The default name has the local time, model and dataset: 2026-11-21-101502-graphsage-community. If the
        folder exists, a number is appended, also in concurrent processes. Raises ConfigError if `name` is not
        a plain file name or `root` is not a folder, and HyrtError if the folder cannot be written.
        """
        name = default_name(config, datetime.now()) if name is None else name
        if not name or name != Path(name).name or name.startswith(".") or not name.isprintable():
            # Show line breaks as `\n` and bytes that are not UTF-8 as `\xff`.
            shown = repr(escape_undecodable(name)).replace("\\\\", "\\")
            raise ConfigError(
                f"run name {shown} is invalid: use a UTF-8 name without '/' or line breaks that "
                "does not start with '.'"
            )
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ConfigError(f"run name {name!r} is too long: use at most {_MAX_NAME_BYTES} bytes")
        _check_root(root)
        made_root = not root.exists()
        with explain_write_errors(root / name):
            root.mkdir(parents=True, exist_ok=True)
            path = _make_new_folder(root, name)
            try:
                run = cls(path)
                run.checkpoints.mkdir()
                run.metrics_path.touch()
                write_atomically(path / "config.yaml", to_yaml(config).encode())
                write_atomically(path / "env.json", _to_json_bytes(describe_environment()))
            except BaseException:
                shutil.rmtree(path)
                raise
        run._has_created_root = made_root
        return run

    @classmethod
    def open(cls, path: Path, *, for_reading: bool = False) -> RunFolder:
        """Open the folder of an existing run; with `for_reading`, checkpoints may be missing.

        Raises CheckpointError with the missing part if the folder is not a run folder.
        """
        if is_path_too_long(path):
            raise CheckpointError(
                f"{str(path)[:40]}... is too long for a path: use the folder of a run, such as runs/<name>"
            )
        if path.is_file():
            raise CheckpointError(f"{path} is a file: use the folder of a run, such as runs/<name>")
        if not path.is_dir():
            raise CheckpointError(f"{path} does not exist: use the folder of a run, such as runs/<name>")
        run = cls(path)
        if (path / SERIES).is_file():
            raise CheckpointError(f"{path} is a series of runs: use one of the run folders in it")
        if not (path / "config.yaml").is_file():
            raise CheckpointError(
                f"{path} is not the folder of a run, because config.yaml is missing: use one such "
                "as runs/<name>"
            )
        if not for_reading and not run.checkpoints.is_dir():
            raise CheckpointError(
                f"{path} is not a complete run folder, because checkpoints/ is missing: restore "
                "it, or start a new run"
            )
        return run

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def config(self) -> Config:
        """Read the settings with which the run was started.

        Raises ConfigError if they cannot be read, or name a plug-in that is no longer installed.
        """
        path = self.path / "config.yaml"
        settings = load_settings(path)
        if not settings:
            # Runs store all settings. An empty file would mean the defaults, and thus a different run.
            raise ConfigError(f"{path} contains no settings: restore an intact copy, or start a new run")
        for section, key, group in (
            ("sampler", "kind", SAMPLERS),
            ("model", "kind", MODELS),
            ("train", "objective", OBJECTIVES),
        ):
            settings_section = settings.get(section)
            name = settings_section.get(key) if isinstance(settings_section, Mapping) else None
            if isinstance(name, str) and name != AUTO_OBJECTIVE and name not in group.entries_by_name():
                raise ConfigError(
                    f"{path} sets {section}.{key}={name}, which belongs to a package that is no "
                    "longer installed: install the package again"
                )
        try:
            return build_config(settings, lenient=True)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @contextmanager
    def explain_moved_dataset(self, config: Config) -> Iterator[None]:
        """Replace a DataError in the block by advice on the new path if the run's dataset has been moved."""
        try:
            yield
        except DataError as error:
            source = config.data.source
            if not os.path.isabs(source) or os.path.lexists(source):
                raise
            raise DataError(
                f"the dataset {source} of {self.path} no longer exists: specify its new path with --data"
            ) from error

    def set_config(self, config: Config) -> None:
        """Replace the settings by the settings of a resumed run."""
        if config != self.config():
            path = self.path / "config.yaml"
            with explain_write_errors(path):
                write_atomically(path, to_yaml(config).encode())

    @property
    def links_path(self) -> Path:
        """File of the link split, for link prediction."""
        return self.path / LINKS

    def store_links(self, split: LinkSplit, vertex_ids: NDArray[Any] | None) -> None:
        """Write the link split for later commands, unless the file exists; raise HyrtError if that fails.

        `vertex_ids` are the original vertex ids of a reordered dataset.
        """
        if not self.links_path.is_file():
            with explain_write_errors(self.links_path):
                write_links(self.links_path, split, vertex_ids)

    def is_finished(self, epochs: int | None) -> bool:
        """Return whether the run has stopped early or completed `epochs` epochs (None: any number).

        Raises DataError if summary.json is damaged.
        """
        path = self.path / "summary.json"
        try:
            summary = json.loads(path.read_bytes())
            status = summary["status"]
            return bool(
                status == "early-stopped" or (status == "finished" and summary["epochs"] >= (epochs or 0))
            )
        except FileNotFoundError:
            return False
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error}): delete it to resume the run") from None

    def truncate_metrics(self, step: int) -> None:
        """Prepare metrics.jsonl for resuming a run: drop records after `step`, and an incomplete last line.

        `time_s` continues from the last line that is kept. Raises DataError if another line is damaged, and
        HyrtError if the file cannot be written.
        """
        self.close()
        end, last_s = 0, 0.0
        with explain_write_errors(self.metrics_path):
            if self.metrics_path.exists():
                for line, stop in _read_lines(self.metrics_path):
                    if line.get("step", 0) > step:
                        break
                    end, last_s = stop, line["time_s"]
                os.truncate(self.metrics_path, end)
        self._start_s = self._clock() - last_s

    def handle(self, event: Event) -> None:
        """Record an event as a line of metrics.jsonl, or as summary.json at the end of the run.

        Every line has `event` (started, predicted, balanced, steps, evaluated, epoch_ended, checkpointed,
        notice), `time_s` (seconds since the start of the run) and the fields of the event; non-finite numbers
        are null. Raises HyrtError if the file cannot be written, or has been removed or moved.
        """
        if isinstance(event, RunStarted) and not event.simulated:
            return
        if isinstance(event, RunEnded):
            path = self.path / "summary.json"
            with explain_write_errors(path):
                write_atomically(path, _to_json_bytes({"status": event.status, **event.summary}))
            return
        record = {"event": _EVENT_NAMES[type(event)], "time_s": round(self._clock() - self._start_s, 3)}
        if isinstance(event, RunStarted):
            record |= {"step": event.first_step, "simulated": event.simulated}
        else:
            record |= {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
        if isinstance(event, StepMetrics):
            del record["training_metrics"]
            if not event.chunks:
                del record["chunks"]
            if not event.cache_hits:
                del record["cache_hits"]
            if event.num_ranks == 1:
                del record["num_ranks"], record["slowest_rank"]
            record |= {f"train_{name}": value for name, value in event.training_metrics.items()}
        if isinstance(event, EvaluationFinished) and event.confusion is None:
            del record["confusion"]
        if isinstance(event, CheckpointWritten) and event.path.is_relative_to(self.path):
            record["path"] = event.path.relative_to(self.path)
        line = json.dumps(_to_json(record), allow_nan=False, separators=(",", ":")) + "\n"
        with explain_write_errors(self.metrics_path):
            if self._file is None:
                self._file = self.metrics_path.open("ab")
            self._file.write(line.encode())
            self._file.flush()
            self._check_not_moved(self._file)

    def _check_not_moved(self, file: BinaryIO) -> None:
        """Raise HyrtError if the file has been removed or moved, because further lines would be lost."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.metrics_path)):
                return
        raise HyrtError(
            f"{self.metrics_path} was removed or moved during the run. Do not move a run "
            "folder until its run has ended; to resume a moved folder, use hyrt run --resume"
        )

    def remove_leftovers(self) -> None:
        """Delete the temporary files of a killed process. The caller must hold the lock of the folder.

        Raises HyrtError if the folder cannot be written.
        """
        with explain_write_errors(self.path):
            for path in self.path.iterdir():
                if _TEMPORARY_FILE.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the folder, and also its parent folder if it was created for the run and is empty."""
        self.close()
        shutil.rmtree(self.path)
        if self._has_created_root:
            # Another process may have created a run in the parent folder.
            with suppress(OSError):
                self.path.parent.rmdir()

    def close(self) -> None:
        """Close metrics.jsonl. A later event opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            with explain_write_errors(self.metrics_path):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except HyrtError:
            # If the disk is full, report the first error, not this one.
            if kind is None:
                raise


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics.jsonl file, and ignore an incomplete last line.

    Raises DataError if the file cannot be read or another line is damaged.
    """
    try:
        return [line for line, _ in _read_lines(path)]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {system_error_text(error)}") from error


def default_name(config: Config, moment: datetime) -> str:
    """Return a run name with time, model and dataset: 2026-11-21-101502-graphsage-community."""
    return f"{moment:%Y-%m-%d-%H%M%S}-{config.model.kind}-{short_name(config.data.source)}"


def short_name(source: str) -> str:
    """Shorten a dataset's name or path to a distinctive part that is valid in file names."""
    kind, colon, parameters = source.partition(":")
    if colon and re.fullmatch(r"[A-Za-z][\w-]*", kind):
        first = re.split(r"[,?:=/]", parameters)[0]
        name = kind if "=" in parameters.split(",")[0] or not first else first
    else:
        name = Path(source).absolute().name.removesuffix(".npz")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "data"


def _check_root(root: Path) -> None:
    for path in (root, *root.absolute().parents):
        if path.exists():
            if path.is_dir():
                return
            raise ConfigError(
                f"{path} is a file: set --output to a folder, in which the run folder is created"
            )


def _make_new_folder(root: Path, name: str) -> Path:
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _read_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield each record of a metrics file with the byte offset at the end of its line."""
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                if not isinstance(record, dict) or not {"event", "time_s"} <= record.keys():
                    raise ValueError("not a record")
            except ValueError as error:
                # A power failure can leave zeros in the last block of a file, with or without a newline.
                if not file.read(1):
                    return
                raise DataError(
                    f"line {number} of {path} is damaged ({error}): delete the line or the file to continue"
                ) from None
            yield record, end


def _to_json(value: Any) -> Any:
    """Convert a value to types of strict JSON."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _to_json_bytes(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(_to_json(value), allow_nan=False, indent=2, ensure_ascii=False) + "\n"
    # Bytes of a command line that are not UTF-8 are lone surrogates, which are valid JSON as \udcXX.
    return text.encode("utf-8", "backslashreplace")
