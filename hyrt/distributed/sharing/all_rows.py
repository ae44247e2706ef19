"""The graph of a rank with the rows of all ranks."""

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
    """The graph with all rows, those of other ranks by exchange in the load stage.

    Parameters
    ----------
    config
        All settings; `distributed.wire` is of the rows.
    graph
        Topology, labels and splits.
    own
        The rows of this rank.
    ranks
        All ranks.

    Raises
    ------
    ConfigError
        If sparse rows are to be rounded.
    """
    rows: FetchedRows
    if isinstance(own.rows, SparseFeatures):
        if config.distributed.wire != "float32":
            raise ConfigError(
                f"distributed.wire={config.distributed.wire} rounds dense rows, and {config.data.source} has "
                "sparse ones, which travel as they are: omit distributed.wire"
            )
        rows = DistributedSparseRows(own.rows, own.places, own.homes, ranks.rows)
    else:
        wire = config.distributed.wire
        rows = DistributedRows(own.rows, own.places, own.homes, ranks.rows, wire, beside=own.beside)
    return graph.with_features(rows)
