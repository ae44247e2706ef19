"""Choice of the fastest algorithm for distributed full-graph training, by the cost model."""

from __future__ import annotations

from hyrt_perfmodel.communication.full_graph_epoch import FullGraphWork, fastest, why
from hyrt_perfmodel.communication.network import Network

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.partition.one_part import open_part
from hyrt.graph.source import open_graph
from hyrt.predict.calibrate.store import usable
from hyrt.predict.ranks.full_graph_on_ranks import (
    KnownParts,
    candidates,
    full_graph_work,
    work_at_assumed_rates,
)
from hyrt.predict.this_run import devices_of
from hyrt.predict.workload import sampled_workload
from hyrt.training.setup import select_edges


def chosen_algorithm(config: Config, ranks: int, network: Network) -> tuple[str, int, str]:
    """Return the fastest algorithm, its replication, and an explanation.

    Parameters
    ----------
    config
        All settings; the dataset is partitioned.
    ranks
        Number of ranks.
    network
        Network between the ranks.

    Raises
    ------
    ConfigError
        If the ranks support no algorithm with these partitions.
    """
    folder = config.data.source
    # Rank 0 has partition 0 under every algorithm; it may not have others.
    part = open_part(folder, 0)
    num_parts = part.manifest.num_parts
    graph = part.graph.with_features(part.rows)
    if part.manifest.topology == "split":
        graph = open_graph(folder, normalize="none")
    graph = select_edges(config, graph)
    work, origin = _work_and_origin(config, graph)
    choices = [KnownParts(part.homes, num_parts)]
    epochs = candidates(graph.topology, choices, ranks, work, network)
    if not epochs:
        raise ConfigError(
            f"{folder}: {ranks} ranks cannot share its {num_parts} parts evenly: start a number of ranks "
            f"that divides {num_parts}, or partition again"
        )
    best = fastest(epochs)
    text = (
        f"distributed.algorithm=auto: {why(epochs)} (the network does {network.gb_s * 1e3:,.3g} MB/s and "
        f"{network.latency_s * 1e6:,.3g} us a message; computing is {origin})"
    )
    return best.algorithm, best.replication, text


def _work_and_origin(config: Config, graph: Graph) -> tuple[FullGraphWork, str]:
    """Return the work of an epoch on one machine, and the origin of its times."""
    calibration, _ = usable()
    if calibration is None:
        return work_at_assumed_rates(config, graph), "assumed, for this machine is not calibrated"
    try:
        platform = devices_of(config, calibration.platform)
        work = full_graph_work(config, graph, platform, sampled_workload(config, graph))
    except (ConfigError, ValueError):
        return work_at_assumed_rates(config, graph), "assumed, for these devices were not calibrated"
    return work, "that of the calibration"
