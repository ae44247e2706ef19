"""Simulation of chunk schedules on published machines: NeuGraph's optimisations, enabled one by one.

    python tools/full_graph/schedules.py
    python tools/full_graph/schedules.py --platform 2x-epyc7763-4x-u250 --inside 0.5

Nothing is fitted to published results. Graphs have the sizes of NeuGraph's. Two things are assumed: the
fraction of a vertex's edges within its interval after a locality-preserving order (`--inside`), and a uniform
distribution of all other edges over the intervals. P is the minimum with which per-edge arrays fit the
device. It does not change if the gather is fused, as in the paper's Fig. 15. The tables are Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from hyrt_perfmodel.chunk_costs import (
    ChunkMachine,
    GridSizes,
    chunk_machine,
    expected_grid,
    min_parts_for_memory,
)
from hyrt_perfmodel.chunk_schedule import ChunkSchedule
from hyrt_perfmodel.chunked_epoch import ChunkedEpoch, simulate_epoch
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.workload import GatherLayer

# Vertices, edges, features, classes, and the assumed fraction of edges inside an interval.
GRAPHS = {
    "reddit-full": (232_965, 114_600_000, 602, 41, 0.4),
    "enwiki": (3_600_000, 276_000_000, 300, 12, 0.6),
    "amazon": (8_600_000, 231_600_000, 96, 22, 0.9),
}
PLAIN = ChunkSchedule()
STEPS = {
    "chunk by chunk": PLAIN,
    "+ fused gather": ChunkSchedule(fused=True),
    "+ selective": ChunkSchedule(fused=True, selective=True),
    "+ sub-chunks": ChunkSchedule(fused=True, selective=True, sub_chunks=4),
    "+ swaps": ChunkSchedule(fused=True, selective=True, sub_chunks=4, swaps=True),
}
FREE = 0.9


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--platform", action="append", help="platform to simulate; may be repeated")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument(
        "--inside", type=float, help="fraction for all graphs, instead of the graph's default"
    )
    return parser.parse_args()


def first(machine: ChunkMachine, count: int) -> ChunkMachine:
    """Return the machine with only its first `count` devices."""
    return replace(machine, devices=machine.devices[:count], switches=machine.switches[:count])


def graph_chunks(
    name: str, memory_gib: float, hidden: int, inside: float | None
) -> tuple[GridSizes, tuple[GatherLayer, ...]]:
    vertices, edges, features, classes, assumed = GRAPHS[name]
    layers = (
        GatherLayer(gather_width=features, out_width=hidden, has_input_grad=False),
        GatherLayer(gather_width=hidden, out_width=classes),
    )
    parts = min_parts_for_memory(vertices, edges, layers, FREE * memory_gib * 2**30, fused=False)
    degrees = DegreeDistribution.assumed(vertices, edges)
    return expected_grid(degrees, parts, inside=assumed if inside is None else inside), layers


def row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def show(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n{row(heads)}\n{row(['---'] * len(heads))}")
    print("\n".join(row(cells) for cells in rows))


def main() -> None:
    args = arguments()
    for name in args.platform or ["8x-p100", "2x-epyc7763-4x-a5000", "2x-epyc7763-4x-u250"]:
        platform = load_platform(name)
        machine, memory_gib = chunk_machine(platform, "gcn"), platform.accelerators[0].memory_gib
        assert memory_gib is not None
        single, alone, orders, several = first(machine, 1), [], [], []
        for graph in GRAPHS:
            grid, layers = graph_chunks(graph, memory_gib, args.hidden, args.inside)

            def run(
                schedule: ChunkSchedule,
                on: ChunkMachine = single,
                grid: GridSizes = grid,
                layers: tuple[GatherLayer, ...] = layers,
            ) -> ChunkedEpoch:
                return simulate_epoch(grid, layers, on, schedule)

            plain_s = run(PLAIN).seconds
            for step, schedule in STEPS.items():
                epoch = run(schedule)
                alone.append(
                    (
                        graph,
                        grid.parts,
                        step,
                        f"{epoch.seconds:.2f}",
                        f"{plain_s / epoch.seconds:.2f}",
                        f"{epoch.copy_s:.2f}",
                        f"{epoch.compute_s:.2f}",
                        f"{epoch.hidden_fraction:.0%}",
                    )
                )
            for fused in (False, True):
                row_column_s = run(ChunkSchedule(fused=fused, order="row-column")).seconds
                ratio = row_column_s / run(ChunkSchedule(fused=fused)).seconds
                orders.append((graph, "fused" if fused else "not fused", f"{ratio:.2f}"))
            for count in (1, 2, 4, 8):
                if count <= len(machine.devices):
                    on, full = first(machine, count), STEPS["+ swaps"]
                    cells = (run(PLAIN, on), run(full, on), run(replace(full, chain=True), on))
                    several.append((graph, count, *(f"{plain_s / each.seconds:.2f}" for each in cells)))
        print(f"\n## {name}\n\n{platform.source}")
        heads = ("graph", "P", "schedule", "s an epoch", "times faster", "copy s", "compute s", "hidden")
        show("One device, optimisations switched on in turn (Fig. 15)", heads, alone)
        heads = ("graph", "gathering", "row-column over column-row")
        show("Order of the chunks, one after the other (Fig. 16)", heads, orders)
        heads = ("graph", "devices", "chunk by chunk", "all but the chain", "all")
        show("Several devices, times faster than one chunk by chunk (Fig. 17)", heads, several)


if __name__ == "__main__":
    main()
