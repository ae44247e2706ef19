"""Text output of predictions on several ranks: time and traffic by strategy, and full-graph algorithms."""

from __future__ import annotations

from hyrt_perfmodel.distributed_epoch import DistributedPrediction, fastest_algorithm
from hyrt_perfmodel.traffic import PURPOSES

from hyrt.distributed.strategies.registry import create_strategy
from hyrt.formatting import format_bytes, format_duration, format_milliseconds, format_sig3, pluralize
from hyrt.predict.distributed_full_graph import FullGraphComparison
from hyrt.predict.predict_ranks import RanksComparison


def full_graph_lines(comparison: FullGraphComparison) -> list[str]:
    """Return the output of `hyrt predict --full-graph --ranks`, whose tables fit into 80 columns."""
    network = comparison.network
    lines = [
        (
            f"{pluralize(comparison.ranks, 'rank')} like {comparison.machine} · "
            f"{network.name}: {format_sig3(network.gb_s)} GB/s each way, "
            f"{format_duration(network.latency_s)} per message"
        ),
        f"{'algorithm':21} {'epoch':>8} {'computing':>9} {'travelling':>10} {'gradients':>9} {'sent':>8} "
        f"{'memory':>9}",
    ]
    lines += [
        f"{row.name:21} {format_duration(row.epoch_s):>8} {format_duration(row.compute_s):>9} "
        f"{format_duration(row.products_s):>10} {format_duration(row.gradients_s):>9} "
        f"{format_bytes(row.epoch_bytes):>8} "
        f"{format_bytes(row.memory_bytes):>9}"
        for row in comparison.algorithms
    ]
    lines.append(f"fastest: {fastest_algorithm(comparison.algorithms).name}")
    if len(comparison.scaling) > 1:
        lines.append("by number of ranks, each with its fastest algorithm:")
        lines += [
            f"  {row.ranks:>5} {format_duration(row.epoch_s):>9}  {row.name:22} "
            f"{format_bytes(row.memory_bytes):>9} per rank"
            for row in comparison.scaling
        ]
        best = comparison.best_ranks
        limitation = "" if best < comparison.ranks else ", and more ranks may be faster"
        lines.append(f"{pluralize(best, 'rank')} of these {_has(best)} the shortest epoch{limitation}")
    lines.append(f"estimated error ± {comparison.relative_error:.0%}: {comparison.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in comparison.assumptions]


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def ranks_lines(comparison: RanksComparison) -> list[str]:
    """Return the output of `hyrt predict --ranks`, for one or several strategies."""
    network = comparison.network
    lines = [
        (
            f"{pluralize(comparison.ranks, 'rank')} like {comparison.machine} · "
            f"{network.name}: {format_sig3(network.gb_s)} GB/s each way, "
            f"{format_duration(network.latency_s)} per message"
        ),
        f"{'strategy':16} {'epoch':>9}  {'sent':>9}  bottleneck",
    ]
    lines += [
        f"{prediction.strategy:16} {format_duration(prediction.epoch_s):>9}  "
        f"{format_bytes(prediction.total_bytes):>9}  "
        f"{prediction.bottleneck}"
        f"{' (changes what is trained)' if create_strategy(prediction.strategy).draws_locally else ''}"
        for prediction in comparison.predictions
    ]
    if len(comparison.predictions) == 1:
        lines += _strategy_lines(comparison.predictions[0])
    else:
        best = min(comparison.predictions, key=lambda prediction: prediction.epoch_s)
        lines.append(f"fastest: {best.strategy}; --strategy NAME shows its stages and bytes")
    lines.append(f"estimated error ± {comparison.relative_error:.0%}: {comparison.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in comparison.assumptions]


def _strategy_lines(prediction: DistributedPrediction) -> list[str]:
    """Return lines with the stages and the traffic of a rank."""
    stages = " · ".join(
        f"{name} {format_milliseconds(time_s)}" for name, time_s in prediction.stages_s.items()
    )
    lines = [
        f"{pluralize(prediction.iterations, 'step')} of {format_milliseconds(prediction.iteration_s)} ms · "
        f"in ms: {stages}",
        f"{'purpose':10} {'ms/step':>9}  {'epoch':>9}",
    ]
    return lines + [
        f"{name:10} {format_milliseconds(prediction.communication_s[name]):>9}  "
        f"{format_bytes(prediction.epoch_bytes[name]):>9}"
        for name in PURPOSES
        if prediction.epoch_bytes[name]
    ]
