"""Text output of full-graph predictions on several ranks."""

from __future__ import annotations

from hyrt_perfmodel.communication.full_graph_epoch import fastest

from hyrt.predict.ranks.full_graph_on_ranks import FullGraphComparison
from hyrt.quantities import counted, duration, size, three_digits


def full_graph_lines(found: FullGraphComparison) -> list[str]:
    """Return the output of `hyrt predict --full-graph --ranks` as lines; tables fit into 80 columns."""
    network = found.network
    lines = [
        f"{counted(found.ranks, 'rank')} like {found.machine} · {network.name}: "
        f"{three_digits(network.gb_s)} GB/s each way, {duration(network.latency_s)} a message",
        f"{'algorithm':21} {'epoch':>8} {'computing':>9} {'travelling':>10} {'gradients':>9} {'sent':>8} "
        f"{'memory':>9}",
    ]
    lines += [
        f"{row.name:21} {duration(row.epoch_s):>8} {duration(row.compute_s):>9} "
        f"{duration(row.products_s):>10} {duration(row.gradients_s):>9} {size(row.epoch_bytes):>8} "
        f"{size(row.memory_bytes):>9}"
        for row in found.algorithms
    ]
    lines.append(f"fastest: {fastest(found.algorithms).name}")
    if len(found.scaling) > 1:
        lines.append("by the number of ranks, each with its fastest algorithm:")
        lines += [
            f"  {row.ranks:>5} {duration(row.epoch_s):>9}  {row.name:22} {size(row.memory_bytes):>9} a rank"
            for row in found.scaling
        ]
        best = found.best_ranks
        limitation = "" if best < found.ranks else ", and more may have a shorter one"
        lines.append(f"{counted(best, 'rank')} of these {_has(best)} the shortest epoch{limitation}")
    lines.append(f"estimated error ± {found.relative_error:.0%}: {found.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in found.assumptions]


def _has(count: int) -> str:
    return "has" if count == 1 else "have"
