"""Comparison of expected and measured sizes of sampled mini-batches, by graph, fan-out and batch size.

Measured sizes are means over sampled mini-batches of the training split. Errors are in per cent: of the input
vertices |V^0|, of the vertices in the worst layer, of all sampled edges, and of the edges in the worst layer.
The bounds are 3 % for edges and 15 % for vertices on real graphs, and 5 % for both on generated graphs, also
if only the generator's degree distribution is used (`law`). The bound for edges is 5 % if one mini-batch of
three layers covers a whole small training split, because nearby targets share neighbourhoods, which the
counts do not include. The exit code is 1 if the vertices of a layer or all sampled edges exceed their bounds.

    python tools/predictions/validate_sizes.py --data ../shared/data
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sampled_batches import whole_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph

FANOUTS = ((10,), (25, 10), (5, 5), (10, 10, 10), (15, 10, 5))
BATCHES = (64, 1024)
SYNTHETIC = (
    "synthetic:tiny",
    "synthetic:community",
    "synthetic:products-s,vertices=100k",
    "synthetic:papers-s,vertices=200k",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of .npz datasets")
    parser.add_argument("--graphs", nargs="*", help="files or specs instead of all in --data and the presets")
    parser.add_argument(
        "--batches",
        type=int,
        default=0,
        help="number of measured mini-batches; 0 for 12 to 150, depending on size",
    )
    return parser.parse_args()


def measure(graph: Graph, fanouts: tuple[int, ...], batch: int, batches: int) -> BlockSizes:
    """Return the mean sizes of complete mini-batches."""
    import numpy as np
    from hyrt_perfmodel.expected_sizes import BlockSizes

    rows = []
    for drawn in itertools.islice(whole_batches(graph, fanouts, batch), batches):
        edges = [block.num_edges for block in drawn.blocks]
        rows.append([drawn.blocks[0].num_src, *(block.num_dst for block in drawn.blocks), *edges])
    means = np.mean(rows, axis=0).tolist()
    return BlockSizes(vertices=tuple(means[: len(fanouts) + 1]), edges=tuple(means[len(fanouts) + 1 :]))


def per_cent(expected: float, measured_value: float) -> float:
    return 100 * (expected / measured_value - 1) if measured_value else 0.0


def table(name: str, batches: int) -> Iterator[bool]:
    """Print the table rows of a graph, and yield for each whether it is within its bounds."""
    from counted_degrees import degree_distribution

    from hyrt.graph import open_graph
    from hyrt.graph.synthetic.degree_distribution import compute_degree_distribution
    from hyrt.graph.synthetic.spec import parse_spec

    graph = open_graph(name)
    sources: dict[str, DegreeDistribution] = {"counted": degree_distribution(graph)}
    bounds = (3.0, 15.0)
    if name.startswith("synthetic:"):
        sources["law"] = compute_degree_distribution(parse_spec(name))
        bounds = (5.0, 5.0)
    train = len(graph.split("train"))
    for fanouts in FANOUTS:
        for batch in sorted({min(batch, train) for batch in BATCHES}):
            number = batches or (150 if graph.num_vertices < 5000 else 60 if batch < 256 else 12)
            measured_sizes = measure(graph, fanouts, batch, number)
            for source, degrees in sources.items():
                row_bounds = (5.0, bounds[1]) if len(fanouts) > 2 and batch == train else bounds
                yield print_row(Path(name).stem, source, degrees, fanouts, batch, measured_sizes, row_bounds)


def print_row(
    name: str,
    source: str,
    degrees: DegreeDistribution,
    fanouts: tuple[int, ...],
    batch: int,
    measured_sizes: BlockSizes,
    bounds: tuple[float, float],
) -> bool:
    from hyrt_perfmodel.expected_sizes import expected_sizes

    expected = expected_sizes(degrees, fanouts, batch)
    vertices = [per_cent(*pair) for pair in zip(expected.vertices, measured_sizes.vertices, strict=True)]
    edges = [per_cent(*pair) for pair in zip(expected.edges, measured_sizes.edges, strict=True)]
    total = per_cent(sum(expected.edges), sum(measured_sizes.edges))
    worst_vertices, worst_edges = max(vertices, key=abs), max(edges, key=abs)
    fine = abs(total) <= bounds[0] and abs(worst_vertices) <= bounds[1]
    print(
        f"{name:34} {source:8} {','.join(map(str, fanouts)):9} {batch:5} "
        f"{measured_sizes.vertices[0]:11,.0f} {expected.vertices[0]:11,.0f} {vertices[0]:6.1f} "
        f"{worst_vertices:6.1f} {sum(measured_sizes.edges):12,.0f} {sum(expected.edges):12,.0f} "
        f"{total:6.1f} {worst_edges:6.1f}{'' if fine else '  missed'}",
        flush=True,
    )
    return fine


def main() -> int:
    options = arguments()
    names = options.graphs or [*map(str, sorted(options.data.glob("*.npz"))), *SYNTHETIC]
    print(
        f"{'graph':34} {'degrees':8} {'fan-out':9} {'batch':>5} {'|V^0|':>11} {'expected':>11} {'error':>6} "
        f"{'worst':>6} {'edges':>12} {'expected':>12} {'error':>6} {'worst':>6}"
    )
    fine = [row for name in names for row in table(name, options.batches)]
    print(f"{len(fine)} rows, {len(fine) - sum(fine)} outside their bounds")
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
