"""The text of a prediction on several ranks: what each strategy takes and sends."""

from __future__ import annotations

from hyrt_perfmodel.communication.distributed_epoch import RanksPrediction
from hyrt_perfmodel.communication.step_traffic import PURPOSES

from hyrt.distributed.strategies.registry import strategy
from hyrt.predict.ranks.on_ranks import RanksComparison
from hyrt.quantities import counted, duration, milliseconds, size, three_digits


def ranks_lines(found: RanksComparison) -> list[str]:
    """What `hyrt predict --ranks` prints.

    Parameters
    ----------
    found
        The prediction, of one strategy or of several.
    """
    network = found.network
    lines = [
        f"{counted(found.ranks, 'rank')} like {found.machine} · {network.name}: "
        f"{three_digits(network.gb_s)} GB/s each way, {duration(network.latency_s)} a message",
        f"{'strategy':16} {'epoch':>9}  {'sent':>9}  bottleneck",
    ]
    lines += [
        f"{each.strategy:16} {duration(each.epoch_s):>9}  {size(each.total_bytes):>9}  {each.bottleneck}"
        f"{' (changes what is trained)' if strategy(each.strategy).draws_locally else ''}"
        for each in found.predictions
    ]
    if len(found.predictions) == 1:
        lines += _one(found.predictions[0])
    else:
        best = min(found.predictions, key=lambda each: each.epoch_s)
        lines.append(f"fastest: {best.strategy}; --strategy NAME shows its stages and bytes")
    lines.append(f"estimated error ± {found.relative_error:.0%}: {found.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in found.assumptions]


def _one(found: RanksPrediction) -> list[str]:
    """The stages of a rank, and what travels."""
    stages = " · ".join(f"{name} {milliseconds(time_s)}" for name, time_s in found.stages_s.items())
    lines = [
        f"{counted(found.iterations, 'step')} of {milliseconds(found.iteration_s)} ms · in ms: {stages}",
        f"{'purpose':10} {'ms/step':>9}  {'epoch':>9}",
    ]
    return lines + [
        f"{name:10} {milliseconds(found.travel_s[name]):>9}  {size(found.epoch_bytes[name]):>9}"
        for name in PURPOSES
        if found.epoch_bytes[name]
    ]
