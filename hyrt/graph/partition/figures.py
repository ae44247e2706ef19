"""Quality metrics of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyrt.graph.partition.manifest import PartitionManifest
from hyrt.quantities import counted

_SHOWN_PARTS = 16


def partition_figures(manifest: PartitionManifest) -> dict[str, Any]:
    """Return the manifest without its files, and the imbalance of the parts, as JSON data.

    `imbalance` is the largest part's share over the mean, less 1: 0 where all are equal.
    """
    figures = manifest.model_dump(mode="json", exclude={"files", "crc32_chunk_bytes"})
    columns = {
        key: [getattr(part, key) for part in manifest.parts] for key in ("vertices", "edges", "training")
    }
    figures["imbalance"] = {key: imbalance(column) for key, column in columns.items()}
    sends = [part.sends for part in manifest.parts if part.sends is not None]
    receives = [part.receives for part in manifest.parts if part.receives is not None]
    if sends:
        figures["volume"] = {"total": sum(sends), "largest": max(sends), "imbalance": imbalance(sends)}
    if receives:
        busiest, mean = max(*sends, *receives), sum(sends) / len(sends)
        over = busiest / mean - 1 if mean else 0.0
        figures["volume"] |= {
            "largest_received": max(receives),
            "busiest": busiest,
            "busiest_over_mean": over,
        }
    return figures


def imbalance(amounts: Sequence[float]) -> float:
    """Return the largest amount over the mean, minus 1; 0 if the sum is 0."""
    total = sum(amounts)
    return max(amounts) * len(amounts) / total - 1 if total else 0.0


def partition_lines(figures: dict[str, Any]) -> list[str]:
    """Format the result of `partition_figures` as lines for a terminal."""
    parts, uneven = figures["parts"], figures["imbalance"]
    lines = [
        f"parts      {counted(len(parts), 'part')} by {figures['method']}, seed {figures['seed']} · topology "
        f"{figures['topology']} · id {figures['id']}",
        f"source     {figures['source']} · normalize {figures['normalize']}",
        f"cut        {figures['cut']:,} of {counted(figures['edges'], 'edge')} · locality "
        f"{figures['locality']:.1%}",
        f"imbalance  vertices {uneven['vertices']:.1%} · edges {uneven['edges']:.1%} · training vertices "
        f"{uneven['training']:.1%}",
        "",
        f"{'part':>6}{'vertices':>14}{'in-edges':>16}{'training':>12}{'cut in-edges':>16}",
    ]
    if "volume" in figures:
        volume = figures["volume"]
        lines.insert(
            -2,
            f"volume     {counted(volume['total'], 'row')} sent in a product over the whole graph · at most "
            + (
                f"{volume['busiest']:,} sent or received by a part, {volume['busiest_over_mean']:.1%} over "
                "the mean"
                if "busiest" in volume
                else f"{volume['largest']:,} by a part, {volume['imbalance']:.1%} over the mean"
            ),
        )
    lines += [
        f"{number:>6}{part['vertices']:>14,}{part['edges']:>16,}{part['training']:>12,}{part['cut']:>16,}"
        for number, part in enumerate(parts[:_SHOWN_PARTS])
    ]
    if len(parts) > _SHOWN_PARTS:
        lines.append(f"       ... {counted(len(parts) - _SHOWN_PARTS, 'more part')}; --json has all")
    return lines
