"""Fit the closed form of the aggregation network's cycles to a cycle simulation, and print its errors.

    python tools/predictions/fit_cycles.py --fit    # constants, from cases 0 .. 399
    python tools/predictions/fit_cycles.py          # errors of the module's constants, for held-out cases
    40000 .. 40399
    python tools/predictions/fit_cycles.py --graph synthetic:products-s,vertices=100k --fanout 25,10

Cases are random within the range that `hyrt_perfmodel.fpga_cycles` states: n of 4, 8, 16; D of 4 to 128; A of
1 to 8; 1 to 64 chunks; up to 40,000 edges; sources with 1 to 32 edges on average (equal, geometric, or one
edge for every second source); destinations uniform or Zipf (exponent 0.5, 1, 1.5) over 512 to 16,384 rows,
distinct per source; and none, half or nine tenths of the edges to the next row in order. With --graph, the
blocks of sampled mini-batches are simulated instead: `arrays` is the closed form for their statistics,
`counts` for their sizes only. Errors are in per cent.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from aggregate_network import edge_list, network_cycles
from hyrt_perfmodel import fpga_cycles as fpga_network
from hyrt_perfmodel.fpga_cycles import LayerSizes, NetworkLoad, network_cycles_expected
from hyrt_perfmodel.fpga_design import FpgaDesign, num_chunks
from sampled_batches import whole_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELD_OUT = 40_000
# Exponent of the error norm, which emphasizes large errors because the bound is on the largest error.
_NORM = 8


@dataclass(frozen=True)
class CycleCase:
    """Edges and design of a case, and the parameters from which these were generated."""

    sources: NDArray[np.int64]
    to: NDArray[np.int64]
    chunks: int
    design: FpgaDesign
    degrees: str
    skew: float
    in_order: float


@dataclass(frozen=True)
class MeasuredCycles:
    """Case with its simulated cycles."""

    case: CycleCase
    load: NetworkLoad
    cycles: int

    def error(self) -> float:
        """Return the relative error of the closed form."""
        return network_cycles_expected(self.load, self.case.chunks, self.case.design) / self.cycles - 1.0


def random_case(seed: int) -> CycleCase:
    """Return a random case within the stated range."""
    random = np.random.default_rng(seed)
    design = FpgaDesign(
        pes=int(random.choice([4, 8, 16])),
        fifo_depth=int(2 ** random.uniform(2.0, 7.0)),
        adder_latency=int(random.integers(1, 9)),
    )
    chunks = int(2 ** random.uniform(0.0, 6.02))
    edges = min(40_000, max(3_000, 200_000 // chunks))
    mean = float(2 ** random.uniform(0.0, 5.0))
    kind = str(random.choice(["equal", "geometric", "mixed"]))
    if kind == "equal":
        degrees = np.full(edges, round(mean))
    elif kind == "geometric":
        degrees = random.geometric(1.0 / mean, edges)
    else:
        degrees = np.where(random.random(edges) < 0.5, 1, random.integers(1, int(2 * mean) + 1, edges))
    sources = np.repeat(np.arange(edges), degrees)[:edges]
    rows = int(2 ** random.uniform(9.0, 14.0))
    skew = float(random.choice([0.0, 0.0, 0.5, 1.0, 1.5]))
    share = np.arange(1.0, rows + 1) ** -skew
    to = random.permutation(rows)[random.choice(rows, edges, p=share / share.sum())]
    in_order = float(random.choice([0.0, 0.0, 0.5, 0.9]))
    fresh = random.random(edges) < in_order
    to = np.where(fresh, rows - 1 + np.cumsum(fresh), to)
    sources, to = np.unique(np.column_stack([sources, to]), axis=0).T
    return CycleCase(sources, to, chunks, design, kind, skew, in_order)


def measure(seeds: Sequence[int]) -> list[MeasuredCycles]:
    cases = []
    for case in map(random_case, seeds):
        cycles = network_cycles(case.to, case.chunks, case.design, sources=case.sources)
        cases.append(
            MeasuredCycles(case, NetworkLoad.from_edges(case.to, case.design.pes, case.sources), cycles)
        )
    return cases


def errors(measured: Sequence[MeasuredCycles]) -> NDArray[np.float64]:
    return np.array([case.error() for case in measured])


def fit(measured: Sequence[MeasuredCycles]) -> tuple[float, ...]:
    """Fit the three constants on two grids, the second around the best point of the first."""

    def use(constants: tuple[float, ...]) -> None:
        fpga_network.RUN_AHEAD, fpga_network.SPREAD, fpga_network.MEETING = constants

    def loss(constants: tuple[float, ...]) -> float:
        use(constants)
        return float((errors(measured) ** _NORM).mean())

    best = min(itertools.product((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0), (3.0, 4.0, 6.0)), key=loss)
    near = ([centre + step / 4 for step in range(-2, 3)] for centre in best)
    best_fine = min(itertools.product(*near), key=loss)
    use(best_fine)
    return best_fine


def table(measured: Sequence[MeasuredCycles]) -> Iterator[str]:
    """Yield the errors of all cases, and of the cases for each value of each parameter."""
    percent_errors = 100 * errors(measured)
    groups: dict[str, list[int]] = {"all": list(range(len(measured)))}
    for number, each in enumerate(measured):
        case = each.case
        depth = 1 << int(np.log2(case.design.fifo_depth))
        chunks = 1 << int(np.log2(case.chunks))
        for name in (
            f"n = {case.design.pes:2}",
            f"D {depth:3} to {2 * depth - 1:3}",
            f"chunks {chunks:2} to {2 * chunks - 1:3}",
            "A > chunks" if case.design.adder_latency > case.chunks else "A <= chunks",
            f"sources: {case.degrees}",
            f"Zipf {case.skew}",
            f"in order {case.in_order}",
        ):
            groups.setdefault(name, []).append(number)
    yield "| cases | number | mean error | mean of absolute | largest | beyond 10 % |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in sorted(groups, key=lambda name: (name != "all", name)):
        part = percent_errors[groups[name]]
        largest = part[np.argmax(abs(part))]
        beyond = int((abs(part) > 10).sum())
        cells = (name, len(part), f"{part.mean():+.1f}", f"{abs(part).mean():.1f}", f"{largest:+.1f}", beyond)
        yield f"| {' | '.join(map(str, cells))} |"


def blocks_table(
    spec: str, fanouts: Sequence[int], batch: int, designs: Sequence[FpgaDesign]
) -> Iterator[str]:
    """Yield a table per block of a sampled mini-batch, in both directions, with and without self rows."""
    from hyrt.graph import open_graph

    graph = open_graph(spec)
    batches = whole_batches(graph, fanouts, batch)
    drawn = next(batches)
    yield "| block | parts | D | direction | chunks | edges | cycles | ideal / cycles | arrays | counts |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for block, parts, design in itertools.product(drawn.blocks, (1, 2), designs):
        rows = np.repeat(np.arange(block.num_dst, dtype=np.int64), np.diff(block.indptr))
        self_rows = np.arange(block.num_dst, dtype=np.int64)
        sources = np.concatenate([self_rows, block.columns.astype(np.int64)])
        combined = np.concatenate([self_rows * parts, rows * parts + parts - 1])
        width = graph.num_features if block.layer == 1 else 256
        layer = LayerSizes(
            rows=block.num_dst,
            parts=parts,
            num_src=block.num_src,
            in_width=width,
            out_width=256,
            edges=len(sources),
            self_edges=len(self_rows),
        )
        for name, edges, expected in (
            ("forward", edge_list(sources, combined), layer.forward_load(design.pes)),
            ("backward", edge_list(combined, sources), layer.backward_load(design.pes)),
        ):
            chunks = num_chunks(width)
            cycles = network_cycles(edges.destinations, chunks, design, sources=edges.sources)
            load = NetworkLoad.from_edges(edges.destinations, design.pes, edges.sources)
            arrays = 100 * (network_cycles_expected(load, chunks, design) / cycles - 1)
            counts = 100 * (network_cycles_expected(expected, chunks, design) / cycles - 1)
            ideal = len(edges.destinations) * chunks / design.pes / cycles
            yield (
                f"| {block.layer} | {parts} | {design.fifo_depth} | {name} | {chunks} | "
                f"{len(edges.destinations):,} | {cycles:,} | {ideal:.2f} | {arrays:+.1f} | {counts:+.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument(
        "--fit", action="store_true", help="first fit the constants to the same number of other cases"
    )
    parser.add_argument("--graph", help="file or spec: simulate sampled mini-batches instead of random cases")
    parser.add_argument("--fanout", default="25,10", help="fan-out for --graph (default 25,10)")
    parser.add_argument("--batch", type=int, default=1024, help="batch size for --graph (default 1024)")
    options = parser.parse_args()
    if options.graph:
        fanouts = [int(number) for number in options.fanout.split(",")]
        designs = [FpgaDesign(fifo_depth=depth) for depth in (2, 8, 32)]
        for line in blocks_table(options.graph, fanouts, options.batch, designs):
            print(line, flush=True)
        return
    if options.fit:
        run_ahead, spread, meeting = fit(measure(range(options.cases)))
        print(f"RUN_AHEAD = {run_ahead}  SPREAD = {spread}  MEETING = {meeting}")
    for line in table(measure(range(HELD_OUT, HELD_OUT + options.cases))):
        print(line)


if __name__ == "__main__":
    main()
