"""Checkpoint files (.safetensors), which are written atomically and verified when read.

A checkpoint of step 412 is `step-00000412.<sha256>.safetensors`, where <sha256> is the first 32 hex digits of
the SHA-256 of the file's bytes. A single rename thus publishes contents and checksum together.

Any safetensors reader can read the file. Tensors are entries that are named by their path in the state;
everything else is one JSON text in the metadata entry `hyrt`. Nothing is pickled, so reading a checkpoint
executes no code.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors

from hyrt.errors import CheckpointError, CheckpointWriteError, system_error_text
from hyrt.runtime.files import sync_folder, write_atomically

_FORMAT = 1
_NAME = re.compile(r"step-(?P<step>\d{8,})\.(?P<checksum>[0-9a-f]{32})\.safetensors")
_TEMPORARY_NAME = re.compile(rf"\.{_NAME.pattern}\.\d+\.partial")
_DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Contents of one checkpoint file."""

    step: int
    """Number of finished steps of the whole run."""
    path: Path
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    *,
    keep: int,
    write: Callable[[Path, bytes], None] = write_atomically,
) -> Path:
    """Write a checkpoint and return its path; delete all but the newest `keep` (at least 1) checkpoints.

    Files of later steps, which exist if a run has resumed from a checkpoint before a damaged one, are neither
    counted nor deleted. The state consists of nested lists, tuples and dicts (keys str or int) of tensors,
    numbers, strings, bools and None. Loading restores an equal state: types, dtypes, shapes, infinities and
    the order of keys.

    Raises CheckpointWriteError if the file cannot be written; earlier checkpoints are then unchanged, and no
    temporary file is left. Raises TypeError for any other type, with the path of the entry.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    data = _to_bytes(step, state)
    checksum = hashlib.sha256(data).hexdigest()[:32]
    path = folder / f"step-{step:08d}.{checksum}.safetensors"
    try:
        _make_folder(folder)
        _remove_leftovers(folder)
        write(path, data)
    except OSError as error:
        there, then = ("Earlier checkpoints are untouched", "resume the run")
        if not any(folder.glob("step-*.safetensors")):
            there, then = ("There is no earlier one", "restart the run")
        raise CheckpointWriteError(
            f"{folder}: the checkpoint of step {step} ({len(data):,} bytes) could not be written: "
            f"{error.strerror or error}. {there}. Free space or make the folder writable, then {then}."
        ) from error
    _remove_superfluous(folder, step, path, keep)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint and verify its checksum.

    Raises CheckpointError, which states the problem, if the file is missing, unreadable, damaged or not a
    checkpoint.
    """
    if _NAME.fullmatch(path.name) is None:
        raise CheckpointError(
            f"{path} is not the name of a checkpoint: use best, newest, or a file in a run's checkpoints/ "
            "folder with its original name, step-<number>.<checksum>.safetensors"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {system_error_text(error)}") from error
    return checkpoint_of(path, data)


def checkpoint_of(path: Path, data: bytes) -> Checkpoint:
    """Parse a checkpoint from the bytes of its file, which may be on another machine.

    `path` must end in the file name under which the checkpoint was written. Raises CheckpointError if the
    data is damaged or not a checkpoint.
    """
    match = _NAME.fullmatch(path.name)
    assert match is not None
    checksum = hashlib.sha256(data).hexdigest()[:32]
    if checksum != match["checksum"]:
        raise CheckpointError(
            f"{path} is damaged, because its {len(data):,} bytes have checksum {checksum}, not the one in "
            "its name: copy it again from an intact source"
        )
    step, state = _from_bytes(path, data)
    if step != int(match["step"]):
        raise CheckpointError(f"{path} contains step {step}, not the step in its name: rename it back")
    return Checkpoint(step, path, state)


def has_checkpoint(folder: Path) -> bool:
    """Return whether the folder has a file with the name of a checkpoint, valid or not."""
    return bool(_newest_first(folder))


def load_newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint:
    """Read the newest valid checkpoint, and call `warn` for every damaged checkpoint that is skipped.

    Raises CheckpointError if there is no valid checkpoint.
    """
    files = _newest_first(folder)
    failure: CheckpointError | None = None
    for step, path in files:
        if failure is not None:
            warn(f"{failure}. Using the checkpoint of step {step} instead")
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            failure = error
    if failure is None:
        raise CheckpointError(f"{folder} has no checkpoint: start a new run")
    raise CheckpointError(
        f"no checkpoint in {folder} can be read ({len(files)} tried): {failure}, or start a new run"
    ) from failure


def _newest_first(folder: Path) -> list[tuple[int, Path]]:
    found = []
    try:
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None:
                found.append((int(match["step"]), path.stat().st_mtime_ns, path))
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be searched for checkpoints: {system_error_text(error)}"
        ) from error
    return [(step, path) for step, _, path in sorted(found, reverse=True)]


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def _remove_leftovers(folder: Path) -> None:
    """Delete temporary files of killed processes. Only one process writes to a folder at a time."""
    for path in folder.iterdir():
        if _TEMPORARY_NAME.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _remove_superfluous(folder: Path, new_step: int, new: Path, keep: int) -> None:
    earlier = [(step, path) for step, path in _newest_first(folder) if step <= new_step and path != new]
    # The new file replaces older files of the new step, so delete these without counting them.
    retained_steps = sorted({step for step, _ in earlier if step < new_step}, reverse=True)[: keep - 1]
    for step, path in earlier:
        if step in retained_steps:
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointWriteError(
                f"{path}: step {new_step} is saved, but this older checkpoint could not be "
                f"deleted: {error.strerror or error}. Make its folder writable."
            ) from error


