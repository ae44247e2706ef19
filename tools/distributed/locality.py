"""How local micrographs are: the share of a micrograph's vertices that are at home with its root.

    python tools/distributed/locality.py --data coauthor_physics.npz --parts 2,4,8,16 --cases 2x10,10x2

A case is a number of layers and the fan-out of each, or for layer-wise samplers their name and the vertices
that they draw for a layer: `2xladies2000`, `2xfastgcn2000`. As in HopGNN (section 4, Table 1), the share is
that of the vertices that are not the root itself, over all vertices of its micrograph, and the mean over
roots drawn from the training vertices. Beside it is the same for the roots' whole mini-batch, whose vertices
have no common root. Parts are cut by METIS, as `hyrt partition` cuts them. A vertex that is reached draws
anew in every layer. Layer-wise samplers draw for all roots at once; a root's micrograph is what of that leads
to it.
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
from hyrt.graph.partition.methods.registry import partition_method
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers, working
from hyrt.sampling.block import Ids
from hyrt.sampling.layerwise.layerwise_settings import FastGcnSettings, LadiesSettings
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.sampler_settings import SamplerSettings


@dataclass(frozen=True, slots=True)
class Locality:
    """The means over the roots of one case."""

    micrograph: float
    """The share of a micrograph's vertices that are not its root and have its home."""
    subgraph: float
    """The same share of the vertices of the mini-batch of all roots."""
    vertices: float
    """The vertices of a micrograph."""


def locality(
    sampled: Sequence[NDArray[Any]], whole: NDArray[Any], roots: NDArray[Any], homes: NDArray[Any]
) -> Locality:
    """The locality of micrographs.

    Parameters
    ----------
    sampled
        The distinct vertices of each root's micrograph, the root among them.
    whole
        [n] the distinct vertices of the mini-batch of all roots.
    roots
        [r] the roots.
    homes
        [V] the part of each vertex.
    """
    of_parts = np.bincount(homes[whole], minlength=int(homes.max()) + 1)
    at_home = [
        np.count_nonzero(homes[each] == homes[root]) - 1 for each, root in zip(sampled, roots, strict=True)
    ]
    return Locality(
        micrograph=float(np.mean([count / len(each) for count, each in zip(at_home, sampled, strict=True)])),
        subgraph=float(np.mean((of_parts[homes[roots]] - 1) / len(whole))),
        vertices=float(np.mean([len(each) for each in sampled])),
    )


@dataclass(frozen=True, slots=True)
class LocalityCase:
    """A number of layers, and how each is sampled."""

    layers: int
    sampler: SamplerSettings
    name: str
    """For the head of the table."""

    @classmethod
    def of(cls, text: str) -> LocalityCase:
        """What `2x10` or `2xladies2000` says.

        Raises
        ------
        ValueError
            If it says nothing.
        """
        found = re.fullmatch(r"(\d+)x(ladies|fastgcn|)(\d+)", text)
        if found is None:
            raise ValueError(f"{text!r} is no case: give one such as 2x10, 2xladies2000 or 2xfastgcn2000")
        layers, kind, size = int(found[1]), found[2], int(found[3])
        if kind == "":
            sampler: SamplerSettings = NeighborSettings(kind="neighbor", fanout=[size] * layers)
            return cls(layers, sampler, f"{layers} layers, fan-out {size}")
        settings = LadiesSettings if kind == "ladies" else FastGcnSettings
        sampler = settings(kind=kind, layer_size=size)
        return cls(layers, sampler, f"{layers} layers, {sampler.describe(layers, 0).partition(' · ')[0]}")

    def build(self, graph: Graph, targets: Ids, num_roots: int, seed: int) -> Sampler:
        """The sampler of steps of so many roots."""
        return self.sampler.build(graph, targets, layers=self.layers, batch_size=num_roots, seed=seed)


def vertices_of(sampler: Sampler, roots: NDArray[Any], workers: Workers) -> NDArray[Any]:
    """The distinct vertices of the first step's mini-batch of some roots."""
    batch = sampler.sample(0, np.ascontiguousarray(roots), workers, in_place=False)
    sources = batch.blocks[0].sources
    assert sources is not None
    found: NDArray[Any] = sources.copy()
    batch.release()
    return found


def rows(
    graph: Graph, parts: Sequence[int], cases: Sequence[LocalityCase], num_roots: int, seed: int
) -> list[str]:
    """Rows of a Markdown table: one for each number of parts."""
    method = partition_method("metis")
    targets = graph.split("train")
    training = np.zeros(graph.num_vertices, np.bool_)
    training[targets] = True
    found: dict[int, list[Locality]] = {count: [] for count in parts}
    with Workers(available_cores(), "locality") as workers, working(workers):
        homes = {count: method.homes(graph.topology, training, count, seed) for count in parts}
        for case in cases:
            sampler = case.build(graph, targets, num_roots, seed)
            roots = sampler.units(0)
            sampled = [vertices_of(sampler, roots[i : i + 1], workers) for i in range(len(roots))]
            whole = vertices_of(sampler, roots, workers)
            for count in parts:
                found[count].append(locality(sampled, whole, roots, homes[count]))
    lines = []
    for count in parts:
        cells = [
            f"{100 * each.micrograph:.0f} ({100 * each.subgraph:.0f}, {each.vertices:,.0f})"
            for each in found[count]
        ]
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--parts", default="2,4,8,16")
    parser.add_argument("--cases", default="2x10,10x2", help="layers x fan-out, or sampler and size")
    parser.add_argument("--roots", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    cases = [LocalityCase.of(text) for text in asked.cases.split(",")]
    parts = [int(count) for count in asked.parts.split(",")]
    title = "% of a micrograph at home with its root (% of the mini-batch, vertices of a micrograph)"
    print(f"\n{asked.data}: {title}\n")
    print("| parts | " + " | ".join(case.name for case in cases) + " |")
    print("| --- " + "| ---: " * len(cases) + "|")
    print("\n".join(rows(load(asked.data), parts, cases, asked.roots, asked.seed)))


if __name__ == "__main__":
    main()
