"""Text output of predictions on several ranks: time and traffic of each strategy."""

from __future__ import annotations

from hyrt_perfmodel.communication.distributed_epoch import RanksPrediction
from hyrt_perfmodel.communication.step_traffic import PURPOSES

from hyrt.distributed.strategies.registry import strategy
from hyrt.predict.ranks.on_ranks import RanksComparison
from hyrt.quantities import counted, duration, milliseconds, size, three_digits


def ranks_lines(found: RanksComparison) -> list[str]:
    """Return the output of `hyrt predict --ranks` as lines.

    Parameters
    ----------
    found
        The prediction, for one strategy or for several.
    """
    network = found.network
    lines = [
        f"{counted(found.ranks, 'rank')} like {found.machine} · {network.name}: "
        f"{three_digits(network.gb_s)} GB/s each way, {duration(network.latency_s)} a message",
        f"{'strategy':16} {'epoch':>9}  {'sent':>9}  bottleneck",
    ]
    lines += [
        f"{prediction.strategy:16} {duration(prediction.epoch_s):>9}  {size(prediction.total_bytes):>9}  "
        f"{prediction.bottleneck}"
        f"{' (changes what is trained)' if strategy(prediction.strategy).draws_locally else ''}"
        for prediction in found.predictions
    ]
    if len(found.predictions) == 1:
        lines += _strategy_lines(found.predictions[0])
    else:
        best = min(found.predictions, key=lambda prediction: prediction.epoch_s)
        lines.append(f"fastest: {best.strategy}; --strategy NAME shows its stages and bytes")
    lines.append(f"estimated error ± {found.relative_error:.0%}: {found.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in found.assumptions]


def _strategy_lines(prediction: RanksPrediction) -> list[str]:
    """Format a rank's stages and its traffic."""
    stages = " · ".join(f"{name} {milliseconds(time_s)}" for name, time_s in prediction.stages_s.items())
    lines = [
        f"{counted(prediction.iterations, 'step')} of {milliseconds(prediction.iteration_s)} ms · "
        f"in ms: {stages}",
        f"{'purpose':10} {'ms/step':>9}  {'epoch':>9}",
    ]
    return lines + [
        f"{name:10} {milliseconds(prediction.travel_s[name]):>9}  {size(prediction.epoch_bytes[name]):>9}"
        for name in PURPOSES
        if prediction.epoch_bytes[name]
    ]
