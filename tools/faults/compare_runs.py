"""Bitwise comparison of everything that two runs have computed."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch

from hyrt.report.run_folder import read_metrics
from hyrt.training.checkpoint import load_newest_checkpoint

# Entries that depend on the clock; with a fixed split they do not affect the weights.
_TIMING = ("epoch_s", "totals", "config", "balance")


def read_final_state(path: Path) -> dict[str, Any]:
    """Return the entries of the newest checkpoint that do not depend on the clock."""
    state = load_newest_checkpoint(path / "checkpoints", lambda text: None).state
    return {key: state[key] for key in state if key not in _TIMING}


def read_records(path: Path) -> dict[str, Any]:
    """Return the losses and metrics in metrics.jsonl, without times and step groups."""
    lines = read_metrics(path / "metrics.jsonl")
    return {
        "losses": [loss for line in lines for loss in line.get("losses", [])],
        "epochs": [(line["epoch"], line["loss"]) for line in lines if line["event"] == "epoch_ended"],
        "evaluations": [(line["epoch"], line["metrics"]) for line in lines if line["event"] == "evaluated"],
    }


def read_summary(path: Path) -> dict[str, Any]:
    """Return the results in summary.json."""
    summary = json.loads((path / "summary.json").read_text())
    return {key: summary.get(key) for key in ("status", "steps", "best_epoch", "metrics")}


def compare_runs(path: Path, reference: Path) -> list[str]:
    """Compare two run folders; return a line per kind of value that differs, with the first or largest
    difference.
    """
    ours, theirs = (
        {**read_records(run), "summary": read_summary(run), "final state": read_final_state(run)}
        for run in (path, reference)
    )
    differences = {name: find_unequal(ours[name], theirs[name]) for name in ours}
    return [_format_line(name, places) for name, places in differences.items() if places]


def _format_line(name: str, places: list[tuple[str, str]]) -> str:
    return f"{name}: {len(places)} differ, first {places[0][0] or 'it'}: {places[0][1]}"


def find_unequal(one: Any, other: Any, place: str = "") -> list[tuple[str, str]]:
    """Compare nested values bit by bit, so that NaN equals itself and -0.0 does not equal 0.0.

    Returns
    -------
    Locations of the differences, with descriptions.
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
        return [difference for location, a, b in pairs for difference in find_unequal(a, b, location)]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [(place, f"{len(one)} values instead of {len(other)}")]
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
        return [difference for location, a, b in pairs for difference in find_unequal(a, b, location)]
    is_equal = _encode_float(one) == _encode_float(other) if isinstance(one, float) else one == other
    return [] if is_equal else [(place, f"{one!r} instead of {other!r}")]


def _encode_tensor(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def _encode_float(value: float) -> bytes:
    # The payload of a NaN is lost when it is written as text.
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def _describe_distance(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {list(one.shape)} instead of {other.dtype} {list(other.shape)}"
    apart = (one.double() - other.double()).abs()
    return f"{int((apart > 0).sum())} of {apart.numel()} values, at most {apart.max().item():.2g} apart"