def _to_bytes(step: int, state: Mapping[str, Any]) -> bytes:
    tensors: dict[str, torch.Tensor] = {}
    document = {"format": _FORMAT, "step": step, "state": _encode(state, "state", tensors)}
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    data = safetensors.save(tensors, {"hyrt": text})
    # safetensors leaves a reference cycle per tensor. Collecting young objects is cheap. Old generations are
    # collected so rarely in a large process that memory would grow with each checkpoint.
    gc.collect(1)
    return data


def _from_bytes(path: Path, data: bytes) -> tuple[int, dict[str, Any]]:
    try:
        tensors = safetensors.load(data)
        header_bytes = int.from_bytes(data[:8], "little")
        document = json.loads(json.loads(data[8 : 8 + header_bytes])["__metadata__"]["hyrt"])
        found = document["format"]
        if found == _FORMAT:
            return int(document["step"]), _decode(document["state"], tensors)
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is undamaged, but is not a checkpoint written by hyrt ({error}): use another one"
        ) from error
    raise CheckpointError(
        f"{path} has checkpoint format {found}, but this version of hyrt reads format {_FORMAT}: use the "
        "version that wrote it"
    )


def _encode(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Encode types that JSON lacks as objects with one key: tensor, tuple, dict, float (inf, nan)."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, torch.Tensor):
        return {"tensor": _add_tensor(value, where, tensors)}
    if isinstance(value, list):
        return [_encode(item, f"{where}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, f"{where}.{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = []
        for key, item in value.items():
            if isinstance(key, bool) or not isinstance(key, int | str):
                raise TypeError(f"{where}: key {key!r} is a {type(key).__name__}, but must be a str or int")
            pairs.append([key, _encode(item, f"{where}.{key}", tensors)])
        return {"dict": pairs}
    raise TypeError(f"{where}: a checkpoint cannot store a {type(value).__name__}")


def _add_tensor(value: torch.Tensor, where: str, tensors: dict[str, torch.Tensor]) -> str:
    if value.dtype not in _DTYPES or value.layout != torch.strided:
        raise TypeError(f"{where}: a checkpoint cannot store a {value.layout} tensor of {value.dtype}")
    # Make names unique and ASCII: keys 0 and "0" give the same path, and lone surrogates cannot be encoded.
    name = plain = where.removeprefix("state.").encode("utf-8", "backslashreplace").decode()
    while name in tensors or name == "__metadata__":
        name = f"{plain}#{len(tensors)}"
    # Clone, because safetensors rejects tensors that share storage.
    tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return name


def _decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {key: _decode(item, tensors) for key, item in content}
        case "tuple":
            return tuple(_decode(item, tensors) for item in content)
        case "float":
            return float(content)
    raise ValueError(f"unknown kind of value {kind!r}")
