"""Opening of a run's graph, including the link split for link prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.config.compatibility import (
    check_compatibility,
    list_graph_features,
    setting_component,
)
from hyrt.errors import ConfigError, DataError, HyrtError, join_names
from hyrt.graph import Graph, open_graph
from hyrt.graph.links.build_split import (
    check_pairs,
    random_link_split,
    read_links,
    read_run_links,
    read_run_training_links,
)
from hyrt.graph.links.edges import (
    TimedEdges,
    add_links,
    convert_times,
    encode_pairs,
    is_known_time,
    list_links,
    mark_edge_pairs,
    mark_edges,
    order_edge_times,
    remove_links,
)
from hyrt.graph.links.link_split import (
    LinkEndpoints,
    LinkGraph,
    LinkRelation,
    LinkSplit,
    message_topology,
    select_link_relation,
)
from hyrt.graph.quantized.features import quantize_graph
from hyrt.graph.run_schema import RunSchema
from hyrt.graph.topology import Topology
from hyrt.runtime.files import ARCHIVE_ERRORS
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers, use_workers
from hyrt.training.checkpoint import Checkpoint

LINKS = "links.npz"
"""File name of the link split in a run folder."""


def link_graph(config: Config, graph: Graph, run_split: Path | LinkSplit | None = None) -> Graph:
    """Return the graph without the held-out edges, and with the links to predict.

    `links` in the settings defines the split; `run_split` is the run's split or its file, if any. A graph
    that is already split is returned unchanged. Raises ConfigError if the relation is unknown or the graph
    has no relations, and DataError if the links cannot be split as configured or a configured file is
    invalid.
    """
    if graph.links is not None:
        return graph
    relation = None
    if graph.types is not None:
        relation = select_link_relation(graph.name, graph.types, graph.topology, config.links.relation)
    elif config.links.relation is not None:
        raise ConfigError(
            f"links.relation={config.links.relation} requires a heterogeneous graph, but {graph.name} has "
            "no relations: remove links.relation"
        )
    known = graph.topology if relation is None else relation.edges
    ends = LinkEndpoints.all_vertices(graph.num_vertices) if relation is None else relation.ends
    if not known.num_edges:
        edges_text = "edges" if relation is None else f"edges from {' to '.join(ends.names or ())}"
        raise DataError(f"{graph.name} has no {edges_text} to predict: remove train.objective=links")
    split = run_split
    if not isinstance(split, LinkSplit):
        split = _split(config, graph, known, ends, relation, split)
    # A file may contain links that are not edges of the graph.
    known = add_links(known, split.train, *(part.links for part in split.held_out.values()))
    trained = remove_links(known, *(part.links for part in split.held_out.values()))
    width = config.links.width or config.model.hidden
    links = LinkGraph(split, width, known, trained, ends, relation)
    if config.links.negatives == "given" and split.train_negatives is None:
        raise DataError(
            f"{config.links.split} has no key 'train_neg', which links.negatives=given requires: add it, "
            "or set links.negatives=uniform"
        )
    notes = (*split.notes, *_hidden_edges(graph, links))
    return replace(graph, topology=message_topology(graph.topology, links), links=replace(links, notes=notes))


def _hidden_edges(graph: Graph, links: LinkGraph) -> list[str]:
    """Return a line if other edges reveal held-out links and are therefore excluded from message passing."""
    topology = graph.topology
    hidden = links.visible_edges(topology, *links.held_out)
    themselves = [
        (pairs, None if links.relation is None else links.relation.number) for pairs in links.held_out
    ]
    if links.known_edges.is_symmetric:
        themselves += [(pairs[:, ::-1], relation) for pairs, relation in themselves]
    others = hidden & ~mark_edges(topology, themselves)
    count = int(np.count_nonzero(others))
    if not count:
        return []
    which = "reverse edges"
    if graph.types is not None:
        assert topology.edge_types is not None
        numbers = np.bincount(topology.edge_types[others], minlength=len(graph.types.relations))
        shares = [f"{n:,} of {graph.types.relations[i].full_name}" for i, n in enumerate(numbers) if n]
        which = f"edges between the same vertices ({join_names(shares, 'and')})"
    return [f"message passing also excludes {count:,} {which} so that held-out links stay hidden"]


def unsplit_links(config: Config, graph: Graph) -> Graph:
    """Return a graph for scoring links: all edges carry messages, and no links are held out."""
    relation = None
    if graph.types is not None:
        relation = select_link_relation(graph.name, graph.types, graph.topology, config.links.relation)
    known = graph.topology if relation is None else relation.edges
    ends = LinkEndpoints.all_vertices(graph.num_vertices) if relation is None else relation.ends
    split = LinkSplit(np.empty((0, 2), np.int64), {})
    width = config.links.width or config.model.hidden
    return replace(graph, links=LinkGraph(split, width, known, known, ends, relation))


def _split(
    config: Config,
    graph: Graph,
    known: Topology,
    ends: LinkEndpoints,
    relation: LinkRelation | None,
    split_file: Path | None,
) -> LinkSplit:
    settings = config.links
    is_of_run = split_file is not None and split_file.is_file()
    if is_of_run or settings.has_split_file:
        path = split_file if split_file is not None and is_of_run else Path(settings.split)
        places = graph.vertices.positions
        try:
            return read_links(path, known, config.seed, ends, places, graph=graph.name, is_of_run=is_of_run)
        except DataError as error:
            if not is_of_run:
                raise
            raise DataError(
                f"the held-out links of the run do not fit {graph.name}, which has changed since the "
                f"training or has another vertex order, or their file is damaged ({error}): restore the "
                "dataset or the file, or specify another dataset with --data"
            ) from error
    times = _times(settings.times, graph, known, ends, relation) if settings.split == "time" else None
    return random_link_split(
        graph.name,
        known,
        config.seed,
        val=settings.val,
        test=settings.test,
        ends=ends,
        supervision=settings.supervision,
        times=times,
    )


def _times(
    times_file: str | None, graph: Graph, known: Topology, ends: LinkEndpoints, relation: LinkRelation | None
) -> NDArray[Any]:
    """Return the times [e] of the edges that are links, from the dataset or a configured file."""
    times = graph.topology.edge_times
    if times_file is not None:
        if times is not None:
            raise ConfigError(
                f"links.times={times_file} has no effect, because the edges of {graph.name} already have "
                "times: remove links.times"
            )
        times, where = (
            _times_of_file(Path(times_file), known, ends, graph.vertices.positions),
            f"links.times={times_file}",
        )
    elif times is None:
        raise DataError(
            f"links.split=time needs the times of the edges, but {graph.name} has none: name their column "
            "in the schema of the import (edges.time), add the key edge_time to the dataset, set "
            "edge_time of a PyG or DGL graph, or set links.times=FILE.npz with edges [n, 2] and times [n]"
        )
    else:
        times, where = times if relation is None else times[relation.positions], graph.name
    missing = np.flatnonzero(~is_known_time(times))
    if len(missing):
        at = int(missing[0])
        pair = [int(known.indices[at]), int(np.searchsorted(known.indptr, at, side="right")) - 1]
        ids = graph.vertices.vertex_ids
        source, destination = pair if ids is None else ids[pair].tolist()
        raise DataError(
            f"{where}: {len(missing):,} of {known.num_edges:,} edges have no time, such as the edge from "
            f"vertex {source} to {destination}: add the missing times, or remove links.split=time"
        )
    return times


def _times_of_file(
    path: Path, known: Topology, ends: LinkEndpoints, positions: NDArray[Any] | None
) -> NDArray[Any]:
    """Return the times [e] of edges from a file with vertex pairs and their times."""
    error_prefix = f"links.times={path} must be a .npz file with edges [n, 2] and times [n]"
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise DataError(
                    f"{error_prefix}, but is a single array, which does not say to which edges its times "
                    "belong"
                )
            pairs, times = arrays["edges"], arrays["times"]
    except KeyError as error:
        raise DataError(f"{error_prefix}: {str(error).strip(chr(39))}") from None
    except (*ARCHIVE_ERRORS, OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"{error_prefix}: {getattr(error, 'strerror', None) or error}") from None
    pairs = check_pairs(f"{path}: key 'edges'", pairs, known.num_vertices, ends, positions)
    times = convert_times(times, len(pairs), f"{path}: key 'times'", "remove links.split=time")
    both = [pairs, pairs[:, ::-1]] if known.is_symmetric else [pairs]
    return order_edge_times(known, [TimedEdges(each, times) for each in both], times.dtype)


def opened_graph(config: Config, source: Any = None, links: Path | None = None) -> Graph:
    """Open a graph for training: scale and quantize features and hold out links, as configured.

    `source` overrides `data.source`, and `links` is the file of the run's link split, if any. Raises
    ConfigError if quantization is requested for a heterogeneous graph, and DataError as `open_graph` does, or
    if features cannot be quantized or links cannot be split.
    """
    data = config.data
    graph = open_graph(data.source if source is None else source, normalize=data.normalize)
    if config.train.predicts_links:
        graph = link_graph(config, graph, links)
    return apply_feature_dtype(config, graph)


def apply_feature_dtype(config: Config, graph: Graph, schema: RunSchema | None = None) -> Graph:
    """Return a graph with features quantized as configured, with the scales of a run's schema if given.

    Raises ConfigError if quantization is requested for a heterogeneous graph, and DataError if the features
    cannot be quantized.
    """
    data = config.data
    # `resolve_rows` chooses the format for `auto` later, based on this graph.
    if data.feature_dtype in ("stored", "auto"):
        return graph
    dtype = setting_component(f"data.feature_dtype={data.feature_dtype}")
    check_compatibility([dtype], list_graph_features(graph.name, is_hetero=graph.types is not None))
    scales = None if schema is None else schema.tables[""].column_scales
    with Workers(available_cores(), "rounding") as workers, use_workers(workers):
        return quantize_graph(
            graph, data.feature_dtype, config.seed if data.rounding == "stochastic" else None, scales
        )


def number_by_ids(graph: Graph, settings: Config, checkpoint: Checkpoint, links: Path) -> list[NDArray[Any]]:
    """Return the current index of each original vertex of the run, or -1 if the graph has no such id.

    The list is empty if there are no ids, or the dataset of the run is missing or has changed.
    """
    if not graph.names.has_ids:
        return []
    try:
        run_graph = opened_graph(settings, None, links)
    except HyrtError:
        return []
    with run_graph.names.read_ids() as rows:
        names = [tuple(row) for row in rows or ()]
    if not names or run_graph.fingerprint.find_changes(checkpoint.state):
        return []
    with graph.names.read_ids() as rows:
        numbers = {tuple(row): number for number, row in enumerate(rows or ())}
    found = np.array([numbers.get(name, -1) for name in names], np.int64)
    positions = graph.vertices.positions
    return [found if positions is None else np.where(found < 0, -1, positions[found])]


def find_run_split(
    config: Config,
    graph: Graph,
    checkpoint: Checkpoint,
    file: Path,
    numberings: Sequence[NDArray[Any] | None],
) -> LinkSplit | None:
    """Return the run's link split with the vertices of a graph, if it has the edges of the run.

    `numberings` are the possible arguments `positions` of `read_run_links`.
    """
    if not file.is_file():
        return None
    for numbering in numberings:
        split = read_run_links(file, numbering, graph.num_vertices)
        if split is not None and _has_split(config, graph, checkpoint, split):
            return split
    return None


def _has_split(config: Config, graph: Graph, checkpoint: Checkpoint, split: LinkSplit) -> bool:
    """Return whether a run's link split is one of a graph, by checksum or because both have equal links."""
    is_same = not graph.fingerprint_with(split).find_changes(checkpoint.state)
    if is_same and None not in (checkpoint.state.get("graph"), checkpoint.state.get("edges")):
        return True
    links = unsplit_links(config, graph).links
    assert links is not None
    pairs = np.concatenate([split.train, *(part.links for part in split.held_out.values())])
    if not mark_edge_pairs(links.known_edges, pairs).all():
        return False
    # Earlier versions did not store the checksum of the edges.
    if is_same and checkpoint.state.get("graph") is not None:
        return True
    vertices = checkpoint.state.get("vertices")
    if vertices is None or vertices["count"] != graph.num_vertices:
        return False
    known = encode_pairs(graph.topology, list_links(links.known_edges)[0], undirected=True)
    return bool(np.isin(known, encode_pairs(graph.topology, pairs, undirected=True)).all())


# A smaller share of equal links, or four times the share expected by chance, means another graph.
_MIN_SHARE = 0.01


def warn_of_training_links(
    graph: Graph, file: Path, numberings: Sequence[NDArray[Any] | None], warn: Callable[[str], None]
) -> None:
    """Warn if held-out links of a new split were training links of the run."""
    assert graph.links is not None
    if not file.is_file() or not graph.links.held_out:
        return
    held_out = encode_pairs(graph.topology, np.concatenate(graph.links.held_out), undirected=True)
    most = 0
    for numbering in numberings:
        trained = read_run_training_links(file, numbering, graph.num_vertices)
        codes = encode_pairs(graph.topology, trained, undirected=True)
        most = max(most, int(np.isin(held_out, codes).sum()))
    chance = 4 * graph.links.known_edges.num_edges / max(1, graph.links.ends.num_pairs)
    if most > min(0.5, _MIN_SHARE + chance) * len(held_out):
        warn(
            f"{graph.name} has other edges than the dataset of the run, so its links were split again, and "
            f"{most:,} of {len(held_out):,} held-out links were training links of the run, so the metrics "
            "are too good: evaluate on the dataset of the run, or on links that it did not have"
        )
