"""A graph whose edges are predicted: its split, and the edges that are left for messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.errors import ConfigError, DataError, listed
from hyrt.graph.graph import Graph
from hyrt.graph.links.draw_split import draw_split
from hyrt.graph.links.edge_times import TimedEdges, as_times, is_known, times_in_rows
from hyrt.graph.links.known_edges import edges_joining
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.links.link_file import checked_pairs, read_links
from hyrt.graph.links.link_split import LinkGraph, LinkSplit, message_topology
from hyrt.graph.links.message_edges import with_links, without_links
from hyrt.graph.links.relation_links import RelationLinks, relation_links
from hyrt.graph.topology import Topology
from hyrt.machine.archive_damage import ARCHIVE_DAMAGE

LINKS = "links.npz"
"""The file of the split in the folder of a run."""


def link_graph(config: Config, graph: Graph, kept: Path | None = None) -> Graph:
    """The graph without the edges that are held out, and with what is to be predicted.

    Parameters
    ----------
    config
        All settings, of which `links` says how the links are split.
    graph
        The graph with all edges, or one that is split already, which is returned as it is.
    kept
        The file of the run's own split, where it has one.

    Raises
    ------
    ConfigError
        If the relation of a typed graph is not known, or the graph has none.
    DataError
        If the links cannot be split so, or a file of the settings is not what it should be.
    """
    if graph.links is not None:
        return graph
    relation = None
    if graph.types is not None:
        relation = relation_links(graph.name, graph.types, graph.topology, config.links.relation)
    elif config.links.relation is not None:
        raise ConfigError(
            f"links.relation={config.links.relation} is for typed graphs, and {graph.name} has no relations: "
            "omit it"
        )
    known = graph.topology if relation is None else relation.edges
    ends = LinkEnds.any_of(graph.num_vertices) if relation is None else relation.ends
    if not known.num_edges:
        what = "edges" if relation is None else f"edges from {' to '.join(ends.names or ())}"
        raise DataError(f"{graph.name}: has no {what} to predict: omit train.objective=links")
    split = _split(config, graph, known, ends, relation, kept)
    # A file may name links that are not edges.
    known = with_links(known, split.train, *(part.links for part in split.held_out.values()))
    trained = without_links(known, *(part.links for part in split.held_out.values()))
    width = config.links.width or config.model.hidden
    links = LinkGraph(split, width, known, trained, ends, relation)
    if config.links.negatives == "given" and split.train_negatives is None:
        raise DataError(
            f"{config.links.split}: has no key 'train_neg', which links.negatives=given draws from: add it, "
            "or give links.negatives=uniform"
        )
    notes = (*split.notes, *_hidden_edges(graph, links))
    return replace(graph, topology=message_topology(graph.topology, links), links=replace(links, notes=notes))


def _hidden_edges(graph: Graph, links: LinkGraph) -> list[str]:
    """Return a line if edges besides the held-out links themselves give these away and carry no messages."""
    topology = graph.topology
    hidden = links.visible_edges(topology, *links.held_out)
    themselves = [
        (pairs, None if links.relation is None else links.relation.number) for pairs in links.held_out
    ]
    if links.known.is_symmetric:
        themselves += [(pairs[:, ::-1], relation) for pairs, relation in themselves]
    others = hidden & ~edges_joining(topology, themselves)
    count = int(np.count_nonzero(others))
    if not count:
        return []
    which = "reverse edges"
    if graph.types is not None:
        assert topology.edge_types is not None
        numbers = np.bincount(topology.edge_types[others], minlength=len(graph.types.relations))
        shares = [f"{n:,} of {graph.types.relations[i].full_name}" for i, n in enumerate(numbers) if n]
        which = f"edges between the same vertices ({listed(shares, 'and')})"
    return [f"held-out links stay hidden: {count:,} {which} carry no messages either"]


def unsplit_links(config: Config, graph: Graph) -> Graph:
    """Return a graph whose links are to be scored: all edges carry messages, and none is held out."""
    relation = None
    if graph.types is not None:
        relation = relation_links(graph.name, graph.types, graph.topology, config.links.relation)
    known = graph.topology if relation is None else relation.edges
    ends = LinkEnds.any_of(graph.num_vertices) if relation is None else relation.ends
    split = LinkSplit(np.empty((0, 2), np.int64), {})
    width = config.links.width or config.model.hidden
    return replace(graph, links=LinkGraph(split, width, known, known, ends, relation))


def _split(
    config: Config,
    graph: Graph,
    known: Topology,
    ends: LinkEnds,
    relation: RelationLinks | None,
    kept: Path | None,
) -> LinkSplit:
    asked = config.links
    if kept is not None and kept.is_file():
        # Written with the numbers that the vertices have.
        return read_links(kept, known, config.seed, ends)
    if asked.is_given:
        return read_links(Path(asked.split), known, config.seed, ends, graph.vertices.positions)
    times = _times(asked.times, graph, known, ends, relation) if asked.split == "time" else None
    return draw_split(
        graph.name,
        known,
        config.seed,
        val=asked.val,
        test=asked.test,
        ends=ends,
        supervision=asked.supervision,
        times=times,
    )


def _times(
    given: str | None, graph: Graph, known: Topology, ends: LinkEnds, relation: RelationLinks | None
) -> NDArray[Any]:
    """Return [e] the times of the edges that are links, from the dataset or from a file of the settings."""
    times = graph.topology.edge_times
    if given is not None:
        if times is not None:
            raise ConfigError(f"links.times={given}: the edges of {graph.name} have times already: omit it")
        times, where = (
            _times_of_file(Path(given), known, ends, graph.vertices.positions),
            f"links.times={given}",
        )
    elif times is None:
        raise DataError(
            f"{graph.name}: links.split=time needs the times of the edges, and they have none: name their "
            "column in the schema of the import (edges.time), add the key edge_time to the dataset, set "
            "edge_time of a PyG or DGL graph, or give links.times=FILE.npz with edges [n, 2] and times [n]"
        )
    else:
        times, where = times if relation is None else times[relation.positions], graph.name
    missing = np.flatnonzero(~is_known(times))
    if len(missing):
        at = int(missing[0])
        pair = [int(known.indices[at]), int(np.searchsorted(known.indptr, at, side="right")) - 1]
        ids = graph.vertices.vertex_ids
        source, destination = pair if ids is None else ids[pair].tolist()
        raise DataError(
            f"{where}: {len(missing):,} of {known.num_edges:,} edges have no time, first that from vertex "
            f"{source} to {destination}: give each of them a time, or omit links.split=time"
        )
    return times


def _times_of_file(
    path: Path, known: Topology, ends: LinkEnds, positions: NDArray[Any] | None
) -> NDArray[Any]:
    """Return [e] the times of edges that a file has for pairs of vertices."""
    wanted = f"links.times={path}: give a .npz file with edges [n, 2] and times [n]"
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise DataError(
                    f"{wanted}: it is one array, and hyrt cannot know which edges its times belong to, "
                    "because datasets have their edges in an order of their own"
                )
            pairs, times = arrays["edges"], arrays["times"]
    except KeyError as error:
        raise DataError(f"{wanted}: {str(error).strip(chr(39))}") from None
    except (*ARCHIVE_DAMAGE, OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"{wanted}: {getattr(error, 'strerror', None) or error}") from None
    pairs = checked_pairs(f"{path}: key 'edges'", pairs, known.num_vertices, ends, positions)
    times = as_times(times, len(pairs), f"{path}: key 'times'", "omit links.split=time")
    both = [pairs, pairs[:, ::-1]] if known.is_symmetric else [pairs]
    return times_in_rows(known, [TimedEdges(each, times) for each in both], times.dtype)
