"""Targets of an evaluation and their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.graph.graph import Graph
from hyrt.graph.links.draw_candidates import draw_candidates
from hyrt.graph.links.link_split import LinkGraph
from hyrt.objective.links.asked_links import AskedLinks
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Targets of an evaluation, by split; splits without targets are omitted."""

    vertices: NDArray[np.int64]
    """[n] vertices to score."""
    rows: Mapping[str, slice]
    """Slice of the scores of `vertices`, by split."""
    labels: Mapping[str, Any]
    """The `labels` argument of `hyrt.objective.Objective.evaluate`, by split."""

    __repr__ = one_line


def judged_vertices(config: Config, graph: Graph) -> Judged:
    """Return the validation vertices followed by the test vertices."""
    splits = {name: graph.split(name, config.data.split) for name in ("val", "test")}
    splits = {name: vertices for name, vertices in splits.items() if len(vertices)}
    ends = np.cumsum([0, *(len(vertices) for vertices in splits.values())])
    return Judged(
        vertices=np.concatenate([np.empty(0, np.int64), *splits.values()]),
        rows={name: slice(ends[i], ends[i + 1]) for i, name in enumerate(splits)},
        labels={name: graph.vertices.labels_of(vertices) for name, vertices in splits.items()},
    )


def judged_links(config: Config, graph: Graph, links: LinkGraph) -> Judged:
    """Return the held-out links with negative pairs and ranking candidates."""
    held_out, num_candidates = links.split.held_out, config.links.candidates
    candidates: dict[str, NDArray[np.int64] | None] = {
        name: None
        if num_candidates == "all"
        else draw_candidates(links.known, part.links, config.seed, name, num_candidates, links.ends)
        for name, part in held_out.items()
    }
    if num_candidates == "all":
        vertices = np.arange(graph.num_vertices)
    else:
        ends = [part for each in held_out.values() for part in (each.links.ravel(), each.negatives.ravel())]
        sampled = [each[each >= 0] for each in candidates.values() if each is not None]
        vertices = np.unique(np.concatenate([np.empty(0, np.int64), *ends, *sampled]))

    def rows_of(ids: NDArray[Any]) -> NDArray[np.int64]:
        return np.where(ids < 0, -1, np.searchsorted(vertices, ids)).astype(np.int64)

    return Judged(
        vertices=vertices,
        rows={name: slice(None) for name in held_out},
        labels={
            name: AskedLinks(
                links=rows_of(part.links),
                negatives=rows_of(part.negatives),
                candidates=None if (sampled_pairs := candidates[name]) is None else rows_of(sampled_pairs),
                known=links.known if num_candidates == "all" else None,
                ends=links.ends if num_candidates == "all" else None,
            )
            for name, part in held_out.items()
        },
    )
