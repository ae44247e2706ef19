"""Sampler of a run with link prediction."""

from __future__ import annotations

import numpy as np

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.links.link_split import LinkGraph
from hyrt.sampling.excluded_edges import EdgeExcludingSampler
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.link_sampler import FullLinkSampler, LinkSampler, NegativeSampler
from hyrt.sampling.sampler import Sampler


def build_link_sampler(config: Config, graph: Graph, links: LinkGraph) -> Sampler:
    """Create the configured sampler for the endpoints of the training links.

    Raises ConfigError if the sampler chooses the vertices of its mini-batches.
    """
    kind, split, settings = config.sampler.kind, links.split, config.links
    batch_size = min(config.data.batch_size, len(split.train))
    around = config.sampler.build(
        graph,
        np.unique(split.train),
        layers=config.model.layers,
        batch_size=batch_size,
        seed=config.seed,
    )
    negatives = NegativeSampler(
        *(settings.negatives, settings.num_negatives, config.seed),
        *(links.train_edges, links.ends, split.train_negatives),
    )
    if isinstance(around, FullSampler):
        return FullLinkSampler(split.train, around, negatives)
    if isinstance(around, EdgeExcludingSampler):
        return LinkSampler(
            *(split.train, around, negatives, graph.topology),
            *(config.excluded_links, batch_size, config.seed, links.relation),
        )
    raise ConfigError(
        f"sampler.kind={kind} does not sample around the ends of links: give sampler.kind=neighbor, or "
        "--full-graph, with train.objective=links"
    )
