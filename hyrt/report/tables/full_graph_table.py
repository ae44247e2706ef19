"""The text of a prediction of full-graph training on several ranks."""

from __future__ import annotations

from hyrt_perfmodel.communication.full_graph_epoch import fastest

from hyrt.predict.ranks.full_graph_on_ranks import FullGraphComparison
from hyrt.quantities import counted, duration, size, three_digits


def full_graph_lines(found: FullGraphComparison) -> list[str]:
    """What `hyrt predict --full-graph --ranks` prints; tables fit into 80 columns."""
    network = found.network
    lines = [
        f"{counted(found.ranks, 'rank')} like {found.machine} · {network.name}: "
        f"{three_digits(network.gb_s)} GB/s each way, {duration(network.latency_s)} a message",
        f"{'algorithm':21} {'epoch':>8} {'computing':>9} {'travelling':>10} {'gradients':>9} {'sent':>8} "
        f"{'memory':>9}",
    ]
    lines += [
        f"{each.name:21} {duration(each.epoch_s):>8} {duration(each.compute_s):>9} "
        f"{duration(each.products_s):>10} {duration(each.gradients_s):>9} {size(each.epoch_bytes):>8} "
        f"{size(each.memory_bytes):>9}"
        for each in found.algorithms
    ]
    lines.append(f"fastest: {fastest(found.algorithms).name}")
    if len(found.scaling) > 1:
        lines.append("by the number of ranks, each with its fastest algorithm:")
        lines += [
            f"  {each.ranks:>5} {duration(each.epoch_s):>9}  {each.name:22} {size(each.memory_bytes):>9} a "
            "rank"
            for each in found.scaling
        ]
        best = found.best_ranks
        more = "" if best < found.ranks else ", and more may have a shorter one"
        lines.append(f"{counted(best, 'rank')} of these {_has(best)} the shortest epoch{more}")
    lines.append(f"estimated error ± {found.relative_error:.0%}: {found.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in found.assumptions]


def _has(count: int) -> str:
    return "has" if count == 1 else "have"
