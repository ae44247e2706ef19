"""The folder of one run: config.yaml, env.json, metrics.jsonl, summary.json, checkpoints/."""

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

from hyrt.config import Config, build_config, load_settings, to_yaml
from hyrt.errors import CheckpointError, ConfigError, DataError, HyrtError, readable, told_of_system
from hyrt.graph.links.link_file import write_links
from hyrt.graph.links.link_split import LinkSplit
from hyrt.machine.atomic_write import write_atomically
from hyrt.machine.path_length import is_too_long
from hyrt.nn.models.model_kind import MODELS
from hyrt.objective.registry import BY_LABELS, OBJECTIVES
from hyrt.observe.events import (
    Balanced,
    Checkpointed,
    EpochEnded,
    Evaluated,
    Event,
    Notice,
    Predicted,
    RunEnded,
    RunStarted,
    StepGroup,
)
from hyrt.report.records.environment import describe_environment
from hyrt.report.records.write_errors import explained
from hyrt.sampling.registry import SAMPLERS
from hyrt.training.given.link_graph import LINKS

_NAMES = {
    RunStarted: "started",
    Predicted: "predicted",
    Balanced: "balanced",
    StepGroup: "steps",
    Evaluated: "evaluated",
    EpochEnded: "epoch_ended",
    Checkpointed: "checkpointed",
    Notice: "notice",
}

SERIES = "series.json"
"""The file that tells the folder of a series of runs from that of a run."""

# What file systems take is 255 bytes, of which temporary names need some.
_LONGEST_NAME = 200

# As `write_atomically` names them.
_LEFTOVER = re.compile(r"\..+\.\d+\.partial")


