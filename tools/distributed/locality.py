"""Locality of micrographs: the fraction of a micrograph's vertices in the part of its seed.

    python tools/distributed/locality.py --data coauthor_physics.npz --parts 2,4,8,16 --cases 2x10,10x2

A case is a number of layers and their fan-out, or for layer-wise samplers their name and the vertices per
layer: `2xladies2000`, `2xfastgcn2000`. As in HopGNN (section 4, Table 1), the fraction counts vertices other
than the seed, relative to all vertices of the micrograph, averaged over random training seeds. The second
number is the same for the mini-batch of all seeds. Graphs are partitioned with METIS, like `hyrt partition`.
Every layer samples independently, also for vertices of earlier layers. Layer-wise samplers sample for all
seeds together, and the micrograph of a seed is the part from which the seed is reached.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.api import load
from hyrt.graph.graph import Graph
from hyrt.graph.partition.registry import get_partition_method
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.block import Ids
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.sampling.settings.layerwise_settings import FastGcnSettings, LadiesSettings
from hyrt.sampling.settings.neighbor_settings import NeighborSettings


@dataclass(frozen=True, slots=True)
class Locality:
    """Locality of one case, as means over the seeds."""

    micrograph: float
    """Fraction of a micrograph's vertices that are not its seed and are in the seed's part."""
    subgraph: float
    """Value of `micrograph` for the mini-batch of all seeds."""
    vertices: float
    """Mean number of vertices per micrograph."""


def locality(
    sampled: Sequence[NDArray[Any]], whole: NDArray[Any], roots: NDArray[Any], homes: NDArray[Any]
) -> Locality:
    """Return the locality of micrographs.

    Parameters
    ----------
    sampled
        Distinct vertices of each seed's micrograph, including the seed.
    whole
        Distinct vertices of the mini-batch of all seeds, [n].
    roots
        Seeds, [r].
    homes
        Part of each vertex, [V].
    """
    of_parts = np.bincount(homes[whole], minlength=int(homes.max()) + 1)
    at_home = [
        np.count_nonzero(homes[vertices] == homes[root]) - 1
        for vertices, root in zip(sampled, roots, strict=True)
    ]
    return Locality(
        micrograph=float(
            np.mean([count / len(vertices) for count, vertices in zip(at_home, sampled, strict=True)])
        ),
        subgraph=float(np.mean((of_parts[homes[roots]] - 1) / len(whole))),
        vertices=float(np.mean([len(vertices) for vertices in sampled])),
    )


@dataclass(frozen=True, slots=True)
class LocalityCase:
    """Number of layers, and the sampler of each layer."""

    layers: int
    sampler: SamplerSettings
    name: str
    """Name in the head of the table."""

    @classmethod
    def of(cls, text: str) -> LocalityCase:
        """Parse a case such as `2x10` or `2xladies2000`.

        Raises
        ------
        ValueError
            If the text has another form.
        """
        match = re.fullmatch(r"(\d+)x(ladies|fastgcn|)(\d+)", text)
        if match is None:
            raise ValueError(f"{text!r} is not a case: use one such as 2x10, 2xladies2000 or 2xfastgcn2000")
        layers, kind, size = int(match[1]), match[2], int(match[3])
        if kind == "":
            sampler: SamplerSettings = NeighborSettings(kind="neighbor", fanout=[size] * layers)
            return cls(layers, sampler, f"{layers} layers, fan-out {size}")
        settings = LadiesSettings if kind == "ladies" else FastGcnSettings
        sampler = settings(kind=kind, layer_size=size)
        return cls(layers, sampler, f"{layers} layers, {sampler.describe(layers, 0).partition(' · ')[0]}")

    def build(self, graph: Graph, targets: Ids, num_roots: int, seed: int) -> Sampler:
        """Create the sampler for steps with `num_roots` seeds."""
        return self.sampler.build(graph, targets, layers=self.layers, batch_size=num_roots, seed=seed)


def sample_vertices(sampler: Sampler, roots: NDArray[Any], workers: Workers) -> NDArray[Any]:
    """Return the distinct vertices of the first step's mini-batch for the given seeds."""
    batch = sampler.sample(0, np.ascontiguousarray(roots), workers, in_place=False)
    sources = batch.blocks[0].sources
    assert sources is not None
    vertices: NDArray[Any] = sources.copy()
    batch.release()
    return vertices


def rows(
    graph: Graph, parts: Sequence[int], cases: Sequence[LocalityCase], num_roots: int, seed: int
) -> list[str]:
    """Return the rows of a Markdown table, one per number of parts."""
    method = get_partition_method("metis")
    targets = graph.split("train")
    training = np.zeros(graph.num_vertices, np.bool_)
    training[targets] = True
    localities: dict[int, list[Locality]] = {count: [] for count in parts}
    with Workers(available_cores(), "locality") as workers, use_workers(workers):
        homes = {count: method.homes(graph.topology, training, count, seed) for count in parts}
        for case in cases:
            sampler = case.build(graph, targets, num_roots, seed)
            roots = sampler.units(0)
            sampled = [sample_vertices(sampler, roots[i : i + 1], workers) for i in range(len(roots))]
            all_vertices = sample_vertices(sampler, roots, workers)
            for count in parts:
                localities[count].append(locality(sampled, all_vertices, roots, homes[count]))
    lines = []
    for count in parts:
        cells = [
            f"{100 * locality_.micrograph:.0f} ({100 * locality_.subgraph:.0f}, {locality_.vertices:,.0f})"
            for locality_ in localities[count]
        ]
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--parts", default="2,4,8,16")
    parser.add_argument("--cases", default="2x10,10x2", help="layers x fan-out, or layers x sampler and size")
    parser.add_argument("--roots", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    cases = [LocalityCase.of(text) for text in options.cases.split(",")]
    parts = [int(count) for count in options.parts.split(",")]
    title = "% of a micrograph at home with its root (% of the mini-batch, vertices of a micrograph)"
    print(f"\n{options.data}: {title}\n")
    print("| parts | " + " | ".join(case.name for case in cases) + " |")
    print("| --- " + "| ---: " * len(cases) + "|")
    print("\n".join(rows(load(options.data), parts, cases, options.roots, options.seed)))


if __name__ == "__main__":
    main()
