"""Everything that two runs have computed, compared bit by bit."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch

from hyrt.report.records.run_folder import read_metrics
from hyrt.training.checkpoint import load_newest_checkpoint

# What follows from the clock, and changes no weight of a run with a fixed split.
_TIMING = ("epoch_s", "totals", "config", "balance")


def read_final_state(path: Path) -> dict[str, Any]:
    """Return what does not follow from the clock in the newest checkpoint of a run folder."""
    state = load_newest_checkpoint(path / "checkpoints", lambda text: None).state
    return {key: state[key] for key in state if key not in _TIMING}


def read_records(path: Path) -> dict[str, Any]:
    """Return the losses and metrics in metrics.jsonl, without the times and the groups of steps."""
    lines = read_metrics(path / "metrics.jsonl")
    return {
        "losses": [loss for line in lines for loss in line.get("losses", [])],
        "epochs": [(line["epoch"], line["loss"]) for line in lines if line["event"] == "epoch_ended"],
        "evaluations": [(line["epoch"], line["metrics"]) for line in lines if line["event"] == "evaluated"],
    }


def read_summary(path: Path) -> dict[str, Any]:
    """Return what summary.json says of the result."""
    summary = json.loads((path / "summary.json").read_text())
    return {key: summary.get(key) for key in ("status", "steps", "best_epoch", "metrics")}


def compare_runs(path: Path, reference: Path) -> list[str]:
    """Compare two run folders; a line for each kind of value that differs, with the first or the largest."""
    ours, theirs = (
        {**read_records(run), "summary": read_summary(run), "final state": read_final_state(run)}
        for run in (path, reference)
    )
    found = {name: find_unequal(ours[name], theirs[name]) for name in ours}
    return [_format_line(name, places) for name, places in found.items() if places]


def _format_line(name: str, places: list[tuple[str, str]]) -> str:
    return f"{name}: {len(places)} differ, first {places[0][0] or 'it'}: {places[0][1]}"


def find_unequal(one: Any, other: Any, place: str = "") -> list[tuple[str, str]]:
    """Compare nested values bit by bit, so that NaN equals itself and -0.0 does not equal 0.0.

    Returns
    -------
    The places that differ, and how.
    """
    if type(one) is not type(other):
        return [(place, f"{type(one).__name__} instead of {type(other).__name__}")]
    if isinstance(one, torch.Tensor):
        return (
            [] if _encode_tensor(one) == _encode_tensor(other) else [(place, _describe_distance(one, other))]
        )
    if isinstance(one, dict):
        if list(one) != list(other):
            return [(place, f"{list(one)} instead of {list(other)}")]
        pairs = [(f"{place}.{key}" if place else str(key), one[key], other[key]) for key in one]
        return [each for where, a, b in pairs for each in find_unequal(a, b, where)]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [(place, f"{len(one)} values instead of {len(other)}")]
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
        return [each for where, a, b in pairs for each in find_unequal(a, b, where)]
    is_equal = _encode_float(one) == _encode_float(other) if isinstance(one, float) else one == other
    return [] if is_equal else [(place, f"{one!r} instead of {other!r}")]


def _encode_tensor(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def _encode_float(value: float) -> bytes:
    # A NaN that was written as text has lost its payload.
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def _describe_distance(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {list(one.shape)} instead of {other.dtype} {list(other.shape)}"
    apart = (one.double() - other.double()).abs()
    return f"{int((apart > 0).sum())} of {apart.numel()} values, at most {apart.max().item():.2g} apart"
