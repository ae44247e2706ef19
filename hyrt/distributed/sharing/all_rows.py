"""Graph of a rank with the feature rows of all ranks."""

from __future__ import annotations

from hyrt.config import Config
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.distributed_rows import DistributedRows
from hyrt.distributed.rows.distributed_sparse_rows import DistributedSparseRows
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import FetchedRows, SparseFeatures


def graph_of_all_rows(config: Config, graph: Graph, own: OwnRows, ranks: JoinedRanks) -> Graph:
    """Return the graph with all rows; the load stage fetches rows of other ranks.

    Parameters
    ----------
    config
        All settings; `distributed.wire` is the wire format of the rows.
    graph
        Topology, labels and splits.
    own
        Rows of this rank.
    ranks
        All ranks.

    Raises
    ------
    ConfigError
        If sparse rows would be rounded.
    """
    rows: FetchedRows
    if isinstance(own.rows, SparseFeatures):
        if config.distributed.wire != "float32":
            raise ConfigError(
                f"distributed.wire={config.distributed.wire} rounds dense rows, and {config.data.source} has "
                "sparse rows, which are sent unchanged: remove distributed.wire"
            )
        rows = DistributedSparseRows(own.rows, own.places, own.homes, ranks.rows)
    else:
        wire = config.distributed.wire
        rows = DistributedRows(own.rows, own.places, own.homes, ranks.rows, wire, beside=own.beside)
    return graph.with_features(rows)
