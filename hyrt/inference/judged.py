"""What an evaluation scores, and what the scores are compared with."""

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
    """The splits of an evaluation that have something in them."""

    vertices: NDArray[np.int64]
    """[n] the vertices to score."""
    rows: Mapping[str, slice]
    """By split, the rows of the scores of `vertices` that it looks at."""
    labels: Mapping[str, Any]
    """By split, what `hyrt.objective.Objective.evaluate` takes for labels."""

    __repr__ = one_line


def judged_vertices(config: Config, graph: Graph) -> Judged:
    """The validation and the test vertices, one after the other."""
    splits = {name: graph.split(name, config.data.split) for name in ("val", "test")}
    splits = {name: vertices for name, vertices in splits.items() if len(vertices)}
    ends = np.cumsum([0, *(len(vertices) for vertices in splits.values())])
    return Judged(
        vertices=np.concatenate([np.empty(0, np.int64), *splits.values()]),
        rows={name: slice(ends[i], ends[i + 1]) for i, name in enumerate(splits)},
        labels={name: graph.vertices.labels_of(vertices) for name, vertices in splits.items()},
    )


def judged_links(config: Config, graph: Graph, links: LinkGraph) -> Judged:
    """The ends of the held-out links, of pairs that are none, and of what links are ranked among."""
    held_out, asked = links.split.held_out, config.links.candidates
    candidates: dict[str, NDArray[np.int64] | None] = {
        name: None
        if asked == "all"
        else draw_candidates(links.known, part.links, config.seed, name, asked, links.ends)
        for name, part in held_out.items()
    }
    if asked == "all":
        vertices = np.arange(graph.num_vertices)
    else:
        ends = [part for each in held_out.values() for part in (each.links.ravel(), each.negatives.ravel())]
        drawn = [each[each >= 0] for each in candidates.values() if each is not None]
        vertices = np.unique(np.concatenate([np.empty(0, np.int64), *ends, *drawn]))

    def rows_of(of: NDArray[Any]) -> NDArray[np.int64]:
        return np.where(of < 0, -1, np.searchsorted(vertices, of)).astype(np.int64)

    return Judged(
        vertices=vertices,
        rows={name: slice(None) for name in held_out},
        labels={
            name: AskedLinks(
                links=rows_of(part.links),
                negatives=rows_of(part.negatives),
                candidates=None if (drawn_ones := candidates[name]) is None else rows_of(drawn_ones),
                known=links.known if asked == "all" else None,
                ends=links.ends if asked == "all" else None,
            )
            for name, part in held_out.items()
        },
    )