class RunFolder:
    """One run's folder, and the writer of its records.

    Made by `create` for a new run and by `open` for one that exists; `handle` takes the run's events. Close
    it, or use it as a context manager.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._file: BinaryIO | None = None
        self._zero_s = clock()
        self._made_root = False

    @staticmethod
    def remove_unbegun(path: Path) -> None:
        """Remove a run folder whose process was killed while it made it; any other folder stays."""
        if not path.is_dir():
            return
        run = RunFolder(path)
        made_first = {run.checkpoints, run.metrics_path}
        others = [
            each for each in path.iterdir() if each not in made_first and not _LEFTOVER.fullmatch(each.name)
        ]
        has_records = run.metrics_path.exists() and run.metrics_path.stat().st_size > 0
        if not others and not has_records and not any(run.checkpoints.glob("*")):
            shutil.rmtree(path)

    @classmethod
    def create(cls, root: Path, name: str | None, config: Config) -> RunFolder:
        """Make the folder of a new run, with config.yaml and env.json.

        Parameters
        ----------
        root
            Holds the run folders; made when missing.
        name
            The name of the new folder; by default local time, model and dataset
            (2026-11-21-101502-graphsage-community). Where it is taken, a number is appended. Several
            processes may create at once.
        config
            The resolved settings.

        Raises
        ------
        ConfigError
            If the name is not a plain file name, or the root is no folder.
        HyrtError
            If the folder cannot be written.
        """
        name = default_name(config, datetime.now()) if name is None else name
        if not name or name != Path(name).name or name.startswith(".") or not name.isprintable():
            # Line breaks as `\\n`, and bytes that are no UTF-8 as `\\xff`.
            shown = repr(readable(name)).replace("\\\\", "\\")
            raise ConfigError(
                f"run name {shown}: give a name in UTF-8, without '/' and line breaks, "
                "that does not start with '.'"
            )
        if len(os.fsencode(name)) > _LONGEST_NAME:
            raise ConfigError(f"run name {name!r}: give a name of at most {_LONGEST_NAME} bytes")
        _check_root(root)
        made_root = not root.exists()
        with explained(root / name):
            root.mkdir(parents=True, exist_ok=True)
            path = _make_new_folder(root, name)
            try:
                run = cls(path)
                run.checkpoints.mkdir()
                run.metrics_path.touch()
                write_atomically(path / "config.yaml", to_yaml(config).encode())
                write_atomically(path / "env.json", _pretty(describe_environment()))
            except BaseException:
                shutil.rmtree(path)
                raise
        run._made_root = made_root
        return run

    @classmethod
    def open(cls, path: Path, *, for_reading: bool = False) -> RunFolder:
        """Open the folder of a run that exists.

        Parameters
        ----------
        path
            The folder.
        for_reading
            Its records alone are wanted: a folder whose checkpoints were deleted is a run as well.

        Raises
        ------
        CheckpointError
            If it is no run folder, saying what is missing.
        """
        if is_too_long(path):
            raise CheckpointError(
                f"{str(path)[:40]}...: this is too long for a path: give the folder of a run, such as "
                "runs/<name>"
            )
        if path.is_file():
            raise CheckpointError(f"{path}: is a file: give the folder of a run, such as runs/<name>")
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such folder: give the folder of a run, such as runs/<name>")
        run = cls(path)
        if (path / SERIES).is_file():
            raise CheckpointError(f"{path}: is a series of runs: give one of the run folders in it")
        if not (path / "config.yaml").is_file():
            raise CheckpointError(
                f"{path}: not the folder of a run: config.yaml is missing: give one such as runs/<name>"
            )
        if not for_reading and not run.checkpoints.is_dir():
            raise CheckpointError(
                f"{path}: not the folder of a run: checkpoints/ is missing: put it back, or start a new run"
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
        """The settings the run was started with.

        Raises
        ------
        ConfigError
            If they cannot be read, or a kind in them is of a package that is not installed any more.
        """
        path = self.path / "config.yaml"
        settings = load_settings(path)
        if not settings:
            # A run writes all of its settings. The defaults would be those of another run.
            raise ConfigError(
                f"{path}: has no settings: copy it again from where it is whole, or start a new run"
            )
        for section, key, group in (
            ("sampler", "kind", SAMPLERS),
            ("model", "kind", MODELS),
            ("train", "objective", OBJECTIVES),
        ):
            given = settings.get(section)
            name = given.get(key) if isinstance(given, Mapping) else None
            if isinstance(name, str) and name != BY_LABELS and name not in group.declared():
                raise ConfigError(
                    f"{path}: the run was made with {section}.{key}={name}, from a package that is no longer "
                    "installed: install it again"
                )
        try:
            return build_config(settings, lenient=True)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @contextmanager
    def dataset_named(self, config: Config) -> Iterator[None]:
        """Where the block fails as the run's dataset is no longer at its place, say how to give the new one.

        Raises
        ------
        DataError
            Naming the folder, the dataset and the option.
        """
        try:
            yield
        except DataError as error:
            source = config.data.source
            if not os.path.isabs(source) or os.path.lexists(source):
                raise
            raise DataError(
                f"{self.path}: its dataset {source} is not there any more: give its new place as --data"
            ) from error

    def set_config(self, config: Config) -> None:
        """Replace the settings, where a resumed run has others."""
        if config != self.config():
            path = self.path / "config.yaml"
            with explained(path):
                write_atomically(path, to_yaml(config).encode())

    @property
    def links_path(self) -> Path:
        """The file of the split of links, where these are predicted."""
        return self.path / LINKS

    def keep_links(self, split: LinkSplit) -> None:
        """Write the split of links, where it is not there yet: every later command takes it from here.

        Raises
        ------
        HyrtError
            If the file cannot be written.
        """
        if not self.links_path.is_file():
            with explained(self.links_path):
                write_links(self.links_path, split)

    def is_finished(self, epochs: int | None) -> bool:
        """Whether the run has ended by itself, and not before that many epochs (None for the default number)
        unless it stopped early.

        Raises
        ------
        DataError
            If summary.json is damaged.
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
            raise DataError(f"{path}: damaged ({error}): delete it to resume the run") from None

    def truncate_metrics(self, step: int) -> None:
        """Drop what metrics.jsonl tells from after `step`, and a torn last line, before a run resumes there.

        The file then goes on as if the run had not been interrupted; `time_s` continues from its last line.

        Parameters
        ----------
        step
            Steps done in the checkpoint the run resumes from.

        Raises
        ------
        DataError
            If a line before the last is damaged.
        HyrtError
            If the file cannot be written.
        """
        self.close()
        end, last_s = 0, 0.0
        with explained(self.metrics_path):
            if self.metrics_path.exists():
                for line, stop in _lines(self.metrics_path):
                    if line.get("step", 0) > step:
                        break
                    end, last_s = stop, line["time_s"]
                os.truncate(self.metrics_path, end)
        self._zero_s = self._clock() - last_s

    def handle(self, event: Event) -> None:
        """Record an event: a line of metrics.jsonl, or summary.json at the run's end.

        Every line has `event` (started, predicted, balanced, steps, evaluated, epoch_ended, checkpointed,
        notice), `time_s` since the run started, and the event's fields. A number that is not finite is null.

        Raises
        ------
        HyrtError
            If the file cannot be written, naming it and the reason; if it was removed or moved.
        """
        if isinstance(event, RunStarted) and not event.simulated:
            return
        if isinstance(event, RunEnded):
            path = self.path / "summary.json"
            with explained(path):
                write_atomically(path, _pretty({"status": event.status, **event.summary}))
            return
        record = {"event": _NAMES[type(event)], "time_s": round(self._clock() - self._zero_s, 3)}
        if isinstance(event, RunStarted):
            record |= {"step": event.first_step, "simulated": event.simulated}
        else:
            record |= {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
        if isinstance(event, StepGroup):
            del record["training_metrics"]
            if not event.chunks:
                del record["chunks"]
            if not event.cache_hits:
                del record["cache_hits"]
            if event.num_ranks == 1:
                del record["num_ranks"], record["slowest_rank"]
            record |= {f"train_{name}": value for name, value in event.training_metrics.items()}
        if isinstance(event, Evaluated) and event.confusion is None:
            del record["confusion"]
        if isinstance(event, Checkpointed) and event.path.is_relative_to(self.path):
            record["path"] = event.path.relative_to(self.path)
        line = json.dumps(_plain(record), allow_nan=False, separators=(",", ":")) + "\n"
        with explained(self.metrics_path):
            if self._file is None:
                self._file = self.metrics_path.open("ab")
            self._file.write(line.encode())
            self._file.flush()
            self._check_place(self._file)

    def _check_place(self, file: BinaryIO) -> None:
        """A file that was removed or moved takes lines, but nobody would find them, nor the checkpoints."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self.metrics_path)):
                return
        raise HyrtError(
            f"{self.metrics_path} was removed or moved during the run. Leave the folder of a run in "
            "its place until it has ended; resume a folder that was moved with hyrt run --resume"
        )

    def remove_leftovers(self) -> None:
        """Delete temporary files of a process that was killed; for who holds the folder's lock.

        Raises
        ------
        HyrtError
            If the folder cannot be written.
        """
        with explained(self.path):
            for path in self.path.iterdir():
                if _LEFTOVER.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the folder, and the one that holds it where that was made for it and is empty again."""
        self.close()
        shutil.rmtree(self.path)
        if self._made_root:
            # Another run may have come meanwhile.
            with suppress(OSError):
                self.path.parent.rmdir()

    def close(self) -> None:
        """Close metrics.jsonl; a later event opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            with explained(self.metrics_path):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except HyrtError:
            # Of a disk that is full the first error tells, and has the notes.
            if kind is None:
                raise


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics.jsonl; a last line torn by a kill is left out.

    Raises
    ------
    DataError
        If the file cannot be read or another line is damaged, naming it.
    """
    try:
        return [line for line, _ in _lines(path)]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {told_of_system(error)}") from error


def default_name(config: Config, moment: datetime) -> str:
    """Name a run by time, model and dataset: 2026-11-21-101502-graphsage-community."""
    return f"{moment:%Y-%m-%d-%H%M%S}-{config.model.kind}-{short_name(config.data.source)}"


def short_name(source: str) -> str:
    """Shorten a dataset's name or path to what tells it from others, safe in a file name."""
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
                f"{path}: this is a file: give a folder as --output, in which the run folder is made"
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


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record of a metrics file, and the offset of the byte after its line."""
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
                # A power loss can leave the last block of a file as zeros, with or without its end of line.
                if not file.read(1):
                    return
                raise DataError(
                    f"{path}: line {number} is damaged ({error}): delete the line or the file to continue"
                ) from None
            yield record, end


def _plain(value: Any) -> Any:
    """Reduce a value to what strict JSON holds."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _pretty(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(_plain(value), allow_nan=False, indent=2, ensure_ascii=False) + "\n"
    # Undecodable bytes of a command line are lone surrogates: as \\udcXX they are valid JSON again.
    return text.encode("utf-8", "backslashreplace")
