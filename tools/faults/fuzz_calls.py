"""Calls of the public API for fuzz_api.py."""

from __future__ import annotations

from functools import cache

import torch
from fuzz_devices import batch_calls, model_calls, objective_calls
from fuzz_graphs import graph_calls, train_calls
from fuzz_objects import Call
from fuzz_operators import block_calls, ops_calls
from fuzz_samplers import plug_in_calls, sampler_calls

from hyrt.errors import HyrtError


@cache
def all_calls() -> tuple[Call, ...]:
    """Return all calls, by area."""
    torch.set_num_threads(1)
    areas = (
        ops_calls,
        sampler_calls,
        plug_in_calls,
        block_calls,
        batch_calls,
        objective_calls,
        graph_calls,
        train_calls,
        model_calls,
    )
    return tuple(call for area in areas for call in area())


def warm_up(calls: list[Call]) -> None:
    """Make each call once with valid values, so that children find compiled loops; skip training calls."""
    for call in calls:
        if "train" in call.name or "users' sampler" in call.name:
            continue
        try:
            call.make(**{name: kind.right() for name, kind in call.arguments.items() if not kind.optional})
        except (HyrtError, ValueError):
            # Some valid values belong to objects that reject the call, such as a folder without a run.
            continue
