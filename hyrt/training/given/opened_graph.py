"""The graph that settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.graph import Graph, open_graph
from hyrt.graph.narrow.narrowing import narrowed
from hyrt.graph.reuse.run_schema import RunSchema
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers, working
from hyrt.training.given.link_graph import link_graph


def opened_graph(config: Config, source: Any = None, links: Path | None = None) -> Graph:
    """Open a graph to train on, with features scaled and rounded, and links held out, as the settings say.

    Parameters
    ----------
    config
        All settings.
    source
        What to open in place of `data.source`; see `hyrt.graph.open_graph`.
    links
        The file of the run's own split of links, where it may have one.

    Raises
    ------
    ConfigError
        If rows of a typed graph are to be rounded.
    DataError
        As for `open_graph`, and if the features cannot be rounded, or the links split so.
    """
    data = config.data
    graph = open_graph(data.source if source is None else source, normalize=data.normalize)
    if config.train.predicts_links:
        graph = link_graph(config, graph, links)
    return rounded_graph(config, graph)


def rounded_graph(config: Config, graph: Graph, schema: RunSchema | None = None) -> Graph:
    """Return a graph with features rounded as the settings say, by the scales in a run's schema if given.

    Raises
    ------
    ConfigError
        If rows of a typed graph are to be rounded.
    DataError
        If the features cannot be rounded.
    """
    data = config.data
    # What auto stands for is chosen with the graph at hand.
    if data.rows in ("stored", "auto"):
        return graph
    if graph.types is not None:
        raise ConfigError(
            f"data.rows={data.rows}: the rows of a typed graph are read as they are stored: omit it"
        )
    scales = None if schema is None else schema.tables[""].column_scales
    with Workers(available_cores(), "rounding") as workers, working(workers):
        return narrowed(graph, data.rows, config.seed if data.rounding == "stochastic" else None, scales)
